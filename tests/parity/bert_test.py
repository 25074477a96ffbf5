"""Compares BERT with Hugging Face's PyTorch in float32: hidden states, MLM and NSP logits.

Every parameter is random, biases and norms too; batches are padded, with both token types.
"""

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.models import small_model
from bert_jax.config.objectives import Pretraining
from bert_jax.export.export import export
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.models.encoder import EncoderConfig
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5  # of the largest value of an output, if that is more than 1
# Rounding in 24 layers is larger: with these weights PyTorch's float32 differs from its float64
# by 7e-6 (hidden) and 1.3e-5 (logits), and jax_outputs by 1.0e-5 and 2.1e-5.
TOLERANCE_OF_LARGE = 5e-5


def torch_config(config: BertConfig):
    """Returns the config of the same model in transformers, written by hand."""
    return transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        hidden_act="gelu_new" if config.hidden_act == "gelu_tanh" else "gelu",
        attn_implementation="eager",
    )


def torch_outputs(model, batch):
    """Returns (hidden states, MLM logits, NSP logits) of the PyTorch model as NumPy arrays."""
    fields = ("input_ids", "token_type_ids", "attention_mask")
    with torch.no_grad():
        out = model.eval()(
            **{name: torch.from_numpy(batch[name]).long() for name in fields},
            output_hidden_states=True,
        )
    return (
        [state.numpy() for state in out.hidden_states],
        out.prediction_logits.numpy(),
        out.seq_relationship_logits.numpy(),
    )


def jax_outputs(params, config: EncoderConfig, batch):
    """Returns the same outputs of the objective that is trained."""
    program = PretrainingObjective(Pretraining(model=config, mask_token_id=4))

    def compute(params, batch):
        network = program.network.merge(params)
        states = network.encode(batch, output_hidden_states=True).hidden_states
        last = states[-1]
        return states, network.masked_lm_logits(last), network.next_sentence_logits(last)

    return jax.device_get(jax.jit(compute)(params, batch))


def assert_close(found, expected, tolerance: float, name: str) -> None:
    atol = tolerance * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)


def assert_same(found, expected, batch, tolerance: float = TOLERANCE) -> None:
    """Asserts that hidden states and logits agree at real tokens; padding has no meaning."""
    real = batch["attention_mask"] > 0
    assert 0.5 < real.mean() < 1
    assert len(found[0]) == len(expected[0])
    for layer, (a, b) in enumerate(zip(found[0], expected[0], strict=True)):
        assert_close(a[real], b[real], tolerance, f"layer {layer}")
    assert_close(found[1][real], expected[1][real], tolerance, "masked LM")
    assert_close(found[2], expected[2], tolerance, "next sentence")
    assert np.std(expected[0][-1]) > 0.1 and np.std(expected[1]) > 0.05 and expected[2].any()


@pytest.mark.parametrize(
    "size",
    [
        *("tiny", "mini"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("small", "medium", "base", "large")),
    ],
)
def test_published_sizes(size):
    config = BertConfig.from_size(size, vocab_size=1000)  # a smaller table, to save memory
    model = transformers.BertForPreTraining(torch_config(config))
    randomize_parameters(model, std=0.04, seed=0)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, size))
    batch = pretraining_batch(
        batch_size=3, seq_length=24, max_predictions_per_seq=4, vocab_size=config.vocab_size
    )
    tolerance = TOLERANCE_OF_LARGE if size == "large" else TOLERANCE
    assert_same(jax_outputs(params, config, batch), torch_outputs(model, batch), batch, tolerance)


def test_tanh_gelu_and_maximum_length():
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, hidden_act="gelu_tanh",
    )  # fmt: skip
    model = transformers.BertForPreTraining(torch_config(config))
    randomize_parameters(model, std=0.04, seed=1)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, "tanh"))
    batch = pretraining_batch(
        batch_size=2, seq_length=512, max_predictions_per_seq=4, vocab_size=200
    )
    assert_same(jax_outputs(params, config, batch), torch_outputs(model, batch), batch)


def test_folder_written_by_transformers_is_read(tmp_path):
    config = BertConfig.from_size("tiny", vocab_size=300, max_position_embeddings=64)
    model = transformers.BertForPreTraining(torch_config(config))
    randomize_parameters(model, std=0.04, seed=2)
    model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert loaded.config == config and loaded.missing == ()
    batch = pretraining_batch(
        batch_size=2, seq_length=16, max_predictions_per_seq=4, vocab_size=300
    )
    assert_same(jax_outputs(loaded.params, config, batch), torch_outputs(model, batch), batch)


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForNextSentencePrediction"])
def test_folders_of_other_architectures_are_read(tmp_path, kind):
    config = BertConfig.from_size("tiny", vocab_size=300, max_position_embeddings=64)
    model = getattr(transformers, kind)(torch_config(config))
    model.save_pretrained(tmp_path)
    missing = {
        "BertModel": ("masked_lm", "next_sentence"),
        "BertForMaskedLM": ("pooler", "next_sentence"),
        "BertForNextSentencePrediction": ("masked_lm",),
    }
    loaded = load_encoder(tmp_path)
    assert loaded.missing == missing[kind]
    table = loaded.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, model.get_input_embeddings().weight.detach().numpy())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_export_opens_with_every_auto_class(tmp_path, tied):
    made = small_model(tmp_path / "made", tie_word_embeddings=tied)
    folder = tmp_path / "exported"
    export(made, folder)
    model, loading_info = transformers.AutoModelForPreTraining.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not loading_info["missing_keys"] and not loading_info["mismatched_keys"]
    batch = pretraining_batch(batch_size=3, seq_length=16, max_predictions_per_seq=3, vocab_size=18)
    assert_same(jax_outputs(made.params, made.config, batch), torch_outputs(model, batch), batch)

    for kind in ("AutoModelForMaskedLM", "AutoModel"):
        other, loading_info = getattr(transformers, kind).from_pretrained(
            folder, output_loading_info=True
        )
        assert not loading_info["missing_keys"], kind
        table = other.get_input_embeddings().weight.detach().numpy()
        exported_table = made.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
        np.testing.assert_array_equal(table, exported_table)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == 20
    text = "The old man mends [MASK] net."
    assert made.tokenizer is not None
    row = [made.tokenizer.cls_id, *made.tokenizer.encode(text), made.tokenizer.sep_id]
    assert tokenizer(text)["input_ids"] == row
