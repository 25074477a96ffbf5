"""Measures what an encoder forgot of its pretraining text when it was fine-tuned.

A fine-tuned run has no masked-LM head, so both encoders are evaluated with the head of the model
before fine-tuning.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel, require_no_adapter
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.train.tuning.fisher import evaluate_masked_lm, require_masked_lm
from bert_jax.train.tuning.freezing import count_layers, param_depth


def measure_forgetting(
    before: LoadedModel, after: LoadedModel, corpus_folder: Path, *, num_examples: int = 512
) -> dict[str, Any]:
    """Computes the masked-LM loss on general text before and after an encoder was fine-tuned.

    Both encoders are evaluated with the masked-LM head of `before`, at the same masked positions.

    Args:
      corpus_folder: a prepared corpus, usually a held-out one.
      num_examples: number of sequences to evaluate on.

    Returns:
      {"before": {"mlm_loss", "mlm_accuracy"}, "after": {...}, "tokens": masked tokens, "distance":
      {path: |after - before| / |before| for each parameter of the encoder}, "distance_by_depth":
      its mean over the matrices of the embeddings, of layer 1, 2, ...}; losses in nats.

    Raises:
      UserError: `before` has no masked-LM head, the encoders differ in shape or vocabulary, or
        `corpus_folder` is not a prepared corpus with the same vocabulary.
    """
    tokenizer = require_masked_lm(before, corpus_folder)
    require_no_adapter(after, "be compared with its base weight by weight")
    if after.config != before.config:
        raise UserError(
            f"{after.path} and {before.path} have different encoder configs; expected two models "
            "of the same shape"
        )
    if after.tokenizer is not None:
        check_same_tokenizer(
            Tokenization.of(tokenizer, before.path),
            Tokenization.of(after.tokenizer, after.path),
            f"name a model that was trained from {before.path}",
        )
    params_before, params_after = (
        paths.flatten(model.params["encoder"]) for model in (before, after)
    )
    result: dict[str, Any] = {}
    heads = {part: before.params[part] for part in masked_lm_parts(before.config)}
    for name, encoder in (("before", before.params), ("after", after.params)):
        params = {"encoder": encoder["encoder"], **heads}
        metrics, tokens = evaluate_masked_lm(
            params, before.config, tokenizer, corpus_folder, num_examples
        )
        result[name], result["tokens"] = metrics, tokens
    result["distance"] = {
        path: float(np.linalg.norm(params_after[path] - leaf) / max(np.linalg.norm(leaf), 1e-12))
        for path, leaf in params_before.items()
    }
    result["distance_by_depth"] = _by_depth(result["distance"])
    return result


def _by_depth(distances: dict[str, float]) -> list[float]:
    by_path = {f"encoder/{path}": value for path, value in distances.items()}
    num_layers = count_layers(by_path)
    found: dict[int, list[float]] = {depth: [] for depth in range(num_layers + 1)}
    for path, distance in by_path.items():
        if path.endswith(("kernel", "embedding")):
            found[param_depth(path, num_layers)].append(distance)
    return [float(np.mean(found[depth])) for depth in range(num_layers + 1)]
