"""Logs what a run trains, and what it reached, for the person who watches it.

Only process 0 logs; on other processes the functions do nothing.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.io.json_io import read_json_object
from bert_jax.params import paths
from bert_jax.runs import run_folder
from bert_jax.runs.progress import format_duration

logger = logging.getLogger(__name__)

_MAX_METRICS = 4


def log_model(model: Any, params: Any, trained: Any) -> None:
    """Logs the model's family, size and numbers of parameters, and the devices.

    Args:
      model: the config of the encoder or of the encoder-decoder.
      params: the parameters, heads included, as arrays or shapes. A teacher or a generator, which
        is not part of the model, is not counted.
      trained: the parameters that the run trains, in the same form.
    """
    num_params, num_trained = map(_num_parameters, (params, trained))
    part = f", of which {num_trained:,} ({num_trained / num_params:.2%}) are trained"
    _log(
        f"model: {describe_model(model, params)}"
        f"{part if num_trained < num_params else ''}; devices: "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    )


def log_token_rows(num_rows: int, vocab_size: int) -> None:
    """Logs how many rows of the token embeddings are trained."""
    _log(
        f"token embeddings: {num_rows:,} of {vocab_size:,} rows are trained; no training text has "
        "the tokens of the others"
    )


def describe_model(model: Any, params: Any) -> str:
    """Returns the family and the size of a model, such as "BERT, 2 layers of width 128, ..."."""
    layers = getattr(model, "num_hidden_layers", None)
    if layers is None:
        layers = f"{model.num_encoder_layers} encoder and {model.num_decoder_layers} decoder"
    number = f"{_num_parameters(params):,} parameters"
    return f"{model.family}, {layers} layers of width {model.hidden_size}, {number}"


def _num_parameters(params: Any) -> int:
    leaves = jax.tree.leaves(paths.without_auxiliary_networks(params))
    return sum(math.prod(leaf.shape) for leaf in leaves)


def log_phase(
    seq_length: int,
    num_steps: int,
    batch_size: int,
    tokens_per_batch: int,
    examples_per_epoch: int,
    is_packed: bool,
) -> None:
    """Logs what a phase trains on, before its train step is compiled.

    Args:
      num_steps: the updates that are left, fewer than the phase has in a resumed run.
      tokens_per_batch: of the longest batches, padding included.
      is_packed: whether a sequence has one or more examples, so that epochs are a lower bound.
    """
    num_examples = num_steps * batch_size
    num_epochs = num_examples / examples_per_epoch
    _log(
        f"length-{seq_length}: {num_steps:,} updates of {batch_size:,} "
        f"{'packed sequences' if is_packed else 'examples'}, at most "
        f"{num_steps * tokens_per_batch:,} tokens with padding, {'at least ' if is_packed else ''}"
        f"{f'{num_epochs:,.0f}' if num_epochs >= 10 else f'{num_epochs:.2g}'} epochs; "
        "compiling the train step"
    )


def log_truncation(split: str, num_truncated: int, num_examples: int, seq_length: int) -> None:
    """Logs how many examples of a split are longer than the sequence length, if any is.

    Args:
      split: the task and its split, such as "rte train".
    """
    if num_truncated:
        _log(
            f"{split}: {num_truncated:,} of {num_examples:,} examples "
            f"({num_truncated / num_examples:.1%}) are truncated to {seq_length} tokens"
        )


def log_evaluation(
    step: int,
    metrics: Mapping[str, float],
    first_metrics: Sequence[str],
    shown_metrics: Sequence[str],
    best_metric: str | None,
) -> None:
    """Logs the main metrics of an evaluation during training.

    Args:
      first_metrics: the names to show first, as far as they are in `metrics`.
      shown_metrics: the names to show after them; () for all.
      best_metric: the metric whose value is the best so far; None if it is not.
    """
    remark = f" (best {_readable(best_metric)} so far)" if best_metric else ""
    text = format_metrics(metrics, first_metrics, shown_metrics)
    _log(f"evaluation after step {step}: {text}{remark}")


def log_results(
    folder: Path, report: Path, seconds: float, shown_metrics: Sequence[str] = ()
) -> None:
    """Logs the final metrics of each split, and where the report is.

    Args:
      seconds: wall time of this process.
      shown_metrics: as in `format_metrics`.
    """
    file = folder / run_folder.EVALUATION
    results = list(_by_split(read_json_object(file) if file.exists() else {}))
    for name, metrics in results:
        text = format_metrics(metrics, shown_metrics=shown_metrics)
        _log(f"final evaluation, {name or 'held-out'}: {text}")
    if not results:
        _log("no final evaluation: no held-out text, and no labeled split besides train")
    _log(f"the run is complete ({format_duration(seconds)} in this process); report: {report}")


def format_metrics(
    metrics: Mapping[str, float],
    first_metrics: Sequence[str] = (),
    shown_metrics: Sequence[str] = (),
) -> str:
    """Returns the main metrics as text, such as "mlm loss 5.0620, mlm accuracy 0.1810".

    Args:
      first_metrics: the names that come first.
      shown_metrics: the names that follow, as `Objective.shown_metrics`; () for all of `metrics`.
    """
    names = dict.fromkeys((*first_metrics, *(shown_metrics or metrics)))
    names = [name for name in names if name in metrics]
    names = names[:_MAX_METRICS]
    return ", ".join(f"{_readable(name)} {metrics[name]:.4f}" for name in names)


def _readable(metric: str) -> str:
    return metric.replace("_", " ")


def _by_split(results: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (path such as "rte dev", metrics) for each split of evaluation.json."""
    metrics = {name: value for name, value in results.items() if not isinstance(value, Mapping)}
    if metrics:
        yield prefix, metrics
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _by_split(value, f"{prefix} {name}".strip())


def _log(message: str) -> None:
    if jax.process_index() == 0:
        logger.info("%s", message)
