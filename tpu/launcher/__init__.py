"""Rents TPU slices, starts trainers on them and restarts them; `tpu/tpuctl` is its command."""
