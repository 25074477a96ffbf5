"""Trains tokenizers on text: WordPiece here, BPE and SentencePiece with their libraries.

The trainers of `tokenizers` iterate over hash tables in random order, so that the same corpus gives
another vocabulary in each run. Here the result depends only on the word counts: letters are sorted,
and of equally frequent pairs the one whose tokens were made first is merged.

The same texts and settings give the same files on any machine with the same library versions.
`wordpiece_learner` trains WordPiece. `tokenizers` trains byte-level BPE, for which it is
deterministic because its alphabet is given. `sentencepiece` trains Unigram on one thread, because
its results depend on the number of threads.
"""

import hashlib
import heapq
import io
import json
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.config.config_lib import to_json
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_path, check_writable, write_json
from bert_jax.text.cleaning import clean_text
from bert_jax.text.files import DocumentUnit, expand_globs, read_documents
from bert_jax.text.tokenizer import SpecialTokens, Tokenizer
from bert_jax.version import __version__

CONTINUING_SUBWORD_PREFIX = "##"


def train_wordpiece_vocab(
    word_counts: Mapping[str, int],
    *,
    vocab_size: int,
    min_frequency: int,
    character_coverage: float,
    progress: Callable[[int], object] = lambda done: None,
) -> list[str]:
    """Trains the tokens of a vocabulary: letters first, then merges in the order they were made.

    Args:
      word_counts: normalized words, split at punctuation, and how often each occurs.
      vocab_size: number of tokens; there may be fewer if nothing is left to merge.
      min_frequency: pairs that occur less often are not merged.
      character_coverage: fraction of all characters that the letters must cover; words with a
        rarer character are ignored.
      progress: called with the number of tokens after every 100 merges.

    Returns:
      At most `vocab_size` different tokens; those inside a word begin with "##".

    Raises:
      UserError: `vocab_size` is smaller than the number of letters.
    """
    alphabet = _alphabet(word_counts, character_coverage)
    words, counts, letters = _split_into_letters(word_counts, alphabet)
    if len(letters) > vocab_size:
        raise UserError(
            f"--vocab-size is too small: the corpus has {len(letters)} letters (within and at the "
            f"start of words), but there is space for {vocab_size} tokens"
        )
    merger = _Merger(words, counts, letters)
    while len(merger.tokens) < vocab_size and merger.merge(min_frequency):
        if len(merger.tokens) % 100 == 0:
            progress(len(merger.tokens))
    progress(len(merger.tokens))
    return merger.tokens


def _alphabet(word_counts: Mapping[str, int], coverage: float) -> set[str]:
    """Returns the most frequent characters that together make up `coverage` of the text."""
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    target_count = coverage * counts.total()
    selected: set[str] = set()
    covered = 0
    # Equally frequent characters are sorted by code point, so that the alphabet does not depend on
    # the order of the documents.
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= target_count:
            break
        selected.add(character)
        covered += count
    return selected


def _split_into_letters(
    word_counts: Mapping[str, int], alphabet: set[str]
) -> tuple[list[list[int]], list[int], list[str]]:
    """Returns (words as ids of letters, counts of the words, letters) in a fixed order."""
    selected = sorted(word for word in word_counts if alphabet.issuperset(word))
    letter_tokens = {word[0] for word in selected}
    letter_tokens.update(
        CONTINUING_SUBWORD_PREFIX + character for word in selected for character in word[1:]
    )
    # ASCII letters and digits may occur anywhere in later text.
    for character in alphabet:
        if character.isascii() and character.isalnum():
            letter_tokens.update((character, CONTINUING_SUBWORD_PREFIX + character))
    # Ids of letters decide ties of merges, so the order must not come from the set.
    letters = sorted(letter_tokens, key=lambda letter: (len(letter), letter))
    ids = {letter: i for i, letter in enumerate(letters)}
    words = [
        [ids[word[0]], *(ids[CONTINUING_SUBWORD_PREFIX + c] for c in word[1:])] for word in selected
    ]
    return words, [word_counts[word] for word in selected], letters


