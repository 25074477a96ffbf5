"""Tokens per second of a whole pretraining step, beside Hugging Face PyTorch, in one run.

    python bench/pretrain_step.py --output bench/results            # all rows, about 15 minutes
    python bench/pretrain_step.py --sizes tiny --lengths 128        # one corner of the table

A step is forward, backward, clipping to norm 1 and an AdamW update, with dropout, on the same
sizes, batches and masked positions for all. The peer is transformers' BertForPreTraining as its
users call it, with labels (-100 where nothing is predicted), SDPA attention and fused AdamW: eager
and under torch.compile. "gathered" is the same with its masked-LM head applied, by hand, to the
masked positions alone, as ours is. "plain-jax" is `plain_jax.py`: BERT as one would first write it
in JAX. bfloat16 is torch.autocast there and Compute(dtype="bfloat16")
here; parameters are float32 on both sides. Each contender is a process of its own; they take
turns, so that what disturbs the machine disturbs all. Needs `make install-parity`.
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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

SIZES, LENGTHS, DTYPES = ("tiny", "small", "base"), (128, 512), ("float32", "bfloat16")
CONTENDERS = ("bert_jax", "plain-jax", "hf-eager", "hf-compile", "hf-gathered")
BATCH = {  # rows that take a second or less a step on two cores
    ("tiny", 128): 64, ("tiny", 512): 16, ("small", 128): 16, ("small", 512): 4,
    ("base", 128): 8, ("base", 512): 2,
}  # fmt: skip
PREDICTIONS = {128: 20, 512: 77}
VOCABULARY = 30522


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    size: str
    length: int
    dtype: str

    @property
    def batch_size(self) -> int:
        """Sequences a step."""
        return BATCH[self.size, self.length]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the rows asked for, prints the table, writes it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default 2)")
    parser.add_argument("--output", type=Path, help="folder for pretrain_step.{md,json}")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        contender, size, length, dtype = args.worker
        return serve(contender, Row(size, int(length), dtype))
    results = earlier_rows(args.output)
    for dtype in args.dtypes:
        for size in args.sizes:
            for length in args.lengths:
                row = Row(size, length, dtype)
                if any(dataclasses.asdict(row).items() <= result.items() for result in results):
                    continue
                measured = measure(row, args.contenders, args.rounds, args.seconds)
                results.append({**measured, "environment": environment()})
                print(as_line(measured), file=sys.stderr, flush=True)
                write(args.output, results)
    print(as_table(results))
    return 0


def earlier_rows(folder: Path | None) -> list[dict[str, Any]]:
    """The rows that an earlier, interrupted call left in `folder`: they are not measured again."""
    file = folder / "pretrain_step.json" if folder else None
    return json.loads(file.read_text()) if file and file.exists() else []


def write(folder: Path | None, results: list[dict[str, Any]]) -> None:
    """Writes what has been measured so far, as a table and as JSON with every step's time."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pretrain_step.md").write_text(as_table(results))
        (folder / "pretrain_step.json").write_text(json.dumps(results, indent=1) + "\n")


