"""Learns a vocabulary from texts. The same texts and settings give the same files, on any machine
with the same library versions, whatever its number of cores.

WordPiece is learned by `wordpiece_learner`, byte-level BPE by `tokenizers` (which orders its byte
alphabet beforehand and is deterministic there), Unigram by `sentencepiece` on one thread (the sums
of its expectation maximisation depend on the number of threads).
"""

import hashlib
import io
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax import __version__
from bert_jax.aside import written_aside
from bert_jax.config import to_json
from bert_jax.errors import UserError
from bert_jax.text.cleaning import clean_text
from bert_jax.text.config import LearnConfig
from bert_jax.text.files import DocumentsBy, expand_globs, read_documents
from bert_jax.text.saving import as_json
from bert_jax.text.vocabulary import SpecialTokens, Vocabulary

MANIFEST_FILE = "manifest.json"
BERT_TOKENS = SpecialTokens(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
ROBERTA_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")

# WordPiece takes longer words as unknown anyway.
_MAX_WORD_LENGTH = 100
# SentencePiece skips sentences of more than 4192 bytes; a character has at most four.
_MAX_CHUNK = 1000


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What was read: enough to tell whether another corpus is the same."""

    documents: int
    characters: int
    sha256: str


def learn_from_files(
    patterns: Sequence[str],
    output: str | Path,
    config: LearnConfig,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    json_field: str = "text",
    documents_by: DocumentsBy = "file",
) -> Vocabulary:
    """Learns from cleaned text files and writes a vocabulary's folder with a manifest.

    Args:
      patterns: names and globs of text, JSON-lines and gzipped files.
      output: folder to make; it appears when all is written.
      config: what to learn.
      encoding, errors, json_field, documents_by: see `read_documents`.

    Raises:
      UserError: nothing to read, unreadable files, an output folder that is not empty.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"{output} exists and is not empty; a vocabulary that something was prepared with must "
            "not change. Choose another --output or remove the folder."
        )
    files = expand_globs(patterns)
    texts = (
        clean_text(text)
        for file in files
        for _, text in read_documents(
            file,
            encoding=encoding,
            errors=errors,
            json_field=json_field,
            documents_by=documents_by,
        )
    )
    vocabulary, corpus = learn_vocabulary(texts, config)
    manifest = {
        "settings": to_json(config),
        "corpus": {"files": [os.path.basename(file) for file in files], **vars(corpus)},
        "vocabulary": {"size": vocabulary.size, "fingerprint": vocabulary.fingerprint},
        "versions": _versions(),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(output) as aside:
        vocabulary.save(aside)
        (aside / MANIFEST_FILE).write_text(as_json(manifest), encoding="utf-8")
    return vocabulary


def learn_vocabulary(texts: Iterable[str], config: LearnConfig) -> tuple[Vocabulary, Corpus]:
    """Learns from documents in the order given; says what was read.

    Special tokens get the ids 0 to 4: [PAD], [UNK], [CLS], [SEP], [MASK] (byte-level BPE: <s>,
    <pad>, </s>, <unk>, <mask>).

    Raises:
      UserError: no text; a size too small for the alphabet.
    """
    reader = _Reader(texts)
    learn = {"wordpiece": _learn_wordpiece, "bpe": _learn_bpe, "unigram": _learn_unigram}
    vocabulary = learn[config.kind](reader, config)
    return vocabulary, reader.corpus()


class _Reader:
    """Passes texts on, counts and hashes them, shows the progress."""

    def __init__(self, texts: Iterable[str]):
        self._texts = texts
        self._hash = hashlib.sha256()
        self._documents = self._characters = 0

    def __iter__(self) -> Iterator[str]:
        with tqdm(desc="reading", unit="char", unit_scale=True, disable=None) as bar:
            for text in self._texts:
                self._documents += 1
                self._characters += len(text)
                self._hash.update(text.encode("utf-8", "surrogatepass") + b"\0")
                bar.update(len(text))
                yield text
        if not self._characters:
            raise UserError(f"no text in {self._documents} documents: nothing to learn from.")

    def corpus(self) -> Corpus:
        return Corpus(
            documents=self._documents,
            characters=self._characters,
            sha256=self._hash.hexdigest(),
        )


def _learn_wordpiece(texts: Iterable[str], config: LearnConfig) -> Vocabulary:
    from bert_jax.text.tokenizers_vocabulary import TokenizersVocabulary, wordpiece_tokenizer
    from bert_jax.text.wordpiece_learner import learn_pieces

    special = list(BERT_TOKENS.as_dict().values())
    if not (counts := _word_counts(texts, lowercase=not config.cased)):
        raise UserError("no words in the text: nothing to learn from.")
    with tqdm(desc="merging", total=config.size, unit="piece", disable=None) as bar:
        pieces = learn_pieces(
            counts,
            size=config.size - len(special),
            min_frequency=config.min_frequency,
            character_coverage=config.character_coverage,
            progress=lambda done: bar.update(done - bar.n),
        )
    tokenizer = wordpiece_tokenizer(special + pieces, BERT_TOKENS, lowercase=not config.cased)
    return TokenizersVocabulary(tokenizer, BERT_TOKENS, "learned")


def _word_counts(texts: Iterable[str], *, lowercase: bool) -> Counter[str]:
    """Words as WordPiece sees them; each different one is normalised once, which is far faster."""
    from tokenizers import normalizers, pre_tokenizers

    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text.split())
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for word, count in raw.items():
        for part, _ in splitter.pre_tokenize_str(normalizer.normalize_str(word)):
            if len(part) <= _MAX_WORD_LENGTH:
                counts[part] += count
    return counts


