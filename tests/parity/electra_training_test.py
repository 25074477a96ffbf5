"""Compares ELECTRA's pretraining with a PyTorch loop over Hugging Face's classes.

Both networks are Hugging Face's, with the losses that their classes compute. They share the modules
of their embeddings. The samples of the loop are those of its own generator, with the Gumbel noise
that the objective has.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.config.objectives import ReplacedTokens
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.models.electra.config import ElectraConfig, generator_config
from bert_jax.models.electra.huggingface import HUGGING_FACE
from bert_jax.models.layers.config import LearnedPositions
from bert_jax.objectives.replaced_tokens.objective import ReplacedTokensObjective, gumbel_noise
from bert_jax.params import paths
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.torch_parity import randomize_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STEPS, WARMUP, PEAK, CLIP = 20, 5, 5e-4, 1.0
MODEL = ElectraConfig(
    vocab_size=300,
    embedding_size=48,
    hidden_size=128,
    num_hidden_layers=1,  # model_test.py has networks of several layers
    num_attention_heads=4,
    intermediate_size=256,
    positions=LearnedPositions(max_position_embeddings=32),
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
GENERATOR = generator_config(MODEL, 0.5)
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=24, batch_size=4, max_predictions_per_seq=4),),
    optimizer=AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=CLIP,
)


def torch_model(config: ElectraConfig, name: str, seed: int) -> Any:
    hf_config = transformers.ElectraConfig(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.positions.max_position_embeddings,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = getattr(transformers, f"Electra{name}")(hf_config)
    return randomize_parameters(model, std=0.05, seed=seed)


def params_of(model: Any, config: ElectraConfig) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    flat = HUGGING_FACE.names(config, None).from_external(state, "torch")
    return paths.unflatten({path: jnp.asarray(leaf) for path, leaf in flat.items()})


def test_twenty_training_steps():
    discriminator = torch_model(MODEL, "ForPreTraining", seed=1)
    generator = torch_model(GENERATOR, "ForMaskedLM", seed=2)
    # [PAD] is never sampled here: `torch.nn.Embedding` would not train its row, because of
    # `padding_idx`. Google's code and this project have no such exception.
    generator.generator_lm_head.bias.data[0] = -30.0
    params = params_of(discriminator, MODEL)
    params["generator"] = params_of(generator, GENERATOR)
    del params["generator"]["encoder"]["embeddings"]
    batches = [
        pretraining_batch(
            batch_size=4, seq_length=24, max_predictions_per_seq=4, vocab_size=300, seed=seed
        )
        for seed in range(STEPS)
    ]
    objective = ReplacedTokensObjective(
        ReplacedTokens(model=MODEL, generator=GENERATOR, mask_token_id=4)
    )
    assert {p: x.shape for p, x in paths.flatten(params).items()} == {
        p: x.shape for p, x in paths.flatten(objective.abstract()).items()
    }
    optimizer, schedule = make_optimizer(TRAIN), learning_rate_schedule(TRAIN.schedule, STEPS)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule, seed=0))
    found = []
    for batch in batches:
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        found.append([float(metrics[name]) for name in ("mlm_loss", "rtd_loss")])
    expected = _torch_losses(discriminator, generator, batches)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.ptp(expected, axis=0).min() > 0.05  # training changes both losses


def _torch_losses(discriminator: Any, generator: Any, batches: list[Any]) -> list[list[float]]:
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    networks = torch.nn.ModuleList([discriminator, generator])  # names each parameter once
    named = list(networks.named_parameters())
    plain = [p for n, p in named if n.endswith("bias") or "norm" in n.lower()]
    decayed = [p for _, p in named if all(p is not q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    losses = []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (up if update <= WARMUP else down)
        optimizer.zero_grad()
        mlm_loss, rtd_loss = _torch_step(discriminator, generator, batch)
        (mlm_loss + 50 * rtd_loss).backward()
        torch.nn.utils.clip_grad_norm_(networks.parameters(), CLIP)
        optimizer.step()
        losses.append([mlm_loss.item(), rtd_loss.item()])
    return losses


def _torch_step(discriminator: Any, generator: Any, batch: Any) -> tuple[Any, Any]:
    names = ("input_ids", "token_type_ids", "attention_mask")
    fields = {name: torch.from_numpy(batch[name]).long() for name in names}
    rows, entries = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, entries]
    labels = torch.full(fields["input_ids"].shape, -100)
    labels[rows, columns] = torch.from_numpy(batch["masked_lm_ids"][rows, entries]).long()
    outputs = generator(**fields, labels=labels)
    noise = torch.from_numpy(np.array(gumbel_noise(batch["sampling_seeds"], 300)))
    sampled = (outputs.logits[rows, columns].detach() + noise[rows, entries]).argmax(-1)
    ids = fields["input_ids"].clone()
    ids[rows, columns] = sampled
    is_replaced = torch.zeros_like(ids)
    is_replaced[rows, columns] = (sampled != labels[rows, columns]).long()
    assert is_replaced.any()
    return outputs.loss, discriminator(**{**fields, "input_ids": ids}, labels=is_replaced).loss
