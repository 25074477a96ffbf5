"""Finds the updates of a pretraining run that read given tokens, and those that predicted them.

The order of a run is a function of its config (data/pretraining/batch_builder.py), so nothing is
recorded during training: the examples that may contain a passage are found, and built again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_jax.config.config_lib import from_json
from bert_jax.config.data import PackedSegments, PretrainingData
from bert_jax.config.experiment import Experiment
from bert_jax.config.train import Phase
from bert_jax.data.corpus.document_list import read_document_list
from bert_jax.data.pretraining.batch_builder import Batch, BatchBuilder
from bert_jax.data.pretraining.dataset import SentencePairDataset
from bert_jax.data.pretraining.mixture import MixtureDataset, corpora_of, find_draws
from bert_jax.data.pretraining.mixture_plan import write_or_check_mixture
from bert_jax.data.pretraining.provenance import (
    NO_TOKEN,
    Content,
    Provenance,
    RemovedDocuments,
    positions_in,
)
from bert_jax.data.pretraining.rng import example_keys
from bert_jax.data.pretraining.sentence_pairs import SentencePair
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import PackingPlan, TextWindow
from bert_jax.errors import UserError
from bert_jax.runs import run_folder
from bert_jax.runs.checkpoints import step_folder
from bert_jax.runs.training_data import check_fingerprint
from bert_jax.train.workloads.pretraining import data_of_phase, open_texts


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Describes one example that contained tokens of a passage.

    Attributes:
      update: the update that read it, from 1.
      phase, epoch: both from 0; the epoch counts passes over the passage's corpus in the phase.
      row: the index of the sequence in the batch.
      tokens: the tokens of the passage that were read, ascending, counted from its first token.
      predicted: those of them that were predicted. None if the objective has no masked tokens
        (denoising), or predicts every token (left to right).
    """

    update: int
    phase: int
    epoch: int
    row: int
    tokens: tuple[int, ...]
    predicted: tuple[int, ...] | None


class ReadingHistory:
    """Knows what a pretraining run has read up to one of its checkpoints.

    Attributes:
      folder: the run folder.
      step: only updates up to this one are considered.
      steps: the steps of all checkpoints.
      experiment, data: the config of the run.
      texts: what each phase reads, one corpus or a mixture.
      corpora: the prepared corpora; tokens are numbered over all of them.
      first_tokens: [C + 1] int64, the number of tokens before each corpus; the last is the total.
    """

    def __init__(self, path: Path) -> None:
        """Opens a run folder, or one of its checkpoints, with the corpora of the run.

        Raises:
          UserError: the path is no pretraining run, the run has no such checkpoint, or a corpus is
            missing or has changed.
        """
        found = run_folder.find_run(path)
        if found is None:
            raise UserError(
                f"{path}: not a run folder; expected a run of `bert-jax pretrain`, or one of its "
                "checkpoints, such as RUN/checkpoints/1000"
            )
        self.folder, step = found
        config = run_folder.read_config(self.folder)
        self.experiment = from_json(Experiment, config, str(self.folder / run_folder.CONFIG))
        data = self.experiment.data
        if not isinstance(data, PretrainingData):
            raise UserError(
                f"{self.folder}: no pretraining run (its data are {type(data).__name__}); expected "
                "a run of `bert-jax pretrain`"
            )
        self.data = data
        plan, self.texts = open_texts(self.experiment, data)
        self.corpora = corpora_of(self.texts[0])
        if plan is None:
            check_fingerprint(self.folder, self.corpora[0].manifest.fingerprint)
        else:
            write_or_check_mixture(plan, self.folder / run_folder.MIXTURE)
        self.first_tokens = np.cumsum([0] + [each.num_tokens for each in self.corpora])
        self.steps = step_folder.list_steps(
            step_folder.absolute_path(run_folder.checkpoint_dir(self.folder))
        )
        if not self.steps:
            raise UserError(f"{self.folder} has no checkpoint yet; wait for it, or resume the run")
        self.step = self.steps[-1] if step is None else step
        if self.step not in self.steps:
            saved = ", ".join(f"{each:,}" for each in self.steps)
            raise UserError(f"{path}: no such checkpoint; the run has {saved}")
        self._vocab_arrays = VocabArrays.from_tokenizer(self.corpora[0].tokenizer())
        self._removed: np.ndarray | None = None
        if data.without:
            self._removed = read_document_list(self.folder / run_folder.WITHOUT, self.corpora)

    def read(self, passages: Sequence[tuple[int, int]]) -> list[list[Reading]]:
        """Returns all readings of each passage, in the order of the updates.

        Args:
          passages: tokens [begin, end), counted over all corpora, each of one document.
        """
        readings: list[list[Reading]] = [[] for _ in passages]
        for phase in self._phases():
            for index, reading in phase.readings(passages):
                readings[index].append(reading)
        return [
            sorted(each, key=lambda reading: (reading.update, reading.row)) for each in readings
        ]

    def first_update(self, passages: Sequence[tuple[int, int]]) -> int | None:
        """Returns the first update that reads a token of a passage, or None if there is none."""
        for phase in self._phases():
            if (update := phase.first_update(passages)) is not None:
                return update
        return None

    def _phases(self) -> Iterator["_PhaseHistory"]:
        first = 0
        for index, phase in enumerate(self.experiment.train.phases):
            updates = min(phase.steps, self.step - first)
            if updates > 0:
                yield _PhaseHistory(
                    self, index, phase, first, updates, self._vocab_arrays, self._removed
                )
            first += phase.steps


