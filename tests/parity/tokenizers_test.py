"""Compares bert_jax/text/ with Hugging Face tokenizers on real and fuzzed lines.

There are 20,000 lines; the tests of WordPiece and BPE read every fourth, and all if slow tests run.

The reference reads the published files by itself; `load_tokenizer` reads them here. Saved folders
are opened with AutoTokenizer, like users of an export do.
"""

import gzip
import io
import json
import random
import shutil

import pytest

from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.text.cleaning import clean_text
from bert_jax.text.files import read_text
from bert_jax.text.learn import train_tokenizer
from bert_jax.text.load_tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers", reason="parity needs transformers")

REAL, FUZZED = 10_000, 10_000
some_lines_or_all = pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])

# Each entry is a kind of text; a fuzzed line mixes a few of them.
_RANGES = {
    "ascii": [(0x20, 0x7E)],
    "letters": [(0x61, 0x7A)],
    "latin": [(0xA0, 0x24F)],
    "accents": [(0x61, 0x7A), (0x300, 0x36F)],
    "greek and cyrillic": [(0x370, 0x52F)],
    "right to left": [(0x5D0, 0x5EA), (0x620, 0x64A)],
    "indic and thai": [(0x900, 0x97F), (0x980, 0x9FF), (0xE00, 0xE7F)],
    "cjk": [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x20000, 0x2A6DF)],
    "compatibility": [(0xF900, 0xFAFF), (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x2100, 0x214F)],
    "emoji": [(0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x200D, 0x200D), (0xFE0F, 0xFE0F)],
    "control": [(0x00, 0x1F), (0x7F, 0x9F), (0x200B, 0x200F), (0x2028, 0x202E), (0xFEFF, 0xFEFF)],
    "spaces": [(0x20, 0x20), (0x09, 0x0D), (0xA0, 0xA0), (0x2000, 0x200A), (0x3000, 0x3000)],
    "punctuation": [(0x21, 0x2F), (0x2010, 0x2027), (0x3001, 0x3011), (0xFFFD, 0xFFFD)],
    "mathematics": [(0x1D400, 0x1D7FF), (0x2200, 0x22FF)],
}


def fuzzed_line(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 8)):
        ranges = _RANGES[rng.choice(list(_RANGES))]
        parts.append(
            "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 12)))
        )
        if rng.random() < 0.5:
            parts.append(" ")
    if rng.random() < 0.05:
        parts.insert(rng.randrange(len(parts)), rng.choice(["[MASK]", "[SEP]", "[mask]", "[UNK]"]))
    return "".join(parts)


@pytest.fixture(scope="module")
def real_lines(shared) -> list[str]:
    lines: list[str] = []
    for file in sorted((shared / "text/novels").glob("*.txt.gz"))[::7]:
        lines += read_text(file).splitlines()[200:900]
    lines += read_text(shared / "text/wikitext-2/wiki.test.tokens").splitlines()
    with gzip.open(shared / "glue/SST-2/train.tsv.gz", "rt", encoding="utf-8") as file:
        lines += [next(file) for _ in range(2000)]
    lines = [line for line in lines if line]
    return random.Random(0).sample(lines, REAL)


@pytest.fixture(scope="module")
def lines(real_lines) -> list[str]:
    rng = random.Random(1)
    fuzzed = [fuzzed_line(rng) for _ in range(FUZZED - 6)]
    # Words of 10 kB: WordPiece encodes them as [UNK], the others do not.
    long = [
        "x" * 10_000,
        "naïve" * 2_000,
        "Donaudampfschiff" * 640,
        "力" * 3_400,
        "ab-" * 3_400,
        "😀" * 2_500,
    ]
    return [*real_lines, *fuzzed, *long]


@pytest.fixture(scope="module")
def novel_lines(shared) -> list[str]:
    """20,000 lines of all novels, in the order of the text, so that pairs belong together."""
    lines: list[str] = []
    for file in sorted((shared / "text/novels").glob("*.txt.gz")):
        lines += [line for line in read_text(file).splitlines()[100:] if line][:400]
    return lines[:20_000]


def assert_same(tokenizer, reference, texts: list[str], *, offsets: bool = True) -> None:
    for start in range(0, len(texts), 4000):
        batch = texts[start : start + 4000]
        expected = reference(batch, add_special_tokens=False, return_offsets_mapping=offsets)
        encodings = tokenizer.encode_batch(batch)
        fast = tokenizer.encode_ids(batch)
        for n, text in enumerate(batch):
            assert encodings[n].ids == expected["input_ids"][n], repr(text[:200])
            assert fast[n].tolist() == expected["input_ids"][n], repr(text[:200])
            if offsets:
                assert encodings[n].offsets == expected["offset_mapping"][n], repr(text[:200])


def test_there_are_20000_lines(lines):
    assert len(lines) == 20_000
    assert sum(any(ord(c) > 127 for c in line) for line in lines) > 9_000
    assert sum(len(line.encode()) >= 10_000 for line in lines) == 6


