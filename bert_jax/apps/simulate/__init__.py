"""Simulates a multi-host training run on one machine, with hosts that are killed."""
