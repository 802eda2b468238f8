"""Token sequences that are driven by hand, and decoding strategies."""
