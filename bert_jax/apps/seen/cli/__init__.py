"""Runs `bert-jax seen` and `bert-jax unlearn`."""
