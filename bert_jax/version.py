"""Holds the version of the package, which files written by it record."""

__version__ = "0.1.0"
