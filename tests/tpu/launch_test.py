"""Tests whole launches against the fake cloud, with failures; hosts without processes.

Covers tpu/launcher.py, tpu/queued_resource.py and the commands in tpu/cli.py.
"""

import json

import pytest

from tests.helpers.tpu.cloud import DATA, LAUNCH, ONE, SLICE, WORK, FakeCloud, Trainers, tpuctl

QUOTA = (
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been "
    "exceeded. Limit: 0 in zone us-central1-b."
)


def launch(*flags: str) -> int:
    return tpuctl("launch", *LAUNCH, *DATA, *flags, *WORK)


def attempts(trainers: Trainers) -> list[int]:
    """Returns the attempts whose trainers were started, in order."""
    return list(dict.fromkeys(attempt for attempt, _ in trainers.starts))


def test_successful_launch_deletes_its_slice(cloud, trainers, capsys):
    assert launch() == 0
    (created,) = cloud.commands("queued-resources create")
    assert "--zone=us-central1-b" in created and not cloud.slices()
    assert sorted(trainers.starts) == [(1, host) for host in range(4)]
    output = capsys.readouterr().err
    assert "$21.60 an hour; at most 12.00 h: $259.20 (list price as of 20" in output
    assert (cloud.folder / f"gcs/bucket/code/{'0' * 64}.tar.gz").read_text() == "code"


@pytest.mark.parametrize(
    ("slice_name", "accelerator", "runtime", "location"),
    [
        ("v2-32", "v2-32", "tpu-ubuntu2204-base", "US-CENTRAL1"),
        ("v3-32", "v3-32", "tpu-ubuntu2204-base", "US-CENTRAL1"),
        ("v4-32", "v4-32", "tpu-ubuntu2204-base", "US-CENTRAL2"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite", "EUROPE-WEST4"),
        ("v5p-32", "v5p-32", "v2-alpha-tpuv5", "US-EAST5"),
        ("v6e-16", "v6e-16", "v2-alpha-tpuv6e", "ASIA-NORTHEAST1"),
    ],
)
def test_all_generations_are_rented_by_their_names(
    cloud, trainers, slice_name, accelerator, runtime, location
):
    cloud.script(buckets={"bucket": location})
    words = [slice_name if word == "v6e-16" else word for word in LAUNCH]
    assert tpuctl("launch", *words, *DATA, *WORK) == 0
    (created,) = cloud.commands("queued-resources create")
    assert f"--accelerator-type={accelerator} --runtime-version={runtime} " in created
    assert f"--zone={location.lower()}-" in created and " --spot" in created


def test_flags_of_the_rental_reach_gcloud(cloud, trainers):
    account = "a@p.iam.gserviceaccount.com"
    flags = ("--capacity", "reserved", "--service-account", account, "--internal-ips")
    assert launch(*flags, "--wait-hours", "2", "--project", "other-project") == 0
    (created,) = cloud.commands("queued-resources create")
    for flag in (
        "--reserved", f"--service-account={account}", "--internal-ips", "--project=other-project",
        "--valid-until-duration=7200s", "--labels=bert-run=r1", f"--node-id={SLICE}",
    ):  # fmt: skip
        assert f" {flag} " in created
    assert "--spot" not in created and cloud.commands("tpu-vm ssh", "--internal-ip")


def test_iap_uses_the_alpha_command(cloud, trainers):
    assert launch("--iap") == 0
    (connected,) = cloud.commands("tpu-vm ssh")
    assert connected.startswith("alpha compute tpus tpu-vm ssh")
    assert "--tunnel-through-iap" in connected and "--worker=all" in connected


def test_repeated_launch_of_a_done_run_rents_nothing(cloud, trainers):
    assert launch() == 0 and launch() == 0
    assert len(cloud.commands("queued-resources create")) == 1 and attempts(trainers) == [1]


def test_run_survives_a_preemption(cloud, trainers):
    trainers.codes, trainers.steps = {1: -1}, {1: 40}
    cloud.script(slices={f"{SLICE}-1": {"preempt_after": 900}})
    assert launch() == 0
    assert attempts(trainers) == [1, 2]
    lines = cloud.commands("compute tpus")
    steps = [word for line in lines for word in ("create", "delete", "ssh") if f" {word} " in line]
    assert [step for i, step in enumerate(steps) if step != steps[i - 1]] == [
        "create", "ssh", "delete", "create", "ssh", "delete",
    ]  # fmt: skip
    assert cloud.history()["progress"] == 40


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED"])
def test_failed_queued_resource_is_deleted_and_requested_again(cloud, trainers, state):
    failed = {"queue": state, "error": "There is no more capacity in the zone"}
    cloud.script(slices={f"{SLICE}-{number}": failed for number in range(1, 5)})
    assert launch() == 0
    assert len(cloud.commands("queued-resources create")) == 5 and attempts(trainers) == [1]
    assert "--force" in cloud.commands("queued-resources delete")[0]
    assert trainers.clock.now - 1e9 >= 4 * 300


def test_queued_resource_that_failed_for_quota_ends_the_run(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "FAILED", "error": QUOTA}})
    assert launch() == 78
    output = capsys.readouterr().err
    assert QUOTA in output and "IAM & Admin > Quotas" in output and not cloud.slices()


