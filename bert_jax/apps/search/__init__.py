"""Searches collections of texts: indexes, exact and approximate neighbors, BM25, reranking."""
