"""Defines the arguments of all verbs that compute outputs of a model: MODEL and sizes."""

import argparse
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import ConfigError

MODEL_WITH_HEAD = (
    "MODEL is a run folder (of finetune or setfit), an export, another Hugging Face folder of a\n"
    "model with a head, or an adapter folder of the peft library."
)
"""Describes MODEL in the epilog of verbs that need the head of a task."""

MODEL_WITHOUT_HEAD = (
    "MODEL is an export, a run folder, one of its checkpoints, or any Hugging Face folder of an\n"
    "encoder."
)
"""Describes MODEL in the epilog of verbs that need no head of a task."""


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL."""
    parser.add_argument("model", metavar="MODEL", help="run folder or exported model")


def add_base_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --base."""
    parser.add_argument(
        "--base",
        metavar="FOLDER",
        help="copy of the model that an adapter was trained on (default: that in the adapter's "
        "config)",
    )


def add_max_length_argument(parser: Any) -> None:
    """Adds --max-length to a parser or to a group of flags."""
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="maximum length of a sequence (default: as in training)",
    )


def add_batch_size_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --batch-size."""
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="sequences computed at once (default: 32)",
    )


def refuse_flags_of_heads(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raises a ConfigError if a flag is given that a model of SetFit does not have.

    Args:
      names: names in `args` of flags that have no default.
    """
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is not for {args.model}, a model of SetFit; remove it"
            )
