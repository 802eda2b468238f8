"""Training of drafters without torch: text that the model writes itself, and layers in NumPy."""
