"""Tests masking rates by phase: what is refused, what is masked, and what a recipe sets.

tests/integration/resume_test.py continues such a run across the end of a phase.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.plan.inputs import planned_experiment
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.data import (
    Masking,
    NGramMasking,
    PackedSegments,
    PretrainingData,
    SpanMasking,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.train import HeldOutEval, Phase, WarmupStableDecay
from bert_jax.errors import ConfigError
from bert_jax.train.workloads import make_workload
from bert_jax.train.workloads.pretraining import data_of_phase, held_out_batches

RATES, LENGTH = (0.3, None, 0.05), 64
RECIPE = str(Path(__file__).parents[3] / "configs/pretrain/modernbert.py")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def phase(rate: float | None, predictions: int = 20, **changes) -> Phase:
    return Phase(
        steps=3,
        seq_length=LENGTH,
        batch_size=32,
        max_predictions_per_seq=predictions,
        mlm_probability=rate,
        **changes,
    )


def experiment(corpus: Path, **data) -> Experiment:
    config = tiny_experiment("rates", str(corpus), tuple(phase(rate) for rate in RATES))
    return dataclasses.replace(config, data=dataclasses.replace(pretraining_data(config), **data))


def pretraining_data(config: Experiment) -> PretrainingData:
    assert isinstance(config.data, PretrainingData)
    return config.data


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"input_format": PackedSegments()},
        {"masking": NGramMasking()},
        {"masking": SpanMasking()},
        {"masking": Masking(whole_word_mask=True)},
    ],
    ids=["pairs", "packed", "n-grams", "spans", "words"],
)
def test_each_phase_masks_at_its_rate(corpus, data):
    """Compares with the number of predictions that `mask_tokens` documents, row by row."""
    workload, masking = make_workload(experiment(corpus, **data)), data.get("masking", Masking())
    for index, rate in enumerate((0.3, 0.15, 0.05)):
        total = total_expected = total_tokens = 0
        with workload.loader(index, 0) as loader:
            for _, batch in zip(range(8), loader, strict=False):
                is_special = np.isin(batch["input_ids"], (2, 3))  # [CLS] and [SEP]
                in_text = (batch["attention_mask"] > 0) & ~is_special
                if isinstance(masking, NGramMasking):
                    in_text |= is_special
                num_tokens = in_text.sum(axis=1)
                rounded = np.ceil if isinstance(masking, SpanMasking) else np.rint
                expected = rounded(num_tokens * rate).clip(1, 20)
                found = batch["masked_lm_weights"].sum(axis=1)
                if masking == Masking(whole_word_mask=True):  # words may not fit
                    assert (found <= expected).all()
                elif isinstance(masking, Masking | SpanMasking):
                    np.testing.assert_array_equal(found, expected)
                total += found.sum()
                total_expected += expected.sum()
                total_tokens += num_tokens.sum()
        assert total == pytest.approx(total_expected, rel=0.1)
        assert total_tokens > 256 * 20


def test_rates_change_how_many_tokens_are_masked_and_nothing_else(corpus):
    """With equal seeds, the tokens masked at a low rate are masked at a high one, too."""
    config = experiment(corpus)
    low, high = (
        make_workload(
            dataclasses.replace(
                config, train=dataclasses.replace(config.train, phases=(phase(rate),))
            )
        )
        for rate in (0.05, 0.3)
    )
    with low.loader(0, 0) as one, high.loader(0, 0) as other:
        for _, few, many in zip(range(3), one, other, strict=False):
            np.testing.assert_array_equal(few["attention_mask"], many["attention_mask"])
            differs = few["input_ids"] != many["input_ids"]
            for row in range(len(differs)):
                masked = many["masked_lm_positions"][row][many["masked_lm_weights"][row] > 0]
                fewer = few["masked_lm_positions"][row][few["masked_lm_weights"][row] > 0]
                assert set(fewer) <= set(masked)
                assert set(np.flatnonzero(differs[row])) <= set(masked) - set(fewer)


def test_evaluation_has_predictions_enough_for_its_own_rate(corpus):
    config = experiment(corpus)
    evaluation = HeldOutEval(corpus=str(corpus), num_examples=64, batch_size=32)
    found, expected = (
        list(held_out_batches(evaluation, pretraining_data(config), each))
        for each in (phase(0.05, predictions=3), phase(None, predictions=10))
    )
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        assert one["masked_lm_weights"].shape == (32, 10)
        for name, field in other.items():
            np.testing.assert_array_equal(one[name], field, err_msg=name)


def test_data_of_a_phase_without_a_rate_are_those_of_the_run(corpus):
    data = pretraining_data(experiment(corpus))
    assert data_of_phase(data, phase(None)) is data
    assert data_of_phase(data, phase(0.4, predictions=26)).masking == Masking(mlm_probability=0.4)


@pytest.mark.parametrize("rate, needed", [(0.3, 19), (1.0, 64), (0.001, 1)])
def test_too_few_predictions_for_the_rate_are_refused(rate, needed):
    assert phase(rate, predictions=needed).mlm_probability == rate
    message = (
        f"mlm_probability is {rate}, which predicts {needed} of 64 tokens, but "
        f"max_predictions_per_seq is {needed - 1}; expected at least {needed}"
    )
    with pytest.raises(ConfigError, match=message):
        phase(rate, predictions=needed - 1)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="mlm_probability"):
        phase(rate)


def test_rate_without_masks_is_refused(corpus):
    message = r"train.phases.0.mlm_probability is 0.3, but data.masking is NoneType; expected Mas"
    with pytest.raises(ConfigError, match=message):
        experiment(corpus, masking=None)


CORPORA = 'data.corpus={"type": "CorpusMixture", "corpora": [{"folder": "a"}, {"folder": "b"}]}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["corpus_weights=[1,1]"], r"phases.0.corpus_weights is set, but data.corpus is one corp"),
        (["corpus_temperature=2"], r"phases.0.corpus_temperature is set, but data.corpus is one"),
        ([CORPORA, "corpus_weights=[1]"], r"corpus_weights has 1 weights, but data.corpus has 2"),
        ([CORPORA, "corpus_weights=[0,0]"], r"corpus_weights is \[0.0, 0.0\]; expected a number"),
        ([CORPORA, "corpus_weights=[1,null]"], r"corpus_weights is \[1.0, None\]; expected a num"),
        ([CORPORA, "corpus_weights=[1,-1]"], r"corpus_weights is -1.0, expected .* at least 0"),
        ([CORPORA, "corpus_temperature=0"], r"corpus_temperature is 0.0, expected .* above 0"),
    ],
)
def test_corpus_weights_that_do_not_fit_are_refused(changes, message):
    config = experiment(Path("none"))
    fields = [each if each.startswith("data.") else f"train.phases.0.{each}" for each in changes]
    with pytest.raises(ConfigError, match=message):
        override(config, fields)
    weights = "train.phases.2.corpus_weights=[0,null]"
    phases = override(config, [CORPORA, weights]).train.phases
    assert phases[2].corpus_weights == (0.0, None) and phases[0].corpus_weights == ()


def test_recipe_has_the_rates_and_phases_of_mmbert():
    given, _ = planned_experiment(RECIPE, ["masking_rates=mmbert", "steps=1000"], [], 50288)
    found = [
        (each.steps, each.mlm_probability, each.max_predictions_per_seq)
        for each in given.train.phases
    ]
    assert found == [(770, 0.3, 307), (200, 0.15, 154), (30, 0.05, 51)]
    assert isinstance(given.train.schedule, WarmupStableDecay)
    assert given.train.schedule.decay_steps == found[-1][0]
