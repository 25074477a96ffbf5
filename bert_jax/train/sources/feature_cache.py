"""The states of a frozen encoder for all rows of a task: computed once, kept in the run folder.

    encoder_states/<split>-<length>.npy   float32 [states, D]: those of row 0, then of row 1, ...
                   fingerprint            of the encoder and the rows; of others: computed again
                   checksums.json         see checksums.py

A row has the states that its head reads: of the first token of each of its texts, or of all its
tokens, or under a `SpanHead` of every place of the longest batch, since the loss of a span reads
padding too. The files are mapped into memory, so they may be larger than it. The folder may be
deleted at any time: a run that goes on without it computes it again.
"""

import hashlib
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax import config_lib
from bert_jax.checkpoints import checksums
from bert_jax.data.finetuning.loader import evaluation_batches
from bert_jax.data.finetuning.rows import Features
from bert_jax.distributed.processes import run_on_process_0
from bert_jax.errors import UserError
from bert_jax.models.heads.config import QuestionAnsweringHead, reads_first_token
from bert_jax.objectives.fine_tuning import FineTuningObjective, encoder_features_field
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated
from bert_jax.params import paths
from bert_jax.runs.progress import LiveLine, format_duration

ENCODER_FEATURES = "encoder_states"
_FINGERPRINT_FILE = "fingerprint"


