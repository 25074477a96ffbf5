"""Keeps a run going: observes it, decides what to do, and acts, until it is done."""
