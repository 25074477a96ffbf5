"""Writes the files of the sheet *retrieval*: pairs to train on, and a collection of questions.

    python bench/retrieval_data.py --squad train-v1.1.json --qqp quora-dev.tsv --output data

`pairs.jsonl` has a sample of questions and their paragraphs. `relevance.jsonl` has the same pairs
with the label 1; with the label 0, each question has the first other paragraph that BM25 finds.
`quora/` is a retrieval set in BEIR's layout (Thakur et al. 2021). Its texts are questions of Quora
Question Pairs. Those that labeled duplicates connect are relevant to each other; a question is not
a result for itself.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bert_jax.apps.search.nearest import NO_ROW, Bm25
from bert_jax.config.labeled_data import Squad
from bert_jax.data.finetuning.example import QuestionExample
from bert_jax.data.finetuning.readers.squad import read_squad
from bert_jax.data.finetuning.readers.tabular_files import read_table

_CANDIDATES = 20


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the files of the flags and writes those of the sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--squad", nargs="+", required=True, help="files in SQuAD's format")
    parser.add_argument("--num-pairs", type=int, default=3200)
    parser.add_argument("--qqp", required=True, help="file with GLUE's columns")
    parser.add_argument("--num-queries", type=int, default=1000, help="of Quora")
    parser.add_argument("--num-texts", type=int, default=15_000, help="of Quora")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)

    (args.output / "quora" / "qrels").mkdir(parents=True, exist_ok=True)
    pairs = _questions_and_paragraphs(args.squad)
    sample = rng.sample(pairs, args.num_pairs)
    _write(
        args.output / "pairs.jsonl",
        ({"anchor": question, "positive": paragraph} for question, paragraph in sample),
    )
    _write(args.output / "relevance.jsonl", _labeled(sample, [text for _, text in pairs]))
    _write_quora(args.qqp, args.output / "quora", args.num_queries, args.num_texts, rng)


def _questions_and_paragraphs(files: Iterable[str]) -> list[tuple[str, str]]:
    return [
        (example.question, example.context)
        for file in files
        for example in read_squad(Squad(train=file)).splits["train"]
        if isinstance(example, QuestionExample)
    ]


def _labeled(pairs: list[tuple[str, str]], texts: list[str]) -> Iterable[dict[str, Any]]:
    """Yields each pair, and its question with the first text of BM25 that is not its paragraph."""
    texts = list(dict.fromkeys(texts))
    found = Bm25(texts).search([question for question, _ in pairs], _CANDIDATES).rows
    for (question, paragraph), rows in zip(pairs, found, strict=True):
        yield {"query": question, "text": paragraph, "relevant": 1}
        others = [texts[row] for row in rows if row != NO_ROW and texts[row] != paragraph]
        if others:
            yield {"query": question, "text": others[0], "relevant": 0}


def _write_quora(
    file: str, folder: Path, num_queries: int, num_texts: int, rng: random.Random
) -> None:
    """Writes a sample of queries, all texts that are relevant to them, and other texts."""
    columns = ["question1", "question2", "is_duplicate"]
    duplicates: dict[str, set[str]] = defaultdict(set)
    for row in read_table(file).rows:
        first, second, label = (str(row.cells[name]).strip() for name in columns)
        if not first or not second:
            continue
        for question, other in ((first, second), (second, first)):
            duplicates[question] |= {other} if float(label) else set()
    groups = {question: _connected(question, duplicates) for question in duplicates}
    queries = rng.sample([q for q, group in groups.items() if len(group) > 1], num_queries)
    needed = dict.fromkeys(text for query in queries for text in sorted(groups[query]))
    others = [question for question in groups if question not in needed]
    texts = [*needed, *rng.sample(others, num_texts - len(needed))]
    ids = {text: f"q{number}" for number, text in enumerate(texts)}
    _write(folder / "corpus.jsonl", ({"_id": ids[text], "text": text} for text in texts))
    _write(folder / "queries.jsonl", ({"_id": ids[text], "text": text} for text in queries))
    relevant = [
        f"{ids[query]}\t{ids[text]}\t1\n"
        for query in queries
        for text in sorted(groups[query] - {query})
    ]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(relevant))


def _connected(question: str, duplicates: dict[str, set[str]]) -> set[str]:
    """Returns the questions that are connected with one by labeled duplicates, and itself."""
    found, waiting = {question}, [question]
    while waiting:
        new = duplicates[waiting.pop()] - found
        found |= new
        waiting += sorted(new)
    return found


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
