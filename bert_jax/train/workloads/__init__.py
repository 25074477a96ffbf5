"""Makes the workload of a run, which joins its objective, its data and its evaluation.

A workload is imported only when it is used: pretraining loads no fine-tuning code.
"""

from bert_jax.config.data import FineTuningData, MultiTaskData, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import (
    CausalLM,
    FineTuning,
    MaskedPermutedLM,
    MultiTask,
    Pretraining,
    ReplacedTokens,
    SentenceEmbedding,
    Seq2Seq,
)
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.errors import ConfigError
from bert_jax.train.workloads.base import Workload


def make_workload(experiment: Experiment) -> Workload:
    """Returns the workload of an experiment.

    Raises:
      UserError: the data does not exist or is damaged.
      ConfigError: there is no workload of this objective and this data, or it cannot be trained
        with the features of `train.tuning`.
    """
    data, objective = experiment.data, experiment.objective
    caches_features = experiment.train.tuning.features == "cached"
    if caches_features and not isinstance(data, FineTuningData):
        raise ConfigError(
            "train.tuning.features is 'cached', which needs the data of one labeled task, "
            f"but data is {type(data).__name__}; expected FineTuningData, or set "
            "train.tuning.features to 'computed'"
        )
    match data, objective:
        case (
            PretrainingData(),
            Pretraining() | ReplacedTokens() | MaskedPermutedLM() | CausalLM() | Seq2Seq(),
        ):
            from bert_jax.train.workloads.pretraining import PretrainingWorkload

            return PretrainingWorkload(experiment, data, objective)
        case FineTuningData(), FineTuning():
            from bert_jax.train.workloads.fine_tuning import FineTuningWorkload

            return FineTuningWorkload(experiment, data, objective)
        case MultiTaskData(), MultiTask():
            from bert_jax.train.workloads.multi_task import MultiTaskWorkload

            return MultiTaskWorkload(experiment, data, objective)
        case SentenceEmbeddingData(), SentenceEmbedding():
            from bert_jax.train.workloads.sentence_embeddings import SentenceEmbeddingWorkload

            return SentenceEmbeddingWorkload(experiment, data, objective)
        case TextToTextData(), Seq2Seq():
            from bert_jax.train.workloads.text_to_text import TextToTextWorkload

            return TextToTextWorkload(experiment, data, objective)
        case _:
            expected = {
                PretrainingData: "an objective of pretraining, such as Pretraining or Seq2Seq",
                FineTuningData: "FineTuning",
                MultiTaskData: "MultiTask",
                SentenceEmbeddingData: "SentenceEmbedding",
                TextToTextData: "Seq2Seq",
            }[type(data)]
            raise ConfigError(
                f"data is {type(data).__name__}, but objective is {type(objective).__name__}; "
                f"expected {expected}"
            )
