"""Adds words to the vocabulary of a tokenizer, where its own algorithm finds them.

A word becomes an entry of the vocabulary of WordPiece, BPE or Unigram, not an added token of
Hugging Face's libraries (`add_tokens`). Those are searched for in the text before the algorithm
runs, so that

- inside of a longer word, what follows an added token begins a new word ("docker", "s" instead of
  "docker", "##s"), and with `single_word=True` the longer word does not contain it at all;
- normalization of the word depends on a flag, and vocab.txt and merges.txt lack the token, so that
  programs that read those files encode other ids;
- for byte-level BPE, a token either swallows the space before it, or stands without one.

An entry has the same lower-casing, accents, word boundaries and continuations as all others. The
price is that words that begin with a new one are split in another way, too: with WordPiece
"dockerize" may become "docker", "##ize". `compare.py` counts the tokens and the unknown tokens of a
text.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as BackendTokenizer

from bert_jax.errors import UserError
from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer
from bert_jax.text.files import read_text
from bert_jax.text.tokenizer import Tokenizer, usual_special_tokens
from bert_jax.text.tokenizer_json import merge_pairs

_SHOWN_PROBLEMS = 5
# In the library, an unknown character has the smallest score less 10.
_UNKNOWN_PENALTY = 10.0
_SCORE_MARGIN = 0.01


class AddedWords(NamedTuple):
    """Holds a tokenizer with added words.

    Attributes:
      tokenizer: the new tokenizer; old tokens keep their ids, new ones have those after them.
      old_ids: for each new token, the ids of the tokens that the old tokenizer has for it. With BPE
        there are more new tokens than words: every merge of two tokens makes one.
    """

    tokenizer: HuggingFaceTokenizer
    old_ids: list[list[int]]


def read_words(path: str | Path) -> dict[int, str]:
    """Reads a file with a word on each line; empty lines are left out.

    Returns:
      line number from 1 -> word.

    Raises:
      UserError: the file cannot be read or has no words.
    """
    lines = enumerate(read_text(path).split("\n"), start=1)
    words = {number: line.strip() for number, line in lines if line.strip()}
    if not words:
        raise UserError(f"{path}: no words; expected a word on each line")
    return words


def add_words(tokenizer: Tokenizer, words: Mapping[int, str], source: str) -> AddedWords:
    """Returns a tokenizer for which each word is one token.

    With byte-level BPE this is the word after a space; at the start of a text it has the tokens it
    had.

    Args:
      words: the words by line, as `read_words` returns them.
      source: the name of their file, for messages.

    Raises:
      UserError: the tokenizer is one of the SentencePiece library; or words are in the vocabulary,
        occur twice, clash with special tokens, or are nothing or several words for the tokenizer;
        the message has the lines of the first five.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise UserError(
            "the tokenizer of the model is a SentencePiece .model file, to which words cannot be "
            "added; write its tokenizer.json with transformers, "
            "AutoTokenizer.from_pretrained(MODEL).save_pretrained(MODEL), and remove the .model"
        )
    rules = tokenizer.rules()
    entries = _find_entries(tokenizer, rules, words, source)
    # A space, because byte-level BPE has other tokens for a word that no space precedes.
    texts = [_text(tokenizer, word) for word in words.values()]
    tokenized = [ids.tolist() for ids in tokenizer.encode_ids(texts)]
    match tokenizer.kind:
        case "bpe":
            old_ids = _add_merges(rules["model"], tokenizer, tokenized)
        case "unigram":
            old_ids = _add_scores(rules, tokenizer, dict(zip(entries, tokenized, strict=True)))
        case _:
            first = tokenizer.vocab_size
            rules["model"]["vocab"] |= {entry: first + n for n, entry in enumerate(entries)}
            old_ids = tokenized
    backend = BackendTokenizer.from_str(json.dumps(rules))
    added = HuggingFaceTokenizer(backend, tokenizer.special_tokens, source)
    added.template = tokenizer.template
    found = added.encode_ids(texts)
    _raise_problems(
        source,
        len(words),
        (
            f"line {line}: {words[line]!r} would still be split into "
            + ", ".join(map(added.id_to_token, ids.tolist()))
            for line, entry, ids in zip(words, entries, found, strict=True)
            if ids.tolist() != [added.token_to_id(entry)]
        ),
    )
    return AddedWords(added, old_ids)


def _text(tokenizer: Tokenizer, word: str) -> str:
    return f" {word}" if tokenizer.kind == "bpe" else word


