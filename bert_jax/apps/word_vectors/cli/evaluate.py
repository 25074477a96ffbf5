"""Runs `bert-jax word-vectors evaluate`: word similarity and analogies."""

import math
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.flags import flag, positional

HELP = "evaluate word vectors on word similarity and analogies"

EPILOG = """examples:
  bert-jax word-vectors evaluate skip-gram.txt --output skip-gram.json
  bert-jax word-vectors evaluate glove.6B.100d.txt --similarity men.tsv --analogies questions.txt

Without --similarity and --analogies: WordSim-353, SimLex-999 and the 19,544 analogies of Mikolov et
al., which are files in the package of gensim (pip install 'bert_jax[word-vectors]'). Similarity is
Spearman's rank correlation; analogies are answered by 3CosAdd. Pairs and questions with a word that
has no vector are left out, and counted in the last column. The results equal gensim's.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Names the vectors and the files of the evaluation."""

    vectors: str = positional("VECTORS", "file in the text format of word2vec or GloVe")
    similarity: tuple[str, ...] = flag(
        "FILE", "lines with two words and a rating, with tabs between them", ()
    )
    analogies: tuple[str, ...] = flag(
        "FILE", "lines with four words, under headings that begin with a colon", ()
    )
    output: str | None = flag("FILE", "JSON file with all results")


def run(args: Arguments) -> None:
    """Prints a table of the results."""
    from bert_jax.apps.word_vectors.evaluate import (
        ANALOGIES_FILE,
        SIMILARITY_FILES,
        evaluation_file,
        evaluation_rows,
    )
    from bert_jax.apps.word_vectors.vectors import read_word_vectors
    from bert_jax.io.atomic_io import check_writable, write_json

    check_writable(args.output)
    similarity, analogies = args.similarity, args.analogies
    if not similarity and not analogies:
        similarity = tuple(str(evaluation_file(name)) for name in SIMILARITY_FILES)
        analogies = (str(evaluation_file(ANALOGIES_FILE)),)
    found = evaluation_rows(read_word_vectors(args.vectors), similarity, analogies)
    print(f"{'':32} {'result':>8} {'counted':>8} {'left out':>9}")
    for kind, rows in found.items():
        for name, result in rows.items():
            value, counted, missing = result.values()
            print(f"{f'{kind}: {name}':32} {value:8.3f} {counted:8,} {missing:9,}", flush=True)
    if args.output is not None:
        # JSON has no NaN, the result of a section without questions.
        for result in (result for rows in found.values() for result in rows.values()):
            result |= {name: None for name, value in result.items() if math.isnan(value)}
        write_json(Path(args.output), found)
