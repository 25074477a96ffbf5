"""Runs `bert-jax generate`: prints the texts that T5 or BART writes for texts, as JSON lines."""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bert_jax.cli.arguments import ModelArguments, TextArguments, text_groups
from bert_jax.config.flags import check_needs, flag, given, switch
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.config.generation import GenerationConfig

HELP = "write summaries, translations and other texts with T5 or BART"

EPILOG = """examples:
  bert-jax generate t5-small "translate English to German: The house is small."
  bert-jax generate bart-large-cnn --num-beams 4 --length-penalty 2 --min-new-tokens 55 \\
      --max-new-tokens 140 --no-repeat-ngram-size 3 --file articles.txt > summaries.jsonl
  bert-jax generate runs/t5 --sample --temperature 0.7 --top-p 0.9 "A <extra_id_0> night."

MODEL is a run folder of T5 or BART, one of its checkpoints, or a Hugging Face folder.
Each line of output: {"text", "generated", "complete"}; "complete" is false if the text was cut at
--max-new-tokens. An empty line of a file or of standard input gives an empty text.
"""


_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_DECODING = "decoding (default: the most likely token each time)"
_decoding = partial(flag, group=_DECODING)


@dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments, ModelArguments):
    """Names the model and the texts, and how tokens are chosen."""

    max_new_tokens: int = flag("N", "largest length", 64, group="lengths")
    min_new_tokens: int = flag("N", "smallest length", 0, group="lengths")
    max_source_tokens: int = flag("N", "longer sources are truncated", 512, group="lengths")
    num_beams: int | None = _decoding("K", "beam search with K beams")
    length_penalty: float | None = _decoding(
        "X", "beams are compared by log probability / length ** X (default: 1)"
    )
    sample: bool = switch("draw tokens at random", group=_DECODING)
    temperature: float | None = _decoding("X", "divides the logits of --sample (default: 1)")
    top_k: int | None = _decoding("K", "sample from the K most likely tokens")
    top_p: float | None = _decoding("P", "sample from the likely tokens with probability P")
    seed: int | None = _decoding("N", "seed of --sample (default: 0)")
    no_repeat_ngram_size: int = _decoding("N", "no N tokens in a row occur twice in a text", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_needs(self, "sample", *_SAMPLING)
        if self.sample and self.num_beams is not None:
            raise ConfigError("--sample and --num-beams exclude each other; remove one of them")
        check_needs(self, "num_beams", "length_penalty")


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    settings = _settings(args)  # checked before the model is loaded, which takes seconds
    from bert_jax.predict.generator import Generator
    from bert_jax.pretrained.load import load_model
    from bert_jax.runs.progress import LiveLine

    generate = Generator(load_model(args.model), settings)
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


def _settings(args: Arguments) -> "GenerationConfig":
    """Returns the settings that the flags choose; ConfigError for a value out of range."""
    from bert_jax.config.generation import BeamSearch, Decoding, GenerationConfig, Greedy, Sampling

    decoding: Decoding = Greedy()
    if args.sample:
        decoding = Sampling(**given(args, *_SAMPLING))
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
