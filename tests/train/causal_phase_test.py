"""Tests phases of causal LM in a run of masked LM: losses, data, plan, errors, and a whole run.

tests/integration/resume_test.py continues such a run across the end of the phase.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.plan.inputs import make_inputs
from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.data import PretrainingData, SentenceOrderPairs, SentencePairs
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import CausalLM, Pretraining, objective_of_phase
from bert_jax.config.train import HeldOutEval, Phase
from bert_jax.errors import ConfigError
from bert_jax.objectives.make import make_objective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.flops import step_flops
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.one_device import one_device_mesh

PHASES = (
    Phase(steps=4, seq_length=32, batch_size=8, causal_lm=True),
    Phase(steps=4, seq_length=32, batch_size=8, max_predictions_per_seq=5),
)
MASKED_LM = ["objective.nsp_weight=0", "data.input_format=SingleSegment"]


def experiment(corpus: Path | str = "not there") -> Experiment:
    masked = dataclasses.replace(PHASES[1], steps=8)
    config = override(tiny_experiment("causal", str(corpus), (masked,)), MASKED_LM)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, phases=PHASES))


def causal_lm(config: Experiment) -> CausalLM:
    assert isinstance(config.objective, Pretraining)
    return CausalLM(model=config.objective.model)


def test_causal_phase_has_the_loss_of_the_causal_objective():
    """The parameters are those of masked LM; the heads that causal LM lacks have no gradient."""
    config = experiment()
    setup = TrainSetup.from_experiment(config, sharding.make_mesh(config.mesh, jax.devices()[:1]))
    causal, masked = (setup.objective_of(phase) for phase in PHASES)
    assert masked is setup.objective
    params = masked.init(jax.random.key(0))
    batch: Any = pretraining_batch(
        batch_size=8, seq_length=32, max_predictions_per_seq=5, vocab_size=78
    )
    fields: Any = {name: batch[name] for name in causal.batch_fields()}

    def loss(params):
        return causal.compute_loss(params, fields, causal.loss_denominators(fields), None).loss

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    alone = make_objective(causal_lm(config))
    needed = {name: params[name] for name in ("encoder", "masked_lm")}
    expected = alone.compute_loss(needed, fields, alone.loss_denominators(fields), None).loss
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for path, grad in paths.flatten(grads).items():
        is_used = path.startswith(("encoder/", "masked_lm/"))
        assert bool(np.any(np.asarray(grad))) == is_used, path


def test_flops_and_fields_are_those_of_the_phase():
    config = experiment()
    causal, masked = make_inputs(config)
    assert set(causal.fields) == {"input_ids", "token_type_ids", "attention_mask"}
    assert "masked_lm_positions" in masked.fields
    alone = causal_lm(config)
    assert objective_of_phase(config.objective, PHASES[0]) == alone
    assert step_flops(config.objective, PHASES[0]) == step_flops(alone, PHASES[0])
    assert step_flops(config.objective, PHASES[0]) > step_flops(config.objective, PHASES[1])


def test_run_has_causal_then_masked_lm_and_one_model(tmp_path):
    corpus = prepare_corpus(tmp_path / "train")
    heldout = prepare_corpus(tmp_path / "heldout", num_documents=12, seed=1)
    evaluation = HeldOutEval(corpus=str(heldout), eval_every=4, num_examples=16, batch_size=8)
    config = experiment(corpus)
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, evaluation=evaluation)
    )
    with one_device_mesh():
        assert run(config, tmp_path / "run") == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines) if "grad_norm" in row}
    assert sorted(rows) == list(range(1, 9))
    for step, row in rows.items():
        assert ("lm_loss" in row) == (step <= 4) and ("mlm_loss" in row) == (step > 4), row
        assert row["lm_loss" if step <= 4 else "mlm_loss"] == pytest.approx(row["loss"], rel=1e-6)
    # Held-out masked LM from the first phase on, with predictions enough although it has none.
    evaluated = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert "mlm_loss" in json.dumps(evaluated)
    params, _, step = restore_params(tmp_path / "run/checkpoints")
    assert step == 8 and {"encoder", "masked_lm"} <= set(params)
    assert load_encoder(tmp_path / "run").params.keys() == params.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["objective.nsp_weight=1"],
            r"phases.0.causal_lm is true, but objective is Pretraining wi",
        ),
        (["objective.sop_weight=1"], r"expected Pretraining with nsp_weight, sop_weight and sbo"),
        (["train.phases.0.mlm_probability=0.3"], "causal_lm is true and mlm_probability is 0.3"),
    ],
)
def test_phase_that_does_not_fit_the_objective_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        override(experiment(), changes)


@pytest.mark.parametrize("input_format", [SentencePairs(), SentenceOrderPairs()])
def test_causal_lm_of_pairs_is_refused(input_format):
    config = experiment()
    assert isinstance(config.data, PretrainingData)
    data = dataclasses.replace(config.data, input_format=input_format)
    with pytest.raises(ConfigError, match=r"whose pairs are not consecutive text; expected Single"):
        dataclasses.replace(config, data=data)


def test_causal_phase_of_another_objective_is_refused():
    config = experiment()
    with pytest.raises(ConfigError, match="but objective is CausalLM"):
        dataclasses.replace(config, objective=causal_lm(config))
