"""A model's files: by which name they are found, which files they are, and what they say."""
