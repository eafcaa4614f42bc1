// Shows an answer as its tokens, coloured by probability. Clicking a token opens the list of its alternatives. Choosing an alternative
// continues the answer from there.
import { h, iconButton, percent } from "./dom.js";

const CHUNK = 256;  // number of tokens in one span of the page
// Lower bounds of the probability for the levels 0 to 4. Less likely tokens have level 5.
const STEPS = [0.9, 0.7, 0.5, 0.3, 0.1];
const levelOf = (logprob) => {
  const p = Math.exp(logprob);
  const level = STEPS.findIndex((step) => p >= step);
  return level < 0 ? STEPS.length : level;
};

export const shown = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");
const named = (text) => (text === "" ? "part of a character" : `“${text.replaceAll("\n", "↵").replaceAll(" ", "␣")}”`);

const encoder = new TextEncoder();
const bytesOf = (token) => (token.bytes?.length ? token.bytes : [...encoder.encode(token.text)]);

/** Returns the text of some tokens, or null if it ends within a character or the last token has no text. */
function textOf(tokens) {
  const last = tokens[tokens.length - 1];
  if (last && !last.text && !last.bytes?.length) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(tokens.flatMap(bytesOf)));
  } catch {
    return null;
  }
}

/** Returns the tokens of `node` before token `i`, and then `other`. `content` is their text, or null if it ends within a character. */
export function beginning(node, i, other) {
  const before = node.tokens.slice(0, i).filter((token) => token.kind !== "reasoning");
  const tokens = [...before, { ...other, top: node.tokens[i].top }];
  const text = textOf(tokens);
  return { tokens, head: node.head, content: text === null ? null : (node.head ?? "") + text };
}

export class TokenView {
  /** `goOn(i, token)` is called when the user chooses an alternative for token i. */
  constructor(node, goOn) {
    this.node = node;
    this.goOn = goOn;
    this.made = 0;
    this.element = h("div", { class: "tokens", role: "group", "aria-label": "Tokens; arrow keys move, Enter shows alternatives" });
    this.element.addEventListener("click", (event) => this.open(event.target.closest(".token")));
    this.element.addEventListener("keydown", (event) => this.key(event));
    // An answer whose beginning was generated without probabilities begins with plain text.
    if (node.head) this.element.append(h("span", { class: "plain" }, node.head));
    this.update();
  }

  update() {
    const { tokens } = this.node;
    for (; this.made < (tokens?.length ?? 0); this.made++) {
      if (this.made % CHUNK === 0) this.element.append(h("div", { class: "chunk" }));
      const token = tokens[this.made];
      if (token.kind === "reasoning") continue;
      const label = `${named(token.text)}, ${percent(Math.exp(token.logprob))}`;
      const props = { role: "button", tabindex: "-1", "aria-haspopup": "dialog", "aria-label": label, title: label, "data-i": this.made };
      const span = h("span", { class: `token p${levelOf(token.logprob)}`, ...props }, shown(token.text));
      this.element.lastChild.append(span);
      if (!this.current) this.move(span, false);
    }
  }

  move(span, focus = true) {
    if (!span) return;
    this.current?.setAttribute("tabindex", "-1");
    this.current = span;
    span.setAttribute("tabindex", "0");
    if (focus) span.focus();
  }

  key(event) {
    const spans = () => [...this.element.querySelectorAll(".token")];
    const step = (by) => {
      const all = spans();
      return all[Math.max(0, Math.min(all.length - 1, all.indexOf(this.current) + by))];
    };
    const ways = {
      ArrowRight: () => this.move(step(1)),
      ArrowLeft: () => this.move(step(-1)),
      ArrowDown: () => this.move(step(10)),
      ArrowUp: () => this.move(step(-10)),
      Home: () => this.move(step(-Infinity)),
      End: () => this.move(step(Infinity)),
      Enter: () => this.open(this.current),
      " ": () => this.open(this.current),
    };
    if (!event.target.closest(".token") || !Object.hasOwn(ways, event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    ways[event.key]();
  }

  open(span) {
    if (!span) return;
    this.move(span, false);
    const i = Number(span.dataset.i);
    const token = this.node.tokens[i];
    const close = () => {
      box.remove();
      span.focus();
    };
    const choices = (token.top ?? []).map((other) => {
      const same = other.text === token.text && bytesOf(other).join() === bytesOf(token).join();
      const whole = beginning(this.node, i, other).content !== null;
      const why = same ? "chosen" : whole ? null : other.bytes?.length ? "part of a character" : "ends the answer";
      const row = [
        h("span", { class: "alternative" }, shown(other.text) || "·"),
        h("meter", { min: "0", max: "1", value: Math.exp(other.logprob), "aria-hidden": "true" }),
      ];
      row.push(h("span", { class: "figure" }, percent(Math.exp(other.logprob))));
      if (why) return h("li", { class: same ? "chosen" : "off" }, ...row, h("span", { class: "why" }, why));
      const label = `Go on with ${named(other.text)}, ${percent(Math.exp(other.logprob))}`;
      return h(
        "li",
        {},
        h("button", { type: "button", class: "row", "aria-label": label, onclick: () => { box.remove(); this.goOn(i, other); } }, ...row),
      );
    });
    const box = h(
      "dialog",
      { class: "alternatives", "aria-label": `In place of ${named(token.text)}` },
      h(
        "header",
        {},
        h("span", {}, choices.length ? "Go on with another token" : "The server sent no alternatives here."),
        iconButton("close", "Close", close),
      ),
      h("ul", {}, ...choices),
    );
    box.addEventListener("cancel", (event) => { event.preventDefault(); close(); });
    box.addEventListener("click", (event) => event.target === box && close());
    document.body.append(box);
    box.showModal();
    box.querySelector("li button")?.focus();
    const at = span.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8));
    const below = at.bottom + 6 + box.offsetHeight < innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${Math.max(8, below ? at.bottom + 6 : at.top - 6 - box.offsetHeight)}px`;
  }
}
