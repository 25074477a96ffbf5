"""Caches the hidden states of a frozen encoder for all sequences of a task in the run folder.

    encoder_states/<split>-<length>.npy   float32 [vectors, D] of sequence 0, sequence 1, ...
                   fingerprint            of the encoder and the sequences; the cache is computed
                                          again if it differs
                   checksums.json         see checksums.py

A sequence has the vectors that its head reads: of the first token of each text, or of all
tokens, or for question answering of every position of the longest bucket, because its loss also
reads padding. The files are memory-mapped, so they may be larger than memory. The folder may be
deleted at any time: a run that resumes without it computes it again.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.config import config_lib
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import evaluation_batches
from bert_jax.errors import UserError
from bert_jax.models.heads.config import reads_one_vector
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.parallel.processes import run_on_process_0
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated
from bert_jax.params import paths
from bert_jax.runs.checkpoints import checksums
from bert_jax.runs.progress import LiveLine, format_duration

logger = logging.getLogger(__name__)

ENCODER_FEATURES = "encoder_states"
_FINGERPRINT_FILE = "fingerprint"


# Cached features are one more batch field. The parameters are still the whole tree, and XLA returns
# the unused encoder unchanged, so that step, checkpoints and exports stay the same. Features of
# padding are stored for question answering, whose loss includes padding, as in BERT's release.
class FeatureExtractor:
    """Computes encoder features with fixed parameters.

    Args:
      params: the parameters of the objective.
      bucket_lengths: the lengths that a batch may have, ascending.
      batch_size: rows of a batch over all processes.
    """

    def __init__(
        self,
        objective: FineTuningObjective,
        params: Any,
        mesh: jax.sharding.Mesh,
        *,
        bucket_lengths: Sequence[int],
        batch_size: int,
        pad_id: int,
    ):
        self._objective, self._params, self._mesh = objective, params, mesh
        self._batch_size, self._pad_id = batch_size, pad_id
        self._head, self._model = objective.config.head, objective.config.model
        self._spec = objective.spec
        # All rows of question answering have one length, so that padding has features, too.
        self._bucket_lengths = (
            bucket_lengths[-1:] if self._spec.loss_reads_padding else bucket_lengths
        )
        # Replicated outputs give every process all rows, as in an evaluation.
        self._compute_features = jax.jit(objective.encoder_features, out_shardings=replicated(mesh))

    # The features of a frozen encoder are a function of encoder and examples only; both are in the
    # fingerprint of the files.
    def fingerprint(self, splits: Mapping[str, Features]) -> str:
        """Hashes everything on which the features of these sequences depend."""
        compute_dtype = self._objective.config.compute.dtype
        # The dtype is part of it, because features of a bfloat16 run differ from those of
        # float32.
        settings = (
            config_lib.fingerprint(self._model),
            compute_dtype,
            type(self._head),
            self._bucket_lengths,
        )
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        replicate = jax.jit(lambda params: params, out_shardings=replicated(self._mesh))
        for path, leaf in sorted(paths.flatten(replicate(self._params["encoder"])).items()):
            digest.update(path.encode())
            # The optimizer turns -0.0 into 0.0 even where its update is zero; adding 0.0 does too.
            digest.update((np.asarray(leaf) + np.float32(0)).tobytes())
        for name, features in splits.items():
            digest.update(f"{name} {[len(ids) for ids in features.input_ids]}".encode())
            for sequences in (features.input_ids, features.token_type_ids):
                digest.update(np.concatenate([*sequences, np.zeros(0, np.int32)]).tobytes())
        return digest.hexdigest()

    def offsets(self, features: Features) -> np.ndarray:
        """Returns int64 [sequences + 1]: the first vector of each sequence, then the total."""
        num_vectors = features.lengths
        if reads_one_vector(self._head):
            num_vectors = np.full_like(num_vectors, features.num_choices)
        elif self._spec.loss_reads_padding:
            num_vectors = np.full_like(num_vectors, self._bucket_lengths[-1])
        return np.concatenate([[0], np.cumsum(num_vectors)])

    def shape(self, features: Features) -> tuple[int, int]:
        """Returns the shape [vectors, D] of the file of a split."""
        return int(self.offsets(features)[-1]), self._model.hidden_size

    def extract(self, features: Features) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields every sequence once: (indices, result of `objective.encoder_features`)."""
        batches = evaluation_batches(
            features,
            self._bucket_lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        input_sharding = batch_sharding(self._mesh)
        for sequence_indices, batch in batches:
            fields = {field: batch[field] for field in self._spec.input_fields}
            yield (
                sequence_indices,
                jax.device_get(
                    self._compute_features(self._params, put_batch(fields, input_sharding))
                ),
            )

    def split_by_example(self, features: Features, encoder_features: np.ndarray) -> dict[str, Any]:
        """Splits the content of a file into `Features.encoder_features`."""
        if not reads_one_vector(self._head):
            per_example: Any = np.split(encoder_features, self.offsets(features)[1:-1])
        elif features.num_choices > 1:
            per_example = encoder_features.reshape(
                -1, features.num_choices, encoder_features.shape[-1]
            )
        else:
            per_example = encoder_features
        return {self._spec.features_field: per_example}


def cache_features(
    extractor: FeatureExtractor, splits: Mapping[str, Features], folder: Path
) -> None:
    """Sets `encoder_features` of all splits, from the files in `folder` if they are valid.

    Args:
      splits: name of a file -> the sequences of one split.
      folder: the folder of the files; every process must be able to read it.

    Raises:
      UserError: there is not enough disk space, or a file cannot be read.
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
            # Memory-mapped, because features of all tokens may exceed the memory of the host.
            encoder_features = np.asarray(np.load(file, mmap_mode="r"))
        except OSError as error:
            raise UserError(
                f"{file} cannot be read ({error.strerror or error}); every process must be able to "
                "read the run folder"
            ) from None
        features.encoder_features = extractor.split_by_example(features, encoder_features)


def _is_cached(folder: Path, fingerprint: str) -> bool:
    """Returns whether the folder has undamaged features with this fingerprint."""
    file = folder / _FINGERPRINT_FILE
    same = file.is_file() and file.read_text() == fingerprint
    return same and not checksums.find_problems(epath.Path(folder))


def _prepare_folder(
    extractor: FeatureExtractor, splits: Mapping[str, Features], partial_folder: Path
) -> None:
    """Creates an empty folder, checks the disk space and reports what the features take."""
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir()
    shapes = [extractor.shape(features) for features in splits.values()]
    needed_bytes = sum(4 * num_vectors * width for num_vectors, width in shapes)
    disk = shutil.disk_usage(partial_folder)
    if needed_bytes > disk.free:
        raise UserError(
            f"{partial_folder.parent} has {disk.free / 1e6:,.1f} MB free, but the cached encoder "
            f"features need {needed_bytes / 1e6:,.1f} MB; choose a run folder on a larger disk, "
            "shorter sequences, or 'computed' as train.tuning.features"
        )
    num_sequences = sum(map(len, splits.values()))
    logger.info(
        "caching encoder features of %s sequences: %s MB in %s",
        f"{num_sequences:,}",
        f"{needed_bytes / 1e6:,.1f}",
        partial_folder.parent,
    )


def _write_features(
    extractor: FeatureExtractor, splits: Mapping[str, Features], partial_folder: Path
) -> None:
    """Computes the features on all processes; process 0 writes them and shows the progress."""
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
    # The rename is last: a folder with this name is always complete.
    partial_folder.rename(folder)
