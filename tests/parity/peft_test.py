"""Exchanges adapter folders with the peft library, in both directions, and compares training.

Covers interop/peft/*.py, pretrained/adapter_folder.py and export/adapter.py. Every parameter is
random, those of adapters too.
"""

import dataclasses
import inspect
import itertools
import json
import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax import __main__ as cli
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.apps.testing.models import small_model
from bert_jax.batch import CHOICE_FIELDS, ENCODER_FIELDS
from bert_jax.cli.finetune import tuning_method
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import LayerNormTuning, TuningConfig
from bert_jax.errors import ConfigError, UserError
from bert_jax.export.export import export
from bert_jax.interop.peft.adapter_config import PeftAdapter
from bert_jax.interop.peft.folder import read_adapter_folder, write_adapter_folder
from bert_jax.interop.peft.lora import ModuleNames
from bert_jax.interop.peft.methods import compute_prefixes
from bert_jax.models.adapters.config import (
    IA3,
    DoRA,
    LoRA,
    PrefixEncoder,
    PrefixTuning,
    PromptTuning,
)
from bert_jax.models.adapters.network import start_from_base
from bert_jax.models.families import format_of
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.params.paths import ADAPTER
from bert_jax.pretrained.load import LoadedModel, load_encoder
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import init_state, make_train_step
from bert_jax.train.tuning.freezing import is_frozen
from tests.helpers.torch_parity import HEADS, randomize_parameters, torch_head_outputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

# peft uses a property that this version of transformers deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = 1e-5
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
MORE_FIELDS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {"max_position_embeddings": 26, "pad_token_id": 1, "type_vocab_size": 1},
    "Electra": {"embedding_size": 8},
    "Albert": {"embedding_size": 8},
    "DistilBert": {},
    "ModernBert": {"local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
}
DENSE = ("query", "attention/output", "feed_forward/output")
CASES: dict[str, tuple[str, str, Any]] = {
    "lora": ("Bert", "sequence", LoRA(rank=4, alpha=6.0, targets=(*DENSE, "word_embeddings"))),
    "rslora": (
        "Roberta",
        "token",
        LoRA(rank=3, alpha=5.0, targets=("feed_forward/output",), scaling="alpha_over_sqrt_rank"),
    ),
    "span": ("Roberta", "span", LoRA(rank=2)),
    "electra": ("Electra", "regression", LoRA(rank=2, targets=("layers/1/attention/query",))),
    "joined": ("ModernBert", "sequence", LoRA(rank=2, targets=("query", "value", "output"))),
    "choice": ("Bert", "choice", LoRA(rank=2)),
    "dora": ("Bert", "span", DoRA(rank=4, targets=("query", "feed_forward/*"))),
    "ia3": ("Roberta", "sequence", IA3()),
    "ia3_peft": ("Bert", "token", IA3(selection="peft")),
    "norms": ("Roberta", "sequence", LayerNormTuning()),
    "prompt": ("Bert", "sequence", PromptTuning(length=3)),
    "prefix": ("Bert", "sequence", PrefixTuning(length=3, reparametrization=PrefixEncoder(size=5))),
}
PEFT_TYPES = {"norms": "LN_TUNING", "prompt": "PROMPT_TUNING", "prefix": "PREFIX_TUNING"}
METHODS: dict[str, tuple[Any, Any]] = {
    "lora": (
        LoRA(rank=2, alpha=3.0, targets=("query", "value", "feed_forward/*")),
        peft.LoraConfig(r=2, lora_alpha=3, target_modules=["query", "value", "intermediate.dense"]),
    ),
    "dora": (
        DoRA(rank=2, targets=DENSE),
        peft.LoraConfig(r=2, use_dora=True, target_modules=["key", "output.dense"]),
    ),
    "ia3": (IA3(), peft.IA3Config()),
    "prompt": (PromptTuning(length=3), peft.PromptTuningConfig(num_virtual_tokens=3)),
    "prefix": (PrefixTuning(length=3), peft.PrefixTuningConfig(num_virtual_tokens=3)),
    "norms": (LayerNormTuning(), peft.LNTuningConfig(target_modules=["LayerNorm"])),
}
"""Name of a method -> ours, and the config with which peft makes the same kind of adapter."""
TASK_TYPES = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "span": "QUESTION_ANS"}
ROUND_TRIPS = {
    f"{family}-{kind}-{method}": (family, kind, METHODS[method][0])
    for family, kind, method in itertools.product(("Bert", "Roberta"), TASK_TYPES, METHODS)
}
"""All combinations of family, task and method that are exchanged in both directions."""
ELECTRA_PREFIX = {"Electra-token-prefix": ("Electra", "token", PrefixTuning(length=3))}
ALL_CASES = CASES | ROUND_TRIPS | ELECTRA_PREFIX
FAST_ROUND_TRIPS = (
    "Bert-sequence-prefix",
    "Bert-token-prompt",
    "Bert-span-dora",
    "Roberta-sequence-norms",
    "Roberta-token-ia3",
    "Roberta-span-lora",
)
"""One for each method; each family and each task is among them."""


