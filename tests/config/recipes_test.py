"""Covers bert_jax/config/recipes.py, cli/shipped/recipes.py and cli/shipped/tpu.py."""

import ast
import subprocess
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.apps.quickstart.stages import _pretrain
from bert_jax.apps.testing.models import small_model
from bert_jax.cli import tpu as tpu_verb
from bert_jax.config import recipes
from bert_jax.config.data import Masking, PretrainingData
from bert_jax.config.train import HeldOutEval, WarmupLinear
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.mpnet.config import MPNetConfig

ROOT = Path(__file__).parents[2]
SMALL_CORPUS = ROOT / "configs/pretrain/small_corpus.py"


@pytest.fixture(autouse=True)
def launcher_name(monkeypatch):
    """Keeps the name of the launcher in its messages, which `bert-jax tpu` would change."""
    monkeypatch.setenv("BERT_TPU_COMMAND_NAME", "tpu/tpuctl")


@pytest.mark.parametrize(
    "name", ["small_corpus", "pretrain/small_corpus", "configs/pretrain/small_corpus.py"]
)
def test_shipped_recipes_are_found_by_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipes.find_recipe(name) == SMALL_CORPUS


def test_a_file_takes_precedence_over_a_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").write_text("")
    assert recipes.find_recipe("bert") == Path("bert")


def test_masked_lm_recipe_has_the_published_networks():
    recipe = str(ROOT / "configs/pretrain/masked_lm.py")
    mpnet, _ = planned_experiment(recipe, ["model=mpnet"], [], 30527)
    assert mpnet.objective.model == MPNetConfig()
    deberta, _ = planned_experiment(recipe, ["size=small"], [], 128_100)
    assert deberta.objective.model == DebertaV2Config.from_size("small")
    recipe_of_mpnet = str(ROOT / "configs/pretrain/mpnet.py")
    permuted, _ = planned_experiment(recipe_of_mpnet, ["heldout=data/heldout"], [], 30527)
    assert permuted.objective.model == MPNetConfig()
    assert isinstance(permuted.train.evaluation, HeldOutEval)
    assert isinstance(permuted.data, PretrainingData)
    assert permuted.train.evaluation.masking == permuted.data.masking
    assert permuted.train.schedule == WarmupLinear(peak_learning_rate=5e-4, warmup_steps=10_000)
    with pytest.raises(ConfigError, match="size is 'small', but MPNet was published as 'base'"):
        planned_experiment(recipe, ["model=mpnet", "size=small"], [], 30527)
    eurobert, _ = planned_experiment(recipe, ["model=eurobert", "size=610m"], [], 128_256)
    assert eurobert.objective.model == EuroBertConfig.from_size("610m")
    jina, _ = planned_experiment(recipe, ["model=jina_embeddings_v3", "size=large"], [], 250_002)
    assert jina.objective.model == JinaEmbeddingsV3Config()
    with pytest.raises(ConfigError, match="size is 'base', but EuroBERT was published as '210m'"):
        planned_experiment(recipe, ["model=eurobert"], [], 128_256)


def test_long_sequences_recipe_has_the_published_networks(tmp_path):
    recipe = str(ROOT / "configs/pretrain/long_sequences.py")
    longformer, _ = planned_experiment(recipe, [], [], 50265)
    assert longformer.objective.model == LongformerConfig()
    assert longformer.train.phases[0].sizes == {"B": 64, "L": 4096, "P": 614}
    bigbird, _ = planned_experiment(recipe, ["model=bigbird", "steps=50000"], [], 50358)
    assert bigbird.objective.model == BigBirdConfig()
    assert isinstance(bigbird.data, PretrainingData)
    assert bigbird.data.masking == Masking(whole_word_mask=True)
    assert isinstance(bigbird.train.schedule, WarmupLinear)
    assert bigbird.train.schedule.warmup_steps == 5_000
    export(small_model(tmp_path / "vocabulary"), tmp_path / "bert")
    arguments = [f"init_from={tmp_path / 'bert'}"]
    with pytest.raises(ConfigError, match="a model of the family BERT, but model is longformer"):
        planned_experiment(recipe, arguments, [], 50265)


def test_names_of_shipped_recipes_are_unique():
    names = [name.rpartition("/")[2] for name in recipes.shipped_recipes()]
    assert len(names) == len(set(names)) >= 8


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("smal_corpus", "did you mean 'small_corpus'"),
        ("bret", "did you mean 'bert' or 'bart' or 'albert'"),
        ("configs/pretrain/bret.py", "did you mean 'bert' or 'bart' or 'albert'"),
        ("bert.py", "did you mean 'bert' or"),  # a file that is missing, not the shipped recipe
        ("zzzz", "no such recipe; expected the path of a Python file or a name"),
    ],
)
def test_unknown_recipe_names_the_nearest_ones(name, nearest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{name}: no such recipe.*`bert-jax recipes`") as error:
        recipes.find_recipe(name)
    assert nearest in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("empty.py", "", "no function get_config"),
        ("recipe.txt", "def get_config(): ...", "expected a name that ends in .py"),
    ],
)
def test_a_file_that_is_not_a_recipe_is_refused(tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=message):
        recipes.load_recipe(tmp_path / file)


def test_recipe_arguments_are_typed_and_checked(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "def get_config(*, steps: int, size: str = 'tiny'):\n    return (steps, size)\n"
    )
    get_config = recipes.load_recipe(recipe)
    assert recipes.call_recipe(get_config, ["steps=3", "size=8"], "recipe.py") == (3, "8")
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        recipes.call_recipe(get_config, ["step=3"], "recipe.py")
    with pytest.raises(ConfigError, match="--arg steps is given twice, as '3' and '4'"):
        recipes.call_recipe(get_config, ["steps=3", "steps=4"], "recipe.py")
    with pytest.raises(ConfigError, match="needs --arg steps"):
        recipes.call_recipe(get_config, [], "recipe.py")
    with pytest.raises(ConfigError, match="expected int"):
        recipes.call_recipe(get_config, ["steps=many"], "recipe.py")


