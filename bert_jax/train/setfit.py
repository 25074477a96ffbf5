"""Trains a classifier from few examples: contrastive tuning, then logistic regression (SetFit).

The encoder is trained with the cosine-similarity loss on pairs of the training examples (Tunstall
et al. 2022), by an ordinary run that resumes after a stop. The head is then fitted to its vectors.

<run folder>/setfit_head.safetensors, setfit_head.json   the head
             evaluation.json                             metrics of every split except "train"

Defaults are as in setfit 1.2. Unlike there, a batch that is not full is left out.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from bert_jax.config.embedding_losses import CosineSimilarityLoss
from bert_jax.config.experiment import Experiment
from bert_jax.config.sentence_embeddings import ContrastivePairs
from bert_jax.data.finetuning.example import is_labeled
from bert_jax.data.finetuning.readers.load_task import load_task
from bert_jax.data.sentence_embeddings.loader import joined_text
from bert_jax.data.sentence_embeddings.text_groups import read_text_groups
from bert_jax.io.atomic_io import write_json
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.setfit import SetFitClassifier
from bert_jax.pretrained.embedding_model import load_sentence_model
from bert_jax.pretrained.load import LoadedSetFit, load_encoder
from bert_jax.pretrained.setfit import SetFitHead
from bert_jax.runs import run_folder
from bert_jax.runs.messages import format_metrics
from bert_jax.tasks.features import text_examples
from bert_jax.tasks.metrics.text_baselines import fit_logistic_regression
from bert_jax.train.preemption import EXIT_DONE
from bert_jax.train.presets import sentence_embedding_experiment
from bert_jax.train.run import run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SetFitConfig:
    """Configures SetFit.

    Attributes:
      pairs: the task and how pairs of its training examples are sampled.
      model: a folder of sentence-transformers, or any other model, whose mean vectors are tuned.
      max_length: maximum number of tokens of a text.
    """

    pairs: ContrastivePairs
    model: str
    epochs: float = 1.0
    batch_size: int = 16
    learning_rate: float = 2e-5
    max_length: int | None = None
    seed: int = 0


# A run of a sentence encoder with other data, so that it resumes, logs and loads like any. Pairs
# are computed from their numbers with the counts of setfit 1.2; a batch that is not full is left
# out. The head is a safetensors file: setfit's own pickle runs code when it is loaded.
def setfit_experiment(config: SetFitConfig) -> Experiment:
    """Makes the experiment of the contrastive tuning.

    Raises:
      UserError: the task or the model cannot be read, or the task has only one class.
    """
    num_pairs = len(read_text_groups(config.pairs).texts)
    return sentence_embedding_experiment(
        config.pairs,
        config.model,
        CosineSimilarityLoss(),
        sentence_encoder=load_sentence_model(config.model).config,
        epochs=config.epochs,
        batch_size=min(config.batch_size, num_pairs),
        learning_rate=config.learning_rate,
        max_length=config.max_length,
        seed=config.seed,
    )


def train_setfit(config: SetFitConfig, folder: Path) -> int:
    """Trains encoder and head in a run folder; returns the exit code of the run.

    A call with the same arguments resumes what was stopped.
    """
    task = load_task(config.pairs.task)
    for note in task.notes:
        logger.info("note: %s", note)
    logger.info("step 1 of 2: contrastive tuning of the encoder, without evaluation")
    exit_code = run(setfit_experiment(config), folder)
    if exit_code != EXIT_DONE:
        return exit_code
    train = text_examples(task, "train")
    logger.info("step 2 of 2: logistic regression on the vectors of %d texts", len(train))
    encoder = load_encoder(folder)
    vectors = Embedder(encoder)([joined_text(each) for each in train])
    labels = [str(example.label) for example in train]
    weight, bias = fit_logistic_regression(vectors, labels, task.labels)
    head = SetFitHead(
        labels=task.labels,
        weight=weight,
        bias=bias,
        reads_pairs=any(example.text_pair is not None for example in train),
    )
    head.save(folder)
    classifier = SetFitClassifier(LoadedSetFit(encoder=encoder, head=head))
    metrics: dict[str, dict[str, float]] = {}
    for split in (name for name in task.splits if name != "train"):
        if all(map(is_labeled, task.splits[split])):
            metrics[split] = classifier.evaluate(task, split)
            logger.info("final evaluation, %s: %s", split, format_metrics(metrics[split]))
        else:
            logger.info("%s: left out, because not all of its examples have labels", split)
    write_json(folder / run_folder.EVALUATION, metrics)
    return EXIT_DONE
