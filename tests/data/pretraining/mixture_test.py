"""Tests mixtures of corpora: quotas, order on all hosts and restarts, weights, limits of epochs.

Covers bert_jax/data/pretraining/mixture.py and mixture_plan.py.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.cli.arguments import parse_mixture
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import (
    ConcatenatedDocuments,
    CorpusMixture,
    DocSentences,
    FullSentences,
    Masking,
    PackedSegments,
    PrefixLM,
    PretrainingData,
    SentenceOrderPairs,
    SentencePairs,
    SingleSegment,
    SpanMasking,
    StaticMasking,
    WeightedCorpus,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining import mixture_plan
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.mixture import (
    PERIOD,
    MixedCorpora,
    MixtureDataset,
    draw_examples,
)
from bert_jax.data.pretraining.mixture_plan import (
    MixturePlan,
    PhaseSize,
    plan_mixture,
    write_or_check_mixture,
)
from bert_jax.errors import ConfigError, UserError

TABLE = random_vocab_arrays()
FORMATS = [
    SentencePairs(),
    SentenceOrderPairs(),
    SingleSegment(),
    PackedSegments(),
    DocSentences(),
    FullSentences(),
]
SIZES: dict[str, Any] = {
    "target_length": 64,
    "seq_length": 64,
    "batch_size": 8,
    "max_predictions_per_seq": 10,
    "seed": 3,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Writes a corpus of long documents with ids below 500, and one of short ones with others."""
    folder = tmp_path_factory.mktemp("corpora")
    books = random_documents(30, vocab_size=500, mean_sentences=30)
    notes = random_documents(300, vocab_size=500, seed=1, mean_sentences=1, mean_tokens=8)
    notes = [[[i + 495 for i in sentence] for sentence in document] for document in notes]
    write_corpus(folder / "books", books, num_shards=2)
    write_corpus(folder / "notes", notes)
    return [str(folder / "books"), str(folder / "notes")]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch):
    """Returns `plan_mixture` for corpora without tokenizer and with equal fingerprints."""
    monkeypatch.setattr(PreparedCorpus, "tokenizer", lambda self: None)
    monkeypatch.setattr(mixture_plan.VocabArrays, "from_tokenizer", lambda _: TABLE)
    monkeypatch.setattr(mixture_plan, "_check_corpora", lambda _: None)

    def call(corpora, data=None, *, num_sequences=4000, phases=(), **settings):
        data = data or PretrainingData(corpus="", input_format=SingleSegment())
        mixture = CorpusMixture(corpora=tuple(corpora), **settings)
        return plan_mixture(mixture, data, phases or [PhaseSize(64, 0, num_sequences)])

    return call


def _builder(folders: list[str], data: PretrainingData, fractions=(0.6, 0.4), **sizes):
    mixed = MixedCorpora(tuple(map(PreparedCorpus, folders)), fractions)
    return BatchBuilder(mixed, TABLE, data, **{**SIZES, **sizes})


def _dataset(builder: BatchBuilder) -> MixtureDataset:
    assert isinstance(builder.dataset, MixtureDataset)
    return builder.dataset


def _data(input_format, **settings) -> PretrainingData:
    return PretrainingData(corpus="", input_format=input_format, **settings)


def test_quotas_are_exact_after_each_period_from_any_start() -> None:
    quotas = np.array([7001, 2, 2997])
    indices = np.arange(3 * PERIOD)
    corpora, draws = draw_examples(indices, quotas, seed=5)
    for period in range(3):
        window = slice(period * PERIOD, (period + 1) * PERIOD)
        np.testing.assert_array_equal(np.bincount(corpora[window]), quotas)
    for corpus in range(3):  # each corpus is drawn from without gaps and repetitions
        sampled = draws[corpora == corpus]
        np.testing.assert_array_equal(np.sort(sampled), np.arange(3 * quotas[corpus]))
    for start in (0, 1, PERIOD - 3, 12_345):
        tail = draw_examples(indices[start : start + 50], quotas, seed=5)
        np.testing.assert_array_equal(
            tail, [corpora[start : start + 50], draws[start : start + 50]]
        )
    # The order is random: neither blocks of one corpus nor the same in each period.
    assert (corpora[:PERIOD] != corpora[PERIOD : 2 * PERIOD]).mean() > 0.3
    assert np.diff(corpora[:1000]).any()


