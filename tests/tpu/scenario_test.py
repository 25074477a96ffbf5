"""Whole launches against the fake cloud, with what goes wrong there; hosts without processes."""

import json

import pytest

from tests.tpu.cloud import DATA, LAUNCH, SLICE, WORK, Clock, FakeCloud, InProcess, pod
from tpu import names

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
    return pod("launch", *LAUNCH, *DATA, *more, *WORK)


def asked(cloud: FakeCloud) -> list[str]:
    """Zones in which slices were asked for, in order."""
    found = cloud.commands("queued-resources create")
    return [next(w for w in line.split() if w.startswith("--zone="))[7:] for line in found]


def test_a_launch_that_goes_well_leaves_nothing_that_costs(cloud, trainers, capsys):
    assert launch() == 0
    assert asked(cloud) == ["us-central1-b"] and not cloud.slices()
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    said = capsys.readouterr().err
    assert "16 x $1.35 = $21.60 an hour; at most 12.00 h: $259.20" in said and "as of 20" in said
    assert not cloud.object("LEASE").exists()


def test_compute_engine_goes_the_same_way(cloud, trainers):
    assert launch("--backend", "gce") == 0
    assert sorted(trainers.starts) == [(f"{SLICE}-0", host) for host in range(4)]
    left = {kind: cloud.state[kind] for kind in ("groups", "templates", "policies")}
    assert not any(left.values()), left


def test_the_same_launch_again_does_nothing_when_done(cloud, trainers):
    assert launch() == 0
    before = len(cloud.commands("create"))
    assert launch() == 0
    assert len(cloud.commands("create")) == before


def test_a_sold_out_zone_is_followed_by_the_next(cloud, trainers):
    cloud.script(fail=[{"match": "create .*us-central1-b", "text": STOCKOUT}])
    assert launch(*ZONES) == 0
    assert asked(cloud) == ["us-central1-b", "us-central1-a"]


def test_a_queue_that_does_not_move_is_left_after_twenty_minutes(cloud, trainers):
    cloud.script(slices={f"{SLICE}-0": {"queue": "WAITING_FOR_RESOURCES"}})
    begun = Clock.now
    assert launch(*ZONES) == 0
    assert asked(cloud) == ["us-central1-b", "us-central1-a"]
    assert 20 * 60 <= Clock.now - begun < 25 * 60


def test_waiting_has_an_end(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})
    assert launch("--wait-hours", "2") == 75
    assert "no slice to be had in 2 hours" in capsys.readouterr().err and not cloud.slices()
    assert cloud.loop()["billed"] == 0


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_a_dead_queued_resource_is_deleted_and_asked_for_anew(cloud, trainers, state):
    cloud.script(slices={f"{SLICE}-0": {"queue": state}})
    assert launch() == 0
    (deleted,) = cloud.commands(f"queued-resources delete {SLICE}-0")
    assert "--force" in deleted and trainers.starts[0][0] == f"{SLICE}-1"


def test_preemption_in_the_midst_is_survived(cloud, trainers, capsys):
    trainers.codes, trainers.steps = {0: -1}, {0: 40}
    cloud.script(slices={f"{SLICE}-0": {"preempt_after": 900}})
    assert launch() == 0
    assert [node for node, host in trainers.starts if host == 0] == [f"{SLICE}-0", f"{SLICE}-1"]
    lines = [line for line in cloud.commands("compute tpus") if " list " not in line]
    order = [next(w for w in ("create", "delete", "ssh") if f" {w} " in line) for line in lines]
    assert order == ["create", *["ssh"] * 3, "delete", "create", *["ssh"] * 3, "delete"]
    assert cloud.loop()["failures"] == 0 and "was taken away" in capsys.readouterr().err


def test_quota_is_told_by_googles_words_and_ends_the_launch(cloud, trainers, capsys):
    cloud.script(fail=[{"match": "queued-resources create", "text": QUOTA}])
    assert launch() == 78
    said = capsys.readouterr().err
    assert "TPUV6EPreemptible" in said and "IAM & Admin > Quotas" in said
    assert len(asked(cloud)) == 1 and not cloud.slices()


