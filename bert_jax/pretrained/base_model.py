"""Rebuilds all parameters of a run that saved only what it trained, from those and its base.

A checkpoint of LoRA, BitFit and other methods that train a part of a model holds that part and
names its base: the model from which training started, and the fingerprint of its encoder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.models.adapters.config import Adapter
from bert_jax.models.adapters.network import can_be_merged, merge_adapter
from bert_jax.models.heads.config import TaskHead
from bert_jax.objectives.multi_task import HEADS
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.runs import run_folder
from bert_jax.tasks.calibration import FittedHead, divide_last_layer

BASE = "base"
"""Key of the base in the metadata of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """Identifies the model whose frozen parameters a checkpoint does not hold.

    Attributes:
      path: the model given by `init_from`; absolute if it is a folder.
      fingerprint: `paths.fingerprint` of its encoder's parameters.
    """

    path: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class TrainedAdapter:
    """Holds an adapter without its base, as a run has saved it.

    Attributes:
      method: how the adapter changes the base.
      params: its parameters, which a network has under "adapter"; NumPy arrays.
      head: the head of the task.
      head_params: the parameters of the head, and of the pooler if the head uses it.
      base: the model that it was trained on.
      path: the run folder.
    """

    method: Adapter
    params: dict[str, Any]
    head: TaskHead
    head_params: dict[str, Any]
    base: Base
    path: str


def read_adapter(folder: str | Path) -> TrainedAdapter:
    """Reads the adapter and the head of a fine-tuning run, without reading the base.

    The parameters are of the best step, or of the newest one if none was evaluated.

    Raises:
      UserError: the folder is no run that trained an adapter on one task.
    """
    folder = resolve_model_folder(folder)
    params, info, step = restore_run(folder, None)
    config = info.get("config", {})
    tuning = tuning_of(info)
    objective = config["objective"]["type"]
    if tuning.adapter is None or objective != "FineTuning":
        raise UserError(
            f"{folder} is a run of {objective} with the method {type(tuning.method).__name__}; "
            "expected fine-tuning on one task with an adapter, such as --method lora"
        )
    return TrainedAdapter(
        method=tuning.adapter,
        params=params[ADAPTER],
        head=fitted_head(folder, step)
        or from_json(TaskHead, config["objective"]["head"], "objective.head"),
        head_params={part: tree for part, tree in params.items() if part != ADAPTER},
        base=base_of(info),
        path=str(folder),
    )


def save_fitted_heads(folder: Path, step: int, heads: Mapping[str, FittedHead]) -> None:
    """Saves the heads for which thresholds or a temperature were chosen after training.

    Args:
      step: the checkpoint with whose parameters they were chosen.
      heads: task of a multi-task run -> its head; {"": head} for a run with one task.
    """
    file = folder / run_folder.FITTED_HEADS
    chosen = {
        task: to_json(fitted)
        for task, fitted in heads.items()
        if fitted.temperature != 1 or getattr(fitted.head, "thresholds", ())
    }
    if chosen:
        write_json(file, {"step": step, "heads": chosen})
    else:  # a run that is evaluated again may have chosen something before
        file.unlink(missing_ok=True)


def fitted_head(folder: Path, step: int, task: str | None = None) -> TaskHead | None:
    """Returns the head that was saved for a step of a run; None: that in its config is complete."""
    fitted = _fitted_heads(folder, step).get(task or "")
    return None if fitted is None else fitted.head


def _fitted_heads(folder: Path, step: int) -> dict[str, FittedHead]:
    file = folder / run_folder.FITTED_HEADS
    saved = read_json_object(file) if file.is_file() else {}
    if saved.get("step") != step:
        return {}
    return {
        task: from_json(FittedHead, fitted, f"{file}: heads")
        for task, fitted in saved["heads"].items()
    }


def restore_run(folder: Path, step: int | None) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Reads the parameters of a run at `step`; None for the best or the newest step.

    The last layer of a calibrated classifier is divided by its temperature.

    Returns:
      (parameters, metadata of the checkpoint, step).
    """
    from bert_jax.runs.checkpoints.step_folder import restore_params

    checkpoints = run_folder.checkpoint_dir(folder)
    params, info, loaded_step = restore_params(checkpoints, step)
    best_step = info.get("best", {}).get("step")
    # The newest checkpoint knows which step was best; that one is loaded instead, unless a step
    # was asked for.
    if step is None and best_step not in (None, loaded_step):
        params, info, loaded_step = restore_params(checkpoints, best_step)
    for task, fitted in _fitted_heads(folder, loaded_step).items():
        if fitted.temperature == 1:
            continue
        if task:
            divided = divide_last_layer(params[HEADS][task], fitted.temperature)
            params = {**params, HEADS: {**params[HEADS], task: divided}}
        else:
            params = divide_last_layer(params, fitted.temperature)
    return params, info, loaded_step


def base_of(info: Mapping[str, Any]) -> Base:
    """Returns the base that the metadata of a checkpoint names."""
    return Base(**info[BASE])


def tuning_of(info: Mapping[str, Any]) -> TuningConfig:
    """Returns the tuning config in the metadata of a checkpoint."""
    return from_json(TuningConfig, info["config"]["train"]["tuning"], "train.tuning")


# Checkpoints of partial tuning hold what is trained and name the base by `init_from` and the
# fingerprint of its encoder.
def check_base(info: Mapping[str, Any], fingerprint: str, checkpoint: str) -> None:
    """Raises UserError unless a checkpoint was trained on a base with this fingerprint.

    Args:
      info: the metadata of the checkpoint.
      checkpoint: its folder, for the message.
    """
    base = base_of(info)
    if base.fingerprint != fingerprint:
        raise UserError(
            f"{checkpoint} holds only the parameters that were trained on the base {base.path} "
            f"with the fingerprint {base.fingerprint[:12]}, but the encoder there has the "
            f"fingerprint {fingerprint[:12]} now; put the original model back, or train again"
        )


def complete_params(
    params: Mapping[str, Any],
    info: Mapping[str, Any],
    checkpoint: str,
    load_encoder: Callable[[str], Any],
) -> dict[str, Any]:
    """Returns all parameters of a model from those in a checkpoint.

    An adapter that can be merged is merged. Other ones remain under "adapter".

    Args:
      params: the parameters in the checkpoint; returned as they are if it names no base.
      info: the metadata of the checkpoint.
      checkpoint: its folder, for messages.
      load_encoder: returns the model at a path, a `LoadedModel`.

    Raises:
      UserError: the base cannot be read or has changed.
    """
    if BASE not in info:
        return dict(params)
    path = base_of(info).path
    try:
        encoder = load_encoder(path).params["encoder"]
    except UserError as error:
        raise UserError(
            f"{checkpoint} holds only the parameters that were trained on the base {path}, which "
            f"cannot be read: {error}; put the base back there"
        ) from None
    # A path does not identify a model: the base may have been trained further or replaced since.
    check_base(info, paths.fingerprint(encoder), checkpoint)
    flat = {**paths.flatten({"encoder": encoder}), **paths.flatten(params)}
    complete = paths.unflatten(flat)
    tuning = tuning_of(info)
    if tuning.adapter is None or not can_be_merged(tuning.adapter):
        return complete
    # Merged, so that prediction, embedding and export need nothing of adapters.
    return merge_adapter(tuning.adapter, complete)


def remaining_adapter(info: Mapping[str, Any]) -> Adapter | None:
    """Returns the adapter that the result of `complete_params` has, or None."""
    if BASE not in info:
        return None
    tuning = tuning_of(info)
    return tuning.adapter if tuning.adapter and not can_be_merged(tuning.adapter) else None
