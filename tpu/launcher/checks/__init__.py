"""Checks everything that can be checked before a slice is rented."""
