"""Compares adapters with peft on Hugging Face's PyTorch models, and bottlenecks with formulas.

Every parameter is random, biases, norms and adapters too. For question answering with prefix or
prompt, peft drops `token_type_ids`, so all are 0 here.
"""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.batch import ENCODER_FIELDS
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import TuningConfig
from bert_jax.models.adapters.config import (
    IA3,
    DoRA,
    HoulsbyAdapter,
    LoRA,
    PfeifferAdapter,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.modules import submodule
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.bert.huggingface import TABLES as BERT_TABLES
from bert_jax.models.layers.config import LearnedPositions, PaddingOffsetPositions
from bert_jax.models.roberta.config import RobertaConfig
from bert_jax.models.roberta.huggingface import TABLES as ROBERTA_TABLES
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step
from tests.helpers.torch_parity import HEADS, randomize_parameters, torch_head_outputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

# peft uses a property that this version of transformers deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE, PREFIX_LENGTH = 1e-5, 3
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
MODELS = {
    "Bert": BertConfig(**SIZES, positions=LearnedPositions(max_position_embeddings=24)),
    "Roberta": RobertaConfig(**SIZES, positions=PaddingOffsetPositions(max_position_embeddings=26)),
}
MODULES = {
    "attention.self.query": "attention/query",
    "attention.self.key": "attention/key",
    "attention.self.value": "attention/value",
    "attention.output.dense": "attention/output",
    "intermediate.dense": "feed_forward/intermediate",
    "output.dense": "feed_forward/output",
}
LEAVES = {
    "lora_A.default.weight": "lora_a",
    "lora_B.default.weight": "lora_b",
    "lora_magnitude_vector.default.weight": "magnitude",
    "ia3_l.default": "ia3",
    "lora_embedding_A.default": "lora_embedding_a",
    "lora_embedding_B.default": "lora_embedding_b",
}
LORA = {"r": 4, "lora_alpha": 6, "lora_dropout": 0.1}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "lora": (
        LoRA(rank=4, alpha=6.0, targets=("query", "value", "feed_forward/*", "word_embeddings")),
        "LoraConfig",
        {
            **LORA,
            "target_modules": r".*(query|value|word_embeddings|intermediate.dense|\d.output.dense)",
        },
    ),
    "rslora": (
        LoRA(rank=4, alpha=6.0, scaling="alpha_over_sqrt_rank"),
        "LoraConfig",
        {**LORA, "use_rslora": True},
    ),
    "dora": (DoRA(rank=4, alpha=6.0), "LoraConfig", {**LORA, "use_dora": True}),
    "ia3": (IA3(selection="peft"), "IA3Config", {}),
    "prompt": (
        PromptTuning(length=PREFIX_LENGTH),
        "PromptTuningConfig",
        {"num_virtual_tokens": PREFIX_LENGTH},
    ),
    "prefix": (
        PrefixTuning(length=PREFIX_LENGTH),
        "PrefixTuningConfig",
        {"num_virtual_tokens": PREFIX_LENGTH},
    ),
}
TASKS = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "span": "QUESTION_ANS"}


@functools.cache
def torch_model(family: str, kind: str) -> Any:
    _, name, fields = HEADS[kind]
    config = getattr(transformers, f"{family}Config")(
        **SIZES,
        max_position_embeddings=MODELS[family].positions.max_position_embeddings,
        type_vocab_size=MODELS[family].type_vocab_size,
        layer_norm_eps=MODELS[family].layer_norm_eps,
        attn_implementation="eager",
        **fields,
    )
    return randomize_parameters(getattr(transformers, f"{family}For{name}")(config), std=0.2)


