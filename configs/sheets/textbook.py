"""Compares what the chapters of a textbook describe on one task: from counts to fine-tuned BERT.

    bert-jax sheet textbook --output runs/textbook \\
        --arg corpus=data/train heldout=data/heldout train=train.tsv dev=dev.tsv \\
              text=sentence label=label

TF-IDF; word2vec, GloVe and ELMo, trained on the corpus, as frozen features; BERT as frozen features
(the scalar mix of its layers) and fine-tuned; RoBERTa's objective; and the network of BERT without
pretraining. The budget is that of the pretrained models: word2vec and GloVe make their usual
passes over the corpus.
"""

from bert_jax.apps.studies.sheets.evaluations import fine_tuning, frozen_features
from bert_jax.apps.studies.sheets.sheet import (
    Budget,
    Column,
    Make,
    Model,
    Pretrain,
    Sheet,
    System,
)

_ACCURACY = Column(name="accuracy", percent=True)


def get_config(
    *,
    corpus: str,
    heldout: str,
    train: str,
    dev: str,
    text: str,
    label: str,
    epochs: float = 5.0,
    learning_rate: float = 2e-4,
    elmo_updates: int = 2_000,
    budget: float = 3e13,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      corpus, heldout: folders that `bert-jax prepare` has written.
      train, dev: tables of labeled texts.
      text, label: the names of their columns.
      epochs, learning_rate: of fine-tuning.
      elmo_updates: the updates of ELMo.
      budget: model FLOPs of each model that is pretrained here.
    """
    data = {"corpus": corpus, "heldout": heldout}
    bert = {**data, "objective": "mlm+nsp"}
    models: dict[str, Model] = {
        "bert": Pretrain(recipe="comparison", arguments=bert),
        "roberta": Pretrain(recipe="comparison", arguments={**data, "objective": "mlm"}),
        # One update at this rate leaves the initial parameters as they are.
        "bert without pretraining": Pretrain(
            recipe="comparison",
            arguments={**bert, "learning_rate": 1e-12},
            budget=Budget(unit="updates", amount=1),
        ),
        "word2vec": _word_vectors("skip-gram", corpus),
        "glove": _word_vectors("glove", corpus),
        "elmo": Make(
            command=(
                *("word-vectors", "train-elmo", corpus, "--output", "{folder}/elmo"),
                *("--steps", str(elmo_updates), "--seed", "{seed}"),
            ),
            path="elmo",
        ),
    }
    task = ("--train", train, "--dev", dev, "--text", text, "--label", label)
    settings = ("--epochs", str(epochs), "--learning-rate", str(learning_rate))
    fine_tuned = fine_tuning(("columns", *task), "accuracy", *settings)
    static, mix = frozen_features(task, "static"), frozen_features(task, "scalar mix")
    rows = {
        "majority": (None, frozen_features(task, "majority", "majority")),
        "TF-IDF": (None, frozen_features(task, "tf-idf", "tf-idf")),
        "word2vec, frozen": ("word2vec", static),
        "GloVe, frozen": ("glove", static),
        "ELMo, frozen": ("elmo", mix),
        "BERT, frozen": ("bert", mix),
        "not pretrained, fine-tuned": ("bert without pretraining", fine_tuned),
        "RoBERTa, fine-tuned": ("roberta", fine_tuned),
        "BERT, fine-tuned": ("bert", fine_tuned),
    }
    return Sheet(
        title="Textbook",
        question="What do word vectors, contextual vectors, pretraining and fine-tuning each "
        "contribute to the accuracy on one task, if all are trained on the same text?",
        columns=(_ACCURACY,),
        models=models,
        systems=tuple(
            System(name=name, model=model, evaluations={_ACCURACY.name: evaluation})
            for name, (model, evaluation) in rows.items()
        ),
        reference="BERT, fine-tuned",
        budget=Budget(unit="FLOPs", amount=budget),
        seeds=seeds,
        curves=("mlm_loss",),
    )


def _word_vectors(method: str, corpus: str) -> Make:
    return Make(
        command=(
            *("word-vectors", "train", method, corpus, "--output", "{folder}/vectors.txt"),
            *("--seed", "{seed}"),
        ),
        path="vectors.txt",
    )
