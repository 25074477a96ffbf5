"""Pretrains BART (Lewis et al. 2020): 500,000 steps of 8,000 sequences of 512 tokens.

    bert-jax pretrain bart --run runs/bart --arg size=base corpus=data/train heldout=data/heldout

Sentences are permuted, and spans of words with Poisson lengths, 30 % of all words, become one mask
token each; the decoder predicts the whole document. The mean length of a span is 3 as in the paper;
the command that the authors give for the published models has 3.5. The corpus needs a tokenizer
with RoBERTa's special tokens, for example from `bert-jax tokenizer train --kind bpe`.
"""

import dataclasses
from typing import Literal

from bert_jax.config.data import BartDenoising, PretrainingData, SingleSegment
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Seq2Seq
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
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.layers.config import ComputeConfig


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: Literal["base", "large"] = "base",
    steps: int = 500_000,
    batch_size: int = 8000,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 4e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default 2 % of the steps.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    noise = BartDenoising()
    model = dataclasses.replace(
        BartConfig.from_size(size, vocab_size=tokenizer.vocab_size),
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
        forced_eos_token_id=tokenizer.sep_id,
        decoder_start_token_id=tokenizer.sep_id,
    )
    save_every = max(1, steps // 100)
    evaluation = (
        HeldOutEval(corpus=heldout, eval_every=save_every, masking=noise) if heldout else None
    )
    return Experiment(
        name=f"bart-{size}",
        seed=seed,
        objective=Seq2Seq(model=model, compute=ComputeConfig(dtype=dtype)),
        data=PretrainingData(corpus=corpus, input_format=SingleSegment(), masking=noise),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    target_length=seq_length,
                    batch_size=batch_size,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(b2=0.98),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate,
                warmup_steps=steps // 50 if warmup_steps is None else warmup_steps,
            ),
            max_grad_norm=0.1,
            checkpoints=CheckpointConfig(save_every=save_every),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
