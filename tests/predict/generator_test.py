"""Tests texts that a small T5 generates, its folders and `bert-jax generate`.

Covers bert_jax/predict/generator.py, bert_jax/export/seq2seq.py,
bert_jax/pretrained/seq2seq.py, bert_jax/text/sentencepiece.py and
bert_jax/cli/language_models/generate.py.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from bert_jax.__main__ import main
from bert_jax.apps.search.encoder import EmbedderEncoder
from bert_jax.apps.testing.models import small_model
from bert_jax.config.generation import BeamSearch, GenerationConfig, Sampling
from bert_jax.config.train import MeshConfig
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.export.seq2seq import export_seq2seq
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.t5.config import T5Config
from bert_jax.parallel.sharding import make_mesh
from bert_jax.params import paths
from bert_jax.predict.adapter_set import AdapterSet
from bert_jax.predict.attention import AttentionExtractor
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.fill_mask import FillMask
from bert_jax.predict.generator import Generator, cut_to_likely, generate_ids, token_rules
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.prompt_classifier import PromptClassifier
from bert_jax.predict.reranker import Reranker
from bert_jax.pretrained.load import load_encoder, load_model
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq, load_seq2seq
from bert_jax.text.load_tokenizer import load_tokenizer
from tests.helpers.quick_init import quick_init

TEXTS = [
    "The harbour lay still that morning, and only the fishing boats moved.",
    "An old man sat on the wall, mending a net.",
    "His dog slept beside him.",
]
EXTRA_IDS = 10
SHORT = GenerationConfig(max_new_tokens=6, max_source_tokens=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedSeq2Seq:
    """Returns a T5 with random parameters and a tokenizer, which was exported and read back."""
    folder: Path = tmp_path_factory.mktemp("t5")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_prefix=str(folder / "spiece"),
        model_type="unigram",
        vocab_size=40,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": EXTRA_IDS})
    )
    tokenizer = load_tokenizer(folder)
    # More rows than tokens, as in the published models.
    config = T5Config(
        vocab_size=56,
        hidden_size=16,
        d_kv=8,
        intermediate_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_attention_heads=2,
    )
    params = quick_init(build_encoder_decoder_network(config).abstract(), std=0.3)
    loaded = LoadedSeq2Seq(params=params, config=config, tokenizer=tokenizer, path="t5")
    assert export_seq2seq(loaded, folder / "exported") == 0.0
    return load_seq2seq(folder / "exported")


def test_tokenizer_adds_sentinels_and_the_end_token(model):
    tokenizer = model.tokenizer
    assert tokenizer.vocab_size == 50
    assert tokenizer.token_to_id("<extra_id_0>") == 49
    assert tokenizer.token_to_id("<extra_id_9>") == 40
    ids = tokenizer.encode("The <extra_id_0> dog.")
    assert 49 in ids
    assert tokenizer.build_inputs_with_special_tokens(ids).tolist() == [*ids, 1]
    assert tokenizer.build_inputs_with_special_tokens([5], [6]).tolist() == [5, 1, 6, 1]


def test_texts_do_not_depend_on_their_batch(model):
    generate = Generator(model, SHORT)
    together = generate([*TEXTS, "", TEXTS[0]])
    assert together[3].text == "" and together[3].is_complete
    assert together[0] == together[4]
    assert [generate([text])[0] for text in TEXTS] == together[:3]
    assert len({result.text for result in together}) > 1
    for result in together:
        assert len(result.token_ids) <= 6 and max(result.token_ids, default=0) < 50
        assert result.is_complete == (result.token_ids[-1:] in ([1], []))


def test_eight_devices_generate_the_same_texts_as_one(model):
    texts = [*TEXTS, "", *(text.split(",")[0] for text in TEXTS), "a net"] * 3
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    for decoding in (BeamSearch(num_beams=2), Sampling(seed=3)):
        settings = dataclasses.replace(SHORT, decoding=decoding)
        expected = Generator(model, settings)(texts)
        assert Generator(model, settings, mesh=mesh)(texts) == expected
    assert len({tuple(result.token_ids) for result in expected}) > 5


def test_text_with_a_forced_end_is_not_complete(model):
    decode = Generator(model, SHORT)
    decode._config = dataclasses.replace(BartConfig.from_size("base"), eos_token_id=1)
    assert not decode._decode(np.array([5, 6, 7, 1])).is_complete
    ended = decode._decode(np.array([5, 1, 0, 0]))
    assert ended.is_complete and ended.token_ids == [5, 1]


def num_programs() -> int:
    function: Any = generate_ids
    return function._cache_size()


def test_one_program_serves_all_batches_of_a_shape(model):
    generate = Generator(model, dataclasses.replace(SHORT, max_new_tokens=5))
    generate([TEXTS[0]])
    size = num_programs()
    generate([TEXTS[1]])
    generate([TEXTS[2]])
    assert num_programs() == size


def test_sampling_is_a_function_of_seed_and_index(model):
    def sample(seed: int, **options: Any) -> list[str]:
        sampling = Sampling(seed=seed, temperature=0.9, top_k=20, **options)
        generate = Generator(model, dataclasses.replace(SHORT, decoding=sampling))
        return [result.text for result in generate([TEXTS[0]] * 4)]

    assert sample(0) == sample(0)
    assert len({*sample(0), *sample(1)}) > 2


def test_top_k_and_top_p_keep_the_most_likely_tokens():
    probabilities = jnp.array([[0.1, 0.4, 0.05, 0.25, 0.2]])

    def likely_tokens(**options: Any) -> list[int]:
        scores = cut_to_likely(jnp.log(probabilities), Sampling(**options))
        return np.flatnonzero(np.isfinite(scores[0])).tolist()

    assert likely_tokens(top_k=2) == [1, 3]
    assert likely_tokens(top_p=0.5) == [1, 3]
    assert likely_tokens(top_p=0.3) == [1]
    assert likely_tokens(top_p=1.0) == [0, 1, 2, 3, 4]
    assert likely_tokens(top_k=3, top_p=0.7) == [1, 3]


def test_tokens_without_a_name_are_never_generated(model):
    # The rows after the vocabulary have the largest logits by far.
    flat = paths.flatten(model.params)
    table = flat["shared/embedding"].copy()
    hidden_direction = table[:50].sum(axis=0)
    table[50:] = 100 * np.sign(hidden_direction)
    params = paths.unflatten(flat | {"shared/embedding": table})
    batch = {"input_ids": np.full((8, 16), 5), "attention_mask": np.ones((8, 16), np.int32)}
    batch["input_ids"] += np.arange(8)[:, None]
    for vocab_size, expected in ((None, True), (50, False)):
        ids = generate_ids(
            params,
            **{name: array.astype(np.int32) for name, array in batch.items()},
            text_indices=np.arange(8, dtype=np.int32),
            config=model.config,
            settings=SHORT,
            rules=token_rules(model.config, vocab_size),
        )
        assert bool((np.asarray(ids) >= 50).any()) == expected


def test_generate_prints_a_line_for_each_text(model, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    flags = ["--num-beams", "2", "--max-new-tokens", "6", "--max-source-tokens", "16"]
    assert main(["generate", model.path, *flags, "--file", str(tmp_path / "texts.txt")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == [TEXTS[0], "", TEXTS[1]]
    assert rows[1] == {"text": "", "generated": "", "complete": True}
    beams = dataclasses.replace(SHORT, decoding=BeamSearch(num_beams=2))
    expected = [result.text for result in Generator(model, beams)(TEXTS[:2])]
    assert [rows[0]["generated"], rows[2]["generated"]] == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-beams", "0"], "num_beams is 0, expected a number at least 1"),
        (["--num-beams", "2", "--sample"], "--sample and --num-beams exclude each other"),
        (["--top-p", "0.5"], "--top-p needs --sample, which is not given"),
        (["--sample", "--temperature", "0"], "temperature is 0.0, expected a number above 0"),
        (["--max-new-tokens", "4", "--min-new-tokens", "5"], "min_new_tokens is 5, expected 0 to"),
        (["--sample", "--top-k", "60"], "top_k is 60, but .* has 56 tokens"),
        (["--max-source-tokens", "1"], "max_source_tokens is 1, expected a number at least 2"),
    ],
)
def test_impossible_settings_are_refused(model, flags, message, capsys):
    assert main(["generate", model.path, *flags, "a text"]) == ConfigError.exit_code
    err = capsys.readouterr().err
    assert re.search(message, err), err


def test_load_model_reads_encoder_decoders_which_other_classes_refuse(model):
    read = load_model(model.path)
    assert isinstance(read, LoadedSeq2Seq) and read.path == model.path
    prompt: Any = None  # the model is refused before anything else is read
    adapters: Any = {"a": None}
    for refuse in (
        *(Predictor, Embedder, FillMask, Reranker, AttentionExtractor, EmbedderEncoder),
        lambda model: PromptClassifier(model, prompt, ("a", "b")),
        lambda model: AdapterSet(model, adapters),
    ):
        with pytest.raises(
            UserError, match=r"is an encoder-decoder \(T5\), so it cannot .*Generator"
        ):
            refuse(read)
    for arguments, message in (
        ({"task": "a"}, "task 'a'"),
        ({"base": "b"}, "--base b: .* no base"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_model(model.path, **arguments)


def test_encoders_and_wrong_end_tokens_are_refused(model, tmp_path):
    export(small_model(tmp_path / "vocabulary"), tmp_path / "bert")
    with pytest.raises(UserError, match=r"is an encoder .bert., which has no decoder"):
        load_seq2seq(tmp_path / "bert")
    with pytest.raises(UserError, match="is an encoder, which has no decoder"):
        Generator(load_model(tmp_path / "bert"))
    with pytest.raises(UserError, match="an encoder-decoder, which `bert-jax generate` runs"):
        load_encoder(model.path)
    config = dataclasses.replace(model.config, eos_token_id=7)
    export_seq2seq(dataclasses.replace(model, config=config, tokenizer=None), tmp_path / "t5")
    model.tokenizer.save(tmp_path / "t5")
    with pytest.raises(UserError, match=r"eos_token_id is 7 .*expected 1, its </s>"):
        load_seq2seq(tmp_path / "t5")
    config = dataclasses.replace(model.config, vocab_size=300)
    network = build_encoder_decoder_network(config)
    larger = LoadedSeq2Seq(
        params=quick_init(network.abstract()),
        config=config,
        tokenizer=None,
        path="larger",
    )
    export_seq2seq(larger, tmp_path / "larger")
    model.tokenizer.save(tmp_path / "larger")
    with pytest.raises(UserError, match=r"the vocabulary has 50 tokens, but .* has 300 rows"):
        load_seq2seq(tmp_path / "larger")
