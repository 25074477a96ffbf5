"""Defines the kind "question_answering": the span of a context that answers a question (SQuAD)."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.batch import SPAN_FIELDS
from bert_jax.data.finetuning.example import QuestionExample, Task
from bert_jax.data.finetuning.features import (
    Features,
    all_labeled,
    build_inputs_with_special_tokens,
    max_context,
    window_starts,
)
from bert_jax.errors import ConfigError, UserError
from bert_jax.losses import Batch, WeightedMean, cross_entropy, is_correct, weighted_mean
from bert_jax.models.heads.config import QuestionAnsweringHead, TaskHead
from bert_jax.tasks.base import (
    UNLABELED,
    FeatureOptions,
    Json,
    KindDescription,
    ModelInput,
    Resampling,
    ScoredExamples,
    SequenceOutputs,
    TaskKind,
    as_dicts,
    excerpt,
)
from bert_jax.tasks.hugging_face import describe_labels, read_labels
from bert_jax.tasks.losses import HeadOutputs, HeadSpec, Metrics
from bert_jax.tasks.metrics import squad_metrics
from bert_jax.tasks.metrics.squad_decoding import (
    Candidate,
    ContextWindow,
    PredictedAnswer,
    decode_answers,
)
from bert_jax.text.tokenizer import Encoding, Tokenizer

AnswerTexts = list[list[str]]

MAX_QUERY_LENGTH = 64
"""Limit for the tokens of a question; longer ones are truncated, as in BERT's `run_squad.py`."""
_MIN_CONTEXT_LENGTH = 8


def span_loss(
    outputs: HeadOutputs, batch: Batch, class_weights: Sequence[float], label_smoothing: float
) -> tuple[WeightedMean, Metrics]:
    """Computes the mean of the cross-entropies of start and end over all positions.

    `accuracy` is the fraction of examples with both positions right.
    """
    weights = batch["example_weights"]
    start_logits_BL, end_logits_BL = outputs["start_logits"], outputs["end_logits"]
    start_positions, end_positions = batch["start_positions"], batch["end_positions"]
    start_losses = cross_entropy(start_logits_BL, start_positions)
    losses = start_losses + cross_entropy(end_logits_BL, end_positions)
    start_correct = is_correct(start_logits_BL, start_positions)
    end_correct = is_correct(end_logits_BL, end_positions)
    loss = weighted_mean(losses / 2, weights)
    metrics = {
        "loss": loss,
        "accuracy": weighted_mean(start_correct & end_correct, weights),
        "start_accuracy": weighted_mean(start_correct, weights),
        "end_accuracy": weighted_mean(end_correct, weights),
    }
    return loss, metrics


