import pytest

from bert_jax.errors import ConfigError
from bert_jax.predict.files import group_arguments, read_inputs
from bert_jax.tasks.registry import kind_named

CLASSIFICATION, QUESTIONS, CHOICES = (
    kind_named(name) for name in ("classification", "question_answering", "multiple_choice")
)


@pytest.mark.parametrize(
    "path, kind, arguments, message",
    [
        (
            "a.csv",
            CLASSIFICATION,
            {"file_format": "lines", "columns": {"text": "a", "text_pair": "b"}},
            "a.csv: --text and --text-pair select columns, but the format is lines, not table; "
            "remove --text and --text-pair or give --format table",
        ),
        (
            "a.txt",
            CLASSIFICATION,
            {"columns": {"id": "a"}},
            "a.txt: --id selects a column, but the format is lines, not table; remove --id",
        ),
        (
            "a.csv",
            CHOICES,
            {"file_format": "table"},
            "a.csv: --format table is not supported for multiple_choice models; use --format swag "
            "(columns sent1, sent2, ending0, ending1, ...)",
        ),
        (
            "a.csv",
            QUESTIONS,
            {"columns": {"text": "a"}},
            "a.csv: --text cannot be used with a question_answering model; select the columns of "
            "its tables with --question, --context and --id",
        ),
        (
            "a.json",
            QUESTIONS,
            {"pairs": True},
            "a.json: --pairs splits lines of text at a tab, but the format is squad, not lines; "
            "remove --pairs",
        ),
    ],
)
def test_flags_that_do_not_apply_are_refused(path, kind, arguments, message):
    with pytest.raises(ConfigError) as error:
        read_inputs(path, kind, **arguments)
    assert str(error.value) == message


def test_tables_in_another_encoding_are_read_and_json_is_refused(tmp_path):
    table = tmp_path / "a.csv"
    table.write_bytes("text\nété\n".encode("latin-1"))
    (example,) = read_inputs(str(table), CLASSIFICATION, encoding="latin-1")
    assert example.text == "été"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="--encoding is latin-1, but JSON files are always utf-8"):
        read_inputs("a.json", QUESTIONS, encoding="latin-1")
    with pytest.raises(ConfigError, match="the format is table; remove --errors"):
        read_inputs(str(table), CLASSIFICATION, errors="replace")


def test_odd_number_of_texts_is_refused():
    with pytest.raises(
        ConfigError, match="is 1; expected pairs, an even number: question, context"
    ):
        group_arguments(["Who?"], QUESTIONS, pairs=False)
