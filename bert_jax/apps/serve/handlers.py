"""Answers requests: one function for each route, from JSON to JSON.

The shapes are as in text-embeddings-inference (TEI), Cohere (/rerank with `documents`),
transformers' pipelines (/tag, /answer, /fill_mask), OpenAI (/v1), and Jina (/v1/multi-vector).
"""

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from bert_jax.apps.serve import requests as types
from bert_jax.apps.serve.encoder_services import Work, refuse_long, rows_to_json, vectors_to_json
from bert_jax.apps.serve.examples import example_texts
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.requests import (
    OpenAIEmbeddingRequest,
    predict_inputs,
    require_nonempty,
    text_inputs,
)
from bert_jax.apps.serve.retrieval_services import (
    M3MultiVectorService,
    M3Service,
    MultiVectorService,
    maxsim_scores,
)
from bert_jax.apps.serve.served_models import ROUTES, Ability, ServedModel
from bert_jax.apps.serve.server_state import ServerState, Timings
from bert_jax.apps.serve.task_services import TaskService, label_scores, relevance
from bert_jax.interop.sentence_folder import EmbeddingKind
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.version import __version__

T = TypeVar("T")


@dataclass
class Call:
    """Holds one request.

    Attributes:
      state: the server.
      model_name: the model that a header names; the field `model` has precedence.
      adapter: the adapter that a header names.
      timings: filled while the request is computed.
      num_inputs: number of texts, for the metrics.
      is_batch: whether the request has a list of inputs.
    """

    state: ServerState
    model_name: str | None
    adapter: str | None
    timings: Timings
    num_inputs: int = 1
    is_batch: bool = False

    def find(self, ability: Ability, model: str | None) -> ServedModel:
        """Returns the model that a request names, which must have an ability."""
        models = self.state.models
        name = model or self.model_name
        if self.adapter is not None:
            base = models.named(name).name
            name = base if base.endswith(f":{self.adapter}") else f"{base}:{self.adapter}"
        return models.with_ability(ability, name)

    def count(self, number: int, *, is_batch: bool, name: str = "inputs") -> None:
        """Records the number of inputs.

        Raises:
          RequestError: there are too many.
        """
        self.num_inputs, self.is_batch = number, is_batch
        limit = self.state.config.max_inputs
        if number > limit:
            message = f"`{name}` has {number:,} texts; expected at most {limit:,}, so send several"
            raise RequestError("validation", f"{message} requests", name)

    async def compute(self, make_work: Callable[[], Work[T]]) -> T:
        """Tokenizes, computes and decodes the work of the request; see `ServerState.compute`.

        Args:
          make_work: tokenizes the texts, on a thread of the pool.
        """
        return await self.state.compute(make_work, self.timings)


def _keeps_end(request: types.TruncationRequest | types.SimilarityParameters) -> bool:
    return request.truncation_direction.lower() == "left"


async def embed(call: Call, request: types.EmbedRequest) -> Any:
    """Returns a vector for each text."""
    items = text_inputs(request.inputs)
    call.count(len(items), is_batch=isinstance(request.inputs, list))
    service = call.find("embed", request.model).embedding
    assert service is not None  # by its ability
    return await call.compute(
        lambda: service.embed(
            items,
            truncate=request.truncate is not False,
            keep_end=_keeps_end(request),
            prompt_name=request.prompt_name,
            normalize=request.normalize,
            dimensions=request.dimensions,
        ).map(vectors_to_json)
    )


async def embed_all(call: Call, request: types.EmbedAllRequest) -> Any:
    """Returns a vector for each token of each text."""
    items = text_inputs(request.inputs)
    call.count(len(items), is_batch=isinstance(request.inputs, list))
    service = call.find("embed", request.model).embedding
    assert service is not None
    states = await call.compute(
        lambda: service.embed_all(
            items,
            truncate=request.truncate is not False,
            keep_end=_keeps_end(request),
            prompt_name=request.prompt_name,
        )
    )
    return states


async def embed_sparse(call: Call, request: types.EmbedSparseRequest) -> Any:
    """Returns the tokens of the vocabulary with a weight for each text, and the weights."""
    texts = one_or_more_texts(call, request.inputs)
    service = call.find("embed_sparse", request.model).sparse
    assert service is not None
    return await call.compute(
        lambda: service.embed(
            texts,
            role=request.input_type,
            prompt_name=request.prompt_name,
            truncate=request.truncate is not False,
        ).map(_sparse_vectors_to_json)
    )