class QuestionAnswering(TaskKind[QuestionExample, AnswerTexts, list[PredictedAnswer]]):
    """Predicts an answer; references are the right answer texts, none for an impossible one."""

    name = "question_answering"
    head_type = QuestionAnsweringHead
    spec = HeadSpec(
        label_fields=SPAN_FIELDS,
        output_names=("start_logits", "end_logits"),
        features_field="encoder_features",
        loss_reads_padding=True,  # the softmax is over all positions, as in BERT's run_squad.py
        make_outputs=lambda logits, batch: {
            "start_logits": logits[..., 0],
            "end_logits": logits[..., 1],
        },
        compute_loss=span_loss,
    )
    hugging_face_class = "ForQuestionAnswering"
    peft_task_type = "QUESTION_ANS"
    peft_saved_modules = ("qa_outputs",)
    description = KindDescription(
        expected_input="a question and a context",
        text_names=("question", "context"),
        error_loss="lost F1 × probability",
        pipeline_tag="question-answering",
        head_output="where the answer to a question starts and ends in its context",
        result="answers with their positions",
        example_arguments='"A question?" "Its context."',
    )
    default_seq_length = 384
    sequence_fields: ClassVar[Mapping[str, str]] = {
        "input_ids": "L",
        "token_type_ids": "L",
        "start_positions": "",
        "end_positions": "",
    }
    metric_maximum = 100.0  # the SQuAD scripts give percentages
    reads_windows = True
    num_texts = 2
    table_columns: ClassVar[Mapping[str, str | None]] = {
        "question": "question",
        "context": "context",
        "id": None,
    }
    empty_prediction: ClassVar[Mapping[str, Any]] = dict.fromkeys(
        ("answer", "start", "end", "score", "probability", "no_answer_score")
    )

    def head_from_hugging_face(self, data: Mapping[str, Any], source: str) -> QuestionAnsweringHead:
        """Returns the head if the file has two labels, for start and end."""
        if len(read_labels(data, source)) != 2:
            raise UserError(
                f"{source}: {describe_labels(data)}, but the architecture is question answering; "
                "expected 2, for start and end"
            )
        return QuestionAnsweringHead()

    def make_features(
        self,
        examples: Sequence[QuestionExample],
        labels: Sequence[str],
        tokenizer: Tokenizer,
        options: FeatureOptions,
    ) -> Features:
        """Tokenizes each question as a pair with every window of its context.

        Raises:
          ConfigError: `max_length` leaves too few tokens for the context after a question.
        """
        max_length = options.max_length
        questions = tokenizer.encode_ids([example.question for example in examples])
        # Contexts repeat in SQuAD: each is tokenized once.
        contexts = list(dict.fromkeys(example.context for example in examples))
        encoded = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
        features, example_indices = Features(), []
        start_positions: list[int] = []
        end_positions: list[int] = []
        for example_index, (example, question) in enumerate(zip(examples, questions, strict=True)):
            question = question[:MAX_QUERY_LENGTH]
            window_length = max_length - len(question) - tokenizer.template.num_pair_special_tokens
            if window_length < _MIN_CONTEXT_LENGTH:
                raise ConfigError(
                    f"sequences of {max_length} tokens have room for {max(window_length, 0)} "
                    f"tokens of context after the question {example.id!r} of {len(question)}; "
                    f"expected at least {_MIN_CONTEXT_LENGTH}: increase --max-length"
                )
            context = encoded[example.context]
            starts = window_starts(
                len(context.ids), window_length, min(options.window_overlap, window_length // 2)
            )
            max_context_masks = max_context(len(context.ids), window_length, starts)
            for start, is_max_context in zip(starts, max_context_masks, strict=True):
                window = slice(start, start + window_length)
                _add_window(features, question, context, window, is_max_context, tokenizer)
                example_indices.append(example_index)
                begin, end = _answer_positions(example, features.offsets[-1])
                start_positions.append(begin)
                end_positions.append(end)
        features.example_index = np.array(example_indices, np.int64)
        if all_labeled(examples):
            features.targets = {"start_positions": start_positions, "end_positions": end_positions}
        return features

    def get_references(
        self, examples: Sequence[QuestionExample], labels: Sequence[str]
    ) -> AnswerTexts:
        """Returns the texts of the right answers to each question."""
        return [[answer.text for answer in example.answers] for example in examples]

    def allows_no_answer(self, task: Task) -> bool:
        """Returns whether some question of the task has no answer, as in SQuAD 2.0."""
        return any(
            isinstance(example, QuestionExample) and example.is_impossible
            for examples in task.splits.values()
            for example in examples
        )

    # BigBird's code lowers the logits of question tokens by 1e6. That is not needed: only the
    # context is decoded.
    def decode(
        self,
        examples: Sequence[QuestionExample],
        features: Features,
        outputs: SequenceOutputs,
        head: TaskHead,
        *,
        allow_no_answer: bool = False,
    ) -> list[PredictedAnswer]:
        """Returns the best answer to each question; see `decode_answers`."""
        windows = [
            ContextWindow(
                example_index=int(example_index), offsets=offsets, is_max_context=is_max_context
            )
            for example_index, offsets, is_max_context in zip(
                features.example_index, features.offsets, features.is_max_context, strict=True
            )
        ]
        return decode_answers(
            [example.context for example in examples],
            windows,
            outputs["start_logits"],
            outputs["end_logits"],
            allow_no_answer=allow_no_answer,
        )

    def compute_metrics(
        self,
        references: AnswerTexts,
        predictions: list[PredictedAnswer],
        labels: Sequence[str],
    ) -> dict[str, float]:
        """Computes the metrics of SQuAD 1.1, or of 2.0 if a question has no answer, in percent.

        "exact" of SQuAD 2.0 is given as "exact_match" too, so that both have the same main metrics.
        """
        texts = [answer.best.text for answer in predictions]
        if all(references):
            return squad_metrics.squad1_metrics(references, texts)
        metrics = squad_metrics.squad2_metrics(references, texts, _no_answer_scores(predictions))
        return {"exact_match": metrics["exact"], **metrics}

    def resampling(
        self, metric: str, references: AnswerTexts, predictions: list[PredictedAnswer]
    ) -> Resampling | None:
        """Returns the mean of exact match or F1 over questions; None for other metrics."""
        if metric not in ("exact_match", "f1"):
            return None
        scores = question_scores(references, predictions)
        values = 100 * (scores.f1 if metric == "f1" else scores.exact)
        return lambda resampled: float(np.mean(resampled)), (values,)

    def prediction_to_json(
        self, example: QuestionExample, prediction: PredictedAnswer, labels: Sequence[str]
    ) -> Json:
        """Returns the best candidate, which may be "no answer", and the score of "no answer"."""
        best = prediction.n_best[0]
        return {
            "answer": best.text,
            "start": best.start,
            "end": best.end,
            "score": best.score,
            "probability": best.probability,
            "no_answer_score": prediction.no_answer_score,
        }

    def analysis_tables(self, scored: ScoredExamples) -> Json:
        """Returns scores by question word."""
        questions = [example.question for example in scored.examples]
        scores = question_scores(scored.references, scored.predictions)
        table = squad_metrics.question_word_table(questions, scores)
        return {"by_question_word": as_dicts(table)}

    def error_losses(
        self, references: AnswerTexts, predictions: list[PredictedAnswer]
    ) -> np.ndarray:
        """Returns 1 - F1, times the probability of the answer: confident errors come first."""
        allow_no_answer = not all(references)
        confidence = np.array(
            [_chosen_answer(answer, allow_no_answer).probability for answer in predictions]
        )
        # 1 - F1 alone has many ties at 1, among which the confident errors say the most.
        return (1 - question_scores(references, predictions).f1) * confidence

    def error_to_json(self, scored: ScoredExamples, index: int) -> Json:
        """Describes a wrong answer, with the part of the context around the right one."""
        example, prediction = scored.examples[index], scored.predictions[index]
        predicted_answer = _chosen_answer(prediction, allow_no_answer=not all(scored.references))
        answer_starts = [answer.start for answer in example.answers]
        center = max(answer_starts[0] if answer_starts else predicted_answer.start, 0)
        reference_texts = dict.fromkeys(answer.text for answer in example.answers)
        return {
            "texts": {
                "question": excerpt(example.question),
                "context": excerpt(example.context, center),
            },
            "reference": excerpt(" / ".join(reference_texts)) or "no answer",
            "predicted": excerpt(predicted_answer.text) or "no answer",
            "probability": predicted_answer.probability,
        }

    def count_keys(self, example: QuestionExample) -> list[str]:
        """Returns whether the question has an answer."""
        if example.is_impossible:
            return ["no answer"]
        return ["answer" if example.answers else UNLABELED]

    def format_label(self, example: QuestionExample) -> str:
        """Formats the first answer."""
        if example.answers:
            return repr(example.answers[0].text)
        return "no answer" if example.is_impossible else UNLABELED

    def overlap_key(self, example: QuestionExample) -> Hashable:
        """Returns the context without case: other questions about it leak answers, too."""
        return example.context.strip().casefold()

    def parse_input(self, model_input: ModelInput, example_id: str) -> QuestionExample | None:
        """Converts a tuple (question, context) or a `QuestionExample`."""
        match model_input:
            case QuestionExample():
                return dataclasses.replace(model_input, answers=(), is_impossible=False)
            case [str() as question, str() as context]:
                return QuestionExample(id=example_id, question=question, context=context)
            case _:
                return None

    def input_texts(self, example: QuestionExample) -> Sequence[str]:
        """Returns the question and the context."""
        return [example.question, example.context]

    def input_to_json(self, model_input: Sequence[str]) -> Json:
        """Names the question and the context."""
        return {"question": model_input[0], "context": model_input[1]}


def question_scores(
    references: Sequence[squad_metrics.ReferenceAnswers],
    predictions: Sequence[PredictedAnswer],
    no_answer_threshold: float = 0.0,
) -> squad_metrics.AnswerScores:
    """Scores each question as SQuAD 2.0 if some question has no answer, else as SQuAD 1.1."""
    texts = [answer.best.text for answer in predictions]
    if all(references):
        return squad_metrics.squad1_scores(references, texts)
    return squad_metrics.apply_threshold(
        squad_metrics.squad2_scores(references, texts),
        np.array([bool(answers) for answers in references]),
        _no_answer_scores(predictions),
        no_answer_threshold,
    )


def _chosen_answer(answer: PredictedAnswer, allow_no_answer: bool) -> Candidate:
    """Returns the best candidate; "no answer" counts only if some question has no answer."""
    return answer.n_best[0] if allow_no_answer else answer.best


def _no_answer_scores(predictions: Sequence[PredictedAnswer]) -> np.ndarray:
    return np.array([answer.no_answer_score for answer in predictions], np.float64)


def _add_window(
    features: Features,
    question: np.ndarray,
    context: Encoding,
    window: slice,
    window_max_context: np.ndarray,
    tokenizer: Tokenizer,
) -> None:
    """Appends one sequence: a question and a window of its context."""
    ids = np.array(context.ids[window], np.int32)
    total_length = len(question) + len(ids) + tokenizer.template.num_pair_special_tokens
    input_ids, token_type_ids, _ = build_inputs_with_special_tokens(
        question, ids, tokenizer, total_length
    )
    offsets = np.full((len(input_ids), 2), -1, np.int32)
    is_max_context = np.zeros(len(input_ids), bool)
    context_start = tokenizer.template.second_start(len(question))
    context_tokens = slice(context_start, context_start + len(ids))
    if len(ids):
        offsets[context_tokens] = context.offsets[window]
        is_max_context[context_tokens] = window_max_context
    features.input_ids.append(input_ids)
    features.token_type_ids.append(token_type_ids)
    features.offsets.append(offsets)
    features.is_max_context.append(is_max_context)


def _answer_positions(example: QuestionExample, offsets: np.ndarray) -> tuple[int, int]:
    """Returns the first and last token of the first answer; 0, 0 ([CLS]) if not all is here."""
    if not example.answers:
        return 0, 0
    answer = example.answers[0]
    begin, end = answer.start, answer.start + len(answer.text)
    overlapping = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
    if not len(overlapping):
        return 0, 0
    first_token, last_token = int(overlapping[0]), int(overlapping[-1])
    # A window that starts or ends within the answer does not contain all of it.
    is_complete = offsets[first_token, 0] <= begin and offsets[last_token, 1] >= end
    return (first_token, last_token) if is_complete else (0, 0)
