"""Describes one run: its manifest, its code bundle and its price."""
