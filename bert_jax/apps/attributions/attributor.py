"""Attributes a prediction to tokens, by integrated gradients or by occlusion.

attribute = Attributor(load_model("runs/reviews"))
attribute("A fine film.").attributions     # one number for each token
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.objectives import FineTuning
from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.loader import collate
from bert_jax.errors import ConfigError, UserError, check_range, did_you_mean
from bert_jax.models.heads.config import task_parts
from bert_jax.models.layers.embeddings import GivenEmbeddings
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.batches import (
    MIN_LENGTH,
    TOKENS_PER_BATCH,
    Arrays,
    next_power_of_two,
    params_to_device,
)
from bert_jax.predict.task_processor import TaskProcessor
from bert_jax.pretrained.load import AnyModel, require_encoder, require_no_adapter
from bert_jax.tasks.base import ModelInput

Method = Literal["integrated_gradients", "occlusion"]
Baseline = Literal["pad", "mask", "zero"]
"""What a token is replaced by: the embedding of [PAD], that of [MASK], or zeros."""
METHODS: tuple[Method, ...] = get_args(Method)
BASELINES: tuple[Baseline, ...] = get_args(Baseline)
DEFAULT_STEPS = 50
_PURPOSE = "attribute its predictions to tokens"


class Attribution(NamedTuple):
    """Holds the attributions of a prediction.

    Attributes:
      prediction: the prediction, as of `Predictor`.
      target: the label whose logit is explained; None for a model of regression or ranking, whose
        only output is.
      tokens: the n tokens of the input, special tokens included.
      attributions: float32 [n], in the unit of the logit; positive where a token raises it.
      output: the logit of the target.
      baseline_output: the logit if all tokens but the special ones are replaced by the baseline.
    """

    prediction: dict[str, Any]
    target: str | None
    tokens: list[str]
    attributions: np.ndarray
    output: float
    baseline_output: float

    @property
    def completeness_error(self) -> float:
        """Returns the sum of the attributions minus `output` - `baseline_output`.

        For integrated gradients, it is the error of the integral: 0 for infinitely many steps.
        """
        total = float(self.attributions.sum(dtype=np.float64))
        return total - (self.output - self.baseline_output)


class Attributor:
    """Computes how much each token contributes to an output of a classifier or a regression.

    integrated_gradients  (x - x') times the mean gradient of the output on the straight line from
                          the baseline x' to the word embeddings x, summed over the components of
                          an embedding (Sundararajan et al. 2017)
    occlusion             the output minus that with one token replaced by the baseline (Zeiler and
                          Fergus 2014, Li et al. 2016)

    The outputs are logits, before softmax or sigmoid. Special tokens are the same in x and x', so
    their attribution by integrated gradients is 0; occlusion leaves them out.
    """

    def __init__(
        self,
        model: AnyModel,
        *,
        method: Method = "integrated_gradients",
        baseline: Baseline = "pad",
        steps: int = DEFAULT_STEPS,
    ):
        """Copies the parameters to the device.

        Args:
          baseline: what replaces the word embedding of a token; positions and token types stay.
          steps: points of the Gauss-Legendre quadrature of the integral.

        Raises:
          ConfigError: an argument is out of range.
          UserError: the model has no head or no tokenizer, its head does not score whole texts, or
            it has an adapter that cannot be merged.
        """
        if method not in METHODS:
            raise ConfigError(f"method is {method!r}; expected {' or '.join(METHODS)}")
        if baseline not in BASELINES:
            raise ConfigError(f"baseline is {baseline!r}; expected one of {', '.join(BASELINES)}")
        check_range("steps", steps, at_least=1, at_most=10_000)
        encoder = require_encoder(model, _PURPOSE)
        require_no_adapter(encoder, _PURPOSE)
        self._processor = TaskProcessor(encoder)
        self.kind, self.labels, head = (
            self._processor.kind,
            self._processor.labels,
            self._processor.head,
        )
        if head.scope != "sequence" or getattr(head, "window_encoder", None) is not None:
            raise UserError(
                f"{encoder.path} is a model for {self.kind.name}; expected one that reads a text "
                "or a pair in one sequence and scores it as a whole: a classification, a "
                "regression or a ranking"
            )
        self._method: Method = method
        self._steps, self._path, self._max_length = steps, encoder.path, encoder.config.max_length
        self._params = params_to_device(encoder, ("encoder", *task_parts(head, encoder.config)))
        tokenizer = self._processor.tokenizer
        self._special_ids = [
            tokenizer.pad_id,
            tokenizer.cls_id,
            tokenizer.sep_id,
            tokenizer.mask_id,  # only a prompt has it: in a text it is read as unknown
        ]
        self._table = encoder.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
        self._replacement = {
            "pad": self._table[tokenizer.pad_id],
            "mask": self._table[tokenizer.mask_id],
            "zero": np.zeros_like(self._table[0]),
        }[baseline]
        # In float32, whatever the run computed in.
        objective = FineTuningObjective(FineTuning(model=encoder.config, head=head))
        self._outputs = jax.jit(functools.partial(_outputs, objective))
        self._gradients = jax.jit(functools.partial(_gradients, objective))

    def __call__(self, model_input: ModelInput, target: str | None = None) -> Attribution:
        """Attributes the prediction for a text, or for a tuple of two texts.

        A text that is too long is truncated as in training.

        Args:
          target: the label whose logit is explained; None for the label with the largest one.

        Raises:
          UserError: the text is empty or is read in several windows, or there is no such label.
        """
        self._check_target(target)
        prepared = self._processor.prepare([model_input])
        if not prepared.examples:
            raise UserError("the text is empty; expected a text with at least one word")
        if len(prepared.features) > 1:
            raise UserError(
                f"the text is read in {len(prepared.features)} windows of "
                f"{self._processor.max_length} tokens; expected a text of one window"
            )
        batch, num_tokens = self._batch(prepared.features)
        ids = batch["input_ids"][0]
        inputs = self._table[ids]
        is_special = np.isin(ids, self._special_ids)
        baseline = np.where(is_special[:, None], inputs, self._replacement)
        outputs = jax.device_get(self._outputs(self._params, batch, np.stack([inputs, baseline])))
        ((name, both),) = outputs.items()
        index = self._target_index(target, both[0])
        output, baseline_output = both.reshape(2, -1)[:, index].tolist()
        if self._method == "occlusion":
            values = self._occlude(batch, inputs, baseline, ~is_special, index)
        else:
            values = self._integrate(batch, inputs, baseline, index)
        records = self._processor.records(prepared, {name: both[:1]})
        return Attribution(
            records[0],
            self.labels[index] if self.labels else None,
            [self._processor.tokenizer.id_to_token(int(token)) for token in ids[:num_tokens]],
            values[:num_tokens].astype(np.float32),
            output,
            baseline_output,
        )

    def _check_target(self, target: str | None) -> None:
        if target is not None and target not in self.labels:
            labels = ", ".join(self.labels) or "none, because it predicts a number"
            raise UserError(
                f"{self._path} has no label {target!r}; {did_you_mean(target, self.labels)}its "
                f"labels are: {labels}"
            )

    def _target_index(self, target: str | None, outputs: np.ndarray) -> int:
        return int(outputs.argmax()) if target is None else self.labels.index(target)

    def _batch(self, features: Features) -> tuple[Arrays, int]:
        """Returns the batch of the only sequence, [1, L], and its number of tokens."""
        num_tokens = int(features.lengths[0])
        length = min(max(next_power_of_two(num_tokens), MIN_LENGTH), self._max_length)
        pad_id = self._processor.tokenizer.pad_id
        batch = collate(features, np.zeros(1, np.int64), 1, length, pad_id)
        return {name: batch[name] for name in self.kind.spec.input_fields}, num_tokens

    def _integrate(
        self, batch: Arrays, inputs: np.ndarray, baseline: np.ndarray, index: int
    ) -> np.ndarray:
        nodes, weights = np.polynomial.legendre.leggauss(self._steps)
        fractions, weights = (nodes + 1) / 2, weights / 2  # from [-1, 1] to [0, 1]
        difference = inputs - baseline
        total = np.zeros_like(inputs, np.float64)
        for rows in _groups(self._steps, len(inputs)):
            # Rows beyond the last step have weight 0, so that all batches have one shape.
            padded = np.pad(fractions[rows], (0, _rows(len(inputs)) - len(fractions[rows])))
            weight = np.pad(weights[rows], (0, len(padded) - len(weights[rows])))
            points = baseline + padded[:, None, None].astype(np.float32) * difference
            total += np.asarray(
                self._gradients(self._params, batch, points, weight.astype(np.float32), index)
            )
        return (total * difference).sum(axis=1)

    def _occlude(
        self,
        batch: Arrays,
        inputs: np.ndarray,
        baseline: np.ndarray,
        is_occluded: np.ndarray,
        index: int,
    ) -> np.ndarray:
        positions = np.flatnonzero(is_occluded)
        values = np.zeros(len(inputs))
        for rows in _groups(len(positions), len(inputs)):
            points = np.broadcast_to(inputs, (_rows(len(inputs)), *inputs.shape)).copy()
            for row, position in enumerate(positions[rows]):
                points[row, position] = baseline[position]
            # A row without occlusion is part of every batch: its output is the one to compare
            # with, because outputs of other batch shapes differ by rounding.
            (outputs,) = jax.device_get(self._outputs(self._params, batch, points)).values()
            outputs = outputs.reshape(len(points), -1)[:, index]
            values[positions[rows]] = outputs[-1] - outputs[: len(positions[rows])]
        return values


def _rows(length: int) -> int:
    """Returns the number of rows of a batch of sequences of this length."""
    return max(TOKENS_PER_BATCH // length, 2)


def _groups(count: int, length: int) -> Iterator[slice]:
    """Yields slices that leave at least one row of a batch free."""
    size = _rows(length) - 1
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _outputs(
    objective: FineTuningObjective,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    embeddings_BLE: jax.Array,
) -> dict[str, jax.Array]:
    """Computes the outputs of the head for one sequence, with B versions of its embeddings."""
    network: Any = objective.network.merge(dict(params))
    embeddings = network.encoder.embeddings
    # The ids still give positions, global attention and the mask of a prompt.
    table = embeddings.word_embeddings.embedding
    embeddings.word_embeddings = GivenEmbeddings(embeddings_BLE, table)
    rows = len(embeddings_BLE)
    repeated = {name: jnp.repeat(field, rows, axis=0) for name, field in batch.items()}
    return objective.head_outputs(network, repeated, None)


def _gradients(
    objective: FineTuningObjective,
    params: Mapping[str, Any],
    batch: Mapping[str, jax.Array],
    embeddings_BLE: jax.Array,
    weights_B: jax.Array,
    index: jax.Array,
) -> jax.Array:
    """Returns the weighted sum of the gradients of output `index` by the embeddings, [L, E]."""

    def weighted_output(embeddings: jax.Array) -> jax.Array:
        (outputs,) = _outputs(objective, params, batch, embeddings).values()
        return jnp.dot(weights_B, outputs.reshape(len(embeddings), -1)[:, index])

    return jnp.sum(jax.grad(weighted_output)(embeddings_BLE), axis=0)


def to_json(attribution: Attribution, method: Method) -> dict[str, Any]:
    """Returns an attribution as a JSON object."""
    pairs: Sequence[tuple[str, float]] = list(
        zip(attribution.tokens, attribution.attributions.tolist(), strict=True)
    )
    found: dict[str, Any] = {
        "prediction": attribution.prediction,
        "target": attribution.target,
        "output": attribution.output,
        "baseline_output": attribution.baseline_output,
        "tokens": [{"token": token, "attribution": value} for token, value in pairs],
    }
    if method == "integrated_gradients":
        found["completeness_error"] = attribution.completeness_error
    return found
