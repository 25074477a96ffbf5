"""Makes the examples of probing tasks from treebanks and CoNLL-2003 files.

kind        an example is                       tasks
words       a word                              upos, xpos, deprel; chunk, entity
arcs        a word and its head                 arc (or another word: which?), arc-label
sentences   a sentence, the mean of its words   length, depth, tense, subject-number, swapped-words
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bert_jax.apps.treebanks.conllu import TreebankSentence
from bert_jax.apps.treebanks.word_features import Sentences
from bert_jax.config.labeled_data import Conll
from bert_jax.data.finetuning.example import TaggedExample
from bert_jax.data.finetuning.readers.conll import read_conll
from bert_jax.errors import UserError, did_you_mean
from bert_jax.text.files import uncompressed_name

SPLITS: tuple[str, ...] = ("train", "dev", "test")
Kind = Literal["words", "arcs", "sentences"]
_LENGTHS = (4, 8, 12, 16, 20, 25)  # the last number of words of each class but the last
_MAX_DEPTH = 7  # and deeper


class Split(NamedTuple):
    """Holds the N examples of a split.

    Attributes:
      sentences: the words of the sentences.
      spans: int [N, P, 2], the words [start, end) of each of the P spans of an example, counted
        over all sentences.
      labels: the label of each example.
      types: what a control task gives a random label: the word, or both words of an arc; () if the
        task has no control.
    """

    sentences: Sentences
    spans: np.ndarray
    labels: Sequence[str]
    types: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ProbingTask:
    """Holds the examples of a task, by split."""

    name: str
    kind: Kind
    splits: Mapping[str, Split]

    def classes(self) -> list[str]:
        """Returns the labels of train, the most frequent first."""
        counts = Counter(self.splits["train"].labels)
        return sorted(counts, key=lambda label: (-counts[label], label))

    def label_ids(self, split: str) -> np.ndarray:
        """Returns the class of each example, int32 [N]; -1 for a label that train lacks."""
        ids = {label: index for index, label in enumerate(self.classes())}
        return np.array([ids.get(label, -1) for label in self.splits[split].labels], np.int32)

    def control_ids(self, split: str, seed: int = 0) -> np.ndarray:
        """Returns random classes, int32 [N]: equal for equal words (Hewitt and Liang 2019).

        The class of each type is sampled from the distribution of the labels of train.
        """
        ids = self.label_ids("train")
        rng = np.random.default_rng(seed)
        types = sorted({each for name in SPLITS for each in self.splits[name].types})
        by_type = dict(zip(types, rng.choice(ids, len(types)).tolist(), strict=True))
        return np.array([by_type[each] for each in self.splits[split].types], np.int32)


TREEBANK_TASKS = (
    "upos",
    "xpos",
    "deprel",
    "arc",
    "arc-label",
    "length",
    "depth",
    "tense",
    "subject-number",
    "swapped-words",
)
CONLL_TASKS = ("chunk", "entity")


def is_treebank(file: str) -> bool:
    """Returns whether the name of a file is that of a treebank in the CoNLL-U format."""
    return uncompressed_name(file).endswith(".conllu")


def evenly_spaced(num_sentences: int, limit: int | None) -> list[int]:
    """Returns at most `limit` indices; treebanks are sorted by genre, so not the first ones."""
    if limit is None or limit >= num_sentences:
        return list(range(num_sentences))
    return [index * num_sentences // limit for index in range(limit)]


def treebank_tasks(
    treebanks: Mapping[str, Sequence[TreebankSentence]], names: Sequence[str]
) -> list[ProbingTask]:
    """Makes the tasks of these names."""
    return [
        ProbingTask(
            name=name,
            kind=_KINDS.get(name, "sentences"),
            splits={split: _MAKERS[name](sentences) for split, sentences in treebanks.items()},
        )
        for name in names
    ]


def conll_tasks(
    files: Mapping[str, str],
    names: Sequence[str],
    choose: Callable[[str, Sentences], Sequence[int]],
) -> list[ProbingTask]:
    """Reads tasks from CoNLL-2003 files, whose last two columns are chunks and entities.

    Args:
      choose: from a split and its sentences, the indices of those to use.
    """
    tasks = []
    for name in names:
        column = -2 if name == "chunk" else -1
        read = read_conll(
            Conll(train=files["train"], dev=files["dev"], test=files["test"], tag_column=column)
        ).splits
        splits: dict[str, Split] = {}
        for split in SPLITS:
            tagged = [each for each in read[split] if isinstance(each, TaggedExample)]
            examples = [tagged[index] for index in choose(split, [each.words for each in tagged])]
            words = [example.words for example in examples]
            tags = [tag for example in examples for tag in example.tags or ()]
            splits[split] = _words(words, tags)
        tasks.append(ProbingTask(name=name, kind="words", splits=splits))
    return tasks


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raises a UserError if a name is not among the known tasks."""
    for name in names:
        if name not in known:
            raise UserError(
                f"there is no task {name!r} for these files; {did_you_mean(name, known)}the tasks "
                f"are: {', '.join(known)}"
            )