def test_three_lost_slices_without_a_checkpoint_end_the_run(cloud, trainers, capsys):
    trainers.codes = {n: -1 for n in range(1, 9)}
    cloud.script(slices={"*": {"preempt_after": 900}})
    assert launch() == 1
    assert attempts(trainers) == [1, 2, 3] and not cloud.slices()
    assert "3 attempts in a row have written no new checkpoint" in capsys.readouterr().err


def test_wait_hours_end_the_launch(cloud, trainers, capsys):
    cloud.script(slices={"*": {"queue": "WAITING_FOR_RESOURCES"}})
    assert launch("--wait-hours", "0.5") == 75
    assert "no slice was available in 0.5 hours" in capsys.readouterr().err and not cloud.slices()
    assert cloud.history()["billed_seconds"] == 0


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (QUOTA, "IAM & Admin > Quotas"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", "Permissions"),
        ("unrecognized arguments: --spot", "gcloud components update"),
    ],
)
def test_hopeless_errors_end_the_launch_with_advice(cloud, trainers, capsys, text, advice):
    cloud.script(fail=[{"match": "queued-resources create", "text": text}])
    assert launch() == 78
    output = capsys.readouterr().err
    assert text in output and advice in output
    assert len(cloud.commands("queued-resources create")) == 1 and not cloud.slices()


def test_stockout_is_tried_again(cloud, trainers, capsys):
    text = "There is no more capacity in the zone"
    cloud.script(fail=[{"match": "queued-resources create", "times": 2, "text": text}])
    assert launch() == 0
    assert len(cloud.commands("queued-resources create")) == 3 and attempts(trainers) == [1]
    assert "SkyPilot (tpu/sky/) tries all zones" in capsys.readouterr().err


def test_nothing_is_changed_while_the_cloud_is_unreachable(cloud, trainers, capsys):
    text = "UNAVAILABLE: The service is currently unavailable."
    cloud.script(fail=[{"match": "queued-resources describe", "times": 6, "text": text}])
    assert launch() == 0
    lines = cloud.commands("queued-resources")
    assert all(" describe " in line for line in lines[:6])
    assert "temporary problem" in capsys.readouterr().err


@pytest.mark.parametrize("ran", [True, False])
def test_broken_ssh_connections_start_the_trainers_in_the_end(cloud, trainers, ran):
    trainers.codes = {1: -1}
    trainers.each_turn = lambda turn: turn == 5 and [trainers.exit(1, n, 0) for n in range(4)]
    cloud.script(ssh_drop=[{"match": "start.sh", "host": 1, "times": 15, "ran": ran}])
    assert launch() == 0
    assert len(cloud.commands("tpu-vm ssh")) == 2 and attempts(trainers) == [1]


