"""Prepares a corpus on this machine with several processes: `prepare(PrepareConfig(...))`.

Each work unit becomes one shard, whichever process writes it, so that the bytes do not depend on
the number of workers. For text files, workers import no TensorFlow. plan.py explains how a stopped
run continues; beam.py does the same work on a cluster.
"""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.data.corpus.manifest import (
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    CorpusShard,
    Manifest,
    read_manifest,
)
from bert_jax.data.corpus.output_folder import lock_folder, open_output_folder
from bert_jax.data.corpus.plan import (
    FileUnit,
    PrepareConfig,
    PreparePlan,
    TaskUnit,
    finalize_corpus,
    make_prepare_plan,
)
from bert_jax.data.corpus.shards import DocumentsConfig, finished_shard, write_shard
from bert_jax.errors import UserError
from bert_jax.io.parent_process import exit_with_parent
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 0.5


def prepare(
    config: PrepareConfig, *, num_workers: int | None = None, overwrite: bool = False
) -> Manifest:
    """Writes a prepared corpus; shards that an earlier run finished are kept.

    Args:
      config: what to prepare, and the output folder.
      num_workers: number of processes (default: one for each core); 1 uses this process.
      overwrite: whether to remove a corpus that was prepared with other settings.

    Returns:
      The manifest of the finished corpus.

    Raises:
      UserError: the input is invalid, or the folder contains something else.
    """
    plan = make_prepare_plan(config)
    try:
        return _prepare(plan, Path(config.output), num_workers, overwrite)
    except OSError as error:
        raise UserError(
            f"{error.filename or config.output}: {error.strerror}. Finished shards are kept: solve "
            "the problem and run the same command again"
        ) from error


def _prepare(plan: PreparePlan, folder: Path, num_workers: int | None, overwrite: bool) -> Manifest:
    with lock_folder(folder):
        open_output_folder(folder, plan, overwrite=overwrite)
        plan_fingerprint = plan.fingerprint
        # Threads are enough to verify shards in parallel, because hashing releases the GIL.
        with ThreadPoolExecutor(num_workers or os.cpu_count()) as threads:
            existing_shards = list(
                threads.map(
                    lambda name: finished_shard(folder / name, plan_fingerprint), plan.shard_files
                )
            )
        missing_units = [k for k, shard in enumerate(existing_shards) if shard is None]
        if (folder / MANIFEST_FILE).is_file():
            if not missing_units:
                logger.info("%s is already prepared; no shard is missing or damaged", folder)
                return read_manifest(folder)
            damaged = ", ".join(plan.shard_files[k] for k in missing_units[:3])
            others = f" and {len(missing_units) - 3} more" if len(missing_units) > 3 else ""
            logger.warning("%s: %s%s missing or damaged; written again", folder, damaged, others)
            (folder / MANIFEST_FILE).unlink()
        worker_context = _WorkerContext(
            folder=folder,
            shard_files=plan.shard_files,
            documents=plan.documents,
            plan_fingerprint=plan_fingerprint,
        )
        num_processes = min(num_workers or os.cpu_count() or 1, len(missing_units))
        with _Progress(plan, missing_units) as progress:
            if num_processes > 1:
                written_shards = _write_in_workers(
                    worker_context, plan, missing_units, num_processes, progress
                )
            else:
                written_shards = {
                    k: _write_unit(
                        worker_context,
                        plan.units[k],
                        k,
                        plan.tokenizer,
                        progress.counts,
                        progress.update,
                    )
                    for k in missing_units
                }
        return finalize_corpus(
            folder, plan, [shard or written_shards[k] for k, shard in enumerate(existing_shards)]
        )


@dataclass(frozen=True, kw_only=True)
class _WorkerContext:
    """Holds what is the same for all work units of a run."""

    folder: Path
    shard_files: Sequence[str]
    documents: DocumentsConfig
    plan_fingerprint: str


