"""Holds what all requests of a server share: its models, the batcher, the threads, the metrics.

Metrics have the names of text-embeddings-inference (TEI), so that its dashboards work with them.
`/metrics` gives them in Prometheus' text format.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bert_jax.apps.serve.batcher import Batcher
from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.encoder_services import Work
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.served_models import ServedModels
from bert_jax.errors import UserError

_DURATIONS = [1.5e-5 * 1.5**k for k in range(35)]
"""Upper bounds of the buckets of durations in seconds, as in TEI."""
_SIZES = [2.0**k for k in range(16)]


class ServerMetrics:
    """Holds the metrics of one server in a registry of its own.

    Attributes:
      requests: by method: "single", "batch", or "invalid" if the request could not be read.
      successes: by method.
      failures: by TEI's `error_type`.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("te_request_count", "requests for computation", "method")
        self.successes = self._counter("te_request_success", "answered requests", "method")
        self.failures = self._counter("te_request_failure", "failed requests", "err")
        self.inputs = {
            "embed": self._counter("te_embed_count", "texts to embed"),
            "predict": self._counter("te_predict_count", "texts to predict for"),
        }
        self.input_successes = {
            "embed": self._counter("te_embed_success", "embedded texts"),
            "predict": self._counter("te_predict_success", "predicted texts"),
        }
        self.durations = {
            name: self._histogram(f"te_request_{name}", f"seconds: {meaning}", _DURATIONS)
            for name, meaning in {
                "duration": "whole requests",
                "tokenization_duration": "tokenization",
                "queue_duration": "waiting for the device",
                "inference_duration": "computation on the device",
            }.items()
        }
        self.input_length = self._histogram(
            "te_request_input_length", "tokens of a sequence", _SIZES
        )
        self._batch_size = self._histogram("te_batch_next_size", "sequences of a batch", _SIZES)
        self._batch_tokens = self._histogram("te_batch_next_tokens", "tokens of a batch", _SIZES)
        self.queued_tokens = Gauge(
            "te_queue_size", "tokens that wait for the device", registry=self._registry
        )
        self.compilations = Gauge(
            "bert_jax_compiled_programs",
            "programs that XLA has compiled since the start",
            registry=self._registry,
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, bounds: list[float]) -> Histogram:
        return Histogram(name, meaning, registry=self._registry, buckets=bounds)

    def observe_batch(self, rows: int, tokens: int) -> None:
        """Records the size of a batch."""
        self._batch_size.observe(rows)
        self._batch_tokens.observe(tokens)

    def to_text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        text = generate_latest(self._registry)
        # The library adds the suffix _total to counters, which the names of TEI do not have, and a
        # gauge _created to each metric.
        text = re.sub(rb"^.*_created\b.*\n", b"", text, flags=re.MULTILINE)
        return re.sub(rb"\b(te_\w+)_total\b", rb"\1", text)


T = TypeVar("T")


@dataclass
class Timings:
    """Holds what the headers and the metrics of a response need; times in seconds."""

    start: float
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    num_characters: int = 0
    num_tokens: int = 0
    num_truncated: int = 0

    def headers(self) -> dict[str, str]:
        """Returns TEI's headers of a response, times in milliseconds, and the truncated texts."""
        total = time.perf_counter() - self.start
        compute_type = "cpu" if jax.default_backend() == "cpu" else "accelerator"
        headers = {
            "x-compute-type": compute_type,
            "x-compute-characters": str(self.num_characters),
            "x-compute-tokens": str(self.num_tokens),
            "x-compute-time": _milliseconds(total),
            "x-total-time": _milliseconds(total),
            "x-tokenization-time": _milliseconds(self.tokenization),
            "x-queue-time": _milliseconds(self.queue),
            "x-inference-time": _milliseconds(self.inference),
        }
        return headers | (
            {"x-truncated-inputs": str(self.num_truncated)} if self.num_truncated else {}
        )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"


class ServerState:
    """Computes the work of requests.

    Attributes:
      is_stopping: whether SIGTERM was received; then new requests are refused.
    """

    def __init__(self, models: ServedModels, config: ServerConfig):
        """Makes the batcher and the threads; `start` compiles the first programs."""
        self.models, self.config, self.metrics = models, config, ServerMetrics()
        self.batcher = Batcher(
            models.engines(), config.max_queue_tokens, self.metrics.observe_batch, config.warm_up
        )
        self.started_at = int(time.time())
        self.is_stopping = False
        self._num_requests = 0
        # The tokenizers library releases the GIL, so its threads run beside the event loop.
        self._pool = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenizer")
        jax.monitoring.register_event_duration_secs_listener(self._count_compilation)

    def _count_compilation(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        # It grows until all programs are there, and not after that.
        if event == "/jax/core/compile/backend_compile_duration":
            self.metrics.compilations.inc()

    def start(self) -> None:
        """Compiles the first programs on the device thread; `is_ready` is True afterwards."""
        self.batcher.start()

    def stop(self) -> None:
        """Ends all threads."""
        self.batcher.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        jax.monitoring.unregister_event_duration_listener(self._count_compilation)

    @property
    def is_ready(self) -> bool:
        """Returns whether requests are computed."""
        return self.batcher.ready.is_set() and not self.is_stopping

    def programs(self) -> dict[str, int]:
        """Returns how many programs are compiled, and how many there will be."""
        engines = self.models.engines()
        return {
            "compiled": sum(engine.num_compiled for engine in engines),
            "total": sum(len(engine.buckets.shapes()) for engine in engines),
        }

    def require_ready(self) -> None:
        """Raises a RequestError unless requests are computed."""
        if self.is_stopping:
            raise RequestError("unhealthy", "the server is stopping; send the request elsewhere")
        if self.batcher.failure is not None:
            message = "the device thread has failed; the log of the server has details"
            raise RequestError("unhealthy", message)
        if not self.is_ready:
            raise RequestError(
                "unhealthy",
                "the server compiles its first programs; /health answers 200 when it is ready",
                headers={"Retry-After": "5"},
            )

    @contextlib.contextmanager
    def counted_request(self) -> Generator[None]:
        """Counts a request until it is answered.

        Raises:
          RequestError: there are `max_concurrent_requests` already.
        """
        limit = self.config.max_concurrent_requests
        if self._num_requests >= limit:
            message = f"the server has {limit:,} other requests, its maximum; send it again later"
            raise RequestError("overloaded", message, headers={"Retry-After": "1"})
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Runs a function on a thread of the pool; a UserError becomes a RequestError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except UserError as error:
            raise RequestError("validation", str(error), "inputs") from None

    async def compute(self, make_work: Callable[[], Work[T]], timings: Timings) -> T:
        """Tokenizes the texts of a request, computes them, and decodes the outputs.

        Adds to `timings`, because a request may compute several times.

        Raises:
          RequestError: the inputs are invalid, the queue is full, or the computation failed.
        """
        start = time.perf_counter()
        work = await self.in_thread(make_work)
        timings.tokenization += time.perf_counter() - start
        timings.num_characters += work.num_characters
        timings.num_tokens += work.num_tokens
        timings.num_truncated += work.num_truncated
        for sequence in work.sequences:
            self.metrics.input_length.observe(len(sequence))
        job = await self.batcher.compute(work.engine, work.sequences)
        timings.queue += job.queue_seconds
        timings.inference += job.inference_seconds
        return await self.in_thread(lambda: work.decode(job.outputs))
