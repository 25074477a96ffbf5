"""Compares encoder-decoders of Hugging Face's PyTorch classes with what their folders become."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop.seq2seq import read_seq2seq_folder, write_seq2seq_folder
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.encoder import EncoderDecoderConfig
from bert_jax.models.led.config import LedConfig
from bert_jax.models.model import build_encoder_decoder_network
from bert_jax.models.seq2seq.config import GatedFeedForward
from bert_jax.models.t5.config import T5Config
from bert_jax.params import paths
from tests.helpers.torch_parity import load_exported, randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
T5_SMALL = T5Config(
    vocab_size=103,
    hidden_size=48,
    d_kv=10,
    num_attention_heads=3,
    intermediate_size=70,
    num_encoder_layers=4,
    num_decoder_layers=3,
)
BART_SMALL = BartConfig(
    vocab_size=103,
    hidden_size=48,
    num_attention_heads=3,
    intermediate_size=70,
    num_encoder_layers=3,
    num_decoder_layers=2,
    max_position_embeddings=20,
)
# Windows of 5 and 9 tokens in sources of 17, and more positions in the encoder.
LED_SMALL = LedConfig(
    vocab_size=103,
    hidden_size=48,
    num_attention_heads=3,
    intermediate_size=70,
    num_encoder_layers=3,
    num_decoder_layers=2,
    max_position_embeddings=48,
    max_decoder_position_embeddings=20,
    attention_window=(4, 8, 4),
)


def torch_t5(config: T5Config, seed: int = 0) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    gated = isinstance(config.feed_forward, GatedFeedForward)
    hf_config = transformers.T5Config(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        d_kv=config.d_kv,
        d_ff=config.intermediate_size,
        num_layers=config.num_encoder_layers,
        num_decoder_layers=config.num_decoder_layers,
        num_heads=config.num_attention_heads,
        relative_attention_num_buckets=config.relative_attention_num_buckets,
        relative_attention_max_distance=config.relative_attention_max_distance,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=config.scale_decoder_outputs,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.T5ForConditionalGeneration(hf_config)
    if not config.tie_word_embeddings:
        # transformers 5 ties the head of a new model whatever its config contains.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    randomize_parameters(model, std=0.1, seed=seed)
    with torch.no_grad():
        # Larger, because the logits of 1.0 are divided by the square root of the width.
        for table in {model.shared.weight, model.lm_head.weight}:
            table.mul_(5.0)
    return model


def torch_bart(config: BartConfig, seed: int = 0, std: float = 0.1) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.BartConfig(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_attention_heads,
        decoder_attention_heads=config.num_attention_heads,
        encoder_ffn_dim=config.intermediate_size,
        decoder_ffn_dim=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        attn_implementation="eager",
    )
    model = transformers.BartForConditionalGeneration(hf_config)
    # transformers 5 has no such field in the config of a model.
    model.generation_config.forced_bos_token_id = config.forced_bos_token_id
    return randomize_parameters(model, std=std, seed=seed)


def torch_led(config: LedConfig, seed: int = 0, std: float = 0.1) -> Any:
    """Builds a model with random parameters; its config is written out, not exported."""
    hf_config = transformers.LEDConfig(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_attention_heads,
        decoder_attention_heads=config.num_attention_heads,
        encoder_ffn_dim=config.intermediate_size,
        decoder_ffn_dim=config.intermediate_size,
        max_encoder_position_embeddings=config.max_position_embeddings,
        max_decoder_position_embeddings=config.max_decoder_position_embeddings,
        attention_window=list(config.attention_window),
    )
    model = transformers.LEDForConditionalGeneration(hf_config)
    return randomize_parameters(model, std=std, seed=seed)


def global_first_token(input_ids: Any) -> Any:
    """Returns the `global_attention_mask` with which LED is compared, zeros but for the first."""
    mask = torch.zeros(input_ids.shape, dtype=torch.long)
    mask[:, 0] = 1
    return mask


def seq2seq_batch(
    config: EncoderDecoderConfig, source_length: int = 17, target_length: int = 11, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns 3 padded sources, and targets shifted right; no real token is padding."""
    rng = np.random.default_rng(seed)
    first_id = 1 + max(config.pad_token_id, config.eos_token_id, config.decoder_start_token_id)
    source = rng.integers(first_id, config.vocab_size, (3, source_length))
    target = rng.integers(first_id, config.vocab_size, (3, target_length))
    lengths = np.array([source_length, source_length - 4, source_length // 2])
    mask = np.arange(source_length) < lengths[:, None]
    start = np.full((3, 1), config.decoder_start_token_id)
    return {
        "input_ids": np.where(mask, source, config.pad_token_id).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
        "decoder_input_ids": np.concatenate([start, target[:, :-1]], axis=1).astype(np.int32),
        "labels": target,
    }


def check_seq2seq_model(model: Any, config: EncoderDecoderConfig, folder: Path) -> dict[str, Any]:
    """Checks import, outputs, cached decoding, export and the import of the export.

    - The folder that `save_pretrained` writes is read as `config`.
    - Hidden states, logits and loss at real tokens are PyTorch's, up to 1e-5 of the largest value.
    - Logits of decoding one token at a time with a cache are those of decoding all tokens.
    - `AutoModelForSeq2SeqLM` opens the export bit-identical, and its import is bit-identical.

    Returns:
      The parameters, nested.
    """
    model.save_pretrained(folder / "torch")
    imported = read_seq2seq_folder(folder / "torch")
    assert imported.config == config
    params = paths.unflatten(imported.flat_params)
    expected_shapes = paths.flatten(build_encoder_decoder_network(config).abstract())
    found_shapes = {path: leaf.shape for path, leaf in imported.flat_params.items()}
    assert found_shapes == {path: leaf.shape for path, leaf in expected_shapes.items()}
    batch = seq2seq_batch(config)
    check_outputs(model, params, config, batch)
    (folder / "exported").mkdir()
    write_seq2seq_folder(folder / "exported", imported.flat_params, config)
    reopened = load_exported(transformers.AutoModelForSeq2SeqLM, folder / "exported")
    with torch.no_grad():
        inputs = torch_inputs(batch, config)
        logits = [each.eval()(**inputs).logits for each in (model, reopened)]
    assert torch.equal(*logits)
    again = read_seq2seq_folder(folder / "exported")
    assert again.config == config and again.flat_params.keys() == imported.flat_params.keys()
    for path, leaf in imported.flat_params.items():
        np.testing.assert_array_equal(again.flat_params[path], leaf, err_msg=path)
    return params


def torch_inputs(batch: dict[str, np.ndarray], config: EncoderDecoderConfig) -> dict[str, Any]:
    """Returns the fields of a batch without labels as PyTorch's tensors."""
    inputs = {name: torch.from_numpy(x).long() for name, x in batch.items() if name != "labels"}
    if isinstance(config, LedConfig):
        inputs["global_attention_mask"] = global_first_token(inputs["input_ids"])
    return inputs


def check_outputs(
    model: Any, params: Any, config: EncoderDecoderConfig, batch: dict[str, np.ndarray]
) -> None:
    """Compares hidden states, logits, loss and cached decoding."""
    with torch.no_grad():
        expected = model(
            **torch_inputs(batch, config),
            labels=torch.from_numpy(batch["labels"]).long(),
            output_hidden_states=True,
        )
    found = seq2seq_outputs(params, config, batch)
    real = batch["attention_mask"] > 0
    for name, is_compared in (
        ("encoder_hidden_states", real),
        ("decoder_hidden_states", np.ones(batch["labels"].shape, bool)),
    ):
        for layer, (found_states, states) in enumerate(
            zip(found[name], expected[name], strict=True)
        ):
            assert_close(found_states[is_compared], states.numpy()[is_compared], f"{name} {layer}")
    logits = expected.logits.numpy()
    assert logits.std() > 0.05
    assert_close(found["logits"], logits, "logits")
    assert_close(found["loss"], expected.loss.numpy(), "loss")
    assert_close(found["cached_logits"], logits, "cached logits")


def seq2seq_outputs(
    params: Any, config: EncoderDecoderConfig, batch: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Computes hidden states, logits, mean loss, and the logits of decoding token by token."""
    network = build_encoder_decoder_network(config)

    @jax.jit
    def outputs(params: Any, batch: Any) -> dict[str, Any]:
        model = network.merge(params)
        labels = batch.pop("labels")
        result = model(**batch, output_hidden_states=True)
        logits = model.logits(result.last_hidden_state)
        log_probs = jax.nn.log_softmax(logits)
        loss = -jnp.mean(jnp.take_along_axis(log_probs, labels[..., None], axis=-1))
        source = model.encode(batch["input_ids"], batch["attention_mask"])
        target = batch["decoder_input_ids"]
        # A cache that is longer than the target, as in generation.
        cache = model.empty_cache(len(target), 1, target.shape[1] + 2)

        def step(cache: Any, inputs: Any) -> tuple[Any, jax.Array]:
            position, ids = inputs
            step_logits, cache = model.decode(ids[:, None], position, cache, source)
            return cache, step_logits[:, 0]

        positions = jnp.arange(target.shape[1])
        _, cached = jax.lax.scan(step, cache, (positions, target.T))
        return {
            "encoder_hidden_states": result.encoder_hidden_states,
            "decoder_hidden_states": result.decoder_hidden_states,
            "logits": logits,
            "loss": loss,
            "cached_logits": jnp.swapaxes(cached, 0, 1),
        }

    return jax.device_get(outputs(params, dict(batch)))


def assert_close(found: Any, expected: Any, name: str) -> None:
    """Compares with a tolerance relative to the largest value: residuals of T5 are large."""
    largest = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * largest, err_msg=name)
