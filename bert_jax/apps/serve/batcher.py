"""Forms batches of the sequences of all requests, and runs them on one device thread.

There is no timer: the device takes what has arrived while it was busy. A batch starts with the
sequence that has waited longest and takes others of the same padded length in the order of their
arrival. Shorter sequences fill rows that would be padding otherwise.

With the warm-up "common" or "none", the server is ready before all programs are compiled. A second
thread compiles the others, first those that a sequence waits for; meanwhile the device thread
computes what has a program.
"""

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bert_jax.apps.serve.config import WarmUp
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.predict.batches import Arrays, Engine, TokenSequence, next_power_of_two

logger = logging.getLogger(__name__)

_RATE_WEIGHT = 0.2
"""Weight of the newest batch in the average number of tokens a second."""


@dataclass(eq=False)
class Job:
    """Holds the sequences of one request until all of them are computed.

    Attributes:
      outputs: the outputs of each sequence that is done.
      queue_seconds: how long the first sequence waited.
      inference_seconds: the time of all batches with a sequence of this job.
    """

    future: asyncio.Future[None]
    outputs: list[Arrays]
    remaining: int
    submitted: float
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0
    cancelled: bool = False


@dataclass(eq=False)
class _Entry:
    """Holds one waiting sequence: its job, index in the job, order of arrival and padded length."""

    job: Job
    index: int
    order: int
    length: int
    sequence: TokenSequence


@dataclass
class _Queue:
    """Holds the waiting sequences of one engine by padded length, each in order of arrival."""

    engine: Engine
    by_length: dict[int, deque[_Entry]] = field(default_factory=dict[int, deque[_Entry]])

    def lengths(self) -> list[int]:
        """Returns the padded lengths of the sequences that wait."""
        return [length for length, entries in self.by_length.items() if entries]

    def oldest(self, lengths: Iterable[int]) -> _Entry | None:
        """Returns the sequence of these padded lengths that has waited longest."""
        heads = [self.by_length[length][0] for length in lengths]
        return min(heads, key=lambda entry: entry.order, default=None)

    def take_batch(self, first: _Entry) -> list[_Entry]:
        """Removes and returns the sequences of the next batch."""
        entries = self.by_length[first.length]
        max_rows = self.engine.buckets.max_rows_for(first.length)
        batch = [entries.popleft() for _ in range(min(max_rows, len(entries)))]
        # The program computes these rows anyway, so shorter sequences in them cost nothing, unless
        # the batch is computed in parts.
        rows = next_power_of_two(len(batch))
        num_free = rows - len(batch) if self.engine.has_program(rows, first.length) else 0
        for length in sorted(self.by_length, reverse=True):
            shorter = self.by_length[length]
            while num_free and length < first.length and shorter:
                batch.append(shorter.popleft())
                num_free -= 1
        return batch

    def drop(self, job: Job) -> int:
        """Removes the sequences of a job; returns their number of tokens."""
        num_tokens = 0
        for length, entries in self.by_length.items():
            dropped = sum(len(entry.sequence) for entry in entries if entry.job is job)
            if dropped:
                self.by_length[length] = deque(e for e in entries if e.job is not job)
            num_tokens += dropped
        return num_tokens


