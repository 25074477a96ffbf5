"""Tests the lease of a run: lost responses, long actions, concurrent launchers.

Covers tpu/launcher/restarts/lease.py.
"""

import json
import socket
import subprocess
import threading

import pytest

from bert_jax.errors import UserError
from tests.helpers.tpu.cloud import DATA, LAUNCH, WORK, Clock, InProcess, tpuctl
from tests.helpers.tpu.fake_pod import await_true
from tests.tpu.scenario_test import ONE, launch, requested_zones
from tpu.launcher.cloud.bucket import Bucket
from tpu.launcher.cloud.gcloud import CommandResult
from tpu.launcher.restarts import actions
from tpu.launcher.restarts.lease import Lease, LeaseLost

URL = "gs://bucket/runs/r1/LEASE"


def test_second_launcher_is_rejected(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert tpuctl("up", *LAUNCH, *DATA, *WORK) == 0
    held = {"holder": "process 7 on laptop", "host": "laptop", "pid": 7, "time": Clock.now}
    cloud.object("LEASE").write_text(json.dumps(held))
    assert tpuctl("babysit", *ONE) == 1
    assert "another launcher manages this run: process 7 on laptop" in capsys.readouterr().err
    assert cloud.slices()


def test_lease_is_taken_over_only_if_not_renewed(cloud, trainers):
    bucket, url, time = Bucket(InProcess()), URL, Clock()
    first = Lease(bucket, url, clock=lambda: 5.0, sleep=time.sleep)  # a clock that is far off
    first.acquire()
    # The lease looks a year old by this clock, but it is renewed while it is watched.
    second = Lease(bucket, url, clock=time.time, sleep=lambda seconds: first.renew())
    second._machine = "another machine"
    with pytest.raises(Exception, match="manages this run"):
        second.acquire()
    third = Lease(bucket, url, clock=time.time, sleep=time.sleep)
    third._machine = "another machine"
    third.acquire()
    with pytest.raises(LeaseLost):
        first.renew()
    first.release()
    assert cloud.object("LEASE").exists(), "gave away what was not its own"


@pytest.mark.parametrize("lost", ["objects describe", "storage cat", "storage cp"])
def test_lease_survives_a_lost_response(cloud, trainers, lost):
    class Forgetful(InProcess):
        """Runs all commands, but loses the response to one of them."""

        forgets = False

        def run(self, argv, **more) -> CommandResult:
            answer = super().run(argv, **more)
            if self.forgets and lost in " ".join(argv):
                self.forgets = False
                return CommandResult(124, "", "timed out after 120 s")
            return answer

    runner = Forgetful()
    lease = Lease(Bucket(runner), URL, clock=lambda: 0.0)
    lease.acquire()
    runner.forgets = True
    with pytest.raises(UserError, match="timed out"):
        lease.renew()
    lease.renew()
    lease.renew()
    lease.release()
    assert not cloud.object("LEASE").exists()


def test_launch_survives_a_failed_renewal(cloud, trainers, capsys):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 3:
            text = "UNAVAILABLE: The service is currently unavailable."
            cloud.script(fail=[{"match": "objects describe .*LEASE", "times": 1, "text": text}])
        trainers.codes = {} if number == 12 else trainers.codes

    trainers.each_turn = turn
    assert launch() == 0 and len(requested_zones(cloud)) == 1
    assert "the lease could not be renewed" in capsys.readouterr().err
    assert not cloud.object("LEASE").exists()


def test_one_of_many_concurrent_launchers_gets_the_lease(cloud, trainers):
    won: list[int] = []

    def take(number: int) -> None:
        lease = Lease(Bucket(InProcess()), URL, clock=lambda: 0.0)
        lease._machine = f"machine {number}"
        try:
            lease.acquire()
        except Exception:
            return
        won.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_lease_is_renewed_during_a_long_start(cloud, trainers, monkeypatch):
    refused: list[str] = []

    def slow(run, live) -> None:
        written = cloud.object("LEASE").stat().st_mtime_ns
        Clock.now += 20 * 60
        await_true(lambda: cloud.object("LEASE").stat().st_mtime_ns > written, 30)
        other = Lease(Bucket(InProcess()), URL, clock=Clock().time, sleep=Clock().sleep)
        other._machine = "another machine"
        with pytest.raises(UserError, match="manages this run") as error:
            other.acquire()
        refused.append(str(error.value))

    monkeypatch.setattr(actions, "fetch_code", slow)
    monkeypatch.setattr(Clock, "wait", lambda self, event, seconds: event.wait(0.01))
    assert launch() == 0 and len(refused) == 1
    assert not cloud.object("LEASE").exists()


def test_dead_holder_is_detected_only_on_its_machine(cloud, trainers):
    with subprocess.Popen(["true"]) as ended:
        pass
    dead = Lease(Bucket(InProcess()), URL, clock=Clock().time)
    dead._pid, dead._machine = ended.pid, socket.gethostname()  # of a machine of that name
    dead.acquire()
    lease = Lease(Bucket(InProcess()), URL, clock=Clock().time)
    with pytest.raises(UserError, match="manages this run"):
        lease.acquire()
    dead._machine = lease._machine
    dead.renew()
    lease.acquire()
