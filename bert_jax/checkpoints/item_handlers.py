"""Makes orbax's handlers of a checkpoint's items: params and training (arrays), info (JSON).

Orbax splits an array of which several devices have a copy, and each of them writes one slice. That
is faster for large arrays. For a bias, compiling and running the slicing takes longer than writing
the array, so arrays with small slices are written by one device. The format on disk is the same:
checkpoints of `ocp.StandardCheckpointHandler`, which earlier versions used, are read by these
handlers, too.
"""

import jax
import numpy as np
import orbax.checkpoint as ocp

from bert_jax.checkpoints.step_folder import INFO, PARAMS, TRAINING

MIN_SLICE_BYTES = 1 << 20
"""The smallest slice of an array that a device writes."""


def make_handlers() -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """Returns the handlers of all items, for `ocp.CheckpointManager`.

    Unlike orbax's default, they write no array metadata. Only typed PRNG keys and custom chunks
    need it, and a state has neither. They save arrays and NumPy numbers, but no Python numbers.
    """
    types = ocp.type_handlers.create_type_handler_registry(
        (
            jax.Array,
            ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES),
        ),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
        (np.number, ocp.type_handlers.ScalarHandler()),
    )
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item in (PARAMS, TRAINING):
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=types)
        handlers.add(item, ocp.args.PyTreeSave, handler)
        handlers.add(item, ocp.args.PyTreeRestore, handler)
    json_handler = ocp.JsonCheckpointHandler()
    handlers.add(INFO, ocp.args.JsonSave, json_handler)
    handlers.add(INFO, ocp.args.JsonRestore, json_handler)
    return handlers
