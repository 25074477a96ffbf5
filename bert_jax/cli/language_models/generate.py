"""Runs `bert-jax generate`: prints the texts that T5 or BART writes for texts, as JSON lines."""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from bert_jax.cli.arguments.prediction import add_model_argument
from bert_jax.cli.arguments.text_inputs import add_text_arguments, text_groups
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.config.generation import GenerationConfig

HELP = "write a text for each text with T5 or BART"

_EPILOG = """examples:
  bert-jax generate t5-small "translate English to German: The house is small."
  bert-jax generate bart-large-cnn --num-beams 4 --length-penalty 2 --min-new-tokens 55 \\
      --max-new-tokens 140 --no-repeat-ngram-size 3 --file articles.txt > summaries.jsonl
  bert-jax generate runs/t5 --sample --temperature 0.7 --top-p 0.9 "A <extra_id_0> night."

MODEL is a run folder of T5 or BART, one of its checkpoints, or a Hugging Face folder.
Each line of output: {"text", "generated", "complete"}; "complete" is false if the text was cut at
--max-new-tokens. An empty line of a file or of standard input gives an empty text.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds MODEL, the texts, and the flags of decoding."""
    add_model_argument(parser)
    add_text_arguments(parser)
    lengths = parser.add_argument_group("lengths")
    lengths.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="largest length (default: 64)"
    )
    lengths.add_argument(
        "--min-new-tokens", type=int, default=0, metavar="N", help="smallest length (default: 0)"
    )
    lengths.add_argument(
        "--max-source-tokens",
        type=int,
        default=512,
        metavar="N",
        help="longer sources are truncated (default: 512)",
    )
    decoding = parser.add_argument_group("decoding (default: the most likely token each time)")
    decoding.add_argument("--num-beams", type=int, metavar="K", help="beam search with K beams")
    decoding.add_argument(
        "--length-penalty",
        type=float,
        metavar="X",
        help="beams are compared by log probability / length ** X (default: 1)",
    )
    decoding.add_argument("--sample", action="store_true", help="draw tokens at random")
    decoding.add_argument(
        "--temperature", type=float, metavar="X", help="divides the logits of --sample (default: 1)"
    )
    decoding.add_argument(
        "--top-k", type=int, metavar="K", help="sample from the K most likely tokens"
    )
    decoding.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the likely tokens with probability P"
    )
    decoding.add_argument("--seed", type=int, metavar="N", help="seed of --sample (default: 0)")
    decoding.add_argument(
        "--no-repeat-ngram-size",
        type=int,
        default=0,
        metavar="N",
        help="no N tokens in a row occur twice in a text",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints one JSON line for each text, in order."""
    settings = _settings(args)  # checked before the model is loaded, which takes seconds
    from bert_jax.predict.generation.generator import Generator
    from bert_jax.pretrained.seq2seq import load_seq2seq
    from bert_jax.runs.progress import LiveLine

    generate = Generator(load_seq2seq(args.model), settings)
    line, start, count = LiveLine(), time.monotonic(), 0

    def on_progress(num_texts: int) -> None:
        nonlocal count
        count += num_texts
        rate = count / max(time.monotonic() - start, 1e-9)
        if not sys.stdout.isatty():  # else the texts themselves show the progress
            line.update(lambda: f"{count:,} texts, {rate:,.1f} texts/s")

    try:
        first_index = 0
        for texts in text_groups(args):
            for text, result in zip(texts, generate(texts, on_progress, first_index), strict=True):
                output = {
                    "text": text,
                    "generated": result.text,
                    "complete": result.is_complete,
                }
                print(json.dumps(output, ensure_ascii=False), flush=True)
            first_index += len(texts)
    finally:
        line.close()


def _settings(args: argparse.Namespace) -> "GenerationConfig":
    """Returns the settings that the flags choose; ConfigError if they do not go together."""
    from bert_jax.config.generation import BeamSearch, Decoding, GenerationConfig, Greedy, Sampling

    sampling = {
        name: getattr(args, name)
        for name in ("temperature", "top_k", "top_p", "seed")
        if getattr(args, name) is not None
    }
    if sampling and not args.sample:
        flag = "--" + next(iter(sampling)).replace("_", "-")
        raise ConfigError(f"{flag} is a setting of sampling; add --sample")
    if args.sample and args.num_beams is not None:
        raise ConfigError("--sample and --num-beams exclude each other; remove one of them")
    if args.length_penalty is not None and args.num_beams is None:
        raise ConfigError("--length-penalty is a setting of beam search; add --num-beams")
    decoding: Decoding = Greedy()
    if args.sample:
        decoding = Sampling(**sampling)
    elif args.num_beams is not None:
        penalty = 1.0 if args.length_penalty is None else args.length_penalty
        decoding = BeamSearch(num_beams=args.num_beams, length_penalty=penalty)
    return GenerationConfig(
        decoding=decoding,
        max_new_tokens=args.max_new_tokens,
        min_new_tokens=args.min_new_tokens,
        no_repeat_ngram_size=args.no_repeat_ngram_size,
        max_source_tokens=args.max_source_tokens,
    )
