"""Defines the root config, which determines everything that a run computes.

Imports neither jax nor TensorFlow.
"""

from dataclasses import dataclass

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import (
    CorpusMixture,
    DiffusionMasking,
    FineTuningData,
    FixedRateMasking,
    MultiTaskData,
    PairFormat,
    PretrainingData,
)
from bert_jax.config.distillation import TEACHER_PARAMS
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import FineTuning, MultiTask, ObjectiveConfig, Pretraining
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.config.train import LabeledEval, MeshConfig, TrainConfig
from bert_jax.errors import ConfigError, check_range
from bert_jax.models.heads.config import has_temperature


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Configures one run: model and objective, data, training, mesh.

    The functions in `configs/` return it and `bert_jax.train.run.run` runs it.

    Attributes:
      init_from: run folder, Hugging Face folder or Google TF1 checkpoint to start from; None:
        random parameters.
    """

    name: str  # of the run, as logs and model cards show it
    objective: ObjectiveConfig  # the model, and what is minimized
    # What the model is trained on; its type must fit the objective.
    data: PretrainingData | FineTuningData | MultiTaskData | SentenceEmbeddingData | TextToTextData
    train: TrainConfig  # phases, optimizer, evaluation, checkpoints
    mesh: MeshConfig = MeshConfig()  # how devices share a step
    seed: int = 0  # of all randomness: parameters, order of examples, masks, dropout
    init_from: str | None = None

    def __post_init__(self) -> None:
        check_range("seed", self.seed, above=-(2**62), below=2**62)
        communication_dtype, dtype = self.mesh.communication_dtype, self.objective.compute.dtype
        # The matrices are cast before they are used, so a float32 run would no longer compute in
        # float32.
        if communication_dtype == "bfloat16" and dtype != "bfloat16":
            raise ConfigError(
                f"mesh.communication_dtype is bfloat16, but objective.compute.dtype is {dtype}; "
                "expected float32, or bfloat16 for both"
            )
        self.objective.check_training(self.train)
        self._check_teacher()
        self._check_method()
        self._check_calibration()
        self._check_masking_rates()
        self._check_causal_phases()
        self._check_corpus_weights()
        self._check_causal_fraction()

    def _check_causal_fraction(self) -> None:
        """Raises ConfigError if left-to-right sequences do not fit the objective or a phase."""
        fraction, objective = getattr(self.data, "causal_fraction", 0.0), self.objective
        if not fraction:
            return
        name = f"data.causal_fraction is {fraction}"
        if not (
            isinstance(objective, Pretraining)
            and objective.masked_next_token
            and objective.is_masked_lm_alone
        ):
            raise ConfigError(
                f"{name}, but objective is {type(objective).__name__} with other losses than "
                "masked LM, or without masked_next_token; expected Pretraining with "
                "masked_next_token true, and nsp_weight, sop_weight and sbo_weight 0"
            )
        for index, phase in enumerate(self.train.phases):
            if phase.causal_lm:
                raise ConfigError(
                    f"{name} and train.phases.{index}.causal_lm is true; expected one of them"
                )
            if phase.max_predictions_per_seq != phase.seq_length:
                raise ConfigError(
                    f"{name}, but train.phases.{index}.max_predictions_per_seq is "
                    f"{phase.max_predictions_per_seq}; expected the seq_length "
                    f"{phase.seq_length}, because every token of such a sequence is predicted"
                )

    def _check_corpus_weights(self) -> None:
        """Raises ConfigError if a phase has weights of corpora that the data do not have."""
        corpus = getattr(self.data, "corpus", None)
        for index, phase in enumerate(self.train.phases):
            weights = phase.corpus_weights
            if not isinstance(corpus, CorpusMixture):
                if weights or phase.corpus_temperature is not None:
                    name = "corpus_weights" if weights else "corpus_temperature"
                    raise ConfigError(
                        f"train.phases.{index}.{name} is set, but data.corpus is one corpus; "
                        "expected a CorpusMixture (--corpora a=0.7 b=0.3)"
                    )
            elif weights and len(weights) != len(corpus.corpora):
                raise ConfigError(
                    f"train.phases.{index}.corpus_weights has {len(weights)} weights, but "
                    f"data.corpus has {len(corpus.corpora)} corpora; expected one for each, in "
                    "their order, and 0 for those that are left out"
                )

    def _check_causal_phases(self) -> None:
        """Raises ConfigError if a phase of causal LM does not fit the objective or the data."""
        objective, input_format = self.objective, getattr(self.data, "input_format", None)
        is_masked_lm = isinstance(objective, Pretraining) and objective.is_masked_lm_alone
        for index, phase in enumerate(self.train.phases):
            if not phase.causal_lm:
                continue
            if not is_masked_lm:
                raise ConfigError(
                    f"train.phases.{index}.causal_lm is true, but objective is "
                    f"{type(objective).__name__} with other losses than masked LM; expected "
                    "Pretraining with nsp_weight, sop_weight and sbo_weight 0 and no distillation"
                )
            if isinstance(input_format, PairFormat):
                raise ConfigError(
                    f"train.phases.{index}.causal_lm is true, but data.input_format is "
                    f"{type(input_format).__name__}, whose pairs are not consecutive text; "
                    "expected SingleSegment, PackedSegments, FullSentences or DocSentences"
                )

    def _check_masking_rates(self) -> None:
        """Raises ConfigError if the masks of the data do not fit a phase."""
        masking = getattr(self.data, "masking", None)
        for index, phase in enumerate(self.train.phases):
            predictions = phase.max_predictions_per_seq
            if (
                isinstance(masking, DiffusionMasking)
                and not phase.causal_lm
                and predictions != phase.seq_length
            ):
                raise ConfigError(
                    f"train.phases.{index}.max_predictions_per_seq is {predictions}, but "
                    "data.masking is DiffusionMasking, which may mask every token of a sequence; "
                    f"expected the seq_length {phase.seq_length}"
                )
            if phase.mlm_probability is not None and not isinstance(masking, FixedRateMasking):
                raise ConfigError(
                    f"train.phases.{index}.mlm_probability is {phase.mlm_probability}, but "
                    f"data.masking is {type(masking).__name__}; expected Masking, NGramMasking or "
                    "SpanMasking, or train.phases without mlm_probability"
                )

    def _check_calibration(self) -> None:
        """Raises ConfigError if the run should be calibrated and makes no classifier."""
        evaluation, objective = self.train.evaluation, self.objective
        if not isinstance(evaluation, LabeledEval) or not evaluation.calibrate:
            return
        heads = []
        if isinstance(objective, FineTuning | MultiTask):
            is_single = isinstance(objective, FineTuning)
            heads = [objective.head] if is_single else [named.head for named in objective.heads]
        if not any(map(has_temperature, heads)):
            found = ", ".join(type(head).__name__ for head in heads) or type(objective).__name__
            raise ConfigError(
                f"train.evaluation.calibrate (--calibrate) is true for {found}; expected a "
                "SequenceClassificationHead without label_tokens (--prompt), or a MultiLabelHead"
            )

    def _check_method(self) -> None:
        """Raises ConfigError if the tuning method needs something that this run does not have."""
        tuning = self.train.tuning
        if not tuning.trains_part_of_encoder:
            return
        method = type(tuning.method).__name__
        model, num_virtual_tokens = self.objective.model, tuning.num_virtual_tokens
        max_seq_length = max(phase.seq_length for phase in self.train.phases)
        if num_virtual_tokens and max_seq_length + num_virtual_tokens > model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {max_seq_length} and train.tuning.method.length is "
                f"{num_virtual_tokens}, but the model has positions for {model.max_length} tokens; "
                "shorten one of them"
            )
        if not self.objective.takes_methods:
            raise ConfigError(
                f"train.tuning.method is {method}, but the objective is "
                f"{type(self.objective).__name__}; expected FineTuning or MultiTask, or the method "
                "FullTuning"
            )
        if self.init_from is None:
            raise ConfigError(
                f"train.tuning.method is {method}, which trains a few parameters of a pretrained "
                "model, but init_from is null; set it to that model"
            )

    def _check_teacher(self) -> None:
        """Raises ConfigError if the objective has a teacher with which the run cannot train."""
        teacher, tuning = self.objective.teacher, self.train.tuning
        if teacher is None:
            return
        # The teacher is a part of the parameters, so that sharding and checkpoints need no second
        # argument; the optimizer would update it otherwise.
        if TEACHER_PARAMS not in tuning.frozen:
            raise ConfigError(
                f"objective.distillation has a teacher, whose parameters must not be trained, but "
                f"train.tuning.frozen is {list(tuning.frozen)}; add {TEACHER_PARAMS!r} to it"
            )
        if tuning.features == "cached":
            raise ConfigError(
                "train.tuning.features is 'cached', but objective.distillation needs the "
                "teacher to read every batch; set train.tuning.features to 'computed'"
            )
        # Both fill the same parameters of the student.
        if teacher.layers and self.init_from is not None:
            raise ConfigError(
                f"init_from is {self.init_from}, but objective.distillation.teacher.layers is "
                f"{list(teacher.layers)}, so the student would start from two models; set "
                "init_from to null, or the layers to ()"
            )


def check_experiment(result: object, recipe: str) -> Experiment:
    """Checks the type of what a recipe returned, and the types of its fields, and returns it.

    Raises:
      ConfigError: it is not an Experiment, or the value of a field has the wrong type.
    """
    if not isinstance(result, Experiment):
        hints = {
            "NoneType": " (is a `return` missing?)",
            "CurationConfig": "; `bert-jax curate` runs this recipe",
        }
        raise ConfigError(
            f"{recipe}: get_config returned {type(result).__name__}; expected an Experiment"
            + hints.get(type(result).__name__, "")
        )
    # Dataclasses do not check the types of their fields; reading the config back does.
    from_json(Experiment, to_json(result), f"{recipe}: config")
    return result


MAY_CHANGE_ON_RESUME = (
    "train.logging.*",
    "train.checkpoints.*",
    "train.evaluation.*",
    "mesh.*",
    "data.prefetch_batches",
    "data.num_workers",
    "objective.compute.layer_loop.*",
    "objective.compute.remat.*",
    "objective.compute.attention.*",
)
"""Fields that may differ when a run is resumed: they change neither the data nor the shapes of the
parameters. Numerics (kernels, the dtype of communication) and early stopping may change with them.
"""
