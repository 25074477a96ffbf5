"""Extracts prose from docstrings, splits documents, and curates them.

Covers configs/curate/docstrings.py too.
"""

import json
from pathlib import Path

import pytest

from bert_jax.apps.curate.curate import curate
from bert_jax.apps.quickstart.docstrings import extract_paragraphs, write_docstring_corpus
from bert_jax.apps.quickstart.stages import CURATED_SHARDS
from bert_jax.config.recipes import load_recipe
from bert_jax.errors import UserError
from bert_jax.text.files import read_json_objects


def words(subject: str, count: int = 12) -> str:
    """Returns a sentence of `count` + 2 words that is unique to its subject."""
    return f"This {subject} " + " ".join(f"{subject}{'abcdefghijklmnop'[i]}" for i in range(count))


def write_package(root: Path, name: str, *sentences: str, module: str = "__init__") -> None:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    body = "\n\n".join(sentences)
    (folder / f"{module}.py").write_text(f'"""{body}"""\nraise RuntimeError("never imported")\n')


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_extract_paragraphs_google_style():
    docstring = """Sums the elements of an array over one axis.

    The result has one axis less than what
    was given.

    Args:
      values: The array whose elements are summed.
      axis (int): The axis that is removed from
        the shape of the array.

    Returns:
      An array with the sums of all elements.

    >>> total([1, 2])
    this is printed by the example above

    ```python
    this code would be prose without its fence
    ```
    """
    assert extract_paragraphs(docstring) == [
        "Sums the elements of an array over one axis.",
        "The result has one axis less than what was given.",
        "The array whose elements are summed.",
        "The axis that is removed from the shape of the array.",
        "An array with the sums of all elements.",
    ]


def test_extract_paragraphs_numpy_style():
    docstring = """Compute the mean of the values.

    .. versionadded:: 1.2

    Parameters
    ----------
    values, weights : array_like, optional
        Values whose mean is wanted by the caller.

    See the following example of its use::

        values = this is some code of the example

    Notes
    -----
    * The first point holds for all values.
    * The second one :func:`does` not hold.
    """
    assert extract_paragraphs(docstring) == [
        "Compute the mean of the values.",
        "Values whose mean is wanted by the caller.",
        "See the following example of its use:",
        "The first point holds for all values.",
        "The second one does not hold.",
    ]


@pytest.mark.parametrize(
    "docstring",
    [
        "Too short.",
        "a = b + c; d = f(e) # x == y and 3 < 4",
        "| a table | with cells | and more cells |",
        "Diese Funktion übergibt für größere Häuser die Länge später zurück.",
        "See https://example.org/ for all of the details.",
    ],
)
def test_extract_paragraphs_drops_text_that_is_not_english_prose(docstring):
    assert extract_paragraphs(docstring) == []


def test_held_out_packages_share_nothing_with_train(tmp_path):
    root = tmp_path / "site-packages"
    shared_paragraph = words("shared", 14)
    for package in range(20):
        for module in ("__init__", "second"):
            subject = chr(97 + package) * 3 + module[-1].replace("_", "x")
            own = [words(subject + letter) for letter in "pqrst"]
            write_package(root, f"package{package}", shared_paragraph, *own, module=module)
    corpus = write_docstring_corpus(tmp_path / "corpus", roots=[root], held_out_fraction=0.2)
    train, held_out = read(corpus.train), read(corpus.held_out)
    in_train = {d["package"] for d in train}
    in_held_out = {d["package"] for d in held_out}
    assert not in_train & in_held_out
    assert len(in_held_out) == 4  # a fifth of 20 packages of equal size
    assert {d["module"] for d in train} == {
        m for p in in_train for m in (p, f"{p}.second")
    }  # a document is a module
    counts = json.loads((tmp_path / "corpus" / "counts.json").read_text())
    assert counts == corpus.counts
    assert counts["train"]["documents"] == len(train) == 32

    config = load_recipe("curate/docstrings")(train=str(corpus.train), heldout=str(corpus.held_out))
    curate(config, tmp_path / "curated", num_workers=1)
    curated = [[d for _, d in read_json_objects(tmp_path / "curated" / n)] for n in CURATED_SHARDS]
    fields = ("module", "package")
    for documents, before in zip(curated, (train, held_out), strict=True):
        assert [[d[f] for f in fields] for d in documents] == [
            [d[f] for f in fields] for d in before
        ]
    copies = [[shared_paragraph in d["text"].split("\n\n") for d in split] for split in curated]
    assert sum(copies[0]) == 1 and not any(copies[1])


def test_split_is_deterministic(tmp_path):
    roots = [tmp_path / "one", tmp_path / "two"]
    for package in range(12):
        for number, root in enumerate(roots):
            # The second root holds its packages in another order of creation.
            name = package if number == 0 else 11 - package
            write_package(root, f"package{name}", *(words(chr(97 + name) * 4 + c) for c in "pqrst"))
    first, second = (write_docstring_corpus(tmp_path / r.name / "corpus", roots=[r]) for r in roots)
    assert first.train.read_bytes() == second.train.read_bytes()
    assert first.held_out.read_bytes() == second.held_out.read_bytes()


def test_tests_vendored_and_broken_files_are_skipped(tmp_path):
    root = tmp_path / "site-packages"
    for name in ("one", "two", "three"):
        write_package(root, name, *(words(name + letter) for letter in "pqrst"))
    for folder in ("tests", "_vendor", "no-identifier"):
        write_package(root / "one", folder, *(words(folder[-5:] + letter) for letter in "pqrst"))
    (root / "two" / "broken.py").write_text("def this is not Python(")
    (root / "two" / "latin.py").write_bytes(b'"""\xe9t\xe9"""')
    corpus = write_docstring_corpus(tmp_path / "corpus", roots=[root], held_out_fraction=0.4)
    modules = {d["module"] for d in read(corpus.train) + read(corpus.held_out)}
    assert modules == {"one", "two", "three"}


def test_too_few_packages_is_an_error(tmp_path):
    with pytest.raises(UserError, match="0 package"):
        write_docstring_corpus(tmp_path / "corpus", roots=[tmp_path])
    write_package(tmp_path / "site", "one", *(words("one" + letter) for letter in "pqrst"))
    with pytest.raises(UserError, match="at least two"):
        write_docstring_corpus(tmp_path / "corpus", roots=[tmp_path / "site"])
    assert not (tmp_path / "corpus" / "train.jsonl").exists()