async def multi_vector(call: Call, request: types.MultiVectorRequest) -> Any:
    """Returns the vectors of all tokens of each query or document, in Jina's shape."""
    texts = one_or_more_texts(call, request.input, "input")
    model = call.find("multi_vector", request.model)
    service = model.multi_vector
    assert service is not None
    vectors = await call.compute(
        lambda: service.embed(texts, role=request.input_type).map(_token_vectors_to_json)
    )
    return {
        "object": "list",
        "data": [
            {"object": "embeddings", "index": index, "embeddings": each}
            for index, each in enumerate(vectors)
        ],
        "model": model.name,
        "usage": usage(call),
    }


async def embed_heads(call: Call, request: types.EmbedHeadsRequest) -> Any:
    """Returns the embeddings of texts by several heads, computed in one pass."""
    texts = one_or_more_texts(call, request.inputs)
    service = call.find("embed_heads", request.model).embedding
    assert isinstance(service, M3Service)
    return await call.compute(
        lambda: service.embed_heads(
            texts,
            service.kinds if request.heads is None else request.heads,
            prompt_name=request.prompt_name,
            truncate=request.truncate is not False,
        ).map(_heads_to_json)
    )


def _token_vectors_to_json(vectors_of_texts: Iterable[np.ndarray]) -> list[msgspec.Raw]:
    return [rows_to_json(vectors) for vectors in vectors_of_texts]


def _sparse_vectors_to_json(vectors: Iterable[list[dict[str, Any]]]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(vector)) for vector in vectors]


def _heads_to_json(heads: dict[EmbeddingKind, list[Any]]) -> dict[EmbeddingKind, list[Any]]:
    convert = {
        "dense": vectors_to_json,
        "multi_vector": _token_vectors_to_json,
        "sparse": _sparse_vectors_to_json,
    }
    return {kind: convert[kind](embeddings) for kind, embeddings in heads.items()}


async def similarity(call: Call, request: types.SimilarityRequest) -> Any:
    """Returns the cosine similarity of a sentence to each of others."""
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    require_nonempty(texts[:1], "inputs.source_sentence")
    require_nonempty(texts[1:], "inputs.sentences")
    call.count(len(texts), is_batch=True, name="inputs.sentences")
    parameters = request.parameters or types.SimilarityParameters()
    service = call.find("embed", request.model).embedding
    assert service is not None
    vectors = await call.compute(
        lambda: service.embed(
            list(texts),
            truncate=parameters.truncate is not False,
            keep_end=_keeps_end(parameters),
            prompt_name=parameters.prompt_name,
        )
    )
    return (vectors[1:] @ vectors[0]).tolist()


async def predict(call: Call, request: types.PredictRequest) -> Any:
    """Returns the labels of texts or pairs with their scores, the highest first."""
    inputs, is_batch = predict_inputs(request.inputs)
    call.count(len(inputs), is_batch=is_batch)
    service = _task(call.find("predict", request.model))
    values = await call.compute(
        lambda: service.predict(
            inputs, truncate=request.truncate is not False, keep_end=_keeps_end(request)
        )
    )
    scores = [label_scores(service, row, raw=request.raw_scores) for row in values]
    return scores if is_batch else scores[0]


async def rerank(call: Call, request: types.RerankRequest) -> Any:
    """Returns the relevance of texts to a query, the highest first."""
    if (request.texts is None) == (request.documents is None):
        message = "expected either `texts`, as in TEI, or `documents`, as in Cohere's API"
        raise RequestError("validation", message, "texts")
    texts = request.texts if request.texts is not None else request.documents or []
    require_nonempty([request.query], "query")
    name = "texts" if request.documents is None else "documents"
    require_nonempty(texts, name)
    call.count(len(texts), is_batch=True, name=name)
    if request.top_n is not None and request.top_n < 1:
        raise RequestError("validation", f"`top_n` is {request.top_n}; expected at least 1")
    model = call.find("rerank", request.model)
    if model.multi_vector is not None:
        scores = await _late_interaction(call, model.multi_vector, request, texts)
    else:
        service = _task(model)
        values = await call.compute(
            lambda: service.predict(
                [(request.query, text) for text in texts],
                truncate=request.truncate is not False,
                keep_end=_keeps_end(request),
            )
        )
        # As `Reranker`: a cross-encoder may have a regression head, whose output is a logit.
        scores = relevance(values, raw=request.raw_scores or service.has_identity)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: request.top_n]
    if request.documents is None:
        return [
            {"index": index, "score": scores[index]}
            | ({"text": texts[index]} if request.return_text else {})
            for index in order
        ]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if request.return_documents else {})
        for index in order
    ]
    return {
        "object": "rerank",
        "id": uuid.uuid4().hex,
        "model": model.name,
        "created": int(time.time()),
        "results": results,
        "usage": usage(call),
    }


