"""Launches a run on a rented slice, restarts it after a preemption, shows it and ends it."""

import dataclasses
import json
import logging
import os
import re
import shlex
import time

from bert_jax.errors import ConfigError, UserError
from bert_jax.parallel.tpu_slices import Slice
from tpu import TPUCTL, job, restart_policy
from tpu.code_archive import CodeArchive
from tpu.gcloud import Gcloud, GcloudError, explain, reject_secrets
from tpu.job import EXIT_CONFIG, EXIT_FAILED, Job, Rental
from tpu.queued_resource import QueuedResource
from tpu.recipe_check import check_recipe
from tpu.restart_policy import SAVE_SECONDS, STOPPED, History, Limits, Observation, decide

logger = logging.getLogger(__name__)

_TURN_SECONDS = float(os.environ.get("BERT_TPU_TURN_SECONDS", "30"))
_DELETE_SECONDS = 1800
_HOPELESS = ("auth", "api", "quota", "offer", "permission", "flag")
"""Errors after which no slice can be created: the same command would fail in the same way."""
_MULTI_REGIONS = {"us": "us-", "eu": "europe-", "asia": "asia-"}


class Run:
    """Manages one run."""

    def __init__(self, gcloud: Gcloud, run_job: Job, rental: Rental):
        self.gcloud, self.job, self.rental = gcloud, run_job, rental
        self.slice = QueuedResource(gcloud, run_job, rental)

    def restart_until_done(self) -> int:
        """Creates slices and starts the trainers until the run ends; returns the exit code.

        While the cloud cannot be read, nothing is created, stopped or deleted.
        """
        slice_type = self.job.slice_type
        hours = self.rental.hours(slice_type)
        limits = Limits(hosts=slice_type.hosts, max_hours=hours, wait_hours=self.rental.wait_hours)
        history = dataclasses.replace(self.read_history(), exit_code=None, unproductive=0)
        # A launch resumes a run that was stopped.
        self.gcloud.find("storage", "rm", f"{self.job.url}/STOP")
        while history.exit_code is None:
            try:
                seen = self.observe(history.attempt)
                history, action = decide(history, seen, limits, time.time())
                self.write_history(history)
                # The history is saved before the action: a loop that is killed in between repeats
                # it, which is harmless, and never forgets an attempt that costs money.
                logger.info("attempt %d: %s; %s", history.attempt, seen.detail, action)
                history = self._act(history, action, hours)
            except GcloudError as error:
                logger.warning("%s", error)
            time.sleep(_TURN_SECONDS if history.exit_code is None else 0)
        logger.info("%s", history.reason)
        if history.reason != STOPPED:  # then the command `stop` deletes it
            self.delete_and_wait()
        self.write_history(history)
        return history.exit_code

    def _act(self, history: History, action: restart_policy.Action, hours: float) -> History:
        if action == "create":
            try:
                self.slice.create()
            except GcloudError as error:
                if error.kind not in _HOPELESS:
                    raise  # the next turn tries it again
                reason = str(error)
                return dataclasses.replace(
                    history, phase="idle", exit_code=EXIT_CONFIG, reason=reason
                )
        elif action == "start":
            self.start_trainers(history.attempt, hours - history.billed_seconds / 3600)
            return dataclasses.replace(history, phase="training", phase_time=time.time())
        elif action == "delete":
            logger.info("deleting the slice: %s", history.reason)
            self.slice.delete()
        elif action == "save":
            self.stop_trainers(history.attempt)
        return history

    def observe(self, attempt: int) -> Observation:
        """Reads the slice, how hosts of the attempt have exited, and the progress.

        Raises:
          GcloudError: something cannot be read.
        """
        status = self.slice.status()
        names = self._list(f"{self.job.attempt_url(attempt)}/")
        exits = (re.fullmatch(r"host-(\d+)\.exit-(\d+)", name) for name in names)
        seen_hosts = {name.split(".")[0] for name in names}
        hosts = range(self.job.slice_type.hosts)
        kind, advice = explain(status.detail)
        is_hopeless = status.state == "lost" and kind in _HOPELESS
        return Observation(
            slice=status.state,
            detail=status.detail,
            hopeless=f"{status.detail}\n  what to do: {advice}" if is_hopeless else "",
            exit_codes={int(found[1]): int(found[2]) for found in exits if found},
            silent_hosts=tuple(host for host in hosts if f"host-{host}" not in seen_hosts),
            stop_requested=bool(self.gcloud.find("storage", "ls", f"{self.job.url}/STOP")),
            progress=self.progress(),
        )

    def progress(self) -> int:
        """Returns the step of the newest complete checkpoint, or the number of finished jobs."""
        if self.job.is_sharded:
            return len(self._list(f"{self.job.url}/run/**/finished.json"))
        # The checksums are written last: a step without them is not complete.
        pattern = f"{self.job.url}/run/checkpoints/*/checksums.json"
        steps = [url.split("/")[-2] for url in self._list(pattern, full_names=True)]
        return max((int(step) for step in steps if step.isdecimal()), default=0)

    def start_trainers(self, attempt: int, hours: float) -> None:
        """Fetches the code on all hosts and starts their systemd units; does nothing if it has.

        Raises:
          GcloudError: it failed on a host.
        """
        addresses = self.slice.status().addresses
        url = f"{self.job.bucket}/code/{self.rental.code}.tar.gz"
        unit = [f"bert-{self.job.run_id}-{attempt}", str(round(3600 * max(hours, 0.1)))]
        command = (
            f"set -eu; code=$HOME/bert_jax/{self.rental.code[:16]}; "
            "if [ ! -e $code/complete ]; then mkdir -p $code; "
            f"gcloud storage cp {url} $code.tar.gz; tar -xzf $code.tar.gz -C $code; "
            f"touch $code/complete; fi; export BERT_TPU_ATTEMPT={attempt} "
            f"BERT_TPU_HOSTS={','.join(addresses) or 'ADDRESSES'}; "
            f"$code/tpu/host/start.sh {shlex.join([*unit, *self.job.flags()])}"
        )
        logger.info("starting the trainers")
        # The trainers are systemd units that survive the connection. If it breaks, gcloud repeats
        # the command up to 10 times, so starting must do nothing the second time.
        self.slice.ssh(command)

    def stop_trainers(self, attempt: int) -> None:
        """Asks the trainers to save, and waits until they have exited.

        Raises:
          GcloudError: a host cannot be reached.
        """
        unit = f"bert-{self.job.run_id}-{attempt}"
        command = f"! systemctl is-active --quiet {unit} || sudo -n systemctl stop {unit}"
        logger.info("asking the trainers to save")
        self.slice.ssh(command, timeout=SAVE_SECONDS + 300)

    def stop(self, *, save: bool) -> int:
        """Ends the run so that the same launch resumes it; returns the exit code.

        Args:
          save: whether the trainers save first; if a host cannot be reached, the slice is kept.
        """
        history = self.read_history()
        # The restart loop, which may run on another machine, obeys this object.
        self.gcloud.run("storage", "cp", "-", f"{self.job.url}/STOP", stdin="stop\n")
        if save and (self.gcloud.dry_run or self.slice.status().state == "ready"):
            try:
                self.stop_trainers(history.attempt)
            except GcloudError as error:
                logger.error(
                    "%s\nnot all trainers have confirmed the save, so the slice is kept and costs "
                    "money; run `stop` again, or delete it: %s",
                    error,
                    self.command_line("down"),
                )
                return EXIT_FAILED
        self.delete_and_wait()
        self.write_history(dataclasses.replace(history, phase="idle", time=time.time()))
        return job.EXIT_DONE

    def delete_and_wait(self) -> None:
        """Deletes the slice and waits until it is gone.

        Raises:
          UserError: it still exists after half an hour.
        """
        deadline = time.time() + _DELETE_SECONDS
        while True:
            try:
                state = "ready" if self.gcloud.dry_run else self.slice.status().state
                if state == "absent":
                    break
                if state != "deleting":
                    self.slice.delete()
            except GcloudError as error:
                logger.warning("%s", error)
            if self.gcloud.dry_run:
                return
            if time.time() > deadline:
                raise UserError(
                    f"the slice {self.job.slice_name} in {self.rental.zone} is not deleted after "
                    f"30 minutes and may cost money; run again: {self.command_line('down')}"
                )
            time.sleep(_TURN_SECONDS)
        logger.info("no slice is left, so nothing is billed by the hour; kept: %s", self.job.url)

    def command_line(self, verb: str) -> str:
        """Returns a command of the launcher for this run."""
        return f"{TPUCTL} {verb} --bucket {self.job.bucket} --run-id {self.job.run_id}"

    def read_history(self) -> History:
        """Returns the saved history of the restart loop, or an empty one.

        Raises:
          GcloudError: it cannot be read.
        """
        text = self.gcloud.find("storage", "cat", f"{self.job.url}/history.json")
        return History(**json.loads(text)) if text else History()

    def write_history(self, history: History) -> None:
        """Saves the history of the restart loop."""
        text = json.dumps(dataclasses.asdict(history))
        self.gcloud.run("storage", "cp", "-", f"{self.job.url}/history.json", stdin=text)

    def _list(self, url: str, *, full_names: bool = False) -> list[str]:
        lines = (self.gcloud.find("storage", "ls", url) or "").splitlines()
        return [line if full_names else line.rsplit("/", 1)[1] for line in lines if line.strip()]


