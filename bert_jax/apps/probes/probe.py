"""Probes the layers of an encoder, and baselines in the same way: `probe(model, files)`.

A source is a function from sentences to features of their words. The model is one, and baselines
are others: a network with random parameters, word vectors. Each source is probed in all its layers.
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bert_jax.apps.probes.structural import (
    Scores,
    StructuralProbeConfig,
    linear_baseline,
    make_trees,
    score_probes,
    train_structural_probes,
)
from bert_jax.apps.probes.tasks import (
    CONLL_TASKS,
    SPLITS,
    TREEBANK_TASKS,
    ProbingTask,
    check_names,
    conll_tasks,
    evenly_spaced,
    is_treebank,
    treebank_tasks,
)
from bert_jax.apps.probes.training import (
    Examples,
    Params,
    ProbeConfig,
    evaluate_probes,
    mix_weights,
    online_code_length,
    standardize,
    train_probes,
)
from bert_jax.apps.treebanks.conllu import TreebankSentence, read_treebank
from bert_jax.apps.treebanks.word_features import (
    Pooling,
    Sentences,
    WordFeatures,
    encode_words,
    fitting_sentences,
    with_random_parameters,
)
from bert_jax.apps.word_vectors.vectors import read_word_vectors
from bert_jax.apps.word_vectors.word_encoder import look_up_words
from bert_jax.errors import UserError, check_range
from bert_jax.pretrained.load import LoadedModel
from bert_jax.tasks.metrics.ner_metrics import entity_counts, entity_types

logger = logging.getLogger(__name__)

Source = Callable[[Sentences], WordFeatures]
MODEL, RANDOM, VECTORS = "model", "random network", "word vectors"
STRUCTURE = "structure"
"""The name of the structural probes among the tasks."""


@dataclass(frozen=True, kw_only=True)
class LayerResults:
    """Holds the results of the probes of one task on one source, on test unless it says otherwise.

    Attributes:
      layers: the names of the K layers.
      accuracy, accuracy_deviation: mean and standard deviation over seeds, [K].
      dev_accuracy: mean on dev, [K].
      f1: mean F1 of whole chunks or entities, [K]; () for other tasks.
      control_accuracy: mean of the control task, [K]; () for tasks about sentences.
      code_length: bits of an online code of the training labels, mean, [K].
      compression: the length of a uniform code divided by `code_length`, [K].
      cumulative_accuracy: mean of the probe on a mix of layers 0 to l, [K].
      expected_layer: sum of l * gain_l / sum of gain_l, where gain_l is the difference of the
        cumulative accuracies of l and l - 1 (Tenney et al. 2019); None if nothing is gained.
      center_of_gravity: sum of l * s_l with the weights s of the mix of all layers.
    """

    layers: tuple[str, ...]
    accuracy: tuple[float, ...]
    accuracy_deviation: tuple[float, ...]
    dev_accuracy: tuple[float, ...]
    f1: tuple[float, ...]
    control_accuracy: tuple[float, ...]
    code_length: tuple[float, ...]
    compression: tuple[float, ...]
    cumulative_accuracy: tuple[float, ...]
    expected_layer: float | None
    center_of_gravity: float

    @property
    def best_layer(self) -> int:
        """Returns the index of the layer with the best accuracy on dev."""
        return int(np.argmax(self.dev_accuracy))

    @property
    def selectivity(self) -> tuple[float, ...]:
        """Returns accuracy minus control accuracy (Hewitt and Liang 2019), [K] or ()."""
        pairs = zip(self.accuracy, self.control_accuracy, strict=False)
        return tuple(accuracy - control for accuracy, control in pairs)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Holds the results of a task: the accuracy of its most frequent label, and of each source."""

    name: str
    kind: str
    num_classes: int
    num_examples: Mapping[str, int]
    majority: float
    sources: Mapping[str, LayerResults]