class _PhaseHistory:
    """Finds the readings of one phase."""

    def __init__(
        self,
        history: ReadingHistory,
        index: int,
        phase: Phase,
        num_updates_before: int,
        num_updates: int,
        vocab_arrays: VocabArrays,
        removed: np.ndarray | None,
    ) -> None:
        text, data = history.texts[index], data_of_phase(history.data, phase)
        self._corpora, self._first_tokens = history.corpora, history.first_tokens
        self._index, self._num_updates_before, self._data = index, num_updates_before, data
        self._seed = history.experiment.seed + index
        self._template, self._seq_length = vocab_arrays.template, phase.seq_length

        def builder(batch_size: int) -> BatchBuilder:
            return BatchBuilder(
                text,
                vocab_arrays,
                data,
                seq_length=phase.seq_length,
                batch_size=batch_size,
                max_predictions_per_seq=phase.max_predictions_per_seq,
                seed=self._seed,
                target_length=phase.target_length,
            )

        self._builder, self._row_builder = builder(phase.batch_size), builder(1)
        self._provenance = Provenance(
            text, data, vocab_arrays, phase.seq_length, phase.target_length
        )
        self._removed = None
        if removed is not None:
            self._removed = RemovedDocuments(text, removed)
        self._is_packed = isinstance(data.input_format, PackedSegments)
        self._batch_starts = np.arange(num_updates + 1) * phase.batch_size
        if self._is_packed:
            self._batch_starts = _packed_batch_starts(self._builder, num_updates)
        self._last_batch: tuple[int, Batch, PackingPlan] | None = None

    def first_update(self, passages: Sequence[tuple[int, int]]) -> int | None:
        """Returns the first update that reads a token of a passage, or None if there is none."""
        updates = [reading.update for _, reading in self.readings(passages)]
        return min(updates, default=None)

    def readings(self, passages: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Reading]]:
        """Yields (index of the passage, reading), for each epoch of each corpus."""
        dataset = self._builder.dataset
        num_examples = int(self._batch_starts[-1])
        for corpus in range(len(self._corpora)):
            begin, end = self._first_tokens[corpus : corpus + 2].tolist()
            in_corpus = [i for i, passage in enumerate(passages) if begin <= passage[0] < end]
            if not in_corpus:
                continue
            if isinstance(dataset, MixtureDataset):
                first, stop = dataset.first_example[corpus : corpus + 2].tolist()
                period = int(dataset.quotas.sum())
                num_draws = -(-num_examples // period) * int(dataset.quotas[corpus])
            else:
                first, stop, num_draws = 0, dataset.num_examples, num_examples
            for epoch in range(-(-num_draws // (stop - first))):
                yield from self._epoch(corpus, epoch, first, passages, in_corpus)

    def _epoch(
        self,
        corpus: int,
        epoch: int,
        first_example: int,
        passages: Sequence[tuple[int, int]],
        in_corpus: Sequence[int],
    ) -> Iterator[tuple[int, Reading]]:
        dataset = self._builder.dataset
        own = dataset.datasets[corpus] if isinstance(dataset, MixtureDataset) else dataset
        offset = int(self._first_tokens[corpus])

        def draws_of(examples: np.ndarray) -> np.ndarray:
            return find_draws(dataset, first_example + examples, corpus, epoch, self._seed)

        random_texts = None
        if isinstance(own, SentencePairDataset):
            start = self._builder.resolve_examples(int(draws_of(np.array([0]))[0]), 1)
            all_examples = first_example + np.arange(own.num_examples)
            sentences = own.random_next_sentences(example_keys(start.epoch_keys, all_examples))
            # Sorted once, so that each passage needs a binary search and no scan of all examples.
            order = np.argsort(sentences, kind="stable")
            random_texts = own, order, sentences[order]
        examples_near = []
        for index in in_corpus:
            begin, end = passages[index][0] - offset, passages[index][1] - offset
            examples = own.windows_near(begin, end)
            if random_texts is not None:
                pairs, order, sentences = random_texts
                near = np.searchsorted(sentences, pairs.sentences_near(begin, end))
                examples = np.union1d(examples, order[near[0] : near[1]])
            examples_near.append(examples)
        # All at once: an array of a few draws takes as long as one of a thousand.
        all_draws = draws_of(np.concatenate(examples_near))
        bounds = np.cumsum([len(examples) for examples in examples_near])[:-1]
        for index, draws in zip(in_corpus, np.split(all_draws, bounds), strict=True):
            for draw in draws[draws < self._batch_starts[-1]].tolist():
                reading = self._reading(draw, epoch, *passages[index])
                if reading is not None:
                    yield index, reading

    def _reading(self, draw: int, epoch: int, begin: int, end: int) -> Reading | None:
        """Returns the reading of a passage by the global example `draw`, or None."""
        refs = self._builder.resolve_examples(draw, 1)
        (example,) = zip(*(column.tolist() for column in refs), strict=True)
        content = self._provenance.content(example)
        positions = positions_in(content)
        if not ((positions >= begin) & (positions < end)).any():
            return None
        if self._removed is not None and self._removed.contain(positions):
            return None
        batch = int(np.searchsorted(self._batch_starts, draw, side="right")) - 1
        row, predicted = draw - int(self._batch_starts[batch]), None
        if self._is_packed:
            fields, plan = self._batch(batch)
            start, row = int(plan.offsets[row, 0]), int(plan.rows[row])
            row_in_fields = row
        else:
            fields, start, row_in_fields = self._row_builder.build_batch(draw)[0], 0, 0
        if "masked_lm_positions" in fields:
            is_used = fields["masked_lm_weights"][row_in_fields] > 0
            layout = self._layout(content, start)
            chosen = layout[fields["masked_lm_positions"][row_in_fields][is_used]]
            predicted = _within(chosen, begin, end)
        return Reading(
            update=self._num_updates_before + batch + 1,
            phase=self._index,
            epoch=epoch,
            row=row,
            tokens=_within(positions, begin, end),
            predicted=predicted,
        )

    def _layout(self, content: Content, start: int) -> np.ndarray:
        """Returns the position in the corpus of each token of a sequence, [L] int64; -1: none."""
        row = np.full(self._seq_length, NO_TOKEN, np.int64)
        match content:
            case SentencePair(a=first, b=second):
                self._template.write_inputs(row[start:], NO_TOKEN, NO_TOKEN, first, second)
            case TextWindow(ids=first) | first:
                self._template.write_inputs(row[start:], NO_TOKEN, NO_TOKEN, first)
        return row

    def _batch(self, batch: int) -> tuple[Batch, PackingPlan]:
        if self._last_batch is None or self._last_batch[0] != batch:
            start = int(self._batch_starts[batch])
            plan = self._builder.plan_batch(start)[1]
            self._last_batch = (batch, self._builder.build_batch(start)[0], plan)
        return self._last_batch[1:]


def _packed_batch_starts(builder: BatchBuilder, num_updates: int) -> np.ndarray:
    """Returns the first example of each batch, [U + 1]; a packed batch holds as many as fit."""
    starts = [0]
    for _ in range(num_updates):
        starts.append(starts[-1] + len(builder.plan_batch(starts[-1])[1].rows))
    return np.array(starts)


def _within(positions: Iterable[int] | np.ndarray, begin: int, end: int) -> tuple[int, ...]:
    found = np.asarray(positions)
    return tuple(np.unique(found[(found >= begin) & (found < end)] - begin).tolist())
