"""Interprets a tokenizer.json: rules that decide ids, its template, Hugging Face's class for it.

`rules` is the parsed JSON of a whole tokenizer.json (`Tokenizer.to_str()` of `tokenizers`).
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, processors

from bert_jax.text.input_template import TEMPLATES, BertTemplate, InputTemplate, RobertaTemplate

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


def declared_template(post_processor: Mapping[str, Any] | None) -> InputTemplate | None:
    """Returns the template that a post-processor declares; None if it is none of ours."""
    if post_processor is None:
        return None
    kind: str = post_processor["type"]
    if kind == "Sequence":
        found = [declared_template(processor) for processor in post_processor["processors"]]
        return next(filter(None, found), None)
    if kind == "TemplateProcessing":
        patterns = {name: _pattern(post_processor[name]) for name in ("single", "pair")}
        matching = (t for t in TEMPLATES if t.patterns("special", "special") == patterns)
        return next(matching, None)
    return {"BertProcessing": BertTemplate(), "RobertaProcessing": RobertaTemplate()}.get(kind)


def _pattern(pieces: list[dict[str, Any]]) -> str:
    """Returns a pattern of TemplateProcessing as a string, with one name for special tokens."""
    words = []
    for piece in pieces:
        ((kind, entry),) = piece.items()
        name = f"${entry['id']}" if kind == "Sequence" else "special"
        words.append(f"{name}:{entry['type_id']}")
    return " ".join(words)


def make_post_processor(
    backend: Tokenizer,
    template: InputTemplate,
    cls_token: str,
    sep_token: str,
) -> processors.PostProcessor:
    """Makes the post-processor that adds special tokens to a text or a pair as a template does.

    For byte-level BPE, it also removes the space before a word from the offsets of its token.
    """
    pre_tokenizer = backend.pre_tokenizer
    vocab = backend.get_vocab(with_added_tokens=True)
    cls_id, sep_id = vocab[cls_token], vocab[sep_token]
    if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) and template == RobertaTemplate():
        # The class that Hugging Face's RobertaTokenizer writes; it trims offsets by default.
        return processors.RobertaProcessing(
            (sep_token, sep_id),
            (cls_token, cls_id),
            add_prefix_space=pre_tokenizer.add_prefix_space,
        )
    special_tokens = processors.TemplateProcessing(
        **template.patterns(cls_token, sep_token),
        special_tokens=[(cls_token, cls_id), (sep_token, sep_id)],
    )
    if pre_tokenizer is not None and b"ByteLevel" in pre_tokenizer.__getstate__():
        return processors.Sequence([processors.ByteLevel(trim_offsets=True), special_tokens])
    return special_tokens
