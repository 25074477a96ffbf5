"""Pretrains Longformer or BigBird with masked LM on sequences of 4,096 tokens.

    bert-jax convert roberta-base --longformer 4096 --output longformer
    bert-jax pretrain long_sequences --run runs/longformer \\
        --arg model=longformer init_from=longformer corpus=data/train heldout=data/heldout

Neither was trained from random weights: both continued from RoBERTa (Beltagy et al. 2020, section
5; Zaheer et al. 2020, section 4). `init_from` is the model to continue from: a Longformer that
`bert-jax convert` has made of a BERT or RoBERTa, or a published Longformer or BigBird. Without it,
a new model of `size` is trained. Documents follow each other in sequences without padding, and no
token has global attention in Longformer.

What differs from the published runs: the learning rate decays linearly (Longformer's with the third
power of the remaining steps), and special tokens are never predicted. The corpus needs the
tokenizer of the model: byte-level BPE for Longformer, SentencePiece for BigBird.
"""

from dataclasses import dataclass
from typing import Literal

from bert_jax.config.data import FullSentences, Masking, PretrainingData
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
from bert_jax.errors import ConfigError
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.longformer.config import LongformerConfig


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Holds the hyperparameters of a published run."""

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    max_grad_norm: float
    whole_word_mask: bool


# Longformer: section 5, with the clipping of the notebook of its release. BigBird: appendix E.1,
# with the steps of `bigbird/pretrain/run_pretraining.py`.
_RUNS = {
    "longformer": _Run(
        steps=65_000,
        batch_size=64,
        learning_rate=3e-5,
        warmup_steps=500,
        max_grad_norm=5.0,
        whole_word_mask=False,
    ),
    "bigbird": _Run(
        steps=100_000,
        batch_size=256,
        learning_rate=1e-4,
        warmup_steps=10_000,
        max_grad_norm=1.0,
        whole_word_mask=True,
    ),
}


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    model: Literal["longformer", "bigbird"] = "longformer",
    size: Literal["base", "large"] = "base",
    init_from: str | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seq_length: int = 4096,
    gradient_accumulation_steps: int = 1,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `steps`, `batch_size`, `learning_rate` and `warmup_steps` are by default those of the model;
    with other `steps`, `warmup_steps` is the same fraction of them. `tpu` recomputes layers in the
    backward pass, because the activations of long sequences need much memory.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    run = _RUNS[model]
    steps = steps or run.steps
    if warmup_steps is None:
        warmup_steps = round(run.warmup_steps / run.steps * steps)
    if init_from is None:
        config = _new_config(model, size, tokenizer.vocab_size, seq_length)
    else:
        config = _config_of(init_from, model)
    masking = Masking(whole_word_mask=run.whole_word_mask)
    return Experiment(
        name=f"{model}-{size}",
        seed=seed,
        objective=Pretraining(
            model=config,
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype, remat="full" if tpu else "none"),
        ),
        data=PretrainingData(corpus=corpus, input_format=FullSentences(), masking=masking),
        init_from=init_from,
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size or run.batch_size,
                    max_predictions_per_seq=round(0.15 * seq_length),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate or run.learning_rate, warmup_steps=warmup_steps
            ),
            max_grad_norm=run.max_grad_norm,
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=(
                HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100), batch_size=8)
                if heldout
                else None
            ),
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )


def _new_config(
    model: Literal["longformer", "bigbird"],
    size: Literal["base", "large"],
    vocab_size: int,
    seq_length: int,
) -> LongformerConfig | BigBirdConfig:
    if model == "longformer":
        # Two rows of the position table belong to no token, and the window must fit.
        return LongformerConfig.from_size(
            size, vocab_size=vocab_size, max_position_embeddings=max(seq_length, 512) + 2
        )
    return BigBirdConfig.from_size(size, vocab_size=vocab_size, max_position_embeddings=seq_length)


def _config_of(folder: str, model: str) -> LongformerConfig | BigBirdConfig:
    """Returns the config of the model to continue from.

    Raises:
      ConfigError: it is of another family than `model`.
    """
    # Imported here, so that listing recipes does not import jax.
    from bert_jax.pretrained.initial import load_model_or_tf1

    config = load_model_or_tf1(folder).config
    expected = LongformerConfig if model == "longformer" else BigBirdConfig
    if not isinstance(config, expected):
        raise ConfigError(
            f"init_from is {folder}, a model of the family {config.family}, but model is {model}; "
            "`bert-jax convert MODEL --longformer 4096` makes a Longformer of a BERT or RoBERTa"
        )
    return config