def _learn_bpe(texts: Iterable[str], config: LearnConfig) -> Vocabulary:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from bert_jax.text.tokenizer_json import merge_pairs
    from bert_jax.text.tokenizers_vocabulary import TokenizersVocabulary, byte_level_bpe_tokenizer

    tokens = ROBERTA_TOKENS
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [tokens.cls, tokens.pad, tokens.sep, tokens.unk, tokens.mask]
    if config.size < len(alphabet) + len(special):
        raise UserError(
            f"size {config.size} is too small for byte-level BPE: 256 bytes and {len(special)} "
            "special tokens come first. Use a larger --size."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=config.size,
        min_frequency=config.min_frequency,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learned = byte_level_bpe_tokenizer(model["vocab"], merge_pairs(model), tokens)
    return TokenizersVocabulary(learned, tokens, "learned")


def _learn_unigram(texts: Iterable[str], config: LearnConfig) -> Vocabulary:
    import sentencepiece

    from bert_jax.text.sentencepiece_model import parse_model
    from bert_jax.text.sentencepiece_vocabulary import unigram_tokenizer
    from bert_jax.text.tokenizers_vocabulary import TokenizersVocabulary

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_chunks(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.size,
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            normalization_rule_name="nmt_nfkc" if config.cased else "nmt_nfkc_cf",
            pad_id=0,
            pad_piece=BERT_TOKENS.pad,
            unk_id=1,
            unk_piece=BERT_TOKENS.unk,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[BERT_TOKENS.cls, BERT_TOKENS.sep, BERT_TOKENS.mask],
            num_threads=1,
            # Its log is its progress; warnings alone where nobody looks.
            minloglevel=0 if sys.stderr.isatty() else 1,
        )
    except RuntimeError as error:
        raise UserError(f"SentencePiece could not learn from this text: {error}") from None
    # Encoded by `tokenizers` from here on: what AutoTokenizer opens then gives the very same ids.
    tokenizer = unigram_tokenizer(parse_model(model.getvalue()), BERT_TOKENS)
    return TokenizersVocabulary(tokenizer, BERT_TOKENS, "learned")


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    """Lines, long ones cut at spaces."""
    for text in texts:
        for line in text.split("\n"):
            start = 0
            while len(line) - start > _MAX_CHUNK:
                space = line.rfind(" ", start + 1, start + _MAX_CHUNK)
                end = space if space > 0 else start + _MAX_CHUNK
                yield line[start:end]
                start = end
            if start < len(line):
                yield line[start:]


def _versions() -> dict[str, Any]:
    libraries = {name: version(name) for name in ("tokenizers", "sentencepiece")}
    return {"bert_jax": __version__, "python": platform.python_version(), **libraries}
