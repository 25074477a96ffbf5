"""Measures tokens per second of a whole pretraining step, and of Hugging Face PyTorch in turns.

    python bench/pretrain_step.py --output bench/results            # all rows, about 15 minutes
    python bench/pretrain_step.py --sizes tiny --lengths 128        # one row per dtype
    python bench/pretrain_step.py --sizes albert electra modernbert --dtypes float32

A step is a forward and backward pass, clipping to norm 1, and an AdamW update, with dropout, on the
same model sizes, batches, and masked positions for all implementations:

    bert_jax     the step as `bert-jax pretrain` compiles it
    plain-jax    `examples/bert_in_one_page.py`: BERT as one would first write it in JAX
    hf-eager     transformers' BertForPreTraining as users call it, with labels (-100 at positions
                 that are not predicted), SDPA attention, and fused AdamW
    hf-compile   the same under torch.compile
    hf-gathered  the same with the masked-LM head applied, by hand, to the masked positions only, as
                 in bert_jax

bfloat16 is torch.autocast in PyTorch and ComputeConfig(dtype="bfloat16") in bert_jax; both have
float32 parameters. The other families are as in `pretrain_step_families.py`, with the same
batches, without plain-jax and hf-compile. Each implementation runs in its own process. They take
turns, so that load on the machine affects all of them. If they are pinned to one core (`taskset`),
their seconds are CPU seconds. It needs `make install-parity`.
"""

import argparse
import dataclasses
import functools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pretrain_step_families import FAMILIES
from pretrain_step_implementations import IMPLEMENTATIONS, BenchmarkCase, make_step

SIZES, LENGTHS, DTYPES = ("tiny", "small", "base"), (128, 512), ("float32", "bfloat16")
OTHER_FAMILIES_IMPLEMENTATIONS = ("bert_jax", "hf-eager", "hf-gathered")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the requested rows, prints the table, and writes it to --output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=(*SIZES, *FAMILIES), default=SIZES)
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument(
        "--implementations", nargs="+", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="turns of each implementation (default: 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="duration of each turn (default: 2)"
    )
    parser.add_argument("--output", type=Path, help="folder of pretrain_step.{md,json}")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        implementation, size, length, dtype = args.worker
        return run_worker(implementation, BenchmarkCase(size, int(length), dtype))
    results = load_results(args.output)
    for dtype in args.dtypes:
        for size in args.sizes:
            for length in args.lengths:
                case = BenchmarkCase(size, length, dtype)
                if any(dataclasses.asdict(case).items() <= result.items() for result in results):
                    continue
                names = [
                    name
                    for name in args.implementations
                    if size not in FAMILIES or name in OTHER_FAMILIES_IMPLEMENTATIONS
                ]
                measured = measure(case, names, args.rounds, args.seconds)
                results.append({**measured, "environment": environment()})
                print(markdown_row(measured), file=sys.stderr, flush=True)
                write_results(args.output, results)
    print(markdown_table(results))
    return 0


def load_results(folder: Path | None) -> list[dict[str, Any]]:
    """Reads the rows of an earlier, interrupted call, which are not measured again."""
    file = folder / "pretrain_step.json" if folder else None
    return json.loads(file.read_text()) if file and file.exists() else []


def write_results(folder: Path | None, results: list[dict[str, Any]]) -> None:
    """Writes the measured rows as a table, and as JSON with the time of every step."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pretrain_step.md").write_text(markdown_table(results))
        (folder / "pretrain_step.json").write_text(json.dumps(results, indent=1) + "\n")


def measure(
    case: BenchmarkCase, implementations: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Returns the milliseconds of each step by implementation, in turns after a warm-up turn."""
    workers = {name: start_worker(name, case) for name in implementations}
    times: dict[str, list[float]] = {name: [] for name in implementations}
    try:
        for turn in range(rounds + 1):
            for name, worker in workers.items():
                assert worker.stdin and worker.stdout
                worker.stdin.write(f"{seconds if turn else 0.0}\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                if not line:
                    raise SystemExit(f"{name} failed on {case}; see its message above")
                if turn:
                    times[name] += json.loads(line)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return {**dataclasses.asdict(case), "batch_size": case.batch_size, "milliseconds": times}


def start_worker(implementation: str, case: BenchmarkCase) -> "subprocess.Popen[str]":
    """Starts an implementation in a process of its own."""
    worker = [implementation, case.size, str(case.length), case.dtype]
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", *worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # All implementations get the setting that `bert-jax pretrain` applies to itself.
        env={
            **os.environ,
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            **(onednn_settings() if implementation.startswith("hf") else {}),
        },
    )


