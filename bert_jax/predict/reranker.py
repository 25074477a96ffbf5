"""Scores texts by their relevance to a query with a cross-encoder, which reads both together.

from bert_jax.predict.reranker import Reranker
rerank = Reranker(load_model("runs/ranking"))
rerank("Who repairs the nets?", ["A man repairs a net.", "The bell rang nine."])  # [0.98, 0.01]
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from bert_jax.errors import UserError, require_list_of_texts
from bert_jax.models.heads.config import RankingActivation
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.task_processor import require_head
from bert_jax.pretrained.load import AnyModel, require_encoder
from bert_jax.tasks.registry import kind_of_head


class RankedText(NamedTuple):
    """Holds a text, its position in the list that was given, and its score."""

    position: int
    score: float
    text: str


# A regression head has one output, too, so folders of sentence-transformers without a ranking head
# score as well.
class Reranker:
    """Scores texts with a classifier of pairs that has one output.

    That is a model of `bert-jax finetune columns --kind ranking`, or a folder of
    sentence-transformers' `CrossEncoder`. As there, the score is the sigmoid of the output, unless
    the folder's config.json has another activation.
    """

    def __init__(self, model: AnyModel, *, max_length: int | None = None, batch_size: int = 32):
        """Copies the model to the device; the arguments are as for `Predictor`.

        Raises:
          UserError: the model has no head with one output for a pair of texts.
        """
        model = require_encoder(model, "score texts for a query")
        head = require_head(model)
        kind = kind_of_head(head)
        if kind.output_field is None:
            raise UserError(
                f"{model.path} is a model for {kind.name}, so it cannot score texts for a query; "
                "expected a cross-encoder with one output, such as a run of bert-jax finetune "
                "columns --kind ranking"
            )
        self._field = kind.output_field
        self._activation: RankingActivation = getattr(head, "activation", "sigmoid")
        self._predict = Predictor(model, max_length=max_length, batch_size=batch_size)

    def __call__(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Returns the score of each text, float64 [n], in the order of the texts."""
        require_list_of_texts(texts)
        return self.score_pairs([(query, text) for text in texts])

    def score_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        on_progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns the score of each (query, text), float64 [n].

        Args:
          on_progress: called after each batch with the number of pairs that it finished.

        Raises:
          UserError: a text is empty.
        """
        outputs = self.outputs_of_pairs(pairs, on_progress)
        match self._activation:
            case "sigmoid":
                return expit(outputs)
            case "identity":
                return outputs

    def outputs_of_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        on_progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns the output of each (query, text) before the activation, float64 [n].

        The arguments and errors are those of `score_pairs`.
        """
        predictions = self._predict(list(pairs), on_progress=on_progress)
        # In float32, the sigmoid of every output above 17 would be 1, and their order lost.
        return np.array([prediction[self._field] for prediction in predictions], np.float64)

    def rank(self, query: str, texts: Sequence[str], top_k: int | None = None) -> list[RankedText]:
        """Returns the texts by score, the best first; equal scores stay in the given order.

        Args:
          top_k: number of texts to return; None for all.
        """
        scores = self(query, texts)
        order: list[int] = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [RankedText(i, float(scores[i]), texts[i]) for i in order]
