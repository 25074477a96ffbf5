"""Runs `bert-jax word-vectors senses`: the occurrences of a word in several sentences."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import REQUIRED, flag, positional

HELP = "compare the vectors of a word in several sentences, as of “bank” in two senses"

EPILOG = """examples:
  bert-jax word-vectors senses bank "They sat on the bank of the river." \\
      "The bank lends money." "The river left its bank." --models glove.txt elmo exported

Prints, for each layer of each model, the cosine of the occurrences of the word in each pair of
sentences, and the nearest one. A static vector is the same everywhere, so its cosines are 1. A
model is a file of word vectors, a folder of ELMo, or an encoder.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the word, the sentences and the models."""

    word: str = positional("WORD", "word in lower case")
    sentences: tuple[str, ...] = positional("SENTENCE", "sentence with the word")
    models: tuple[str, ...] = flag("MODEL", "models to compare", REQUIRED)
    output: str | None = flag("FILE", "HTML page; the numbers are in a .json file next to it")


def run(args: Arguments) -> None:
    """Prints the tables, and writes the page."""
    from bert_jax.apps.word_vectors.senses import compare_senses, senses_page
    from bert_jax.apps.word_vectors.word_encoder import load_word_encoder
    from bert_jax.io.atomic_io import atomic_write, check_writable, write_json

    check_writable(args.output)
    word, sentences = args.word.lower(), args.sentences
    found = {m: compare_senses(load_word_encoder(m), word, sentences) for m in args.models}
    for number, sentence in enumerate(sentences, start=1):
        print(f"{number}  {sentence}")
    for model, comparison in found.items():
        for name, layer in comparison["layers"].items():
            print(f"\n{model}, {name}")
            rows = zip(layer["cosines"], layer["nearest"], strict=True)
            for number, (cosines, nearest) in enumerate(rows, start=1):
                cells = "".join(f"{cosine:7.2f}" for cosine in cosines)
                print(f"{number}{cells}   nearest {nearest + 1}", flush=True)
    if args.output is not None:
        atomic_write(Path(args.output), senses_page(found))
        write_json(Path(args.output).with_suffix(".json"), found)
