"""`bert-jax vocab learn`: text files -> a vocabulary's folder."""

import argparse

from bert_jax.text.config import TOKENIZER_KINDS

HELP = "learn a WordPiece, byte-level BPE or Unigram vocabulary from text files"

EPILOG = """\
example:
  bert-jax vocab learn --kind wordpiece --size 8192 --output vocabulary 'books/**/*.txt.gz'

The same files and settings give the same vocabulary. The folder opens with
transformers.AutoTokenizer; manifest.json in it says what it was learned from.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb."""
    parser.epilog = EPILOG
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="text or .jsonl files, .gz or not; names or globs"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--kind", choices=TOKENIZER_KINDS, default="wordpiece", help="default: wordpiece"
    )
    parser.add_argument(
        "--size", type=int, default=30522, help="ids, special tokens included (default: 30522)"
    )
    parser.add_argument(
        "--cased",
        action="store_true",
        help="keep capitals (and accents, for wordpiece); bpe always does",
    )
    parser.add_argument(
        "--documents-by",
        choices=("file", "blank-line", "line"),
        default="file",
        help="how plain text is parted into documents (default: file)",
    )
    parser.add_argument(
        "--json-field", default="text", metavar="NAME", help="field of .jsonl lines (default: text)"
    )
    parser.add_argument("--encoding", default="utf-8", help="of the files (default: utf-8)")
    parser.add_argument(
        "--errors",
        choices=("strict", "replace", "ignore"),
        default="strict",
        help="what to do with bytes that are not text (default: strict, stop)",
    )


def run(args: argparse.Namespace) -> None:
    """Learns, writes, says what was made."""
    from bert_jax.text.config import TokenizerTrainingConfig
    from bert_jax.text.learn import train_tokenizer_from_files

    config = TokenizerTrainingConfig(kind=args.kind, vocab_size=args.size, cased=args.cased)
    tokenizer = train_tokenizer_from_files(
        args.files,
        args.output,
        config,
        encoding=args.encoding,
        errors=args.errors,
        json_field=args.json_field,
        document_unit=args.documents_by,
    )
    print(f"{args.output}: {tokenizer.kind}, {tokenizer.vocab_size} tokens", end="")
    if tokenizer.vocab_size < args.size:
        print(f" (the text gives no more; {args.size} were asked for)", end="")
    print(f", fingerprint {tokenizer.fingerprint[:12]}")
