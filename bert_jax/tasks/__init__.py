"""Defines each kind of task in one module: features, head, loss, metrics, and how it is shown."""
