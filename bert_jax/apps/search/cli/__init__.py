"""Holds the verbs of search: they index texts, answer queries and evaluate retrieval."""
