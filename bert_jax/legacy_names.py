"""Translates the names in files that earlier versions saved into today's names.

Run folders, checkpoints, prepared corpora and metrics written before version 0.1.0 hold other class
names, field names and JSON keys. Every reader of such a file passes what it read through this
module, so the rest of the code knows today's names only. No value changes. One is added: the
direction of the best metric (`best_mode`), which earlier versions took from the metric's name.
"""

from collections.abc import Mapping
from typing import Any

CLASSES: dict[str, str] = {
    "Mesh": "MeshConfig",
    "Compute": "ComputeConfig",
    "SaveAll": "NoRemat",
    "RematLayer": "FullRemat",
    "RematAllButDots": "SaveDots",
    "PlainAttention": "XlaAttention",
    "FusedAttention": "PallasAttention",
    "Learned": "LearnedPositions",
    "RandomStart": "NormalInit",
    "SinusoidalStart": "SinusoidalInit",
    "SequenceHead": "SequenceClassificationHead",
    "TokenHead": "TokenClassificationHead",
    "SpanHead": "QuestionAnsweringHead",
    "ChoiceHead": "MultipleChoiceHead",
    "LeftToRight": "CausalLM",
    "RowsAlike": "UniformWeighting",
    "Uncertainty": "UncertaintyWeighting",
    "Tuning": "TuningConfig",
    "ReadEachStep": "ComputedFeatures",
    "ReadOnce": "CachedFeatures",
    "LoaderConfig": "PretrainingData",
    "Labelled": "FineTuningData",
    "LabelledMixture": "MultiTaskData",
    "Pairs": "SentencePairs",
    "Single": "SingleSegment",
    "Packed": "PackedSegments",
    "Dynamic": "DynamicMasking",
    "Static": "StaticMasking",
    "Equal": "EqualMixing",
    "Proportional": "ProportionalMixing",
    "Temperature": "TemperatureMixing",
    "Capped": "CappedMixing",
    "Train": "TrainConfig",
    "Checkpoints": "CheckpointConfig",
    "Logging": "LoggingConfig",
    "Evaluation": "HeldOutEval",
    "DevSplit": "LabeledEval",
}
"""Old class name of a config dataclass -> today's; both stand under "type" in saved configs."""