class _Merger:
    """Holds words as lists of token ids, counts of adjacent pairs, and a heap of these pairs."""

    def __init__(self, words: list[list[int]], counts: list[int], letters: list[str]):
        self.tokens = list(letters)
        self._token_ids = {token: i for i, token in enumerate(letters)}
        self._words, self._counts = words, counts
        self._pair_counts: defaultdict[tuple[int, int], int] = defaultdict(int)
        # The words that contain a pair; may list a word twice, or one that no longer contains it.
        self._words_with_pair: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for n, word in enumerate(words):
            for pair in pairwise(word):
                self._pair_counts[pair] += counts[n]
                self._words_with_pair[pair].append(n)
        # Equal counts are ordered by the ids of the pair, hence the pair whose tokens were made
        # first.
        self._heap = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapq.heapify(self._heap)

    def merge(self, min_frequency: int) -> bool:
        """Merges the most frequent pair in all words; False if none occurs often enough."""
        while self._heap:
            count, pair = heapq.heappop(self._heap)
            if self._pair_counts.get(pair) != -count:
                continue  # An outdated entry: the count of the pair has changed since.
            if -count < min_frequency:
                return False
            self._apply_merge(pair, self._merged_token_id(pair))
            return True
        return False

    def _merged_token_id(self, pair: tuple[int, int]) -> int:
        """Returns the id of the merged token, which other pairs may have produced before."""
        token = self.tokens[pair[0]] + self.tokens[pair[1]].removeprefix(CONTINUING_SUBWORD_PREFIX)
        if token not in self._token_ids:
            self._token_ids[token] = len(self.tokens)
            self.tokens.append(token)
        return self._token_ids[token]

    def _apply_merge(self, pair: tuple[int, int], merged_id: int) -> None:
        changed_pairs: set[tuple[int, int]] = set()
        left, right = pair
        # The list may name a word twice, and each word may be counted only once.
        for n in sorted(set(self._words_with_pair.pop(pair))):
            word, count = self._words[n], self._counts[n]
            old_pairs = list(pairwise(word))
            position = 0
            while position < len(word) - 1:
                if word[position] == left and word[position + 1] == right:
                    word[position : position + 2] = [merged_id]
                position += 1
            new_pairs = list(pairwise(word))
            # An outdated entry: another merge has taken one of the two tokens since.
            if len(old_pairs) == len(new_pairs):
                continue
            for old in old_pairs:
                self._pair_counts[old] -= count
            for new in new_pairs:
                self._pair_counts[new] += count
                if merged_id in new:
                    self._words_with_pair[new].append(n)
            changed_pairs.update(old_pairs)
            changed_pairs.update(new_pairs)
        self._pair_counts.pop(pair, None)
        changed_pairs.discard(pair)
        for other in changed_pairs:
            if self._pair_counts[other] > 0:
                # A heap cannot change an entry. The old one stays and is skipped when its count is
                # outdated.
                heapq.heappush(self._heap, (-self._pair_counts[other], other))
            else:
                del self._pair_counts[other]