def load_run(gcloud: Gcloud, bucket: str, run_id: str) -> Run:
    """Returns an existing run, which a dry run reads too.

    Raises:
      UserError: there is none.
    """
    url = f"{bucket}/runs/{run_id}/job.json"
    try:
        text = gcloud.read("storage", "cat", url)
    except GcloudError as error:
        if error.kind != "absent":
            raise
        raise UserError(
            f"{url} does not exist: there is no such run; check --bucket and --run-id, or start "
            f"it with {TPUCTL} launch"
        ) from None
    return Run(gcloud, *job.from_json(text))


def prepare(run: Run, archive: CodeArchive) -> None:
    """Checks what would otherwise fail on rented machines, then uploads the code and job.json.

    Raises:
      UserError: data is missing, the recipe does not fit, or the run id belongs to another job.
    """
    gcloud, new_job = run.gcloud, run.job
    reject_secrets(new_job.arguments, "the job after --")
    check_recipe(new_job.arguments, archive.files)
    for name, url in new_job.data.items():
        _check_data(run, name, url)
    saved = gcloud.find("storage", "cat", f"{new_job.url}/job.json")
    if saved:
        old_job, old_rental = job.from_json(saved)
        differing = [
            field.name
            for field in dataclasses.fields(Job)
            if getattr(old_job, field.name) != getattr(new_job, field.name)
        ]
        if old_rental.code != run.rental.code:
            differing.append("code")
        if differing:
            raise ConfigError(
                f"run id {new_job.run_id!r} already belongs to a different run (other "
                f"{', '.join(differing)}): choose another --run-id, or continue it as it was: "
                f"{run.command_line('babysit')}"
            )
        if old_rental.zone != run.rental.zone:  # a run never has slices in two zones
            Run(gcloud, old_job, old_rental).delete_and_wait()
    code_url = f"{new_job.bucket}/code/{archive.sha}.tar.gz"
    if not gcloud.find("storage", "ls", code_url):
        logger.info("uploading %d files, %.1f MiB", len(archive.files), len(archive.data) / 2**20)
        gcloud.run("storage", "cp", "-", code_url, stdin=archive.data, timeout=600)
    text = job.to_json(new_job, run.rental)
    gcloud.run("storage", "cp", "-", f"{new_job.url}/job.json", stdin=text)


