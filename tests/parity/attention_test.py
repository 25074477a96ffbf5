"""Tests attention weights: equal to Hugging Face's `output_attentions`, and texts that are refused.

Covers bert_jax/predict/attention.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.apps.testing.models import WORDS, random_parameters, small_config, word_tokenizer
from bert_jax.errors import UserError
from bert_jax.export.export import export
from bert_jax.interop.huggingface import ImportedModel
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.models.layers.config import LearnedPositions, PaddingOffsetPositions
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.predict.attention import AttentionExtractor
from bert_jax.pretrained.load import LoadedModel, build_model
from bert_jax.text.load_tokenizer import load_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "The old man mends the nets by the sea."
SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "initializer_range": 0.3,
}
POSITIONS = PaddingOffsetPositions(max_position_embeddings=34)
CONFIGS = {
    "bert": small_config(
        initializer_range=0.3, vocab_size=24, positions=LearnedPositions(max_position_embeddings=40)
    ),
    "roberta": RobertaConfig(**SIZES, num_hidden_layers=2, positions=POSITIONS),
    "modernbert": ModernBertConfig(**SIZES, num_hidden_layers=3),
}


def model_of(folder: Path, config: Any, head: Any = None) -> LoadedModel:
    if isinstance(config.positions, PaddingOffsetPositions):
        # Positions count from the padding id, 1, in these families.
        folder.mkdir(parents=True, exist_ok=True)
        tokens = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
        (folder / "vocab.txt").write_text("\n".join(tokens), "utf-8")
        tokenizer = load_tokenizer(folder / "vocab.txt")
    else:
        tokenizer = word_tokenizer(folder)
    params = random_parameters(config, head=head)
    return build_model(ImportedModel(params, config, tokenizer, head), "small model")


# RoBERTa's layers are BERT's.
@pytest.mark.parametrize(
    "family", ["bert", pytest.param("roberta", marks=pytest.mark.slow), "modernbert"]
)
def test_attention_weights_equal_hugging_face(tmp_path, family):
    config = CONFIGS[family]
    model = model_of(tmp_path / "made", config)
    found = AttentionExtractor(model)(TEXT)
    export(model, tmp_path / "exported")
    reference = transformers.AutoModel.from_pretrained(
        tmp_path / "exported", attn_implementation="eager"
    ).eval()
    assert model.tokenizer is not None
    ids = [model.tokenizer.token_to_id(token) for token in found.tokens]
    assert ids == model.tokenize([TEXT])["input_ids"][0, : len(ids)].tolist()
    with torch.no_grad():
        outputs = reference(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids)).long(),
            output_attentions=True,
        )
    expected = np.stack([weights[0].numpy() for weights in outputs.attentions])
    assert expected.std() > 0.01 and found.attentions.dtype == np.float32
    # The weights are for 14 tokens; the padding to 16 must not change them.
    assert found.attentions.shape == expected.shape == (len(expected), 4, 14, 14)
    np.testing.assert_allclose(found.attentions, expected, rtol=0, atol=1e-5)


def test_local_attention_gives_a_complete_matrix_with_zeros(tmp_path):
    """Tests Longformer as a classifier, where all tokens attend to [CLS]."""
    config = LongformerConfig(
        **SIZES, num_hidden_layers=2, positions=POSITIONS, attention_window=(4, 4), sep_token_id=3
    )
    head = SequenceClassificationHead(labels=("no", "yes"))
    tokens, weights = AttentionExtractor(model_of(tmp_path, config, head))(TEXT)
    assert tokens[0] == "[CLS]" and weights.shape == (2, 4, len(tokens), len(tokens))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    position = np.arange(len(tokens))
    attended = np.abs(position[:, None] - position) <= 2
    attended[0] = attended[:, 0] = True
    assert np.all((weights > 0) == attended)


def test_long_texts_are_refused_and_empty_ones_have_special_tokens(tmp_path):
    extract = AttentionExtractor(model_of(tmp_path, CONFIGS["bert"]))
    assert extract("").tokens == ["[CLS]", "[SEP]"]
    with pytest.raises(UserError, match="has 42 tokens with special tokens; expected at most 40"):
        extract("sea " * 40)
