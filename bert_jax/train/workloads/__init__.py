"""Makes the source of a run: its training batches and its evaluation, chosen by `experiment.data`.

A source is imported only when it is used: pretraining loads no fine-tuning code.
"""

from bert_jax.config.data import FineTuningData, MultiTaskData, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import FineTuning
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.config.tuning import CachedFeatures
from bert_jax.errors import ConfigError
from bert_jax.models.heads.config import LatePooling, reads_one_vector
from bert_jax.train.workloads.base import Source


def make_source(experiment: Experiment) -> Source:
    """Returns the source that `experiment.data` describes.

    Raises:
      UserError: the data does not exist or is damaged.
      ConfigError: cached features with data other than one fine-tuning task, or with a head that
        pools after a trained layer.
    """
    caches_features = isinstance(experiment.train.tuning.features, CachedFeatures)
    if caches_features and not isinstance(experiment.data, FineTuningData):
        raise ConfigError(
            "train.tuning.features is CachedFeatures, which needs the data of one labeled task, "
            f"but data is {type(experiment.data).__name__}; expected FineTuningData, or set "
            "train.tuning.features to ComputedFeatures"
        )
    if caches_features and isinstance(experiment.objective, FineTuning):
        _check_cached_pooling(experiment.objective)
    match experiment.data:
        case PretrainingData():
            from bert_jax.train.workloads.pretraining import PretrainingSource

            return PretrainingSource(experiment, experiment.data)
        case FineTuningData():
            from bert_jax.train.workloads.fine_tuning import FineTuningSource

            return FineTuningSource(experiment, experiment.data)
        case MultiTaskData():
            from bert_jax.train.workloads.multi_task import MultiTaskSource

            return MultiTaskSource(experiment, experiment.data)
        case SentenceEmbeddingData():
            from bert_jax.train.workloads.sentence_embeddings import SentenceEmbeddingSource

            return SentenceEmbeddingSource(experiment, experiment.data)
        case TextToTextData():
            from bert_jax.train.workloads.text_to_text import TextToTextSource

            return TextToTextSource(experiment, experiment.data)


def _check_cached_pooling(objective: FineTuning) -> None:
    pooling = objective.model.sequence_pooling
    if isinstance(pooling, LatePooling) and reads_one_vector(objective.head):
        raise ConfigError(
            "train.tuning.features is CachedFeatures, but objective.model.classifier_pooling is "
            "LatePooling, which pools after a trained layer; set classifier_pooling to "
            "MeanPooling, or features to ComputedFeatures"
        )
