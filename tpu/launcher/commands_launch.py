"""Implements the commands that launch and manage runs: doctor, up, sync, preflight, run, ...

Each command takes a `CommandContext` and returns the exit code.
"""

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.parallel.tpu_slices import Slice, find_slice
from tpu import bucket_layout
from tpu.launcher import flag_values
from tpu.launcher.checks import check_result, doctor
from tpu.launcher.checks.recipe import check_recipe
from tpu.launcher.cloud.backend import LiveSlice, resolve_backend
from tpu.launcher.cloud.bucket import Bucket
from tpu.launcher.cloud.gce import region_of
from tpu.launcher.cloud.gcloud import check_output
from tpu.launcher.cloud.redaction import reject_secrets
from tpu.launcher.cloud.regions import choose_zones
from tpu.launcher.command_context import CommandContext
from tpu.launcher.restarts import actions, observe
from tpu.launcher.restarts.lease import Lease
from tpu.launcher.restarts.restart_loop import RestartLoop, load_loop_state, make_limits
from tpu.launcher.runs import cost, manifest
from tpu.launcher.runs.bundle import Bundle, pack
from tpu.launcher.runs.run_context import RunContext, make_run_context
from tpu.protocol import EXIT_DONE, EXIT_FAILED, EXIT_PREFLIGHT

logger = logging.getLogger(__name__)

REPO_ROOT = Path(__file__).resolve().parents[2]
_INTERRUPTED = 130


def plan_run(context: CommandContext) -> tuple[RunContext, Bundle]:
    """Returns the run that the flags describe, and its packed code; writes nothing.

    Raises:
      UserError: a flag or an argument of the recipe is wrong, or a zone is far from the bucket.
    """
    options = context.options
    job_arguments = flag_values.validate_job_arguments(options.job_arguments)
    if not options.run_id:
        options = replace(options, run_id=flag_values.default_run_id(job_arguments))
        logger.info("run id: %s (pass --run-id to choose one)", options.run_id)
    folder = flag_values.parse_run_folder(options)
    slice_type = find_slice(flag_values.validate_launch_flags(options))
    backend = resolve_backend(options.backend, slice_type)
    data = flag_values.parse_assignments(options.data, "--data")
    secrets = flag_values.parse_assignments(options.env_secret, "--env-secret")
    requested_zones = flag_values.parse_zones(options.zones)
    reject_secrets(job_arguments, os.environ, "the arguments after --")
    project = _project(context)
    bucket_url = bucket_layout.validate_url(str(options.bucket))
    location = _bucket_location(context, bucket_url, slice_type, requested_zones)
    zones = choose_zones(slice_type, location, bucket_url, requested_zones)
    context.simulate_cloud(slice_type, folder.url, zones[0])
    bundle = pack(REPO_ROOT)
    new_manifest = manifest.RunManifest(
        run_id=str(options.run_id),
        slice=slice_type.name,
        backend="gce" if backend == "gce" else "tpu-api",
        mode=flag_values.JOB_MODES[job_arguments[0]],
        arguments=job_arguments,
        bundle=bundle.sha,
        data=data,
        secrets=secrets,
        required_versions=manifest.read_required_versions(REPO_ROOT),
        project=project,
        zones=zones,
        capacity=options.capacity,
        service_account=options.service_account,
        internal_ips=options.internal_ips,
        iap=options.iap,
        max_hours=12.0 if options.max_hours is None else options.max_hours,
        max_usd=options.max_usd,
        wait_hours=options.wait_hours,
        coordinator_port=options.coordinator_port,
        created=manifest.utc_timestamp(),
    )
    run = make_run_context(context.runner, new_manifest, folder)
    # These two raise now what would otherwise be found after the slice is paid for.
    make_limits(run, zones, options.keep_slice)
    run.manifest.job_spec(folder.url, 0, tuple(f"host-{i}" for i in range(slice_type.hosts)))
    check_recipe(job_arguments, bundle, REPO_ROOT)
    return run, bundle


