"""Parses the launcher's command line and runs its commands; see tpu/README.md.

    tpu/tpuctl launch --slice v6e-16 --bucket gs://my-bucket --run-id mine \\
        --data corpus=gs://my-bucket/data/corpus -- \\
        pretrain configs/pretrain/bert.py --arg size=base corpus=@data/corpus/train
"""

import argparse
import dataclasses
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError, UserError
from bert_jax.io.log_handler import set_up_logging
from bert_jax.parallel.tpu_slices import all_slices, find_slice, prices_as_of
from tpu import TPUCTL, code_archive, launcher, worker
from tpu.gcloud import Gcloud, redact
from tpu.job import CAPACITIES, EXIT_DONE, Job, Rental
from tpu.launcher import Run
from tpu.restart_policy import describe_exit

logger = logging.getLogger(__name__)

_INTERRUPTED = 130
_LOG_SECONDS = 30
_PROJECT = re.compile(r"[a-z][a-z0-9.:-]{4,62}")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z0-9]+")
_ACCOUNT = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+")


class _Parser(argparse.ArgumentParser):
    """Parses flags without abbreviations, and reports errors as one line."""

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    set_up_logging("tpu", with_time=True)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        split = words.index("--") if "--" in words else len(words)
        args = _parser().parse_args(words[:split])
        args.job = tuple(words[split + 1 :])
        return args.function(args)
    except UserError as error:
        # A message may repeat a value that the user typed, which could be a secret.
        print(f"error: {redact(str(error), os.environ)}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=TPUCTL,
        description="Rents TPU slices with gcloud and trains on them. Flags may also be set by "
        "variables: BERT_TPU_BUCKET for --bucket.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, function: Any, summary: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n  {TPUCTL} {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(function=function)
        return added

    run = "--bucket gs://my-bucket --run-id mine"
    launch = command(
        "launch", _launch, "rent a slice, train, restart after preemptions, delete the slice",
        f"--slice v6e-16 {run} -- pretrain configs/pretrain/bert.py ...",
    )  # fmt: skip
    _add_rental_flags(launch)
    _add_job_flags(launch)
    babysit = command("babysit", _babysit, "manage a run again that was launched before", run)
    _add_limits(babysit, hours=None)
    status = command(
        "status", _status, "show the slice, the hosts, the checkpoint and the cost", run
    )
    logs = command("logs", _logs, "show the log of a host", f"{run} --host 2 --follow")
    logs.add_argument("--host", type=int, default=0, help="number of the host (default: 0)")
    logs.add_argument("--attempt", type=int, help="number of the slice (default: the newest)")
    logs.add_argument("--lines", type=int, default=100, help="last lines to show (default: 100)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    stop = command(
        "stop", _stop, "save, end the training and delete the slice; launch resumes", run
    )
    down = command("down", _down, "delete the slice without saving", run)
    for added in (launch, babysit, status, logs, stop, down):
        _add_run_flags(added)
        added.add_argument("--dry-run", action="store_true", help="print commands, change nothing")
        added.add_argument("--verbose", action="store_true", help="print each command that is run")
    prices = command("prices", _prices, "print the list prices of all slices", "--hours 12")
    prices.add_argument("--hours", type=float, default=12.0, help="hours (default: 12)")
    work = command(
        "work", _work, "run the job on this machine, a host of the slice; SkyPilot's tasks call it",
        f"--slice v6e-16 {run} -- pretrain configs/pretrain/bert.py ...",
    )  # fmt: skip
    _add_run_flags(work)
    _add_job_flags(work)
    # The launch scripts pass it to `launch`; SkyPilot limits the time itself.
    work.add_argument("--max-hours", help=argparse.SUPPRESS)
    return parser


def _add(parser: argparse.ArgumentParser, flag: str, **settings: Any) -> None:
    """Adds a flag whose default can be set by the variable BERT_TPU_<FLAG>."""
    variable = f"BERT_TPU_{flag.removeprefix('--').replace('-', '_').upper()}"
    value = os.environ.get(variable)
    if settings.get("action") == "store_true":
        settings["default"] = (value or "").lower() in ("1", "true", "yes")
    elif value:
        settings["default"] = value  # argparse converts it, but does not check `choices`
        if value not in settings.get("choices", [value]):
            raise ConfigError(f"{variable}={value!r}: expected {', '.join(settings['choices'])}")
    parser.add_argument(flag, **settings)


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    _add(parser, "--bucket", help="bucket of the run, gs://NAME")
    _add(parser, "--run-id", help="name of the run: a-z, 0-9 and -")


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    _add(parser, "--slice", help=f"slice type, such as v6e-16; `{TPUCTL} prices` lists all")
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME=gs://...",
        help="folder to copy to each host; arguments refer to it as @data/NAME (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--env-secret", action="append", default=[], metavar="NAME=projects/...",
        help="environment variable that the hosts read from Secret Manager (repeatable)",
    )  # fmt: skip


