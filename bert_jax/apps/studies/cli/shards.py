"""Defines the flags of studies whose jobs several processes can split."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_jax.config.flags import flag
from bert_jax.errors import ConfigError

if TYPE_CHECKING:
    from bert_jax.apps.studies.jobs import JobShard

SHARDS_HELP = """\
To use several chips or machines, run the same command on each with --num-shards N and --shard 0 to
N-1. Each executes its shard of the runs, longest first; shards are balanced by estimated cost. When
all shards have finished, the command without --num-shards writes the tables.
"""


@dataclass(frozen=True, kw_only=True)
class ShardArguments:
    """Names the part of the jobs that a process runs."""

    num_shards: int | None = flag("N", "number of processes that split the runs")
    shard: int | None = flag("I", "index of this process, from 0 to N-1")

    def job_shard(self) -> "JobShard | None":
        """Returns the shard, or None for all jobs.

        Raises:
          ConfigError: one of the flags is missing, or the index is too large.
        """
        from bert_jax.apps.studies.jobs import JobShard

        if (self.num_shards is None) != (self.shard is None):
            raise ConfigError(
                "only one of --num-shards N and --shard I is given; expected both or neither"
            )
        if self.num_shards is None or self.shard is None:
            return None
        return JobShard(index=self.shard, count=self.num_shards)
