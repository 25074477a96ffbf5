"""Covers models/adapters/*.py: zero effect, merging, counts, rows of a batch, bad settings."""

import contextlib
import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import small_config
from bert_jax.config.objectives import FineTuning
from bert_jax.config.tuning import BitFit, LayerNormTuning, TuningConfig
from bert_jax.errors import ConfigError
from bert_jax.models.adapters import lora
from bert_jax.models.adapters.config import (
    IA3,
    DoRA,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixEncoder,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.network import (
    AdaptedNetwork,
    merge_adapter,
    start_from_base,
)
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.eurobert.config import EuroBertConfig
from bert_jax.models.heads.config import (
    LabelTokens,
    MultipleChoiceHead,
    QuestionAnsweringHead,
    RankingHead,
    RegressionHead,
    SequenceClassificationHead,
    TokenClassificationHead,
    WindowEncoder,
)
from bert_jax.models.layers.attention import make_attention_mask
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.layers.linear import linear
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.model import build_network
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.mpnet.config import MPNetConfig
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.train.tuning.freezing import check_trains_encoder, without_frozen

PLAIN = ComputeConfig()
HEAD = SequenceClassificationHead(labels=("no", "maybe", "yes"))
PROMPT_HEAD = dataclasses.replace(
    HEAD, label_tokens=LabelTokens(mask_token_id=4, token_ids=(((5,),), ((6,),), ((7,),)))
)
SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 4}
FAMILIES = {
    "bert": small_config(vocab_size=50),
    "albert": AlbertConfig(**SIZES, num_hidden_layers=3, intermediate_size=32, embedding_size=8),
    "deberta": DebertaV2Config(**SIZES, num_hidden_layers=2, intermediate_size=32),
    "modernbert": ModernBertConfig(**SIZES, num_hidden_layers=3, intermediate_size=32),
}
DENSE = ("query", "value", "attention/output", "feed_forward/*")
BERT_BASE = BertConfig.from_size("base")
BASE = build_network(BERT_BASE, ("pooler",))


def objectives(
    model: Any, method: Any, head: Any = HEAD, compute: ComputeConfig = PLAIN
) -> tuple[FineTuningObjective, FineTuningObjective]:
    """Returns the objectives with and without the adapter."""
    config = FineTuning(model=model, head=head, compute=compute)
    return FineTuningObjective(config, method), FineTuningObjective(config)


def batch_for(head: Any = HEAD, batch_size: int = 4) -> Any:
    return fine_tuning_batch(head, batch_size=batch_size, seq_length=12, vocab_size=50)


def initial(objective: FineTuningObjective) -> Any:
    """Returns random parameters, which need no compilation."""
    rng = np.random.default_rng(0)
    flat = paths.flatten(objective.abstract())
    return paths.unflatten(
        {path: rng.normal(0, 0.3, leaf.shape).astype(np.float32) for path, leaf in flat.items()}
    )


def randomized(params: Any, seed: int = 1) -> Any:
    """Returns the parameters with random changes of those of the adapter."""
    rng = np.random.default_rng(seed)
    adapter = jax.tree.map(
        lambda leaf: np.asarray(leaf + rng.normal(0, 0.3, leaf.shape), np.float32), params[ADAPTER]
    )
    return {**params, ADAPTER: adapter}


@functools.cache
def compiled_loss(objective: FineTuningObjective) -> Any:
    def compute(params: Any, batch: Any) -> jax.Array:
        key, denominators = jax.random.key(3), objective.loss_denominators(batch)
        return objective.compute_loss(params, batch, denominators, key).loss

    return jax.jit(compute)


def loss(objective: FineTuningObjective, params: Any, batch: Any) -> float:
    return float(compiled_loss(objective)(params, batch))


