"""Tests the command line of `bert-jax tokenizer train`."""

import pytest

from bert_jax.__main__ import main
from bert_jax.text.load_tokenizer import load_tokenizer


def test_training_writes_a_tokenizer_and_reports_it(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Some words, some more words.\n" * 30)
    output = tmp_path / "vocabulary"
    code = main(
        ["tokenizer", "train", "--vocab-size=64", "--output", str(output), str(tmp_path / "*.txt")]
    )
    vocabulary = load_tokenizer(output)
    assert code == 0
    assert vocabulary.encode("SOME words") == [
        vocabulary.token_to_id("some"),
        vocabulary.token_to_id("words"),
    ]
    shown = capsys.readouterr().out
    assert f"next: bert-jax prepare --files '{tmp_path}/*.txt' --tokenizer {output} --ou" in shown
    assert f"{vocabulary.vocab_size} tokens" in shown and vocabulary.fingerprint[:12] in shown


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["{tmp}/none*.txt"], 1, "no file matches"),
        (["{tmp}/bad.txt"], 1, "bad.txt: not utf-8 text at byte 3"),
        (["{tmp}/empty.txt"], 1, "expected text to train on"),
        (["{tmp}/bad.txt", "--encoding", "klingon"], 1, "unknown encoding"),
        (["{tmp}/bad.txt", "--vocab-size", "2"], 2, "vocab_size is 2"),
    ],
)
def test_invalid_input_is_reported(tmp_path, capsys, arguments, code, message):
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 noir")
    (tmp_path / "empty.txt").write_text("")
    arguments = [a.format(tmp=tmp_path) for a in arguments]
    output = tmp_path / "out"
    assert main(["tokenizer", "train", "--output", str(output), *arguments]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and message in shown and "Traceback" not in shown
    assert not output.exists()


def test_other_encodings_can_be_read(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 noir caf\xe9 noir")
    for name, flags in (("a", ["--encoding", "latin-1"]), ("b", ["--errors", "replace"])):
        command = ["tokenizer", "train", "--vocab-size", "100", "--cased"]
        command += ["--output", str(tmp_path / name)]
        assert main([*command, str(tmp_path / "bad.txt"), *flags]) == 0
    assert "café" in load_tokenizer(tmp_path / "a")
    assert "café" not in load_tokenizer(tmp_path / "b")


def test_usage_errors_and_help(capsys):
    for arguments, code in ((["--kind", "nothing"], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as caught:
            main(["tokenizer", "train", *arguments])
        assert caught.value.code == code
    assert "example:" in capsys.readouterr().out
