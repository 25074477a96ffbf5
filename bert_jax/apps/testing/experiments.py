"""Defines a pretraining run that takes seconds, for tests of the code around the training.

Imports no jax.
"""

from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import CheckpointConfig, LoggingConfig, Phase, TrainConfig, WarmupLinear
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions


def tiny_experiment(
    name: str,
    corpus: str,
    phases: tuple[Phase, ...],
    *,
    num_hidden_layers: int = 1,
    save_every: int = 5,
    warmup_steps: int = 2,
) -> Experiment:
    """Returns a config that trains a BERT of width 16 on a corpus of `testing.text_corpus`.

    It has dropout, and every step is logged.
    """
    model = BertConfig(
        vocab_size=78,
        hidden_size=16,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=32,
        positions=LearnedPositions(max_position_embeddings=64),
    )
    return Experiment(
        name=name,
        objective=Pretraining(model=model, mask_token_id=4),
        data=PretrainingData(corpus=corpus),
        train=TrainConfig(
            phases=phases,
            schedule=WarmupLinear(peak_learning_rate=1e-2, warmup_steps=warmup_steps),
            checkpoints=CheckpointConfig(save_every=save_every),
            logging=LoggingConfig(log_every=1),
        ),
    )


def two_length_phases(steps: int) -> tuple[Phase, ...]:
    """Returns two phases: 3/4 of the steps with sequence length 32, the others with 64."""
    first_steps = steps * 3 // 4
    return (
        Phase(steps=first_steps, seq_length=32, batch_size=8, max_predictions_per_seq=5),
        Phase(steps=steps - first_steps, seq_length=64, batch_size=8, max_predictions_per_seq=10),
    )
