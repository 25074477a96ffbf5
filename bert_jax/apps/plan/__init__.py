"""Estimates the memory, time, and cost of a run on a TPU slice before it is started."""
