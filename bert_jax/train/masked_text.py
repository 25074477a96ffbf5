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

from bert_jax import paths
from bert_jax.aside import written_aside
from bert_jax.batch import ENCODER_FIELDS
from bert_jax.data.config import LoaderConfig, Masking, Single
from bert_jax.data.loader import evaluation_batches
from bert_jax.data.manifest import read_manifest
from bert_jax.data.prepared import PreparedCorpus, tokenization
from bert_jax.errors import UserError
from bert_jax.models.config import BertConfig
from bert_jax.models.heads import gather_positions
from bert_jax.objectives.pretraining import masked_lm
from bert_jax.programs import parts
from bert_jax.text.compatibility import Tokenization, check_same_vocabulary
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.train.initial import vocabulary_folder
from bert_jax.train.pretrained import LoadedModel

SEED = 0
"""Of the windows and masks: the same text at the same places for every model."""


def forgetting(
    before: LoadedModel, after: LoadedModel, prepared: Path, *, examples: int = 512
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
    vocabulary = _require_head(before, prepared)
    if after.config != before.config:
        raise UserError(f"{after.origin} is not an encoder of the same shape as {before.origin}")
    if after.vocabulary is not None:
        check_same_vocabulary(
            Tokenization.of(vocabulary, before.origin),
            Tokenization.of(after.vocabulary, after.origin),
            f"Name a model that was trained from {before.origin}.",
        )
    start, end = (paths.flatten(model.params["encoder"]) for model in (before, after))
    result: dict[str, Any] = {}
    for name, encoder in (("before", before.params), ("after", after.params)):
        params = {"encoder": encoder["encoder"], "masked_lm": before.params["masked_lm"]}
        measured, tokens = _measure(params, before.config, vocabulary, prepared, examples)
        result[name], result["tokens"] = measured, tokens
    result["distance"] = {
        path: float(np.linalg.norm(end[path] - leaf) / max(np.linalg.norm(leaf), 1e-12))
        for path, leaf in start.items()
    }
    return result


def fisher(model: LoadedModel, prepared: Path, *, examples: int = 512) -> dict[str, np.ndarray]:
    """The diagonal of the empirical Fisher information of masked LM, by path, for the encoder.

    The mean over examples, one at a time, of the squared gradient of an example's mean loss
    (Kirkpatrick et al. 2017, equation 3): how much the text that was learned resists a change.

    Raises:
      UserError: as `forgetting`.
    """
    vocabulary, config = _require_head(model, prepared), model.config
    head = model.params["masked_lm"]

    @jax.jit
    def add(total: Any, encoder: Any, batch: Any) -> Any:
        def loss(encoder: Any) -> jax.Array:
            mean, _ = _loss({"encoder": encoder, "masked_lm": head}, config, batch, vocabulary)
            return mean.total / jnp.maximum(mean.weight, 1.0)

        return jax.tree.map(lambda t, g: t + jnp.square(g), total, jax.grad(loss)(encoder))

    encoder = jax.device_put(model.params["encoder"])
    total, count = jax.tree.map(jnp.zeros_like, encoder), 0
    batches = _batches(config, prepared, examples, batch_size=1)
    for batch in tqdm(batches, "Fisher information", examples, unit=" examples", disable=None):
        total, count = add(total, encoder, batch), count + 1
    mean = jax.device_get(jax.tree.map(lambda leaf: leaf / count, total))
    return {f"encoder/{path}": leaf for path, leaf in paths.flatten(mean).items()}


def save_fisher(flat: dict[str, np.ndarray], file: Path) -> None:
    """Writes importances by path as safetensors, aside and then into place."""
    with written_aside(file) as aside:
        save_file({path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}, aside)


def load_fisher(file: str) -> dict[str, np.ndarray]:
    """Importances by path, as `save_fisher` wrote them; UserError when they cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"tuning.anchor.fisher: {file} cannot be read ({error}); `bert-jax fisher` writes it"
        ) from None


def _require_head(model: LoadedModel, prepared: Path) -> Vocabulary:
    """Returns the vocabulary of a model that has a masked-LM head and fits the corpus."""
    if "masked_lm" in model.missing or model.vocabulary is None:
        lacking = "vocabulary" if model.vocabulary is None else "masked-LM head"
        raise UserError(f"{model.origin} has no {lacking}; take the model as it was pretrained")
    check_same_vocabulary(
        Tokenization.of(model.vocabulary, model.origin),
        tokenization(prepared, read_manifest(prepared)),
        "Prepare the text again with "
        f"`bert-jax prepare --vocab {vocabulary_folder(model.origin)}`.",
    )
    return model.vocabulary


def _measure(
    params: Any, config: BertConfig, vocabulary: Vocabulary, prepared: Path, examples: int
) -> tuple[dict[str, float], int]:
    step = jax.jit(lambda params, batch: _loss(params, config, batch, vocabulary)[1])
    placed, sums = jax.device_put(params), np.zeros((2, 2))
    for batch in _batches(config, prepared, examples, batch_size=16):
        found = jax.device_get(step(placed, batch))
        sums += [[*map(float, found[name])] for name in ("mlm_loss", "mlm_accuracy")]
    means = sums[:, 0] / np.maximum(sums[:, 1], 1)
    return {"mlm_loss": float(means[0]), "mlm_accuracy": float(means[1])}, int(sums[0, 1])


def _loss(params: Any, config: BertConfig, batch: Any, vocabulary: Vocabulary) -> Any:
    encoder = parts.network("encoder", config).bind(params["encoder"])
    hidden = encoder(*(batch[name] for name in ENCODER_FIELDS)).last_hidden_state
    chosen = gather_positions(hidden, batch["masked_lm_positions"])
    head = parts.network("masked_lm", config).bind(params["masked_lm"])
    logits = head(chosen, encoder.embeddings.word_embeddings.embedding[...])
    return masked_lm(logits, batch, vocabulary.mask_id)


def _batches(
    config: BertConfig, prepared: Path, examples: int, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    corpus = PreparedCorpus(str(prepared))
    length = min(128, config.positions.max_length)
    return evaluation_batches(
        corpus,
        LoaderConfig(prepared=str(prepared), examples=Single(), masking=Masking()),
        length=length,
        batch_size=batch_size,
        max_predictions=max(1, round(0.15 * length)),
        seed=SEED,
        examples=examples,
    )
