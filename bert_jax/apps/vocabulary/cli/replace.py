"""Runs `bert-jax vocabulary replace`: gives a pretrained encoder another tokenizer."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.vocabulary.cli.arguments import (
    CHANGE_HELP,
    ChangeArguments,
    write_and_report,
)
from bert_jax.cli.arguments import ModelArguments
from bert_jax.config.flags import REQUIRED, flag

HELP = "give a pretrained encoder another tokenizer"

EPILOG = f"""example:
  bert-jax tokenizer train --vocab-size 8192 --output new 'domain/*.txt'
  bert-jax vocabulary replace exported --tokenizer new --focus 'domain/*.txt' --output replaced

Tokens that both vocabularies have keep their rows. With --focus, which needs the extra
[word-vectors], the others get the weighted mean of the rows of the copied tokens that are most
similar in the given text (FOCUS, Dobler and de Melo 2023), without it, or if they are rare there,
the mean of their old tokens. The special tokens have to be the same.

{CHANGE_HELP}"""


@dataclass(frozen=True, kw_only=True)
class Arguments(ChangeArguments, ModelArguments):
    """Names the model, the tokenizer, the text for FOCUS and the new folder."""

    tokenizer: str = flag("PATH", "folder or file of the new tokenizer", REQUIRED)
    focus: tuple[str, ...] = flag(
        "FILE", "text or .jsonl files for the similarities of tokens, in the new domain", ()
    )


def run(args: Arguments) -> None:
    """Writes the folder and prints the report."""
    from bert_jax.apps.vocabulary.change import load_for_vocabulary, replace_tokenizer
    from bert_jax.apps.word_vectors.sentences import read_texts
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.text.load_tokenizer import load_tokenizer

    check_new_folder(Path(args.output))
    model = load_for_vocabulary(args.model)
    change = replace_tokenizer(
        model,
        load_tokenizer(args.tokenizer),
        focus_texts=list(read_texts(args.focus)) if args.focus else (),
        random_rows=args.random_rows,
    )
    write_and_report(change, args)