def load_run(context: CommandContext) -> RunContext:
    """Returns an existing run by its manifest, which a dry run reads too."""
    options = context.options
    folder = flag_values.parse_run_folder(options)
    saved_manifest = manifest.load(Bucket(context.reader), folder)
    if options.max_hours is not None or options.max_usd is not None:
        hours = saved_manifest.max_hours if options.max_hours is None else options.max_hours
        usd = saved_manifest.max_usd if options.max_usd is None else options.max_usd
        saved_manifest = replace(saved_manifest, max_hours=hours, max_usd=usd)
    context.simulate_cloud(saved_manifest.slice_type, folder.url, saved_manifest.zones[0])
    return make_run_context(context.runner, saved_manifest, folder)


def doctor_command(context: CommandContext) -> int:
    """Prints all checks; returns 1 if one failed."""
    run, _ = plan_run(context)
    failed = False
    for check in doctor.run_checks(run, bool(context.options.zones)):
        if not context.runner.dry:
            print(check, flush=True)
        failed |= check.level == "FAIL"
    if not context.runner.dry:
        print(cost.format_cost(run.manifest))
    return EXIT_FAILED if failed and not context.runner.dry else EXIT_DONE


def up(context: CommandContext) -> int:
    """Creates the slice and waits until it is ready."""
    return _launch(context, "ready")


def launch(context: CommandContext) -> int:
    """Does everything until the run is done, including restarts."""
    return _launch(context, "end")


def babysit(context: CommandContext) -> int:
    """Manages and restarts an existing run."""
    run = load_run(context)
    bundle_url = bucket_layout.bundle_url(run.bucket_url, run.manifest.bundle)
    if not run.bucket.list_names(bundle_url) and not context.runner.dry:
        raise UserError(
            f"{bundle_url} does not exist, so hosts cannot fetch the code: its upload was "
            f"interrupted. From the checkout that launched the run: {run.command_line('sync')}"
        )
    return _run_restart_loop(context, run, "end", run.manifest.zones)


def sync(context: CommandContext) -> int:
    """Uploads the code, and installs it on the hosts if a slice is ready."""
    run = load_run(context)
    bundle = pack(REPO_ROOT)
    if bundle.sha != run.manifest.bundle and not context.runner.dry:
        raise UserError(
            f"this checkout has the code {bundle.sha[:12]}..., the run was launched with "
            f"{run.manifest.bundle[:12]}...: a run cannot change its code; undo the changes, or "
            "launch a new run"
        )
    upload_bundle(run, bundle)
    live = ready_slice(run)
    if live is not None:
        return _exit_code_of(actions.fetch_code(run, live))
    logger.info("no slice is ready yet; its hosts will fetch the code once there is one")
    return EXIT_DONE


def preflight(context: CommandContext) -> int:
    """Checks whether all hosts can train, and prints each host's report."""
    run = load_run(context)
    live = _require_slice(run)
    actions.write_job_spec(run, live)
    failure = actions.fetch_code(run, live) or actions.run_agent(run, live, "preflight")
    reports = [each for each in observe.read_reports(run, live.attempt) if "problems" in each]
    for report in sorted(reports, key=lambda each: each["host"]):
        result = "ready" if report["ok"] else "NOT READY"
        print(f"host {report['host']} ({report['address']}): {result}")
        for problem in [*report["problems"], *report["warnings"]]:
            print("  {check}: found {found}; expected {expected}; {fix}".format(**problem))
    missing = set(range(run.manifest.slice_type.hosts)) - {each["host"] for each in reports}
    if missing and not context.runner.dry:
        hosts = ", ".join(f"host {i} ({live.addresses[i]})" for i in sorted(missing))
        logger.warning("%s did not report", hosts)
        return _exit_code_of(failure) or EXIT_PREFLIGHT
    return _exit_code_of(failure)


def run_command(context: CommandContext) -> int:
    """Starts the trainers; does nothing if they have been started before."""
    run = load_run(context)
    exit_code = _exit_code_of(actions.start_trainers(run, _require_slice(run)))
    if exit_code == EXIT_DONE:
        logger.info("started; `%s` restarts it when it is preempted", run.command_line("babysit"))
    return exit_code


def ready_slice(run: RunContext) -> LiveSlice | None:
    """Returns the run's newest slice that is ready."""
    slices = observe.list_slices(run, run.manifest.zones)
    return next((each for each in reversed(slices) if each.status == "ready"), None)


