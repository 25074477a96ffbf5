"""Implements the SentencePiece tokenizers of ALBERT and T5, read from `.model` files.

It reads only the fields that a tokenizer.json needs. The message is `ModelProto` of
sentencepiece_model.proto in google/sentencepiece; the wire format is described at
protobuf.dev/programming-guides/encoding. Generated protobuf code would restrict the version of
protobuf, and TensorFlow and Apache Beam rarely accept the same one.

Models that were not made for BERT lack some of its special tokens: T5's has no [CLS] and no [MASK].
These are appended after the model's own tokens, as XLM-R and DeBERTa do.

ALBERT normalizes text before SentencePiece sees it: it replaces quotation marks of LaTeX, removes
accents and lowers the case. The `.model` file does not contain these rules. The rules and the ids
here are as in Hugging Face's `AlbertTokenizer`.

The `.model` file lacks the sentinels <extra_id_0>, <extra_id_1>, ..., which Hugging Face appends in
reverse, so that <extra_id_0> has the largest id. The ids of texts are as in its `T5Tokenizer`.
"""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers import (
    Tokenizer as BackendTokenizer,
)

from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer
from bert_jax.text.input_template import BertTemplate, InputTemplate, T5Template, default_template
from bert_jax.text.tokenizer import (
    SENTINEL,
    Encoding,
    SpecialTokens,
    Tokenizer,
    check_unicode,
    declared_flag,
    declared_token,
    find_special_tokens,
    save_tokenizer,
)
from bert_jax.text.tokenizer_json import make_post_processor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """Holds the contents of a `.model` file.

    Attributes:
      pieces: (piece, log probability) of each id.
      model_type: "unigram", "bpe", "word" or "char".
      unk_id: id of the unknown piece.
      byte_fallback: whether unknown characters are encoded as bytes.
      precompiled_charsmap: compiled normalization table; empty for none.
      add_dummy_prefix: whether a space is added before the text.
      remove_extra_whitespaces: whether runs of spaces become one space and outer spaces none.
    """

    pieces: list[tuple[str, float]]
    model_type: str
    unk_id: int
    byte_fallback: bool
    precompiled_charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_unigram_model(path: Path, family: str) -> SentencePieceModel:
    """Reads the `.model` file of a family, such as "T5", whose models are of the type "unigram".

    Raises:
      UserError: the file is damaged or of another type.
    """
    try:
        model = parse_model(path.read_bytes())
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"tokenizer {path}: not a SentencePiece model ({error})") from None
    if model.model_type != "unigram":
        raise UserError(
            f"tokenizer {path}: a SentencePiece model of the type {model.model_type!r}; {family}'s "
            "is 'unigram'. Remove tokenizer_class from tokenizer_config.json if this is no "
            f"{family}"
        )
    return model