def save_base(folder: Path, family: str, kind: str, head: bool = True) -> None:
    """Writes a model of Hugging Face with random parameters."""
    _, name, fields = HEADS[kind]
    config = getattr(transformers, f"{family}Config")(
        **SIZES | MORE_FIELDS[family], attn_implementation="eager", **fields if head else {}
    )
    model = getattr(transformers, f"{family}For{name}" if head else f"{family}Model")(config)
    randomize_parameters(model, std=0.2).save_pretrained(folder)


def random_adapter(base: LoadedModel, method: Any, kind: str) -> PeftAdapter:
    """Returns an adapter of a base with random parameters, and with a random head."""
    adapter_method = None if isinstance(method, LayerNormTuning) else method
    objective = FineTuningObjective(
        FineTuning(model=base.config, head=HEADS[kind][0]), adapter_method
    )
    flat, rng = paths.flatten(jax.device_get(objective.init(jax.random.key(0)))), {}
    generator = np.random.default_rng(4)
    tuning = TuningConfig(method=method)
    for path, leaf in flat.items():
        if not is_frozen(tuning, path):
            start = 1.0 if path.endswith(("ia3", "magnitude", "scale")) else 0.0
            noise = generator.normal(start, 0.3, leaf.shape)
            rng[path] = noise.astype(np.float32)
    prefix = f"{ADAPTER}/"
    return PeftAdapter(
        method=adapter_method,
        adapter={p.removeprefix(prefix): v for p, v in rng.items() if p.startswith(prefix)},
        params={path: leaf for path, leaf in rng.items() if not path.startswith(prefix)},
        head=HEADS[kind][0],
        base=base.path,
        fingerprint=paths.fingerprint(base.params["encoder"]),
    )


@pytest.fixture(scope="module")
def base_of_case(tmp_path_factory):
    """Returns a function from a case to our base, which is that of other cases too."""
    made: dict[tuple[str, str], LoadedModel] = {}

    def make(name: str) -> LoadedModel:
        family, kind, _ = ALL_CASES[name]
        if (family, kind) not in made:
            folder = tmp_path_factory.mktemp(f"{family}_{kind}")
            save_base(folder, family, kind)
            made[family, kind] = load_encoder(folder)
        return made[family, kind]

    return make


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory, base_of_case):
    """Returns a function from a case to (adapter, its folder, our base)."""
    made: dict[str, tuple[PeftAdapter, Path, LoadedModel]] = {}

    def make(name: str) -> tuple[PeftAdapter, Path, LoadedModel]:
        if name not in made:
            folder, base = tmp_path_factory.mktemp(name), base_of_case(name)
            _, kind, method = ALL_CASES[name]
            adapter = random_adapter(base, method, kind)
            write_adapter_folder(folder, adapter, base.config, "1.0")
            made[name] = adapter, folder, base
        return made[name]

    return make


