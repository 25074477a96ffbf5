"""Attributes the prediction of a fine-tuned model to the tokens of its input."""
