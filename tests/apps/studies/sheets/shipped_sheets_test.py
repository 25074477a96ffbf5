"""Builds the shipped sheets on a small corpus, and runs one of them.

Covers configs/sheets/, configs/pretrain/comparison.py and
bert_jax/apps/studies/sheets/evaluations.py.
"""

import json
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.studies.sheets.budgets import updates_of
from bert_jax.apps.studies.sheets.run import SheetStudy, load_sheet
from bert_jax.apps.studies.sheets.sheet import Pretrain
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.recipes import call_recipe, load_recipe, shipped_recipes
from bert_jax.config.train import WarmupStableDecay
from bert_jax.errors import ConfigError

TUNING = ["model=exported", "task=glue/rte"]
RETRIEVAL = [
    "model=m",
    "pairs=p.jsonl",
    "texts=a,b",
    "relevance=j.jsonl",
    'collections=["squad:s.json", "beir:folder"]',
]
TASK = ["train=t.tsv", "dev=d.tsv", "text=text", "label=label"]


@pytest.fixture(name="corpus", scope="module")
def _corpus(tmp_path_factory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def arguments(name: str, corpus: Path) -> list[str]:
    if name == "data":
        text = corpus.parent / "text"
        for number in range(8):
            (text / f"more-{number}.txt").write_text("One sentence. And one more.\n")
        return [f"text={text}/*.txt", f"tokenizer={corpus}", f"heldout={corpus}"]
    if name == "retrieval":
        return RETRIEVAL
    found = [f"corpus={corpus}", *(() if name == "tuning" else (f"heldout={corpus}",))]
    return found + {"growth": ["blimp=*.jsonl"], "textbook": TASK, "tuning": TUNING}.get(name, [])


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith("sheets/")])
def test_models_of_shipped_sheets_can_be_trained(name, corpus, tmp_path):
    sheet = load_sheet(name, arguments(name.removeprefix("sheets/"), corpus))
    study = SheetStudy(sheet, tmp_path)
    for model_name, model in sheet.models.items():
        if isinstance(model, Pretrain):
            budget = model.budget or sheet.budget
            assert budget is not None
            filled = {key: str(value) for key, value in model.arguments.items()}
            filled["corpus"] = str(corpus)  # a sheet may prepare its own
            spent = updates_of(
                Pretrain(recipe=model.recipe, arguments=filled, overrides=model.overrides),
                budget,
                model_name,
            )
            assert spent.amount(budget.unit) == pytest.approx(budget.amount, rel=0.01)
    assert study.settings["title"] == sheet.title


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ("one", [(1000, 16, 20, None, False)]),
        (
            "masking_rates",
            [(770, 16, 19, 0.3, False), (200, 16, 10, 0.15, False), (30, 16, 3, 0.05, False)],
        ),
        (
            "batch_sizes",  # 133 * (4 + 8 + 12) sequences are a fifth of 16,000
            [(133, 4), (133, 8), (133, 12), (800, 16)],
        ),
        ("causal_lm_first", [(500, 16, 20, None, True), (500, 16, 20, None, False)]),
    ],
)
def test_phases_of_the_recipe(phases, expected, corpus):
    arguments = [f"corpus={corpus}", "objective=mlm", "steps=1000", f"phases={phases}"]
    built = call_recipe(load_recipe("comparison"), arguments, "comparison").train
    found = [
        (
            *(phase.steps, phase.batch_size, phase.max_predictions_per_seq),
            *(phase.mlm_probability, phase.causal_lm),
        )
        for phase in built.phases
    ]
    assert found == [(*each, 20, None, False)[:5] if len(each) == 2 else each for each in expected]
    assert isinstance(built.schedule, WarmupStableDecay)
    assert built.schedule.decay_steps == built.steps * 3 // 10


def test_rows_of_recipes_have_the_columns_that_can_be_compared(corpus):
    sheet = load_sheet("sheets/recipes", [*arguments("recipes", corpus), "blimp=*.jsonl"])
    columns = {system.name: list(system.evaluations) for system in sheet.systems}
    assert columns.pop("masked and causal (GPT-BERT)") == ["held-out loss"]
    assert columns.pop("masked diffusion") == ["BLiMP"]
    assert set(map(tuple, columns.values())) == {("held-out loss", "BLiMP")}


SHEET = """
from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet


def get_config(*, corpus: str, heldout: str, pairs: str, seeds: tuple[int, ...]) -> Sheet:
    models = {
        name: Pretrain(
            recipe="comparison",
            arguments={
                "corpus": corpus, "heldout": heldout, "objective": objective, "num_layers": 1,
                "hidden_size": 32, "seq_length": 32,
            },
            overrides=("train.evaluation.num_examples=64",),
        )
        for name, objective in (("mlm", "mlm"), ("left to right", "left_to_right"))
    }
    measured = measures(blimp=pairs)
    return Sheet(
        title="Small", question="", columns=tuple(measured), models=models, reference="mlm",
        systems=systems_of(models, measured, without_loss=["left to right"]),
        budget=Budget(unit="updates", amount=6), seeds=seeds, curves=("mlm_loss",),
    )
"""


@pytest.mark.slow
def test_real_sheet_compiles_once_for_all_seeds(corpus, tmp_path, capsys, monkeypatch):
    # All programs are in the cache, not only those that happen to take half a second.
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    (tmp_path / "small.py").write_text(SHEET)
    pairs = [
        {"sentence_good": f"One sentence and {n}.", "sentence_bad": f"Sentence one and {n}."}
        for n in range(8)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    output, heldout = tmp_path / "output", str(tmp_path / "heldout")
    text = tmp_path / "heldout.txt"
    text.write_text("".join(f"A sentence, held out. It is number {n}.\n\n" for n in range(200)))
    prepare = ["prepare", "--files", str(text), "--tokenizer", str(corpus / "vocabulary")]
    assert main([*prepare, "--output", heldout]) in (0, None)

    def run(seeds: list[int]) -> set[str]:
        given = [f"corpus={corpus}", f"heldout={heldout}", f"pairs={file}", f"seeds={seeds}"]
        command = ["sheet", str(tmp_path / "small.py"), "--output", str(output), "--arg", *given]
        assert main(command) == 0
        return {each.name for each in (output / "compiled").iterdir() if "cache" in each.name}

    compiled = run([0])
    assert compiled
    assert run([0, 1]) == compiled
    results = json.loads((output / "results.json").read_text())
    blimp = results["systems"]["left to right"]["results"]["BLiMP"]
    assert set(blimp["values"]) == {"0", "1"}
    assert blimp["comparison"]["over"] == "examples"
    assert set(results["systems"]["left to right"]["results"]) == {"BLiMP"}
    curve = results["curves"]["mlm_loss"]["mlm"]
    assert [step for step, _ in curve] == sorted({step for step, _ in curve})
    assert "mean of 2 seeds" in capsys.readouterr().out


def test_data_needs_all_of_the_text_as_its_last_part(corpus):
    decreasing = "expected numbers that decrease to 1"
    for parts, message in (
        ("[8,2]", decreasing),
        ("[]", decreasing),
        ("[1,0]", decreasing),
        ("[4,4,1]", decreasing),
        ("[99,1]", "at least 99"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_sheet("data", [*arguments("data", corpus), f"parts={parts}"])
