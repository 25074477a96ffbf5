"""TPU slices: the launcher for your own machine, and what runs on the hosts of a slice."""
