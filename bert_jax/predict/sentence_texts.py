"""Prepares texts for a sentence encoder: the prompt before each text, token ids, truncation."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.errors import UserError, did_you_mean, require_list_of_texts
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.predict.batching import encode_texts
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


def choose_prompt(
    config: SentenceEncoderConfig, prompt_name: str | None, prompt: str | None
) -> str:
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
