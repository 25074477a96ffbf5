"""Exports what a run trained of a model as an adapter folder that the peft library opens.

The folder gets its name only when it is complete and was read back.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.config_lib import from_json
from bert_jax.errors import UserError
from bert_jax.export.export import TOLERANCE, new_folder
from bert_jax.export.model_card import AdapterFacts, model_card
from bert_jax.interop.peft.adapter_config import ADAPTER_WEIGHTS, PeftAdapter
from bert_jax.interop.peft.folder import write_adapter_folder
from bert_jax.io.atomic_io import check_new_folder
from bert_jax.models.adapters.config import PrefixTuning
from bert_jax.models.adapters.modules import group_adapter, group_by_module
from bert_jax.models.adapters.network import implementation
from bert_jax.models.heads.config import TaskHead
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.pretrained.base_model import BASE, base_of, fitted_head, restore_run, tuning_of
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.runs import run_folder
from bert_jax.version import __version__


def export_adapter(
    run: str | Path, output: Path, base_path: str | None = None, base_name: str | None = None
) -> float:
    """Writes the adapter, the head and the tokenizer of a run to the new folder `output`.

    Args:
      run: a run folder, or one of its checkpoints.
      base_path: another copy of the base, to which the folder will refer; None for the model that
        the run started from.
      base_name: what the folder calls the base instead of its path, as "org/name" of the hub.

    Returns:
      The largest difference of a parameter between the run and the folder that was read back.

    Raises:
      UserError: `output` is not empty or cannot be written; the run trained the whole model, or
        in a way for which peft has no format; or the folder is not the same when read back
        (nothing is left at `output` then).
    """
    check_new_folder(output)
    run = resolve_model_folder(run)
    adapter = read_trained_parameters(run)
    if base_path is not None:
        adapter = replace(adapter, base=base_path)
    local_base = adapter.base
    if base_name is not None:
        adapter = replace(adapter, base=base_name)
    model = load_encoder(run)
    with new_folder(output) as partial_folder:
        write_adapter_folder(partial_folder, adapter, model.config, __version__)
        if model.tokenizer is not None:
            model.tokenizer.save(partial_folder)
        difference = _verify(model, partial_folder, local_base)
        facts = AdapterFacts(
            method=type(adapter.method).__name__ if adapter.method else "LayerNormTuning",
            base=adapter.base,
            num_parameters=sum(
                leaf.size for leaf in (*adapter.adapter.values(), *adapter.params.values())
            ),
            num_bytes=(partial_folder / ADAPTER_WEIGHTS).stat().st_size,
        )
        card = model_card(model, output.name, difference, facts)
        (partial_folder / "README.md").write_text(card, "utf-8")
    return difference


def read_trained_parameters(run: Path) -> PeftAdapter:
    """Reads the parameters that a run trained, from its best or newest checkpoint.

    Args:
      run: a run folder, or one of its checkpoints.

    Raises:
      UserError: it is no run, or it trained the whole model, or several tasks.
    """
    found = run_folder.find_run(run)
    if found is None:
        raise UserError(
            f"{run} is not a run folder; --adapter exports what a run of `bert-jax finetune "
            "--method` trained"
        )
    params, info, step = restore_run(*found)
    config = info.get("config", {})
    objective = config["objective"]["type"]
    if BASE not in info:
        raise UserError(
            f"{run} trained the whole model ({objective}), so it has no adapter; export it without "
            "--adapter, or train it with bert-jax finetune --method lora"
        )
    if objective != "FineTuning":
        raise UserError(
            f"{run} is a run of {objective}, whose adapter has several heads, for which peft has "
            "no format; export the merged model of each task, with --task and without --adapter"
        )
    tuning = tuning_of(info)
    base = base_of(info)
    others = {part: tree for part, tree in params.items() if part != ADAPTER}
    return PeftAdapter(
        method=tuning.adapter,
        adapter=_to_numpy(params.get(ADAPTER, {})),
        params=_to_numpy(others),
        head=fitted_head(found[0], step)
        or from_json(TaskHead, config["objective"]["head"], "objective.head"),
        base=base.path,
        fingerprint=base.fingerprint,
    )


def _to_numpy(params: Any) -> dict[str, np.ndarray]:
    return {path: np.asarray(leaf) for path, leaf in paths.flatten(params).items()}


def _verify(model: LoadedModel, folder: Path, base: str) -> float:
    """Compares the folder over its base with the model of the run; returns the difference."""
    reloaded = load_encoder(folder, base=base)
    if reloaded.head != model.head:
        raise UserError(f"the export describes another head: {reloaded.head}, not {model.head}")
    expected, found = (_comparable(each) for each in (model, reloaded))
    difference = 0.0
    for path in sorted(expected.keys() | found.keys()):
        if path not in expected or path not in found or expected[path].shape != found[path].shape:
            raise UserError(f"the export was not written: {path} is not the same when read back")
        # Not equal bits: a merged adapter is compared as a product, and the folder may hold it
        # with another rank (padded, or by blocks of a joint tensor). The initial value is for
        # empty parameters.
        max_difference = float(np.abs(expected[path] - found[path]).max(initial=0.0))
        # `not <=` and not `>`: a difference of NaN is an error, too.
        if not max_difference <= TOLERANCE:
            raise UserError(
                f"the export was not written: {path} differs by {max_difference:.1e} when read "
                f"back (at most {TOLERANCE} is allowed)"
            )
        difference = max(difference, max_difference)
    return difference


def _comparable(model: LoadedModel) -> dict[str, np.ndarray]:
    """Returns the parameters of a model by path, with keys and values that an MLP computes."""
    params = dict(model.params)
    if isinstance(model.adapter, PrefixTuning):
        prepare, base = implementation(model.adapter).prepare, group_by_module(model.params)
        # peft stores the computed keys and values, and no folder has the encoder that computed
        # them, so that is what can be compared.
        params[ADAPTER] = dict(prepare(group_adapter(model.adapter_params), base))
    elif model.adapter is not None:
        params[ADAPTER] = model.adapter_params
    return _to_numpy(jax.device_get(params))
