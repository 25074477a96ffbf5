"""Runs `bert-jax vocabulary add`: makes words single tokens of a pretrained encoder."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.vocabulary.cli.arguments import (
    CHANGE_HELP,
    ChangeArguments,
    write_and_report,
)
from bert_jax.cli.arguments import ModelArguments
from bert_jax.config.flags import positional

HELP = "add words to the vocabulary of a pretrained encoder"

EPILOG = f"""example:
  bert-jax vocabulary add exported words.txt --output extended --text heldout.txt

WORDS has a word on each line. They become entries of the vocabulary, found as all others are:
after lower-casing, at word boundaries, and followed by continuations. The row of a new token
is the mean of the rows of the tokens that it had; the output layer and its bias get rows, too.

{CHANGE_HELP}"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ChangeArguments, ModelArguments):
    """Names the model, the words and the new folder."""

    words: str = positional("WORDS", "file with a word on each line")


def run(args: Arguments) -> None:
    """Writes the folder and prints the report."""
    from bert_jax.apps.vocabulary.added_words import read_words
    from bert_jax.apps.vocabulary.change import add_words_to_model, load_for_vocabulary
    from bert_jax.io.atomic_io import check_new_folder

    check_new_folder(Path(args.output))
    words = read_words(args.words)
    model = load_for_vocabulary(args.model)
    change = add_words_to_model(model, words, args.words, random_rows=args.random_rows)
    write_and_report(change, args)
