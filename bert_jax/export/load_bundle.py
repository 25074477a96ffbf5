"""Loads and runs a model bundle with jax, numpy, safetensors and tokenizers; needs no bert_jax.

    from load_bundle import Bundle

    bundle = Bundle("reviews-bundle")
    bundle(["A fine film.", "Two hours of my life."])["logits"]

A bundle is compiled by XLA when it runs, for a CPU, a GPU or a TPU. Treat it as a program: load
only bundles from sources that you trust.

Files of a bundle:

    bundle.json           inputs, outputs, labels, thresholds of labels, lengths, versions, and the
                          SHA-256 of each file
    forward-16.jaxexport  the network for 16 tokens as StableHLO; one file for each length
    model.safetensors     the weights, which are arguments of the network
    tokenizer.json        the tokenizer, in the format of the tokenizers library; the other files of
                          a tokenizer are read by bert-jax serve
    load_bundle.py        this file
"""

# No module of bert_jax is imported here, because a copy of this file is in every bundle and runs
# where bert_jax is not installed.
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

INFO = "bundle.json"
"""The file that describes a bundle."""

FORMAT = 1
"""The version of the files; a loader refuses bundles of a later version."""

MAX_ROWS = 64
"""The largest number of texts that are computed at once."""


class BundleError(ValueError):
    """Reports a bundle or an input that cannot be used, with what to do about it."""


