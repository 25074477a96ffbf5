"""The verbs that make and look after runs: doctor, up, sync, preflight, run, launch, babysit."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bert_jax.errors import ConfigError, UserError
from bert_jax.hardware.tpu_slices import Slice, find_slice
from tpu import names
from tpu.launcher import act, check, cost, doctor, manifest, observe, options
from tpu.launcher.babysit import Babysitter, load_loop, make_limits, say
from tpu.launcher.backend import LiveSlice, backend_name
from tpu.launcher.bucket import Bucket
from tpu.launcher.bundle import Bundle, pack
from tpu.launcher.context import Run, make_run
from tpu.launcher.gce import region_of
from tpu.launcher.gcloud import Runner, must
from tpu.launcher.lease import Lease
from tpu.launcher.recipe import check_recipe
from tpu.launcher.regions import choose_zones
from tpu.launcher.secrecy import refuse_secrets
from tpu.launcher.timing import Timing
from tpu.protocol import EXIT_DONE, EXIT_FAILED, EXIT_PREFLIGHT

ROOT = Path(__file__).resolve().parents[2]


def plan_run(args: argparse.Namespace, runner: Runner) -> tuple[Run, Bundle]:
    """A run by its flags, with its code packed; nothing is written yet.

    Raises:
      UserError: a flag or an argument of the recipe is wrong, or the bucket is elsewhere.
    """
    words = options.checked_arguments(args.arguments)
    if not args.run_id:
        args.run_id = options.default_run_id(words)
        say(f"run id: {args.run_id} (give --run-id to choose one)")
    folder = options.checked_place(args)
    options.checked_rest(args)
    kind = find_slice(args.slice)
    backend = backend_name(args.backend, kind)
    data, held = options.pairs(args.data, "--data"), options.pairs(args.env_secret, "--env-secret")
    wanted = options.checked_zones(args.zones)
    refuse_secrets(words, os.environ, "the arguments after --")
    project = _project(args)
    zones = choose_zones(kind, _location(args, kind, wanted), names.url(args.bucket), wanted)
    args.zone = zones[0]
    code = pack(ROOT)
    found = manifest.Manifest(
        run_id=args.run_id,
        slice=kind.name,
        backend="gce" if backend == "gce" else "tpu-api",
        mode="lanes" if options.MODES[words[0]] == "lanes" else "pod",
        arguments=words,
        bundle=code.sha,
        data=data,
        secrets=held,
        requires=manifest.required_versions(ROOT),
        project=project,
        zones=zones,
        capacity=args.capacity,
        service_account=args.service_account,
        internal_ips=args.internal_ips,
        iap=args.iap,
        max_hours=args.max_hours,
        max_usd=args.max_usd,
        wait_hours=args.wait_hours,
        coordinator_port=args.coordinator_port,
        created=manifest.now_text(),
    )
    run = make_run(runner, found, folder)
    make_limits(run, zones, args.keep)  # --max-usd without a price is found out now
    run.manifest.order(folder.url, 0, tuple(f"host-{i}" for i in range(kind.hosts)))
    check_recipe(words, code, ROOT)
    return run, code


def find_run(args: argparse.Namespace, runner: Runner) -> Run:
    """A run that was begun before, by its manifest, which a dry run reads as well."""
    folder = options.checked_place(args)
    found = manifest.load(Bucket(args.reader), folder)
    if args.max_hours is not None or args.max_usd is not None:
        hours = found.max_hours if args.max_hours is None else args.max_hours
        usd = found.max_usd if args.max_usd is None else args.max_usd
        found = replace(found, max_hours=hours, max_usd=usd)
    # The cloud of a dry run has a slice of this kind, there.
    args.slice, args.zone = found.slice, found.zones[0]
    return make_run(runner, found, folder)


def doctor_verb(args: argparse.Namespace, runner: Runner) -> int:
    """Prints all checks; 1 when one failed."""
    run, _ = plan_run(args, runner)
    failed = False
    for found in doctor.examine(run, bool(args.zones)):
        if not runner.dry:
            print(found, flush=True)
        failed |= found.level == "FAIL"
    if not runner.dry:
        print(cost.bill(run.manifest))
    return EXIT_FAILED if failed and not runner.dry else EXIT_DONE


def up(args: argparse.Namespace, runner: Runner) -> int:
    """Makes the slice and waits until it is ready."""
    return _begin(args, runner, "ready")


def launch(args: argparse.Namespace, runner: Runner) -> int:
    """Everything, until the run is done."""
    return _begin(args, runner, "end")


def babysit(args: argparse.Namespace, runner: Runner) -> int:
    """Looks after a run that was begun before."""
    run = find_run(args, runner)
    code = names.bundle_url(run.bucket_url, run.manifest.bundle)
    if not run.bucket.names(code) and not runner.dry:
        raise UserError(
            f"{code} is not there, and hosts could not fetch it: the upload of the run's code was "
            f"cut short. From the checkout that launched it: {run.words('sync')}"
        )
    return _look_after(args, run, "end", run.manifest.zones)


def sync(args: argparse.Namespace, runner: Runner) -> int:
    """Code to the bucket, and to the hosts if there are any."""
    run = find_run(args, runner)
    code = pack(ROOT)
    if code.sha != run.manifest.bundle and not runner.dry:
        raise UserError(
            f"the code here is {code.sha[:12]}..., the run's is {run.manifest.bundle[:12]}...: a "
            "run keeps the code that it began with; take the changes back, or launch a new run"
        )
    upload(run, code)
    live = the_slice(run)
    if live is not None:
        return _told(act.fetch(run, live))
    say("no slice is ready yet; its hosts fetch the code when one is")
    return EXIT_DONE


def preflight(args: argparse.Namespace, runner: Runner) -> int:
    """Are all hosts fit to train; what each found is printed."""
    run = find_run(args, runner)
    live = _need_slice(run)
    act.write_order(run, live)
    failure = act.fetch(run, live) or act.agent(run, live, "preflight")
    found = [each for each in observe.reports(run, live.incarnation) if "problems" in each]
    for report in sorted(found, key=lambda each: each["host"]):
        fit = "fit" if report["ok"] else "NOT FIT"
        print(f"host {report['host']} ({report['address']}): {fit}")
        for problem in [*report["problems"], *report["warnings"]]:
            print("  {check}: found {found}; expected {expected}; {fix}".format(**problem))
    silent = set(range(run.manifest.kind.hosts)) - {each["host"] for each in found}
    if silent and not runner.dry:
        names_ = ", ".join(f"host {i} ({live.addresses[i]})" for i in sorted(silent))
        say(f"{names_} did not report")
        return _told(failure) or EXIT_PREFLIGHT
    return _told(failure)


def run_verb(args: argparse.Namespace, runner: Runner) -> int:
    """Starts the trainers; a second time does nothing."""
    run = find_run(args, runner)
    live = _need_slice(run)
    code = _told(act.start(run, live))
    if code == EXIT_DONE:
        say(f"started; nobody restarts it when the slice is taken away: {run.words('babysit')}")
    return code


def the_slice(run: Run) -> LiveSlice | None:
    """The run's slice, if one is ready."""
    found = observe.slices(run, run.manifest.zones)
    return next((each for each in reversed(found) if each.status == "ready"), None)


