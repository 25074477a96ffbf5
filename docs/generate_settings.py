"""Writes docs/reference/configs.md and recipes.md: every field and every argument with its meaning.

`docs/generate_files.py` runs it. The meaning of a field stands in the code: in the section
"Attributes" of the docstring of its class, in the comment that ends its line, or in the comment
above it. A field or an argument without a meaning is an error, which names it.
"""

import ast
import dataclasses
import functools
import inspect
import json
import re
import textwrap
import types
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.plan import CurationConfig
from bert_jax.apps.serve.config import ServerConfig
from bert_jax.config.experiment import Experiment
from bert_jax.config.generation import GenerationConfig, UnmaskingConfig
from bert_jax.config.recipes import import_file, shipped_recipes
from bert_jax.config.text import TokenizerTrainingConfig

ROOT = Path(__file__).resolve().parent.parent
CONFIGS_PAGE = ROOT / "docs/reference/configs.md"
RECIPES_PAGE = ROOT / "docs/reference/recipes.md"

ROOTS: dict[type, str] = {
    Experiment: "",
    CurationConfig: "of a recipe of `bert-jax curate`, see [its page](../how_to/curate.md)",
    TokenizerTrainingConfig: "of `bert-jax tokenizer train`",
    GenerationConfig: "of `bert-jax generate` and `Generator`, for encoder-decoders",
    UnmaskingConfig: "of `bert-jax generate` and `Unmasker`, for encoders",
    ServerConfig: "of `bert-jax serve`",
}
"""The configs that hold all others, and where they are set if not by `--set`."""

# Heading -> beginnings of the modules, the first match counts.
GROUPS = {
    "Run and training": ("bert_jax.config.experiment", "bert_jax.config.train"),
    "Ways of tuning": ("bert_jax.config.tuning", "bert_jax.models.adapters"),
    "Objectives": ("bert_jax.config.objectives", "bert_jax.config.distillation"),
    "Pretraining data": ("bert_jax.config.data",),
    "Labeled data": ("bert_jax.config.labeled_data", "bert_jax.config.prompts"),
    "Sentence embeddings": (
        "bert_jax.config.sentence_embeddings",
        "bert_jax.config.embedding_losses",
        "bert_jax.models.sentence_encoder",
    ),
    "Heads": ("bert_jax.models.heads",),
    "Models": ("bert_jax.models",),
    "Curation": ("bert_jax.apps.curate", "bert_jax.data.corpus"),
    "Tokenizer training": ("bert_jax.config.text",),
    "Generation of text": ("bert_jax.config.generation",),
    "Server": ("bert_jax.apps.serve",),
}

FLAGS = {
    "Experiment.seed": "--seed",
    "LoggingConfig.track": "--track",
    "Experiment.init_from": "--model, --init-from",
    "MeshConfig.data": "--arg parallelism",
    "MeshConfig.fsdp": "--arg parallelism",
    "MeshConfig.tensor": "--arg parallelism",
    "Phase.steps": "--epochs",
    "Phase.batch_size": "--batch-size",
    "Phase.seq_length": "--max-length",
    "Phase.target_length": "--max-target-length",
    "WarmupLinear.peak_learning_rate": "--learning-rate",
    "CheckpointConfig.best_metric": "--metric",
    "CheckpointConfig.early_stopping_patience": "--patience",
    "LabeledEval.eval_every": "--eval-every",
    "TuningConfig.method": "--method",
    "TuningConfig.frozen": "--frozen-encoder",
    "TuningConfig.features": "--frozen-encoder",
    "LoRA.rank": "--rank",
    "LoRA.alpha": "--alpha",
    "LoRA.dropout": "--dropout",
    "LoRA.targets": "--target",
    "PromptTuning.initial_ids": "--initial-text",
    "FineTuning.class_weights": "--class-weights",
    "FineTuning.listwise_loss": "--loss",
    "FineTuning.label_smoothing": "--label-smoothing",
    "Teacher.path": "--teacher",
    "Teacher.layers": "--teacher-layers",
    "PretrainingData.corpus": "--corpora",
    "FineTuningData.task": "TASK",
    "FineTuningData.truncation": "--truncation",
    "FineTuningData.window_overlap": "--window-overlap",
    "FineTuningData.prompt": "--prompt",
    "Prompt.demonstrations": "--demonstrations",
    "Windows.pooling": "--window-pooling",
    "JointWindows.num_windows": "--num-windows",
    "FewShot.shots": "--shots",
    "FewShot.seed": "--split-seed",
    "TrainingFile.file": "--train-file",
    "Glue.folder": "--glue-dir",
    "Snli.folder": "--snli-dir",
    "Squad.version": "--squad-version",
    "Squad.strict": "--strict",
    "Conll.word_column": "--word-column",
    "Conll.tag_column": "--tag-column",
    "Conll.strict": "--strict",
    "Columns.text": "--text",
    "Columns.text_pair": "--text-pair",
    "Columns.label": "--label",
    "Columns.id": "--id",
    "Columns.kind": "--kind",
    "Columns.label_separator": "--label-separator",
    "TextColumns.source": "--source",
    "TextColumns.target": "--target",
    "TextFile.path": "--train, --dev",
    "TextFile.texts": "--texts, --dev-columns",
    "TextFile.score": "--score, --dev-columns",
    "TextFile.score_range": "--score-range",
    "TextFile.label": "--label",
    "TextFile.teacher_scores": "--teacher-scores",
    "NliFiles.splits": "--splits",
    "SentenceEmbedding.loss": "--loss",
    "SentenceEmbedding.chunk_size": "--chunk-size",
    "SentenceEncoderConfig.pooling": "--pooling",
    "MatryoshkaLoss.dims": "--matryoshka-dims",
    "UnsupervisedSimCSE.mlp_only_train": "--mlp-only-train",
    "MSELoss.teacher": "--teacher",
    "EmbedDistillLoss.teacher": "--teacher",
    "GISTEmbedLoss.guide": "--teacher",
    "MarginMSELoss.teacher": "--teacher",
    "DistillKLDivLoss.teacher": "--teacher",
    **{
        f"{task}.{field}": f"--{field}"
        for task in ("Squad", "Conll", "Swag", "Columns", "TextColumns")
        for field in ("train", "dev", "test", "encoding")
        if (task, field) != ("Squad", "encoding")
    },
}
"""The flags of `finetune`, `embed-train` and `pretrain` by the fields that they set."""

