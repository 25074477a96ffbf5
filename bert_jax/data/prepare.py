"""Text -> prepared corpus, on this machine: `prepare(PrepareConfig(...))`.

Each work unit becomes one shard, whichever process takes it, so the bytes do not depend on the
number of workers. Workers of text files import no TensorFlow. See workplan.py for what makes a
run restartable and beam_pipeline.py for the same on a cluster.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.data.documents import DocumentsConfig
from bert_jax.data.manifest import MANIFEST, VOCABULARY, Manifest, Shard, read_manifest
from bert_jax.data.output_folder import locked, open_folder
from bert_jax.data.shards import finished_shard, write_shard
from bert_jax.data.sources import FileUnit, TaskUnit
from bert_jax.data.workplan import Plan, PrepareConfig, finish, make_plan
from bert_jax.errors import UserError
from bert_jax.text.vocabulary import Vocabulary, load_vocabulary

REFRESH_SECONDS = 0.5


def prepare(
    config: PrepareConfig, *, workers: int | None = None, overwrite: bool = False
) -> Manifest:
    """Writes the prepared corpus that `config` asks for; what is finished already is kept.

    Args:
      config: what to prepare, and where to.
      workers: processes (default: one for each core); 1 works in this process.
      overwrite: throw away what an earlier, different request has left in the folder.

    Returns:
      The manifest of the finished corpus, also when there was nothing left to do.

    Raises:
      UserError: bad input, or a folder that holds something else.
    """
    plan = make_plan(config)
    try:
        return _prepare(plan, Path(config.output), workers, overwrite)
    except OSError as error:
        raise UserError(
            f"{error.filename or config.output}: {error.strerror}; what is finished is kept: put "
            "that right and run the same command again"
        ) from error


def _prepare(plan: Plan, folder: Path, workers: int | None, overwrite: bool) -> Manifest:
    with locked(folder):
        open_folder(folder, plan, overwrite=overwrite)
        if (folder / MANIFEST).is_file():
            return read_manifest(folder)
        done = [finished_shard(folder / name, plan.fingerprint) for name in plan.shard_files]
        missing = [k for k, shard in enumerate(done) if shard is None]
        job = _Job(
            folder=folder,
            shard_files=plan.shard_files,
            documents=plan.documents,
            plan_fingerprint=plan.fingerprint,
        )
        count = min(workers or os.cpu_count() or 1, len(missing))
        with _Progress(plan, missing) as progress:
            if count > 1:
                written = _write_in_workers(job, plan, missing, count, progress)
            else:
                written = {
                    k: _write_unit(
                        job, plan.units[k], k, plan.vocabulary, progress.table, progress.update
                    )
                    for k in missing
                }
        return finish(folder, plan, [shard or written[k] for k, shard in enumerate(done)])


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What all work units of a run have in common."""

    folder: Path
    shard_files: Sequence[str]
    documents: DocumentsConfig
    plan_fingerprint: str


def _write_unit(
    job: _Job,
    unit: FileUnit | TaskUnit,
    number: int,
    vocabulary: Vocabulary,
    table: Any,
    tick: Callable[[], None],
) -> Shard:
    def report(documents: int, text: int) -> None:
        table[2 * number] += documents
        table[2 * number + 1] += text
        tick()

    return write_shard(
        job.folder / job.shard_files[number],
        unit.documents(vocabulary, job.documents, report),
        max_part_tokens=job.documents.max_part_tokens,
        plan_fingerprint=job.plan_fingerprint,
    )


class _Progress:
    """Shared counts, two numbers for each unit (documents, text), and the bar that shows them.

    One number more, at the end, tells workers to stop.
    """

    def __init__(self, plan: Plan, missing: Sequence[int]):
        context = multiprocessing.get_context("spawn")
        self.table: Any = context.Array("q", 2 * len(plan.units) + 1, lock=False)
        total = sum(plan.units[k].text_bytes for k in missing)
        self._start = time.monotonic()
        self._bar = tqdm(
            desc="prepare",
            total=total or None,
            unit="B",
            unit_scale=True,
            disable=None,
            mininterval=REFRESH_SECONDS,
        )

    def update(self) -> None:
        text = sum(self.table[1:-1:2])
        if self._bar.total is not None:  # gzip tells sizes modulo 2^32, JSON quotes: an estimate
            text = min(text, self._bar.total)
        documents = sum(self.table[:-1:2])
        rate = documents / (time.monotonic() - self._start)
        self._bar.set_postfix_str(f"{documents} docs, {rate:.1f} docs/s", refresh=False)
        self._bar.update(text - self._bar.n)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.table[-1] = 1
        self._bar.close()


def _write_in_workers(
    job: _Job, plan: Plan, missing: Sequence[int], count: int, progress: _Progress
) -> dict[int, Shard]:
    """Runs units in fresh processes; the first failure stops the others and is raised here."""
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(job, progress.table),
    )
    futures: dict[Future[Shard], int] = {}
    try:
        # The biggest first, so that no worker is left alone with one at the end.
        for k in sorted(missing, key=lambda k: -plan.units[k].text_bytes):
            futures[pool.submit(_write_unit_in_worker, plan.units[k], k)] = k
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, REFRESH_SECONDS, "FIRST_COMPLETED")
            progress.update()
            for future in finished:
                future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed (out of memory?); finished shards are kept: run the same "
            "command again with fewer --workers"
        ) from None
    finally:
        progress.table[-1] = 1
        pool.shutdown(wait=True, cancel_futures=True)
    return {k: future.result() for future, k in futures.items()}


def _start_worker(job: _Job, table: Any) -> None:
    """Sets up a worker process; its parent alone hears Ctrl-C."""
    global _job, _table, _vocabulary
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # One core each: the processes are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _job, _table = job, table
    _vocabulary = load_vocabulary(job.folder / VOCABULARY)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write_unit_in_worker(unit: FileUnit | TaskUnit, number: int) -> Shard:
    return _write_unit(_job, unit, number, _vocabulary, _table, _stop_if_told)


def _stop_if_told() -> None:
    if _table[-1]:
        raise UserError("stopped")
