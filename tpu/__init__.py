"""Runs training on TPU slices: the launcher for your own machine and the agent for the hosts."""
