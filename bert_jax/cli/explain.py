"""`bert-jax explain`: what a recipe means, before anything is computed."""

import argparse
import json
import math

from bert_jax.cli.recipe import add_recipe_arguments, experiment_from

HELP = "show the resolved config, and for each parameter its shape, decay and sharding"

_EPILOG = """example:
  bert-jax explain configs/pretrain/bert.py --with size=tiny prepared=data/train layout=fsdp \\
      --devices 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG, --with, --set, --devices."""
    add_recipe_arguments(parser)
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="show the sharding over N devices"
    )
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> None:
    """Prints the config as JSON and the table of parameters."""
    experiment = experiment_from(args)
    import jax

    from bert_jax import paths
    from bert_jax.config import fingerprint, to_json
    from bert_jax.parallel.sharding import make_mesh, parameter_spec
    from bert_jax.programs.make import make_program
    from bert_jax.train.flops import step_flops
    from bert_jax.train.optimizer import DECAYED
    from bert_jax.tuning.depth import lowest_moving

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)
    mesh = make_mesh(experiment.mesh)
    params = paths.flatten(make_program(experiment.program).abstract())

    print(json.dumps(to_json(experiment), indent=2))
    print(f"\nfingerprint {fingerprint(experiment)}")
    print(f"mesh {dict(mesh.shape)}\n")
    width = max(map(len, params))
    print(f"{'parameter':<{width}}  {'shape':<14}  decay  sharding over {args.devices} devices")
    for path, leaf in params.items():
        decay = "yes" if DECAYED[path] else "no"
        spec = tuple(parameter_spec(path, leaf.shape, mesh))
        print(f"{path:<{width}}  {leaf.shape!s:<14}  {decay:<5}  {spec}")
    total = sum(math.prod(leaf.shape) for leaf in params.values())
    print(f"\n{total:,} parameters")
    tuning = experiment.train.tuning
    lowest = lowest_moving(params, tuning.frozen)
    for phase in experiment.train.phases:
        flops = step_flops(experiment.program, phase, encoder=tuning.encoder, lowest=lowest)
        print(f"length {phase.length}: {phase.steps:,} updates of {flops:.3g} FLOPs")
