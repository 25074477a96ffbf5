"""Defines prompts for classification, reads them from files, and lists published ones."""
