"""Converts masked sentence pairs of seqio tasks to padded batch fields (bert_jax/batch.py)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import seqio
import tensorflow as tf

from bert_jax.data.seqio.tf_numpy import no_autograph

_INT_SEQUENCE = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class MaskedPairFeatureConverter(seqio.FeatureConverter):
    """Pads masked sentence pairs and adds `attention_mask` and `masked_lm_weights`.

    Lengths are given as {"input_ids": L, "masked_lm_positions": P}. Every selected position has
    weight 1, whether its token is [MASK], a random token or the original one. (seqio's own
    EncoderFeatureConverter gives weight only to positions with [MASK].)
    """

    TASK_FEATURES: Mapping[str, Any] = {
        "input_ids": _INT_SEQUENCE,
        "masked_lm_positions": _INT_SEQUENCE,
    }
    MODEL_FEATURES: Mapping[str, Any] = {
        "input_ids": _INT_SEQUENCE,
        "token_type_ids": _INT_SEQUENCE,
        "attention_mask": _INT_SEQUENCE,
        "masked_lm_positions": _INT_SEQUENCE,
        "masked_lm_ids": _INT_SEQUENCE,
        "masked_lm_weights": seqio.FeatureConverter.FeatureSpec(dtype=tf.float32),
        "next_sentence_labels": seqio.FeatureConverter.FeatureSpec(dtype=tf.int32, rank=0),
    }
    PACKING_FEATURE_DTYPES: ClassVar[Any] = None

    def __init__(self, *, pad_id: int = 0):
        super().__init__(pack=False)
        self._pad_id = pad_id

    def _convert_features(
        self, ds: "tf.data.Dataset[Any]", task_feature_lengths: Mapping[str, int]
    ) -> "tf.data.Dataset[Any]":
        seq_length = task_feature_lengths["input_ids"]
        max_predictions_per_seq = task_feature_lengths["masked_lm_positions"]

        @no_autograph
        def convert(pair: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            attention_mask = tf.ones_like(pair["input_ids"])
            weights = tf.ones_like(pair["masked_lm_ids"], tf.float32)
            return {
                "input_ids": _pad(pair["input_ids"], seq_length, self._pad_id),
                "token_type_ids": _pad(pair["token_type_ids"], seq_length),
                "attention_mask": _pad(attention_mask, seq_length),
                "masked_lm_positions": _pad(pair["masked_lm_positions"], max_predictions_per_seq),
                "masked_lm_ids": _pad(pair["masked_lm_ids"], max_predictions_per_seq),
                "masked_lm_weights": _pad(weights, max_predictions_per_seq),
                "next_sentence_labels": pair["next_sentence_labels"],
            }

        return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

    def get_model_feature_lengths(
        self, task_feature_lengths: Mapping[str, int]
    ) -> Mapping[str, int]:
        seq_length = task_feature_lengths["input_ids"]
        max_predictions_per_seq = task_feature_lengths["masked_lm_positions"]
        return {
            "input_ids": seq_length,
            "token_type_ids": seq_length,
            "attention_mask": seq_length,
            "masked_lm_positions": max_predictions_per_seq,
            "masked_lm_ids": max_predictions_per_seq,
            "masked_lm_weights": max_predictions_per_seq,
            "next_sentence_labels": 1,
        }


def _pad(sequence: tf.Tensor, length: int, value: int = 0) -> tf.Tensor:
    paddings = tf.stack([0, length - tf.shape(sequence)[0]])
    padded = tf.pad(sequence, paddings[None, :], constant_values=value)
    # TensorFlow cannot infer the length after a pad of dynamic size, and batches need static
    # shapes.
    padded.set_shape([length])
    return padded
