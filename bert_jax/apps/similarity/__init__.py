"""Compares the hidden states of layers, checkpoints and models."""
