"""Answers what a pretraining run has read, and repeats a run without some documents."""
