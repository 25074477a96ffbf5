"""The words of an order as commands on this host: one process on all chips, or one on each chip."""

from collections.abc import Mapping
from pathlib import Path

from tpu import names, protocol
from tpu.protocol import Order
from tpu.worker.children import Command
from tpu.worker.host import CODE, Host

DATA, BUNDLE, CONFIGS, RUN = "data", "bundle", "configs", "run"


def arguments(order: Order) -> list[str]:
    """Those of the order, with @data/NAME and @code as paths from the working folder on."""
    plain = (names.DATA_TOKEN.sub(rf"{DATA}/\1", word) for word in order.arguments)
    return [word.replace("@code", BUNDLE) for word in plain]


def pod(number: int, order: Order, python: Path, mount: Path | None) -> Command:
    """The trainer as one process of as many as there are hosts.
    Args:
      mount: below which buckets are mounted; None: the trainer speaks to gs:// itself.
    """
    folder = names.RunFolder(order.run_url).checkpoints
    if mount is not None:
        folder = str(mount / folder.removeprefix("gs://"))
    where = ("--run", RUN, "--checkpoints", folder)
    return Command(
        name="",
        words=(str(python), "-m", "bert_jax", *arguments(order), *where),
        environment={
            **_everywhere(),
            "BERT_JAX_COORDINATOR": f"{order.hosts[0]}:{order.coordinator_port}",
            "BERT_JAX_NUM_PROCESSES": str(order.slice.hosts),
            "BERT_JAX_PROCESS_ID": str(number),
        },
    )


def lanes(this: Host, number: int, order: Order, python: Path) -> list[Command]:
    """A process on each chip of this host, which knows nothing of the other chips."""
    each = order.slice.chips_per_host
    count = order.slice.hosts * each
    return [
        Command(
            name=f"lane {lane}",
            words=(*_glue(order, python), "--lanes", str(count), "--lane", str(lane)),
            environment={
                **_everywhere(),
                **one_chip(chip),
                "BERT_JAX_COMPILATION_CACHE": str(this.cache / str(lane)),
            },
        )
        for chip in range(each)
        for lane in [number * each + chip]
    ]


def collect(order: Order, python: Path) -> Command:
    """All cells are finished: the same command without lanes writes the table."""
    environment = {**_everywhere(), **one_chip(0)}
    return Command(name="table", words=_glue(order, python), environment=environment)


def one_chip(chip: int) -> dict[str, str]:
    """What libtpu has to be told so that a process sees one chip of its host as all there is.

    From a gist of JAX's makers (skye/f82ba45d2445bb19d53545538754f9a3) and jax/_src/
    test_multiprocess.py; not run on hardware by us.
    """
    port = protocol.COORDINATOR_PORT + chip
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": str(port),
        "CLOUD_TPU_TASK_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def _glue(order: Order, python: Path) -> tuple[str, ...]:
    return (str(python), "-m", "bert_jax", *arguments(order), "--output", RUN)


def _everywhere() -> Mapping[str, str]:
    return {
        "PYTHONPATH": str(CODE),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "EPATH_USE_TF": "0",  # gs:// without TensorFlow
        # Or gcsfs asks another API for the kind of bucket, and waits a minute where it may not.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