@some_lines_or_all
@pytest.mark.parametrize("name", ["uncased", "cased", "multilingual-cased"])
def test_wordpiece_equals_bert_tokenizer(name, step, lines, shared):
    path = shared / f"vocab/bert-base-{name}/vocab.txt"
    table = {piece: n for n, piece in enumerate(path.read_text("utf-8").split("\n")[:-1])}
    reference = transformers.BertTokenizerFast(vocab=table, do_lower_case=name == "uncased")
    assert_same(load_tokenizer(path), reference, lines[::step] + lines[-6:])


@some_lines_or_all
def test_byte_level_bpe_equals_roberta_tokenizer(step, lines, shared):
    folder = shared / "vocab/roberta-base"
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    reference = transformers.RobertaTokenizerFast(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), mask_token=mask
    )
    more = ["The <mask> of", "<s>a</s> <pad>", "a<mask>b <mask>"]
    assert_same(load_tokenizer(folder), reference, lines[::step] + lines[-6:] + more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["published", "learned"])
def test_byte_level_bpe_inputs_of_20000_lines_of_novels(name, novel_lines, shared, tmp_path):
    if name == "published":
        folder = shared / "vocab/roberta-base"
        tokenizer = load_tokenizer(folder)
    else:
        config = TokenizerTrainingConfig(kind="bpe", vocab_size=4000)
        tokenizer, _ = train_tokenizer(novel_lines[::4], config)
        tokenizer.save(tmp_path)
        folder = tmp_path
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    reference = transformers.RobertaTokenizerFast(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), mask_token=mask
    )
    assert len(novel_lines) == 20_000
    ids = tokenizer.encode_ids(novel_lines)
    expected = reference(novel_lines)["input_ids"]
    expected_pairs = reference(novel_lines[::2], novel_lines[1::2])["input_ids"]
    for n, line in enumerate(novel_lines):
        assert tokenizer.build_inputs_with_special_tokens(ids[n]).tolist() == expected[n], repr(
            line
        )
    for n, pair in enumerate(expected_pairs):
        found = tokenizer.build_inputs_with_special_tokens(ids[2 * n], ids[2 * n + 1])
        assert found.tolist() == pair, repr(novel_lines[2 * n : 2 * n + 2])


@some_lines_or_all
def test_sentencepiece_equals_t5_tokenizer(lines, real_lines, step, shared):
    """Compares all real lines, and the fuzzed lines that both libraries normalize alike.

    `tokenizers` normalizes whole graphemes, SentencePiece characters, so that stacked accents and
    joined emoji differ; T5's original code used SentencePiece.
    """
    path = shared / "vocab/t5-base/spiece.model"
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    reference = transformers.T5Tokenizer.from_pretrained(path.parent)
    tokenizer = load_tokenizer(path)
    assert_same(tokenizer, reference, real_lines[::step], offsets=False)
    normalize = reference.backend_tokenizer.normalizer.normalize_str

    def alike(text: str) -> bool:
        # Only bert_jax has [MASK] as a special token; only T5Tokenizer treats U+0085 as a space.
        if "[" in text or "\x85" in text:
            return False
        return normalize(text).split() == processor.normalize(text).replace("▁", " ").split()

    fuzzed = [text for text in lines[REAL::step] if alike(text)]
    assert len(fuzzed) > 0.7 * FUZZED / step
    expected = reference(fuzzed, add_special_tokens=False)["input_ids"]
    different = 0
    for text, a, b in zip(fuzzed, tokenizer.encode_ids(fuzzed), expected, strict=True):
        if a.tolist() != b:
            # The only remaining differences are ties of scores: "lll" is "ll" + "l" or "l" + "ll".
            scores = [sum(processor.get_score(int(i)) for i in ids) for ids in (a, b)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-3), repr(text)
            different += 1
    assert different < 0.01 * len(fuzzed)


def assert_same_inputs(tokenizer, reference, texts: list[str]) -> None:
    """Compares the ids of texts and pairs, special tokens included."""
    ids, build = tokenizer.encode_ids(texts), tokenizer.build_inputs_with_special_tokens
    for n, expected in enumerate(reference(texts)["input_ids"]):
        assert build(ids[n]).tolist() == expected, repr(texts[n])
    for n, expected in enumerate(reference(texts[:-1], texts[1:])["input_ids"]):
        assert build(ids[n], ids[n + 1]).tolist() == expected, repr(texts[n : n + 2])


