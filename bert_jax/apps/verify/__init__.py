"""Verifies kernels, training, resuming, sharding and speed on the devices of a machine."""
