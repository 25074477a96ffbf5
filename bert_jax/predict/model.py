"""What the predictors share: a vocabulary, parameters on the device, texts as rows of ids."""

from collections.abc import Sequence

import jax

from bert_jax.errors import UserError
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.tokenizer import Tokenizer


def require_tokenizer(model: LoadedModel) -> Tokenizer:
    """The model's vocabulary; UserError when its folder has none."""
    if model.tokenizer is None:
        raise UserError(
            f"{model.path} has no vocabulary files (vocab.txt, tokenizer.json, vocab.json or a "
            ".model); put those that the model was trained with beside it"
        )
    return model.tokenizer


def params_to_device(model: LoadedModel, part: str) -> dict[str, jax.Array]:
    """The parameters of one part, put where they will be used."""
    return jax.device_put(model.params[part])


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """[CLS] text [SEP] as ids for each text, at whatever length it has.

    Raises:
      UserError: the model has no room for a text between [CLS] and [SEP].
    """
    if isinstance(texts, str):  # a str is a sequence of strings: its characters
        raise TypeError(f"expected a list of texts, found the text {texts[:40]!r}")
    if max_length < 3:
        raise UserError(f"this model reads {max_length} tokens; a text needs at least 3")
    encodings = tokenizer.encode_batch(texts)
    return [tokenizer.build_inputs_with_special_tokens(e.ids).tolist() for e in encodings]
