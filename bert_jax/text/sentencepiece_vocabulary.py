"""SentencePiece `.model` files, through the `sentencepiece` library.

Kudo & Richardson 2018. Models made for other purposes lack some of BERT's special tokens (T5's has
no [CLS] and no [MASK]); those are appended after the model's pieces, as XLM-R and DeBERTa do.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_jax.errors import UserError
from bert_jax.text.saving import save_folder
from bert_jax.text.sentencepiece_model import SentencePieceModel, parse_model
from bert_jax.text.vocabulary import Encoding, SpecialTokens, Vocabulary, declared_token

_SPACE_MARK = "▁"
_MODEL_FILE = "spiece.model"
# In order of preference; the first of each is appended where a model has none of them.
_ROLE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class SentencePieceVocabulary(Vocabulary):
    """A vocabulary that the `sentencepiece` library encodes with."""

    def __init__(self, model: bytes, special: SpecialTokens, appended: Sequence[str]):
        """Takes the bytes of a `.model` file and the tokens that come after its pieces."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        n = processor.get_piece_size()
        pieces = [processor.id_to_piece(i) for i in range(n)] + list(appended)
        control = [i for i in range(n) if processor.is_control(i) or processor.is_unused(i)]
        super().__init__(
            kind="sentencepiece",
            pieces=pieces,
            special=special,
            more_special_ids=[*control, *range(n, len(pieces))],
            continues_word=[not piece.startswith(_SPACE_MARK) for piece in pieces],
            rules=hashlib.sha256(model).hexdigest(),
        )
        self._model, self._processor, self._appended = model, processor, tuple(appended)
        tokens = sorted(set(special.as_dict().values()), key=len, reverse=True)
        # SentencePiece itself never makes a control piece from text.
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, tokens)) + ")")

    def __reduce__(self):
        return type(self), (self._model, self.special, self._appended)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        result = []
        for text in texts:
            ids: list[int] = []
            for part, special_id, _ in self._parts(text):
                ids += [special_id] if special_id >= 0 else self._processor.encode(part)
            result.append(np.array(ids, np.int32))
        return result

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return [self._encode_with_offsets(text) for text in texts]

    def _encode_with_offsets(self, text: str) -> Encoding:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for part, special_id, start in self._parts(text):
            if special_id >= 0:
                ids.append(special_id)
                offsets.append((start, start + len(part)))
                continue
            mapping = self._processor.encode(part, return_type="offset_mapping")
            ids += mapping["ids"]
            offsets += [_without_space(text, start + a, start + b) for a, b in mapping["offsets"]]
        return Encoding(ids, offsets)

    def _parts(self, text: str) -> Iterable[tuple[str, int, int]]:
        """(part, its id if it is a special token else -1, its start), in order."""
        parts = self._special_pattern.split(text)
        if len(parts) == 1:
            return [(text, -1, 0)]
        found, start = [], 0
        for n, part in enumerate(parts):
            if part:
                found.append((part, self._ids[part] if n % 2 else -1, start))
            start += len(part)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        words: list[str] = []
        run: list[int] = []
        for id in [*map(int, ids), -1]:
            if id >= 0 and id not in self.special_ids:
                run.append(id)
                continue
            if run:
                words.append(self._processor.decode(run))
                run = []
            if id >= 0:
                words.append(self.token(id))
        return " ".join(words)

    def save(self, folder: str | Path) -> None:
        model = parse_model(self._model)
        files: dict[str, str | bytes] = {_MODEL_FILE: self._model}
        if model.model_type == "unigram":
            tokenizer = unigram_tokenizer(model, self.special, self._appended)
            files["tokenizer.json"] = tokenizer.to_str(pretty=True)
        tokens = {f"{role}_token": token for role, token in self.special.as_dict().items()}
        save_folder(
            folder,
            files=files,
            tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **tokens},
            vocabulary=self,
            main=_MODEL_FILE,
        )


def unigram_tokenizer(
    model: SentencePieceModel, special: SpecialTokens, appended: Sequence[str] = ()
) -> Tokenizer:
    """The same pieces, scores and normalisation for the `tokenizers` library.

    Real text gets the same ids from both libraries but for ties of scores (a line in some hundreds
    at most); `tokenizers` normalises whole graphemes where SentencePiece goes by characters, so
    that stacked accents and joined emoji may differ.
    """
    # Nine decimals hold all of a float32 score, and come back from JSON as they went in.
    pieces = [(piece, round(score, 9)) for piece, score in model.pieces]
    tokenizer = Tokenizer(
        models.Unigram(pieces, unk_id=model.unk_id, byte_fallback=model.byte_fallback)
    )
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if model.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE_MARK, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(_SPACE_MARK, prepend_scheme=scheme)
    # In this order: what is new to the model gets the ids after its pieces.
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in (*appended, *special.as_dict().values())
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special.cls}:0 $A:0 {special.sep}:0",
        pair=f"{special.cls}:0 $A:0 {special.sep}:0 $B:1 {special.sep}:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in (special.cls, special.sep)],
    )
    return tokenizer


def load_model(path: Path, config: Mapping[str, Any]) -> SentencePieceVocabulary:
    """A `.model` file; `config` (tokenizer_config.json) may name its special tokens."""
    try:
        model = path.read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        unknown = processor.id_to_piece(processor.unk_id())
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"vocabulary {path}: not a SentencePiece model ({error}).") from None
    known, appended = set(pieces), []
    roles = {"unk": unknown}
    for role, usual in _ROLE_NAMES.items():
        declared = declared_token(config, role)
        candidates = (declared, *usual) if declared else usual
        roles[role] = next((token for token in candidates if token in known), candidates[0])
        if roles[role] not in known:
            appended.append(roles[role])
    return SentencePieceVocabulary(model, SpecialTokens(**roles), appended)


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the white space at its ends; SentencePiece counts it to the piece."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
