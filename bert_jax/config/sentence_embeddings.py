"""Defines the configs of sentence-embedding training: data and objective.

Creating a config opens no file; `read_text_groups` does.

Names and defaults are as in sentence-transformers. Imports no jax.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.config.embedding_losses import (
    DenoisingAutoEncoderLoss,
    MatryoshkaLoss,
    MaxSimRankingLoss,
    SentenceLoss,
    SpladeLoss,
    compares_examples,
    layer_loss,
    single_loss,
)
from bert_jax.config.labeled_data import Columns, FewShot, Glue, LengthBuckets, Snli
from bert_jax.config.train import ObjectiveBase, TrainConfig
from bert_jax.errors import ConfigError, check_range
from bert_jax.models.bigbird.config import BigBirdConfig, BlockSparseWhenLong
from bert_jax.models.encoder import EncoderConfig
from bert_jax.models.layers.config import ComputeConfig
from bert_jax.models.sentence_encoder.config import (
    EmbeddingConfig,
    MultiVectorEncoderConfig,
    SentenceEncoderConfig,
    SparseEncoderConfig,
)

NliForm = Literal["classes", "pairs", "triples"]
"""What is made of premises and hypotheses with the labels entailment, neutral, contradiction.

classes   (premise, hypothesis) with their label
pairs     (premise, hypothesis) that it entails
triples   (premise, hypothesis that it entails, hypothesis that contradicts it), as in SimCSE
"""
NLI_FORMS: tuple[NliForm, ...] = get_args(NliForm)


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Configures groups of texts in a CSV, TSV, JSON lines or Parquet file, by column names.

    Attributes:
      texts: one column for single texts, two for pairs, three for an anchor, its positive and a
        hard negative, and so on.
      score: the column of a number that says how similar a pair is.
      score_range: the lowest and the highest score; scores are mapped to 0 and 1.
      label: the column of a class.
      teacher_scores: the scores that a teacher gives to the first text with each of the others: one
        column for each of them, or one column with lists.
    """

    path: str  # a .csv, .tsv, .jsonl or .parquet file, the text formats plain or .gz
    texts: tuple[str, ...]
    score: str | None = None
    score_range: tuple[float, float] = (0.0, 1.0)
    label: str | None = None
    teacher_scores: tuple[str, ...] = ()
    encoding: str = "utf-8"  # of all formats but Parquet

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("TextFile.path is empty; expected a file")
        named = [*self.texts, *(c for c in (self.score, self.label) if c is not None)]
        named += self.teacher_scores
        if not self.texts or "" in named or len(set(named)) < len(named):
            raise ConfigError(
                f"TextFile: the columns are {named}; expected at least one column of texts, and "
                "different names"
            )
        if self.score is not None and self.label is not None:
            raise ConfigError(
                f"TextFile has the score {self.score!r} and the label {self.label!r}; expected one"
            )
        if len(self.teacher_scores) not in (0, 1, len(self.texts) - 1):
            raise ConfigError(
                f"TextFile.teacher_scores has {len(self.teacher_scores)} columns and "
                f"TextFile.texts {len(self.texts)}; expected a column of scores for each text "
                "after the first, or one column with lists"
            )
        if not self.score_range[0] < self.score_range[1]:
            raise ConfigError(
                f"TextFile.score_range is {list(self.score_range)}, expected the lowest score and "
                "then the highest"
            )


@dataclass(frozen=True, kw_only=True)
class NliFiles:
    """Configures SNLI and MNLI as training data of sentence encoders.

    Attributes:
      tasks: `Snli`, or `Glue` with the task "mnli", or both.
      splits: the splits to read of each task, as far as it has them.
    """

    tasks: tuple[Snli | Glue, ...]
    splits: tuple[str, ...] = ("train",)
    form: NliForm = "triples"  # what is made of premises and hypotheses, see `NliForm`

    def __post_init__(self) -> None:
        if not self.tasks or not self.splits:
            raise ConfigError("NliFiles has no tasks or no splits; expected at least one of each")
        for task in self.tasks:
            if isinstance(task, Glue) and task.task != "mnli":
                raise ConfigError(f"NliFiles.tasks has the GLUE task {task.task!r}; expected mnli")
        if self.form not in NLI_FORMS:
            raise ConfigError(
                f"NliFiles.form is {self.form!r}; expected one of {', '.join(NLI_FORMS)}"
            )


