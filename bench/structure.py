"""Measures the source code's structure and prints a Markdown table.

    python -m bench.structure            the table
    python -m bench.structure --list     also the modules and functions above a budget

A line of code is neither docstring, comment, import nor blank. The numbers are budgets, not caps:
a module or function above its budget says in its docstring why. `tests/architecture_test.py` checks
the imports; nothing checks sizes.
"""

import argparse
import ast
import collections
import dataclasses
import functools
import itertools
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The program itself. Tests, recipes and benchmarks are not counted.
MEASURED = ("bert_jax", "tpu")
MODULE_BUDGET = 600  # lines of code
FUNCTION_BUDGET = 100
SHORT_MODULE = 80  # all lines


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


@dataclass(frozen=True)
class Lines:
    """Holds how many lines of a file are code, docstrings, comments, imports and blank."""

    code: int
    docstrings: int
    comments: int
    imports: int
    blank: int

    @property
    def total(self) -> int:
        """Returns the number of lines of the file."""
        return self.code + self.docstrings + self.comments + self.imports + self.blank


def _docstring(node: ast.AST) -> ast.stmt | None:
    """Returns the statement that documents a module, class or function, or None."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                return first
            case _:
                return None
    return None


def _documented_names(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields the strings below assignments, which document constants and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, after in itertools.pairwise(node.body):
                match before, after:
                    case (
                        ast.Assign() | ast.AnnAssign(),
                        ast.Expr(value=ast.Constant(value=str())),
                    ):
                        yield after
                    case _:
                        pass


@functools.cache
def count_lines(file: Path) -> Lines:
    """Counts the lines of a file by kind; a comment after code is a line of code."""
    tree, text = parse(file), file.read_text().splitlines()
    kind = ["code"] * (len(text) + 1)
    for number, line in enumerate(text, 1):
        kind[number] = "code" if line.strip() else "blank"
    with file.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            row, column = token.start
            if token.type == tokenize.COMMENT and not text[row - 1][:column].strip():
                kind[row] = "comments"
    strings = [found for node in ast.walk(tree) if (found := _docstring(node))]
    for nodes, name in (
        ([*strings, *_documented_names(tree)], "docstrings"),
        ([n for n in statements(tree) if isinstance(n, ast.Import | ast.ImportFrom)], "imports"),
    ):
        for node in nodes:
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                kind[number] = name
    return Lines(*(kind[1:].count(field.name) for field in dataclasses.fields(Lines)))


def long_functions() -> dict[str, int]:
    """Returns the functions above the budget, as file:line name, with their lines of code."""
    long = {}
    for file in source_files():
        for node in statements(parse(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if _docstring(node) and len(node.body) > 1 else node.body[0]
                size = (node.end_lineno or 0) - first.lineno + 1
                if size > FUNCTION_BUDGET:
                    long[f"{relative(file)}:{node.lineno} {node.name}"] = size
    return long


def long_modules() -> dict[str, int]:
    """Returns the modules above the budget, with their lines of code."""
    sizes = {relative(file): count_lines(file).code for file in source_files()}
    return {name: size for name, size in sizes.items() if size > MODULE_BUDGET}


def short_modules() -> dict[str, int]:
    """Returns the short modules that only one other module imports, with their lines."""
    importers = collections.Counter(
        target for targets in import_graph().values() for target in targets
    )
    return {
        relative(file): count_lines(file).total
        for file in source_files()
        if not file.name.startswith("__")
        and count_lines(file).total < SHORT_MODULE
        and importers[file] < 2
    }


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


def package_cycles() -> list[list[str]]:
    """Returns the groups of packages directly in bert_jax/ that import each other in a circle."""
    graph: dict[Path, set[Path]] = {}
    for file, targets in import_graph().items():
        if relative(file) != "bert_jax/__init__.py":  # imports the public names when first used
            own = graph.setdefault(_package(file), set())
            own |= {_package(target) for target in targets} - {_package(file)}
    after = {package: reachable(package, graph) for package in graph}
    return sorted(
        sorted(relative(p) for p in cycle)
        for cycle in {
            frozenset({package, *(p for p in after[package] if package in after.get(p, ()))})
            for package in graph
            if package in after[package]
        }
    )


def _package(file: Path) -> Path:
    """Returns the package, or the app, that a file is in."""
    parts = file.relative_to(ROOT).parts
    return ROOT.joinpath(*parts[: 3 if parts[1] == "apps" else 2])


def _measures() -> Iterator[tuple[str, str]]:
    """Yields the rows of the table: what is measured, and its value."""
    files = source_files()
    lines = {file: count_lines(file) for file in files}
    total = sum(each.total for each in lines.values())
    apps = [file for file in files if "bert_jax/apps/" in file.as_posix()]
    core = [file for file in files if relative(file).startswith("bert_jax/") and file not in apps]
    for name, part in (
        ("all", files),
        ("core (bert_jax/ without apps/)", core),
        ("apps", apps),
        ("tpu", [file for file in files if file not in {*core, *apps}]),
    ):
        yield f"lines of code, {name}", f"{sum(lines[file].code for file in part):,}"
        yield f"modules, {name}", f"{len(part)}"
    yield "all lines", f"{total:,}"
    for kind in ("docstrings", "comments", "imports"):
        count = sum(getattr(each, kind) for each in lines.values())
        yield f"{kind}, share of all lines", f"{100 * count / total:.1f} %"
    sizes = sorted(each.total for file, each in lines.items() if file.name != "__init__.py")
    yield "lines of a module, median", f"{sizes[len(sizes) // 2]}"
    yield "lines of a module, 90th percentile", f"{sizes[len(sizes) * 9 // 10]}"
    yield f"modules above {MODULE_BUDGET} lines of code", f"{len(long_modules())}"
    yield f"functions above {FUNCTION_BUDGET} lines of code", f"{len(long_functions())}"
    yield f"modules under {SHORT_MODULE} lines with one importer", f"{len(short_modules())}"
    yield "circles of packages", f"{len(package_cycles())}"
    yield "circles of modules", f"{len(import_cycles())}"


def main() -> None:
    """Prints the table of measures; with --list also what is above a budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print what is above a budget as well")
    args = parser.parse_args()
    print("| measure | value |\n|---|---|")
    for name, value in _measures():
        print(f"| {name} | {value} |")
    if args.list:
        for title, found in (
            ("modules above the budget", long_modules()),
            ("functions above the budget", long_functions()),
            ("short modules with one importer", short_modules()),
        ):
            rows = [f"{name}: {size} lines" for name, size in found.items()]
            print(f"\n{title}:", *rows, sep="\n  ")
        print("\ncircles:", *map(" <-> ".join, [*package_cycles(), *import_cycles()]), sep="\n  ")


if __name__ == "__main__":
    main()
