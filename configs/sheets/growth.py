"""Follows one model through its checkpoints: minimal pairs, probes, similarity to the end.

    bert-jax sheet growth --output runs/growth \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz' \\
              treebank='ud_ewt/en_ewt-ud-{split}.conllu.gz' texts=heldout/Kipling.txt

One recipe is trained with several seeds. The rows of the table are its checkpoints after 10, 20,
30, 50, 70 and 100 % of the updates.
"""

from bert_jax.apps.studies.sheets.evaluations import BLIMP, minimal_pairs, probes, similarity_to
from bert_jax.apps.studies.sheets.sheet import Budget, Column, Part, Pretrain, Sheet, System
from bert_jax.errors import ConfigError

_TENTHS = (1, 2, 3, 5, 7, 10)


def get_config(
    *,
    corpus: str,
    heldout: str,
    blimp: str,
    treebank: str | None = None,
    texts: str | None = None,
    architecture: str = "modernbert",
    updates: int = 6_000,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      corpus, heldout: folders that `bert-jax prepare` has written.
      blimp: FILE and flags of `bert-jax minimal-pairs`.
      treebank: the path of a treebank with {split} for train, dev and test; None: no probes.
      texts: a text file, on which the last layers are compared with those of the last checkpoint.
      architecture: as in configs/pretrain/comparison.py; BERT's learned positions need several
        times as many updates until such a small model is better than a unigram model.
      updates: the updates of each model, a multiple of 10.
    """
    if updates % 10:
        raise ConfigError(f"updates is {updates}, expected a multiple of 10, for the checkpoints")
    measured = {BLIMP: minimal_pairs(blimp)}
    if treebank is not None:
        splits = ("train", "dev", "test")
        measured |= probes({split: treebank.replace("{split}", split) for split in splits})
    if texts is not None:
        last = f"{{models}}/model/seed-{{seed}}/checkpoints/{updates}"
        measured[Column(name="CKA to the last")] = similarity_to(last, texts)
    steps = {f"update {updates * tenths // 10}": updates * tenths // 10 for tenths in _TENTHS}
    evaluations = {column.name: evaluation for column, evaluation in measured.items()}
    return Sheet(
        title="Growth",
        question="In which order does a model learn during pretraining?",
        columns=tuple(measured),
        models={
            "model": Pretrain(
                recipe="comparison",
                arguments={
                    "corpus": corpus,
                    "heldout": heldout,
                    "objective": "mlm",
                    "architecture": architecture,
                    "num_checkpoints": 10,
                },
            ),
            **{name: Part(of="model", path=f"checkpoints/{step}") for name, step in steps.items()},
        },
        systems=tuple(System(name=n, model=n, evaluations=evaluations) for n in steps),
        reference=f"update {updates}",
        budget=Budget(unit="updates", amount=updates),
        seeds=seeds,
        curves=("mlm_loss",),
    )
