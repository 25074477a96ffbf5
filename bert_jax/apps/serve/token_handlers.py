"""Answers /tokenize and /decode, which run no model."""

from collections.abc import Set
from typing import Any

from bert_jax.apps.serve import requests as types
from bert_jax.apps.serve.handlers import Call, one_or_more_texts
from bert_jax.apps.serve.request_error import RequestError
from bert_jax.apps.serve.requests import require_nonempty
from bert_jax.apps.serve.served_models import ServedModel
from bert_jax.text.tokenizer import Tokenizer


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
