"""Runs `bert-jax simulate`: simulates a multi-host run, with failures, on one machine."""

import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_jax.apps.simulate.scenario import SIGNALS
from bert_jax.cli.arguments import RUN_FOLDER, RecipeArguments
from bert_jax.config.flags import REQUIRED, check_needs, flag

logger = logging.getLogger(__name__)

HELP = "train a recipe on several simulated hosts on this machine, and kill some of them"

EPILOG = """examples:
  bert-jax simulate --hosts 4 --devices 2 small_corpus --run runs/pod \\
      --arg corpus=prepared steps=300 --kill host=2@step=50
  bert-jax simulate --hosts 1 --hosts-after-restart 4 2 --devices 1 bert \\
      --run runs/pod --arg size=tiny corpus=prepared --kill host=0@step=50 host=3@step=80
  bert-jax simulate --hosts 4 --devices 2 small_corpus --run runs/pod \\
      --arg corpus=prepared --missing-host host=3

Each host is a process of `bert-jax pretrain` with its own CPU devices; gradients are exchanged with
gloo. The signal is sent when process 0 has logged the step of --kill; train.logging.log_every is
lowered if necessary. After SIGTERM all hosts save the same step and exit with 75. After SIGKILL the
other hosts abort when the heartbeat times out (10 s here, 100 s by default on a real pod; see
BERT_JAX_HEARTBEAT_SECONDS). Then all hosts start again and resume from the newest checkpoint.
With --missing-host, the other hosts wait 40 s (BERT_JAX_RENDEZVOUS_SECONDS) and report which host
is missing.

The output of the hosts goes to stderr, with the prefix [host N]; a summary of the events goes to
stdout. Exit codes: 0 the run is complete and all hosts agreed, 75 stopped by SIGTERM or Ctrl-C
after saving a checkpoint, 76 a host was missing or inconsistent, else the failed host's code.
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(RecipeArguments):
    """Names the recipe and the run, the number of hosts and the failures."""

    run: str = flag("FOLDER", RUN_FOLDER, REQUIRED)
    init_from: str | None = flag(
        "MODEL", "initial weights: a run folder, a Hugging Face folder or a Google TF1 checkpoint"
    )
    hosts: int = flag("N", "number of hosts", REQUIRED)
    hosts_after_restart: tuple[int, ...] = flag(
        "N",
        "number of hosts after the first restart, the second, ... (default: as at the start)",
        (),
    )
    devices: int = flag("N", "devices of each host", 4)
    kill: tuple[str, ...] = flag(
        "host=I@step=N",
        "host to send the signal to, and after which step; several: one for each start",
        (),
    )
    signal: str | None = flag("", "signal of --kill (default: TERM)", choices=sorted(SIGNALS))
    missing_host: tuple[str, ...] = flag("host=I", "hosts that are never started", ())

    def __post_init__(self) -> None:
        check_needs(self, "kill", "signal")


def run(args: Arguments) -> int:
    """Simulates the run, prints a summary and returns the exit code."""
    from bert_jax.apps.simulate.scenario import (
        Scenario,
        logging_interval,
        parse_kill,
        parse_missing_host,
    )
    from bert_jax.apps.simulate.supervisor import Supervisor, disagreements, summarize
    from bert_jax.train.preemption import EXIT_USER_ERROR

    train_config = args.experiment().train
    kills = tuple(parse_kill(text, args.signal or "TERM") for text in args.kill)
    log_every = logging_interval(train_config.logging.log_every, kills)
    scenario = Scenario(
        command=(sys.executable, "-m", "bert_jax", *_host_command(args, log_every)),
        run=Path(args.run),
        hosts_per_attempt=(args.hosts, *args.hosts_after_restart),
        devices_per_host=args.devices,
        kills=kills,
        missing_hosts=frozenset(map(parse_missing_host, args.missing_host)),
        steps=train_config.steps,
    )
    if log_every != train_config.logging.log_every:
        logger.info(
            "[simulator] train.logging.log_every=%d, so that the steps of --kill are logged",
            log_every,
        )
    with Supervisor(scenario) as supervisor:
        outcome = supervisor.run()
    if disagreements(outcome) and outcome.exit_code == 0:
        outcome = dataclasses.replace(outcome, exit_code=EXIT_USER_ERROR)
    print(summarize(scenario, outcome))
    return outcome.exit_code


def _host_command(args: Arguments, log_every: int) -> list[str]:
    """Returns the command of each host; `pretrain` trains fine-tuning recipes too."""
    overrides = [*args.set, f"train.logging.log_every={log_every}"]
    command = ["pretrain", args.config, "--run", args.run, "--set", *overrides]
    command += ["--arg", *args.arg] if args.arg else []
    return command + (["--init-from", args.init_from] if args.init_from else [])