def torch_base(name: str, folder: Path) -> Any:
    auto_class = getattr(transformers, f"AutoModelFor{HEADS[ALL_CASES[name][1]][1]}")
    return auto_class.from_pretrained(folder, attn_implementation="eager")


def open_with_peft(name: str, folder: Path) -> Any:
    """Opens an adapter with the classes of transformers and peft, and checks that all is read."""
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = torch_base(name, base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(model, folder)
    assert not [w for w in caught if "missing" in str(w.message) or "unexpected" in str(w.message)]
    return model.eval()


def batch_of(name: str) -> Any:
    family, kind, _ = ALL_CASES[name]
    batch = fine_tuning_batch(HEADS[kind][0], batch_size=4, seq_length=12, vocab_size=60)
    if family == "Roberta":
        real = batch["attention_mask"] > 0
        batch["input_ids"] = np.where(real, np.maximum(batch["input_ids"], 5), 1)
    if family == "Roberta" or kind == "span":  # peft drops the token types in question answering
        batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    return batch


def torch_outputs(name: str, model: Any, batch: Any) -> dict[str, np.ndarray]:
    is_choice = ALL_CASES[name][1] == "choice"
    fields = dict(zip(ENCODER_FIELDS, CHOICE_FIELDS if is_choice else ENCODER_FIELDS, strict=True))
    inputs = {to: torch.from_numpy(batch[field]).long() for to, field in fields.items()}
    if ALL_CASES[name][0] == "ModernBert":
        del inputs["token_type_ids"]
    return torch_head_outputs(model, inputs)


def our_outputs(model: LoadedModel, batch: Any) -> dict[str, np.ndarray]:
    assert model.head is not None
    objective = FineTuningObjective(FineTuning(model=model.config, head=model.head), model.adapter)
    params = {**model.params, **({ADAPTER: model.adapter_params} if model.adapter else {})}
    outputs = jax.device_get(jax.jit(objective.predict)(params, batch))
    return {"logits": outputs["values"][:, None]} if "values" in outputs else outputs


def assert_same_outputs(name: str, peft_model: Any, model: LoadedModel) -> None:
    """Checks our outputs of real tokens; peft also returns those of the vectors of a prompt."""
    batch, is_per_token = batch_of(name), ALL_CASES[name][1] in ("token", "span")
    expected, found = torch_outputs(name, peft_model, batch), our_outputs(model, batch)
    for output, values in expected.items():
        computed = found[output]
        if is_per_token:
            real = batch["attention_mask"] > 0
            computed, values = computed[real], values[:, -real.shape[1] :][real]
        np.testing.assert_allclose(computed, values, atol=TOLERANCE)
        assert np.abs(values).max() > 0.01


def slow_except(names: Iterable[str], fast: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize(
    "name",
    # These have each method; test_folders_of_peft_are_read_and_written_alike has all of CASES.
    slow_except(ALL_CASES, ("lora", "dora", "ia3", "ia3_peft", "norms", "prompt", "prefix")),
)
def test_peft_computes_the_outputs_of_our_folder(name, exchanged):
    adapter, folder, base = exchanged(name)
    model = load_encoder(folder)
    assert model.head == adapter.head
    peft_model = open_with_peft(name, folder)
    assert_same_outputs(name, peft_model, model)
    # peft raises an AttributeError when it merges IA3 into a model with RoBERTa's classifier.
    if isinstance(adapter.method, LoRA) or name == "ia3_peft":
        merged = peft_model.merge_and_unload().state_dict()
        table = format_of(base.config).names(base.config, model.head)
        for tensor, value in table.to_external(paths.flatten(model.params)).items():
            np.testing.assert_allclose(value, merged[tensor].numpy(), atol=1e-6, err_msg=tensor)


def peft_adapter(name: str, base: LoadedModel, config: Any) -> Any:
    """Returns peft's model over a base; everything that it trains is random, the head too."""
    config = dataclasses.replace(config, task_type=TASK_TYPES[ALL_CASES[name][1]])
    model = peft.get_peft_model(torch_base(name, Path(base.path)), config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad:
                is_factor = re.search("ia3_|magnitude|LayerNorm.*weight", parameter_name)
                parameter.normal_(1.0 if is_factor else 0.0, 0.3, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", slow_except(ROUND_TRIPS, FAST_ROUND_TRIPS))
def test_we_compute_the_outputs_of_a_folder_that_peft_made(name, base_of_case, tmp_path):
    base, (_, config) = base_of_case(name), METHODS[name.rpartition("-")[2]]
    model = peft_adapter(name, base, config)
    model.save_pretrained(tmp_path)
    assert_same_outputs(name, model, load_encoder(tmp_path, base=base.path))


def test_prefix_encoders_compute_the_prefixes_of_peft(base_of_case, tmp_path):
    name = "Bert-sequence-prefix"
    base, reparametrization = base_of_case(name), PrefixEncoder(size=5)
    method = PrefixTuning(length=3, reparametrization=reparametrization)
    config = dataclasses.replace(
        METHODS["prefix"][1], prefix_projection=True, encoder_hidden_size=5
    )
    model = peft_adapter(name, base, config)
    prefix_encoder = model.prompt_encoder["default"]
    state = {key: value.numpy() for key, value in prefix_encoder.state_dict().items()}
    leaves = {
        "embedding": state["embedding.weight"],
        "down/kernel": state["transform.0.weight"].T,
        "down/bias": state["transform.0.bias"],
        "up/kernel": state["transform.2.weight"].T,
        "up/bias": state["transform.2.bias"],
    }
    names = ModuleNames(base.config, base.head)
    found = compute_prefixes(method, {"encoder/prefix_encoder": leaves}, names)
    with torch.no_grad():
        expected = prefix_encoder(torch.arange(3)).reshape(3, SIZES["num_hidden_layers"], 2, -1)
    for layer, prefixes in enumerate(expected.numpy().swapaxes(0, 1)):
        for index, leaf in enumerate(("prefix_key", "prefix_value")):
            computed = found[f"encoder/layers/{layer}/attention"][leaf]
            np.testing.assert_allclose(computed, prefixes[:, index], rtol=0, atol=1e-6)
    assert np.ptp(expected.numpy()) > 1
    model.save_pretrained(tmp_path)  # the keys and values, not the MLP
    assert_same_outputs(name, model, load_encoder(tmp_path, base=base.path))


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert", "DistilBert"])
def test_prefixes_are_exported_only_for_families_that_peft_has_them_for(family, tmp_path):
    save_base(tmp_path / "base", family, "sequence")
    base = load_encoder(tmp_path / "base")
    adapter = random_adapter(base, PrefixTuning(length=3), "sequence")
    (tmp_path / "adapter").mkdir()
    forward = getattr(transformers, f"{family}Model").forward
    if "past_key_values" in inspect.signature(forward).parameters:
        write_adapter_folder(tmp_path / "adapter", adapter, base.config, "1.0")
        return
    with pytest.raises(UserError, match=f"prefix tuning of {family}.*takes no past_key_values"):
        write_adapter_folder(tmp_path / "adapter", adapter, base.config, "1.0")


@pytest.mark.parametrize("name", CASES)
def test_folders_of_peft_are_read_and_written_alike(name, exchanged, tmp_path):
    _, folder, base = exchanged(name)
    open_with_peft(name, folder).save_pretrained(tmp_path / "peft")
    saved = {
        tensor: value
        for tensor, value in load_file(tmp_path / "peft" / "adapter_model.safetensors").items()
        if not tensor.endswith("base_layer.weight")  # a copy of the base's table
    }
    adapter = read_adapter_folder(tmp_path / "peft", base.config, base.head)
    assert adapter.fingerprint is None and adapter.head == HEADS[CASES[name][1]][0]
    (tmp_path / "again").mkdir()
    params = {p: v for p, v in adapter.params.items() if "word_embeddings" not in p}
    adapter = dataclasses.replace(adapter, params=params, fingerprint="")
    write_adapter_folder(tmp_path / "again", adapter, base.config, "1.0")
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert again.keys() == saved.keys()
    if name != "joined":  # a joined layer gets one matrix A for each of its parts
        for tensor, value in saved.items():
            np.testing.assert_array_equal(again[tensor], value, err_msg=tensor)
    expected, found = (
        json.loads((each / "adapter_config.json").read_text())
        for each in (tmp_path / "peft", tmp_path / "again")
    )
    assert found["peft_type"] == PEFT_TYPES.get(name, "IA3" if "ia3" in name else "LORA")
    for field, value in found.items():
        if field == "modules_to_save":
            assert (
                set(value) <= set(expected[field]) <= {*value, "classifier", "score", "qa_outputs"}
            )
        elif isinstance(value, list):
            assert sorted(value) == sorted(expected[field]), field
        elif name != "joined" or ("pattern" not in field and field not in ("r", "lora_alpha")):
            assert value == expected[field], field


def test_an_adapter_without_effect_is_the_base(exchanged, tmp_path):
    adapter, _, base = exchanged("lora")
    zeros = {p: np.zeros_like(v) if "_b" in p else v for p, v in adapter.adapter.items()}
    adapter = dataclasses.replace(adapter, adapter=zeros)
    write_adapter_folder(tmp_path, adapter, base.config, "1.0")
    flat = paths.flatten(load_encoder(tmp_path).params["encoder"])
    for path, leaf in paths.flatten(base.params["encoder"]).items():
        np.testing.assert_array_equal(flat[path], leaf)


def test_ranks_and_alphas_of_single_layers_are_read(exchanged, tmp_path):
    _, _, base = exchanged("span")
    config = peft.LoraConfig(
        task_type="QUESTION_ANS",
        r=2,
        rank_pattern={"0.attention.self.query": 4},
        alpha_pattern={"value": 3},
        layers_to_transform=[0, 1],
        target_modules=["query", "value"],
    )
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(
        base.path, attn_implementation="eager"
    )
    model = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.4, generator=torch.Generator().manual_seed(len(name)))
    model.save_pretrained(tmp_path)
    batch = batch_of("span")
    expected, found = (
        torch_outputs("span", model, batch),
        our_outputs(load_encoder(tmp_path), batch),
    )
    real = batch["attention_mask"] > 0
    for output, values in expected.items():
        np.testing.assert_allclose(found[output][real], values[real], atol=TOLERANCE)


def changed_folder(folder: Path, tmp_path: Path, change: Any) -> Path:
    """Copies an adapter folder; `change` edits its config and its tensors in place."""
    data = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    change(data, tensors)
    (tmp_path / "adapter_config.json").write_text(json.dumps(data))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    return tmp_path


LORA_A = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
PEFT_MODULE = LORA_A.removesuffix(".lora_A.weight")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: d.update(peft_type="BOFT"), "peft_type is 'BOFT'; supported are LORA, IA3"),
        (lambda d, t: d.update(task_type="CAUSAL_LM"), "task_type is 'CAUSAL_LM'.*SEQ_CLS, TOKEN"),
        (lambda d, t: d.update(bias="all"), "bias is 'all', which is not supported"),
        (lambda d, t: d.update(init_lora_weights="pissa"), "changes the weights of the base"),
        (lambda d, t: d.update(r=9), "lora_embedding_A has shape .4, 60., but the rank"),
        (lambda d, t: d.update(rank_pattern={"query": 0}), "r of .*query is 0; expected a number"),
        (lambda d, t: d.update(target_modules=None), "target_modules is None; expected a list"),
        (lambda d, t: d.update(target_modules="("), "'.' is not a regular expression"),
        (lambda d, t: d.update(use_dora=True), "lora_magnitude_vector is missing"),
        (lambda d, t: t.pop(LORA_A), "selects bert.*query, but the tensor .*lora_A.weight is miss"),
        (
            lambda d, t: t.pop("base_model.model.classifier.bias"),
            "classifier.bias is missing, alth",
        ),
        (
            lambda d, t: t.update({f"{PEFT_MODULE}.ia3_l": np.ones((16, 1), np.float32)}),
            "query.ia3_l is not one of the method LORA",
        ),
        (
            lambda d, t: t.update({LORA_A.replace("query", "key"): t[LORA_A]}),
            "self.key.lora_A.weight is not used: target_modules is",
        ),
        (
            lambda d, t: t.update({LORA_A.replace("bert", "roberta"): t.pop(LORA_A)}),
            "roberta.encoder.*belongs to no layer of the base, whose layers are called",
        ),
        (
            lambda d, t: d.update(base_model_name_or_path="org/x"),
            "the base of the adapter cannot be read: org/x: no such folder; .* not in the cache",
        ),
        (lambda d, t: d.update(base_model_name_or_path=None), "null in its config; give the model"),
    ],
)
def test_folders_that_do_not_fit_are_refused(exchanged, tmp_path, change, message):
    _, folder, _ = exchanged("lora")
    with pytest.raises(UserError, match=message):
        load_encoder(changed_folder(folder, tmp_path, change))