def _check_data(run: Run, name: str, url: str) -> None:
    """Checks that a data folder exists, with the subfolders that the arguments refer to."""
    listed = run.gcloud.find("storage", "ls", f"{url}/")
    if run.gcloud.dry_run:
        return
    if listed is None:
        raise ConfigError(
            f"--data {name}: there is nothing at {url}; gcloud storage rsync -r FOLDER {url}"
        )
    names = {line.rstrip("/").rsplit("/", 1)[1] for line in listed.splitlines() if line.strip()}
    for argument in run.job.arguments:
        for reference, path in job.DATA_REFERENCE.findall(argument):
            top = path.strip("/").split("/")[0]
            if reference == name and top and top not in names:
                raise ConfigError(
                    f"--data {name}: {url} has no {top}, which @data/{name}{path} refers to"
                )


def choose_zone(slice_type: Slice, location: str, bucket: str, zone: str | None) -> str:
    """Returns the zone: the requested one, or the first known one in the bucket's region.

    Raises:
      ConfigError: it is in another region than the bucket, or the slice cannot be rented here.
    """
    generation = slice_type.generation
    if "tpu-api" not in generation.backends:
        raise ConfigError(
            f"{slice_type.name}: {generation.name} is not offered by the Cloud TPU API, which this "
            "launcher uses, only by Compute Engine and GKE; for GKE see xpk, "
            "https://github.com/AI-Hypercomputer/xpk"
        )
    zones = (zone,) if zone else generation.zones
    location = location.lower()
    prefix = _MULTI_REGIONS.get(location, f"{location}-")
    # NAM4, EUR5, ASIA1 are pairs of regions, which are not checked further.
    is_pair = "-" not in location and location not in _MULTI_REGIONS
    close = [each for each in zones if is_pair or each.startswith(prefix)]
    if close:
        return close[0]
    if zone:
        raise ConfigError(
            f"{bucket} is in {location}, but zone {zone} is not: traffic between regions is slow "
            f"and costs money; use a bucket in {zone.rpartition('-')[0]}, or a zone in {location}"
        )
    raise ConfigError(
        f"{bucket} is in {location}, where {generation.name} is not known to be offered; use a "
        f"bucket in one of {', '.join(sorted({each.rpartition('-')[0] for each in zones}))}, or "
        "pass --zone"
    )