def test_a_missing_permission_ends_it_at_once(cloud, trainers, capsys):
    text = "PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on 'projects/test-project'"
    cloud.script(fail=[{"match": "queued-resources create", "text": text}])
    assert launch() == 78
    assert "Permissions" in capsys.readouterr().err and len(asked(cloud)) == 1


def test_nothing_is_touched_while_the_cloud_cannot_be_asked(cloud, trainers, capsys):
    text = "UNAVAILABLE: The service is currently unavailable."
    cloud.script(fail=[{"match": "queued-resources list", "times": 6, "text": text}])
    assert launch() == 0
    lines = [line for line in cloud.commands("queued-resources")]
    assert all(" list " in line for line in lines[:6]) and "so nothing is changed" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("ran", [True, False])
def test_a_storm_of_broken_ssh_starts_one_unit(cloud, trainers, ran):
    """Eleven times the command is run by gcloud itself, and then by us again."""
    drop = {"match": "agent.py start", "host": 1, "times": 15, "ran": ran}
    cloud.script(ssh_drop=[drop])
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        trainers.codes = {} if number == 20 else trainers.codes

    trainers.each_turn = turn
    assert launch() == 0
    assert sorted(trainers.units) == [f"{SLICE}-0/{host}" for host in range(4)]
    assert len(asked(cloud)) == 1


def test_ssh_that_never_gets_through_gives_up(cloud, trainers, capsys):
    cloud.script(ssh_drop=[{"match": "", "host": 2}])
    assert launch() == 1
    assert len(asked(cloud)) == 3 and "allow tcp:22" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "slices"), [(2, 1), (64, 1), (78, 1), (1, 1), (134, 3), (76, 3)])
def test_codes_that_are_not_repeated_are_not(cloud, trainers, code, slices):
    trainers.codes = {life: {1: code, 0: 134, 2: 134, 3: 134} for life in range(5)}
    assert launch() == (1 if code in (134, 76) else code)
    assert len(asked(cloud)) == slices and not cloud.slices()


def test_code_1_after_a_checkpoint_is_tried_once_more(cloud, trainers):
    trainers.codes, trainers.steps = {0: 1, 1: 1}, {0: 10, 1: 10}
    assert launch() == 1
    assert len(asked(cloud)) == 2


def test_a_host_that_never_reports_is_named(cloud, trainers, capsys):
    trainers.codes, trainers.silent = dict.fromkeys(range(5), -1), {2}
    assert launch() == 1
    assert "host 2 has not reported at all for 30 minutes" in capsys.readouterr().err


def test_preflight_that_fails_takes_another_slice_and_says_why(cloud, trainers, capsys):
    trainers.preflight_code = 76
    assert launch() == 1
    assert len(asked(cloud)) == 3 and "failed with exit status 76" in capsys.readouterr().err


def test_what_no_other_slice_could_mend_ends_it_at_once(cloud, trainers):
    trainers.preflight_code = 78
    assert launch() == 78
    assert len(asked(cloud)) == 1 and not cloud.slices()


def test_limits_of_hours_and_dollars_win(cloud, trainers, capsys):
    trainers.codes = dict.fromkeys(range(9), -1)
    for host in range(4):
        trainers.steps[host] = 5
    assert launch("--max-usd", "10.80") == 75  # half an hour
    said = capsys.readouterr().err
    assert "at most 0.50 h: $10.80" in said and "limit of 0.50 hours" in said
    assert cloud.commands("agent.py stop") and not cloud.slices()
    assert cloud.loop()["billed"] <= 0.5 * 3600


def test_stop_saves_and_gives_back_and_launch_goes_on(cloud, trainers):
    trainers.codes = {0: -1}
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    assert pod("run", *ONE) == 0 and pod("run", *ONE) == 0
    assert pod("stop", *ONE) == 0 and not cloud.slices()
    assert json.loads(cloud.object("incarnations/0/host-3.exit.json").read_text())["code"] == 75
    assert launch() == 0 and trainers.starts[-1][0] == f"{SLICE}-1"