def test_a_head_of_another_task_is_refused(exchanged, tmp_path):
    (_, folder, _), (_, other, _) = exchanged("lora"), exchanged("ia3_peft")
    changed = changed_folder(folder, tmp_path, lambda data, tensors: None)
    shutil.copy(other / "bert_jax_adapter.json", changed)
    message = "class ForSequenceClassification, but bert_jax_adapter.json has a TokenClass.*Head"
    with pytest.raises(UserError, match=message):
        load_encoder(changed)


def test_an_adapter_needs_the_base_that_it_was_trained_on(exchanged, tmp_path):
    _, folder, base = exchanged("lora")
    save_base(tmp_path / "roberta", "Roberta", "sequence")
    with pytest.raises(UserError, match="belongs to no layer of the base"):
        load_encoder(folder, base=tmp_path / "roberta")
    changed = transformers.AutoModelForSequenceClassification.from_pretrained(base.path)
    with torch.no_grad():
        changed.bert.embeddings.LayerNorm.bias.add_(0.1)
    changed.save_pretrained(tmp_path / "changed")
    with pytest.raises(UserError, match=r"trained on the base .* with the fingerprint"):
        load_encoder(folder, base=tmp_path / "changed")
    with pytest.raises(ConfigError, match="is not an adapter folder, so it has no base"):
        load_encoder(base.path, base=base.path)
    # The labels are those of our file, not of the base.
    save_base(tmp_path / "bare", "Bert", "sequence", head=False)
    assert load_encoder(folder, base=tmp_path / "bare").head == HEADS["sequence"][0]


