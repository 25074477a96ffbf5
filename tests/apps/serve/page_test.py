"""Tests the page of the server in headless Chromium, in front of the real server.

Covers bert_jax/apps/serve/page/ and bert_jax/apps/serve/encoder_services.py.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bert_jax.predict.attention import AttentionExtractor
from tests.helpers.accessibility import accessibility_problems
from tests.helpers.browser import Page, browse, find_browser
from tests.helpers.server import RunningServer

TABS = ["Classify", "Tag", "Answer", "Fill mask", "Similarity", "Rerank", "Attention"]
MARKUP = "<img src=x onerror=alert(1)> 😀 the old man mends a net & sings"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser is installed")
    with browse(program) as page:
        yield page


@pytest.fixture
def page(browser: Page, server: RunningServer) -> Iterator[Page]:
    """Opens the page; at the end no script has failed and no other host was asked."""
    browser.messages.clear()
    browser.set_color_scheme("light")
    open_page(browser, server, 1280)
    yield browser
    assert browser.messages == []
    assert all(request.startswith(f"{server.url}/") for request in browser.requests)


def open_page(page: Page, server: RunningServer, width: int) -> None:
    # Another address first: a change of the fragment alone would not load the page again.
    page.open("about:blank", width)
    page.open(f"{server.url}/", width)
    page.wait_for("document.querySelectorAll('[role=tab]').length")


def send(page: Page, tab: str, **fields: str) -> None:
    """Fills the form of a tab, sends it, and waits for the answer or an error."""
    page.value(f"document.getElementById('tab-{tab}').click()")
    for name, text in fields.items():
        page.value(f"document.querySelector('#{tab} [name={name}]').value = {json.dumps(text)}")
    page.value(f"document.querySelector('#{tab} form').requestSubmit()")
    page.wait_for(f"!document.querySelector('#{tab} [aria-disabled=true]')")


def texts_of(page: Page, selector: str) -> list[str]:
    """Returns the visible text of the elements of a selector."""
    elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return page.value(f"{elements}.map((node) => node.innerText.trim())")


def bars_of(page: Page, tab: str) -> list[tuple[str, str]]:
    names, numbers = (texts_of(page, f"#{tab} .bars .{part}") for part in ("name", "number"))
    return list(zip(names, numbers, strict=True))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def test_tabs_are_the_tasks_of_the_models_and_move_with_arrows(page, server):
    assert texts_of(page, "[role=tab]") == TABS
    page.value("document.getElementById('tab-classify').focus()")
    for key, selected in (("ArrowRight", "tag"), ("End", "attention"), ("ArrowRight", "classify")):
        page.press(key)
        assert page.value("document.activeElement.id") == f"tab-{selected}"
        shown = "[...document.querySelectorAll('[role=tabpanel]')].filter((p) => !p.hidden)"
        assert page.value(f"{shown}.map((panel) => panel.id)") == [selected]
    models = server.client.get("/v1/models").json()["data"]
    with_labels = [model["id"] for model in models if "/predict" in model["routes"]]
    assert "reviews" in with_labels and "names" not in with_labels
    assert texts_of(page, "#classify option") == with_labels


def test_labels_are_bars_and_numbers_are_values(page, server):
    send(page, "classify", text="the old man sings", model="reviews")
    scores = server.post("/predict", inputs="the old man sings", model="reviews").json()
    assert bars_of(page, "classify") == [(each["label"], percent(each["score"])) for each in scores]
    bars = "[...document.querySelectorAll('#classify .fill')]"
    widths = page.value(f"{bars}.map((bar) => parseFloat(bar.style.width))")
    assert widths == pytest.approx([100 * each["score"] for each in scores], abs=0.051)
    assert "6 tokens" in texts_of(page, "#classify .timing")[0]
    send(page, "classify", text="a net", pair="the sea", model="relevance")
    (value,) = server.post("/predict", inputs=["a net", "the sea"], model="relevance").json()
    assert float(texts_of(page, "#classify .value")[0]) == pytest.approx(value["score"], rel=1e-3)


def test_entities_and_answers_are_marked_where_they_are_in_the_text(page, server):
    send(page, "tag", text=MARKUP)
    entities = server.post("/tag", inputs=MARKUP, model="names").json()
    assert len({each["entity_group"] for each in entities}) > 0
    marks = texts_of(page, "#tag mark")
    assert marks == [f"{each['word']}\u00a0{each['entity_group']}" for each in entities]
    without_labels = (
        "(() => { const text = document.querySelector('#tag .text').cloneNode(true);"
        "for (const label of text.querySelectorAll('.label')) {"
        "label.previousSibling.remove(); label.remove(); } return text.textContent; })()"
    )
    assert page.value(without_labels) == MARKUP
    send(page, "answer", question="the net", context=MARKUP)
    question = {"question": "the net", "context": MARKUP}
    answer = server.post("/answer", inputs=question).json()
    assert texts_of(page, "#answer mark") == [answer["answer"]]
    assert texts_of(page, "#answer .text") == [MARKUP]
    assert not page.value("document.querySelectorAll('img').length")


def test_examples_of_the_model_stay_until_they_are_changed(page, server):
    models = server.client.get("/v1/models").json()["data"]
    examples = {model["id"]: model["examples"] for model in models}
    field = "document.getElementById('fill-text')"
    assert page.value(f"{field}.value") == examples["encoder"]["fill"]["text"]
    page.value(f"{field}.value = 'mine'")
    page.value("showExample(document.getElementById('fill'))")
    assert page.value(f"{field}.value") == "mine"


def test_masks_are_inserted_and_filled(page, server):
    page.value("document.getElementById('fill-text').value = 'the [MASK] man mends '")
    page.value("document.getElementById('fill-text').setSelectionRange(99, 99)")
    page.value("document.getElementById('insert-mask').click()")
    text = page.value("document.getElementById('fill-text').value")
    assert text == "the [MASK] man mends [MASK]"
    send(page, "fill")
    masks = server.post("/fill_mask", inputs=text).json()
    assert len(masks) == 2 and texts_of(page, "#fill h2") == ["Mask 1", "Mask 2"]
    candidates = [candidate for mask in masks for candidate in mask]
    assert [number for _, number in bars_of(page, "fill")] == [
        percent(candidate["score"]) for candidate in candidates
    ]


def test_similarities_are_a_matrix_of_cosines(page, server):
    sentences = ["the old man", MARKUP, "a net by the sea"]
    send(page, "similarity", texts="\n".join(sentences))
    vectors = np.array(server.post("/embed", inputs=sentences).json())
    cells = np.array([float(cell) for cell in texts_of(page, "#similarity td")]).reshape(3, 3)
    np.testing.assert_allclose(cells, vectors @ vectors.T, atol=0.0051)
    assert texts_of(page, "#similarity tbody th")[1] == f"2. {MARKUP}"
    send(page, "similarity", texts="the old man\n\n")
    (message,) = texts_of(page, "#similarity .error")
    assert message == "There are 1 sentences; write 2 to 12, one on each line."


def test_texts_are_reranked(page, server):
    texts = ["a net", "the sea and the old man", MARKUP]
    send(page, "rerank", query="the man", texts="\n".join(texts))
    ranked = server.post("/rerank", query="the man", texts=texts).json()
    expected = [(texts[each["index"]], percent(each["score"])) for each in ranked]
    assert bars_of(page, "rerank") == expected


def test_attention_of_every_head_can_be_looked_at(page, models):
    text = "the old man mends a net"
    page.value("document.getElementById('attention-text').focus()")
    page.value("document.getElementById('tab-attention').click()")
    send(page, "attention", text=text)
    tokens, weights = AttentionExtractor(models["encoder"])(text)
    count = len(tokens)
    heads = "[...document.querySelectorAll('.heads button')]"
    names = page.value(f"{heads}.map((button) => button.ariaLabel)")
    assert names == [f"layer {n + 1}, head {h + 1}" for n in range(1) for h in range(4)]
    # The opacity of a pixel is the square root of the weight.
    pixels = page.value(
        f"{heads}.map((button) => [...button.firstChild.getContext('2d')"
        f".getImageData(0, 0, {count}, {count}).data].filter((_, i) => i % 4 === 3))"
    )
    found = (np.array(pixels).reshape(1, 4, count, count) / 255) ** 2
    np.testing.assert_allclose(found, weights, atol=0.01)
    page.value(f"{heads}[0].focus()")
    for key in ("End", "ArrowLeft"):
        page.press(key)
    page.value("document.activeElement.click()")
    assert texts_of(page, "#attention h2") == ["Layer 1, head 3"]
    page.value("document.querySelectorAll('.from button')[2].click()")
    (summary,) = texts_of(page, "#attention .result [role=status]")
    row = weights[0, 2, 2]
    assert summary.startswith("old attends to: ")
    shown = [float(part.split()[-1]) for part in summary.removeprefix("old ").split(", ")]
    np.testing.assert_allclose(shown, np.sort(row)[::-1][:5], atol=0.006)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_layout_labels_and_contrast(page, server, width, scheme):
    page.set_color_scheme(scheme)
    open_page(page, server, width)
    for tab in page.value("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"):
        # 16 tokens have no room for the long question of the page.
        send(page, tab.removeprefix("tab-"), **({"question": "Why?"} if "answer" in tab else {}))
        assert not texts_of(page, f"#{tab.removeprefix('tab-')} .error")
        assert page.value("document.documentElement.scrollWidth") <= width, tab
        assert accessibility_problems(page) == [], tab


def test_errors_of_the_server_are_explained(page, server):
    send(page, "fill", text="no mask")
    (message,) = texts_of(page, "#fill .error")
    assert message.startswith("The server refused the input: `inputs[0]` has no [MASK]")
    server.state.is_stopping = True
    send(page, "tag", text="the man")
    server.state.is_stopping = False
    (message,) = texts_of(page, "#tag .error")
    assert message.startswith("The server is not ready: the server is stopping")
    send(page, "tag", text="the man")
    assert not texts_of(page, "#tag .error")
    # Chromium logs responses with an error status itself.
    failed = "Failed to load resource"
    assert [failed in message for message in page.messages] == [True] * len(page.messages)
    page.messages.clear()


def respond(page: Page, status: int, headers: dict[str, str]) -> None:
    """Replaces the responses of the server, and records the headers of requests in `sent`."""
    options: dict[str, Any] = {"status": status, "headers": headers}
    page.value(
        "window.sent = []; window.fetch = async (url, options) => { sent.push(options.headers);"
        f'return new Response(\'{{"error": "wait"}}\', {json.dumps(options)}); }}; 0'
    )


def test_busy_servers_keys_and_broken_connections_are_explained(page):
    respond(page, 429, {"Retry-After": "7"})
    send(page, "tag", text="the man")
    assert texts_of(page, "#tag .error") == ["The server is busy. Try again in 7 s."]
    respond(page, 413, {})
    send(page, "tag", text="the man")
    expected = "This is too large for the server: wait. Shorten it and try again."
    assert texts_of(page, "#tag .error") == [expected]
    respond(page, 401, {})
    send(page, "tag", text="the man")
    assert texts_of(page, "#tag .error")[0].startswith("This server needs a key.")
    page.value("document.getElementById('key').value = 'secret'")
    page.value("document.getElementById('key-form').requestSubmit()")
    page.wait_for("sent.at(-1).Authorization === 'Bearer secret'")
    page.value("window.fetch = async () => { throw new TypeError('closed'); }; 0")
    send(page, "tag", text="the man")
    assert texts_of(page, "#tag .error")[0].startswith("The server cannot be reached.")