@dataclass(frozen=True, kw_only=True)
class StructureResult:
    """Holds the scores of structural probes: of the linear baseline, and by source and layer.

    Attributes:
      dev_uuas: by source, the mean UUAS on dev, [K], which chooses the best layer.
      mean, deviation: by source, over seeds, of each layer.
    """

    linear: Scores
    layers: Mapping[str, tuple[str, ...]]
    dev_uuas: Mapping[str, tuple[float, ...]]
    mean: Mapping[str, tuple[Scores, ...]]
    deviation: Mapping[str, tuple[Scores, ...]]

    def best_layer(self, source: str) -> int:
        """Returns the index of the layer with the best UUAS on dev."""
        return int(np.argmax(self.dev_uuas[source]))


@dataclass(frozen=True, kw_only=True)
class ProbeResults:
    """Holds the results of all tasks; `num_too_long` sentences were left out."""

    tasks: tuple[TaskResult, ...]
    structure: StructureResult | None
    num_too_long: int


def probe(
    model: LoadedModel,
    files: Mapping[str, str],
    *,
    tasks: Sequence[str] = (),
    num_sentences: int | None = 1000,
    num_seeds: int = 3,
    pooling: Pooling = "mean",
    vectors: str | None = None,
    cache: Path | None = None,
    config: ProbeConfig | None = None,
    structural_config: StructuralProbeConfig | None = None,
) -> ProbeResults:
    """Trains the probes of a model and of its baselines.

    Args:
      files: {"train", "dev", "test"}: treebanks (.conllu), or files of CoNLL-2003.
      tasks: names; () for all that the files have.
      num_sentences: the number of sentences of each file, evenly spaced; None for all.
      vectors: a file of word vectors, one more baseline.
      cache: a folder for hidden states, see `encode_words`.

    Raises:
      UserError: a file is damaged, a task is unknown, or has too few examples.
    """
    check_range("num_seeds", num_seeds, at_least=1)
    random_model = with_random_parameters(model)
    sources: dict[str, Source] = {
        name: _remember(
            lambda words, each=each: encode_words(each, words, pooling=pooling, cache=cache)
        )
        for name, each in ((MODEL, model), (RANDOM, random_model))
    }
    if vectors is not None:
        word_vectors = read_word_vectors(vectors)
        sources[VECTORS] = _remember(lambda words: look_up_words(word_vectors, words))
    formats = {is_treebank(file) for file in files.values()}
    if len(formats) > 1:
        raise UserError(
            f"{', '.join(files.values())}: expected either treebanks, whose names end in .conllu, "
            "or files of CoNLL-2003"
        )
    num_too_long: dict[str, int] = {}

    def choose(split: str, sentences: Sentences) -> list[int]:
        """Returns the indices of the sentences to use."""
        chosen = evenly_spaced(len(sentences), num_sentences)
        fitting = fitting_sentences(model, [sentences[index] for index in chosen])
        num_too_long[split] = len(chosen) - len(fitting)
        return [chosen[index] for index in fitting]

    treebanks: dict[str, list[TreebankSentence]] = {}
    if formats == {True}:
        known = (*TREEBANK_TASKS, STRUCTURE)
        names = tuple(tasks) or known
        check_names(names, known)
        for split in SPLITS:
            sentences = read_treebank(files[split])
            chosen = choose(split, [sentence.words for sentence in sentences])
            treebanks[split] = [sentences[index] for index in chosen]
        made = treebank_tasks(treebanks, [name for name in names if name != STRUCTURE])
    else:
        names = tuple(tasks) or CONLL_TASKS
        check_names(names, CONLL_TASKS)
        made = conll_tasks(files, names, choose)
    usable: list[ProbingTask] = []
    for task in made:
        try:
            check_task(task)
            usable.append(task)
        except UserError as error:
            if tasks:
                raise
            logger.info("note: %s; it is left out", error)
    seeds = range(num_seeds)
    return ProbeResults(
        tasks=tuple(probe_task(task, sources, seeds, config or ProbeConfig()) for task in usable),
        structure=probe_structure(
            treebanks, sources, seeds, structural_config or StructuralProbeConfig()
        )
        if STRUCTURE in names
        else None,
        num_too_long=sum(num_too_long.values()),
    )


