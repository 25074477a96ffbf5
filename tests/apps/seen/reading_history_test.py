"""Compares the readings of passages with the batches of the loader, for all input formats.

Every id of the corpus occurs once, so that the place of a token is known from its id. Covers
bert_jax/apps/seen/reading_history.py, bert_jax/data/pretraining/provenance.py and the inverse of
the order.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.seen.reading_history import Reading, ReadingHistory
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.apps.testing.random_corpus import write_corpus
from bert_jax.config.data import (
    BartDenoising,
    ConcatenatedDocuments,
    CorpusMixture,
    DiffusionMasking,
    DocSentences,
    FullSentences,
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
from bert_jax.config.experiment import Experiment
from bert_jax.config.train import Phase
from bert_jax.data.corpus.document_list import read_document_list, write_document_list
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, read_manifest, write_manifest
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import Batch
from bert_jax.data.pretraining.provenance import document_starts
from bert_jax.data.pretraining.rng import ExampleRng, Stream, permute, scale_bits, unpermute
from bert_jax.errors import UserError
from bert_jax.runs import run_folder
from bert_jax.train.workloads.pretraining import PretrainingWorkload

NUM_SPECIAL = 5
NUM_TOKENS = 9000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)][:NUM_TOKENS]
PHASES = (
    Phase(steps=60, seq_length=32, batch_size=8, max_predictions_per_seq=6, target_length=32),
    Phase(steps=40, seq_length=64, batch_size=4, max_predictions_per_seq=12, target_length=64),
)
DATA: dict[str, dict[str, Any]] = {
    "pairs": {"input_format": SentencePairs()},
    "repeated masks": {
        "input_format": SentencePairs(),
        "masking_schedule": StaticMasking(dupe_factor=2),
    },
    "order": {"input_format": SentenceOrderPairs()},
    "segments": {"input_format": SingleSegment()},
    "packed": {"input_format": PackedSegments()},
    "diffusion": {"input_format": PackedSegments(), "masking": DiffusionMasking()},
    "causal rows": {"input_format": SingleSegment(), "causal_fraction": 0.3},
    "spans": {"input_format": DocSentences(), "masking": SpanMasking()},
    "full sentences": {"input_format": FullSentences()},
    "BART": {"input_format": SingleSegment(), "masking": BartDenoising(random_token_prob=0.0)},
    "T5": {"input_format": ConcatenatedDocuments(), "masking": PrefixLM()},
}


def _documents(first: int, stop: int, seed: int) -> list[list[list[int]]]:
    """Divides the ids [first, stop) into documents of 1 to 300 tokens and sentences of 1 to 90."""
    rng, ids, documents = np.random.default_rng(seed), list(range(first, stop)), []
    while ids:
        document, ids = ids[: (n := int(rng.integers(1, 300)))], ids[n:]
        sentences = []
        while document:
            longest = 90 if rng.random() < 0.1 else 20
            sentences.append(document[: (n := int(rng.integers(1, longest)))])
            document = document[n:]
        documents.append(sentences)
    return documents


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Writes a corpus of ids 5 to 6,999, and one of ids 7,000 to 9,004, each id once."""
    folder = tmp_path_factory.mktemp("corpora")
    tokenizer = word_tokenizer(folder / "words", WORDS)
    bounds = (NUM_SPECIAL, 7000, NUM_SPECIAL + NUM_TOKENS)
    for index, (first, stop) in enumerate(itertools.pairwise(bounds)):
        path = write_corpus(
            folder / f"corpus{index}",
            _documents(first, stop, seed=index),
            vocab_size=tokenizer.vocab_size,
            num_shards=2,
            max_part_tokens=100,
            vocabulary_fingerprint=tokenizer.fingerprint,
        )
        tokenizer.save(path / TOKENIZER_FOLDER)
        manifest = dataclasses.replace(read_manifest(path), fingerprint=f"corpus {index}" * 3)
        write_manifest(path, manifest)
    return [str(folder / "corpus0"), str(folder / "corpus1")]


def _experiment(corpus: str | CorpusMixture, **data: Any) -> Experiment:
    phases = PHASES
    is_causal = "causal_fraction" in data
    if is_causal or isinstance(data.get("masking"), DiffusionMasking):  # all may be predicted
        phases = tuple(
            dataclasses.replace(each, max_predictions_per_seq=each.seq_length) for each in PHASES
        )
    experiment = tiny_experiment("seen", "", phases)
    objective: Any = experiment.objective
    if is_causal:
        objective = dataclasses.replace(objective, masked_next_token=True, nsp_weight=0.0)
    return dataclasses.replace(
        experiment, data=PretrainingData(corpus=corpus, **data), objective=objective
    )


def _mixture(corpora: list[str]) -> CorpusMixture:
    books, notes = corpora
    weighted = WeightedCorpus(folder=books, weight=1.0), WeightedCorpus(folder=notes, weight=3.0)
    return CorpusMixture(corpora=weighted)


