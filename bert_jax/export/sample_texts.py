"""Holds texts on which a shipped model is compared with the model that it was made from."""

from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.export.outputs import Arrays, ShippedNetwork
from bert_jax.predict.batching import encode_texts
from bert_jax.text.tokenizer import Tokenizer

_STORY = (
    "The ferry left the harbor at six, an hour late, with forty passengers and a dog. Nobody had "
    "swept the deck since Monday; apple cores rolled from one side to the other. A woman in a "
    "green coat asked the captain when they would arrive. He looked at the sky, then at his watch, "
    "and said that it depended on the wind, which had turned to the north. She laughed, although "
    "she was not amused, and opened the letter from her sister in Boston again. It was only two "
    "pages long: the house had been sold, the garden too, and the new owners were kind people."
)


def sample_texts() -> list[str]:
    """Returns 64 different English texts of 4 to 60 words, parts of one short story."""
    words = _STORY.split()
    return [" ".join(words[start : start + 4 + 7 * start % 57]) for start in range(64)]


def text_batch(network: ShippedNetwork, texts: Sequence[str], tokenizer: Tokenizer) -> Arrays:
    """Returns texts as one batch of the network's fields, int32, padded to the longest text.

    For multiple choice, each two neighboring texts are the choices of one example.
    """
    max_length = network.max_length
    sequences = [ids[:max_length] for ids in encode_texts(texts, tokenizer, max_length)]
    shape = (len(sequences), max(map(len, sequences)))
    ids, mask = np.full(shape, tokenizer.pad_id, np.int32), np.zeros(shape, np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    fields = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    batch = {name: fields[name] for name in network.input_names}
    if network.has_choices:
        return {name: field.reshape(-1, 2, field.shape[-1]) for name, field in batch.items()}
    return batch


def real_values(
    network: ShippedNetwork, name: str, values: np.ndarray, batch: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns an output without the values at padding, which no user reads."""
    if "sequence" in network.output_dims[name]:
        return values[batch["attention_mask"] > 0]
    return values


def largest_difference(
    network: ShippedNetwork,
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    *,
    kind: str,
    tolerance: float,
) -> float:
    """Returns the largest difference of the outputs of a written model, and of the model itself.

    Args:
      found, expected: outputs by name; those at padding are not compared.
      kind: what was written, for the message, such as "bundle".
      tolerance: the largest difference that is allowed.

    Raises:
      UserError: an output differs by more, or is not a number.
    """
    difference = 0.0
    for name, values in expected.items():
        pair = (real_values(network, name, each, batch) for each in (values, found[name]))
        largest = float(np.abs(np.subtract(*pair)).max())
        # `not <=` and not `>`: a difference of NaN is an error, too.
        if not largest <= tolerance:
            raise UserError(
                f"the {kind} was not written: its {name} differs by {largest:.1e} from that of "
                f"{network.path} (at most {tolerance} is allowed)"
            )
        difference = max(difference, largest)
    return difference
