"""Compares the FLOPs formula with the matrix products counted in the program.

Covers bert_jax/train/flops.py.
"""

import dataclasses
import re

import pytest

from bert_jax.apps.plan.inputs import Inputs, make_inputs, planned_experiment
from bert_jax.config.embedding_losses import (
    MaxSimRankingLoss,
    MultipleNegativesRankingLoss,
    SpladeLoss,
)
from bert_jax.config.objectives import FineTuning, Pretraining, Seq2Seq, TokenDropping
from bert_jax.config.sentence_embeddings import SentenceEmbedding
from bert_jax.config.train import Phase
from bert_jax.config.tuning import BitFit, TuningConfig
from bert_jax.errors import UserError
from bert_jax.models.adapters.config import LoRA, PrefixTuning, PromptTuning
from bert_jax.models.albert.config import AlbertConfig
from bert_jax.models.bart.config import BartConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bigbird.config import BigBirdConfig
from bert_jax.models.deberta_v2.config import DebertaV2Config
from bert_jax.models.electra.config import ElectraConfig
from bert_jax.models.heads.config import MultipleChoiceHead, SequenceClassificationHead
from bert_jax.models.led.config import LedConfig
from bert_jax.models.longformer.config import LongformerConfig
from bert_jax.models.modernbert.config import ModernBertConfig
from bert_jax.models.sentence_encoder.config import (
    Dense,
    MultiVectorEncoderConfig,
    Normalize,
    QueryExpansion,
    SparseEncoderConfig,
)
from bert_jax.models.t5.config import T5Config
from bert_jax.objectives.base import BatchSizes
from bert_jax.objectives.make import make_objective
from bert_jax.params import paths
from bert_jax.train.tuning.freezing import lowest_trainable_depth
from tests.helpers import count_flops

RECIPE = "configs/pretrain/bert.py"


@pytest.mark.parametrize(
    ("recipe", "size"), [("bert", "tiny"), pytest.param("spanbert", "tiny", marks=pytest.mark.slow)]
)
def test_formula_matches_counted_flops(recipe, size):
    experiment, _ = planned_experiment(f"configs/pretrain/{recipe}.py", [f"size={size}"], [], 30522)
    for inputs in make_inputs(experiment):
        counted = count_flops.check_formula(experiment.objective, inputs)
        assert counted == pytest.approx(
            count_flops.step_flops(experiment.objective, inputs.phase), rel=0.005
        )


def test_formula_leaves_out_dropped_tokens():
    model = BertConfig(vocab_size=30_522, num_hidden_layers=4)
    phase = Phase(steps=1, seq_length=512, batch_size=64, max_predictions_per_seq=8)
    plain = Pretraining(model=model, mask_token_id=4)
    config = dataclasses.replace(plain, token_dropping=TokenDropping(keep_fraction=0.25))
    fields = make_objective(config).batch_fields()
    inputs = Inputs(phase=phase, fields=fields, shapes=(phase.sizes,), step_fractions=(1.0,))
    counted = count_flops.check_formula(config, inputs)
    assert counted == pytest.approx(count_flops.step_flops(config, phase), rel=5e-4)
    assert counted < 0.7 * count_flops.step_flops(plain, phase)