MANIFEST_FILE = "manifest.json"
BERT_TOKENS = SpecialTokens(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
ROBERTA_TOKENS = SpecialTokens(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")

# WordPiece encodes longer words as the unknown token.
_MAX_WORD_LENGTH = 100
# SentencePiece skips sentences of more than 4192 bytes; a character has at most four.
_MAX_CHUNK_LENGTH = 1000


@dataclass(frozen=True, kw_only=True)
class CorpusStats:
    """Counts and hashes the training text, so that two corpora can be compared."""

    documents: int
    characters: int
    sha256: str


def train_tokenizer_from_files(
    patterns: Sequence[str],
    output: str | Path,
    config: TokenizerTrainingConfig,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
    json_field: str = "text",
    document_unit: DocumentUnit = "file",
) -> Tokenizer:
    """Trains a tokenizer on cleaned text files and saves it with a manifest.

    Args:
      patterns: names and globs of text, JSON-lines and gzipped files.
      output: the folder to create; it appears when it is complete.
      config: settings of the training.
      encoding, errors, json_field, document_unit: see `read_documents`.

    Raises:
      UserError: no text, an unreadable file, or an output folder that is not empty.
    """
    output = Path(output)
    check_writable(output, is_folder=True)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"--output {output}: the folder is not empty, and a tokenizer that a corpus may depend "
            "on is not overwritten. Choose another --output or remove the folder"
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
            document_unit=document_unit,
        )
    )
    tokenizer, corpus_stats = train_tokenizer(texts, config)
    manifest = {
        "settings": to_json(config),
        "corpus": {"files": [os.path.basename(file) for file in files], **vars(corpus_stats)},
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint},
        "versions": _versions(),
    }
    with atomic_path(output) as tmp_path:
        tokenizer.save(tmp_path)
        write_json(tmp_path / MANIFEST_FILE, manifest)
    return tokenizer


def train_tokenizer(
    texts: Iterable[str], config: TokenizerTrainingConfig
) -> tuple[Tokenizer, CorpusStats]:
    """Trains a tokenizer on documents in the given order; returns it and counts of the text.

    Special tokens get the ids 0 to 4: [PAD], [UNK], [CLS], [SEP], [MASK] (byte-level BPE: <s>,
    <pad>, </s>, <unk>, <mask>; with sentinels <pad>, </s>, <unk>, and the sentinels at the end).

    Raises:
      UserError: there is no text, or the vocabulary size is too small for the alphabet.
    """
    reader = _CorpusReader(texts)
    train_functions = {
        "wordpiece": _train_wordpiece,
        "bpe": _train_bpe,
        "unigram": _train_unigram,
        "amino_acids": _count_amino_acids,
    }
    tokenizer = train_functions[config.kind](reader, config)
    return tokenizer, reader.stats()


class _CorpusReader:
    """Iterates over the texts, counts and hashes them, and shows progress."""

    def __init__(self, texts: Iterable[str]):
        self._texts = texts
        self._hash = hashlib.sha256()
        self._num_documents = self._num_characters = 0

    def __iter__(self) -> Iterator[str]:
        with tqdm(desc="reading", unit="char", unit_scale=True, disable=None) as bar:
            for text in self._texts:
                self._num_documents += 1
                self._num_characters += len(text)
                # The zero byte separates documents, so that the same text divided otherwise has
                # another hash.
                self._hash.update(text.encode("utf-8", "surrogatepass") + b"\0")
                bar.update(len(text))
                yield text
        if not self._num_characters:
            raise UserError(
                f"no text in {self._num_documents} documents; expected text to train on"
            )

    def stats(self) -> CorpusStats:
        """Returns the counts and the hash of what was read."""
        return CorpusStats(
            documents=self._num_documents,
            characters=self._num_characters,
            sha256=self._hash.hexdigest(),
        )


def _train_wordpiece(texts: Iterable[str], config: TokenizerTrainingConfig) -> Tokenizer:
    from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer, wordpiece_backend

    special_tokens = list(BERT_TOKENS.as_dict().values())
    if not (counts := _word_counts(texts, lowercase=not config.cased)):
        raise UserError("no words in the text; expected text to train on")
    with tqdm(desc="merging", total=config.vocab_size, unit="token", disable=None) as bar:
        tokens = train_wordpiece_vocab(
            counts,
            vocab_size=config.vocab_size - len(special_tokens),
            min_frequency=config.min_frequency,
            character_coverage=config.character_coverage,
            progress=lambda done: bar.update(done - bar.n),
        )
    backend = wordpiece_backend(special_tokens + tokens, BERT_TOKENS, lowercase=not config.cased)
    return HuggingFaceTokenizer(backend, BERT_TOKENS, "trained")


def _word_counts(texts: Iterable[str], *, lowercase: bool) -> Counter[str]:
    """Counts words after normalization; each distinct word is normalized once, for speed."""
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


