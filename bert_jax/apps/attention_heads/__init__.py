"""Describes what attention heads do, and measures how much a task needs them."""