ARGUMENTS = {
    "corpus": "the folder of the training corpus, written by `bert-jax prepare`",
    "heldout": "the folder of a held-out corpus, with which the run is evaluated",
    "size": "the published size of the model",
    "masking_rates": "the fractions of the tokens that are predicted, by phase",
    "num_phases": "the phases of the run, in which the fraction of masked tokens decreases",
    "batch_size_warmup": "whether the batch begins small and grows to its full size",
    "model": "the pretrained model to start from",
    "init_from": "the pretrained model to start from; none: random parameters",
    "steps": "the number of updates",
    "batch_size": "the sequences of an update, over all devices",
    "seq_length": "the tokens of a sequence, special tokens included",
    "target_length": "the tokens that the decoder predicts",
    "gradient_accumulation_steps": "the microbatches into which a batch is divided, to save memory",
    "learning_rate": "the peak learning rate",
    "warmup_steps": "the updates in which the learning rate rises",
    "bfloat16": "whether activations and matrix products are bfloat16 instead of float32",
    "tpu": "whether to use what is fast on TPUs; the text below says what it changes",
    "parallelism": "how devices share a step: `dp` splits the batch, `fsdp` also the parameters, "
    "`tp` also layers by two, `fsdp_tp` all three",
    "seed": "the seed of all randomness",
    "seeds": "the seeds with which each model is trained and evaluated",
    "num_layers": "the layers of the encoder",
    "hidden_size": "the width of the encoder, D",
    "mlm_probability": "the fraction of the tokens that are predicted in training",
    "method": "what is trained besides the heads, as `--method` of `bert-jax finetune`",
    "epochs": "the passes through the training examples",
    "glue_dir": "the folder of the official GLUE files",
    "files": "the files, as a glob pattern",
    "max_dropped": "the largest fraction of the characters that may be dropped; more is an error",
    "near_duplicates": "the similarity from which on a document is dropped as a near duplicate",
    "language": "the code of the only language that is kept, such as `en`; null: all",
}
"""The meaning of arguments that have the same one in several recipes."""

CONFIGS_HEADER = """# Configs

Every field that a run has, with its type, its default and its meaning. `docs/generate_settings.py`
writes this page from the code. A field is set with `--set PATH=VALUE`, where an index selects an
element of a tuple and the name of a type selects one of several:

```text
--set train.logging.log_every=10 train.phases.0.batch_size=64 train.optimizer=Lamb
--set 'train.optimizer={"type": "AdamW", "b2": 0.98}' objective.model.hidden_dropout_prob=0
```

`bert-jax show-config` prints the config of a recipe, and `config.json` in a run folder is that of
a run. What the texts call None is `null` there. The column "flag" has the flags of
`bert-jax finetune`, `embed-train` and `pretrain` that set the field. [Recipes](recipes.md) lists
the arguments of `--arg`, and [environment variables](environment.md) what is set outside of a
command.
"""

