"""Runs `bert-jax tokenizer train`: trains a tokenizer on text files."""

import shlex
from dataclasses import dataclass

from bert_jax.cli.arguments import EncodingArguments
from bert_jax.config.flags import REQUIRED, flag, positional, switch
from bert_jax.config.text import TokenizerKind
from bert_jax.errors import ConfigError
from bert_jax.text.files import DocumentUnit

HELP = "train a WordPiece, byte-level BPE or Unigram tokenizer on text files, or take ESM-2's"

EPILOG = """\
example:
  bert-jax tokenizer train --kind bpe --vocab-size 8192 --output vocabulary 'books/**/*.txt.gz'

The same files and settings give the same tokenizer. transformers.AutoTokenizer opens the folder;
its manifest.json lists the files that the tokenizer was trained on.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(EncodingArguments):
    """Names the files and the folder, and the settings of the tokenizer."""

    files: tuple[str, ...] = positional(
        "FILE", "text or .jsonl file, plain or compressed (.gz, .bz2, .zst), or a glob pattern"
    )
    output: str = flag("DIR", "folder of the new tokenizer", REQUIRED)
    kind: TokenizerKind = flag("", "algorithm", "wordpiece")
    vocab_size: int = flag("N", "number of tokens, including special tokens", 30522)
    sentinels: int = flag(
        "N",
        "number of sentinel tokens for T5, part of --vocab-size; for unigram, 100 are usual",
        0,
    )
    cased: bool = switch(
        "case-sensitive tokens (for wordpiece, accents are kept too); bpe always has them"
    )
    document_unit: DocumentUnit = flag("", "unit of a plain-text file that is one document", "file")
    json_field: str = flag("NAME", "field of .jsonl lines with the text", "text")

    def __post_init__(self) -> None:
        if self.kind == "bpe" and self.cased:
            raise ConfigError("--kind bpe is always case-sensitive; remove --cased")


def run(args: Arguments) -> None:
    """Trains the tokenizer, writes its folder and prints a summary."""
    from bert_jax.config.text import TokenizerTrainingConfig
    from bert_jax.text.learn import train_tokenizer_from_files

    config = TokenizerTrainingConfig(
        kind=args.kind, vocab_size=args.vocab_size, cased=args.cased, sentinels=args.sentinels
    )
    tokenizer = train_tokenizer_from_files(
        args.files,
        args.output,
        config,
        encoding=args.encoding,
        errors=args.errors,
        json_field=args.json_field,
        document_unit=args.document_unit,
    )
    print(f"{args.output}: {tokenizer.kind}, {tokenizer.vocab_size} tokens", end="")
    if tokenizer.vocab_size < args.vocab_size and args.kind != "amino_acids":
        print(f" ({args.vocab_size} requested, but the text does not have that many)", end="")
    print(f", fingerprint {tokenizer.fingerprint[:12]}")
    # A pattern that the shell has replaced may be thousands of files.
    files = " ".join(map(shlex.quote, args.files)) if len(args.files) <= 3 else "FILE ..."
    output = shlex.quote(args.output)
    print(f"next: bert-jax prepare --files {files} --tokenizer {output} --output prepared")
