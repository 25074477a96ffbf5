"""Exports a sentence encoder as a folder that `SentenceTransformer(folder)` opens.

The folder has the spelling that all versions of sentence-transformers and other servers read. It
gets its name only when it is complete and its vectors are the same when it is read back.
"""

import dataclasses
from pathlib import Path

import numpy as np

from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import TOLERANCE, log_onnx, new_folder, verify_export, write_folder
from bert_jax.export.model_card import provenance_lines, run_sections
from bert_jax.export.onnx.write import OnnxPrecision
from bert_jax.interop.sentence_transformers import SentenceHead, write_sentence_head
from bert_jax.models.families import format_of
from bert_jax.models.sentence_encoder.config import Normalize, PoolingMode
from bert_jax.params import paths
from bert_jax.predict.embedder import Embedder
from bert_jax.pretrained.embedding_model import SentenceModel, load_sentence_model
from bert_jax.pretrained.load import require_tokenizer
from bert_jax.pretrained.setfit import HEAD_CONFIG, HEAD_WEIGHTS, is_setfit_folder, load_head

# An empty text has special tokens only, and the last one is longer than 512 tokens, so that
# truncation is compared, too.
SAMPLE_TEXTS = (
    "",
    "The bell of the church rang nine.",
    "A baker who had slept too long opened her shop at noon. " * 60,
)
_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- {model_type}
- sentence-transformers
- bert_jax
---

# {name}

A sentence encoder: texts of up to {max_length} tokens to vectors with {size} components. Pooling:
{pooling}{modules}. Similarity: {similarity}.{prompts}

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
vectors = model.encode(["A sentence.", "Another one."])
```

With bert_jax:

```
bert-jax embed {name} "A sentence." "Another one."
```
"""
_CLASSIFIER = """\
## Classify

{config} has the labels ({labels}), and {weights} a logistic
regression that SetFit fitted to the vectors:

```python
from safetensors.numpy import load_file

head = load_file("{name}/{weights}")
logits = model.encode(["A sentence."]) @ head["weight"].T + head["bias"]
```

With bert_jax:

```
bert-jax predict {name} "A sentence."
```
"""


def with_choices(
    sentence: SentenceModel, pooling: PoolingMode | None, normalize: bool | None
) -> SentenceModel:
    """Returns a sentence encoder with another pooling or normalization; None: as in the model.

    Raises:
      ConfigError: a dense layer or the logistic regression of SetFit does not fit the new vectors.
    """
    if is_setfit_folder(Path(sentence.model.path)) and (pooling, normalize) != (None, None):
        raise ConfigError(
            f"the logistic regression of {sentence.model.path} was fitted to the vectors as they "
            "are; remove --pooling and --normalize"
        )
    modules = sentence.config.modules
    if normalize is not None:
        # A folder may normalize more than once, which is the same as once, so all of them are
        # removed.
        while modules and isinstance(modules[-1], Normalize):
            modules = modules[:-1]
    config = dataclasses.replace(
        sentence.config,
        pooling=sentence.config.pooling if pooling is None else (pooling,),
        modules=(*modules, Normalize()) if normalize else modules,
    )
    # Called for its check only: a dense layer raises here, before anything is computed or
    # written.
    config.embedding_size(sentence.model.config.hidden_size)
    return dataclasses.replace(sentence, config=config, is_trained=True)


def export_sentence_encoder(
    sentence: SentenceModel, output: Path, onnx: OnnxPrecision | None = None
) -> float:
    """Writes the folder `output`: encoder, tokenizer, pooling, what follows it, and a model card.

    A run of SetFit has a logistic regression, too, whose files are written again.

    Args:
      onnx: the precision of the ONNX files that are written as well; None for no such files.

    Returns:
      The largest difference of a hidden state or vector between the model and the folder that
      was read back.

    Raises:
      UserError: `output` is not empty, cannot be written, or is not the same model when read back
        (nothing is left at `output` then); the model has no tokenizer; or sentence-transformers
        has no name for a part of it.
    """
    require_tokenizer(sentence.model)
    # Hugging Face's BertModel has a pooler; without its tensors it would be initialized at random.
    parts = {
        name: sentence.model.params[name]
        # The heads of pretraining are dropped: sentence-transformers loads AutoModel, which has
        # none of them.
        for name in ("encoder", "pooler")
        if name in sentence.model.params
    }
    model = dataclasses.replace(sentence.model, params=parts, head=None)
    sentence = dataclasses.replace(sentence, model=model)
    with new_folder(output) as folder:
        write_folder(model, folder)
        head = SentenceHead(sentence.config, paths.flatten(sentence.head_params))
        size, length = model.config.hidden_size, model.config.max_length
        write_sentence_head(folder, head, size, length)
        if is_setfit_folder(Path(model.path)):
            load_head(Path(model.path)).save(folder)
        # Both: equal hidden states do not show that pooling, dense layers and prompts were
        # written as they are.
        difference = max(verify_export(model, folder), _verify_vectors(sentence, folder))
        lines: list[str] = []
        if onnx is not None:
            shipped = dataclasses.replace(
                model,
                sentence_encoder=sentence.config,
                sentence_head=sentence.head_params,
            )
            lines = log_onnx(shipped, folder, onnx)
        card = _model_card(sentence, output.name, difference, lines)
        (folder / "README.md").write_text(card, "utf-8")
    return difference


def _verify_vectors(sentence: SentenceModel, folder: Path) -> float:
    """Compares the vectors of texts; returns the largest difference of a component."""
    reloaded = load_sentence_model(folder)
    expected = dataclasses.replace(sentence.config, max_seq_length=sentence.max_length)
    if reloaded.config != expected:
        raise UserError(
            f"the export was not written: it describes {reloaded.config}, not {expected}"
        )
    vectors = [Embedder(each)(SAMPLE_TEXTS) for each in (sentence, reloaded)]
    difference = float(np.abs(vectors[0] - vectors[1]).max())
    # `not <=` and not `>`: a difference of NaN is an error, too.
    if not difference <= TOLERANCE:
        raise UserError(
            f"the export was not written: its vectors differ by {difference:.1e} from those of "
            f"{sentence.model.path} (at most {TOLERANCE} is allowed)"
        )
    return difference


def _model_card(
    sentence: SentenceModel, name: str, difference: float, onnx_lines: list[str]
) -> str:
    model, config = sentence.model, sentence.config
    modules = "".join(f", {type(module).__name__}" for module in config.modules)
    size = config.truncate_dim or config.embedding_size(model.config.hidden_size)
    prompts = ", ".join(f"`{prompt.name}`: {prompt.text!r}" for prompt in config.prompts)
    card = _CARD.format(
        model_type=format_of(model.config).model_type(model.config),
        name=name,
        max_length=sentence.max_length,
        size=size,
        pooling=", ".join(config.pooling),
        modules=modules,
        similarity=config.similarity,
        prompts=f" Prompts: {prompts}." if prompts else "",
    )
    sections = [card]
    if is_setfit_folder(Path(model.path)):
        sections.append(
            _CLASSIFIER.format(
                name=name,
                config=HEAD_CONFIG,
                weights=HEAD_WEIGHTS,
                labels=", ".join(load_head(Path(model.path)).labels),
            )
        )
    if onnx_lines:
        sections += ["## ONNX", "\n\n".join(onnx_lines)]
    if model.run is not None:
        sections += run_sections(model.run)
    lines = provenance_lines(model, difference, None)
    sections += ["## How this folder was made", "\n".join(lines)]
    return "\n\n".join(section.strip() for section in sections) + "\n"
