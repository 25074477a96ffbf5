"""Sends hostile, concurrent and abandoned requests.

Covers bert_jax/apps/serve/app.py and batcher.py.
"""

import asyncio
import dataclasses
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jax
import numpy as np
import pytest

from bert_jax.apps.serve import encoder_services
from bert_jax.apps.serve.app import create_app
from bert_jax.apps.serve.batcher import Batcher
from bert_jax.apps.serve.cli import KEY_VARIABLE, _read_key
from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.run import bind, load_models
from bert_jax.apps.serve.served_models import ServedModels
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.predict.batches import Arrays, Backend, Buckets, Engine, TokenSequence
from tests.helpers.server import RunningServer, running_server

COMPILATION = "/jax/core/compile/backend_compile_duration"


@dataclass
class Gate:
    """Stops the device thread in a batch of the encoder until `open` is set."""

    compute: Backend
    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def compile(self, batch: Arrays) -> None:
        self.compute.compile(batch)

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        self.reached.set()
        assert self.open.wait(30)
        return self.compute(batch)


@pytest.fixture
def gate(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    engine = server.state.models.by_name["encoder"].engines[0]
    gate = Gate(engine.backend)
    monkeypatch.setattr(engine, "backend", gate)
    yield gate
    gate.open.set()
    wait_until(lambda: server.state.batcher.queued_tokens == 0)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def counter(server: RunningServer, name: str) -> float:
    """Returns the sum of a metric over its labels."""
    lines = server.client.get("/metrics").text.splitlines()
    values = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name} ", f"{name}{{"))
    ]
    return sum(values)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/embed", b"{", 422),
        ("/embed", b"", 422),
        ("/embed", b"\xff\xfe", 422),
        ("/embed", b'{"inputs": NaN}', 422),
        ("/embed", b'{"inputs": "\\ud800"}', 422),
        ("/embed", b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", 422),
        ("/embed", b'{"inputs": []}', 400),
        ("/embed", b'{"inputs": ""}', 400),
        ("/embed", b'{"inputs": ["a", " "]}', 400),
        ("/embed", b'{"inputs": ["a", 3]}', 422),
        ("/embed", b'{"inputs": [1, 99999]}', 422),
        ("/embed", b'{"inputs": [-1]}', 422),
        ("/embed", b'{"inputs": [123456789012345678901234567890]}', 422),
        ("/embed", b'{"inputs": "a", "dimensions": 0}', 422),
        ("/embed", b'{"inputs": "a", "prompt_name": "query"}', 422),
        ("/embed", json.dumps({"inputs": ["a"] * 101}).encode(), 422),
        ("/predict", b'{"inputs": ["a", "b", "c"]}', 422),
        ("/predict", b'{"inputs": [["a"], "b"]}', 422),
        ("/predict", b'{"inputs": [["a", ""]]}', 400),
        ("/rerank", b'{"query": "a", "texts": []}', 400),
        ("/rerank", b'{"query": "a"}', 422),
        ("/rerank", b'{"query": "a", "texts": ["b"], "top_n": 0}', 422),
        ("/answer", b'{"inputs": {"question": "a", "context": " "}}', 400),
        ("/fill_mask", b'{"inputs": "no mask"}', 422),
        ("/fill_mask", b'{"inputs": "[MASK]", "top_k": 0}', 422),
        ("/tokenize", b'{"inputs": "a", "prompt_name": "query"}', 422),
        ("/tokenize", b'{"inputs": "a", "prompt_name": "query", "model": "names"}', 422),
        ("/decode", b'{"ids": [1, 99999]}', 422),
        ("/decode", b'{"ids": [[1], 2]}', 422),
        ("/decode", b'{"ids": []}', 400),
        ("/v1/embeddings", b'{"input": "a"}', 400),
        ("/v1/embeddings", b'{"input": "", "model": "encoder"}', 400),
        ("/v1/embeddings", b'{"input": "a", "model": "x"}', 404),
        ("/nothing", b"{}", 404),
        ("/health", b"{}", 405),
    ],
)
def test_invalid_request_is_refused_in_words(server, path, body, status):
    response = server.client.post(path, content=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    if path.startswith("/v1"):
        assert error["message"] and error["type"] == "invalid_request_error"
    else:
        assert error and response.json()["error_type"]


def test_text_of_a_million_characters_is_cut_and_a_larger_body_refused(server):
    answer = server.post("/embed", inputs="the sea " * 125_000)
    assert answer.status_code == 200 and answer.headers["x-truncated-inputs"] == "1"
    # A context is read in windows, which would be more than the queue holds.
    question = {"question": "the sea", "context": "the old man " * 2_000}
    assert server.post("/answer", inputs=question).status_code == 413
    assert server.post("/embed", inputs="a" * 3_000_000).status_code == 413
    chunks = (b"a" * 100_000 for _ in range(30))  # without a Content-Length
    assert server.client.post("/embed", content=chunks).status_code == 413


def test_requests_with_long_answers_are_refused(server, monkeypatch):
    monkeypatch.setattr(encoder_services, "MAX_CANDIDATES", 11)
    assert server.post("/fill_mask", inputs=["[MASK]"] * 2, top_k=5).status_code == 200
    refused = server.post("/fill_mask", inputs=["[MASK]"] * 3, top_k=5)
    assert refused.status_code == 422 and "3 masks" in refused.json()["error"]
    monkeypatch.setattr(encoder_services, "MAX_TOKEN_EMBEDDINGS", 8)
    assert server.post("/embed_all", inputs=["the sea"] * 2).status_code == 200
    refused = server.post("/embed_all", inputs=["the sea"] * 3)
    assert refused.status_code == 413 and "has 12 tokens" in refused.json()["error"]


def test_slow_sender_gets_a_timeout(server, monkeypatch):
    config = dataclasses.replace(server.state.config, read_seconds=0.1)
    monkeypatch.setattr(server.state, "config", config)
    with socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port)) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_key_is_required_on_all_routes_that_run_or_describe_models(server, monkeypatch):
    config = dataclasses.replace(server.state.config, api_key="secret")
    monkeypatch.setattr(server.state, "config", config)
    app = create_app(server.state)

    async def statuses(key: bytes | None, scheme: bytes = b"Bearer") -> list[int]:
        headers = [] if key is None else [(b"Authorization", scheme + b" " + key)]
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://a") as client:
            body = {"input": "a", "model": "encoder"}
            responses = [
                await client.post("/v1/embeddings", json=body, headers=headers),
                await client.post("/decode", json={"ids": [5]}, headers=headers),
                await client.get("/info", headers=headers),
                await client.get("/v1/models", headers=headers),
                await client.get("/health", headers=headers),
                await client.get("/metrics", headers=headers),
            ]
            return [response.status_code for response in responses]

    assert asyncio.run(statuses(None)) == [401, 401, 401, 401, 200, 200]
    assert asyncio.run(statuses(b"wrong"))[:4] == [401] * 4
    assert asyncio.run(statuses(b"\xff"))[:4] == [401] * 4
    assert asyncio.run(statuses(b"secret")) == [200] * 6
    assert asyncio.run(statuses(b"secret", b"bearer")) == [200] * 6
    assert asyncio.run(statuses(b"secret", b"Basic"))[:4] == [401] * 4
    monkeypatch.setenv(KEY_VARIABLE, "secret\n")
    assert _read_key(None) == "secret"


