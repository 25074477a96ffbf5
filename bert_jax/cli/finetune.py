"""Runs `bert-jax finetune`: trains a pretrained encoder on a task with labeled examples."""

import argparse
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments.few_shot import (
    add_few_shot_arguments,
    few_shot_flags,
    few_shot_prompt,
    few_shot_task,
)
from bert_jax.cli.arguments.method import add_method_arguments, method_flags, tuning_method
from bert_jax.cli.arguments.recipe import (
    add_checkpoints_argument,
    add_override_arguments,
    experiment_from_recipe,
)
from bert_jax.cli.arguments.task import (
    add_contamination_argument,
    add_task_arguments,
    task_command,
    task_config,
)
from bert_jax.cli.arguments.text_to_text import (
    TEXT_TO_TEXT,
    add_text_to_text_arguments,
    refuse_columns_of_texts,
    text_to_text_experiment,
)
from bert_jax.config.config_lib import override
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import make_truncation
from bert_jax.errors import ConfigError

HELP = "fine-tune an encoder on a task of GLUE, SQuAD, CoNLL or your own labeled files"

_EPILOG = """examples:
  bert-jax finetune columns --train train.csv --dev dev.csv --text review --label sentiment \\
      --model exported --run runs/reviews
  bert-jax finetune glue/rte --glue-dir glue_data --model exported --run runs/rte --epochs 3
  bert-jax finetune glue/rte --glue-dir glue_data --teacher runs/rte --teacher-layers 0,2,5 \\
      --run runs/rte-3-layers
  bert-jax finetune glue/mrpc --glue-dir glue_data --model exported --method lora --run runs/mrpc
  bert-jax finetune text2text --train train.csv --dev dev.csv --source article \\
      --target summary --model t5 --run runs/summaries
  bert-jax finetune --config multi_task --run runs/four \\
      --arg model=exported glue_dir=glue_data conll=conll2003

The run folder then holds the checkpoint with the best dev score, predictions/dev.jsonl and
test.jsonl (for text2text: predictions/columns-dev.jsonl), evaluation.json and report.html.
`bert-jax export runs/rte --output rte` writes it as a Hugging Face folder. The same
command resumes a run that was stopped. Exit codes: 0 done, 1 failure, 2 usage, 75 stopped by
SIGTERM or Ctrl-C after saving a checkpoint.

The third command distills the run of the second: a smaller model learns from the labels and from
the predictions of a teacher, a model that was fine-tuned on the same task. The fourth command
trains a few new parameters (LoRA); its checkpoints hold only these and the path of the model.

A recipe, given with --config, replaces TASK and its flags. The recipe above trains one encoder on
several tasks, with one head for each task.
"""


class _ConfigAction(argparse.Action):
    """Stores --config FILE and makes TASK optional.

    TASK cannot simply have nargs="?": before Python 3.12.7, argparse then fails on commands in
    which TASK comes after a flag.
    """

    def __init__(self, *, task: argparse.Action, **settings: Any):
        super().__init__(**settings)
        self._task = task

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        self._task.required = False


