"""Pretrains T5 (Raffel et al. 2020; version 1.1): 524,288 steps of 128 sequences of 512 tokens.

    bert-jax pretrain t5 --run runs/t5 --arg size=base corpus=data/train heldout=data/heldout

15 % of the tokens are replaced by sentinels in spans of 3 tokens on average. Texts of 568 tokens
give inputs of 512 tokens and targets of 114, which are padded to 128. The learning rate of
Adafactor is 1 / sqrt(max(step, warmup_steps)), times the root mean square of each parameter.

As version 1.1 was: no dropout, a gated feed-forward layer, and a table of its own for the logits.
Fine-tune with dropout (0.1). The corpus needs a tokenizer with sentinels, for example from
`bert-jax tokenizer train --kind unigram --sentinels 100`. Documents follow each other as in the
corpus; T5's code shuffles them first.
"""

import dataclasses

from bert_jax.config.data import ConcatenatedDocuments, PretrainingData, SpanCorruption
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import (
    Adafactor,
    CheckpointConfig,
    HeldOutEval,
    InverseSquareRoot,
    Parallelism,
    Phase,
    TrainConfig,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.data.pretraining.denoising import span_corruption_lengths
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.t5.config import T5Config, T5V11Size


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: T5V11Size = "base",
    steps: int = 2**19,
    batch_size: int = 128,
    seq_length: int = 512,
    target_length: int | None = None,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 1.0,
    warmup_steps: int = 10_000,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `target_length` is by default that of span corruption, rounded up to a multiple of 16.
    `learning_rate` multiplies the schedule.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    noise = SpanCorruption()
    if target_length is None:
        target_length = -(-span_corruption_lengths(seq_length, noise).targets_length // 16) * 16
    model = T5Config.v1_1(
        size,
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,  # a multiple of 64 is faster
        dropout_rate=0.0,
    )
    model = dataclasses.replace(
        model,
        pad_token_id=tokenizer.pad_id,
        eos_token_id=tokenizer.sep_id,
        decoder_start_token_id=tokenizer.pad_id,
    )
    save_every = max(1, steps // 100)
    evaluation = (
        HeldOutEval(corpus=heldout, eval_every=save_every, masking=noise) if heldout else None
    )
    return Experiment(
        name=f"t5-v1.1-{size}",
        seed=seed,
        objective=Seq2Seq(model=model, z_loss=1e-4, compute=ComputeConfig(dtype=dtype)),
        data=PretrainingData(corpus=corpus, input_format=ConcatenatedDocuments(), masking=noise),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    target_length=target_length,
                    batch_size=batch_size,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=Adafactor(),
            schedule=InverseSquareRoot(scale=learning_rate, warmup_steps=warmup_steps),
            max_grad_norm=None,
            checkpoints=CheckpointConfig(save_every=save_every),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
