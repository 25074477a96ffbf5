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

from bert_jax import config, paths
from bert_jax.data.labelled.loader import evaluation_batches
from bert_jax.data.labelled.rows import Features
from bert_jax.errors import UserError
from bert_jax.models.config import SpanHead, reads_pooled
from bert_jax.parallel.sharding import batch_sharding, put_batch, replicated
from bert_jax.programs.fine_tuning import FineTuningProgram, states_field
from bert_jax.train import checksums
from bert_jax.train.distributed import agree
from bert_jax.train.progress import LiveLine, duration

ENCODER_STATES = "encoder_states"
_FINGERPRINT = "fingerprint"


class FrozenEncoder:
    """A program's encoder with the parameters that it keeps.

    Args:
      params: of the whole program.
      lengths: that batches may have, ascending; batch_size: rows of a batch over all hosts.
    """

    def __init__(
        self,
        program: FineTuningProgram,
        params: Any,
        mesh: jax.sharding.Mesh,
        *,
        lengths: Sequence[int],
        batch_size: int,
        pad_id: int,
    ):
        self._program, self._params, self._mesh = program, params, mesh
        self._batch_size, self._pad_id = batch_size, pad_id
        self._head, self._model = program.config.head, program.config.model
        self._lengths = lengths[-1:] if isinstance(self._head, SpanHead) else lengths
        # Every process gets all rows, as in an evaluation.
        self._states = jax.jit(program.states, out_shardings=replicated(mesh))

    def fingerprint(self, rows: Mapping[str, Features]) -> str:
        """Of all that the states of these rows depend on."""
        compute = self._program.config.compute.dtype
        described = (config.fingerprint(self._model), compute, type(self._head), self._lengths)
        digest = hashlib.blake2b(repr(described).encode(), digest_size=16)
        whole = jax.jit(lambda encoder: encoder, out_shardings=replicated(self._mesh))
        for path, leaf in sorted(paths.flatten(whole(self._params["encoder"])).items()):
            digest.update(path.encode())
            # An update of zero makes 0.0 of -0.0, which is the same parameter.
            digest.update((np.asarray(leaf) + np.float32(0)).tobytes())
        for name, features in rows.items():
            digest.update(f"{name} {[len(ids) for ids in features.input_ids]}".encode())
            for texts in (features.input_ids, features.token_type_ids):
                digest.update(np.concatenate([*texts, np.zeros(0, np.int32)]).tobytes())
        return digest.hexdigest()

    def places(self, features: Features) -> np.ndarray:
        """int64 [rows + 1]: where the states of each row begin in a file, and where all end."""
        count = features.lengths
        if reads_pooled(self._head):
            count = np.full_like(count, features.choices)
        elif isinstance(self._head, SpanHead):
            count = np.full_like(count, self._lengths[-1])
        return np.concatenate([[0], np.cumsum(count)])

    def shape(self, features: Features) -> tuple[int, int]:
        """[states, D] of a split."""
        return int(self.places(features)[-1]), self._model.hidden_size

    def read(self, features: Features) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(numbers of rows, what `FineTuningProgram.states` gives for them): every row once."""
        batches = evaluation_batches(
            features,
            self._lengths,
            batch_size=self._batch_size,
            pad_id=self._pad_id,
            host_index=jax.process_index(),
            host_count=jax.process_count(),
        )
        where = batch_sharding(self._mesh)
        for numbers, batch in batches:
            fields = {field: batch[field] for field in self._program.input_fields()}
            yield numbers, jax.device_get(self._states(self._params, put_batch(fields, where)))

    def by_row(self, features: Features, states: np.ndarray) -> dict[str, Any]:
        """`Features.states`, of the states of a file."""
        if not reads_pooled(self._head):
            each: Any = np.split(states, self.places(features)[1:-1])
        elif features.choices > 1:
            each = states.reshape(-1, features.choices, states.shape[-1])
        else:
            each = states
        return {states_field(self._head): each}


def read_once(encoder: FrozenEncoder, rows: Mapping[str, Features], folder: Path) -> None:
    """Fills in `Features.states` of all `rows`: from `folder`, where it has them.

    Args:
      rows: name of a file -> the rows of one split.
      folder: of the states; every process has to see it.

    Raises:
      UserError: the disk has no room for them.
    """
    wanted = encoder.fingerprint(rows)
    if not agree(lambda: _holds(folder, wanted)):
        aside = folder.with_name(f"{folder.name}.tmp")
        agree(lambda: _make_room(encoder, rows, aside))
        _write(encoder, rows, aside)
        agree(lambda: _commit(aside, folder, wanted))
    for name, features in rows.items():
        file = folder / f"{name}.npy"
        try:
            states = np.asarray(np.load(file, mmap_mode="r"))
        except OSError as error:
            raise UserError(
                f"{file} cannot be read ({error.strerror or error}); every process of a run needs "
                "the run's folder"
            ) from None
        features.states = encoder.by_row(features, states)


def _holds(folder: Path, wanted: str) -> bool:
    """Whether the states of this fingerprint are there, whole and undamaged."""
    file = folder / _FINGERPRINT
    same = file.is_file() and file.read_text() == wanted
    return same and not checksums.problems(epath.Path(folder))


def _make_room(encoder: FrozenEncoder, rows: Mapping[str, Features], aside: Path) -> None:
    """Makes an empty folder, and tells what it will take."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    shapes = [encoder.shape(features) for features in rows.values()]
    needed, free = sum(4 * states * width for states, width in shapes), shutil.disk_usage(aside)
    if needed > free.free:
        raise UserError(
            f"{aside.parent} has {free.free / 1e6:,.1f} MB free, but the states of the frozen "
            f"encoder need {needed / 1e6:,.1f}; choose a run folder with more room, shorter rows, "
            "or ReadEachStep as train.tuning.encoder"
        )
    count = sum(map(len, rows.values()))
    print(
        f"the frozen encoder reads {count:,} rows once; their states take {needed / 1e6:,.1f} MB "
        f"in {aside.parent}",
        file=sys.stderr,
        flush=True,
    )


def _write(encoder: FrozenEncoder, rows: Mapping[str, Features], aside: Path) -> None:
    """All processes compute, process 0 writes and tells how far it is."""
    writes, line, start = jax.process_index() == 0, LiveLine(), time.monotonic()
    total, done = sum(int(features.lengths.sum()) for features in rows.values()), 0

    def told() -> str:
        rate = done / max(time.monotonic() - start, 1e-9)
        left = duration((total - done) / rate)
        return f"encoder {done / total:.0%} | {rate:,.0f} tokens/s | {left} left"

    for name, features in rows.items():
        file, places, into = aside / f"{name}.npy", encoder.places(features), None
        if writes:
            shape = encoder.shape(features)
            into = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        for numbers, found in encoder.read(features):
            if into is None:
                continue
            for row, states in zip(numbers, found, strict=False):  # the last batch may not be full
                into[places[row] : places[row + 1]] = states[: places[row + 1] - places[row]]
            done += int(features.lengths[numbers].sum())
            line.show(told, last=done == total)
        if into is not None:
            into.flush()
    line.close()


def _commit(aside: Path, folder: Path, fingerprint: str) -> None:
    (aside / _FINGERPRINT).write_text(fingerprint)
    checksums.write(epath.Path(aside))
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
