"""Compares systems under an equal budget: a sheet of models, seeds and evaluations as jobs."""
