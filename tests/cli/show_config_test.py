"""Tests bert_jax/cli/show_config.py: the numbers of parameters and FLOPs of tuning methods."""

import re
from pathlib import Path

import jax

from bert_jax.__main__ import main

RECIPE = """
from bert_jax.config.data import FineTuningData
from bert_jax.config.labeled_data import Glue
from bert_jax.config.experiment import Experiment
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear


def get_config() -> Experiment:
    model = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    return Experiment(
        name="test",
        objective=FineTuning(model=model, head=SequenceClassificationHead(labels=("no", "yes"))),
        data=FineTuningData(task=Glue(task="rte", folder="unused"), tokenizer="unused"),
        train=TrainConfig(
            phases=(Phase(steps=4, seq_length=12, batch_size=16),),
            schedule=WarmupLinear(warmup_steps=1),
        ),
        init_from="base",
    )
"""


def show_config(folder: Path, method: str, capsys) -> tuple[str, float]:
    """Returns the line with the numbers of parameters, and the FLOPs of an update."""
    recipe = folder / "recipe.py"
    recipe.write_text(RECIPE)
    devices = str(jax.device_count())
    override = f"train.tuning.method={method}"
    assert not main(["show-config", str(recipe), "--devices", devices, "--set", override])
    shown = capsys.readouterr().out
    flops = re.search(r"^length 12: 4 updates of (\S+) FLOPs$", shown, re.M)
    parameters = re.search(r"^[\d,]+ parameters.*$", shown, re.M)
    assert flops and parameters
    return parameters[0], float(flops[1])


def test_trained_parameters_and_flops_of_methods_are_shown(tmp_path, capsys):
    full, full_flops = show_config(tmp_path, '{"type": "FullTuning"}', capsys)
    lora, lora_flops = show_config(tmp_path, '{"type": "LoRA", "rank": 4}', capsys)
    _, prompt_flops = show_config(tmp_path, '{"type": "PromptTuning", "length": 12}', capsys)
    assert full == "37,922 parameters"
    # Two kernels of two layers have 2 x 32 x 4 each; pooler and classifier have 1,056 and 66.
    assert lora == "38,946 parameters, of which 2,146 (5.51%) are trained"
    assert 0.6 * full_flops < lora_flops < 0.75 * full_flops
    assert 2 * lora_flops < prompt_flops < 2.5 * lora_flops
