"""Checks training: known losses, resuming bit for bit, the loader's position, and checkpoints.

The text is generated (`apps/testing/text_corpus.py`), so nothing is downloaded: in an artificial
language each word is followed by one of two words, and a document has the words of one topic. The
model is BERT-tiny with sequences of 128 tokens, which the attention kernel supports.
"""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.apps.verify.checks import Check, Context, Measured, Skipped, Target
from bert_jax.config.data import PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    CheckpointConfig,
    LoggingConfig,
    MeshConfig,
    Phase,
    TrainConfig,
    WarmupStableDecay,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.batch_builder import BatchBuilder
from bert_jax.data.pretraining.loader import PretrainingLoader
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.errors import UserError
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import ComputeConfig, LearnedPositions
from bert_jax.parallel.processes import run_on_process_0
from bert_jax.params import paths
from bert_jax.runs import run_folder
from bert_jax.runs.checkpoints import step_folder
from bert_jax.runs.metrics import FILE as METRICS
from bert_jax.runs.metrics import read_metrics
from bert_jax.train.run import run

BATCH_SIZE, SEQ_LENGTH = 32, 128
KNOWN_LOSSES = {1: 5.08718, 5: 5.03882, 10: 4.87735, 20: 4.59533, 30: 4.07387}
"""Loss by update, recorded on a CPU in float32 with jax 0.10.2."""
_LOSS_TOLERANCE = {"cpu": 2e-3, "gpu": 5e-3, "tpu": 2e-2}
_FIRST, _RESUMED = "training", "resumed"


