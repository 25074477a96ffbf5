"""Serves fine-tuned models: labels, relevance, tags, answers; and adapters that share a base.

A batch may have a different adapter for each sequence.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from scipy.special import expit, softmax

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.encoder_services import Work, refuse_long
from bert_jax.config.labeled_data import HeadTruncation
from bert_jax.errors import UserError
from bert_jax.interop.peft.adapter_config import is_adapter_folder
from bert_jax.models.heads.config import (
    TaskHead,
    label_thresholds,
    task_parts,
    window_encoder_of,
)
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params.paths import ADAPTER
from bert_jax.predict.adapter_set import AdapterSet, set_key
from bert_jax.predict.batches import Arrays, Backend, Buckets, Engine, JaxBackend, TokenSequence
from bert_jax.predict.task_processor import (
    PreparedInputs,
    TaskProcessor,
    TruncationName,
    require_head,
)
from bert_jax.pretrained.adapter_folder import read_peft_adapter
from bert_jax.pretrained.base_model import TrainedAdapter, read_adapter, restore_run
from bert_jax.pretrained.folder import resolve_model_folder
from bert_jax.pretrained.load import LoadedModel, RunCheckpoint, require_tokenizer
from bert_jax.runs import run_folder
from bert_jax.tasks.base import ModelInput
from bert_jax.tasks.metrics.ner_metrics import entity_spans
from bert_jax.tasks.registry import head_spec, kind_of_head
from bert_jax.tasks.token_classification import TokenClassification
from bert_jax.text.word_offsets import word_offsets


def outputs_of(head: TaskHead, path: str) -> tuple[str, ...]:
    """Returns the names of the outputs of a head.

    Raises:
      UserError: the server has no route for such a head.
    """
    if head.scope == "choices" or window_encoder_of(head) is not None:
        found = "a hierarchical head" if window_encoder_of(head) else type(head).__name__
        raise UserError(
            f"{path} has {found}, which the server does not support; expected a model that "
            "classifies, tags, answers questions or predicts numbers; use bert-jax predict"
        )
    return head_spec(head).output_names


def make_task_engine(
    name: str, model: LoadedModel, config: ServerConfig, backend: Backend | None = None
) -> Engine:
    """Returns the engine of a fine-tuned model: its encoder and its head, or a `backend`."""
    head, processor = require_head(model), make_processor(model, config)
    objective = FineTuningObjective(processor.settings.objective, model.adapter)
    parts = ("encoder", *task_parts(head, model.config))
    params = {part: model.params[part] for part in parts}
    params |= {ADAPTER: model.adapter_params} if model.adapter else {}

    def compute(params: Any, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return objective.predict(params, dict(batch))

    return Engine(
        f"{processor.kind.name} of {name}",
        backend or JaxBackend(compute, params),
        Buckets(processor.max_length, config.max_batch_tokens, config.max_batch_rows),
        pad_id=processor.tokenizer.pad_id,
    )


def make_processor(
    model: LoadedModel, config: ServerConfig, truncation: TruncationName | None = None
) -> TaskProcessor:
    """Returns the processor of a model, with at most `config.max_length` tokens a sequence."""
    processor = TaskProcessor(model, truncation=truncation)
    if config.max_length is None or config.max_length >= processor.max_length:
        return processor
    return TaskProcessor(model, truncation=truncation, max_length=config.max_length)


class TaskService:
    """Answers requests with a fine-tuned model.

    Attributes:
      engine: computes the outputs of the head.
      head: the head of the model.
      labels: the class names; "LABEL_0" if the head has one output, as in transformers.
      max_length: maximum number of tokens of a sequence.
    """

    def __init__(
        self,
        model: LoadedModel,
        engine: Engine,
        config: ServerConfig,
        extra: Mapping[str, np.ndarray] | None = None,
    ):
        """Makes a service on an engine.

        Args:
          extra: further fields of every sequence, such as the index of an adapter.
        """
        self.engine, self.head, self._extra = engine, require_head(model), dict(extra or {})
        self._outputs = outputs_of(self.head, model.path)
        self._processor = make_processor(model, config)
        self.tokenizer, self.kind = self._processor.tokenizer, self._processor.kind
        self.labels = self._processor.labels or ("LABEL_0",)
        self.max_length = self._processor.max_length
        self._keeping_end = self._processor
        can_keep_end = not self.kind.reads_windows and self._processor.settings.prompt is None
        if can_keep_end and isinstance(self._processor.truncation, HeadTruncation):
            self._keeping_end = make_processor(model, config, "tail")

    @property
    def has_one_output(self) -> bool:
        """Returns whether the model gives one number for a text or a pair, as rerankers do."""
        return kind_of_head(self.head).output_field is not None

    @property
    def is_number(self) -> bool:
        """Returns whether the output is the score itself, and not a logit, as in regression."""
        return kind_of_head(self.head).output_field == "value" or self.has_identity

    @property
    def has_identity(self) -> bool:
        """Returns whether this is a cross-encoder that was trained without a sigmoid."""
        return getattr(self.head, "activation", None) == "identity"

    def predict(
        self,
        inputs: Sequence[str | tuple[str, str]],
        *,
        truncate: bool = True,
        keep_end: bool = False,
    ) -> Work[np.ndarray]:
        """Tokenizes texts or pairs; the result is the logits or values, float [inputs, C]."""
        processor = self._keeping_end if keep_end else self._processor
        prepared = processor.prepare(cast(Sequence[ModelInput], inputs))
        if not truncate:
            refuse_long(prepared.features.num_truncated, self.max_length)

        def decode(outputs: Sequence[Arrays]) -> np.ndarray:
            pooled = self.kind.pool_outputs(prepared.features, self._columns(outputs))
            return np.asarray(pooled, np.float64).reshape(len(inputs), -1)

        return self._work(prepared, decode)

    def tag(self, texts: Sequence[str]) -> Work[list[list[dict[str, Any]]]]:
        """Tokenizes texts; the result is the entities of each, with character offsets."""
        processor, kind = self._processor, self.kind
        assert isinstance(kind, TokenClassification)  # the routes are chosen by the kind
        prepared = processor.prepare(list(texts))

        def decode(outputs: Sequence[Arrays]) -> list[list[dict[str, Any]]]:
            columns, examples = self._columns(outputs), cast(Any, prepared.examples)
            tag_lists = processor.decode(examples, prepared.features, columns)
            logits = kind.word_logits(examples, prepared.features, columns, self.labels)
            entities = [
                _entities(texts[index], tags, word_logits, self.labels)
                for index, tags, word_logits in zip(
                    prepared.indices, tag_lists, logits, strict=True
                )
            ]
            by_text = dict(zip(prepared.indices, entities, strict=True))
            return [by_text.get(index, []) for index in range(len(texts))]

        return self._work(prepared, decode)

    def answer(self, questions: Sequence[tuple[str, str]]) -> Work[list[dict[str, Any]]]:
        """Tokenizes (question, context) pairs; the result is the best answer to each."""
        prepared = self._processor.prepare(list(questions))

        def decode(outputs: Sequence[Arrays]) -> list[dict[str, Any]]:
            records = self._processor.records(prepared, self._columns(outputs))
            return [
                {
                    "score": record["probability"],
                    "start": max(record["start"], 0),
                    "end": max(record["end"], 0),
                    "answer": record["answer"],
                }
                for record in records
            ]

        return self._work(prepared, decode)

    def _columns(self, outputs: Sequence[Arrays]) -> dict[str, list[np.ndarray]]:
        return {name: [output[name] for output in outputs] for name in self._outputs}

    def _work(self, prepared: PreparedInputs, decode: Any) -> Work[Any]:
        features = prepared.features
        return Work(
            engine=self.engine,
            sequences=[
                TokenSequence(
                    input_ids=ids, token_type_ids=types, outputs=self._outputs, extra=self._extra
                )
                for ids, types in zip(features.input_ids, features.token_type_ids, strict=True)
            ],
            decode=decode,
            num_characters=sum(
                len(text)
                for example in prepared.examples
                for text in self.kind.input_texts(example)
            ),
            num_truncated=features.num_truncated,
        )


def label_scores(service: TaskService, values: np.ndarray, *, raw: bool) -> list[dict[str, Any]]:
    """Returns [{"score", "label"}] of one input, the highest score first.

    If labels have thresholds, "predicted" tells whether the probability of a label is above its
    threshold.

    Args:
      values: the outputs of the head, float [C].
      raw: whether scores are logits instead of probabilities.
    """
    labels, thresholds = service.labels, label_thresholds(service.head)
    is_independent = service.kind.has_independent_labels or len(labels) == 1
    probabilities = expit(values) if is_independent else softmax(values)
    scores = values if raw or service.is_number else probabilities
    rows: list[dict[str, Any]] = [
        {"score": float(score), "label": label} for score, label in zip(scores, labels, strict=True)
    ]
    for row, probability, threshold in zip(rows, probabilities, thresholds, strict=False):
        row["predicted"] = bool(probability > threshold)
    return sorted(rows, key=lambda row: -row["score"])


def relevance(values: np.ndarray, *, raw: bool) -> list[float]:
    """Returns the score of each text, float [texts, 1] -> floats; probabilities unless raw."""
    scores = values[:, 0] if raw else expit(values[:, 0])
    return [float(score) for score in scores]


def _entities(
    text: str, tags: Sequence[str], logits: np.ndarray, labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns entities in the shape of transformers' token classification pipeline.

    Args:
      logits: of each word, float [words, C].
    """
    offsets, probabilities = word_offsets([text])[0], softmax(logits.astype(np.float64), axis=1)
    entities: list[dict[str, Any]] = []
    for entity in entity_spans(tags):
        words = range(entity.start, entity.end)
        scores = [probabilities[word, labels.index(tags[word])] for word in words]
        start, end = offsets[entity.start][0], offsets[entity.end - 1][1]
        entities.append(
            {
                "entity_group": entity.type,
                "score": float(np.mean(scores)),
                "word": text[start:end],
                "start": start,
                "end": end,
            }
        )
    return entities