@pytest.mark.parametrize("input_format", [*FORMATS, ConcatenatedDocuments()])
@pytest.mark.parametrize("hosts", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_hosts_divide_the_batches_of_a_mixture(folders, input_format, hosts: int) -> None:
    masking = Masking()
    if isinstance(input_format, FullSentences):
        masking = SpanMasking()
    elif isinstance(input_format, ConcatenatedDocuments):
        masking = PrefixLM()
    data = _data(input_format, masking=masking)
    whole = _builder(folders, data)
    parts = [
        _builder(folders, data, process_index=host, process_count=hosts) for host in range(hosts)
    ]
    position = 9_990  # the batches cross the end of a period
    for _ in range(3):
        batch, next_position = whole.build_batch(position)
        built = [part.build_batch(position) for part in parts]
        assert {end for _, end in built} == {next_position}
        for name, values in batch.items():
            np.testing.assert_array_equal(values, np.concatenate([part[name] for part, _ in built]))
        position = next_position


@pytest.mark.parametrize("input_format", [SentencePairs(), PackedSegments()])
def test_resumed_mixture_continues_with_the_same_batches(folders, input_format) -> None:
    mixed = MixedCorpora(tuple(map(PreparedCorpus, folders)), (0.6, 0.4))
    data = _data(input_format)
    builder = BatchBuilder(mixed, TABLE, data, **SIZES)
    with PretrainingLoader(builder) as loader:
        batches = []
        for _ in range(12):
            batches.append((loader.position, next(loader)))
    position = batches[7][0]
    with PretrainingLoader(builder, position) as resumed:
        for _, expected in batches[7:]:
            batch = next(resumed)
            for name in expected:
                np.testing.assert_array_equal(batch[name], expected[name])


@pytest.mark.parametrize("input_format", FORMATS)
def test_each_epoch_of_a_corpus_has_every_example_once(folders, input_format) -> None:
    builder = _builder(folders, _data(input_format, masking_schedule=StaticMasking(dupe_factor=1)))
    refs = builder.resolve_examples(0, 2 * PERIOD)
    first = _dataset(builder).first_example
    for corpus in range(2):
        size = int(first[corpus + 1] - first[corpus])
        _, draws = draw_examples(np.arange(2 * PERIOD), _dataset(builder).quotas, SIZES["seed"])
        own = (refs.example_indices >= first[corpus]) & (refs.example_indices < first[corpus + 1])
        order = np.argsort(draws[own])
        for epoch in range(2):
            indices = refs.example_indices[own][order][epoch * size : (epoch + 1) * size]
            assert sorted(indices - first[corpus]) == list(range(size))
            keys = refs.keys[own][order][epoch * size : (epoch + 1) * size]
            assert len(set(keys.tolist())) == size
        # With static masking, the second epoch has the keys of the first.
        assert len(set(refs.keys[own].tolist())) == size


def test_pairs_take_both_texts_from_one_corpus(folders) -> None:
    builder = _builder(folders, _data(SentencePairs(), masking=None))
    from_notes = []
    for position in range(0, 160, 8):
        batch, _ = builder.build_batch(position)
        for ids in batch["input_ids"]:
            text = ids[ids >= 5]
            assert (text < 500).all() or (text >= 500).all()
            from_notes.append(bool(text[0] >= 500))
    assert 0.2 < np.mean(from_notes) < 0.9


def test_weights_are_fractions_of_the_tokens_in_a_period(folders, plan) -> None:
    corpora = parse_mixture((f"{folders[0]}=1.4", f"{folders[1]}=0.6")).corpora
    data = _data(SingleSegment())
    planned = plan(corpora, data, num_sequences=PERIOD)
    (mixed,), uses = planned.phases, planned.uses
    builder = BatchBuilder(mixed, TABLE, data, **SIZES)
    refs = builder.resolve_examples(0, PERIOD)
    lengths = _dataset(builder).seq_lengths(refs.document_indices) - 2
    first = _dataset(builder).first_example
    is_notes = refs.example_indices >= first[1]
    # Most notes are shorter than a sequence, so more of them are drawn.
    assert is_notes.mean() > 0.6
    tokens = np.array([lengths[~is_notes].sum(), lengths[is_notes].sum()])
    np.testing.assert_allclose(tokens / tokens.sum(), [0.7, 0.3], atol=0.005)
    np.testing.assert_allclose([use.token_fraction for use in uses], [0.7, 0.3], atol=0.001)
    np.testing.assert_allclose([use.num_tokens for use in uses], tokens, rtol=0.01)
    epochs = [np.sum(~is_notes), np.sum(is_notes)] / np.diff(first)
    np.testing.assert_allclose([use.epochs for use in uses], epochs)


def test_weights_are_fractions_of_packed_tokens(folders, plan) -> None:
    corpora = parse_mixture((f"{folders[0]}=0.7", f"{folders[1]}=0.3")).corpora
    data = _data(PackedSegments(), masking=None)
    planned = plan(corpora, data, num_sequences=1000)
    (mixed,), uses = planned.phases, planned.uses
    builder = BatchBuilder(mixed, TABLE, data, **{**SIZES, "batch_size": 1000})
    batch, num_examples = builder.build_batch(0)
    ids = batch["input_ids"]
    tokens = np.array([((ids >= 5) & (ids < 500)).sum(), (ids >= 500).sum()])
    np.testing.assert_allclose(tokens / tokens.sum(), [0.7, 0.3], atol=0.04)  # a third of a period
    np.testing.assert_allclose([use.num_tokens for use in uses], tokens, rtol=0.15)
    assert uses[0].epochs + uses[1].epochs == pytest.approx(
        float(
            (
                _dataset(builder).quotas
                / PERIOD
                * num_examples
                / np.diff(_dataset(builder).first_example)
            ).sum()
        ),
        rel=0.05,
    )


def test_temperature_and_sizes_decide_fractions_without_weights(folders, plan) -> None:
    corpora = [WeightedCorpus(folder=folder) for folder in folders]
    sizes = np.array([PreparedCorpus(folder).tokens_per_document.sum() for folder in folders])
    for temperature in (1.0, 2.0):
        expected = sizes ** (1 / temperature)
        (mixed,) = plan(corpora, temperature=temperature).phases
        np.testing.assert_allclose(mixed.token_fractions, expected / expected.sum())


def test_max_epochs_lower_a_fraction_and_raise_the_others(folders, plan) -> None:
    limited = WeightedCorpus(folder=folders[1], weight=0.5, max_epochs=2)
    corpora = [WeightedCorpus(folder=folders[0], weight=0.5), limited]
    free = plan([corpora[0], dataclasses.replace(limited, max_epochs=None)]).uses
    assert free[1].epochs > 4
    planned = plan(corpora)
    (mixed,), uses = planned.phases, planned.uses
    assert uses[1].epochs <= 2 * (1 + 1e-6)
    assert uses[1].epochs == pytest.approx(2, rel=0.02)
    assert sum(mixed.token_fractions) == pytest.approx(1)
    assert uses[0].epochs > free[0].epochs
    with pytest.raises(UserError, match=r"the mixture would end after .* of the run"):
        plan([dataclasses.replace(each, max_epochs=0.5) for each in corpora])
    with pytest.raises(ConfigError, match="less than one example in 10,000; raise its weight"):
        plan([WeightedCorpus(folder=folders[0], weight=1e9), limited])


@pytest.mark.parametrize("input_format", [SingleSegment(), PackedSegments()])
def test_rounded_quotas_stay_within_max_epochs(folders, plan, input_format) -> None:
    corpora = [WeightedCorpus(folder=folder, weight=0.5) for folder in folders]
    free = plan(corpora, _data(input_format))
    epochs_of_slot = free.uses[1].epochs / free.quotas[0][1]

    def limited(slots: float) -> MixturePlan:
        second = dataclasses.replace(corpora[1], max_epochs=slots * epochs_of_slot)
        return plan([corpora[0], second], _data(input_format))

    # The examples of packed sequences are fewer if fewer of them are short.
    planned = limited(100.6)
    assert planned.uses[1].epochs <= 100.6 * epochs_of_slot * (1 + 1e-6)
    assert planned.uses[1].epochs > 98 * epochs_of_slot
    assert sum(planned.quotas[0]) == PERIOD
    with pytest.raises(ConfigError, match=r"max_epochs allows .* raise its max_epochs"):
        limited(0.1)


def test_each_phase_reads_its_own_fractions(folders, plan) -> None:
    """Compares with the tokens of the examples that each phase draws."""
    corpora = parse_mixture((f"{folders[0]}=0.5", f"{folders[1]}=0.5")).corpora
    data = _data(SingleSegment())
    weights = [(), (0.9, 0.1), (0.0, 2.0)]
    expected = [[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]]
    planned = plan(corpora, data, phases=[PhaseSize(64, 0, PERIOD, each) for each in weights])
    total, examples = np.zeros(2), np.zeros(2)
    for mixed, fractions, quotas in zip(planned.phases, expected, planned.quotas, strict=True):
        builder = BatchBuilder(mixed, TABLE, data, **SIZES)
        refs = builder.resolve_examples(0, PERIOD)
        lengths = _dataset(builder).seq_lengths(refs.document_indices) - 2
        is_notes = refs.example_indices >= _dataset(builder).first_example[1]
        tokens = np.array([lengths[~is_notes].sum(), lengths[is_notes].sum()])
        np.testing.assert_allclose(tokens / tokens.sum(), fractions, atol=0.005)
        assert tuple(np.bincount(is_notes, minlength=2)) == quotas
        # Any batch in the middle of the phase is a function of its position.
        half = BatchBuilder(mixed, TABLE, data, **{**SIZES, "batch_size": 4})
        batch, _ = builder.build_batch(123_456)
        parts = [half.build_batch(position)[0] for position in (123_456, 123_460)]
        for name, field in batch.items():
            np.testing.assert_array_equal(np.concatenate([each[name] for each in parts]), field)
        total, examples = total + tokens, examples + np.bincount(is_notes, minlength=2)
        builder = BatchBuilder(
            mixed, TABLE, _data(SingleSegment(), masking=SpanMasking()), **SIZES
        )  # random tokens come from the corpora that the phase reads
        is_note = builder._replacement_ids >= 500
        assert is_note.mean() == pytest.approx(fractions[1], abs=0.01)
    sizes = np.diff(_dataset(_builder(folders, data)).first_example)
    np.testing.assert_allclose([use.epochs for use in planned.uses], examples / sizes)
    np.testing.assert_allclose(
        [use.token_fraction for use in planned.uses], total / total.sum(), atol=0.005
    )


def test_phases_have_temperatures_and_corpora_of_mmbert(folders, plan) -> None:
    corpora = [WeightedCorpus(folder=folder) for folder in folders]
    sizes = np.array([PreparedCorpus(folder).tokens_per_document.sum() for folder in folders])
    phases = [PhaseSize(64, 0, 9, (None, 0.0), 1 / 0.7), PhaseSize(64, 0, 9, (), 1 / 0.3)]
    first, second = plan(corpora, phases=phases).phases
    assert first.token_fractions == (1.0, 0.0)
    expected = sizes**0.3
    np.testing.assert_allclose(second.token_fractions, expected / expected.sum())


def test_limits_of_epochs_count_all_phases(folders, plan) -> None:
    limited = WeightedCorpus(folder=folders[1], weight=0.5, max_epochs=2)
    corpora = [WeightedCorpus(folder=folders[0], weight=0.5), limited]
    phases = [
        PhaseSize(64, 0, 2000, (0.8, 0.2)),
        PhaseSize(64, 0, 2000, (0.5, 0.5)),
        PhaseSize(64, 0, 2000, (1.0, 0.0)),
    ]
    free = plan([corpora[0], dataclasses.replace(limited, max_epochs=None)], phases=phases)
    assert free.uses[1].epochs > 3
    planned = plan(corpora, phases=phases)
    assert planned.uses[1].epochs <= 2 * (1 + 1e-6)
    assert planned.uses[1].epochs == pytest.approx(2, rel=0.02)
    fractions = np.array([phase.token_fractions for phase in planned.phases])
    np.testing.assert_allclose(fractions.sum(axis=1), 1)
    # Lowered by one factor in all phases that read it.
    assert fractions[0, 1] / 0.2 == pytest.approx(fractions[1, 1] / 0.5) and fractions[2, 1] == 0
    assert all(sum(quotas) == PERIOD for quotas in planned.quotas)
    with pytest.raises(UserError, match=r"the max_epochs of the corpora allow"):
        plan(corpora, phases=[PhaseSize(64, 0, 9000, (0.0, 1.0))])


def test_resumed_mixture_must_have_the_same_corpora(folders, plan, tmp_path: Path) -> None:
    corpora = [WeightedCorpus(folder=folder, weight=0.5) for folder in folders]
    planned, path = plan(corpora), tmp_path / "mixture.json"
    write_or_check_mixture(planned, path)
    write_or_check_mixture(planned, path)
    quotas = dataclasses.replace(planned, quotas=((4_000, 6_000),))
    with pytest.raises(UserError, match=r"began with the quotas .* are \[\[4000, 6000\]\] now"):
        write_or_check_mixture(quotas, path)
    path.write_text(path.read_text().replace(PreparedCorpus(folders[0]).manifest.fingerprint, "x"))
    with pytest.raises(UserError, match=r"books: has the fingerprint .* began with x "):
        write_or_check_mixture(planned, path)


def test_corpora_that_cannot_be_mixed_raise(folders, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other", [[[7]]], vocabulary_fingerprint="another")
    mixture = CorpusMixture(corpora=tuple(WeightedCorpus(folder=f) for f in (*folders, str(other))))
    phases = [PhaseSize(64, 0, 100)]
    with pytest.raises(UserError, match="have the same documents"):  # their fingerprint is equal
        plan_mixture(mixture, _data(SingleSegment()), phases)
    pair = CorpusMixture(corpora=(mixture.corpora[0], mixture.corpora[2]))
    with pytest.raises(UserError, match=r"different vocabularies.*other again with"):
        plan_mixture(pair, _data(SingleSegment()), phases)
    missing = CorpusMixture(corpora=(WeightedCorpus(folder=str(tmp_path / "none")),))
    with pytest.raises(UserError, match="no such folder"):
        plan_mixture(missing, _data(SingleSegment()), phases)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=-1", "b=1"], r"corpora\[0\] \(a\): weight is -1.0, expected a number above 0"),
        (["a=0", "b=1"], "weight is 0.0"),
        (["a=nan"], "weight is nan"),
        (["a=much"], "--corpora a=much: the weight is 'much', expected a number"),
        (["a=1", "a=2"], "names a twice"),
        (["a=1", "b"], "b has no weight, but other corpora have one"),
    ],
)
def test_invalid_weights_raise_config_error(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mixture(tuple(words))


def test_mixture_round_trips_through_json() -> None:
    data = PretrainingData(corpus=parse_mixture(("data/a=b=0.7", "c=0.3")))
    assert isinstance(data.corpus, CorpusMixture)
    assert data.corpus.corpora[0] == WeightedCorpus(folder="data/a=b", weight=0.7)
    assert from_json(PretrainingData, to_json(data)) == data
