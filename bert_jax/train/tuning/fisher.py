"""Computes the Fisher information of an encoder's weights for EWC, from masked LM on a corpus."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from bert_jax.config.data import Masking, PretrainingData, SingleSegment
from bert_jax.data.corpus.manifest import TOKENIZER_FOLDER, read_manifest
from bert_jax.data.corpus.reader import PreparedCorpus, corpus_tokenization
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import evaluation_batches
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import UserError, check_range
from bert_jax.io.atomic_io import atomic_path
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.heads.modules import gather_positions
from bert_jax.models.model import build_network
from bert_jax.objectives.pretraining import masked_lm_loss
from bert_jax.params import paths
from bert_jax.pretrained.load import LoadedModel
from bert_jax.text.compatibility import Tokenization, check_same_tokenizer
from bert_jax.text.tokenizer import Tokenizer

SEED = 0
"""Seed of sequences and masks, so that all models are evaluated at the same positions."""


def fisher_information(
    model: LoadedModel, corpus_folder: Path, *, num_examples: int = 512
) -> dict[str, np.ndarray]:
    """Computes the diagonal of the empirical Fisher information of the encoder's weights.

    For each weight it is the mean over examples of the squared gradient of the example's masked-LM
    loss (Kirkpatrick et al. 2017, equation 3). Large values mark weights that matter most for the
    pretraining text.

    Returns:
      {parameter path: array shaped like the parameter}.

    Raises:
      UserError: the model has no masked-LM head or no vocabulary, or `corpus_folder` is not a
        prepared corpus with the same vocabulary.
    """
    tokenizer, config = require_masked_lm(model, corpus_folder), model.config
    heads = {part: model.params[part] for part in masked_lm_parts(config)}

    @jax.jit
    def add(total: Any, encoder: Any, batch: Any) -> Any:
        def loss(encoder: Any) -> jax.Array:
            mean, _ = _masked_lm_loss({"encoder": encoder, **heads}, config, batch, tokenizer)
            return mean.total / jnp.maximum(mean.weight, 1.0)

        return jax.tree.map(lambda t, g: t + jnp.square(g), total, jax.grad(loss)(encoder))

    encoder = jax.device_put(model.params["encoder"])
    total, count = jax.tree.map(jnp.zeros_like, encoder), 0
    # One example at a time: the square of a mean gradient is not the mean of the squares.
    batches = _batches(config, corpus_folder, num_examples, batch_size=1)
    for batch in tqdm(batches, "Fisher information", num_examples, unit=" examples", disable=None):
        total, count = add(total, encoder, batch), count + 1
    mean = jax.device_get(jax.tree.map(lambda leaf: leaf / count, total))
    return {f"encoder/{path}": leaf for path, leaf in paths.flatten(mean).items()}


def save_fisher(flat: dict[str, np.ndarray], file: Path) -> None:
    """Writes Fisher information by parameter path as safetensors, atomically."""
    with atomic_path(file) as temporary:
        save_file({path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}, temporary)


def load_fisher(file: str) -> dict[str, np.ndarray]:
    """Reads a file written by `save_fisher`; raises UserError if it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"train.tuning.weight_anchor.fisher: {file} cannot be read ({error}); "
            "write it with `bert-jax fisher`"
        ) from None


def require_masked_lm(model: LoadedModel, corpus_folder: Path) -> Tokenizer:
    """Returns the tokenizer of a model; raises UserError unless it fits the corpus.

    The model must also have a masked-LM head.
    """
    if "masked_lm" in model.missing or model.tokenizer is None:
        missing_part = "vocabulary" if model.tokenizer is None else "masked-LM head"
        raise UserError(
            f"{model.path} has no {missing_part}; use the pretrained model before fine-tuning"
        )
    folder = model.path if model.run is None else model.run.folder / TOKENIZER_FOLDER
    check_same_tokenizer(
        Tokenization.of(model.tokenizer, model.path),
        corpus_tokenization(corpus_folder, read_manifest(corpus_folder)),
        f"prepare the text again: `bert-jax prepare --tokenizer {folder}`",
    )
    return model.tokenizer


def evaluate_masked_lm(
    params: Any, config: EncoderConfig, tokenizer: Tokenizer, corpus_folder: Path, num_examples: int
) -> tuple[dict[str, float], int]:
    """Returns ({"mlm_loss" in nats, "mlm_accuracy"}, number of masked tokens)."""
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
    return masked_lm_loss(logits, batch, tokenizer.mask_id)


def _batches(
    config: EncoderConfig, corpus_folder: Path, num_examples: int, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    check_range("--num-examples", num_examples, at_least=1)
    corpus = PreparedCorpus(str(corpus_folder))
    length = min(128, config.max_length)
    batch_builder = BatchBuilder(
        corpus,
        VocabArrays.from_tokenizer(corpus.tokenizer()),
        PretrainingData(corpus=str(corpus_folder), input_format=SingleSegment(), masking=Masking()),
        seq_length=length,
        batch_size=batch_size,
        max_predictions_per_seq=max(1, round(0.15 * length)),
        seed=SEED,
    )
    return evaluation_batches(batch_builder, num_examples)
