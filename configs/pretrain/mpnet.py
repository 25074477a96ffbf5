"""Pretrains MPNet with masked and permuted language modeling (Song et al. 2020).

    bert-jax pretrain mpnet --run runs/mpnet --arg corpus=data/train heldout=data/heldout

The hyperparameters are those of the release (microsoft/MPNet, with relative positions and whole
words) on 8 GPUs: 125,000 updates of 2,048 sequences. Whole sentences across documents fill every
sequence of 512 tokens; 15 % of the tokens are predicted in a random order, each from the tokens
that are not predicted, the predicted tokens before it, and the positions of all others.

What differs from the release: special tokens are never predicted, padding is not attended to, and a
word is predicted completely or not at all (bert_jax/objectives/masked_permuted_lm.py). A step
computes L + 2P tokens for sequences of L tokens with P predictions. The corpus needs a tokenizer
with <s> and </s> and the padding id 1.
"""

from bert_jax.config.data import FullSentences, Masking, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import MaskedPermutedLM
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
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.mpnet.config import MPNetConfig


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    steps: int = 125_000,
    batch_size: int = 2048,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 5e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default 8 % of the steps.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    masking = Masking(whole_word_mask=True)
    return Experiment(
        name="mpnet-base",
        seed=seed,
        objective=MaskedPermutedLM(
            model=MPNetConfig(vocab_size=tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(corpus=corpus, input_format=FullSentences(), masking=masking),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    max_predictions_per_seq=round(0.15 * seq_length),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(b2=0.98),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate,
                warmup_steps=round(0.08 * steps) if warmup_steps is None else warmup_steps,
            ),
            max_grad_norm=None,
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=(
                HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100), masking=masking)
                if heldout
                else None
            ),
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