def test_errors_of_get_routes_and_the_main_route_of_a_reranker(server, monkeypatch):
    response = server.client.post("/health")
    assert response.status_code == 405 and "GET" in response.headers["allow"]
    monkeypatch.setattr(
        server.state, "models", ServedModels([server.state.models.by_name["relevance"]])
    )
    app = create_app(server.state)

    def fail():
        raise RuntimeError("no metrics")

    async def send() -> tuple[httpx2.Response, httpx2.Response]:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://a") as client:
            body = {"query": "the sea", "texts": ["a net", "the man"]}
            return await client.post("/", json=body), await client.get("/metrics")

    monkeypatch.setattr(server.state.metrics, "to_text", fail)
    ranked, failed = asyncio.run(send())
    assert ranked.status_code == 200 and len(ranked.json()) == 2
    assert failed.status_code == 500 and failed.json()["error_type"] == "Backend"


def test_full_queue_answers_429_at_once_with_the_time_to_wait(server, gate):
    texts = ["the old man mends a net by the sea and sings ."] * 80
    with ThreadPoolExecutor(8) as pool:
        accepted = [pool.submit(server.post, "/embed", inputs=texts) for _ in range(3)]
        wait_until(lambda: server.state.batcher.queued_tokens > 3000)
        start = time.perf_counter()
        refused = server.post("/embed", inputs=texts)
        seconds = time.perf_counter() - start
        assert refused.status_code == 429 and refused.json()["error_type"] == "Overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert seconds < 1  # on a busy machine; 4 ms on an idle one
        gate.open.set()
        assert [each.result().status_code for each in accepted] == [200] * 3


