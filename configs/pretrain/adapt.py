"""Continues pretraining on the text of a domain or a task (Gururangan et al. 2020).

    bert-jax prepare --files domain/*.txt --tokenizer exported --output prepared
    bert-jax pretrain adapt --run runs/adapted \\
        --arg corpus=prepared model=exported
    bert-jax finetune columns --model runs/adapted ...

Domain-adaptive pretraining uses all available text of the domain. Task-adaptive pretraining uses
the unlabeled text of the task for many epochs; `bert-jax prepare --document-unit line` reads a file
with one example per line. The objective is masked LM only. Short texts are packed into shared
sequences without attending to each other.
"""

from bert_jax.config.data import PackedSegments, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import CheckpointConfig, HeldOutEval, Phase, TrainConfig, WarmupLinear
from bert_jax.data.corpus.reader import corpus_tokenizer


def get_config(
    *,
    corpus: str,
    model: str,
    heldout: str | None = None,
    steps: int = 12_500,
    batch_size: int = 256,
    seq_length: int = 128,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> Experiment:
    """Returns the config of the paper's domain adaptation: 12,500 steps of batch size 256.

    A task's text needs far fewer steps.
    """
    # Imported here, so that listing recipes does not import jax.
    from bert_jax.pretrained.initial import load_model_or_tf1

    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 10)) if heldout else None
    return Experiment(
        name="adapt",
        seed=seed,
        objective=Pretraining(
            model=load_model_or_tf1(model).config,
            mask_token_id=corpus_tokenizer(corpus).mask_id,
            nsp_weight=0.0,
        ),
        data=PretrainingData(corpus=corpus, input_format=PackedSegments()),
        init_from=model,
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    max_predictions_per_seq=round(0.16 * seq_length),
                ),
            ),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate, warmup_steps=round(0.06 * steps)
            ),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 10), keep_last=1),
            evaluation=evaluation,
        ),
    )
