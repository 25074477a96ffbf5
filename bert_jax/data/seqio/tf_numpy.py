"""Calls Python and NumPy functions in tf.data pipelines.

tf.numpy_function alone has two problems: TensorFlow does not know the shapes of the results, and a
pipeline that still prefetches when Python exits waits forever for the interpreter. Here the results
have shapes, and pipelines are stopped before exit.
"""

import atexit
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

Shape = tuple[int | None, ...]
SCALAR: Shape = ()
VECTOR: Shape = (None,)
MATRIX: Shape = (None, None)

# Pipelines have stopped if there was no call for this time; and the longest wait for that.
SHUTDOWN_QUIET_SECONDS = 0.2
SHUTDOWN_TIMEOUT_SECONDS = 10.0

TensorDict = dict[str, tf.Tensor]
# The annotations of tf.data do not know the structure of elements in map and filter.
Dataset = Any
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def no_autograph(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Marks a function of a pipeline as one that AutoGraph must not convert.

    Converting the source of each function would take most of the startup time.
    """
    return tf.autograph.experimental.do_not_convert(function)


class _ExitState:
    """Holds whether Python is about to exit, and when a function was last called."""

    is_exiting = False
    last_call = 0.0


def numpy_function(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tuple[tf.DType, Shape]],
) -> list[tf.Tensor]:
    """Calls `function` on arrays when the pipeline runs; returns one tensor for each output.

    Args:
      function: a pure function of one array per input that returns a tuple of one value per output.
      inputs: any tensors; strings are passed as bytes.
      outputs: dtype and shape of each value; None for a dimension that is not known.
    """

    def check_and_call(*arrays: Any) -> Any:
        _check_not_exiting()
        return function(*arrays)

    tensors = tf.numpy_function(
        check_and_call, inputs, [dtype for dtype, _ in outputs], stateful=False
    )
    tensors = tf.nest.flatten(tensors)  # in eager mode a single tensor is not in a list
    for tensor, (_, shape) in zip(tensors, outputs, strict=True):
        tensor.set_shape(shape)
    return tensors


def text_dataset(read_texts: Callable[[], Iterable[str]]) -> "tf.data.Dataset[Any]":
    """Makes a dataset of {"text": scalar string}; each iteration calls `read_texts` again."""

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
