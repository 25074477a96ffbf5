"""Reads the labeled examples of tasks from common formats, and makes batches of token ids."""
