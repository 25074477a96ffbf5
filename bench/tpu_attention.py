"""Compares ways to compute attention on TPUs by the TPU compiler's schedules; needs no TPU.

    python -m bench.tpu_attention                              # all, half an hour or more
    python -m bench.tpu_attention --slices v5e-16 --lengths 512 --ways ours splash

A row is one layer's attention of BERT-base without its projections, for 8,192 tokens on one device:
12 heads of 64 in bfloat16, with segment ids as for padded or packed sequences. Arrays start and end
as the projections compute them, [B, L, D], so a kernel that needs another layout pays for it.

    ours      the kernel of `models/layers/pallas_attention.py`
    splash    jax's splash attention, with the block sizes and layouts that are fastest here
    jax.nn    jax.nn.dot_product_attention, which has no TPU kernel of its own
    xla       scores, softmax and context as separate operations (compute.attention "xla")

The time is the compiler's estimated cycles of the operations outside kernels, and for each kernel
the larger of its scheduled bundles times its grid programs, and its bytes over the memory's
bandwidth. A branch of a kernel counts as if every program ran it; splash attention has small ones
for the first and last block of keys. Waiting for memory is not included.
"""

import argparse
import functools
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bench.tpu_hlo import PALLAS_KERNEL_TARGET, operations, read_costs
from bert_jax.apps.plan.compile import compiler_versions, run_worker, topology
from bert_jax.errors import UserError
from bert_jax.models.layers.fused_attention import (
    AttentionParams,
    fused_attention,
    reference_attention,
)
from bert_jax.models.layers.pallas_attention import is_supported
from bert_jax.parallel.tpu_slices import Generation, find_slice

TOKENS, NUM_HEADS, HEAD_WIDTH = 8192, 12, 64
WIDTH = NUM_HEADS * HEAD_WIDTH
DROPOUT_RATE = 0.1
WAYS = ("ours", "ours, dropout", "splash", "jax.nn", "xla", "xla, dropout")
DUMP_FLAGS = (  # without the regex, all passes are dumped, which takes longer than to compile
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)

Attention = Callable[..., jax.Array]


def main() -> int:
    """Prints a row of a Markdown table for each slice, length and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", nargs="+", default=["v4-32", "v5e-16", "v6e-16"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512, 2048])
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work()
    print(f"{compiler_versions()}, {time.strftime('%Y-%m-%d')}\n")
    print("| slice | length | attention | forward, ms | MiB | forward and backward, ms | MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in args.slices:
        for length in args.lengths:
            for way in args.ways:
                cells = row(name, length, way)
                print(f"| {name} | {length} | {way} | {' | '.join(cells)} |", flush=True)
    return 0


def row(name: str, length: int, way: str) -> list[str]:
    """Returns the cells of a way to compute attention: time and memory, twice."""
    if way.startswith("ours") and not is_supported(length, WIDTH, NUM_HEADS):
        return ["not supported", "-"] * 2
    command = [sys.executable, "-m", "bench.tpu_attention", "--worker"]
    cells = []
    for backward in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            request = {"slice": name, "length": length, "way": way, "backward": backward}
            # libtpu reads its flags once per process.
            has_kernel = way.startswith(("ours", "splash"))
            flags = {"LIBTPU_INIT_ARGS": DUMP_FLAGS.format(folder=folder) if has_kernel else ""}
            try:
                cells += json.loads(run_worker(command, {**request, "dump": folder}, flags))
            except UserError as error:
                print(error, file=sys.stderr)
                cells += ["the compiler fails", "-"]
    return cells


def attention_of(way: str, length: int) -> Attention:
    """Returns context(q, k, v, segment ids of queries, of keys, seed), with arrays [B, L, D]."""
    kind, *options = way.split(", ")
    params = AttentionParams(NUM_HEADS, DROPOUT_RATE if options else 0.0)
    if kind == "ours":
        return functools.partial(fused_attention, params)
    if kind == "xla":
        return functools.partial(xla_attention, params)
    return splash_attention(length) if kind == "splash" else library_attention


def xla_attention(params: AttentionParams, *arrays: jax.Array) -> jax.Array:
    """Computes attention without a kernel."""
    q, k, v, q_ids, kv_ids, seed = arrays
    indices = jnp.arange(q.shape[0])
    return reference_attention(params, q, k, v, q_ids, kv_ids, indices, seed)


def splash_attention(length: int) -> Attention:
    """Returns splash attention without a mask, except for segment ids."""
    block_q, block_kv, layout = min(length, 512), min(length, 2048), splash.QKVLayout.SEQ_MINOR
    kernel = splash.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask(
            [splash_attention_mask.FullMask((length, length))] * NUM_HEADS
        ),
        block_sizes=splash.BlockSizes(
            block_q=block_q,
            block_kv=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            use_fused_bwd_kernel=True,
            q_layout=layout,
            k_layout=layout,
            v_layout=layout,
        ),
    )

    def attend(
        q: jax.Array, k: jax.Array, v: jax.Array, q_ids: jax.Array, kv_ids: jax.Array, _: jax.Array
    ) -> jax.Array:
        q = q * jnp.asarray(HEAD_WIDTH**-0.5, q.dtype)
        heads = [_split_heads(x).transpose(0, 2, 1, 3) for x in (q, k, v)]
        context: Any = jax.vmap(kernel)(*heads, splash.SegmentIds(q_ids, kv_ids))
        return context.transpose(0, 2, 1, 3).reshape(q.shape)

    return attend


def library_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, q_ids: jax.Array, kv_ids: jax.Array, _: jax.Array
) -> jax.Array:
    """Computes attention with jax.nn; it takes no dropout rate."""
    mask = q_ids[:, None, :, None] == kv_ids[:, None, None, :]
    context = jax.nn.dot_product_attention(*(_split_heads(x) for x in (q, k, v)), mask=mask)
    return context.reshape(q.shape)


def _split_heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:2], NUM_HEADS, HEAD_WIDTH)


def with_backward(attend: Attention) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns a function of the same arguments and the context's gradient.

    It computes the context and the gradients of q, k and v.
    """

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        q, k, v, *rest, grad = arrays
        context, pull_back = jax.vjp(lambda q, k, v: attend(q, k, v, *rest), q, k, v)
        return context, *pull_back(grad)

    return run


