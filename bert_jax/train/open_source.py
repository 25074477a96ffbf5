"""From an experiment's data to its source."""

from bert_jax.data.config import Labelled, LabelledMixture, LoaderConfig
from bert_jax.errors import ConfigError
from bert_jax.experiment import Experiment
from bert_jax.train.labelled import LabelledExamples
from bert_jax.train.labelled_mixture import LabelledTasks
from bert_jax.train.prepared_text import PreparedText
from bert_jax.train.source import Source
from bert_jax.tuning.config import ReadOnce


def open_source(experiment: Experiment) -> Source:
    """The source that `experiment.data` describes.

    Raises:
      UserError: what it names is not there, or damaged.
      ConfigError: the encoder is to read rows once, but they are not those of one task.
    """
    once = isinstance(experiment.train.tuning.encoder, ReadOnce)
    if once and not isinstance(experiment.data, Labelled):
        raise ConfigError(
            "train.tuning.encoder is ReadOnce, which reads the rows of one labelled task; data is "
            f"{type(experiment.data).__name__}: expected Labelled, or ReadEachStep there"
        )
    match experiment.data:
        case LoaderConfig():
            return PreparedText(experiment, experiment.data)
        case Labelled():
            return LabelledExamples(experiment, experiment.data)
        case LabelledMixture():
            return LabelledTasks(experiment, experiment.data)
