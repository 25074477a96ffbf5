"""Compares seqio's denoising tasks with the training loader, for span corruption and BART's noise.

Covers bert_jax/data/seqio/denoising_tasks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio

from bert_jax.apps.testing.text_corpus import write_text
from bert_jax.config.data import (
    BartDenoising,
    ConcatenatedDocuments,
    Denoising,
    FullSentences,
    InputFormat,
    PretrainingData,
    SingleSegment,
    SpanCorruption,
)
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.corpus.sources import TextFiles
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.seqio.denoising_tasks import register_denoising_task
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.learn import train_tokenizer_from_files

LENGTHS = {"inputs": 32, "targets": 32}
T5, BART = "unigram", "bpe"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the corpora `unigram`, with sentinels as for T5, and `bpe` as for BART."""
    folder = tmp_path_factory.mktemp("denoising")
    write_text(folder / "text", num_documents=6, sentences_per_document=8)
    text = str(folder / "text/*")
    for training in (
        TokenizerTrainingConfig(kind=T5, vocab_size=64, sentinels=8),
        TokenizerTrainingConfig(kind=BART, vocab_size=280),
    ):
        tokenizer = str(folder / f"{training.kind}-vocabulary")
        train_tokenizer_from_files([text], tokenizer, training)
        output = str(folder / training.kind)
        config = PrepareConfig(source=TextFiles(text), tokenizer=tokenizer, output=output)
        prepare(config, num_workers=1)
    return folder


@pytest.fixture(autouse=True)
def forget_tasks():
    yield
    seqio.TaskRegistry.reset()


def _loader_examples(
    corpus: Path, noise: Denoising, input_format: InputFormat, *, epochs: int
) -> list[tuple[list[int], list[int]]]:
    """Returns sources and targets of the loader with seed 3, without padding."""
    data = PretrainingData(corpus=str(corpus), input_format=input_format, masking=noise)
    sizes: Any = {
        "seq_length": 32,
        "target_length": 32,
        "max_predictions_per_seq": 1,
        "batch_size": 4,
    }
    examples: list[tuple[list[int], list[int]]] = []
    prepared = PreparedCorpus(corpus)
    vocab_arrays = VocabArrays.from_tokenizer(prepared.tokenizer())
    builder = BatchBuilder(prepared, vocab_arrays, data, seed=3, **sizes)
    with PretrainingLoader(builder) as loader:
        total = epochs * loader.examples_per_epoch
        while len(examples) < total:
            batch = next(loader)
            for row in range(4):
                source = batch["input_ids"][row, : batch["attention_mask"][row].sum()]
                length = int(batch["decoder_target_weights"][row].sum())
                target = batch["decoder_target_ids"][row, :length]
                examples.append((source.tolist(), target.tolist()))
    return examples[:total]


def _task_examples(task: seqio.Task, **settings) -> list[tuple[list[int], list[int]]]:
    dataset = task.get_dataset(sequence_length=LENGTHS, split="train", seed=3, **settings)
    examples = dataset.as_numpy_iterator()
    return [(example["inputs"].tolist(), example["targets"].tolist()) for example in examples]


@pytest.mark.parametrize(
    ("kind", "noise", "input_format"),
    [
        (T5, SpanCorruption(), ConcatenatedDocuments()),
        (BART, BartDenoising(rotation_prob=0.5), SingleSegment()),
    ],
)
def test_examples_equal_those_of_the_loader(kind, noise, input_format, folder):
    expected = _loader_examples(folder / kind, noise, input_format, epochs=2)
    task = register_denoising_task("noisy_books", str(folder / kind), noise=noise)
    assert _task_examples(task, num_epochs=2) == expected
    count = len(expected) // 2
    assert count > 10 and sorted(expected[:count]) != sorted(expected[count:])
    shards = [
        _task_examples(task, shard_info=seqio.ShardInfo(index=index, num_shards=3))
        for index in range(3)
    ]
    assert shards == [expected[index:count:3] for index in range(3)]


def test_encoder_decoder_converter_of_seqio_takes_the_task(folder):
    register_denoising_task("noisy_books", str(folder / T5), noise=SpanCorruption())
    converter = seqio.EncDecFeatureConverter(pack=False)
    dataset = seqio.get_dataset("noisy_books", LENGTHS, converter, seed=3)
    expected = _loader_examples(folder / T5, SpanCorruption(), ConcatenatedDocuments(), epochs=1)
    found = list(dataset.as_numpy_iterator())
    for fields, (source, target) in zip(found, expected, strict=True):
        padded_source = source + [0] * (32 - len(source))
        np.testing.assert_array_equal(fields["encoder_input_tokens"], padded_source)
        assert fields["decoder_target_tokens"][: len(target)].tolist() == target
        assert fields["decoder_loss_weights"].tolist() == [1] * len(target) + [0] * (
            32 - len(target)
        )


def test_invalid_denoising_tasks_raise(folder):
    t5, bart, noise = str(folder / T5), str(folder / BART), SpanCorruption()
    with pytest.raises(UserError, match="corpora with different tokenizers"):
        register_denoising_task("x", {"train": t5, "validation": bart}, noise=noise)
    with pytest.raises(UserError, match="has no splits"):
        register_denoising_task("x", {}, noise=noise)
    with pytest.raises(ConfigError, match=r"expected data\.input_format"):
        register_denoising_task("x", t5, noise=noise, input_format=FullSentences())
    task = register_denoising_task("t5", t5, noise=noise)
    with pytest.raises(UserError, match=r"sequence_length is \{\}; expected the lengths"):
        task.get_dataset(split="train")
    with pytest.raises(UserError, match=r"'targets': 4\}: .* set target_length to at least"):
        task.get_dataset({"inputs": 32, "targets": 4}, "train")
    task = register_denoising_task("bart", bart, noise=noise)
    with pytest.raises(UserError, match="the tokenizer has no sentinel tokens"):
        task.get_dataset(LENGTHS, "train")
