"""Defines the tokenizer interface, the special tokens, and how a tokenizer is saved.

There are two implementations: `HuggingFaceTokenizer` (WordPiece, byte-level BPE and any other
tokenizer.json) and `SentencePieceTokenizer` (.model files). `load_tokenizer` opens either.
"""

import hashlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write, make_folder
from bert_jax.io.json_io import format_json
from bert_jax.text.input_template import Ids, default_template

SENTINEL = "<extra_id_{}>"
"""The tokens with which T5 numbers the spans that are missing in a text."""
_T5_NAMES = {"cls": ("</s>",), "mask": (SENTINEL.format(0),)}

# `save` writes this file last: a folder that contains it is complete.
TOKENIZER_INFO_FILE = "vocabulary.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

# For each role, its token in the vocabularies of BERT, of RoBERTa and T5, of EuroBERT and of ESM-2.
_ROLE_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|end_of_text|>"),
    "unk": ("[UNK]", "<unk>", "<|end_of_text|>"),
    "cls": ("[CLS]", "<s>", "<|begin_of_text|>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<|end_of_text|>", "<eos>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Holds the tokens of one text.

    Attributes:
      ids: the id of each token, without special tokens added.
      offsets: the characters [start, end) of the text that each token covers. White space around
        a word is not part of any token's span.
      word_ids: the number of the word of each token, ascending. Words are what the tokenizer splits
        a text into before it looks for tokens; with WordPiece and byte-level BPE, punctuation marks
        are words of their own, and so is a special token that is written in the text.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Holds the strings of the five special tokens that every tokenizer must have."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    def as_dict(self) -> dict[str, str]:
        """Returns role -> token, in a fixed order."""
        return {role: getattr(self, role) for role in _ROLE_NAMES}


class Tokenizer(ABC):
    """Converts text to token ids and back. `load_tokenizer` and `train_tokenizer` return one.

    A special token that is written in the text ("Paris is the [MASK] of France.") becomes its id,
    as in Hugging Face's tokenizers. Tokenizers can be pickled.

    Attributes:
      kind: "wordpiece", "bpe", "unigram", "word_level" or "sentencepiece".
      vocab_size: number of ids; ids are 0 .. vocab_size - 1.
      special_tokens: the strings of the five special tokens.
      pad_id, unk_id, cls_id, sep_id, mask_id: their ids.
      special_ids: all ids that are never masked and never used as a random replacement.
      word_starts: bool [V], True where the token begins a word ("##x" does not; with BPE and
        SentencePiece only tokens with a leading space do). It is True for special tokens.
      template: where special tokens are added around one text or a pair.
      fingerprint: sha256 (hex) of the vocabulary and all tokenization rules. Tokenizers with equal
        fingerprints give equal ids. The template is not included.
    """

    def __init__(
        self,
        *,
        kind: str,
        tokens: Sequence[str],
        special_tokens: SpecialTokens,
        extra_special_ids: Iterable[int],
        continues_word: Sequence[bool],
        rules: Any,
    ):
        """Sets the attributes that all implementations have.

        Args:
          kind: the attribute of that name.
          tokens: the token of each id.
          special_tokens: the five special tokens; all are in `tokens`.
          extra_special_ids: ids of further special tokens.
          continues_word: for each id, whether the token continues a word.
          rules: the tokenization rules as a JSON value; part of the fingerprint.
        """
        self.kind = kind
        self.vocab_size = len(tokens)
        self.special_tokens = special_tokens
        self._tokens = tuple(tokens)
        self._vocab = {token: i for i, token in enumerate(tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._vocab[token] for token in special_tokens.as_dict().values()
        )
        role_ids = {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        self.special_ids = frozenset(role_ids | set(extra_special_ids))
        self.word_starts = ~np.asarray(continues_word, dtype=bool)
        self.word_starts[list(self.special_ids)] = True
        # Every dataset that is made from the tokenizer shares this array.
        self.word_starts.flags.writeable = False
        self.template = default_template(special_tokens.cls)
        # These keys are hashed: renaming one would change the fingerprint of every tokenizer. The
        # template is left out, because it does not change the ids of a text.
        content = {
            "kind": kind,
            "pieces": self._tokens,
            "special": special_tokens.as_dict(),
            "rules": rules,
        }
        self.fingerprint = hashlib.sha256(
            json.dumps(content, sort_keys=True, ensure_ascii=True).encode()
        ).hexdigest()

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"<{self.kind} tokenizer, {self.vocab_size} tokens, {self.fingerprint[:12]}>"

    def id_to_token(self, token_id: int) -> str:
        """Returns the token of an id; IndexError outside 0 .. vocab_size - 1."""
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"id {token_id} is outside 0 .. {self.vocab_size - 1}")
        return self._tokens[token_id]

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token as the vocabulary spells it; KeyError for an unknown one."""
        return self._vocab[token]

    @property
    def sentinel_ids(self) -> list[int]:
        """Returns the ids of <extra_id_0>, <extra_id_1>, ..., T5's sentinels; often none."""
        names = map(SENTINEL.format, itertools.count())
        return [self._vocab[name] for name in itertools.takewhile(self.__contains__, names)]

    def __contains__(self, token: str) -> bool:
        return token in self._vocab

    def encode(self, text: str) -> list[int]:
        """Returns the ids of one text without special tokens."""
        return self.encode_ids([text])[0].tolist()

    def build_inputs_with_special_tokens(self, first: Ids, second: Ids | None = None) -> np.ndarray:
        """Returns the int32 ids of one text, or of a pair, with its special tokens."""
        return self.template.build_inputs(self.cls_id, self.sep_id, first, second)

    @abstractmethod
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the int32 ids of each text. Faster than `encode_batch`: no offsets."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Returns the ids and the character offsets of each text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Returns readable text with special tokens; its spaces may differ from the original."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load_tokenizer` and Hugging Face's AutoTokenizer open."""


def check_unicode(texts: Sequence[str]) -> None:
    """Raises UserError if a text has half of a surrogate pair, which is no Unicode character."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            start = max(0, error.start - 20)
            raise UserError(
                f"not valid Unicode: {text[start : error.end + 20]!r} contains "
                f"{text[error.start]!r}, a byte that is not UTF-8 or half of a surrogate pair; "
                "correct the text"
            ) from None


def usual_special_tokens() -> set[str]:
    """Returns the special tokens of BERT, RoBERTa, T5, EuroBERT and ESM-2."""
    return {token for names in _ROLE_NAMES.values() for token in names}


def find_special_tokens(
    vocab: Mapping[str, int], tokenizer_config: Mapping[str, Any], source: str | Path
) -> SpecialTokens:
    """Finds the special tokens: those that `tokenizer_config.json` names, else the usual ones.

    Raises:
      UserError: the vocabulary has no token for one of the five roles.
    """
    found = {}
    for role, default_names in _ROLE_NAMES.items():
        # MPNet's vocabulary is BERT's behind four tokens of RoBERTa, so it has <s> and [CLS]. The
        # unknown token of its WordPiece is still [UNK].
        if vocab.get("<s>") == 0 and role != "unk":
            default_names = default_names[::-1]
        # T5 has neither a first special token, which `T5Template` does not write, nor a mask.
        if SENTINEL.format(0) in vocab:
            default_names = (*default_names, *_T5_NAMES.get(role, ()))
        declared_name = declared_token(tokenizer_config, role)
        candidates = (declared_name, *default_names) if declared_name else default_names
        present = [token for token in candidates if token in vocab]
        if not present:
            raise UserError(
                f"tokenizer {source}: no {candidates[0]} among its {len(vocab)} tokens (nor "
                f"{' or '.join(candidates[1:])}). Pretraining needs a padding, an unknown, a "
                "classification, a separator and a mask token: add the token, or train a "
                "tokenizer with `bert-jax tokenizer train`"
            )
        found[role] = present[0]
    return SpecialTokens(**found)


def declared_token(tokenizer_config: Mapping[str, Any], role: str) -> str | None:
    """Returns a role's token in a `tokenizer_config.json`: a string or an object there.

    Raises:
      UserError: the field has another type.
    """
    field = f"{role}_token"
    value = tokenizer_config.get(field)
    content = value.get("content") if isinstance(value, dict) else value
    if content is not None and not isinstance(content, str):
        raise UserError(
            f"{TOKENIZER_CONFIG_FILE}: {field} is {value!r}; expected a token, or an object with "
            'the token in "content"'
        )
    return content


def declared_flag(tokenizer_config: Mapping[str, Any], field: str, default: Any) -> Any:
    """Returns a boolean field of a `tokenizer_config.json`; null and absent fields: `default`.

    Raises:
      UserError: the field is neither true nor false.
    """
    value = tokenizer_config.get(field)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{TOKENIZER_CONFIG_FILE}: {field} is {value!r}; expected true or false")
    return default if value is None else value


def save_tokenizer(
    folder: str | Path,
    *,
    files: Mapping[str, str | bytes],
    tokenizer_config: Mapping[str, Any],
    tokenizer: Tokenizer,
    main_file: str,
) -> None:
    """Writes what `load_tokenizer` and `AutoTokenizer.from_pretrained` read.

    Args:
      folder: created if needed; files of the same names are replaced.
      files: name -> content.
      tokenizer_config: content of tokenizer_config.json (class, special tokens).
      tokenizer: the tokenizer that is saved.
      main_file: the one of `files` that `load_tokenizer` opens.
    """
    folder = Path(folder)
    make_folder(folder)
    description = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "file": main_file,
        "fingerprint": tokenizer.fingerprint,
        "template": tokenizer.template.name,
    }
    # First, so that a folder that is only half replaced does not look complete.
    (folder / TOKENIZER_INFO_FILE).unlink(missing_ok=True)
    for name, content in {
        **files,
        TOKENIZER_CONFIG_FILE: format_json(tokenizer_config),
        # Releases of transformers before 5 read the special tokens from this file.
        "special_tokens_map.json": format_json(
            {f"{role}_token": token for role, token in tokenizer.special_tokens.as_dict().items()}
        ),
        TOKENIZER_INFO_FILE: format_json(description),
    }.items():
        atomic_write(folder / name, content)