RECIPES_HEADER = """# Recipes and their arguments

The recipes of `bert-jax recipes`, with the arguments of `--arg NAME=VALUE`.
`docs/generate_settings.py` writes this page from the code. `bert-jax recipes NAME` prints the
source of one, and [Write a recipe](../how_to/recipe.md) says how to make your own.
"""


def configs() -> dict[type, list[str]]:
    """Returns every dataclass that a config can hold, with the paths at which it can stand."""
    found: dict[type, list[str]] = {}
    for root in ROOTS:
        _collect(root, "", found)
    return found


def _collect(annotation: Any, path: str, found: dict[type, list[str]]) -> None:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        known = found.setdefault(annotation, [])
        known.append(path)
        if len(known) > 1:
            return
        for base in annotation.__mro__[1:]:
            if dataclasses.is_dataclass(base):
                found.setdefault(base, [])
        for name, hint in own_fields(annotation, inherited=True).items():
            _collect(hint, f"{path}.{name}".lstrip("."), found)
        return
    is_tuple = typing.get_origin(annotation) is tuple
    for member in typing.get_args(annotation):
        if not isinstance(member, str) and member is not Ellipsis:
            _collect(member, f"{path}.0" if is_tuple else path, found)


def own_fields(cls: type, *, inherited: bool = False) -> dict[str, Any]:
    """Returns the annotations of the fields that a class defines itself, or of all its fields."""
    hints = typing.get_type_hints(cls)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(typing.cast(Any, cls))
        if inherited or field.name in inspect.get_annotations(cls)
    }


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Returns the meaning of each field that the class itself explains."""
    lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    (node,) = ast.parse("\n".join(lines)).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        assert each.end_lineno is not None and each.end_col_offset is not None
        rest = lines[each.end_lineno - 1][each.end_col_offset :].strip()
        above: list[str] = []
        for line in reversed(lines[: each.lineno - 1]):
            if not line.strip().startswith("#"):
                break
            above.insert(0, line.strip())
        comment = [rest] if rest.startswith("#") else above
        if comment:
            found[each.target.id] = " ".join(line.lstrip("# ") for line in comment)
    return found | _section(inspect.getdoc(cls) or "", "Attributes")


def _section(docstring: str, name: str) -> dict[str, str]:
    """Returns the entries of a section such as "Attributes" or "Args" of a docstring."""
    match = re.search(rf"^{name}:\n((?:  .*\n?|\n)*)", docstring, re.MULTILINE)
    entries: dict[str, str] = {}
    for entry in re.split(r"^  (?=\w)", match[1] if match else "", flags=re.MULTILINE)[1:]:
        names, _, text = entry.partition(":")
        entries |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return entries


def meaning(cls: type, name: str) -> str:
    """Returns the meaning of a field; "" if neither the class nor a base explains it."""
    bases = [base for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    return next((meanings(base)[name] for base in bases if name in meanings(base)), "")


def missing() -> list[str]:
    """Returns the fields and the arguments of recipes that have no meaning."""
    fields = [
        f"{cls.__module__}.{cls.__name__}.{name}"
        for cls in configs()
        for name in own_fields(cls)
        if not meaning(cls, name)
    ]
    return fields + [
        f"{recipe}: {name}"
        for recipe, file in shipped_recipes().items()
        for name, text in _arguments(import_file(file, "recipe").get_config).items()
        if not text
    ]


def _arguments(get_config: Any) -> dict[str, str]:
    """Returns the meaning of each argument of a recipe."""
    own = _section(inspect.getdoc(get_config) or "", "Args")
    names = inspect.signature(get_config).parameters
    return {name: own.get(name, ARGUMENTS.get(name, "")) for name in names}


def render_configs() -> str:
    """Returns the text of docs/reference/configs.md."""
    found = configs()
    counts = Counter(cls.__name__ for cls in found)
    linked = {cls for cls in found if counts[cls.__name__] == 1}
    sections = {heading: [f"## {heading}"] for heading in GROUPS}
    for cls, paths in found.items():
        heading = next(
            heading for heading, modules in GROUPS.items() if cls.__module__.startswith(modules)
        )
        sections[heading].append("\n\n".join(_config(cls, paths, linked)))
    return (
        "\n\n".join([CONFIGS_HEADER.rstrip(), *(s for each in sections.values() for s in each)])
        + "\n"
    )


def _config(cls: type, paths: list[str], linked: set[type]) -> Iterator[str]:
    yield f"### {cls.__name__}"
    yield escape(_prose(inspect.getdoc(cls) or ""))
    if where := ROOTS.get(cls):
        yield f"Settings {where}."
    elif paths and paths[0]:
        shown = ", ".join(f"`{path}`" for path in list(dict.fromkeys(paths))[:4])
        yield f"Set at {shown}."
    fields = own_fields(cls)
    bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    if bases:
        more = f"It has the fields of {_type(bases[0], linked)}"
        yield f"{more}, and these, some with other defaults:" if fields else f"{more}."
    if fields:
        rows = [
            (
                f"`{name}`",
                _type(hint, linked),
                _default(cls, name),
                escape(meaning(cls, name)),
                _flags(cls, name),
            )
            for name, hint in fields.items()
        ]
        yield _table(("field", "type", "default", "meaning", "flag"), rows)


def _flags(cls: type, name: str) -> str:
    names = [base.__name__ for base in cls.__mro__]
    found = next((FLAGS[f"{each}.{name}"] for each in names if f"{each}.{name}" in FLAGS), "")
    return ", ".join(f"`{flag}`" for flag in found.split(", ") if flag)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    used = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [[header[index] for index in used], ["---"] * len(used)]
    lines += [[_phrase(row[index]) for index in used] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _phrase(text: str) -> str:
    """Returns a text without its full stop, unless it has several sentences."""
    return text if ". " in text else text.removesuffix(".")


def _prose(docstring: str) -> str:
    """Returns a docstring without its sections."""
    return re.split(r"^(?:Attributes|Args|Raises):$", docstring, flags=re.MULTILINE)[0].strip()


def escape(text: str) -> str:
    """Returns text in which Markdown finds no markup but that of code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("*", r"\*")
    return "".join(parts).replace("|", r"\|")