@pytest.mark.parametrize(
    ("family", "method", "compute"),
    [
        ("bert", LoRA(targets=(*DENSE, "word_embeddings")), ComputeConfig()),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                ("albert", DoRA(targets=("query",)), ComputeConfig(layer_loop="scanned")),
                ("modernbert", IA3(selection="peft"), PLAIN),
                ("bert", DoRA(targets=("query",)), ComputeConfig(layer_loop="scanned")),
                ("bert", LoRA(), ComputeConfig(remat="full", dtype="bfloat16")),
                ("albert", LoRA(), ComputeConfig(layer_loop="scanned")),
                ("deberta", LoRA(), ComputeConfig()),
                (
                    "modernbert",
                    LoRA(targets=("query", "gate")),
                    ComputeConfig(layer_loop="scanned"),
                ),
                ("albert", IA3(), ComputeConfig(layer_loop="scanned")),
            )
        ),
    ],
)
def test_an_adapter_without_effect_leaves_the_loss_bit_identical(family, method, compute):
    adapted, plain = objectives(FAMILIES[family], method, compute=compute)
    params, batch = jax.jit(adapted.init)(jax.random.key(0)), batch_for()
    base = {name: tree for name, tree in params.items() if name != ADAPTER}
    assert loss(adapted, params, batch) == loss(plain, base, batch)
    assert loss(adapted, randomized(params), batch) != loss(plain, base, batch)


@pytest.mark.parametrize("jitted", [True, False])
def test_dora_starts_without_effect_at_a_usual_width(jitted):
    """A sum of 384 squares differs in the last bit if it is added in another order."""
    method, rng, width = DoRA(rank=4, targets=("query",)), np.random.default_rng(0), 384
    base = linear(width, width, small_config(), PLAIN, nnx.Rngs(0))
    from_base = functools.partial(lora.IMPLEMENTATION.from_base, method)
    adapter = {
        "lora_a": rng.normal(size=(width, 4)).astype(np.float32),
        "lora_b": np.zeros((4, width), np.float32),
        "magnitude": np.ones(width, np.float32),
    }
    start = jax.jit(from_base) if jitted else from_base
    leaves = start(adapter, {"kernel": np.asarray(base.kernel[...])})
    adapted = lora.LoRALinear(base, leaves, method)
    x = rng.normal(size=(2, 5, width)).astype(np.float32)
    found, expected = (jax.jit(lambda x, layer=layer: layer(x))(x) for layer in (adapted, base))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("method", "head"),
    [
        (LoRA(rank=4, targets=(*DENSE, "word_embeddings")), HEAD),
        (LoRA(rank=4, scaling="alpha_over_sqrt_rank"), RegressionHead()),
        (DoRA(rank=4, targets=DENSE), TokenClassificationHead(labels=("O", "B-X"))),
        # The head is not merged.
        pytest.param(LoRA(rank=2), QuestionAnsweringHead(), marks=pytest.mark.slow),
        pytest.param(DoRA(rank=2), MultipleChoiceHead(), marks=pytest.mark.slow),
        (IA3(selection="peft"), HEAD),
        # The decoder is tied to the table.
        (LoRA(rank=2, targets=("word_embeddings",)), PROMPT_HEAD),
    ],
    ids=["lora", "rslora", "dora", "span", "choice", "ia3", "tied"],
)
def test_merging_computes_the_same_outputs(method, head):
    adapted, plain = objectives(FAMILIES["bert"], method, head)
    params, batch = initial(adapted), batch_for(head)
    expected = jax.jit(adapted.predict)(params, batch)
    merged = merge_adapter(method, params)
    found = jax.jit(plain.predict)(merged, batch)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


def test_a_rounded_kernel_of_dora_is_the_same_as_in_float32():
    """A communication dtype of bfloat16 rounds the matrices of the base, but not the adapter."""
    compute = ComputeConfig(dtype="bfloat16")
    adapted, _ = objectives(FAMILIES["bert"], DoRA(targets=("query",)), compute=compute)
    params, bfloat16 = initial(adapted), np.dtype("bfloat16")

    def rounded(dtype: Any) -> Any:
        def cast(path: str, leaf: np.ndarray) -> np.ndarray:
            return leaf.astype(bfloat16).astype(dtype) if path.endswith("/kernel") else leaf

        flat = paths.flatten({"encoder": params["encoder"]}).items()
        return {**params, **paths.unflatten({path: cast(path, leaf) for path, leaf in flat})}

    expected = loss(adapted, rounded(np.float32), batch_for())
    assert loss(adapted, rounded(bfloat16), batch_for()) == expected


