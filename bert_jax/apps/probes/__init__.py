"""Probes of encoders: which properties of words and sentences their layers show."""