def parse_model(data: bytes) -> SentencePieceModel:
    """Parses the bytes of a `.model` file; ValueError if they are not one."""
    pieces: list[tuple[str, float]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field_number, value in _read_fields(data):
        if field_number == 1 and isinstance(value, bytes):
            piece = dict(_read_fields(value))
            score = piece.get(2, b"\0\0\0\0")
            pieces.append(
                (_require_bytes(piece[1]).decode(), struct.unpack("<f", _require_bytes(score))[0])
            )
        elif field_number == 2 and isinstance(value, bytes):
            trainer = dict(_read_fields(value))
        elif field_number == 3 and isinstance(value, bytes):
            normalizer = dict(_read_fields(value))
    return SentencePieceModel(
        pieces=pieces,
        # Absent fields have the defaults of sentencepiece_model.proto, because unset fields are not
        # written.
        model_type=_MODEL_TYPES[int(trainer.get(3, 1))],
        unk_id=int(trainer.get(40, 0)),
        byte_fallback=bool(trainer.get(35, 0)),
        precompiled_charsmap=_require_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )


def _require_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes were expected")
    return value


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (field number, value) in file order; fixed-width values remain bytes."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        field_number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
            yield field_number, value
            continue
        if wire_type == _BYTES:
            length, position = _read_varint(data, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + length > len(data):
            raise ValueError("the data ends inside a field")
        yield field_number, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("the data ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


_SPACE_MARK = "▁"
_MODEL_FILE = "spiece.model"
_FAIRSEQ_MODEL_FILE = "sentencepiece.bpe.model"
# In order of preference. If a model has none of them, the first one is appended.
_ROLE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


# BigBird runs with the SentencePiece library, as in Google's code: a space at the end of a text or
# before [MASK] is dropped. Hugging Face's present class makes a token of it; all other texts have
# the same ids.
class SentencePieceTokenizer(Tokenizer):
    """Encodes text with the `sentencepiece` library."""

    def __init__(self, model: bytes, special_tokens: SpecialTokens, added_tokens: Sequence[str]):
        """Takes the bytes of a `.model` file and the tokens to append to its own."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        n = processor.get_piece_size()
        tokens = [processor.id_to_piece(i) for i in range(n)] + list(added_tokens)
        control_ids = [i for i in range(n) if processor.is_control(i) or processor.is_unused(i)]
        super().__init__(
            kind="sentencepiece",
            tokens=tokens,
            special_tokens=special_tokens,
            extra_special_ids=[*control_ids, *range(n, len(tokens))],
            continues_word=[not token.startswith(_SPACE_MARK) for token in tokens],
            rules=hashlib.sha256(model).hexdigest(),
        )
        self._model, self._processor, self._added_tokens = model, processor, tuple(added_tokens)
        # Longest first, because an alternative of a regular expression wins by its place.
        special_strings = sorted(set(special_tokens.as_dict().values()), key=len, reverse=True)
        # SentencePiece never encodes text as a control token, so special tokens are found here.
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, special_strings)) + ")")

    def __reduce__(self):
        arguments = (self._model, self.special_tokens, self._added_tokens)
        return type(self), arguments, {"template": self.template}

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        check_unicode(texts)
        result = []
        for text in texts:
            ids: list[int] = []
            for part, special_id, _ in self._split_at_special_tokens(text):
                ids += [special_id] if special_id >= 0 else self._processor.encode(part)
            result.append(np.array(ids, np.int32))
        return result

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        check_unicode(texts)
        return [self._encode_with_offsets(text) for text in texts]

    def _encode_with_offsets(self, text: str) -> Encoding:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for part, special_id, start in self._split_at_special_tokens(text):
            if special_id >= 0:
                ids.append(special_id)
                offsets.append((start, start + len(part)))
                continue
            mapping = self._processor.encode(part, return_type="offset_mapping")
            ids += mapping["ids"]
            offsets += [_strip_span(text, start + a, start + b) for a, b in mapping["offsets"]]
        word_ids = np.cumsum(self.word_starts[ids]) - 1 if ids else []
        return Encoding(ids, offsets, [int(word) for word in word_ids])

    def _split_at_special_tokens(self, text: str) -> Iterable[tuple[str, int, int]]:
        """Returns (part, id of the special token or -1, start of the part), in order."""
        parts = self._special_pattern.split(text)
        if len(parts) == 1:
            return [(text, -1, 0)]
        segments, start = [], 0
        for n, part in enumerate(parts):
            if part:
                segments.append((part, self._vocab[part] if n % 2 else -1, start))
            start += len(part)
        return segments

    def decode(self, ids: Iterable[int]) -> str:
        words: list[str] = []
        pending_ids: list[int] = []
        for token_id in [*map(int, ids), -1]:
            if token_id >= 0 and token_id not in self.special_ids:
                pending_ids.append(token_id)
                continue
            if pending_ids:
                words.append(self._processor.decode(pending_ids))
                pending_ids = []
            if token_id >= 0:
                words.append(self.id_to_token(token_id))
        return " ".join(words)

    def save(self, folder: str | Path) -> None:
        model = parse_model(self._model)
        files: dict[str, str | bytes] = {_MODEL_FILE: self._model}
        if model.model_type == "unigram":
            backend = unigram_backend(model, self.special_tokens, self._added_tokens, self.template)
            files["tokenizer.json"] = backend.to_str(pretty=True)
        special_strings = {
            f"{role}_token": token for role, token in self.special_tokens.as_dict().items()
        }
        save_tokenizer(
            folder,
            files=files,
            tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **special_strings},
            tokenizer=self,
            main_file=_MODEL_FILE,
        )


def unigram_backend(
    model: SentencePieceModel,
    special_tokens: SpecialTokens,
    added_tokens: Sequence[str] = (),
    template: InputTemplate | None = None,
) -> BackendTokenizer:
    """Builds the same model for the `tokenizers` library: tokens, scores and normalization.

    The ids of real text are the same in both libraries except for ties of scores, at most one line
    in some hundreds. Stacked accents and joined emoji may also differ, because `tokenizers`
    normalizes whole graphemes and SentencePiece single characters.
    """
    # Nine decimals represent a float32 score exactly, also after writing and reading JSON.
    tokens = [(token, round(score, 9)) for token, score in model.pieces]
    backend = BackendTokenizer(
        models.Unigram(tokens, unk_id=model.unk_id, byte_fallback=model.byte_fallback)
    )
    steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    prepend_scheme = "always" if model.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE_MARK, prepend_scheme=prepend_scheme)
    backend.decoder = decoders.Metaspace(_SPACE_MARK, prepend_scheme=prepend_scheme)
    # The order matters: tokens that are new to the model get the ids after its own, in this order.
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in (*added_tokens, *special_tokens.as_dict().values())
        ]
    )
    template = template or default_template(special_tokens.cls)
    backend.post_processor = make_post_processor(
        backend, template, special_tokens.cls, special_tokens.sep
    )
    return backend


def load_sentencepiece(path: Path, config: Mapping[str, Any]) -> SentencePieceTokenizer:
    """Loads a `.model` file; `config` (tokenizer_config.json) may name its special tokens.

    Raises:
      UserError: the file is damaged, or the ids of its model are other than those in the file.
    """
    if path.name == _FAIRSEQ_MODEL_FILE:
        # fairseq's models shift the ids of the file, by 1 (XLM-R) or 4 (CamemBERT), and then the
        # vocabulary has the same size: without this check every id would be wrong, without a word.
        folder = str(path.parent)
        raise UserError(
            f"tokenizer {path}: the token ids of XLM-RoBERTa and CamemBERT are not those of this "
            "file; expected a tokenizer.json in the same folder. Write one with transformers: "
            f"AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r})"
        )
    try:
        model = path.read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        unknown = processor.id_to_piece(processor.unk_id())
    except (OSError, RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"tokenizer {path}: not a SentencePiece model ({error})") from None
    known_tokens, added_tokens = set(tokens), []
    roles = {"unk": unknown}
    for role, default_names in _ROLE_NAMES.items():
        declared = declared_token(config, role)
        candidates = (declared, *default_names) if declared else default_names
        roles[role] = next((token for token in candidates if token in known_tokens), candidates[0])
        if roles[role] not in known_tokens:
            added_tokens.append(roles[role])
    return SentencePieceTokenizer(model, SpecialTokens(**roles), added_tokens)


def _strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Removes white space from the ends of a span; SentencePiece includes it in the token."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


_CONFIG, _GOOGLE_CONFIG = "config.json", "albert_config.json"


def is_albert_model(path: Path, config: Mapping[str, Any]) -> bool:
    """Returns whether a `.model` file is ALBERT's, which the files in its folder tell.

    Args:
      config: the content of tokenizer_config.json, {} without one.
    """
    if "tokenizer_class" in config:
        return str(config["tokenizer_class"]).startswith("Albert")
    model_config = path.parent / _CONFIG
    if model_config.exists():
        return read_json_object(model_config).get("model_type") == "albert"
    return (path.parent / _GOOGLE_CONFIG).exists()


def load_albert(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads ALBERT's `.model` file; `config` (tokenizer_config.json) may change its rules.

    Raises:
      UserError: the file is damaged, is no unigram model, or lacks a special token.
    """
    model = read_unigram_model(path, "ALBERT")
    special_tokens = find_special_tokens(
        {piece: token_id for token_id, (piece, _) in enumerate(model.pieces)}, config, path
    )
    backend = albert_backend(
        model,
        lowercase=declared_flag(config, "do_lower_case", True),
        keep_accents=declared_flag(config, "keep_accents", False),
    )
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in special_tokens.as_dict().values()
        ]
    )
    backend.post_processor = make_post_processor(
        backend, BertTemplate(), special_tokens.cls, special_tokens.sep
    )
    return HuggingFaceTokenizer(backend, special_tokens, path)


# The normalization of ALBERT (quotation marks, accents, lower case) is not in the model file, so
# the rules are written here; the ids are as in Hugging Face's `AlbertTokenizer`. Google's code
# also splits a token that ends in a digit and a comma once more; Hugging Face's present class does
# not.
def albert_backend(
    model: SentencePieceModel, *, lowercase: bool, keep_accents: bool
) -> BackendTokenizer:
    """Builds ALBERT's tokenizer for the `tokenizers` library, without special tokens."""
    # Nine decimals represent a float32 score exactly, also after writing and reading JSON.
    tokens = [(token, round(score, 9)) for token, score in model.pieces]
    backend = BackendTokenizer(models.Unigram(tokens, unk_id=model.unk_id, byte_fallback=False))
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    backend.normalizer = normalizers.Sequence(steps)
    metaspace = pre_tokenizers.Metaspace(_SPACE_MARK, prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(_SPACE_MARK, prepend_scheme="always")
    return backend


_DEFAULT_EXTRA_IDS = 100
_LARGEST_EXTRA_IDS = 2**16


def is_t5_model(path: Path, config: Mapping[str, Any]) -> bool:
    """Returns whether a `.model` file is T5's, which the files in its folder tell.

    Args:
      config: the content of tokenizer_config.json, {} without one.
    """
    if "tokenizer_class" in config:
        return str(config["tokenizer_class"]).startswith("T5Tokenizer")
    model_config = path.parent / "config.json"
    return model_config.exists() and read_json_object(model_config).get("model_type") == "t5"


def load_t5(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads T5's `.model` file; `extra_ids` in `config` (tokenizer_config.json) counts sentinels.

    Raises:
      UserError: the file is damaged, is no unigram model, or lacks a special token.
    """
    model = read_unigram_model(path, "T5")
    extra_ids = config.get("extra_ids", _DEFAULT_EXTRA_IDS)
    if type(extra_ids) is not int or not 1 <= extra_ids <= _LARGEST_EXTRA_IDS:
        raise UserError(
            f"tokenizer {path}: extra_ids in tokenizer_config.json is {extra_ids!r}; expected an "
            f"integer from 1 to {_LARGEST_EXTRA_IDS}"
        )
    return build_t5(model, extra_ids, config, path)


def build_t5(
    model: SentencePieceModel, extra_ids: int, config: Mapping[str, Any], path: str | Path
) -> HuggingFaceTokenizer:
    """Adds `extra_ids` sentinels to a unigram model; `config` and `path` are as in `load_t5`.

    Raises:
      UserError: the model lacks a special token.
    """
    # Nine decimals represent a float32 score exactly, also after writing and reading JSON.
    tokens = [(token, round(score, 9)) for token, score in model.pieces]
    known = {token for token, _ in tokens}
    sentinels = [SENTINEL.format(number) for number in reversed(range(extra_ids))]
    # mT5's model has its own; T5's gets them after the last id.
    tokens += [(token, 0.0) for token in sentinels if token not in known]
    vocab = {token: token_id for token_id, (token, _) in enumerate(tokens)}
    special_tokens = find_special_tokens(vocab, config, path)
    backend = BackendTokenizer(models.Unigram(tokens, unk_id=model.unk_id, byte_fallback=False))
    if model.precompiled_charsmap:
        backend.normalizer = normalizers.Precompiled(model.precompiled_charsmap)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(_SPACE_MARK, prepend_scheme="always"),
        ]
    )
    backend.decoder = decoders.Metaspace(_SPACE_MARK, prepend_scheme="always")
    special_strings = [special_tokens.pad, special_tokens.sep, special_tokens.unk, *sentinels]
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special_strings]
    )
    backend.post_processor = make_post_processor(
        backend, T5Template(), special_tokens.sep, special_tokens.sep
    )
    return HuggingFaceTokenizer(backend, special_tokens, path)
