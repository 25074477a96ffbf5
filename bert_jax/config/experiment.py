"""Defines the root config, which determines everything that a run computes.

Imports neither jax nor TensorFlow.
"""

from dataclasses import dataclass

from bert_jax.config.config_lib import from_json, to_json
from bert_jax.config.data import FineTuningData, MultiTaskData, PretrainingData
from bert_jax.config.distillation import TEACHER_PARAMS
from bert_jax.config.labeled_data import TextToTextData
from bert_jax.config.objectives import (
    FineTuning,
    MultiTask,
    ObjectiveConfig,
    SentenceEmbedding,
    Seq2Seq,
    teacher_of,
)
from bert_jax.config.sentence_embeddings import SentenceEmbeddingData
from bert_jax.config.train import MeshConfig, TrainConfig
from bert_jax.config.tuning import TuningConfig
from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Configures one run: model and objective, data, training, mesh.

    The functions in `configs/` return it and `bert_jax.train.run.run` runs it.

    Attributes:
      init_from: run folder, Hugging Face folder or Google TF1 checkpoint to start from; None:
        random parameters.
    """

    name: str
    objective: ObjectiveConfig
    data: PretrainingData | FineTuningData | MultiTaskData | SentenceEmbeddingData | TextToTextData
    train: TrainConfig
    mesh: MeshConfig = MeshConfig()
    seed: int = 0
    init_from: str | None = None

    def __post_init__(self) -> None:
        check_range("seed", self.seed, above=-(2**62), below=2**62)
        communication_dtype, dtype = self.mesh.communication_dtype, self.objective.compute.dtype
        if communication_dtype == "bfloat16" and dtype != "bfloat16":
            raise ConfigError(
                f"mesh.communication_dtype is bfloat16, but objective.compute.dtype is {dtype}; "
                "expected float32, or bfloat16 for both"
            )
        max_seq_length = max(phase.seq_length for phase in self.train.phases)
        if isinstance(self.objective, Seq2Seq):
            self._check_encoder_decoder(self.objective)
            return
        model = self.objective.model
        if max_seq_length > model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {max_seq_length}, but the model has positions for "
                f"{model.max_length} tokens (objective.model.positions.max_position_embeddings is "
                f"{model.positions.max_position_embeddings}); shorten the sequences or enlarge it"
            )
        self._check_teacher(max_seq_length)
        self._check_method()
        if isinstance(self.objective, SentenceEmbedding):
            for phase in self.train.phases:
                self.objective.check_batch(phase.batch_size, phase.gradient_accumulation_steps)

    def _check_encoder_decoder(self, objective: Seq2Seq) -> None:
        """Raises ConfigError if an encoder-decoder cannot be trained with the lengths or method."""
        limit = objective.model.max_length
        for phase in self.train.phases:
            for name in ("seq_length", "target_length"):
                if not 1 <= getattr(phase, name) <= limit:
                    raise ConfigError(
                        f"a phase of train.phases has {name} {getattr(phase, name)}, expected 1 to "
                        f"{limit}, the positions of objective.model"
                    )
        tuning = self.train.tuning
        if tuning != TuningConfig(frozen=tuning.frozen):
            raise ConfigError(
                "train.tuning has settings for encoders, but objective is Seq2Seq; expected the "
                "default values, except for train.tuning.frozen"
            )

    def _check_method(self) -> None:
        """Raises ConfigError if the tuning method needs something that this run does not have."""
        tuning = self.train.tuning
        if not tuning.trains_part_of_encoder:
            return
        method = type(tuning.method).__name__
        assert not isinstance(self.objective, Seq2Seq)
        model, num_virtual_tokens = self.objective.model, tuning.num_virtual_tokens
        max_seq_length = max(phase.seq_length for phase in self.train.phases)
        if num_virtual_tokens and max_seq_length + num_virtual_tokens > model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {max_seq_length} and train.tuning.method.length is "
                f"{num_virtual_tokens}, but the model has positions for {model.max_length} tokens; "
                "shorten one of them"
            )
        if not isinstance(self.objective, FineTuning | MultiTask):
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

    def _check_teacher(self, max_seq_length: int) -> None:
        """Raises ConfigError if the objective has a teacher with which the run cannot train."""
        teacher, tuning = teacher_of(self.objective), self.train.tuning
        if teacher is None:
            return
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
        if teacher.layers and self.init_from is not None:
            raise ConfigError(
                f"init_from is {self.init_from}, but objective.distillation.teacher.layers is "
                f"{list(teacher.layers)}, so the student would start from two models; set "
                "init_from to null, or the layers to ()"
            )
        if max_seq_length > teacher.model.max_length:
            raise ConfigError(
                f"train.phases has seq_length {max_seq_length}, but the teacher {teacher.path} has "
                f"positions for {teacher.model.max_length} tokens; shorten the sequences"
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
"""Fields that may differ when a run is resumed, because they do not change what is computed."""
