"""`bert-jax simulate`: a pod on one machine, with real processes, and hosts that are killed."""

import argparse
import dataclasses
import sys
from pathlib import Path

from bert_jax.cli.arguments.recipe import add_recipe_arguments, load_experiment

HELP = "train a recipe on several hosts simulated on this machine, and kill some of them"

_EPILOG = """examples:
  bert-jax simulate --hosts 4 --devices 2 configs/pretrain/small_corpus.py --run runs/pod \\
      --with corpus=prepared steps=300 --kill host=2@step=50
  bert-jax simulate --hosts 1 --hosts-after 4 2 --devices 1 ... --kill host=0@step=50 host=3@step=80
  bert-jax simulate --hosts 4 --devices 2 ... --drop host=3

Each host is a process of `bert-jax pretrain` with its own CPU devices; gradients go over gloo. A
signal is sent as soon as process 0 has logged the step, and logging is made frequent enough for
that. After SIGTERM all hosts save the same step and leave with 75; after SIGKILL the others abort
(JAX's heartbeat is 10 s here; on a real pod it is 100 s, BERT_JAX_HEARTBEAT_SECONDS). Then all are
started again and go on from the newest checkpoint. --drop leaves a host out: the others wait 40 s
for it (BERT_JAX_RENDEZVOUS_SECONDS) and name it.

What hosts print goes to stderr, marked [host N]; an account of what happened to stdout. Exit codes:
0 the run is complete and the hosts agreed, 75 stopped by SIGTERM or Ctrl-C with everything saved,
76 a host was missing or did not fit, else that of the host that failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The pod's shape and accidents; the recipe's arguments, --run and --init-from."""
    from bert_jax.simulate.scenario import SIGNALS

    add_recipe_arguments(parser)
    parser.add_argument("--run", metavar="FOLDER", required=True, help="the run folder")
    parser.add_argument(
        "--init-from",
        metavar="MODEL",
        help="start from a run folder, a Hugging Face folder or a Google TF1 checkpoint",
    )
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--hosts-after",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="how many at the second start, the third, ... (default: as many as at the first)",
    )
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="of each (default: 4)")
    parser.add_argument(
        "--kill",
        nargs="+",
        default=[],
        metavar="host=I@step=N",
        help="send a signal to a host; several: one for each start",
    )
    parser.add_argument(
        "--signal", choices=sorted(SIGNALS), default="TERM", help="the one to send (default: TERM)"
    )
    parser.add_argument(
        "--drop", nargs="+", default=[], metavar="host=I", help="hosts that are never started"
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Returns the exit code of the run."""
    from bert_jax.simulate.scenario import (
        Scenario,
        logging_interval,
        parse_kill,
        parse_missing_host,
    )
    from bert_jax.simulate.summary import disagreements, summarize
    from bert_jax.simulate.supervisor import Supervisor
    from bert_jax.train.preemption import EXIT_USER_ERROR

    train_config = load_experiment(args).train
    kills = tuple(parse_kill(text, args.signal) for text in args.kill)
    log_every = logging_interval(train_config.logging.log_every, kills)
    scenario = Scenario(
        command=(sys.executable, "-m", "bert_jax", *_host_command(args, log_every)),
        run=Path(args.run),
        hosts_per_attempt=(args.hosts, *args.hosts_after),
        devices_per_host=args.devices,
        kills=kills,
        missing_hosts=frozenset(map(parse_missing_host, args.drop)),
        steps=train_config.steps,
    )
    if log_every != train_config.logging.log_every:
        message = f"train.logging.log_every={log_every}, to see the steps of --kill"
        print(f"[pod] {message}", file=sys.stderr)
    with Supervisor(scenario) as supervisor:
        outcome = supervisor.run()
    if disagreements(outcome) and outcome.exit_code == 0:
        outcome = dataclasses.replace(outcome, exit_code=EXIT_USER_ERROR)
    print(summarize(scenario, outcome))
    return outcome.exit_code


def _host_command(args: argparse.Namespace, log_every: int) -> list[str]:
    """The command of each host, which trains any recipe, those of fine-tuning as well."""
    overrides = [*args.overrides, f"train.logging.log_every={log_every}"]
    command = ["pretrain", args.config, "--run", args.run, "--set", *overrides]
    command += ["--with", *args.arguments] if args.arguments else []
    return command + (["--init-from", args.init_from] if args.init_from else [])
