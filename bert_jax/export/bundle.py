"""Writes a bundle: a model as StableHLO with its weights, which runs with jax and without bert_jax.

`load_bundle.py`, of which a copy is in the bundle, describes the files. jax promises to read them
for 6 months of later versions. The weights are arguments of the network and not constants in it, so
they are stored once for all lengths.
"""

import hashlib
import inspect
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from safetensors.numpy import save_file

from bert_jax.config.config_lib import to_json
from bert_jax.export import load_bundle
from bert_jax.export.load_bundle import FORMAT, INFO, Bundle
from bert_jax.export.outputs import ShippedNetwork, largest_difference, sample_texts, text_batch
from bert_jax.io.atomic_io import atomic_path, check_new_folder, write_json
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.params import paths
from bert_jax.predict.batches import MIN_LENGTH
from bert_jax.predict.embedder import choose_prompt
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.version import __version__

# All three are lowered on any machine, so the bundle of a CPU runs on accelerators that its
# author does not have.
PLATFORMS = ("cpu", "cuda", "tpu")
"""The kinds of devices on which a bundle runs; one file serves all of them."""

TOLERANCE = 1e-5
"""The largest allowed difference of an output between a bundle and the model, on one device."""


def export_bundle(network: ShippedNetwork, tokenizer: Tokenizer, output: Path) -> float:
    """Writes a network and its tokenizer to the new folder `output`.

    Returns:
      The largest difference of an output between the network and the bundle that was read back.

    Raises:
      UserError: `output` is not empty or cannot be written, or the bundle differs from the network
        (nothing is left at `output` then).
    """
    check_new_folder(output)
    with atomic_path(output) as folder:
        folder.mkdir(parents=True)
        _write(network, tokenizer, folder)
        return _verify(network, tokenizer, folder)


def bundle_lengths(max_length: int) -> list[int]:
    """Returns the sequence lengths that have a program: 16, 32, 64, ... and `max_length`."""
    lengths = [MIN_LENGTH << power for power in range(20)]
    return [*(length for length in lengths if length < max_length), max_length]


def _write(network: ShippedNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    lengths = bundle_lengths(network.max_length)
    flat_params = paths.flatten(network.params)
    for length in lengths:
        program = _export_program(network, flat_params, length)
        (folder / f"forward-{length}.jaxexport").write_bytes(program)
    contiguous = {path: np.ascontiguousarray(leaf) for path, leaf in flat_params.items()}
    save_file(contiguous, folder / "model.safetensors")
    tokenizer.save(folder)
    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
    }
    (folder / "load_bundle.py").write_text(inspect.getsource(load_bundle), "utf-8")
    sentence = network.output if isinstance(network.output, SentenceEncoderConfig) else None
    info = {
        "format": FORMAT,
        "model": {"encoder": to_json(network.config), "output": to_json(network.output)},
        "bert_jax_version": __version__,
        "jax_version": jax.__version__,
        "platforms": PLATFORMS,
        "family": network.config.family,
        "lengths": lengths,
        "max_length": network.max_length,
        "inputs": network.input_names,
        "input_dims": network.input_dims,
        "outputs": network.output_dims,
        "labels": getattr(network.output, "labels", None),
        "thresholds": getattr(network.output, "thresholds", None),
        "pooling": None if sentence is None else sentence.pooling,
        "prompts": {} if sentence is None else {each.name: each.text for each in sentence.prompts},
        "default_prompt": "" if sentence is None else choose_prompt(sentence, None, None),
        "include_prompt": sentence is None or sentence.include_prompt,
        "pad_token_id": tokenizer.pad_id,
        "files": digests,
    }
    write_json(folder / INFO, info)
    # `save_file` makes a file that only its owner can read.
    shutil.copymode(folder / INFO, folder / "model.safetensors")


# Weights are arguments, so that the programs of all lengths share one copy of them.
def _export_program(
    network: ShippedNetwork, flat_params: dict[str, np.ndarray], length: int
) -> bytes:
    """Returns the serialized network for sequences of a length and any number of rows."""
    compute = network.compute()

    def forward(flat: dict[str, jax.Array], batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return compute(paths.unflatten(flat), batch)

    # The number of rows is symbolic, but the length is not: shapes of the program, such as the
    # blocks of local attention, are computed from the length when it is traced.
    symbols = f"b, a, {length}" if network.has_choices else f"b, {length}"
    dims: Any = jax.export.symbolic_shape(symbols)
    params = {
        path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in flat_params.items()
    }
    batch = {name: jax.ShapeDtypeStruct(dims, np.int32) for name in network.input_names}
    # Accelerators multiply float32 matrices in lower precision by default.
    with jax.default_matmul_precision("highest"):
        exported = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(params, batch)
    return bytes(exported.serialize())


def _verify(network: ShippedNetwork, tokenizer: Tokenizer, folder: Path) -> float:
    # 8 short texts need one program only, and all programs are made in the same way.
    texts = sorted(sample_texts(), key=len)[:8]
    batch = text_batch(network, texts, tokenizer)
    found, expected = Bundle(folder).run(batch), network.reference_outputs(batch)
    return largest_difference(network, found, expected, batch, kind="bundle", tolerance=TOLERANCE)