def _remember(source: Source) -> Source:
    """Returns the source with a memory, because most tasks have the same sentences."""
    known: dict[Hashable, WordFeatures] = {}

    def remembered(sentences: Sentences) -> WordFeatures:
        key = tuple(map(tuple, sentences))
        if key not in known:
            known[key] = source(sentences)
        return known[key]

    return remembered


def probe_task(
    task: ProbingTask, sources: Mapping[str, Source], seeds: Sequence[int], config: ProbeConfig
) -> TaskResult:
    """Trains the probes of a task on each source.

    Raises:
      UserError: there are fewer examples than classes, fewer than two classes, or features that
        are not finite.
    """
    check_task(task)
    results: dict[str, LayerResults] = {}
    for name, source in sources.items():
        logger.info("probing %s: %s", task.name, name)
        results[name] = _probe_source(task, source, seeds, config)
    return TaskResult(
        name=task.name,
        kind=task.kind,
        num_classes=len(task.classes()),
        num_examples={split: len(task.splits[split].labels) for split in SPLITS},
        majority=float((task.label_ids("test") == 0).mean()),
        sources=results,
    )


def check_task(task: ProbingTask) -> None:
    """Raises a UserError if a task has too few classes or examples for a probe."""
    num_classes = len(task.classes())
    counts = [len(task.splits[split].labels) for split in SPLITS]
    if num_classes < 2 or counts[0] < num_classes or min(counts) == 0:
        raise UserError(
            f"task {task.name}: {num_classes} classes in train, and "
            f"{' / '.join(map(str, counts))} examples in {' / '.join(SPLITS)}; expected at least "
            "two classes, as many examples of train, and an example in each file"
        )


