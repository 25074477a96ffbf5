"""Exports a model as a Hugging Face folder, and checks it by reading it back.

The folder gets its name only when it is complete and checked. `AutoTokenizer` and `AutoModel` open
it, and `AutoModelForPreTraining`, `AutoModelForMaskedLM` or the class of the task head.
"""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from bert_jax.data.corpus.contamination.found_items import copy_items
from bert_jax.errors import UserError
from bert_jax.export.model_card import model_card
from bert_jax.export.onnx.write import OnnxPrecision, write_onnx
from bert_jax.export.outputs import shipped_network
from bert_jax.interop import huggingface
from bert_jax.io.atomic_io import atomic_path, check_new_folder
from bert_jax.io.json_io import format_json, read_json_object
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import format_of
from bert_jax.models.heads.config import HEADS, label_tokens_of, task_parts, window_encoder_of
from bert_jax.models.layers.config import NoPositions
from bert_jax.models.model import run_forward
from bert_jax.models.parameters import parts_in
from bert_jax.params import paths
from bert_jax.pretrained.load import (
    LoadedModel,
    load_network,
    require_no_adapter,
    require_single_task,
    require_tokenizer,
)
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

logger = logging.getLogger(__name__)

TOLERANCE = 1e-5
"""The largest allowed difference between a model and its export, of a hidden state or logit."""

_SAMPLE_TEXT = (
    "The harbour lay still that morning, and only the fishing boats moved. An old man sat on the "
    "wall, mending a net he had mended many times before; his dog slept beside him. When the bell "
    "of the church rang nine, he looked up, counted the strokes, and went on with his work. "
    "Nobody had told him that the market would open an hour late."
)


def export(model: LoadedModel, output: Path, onnx: OnnxPrecision | None = None) -> float:
    """Writes `model` to the folder `output`, with tokenizer files and a model card.

    Heads for which the model's class in Hugging Face has no tensors are left out, with a warning.

    Args:
      onnx: the precision of the ONNX files that are written as well; None for no such files.

    Returns:
      The largest difference of a hidden state or task logit between the model and the folder that
      was read back.

    Raises:
      UserError: `output` is not empty, cannot be written, or is not the same model when read back
        (nothing is left at `output` then); no task of a multi-task run was chosen; the head is
        hierarchical; or the family cannot be written as ONNX.
    """
    require_single_task(model)
    if model.head is not None and window_encoder_of(model.head) is not None:
        raise UserError(
            f"{model.path} has a hierarchical head, for which Hugging Face has no class, so it "
            "cannot be exported; use the run folder itself, as in bert-jax predict "
            f"{model.path}"
        )
    if label_tokens_of(model.head) is not None:
        raise UserError(
            f"{model.path} was fine-tuned with a prompt, for which Hugging Face has no class, so "
            "it cannot be exported; use the run folder itself, as in bert-jax predict "
            f"{model.path}"
        )
    model = _without_unknown_heads(model)
    # The export is checked inside of the block, before the rename: a folder with the final
    # name is always a checked one.
    with new_folder(output) as partial_folder:
        write_folder(model, partial_folder)
        copy_items([model.path], partial_folder)
        difference = verify_export(model, partial_folder)
        onnx_lines: list[str] = []
        if onnx is not None:
            onnx_lines = log_onnx(model, partial_folder, onnx)
        (partial_folder / "README.md").write_text(
            model_card(model, output.name, difference, onnx_lines=onnx_lines), "utf-8"
        )
    return difference


@contextlib.contextmanager
def new_folder(output: Path) -> Generator[Path]:
    """Makes a folder, which has its name only when the block has ended without an error.

    Raises:
      UserError: `output` is not empty, or cannot be written; nothing is left there then.
    """
    check_new_folder(output)
    try:
        with atomic_path(output) as folder:
            folder.mkdir(parents=True)
            yield folder
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{output} cannot be written: {reason}; nothing was left there") from None


def log_onnx(model: LoadedModel, folder: Path, precision: OnnxPrecision) -> list[str]:
    """Writes ONNX files and logs how they agree with the model; returns lines of the model card."""
    network = shipped_network(model)
    lines = write_onnx(network, require_tokenizer(model), folder, precision).lines()
    for line in lines:
        logger.info("%s", line.replace("`", ""))
    return lines


def _without_unknown_heads(model: LoadedModel) -> LoadedModel:
    # A model with LoRA, DoRA or IA3 arrives here merged; what is left are adapters that no
    # weights of the base can express.
    require_no_adapter(model, "be exported as a Hugging Face folder")
    # Hugging Face's classes would report tensors of other heads as unexpected.
    known_heads = {head for heads in format_of(model.config).heads.values() for head in heads}
    if model.head is not None:  # a pooler may belong to the class of a task head alone
        known_heads.update(task_parts(model.head, model.config))
    unknown_heads = [head for head in HEADS if head in model.params and head not in known_heads]
    if unknown_heads:
        logger.warning(
            "left out of the export, because Hugging Face's %s has no such head: %s",
            model.config.family,
            ", ".join(unknown_heads),
        )
    params = {part: tree for part, tree in model.params.items() if part not in unknown_heads}
    return dataclasses.replace(model, params=params)


