"""Tests templates, label words, truncation and demonstrations of prompts.

Covers bert_jax/data/finetuning/prompts/, bert_jax/tasks/prompt_features.py,
bert_jax/tasks/demonstrations.py and bert_jax/tasks/text_similarity.py.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from bert_jax.apps.testing.models import word_tokenizer
from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.prompts import (
    Demonstrations,
    LabelWords,
    Prompt,
    SimilarExamples,
    parse_template,
)
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.data.finetuning.glue_prompts import (
    GLUE_PROMPTS,
    glue_prompt,
    read_prompt,
    write_prompt,
)
from bert_jax.data.finetuning.loader import FineTuningLoader
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.classification import SequenceClassification
from bert_jax.tasks.features import make_features, training_features
from bert_jax.tasks.prompt_features import find_label_tokens, make_prompt_features
from bert_jax.text.load_tokenizer import load_tokenizer

LABELS = ("no", "yes")


def make_prompt(template="{text} by {mask}.", no=("sea",), yes=("net",), **fields):
    label_words = (LabelWords(label="no", words=no), LabelWords(label="yes", words=yes))
    return Prompt(template=template, label_words=label_words, **fields)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return word_tokenizer(tmp_path_factory.mktemp("wordpiece"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """Returns a BPE tokenizer in which " ok" is a token, and "ok" without a space is not."""
    folder = tmp_path_factory.mktemp("bpe")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokens = [*special, *sorted(ByteLevel.alphabet()), "Ġo", "Ġok", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nĠ o\nĠo k\n")
    return load_tokenizer(folder)


DEMONSTRATED = [
    TextExample(id="0", text="the sea sings .", label="yes"),
    TextExample(id="1", text="a man", label="no"),
    TextExample(id="2", text="the old net", label="no"),
    TextExample(id="3", text="a net by the sea", label="no"),
]


def demonstration_task(**splits):
    return Task(name="t", kind="classification", labels=LABELS, metrics=(), splits=splits)


def lm_bff_inputs(example, demonstrations, tokenizer, limit, max_length):
    """Builds the input as `tokenize_multipart_input` of LM-BFF, token by token.

    Its template is *cls**sent_0*_by*mask*.*sep+*, and the same for each demonstration, with
    *label_i* for the mask; `limit` is other_sent_limit.
    """
    words = {"no": "sea", "yes": "net"}
    ids, segments = [tokenizer.cls_id], [0]
    for number, each in enumerate([example, *demonstrations]):
        text = tokenizer.encode(each.text)
        middle = [tokenizer.mask_id] if number == 0 else tokenizer.encode(" " + words[each.label])
        part = [*text[: None if number == 0 else limit], *tokenizer.encode(" by"), *middle]
        part += [*tokenizer.encode("."), tokenizer.sep_id]
        ids += part
        segments += [min(number, 1)] * len(part)
    return ids[:max_length], segments[:max_length]


@pytest.mark.parametrize("max_length", [40, 14])
def test_demonstrations_have_the_layout_of_lm_bff(wordpiece, max_length):
    config = Demonstrations(num_samples=12, max_text_tokens=3)
    prompt = make_prompt(demonstrations=config)
    example = TextExample(id="0", text="the old man .")
    task = demonstration_task(train=tuple(DEMONSTRATED), test=(example,))
    features = make_features(task, "test", wordpiece, max_length, prompt=prompt)
    found = {
        (tuple(ids.tolist()), tuple(types.tolist()))
        for ids, types in zip(features.input_ids, features.token_type_ids, strict=True)
    }
    yes, *no = DEMONSTRATED
    expected = [lm_bff_inputs(example, [each, yes], wordpiece, 3, max_length) for each in no]
    assert found == {(tuple(ids), tuple(types)) for ids, types in expected}
    assert features.example_index.tolist() == [0] * 12
    outputs = {"logits": [np.array([1.0 + n, -n]) for n in range(12)]}
    logits = SequenceClassification().pool_outputs(features, outputs)
    np.testing.assert_allclose(logits, [[6.5, -5.5]])


def test_demonstrations_are_sampled_from_the_most_similar_half(wordpiece, tmp_path):
    task, vectors = demonstration_task(train=tuple(DEMONSTRATED)), tmp_path / "vectors.jsonl"
    yes, *no = DEMONSTRATED
    example = TextExample(id="0", text="the old man .")
    angles = {example.text: 0.1, yes.text: 2.0, no[0].text: 0.2}
    angles |= {no[1].text: 3.0, no[2].text: 2.5, "a\u2028b\x85c": 0.0}
    lines = [
        json.dumps(
            {"text": text, "embedding": [7 * np.cos(angle), 7 * np.sin(angle)]}, ensure_ascii=False
        )
        for text, angle in angles.items()
    ]
    vectors.write_text("\n".join(lines))
    config = Demonstrations(num_samples=12, selection=SimilarExamples(vectors=str(vectors)))
    prompt = make_prompt(demonstrations=config)
    write_prompt(tmp_path / "prompt.json", prompt)
    assert read_prompt(tmp_path / "prompt.json") == prompt
    splits = {**task.splits, "test": (example, no[0])}
    features = make_features(demonstration_task(**splits), "test", wordpiece, 40, prompt=prompt)
    # Half of two or three examples is one: the nearest, except for the input itself.
    expected = [
        lm_bff_inputs(text, [nearest, yes], wordpiece, None, 40)[0]
        for text, nearest in ((example, no[0]), (no[0], no[2]))
        for _ in range(12)
    ]
    assert [ids.tolist() for ids in features.input_ids] == expected
    vectors.write_text("\n".join(lines[1:]))
    config = dataclasses.replace(config, num_samples=1)  # another prompt, so another pool
    prompt = make_prompt(demonstrations=config)
    with pytest.raises(UserError, match="no vector of the text 'the old man"):
        make_features(demonstration_task(**splits), "test", wordpiece, 40, prompt=prompt)
    vectors.write_text('{"text": "a"}')
    config = dataclasses.replace(config, num_samples=2)
    prompt = make_prompt(demonstrations=config)
    with pytest.raises(UserError, match='line 1: expected a JSON object with "text", a string'):
        make_features(demonstration_task(**splits), "test", wordpiece, 40, prompt=prompt)


def test_training_draws_demonstrations_by_seed_and_epoch(wordpiece):
    prompt = make_prompt(demonstrations=Demonstrations())
    task = demonstration_task(train=tuple(DEMONSTRATED))
    features = training_features(task, wordpiece, 40, prompt=prompt)

    def batches(start=0, process_index=0, process_count=1):
        loader = FineTuningLoader(
            features,
            (30, 40),
            batch_size=4,
            seed=3,
            pad_id=0,
            process_index=process_index,
            process_count=process_count,
            start=start,
        )
        return [next(loader)["input_ids"] for _ in range(20)]

    first = batches()
    draws = set()
    for batch in first:
        assert batch.shape == (4, 30)
        for row in batch:
            tokens = " ".join(wordpiece.id_to_token(i) for i in row if i != 0)
            text, no, yes = tokens.removesuffix(" [SEP]").split(" [SEP] ")
            assert yes == "the sea sings . by net ."  # the only one, also for itself
            assert no.removesuffix(" by sea .") != text.removeprefix("[CLS] ").removesuffix(
                " by [MASK] ."
            )
            draws.add((text, no))
    assert len(draws) == 3 + 3 * 2
    np.testing.assert_array_equal(batches(start=8)[0], first[2])
    halves = [batches(process_index=i, process_count=2)[1] for i in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(halves), first[1])


def test_demonstrations_need_an_example_of_each_class(wordpiece):
    prompt = make_prompt(demonstrations=Demonstrations())
    task = demonstration_task(train=tuple(DEMONSTRATED[1:]))
    with pytest.raises(UserError, match="no example with the label 'yes' for the demonstrations"):
        training_features(task, wordpiece, 40, prompt=prompt)


def tokens_of(tokenizer, template, text, text_pair=None, max_length=32):
    example = TextExample(id="3", text=text, text_pair=text_pair)
    features = make_prompt_features([example], make_prompt(template), tokenizer, max_length)
    tokens = " ".join(tokenizer.id_to_token(i) for i in features.input_ids[0])
    return tokens, features.token_type_ids[0].tolist(), features.num_truncated


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{text} by the sea.", r"no mask; expected \{mask\} exactly once"),
        ("{mask} {text} {mask}", "has 2 masks; expected"),
        ("{txt} {mask}", r"unknown field \{txt\}; did you mean 'text'"),
        ("{text|lower_frist} {mask}", "'lower_frist' of {text}; did you mean 'lower_first'"),
        ("{text} {mask|lower_first}", r"\{mask\} has the modifier"),
        ("{text} {text} {mask}", r"\{text\} 2 times"),
        ("{mask} by the sea", "no text of the example"),
        ("{text} {mask} } by", "'}' at character 14 has no partner"),
        ("{text} {mask}{sep}", "nothing on one side"),
    ],
)
def test_invalid_templates_are_refused(template, message):
    with pytest.raises(ConfigError, match=message):
        parse_template(template)


def test_template_becomes_tokens_with_token_types(wordpiece):
    tokens, types, _ = tokens_of(
        wordpiece,
        "{text_pair|lower_first} by {mask}.{sep}{text|no_punctuation}",
        "the sea sings . ",
        "A net",
    )
    assert tokens == "[CLS] a net by [MASK] . [SEP] the sea sings [SEP]"
    assert types == [0] * 7 + [1] * 4


def test_mask_token_written_in_a_text_is_no_mask(wordpiece):
    tokens, _, _ = tokens_of(wordpiece, "{{ {text} {mask}", "a [MASK]")
    assert tokens == "[CLS] [UNK] a [UNK] [MASK] [SEP]"


def test_space_of_template_belongs_to_next_text(byte_level):
    tokens, _, _ = tokens_of(byte_level, "{text} ok {mask}, {text_pair}", "ok", "ok")
    assert tokens == "<s> o k Ġok <mask> , Ġok </s>"


def test_truncation_shortens_the_longest_text_only(wordpiece):
    template = "{text} by {mask} . {text_pair}"
    tokens, _, truncated = tokens_of(wordpiece, template, "the old man", "a net", max_length=9)
    assert tokens == "[CLS] the old by [MASK] . a net [SEP]"
    assert truncated == 1
    with pytest.raises(ConfigError, match="6 tokens leave no room for text"):
        tokens_of(wordpiece, template, "the old man", "a net", max_length=6)


def test_texts_must_be_those_of_the_template(wordpiece):
    with pytest.raises(UserError, match=r"'3' is a pair of texts, .* has no \{text_pair\}"):
        tokens_of(wordpiece, "{text} {mask}", "a", "net")
    with pytest.raises(UserError, match=r"'3' is one text, .* has \{text_pair\}"):
        tokens_of(wordpiece, "{text} {mask} {text_pair}", "a")


def test_label_words_of_several_tokens_are_refused_or_averaged(wordpiece):
    words = {"no": ("sea",), "yes": ("net", "mended")}
    with pytest.raises(UserError, match=r"'mended' of 'yes' is 2 tokens .*: mend ##ed") as error:
        find_label_tokens(make_prompt(**words), LABELS, wordpiece)
    (advice,) = re.findall(r"set prompt.tokens_of_words to (\w+)", str(error.value))
    found = find_label_tokens(make_prompt(**words, tokens_of_words=advice), LABELS, wordpiece)
    ids = {word: wordpiece.token_to_id(word) for word in ("sea", "net", "mend", "##ed")}
    assert found.token_ids == (((ids["sea"],),), ((ids["net"],), (ids["mend"], ids["##ed"])))
    assert found.mask_token_id == wordpiece.mask_id


def test_unusable_label_words_are_refused(wordpiece):
    with pytest.raises(UserError, match="'great' of 'no' is unknown"):
        find_label_tokens(make_prompt(no=("great",)), LABELS, wordpiece)
    with pytest.raises(UserError, match="'Sea' of 'yes' has the same tokens as a word of 'no'"):
        find_label_tokens(make_prompt(yes=("Sea",)), LABELS, wordpiece)
    with pytest.raises(ConfigError, match="label 'no'; did you mean 'noo'"):
        find_label_tokens(make_prompt(), ("noo", "yes"), wordpiece)


def test_label_words_have_a_leading_space_in_byte_level_bpe(byte_level):
    prompt = make_prompt(no=("ok",), yes=("a",), tokens_of_words="averaged_tokens")
    found = find_label_tokens(prompt, LABELS, byte_level)
    assert found.token_ids[0] == ((byte_level.token_to_id("Ġok"),),)


def test_published_prompts_have_the_labels_and_texts_of_their_tasks():
    for name, prompt in GLUE_PROMPTS.items():
        task = GLUE_TASKS[name]
        assert prompt.words_of(task.labels)
        assert ("{text_pair" in prompt.template) == (task.text_pair is not None)
        assert from_json(Prompt, to_json(prompt), "prompt") == prompt
    with pytest.raises(ConfigError, match="no prompt 'lm-bf' for rte; did you mean 'lm-bff'"):
        glue_prompt("rte", "lm-bf")
    with pytest.raises(ConfigError, match="no prompt for the task 'stsb'"):
        glue_prompt("stsb")
