"""Classifies texts by labels that a model was not trained on, with a model for entailment.

Each label makes a hypothesis, "This example is sports."; a model that was fine-tuned on NLI says
whether the text entails it (Yin et al. 2019). The results are those of the pipeline
"zero-shot-classification" of transformers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bert_jax.errors import ConfigError, UserError
from bert_jax.predict.predictor import Predictor
from bert_jax.tasks.registry import kind_named

DEFAULT_HYPOTHESIS = "This example is {}."


class ZeroShotClassifier:
    """Classifies texts: `ZeroShotClassifier(Predictor(model), ["sports", "politics"])("A text.")`.

    Attributes:
      labels: the labels, in order.
      kind: the kind of task of the results, a classification of single texts.
      max_length: maximum number of tokens of a text with a hypothesis.
    """

    def __init__(
        self,
        predictor: Predictor,
        labels: Sequence[str],
        *,
        hypothesis: str = DEFAULT_HYPOTHESIS,
        multi_label: bool = False,
    ):
        """Finds the label for entailment.

        Args:
          predictor: of a model that was fine-tuned on NLI; one of its labels begins with "entail".
          labels: what texts are classified by.
          hypothesis: the text that a label makes, with "{}" in place of the label.
          multi_label: whether several labels can be right; the probability of each is then that of
            entailment against contradiction, and otherwise they add up to 1.

        Raises:
          UserError: the model has no label for entailment.
          ConfigError: labels or hypothesis are not usable.
        """
        if not labels or "" in labels or len(set(labels)) < len(labels):
            raise ConfigError(
                f"the labels are {', '.join(map(repr, labels)) or 'absent'}; expected different "
                "names, as in sports,politics"
            )
        if "{}" not in hypothesis:
            raise ConfigError(f"the hypothesis is {hypothesis!r}; expected a text with {{}} in it")
        self._predictor, names = predictor, predictor.labels
        entailments = [i for i, name in enumerate(names) if name.lower().startswith("entail")]
        if not entailments or len(names) < 2:
            raise UserError(
                f"the labels of the model are {', '.join(names) or 'absent'}; zero-shot "
                "classification needs a model for entailment (MNLI, SNLI), one of whose labels "
                "begins with 'entail'"
            )
        self._entailment = entailments[0]
        # As in transformers, whichever label stands at the other end is the contradiction.
        self._contradiction = len(names) - 1 if self._entailment == 0 else 0
        self.labels, self._multi_label = tuple(labels), multi_label
        self._hypotheses = [hypothesis.replace("{}", label) for label in labels]
        self.kind, self.max_length = kind_named("classification"), self._predictor.max_length

    @property
    def num_truncated(self) -> int:
        """Returns the number of texts so far that were not read completely with a hypothesis."""
        return self._predictor.num_truncated

    def __call__(
        self, texts: str | Sequence[str], on_progress: Callable[[int], object] | None = None
    ) -> Any:
        """Classifies a text, which returns an object, or several, which returns a list.

        Returns:
          {"text", "label": the most probable one, "probabilities": {label: probability}}; for an
          empty text, the values are None.
        """
        if isinstance(texts, str):
            return self._classify([texts], None)[0]
        return self._classify(texts, on_progress)

    def _classify(
        self, texts: Sequence[str], on_progress: Callable[[int], object] | None
    ) -> list[dict[str, Any]]:
        read = [text for text in texts if text.strip()]
        pairs = [(text, hypothesis) for text in read for hypothesis in self._hypotheses]
        num_labels, done = len(self.labels), 0

        def report(num_pairs: int) -> None:
            nonlocal done
            before, done = done // num_labels, done + num_pairs
            if on_progress is not None:
                on_progress(done // num_labels - before)

        logits_NC = self._predictor.logits(pairs, report).reshape(len(pairs), -1)
        chosen = [self._contradiction, self._entailment]
        if self._multi_label:
            probabilities = softmax(logits_NC[:, chosen].astype(np.float64), axis=-1)[:, 1]
            rows = probabilities.reshape(-1, num_labels)
        else:
            entailed = logits_NC[:, self._entailment].reshape(-1, num_labels)
            rows = softmax(entailed.astype(np.float64), axis=-1)
        found = iter(rows)
        return [
            self._record(text, next(found))
            if text.strip()
            else {"text": text, **self.kind.empty_prediction}
            for text in texts
        ]

    def _record(self, text: str, probabilities: np.ndarray) -> dict[str, Any]:
        return {
            "text": text,
            "label": self.labels[int(probabilities.argmax())],
            "probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True)),
        }