class FeatureExtractor:
    """A program's encoder with the parameters that it keeps.

    Args:
      params: of the whole program.
      lengths: that batches may have, ascending; batch_size: rows of a batch over all hosts.
    """

    def __init__(
        self,
        objective: FineTuningObjective,
        params: Any,
        mesh: jax.sharding.Mesh,
        *,
        lengths: Sequence[int],
        batch_size: int,
        pad_id: int,
    ):
        self._objective, self._params, self._mesh = objective, params, mesh
        self._batch_size, self._pad_id = batch_size, pad_id
        self._head, self._model = objective.config.head, objective.config.model
        self._lengths = lengths[-1:] if isinstance(self._head, QuestionAnsweringHead) else lengths
        # Every process gets all rows, as in an evaluation.
        self._compute_features = jax.jit(objective.encoder_features, out_shardings=replicated(mesh))

    def fingerprint(self, splits: Mapping[str, Features]) -> str:
        """Of all that the states of these rows depend on."""
        compute_dtype = self._objective.config.compute.dtype
        settings = (
            config_lib.fingerprint(self._model),
            compute_dtype,
            type(self._head),
            self._lengths,
        )
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        replicate = jax.jit(lambda params: params, out_shardings=replicated(self._mesh))
        for path, leaf in sorted(paths.flatten(replicate(self._params["encoder"])).items()):
            digest.update(path.encode())
            # An update of zero makes 0.0 of -0.0, which is the same parameter.
            digest.update((np.asarray(leaf) + np.float32(0)).tobytes())
        for name, features in splits.items():
            digest.update(f"{name} {[len(ids) for ids in features.input_ids]}".encode())
            for sequences in (features.input_ids, features.token_type_ids):
                digest.update(np.concatenate([*sequences, np.zeros(0, np.int32)]).tobytes())
        return digest.hexdigest()

    def offsets(self, features: Features) -> np.ndarray:
        """int64 [rows + 1]: where the states of each row begin in a file, and where all end."""
        num_states = features.lengths
        if reads_first_token(self._head):
            num_states = np.full_like(num_states, features.num_choices)
        elif isinstance(self._head, QuestionAnsweringHead):
            num_states = np.full_like(num_states, self._lengths[-1])
        return np.concatenate([[0], np.cumsum(num_states)])

    def shape(self, features: Features) -> tuple[int, int]:
        """[states, D] of a split."""
        return int(self.offsets(features)[-1]), self._model.hidden_size

    def extract(self, features: Features) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(numbers of rows, what `FineTuningProgram.states` gives for them): every row once."""
        batches = evaluation_batches(
            features,
            self._lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        input_sharding = batch_sharding(self._mesh)
        for sequence_indices, batch in batches:
            fields = {field: batch[field] for field in self._objective.input_fields()}
            yield (
                sequence_indices,
                jax.device_get(
                    self._compute_features(self._params, put_batch(fields, input_sharding))
                ),
            )

    def split_by_example(self, features: Features, encoder_features: np.ndarray) -> dict[str, Any]:
        """`Features.states`, of the states of a file."""
        if not reads_first_token(self._head):
            per_example: Any = np.split(encoder_features, self.offsets(features)[1:-1])
        elif features.num_choices > 1:
            per_example = encoder_features.reshape(
                -1, features.num_choices, encoder_features.shape[-1]
            )
        else:
            per_example = encoder_features
        return {encoder_features_field(self._head): per_example}


def cache_features(
    extractor: FeatureExtractor, splits: Mapping[str, Features], folder: Path
) -> None:
    """Fills in `Features.states` of all `rows`: from `folder`, where it has them.

    Args:
      rows: name of a file -> the rows of one split.
      folder: of the states; every process has to see it.

    Raises:
      UserError: the disk has no room for them.
    """
    fingerprint = extractor.fingerprint(splits)
    if not run_on_process_0(lambda: _is_cached(folder, fingerprint)):
        partial_folder = folder.with_name(f"{folder.name}.tmp")
        run_on_process_0(lambda: _prepare_folder(extractor, splits, partial_folder))
        _write_features(extractor, splits, partial_folder)
        run_on_process_0(lambda: _commit(partial_folder, folder, fingerprint))
    for name, features in splits.items():
        file = folder / f"{name}.npy"
        try:
            encoder_features = np.asarray(np.load(file, mmap_mode="r"))
        except OSError as error:
            raise UserError(
                f"{file} cannot be read ({error.strerror or error}); every process of a run needs "
                "the run's folder"
            ) from None
        features.encoder_features = extractor.split_by_example(features, encoder_features)


def _is_cached(folder: Path, fingerprint: str) -> bool:
    """Whether the states of this fingerprint are there, whole and undamaged."""
    file = folder / _FINGERPRINT_FILE
    same = file.is_file() and file.read_text() == fingerprint
    return same and not checksums.find_problems(epath.Path(folder))


def _prepare_folder(
    extractor: FeatureExtractor, splits: Mapping[str, Features], partial_folder: Path
) -> None:
    """Makes an empty folder, and tells what it will take."""
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir()
    shapes = [extractor.shape(features) for features in splits.values()]
    needed_bytes = sum(4 * num_states * width for num_states, width in shapes)
    disk = shutil.disk_usage(partial_folder)
    if needed_bytes > disk.free:
        raise UserError(
            f"{partial_folder.parent} has {disk.free / 1e6:,.1f} MB free, but the states of the "
            f"frozen encoder need {needed_bytes / 1e6:,.1f}; choose a run folder with more room, "
            "shorter rows, or ComputedFeatures as train.tuning.features"
        )
    num_sequences = sum(map(len, splits.values()))
    print(
        f"the frozen encoder reads {num_sequences:,} rows once; their states take "
        f"{needed_bytes / 1e6:,.1f} MB in {partial_folder.parent}",
        file=sys.stderr,
        flush=True,
    )


def _write_features(
    extractor: FeatureExtractor, splits: Mapping[str, Features], partial_folder: Path
) -> None:
    """All processes compute, process 0 writes and tells how far it is."""
    is_writer, progress_line, start = jax.process_index() == 0, LiveLine(), time.monotonic()
    total_tokens, tokens_done = sum(int(features.lengths.sum()) for features in splits.values()), 0

    def progress_text() -> str:
        rate = tokens_done / max(time.monotonic() - start, 1e-9)
        remaining = format_duration((total_tokens - tokens_done) / rate)
        return f"encoder {tokens_done / total_tokens:.0%} | {rate:,.0f} tokens/s | {remaining} left"

    for name, features in splits.items():
        file, offsets, output = partial_folder / f"{name}.npy", extractor.offsets(features), None
        if is_writer:
            shape = extractor.shape(features)
            output = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        for sequence_indices, batch_features in extractor.extract(features):
            if output is None:
                continue
            # The last batch may not be full.
            for index, sequence_features in zip(sequence_indices, batch_features, strict=False):
                begin, end = offsets[index], offsets[index + 1]
                output[begin:end] = sequence_features[: end - begin]
            tokens_done += int(features.lengths[sequence_indices].sum())
            progress_line.update(progress_text, is_last=tokens_done == total_tokens)
        if output is not None:
            output.flush()
    progress_line.close()


def _commit(partial_folder: Path, folder: Path, fingerprint: str) -> None:
    (partial_folder / _FINGERPRINT_FILE).write_text(fingerprint)
    checksums.write_checksums(epath.Path(partial_folder))
    shutil.rmtree(folder, ignore_errors=True)
    partial_folder.rename(folder)