class Batcher:
    """Queues the sequences of requests and computes them in batches.

    Attributes:
      queued_tokens: number of tokens that wait for the device.
      ready: set while the device thread computes batches.
      failure: the error that ended the device thread, if any.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        max_queue_tokens: int,
        on_batch: Callable[[int, int], object] = lambda rows, tokens: None,
        warm_up: WarmUp = "all",
    ):
        """Makes a batcher without a thread.

        Args:
          warm_up: which programs are compiled before `ready` is set; a second thread compiles the
            others.
          on_batch: called with the number of sequences and of their tokens of each batch.
        """
        self._queues = {engine: _Queue(engine) for engine in engines}
        self._max_queue_tokens, self._on_batch = max_queue_tokens, on_batch
        self._warm_up: WarmUp = warm_up
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._is_stopping, self._is_compiling = False, False
        self._tokens_per_second = 0.0
        self._thread: threading.Thread | None = None
        self.queued_tokens = 0
        self.ready = threading.Event()
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Starts the device thread, which compiles programs and then computes batches."""
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the device thread after the batch that it computes; what still waits is dropped."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=10)

    async def compute(self, engine: Engine, sequences: Sequence[TokenSequence]) -> Job:
        """Computes the outputs of sequences; cancelling this removes what still waits.

        Raises:
          RequestError: the queue is full, or the computation failed.
        """
        loop = asyncio.get_running_loop()
        job = Job(loop.create_future(), [{}] * len(sequences), len(sequences), time.perf_counter())
        if not sequences:
            return job
        self._submit(job, engine, sequences)
        try:
            await job.future
        except asyncio.CancelledError:
            self._cancel(job)
            raise
        return job

    def _submit(self, job: Job, engine: Engine, sequences: Sequence[TokenSequence]) -> None:
        num_tokens = sum(map(len, sequences))
        if num_tokens > self._max_queue_tokens:
            raise RequestError(
                "too_large",
                f"the request has {num_tokens:,} tokens; expected at most "
                f"{self._max_queue_tokens:,}, so send it in several requests",
            )
        with self._changed:
            if self.failure is not None:  # nothing would compute the sequences
                raise RequestError("backend", "the device thread has failed; the log has details")
            if self.queued_tokens + num_tokens > self._max_queue_tokens:
                # The time in which the queue empties at the present rate, so that clients come
                # back when there is room.
                seconds = self.queued_tokens / max(self._tokens_per_second, 1.0)
                raise RequestError(
                    "overloaded",
                    f"{self.queued_tokens:,} tokens are waiting, and the request has "
                    f"{num_tokens:,}; expected at most {self._max_queue_tokens:,} together, so "
                    "send it again later",
                    headers={"Retry-After": str(max(1, min(round(seconds), 60)))},
                )
            self.queued_tokens += num_tokens
            by_length = self._queues[engine].by_length
            for index, sequence in enumerate(sequences):
                length = engine.buckets.length_for(len(sequence))
                entry = _Entry(job, index, next(self._order), length, sequence)
                by_length.setdefault(length, deque()).append(entry)
            self._changed.notify()

    def _cancel(self, job: Job) -> None:
        with self._changed:
            job.cancelled = True
            self.queued_tokens -= sum(queue.drop(job) for queue in self._queues.values())

    def _take_batch(self) -> tuple[Engine, list[_Entry]] | None:
        """Waits for sequences and returns a batch; None when the batcher stops."""
        with self._changed:
            while not self._is_stopping:
                oldest = [
                    (queue.oldest(self._computable_lengths(queue)), queue)
                    for queue in self._queues.values()
                ]
                waiting = [(entry, queue) for entry, queue in oldest if entry is not None]
                if waiting:
                    entry, queue = min(waiting, key=lambda pair: pair[0].order)
                    batch = queue.take_batch(entry)
                    self.queued_tokens -= sum(len(entry.sequence) for entry in batch)
                    return queue.engine, batch
                self._changed.wait()
        return None

    def _run(self) -> None:
        try:
            for engine in self._queues if self._warm_up != "none" else ():
                shapes = [(1, engine.buckets.common_length)] if self._warm_up == "common" else None
                engine.compile_all(lambda: self._is_stopping, shapes=shapes)
            if self._is_stopping:
                return
            self._is_compiling = self._warm_up != "all"
            self.ready.set()
            if self._is_compiling:
                threading.Thread(target=self._compile_others, name="compiler", daemon=True).start()
            while (taken := self._take_batch()) is not None:
                self._compute_batch(*taken)
        except BaseException as error:  # shown by the main thread
            self.failure = error
            if self.ready.is_set():
                logger.exception("the device thread failed; the server must be started again")
            self.ready.clear()
            self._fail_all()

    def _computable_lengths(self, queue: _Queue) -> list[int]:
        """Returns the padded lengths that wait and that the device thread computes now."""
        at_once = queue.engine.computes_at_once
        return [n for n in queue.lengths() if not self._is_compiling or at_once(n)]

    def _compile_others(self) -> None:
        """Compiles all programs while the device thread computes batches."""
        start = time.perf_counter()
        # Single sequences first: their programs compute the batches that have none yet.
        programs = [(engine, (1, n)) for engine in self._queues for n in engine.buckets.lengths()]
        programs += [
            (engine, (rows, length))
            for engine in self._queues
            for rows, length in engine.buckets.shapes()
            if rows > 1
        ]
        try:
            while programs and not self._is_stopping:
                self._compile_in_background(*programs.pop(self._next_program(programs)))
                with self._changed:
                    self._changed.notify()
        finally:
            with self._changed:
                self._is_compiling = False
                self._changed.notify()
        if not self._is_stopping:
            logger.info("compiled the other programs in %.1f s", time.perf_counter() - start)

    def _compile_in_background(self, engine: Engine, shape: tuple[int, int]) -> None:
        """Compiles a program; if that is impossible, the server goes on without it."""
        try:
            engine.compile(shape)
        except Exception:
            rows, length = shape
            logger.exception(
                "the program of %s for %d sequences of %d tokens could not be compiled; %s",
                *(engine.name, rows, length),
                "such batches are computed in parts; a smaller --max-batch-tokens avoids them"
                if rows > 1
                else "requests for it fail; a smaller --max-length refuses them",
            )

    def _next_program(self, programs: Sequence[tuple[Engine, tuple[int, int]]]) -> int:
        """Returns the number of the first program that a sequence waits for, or 0."""
        with self._changed:
            wanted = {
                (engine, length)
                for engine, queue in self._queues.items()
                for length in queue.lengths()
                if not engine.computes_at_once(length)
            }
        found = (n for n, (engine, shape) in enumerate(programs) if (engine, shape[1]) in wanted)
        return next(found, 0)

    def _compute_batch(self, engine: Engine, batch: Sequence[_Entry]) -> None:
        """Computes a batch; if that fails, its requests fail, and the next is computed as usual."""
        start = time.perf_counter()
        for job in {entry.job for entry in batch if not entry.job.queue_seconds}:
            job.queue_seconds = start - job.submitted
        try:
            outputs = engine.run([entry.sequence for entry in batch])
            self._deliver(batch, outputs, time.perf_counter() - start)
        except BaseException as error:
            logger.exception("a batch of %d sequences failed in %s", len(batch), engine.name)
            self._fail({entry.job for entry in batch})
            # Only an error that is no `Exception`, such as SystemExit, ends the thread.
            if not isinstance(error, Exception):
                raise

    def _deliver(self, batch: Sequence[_Entry], outputs: Sequence[Arrays], seconds: float) -> None:
        num_tokens = sum(len(entry.sequence) for entry in batch)
        rate = num_tokens / max(seconds, 1e-6)
        previous = self._tokens_per_second or rate
        self._tokens_per_second = previous + _RATE_WEIGHT * (rate - previous)
        self._on_batch(len(batch), num_tokens)
        for entry, output in zip(batch, outputs, strict=True):
            entry.job.outputs[entry.index] = output
            entry.job.remaining -= 1
        for job in {entry.job for entry in batch}:
            job.inference_seconds += seconds
            if not job.remaining and not job.cancelled:
                _call_in_loop(job, _set_done)

    def _fail(self, jobs: set[Job]) -> None:
        for job in jobs:
            self._cancel(job)
            _call_in_loop(job, _set_failed)

    def _fail_all(self) -> None:
        """Fails all requests that wait."""
        with self._changed:
            waiting = [entries for q in self._queues.values() for entries in q.by_length.values()]
            jobs = {entry.job for entries in waiting for entry in entries}
        self._fail(jobs)


def _call_in_loop(job: Job, function: Callable[[asyncio.Future[None]], None]) -> None:
    # The loop of a client that does not wait any more may be closed.
    with contextlib.suppress(RuntimeError):
        job.future.get_loop().call_soon_threadsafe(function, job.future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _set_failed(future: asyncio.Future[None]) -> None:
    if not future.done():
        message = "the model failed on a batch with this request; the log of the server has details"
        future.set_exception(RequestError("backend", message))
