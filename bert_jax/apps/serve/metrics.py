"""Counts requests, batches and times under the names of text-embeddings-inference (TEI).

Dashboards for TEI work with them. `/metrics` gives them in Prometheus' text format.
"""

import re

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_DURATIONS = [1.5e-5 * 1.5**k for k in range(35)]
"""Upper bounds of the buckets of durations in seconds; those of TEI."""
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
