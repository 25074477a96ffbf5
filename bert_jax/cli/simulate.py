"""`bert-jax simulate`: a pod on one machine, with real processes, and hosts that are killed."""

import argparse
import dataclasses
import sys
from pathlib import Path

from bert_jax.cli.recipe import add_recipe_arguments, experiment_from

HELP = "train a recipe on several hosts simulated on this machine, and kill some of them"

_EPILOG = """examples:
  bert-jax simulate --hosts 4 --devices 2 configs/pretrain/small_corpus.py --run runs/pod \\
      --with prepared=prepared steps=300 --kill host=2@step=50
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
    from bert_jax.pod.plan import SIGNALS

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
    from bert_jax.pod.account import account, disagreements
    from bert_jax.pod.plan import Plan, logging_every, parse_drop, parse_kill
    from bert_jax.pod.supervisor import Supervisor
    from bert_jax.train.preemption import EXIT_USER_ERROR

    train = experiment_from(args).train
    kills = tuple(parse_kill(text, args.signal) for text in args.kill)
    every = logging_every(train.logging.every, kills)
    plan = Plan(
        command=(sys.executable, "-m", "bert_jax", *_pretrain(args, every)),
        run=Path(args.run),
        hosts=(args.hosts, *args.hosts_after),
        devices=args.devices,
        kills=kills,
        dropped=frozenset(map(parse_drop, args.drop)),
        steps=train.steps,
    )
    if every != train.logging.every:
        print(f"[pod] train.logging.every={every}, to see the steps of --kill", file=sys.stderr)
    with Supervisor(plan) as supervisor:
        outcome = supervisor.run()
    if disagreements(outcome) and outcome.code == 0:
        outcome = dataclasses.replace(outcome, code=EXIT_USER_ERROR)
    print(account(plan, outcome))
    return outcome.code


def _pretrain(args: argparse.Namespace, every: int) -> list[str]:
    """The command of each host, which trains any recipe, those of fine-tuning as well."""
    changes = [*args.overrides, f"train.logging.every={every}"]
    command = ["pretrain", args.config, "--run", args.run, "--set", *changes]
    command += ["--with", *args.arguments] if args.arguments else []
    return command + (["--init-from", args.init_from] if args.init_from else [])
