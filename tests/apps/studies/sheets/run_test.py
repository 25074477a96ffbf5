"""Runs sheets with commands that take no time: order, seeds, failures, kills, bad sheets."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.apps.studies.jobs import JobRunner, JobShard
from bert_jax.apps.studies.sheets.budgets import updates_of
from bert_jax.apps.studies.sheets.run import SheetStudy, load_sheet
from bert_jax.apps.studies.sheets.sheet import Budget, BudgetUnit, Pretrain, Sheet
from bert_jax.errors import ConfigError, UserError

ROOT = Path(__file__).parents[4]

RECIPE = """
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.models.bert.config import BertConfig


def get_config(*, steps: int, seed: int, layers: int = 1, batch_size: int = 8) -> Experiment:
    model = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=64,
    )
    phase = Phase(steps=steps, seq_length=16, batch_size=batch_size, max_predictions_per_seq=3)
    return Experiment(
        name="toy",
        seed=seed,
        objective=Pretraining(model=model, mask_token_id=3),
        data=PretrainingData(corpus="corpus"),
        train=TrainConfig(
            phases=(phase,), schedule=WarmupLinear(peak_learning_rate=1e-3, warmup_steps=0)
        ),
    )
"""

SHEET = """
from bert_jax.apps.studies.sheets.sheet import *

TWICE = Budget(unit="FLOPs", amount=4e9)


def get_config(*, recipe: str, seeds: tuple[int, ...] = (0, 1)) -> Sheet:
    score = Evaluation(
        command=("score", "{model}", "{folder}/score.json", "--seed", "{seed}"),
        value=Result(file="score.json", keys=("all", 0)),
        outcomes=Result(file="score.json", keys=("each",)),
    )
    loss = Evaluation(value=Result(file="evaluation.json", keys=("mlm_loss",)))
    both = {"loss": loss, "score": score}
    return Sheet(
        title="Toy",
        question="Which is better?",
        columns=(Column(name="loss", lower_is_better=True), Column(name="score", percent=True)),
        models={
            "small": Pretrain(recipe=recipe),
            "large": Pretrain(recipe=recipe, arguments={"layers": 2}, budget=TWICE),
            "early": Part(of="large", path="checkpoints/1"),
            "vectors": Make(command=("vectors", "{folder}/v.txt", "{setup}/words/w"), path="v.txt"),
            "existing": "somewhere",
        },
        systems=(
            System(name="small", model="small", evaluations=both),
            System(name="large", model="large", evaluations=both),
            System(name="early", model="early", evaluations={"score": score}),
            System(name="vectors", model="vectors", evaluations={"score": score}),
            System(name="existing", model="existing", evaluations={"score": score}),
        ),
        reference="small",
        budget=Budget(unit="FLOPs", amount=2e9),
        seeds=seeds,
        setup={"words": ("words", "{folder}/w")},
        curves=("mlm_loss",),
        forecast=Forecast(column="loss", fitted=("small", "large"), predicted=("large",)),
    )
"""

# Replaces `bert-jax`: writes what a verb would write, as a function of its arguments.
CHILD = """
import hashlib, json, sys, time
from pathlib import Path

verb, *arguments = sys.argv[1:]
journal = Path(sys.argv[0]).parent / "journal.txt"
with journal.open("a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")

def number(*parts):
    return int(hashlib.sha256("/".join(parts).encode()).hexdigest()[:8], 16) / 2**32

time.sleep(0.05)
if verb == "pretrain":
    run = Path(arguments[arguments.index("--run") + 1])
    key = " ".join(arguments[arguments.index("--arg"):])
    if (journal.parent / "fail").exists() and "layers=2" in key:
        sys.exit("error: not today")
    (run / "checkpoints/1").mkdir(parents=True, exist_ok=True)
    loss = 2 + number(key)
    with (run / "metrics.jsonl").open("w") as stream:
        for step in (1, 2):
            row = {"split": "evaluation", "step": step, "mlm_loss": loss + 1 / step}
            stream.write(json.dumps(row) + "\\n")
    (run / "evaluation.json").write_text(json.dumps({"mlm_loss": loss}))
elif verb == "score":
    model, output = arguments[:2]
    each = [round(number(model, str(i), *arguments[2:])) for i in range(20)]
    Path(output).write_text(json.dumps({"all": [sum(each) / 20], "each": each}))
