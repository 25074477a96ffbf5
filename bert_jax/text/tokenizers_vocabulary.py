"""WordPiece, byte-level BPE and other tokenizer.json files, through the `tokenizers` library.

Devlin et al. 2018 (WordPiece as in BERT's release); Liu et al. 2019 (RoBERTa: the byte-level BPE of
GPT-2). Ids and offsets are those of Hugging Face's tokenizers for the same files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_jax.errors import UserError
from bert_jax.text.files import read_text
from bert_jax.text.saving import save_folder
from bert_jax.text.tokenizer_json import (
    CONTINUATION,
    canonical,
    is_bert,
    is_roberta,
    merge_pairs,
)
from bert_jax.text.vocabulary import (
    Encoding,
    SpecialTokens,
    Vocabulary,
    find_special_tokens,
    read_json,
)

_KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
_SPACE_MARKS = ("Ġ", "▁")


class TokenizersVocabulary(Vocabulary):
    """A vocabulary that the `tokenizers` library encodes with."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens, source: str | Path):
        """`source` is where the tokenizer came from, for messages."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        rules = json.loads(tokenizer.to_str())
        model = rules["model"]
        kind = _KINDS.get(model.get("type"))
        if kind is None:
            raise UserError(
                f"vocabulary {source}: a {model.get('type')} model; expected {', '.join(_KINDS)}."
            )
        pieces = _pieces_by_id(tokenizer.get_vocab(with_added_tokens=True), source)
        if kind == "wordpiece":
            prefix = model["continuing_subword_prefix"]
            continues = [piece.startswith(prefix) for piece in pieces]
        else:
            continues = [not piece.startswith(_SPACE_MARKS) for piece in pieces]
        super().__init__(
            kind=kind,
            pieces=pieces,
            special=special,
            more_special_ids=[t["id"] for t in rules["added_tokens"] if t["special"]],
            continues_word=continues,
            rules=canonical(rules),
        )
        self._tokenizer = tokenizer

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Encoding(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, folder: str | Path) -> None:
        rules = json.loads(self._tokenizer.to_str())
        files = {"tokenizer.json": self._tokenizer.to_str(pretty=True)}
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if is_bert(rules):
            files["vocab.txt"] = "".join(f"{piece}\n" for piece in self._pieces)
            normalizer = rules["normalizer"]
            config = {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": normalizer["lowercase"],
                "strip_accents": normalizer["strip_accents"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            }
        elif is_roberta(rules):
            files["vocab.json"] = json.dumps(rules["model"]["vocab"], ensure_ascii=False)
            merges = "".join(f"{left} {right}\n" for left, right in merge_pairs(rules["model"]))
            files["merges.txt"] = f"#version: 0.2\n{merges}"
            config = {
                "tokenizer_class": "RobertaTokenizer",
                "add_prefix_space": rules["pre_tokenizer"]["add_prefix_space"],
                "trim_offsets": True,
            }
        added = {t["content"]: t for t in rules["added_tokens"]}
        for role, token in self.special.as_dict().items():
            entry = added.get(token)
            # Only an object can say that [MASK] takes the space before it along.
            config[f"{role}_token"] = _added_token(entry) if entry and entry["lstrip"] else token
        save_folder(
            folder, files=files, tokenizer_config=config, vocabulary=self, main="tokenizer.json"
        )


def wordpiece_tokenizer(
    pieces: Sequence[str],
    special: SpecialTokens,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
) -> Tokenizer:
    """BERT's WordPiece: clean, split at spaces, punctuation and CJK, then longest match first.

    Args:
      pieces: piece of each id.
      special: the special tokens.
      lowercase: BERT "uncased".
      strip_accents: None means as `lowercase` says.
      split_cjk: each CJK character is a word.
    """
    table = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(table, unk_token=special.unk))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_cjk
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special.as_dict().values()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special.cls}:0 $A:0 {special.sep}:0",
        pair=f"{special.cls}:0 $A:0 {special.sep}:0 $B:1 {special.sep}:1",
        special_tokens=[(token, table[token]) for token in (special.cls, special.sep)],
    )
    return tokenizer


def byte_level_bpe_tokenizer(
    table: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: SpecialTokens,
    *,
    add_prefix_space: bool = False,
) -> Tokenizer:
    """RoBERTa's byte-level BPE; the mask token takes the space before it along, as in RoBERTa.

    Args:
      table: piece -> id.
      merges: pairs, the earliest learned first.
      special: the special tokens.
      add_prefix_space: the first word is treated as if a space stood before it.
    """
    tokenizer = Tokenizer(models.BPE(dict(table), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, lstrip=role == "mask", normalized=False, special=True)
            for role, token in special.as_dict().items()
        ]
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (special.sep, table[special.sep]),
        (special.cls, table[special.cls]),
        trim_offsets=True,
        add_prefix_space=add_prefix_space,
    )
    return tokenizer


def load_wordpiece(path: Path, config: Mapping[str, Any]) -> TokenizersVocabulary:
    """A `vocab.txt`: one piece per line, its id is the number of the line less one."""
    pieces = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    if pieces == [""]:
        raise UserError(f"vocabulary {path}: the file is empty; expected one piece on each line.")
    lines: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if piece == "":
            raise UserError(f"vocabulary {path}, line {number}: empty; expected a piece.")
        if piece in lines:
            raise UserError(
                f"vocabulary {path}: duplicate piece {piece!r} on lines {lines[piece]} and "
                f"{number}; ids would shift. Fetch the file again or remove one of them."
            )
        lines[piece] = number
    table = {piece: number - 1 for piece, number in lines.items()}
    special = find_special_tokens(table, config, path)
    ordinary = set(pieces) - set(special.as_dict().values())
    # BERT's [unused12] are in lower case, so what is left tells cased from uncased.
    lowercase = config.get("do_lower_case", all(piece == piece.lower() for piece in ordinary))
    tokenizer = wordpiece_tokenizer(
        pieces,
        special,
        lowercase=lowercase,
        strip_accents=config.get("strip_accents"),
        split_cjk=config.get("tokenize_chinese_chars", True),
    )
    return TokenizersVocabulary(tokenizer, special, path)


def load_byte_level_bpe(path: Path, config: Mapping[str, Any]) -> TokenizersVocabulary:
    """A `vocab.json` (piece -> id) with the `merges.txt` that lies beside it."""
    merges_path = path.parent / path.name.replace("vocab.json", "merges.txt")
    if merges_path == path or not merges_path.exists():
        raise UserError(
            f"vocabulary {path}: a byte-level BPE needs its merges; expected merges.txt beside it."
        )
    table = read_json(path)
    if not table or not all(type(id) is int for id in table.values()):
        raise UserError(f"vocabulary {path}: expected a JSON object of piece -> id.")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(merges_path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise UserError(f"{merges_path}, line {number}: expected two pieces, found {line!r}.")
        merges.append((pair[0], pair[1]))
    special = find_special_tokens(table, config, path)
    try:
        tokenizer = byte_level_bpe_tokenizer(
            table, merges, special, add_prefix_space=config.get("add_prefix_space", False)
        )
    except Exception as error:  # the library raises the bare class
        raise UserError(f"{merges_path} does not fit {path}: {error}.") from None
    return TokenizersVocabulary(tokenizer, special, path)


def load_tokenizer_json(path: Path, config: Mapping[str, Any]) -> TokenizersVocabulary:
    """A `tokenizer.json`: normaliser, splitting, model and added tokens in one file."""
    read_json(path)
    try:
        tokenizer = Tokenizer.from_str(read_text(path))
    except Exception as error:  # the library raises the bare class
        raise UserError(
            f"vocabulary {path}: not a tokenizer.json that this version of `tokenizers` reads "
            f"({error})."
        ) from None
    table = tokenizer.get_vocab(with_added_tokens=True)
    return TokenizersVocabulary(tokenizer, find_special_tokens(table, config, path), path)


def _pieces_by_id(table: Mapping[str, int], source: str | Path) -> list[str]:
    pieces = sorted(table, key=table.__getitem__)
    for expected, piece in enumerate(pieces):
        if table[piece] != expected:
            raise UserError(
                f"vocabulary {source}: ids must be 0 .. {len(pieces) - 1}, each once; {piece!r} "
                f"has {table[piece]} where {expected} was expected."
            )
    return pieces


def _added_token(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"__type": "AddedToken"} | {key: entry[key] for key in entry if key != "id"}
