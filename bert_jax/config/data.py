"""Defines the configs of pretraining data: corpora, input formats, masking, denoising, schedules.

The encoder reads the changed text, the decoder predicts what is missing or the whole text. Imports
neither jax nor TensorFlow.

Imports neither jax nor TensorFlow.

Imports neither jax nor TensorFlow. The sizes of batches are part of a training phase.
"""

from dataclasses import dataclass, field

from bert_jax.config.labeled_data import (
    HeadTruncation,
    LengthBuckets,
    Mixing,
    ProportionalMixing,
    TaskConfig,
    Truncation,
)
from bert_jax.config.prompts import Prompt
from bert_jax.errors import ConfigError, check_range


@dataclass(frozen=True, kw_only=True)
class SpanCorruption:
    """Replaces spans by sentinel tokens, and predicts the spans (T5; Raffel et al. 2020, 3.1.4).

    Thank you <extra_id_0> me to your party <extra_id_1> </s>
    <extra_id_0> for inviting <extra_id_1> last week </s>
    """

    noise_density: float = 0.15  # fraction of the tokens that are replaced
    mean_noise_span_length: float = 3.0  # in tokens

    def __post_init__(self) -> None:
        check_range("data.masking.noise_density", self.noise_density, above=0, below=1)
        name = "data.masking.mean_noise_span_length"
        check_range(name, self.mean_noise_span_length, at_least=1)
        # Each span needs a token before it, or neighboring spans would become one.
        num_spans_per_token = self.noise_density / self.mean_noise_span_length
        if num_spans_per_token > 1 - self.noise_density:
            raise ConfigError(
                f"data.masking has noise_density {self.noise_density} and mean_noise_span_length "
                f"{self.mean_noise_span_length}, which leaves less than one token between two "
                "spans; expected a lower density or longer spans"
            )


@dataclass(frozen=True, kw_only=True)
class PrefixLM:
    """Predicts the rest of a text from a prefix of random length (Raffel et al. 2020, 3.3.1)."""


@dataclass(frozen=True, kw_only=True)
class BertStyleDenoising:
    """Replaces single tokens, and predicts the whole text (Raffel et al. 2020, 3.3.1).

    Each token is replaced independently of the others: by the first sentinel, or by a random token.
    """

    noise_density: float = 0.15  # probability that a token is replaced
    random_token_prob: float = 0.1  # probability that it is replaced by a random token

    def __post_init__(self) -> None:
        check_range("data.masking.noise_density", self.noise_density, above=0, below=1)
        name = "data.masking.random_token_prob"
        check_range(name, self.random_token_prob, at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class TokenMasking:
    """Replaces single tokens by the mask token."""

    ratio: float = 0.15  # fraction of the tokens, rounded up

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)


@dataclass(frozen=True, kw_only=True)
class TokenDeletion:
    """Deletes single tokens."""

    ratio: float = 0.15  # fraction of the tokens, rounded up

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)


@dataclass(frozen=True, kw_only=True)
class TextInfilling:
    """Replaces each span of words by one mask token; a span of no words inserts a mask token."""

    ratio: float = 0.3  # words in all spans together as a fraction of all words, rounded up
    poisson_lambda: float = 3.0  # span lengths have a Poisson distribution with this mean

    def __post_init__(self) -> None:
        _check_ratio(self.ratio)
        name = "data.masking.token_noise.poisson_lambda"
        check_range(
            name, self.poisson_lambda, at_least=MIN_POISSON_LAMBDA, at_most=MAX_POISSON_LAMBDA
        )


MIN_POISSON_LAMBDA = 0.1
"""With a smaller mean, nearly all spans are empty, and drawing enough words takes very long."""
MAX_POISSON_LAMBDA = 50
"""A larger mean length of spans is a mistake."""


