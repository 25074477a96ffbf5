"""Tests runs that are stopped, launched again with other settings, or interrupted.

Covers tpu/launcher/commands_launch.py, commands_inspect.py and runs/manifest.py.
"""

import json
import os
import subprocess

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, FakeCloud, tpuctl
from tpu.launcher.cloud.ssh_commands import agent_command

ONE = ("--bucket", "gs://bucket", "--run-id", "r1")
WEST, EAST = "us-central1-b", "us-east1-d"


def launch(verb: str, *more: str) -> int:
    return tpuctl(verb, *LAUNCH, *DATA, *more, *WORK)


def zones(cloud: FakeCloud) -> set[str]:
    """Returns the zones in which slices exist."""
    return {key.split("/")[0] for key in cloud.slices()}


def manifest(cloud: FakeCloud) -> dict:
    return json.loads(cloud.object("manifest.json").read_text())


def test_slices_in_zones_of_a_later_launch_are_deleted(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "US"})
    assert launch("up", "--zones", WEST) == 0 and tpuctl("stop", *ONE) == 0
    assert launch("up", "--zones", EAST) == 0 and zones(cloud) == {EAST}
    capsys.readouterr()
    assert tpuctl("status", *ONE) == 0
    assert f"slice of attempt 1 in {EAST}: ready" in capsys.readouterr().out
    assert tpuctl("down", *ONE) == 0 and not cloud.slices()


def test_slices_in_zones_of_an_earlier_launch_are_deleted(cloud, trainers):
    """Tests a run whose launcher has died."""
    cloud.script(buckets={"bucket": "US"})
    trainers.codes = {0: -1}
    assert launch("up", "--zones", WEST) == 0
    cloud.object("restart_loop.json").unlink()
    assert launch("up", "--zones", EAST) == 0 and zones(cloud) == {WEST}
    assert tpuctl("down", *ONE) == 0 and not cloud.slices()


def test_slices_are_created_only_in_zones_of_this_launch(cloud, trainers):
    cloud.script(buckets={"bucket": "US"})
    assert launch("up", "--zones", WEST) == 0 and tpuctl("down", *ONE) == 0
    cloud.script(buckets={"bucket": "US"}, fail=[{"match": f"create .*{EAST}", "text":
                 "There is no more capacity in the zone"}])  # fmt: skip
    assert launch("launch", "--zones", EAST, "--wait-hours", "1") == 75
    assert manifest(cloud)["zones"] == [EAST, WEST]
    assert len(cloud.commands("create", f"--zone={WEST}")) == 1


@pytest.mark.parametrize("change", [("--backend", "gce"), ("--project", "elsewhere")])
def test_other_backend_or_project_is_another_run(cloud, trainers, capsys, change):
    assert launch("up") == 0
    before = cloud.slices()
    assert launch("up", *change) == 1
    output = capsys.readouterr().err
    assert (
        "run id 'r1' already belongs to a different run" in output
        and f"requested '{change[1]}'" in output
    )
    assert cloud.slices() == before and tpuctl("down", *ONE) == 0 and not cloud.slices()


def test_babysit_uses_the_settings_of_the_latest_launch(cloud, trainers):
    assert launch("up") == 0 and tpuctl("down", *ONE) == 0
    assert launch("up", "--capacity", "on-demand", "--max-hours", "20") == 0
    assert tpuctl("down", *ONE) == 0
    assert tpuctl("babysit", *ONE) == 0
    assert "--spot" not in cloud.commands("create", f"{SLICE}-2")[0]
    assert manifest(cloud)["max_hours"] == 20
    trainers.codes = {}
    assert tpuctl("babysit", *ONE, "--max-hours", "30") == 0 and manifest(cloud)["max_hours"] == 30


def test_rejected_launch_changes_nothing(cloud, trainers, capsys):
    assert launch("up") == 0
    cloud.object("LEASE").write_text(json.dumps({"holder": "a laptop", "time": 1e9}))
    assert launch("up", "--max-hours", "99") == 1
    assert "another launcher manages this run: a laptop" in capsys.readouterr().err
    assert manifest(cloud)["max_hours"] == 12


def test_interrupted_upload_leaves_no_run(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "storage cp .*bundles/", "text": "Connection reset"}])
    assert launch("launch") == 1 and not cloud.object("manifest.json").exists()


def test_babysit_needs_the_uploaded_bundle(cloud, trainers, capsys):
    assert launch("up") == 0 and tpuctl("down", *ONE) == 0
    (bundle,) = (cloud.folder / "gcs/bucket/bundles").iterdir()
    bundle.unlink()
    made = len(cloud.commands("create"))
    assert tpuctl("babysit", *ONE) == 1 and len(cloud.commands("create")) == made
    output = capsys.readouterr().err
    assert f"gs://bucket/bundles/{bundle.name} does not exist" in output
    assert "tpu/tpuctl sync --bucket gs://bucket --run-id r1" in output
    assert tpuctl("sync", *ONE) == 0 and tpuctl("babysit", *ONE) == 0


def test_stop_keeps_a_slice_with_unreachable_hosts(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and tpuctl("run", *ONE) == 0
    cloud.script(ssh_drop=[{"match": "agent.py stop", "host": 2}])
    before = cloud.slices()
    assert tpuctl("stop", *ONE) == 1 and cloud.slices() == before
    output = capsys.readouterr().err
    assert "return code [255]" in output and "the slice is kept at $21.60 an hour" in output
    assert "tpu/tpuctl down --bucket gs://bucket --run-id r1` deletes it" in output
    cloud.script()
    assert tpuctl("stop", *ONE) == 0 and not cloud.slices()


def test_stop_saves_on_a_degraded_slice(cloud, trainers):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and tpuctl("run", *ONE) == 0
    cloud.script(slices={"*": {"health": "UNHEALTHY_TENSORFLOW"}})
    assert tpuctl("stop", *ONE) == 0 and not cloud.slices()
    for host in range(4):
        exit_ = json.loads(cloud.object(f"attempts/0/host-{host}.exit.json").read_text())
        assert exit_["code"] == 75


def test_stop_succeeds_on_hosts_without_code(tmp_path):
    """Tests hosts after `up`, which installs no code."""
    line = agent_command("stop", "0" * 64, "gs://bucket/runs/r1", 0)("auto")
    done = subprocess.run(["sh", "-c", line], env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 0
    script = tmp_path / "bert_jax" / ("0" * 64) / "tpu/worker/agent.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit(76)")
    done = subprocess.run(["sh", "-c", line], env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 76


def test_status_counts_hours_of_an_unmanaged_run(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and tpuctl("run", *ONE) == 0
    Clock.now += 10 * 3600
    capsys.readouterr()
    assert tpuctl("status", *ONE) == 0
    assert "10.0 slice hours ($21" in capsys.readouterr().out
    assert tpuctl("down", *ONE) == 0
    Clock.now += 5 * 3600  # which costs nothing
    assert tpuctl("status", *ONE) == 0
    out = capsys.readouterr().out
    assert "  no slice, 10.0 slice hours ($21" in out and "training in" not in out
