"""What an engine is built with, and what names its numerics."""
