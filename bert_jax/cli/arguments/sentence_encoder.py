"""Defines the arguments of the verbs that compute, export or search vectors of texts."""

import argparse

from bert_jax.models.sentence_encoder.config import POOLING_MODES


def add_pooling_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --pooling."""
    parser.add_argument(
        "--pooling",
        choices=POOLING_MODES,
        help="vector of a text, from the hidden states of all its tokens with [CLS] and [SEP]: "
        "that of [CLS], the maximum, the mean, the sum divided by the square root of their number, "
        "the mean weighted with their positions, or that of the last token (default: as the model "
        "was trained, or mean)",
    )


def add_normalize_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --normalize and --no-normalize."""
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="vectors of length 1, also after --dimensions (default: as the model was trained)",
    )


def add_dimensions_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --dimensions."""
    parser.add_argument(
        "--dimensions",
        type=int,
        metavar="N",
        help="number of leading components of a vector that are kept, for models trained with a "
        "Matryoshka loss (default: all)",
    )


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --prompt-name and --prompt, of which one can be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="prompt of the model that is put before each text, such as query (default: the "
        "model's default prompt, if it has one)",
    )
    group.add_argument(
        "--prompt", metavar="TEXT", help="prompt that is put before each text, such as 'query: '"
    )


def add_rerank_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --rerank and --candidates."""
    parser.add_argument(
        "--rerank", metavar="MODEL", help="cross-encoder that orders the best texts again"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=100,
        metavar="N",
        help="texts that --rerank scores for each query (default: 100)",
    )
