"""Generates text, a vocabulary and a prepared corpus of an artificial language that can be learned.

Each word is followed by one of two words, and all words of a document are from one topic. A model
can therefore learn to predict masked words and next sentences, and a test can detect a model that
learns nothing.
"""

from pathlib import Path

import numpy as np

from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.sources import TextFiles

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NUM_TOPICS = 6
WORDS_PER_TOPIC = 12


def topic_words(topic: int) -> list[str]:
    """Returns the words of one topic; they begin with the same syllable, such as "bace"."""
    syllables = ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re")
    return [f"{syllables[topic]}{syllable}" for syllable in syllables[:WORDS_PER_TOPIC]]


def write_vocabulary(folder: Path) -> Path:
    """Writes a WordPiece `vocab.txt` with all words; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [
        *SPECIAL_TOKENS,
        ".",
        *(word for topic in range(NUM_TOPICS) for word in topic_words(topic)),
    ]
    file = folder / "vocab.txt"
    file.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return file


def write_text(
    folder: Path, *, num_documents: int = 40, sentences_per_document: int = 30, seed: int = 0
) -> None:
    """Writes text files with one document each; sentences have 4 to 12 words."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for document_index in range(num_documents):
        vocabulary = topic_words(document_index % NUM_TOPICS)
        lines = []
        for _ in range(sentences_per_document):
            word_index = int(rng.integers(WORDS_PER_TOPIC))
            sentence = []
            for _ in range(int(rng.integers(4, 13))):
                sentence.append(vocabulary[word_index])
                word_index = (word_index + int(rng.integers(1, 3))) % WORDS_PER_TOPIC
            lines.append(" ".join(sentence).capitalize() + ".")
        (folder / f"{document_index:04d}.txt").write_text(" ".join(lines) + "\n", encoding="utf-8")


def prepare_corpus(
    folder: Path, *, num_documents: int = 40, sentences_per_document: int = 30, seed: int = 0
) -> Path:
    """Writes text and vocabulary to `folder` and prepares a corpus; returns its folder."""
    write_text(
        folder / "text",
        num_documents=num_documents,
        sentences_per_document=sentences_per_document,
        seed=seed,
    )
    vocabulary = write_vocabulary(folder / "vocabulary")
    config = PrepareConfig(
        source=TextFiles(str(folder / "text" / "*.txt")),
        tokenizer=str(vocabulary),
        output=str(folder / "prepared"),
    )
    prepare(config, num_workers=1)
    return folder / "prepared"
