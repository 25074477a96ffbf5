"""Tests text tasks in seqio: sentence pairs, mixtures, sources, and their preparation."""

import filecmp
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from bert_jax import batch as batch_lib
from bert_jax.apps.testing.text_corpus import NUM_TOPICS, topic_words, write_text, write_vocabulary
from bert_jax.config.data import Masking, SentencePairs
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.sources import PythonDocuments, RegisteredTask, TextFiles, Tfds
from bert_jax.data.seqio import text_tasks
from bert_jax.data.seqio.feature_converter import MaskedPairFeatureConverter
from bert_jax.data.seqio.vocabulary import SeqioVocabulary
from bert_jax.errors import UserError

LENGTHS = {"input_ids": 48, "masked_lm_positions": 8}
DOCUMENTS = 36


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes texts and a vocabulary; document d of `text` has only words of topic d % TOPICS."""
    folder = tmp_path_factory.mktemp("tasks")
    write_text(folder / "text", num_documents=DOCUMENTS, sentences_per_document=30)
    write_vocabulary(folder / "vocabulary")
    return folder


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> str:
    return str(folder / "vocabulary" / "vocab.txt")


@pytest.fixture(autouse=True)
def forget_tasks():
    yield
    seqio.TaskRegistry.reset()
    seqio.MixtureRegistry.reset()


def _topic_document(topic: int, number: int) -> str:
    return " ".join(
        f"{topic_words(topic)[(i + number) % 12].capitalize()} {topic_words(topic)[i % 5]}."
        for i in range(60)
    )


def _register(folder: Path, vocabulary: str, name: str = "books", **settings) -> Any:
    source = TextFiles(
        {"train": str(folder / "text" / "*"), "few": str(folder / "text" / "000[0-5]*")}
    )
    return text_tasks.register_text_task(name, source, tokenizer=vocabulary, **settings)


def _pairs(name: str, *, seed: int = 0, split: str = "train", **settings) -> list[dict]:
    task = seqio.get_mixture_or_task(name)
    dataset = task.get_dataset(sequence_length=LENGTHS, split=split, seed=seed, **settings)
    return list(dataset.as_numpy_iterator())


def _unmasked(pair: dict) -> np.ndarray:
    ids = pair["input_ids"].copy()
    ids[pair["masked_lm_positions"]] = pair["masked_lm_ids"]
    return ids


def test_pairs_have_special_tokens_and_lengths_of_bert(folder, vocabulary):
    _register(folder, vocabulary)
    engine = SeqioVocabulary(vocabulary).tokenizer
    topic_of = {
        engine.token_to_id(word): topic
        for topic in range(NUM_TOPICS)
        for word in topic_words(topic)
    }
    pairs = _pairs("books")
    assert len(pairs) > 150
    selected = shown = 0
    for pair in pairs:
        ids, types = _unmasked(pair), pair["token_type_ids"]
        assert len(ids) <= 48 and ids[0] == engine.cls_id and ids[-1] == engine.sep_id
        assert np.count_nonzero(ids == engine.sep_id) == 2 and engine.mask_id not in ids
        middle = int(np.argmax(ids == engine.sep_id))
        assert types.tolist() == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        positions = pair["masked_lm_positions"]
        assert np.all(np.diff(positions) > 0) and not {0, middle, len(ids) - 1} & {*positions}
        selected, shown = selected + len(positions), shown + len(ids) - 3
        # A document has one topic; two documents have the same topic in 1 of 6 cases.
        a, b = ({topic_of[i] for i in part if i in topic_of} for part in np.split(ids, [middle]))
        assert len(a) <= 1 and len(b) <= 1
        if pair["next_sentence_labels"] == 0:
            assert a == b or not a or not b
    assert 0.45 < np.mean([pair["next_sentence_labels"] for pair in pairs]) < 0.62
    assert 0.12 < selected / shown < 0.17


def test_random_text_never_comes_from_the_same_document(folder, vocabulary):
    def documents() -> list[str]:
        return [_topic_document(topic, 0) for topic in range(2)]

    text_tasks.register_text_task(
        "two",
        PythonDocuments(splits={"train": documents}),
        tokenizer=vocabulary,
        pairs=SentencePairs(random_next_prob=1.0),
        masking=Masking(mlm_probability=0.0),
    )
    pairs = _pairs("two", num_epochs=3)
    engine = SeqioVocabulary(vocabulary).tokenizer
    topics = [{engine.token_to_id(word) for word in topic_words(topic)} for topic in range(2)]
    assert len(pairs) > 15
    for pair in pairs:
        ids = _unmasked(pair)
        a, b = (
            set(part.tolist()) for part in np.split(ids, [int(np.argmax(ids == engine.sep_id))])
        )
        assert pair["next_sentence_labels"] == 1
        assert bool(a & topics[0]) != bool(b & topics[0])
        assert bool(a & topics[1]) != bool(b & topics[1])


@pytest.mark.slow  # the second epoch has other pairs, too
def test_pairs_depend_on_the_seed(folder, vocabulary):
    _register(folder, vocabulary)
    first, again = (_pairs("books", seed=1, split="few") for _ in range(2))
    for one, other in zip(first, again, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    different = _pairs("books", seed=2, split="few")
    assert {p["input_ids"].tobytes() for p in first}.isdisjoint(
        p["input_ids"].tobytes() for p in different
    )


def test_second_epoch_has_other_pairs(folder, vocabulary):
    _register(folder, vocabulary)
    pairs = _pairs("books", split="few", num_epochs=2, shuffle=False)
    one, two = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    assert {p["input_ids"].tobytes() for p in one}.isdisjoint(p["input_ids"].tobytes() for p in two)


def test_feature_converter_makes_batch_fields(folder, vocabulary):
    _register(folder, vocabulary)
    dataset = seqio.get_dataset(
        "books", LENGTHS, MaskedPairFeatureConverter(), batch_size=16, seed=0
    )
    fields = batch_lib.ENCODER_FIELDS + batch_lib.MASKED_LM_FIELDS + batch_lib.NEXT_SENTENCE_FIELDS
    expected = batch_lib.batch_spec(fields, {"B": 16, "L": 48, "P": 8})
    pairs = _pairs("books", shuffle=False)
    for number, batch in enumerate(dataset.take(3).as_numpy_iterator()):
        batch_lib.check_batch(batch, expected)
        for row in range(16):
            pair = pairs[16 * number + row]
            length, count = len(pair["input_ids"]), len(pair["masked_lm_ids"])
            assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (48 - length)
            assert batch["masked_lm_weights"][row].tolist() == [1] * count + [0] * (8 - count)
            for name, values in pair.items():
                padded = batch[name][row]
                np.testing.assert_array_equal(
                    padded[: values.size] if values.ndim else padded, values
                )


def test_mixture_has_the_rates_of_its_tasks(folder, vocabulary):
    for topic in range(3):
        source = PythonDocuments(
            splits={"train": lambda t=topic: [5 * _topic_document(t, n) for n in range(4)]}
        )
        text_tasks.register_text_task(f"topic{topic}", source, tokenizer=vocabulary)
    rates = [("topic0", 1.0), ("topic1", 2.0), ("topic2", 5.0)]
    seqio.MixtureRegistry.add("mixed", rates)
    engine = SeqioVocabulary(vocabulary).tokenizer
    dataset = seqio.get_mixture_or_task("mixed").get_dataset(
        sequence_length=LENGTHS, split="train", seed=0, num_epochs=None, shuffle=False
    )
    counts = np.zeros(3)
    for pair in dataset.take(200).as_numpy_iterator():
        ids = set(_unmasked(pair).tolist())
        counts += [
            any(engine.token_to_id(word) in ids for word in topic_words(topic))
            for topic in range(3)
        ]
    expected = np.array([1, 2, 5]) / 8
    # Four standard deviations of a fraction of 200.
    assert np.all(np.abs(counts / 200 - expected) < 4 * np.sqrt(expected * (1 - expected) / 200))


def test_processes_divide_the_documents(folder, vocabulary):
    task = _register(folder, vocabulary)
    seen = []
    for index in range(3):
        shard = seqio.ShardInfo(index=index, num_shards=3)
        dataset = task.preprocess_precache(task.source.get_dataset("train", shard_info=shard))
        seen += [document["ids"].tobytes() for document in dataset.as_numpy_iterator()]
    assert len(seen) == len(set(seen)) == DOCUMENTS


def _prepare(task: str, output: Path, **settings) -> Path:
    config = PrepareConfig(source=RegisteredTask(name=task), output=str(output), **settings)
    prepare(config, num_workers=1)
    return output


def test_task_of_text_files_gives_the_same_corpus_as_the_files(folder, vocabulary, tmp_path):
    _register(folder, vocabulary)
    files = TextFiles(str(folder / "text" / "*"))
    config = PrepareConfig(
        source=files, tokenizer=vocabulary, output=str(tmp_path / "files"), num_shards=3
    )
    prepare(config, num_workers=1)
    _prepare("books", tmp_path / "task", num_shards=3)
    names = [path.name for path in (tmp_path / "files").glob("documents-*[dz]")]
    assert len(names) == 6
    assert filecmp.cmpfiles(tmp_path / "files", tmp_path / "task", names, shallow=False)[0] == names


def test_seqio_and_direct_preparation_give_the_same_documents(folder, vocabulary, tmp_path):
    """Tests a task that is read through TensorFlow because of an additional, empty step."""
    plain = _register(folder, vocabulary)
    steps = [*plain.preprocessors]
    steps.insert(0, lambda dataset: dataset.map(lambda example: example))
    seqio.TaskRegistry.add(
        "longer", source=plain.source, preprocessors=steps, output_features=plain.output_features
    )
    assert text_tasks.read_task_settings(plain).files is not None
    assert text_tasks.read_task_settings(seqio.TaskRegistry.get("longer")).files is None
    _prepare("books", tmp_path / "pure", num_shards=1)
    _prepare("longer", tmp_path / "seqio", num_shards=1)
    for name in ("documents-00000-of-00001.arrayrecord", "documents-00000-of-00001.index.npz"):
        assert filecmp.cmp(tmp_path / "pure" / name, tmp_path / "seqio" / name, shallow=False)


def test_python_documents_are_prepared_with_dropped_counts(vocabulary, tmp_path):
    def documents() -> list[str]:
        return [_topic_document(0, 0), "1 2 3 4 5 6 7", _topic_document(1, 1), ""]

    source = PythonDocuments(splits={"train": documents})
    text_tasks.register_text_task("functions", source, tokenizer=vocabulary)
    corpus = PreparedCorpus(_prepare("functions", tmp_path / "prepared"))
    assert corpus.num_documents == 2 and corpus.num_sentences == 120
    assert corpus.manifest.dropped == {"empty": 1, "few letters": 1}
    assert corpus.manifest.task == "functions" and corpus.manifest.source["kind"] == "seqio"
    expected = sum(len(_topic_document(topic, topic)) for topic in range(2))
    assert corpus.manifest.counts.text_bytes == expected


class TinyWiki(tfds.core.GeneratorBasedBuilder):
    """Replaces `wikipedia`: each article has a title and a text."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(
            {"title": tfds.features.Text(), "text": tfds.features.Text()}
        )
        # dataset_info_from_configs looks for files next to a package.
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(20):
            yield number, {"title": str(number), "text": _topic_document(number % 3, number)}


