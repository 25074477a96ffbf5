"""Runs WordPiece, byte-level BPE and other tokenizer.json files with the `tokenizers` library.

WordPiece is as in BERT's release (Devlin et al. 2019), byte-level BPE as in GPT-2 and RoBERTa
(Liu et al. 2019). Ids and offsets equal those of Hugging Face's tokenizers for the same files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from bert_jax.errors import UserError
from bert_jax.io.json_io import read_json_object
from bert_jax.text.files import read_text
from bert_jax.text.input_template import (
    BertTemplate,
    InputTemplate,
    RobertaTemplate,
    default_template,
)
from bert_jax.text.tokenizer import (
    Encoding,
    SpecialTokens,
    Tokenizer,
    declared_flag,
    find_special_tokens,
    save_tokenizer,
    usual_special_tokens,
)
from bert_jax.text.tokenizer_json import (
    CONTINUING_SUBWORD_PREFIX,
    added_token,
    canonical,
    check_rules,
    check_vocabulary,
    declared_template,
    errors_of_library,
    is_bert_tokenizer,
    is_esm_tokenizer,
    is_panic,
    is_roberta_tokenizer,
    make_post_processor,
    merge_pairs,
    saved_roles,
    tokens_by_id,
)

_KINDS = {
    "WordPiece": "wordpiece",
    "BPE": "bpe",
    "Unigram": "unigram",
    "WordLevel": "word_level",
}
_SPACE_MARKS = ("Ġ", "▁")


class HuggingFaceTokenizer(Tokenizer):
    """Encodes text with the `tokenizers` library."""

    def __init__(
        self, backend: BackendTokenizer, special_tokens: SpecialTokens, source: str | Path
    ):
        """Wraps a tokenizer of the library; `source` is its path, for error messages."""
        # A tokenizer.json may contain the truncation and padding of the program that saved it;
        # sequences are cut and padded by the code that makes batches.
        backend.no_truncation()
        backend.no_padding()
        rules = json.loads(backend.to_str())
        model = rules["model"]
        kind = _KINDS.get(model.get("type"))
        if kind is None:
            raise UserError(
                f"tokenizer {source}: a {model.get('type')} model; expected {', '.join(_KINDS)}"
            )
        tokens = tokens_by_id(backend.get_vocab(with_added_tokens=True), source)
        if kind == "wordpiece":
            prefix = model["continuing_subword_prefix"]
            continues_word = [token.startswith(prefix) for token in tokens]
        elif kind == "word_level":
            continues_word = [False] * len(tokens)
        else:
            continues_word = [not token.startswith(_SPACE_MARKS) for token in tokens]
        self._source = source
        super().__init__(
            kind=kind,
            tokens=tokens,
            special_tokens=special_tokens,
            extra_special_ids=[t["id"] for t in rules["added_tokens"] if t["special"]],
            continues_word=continues_word,
            rules=canonical(rules),
        )
        # The post-processor decides, because models with equal special tokens may have different
        # templates.
        self.template = declared_template(rules["post_processor"]) or self.template
        self._backend = backend

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        with errors_of_library(texts, self._source):
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        with errors_of_library(texts, self._source):
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [Encoding(e.ids, e.offsets, cast(list[int], e.word_ids)) for e in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def rules(self) -> dict[str, Any]:
        """Returns the content of its tokenizer.json: normalizer, vocabulary, added tokens."""
        return json.loads(self._backend.to_str())

    def save(self, folder: str | Path) -> None:
        backend = self._backend
        rules = self.rules()
        if declared_template(rules["post_processor"]) != self.template:
            # The template was read from vocabulary.json; Hugging Face must use the same one.
            backend = BackendTokenizer.from_str(backend.to_str())
            cls_token, sep_token = self.special_tokens.cls, self.special_tokens.sep
            backend.post_processor = make_post_processor(
                backend, self.template, cls_token, sep_token
            )
            rules = json.loads(backend.to_str())
        files = {"tokenizer.json": backend.to_str(pretty=True)}
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if is_bert_tokenizer(rules):
            files["vocab.txt"] = "".join(f"{token}\n" for token in self._tokens)
            normalizer = rules["normalizer"]
            is_bert = self.template == BertTemplate()
            config = {
                # Hugging Face's classes build the template themselves, whatever the file contains.
                "tokenizer_class": "BertTokenizer" if is_bert else "MPNetTokenizer",
                "do_lower_case": normalizer["lowercase"],
                "strip_accents": normalizer["strip_accents"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            }
        elif is_roberta_tokenizer(rules) and self.template == RobertaTemplate():
            files["vocab.json"] = json.dumps(rules["model"]["vocab"], ensure_ascii=False)
            merges = "".join(f"{left} {right}\n" for left, right in merge_pairs(rules["model"]))
            files["merges.txt"] = f"#version: 0.2\n{merges}"
            config = {
                "tokenizer_class": "RobertaTokenizer",
                "add_prefix_space": rules["pre_tokenizer"]["add_prefix_space"],
                # The value of Hugging Face's RobertaTokenizer: offsets do not include the space
                # before a word.
                "trim_offsets": True,
            }
        elif is_esm_tokenizer(rules):
            # Hugging Face's class takes a last line break for one more token.
            files["vocab.txt"] = "\n".join(self._tokens)
            config = {"tokenizer_class": "EsmTokenizer"}
        added = {t["content"]: t for t in rules["added_tokens"]}
        for role, token in saved_roles(self.special_tokens.as_dict(), self.template).items():
            entry = added.get(token)
            # A string cannot express that the mask token includes the space before it.
            config[f"{role}_token"] = added_token(entry) if entry and entry["lstrip"] else token
        save_tokenizer(
            folder, files=files, tokenizer_config=config, tokenizer=self, main_file="tokenizer.json"
        )


def wordpiece_backend(
    tokens: Sequence[str],
    special_tokens: SpecialTokens,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> BackendTokenizer:
    """Builds BERT's WordPiece: split at spaces, punctuation and CJK, then longest match first.

    Args:
      tokens: the token of each id.
      special_tokens: the special tokens.
      lowercase: True for "uncased".
      strip_accents: whether to remove accents; None means the same as `lowercase`.
      tokenize_chinese_chars: whether each CJK character is a word.
    """
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = BackendTokenizer(models.WordPiece(vocab, unk_token=special_tokens.unk))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=strip_accents,
        handle_chinese_chars=tokenize_chinese_chars,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUING_SUBWORD_PREFIX)
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in special_tokens.as_dict().values()
        ]
    )
    backend.post_processor = make_post_processor(
        backend, default_template(special_tokens.cls), special_tokens.cls, special_tokens.sep
    )
    return backend


def byte_level_bpe_backend(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special_tokens: SpecialTokens,
    *,
    add_prefix_space: bool = False,
    template: InputTemplate | None = None,
) -> BackendTokenizer:
    """Builds RoBERTa's byte-level BPE, whose mask token includes the space before it.

    Args:
      vocab: token -> id.
      merges: pairs of tokens, in the order in which they were learned.
      special_tokens: the special tokens.
      add_prefix_space: whether the first word is encoded as if a space preceded it.
      template: where special tokens are added; None for the usual one of the special tokens.
    """
    backend = BackendTokenizer(models.BPE(dict(vocab), list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [
            AddedToken(token, lstrip=role == "mask", normalized=False, special=True)
            for role, token in special_tokens.as_dict().items()
        ]
    )
    template = template or default_template(special_tokens.cls)
    backend.post_processor = make_post_processor(
        backend, template, special_tokens.cls, special_tokens.sep
    )
    return backend


def read_vocabulary(path: Path) -> list[str]:
    """Reads the tokens of a `vocab.txt`; UserError if it is empty or has a token twice."""
    # Not `splitlines`, which also breaks lines at characters such as U+2028, which may be tokens.
    tokens = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    if tokens == [""]:
        raise UserError(f"tokenizer {path}: the file is empty; expected one token on each line")
    line_numbers: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token == "":
            raise UserError(f"tokenizer {path}, line {number}: empty line; expected a token")
        if token in line_numbers:
            raise UserError(
                f"tokenizer {path}: duplicate token {token!r} on lines {line_numbers[token]} and "
                f"{number}; expected each token once. Download the file again or remove one line"
            )
        line_numbers[token] = number
    return tokens


def load_wordpiece(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads a `vocab.txt`: the token on line n + 1 has id n."""
    tokens = read_vocabulary(path)
    vocab = {token: i for i, token in enumerate(tokens)}
    special_tokens = find_special_tokens(vocab, config, path)
    ordinary_tokens = set(tokens) - usual_special_tokens() - set(special_tokens.as_dict().values())
    # Only the special tokens are left out: BERT's [unused12] and the like are lower case.
    is_uncased = all(token == token.lower() for token in ordinary_tokens)
    lowercase = declared_flag(config, "do_lower_case", is_uncased)
    backend = wordpiece_backend(
        tokens,
        special_tokens,
        lowercase=lowercase,
        strip_accents=declared_flag(config, "strip_accents", None),
        tokenize_chinese_chars=declared_flag(config, "tokenize_chinese_chars", True),
    )
    return HuggingFaceTokenizer(backend, special_tokens, path)