def _write_run(folder: Path, experiment: Experiment, step: int = 100) -> Path:
    """Writes what the history needs of a run folder."""
    folder.mkdir()
    run_folder.write_or_check_config(folder, experiment)
    (folder / run_folder.CHECKPOINTS / str(step)).mkdir(parents=True)
    data = experiment.data
    if isinstance(data, PretrainingData) and data.without:
        (folder / run_folder.WITHOUT).write_bytes(Path(data.without).read_bytes())
    return folder


def _batches(experiment: Experiment) -> list[Batch]:
    """Returns the batches of all updates, as the training reads them."""
    data = experiment.data
    assert isinstance(data, PretrainingData)
    workload = PretrainingWorkload(experiment, data, experiment.objective)  # pyright: ignore
    batches = []
    for index, phase in enumerate(PHASES):
        with workload.loader(index, 0) as loader:
            batches += [next(loader) for _ in range(phase.steps)]
    return batches


def _readings_in(batches: list[Batch], begin: int, end: int) -> list[tuple]:
    """Finds (update, row, tokens, predicted) of the ids [begin, end) in all batches."""
    found = []
    for update, batch in enumerate(batches, start=1):
        for row in range(len(batch["input_ids"])):
            ids, predicted = batch["input_ids"][row].copy(), None
            if "decoder_target_ids" in batch:
                # BART's decoder predicts the whole text, and T5's the part after the prefix.
                ids = np.concatenate((ids, batch["decoder_target_ids"][row]))
            else:
                used = batch["masked_lm_weights"][row] > 0
                # A random token of the passage was not read.
                ids[batch["masked_lm_positions"][row][used]] = batch["masked_lm_ids"][row][used]
                predicted = batch["masked_lm_ids"][row][used]
            read = _within(ids, begin, end)
            if read:
                chosen = None if predicted is None else _within(predicted, begin, end)
                found.append((update, row, read, chosen))
    return found


def _within(ids: np.ndarray, begin: int, end: int) -> tuple[int, ...]:
    return tuple(np.unique(ids[(ids >= begin) & (ids < end)] - begin).tolist())


def _as_tuples(readings: list[Reading]) -> list[tuple]:
    """Returns one reading for each row: two epochs may pack a short document into the same row."""
    rows: dict[tuple[int, int], list[Reading]] = {}
    for each in readings:
        rows.setdefault((each.update, each.row), []).append(each)
    return [
        (
            *row,
            tuple(sorted({token for each in found for token in each.tokens})),
            None
            if found[0].predicted is None
            else tuple(sorted({token for each in found for token in each.predicted or ()})),
        )
        for row, found in rows.items()
    ]


def _passages(history: ReadingHistory, count: int) -> list[tuple[int, int]]:
    """Draws passages of 1 to 40 tokens, each of one document, in tokens of all corpora."""
    rng, starts = np.random.default_rng(7), document_starts(history.texts[0])
    passages = []
    for _ in range(count):
        document = int(rng.integers(len(starts) - 1))
        begin = int(rng.integers(starts[document], starts[document + 1]))
        end = min(begin + int(rng.integers(1, 40)), int(starts[document + 1]))
        passages.append((begin, end))
    return passages


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(
    ("is_mixture", "count"),
    [(False, 40), (True, 12), pytest.param(True, 1000, marks=pytest.mark.slow)],
)
def test_readings_are_those_in_the_batches(
    corpora, tmp_path, name: str, is_mixture: bool, count: int
) -> None:
    corpus = _mixture(corpora) if is_mixture else corpora[0]
    experiment = _experiment(corpus, **DATA[name])
    history = ReadingHistory(_write_run(tmp_path / "run", experiment))
    passages = _passages(history, count)
    readings = history.read(passages)
    batches = _batches(experiment)
    for (begin, end), found in zip(passages, readings, strict=True):
        ids = begin + NUM_SPECIAL, end + NUM_SPECIAL
        assert _as_tuples(found) == _readings_in(batches, *ids)
    assert sum(map(len, readings)) > 2 * count
    # The loop above would hold for a history that finds nothing in the second phase.
    assert {reading.phase for each in readings for reading in each} == {0, 1}
    firsts = [each[0].update for each in readings if each]
    assert history.first_update(passages) == min(firsts)


