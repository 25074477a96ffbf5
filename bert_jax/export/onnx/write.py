"""Writes the ONNX files of a model, and compares them with the model by running onnxruntime.

The graph is built by hand, family by family. Tracing the model with jax2onnx 0.17.1 instead was
tried (2026-11-26): with dynamic batch and length, BERT and DistilBERT differ by at most 1.3e-6 from
JAX, but ModernBERT and DeBERTa cannot be converted (the maximum of a dynamic length and a number;
a quotient that it evaluates as a boolean), and it needs orbax-checkpoint below 0.11.37.
"""

import contextlib
import importlib.util
import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_jax.errors import MissingExtraError, UserError
from bert_jax.export.outputs import (
    Arrays,
    ShippedNetwork,
    largest_difference,
    real_values,
    sample_texts,
    text_batch,
)
from bert_jax.params import paths
from bert_jax.text.tokenizer import Tokenizer

OnnxPrecision = Literal["fp32", "int8"]
"""The numbers in the files: float32 alone, or a second file with int8 weights."""

FOLDER = "onnx"
MODEL = "model.onnx"
QUANTIZED = "model_quantized.onnx"
"""The names that optimum gives these files, under which other libraries look for them."""

TOLERANCE = 1e-4
"""The largest allowed difference of an output between onnxruntime and JAX, in float32."""

LARGEST_FILE = 1_900_000_000
"""Above this size, weights are in a file beside the graph: protobuf messages end at 2 GiB."""


@dataclass(frozen=True, kw_only=True)
class OnnxFacts:
    """Holds what the model card says about the ONNX files.

    Attributes:
      outputs: the names of the outputs.
      difference: the largest difference of an output in float32.
      num_bytes: the size of the files in float32.
      quantized: how well the int8 file agrees, and its size; None without such a file.
    """

    outputs: tuple[str, ...]
    difference: float
    num_bytes: int
    quantized: tuple[str, int] | None = None

    def lines(self) -> list[str]:
        """Returns the facts as Markdown, each line a sentence or two."""
        names = " and ".join(f"`{name}`" for name in self.outputs)
        lines = [
            f"`{FOLDER}/{MODEL}` ({self.num_bytes:,} bytes) computes {names} in float32. Run by "
            f"onnxruntime on {len(sample_texts())} English texts, it differs by at most "
            f"{self.difference:.1e} from the model it was made from."
        ]
        if self.quantized is not None:
            agreement, num_bytes = self.quantized
            lines.append(
                f"`{FOLDER}/{QUANTIZED}` ({num_bytes:,} bytes) has int8 weights, which use "
                "7 bits so that no processor overflows, one scale for each output channel and one "
                f"for each embedding table, and quantizes activations while it runs. {agreement}"
            )
        return lines


def check_onnx_installed() -> None:
    """Raises a MissingExtraError unless the libraries of the extra [onnx] are installed."""
    for library in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"--onnx needs {library}, which is not installed", "onnx")


# Written from the weights with the `onnx` package instead of traced by PyTorch: an encoder has
# about 15 kinds of operations, and the exporters pin versions of transformers.
def write_onnx(
    network: ShippedNetwork, tokenizer: Tokenizer, folder: Path, precision: OnnxPrecision
) -> OnnxFacts:
    """Writes a network into `folder`/onnx, and compares the files with it on 64 texts.

    Raises:
      UserError: the family cannot be written as ONNX, or the outputs differ.
      MissingExtraError: onnx or onnxruntime is not installed.
    """
    check_onnx_installed()
    from bert_jax.export.onnx.encoder import check_family
    from bert_jax.export.onnx.heads import build_graph

    check_family(network.config)  # before the outputs are computed, which takes seconds

    batch = text_batch(network, sample_texts(), tokenizer)
    expected = network.reference_outputs(batch)
    (folder / FOLDER).mkdir()
    file = folder / FOLDER / MODEL
    is_external = _num_bytes(network) > LARGEST_FILE
    _save(build_graph(network), file, is_external)
    difference = largest_difference(
        network, run_onnx(file, batch), expected, batch, kind="ONNX file", tolerance=TOLERANCE
    )
    num_bytes = sum(each.stat().st_size for each in file.parent.iterdir())
    quantized = None
    if precision == "int8":
        quantized_file = folder / FOLDER / QUANTIZED
        _quantize(file, quantized_file, is_external)
        agreement = _agreement(network, run_onnx(quantized_file, batch), expected, batch)
        total = sum(each.stat().st_size for each in file.parent.iterdir())
        quantized = (agreement, total - num_bytes)
    return OnnxFacts(
        outputs=tuple(network.output_dims),
        difference=difference,
        num_bytes=num_bytes,
        quantized=quantized,
    )


