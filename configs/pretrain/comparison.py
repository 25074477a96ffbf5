"""Pretrains a small encoder with one of several objectives or architectures, all else being equal.

    bert-jax pretrain comparison --run runs/sop \\
        --arg corpus=data/train heldout=data/heldout objective=sop steps=6000

The models of the sheets in `configs/sheets/` are trained with it. Equal are the width and depth,
the sequence length, the batch, the optimizer, the schedule, the initialization and the fraction of
masked tokens; the reasons for these values are in `configs/pretrain/small_corpus.py`. Held-out
evaluation masks 15 % of the tokens, so its masked-LM loss can be compared between all objectives
that predict masks; spans, which need masks of their own, have none.

The corpus needs a tokenizer with [CLS], [SEP] and [MASK].
"""

import dataclasses
from typing import Any, Literal

from bert_jax.config.data import (
    DiffusionMasking,
    DocSentences,
    FullSentences,
    InputFormat,
    Masking,
    MaskingConfig,
    PretrainingData,
    SentenceOrderPairs,
    SentencePairs,
    SpanMasking,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, Pretraining, ReplacedTokens
from bert_jax.config.phases import warm_up_batch_size, with_mmbert_masking_rates
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    LoggingConfig,
    Phase,
    TrainConfig,
    WarmupStableDecay,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.errors import ConfigError
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.layers.config import LearnedPositions, NoPositions
from bert_jax.models.modernbert.config import ModernBertConfig

ObjectiveName = Literal[
    "mlm+nsp", "mlm", "mlm+sop", "spans", "replaced_tokens", "left_to_right", "diffusion"
]
Architecture = Literal["bert", "albert", "deberta", "modernbert", "eurobert"]
Phases = Literal["one", "masking_rates", "batch_sizes", "causal_lm_first"]

_HEAD_WIDTH = 64
# The width of ELECTRA's generator as a fraction of the discriminator's; the paper finds 1/4 to 1/2.
_GENERATOR_FRACTION = 0.5
# Batches grow from a quarter of their size, over a fifth of the sequences. ModernBERT's grow over
# 3 %, which is less than the warmup of the learning rate here.
_FIRST_BATCH, _SMALL_BATCHES = 1 / 4, 1 / 5


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    objective: ObjectiveName = "mlm+nsp",
    architecture: Architecture = "bert",
    num_layers: int = 2,
    hidden_size: int = 128,
    steps: int = 6_000,
    batch_size: int = 16,
    seq_length: int = 64,
    mlm_probability: float = 0.3,
    learning_rate: float = 1.5e-3,
    phases: Phases = "one",
    num_checkpoints: int = 1,
    seed: int = 0,
) -> Experiment:
    """Returns a run that evaluates six times and saves ten times.

    Args:
      objective: masked LM with next-sentence prediction (BERT), alone (RoBERTa), with sentence
        order (ALBERT) or of spans with their boundaries (SpanBERT); replaced tokens (ELECTRA);
        left to right, the ablation of BERT's paper; or masked diffusion (MDLM), whose held-out loss
        is its own.
      architecture: the encoder; all but BERT's are trained with masked LM alone.
      phases: what changes during the run: nothing; the fraction of masked tokens, as in mmBERT; the
        size of the batch, which grows over a fifth of the sequences, in more updates than `steps`;
        or the objective, causal LM in the first half of the updates and masked LM in the other.
      num_checkpoints: how many checkpoints are kept, evenly spaced, at most ten.
    """
    if architecture != "bert" and objective != "mlm":
        raise ConfigError(
            f"architecture is {architecture} and objective is {objective}; expected objective=mlm, "
            "or architecture=bert"
        )
    tokenizer = corpus_tokenizer(corpus)
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": max(1, hidden_size // _HEAD_WIDTH),
        # With 0.02, the attention of such narrow models stays uniform for thousands of updates.
        "initializer_range": round(hidden_size**-0.5, 3),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    input_format, masking = _data(objective, mlm_probability)
    phase = Phase(
        steps=steps,
        seq_length=seq_length,
        batch_size=batch_size,
        max_predictions_per_seq=(
            seq_length if objective == "diffusion" else 1 + round(mlm_probability * seq_length)
        ),
    )
    divided = _divided(phase, phases)
    steps = sum(each.steps for each in divided)
    eval_every, save_every = max(1, steps // 6), max(1, steps // 10)
    evaluation = None
    # Tokens without a span around them have no boundaries to predict them from.
    if heldout and objective != "spans":
        evaluation = HeldOutEval(corpus=heldout, eval_every=eval_every, num_examples=2048)
        if objective == "diffusion":
            evaluation = dataclasses.replace(evaluation, masking=masking)
    return Experiment(
        name=f"{architecture}-{objective}-{num_layers}x{hidden_size}",
        seed=seed,
        objective=_objective(objective, architecture, sizes, seq_length, tokenizer.mask_id),
        data=PretrainingData(corpus=corpus, input_format=input_format, masking=masking),
        train=TrainConfig(
            phases=divided,
            optimizer=AdamW(b2=0.98),
            schedule=WarmupStableDecay(
                peak_learning_rate=learning_rate,
                warmup_steps=steps // 30,
                decay_steps=steps * 3 // 10,
            ),
            checkpoints=CheckpointConfig(save_every=save_every, keep_last=num_checkpoints),
            evaluation=evaluation,
            logging=LoggingConfig(log_every=200),
        ),
    )


def _divided(phase: Phase, phases: Phases) -> tuple[Phase, ...]:
    match phases:
        case "one":
            return (phase,)
        case "masking_rates":
            return with_mmbert_masking_rates(phase)
        case "batch_sizes":
            return warm_up_batch_size(
                (phase,),
                first_batch_size=round(_FIRST_BATCH * phase.batch_size),
                num_sequences=round(_SMALL_BATCHES * phase.steps * phase.batch_size),
            )
        case "causal_lm_first":
            first = dataclasses.replace(phase, steps=(phase.steps + 1) // 2, causal_lm=True)
            return first, dataclasses.replace(phase, steps=max(1, phase.steps // 2))


def _data(objective: ObjectiveName, mlm_probability: float) -> tuple[InputFormat, MaskingConfig]:
    masking = Masking(mlm_probability=mlm_probability)
    match objective:
        case "mlm+nsp":
            return SentencePairs(), masking
        case "mlm+sop":
            return SentenceOrderPairs(), masking
        case "spans":
            return DocSentences(), SpanMasking(mlm_probability=mlm_probability)
        case "replaced_tokens":
            # As in configs/pretrain/electra.py: no random tokens.
            replaced = Masking(
                mlm_probability=mlm_probability, mask_replace_prob=0.85, random_replace_prob=0.0
            )
            return FullSentences(), replaced
        case "diffusion":
            return FullSentences(), DiffusionMasking()
        case "mlm" | "left_to_right":
            return FullSentences(), masking


def _objective(
    objective: ObjectiveName,
    architecture: Architecture,
    sizes: dict[str, Any],
    seq_length: int,
    mask_id: int,
) -> Pretraining | ReplacedTokens | CausalLM:
    model = _encoder(architecture, sizes, seq_length)
    match objective:
        case "replaced_tokens":
            positions = LearnedPositions(max_position_embeddings=seq_length, init="sinusoidal")
            discriminator = ElectraConfig(
                **sizes,
                intermediate_size=4 * sizes["hidden_size"],
                embedding_size=sizes["hidden_size"],
                positions=positions,
            )
            generator = generator_config(discriminator, _GENERATOR_FRACTION)
            return ReplacedTokens(
                model=discriminator,
                generator=dataclasses.replace(
                    generator, initializer_range=round(generator.hidden_size**-0.5, 3)
                ),
                mask_token_id=mask_id,
            )
        case "left_to_right":
            return CausalLM(model=model)
        case _:
            return Pretraining(
                model=model,
                mask_token_id=mask_id,
                mlm_weight=0.0 if objective == "diffusion" else 1.0,
                diffusion_weight=1.0 if objective == "diffusion" else 0.0,
                # Twice its weight: as in configs/quickstart.py, where runs are as short.
                nsp_weight=2.0 if objective == "mlm+nsp" else 0.0,
                sop_weight=2.0 if objective == "mlm+sop" else 0.0,
                sbo_weight=1.0 if objective == "spans" else 0.0,
            )


def _encoder(architecture: Architecture, sizes: dict[str, Any], seq_length: int) -> EncoderConfig:
    hidden = sizes["hidden_size"]
    learned = LearnedPositions(max_position_embeddings=seq_length, init="sinusoidal")
    relative = NoPositions(max_position_embeddings=seq_length)
    match architecture:
        case "bert":
            return BertConfig(**sizes, intermediate_size=4 * hidden, positions=learned)
        case "albert":
            return AlbertConfig(
                **sizes, intermediate_size=4 * hidden, embedding_size=hidden, positions=learned
            )
        case "deberta":
            return DebertaV2Config(
                **sizes,
                intermediate_size=4 * hidden,
                positions=relative,
                max_relative_positions=seq_length,
                position_buckets=seq_length,
            )
        case "modernbert":
            # Gated layers have three kernels: half of BERT's width makes them as ModernBERT's.
            return ModernBertConfig(
                **sizes,
                intermediate_size=3 * hidden // 2,
                positions=relative,
                local_attention=max(2, seq_length // 2),
                global_rope_theta=10_000.0,
            )
        case "eurobert":
            return EuroBertConfig(
                **sizes,
                intermediate_size=8 * hidden // 3,
                num_key_value_heads=sizes["num_attention_heads"],
                positions=relative,
            )
