"""Runs studies of many fine-tuning runs: GLUE benchmarks, sweeps, and baseline comparisons."""
