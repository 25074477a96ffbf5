"""Defines the flags of `bert-jax finetune` that say which part of a model is trained, and how."""

import argparse
from collections.abc import Callable
from typing import Any, Literal

from bert_jax.config.tuning import (
    BitFit,
    FullTuning,
    LayerNormTuning,
    QueryAndIntermediateBiases,
    TuningMethod,
)
from bert_jax.errors import ConfigError
from bert_jax.models.adapters.config import (
    IA3,
    DoRA,
    HoulsbyAdapter,
    LoRA,
    PeftSelection,
    PfeifferAdapter,
    PrefixTuning,
    PromptTuning,
)


def _bitfit_subset() -> BitFit:
    return BitFit(biases=QueryAndIntermediateBiases())


def _peft_ia3() -> IA3:
    return IA3(selection=PeftSelection())


MethodName = Literal[
    "full",
    "lora",
    "dora",
    "bitfit",
    "bitfit-subset",
    "layer-norm",
    "ia3",
    "ia3-peft",
    "houlsby",
    "pfeiffer",
    "prefix",
    "prompt",
]

METHODS: dict[str, Callable[..., TuningMethod]] = {
    "full": FullTuning,
    "lora": LoRA,
    "dora": DoRA,
    "bitfit": BitFit,
    "bitfit-subset": _bitfit_subset,
    "layer-norm": LayerNormTuning,
    "ia3": IA3,
    "ia3-peft": _peft_ia3,
    "houlsby": HoulsbyAdapter,
    "pfeiffer": PfeifferAdapter,
    "prefix": PrefixTuning,
    "prompt": PromptTuning,
}
"""The values of --method, and of `method` in recipes. `_FLAGS` has arguments of the functions."""

_FLAGS = {
    "rank": ("lora", "dora"),
    "alpha": ("lora", "dora"),
    "dropout": ("lora", "dora"),
    "targets": ("lora", "dora"),
    "initial_text": ("prompt",),
}
"""The field of each flag, and the methods that have it."""


def add_method_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --frozen-encoder, --method and its flags; --set train.tuning.method... has the rest."""
    parser.add_argument(
        "--frozen-encoder",
        action="store_true",
        help="train only the head, on features that the encoder computes once: much faster, "
        "at a lower quality (try --learning-rate 1e-3 and more epochs)",
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="part of the encoder that is trained; all methods except full train a few parameters "
        "besides the head, and their checkpoints need the model at its path (default: full)",
    )
    parser.add_argument(
        "--rank", type=int, metavar="N", help="rank of the matrices of lora and dora (default: 8)"
    )
    parser.add_argument(
        "--alpha",
        type=float,
        metavar="NUMBER",
        help="numerator of the scale alpha / rank of lora and dora (default: 16)",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        metavar="RATE",
        help="dropout before the matrices of lora and dora (default: 0.1)",
    )
    parser.add_argument(
        "--target",
        dest="targets",
        nargs="+",
        metavar="NAME",
        help="with --method lora or dora: adapted layers, by the end of their paths, such as "
        "attention/output (default: query value); with the task text2text: the column that the "
        "decoder learns to write",
    )
    parser.add_argument(
        "--initial-text",
        metavar="TEXT",
        help="with --method prompt: text whose token embeddings initialize the vectors "
        "(default: random vectors)",
    )


def tuning_method(args: argparse.Namespace) -> TuningMethod:
    """Returns the method that the flags describe.

    Raises:
      ConfigError: a flag does not belong to the method, or its value is out of range.
    """
    name = args.method or "full"
    fields: dict[str, Any] = {}
    for field, methods in _FLAGS.items():
        value = getattr(args, field)
        if value is None:
            continue
        if name not in methods:
            raise ConfigError(
                f"{_flag(field)} does not apply to --method {name}; expected --method "
                f"{' or '.join(methods)}"
            )
        fields[field] = tuple(value) if isinstance(value, list) else value
    if "initial_text" in fields:
        fields["initial_ids"] = _initial_ids(fields.pop("initial_text"), args.model or args.teacher)
    return METHODS[name](**fields)


def _initial_ids(text: str, model: str) -> tuple[int, ...]:
    """Returns the ids of a text with its special tokens, as peft's `PromptTuningInit.TEXT`."""
    from bert_jax.pretrained.initial import tokenizer_folder
    from bert_jax.text.load_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_folder(model))
    ids = tokenizer.encode_ids([text])[0]
    if not len(ids):
        raise ConfigError(f"--initial-text {text!r} has no tokens; expected some words")
    return tuple(map(int, tokenizer.build_inputs_with_special_tokens(ids, None)))


def method_flags(args: argparse.Namespace) -> list[str]:
    """Returns the flags of `add_method_arguments` that were given."""
    return [_flag(name) for name in ("method", *_FLAGS) if getattr(args, name) is not None]


def _flag(field: str) -> str:
    return "--target" if field == "targets" else f"--{field.replace('_', '-')}"
