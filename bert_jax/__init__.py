"""Trains, checks and exports BERT encoders in JAX.

    import bert_jax

    reviews = bert_jax.finetune("bert", train="train.csv", text="review", label="sentiment")
    reviews.predict("A fine film.")
    bert_jax.FillMask(bert_jax.load_model("bert"))("The [MASK] of France.")

The names in `__all__` are the public Python API, described in `docs/api.md`. They are imported when
first used, so `import bert_jax` imports neither jax nor TensorFlow.
"""

from typing import TYPE_CHECKING, Any

from bert_jax.version import __version__ as __version__

if TYPE_CHECKING:
    from bert_jax.api.training import finetune as finetune
    from bert_jax.api.training import pretrain as pretrain
    from bert_jax.api.training import train_embeddings as train_embeddings
    from bert_jax.config.experiment import Experiment as Experiment
    from bert_jax.predict.embedder import Embedder as Embedder
    from bert_jax.predict.fill_mask import FillMask as FillMask
    from bert_jax.predict.generator import Generator as Generator
    from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder as MultiVectorEmbedder
    from bert_jax.predict.predictor import Predictor as Predictor
    from bert_jax.predict.sparse_embedder import SparseEmbedder as SparseEmbedder
    from bert_jax.predict.unmasker import Unmasker as Unmasker
    from bert_jax.pretrained.load import load_model as load_model

__all__ = [
    "Embedder",
    "Experiment",
    "FillMask",
    "Generator",
    "MultiVectorEmbedder",
    "Predictor",
    "SparseEmbedder",
    "Unmasker",
    "__version__",
    "finetune",
    "load_model",
    "pretrain",
    "train_embeddings",
]


def __getattr__(name: str) -> Any:
    """Imports a name of the public API when it is first used (PEP 562)."""
    match name:
        case "Embedder":
            from bert_jax.predict.embedder import Embedder as value
        case "Experiment":
            from bert_jax.config.experiment import Experiment as value
        case "FillMask":
            from bert_jax.predict.fill_mask import FillMask as value
        case "Generator":
            from bert_jax.predict.generator import Generator as value
        case "MultiVectorEmbedder":
            from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder as value
        case "SparseEmbedder":
            from bert_jax.predict.sparse_embedder import SparseEmbedder as value
        case "Unmasker":
            from bert_jax.predict.unmasker import Unmasker as value
        case "Predictor":
            from bert_jax.predict.predictor import Predictor as value
        case "load_model":
            from bert_jax.pretrained.load import load_model as value
        case "finetune":
            from bert_jax.api.training import finetune as value
        case "pretrain":
            from bert_jax.api.training import pretrain as value
        case "train_embeddings":
            from bert_jax.api.training import train_embeddings as value
        case _:
            raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
    return value


def __dir__() -> list[str]:
    """Returns the names of the module, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