FIELDS: dict[str, dict[str, str]] = {
    "Experiment": {
        "program": "objective",
    },
    "MeshConfig": {
        "exchange": "communication_dtype",
    },
    "ComputeConfig": {
        "layers": "layer_loop",
    },
    "LearnedPositions": {
        "max_length": "max_position_embeddings",
        "start": "init",
    },
    "BertConfig": {
        "activation": "hidden_act",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    "FineTuning": {
        "dropout": "classifier_dropout",
    },
    "MultiTask": {
        "dropout": "classifier_dropout",
    },
    "UncertaintyWeighting": {
        "rate": "lr_multiplier",
    },
    "TuningConfig": {
        "layer_decay": "layerwise_lr_decay",
        "head_rate": "head_lr_multiplier",
        "fresh_layers": "reinit_layers",
        "anchor": "weight_anchor",
        "encoder": "features",
    },
    "L2SP": {
        "encoder": "encoder_strength",
        "head": "head_strength",
    },
    "PretrainingData": {
        "prepared": "corpus",
        "examples": "input_format",
        "draws": "masking_schedule",
        "workers": "num_workers",
    },
    "FineTuningData": {
        "vocabulary": "tokenizer",
        "buckets": "bucket_lengths",
        "stride": "window_overlap",
    },
    "MultiTaskData": {
        "vocabulary": "tokenizer",
        "buckets": "bucket_lengths",
        "stride": "window_overlap",
    },
    "SentencePairs": {
        "not_next_probability": "random_next_prob",
        "short_probability": "short_seq_prob",
    },
    "Masking": {
        "rate": "mlm_probability",
        "mask_share": "mask_replace_prob",
        "random_share": "random_replace_prob",
        "whole_word": "whole_word_mask",
    },
    "StaticMasking": {
        "duplicates": "dupe_factor",
    },
    "CappedMixing": {
        "examples": "max_examples",
    },
    "TextFiles": {
        "documents_by": "document_unit",
    },
    "Phase": {
        "length": "seq_length",
        "max_predictions": "max_predictions_per_seq",
        "accumulate": "gradient_accumulation_steps",
    },
    "WarmupLinear": {
        "peak": "peak_learning_rate",
    },
    "TrainConfig": {
        "clip_norm": "max_grad_norm",
    },
    "CheckpointConfig": {
        "every": "save_every",
        "keep_best": "best_metric",
        "patience": "early_stopping_patience",
    },
    "HeldOutEval": {
        "prepared": "corpus",
        "every": "eval_every",
        "examples": "num_examples",
    },
    "LabeledEval": {
        "every": "eval_every",
    },
    "LoggingConfig": {
        "every": "log_every",
    },
}
"""Class name of today -> (old field name -> today's)."""

RECIPE_ARGUMENTS: dict[str, str] = {
    "prepared": "corpus",
    "layout": "parallelism",
    "length": "seq_length",
    "accumulate": "gradient_accumulation_steps",
    "accumulate_long": "gradient_accumulation_steps_long",
    "capped": "max_examples",
}
"""Old name of an argument of the shipped recipes -> today's."""

MANIFEST = {"vocabulary_fingerprint": "tokenizer_fingerprint", "vocabulary_size": "vocab_size"}
SHARD = {"file": "records_file", "index": "index_file", "sha256": "records_sha256"}
METRICS = {"kind": "split", "padding_share": "padding_fraction"}
BEST_EVALUATION = {"worse": "evals_since_best"}
ANALYSIS = {
    "headline": "metrics_with_intervals",
    "worst": "top_errors",
    "confusions": "confusion_matrix",
    "pairs": "reference_vs_predicted",
    "question_words": "by_question_word",
    "train_rows": "train_sequences",
}
ERROR_EXAMPLE = {"gold": "reference"}
MIXTURE = {"rows": "num_sequences", "drawn_in_an_epoch": "drawn_per_epoch"}
TASK_KINDS = {"tagging": "token_classification"}


def rename_keys(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns `data` with the keys of its top level renamed by `names`, in the same order."""
    return {names.get(key, key): value for key, value in data.items()}


def upgrade_config(data: Any) -> Any:
    """Returns the JSON of a saved config with today's class and field names, at every depth.

    Configs are recognized by their "type" key, which `config_lib.to_json` writes into each of them;
    everything else is returned as it is.
    """
    if isinstance(data, list):
        return [upgrade_config(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    new: dict[str, Any] = {key: upgrade_config(value) for key, value in data.items()}
    saved_name: Any = new.get("type")
    if isinstance(saved_name, str):
        name = CLASSES.get(saved_name, saved_name)
        new = rename_keys({**new, "type": name}, FIELDS.get(name, {}))
        if name == "CheckpointConfig" and "best_mode" not in new:
            new["best_mode"] = _best_mode(new.get("best_metric"))
    return new


def _best_mode(best_metric: str | None) -> str | None:
    """Returns the direction of a saved `best_metric`, which earlier versions took from its name."""
    if best_metric is None:
        return None
    return "min" if any(word in best_metric for word in ("loss", "error", "mse")) else "max"


def upgrade_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `info` of a checkpoint with the current names of config, metrics, best step."""
    new = dict(info)
    if "config" in new:
        new["config"] = upgrade_config(new["config"])
    if "metrics" in new:
        new["metrics"] = rename_keys(new["metrics"] or {}, METRICS)
    if "best" in new:
        new["best"] = rename_keys(new["best"] or {}, BEST_EVALUATION)
    return new


def upgrade_analysis(analysis: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of an `analysis.json` with today's keys.

    It holds one task, or several under "tasks", each with its splits under "splits".
    """
    new = rename_keys(analysis, ANALYSIS)
    if "kind" in new:
        new["kind"] = TASK_KINDS.get(new["kind"], new["kind"])
    for group in ("tasks", "splits"):
        if group in new:
            new[group] = {name: upgrade_analysis(part) for name, part in new[group].items()}
    if "top_errors" in new:
        new["top_errors"] = [rename_keys(error, ERROR_EXAMPLE) for error in new["top_errors"]]
    if "mixture" in new:
        new["mixture"] = [rename_keys(task, MIXTURE) for task in new["mixture"]]
    return new
