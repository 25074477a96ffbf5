"""Model folders in the format of sentence-transformers: an encoder and the modules after it."""
