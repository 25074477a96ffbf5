"""Runs the stages of the quickstart: corpus, tokenizer, pretraining, fine-tuning, baselines."""

import dataclasses
import importlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.apps.curate.curate import curate, shard_suffix
from bert_jax.apps.quickstart.docstrings import (
    write_docstring_corpus,
    write_library_task,
    write_word_order_task,
)
from bert_jax.config.experiment import check_experiment
from bert_jax.config.labeled_data import Columns
from bert_jax.config.recipes import call_recipe, load_recipe
from bert_jax.config.text import TokenizerTrainingConfig
from bert_jax.data.corpus.contamination.found_items import DOCUMENTS, import_pyarrow
from bert_jax.data.corpus.plan import PrepareConfig
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.sources import RegisteredTask
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import atomic_write, make_folder, write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.runs.run_folder import EVALUATION
from bert_jax.tasks.metrics.text_baselines import majority_accuracy, tfidf_accuracy
from bert_jax.text.learn import train_tokenizer_from_files
from bert_jax.train.compilation_cache import persistent_compilation_cache
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.presets import fine_tuning_experiment
from bert_jax.train.run import run

logger = logging.getLogger(__name__)

STAGES_FILE, SUMMARY_FILE = "stages.json", "summary.txt"
VOCAB_SIZE = 4096
SEQIO_TASK, SEQIO_MODULE = "docstrings", "docstrings_task.py"
CURATION_RECIPE = "curate/docstrings"
# The recipe has two sources of one file each, and each of them becomes one shard.
CURATED_SHARDS = tuple(DOCUMENTS.format(shard_suffix(source, 2)) for source in range(2))
# Written to the output folder: the file that a user would write for a corpus of their own.
SEQIO_MODULE_TEXT = '''\
"""Registers the docstrings as a seqio task, for `bert-jax prepare --task docstrings`."""

import glob
from pathlib import Path

from bert_jax.data.corpus.sources import TextFiles
from bert_jax.data.seqio.text_tasks import register_text_task

folder = Path(__file__).parent
shards = glob.escape(str(folder / "curated")) + "/documents-0000"
splits = {"train": f"{shards}0-of-00002.jsonl.gz", "heldout": f"{shards}1-of-00002.jsonl.gz"}
register_text_task("docstrings", TextFiles(splits), tokenizer=str(folder / "vocabulary"))
'''
CLASSIFICATION_TASKS = {"library": write_library_task, "word order": write_word_order_task}
MASKED_TEXTS = (
    "Returns the [MASK] of the array.",
    "The default [MASK] is None.",
    "Raises an error if the file does not [MASK].",
    "This function is [MASK] and will be removed in a future version.",
    "A list of [MASK].",
)
EPOCHS, LEARNING_RATE, MAX_LENGTH = 3, 1e-3, 48


def compare_classifiers(
    config: Columns, model: Path, folder: Path, seed: int
) -> dict[str, Any] | int:
    """Fine-tunes `model`, and the same network from random initialization, on the same examples.

    Both networks are evaluated at their best epoch on dev.

    Args:
      config: a text classification task with the splits train and dev.
      model: the folder of an exported encoder that was not trained on the task's text.
      folder: the folder of both runs.
      seed: the seed of both runs.

    Returns:
      {"classes", "train", "dev": counts; "fine-tuned", "not pretrained", "tf-idf", "majority":
      accuracies on dev}, or the exit code of a run that was interrupted.
    """
    task = load_task(config)
    train, dev = (_texts_and_labels(task.splits[split]) for split in ("train", "dev"))
    scores: dict[str, Any] = {
        "classes": len(set(train[1])),
        "train": len(train[1]),
        "dev": len(dev[1]),
        "tf-idf": tfidf_accuracy(train, dev),
        "majority": majority_accuracy(train[1], dev[1]),
    }
    pretrained = fine_tuning_experiment(
        config,
        str(model),
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        max_length=MAX_LENGTH,
        seed=seed,
    )
    experiments = {
        "fine-tuned": pretrained,
        # The same network and examples from random weights: the difference is what pretraining
        # gives.
        "not pretrained": dataclasses.replace(pretrained, init_from=None),
    }
    with persistent_compilation_cache(folder):  # both runs execute the same programs
        for name, experiment in experiments.items():
            run_path = folder / name.replace(" ", "-")
            exit_code = run(experiment, run_path)
            if exit_code != EXIT_DONE:
                return exit_code
            scores[name] = json.loads((run_path / EVALUATION).read_text())["dev"]["accuracy"]
    return scores


