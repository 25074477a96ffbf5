"""Checks the structure of the source code: allowed imports, forbidden calls.

`docs/ARCHITECTURE.md` describes the packages; this file checks the rules between them.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.structure import import_cycles, imported_names, parse, statements

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bert_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Layers from the bottom up. A package imports packages of lower layers and its own modules; so
# there is no circle of packages, and only `__main__`, which lists the verbs, imports apps.
LAYERS: tuple[set[str], ...] = (
    {"errors", "version"},
    {"io", "params", "batch", "losses"},
    {"models"},
    {"config"},
    {"text"},
    {"data"},
    {"tasks"},
    {"objectives", "interop"},
    {"parallel"},
    {"runs"},
    {"pretrained", "report"},
    {"predict"},
    {"train", "export"},
    {"cli"},
    {"apps", "api"},
    {"__main__"},
)
# App -> other apps that it imports. An app imports no other app without a reason.
APPS_THAT_USE_OTHERS = {
    # The ledger of curation says why a text is not in the corpus.
    "seen": {"curate"},
    # What a model has read of a retrieval set is found by the rules of curation.
    "search": {"curate"},
    # It is a tour of the product: it curates its corpus and compares its model with n-grams.
    "quickstart": {"curate", "studies"},
    # Relations between words are those of a treebank.
    "attention_heads": {"treebanks"},
    # It reads treebanks, which other analyses of words read, too; word vectors are a baseline.
    "probes": {"treebanks", "word_vectors"},
    # FOCUS needs static vectors of tokens; losses are scores of sentences.
    "vocabulary": {"sentence_scores", "word_vectors"},
    # It measures what `plan` estimates, on the generated text of the tests.
    "verify": {"plan", "testing"},
    # The hidden states of words, which are compared with word vectors.
    "word_vectors": {"treebanks"},
}
MAX_TOP_LEVEL = 23  # packages and modules directly in bert_jax/, which a reader sees first

# Heavy library -> the only packages or modules of bert_jax/ that may import it.
JAX_PACKAGES = {
    "params",
    "losses",
    "models",
    "objectives",
    "parallel",
    "train",
    "predict",
    "pretrained",
    "export",
    "report",
    "runs",
    "tasks",
    "cli",
    "api",
    "apps",
}
TENSORFLOW_FILES = {
    "data/seqio/text_tasks.py",
    "data/seqio/denoising_tasks.py",
    "data/seqio/feature_converter.py",
    "data/seqio/preprocessors.py",
    "data/seqio/tf_numpy.py",
    "data/seqio/pair_preprocessor.py",
    "data/seqio/vocabulary.py",
    "data/finetuning/readers/tfds_glue.py",
    "interop/tf1.py",
    "tasks/seqio_tasks.py",
}
MAY_USE = {
    "jax": JAX_PACKAGES,
    # ELMo is a baseline and no encoder family: nothing in `models` or `objectives` knows it.
    "flax": {"params", "models", "objectives", "apps/word_vectors/elmo_model.py"},
    "optax": {
        "train",
        "parallel",
        "apps/probes/early_stopping.py",
        "apps/probes/training.py",
    },
    "orbax": {"runs", "parallel", "train"},
    "grain": {"data"},
    "tensorflow": TENSORFLOW_FILES,
    "tensorflow_text": TENSORFLOW_FILES,
    "tensorflow_datasets": TENSORFLOW_FILES,
    "seqio": TENSORFLOW_FILES,
    "apache_beam": {"data/corpus/beam.py", "apps/curate/beam.py"},
    # Reading `pytorch_model.bin`, with weights_only; torch is not a dependency.
    "torch": {"interop/weight_files.py"},
    "transformers": set(),
    "onnx": {"export"},
    "onnxruntime": {"export", "apps"},
    "pickle": set(),
}
# What may call `print`; everything else logs (bert_jax/io/log_handler.py).
PRINTS_TO_STDOUT = {
    "bert_jax/cli/",  # the results of the verbs
    "bert_jax/apps/",
    "bert_jax/data/corpus/beam.py",  # a command of its own
    "bert_jax/apps/curate/beam.py",  # the same
    "bert_jax/apps/quickstart/stages.py",  # the summary
    "tpu/cli.py",
    "tpu/gcloud.py",  # the commands of a dry run
    "tpu/worker.py",  # the log, for systemd and SkyPilot
}
PRINTS_TO_STDERR = {
    "bert_jax/io/log_handler.py",  # the handler
    "bert_jax/__main__.py",  # the line `error: ...`
    "bert_jax/data/corpus/beam.py",
    "bert_jax/apps/curate/beam.py",
    "bert_jax/train/watchdog.py",  # a thread that hangs may hold the lock of a handler
    "tpu/cli.py",  # also the question about the cost, which the user answers on the same line
}
# Imports the modules of a family from the package of its config class.
FAMILIES = {"models/encoder.py"}
# Modules that run a Python file named by the user: a recipe, or a file with seqio tasks.
RUNS_USER_FILES = {"config/recipes.py", "data/seqio/text_tasks.py"}

# Ends of the names of functions that run strings or files as code.
RUNS_STRINGS = ("eval", "exec", "compile", "__import__", "import_module", "exec_module")

# Libraries that `--help`, reading a config and reading a recipe must not import.
HEAVY = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax",
    "tensorflow",
    "seqio",
    "torch",
    "grain",
    "onnx",
    "onnxruntime",
)


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def package_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Returns (line, dotted name) of every import of a file; `from a import b` gives a.b."""
    found: list[tuple[int, str]] = []
    for node in statements(parse(file)):
        is_relative = isinstance(node, ast.ImportFrom) and node.level
        assert not is_relative, f"{file}:{node.lineno}: imports are absolute here"
        found += ((node.lineno, name) for name in imported_names(node))
    return found


