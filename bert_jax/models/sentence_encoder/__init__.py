"""Sentence encoders: an encoder, pooling, dense layers and normalization."""
