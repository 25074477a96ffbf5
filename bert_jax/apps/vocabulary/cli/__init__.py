"""Runs the verbs of `bert-jax vocabulary`."""