def _texts_and_labels(examples: Sequence[Any]) -> tuple[list[str], list[str]]:
    return [example.text for example in examples], [example.label for example in examples]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Describes one stage; `run` returns results for the summary, or an exit code to stop with."""

    name: str
    output: Path
    run: Callable[[], Any]


def run_stages(folder: Path, *, recipe: str, steps: int | None, seed: int) -> int:
    """Runs the stages that are not finished yet, then prints and writes the summary.

    Args:
      folder: the folder of all outputs; the same folder resumes.
      recipe: the path of the pretraining recipe.
      steps: the number of training steps; None for the recipe's.
      seed: the seed of pretraining and fine-tuning.

    Returns:
      The exit code: 0, or the code of an interrupted training run.

    Raises:
      UserError: the folder was created with other settings.
      MissingExtraError: seqio or pyarrow is not installed.
    """
    importlib.import_module("bert_jax.data.seqio")  # fails before the work if seqio is missing
    import_pyarrow()  # likewise
    settings = {"recipe": recipe, "steps": steps, "seed": seed}
    progress = _load_progress(folder, settings)
    stages = _stages(folder, settings)
    for number, stage in enumerate(stages, start=1):
        skipped = stage.name in progress["seconds"]
        status = "already done" if skipped else f"-> {stage.output}"
        logger.info("[%d/%d] %s %s", number, len(stages), stage.name, status)
        if skipped:
            continue
        start = time.monotonic()
        result = stage.run()
        # The time of an interrupted stage before it resumed is not counted.
        progress["seconds"][stage.name] = time.monotonic() - start
        if isinstance(result, int) and result != 0:
            return result
        if isinstance(result, dict):
            progress["results"].update(result)
        write_json(folder / STAGES_FILE, progress)
    summary = _summary(folder, stages, progress)
    atomic_write(folder / SUMMARY_FILE, summary)
    print(summary, end="")
    return 0


def _stages(folder: Path, settings: dict[str, Any]) -> list[Stage]:
    gathered, curated = folder / "corpus", folder / "curated"
    train_documents, held_out_documents = (curated / name for name in CURATED_SHARDS)
    tokenizer_folder, prepared = folder / "vocabulary", folder / "prepared"
    trained, exported = folder / "run", folder / "exported"

    def learn_vocabulary() -> None:
        config = TokenizerTrainingConfig(kind="wordpiece", vocab_size=VOCAB_SIZE, cased=False)
        train_tokenizer_from_files([str(train_documents)], tokenizer_folder, config)

    def prepare_splits() -> None:
        module = folder / SEQIO_MODULE
        atomic_write(module, SEQIO_MODULE_TEXT)
        task = RegisteredTask(name=SEQIO_TASK, module=str(module))
        for split in ("train", "heldout"):
            prepare(PrepareConfig(source=task, output=str(prepared / split), split=split))

    def classify(name: str) -> Stage:
        output = _task_folder(folder, name)
        return Stage(
            name=f"classify {name}",
            output=output,
            run=lambda: _classify(name, held_out_documents, exported, output, settings["seed"]),
        )

    return [
        Stage(
            name="gather documentation",
            output=gathered,
            run=lambda: {"corpus": write_docstring_corpus(gathered).counts},
        ),
        Stage(name="curate", output=curated, run=lambda: _curate(gathered, curated)),
        Stage(name="learn a vocabulary", output=tokenizer_folder, run=learn_vocabulary),
        Stage(name="prepare", output=prepared, run=prepare_splits),
        Stage(name="pretrain", output=trained, run=lambda: _pretrain(prepared, trained, settings)),
        Stage(
            name="compare with n-grams", output=trained, run=lambda: _compare_with_ngrams(trained)
        ),
        Stage(name="export", output=exported, run=lambda: _export(trained, exported)),
        Stage(name="fill masks", output=exported, run=lambda: _fill_masks(exported)),
        *map(classify, CLASSIFICATION_TASKS),
    ]


def _task_folder(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-")


def _curate(gathered: Path, curated: Path) -> dict[str, Any]:
    get_config = load_recipe(CURATION_RECIPE)
    config = get_config(
        train=str(gathered / "train.jsonl"), heldout=str(gathered / "heldout.jsonl")
    )
    manifest = curate(config, curated)
    return {"curated": manifest["counts"], "removed": manifest["removed_lines"]}


def _pretrain(prepared: Path, folder: Path, settings: dict[str, Any]) -> int:
    recipe = settings["recipe"]
    arguments = [f"corpus={prepared / 'train'}", f"heldout={prepared / 'heldout'}"]
    arguments += [f"{n}={settings[n]}" for n in ("seed", "steps") if settings[n] is not None]
    experiment = call_recipe(load_recipe(recipe), arguments, recipe)
    return run(check_experiment(experiment, recipe), folder)


def _compare_with_ngrams(folder: Path) -> dict[str, Any]:
    from bert_jax.apps.studies.ngram_comparison import compare_with_ngrams

    return {"held_out": compare_with_ngrams(folder)}


def _export(trained: Path, exported: Path) -> dict[str, Any]:
    from bert_jax.export.export import export
    from bert_jax.pretrained.load import load_encoder

    return {"export_difference": export(load_encoder(str(trained)), exported)}


def _fill_masks(exported: Path) -> dict[str, Any]:
    from bert_jax.predict.fill_mask import FillMask
    from bert_jax.pretrained.load import load_encoder

    predictions = FillMask(load_encoder(str(exported)), top_k=4)(MASKED_TEXTS)
    return {
        "filled": [
            [prediction["text"], [c["token"] for c in prediction["masks"][0]["candidates"]]]
            for prediction in predictions
        ]
    }


def _classify(
    name: str, documents: Path, exported: Path, folder: Path, seed: int
) -> dict[str, Any] | int:
    write_task = CLASSIFICATION_TASKS[name]
    task = write_task(documents, folder / "task")
    scores = compare_classifiers(task, exported, folder, seed)
    return scores if isinstance(scores, int) else {name: scores}


def _load_progress(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Reads the progress of earlier calls in this folder, which must have the same settings."""
    make_folder(folder)
    file = folder / STAGES_FILE
    if not file.is_file():
        return {"settings": settings, "seconds": {}, "results": {}}
    progress = read_json_object(file)
    if not all(isinstance(progress.get(key), dict) for key in ("settings", "seconds", "results")):
        raise UserError(f"{file} was not written by the quickstart; choose another --output")
    if progress["settings"] != settings:
        changed = ", ".join(
            f"{name} {_setting(progress['settings'].get(name))}, now {_setting(value)}"
            for name, value in settings.items()
            if progress["settings"].get(name) != value
        )
        raise UserError(
            f"{folder} was created with other settings ({changed}); give the same ones, or choose "
            "another --output"
        )
    return progress


