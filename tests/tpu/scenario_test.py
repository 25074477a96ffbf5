"""Tests whole launches against the fake cloud, with failures; hosts without processes.

Covers tpu/launcher/commands_launch.py, commands_inspect.py, cloud/ and restarts/.
"""

import json

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, FakeCloud, InProcess, tpuctl
from tpu import bucket_layout

ZONES = ("--zones", "us-central1-b,us-central1-a")
STOCKOUT = (
    'There is no more capacity in the zone "us-central1-b"; you can try in another zone where '
    "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0xba39]"
)
QUOTA = (
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been "
    "exceeded. Limit: 0 in zone us-central1-b."
)
ONE = ("--bucket", "gs://bucket", "--run-id", "r1")


def launch(*more: str) -> int:
    return tpuctl("launch", *LAUNCH, *DATA, *more, *WORK)


def requested_zones(cloud: FakeCloud) -> list[str]:
    """Returns the zones in which slices were requested, in order."""
    found = cloud.commands("queued-resources create")
    return [next(w for w in line.split() if w.startswith("--zone="))[7:] for line in found]


def test_successful_launch_deletes_its_slice(cloud, trainers, capsys):
    assert launch() == 0
    assert requested_zones(cloud) == ["us-central1-b"] and not cloud.slices()
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    output = capsys.readouterr().err
    assert (
        "16 x $1.35 = $21.60 an hour; at most 12.00 h: $259.20" in output and "as of 20" in output
    )
    assert not cloud.object("LEASE").exists()


def test_launch_on_compute_engine(cloud, trainers):
    assert launch("--backend", "gce") == 0
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    left = {kind: cloud.state[kind] for kind in ("groups", "templates", "policies")}
    assert not any(left.values()), left


def test_repeated_launch_of_a_done_run_does_nothing(cloud, trainers):
    assert launch() == 0
    before = len(cloud.commands("create"))
    assert launch() == 0
    assert len(cloud.commands("create")) == before


def test_stockout_tries_the_next_zone(cloud, trainers):
    cloud.script(fail=[{"match": "create .*us-central1-b", "text": STOCKOUT}])
    assert launch(*ZONES) == 0
    assert requested_zones(cloud) == ["us-central1-b", "us-central1-a"]


def test_next_zone_is_tried_after_twenty_minutes_in_the_queue(cloud, trainers):
    cloud.script(slices={f"{SLICE}-0": {"queue": "WAITING_FOR_RESOURCES"}})
    started_at = Clock.now
    assert launch(*ZONES) == 0
    assert requested_zones(cloud) == ["us-central1-b", "us-central1-a"]
    assert 20 * 60 <= Clock.now - started_at < 25 * 60


def test_wait_hours_end_the_launch(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})
    assert launch("--wait-hours", "0.5") == 75
    assert "no slice was available in 0.5 hours" in capsys.readouterr().err and not cloud.slices()
    assert cloud.loop()["billed_seconds"] == 0


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_failed_queued_resource_is_deleted_and_retried(cloud, trainers, state):
    cloud.script(slices={f"{SLICE}-0": {"queue": state}})
    assert launch() == 0
    (deleted,) = cloud.commands(f"queued-resources delete {SLICE}-0")
    assert "--force" in deleted and trainers.starts[0][0] == f"{SLICE}-1"


def test_run_survives_a_preemption(cloud, trainers, capsys):
    trainers.codes, trainers.steps = {0: -1}, {0: 40}
    cloud.script(slices={f"{SLICE}-0": {"preempt_after": 900}})
    assert launch() == 0
    assert [node for node, host in trainers.starts if host == 0] == [f"{SLICE}-0", f"{SLICE}-1"]
    lines = [line for line in cloud.commands("compute tpus") if " list " not in line]
    steps = [next(w for w in ("create", "delete", "ssh") if f" {w} " in line) for line in lines]
    assert steps == ["create", *["ssh"] * 3, "delete", "create", *["ssh"] * 3, "delete"]
    assert (
        cloud.loop()["attempts_without_progress"] == 0
        and "was terminated" in capsys.readouterr().err
    )


