"""Makes the objective that a config describes."""

from bert_jax.config.distillation import PretrainingDistillation, SoftLabels, TaskDistillation
from bert_jax.config.embedding_losses import DenoisingAutoEncoderLoss, MaxSimRankingLoss, SpladeLoss
from bert_jax.config.objectives import (
    CausalLM,
    FineTuning,
    MaskedPermutedLM,
    MultiTask,
    ObjectiveConfig,
    Pretraining,
    ReplacedTokens,
    SentenceEmbedding,
    Seq2Seq,
    TokenDropping,
)
from bert_jax.models.adapters.config import Adapter
from bert_jax.objectives.base import Objective
from bert_jax.objectives.causal_lm import CausalLMObjective
from bert_jax.objectives.denoising_embeddings import DenoisingEmbeddingObjective
from bert_jax.objectives.distillation import (
    PretrainingDistillationObjective,
    SoftLabelObjective,
    TaskDistillationObjective,
)
from bert_jax.objectives.fine_tuning import CachedFeaturesObjective, FineTuningObjective
from bert_jax.objectives.masked_permuted_lm import MaskedPermutedLMObjective
from bert_jax.objectives.multi_task import MultiTaskObjective
from bert_jax.objectives.pretraining import PretrainingObjective
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective
from bert_jax.objectives.retrieval_embeddings import (
    MultiVectorEmbeddingObjective,
    SparseEmbeddingObjective,
)
from bert_jax.objectives.sentence_embeddings import SentenceEmbeddingObjective
from bert_jax.objectives.seq2seq import Seq2SeqObjective
from bert_jax.objectives.token_dropping import TokenDroppingObjective


def make_objective(
    config: ObjectiveConfig, *, cached_features: bool = False, adapter: Adapter | None = None
) -> Objective:
    """Returns the objective that a config describes.

    Args:
      cached_features: for fine-tuning, whether batches hold the output of the frozen encoder.
      adapter: the adapter of the encoder, for fine-tuning on one or several tasks.
    """
    match config:
        case Pretraining(distillation=PretrainingDistillation()):
            return PretrainingDistillationObjective(config)
        case Pretraining(token_dropping=TokenDropping()):
            return TokenDroppingObjective(config)
        case FineTuning(distillation=TaskDistillation()):
            return TaskDistillationObjective(config, adapter)
        case FineTuning(distillation=SoftLabels()):
            return SoftLabelObjective(config, adapter)
        case Pretraining():
            return PretrainingObjective(config)
        case ReplacedTokens():
            return ReplacedTokensObjective(config)
        case MaskedPermutedLM():
            return MaskedPermutedLMObjective(config)
        case CausalLM():
            return CausalLMObjective(config)
        case FineTuning():
            if cached_features:
                return CachedFeaturesObjective(config)
            return FineTuningObjective(config, adapter)
        case MultiTask():
            return MultiTaskObjective(config, adapter)
        case SentenceEmbedding(loss=SpladeLoss()):
            return SparseEmbeddingObjective(config)
        case SentenceEmbedding(loss=MaxSimRankingLoss()):
            return MultiVectorEmbeddingObjective(config)
        case SentenceEmbedding(loss=DenoisingAutoEncoderLoss()):
            return DenoisingEmbeddingObjective(config)
        case SentenceEmbedding():
            return SentenceEmbeddingObjective(config)
        case Seq2Seq():
            return Seq2SeqObjective(config)
