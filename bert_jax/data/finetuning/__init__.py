"""Labeled data: examples of tasks, read from other people's formats, as rows of token ids."""