def test_quota_error_ends_the_launch_with_its_message(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "queued-resources create", "text": QUOTA}])
    assert launch() == 78
    output = capsys.readouterr().err
    assert "TPUV6EPreemptible" in output and "IAM & Admin > Quotas" in output
    assert len(requested_zones(cloud)) == 1 and not cloud.slices()


def test_missing_permission_ends_the_launch(cloud, trainers, capsys):
    text = "PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on 'projects/test-project'"
    cloud.script(fail=[{"match": "queued-resources create", "text": text}])
    assert launch() == 78
    assert "Permissions" in capsys.readouterr().err and len(requested_zones(cloud)) == 1


def test_nothing_is_changed_while_the_cloud_is_unreachable(cloud, trainers, capsys):
    text = "UNAVAILABLE: The service is currently unavailable."
    cloud.script(fail=[{"match": "queued-resources list", "times": 6, "text": text}])
    assert launch() == 0
    lines = [line for line in cloud.commands("queued-resources")]
    assert all(" list " in line for line in lines[:6]) and "so nothing is changed" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("ran", [True, False])
def test_repeated_ssh_failures_start_one_unit(cloud, trainers, ran):
    """Tests that gcloud's eleven tries and the launcher's own retries start one unit."""
    drop = {"match": "agent.py start", "host": 1, "times": 15, "ran": ran}
    cloud.script(ssh_drop=[drop])
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        trainers.codes = {} if number == 20 else trainers.codes

    trainers.each_turn = turn
    assert launch() == 0
    assert sorted(trainers.units) == [f"{SLICE}-0/{host}" for host in range(4)]
    assert len(requested_zones(cloud)) == 1


def test_permanent_ssh_failure_ends_the_launch(cloud, trainers, capsys):
    cloud.script(ssh_drop=[{"match": "", "host": 2}])
    assert launch() == 1
    assert len(requested_zones(cloud)) == 3 and "allow tcp:22" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "slices"), [(2, 1), (64, 1), (78, 1), (1, 1), (134, 3), (76, 3)])
def test_fatal_exit_codes_are_not_retried(cloud, trainers, code, slices):
    trainers.codes = {attempt: {1: code, 0: 134, 2: 134, 3: 134} for attempt in range(5)}
    assert launch() == (1 if code in (134, 76) else code)
    assert len(requested_zones(cloud)) == slices and not cloud.slices()


def test_code_1_after_a_checkpoint_is_retried_once(cloud, trainers):
    trainers.codes, trainers.steps = {0: 1, 1: 1}, {0: 10, 1: 10}
    assert launch() == 1
    assert len(requested_zones(cloud)) == 2


def test_host_without_report_is_named(cloud, trainers, capsys):
    trainers.codes, trainers.silent = dict.fromkeys(range(5), -1), {2}
    assert launch() == 1
    assert "host 2 has not sent a heartbeat for 30 minutes" in capsys.readouterr().err


def test_failed_preflight_uses_another_slice(cloud, trainers, capsys):
    trainers.preflight_code = 76
    assert launch() == 1
    assert (
        len(requested_zones(cloud)) == 3 and "failed with exit status 76" in capsys.readouterr().err
    )


def test_slice_independent_preflight_failure_ends_the_run(cloud, trainers):
    trainers.preflight_code = 78
    assert launch() == 78
    assert len(requested_zones(cloud)) == 1 and not cloud.slices()


def test_max_usd_ends_the_run(cloud, trainers, capsys):
    trainers.codes = dict.fromkeys(range(9), -1)
    for host in range(4):
        trainers.steps[host] = 5
    assert launch("--max-usd", "10.80") == 75  # half an hour
    output = capsys.readouterr().err
    assert "at most 0.50 h: $10.80" in output and "limit of 0.50 slice hours" in output
    assert cloud.commands("agent.py stop") and not cloud.slices()
    assert cloud.loop()["billed_seconds"] <= 0.5 * 3600


