"""Compares objectives/sentence_embeddings/ with the losses of sentence-transformers."""

import jax
import numpy as np
import pytest

from bert_jax.config.embedding_losses import (
    AnglELoss,
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    DistillKLDivLoss,
    EmbedDistillLoss,
    GISTEmbedLoss,
    MarginMSELoss,
    MatryoshkaLoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    SoftmaxLoss,
    SupervisedSimCSE,
    TripletLoss,
    UnsupervisedSimCSE,
)
from bert_jax.objectives.sentence_embeddings import loss_of_vectors

torch = pytest.importorskip("torch")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

SIZE, WIDTH = 6, 12
RNG = np.random.default_rng(0)
SCORES = np.array([0.2, 0.9, 0.9, 0.0, 1.0, 0.4], np.float32)  # with a tie
LABELS = np.array([0, 1, 1, 0, 1, 0], np.int32)
TEACHER = RNG.normal(size=(SIZE, WIDTH)).astype(np.float32)
GUIDE = RNG.normal(size=(SIZE, 3, 5)).astype(np.float32)
GUIDE[:, 1] += GUIDE[:, 0]
CLASSIFIER = {
    "kernel": RNG.normal(size=(3 * WIDTH, 3)).astype(np.float32),
    "bias": RNG.normal(size=3).astype(np.float32),
}
MATRYOSHKA = {"dims": (4, 12, 7), "weights": (0.5, 1.0, 2.0)}


class Vectors(torch.nn.Module):
    """Returns the given vectors in place of a model's."""

    device = torch.device("cpu")

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self):
        return WIDTH


def softmax_loss(model):
    loss = losses.SoftmaxLoss(model, WIDTH, 3)
    loss.classifier.weight.data = torch.from_numpy(CLASSIFIER["kernel"].T.copy())
    loss.classifier.bias.data = torch.from_numpy(CLASSIFIER["bias"])
    return loss


def gist_loss(model, **settings):
    """Returns the loss with a guide that gives `GUIDE`, whatever it reads."""
    loss = object.__new__(losses.GISTEmbedLoss)
    torch.nn.Module.__init__(loss)

    class Guide(Vectors):
        calls = 0

        def forward(self, features):
            index, self.calls = self.calls, self.calls + 1
            return {"sentence_embedding": torch.from_numpy(GUIDE[:, index].copy())}

    loss.model, loss.guide, loss.must_retokenize = model, Guide(), False
    loss.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
    loss.temperature, loss.margin = settings["temperature"], settings.get("margin", 0.0)
    loss.margin_strategy, loss.contrast_anchors, loss.contrast_positives = "absolute", True, True
    loss.gather_across_devices = False
    loss.cross_entropy_loss = torch.nn.CrossEntropyLoss()
    return loss


def symmetric_loss(model):
    return losses.MultipleNegativesRankingLoss(
        model, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )


def matryoshka(make_loss):
    """Returns a function that makes a loss of several sizes."""
    return lambda model: losses.MatryoshkaLoss(
        model, make_loss(model), MATRYOSHKA["dims"], MATRYOSHKA["weights"]
    )


