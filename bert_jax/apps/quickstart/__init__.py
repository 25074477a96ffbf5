"""Runs the quickstart: from the documentation on this machine to a trained, exported BERT."""
