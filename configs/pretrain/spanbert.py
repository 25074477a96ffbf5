"""Pretrains SpanBERT (Joshi et al. 2020, sections 3 and 4.2): 2,400,000 updates of 256 sequences.

    bert-jax pretrain spanbert --run runs/spanbert \\
        --arg size=base corpus=data/train heldout=data/heldout

The model is BERT. What differs from BERT's recipe:

- spans of words are masked (`SpanMasking`), and each of their tokens is also predicted from the
  tokens before and after its span (span boundary objective);
- one segment of whole sentences of one document fills every sequence of 512 tokens, without
  next-sentence prediction;
- Adam with epsilon 1e-8.

What differs from the authors' code: details of the masks (bert_jax/data/pretraining/masking.py);
sentences that are longer than a sequence are cut instead of left out; the model has BERT's pooler
and next-sentence head, which are not trained. The held-out masks are spans as well, so the held-out
losses cannot be compared with those of other recipes.

The corpus needs a cased vocabulary to compare with the published models. If a batch does not fit
into memory, add `gradient_accumulation_steps=N`.
"""

import math

from bert_jax.config.data import DocSentences, PretrainingData, SpanMasking
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.bert.config import BertConfig, BertSize
from bert_jax.models.layers.config import ComputeConfig


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: BertSize = "large",
    steps: int = 2_400_000,
    batch_size: int = 256,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 1e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the paper's run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is 10,000 by default, and fewer if `steps` is below 2,400,000. `tpu` computes
    attention in one kernel and communicates in the dtype of the computation.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    masking = SpanMasking()
    evaluation = (
        HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100), masking=masking)
        if heldout
        else None
    )
    return Experiment(
        name=f"spanbert-{size}",
        seed=seed,
        objective=Pretraining(
            model=BertConfig.from_size(size, vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            sbo_weight=1.0,
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(corpus=corpus, input_format=DocSentences(), masking=masking),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    # Without [CLS] and [SEP].
                    max_predictions_per_seq=math.ceil(masking.mlm_probability * (seq_length - 2)),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(epsilon=1e-8),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate,
                warmup_steps=(
                    max(1, min(10_000, steps // 240)) if warmup_steps is None else warmup_steps
                ),
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )
