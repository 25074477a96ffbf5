"""Tests saving, verifying and restoring checkpoints, with arrays sharded over 8 fake devices."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.apps.simulate.attempt import free_port
from bert_jax.errors import UserError
from bert_jax.runs.checkpoints import checkpointer, checksums
from bert_jax.runs.checkpoints.checkpointer import Checkpointer
from bert_jax.runs.checkpoints.step_folder import restore_params

ROOT = Path(__file__).parents[3]


def sharding(*spec, shape=(8,), axes=("data",)):
    mesh = jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))
    return NamedSharding(mesh, PartitionSpec(*spec))


def make_state(seed=0, width=4, tx=None, kernel=None):
    """Returns a state with a sharded kernel, a bfloat16 bias and Adam's moments."""
    tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    everywhere, split = sharding(), kernel or sharding("data")
    params = {
        "layers": {"0": {"kernel": jax.random.normal(jax.random.key(seed), (16, width))}},
        "bias": jnp.full(3, seed, jnp.bfloat16),
    }
    state = {"step": jnp.int32(seed), "params": params, "opt_state": tx.init(params)}
    return jax.tree.map(
        lambda x: jax.device_put(x, split if x.shape == (16, width) else everywhere), state
    )


def abstract(state, kernel=None):
    def describe(x):
        array_sharding = kernel if kernel is not None and x.shape == (16, 4) else x.sharding
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=array_sharding)

    return jax.tree.map(describe, state)


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def save_steps(folder, steps, **options):
    with Checkpointer(folder, **options) as checkpointer:
        for step in steps:
            checkpointer.save(step, make_state(step), {"position": 32 * step})


def step_folders(folder):
    return sorted(path.name for path in folder.iterdir())


def largest_file(folder):
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_round_trip_keeps_values_structure_info_and_shardings(tmp_path):
    state, info = make_state(3), {"position": 96, "config": {"a": [1, None]}, "metrics": {}}
    with Checkpointer(tmp_path / "checkpoints") as checkpointer:
        assert checkpointer.latest_valid_step() is None
        assert checkpointer.save(3, state, info)
        assert not checkpointer.save(3, state, info)
        checkpointer.wait()
        assert checkpointer.latest_valid_step() == 3
        restored, found_info, step = checkpointer.restore(abstract(state))
    assert (step, found_info) == (3, info)
    assert_equal(restored, state)
    shardings = jax.tree.map(lambda x: x.sharding, (restored, state))
    assert jax.tree.all(jax.tree.map(lambda a, b: a == b, *shardings))


def test_numpy_numbers_are_saved(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(7, {"params": {"scale": np.float32(2.5)}, "step": np.int32(7)}, {})
    assert restore_params(tmp_path)[0] == {"scale": 2.5}


def test_restores_onto_another_mesh(tmp_path):
    state = make_state(1)
    save_steps(tmp_path, [1])
    other = sharding("tensor", "data", shape=(4, 2), axes=("tensor", "data"))
    with Checkpointer(tmp_path) as checkpointer:
        restored, _, _ = checkpointer.restore(abstract(state, kernel=other))
    assert restored["params"]["layers"]["0"]["kernel"].sharding == other
    assert_equal(restored, state)


def test_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    kernel = jnp.arange(1 << 20, dtype=jnp.float32)
    state = {"step": jnp.int32(1), "params": {"kernel": kernel}}
    expected = np.arange(1 << 20, dtype=np.float32)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, {})
        for _ in range(20):
            state = overwrite(state)
        checkpointer.wait()
    np.testing.assert_array_equal(restore_params(tmp_path)[0]["kernel"], expected)


def test_keeps_the_last_and_the_best(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: float("nan"), 6: None}
    with Checkpointer(tmp_path, keep_last=2, best_metric="loss") as checkpointer:
        for step, loss in losses.items():
            metrics = None if loss is None else {"loss": loss}
            checkpointer.save(step, make_state(step), {}, metrics=metrics)
    assert step_folders(tmp_path) == ["2", "5", "6"]
    with Checkpointer(tmp_path, keep_last=1, best_metric="loss") as checkpointer:
        checkpointer.save(7, make_state(7), {}, metrics={"loss": 0.5})
    assert step_folders(tmp_path) == ["7"]


