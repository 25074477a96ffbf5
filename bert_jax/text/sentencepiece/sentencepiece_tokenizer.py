"""Runs SentencePiece `.model` files with the `sentencepiece` library (Kudo & Richardson 2018).

Models that were not made for BERT lack some of its special tokens: T5's has no [CLS] and no [MASK].
These are appended after the model's own tokens, as XLM-R and DeBERTa do.
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
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers import (
    Tokenizer as BackendTokenizer,
)

from bert_jax.errors import UserError
from bert_jax.text.input_template import InputTemplate, default_template
from bert_jax.text.sentencepiece.sentencepiece_model import SentencePieceModel, parse_model
from bert_jax.text.tokenizer import (
    Encoding,
    SpecialTokens,
    Tokenizer,
    check_unicode,
    declared_token,
    save_tokenizer,
)
from bert_jax.text.tokenizer_json import make_post_processor

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
        return Encoding(ids, offsets)

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
