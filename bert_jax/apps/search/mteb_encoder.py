"""Runs a dense model on the tasks of MTEB (Muennighoff et al. 2023), with the package `mteb`.

    import mteb
    from bert_jax.apps.search.mteb_encoder import MtebEncoder

    mteb.evaluate(MtebEncoder(load_model("exported")), mteb.get_tasks(tasks=["STSBenchmark"]))

`mteb` is no dependency: it calls this class, which has the methods of its `EncoderProtocol`
(mteb 2), and gives texts in batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.apps.search.encoder import EmbedderEncoder, text_encoder_of
from bert_jax.errors import UserError
from bert_jax.models.sentence_encoder.config import TextRole
from bert_jax.pretrained.load import AnyModel
from bert_jax.tasks.metrics.vectors import normalize_vectors


class TaskMetadata(Protocol):
    """Holds what is read of mteb's description of a task."""

    name: str  # such as STSBenchmark
    type: str  # such as STS or Retrieval


class MtebEncoder:
    """Embeds the texts of mteb's tasks as `SentenceTransformer` does for the exported folder.

    The prompt is the one that the model has for the task and role, for the task, for the kind of
    task and role, for the kind of task, or for the role, in mteb's order; otherwise the default
    prompt. As in sentence-transformers, "passage" and "corpus" are also prompts of documents.

    Attributes:
      num_truncated: number of texts so far that are longer than the model reads.
    """

    def __init__(self, model: AnyModel, *, name: str | None = None):
        """Moves the model to the device.

        Args:
          name: what mteb calls the model in its results; None: its path.

        Raises:
          UserError: as `Embedder`; or the vectors of the model are not dense, or compared by a
            distance.
        """
        encoder = text_encoder_of(model)
        if not isinstance(encoder, EmbedderEncoder):
            raise UserError(
                f"{encoder.id.model} is a {encoder.kind.replace('_', '-')} model; expected a dense "
                "one: `bert-jax search evaluate` evaluates models of all kinds on retrieval"
            )
        self._embed, self._id, self._name = encoder.embedder, encoder.id, name

    @property
    def num_truncated(self) -> int:
        """Returns the number of texts so far that are longer than the model reads."""
        return self._embed.num_truncated

    @property
    def mteb_model_meta(self) -> Any:
        """Returns mteb's `ModelMeta`; the revision is a fingerprint of the weights."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        return ModelMeta.create_empty(
            {
                "name": self._name or self._id.model,
                "revision": self._id.fingerprint,
                "max_tokens": self._embed.max_length,
                "embed_dim": self._embed.embedding_size,
                "similarity_fn_name": ScoringFunction(self._embed.config.similarity),
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: TextRole | None = None,
        precision: str = "float32",
        **kwargs: Any,
    ) -> np.ndarray:
        """Returns the vectors of texts, float32 [N, E].

        Args:
          inputs: batches with the texts under "text", such as a `DataLoader`.
          prompt_type: "query" or "document"; None for tasks without roles.
          hf_split, hf_subset, kwargs: not used; the embedder chooses its batch size.

        Raises:
          UserError: the precision is another one.
        """
        del hf_split, hf_subset, kwargs
        if precision != "float32":
            raise UserError(
                f"encode_kwargs has precision {precision!r}, but vectors are float32; remove it"
            )
        texts = [text for batch in inputs for text in batch["text"]]
        return self._embed(texts, prompt=self._prompt(task_metadata, prompt_type))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Returns the model's similarity of vectors, [N, E] and [M, E] -> float32 [N, M]."""
        return self._comparable(embeddings1) @ self._comparable(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Returns the similarity of each vector with its partner, [N, E] twice -> float32 [N]."""
        return np.sum(self._comparable(embeddings1) * self._comparable(embeddings2), axis=-1)

    def _comparable(self, embeddings: Any) -> np.ndarray:
        """Returns vectors, of NumPy or PyTorch, whose dot product is the similarity."""
        vectors = np.asarray(embeddings, np.float32)
        return normalize_vectors(vectors) if self._embed.config.similarity == "cosine" else vectors

    def _prompt(self, task: TaskMetadata, role: TextRole | None) -> str | None:
        """Returns what is put before each text; None for the default prompt."""
        prompts = {prompt.name: prompt.text for prompt in self._embed.config.prompts}
        for name in (task.name, task.type):
            for prompt_name in (f"{name}-{role}", name):
                if prompt_name in prompts:
                    return prompts[prompt_name]
        return None if role is None else self._embed.config.prompt_of_role(role)
