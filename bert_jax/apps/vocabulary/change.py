"""Gives a model another vocabulary: its rows, its tokenizer, and its config change together.

change = add_words_to_model(load_encoder("bert"), {1: "docker", 2: "kubernetes"}, "words.txt")
write_changed(change, Path("bert-docker"))
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.apps.vocabulary.added_words import add_words
from bert_jax.apps.vocabulary.rows import RowWeights, added_rows, replaced_rows
from bert_jax.apps.word_vectors.train import WordVectorConfig, train_word_vectors
from bert_jax.apps.word_vectors.vectors import WordVectors
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.export.sentence_encoder import export_sentence_encoder
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.params import paths
from bert_jax.pretrained.embedding_model import (
    embedding_kind,
    is_sentence_encoder,
    sentence_model_of,
)
from bert_jax.pretrained.initial import load_model_or_tf1
from bert_jax.pretrained.load import (
    LoadedModel,
    build_model,
    require_no_adapter,
    require_tokenizer,
)
from bert_jax.pretrained.seq2seq import is_seq2seq
from bert_jax.text.tokenizer import Tokenizer

VOCABULARY_TABLES = (
    "encoder/embeddings/word_embeddings/embedding",
    "masked_lm/decoder",
    "masked_lm/bias",
)
"""The parameters with one row or number for each token. A tied head has no table of its own."""

_SEED = 0
_MIN_COUNT = 10


@dataclass(frozen=True, kw_only=True)
class ChangedModel:
    """Holds a model before and after its vocabulary was changed, and how its rows were made."""

    before: LoadedModel
    after: LoadedModel
    rows: RowWeights


def load_for_vocabulary(path: str | Path) -> LoadedModel:
    """Reads a model whose vocabulary can be changed.

    Raises:
      UserError: it is T5, BART, a sparse or multi-vector model, has no tokenizer, has an adapter
        that cannot be merged, or cannot be read.
    """
    if is_seq2seq(path):
        raise UserError(
            f"{path} is an encoder-decoder, whose vocabulary cannot be changed; expected an encoder"
        )
    model = load_model_or_tf1(path)
    require_no_adapter(model, "get another vocabulary")
    require_tokenizer(model)
    if (kind := embedding_kind(model)) != "dense":
        raise UserError(
            f"{path} is a {kind.replace('_', '-')} model, whose vocabulary cannot be changed; "
            "change that of the encoder before it is trained"
        )
    return model


def add_words_to_model(
    model: LoadedModel, words: Mapping[int, str], source: str, *, random_rows: bool = False
) -> ChangedModel:
    """Makes each word one token, whose row is the mean of the rows of its old tokens.

    Args:
      words, source: as for `add_words`.
      random_rows: draws the new rows at random instead, a baseline.

    Raises:
      UserError: as for `add_words`.
    """
    old = require_tokenizer(model)
    tokenizer, old_ids = add_words(old, words, source)
    return _change(model, tokenizer, added_rows(old, old_ids), random_rows=random_rows)


def replace_tokenizer(
    model: LoadedModel,
    tokenizer: Tokenizer,
    *,
    focus_texts: Sequence[str] = (),
    random_rows: bool = False,
) -> ChangedModel:
    """Gives a model another tokenizer with the same special tokens.

    Args:
      focus_texts: texts on which static vectors of tokens are trained, for FOCUS; without texts,
        tokens that the model does not have are the mean of its old tokens.
      random_rows: draws their rows at random instead, a baseline.

    Raises:
      UserError: the tokenizer is that of the model, has other special tokens or adds them in
        another way, or does not fit the model's positions.
      MissingExtraError: there are texts, but gensim is not installed.
    """
    old = require_tokenizer(model)
    check_replacement(old, tokenizer)
    vectors = _token_vectors(tokenizer, focus_texts) if focus_texts else None
    return _change(
        model, tokenizer, replaced_rows(old, tokenizer, vectors), random_rows=random_rows
    )


def check_replacement(old: Tokenizer, new: Tokenizer) -> None:
    """Raises a UserError unless a tokenizer can take the place of another one."""
    if old.fingerprint == new.fingerprint:
        raise UserError("the new tokenizer is the one that the model has; expected another one")
    if old.special_tokens != new.special_tokens or old.template != new.template:
        described = [
            f"{' '.join(t.special_tokens.as_dict().values())} in the template {t.template.name!r}"
            for t in (old, new)
        ]
        raise UserError(
            f"the new tokenizer has the special tokens {described[1]}, but the model was trained "
            f"with {described[0]}; expected the same, as a tokenizer of the kind of the model has "
            f"({old.kind}; `bert-jax tokenizer train --kind` makes one)"
        )


def _token_vectors(tokenizer: Tokenizer, texts: Sequence[str]) -> WordVectors:
    """Trains static vectors of tokens on texts.

    Skip-gram, where the paper has fastText (CBOW): the n-grams of tokens would contain marks such
    as ##, and gensim's table of n-grams has 2 million rows whatever the text. Epochs and the
    smallest count are the paper's.
    """
    sentences = [
        [tokenizer.id_to_token(i) for i in ids]
        for ids in (array.tolist() for array in tokenizer.encode_ids(texts))
    ]
    counts = Counter(token for sentence in sentences for token in sentence)
    if max(counts.values(), default=0) < _MIN_COUNT:
        raise UserError(
            f"no token occurs {_MIN_COUNT} times in the text for FOCUS; expected more text, or no "
            "--focus"
        )
    return train_word_vectors(
        sentences, WordVectorConfig(method="skip-gram", epochs=3, min_count=_MIN_COUNT, seed=_SEED)
    )


def _change(
    model: LoadedModel, tokenizer: Tokenizer, rows: RowWeights, *, random_rows: bool
) -> ChangedModel:
    flat = paths.flatten(model.params)
    random = np.random.default_rng(_SEED) if random_rows else None
    for path in VOCABULARY_TABLES:
        if path in flat:
            flat[path] = rows.apply(flat[path], random)
    fields: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    # Longformer and BigBird find the end of a question by this id.
    if (
        hasattr(model.config, "sep_token_id")
        and tokenizer.sep_id != require_tokenizer(model).sep_id
    ):
        fields["sep_token_id"] = tokenizer.sep_id
    config = dataclasses.replace(model.config, **fields)
    checked = build_model(ImportedModel(flat, config, tokenizer, model.head), model.path)
    after = dataclasses.replace(model, params=checked.params, config=config, tokenizer=tokenizer)
    return ChangedModel(before=model, after=after, rows=rows)


def write_changed(change: ChangedModel, output: Path) -> None:
    """Writes the changed model as a folder of transformers, or of sentence-transformers.

    Raises:
      UserError: as `export` and `export_sentence_encoder`.
    """
    if not is_sentence_encoder(change.before):
        export(change.after, output)
        return
    sentence = sentence_model_of(change.before)
    export_sentence_encoder(dataclasses.replace(sentence, model=change.after), output)