def test_rows_with_different_adapters_of_deberta_are_refused():
    adapted, _ = objectives(FAMILIES["deberta"], LoRA(targets=("query",)))
    params = initial(adapted)
    rows = jax.tree.map(lambda leaf: np.stack([leaf] * 4), params[ADAPTER])
    with pytest.raises(
        ConfigError, match="query and key of DeBERTa map its relative positions, cannot"
    ):
        jax.eval_shape(adapted.predict, {**params, ADAPTER: rows}, batch_for())


def test_lora_drops_each_input_of_a_layer_differently():
    """With A = B = 1 the change of an output is the sum of the inputs that were kept."""
    targets = ("query", "value", "attention/output")
    method = LoRA(rank=1, dropout=0.5, alpha=1.0, targets=targets)
    adapted, _ = objectives(FAMILIES["bert"], method)
    params = initial(adapted)
    params = {**params, ADAPTER: jax.tree.map(np.ones_like, params[ADAPTER])}
    x, seeds = np.ones((2, 5, 16), np.float32), np.arange(6, dtype=np.uint32).reshape(3, 2)

    @jax.jit
    def changes(params: Any, seeds: Any) -> tuple[jax.Array, ...]:
        encoder: Any = adapted.network.merge(params).encoder
        block = encoder.layers[0]
        block(x, make_attention_mask(jnp.ones((2, 5), jnp.int32), None, False), seeds)
        attention = block.block.attention
        layers = (attention.query, attention.value, attention.output)
        return tuple(layer(x) - layer.base(x) for layer in layers)

    query, value, output = (np.asarray(change)[..., 0] for change in changes(params, seeds))
    assert len(np.unique(query)) > 2 and (query != output).any()
    np.testing.assert_allclose(query, value, rtol=1e-5)  # of the same input
    np.testing.assert_allclose(changes(params, None)[0], 16.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (LoRA(), 294_912),
        (LoRA(targets=("query", "key", "value", "attention/output", "feed_forward/*")), 1_327_104),
        (LoRA(targets=("word_embeddings",)), 250_320),
        (DoRA(), 294_912 + 18_432),
        (IA3(), 55_296),
        (IA3(selection="peft"), 64_512),
        (HoulsbyAdapter(), 2_379_264 + 38_400),
        (PfeifferAdapter(), 894_528),
        (PrefixTuning(), 368_640),
        (PrefixTuning(length=30, reparametrization=PrefixEncoder()), 9_872_384),
        (PromptTuning(), 15_360),
        (BitFit(), 102_144),
        (BitFit(biases="query_and_intermediate"), 46_080),
        (LayerNormTuning(), 38_400),
    ],
)
def test_trained_parameters_of_bert_base(method, count):
    """The numbers follow from r (in + out) and similar formulas, without pooler and head."""
    tuning = TuningConfig(method=method)
    params = BASE.abstract()
    if tuning.adapter is not None:
        params = AdaptedNetwork(BASE, tuning.adapter, BERT_BASE, PLAIN).abstract()
    trained = {k: v for k, v in without_frozen(tuning, params).items() if k != "pooler"}
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(trained)) == count


@pytest.mark.parametrize(
    "method",
    [
        DoRA(rank=2, targets=("query", "feed_forward/output")),
        LoRA(rank=2, targets=("word_embeddings", "value")),
        IA3(),
        HoulsbyAdapter(size=3),
        PrefixTuning(length=3),
        # As long as the batch has rows: a bias that is added along the wrong axis fits the shapes.
        PrefixTuning(length=3, reparametrization=PrefixEncoder(size=5)),
        PromptTuning(length=3),
    ],
    ids=["dora", "lora", "ia3", "houlsby", "prefix", "prefix-mlp", "prompt"],
)
def test_rows_of_a_batch_can_have_different_adapters(method):
    adapted, _ = objectives(FAMILIES["bert"], method)
    params, batch = initial(adapted), batch_for(batch_size=3)
    adapters = [randomized(params, seed)[ADAPTER] for seed in range(2)]
    rows = np.array([0, 1, 0])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[rows], *adapters)
    predict = jax.jit(adapted.predict)
    found = predict({**params, ADAPTER: stacked}, batch)["logits"]
    one_by_one = [predict({**params, ADAPTER: each}, batch)["logits"] for each in adapters]
    for row, adapter in enumerate(rows):
        np.testing.assert_allclose(found[row], one_by_one[adapter][row], atol=1e-5)


