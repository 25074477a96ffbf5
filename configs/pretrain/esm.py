"""Pretrains ESM-2 (Lin et al. 2023) on protein sequences: masked LM on 15 % of the amino acids.

    bert-jax tokenizer train --kind amino_acids --output amino-acids 'proteins/*.txt'
    bert-jax prepare --files 'proteins/*.txt' --document-unit line --tokenizer amino-acids \\
        --output data/train
    bert-jax pretrain esm --run runs/esm --arg size=8m corpus=data/train heldout=data/heldout

A line of the files is a protein. Proteins are packed into full sequences, in which an amino acid
attends to its own protein only; a longer one is cut into several examples.

What differs from the published run: the authors draw a random cluster of similar proteins and a
random protein of it for each example (UniRef50 and UniRef90), cut a random part out of a protein of
more than 1,024 amino acids, and decay the learning rate to a tenth of its peak, not to 0. Kernels
that write to the residual start smaller, as ModernBERT's do.
"""

from bert_jax.config.data import PackedSegments, PretrainingData
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
from bert_jax.models.esm.config import EsmConfig, EsmSize
from bert_jax.models.layers.config import ComputeConfig


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: EsmSize = "8m",
    steps: int = 500_000,
    batch_size: int = 2048,
    seq_length: int = 1024,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 4e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the published run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default 2,000, or a tenth of the steps if that is less.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    if warmup_steps is None:
        warmup_steps = min(2_000, steps // 10)
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name=f"esm2-{size}",
        seed=seed,
        objective=Pretraining(
            model=EsmConfig.from_size(
                size,
                vocab_size=tokenizer.vocab_size,
                max_position_embeddings=max(seq_length, 1026),
                mask_token_id=tokenizer.mask_id,
            ),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(corpus=corpus, input_format=PackedSegments()),
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
            optimizer=AdamW(b2=0.98, epsilon=1e-8),
            schedule=WarmupLinear(peak_learning_rate=learning_rate, warmup_steps=warmup_steps),
            max_grad_norm=None,
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