def test_stop_saves_and_launch_resumes(cloud, trainers):
    trainers.codes = {0: -1}
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    assert tpuctl("run", *ONE) == 0 and tpuctl("run", *ONE) == 0
    assert tpuctl("stop", *ONE) == 0 and not cloud.slices()
    assert json.loads(cloud.object("attempts/0/host-3.exit.json").read_text())["code"] == 75
    assert launch() == 0 and trainers.starts[-1][0] == f"{SLICE}-1"


def test_stop_marker_ends_the_restart_loop(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            cloud.object("STOP").write_text("{}")

    trainers.each_turn = turn
    assert launch() == 75 and not cloud.slices()


def test_every_command_can_be_repeated(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    for verb in ("up", "up"):
        assert tpuctl(verb, *LAUNCH, *DATA, *WORK) == 0
    for verb in ("sync", "preflight", "run", "status", "logs", "down"):
        assert tpuctl(verb, *ONE) == 0, capsys.readouterr().err
        assert tpuctl(verb, *ONE) == 0, capsys.readouterr().err
    assert len(requested_zones(cloud)) == 1 and len(trainers.units) == 4 and not cloud.slices()


def test_down_without_slices_succeeds(cloud, trainers):
    assert launch() == 0
    assert tpuctl("down", *ONE) == 0


def test_down_waits_until_slices_are_deleted(cloud, trainers):
    cloud.script(slices={"*": {"delete_seconds": 45}})
    trainers.codes = {0: -1}
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    started_at = Clock.now
    assert tpuctl("down", *ONE) == 0 and not cloud.slices() and Clock.now - started_at >= 45


def test_babysit_continues_after_an_interrupted_launch(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt
        if number == 12:
            trainers.codes = {}

    trainers.each_turn = turn
    assert launch() == 130 and len(cloud.slices()) == 2
    assert tpuctl("babysit", *ONE) == 0 and len(requested_zones(cloud)) == 1 and not cloud.slices()


def test_used_run_id_names_the_differences(cloud, trainers, capsys):
    assert launch() == 0
    assert tpuctl("launch", *LAUNCH, *DATA, *WORK, "size=large") == 1
    output = capsys.readouterr().err
    assert "run id 'r1' already belongs to a different run" in output and "arguments:" in output
    assert "size=large" in output and "\n  slice:" not in output and "--run-id" in output


def test_jumping_clock_changes_nothing(cloud, trainers, monkeypatch):
    """Tests a clock that jumps back by a day and forward again between turns."""
    offsets = iter([0, -86400, 86400, 0] * 1000)
    monkeypatch.setattr(Clock, "time", lambda self: Clock.now + next(offsets))
    assert launch("--max-hours", "1000") == 0 and len(requested_zones(cloud)) == 1


def test_slices_of_other_runs_are_not_touched(cloud, trainers):
    other = bucket_layout.slice_name_prefix("gs://bucket/runs/r12") + "-0"
    words = f"gcloud compute tpus queued-resources create {other} --node-id={other}"
    words += " --zone=us-central1-b --accelerator-type=v6e-16 --runtime-version=x"
    InProcess().run([*words.split(), "--labels=bert-run=r12"])
    assert launch() == 0 and tpuctl("down", *ONE) == 0
    assert cloud.slices() == [f"us-central1-b/{other}"] * 2


@pytest.mark.parametrize("backend", ["tpu-api", "gce"])
def test_same_run_id_in_another_bucket_is_another_run(cloud, trainers, backend):
    trainers.codes = {0: -1}
    assert tpuctl("up", *LAUNCH, "--backend", backend, *DATA, *WORK) == 0
    own_slices = cloud.slices()
    other = [word.replace("gs://bucket", "gs://colleague") for word in LAUNCH]
    assert tpuctl("up", *other, "--backend", backend, *DATA, *WORK) == 0
    assert len(cloud.slices()) == 2 * len(own_slices), "took a colleague's slice for its own"
    assert tpuctl("down", "--bucket", "gs://colleague", "--run-id", "r1") == 0
    assert cloud.slices() == own_slices


def test_slice_names_leave_room_for_machine_suffixes():
    """Tests that 63 characters suffice: five follow the name of the group."""
    longest = bucket_layout.slice_name_prefix(bucket_layout.run_url("gs://bucket", "r" * 40))
    assert len(f"{longest}-999") <= 58
