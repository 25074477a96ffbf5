"""From an experiment's data to its source."""

from bert_jax.data.config import Labelled, LoaderConfig
from bert_jax.experiment import Experiment
from bert_jax.train.labelled import LabelledExamples
from bert_jax.train.prepared_text import PreparedText
from bert_jax.train.source import Source


def open_source(experiment: Experiment) -> Source:
    """The source that `experiment.data` describes.

    Raises:
      UserError: what it names is not there, or damaged.
    """
    match experiment.data:
        case LoaderConfig():
            return PreparedText(experiment, experiment.data)
        case Labelled():
            return LabelledExamples(experiment, experiment.data)
