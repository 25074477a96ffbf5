"""Runs T5's SentencePiece models (`spiece.model`) with the `tokenizers` library.

The `.model` file lacks the sentinels <extra_id_0>, <extra_id_1>, ..., which Hugging Face appends in
reverse, so that <extra_id_0> has the largest id. The ids of texts are those of its `T5Tokenizer`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from bert_jax.errors import UserError
from bert_jax.json_io import read_json_object
from bert_jax.text.fast_tokenizer import HuggingFaceTokenizer
from bert_jax.text.input_template import T5Template
from bert_jax.text.sentencepiece.sentencepiece_model import SentencePieceModel, read_unigram_model
from bert_jax.text.tokenizer import SENTINEL, find_special_tokens
from bert_jax.text.tokenizer_json import make_post_processor

_SPACE_MARK = "▁"
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
    """Adds `extra_ids` sentinels to a unigram model; `config` and `path` are those of `load_t5`.

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