def test_recipes_lists_names_first_sentences_and_arguments(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = (ast.get_docstring(ast.parse(SMALL_CORPUS.read_text())) or "").splitlines()[0]
    index = lines.index(f"pretrain/small_corpus: {summary}")
    required, *optional = lines[index + 1].removeprefix("  --arg ").split()
    assert required == "corpus=STR"
    assert {"[heldout=null]", "[size=tiny]", "[seed=0]"} <= set(optional)
    assert len(lines) == 2 * len(recipes.shipped_recipes())


def test_recipes_prints_the_source_of_one(capsys):
    assert main(["recipes", "small_corpus"]) == 0
    assert capsys.readouterr().out == SMALL_CORPUS.read_text()


def test_tpu_runs_launcher_commands(capsys):
    assert main(["tpu", "prices", "--hours", "2"]) == 0
    assert "| v6e-16 | 16 |" in capsys.readouterr().out


def test_tpu_passes_flags_and_the_job_to_the_launcher(monkeypatch):
    calls = []
    monkeypatch.setattr("tpu.cli.main", lambda argv: calls.append(argv) or 75)
    words = ["launch", "--dry-run", "--help", "--", "pretrain", "bert", "--arg", "a=b"]
    assert main(["tpu", *words]) == 75
    assert calls == [words]


def test_tpu_runs_launch_scripts_with_this_interpreter(monkeypatch, capfd):
    calls = []

    def run(argv, env):
        calls.append((argv, env["PATH"]))
        return subprocess.CompletedProcess(argv, 3)

    monkeypatch.setattr(tpu_verb.subprocess, "run", run)
    assert main(["tpu", "smoke_16", "--dry-run"]) == 3
    ((argv, path),) = calls
    assert argv == [str(ROOT / "tpu/smoke_16.sh"), "--dry-run"]
    assert path.split(":")[0] == str(Path(tpu_verb.sys.executable).parent)


def test_tpu_help_lists_the_launch_scripts(capsys):
    with pytest.raises(SystemExit):
        main(["tpu", "--help"])
    shown = capsys.readouterr().out
    assert all(f"  {file.stem}\n" in shown for file in (ROOT / "tpu").glob("*.sh"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def get_config(:\n", "line 1: the recipe raised SyntaxError"),
        (
            "x = 1\nraise ValueError('no')\n",
            "line 2: the recipe raised ValueError: no",
        ),
        ("import nosuchmodule\n", "line 1: the recipe raised ModuleNotFoundError"),
        ("raise SystemExit(0)\n", "line 1: the recipe raised SystemExit"),
        ("def get_config():\n    return 1 / 0\n", "line 2: the recipe raised ZeroDivisionError"),
        ("def get_config(size: Nope = 1):\n    pass\n", "the recipe raised NameError"),
        (
            "def get_config():\n    pass\n",
            "get_config returned NoneType; expected an Experiment (is a `return` missing?)",
        ),
        ("\0", "the recipe raised SyntaxError"),
    ],
)
def test_error_in_a_recipe_names_its_line(tmp_path, content, message, capsys):
    file = tmp_path / "mine.py"
    file.write_text(content)
    assert main(["show-config", str(file)]) == 2
    assert "mine.py" in (error := capsys.readouterr().err) and message in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def get_config(:\n", "line 1: the recipe raised SyntaxError"),
        ("x = 1\nraise ValueError('no')\n", "line 2: the recipe raised ValueError: no"),
        ("def get_config():\n    return 1 / 0\n", "line 2: the recipe raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("path", ["mine.py", "./folder/../mine.py"])
def test_error_in_a_recipe_with_a_relative_path_names_its_line(
    tmp_path, monkeypatch, capsys, path, content, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine.py").write_text(content)
    assert main(["show-config", path]) == 2
    assert f"mine.py, {message}" in capsys.readouterr().err


def test_plan_and_quickstart_refuse_a_recipe_without_an_experiment(tmp_path):
    file = str(tmp_path / "mine.py")
    arguments = "corpus: str = '1', heldout: str = '2', seed: int = 3"
    Path(file).write_text(f"def get_config({arguments}):\n    return {{}}\n")
    message = "mine.py: get_config returned dict; expected an Experiment"
    with pytest.raises(ConfigError, match=message):
        planned_experiment(file, [], [], vocab_size=100)
    with pytest.raises(ConfigError, match=message):
        _pretrain(tmp_path, tmp_path, {"recipe": file, "steps": None, "seed": 0})


def test_argument_without_a_type_in_the_recipe_is_named(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def get_config(corpus):\n    pass\n")
    assert main(["show-config", str(file), "--arg", "corpus=text"]) == 2
    assert "'corpus' of get_config has no type; add one, as in `corpus: str`" in (
        capsys.readouterr().err
    )


def test_recipe_of_curation_names_its_command(capsys):
    assert main(["show-config", "curate/web", "--arg", "files=*.jsonl"]) == 2
    message = "expected an Experiment; `bert-jax curate` runs this recipe"
    assert message in capsys.readouterr().err


def test_wrong_type_of_a_field_in_a_recipe_is_found(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\n"
        "from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases\n"
        "def get_config():\n"
        "    experiment = tiny_experiment('test', 'corpus', two_length_phases(12))\n"
        "    return dataclasses.replace(experiment, name=5)\n"
    )
    assert main(["show-config", str(file)]) == 2
    assert "config.name: expected str, found 5" in capsys.readouterr().err