class Bundle:
    """Runs the network of a bundle on the default device of jax.

    Attributes:
      info: the content of bundle.json.
      params: the weights by path, on the device.
    """

    def __init__(self, folder: str | Path):
        """Checks all files and copies the weights to the device.

        Raises:
          BundleError: a file is missing, damaged or of a later version, or the device is of a kind
            that the bundle was not made for.
        """
        self._folder = Path(folder)
        self.info = _read_info(self._folder)
        for name, digest in self.info["files"].items():
            _check_file(self._folder / name, digest)
        # jax calls the backend "gpu", but `jax.export` names the platforms of programs "cuda" and
        # "rocm".
        platform = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
        if platform not in self.info["platforms"]:
            raise BundleError(
                f"{folder} was made for {', '.join(self.info['platforms'])}, and jax runs on "
                f"{platform} here; set JAX_PLATFORMS=cpu to use the CPU"
            )
        try:
            self.params = jax.device_put(load_file(self._folder / "model.safetensors"))
        except SafetensorError as error:
            raise BundleError(f"{self._folder / 'model.safetensors'}: {error}") from None
        self._programs: dict[int, Any] = {}
        self._tokenizer: Any = None

    def __call__(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], prompt: str | None = None
    ) -> dict[str, np.ndarray]:
        """Computes the outputs of texts, or of pairs of texts.

        Args:
          prompt: is put before each text; None for the default prompt of the model, if it has one.

        Texts that are too long are truncated. An output for each token is padded to the longest
        text, and begins with the first special token's.

        Raises:
          BundleError: the bundle has no tokenizer, or reads several texts for each example.
        """
        if isinstance(texts, str):
            raise BundleError(f"expected a list of texts, found one text, {texts[:40]!r}")
        if self.info["input_dims"] != ["batch", "sequence"]:
            raise BundleError("this model reads choices; tokenize them and call `run`")
        prompt = self.info["default_prompt"] if prompt is None else prompt
        if prompt and not self.info["include_prompt"]:
            raise BundleError(
                f"this model leaves the prompt {prompt!r} out of its vectors, which a bundle "
                "cannot do; use prompt='' or the library sentence-transformers"
            )
        if prompt:
            texts = [f"{prompt}{text}" for text in texts]
        encodings = self._load_tokenizer().encode_batch(list(texts))
        longest = max((len(encoding.ids) for encoding in encodings), default=1)
        fields = {
            "input_ids": (self.info["pad_token_id"], [e.ids for e in encodings]),
            "attention_mask": (0, [e.attention_mask for e in encodings]),
            "token_type_ids": (0, [e.type_ids for e in encodings]),
        }
        batch = {
            name: np.array([row + [pad] * (longest - len(row)) for row in rows], np.int32)
            for name, (pad, rows) in fields.items()
        }
        return self.run({name: batch[name].reshape(-1, longest) for name in self.info["inputs"]})

    def run(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of a batch with the fields `info["inputs"]`.

        Args:
          batch: token ids, mask (1 = real token) and types, integers [B, L]; [B, A, L] for choices.

        Raises:
          BundleError: a field is missing or unknown, or L is too large.
        """
        inputs = self.info["inputs"]
        if sorted(batch) != sorted(inputs):
            raise BundleError(f"the batch has {sorted(batch)}, expected {sorted(inputs)}")
        num_rows, length = (batch["input_ids"].shape[axis] for axis in (0, -1))
        outputs = [
            self._run_rows({name: batch[name][start : start + MAX_ROWS] for name in inputs})
            # At least one run, so that an empty batch gets outputs of the right dims and dtype.
            for start in range(0, max(num_rows, 1), MAX_ROWS)
        ]
        found: dict[str, np.ndarray] = {}
        for name, dims in self.info["outputs"].items():
            values = np.concatenate([each[name] for each in outputs])
            found[name] = values[:, :length] if "sequence" in dims else values
        return found

    def _run_rows(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes at most `MAX_ROWS` rows, padded to a length and a number that are compiled."""
        num_rows, length = (batch["input_ids"].shape[axis] for axis in (0, -1))
        lengths = [each for each in self.info["lengths"] if each >= length]
        if not lengths:
            raise BundleError(
                f"the batch has {length} tokens in a row, more than the model's limit of "
                f"{self.info['lengths'][-1]}; truncate the texts"
            )
        # The next power of two: the program takes any number of rows, but jax compiles it again
        # for every number that it meets, so at most 7 are compiled for `MAX_ROWS`.
        padding_rows = (1 << max(num_rows - 1, 0).bit_length()) - num_rows
        padded: dict[str, np.ndarray] = {}
        for name in self.info["inputs"]:
            ids = np.asarray(batch[name], np.int32)
            widths = [(0, padding_rows), *[(0, 0)] * (ids.ndim - 2), (0, lengths[0] - length)]
            # Zeros are right for mask and types only: families such as RoBERTa count positions
            # over the tokens that differ from the padding id, which is 1 there.
            pad = self.info["pad_token_id"] if name == "input_ids" else 0
            padded[name] = np.pad(ids, widths, constant_values=pad)
        outputs = self._program(lengths[0])(self.params, padded)
        return {name: np.asarray(values)[:num_rows] for name, values in outputs.items()}

    def _program(self, length: int) -> Any:
        """Returns the network for a length; jax compiles it once for each number of rows."""
        if length not in self._programs:
            file = self._folder / f"forward-{length}.jaxexport"
            try:
                # jax promises to read programs of earlier versions for six months, so a failure
                # here is more often a matter of versions than of a damaged file, whose SHA-256
                # was checked.
                exported = jax.export.deserialize(bytearray(file.read_bytes()))
            except Exception as error:
                raise BundleError(
                    f"{file} was written by jax {self.info['jax_version']} and cannot be read by "
                    f"jax {jax.__version__}: {error}; install a version between the two, or make "
                    "the bundle again"
                ) from None
            self._programs[length] = jax.jit(exported.call)
        return self._programs[length]

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            file = self._folder / "tokenizer.json"
            if not file.is_file():
                raise BundleError(
                    f"{self._folder} has no tokenizer.json; call `run` with token ids"
                )
            # Imported late: a bundle without texts, whose caller passes token ids to `run`, needs
            # no tokenizers library.
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(file))
            # tokenizer.json may store the padding and truncation of its training; padding to a
            # fixed length would compute the longest program for every text.
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self.info["max_length"])
        return self._tokenizer


def _read_info(folder: Path) -> dict[str, Any]:
    file = folder / INFO
    try:
        info = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}; expected a bundle") from None
    except ValueError as error:
        raise BundleError(f"{file} is not JSON: {error}; copy the bundle again") from None
    if not isinstance(info, dict) or "format" not in info:
        raise BundleError(f"{file} does not describe a bundle; it has no field 'format'")
    if info["format"] != FORMAT:
        raise BundleError(
            f"{file} has format {info['format']}, and this loader reads format {FORMAT}; use the "
            "load_bundle.py in the folder"
        )
    return info


def _check_file(file: Path, digest: str) -> None:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BundleError(
            f"{file} cannot be read: {error.strerror}; copy the bundle again"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise BundleError(
            f"{file} is damaged: its SHA-256 begins with {found[:12]}, and {INFO} has "
            f"{digest[:12]}; copy the bundle again"
        )