def _write_unit(
    worker_context: _WorkerContext,
    unit: FileUnit | TaskUnit,
    shard_index: int,
    tokenizer: Tokenizer,
    progress_counts: Any,
    on_update: Callable[[], None],
) -> CorpusShard:
    def report(num_documents: int, text_size: int) -> None:
        progress_counts[2 * shard_index] += num_documents
        progress_counts[2 * shard_index + 1] += text_size
        on_update()

    return write_shard(
        worker_context.folder / worker_context.shard_files[shard_index],
        unit.encoded_documents(tokenizer, worker_context.documents, report),
        max_part_tokens=worker_context.documents.max_part_tokens,
        plan_fingerprint=worker_context.plan_fingerprint,
    )


class _Progress:
    """Shows a progress bar of counts that are shared between processes.

    There are two numbers for each unit (documents, bytes of text). The last number is a flag that
    tells workers to stop.
    """

    def __init__(self, plan: PreparePlan, missing_units: Sequence[int]):
        # Not "fork", which copies a process without its threads, such as those of `tokenizers`.
        context = multiprocessing.get_context("spawn")
        # Without a lock: each unit is written by one process only, and a number of 64 bits is
        # stored at once.
        self.counts: Any = context.Array("q", 2 * len(plan.units) + 1, lock=False)
        total_bytes = sum(plan.units[k].text_bytes for k in missing_units)
        self._start = time.monotonic()
        self._bar = tqdm(
            desc="prepare",
            total=total_bytes or None,
            unit="B",
            unit_scale=True,
            disable=None,
            mininterval=REFRESH_SECONDS,
        )

    def update(self) -> None:
        text_size = sum(self.counts[1:-1:2])
        if self._bar.total is not None:  # the total is an estimate: gzip stores sizes modulo 2^32
            text_size = min(text_size, self._bar.total)
        num_documents = sum(self.counts[:-1:2])
        documents_per_second = num_documents / (time.monotonic() - self._start)
        self._bar.set_postfix_str(
            f"{num_documents} docs, {documents_per_second:.1f} docs/s", refresh=False
        )
        self._bar.update(text_size - self._bar.n)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.counts[-1] = 1
        self._bar.close()


def _write_in_workers(
    worker_context: _WorkerContext,
    plan: PreparePlan,
    missing_units: Sequence[int],
    num_processes: int,
    progress: _Progress,
) -> dict[int, CorpusShard]:
    """Runs units in new processes; the first failure stops the others and is raised here."""
    pool = ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(worker_context, progress.counts),
    )
    futures: dict[Future[CorpusShard], int] = {}
    try:
        # Start with the largest, so that no single worker is still busy with one at the end.
        for k in sorted(missing_units, key=lambda k: -plan.units[k].text_bytes):
            futures[pool.submit(_write_unit_in_worker, plan.units[k], k)] = k
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, REFRESH_SECONDS, "FIRST_COMPLETED")
            progress.update()
            for future in finished:
                future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps because memory ran out. Finished shards are "
            "kept: run the same command again with fewer --workers"
        ) from None
    finally:
        progress.counts[-1] = 1
        pool.shutdown(wait=True, cancel_futures=True)
    return {k: future.result() for future, k in futures.items()}


def _start_worker(worker_context: _WorkerContext, progress_counts: Any) -> None:
    """Initializes a worker process. Only the parent process handles Ctrl-C."""
    global _worker_context, _progress_counts, _tokenizer
    # A terminal sends Ctrl-C to all processes of a command; each would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    # Each process uses one core; threads of `tokenizers` would compete with other workers.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_context, _progress_counts = worker_context, progress_counts
    _tokenizer = load_tokenizer(worker_context.folder / TOKENIZER_FOLDER)


def _write_unit_in_worker(unit: FileUnit | TaskUnit, shard_index: int) -> CorpusShard:
    return _write_unit(
        _worker_context, unit, shard_index, _tokenizer, _progress_counts, _raise_if_stopped
    )


def _raise_if_stopped() -> None:
    if _progress_counts[-1]:
        raise UserError("stopped")
