"""Holds what every launcher command works with: its flags, the command runners and the clock."""

from dataclasses import dataclass

from bert_jax.parallel.tpu_slices import Slice
from tpu.launcher import clock
from tpu.launcher.clock import ScaledClock
from tpu.launcher.cloud.dry_run import DryRunCloud
from tpu.launcher.cloud.gcloud import CommandRunner, DryRunReader, DryRunRunner, GcloudRunner
from tpu.launcher.options import Options

# Commands that need a slice: a dry run of one of these starts with a slice that is ready.
_NEEDS_SLICE = ("sync", "preflight", "run", "status", "logs", "stop", "down")


@dataclass(frozen=True, kw_only=True)
class CommandContext:
    """Holds the flags of a command and what it reaches the cloud with.

    Attributes:
      runner: runs the commands that look at or change the run; a dry run only prints them.
      reader: runs the commands whose output even a dry run needs: the project, the location of
        the bucket and the manifest of an existing run.
    """

    options: Options
    runner: CommandRunner
    reader: CommandRunner
    clock: ScaledClock

    def simulate_cloud(self, slice_type: Slice, run_url: str, zone: str) -> None:
        """Sets the simulated cloud that a dry run gets its results from; otherwise does nothing.

        Called once the slice type and zone are known: they come from flags or from the manifest.
        """
        if isinstance(self.runner, DryRunRunner):
            slice_exists = self.options.command in _NEEDS_SLICE
            self.runner.respond = DryRunCloud(slice_type, run_url, zone, slice_exists).respond


def make_command_context(options: Options) -> CommandContext:
    """Returns the context of a command.

    Raises:
      ConfigError: BERT_TPU_TIME_SCALE is not a number above 0.
    """
    launcher_clock = clock.from_environment(options.dry_run)
    gcloud = GcloudRunner(verbose=options.verbose)
    return CommandContext(
        options=options,
        runner=DryRunRunner() if options.dry_run else gcloud,
        reader=DryRunReader(gcloud) if options.dry_run else gcloud,
        clock=launcher_clock,
    )
