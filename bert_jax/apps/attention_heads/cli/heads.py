"""Runs `bert-jax heads`: what the attention heads of an encoder do."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    MODEL_WITHOUT_HEAD,
    EncodingArguments,
    ModelArguments,
    text_groups,
)
from bert_jax.config.flags import flag
from bert_jax.errors import ConfigError, check_range

if TYPE_CHECKING:
    from bert_jax.apps.treebanks.conllu import TreebankSentence

logger = logging.getLogger(__name__)

HELP = "describe attention heads: what they attend to, which relations they find, which are alike"

EPILOG = f"""examples:
  bert-jax heads exported --file texts.txt
  bert-jax heads exported --treebank en_ewt-ud-dev.conllu --limit 500 --output heads

{MODEL_WITHOUT_HEAD}
After Clark et al. 2019: for each head, the attention to [CLS], [SEP], punctuation, the previous
token, the token itself and the next one, as a fraction of all attention; and the entropy of the
attention of a token, in nats. Texts are truncated to 128 tokens.

With --treebank, a file in the CoNLL-U format, for each dependency relation: the head whose largest
attention weight finds the head of most words, and the best fixed offset. Both are chosen on every
other sentence, and the accuracies are those on the other half.

Heads are written as LAYER-HEAD, layers from 1 and heads from 0. --output FOLDER gets heads.json,
with all numbers and the Jensen-Shannon divergences between heads on the first 64 texts, and
heads.html, a page that opens offline, with a map of the heads.
"""
_DISTANCE_TEXTS = 64


@dataclass(frozen=True, kw_only=True)
class Arguments(EncodingArguments, ModelArguments):
    """Names the model and the texts."""

    file: tuple[str, ...] = flag(
        "FILE",
        "file or glob pattern: .txt with a text on each line, or .jsonl with a field 'text'; "
        "repeatable (default: the sentences of the treebank)",
        (),
        action="append",
    )
    treebank: str | None = flag("FILE", "treebank in the CoNLL-U format")
    limit: int | None = flag("N", "first sentences of the treebank to read (default: all)")
    output: str | None = flag("FOLDER", "folder of the JSON file and the page")

    def __post_init__(self) -> None:
        if not self.file and self.treebank is None:
            raise ConfigError("there is no text; give --file, --treebank or both")
        if self.limit is not None:
            if self.treebank is None:
                raise ConfigError("--limit needs --treebank, whose sentences it counts")
            check_range("--limit", self.limit, at_least=1)

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns no texts: all are in files."""
        return ()


def run(args: Arguments) -> None:
    """Prints which heads attend most to each kind of token, and the best head of each relation."""
    from tqdm import tqdm

    from bert_jax.apps.attention_heads.page import (
        RELATION_COLUMNS,
        heads_page,
        relation_rows,
        strongest_heads,
    )
    from bert_jax.apps.attention_heads.relations import Relation, best_heads
    from bert_jax.apps.attention_heads.statistics import describe_heads, head_distances, head_map
    from bert_jax.apps.treebanks.conllu import read_treebank
    from bert_jax.io.atomic_io import check_writable
    from bert_jax.pretrained.load import load_encoder
    from bert_jax.report.output_folder import write_results
    from bert_jax.report.text_table import format_table

    check_writable(args.output, is_folder=True)
    sentences = [] if args.treebank is None else read_treebank(args.treebank, limit=args.limit)
    model = load_encoder(args.model)
    with tqdm(desc="attention", unit=" texts", disable=None) as bar:
        statistics = describe_heads(model, _texts(args, sentences), on_progress=bar.update)
    matrices = {**statistics.attention, "entropy": statistics.entropy}
    rows = [[name, *strongest_heads(values)] for name, values in matrices.items()]
    print(format_table(["attention to", "mean", "strongest heads", "", ""], rows), flush=True)
    relations: list[Relation] = []
    if sentences:
        with tqdm(desc="relations", total=len(sentences), unit=" sentences", disable=None) as bar:
            relations = best_heads(model, sentences, on_progress=bar.update)
        print("\n" + format_table(RELATION_COLUMNS, relation_rows(relations)), flush=True)
    if args.output is None:
        return
    divergences = head_distances(model, next(_texts(args, sentences))[:_DISTANCE_TEXTS])
    positions = head_map(divergences)
    results: dict[str, Any] = {
        "model": args.model,
        "tokens": statistics.num_tokens,
        "attention": {name: values.tolist() for name, values in statistics.attention.items()},
        "entropy": statistics.entropy.tolist(),
        "relations": [relation._asdict() for relation in relations],
        "divergences": divergences.tolist(),
        "map": positions.tolist(),
    }
    description = (
        f"{statistics.num_tokens:,} tokens. Fractions of the attention of a token, and the entropy "
        "of its weights in nats."
    )
    page = heads_page(
        f"Attention heads of {args.model}", description, matrices, positions, relations
    )
    write_results(Path(args.output), "heads", results, page)


def _texts(args: Arguments, sentences: "Sequence[TreebankSentence]") -> Iterator[list[str]]:
    if args.file:
        yield from text_groups(args)
    else:
        yield [" ".join(sentence.words) for sentence in sentences]