def test_best_metric_may_be_the_largest(tmp_path):
    with Checkpointer(tmp_path, keep_last=1, best_metric="acc", best_mode="max") as checkpointer:
        for step, accuracy in enumerate([0.1, 0.9, 0.3, 0.2], 1):
            checkpointer.save(step, make_state(step), {}, metrics={"acc": accuracy})
    assert step_folders(tmp_path) == ["2", "4"]


def test_params_are_read_without_the_optimizer(tmp_path):
    save_steps(tmp_path, [4])
    shutil.rmtree(tmp_path / "4" / "training")
    before = step_folders(tmp_path)
    params, info, step = restore_params(tmp_path)
    assert (step, info) == (4, {"position": 128})
    assert_equal(params, jax.tree.map(np.asarray, make_state(4)["params"]))
    assert isinstance(params["bias"], np.ndarray)
    assert step_folders(tmp_path) == before


@pytest.mark.parametrize(
    "damage",
    [
        "flip",
        "delete",
        "no checksums",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("truncate", "bad checksums")),
    ],
)
def test_damaged_step_is_named_and_the_previous_one_is_used(tmp_path, caplog, damage):
    save_steps(tmp_path, [10, 20])
    file = largest_file(tmp_path / "20" / "params")
    if damage == "flip":
        flip_byte(file)
    elif damage == "truncate":
        os.truncate(file, file.stat().st_size - 7)
    elif damage == "delete":
        file.unlink()
    else:
        file = tmp_path / "20" / checksums.FILE
        file.unlink() if damage == "no checksums" else file.write_text("{")
    with caplog.at_level(logging.WARNING), Checkpointer(tmp_path) as checkpointer:
        state, info, step = checkpointer.restore(abstract(make_state()))
        assert str(file) in caplog.text and "step 10 instead" in caplog.text
        assert (step, info["position"]) == (10, 320)
        assert_equal(state, make_state(10))
        # The run reaches step 20 again: the damaged checkpoint was renamed, not deleted.
        assert checkpointer.save(20, make_state(20), {"position": 640})
        checkpointer.wait()
        assert checkpointer.latest_valid_step() == 20
    assert step_folders(tmp_path) == ["10", "20", "20.damaged"]


def test_step_in_the_folder_of_another_step_is_not_used(tmp_path, caplog):
    save_steps(tmp_path, [10, 20])
    (tmp_path / "20").rename(tmp_path / "30")
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(abstract(make_state()))[2] == 10
    assert "holds the checkpoint of step 20; using step 10 instead" in caplog.text
    (tmp_path / "30.damaged").rename(tmp_path / "30")
    file = tmp_path / "30" / checksums.FILE  # as an earlier version wrote it, without the step
    file.write_text(file.read_text().replace('"step": 20,', ""))
    with (
        Checkpointer(tmp_path) as checkpointer,
        pytest.raises(UserError, match="30 holds the checkpoint of step 20"),
    ):
        checkpointer.restore(abstract(make_state()))


def test_params_are_read_despite_damaged_optimizer_state(tmp_path):
    save_steps(tmp_path, [10, 20])
    flip_byte(largest_file(tmp_path / "20" / "training"))
    assert restore_params(tmp_path)[2] == 20


def test_error_without_a_valid_step_names_the_files(tmp_path):
    save_steps(tmp_path, [10, 20])
    files = [largest_file(tmp_path / str(step) / "params") for step in (10, 20)]
    for file in files:
        flip_byte(file)
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(UserError) as caught:
        checkpointer.latest_valid_step()
    assert all(str(file) in str(caught.value) for file in files)
    with pytest.raises(UserError, match="no valid checkpoint"):
        restore_params(tmp_path)
    with pytest.raises(UserError, match="is not valid"):
        restore_params(tmp_path, step=10)
    assert step_folders(tmp_path) == ["10", "20"]