async def _late_interaction(
    call: Call,
    service: MultiVectorService | M3MultiVectorService,
    request: types.RerankRequest,
    texts: list[str],
) -> list[float]:
    """Returns the MaxSim of the query and each text, which is never mapped to (0, 1)."""
    if _keeps_end(request):
        message = (
            f"`truncation_direction` is {request.truncation_direction!r}, but a multi-vector model "
            "always cuts the end of long texts; leave it out"
        )
        raise RequestError("validation", message, "truncation_direction")
    truncate = request.truncate is not False
    (query,) = await call.compute(
        lambda: service.embed([request.query], role="query", truncate=truncate)
    )
    documents = await call.compute(lambda: service.embed(texts, truncate=truncate))
    return await call.state.in_thread(lambda: maxsim_scores(query, documents, service.similarity))


async def tag(call: Call, request: types.TextsRequest) -> Any:
    """Returns the entities of texts."""
    texts = one_or_more_texts(call, request.inputs)
    service = _task(call.find("tag", request.model))
    entities = await call.compute(lambda: service.tag(texts))
    return entities if call.is_batch else entities[0]


async def answer(call: Call, request: types.AnswerRequest) -> Any:
    """Returns the answers to questions about a text."""
    questions = request.inputs if isinstance(request.inputs, list) else [request.inputs]
    call.count(len(questions), is_batch=isinstance(request.inputs, list))
    require_nonempty([question.question for question in questions], "inputs.question")
    require_nonempty([question.context for question in questions], "inputs.context")
    service = _task(call.find("answer", request.model))
    answers = await call.compute(
        lambda: service.answer([(each.question, each.context) for each in questions])
    )
    return answers if call.is_batch else answers[0]


async def attention(call: Call, request: types.AttentionRequest) -> Any:
    """Returns the tokens of a text and the attention weights [layers][heads][tokens][tokens]."""
    require_nonempty([request.inputs], "inputs")
    service = call.find("attention", request.model).attention
    assert service is not None
    return await call.compute(lambda: service.attend(request.inputs))


async def fill_mask(call: Call, request: types.FillMaskRequest) -> Any:
    """Returns tokens for the masks of texts; a text with one mask gives a list of candidates."""
    texts = one_or_more_texts(call, request.inputs)
    service = call.find("fill_mask", request.model).fill_mask
    assert service is not None
    results = await call.compute(lambda: service.fill(texts, request.top_k))
    results = [masks[0] if len(masks) == 1 else masks for masks in results]
    return results if call.is_batch else results[0]


def info(state: ServerState, name: str | None) -> dict[str, Any]:
    """Returns what TEI's /info has, about one model and the limits of the server."""
    model, config = state.models.named(name), state.config
    return {
        "model_id": model.path,
        "model_sha": None,
        "model_dtype": "float32",
        "served_model_name": model.name,
        "model_type": model.model_type,
        "max_concurrent_requests": config.max_concurrent_requests,
        "max_input_length": model.max_length,
        "max_batch_tokens": config.max_batch_tokens,
        "max_batch_requests": config.max_batch_rows,
        "max_client_batch_size": config.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": config.tokenizer_threads,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "models": [each.name for each in state.models],
    }


def usage(call: Call) -> dict[str, int]:
    """Returns the number of tokens in OpenAI's shape."""
    return {"prompt_tokens": call.timings.num_tokens, "total_tokens": call.timings.num_tokens}


def one_or_more_texts(call: Call, value: str | list[str], name: str = "inputs") -> list[str]:
    """Returns the texts of the field `name` as a list, and records their number.

    Raises:
      RequestError: there are none or too many, or one is empty.
    """
    texts = [value] if isinstance(value, str) else value
    call.count(len(texts), is_batch=isinstance(value, list), name=name)
    require_nonempty(texts, name)
    return texts


def _task(model: ServedModel) -> TaskService:
    assert model.task is not None  # by its ability
    return model.task