def test_sequences_of_a_client_that_has_gone_are_not_computed(server, gate):
    computed = counter(server, "te_batch_next_size_sum")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/embed", inputs="a net")
        assert gate.reached.wait(20)
        body = json.dumps({"inputs": ["the sea"] * 50}).encode()
        with socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port)) as connection:
            head = f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: server.state.batcher.queued_tokens == 200)
        wait_until(lambda: server.state.batcher.queued_tokens == 0)
        gate.open.set()
        assert first.result().status_code == 200
    assert server.post("/embed", inputs="a net").status_code == 200
    assert counter(server, "te_batch_next_size_sum") - computed == 2


def test_more_requests_than_the_maximum_get_429(server, gate, monkeypatch):
    config = dataclasses.replace(server.state.config, max_concurrent_requests=1)
    monkeypatch.setattr(server.state, "config", config)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/embed", inputs="a net")
        assert gate.reached.wait(20)
        refused = server.post("/tokenize", inputs="a net")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        gate.open.set()
        assert first.result().status_code == 200
    assert server.post("/tokenize", inputs="a net").status_code == 200


def test_failing_batch_fails_its_requests_and_the_next_is_answered(server, monkeypatch, caplog):
    engine = server.state.models.by_name["reviews"].engines[0]
    expected = server.post("/predict", inputs="a net").json()

    def fail(batch):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "backend", fail)
        failed = server.post("/predict", inputs=[["a"], ["b"], ["c"]])
    assert failed.status_code == 424 and failed.json()["error_type"] == "Backend"
    assert "out of memory" in caplog.text and "out of memory" not in failed.text
    assert server.post("/predict", inputs="a net").json() == expected
    # An error while outputs are delivered does not end the device thread either.
    with monkeypatch.context() as patched:
        patched.setattr(server.state.metrics, "_batch_size", None)
        assert server.post("/predict", inputs="a net").status_code == 424
    assert server.post("/predict", inputs="a net").json() == expected


def test_server_is_not_ready_after_its_device_thread_failed(server, monkeypatch, caplog):
    models = [server.state.models.by_name["encoder"]]
    with running_server(models, server.state.config) as failing:

        def fail():
            raise RuntimeError("broken queue")

        batcher = failing.state.batcher
        monkeypatch.setattr(batcher, "_take_batch", fail)
        # The thread calls the method again after this batch.
        assert failing.post("/embed", inputs="a net").status_code == 200
        wait_until(lambda: failing.client.get("/health").status_code == 503)
        assert "broken queue" in caplog.text
        assert "has failed" in failing.post("/embed", inputs="a net").json()["error"]


def test_compilation_stops_before_the_next_shape():
    compiled: list[tuple[int, int]] = []

    class Recording:
        def compile(self, batch):
            compiled.append(batch["input_ids"].shape)

        def __call__(self, batch):
            return {}

    engine = Engine("shapes", Recording(), Buckets(64, 256, 8), pad_id=0)
    engine.compile_all(lambda: len(compiled) == 2)
    assert compiled == engine.buckets.shapes()[:2]


class Sums:
    """Computes the sum of the ids of each row, and records what is compiled and computed."""

    def __init__(self, gate: threading.Event | None = None):
        self.compiled: list[tuple[int, int]] = []
        self.computed: list[tuple[int, int]] = []
        self.gate = gate

    def compile(self, batch):
        if self.gate is not None and len(self.compiled) == 1:
            self.gate.wait(30)
        self.compiled.append(batch["input_ids"].shape)

    def __call__(self, batch):
        assert batch["input_ids"].shape in self.compiled
        self.computed.append(batch["input_ids"].shape)
        return {"sum": (batch["input_ids"] * batch["attention_mask"]).sum(axis=1)}


def _ones(length: int) -> TokenSequence:
    ones = np.ones(length, np.int32)
    return TokenSequence(input_ids=ones, token_type_ids=ones, outputs=("sum",))


