"""Builds the batch at a position, which depends only on corpus, config, seed and position.

Global example i (0, 1, 2, ... without end) is example `permute(i mod E)` of epoch i div E, where E
is the number of examples in an epoch. With several corpora, i selects a corpus, and the count of
examples drawn from that corpus before replaces i (mixture.py). A batch consists of
consecutive global examples from its position on: one for each sequence of the batch, or, if packed,
as many as fit. Each process builds a contiguous slice of the sequences.
"""

from typing import Any, NamedTuple

import numpy as np

from bert_jax.batch import (
    CAUSAL_FIELDS,
    DECODER_TARGET_FIELDS,
    DIFFUSION_FIELDS,
    ENCODER_FIELDS,
    MASKED_LM_FIELDS,
    NEXT_SENTENCE_FIELDS,
    PACKED_FIELDS,
    SAMPLING_FIELDS,
    SENTENCE_ORDER_FIELDS,
    SPAN_BOUNDARY_FIELDS,
)
from bert_jax.config.data import (
    Denoising,
    DiffusionMasking,
    MaskingConfig,
    PackedSegments,
    PairFormat,
    PretrainingData,
    SentenceOrderPairs,
    SentencePairs,
    SpanMasking,
)
from bert_jax.data.corpus.reader import PreparedCorpus
from bert_jax.data.pretraining.causal_rows import add_causal_rows, is_causal_row
from bert_jax.data.pretraining.dataset import SingleSegmentDataset, sample_token_ids
from bert_jax.data.pretraining.denoising import DENOISING_FIELDS, Denoiser
from bert_jax.data.pretraining.diffusion_masking import mask_for_diffusion, masking_rates
from bert_jax.data.pretraining.masking import mask_tokens
from bert_jax.data.pretraining.mixture import (
    MixedCorpora,
    MixtureDataset,
    locate_examples,
    make_training_dataset,
    sample_mixture_ids,
)
from bert_jax.data.pretraining.provenance import (
    Provenance,
    RemovedDocuments,
    clear_example,
    positions_in,
)
from bert_jax.data.pretraining.rng import example_keys
from bert_jax.data.pretraining.sentence_pairs import collate_pairs, collate_single_segments
from bert_jax.data.pretraining.vocab_arrays import VocabArrays
from bert_jax.data.pretraining.windows import PackingPlan, collate_packed_segments, pack
from bert_jax.errors import ConfigError

Batch = dict[str, np.ndarray]


class ExampleRefs(NamedTuple):
    """Refers to global examples, [n] each.

    Attributes:
      example_indices: the index within the epoch.
      document_indices: the document.
      keys, epoch_keys: uint64, the random keys of the example and of its epoch.
    """

    example_indices: np.ndarray
    document_indices: np.ndarray
    keys: np.ndarray
    epoch_keys: np.ndarray


def batch_fields(config: PretrainingData) -> tuple[str, ...]:
    """Returns the names of the fields that the batches of a config have, as in batch.py."""
    if isinstance(config.masking, Denoising):
        return DENOISING_FIELDS
    field_names = ENCODER_FIELDS
    if isinstance(config.input_format, PackedSegments):
        field_names += PACKED_FIELDS
    if config.masking is not None:
        field_names += MASKED_LM_FIELDS + SAMPLING_FIELDS
    if isinstance(config.masking, SpanMasking):
        field_names += SPAN_BOUNDARY_FIELDS
    if isinstance(config.masking, DiffusionMasking):
        field_names += DIFFUSION_FIELDS
    if config.causal_fraction:
        field_names += CAUSAL_FIELDS
    if isinstance(config.input_format, SentencePairs):
        field_names += NEXT_SENTENCE_FIELDS
    if isinstance(config.input_format, SentenceOrderPairs):
        field_names += SENTENCE_ORDER_FIELDS
    return field_names