STEPS, WARMUP, PEAK = 20, 5, 5e-3
TRAIN = TrainConfig(
    phases=(Phase(steps=STEPS, seq_length=12, batch_size=4, max_predictions_per_seq=1),),
    optimizer=AdamW(weight_decay=0.0),
    tuning=TuningConfig(method=LoRA(rank=4, alpha=8.0, dropout=0.0)),
    schedule=WarmupLinear(peak_learning_rate=PEAK, warmup_steps=WARMUP),
    max_grad_norm=1.0,
)


@pytest.mark.slow  # adapters_test.py takes 20 steps with LoRA too
def test_twenty_training_steps_of_lora_are_those_of_peft(tmp_path):
    head, _, fields = HEADS["sequence"]
    config = transformers.BertConfig(
        **SIZES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        **fields,
    )
    model = transformers.BertForSequenceClassification(config)
    randomize_parameters(model, std=0.1).save_pretrained(tmp_path / "base")
    peft_config = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, modules_to_save=["pooler"]
    )
    model = peft.get_peft_model(model, peft_config)
    model.save_pretrained(tmp_path / "start")
    base = load_encoder(tmp_path / "base")
    start = read_adapter_folder(tmp_path / "start", base.config, None)
    objective = FineTuningObjective(
        FineTuning(model=base.config, head=head, classifier_dropout=0.0), TRAIN.tuning.adapter
    )
    optimizer = make_optimizer(TRAIN)
    state = init_state(objective, optimizer, jax.random.key(0))
    params = {
        **paths.flatten(base.params),
        **start.params,
        **{f"{ADAPTER}/{path}": leaf for path, leaf in start.adapter.items()},
    }
    state["params"] = paths.unflatten({p: jnp.asarray(v) for p, v in params.items()})
    schedule = learning_rate_schedule(TRAIN.schedule, STEPS)
    train_step = make_train_step(objective, optimizer, schedule, tuning=TRAIN.tuning)
    step = jax.jit(train_step)
    batches = [
        fine_tuning_batch(head, batch_size=4, seq_length=12, vocab_size=60, seed=seed)
        for seed in range(STEPS)
    ]
    losses = []
    for batch in batches:
        state, metrics = step(state, {name: batch[name] for name in objective.batch_fields()})
        losses.append(float(metrics["loss"]))
    expected = torch_losses(model, batches)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert np.ptp(losses) > 0.05


