"""Runs `bert-jax plan` without data, on one or more slices, and with wrong arguments.

Covers bert_jax/apps/plan/cli.py, bert_jax/apps/plan/inputs.py, and bert_jax/apps/plan/table.py.
"""

import csv
import json
import re
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.plan.inputs import write_placeholder_vocab
from bert_jax.apps.testing.models import small_model
from bert_jax.export.export import export
from bert_jax.text.load_tokenizer import load_tokenizer

RECIPE = "configs/pretrain/bert.py"
TINY = [RECIPE, "--arg", "size=tiny"]


@pytest.fixture(autouse=True)
def in_repository_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])


def test_plan_without_corpus(capsys):
    assert main(["plan", *TINY, "--slice", "v5e-16"]) == 0
    out = capsys.readouterr().out
    assert "corpus not found: assuming a vocabulary size of 30,522" in out
    assert "bert-tiny on v5e-16: 16 chips on 4 hosts, 16 devices of 15.75 GiB" in out
    assert "4,433,468 parameters" in out
    for line in ("optimizer state", "gradient communication, ms", "USD, spot", "result"):
        assert line in out
    assert "list prices of 20" in out and "(--mfu)" in out
    assert len(out.splitlines()) <= 50 and max(map(len, out.splitlines())) <= 100


