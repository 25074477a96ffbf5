// Runs the page of the server: one tab for each task that some model of the server can do.
// Texts of users and of the server are only ever inserted as text, never as markup.
"use strict";

const STARTING_RETRY_MS = 2000;
const MOST_SENTENCES = 12; // of the similarity matrix
const SMALLEST_LINE = 0.03; // smaller attention weights are not drawn as lines
const TOKEN_HEIGHT = 26; // as in style.css, px

let key = "";
let models = [];

// Elements.

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function find(selector, parent = document) {
  return parent.querySelector(selector);
}

function percent(fraction) {
  return `${(100 * fraction).toFixed(1)}%`;
}

// Slices by code points: offsets of the server count them, strings of JavaScript count UTF-16 units.
function slice(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

// A list of names with a bar for each value from 0 to 1.
function bars(items) {
  const rows = items.map(({ name, value }) => {
    const fill = element("span", { class: "fill" });
    fill.style.width = percent(Math.min(Math.max(value, 0), 1));
    return element("li", {},
      element("span", { class: "name" }, name),
      element("span", { class: "number" }, percent(value)),
      element("span", { class: "track", "aria-hidden": "true" }, fill));
  });
  return element("ol", { class: "bars" }, ...rows);
}

// A part of the page that scrolls sideways, also by keyboard.
function scrollable(name, content) {
  return element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": name },
    content);
}

function table(caption, header, rows, className = "") {
  const head = header.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map(([first, ...cells]) => element("tr", {},
    element("th", { scope: "row" }, first),
    ...cells.map((cell) => (cell instanceof Node ? cell : element("td", {}, cell)))));
  return scrollable(caption, element("table", { class: className },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body)));
}

// Makes the arrow keys move the focus among buttons of which only one is in the tab order.
function moveWithArrows(parent, buttons, columns, isTabList = false) {
  const focus = (index) => {
    buttons.forEach((button, i) => { button.tabIndex = i === index ? 0 : -1; });
    buttons[index].focus();
    if (isTabList) buttons[index].click();
  };
  buttons.forEach((button, i) => {
    if (!isTabList) button.tabIndex = i === 0 ? 0 : -1;
    button.addEventListener("click", () => {
      buttons.forEach((other) => { other.tabIndex = other === button ? 0 : -1; });
    });
  });
  parent.addEventListener("keydown", (event) => {
    const index = buttons.indexOf(document.activeElement);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    let target = index + (steps[event.key] ?? NaN);
    if (event.key === "Home") target = 0;
    if (event.key === "End") target = buttons.length - 1;
    if (isTabList) target = (target + buttons.length) % buttons.length;
    if (index < 0 || !(target in buttons)) return;
    event.preventDefault();
    focus(target);
  });
}

// Requests.

class Failure extends Error {}

function explain(status, retryAfter, detail) {
  const because = detail ? `: ${detail}` : "";
  switch (status) {
    case 401: return "This server needs a key. Enter the key above and try again.";
    case 413: return `This is too large for the server${because}. Shorten it and try again.`;
    case 424: return `The model failed on this input${because}.`;
    case 429:
      return `The server is busy. Try again ${retryAfter ? `in ${retryAfter} s` : "later"}.`;
    case 503: return `The server is not ready${because}. Try again in a moment.`;
    default:
      return status >= 500 ? `The server failed (status ${status})${because}.`
        : `The server refused the input${because || ` (status ${status})`}.`;
  }
}

