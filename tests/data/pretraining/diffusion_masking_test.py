"""Compares the masks of masked diffusion with a slow reference, and its rates with the uniform law.

Covers bert_jax/data/pretraining/diffusion_masking.py and its batches.
"""

import numpy as np
import pytest

from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.random_corpus import (
    CLS,
    MASK,
    SEP,
    random_documents,
    random_vocab_arrays,
    write_corpus,
)
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.batch import batch_spec, check_batch
from bert_jax.config.config_lib import override
from bert_jax.config.data import (
    DiffusionMasking,
    FullSentences,
    InputFormat,
    PackedSegments,
    PretrainingData,
    SingleSegment,
)
from bert_jax.config.train import HeldOutEval, Phase
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder, batch_fields, select_fields
from bert_jax.data.pretraining.diffusion_masking import mask_for_diffusion, masking_rates
from bert_jax.data.pretraining.rng import ExampleRng, Stream, epoch_key, example_keys
from bert_jax.errors import ConfigError
from bert_jax.train.workloads.pretraining import check_held_out_fields, held_out_batches

TABLE = random_vocab_arrays()
LENGTH = 64
CONFIG = DiffusionMasking()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> PreparedCorpus:
    documents = random_documents(60, seed=1, mean_sentences=4, mean_tokens=8)
    return PreparedCorpus(write_corpus(tmp_path_factory.mktemp("corpus"), documents))