def test_a_batch_without_a_program_is_computed_in_parts():
    backend = Sums()
    engine = Engine("sums", backend, Buckets(64, 256, 8), pad_id=0)
    engine.compile_all(shapes=[(4, 64), (1, 16), (1, 32), (1, 64)])
    assert [int(each["sum"]) for each in engine.run([_ones(n) for n in (3, 7, 9)])] == [3, 7, 9]
    assert backend.computed == [(1, 16)] * 3
    engine.compile_all(shapes=[(2, 16)])
    assert [int(each["sum"]) for each in engine.run([_ones(n) for n in (3, 7, 9)])] == [3, 7, 9]
    assert backend.computed[3:] == [(2, 16), (2, 16)]
    # Without any program of the length, that for one sequence is compiled first.
    cold = Engine("cold", other := Sums(), Buckets(64, 256, 8), pad_id=0)
    assert [int(each["sum"]) for each in cold.run([_ones(20)] * 3)] == [20] * 3
    assert other.compiled == [(1, 32)] and other.computed == [(1, 32)] * 3
    assert (engine.num_compiled, cold.num_compiled) == (5, 1)


def test_the_common_length_computes_short_texts_at_first():
    backend = Sums()
    engine = Engine("sums", backend, Buckets(256, 512, 8), pad_id=0)
    assert engine.buckets.common_length == 128
    engine.compile_all(shapes=[(1, 128)])
    assert [int(each["sum"]) for each in engine.run([_ones(3), _ones(40)])] == [3, 40]
    assert backend.computed == [(1, 128)] * 2
    # Longer texts do not fit, and a program of 256 tokens is too slow for short ones.
    engine.run([_ones(200)])
    engine.run([_ones(3)])
    assert backend.computed[2:] == [(1, 256), (1, 128)]
    engine.compile_all(shapes=[(1, 16)])
    engine.run([_ones(3)])
    assert backend.computed[-1] == (1, 16)


def test_requests_are_answered_while_other_programs_are_compiled():
    gate = threading.Event()
    engine = Engine("sums", backend := Sums(gate), Buckets(64, 256, 8), pad_id=0)
    batcher = Batcher([engine], 10_000, warm_up="common")
    batcher.start()
    assert batcher.ready.wait(30)
    try:
        job = asyncio.run(batcher.compute(engine, [_ones(n) for n in (3, 40, 60)]))
        assert [int(output["sum"]) for output in job.outputs] == [3, 40, 60]
        assert not gate.is_set() and engine.num_compiled == 1
    finally:
        gate.set()
    wait_until(lambda: engine.num_compiled == len(engine.buckets.shapes()))
    assert sorted(backend.compiled) == sorted(engine.buckets.shapes())  # each once
    batcher.stop()


def test_a_text_that_waits_for_its_program_holds_up_no_other():
    gate = threading.Event()
    engine = Engine("sums", backend := Sums(gate), Buckets(256, 512, 8), pad_id=0)
    batcher = Batcher([engine], 10_000, warm_up="common")
    batcher.start()

    async def run() -> list[int]:
        long = asyncio.create_task(batcher.compute(engine, [_ones(200)]))
        await asyncio.sleep(0)  # it is in the queue before the others
        short = await batcher.compute(engine, [_ones(3)] * 3)
        assert not long.done()
        gate.set()
        return [int(output["sum"]) for job in (short, await long) for output in job.outputs]

    try:
        assert batcher.ready.wait(30)
        assert asyncio.run(run()) == [3, 3, 3, 200]
    finally:
        gate.set()
        batcher.stop()
    # Its program is compiled next, or after the one that was under way.
    assert (1, 256) in backend.compiled[:3]


def test_programs_that_cannot_be_compiled_leave_the_others(caplog):
    class Limited(Sums):
        def compile(self, batch):
            if batch["input_ids"].size > 128:
                raise MemoryError("out of memory")
            super().compile(batch)

    engine = Engine("sums", backend := Limited(), Buckets(64, 256, 8), pad_id=0)
    batcher = Batcher([engine], 10_000, warm_up="common")
    with caplog.at_level("INFO"):
        batcher.start()
        wait_until(lambda: "compiled the other programs" in caplog.text)
    assert sorted(backend.compiled) == sorted(
        (rows, length) for rows, length in engine.buckets.shapes() if rows * length <= 128
    )
    job = asyncio.run(batcher.compute(engine, [_ones(60)] * 4))
    batcher.stop()
    assert [int(output["sum"]) for output in job.outputs] == [60] * 4
    assert backend.computed[-2:] == [(2, 64)] * 2
    assert "of sums for 4 sequences of 64 tokens could not be compiled; such batches" in caplog.text


