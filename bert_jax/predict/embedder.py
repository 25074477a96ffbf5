"""Computes embeddings of texts: pooled hidden states, and what a sentence encoder makes of them.

A prompt may stand before each text; texts longer than the model reads are truncated.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError, did_you_mean, require_list_of_texts
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import (
    POOLING_MODES,
    Normalize,
    PoolingMode,
    SentenceEncoderConfig,
    TextEncoderConfig,
    TextRole,
)
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.models.sentence_encoder.network import normalize as normalize_vectors
from bert_jax.params.functional import Params
from bert_jax.predict.batches import compute_in_order, encode_texts, padded_batches
from bert_jax.pretrained.embedding_model import (
    EmbeddingModel,
    SentenceModel,
    sentence_model_of,
)
from bert_jax.pretrained.load import AnyModel, LoadedModel, require_encoder, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer


class TokenizedTexts(NamedTuple):
    """Holds texts as token ids.

    Attributes:
      sequences: the token ids of each text, with prompt and special tokens, truncated.
      truncated: whether each text was truncated.
      prompt_length: the number of tokens at the start of each text that are not pooled; None if
        all tokens are.
    """

    sequences: list[list[int]]
    truncated: list[bool]
    prompt_length: int | None


def choose_prompt(config: TextEncoderConfig, prompt_name: str | None, prompt: str | None) -> str:
    """Returns the prompt that is put before each text; "" for none.

    Args:
      prompt_name: the name of one of the prompts of `config`; None is the default prompt.
      prompt: the prompt itself, in place of a name.

    Raises:
      UserError: there is no prompt of that name, or both are given.
    """
    prompts = {prompt.name: prompt.text for prompt in config.prompts}
    if prompt_name is None:
        default = config.default_prompt_name
        return prompt if prompt is not None else prompts[default] if default else ""
    if prompt is not None:
        raise UserError(
            f"both the prompt {prompt!r} and the name of a prompt, {prompt_name!r}, are given; "
            "expected one of them"
        )
    if prompt_name not in prompts:
        raise UserError(
            f"there is no prompt {prompt_name!r}; {did_you_mean(prompt_name, prompts)}the prompts "
            f"of the model are: {', '.join(prompts) or 'none'}"
        )
    return prompts[prompt_name]


def prompt_for(
    model: EmbeddingModel, role: TextRole, prompt_name: str | None, prompt: str | None
) -> str:
    """Returns the prompt of queries or documents, unless another one is chosen.

    Raises:
      UserError: there is no prompt of that name, or both are given.
    """
    if prompt_name is None and prompt is None:
        return model.config.prompt_of_role(role)
    try:
        return choose_prompt(model.config, prompt_name, prompt)
    except UserError as error:
        raise UserError(f"{model.model.path}: {error}") from None


def tokenize_with_prompt(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    config: SentenceEncoderConfig,
    max_length: int,
    prompt: str = "",
) -> TokenizedTexts:
    """Returns texts as token ids with the prompt and special tokens, truncated to `max_length`.

    Raises:
      UserError: the prompt is not pooled and leaves no tokens for a text.
    """
    require_list_of_texts(texts)
    prompt_length = None
    if prompt and not config.include_prompt:
        (prompt_ids,) = encode_texts([prompt], tokenizer, max_length)
        # [CLS] counts to the prompt, as in sentence-transformers.
        prompt_length = len(prompt_ids) - 1  # without [SEP]
        if prompt_length > max_length - 2:
            raise UserError(
                f"the prompt {prompt[:40]!r} has {prompt_length} tokens with [CLS], and texts are "
                f"truncated to {max_length} tokens, so no text would be read; expected a shorter "
                "prompt"
            )
    texts = [prompt + text for text in texts] if prompt else texts
    sequences = encode_texts(texts, tokenizer, max_length)
    truncated = [len(sequence) > max_length for sequence in sequences]
    return TokenizedTexts(
        [
            [*sequence[: max_length - 1], tokenizer.sep_id] if is_truncated else sequence
            for sequence, is_truncated in zip(sequences, truncated, strict=True)
        ],
        truncated,
        prompt_length,
    )


logger = logging.getLogger(__name__)


class Embedder:
    """Embeds texts: `Embedder(load_model("exported"))("A text.")` is a vector, float32 [E].

    Pooling, dense layers, normalization and prompts are those of the model's folder, if it is one
    of sentence-transformers, or of the run that trained a sentence encoder. For other models a
    vector is the mean over all tokens.

    Attributes:
      config: what follows the encoder, with the choices that the arguments made.
      embedding_size: E, the number of components of a vector.
      max_length: to how many tokens texts are truncated, special tokens included.
      num_truncated: number of texts so far that were truncated.
    """

    def __init__(
        self,
        model: AnyModel | SentenceModel,
        *,
        pooling: PoolingMode | None = None,
        layers: Sequence[int] | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ):
        """Moves the parameters to the device.

        Args:
          model: a model with a tokenizer.
          pooling: how the hidden states of a text's tokens are reduced to one vector; None is that
            of the model, or the mean.
          layers: the layers whose hidden states are pooled; 0 is the embeddings, N the last layer,
            and negative numbers count from the end. The vectors of several layers are
            concatenated, as in Devlin et al. 2019, section 5.3; the modules of the model after the
            pooling and its `truncate_dim` are not applied. None is the last layer with these.
          normalize: whether vectors have length 1; None: as in the model.
          dimensions: the number of leading components that are kept; None: as in the model. As
            in sentence-transformers, the rest is normalized again only if `normalize` is true.

        Raises:
          UserError: the model has no tokenizer, its folder has modules that are not supported, or
            the pooling, a layer or the number of dimensions is not possible.
        """
        if not isinstance(model, SentenceModel):
            model = sentence_model_of(require_encoder(model, "embed"))
        self._model = model
        self._tokenizer = require_tokenizer(self._model.model)
        if layers is not None:
            _check_layers(layers, self._model.model.config)
        if pooling is not None and pooling not in POOLING_MODES:
            raise UserError(f"pooling is {pooling!r}; expected one of {', '.join(POOLING_MODES)}")
        if pooling is None and layers is None and not self._model.is_trained:
            _report_assumed_pooling(self._model.model)
        config = _chosen_config(self._model.config, pooling, layers, normalize)
        full_size = config.embedding_size(self._model.model.config.hidden_size)
        full_size *= 1 if layers is None else len(layers)
        if dimensions is not None and not 1 <= dimensions <= full_size:
            raise UserError(
                f"{self._model.model.path}: dimensions is {dimensions}, but its vectors have "
                f"{full_size} components; expected a number from 1 to {full_size}"
            )
        self.config = dataclasses.replace(config, truncate_dim=dimensions or config.truncate_dim)
        self.embedding_size = self.config.truncate_dim or full_size
        self.max_length, self.num_truncated = self._model.max_length, 0
        self._params: Params = jax.device_put(self._model.params)
        self._compiled = jax.jit(
            functools.partial(
                _embed,
                encoder_config=self._model.model.config,
                config=self.config,
                layers=None if layers is None else tuple(layers),
                normalize_last=bool(normalize),
            )
        )

    def __repr__(self) -> str:
        """Returns one line with the model and the size of its vectors."""
        size = f"vectors of {self.embedding_size}, at most {self.max_length} tokens"
        return f"<Embedder {self._model.model.path}: {size}>"

    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Returns the vector of a text, float32 [E], or of each text of a list, float32 [N, E].

        Texts longer than `max_length` are truncated, and counted in `num_truncated`. An empty text
        has the vector of [CLS] and [SEP] alone, as in sentence-transformers.

        Args:
          prompt_name: the name of one of the model's prompts, which is put before each text; None
            is the model's default prompt, if it has one.
          prompt: the prompt itself, in place of a name; "" for no prompt.

        Raises:
          UserError: the model has no such prompt, or both are given.
        """
        if isinstance(texts, str):
            return self.embed([texts], prompt_name=prompt_name, prompt=prompt)[0][0]
        return self.embed(texts, prompt_name=prompt_name, prompt=prompt)[0]

    def embed(
        self, texts: Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> tuple[np.ndarray, list[bool]]:
        """Returns the vectors of texts, float32 [N, E], and whether each text was truncated.

        The arguments are as in `__call__`.
        """
        tokenized = self.tokenize(texts, prompt_name=prompt_name, prompt=prompt)
        outputs = compute_in_order(
            padded_batches(
                tokenized.sequences, pad_id=self._tokenizer.pad_id, max_length=self.max_length
            ),
            lambda batch: {"vectors": self.embed_batch(batch, tokenized.prompt_length)},
            len(texts),
        )
        vectors = np.zeros((len(texts), self.embedding_size), np.float32)
        for index, vector in enumerate(outputs.get("vectors", [])):
            vectors[index] = vector
        self.num_truncated += sum(tokenized.truncated)
        return vectors, tokenized.truncated

    def tokenize(
        self, texts: Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> TokenizedTexts:
        """Returns texts as token ids with prompt and special tokens; arguments as in `__call__`.

        Raises:
          UserError: the model has no such prompt, both are given, or the prompt leaves no tokens
            for a text.
        """
        return tokenize_with_prompt(
            texts,
            self._tokenizer,
            self.config,
            self.max_length,
            self._choose_prompt(prompt_name, prompt),
        )

    def embed_batch(self, batch: Mapping[str, Any], prompt_length: int | None = None) -> jax.Array:
        """Computes the vectors of a padded batch, float32 [B, E]; compiled once for each shape.

        Args:
          batch: the encoder's fields, int32 [B, L].
          prompt_length: tokens of a prompt that the pooling leaves out; None for all tokens.
        """
        size = len(batch["input_ids"])
        lengths = None if prompt_length is None else np.full(size, prompt_length, np.int32)
        return self._compiled(self._params, dict(batch), lengths)

    def _choose_prompt(self, prompt_name: str | None, prompt: str | None) -> str:
        try:
            return choose_prompt(self.config, prompt_name, prompt)
        except UserError as error:
            raise UserError(f"{self._model.model.path}: {error}") from None


def _check_layers(layers: Sequence[int], config: EncoderConfig) -> None:
    num_layers = config.num_applied_layers
    if not layers:
        raise UserError("no layer is chosen; expected at least one, such as -1")
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise UserError(
                f"there is no layer {layer}: this model has the embeddings, 0, and layers 1 to "
                f"{num_layers} (or -1 to -{num_layers} from the end)"
            )


def _report_assumed_pooling(model: LoadedModel) -> None:
    # What a training run made is known to be no sentence encoder; a folder may be a copy of one
    # that lacks the files of its pooling.
    if model.run is None:
        logger.info(
            "%s has no modules.json, so the vector of a text is the mean over all its tokens; "
            "--pooling chooses another",
            model.path,
        )


def _chosen_config(
    config: SentenceEncoderConfig,
    pooling: PoolingMode | None,
    layers: Sequence[int] | None,
    normalize: bool | None,
) -> SentenceEncoderConfig:
    """Returns a config with the choices of a user; None: as in the model."""
    # Dense layers were trained on the last layer's vectors and have its width, so they do not fit
    # other layers.
    modules = config.modules if layers is None else ()
    truncate_dim = config.truncate_dim if layers is None else None
    while normalize is False and modules and isinstance(modules[-1], Normalize):
        modules = modules[:-1]
    return dataclasses.replace(
        config,
        pooling=config.pooling if pooling is None else (pooling,),
        modules=modules,
        truncate_dim=truncate_dim,
    )


def _embed(
    params: Params,
    batch: Mapping[str, jax.Array],
    prompt_lengths: jax.Array | None,
    *,
    encoder_config: EncoderConfig,
    config: SentenceEncoderConfig,
    layers: tuple[int, ...] | None,
    normalize_last: bool,
) -> jax.Array:
    # Cut here instead, because the vectors of several layers are longer than the head's.
    head_config = dataclasses.replace(config, truncate_dim=None)
    network = build_sentence_encoder(encoder_config, head_config).merge(params)
    if layers is None:
        vectors = network.embed(batch, prompt_lengths)
    else:
        hidden_states = network.encode(batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"]
        pooled = [network.sentence_head(hidden_states[n], mask, prompt_lengths) for n in layers]
        vectors = jnp.concatenate(pooled, axis=-1)
    vectors = vectors[:, : config.truncate_dim]
    return normalize_vectors(vectors) if normalize_last else vectors
