"""Compares switches of pretraining that spend the same number of FLOPs.

    bert-jax sheet recipes --output runs/recipes \\
        --arg corpus=data/train heldout=data/heldout blimp='blimp/*.jsonl.gz'

One thing differs from masked LM of 30 % of the tokens in each row: Muon instead of AdamW (Jordan et
al. 2024), fewer masks late in the run (mmBERT, Marone et al. 2025), small batches first
(ModernBERT, Warner et al. 2024), causal LM in the first half of the updates (Gisserot-Boukhlef et
al. 2025), one causal sequence of sixteen (GPT-BERT, Charpentier and Samuel 2024), masked diffusion
(MDLM, Sahoo et al. 2024), and middle layers that read half of the tokens (Hou et al. 2022). The
peak of the learning rate is the same in all rows; that of Muon has the scale of AdamW's updates.

Causal tokens are all predicted, so the FLOPs of the head buy fewer updates of these two rows. The
held-out loss is that of masked LM at 15 %, with a view of both sides and all tokens, in all rows.
It is the mean at [MASK], because GPT-BERT predicts each token at the position before it, where it
cannot see tokens that are unchanged. Its head scores no texts, so it has no BLiMP. The loss of
masked diffusion is a bound on the likelihood of whole texts and stands in no column. Of two layers,
the first is the only middle layer.
"""

from bert_jax.apps.studies.sheets.evaluations import measures, systems_of
from bert_jax.apps.studies.sheets.sheet import Budget, Pretrain, Sheet
from bert_jax.data.corpus.reader import corpus_tokenizer

_LOSS = "mlm_loss_masked"
_REFERENCE, _MIXED = "masked LM", "masked and causal (GPT-BERT)"
_DIFFUSION, _DROPPING = "masked diffusion", "token dropping"
# A row of the sheet: the phases of the recipe, and overrides.
_SWITCHES: dict[str, tuple[str, tuple[str, ...]]] = {
    _REFERENCE: ("one", ()),
    "Muon": ("one", ("train.optimizer=Muon", "train.optimizer.b2=0.98")),
    "30, 15 and 5 % masked": ("masking_rates", ()),
    "small batches first": ("batch_sizes", ()),
    "causal LM first": ("causal_lm_first", ()),
    _MIXED: (
        "one",
        (
            "objective.masked_next_token=true",
            "data.causal_fraction=0.0625",
            "train.phases.0.max_predictions_per_seq=64",
        ),
    ),
    _DIFFUSION: (
        "one",
        (
            *("objective.mlm_weight=0.0", "objective.diffusion_weight=1.0"),
            *("data.masking=DiffusionMasking", "train.evaluation.masking=DiffusionMasking"),
            "train.phases.0.max_predictions_per_seq=64",
        ),
    ),
}


def get_config(
    *,
    corpus: str,
    heldout: str,
    blimp: str | None = None,
    task: str | None = None,
    metric: str = "accuracy",
    architecture: str = "modernbert",
    num_layers: int = 2,
    budget: float = 3e13,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Sheet:
    """Returns the sheet.

    Args:
      corpus, heldout: folders that `bert-jax prepare` has written.
      blimp: FILE and flags of `bert-jax minimal-pairs`.
      task: TASK and flags of `bert-jax finetune`.
      metric: the metric of the task on dev.
      architecture: as in configs/pretrain/comparison.py; BERT's learned positions need several
        times as many updates until such a small model is better than a unigram model.
      num_layers: of each model. Dropping tokens saves little in two layers.
      budget: model FLOPs of each model.
    """
    data = {
        **{"corpus": corpus, "heldout": heldout, "objective": "mlm"},
        **{"architecture": architecture, "num_layers": num_layers},
    }
    tokenizer = corpus_tokenizer(corpus)
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id]
    dropping = ("objective.token_dropping={}", f"objective.token_dropping.allow_list={special}")
    switches = {**_SWITCHES, _DROPPING: ("one", dropping)}
    models = {
        name: Pretrain(
            recipe="comparison", arguments={**data, "phases": phases}, overrides=overrides
        )
        for name, (phases, overrides) in switches.items()
    }
    measured = measures(loss=_LOSS, blimp=blimp, task=task, metric=metric)
    return Sheet(
        title="Recipes",
        question="What do Muon, fewer masks late in the run, small batches first, causal LM before "
        "or beside masked LM, masked diffusion, and token dropping contribute? Every model spends "
        "the same number of FLOPs.",
        columns=tuple(measured),
        models=models,
        systems=systems_of(models, measured, without_loss=(_DIFFUSION,), without_blimp=(_MIXED,)),
        reference=_REFERENCE,
        budget=Budget(unit="FLOPs", amount=budget),
        seeds=seeds,
        curves=(_LOSS,),
    )