def test_checkpoint_of_another_model_or_optimizer_is_rejected(tmp_path):
    save_steps(tmp_path, [1])
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(
            UserError, match=r"kernel: float32\[16, 4\] there, float32\[16, 5\] here"
        ):
            checkpointer.restore(abstract(make_state(width=5)))
        with pytest.raises(UserError, match=r"opt_state.*only in the checkpoint"):
            checkpointer.restore(abstract(make_state(tx=optax.sgd(0.1))))
        other = abstract(make_state())
        other["params"]["head"] = other["params"].pop("bias")
        with pytest.raises(UserError, match="params/head: not in the checkpoint"):
            checkpointer.restore(other)
        other = abstract(make_state())
        other["params"]["bias"] = other["params"]["bias"].update(dtype=jnp.float32)
        with pytest.raises(UserError, match=r"bias: bfloat16\[3\] there, float32\[3\] here"):
            checkpointer.restore(other)


def test_folders_without_checkpoints_are_rejected(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        restore_params(tmp_path / "absent")
    with pytest.raises(UserError, match=r"holds no checkpoint: .* start it again"):
        restore_params(tmp_path)
    (tmp_path / "5" / "default").mkdir(parents=True)
    with pytest.raises(UserError, match=r"checksums\.json is missing: not a bert_jax checkpoint"):
        restore_params(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        Checkpointer(tmp_path / "file")


def test_disk_full_while_saving_names_the_folder_and_keeps_the_last_good(tmp_path, monkeypatch):
    def full(folder, step):
        raise OSError(28, "No space left on device", str(folder))

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, make_state(1), {})
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(checksums, "write_checksums", full)
            checkpointer.save(2, make_state(2), {})
            with pytest.raises(UserError) as caught:
                checkpointer.wait()
        message = str(caught.value)
        assert "step 2" in message and "No space left" in message and str(tmp_path) in message
        assert "the last checkpoint is step 1" in message
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.restore(abstract(make_state()))[2] == 1
        checkpointer.save(2, make_state(2), {})
    assert restore_params(tmp_path)[2] == 2


def run_python(code, *arguments, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_failed_write_is_reported_in_one_message_without_traceback(tmp_path):
    code = """
        import resource, sys
        import jax.numpy as jnp, jax
        from bert_jax.errors import UserError
        from bert_jax.runs.checkpoints.checkpointer import Checkpointer

        kernels = jax.random.normal(jax.random.key(0), (30, 1 << 16))
        params = {str(number): kernel for number, kernel in enumerate(kernels)}
        state = {"step": jnp.int32(1), "params": params}
        checkpointer = Checkpointer(sys.argv[1])
        checkpointer.save(1, state, {})
        checkpointer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            checkpointer.save(2, state, {})
            checkpointer.close()
        except UserError as error:
            print(error)
        """
    process = run_python(code, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "step 2 could not be written" in out and "the last checkpoint is step 1" in out, (
        out + err
    )
    assert "Traceback" not in err and "Event loop" not in err
    assert restore_params(tmp_path)[2] == 1


def test_tracebacks_of_other_tasks_are_shown(tmp_path):
    code = """
        import asyncio, gc, sys
        import jax.numpy as jnp
        from bert_jax.runs.checkpoints.checkpointer import Checkpointer

        with Checkpointer(sys.argv[1]) as checkpointer:
            checkpointer.save(1, {"step": jnp.int32(1), "params": {"kernel": jnp.ones(3)}}, {})

        async def fail():
            raise ValueError("of the server")

        async def start():
            asyncio.create_task(fail())
            await asyncio.sleep(0.01)

        asyncio.run(start())
        gc.collect()
        """
    _, err = run_python(code, tmp_path).communicate(timeout=120)
    assert "never retrieved" in err and "ValueError: of the server" in err


def test_killed_while_saving_leaves_a_usable_step(tmp_path):
    code = """
        import sys
        import jax.numpy as jnp
        from bert_jax.runs.checkpoints.checkpointer import Checkpointer

        checkpointer = Checkpointer(sys.argv[1], keep_last=1)
        for step in range(1, 1000):
            kernel = jnp.full(1 << 20, step, jnp.float32)
            checkpointer.save(step, {"step": jnp.int32(step), "params": {"kernel": kernel}}, {})
            print(step, flush=True)
        """
    process = run_python(code, tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 4:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    params, _, step = restore_params(tmp_path)
    assert step >= 3
    np.testing.assert_array_equal(params["kernel"], np.full(1 << 20, step, np.float32))


TWO_PROCESSES = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from bert_jax.errors import UserError
    from bert_jax.runs.checkpoints.checkpointer import Checkpointer
    from bert_jax.parallel import processes

    processes.initialize(processes.config_from_environment())
    folder, action = sys.argv[1:]
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    split, everywhere = (NamedSharding(mesh, PartitionSpec(*s)) for s in (("data",), ()))
    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)

    def place(x, where):
        return jax.make_array_from_callback(x.shape, where, lambda index: x[index])

    state = {"step": place(np.int32(6), everywhere), "params": {"kernel": place(values, split)}}
    with Checkpointer(folder) as checkpointer:
        if action == "save":
            checkpointer.save(6, state, {"position": 12})
            print(json.dumps({"saved": 6}))
        else:
            describe = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            try:
                found, info, step = checkpointer.restore(jax.tree.map(describe, state))
            except UserError as error:
                print(json.dumps({"error": str(error)}))
                sys.exit(1)
            kernels = (tree["params"]["kernel"] for tree in (found, state))
            same = jax.jit(lambda x, y: (x == y).all())(*kernels)
            print(json.dumps({"same": bool(same), "step": step, "position": info["position"]}))
    """


def run_processes(folder, action, count, devices):
    port = free_port()
    common = {
        "BERT_JAX_COORDINATOR": f"localhost:{port}",
        "BERT_JAX_NUM_PROCESSES": str(count),
        "BERT_JAX_LOCAL_DEVICES": str(devices),
        "BERT_JAX_HEARTBEAT_SECONDS": "10",
    }
    processes = [
        run_python(TWO_PROCESSES, folder, action, **common, BERT_JAX_PROCESS_ID=str(index))
        for index in range(count)
    ]
    results = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert out, err
        results.append(
            (process.returncode, json.loads(out.splitlines()[-1]))
        )  # gloo prints lines too
    return results


@pytest.mark.slow
def test_restore_with_another_number_of_processes(tmp_path):
    assert run_processes(tmp_path, "save", 2, 2) == [(0, {"saved": 6})] * 2
    expected = (0, {"same": True, "step": 6, "position": 12})
    assert run_processes(tmp_path, "restore", 2, 1) == [expected] * 2
    assert run_processes(tmp_path, "restore", 1, 4) == [expected]
    np.testing.assert_array_equal(
        restore_params(tmp_path)[0]["kernel"], np.arange(32.0, dtype=np.float32).reshape(8, 4)
    )
    flip_byte(largest_file(tmp_path / "6" / "params"))
    results = run_processes(tmp_path, "restore", 2, 2)
    assert [code for code, _ in results] == [1, 1]
    assert all("is damaged" in result["error"] for _, result in results)


@pytest.mark.parametrize(("min_slice_bytes", "width"), [(1, 11), (1 << 20, 13)])
def test_only_large_arrays_are_saved_in_slices(
    tmp_path, monkeypatch, caplog, min_slice_bytes, width
):
    """All devices have a copy of the array. Each width compiles its own slices."""
    monkeypatch.setattr(checkpointer, "MIN_SLICE_BYTES", min_slice_bytes)
    values = np.arange(16 * width, dtype=np.float32).reshape(16, width)
    state = {"params": {"kernel": jax.device_put(values, sharding())}, "step": jnp.int32(1)}
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding()), state
    )
    with Checkpointer(tmp_path) as saving:
        with jax.log_compiles():
            saving.save(1, state, {})
            saving.wait()
        restored, _, _ = saving.restore(abstract)
    assert ("jit(slice)" in caplog.text) == (min_slice_bytes == 1)
    np.testing.assert_array_equal(restored["params"]["kernel"], values)
