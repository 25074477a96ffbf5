"""Measures the source code's structure and prints a Markdown table.

    python -m bench.structure            the table, and what exceeds a goal
    python -m bench.structure --list     also the modules to read for each kind of run

`tests/structure_test.py` checks the numbers on every test run; `docs/ARCHITECTURE.md` quotes them.
"""

import argparse
import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The program itself. Tests, recipes and benchmarks are not counted.
MEASURED = ("bert_jax", "tpu")

MAX_MODULES_IN_PACKAGE = 20
MIN_MODULE_LINES = 40
MAX_FUNCTION_LINES = 60

# The modules that a reader must open to know what happens to the config, the data, the parameters
# and the loss, chosen by hand. Left out: hooks, reports, locks, checksums, caches, error handling,
# and the other half of a module choice (fused attention, other data formats, distributed startup).
_ENCODER = """
    batch.py functional.py models/encoder.py models/model.py models/bert/config.py
    models/bert/model.py models/heads/modules.py models/layers/embeddings.py
    models/layers/transformer.py models/layers/attention.py
"""
_TRAINING = """
    experiment.py train/config.py train/run.py train/initialize.py
    train/optimizer.py train/loop.py train/step.py train/evaluate_and_save.py
    parallel/sharding.py models/sharding.py checkpoints/checkpointer.py objectives/config.py
"""
# A module that imports others by a computed name -> the pattern of these.
IMPORTED_BY_NAME = {"bert_jax/models/encoder.py": "bert_jax/models/*/*.py"}
READING_LISTS = {
    # The entry point first.
    "pretraining": """
        train/run.py data/config.py train/sources/pretraining.py data/pretraining/loader.py
        data/pretraining/dataset.py data/pretraining/batch_builder.py data/pretraining/masking.py
        data/corpus/reader.py objectives/pretraining.py
    """
    + _TRAINING
    + _ENCODER,
    "fine-tuning": """
        cli/finetune.py train/presets.py train/run.py data/config.py train/sources/fine_tuning.py
        train/sources/task_evaluator.py data/finetuning/config.py data/finetuning/example.py
        data/finetuning/readers/load_task.py data/finetuning/features.py data/finetuning/loader.py
        objectives/fine_tuning.py objectives/fine_tuning_heads.py
        pretrained/load.py text/tokenizer.py tasks/__init__.py tasks/base.py tasks/text_pair.py
        tasks/sequence_classification.py
    """
    + _TRAINING
    + _ENCODER,
    "prediction": """
        predict/predictor.py predict/batching.py predict/training_settings.py pretrained/load.py
        text/tokenizer.py data/finetuning/example.py data/finetuning/features.py
        objectives/fine_tuning.py objectives/fine_tuning_heads.py tasks/__init__.py tasks/base.py
        tasks/text_pair.py tasks/sequence_classification.py
    """
    + _ENCODER,
}
MAX_MODULES_TO_READ = {"pretraining": 30, "fine-tuning": 40, "prediction": 25}


def source_files() -> list[Path]:
    """Returns every Python file of the program."""
    return sorted(f for folder in MEASURED for f in (ROOT / folder).rglob("*.py"))


def relative(file: Path) -> str:
    """Returns the path of a file from the root of the repository."""
    return file.relative_to(ROOT).as_posix()


@functools.cache
def parse(file: Path) -> ast.Module:
    """Returns the syntax tree of a Python file."""
    return ast.parse(file.read_text())


def child_statements(node: ast.Module | ast.stmt) -> Iterator[ast.stmt]:
    """Yields the statements directly inside a node, also those of `except` and `case` clauses."""
    for block in ("body", "orelse", "finalbody"):
        yield from getattr(node, block, ())
    for clause in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from clause.body


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields all statements of a file; much faster than `ast.walk`, which visits expressions."""
    pending = [*child_statements(tree)]
    while pending:
        node = pending.pop()
        yield node
        pending += child_statements(node)


@functools.cache
def line_count(file: Path) -> int:
    """Returns the number of lines of a file."""
    return len(file.read_text().splitlines())


def modules(files: Iterable[Path]) -> list[Path]:
    """Returns the files that are modules of their own, without `__init__.py` and `__main__.py`."""
    return [f for f in files if f.name not in ("__init__.py", "__main__.py")]


def large_packages() -> dict[str, int]:
    """Returns every package with too many modules and how many it has directly in it."""
    sizes: dict[str, int] = {}
    for file in modules(source_files()):
        package = relative(file.parent)
        sizes[package] = sizes.get(package, 0) + 1
    return {name: size for name, size in sizes.items() if size > MAX_MODULES_IN_PACKAGE}


def short_modules() -> dict[str, int]:
    """Returns every module that is too short to be one, with its number of lines."""
    found = modules(source_files())
    return {relative(f): line_count(f) for f in found if line_count(f) < MIN_MODULE_LINES}


def long_functions() -> dict[str, int]:
    """Returns every function that is too long, as file:line name, with its number of lines."""
    long = {}
    for file in source_files():
        for node in statements(parse(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long[f"{relative(file)}:{node.lineno} {node.name}"] = size
    return long


def module_file(dotted: str) -> Path | None:
    """Returns the file behind an imported name: bert_jax.text.files.read -> text/files.py.

    Returns None for a name of another library.
    """
    parts = dotted.split(".")
    if parts[0] not in MEASURED:
        return None
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return None


def _is_type_checking(test: ast.expr) -> bool:
    """Returns whether a condition is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case _:
            return False