def test_slice_without_all_hosts_is_replaced(cloud, trainers, capsys):
    cloud.script(slices={f"{SLICE}-1": {"hosts": 3}})
    assert launch() == 0
    assert attempts(trainers) == [2]
    assert "not started after 30 minutes" in capsys.readouterr().err


def test_unhealthy_slice_is_not_used(cloud, trainers, capsys):
    cloud.script(slices={f"{SLICE}-1": {"health": "UNHEALTHY_TENSORFLOW"}})
    assert launch() == 0
    assert attempts(trainers) == [2] and "UNHEALTHY_TENSORFLOW" in capsys.readouterr().err


@pytest.mark.parametrize("code", [2, 64, 78])
def test_fatal_exit_codes_end_the_run(cloud, trainers, capsys, code):
    trainers.codes = {1: {2: code}}
    assert launch() == code
    assert attempts(trainers) == [1] and not cloud.slices()
    assert f"(code {code})" in capsys.readouterr().err


def test_failed_trainer_ends_the_run_unless_it_made_progress(cloud, trainers, capsys):
    trainers.codes, trainers.steps = {1: 1, 2: 1}, {1: 100}
    assert launch() == 1
    assert attempts(trainers) == [1, 2]
    assert "host 0: the trainer failed (code 1)" in capsys.readouterr().err


def test_killed_host_is_replaced_when_the_others_have_noticed(cloud, trainers, capsys):
    trainers.codes = {1: {0: 137, 1: -1, 2: -1, 3: -1}}
    assert launch() == 0
    assert attempts(trainers) == [1, 2]
    assert "deleting the slice: host 0: killed" in capsys.readouterr().err


def test_silent_host_is_replaced(cloud, trainers, capsys):
    trainers.codes, trainers.silent = {1: -1}, {2}
    assert launch() == 0
    assert attempts(trainers) == [1, 2]
    assert "deleting the slice: host 2 has written no log" in capsys.readouterr().err


def test_limit_on_the_cost_saves_and_ends_the_run(cloud, trainers, capsys):
    trainers.codes = {1: -1}
    assert launch("--max-usd", "43.20") == 75
    assert "the limit of 2.00 slice hours is reached" in capsys.readouterr().err
    assert cloud.commands("systemctl stop bert-r1-1") and not cloud.slices()
    billed = cloud.history()["billed_seconds"]
    assert 7200 - 720 <= billed <= 7200
    trainers.codes = {}
    assert tpuctl("babysit", *ONE, "--max-usd", "100") == 0
    assert attempts(trainers) == [1, 2] and cloud.history()["billed_seconds"] > billed


def test_stop_saves_and_the_other_launcher_obeys(cloud, trainers, capsys):
    trainers.codes = {1: -1}
    stopped: list[int] = []

    def turn(number: int) -> None:
        if number == 5:
            trainers.each_turn = lambda number: None
            stopped.append(tpuctl("stop", *ONE))

    trainers.each_turn = turn
    assert launch() == 75 and stopped == [0]
    assert "stopped on request" in capsys.readouterr().err
    assert attempts(trainers) == [1] and not cloud.slices()
    trainers.codes = {}
    assert launch() == 0
    assert attempts(trainers) == [1, 2]


def test_stop_keeps_the_slice_if_a_host_is_unreachable(cloud, trainers, capsys):
    trainers.codes = {1: -1}
    trainers.each_turn = interrupt
    assert launch() == 130
    output = capsys.readouterr().err
    assert "it continues and costs $21.60 an hour" in output and "tpu/tpuctl babysit" in output
    cloud.script(ssh_drop=[{"match": "systemctl stop", "host": 3}])
    assert tpuctl("stop", *ONE) == 1
    assert "not all trainers have confirmed the save" in capsys.readouterr().err
    assert cloud.slices()
    trainers.each_turn = lambda turn: None
    assert tpuctl("down", *ONE) == 0 and not cloud.slices()


