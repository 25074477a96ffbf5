"""A tiny BERT on the documentation of this machine, in about eight minutes on two CPU cores.

    bert-jax quickstart --output quickstart

runs it as one of its stages. The same run alone, with the corpora that the quickstart prepares:

    bert-jax pretrain configs/quickstart.py --run runs/quickstart \\
        --with prepared=quickstart/prepared/train heldout=quickstart/prepared/heldout
"""

from dataclasses import replace
from pathlib import Path

from bert_jax.data.config import LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.models.config import bert
from bert_jax.programs.config import Pretraining
from bert_jax.text.vocabulary import load_vocabulary
from bert_jax.train.config import Checkpoints, Evaluation, Logging, Phase, Train, WarmupLinear


def get_config(*, prepared: str, heldout: str, steps: int = 6000, seed: int = 0) -> Experiment:
    """Short rows, a high learning rate, no dropout: the text is seen a few times only."""
    vocabulary = load_vocabulary(Path(prepared) / "vocabulary")
    every = max(1, steps // 6)
    return Experiment(
        name="quickstart",
        seed=seed,
        program=Pretraining(
            model=replace(
                bert("tiny", vocab_size=vocabulary.size, max_length=128),
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            mask_token_id=vocabulary.mask_id,
        ),
        data=LoaderConfig(prepared=prepared),
        train=Train(
            phases=(Phase(steps=steps, length=128, batch_size=32, max_predictions=20),),
            schedule=WarmupLinear(peak=2e-3, warmup_steps=max(1, steps // 20)),
            checkpoints=Checkpoints(every=every, keep_last=2),
            evaluation=Evaluation(prepared=heldout, every=every, examples=2048),
            logging=Logging(every=100),
        ),
    )