def load_byte_level_bpe(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads a `vocab.json` (token -> id) and the `merges.txt` in the same folder."""
    merges_path = path.parent / path.name.replace("vocab.json", "merges.txt")
    if merges_path == path or not merges_path.exists():
        raise UserError(
            f"tokenizer {path}: no merges.txt in the same folder; byte-level BPE needs both files"
        )
    vocab = read_json_object(path)
    check_vocabulary(vocab, path)
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(merges_path).split("\n"), start=1):
        line = line.removesuffix("\r")
        # Only the first line is a comment: "#version" may be a merge elsewhere.
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise UserError(f"{merges_path}, line {number}: expected two tokens, found {line!r}")
        # The order is the rank of a merge, so no line may be sorted or left out.
        merges.append((pair[0], pair[1]))
    special_tokens = find_special_tokens(vocab, config, path)
    # The files have no template. Hugging Face's RobertaTokenizer uses RoBERTa's for any tokens.
    is_roberta = str(config.get("tokenizer_class")).startswith("Roberta")
    add_prefix_space = declared_flag(config, "add_prefix_space", False)
    try:
        backend = byte_level_bpe_backend(
            vocab,
            merges,
            special_tokens,
            add_prefix_space=add_prefix_space,
            template=RobertaTemplate() if is_roberta else None,
        )
    except Exception as error:  # the library raises plain Exception
        raise UserError(
            f"{merges_path} does not match {path} ({error}); expected both tokens of each merge "
            "and the merged token in the vocabulary; take both files from the same model"
        ) from None
    return HuggingFaceTokenizer(backend, special_tokens, path)


def load_tokenizer_json(path: Path, config: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Loads a `tokenizer.json`: normalizer, pre-tokenizer, model and added tokens."""
    check_rules(read_json_object(path), path)
    try:
        backend = BackendTokenizer.from_str(read_text(path))
    except BaseException as error:  # the library raises plain Exception, or PanicException
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise UserError(
            f"tokenizer {path}: not a tokenizer.json that this version of `tokenizers` reads "
            f"({error})"
        ) from None
    vocab = backend.get_vocab(with_added_tokens=True)
    return HuggingFaceTokenizer(backend, find_special_tokens(vocab, config, path), path)
