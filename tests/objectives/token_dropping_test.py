"""Compares token dropping with slow references, and tests what a run with it makes.

Covers bert_jax/objectives/token_dropping.py, selected tokens in bert_jax/models/layers/stack.py and
bert_jax/models/layers/attention.py, and `TokenDropping` of bert_jax/config/objectives.py.
tests/integration/pretraining_recipes_test.py resumes such a run and trains it on eight devices.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.apps.testing.batches import pretraining_batch
from bert_jax.apps.testing.experiments import tiny_experiment
from bert_jax.apps.testing.models import small_config
from bert_jax.apps.testing.text_corpus import prepare_corpus
from bert_jax.config.config_lib import override
from bert_jax.config.objectives import Pretraining, TokenDropping
from bert_jax.config.train import HeldOutEval, Phase
from bert_jax.errors import ConfigError
from bert_jax.export.export import export
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.families import FAMILIES, build_encoder
from bert_jax.models.gte.config import GteConfig
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import (
    AlibiPositions,
    ComputeConfig,
    NoPositions,
)
from bert_jax.models.layers.stack import TokenSelection
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.objectives.make import make_objective
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.objectives.token_dropping import TokenDroppingObjective
from bert_jax.parallel import sharding
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.runs.checkpoints.step_folder import restore_params
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.run import run
from bert_jax.train.step import TrainSetup
from tests.helpers.one_device import one_device_mesh

B, L, V, MASK, CLS, SEP = 8, 16, 20, 4, 2, 3
DROPPING = TokenDropping(allow_list=(CLS, SEP), keep_fraction=0.5, beta=0.9, initial_loss=5.0)
MODEL = small_config(
    vocab_size=V,
    num_hidden_layers=4,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def objective_of(dropping: TokenDropping = DROPPING, model: Any = MODEL) -> TokenDroppingObjective:
    made = make_objective(Pretraining(model=model, mask_token_id=MASK, token_dropping=dropping))
    assert isinstance(made, TokenDroppingObjective)
    return made


def batch_of(seed: int = 0) -> dict[str, Any]:
    made = pretraining_batch(
        batch_size=B, seq_length=L, max_predictions_per_seq=4, vocab_size=V, seed=seed
    )
    made["input_ids"][:, 0] = CLS
    last = made["attention_mask"].sum(axis=1) - 1
    made["input_ids"][np.arange(B), last] = SEP
    return made


def with_losses(objective: TokenDroppingObjective, losses: np.ndarray) -> dict[str, Any]:
    return {**objective.init(jax.random.key(1)), "statistics": {"token_losses": jnp.array(losses)}}


@pytest.mark.parametrize("keep_fraction", [0.02, 0.5, 0.9])
def test_tokens_with_the_largest_losses_are_selected(keep_fraction):
    dropping = dataclasses.replace(DROPPING, keep_fraction=keep_fraction)
    # A few different values, so that there are many ties.
    losses = np.random.default_rng(3).integers(0, 4, V).astype(np.float32)
    objective, batch = objective_of(dropping), batch_of()
    found = objective.select_tokens(with_losses(objective, losses), batch)
    assert found.first_layer == 1
    for row in range(B):
        order = []
        for position, token_id in enumerate(batch["input_ids"][row].tolist()):
            importance = 100.0 if token_id in (MASK, CLS, SEP) else float(losses[token_id])
            if not batch["attention_mask"][row, position]:
                importance = -1.0
            order.append((-importance, position))
        expected = sorted(
            position for _, position in sorted(order)[: max(1, round(16 * keep_fraction))]
        )
        assert found.positions[row].tolist() == expected


def average_by_hand(
    objective: TokenDroppingObjective, params: Any, batches: list[dict[str, Any]], key: jax.Array
) -> np.ndarray:
    """Returns the running average after some batches, one predicted token at a time."""
    average = np.asarray(params["statistics"]["token_losses"], np.float64)
    for batch in batches:
        current = {**params, "statistics": {"token_losses": jnp.array(average, jnp.float32)}}
        model = objective.network.merge(params)
        selection = objective.select_tokens(current, batch)
        hidden = model.encode(batch, key, selection=selection).last_hidden_state
        logits = np.asarray(model.masked_lm_logits(hidden), np.float64)
        losses: dict[int, list[float]] = {}
        for row in range(B):
            for position, label, weight in zip(
                *(batch[f"masked_lm_{name}"][row] for name in ("positions", "ids", "weights")),
                strict=True,
            ):
                if weight:
                    scores = logits[row, position]
                    log_z = np.log(np.exp(scores).sum())
                    losses.setdefault(int(label), []).append(log_z - scores[label])
        for label, values in losses.items():
            average[label] = 0.9 * average[label] + 0.1 * np.mean(values)
    return average


def test_running_average_is_that_of_the_losses_of_each_id():
    objective, key = objective_of(), jax.random.key(0)
    params = objective.init(jax.random.key(1))
    np.testing.assert_array_equal(params["statistics"]["token_losses"], np.full(V, 5.0))
    batches, current = [batch_of(seed) for seed in range(3)], params
    for batch in batches:
        denominators = objective.loss_denominators(batch)
        # Halves of a batch add up, as microbatches do.
        halves = [
            objective.compute_loss(
                current, {name: field[part] for name, field in batch.items()}, denominators, key
            )
            for part in (slice(0, 3), slice(3, None))
        ]
        assert "token_losses" not in halves[0].metrics
        sums = jax.tree.map(jnp.add, *(half.statistics for half in halves))
        current = objective.update_statistics(current, sums)
        assert current["encoder"] is params["encoder"]
    found = np.asarray(current["statistics"]["token_losses"])
    np.testing.assert_allclose(found, average_by_hand(objective, params, batches, key), rtol=2e-5)
    never_predicted = sorted(
        set(range(V))
        - {int(i) for b in batches for i in b["masked_lm_ids"][b["masked_lm_weights"] > 0]}
    )
    assert {CLS, SEP, MASK} <= set(never_predicted)
    np.testing.assert_array_equal(found[never_predicted], 5.0)


SIZES: Any = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
RELATIVE = NoPositions(max_position_embeddings=L)
ENCODERS: dict[str, EncoderConfig] = {
    "BERT": MODEL,
    "ALiBi": dataclasses.replace(MODEL, positions=AlibiPositions(max_position_embeddings=L)),
    "ModernBERT": ModernBertConfig(
        **SIZES, num_hidden_layers=5, positions=RELATIVE, local_attention=6
    ),
    "GTE": GteConfig(**SIZES, num_hidden_layers=4),
}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_dropped_tokens_are_neither_read_nor_changed(name, is_packed):
    """Runs the middle layers on whole sequences, in which dropped tokens have their own segment."""
    batch = batch_of()
    fields: dict[str, Any] = {n: jnp.asarray(batch[n]) for n in ("input_ids", "attention_mask")}
    if is_packed:
        packing_ids = np.where(np.arange(L) < 7, 1, 2) * batch["attention_mask"]
        fields |= {
            "packing_ids": jnp.asarray(packing_ids),
            "position_ids": jnp.asarray(np.where(np.arange(L) < 7, 0, -7) + np.arange(L))[None]
            * jnp.ones((B, 1), jnp.int32),
        }
    encoder: Any = build_encoder(ENCODERS[name], ComputeConfig(layer_loop="scanned"), nnx.Rngs(0))
    rng = np.random.default_rng(5)
    positions = np.stack([np.sort(rng.choice(L, 6, replace=False)) for _ in range(B)])
    first = 1
    found = encoder(**fields, selection=TokenSelection(jnp.asarray(positions), first))
    is_selected = np.zeros((B, L), bool)
    np.put_along_axis(is_selected, positions, True, axis=1)

    ids = fields.get("packing_ids", fields["attention_mask"])
    segments = jnp.where(is_selected, ids, 9)

    class Wrapped:
        """Replaces a middle layer by one that leaves dropped tokens as they are."""

        def __init__(self, block: Any):
            self.block, self.kind = block, getattr(block, "kind", None)
            self.num_dropout_sites = block.num_dropout_sites

        def __call__(self, x: jax.Array, inputs: Any, seeds: Any, **options) -> Any:
            masked = make_attention_mask(fields["attention_mask"], segments, False)
            changes = {
                "q_segment_ids": segments if is_packed else jnp.where(is_selected, 1, 9),
                "kv_segment_ids": masked.kv_segment_ids,
            }
            inputs = (
                {kind: dataclasses.replace(mask, **changes) for kind, mask in inputs.items()}
                if isinstance(inputs, dict)
                else dataclasses.replace(inputs, **changes)
            )
            out, weights = self.block(x, inputs, seeds, **options)
            return jnp.where(is_selected[..., None], out, x), weights

    blocks = list(encoder.layers)
    wrapped = [*blocks[:first], *map(Wrapped, blocks[first:-1]), blocks[-1]]
    del encoder.layers
    encoder.layers = nnx.data(wrapped)
    encoder.compute = ComputeConfig(layer_loop="unrolled")
    expected = encoder(**fields).last_hidden_state
    is_real = np.asarray(fields["attention_mask"]) > 0
    np.testing.assert_allclose(
        np.asarray(found.last_hidden_state)[is_real], np.asarray(expected)[is_real], atol=2e-5
    )


def test_evaluation_reads_all_tokens_in_all_layers():
    objective, batch = objective_of(), batch_of()
    params = objective.init(jax.random.key(1))
    denominators = objective.loss_denominators(batch)
    whole = PretrainingObjective(Pretraining(model=MODEL, mask_token_id=MASK))
    expected = whole.compute_loss(params, batch, denominators, None)
    found = objective.compute_loss(params, batch, denominators, None)
    assert float(found.loss) == float(expected.loss)
    assert found.metrics.keys() == expected.metrics.keys()
    trained = objective.compute_loss(params, batch, denominators, jax.random.key(0))
    assert float(trained.loss) != float(expected.loss)


PHASE = Phase(steps=6, seq_length=32, batch_size=8, max_predictions_per_seq=5)


def test_run_makes_a_model_without_the_running_average(tmp_path):
    corpus = prepare_corpus(tmp_path / "train")
    heldout = prepare_corpus(tmp_path / "heldout", num_documents=12, seed=1)
    evaluation = HeldOutEval(corpus=str(heldout), eval_every=3, num_examples=16, batch_size=8)
    config = tiny_experiment("dropping", str(corpus), (PHASE,), num_hidden_layers=3)
    config = override(
        dataclasses.replace(config, train=dataclasses.replace(config.train, evaluation=evaluation)),
        ["objective.token_dropping={}", "objective.token_dropping.allow_list=[1,2,3]"],
    )
    with one_device_mesh():
        assert run(config, tmp_path / "run") == 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert not [row for row in rows if "token_losses" in row]
    params, _, _ = restore_params(tmp_path / "run/checkpoints")
    average = params["statistics"]["token_losses"]
    assert (average[:5] == 10.0).all() and (average[5:] < 10.0).sum() > 20
    model = load_encoder(tmp_path / "run")
    assert "statistics" not in model.params and "masked_lm" in model.params
    export(model, tmp_path / "exported")
    # A run can start from such a model, with a running average of its own.
    started = dataclasses.replace(config, init_from=str(tmp_path / "exported"))
    setup = TrainSetup.from_experiment(started, sharding.make_mesh(config.mesh, jax.devices()[:1]))
    found = initialize_or_load(setup)["params"]
    np.testing.assert_array_equal(found["statistics"]["token_losses"], np.full(78, 10.0))
    name = "encoder/layers/0/attention/query/kernel"
    np.testing.assert_array_equal(paths.flatten(found)[name], paths.flatten(params)[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.token_dropping.keep_fraction=1"], "keep_fraction is 1.0, expected .* below 1"),
        (["objective.token_dropping.beta=1"], "token_dropping.beta is 1.0, expected"),
        (["objective.token_dropping.initial_loss=-1"], "token_dropping.initial_loss is -1.0"),
        (
            ["objective.token_dropping.first_layer=2"],
            "first_layer is 2, but objective.model has 3 layers, .* expected a layer from 0 to 1",
        ),
        (["objective.token_dropping.first_layer=-1"], "first_layer is -1"),
        (["objective.model.num_hidden_layers=1"], "has 1 layers, .* and at least 2 layers"),
        (["objective.token_dropping.allow_list=[99]"], "allow_list contains 99 is not an id"),
        (["objective.mlm_weight=0"], "token_dropping is set, but objective has .* no mlm_weight"),
        (["objective.masked_next_token=true"], "token_dropping is set, but objective has a distil"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    config = tiny_experiment("dropping", "none", (PHASE,), num_hidden_layers=3)
    config = override(config, ["objective.token_dropping={}"])
    with pytest.raises(ConfigError, match=message):
        override(config, changes)


def test_families_that_read_whole_sequences_are_refused():
    refused = [config for config in FAMILIES if not config.drops_tokens and not config.is_decoder]
    assert len(refused) > 3
    for config in refused:
        model: Any = config(vocab_size=40)
        with pytest.raises(ConfigError, match=f"but the layers of {config.family} read whole"):
            Pretraining(
                model=model,
                mask_token_id=MASK,
                nsp_weight=0,
                token_dropping=TokenDropping(),
            )