async function request(route, body) {
  const headers = { Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    const method = body ? "POST" : "GET";
    response = await fetch(route.slice(1), { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Failure("The server cannot be reached. Check that it is running and try again.");
  }
  const text = await response.text();
  let data = null;
  try { data = JSON.parse(text); } catch { /* a proxy may answer with a page of its own */ }
  if (response.ok) return { data, headers: response.headers };
  if (response.status === 401) find("#key-form").hidden = false;
  const detail = data?.error?.message ?? data?.error ?? "";
  const failure = new Failure(
    explain(response.status, response.headers.get("Retry-After"), detail));
  failure.status = response.status;
  throw failure;
}

function describeTiming(headers) {
  const ms = (name) => {
    const value = Number(headers.get(`x-${name}-time`));
    return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
  };
  if (!headers.get("x-total-time")) return "";
  const tokens = headers.get("x-compute-tokens");
  const cut = headers.get("x-truncated-inputs")
    ? " A text was longer than the model reads, so only a part of it was read." : "";
  return `${ms("total")}: tokenization ${ms("tokenization")}, queue ${ms("queue")}, `
    + `model ${ms("inference")}; ${tokens} ${tokens === "1" ? "token" : "tokens"}.${cut}`;
}

// The tasks: the body of the request made from a form, and the answer as elements.

const TASKS = {
  classify: {
    body: ({ text, pair }) => ({ inputs: pair.trim() ? [text, pair] : text }),
    show: (labels) => (labels.length === 1
      ? [element("p", { class: "value" }, labels[0].score.toPrecision(4)),
        element("p", { class: "quiet" }, `score of ${labels[0].label}`)]
      : [bars(labels.map(({ label, score }) => ({ name: label, value: score })))]),
  },
  tag: {
    body: ({ text }) => ({ inputs: text }),
    show: (entities, { text }) => {
      if (!entities.length) return [element("p", {}, "No entities were found.")];
      const rows = entities.map((e) => [e.word, e.entity_group, percent(e.score)]);
      return [marked(text, entities.map((e) => ({ ...e, label: e.entity_group }))),
        table("Entities", ["text", "label", "score"], rows)];
    },
  },
  answer: {
    body: ({ question, context }) => ({ inputs: { question, context } }),
    show: (answer, { context }) => (answer.answer
      ? [bars([{ name: answer.answer, value: answer.score }]),
        element("h2", {}, "In the text"), marked(context, [{ ...answer, label: "" }])]
      : [element("p", {}, `The text has no answer (score ${percent(answer.score)}).`)]),
  },
  fill: {
    body: ({ text }) => ({ inputs: text, top_k: 5 }),
    show: (result) => {
      const masks = Array.isArray(result[0]) ? result : [result];
      return masks.flatMap((candidates, index) => [
        ...(masks.length > 1 ? [element("h2", {}, `Mask ${index + 1}`)] : []),
        bars(candidates.map((c) => ({ name: c.token_str, value: c.score }))),
      ]);
    },
  },
  similarity: {
    body: ({ texts }) => {
      const inputs = lines(texts);
      if (inputs.length < 2 || inputs.length > MOST_SENTENCES) {
        throw new Failure(`There are ${inputs.length} sentences; write 2 to ${MOST_SENTENCES}, `
          + "one on each line.");
      }
      return { inputs, normalize: true };
    },
    show: (vectors, { texts }) => {
      const product = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
      const rows = lines(texts).map((sentence, i) => [`${i + 1}. ${sentence}`,
        ...vectors.map((other) => {
          const value = product(vectors[i], other);
          return element("td", { class: "weight", "--weight": Math.max(value, 0).toFixed(3) },
            value.toFixed(2));
        })]);
      return [table("Cosine similarity; 1 is the same direction",
        ["sentence", ...vectors.map((_, i) => `${i + 1}`)], rows, "numbers")];
    },
  },
  rerank: {
    body: ({ query, texts }) => ({ query, texts: lines(texts) }),
    show: (results, { texts }) => [bars(results.map(({ index, score }) => (
      { name: lines(texts)[index], value: score })))],
  },
  attention: {
    body: ({ text }) => ({ inputs: text }),
    show: ({ tokens, attentions }) => showHeads(tokens, attentions),
  },
};

// A text in which spans are marked; spans are sorted and do not overlap.
function marked(text, spans) {
  const parts = [];
  let end = 0;
  for (const span of spans) {
    const label = span.label && element("span", { class: "label" }, span.label);
    parts.push(slice(text, end, span.start), element("mark", {},
      slice(text, span.start, span.end), ...(label ? ["\u00a0", label] : [])));
    end = span.end;
  }
  return element("p", { class: "text" }, ...parts, slice(text, end));
}

// Attention: a thumbnail for each layer and head, and one head with its tokens.

function drawHead(canvas, weights) {
  const size = weights.length;
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("--accent");
  weights.forEach((row, i) => row.forEach((weight, j) => {
    context.globalAlpha = Math.sqrt(weight); // so that small weights are visible, too
    context.fillRect(j, i, 1, 1);
  }));
}

function showHeads(tokens, attentions) {
  const view = element("div", {});
  const thumbnails = [];
  const drawAll = () => thumbnails.forEach(([canvas, weights]) => drawHead(canvas, weights));
  const buttons = attentions.flatMap((heads, layer) => heads.map((weights, head) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    thumbnails.push([canvas, weights]);
    const name = `layer ${layer + 1}, head ${head + 1}`;
    return element("button", {
      type: "button", "aria-label": name, title: name, "aria-pressed": "false",
      onclick: (event) => {
        buttons.forEach((b) => b.setAttribute("aria-pressed", b === event.currentTarget));
        view.replaceChildren(...showHead(tokens, weights, name));
      },
    }, canvas);
  }));
  const numHeads = attentions[0].length;
  const index = (text) => element("span", { class: "index quiet", "aria-hidden": "true" }, text);
  const grid = element("div", { class: "heads", role: "group", "--heads": numHeads,
    "aria-label": "Heads; each row is a layer, from the first to the last" },
  index(""), ...attentions[0].map((_, head) => index(`${head + 1}`)),
  ...attentions.flatMap((heads, layer) => [index(`${layer + 1}`),
    ...buttons.slice(layer * numHeads, (layer + 1) * numHeads)]));
  moveWithArrows(grid, buttons, numHeads);
  drawAll();
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", drawAll);
  buttons[0].click();
  return [
    element("p", { class: "quiet" }, "Each picture is a head: a row for each token that attends, "
      + "a column for each token that is attended to; the stronger the color, the larger the "
      + "weight. Rows of pictures are layers. Choose one to see its tokens."),
    grid, view];
}

function showHead(tokens, weights, name) {
  const sources = tokens.map((token, i) => element("button", {
    type: "button", "aria-pressed": "false",
    onclick: () => choose(chosen === i ? null : i), onmouseenter: () => light(i),
    onmouseleave: () => light(chosen), onfocus: () => light(i), onblur: () => light(chosen),
  }, token));
  const targets = tokens.map((token) => element("span", {}, token));
  const height = tokens.length * TOKEN_HEIGHT;
  const svg = svgElement("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none",
    height, "aria-hidden": "true" });
  const middle = (index) => (index + 0.5) * TOKEN_HEIGHT;
  const drawn = weights.map((row, i) => row.flatMap((weight, j) => {
    if (weight < SMALLEST_LINE) return [];
    const line = svgElement("line", { x1: 0, y1: middle(i), x2: 100, y2: middle(j),
      "vector-effect": "non-scaling-stroke" });
    svg.append(line);
    return [[line, weight]];
  }));
  const summary = element("p", { role: "status", class: "quiet" });
  let chosen = null;
  const top = (row, count) => row.map((weight, j) => [weight, j])
    .sort((a, b) => b[0] - a[0]).slice(0, count)
    .map(([weight, j]) => `${tokens[j]} ${weight.toFixed(2)}`).join(", ");

  // Shows the lines of one token only, or of all tokens for null.
  function light(index) {
    drawn.forEach((group, i) => group.forEach(([line, weight]) => {
      line.style.display = index === null || i === index ? "" : "none";
      line.style.strokeOpacity = index === null ? weight : Math.sqrt(weight);
    }));
    targets.forEach((target, j) => {
      target.style.setProperty("--weight", index === null ? 0 : Math.sqrt(weights[index][j]));
    });
    summary.textContent = index === null
      ? "Lines go from the token that attends, on the left, to those that it attends to. Choose a "
        + "token on the left to see its lines alone."
      : `${tokens[index]} attends to: ${top(weights[index], 5)}`;
  }
  function choose(index) {
    chosen = index;
    sources.forEach((source, i) => source.setAttribute("aria-pressed", i === index));
    light(index);
  }
  const from = element("div", { class: "tokens from", role: "group",
    "aria-label": "Tokens that attend" }, ...sources);
  moveWithArrows(from, sources, 1);
  choose(null);
  return [
    element("h2", {}, name[0].toUpperCase() + name.slice(1)), summary,
    element("div", { class: "head-view" }, from, svg,
      element("div", { class: "tokens to", "aria-hidden": "true" }, ...targets)),
    element("details", {}, element("summary", {}, "As a table"),
      table("The three largest weights of each token", ["token", "attends to"],
        tokens.map((token, i) => [token, top(weights[i], 3)])))];
}

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// The page.