def upload_bundle(run: RunContext, bundle: Bundle) -> None:
    """Uploads the code unless it is there: a bundle is named by the hash of its content."""
    url = bucket_layout.bundle_url(run.bucket_url, bundle.sha)
    if run.bucket.list_names(url):
        return
    logger.info("uploading %d files of code, %.1f MiB", len(bundle.files), len(bundle.data) / 2**20)
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
        file.write(bundle.data)
        file.flush()
        run.bucket.upload("CODE.tar.gz" if run.runner.dry else file.name, url)


def _project(context: CommandContext) -> str:
    if context.options.project:
        return flag_values.validate_project(context.options.project)
    try:
        output = check_output(context.reader, ["gcloud", "config", "get-value", "project"])
        return flag_values.validate_project(output.strip())
    except UserError as error:
        return _dry_run_default(context, "my-project", error)


def _bucket_location(
    context: CommandContext, url: str, slice_type: Slice, requested_zones: tuple[str, ...]
) -> str:
    try:
        return Bucket(context.reader).location(url)
    except UserError as error:
        default = region_of((requested_zones or slice_type.generation.zones)[0])
        return _dry_run_default(context, default, error)


def _dry_run_default(context: CommandContext, default: str, error: UserError) -> str:
    """Returns a default in a dry run, which works without a login and without a bucket."""
    if not context.options.dry_run:
        raise error
    logger.warning("%s\n  the dry run continues with %s", str(error).splitlines()[0], default)
    return default


def _launch(context: CommandContext, until: str) -> int:
    run, bundle = plan_run(context)
    checks = list(doctor.run_checks(run, bool(context.options.zones)))
    if not context.runner.dry:
        for check in checks:
            if check.level == "WARN":
                logger.warning("%s", check)
        check_result.raise_on_failures(checks)
        zones = check_result.usable_zones(run.manifest.zones, checks)
        run = replace(run, manifest=replace(run.manifest, zones=zones))
    cost.confirm(run.manifest, context.options.yes or context.runner.dry)
    # Before the manifest: once that exists, another launcher may start hosts, which need the code.
    upload_bundle(run, bundle)
    merged_manifest = manifest.create_or_validate(run.bucket, run.folder, run.manifest)
    merged_run = replace(run, manifest=merged_manifest)
    return _run_restart_loop(context, merged_run, until, run.manifest.zones)


def _run_restart_loop(
    context: CommandContext, run: RunContext, until: str, zones: tuple[str, ...]
) -> int:
    clock = context.clock
    lease = Lease(
        run.bucket, run.folder.lease, clock=clock.time, sleep=clock.sleep, wait=clock.wait
    )
    lease.acquire(force=context.options.force_lease)
    limits = make_limits(run, zones, context.options.keep_slice)
    try:
        manifest.write(run.bucket, run.folder, run.manifest)
        run.bucket.remove(run.stop_url)
        restart_loop = RestartLoop(run, limits, lease, clock=clock.time, sleep=clock.sleep)
        return restart_loop.run(until)
    except KeyboardInterrupt:
        price = run.usd_per_hour
        price_text = "" if price is None else f" and costs ${price:.2f} an hour"
        logger.warning(
            f"\nthe run is no longer managed, but it continues{price_text}:\n"
            f"  manage it again:  {run.command_line('babysit')}\n"
            f"  save and end it:  {run.command_line('stop')}"
        )
        return _INTERRUPTED
    finally:
        try:
            lease.release()
        except UserError as error:
            logger.warning("%s", error)


def _require_slice(run: RunContext) -> LiveSlice:
    live = ready_slice(run)
    if live is None:
        state = load_loop_state(run, 0.0)
        raise UserError(
            f"run {run.manifest.run_id} has no slice that is ready (its last known phase: "
            f"{state.phase}); `{run.command_line('babysit')}` creates one, `status` shows its state"
        )
    return live


def _exit_code_of(failure: actions.ActionFailure | None) -> int:
    if failure is None:
        return EXIT_DONE
    logger.error("%s", failure.message)
    return failure.exit_code
