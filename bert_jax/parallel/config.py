"""Defines the config of the device mesh and its presets. Imports no jax."""

from dataclasses import dataclass
from typing import Literal

from bert_jax.errors import ConfigError

Parallelism = Literal["dp", "fsdp", "tp", "fsdp_tp"]
CommunicationDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Arranges the devices along three axes; one size may be -1, for all remaining devices.

    Attributes:
      data: splits the batch.
      fsdp: splits the batch, the parameters and the optimizer state.
      tensor: splits heads, feed-forward width and vocabulary within a layer.
      communication_dtype: the dtype of matrices sent between devices, as summed gradients and as
        gathered parameters. bfloat16 halves the traffic, and rounds each device's part of a
        gradient to 8 bits before the sum (see `parallel/communication.py`).
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    communication_dtype: CommunicationDtype = "float32"

    def __post_init__(self) -> None:
        sizes = (self.data, self.fsdp, self.tensor)
        if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
            raise ConfigError(f"mesh {sizes}: expected sizes >= 1, and -1 at most once")

    def axis_sizes(self, num_devices: int) -> tuple[int, int, int]:
        """Returns the sizes (data, fsdp, tensor) on a number of devices.

        Raises:
          ConfigError: the product of the sizes cannot be the number of devices.
        """
        sizes = [self.data, self.fsdp, self.tensor]
        known = 1
        for size in sizes:
            known *= max(size, 1)
        if -1 in sizes and num_devices % known == 0:
            sizes[sizes.index(-1)] = num_devices // known
            known = num_devices
        if known != num_devices or -1 in sizes:
            raise ConfigError(
                f"mesh data={self.data} fsdp={self.fsdp} tensor={self.tensor} does not fit "
                f"{num_devices} devices: the product must be {num_devices} (-1 fills one axis)"
            )
        return sizes[0], sizes[1], sizes[2]


def make_mesh_config(
    parallelism: Parallelism, communication_dtype: CommunicationDtype = "float32"
) -> MeshConfig:
    """Returns a preset: dp replicates the model, fsdp shards it, tp and fsdp_tp halve layers."""
    return {
        "dp": MeshConfig(communication_dtype=communication_dtype),
        "fsdp": MeshConfig(data=1, fsdp=-1, communication_dtype=communication_dtype),
        "tp": MeshConfig(tensor=2, communication_dtype=communication_dtype),
        "fsdp_tp": MeshConfig(data=1, fsdp=-1, tensor=2, communication_dtype=communication_dtype),
    }[parallelism]
