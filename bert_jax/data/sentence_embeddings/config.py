"""Defines the configs of training data of sentence encoders.

Creating a config opens no file; `read_text_groups` does.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from bert_jax.data.finetuning.config import Columns, FewShot, Glue, Snli
from bert_jax.errors import ConfigError, check_range

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
    """

    path: str
    texts: tuple[str, ...]
    score: str | None = None
    score_range: tuple[float, float] = (0.0, 1.0)
    label: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("TextFile.path is empty; expected a file")
        named = [*self.texts, *(c for c in (self.score, self.label) if c is not None)]
        if not self.texts or "" in named or len(set(named)) < len(named):
            raise ConfigError(
                f"TextFile: the columns are {named}; expected at least one column of texts, and "
                "different names"
            )
        if self.score is not None and self.label is not None:
            raise ConfigError(
                f"TextFile has the score {self.score!r} and the label {self.label!r}; expected one"
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
    form: NliForm = "triples"

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
    split: str = "train"

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

    task: Glue | Snli | Columns | FewShot
    sampling: PairSampling = "oversampling"
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
class SentenceEmbeddingData:
    """Configures the training data of a sentence encoder, and the pairs it is evaluated on.

    Attributes:
      train: the groups of texts; the objective's loss determines what they need.
      dev: pairs with scores, whose rank correlation with cosines is computed; None: no evaluation.
      tokenizer: a file or folder that `load_tokenizer` opens.
      bucket_lengths: the sequence lengths that batches may have below that of the phase. Each one
        costs a compilation and saves padding.
    """

    train: TextGroupsConfig
    dev: TextFile | StsBenchmark | None = None
    tokenizer: str
    bucket_lengths: tuple[int, ...] = (16, 32, 64, 128, 256)

    def __post_init__(self) -> None:
        lengths = list(self.bucket_lengths)
        if lengths != sorted(set(lengths)) or min(lengths, default=4) < 4:
            raise ConfigError(
                f"data.bucket_lengths is {self.bucket_lengths}, expected ascending lengths of at "
                "least 4"
            )
        if isinstance(self.dev, TextFile) and (len(self.dev.texts) != 2 or self.dev.score is None):
            raise ConfigError(
                f"data.dev has the texts {list(self.dev.texts)} and the score {self.dev.score!r}; "
                "expected two columns of texts and one of scores"
            )

    def batch_lengths(self, max_length: int) -> tuple[int, ...]:
        """Returns the sequence lengths that batches of at most `max_length` tokens may have."""
        return (*(length for length in self.bucket_lengths if length < max_length), max_length)
