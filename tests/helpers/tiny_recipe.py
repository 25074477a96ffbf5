"""Defines a recipe for simulation tests: BERT of width 16 with dropout and two lengths."""

from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.config.experiment import Experiment


def get_config(*, corpus: str, steps: int = 20, layers: int = 1) -> Experiment:
    """Returns a run on a corpus of `bert_jax.apps.testing.text_corpus`."""
    return tiny_experiment("simulated", corpus, two_length_phases(steps), num_hidden_layers=layers)
