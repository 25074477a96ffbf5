"""Scores sentences by their probability under a model, and compares minimal pairs."""
