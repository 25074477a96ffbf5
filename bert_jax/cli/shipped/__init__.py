"""Runs the verbs on files that come with the package: the recipes and the TPU launcher."""
