"""Runs the verbs of `bert-jax word-vectors`."""
