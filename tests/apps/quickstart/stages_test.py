"""Runs the quickstart end to end on a small invented library instead of this machine's.

Covers bert_jax/apps/quickstart/stages.py, bert_jax/apps/quickstart/stages.py,
bert_jax/apps/quickstart/cli.py, bert_jax/apps/studies/cli/baselines.py, and
bert_jax/apps/studies/ngram_comparison.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.apps.quickstart import docstrings, stages
from tests.helpers.one_device import one_device_mesh

RECIPE = """
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.config.objectives import Pretraining
from bert_jax.text.load_tokenizer import load_tokenizer
from bert_jax.config.train import CheckpointConfig, HeldOutEval, Phase, TrainConfig, WarmupLinear


def get_config(*, corpus: str, heldout: str, steps: int = 4, seed: int = 0):
    tokenizer = load_tokenizer(corpus + "/vocabulary")
    model = BertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, positions=LearnedPositions(max_position_embeddings=64),
    )
    return Experiment(
        name="tiny",
        seed=seed,
        objective=Pretraining(model=model, mask_token_id=tokenizer.mask_id),
        data=PretrainingData(corpus=corpus),
        train=TrainConfig(
            phases=(Phase(steps=steps, seq_length=64, batch_size=8, max_predictions_per_seq=10),),
            schedule=WarmupLinear(peak_learning_rate=1e-3, warmup_steps=1),
            checkpoints=CheckpointConfig(save_every=2),
            evaluation=HeldOutEval(corpus=heldout, eval_every=2, num_examples=16, batch_size=8),
        ),
    )
"""


WORDS = (
    "the a an array list file value name returns raises gives index of to in for with when is not "
    "each every empty given default first last new old error path string number"
)


def write_library(folder: Path) -> None:
    """Writes 24 packages of 8 modules with sentences of random English words."""
    rng = np.random.default_rng(0)
    for package in range(24):
        (folder / f"package{package}").mkdir(parents=True)
        for module in range(8):
            sentences = rng.choice(WORDS.split(), (20, 12))
            text = "\n\n".join(" ".join(sentence).capitalize() + "." for sentence in sentences)
            (folder / f"package{package}" / f"module{module}.py").write_text(f'"""{text}"""\n')


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the command line of a finished quickstart; `--output` comes last."""
    folder = tmp_path_factory.mktemp("quickstart")
    write_library(folder / "library")
    (folder / "recipe.py").write_text(RECIPE)
    output = folder / "quick{start}"
    command = ["quickstart", "--recipe", str(folder / "recipe.py"), "--output", str(output)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docstrings, "default_roots", lambda: [folder / "library"])
        patch.setattr(stages, "EPOCHS", 1)
        # Batches of one length, so that little is compiled.
        patch.setattr(stages, "MAX_LENGTH", 16)
        with one_device_mesh():
            assert main(command) == 0
    return command


def test_summary(command):
    output = Path(command[-1])
    summary = (output / "summary.txt").read_text()
    for expected in (
        "modules retained",
        "bigram",
        "unigram",
        "50.0%",
        "seconds",
        "fill masks",
        "TF-IDF",
        "word order",
        str(output / "exported"),
    ):
        assert expected in summary
    assert (output / "exported" / "model.safetensors").is_file()
    assert (output / "run" / "report.html").is_file()


def test_finished_stages_are_not_repeated(command, capsys):
    output = Path(command[-1])
    vocabulary = (output / "vocabulary" / "vocab.txt").stat().st_mtime_ns
    assert main(command) == 0
    second_run = capsys.readouterr()
    assert second_run.out == (output / "summary.txt").read_text()
    assert second_run.err.count("already done") == 10
    assert (output / "vocabulary" / "vocab.txt").stat().st_mtime_ns == vocabulary

    # A stage that is missing in stages.json runs again on the outputs of the others.
    stages = json.loads((output / "stages.json").read_text())
    del stages["seconds"]["fill masks"]
    (output / "stages.json").write_text(json.dumps(stages))
    assert main(command) == 0
    assert capsys.readouterr().err.count("already done") == 9


def test_other_settings_in_same_folder_are_an_error(command, capsys):
    assert main([*command, "--steps", "5"]) == 1
    message = capsys.readouterr().err
    assert "steps the default, now 5" in message and "choose another --output" in message


def test_baselines_command_matches_summary(command, capsys):
    output = Path(command[-1])
    assert main(["baselines", str(output / "run")]) == 0
    baselines = json.loads(capsys.readouterr().out)
    assert baselines == json.loads((output / "stages.json").read_text())["results"]["held_out"]
    assert 0 < baselines["bigram"] < 10 and baselines["mlm_loss"] > 0
    assert baselines["masked_tokens"] > 16
    page = (output / "run" / "report.html").read_text()
    assert f"unigram</th><td>{baselines['unigram']:.3f}" in page


def test_baselines_need_a_run_with_held_out_text(command, capsys, tmp_path):
    config = json.loads((Path(command[-1]) / "run" / "config.json").read_text())
    config["config"]["train"]["evaluation"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["baselines", str(tmp_path)]) == 1
    assert "the run has no held-out corpus" in capsys.readouterr().err
    assert main(["baselines", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err