@pytest.mark.parametrize("name", DATA)
def test_removed_documents_are_padding_and_all_else_stays(corpora, tmp_path, name: str) -> None:
    without = tmp_path / "without.tsv"
    write_document_list(without, [(corpora[0], 3), (corpora[0], 11), (corpora[1], 2)])
    mixture = _mixture(corpora)
    whole = _batches(_experiment(mixture, **DATA[name]))
    experiment = _experiment(mixture, without=str(without), **DATA[name])
    history = ReadingHistory(_write_run(tmp_path / "run", experiment))
    starts = document_starts(history.texts[0])
    removed = np.flatnonzero(read_document_list(without, history.corpora))
    ids = [np.arange(*starts[each : each + 2]) + NUM_SPECIAL for each in removed]
    num_cleared = 0
    for before, after in zip(whole, _batches(experiment), strict=True):
        contains = np.isin(_original_ids(before), np.concatenate(ids))
        other_rows = ~contains.any(axis=1)
        assert not np.isin(_original_ids(after), np.concatenate(ids)).any()
        for field, array in before.items():
            np.testing.assert_array_equal(after[field][other_rows], array[other_rows], field)
        if "packing_ids" not in before:
            assert not after["attention_mask"][~other_rows].any()
        else:  # only the example is cleared, not the row
            examples = before["packing_ids"] * contains
            cleared = (before["attention_mask"] > 0) & (after["attention_mask"] == 0)
            in_example = [
                np.isin(packed, np.unique(found[found > 0]))
                for packed, found in zip(before["packing_ids"], examples, strict=True)
            ]
            np.testing.assert_array_equal(cleared, in_example)
            for field in ("input_ids", "position_ids", "packing_ids"):
                np.testing.assert_array_equal(
                    after[field][~cleared], before[field][~cleared], field
                )
        if "num_maskable_tokens" in after:
            num_maskable = (_original_ids(after) >= NUM_SPECIAL).sum(axis=1)
            np.testing.assert_array_equal(after["num_maskable_tokens"], num_maskable)
        num_cleared += int((~other_rows).sum())
    assert num_cleared > 20
    passages = [(int(starts[each]), int(starts[each + 1])) for each in removed]
    assert history.read(passages) == [[], [], []]
    assert history.first_update(passages) is None


def _original_ids(batch: Batch) -> np.ndarray:
    """Returns the ids that were read, [B, T]: before masking, or of source and target."""
    if "decoder_target_ids" in batch:
        return np.concatenate((batch["input_ids"], batch["decoder_target_ids"]), axis=1)
    ids = batch["input_ids"].copy()
    row, place = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, place]] = batch["masked_lm_ids"][row, place]
    return ids


def test_random_numbers_have_vectorized_and_inverse_forms() -> None:
    indices = np.arange(12_345)
    for size, key in ((1, 3), (2, 5), (12_345, 99), (1 << 20, 7)):
        some = indices[indices < size]
        np.testing.assert_array_equal(unpermute(permute(some, size, key), size, key), some)
    rngs = [ExampleRng(key) for key in (0, 5, 2**63 + 11, 2**64 - 1)]
    bits = np.concatenate([rng.bits_array(3, Stream.ROTATION) for rng in rngs])
    for bound in (1, 7, 2**31 + 5, 2**32 - 1):
        expected = [rng.randint(bound, Stream.ROTATION, i) for rng in rngs for i in range(3)]
        assert scale_bits(bits, np.full(len(bits), bound)).tolist() == expected


def test_a_checkpoint_counts_only_the_updates_before_it(corpora, tmp_path) -> None:
    folder = _write_run(tmp_path / "run", _experiment(corpora[0]))
    (folder / run_folder.CHECKPOINTS / "37").mkdir()
    whole = ReadingHistory(folder)
    passages = _passages(whole, 20)
    with pytest.raises(UserError, match="no such checkpoint; the run has 37, 100"):
        ReadingHistory(folder / run_folder.CHECKPOINTS / "36")
    early = ReadingHistory(folder / run_folder.CHECKPOINTS / "37").read(passages)
    expected = [[r for r in each if r.update <= 37] for each in whole.read(passages)]
    assert early == expected and any(early)


def test_other_folders_and_changed_corpora_are_refused(corpora, tmp_path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        ReadingHistory(tmp_path)
    folder = _write_run(tmp_path / "run", _experiment(corpora[0]))
    saved = folder / run_folder.CONFIG
    saved.write_text(saved.read_text().replace('"config"', '"data_fingerprint": "x", "config"', 1))
    with pytest.raises(UserError, match="the training data has changed"):
        ReadingHistory(folder)
    folder = _write_run(tmp_path / "gone", _experiment(str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match="no such folder"):
        ReadingHistory(folder)


def test_bad_lists_of_documents_are_named_by_line(corpora, tmp_path) -> None:
    opened = [PreparedCorpus(corpora[0])]
    file = tmp_path / "documents.tsv"
    for content, message in (
        ("# nothing\n\n", "lists no documents"),
        ("3\n", "documents.tsv:1: found '3'"),
        (f"{corpora[0]}\tx\n", "documents.tsv:1: found"),
        (f"{corpora[0]}\t1\n{corpora[1]}\t1\n", "documents.tsv:2: .* is not a corpus of this run"),
        (f"{corpora[0]}\t9999\n", "has no document 9999; its documents are numbered 0 to"),
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=message):
            read_document_list(file, opened)
    with pytest.raises(UserError, match="cannot be read"):
        read_document_list(tmp_path / "absent", opened)