def test_prompts_start_from_the_embeddings_of_tokens():
    method = PromptTuning(length=5, initial_ids=(7, 3))
    params = start_from_base(method, initial(objectives(FAMILIES["bert"], method)[0]))
    table = params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
    prompt = params[ADAPTER]["encoder"]["embeddings"]["word_embeddings"]["prompt"]
    np.testing.assert_array_equal(prompt, table[[7, 3, 7, 3, 7]])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LoRA(targets=("qury",)), "contains 'qury', which matches no layer.*did you mean 'query'"),
        (LoRA(targets=("attention/outptu",)), "did you mean 'attention/output'"),
        (LoRA(rank=17), "rank is 17, but the matrix of .*query is [16, 16]; expected at most 16"),
        (DoRA(targets=("word_embeddings",)), "which is an embedding table; DoRA"),
        (PfeifferAdapter(reduction_factor=17), "reduction_factor is 17, but the encoder has width"),
        (PromptTuning(length=18), "length is 18, which leaves no room for text.*at most 17"),
        (
            PromptTuning(length=2, initial_ids=(9, 50)),
            "initial_ids contains 50, but the model has 50",
        ),
        (PrefixTuning(length=18), "length is 18, which leaves no room for text.*at most 17"),
    ],
)
def test_methods_that_do_not_fit_the_network_are_refused(method, message):
    pattern = message.replace("[16, 16]", re.escape("[16, 16]"))
    with pytest.raises(ConfigError, match=pattern):
        objectives(FAMILIES["bert"], method)


@pytest.mark.parametrize(
    ("family", "method", "message"),
    [
        ("modernbert", HoulsbyAdapter(), "but those of PreNormEncoder have it before"),
        ("modernbert", PrefixTuning(length=2), "not implemented for attention with .* rotary"),
        ("deberta", PrefixTuning(length=2), "the attention of .* is DisentangledAttention"),
    ],
)
def test_methods_that_do_not_fit_the_family_are_refused(family, method, message):
    adapted, _ = objectives(FAMILIES[family], method)
    with pytest.raises(ConfigError, match=message):
        jax.eval_shape(adapted.predict, adapted.abstract(), batch_for())


def test_scanned_layers_must_be_adapted_alike():
    compute = ComputeConfig(layer_loop="scanned")
    method = LoRA(targets=("layers/0/attention/query",))
    with pytest.raises(ConfigError, match="layer_loop 'scanned' needs layers"):
        objectives(FAMILIES["bert"], method, compute=compute)
    adapted, _ = objectives(FAMILIES["bert"], method)
    flat = paths.flatten(adapted.abstract()[ADAPTER])
    assert {path.rpartition("/")[0] for path in flat} == {"encoder/layers/0/attention/query"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "method.rank is 0, expected a number at least 1"),
        ({"dropout": 1.0}, "method.dropout is 1.0, expected 0, or a rate from 1/256 to 255/256"),
        ({"dropout": 0.001}, "method.dropout is 0.001, expected 0, or a rate from 1/256"),
        ({"alpha": 0.0}, "method.alpha is 0.0, expected a number above 0"),
        ({"alpha": float("nan")}, "method.alpha is nan"),
        ({"targets": ()}, "method.targets is empty"),
    ],
)
def test_settings_out_of_range_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(LoRA(), **fields)


OTHER_FAMILIES: dict[str, Any] = {
    "distilbert": DistilBertConfig(**SIZES, num_hidden_layers=1, intermediate_size=32),
    "electra": ElectraConfig(**SIZES, num_hidden_layers=1, intermediate_size=32, embedding_size=8),
    "mpnet": MPNetConfig(**SIZES, num_hidden_layers=1, intermediate_size=32),
    # With 12 tokens, block-sparse attention and windows smaller than the text.
    "bigbird": BigBirdConfig(
        **SIZES,
        num_hidden_layers=1,
        intermediate_size=32,
        attention=BlockSparseWhenLong(block_size=2, num_random_blocks=0),
    ),
    "longformer": LongformerConfig(
        **SIZES,
        num_hidden_layers=1,
        intermediate_size=32,
        attention_window=(4,),
        max_global_tokens=4,
    ),
    "eurobert": EuroBertConfig(
        **SIZES, num_hidden_layers=1, intermediate_size=32, num_key_value_heads=2
    ),
}


