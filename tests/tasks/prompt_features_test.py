"""Tests templates, label words and truncation of prompts.

Covers bert_jax/data/finetuning/prompts/ and bert_jax/tasks/prompt_features.py.
"""

import json

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from bert_jax.config_lib import from_json, to_json
from bert_jax.data.finetuning.example import TextExample
from bert_jax.data.finetuning.prompts.config import (
    AveragedTokens,
    LabelWords,
    Prompt,
    parse_template,
)
from bert_jax.data.finetuning.prompts.glue_prompts import GLUE_PROMPTS, glue_prompt
from bert_jax.data.finetuning.readers.glue import GLUE_TASKS
from bert_jax.errors import ConfigError, UserError
from bert_jax.tasks.prompt_features import find_label_tokens, make_prompt_features
from bert_jax.testing.models import word_tokenizer
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
    with pytest.raises(UserError, match=r"'mended' of 'yes' is 2 tokens .*: mend ##ed"):
        find_label_tokens(make_prompt(**words), LABELS, wordpiece)
    found = find_label_tokens(
        make_prompt(**words, tokens_of_words=AveragedTokens()), LABELS, wordpiece
    )
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
    prompt = make_prompt(no=("ok",), yes=("a",), tokens_of_words=AveragedTokens())
    found = find_label_tokens(prompt, LABELS, byte_level)
    assert found.token_ids[0] == ((byte_level.token_to_id("Ġok"),),)


def test_published_prompts_have_the_labels_and_texts_of_their_tasks():
    for name, prompts in GLUE_PROMPTS.items():
        task = GLUE_TASKS[name]
        for prompt in prompts.values():
            assert prompt.words_of(task.labels)
            assert ("{text_pair" in prompt.template) == (task.text_pair is not None)
            assert from_json(Prompt, to_json(prompt), "prompt") == prompt
    with pytest.raises(ConfigError, match="no prompt 'lm-bf' for rte; did you mean 'lm-bff'"):
        glue_prompt("rte", "lm-bf")
    with pytest.raises(ConfigError, match="no prompt for the task 'stsb'"):
        glue_prompt("stsb")