def calls(file: Path) -> Iterator[ast.Call]:
    """Yields every call of a file."""
    return (node for node in ast.walk(parse(file)) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    """Returns the last part of what is called: write for sys.stdout.write(...)."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def imported_package(dotted: str) -> str:
    """Returns the package of a dotted name of this project: bert_jax.text.files.x -> text."""
    package = dotted.split(".")[1]
    return (
        package
        if (PACKAGE / package).is_dir() or (PACKAGE / f"{package}.py").is_file()
        else "__init__"
    )


def allowed_imports(package: str) -> set[str]:
    """Returns the packages that a package may import, including itself."""
    level = next(i for i, layer in enumerate(LAYERS) if package in layer)
    return {package}.union(*LAYERS[:level])


def upward_imports() -> list[str]:
    """Returns the imports of a package that is not in a lower layer, as file:line."""
    return [
        f"{name_of(file)}:{line} imports {name}; {package_of(file)} may import {sorted(allowed)}"
        for file in FILES
        if name_of(file) != "__init__.py"  # the public names, imported when they are first used
        for allowed in [allowed_imports(package_of(file))]
        for line, name in imports(file)
        if name.startswith("bert_jax.") and imported_package(name) not in allowed
    ]


def test_packages_import_lower_layers_only():
    assert {package_of(f) for f in FILES} - {"__init__"} <= set().union(*LAYERS), (
        "a new package: give it a layer"
    )
    assert not upward_imports()


def test_modules_import_no_circle():
    assert not import_cycles()


def test_apps_import_no_other_app_without_a_reason():
    used: dict[str, set[str]] = {}
    for file in PACKAGE.glob("apps/*/**/*.py"):
        app = file.relative_to(PACKAGE).parts[1]
        for _, name in imports(file):
            match name.split("."):
                case ["bert_jax", "apps", other, *_] if other != app:
                    used.setdefault(app, set()).add(other)
                case _:
                    pass
    assert used == APPS_THAT_USE_OTHERS


def test_the_top_level_is_small():
    names = {package_of(file) for file in FILES} - {"__init__", "__main__"}
    assert len(names) <= MAX_TOP_LEVEL, sorted(names)


def test_heavy_libraries_are_imported_by_listed_packages_only():
    wrong = [
        f"{name_of(file)}:{line} imports {name}, which is for {sorted(MAY_USE[library])}"
        for file in FILES
        for line, name in imports(file)
        if (library := name.split(".")[0]) in MAY_USE
        and not {package_of(file), name_of(file)} & MAY_USE[library]
    ]
    assert not wrong


def test_configs_import_errors_and_other_configs_only():
    """Reading a config imports no jax and builds no model."""
    # Written tables and unions of config classes; config_lib and recipes read files of configs.
    tables = ("bert_jax.models.encoder", "bert_jax.models.encoder")
    configs = [*PACKAGE.glob("models/**/*config.py"), *PACKAGE.glob("config/*.py")]
    wrong = [
        f"{name_of(file)}:{line} imports {name}"
        for file in configs
        for line, name in imports(file)
        for library, *rest in [name.split(".")]
        if library not in sys.stdlib_module_names
        and not name.startswith(tables)
        and not (
            library == "bert_jax" and (rest[0] in ("errors", "config") or rest[-2:-1] == ["config"])
        )
    ]
    assert len(configs) >= 20 and not wrong


def test_no_recipe_imports_another():
    recipes = sorted(ROOT.glob("configs/**/*.py"))
    wrong = [
        f"{recipe.relative_to(ROOT)}:{line} imports {name}"
        for recipe in recipes
        for line, name in imports(recipe)
        if name.split(".")[0] not in {"bert_jax"} | sys.stdlib_module_names
    ]
    assert recipes and not wrong


def test_nnx_split_and_merge_are_used_in_functional_only():
    """Training runs on plain dicts; only functional.py converts between NNX modules and dicts."""
    conversions = {"split", "merge", "eval_shape", "state", "to_pure_dict", "replace_by_pure_dict"}
    forbidden = {"jit", "grad", "scan", "vmap", "remat", "Optimizer", "StateAxes", "Intermediate"}
    wrong = [
        f"{name_of(file)}:{node.lineno} uses nnx.{node.attr}"
        for file in FILES
        for node in ast.walk(parse(file))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "nnx"
        and node.attr
        in (forbidden if name_of(file) == "params/functional.py" else conversions | forbidden)
    ]
    assert not wrong


def test_no_string_is_run_as_code():
    wrong = []
    for file in FILES:
        for node in calls(file):
            if not called_name(node).endswith(RUNS_STRINGS) and not node.keywords:
                continue
            called = ast.unparse(node.func)
            literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
            unpickles = any(
                k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
            )
            if (
                called in ("eval", "exec", "compile", "__import__")
                or (
                    called.endswith("import_module")
                    and not literal
                    and name_of(file) not in FAMILIES
                )
                or (called.endswith("exec_module") and name_of(file) not in RUNS_USER_FILES)
                or unpickles
            ):
                wrong.append(f"{name_of(file)}:{node.lineno} calls {called}")
    assert not wrong


def test_task_heads_are_named_by_their_kinds_only():
    """Everything else asks a head for its `scope`, or its kind for what depends on the kind."""
    heads = {
        node.name
        for node in parse(PACKAGE / "models/heads/config.py").body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Head")
    }
    assert "RankingHead" in heads and len(heads) >= 6
    wrong = [
        f"{name_of(file)}:{node.lineno} names {name}"
        for file in FILES
        if not name_of(file).startswith(("tasks/", "models/heads/"))
        for node in ast.walk(parse(file))
        if isinstance(node, ast.Name | ast.Attribute | ast.alias)
        for name in [
            node.id
            if isinstance(node, ast.Name)
            else node.attr
            if isinstance(node, ast.Attribute)
            else node.name
        ]
        if name in heads
    ]
    assert not wrong


def test_only_listed_modules_print():
    printing: dict[bool, set[str]] = {False: set(), True: set()}
    wrong = []
    for file in sorted([*FILES, *ROOT.glob("tpu/**/*.py"), *ROOT.glob("configs/**/*.py")]):
        name = file.relative_to(ROOT).as_posix()
        for node in calls(file):
            if called_name(node) not in ("print", "write"):
                continue
            called = ast.unparse(node.func)
            if called not in ("print", "sys.stdout.write", "sys.stderr.write", "tqdm.write"):
                continue
            is_error = called == "sys.stderr.write" or "sys.stderr" in map(
                ast.unparse, (keyword.value for keyword in node.keywords)
            )
            listed = PRINTS_TO_STDERR if is_error else PRINTS_TO_STDOUT
            entries = {entry for entry in listed if name.startswith(entry)}
            printing[is_error] |= entries
            if not entries:
                wrong.append(f"{name}:{node.lineno} calls {called}; expected logging")
    assert not wrong
    assert printing == {False: PRINTS_TO_STDOUT, True: PRINTS_TO_STDERR}, "remove stale entries"


def test_no_module_has_a_vague_name():
    vague = {"utils", "util", "helpers", "common", "misc", "tools"}
    assert not [name_of(f) for f in FILES if f.stem in vague]


def test_every_package_is_tested():
    packages = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file()}
    tested = {
        imported_package(name)
        for test in ROOT.glob("tests/**/*_test.py")
        for _, name in imports(test)
        if name.startswith("bert_jax.")
    }
    assert packages <= tested


def test_training_and_prediction_do_not_import_tensorflow():
    """Follows all imports, also those inside functions, from the loader and predict/."""
    graph = {name_of(f): {n for _, n in imports(f)} for f in FILES}
    pending = [
        "data/pretraining/loader.py",
        *(name for name in graph if name.startswith("predict/")),
    ]
    seen: set[str] = set()
    while pending:
        current = pending.pop()
        if current in seen or current not in graph:
            continue
        seen.add(current)
        assert current not in TENSORFLOW_FILES, f"reached from {sorted(seen)}"
        for dotted in graph[current]:
            parts = dotted.split(".")
            if parts[0] == "bert_jax":
                pending += ["/".join(parts[1:]) + ".py", "/".join(parts[1:-1]) + ".py"]
    assert "text/tokenizer.py" in seen  # the search has followed imports


@pytest.mark.parametrize(
    "code",
    [
        "import bert_jax",
        "import bert_jax.config.experiment",
        "from bert_jax.__main__ import main; main(['--help'])",
        "from bert_jax.__main__ import VERBS, main\n"
        "for verb in VERBS:\n"
        "    try: main([*verb.split(), '--help'])\n"
        "    except SystemExit as done: assert done.code == 0",
        "from bert_jax.config.recipes import load_recipe\n"
        "from pathlib import Path\n"
        "for recipe in Path('configs').rglob('*.py'): load_recipe(recipe)",
    ],
    ids=["package", "configs", "help", "help of each verb", "recipes"],
)
def test_help_configs_and_recipes_import_no_heavy_library(code: str):
    check = f"""
import atexit, sys
def heavy(): print("HEAVY", sorted(set({HEAVY!r}) & set(sys.modules)))
atexit.register(heavy)
{code}
"""
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
