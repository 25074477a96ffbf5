"""Covers the words of all source files: standard terms, American spelling, names of tests.

A name is the term of the reference implementation, Hugging Face, JAX, XLA or gcloud, never a second
word for the same thing. The words below were used in earlier versions.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from bench.structure import parse, statements

ROOT = Path(__file__).parent.parent
# The folders whose identifiers are checked.
CHECKED = ("bert_jax", "tpu", "configs", "bench", "tests")

# Word that may not be part of an identifier -> what to write instead.
BANNED_WORDS = {
    "anew": "again",
    "aside": "atomic, temporary",
    "beats": "heartbeats",
    "beside": "next_to, versus",
    "besides": "extra_checks",
    "blind": "unreachable",
    "bring": "download, sync_from",
    "coins": "random_bits",
    "decided": "predictions",
    "drawn": "sampled, random",
    "elsewhere": "external",
    "foreign": "external, imported",
    "gold": "labels, references",
    "hear": "on_line, receive",
    "heed": "on_preemption, handle",
    "homeless": "unplaced",
    "judge": "evaluate",
    "judged": "evaluated",
    "kept": "the thing that is kept",
    "lasting": "permanent",
    "least": "min",
    "life": "attempt",
    "lives": "attempts",
    "longest": "max",
    "meet": "rendezvous",
    "mend": "repair",
    "mine": "the thing that belongs to this process or host",
    "mingle": "interleave",
    "mingled": "interleaved",
    "most": "max",
    "ours": "internal",
    "piece": "token",
    "pieces": "tokens",
    "places": "positions, offsets",
    "room": "free_bytes, module, package",
    "rooms": "modules, packages",
    "said": "logged, message",
    "say": "log, print",
    "settle": "validate, write",
    "share": "fraction",
    "shortest": "min",
    "spellings": "aliases",
    "tell": "report",
    "theirs": "external",
    "told": "reported",
    "unwell": "degraded",
    "verdict": "prediction",
    "verdicts": "predictions",
}
# Names that may not stand alone -> what to write instead.
BANNED_NAMES = {
    "fed": "ffn_out",
    "see": "mask",
    "visible": "mask",
    "where": "slice, sharding, location",
}
# Words that are plain English in the name of a test, which is a sentence: "at most", "the longest".
ALLOWED_IN_TEST_NAMES = {"kept", "longest", "most", "room", "share", "shortest"}
# Identifier that contains such a word -> why it is the standard term there.
EXEMPT = {
    "SentencePieceModel": "SentencePiece is the library's name",
    "SentencePieceTokenizer": "SentencePiece is the library's name",
    "piece": "the field of sentencepiece_model.proto",
    "pieces": "the field of sentencepiece_model.proto",
    "longest_first_lengths": "Hugging Face's truncation strategy 'longest_first'",
    "longest": "Hugging Face's padding strategy 'longest'",
    "least_loaded": "the term of scheduling",
    "most_common_label": "the baseline's usual name",
    "at_least": "the usual name of a lower bound",
    "at_most": "the usual name of an upper bound",
}

# A British stem in a word -> the American one. Checked in names and prose of every file.
BRITISH = {
    "analys(?=e[ds]?\\b(?<!analyses)|ing\\b)": "analyz",
    "artefact": "artifact",
    "behaviour": "behavior",
    "catalogue": "catalog",
    "colour": "color",
    "customis": "customiz",
    "factoris": "factoriz",
    "favour": "favor",
    "finalis": "finaliz",
    "generalis": "generaliz",
    "initialis": "initializ",
    "judgement": "judgment",
    "labelled": "labeled",
    "labelling": "labeling",
    "materialis": "materializ",
    "maximis": "maximiz",
    "minimis": "minimiz",
    "modelled": "modeled",
    "neighbour": "neighbor",
    "normalis": "normaliz",
    "optimis(?!m|t)": "optimiz",
    "organis(?!m)": "organiz",
    "quantis": "quantiz",
    "randomis": "randomiz",
    "recognis": "recogniz",
    "realis(?!m|t)": "realiz",
    "serialis": "serializ",
    "summaris": "summariz",
    "synchronis": "synchroniz",
    "tokenis": "tokeniz",
    "travelled": "traveled",
}
# The file that must quote such words: this list.
QUOTES_OLD_WORDS = {"tests/words_test.py"}
# Word in a British spelling -> why it must be spelled so. It may appear in quotation marks only.
BRITISH_BY_ORIGIN = {
    "judgement": "a column of CoLA, as GLUE distributes it",
    "labelledby": "an attribute of ARIA, the accessibility standard",
}
TEXT_SUFFIXES = {".py", ".md", ".ipynb", ".sh", ".toml", ".ini", ""}

MAX_TEST_NAME = 70


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def words_of(identifier: str) -> set[str]:
    """Returns the words of an identifier: LeastLoaded_x -> least, loaded, x."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", identifier)}


