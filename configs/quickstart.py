"""Pretrains a tiny BERT on the documentation of this machine, in eight minutes on two CPU cores.

    bert-jax quickstart --output quickstart

runs it as one of its stages. To run only this stage, on the corpora prepared by the quickstart:

    bert-jax pretrain quickstart --run runs/quickstart \\
        --arg corpus=quickstart/prepared/train heldout=quickstart/prepared/heldout
"""

from dataclasses import replace

from bert_jax.config.data import Masking, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    LoggingConfig,
    Phase,
    TrainConfig,
    WarmupStableDecay,
)
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.layers.config import LearnedPositions

SEQ_LENGTH = 64


def get_config(*, corpus: str, heldout: str, steps: int = 7000, seed: int = 0) -> Experiment:
    """Returns a config with short sequences, a high learning rate, and no dropout.

    The text is read about twice, in sequences of one length; docs/results.md lists what else was
    tried.
    configs/pretrain/small_corpus.py explains the other differences from the paper's recipe.
    """
    tokenizer = corpus_tokenizer(corpus)
    eval_every = max(1, steps // 5)
    base_config = BertConfig.from_size("tiny", vocab_size=tokenizer.vocab_size)
    model = replace(
        base_config,
        positions=LearnedPositions(max_position_embeddings=SEQ_LENGTH, init="sinusoidal"),
        initializer_range=round(base_config.hidden_size**-0.5, 3),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Experiment(
        name="quickstart",
        seed=seed,
        objective=Pretraining(model=model, mask_token_id=tokenizer.mask_id, nsp_weight=2.0),
        data=PretrainingData(corpus=corpus, masking=Masking(mlm_probability=0.3)),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=SEQ_LENGTH,
                    batch_size=16,
                    max_predictions_per_seq=20,
                ),
            ),
            # A shorter average of squared gradients than with 0.999 suits a short run.
            optimizer=AdamW(b2=0.98),
            # Next-sentence accuracy rises only in the second half of a run, so the rate stays at
            # its peak until the last 30 %. One run of each schedule does not show which is better.
            schedule=WarmupStableDecay(
                peak_learning_rate=1.5e-3,
                warmup_steps=max(1, steps // 30),
                decay_steps=steps * 3 // 10,
            ),
            checkpoints=CheckpointConfig(save_every=eval_every, keep_last=2),
            evaluation=HeldOutEval(corpus=heldout, eval_every=eval_every, num_examples=2048),
            logging=LoggingConfig(log_every=200),
        ),
    )
