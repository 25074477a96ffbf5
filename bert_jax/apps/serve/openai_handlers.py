"""Answers requests in OpenAI's shapes: embeddings, and the list of models."""

import base64
from typing import Any

import numpy as np

from bert_jax.apps.serve.handlers import Call, usage
from bert_jax.apps.serve.requests import OpenAIEmbeddingRequest, text_inputs
from bert_jax.apps.serve.served_models import ROUTES
from bert_jax.apps.serve.server_state import ServerState
from bert_jax.apps.serve.work import Work, refuse_long


async def embeddings(call: Call, request: OpenAIEmbeddingRequest) -> Any:
    """Returns embeddings in OpenAI's shape, normalized, also after `dimensions` cuts them."""
    items = text_inputs(request.input, "input")
    call.count(len(items), is_batch=isinstance(request.input, list), name="input")
    model = call.find("embed", request.model)
    service = model.embedding
    assert service is not None

    def make_work() -> Work[np.ndarray]:
        work = service.embed(items, dimensions=request.dimensions)
        advice = "use /embed, which cuts them"
        refuse_long(work.num_truncated, service.max_length, param="input", advice=advice)
        return work

    vectors: np.ndarray = await call.compute(make_work)
    embeddings = (
        [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
        if request.encoding_format == "base64"
        else vectors.tolist()
    )
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
            }
            for model in state.models
        ],
    }