def test_tfds_by_name_and_split(vocabulary, tmp_path):
    builder = TinyWiki(data_dir=tmp_path / "tfds")
    builder.download_and_prepare()
    source = Tfds(
        dataset="tiny_wiki:1.0.0",
        data_dir=str(tmp_path / "tfds"),
        splits={"train": "train[:75%]", "validation": "train[75%:]"},
    )
    text_tasks.register_text_task("wiki", source, tokenizer=vocabulary)
    for split, count in (("train", 15), ("validation", 5)):
        corpus = PreparedCorpus(_prepare("wiki", tmp_path / split, split=split))
        assert corpus.num_documents == count and corpus.num_sentences == 60 * count
    assert len(_pairs("wiki", split="validation")) >= 5


def test_tfds_name_without_a_version_raises(vocabulary):
    with pytest.raises(UserError, match=r"expected the version .* tiny_wiki:1\.0\.0; seqio"):
        text_tasks.register_text_task("wiki", Tfds(dataset="tiny_wiki"), tokenizer=vocabulary)


def test_invalid_tasks_raise(folder, vocabulary, tmp_path):
    with pytest.raises(UserError, match=r"no task 'none' is registered.*--module"):
        _prepare("none", tmp_path / "x")
    with pytest.raises(UserError, match=r"missing\.py: no such file"):
        text_tasks.find_task("none", "missing.py")
    task = _register(folder, vocabulary)
    with pytest.raises(UserError, match="split is 'test', expected one of"):
        _prepare("books", tmp_path / "x", split="test")
    with pytest.raises(UserError, match=r"sequence_length is \{\}; expected"):
        task.get_dataset(split="train")
    seqio.MixtureRegistry.add("mixed", ["books"], default_rate=1.0)
    with pytest.raises(UserError, match="mixed: this is a mixture"):
        _prepare("mixed", tmp_path / "x")
    seqio.TaskRegistry.add(
        "raw", source=task.source, preprocessors=[], output_features=task.output_features
    )
    with pytest.raises(UserError, match=r"no seqio\.CacheDatasetPlaceholder"):
        _prepare("raw", tmp_path / "x")


