"""A program with frozen parameters: no gradient is computed for them."""

from typing import Any

import jax

from bert_jax import paths
from bert_jax.nn import Params
from bert_jax.programs.program import Batch, Losses, Program


class Frozen:
    """Another program, whose parameters that match a pattern are constants to the gradient."""

    def __init__(self, program: Program, patterns: tuple[str, ...]):
        self.config = program.config
        self._program, self._patterns = program, patterns
        self.abstract, self.init, self.fields = program.abstract, program.init, program.fields
        self.normalisers = program.normalisers

    def losses(
        self,
        params: Params,
        batch: Batch,
        normalisers: dict[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> Losses:
        """The other program's losses."""

        def still(path: str, leaf: Any) -> Any:
            frozen = any(paths.matches(pattern, path) for pattern in self._patterns)
            return jax.lax.stop_gradient(leaf) if frozen else leaf

        held = paths.map_with_path(still, params)
        return self._program.losses(held, batch, normalisers, dropout_key)