def _add_rental_flags(parser: argparse.ArgumentParser) -> None:
    _add(parser, "--zone", help="zone (default: the first known one in the bucket's region)")
    _add(parser, "--project", help="Google Cloud project (default: the one gcloud is set to)")
    _add(
        parser, "--capacity", choices=CAPACITIES, default="spot",
        help="kind of capacity (default: spot, which is cheap and can be preempted)",
    )  # fmt: skip
    _add_limits(parser, hours=12.0)
    _add(parser, "--wait-hours", type=float, default=24.0, help="longest time in the queue")
    _add(parser, "--service-account", help="account of the hosts (default: the project's)")
    _add(parser, "--internal-ips", action="store_true", help="hosts without external addresses")
    _add(parser, "--iap", action="store_true", help="ssh through Identity-Aware Proxy")
    parser.add_argument("--yes", action="store_true", help="start without asking about the cost")


def _add_limits(parser: argparse.ArgumentParser, hours: float | None) -> None:
    default = "the run's own" if hours is None else f"{hours:g}"
    _add(
        parser, "--max-hours", type=float, default=hours,
        help=f"limit on the hours of all slices of the run together (default: {default})",
    )  # fmt: skip
    _add(parser, "--max-usd", type=float, help="limit on their cost at list price")


def _run_name(args: argparse.Namespace) -> tuple[str, str]:
    for name in ("bucket", "run_id"):
        if not getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is missing; pass it, or set BERT_TPU_{name.upper()}")
    return args.bucket.rstrip("/"), args.run_id


def _make_job(args: argparse.Namespace) -> Job:
    bucket, run_id = _run_name(args)
    if not args.slice:
        raise ConfigError("--slice is missing; pass --slice v6e-16, or set BERT_TPU_SLICE")
    data = {name: url.rstrip("/") for name, url in _assignments(args.data, "--data").items()}
    return Job(
        bucket=bucket,
        run_id=run_id,
        slice=args.slice,
        arguments=args.job,
        data=data,
        secrets=_assignments(args.env_secret, "--env-secret"),
    )