def measure(row: Row, contenders: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Takes turns: milliseconds of each step, by contender; the first turn warms up."""
    workers = {name: start(name, row) for name in contenders}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        for turn in range(rounds + 1):
            for name, worker in workers.items():
                assert worker.stdin and worker.stdout
                worker.stdin.write(f"{seconds if turn else 0.0}\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                if not line:
                    raise SystemExit(f"{name} failed on {row}; see its message above")
                if turn:
                    times[name] += json.loads(line)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return {**dataclasses.asdict(row), "batch_size": row.batch_size, "milliseconds": times}


def start(contender: str, row: Row) -> "subprocess.Popen[str]":
    """A contender in a process of its own."""
    worker = [contender, row.size, str(row.length), row.dtype]
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", *worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # For all alike: `bert-jax pretrain` sets this for itself (bert_jax/cli/huge_pages.py).
        env={
            **os.environ,
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            **(onednn_settings() if contender.startswith("hf") else {}),
        },
    )


@functools.cache
def onednn_settings() -> dict[str, str]:
    """What PyTorch's bfloat16 needs to run at all on this machine: nothing, on most.

    oneDNN asks CPUID for the shape of AMX tiles. Some virtual machines offer AMX but hide that
    leaf; it then dies of an illegal instruction, and runs with what is below AMX only.
    """
    probe = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    died = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    return {"ONEDNN_MAX_CPU_ISA": "AVX10_1_512"} if died.returncode == -signal.SIGILL else {}


def serve(contender: str, row: Row) -> int:
    """Answers each number of seconds with the milliseconds of the steps that fitted into it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    makers = {"bert_jax": ours, "plain-jax": plain_jax_peer}
    step = makers[contender](row) if contender in makers else torch_peer(row, contender)
    step()
    step()
    for line in sys.stdin:
        step()  # the first after the others' turns finds cold caches and its memory given away
        end, taken = time.perf_counter() + float(line), []
        while len(taken) < 2 or time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            taken.append(1e3 * (time.perf_counter() - begin))
        answers.write(json.dumps(taken) + "\n")
        answers.flush()
    return 0


def random_batch(row: Row) -> dict[str, Any]:
    """The same batch for all contenders."""
    from bert_jax.testing.batches import pretraining_batch

    return pretraining_batch(
        batch_size=row.batch_size,
        length=row.length,
        max_predictions=PREDICTIONS[row.length],
        vocab_size=VOCABULARY,
    )


def ours(row: Row) -> Callable[[], Any]:
    """The train step as `bert-jax pretrain` compiles it."""
    import jax

    from bert_jax.data.config import LoaderConfig
    from bert_jax.experiment import Experiment
    from bert_jax.models.config import Compute, bert
    from bert_jax.parallel import sharding
    from bert_jax.programs.config import Pretraining
    from bert_jax.programs.make import make_program
    from bert_jax.train.compiled import abstract_state, compile_step
    from bert_jax.train.config import Phase, Train, WarmupLinear
    from bert_jax.train.optimizer import make_optimizer
    from bert_jax.train.step import init_state

    compute: Any = Compute(dtype=row.dtype)  # type: ignore[arg-type]
    phase = Phase(
        steps=1000,
        length=row.length,
        batch_size=row.batch_size,
        max_predictions=PREDICTIONS[row.length],
    )
    model = bert(row.size, vocab_size=VOCABULARY)  # type: ignore[arg-type]
    experiment = Experiment(
        name="bench",
        program=Pretraining(model=model, mask_token_id=4, compute=compute),
        data=LoaderConfig(prepared="none"),
        train=Train(phases=(phase,), schedule=WarmupLinear(warmup_steps=10)),
    )
    mesh = sharding.make_mesh(experiment.mesh)
    program, optimizer = make_program(experiment.program), make_optimizer(experiment.train)
    initialise = functools.partial(init_state, program, optimizer)
    abstract = abstract_state(initialise, optimizer, mesh)
    fields, shapes = program.fields(), [phase.sizes]
    compiled = compile_step(experiment, phase, program, optimizer, fields, shapes, abstract, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    state = jax.jit(initialise, out_shardings=shardings)(jax.random.key(0))
    batch = sharding.put_batch(random_batch(row), sharding.batch_sharding(mesh))

    def step() -> None:
        nonlocal state
        state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))

    return step


def plain_jax_peer(row: Row) -> Callable[[], Any]:
    """BERT as one would first write it in JAX."""
    import jax
    from plain_jax import init, make_step

    from bert_jax.models.config import bert

    config = bert(row.size, vocab_size=VOCABULARY)  # type: ignore[arg-type]
    update, optimizer = make_step(config, row.dtype)
    params = init(config, jax.random.key(0))
    state, batch = optimizer.init(params), jax.device_put(random_batch(row))

    def step() -> None:
        nonlocal params, state
        params, state, _ = update(params, state, batch, jax.random.key(1))
        jax.block_until_ready(params)

    return step