@dataclass(frozen=True, kw_only=True)
class StsBenchmark:
    """Configures the STS benchmark of GLUE: pairs with scores from 0 to 5, mapped to 0 to 1."""

    folder: str  # contains STS-B/train.tsv
    split: str = "train"  # train, dev or test

    def __post_init__(self) -> None:
        if not self.folder:
            raise ConfigError("StsBenchmark.folder is empty; expected a folder with STS-B")


PairSampling = Literal["oversampling", "undersampling", "unique"]
"""How many pairs of equal and of different classes are trained on.

"oversampling" repeats the rarer kind; "undersampling" drops pairs of the more frequent kind;
"unique" takes every pair once.
"""
PAIR_SAMPLINGS: tuple[PairSampling, ...] = get_args(PairSampling)


@dataclass(frozen=True, kw_only=True)
class ContrastivePairs:
    """Configures pairs of the texts of a classification task (SetFit, Tunstall et al. 2022).

    The score of a pair is 1 if both texts have the same class, and else 0. The texts of a pair task
    are joined with a space.

    Attributes:
      num_iterations: pairs of each of both kinds for each text, instead of `sampling`.
      seed: of the order of the pairs, which decides the pairs that are left out or repeated.
    """

    task: Glue | Snli | Columns | FewShot  # the classification task whose texts are paired
    sampling: PairSampling = "oversampling"  # how many pairs of each kind, see `PairSampling`
    num_iterations: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampling not in PAIR_SAMPLINGS:
            raise ConfigError(
                f"ContrastivePairs.sampling is {self.sampling!r}; expected one of "
                f"{', '.join(PAIR_SAMPLINGS)}"
            )
        if self.num_iterations is not None:
            check_range("ContrastivePairs.num_iterations", self.num_iterations, at_least=1)


TextGroupsConfig = TextFile | NliFiles | StsBenchmark | ContrastivePairs


