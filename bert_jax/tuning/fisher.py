"""Masked LM on general text as a yardstick for adapted encoders: what was forgotten, what matters.

The head is that of the model before it was adapted: a fine-tuned run has none of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from bert_jax.atomic_io import atomic_path
from bert_jax.data.config import Masking, PretrainingData, SingleSegment
from bert_jax.data.corpus.manifest import read_manifest
from bert_jax.data.corpus.reader import PreparedCorpus, corpus_tokenization
from bert_jax.data.pretraining.loader import evaluation_batches
from bert_jax.errors import UserError
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.objectives.pretraining_losses import masked_lm
from bert_jax.params import paths
from bert_jax.pretrained.initial import tokenizer_folder
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.tokenizer import Tokenizer

SEED = 0
"""Of the windows and masks: the same text at the same places for every model."""


def measure_forgetting(
    before: LoadedModel, after: LoadedModel, corpus_folder: Path, *, num_examples: int = 512
) -> dict[str, Any]:
    """Masked-LM loss on text in general, before and after an encoder was adapted.

    Both encoders are read by the masked-LM head of `before`, at the same masked positions.

    Returns:
      {"before": {"mlm_loss", "mlm_accuracy"}, "after": {...}, "tokens": masked tokens, "distance":
      {path: |after - before| / |before| for each parameter of the encoder}}; losses in nats.

    Raises:
      UserError: `before` has no masked-LM head; encoders of two shapes or of two vocabularies; not
        a prepared corpus, or one of another vocabulary.
    """
    tokenizer = _require_masked_lm(before, corpus_folder)
    if after.config != before.config:
        raise UserError(f"{after.path} is not an encoder of the same shape as {before.path}")
    if after.tokenizer is not None:
        check_same_tokenizer(
            Tokenization.of(tokenizer, before.path),
            Tokenization.of(after.tokenizer, after.path),
            f"Name a model that was trained from {before.path}.",
        )
    params_before, params_after = (
        paths.flatten(model.params["encoder"]) for model in (before, after)
    )
    result: dict[str, Any] = {}
    for name, encoder in (("before", before.params), ("after", after.params)):
        params = {"encoder": encoder["encoder"], "masked_lm": before.params["masked_lm"]}
        metrics, tokens = _evaluate_masked_lm(
            params, before.config, tokenizer, corpus_folder, num_examples
        )
        result[name], result["tokens"] = metrics, tokens
    result["distance"] = {
        path: float(np.linalg.norm(params_after[path] - leaf) / max(np.linalg.norm(leaf), 1e-12))
        for path, leaf in params_before.items()
    }
    return result


def fisher_information(
    model: LoadedModel, corpus_folder: Path, *, num_examples: int = 512
) -> dict[str, np.ndarray]:
    """The diagonal of the empirical Fisher information of masked LM, by path, for the encoder.

    The mean over examples, one at a time, of the squared gradient of an example's mean loss
    (Kirkpatrick et al. 2017, equation 3): how much the text that was learned resists a change.

    Raises:
      UserError: as `forgetting`.
    """
    tokenizer, config = _require_masked_lm(model, corpus_folder), model.config
    head = model.params["masked_lm"]

    @jax.jit
    def add(total: Any, encoder: Any, batch: Any) -> Any:
        def loss(encoder: Any) -> jax.Array:
            mean, _ = _masked_lm_loss(
                {"encoder": encoder, "masked_lm": head}, config, batch, tokenizer
            )
            return mean.total / jnp.maximum(mean.weight, 1.0)

        return jax.tree.map(lambda t, g: t + jnp.square(g), total, jax.grad(loss)(encoder))

    encoder = jax.device_put(model.params["encoder"])
    total, count = jax.tree.map(jnp.zeros_like, encoder), 0
    batches = _batches(config, corpus_folder, num_examples, batch_size=1)
    for batch in tqdm(batches, "Fisher information", num_examples, unit=" examples", disable=None):
        total, count = add(total, encoder, batch), count + 1
    mean = jax.device_get(jax.tree.map(lambda leaf: leaf / count, total))
    return {f"encoder/{path}": leaf for path, leaf in paths.flatten(mean).items()}


def save_fisher(flat: dict[str, np.ndarray], file: Path) -> None:
    """Writes importances by path as safetensors and renames the complete file into place."""
    with atomic_path(file) as temporary:
        save_file({path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}, temporary)


def load_fisher(file: str) -> dict[str, np.ndarray]:
    """Importances by path, as `save_fisher` wrote them; UserError when they cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"tuning.weight_anchor.fisher: {file} cannot be read ({error}); "
            "`bert-jax fisher` writes it"
        ) from None


def _require_masked_lm(model: LoadedModel, corpus_folder: Path) -> Tokenizer:
    """Returns the vocabulary of a model that has a masked-LM head and fits the corpus."""
    if "masked_lm" in model.missing or model.tokenizer is None:
        missing_part = "vocabulary" if model.tokenizer is None else "masked-LM head"
        raise UserError(f"{model.path} has no {missing_part}; take the model as it was pretrained")
    check_same_tokenizer(
        Tokenization.of(model.tokenizer, model.path),
        corpus_tokenization(corpus_folder, read_manifest(corpus_folder)),
        f"Prepare the text again: `bert-jax prepare --tokenizer {tokenizer_folder(model.path)}`.",
    )
    return model.tokenizer


def _evaluate_masked_lm(
    params: Any, config: EncoderConfig, tokenizer: Tokenizer, corpus_folder: Path, num_examples: int
) -> tuple[dict[str, float], int]:
    step = jax.jit(lambda params, batch: _masked_lm_loss(params, config, batch, tokenizer)[1])
    device_params, sums = jax.device_put(params), np.zeros((2, 2))
    for batch in _batches(config, corpus_folder, num_examples, batch_size=16):
        outputs = jax.device_get(step(device_params, batch))
        sums += [[*map(float, outputs[name])] for name in ("mlm_loss", "mlm_accuracy")]
    means = sums[:, 0] / np.maximum(sums[:, 1], 1)
    return {"mlm_loss": float(means[0]), "mlm_accuracy": float(means[1])}, int(sums[0, 1])


def _masked_lm_loss(params: Any, config: EncoderConfig, batch: Any, tokenizer: Tokenizer) -> Any:
    model = build_network(config, ("masked_lm",)).merge(params)
    hidden = model.encode(batch).last_hidden_state
    logits = model.masked_lm_logits(gather_positions(hidden, batch["masked_lm_positions"]))
    return masked_lm(logits, batch, tokenizer.mask_id)


def _batches(
    config: EncoderConfig, corpus_folder: Path, num_examples: int, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    corpus = PreparedCorpus(str(corpus_folder))
    length = min(128, config.max_length)
    return evaluation_batches(
        corpus,
        PretrainingData(corpus=str(corpus_folder), input_format=SingleSegment(), masking=Masking()),
        seq_length=length,
        batch_size=batch_size,
        max_predictions_per_seq=max(1, round(0.15 * length)),
        seed=SEED,
        num_examples=num_examples,
    )