def torch_losses(model: Any, batches: list[Any]) -> list[float]:
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)
    losses = []
    for update, batch in enumerate(batches, start=1):
        up, down = update / WARMUP, (STEPS + 1 - update) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (up if update <= WARMUP else down)
        inputs = {field: torch.from_numpy(batch[field]).long() for field in ENCODER_FIELDS}
        optimizer.zero_grad()
        loss = model(**inputs, labels=torch.from_numpy(batch["labels"]).long()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("length", [3, 20])  # fewer and more vectors than tokens
def test_prompts_start_from_the_tokens_of_a_text_as_in_peft(length, tmp_path):
    text = "the man sings by the old sea"
    export(small_model(tmp_path / "vocabulary", num_hidden_layers=1), tmp_path / "base")
    command = ["finetune", "glue/sst2", "--run", "run", "--model", str(tmp_path / "base")]
    command += ["--method", "prompt", "--initial-text", text]
    method = tuning_method(cli.parse_command(command))
    assert isinstance(method, PromptTuning)
    method = dataclasses.replace(method, length=length)
    base = load_encoder(tmp_path / "base")
    table = paths.flatten(base.params)["encoder/embeddings/word_embeddings/embedding"]
    empty = {"prompt": np.zeros((length, table.shape[1]), np.float32)}
    adapter = {"encoder": {"embeddings": {"word_embeddings": empty}}}
    params = start_from_base(method, {**base.params, ADAPTER: adapter})
    config = peft.PromptTuningConfig(
        task_type="SEQ_CLS",
        num_virtual_tokens=length,
        token_dim=table.shape[1],
        num_transformer_submodules=1,
        prompt_tuning_init="TEXT",
        prompt_tuning_init_text=text,
        tokenizer_name_or_path=str(tmp_path / "base"),
    )
    embedding = torch.nn.Embedding.from_pretrained(torch.tensor(np.asarray(table)))
    expected = peft.PromptEmbedding(config, embedding).embedding.weight.detach().numpy()
    found = paths.flatten(params[ADAPTER])["encoder/embeddings/word_embeddings/prompt"]
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected, axis=0)) > 2
