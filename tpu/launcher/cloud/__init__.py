"""Runs gcloud commands and parses their output: slices, buckets, errors."""