def training_experiment(
    corpus: Path, updates: int = 30, mesh: MeshConfig | None = None
) -> Experiment:
    """Returns the config of the short training; a loss does not depend on the later updates."""
    model = BertConfig(
        vocab_size=78,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        positions=LearnedPositions(max_position_embeddings=SEQ_LENGTH),
    )
    phase = Phase(
        steps=updates, seq_length=SEQ_LENGTH, batch_size=BATCH_SIZE, max_predictions_per_seq=20
    )
    return Experiment(
        name="verify",
        objective=Pretraining(
            model=model, mask_token_id=4, compute=ComputeConfig(attention="pallas")
        ),
        data=PretrainingData(corpus=str(corpus)),
        train=TrainConfig(
            phases=(phase,),
            schedule=WarmupStableDecay(peak_learning_rate=4e-3, warmup_steps=4),
            checkpoints=CheckpointConfig(save_every=updates // 2),
            logging=LoggingConfig(log_every=1),
        ),
        mesh=mesh or MeshConfig(),
    )


def training_checks() -> list[Check]:
    """Returns the checks, in an order in which later ones read what earlier ones wrote."""
    return [
        Check(
            name="training, known losses",
            describe=_describe_training,
            unit="relative difference",
            limit=lambda target: _LOSS_TOLERANCE[target.platform],
            measure=_measure_losses,
        ),
        Check(
            name="loader, resumed",
            describe=lambda _: "batches from a position, and of two processes, against one loader",
            unit="batches that differ",
            measure=_measure_loader,
        ),
        Check(
            name="resume, bit for bit",
            describe=_describe_resume,
            unit="arrays and losses that differ",
            measure=_measure_resume,
        ),
        Check(
            name="checkpoint, damage is found",
            describe=lambda _: "one flipped byte in each file of parameters and optimizer state",
            unit="flipped bytes not found",
            measure=_measure_damage,
        ),
    ]


def corpus_of(context: Context) -> Path:
    """Returns the corpus of the checks, which is generated at the first use."""
    if "corpus" not in context.shared:
        context.shared["corpus"] = prepare_corpus(context.folder / "text", num_documents=120)
    return context.shared["corpus"]


def make_loader(corpus: Path, start: int = 0, **options: Any) -> PretrainingLoader:
    """Returns a loader of the short training's batches; `options` are of `BatchBuilder`."""
    experiment = training_experiment(corpus)
    data, phase = experiment.data, experiment.train.phases[0]
    assert isinstance(data, PretrainingData)
    settings: dict[str, Any] = {
        "seq_length": phase.seq_length,
        "batch_size": phase.batch_size,
        "max_predictions_per_seq": phase.max_predictions_per_seq,
        "seed": experiment.seed,
        **options,
    }
    prepared = PreparedCorpus(corpus)
    vocab_arrays = VocabArrays.from_tokenizer(prepared.tokenizer())
    return PretrainingLoader(BatchBuilder(prepared, vocab_arrays, data, **settings), start)


def _describe_training(target: Target) -> str:
    if BATCH_SIZE % target.devices:
        raise Skipped(f"{BATCH_SIZE} sequences cannot be split over {target.devices} devices")
    return (
        f"BERT-tiny, generated text, {BATCH_SIZE} x {SEQ_LENGTH} tokens on {target.devices} "
        "devices, against losses recorded on a CPU"
    )


def _describe_resume(target: Target) -> str:
    _describe_training(target)
    return "the second half again from the checkpoint in the middle, against the first training"


def _checkpoint_dir(context: Context, name: str) -> epath.Path:
    if context.checkpoint_dir is not None:
        return step_folder.absolute_path(context.checkpoint_dir) / name
    if context.target.processes > 1:
        raise Skipped("several processes need a folder that all of them can write: --checkpoints")
    return step_folder.absolute_path(context.folder / name / run_folder.CHECKPOINTS)


def _train(context: Context, name: str) -> dict[int, float]:
    """Trains in a run folder, from its newest checkpoint if there is one; returns its losses."""
    folder, checkpoints = context.folder / name, _checkpoint_dir(context, name)
    code = run(training_experiment(corpus_of(context), context.updates), folder, str(checkpoints))
    if code != 0:
        raise UserError(f"the training in {folder} ended with exit code {code}; expected 0")
    rows = run_on_process_0(
        lambda: [[row["step"], row["loss"]] for row in read_metrics(folder / METRICS)]
    )
    return {int(step): float(loss) for step, loss in rows}


def _measure_losses(context: Context) -> Measured:
    losses = context.shared[_FIRST] = _train(context, _FIRST)
    known_losses = {step: loss for step, loss in KNOWN_LOSSES.items() if step in losses}
    deviations = {step: abs(losses[step] / known - 1) for step, known in known_losses.items()}
    worst, last = max(deviations, key=deviations.__getitem__), max(losses)
    return Measured(
        value=deviations[worst],
        detail=f"loss {losses[1]:.4f} to {losses[last]:.4f} in {last} updates; largest difference "
        f"after update {worst}: {losses[worst]:.4f}, known {KNOWN_LOSSES[worst]:.4f}",
        numbers={f"loss_{step}": losses[step] for step in deviations},
    )


def _measure_loader(context: Context) -> Measured:
    def batches(count: int, **options: Any) -> list[dict[str, np.ndarray]]:
        with make_loader(corpus_of(context), **options) as loader:
            return list(itertools.islice(loader, count))

    expected = batches(8)
    resumed = batches(3, start=5 * BATCH_SIZE)
    halves = [batches(4, process_index=index, process_count=2) for index in range(2)]
    joined = [
        {name: np.concatenate([one[name], other[name]]) for name in one}
        for one, other in zip(*halves, strict=True)
    ]
    pairs = list(zip([*resumed, *joined], [*expected[5:], *expected[:4]], strict=True))
    different = [
        any(not np.array_equal(found[name], batch[name]) for name in batch)
        for found, batch in pairs
    ]
    return Measured(value=float(sum(different)), detail=f"{len(pairs)} batches compared")


def _measure_resume(context: Context) -> Measured:
    if _FIRST not in context.shared:
        raise Skipped("the first training did not end")
    middle, first = context.updates // 2, _checkpoint_dir(context, _FIRST)
    resumed = _checkpoint_dir(context, _RESUMED)
    run_on_process_0(lambda: _copy_folder(first / str(middle), resumed / str(middle)))
    losses = _train(context, _RESUMED)
    if min(losses) != middle + 1:
        raise UserError(f"the run resumed at update {min(losses)}; expected {middle + 1}")
    expected, found = (
        paths.flatten(step_folder.restore_params(folder, context.updates)[0])
        for folder in (first, resumed)
    )
    different = [path for path in expected if found[path].tobytes() != expected[path].tobytes()]
    different += [f"loss {step}" for step in losses if losses[step] != context.shared[_FIRST][step]]
    return Measured(
        value=float(len(different)),
        detail=f"{len(expected)} arrays and {len(losses)} losses compared"
        + (f"; {different[0]} differs" if different else ""),
    )


def remove_checkpoints(context: Context) -> None:
    """Removes the checkpoints that an earlier call left in a folder of all processes."""
    for name in (_FIRST, _RESUMED) if context.checkpoint_dir is not None else ():
        folder = _checkpoint_dir(context, name)
        run_on_process_0(functools.partial(folder.rmtree, missing_ok=True))


def _copy_folder(source: epath.Path, target: epath.Path) -> None:
    """Copies a folder, which may be in a bucket, with all files."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir():
            _copy_folder(path, target / path.name)
        else:
            (target / path.name).write_bytes(path.read_bytes())


def _measure_damage(context: Context) -> Measured:
    """Flips a byte in each file of a copy in turn; the checksums must find each."""
    if _FIRST not in context.shared:
        raise Skipped("the first training did not end")
    source = _checkpoint_dir(context, _FIRST) / str(context.updates)
    step_folder.verify_step(source)
    if context.target.processes > 1:
        raise Skipped("the files of the checkpoint are valid; bytes are flipped on one host only")
    copy = step_folder.absolute_path(context.folder / "damaged" / source.name)
    _copy_folder(source, copy)
    files = [
        path
        for item in (step_folder.PARAMS, step_folder.TRAINING)
        for path in sorted((Path(copy) / item).rglob("*"))
        if path.is_file() and path.stat().st_size
    ]
    missed: list[str] = []
    for path in files:
        content = path.read_bytes()
        index = len(content) // 2
        path.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        try:
            step_folder.verify_step(copy)
            missed.append(path.name)
        except UserError:
            pass
        path.write_bytes(content)
    return Measured(
        value=float(len(missed)),
        detail=f"{len(files)} files" + (f"; not found in {missed[0]}" if missed else ""),
    )
