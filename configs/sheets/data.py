"""Compares models that read a part of the corpus several times with one that reads all of it.

    bert-jax sheet data --output runs/data \\
        --arg text='train/*.txt.gz' tokenizer=vocab heldout=data/heldout

All models make the same number of updates. The parts are the first 1/8, 1/4, 1/2 of the files, in
alphabetical order; the sheet prepares them. Text that is read up to four times teaches nearly as
much as new text (Muennighoff et al. 2023), so short runs need smaller parts: `parts='[32,8,1]'`.
"""

from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet
from bert_jax.errors import ConfigError
from bert_jax.text.files import expand_globs


def get_config(
    *,
    text: str,
    tokenizer: str,
    heldout: str,
    blimp: str | None = None,
    task: str | None = None,
    metric: str = "accuracy",
    architecture: str = "modernbert",
    budget: float = 6e6,
    parts: tuple[int, ...] = (8, 4, 2, 1),
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      text: a glob pattern of text files.
      tokenizer: a file or folder with the tokenizer of `heldout`.
      heldout: a folder that `bert-jax prepare` has written.
      blimp: FILE and flags of `bert-jax minimal-pairs`.
      task: TASK and flags of `bert-jax finetune`.
      metric: the metric of the task on dev.
      architecture: as in configs/pretrain/comparison.py; BERT's learned positions need several
        times as many updates until such a small model is better than a unigram model.
      budget: tokens of each model, padding included.
      parts: the numbers that the files are divided by, down to 1.
    """
    if list(parts[-1:]) != [1] or list(parts) != sorted(set(parts), reverse=True):
        raise ConfigError(
            f"parts is {list(parts)}; expected numbers that decrease to 1, such as [8,4,2,1]: 1 is "
            "all of the files, with which the other rows are compared"
        )
    files = sorted(expand_globs((text,)))
    if len(files) < parts[0]:
        raise ConfigError(
            f"text={text}: {len(files)} files; expected at least {parts[0]}, so that they can be "
            "divided, or smaller numbers in `parts`"
        )
    divisors = {"all" if divisor == 1 else f"1-{divisor}": divisor for divisor in parts}
    prepare = ("prepare", "--tokenizer", tokenizer, "--output", "{folder}/corpus", "--files")
    models = {
        f"{name} of the text": Pretrain(
            recipe="comparison",
            arguments={
                "corpus": f"{{setup}}/{name}/corpus",
                "heldout": heldout,
                "objective": "mlm",
                "architecture": architecture,
            },
        )
        for name in divisors
    }
    measured = measures(blimp=blimp, task=task, metric=metric)
    return Sheet(
        title="Data",
        question="What does more text contribute, at the same number of updates?",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured),
        reference="all of the text",
        budget=Budget(unit="tokens", amount=budget),
        seeds=seeds,
        setup={
            name: (*prepare, *files[: len(files) // divisor]) for name, divisor in divisors.items()
        },
        curves=("mlm_loss",),
    )