_MADE_BY = {
    **dict.fromkeys(MASKED_LM_FIELDS + SAMPLING_FIELDS, "data.masking other than None"),
    **dict.fromkeys(NEXT_SENTENCE_FIELDS, "data.input_format SentencePairs"),
    **dict.fromkeys(SENTENCE_ORDER_FIELDS, "data.input_format SentenceOrderPairs"),
    **dict.fromkeys(SPAN_BOUNDARY_FIELDS, "data.masking SpanMasking"),
    **dict.fromkeys(DIFFUSION_FIELDS, "data.masking DiffusionMasking"),
    **dict.fromkeys(DECODER_TARGET_FIELDS, "data.masking SpanCorruption or BartDenoising"),
    "token_type_ids": "data.masking for encoders, such as Masking",
}
"""What makes the fields that not every config has."""


def select_fields(config: PretrainingData, objective_fields: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the fields that an objective needs, and the fields of packed sequences.

    Raises:
      ConfigError: the input format and the masking do not make a field that the objective needs.
    """
    available_fields = batch_fields(config)
    for name in objective_fields:
        if name not in available_fields:
            raise ConfigError(
                f"the objective needs the batch field {name!r}, but data.input_format "
                f"{type(config.input_format).__name__} and data.masking "
                f"{type(config.masking).__name__} do not make it; expected {_MADE_BY[name]}"
            )
    # The model needs positions and packing ids whatever the objective is, or examples in one row
    # would attend to each other; and left-to-right rows would attend to what they predict.
    is_packed = isinstance(config.input_format, PackedSegments)
    causal_fields = CAUSAL_FIELDS if config.causal_fraction else ()
    return objective_fields + (PACKED_FIELDS if is_packed else ()) + causal_fields


# BERT's script walks through each document and writes all examples to files. Random access needs
# example i without those before it, so an example is a window whose position is a function of
# (seed, epoch, i). Splits and truncation are distributed as in the script. Two things differ: every
# example has a target length of its own, and a random B is drawn uniformly over the sentences
# (`dataset.py`). Tests compare mean lengths and labels with a slow reimplementation of the script.
class BatchBuilder:
    """Builds the batch that begins at a position. It has no state and can be pickled.

    Args:
      corpus: the prepared corpus, or several with their fractions.
      vocab_arrays: special tokens and word starts.
      config: how examples are made from the corpus.
      seq_length, batch_size, max_predictions_per_seq, target_length: L, the global B, P and T. P is
        for masked LM only, and is L with `DiffusionMasking`; T is for denoising only.
      seed: decides order, windows, pairs and masks, together with the position.
      process_index, process_count: which equal, contiguous part of each batch to build.
      removed: [D] bool, documents, numbered over all corpora of a mixture. An example with text of
        one of them is padding instead, and all other examples stay what they are.

    Raises:
      ConfigError: a size is out of range.
      UserError: the corpus has one document and the input format is sentence pairs.
    """

    def __init__(
        self,
        corpus: PreparedCorpus | MixedCorpora,
        vocab_arrays: VocabArrays,
        config: PretrainingData,
        *,
        seq_length: int,
        batch_size: int,
        max_predictions_per_seq: int,
        seed: int,
        target_length: int = 0,
        process_index: int = 0,
        process_count: int = 1,
        removed: np.ndarray | None = None,
    ) -> None:
        min_length = vocab_arrays.template.num_pair_special_tokens + 2
        if not min_length <= seq_length <= 1 << 16:
            raise ConfigError(f"seq_length is {seq_length}, expected {min_length} to {1 << 16}")
        self._denoiser = None
        if isinstance(config.masking, Denoising):
            self._denoiser = Denoiser(config.masking, seq_length, target_length, vocab_arrays)
        if not isinstance(config.masking, MaskingConfig):
            # Without masked LM there is no such limit; any valid number passes the check.
            max_predictions_per_seq = 1
        _check_sizes(seq_length, batch_size, max_predictions_per_seq, process_index, process_count)
        self.config = config
        self.batch_size = batch_size
        self.dataset = make_training_dataset(
            corpus, config, vocab_arrays, seq_length, target_length
        )
        self._removed: tuple[RemovedDocuments, Provenance] | None = None
        if removed is not None:
            provenance = Provenance(corpus, config, vocab_arrays, seq_length, target_length)
            self._removed = RemovedDocuments(corpus, removed), provenance
        self.vocab_arrays = vocab_arrays
        self.seq_length = seq_length
        self.max_predictions_per_seq = max_predictions_per_seq
        self._seed = seed
        # BERT draws random tokens uniformly from the vocabulary. SpanBERT draws them by their
        # frequency in the corpus.
        self._replacement_ids = vocab_arrays.maskable_ids
        if isinstance(config.masking, SpanMasking):
            self._replacement_ids = (
                sample_mixture_ids(corpus, vocab_arrays)
                if isinstance(corpus, MixedCorpora)
                else sample_token_ids(corpus, vocab_arrays)
            )
        rows_per_process = batch_size // process_count
        self._process_rows = (
            process_index * rows_per_process,
            (process_index + 1) * rows_per_process,
        )

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of examples in an epoch, E; of several corpora, their sum."""
        return self.dataset.num_examples

    def resolve_examples(self, position: int, num_examples: int) -> ExampleRefs:
        """Finds the global examples [position, position + num_examples)."""
        example_indices, epoch_keys = locate_examples(
            self.dataset,
            np.arange(position, position + num_examples),
            self._seed,
            self.config.masking_schedule,
        )
        document_indices = self.dataset.find_documents(example_indices)
        keys = example_keys(epoch_keys, example_indices)
        return ExampleRefs(example_indices, document_indices, keys, epoch_keys)

    def plan_batch(self, position: int) -> tuple[ExampleRefs, PackingPlan]:
        """Returns the global examples of the batch at a position, and the row of each."""
        dataset = self.dataset
        if not (
            isinstance(dataset, SingleSegmentDataset | MixtureDataset)
            and isinstance(self.config.input_format, PackedSegments)
        ):
            rows = np.arange(self.batch_size)
            return self.resolve_examples(position, self.batch_size), PackingPlan(
                rows, np.zeros((self.batch_size, 1), np.int64)
            )
        num_examples = self.batch_size
        while True:
            refs = self.resolve_examples(position, num_examples)
            lengths = dataset.seq_lengths(refs.document_indices)
            if lengths.sum() > self.batch_size * self.seq_length:
                break
            # How many examples fit is unknown before their lengths are. Only index arrays are read
            # here, so looking up too many is cheap.
            num_examples *= 2
        packing_plan = pack(lengths[:, None], self.batch_size, (self.seq_length,))
        return ExampleRefs(*(column[: len(packing_plan.rows)] for column in refs)), packing_plan

    def build_batch(self, position: int) -> tuple[Batch, int]:
        """Builds this process's rows of the batch at a position; returns them and the next one."""
        refs, packing_plan = self.plan_batch(position)
        begin, end = self._process_rows
        # Every process plans the whole batch, which needs no text, and reads the text of its own
        # rows only. So processes need not communicate.
        on_this_process = (packing_plan.rows >= begin) & (packing_plan.rows < end)
        fields = self._build_fields(
            ExampleRefs(*(column[on_this_process] for column in refs)),
            PackingPlan(
                packing_plan.rows[on_this_process] - begin, packing_plan.offsets[on_this_process]
            ),
            position + np.flatnonzero(on_this_process),
            position + np.arange(begin, end),
        )
        return fields, position + len(packing_plan.rows)

    def _build_fields(
        self,
        refs: ExampleRefs,
        packing_plan: PackingPlan,
        global_indices: np.ndarray,
        global_rows: np.ndarray,
    ) -> Batch:
        examples = list(zip(*(column.tolist() for column in refs), strict=True))
        example_contents: Any = [self.dataset.read(*example) for example in examples]
        fields = self._collate_and_mask(
            example_contents, refs, packing_plan, global_indices, global_rows
        )
        if self._removed is not None:
            removed, provenance = self._removed
            is_packed = isinstance(self.config.input_format, PackedSegments)
            specials = self.vocab_arrays.template.num_single_special_tokens
            for index, example in enumerate(examples):
                if removed.contain(positions_in(provenance.content(example))):
                    begin, end = int(packing_plan.offsets[index, 0]), self.seq_length
                    if is_packed:
                        end = begin + len(example_contents[index]) + specials
                    row = int(packing_plan.rows[index])
                    clear_example(fields, row, begin, end, self.vocab_arrays)
        return fields

    def _collate_and_mask(
        self,
        example_contents: Any,
        refs: ExampleRefs,
        packing_plan: PackingPlan,
        global_indices: np.ndarray,
        global_rows: np.ndarray,
    ) -> Batch:
        if self._denoiser is not None:
            return self._denoiser.build_fields(example_contents, refs.keys)
        token_keys = refs.keys
        if isinstance(self.config.input_format, PackedSegments):
            shape = (self._process_rows[1] - self._process_rows[0], self.seq_length)
            fields, token_keys = collate_packed_segments(
                example_contents, refs.keys, packing_plan, shape, self.vocab_arrays
            )
        elif isinstance(self.config.input_format, PairFormat):
            (label_field,) = (
                NEXT_SENTENCE_FIELDS
                if isinstance(self.config.input_format, SentencePairs)
                else SENTENCE_ORDER_FIELDS
            )
            fields = collate_pairs(
                example_contents, self.seq_length, self.vocab_arrays, label_field
            )
        else:
            fields = collate_single_segments(example_contents, self.seq_length, self.vocab_arrays)
        unmasked_ids = fields["input_ids"]
        if isinstance(self.config.masking, DiffusionMasking):
            rates = masking_rates(self.config.masking, self._seed, global_indices)
            if "position_ids" in fields:
                rates = _spread_over_rows(rates, packing_plan, fields["input_ids"].shape)
            fields |= mask_for_diffusion(
                fields["input_ids"],
                fields["attention_mask"],
                token_keys,
                rates,
                self.vocab_arrays,
                fields.get("position_ids"),
            )
        elif isinstance(self.config.masking, MaskingConfig):
            fields |= mask_tokens(
                fields["input_ids"],
                fields["attention_mask"],
                token_keys,
                self.config.masking,
                self.max_predictions_per_seq,
                self.vocab_arrays,
                fields.get("position_ids"),
                self._replacement_ids,
            )
        if fraction := self.config.causal_fraction:
            is_causal = is_causal_row(fraction, self._seed, global_rows)
            fields = add_causal_rows(fields, unmasked_ids, token_keys, is_causal)
        return fields


def _spread_over_rows(
    values: np.ndarray, packing_plan: PackingPlan, shape: tuple[int, ...]
) -> np.ndarray:
    """Returns the value of the example of each token, [B, L], for values of examples [n]."""
    values_BL, offsets = np.zeros(shape, values.dtype), packing_plan.offsets[:, 0]
    # From left to right: each example writes to the end of its row, and the next one over it.
    for example in np.argsort(offsets, kind="stable").tolist():
        values_BL[packing_plan.rows[example], offsets[example] :] = values[example]
    return values_BL


def _check_sizes(
    seq_length: int,
    batch_size: int,
    max_predictions_per_seq: int,
    process_index: int,
    process_count: int,
) -> None:
    if not 1 <= max_predictions_per_seq <= seq_length:
        raise ConfigError(
            f"max_predictions_per_seq is {max_predictions_per_seq}, expected 1 to seq_length "
            f"{seq_length}"
        )
    if batch_size < 1 or batch_size % process_count:
        raise ConfigError(
            f"batch_size is {batch_size}, expected a multiple of {process_count}, the number of "
            "processes"
        )
    if not 0 <= process_index < process_count:
        raise ConfigError(f"process_index is {process_index}, expected 0 to {process_count - 1}")
