"""Classifies texts without training, by the masked-LM logits of label words.

This is zero-shot classification or, with demonstrations in the input, in-context learning.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from scipy.special import log_softmax

from bert_jax.config.labeled_data import HeadTruncation
from bert_jax.config.objectives import FineTuning
from bert_jax.config.prompts import Prompt, parse_template, text_names
from bert_jax.data.finetuning.example import Task, TextExample
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import task_parts
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.predict.batches import compute_features, params_to_device
from bert_jax.predict.checks import check_sizes
from bert_jax.pretrained.load import AnyModel, require_encoder, require_masked_lm, require_tokenizer
from bert_jax.tasks.features import make_features
from bert_jax.tasks.registry import kind_of_head, make_prompt_head

CONTENT_FREE_TEXTS = ("N/A", "", "[MASK]")
"""Inputs without content, for contextual calibration (Zhao et al. 2021, section 5). A mask token in
a text is read as the unknown token, because a prompt has one mask only."""

_SPLIT = "test"
_LENGTHS = (16, 32, 64, 128, 256)


class PromptClassifier:
    """Scores the classes of a task with a prompt and a pretrained masked-LM head.

    `PromptClassifier(load_model("exported"), prompt, labels).logits(examples)`

    Attributes:
      labels: class names, in the order of the logits.
      num_truncated: number of examples so far of which a text was truncated.
    """

    def __init__(
        self,
        model: AnyModel,
        prompt: Prompt,
        labels: Sequence[str],
        *,
        demonstrations: Sequence[TextExample] = (),
        max_length: int = 128,
        batch_size: int = 32,
    ):
        """Copies the model to the device.

        Args:
          model: a model with a masked-LM head and a tokenizer.
          demonstrations: labeled examples, from which the demonstrations of a prompt that has
            some are drawn.
          max_length: maximum number of tokens of template and texts together.
          batch_size: maximum number of sequences in a batch.

        Raises:
          UserError: the model has no masked-LM head or no tokenizer, or a label word is not a
            token of it.
          ConfigError: a number is out of range, or the labels of the prompt are others.
        """
        model = require_encoder(model, "score label words")
        self._tokenizer = require_tokenizer(model)
        require_masked_lm(model, "score label words")
        check_sizes(max_length, model.config.max_length, batch_size, 0)
        self._prompt, self.labels, self.num_truncated = prompt, tuple(labels), 0
        self._demonstrations = tuple(demonstrations)
        self._lengths = (*(length for length in _LENGTHS if length < max_length), max_length)
        self._batch_size = batch_size
        head = make_prompt_head(self._task(()), prompt, self._tokenizer)
        self._kind = kind_of_head(head)
        parts = ("encoder", *task_parts(head, model.config))
        self._params = params_to_device(model, parts)
        objective = FineTuningObjective(FineTuning(model=model.config, head=head))
        self._fields = objective.input_fields()
        self._predict_batch = jax.jit(objective.predict)

    def logits(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Computes the logits of the classes, float32 [examples, C]; their labels are ignored.

        Raises:
          UserError: an example is a pair of texts and the template reads one, or the reverse.
          ConfigError: the template leaves no room for text.
        """
        if not examples:
            return np.zeros((0, len(self.labels)), np.float32)
        unlabeled = [self._without_label(each) for each in examples]
        features = make_features(
            self._task(unlabeled),
            _SPLIT,
            self._tokenizer,
            self._lengths[-1],
            truncation=HeadTruncation(),
            prompt=self._prompt,
        )
        self.num_truncated += features.num_truncated
        outputs = compute_features(
            features,
            functools.partial(self._predict_batch, self._params),
            self._fields,
            bucket_lengths=self._lengths,
            batch_size=self._batch_size,
            pad_id=self._tokenizer.pad_id,
        )
        return self._kind.pool_outputs(features, outputs)

    def calibrated_logits(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Computes log probabilities, less those for inputs without content, float64 [examples, C].

        Contextual calibration (Zhao et al. 2021): the probabilities are divided by the mean ones
        of `CONTENT_FREE_TEXTS` in the template, so such an input gets equal scores. Their softmax
        are the calibrated probabilities.
        """
        names = text_names(parse_template(self._prompt.template))
        content_free = [
            TextExample(id=str(index), text=text, text_pair=text if "text_pair" in names else None)
            for index, text in enumerate(CONTENT_FREE_TEXTS)
        ]
        prior = np.exp(log_softmax(self.logits(content_free).astype(np.float64), axis=1)).mean(0)
        return log_softmax(self.logits(examples).astype(np.float64), axis=1) - np.log(prior)

    def _task(self, examples: Sequence[TextExample]) -> Task:
        if len(self.labels) < 2:
            raise ConfigError(f"labels is {list(self.labels)}, expected at least two labels")
        return Task(
            name="the prompt",
            kind="classification",
            labels=self.labels,
            metrics=(),
            splits={_SPLIT: tuple(examples), "train": self._demonstrations},
        )

    def _without_label(self, example: TextExample) -> TextExample:
        return TextExample(id=example.id, text=example.text, text_pair=example.text_pair)