def test_length_without_any_program_fails_at_once_and_others_are_answered():
    class Short(Sums):
        def compile(self, batch):
            self.compiled.append(batch["input_ids"].shape)
            if batch["input_ids"].shape[1] == 64:
                raise MemoryError("out of memory")

    engine = Engine("sums", backend := Short(), Buckets(64, 256, 8), pad_id=0)
    batcher = Batcher([engine], 10_000, warm_up="none")
    batcher.start()
    wait_until(lambda: len(backend.compiled) == len(engine.buckets.shapes()))

    async def run() -> int:
        with pytest.raises(RequestError, match="the model failed on a batch"):
            await batcher.compute(engine, [_ones(60)] * 4)
        return int((await batcher.compute(engine, [_ones(9)])).outputs[0]["sum"])

    assert asyncio.run(run()) == 9
    batcher.stop()
    assert len(backend.compiled) == len(engine.buckets.shapes())  # each was tried once


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_concurrent_requests_get_their_own_answers_without_compiling(server, count):
    rng = random.Random(0)
    words = ("the", "old", "man", "sea", "net", "by", "and", "sings")
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 17))) for _ in range(40)]
    vectors = np.array(server.post("/embed", inputs=texts).json())
    labels = server.post("/predict", inputs=[[text] for text in texts]).json()
    expected_scores = [{each["label"]: each["score"] for each in scores} for scores in labels]
    compilations: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        compilations.append(event)

    async def send_all() -> None:
        limits = httpx2.Limits(max_connections=50)
        async with httpx2.AsyncClient(base_url=server.url, limits=limits, timeout=60) as client:

            async def client_loop(number: int) -> None:
                for index in range(number, count, 50):
                    chosen = [(index * 7 + k) % len(texts) for k in range(1 + index % 5)]
                    if index % 3:
                        body = {"inputs": [texts[i] for i in chosen]}
                        found = (await client.post("/embed", json=body)).json()
                        np.testing.assert_allclose(found, vectors[chosen], atol=1e-6)
                        continue
                    body = {"inputs": [[texts[i]] for i in chosen]}
                    answers = (await client.post("/predict", json=body)).json()
                    for scores, i in zip(answers, chosen, strict=True):
                        by_label = {each["label"]: each["score"] for each in scores}
                        assert by_label == pytest.approx(expected_scores[i], abs=1e-6)

            await asyncio.gather(*(client_loop(number) for number in range(50)))

    before = counter(server, "te_request_count")
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        asyncio.run(send_all())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert COMPILATION not in compilations
    assert counter(server, "te_request_count") - before == count
    totals = [counter(server, f"te_request_{name}") for name in ("success", "failure", "count")]
    assert totals[0] + totals[1] == totals[2]


def test_server_refuses_until_compiled_and_answers_accepted_after_a_stop(server, gate):
    models = [server.state.models.by_name["encoder"]]
    with running_server(models, server.state.config, wait=False) as starting:
        for path in ("/health", "/ping", "/"):
            assert starting.client.get(path).status_code == 503
        refused = starting.post("/embed", inputs="a net")
        assert refused.status_code == 503 and refused.json()["error_type"] == "Unhealthy"
        assert refused.headers["retry-after"] == "5"
        starting.state.start()  # the programs are compiled, since the other server has them
        wait_until(lambda: starting.client.get("/health").status_code == 200)
        programs = starting.client.get("/health").json()["programs"]
        assert programs["compiled"] == programs["total"] > 1
        with ThreadPoolExecutor(10) as pool:
            answers = [pool.submit(starting.post, "/embed", inputs=["the sea"]) for _ in range(10)]
            wait_until(lambda: starting.state.batcher.queued_tokens >= 8 * 4)
            starting.server.should_exit = True
            wait_until(lambda: starting.state.is_stopping)
            gate.open.set()
            assert [answer.result().status_code for answer in answers] == [200] * 10
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(starting.url)