_SETTINGS = (
    "model",
    "teacher",
    "teacher_layers",
    "epochs",
    "batch_size",
    "learning_rate",
    "max_length",
    "max_target_length",
    "truncation",
    "window_pooling",
    "num_windows",
    "window_overlap",
    "seed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds TASK with its flags, --config, --model, --run, hyperparameters, --arg and --set."""
    task = add_task_arguments(parser)
    parser.add_argument(
        "--config", action=_ConfigAction, task=task, metavar="FILE", help="recipe, instead of TASK"
    )
    parser.add_argument(
        "--model",
        help="pretrained model: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument(
        "--teacher",
        metavar="MODEL",
        help="teacher for distillation: a model that was fine-tuned on this task",
    )
    parser.add_argument(
        "--teacher-layers",
        type=_layer_numbers,
        metavar="N,N,...",
        help="layers of the teacher, counted from 0, that initialize a smaller model; instead of "
        "--model",
    )
    parser.add_argument(
        "--run", metavar="FOLDER", required=True, help="run folder; resumed if it exists"
    )
    add_checkpoints_argument(parser)
    add_contamination_argument(parser)
    parser.add_argument(
        "--epochs",
        type=float,
        metavar="N",
        help="training epochs (default: 3, or with few examples as many as give 200 updates; three "
        "times as many with a --method other than full; text2text: always 3)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="sequences of a batch (default: 32)"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        metavar="RATE",
        help="peak learning rate (default: 5e-5, or that of --method; text2text: 1e-3, or "
        "3e-5 with --arg adafactor=false)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="maximum length of a sequence (default: 128, or 384 for question answering, but not "
        "more than the model allows; text2text: 512)",
    )
    add_text_to_text_arguments(parser)
    _add_long_text_arguments(parser)
    parser.add_argument("--seed", type=int, help="random seed (default: 0)")
    add_method_arguments(parser)
    add_few_shot_arguments(parser)
    add_override_arguments(parser)
    parser.epilog = _EPILOG


def _add_long_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --truncation, --window-pooling, --num-windows and --window-overlap."""
    parser.add_argument(
        "--truncation",
        choices=("head", "tail", "head+tail", "windows", "hierarchical"),
        help="part that is read of a text longer than --max-length, in classification and "
        "regression; with windows, all of it, in overlapping sequences; with hierarchical, its "
        "first windows together, with a small Transformer over them (default: head)",
    )
    parser.add_argument(
        "--window-pooling",
        choices=("mean", "max", "first"),
        help="how to combine the predictions for the windows of a text (default: mean)",
    )
    parser.add_argument(
        "--num-windows",
        type=int,
        metavar="N",
        help="windows of a text that are read with --truncation hierarchical (default: 8)",
    )
    parser.add_argument(
        "--window-overlap",
        type=int,
        metavar="TOKENS",
        help="tokens that neighboring windows have in common; for tagging, question answering and "
        "--truncation windows or hierarchical (default: 128, at most half a window)",
    )


def run(args: argparse.Namespace) -> int:
    """Fine-tunes and returns the exit code of the run."""
    if args.task == TEXT_TO_TEXT:
        experiment = text_to_text_experiment(args, _given_settings(args))
    else:
        refuse_columns_of_texts(args)
        _refuse_window_overlap_by_set(args)
        experiment = _experiment_from_recipe(args) if args.config else _experiment_from_flags(args)
    if args.contamination is not None:
        from bert_jax.data.corpus.contamination.found_items import FoundItems, copy_items

        FoundItems.read(args.contamination)  # raises for a folder without the file
        copy_items([args.contamination], Path(args.run))
    from bert_jax.parallel.processes import config_from_environment, initialize

    initialize(config_from_environment())
    from bert_jax.train.run import run as train

    return train(experiment, Path(args.run), args.checkpoints)


def _experiment_from_recipe(args: argparse.Namespace) -> Experiment:
    if args.task is not None:
        raise ConfigError(f"TASK {args.task} and --config {args.config}: expected one of them")
    flags = [f"--{name.replace('_', '-')}" for name in _given_settings(args)]
    flags += few_shot_flags(args) + task_command(args)[1:]
    flags += ["--frozen-encoder"] * args.frozen_encoder + method_flags(args)
    if flags:
        raise ConfigError(
            f"{flags[0]} cannot be combined with --config; set the recipe's arguments with --arg "
            "NAME=VALUE, and fields of its config with --set FIELD=VALUE"
        )
    return experiment_from_recipe(args.config, args)


def _experiment_from_flags(args: argparse.Namespace) -> Experiment:
    from bert_jax.config.tuning import FROZEN_ENCODER, TuningConfig
    from bert_jax.train.presets import DEFAULT_EPOCHS, fine_tuning_experiment

    if args.task.endswith(".py"):
        raise ConfigError(f"a recipe is given with --config: finetune --config {args.task}")
    config, given = few_shot_task(args, task_config(args)), _given_settings(args)
    if args.arguments:
        raise ConfigError(f"--arg is for recipes given with --config, not for {args.task}")
    if "max_target_length" in given:
        raise ConfigError(f"--max-target-length is an option of {TEXT_TO_TEXT}, not of {args.task}")
    if "teacher_layers" in given and "teacher" not in given:
        raise ConfigError("--teacher-layers needs --teacher, the model that has these layers")
    if "teacher_layers" in given and "model" in given:
        raise ConfigError(
            f"--model {args.model} and --teacher-layers: expected one of them, the model or the "
            "layers of the teacher from which to start"
        )
    if "model" not in given and "teacher_layers" not in given:
        advice = ", or --teacher-layers" if "teacher" in given else ""
        raise ConfigError(f"{args.task} needs --model, the pretrained model{advice}")
    if any(assignment.startswith("train.phases") for assignment in args.overrides):
        given.setdefault("epochs", DEFAULT_EPOCHS)  # --set says how long to train
    method = tuning_method(args)
    if args.frozen_encoder and args.method:
        raise ConfigError(f"--frozen-encoder and --method {args.method}: expected one of them")
    tuning = FROZEN_ENCODER if args.frozen_encoder else TuningConfig(method=method)
    given["truncation"] = make_truncation(
        given.get("truncation", "head"),
        given.pop("window_pooling", None),
        given.pop("num_windows", None),
    )
    given["prompt"] = few_shot_prompt(args)
    model = given.pop("model", None)
    experiment = fine_tuning_experiment(config, model, **given, tuning=tuning)
    _check_window_overlap(experiment, args)
    return override(experiment, args.overrides)


def _refuse_window_overlap_by_set(args: argparse.Namespace) -> None:
    if any(assignment.startswith("data.window_overlap") for assignment in args.overrides):
        flag = "--arg window_overlap=TOKENS" if args.config else "--window-overlap TOKENS"
        raise ConfigError(
            f"--set data.window_overlap is applied after the updates are counted; use {flag}"
        )


def _check_window_overlap(experiment: Any, args: argparse.Namespace) -> None:
    """Raises ConfigError if an overlap was given for texts that are not cut into windows."""
    from bert_jax.config.labeled_data import JointWindows, Windows
    from bert_jax.tasks.registry import kind_of_head

    has_windows = isinstance(experiment.data.truncation, Windows | JointWindows)
    has_windows |= kind_of_head(experiment.objective.head).reads_windows
    if args.window_overlap is not None and not has_windows:
        raise ConfigError(
            f"--window-overlap {args.window_overlap}: texts of {args.task} are not cut into "
            "windows; remove it, or add --truncation windows or hierarchical"
        )


def _layer_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        message = f"{text!r}, expected numbers of layers such as 0,2,4"
        raise argparse.ArgumentTypeError(message) from None


def _given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the hyperparameters given as flags; presets provide defaults for the others."""
    return {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}
