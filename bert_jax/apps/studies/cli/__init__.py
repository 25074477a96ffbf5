"""Holds the verbs that run many fine-tuning runs and compare them in a table."""
