"""Small models with random parameters, vocabularies of a few words, and runs that never ran."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import paths
from bert_jax.config import to_json
from bert_jax.data.config import LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.interop.foreign import Foreign
from bert_jax.models.config import BertConfig, Learned, TaskHead, head_part, reads_pooled
from bert_jax.programs import parts
from bert_jax.programs.config import Pretraining, ProgramConfig
from bert_jax.text.vocabulary import Vocabulary, load_vocabulary
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.config import Phase, Train, WarmupLinear
from bert_jax.train.pretrained import LoadedModel, assemble

WORDS = ("the", "old", "man", "mend", "##s", "##ed", "a", "net", "by", "sea", "and", "sings", ".")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def small_config(**fields: Any) -> BertConfig:
    """Two layers, width 16, 4 heads, 18 words, 20 positions; `fields` replace some of it."""
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        positions=Learned(max_length=20),
    )
    return dataclasses.replace(config, **fields)


def random_parameters(
    config: BertConfig, *, head: TaskHead | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Every parameter by path, drawn at random: biases and norms too, unlike a fresh model's.

    Those of the pretraining model, or of the encoder with a task's `head`.
    """
    random = np.random.default_rng(seed)
    flat: dict[str, np.ndarray] = {}
    names = parts.HEADS
    if head is not None:
        names = ("pooler", head_part(head)) if reads_pooled(head) else (head_part(head),)
    for part in ("encoder", *names):
        for path, leaf in paths.flatten(parts.network(part, config, head).abstract(), part).items():
            values = random.normal(0.0, 2 * config.initializer_range, leaf.shape)
            flat[path] = (values + path.endswith("scale")).astype(np.float32)
    return flat


def word_vocabulary(folder: Path, words: Sequence[str] = WORDS) -> Vocabulary:
    """A WordPiece vocabulary of the special tokens and `words`; writes `folder`/vocab.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in (*SPECIAL, *words)), "utf-8")
    return load_vocabulary(folder / "vocab.txt")


def small_model(folder: Path, *, head: TaskHead | None = None, **fields: Any) -> LoadedModel:
    """A model of `small_config` with the vocabulary of `word_vocabulary`, written to `folder`."""
    config = small_config(**fields)
    params = random_parameters(config, head=head)
    foreign = Foreign(params, config, word_vocabulary(folder), head)
    return assemble(foreign, "small model")


def write_run(
    folder: Path,
    model: LoadedModel,
    *,
    program: ProgramConfig | None = None,
    steps: Sequence[int] = (10,),
    best: int | None = None,
) -> Path:
    """A run folder as training leaves it; step n holds the parameters of `model` times n / 10.

    `best` is the step that every step knows as the best one.
    """
    phase = Phase(steps=20, length=16, batch_size=4, max_predictions=3)
    experiment = Experiment(
        name="test",
        program=program or Pretraining(model=model.config, mask_token_id=4),
        data=LoaderConfig(prepared=str(folder / "prepared")),
        train=Train(phases=(phase,), schedule=WarmupLinear(warmup_steps=1)),
    )
    assert model.vocabulary is not None
    model.vocabulary.save(folder / "vocabulary")
    with Checkpointer(folder / "checkpoints") as checkpointer:
        for step in steps:
            flat = paths.flatten(model.params)
            scaled = {path: leaf * np.float32(step / 10) for path, leaf in flat.items()}
            info = {
                "position": 40,
                "config": to_json(experiment),
                "versions": {"bert_jax": "0.1.0"},
                "metrics": {"mlm_loss": 5.25},
                "best": {"step": best, "value": None, "worse": 0},
            }
            checkpointer.save(
                step, {"step": np.int32(step), "params": paths.unflatten(scaled)}, info
            )
    return folder
