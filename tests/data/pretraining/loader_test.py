"""Tests the pretraining loader: its state, and the same order on all hosts, workers, restarts."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax import batch as batch_lib
from bert_jax.apps.testing.random_corpus import random_documents, random_vocab_arrays, write_corpus
from bert_jax.config import config_lib as configs
from bert_jax.config.data import (
    DocSentences,
    DynamicMasking,
    FullSentences,
    InputFormat,
    Masking,
    MaskingConfig,
    NGramMasking,
    PackedSegments,
    PretrainingData,
    SentenceOrderPairs,
    SentencePairs,
    SingleSegment,
    SpanMasking,
    StaticMasking,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import Batch, BatchBuilder, batch_fields
from bert_jax.data.pretraining.loader import PretrainingLoader, evaluation_batches
from bert_jax.data.pretraining.rng import permute
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import ConfigError, UserError

TABLE = random_vocab_arrays()
# FullSentences is tested separately: its examples do not belong to one document.
WITHIN_DOCUMENTS = [SentencePairs(), SingleSegment(), PackedSegments(), DocSentences()]
INPUT_FORMATS = [*WITHIN_DOCUMENTS, FullSentences(), SentenceOrderPairs()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    short = random_documents(80, seed=1, mean_sentences=2, mean_tokens=8)
    documents = random_documents(20) + short + random_documents(20, seed=2)
    folder = tmp_path_factory.mktemp("corpus")
    return PreparedCorpus(write_corpus(folder, documents, num_shards=3, max_part_tokens=200))


def _config(examples: InputFormat, **settings) -> PretrainingData:
    return PretrainingData(corpus="", input_format=examples, **settings)


def _maker(corpus: PreparedCorpus, config: PretrainingData, **settings) -> BatchBuilder:
    sizes = {
        "seq_length": 64,
        "batch_size": 8,
        "max_predictions_per_seq": 10,
        "seed": 3,
        **settings,
    }
    return BatchBuilder(corpus, TABLE, config, **sizes)


def _loader(
    corpus: PreparedCorpus, config: PretrainingData, start: int = 0, **settings
) -> PretrainingLoader:
    return PretrainingLoader(_maker(corpus, config, **settings), start)


def _take(loader: PretrainingLoader, count: int) -> list[Batch]:
    with loader:
        return [next(loader) for _ in range(count)]


def _assert_equal(a: Batch, b: Batch) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def _fingerprint(batch: Batch) -> bytes:
    return b"".join(batch[name].tobytes() for name in sorted(batch))


def _unmasked(batch: Batch) -> np.ndarray:
    """Returns the input ids with the original tokens at masked positions."""
    ids = batch["input_ids"].copy()
    row, place = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, place]] = batch["masked_lm_ids"][row, place]
    return ids


@pytest.mark.parametrize("masking", [Masking(), NGramMasking(), SpanMasking(), None])
@pytest.mark.parametrize("examples", INPUT_FORMATS)
def test_batches_have_the_specified_fields_and_shapes(corpus, examples, masking) -> None:
    config = _config(examples, masking=masking)
    loader = _loader(corpus, config)
    (batch,) = _take(loader, 1)
    fields = batch_fields(loader.batch_builder.config)
    batch_lib.check_batch(batch, batch_lib.batch_spec(fields, {"B": 8, "L": 64, "P": 10}))


@pytest.mark.parametrize("examples", INPUT_FORMATS)
@pytest.mark.parametrize("hosts", [*(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4)), 8])
def test_processes_divide_the_rows_of_each_batch(corpus, examples, hosts: int) -> None:
    config = _config(examples)
    whole = _take(_loader(corpus, config), 5)
    parts = [
        _take(_loader(corpus, config, process_index=host, process_count=hosts), 5)
        for host in range(hosts)
    ]
    for number, batch in enumerate(whole):
        joined = {n: np.concatenate([part[number][n] for part in parts]) for n in batch}
        _assert_equal(batch, joined)


@pytest.mark.parametrize(
    ("examples", "masking"),
    [
        *((examples, Masking()) for examples in INPUT_FORMATS),
        (SentencePairs(), NGramMasking()),
        (PackedSegments(), SpanMasking()),
        (DocSentences(), SpanMasking()),
    ],
)
def test_resumed_loader_continues_with_the_same_batches(
    corpus, examples: InputFormat, masking: MaskingConfig
) -> None:
    config = _config(examples, masking=masking)
    loader = _loader(corpus, config)
    batches, positions = [], [loader.position]
    with loader:
        for _ in range(
            loader.batch_builder.examples_per_epoch // 8 * 2 + 3
        ):  # into the third epoch
            batches.append(next(loader))
            positions.append(loader.position)
    assert positions[-1] > 2 * loader.batch_builder.examples_per_epoch
    for resumed in range(0, len(batches) - 1, 7):
        again = _loader(corpus, config, start=positions[resumed])
        for batch, expected in zip(_take(again, 2), batches[resumed:], strict=False):
            _assert_equal(batch, expected)
        assert again.position == positions[resumed + 2]


def test_unpacked_batch_k_contains_examples_from_k_times_batch_size(corpus) -> None:
    loader = _loader(corpus, _config(SentencePairs()))
    _take(loader, 3)
    assert loader.position == 24
    assert loader.example_indices(16) == range(16, 24)
    documents = loader.batch_builder.plan_batch(16)[0].document_indices.tolist()
    assert len(documents) == 8 and all(0 <= number < corpus.num_documents for number in documents)


@pytest.mark.parametrize("prefetch", [1, 16])
def test_prefetching_does_not_change_batches(corpus, prefetch: int) -> None:
    expected = _take(_loader(corpus, _config(PackedSegments())), 6)
    batches = _take(_loader(corpus, _config(PackedSegments(), prefetch_batches=prefetch)), 6)
    for batch, other in zip(batches, expected, strict=True):
        _assert_equal(batch, other)


@pytest.mark.parametrize("examples", WITHIN_DOCUMENTS)
def test_epoch_contains_every_example_once(corpus, examples) -> None:
    maker = _maker(corpus, _config(examples))
    for epoch in range(2):
        found = maker.resolve_examples(epoch * maker.examples_per_epoch, maker.examples_per_epoch)
        assert sorted(found.example_indices) == list(range(maker.examples_per_epoch))
        assert set(found.document_indices) == set(range(corpus.num_documents))
        assert len(set(found.keys.tolist())) == maker.examples_per_epoch
    position, seen = 0, Counter()
    while position < maker.examples_per_epoch:
        _, placed = maker.plan_batch(position)
        seen.update(range(position, position + len(placed.rows)))
        position += len(placed.rows)
    assert set(seen.values()) == {1} and len(seen) == position


def test_epoch_contains_every_document(tmp_path: Path) -> None:
    # Document d consists of the token 5 + d alone.
    documents = [[[5 + d] * 7] * (1 + 5 * (d % 4)) for d in range(40)]
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=2, max_part_tokens=30))
    for examples in WITHIN_DOCUMENTS:
        maker = _maker(corpus, _config(examples, masking=None))
        position, seen = 0, set()
        while position < maker.examples_per_epoch:
            batch, position = maker.build_batch(position)
            first = batch["input_ids"][batch["token_type_ids"] == 0]
            seen |= set(first.tolist())
        assert seen - {0, 2, 3} == {5 + d for d in range(40)}


def test_segment_b_is_from_another_document_iff_label_is_random(tmp_path: Path) -> None:
    documents = [[[5 + d] * 9] * (1 + 3 * (d % 5)) for d in range(30)]
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3, max_part_tokens=30))
    maker = _maker(corpus, _config(SentencePairs(), masking=None), batch_size=2000)
    batch, _ = maker.build_batch(0)
    rows = np.arange(2000)
    second = batch["token_type_ids"] == 1
    a = batch["input_ids"][:, 1]
    b = batch["input_ids"][rows, second.argmax(axis=1)]
    np.testing.assert_array_equal(a != b, batch["next_sentence_labels"] == 1)
    for row in rows.tolist():
        ids = batch["input_ids"][row]
        assert set(ids[second[row]].tolist()) == {int(b[row]), 3}


def test_random_segment_b_is_uniform_over_other_documents(tmp_path: Path) -> None:
    documents = [[[5 + d] * 60] * (d + 1) for d in range(8)]  # one sentence fills segment B
    corpus = PreparedCorpus(write_corpus(tmp_path, documents, num_shards=3))
    maker = _maker(
        corpus, _config(SentencePairs(random_next_prob=1.0), masking=None), batch_size=8000
    )
    batch, _ = maker.build_batch(0)
    second = (batch["token_type_ids"] == 1).argmax(axis=1)
    a = batch["input_ids"][:, 1] - 5
    b = batch["input_ids"][np.arange(8000), second] - 5
    expected = np.zeros(8)
    for document in range(8):
        weights = np.arange(1, 9) * (np.arange(8) != document)
        expected += (a == document).sum() * weights / weights.sum()
    counts = np.bincount(b, minlength=8)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    assert (a != b).all()


@pytest.mark.parametrize("examples", INPUT_FORMATS)
def test_dynamic_masking_changes_each_epoch_and_static_repeats(corpus, examples) -> None:
    def epochs(draws: DynamicMasking | StaticMasking) -> list[list[int]]:
        maker = _maker(corpus, _config(examples, masking_schedule=draws), batch_size=1)
        result = []
        for epoch in range(5):
            found = maker.resolve_examples(
                epoch * maker.examples_per_epoch, maker.examples_per_epoch
            )
            order = np.argsort(found.example_indices)
            result.append([int(key) for key in found.keys[order]])
        return result

    dynamic, static = epochs(DynamicMasking()), epochs(StaticMasking(dupe_factor=2))
    assert len({tuple(keys) for keys in dynamic}) == 5
    assert static[0] == static[2] == static[4] and static[1] == static[3] != static[0]


def test_static_masking_repeats_the_same_rows(corpus) -> None:
    maker = _maker(
        corpus,
        _config(SentencePairs(), masking_schedule=StaticMasking(dupe_factor=2)),
        batch_size=1,
    )
    size = maker.examples_per_epoch

    def rows(epoch: int) -> list[bytes]:
        return sorted(_fingerprint(maker.build_batch(epoch * size + i)[0]) for i in range(size))

    assert rows(0) == rows(2) != rows(1)


def test_batches_depend_on_the_seed(corpus) -> None:
    a, _ = _maker(corpus, _config(SentencePairs())).build_batch(0)
    b, _ = _maker(corpus, _config(SentencePairs()), seed=4).build_batch(0)
    assert _fingerprint(a) != _fingerprint(b)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 64, 1000, 4097])
def test_permute_returns_a_permutation_that_depends_on_the_key(size: int) -> None:
    images = [permute(np.arange(size), size, key) for key in (1, 2)]
    for image in images:
        assert sorted(image.tolist()) == list(range(size))
    if size >= 64:
        assert (images[0] == images[1]).mean() < 0.1
        assert abs(np.corrcoef(images[0], np.arange(size))[0, 1]) < 5 / np.sqrt(size)


def test_permute_is_uniform() -> None:
    size, keys = 10, 1500
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), permute(np.arange(size), size, key * 7919)] += 1
    expected = keys / size
    assert ((counts - expected) ** 2 / expected).sum() < 81 + 5 * np.sqrt(2 * 81)


def test_packed_rows_contain_the_single_segments_unchanged(corpus) -> None:
    packed = _maker(corpus, _config(PackedSegments(), masking=None))
    single = _maker(corpus, _config(SingleSegment(), masking=None), batch_size=1)
    position, rows_used = 0, 0
    for _ in range(10):
        batch, after = packed.build_batch(position)
        found = []
        for row in range(8):
            ids = batch["packing_ids"][row]
            assert (np.diff(ids[ids > 0]) >= 0).all() and (np.diff(ids[ids > 0]) <= 1).all()
            rows_used += ids.any()
            for number in range(1, ids.max() + 1):
                here = ids == number
                np.testing.assert_array_equal(
                    batch["position_ids"][row][here], np.arange(here.sum())
                )
                found.append(batch["input_ids"][row][here].tolist())
            assert not batch["input_ids"][row][ids == 0].any()
        expected = []
        for global_example in range(position, after):
            alone, _ = single.build_batch(global_example)
            expected.append(alone["input_ids"][0][alone["attention_mask"][0] == 1].tolist())
        assert sorted(found) == sorted(expected)
        position = after
    assert rows_used == 80 and position > 80


def test_masking_of_packed_rows_has_the_same_rates(corpus) -> None:
    maker = _maker(corpus, _config(PackedSegments()), batch_size=500)
    plain = _maker(corpus, _config(PackedSegments(), masking=None), batch_size=500)
    (batch, _), (original, _) = maker.build_batch(0), plain.build_batch(0)
    np.testing.assert_array_equal(_unmasked(batch), original["input_ids"])
    ordinary = (original["input_ids"] > 4).sum(axis=1)
    wanted = np.minimum(np.rint(ordinary * 0.15).clip(1), 10)
    np.testing.assert_array_equal(batch["masked_lm_weights"].sum(axis=1), wanted)


def test_evaluation_batches_are_the_same_every_time(corpus) -> None:
    pairs = _config(SentencePairs())
    maker = _maker(corpus, pairs)
    first = list(evaluation_batches(maker, num_examples=30))
    assert len(first) == 3
    for a, b in zip(first, evaluation_batches(maker, num_examples=30), strict=True):
        _assert_equal(a, b)
    host = evaluation_batches(_maker(corpus, pairs, process_index=1, process_count=2), 30)
    for a, b in zip(first, host, strict=True):
        np.testing.assert_array_equal(a["input_ids"][4:], b["input_ids"])
    epoch = maker.examples_per_epoch
    assert len(list(evaluation_batches(maker, num_examples=10**9))) == epoch // 8
    assert len(list(evaluation_batches(_maker(corpus, pairs, batch_size=2 * epoch), 1))) == 1


def test_corpus_of_one_document_raises_for_pairs_only(tmp_path: Path) -> None:
    one = PreparedCorpus(write_corpus(tmp_path, random_documents(1)))
    with pytest.raises(UserError, match="the corpus has one document"):
        _maker(one, _config(SentencePairs()))
    batch, _ = _maker(one, _config(SingleSegment())).build_batch(0)
    assert batch["attention_mask"].any(axis=1).all()


def test_documents_may_have_one_sentence_or_one_token(tmp_path: Path) -> None:
    corpus = PreparedCorpus(write_corpus(tmp_path, [[[7]], [[8]], [[9] * 300]]))
    for examples in INPUT_FORMATS:
        batch, _ = _maker(corpus, _config(examples)).build_batch(0)
        assert (batch["masked_lm_weights"].sum(axis=1) >= 1).all()
        if isinstance(examples, SentencePairs):
            assert batch[
                "next_sentence_labels"
            ].all()  # a document of one sentence has no next sentence


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 10, "process_count": 4}, "batch_size is 10, expected a multiple of 4"),
        ({"process_index": 2, "process_count": 2}, "process_index is 2, expected 0 to 1"),
        ({"seq_length": 4}, "seq_length is 4"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq is 0"),
    ],
)
def test_invalid_sizes_raise_config_error(corpus, settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _maker(corpus, _config(SentencePairs()), **settings)


def test_invalid_masking_probabilities_raise_config_error() -> None:
    for make in (
        lambda: Masking(mlm_probability=1.5),
        lambda: Masking(mask_replace_prob=0.8, random_replace_prob=0.3),
        lambda: SentencePairs(short_seq_prob=-0.1),
        lambda: StaticMasking(dupe_factor=0),
        lambda: PretrainingData(corpus="", prefetch_batches=0),
        lambda: PretrainingData(corpus="", num_workers=-1),
    ):
        with pytest.raises(ConfigError):
            make()


SCRIPT = """
import sys
from bert_jax.config.data import PretrainingData
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.apps.testing.random_corpus import random_vocab_arrays

