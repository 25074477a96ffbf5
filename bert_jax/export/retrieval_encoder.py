"""Exports sparse and multi-vector models as folders that sentence-transformers opens.

`SparseEncoder(folder)` and `MultiVectorEncoder(folder)` open them, and PyLate opens multi-vector
models that it can express. A folder gets its name only when it is complete and its vectors are the
same when it is read back.
"""

import dataclasses
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError
from bert_jax.export.export import TOLERANCE, new_folder, verify_export, write_folder
from bert_jax.export.model_card import provenance_lines, run_sections
from bert_jax.export.sentence_encoder import SAMPLE_TEXTS
from bert_jax.interop.multi_vector_encoder import MultiVectorHead, write_multi_vector_head
from bert_jax.interop.sparse_encoder import (
    SparseHead,
    sparse_encoder_folder,
    write_sparse_head,
)
from bert_jax.models.families import format_of
from bert_jax.models.heads.config import masked_lm_parts
from bert_jax.models.sentence_encoder.config import TEXT_ROLES, MultiVectorEncoderConfig
from bert_jax.params import paths
from bert_jax.predict.multi_vector_embedder import MultiVectorEmbedder
from bert_jax.predict.sparse_embedder import SparseEmbedder
from bert_jax.pretrained.embedding_model import (
    MultiVectorModel,
    SparseModel,
    load_embedding_model,
)
from bert_jax.pretrained.load import require_tokenizer

_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: {pipeline}
tags:
- {model_type}
- sentence-transformers
- {tag}
- bert_jax
---

# {name}

{summary}

## Use

```python
from sentence_transformers import {class_name}

model = {class_name}("{name}")
queries = model.encode_query(["A question?"])
documents = model.encode_document(["A text.", "Another text."])
print(model.similarity(queries, documents))
```

With bert_jax:

