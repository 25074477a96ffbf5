"""How many cycles a kernel takes: its schedule, counted. A process of its own, run by `compile.py`.

XLA estimates nothing for kernels, but libtpu can write down the instructions that it has scheduled
for one, bundle by bundle: a bundle is issued each cycle. A kernel of this project is one loop over
its grid with a straight body, so bundles of the body times programs of the grid are its cycles, as
long as its data arrive in time. Waiting for memory is not in them.
"""

import functools
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMP = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"


def attention_bundles(request: dict[str, Any]) -> dict[str, int]:
    """{"forward", "backward"}: bundles of one program of each attention kernel.

    Args:
      request: {"slice", "length", "width", "heads", "rate", "dtype"}.
    """
    found = {}
    for direction in ("forward", "backward"):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBTPU_INIT_ARGS"] = DUMP.format(folder=folder)
            child = os.fork()  # libtpu reads its flags once in a process
            if not child:
                os._exit(_compile(direction, request))
            _, status = os.waitpid(child, 0)
            if status:
                raise RuntimeError(f"the {direction} kernel did not compile for {request['slice']}")
            found[direction] = max(_bundles(Path(folder)))
    return found


def _bundles(folder: Path) -> list[int]:
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

    from bert_jax.models import attention_kernel
    from bert_jax.plan.aot import topology
    from bert_jax.plan.slices import find_slice

    device = np.asarray(topology(find_slice(request["slice"])).devices).reshape(-1)[:1]
    where = NamedSharding(Mesh(device, ("one",)), PartitionSpec())

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    rows, length, width = 2, request["length"], request["width"]
    wide = array((rows, length, width), jnp.dtype(request["dtype"]))
    ids = array((rows, length), jnp.int32)
    arguments = [wide, wide, wide, ids, ids, array((rows,), jnp.int32), array((2,), jnp.uint32)]
    if direction == "backward":
        each = request["heads"] * attention_kernel.LANES // width
        stats = array((rows, request["heads"] // each, each, length), jnp.float32)
        arguments += [wide, stats, wide]
    kernel = functools.partial(
        getattr(attention_kernel, direction), heads=request["heads"], rate=request["rate"]
    )
    jax.jit(kernel).lower(*arguments).compile()
    return 0


def main() -> int:
    """Reads the request from standard input, writes the counts to its `answer` file."""
    request = json.load(sys.stdin)
    Path(request["answer"]).write_text(json.dumps(attention_bundles(request)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
