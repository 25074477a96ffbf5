"""One life of a run on one host: fetch, wait for the others, train, report, and say how it ended.

SIGTERM, from systemd, from `stop` or from the notice that the machine goes, is passed on to the
trainer, which saves and leaves; then everything is mirrored once more.
"""

import contextlib
import fcntl
import os
import signal
import time
import traceback
from collections.abc import Iterator
from types import FrameType

from bert_jax.errors import UserError
from tpu import names, protocol, strict_json
from tpu.protocol import Done, Order
from tpu.worker import (
    children,
    commands,
    host,
    other_hosts,
    rendezvous,
    secret_manager,
    storage,
    workplace,
)
from tpu.worker.host import Host
from tpu.worker.log import Log
from tpu.worker.mirror import LanesRun, PodRun
from tpu.worker.notice import Notice
from tpu.worker.reporter import Reporter
from tpu.worker.settings import Settings


def run(this: Host, number: int, settings: Settings) -> int:
    """Returns the exit code, which is in the bucket as well.

    Raises:
      UserError: another process runs this very run on this host.
    """
    with _alone(this):
        try:
            order = host.read_order(this)
            host.number(str(number), order, settings)
        except UserError as error:
            ended = _code_of(error)
            Reporter(this, number, Log(this.log), settings.heartbeat).say_exit(ended, str(error))
            return ended
        life = _Life(this, number, order, settings)
        signal.signal(signal.SIGTERM, life.note)
        notice = Notice(settings.metadata, life.heed)
        notice.start()
        try:
            return life.run()
        finally:
            notice.close()


class _Life:
    def __init__(self, this: Host, number: int, order: Order, settings: Settings):
        self._this, self._number, self._order, self._settings = this, number, order, settings
        self._log = Log(this.log)
        self._reporter = Reporter(this, number, self._log, settings.heartbeat)
        self._asked = False
        lanes = order.slice.chips_per_host
        mine = range(number * lanes, (number + 1) * lanes)
        self._pod = PodRun(this, number)
        self._lanes = LanesRun(this, mine, order.slice.chips)

    def note(self, signum: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM: says nothing, since it may have interrupted whoever says."""
        self._asked = True

    def heed(self, reason: str) -> None:
        """Called in a thread: the machine will go."""
        if not self._asked:
            self._log.say(f"{reason}: saving")
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self) -> int:
        """From the first report to the last."""
        this, order = self._this, self._order
        self._log.say(f"host {self._number} of {order.slice.name}, incarnation {this.incarnation}")
        self._reporter.begin()
        try:
            code = self._live()
        except UserError as error:
            self._log.say(f"error: {error}")
            code = _code_of(error)
        except Exception:
            self._log.say(f"error: a fault of the agent:\n{traceback.format_exc()}")
            code = protocol.EXIT_FAILED
        self._reporter.end(code)
        if code == protocol.EXIT_DONE and self._number == 0:
            self._say_done()
        return code

    def _live(self) -> int:
        order, settings = self._order, self._settings
        workplace.arrange(self._this, order)
        run = self._lanes if order.mode == "lanes" else self._pod
        run.fetch()
        secrets = {name: secret_manager.access(place) for name, place in order.secrets.items()}
        self._log.redact = self._lanes.redact = secret_manager.Redactor(secrets)
        if self._asked:
            return protocol.EXIT_SAVED
        self._reporter.enter("waiting")
        rendezvous.await_reports(order, settings.rendezvous)
        rendezvous.await_units(order, settings.rendezvous, lambda: self._asked, self._log.say)
        self._reporter.mirror, self._reporter.progress = run.mirror, run.progress
        if order.mode == "pod":
            return self._train(secrets)
        return self._train_lanes(secrets)

    def _train(self, secrets: dict[str, str]) -> int:
        python = host.python(self._settings)
        command = commands.pod(self._number, self._order, python, self._settings.mount)
        return self._run([command], secrets)

    def _train_lanes(self, secrets: dict[str, str]) -> int:
        python = host.python(self._settings)
        others = [each for each in range(self._order.slice.hosts) if each != self._number]
        self._reporter.besides = lambda: other_hosts.stop_with_them(self._order, others, self.heed)
        code = self._run(commands.lanes(self._this, self._number, self._order, python), secrets)
        if code not in (protocol.EXIT_DONE, protocol.EXIT_FAILED):
            return code
        # A cell that failed is tried once more at the end; until then nobody leaves.
        self._lanes.mirror()
        self._reporter.enter("collecting")
        waiting = other_hosts.Waiting(
            self._order, self._settings.heartbeat, self._stopping, self._log.say
        )
        if self._number != 0:
            return waiting.for_table()
        code = waiting.for_lanes(others)
        if code != protocol.EXIT_DONE:
            return code
        self._lanes.fetch_finished()
        code = self._run([commands.collect(self._order, python)], secrets)
        self._lanes.mirror_table()
        return code

    def _run(self, given: list[children.Command], secrets: dict[str, str]) -> int:
        if self._asked:
            return protocol.EXIT_SAVED
        if self._reporter.phase != "collecting":
            self._reporter.enter("training")
        withs = [
            children.Command(
                name=each.name, words=each.words, environment={**each.environment, **secrets}
            )
            for each in given
        ]
        for each in given:
            self._log.say(f"runs {' '.join(each.words)}")
        return children.run(withs, self._this.work, self._log, self._stopping, self._started)

    def _started(self, pids: list[int]) -> None:
        self._reporter.pids = pids

    def _stopping(self) -> bool:
        if self._asked and self._reporter.phase != "saving":
            self._reporter.phase = "saving"
            self._log.say("asked to stop: the trainer saves and leaves")
        return self._asked

    def _say_done(self) -> None:
        """When the other hosts' last words are in the bucket too, or do not come."""
        order, until = self._order, time.monotonic() + self._settings.rendezvous
        while time.monotonic() < until and len(other_hosts.exits(order)) < order.slice.hosts:
            time.sleep(min(2.0, self._settings.heartbeat))
        done = Done(run_id=order.run_id, incarnation=order.incarnation, time=time.time())
        storage.write(names.RunFolder(order.run_url).done, strict_json.to_text(done))


def _code_of(error: UserError) -> int:
    """Whether another slice could do better (76), or nothing but another order (78)."""
    passing = isinstance(error, storage.StorageError) and not error.lasting
    elsewhere = passing or isinstance(error, rendezvous.NotReady)
    return protocol.EXIT_PREFLIGHT if elsewhere else protocol.EXIT_CONFIG


@contextlib.contextmanager
def _alone(this: Host) -> Iterator[None]:
    """Keeps a second trainer of the same run off this host, should systemd not have done so."""
    this.work.mkdir(parents=True, exist_ok=True)
    with (this.work / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{this.run_id} is trained on this host by another process") from None
        yield