def _import_nodes(tree: ast.Module, inside_functions: bool) -> Iterator[ast.stmt]:
    """Yields the import statements of a module, except those for type checkers only."""
    pending = [*child_statements(tree)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            pending += node.orelse
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += child_statements(node)


def imported_names(node: ast.stmt) -> list[str]:
    """Returns the dotted names that a statement imports; `from a import b` gives a.b."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case _:
            return []


@functools.cache
def import_graph(inside_functions: bool = True) -> dict[Path, set[Path]]:
    """Returns the files that each file imports.

    Args:
      inside_functions: Whether imports count that run only when a function is called.
    """
    graph: dict[Path, set[Path]] = {}
    for file in source_files():
        nodes = _import_nodes(parse(file), inside_functions)
        names = [name for node in nodes for name in imported_names(node)]
        graph[file] = {found for name in names if (found := module_file(name))} - {file}
    return graph


def reachable(start: Path, graph: dict[Path, set[Path]]) -> set[Path]:
    """Returns every file that `start` imports, directly or through other files."""
    found: set[Path] = set()
    pending = [start]
    while pending:
        for file in graph.get(pending.pop(), set()) - found:
            found.add(file)
            pending.append(file)
    return found


def import_cycles() -> list[list[str]]:
    """Returns the groups of files that import each other in a circle."""
    graph = import_graph()
    after = {file: reachable(file, graph) for file in graph}
    cycles = {
        frozenset({file} | {other for other in after[file] if file in after[other]})
        for file in graph
        if file in after[file]
    }
    return sorted(sorted(relative(f) for f in cycle) for cycle in cycles)


def reading_list(run: str) -> list[str]:
    """Returns the modules to read for a kind of run, without repetition, the entry point first."""
    return list(dict.fromkeys(READING_LISTS[run].split()))


def unreachable_reading(run: str) -> list[str]:
    """Returns the modules of a reading list that are missing or never imported by its run."""
    first, *rest = reading_list(run)
    package = ROOT / "bert_jax"
    graph = dict(import_graph())
    for name, pattern in IMPORTED_BY_NAME.items():
        graph[ROOT / name] = graph[ROOT / name] | set(ROOT.glob(pattern))
    imported = reachable(package / first, graph)
    return [name for name in rest if package / name not in imported]


@dataclass(frozen=True)
class Measure:
    """Holds one measured number, the most that it may be, and what it counts."""

    name: str
    value: int
    goal: int
    details: list[str]


def measure() -> list[Measure]:
    """Measures everything that has a goal."""
    from tests.architecture_test import upward_imports

    packages, short, long = large_packages(), short_modules(), long_functions()
    cycles, upward = import_cycles(), upward_imports()
    return [
        Measure(
            f"packages with more than {MAX_MODULES_IN_PACKAGE} modules",
            len(packages),
            0,
            [f"{name}: {size} modules" for name, size in packages.items()],
        ),
        Measure(
            f"modules under {MIN_MODULE_LINES} lines",
            len(short),
            15,
            [f"{name}: {size} lines" for name, size in short.items()],
        ),
        *(
            Measure(f"modules to read for a {run} run", len(reading_list(run)), limit, [])
            for run, limit in MAX_MODULES_TO_READ.items()
        ),
        Measure("imports of a higher layer", len(upward), 0, upward),
        Measure("import cycles", len(cycles), 0, [" <-> ".join(cycle) for cycle in cycles]),
        Measure(
            f"functions over {MAX_FUNCTION_LINES} lines",
            len(long),
            0,
            [f"{name}: {size} lines" for name, size in long.items()],
        ),
    ]


def main() -> None:
    """Prints the table of measures, and the details of those that miss their goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the modules to read as well")
    args = parser.parse_args()
    measures = measure()
    print("| measure | number | goal |\n|---|---|---|")
    for one in measures:
        print(f"| {one.name} | {one.value} | at most {one.goal} |")
    for one in measures:
        if one.value > one.goal and one.details:
            print(f"\n{one.name}:", *one.details, sep="\n  ")
    if args.list:
        for run in READING_LISTS:
            print(f"\nTo read for a {run} run:", *reading_list(run), sep="\n  ")


if __name__ == "__main__":
    main()