def rows(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids of [CLS] text [SEP] padding, their attention mask, and keys."""
    rng = np.random.default_rng(0)
    ends = rng.integers(3, LENGTH + 1, count)
    attention = (np.arange(LENGTH) < ends[:, None]).astype(np.int32)
    ids = np.where(attention, rng.choice(TABLE.maskable_ids, (count, LENGTH)), 0).astype(np.int32)
    ids[:, 0], ids[np.arange(count), ends - 1] = CLS, SEP
    keys = example_keys(np.full(count, epoch_key(0, 0), np.uint64), np.arange(count))
    return ids, attention, keys


def test_masks_equal_the_slow_reference():
    ids, attention, keys = rows(200)
    rates = masking_rates(CONFIG, 0, np.arange(200))
    fields = mask_for_diffusion(ids, attention, keys, rates, TABLE)
    for row in range(200):
        draws, masked, chosen, maskable = ExampleRng(int(keys[row])), ids[row].copy(), [], 0
        for position in range(LENGTH):
            if not attention[row, position] or ids[row, position] in (CLS, SEP):
                continue
            maskable += 1
            if draws.uniform(Stream.MASK_SELECTION, position) < rates[row]:
                masked[position] = MASK
                chosen.append(position)
        count = len(chosen)
        np.testing.assert_array_equal(fields["input_ids"][row], masked)
        assert fields["masked_lm_positions"][row].tolist() == chosen + [0] * (LENGTH - count)
        assert fields["masked_lm_ids"][row, :count].tolist() == ids[row, chosen].tolist()
        assert fields["masked_lm_weights"][row].tolist() == [1] * count + [0] * (LENGTH - count)
        np.testing.assert_allclose(fields["masking_rates"][row, :count], rates[row], rtol=1e-6)
        assert not fields["masking_rates"][row, count:].any()
        assert fields["num_maskable_tokens"][row] == maskable


@pytest.mark.parametrize("start", [0, 10**12])
def test_rates_are_uniform_and_those_of_each_batch_are_evenly_spread(start):
    rates = masking_rates(CONFIG, 7, np.arange(start, start + 2**16))
    assert rates.min() >= CONFIG.min_rate and rates.max() < 1
    uniform = np.sort((rates - 1e-3) / (1 - 1e-3))
    assert np.abs(uniform - np.arange(2**16) / 2**16).max() < 1e-4
    for begin in range(0, 4000, 16):  # independent ones would differ by 0.2 on average
        batch = np.sort(rates[begin : begin + 16])
        assert np.abs(batch - (np.arange(16) + 0.5) / 16).max() < 0.1
    # The sequence of the golden ratio, in whole numbers.
    key = ExampleRng(epoch_key(7, 0)).bits(Stream.MASKING_RATE)
    expected = [(key + (start + i) * 0x9E3779B97F4A7C15) % 2**64 / 2**64 for i in range(50)]
    np.testing.assert_allclose(rates[:50], 1e-3 + (1 - 1e-3) * np.array(expected), rtol=1e-12)
    assert rates[0] != masking_rates(CONFIG, 8, np.array([start]))[0]


def test_fraction_of_masked_tokens_is_the_rate():
    ids = np.full((4000, LENGTH), 7, np.int32)
    keys = example_keys(np.full(4000, epoch_key(0, 0), np.uint64), np.arange(4000))
    rates = masking_rates(CONFIG, 0, np.arange(4000))
    fields = mask_for_diffusion(ids, np.ones_like(ids), keys, rates, TABLE)
    is_masked = fields["input_ids"] == MASK
    counts, scale = is_masked.sum(axis=1), np.sqrt(LENGTH * rates * (1 - rates))
    deviations = (counts - LENGTH * rates)[scale > 0.5] / scale[scale > 0.5]
    assert deviations.std() == pytest.approx(1, abs=0.05)
    assert is_masked.mean() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(is_masked.mean(axis=0), 0.5, atol=5 * 0.5 / np.sqrt(4000))


def data(input_format: InputFormat) -> PretrainingData:
    return PretrainingData(corpus="", input_format=input_format, masking=CONFIG)


def builder(corpus: PreparedCorpus, input_format: InputFormat, **changes) -> BatchBuilder:
    sizes = {"seq_length": LENGTH, "batch_size": 8, "max_predictions_per_seq": LENGTH, "seed": 3}
    return BatchBuilder(corpus, TABLE, data(input_format), **{**sizes, **changes})


@pytest.mark.parametrize("input_format", [SingleSegment(), FullSentences(), PackedSegments()])
def test_batches_have_the_rates_of_their_positions(corpus, input_format):
    made = builder(corpus, input_format)
    position = 0
    for _ in range(4):
        batch, end = made.build_batch(position)
        spec = batch_spec(batch_fields(made.config), {"B": 8, "L": LENGTH, "P": LENGTH})
        check_batch(batch, spec)
        expected = masking_rates(CONFIG, 3, np.arange(position, end)).astype(np.float32)
        is_used = batch["masked_lm_weights"] > 0
        examples = batch.get("packing_ids", np.ones((8, LENGTH), np.int32))
        at_masks = np.take_along_axis(examples, batch["masked_lm_positions"], axis=1)
        found = {
            float(rate)
            for row in range(8)
            for example in np.unique(at_masks[row][is_used[row]])
            for rates in [batch["masking_rates"][row][is_used[row] & (at_masks[row] == example)]]
            for rate in np.unique(rates)
        }
        per_example = [len(np.unique(at_masks[row][is_used[row]])) for row in range(8)]
        assert len(found) == sum(per_example)  # one rate for all masks of an example
        assert found <= set(expected.tolist())
        position = end


@pytest.mark.parametrize("input_format", [SingleSegment(), PackedSegments()])
def test_two_processes_build_the_batch_of_one(corpus, input_format):
    whole, end = builder(corpus, input_format).build_batch(40)
    halves = [
        builder(corpus, input_format, process_index=i, process_count=2).build_batch(40)
        for i in (0, 1)
    ]
    assert [each[1] for each in halves] == [end, end]
    for name, field in whole.items():
        parts = np.concatenate([each[0][name] for each in halves])
        np.testing.assert_array_equal(parts, field, err_msg=name)


def test_held_out_batches_may_predict_every_token(tmp_path):
    heldout = str(prepare_corpus(tmp_path))
    evaluation = HeldOutEval(corpus=heldout, num_examples=8, batch_size=8, masking=CONFIG)
    phase = Phase(steps=1, seq_length=LENGTH, batch_size=8, causal_lm=True)
    (batch,) = held_out_batches(evaluation, data(SingleSegment()), phase)
    assert batch["masked_lm_weights"].shape == (8, LENGTH)
    fixed_rate = HeldOutEval(corpus=heldout)
    with pytest.raises(ConfigError, match="does not make the batch field 'masking_rates'"):
        check_held_out_fields(fixed_rate, data(SingleSegment()), ("masking_rates",))


PHASE = Phase(steps=4, seq_length=32, batch_size=8, max_predictions_per_seq=32)
DIFFUSION = ["data.masking=DiffusionMasking", "objective.diffusion_weight=1"]


def test_config_of_masked_diffusion():
    config = override(tiny_experiment("diffusion", "none", (PHASE,)), DIFFUSION)
    assert isinstance(config.data, PretrainingData) and config.data.masking == CONFIG
    with pytest.raises(ConfigError, match=r"'masking_rates', but .* expected data.masking Diffus"):
        select_fields(PretrainingData(corpus=""), ("masking_rates",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["train.phases.0.max_predictions_per_seq=31"],
            r"phases.0.max_predictions_per_seq is 31, but data.masking is DiffusionMasking, which "
            r"may mask every token of a sequence; expected the seq_length 32",
        ),
        (["train.phases.0.mlm_probability=0.3"], "mlm_probability is 0.3, but data.masking is Dif"),
        (["data.masking.min_rate=0"], "data.masking.min_rate is 0.0, expected .* above 0"),
        (["data.masking.min_rate=1"], "data.masking.min_rate is 1.0, expected .* below 1"),
        (["objective.diffusion_weight=-1"], "diffusion_weight -1.0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    config = override(tiny_experiment("diffusion", "none", (PHASE,)), DIFFUSION)
    with pytest.raises(ConfigError, match=message):
        override(config, changes)