function modelsOf(panel) {
  return models.filter((model) => model.routes.includes(panel.dataset.route));
}

function preparePanel(panel) {
  const form = find("form", panel);
  const message = element("p", { class: "message", role: "status" });
  const result = element("div", { class: "result" });
  const timing = element("p", { class: "timing quiet" });
  panel.append(message, result, timing);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = find("button", form);
    if (button.getAttribute("aria-disabled") === "true") return;
    const fields = Object.fromEntries(new FormData(form));
    message.className = "message quiet";
    message.textContent = "Waiting for the server …";
    // A disabled button would lose the focus of the keyboard.
    button.setAttribute("aria-disabled", "true");
    try {
      const task = TASKS[panel.id];
      const model = fields.model ?? modelsOf(panel)[0].id;
      const { data, headers } = await request(
        panel.dataset.route, { ...task.body(fields), model });
      result.replaceChildren(...task.show(data, fields));
      timing.textContent = describeTiming(headers);
      message.textContent = "Done.";
      message.className = "message visually-hidden";
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      result.replaceChildren();
      timing.textContent = "";
      message.className = "message error";
      message.textContent = error.message;
    } finally {
      button.removeAttribute("aria-disabled");
    }
  });
  for (const area of form.querySelectorAll("textarea")) {
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
  }
}