else:
    if verb == "words" and (journal.parent / "fail setup").exists():
        sys.exit("error: no words")
    Path(arguments[0]).write_text("1")
"""


@pytest.fixture(name="toy")
def _toy(tmp_path) -> Path:
    (tmp_path / "recipe.py").write_text(RECIPE)
    (tmp_path / "sheet.py").write_text(SHEET)
    (tmp_path / "child.py").write_text(CHILD)
    return tmp_path


def toy_sheet(toy: Path, **arguments: object) -> Sheet:
    given = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
    return load_sheet(str(toy / "sheet.py"), [f"recipe={toy / 'recipe.py'}", *given])


def run(toy: Path, sheet: Sheet, shard: JobShard | None = None) -> dict[str, str]:
    """Runs a sheet in `toy`/output and, without a shard, writes its page; returns the failures."""
    study, output = SheetStudy(sheet, toy / "output"), toy / "output"
    with JobRunner(output, (sys.executable, str(toy / "child.py")), shard=shard) as runner:
        runner.write_or_check_settings(study.settings)
        failed = study.run(runner)
        if shard is None:
            study.write_table(study.results(failed))
    return failed


def journal(toy: Path) -> list[str]:
    return (toy / "journal.txt").read_text().splitlines()


def pages(toy: Path) -> list[str]:
    return [(toy / "output" / name).read_text() for name in ("table.md", "table.html")]


def test_every_command_runs_once_after_those_that_it_needs(toy):
    assert run(toy, toy_sheet(toy)) == {}
    lines = journal(toy)
    assert lines[0].startswith("words")
    # Two models, four systems of two seeds with scores, and vectors that do not depend on a seed.
    counts = {verb: sum(line.startswith(verb) for line in lines) for verb in ("pretrain", "score")}
    assert counts == {"pretrain": 4, "score": 10}
    assert sum(line.startswith("vectors") for line in lines) == 1
    assert run(toy, toy_sheet(toy)) == {}
    assert journal(toy) == lines
    for index, line in enumerate(lines):
        if line.startswith("score") and "/models/large/seed-1" in line:
            trained = [i for i, each in enumerate(lines) if "/models/large/seed-1 " in each]
            assert trained[0] < index


def test_failed_setup_ends_the_sheet_with_its_reason(toy):
    (toy / "fail setup").touch()
    with pytest.raises(UserError, match=r"setup/words, which all models .* failed: no words"):
        run(toy, toy_sheet(toy))
    assert len(journal(toy)) == 1
    (toy / "fail setup").unlink()
    assert run(toy, toy_sheet(toy)) == {}


def test_seeds_may_be_added(toy):
    run(toy, toy_sheet(toy, seeds=[0]))
    before = journal(toy)
    run(toy, toy_sheet(toy, seeds=[0, 1]))
    added = journal(toy)[len(before) :]
    assert len(added) == 2 + 5
    assert all("seed=1" in line or "--seed 1" in line for line in added)


def test_page_has_numbers_tests_curves_and_commands(toy):
    run(toy, toy_sheet(toy, seeds=[0, 1, 2]))
    markdown, page = pages(toy)
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows[2:]] == [
        *("small", "large", "early", "vectors", "existing"),
    ]
    scores = [
        json.loads((toy / f"output/systems/small/score/seed-{seed}/score.json").read_text())
        for seed in (0, 1, 2)
    ]
    mean = sum(score["all"][0] for score in scores) / 3
    assert f"{100 * mean:.1f} (" in rows[2]
    assert "p " in rows[3] and "p " not in rows[2]
    assert "bert-jax score" in page and "--seed 2" in page
    assert "during training, mean over seeds" in page
    assert "Forecast for large" in page
    assert "<script" not in page and "https:" not in page


def test_failed_training_skips_its_evaluations_only(toy):
    (toy / "fail").touch()
    failed = run(toy, toy_sheet(toy))
    assert failed["models/large/seed-0"].startswith("not today")
    assert failed["systems/early/score/seed-1"] == "models/large/seed-1 has failed"
    assert "models/large/seed-0 failed: not today" in pages(toy)[0]
    assert "systems/small/score/seed-0" not in failed
    (toy / "fail").unlink()
    assert run(toy, toy_sheet(toy)) == {}


def test_shards_give_the_same_page(toy):
    run(toy, toy_sheet(toy))
    expected = pages(toy)
    (toy / "output").rename(toy / "whole")
    for index in (1, 0):
        assert run(toy, toy_sheet(toy), JobShard(index=index, count=2)) == {}
    before = len(journal(toy))
    run(toy, toy_sheet(toy))
    assert len(journal(toy)) == before
    assert pages(toy) == expected


DRIVER = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import run_test
toy = Path(sys.argv[1])
run_test.run(toy, run_test.toy_sheet(toy))
"""