def _find_entries(
    tokenizer: HuggingFaceTokenizer, rules: Mapping[str, Any], words: Mapping[int, str], source: str
) -> list[str]:
    """Returns each word as the vocabulary spells it, such as "Ġdocker"."""
    backend = BackendTokenizer.from_str(json.dumps(rules))
    special_tokens = {tokenizer.id_to_token(i) for i in tokenizer.special_ids}
    special_tokens |= usual_special_tokens()
    lines: dict[str, int] = {}
    problems: list[str] = []
    for line, word in words.items():
        text = _text(tokenizer, word)
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        parts = [text]
        if backend.pre_tokenizer is not None:
            parts = [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        entry = "".join(parts)
        if word in special_tokens or entry in special_tokens:
            problem = "is a special token"
        elif not entry.strip("Ġ▁ "):
            problem = "is nothing after normalization"
        elif len(parts) > 1:
            problem = f"is several words for the tokenizer: {' '.join(parts)}"
        elif entry in tokenizer:
            problem = "is in the vocabulary already"
        elif entry in lines:
            problem = f"is the word of line {lines[entry]} again"
        else:
            lines[entry] = line
            continue
        problems.append(f"line {line}: {word!r} {problem}")
    _raise_problems(source, len(words), problems)
    return list(lines)


def _raise_problems(source: str, num_words: int, problems: Iterator[str] | Sequence[str]) -> None:
    """Raises a UserError with the first problems, if there are any."""
    found = list(problems)
    if found:
        more = len(found) - _SHOWN_PROBLEMS
        shown = "; ".join(found[:_SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise UserError(
            f"{source}: {len(found)} of {num_words} words cannot be added: {shown}; remove these "
            "lines"
        )


def _add_merges(
    model: dict[str, Any], tokenizer: Tokenizer, tokenized: Sequence[list[int]]
) -> list[list[int]]:
    """Adds merges to the end of a BPE model, which join the tokens of each word from the left.

    Because they come last, they join tokens of the old encoding and change nothing else; other
    words with the same tokens in a row are joined, too.

    Returns:
      For each new token, the ids of the old tokens of which it is made.
    """
    vocab, merges = model["vocab"], [list(pair) for pair in merge_pairs(model)]
    ranks: dict[tuple[str, str], int] = {}
    old_ids: dict[str, list[int]] = {}
    for ids in tokenized:
        made_of = {tokenizer.id_to_token(i): [i] for i in ids} | old_ids
        tokens = [tokenizer.id_to_token(i) for i in ids]
        while len(tokens) > 1:
            known = [pair for pair in itertools.pairwise(tokens) if pair in ranks]
            pair = min(known, key=ranks.__getitem__, default=(tokens[0], tokens[1]))
            merged = "".join(pair)
            made_of[merged] = made_of[pair[0]] + made_of[pair[1]]
            if pair not in ranks:
                ranks[pair] = len(ranks)
                merges.append(list(pair))
                if merged not in tokenizer and merged not in old_ids:
                    vocab[merged] = tokenizer.vocab_size + len(old_ids)
                    old_ids[merged] = made_of[merged]
            tokens = _merge(tokens, pair)
    model["merges"] = merges
    return list(old_ids.values())


def _merge(tokens: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Joins all occurrences of two tokens in a row, from the left."""
    merged: list[str] = []
    index = 0
    while index < len(tokens):
        is_pair = tuple(tokens[index : index + 2]) == pair
        merged.append("".join(pair) if is_pair else tokens[index])
        index += 1 + is_pair
    return merged


def _add_scores(
    rules: dict[str, Any], tokenizer: Tokenizer, tokenized: Mapping[str, list[int]]
) -> list[list[int]]:
    """Adds words to a Unigram model, each with a score a little above that of its old tokens."""
    vocab: list[list[Any]] = rules["model"]["vocab"]
    scores = [score for _, score in vocab]
    unknown = min(scores) - _UNKNOWN_PENALTY
    # The ids of the list are its indices. Added tokens such as DeBERTa-v3's [MASK] have the ids
    # after it, and get entries, which no text reaches, because added tokens are found first.
    vocab += [[tokenizer.id_to_token(i), 0.0] for i in range(len(vocab), tokenizer.vocab_size)]
    for entry, ids in tokenized.items():
        total = sum(unknown if i == tokenizer.unk_id else scores[i] for i in ids)
        vocab.append([entry, round(total + _SCORE_MARGIN, 9)])
    return list(tokenized.values())