def write_folder(model: LoadedModel, folder: Path) -> None:
    """Writes config.json, the weights and the tokenizer files into an existing folder."""
    flat_params = paths.flatten(model.params)
    pad_id = model.tokenizer.pad_id if model.tokenizer else 0
    huggingface.write_config(folder, model.config, parts_in(flat_params), pad_id, model.head)
    huggingface.write_weights(folder, flat_params, model.config, model.head)
    # safetensors gives permissions to the owner only, whatever the umask.
    shutil.copymode(folder / huggingface.CONFIG, folder / huggingface.WEIGHTS)
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
        # Without the length, `tokenizer(text, truncation=True)` would not truncate.
        file = folder / TOKENIZER_CONFIG_FILE
        length = {"model_max_length": model.config.max_length}
        file.write_text(format_json(read_json_object(file) | length), "utf-8")


def verify_export(model: LoadedModel, folder: Path) -> float:
    """Compares the folder with the model; returns the largest difference of outputs."""
    reloaded = load_network(folder)
    if _without_position_init(reloaded.config) != _without_position_init(model.config):
        raise UserError(
            f"the export describes another model: {reloaded.config}, not {model.config}"
        )
    if reloaded.head != model.head:
        raise UserError(f"the export describes another head: {reloaded.head}, not {model.head}")
    batch = sample_batch(model.config, model.tokenizer)
    difference = 0.0
    for (name, expected), (_, actual) in zip(
        _forward_outputs(model, batch), _forward_outputs(reloaded, batch), strict=True
    ):
        if not np.isfinite(expected).all():
            raise UserError(
                f"{model.path} is broken: the {name} are not finite; export an earlier checkpoint, "
                "or train again with a lower learning rate"
            )
        max_difference = float(np.abs(expected - actual).max())
        # `not <=` and not `>`: a difference of NaN is an error, too.
        if not max_difference <= TOLERANCE:
            raise UserError(
                f"the export was not written: its {name} differ by {max_difference:.1e} from those "
                f"of {model.path} (at most {TOLERANCE} is allowed)"
            )
        difference = max(difference, max_difference)
    expected_params, reloaded_params = (paths.flatten(m.params) for m in (model, reloaded))
    for path in sorted(expected_params.keys() | reloaded_params.keys()):
        is_in_both = path in expected_params and path in reloaded_params
        if not (is_in_both and np.array_equal(reloaded_params[path], expected_params[path])):
            raise UserError(f"the export was not written: {path} is not the same when read back")
    return difference


def _without_position_init(config: EncoderConfig) -> EncoderConfig:
    """Returns a config without how the position table is initialized, which no export stores."""
    if isinstance(config.positions, NoPositions):
        return config
    # config.json of Hugging Face has no field for it, so it always reads back as the default.
    positions = dataclasses.replace(config.positions, init="normal")
    return dataclasses.replace(config, positions=positions)


def _forward_outputs(model: LoadedModel, batch: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """Returns the outputs of the encoder and of the task head, with names for messages."""
    # The masked-LM head takes longer than everything else; its parameters are compared exactly.
    params_without_mlm = {part: tree for part, tree in model.params.items() if part != "masked_lm"}
    outputs = run_forward(params_without_mlm, model.config, batch, model.head)
    hidden_states = [
        (f"hidden states of layer {layer}", hidden_state)
        for layer, hidden_state in enumerate(outputs["hidden_states"])
    ]
    return hidden_states + ([("outputs of the head", outputs["task"])] if model.head else [])


def sample_batch(config: EncoderConfig, tokenizer: Tokenizer | None) -> dict[str, np.ndarray]:
    """Makes a batch [2, L] of a padded text pair and random ids.

    L is the longest length of the model, but at most 512: the memory of attention to all of 8,192
    tokens would exceed the memory of many machines.

    Without a tokenizer both sequences are random ids.
    """
    seq_length = min(config.max_length, 512)
    input_ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, seq_length))
    attention_mask, token_type_ids = np.ones_like(input_ids), np.zeros_like(input_ids)
    largest_type = max(0, config.type_vocab_size - 1)
    # Both token types occur in the random row, so that a swapped or lost row of the table is
    # found.
    token_type_ids[1, seq_length // 2 :] = min(1, largest_type)
    if tokenizer is not None and seq_length > 4:
        num_special_tokens = tokenizer.template.num_pair_special_tokens
        token_ids = tokenizer.encode(_SAMPLE_TEXT)[: 3 * seq_length // 4 - num_special_tokens]
        segment_a, segment_b = token_ids[: len(token_ids) // 2], token_ids[len(token_ids) // 2 :]
        pair_ids = tokenizer.build_inputs_with_special_tokens(segment_a, segment_b)
        input_ids[0] = tokenizer.pad_id
        input_ids[0, : len(pair_ids)] = pair_ids
        attention_mask[0, len(pair_ids) :] = 0
        segment_types = tokenizer.template.token_type_ids(len(segment_a), len(segment_b))
        token_type_ids[0, : len(pair_ids)] = np.minimum(segment_types, largest_type)
    fields = {
        "input_ids": input_ids,
        "token_type_ids": token_type_ids,
        "attention_mask": attention_mask,
    }
    return {name: array.astype(np.int32) for name, array in fields.items()}
