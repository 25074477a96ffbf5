"""BERT encoders in JAX: from documents to a trained, exported model.

Importing this package imports neither jax nor TensorFlow; its rooms do so where they need to.
"""

__version__ = "0.1.0"