def run_onnx(file: Path, batch: Mapping[str, np.ndarray]) -> Arrays:
    """Runs an ONNX file on a CPU; returns the outputs by name."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    # ONNX files of Hugging Face models take ids as int64; in JAX they are int32.
    fields = {name: ids.astype(np.int64) for name, ids in batch.items()}
    return dict(zip(names, session.run(names, fields), strict=True))


def _num_bytes(network: ShippedNetwork) -> int:
    return sum(leaf.nbytes for leaf in paths.flatten(network.params).values())


def _save(model: Any, file: Path, is_external: bool) -> None:
    import onnx

    if is_external:
        onnx.save_model(model, file, save_as_external_data=True, location=f"{file.name}_data")
    else:
        onnx.save_model(model, file)
    # By path, because the checker does not accept models above 2 GiB in memory.
    onnx.checker.check_model(str(file), full_check=True)


def _quantize(file: Path, output: Path, is_external: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _without_messages_of("onnxruntime"):
        quantize_dynamic(
            file,
            output,
            # One scale for each output channel; channels of a kernel differ in size, and a common
            # scale would round the small ones away.
            per_channel=True,
            weight_type=QuantType.QInt8,
            # 7 bits: processors without VNNI add pairs of products in 16 bits, which int8 weights
            # exceed, and the logits are then wrong without an error.
            reduce_range=True,
            use_external_data_format=is_external,
        )


@contextlib.contextmanager
def _without_messages_of(library: str) -> Generator[None]:
    """Drops what a library logs with the root logger, such as advice that does not apply here."""

    def is_of_another(record: logging.LogRecord) -> bool:
        return library not in Path(record.pathname).parts

    logging.getLogger().addFilter(is_of_another)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_of_another)


def _agreement(
    network: ShippedNetwork,
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
) -> str:
    """Describes in a sentence how well the outputs of a quantized model agree with the model's.

    Raises:
      UserError: an output is not finite.
    """
    sentences = []
    for name, values in expected.items():
        left, right = (real_values(network, name, each, batch) for each in (values, found[name]))
        if not np.isfinite(right).all():
            raise UserError(f"the ONNX file was not written: in int8 its {name} is not finite")
        dims = network.output_dims[name]
        if name in ("start_logits", "end_logits"):  # the best token of each text
            padding = batch["attention_mask"] == 0
            # The two runtimes mask padding differently, so the best token is chosen among real
            # tokens only.
            best = (np.where(padding, -np.inf, each[name]) for each in (expected, found))
            left, right = (each.argmax(-1) for each in best)
            fraction = float(np.mean(left == right))
            sentences.append(
                f"The best token of {name} is the same for {fraction:.1%} of the texts."
            )
        elif name == "logits" and left.shape[-1] > 1:
            fraction = float(np.mean(left.argmax(-1) == right.argmax(-1)))
            unit = "tokens" if "sequence" in dims else "examples"
            sentences.append(
                f"The largest of its logits is the same for {fraction:.1%} of the {unit}."
            )
        elif name == "logits":
            largest = float(np.abs(left - right).max())
            sentences.append(f"Its value differs by at most {largest:.2g}.")
        else:
            cosine = _cosines(left, right)
            sentences.append(
                f"The cosine similarity of its {name} with that of float32 is {cosine.mean():.4f} "
                f"on average and {cosine.min():.4f} at least."
            )
    return " ".join(sentences)


def _cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return np.sum(left * right, axis=-1) / np.maximum(norms, 1e-12)