def _words(sentences: Sentences, labels: Sequence[str]) -> Split:
    words = [word for sentence in sentences for word in sentence]
    starts = np.arange(len(words))
    return Split(sentences, np.stack([starts, starts + 1], -1)[:, None], labels, words)


def _tags(
    label: Callable[[TreebankSentence], Sequence[str]],
) -> Callable[[Sequence[TreebankSentence]], Split]:
    return lambda sentences: _words(
        [sentence.words for sentence in sentences],
        [each for sentence in sentences for each in label(sentence)],
    )


def universal_relation(deprel: str) -> str:
    """Returns a relation without its subtype: "nsubj" for "nsubj:pass"."""
    return deprel.split(":")[0]


def _arcs(sentences: Sequence[TreebankSentence], with_relation: bool) -> Split:
    """Makes pairs (dependent, head): with their relation, or true heads among as many others."""
    rng = np.random.default_rng(0)
    spans, labels, types = [], [], []
    start = 0
    for sentence in sentences:
        size = len(sentence.words)
        for word, head in enumerate(sentence.heads):
            pairs = [(head, universal_relation(sentence.deprels[word]) if with_relation else "arc")]
            others = sorted(set(range(size)) - {word, head})
            if not with_relation and others:
                pairs.append((int(rng.choice(others)), "no arc"))
            for other, label in pairs if head >= 0 else ():
                spans.append([[start + i, start + i + 1] for i in (word, other)])
                labels.append(label)
                types.append(f"{sentence.words[word]} {sentence.words[other]}")
        start += size
    words = [sentence.words for sentence in sentences]
    return Split(words, np.array(spans).reshape(-1, 2, 2), labels, types)


def _properties(
    label: Callable[[TreebankSentence], str | None],
) -> Callable[[Sequence[TreebankSentence]], Split]:
    """Makes one example of each sentence that has the property."""

    def make(sentences: Sequence[TreebankSentence]) -> Split:
        ends = np.cumsum([len(sentence.words) for sentence in sentences])
        found = [(index, label(sentence)) for index, sentence in enumerate(sentences)]
        spans = [
            [[ends[index] - len(sentences[index].words), ends[index]]]
            for index, each in found
            if each is not None
        ]
        words = [sentence.words for sentence in sentences]
        labels = [each for _, each in found if each is not None]
        return Split(words, np.array(spans).reshape(-1, 1, 2), labels, ())

    return make


def _length(sentence: TreebankSentence) -> str:
    size = len(sentence.words)
    start = 1
    for end in _LENGTHS:
        if size <= end:
            return f"{start}-{end}"
        start = end + 1
    return f"{start}+"


def _depth(sentence: TreebankSentence) -> str:
    depth = max(sentence.depths())
    return str(depth) if depth < _MAX_DEPTH else f"{_MAX_DEPTH}+"


def _tense(sentence: TreebankSentence) -> str | None:
    """Returns the tense of a finite root verb."""
    feats = sentence.feats[sentence.root]
    return feats.get("Tense") if feats.get("VerbForm") == "Fin" else None


def _subject_number(sentence: TreebankSentence) -> str | None:
    for word, head in enumerate(sentence.heads):
        if head == sentence.root and universal_relation(sentence.deprels[word]) == "nsubj":
            return sentence.feats[word].get("Number")
    return None


def _swapped(sentences: Sequence[TreebankSentence]) -> Split:
    """Swaps two different neighbors in a random half of the sentences."""
    rng = np.random.default_rng(0)
    words: list[tuple[str, ...]] = []
    for sentence in sentences:
        form = list(sentence.words)
        positions = [i for i in range(len(form) - 1) if form[i].lower() != form[i + 1].lower()]
        swap = bool(rng.random() < 0.5) and bool(positions)
        if swap:
            first = int(rng.choice(positions))
            form[first], form[first + 1] = form[first + 1], form[first]
        words.append(tuple(form))
    labels = [
        "original" if new == sentence.words else "swapped"
        for new, sentence in zip(words, sentences, strict=True)
    ]
    ends = np.cumsum([0, *map(len, words)])
    return Split(words, np.stack([ends[:-1], ends[1:]], -1)[:, None], labels, ())


_KINDS: dict[str, Kind] = {
    "upos": "words",
    "xpos": "words",
    "deprel": "words",
    "arc": "arcs",
    "arc-label": "arcs",
}
_MAKERS: dict[str, Callable[[Sequence[TreebankSentence]], Split]] = {
    "upos": _tags(lambda sentence: sentence.upos),
    "xpos": _tags(lambda sentence: sentence.xpos),
    "deprel": _tags(lambda sentence: [universal_relation(each) for each in sentence.deprels]),
    "arc": lambda sentences: _arcs(sentences, with_relation=False),
    "arc-label": lambda sentences: _arcs(sentences, with_relation=True),
    "length": _properties(_length),
    "depth": _properties(_depth),
    "tense": _properties(_tense),
    "subject-number": _properties(_subject_number),
    "swapped-words": _swapped,
}