FAMILIES = [
    AlbertConfig(num_hidden_layers=3, num_hidden_groups=2),
    BigBirdConfig(num_hidden_layers=1),
    DebertaV2Config(num_hidden_layers=1),
    ElectraConfig(num_hidden_layers=1, embedding_size=128),
    LongformerConfig(num_hidden_layers=2, attention_window=(512, 128)),
    ModernBertConfig(num_hidden_layers=4),
]


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.family)
def test_formulas_of_families_match_program(model):
    """Counts products, those with masked keys included, and the parameters of the layers' kernels.

    Sequences are long enough that ModernBERT, Longformer and BigBird compute attention in blocks.
    """
    config = Pretraining(model=model, mask_token_id=4, nsp_weight=0.0)
    length = min(2048, model.max_length)
    phase = Phase(steps=1, seq_length=length, batch_size=2048, max_predictions_per_seq=8)
    objective = make_objective(config)
    fields = objective.batch_fields()
    inputs = Inputs(phase=phase, fields=fields, shapes=(phase.sizes,), step_fractions=(1.0,))
    counted = count_flops.check_formula(config, inputs)
    keys = sum(count_flops.scored_keys(model, length)) - sum(model.attended_keys(length))
    masked = 3 * 2048 * length * 4 * model.hidden_size * keys
    assert counted - masked == pytest.approx(count_flops.step_flops(config, phase), rel=5e-4)
    params = paths.flatten(objective.abstract())
    layer_kernel = re.compile(r"encoder/(layers|groups)/.*/kernel")
    kernels = [leaf.size for path, leaf in params.items() if layer_kernel.match(path)]
    global_kernels = [leaf.size for path, leaf in params.items() if "_global/kernel" in path]
    num_layers = model.num_hidden_layers
    if isinstance(model, AlbertConfig):  # all others have parameters of their own in each layer
        num_layers = model.num_hidden_groups * model.inner_group_num
    expected = num_layers * model.kernel_params_per_layer
    assert sum(kernels) - sum(global_kernels) == expected


SMALL = {"num_encoder_layers": 2, "num_decoder_layers": 1}
ENCODER_DECODERS = [
    dataclasses.replace(T5Config.v1_1("base"), d_kv=32, **SMALL),
    dataclasses.replace(BartConfig(), **SMALL),
    # The windows cover the source: narrower ones are computed in blocks with masked products.
    dataclasses.replace(LedConfig(), attention_window=(256, 256), **SMALL),
]


@pytest.mark.parametrize("model", ENCODER_DECODERS, ids=lambda model: model.family)
def test_formula_of_encoder_decoders_matches_program(model):
    phase = Phase(steps=1, seq_length=256, target_length=64, batch_size=1024)
    config = Seq2Seq(model=model)
    objective = make_objective(config)
    inputs = Inputs(
        phase=phase, fields=objective.batch_fields(), shapes=(phase.sizes,), step_fractions=(1.0,)
    )
    counted = count_flops.check_formula(config, inputs)
    assert counted == pytest.approx(count_flops.step_flops(config, phase), rel=5e-4)
    params = paths.flatten(objective.abstract())
    width = model.hidden_size
    attention = 4 * width * model.attention_width
    feed_forward = model.num_feed_forward_kernels * width * model.intermediate_size
    global_tokens = 3 * width**2 if isinstance(model, LedConfig) else 0
    for stack, expected in (
        ("encoder", model.num_encoder_layers * (attention + feed_forward + global_tokens)),
        ("decoder", model.num_decoder_layers * (2 * attention + feed_forward)),
    ):
        kernels = [
            leaf.size
            for path, leaf in params.items()
            if path.startswith(f"{stack}/layers/") and path.endswith("/kernel")
        ]
        assert sum(kernels) == expected


def test_wrong_formula_is_an_error(monkeypatch):
    experiment, _ = planned_experiment(RECIPE, ["size=tiny"], [], 30522)
    monkeypatch.setattr(count_flops, "step_flops", lambda *_, **__: 1e9)
    with pytest.raises(UserError, match="FLOPs per step by count but 1e\\+09 by formula"):
        count_flops.check_formula(experiment.objective, make_inputs(experiment)[0])


def test_flops_scale_with_num_choices():
    """Four choices per example take four times the FLOPs, because the head is negligible."""
    phase = Phase(steps=1, seq_length=64, batch_size=8)
    config = FineTuning(model=BertConfig.from_size("tiny"), head=MultipleChoiceHead())
    fields = make_objective(config).batch_fields()
    sizes = {"B": 8, "A": 4, "L": 64}
    inputs = Inputs(phase=phase, fields=fields, shapes=(sizes,), step_fractions=(1.0,))
    counted = count_flops.check_formula(config, inputs)
    assert counted == pytest.approx(4 * count_flops.step_flops(config, phase), rel=0.01)