// Adds a choice of the model to the form of a panel, if there are several.
function addModelChoice(panel) {
  const form = find("form", panel);
  find(".model", form)?.remove();
  const choices = modelsOf(panel);
  if (choices.length < 2) return;
  const id = `${panel.id}-model`;
  const options = choices.map((model) => element("option", { value: model.id }, model.id));
  form.prepend(element("div", { class: "model" },
    element("label", { for: id }, "Model"),
    element("select", { id, name: "model", onchange: () => showExample(panel) }, ...options)));
}

// Puts the example of the chosen model into the fields that the user has not changed.
function showExample(panel) {
  const name = find("[name=model]", panel)?.value;
  const model = modelsOf(panel).find((each) => !name || each.id === name);
  for (const field of panel.querySelectorAll("textarea, input")) {
    if (field.value !== (field.dataset.example ?? field.defaultValue)) continue;
    field.value = model.examples[panel.id]?.[field.name] ?? field.defaultValue;
    field.dataset.example = field.value;
  }
}

function showTabs() {
  const panels = [...document.querySelectorAll('[role="tabpanel"]')];
  const available = panels.filter((panel) => modelsOf(panel).length);
  const tabs = available.map((panel) => element("button", {
    type: "button", role: "tab", id: `tab-${panel.id}`, "aria-controls": panel.id,
    onclick: () => select(panel),
  }, panel.dataset.title));
  function select(panel) {
    panels.forEach((other) => { other.hidden = other !== panel; });
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", available[i] === panel);
      tab.tabIndex = available[i] === panel ? 0 : -1;
    });
    history.replaceState(null, "", `#${panel.id}`);
  }
  available.forEach((panel) => {
    panel.setAttribute("aria-labelledby", `tab-${panel.id}`);
    addModelChoice(panel);
    showExample(panel);
  });
  const list = find("#tabs");
  list.replaceChildren(...tabs);
  list.hidden = !tabs.length;
  if (!tabs.length) return;
  moveWithArrows(list, tabs, NaN, true);
  select(available.find((panel) => `#${panel.id}` === location.hash) ?? available[0]);
}

function maskToken() {
  const name = find("#fill [name=model]")?.value;
  const model = modelsOf(find("#fill")).find((each) => !name || each.id === name);
  return model?.mask_token ?? "[MASK]";
}

function prepareMasks() {
  const text = find("#fill-text");
  find("#insert-mask").addEventListener("click", () => {
    text.setRangeText(maskToken(), text.selectionStart, text.selectionEnd, "end");
    text.focus();
  });
}

async function start() {
  const server = find("#server");
  try {
    models = (await request("/v1/models")).data.data;
    await request("/health");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    server.classList.add("error");
    server.textContent = error.message;
    if (error.status === 503) setTimeout(start, STARTING_RETRY_MS);
    return;
  }
  server.classList.remove("error");
  const names = models.map((model) => model.id).join(", ");
  server.textContent = `${models.length === 1 ? "Model" : "Models"}: ${names}`;
  showTabs();
  prepareMasks();
}

document.querySelectorAll('[role="tabpanel"]').forEach(preparePanel);
find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("#key").value.trim();
  start();
});
start();