async def tokenize(call: Call, request: types.TokenizeRequest) -> Any:
    """Returns the tokens of texts with their prompt; `start` and `stop` count characters."""
    texts = one_or_more_texts(call, request.inputs)
    model = call.state.models.named(request.model or call.model_name)
    if model.embedding is not None:
        prompt = model.embedding.prompt(request.prompt_name)
        texts = [prompt + text for text in texts]
    elif request.prompt_name is not None:
        message = f"{model.name} has no prompts; leave out `prompt_name`, or name another model"
        raise RequestError("validation", message, "prompt_name")
    return await call.state.in_thread(
        lambda: [_tokens(model, text, request.add_special_tokens) for text in texts]
    )


def _tokens(model: ServedModel, text: str, add_special_tokens: bool) -> list[dict[str, Any]]:
    tokenizer = model.tokenizer
    encoding = tokenizer.encode_batch([text])[0]
    tokens: list[dict[str, Any]] = [
        {"id": int(i), "text": text[start:end], "special": False, "start": start, "stop": end}
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    for token in tokens:
        token["special"] = token["id"] in tokenizer.special_ids
    if not add_special_tokens:
        return tokens
    ids = tokenizer.build_inputs_with_special_tokens(encoding.ids).tolist()
    first, last = (
        {
            "id": token_id,
            "text": tokenizer.id_to_token(token_id),
            "special": True,
            "start": None,
            "stop": None,
        }
        for token_id in (ids[0], ids[-1])
    )
    return [first, *tokens, last]


async def decode(call: Call, request: types.DecodeRequest) -> Any:
    """Returns the text of token ids."""
    require_nonempty([[1]] if request.ids else [], "ids")
    tokenizer = call.state.models.named(request.model or call.model_name).tokenizer
    flat = [item for item in request.ids if isinstance(item, int)]
    lists = [flat] if flat else [item for item in request.ids if isinstance(item, list)]
    if flat and len(flat) < len(request.ids):
        message = "`ids` has numbers and lists; expected one of them"
        raise RequestError("validation", message, "ids")
    call.count(len(lists), is_batch=not flat, name="ids")
    special = tokenizer.special_ids if request.skip_special_tokens else frozenset[int]()
    return await call.state.in_thread(lambda: [_text(ids, tokenizer, special) for ids in lists])


def _text(ids: list[int], tokenizer: Tokenizer, skipped: Set[int]) -> str:
    if wrong := [i for i in ids if not 0 <= i < tokenizer.vocab_size]:
        message = (
            f"the token id {wrong[0]} is not in the vocabulary; expected 0 to "
            f"{tokenizer.vocab_size - 1}"
        )
        raise RequestError("validation", message, "ids")
    return tokenizer.decode([i for i in ids if i not in skipped])


async def embeddings(call: Call, request: OpenAIEmbeddingRequest) -> Any:
    """Returns embeddings in OpenAI's shape, normalized, also after `dimensions` cuts them."""
    items = text_inputs(request.input, "input")
    call.count(len(items), is_batch=isinstance(request.input, list), name="input")
    model = call.find("embed", request.model)
    service = model.embedding
    assert service is not None

    def to_json(vectors: np.ndarray) -> Sequence[Any]:
        if request.encoding_format != "base64":
            return vectors_to_json(vectors)
        # OpenAI's clients ask for base64 by default and read little-endian float32.
        return [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]

    def make_work() -> Work[Sequence[Any]]:
        work = service.embed(items, dimensions=request.dimensions)
        advice = "use /embed, which cuts them"
        refuse_long(work.num_truncated, service.max_length, param="input", advice=advice)
        return work.map(to_json)

    embeddings = await call.compute(make_work)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": embedding}
            for index, embedding in enumerate(embeddings)
        ],
        "model": model.name,
        "usage": usage(call),
    }


def list_models(state: ServerState) -> dict[str, Any]:
    """Returns the models in OpenAI's shape, each with its routes and its type as in /info."""
    return {
        "object": "list",
        "data": [
            {
                "id": model.name,
                "object": "model",
                "created": state.started_at,
                "owned_by": "bert_jax",
                "model_type": model.model_type,
                "routes": [route for ability in model.abilities for route in ROUTES[ability]],
                # Clients that write masks into texts need it.
                "mask_token": model.tokenizer.special_tokens.mask,
                "examples": example_texts(model),
            }
            for model in state.models
        ],
    }
