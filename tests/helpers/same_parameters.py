"""Compares the parameters in the checkpoints of two runs."""

from pathlib import Path

from bert_jax.params import paths
from bert_jax.runs.checkpoints.step_folder import restore_params


def assert_same_parameters(one: Path, other: Path, step: int | None = None) -> None:
    """Asserts that two runs have the same bits at a step; None: the newest, equal in both."""
    expected, found = (restore_params(folder / "checkpoints", step) for folder in (one, other))
    assert expected[2] == found[2]
    expected_bits, found_bits = (
        {path: (leaf.dtype, leaf.shape, leaf.tobytes()) for path, leaf in leaves.items()}
        for leaves in (paths.flatten(expected[0]), paths.flatten(found[0]))
    )
    assert expected_bits.keys() == found_bits.keys()
    assert [path for path, bits in expected_bits.items() if bits != found_bits[path]] == []