def adapter_parameters(model: Any, family: str) -> dict[str, Any]:
    """Returns the tensors of peft's adapters by our paths."""
    adapter: dict[str, Any] = {}
    prefix = re.compile(rf"base_model\.model\.{family.lower()}\.encoder\.layer\.(\d+)\.(.*)")
    for name, tensor in model.named_parameters():
        leaf = next((leaf for leaf in LEAVES if name.endswith(leaf)), None)
        value = tensor.detach().numpy()
        if name.startswith("prompt_encoder"):
            adapter["prompt"] = value
        elif leaf is not None:
            value = value.reshape(-1) if LEAVES[leaf] in ("ia3", "magnitude") else value.T
            module = "encoder/embeddings/word_embeddings"
            if match := prefix.match(name.removesuffix(f".{leaf}")):
                module = f"encoder/layers/{match[1]}/{MODULES[match[2]]}"
            adapter[f"{module}/{LEAVES[leaf]}"] = value
    if "prompt" not in adapter:
        return paths.unflatten(adapter)
    prompt = adapter.pop("prompt")
    width = SIZES["hidden_size"]
    if prompt.shape[1] == width:
        return paths.unflatten({"encoder/embeddings/word_embeddings/prompt": prompt})
    parts = np.split(prompt, prompt.shape[1] // width, axis=1)
    names = [
        f"encoder/layers/{layer}/attention/{name}"
        for layer in range(SIZES["num_hidden_layers"])
        for name in ("prefix_key", "prefix_value")
    ]
    return paths.unflatten(dict(zip(names, parts, strict=True)))


def base_parameters(model: Any, family: str) -> dict[str, Any]:
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    tables = {"Bert": BERT_TABLES, "Roberta": ROBERTA_TABLES}[family]
    return paths.unflatten(tables.tied.from_external(state, family))


def peft_model(family: str, kind: str, name: str) -> Any:
    """Returns peft's model over the base `torch_model`, without dropout; its adapter is random."""
    base, (_, config_class, fields) = torch_model(family, kind), CASES[name]
    model = peft.get_peft_model(
        type(base)(base.config).eval(),
        getattr(peft, config_class)(task_type=TASKS[kind], **fields),
    )
    state = base.state_dict()
    with torch.no_grad():  # the wrapped names contain those of the base
        for key, tensor in model.state_dict().items():
            plain = re.sub(
                r"base_model\.(model\.)?|base_layer\.|modules_to_save\.default\.|original_module\.",
                "",
                key,
            )
            if plain in state:
                tensor.copy_(state[plain])
        generator = torch.Generator().manual_seed(3)
        for key, tensor in model.named_parameters():
            if "magnitude" in key:
                tensor.mul_(1.3)
            elif any(word in key for word in ("lora_", "ia3_", "prompt_encoder")):
                tensor.normal_(0.5, 0.3, generator=generator)
    return model.eval()


@pytest.mark.parametrize(
    ("family", "kind", "name"),
    [
        *(("Bert", "sequence", name) for name in CASES),
        ("Roberta", "sequence", "lora"),
        # Other families and heads have the layers of the cases above.
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                ("Roberta", "sequence", "ia3"),
                ("Roberta", "sequence", "prompt"),
                ("Roberta", "sequence", "prefix"),
                ("Bert", "token", "prompt"),
                ("Bert", "token", "prefix"),
                ("Bert", "span", "prefix"),
                ("Roberta", "token", "dora"),
            )
        ),
    ],
)
def test_outputs_are_those_of_peft(family, kind, name):
    method, head = CASES[name][0], HEADS[kind][0]
    params, model = (
        base_parameters(torch_model(family, kind), family),
        peft_model(family, kind, name),
    )
    batch = fine_tuning_batch(head, batch_size=4, seq_length=12, vocab_size=60)
    if family == "Roberta":
        batch["input_ids"] = np.where(
            batch["attention_mask"] > 0, np.maximum(batch["input_ids"], 5), 1
        )
    if family == "Roberta" or kind == "span":
        batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    inputs = {field: torch.from_numpy(batch[field]).long() for field in ENCODER_FIELDS}
    expected = torch_head_outputs(model, inputs)
    objective = FineTuningObjective(FineTuning(model=MODELS[family], head=head), method)
    adapter = adapter_parameters(model, family)
    assert paths.flatten(adapter).keys() == paths.flatten(objective.abstract()[ADAPTER]).keys()
    found = jax.device_get(jax.jit(objective.predict)({**params, ADAPTER: adapter}, batch))
    for output, values in expected.items():
        if kind != "sequence":  # peft returns the states of a prompt, too
            values, real = values[:, -12:], batch["attention_mask"] > 0
            values, found[output] = values[real], found[output][real]
        np.testing.assert_allclose(found[output], values, atol=TOLERANCE)
        assert np.abs(values).max() > 0.01


