"""Runs `bert-jax vocabulary compare`: tokens and loss of models with different vocabularies."""

from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.vocabulary.cli.arguments import SentenceArguments
from bert_jax.config.flags import REQUIRED, flag, positional
from bert_jax.errors import ConfigError

HELP = "compare tokens and masked-LM loss of models with different vocabularies"

EPILOG = """example:
  bert-jax vocabulary compare exported extended runs/continued --text heldout.txt

The loss is the negative pseudo-log-likelihood of sentences, per word between spaces and per byte. A
token is predicted without it and the later tokens of its word. Sentences with unknown tokens of any
of the models are left out. A model without masked-LM head has no loss.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(SentenceArguments):
    """Names the models, the text and the file of the result."""

    models: tuple[str, ...] = positional("MODEL", "run, export or Hugging Face folder")
    text: tuple[str, ...] = flag("FILE", "text or .jsonl files", REQUIRED)
    output: str | None = flag("FILE", "JSON file for the numbers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.models)) < len(self.models):
            raise ConfigError("MODEL: a model is given twice; expected each once")


def run(args: Arguments) -> None:
    """Prints the table, and writes the numbers."""
    from bert_jax.apps.vocabulary.change import load_for_vocabulary
    from bert_jax.apps.vocabulary.compare import compare_models
    from bert_jax.apps.word_vectors.sentences import read_texts
    from bert_jax.io.atomic_io import check_writable, write_json

    if args.output:
        check_writable(args.output)
    models = {path: load_for_vocabulary(path) for path in args.models}
    comparison = compare_models(models, list(read_texts(args.text)), args.num_scored)
    print(comparison.table())
    if args.output:
        write_json(Path(args.output), {"files": list(args.text), **comparison.as_json()})
