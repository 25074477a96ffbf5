"""Holds the verbs of curation: they filter raw text, and train a classifier for a rule."""
