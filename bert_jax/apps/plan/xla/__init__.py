"""Compiles training steps with XLA for TPUs and reads memory and time from the result."""
