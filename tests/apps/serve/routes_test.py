"""Compares the answers of a server with offline results.

Covers the routes of bert_jax/apps/serve/.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
from starlette.routing import Route

from bert_jax.apps.serve.app import create_app
from bert_jax.export.export import export
from bert_jax.models.heads.config import RankingHead, RegressionHead
from bert_jax.predict.attention import AttentionExtractor
from bert_jax.predict.embedder import Embedder
from bert_jax.predict.fill_mask import FillMask
from bert_jax.predict.predictor import Predictor
from bert_jax.predict.reranker import Reranker
from bert_jax.pretrained.load import LoadedModel, load_encoder

TEXTS = ["the old man", "a net by the sea and the old man", "sings"]


def unit_vectors(model: LoadedModel, texts: list[str]) -> np.ndarray:
    vectors = Embedder(model)(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_embed_equals_normalized_vectors_of_the_embedder(server, models):
    expected = unit_vectors(models["encoder"], TEXTS)
    response = server.post("/embed", inputs=TEXTS)
    np.testing.assert_allclose(response.json(), expected, atol=1e-6)
    assert int(response.headers["x-compute-characters"]) == sum(map(len, TEXTS))
    assert float(response.headers["x-total-time"]) >= float(response.headers["x-inference-time"])
    # One text gives a list of one vector, and its length does not depend on the others.
    alone = server.post("/embed", inputs=TEXTS[2]).json()
    np.testing.assert_allclose(alone, expected[2:], atol=1e-6)
    np.testing.assert_allclose(server.post("/", inputs=TEXTS[2]).json(), alone, atol=1e-6)


def test_embed_reads_token_ids_as_the_text_they_belong_to(server):
    by_text = server.post("/embed", inputs=TEXTS).json()
    tokens = server.post("/tokenize", inputs=TEXTS).json()
    ids = [[token["id"] for token in each] for each in tokens]
    np.testing.assert_allclose(server.post("/embed", inputs=ids).json(), by_text, atol=1e-6)
    np.testing.assert_allclose(server.post("/embed", inputs=ids[0]).json(), by_text[:1], atol=1e-6)
    without = [row[1:-1] for row in ids]
    np.testing.assert_allclose(server.post("/embed", inputs=without).json(), by_text, atol=1e-6)


def test_embed_all_has_a_vector_for_each_token_with_the_pooled_mean(server):
    states = server.post("/embed_all", inputs=TEXTS).json()
    pooled = server.post("/embed", inputs=TEXTS, normalize=False).json()
    assert [len(each) for each in states] == [5, 11, 3]
    for each, vector in zip(states, pooled, strict=True):
        np.testing.assert_allclose(np.mean(each, axis=0), vector, atol=1e-5)


def test_dimensions_cut_vectors_before_they_are_normalized(server, models):
    cut = unit_vectors(models["encoder"], TEXTS)[:, :5]
    expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    found = server.post("/embed", inputs=TEXTS, dimensions=5).json()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    error = server.post("/embed", inputs=TEXTS, dimensions=17)
    assert error.status_code == 422 and "expected 1 to 16" in error.json()["error"]


def test_sentence_encoder_applies_prompt_dense_layer_and_normalization(server, models):
    embed = Embedder(models["sentences"])
    for name in ("query", "text"):
        expected = embed(TEXTS, prompt_name=name)
        found = server.post("/embed", inputs=TEXTS, prompt_name=name, model="sentences")
        np.testing.assert_allclose(found.json(), expected, atol=1e-6)
    raw = server.post("/embed", inputs=TEXTS, normalize=False, model="sentences").json()
    expected = Embedder(models["sentences"], normalize=False)(TEXTS)
    np.testing.assert_allclose(raw, expected, atol=1e-6)
    (tokens,) = server.post(
        "/tokenize", inputs="sea", prompt_name="query", model="sentences"
    ).json()
    assert [token["text"] for token in tokens[1:-1]] == ["by", "the", "sea"]
    error = server.post("/embed", inputs="a", prompt_name="qery", model="sentences")
    assert error.status_code == 422 and "did you mean 'query'" in error.json()["error"]
    assert server.client.get("/info?model=sentences").json()["max_input_length"] == 12


def test_text_that_loses_its_beginning_keeps_its_prompt(server):
    end = "the old man a net sea by the"  # with the prompt and special tokens, 12 tokens
    fields = {"prompt_name": "query", "model": "sentences", "truncation_direction": "Left"}
    expected = server.post("/embed", inputs=end, **fields).json()
    cut = server.post("/embed", inputs="sea " * 20 + end, **fields)
    assert cut.headers["x-truncated-inputs"] == "1"
    np.testing.assert_allclose(cut.json(), expected, atol=1e-6)
    (ids,) = server.post("/tokenize", inputs=end, model="sentences").json()
    numbers = [token["id"] for token in ids]  # [CLS], 8 tokens, [SEP]
    long = [numbers[0], *numbers[1:-1] * 3, numbers[-1]]
    alone, whole = (
        server.post("/embed", inputs=row, **fields).json()
        for row in ([numbers[0], *long[-11:]], long)
    )
    np.testing.assert_allclose(whole, alone, atol=1e-6)


def test_similarity_is_the_cosine_of_vectors(server, models):
    vectors = unit_vectors(models["encoder"], TEXTS)
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = server.post("/similarity", inputs=inputs).json()
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)


def test_long_text_is_cut_with_a_header_or_refused(server):
    long = "the old man " * 10
    response = server.post("/embed", inputs=[long, "the"])
    assert response.headers["x-truncated-inputs"] == "1"
    start, end = "the old man " * 6, " the old man" * 6
    cut = server.post("/embed", inputs=start + "sea " * 20).json()
    np.testing.assert_allclose(cut, response.json()[:1], atol=1e-6)
    last_tokens = server.post(
        "/embed", inputs="sea " * 20 + end, truncation_direction="Left"
    ).json()
    np.testing.assert_allclose(last_tokens, server.post("/embed", inputs=end).json(), atol=1e-6)
    refused = server.post("/embed", inputs=[long, "the"], truncate=False)
    assert refused.status_code == 422
    assert "1 of the texts have more than 20 tokens" in refused.json()["error"]


def test_predict_equals_the_predictor_for_texts_and_pairs(server, models):
    predict = Predictor(models["reviews"])
    answers = server.post("/predict", inputs=[["a net"], ["the sea", "the old man"]]).json()
    # A flat list of two strings is one pair.
    answers.append(server.post("/predict", inputs=["the sea", "the old man"]).json())
    pair = ("the sea", "the old man")
    for scores, record in zip(answers, predict(["a net", pair, pair]), strict=True):
        assert scores == sorted(scores, key=lambda score: -score["score"])
        found = {score["label"]: score["score"] for score in scores}
        assert found == pytest.approx(record["probabilities"], abs=1e-6)
    logits = server.post("/predict", inputs="a net", raw_scores=True).json()
    exponentials = np.exp([each["score"] for each in logits])
    expected = [each["score"] for each in server.post("/predict", inputs=["a net"]).json()]
    np.testing.assert_allclose(exponentials / exponentials.sum(), expected, atol=1e-6)


def test_predict_tells_which_of_several_labels_are_above_their_thresholds(server, models):
    predict, decisions = Predictor(models["emotions"]), set()
    texts = ["a net", "the sea", "the old man", "sings ."]
    answers = server.post("/predict", model="emotions", inputs=[[each] for each in texts]).json()
    for scores, record in zip(answers, predict(texts), strict=True):
        assert scores == sorted(scores, key=lambda score: -score["score"])
        found = {score["label"]: score["score"] for score in scores}
        assert found == pytest.approx(record["probabilities"], abs=1e-6)
        assert {each["label"] for each in scores if each["predicted"]} == {*record["labels"]}
        decisions |= {(each["label"], each["predicted"]) for each in scores}
    assert {("joy", True), ("fear", False)} <= decisions
    logits = server.post("/predict", model="emotions", inputs="a net", raw_scores=True).json()
    for raw, score in zip(logits, answers[0], strict=True):
        assert 1 / (1 + np.exp(-raw["score"])) == pytest.approx(score["score"], abs=1e-6)
        assert (raw["label"], raw["predicted"]) == (score["label"], score["predicted"])


@pytest.mark.parametrize("head", [RegressionHead(), RankingHead(activation="identity")])
def test_rerank_gives_the_scores_of_the_reranker(server, models, monkeypatch, head):
    # All these heads have the same parameters.
    monkeypatch.setattr(server.state.models.by_name["relevance"].task, "head", head)
    model = dataclasses.replace(models["relevance"], head=head)
    predict = Predictor(models["relevance"])
    outputs = [predict(("the sea", text))["value"] for text in TEXTS]
    raw = server.post("/rerank", query="the sea", texts=TEXTS, raw_scores=True).json()
    assert {each["index"]: each["score"] for each in raw} == pytest.approx(
        dict(enumerate(outputs)), abs=1e-6
    )
    scores = Reranker(model)("the sea", TEXTS)
    answer = server.post("/rerank", query="the sea", texts=TEXTS, return_text=True).json()
    assert [each["index"] for each in answer] == [each["index"] for each in raw]
    for each in answer:
        assert each["score"] == pytest.approx(scores[each["index"]], abs=1e-6)
        assert each["text"] == TEXTS[each["index"]]
    cohere = server.post("/rerank", query="the sea", documents=TEXTS, top_n=2).json()
    assert [each["index"] for each in cohere["results"]] == [e["index"] for e in answer[:2]]
    assert cohere["object"] == "rerank" and cohere["model"] == "relevance"


def test_tag_gives_entities_with_characters_and_scores(server, models):
    text = "the old  man mends nets"
    record = Predictor(models["names"])(text)
    (entities,) = server.post("/tag", inputs=[text]).json()
    assert entities, "the tiny model must find an entity for this test"
    for found, expected in zip(entities, record["entities"], strict=True):
        assert found["entity_group"] == expected["type"]
        assert (found["start"], found["end"]) == (expected["start"], expected["end"])
        assert text[found["start"] : found["end"]] == found["word"] == expected["text"]
        assert 1 / 3 < found["score"] <= 1
    assert server.post("/tag", inputs=text).json() == entities


def test_answer_equals_the_predictor_also_in_windows(server, models):
    context = "the old man mends a net by the sea and " * 3
    record = Predictor(models["questions"])(("the sea", context))
    found = server.post("/answer", inputs={"question": "the sea", "context": context}).json()
    assert found["answer"] == record["answer"] == context[found["start"] : found["end"]]
    assert found["score"] == pytest.approx(record["probability"], abs=1e-6)


def test_fill_mask_equals_offline_candidates_for_one_and_six_masks(server, models):
    texts = ["the [MASK] man", "[MASK] [MASK] [MASK] [MASK] the [MASK] [MASK]"]
    answers = server.post("/fill_mask", inputs=texts, top_k=3).json()
    answers[0] = [answers[0]]  # a text with one mask gives its candidates without a list of masks
    for masks, record in zip(answers, FillMask(models["encoder"], top_k=3)(texts), strict=True):
        for found, expected in zip(masks, record["masks"], strict=True):
            for one, other in zip(found, expected["candidates"], strict=True):
                assert one["token"] == other["id"]
                assert one["score"] == pytest.approx(other["probability"], abs=1e-6)
    best = answers[0][0][0]
    assert best["sequence"].startswith("the") and best["token_str"].strip("#") in best["sequence"]


def test_attention_equals_offline_weights_rounded_to_3_digits(server, models):
    text = "the old man mends a net"
    answer = server.post("/attention", inputs=text, model="names").json()
    tokens, weights = AttentionExtractor(models["names"])(text)
    assert answer["tokens"] == tokens
    np.testing.assert_allclose(answer["attentions"], weights, rtol=0, atol=0.0005001)
    response = server.post("/attention", inputs="sea " * 19)
    assert response.status_code == 422
    assert "`inputs` has 21 tokens; attention is shown for at most 20" in response.json()["error"]


def test_tokenize_gives_characters_and_decode_reverses_it(server):
    (tokens,) = server.post("/tokenize", inputs="the mends").json()
    assert [token["text"] for token in tokens] == ["[CLS]", "the", "mend", "s", "[SEP]"]
    assert [(t["start"], t["stop"]) for t in tokens[1:-1]] == [(0, 3), (4, 8), (8, 9)]
    ids = [token["id"] for token in tokens]
    assert server.post("/decode", ids=ids).json() == ["the mends"]
    (plain,) = server.post("/tokenize", inputs="the mends", add_special_tokens=False).json()
    assert [token["id"] for token in plain] == ids[1:-1]


def test_each_request_chooses_its_adapter_by_field_or_header(
    server, models, adapter_folders, tmp_path
):
    export(models["encoder"], tmp_path / "base")
    for name, folder in adapter_folders.items():
        predict = Predictor(load_encoder(folder, base=tmp_path / "base"))
        records = predict(["a net", ("the sea", "the old man")])
        body = {"inputs": [["a net"], ["the sea", "the old man"]], "model": f"encoder:{name}"}
        answers = server.post("/predict", **body).json()
        found = [{each["label"]: each["score"] for each in scores} for scores in answers]
        assert found == [pytest.approx(record["probabilities"], abs=1e-6) for record in records]
        headers = {"x-model": "encoder", "x-adapter": name}
        by_header = {"inputs": body["inputs"]}
        assert server.client.post("/predict", json=by_header, headers=headers).json() == answers


def test_model_that_cannot_answer_is_named_with_what_it_has(server):
    error = server.post("/predict", inputs="a net", model="encoder")
    assert error.status_code == 422
    assert re.search(
        "encoder cannot be asked for /predict: it is an encoder without a task head, with /embed",
        error.json()["error"],
    )
    error = server.post("/predict", inputs="a net", model="review")
    assert "there is no model 'review'; did you mean 'reviews'" in error.json()["error"]


def test_official_openai_client_reads_embeddings_models_and_errors(server, models):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        expected = unit_vectors(models["encoder"], TEXTS)
        answer = client.embeddings.create(
            input=TEXTS, model="encoder"
        )  # the client asks for base64
        found = np.array([each.embedding for each in answer.data])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert answer.usage.prompt_tokens == 19 and [e.index for e in answer.data] == [0, 1, 2]
        plain = client.embeddings.create(
            input=TEXTS, model="encoder", encoding_format="float", dimensions=5
        )
        np.testing.assert_allclose(
            [np.linalg.norm(each.embedding) for each in plain.data], 1, atol=1e-6
        )
        assert len(plain.data[0].embedding) == 5
        assert "reviews" in [model.id for model in client.models.list()]
        with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
            client.embeddings.create(input="a", model="gpt")
        with pytest.raises(openai.BadRequestError, match=r"more than 20 tokens.* or use /embed"):
            client.embeddings.create(input="the " * 30, model="encoder")


def test_info_and_models_describe_each_model(server):
    info = server.client.get("/info", params={"model": "reviews"}).json()
    assert info["model_type"]["classifier"]["id2label"] == {"0": "bad", "1": "fair", "2": "good"}
    assert info["max_input_length"] == 20 and info["max_client_batch_size"] == 100
    types = {m["id"]: m for m in server.client.get("/v1/models").json()["data"]}
    assert types["encoder"]["model_type"] == {"embedding": {"pooling": "mean"}}
    assert types["encoder"]["routes"][-2:] == ["/fill_mask", "/attention"]
    assert types["relevance"]["routes"] == ["/predict", "/rerank", "/attention"]
    assert types["encoder"]["examples"]["fill"] == {"text": "The ship left the [MASK] at dawn."}


def test_every_route_is_documented_without_addresses_of_other_hosts(server):
    schema = server.client.get("/openapi.json").json()
    served = {route.path for route in create_app(server.state).routes if isinstance(route, Route)}
    assert served - set(schema["paths"]) == {"/", "/page/{name}", "/openapi.json", "/docs"}
    names = re.findall(r"#/components/schemas/(\w+)", json.dumps(schema))
    assert names and set(names) <= set(schema["components"]["schemas"])
    docs = server.client.get("/docs")
    assert "POST /embed" in docs.text and not re.search("https?:", docs.text)
    assert docs.headers["content-security-policy"].startswith("default-src 'self'; ")


def test_browser_gets_the_page_and_no_file_outside_of_it(server):
    page = server.client.get("/", headers={"accept": "text/html,*/*"})
    assert page.status_code == 200 and "<html" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    long = f"/page/{'a' * 300}.js"  # longer than a file system allows
    for path in ("/page/..%2Fapp.py", "/page/%2e%2e%2fapp.py", "/page/nothing.js", long):
        assert server.client.get(path).status_code == 404
    # Without a browser, the health.
    programs = server.client.get("/").json()["programs"]
    assert programs["compiled"] == programs["total"] > 1
