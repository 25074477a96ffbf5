"""What a vocabulary is to the rest of the project, whichever library does the work.

    vocabulary = load_vocabulary("vocab.txt")    # or tokenizer.json, vocab.json, *.model, a folder
    vocabulary.encode("Text in.")                # ids, no [CLS] and [SEP] added
    vocabulary.save("folder")                    # AutoTokenizer.from_pretrained("folder") opens it

Two classes stand behind it: `TokenizersVocabulary` (WordPiece, byte-level BPE and any other
tokenizer.json) and `SentencePieceVocabulary` (.model files). Neither library is imported before a
vocabulary is loaded.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.text.files import read_text

# Written last by `save`, so its presence says that the folder is whole.
TOKENIZER_INFO_FILE = "vocabulary.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

# For each role the names it has in the vocabularies of BERT and of RoBERTa/T5.
_ROLE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoded text.

    Attributes:
      ids: one id per piece, without [CLS] and [SEP].
      offsets: for each piece the characters [start, end) of the text that it stands for; white
        space around a word belongs to no piece.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The spelling of the five tokens that BERT gives a meaning to."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    def as_dict(self) -> dict[str, str]:
        """Role -> token, in a fixed order."""
        return {role: getattr(self, role) for role in _ROLE_NAMES}


class Tokenizer(ABC):
    """Text <-> ids. Made by `load_vocabulary` or `learn_vocabulary`; immutable; can be pickled.

    A special token written out in the text ("Paris is the [MASK] of France.") becomes its id, as in
    Hugging Face's tokenizers.

    Attributes:
      kind: "wordpiece", "bpe", "unigram" or "sentencepiece".
      size: number of ids; ids are 0 .. size - 1.
      special: the spelling of the five special tokens.
      pad_id, unk_id, cls_id, sep_id, mask_id: their ids.
      special_ids: all ids that are never masked and never drawn as a random replacement.
      word_starts: bool [V], True where the piece begins a word ("##x" does not; with BPE and
        SentencePiece only pieces that carry the leading space do); special tokens are True.
      fingerprint: sha256 (hex) over all that decides ids.
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
        """Common part of all engines.

        Args:
          kind: see the class.
          pieces: piece of each id.
          special: the five special tokens, all present in `pieces`.
          more_special_ids: ids of further special tokens.
          continues_word: for each id whether the piece goes on within a word.
          rules: JSON-able; with `pieces` and `special` it decides ids (for the fingerprint).
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
        self.word_starts.flags.writeable = False
        # Hashed: another key would change the fingerprint of every tokenizer.
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
        """The piece of an id; IndexError outside 0 .. size - 1."""
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"id {token_id} is outside 0 .. {self.vocab_size - 1}")
        return self._tokens[token_id]

    def token_to_id(self, token: str) -> int:
        """The id of a piece, spelled as in the vocabulary; KeyError when it is not there."""
        return self._vocab[token]

    def __contains__(self, token: str) -> bool:
        return token in self._vocab

    def encode(self, text: str) -> list[int]:
        """Ids of one text; no [CLS] and [SEP] are added."""
        return self.encode_ids([text])[0].tolist()

    @abstractmethod
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids (int32) of each text: the fast way, without offsets."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Ids and character offsets of each text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Readable text of ids; special tokens are kept, spaces not always."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load_vocabulary` and Hugging Face's AutoTokenizer open."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Opens a vocabulary.

    Args:
      path: `vocab.txt` (WordPiece), `tokenizer.json`, `vocab.json` with `merges.txt` beside it
        (byte-level BPE), a SentencePiece `.model`, or a folder with one of these. A
        `tokenizer_config.json` beside the file is heeded (lower-casing, special tokens); a
        vocab.txt without one is taken as uncased when no piece holds an upper-case letter.

    Raises:
      UserError: nothing there; a damaged file; duplicate pieces; a special token is missing (a
        `.model` gets those that it lacks appended after its pieces).
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"tokenizer {path}: no such file or folder. Expected vocab.txt, tokenizer.json, "
            "vocab.json with merges.txt, a SentencePiece .model, or a folder with one of these; "
            "`bert-jax vocab learn` makes one."
        )
    if path.is_dir():
        return _load_folder(path)
    return _load_file(path)


def _load_folder(folder: Path) -> Tokenizer:
    tokenizer_info = (
        read_json(folder / TOKENIZER_INFO_FILE) if (folder / TOKENIZER_INFO_FILE).exists() else {}
    )
    names = [tokenizer_info["file"]] if "file" in tokenizer_info else []
    # tokenizer.json comes first of the foreign ones: it alone holds every rule.
    names += ["tokenizer.json", "vocab.txt", "vocab.json"]
    files = [folder / name for name in names if (folder / name).exists()]
    files += sorted(folder.glob("*.model"))
    if not files:
        raise UserError(
            f"tokenizer {folder}: the folder holds none of tokenizer.json, vocab.txt, vocab.json "
            "with merges.txt, or a SentencePiece .model."
        )
    tokenizer = _load_file(files[0])
    expected = tokenizer_info.get("fingerprint", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise UserError(
            f"tokenizer {folder}: its files were changed after it was saved (fingerprint "
            f"{tokenizer.fingerprint[:12]}, {TOKENIZER_INFO_FILE} says {expected[:12]}). Restore "
            f"the folder, or delete {TOKENIZER_INFO_FILE} if the change is meant."
        )
    return tokenizer


def _load_file(path: Path) -> Tokenizer:
    config_file = path.parent / TOKENIZER_CONFIG_FILE
    config = read_json(config_file) if config_file.exists() else {}
    if path.suffix == ".model":
        from bert_jax.text.sentencepiece_tokenizer import load_sentencepiece

        return load_sentencepiece(path, config)
    from bert_jax.text import fast_tokenizer

    if path.name.endswith("tokenizer.json"):
        return fast_tokenizer.load_tokenizer_json(path, config)
    if path.suffix == ".txt":
        return fast_tokenizer.load_wordpiece(path, config)
    if path.suffix == ".json":
        return fast_tokenizer.load_byte_level_bpe(path, config)
    raise UserError(
        f"tokenizer {path}: its name ends in {path.suffix!r}; expected vocab.txt, tokenizer.json, "
        "vocab.json (with merges.txt beside it) or a SentencePiece .model."
    )


def find_special_tokens(
    vocab: Mapping[str, int], tokenizer_config: Mapping[str, Any], source: str | Path
) -> SpecialTokens:
    """The spelling of the five roles: as `tokenizer_config.json` declares, else the usual names.

    Raises:
      UserError: a role has no token in the vocabulary.
    """
    found = {}
    for role, default_names in _ROLE_NAMES.items():
        declared_name = declared_token(tokenizer_config, role)
        candidates = (declared_name, *default_names) if declared_name else default_names
        present = [token for token in candidates if token in vocab]
        if not present:
            raise UserError(
                f"tokenizer {source}: no {candidates[0]} among its {len(vocab)} tokens (nor "
                f"{' or '.join(candidates[1:])}). Pretraining needs a padding, an unknown, a "
                "classification, a separator and a mask token: add the token, or learn a "
                "vocabulary with `bert-jax vocab learn`."
            )
        found[role] = present[0]
    return SpecialTokens(**found)


def declared_token(tokenizer_config: Mapping[str, Any], role: str) -> str | None:
    """A role's token in a `tokenizer_config.json`, where it is a string or an object."""
    value = tokenizer_config.get(f"{role}_token")
    return value.get("content") if isinstance(value, dict) else value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; UserError when it is damaged, no object, or repeats a key."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise UserError(f"{path}: the key {twice!r} occurs twice; expected each token once.")
        return table

    try:
        content = json.loads(read_text(path), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}). "
            "The file may be cut off: fetch or write it again."
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found a {type(content).__name__}.")
    return content
