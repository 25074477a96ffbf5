"""A run that is stopped, or taken up again in another way than it was begun, or begun half."""

import json
import os
import subprocess

import pytest

from tests.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, FakeCloud, pod
from tpu.launcher.remote import agent

ONE = ("--bucket", "gs://bucket", "--run-id", "r1")
WEST, EAST = "us-central1-b", "us-east1-d"


def launch(verb: str, *more: str) -> int:
    return pod(verb, *LAUNCH, *DATA, *more, *WORK)


def places(cloud: FakeCloud) -> set[str]:
    """Zones in which slices exist."""
    return {key.split("/")[0] for key in cloud.slices()}


def manifest(cloud: FakeCloud) -> dict:
    return json.loads(cloud.object("manifest.json").read_text())


def test_a_slice_in_a_zone_of_a_later_launch_is_found_and_deleted(cloud, trainers, capsys):
    cloud.script(buckets={"bucket": "US"})
    assert launch("up", "--zones", WEST) == 0 and pod("stop", *ONE) == 0
    assert launch("up", "--zones", EAST) == 0 and places(cloud) == {EAST}
    capsys.readouterr()
    assert pod("status", *ONE) == 0
    assert f"slice of life 1 in {EAST}: ready" in capsys.readouterr().out
    assert pod("down", *ONE) == 0 and not cloud.slices()


def test_a_slice_in_a_zone_of_an_earlier_launch_is_found_and_deleted(cloud, trainers):
    """As when the one that began it has died."""
    cloud.script(buckets={"bucket": "US"})
    trainers.codes = {0: -1}
    assert launch("up", "--zones", WEST) == 0
    cloud.object("babysit.json").unlink()
    assert launch("up", "--zones", EAST) == 0 and places(cloud) == {WEST}
    assert pod("down", *ONE) == 0 and not cloud.slices()


def test_slices_are_made_in_the_zones_of_this_launch_alone(cloud, trainers):
    cloud.script(buckets={"bucket": "US"})
    assert launch("up", "--zones", WEST) == 0 and pod("down", *ONE) == 0
    cloud.script(buckets={"bucket": "US"}, fail=[{"match": f"create .*{EAST}", "text":
                 "There is no more capacity in the zone"}])  # fmt: skip
    assert launch("launch", "--zones", EAST, "--wait-hours", "1") == 75
    assert manifest(cloud)["zones"] == [EAST, WEST]
    assert len(cloud.commands("create", f"--zone={WEST}")) == 1


@pytest.mark.parametrize("change", [("--backend", "gce"), ("--project", "elsewhere")])
def test_another_way_of_renting_is_another_run(cloud, trainers, capsys, change):
    assert launch("up") == 0
    before = cloud.slices()
    assert launch("up", *change) == 1
    said = capsys.readouterr().err
    assert "run id 'r1' is taken by another run" in said and f"'{change[1]}' now" in said
    assert cloud.slices() == before and pod("down", *ONE) == 0 and not cloud.slices()


def test_whoever_goes_on_goes_by_the_latest_launch(cloud, trainers):
    assert launch("up") == 0 and pod("down", *ONE) == 0
    assert launch("up", "--capacity", "on-demand", "--max-hours", "20") == 0
    assert pod("down", *ONE) == 0
    assert pod("babysit", *ONE) == 0
    assert "--spot" not in cloud.commands("create", f"{SLICE}-2")[0]
    assert manifest(cloud)["max_hours"] == 20
    trainers.codes = {}
    assert pod("babysit", *ONE, "--max-hours", "30") == 0 and manifest(cloud)["max_hours"] == 30


def test_a_launch_that_is_refused_changes_nothing(cloud, trainers, capsys):
    assert launch("up") == 0
    cloud.object("LEASE").write_text(json.dumps({"holder": "a laptop", "time": 1e9}))
    assert launch("up", "--max-hours", "99") == 1
    assert "a laptop looks after this run" in capsys.readouterr().err
    assert manifest(cloud)["max_hours"] == 12


def test_an_upload_that_is_cut_short_leaves_no_run(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "storage cp .*bundles/", "text": "Connection reset"}])
    assert launch("launch") == 1 and not cloud.object("manifest.json").exists()


def test_without_its_code_a_run_does_not_go_on(cloud, trainers, capsys):
    assert launch("up") == 0 and pod("down", *ONE) == 0
    (bundle,) = (cloud.folder / "gcs/bucket/bundles").iterdir()
    bundle.unlink()
    made = len(cloud.commands("create"))
    assert pod("babysit", *ONE) == 1 and len(cloud.commands("create")) == made
    said = capsys.readouterr().err
    assert f"gs://bucket/bundles/{bundle.name} is not there" in said
    assert "tpu/pod sync --bucket gs://bucket --run-id r1" in said
    assert pod("sync", *ONE) == 0 and pod("babysit", *ONE) == 0


def test_stop_keeps_a_slice_that_it_could_not_ask_to_save(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and pod("run", *ONE) == 0
    cloud.script(ssh_drop=[{"match": "agent.py stop", "host": 2}])
    before = cloud.slices()
    assert pod("stop", *ONE) == 1 and cloud.slices() == before
    said = capsys.readouterr().err
    assert "return code [255]" in said and "the slice is kept at $21.60 an hour" in said
    assert "tpu/pod down --bucket gs://bucket --run-id r1 takes it away" in said
    cloud.script()
    assert pod("stop", *ONE) == 0 and not cloud.slices()


def test_stop_asks_an_unwell_slice_as_well(cloud, trainers):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and pod("run", *ONE) == 0
    cloud.script(slices={"*": {"health": "UNHEALTHY_TENSORFLOW"}})
    assert pod("stop", *ONE) == 0 and not cloud.slices()
    for host in range(4):
        exit_ = json.loads(cloud.object(f"incarnations/0/host-{host}.exit.json").read_text())
        assert exit_["code"] == 75


def test_stop_on_hosts_without_the_code_has_nobody_to_ask(tmp_path):
    """As after `up` alone."""
    line = agent("stop", "0" * 64, "gs://bucket/runs/r1", 0)("auto")
    done = subprocess.run(["sh", "-c", line], env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 0
    script = tmp_path / "bert_jax" / ("0" * 64) / "tpu/worker/agent.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit(76)")
    done = subprocess.run(["sh", "-c", line], env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 76


def test_status_counts_on_while_nobody_looks_after_the_run(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert launch("up") == 0 and pod("run", *ONE) == 0
    Clock.now += 10 * 3600
    capsys.readouterr()
    assert pod("status", *ONE) == 0
    assert "10.0 h of slices ($21" in capsys.readouterr().out
    assert pod("down", *ONE) == 0
    Clock.now += 5 * 3600  # of which nothing is paid
    assert pod("status", *ONE) == 0
    out = capsys.readouterr().out
    assert "  no slice, 10.0 h of slices ($21" in out and "training in" not in out