_INDEX = "adapter_index"
"""Field of a batch: the index of the adapter of each sequence, int32 [B]."""


def make_adapter_services(
    name: str, base: LoadedModel, folders: Mapping[str, str], config: ServerConfig
) -> dict[str, TaskService]:
    """Returns the service of each adapter; adapters of the same method and kind share an engine.

    Args:
      name: the name of the base, for messages.
      folders: name of an adapter -> run folder or adapter folder of peft.

    Raises:
      UserError: a folder has no adapter, or one of another base.
    """
    read: dict[str, tuple[TrainedAdapter, LoadedModel]] = {}
    groups: dict[Any, dict[str, TrainedAdapter]] = {}
    for adapter_name, folder in folders.items():
        adapter, model = _read(resolve_model_folder(folder), base)
        outputs_of(adapter.head, folder)
        read[adapter_name] = adapter, model
        groups.setdefault(set_key(adapter), {})[adapter_name] = adapter
    services: dict[str, TaskService] = {}
    for adapters in groups.values():
        adapter_set = AdapterSet(base, adapters)
        max_length = max(make_processor(read[each][1], config).max_length for each in adapters)
        engine = Engine(
            f"the adapters {', '.join(adapters)} of {name}",
            _backend(adapter_set),
            Buckets(max_length, config.max_batch_tokens, config.max_batch_rows),
            pad_id=require_tokenizer(base).pad_id,
            extra={_INDEX: np.array(0, np.int32)},
        )
        for each in adapters:
            extra = {_INDEX: np.array(adapter_set.index(each), np.int32)}
            services[each] = TaskService(read[each][1], engine, config, extra)
    return services


def _backend(adapter_set: AdapterSet) -> JaxBackend:
    def compute(params: Any, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        encoder, stacked = params
        fields = {field: value for field, value in batch.items() if field != _INDEX}
        return adapter_set.compute(encoder, stacked, fields, batch[_INDEX])

    return JaxBackend(compute, adapter_set.parameters)


def _read(folder: Path, base: LoadedModel) -> tuple[TrainedAdapter, LoadedModel]:
    """Returns an adapter, and the base with the head and the settings of the adapter."""
    if is_adapter_folder(folder):
        adapter = read_peft_adapter(folder, base)
        return adapter, dataclasses.replace(base, head=adapter.head, run=None, path=str(folder))
    if not run_folder.is_run_folder(folder):
        raise UserError(
            f"--adapter {folder}: expected the folder of a fine-tuning run with an adapter, such "
            "as --method lora, or an adapter folder of peft"
        )
    adapter = read_adapter(folder)
    _, info, step = restore_run(folder, None)
    run = RunCheckpoint(folder=folder, step=step, info=info)
    return adapter, dataclasses.replace(base, head=adapter.head, run=run, path=str(folder))
