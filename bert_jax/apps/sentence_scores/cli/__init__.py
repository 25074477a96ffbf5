"""Holds the verbs of sentence scores: score a text, compare minimal pairs."""
