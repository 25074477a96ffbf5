"""A tiny BERT on the documentation of this machine, in about ten minutes on two CPU cores.

    bert-jax quickstart --output quickstart

runs it as one of its stages. The same run alone, with the corpora that the quickstart prepares:

    bert-jax pretrain configs/quickstart.py --run runs/quickstart \\
        --with prepared=quickstart/prepared/train heldout=quickstart/prepared/heldout
"""

from dataclasses import replace

from bert_jax.data.config import LoaderConfig, Masking
from bert_jax.data.prepared import corpus_vocabulary
from bert_jax.experiment import Experiment
from bert_jax.models.config import Learned, SinusoidalStart, bert
from bert_jax.programs.config import Pretraining
from bert_jax.train.config import (
    AdamW,
    Checkpoints,
    Evaluation,
    Logging,
    Phase,
    Train,
    WarmupLinear,
)


def get_config(*, prepared: str, heldout: str, steps: int = 4200, seed: int = 0) -> Experiment:
    """Short rows, a high learning rate, no dropout: the text is seen once or twice only.

    What else departs from the paper, and why, is said in configs/pretrain/small_corpus.py.
    """
    vocabulary = corpus_vocabulary(prepared)
    every = max(1, steps // 6)
    short = max(1, 2 * steps // 3)
    sizes = bert("tiny", vocab_size=vocabulary.size)
    model = replace(
        sizes,
        positions=Learned(max_length=128, start=SinusoidalStart()),
        initializer_range=round(sizes.hidden_size**-0.5, 3),
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return Experiment(
        name="quickstart",
        seed=seed,
        program=Pretraining(model=model, mask_token_id=vocabulary.mask_id, nsp_weight=2.0),
        data=LoaderConfig(prepared=prepared, masking=Masking(rate=0.3)),
        train=Train(
            phases=(
                Phase(steps=short, length=64, batch_size=32, max_predictions=20),
                Phase(steps=steps - short, length=128, batch_size=16, max_predictions=40),
            ),
            optimizer=AdamW(b2=0.98),  # a second moment that forgets within a short run
            schedule=WarmupLinear(peak=2e-3, warmup_steps=max(1, steps // 30)),
            checkpoints=Checkpoints(every=every, keep_last=2),
            evaluation=Evaluation(prepared=heldout, every=every, examples=2048),
            logging=Logging(every=200),
        ),
    )