def main():
    for workers in (0, 2):
        config = PretrainingData(corpus=sys.argv[1], num_workers=workers)
        sizes = dict(seq_length=64, batch_size=8, max_predictions_per_seq=10, seed=3)
        builder = BatchBuilder(
            PreparedCorpus(sys.argv[1]), random_vocab_arrays(), config, **sizes
        )
        with PretrainingLoader(builder) as loader:
            for _ in range(5):
                print(next(loader)["input_ids"].sum(), loader.position)
    assert not {"tensorflow", "seqio", "torch"} & set(sys.modules), "heavy import"

if __name__ == "__main__":
    main()
"""


def test_worker_processes_build_the_same_batches_without_tensorflow(corpus, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(corpus.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[:5] == lines[5:10]
    expected = _take(_loader(corpus, _config(SentencePairs())), 5)
    assert [int(line.split()[0]) for line in lines[:5]] == [b["input_ids"].sum() for b in expected]


def test_pairs_of_real_speeches_contain_their_text(shared: Path, tmp_path: Path) -> None:
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.sources import TextFiles

    config = PrepareConfig(
        source=TextFiles(str(shared / "text/inaugural/19*.txt")),
        tokenizer=str(shared / "vocab/bert-base-uncased/vocab.txt"),
        output=str(tmp_path),
    )
    prepare(config, num_workers=1)
    corpus = PreparedCorpus(tmp_path)
    texts = []
    for document in range(corpus.num_documents):
        parts = corpus.parts_from(int(corpus.first_part[document]), document)
        texts.append(np.concatenate([part.ids for part in parts]).astype(np.int32).tobytes())
    loader = PretrainingLoader(
        BatchBuilder(
            corpus,
            VocabArrays.from_tokenizer(corpus.tokenizer()),
            _config(SentencePairs()),
            seq_length=128,
            batch_size=64,
            max_predictions_per_seq=20,
            seed=0,
        )
    )
    (batch,) = _take(loader, 1)
    ids, mask_id = _unmasked(batch), corpus.tokenizer().mask_id
    assert (batch["input_ids"] == mask_id).sum() > 600 and not (ids == mask_id).any()
    for row, document in enumerate(loader.batch_builder.plan_batch(0)[0].document_indices.tolist()):
        real = ids[row][batch["attention_mask"][row] == 1]
        middle = int(batch["token_type_ids"][row].argmax())
        a, b = real[1 : middle - 1].tobytes(), real[middle:-1].tobytes()
        assert a in texts[document]
        assert any(b in text for text in texts)
        if batch["next_sentence_labels"][row] == 0:
            assert b in texts[document]


@pytest.mark.parametrize(
    "masking", [Masking(whole_word_mask=True), NGramMasking(max_ngram=2), SpanMasking(), None]
)
@pytest.mark.parametrize("examples", INPUT_FORMATS)
def test_config_round_trips_through_json(examples, masking) -> None:
    config = _config(examples, masking=masking, masking_schedule=StaticMasking(dupe_factor=3))
    assert configs.from_json(PretrainingData, configs.to_json(config)) == config


def test_damaged_shard_is_named_during_iteration(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path, random_documents(40))
    path = folder / "documents-00000-of-00001.arrayrecord"
    content = bytearray(path.read_bytes())
    needle = PreparedCorpus(folder).read(20).ids[:8].tobytes()
    content[content.find(needle)] ^= 1
    path.write_bytes(content)
    loader = _loader(PreparedCorpus(folder), _config(SingleSegment()))
    with loader, pytest.raises(UserError, match=f"{path.name}: damaged"):
        for _ in range(loader.batch_builder.examples_per_epoch):
            next(loader)
