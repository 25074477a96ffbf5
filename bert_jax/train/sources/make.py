"""From an experiment's data to its source."""

from bert_jax.data.config import FineTuningData, MultiTaskData, PretrainingData
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.train.sources.base import Source
from bert_jax.train.sources.fine_tuning import FineTuningSource
from bert_jax.train.sources.multi_task import MultiTaskSource
from bert_jax.train.sources.pretraining import PretrainingSource
from bert_jax.tuning.config import CachedFeatures


def make_source(experiment: Experiment) -> Source:
    """The source that `experiment.data` describes.

    Raises:
      UserError: what it names is not there, or damaged.
      ConfigError: the encoder is to read rows once, but they are not those of one task.
    """
    caches_features = isinstance(experiment.train.tuning.features, CachedFeatures)
    if caches_features and not isinstance(experiment.data, FineTuningData):
        raise ConfigError(
            "train.tuning.features is CachedFeatures, which reads the rows of one labelled task; "
            f"data is {type(experiment.data).__name__}: expected FineTuningData, or "
            "ComputedFeatures there"
        )
    match experiment.data:
        case PretrainingData():
            return PretrainingSource(experiment, experiment.data)
        case FineTuningData():
            return FineTuningSource(experiment, experiment.data)
        case MultiTaskData():
            return MultiTaskSource(experiment, experiment.data)
