"""Loads the models of a server, and finds the one that a request names."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax

from bert_jax.apps.serve.config import ServerConfig
from bert_jax.apps.serve.encoder_services import AttentionService, EmbeddingService, FillMaskService
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.retrieval_services import (
    M3MultiVectorService,
    M3Service,
    M3SparseService,
    MultiVectorService,
    SparseService,
)
from bert_jax.apps.serve.task_services import TaskService, make_adapter_services, make_task_engine
from bert_jax.errors import ConfigError, did_you_mean
from bert_jax.export.outputs import HiddenStates, MaskedLMLogits, shipped_network
from bert_jax.interop.m3_heads import m3_heads_of
from bert_jax.models.heads.config import (
    TaskHead,
)
from bert_jax.models.sentence_encoder.config import SentenceEncoderConfig
from bert_jax.predict.batches import Backend, Engine
from bert_jax.pretrained.embedding_model import embedding_kind
from bert_jax.pretrained.load import LoadedModel, require_single_task, require_tokenizer
from bert_jax.text.tokenizer import Tokenizer

Ability = Literal[
    "embed",
    "embed_sparse",
    "multi_vector",
    "embed_heads",
    "predict",
    "rerank",
    "tag",
    "answer",
    "fill_mask",
    "attention",
]
"""What a model can be asked for."""
ROUTES: dict[Ability, tuple[str, ...]] = {
    "embed": ("/embed", "/embed_all", "/similarity", "/v1/embeddings"),
    "embed_sparse": ("/embed_sparse",),
    "multi_vector": ("/v1/multi-vector",),
    "embed_heads": ("/embed_heads",),
    "predict": ("/predict",),
    "rerank": ("/rerank",),
    "tag": ("/tag",),
    "answer": ("/answer",),
    "fill_mask": ("/fill_mask",),
    "attention": ("/attention",),
}
"""Ability -> the routes that need it."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Holds a model, or an adapter of a model, with its services.

    Attributes:
      name: what requests call it: "name" or "name:adapter".
      path: the folder from which it was loaded.
      tokenizer: its tokenizer.
    """

    name: str
    path: str
    tokenizer: Tokenizer
    embedding: EmbeddingService | None = None
    sparse: SparseService | M3SparseService | None = None
    multi_vector: MultiVectorService | M3MultiVectorService | None = None
    task: TaskService | None = None
    fill_mask: FillMaskService | None = None
    attention: AttentionService | None = None

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """Returns what the model can be asked for."""
        found: list[Ability] = []
        if self.embedding is not None:
            found.append("embed")
        if self.sparse is not None:
            found.append("embed_sparse")
        if self.multi_vector is not None:
            found.extend(("multi_vector", "rerank"))
        if isinstance(self.embedding, M3Service):
            found.append("embed_heads")
        if self.fill_mask is not None:
            found.append("fill_mask")
        if self.task is not None:
            found += _abilities_of(self.task.head, self.task.has_one_output)
        if self.attention is not None:
            found.append("attention")
        return tuple(found)

    @property
    def max_length(self) -> int:
        """Returns the maximum number of tokens of a sequence."""
        services = (self.embedding, self.sparse, self.multi_vector, self.task, self.fill_mask)
        return next(service.max_length for service in services if service is not None)

    @property
    def model_type(self) -> dict[str, Any]:
        """Returns what TEI's /info calls `model_type`; tags, answers and masks are not in TEI."""
        if self.embedding is not None:
            return {"embedding": {"pooling": self.embedding.pooling}}
        if self.sparse is not None:
            return {"embedding": {"pooling": "splade"}}
        if self.multi_vector is not None:
            similarity = self.multi_vector.similarity
            return {"multi_vector": {"similarity": similarity, "width": self.multi_vector.width}}
        if self.task is None:
            return {"fill_mask": {}}
        labels = {
            "id2label": {str(i): label for i, label in enumerate(self.task.labels)},
            "label2id": {label: i for i, label in enumerate(self.task.labels)},
        }
        if self.task.head.scope == "tokens":
            return {"token_classification": labels}
        if self.task.head.scope == "span":
            return {"question_answering": {}}
        return {"reranker" if self.task.has_one_output else "classifier": labels}

    @property
    def engines(self) -> list[Engine]:
        """Returns the engines of all services."""
        services = (self.embedding, self.task, self.fill_mask, self.attention)
        engines = [service.engine for service in services if service is not None]
        retrieval = (self.sparse, self.multi_vector)
        return engines + [each for service in retrieval if service for each in service.engines]


def _abilities_of(head: TaskHead, has_one_output: bool) -> list[Ability]:
    match head.scope:
        case "tokens":
            return ["tag"]
        case "span":
            return ["answer"]
        case _:
            return ["predict", "rerank"] if has_one_output else ["predict"]


