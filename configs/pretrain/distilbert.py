"""Distills a pretrained BERT into DistilBERT, with half its layers (Sanh et al. 2019).

    bert-jax prepare --files 'text/*.txt' --tokenizer bert-base --output data/train
    bert-jax pretrain distilbert --run runs/distilbert --arg corpus=data/train teacher=bert-base
    bert-jax finetune glue/rte --glue-dir glue_data --model runs/distilbert --run runs/rte

The corpus must be prepared with the tokenizer of the teacher. The student starts from the teacher's
embeddings, its masked-LM head and some of its layers. Its loss is 5 times the KL divergence of its
predictions from the teacher's (soft targets), plus 2 times the masked-LM loss (hard targets), plus
the cosine distance of the last hidden states: the weights and the hyperparameters of the command in
DistilBERT's README. The student of a BERT is a DistilBERT, without token types and pooler; that of
a teacher of another family is of the same family, so RoBERTa gives DistilRoBERTa.

What differs from the original code: every token is selected for masked LM with the same
probability, instead of rare words more often, and in each sequence instead of in the whole batch.
"""

import dataclasses

from bert_jax.config.data import Masking, PretrainingData, SingleSegment
from bert_jax.config.distillation import (
    TEACHER_PARAMS,
    PretrainingDistillation,
    Teacher,
)
from bert_jax.config.experiment import Experiment
from bert_jax.config.objectives import Pretraining
from bert_jax.config.train import (
    AdamW,
    CheckpointConfig,
    HeldOutEval,
    Parallelism,
    Phase,
    TrainConfig,
    WarmupLinear,
    make_mesh_config,
)
from bert_jax.config.tuning import TuningConfig
from bert_jax.data.corpus.reader import corpus_tokenizer
from bert_jax.models.bert.config import BertConfig
from bert_jax.models.distilbert.config import DistilBertConfig
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig

PUBLISHED_LAYERS = (0, 2, 4, 7, 9, 11)
"""The layers of a teacher with 12 layers from which DistilBERT started."""


def get_config(
    *,
    corpus: str,
    teacher: str,
    heldout: str | None = None,
    teacher_layers: tuple[int, ...] | None = None,
    masked_tokens_only: bool = False,
    steps: int = 12_500,
    batch_size: int = 2000,
    seq_length: int = 512,
    gradient_accumulation_steps: int = 1,
    learning_rate: float = 5e-4,
    bfloat16: bool = True,
    tpu: bool = False,
    parallelism: Parallelism = "dp",
    seed: int = 0,
) -> Experiment:
    """Returns the config of DistilBERT's run; 12,500 steps are three epochs of BERT's corpus.

    `tpu` computes attention in one kernel and communicates in the dtype of the computation.

    Args:
      teacher: the pretrained BERT to learn from: a run, a Hugging Face folder or a TF1 checkpoint.
      teacher_layers: the layers of the teacher from which the student starts; None: those of
        DistilBERT if the teacher has 12 layers, and otherwise every second one from layer 0.
      masked_tokens_only: whether only predictions at masked positions are compared, which needs a
        sixth of the memory for logits.
    """
    # Imported here, so that listing recipes does not import jax.
    from bert_jax.pretrained.initial import load_model_or_tf1

    teacher_model = load_model_or_tf1(teacher).config
    if teacher_layers is None:
        num_layers = teacher_model.num_hidden_layers
        teacher_layers = PUBLISHED_LAYERS if num_layers == 12 else tuple(range(0, num_layers, 2))
    dtype = "bfloat16" if bfloat16 else "float32"
    evaluation = HeldOutEval(corpus=heldout, eval_every=max(1, steps // 100)) if heldout else None
    return Experiment(
        name="distilbert",
        seed=seed,
        objective=Pretraining(
            model=_student(teacher_model, len(teacher_layers)),
            mask_token_id=corpus_tokenizer(corpus).mask_id,
            mlm_weight=2.0,
            nsp_weight=0.0,
            distillation=PretrainingDistillation(
                teacher=Teacher(path=teacher, model=teacher_model, layers=teacher_layers),
                soft_targets="masked_tokens" if masked_tokens_only else "all_tokens",
            ),
            compute=ComputeConfig(dtype=dtype, attention="pallas" if tpu else "xla"),
        ),
        data=PretrainingData(corpus=corpus, input_format=SingleSegment(), masking=Masking()),
        train=TrainConfig(
            phases=(
                Phase(
                    steps=steps,
                    seq_length=seq_length,
                    batch_size=batch_size,
                    max_predictions_per_seq=round(0.16 * seq_length),
                    gradient_accumulation_steps=gradient_accumulation_steps,
                ),
            ),
            optimizer=AdamW(b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.0),
            schedule=WarmupLinear(
                peak_learning_rate=learning_rate, warmup_steps=round(0.05 * steps)
            ),
            max_grad_norm=5.0,
            tuning=TuningConfig(frozen=(TEACHER_PARAMS,)),
            checkpoints=CheckpointConfig(save_every=max(1, steps // 100)),
            evaluation=evaluation,
        ),
        mesh=make_mesh_config(parallelism, dtype if tpu else "float32"),
    )


def _student(teacher: EncoderConfig, num_layers: int) -> EncoderConfig:
    if not isinstance(teacher, BertConfig):
        return dataclasses.replace(teacher, num_hidden_layers=num_layers)
    fields = {field.name: getattr(teacher, field.name) for field in dataclasses.fields(teacher)}
    fields |= {"num_hidden_layers": num_layers, "type_vocab_size": 0}
    return DistilBertConfig(**fields)
