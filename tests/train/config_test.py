import pytest

from bert_jax.errors import ConfigError
from bert_jax.train.config import Phase


@pytest.mark.parametrize("batch_size, nearest", [(10, "8 or 12"), (3, "4")])
def test_batch_size_that_does_not_divide_into_microbatches_is_refused(batch_size, nearest):
    with pytest.raises(ConfigError) as error:
        Phase(steps=5, seq_length=32, batch_size=batch_size, gradient_accumulation_steps=4)
    assert str(error.value) == (
        f"the phase of train.phases with 5 steps of sequence length 32 has batch_size {batch_size},"
        f" expected a multiple of its gradient_accumulation_steps 4; the nearest is {nearest}"
    )
