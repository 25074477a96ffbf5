"""Runs the code blocks of README.md and of the pages in docs/, except those that give a reason.

Models, data and numbers of updates are smaller than on the pages; `make_short` has the changes.
"""

import csv
import gzip
import importlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.served_models import serve_model
from bert_jax.apps.studies.sheets.run import load_sheet
from bert_jax.apps.testing.experiments import tiny_experiment, two_length_phases
from bert_jax.apps.testing.models import small_model
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.data.corpus.contamination.found_items import read_item_rows
from bert_jax.export.export import export
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.runs import run_folder
from bert_jax.text.learn import train_tokenizer_from_files
from tests.helpers.server import running_server
from tests.helpers.snippets import read_snippets, run_page

pytestmark = pytest.mark.usefixtures("one_device")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The text that the pages call books: the documentation of this project, a document per section.
BOOKS = ("families.md", "performance.md", "recipes.md", "tpu.md")
HELD_OUT = ("results.md", "what_runs_where.md")

# Makes the commands of a page short; everything else runs as written.
TINY = [
    *("train.evaluation.num_examples=8", "train.evaluation.batch_size=8"),
    *("objective.model.hidden_size=16", "objective.model.intermediate_size=16"),
    *("objective.model.num_attention_heads=2", "objective.model.num_hidden_layers=1"),
]


