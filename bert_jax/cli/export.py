"""Runs `bert-jax export`: writes a trained model as a Hugging Face folder and verifies it."""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert_jax.cli.arguments import PoolingArguments
from bert_jax.config.flags import REQUIRED, check_needs, first_given, flag, positional, switch
from bert_jax.errors import ConfigError
from bert_jax.io.hub import check_upload_name

if TYPE_CHECKING:
    from bert_jax.pretrained.load import LoadedModel
    from bert_jax.pretrained.seq2seq import LoadedSeq2Seq

logger = logging.getLogger(__name__)

HELP = "write a model for PyTorch (transformers, sentence-transformers, peft), ONNX or jax"

EPILOG = """examples:
  bert-jax export runs/tiny --output exported
  python -c "from transformers import AutoModel; AutoModel.from_pretrained('exported')"
  bert-jax export runs/lora --adapter --output rte-lora
  bert-jax export runs/reviews --output reviews --push-to-hub my-name/reviews

RUN is a run folder, whose newest valid checkpoint is exported, or one checkpoint, as in
runs/tiny/checkpoints/1000, or an adapter folder, which is merged into its base. For a run with
several tasks, --task selects the task whose head is exported:
bert-jax export runs/all --task rte --output rte

--adapter writes only what a run of bert-jax finetune --method trained, in the format of the peft
library. Without it, the adapter is merged into the model.

--onnx writes onnx/model.onnx into the folder as well, which onnxruntime runs without Python, and
--onnx int8 also onnx/model_quantized.onnx, which is smaller and faster on CPUs. Both are compared
with the model on 64 texts: bert-jax export runs/reviews --onnx int8 --output reviews

--bundle writes the network as StableHLO with its weights, for CPUs, GPUs and TPUs. It runs with
jax, numpy, safetensors and tokenizers, without bert_jax: see load_bundle.py in the folder.

A run of bert-jax embed-train, and a folder of sentence-transformers, is written as a folder that
SentenceTransformer opens. --sentence-transformers makes one of any encoder:
bert-jax export runs/tiny --sentence-transformers --pooling mean --normalize --output vectors
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(PoolingArguments):
    """Names the run, what is exported of it, and the formats."""

    run_folder: str = positional("RUN", "run folder or one of its checkpoints")
    task: str | None = flag("NAME", "task to export, for a run with several")
    generator: bool = switch(
        "export the generator of an ELECTRA or DeBERTa run, not the discriminator"
    )
    adapter: bool = switch(
        "export the adapter and the head alone, in the format of the peft library"
    )
    base: str | None = flag(
        "FOLDER",
        "copy of the model that an adapter was trained on (default: that in the adapter's config)",
    )
    base_name: str | None = flag(
        "ORG/NAME",
        "with --adapter: what the folder calls its base, so that it can be read on other machines "
        "(default: the name on the hub that training started from, or the path)",
    )
    push_to_hub: str | None = flag(
        "ORG/NAME",
        "model of the Hugging Face hub, which the folder is uploaded to (token: `hf auth login`)",
    )
    onnx: Literal["fp32", "int8"] | None = flag(
        "",
        "also write the model as ONNX in float32 (fp32, the default), or in float32 and with "
        "int8 weights (int8); needs the extra [onnx]",
        nargs="?",
        const="fp32",
    )
    bundle: bool = switch("write a bundle for jax instead of a folder for Hugging Face's libraries")
    sentence_transformers: bool = switch(
        "write a folder of sentence-transformers, with a pooling; without --pooling and "
        "--normalize, that of the model or the mean"
    )
    normalize: bool | None = flag("", "vectors of length 1 (default: as the model was trained)")
    output: str = flag("FOLDER", "new folder to write", REQUIRED)

    def __post_init__(self) -> None:
        if self.push_to_hub:
            check_upload_name(self.push_to_hub)
        check_needs(self, "adapter", "base_name")
        if self.onnx and self.bundle:
            raise ConfigError("--bundle writes no ONNX files; run export once for each of the two")
        if self.sentence_transformers and (
            self.task or self.generator or self.adapter or self.bundle
        ):
            raise ConfigError(
                "--sentence-transformers exports an encoder with a pooling; remove --task, "
                "--generator, --adapter and --bundle"
            )
        if not self.sentence_transformers and (self.pooling or self.normalize is not None):
            raise ConfigError(
                "--pooling and --normalize are parts of a sentence encoder; add "
                "--sentence-transformers"
            )


def run(args: Arguments) -> int:
    """Exports the model and prints how far the model read back from the folder differs."""
    _export(args)
    if args.push_to_hub:
        from bert_jax.io.hub import upload_folder

        logger.info("uploaded to %s", upload_folder(Path(args.output), args.push_to_hub))
    return 0


def _export(args: Arguments) -> None:
    from bert_jax.export.adapter import export_adapter
    from bert_jax.export.export import export
    from bert_jax.export.onnx.write import check_onnx_installed
    from bert_jax.export.sentence_encoder import export_sentence_encoder, with_choices
    from bert_jax.io.atomic_io import check_new_folder
    from bert_jax.pretrained.embedding_model import (
        embedding_kind,
        is_sentence_encoder,
        sentence_model_of,
    )
    from bert_jax.pretrained.initial import load_generator
    from bert_jax.pretrained.load import LoadedCausalLM, load_model, require_encoder
    from bert_jax.pretrained.seq2seq import LoadedSeq2Seq, is_seq2seq

    # Before the model is loaded, which takes seconds.
    check_new_folder(Path(args.output))
    if args.onnx:
        check_onnx_installed()
    flags = ("adapter", "base", "bundle", "generator", "onnx", "sentence_transformers", "task")
    if is_seq2seq(args.run_folder) and (name := first_given(args, *flags)):
        raise ConfigError(f"{name} is not supported for encoder-decoders; remove it")
    if args.adapter:
        if args.generator or args.task or args.onnx or args.bundle:
            raise ConfigError(
                "--adapter exports what a run of one task trained; remove --task, --generator, "
                "--onnx and --bundle"
            )
        difference = export_adapter(args.run_folder, Path(args.output), args.base, args.base_name)
        logger.info(
            "exported the adapter of %s to %s; read back with its base, no parameter differs by "
            "more than %.1e",
            args.run_folder,
            args.output,
            difference,
        )
        _log_next(args, "predict")
        return
    if args.generator:
        model = load_generator(args.run_folder)
    else:
        model = load_model(args.run_folder, args.task, args.base)
    if isinstance(model, LoadedSeq2Seq):
        _export_seq2seq(model, args)
        _log_next(args, "generate")
        return
    if isinstance(model, LoadedCausalLM) and model.network.config.is_decoder:
        model = model.network
    model = require_encoder(model, "be exported")
    if args.bundle:
        _export_bundle(model, args)
        return
    compared = "hidden states"
    if embedding_kind(model) != "dense":
        difference = _export_retrieval_encoder(model, args)
        compared = "hidden states and vectors"
    elif args.sentence_transformers or is_sentence_encoder(model):
        sentence = with_choices(sentence_model_of(model), args.pooling, args.normalize)
        compared = "hidden states and vectors"
        difference = export_sentence_encoder(sentence, Path(args.output), args.onnx)
    else:
        difference = export(model, Path(args.output), args.onnx)
    step = f"step {model.run.step} of " if model.run else ""
    logger.info(
        "exported %s%s to %s; read back, its %s differ by at most %.1e",
        step,
        args.run_folder,
        args.output,
        compared,
        difference,
    )
    verb = "embed" if compared != "hidden states" or "masked_lm" in model.missing else "fill-mask"
    _log_next(args, "predict" if model.head is not None else verb)


def _log_next(args: Arguments, verb: str) -> None:
    logger.info("next: bert-jax %s %s --file FILE", verb, shlex.quote(args.output))


def _export_retrieval_encoder(model: "LoadedModel", args: Arguments) -> float:
    from bert_jax.export.retrieval_encoder import export_retrieval_encoder
    from bert_jax.pretrained.embedding_model import SentenceModel, embedding_model_of

    if name := first_given(args, "onnx", "pooling", "normalize"):
        raise ConfigError(f"{name} is not supported for sparse and multi-vector models; remove it")
    retrieval = embedding_model_of(model)
    assert not isinstance(retrieval, SentenceModel)
    return export_retrieval_encoder(retrieval, Path(args.output))


def _export_bundle(model: "LoadedModel", args: Arguments) -> None:
    from bert_jax.export.bundle import export_bundle
    from bert_jax.export.outputs import shipped_network
    from bert_jax.pretrained.load import require_tokenizer

    network = shipped_network(model)
    difference = export_bundle(network, require_tokenizer(model), Path(args.output))
    logger.info(
        "exported %s as a bundle to %s; read back, its outputs differ by at most %.1e",
        args.run_folder,
        args.output,
        difference,
    )


def _export_seq2seq(model: "LoadedSeq2Seq", args: Arguments) -> None:
    from bert_jax.export.seq2seq import export_seq2seq

    difference = export_seq2seq(model, Path(args.output))
    logger.info(
        "exported %s to %s; read back, its logits differ by at most %.1e",
        args.run_folder,
        args.output,
        difference,
    )
