"""Runs on each host of a slice; uses only the standard library and runs on Python 3.10."""
