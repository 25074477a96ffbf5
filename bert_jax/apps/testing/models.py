"""Makes small models with random parameters, vocabularies of a few words, and run folders."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config.config_lib import to_json
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import ObjectiveConfig, Pretraining
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import HEADS, WINDOW_ENCODER, TaskHead
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.models.model import build_network
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, build_model
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.run_folder import write_or_check_config
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

WORDS = ("the", "old", "man", "mend", "##s", "##ed", "a", "net", "by", "sea", "and", "sings", ".")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


_PART_ORDER = (*HEADS, "classifier", "span", WINDOW_ENCODER)


def small_config(**fields: Any) -> BertConfig:
    """Returns a BERT with 2 layers, width 16, 4 heads and 20 positions; `fields` override that."""
    config = BertConfig(
        vocab_size=len(SPECIAL_TOKENS) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        positions=LearnedPositions(max_position_embeddings=20),
    )
    return dataclasses.replace(config, **fields)


def random_parameters(
    config: EncoderConfig, *, head: TaskHead | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns random parameters by path, for the pretraining model or for an encoder with `head`.

    Biases and norms are random, too, unlike in a newly initialized model.
    """
    rng = np.random.default_rng(seed)
    flat: dict[str, np.ndarray] = {}
    heads = config.pretraining_heads if head is None else ()
    abstract = build_network(config, heads, head).abstract()
    # Drawn part by part, in this order, so that the encoder's values do not depend on the heads.
    for part in ("encoder", *(name for name in _PART_ORDER if name in abstract)):
        for path, leaf in paths.flatten(abstract[part], part).items():
            values = rng.normal(0.0, 2 * config.initializer_range, leaf.shape)
            flat[path] = (values + path.endswith("scale")).astype(np.float32)
    return flat


def word_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Tokenizer:
    """Writes `folder`/vocab.txt, with the special tokens and `words`, and loads it (WordPiece)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in (*SPECIAL_TOKENS, *words)), "utf-8")
    return load_tokenizer(folder / "vocab.txt")


def small_model(folder: Path, *, head: TaskHead | None = None, **fields: Any) -> LoadedModel:
    """Returns a model of `small_config` with a `word_tokenizer`, whose files are in `folder`."""
    config = small_config(**fields)
    params = random_parameters(config, head=head)
    imported = ImportedModel(params, config, word_tokenizer(folder), head)
    return build_model(imported, "small model")


def write_run(
    folder: Path,
    model: LoadedModel,
    *,
    objective: ObjectiveConfig | None = None,
    steps: Sequence[int] = (10,),
    best_step: int | None = None,
) -> Path:
    """Writes a run folder as training would, and returns it.

    Args:
      steps: the checkpoints to write; step n has the parameters of `model` times n / 10.
      best_step: the step that every checkpoint records as the best one.
    """
    phase = Phase(steps=20, seq_length=16, batch_size=4, max_predictions_per_seq=3)
    experiment = Experiment(
        name="test",
        objective=objective or Pretraining(model=model.config, mask_token_id=4),
        data=PretrainingData(corpus=str(folder / "prepared")),
        train=TrainConfig(phases=(phase,), schedule=WarmupLinear(warmup_steps=1)),
    )
    assert model.tokenizer is not None
    model.tokenizer.save(folder / "vocabulary")
    write_or_check_config(folder, experiment)
    with Checkpointer(folder / "checkpoints") as checkpointer:
        for step in steps:
            flat = paths.flatten(model.params)
            scaled = {path: leaf * np.float32(step / 10) for path, leaf in flat.items()}
            info = {
                "position": 40,
                "config": to_json(experiment),
                "versions": {"bert_jax": "0.1.0"},
                "metrics": {"mlm_loss": 5.25},
                "best": {"step": best_step, "value": None, "evals_since_best": 0},
            }
            checkpointer.save(
                step, {"step": np.int32(step), "params": paths.unflatten(scaled)}, info
            )
    return folder
