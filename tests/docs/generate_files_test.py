"""Covers docs/generate_files.py."""

from pathlib import Path

from docs import generate_files


def test_list_of_files_is_up_to_date():
    assert generate_files.PAGE.read_text() == generate_files.render(), "run `make format`"


def test_first_sentence_joins_lines_and_ends_at_a_full_stop(tmp_path: Path):
    file = tmp_path / "x.py"
    file.write_text('"""Reads `a.py` and\nb, e.g. c. Then more.\n\nDetails."""\n')
    assert generate_files.first_sentence(file) == "Reads `a.py` and b, e.g. c."
