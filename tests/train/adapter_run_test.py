"""Covers runs that train a part of a model: checkpoints, resuming, loading, another base.

Covers bert_jax/train/initialize.py, bert_jax/pretrained/base_model.py and
bert_jax/predict/adapter_set.py.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.config.config_lib import override
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import METHODS, BitFit, MethodName, TuningConfig
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.adapter import export_adapter
from bert_jax.export.export import export
from bert_jax.models.adapters.config import HoulsbyAdapter, LoRA, PromptTuning
from bert_jax.models.heads.config import LabelTokens, RegressionHead
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.predict.adapter_set import AdapterSet
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.task_processor import max_text_length
from bert_jax.pretrained.adapter_folder import read_peft_adapter
from bert_jax.pretrained.base_model import Base, TrainedAdapter, read_adapter
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.run import run
from bert_jax.train.tuning.freezing import is_frozen
from tests.helpers.killed_run import compare_killed_run
from tests.helpers.one_device import one_device_mesh
from tests.helpers.same_parameters import assert_same_parameters

PREFIX = {
    "type": "PrefixTuning",
    "length": 3,
    "reparametrization": {"type": "PrefixEncoder", "size": 5},
}
PREFIX_CHANGES = ["train.phases.0.seq_length=37", f"train.tuning.method={json.dumps(PREFIX)}"]


@pytest.fixture(scope="module")
def lora_run(task_experiment, tmp_path_factory):
    """Returns the config and the folder of a finished run of LoRA with checkpoints on the way."""
    folder = tmp_path_factory.mktemp("lora")
    experiment = task_experiment("classification")
    shutil.copytree(experiment.init_from, folder / "base")
    experiment = dataclasses.replace(experiment, init_from=str(folder / "base"))
    changes = [
        'train.tuning.method={"type": "LoRA", "rank": 4, "targets": ["query", "feed_forward/*"]}',
        "train.checkpoints.keep_last=9",
        "train.phases.0.steps=15",
        "train.checkpoints.save_every=5",
    ]
    experiment = override(experiment, changes)
    with one_device_mesh():
        assert run(experiment, folder / "run") == 0
    return experiment, folder / "run"


def test_checkpoints_hold_what_is_trained_and_name_the_base(lora_run):
    experiment, folder = lora_run
    params, info, _ = restore_params(folder / "checkpoints")
    assert {path.split("/")[0] for path in paths.flatten(params)} == {
        "adapter",
        "pooler",
        "classifier",
    }
    base = load_encoder(experiment.init_from)
    assert info["base"] == {
        "path": experiment.init_from,
        "fingerprint": paths.fingerprint(base.params["encoder"]),
    }
    assert np.abs(params["adapter"]["encoder"]["layers"]["0"]["attention"]["query"]["lora_b"]).max()


# tests/integration resumes runs, also with a frozen teacher, which has no moments either.
@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], PREFIX_CHANGES], ids=["lora", "prefix"])
def test_a_resumed_run_is_bit_exact(lora_run, tmp_path, changes):
    experiment, folder = lora_run
    if changes:
        experiment, folder = override(experiment, changes), tmp_path / "straight"
        with one_device_mesh():
            assert run(experiment, folder) == 0
    shutil.copytree(folder, tmp_path / "run")
    for step in ("10", "15"):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / step)
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    assert_same_parameters(folder, tmp_path / "run", 15)


@pytest.mark.slow  # three processes
def test_a_killed_run_resumes_bit_exactly(lora_run, tmp_path):
    experiment, _ = lora_run
    task, steps, every = experiment.data.task, 150, 15
    arguments = [
        *("finetune", "columns", "--method", "dora"),
        *("--train", task.train, "--dev", task.dev, "--text", "text", "--label", "label"),
        *("--model", experiment.init_from, "--batch-size", "16", "--epochs", str(steps // 10)),
        *("--set", f"train.checkpoints.save_every={every}", f"train.evaluation.eval_every={every}"),
    ]
    killed = compare_killed_run(arguments, tmp_path, steps)
    params, _, _ = restore_params(killed / "checkpoints", steps)
    query = params["adapter"]["encoder"]["layers"]["0"]["attention"]["query"]
    assert set(query) == {"lora_a", "lora_b", "magnitude"} and np.abs(query["lora_b"]).max() > 0


def test_a_finished_run_predicts_and_is_exported_without_adapter(lora_run, tmp_path):
    experiment, folder = lora_run
    model = load_encoder(folder)
    assert "adapter" not in model.params
    lines = (folder / "predictions" / "dev.jsonl").read_text().splitlines()
    evaluated = json.loads(lines[0])
    export(model, tmp_path / "exported")
    exported = load_encoder(tmp_path / "exported")
    for path, leaf in paths.flatten(exported.params).items():
        np.testing.assert_array_equal(leaf, paths.flatten(model.params)[path])
    example = load_task(experiment.data.task).splits["dev"][0]
    found = Predictor(exported)(example)["probabilities"]
    assert found == pytest.approx(evaluated["probabilities"], abs=1e-5)


def test_a_finished_run_is_exported_as_an_adapter_folder(lora_run, tmp_path):
    experiment, folder = lora_run
    output = tmp_path / "adapter"
    assert main(["export", str(folder), "--adapter", "--output", str(output)]) == 0
    expected, found = load_encoder(folder), load_encoder(output)
    assert found.head == expected.head and found.tokenizer is not None
    for path, leaf in paths.flatten(expected.params).items():
        np.testing.assert_array_equal(paths.flatten(found.params)[path], leaf)
    card = (output / "README.md").read_text()
    assert "library_name: peft" in card and str(experiment.init_from) in card
    example = load_task(experiment.data.task).splits["dev"][0]
    assert (
        Predictor(found)(example)["probabilities"] == Predictor(expected)(example)["probabilities"]
    )
    base = load_encoder(experiment.init_from)
    peft_adapter, adapter = read_peft_adapter(output, base), read_adapter(folder)
    assert peft_adapter.base == adapter.base
    for path, leaf in paths.flatten(adapter.params).items():
        np.testing.assert_array_equal(paths.flatten(peft_adapter.params)[path], leaf)
    with pytest.raises(UserError, match="is not a run folder; --adapter exports what a run"):
        export_adapter(Path(experiment.init_from), tmp_path / "other")


def test_the_base_must_be_there_and_unchanged(lora_run, tmp_path):
    experiment, folder = lora_run
    base, moved = Path(experiment.init_from), tmp_path / "moved"
    shutil.move(base, moved)
    try:
        with pytest.raises(UserError, match=r"trained on the base .*, which cannot be read"):
            load_encoder(folder)
        other = load_encoder(moved)
        changed = jax.tree.map(lambda leaf: leaf * np.float32(1.5), other.params)
        export(dataclasses.replace(other, params=changed), base)
        with pytest.raises(
            UserError, match=r"fingerprint [0-9a-f]{12} now; put the original model"
        ):
            load_encoder(folder)
        with one_device_mesh(), pytest.raises(UserError, match="put the original model back"):
            run(experiment, folder)
    finally:
        shutil.rmtree(base, ignore_errors=True)
        shutil.move(moved, base)


@pytest.mark.slow
def test_bitfit_changes_biases_and_heads_only(lora_run, tmp_path):
    experiment, _ = lora_run
    experiment = override(experiment, ["train.tuning.method=BitFit", "train.phases.0.steps=4"])
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    with pytest.raises(UserError, match=r"was trained, which peft has no format for.*\(BitFit\)"):
        export_adapter(tmp_path / "run", tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    trained, base = load_encoder(tmp_path / "run"), load_encoder(experiment.init_from)
    before = paths.flatten(base.params)
    changed = {
        path
        for path, leaf in paths.flatten(trained.params["encoder"], "encoder").items()
        if not np.array_equal(leaf, before[path])
    }
    expected = {path for path in before if path.startswith("encoder/") and path.endswith("/bias")}
    tuning = TuningConfig(method=BitFit())
    # The softmax does not depend on the bias of the keys, whose gradient is only rounding.
    assert {p for p in changed ^ expected if "/key/" not in p} == set()
    assert expected == {p for p in before if p.startswith("encoder/") and not is_frozen(tuning, p)}


def test_a_run_whose_adapter_cannot_be_merged_predicts_and_is_not_exported(lora_run, tmp_path):
    experiment, _ = lora_run
    experiment = override(experiment, [*PREFIX_CHANGES, "train.phases.0.steps=4"])
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    model = load_encoder(tmp_path / "run")
    lines = (tmp_path / "run" / "predictions" / "dev.jsonl").read_text().splitlines()
    example = load_task(experiment.data.task).splits["dev"][0]
    expected = json.loads(lines[0])["probabilities"]
    assert Predictor(model)(example)["probabilities"] == pytest.approx(expected, abs=1e-5)
    for use in (lambda: export(model, tmp_path / "new"), model.encoder, lambda: Embedder(model)):
        with pytest.raises(UserError, match="PrefixTuning, which cannot be merged"):
            use()
    with pytest.raises(ConfigError, match=r"seq_length 38 and .*length is 3, but"):
        override(experiment, ["train.phases.0.seq_length=38"])


def test_a_set_of_adapters_computes_each_row_with_its_own(lora_run, tmp_path):
    experiment, folder = lora_run
    base, trained = load_encoder(experiment.init_from), read_adapter(folder)
    small = LoRA(rank=2, alpha=3.0, targets=("query",))
    query = trained.params["encoder"]["layers"]["0"]["attention"]["query"]
    cut = {"lora_a": query["lora_a"][:, :2], "lora_b": query["lora_b"][:2]}
    second = dataclasses.replace(
        trained,
        method=small,
        params={"encoder": {"layers": {"0": {"attention": {"query": cut}}}}},
        head_params=jax.tree.map(lambda leaf: leaf * np.float32(0.5), trained.head_params),
    )
    adapters = {"first": trained, "second": second}
    adapter_set = AdapterSet(base, adapters)
    batch: Any = fine_tuning_batch(trained.head, batch_size=4, seq_length=12, vocab_size=18)

    def one_by_one(adapter: TrainedAdapter) -> Any:
        config = FineTuning(model=base.config, head=adapter.head)
        predict = jax.jit(FineTuningObjective(config, adapter.method).predict)
        params = {"encoder": base.params["encoder"], "adapter": adapter.params}
        return predict({**params, **adapter.head_params}, batch)["logits"]

    names = ["second", "first", "first", "second"]
    expected = {name: one_by_one(adapter) for name, adapter in adapters.items()}
    found = adapter_set(batch, names)["logits"]
    for row, name in enumerate(names):
        np.testing.assert_allclose(found[row], expected[name][row], atol=1e-5)
    assert np.abs(expected["first"] - expected["second"]).max() > 1e-3
    adapter_set.replace("second", trained)
    swapped = adapter_set(batch, names)["logits"]
    np.testing.assert_allclose(swapped, expected["first"], atol=1e-5)
    compute: Any = adapter_set.compute
    assert compute._cache_size() == 1  # nothing was compiled for the new adapter
    with pytest.raises(UserError, match=r"no adapter 'secnd' in the set; did you mean 'second'"):
        adapter_set(batch, ["secnd"] * 4)
    other = dataclasses.replace(trained, base=Base(path="other", fingerprint="0" * 32))
    with pytest.raises(UserError, match="trained on the base other with the fingerprint 0000"):
        adapter_set.replace("second", other)
    other = dataclasses.replace(trained, head=RegressionHead())
    with pytest.raises(UserError, match="expected heads of the same kind and size"):
        adapter_set.replace("second", other)
    norms = {**trained.head_params, "encoder": base.params["encoder"]}
    other = dataclasses.replace(trained, method=HoulsbyAdapter(), head_params=norms)
    with pytest.raises(UserError, match="HoulsbyAdapter, which also trains LayerNorms of the base"):
        AdapterSet(base, {"second": other})
    tokens = LabelTokens(mask_token_id=4, token_ids=(((5,),), ((6,),), ((7,),)))
    prompt_head = dataclasses.replace(trained.head, label_tokens=tokens)
    other = dataclasses.replace(trained, head=prompt_head)
    with pytest.raises(UserError, match="label words at a mask token, which a set of"):
        AdapterSet(base, {"second": other})


def test_prompts_of_different_texts_are_in_one_set(lora_run):
    experiment, folder = lora_run
    base, trained = load_encoder(experiment.init_from), read_adapter(folder)
    width = base.config.word_embedding_size
    adapters = {}
    for seed, ids in enumerate(((), (5, 6))):
        prompt = np.random.default_rng(seed).standard_normal((3, width)).astype(np.float32)
        params = {"encoder": {"embeddings": {"word_embeddings": {"prompt": prompt}}}}
        method = PromptTuning(length=3, initial_ids=ids)
        adapters[f"prompt {seed}"] = dataclasses.replace(trained, method=method, params=params)
    batch: Any = fine_tuning_batch(trained.head, batch_size=2, seq_length=12, vocab_size=18)
    found = AdapterSet(base, adapters)(batch, list(adapters))["logits"]
    for row, (name, adapter) in enumerate(adapters.items()):
        alone = AdapterSet(base, {name: adapter})(batch, [name, name])["logits"]
        np.testing.assert_allclose(found[row], alone[row], atol=1e-5)


def test_a_frozen_pooler_is_saved_with_the_adapter(lora_run, tmp_path):
    experiment, _ = lora_run
    changes = ['train.tuning.frozen=["pooler/**"]', "train.phases.0.steps=4"]
    experiment = override(experiment, changes)
    with one_device_mesh():
        assert run(experiment, tmp_path / "run") == 0
    base, trained = load_encoder(experiment.init_from), load_encoder(tmp_path / "run")
    for path, leaf in paths.flatten(base.params["pooler"]).items():
        np.testing.assert_array_equal(paths.flatten(trained.params["pooler"])[path], leaf)
    export_adapter(tmp_path / "run", tmp_path / "adapter")
    Predictor(load_encoder(tmp_path / "adapter", base=experiment.init_from))


def test_texts_leave_room_for_the_virtual_tokens_of_a_folder_of_peft(lora_run):
    base = load_encoder(lora_run[0].init_from)
    adapter = dataclasses.replace(base, adapter=PromptTuning(length=3))
    assert max_text_length(base) == base.config.max_length
    assert max_text_length(adapter) == base.config.max_length - 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("init_from=null", "LoRA, which trains a few parameters of a pretrained model, but init"),
        ("train.tuning.reinit_layers=1", "reinit_layers is 1, but train.tuning.method LoRA"),
        (
            'train.tuning.weight_anchor={"type": "EWC", "fisher": "f"}',
            "weight_anchor is EWC, but train.tuning.method LoRA trains added parameters",
        ),
    ],
)
def test_settings_that_contradict_the_method_are_refused(lora_run, change, message):
    with pytest.raises(ConfigError, match=message):
        override(lora_run[0], [change])


def test_recipes_and_the_command_have_the_same_methods():
    assert set(get_args(MethodName)) == set(METHODS)
