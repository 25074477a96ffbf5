"""Our NumPy and Python functions inside tf.data pipelines.

Two things go wrong with a bare tf.numpy_function: TensorFlow cannot see the shapes of its results,
and a pipeline that still reads ahead when Python exits waits for ever for an interpreter that is
gone. So results get their shapes here, and at exit all steps are told to stop first.
"""

import atexit
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Shape = tuple[int | None, ...]
SCALAR: Shape = ()
VECTOR: Shape = (None,)
MATRIX: Shape = (None, None)

# The quiet that shows that all pipelines have stopped, and the longest wait for it.
SHUTDOWN_QUIET_SECONDS = 0.2
SHUTDOWN_TIMEOUT_SECONDS = 10.0

# TensorFlow would otherwise translate each function's source, which takes most of the start-up.
no_autograph = tf.autograph.experimental.do_not_convert


class _ExitState:
    """Whether Python is about to exit, and when a step was last called."""

    is_exiting = False
    last_call = 0.0


def numpy_function(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tuple[tf.DType, Shape]],
) -> list[tf.Tensor]:
    """Calls `function` on arrays when the pipeline runs; gives one tensor for each output.

    Args:
      function: pure; takes an array for each input and returns a tuple, one value per output.
      inputs: any tensors; strings arrive as bytes.
      outputs: dtype and shape of each value, None for a dimension that is not known.
    """

    def check_and_call(*arrays: Any) -> Any:
        _check_not_exiting()
        return function(*arrays)

    tensors = tf.numpy_function(
        check_and_call, inputs, [dtype for dtype, _ in outputs], stateful=False
    )
    tensors = tf.nest.flatten(tensors)  # a single one comes bare when run eagerly
    for tensor, (_, shape) in zip(tensors, outputs, strict=True):
        tensor.set_shape(shape)
    return tensors


def text_dataset(read_texts: Callable[[], Iterable[str]]) -> tf.data.Dataset:
    """Documents as a dataset of {"text": scalar string}; `texts` is called for each reading."""

    def examples() -> Iterator[dict[str, bytes]]:
        for text in read_texts():
            _check_not_exiting()
            yield {"text": text.encode("utf-8", "surrogatepass")}

    signature = {"text": tf.TensorSpec(SCALAR, tf.string)}
    return tf.data.Dataset.from_generator(examples, output_signature=signature)


def _check_not_exiting() -> None:
    _ExitState.last_call = time.monotonic()
    if _ExitState.is_exiting:
        raise RuntimeError("Python is exiting")


@atexit.register
def _stop_pipelines() -> None:
    _ExitState.is_exiting = True
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT_SECONDS
    while time.monotonic() < min(deadline, _ExitState.last_call + SHUTDOWN_QUIET_SECONDS):
        time.sleep(SHUTDOWN_QUIET_SECONDS / 10)