def interrupt(turn: int) -> None:
    """Presses Ctrl-C when the trainers run."""
    if turn == 4:
        raise KeyboardInterrupt


def test_babysit_continues_an_interrupted_run(cloud, trainers):
    trainers.codes = {1: -1}
    trainers.each_turn = interrupt
    assert launch() == 130
    trainers.each_turn = lambda turn: None
    for host in range(4):
        trainers.exit(1, host, 0)
    assert tpuctl("babysit", *ONE) == 0
    assert attempts(trainers) == [1] and not cloud.slices()


def test_hours_without_a_launcher_are_billed(cloud, trainers):
    trainers.codes = {1: -1}
    trainers.each_turn = interrupt
    assert launch() == 130
    trainers.each_turn = lambda turn: None
    trainers.clock.now += 11.9 * 3600
    assert tpuctl("babysit", *ONE) == 75
    assert cloud.history()["billed_seconds"] > 11.9 * 3600 and not cloud.slices()


def test_down_ends_the_run_of_another_launcher(cloud, trainers):
    trainers.codes = {1: -1}
    trainers.each_turn = lambda turn: turn == 5 and tpuctl("down", *ONE)
    assert launch() == 75
    assert not cloud.slices() and not cloud.commands("systemctl stop")


def test_run_id_of_another_job_is_rejected(cloud, trainers, capsys):
    assert launch() == 0
    assert tpuctl("launch", *LAUNCH, *DATA, *WORK, "steps=7") == 2
    output = capsys.readouterr().err
    assert "run id 'r1' already belongs to a different run (other arguments)" in output
    assert launch("--capacity", "on-demand", "--max-hours", "3") == 0
    assert json.loads(cloud.object("job.json").read_text())["rental"]["max_hours"] == 3


def test_another_zone_deletes_the_slice_in_the_old_one(cloud, trainers):
    trainers.codes = {1: -1}
    trainers.each_turn = interrupt
    assert launch() == 130
    trainers.each_turn = lambda turn: None
    assert launch("--zone", "us-central1-a") == 0
    first, second = cloud.commands("queued-resources create")
    assert "--zone=us-central1-b" in first and "--zone=us-central1-a" in second
    assert not cloud.slices()


def test_status_shows_the_run(cloud, trainers, capsys):
    trainers.codes, trainers.steps = {1: {0: -1, 1: -1, 2: -1, 3: 134}}, {1: 250}
    trainers.each_turn = interrupt
    assert launch() == 130
    capsys.readouterr()
    assert tpuctl("status", *ONE) == 0
    output = capsys.readouterr().out
    assert "gs://bucket/runs/r1: bert-jax pretrain configs/pretrain/bert.py" in output
    assert "attempt 1: queued resource ACTIVE, node READY" in output
    assert "newest checkpoint: 250" in output and "of 12.00 h, about $" in output
    assert "host 3: aborted, because another host disconnected (code 134)" in output


def test_logs_show_the_last_lines(cloud, trainers, capsys):
    assert launch() == 0
    capsys.readouterr()
    cloud.object("attempts/1/host-2.log").unlink()
    assert tpuctl("logs", *ONE, "--host", "2") == 1
    assert "host-2.log does not exist; hosts upload their logs" in capsys.readouterr().err
    cloud.object("attempts/1/host-2.log").write_text("a\nb\nc\n")
    assert tpuctl("logs", *ONE, "--host", "2", "--lines", "2") == 0
    assert capsys.readouterr().out == "b\nc\n"


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "down", "babysit"])
def test_commands_of_a_run_have_a_dry_run(cloud: FakeCloud, trainers, capsys, verb):
    assert launch() == 0
    before = len(cloud.argv)
    capsys.readouterr()
    assert tpuctl(verb, *ONE, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("gcloud storage cat gs://bucket/runs/r1/job.json")
    assert [" ".join(words[:2]) for words in cloud.argv[before:]] == ["storage cat"]
