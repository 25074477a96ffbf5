"""Runs `bert-jax generate`: prints what T5, BART or an encoder writes, as JSON lines."""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from bert_jax.cli.arguments import ModelArguments, TextArguments, text_groups
from bert_jax.config.flags import check_needs, first_given, flag, given, switch
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.config.generation import Decoding, GenerationConfig, UnmaskingConfig
    from bert_jax.predict.generator import Generator
    from bert_jax.predict.unmasker import Unmasker

HELP = "write texts with T5, BART, or an encoder that was trained to replace masks"

EPILOG = """examples:
  bert-jax generate t5-small "translate English to German: The house is small."
  bert-jax generate bart-large-cnn --num-beams 4 --length-penalty 2 --min-new-tokens 55 \\
      --max-new-tokens 140 --no-repeat-ngram-size 3 --file articles.txt > summaries.jsonl
  bert-jax generate runs/t5 --sample --temperature 0.7 --top-p 0.9 "A <extra_id_0> night."
  bert-jax generate runs/diffusion --max-new-tokens 32 --steps 16 "It was a dark night."

MODEL is a run folder, one of its checkpoints, or a Hugging Face folder: of T5, BART, or an encoder
with a masked-LM head, best of the recipe masked_diffusion.
Each line of output: {"text", "generated", "complete"}; "complete" is false if the text was cut at
--max-new-tokens. An empty line of a file or of standard input gives an empty text.
An encoder continues a text with exactly --max-new-tokens tokens, fills the masks in it, and prints
both together; an empty text is written from nothing.
"""


_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_ONLY_DECODERS = (
    *("min_new_tokens", "max_source_tokens", "num_beams", "length_penalty"),
    "no_repeat_ngram_size",
)
_ONLY_ENCODERS = ("steps", "order")
_DECODING = "decoding (default: the most likely token each time)"
_ENCODERS = "encoders"
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
    steps: int | None = flag(
        "N",
        "forward passes, each of which replaces some masks (default: one for each mask)",
        group=_ENCODERS,
    )
    order: Literal["confidence", "random"] = flag(
        "", "which masks are replaced first", "confidence", group=_ENCODERS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_needs(self, "sample", *_SAMPLING)
        if self.sample and self.num_beams is not None:
            raise ConfigError("--sample and --num-beams exclude each other; remove one of them")
        check_needs(self, "num_beams", "length_penalty")


def run(args: Arguments) -> None:
    """Prints one JSON line for each text, in order."""
    settings = _settings(args)  # checked before the model is loaded, which takes seconds
    unmasking = _unmasking_settings(args, settings.decoding)
    from bert_jax.runs.progress import LiveLine

    generate = _generator(args, settings, unmasking)
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


def _generator(
    args: Arguments, settings: "GenerationConfig", unmasking: "UnmaskingConfig"
) -> "Generator | Unmasker":
    """Loads the model; ConfigError for a flag that would do nothing with it."""
    from bert_jax.predict.generator import Generator
    from bert_jax.predict.unmasker import Unmasker
    from bert_jax.pretrained.load import load_model
    from bert_jax.pretrained.seq2seq import LoadedSeq2Seq

    model = load_model(args.model)
    is_seq2seq = isinstance(model, LoadedSeq2Seq)
    if name := first_given(args, *(_ONLY_ENCODERS if is_seq2seq else _ONLY_DECODERS)):
        kind, other = "an encoder-decoder", "encoders"
        if not is_seq2seq:
            kind, other = "an encoder, which replaces masks", "encoder-decoders"
        raise ConfigError(f"{name} is for {other}, but {args.model} is {kind}; remove {name}")
    return Generator(model, settings) if is_seq2seq else Unmasker(model, unmasking)


def _unmasking_settings(args: Arguments, decoding: "Decoding") -> "UnmaskingConfig":
    """Returns the settings for an encoder; ConfigError for a value out of range."""
    from bert_jax.config.generation import Greedy, Sampling, UnmaskingConfig

    return UnmaskingConfig(
        num_tokens=args.max_new_tokens,
        num_steps=args.steps,
        order=args.order,
        decoding=decoding if isinstance(decoding, Sampling) else Greedy(),
    )


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
