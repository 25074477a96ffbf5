"""Runs exported models in the server: ONNX files by onnxruntime, or the StableHLO of a bundle.

Both compute the outputs of `export/outputs.py`; `_to_served` converts them to those that the
services read.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.apps.serve.encoder_services import MASK_POSITIONS, MAX_TOP_K
from bert_jax.batch import ENCODER_FIELDS
from bert_jax.config.config_lib import from_json
from bert_jax.errors import MissingExtraError, UserError
from bert_jax.export.load_bundle import INFO, Bundle, BundleError
from bert_jax.export.onnx.write import FOLDER, MODEL, QUANTIZED, OnnxPrecision
from bert_jax.export.outputs import HiddenStates, MaskedLMLogits, Output, shipped_network
from bert_jax.interop.huggingface import ImportedModel, find_tokenizer
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.sentence_encoder.config import SENTENCE_HEAD, SentenceEncoderConfig
from bert_jax.params import paths
from bert_jax.predict.batches import Arrays
from bert_jax.pretrained.load import LoadedModel, build_model
from bert_jax.tasks.registry import head_spec


class OnnxBackend:
    """Computes batches with onnxruntime on the CPU."""

    def __init__(self, model: LoadedModel, precision: OnnxPrecision):
        """Opens the ONNX file in the folder of a model.

        Raises:
          UserError: the folder has no such file, or it cannot be read.
          MissingExtraError: onnxruntime is not installed.
        """
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError(
                "--onnx needs onnxruntime, which is not installed", "onnx"
            ) from None
        file = Path(model.path) / FOLDER / (MODEL if precision == "fp32" else QUANTIZED)
        if not file.is_file():
            raise UserError(
                f"{file} does not exist; `bert-jax export {model.path} --onnx {precision} --output "
                "FOLDER` makes a folder that has it"
            )
        network = shipped_network(model)
        self._output, self._vocab_size = network.output, _vocab_size(model)
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(file), providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise UserError(
                f"{file} cannot be read by onnxruntime: {error}; export again"
            ) from None
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._names = list(network.output_dims)
        found = [each.name for each in self._session.get_outputs()]
        if not (set(self._inputs) <= set(ENCODER_FIELDS) and set(self._names) <= set(found)):
            raise UserError(
                f"{file} reads {', '.join(self._inputs)} and computes {', '.join(found)}; expected "
                f"the inputs {', '.join(ENCODER_FIELDS)} and the outputs "
                f"{', '.join(self._names)}, with which `bert-jax export {model.path} --onnx "
                f"{precision} --output FOLDER` writes it"
            )

    def compile(self, batch: Arrays) -> None:
        """Does nothing: onnxruntime has one program for batches of all shapes."""

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        """Returns the outputs of a batch by the names that the services read."""
        fields = {name: batch[name].astype(np.int64) for name in self._inputs}
        outputs = dict(zip(self._names, self._session.run(self._names, fields), strict=True))
        return _to_served(self._output, outputs, batch, self._vocab_size)


class BundleBackend:
    """Computes batches with the programs of a bundle."""

    def __init__(self, bundle: Bundle, model: LoadedModel):
        """Wraps a bundle; `model` is as in `read_bundle`."""
        self._bundle = bundle
        self._output, self._vocab_size = shipped_network(model).output, _vocab_size(model)

    def compile(self, batch: Arrays) -> None:
        """Compiles the program for the shape of a batch."""
        self(batch)

    def __call__(self, batch: Arrays) -> Mapping[str, Any]:
        """Returns the outputs of a batch by the names that the services read."""
        outputs = self._bundle.run({name: batch[name] for name in self._bundle.info["inputs"]})
        return _to_served(self._output, outputs, batch, self._vocab_size)


def is_bundle(folder: Path) -> bool:
    """Returns whether a folder is a bundle of `bert-jax export --bundle`."""
    return (folder / INFO).is_file()


def read_bundle(folder: Path) -> tuple[LoadedModel, BundleBackend]:
    """Reads the config, the weights and the tokenizer of a bundle, and its programs.

    Raises:
      UserError: a file is missing or damaged, or the bundle was made by an earlier version.
    """
    try:
        bundle = Bundle(folder)
    except BundleError as error:
        raise UserError(str(error)) from None
    described = bundle.info.get("model")
    if described is None:
        raise UserError(
            f"{folder} was made by bert_jax {bundle.info.get('bert_jax_version')}, whose bundles "
            "do not describe their model; make the bundle again, or serve the model itself"
        )
    output: Output = from_json(Output, described["output"], f"{INFO}: model.output")
    config = from_json(EncoderConfig, described["encoder"], f"{INFO}: model.encoder")
    params = paths.unflatten({path: np.asarray(leaf) for path, leaf in bundle.params.items()})
    sentence_head = params.pop(SENTENCE_HEAD, {})
    head = None
    if not isinstance(output, HiddenStates | MaskedLMLogits | SentenceEncoderConfig):
        head = output
    flat_params, tokenizer = paths.flatten(params), find_tokenizer(folder)
    model = build_model(ImportedModel(flat_params, config, tokenizer, head), str(folder))
    if isinstance(output, SentenceEncoderConfig):
        model = dataclasses.replace(model, sentence_encoder=output, sentence_head=sentence_head)
    return model, BundleBackend(bundle, model)


def _vocab_size(model: LoadedModel) -> int:
    return model.config.vocab_size if model.tokenizer is None else model.tokenizer.vocab_size


def _to_served(output: Output, outputs: Arrays, batch: Arrays, vocab_size: int) -> Arrays:
    """Converts the outputs of an exported model to the outputs of the services' own networks."""
    match output:
        case SentenceEncoderConfig():
            return {
                "embedding": outputs["sentence_embedding"],
                "token_embeddings": outputs["last_hidden_state"],
            }
        case HiddenStates():
            hidden = outputs["last_hidden_state"]
            mask = batch["attention_mask"][..., None].astype(hidden.dtype)
            mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
            return {"embedding": mean, "token_embeddings": hidden}
        case MaskedLMLogits():
            return _top_tokens(outputs["logits"], batch[MASK_POSITIONS], vocab_size)
        case head:
            names = head_spec(head).output_names
            # The only output of an exported head is called "logits", whatever the kind of task.
            match names:
                case ("values",):
                    return {"values": outputs["logits"][:, 0]}
                case (name,):
                    return {name: outputs["logits"]}
                case _:
                    return {name: outputs[name] for name in names}


def _top_tokens(logits_BLV: np.ndarray, positions_BM: np.ndarray, vocab_size: int) -> Arrays:
    logits = np.take_along_axis(logits_BLV, positions_BM[..., None], axis=1)[..., :vocab_size]
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    ids = np.argsort(-probabilities, axis=-1, kind="stable")[..., :MAX_TOP_K].astype(np.int32)
    return {"ids": ids, "probabilities": np.take_along_axis(probabilities, ids, axis=-1)}
