"""Writes a model as a Hugging Face folder, and believes it only after reading it back.

The folder appears under its name when it is complete and checked: `AutoTokenizer`, `AutoModel` and
`AutoModelForPreTraining`, `ForMaskedLM` or the class of the task's head open it.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from bert_jax import paths
from bert_jax.aside import written_aside
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.models.config import BertConfig
from bert_jax.programs import parts
from bert_jax.text.vocabulary import TOKENIZER_CONFIG_FILE, Vocabulary
from bert_jax.train.model_card import model_card
from bert_jax.train.pretrained import LoadedModel, check_one_task, load_model

TOLERANCE = 1e-5
"""The largest difference, float32, of a hidden state or of the task head's outputs between a model
and its export."""

_SAMPLE = (
    "The harbour lay still that morning, and only the fishing boats moved. An old man sat on the "
    "wall, mending a net he had mended many times before; his dog slept beside him. When the bell "
    "of the church rang nine, he looked up, counted the strokes, and went on with his work. "
    "Nobody had told him that the market would open an hour late."
)


def export(model: LoadedModel, output: Path) -> float:
    """Writes `model` to the folder `output`, with tokenizer files and a model card.

    Returns:
      The largest difference of a hidden state, or of what the task's head gives, between the model
      and the folder read back.

    Raises:
      UserError: `output` is in use, cannot be written, or does not give back the same model (then
        nothing is left at `output`); the model is of several tasks, and none was chosen.
    """
    check_one_task(model)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder; choose another --output")
    try:
        with written_aside(output) as aside:
            aside.mkdir(parents=True)
            _write(model, aside)
            difference = _check(model, aside)
            (aside / "README.md").write_text(model_card(model, output.name, difference), "utf-8")
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{output} cannot be written: {reason}; nothing was left there") from None
    return difference


def _write(model: LoadedModel, folder: Path) -> None:
    flat = paths.flatten(model.params)
    pad_id = model.vocabulary.pad_id if model.vocabulary else 0
    huggingface.write_config(folder, model.config, parts.present(flat), pad_id, model.head)
    huggingface.write_weights(folder, flat, model.config)
    # The writer of tensors gives rights to the owner alone, whatever the user's umask says.
    shutil.copymode(folder / huggingface.CONFIG, folder / huggingface.WEIGHTS)
    if model.vocabulary is not None:
        model.vocabulary.save(folder)
        # With the length in it, `tokenizer(text, truncation=True)` does what its user expects.
        file = folder / TOKENIZER_CONFIG_FILE
        described = json.loads(file.read_text(encoding="utf-8"))
        described["model_max_length"] = model.config.positions.max_length
        file.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check(model: LoadedModel, folder: Path) -> float:
    """Reads the folder and compares; returns the largest difference of what both compute."""
    again = load_model(folder)
    # What the position table started from is history: other formats do not tell it.
    positions = dataclasses.replace(model.config.positions, start=again.config.positions.start)
    if again.config != dataclasses.replace(model.config, positions=positions):
        raise UserError(f"the export describes another model: {again.config}, not {model.config}")
    if again.head != model.head:
        raise UserError(f"the export describes another head: {again.head}, not {model.head}")
    batch = sample_batch(model.config, model.vocabulary)
    difference = 0.0
    for (name, expected), (_, found) in zip(
        _computed(model, batch), _computed(again, batch), strict=True
    ):
        if not np.isfinite(expected).all():
            raise UserError(f"{model.origin} is broken: the {name} are not finite")
        largest = float(np.abs(expected - found).max())
        # Not <=: a difference that is NaN is refused, too.
        if not largest <= TOLERANCE:
            raise UserError(
                f"the export was not written: its {name} differ by {largest:.1e} from those of "
                f"{model.origin} (at most {TOLERANCE} is allowed)"
            )
        difference = max(difference, largest)
    flat = paths.flatten(again.params)
    for path, expected in paths.flatten(model.params).items():
        if not np.array_equal(flat[path], expected):
            raise UserError(f"the export was not written: {path} did not come back as it was")
    return difference


def _computed(model: LoadedModel, batch: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """What the encoder and the task's head compute, with names for messages."""
    # The masked-LM head would cost more than all the rest; its parameters are compared bit for bit.
    params = {part: tree for part, tree in model.params.items() if part != "masked_lm"}
    found = parts.run(params, model.config, batch, model.head)
    states = [
        (f"hidden states of layer {layer}", state)
        for layer, state in enumerate(found["hidden_states"])
    ]
    return states + ([("outputs of the head", found["task"])] if model.head else [])


def sample_batch(config: BertConfig, vocabulary: Vocabulary | None) -> dict[str, np.ndarray]:
    """A batch [2, L] over the whole position table: text as a padded pair, and ids drawn evenly.

    Without a vocabulary both rows are drawn.
    """
    length = config.positions.max_length
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, length))
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    types[1, length // 2 :] = min(1, config.type_vocab_size - 1)
    if vocabulary is not None and length > 4:
        text = vocabulary.encode(_SAMPLE)[: (3 * length) // 4 - 3]
        first, second = text[: len(text) // 2], text[len(text) // 2 :]
        row = [vocabulary.cls_id, *first, vocabulary.sep_id, *second, vocabulary.sep_id]
        ids[0] = vocabulary.pad_id
        ids[0, : len(row)] = row
        mask[0, len(row) :] = 0
        types[0, len(first) + 2 : len(row)] = min(1, config.type_vocab_size - 1)
    fields = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {name: array.astype(np.int32) for name, array in fields.items()}