def _check_ratio(ratio: float) -> None:
    check_range("data.masking.token_noise.ratio", ratio, above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class BartDenoising:
    """Adds noise to a document, and predicts the whole document (BART; Lewis et al. 2020, 2.2).

    The default values are those of the published models: text infilling and sentence permutation.
    The steps are sentence permutation, `token_noise`, rotation, in this order.
    """

    # What is done to tokens; None: nothing.
    token_noise: TokenMasking | TokenDeletion | TextInfilling | None = TextInfilling()
    permuted_sentences: float = 1.0  # fraction of the sentences that exchange their places
    # Probability that a random token stands where a mask token would. The paper has none; the
    # command that the authors give for the published models has 0.1.
    random_token_prob: float = 0.1
    rotation_prob: float = 0.0  # probability that the document begins at a random token

    def __post_init__(self) -> None:
        for name in ("permuted_sentences", "random_token_prob", "rotation_prob"):
            check_range(f"data.masking.{name}", getattr(self, name), at_least=0, at_most=1)


Denoising = SpanCorruption | PrefixLM | BertStyleDenoising | BartDenoising


@dataclass(frozen=True, kw_only=True)
class WeightedCorpus:
    """Names one corpus of a mixture, its weight and how often it may be read.

    Attributes:
      folder: folder written by `bert-jax prepare`.
      weight: fraction of the training tokens that come from this corpus, relative to the weights of
        the other corpora; None: the number of its tokens.
      max_epochs: at most how many times the run reads the corpus; the other corpora then get a
        larger fraction. None: as often as the weight requires.
    """

    folder: str
    weight: float | None = None
    max_epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusMixture:
    """Configures pretraining on several prepared corpora with one tokenizer.

    A corpus that was read completely is read again in a new order, up to its `max_epochs`.

    Attributes:
      corpora: the corpora; either each has a weight or none.
      temperature: T; fractions are proportional to weight^(1 / T) (Raffel et al. 2020, 3.5.2). With
        more than 1, small corpora get a larger fraction.
    """

    corpora: tuple[WeightedCorpus, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ConfigError("data.corpus.corpora is empty, expected at least one corpus")
        check_range("data.corpus.temperature", self.temperature, above=0)
        for index, corpus in enumerate(self.corpora):
            field = f"data.corpus.corpora[{index}] ({corpus.folder})"
            for name in ("weight", "max_epochs"):
                value = getattr(corpus, name)
                if value is not None:
                    check_range(f"{field}: {name}", value, above=0)
        folders = [corpus.folder for corpus in self.corpora]
        if repeated := sorted({name for name in folders if folders.count(name) > 1}):
            raise ConfigError(
                f"data.corpus.corpora names {repeated[0]} twice, expected each corpus once; add "
                "its weights up"
            )
        missing = [corpus.folder for corpus in self.corpora if corpus.weight is None]
        if missing and len(missing) < len(self.corpora):
            raise ConfigError(
                f"data.corpus.corpora: {', '.join(missing)} has no weight, but other corpora have "
                "one; expected a weight for each corpus or for none"
            )


@dataclass(frozen=True, kw_only=True)
class SentencePairs:
    """Pairs [CLS] A [SEP] B [SEP]: B follows A or comes from another document (BERT, section 3.1).

    RoBERTa calls this format SEGMENT-PAIR. The tokenizer's template decides the special tokens. As
    in BERT's script, a window of one sentence cannot be split, and B always comes from another
    document. So slightly more pairs than `random_next_prob` are random: 51 % in novels.
    """

    random_next_prob: float = 0.5  # probability that B comes from another document
    short_seq_prob: float = 0.1  # probability of a target length uniform in [2, L - 3], not L - 3

    def __post_init__(self) -> None:
        for name in ("random_next_prob", "short_seq_prob"):
            check_range(f"data.input_format.{name}", getattr(self, name), at_least=0, at_most=1)


@dataclass(frozen=True, kw_only=True)
class SentenceOrderPairs:
    """Pairs [CLS] A [SEP] B [SEP] of consecutive text, of which half are swapped (ALBERT, 3.1).

    A window that has one sentence only cannot be split. As in ALBERT's script, B then comes from
    another document, and the pair has the label of a swapped one.
    """

    swap_prob: float = 0.5  # probability that A is the later text
    short_seq_prob: float = 0.1  # as in `SentencePairs`

    def __post_init__(self) -> None:
        for name in ("swap_prob", "short_seq_prob"):
            check_range(f"data.input_format.{name}", getattr(self, name), at_least=0, at_most=1)


PairFormat = SentencePairs | SentenceOrderPairs


@dataclass(frozen=True, kw_only=True)
class SingleSegment:
    """Fills each sequence with one window of one document, [CLS] text [SEP].

    Windows have equal lengths and lie side by side, so they begin and end in the middle of
    sentences.
    """


@dataclass(frozen=True, kw_only=True)
class PackedSegments:
    """Packs as many `SingleSegment` examples into a sequence as fit, separated by `packing_ids`.

    Tokens attend only to tokens of the same example.
    """


@dataclass(frozen=True, kw_only=True)
class FullSentences:
    """Fills each sequence with whole sentences of one or more documents (RoBERTa, section 4.2).

    Documents follow each other as in the corpus, with a separator between them:
    <s> sentences of one document </s> sentences of the next </s>. Tokens attend to all documents.
    """


@dataclass(frozen=True, kw_only=True)
class DocSentences:
    """Fills each sequence with whole sentences of one document (RoBERTa, section 4.2)."""


@dataclass(frozen=True, kw_only=True)
class ConcatenatedDocuments:
    """Cuts the corpus, read as one text, into texts of equal length, as T5 does; for denoising.

    There is no separator between two documents.
    """


InputFormat = (
    PairFormat
    | SingleSegment
    | PackedSegments
    | FullSentences
    | DocSentences
    | ConcatenatedDocuments
)


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Predicts single tokens or whole words (BERT, section 3.1 and appendix A.1)."""

    mlm_probability: float = 0.15  # fraction of the tokens that are predicted
    mask_replace_prob: float = 0.8  # fraction of the predicted tokens replaced by [MASK]
    random_replace_prob: float = 0.1  # fraction replaced by a random token; the rest is unchanged
    whole_word_mask: bool = False  # predict all tokens of a word or none

    def __post_init__(self) -> None:
        _check_masking(self)


@dataclass(frozen=True, kw_only=True)
class NGramMasking:
    """Predicts n-grams of whole words, shorter ones more often (ALBERT, Lan et al. 2020, 3.1).

    The probability of n words is proportional to 1 / n.
    """

    mlm_probability: float = 0.15  # fraction of all tokens, [CLS] and [SEP] included
    mask_replace_prob: float = 0.8  # fraction of the predicted tokens replaced by [MASK]
    random_replace_prob: float = 0.1  # fraction replaced by a random token; the rest is unchanged
    max_ngram: int = 3  # largest n

    def __post_init__(self) -> None:
        _check_masking(self)
        check_range("data.masking.max_ngram", self.max_ngram, at_least=1, at_most=MAX_SPAN_LENGTH)


@dataclass(frozen=True, kw_only=True)
class SpanMasking:
    """Predicts spans of consecutive words (SpanBERT, Joshi et al. 2020, section 3.1).

    The probability of n words, n from 1 to `max_span_length`, is proportional to that of a
    geometric distribution. All tokens of a span are replaced in the same way, where spans that
    touch count as one. Random tokens have the frequencies of the corpus.
    """

    mlm_probability: float = 0.15  # fraction of the tokens that are predicted, rounded up
    mask_replace_prob: float = 0.8  # fraction of the spans replaced by [MASK]
    random_replace_prob: float = 0.1  # fraction replaced by random tokens; the rest is unchanged
    max_span_length: int = 10  # in words
    geometric_p: float = 0.2  # p(n) is proportional to p (1 - p)^(n - 1)

    def __post_init__(self) -> None:
        _check_masking(self)
        name = "data.masking.max_span_length"
        check_range(name, self.max_span_length, at_least=1, at_most=MAX_SPAN_LENGTH)
        check_range("data.masking.geometric_p", self.geometric_p, above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class DiffusionMasking:
    """Masks each sequence at a rate of its own, for masked diffusion (MDLM, Sahoo et al. 2024).

    The rate t is uniform in [min_rate, 1]. Each token that is not special is masked independently
    with probability t and is always replaced by [MASK], as in LLaDA (Nie et al. 2025). The rates of
    consecutive examples are evenly spread, so that each batch has small and large ones.
    """

    min_rate: float = 1e-3  # a loss is divided by its rate, so the rate must not be near 0

    def __post_init__(self) -> None:
        check_range("data.masking.min_rate", self.min_rate, above=0, below=1)


MAX_SPAN_LENGTH = 100
"""Spans and n-grams of more words than this are a mistake."""

FixedRateMasking = Masking | NGramMasking | SpanMasking
MaskingConfig = FixedRateMasking | DiffusionMasking


def _check_masking(masking: FixedRateMasking) -> None:
    for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
        check_range(f"data.masking.{name}", getattr(masking, name), at_least=0, at_most=1)
    # 0.9 + 0.1 and the like may be a little more than 1 in floating point.
    if masking.mask_replace_prob + masking.random_replace_prob > 1.0 + 1e-9:
        raise ConfigError(
            f"data.masking.mask_replace_prob is {masking.mask_replace_prob} and "
            f"random_replace_prob is {masking.random_replace_prob}, expected a sum of at most 1"
        )


@dataclass(frozen=True, kw_only=True)
class DynamicMasking:
    """Makes new windows, pairs and masks in every epoch (RoBERTa, section 4.1)."""


@dataclass(frozen=True, kw_only=True)
class StaticMasking:
    """Repeats windows, pairs and masks after `dupe_factor` epochs, as in BERT's release."""

    dupe_factor: int = 10  # epochs with masks of their own, before they repeat

    def __post_init__(self) -> None:
        check_range("data.masking_schedule.dupe_factor", self.dupe_factor, at_least=1)


MAX_WORKERS = 256
"""Each worker process needs a hundred megabytes of memory."""


@dataclass(frozen=True, kw_only=True)
class PretrainingData:
    """Configures pretraining data: prepared corpora and how examples are made from them."""

    corpus: str | CorpusMixture  # folder written by `bert-jax prepare`, or several with weights
    input_format: InputFormat = field(default_factory=SentencePairs)  # how text becomes sequences
    # What is hidden from an encoder, or the noise that a decoder removes; None changes nothing.
    masking: MaskingConfig | Denoising | None = field(default_factory=Masking)
    # Whether each epoch has new masks.
    masking_schedule: DynamicMasking | StaticMasking = field(default_factory=DynamicMasking)
    # Fraction of the sequences that are not masked, and whose tokens are all predicted left to
    # right (GPT-BERT, Charpentier and Samuel 2024: 1/16). Needs `Pretraining.masked_next_token`.
    causal_fraction: float = 0.0
    # File with documents that are not read: their examples are padding, all others stay the same.
    without: str | None = None
    prefetch_batches: int = 4  # number of batches that are built in advance
    num_workers: int = 0  # processes that build batches; 0 uses a thread of this process

    def __post_init__(self) -> None:
        check_range("data.prefetch_batches", self.prefetch_batches, at_least=1)
        check_range("data.num_workers", self.num_workers, at_least=0, at_most=MAX_WORKERS)
        _check_denoising_format(self.input_format, self.masking)
        check_range("data.causal_fraction", self.causal_fraction, at_least=0, below=1)
        if self.causal_fraction and (
            isinstance(self.input_format, PairFormat)
            or not isinstance(self.masking, Masking | NGramMasking)
        ):
            raise ConfigError(
                f"data.causal_fraction is {self.causal_fraction}, data.input_format is "
                f"{type(self.input_format).__name__} and data.masking is "
                f"{type(self.masking).__name__}; expected a format without pairs, and Masking or "
                "NGramMasking"
            )


def _check_denoising_format(
    input_format: InputFormat, masking: MaskingConfig | Denoising | None
) -> None:
    """Raises ConfigError if denoising is combined with a format of encoders, or the reverse."""
    name, format_name = type(masking).__name__, type(input_format).__name__
    if isinstance(masking, BartDenoising):
        allowed: tuple[type, ...] = (SingleSegment,)  # it needs the sentences of a document
    elif isinstance(masking, Denoising):
        allowed = (ConcatenatedDocuments, SingleSegment)
    elif isinstance(input_format, ConcatenatedDocuments):
        raise ConfigError(
            f"data.input_format is {format_name}, which is for encoder-decoders, but data.masking "
            f"is {name}; expected SpanCorruption, PrefixLM or BertStyleDenoising"
        )
    else:
        return
    if not isinstance(input_format, allowed):
        raise ConfigError(
            f"data.masking is {name} and data.input_format is {format_name}; expected "
            f"data.input_format {' or '.join(each.__name__ for each in allowed)}"
        )


@dataclass(frozen=True, kw_only=True)
class FineTuningData(LengthBuckets):
    """Configures fine-tuning data: the labeled examples of one task (`bert_jax/data/finetuning`).

    A batch contains examples of similar length. `truncation` is for classification, regression and
    ranking; words to tag and contexts of questions are always read in windows. With `prompt`, the
    objective's head has `LabelTokens`.
    """

    task: TaskConfig  # the files and their format
    tokenizer: str  # a file or folder that `load_tokenizer` opens
    window_overlap: int = 128  # number of tokens that two windows of one long example share
    truncation: Truncation = HeadTruncation()  # which part of a long text is read
    prompt: Prompt | None = None  # classification with label words at a mask

    def __post_init__(self) -> None:
        if self.prompt is not None and not isinstance(self.truncation, HeadTruncation):
            raise ConfigError(
                f"data.truncation is {self.truncation} and data.prompt is set; expected "
                "HeadTruncation, because a prompt is one sequence with one mask"
            )
        super().__post_init__()
        check_range("data.window_overlap", self.window_overlap, at_least=0)


@dataclass(frozen=True, kw_only=True)
class NamedTask:
    """Names one of several tasks; the name is part of metrics, file names and parameters."""

    name: str  # of letters, digits, '_', '-' and '.'
    task: TaskConfig  # the files and their format


@dataclass(frozen=True, kw_only=True)
class MultiTaskData:
    """Configures multi-task data: batches that mix the examples of several tasks.

    An epoch has as many sequences as all tasks together; with `ProportionalMixing` it contains
    every sequence once. The other fields are as in `FineTuningData`.
    """

    tasks: tuple[NamedTask, ...]  # each with a head of the same name in the objective
    tokenizer: str  # as in `FineTuningData`
    mixing: Mixing = ProportionalMixing()  # how often each task is drawn
    bucket_lengths: tuple[int, ...] = FineTuningData.bucket_lengths  # as in `FineTuningData`
    window_overlap: int = FineTuningData.window_overlap  # as in `FineTuningData`

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("data.tasks is empty, expected at least one task")
        # Makes the data of one task, for the checks of the fields that both have.
        self.for_task(self.tasks[0].name)

    def for_task(self, name: str) -> FineTuningData:
        """Returns the data of one of the tasks."""
        return FineTuningData(
            task=next(named.task for named in self.tasks if named.name == name),
            tokenizer=self.tokenizer,
            bucket_lengths=self.bucket_lengths,
            window_overlap=self.window_overlap,
        )
