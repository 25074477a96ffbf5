"""Computes the accuracy on minimal pairs of every checkpoint of a run, for its report."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.apps.sentence_scores.minimal_pairs import (
    ALL,
    MinimalPair,
    accuracies,
    score_pairs,
)
from bert_jax.apps.sentence_scores.scorer import Masking, SentenceScorer
from bert_jax.errors import UserError
from bert_jax.io.atomic_io import write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.pretrained.load import load_model
from bert_jax.report.run_report import write_report
from bert_jax.runs.checkpoints.step_folder import list_steps
from bert_jax.runs.run_folder import CHECKPOINTS, MINIMAL_PAIRS

logger = logging.getLogger(__name__)


def score_checkpoints(
    run: Path,
    pairs: Sequence[MinimalPair],
    *,
    masking: Masking = "original",
    on_checkpoint: Callable[[dict[str, Any]], object] | None = None,
) -> list[dict[str, Any]]:
    """Scores the pairs with each checkpoint, and writes them to the run folder and its report.

    A checkpoint that was scored before with the same pairs and masking is not scored again, and
    its row stays after the run has deleted it. So this can be repeated while the run is training.

    Args:
      on_checkpoint: called with each row, as soon as it is written.

    Returns:
      A row for each checkpoint, by ascending step: "step", "all" and each group, where the
      accuracies are from 0 to 1.

    Raises:
      UserError: `run` is not a run folder, has no checkpoint in it yet, or a sentence is too long.
    """
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(f"{run} has no folder {CHECKPOINTS}; expected the folder of a run")
    fingerprint = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    settings = {"masking": masking, "pairs": len(pairs), "fingerprint": fingerprint}
    file = run / MINIMAL_PAIRS
    saved = read_json_object(file) if file.exists() else {}
    if saved and {key: saved.get(key) for key in settings} != settings:
        logger.info("%s has results of other pairs or another masking; they are replaced", file)
        saved = {}
    rows: dict[int, dict[str, Any]] = {row["step"]: row for row in saved.get("checkpoints", ())}
    for step in list_steps(epath.Path(run / CHECKPOINTS)):
        if step in rows:
            continue
        scorer = SentenceScorer(load_model(run / CHECKPOINTS / str(step)), masking=masking)
        found = accuracies(score_pairs(scorer, pairs))
        groups = {name: each.value for name, each in sorted(found["groups"].items())}
        rows[step] = {"step": step, ALL: found[ALL][ALL].value, **groups}
        write_json(file, {**settings, "checkpoints": [rows[key] for key in sorted(rows)]})
        if on_checkpoint is not None:
            on_checkpoint(rows[step])
    if not rows:
        raise UserError(f"{run} has no checkpoint yet; expected at least one")
    logger.info("report with these accuracies: %s", write_report(run))
    return [rows[step] for step in sorted(rows)]
