"""Names the inputs and outputs of a model that is shipped without this package, and computes them.

ONNX files and bundles have these names, which are as in Hugging Face's classes and in optimum:

    input_ids, attention_mask, token_type_ids      [B, L], or [B, A, L] for multiple choice
    last_hidden_state  [B, L, D]                   an encoder
    sentence_embedding [B, E], last_hidden_state   a sentence encoder
    logits             [B, L, V]                   an encoder with a masked-LM head
    logits             [B, C] or [B, L, C]         a classifier of texts or tokens
    logits             [B, A]                      multiple choice
    start_logits, end_logits  [B, L]               question answering
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import (
    Scope,
    TaskHead,
    label_tokens_of,
    masked_lm_parts,
    num_outputs,
    task_parts,
    window_encoder_of,
)
from bert_jax.models.model import build_network
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.models.sentence_encoder.network import build_sentence_encoder
from bert_jax.predict.batches import encode_texts
from bert_jax.pretrained.embedding_model import sentence_model_of
from bert_jax.pretrained.load import LoadedModel, require_no_adapter, require_single_task
from bert_jax.text.tokenizer import Tokenizer

Arrays = dict[str, np.ndarray]
Dims = tuple[str | int, ...]

SPAN_OUTPUTS = ("start_logits", "end_logits")
"""The outputs of a head that scores the start and the end of a span."""


@dataclass(frozen=True, kw_only=True)
class HiddenStates:
    """Selects the last hidden state as the output."""


@dataclass(frozen=True, kw_only=True)
class MaskedLMLogits:
    """Selects the logits of the masked-LM head as the output."""


Output = HiddenStates | MaskedLMLogits | TaskHead | SentenceEncoderConfig
"""What a shipped model computes: the output of a task head, vectors of texts, or one of the two."""


@dataclass(frozen=True, kw_only=True)
class ShippedNetwork:
    """Holds a network with one kind of output.

    Attributes:
      params: nested dict of the parameters that the outputs depend on, float32.
      path: the path from which the model was loaded, for messages.
    """

    config: EncoderConfig
    output: Output
    params: dict[str, Any]
    path: str

    @property
    def input_names(self) -> tuple[str, ...]:
        """Returns the fields that the network reads; token types only if there is more than one."""
        # RoBERTa's table of token types has one row, so an input could have one value only.
        names = ("input_ids", "attention_mask")
        return (*names, "token_type_ids") if self.config.type_vocab_size > 1 else names

    @property
    def max_length(self) -> int:
        """Returns the maximum number of tokens of a text, special tokens included."""
        if isinstance(self.output, SentenceEncoderConfig) and self.output.max_seq_length:
            return min(self.output.max_seq_length, self.config.max_length)
        return self.config.max_length

    @property
    def has_choices(self) -> bool:
        """Returns whether an example is several sequences, from which one is chosen."""
        return _scope(self.output) == "choices"

    @property
    def input_dims(self) -> Dims:
        """Returns the dims of every field; each is a string, because it depends on the batch."""
        if self.has_choices:
            return ("batch", "choices", "sequence")
        return ("batch", "sequence")

    @property
    def output_dims(self) -> dict[str, Dims]:
        """Returns the dims of each output by its name."""
        states: Dims = ("batch", "sequence", self.config.hidden_size)
        match self.output:
            case HiddenStates():
                return {"last_hidden_state": states}
            case MaskedLMLogits():
                return {"logits": ("batch", "sequence", self.config.vocab_size)}
            case SentenceEncoderConfig() as sentence:
                size = sentence.embedding_size(self.config.hidden_size)
                width = size if sentence.truncate_dim is None else sentence.truncate_dim
                return {"last_hidden_state": states, "sentence_embedding": ("batch", width)}
            case head:
                dims: dict[Scope, Dims] = {
                    "sequence": ("batch", num_outputs(head)),
                    "choices": ("batch", "choices"),
                    "tokens": ("batch", "sequence", num_outputs(head)),
                    "span": ("batch", "sequence"),
                }
                names = SPAN_OUTPUTS if head.scope == "span" else ("logits",)
                return dict.fromkeys(names, dims[head.scope])

    def compute(self) -> Callable[[Any, Mapping[str, jax.Array]], dict[str, jax.Array]]:
        """Returns the network as a pure function of its parameters and a batch."""
        config, output = self.config, self.output
        return lambda params, batch: _compute(params, batch, config=config, output=output)

    def reference_outputs(self, batch: Mapping[str, np.ndarray]) -> Arrays:
        """Computes the outputs of a batch in float32, to compare a shipped model with them."""
        # Accelerators multiply float32 matrices in lower precision by default.
        with jax.default_matmul_precision("highest"):
            return jax.device_get(jax.jit(self.compute())(self.params, dict(batch)))


def shipped_network(model: LoadedModel) -> ShippedNetwork:
    """Selects the output of a model: of its task head, a sentence encoder, masked LM, or states.

    A model is a sentence encoder if it was trained as one, or its folder has a modules.json.

    Raises:
      UserError: the outputs depend on more than a batch: a prompt, windows or an adapter; or a
        file of a sentence encoder is damaged or not supported.
    """
    require_single_task(model)
    require_no_adapter(model, "be exported to ONNX or as a bundle")
    config, head, params = model.config, model.head, model.params
    output: Output
    if head is not None:
        _require_plain_head(model, head)
        output, parts = head, ("encoder", *task_parts(head, config))
    elif (sentence_model := sentence_model_of(model)).is_trained:
        sentence, params = sentence_model.config, sentence_model.params
        if sentence.prompts and not sentence.include_prompt:
            raise UserError(
                f"{model.path} leaves the tokens of a prompt out of its vectors, whose number is "
                "not in a batch, so it cannot be exported to ONNX or as a bundle; set "
                '"include_prompt": true in 1_Pooling/config.json if it is used without prompts'
            )
        output, parts = sentence, ("encoder", SENTENCE_HEAD)
    elif "masked_lm" in model.params:
        output, parts = MaskedLMLogits(), ("encoder", *masked_lm_parts(config))
    else:
        output, parts = HiddenStates(), ("encoder",)
    # A sentence encoder without dense layers has no parameters in its head.
    used = {part: params[part] for part in parts if part in params}
    return ShippedNetwork(config=config, output=output, params=used, path=model.path)


def _require_plain_head(model: LoadedModel, head: TaskHead) -> None:
    for name, part in (
        ("with a hierarchical head", window_encoder_of(head)),
        ("with a prompt", label_tokens_of(head)),
    ):
        if part is not None:
            raise UserError(
                f"{model.path} was fine-tuned {name}, so it cannot be exported; use the run folder "
                f"itself, as in bert-jax predict {model.path}"
            )


def _compute(
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    *,
    config: EncoderConfig,
    output: Output,
) -> dict[str, jax.Array]:
    choices = batch["input_ids"].shape[1]
    if _scope(output) == "choices":
        # The encoder reads two dims; the choices of all examples are rows of one batch, and the
        # scores are folded back at the end.
        batch = {name: ids.reshape(-1, ids.shape[-1]) for name, ids in batch.items()}
    # The network expects token types of every family, although a shipped model of one type has no
    # such input.
    fields = {"token_type_ids": jnp.zeros_like(batch["input_ids"]), **batch}
    if isinstance(output, SentenceEncoderConfig):
        # The empty head comes first: encoders without dense layers store no parameters for it.
        encoder = build_sentence_encoder(config, output).merge({SENTENCE_HEAD: {}, **params})
        hidden = encoder.encode(fields).last_hidden_state
        vectors = encoder.sentence_head(hidden, fields["attention_mask"])
        return {
            "last_hidden_state": hidden,
            "sentence_embedding": vectors[:, : output.truncate_dim],
        }
    is_masked_lm = isinstance(output, MaskedLMLogits)
    head = None if isinstance(output, HiddenStates | MaskedLMLogits) else output
    heads = ("masked_lm",) if is_masked_lm else ()
    model = build_network(config, heads, head).merge(dict(params))
    hidden = model.encode(fields).last_hidden_state
    if is_masked_lm:
        return {"logits": model.masked_lm_logits(hidden)}
    if head is None:
        return {"last_hidden_state": hidden}
    logits = model.task_logits(hidden, fields["attention_mask"])
    if head.scope == "span":
        return {name: logits[..., index] for index, name in enumerate(SPAN_OUTPUTS)}
    return {"logits": logits.reshape(-1, choices) if head.scope == "choices" else logits}


def _scope(output: Output) -> Scope | None:
    is_head = not isinstance(output, HiddenStates | MaskedLMLogits | SentenceEncoderConfig)
    return output.scope if is_head else None


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
