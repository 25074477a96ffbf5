"""Generates a text for each source text with an encoder-decoder."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, overload

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.config.generation import GenerationConfig, Sampling
from bert_jax.errors import ConfigError, UserError, require_list_of_texts
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.parallel.sharding import (
    batch_sharding,
    num_batch_shards,
    put_global_batch,
    replicated,
)
from bert_jax.predict.batching import padded_batches
from bert_jax.predict.generation.decode import generate_ids, token_rules
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq
from bert_jax.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Generated(NamedTuple):
    """Holds a generated text.

    Attributes:
      text: without special tokens.
      token_ids: with the end token, if the text has ended.
      is_complete: whether the text has ended, and was not cut at the largest length.
    """

    text: str
    token_ids: list[int]
    is_complete: bool


class Generator:
    """Generates texts: `Generator(load_seq2seq("t5-small"))("translate ...")`.

    One program is compiled for each shape of a batch: lengths of sources are padded to powers of
    two, and so are numbers of texts on each device.
    """

    def __init__(
        self,
        model: LoadedSeq2Seq,
        settings: GenerationConfig = GenerationConfig(),  # noqa: B008 (frozen)
        compute: ComputeConfig = ComputeConfig(),  # noqa: B008 (frozen)
        mesh: jax.sharding.Mesh | None = None,
    ):
        """Copies the parameters to the devices.

        Args:
          mesh: the devices that share the texts of each batch, by default one device. If they
            belong to several processes, each process must generate the same list of texts.

        Raises:
          UserError: the model has no tokenizer, or reads fewer tokens than the settings ask for.
        """
        if model.tokenizer is None:
            raise UserError(
                f"{model.path} has no tokenizer files (tokenizer.json, spiece.model, or vocab.json "
                "with merges.txt); copy those with which the model was trained into this folder"
            )
        _check_sizes(model, model.tokenizer, settings)
        self._tokenizer, self._config = model.tokenizer, model.config
        self._settings, self._compute = settings, compute
        self._rules = token_rules(model.config, model.tokenizer.vocab_size)
        self._mesh = mesh
        if mesh is None:
            self._params: Mapping[str, Any] = jax.device_put(model.params)
        else:
            replicate = jax.jit(lambda params: params, out_shardings=replicated(mesh))
            self._params = replicate(model.params)
        self._max_length = min(settings.max_source_tokens, model.config.max_length)

    @overload
    def __call__(self, texts: str) -> Generated: ...

    @overload
    def __call__(
        self,
        texts: list[str] | tuple[str, ...],
        on_progress: Callable[[int], None] | None = None,
        first_index: int = 0,
    ) -> list[Generated]: ...

    def __call__(
        self,
        texts: str | Sequence[str],
        on_progress: Callable[[int], None] | None = None,
        first_index: int = 0,
    ) -> Generated | list[Generated]:
        """Generates a text for one source, or for each source of a list.

        An empty source has an empty text. Longer sources than `max_source_tokens` are truncated,
        with a warning.

        Args:
          on_progress: called after each batch with the number of texts that it had.
          first_index: the index of the first text, from which sampling derives random numbers.
        """
        if isinstance(texts, str):
            return self._generate_texts([texts], None, first_index)[0]
        require_list_of_texts(texts)
        return self._generate_texts(texts, on_progress, first_index)

    def _generate_texts(
        self,
        texts: Sequence[str],
        on_progress: Callable[[int], None] | None,
        first_index: int,
    ) -> list[Generated]:
        sources = self._encode(texts)
        results = [Generated("", [], True)] * len(texts)
        indices = [index for index, text in enumerate(texts) if text.strip()]
        if on_progress is not None and len(indices) < len(texts):
            on_progress(len(texts) - len(indices))
        for batch_indices, batch in padded_batches(
            [sources[index] for index in indices],
            pad_id=self._config.pad_token_id,
            max_length=self._max_length,
            num_shards=1 if self._mesh is None else num_batch_shards(self._mesh),
        ):
            text_indices = np.zeros(len(batch["input_ids"]), np.int32)
            text_indices[: len(batch_indices)] = [first_index + indices[i] for i in batch_indices]
            rows = self._generate(batch, text_indices)
            for row, index in zip(rows, batch_indices, strict=False):
                results[indices[index]] = self._decode(row)
            if on_progress is not None:
                on_progress(len(batch_indices))
        return results

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        template = self._tokenizer.template
        limit = self._max_length - template.num_single_special_tokens
        token_ids = self._tokenizer.encode_ids(texts)
        num_truncated = sum(len(ids) > limit for ids in token_ids)
        if num_truncated:
            logger.warning(
                "%d of %d sources have more than %d tokens and were truncated; max_source_tokens "
                "sets the limit",
                num_truncated,
                len(texts),
                self._max_length,
            )
        add_special_tokens = self._tokenizer.build_inputs_with_special_tokens
        return [add_special_tokens(ids[:limit]).tolist() for ids in token_ids]

    def _generate(self, batch: Mapping[str, np.ndarray], text_indices: np.ndarray) -> np.ndarray:
        fields: Mapping[str, Any] = {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "text_indices": text_indices,
        }
        if self._mesh is not None:
            fields = put_global_batch(fields, batch_sharding(self._mesh))
        token_ids = generate_ids(
            self._params,
            **fields,
            config=self._config,
            settings=self._settings,
            rules=self._rules,
            compute=self._compute,
        )
        if token_ids.is_fully_addressable:
            return np.asarray(token_ids)
        return np.asarray(multihost_utils.process_allgather(token_ids, tiled=True))

    def _decode(self, row: np.ndarray) -> Generated:
        ends = np.flatnonzero(row == self._config.eos_token_id)
        num_tokens = int(ends[0]) + 1 if ends.size else len(row)
        # In the last place, a forced end token hides whether the model would have ended here.
        is_forced = self._config.forced_eos_token_id is not None and num_tokens == len(row)
        is_complete = ends.size > 0 and not is_forced
        token_ids: list[int] = row[:num_tokens].tolist()
        special_ids = self._tokenizer.special_ids
        text = self._tokenizer.decode([i for i in token_ids if i not in special_ids])
        return Generated(text.strip(), token_ids, is_complete)


def _check_sizes(model: LoadedSeq2Seq, tokenizer: Tokenizer, settings: GenerationConfig) -> None:
    """Raises a ConfigError if the settings do not fit the model."""
    num_special_tokens = tokenizer.template.num_single_special_tokens
    if settings.max_source_tokens <= num_special_tokens:
        raise ConfigError(
            f"max_source_tokens is {settings.max_source_tokens}, but {num_special_tokens} of them "
            f"are special tokens of {model.path}; expected at least {num_special_tokens + 1}"
        )
    if settings.max_new_tokens > model.config.max_length:
        raise ConfigError(
            f"max_new_tokens is {settings.max_new_tokens}, but {model.path} writes at most "
            f"{model.config.max_length} tokens; choose a smaller number"
        )
    if (
        isinstance(settings.decoding, Sampling)
        and settings.decoding.top_k > model.config.vocab_size
    ):
        raise ConfigError(
            f"top_k is {settings.decoding.top_k}, but {model.path} has {model.config.vocab_size} "
            "tokens"
        )