def test_placeholder_for_remote_corpora_and_vocab_size(capsys):
    arguments = [RECIPE, "--arg", "size=tiny", "corpus=@data/wiki", "heldout=@data/held"]
    assert main(["plan", *arguments, "--vocab-size", "8192", "--slice", "v6e-16", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["placeholder_corpora"] == ["corpus", "heldout"]
    # 30522 - 8192 fewer tokens, each with a vector of 128 and a bias.
    assert plan["slices"][0]["parameters"] == 4_433_468 - (30522 - 8192) * 129


def test_missing_local_corpus_is_an_error(capsys):
    arguments = [RECIPE, "--arg", "size=tiny", "corpus=no/such/folder", "--slice", "v6e-16"]
    assert main(["plan", *arguments]) == 1
    assert "no/such/folder" in capsys.readouterr().err


def test_compare_slices_with_reason_for_impossible_ones(capsys):
    arguments = [RECIPE, "--arg", "size=tiny", "batch_size=16", "--slice", "all16", "v5e-4"]
    assert main(["plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2:] if line}
    assert rows["v5e-16"].split()[1] == "16" and " yes " in rows["v5e-16"]
    assert "no list price" in rows["tpu7x-32:"] or "expected a multiple" in rows["tpu7x-32:"]
    assert "expected a multiple of 32" in rows["v3-32:"]
    assert "v5e-4" in rows


def test_json_output_units(capsys):
    assert main(["plan", *TINY, "--slice", "v4-32", "tpu7x-32", "--mfu", "0.5", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    v4, v7 = plan["slices"]
    assert (v4["slice"], v4["chips"], v4["hosts"], v4["devices"]) == ("v4-32", 16, 4, 16)
    assert v7["usd"]["spot"] is None and len(v7["usd"]["on_demand"]) == 2
    assert v4["mesh"] == {"data": 16, "fsdp": 1, "tensor": 1}
    short = v4["phases"][0]
    assert short["per_device_batch_size"] == 16
    assert short["memory_bytes"]["parameters"] == 4 * v4["parameters"]
    step = short["step"]
    assert step["compute_seconds"] == pytest.approx(step["model_flops"] / (0.5 * 16 * 275e12))
    assert v4["hours"][0] < v4["hours"][1]


def test_run_that_does_not_fit_gets_three_suggestions(capsys):
    arguments = [RECIPE, "--arg", "size=large", "batch_size=2560", "--slice", "v5e-16"]
    # With few layers the plan takes a sixth of the time.
    assert main(["plan", *arguments, "--set", "objective.model.num_hidden_layers=4"]) == 1
    out = capsys.readouterr().out
    assert " over" in out and "Changes that make it fit, the cheapest first:" in out
    assert [
        line[:4] for line in out.splitlines() if line.startswith("  ") and line[3:4] == "."
    ] == [
        "  1.",
        "  2.",
        "  3.",
    ]
    assert "--set train.phases.1.gradient_accumulation_steps=" in out and "\n     --slice " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TINY, "--slice", "v5e-15"], "slice 'v5e-15' is not known; the nearest is 'v5e-16'"),
        ([*TINY, "batch_size=100", "--slice", "v5e-16"], "batch_size is 100.* is 96 or 112"),
        (
            [*TINY, "--slice", "v5e-16", "--mfu", "40"],
            "--mfu 40.0: expected a fraction of the peak",
        ),
        ([*TINY, "--slice", "v5e-16", "--vocab-size", "5"], "--vocab-size 5: expected more than 5"),
        ([*TINY, "--slice", ""], "slice '' is not known; the nearest is 'v"),
        ([*TINY, "--slice", "v5e-16", "--largest-batch"], "--largest-batch needs --compile"),
        ([*TINY, "steps=a", "--slice", "v5e-16"], "--arg steps"),
        (["no.py", "--slice", "v5e-16"], "no.py: no such recipe"),
    ],
)
def test_invalid_arguments_give_one_error_line(arguments, message, capsys):
    assert main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err)


def test_placeholder_vocab_loads_as_tokenizer(tmp_path):
    write_placeholder_vocab(tmp_path / "vocabulary", 1000)
    vocabulary = load_tokenizer(tmp_path / "vocabulary")
    assert (vocabulary.vocab_size, vocabulary.mask_id) == (1000, 4)


FINE_TUNING = """
from bert_jax.config.labeled_data import Columns
from bert_jax.config.experiment import Experiment


def get_config(*, model: str, folder: str, multi_task: bool = False) -> Experiment:
    from bert_jax.train.presets import fine_tuning_experiment, multi_task_experiment

    task = Columns(train=f"{folder}/train.csv", dev=f"{folder}/dev.csv", text="text", label="label")
    if multi_task:
        tasks = {"one": task, "two": task}
        return multi_task_experiment(tasks, model, batch_size=16, max_length=20)
    return fine_tuning_experiment(task, model, epochs=2, batch_size=16, max_length=20)
"""


@pytest.fixture
def labeled_recipe(tmp_path) -> list[str]:
    """Returns recipe arguments for a task of 40 examples of 5 tokens and 24 of 20."""
    export(small_model(tmp_path / "vocabulary"), tmp_path / "model")
    (tmp_path / "recipe.py").write_text(FINE_TUNING)
    for split in ("train", "dev"):
        with (tmp_path / f"{split}.csv").open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(("text", "label"))
            rows.writerows((" ".join(["sea"] * 3), "no") for _ in range(40))
            rows.writerows((" ".join(["sea"] * 18), "yes") for _ in range(24))
    return [str(tmp_path / "recipe.py"), "--arg", f"model={tmp_path}/model", f"folder={tmp_path}"]


def test_fine_tuning_plan_uses_example_lengths(labeled_recipe, capsys):
    arguments = ["--set", "data.bucket_lengths=[16]", "--slice", "v5e-4", "--json"]
    assert main(["plan", *labeled_recipe, *arguments]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["slices"]
    (phase,) = plan["phases"]
    # 40 examples make two batches of length 16; the other 8 join the batches of longer ones.
    assert phase["steps"] == 8
    assert phase["batch_length_fractions"] == {"16": 0.5, "20": 0.5}
    assert phase["step"]["tokens"] == 16 * 18
    assert phase["per_device_batch_size"] == 4


def test_plan_shows_memory_and_flops_of_a_method(labeled_recipe, capsys):
    positions = "objective.model.positions.max_position_embeddings=32"
    plans = []
    for method in ("FullTuning", "LoRA", "PromptTuning", "PrefixTuning"):
        fields = '"rank": 4' if method == "LoRA" else '"length": 5'
        fields = "" if method == "FullTuning" else f", {fields}"
        override = f'train.tuning.method={{"type": "{method}"{fields}}}'
        arguments = ["--set", positions, override, "--slice", "v5e-4", "--json"]
        assert main(["plan", *labeled_recipe, *arguments]) == 0
        plans.append(json.loads(capsys.readouterr().out)["slices"][0]["phases"][0])
    full, lora, prompt, prefix = (phase["memory_bytes"] for phase in plans)
    assert lora["optimizer"] < 0.2 * full["optimizer"]
    # The inputs of frozen kernels are not saved.
    assert lora["activations"] < full["activations"] and lora["activations"] < prefix["activations"]
    # The longest sequences have 20 tokens; scores grow with the square of the length.
    assert 25 / 20 < prompt["activations"] / full["activations"] < (25 / 20) ** 2
    full, lora, prompt, prefix = (phase["step"]["model_flops"] for phase in plans)
    assert lora < 0.75 * full and lora < prefix < prompt


def test_multi_task_plan(labeled_recipe, capsys):
    assert main(["plan", *labeled_recipe, "multi_task=true", "--slice", "v5e-16", "v6e-4"]) == 0
    assert not re.search(
        "^v(5e-16|6e-4):", capsys.readouterr().out, re.M
    )  # a line with the reason why there is no plan


def test_cached_features_have_no_model_flops_per_step(labeled_recipe, capsys):
    frozen = [
        'train.tuning={"frozen": ["encoder/**"], "features": "cached"}',
    ]
    assert main(["plan", *labeled_recipe, "--set", *frozen, "--slice", "v5e-4", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["slices"]
    step = plan["phases"][0]["step"]
    assert step["model_flops"] == 0 and step["gradient_comm_seconds"] > 0
    assert plan["phases"][0]["memory_bytes"]["gradients"] < plan["parameters"]
