"""Runs `bert-jax show-config`: prints the resolved config and parameter table of a recipe."""

import json
from dataclasses import dataclass

from bert_jax.cli.arguments import CorporaArguments
from bert_jax.config.flags import flag

HELP = "show the config that a recipe makes, and the shape and sharding of each parameter"

EPILOG = """example:
  bert-jax show-config bert --devices 8 \\
      --arg size=tiny corpus=data/train parallelism=fsdp
"""


@dataclass(frozen=True, kw_only=True)
class Arguments(CorporaArguments):
    """Names a recipe with its changes, and the number of devices."""

    devices: int = flag("N", "number of devices to shard over", 1)


def run(args: Arguments) -> None:
    """Prints the config as JSON and the table of parameters."""
    experiment = args.experiment()
    import jax

    from bert_jax.config.config_lib import fingerprint, to_json
    from bert_jax.config.data import PretrainingData
    from bert_jax.objectives.make import make_objective
    from bert_jax.parallel.sharding import make_mesh, parameter_spec
    from bert_jax.params import paths
    from bert_jax.train.flops import step_flops
    from bert_jax.train.optimizer import WEIGHT_DECAY
    from bert_jax.train.tuning.freezing import is_frozen, lowest_trainable_depth
    from bert_jax.train.workloads import make_workload
    from bert_jax.train.workloads.pretraining import PretrainingWorkload

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)
    if isinstance(experiment.data, PretrainingData):
        workload = make_workload(experiment)
        assert isinstance(workload, PretrainingWorkload)
        workload.check_corpora()
    mesh = make_mesh(experiment.mesh)
    tuning = experiment.train.tuning
    params = paths.flatten(make_objective(experiment.objective, adapter=tuning.adapter).abstract())

    print(json.dumps(to_json(experiment), indent=2))
    print(f"\nfingerprint {fingerprint(experiment)}")
    print(f"mesh {dict(mesh.shape)}\n")
    width = max(map(len, params))
    print(f"{'parameter':<{width}}  {'shape':<14}  decay  sharding over {args.devices} devices")
    for path, param in params.items():
        decay = "yes" if WEIGHT_DECAY[path] else "no"
        spec = tuple(parameter_spec(path, param.shape, mesh))
        print(f"{path:<{width}}  {param.shape!s:<14}  {decay:<5}  {spec}")
    num_parameters, num_teacher_parameters = paths.count_parameters(params)
    trained = {path: param for path, param in params.items() if not is_frozen(tuning, path)}
    num_trained, _ = paths.count_parameters(trained)
    part = f", of which {num_trained:,} ({num_trained / num_parameters:.2%}) are trained"
    print(f"\n{num_parameters:,} parameters{part if num_trained < num_parameters else ''}")
    if num_teacher_parameters:
        print(f"{num_teacher_parameters:,} parameters of the teacher, which are not trained")
    lowest_trainable_layer = lowest_trainable_depth(params, tuning)
    for phase in experiment.train.phases:
        flops = step_flops(
            experiment.objective,
            phase,
            tuning=tuning,
            lowest_trainable_layer=lowest_trainable_layer,
        )
        print(f"length {phase.seq_length}: {phase.steps:,} updates of {flops:.3g} FLOPs")
