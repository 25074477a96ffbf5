"""Fine-tunes T5 or BART on tasks as text to text (Raffel et al. 2020, section 2.4).

    bert-jax finetune --config text_to_text --run runs/summaries \\
        --arg model=t5 train=train.csv dev=dev.csv source=article target=summary
    bert-jax finetune --config text_to_text --run runs/glue --arg model=t5 glue_dir=glue_data

The first command learns to write the texts of one column from those of another. The second one
trains on a mixture of GLUE tasks, cast as texts with T5's prefixes and label words; `tasks` selects
some of them, and `squad_train` and `squad_dev` add SQuAD. Tasks are drawn in proportion to their
examples, of which at most `max_examples` count. Evaluation generates a text for each dev example.
T5's optimizer, Adafactor with a constant rate, is the default. For BART, add `adafactor=false`,
which trains with AdamW. The checkpoint with the best main metric on dev is kept, or with the best
mean of the main metrics of several tasks.

With `packing=true`, as in T5, several short examples share a sequence, and `batch_size` counts
sequences: fewer steps read the same examples. All devices share the texts that evaluation
generates. GLUE has 69,000 dev examples, so choose `tasks`, or a large `eval_every`;
`predict_test=true` also generates texts for the 420,000 test examples.
"""

from typing import cast

from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import (
    CappedMixing,
    Glue,
    GlueName,
    NamedTextTask,
    Squad,
    TextColumns,
    TextToTextData,
)
from bert_jax.config.objectives import Seq2Seq
from bert_jax.config.train import (
    Adafactor,
    AdamW,
    CheckpointConfig,
    ConstantRate,
    LabeledEval,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.errors import ConfigError
from bert_jax.models.layers.config import ComputeConfig

GLUE_TASKS: tuple[GlueName, ...] = (
    "cola",
    "sst2",
    "mrpc",
    "stsb",
    "qqp",
    "mnli",
    "qnli",
    "rte",
)


def get_config(
    *,
    model: str,
    train: str | None = None,
    dev: str | None = None,
    test: str | None = None,
    source: str | None = None,
    target: str | None = None,
    encoding: str = "utf-8",
    glue_dir: str | None = None,
    tasks: str = "all",
    squad_train: str | None = None,
    squad_dev: str | None = None,
    max_examples: int = 2**19,
    steps: int = 10_000,
    eval_every: int | None = None,
    batch_size: int = 128,
    seq_length: int = 512,
    target_length: int = 64,
    packing: bool = False,
    gradient_accumulation_steps: int = 1,
    adafactor: bool = True,
    learning_rate: float | None = None,
    label_smoothing: float = 0.0,
    predict_test: bool = False,
    bfloat16: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns a run that starts from `model`, a run or a Hugging Face folder of T5 or BART.

    Args:
      train, dev, test: CSV, TSV, JSON lines or Parquet files of your own texts.
      source: the column that the encoder reads.
      target: the column that the decoder learns to write.
      encoding: of the text formats.
      tasks: "all" tasks of GLUE, or names separated by commas.
      squad_train, squad_dev: SQuAD's JSON files.
      max_examples: how many examples of a task count at most for its share of the batches.
      eval_every: the updates between two evaluations; None: a tenth of the run.
      packing: whether several short examples share a sequence.
      adafactor: whether the optimizer is Adafactor with a constant rate, as for T5, and not AdamW.
      learning_rate: the peak learning rate; None: 1e-3 with Adafactor and 3e-5 with AdamW.
      label_smoothing: the fraction of a target that is spread evenly over the vocabulary.
      predict_test: whether texts are generated for the test splits, too.
    """
    # Imported here, so that listing recipes does not import jax.
    from bert_jax.data.finetuning.readers.glue import GLUE_TASKS as GLUE_FILES
    from bert_jax.pretrained.initial import tokenizer_folder
    from bert_jax.pretrained.seq2seq import seq2seq_config

    named: list[NamedTextTask] = []
    if source is not None and target is not None:
        columns = TextColumns(
            train=train, dev=dev, test=test, source=source, target=target, encoding=encoding
        )
        named.append(NamedTextTask(name="columns", task=columns))
    elif source or target or train:
        raise ConfigError("expected train, source and target together: a file and two columns")
    if glue_dir is not None:
        names = (
            GLUE_TASKS if tasks == "all" else cast(tuple[GlueName, ...], tuple(tasks.split(",")))
        )
        if unknown := set(names) - set(GLUE_TASKS):
            raise ConfigError(
                f"tasks has {', '.join(sorted(unknown))}, expected all or some of "
                f"{','.join(GLUE_TASKS)}; T5 trains on other data instead of wnli"
            )
        glue = [Glue(task=name, folder=glue_dir) for name in names]
        named += [NamedTextTask(name=each.task, task=each) for each in glue]
    if squad_train is not None:
        named.append(NamedTextTask(name="squad", task=Squad(train=squad_train, dev=squad_dev)))
    if not named:
        raise ConfigError("expected source and target, or glue_dir, or squad_train")
    best_metric = "mean"
    if len(named) == 1:
        best_metric = GLUE_FILES[named[0].name].metrics[0] if glue_dir else "token_f1"
    has_dev = glue_dir is not None or dev is not None or squad_dev is not None
    test_splits = ("test", "test_mismatched", "ax") if predict_test or test is not None else ()
    if learning_rate is None:
        learning_rate = 1e-3 if adafactor else 3e-5
    dtype = "bfloat16" if bfloat16 else "float32"
    eval_every = eval_every or max(1, steps // 10)
    return Experiment(
        name="text-to-text",
        seed=seed,
        init_from=model,
        objective=Seq2Seq(
            model=seq2seq_config(model),
            label_smoothing=label_smoothing,
            compute=ComputeConfig(dtype=dtype),
        ),
        data=TextToTextData(
            tasks=tuple(named),
            tokenizer=str(tokenizer_folder(model)),
            mixing=CappedMixing(max_examples=max_examples),
            packing=packing,
            predicted_splits=("dev", "dev_mismatched", *test_splits),
        ),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    target_length=target_length,
                    batch_size=batch_size,
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=Adafactor() if adafactor else AdamW(),
            schedule=(
                ConstantRate(learning_rate=learning_rate)
                if adafactor
                else WarmupLinear(
                    peak_learning_rate=learning_rate, warmup_steps=max(1, round(0.06 * steps))
                )
            ),
            max_grad_norm=None if adafactor else 0.1,
            checkpoints=CheckpointConfig(
                save_every=eval_every,
                best_metric=best_metric if has_dev else None,
                best_mode="max" if has_dev else None,
            ),
            evaluation=LabeledEval(split="dev", eval_every=eval_every) if has_dev else None,
        ),
        mesh=make_mesh_config(parallelism, dtype),
    )
