# rates.py
from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet


def get_config(*, corpus: str, heldout: str) -> Sheet:
    data = {"corpus": corpus, "heldout": heldout}
    models = {
        f"rate {rate}": Pretrain(recipe="comparison", arguments={**data, "learning_rate": rate})
        for rate in (1e-3, 3e-3)
    }
    measured = measures()  # the held-out loss
    return Sheet(
        title="Learning rates",
        question="Is a higher learning rate better?",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured),
        reference="rate 0.001",
        budget=Budget(unit="tokens", amount=4e6),
        curves=("mlm_loss",),
    )