def _type(hint: Any, linked: set[type]) -> str:
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(member, linked) for member in members)
    if origin is typing.Literal:
        return ", ".join(f"`{member}`" for member in members)
    if origin is tuple:
        parts = [_type(member, linked) for member in members if member is not Ellipsis]
        return f"tuple of {', '.join(parts)}"
    if hint is types.NoneType:
        return "null"
    if hint in linked:
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return getattr(hint, "__name__", str(hint))


def _default(cls: type, name: str) -> str:
    (field,) = (f for f in dataclasses.fields(typing.cast(Any, cls)) if f.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return f"`{_value(field.default_factory())}`"
    return "required" if field.default is dataclasses.MISSING else f"`{_value(field.default)}`"


def _value(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        set_fields = {
            f.name: getattr(value, f.name)
            for f in dataclasses.fields(value)
            if getattr(value, f.name) != f.default
        }
        inside = ", ".join(f"{name}={_value(each)}" for name, each in set_fields.items())
        return f"{type(value).__name__}{f'({inside})' if inside else ''}"
    if isinstance(value, tuple) and any(dataclasses.is_dataclass(each) for each in value):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, tuple) and len(value) > 6 and len(set(value)) == 1:
        return f"[{json.dumps(value[0])}] * {len(value)}"
    return json.dumps(value)


def render_recipes() -> str:
    """Returns the text of docs/reference/recipes.md."""
    sections = [RECIPES_HEADER.rstrip()]
    for recipe, file in shipped_recipes().items():
        module = import_file(file, "recipe")
        # Some docstrings have commands, which a page would otherwise run together.
        summary = _prose(inspect.cleandoc(module.__doc__ or "")).split("\n\n")[0]
        parameters = inspect.signature(module.get_config, eval_str=True).parameters
        rows = [
            (
                f"`{name}`",
                _type(parameters[name].annotation, set()),
                "required"
                if parameters[name].default is inspect.Parameter.empty
                else f"`{json.dumps(parameters[name].default)}`",
                escape(text),
            )
            for name, text in _arguments(module.get_config).items()
        ]
        details = _prose(inspect.getdoc(module.get_config) or "").split("\n\n", 1)[1:]
        table = _table(("argument", "type", "default", "meaning"), rows)
        sections += [f"## {recipe}", escape(summary), table, *map(escape, details)]
    return "\n\n".join(sections) + "\n"


def write() -> None:
    """Writes both pages.

    Raises:
      ValueError: a field or an argument has no meaning.
    """
    if names := missing():
        raise ValueError(f"no meaning: {', '.join(names)}; see {__file__}")
    CONFIGS_PAGE.write_text(render_configs())
    RECIPES_PAGE.write_text(render_recipes())
