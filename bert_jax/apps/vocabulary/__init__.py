"""Adds words to the vocabulary of a pretrained encoder, or gives it another tokenizer."""