def test_corpus_of_one_document_raises(vocabulary):
    source = PythonDocuments(splits={"train": lambda: [_topic_document(0, 0)]})
    text_tasks.register_text_task("one", source, tokenizer=vocabulary)
    with pytest.raises(tf.errors.OpError, match="all documents have the same text"):
        _pairs("one")


def test_vocabulary_adapter(folder, vocabulary, tmp_path):
    adapter = SeqioVocabulary(vocabulary)
    engine = adapter.tokenizer
    text = "Baba bace. Unknown!"
    assert adapter.encode(text) == engine.encode(text) and adapter.vocab_size == engine.vocab_size
    assert adapter.encode_tf(tf.constant(text)).numpy().tolist() == engine.encode(text)
    rows = adapter.encode_tf(tf.constant([text, "", "cece baba bace"]))
    assert rows.to_list() == [engine.encode(t) for t in (text, "", "cece baba bace")]
    # Text after a [SEP] is still decoded.
    ids = [
        engine.cls_id,
        engine.token_to_id("baba"),
        engine.sep_id,
        engine.token_to_id("cece"),
        engine.sep_id,
    ]
    assert adapter.decode(ids) == engine.decode(ids)
    assert adapter.decode_tf(tf.constant(ids)).numpy().decode() == engine.decode(ids)
    assert adapter == SeqioVocabulary(vocabulary) and hash(adapter) == hash(
        SeqioVocabulary(vocabulary)
    )
    other = tmp_path / "vocab.txt"
    other.write_text((folder / "vocabulary" / "vocab.txt").read_text() + "zulu\n")
    assert adapter != SeqioVocabulary(str(other))
    assert (
        list(itertools.islice(adapter.encode("baba " * 3), 3)) == [engine.token_to_id("baba")] * 3
    )


def test_words_of_several_tokens_are_ragged_rows(shared):
    """Tests a difference from seqio's own WordPiece vocabulary, which pads words to a matrix."""
    adapter = SeqioVocabulary(str(shared / "vocab" / "bert-base-uncased" / "vocab.txt"))
    ids = adapter.encode_tf(tf.constant("Unaffable transubstantiation of hyperparameters"))
    assert ids.shape.rank == 1
    assert ids.numpy().tolist() == adapter.encode("Unaffable transubstantiation of hyperparameters")
    assert len(ids) > 6


def test_two_files_cannot_register_the_same_task(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tasks.py").write_text(
            "from bert_jax.data.corpus.sources import TextFiles\n"
            "from bert_jax.data.seqio.text_tasks import register_text_task\n"
            f"register_text_task('twice', TextFiles('{folder}.txt'), tokenizer='vocabulary')\n"
        )
    first = text_tasks.find_task("twice", str(tmp_path / "one" / "tasks.py"))
    assert text_tasks.find_task("twice", str(tmp_path / "two" / ".." / "one" / "tasks.py")) is first
    with pytest.raises(UserError, match=r"one/tasks.py has already registered a task 'twice'"):
        text_tasks.find_task("twice", str(tmp_path / "two" / "tasks.py"))