def _setting(value: Any) -> str:
    return "the default" if value is None else str(value)


def _summary(folder: Path, stages: list[Stage], progress: dict[str, Any]) -> str:
    results = progress["results"]
    held_out, counts, curated = results["held_out"], results["corpus"], results["curated"]
    removed = sum(results["removed"].values())
    lines = ["", "masks filled by the exported model"]
    for text, tokens in results["filled"]:
        lines.append(f"  {text:<66} {', '.join(tokens)}")
    lines += [
        "",
        f"curated: {curated['retained_documents']:,} of {curated['documents']:,} modules retained, "
        f"{curated['retained_characters'] / curated['characters']:.0%} of the characters; "
        f"{removed:,} repeated paragraphs removed",
        f"held-out text: {counts['held_out']['packages']} packages outside the training text, "
        f"{held_out['masked_tokens']:,.0f} masked tokens",
        f"  {'':<32}{'model':>10}{'bigram':>10}{'unigram':>10}",
        f"  {'masked LM loss, nats per token':<32}{held_out['mlm_loss']:>10.3f}"
        f"{held_out['bigram']:>10.3f}{held_out['unigram']:>10.3f}",
        f"  {'':<32}{'model':>10}{'chance':>10}",
        f"  {'next sentence, accuracy':<32}{held_out['nsp_accuracy']:>10.1%}{0.5:>10.1%}",
        "",
        "classification of held-out docstrings, accuracy on dev (networks: the best epoch on dev;",
        "TF-IDF: words and pairs of words, with logistic regression)",
        f"  {'':<16}{'train':>7}{'dev':>7}{'fine-tuned':>12}{'not pretrained':>16}{'TF-IDF':>9}"
        f"{'majority':>10}",
    ]
    for name in CLASSIFICATION_TASKS:
        scores = results[name]
        lines.append(
            f"  {name:<16}{scores['train']:>7,}{scores['dev']:>7,}{scores['fine-tuned']:>12.1%}"
            f"{scores['not pretrained']:>16.1%}{scores['tf-idf']:>9.1%}{scores['majority']:>10.1%}"
        )
    lines += [
        "",
        f"  {'stage':<24}{'seconds':>8}  written to",
    ]
    for stage in stages:
        lines.append(f"  {stage.name:<24}{progress['seconds'][stage.name]:>8.0f}  {stage.output}")
    lines += [
        f"  {'total':<24}{sum(progress['seconds'].values()):>8.0f}  {folder}",
        "",
        f"curves: {folder / 'run' / 'report.html'}",
        f"errors: {_task_folder(folder, 'word order') / 'fine-tuned' / 'report.html'}",
        f'more:   bert-jax fill-mask {folder / "exported"} "A [MASK] of strings."',
        "",
    ]
    return "\n".join(lines)
