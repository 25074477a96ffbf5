"""A small made-up language: vocabulary, text and prepared corpus, for tests that need to learn.

Every word is followed by one of few words, and a document keeps to its own topic, so both masked
words and next sentences can be predicted; a model that learns nothing shows it.
"""

from pathlib import Path

import numpy as np

from bert_jax.data.prepare import prepare
from bert_jax.data.sources import TextFiles
from bert_jax.data.workplan import PrepareConfig

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOPICS = 6
WORDS_PER_TOPIC = 12


def words(topic: int) -> list[str]:
    """The words of one topic, such as "tabo"."""
    syllables = ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re")
    return [f"{syllables[topic]}{second}" for second in syllables[:WORDS_PER_TOPIC]]


def write_vocabulary(folder: Path) -> Path:
    """A WordPiece `vocab.txt` of all words; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL, ".", *(word for topic in range(TOPICS) for word in words(topic))]
    file = folder / "vocab.txt"
    file.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return file


def write_text(folder: Path, *, documents: int = 40, sentences: int = 30, seed: int = 0) -> None:
    """Text files, one document each, of sentences of 4 to 12 words."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(documents):
        vocabulary = words(number % TOPICS)
        lines = []
        for _ in range(sentences):
            at = int(random.integers(WORDS_PER_TOPIC))
            line = []
            for _ in range(int(random.integers(4, 13))):
                line.append(vocabulary[at])
                at = (at + int(random.integers(1, 3))) % WORDS_PER_TOPIC
            lines.append(" ".join(line).capitalize() + ".")
        (folder / f"{number:04d}.txt").write_text(" ".join(lines) + "\n", encoding="utf-8")


def prepare_corpus(
    folder: Path, *, documents: int = 40, sentences: int = 30, seed: int = 0
) -> Path:
    """Writes text and vocabulary under `folder` and prepares them; returns the prepared folder."""
    write_text(folder / "text", documents=documents, sentences=sentences, seed=seed)
    vocabulary = write_vocabulary(folder / "vocabulary")
    config = PrepareConfig(
        source=TextFiles(str(folder / "text" / "*.txt")),
        vocabulary=str(vocabulary),
        output=str(folder / "prepared"),
    )
    prepare(config, workers=1)
    return folder / "prepared"
