"""Pretrains ALBERT (Lan et al. 2020, section 4.1): 125,000 updates of 4,096 sequences with LAMB.

    bert-jax pretrain albert --run runs/albert \\
        --arg size=base corpus=data/train heldout=data/heldout

What differs from BERT's recipe:

- n-grams of up to three words are masked (`NGramMasking`), at most 20 tokens of a sequence;
- sentence-order prediction instead of next-sentence prediction (`SentenceOrderPairs`);
- all sequences have 512 tokens.

The learning rate, the warmup and the number of predictions are those of the commands in ALBERT's
release. It trained v2 without dropout and longer: base for 10,000,000 updates, the other sizes for
3,000,000.

What differs from the release: details of the masks (bert_jax/data/pretraining/masking.py); the
release writes 40 copies of the text with different masks, here every epoch has masks of its own;
held-out masks are as in BERT, so that held-out losses can be compared.

The corpus needs a vocabulary of SentencePiece to compare with the published models. If a batch does
not fit into memory, add `gradient_accumulation_steps=N`.
"""

from bert_jax.config.data import NGramMasking, PretrainingData, SentenceOrderPairs
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    CheckpointConfig,
    HeldOutEval,
    Lamb,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.albert.config import AlbertConfig, AlbertSize, AlbertVersion
from bert_jax.models.layers.config import ComputeConfig

# Warmup of the published run, as a fraction of its 125,000 updates.
_WARMUP_FRACTION = 3125 / 125_000


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: AlbertSize = "base",
    version: AlbertVersion = "v2",
    steps: int = 125_000,
    batch_size: int = 4096,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 1.76e-3,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the paper's run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default the fraction of `steps` that it was in the published run. `tpu`
    computes attention in one kernel and communicates in the dtype of the computation.

    Args:
      version: which of the published models: their dropout and activation differ.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"albert-{size}-{version}",
        seed=seed,
        objective=Pretraining(
            model=AlbertConfig.from_size(size, version, vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            sop_weight=1.0,
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(
            corpus=corpus, input_format=SentenceOrderPairs(), masking=NGramMasking()
        ),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    max_predictions_per_seq=20,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=Lamb(),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate,
                warmup_steps=(
                    round(_WARMUP_FRACTION * steps) if warmup_steps is None else warmup_steps
                ),
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