@pytest.mark.parametrize("name", ["lora", pytest.param("prompt", marks=pytest.mark.slow)])
def test_losses_of_20_steps_are_those_of_peft(name):
    """peft does not train the pooler, so it is frozen here, too."""
    steps, peak, (method, _, _) = 20, 3e-3, CASES[name]
    base, model = torch_model("Bert", "sequence"), peft_model("Bert", "sequence", name)
    batches = [
        fine_tuning_batch(
            HEADS["sequence"][0], batch_size=8, seq_length=12, vocab_size=60, seed=seed
        )
        for seed in range(steps)
    ]
    adapter = jax.tree.map(np.copy, adapter_parameters(model, "Bert"))
    trained = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for key, p in trained if key.endswith("bias")], "weight_decay": 0.0},
            {"params": [p for key, p in trained if not key.endswith("bias")], "weight_decay": 0.01},
        ],
        eps=1e-6,
    )
    expected = []
    for update, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = peak * (1 - update / steps)
        optimizer.zero_grad()
        names = {**{field: field for field in ENCODER_FIELDS}, "labels": "labels"}
        loss = model(**{key: torch.from_numpy(batch[f]).long() for f, key in names.items()}).loss
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    quiet = dataclasses.replace(
        MODELS["Bert"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    if isinstance(method, LoRA):
        method = dataclasses.replace(method, dropout=0.0)
    train = TrainConfig(
        phases=(Phase(steps=steps, seq_length=12, batch_size=8),),
        optimizer=AdamW(b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01),
        schedule=WarmupLinear(peak_learning_rate=peak, warmup_steps=0),
        max_grad_norm=None,
        tuning=TuningConfig(method=method, frozen=("pooler/**",)),
    )
    task = FineTuning(model=quiet, head=HEADS["sequence"][0], classifier_dropout=0.0)
    optax_optimizer, schedule = make_optimizer(train), learning_rate_schedule(train.schedule, steps)
    params: Any = {**base_parameters(base, "Bert"), ADAPTER: adapter}
    params = jax.tree.map(jax.numpy.asarray, params)
    state: Any = {"step": jax.numpy.int32(0), "params": params}
    state["opt_state"] = jax.jit(optax_optimizer.init)(params)
    objective = FineTuningObjective(task, method)
    step = jax.jit(make_train_step(objective, optax_optimizer, schedule, tuning=train.tuning))
    losses = []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert np.ptp(losses) > 0.05


@pytest.mark.parametrize("method", [HoulsbyAdapter(size=5), PfeifferAdapter(reduction_factor=4)])
def test_bottlenecks_compute_the_formula(method):
    """Computes the layer of the reference implementations in PyTorch, from our parameters."""
    config = MODELS["Bert"]
    objective = FineTuningObjective(FineTuning(model=config, head=HEADS["sequence"][0]), method)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), objective.abstract()
    )
    network: Any = objective.network.merge(params)
    for path in ("encoder/layers/0/attention_norm", "encoder/layers/1/feed_forward_norm"):
        if isinstance(method, PfeifferAdapter) and "attention_norm" in path:
            continue
        residual, y = (rng.normal(size=(2, 3, 16)).astype(np.float32) for _ in range(2))
        leaves = {
            name: torch.from_numpy(leaf)
            for part in (ADAPTER, None)
            for name, leaf in paths.flatten(subtree(params, path, part)).items()
        }

        def norm(x, leaves=leaves):
            eps = config.layer_norm_eps
            return torch.nn.functional.layer_norm(x, (16,), leaves["scale"], leaves["bias"], eps)

        def bottleneck(x, activation, leaves=leaves):
            down = activation(x @ leaves["down/kernel"] + leaves["down/bias"])
            return down @ leaves["up/kernel"] + leaves["up/bias"]

        r, t = torch.from_numpy(residual), torch.from_numpy(y)
        if isinstance(method, HoulsbyAdapter):
            tanh_gelu = functools.partial(torch.nn.functional.gelu, approximate="tanh")
            expected = norm(r + t + bottleneck(t, tanh_gelu))
        else:
            expected = norm(r + t + bottleneck(norm(r + t), torch.relu))
        found = submodule(network, path).add(residual, y)
        np.testing.assert_allclose(found, expected.numpy(), atol=TOLERANCE)


def subtree(params: Any, path: str, part: str | None) -> Any:
    for key in ([part] if part else []) + path.split("/"):
        params = params[key]
    return params
