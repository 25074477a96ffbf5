"""Interprets a tokenizer.json: which rules decide ids, and which Hugging Face class has them.

`rules` is the parsed JSON of a whole tokenizer.json (`Tokenizer.to_str()` of `tokenizers`).
"""

from collections.abc import Mapping
from typing import Any

# Keys that do not change the ids of a text.
_KEYS_WITHOUT_EFFECT_ON_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
CONTINUING_SUBWORD_PREFIX = "##"


def canonical(rules: dict[str, Any]) -> dict[str, Any]:
    """Returns the rules that decide ids, in a form that is the same for all library versions."""
    relevant = {
        key: value for key, value in rules.items() if key not in _KEYS_WITHOUT_EFFECT_ON_IDS
    }
    model = {key: value for key, value in relevant["model"].items() if key != "vocab"}
    if relevant["model"].get("type") == "Unigram":
        # The library changes the last bit of some scores when it reads them back.
        model["scores"] = [round(score, 6) for _, score in relevant["model"]["vocab"]]
    if "merges" in model:
        model["merges"] = merge_pairs(model)
    relevant["model"] = model
    return _drop_none(relevant)


def _drop_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_none(entry) for key, entry in value.items() if entry is not None}
    return [_drop_none(entry) for entry in value] if isinstance(value, list) else value


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the merges of a BPE model; older files store a pair as one string."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    return [(left, right) for left, right in pairs]


def is_bert_tokenizer(rules: Mapping[str, Any]) -> bool:
    """Returns whether Hugging Face's BertTokenizer would build the same rules."""
    return (
        rules["model"].get("type") == "WordPiece"
        and rules["model"]["continuing_subword_prefix"] == CONTINUING_SUBWORD_PREFIX
        and (rules["normalizer"] or {}).get("type") == "BertNormalizer"
        and (rules["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
    )


def is_roberta_tokenizer(rules: Mapping[str, Any]) -> bool:
    """Returns whether Hugging Face's RobertaTokenizer has the same rules."""
    return (
        rules["model"].get("type") == "BPE"
        and rules["normalizer"] is None
        and (rules["pre_tokenizer"] or {}).get("type") == "ByteLevel"
    )
