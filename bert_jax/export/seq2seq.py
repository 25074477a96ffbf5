"""Exports an encoder-decoder as a Hugging Face folder, and checks it by reading it back.

`AutoModelForSeq2SeqLM` and `AutoTokenizer` open the folder, and `bert-jax generate` reads it.
"""

import shutil
from pathlib import Path

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.export.export import new_folder
from bert_jax.interop import huggingface
from bert_jax.interop.seq2seq import write_seq2seq_folder
from bert_jax.io.json_io import format_json, read_json_object
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.params import paths
from bert_jax.pretrained.seq2seq import LoadedSeq2Seq, load_seq2seq
from bert_jax.text.tokenizer import TOKENIZER_CONFIG_FILE

_MAX_LENGTH = 512
"""The length that the tokenizer truncates to, for models without a table of positions."""


def export_seq2seq(model: LoadedSeq2Seq, output: Path) -> float:
    """Writes `model` to the folder `output`, with tokenizer files and a model card.

    Returns:
      The largest difference of a logit between the model and the folder that was read back.

    Raises:
      UserError: `output` is not empty, cannot be written, or is not the same model when read back
        (nothing is left at `output` then).
    """
    with new_folder(output) as partial_folder:
        _write(model, partial_folder)
        difference = _verify(model, partial_folder)
        card = _model_card(model, output.name, difference)
        (partial_folder / "README.md").write_text(card, "utf-8")
    return difference


def _write(model: LoadedSeq2Seq, folder: Path) -> None:
    write_seq2seq_folder(folder, paths.flatten(model.params), model.config)
    # safetensors gives permissions to the owner only, whatever the umask.
    shutil.copymode(folder / huggingface.CONFIG, folder / huggingface.WEIGHTS)
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
        # Without the length, `tokenizer(text, truncation=True)` would not truncate.
        file = folder / TOKENIZER_CONFIG_FILE
        # T5 has relative positions and therefore no largest length of its own.
        length = {"model_max_length": min(model.config.max_length, _MAX_LENGTH)}
        file.write_text(format_json(read_json_object(file) | length), "utf-8")


def _verify(model: LoadedSeq2Seq, folder: Path) -> float:
    """Compares the folder with the model; returns the largest difference of logits."""
    reloaded = load_seq2seq(folder)
    if reloaded.config != model.config:
        raise UserError(
            f"the export describes another model: {reloaded.config}, not {model.config}"
        )
    expected, found = (paths.flatten(each.params) for each in (model, reloaded))
    for path in sorted(expected.keys() | found.keys()):
        is_in_both = path in expected and path in found
        # Equal bits, not a tolerance: writing and reading only transpose and rename.
        if not (is_in_both and np.array_equal(found[path], expected[path])):
            raise UserError(f"the export was not written: {path} is not the same when read back")
    logits, reloaded_logits = _sample_logits(model), _sample_logits(reloaded)
    if not np.isfinite(logits).all():
        raise UserError(
            f"{model.path} is broken: the logits are not finite; export an earlier checkpoint, or "
            "train again with a lower learning rate"
        )
    return float(np.abs(logits - reloaded_logits).max())


def _sample_logits(model: LoadedSeq2Seq) -> np.ndarray:
    """Computes logits [1, T, V] for random token ids."""
    config = model.config
    length = min(config.max_length, config.max_target_length, 16)
    rng = np.random.default_rng(0)
    input_ids, decoder_input_ids = rng.integers(0, config.vocab_size, (2, 1, length))
    network = build_encoder_decoder_network(config)

    @jax.jit
    def logits(params: object) -> jax.Array:
        module = network.merge(params)  # type: ignore[arg-type]
        hidden = module(input_ids, None, decoder_input_ids).last_hidden_state
        return module.logits(hidden)

    # Accelerators multiply float32 matrices in lower precision by default.
    with jax.default_matmul_precision("highest"):
        return np.asarray(logits(model.params))


def _model_card(model: LoadedSeq2Seq, name: str, difference: float) -> str:
    """Returns a README.md that names the architecture and shows how to generate text."""
    config = model.config
    num_params, _ = paths.count_parameters(paths.flatten(model.params))
    return f"""---
library_name: transformers
pipeline_tag: text2text-generation
---
# {name}

A {config.family} encoder-decoder with {num_params:,} parameters:
{config.num_encoder_layers} encoder and {config.num_decoder_layers} decoder layers, hidden size
{config.hidden_size}, {config.vocab_size:,} rows of token embeddings. Exported by bert_jax from
`{model.path}`; read back from this folder, no logit differed by more than {difference:.1e}.

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("{name}")
    model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
    inputs = tokenizer("A text.", return_tensors="pt")
    print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))

With bert_jax: `bert-jax generate {name} "A text."`
"""
