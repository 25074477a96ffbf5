"""Defines the flags of few-shot learning: prompts, samples, and examples that a model labeled."""

import argparse

from bert_jax.config.labeled_data import Columns, FewShot, Glue, Snli, TaskConfig, TrainingFile
from bert_jax.config.prompts import Prompt
from bert_jax.data.finetuning.glue_prompts import load_prompt, with_demonstrations
from bert_jax.errors import ConfigError

_FLAGS = ("prompt", "demonstrations", "shots", "split_seed", "train_file")


def add_few_shot_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --prompt, --demonstrations, --shots, --split-seed and --train-file."""
    parser.add_argument(
        "--prompt",
        metavar="NAME",
        help="template with a mask and label words, which the masked-LM head is trained to predict "
        "in place of a new classifier: a published prompt of a GLUE task, such as lm-bff, or a "
        ".json file with template and label_words",
    )
    parser.add_argument(
        "--demonstrations",
        type=int,
        metavar="N",
        help="append training examples to each text of --prompt, one of each class; a prediction "
        "is the mean over N draws (16 in LM-BFF)",
    )
    parser.add_argument(
        "--shots",
        type=int,
        metavar="K",
        help="training examples of each class that are sampled, and as many for dev; the dev split "
        "becomes the test split (default: all examples)",
    )
    parser.add_argument(
        "--split-seed", type=int, metavar="N", help="seed of the sample of --shots (default: 13)"
    )
    parser.add_argument(
        "--train-file",
        metavar="FILE",
        help="JSON lines with id, text, text_pair and label or logits, which replace the training "
        "examples of the task; a model is distilled from logits, one for each class",
    )


def few_shot_flags(args: argparse.Namespace) -> list[str]:
    """Returns those of these flags that the user gave."""
    given = [name for name in _FLAGS if getattr(args, name) is not None]
    return [f"--{name.replace('_', '-')}" for name in given]


def few_shot_prompt(args: argparse.Namespace) -> Prompt | None:
    """Returns the prompt of --prompt with the demonstrations of --demonstrations.

    Raises:
      UserError: there is no such prompt, or its file cannot be read.
    """
    if args.prompt is not None:
        return with_demonstrations(load_prompt(args.task, args.prompt), args.demonstrations)
    if args.demonstrations is not None:
        raise ConfigError(f"--demonstrations {args.demonstrations} needs --prompt, the template")
    return None


def few_shot_task(args: argparse.Namespace, config: TaskConfig) -> TaskConfig:
    """Returns the task with the sample of --shots and the examples of --train-file, if given.

    Raises:
      ConfigError: the task is not a classification.
    """
    config = _sampled_task(args, config)
    if args.train_file is None:
        return config
    if not isinstance(config, Glue | Snli | Columns | FewShot):
        raise ConfigError(
            f"--train-file is for classification, but the task is {args.task}; expected glue/NAME, "
            "snli or columns"
        )
    return TrainingFile(task=config, file=args.train_file)


def _sampled_task(args: argparse.Namespace, config: TaskConfig) -> TaskConfig:
    if args.shots is None:
        if args.split_seed is not None:
            raise ConfigError(f"--split-seed {args.split_seed} needs --shots, the number to sample")
        return config
    if not isinstance(config, Glue | Snli | Columns):
        raise ConfigError(
            f"--shots is for classification, but the task is {args.task}; expected glue/NAME, snli "
            "or columns"
        )
    seed = FewShot.seed if args.split_seed is None else args.split_seed
    return FewShot(task=config, shots=args.shots, seed=seed)