# Name -> (our loss, that of sentence-transformers, texts of an example, field of the batch).
CASES = {
    "softmax": (SoftmaxLoss(labels=("a", "b", "c")), softmax_loss, 2, {"labels": LABELS}),
    "cosine": (CosineSimilarityLoss(), losses.CosineSimilarityLoss, 2, {"label_values": SCORES}),
    "cosent": (CoSENTLoss(), losses.CoSENTLoss, 2, {"label_values": SCORES}),
    "angle": (AnglELoss(), losses.AnglELoss, 2, {"label_values": SCORES}),
    "gist": (
        GISTEmbedLoss(guide="g", temperature=0.2),
        lambda model: gist_loss(model, temperature=0.2),
        2,
        {"guide_vectors": GUIDE[:, :2]},
    ),
    "gist with negatives": (
        GISTEmbedLoss(guide="g", temperature=0.5, margin=0.1),
        lambda model: gist_loss(model, temperature=0.5, margin=0.1),
        3,
        {"guide_vectors": GUIDE},
    ),
    "embed distill": (
        EmbedDistillLoss(teacher="t"),
        losses.EmbedDistillLoss,
        1,
        {"teacher_vectors": TEACHER},
    ),
    "embed distill mse": (
        EmbedDistillLoss(teacher="t", distance="mse"),
        lambda model: losses.EmbedDistillLoss(model, distance_metric="mse"),
        1,
        {"teacher_vectors": TEACHER},
    ),
    "matryoshka angle": (
        # A scale at which the gradients are below 1, for the precision of float32.
        MatryoshkaLoss(loss=AnglELoss(scale=5.0), **MATRYOSHKA),
        matryoshka(lambda model: losses.AnglELoss(model, scale=5.0)),
        2,
        {"label_values": SCORES},
    ),
    "pairs": (MultipleNegativesRankingLoss(), losses.MultipleNegativesRankingLoss, 2, {}),
    "hard negatives": (
        MultipleNegativesRankingLoss(scale=10.0),
        lambda model: losses.MultipleNegativesRankingLoss(model, scale=10.0),
        4,
        {},
    ),
    "symmetric": (
        MultipleNegativesRankingLoss(symmetric=True),
        symmetric_loss,
        3,
        {},
    ),
    "simcse": (UnsupervisedSimCSE(), losses.MultipleNegativesRankingLoss, 2, {}),
    "supervised simcse": (SupervisedSimCSE(), losses.MultipleNegativesRankingLoss, 3, {}),
    "triplet": (TripletLoss(), losses.TripletLoss, 3, {}),
    "contrastive": (ContrastiveLoss(), losses.ContrastiveLoss, 2, {"labels": LABELS}),
    "mse": (MSELoss(teacher="t"), losses.MSELoss, 1, {"teacher_vectors": TEACHER}),
    "margin mse": (MarginMSELoss(), losses.MarginMSELoss, 4, {"label_logits": TEACHER[:, :3]}),
    "distill kl": (
        DistillKLDivLoss(temperature=3.0),
        lambda model: losses.DistillKLDivLoss(model, temperature=3.0),
        4,
        {"label_logits": TEACHER[:, :3]},
    ),
    "matryoshka": (
        MatryoshkaLoss(loss=MultipleNegativesRankingLoss(), **MATRYOSHKA),
        matryoshka(losses.MultipleNegativesRankingLoss),
        2,
        {},
    ),
    "matryoshka distill kl": (
        MatryoshkaLoss(loss=DistillKLDivLoss(), **MATRYOSHKA),
        matryoshka(losses.DistillKLDivLoss),
        3,
        {"label_logits": TEACHER[:, :2]},
    ),
    "matryoshka mse": (
        MatryoshkaLoss(loss=MSELoss(teacher="t"), **MATRYOSHKA),
        matryoshka(losses.MSELoss),
        1,
        {"teacher_vectors": TEACHER},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_sentence_transformers(name):
    loss, make_reference, num_texts, target = CASES[name]
    vectors = RNG.normal(size=(SIZE, num_texts, WIDTH)).astype(np.float32)
    vectors[:, 1:] += vectors[:, :1]  # positives are near, so that no loss is saturated
    classifier = CLASSIFIER if name == "softmax" else {}

    @jax.jit
    @jax.value_and_grad
    def value_and_gradient(vectors):
        return loss_of_vectors(loss, vectors, target, classifier)[0] / SIZE

    value, gradient = value_and_gradient(vectors)
    texts = [torch.from_numpy(vectors[:, i].copy()).requires_grad_() for i in range(num_texts)]
    labels = [torch.from_numpy(np.asarray(array)) for array in target.values()]
    if name == "softmax":
        labels = [labels[0].long()]
    reference = make_reference(Vectors())
    expected = reference([{"vectors": text} for text in texts], *(labels or [None]))
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-6, atol=1e-6)
    for index, text in enumerate(texts):
        np.testing.assert_allclose(gradient[:, index], text.grad.numpy(), rtol=1e-6, atol=2e-6)


def test_matryoshka_over_softmax_reads_the_weights_of_the_first_components():
    """Compares with vectors of zeros after a size; sentence-transformers has no such loss."""
    vectors = RNG.normal(size=(SIZE, 2, WIDTH)).astype(np.float32)
    loss, batch = SoftmaxLoss(labels=("a", "b", "c")), {"labels": LABELS}
    compute = jax.jit(loss_of_vectors, static_argnums=0)
    expected = 0.0
    for dim, weight in zip(*MATRYOSHKA.values(), strict=True):
        cut = vectors * (np.arange(WIDTH) < dim)
        cut /= np.linalg.norm(cut, axis=-1, keepdims=True)
        expected += weight * compute(loss, cut, batch, CLASSIFIER)[0]
    total = compute(MatryoshkaLoss(loss=loss, **MATRYOSHKA), vectors, batch, CLASSIFIER)[0]
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_hard_negative_weight_is_a_log_weight():
    """Compares with SimCSE's definition: exp(weight) copies of the own hard negative."""
    vectors = RNG.normal(size=(SIZE, 3, WIDTH)).astype(np.float32)
    loss = SupervisedSimCSE(temperature=0.5, hard_negative_weight=1.5)
    total = jax.jit(lambda vectors: loss_of_vectors(loss, vectors, {}, {})[0])(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    expected = 0.0
    for query in range(SIZE):
        cosines = unit[query, 0] @ unit[:, 1:].transpose(1, 2, 0) / 0.5  # [positive or not, text]
        weights = np.ones((2, SIZE))
        weights[1, query] = np.exp(1.5)
        expected -= np.log(np.exp(cosines[0, query]) / np.sum(weights * np.exp(cosines)))
    np.testing.assert_allclose(total, expected, rtol=1e-5)
