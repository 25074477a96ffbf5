"""Measures how many tokens of a corpus the examples of one epoch hold: never, once, or more often.

    python -m bench.coverage CORPUS --length 128 --epochs 2

CORPUS is a folder written by `bert-jax prepare`. Every example of an epoch is made, with its tokens
replaced by their positions in the corpus. The texts B of NotNext pairs, which come from elsewhere,
do not count as read: how often they hit a token is chance. The last column has their share of
pairs.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config.data import (
    DocSentences,
    FullSentences,
    InputFormat,
    PackedSegments,
    PretrainingData,
    SentenceOrderPairs,
    SentencePairs,
    SingleSegment,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.shards import DocumentPart
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.sentence_pairs import SentencePair
from bert_jax.data.pretraining.vocab_arrays import VocabArrays

FORMATS: tuple[InputFormat, ...] = (
    SentencePairs(),
    SentenceOrderPairs(),
    SingleSegment(),
    PackedSegments(),
    FullSentences(),
    DocSentences(),
)
FIRST_POSITION = 1 << 20  # above all token ids, so that separators can be told from positions


class CorpusOfPositions(PreparedCorpus):
    """Reads a corpus whose tokens are their positions in it, counted from `FIRST_POSITION`."""

    def read(self, part_index: int) -> DocumentPart:
        """Reads a part; ids are int64."""
        part = super().read(part_index)
        begin = int(self.tokens_per_part[:part_index].sum(dtype=np.int64))
        return part._replace(ids=np.arange(begin, begin + len(part.ids)) + FIRST_POSITION)


def own_positions(example: Any, input_format: InputFormat) -> Sequence[np.ndarray]:
    """Returns the positions of an example's tokens, without a text B from another document."""
    if not isinstance(example, SentencePair):
        return (example[example >= FIRST_POSITION],)
    if isinstance(input_format, SentencePairs) and example.label:
        return (example.a,)
    return (example.a, example.b)


def count_reads(builder: BatchBuilder, epoch: int, num_tokens: int) -> tuple[np.ndarray, float]:
    """Returns how often an epoch reads each token, [num_tokens], and the mean label of pairs."""
    counts, labels = np.zeros(num_tokens, np.int32), []
    num_examples = builder.examples_per_epoch
    refs = builder.resolve_examples(epoch * num_examples, num_examples)
    for ref in zip(*(column.tolist() for column in refs), strict=True):
        example: Any = builder.dataset.read(*ref)
        for positions in own_positions(example, builder.config.input_format):
            counts[positions - FIRST_POSITION] += 1
        if isinstance(example, SentencePair):
            labels.append(example.label)
    return counts, float(np.mean(labels)) if labels else float("nan")


def main() -> None:
    """Prints a table with a row for each input format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    corpus = CorpusOfPositions(args.corpus)
    num_tokens = corpus.num_tokens
    vocab_arrays = VocabArrays.from_tokenizer(corpus.tokenizer())
    print(f"{corpus.num_documents:,} documents, {num_tokens:,} tokens, length {args.length}\n")
    print("| input format | examples | never | once | more often | never in any epoch | label 1 |")
    print("|---|---|---|---|---|---|---|")
    for input_format in FORMATS:
        builder = BatchBuilder(
            corpus,
            vocab_arrays,
            PretrainingData(corpus=args.corpus, input_format=input_format, masking=None),
            seq_length=args.length,
            batch_size=1,
            max_predictions_per_seq=1,
            seed=0,
        )
        counted = [count_reads(builder, epoch, num_tokens) for epoch in range(args.epochs)]
        counts, labels = np.array([one for one, _ in counted]), [label for _, label in counted]
        print(
            f"| {type(input_format).__name__} | {builder.examples_per_epoch:,} "
            f"| {(counts == 0).mean():.2%} | {(counts == 1).mean():.2%} "
            f"| {(counts > 1).mean():.2%} | {(counts == 0).all(axis=0).mean():.2%} "
            f"| {np.mean(labels):.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