def torch_peer(row: Row, contender: str) -> Callable[[], Any]:
    """Hugging Face's modules under a plain PyTorch loop."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import BertConfig, BertForPreTraining

    from bert_jax.models.config import bert

    sizes = bert(row.size, vocab_size=VOCABULARY)  # type: ignore[arg-type]
    fields_of_config: dict[str, Any] = dict(
        vocab_size=VOCABULARY,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
        attn_implementation="sdpa",
    )
    config = BertConfig(**fields_of_config)
    torch.manual_seed(0)
    model = BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = {name: torch.from_numpy(field) for name, field in random_batch(row).items()}
    batch = {n: f.long() if f.dtype == torch.int32 else f for n, f in batch.items()}
    fields = ("input_ids", "token_type_ids", "attention_mask")

    labels = torch.full_like(batch["input_ids"], -100)
    for index, used in enumerate(batch["masked_lm_weights"] > 0):
        positions = batch["masked_lm_positions"][index, used]
        labels[index, positions] = batch["masked_lm_ids"][index, used]

    def as_called() -> Any:
        return model(
            **{name: batch[name] for name in fields},
            labels=labels,
            next_sentence_label=batch["next_sentence_labels"],
        ).loss

    def gathered() -> Any:
        out = model.bert(**{name: batch[name] for name in fields})
        positions = batch["masked_lm_positions"][..., None].expand(-1, -1, config.hidden_size)
        scores = model.cls.predictions(out.last_hidden_state.gather(1, positions))
        weights = batch["masked_lm_weights"].flatten()
        masked = cross_entropy(
            scores.flatten(0, 1).float(), batch["masked_lm_ids"].flatten(), reduction="none"
        )
        nsp = cross_entropy(
            model.cls.seq_relationship(out.pooler_output).float(), batch["next_sentence_labels"]
        )
        return (masked * weights).sum() / weights.sum() + nsp

    compute = gathered if contender == "hf-gathered" else as_called
    if contender == "hf-compile":
        compute = torch.compile(as_called)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=row.dtype == "bfloat16"):
            value = compute()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
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


def speeds(result: dict[str, Any]) -> dict[str, float]:
    """Median tokens per second of each contender."""
    tokens = result["batch_size"] * result["length"]
    return {n: 1e3 * tokens / statistics.median(t) for n, t in result["milliseconds"].items()}


def as_line(result: dict[str, Any]) -> str:
    """One row: medians in tokens/s, (slowest .. fastest), and ratios."""
    tokens = result["batch_size"] * result["length"]
    cells = []
    for name, taken in result["milliseconds"].items():
        low, high = 1e3 * tokens / max(taken), 1e3 * tokens / min(taken)
        cells.append(f"{speeds(result)[name]:,.0f} ({low:,.0f} .. {high:,.0f})")
    found = speeds(result)
    peer = max((found[name] for name in ("hf-eager", "hf-compile") if name in found), default=None)
    for other in (peer, found.get("hf-gathered"), found.get("plain-jax")):
        both = other and "bert_jax" in found
        cells.append(f"{found['bert_jax'] / other:.2f}" if both and other else "-")
    head = f"| {result['size']} | {result['length']} | {result['dtype']} | {result['batch_size']} "
    return head + "".join(f"| {cell} " for cell in cells) + "|"


def as_table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: tokens per second, median (slowest .. fastest step)."""
    names = list(results[0]["milliseconds"])
    header = [
        "size",
        "length",
        "dtype",
        "batch",
        *names,
        "ours / peer",
        "ours / gathered",
        "ours / plain",
    ]
    facts = ", ".join(f"{key} {value}" for key, value in environment().items() if value)
    lines = [
        f"| {' | '.join(header)} |",
        "|" + " --- |" * len(header),
        *map(as_line, results),
        "",
        f"Tokens per second, median (slowest .. fastest step). {facts}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
