"""Interprets and checks a tokenizer.json: its rules, its template, Hugging Face's class for it.

`rules` is the parsed JSON of a whole tokenizer.json (`Tokenizer.to_str()` of `tokenizers`).
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.text.input_template import (
    TEMPLATES,
    BertTemplate,
    InputTemplate,
    RobertaTemplate,
    T5Template,
)
from bert_jax.text.tokenizer import check_unicode

# Keys that do not change the ids of a text.
_KEYS_WITHOUT_EFFECT_ON_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
CONTINUING_SUBWORD_PREFIX = "##"
# Larger ids and rules that lengthen a text more are mistakes, found before memory runs out.
_LARGEST_ID = 2**24
_LARGEST_GROWTH = 1000


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


def is_esm_tokenizer(rules: Mapping[str, Any]) -> bool:
    """Returns whether Hugging Face's EsmTokenizer has the same rules: a token for each letter."""
    steps = (rules["pre_tokenizer"] or {}).get("pretokenizers", ())
    return rules["model"].get("type") == "WordLevel" and [step["type"] for step in steps] == [
        "WhitespaceSplit",
        "Split",
    ]


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
    # `RobertaProcessing` would add RoBERTa's template whatever was asked for, hence both
    # conditions.
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


def saved_roles(roles: Mapping[str, str], template: InputTemplate) -> dict[str, str]:
    """Returns the special tokens that tokenizer_config.json names, by role."""
    if template != T5Template():
        return dict(roles)
    # T5 has an end token, and no first token or mask.
    return {"eos": roles["sep"], "pad": roles["pad"], "unk": roles["unk"]}


def added_token(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a token of tokenizer.json as tokenizer_config.json has it."""
    return {"__type": "AddedToken"} | {key: entry[key] for key in entry if key != "id"}


def check_rules(rules: Mapping[str, Any], source: str | Path) -> None:
    """Checks the sizes in a tokenizer.json, for which the library itself has no bounds.

    Raises:
      UserError: an id is too large, or the rules make a text much longer.
    """
    model = rules.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):  # Unigram has a list, whose ids are its indices
        check_vocabulary(vocab, source)
    added_tokens = rules.get("added_tokens")
    if isinstance(added_tokens, list):
        tokens = [token for token in added_tokens if isinstance(token, dict)]
        for token in tokens:
            _check_id(token.get("content"), token.get("id"), source)
    growth = 1.0
    for rule in _replacements(rules.get("normalizer"), rules.get("pre_tokenizer")):
        pattern, content = rule.get("pattern"), rule.get("content")
        found = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(content, str):
            growth *= max(1.0, len(content) / max(1, len(found) if isinstance(found, str) else 1))
    if growth > _LARGEST_GROWTH:
        raise UserError(
            f"tokenizer {source}: its rules of type Replace can make a text {growth:.0f} times as "
            f"long; expected at most {_LARGEST_GROWTH} times"
        )


def check_vocabulary(vocab: Mapping[str, Any], source: str | Path) -> None:
    """Raises UserError unless `vocab` maps tokens to ids that are not too large."""
    if not vocab:
        raise UserError(f"tokenizer {source}: expected a JSON object of token -> id")
    for token, token_id in vocab.items():
        _check_id(token, token_id, source)


def _check_id(token: Any, token_id: Any, source: str | Path) -> None:
    if type(token_id) is not int or not 0 <= token_id <= _LARGEST_ID:
        raise UserError(
            f"tokenizer {source}: the id of {token!r} is {token_id!r}; expected a JSON object of "
            f"token -> id, an integer from 0 to {_LARGEST_ID:,}"
        )


def _replacements(*rules: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the rules of type Replace at any depth."""
    for rule in rules:
        if isinstance(rule, list):
            yield from _replacements(*rule)
        elif isinstance(rule, dict):
            if rule.get("type") == "Replace":
                yield rule
            yield from _replacements(*rule.values())


def tokens_by_id(vocab: Mapping[str, int], source: str | Path) -> list[str]:
    """Returns the token of each id; raises UserError unless the ids are 0, 1, 2, ..."""
    tokens = sorted(vocab, key=vocab.__getitem__)
    for expected_id, token in enumerate(tokens):
        if vocab[token] != expected_id:
            raise UserError(
                f"tokenizer {source}: the id of {token!r} is {vocab[token]}, expected "
                f"{expected_id}: ids must be 0 .. {len(tokens) - 1}, each once"
            )
    return tokens


def is_panic(error: BaseException) -> bool:
    """Returns whether the library `tokenizers` panicked, which is no subclass of Exception."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def errors_of_library(texts: Sequence[str], source: str | Path) -> Generator[None]:
    """Raises UserError for text that is not Unicode, and if the library panics."""
    try:
        yield
    except TypeError:
        check_unicode(texts)
        raise
    except BaseException as error:
        if not is_panic(error):
            raise
        raise UserError(
            f"tokenizer {source}: the library `tokenizers` fails with its rules ({error})"
        ) from None