@pytest.mark.slow
def test_sigterm_under_load_answers_all_accepted_requests_and_exits_with_0(models, tmp_path):
    export(models["encoder"], tmp_path / "exported")
    command = [sys.executable, "-m", "bert_jax", "serve", str(tmp_path / "exported")]
    command += ["--port", "0", "--max-batch-tokens", "20"]
    environment = {**os.environ, "BERT_JAX_COMPILATION_CACHE": str(tmp_path / "compiled")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("ready: "))
        url = ready.split()[1]
        with ThreadPoolExecutor(1) as logs, ThreadPoolExecutor(20) as pool:
            logs.submit(process.stderr.read)  # a full pipe would stop the server
            body = {"inputs": ["the sea"] * 60}
            answers = [
                pool.submit(httpx2.post, f"{url}/embed", json=body, timeout=60) for _ in range(20)
            ]
            accepted = "te_request_input_length_count 1200.0"
            wait_until(lambda: accepted in httpx2.get(f"{url}/metrics").text)
            assert not all(answer.done() for answer in answers)
            process.terminate()
            assert [answer.result().status_code for answer in answers] == [200] * 20
            assert process.wait(20) == 0


def test_batches_take_shorter_sequences_into_rows_that_would_be_padding():
    shapes: list[tuple[int, int]] = []

    class Recording:
        def compile(self, batch):
            pass

        def __call__(self, batch):
            time.sleep(0.02)  # the others arrive meanwhile
            shapes.append(batch["input_ids"].shape)
            return {"sum": (batch["input_ids"] * batch["attention_mask"]).sum(axis=1)}

    engine = Engine("sums", Recording(), Buckets(64, 256, 8), pad_id=9)
    batcher = Batcher([engine], 10_000)
    batcher.start()

    def sequence(length: int) -> TokenSequence:
        ones = np.ones(length, np.int32)
        return TokenSequence(input_ids=ones, token_type_ids=ones, outputs=("sum",))

    async def run(*lengths: int) -> list[int]:
        job = await batcher.compute(engine, [sequence(length) for length in lengths])
        return [int(output["sum"]) for output in job.outputs]

    async def run_all() -> list[list[int]]:
        first = asyncio.create_task(run(16))
        await asyncio.sleep(0.01)
        rest = [run(60, 5, 61, 62), run(3, 4, 30)]
        return [await first, *await asyncio.gather(*rest)]

    results = asyncio.run(run_all())
    batcher.stop()
    assert results == [[16], [60, 5, 61, 62], [3, 4, 30]]
    # The fourth row of the long ones takes the longest of the others, of 30 tokens.
    assert shapes == [(1, 16), (4, 64), (4, 16)]


@pytest.mark.parametrize(("length", "tokens", "rows"), [(20, 40, 64), (512, 4096, 64), (9, 8, 1)])
def test_every_sequence_and_batch_has_a_compiled_shape(length, tokens, rows):
    buckets = Buckets(length, tokens, rows)
    shapes = set(buckets.shapes())
    for number in range(1, length + 1):
        padded = buckets.length_for(number)
        assert number <= padded <= length
        for count in range(1, buckets.max_rows_for(padded) + 1):
            assert (1 << (count - 1).bit_length(), padded) in shapes
    assert all(r * n <= tokens or r == 1 for r, n in shapes)


def test_port_in_use_and_wrong_settings_are_explained(tmp_path):
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        first.listen()
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is in use by another"):
            bind("127.0.0.1", port)
    with pytest.raises(UserError, match="expected an address of this machine"):
        bind("203.0.113.1", 0)
    with pytest.raises(ConfigError, match="max_queue_tokens is 10; expected at least max_batch"):
        ServerConfig(max_queue_tokens=10)
    for length in (-5, 0, 3):
        with pytest.raises(ConfigError, match=f"max_length is {length}; expected at least 4"):
            ServerConfig(max_length=length)
    with pytest.raises(ConfigError, match="two models are called 'a'; name them apart"):
        load_models(["a", "x/a"], [], ServerConfig())
    with pytest.raises(ConfigError, match="--adapter r=f: expected NAME=FOLDER, or MODEL:NAME="):
        load_models(["a", "b"], ["r=f"], ServerConfig())


def test_request_errors_have_the_status_and_the_shape_of_each_style():
    error = RequestError("validation", "wrong", "input")
    assert (error.status("tei"), error.status("openai")) == (422, 400)
    assert error.to_json("tei") == {"error": "wrong", "error_type": "Validation"}
    assert error.to_json("openai")["error"]["param"] == "input"
