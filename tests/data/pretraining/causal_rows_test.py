"""Compares the batches of masked and causal sequences with a slow reference.

Covers bert_jax/data/pretraining/causal_rows.py and the configs that choose it.
"""

import dataclasses

import numpy as np
import pytest

from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.batch import batch_spec, check_batch
from bert_jax.config.config_lib import override
from bert_jax.config.data import (
    FullSentences,
    InputFormat,
    NGramMasking,
    PackedSegments,
    PretrainingData,
    SingleSegment,
)
from bert_jax.config.train import Phase
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder, batch_fields, select_fields
from bert_jax.data.pretraining.causal_rows import is_causal_row
from bert_jax.errors import ConfigError

TABLE, LENGTH, BATCH = random_vocab_arrays(), 48, 16


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> PreparedCorpus:
    documents = random_documents(60, seed=1, mean_sentences=4, mean_tokens=8)
    return PreparedCorpus(write_corpus(tmp_path_factory.mktemp("corpus"), documents))


def builder(corpus, input_format: InputFormat, fraction: float, **changes) -> BatchBuilder:
    data = PretrainingData(
        corpus="", input_format=input_format, masking=NGramMasking(), causal_fraction=fraction
    )
    if "masking" in changes:
        data = dataclasses.replace(data, masking=changes.pop("masking"))
    sizes = {"seq_length": LENGTH, "batch_size": BATCH, "max_predictions_per_seq": LENGTH}
    return BatchBuilder(corpus, TABLE, data, seed=3, **{**sizes, **changes})


@pytest.mark.parametrize("input_format", [SingleSegment(), FullSentences(), PackedSegments()])
def test_causal_rows_predict_every_next_token_and_others_do_not_change(corpus, input_format):
    mixed = builder(corpus, input_format, 0.25)
    masked = builder(corpus, input_format, 0.0)
    unmasked = builder(corpus, input_format, 0.0, masking=None)
    batch, end = mixed.build_batch(40)
    spec = batch_spec(batch_fields(mixed.config), {"B": BATCH, "L": LENGTH, "P": LENGTH})
    check_batch(batch, spec)
    (as_masked, other_end), (text, _) = masked.build_batch(40), unmasked.build_batch(40)
    assert end == other_end and 2 <= batch["is_causal"].sum() <= 6
    for row in range(BATCH):
        if not batch["is_causal"][row]:
            for name, field in as_masked.items():
                np.testing.assert_array_equal(batch[name][row], field[row], err_msg=name)
            continue
        ids = text["input_ids"][row]
        np.testing.assert_array_equal(batch["input_ids"][row], ids)
        packed = text.get("packing_ids", text["attention_mask"])[row]
        expected = [i for i in range(1, LENGTH) if packed[i] and packed[i] == packed[i - 1]]
        count = len(expected)
        assert batch["masked_lm_positions"][row, :count].tolist() == expected
        assert batch["masked_lm_ids"][row, :count].tolist() == ids[expected].tolist()
        assert batch["masked_lm_weights"][row].tolist() == [1] * count + [0] * (LENGTH - count)


def test_fraction_of_causal_rows_is_even_in_every_batch():
    rows = is_causal_row(1 / 16, 5, np.arange(16_000))
    assert rows.mean() == pytest.approx(1 / 16, abs=1e-3)
    counts = rows.reshape(-1, 64).sum(axis=1)
    assert counts.min() >= 3 and counts.max() <= 5  # independent ones would vary from 0 to 10


@pytest.mark.parametrize("input_format", [SingleSegment(), PackedSegments()])
def test_two_processes_build_the_batch_of_one(corpus, input_format):
    whole, _ = builder(corpus, input_format, 0.25).build_batch(7)
    halves = [
        builder(corpus, input_format, 0.25, process_index=i, process_count=2).build_batch(7)[0]
        for i in (0, 1)
    ]
    for name, field in whole.items():
        np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), field, name)


PHASE = Phase(steps=4, seq_length=32, batch_size=8, max_predictions_per_seq=32)
MIXED = [
    *("objective.nsp_weight=0", "data.input_format=SingleSegment"),
    *("objective.masked_next_token=true", "data.causal_fraction=0.25"),
]


def test_fields_of_mixed_batches():
    config = override(tiny_experiment("mixed", "none", (PHASE,)), MIXED)
    assert isinstance(config.data, PretrainingData)
    assert "is_causal" in select_fields(config.data, ("input_ids",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.masked_next_token=false"], "causal_fraction is 0.25, but objective is Pretra"),
        (["objective.nsp_weight=1"], "causal_fraction is 0.25, but objective is Pretraining with"),
        (
            ["data.input_format=SentencePairs"],
            "data.input_format is SentencePairs and data.masking",
        ),
        (
            ["data.masking=SpanMasking"],
            "data.masking is SpanMasking; expected a format without pai",
        ),
        (["data.causal_fraction=1"], "data.causal_fraction is 1.0, expected .* below 1"),
        (
            ["train.phases.0.max_predictions_per_seq=20"],
            r"causal_fraction is 0.25, but train.phases.0.max_predictions_per_seq is 20; expected "
            r"the seq_length 32",
        ),
        (["train.phases.0.causal_lm=true"], "phases.0.causal_lm is true; expected one of them"),
        (["objective.diffusion_weight=1"], "objective has a distillation or a diffusion_weight"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    config = override(tiny_experiment("mixed", "none", (PHASE,)), MIXED)
    with pytest.raises(ConfigError, match=message):
        override(config, changes)
