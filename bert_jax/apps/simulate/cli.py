"""Runs `bert-jax simulate`: simulates a multi-host run, with failures, on one machine."""

import argparse
import dataclasses
import logging
import sys
from pathlib import Path

from bert_jax.cli.arguments.recipe import add_recipe_arguments, load_experiment

logger = logging.getLogger(__name__)

HELP = "train a recipe on several simulated hosts on this machine, and kill some of them"

_EPILOG = """examples:
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
after saving a checkpoint, 76 a host was missing or inconsistent, else that of the failed host.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the recipe's arguments, --run, --init-from, the number of hosts and the failures."""
    from bert_jax.apps.simulate.scenario import SIGNALS

    add_recipe_arguments(parser)
    parser.add_argument(
        "--run", metavar="FOLDER", required=True, help="run folder; resumed if it exists"
    )
    parser.add_argument(
        "--init-from",
        metavar="MODEL",
        help="initial weights: a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts")
    parser.add_argument(
        "--hosts-after-restart",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="number of hosts after the first restart, the second, ... (default: as at the start)",
    )
    parser.add_argument(
        "--devices", type=int, default=4, metavar="N", help="devices of each host (default: 4)"
    )
    parser.add_argument(
        "--kill",
        nargs="+",
        default=[],
        metavar="host=I@step=N",
        help="host to send the signal to, and after which step; several: one for each start",
    )
    parser.add_argument(
        "--signal", choices=sorted(SIGNALS), default="TERM", help="signal of --kill (default: TERM)"
    )
    parser.add_argument(
        "--missing-host",
        nargs="+",
        default=[],
        metavar="host=I",
        help="hosts that are never started",
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Simulates the run, prints a summary and returns the exit code."""
    from bert_jax.apps.simulate.scenario import (
        Scenario,
        logging_interval,
        parse_kill,
        parse_missing_host,
    )
    from bert_jax.apps.simulate.summary import disagreements, summarize
    from bert_jax.apps.simulate.supervisor import Supervisor
    from bert_jax.train.preemption import EXIT_USER_ERROR

    train_config = load_experiment(args).train
    kills = tuple(parse_kill(text, args.signal) for text in args.kill)
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


def _host_command(args: argparse.Namespace, log_every: int) -> list[str]:
    """Returns the command of each host; `pretrain` trains fine-tuning recipes too."""
    overrides = [*args.overrides, f"train.logging.log_every={log_every}"]
    command = ["pretrain", args.config, "--run", args.run, "--set", *overrides]
    command += ["--arg", *args.arguments] if args.arguments else []
    return command + (["--init-from", args.init_from] if args.init_from else [])
