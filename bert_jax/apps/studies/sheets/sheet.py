"""Defines experiment sheets as data: models, systems, seeds, a budget and evaluations. No jax.

A sheet is returned by the function `get_config` of a Python file, as in `configs/sheets/`. Every
number of its table is the result of a command of `bert-jax`, whose arguments may contain

    {folder}  the folder of the command, where it writes its results
    {model}   the model that it evaluates
    {seed}    the seed
    {setup}   the folder with a folder for each command of `Sheet.setup`
    {models}  the folder with a folder MODEL/seed-N for each model that is trained or made
    {steps}   the number of updates, for models with a budget
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bert_jax.config.config_lib import unknown_field
from bert_jax.errors import ConfigError, check_range

BudgetUnit = Literal["updates", "tokens", "FLOPs"]
NAME = re.compile(r"[A-Za-z0-9][\w.,+%() -]*", re.ASCII)
"""Names of models, systems and columns, which are names of folders too."""

Command = tuple[str, ...]
"""The arguments of `bert-jax`, the verb first."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits what each model of a sheet is trained with.

    Attributes:
      unit: updates; tokens, which are the positions of all batches, padding included; or model
        FLOPs by formula (`train/flops.py`).
      amount: how many.
    """

    unit: BudgetUnit
    amount: float

    def __post_init__(self) -> None:
        check_range("budget.amount", self.amount, above=0)


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Describes a model that `bert-jax pretrain` trains for as many updates as the budget allows.

    Attributes:
      recipe: the name or file of a recipe with the arguments `steps` and `seed`.
      arguments: its other arguments.
      overrides: FIELD=VALUE, as in `--set`.
      budget: the model's own budget; None: the sheet's.
    """

    recipe: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    overrides: tuple[str, ...] = ()
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "seed"):
            if name in self.arguments:
                raise ConfigError(
                    f"the arguments of {self.recipe} contain {name}, which the budget and the "
                    "seeds of a sheet decide; remove it"
                )

    def assignments(self, steps: int | str, seed: int | str) -> list[str]:
        """Returns NAME=VALUE for the arguments of the recipe."""
        values = {**self.arguments, "steps": steps, "seed": seed}
        return [f"{name}={value}" for name, value in values.items()]

    def command(self, steps: int) -> Command:
        """Returns the command that trains the model."""
        sets = ("--set", *self.overrides) if self.overrides else ()
        arguments = self.assignments(steps, "{seed}")
        return ("pretrain", self.recipe, "--run", "{folder}", "--arg", *arguments, *sets)


@dataclass(frozen=True, kw_only=True)
class Make:
    """Describes a model that another command makes, such as word vectors; no budget applies.

    Attributes:
      command: the command.
      path: the model, relative to the folder of the command; "" for the folder itself.
    """

    command: Command
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Describes a model in the folder of another one, such as a checkpoint.

    Attributes:
      of: the name of the other model.
      path: where it is in the folder of the other model.
    """

    of: str
    path: str


Model = Pretrain | Make | Part | str
"""How a model comes into being; a `str` is the path of one that exists."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Finds a number, or one for each example, in a JSON file in the folder of a command.

    Attributes:
      file: the name of the file.
      keys: the names and the indices of lists on the way to the value.
    """

    file: str
    keys: tuple[str | int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Describes how one number of the table is measured.

    Attributes:
      command: the command that measures; () if the training of the model has written the result.
      value: the number.
      outcomes: a number for each example, whose mean is the number, for paired tests over examples;
        None if there are none.
    """

    value: Result
    command: Command = ()
    outcomes: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """Describes a column of the table.

    Attributes:
      percent: whether values are fractions that are shown in percent.
      lower_is_better: whether small values are good.
    """

    name: str
    percent: bool = False
    lower_is_better: bool = False


@dataclass(frozen=True, kw_only=True)
class System:
    """Describes a row of the table: a model and how it is used.

    Attributes:
      name: its name.
      model: the name of its model; None if it needs none.
      evaluations: column -> evaluation; the other columns of the row are empty.
    """

    name: str
    model: str | None
    evaluations: Mapping[str, Evaluation]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Fits a power law of the training FLOPs to some systems, and predicts the others with it.

    Attributes:
      column: the column that is predicted, such as a loss; its values are above 0.
      fitted: the systems to fit.
      predicted: the systems to predict.
    """

    column: str
    fitted: tuple[str, ...]
    predicted: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.fitted) < 2:
            raise ConfigError(
                f"forecast.fitted is {list(self.fitted)}; expected at least two systems"
            )


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Describes a comparison.

    Attributes:
      title: the heading of the page.
      question: what the comparison shall answer, in a few sentences.
      columns: the columns of the table.
      models: name -> how the model is made.
      systems: the rows of the table.
      reference: the system that all others are compared with.
      budget: what each trained model gets.
      seeds: the seeds of training and of evaluations.
      setup: name -> command that is run once, before all others, such as `bert-jax prepare`.
      curves: metrics of evaluations during training that are drawn as curves.
      forecast: a power law over systems; None for none.
    """

    title: str
    question: str
    columns: tuple[Column, ...]
    models: Mapping[str, Model]
    systems: tuple[System, ...]
    reference: str
    budget: Budget | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    setup: Mapping[str, Command] = field(default_factory=dict[str, Command])
    curves: tuple[str, ...] = ()
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        columns, systems = [c.name for c in self.columns], [s.name for s in self.systems]
        for kind, names in (
            ("models", list(self.models)),
            ("systems", systems),
            ("columns", columns),
            ("setup", list(self.setup)),
        ):
            _check_names(kind, names)
        if not columns or not systems:
            raise ConfigError("a sheet needs at least one column and one system")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds is {list(self.seeds)}; expected different numbers, not none")
        _check_known("reference", [self.reference], systems)
        for system in self.systems:
            location = f"the system {system.name!r}"
            _check_known(f"{location}: model", [system.model] if system.model else [], self.models)
            _check_known(f"{location}: evaluations", system.evaluations, columns)
            for evaluation in system.evaluations.values():
                uses_model = any("{model}" in each for each in evaluation.command)
                if system.model is None and (uses_model or not evaluation.command):
                    raise ConfigError(f"{location} is evaluated with a model, but model is None")
        for name, model in self.models.items():
            if isinstance(model, Part):
                _check_known(f"the model {name!r}: of", [model.of], self.models)
                if isinstance(self.models[model.of], (Part, str)):
                    raise ConfigError(
                        f"the model {name!r} is a part of {model.of!r}; expected the name of a "
                        "model that is trained or made"
                    )
            if isinstance(model, Pretrain) and model.budget is None and self.budget is None:
                raise ConfigError(
                    f"the model {name!r} has no budget and the sheet has none; set one"
                )
        if self.forecast is not None:
            _check_known("forecast: column", [self.forecast.column], columns)
            fitted_and_predicted = (*self.forecast.fitted, *self.forecast.predicted)
            _check_known("forecast: systems", fitted_and_predicted, systems)


def _check_names(kind: str, names: list[str]) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{kind} contains {name!r}; expected letters, digits, spaces and any of "
                ". , + % ( ) - _"
            )
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{kind} contains {repeated[0]!r} twice; expected different names")


def _check_known(location: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise unknown_field(f"{location} {name!r}", name, known)
