"""`bert-jax quickstart`: the whole way, on text that is already on the machine."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.atomic_io import atomic_write, write_json
from bert_jax.errors import UserError

HELP = "from the documentation on this machine to a trained, exported BERT"

_EPILOG = """example:
  bert-jax quickstart --output quickstart

Gathers the docstrings of Python and of the installed packages, learns a vocabulary, prepares the
text, trains a tiny BERT, judges it on packages that it has not seen, exports it, fills a few masks,
and fine-tunes it to tell which library a docstring comes from. Started again, it goes on where it
stopped.
"""

STAGES_FILE, SUMMARY_FILE = "stages.json", "summary.txt"
VOCAB_SIZE = 8192
MASKED_TEXTS = (
    "Returns the [MASK] of the array.",
    "The default [MASK] is None.",
    "Raises an error if the file does not [MASK].",
    "This function is [MASK] and will be removed in a future version.",
    "A list of [MASK].",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--output, --recipe, --steps, --seed."""
    parser.add_argument("--output", metavar="FOLDER", required=True, help="where all goes")
    parser.add_argument(
        "--recipe",
        default="configs/quickstart.py",
        help="what is trained (default: configs/quickstart.py)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="updates (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.epilog = _EPILOG


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step on the way. `run` returns what the summary needs, or an exit code to leave with."""

    name: str
    output: Path
    run: Callable[[], Any]


def run(args: argparse.Namespace) -> int:
    """Does the stages that are not done yet, then prints the summary."""
    folder = Path(args.output)
    settings = {"recipe": args.recipe, "steps": args.steps, "seed": args.seed}
    progress = _load_progress(folder, settings)
    stages = _stages(folder, settings)
    for number, stage in enumerate(stages, start=1):
        skipped = stage.name in progress["seconds"]
        status = "done before" if skipped else f"-> {stage.output}"
        print(f"[{number}/{len(stages)}] {stage.name} {status}", file=sys.stderr, flush=True)
        if skipped:
            continue
        start = time.monotonic()
        result = stage.run()
        # A stage that was cut short and resumed counts the last stretch only.
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
    from bert_jax.data.corpus.plan import PrepareConfig
    from bert_jax.data.corpus.prepare import prepare
    from bert_jax.data.corpus.sources import TextFiles
    from bert_jax.quickstart.docstring_corpus import write_docstring_corpus
    from bert_jax.text.config import TokenizerTrainingConfig
    from bert_jax.text.learn import train_tokenizer_from_files

    corpus, tokenizer_folder, prepared = (
        folder / "corpus",
        folder / "vocabulary",
        folder / "prepared",
    )
    trained, exported, libraries = folder / "run", folder / "exported", folder / "libraries"

    def learn() -> None:
        config = TokenizerTrainingConfig(kind="wordpiece", vocab_size=VOCAB_SIZE, cased=False)
        train_tokenizer_from_files([str(corpus / "train.jsonl")], tokenizer_folder, config)

    def prepare_both() -> None:
        for split in ("train", "heldout"):
            source = TextFiles(str(corpus / f"{split}.jsonl"))
            output = str(prepared / split)
            prepare(PrepareConfig(source=source, output=output, tokenizer=str(tokenizer_folder)))

    return [
        Stage(
            name="gather documentation",
            output=corpus,
            run=lambda: _corpus_counts(write_docstring_corpus(corpus)),
        ),
        Stage(name="learn a vocabulary", output=tokenizer_folder, run=learn),
        Stage(name="prepare", output=prepared, run=prepare_both),
        Stage(name="pretrain", output=trained, run=lambda: _pretrain(prepared, trained, settings)),
        Stage(
            name="compare with n-grams", output=trained, run=lambda: _compare_with_ngrams(trained)
        ),
        Stage(name="export", output=exported, run=lambda: _export(trained, exported)),
        Stage(name="fill masks", output=exported, run=lambda: _fill_masks(exported)),
        Stage(
            name="classify libraries",
            output=libraries,
            run=lambda: _classify_libraries(corpus, exported, libraries, settings["seed"]),
        ),
    ]


def _corpus_counts(corpus: Any) -> dict[str, Any]:
    return {"corpus": corpus.counts}


def _pretrain(prepared: Path, folder: Path, settings: dict[str, Any]) -> int:
    from bert_jax.config_lib import load_recipe
    from bert_jax.train.run import run as train

    steps = {} if settings["steps"] is None else {"steps": settings["steps"]}
    experiment = load_recipe(settings["recipe"])(
        corpus=str(prepared / "train"),
        heldout=str(prepared / "heldout"),
        seed=settings["seed"],
        **steps,
    )
    return train(experiment, folder)


def _compare_with_ngrams(folder: Path) -> dict[str, Any]:
    from bert_jax.cli.baselines import compare_with_ngrams

    return {"held_out": compare_with_ngrams(folder)}


def _export(trained: Path, exported: Path) -> dict[str, Any]:
    from bert_jax.export.export import export
    from bert_jax.pretrained.load import load_model

    return {"export_difference": export(load_model(str(trained)), exported)}


def _fill_masks(exported: Path) -> dict[str, Any]:
    from bert_jax.predict.fill_mask import FillMask
    from bert_jax.pretrained.load import load_model

    answers = FillMask(load_model(str(exported)), top_k=4)(MASKED_TEXTS)
    return {
        "filled": [
            [answer["text"], [c["token"] for c in answer["masks"][0]["candidates"]]]
            for answer in answers
        ]
    }


def _classify_libraries(
    corpus: Path, exported: Path, folder: Path, seed: int
) -> dict[str, Any] | int:
    from bert_jax.quickstart.classification import classify_docstrings

    scores = classify_docstrings(corpus / "heldout.jsonl", exported, folder, seed)
    return scores if isinstance(scores, int) else {"libraries": scores}


def _load_progress(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What earlier calls have done in this folder; refuses one made with other settings."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STAGES_FILE
    if not file.is_file():
        return {"settings": settings, "seconds": {}, "results": {}}
    progress = json.loads(file.read_text())
    if progress["settings"] != settings:
        raise UserError(
            f"{folder} was made with {progress['settings']}, now asked for with {settings}; "
            "choose another --output"
        )
    return progress


def _summary(folder: Path, stages: list[Stage], progress: dict[str, Any]) -> str:
    held_out, counts = progress["results"]["held_out"], progress["results"]["corpus"]
    libraries = progress["results"]["libraries"]
    lines = ["", "masks filled by the exported model"]
    for text, tokens in progress["results"]["filled"]:
        lines.append(f"  {text:<66} {', '.join(tokens)}")
    lines += [
        "",
        f"held-out text: {counts['held_out']['packages']} packages that training has not seen, "
        f"{held_out['masked_tokens']:,.0f} masked tokens",
        f"  {'':<32}{'model':>10}{'bigram':>10}{'unigram':>10}",
        f"  {'masked LM loss, nats per token':<32}{held_out['mlm_loss']:>10.3f}"
        f"{held_out['bigram']:>10.3f}{held_out['unigram']:>10.3f}",
        f"  {'':<32}{'model':>10}{'chance':>10}",
        f"  {'next sentence, accuracy':<32}{held_out['nsp_accuracy']:>10.1%}{0.5:>10.1%}",
        "",
        f"which of {libraries['libraries']} libraries a docstring of that text comes from: "
        f"{libraries['train']:,} to learn from, {libraries['dev']:,} of other modules to tell",
        f"  {'':<20}{'fine-tuned':>12}{'not pretrained':>16}{'TF-IDF':>10}{'majority':>10}",
        f"  {'accuracy':<20}{libraries['fine-tuned']:>12.1%}{libraries['not pretrained']:>16.1%}"
        f"{libraries['tf-idf']:>10.1%}{libraries['majority']:>10.1%}",
        "  (both networks: the best of their epochs on these texts; TF-IDF: logistic regression)",
        "",
        f"  {'stage':<24}{'seconds':>8}  written to",
    ]
    for stage in stages:
        lines.append(f"  {stage.name:<24}{progress['seconds'][stage.name]:>8.0f}  {stage.output}")
    lines += [
        f"  {'all':<24}{sum(progress['seconds'].values()):>8.0f}  {folder}",
        "",
        f"curves: {folder / 'run' / 'report.html'}",
        f"errors: {folder / 'libraries' / 'fine-tuned' / 'report.html'}",
        f'more:   bert-jax fill-mask {folder / "exported"} "A [MASK] of strings."',
        "",
    ]
    return "\n".join(lines)