def upload(run: Run, code: Bundle) -> None:
    """The bundle, once: its name is its content."""
    url = names.bundle_url(run.bucket_url, code.sha)
    if run.bucket.names(url):
        return
    say(f"uploading {len(code.files)} files of code, {len(code.data) / 2**20:.1f} MiB")
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        file.write(code.data)
        file.flush()
        run.bucket.upload("CODE.tar.gz" if run.runner.dry else file.name, url)


def _project(args: argparse.Namespace) -> str:
    """--project, or the one that gcloud is set to."""
    if args.project:
        return options.checked_project(args.project)
    try:
        said = must(args.reader, ["gcloud", "config", "get-value", "project"])
        return options.checked_project(said.strip())
    except UserError as error:
        return _made_up(args, "my-project", error)


def _location(args: argparse.Namespace, kind: Slice, wanted: tuple[str, ...]) -> str:
    """Where the bucket is."""
    try:
        return Bucket(args.reader).location(names.url(args.bucket))
    except UserError as error:
        return _made_up(args, region_of((wanted or kind.generation.zones)[0]), error)


def _made_up(args: argparse.Namespace, instead: str, error: UserError) -> str:
    """A dry run goes on where nobody is logged in and no bucket is made yet."""
    if not args.dry_run:
        raise error
    say(f"{str(error).splitlines()[0]}\n  a dry run goes on, as if it were {instead}")
    return instead


def _begin(args: argparse.Namespace, runner: Runner, until: str) -> int:
    run, code = plan_run(args, runner)
    checks = list(doctor.examine(run, bool(args.zones)))
    if not runner.dry:
        for found in checks:
            if found.level == "WARN":
                print(found, file=sys.stderr)
        check.refuse_failures(checks)
        zones = check.usable(run.manifest.zones, checks)
        run = replace(run, manifest=replace(run.manifest, zones=zones))
    cost.confirm(run.manifest, args.yes or runner.dry)
    upload(run, code)  # before anybody can go on with the run
    holds = manifest.settle(run.bucket, run.folder, run.manifest)
    return _look_after(args, replace(run, manifest=holds), until, run.manifest.zones)


def _look_after(args: argparse.Namespace, run: Run, until: str, zones: tuple[str, ...]) -> int:
    timing: Timing = args.timing
    lease = Lease(
        run.bucket, run.folder.lease, clock=timing.clock, sleep=timing.sleep, wait=timing.wait
    )
    lease.take(by_force=args.take_over)
    limits = make_limits(run, zones, args.keep)
    try:
        manifest.write(run.bucket, run.folder, run.manifest)
        run.bucket.remove(run.stop_url)
        sitter = Babysitter(run, limits, lease, clock=timing.clock, sleep=timing.sleep)
        code = sitter.look_after(until)
    except KeyboardInterrupt:
        price = run.usd_per_hour
        each = "" if price is None else f", at ${price:.2f} an hour"
        say(
            f"\nnobody looks after the run now, but it goes on{each}:\n"
            f"  go on looking after it: {run.words('babysit')}\n"
            f"  save, and end it:       {run.words('stop')}"
        )
        code = 130
    finally:
        _quietly(lease.give)
    return code


def _need_slice(run: Run) -> LiveSlice:
    live = the_slice(run)
    if live is None:
        state = load_loop(run, 0.0)
        raise UserError(
            f"no slice of {run.manifest.run_id} is ready (the loop's last word: {state.phase}); "
            f"{run.words('babysit')} makes one, `status` shows where it stands"
        )
    return live


def _told(failure: act.Failure | None) -> int:
    if failure is None:
        return EXIT_DONE
    say(failure.text)
    return failure.code


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except (UserError, ConfigError) as error:
        say(str(error))
