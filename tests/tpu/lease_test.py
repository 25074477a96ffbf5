"""Who looks after a run: one launcher, whatever answers are lost and however long a turn takes."""

import json
import socket
import subprocess
import threading

import pytest

from bert_jax.errors import UserError
from tests.tpu.cloud import DATA, LAUNCH, WORK, Clock, InProcess, pod
from tests.tpu.scenario_test import ONE, asked, launch
from tests.tpu_worker.fake_pod import await_true
from tpu.launcher import act
from tpu.launcher.bucket import Bucket
from tpu.launcher.gcloud import Answer
from tpu.launcher.lease import Lease, LeaseLost

URL = "gs://bucket/runs/r1/LEASE"


def test_two_babysitters_do_not_fight(cloud, trainers, capsys):
    trainers.codes = {0: -1}
    assert pod("up", *LAUNCH, *DATA, *WORK) == 0
    held = {"holder": "process 7 on laptop", "host": "laptop", "pid": 7, "time": Clock.now}
    cloud.object("LEASE").write_text(json.dumps(held))
    assert pod("babysit", *ONE) == 1
    assert "process 7 on laptop looks after this run" in capsys.readouterr().err
    assert cloud.slices()


def test_a_lease_is_taken_over_only_when_it_stands_still(cloud, trainers):
    bucket, url, time = Bucket(InProcess()), URL, Clock()
    first = Lease(bucket, url, clock=lambda: 5.0, sleep=time.sleep)  # a clock far off
    first.take()
    # It looks a year old by our clock, but it moves while we watch.
    second = Lease(bucket, url, clock=time.clock, sleep=lambda seconds: first.renew())
    second._host = "another machine"
    with pytest.raises(Exception, match="looks after this run"):
        second.take()
    third = Lease(bucket, url, clock=time.clock, sleep=time.sleep)
    third._host = "another machine"
    third.take()
    with pytest.raises(LeaseLost):
        first.renew()
    first.give()
    assert cloud.object("LEASE").exists(), "gave away what was not its own"


@pytest.mark.parametrize("lost", ["objects describe", "storage cat", "storage cp"])
def test_a_renewal_whose_answer_is_lost_loses_nothing(cloud, trainers, lost):
    class Forgetful(InProcess):
        """Runs everything, and forgets the answer to one command."""

        forgets = False

        def run(self, argv, **more) -> Answer:
            answer = super().run(argv, **more)
            if self.forgets and lost in " ".join(argv):
                self.forgets = False
                return Answer(124, "", "timed out after 120 s")
            return answer

    runner = Forgetful()
    lease = Lease(Bucket(runner), URL, clock=lambda: 0.0)
    lease.take()
    runner.forgets = True
    with pytest.raises(UserError, match="timed out"):
        lease.renew()
    lease.renew()
    lease.renew()
    lease.give()
    assert not cloud.object("LEASE").exists()


def test_a_launch_outlives_a_renewal_that_is_cut_off(cloud, trainers, capsys):
    trainers.codes = {0: -1}

    def turn(number: int) -> None:
        if number == 3:
            text = "UNAVAILABLE: The service is currently unavailable."
            cloud.script(fail=[{"match": "objects describe .*LEASE", "times": 1, "text": text}])
        trainers.codes = {} if number == 12 else trainers.codes

    trainers.each_turn = turn
    assert launch() == 0 and len(asked(cloud)) == 1
    assert "the lease could not be renewed" in capsys.readouterr().err
    assert not cloud.object("LEASE").exists()


def test_of_many_at_once_one_takes_the_lease(cloud, trainers):
    won: list[int] = []

    def take(number: int) -> None:
        lease = Lease(Bucket(InProcess()), URL, clock=lambda: 0.0)
        lease._host = f"machine {number}"
        try:
            lease.take()
        except Exception:
            return
        won.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_start_of_twenty_minutes_does_not_lose_the_lease(cloud, trainers, monkeypatch):
    refused: list[str] = []

    def slow(run, live) -> None:
        written = cloud.object("LEASE").stat().st_mtime_ns
        Clock.now += 20 * 60
        await_true(lambda: cloud.object("LEASE").stat().st_mtime_ns > written, 30)
        other = Lease(Bucket(InProcess()), URL, clock=Clock().clock, sleep=Clock().sleep)
        other._host = "another machine"
        with pytest.raises(UserError, match="looks after this run") as error:
            other.take()
        refused.append(str(error.value))

    monkeypatch.setattr(act, "fetch", slow)
    monkeypatch.setattr(Clock, "wait", lambda self, event, seconds: event.wait(0.01))
    assert launch() == 0 and len(refused) == 1
    assert not cloud.object("LEASE").exists()


def test_a_process_has_died_here_only_where_it_ran(cloud, trainers):
    with subprocess.Popen(["true"]) as ended:
        pass
    dead = Lease(Bucket(InProcess()), URL, clock=Clock().clock)
    dead._pid, dead._host = ended.pid, socket.gethostname()  # of a machine of that name
    dead.take()
    ours = Lease(Bucket(InProcess()), URL, clock=Clock().clock)
    with pytest.raises(UserError, match="looks after this run"):
        ours.take()
    dead._host = ours._host
    dead.renew()
    ours.take()
