"""Reads and cleans text, splits sentences, and trains and runs tokenizers.

Nothing here imports jax or TensorFlow. The `tokenizers` and `sentencepiece` libraries are imported
when the first tokenizer is loaded.
"""
