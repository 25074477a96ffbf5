"""What the predictors share: a vocabulary, parameters on the device, texts as rows of ids."""

from collections.abc import Sequence

import jax

from bert_jax.errors import UserError
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.train.pretrained import LoadedModel


def require_vocabulary(model: LoadedModel) -> Vocabulary:
    """The model's vocabulary; UserError when its folder has none."""
    if model.vocabulary is None:
        raise UserError(
            f"{model.origin} has no vocabulary files (vocab.txt, tokenizer.json, vocab.json or a "
            ".model); put those that the model was trained with beside it"
        )
    return model.vocabulary


def on_device(model: LoadedModel, part: str) -> dict[str, jax.Array]:
    """The parameters of one part, put where they will be used."""
    return jax.device_put(model.params[part])


def encode(texts: Sequence[str], vocabulary: Vocabulary, max_length: int) -> list[list[int]]:
    """[CLS] text [SEP] as ids for each text, at whatever length it has.

    Raises:
      UserError: the model has no room for a text between [CLS] and [SEP].
    """
    if max_length < 3:
        raise UserError(f"this model reads {max_length} tokens; a text needs at least 3")
    encodings = vocabulary.encode_batch(texts)
    return [[vocabulary.cls_id, *e.ids, vocabulary.sep_id] for e in encodings]