def defined_names(file: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of every module, class, function, parameter and variable of a file."""
    yield 1, file.stem
    for node in ast.walk(parse(file)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


@functools.cache  # most identifiers appear many times
def replacement(identifier: str) -> str | None:
    """Returns what to write instead of an identifier, or None if it is a standard name."""
    bare = identifier.strip("_")
    if bare in EXEMPT:
        return None
    if bare in BANNED_NAMES:
        return BANNED_NAMES[bare]
    found = words_of(bare) & set(BANNED_WORDS)
    if bare.startswith("test_"):
        found -= ALLOWED_IN_TEST_NAMES
    return "; ".join(f"{BANNED_WORDS[word]} for {word!r}" for word in sorted(found)) or None


def test_identifiers_are_standard_terms():
    wrong = [
        f"{relative(file)}:{line} {name}: write {instead}"
        for folder in CHECKED
        for file in sorted((ROOT / folder).rglob("*.py"))
        if relative(file) not in QUOTES_OLD_WORDS
        for line, name in defined_names(file)
        if (instead := replacement(name))
    ]
    assert not wrong, "\n".join(wrong)


def test_banned_words_are_found_in_any_case_and_position():
    assert words_of("LEAST_Loaded") == {"least", "loaded"}
    assert replacement("_judgeAll") and replacement("LIFE") and replacement("see")
    assert not replacement("seen") and not replacement("longest")
    assert replacement("test_told") and not replacement("test_the_longest_line")


def text_files() -> list[Path]:
    """Returns the files of this repository that people write, documentation included."""
    folders = ("bert_jax", "tpu", "configs", "bench", "docs", "examples", "tests")
    found = [f for folder in folders for f in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    return sorted(
        f
        for f in found
        if f.is_file()
        and f.suffix in TEXT_SUFFIXES
        and "__pycache__" not in f.parts
        and not f.name.startswith(".")
        and relative(f) not in QUOTES_OLD_WORDS
    )


def british_words() -> Iterator[tuple[Path, int, str, str]]:
    """Yields (file, line, word, American word) of every word in British spelling."""
    stems = [(re.compile(stem, re.IGNORECASE), american) for stem, american in BRITISH.items()]
    any_stem = re.compile("|".join(BRITISH), re.IGNORECASE)
    any_word = re.compile(rf"\w*(?:{any_stem.pattern})\w*", re.IGNORECASE)
    # Few lines contain a stem, which begins with these letters; the expressions are slow to search.
    letters = {re.match("[a-z]+", stem)[0] for stem in BRITISH}  # type: ignore[index]
    for file in text_files():
        text = file.read_text(errors="replace")
        found = [each for each in letters if each in text.lower()]
        for number, line in enumerate(text.splitlines(), 1) if found else ():
            lower = line.lower()
            for word in any_word.findall(line) if any(each in lower for each in found) else ():
                if word in BRITISH_BY_ORIGIN and f'"{word}"' in line:
                    continue
                american = word
                for stem, instead in stems:
                    american = stem.sub(instead, american)
                yield file, number, word, american


def test_spelling_is_american():
    wrong = [f"{relative(f)}:{n} {word}: write {us}" for f, n, word, us in british_words()]
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_fit_a_line():
    wrong = [
        f"{relative(file)}:{node.lineno} {node.name} ({len(node.name)} characters)"
        for file in sorted((ROOT / "tests").rglob("*_test.py"))
        for node in statements(parse(file))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > MAX_TEST_NAME
    ]
    assert not wrong, "\n".join(wrong)


def section_names(docstring: str, section: str) -> Iterator[str]:
    """Yields the names of a docstring section, whose entries are "  name: text" or "  a, b: text".

    The text continues with an indentation of four spaces. The section ends at the next line
    without indentation.
    """
    in_section = False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            in_section = line == f"{section}:"
        elif in_section and re.match(r"  \S", line):
            yield from (name.strip().lstrip("*") for name in line.partition(":")[0].split(","))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = [node.args.vararg, node.args.kwarg]
    arguments += [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {each.arg for each in arguments if each is not None}


def fields(node: ast.ClassDef) -> set[str]:
    """Returns what `Args:` of a class may describe: its fields and the parameters of __init__."""
    found: set[str] = set()
    for child in node.body:
        match child:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.FunctionDef(name="__init__"):
                found |= parameters(child)
    return found


def unknown_arguments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of each name under `Args:` that is not an argument."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known = fields(node) if isinstance(node, ast.ClassDef) else parameters(node)
            for name in section_names(ast.get_docstring(node) or "", "Args"):
                if name not in known:
                    yield node.lineno, name


def test_documented_arguments_exist():
    wrong = [
        f"{relative(file)}:{line} {name!r} under Args: is not an argument"
        for folder in ("bert_jax", "tpu")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, name in unknown_arguments(parse(file))
    ]
    assert not wrong, "\n".join(wrong)


def test_unknown_names_under_args_are_found():
    docstring = '"""Adds.\n\n    Args:\n      a, b: terms.\n        of: a sum.\n    """'
    assert not [*unknown_arguments(ast.parse(f"def f(a, *, b):\n    {docstring}"))]
    function = ast.parse(f"def f(a, c):\n    {docstring}")
    assert [*unknown_arguments(function)] == [(1, "b")]
    one_field = ast.parse(f"class C:\n    {docstring}\n    a: int = 0\n    c: int = 0")
    assert [*unknown_arguments(one_field)] == [(1, "b")]
    both = ast.parse(f"class C:\n    {docstring}\n    a: int\n    def __init__(self, b): ...")
    assert not [*unknown_arguments(both)]


def covered_sources(test: Path) -> list[Path]:
    """Returns the sources that a test file covers: by its path, or named in its docstring."""
    inside = test.relative_to(ROOT / "tests")
    name = inside.with_name(inside.name.replace("_test.py", ".py"))
    mirrored = [ROOT / "bert_jax" / name, ROOT / name]
    named = re.findall(r"[\w/.]+/[\w/.]*", ast.get_docstring(parse(test)) or "")
    return [f for f in [*mirrored, *(ROOT / path.rstrip(".") for path in named)] if f.exists()]


def test_every_test_file_mirrors_or_names_its_sources():
    # These check all files; parity tests compare the whole path with another implementation.
    checks_everything = {"architecture_test.py", "words_test.py"}
    wrong = [
        relative(test)
        for test in sorted((ROOT / "tests").rglob("*_test.py"))
        if test.name not in checks_everything and test.parent.name != "parity"
        if not covered_sources(test)
    ]
    assert not wrong, "\n".join(["name the covered files in the docstring of:", *wrong])


def test_helpers_of_tests_are_in_tests_helpers():
    fine = re.compile(r"tests/(helpers/.*|.*_test\.py|(.*/)?conftest\.py)")
    wrong = [relative(f) for f in (ROOT / "tests").rglob("*.py") if not fine.fullmatch(relative(f))]
    assert not wrong, "\n".join(["move to tests/helpers/:", *sorted(wrong)])