@functools.cache
def onednn_settings() -> dict[str, str]:
    """Returns the environment variables that PyTorch's bfloat16 needs; usually none.

    oneDNN reads the shape of AMX tiles from CPUID. Some virtual machines offer AMX but hide that
    CPUID leaf, and oneDNN crashes with an illegal instruction unless AMX is disabled.
    """
    probe = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    probe_result = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    return (
        {"ONEDNN_MAX_CPU_ISA": "AVX10_1_512"} if probe_result.returncode == -signal.SIGILL else {}
    )


def run_worker(implementation: str, case: BenchmarkCase) -> int:
    """Reads durations from standard input and runs steps for each, printing their milliseconds."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps messages of libraries out of the results
    # CPU time of one thread depends less on the load of the machine than elapsed time.
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    step = make_step(implementation, case)
    step()
    step()
    for line in sys.stdin:
        step()  # not timed: after the other processes' turns, caches are cold and pages are lost
        end, step_times = time.perf_counter() + float(line), []
        while len(step_times) < 2 or time.perf_counter() < end:
            start_time = clock()
            step()
            step_times.append(1e3 * (clock() - start_time))
        output.write(json.dumps(step_times) + "\n")
        output.flush()
    return 0


def environment() -> dict[str, Any]:
    """Returns the hardware and package versions that the numbers depend on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    packages = ("jax", "flax", "optax", "torch", "transformers")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        **onednn_settings(),
        **{name: version(name) for name in packages},
    }


def tokens_per_second(result: dict[str, Any]) -> dict[str, float]:
    """Returns the median tokens per second of each implementation."""
    tokens = result["batch_size"] * result["length"]
    return {n: 1e3 * tokens / statistics.median(t) for n, t in result["milliseconds"].items()}


def markdown_row(result: dict[str, Any]) -> str:
    """Formats a row: median tokens/s (slowest .. fastest step), and ratios."""
    tokens = result["batch_size"] * result["length"]
    cells = []
    for name, step_times in result["milliseconds"].items():
        low, high = 1e3 * tokens / max(step_times), 1e3 * tokens / min(step_times)
        cells.append(f"{tokens_per_second(result)[name]:,.0f} ({low:,.0f} .. {high:,.0f})")
    speeds = tokens_per_second(result)
    peer = max(
        (speeds[name] for name in ("hf-eager", "hf-compile") if name in speeds), default=None
    )
    for other in (peer, speeds.get("hf-gathered"), speeds.get("plain-jax")):
        has_both = other and "bert_jax" in speeds
        cells.append(f"{speeds['bert_jax'] / other:.2f}" if has_both and other else "-")
    head = f"| {result['size']} | {result['length']} | {result['dtype']} | {result['batch_size']} "
    return head + "".join(f"| {cell} " for cell in cells) + "|"


def markdown_table(results: Sequence[dict[str, Any]]) -> str:
    """Formats the Markdown table of tokens per second."""
    names = list(results[0]["milliseconds"])
    header = [
        "size",
        "length",
        "dtype",
        "batch",
        *names,
        "bert_jax / hf",
        "bert_jax / hf-gathered",
        "bert_jax / plain-jax",
    ]
    environment_text = ", ".join(f"{key} {value}" for key, value in environment().items() if value)
    lines = [
        f"| {' | '.join(header)} |",
        "|" + " --- |" * len(header),
        *map(markdown_row, results),
        "",
        f"Tokens per second, median (slowest .. fastest step). {environment_text}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
