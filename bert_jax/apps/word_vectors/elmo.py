"""Trains ELMo on sentences of words, and computes the vectors of words in texts with it.

The folder of a model has config.json, with the words and characters that it knows, and
model.safetensors.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from bert_jax.apps.word_vectors.elmo_model import ElmoConfig, ElmoObjective
from bert_jax.apps.word_vectors.glove import vocabulary
from bert_jax.apps.word_vectors.sentences import split_words
from bert_jax.config.train import AdamW, Phase, TrainConfig, WarmupLinear
from bert_jax.errors import UserError, check_range
from bert_jax.interop.weight_files import WEIGHTS, read_weights
from bert_jax.io.atomic_io import atomic_path, check_new_folder, write_json
from bert_jax.io.json_io import read_json_object
from bert_jax.params import paths
from bert_jax.predict.batches import next_power_of_two
from bert_jax.train.optimizer import learning_rate_schedule, make_optimizer
from bert_jax.train.step import init_state, make_train_step

logger = logging.getLogger(__name__)

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
"""The marks around a sentence, which are words of the language models, and unknown words."""
# Ids of characters: padding, the ends of a word, unknown characters, and the marks of sentences.
_PADDING, _BEGIN_WORD, _END_WORD, _UNKNOWN_CHARACTER, _BEGIN_SENTENCE, _END_SENTENCE = range(6)
_NUM_SPECIAL = 6
_SENTENCES_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class ElmoTraining:
    """Configures the training of ELMo; an example is `seq_length` words of the whole corpus."""

    steps: int
    batch_size: int = 32
    seq_length: int = 32
    learning_rate: float = 1e-3  # of AdamW, with a warmup and a linear decay
    min_count: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "min_count"):
            check_range(name, getattr(self, name), at_least=1)
        check_range("seq_length", self.seq_length, at_least=2)
        check_range("learning_rate", self.learning_rate, above=0)


class ElmoModel:
    """Computes the layers of ELMo for the words of texts.

    Attributes:
      layer_names: the names of the layers, in the order of `embed`.
    """

    layer_names = ("characters", "biLSTM 1", "biLSTM 2")

    def __init__(
        self, config: ElmoConfig, params: Any, words: Sequence[str], characters: Sequence[str]
    ):
        self.config, self.params = config, params
        self.words, self.characters = list(words), list(characters)
        self._word_ids = {word: index for index, word in enumerate(self.words)}
        self._character_ids = {c: i for i, c in enumerate(self.characters, start=_NUM_SPECIAL)}
        network = ElmoObjective(config).network

        def layers(params: Any, characters: jax.Array, mask: jax.Array) -> jax.Array:
            forward, backward = network.merge(params)(characters, mask)
            return jax.numpy.concatenate([forward, backward], axis=-1)

        self._layers = jax.jit(layers)

    def word_ids(self, words: Sequence[str]) -> list[int]:
        """Returns the numbers of words in the softmax; words outside of it have that of UNKNOWN."""
        unknown = self._word_ids[UNKNOWN]
        return [self._word_ids.get(word, unknown) for word in words]

    def character_ids(self, word: str) -> np.ndarray:
        """Returns the characters of a word between two marks, int32 [M]; long words are cut."""
        ids = np.full(self.config.max_word_length, _PADDING, np.int32)
        if word in (BEGIN, END):
            inside = [_BEGIN_SENTENCE if word == BEGIN else _END_SENTENCE]
        else:
            inside = [self._character_ids.get(c, _UNKNOWN_CHARACTER) for c in word]
        inside = inside[: self.config.max_word_length - 2]
        ids[: len(inside) + 2] = [_BEGIN_WORD, *inside, _END_WORD]
        return ids

    def embed(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the layers of the words of each text, float32 [words, 3, 2 P]."""
        sentences = [[BEGIN, *split_words(text), END] for text in texts]
        order = sorted(range(len(texts)), key=lambda index: len(sentences[index]))
        outputs: list[np.ndarray] = [np.zeros(0)] * len(texts)
        for start in range(0, len(order), _SENTENCES_AT_ONCE):
            rows = order[start : start + _SENTENCES_AT_ONCE]
            length = next_power_of_two(len(sentences[rows[-1]]))
            shape = next_power_of_two(len(rows)), length
            characters = np.zeros((*shape, self.config.max_word_length), np.int32)
            mask = np.zeros(shape, np.int32)
            for row, index in enumerate(rows):
                words = sentences[index]
                characters[row, : len(words)] = [self.character_ids(word) for word in words]
                mask[row, : len(words)] = 1
            layers = np.asarray(self._layers(self.params, characters, mask))
            for row, index in enumerate(rows):
                outputs[index] = layers[row, 1 : len(sentences[index]) - 1]
        return outputs

    def save(self, folder: Path) -> None:
        """Writes a new folder; UserError if it has files."""
        check_new_folder(folder)
        with atomic_path(folder) as temporary:
            temporary.mkdir(parents=True)
            config = {"model_type": "elmo", "config": dataclasses.asdict(self.config)}
            config |= {"words": self.words, "characters": self.characters}
            write_json(temporary / "config.json", config)
            flat = {name: np.asarray(v) for name, v in paths.flatten(self.params).items()}
            save_file(flat, temporary / WEIGHTS)


