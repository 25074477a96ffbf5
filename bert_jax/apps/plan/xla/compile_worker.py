"""Compiles a train step for a TPU slice without a TPU; the subprocess of `compile_phase.py`.

libtpu contains XLA's compiler for every TPU generation. It reads environment variables before JAX
starts, so it needs a process of its own: the request comes as JSON on standard input, and the
result goes to a file.
"""

import gzip
import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.config_lib import from_json
from bert_jax.config.experiment import Experiment
from bert_jax.io.atomic_io import atomic_write
from bert_jax.parallel import sharding
from bert_jax.parallel.tpu_slices import Slice, find_slice
from bert_jax.train.step import TrainSetup

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


def topology(tpu_slice: Slice) -> Any:
    """Returns libtpu's description of the devices of a slice."""
    from jax.experimental import topologies

    config = tpu_slice.generation.chip_config
    options = {"chip_config_name": config} if config else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=tpu_slice.libtpu_topology, **options
    )


def lower(experiment: Experiment, request: dict[str, Any], devices: Any) -> Any:
    """Lowers the train step of one phase and batch shape for the given devices."""
    mesh = sharding.make_mesh(experiment.mesh, devices)
    phase = experiment.train.phases[request["phase"]]
    with jax.set_mesh(mesh):
        setup = TrainSetup.from_experiment(experiment, mesh)
        return setup.lower_step(phase, tuple(request["fields"]), request["sizes"])


def compile_report(lowered: Any) -> dict[str, Any]:
    """Compiles a lowered train step and reports its memory, cost, and scheduled program.

    Returns:
      {"out_of_memory": the compiler's message} if it does not fit, else {"out_of_memory": None,
      "peak_bytes": the peak memory of one device, "optimal_seconds": from XLA's cost analysis,
      "text": the scheduled program}.
    """
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return {"out_of_memory": _memory_line(str(error))}
    analysis, memory = compiled.cost_analysis(), compiled.memory_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    return {
        "out_of_memory": None,
        "peak_bytes": memory.peak_memory_in_bytes,
        "optimal_seconds": analysis.get("optimal_seconds", 0.0),
        "text": compiled.as_text(),
    }


def _memory_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if "exceed" in line or "Ran out" in line]
    return lines[0] if lines else message.splitlines()[0]


def versions() -> dict[str, str]:
    """Returns the versions of the packages that determine the compiled program."""
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}


def main() -> int:
    """Reads the request, compiles or finds the cached report, and writes the report's path.

    The report holds the whole text of the program, so that a change in how the text is read does
    not require a new compilation.
    """
    request = json.load(sys.stdin)
    experiment = from_json(Experiment, request["experiment"], "the request")
    tpu_slice = find_slice(request["slice"])
    devices = topology(tpu_slice).devices
    if len(devices) != tpu_slice.devices:
        raise RuntimeError(f"libtpu has {len(devices)} devices for {tpu_slice.name}")
    lowered = lower(experiment, request, np.asarray(devices).reshape(-1).tolist())
    identity = json.dumps([lowered.as_text(), tpu_slice.name, versions()])
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    report_file = Path(request["cache"]) / f"{name}.json.gz"
    if not report_file.exists():
        content = {**compile_report(lowered), "slice": tpu_slice.name, "versions": versions()}
        atomic_write(report_file, gzip.compress(json.dumps(content).encode()))
    Path(request["output"]).write_text(json.dumps(str(report_file)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