def make_short(words: list[str]) -> list[str]:
    """Returns a command that trains a smaller model for a few steps."""
    match words[1]:
        case "tokenizer":
            return [re.sub("^8192$", "400", word) for word in words]
        case "prepare":
            return [*words, "--workers", "1"]
        case "pretrain":
            names = ["steps", "batch_size", *(setting.split("=")[0] for setting in TINY)]
            words = [word for word in words if word.split("=")[0] not in names]
            index = words.index("--arg") + 1
            return [*words[:index], "steps=3", "batch_size=8", *words[index:], "--set", *TINY]
        case "embed-train":
            return [*words, "--epochs", "0.5", "--batch-size", "8", "--chunk-size", "4"]
        case "setfit":
            return [*words, "--num-iterations", "1", "--max-length", "16"]
        case "finetune":
            return [*words, "--epochs", "1", "--batch-size", "8", "--max-length", "16"]
        case _:
            return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the current folder, with the files that the pages start from."""
    monkeypatch.chdir(tmp_path)
    for name, pages in (("books", BOOKS), ("heldout", HELD_OUT)):
        (tmp_path / name).mkdir()
        for page in pages:
            for number, section in enumerate((DOCS / page).read_text().split("\n## ")):
                file = tmp_path / name / f"{page.removesuffix('.md')}-{number}.txt"
                file.write_text(section)
    for split, half in (("train", 0), ("dev", 1)):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("review", "sentiment"))
            for page in ("results", "performance"):
                lines = (DOCS / f"{page}.md").read_text().splitlines()
                prose = [line for line in lines if len(line) > 80 and "|" not in line]
                writer.writerows((line, page) for line in prose[half:32:2])
    return tmp_path


@pytest.fixture
def exported(folder: Path) -> Path:
    """Adds `exported`, a small model with random weights, for pages that do not train one."""
    export(small_model(folder / "words"), folder / "exported")
    return folder / "exported"


def test_readme(folder, capsys):
    export(small_model(folder / "words"), folder / "my-bert")  # the model of the first screen
    commands = run_page(ROOT / "README.md", make_short)
    assert len(commands) == 8
    output = capsys.readouterr()
    # Each command names the one that follows on the page.
    assert [line for line in output.err.splitlines() if line.startswith("next: ")] == [
        "next: bert-jax export runs/books --output exported",
        "next: bert-jax fill-mask exported --file FILE",
        "next: bert-jax predict runs/reviews --file FILE, or bert-jax export runs/reviews "
        "--output exported",
    ]
    assert "next: bert-jax prepare --files 'books/*.txt' --tokenizer vocabulary" in output.out
    assert (folder / "runs/reviews/report.html").is_file()


@pytest.mark.slow
def test_own_corpus_tutorial(folder):
    commands = run_page(DOCS / "tutorials/own_corpus.md", make_short)
    assert len(commands) == 10
    assert (folder / "runs/books/report.html").is_file()
    assert len((folder / "vectors.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_own_labels_tutorial(exported):
    topics = {
        "the man": ["people"],
        "the sea .": ["places"],
        "man by the sea": ["people", "places"],
    }
    posts = [json.dumps({"post": post, "topics": each}) for post, each in topics.items()]
    for name in ("posts", "posts_dev"):
        (exported.parent / f"{name}.jsonl").write_text("\n".join(posts) + "\n")
    assert len(run_page(DOCS / "tutorials/own_labels.md", make_short)) == 7
    assert (exported.parent / "reviews/config.json").is_file()
    topics_run = json.loads((exported.parent / "runs/topics/fitted_heads.json").read_text())
    assert topics_run["heads"][""]["head"]["labels"] == ["people", "places"]


@pytest.mark.slow
def test_proteins_tutorial(folder):
    random = np.random.default_rng(0)
    for location in ("extracell", "mitochondrion"):
        proteins = ("".join(random.choice(list("LAGVSERTIDPK"), 40)) for _ in range(40))
        records = (f">{location}{i}\n{protein}\n" for i, protein in enumerate(proteins))
        (folder / f"{location}.fasta").write_text("".join(records))
    commands = run_page(DOCS / "tutorials/proteins.md", make_short)
    assert len(commands) == 12
    assert (folder / "runs/location/report.html").is_file()


@pytest.mark.slow  # tests/api_test.py trains with a loop of its own
def test_own_loop_tutorial(exported):
    import jax

    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises floats to integer powers
        run_page(DOCS / "tutorials/own_loop.md", make_short)


def test_page_on_pretraining_prints_what_it_says(folder):
    import jax

    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises floats to integer powers
        assert not run_page(DOCS / "how_bert_is_pretrained.md", make_short)


def test_tpu_tutorial_plans(folder):
    assert len(run_page(DOCS / "tutorials/tpu_slice.md", make_short)) == 1


def test_recipe_guide(folder):
    from bert_jax.apps.testing.text_corpus import prepare_corpus

    prepare_corpus(folder / "prepared").rename(folder / "prepared/train")
    assert len(run_page(DOCS / "how_to/recipe.md", make_short)) == 2


def test_seqio_guide(folder, capsys, monkeypatch):
    pytest.importorskip("seqio")
    from bert_jax.data.seqio import text_tasks

    # Here the command and the last block share a process, in which a task is registered only once.
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(
        text_tasks, "import_file", lambda file, kind: importlib.import_module(file.stem)
    )
    commands = run_page(DOCS / "how_to/seqio_tasks.md", make_short)
    assert len(commands) == 2
    assert "masked_lm_positions" in capsys.readouterr().out


@pytest.mark.slow  # adapter_run_test.py trains, exports and predicts with adapters
def test_adapters_guide(exported):
    assert len(run_page(DOCS / "how_to/adapters.md", make_short)) == 6
    assert (exported.parent / "reviews-lora/adapter_model.safetensors").is_file()


@pytest.mark.slow  # tests/train/setfit_test.py runs the commands
def test_few_labels_guide(exported):
    assert len(run_page(DOCS / "how_to/few_labels.md", make_short)) == 4
    assert (exported.parent / "reviews/setfit_head.safetensors").is_file()


@pytest.mark.slow
def test_sentence_embeddings_guide(exported):
    rows = [(f"the man {n}", f"a net by the sea {n}", n % 6) for n in range(16)]
    for name, columns in (("pairs", ("question", "answer")), ("scored", ("first", "second"))):
        with Path(f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([(*columns, "similarity"), *rows])
    scored = [
        {"query": query, "positive": text, "negative": "the bell", "scores": [2.5, -1.0]}
        for query, text, _ in rows
    ]
    Path("scored.jsonl").write_text("".join(json.dumps(each) + "\n" for each in scored))
    assert len(run_page(DOCS / "how_to/sentence_embeddings.md", make_short)) == 14
    assert (exported.parent / "runs/scored/report.html").is_file()


@pytest.mark.slow
def test_embedding_guide(exported):
    with Path("scored.csv").open("w", newline="") as file:
        rows = [(f"the man {n}", f"a net by the sea {n}", n % 6 / 2) for n in range(12)]
        csv.writer(file).writerows([("first", "second", "similarity"), *rows])
    assert len(run_page(DOCS / "how_to/embed.md", make_short)) == 4
    assert (exported.parent / "sentence-model/modules.json").is_file()


@pytest.mark.slow
def test_search_guide(exported):
    pytest.importorskip("bm25s")
    with Path("pairs.csv").open("w", newline="") as file:
        pairs = [(f"the old man {n}", f"repairs a net {n}") for n in range(6)]
        csv.writer(file).writerows([("question", "answer"), *pairs])
    assert len(run_page(DOCS / "how_to/search.md", make_short)) == 8
    assert (exported.parent / "cross-encoder/config.json").is_file()


@pytest.mark.slow  # tests/data/corpus/curate_test.py runs the command
def test_curation_guide(folder):
    pytest.importorskip("pyarrow")
    for page in (DOCS / "how_to").iterdir():  # an n-gram model needs some hundreds of paragraphs
        shutil.copy(page, folder / "books" / f"{page.stem}.txt")
    (folder / "notes").mkdir()
    note = {"text": " ".join(f"word-{n}" for n in range(30))}
    (folder / "notes/notes.jsonl").write_text(json.dumps(note) + "\n")
    (folder / "crawl").mkdir()
    pages = [json.dumps({"text": path.read_text()}) for path in (folder / "heldout").iterdir()]
    (folder / "crawl/pages.jsonl.gz").write_bytes(gzip.compress("\n".join(pages).encode()))
    assert len(run_page(DOCS / "how_to/curate.md", make_short)) == 7


def test_guide_to_what_a_model_has_read(folder, capsys):
    experiment = tiny_experiment("seen", str(prepare_corpus(folder)), two_length_phases(20))
    for name in ("checkpoints/20", "checkpoints/10"):
        (folder / "runs/novels" / name).mkdir(parents=True)
    run_folder.write_or_check_config(folder / "runs/novels", experiment)
    run_page(DOCS / "how_to/what_a_model_has_read.md", make_short)
    assert capsys.readouterr().out == ""  # these are no words of its corpus


def test_vocabulary_guide(exported):
    assert len(run_page(DOCS / "how_to/vocabulary.md", make_short)) == 1
    assert len(Path("words.txt").read_text().split()) == 500
    assert (exported.parent / "extended-again/vocab.txt").is_file()


@pytest.mark.slow
def test_mixing_guide(folder):
    (folder / "wiki").mkdir()
    for page in sorted((folder / "heldout").iterdir())[::2]:
        page.rename(folder / "wiki" / page.name)
    config = TokenizerTrainingConfig(kind="wordpiece", vocab_size=400)
    files = [str(path) for path in sorted((folder / "books").iterdir())]
    train_tokenizer_from_files(files, folder / "vocabulary", config)
    assert len(run_page(DOCS / "how_to/mix_corpora.md", make_short)) == 4
    assert (folder / "runs/mixed/report.html").is_file()


@pytest.mark.slow  # tests/data/corpus and tests/cli run the commands
def test_decontamination_guide(exported):
    pytest.importorskip("pyarrow")
    head = SequenceClassificationHead(labels=("entailment", "not_entailment"))
    shutil.rmtree(exported)
    export(small_model(exported.parent / "more words", head=head), exported)
    Path("glue_data/RTE").mkdir(parents=True)
    section = sorted(Path("books").iterdir())[0].read_text().split()[:20]
    rows = ["index\tsentence1\tsentence2\tlabel", f"0\t{' '.join(section)}\tA net.\tentailment"]
    rows.append("1\tThe old man and the sea.\tA man.\tnot_entailment")
    Path("glue_data/RTE/dev.tsv").write_text("\n".join(rows) + "\n")
    question = {"id": "q", "question": "Who?", "answers": [{"text": "The man", "answer_start": 0}]}
    paragraph = {"context": "The man sat by the sea.", "qas": [question]}
    squad = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    Path("dev-v1.1.json").write_text(json.dumps(squad))
    Path("eng.testb").write_text("The DT O O\nman NN O O\n\n")
    Path("quiz.jsonl").write_text(json.dumps({"question": "Who sat?", "answer": "A man"}) + "\n")
    assert len(run_page(DOCS / "how_to/decontaminate.md", make_short)) == 3
    items = read_item_rows(Path("clean"))
    assert {row.id for row in items if row.removed_documents} == {"0"}
    assert not any(row.input_documents for row in items)


def test_serve_guide(tmp_path, monkeypatch):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    config = ServerConfig(max_batch_tokens=20, max_batch_rows=1)
    head = SequenceClassificationHead(labels=("bad", "good"))
    served = [
        each
        for name, each_head in (("exported", None), ("reviews", head))
        for each in serve_model(
            name, small_model(tmp_path, head=each_head, num_hidden_layers=1), config
        )
    ]
    (tmp_path / ".curlrc").write_text("fail-with-body\nsilent\n")
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    with running_server(served, config) as server:
        monkeypatch.setenv("SERVER", server.url)
        assert len(run_page(DOCS / "how_to/serve.md", make_short)) == 8


@pytest.mark.slow  # tests/apps/sentence_scores uses the same functions
def test_page_on_scores_of_sentences(exported):
    Path("sentences.txt").write_text("The old man mends a net.\nThe sea.\n")
    assert len(run_page(DOCS / "how_to/score_sentences.md", make_short)) == 2
    assert len(Path("scores.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow  # tests/apps/ of these verbs use the same functions
def test_page_on_looking_inside(exported):
    head = SequenceClassificationHead(labels=("no", "yes"))
    export(small_model(exported.parent / "more words", head=head), Path("runs/reviews"))
    Path("texts.txt").write_text("The old man mends a net.\nThe sea.\n")
    assert len(run_page(DOCS / "how_to/look_inside.md", make_short)) == 5
    assert Path("attributions/attributions.html").is_file() and Path("cka/cka.html").is_file()


def test_page_on_probes():
    assert not run_page(DOCS / "how_to/probe.md", make_short)  # its commands need a treebank


def test_page_on_comparing_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not run_page(DOCS / "how_to/compare_models.md", make_short)  # its commands take hours
    sheet = load_sheet("rates.py", ["corpus=a", "heldout=b"])
    assert list(sheet.models) == ["rate 0.001", "rate 0.003"]


@pytest.mark.slow  # coming_from_test.py checks the flags and fields of the page
def test_page_for_users_of_hugging_face(exported):
    rows = [(f"the man {n}", f"a net by the sea {n}") for n in range(16)]
    with Path("pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *rows])
    assert len(run_page(DOCS / "coming_from.md", make_short)) == 4
    assert Path("topics/config.json").is_file() and Path("reviews/config.json").is_file()


@pytest.mark.slow  # tests/api_test.py uses the same functions
def test_api_page(exported):
    import jax

    head = SequenceClassificationHead(labels=("no", "yes"))
    export(small_model(exported.parent / "more words", head=head), Path("runs/reviews"))
    with jax.numpy_dtype_promotion("standard"):
        assert not run_page(DOCS / "api.md", make_short)


@pytest.mark.slow  # tests/predict/unmasker_test.py runs the same
def test_guide_to_generation(exported):
    assert len(run_page(DOCS / "how_to/generate.md", make_short)) == 3


def test_every_page_with_code_is_run_by_a_test_of_this_file():
    calls = re.findall(r'run_page\((?:ROOT|DOCS) / "([^"]+)"', Path(__file__).read_text())
    with_code = {
        page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for snippet in read_snippets(page)
        if snippet.reason is None and snippet.language in ("python", "bash", "sh")
    }
    assert len(with_code) > 5
    assert with_code <= set(calls)