EMBEDDING_MODEL = BertConfig.from_size("mini")
SPLADE = SentenceEmbedding(
    model=EMBEDDING_MODEL,
    sentence_encoder=SparseEncoderConfig(),
    loss=SpladeLoss(document_regularizer_weight=0.1, query_regularizer_weight=0.1),
    first_text_length=16,
)
PROJECTION = Dense(in_features=256, out_features=16, bias=False, activation=None)
EMBEDDINGS = {
    "dense": (
        SentenceEmbedding(
            model=EMBEDDING_MODEL, loss=MultipleNegativesRankingLoss(), first_text_length=16
        ),
        8 * 16,
    ),
    "SPLADE": (SPLADE, 8 * 16),
    "static queries": (
        dataclasses.replace(SPLADE, sentence_encoder=SparseEncoderConfig(has_static_queries=True)),
        0,
    ),
    "ColBERT": (
        SentenceEmbedding(
            model=EMBEDDING_MODEL,
            sentence_encoder=MultiVectorEncoderConfig(
                modules=(PROJECTION, Normalize()),
                query_length=16,
                expansion=QueryExpansion(length=32, token_id=4),
            ),
            loss=MaxSimRankingLoss(),
        ),
        8 * 32,
    ),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_shorter_first_texts_have_fewer_flops(name):
    config, query_positions = EMBEDDINGS[name]
    phase, dims = Phase(steps=1, seq_length=64, batch_size=8), {"B": 8, "A": 3, "C": 2, "L": 64}
    objective = make_objective(config)
    positions = objective.encoded_positions(BatchSizes.from_dims(dims))
    assert positions == query_positions + 8 * 2 * 64
    fields = objective.batch_fields()
    inputs = Inputs(phase=phase, fields=fields, shapes=(dims,), step_fractions=(1.0,))
    formula = count_flops.step_flops(config, phase, dims)
    # The backward pass computes the logits of sparse vectors again, which is no model FLOP.
    formula += objective.head_flops(BatchSizes.from_dims(dims))
    assert count_flops.counted_flops(config, inputs) == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize(
    "num_frozen_layers", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 12)), 6]
)
def test_frozen_layers_have_no_backward_flops(num_frozen_layers):
    """Counts the products of a program with the lowest layers frozen."""
    frozen = (
        "encoder/embeddings/**",
        *(f"encoder/layers/{k}/**" for k in range(num_frozen_layers)),
    )
    experiment, _ = planned_experiment(RECIPE, ["size=base"], [], 30522)
    inputs, config = make_inputs(experiment)[0], experiment.objective
    params = paths.flatten(make_objective(config).abstract())
    tuning = TuningConfig(frozen=frozen)
    lowest = lowest_trainable_depth(params, tuning)
    assert lowest == num_frozen_layers + 1
    formula = count_flops.step_flops(config, inputs.phase, lowest_trainable_layer=lowest)
    # With all layers frozen, the input of the heads has no gradient: 4 % less than by formula.
    assert count_flops.counted_flops(config, inputs, tuning) == pytest.approx(formula, rel=0.04)


# test_frozen_layers_have_no_backward_flops counts a program with frozen kernels, too.
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(BitFit(), marks=pytest.mark.slow),
        LoRA(),
        PromptTuning(),
        PrefixTuning(length=64),
    ],
    ids=lambda method: type(method).__name__,
)
def test_frozen_kernels_have_no_flops_of_gradients(method):
    """Counts the products of a program that trains biases, small matrices or virtual tokens."""
    phase = Phase(steps=1, seq_length=64, batch_size=8)
    config = FineTuning(
        model=BertConfig.from_size("base"), head=SequenceClassificationHead(labels=("a", "b"))
    )
    tuning = TuningConfig(method=method)
    objective = make_objective(config, adapter=tuning.adapter)
    inputs = Inputs(
        phase=phase,
        fields=objective.batch_fields(),
        shapes=({"B": 8, "L": 64},),
        step_fractions=(1.0,),
    )
    lowest = lowest_trainable_depth(paths.flatten(objective.abstract()), tuning)
    formula = count_flops.step_flops(config, phase, lowest_trainable_layer=lowest, tuning=tuning)
    counted = count_flops.counted_flops(config, inputs, tuning)
    assert counted == pytest.approx(formula, rel=0.02)
    longer = dataclasses.replace(phase, seq_length=64 + tuning.num_virtual_tokens)
    assert counted < 0.7 * count_flops.step_flops(config, longer)
