"""Pretrains an encoder with masked diffusion: masked LM at all rates (MDLM, Sahoo et al. 2024).

    bert-jax pretrain masked_diffusion --run runs/diffusion \\
        --arg corpus=data/train heldout=data/heldout
    bert-jax generate runs/diffusion --max-new-tokens 64 "It was a dark and stormy night."

The network is ModernBERT's with global attention in all layers, close to MDLM's, which also has
rotary positions. What differs from masked LM:

- the masking rate t of each sequence is uniform between 0 and 1, and every masked token is [MASK];
- a loss is divided by t, so that the mean loss is a bound of -log p of the text for each token;
- every token may be masked, so there are as many predictions as tokens.

The hyperparameters are those of MDLM's code: sequences of 1,024, batches of 512, a constant rate
after 2,500 updates, dropout of 0.1, no weight decay, gradients clipped at 1. What differs from it:
no moving average of the parameters, and the network does not read t, as LLaDA (Nie et al. 2025)
and MDLM's own ablation without it do.

`--init-from RUN` continues a masked LM as a diffusion model.
"""

import dataclasses

from bert_jax.config.data import DiffusionMasking, FullSentences, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupStableDecay,
    make_mesh_config,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.modernbert.config import ModernBertConfig, ModernBertSize


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    size: ModernBertSize = "base",
    steps: int = 1_000_000,
    batch_size: int = 512,
    seq_length: int = 1024,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 3e-4,
    warmup_steps: int | None = None,
    bfloat16: bool = True,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns a run on a corpus that `bert-jax prepare` has written.

    `warmup_steps` is by default 2,500, or a tenth of a shorter run. The held-out loss is that of
    masked diffusion, too.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    model = ModernBertConfig.from_size(
        size,
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,  # a multiple of 64 is faster
        max_position_embeddings=max(seq_length, 512),
    )
    evaluation = None
    if heldout:
        evaluation = HeldOutEval(
            corpus=heldout, eval_every=max(1, steps // 100), masking=DiffusionMasking()
        )
    return Experiment(
        name=f"masked-diffusion-{size}",
        seed=seed,
        objective=Pretraining(
            model=dataclasses.replace(
                model,
                layer_types=("full_attention",) * model.num_hidden_layers,
                global_rope_theta=10_000.0,
                hidden_dropout_prob=0.1,
            ),
            mask_token_id=tokenizer.mask_id,
            mlm_weight=0.0,
            diffusion_weight=1.0,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(
            corpus=corpus, input_format=FullSentences(), masking=DiffusionMasking()
        ),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    max_predictions_per_seq=seq_length,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(epsilon=1e-8, weight_decay=0.0),
            schedule=WarmupStableDecay(
                peak_learning_rate=learning_rate,
                warmup_steps=min(2_500, steps // 10) if warmup_steps is None else warmup_steps,
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
