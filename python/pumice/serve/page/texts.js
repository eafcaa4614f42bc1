// The Texts view: the similarity of lines, a map of them, reranking, and tokens.
import { call, CutOff, Unreachable } from "./api.js";
import { $, count, h, kept, later, plural, say, svg } from "./dom.js";
import { components, cosines, vectorOf } from "./math.js";
import { fillModels, modelNamed, onModels } from "./models.js";
import { shown } from "./tokens.js";

const MOST_CELLS = 40;  // maximum number of rows of the matrix that is drawn; more would be unreadable
const MOST_LINES = 1000;
const BATCH = 256;  // number of texts in one request
const EDGE = 28;  // margin around the map in pixels

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const cutTo = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Returns a text field whose text the browser stores. */
function area(id, label, rows, placeholder) {
  const input = h("textarea", { id, rows: String(rows), placeholder });
  input.value = kept.get(id) ?? "";
  input.addEventListener("input", later(() => kept.set(id, input.value), 300));
  return { input, field: h("div", { class: "field" }, h("label", { for: id }, label), input) };
}

/** Returns a form with a menu of models. It shows the result of `work`. */
function tool({ id, title, about, tasks, button, fields, work }) {
  const select = h("select", { id: `${id}-model` });
  const go = h("button", { class: "primary" }, button);
  const out = h("div", { class: "result", tabindex: "-1", "aria-label": `Result: ${title}` }, h("p", { class: "empty-line" }, about));
  const problem = h("p", { class: "problem", role: "alert" });
  const choice = h("label", { class: "field" }, "Model", select);
  let controller = null;
  const form = h("form", { class: "bench-form" }, ...fields, h("div", { class: "bench-row" }, choice, go), problem);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    controller?.abort();
    const mine = (controller = new AbortController());
    problem.textContent = "";
    out.setAttribute("aria-busy", "true");
    go.disabled = true;
    try {
      const nodes = await work(select.value, mine.signal);
      out.replaceChildren(...nodes);
      say(`${title}: done.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.textContent = error instanceof Unreachable ? "The server does not answer. Your text is kept." : error.message;
      if (!(error.status || error instanceof Unreachable || error instanceof CutOff || error instanceof Wrong)) throw error;
    } finally {
      if (mine === controller) {
        go.disabled = false;
        out.removeAttribute("aria-busy");
      }
    }
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  const fill = () => {
    fillModels(select, tasks, select.value && modelNamed(select.value) ? select.value : "");
    go.disabled = !select.value;
  };
  onModels(fill);
  fill();
  return h("section", { class: "bench", "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), form, out);
}

/** Thrown if the user's texts are not suitable for the tool. */
class Wrong extends Error {}

async function vectorsOf(model, texts, kind, signal) {
  const vectors = [];
  for (let i = 0; i < texts.length; i += BATCH) {
    const body = { model, input: texts.slice(i, i + BATCH), encoding_format: "base64" };
    if (kind) body.input_type = kind;
    const { data } = await call("v1/embeddings", body, signal);
    for (const item of data.sort((a, b) => a.index - b.index)) vectors.push(vectorOf(item.embedding));
  }
  return vectors;
}

function matrix(texts, table) {
  const n = Math.min(texts.length, MOST_CELLS);
  const level = (value) => `s${Math.max(0, Math.min(9, Math.floor(value * 10)))}`;
  const head = h("tr", {}, h("td", {}), ...Array.from({ length: n }, (_, i) => h("th", { scope: "col", title: texts[i] }, String(i + 1))));
  const body = Array.from({ length: n }, (_, i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: texts[i] }, h("span", { class: "number" }, String(i + 1)), ` ${cutTo(texts[i], 28)}`),
      ...Array.from(
        { length: n },
        (_, j) => h("td", { class: level(table[i][j]), title: `${cutTo(texts[i], 80)}\n${cutTo(texts[j], 80)}` }, table[i][j].toFixed(2)),
      ),
    ),
  );
  const box = h(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "Similarity of each pair" },
    h("table", { class: "matrix" }, h("thead", {}, head), h("tbody", {}, ...body)),
  );
  return texts.length > n ? [
    box, h("p", { class: "hint" }, `The first ${n} of ${count(texts.length)} texts; the map and the pairs below take all.`),
  ] : [box];
}

function closest(texts, table) {
  const pairs = [];
  for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) pairs.push([table[i][j], j, i]);
  pairs.sort((a, b) => b[0] - a[0]);
  const rows = pairs.slice(0, 10).map(
    ([value, i, j]) => h(
      "li",
      {},
      h("span", { class: "figure" }, value.toFixed(3)),
      h("span", {}, `${cutTo(texts[i], 120)} — ${cutTo(texts[j], 120)}`),
    ),
  );
  return [h("h3", {}, "Closest pairs"), h("ol", { class: "pairs" }, ...rows)];
}

function map(texts, vectors) {
  const { points, shares } = components(vectors);
  const width = Math.max(260, Math.min(640, innerWidth - 48));
  const height = Math.round(width * 0.65);
  const spread = [0, 1].map((k) => points.map((p) => p[k]));
  // Both axes have the same scale, so that distances on the map mean the same in all directions.
  const ranges = spread.map((values) => [Math.min(...values), Math.max(...values)]);
  const scale = Math.min(...ranges.map(([low, high], k) => (high > low ? ((k ? height : width) - 2 * EDGE) / (high - low) : Infinity)));
  const place = (k, value) => {
    const middle = (ranges[k][0] + ranges[k][1]) / 2;
    const distance = Number.isFinite(scale) ? (value - middle) * scale : 0;
    return k ? height / 2 - distance : width / 2 + distance;
  };
  const told = h("p", { class: "map-text hint" }, "Arrow keys go through the texts.");
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "map", role: "img", "aria-label": `Map of ${plural(texts.length, "text")}` },
  );
  const labelled = texts.length <= 40;
  const dots = points.map((p, i) => {
    const [x, y] = [place(0, p[0]), place(1, p[1])];
    const group = svg("g", { class: "dot" }, svg("circle", { cx: x, cy: y, r: 5 }));
    if (labelled) {
      const label = svg("text", x > width * 0.7 ? { x: x - 9, y: y + 4, class: "before" } : { x: x + 9, y: y + 4 });
      label.textContent = cutTo(texts[i], 24);
      group.append(label);
    }
    group.addEventListener("pointerenter", () => choose(i));
    plot.append(group);
    return group;
  });
  let current = -1;
  const choose = (i) => {
    dots[current]?.classList.remove("chosen");
    current = i;
    dots[i].classList.add("chosen");
    plot.append(dots[i]);
    told.textContent = `${i + 1}. ${texts[i]}`;
  };
  const box = h(
    "div",
    { class: "map-box", tabindex: "0", role: "group", "aria-label": "Map of the texts; arrow keys go through them" },
    plot,
  );
  box.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    choose((Math.max(current, by < 0 ? 0 : -1) + by + texts.length) % texts.length);
    say(told.textContent);
  });
  const part = `It shows ${Math.round(100 * (shares[0] + shares[1]))} % of the differences.`;
  return [h("h3", {}, "Map"), h("p", { class: "hint" }, `The two main directions in which the texts differ (PCA). ${part}`), box, told];
}

function similarity() {
  const texts = area(
    "similarity-texts",
    "Texts, one a line",
    7,
    "A cat sleeps on the sofa.\nA kitten naps on the couch.\nThe stock market fell today.",
  );
  const kind = h(
    "select",
    { id: "similarity-kind" },
    h("option", { value: "" }, "plain"),
    h("option", { value: "query" }, "query"),
    h("option", { value: "document" }, "document"),
  );
  return tool({
    id: "similarity",
    title: "Similarity",
    about: "Two lines or more become a table of similarities and a map.",
    tasks: ["encode"],
    button: "Compare",
    fields: [texts.field, h("label", { class: "field inline" }, "Read as", kind)],
    work: async (model, signal) => {
      const list = lines(texts.input.value);
      if (list.length < 2) throw new Wrong("Write two lines or more.");
      if (list.length > MOST_LINES) throw new Wrong(`${count(list.length)} lines are too many: ${count(MOST_LINES)} are the most.`);
      const vectors = await vectorsOf(model, list, kind.value, signal);
      const table = cosines(vectors);
      return [...matrix(list, table), ...(list.length > 2 ? map(list, vectors) : []), ...(list.length > 3 ? closest(list, table) : [])];
    },
  });
}

function rerank() {
  const query = h("input", { id: "rerank-query", placeholder: "What is volcanic stone good for?", autocomplete: "off" });
  query.value = kept.get("rerank-query") ?? "";
  query.addEventListener("input", later(() => kept.set("rerank-query", query.value), 300));
  const documents = area("rerank-documents", "Documents, one a line", 7, "Pumice smooths skin and wood.\nParis is the capital of France.");
  return tool({
    id: "rerank",
    title: "Rerank",
    about: "The documents that answer the query best come first.",
    tasks: ["classify", "encode"],  // an encoder ranks documents by cosine
    button: "Rank",
    fields: [h("label", { class: "field" }, "Query", query), documents.field],
    work: async (model, signal) => {
      const list = lines(documents.input.value);
      if (!query.value.trim()) throw new Wrong("Write a query.");
      if (!list.length) throw new Wrong("Write a document or more, one a line.");
      const { results } = await call("v1/rerank", { model, query: query.value, documents: list }, signal);
      const rows = results.map(({ index, relevance_score: score }) =>
        h(
          "li",
          {},
          h("span", { class: "figure" }, score.toFixed(3)),
          h("meter", { min: "0", max: "1", value: String(Math.max(0, Math.min(1, score))), "aria-hidden": "true" }),
          h("span", {}, list[index]),
        ),
      );
      return [h("ol", { class: "ranks" }, ...rows)];
    },
  });
}

/** Formats the bytes of a token that is only a part of a character, and so cannot be shown as text. */
const hexOf = (bytes) => bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

function tokens() {
  const text = area("tokens-text", "Text", 5, "Any text");
  return tool({
    id: "tokens",
    title: "Tokens",
    about: "How a model cuts a text into tokens.",
    tasks: [],
    button: "Show tokens",
    fields: [text.field],
    work: async (model, signal) => {
      if (!text.input.value) throw new Wrong("Write a text.");
      const list = (await call("tokenize", { model, prompt: text.input.value, with_pieces: true }, signal)).tokens;
      const characters = [...text.input.value].length;
      const rows = list.map(
        ({ id, piece }, i) => h(
          "li",
          { class: i % 2 ? "odd" : null, title: String(id) },
          h("span", { class: "piece" }, (Array.isArray(piece) ? hexOf(piece) : shown(piece)) || "·"),
          h("span", { class: "id" }, String(id)),
        ),
      );
      const told = `${plural(list.length, "token")} for ${plural(characters, "character")}`;
      return [h("p", { class: "hint" }, told), h("ol", { class: "cut" }, ...rows)];
    },
  });
}

export function startTexts() {
  $("view-texts").append(h("div", { class: "page" }, similarity(), rerank(), tokens()));
}
