"""Builds the step of each implementation that `pretrain_step.py` measures, for the same batch."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretrain_step_families import FAMILIES, objective_config, torch_losses

IMPLEMENTATIONS = ("bert_jax", "plain-jax", "hf-eager", "hf-compile", "hf-gathered")
BATCH_SIZES = {  # a step takes at most about a second on two cores
    ("tiny", 128): 64, ("tiny", 512): 16, ("small", 128): 16, ("small", 512): 4,
    ("base", 128): 8, ("base", 512): 2, ("albert", 128): 16, ("albert", 512): 4,
    ("electra", 128): 16, ("electra", 512): 4, ("modernbert", 128): 32, ("modernbert", 512): 8,
}  # fmt: skip
MAX_PREDICTIONS = {128: 20, 512: 77}
VOCAB_SIZE = 30522
SMALLEST_VOCAB_SIZE = 30000
"""The vocabulary size of ALBERT: the ids of a batch are those that every family has."""


@dataclasses.dataclass(frozen=True)
class BenchmarkCase:
    """Describes one row of the table."""

    size: str
    length: int
    dtype: str

    @property
    def batch_size(self) -> int:
        """Returns the number of sequences per step."""
        return BATCH_SIZES[self.size, self.length]


def make_step(implementation: str, case: BenchmarkCase) -> Callable[[], Any]:
    """Returns a function that runs one step of an implementation and waits for its result."""
    match implementation:
        case "bert_jax":
            return bert_jax_step(case)
        case "plain-jax":
            return plain_jax_step(case)
        case _:
            return torch_step(case, implementation)


def random_batch(case: BenchmarkCase) -> dict[str, Any]:
    """Returns the same batch for all implementations."""
    from bert_jax.apps.testing.batches import pretraining_batch

    return pretraining_batch(
        batch_size=case.batch_size,
        seq_length=case.length,
        max_predictions_per_seq=MAX_PREDICTIONS[case.length],
        vocab_size=SMALLEST_VOCAB_SIZE if case.size in FAMILIES else VOCAB_SIZE,
    )


def make_objective_config(case: BenchmarkCase) -> Any:
    """Returns the objective of a row: that of BERT, or that of another family."""
    from bert_jax.config.objectives import Pretraining
    from bert_jax.models.bert.config import BertConfig
    from bert_jax.models.layers.config import ComputeConfig

    compute: Any = ComputeConfig(dtype=case.dtype)  # type: ignore[arg-type]
    if case.size in FAMILIES:
        return objective_config(case.size, compute)
    model = BertConfig.from_size(case.size, vocab_size=VOCAB_SIZE)  # type: ignore[arg-type]
    return Pretraining(model=model, mask_token_id=4, compute=compute)


def bert_jax_step(case: BenchmarkCase) -> Callable[[], Any]:
    """Builds the train step as `bert-jax pretrain` compiles it."""
    import jax

    from bert_jax.config.data import PretrainingData
    from bert_jax.config.experiment import Experiment
    from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
    from bert_jax.parallel import sharding
    from bert_jax.train.initialize import initialize_or_load
    from bert_jax.train.step import TrainSetup

    phase = Phase(
        steps=1000,
        seq_length=case.length,
        batch_size=case.batch_size,
        max_predictions_per_seq=MAX_PREDICTIONS[case.length],
    )
    experiment = Experiment(
        name="bench",
        objective=make_objective_config(case),
        data=PretrainingData(corpus="none"),
        train=TrainConfig(phases=(phase,), schedule=WarmupLinear(warmup_steps=10)),
    )
    mesh = sharding.make_mesh(experiment.mesh)
    setup = TrainSetup.from_experiment(experiment, mesh)
    fields = setup.objective.batch_fields()
    compiled = setup.compile_step(phase, fields, [phase.sizes])
    compiled.prepare(phase.seq_length)
    state = initialize_or_load(setup)
    batch = random_batch(case)
    batch = sharding.put_batch({n: batch[n] for n in fields}, sharding.batch_sharding(mesh))

    def step() -> None:
        nonlocal state
        state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))

    return step


def plain_jax_step(case: BenchmarkCase) -> Callable[[], Any]:
    """Builds the step of `examples/bert_in_one_page.py`, with the sizes of BERT."""
    import jax

    from bert_jax.models.bert.config import BertConfig

    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from bert_in_one_page import Config, init, make_optimizer, make_step

    bert = BertConfig.from_size(case.size, vocab_size=VOCAB_SIZE)  # type: ignore[arg-type]
    config = Config(
        vocab_size=bert.vocab_size,
        hidden_size=bert.hidden_size,
        num_hidden_layers=bert.num_hidden_layers,
        num_attention_heads=bert.num_attention_heads,
        intermediate_size=bert.intermediate_size,
        dtype=case.dtype,
    )
    optimizer = make_optimizer()
    update = make_step(config, optimizer)
    params = init(config, jax.random.key(0))
    state, batch = optimizer.init(params), jax.device_put(random_batch(case))

    def step() -> None:
        nonlocal params, state
        params, state, *_ = update(params, state, batch, jax.random.key(1))
        jax.block_until_ready(params)

    return step


def torch_step(case: BenchmarkCase, implementation: str) -> Callable[[], Any]:
    """Builds a plain PyTorch step with Hugging Face's model."""
    import torch

    batch = {name: torch.from_numpy(field) for name, field in random_batch(case).items()}
    batch = {n: f.long() if f.dtype == torch.int32 else f for n, f in batch.items()}
    labels = torch.full_like(batch["input_ids"], -100)
    for index, used in enumerate(batch["masked_lm_weights"] > 0):
        positions = batch["masked_lm_positions"][index, used]
        labels[index, positions] = batch["masked_lm_ids"][index, used]
    torch.manual_seed(0)
    gathered = implementation == "hf-gathered"
    if case.size in FAMILIES:
        model, compute = torch_losses(make_objective_config(case), batch, labels, gathered)
    else:
        model, compute = _torch_bert(case, batch, labels, gathered)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    if implementation == "hf-compile":
        compute = torch.compile(compute)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "bfloat16"):
            value = compute()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _torch_bert(
    case: BenchmarkCase, batch: Any, labels: Any, gathered: bool
) -> tuple[Any, Callable[[], Any]]:
    """Returns `BertForPreTraining`, and a function that computes its loss."""
    import transformers
    from torch.nn.functional import cross_entropy

    from bert_jax.models.bert.config import BertConfig

    sizes = BertConfig.from_size(case.size, vocab_size=VOCAB_SIZE)  # type: ignore[arg-type]
    fields_of_config: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE,
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
        attn_implementation="sdpa",
    )
    config = transformers.BertConfig(**fields_of_config)
    model = transformers.BertForPreTraining(config)
    fields = ("input_ids", "token_type_ids", "attention_mask")

    def compute_as_called() -> Any:
        return model(
            **{name: batch[name] for name in fields},
            labels=labels,
            next_sentence_label=batch["next_sentence_labels"],
        ).loss

    def compute_gathered() -> Any:
        out = model.bert(**{name: batch[name] for name in fields})
        positions = batch["masked_lm_positions"][..., None].expand(-1, -1, config.hidden_size)
        scores = model.cls.predictions(out.last_hidden_state.gather(1, positions))
        weights = batch["masked_lm_weights"].flatten()
        masked = cross_entropy(
            scores.flatten(0, 1).float(), batch["masked_lm_ids"].flatten(), reduction="none"
        )
        nsp = cross_entropy(
            model.cls.seq_relationship(out.pooler_output).float(), batch["next_sentence_labels"]
        )
        return (masked * weights).sum() / weights.sum() + nsp

    return model, compute_gathered if gathered else compute_as_called
