"""Covers bert_jax/data/text_to_text: casting of labeled tasks, files of texts, order of batches."""

import collections
from typing import Any

import numpy as np
import pytest

from bert_jax.config.labeled_data import (
    CappedMixing,
    Glue,
    GlueName,
    NamedTextTask,
    ProportionalMixing,
    TextColumns,
    TextToTextData,
)
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.data.finetuning.example import Answer, ChoiceExample, QuestionExample, TextExample
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.pretraining.denoising import SourceAndTarget
from bert_jax.data.text_to_text import (
    TextTask,
    TextToTextLoader,
    cast_example,
    check_labels,
    label_index,
    load_text_task,
    parse_score,
    score_text,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.text.learn import train_tokenizer


def test_glue_and_squad_are_cast_as_in_t5() -> None:
    pair = TextExample(id="1", text="A b.", text_pair="C d.", label="entailment")
    cast = cast_example(pair, "mnli")
    assert cast.source == "mnli hypothesis: C d. premise: A b." and cast.targets == ("entailment",)
    assert cast_example(pair, "rte").source == "rte sentence1: A b. sentence2: C d."
    assert cast_example(pair, "qnli").source == "qnli question: A b. sentence: C d."
    assert cast_example(pair, "qqp").source == "qqp question1: A b. question2: C d."
    assert cast_example(pair, "cola").source == "cola sentence1: A b. sentence2: C d."
    single = TextExample(id="1", text="A b.", label="acceptable")
    assert cast_example(single, "cola").source == "cola sentence: A b."
    question = QuestionExample(
        id="q",
        question="Who fell?",
        context="Rome (it) fell.",
        answers=(Answer(text="Rome's", start=0),),
    )
    cast = cast_example(question, "squad")
    assert cast.source == "question: Who fell ? context: Rome ( it ) fell ."
    assert cast.targets == ("Rome ' s",)
    with pytest.raises(UserError, match="ChoiceExample, which cannot be cast as text"):
        cast_example(ChoiceExample(id="1", context="a", choices=("b", "c")), "swag")


def test_scores_are_rounded_to_multiples_of_a_fifth() -> None:
    assert [score_text(x) for x in (2.57, 3.8, 0.0, 4.75, 5.0)] == [
        "2.6",
        "3.8",
        "0.0",
        "4.8",
        "5.0",
    ]
    example = TextExample(id="1", text="a", text_pair="b", label=0.57)
    assert cast_example(example, "stsb").targets == ("0.6",)
    assert cast_example(example, "own").targets == ("0.57",)
    assert [parse_score(text) for text in ("2.6", "-3", "two", "nan", "")] == [2.6, -3, -1, -1, -1]


def test_other_outputs_are_no_label() -> None:
    labels = ("entailment", "not_entailment")
    assert [label_index(text, labels) for text in ("not_entailment", "not", "Entailment")] == [
        1,
        -1,
        -1,
    ]


def _labels_task(*labels: str) -> TextTask:
    return TextTask(kind="classification", labels=labels, metrics=(), splits={})


def test_labels_that_the_decoder_cannot_write_raise() -> None:
    texts = ["good enough bad", "good enough worse"] * 20
    tokenizer, _ = train_tokenizer(
        texts, TokenizerTrainingConfig(kind="unigram", vocab_size=40, sentinels=2)
    )
    # A label may begin another one, because both end with the end token.
    check_labels(_labels_task("good", "good enough"), "own", tokenizer, 16)
    needed = len(tokenizer.encode("good enough")) + 1
    check_labels(_labels_task("good", "good enough"), "own", tokenizer, needed)
    with pytest.raises(UserError, match=f"'good enough' has .* to at least {needed}"):
        check_labels(_labels_task("good", "good enough"), "own", tokenizer, needed - 1)
    with pytest.raises(UserError, match="'good' and ' good' have the same tokens"):
        check_labels(_labels_task("good", " good"), "own", tokenizer, 16)
    with pytest.raises(UserError, match="turns the label 'good 9' into"):
        check_labels(_labels_task("good 9", "bad"), "own", tokenizer, 16)


def test_real_glue_has_the_label_words_of_t5(shared) -> None:
    names: tuple[GlueName, ...] = ("cola", "mrpc")
    for name, words in zip(names, ({"acceptable", "unacceptable"}, {"equivalent"}), strict=True):
        config = Glue(task=name, folder=str(shared / "glue"))
        try:
            labeled = load_task(config)
        except UserError:
            pytest.skip(f"no {name} in the shared data")
        task = load_text_task(config, name)
        examples = task.splits["train"]
        assert words <= {example.targets[0] for example in examples} <= set(labeled.labels)
        assert all(example.source.startswith(f"{name} sentence") for example in examples)


def test_columns_of_texts_are_read_with_their_errors(tmp_path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("a,b\nx y,z\nv,w\n")
    config = TextColumns(train=str(file), source="a", target="b")
    task = load_text_task(config, "own")
    assert [(e.source, e.targets) for e in task.splits["train"]] == [("x y", ("z",)), ("v", ("w",))]
    file.write_text("a,b\n ,z\n")
    with pytest.raises(UserError, match=r"line 2: the column 'a' is empty"):
        load_text_task(config, "own")
    with pytest.raises(UserError, match="there is no column 'c'"):
        load_text_task(TextColumns(train=str(file), source="a", target="c"), "own")
    with pytest.raises(ConfigError, match="expected two different column names"):
        TextColumns(train="x", source="a", target="a")
    named = NamedTextTask(name="a", task=config)
    with pytest.raises(ConfigError, match="the name 'a' more than once"):
        TextToTextData(tasks=(named, named), tokenizer="t")


def _examples(count: int, first_id: int) -> list[SourceAndTarget]:
    return [
        SourceAndTarget(np.array([first_id + n, 1]), np.array([first_id + n])) for n in range(count)
    ]


def _loader(mixing, **settings) -> TextToTextLoader:
    sizes = {"lengths": (3, 2), "batch_size": 4, "packing": False, "pad_id": 0, "seed": 1}
    sizes |= settings
    return TextToTextLoader({"a": _examples(6, 10), "b": _examples(2, 20)}, mixing, **sizes)


def test_batches_continue_from_a_position_on_any_number_of_processes() -> None:
    loader = _loader(ProportionalMixing())
    batches = [next(loader) for _ in range(4)]
    assert loader.position == 16 and loader.examples_per_epoch == 8
    first_epoch = np.concatenate([batch["input_ids"][:, 0] for batch in batches[:2]])
    assert sorted(first_epoch.tolist()) == [10, 11, 12, 13, 14, 15, 20, 21]
    later = next(_loader(ProportionalMixing(), start=8))
    halves = [
        next(_loader(ProportionalMixing(), start=8, process_index=index, process_count=2))
        for index in range(2)
    ]
    for name, values in batches[2].items():
        assert np.array_equal(values, later[name])
        assert np.array_equal(values, np.concatenate([half[name] for half in halves]))
    assert batches[0]["decoder_target_weights"].tolist() == [[1.0, 0.0]] * 4


def test_a_cap_makes_rates_more_equal() -> None:
    loader = _loader(CappedMixing(max_examples=2))
    ids = np.concatenate([next(loader)["input_ids"][:, 0] for _ in range(6)])
    assert (ids < 20).sum() == (ids >= 20).sum() == 12


def _split_packed_rows(batch: dict[str, np.ndarray]) -> list[tuple[list[int], list[int]]]:
    """Returns the source and the target of each packed example, row by row."""
    found = []
    for row in range(len(batch["input_ids"])):
        for number in range(1, batch["packing_ids"][row].max() + 1):
            source = batch["packing_ids"][row] == number
            target = batch["decoder_packing_ids"][row] == number
            assert batch["position_ids"][row][source].tolist() == list(range(source.sum()))
            assert batch["decoder_position_ids"][row][target].tolist() == list(range(target.sum()))
            sides = batch["input_ids"][row][source], batch["decoder_target_ids"][row][target]
            found.append((sides[0].tolist(), sides[1].tolist()))
    return found


def test_packed_batches_have_every_example_once_and_continue_anywhere() -> None:
    rng = np.random.default_rng(0)
    examples = [
        SourceAndTarget(np.full(rng.integers(2, 12), 100 + n), np.full(rng.integers(1, 7), 100 + n))
        for n in range(90)
    ]
    settings: dict[str, Any] = {
        "lengths": (16, 8),
        "batch_size": 4,
        "packing": True,
        "pad_id": 0,
        "seed": 1,
    }

    def loader(**more: Any) -> TextToTextLoader:
        return TextToTextLoader({"a": examples}, ProportionalMixing(), **settings, **more)

    packed, seen = loader(), list[tuple[list[int], list[int]]]()
    while packed.position < 2 * len(examples):
        start = packed.position
        batch = next(packed)
        found = _split_packed_rows(batch)
        assert len(found) == packed.position - start >= 4
        seen += found
        # The last tokens of a row may be padding, but no token is without its packing id.
        assert np.array_equal(batch["attention_mask"], batch["packing_ids"] > 0)
        assert np.array_equal(batch["decoder_target_weights"], batch["decoder_packing_ids"] > 0)
        halves = [
            next(loader(start=start, process_index=index, process_count=2)) for index in range(2)
        ]
        for name, values in batch.items():
            assert np.array_equal(values, np.concatenate([half[name] for half in halves])), name
    expected = sorted((source.tolist(), target.tolist()) for source, target in examples)
    # A batch may have examples of two epochs, so both epochs are compared together.
    surplus = len(seen) - 2 * len(examples)
    counts = collections.Counter(source[0] for source, _ in seen)
    assert sum(counts.values()) - 2 * len(counts) == surplus and min(counts.values()) == 2
    assert all(pair in expected for pair in seen)