```
bert-jax embed {name} --role query "A question?"
bert-jax embed {name} "A text." "Another text."
```
"""


def export_retrieval_encoder(retrieval: SparseModel | MultiVectorModel, output: Path) -> float:
    """Writes the folder `output`: encoder, tokenizer, what makes vectors, and a model card.

    Returns:
      The largest difference of a hidden state or vector between the model and the folder that
      was read back.

    Raises:
      UserError: `output` is not empty, cannot be written, or is not the same model when read back
        (nothing is left at `output` then); the model has no tokenizer; or sentence-transformers
        has no name for a part of it.
    """
    require_tokenizer(retrieval.model)
    retrieval = _with_written_lengths(retrieval)
    with new_folder(output) as folder:
        _write(retrieval, folder)
        difference = max(verify_export(retrieval.model, folder), _verify_vectors(retrieval, folder))
        card = _model_card(retrieval, output.name, difference)
        (folder / "README.md").write_text(card, "utf-8")
    return difference


def _with_written_lengths(
    retrieval: SparseModel | MultiVectorModel,
) -> SparseModel | MultiVectorModel:
    """Returns the model with the parts and the lengths that its folder has."""
    model, config = retrieval.model, retrieval.config
    # Hugging Face's BertModel has a pooler, which would be initialized at random without tensors.
    names = ("encoder", "pooler")
    if isinstance(retrieval, SparseModel):
        names = ("encoder", *masked_lm_parts(model.config))
    parts = {name: model.params[name] for name in names if name in model.params}
    model = dataclasses.replace(model, params=parts, head=None)
    # Every length is written, so that no program takes a default of its own.
    length = retrieval.max_length
    if isinstance(retrieval, SparseModel):
        query_length = retrieval.config.query_length or length
        config = dataclasses.replace(
            retrieval.config,
            max_seq_length=length,
            query_length=query_length if retrieval.config.has_static_queries else None,
        )
        return dataclasses.replace(retrieval, model=model, config=config)
    config = retrieval.config
    is_fixed = config.expansion is not None and config.expansion.strategy == "fixed"
    config = dataclasses.replace(
        config,
        max_seq_length=length,
        query_length=None if is_fixed else config.length_of_role("query", length),
        document_length=config.length_of_role("document", length),
    )
    return dataclasses.replace(retrieval, model=model, config=config)


def _write(retrieval: SparseModel | MultiVectorModel, folder: Path) -> None:
    model, params = retrieval.model, paths.flatten(retrieval.head_params)
    tokenizer = require_tokenizer(model)
    if isinstance(retrieval, SparseModel):
        encoder_folder = sparse_encoder_folder(folder, retrieval.config)
        encoder_folder.mkdir(exist_ok=True)
        write_folder(model, encoder_folder)
        head = SparseHead(retrieval.config, params)
        write_sparse_head(folder, head, tokenizer, model.config.vocab_size)
        return
    write_folder(model, folder)
    head = MultiVectorHead(retrieval.config, params)
    write_multi_vector_head(folder, head, tokenizer, model.config.max_length)


def _verify_vectors(retrieval: SparseModel | MultiVectorModel, folder: Path) -> float:
    """Compares the vectors of texts; returns the largest difference of a component."""
    reloaded = load_embedding_model(folder)
    if reloaded.config != retrieval.config:
        raise UserError(
            f"the export was not written: it describes {reloaded.config}, not {retrieval.config}"
        )
    both = [_vectors(each) for each in (retrieval, reloaded)]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(*both, strict=True))
    # `not <=` and not `>`: a difference of NaN is an error, too.
    if not difference <= TOLERANCE:
        raise UserError(
            f"the export was not written: its vectors differ by {difference:.1e} from those of "
            f"{retrieval.model.path} (at most {TOLERANCE} is allowed)"
        )
    return difference


def _vectors(model: object) -> list[np.ndarray]:
    """Returns the vectors of texts as queries and as documents."""
    if isinstance(model, SparseModel):
        embed_sparse = SparseEmbedder(model)
        return [embed_sparse(SAMPLE_TEXTS, role=role).toarray() for role in TEXT_ROLES]
    assert isinstance(model, MultiVectorModel)
    embed = MultiVectorEmbedder(model)
    return [vectors for role in TEXT_ROLES for vectors in embed(SAMPLE_TEXTS, role=role)]


def _model_card(retrieval: SparseModel | MultiVectorModel, name: str, difference: float) -> str:
    model, config = retrieval.model, retrieval.config
    is_multi_vector = isinstance(config, MultiVectorEncoderConfig)
    if isinstance(config, MultiVectorEncoderConfig):
        size = config.embedding_size(model.config.hidden_size)
        summary = (
            f"A multi-vector encoder (ColBERT): each token of a text has a vector of {size} "
            f"components. Documents have up to {config.document_length} tokens."
        )
        if config.expansion is not None:
            summary += f" Queries are extended to {config.expansion.length} tokens."
        summary += f" Similarity: {config.similarity}."
    else:
        summary = (
            "A sparse encoder (SPLADE): each text has a weight for each of the "
            f"{model.config.vocab_size} tokens of the vocabulary, most of which are 0. Texts have "
            f"up to {retrieval.max_length} tokens. Pooling: {config.pooling}. Similarity: "
            f"{config.similarity}."
        )
        if config.has_static_queries:
            summary += " Queries have one weight for each of their tokens, without the encoder."
    prompts = ", ".join(f"`{prompt.name}`: {prompt.text!r}" for prompt in config.prompts)
    card = _CARD.format(
        model_type=format_of(model.config).model_type(model.config),
        name=name,
        summary=summary + (f" Prompts: {prompts}." if prompts else ""),
        class_name="MultiVectorEncoder" if is_multi_vector else "SparseEncoder",
        pipeline="sentence-similarity" if is_multi_vector else "feature-extraction",
        tag="multi-vector" if is_multi_vector else "sparse-encoder",
    )
    sections = [card]
    if model.run is not None:
        sections += run_sections(model.run)
    lines = provenance_lines(model, difference, None)
    sections += ["## How this folder was made", "\n".join(lines)]
    return "\n\n".join(section.strip() for section in sections) + "\n"