@dataclass(frozen=True, kw_only=True)
class SentenceEmbeddingData(LengthBuckets):
    """Configures the training data of a sentence encoder, and the pairs it is evaluated on.

    Attributes:
      train: the groups of texts; the objective's loss determines what they need.
      dev: pairs with scores, whose rank correlation with cosines is computed; None: no evaluation.
      tokenizer: a file or folder that `load_tokenizer` opens.
    """

    train: TextGroupsConfig
    dev: TextFile | StsBenchmark | None = None
    tokenizer: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.dev, TextFile) and (len(self.dev.texts) != 2 or self.dev.score is None):
            raise ConfigError(
                f"data.dev has the texts {list(self.dev.texts)} and the score {self.dev.score!r}; "
                "expected two columns of texts and one of scores"
            )


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(ObjectiveBase):
    """Configures the training of an encoder of texts, and the loss of its vectors.

    Attributes:
      first_text_length: the most tokens that the first text of an example has, in the whole data.
        Where texts do not share rows (`packs_texts`) and the others are longer, such as the
        passages of queries, the first ones are encoded on their own at this length. None encodes
        all texts at the length of the batch.
      chunk_size: examples whose texts are encoded at once, which must divide the batch size; None
        encodes the whole batch at once. Chunks are encoded one after another and again in the
        backward pass, so the memory is that of a chunk, and the loss and its gradients are those of
        the whole batch (GradCache, Gao et al. 2021). Dropout differs from that without chunks.
    """

    model: EncoderConfig  # the encoder to adapt
    # What makes vectors of hidden states: one dense vector, a sparse one, or one for each token.
    sentence_encoder: EmbeddingConfig = SentenceEncoderConfig()
    loss: SentenceLoss  # of the vectors; it determines which groups of texts are needed
    first_text_length: int | None = None
    chunk_size: int | None = None
    compute: ComputeConfig = ComputeConfig()  # dtype, layer loop and memory of a step

    def __post_init__(self) -> None:
        size = self.embedding_size
        if self.first_text_length is not None:
            check_range("objective.first_text_length", self.first_text_length, at_least=1)
        expected: dict[type, type] = {
            SpladeLoss: SparseEncoderConfig,
            MaxSimRankingLoss: MultiVectorEncoderConfig,
        }
        needed = expected.get(type(self.loss), SentenceEncoderConfig)
        if not isinstance(self.sentence_encoder, needed):
            raise ConfigError(
                f"objective.loss is {type(self.loss).__name__}, which needs a {needed.__name__}, "
                f"but objective.sentence_encoder is a {type(self.sentence_encoder).__name__}"
            )
        of_layer = layer_loss(self.loss)
        if isinstance(of_layer, MatryoshkaLoss) and max(of_layer.dims) > size:
            raise ConfigError(
                f"objective.loss.dims is {list(of_layer.dims)}, but vectors have {size} components"
            )
        if self.chunk_size is not None:
            check_range("objective.chunk_size", self.chunk_size, at_least=1)
            if isinstance(self.loss, DenoisingAutoEncoderLoss):
                raise ConfigError(
                    f"objective.chunk_size is {self.chunk_size}, but objective.loss compares no "
                    "examples; expected null, and gradient_accumulation_steps of train.phases "
                    "instead"
                )

    @property
    def packs_texts(self) -> bool:
        """Returns whether several texts of a batch share a row, so that it has little padding.

        Only for one dense vector of each text: most of the computation of a sparse model is its
        masked-LM head, which reads each text on its own; a multi-vector model encodes queries and
        documents differently; TSDAE encodes only one of two texts. All texts of a row would see
        BigBird's global blocks.
        """
        has_blocks = isinstance(self.model, BigBirdConfig) and isinstance(
            self.model.attention, BlockSparseWhenLong
        )
        is_dense = isinstance(self.sentence_encoder, SentenceEncoderConfig)
        return is_dense and not has_blocks and not isinstance(self.loss, DenoisingAutoEncoderLoss)

    @property
    def embedding_size(self) -> int:
        """Returns the number of components of the vectors that the loss reads."""
        if isinstance(self.sentence_encoder, SparseEncoderConfig):
            return self.model.vocab_size
        return self.sentence_encoder.embedding_size(self.model.hidden_size)

    def check_training(self, train: TrainConfig) -> None:
        """Raises a ConfigError if the phases or their batches do not fit the objective."""
        super().check_training(train)
        for phase in train.phases:
            self.check_batch(phase.batch_size, phase.gradient_accumulation_steps)

    def check_batch(self, batch_size: int, gradient_accumulation_steps: int) -> None:
        """Raises a ConfigError if the loss of a batch cannot be computed in these parts."""
        if self.chunk_size is not None and batch_size % self.chunk_size:
            raise ConfigError(
                f"objective.chunk_size is {self.chunk_size}, which does not divide the batch_size "
                f"{batch_size} of train.phases; expected a divisor of it"
            )
        if gradient_accumulation_steps == 1:
            return
        # Microbatches would make the negatives of a text fewer, which is another loss and not the
        # same one in parts.
        if compares_examples(self.loss):
            raise ConfigError(
                f"train.phases has gradient_accumulation_steps {gradient_accumulation_steps}, but "
                f"{type(single_loss(self.loss)).__name__} compares each example with all others of "
                "the batch; expected 1, and objective.chunk_size to save memory"
            )
        if self.chunk_size is not None:
            raise ConfigError(
                f"objective.chunk_size is {self.chunk_size} and train.phases has "
                f"gradient_accumulation_steps {gradient_accumulation_steps}; expected one of them"
            )