def outputs_with_and_without_adapter(
    model: Any, method: Any, head: Any = HEAD
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the output with a new adapter, with a random one, and of the base."""
    adapted, plain = objectives(model, method, head)
    params = {**initial(adapted), ADAPTER: jax.jit(adapted.init)(jax.random.key(0))[ADAPTER]}
    base = {name: tree for name, tree in params.items() if name != ADAPTER}
    predict, batch = jax.jit(adapted.predict), batch_for(head)
    (new,), (changed,) = (predict(each, batch).values() for each in (params, randomized(params)))
    (expected,) = jax.jit(plain.predict)(base, batch).values()
    return new, changed, expected


@pytest.mark.parametrize(
    "family",
    [
        "distilbert",
        "mpnet",
        "bigbird",
        "eurobert",
        pytest.param("longformer", marks=pytest.mark.slow),
    ],
)
def test_lora_without_effect_leaves_the_outputs_of_other_families(family):
    method = LoRA(rank=2, targets=DENSE)
    new, changed, expected = outputs_with_and_without_adapter(OTHER_FAMILIES[family], method)
    np.testing.assert_array_equal(new, expected)
    assert np.isfinite(changed).all() and (changed != expected).any()


@pytest.mark.parametrize(
    "head",
    [
        RankingHead(),
        pytest.param(
            SequenceClassificationHead(
                labels=HEAD.labels, window_encoder=WindowEncoder(num_windows=2, num_layers=1)
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ranking", "windows"],
)
def test_lora_without_effect_leaves_the_outputs_of_other_heads(head):
    method = LoRA(rank=2, targets=("word_embeddings", "value"))
    model = small_config(vocab_size=50, num_hidden_layers=1)
    new, changed, expected = outputs_with_and_without_adapter(model, method, head)
    np.testing.assert_array_equal(new, expected)
    assert np.isfinite(changed).all() and (changed != expected).any()


@pytest.mark.parametrize("family", ["distilbert", "electra", "albert"])
def test_prefixes_change_the_outputs_of_other_families(family):
    model, method = {**FAMILIES, **OTHER_FAMILIES}[family], PrefixTuning(length=3)
    new, changed, expected = outputs_with_and_without_adapter(model, method)
    assert np.isfinite([new, changed]).all()
    assert (new != expected).any() and (new != changed).any()


@pytest.mark.parametrize("family", ["mpnet", "bigbird", "longformer", "eurobert"])
def test_prefixes_are_refused_by_other_kinds_of_attention(family):
    adapted, _ = objectives(OTHER_FAMILIES[family], PrefixTuning(length=3))
    with pytest.raises(ConfigError, match=r"PrefixTuning, .*expected another method, such as LoRA"):
        jax.eval_shape(adapted.predict, adapted.abstract(), batch_for())


@pytest.mark.parametrize(
    ("family", "method", "is_refused"),
    [
        ("modernbert", BitFit(), True),
        ("modernbert", BitFit(biases="query_and_intermediate"), True),
        ("modernbert", LayerNormTuning(), False),
        ("bert", BitFit(biases="query_and_intermediate"), False),
    ],
)
def test_methods_that_find_nothing_to_train_in_the_encoder_are_refused(family, method, is_refused):
    params = objectives(FAMILIES[family], None)[1].abstract()
    expected = pytest.raises(
        ConfigError, match=r"none of the parameters that the method trains \(encoder/"
    )
    with expected if is_refused else contextlib.nullcontext():
        check_trains_encoder(TuningConfig(method=method), params)


def test_frozen_patterns_that_leave_nothing_to_train_are_refused():
    params = objectives(FAMILIES["bert"], None)[1].abstract()
    tuning = TuningConfig(method=LayerNormTuning(), frozen=("encoder/**",))
    with pytest.raises(
        ConfigError, match=r"frozen \(encoder/\*\*\) freezes every encoder parameter"
    ):
        check_trains_encoder(tuning, params)