def test_someone_elses_stop_ends_the_babysitter(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 12:
            cloud.object("STOP").write_text("{}")

    trainers.each_turn = turn
    assert launch() == 75 and not cloud.slices()


def test_every_verb_twice(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    for verb in ("up", "up"):
        assert pod(verb, *LAUNCH, *DATA, *WORK) == 0
    for verb in ("sync", "preflight", "run", "status", "logs", "down"):
        assert pod(verb, *ONE) == 0, capsys.readouterr().err
        assert pod(verb, *ONE) == 0, capsys.readouterr().err
    assert len(asked(cloud)) == 1 and len(trainers.units) == 4 and not cloud.slices()


def test_down_on_nothing_is_fine(cloud, trainers):
    assert launch() == 0
    assert pod("down", *ONE) == 0


def test_down_waits_until_nothing_is_left(cloud, trainers):
    cloud.script(slices={"*": {"delete_seconds": 45}})
    trainers.codes = {0: -1}
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    begun = Clock.now
    assert pod("down", *ONE) == 0 and not cloud.slices() and Clock.now - begun >= 45


def test_a_babysitter_that_died_is_succeeded_and_its_slice_kept(cloud, trainers):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt
        if number == 12:
            trainers.codes = {}

    trainers.each_turn = turn
    assert launch() == 130 and len(cloud.slices()) == 2
    assert pod("babysit", *ONE) == 0 and len(asked(cloud)) == 1 and not cloud.slices()


def test_a_run_id_that_is_taken_names_what_differs(cloud, trainers, capsys):
    assert launch() == 0
    assert pod("launch", *LAUNCH, *DATA, *WORK, "size=large") == 1
    said = capsys.readouterr().err
    assert "run id 'r1' is taken by another run" in said and "arguments:" in said
    assert "size=large now" in said and "slice:" not in said and "--run-id" in said


def test_a_clock_that_is_wrong_changes_nothing(cloud, trainers, monkeypatch):
    """It jumps back by a day and forth again between turns."""
    offsets = iter([0, -86400, 86400, 0] * 1000)
    monkeypatch.setattr(Clock, "clock", lambda self: Clock.now + next(offsets))
    assert launch("--max-hours", "1000") == 0 and len(asked(cloud)) == 1


def test_a_slice_of_another_run_is_left_alone(cloud, trainers):
    other = names.slice_prefix("gs://bucket/runs/r12") + "-0"
    words = f"gcloud compute tpus queued-resources create {other} --node-id={other}"
    words += " --zone=us-central1-b --accelerator-type=v6e-16 --runtime-version=x"
    InProcess().run([*words.split(), "--labels=bert-run=r12"])
    assert launch() == 0 and pod("down", *ONE) == 0
    assert cloud.slices() == [f"us-central1-b/{other}"] * 2


@pytest.mark.parametrize("backend", ["tpu-api", "gce"])
def test_the_same_run_id_in_another_bucket_is_another_run(cloud, trainers, backend):
    trainers.codes = {0: -1}
    assert pod("up", *LAUNCH, "--backend", backend, *DATA, *WORK) == 0
    mine = cloud.slices()
    other = [word.replace("gs://bucket", "gs://colleague") for word in LAUNCH]
    assert pod("up", *other, "--backend", backend, *DATA, *WORK) == 0
    assert len(cloud.slices()) == 2 * len(mine), "took a colleague's slice for its own"
    assert pod("down", "--bucket", "gs://colleague", "--run-id", "r1") == 0
    assert cloud.slices() == mine


def test_names_of_slices_fit_into_those_of_their_machines():
    """Which have 63 letters at most, and five of them behind the name of their group."""
    longest = names.slice_prefix(names.run_url("gs://bucket", "r" * 40))
    assert len(f"{longest}-999") <= 58