def estimate(
    function: Callable[..., Any], arrays: list[Any], generation: Generation, dump: Path
) -> list[str]:
    """Compiles a function and returns two cells: milliseconds, and MiB of temporary memory."""
    try:
        compiled = jax.jit(function).lower(*arrays).compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"(?i)memory space (vmem|hbm)|(vmem|hbm)", str(error))
        if not found or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return [f"does not fit into {(found[1] or found[2]).upper()}", "-"]
    text = compiled.as_text() or ""
    costs = read_costs(text)
    uncosted_bytes = costs.random_bytes + sum(size for _, size in costs.unknown.values())
    seconds = costs.cycles / generation.clock_hz + uncosted_bytes / generation.device_bandwidth
    kernels = dict(_kernels(jax.make_jaxpr(function)(*arrays).jaxpr))
    for op, _, times in operations(text):
        if op.custom_call_target == PALLAS_KERNEL_TARGET:
            programs, size = kernels[op.name.rsplit(".", 1)[0]]
            cycles = programs * _bundles(dump, op.name) / generation.cores_per_device
            seconds += times * max(cycles / generation.clock_hz, size / generation.device_bandwidth)
    memory: Any = compiled.memory_analysis()
    return [f"{seconds * 1e3:.2f}", f"{memory.temp_size_in_bytes / 2**20:.0f}"]


def _kernels(jaxpr: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields (name, (grid programs, bytes of operands and results)) of each Pallas kernel."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            size = sum(
                x.aval.size * x.aval.dtype.itemsize for x in (*equation.invars, *equation.outvars)
            )
            programs = math.prod(equation.params["grid_mapping"].grid)
            yield equation.params["name"], (programs, size)
        else:
            for inner in core.jaxprs_in_params(equation.params):
                yield from _kernels(inner)


def _bundles(dump: Path, name: str) -> int:
    """Returns the bundles that the compiler scheduled for one program of a kernel."""
    (file,) = dump.glob(f"*-{name}-*-schedule-analysis_final_bundles.txt")
    found = re.search(r"non empty scheduled bundles:\s+(\d+)", file.read_text(encoding="utf-8"))
    assert found is not None, f"{file} has no number of bundles"
    return int(found[1])


def work() -> int:
    """Reads a request from standard input and writes two cells of its row."""
    request = json.load(sys.stdin)
    tpu_slice, length = find_slice(request["slice"]), request["length"]
    device = np.asarray(topology(tpu_slice).devices).reshape(-1)[:1]
    sharding = NamedSharding(Mesh(device, ("one",)), PartitionSpec())

    def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    hidden = array(jnp.bfloat16, TOKENS // length, length, WIDTH)
    ids = array(jnp.int32, TOKENS // length, length)
    arrays = [hidden] * 3 + [ids] * 2 + [array(jnp.uint32, 2)]
    attend = attention_of(request["way"], length)
    if request["backward"]:
        attend, arrays = with_backward(attend), [*arrays, hidden]
    cells = estimate(attend, arrays, tpu_slice.generation, Path(request["dump"]))
    Path(request["output"]).write_text(json.dumps(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
