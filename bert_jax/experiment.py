"""The root config: everything that decides what a run computes, in one value. No jax, no tf."""

from dataclasses import dataclass

from bert_jax.data.config import Labelled, LabelledMixture, LoaderConfig
from bert_jax.errors import ConfigError
from bert_jax.parallel.config import Mesh
from bert_jax.programs.config import ProgramConfig
from bert_jax.train.config import Train


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What `configs/` return and `bert_jax.train.run` runs."""

    name: str
    program: ProgramConfig
    data: LoaderConfig | Labelled | LabelledMixture
    train: Train
    mesh: Mesh = Mesh()  # noqa: RUF009 (frozen)
    seed: int = 0
    init_from: str | None = None  # run folder, Hugging Face folder or TF1 checkpoint to start from

    def __post_init__(self) -> None:
        exchange, dtype = self.mesh.exchange, self.program.compute.dtype
        if exchange == "bfloat16" and dtype != "bfloat16":
            raise ConfigError(
                f"mesh.exchange is bfloat16, but program.compute.dtype is {dtype}; "
                "expected float32, or bfloat16 for both"
            )
        longest = max(phase.length for phase in self.train.phases)
        table = self.program.model.positions.max_length
        if longest > table:
            raise ConfigError(
                f"train.phases has length {longest}, beyond the position table: "
                f"program.model.positions.max_length is {table}"
            )


MAY_CHANGE_ON_RESUME = (
    "train.logging.*",
    "train.checkpoints.*",
    "train.evaluation.*",
    "mesh.*",
    "data.prefetch_batches",
    "data.workers",
    "program.compute.layers.*",
    "program.compute.remat.*",
    "program.compute.attention.*",
)
"""Fields that say where and how often, not what: a run may be resumed with others."""
