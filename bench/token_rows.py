"""Times a fine-tuning step that trains some rows of the token embeddings, and one that trains all.

    python bench/token_rows.py --vocab-size 250037 --rows 16384 --layers 12

The model has random weights and the sizes of a small multilingual encoder. Three steps take turns:
of all rows, of the rows whose tokens occur (what `bert-jax finetune` and `embed-train` do), and of
none (`--set train.tuning.frozen='["encoder/embeddings/word_embeddings/*"]'`). Prints a Markdown
table with the median (lowest .. highest) of seconds and CPU seconds, and XLA's peak memory.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import numpy as np

from bert_jax.__main__ import restart_with_huge_pages
from bert_jax.apps.testing.batches import fine_tuning_batch
from bert_jax.config.data import FineTuningData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import Glue
from bert_jax.config.objectives import FineTuning
from bert_jax.config.train import Phase, TrainConfig, WarmupLinear
from bert_jax.config.tuning import TuningConfig
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.heads.config import SequenceClassificationHead
from bert_jax.parallel import sharding
from bert_jax.train.initialize import initialize_or_load
from bert_jax.train.step import TrainSetup
from bert_jax.train.tuning.token_rows import TABLE

HEAD = SequenceClassificationHead(labels=("no", "yes"))
STEPS = 2
"""Steps of a turn."""


class TimedStep:
    """Compiles a step with its state and a batch, and times it."""

    def __init__(self, arguments: argparse.Namespace, frozen: tuple[str, ...], trains_rows: bool):
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        experiment = make_experiment(arguments, frozen)
        self._mesh, phase = sharding.make_mesh(experiment.mesh), experiment.train.phases[0]
        with jax.set_mesh(self._mesh):
            rng = np.random.default_rng(0)
            token_ids = rng.choice(arguments.vocab_size, arguments.rows, replace=False)
            setup = TrainSetup.from_experiment(
                experiment, self._mesh, lambda: token_ids if trains_rows else None
            )
            fields = setup.objective.batch_fields()
            self._step = setup.lower_step(phase, fields, phase.sizes).compile()
            random = fine_tuning_batch(
                HEAD,
                batch_size=phase.batch_size,
                seq_length=phase.seq_length,
                vocab_size=arguments.rows,
            )
            random["input_ids"] = token_ids[random["input_ids"]].astype(np.int32)
            batch_sharding = sharding.batch_sharding(self._mesh)
            self._batch = sharding.put_batch({f: random[f] for f in fields}, batch_sharding)
            self._state, self._seed = initialize_or_load(setup), setup.put_seed()

    def run(self, is_recorded: bool) -> None:
        """Runs a turn; the first one is not recorded."""
        started, cpu_started = time.perf_counter(), time.process_time()
        with jax.set_mesh(self._mesh):
            for _ in range(STEPS):
                self._state, _ = self._step(self._state, self._batch, self._seed)
            jax.block_until_ready(self._state)
        if is_recorded:
            self.seconds.append((time.perf_counter() - started) / STEPS)
            self.cpu_seconds.append((time.process_time() - cpu_started) / STEPS)

    def cells(self) -> str:
        """Formats the measurements as cells of a Markdown table."""
        memory: Any = self._step.memory_analysis()
        arguments = memory.argument_size_in_bytes
        peak = arguments + memory.output_size_in_bytes - memory.alias_size_in_bytes
        gib = (peak + memory.temp_size_in_bytes) / 2**30
        return f"{spread(self.seconds)} | {spread(self.cpu_seconds)} | {gib:.2f}"


def make_experiment(arguments: argparse.Namespace, frozen: tuple[str, ...]) -> Experiment:
    """Returns the config of fine-tuning a classifier, of which only the step is run."""
    model = BertConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=384,
        num_hidden_layers=arguments.layers,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    phase = Phase(steps=1000, seq_length=arguments.seq_length, batch_size=arguments.batch_size)
    return Experiment(
        name="token-rows",
        objective=FineTuning(model=model, head=HEAD),
        data=FineTuningData(task=Glue(task="rte", folder="unused"), tokenizer="unused"),
        train=TrainConfig(
            phases=(phase,),
            schedule=WarmupLinear(warmup_steps=1),
            tuning=TuningConfig(frozen=frozen),
        ),
    )


def spread(values: list[float]) -> str:
    """Formats the median (lowest .. highest)."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def main() -> None:
    """Times the three steps in turns."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=250_037)
    parser.add_argument("--rows", type=int, default=16_384, help="tokens that occur")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    sides = {
        "all rows": TimedStep(arguments, (), trains_rows=False),
        "rows of tokens that occur": TimedStep(arguments, (), trains_rows=True),
        "no rows (frozen)": TimedStep(arguments, (TABLE,), trains_rows=False),
    }
    for turn in range(arguments.rounds + 1):
        for side in sides.values():
            side.run(is_recorded=turn > 0)
    print("| trained | seconds of a step | CPU seconds | peak GiB |\n|---|---|---|---|")
    for name, side in sides.items():
        print(f"| {name} | {side.cells()} |")


if __name__ == "__main__":
    restart_with_huge_pages()  # as the commands that train do
    main()