def _assignments(words: Sequence[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in found:
            raise ConfigError(f"{flag} {name}: expected NAME=VALUE, with a different name each")
        found[name] = value
    return found


def _check_rental_flags(args: argparse.Namespace) -> None:
    for name in ("max_hours", "max_usd", "wait_hours"):
        value = getattr(args, name, None)
        if value is not None and not 0 < value < 1e6:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {value:g}: expected more than 0 and less than 1e6")
    zone, account = getattr(args, "zone", None), getattr(args, "service_account", None)
    if zone and not _ZONE.fullmatch(zone):
        raise ConfigError(f"--zone {zone!r} is not a zone; expected a name like us-central1-b")
    if account and not _ACCOUNT.fullmatch(account):
        raise ConfigError(
            f"--service-account {account!r}: expected NAME@PROJECT.iam.gserviceaccount.com"
        )


def _launch(args: argparse.Namespace) -> int:
    gcloud = Gcloud(dry_run=args.dry_run, verbose=args.verbose)
    job = _make_job(args)
    _check_rental_flags(args)
    project, zone = _project(args, gcloud), _zone(args, gcloud, job)
    archive = code_archive.pack(Path(__file__).resolve().parents[1])
    rental = Rental(
        code=archive.sha,
        project=project,
        zone=zone,
        capacity=args.capacity,
        max_hours=args.max_hours,
        max_usd=args.max_usd,
        wait_hours=args.wait_hours,
        service_account=args.service_account,
        internal_ips=args.internal_ips,
        iap=args.iap,
    )
    run = Run(gcloud, job, rental)
    cost = _format_cost(run)  # also checks --max-usd
    if not args.dry_run:
        _confirm(cost, args.yes)
    launcher.prepare(run, archive)
    if not args.dry_run:
        return _manage(run)
    print(f"{cost}\nthe commands of one attempt:", file=sys.stderr)
    run.slice.create()
    run.start_trainers(1, args.max_hours)
    run.stop_trainers(1)
    run.delete_and_wait()
    return EXIT_DONE


def _project(args: argparse.Namespace, gcloud: Gcloud) -> str:
    project = args.project
    if not project:
        try:
            project = gcloud.read("config", "get-value", "project").strip()
        except UserError as error:
            project = _dry_run_default(args, "my-project", error)
    if not _PROJECT.fullmatch(project):
        error = ConfigError(
            f"project: found {project!r}; run `gcloud config set project PROJECT`, or pass "
            "--project"
        )
        project = _dry_run_default(args, "my-project", error)
    return project


def _zone(args: argparse.Namespace, gcloud: Gcloud, job: Job) -> str:
    generation = find_slice(job.slice).generation
    try:
        words = ("storage", "buckets", "describe", job.bucket, "--format=value(location)")
        location = gcloud.read(*words).strip()
    except UserError as error:
        default = (args.zone or generation.zones[0]).rpartition("-")[0]
        location = _dry_run_default(args, default, error)
    return launcher.choose_zone(job.slice_type, location, job.bucket, args.zone)


def _dry_run_default(args: argparse.Namespace, default: str, error: UserError) -> str:
    """Returns a default in a dry run, which works without a login and without a bucket."""
    if not args.dry_run:
        raise error
    logger.warning("%s\n  the dry run continues with %s", str(error).splitlines()[0], default)
    return default


def _format_cost(run: Run) -> str:
    slice_type, rental = run.job.slice_type, run.rental
    price, hours = rental.usd_per_hour(slice_type), rental.hours(slice_type)
    size = f"{slice_type.name} ({slice_type.chips} chips, {slice_type.hosts} hosts)"
    if price is None:
        return f"cost: {size}, {rental.capacity}: no price is published; at most {hours:g} h"
    note = ""
    if rental.capacity == "spot" and slice_type.generation.usd_spot is None:
        note = "\n      no spot price is published; this is the on-demand price, spot is cheaper"
    return (
        f"cost: {size}, {rental.capacity}: ${price:.2f} an hour; at most {hours:.2f} h: "
        f"${hours * price:.2f} (list price as of {prices_as_of()}; storage and traffic are extra)"
        f"{note}"
    )


def _confirm(cost: str, assume_yes: bool) -> None:
    print(cost, file=sys.stderr, flush=True)
    if assume_yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            "cannot ask for confirmation: stdin is not a terminal; pass --yes to accept the cost"
        )
    print("continue? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        reply = input()
    except EOFError:  # Ctrl-D
        reply = ""
    if reply.strip().lower() not in ("y", "yes"):
        raise UserError("nothing was created")


def _manage(run: Run) -> int:
    try:
        return run.restart_until_done()
    except KeyboardInterrupt:
        price = run.rental.usd_per_hour(run.job.slice_type)
        logger.warning(
            "the run is no longer managed, but it continues%s:\n"
            "  manage it again:  %s\n  save and end it:  %s",
            "" if price is None else f" and costs ${price:.2f} an hour",
            run.command_line("babysit"),
            run.command_line("stop"),
        )
        return _INTERRUPTED


def _load(args: argparse.Namespace) -> Run:
    return launcher.load_run(Gcloud(dry_run=args.dry_run, verbose=args.verbose), *_run_name(args))


def _babysit(args: argparse.Namespace) -> int:
    _check_rental_flags(args)
    run = _load(args)
    given = {name: getattr(args, name) for name in ("max_hours", "max_usd")}
    limits = {name: value for name, value in given.items() if value is not None}
    run = Run(run.gcloud, run.job, dataclasses.replace(run.rental, **limits))
    return EXIT_DONE if args.dry_run else _manage(run)


def _status(args: argparse.Namespace) -> int:
    run = _load(args)
    history = run.read_history()
    seen = run.observe(history.attempt)
    if args.dry_run:
        return EXIT_DONE
    hours, price = history.billed_seconds / 3600, run.rental.usd_per_hour(run.job.slice_type)
    cost = "" if price is None else f", about ${hours * price:.2f}"
    progress = "finished jobs" if run.job.is_sharded else "newest checkpoint"
    print(f"{run.job.url}: bert-jax {' '.join(run.job.arguments)}")
    print(f"slice: {run.job.slice} in {run.rental.zone}, attempt {history.attempt}: {seen.detail}")
    print(f"{progress}: {seen.progress}")
    print(f"billed: {hours:.2f} of {run.rental.hours(run.job.slice_type):.2f} h{cost}")
    for host, code in sorted(seen.exit_codes.items()):
        print(f"host {host}: {describe_exit(code)}")
    if history.reason:
        print(f"last event: {history.reason}")
    return EXIT_DONE


def _logs(args: argparse.Namespace) -> int:
    run = _load(args)
    attempt = run.read_history().attempt if args.attempt is None else args.attempt
    url = f"{run.job.attempt_url(attempt)}/host-{args.host}.log"
    text = run.gcloud.find("storage", "cat", url)
    if text is None:
        raise UserError(f"{url} does not exist; hosts upload their logs once a minute")
    print("\n".join(text.splitlines()[-args.lines :]), flush=True)
    while args.follow and not args.dry_run:
        time.sleep(_LOG_SECONDS)
        longer = run.gcloud.find("storage", "cat", url) or ""
        print(longer[len(text) :], end="", flush=True)
        text = longer
    return EXIT_DONE


def _stop(args: argparse.Namespace) -> int:
    return _load(args).stop(save=True)


def _down(args: argparse.Namespace) -> int:
    return _load(args).stop(save=False)


def _prices(args: argparse.Namespace) -> int:
    hours = args.hours
    print(f"| slice | chips | spot, 1 h | spot, {hours:g} h | on demand, 1 h | {hours:g} h |")
    print("|---|---|---|---|---|---|")
    for slice_type in all_slices().values():
        prices = (slice_type.usd_per_hour(spot=True), slice_type.usd_per_hour(spot=False))
        cells = [
            "not published" if price is None else f"${price * factor:,.2f}"
            for price in prices
            for factor in (1, hours)
        ]
        print(f"| {slice_type.name} | {slice_type.chips} | {' | '.join(cells)} |")
    print(f"\nList prices, US, as of {prices_as_of()}.")
    return EXIT_DONE


def _work(args: argparse.Namespace) -> int:
    return worker.work(_make_job(args))


if __name__ == "__main__":
    sys.exit(main())