def serve_model(
    name: str,
    model: LoadedModel,
    config: ServerConfig,
    adapters: Mapping[str, str] | None = None,
    backend: Backend | None = None,
) -> list[ServedModel]:
    """Makes the services that a model has the parameters for, and of its adapters.

    Args:
      name: what requests call the model; its adapters are called "name:adapter".
      adapters: name of an adapter -> its folder.
      backend: computes the output with which the model was exported, in place of its parameters.

    Raises:
      ConfigError: there are adapters and a backend.
      UserError: the model has no tokenizer, or a head that the server does not support; or an
        adapter was trained on another base.
    """
    require_single_task(model)
    if backend is not None:
        if adapters:
            raise ConfigError(
                f"{model.path} is served from exported files, which have no adapters; remove "
                "--adapter, or serve the model itself"
            )
        return [_serve_exported(name, model, config, backend)]
    # All services of a model use the same copy of its parameters on the device.
    model = dataclasses.replace(model, params=jax.device_put(model.params))
    task = embedding = sparse = multi_vector = fill_mask = None
    if model.head is not None:
        task = TaskService(model, make_task_engine(name, model, config), config)
    else:
        match embedding_kind(model):
            case "dense":
                if m3_heads_of(Path(model.path)):
                    embedding = M3Service(name, model, config)
                    if "sparse" in embedding.kinds:
                        sparse = M3SparseService(embedding)
                    if "multi_vector" in embedding.kinds:
                        multi_vector = M3MultiVectorService(embedding)
                else:
                    embedding = EmbeddingService(name, model, config)
            case "sparse":
                sparse = SparseService(name, model, config)
            case "multi_vector":
                multi_vector = MultiVectorService(name, model, config)
        if "masked_lm" not in model.missing:
            fill_mask = FillMaskService(name, model, config)
    served = [
        ServedModel(
            name=name,
            path=model.path,
            tokenizer=require_tokenizer(model),
            embedding=embedding,
            sparse=sparse,
            multi_vector=multi_vector,
            task=task,
            fill_mask=fill_mask,
            attention=AttentionService(name, model, config) if model.adapter is None else None,
        )
    ]
    for adapter_name, service in make_adapter_services(name, model, adapters or {}, config).items():
        served.append(
            ServedModel(
                name=f"{name}:{adapter_name}",
                path=(adapters or {})[adapter_name],
                tokenizer=service.tokenizer,
                task=service,
            )
        )
    return served


def _serve_exported(
    name: str, model: LoadedModel, config: ServerConfig, backend: Backend
) -> ServedModel:
    """Makes the one service of an exported model."""
    task = embedding = fill_mask = None
    match shipped_network(model).output:
        case HiddenStates() | SentenceEncoderConfig():
            embedding = EmbeddingService(name, model, config, backend)
        case MaskedLMLogits():
            fill_mask = FillMaskService(name, model, config, backend)
        case _:
            task = TaskService(model, make_task_engine(name, model, config, backend), config)
    return ServedModel(
        name=name,
        path=model.path,
        tokenizer=require_tokenizer(model),
        embedding=embedding,
        task=task,
        fill_mask=fill_mask,
    )


class ServedModels:
    """Finds models by name."""

    def __init__(self, models: Sequence[ServedModel]):
        """Keeps models, whose names are different."""
        # Adapters come last: a request that names no model gets the first one that can answer.
        in_order = sorted(models, key=lambda model: ":" in model.name)
        self.by_name = {model.name: model for model in in_order}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.by_name.values())

    @property
    def first(self) -> ServedModel:
        """Returns the first model, which /info describes."""
        return next(iter(self))

    def engines(self) -> list[Engine]:
        """Returns the engines of all models, each once."""
        return list(dict.fromkeys(engine for model in self for engine in model.engines))

    def named(self, name: str | None) -> ServedModel:
        """Returns the model of a name, or the first one.

        Raises:
          RequestError: there is no such model.
        """
        if name is None:
            return self.first
        if name not in self.by_name:
            known = list(self.by_name)
            hint = did_you_mean(name, known) + f"the server has {', '.join(known)}"
            raise RequestError("model", f"there is no model {name!r}; {hint}", "model")
        return self.by_name[name]

    def with_ability(self, ability: Ability, name: str | None) -> ServedModel:
        """Returns the model of a name, or the first one that can be asked for something.

        Raises:
          RequestError: there is no such model, or it has no head for it.
        """
        if name is None:
            for model in self:
                if ability in model.abilities:
                    return model
            found = "; ".join(f"{model.name} is {_describe(model)}" for model in self)
            route = ROUTES[ability][0]
            message = f"no model of this server can be asked for {route}: {found}"
            raise RequestError("validation", message, "model")
        model = self.named(name)
        if ability not in model.abilities:
            message = f"{name} cannot be asked for {ROUTES[ability][0]}: it is {_describe(model)}"
            raise RequestError("validation", message, "model")
        return model


def _describe(model: ServedModel) -> str:
    routes = [route for ability in model.abilities for route in ROUTES[ability]]
    kind = "an encoder without a task head"
    if model.task is not None:
        kind = f"a model for {model.task.kind.name}"
    elif isinstance(model.embedding, M3Service):
        kind = "a model with several heads"
    elif model.sparse is not None or model.multi_vector is not None:
        kind = "a sparse model" if model.sparse is not None else "a multi-vector model"
    return f"{kind}, with {', '.join(routes)}"
