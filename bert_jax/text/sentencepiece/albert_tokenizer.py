"""Runs ALBERT's SentencePiece models (`spiece.model`) with the `tokenizers` library.

ALBERT normalizes text before SentencePiece sees it: it replaces quotation marks of LaTeX, removes
accents and lowers the case. The `.model` file does not contain these rules. The rules and the ids
here are those of Hugging Face's `AlbertTokenizer`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from bert_jax.json_io import read_json_object
from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer
from bert_jax.text.input_template import BertTemplate
from bert_jax.text.sentencepiece.sentencepiece_model import SentencePieceModel, read_unigram_model
from bert_jax.text.tokenizer import declared_flag, find_special_tokens
from bert_jax.text.tokenizer_json import make_post_processor

_SPACE_MARK = "▁"
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
