"""A pretraining run that takes seconds, for tests of what is round the training. No jax here."""

from bert_jax.data.config import LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.models.config import BertConfig, Learned
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import Checkpoints, Logging, Phase, Train, WarmupLinear


def tiny_experiment(
    name: str,
    prepared: str,
    phases: tuple[Phase, ...],
    *,
    layers: int = 1,
    save_every: int = 5,
    warmup_steps: int = 2,
) -> Experiment:
    """A BERT of width 16, with dropout, on a corpus of `testing.corpus`; each step is logged."""
    model = BertConfig(
        vocab_size=78,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        positions=Learned(max_length=64),
    )
    return Experiment(
        name=name,
        program=Pretraining(model=model, mask_token_id=4),
        data=LoaderConfig(prepared=prepared),
        train=Train(
            phases=phases,
            schedule=WarmupLinear(peak=1e-2, warmup_steps=warmup_steps),
            checkpoints=Checkpoints(every=save_every),
            logging=Logging(every=1),
        ),
    )


def two_lengths(steps: int) -> tuple[Phase, ...]:
    """Three quarters of the steps with rows of 32, the rest with rows of 64."""
    first = steps * 3 // 4
    return (
        Phase(steps=first, length=32, batch_size=8, max_predictions=5),
        Phase(steps=steps - first, length=64, batch_size=8, max_predictions=10),
    )
