"""Compares train steps on sharded meshes with the same steps on one device, and orders of rows.

A machine with one device runs the comparison in another process with simulated CPU devices:

    python -m bert_jax.apps.verify.sharded_steps CORPUS
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.apps.verify.checks import Check, Context, Measured, Target
from bert_jax.apps.verify.training import corpus_of, make_loader, training_experiment
from bert_jax.config.train import MeshConfig
from bert_jax.errors import UserError
from bert_jax.io.parent_process import environment_of_child
from bert_jax.parallel import sharding
from bert_jax.parallel.processes import LOCAL_DEVICES, config_from_environment, initialize
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.step import TrainSetup

_UPDATES, _SIMULATED_DEVICES = 3, 4
_TOLERANCE = {"cpu": 1e-4, "gpu": 1e-3, "tpu": 5e-3}
_CHILD_SECONDS = 600


def sharding_checks() -> list[Check]:
    """Returns the checks of the order of rows, and of all meshes."""
    return [
        Check(
            name="rows of a batch",
            describe=lambda target: (
                "rows of a global batch, in the order of the loaders; "
                f"processes: {target.processes}, devices: {target.devices}"
            ),
            unit="wrong rows",
            measure=_measure_rows,
        ),
        Check(
            name="sharded steps",
            describe=_describe,
            unit="relative difference",
            limit=lambda target: _TOLERANCE["cpu" if target.devices == 1 else target.platform],
            measure=_measure,
        ),
    ]


def _measure_rows(context: Context) -> Measured:
    mesh = sharding.make_mesh(MeshConfig())
    rows = np.arange(4 * context.target.devices, dtype=np.int32)
    own = np.split(rows, context.target.processes)[jax.process_index()]
    placed = sharding.put_batch({"rows": own}, sharding.batch_sharding(mesh))["rows"]
    read = jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))(placed)
    wrong = np.count_nonzero(np.asarray(jax.device_get(read)) != rows)
    return Measured(value=float(wrong), detail=f"{len(rows)} rows compared")


def meshes(devices: int, processes: int, *, simulated: bool) -> dict[str, MeshConfig]:
    """Returns the meshes to compare on the devices of all processes, by their description."""
    found = {f"data {devices}": MeshConfig(), f"fsdp {devices}": MeshConfig(data=1, fsdp=devices)}
    name, mesh = f"fsdp {devices // 2} x tensor 2", MeshConfig(data=1, fsdp=-1, tensor=2)
    if simulated:  # only one, because a CPU compiles slowly
        return {name: mesh}
    return found if devices // processes % 2 else {**found, name: mesh}


def _describe(target: Target) -> str:
    simulated = target.devices == 1
    devices = _SIMULATED_DEVICES if simulated else target.devices
    names = ", ".join(meshes(devices, target.processes, simulated=simulated))
    on = f"{names} simulated on the CPU" if simulated else names
    return f"losses and gradient norms of {_UPDATES} updates with dropout: {on}, against one device"


def largest_differences(corpus: Path, *, simulated: bool = False) -> dict[str, float]:
    """Returns the largest relative difference from one device by mesh, over all devices."""
    expected = _losses_and_norms(corpus, MeshConfig(), jax.local_devices()[:1])
    return {
        name: float(np.max(np.abs(_losses_and_norms(corpus, mesh, jax.devices()) / expected - 1)))
        for name, mesh in meshes(
            jax.device_count(), jax.process_count(), simulated=simulated
        ).items()
    }


def _losses_and_norms(corpus: Path, mesh_config: MeshConfig, devices: Sequence[Any]) -> np.ndarray:
    """Trains a few updates from random parameters; returns float64 [updates, 2]."""
    experiment = training_experiment(corpus, mesh=mesh_config)
    mesh = sharding.make_mesh(mesh_config, devices)
    batch_size = 2 * jax.device_count()
    phase = dataclasses.replace(experiment.train.phases[0], batch_size=batch_size)
    with jax.set_mesh(mesh):
        setup = TrainSetup.from_experiment(experiment, mesh)
        fields = setup.objective.batch_fields()
        step = setup.compile_step(phase, fields, [phase.sizes])
        state, rows = initialize_or_load(setup), []
        with make_loader(corpus, batch_size=batch_size) as loader:
            for batch in itertools.islice(loader, _UPDATES):
                # Every process holds the whole batch, for the mesh of its own device, too.
                placed = sharding.put_global_batch(
                    {name: batch[name] for name in fields}, sharding.batch_sharding(mesh)
                )
                state, metrics = step(state, placed)
                rows.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    return np.array(rows)


def _measure(context: Context) -> Measured:
    corpus = corpus_of(context)
    simulated = context.target.devices == 1
    differences = _run_simulated(corpus) if simulated else largest_differences(corpus)
    return Measured(
        value=max(differences.values()),
        detail=", ".join(f"{name}: {value:.1e}" for name, value in differences.items()),
        numbers=dict(differences),
    )


def _run_simulated(corpus: Path) -> dict[str, float]:
    """Runs the comparison in a child process, whose CPU is split into simulated devices."""
    environment = {
        **os.environ,
        **environment_of_child(),
        "JAX_PLATFORMS": "cpu",
        "BERT_JAX_COORDINATOR": "",
        LOCAL_DEVICES: str(_SIMULATED_DEVICES),
    }
    command = [sys.executable, "-m", "bert_jax.apps.verify.sharded_steps", str(corpus)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the process with simulated devices failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the largest differences as JSON."""
    initialize(config_from_environment())
    print(json.dumps(largest_differences(Path(sys.argv[1]), simulated=True)))


if __name__ == "__main__":
    main()
