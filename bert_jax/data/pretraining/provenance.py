"""Finds which tokens of the corpus an example contains, and clears the examples of documents.

The datasets read a corpus that holds positions instead of ids. So every step of making an example
(windows, pairs, truncation) is the same code, and what comes out is where each token came from.
"""

import dataclasses
from pathlib import Path
from typing import Any, overload

import numpy as np

from bert_jax.batch import FIELDS, NEXT_SENTENCE_FIELDS, SENTENCE_ORDER_FIELDS
from bert_jax.config.data import PretrainingData
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.shards import DocumentPart
from bert_jax.data.pretraining.mixture import MixedCorpora, corpora_of, make_training_dataset
from bert_jax.data.pretraining.sentence_pairs import SentencePair
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import TextWindow

NO_TOKEN = -1
"""Stands for the position of a token that is not from the corpus."""


class TokenPositions(PreparedCorpus):
    """Reads positions of tokens instead of their ids, from `first` on, as int64."""

    def __init__(self, folder: str | Path, first: int = 0) -> None:
        super().__init__(folder)
        self._first = first

    def read(self, part_index: int) -> DocumentPart:
        """Reads a document part, whose `ids` are the positions of its tokens."""
        part = super().read(part_index)
        start = self._first + int(self.part_starts[part_index])
        return part._replace(ids=np.arange(start, start + len(part.ids)))


@overload
def token_positions(corpus: PreparedCorpus) -> PreparedCorpus: ...
@overload
def token_positions(corpus: MixedCorpora) -> MixedCorpora: ...
def token_positions(corpus: PreparedCorpus | MixedCorpora) -> PreparedCorpus | MixedCorpora:
    """Opens a corpus so that it holds positions; those of a mixture count over all its corpora."""
    if isinstance(corpus, PreparedCorpus):
        return TokenPositions(corpus.folder)
    starts = np.cumsum([0] + [each.num_tokens for each in corpus.corpora]).tolist()
    opened = zip(corpus.corpora, starts, strict=False)
    return dataclasses.replace(
        corpus, corpora=tuple(TokenPositions(each.folder, start) for each, start in opened)
    )


def document_starts(corpus: PreparedCorpus | MixedCorpora) -> np.ndarray:
    """Returns the number of tokens before each document, [D + 1] int64, over all corpora."""
    tokens = np.concatenate([each.tokens_per_document for each in corpora_of(corpus)])
    return np.concatenate(([0], np.cumsum(tokens)))


class Provenance:
    """Tells which tokens an example contains."""

    def __init__(
        self,
        corpus: PreparedCorpus | MixedCorpora,
        config: PretrainingData,
        vocab_arrays: VocabArrays,
        seq_length: int,
        target_length: int,
    ) -> None:
        """Takes the arguments of `make_training_dataset`."""
        # The separators that some formats put between documents are not from the corpus.
        self._vocab_arrays = dataclasses.replace(vocab_arrays, sep_id=NO_TOKEN)
        self._dataset = make_training_dataset(
            token_positions(corpus), config, self._vocab_arrays, seq_length, target_length
        )

    def content(self, example: tuple[int, int, int, int]) -> "Content":
        """Returns what the dataset reads for an example, with positions instead of ids.

        Args:
          example: the arguments of `read` of a dataset, such as `SentencePairDataset`.
        """
        content: Any = self._dataset.read(*example)
        return content


Content = SentencePair | TextWindow | np.ndarray
"""What a dataset reads for one example."""


def positions_in(content: Content) -> np.ndarray:
    """Returns the positions [T] of the tokens of an example, without separators of documents."""
    match content:
        case SentencePair():
            positions = np.concatenate((content.a, content.b))
        case TextWindow():
            positions = content.ids
        case _:
            positions = content
    return positions[positions != NO_TOKEN]


class RemovedDocuments:
    """Finds the examples that contain a token of removed documents.

    Args:
      corpus: the corpora of the examples.
      removed: [D] bool, the documents, numbered over all corpora of a mixture.
    """

    def __init__(self, corpus: PreparedCorpus | MixedCorpora, removed: np.ndarray) -> None:
        self._removed, self._document_starts = removed, document_starts(corpus)

    def contain(self, positions: np.ndarray) -> bool:
        """Returns whether one of the tokens at positions [n] is of a removed document."""
        documents = np.searchsorted(self._document_starts, positions, side="right") - 1
        return bool(self._removed[documents].any())


def clear_example(
    fields: dict[str, np.ndarray], row: int, begin: int, end: int, vocab_arrays: VocabArrays
) -> None:
    """Turns the tokens [begin, end) of a row into padding, which has no weight in any loss.

    Labels of the pair become 0, and so do the targets of a decoder.
    """
    in_example = np.zeros(0, bool)
    if "masked_lm_positions" in fields:
        positions, is_used = (fields[f"masked_lm_{name}"][row] for name in ("positions", "weights"))
        in_example = (positions >= begin) & (positions < end) & (is_used > 0)
    if "num_maskable_tokens" in fields:  # of all examples that are packed in the row
        is_special = vocab_arrays.is_special[fields["input_ids"][row, begin:end]]
        # Masked tokens show [MASK], which is special; diffusion has no other replacement.
        num_masked = int(in_example.sum())
        fields["num_maskable_tokens"][row] -= int((~is_special).sum()) + num_masked
    for name, array in fields.items():
        match FIELDS[name].dims:
            case "BL":
                array[row, begin:end] = vocab_arrays.pad_id if name == "input_ids" else 0
            case "BP":
                array[row, in_example] = 0
            case "BT":
                array[row] = 0
            case _:  # packed examples share the fields of a row, except for labels of pairs
                if name in NEXT_SENTENCE_FIELDS + SENTENCE_ORDER_FIELDS:
                    array[row] = 0