def test_sentencepiece_of_bigbird_equals_its_tokenizer(real_lines, tmp_path):
    """Trains a model with the special ids of the published one: [CLS] 65, [SEP] 66, [MASK] 67.

    Only single spaces are compared: Hugging Face's class encodes a space at the end of a text or
    before [MASK] as a token of its own; the SentencePiece library, as in Google's code, does not.
    """
    sentencepiece = pytest.importorskip("sentencepiece")
    texts = [" ".join(line.split()) for line in real_lines[:600]]
    texts = [text for text in texts if text and "<unk>" not in text]
    control = [f"<unused{n}>" for n in range(62)] + ["[CLS]", "[SEP]", "[MASK]"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=500, pad_id=0, eos_id=1,
        bos_id=2, unk_id=100, control_symbols=[*control, *(f"<other{n}>" for n in range(32))],
        character_coverage=0.99, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    (tmp_path / "config.json").write_text('{"model_type": "big_bird"}')
    reference = transformers.BigBirdTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    roles = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(tokenizer, f"{role}_id") for role in roles] == [0, 100, 65, 66, 67]
    assert [getattr(reference, f"{role}_token_id") for role in roles] == [0, 100, 65, 66, 67]
    assert len(reference) == tokenizer.vocab_size == 500
    texts += ["a[MASK] of", "[MASK] of"]
    assert_same_inputs(tokenizer, reference, texts)
    assert tokenizer.encode("The [MASK] of").count(67) == 1
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert_same_inputs(tokenizer, opened, [*texts, "The [MASK] of", "Two."])


def test_sentencepiece_of_t5_equals_its_tokenizer(shared, real_lines, tmp_path):
    shutil.copy(shared / "vocab/t5-base/spiece.model", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    reference = transformers.T5Tokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert len(reference) == tokenizer.vocab_size == 32100
    for token in ("<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_99>"):
        assert tokenizer.token_to_id(token) == reference.convert_tokens_to_ids(token)
    texts = [*real_lines[:600], "The <extra_id_0> walks in <extra_id_1> park", "a  b "]
    assert_same_inputs(tokenizer, reference, texts)
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert_same_inputs(load_tokenizer(tmp_path / "saved"), opened, texts)
    assert opened.eos_token_id == 1 and opened.pad_token_id == 0


@pytest.mark.parametrize("family", ["longformer", "bart"])
def test_byte_level_bpe_of_other_families_equals_its_tokenizer(real_lines, tmp_path, family):
    config = TokenizerTrainingConfig(kind="bpe", vocab_size=600)
    train_tokenizer(real_lines[:600], config)[0].save(tmp_path / "trained")
    folder = tmp_path / family  # with the files of a published model only
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "trained" / name, folder)
    class_name = f"{family.capitalize()}Tokenizer"
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    reference = getattr(transformers, class_name).from_pretrained(folder, mask_token=mask)
    tokenizer = load_tokenizer(folder)
    texts = [*real_lines[:600], "The <mask> of", "a<mask>b <s>"]
    assert_same_inputs(tokenizer, reference, texts)
    tokenizer.save(tmp_path / "saved")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert_same_inputs(load_tokenizer(tmp_path / "saved"), opened, texts)
    assert opened.mask_token_id == reference.mask_token_id == tokenizer.mask_id


@pytest.mark.parametrize(
    "name",
    [
        "bert-base-uncased/vocab.txt",
        pytest.param("bert-base-cased/vocab.txt", marks=pytest.mark.slow),
        "roberta-base/vocab.json",
        "t5-base/spiece.model",
        # Learned vocabularies are written alike; tests/text/learn_test.py has them.
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wordpiece", "bpe", "unigram")),
    ],
)
def test_auto_tokenizer_opens_saved_folders(name, lines, real_lines, shared, tmp_path):
    if "/" in name:
        vocabulary = load_tokenizer(shared / "vocab" / name)
    else:
        texts = [clean_text(read_text(f)) for f in (shared / "text/inaugural").glob("19*.txt")]
        vocabulary, _ = train_tokenizer(texts, TokenizerTrainingConfig(kind=name, vocab_size=3000))
    vocabulary.save(tmp_path)
    # The tests above compare all lines with the same tokenizers before they are saved.
    some = real_lines[:500] if name.endswith(".model") else lines[::40] + lines[-6:]
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same(vocabulary, opened, some, offsets=not name.endswith(".model"))
    assert len(opened) == vocabulary.vocab_size
    for role, token in vocabulary.special_tokens.as_dict().items():
        assert getattr(opened, f"{role}_token") == token
        assert getattr(opened, f"{role}_token_id") == getattr(vocabulary, f"{role}_id")
    pair = opened("One.", "Two.")["input_ids"]
    assert pair[0] == vocabulary.cls_id and pair[-1] == vocabulary.sep_id
    masked = opened(f"The {vocabulary.special_tokens.mask}.", add_special_tokens=False)["input_ids"]
    assert masked == vocabulary.encode(f"The {vocabulary.special_tokens.mask}.")
    assert vocabulary.mask_id in masked
    # The folder of an exported model has a config.json, which AutoTokenizer reads.
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same(vocabulary, again, real_lines[:100], offsets=False)
