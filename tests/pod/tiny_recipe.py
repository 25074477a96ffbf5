"""For a pod's tests: a BERT of width 16 with dropout, two lengths, a save every 5 steps."""

from bert_jax.data.config import LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.models.config import BertConfig, Learned
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import Checkpoints, Logging, Phase, Train, WarmupLinear


def get_config(*, prepared: str, steps: int = 20, layers: int = 1) -> Experiment:
    """A run on a corpus of `bert_jax.testing.corpus`."""
    model = BertConfig(
        vocab_size=78,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        positions=Learned(max_length=64),
    )
    first = steps * 3 // 4
    return Experiment(
        name="pod",
        program=Pretraining(model=model, mask_token_id=4),
        data=LoaderConfig(prepared=prepared),
        train=Train(
            phases=(
                Phase(steps=first, length=32, batch_size=8, max_predictions=5),
                Phase(steps=steps - first, length=64, batch_size=8, max_predictions=10),
            ),
            schedule=WarmupLinear(peak=1e-2, warmup_steps=2),
            checkpoints=Checkpoints(every=5),
            logging=Logging(every=1),
        ),
    )
