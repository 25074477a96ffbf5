"""Counts the cycles of attention kernels from their schedule; a subprocess of `tpu_estimate.py`.

XLA has no cost estimate for kernels, but libtpu can dump the instructions that it scheduled for
one. Each cycle issues one bundle of instructions. The kernels of this project are one loop over
their grid with a straight-line body, so their cycles are the bundles of the body times the grid
programs, as long as the data arrive in time. Waiting for memory is not included.
"""

import functools
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMP_FLAGS = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"


def attention_bundles(request: dict[str, Any]) -> dict[str, int]:
    """Returns {"forward", "backward"}: the bundles of one grid program of each kernel.

    Args:
      request: {"slice", "seq_length", "hidden_size", "num_heads", "dropout_rate",
        "dtype"}.
    """
    bundles = {}
    for direction in ("forward", "backward"):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBTPU_INIT_ARGS"] = DUMP_FLAGS.format(folder=folder)
            child_pid = os.fork()  # libtpu reads its flags only once per process
            if not child_pid:
                os._exit(_compile(direction, request))
            _, status = os.waitpid(child_pid, 0)
            if status:
                raise RuntimeError(f"the {direction} kernel did not compile for {request['slice']}")
            bundles[direction] = max(_bundle_counts(Path(folder)))
    return bundles


def _bundle_counts(folder: Path) -> list[int]:
    counts = []
    for file in folder.glob("*schedule-analysis_final_bundles.txt"):
        match = re.search(r"non empty scheduled bundles:\s+(\d+)", file.read_text())
        counts += [int(match[1])] if match else []
    return counts


def _compile(direction: str, request: dict[str, Any]) -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from bert_jax.apps.plan.compile import topology
    from bert_jax.models.layers import pallas_attention
    from bert_jax.parallel.tpu_slices import find_slice

    device = np.asarray(topology(find_slice(request["slice"])).devices).reshape(-1)[:1]
    replicated_sharding = NamedSharding(Mesh(device, ("one",)), PartitionSpec())

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated_sharding)

    batch_size, seq_length, hidden_size = 2, request["seq_length"], request["hidden_size"]
    hidden_states = array((batch_size, seq_length, hidden_size), jnp.dtype(request["dtype"]))
    ids = array((batch_size, seq_length), jnp.int32)
    arguments = [
        hidden_states,
        hidden_states,
        hidden_states,
        ids,
        ids,
        array((batch_size,), jnp.int32),
        array((2,), jnp.uint32),
    ]
    if direction == "backward":
        heads_per_block = request["num_heads"] * pallas_attention.LANES // hidden_size
        stats = array(
            (batch_size, request["num_heads"] // heads_per_block, heads_per_block, seq_length),
            jnp.float32,
        )
        arguments += [hidden_states, stats, hidden_states]
    kernel = functools.partial(
        getattr(pallas_attention, direction),
        num_heads=request["num_heads"],
        dropout_rate=request["dropout_rate"],
    )
    jax.jit(kernel).lower(*arguments).compile()
    return 0


def main() -> int:
    """Reads the request from standard input and writes the counts to its `output` file."""
    request = json.load(sys.stdin)
    Path(request["output"]).write_text(json.dumps(attention_bundles(request)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