def is_elmo_folder(folder: Path) -> bool:
    """Returns whether a folder has a model that `bert-jax word-vectors train-elmo` wrote."""
    file = folder / "config.json"
    return file.is_file() and read_json_object(file).get("model_type") == "elmo"


def load_elmo(folder: Path) -> ElmoModel:
    """Loads a model; UserError if it is damaged."""
    found = read_json_object(folder / "config.json")
    try:
        sizes: dict[str, Any] = found["config"]
        sizes["filters"] = tuple((width, number) for width, number in sizes["filters"])
        config = ElmoConfig(**sizes)
        words, characters = found["words"], found["characters"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: not a model of ELMo ({error}); train it again") from None
    params = read_weights(folder / WEIGHTS)
    expected = paths.flatten(ElmoObjective(config).abstract())
    if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in expected.items()}:
        raise UserError(f"{folder}: {WEIGHTS} does not fit config.json; copy the folder again")
    return ElmoModel(config, paths.unflatten(params), words, characters)


def train_elmo(
    sentences: Sequence[Sequence[str]], training: ElmoTraining, **sizes: Any
) -> tuple[ElmoModel, list[float]]:
    """Trains ELMo's language models.

    Args:
      sizes: fields of `ElmoConfig` other than the numbers of words and characters.

    Returns:
      The model, and the loss of each step in nats for each predicted word.

    Raises:
      UserError: the corpus has too few words for one batch.
    """
    words = [*vocabulary(sentences, training.min_count), BEGIN, END, UNKNOWN]
    characters = sorted({c for word in words[:-3] for c in word})
    config = ElmoConfig(
        vocab_size=len(words), num_characters=_NUM_SPECIAL + len(characters), **sizes
    )
    model = ElmoModel(config, {}, words, characters)
    batches, objective = _Batches(model, sentences, training), ElmoObjective(config)
    phase = Phase(
        steps=training.steps, seq_length=training.seq_length, batch_size=training.batch_size
    )
    schedule = WarmupLinear(
        peak_learning_rate=training.learning_rate, warmup_steps=training.steps // 10
    )
    config_of_steps = TrainConfig(
        phases=(phase,), optimizer=AdamW(weight_decay=0.0), schedule=schedule
    )
    optimizer = make_optimizer(config_of_steps)
    state = jax.jit(partial(init_state, objective, optimizer))(jax.random.key(training.seed))
    rate = learning_rate_schedule(schedule, training.steps)
    step = jax.jit(make_train_step(objective, optimizer, rate), donate_argnums=(0,))
    losses, start = list[float](), time.monotonic()
    for number in range(training.steps):
        state, metrics = step(state, batches.batch(number))
        losses.append(float(metrics["loss"]))
        if number % 100 == 0 or number == training.steps - 1:
            seconds = time.monotonic() - start
            logger.info("step %d: loss %.3f nats, %.0f s", number + 1, losses[-1], seconds)
    model.params = state["params"]
    return model, losses


class _Batches:
    """Makes batch number n from consecutive words of the corpus, in a random order each epoch."""

    def __init__(
        self, model: ElmoModel, sentences: Sequence[Sequence[str]], training: ElmoTraining
    ):
        length = training.seq_length
        # Every distinct word has its characters once; the corpus is numbers of these words.
        numbers: dict[str, int] = {}
        stream = [
            numbers.setdefault(word, len(numbers))
            for sentence in sentences
            for word in (BEGIN, *sentence, END)
        ]
        self._num_batches = len(stream) // (length * training.batch_size)
        if not self._num_batches:
            raise UserError(
                f"the corpus has {len(stream):,} words with the marks of sentences; expected at "
                f"least {length * training.batch_size:,} for one batch of {training.batch_size} "
                f"times {length} words: add text, or use a smaller --batch-size"
            )
        self._stream = np.array(stream[: len(stream) // length * length]).reshape(-1, length)
        self._characters = np.array([model.character_ids(word) for word in numbers])
        self._labels = np.array(model.word_ids(list(numbers)), np.int32)
        self._size, self._seed = training.batch_size, training.seed

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Returns a batch, a function of the seed and its number."""
        epoch, index = divmod(number, self._num_batches)
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._stream))
        words = self._stream[order[index * self._size : (index + 1) * self._size]]
        return {
            "characters": self._characters[words],
            "labels": self._labels[words],
            "attention_mask": np.ones(words.shape, np.int32),
        }