def _train_bpe(texts: Iterable[str], config: TokenizerTrainingConfig) -> Tokenizer:
    from tokenizers import Tokenizer as BackendTokenizer
    from tokenizers import models, pre_tokenizers, trainers

    from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer, byte_level_bpe_backend
    from bert_jax.text.tokenizer_json import merge_pairs

    roles = ROBERTA_TOKENS
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special_tokens = [roles.cls, roles.pad, roles.sep, roles.unk, roles.mask]
    if config.vocab_size < len(alphabet) + len(special_tokens):
        raise UserError(
            f"--vocab-size is {config.vocab_size}; byte-level BPE needs at least "
            f"{len(alphabet) + len(special_tokens)}: 256 bytes and {len(special_tokens)} special "
            "tokens"
        )
    backend = BackendTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=special_tokens,
        # With all 256 bytes in the alphabet, no text needs the unknown token, and the order of the
        # trainer's alphabet does not depend on a hash table.
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    backend.train_from_iterator(iter(texts), trainer)
    model = json.loads(backend.to_str())["model"]
    trained_backend = byte_level_bpe_backend(model["vocab"], merge_pairs(model), ROBERTA_TOKENS)
    return HuggingFaceTokenizer(trained_backend, ROBERTA_TOKENS, "trained")


def _count_amino_acids(texts: Iterable[str], config: TokenizerTrainingConfig) -> Tokenizer:
    from bert_jax.text.protein import esm_tokenizer

    del config
    for _ in texts:  # the manifest has the number of characters
        pass
    return esm_tokenizer()


def _train_unigram(texts: Iterable[str], config: TokenizerTrainingConfig) -> Tokenizer:
    import sentencepiece

    from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer
    from bert_jax.text.sentencepiece import build_t5, parse_model, unigram_backend

    model = io.BytesIO()
    # T5 has an end token, and no first token or mask.
    special_tokens: dict[str, Any] = (
        {"pad_piece": "<pad>", "eos_id": 1, "eos_piece": "</s>", "unk_id": 2, "unk_piece": "<unk>"}
        if config.sentinels
        else {
            "pad_piece": BERT_TOKENS.pad,
            "unk_id": 1,
            "unk_piece": BERT_TOKENS.unk,
            "eos_id": -1,
            "control_symbols": [BERT_TOKENS.cls, BERT_TOKENS.sep, BERT_TOKENS.mask],
        }
    )
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_split_long_lines(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size - config.sentinels,
            # A small corpus has fewer useful pieces than the vocabulary may have; by default that
            # is an error.
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            normalization_rule_name="nmt_nfkc" if config.cased else "nmt_nfkc_cf",
            pad_id=0,
            bos_id=-1,
            **special_tokens,
            num_threads=1,
            # On a terminal its log shows progress; elsewhere show warnings only.
            minloglevel=0 if sys.stderr.isatty() else 1,
        )
    except RuntimeError as error:
        raise UserError(f"SentencePiece could not train on this text: {error}") from None
    if config.sentinels:
        return build_t5(parse_model(model.getvalue()), config.sentinels, {}, "trained")
    # Encode with `tokenizers`, not `sentencepiece`: AutoTokenizer then gives exactly the same ids.
    backend = unigram_backend(parse_model(model.getvalue()), BERT_TOKENS)
    return HuggingFaceTokenizer(backend, BERT_TOKENS, "trained")


def _split_long_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of the texts; long lines are cut at spaces."""
    for text in texts:
        for line in text.split("\n"):
            start = 0
            while len(line) - start > _MAX_CHUNK_LENGTH:
                space = line.rfind(" ", start + 1, start + _MAX_CHUNK_LENGTH)
                end = space if space > 0 else start + _MAX_CHUNK_LENGTH
                yield line[start:end]
                start = end
            if start < len(line):
                yield line[start:]


def _versions() -> dict[str, Any]:
    libraries = {name: version(name) for name in ("tokenizers", "sentencepiece")}
    return {"bert_jax": __version__, "python": platform.python_version(), **libraries}
