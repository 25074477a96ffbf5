"""Fine-tunes a pretrained encoder with a head and a training loop of your own.

    python examples/custom_loop.py exported

The model is any run folder, export or Hugging Face folder that `bert_jax.load_model` opens.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import bert_jax

TEXTS = ["A fine film.", "A good old story.", "Two hours of my life.", "A bad film."]
LABELS = np.array([1, 1, 0, 0])


class Classifier(nnx.Module):
    """Classifies a text from the encoder's output at its first token."""

    def __init__(self, encoder: nnx.Module, width: int, num_labels: int, rngs: nnx.Rngs):
        self.encoder = encoder
        self.head = nnx.Linear(width, num_labels, rngs=rngs)

    def __call__(self, batch: dict[str, jax.Array]) -> jax.Array:
        """Maps token ids [B, L] to logits [B, C]."""
        return self.head(self.encoder(**batch).last_hidden_state[:, 0])


def loss_fn(classifier: Classifier, batch: dict[str, jax.Array], labels: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of a batch."""
    logits = classifier(batch)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


@nnx.jit
def train_step(
    classifier: Classifier,
    optimizer: nnx.Optimizer,
    batch: dict[str, jax.Array],
    labels: jax.Array,
) -> jax.Array:
    """Updates encoder and head in place; returns the loss before the update."""
    loss, gradients = nnx.value_and_grad(loss_fn)(classifier, batch, labels)
    optimizer.update(classifier, gradients)
    return loss


def train(folder: str, steps: int = 20, learning_rate: float = 1e-3) -> list[float]:
    """Trains on all texts at once; returns the loss of each step."""
    model = bert_jax.load_model(folder)
    classifier = Classifier(model.encoder(), model.config.hidden_size, 2, nnx.Rngs(0))
    optimizer = nnx.Optimizer(classifier, optax.adamw(learning_rate), wrt=nnx.Param)
    batch = model.tokenize(TEXTS)
    return [float(train_step(classifier, optimizer, batch, LABELS)) for _ in range(steps)]


if __name__ == "__main__":
    for step, loss in enumerate(train(sys.argv[1])):
        print(f"step {step}: loss {loss:.3f}")
