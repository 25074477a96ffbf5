"""Training data of sentence encoders: groups of texts, and batches without duplicate texts."""