def test_randomly_killed_sheet_gives_the_same_page(toy):
    run(toy, toy_sheet(toy))
    expected = pages(toy)
    (toy / "output").rename(toy / "whole")
    choice = random.Random(0)
    driver = DRIVER.format(folder=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", driver, str(toy)], env=environment, start_new_session=True
        )
        deadline = time.monotonic() + 60
        target = len(journal(toy)) + choice.randint(2, 4)
        while len(journal(toy)) < target and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert run(toy, toy_sheet(toy)) == {}
    assert pages(toy) == expected


def test_budgets_are_equal_within_one_percent(toy):
    recipe = str(toy / "recipe.py")
    budgets: tuple[tuple[BudgetUnit, float], ...]
    budgets = (("updates", 250), ("tokens", 1e6), ("FLOPs", 1e10))
    for unit, amount in budgets:
        budget = Budget(unit=unit, amount=amount)
        for arguments in ({"layers": 1}, {"layers": 3}, {"batch_size": 32}):
            spent = updates_of(Pretrain(recipe=recipe, arguments=arguments), budget, "m")
            assert spent.amount(unit) == pytest.approx(amount, rel=0.01)
            assert spent.tokens == spent.updates * arguments.get("batch_size", 8) * 16


def test_budget_that_cannot_be_equal_is_an_error(toy):
    model = Pretrain(recipe=str(toy / "recipe.py"), arguments={"batch_size": 64})
    with pytest.raises(
        UserError, match=r"'m' cannot be trained with an equal budget: 1 updates are 1024 tokens"
    ):
        updates_of(model, Budget(unit="tokens", amount=1500), "m")


def test_unknown_argument_of_a_recipe_is_named(toy):
    model = Pretrain(recipe=str(toy / "recipe.py"), arguments={"layer": 1})
    with pytest.raises(ConfigError, match="layers"):
        updates_of(model, Budget(unit="updates", amount=5), "m")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('reference="small"', 'reference="smal"', "reference 'smal'.*'small'"),
        ('model="early"', 'model="earlier"', "the system 'early': model 'earlier'"),
        ('of="large"', 'of="existing"', "expected the name of a model that is trained or made"),
        ("seeds=seeds", "seeds=(1, 1)", "seeds is"),
        ('budget=Budget(unit="FLOPs", amount=2e9),', "", "'small' has no budget"),
        (
            'budget=Budget(unit="FLOPs", amount=2e9)',
            'budget=Budget(unit="FLOPs", amount=0)',
            "amount",
        ),
        ('{"layers": 2}', '{"steps": 2}', "steps, which the budget"),
        ('name="large", model="large"', 'name="small", model="large"', "'small' twice"),
        ('"small": Pretrain', '"../small": Pretrain', "'../small'"),
        ('fitted=("small", "large")', 'fitted=("small",)', "at least two"),
        ('model="existing", evaluations={"score": score}', "model=None, evaluations=both", "None"),
        ("return Sheet(", "return dict(", "expected a Sheet"),
    ],
)
def test_bad_sheets_are_explained(toy, old, new, message):
    text = (toy / "sheet.py").read_text()
    assert old in text
    (toy / "sheet.py").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        toy_sheet(toy)


def test_result_that_is_missing_names_what_the_file_has(toy):
    text = (toy / "sheet.py").read_text()
    (toy / "sheet.py").write_text(text.replace('("mlm_loss",)))', '("loss",)))'))
    with pytest.raises(UserError, match=r"evaluation.json has no loss.*it has mlm_loss"):
        run(toy, toy_sheet(toy))


def test_other_budget_in_the_same_folder_is_an_error(toy):
    run(toy, toy_sheet(toy, seeds=[0]))
    text = (toy / "sheet.py").read_text()
    (toy / "sheet.py").write_text(text.replace("amount=2e9", "amount=3e9"))
    with pytest.raises(UserError, match="other settings"):
        run(toy, toy_sheet(toy))
