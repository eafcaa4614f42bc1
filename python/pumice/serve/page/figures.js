// The Figures view: the metrics of /metrics as lines over the last minutes. A counter is shown as a rate, and a histogram as the mean of
// the new values.
import { CutOff, text, Unreachable } from "./api.js";
import { $, h, short, svg } from "./dom.js";

const EVERY = 2000;  // ms between two readings
const KEEP = 150;  // number of readings that are kept: five minutes
const MOST_LINES = 5;  // maximum number of lines in a chart; the largest ones are drawn
const CHART = { width: 300, height: 90 };
const FIRST = ["running", "waiting", "tokens", "requests", "first_token", "queue"];  // charts that come first

/** Parses Prometheus' text format: { name: { type, help, samples: [{ name, labels, value }] } }. */
export function readMetrics(body) {
  const families = new Map();
  const family = (name) => {
    if (!families.has(name)) families.set(name, { name, type: "untyped", help: "", samples: [] });
    return families.get(name);
  };
  for (const line of body.split("\n")) {
    const comment = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line);
    if (comment) family(comment[2])[comment[1].toLowerCase()] = comment[3];
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const base = match[1].replace(/_(?:bucket|sum|count|created)$/, "");
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!Number.isFinite(Number(match[3].replace("Inf", "Infinity")))) continue;
    const home = families.has(match[1]) ? match[1] : families.get(base) ? base : match[1];
    family(home).samples.push({ name: match[1], labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return families;
}

function labelOf(labels) {
  const shown = Object.entries(labels).filter(([key]) => key !== "le");
  return shown.map(([key, value]) => (key === "model" ? value : `${key} ${value}`)).join(", ");
}

/** Returns label -> present value for each line of a family. Counters and histograms are compared with the previous reading `before`. */
function valuesOf(family, before, seconds) {
  const result = new Map();
  const old = new Map((before?.samples ?? []).map((sample) => [`${sample.name} ${labelOf(sample.labels)}`, sample.value]));
  const since = (sample, name = sample.name) => sample.value - (old.get(`${name} ${labelOf(sample.labels)}`) ?? sample.value);
  if (family.type === "histogram" || family.type === "summary") {
    const sums = family.samples.filter((sample) => sample.name.endsWith("_sum"));
    for (const sum of sums) {
      const label = labelOf(sum.labels);
      const number = family.samples.find((sample) => sample.name.endsWith("_count") && labelOf(sample.labels) === label);
      const came = number ? since(number) : 0;
      result.set(label, came > 0 ? since(sum) / came : null);
    }
  } else {
    for (const sample of family.samples) {
      if (sample.name.endsWith("_created")) continue;
      const rate = family.type === "counter" || sample.name.endsWith("_total");
      if (rate && !before) continue;
      result.set(labelOf(sample.labels), rate ? Math.max(0, since(sample)) / seconds : sample.value);
    }
  }
  return result;
}

class Chart {
  constructor(family) {
    this.rate = family.type === "counter" || family.name.endsWith("_total");
    this.mean = family.type === "histogram" || family.type === "summary";
    this.title = family.name.replace(/^pumice_/, "").replace(/_total$/, "").replaceAll("_", " ");
    this.unit = this.rate ? "per second" : this.mean ? "mean" : "";
    this.series = new Map();
    this.plot = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none", class: "plot", role: "img" });
    this.most = h("span", { class: "most" });
    this.legend = h("ul", { class: "legend" });
    this.element = h(
      "section",
      { class: "chart" },
      h("h3", {}, this.title, h("span", { class: "unit" }, this.unit)),
      h("p", { class: "hint" }, family.help),
      h("div", { class: "plot-box" }, this.plot, this.most),
      this.legend,
    );
  }

  add(values, number) {
    for (const label of values.keys()) if (!this.series.has(label)) this.series.set(label, []);
    for (const [label, list] of this.series) {
      list.push([number, values.get(label) ?? null]);
      if (list.length > KEEP) list.shift();
    }
    this.draw(number);
  }

  draw(number) {
    const lines = [...this.series].map(([label, list]) => ({ label, list, top: Math.max(0, ...list.map(([, value]) => value ?? 0)) }));
    lines.sort((a, b) => b.top - a.top);
    const drawn = lines.slice(0, MOST_LINES);
    const top = drawn[0]?.top || 1;
    const x = (n) => CHART.width * (1 - (number - n) / (KEEP - 1));
    const y = (value) => CHART.height - 2 - (CHART.height - 6) * (value / top);
    this.plot.replaceChildren(
      ...drawn.map(({ list }, i) => {
        const points = list.filter(([, value]) => value !== null).map(([n, value]) => `${x(n).toFixed(1)},${y(value).toFixed(1)}`);
        if (points.length === 1) points.push(points[0]);
        return svg("polyline", { class: `line l${i}`, points: points.join(" ") });
      }),
    );
    const now = (list) => list.findLast(([, value]) => value !== null)?.[1];
    const told = drawn.map(({ label, list }) => `${label || this.title} ${short(now(list) ?? NaN)}`);
    this.plot.setAttribute("aria-label", `${this.title} ${this.unit}: ${told.join("; ")}. Highest ${short(top)}.`);
    this.most.textContent = short(top);
    this.legend.replaceChildren(
      ...drawn.map(
        ({ label, list }, i) => h(
          "li",
          {},
          h("span", { class: `key l${i}`, "aria-hidden": "true" }),
          h("span", {}, label || "all"),
          h("span", { class: "figure" }, short(now(list) ?? NaN)),
        ),
      ),
      ...(lines.length > drawn.length ? [h("li", { class: "hint" }, `and ${lines.length - drawn.length} smaller`)] : []),
    );
  }
}

export class Figures {
  constructor() {
    this.charts = new Map();
    this.readings = 0;
    this.note = h("p", { class: "empty-line" }, "Reading /metrics …");
    this.grid = h("div", { class: "charts" });
    const pause = h("button", { type: "button", class: "small", "aria-pressed": "false" }, "Pause");
    pause.addEventListener("click", () => {
      this.paused = !this.paused;
      pause.setAttribute("aria-pressed", String(this.paused));
    });
    $("view-figures").append(
      h("div", { class: "page" }, h("div", { class: "page-head" }, h("h2", {}, "Figures"), pause), this.note, this.grid),
    );
  }

  /** Reads /metrics regularly while the view is shown. */
  show(shown) {
    this.shown = shown;
    clearTimeout(this.timer);
    if (shown) this.turn();
  }

  async turn() {
    if (!this.paused && document.visibilityState === "visible") await this.read();
    clearTimeout(this.timer);
    if (this.shown) this.timer = setTimeout(() => this.turn(), EVERY);
  }

  async read() {
    let families;
    try {
      families = readMetrics(await text("metrics"));
    } catch (error) {
      if (!(error.status || error instanceof Unreachable || error instanceof CutOff || error instanceof TypeError)) throw error;
      this.note.replaceChildren(
        error instanceof Unreachable ? "The server does not answer. The lines go on when it is back." : error.message,
      );
      this.before = null;
      return;
    }
    const now = performance.now();
    const own = [...families.values()].filter(
      ({ name, samples }) => samples.length && /^(pumice_|process_resident_memory_bytes)/.test(name),
    );
    this.note.textContent = own.length ? "" : "The server's /metrics hold no figures of pumice.";
    this.readings++;
    let fresh = false;
    for (const family of own) {
      const values = valuesOf(family, this.before?.families.get(family.name), (now - (this.before?.now ?? now)) / 1000 || 1);
      if (!values.size) continue;
      if (!this.charts.has(family.name)) {
        this.charts.set(family.name, new Chart(family));
        fresh = true;
      }
      this.charts.get(family.name).add(values, this.readings);
    }
    this.before = { families, now };
    if (fresh) this.arrange();
  }

  arrange() {
    const place = (name) => {
      const found = FIRST.findIndex((part) => name.includes(part));
      return found < 0 ? FIRST.length : found;
    };
    const names = [...this.charts.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
    this.grid.replaceChildren(...names.map((name) => this.charts.get(name).element));
  }
}
