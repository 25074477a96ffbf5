"""Pretrains MPNet, DeBERTa-v3, EuroBERT, NomicBERT, GTE or jina-embeddings-v3 with masked LM.

    bert-jax pretrain masked_lm --run runs/deberta \\
        --arg model=deberta size=base corpus=data/train heldout=data/heldout

The network is that of the published models, the objective is simpler: MPNet was pretrained with
masked and permuted language modeling (`configs/pretrain/mpnet.py`), DeBERTa-v3 with replaced-token
detection (He et al. 2023), EuroBERT with 50 % masks and another schedule (Boizard et al. 2025),
NomicBERT and GTE with 30 % masks and texts of growing length, and jina-embeddings-v3 from the
parameters of XLM-RoBERTa. The inputs, masks and optimizer are as in `configs/pretrain/roberta.py`;
the default learning rate is that of MPNet.

The corpus needs a tokenizer with the special tokens of the model: <s> and </s> with padding id 1
for MPNet, [CLS] and [SEP] for DeBERTa, any for the others.
"""

from typing import Literal

from bert_jax.config.data import FullSentences, PretrainingData
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
from bert_jax.models.deberta_v2.config import DebertaV2Config, DebertaV3Size
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.eurobert.config import EuroBertConfig, EuroBertSize
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.models.nomic_bert.config import NomicBertConfig

Model = Literal["mpnet", "deberta", "eurobert", "nomic_bert", "gte", "jina_embeddings_v3"]


def get_config(
    *,
    corpus: str,
    heldout: str | None = None,
    model: Model = "deberta",
    size: Literal[DebertaV3Size, EuroBertSize] = "base",
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
    """Returns a run on a corpus that `bert-jax prepare` has written.

    `size` is as in DeBERTa-v3 or EuroBERT; jina-embeddings-v3 has "large" only, the others "base".
    `warmup_steps` is by default 8 % of the steps.
    """
    tokenizer = corpus_tokenizer(corpus)
    dtype = "bfloat16" if bfloat16 else "float32"
    return Experiment(
        name=f"{model}-{size}",
        seed=seed,
        objective=Pretraining(
            model=_encoder(model, size, tokenizer.vocab_size),
            mask_token_id=tokenizer.mask_id,
            nsp_weight=0.0,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=PretrainingData(corpus=corpus, input_format=FullSentences()),
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
                HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
            ),
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )


def _encoder(
    model: Model,
    size: Literal[DebertaV3Size, EuroBertSize],
    vocab_size: int,
) -> EncoderConfig:
    match model, size:
        case "eurobert", "210m" | "610m" | "2.1b":
            return EuroBertConfig.from_size(size, vocab_size=vocab_size)
        case "deberta", "xsmall" | "small" | "base" | "large":
            return DebertaV2Config.from_size(size, vocab_size=vocab_size)
        case "mpnet", "base":
            return MPNetConfig(vocab_size=vocab_size)
        case "nomic_bert", "base":
            return NomicBertConfig(vocab_size=vocab_size)
        case "gte", "base":
            return GteConfig(vocab_size=vocab_size)
        case "jina_embeddings_v3", "large":
            return JinaEmbeddingsV3Config(vocab_size=vocab_size)
        case _:
            published = {
                "mpnet": "MPNet was published as 'base' only",
                "deberta": "DeBERTa-v3 was published as 'xsmall', 'small', 'base' and 'large'",
                "eurobert": "EuroBERT was published as '210m', '610m' and '2.1b'",
                "nomic_bert": "NomicBERT was published as 'base' only",
                "gte": "GTE is here as 'base' only",
                "jina_embeddings_v3": "jina-embeddings-v3 was published as 'large' only",
            }
            raise ConfigError(f"size is {size!r}, but {published[model]}")
