"""Builds the trainer's commands on this host and sets up its working directory.

Pod mode starts one process for all chips of the host, shards mode one process per chip.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from tpu import bucket_layout, protocol
from tpu.protocol import JobSpec
from tpu.worker import storage
from tpu.worker.host_context import CODE_ROOT, HostContext
from tpu.worker.subprocesses import TrainerCommand

DATA_FOLDER, BUNDLE_LINK, CONFIGS_LINK, RUN_FOLDER = "data", "bundle", "configs", "run"


def set_up_workdir(context: HostContext, job_spec: JobSpec) -> None:
    """Sets up the working directory: links to the code, and up-to-date copies of the data.

    Raises:
      StorageError: data cannot be copied.
    """
    context.workdir.mkdir(parents=True, exist_ok=True)
    _link(context.workdir / BUNDLE_LINK, CODE_ROOT)
    _link(context.workdir / CONFIGS_LINK, CODE_ROOT / CONFIGS_LINK)
    (context.workdir / DATA_FOLDER).mkdir(exist_ok=True)
    for name, url in job_spec.data.items():
        # The hash is needed because two runs may use the same name for different folders.
        local_copy = (
            context.root / "data" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
        )
        storage.rsync(url, local_copy, required=True)
        _link(context.workdir / DATA_FOLDER / name, local_copy)


def resolve_arguments(job_spec: JobSpec) -> list[str]:
    """Returns the job's arguments with @data/NAME and @code as paths in the working directory."""
    with_data_paths = (
        bucket_layout.DATA_REFERENCE_PATTERN.sub(rf"{DATA_FOLDER}/\1", argument)
        for argument in job_spec.arguments
    )
    return [argument.replace("@code", BUNDLE_LINK) for argument in with_data_paths]


def pod_command(
    host_number: int, job_spec: JobSpec, python: Path, mount: Path | None
) -> TrainerCommand:
    """Returns the trainer's command on this host, as one process of jax.distributed.

    Args:
      mount: folder below which buckets are mounted; None: the trainer reads and writes gs:// URLs.
    """
    folder = bucket_layout.RunFolder(job_spec.run_url).checkpoints
    if mount is not None:
        folder = str(mount / folder.removeprefix("gs://"))
    path_flags = ("--run", RUN_FOLDER, "--checkpoints", folder)
    return TrainerCommand(
        name="",
        argv=(str(python), "-m", "bert_jax", *resolve_arguments(job_spec), *path_flags),
        environment={
            **_common_environment(),
            "BERT_JAX_COORDINATOR": f"{job_spec.host_addresses[0]}:{job_spec.coordinator_port}",
            "BERT_JAX_NUM_PROCESSES": str(job_spec.slice.hosts),
            "BERT_JAX_PROCESS_ID": str(host_number),
        },
    )


def shard_commands(
    context: HostContext, host_number: int, job_spec: JobSpec, python: Path
) -> list[TrainerCommand]:
    """Returns one command per chip of this host; each process sees only its own chip."""
    chips_per_host = job_spec.slice.chips_per_host
    num_shards = job_spec.slice.hosts * chips_per_host
    return [
        TrainerCommand(
            name=f"shard {shard}",
            argv=(
                *_glue_argv(job_spec, python),
                "--num-shards",
                str(num_shards),
                "--shard",
                str(shard),
            ),
            environment={
                **_common_environment(),
                **single_chip_environment(chip),
                "BERT_JAX_COMPILATION_CACHE": str(context.compilation_cache / str(shard)),
            },
        )
        for chip in range(chips_per_host)
        for shard in [host_number * chips_per_host + chip]
    ]


def results_table_command(job_spec: JobSpec, python: Path) -> TrainerCommand:
    """Returns the command that writes the table: without a shard, it only collects the results."""
    environment = {**_common_environment(), **single_chip_environment(0)}
    return TrainerCommand(name="table", argv=_glue_argv(job_spec, python), environment=environment)


def single_chip_environment(chip: int) -> dict[str, str]:
    """Returns the environment with which libtpu shows a process only one chip of its host.

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


def _glue_argv(job_spec: JobSpec, python: Path) -> tuple[str, ...]:
    return (str(python), "-m", "bert_jax", *resolve_arguments(job_spec), "--output", RUN_FOLDER)


def _common_environment() -> Mapping[str, str]:
    return {
        "PYTHONPATH": str(CODE_ROOT),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "EPATH_USE_TF": "0",  # gs:// without TensorFlow
        # Or gcsfs asks another API for the kind of bucket, and waits a minute where it may not.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def _link(link: Path, target: Path) -> None:
    temporary = link.with_name(f"{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)
