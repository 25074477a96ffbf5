"""Holds the verbs of attention heads: what they attend to, and which a task needs."""