def pool_spans(values: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Returns the means over words of the P spans of each example, concatenated: [K, N, P * D].

    Args:
      values: float32 [K, W, D].
      spans: int [N, P, 2], the words [start, end) of each span.
    """
    if (np.diff(spans) == 1).all():
        pooled = [values[:, spans[:, span, 0]] for span in range(spans.shape[1])]
        return np.concatenate(pooled, -1)
    return np.stack(
        [
            np.concatenate([values[:, start:end].mean(1) for start, end in example], -1)
            for example in spans
        ],
        axis=1,
    )


def _probe_source(
    task: ProbingTask, source: Source, seeds: Sequence[int], config: ProbeConfig
) -> LayerResults:
    features = {split: source(task.splits[split].sentences) for split in SPLITS}
    layers = features["train"].layers
    pooled = standardize(
        *(pool_spans(features[split].values, task.splits[split].spans) for split in SPLITS)
    )
    # An online code needs examples in random order.
    order = np.random.default_rng(0).permutation(pooled[0].shape[1])
    has_control = bool(task.splits["train"].types)
    examples: dict[str, Examples] = {}
    for split, values in zip(SPLITS, pooled, strict=True):
        labels = [task.label_ids(split)]
        if has_control:
            labels.append(task.control_ids(split))
        stacked = np.stack(labels)
        if split == "train":
            values, stacked = values[:, order], stacked[:, order]
        examples[split] = Examples(jnp.asarray(values), jnp.asarray(stacked))
    train, dev, test = (examples[split] for split in SPLITS)
    num_classes, size = len(task.classes()), len(layers)
    params = train_probes(train, dev, None, seeds, num_classes, config)
    predictions = evaluate_probes(params, None, test).predictions
    accuracy = (predictions == np.asarray(test.labels)).mean(-1)
    bits = online_code_length(train, dev, None, seeds, num_classes, config)[:, :, 0].mean(0)
    # The probes of mixes have no control task.
    up_to = np.tri(size, dtype=bool)
    train, dev, test = (Examples(each.features, each.labels[:1]) for each in (train, dev, test))
    mix_params = train_probes(train, dev, up_to, seeds, num_classes, config)
    cumulative = _accuracy(mix_params, up_to, test)[..., 0].mean(0)
    weights = mix_weights(mix_params, up_to)[:, -1, 0].mean(0)
    return LayerResults(
        layers=layers,
        accuracy=_floats(accuracy[..., 0].mean(0)),
        accuracy_deviation=_floats(accuracy[..., 0].std(0)),
        dev_accuracy=_floats(_accuracy(params, None, examples["dev"])[..., 0].mean(0)),
        f1=_floats(span_f1(task, predictions[:, :, 0])) if task.name in CONLL_TASKS else (),
        control_accuracy=_floats(accuracy[..., 1].mean(0)) if has_control else (),
        code_length=_floats(bits),
        compression=_floats(len(order) * np.log2(num_classes) / bits),
        cumulative_accuracy=_floats(cumulative),
        expected_layer=expected_layer(cumulative),
        center_of_gravity=float(weights @ np.arange(size)),
    )


def span_f1(task: ProbingTask, predictions: np.ndarray) -> np.ndarray:
    """Computes the F1 of spans in IOB2 on test, as a mean over seeds, [K].

    Args:
      predictions: class ids [S, K, N] of the words.
    """
    split, classes = task.splits["test"], task.classes()
    ends = np.cumsum([len(sentence) for sentence in split.sentences])[:-1]
    references = [tags.tolist() for tags in np.split(np.array(split.labels), ends)]
    scores = np.zeros(predictions.shape[:2])
    for index in np.ndindex(scores.shape):
        tags = np.array(classes)[predictions[index]]
        predicted = [each.tolist() for each in np.split(tags, ends)]
        types = entity_types(references, predicted)
        counts = entity_counts(references, predicted, types).sum((0, 1))
        scores[index] = 2 * counts[0] / max(counts[1] + counts[2], 1)
    return scores.mean(0)


def expected_layer(cumulative: np.ndarray) -> float | None:
    """Returns the mean of the layers weighted by what each adds; None if they add nothing."""
    gains = np.diff(cumulative)
    if gains.sum() <= 0:
        return None
    return float((gains * np.arange(1, len(cumulative))).sum() / gains.sum())


def _accuracy(params: Params, masks: np.ndarray | None, examples: Examples) -> np.ndarray:
    """Returns float64 [S, M, T]."""
    predictions = evaluate_probes(params, masks, examples).predictions
    return (predictions == np.asarray(examples.labels)).mean(-1)


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())


def probe_structure(
    treebanks: Mapping[str, Sequence[TreebankSentence]],
    sources: Mapping[str, Source],
    seeds: Sequence[int],
    config: StructuralProbeConfig,
) -> StructureResult:
    """Trains structural probes for distance and depth on each source."""
    trees = {split: make_trees(treebanks[split]) for split in ("train", "dev")}
    words = {split: [sentence.words for sentence in treebanks[split]] for split in SPLITS}
    layers: dict[str, tuple[str, ...]] = {}
    dev_uuas: dict[str, tuple[float, ...]] = {}
    mean: dict[str, tuple[Scores, ...]] = {}
    deviation: dict[str, tuple[Scores, ...]] = {}
    for name, source in sources.items():
        logger.info("probing %s: %s", STRUCTURE, name)
        found = [source(words[split]) for split in SPLITS]
        layers[name] = found[0].layers
        values = standardize(*(each.values for each in found))
        on_device = [jnp.asarray(each) for each in values[:2]]
        distance, depth = (
            train_structural_probes(
                on_device[0], trees["train"], on_device[1], trees["dev"], seeds, target, config
            )
            for target in ("distance", "depth")
        )
        on_dev = np.array(score_probes(distance, depth, values[1], treebanks["dev"]))
        on_test = np.array(score_probes(distance, depth, values[2], treebanks["test"]))
        dev_uuas[name] = _floats(on_dev.mean(0)[:, 0])
        mean[name] = tuple(Scores(*row) for row in on_test.mean(0).tolist())
        deviation[name] = tuple(Scores(*row) for row in on_test.std(0).tolist())
    return StructureResult(
        linear=linear_baseline(treebanks["test"]),
        layers=layers,
        dev_uuas=dev_uuas,
        mean=mean,
        deviation=deviation,
    )
