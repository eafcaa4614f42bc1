// One message of the thread: its text, reasoning, calls, and the buttons below it.
import { copy, h, icon, iconButton, plural, say, short } from "./dom.js";
import { codeBlock, Markdown } from "./markdown.js";
import { TokenView } from "./tokens.js";

const WHO = { user: "You", tool: "Result" };
const FINISHES = {
  length: "The limit of tokens was reached.",
  repetition: "The answer only repeated itself.",
  content_filter: "The server held the rest back.",
};
const STATES = { cut: "The connection ended before the answer was whole.", stopped: "Stopped." };

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // the text is incomplete or not JSON
  }
}

/** Shows a message. `actions` come from actions() in chat.js. */
export class MessageView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.element = h("article", { class: `message ${node.role}`, "data-node": node.id });
    this.head = h("header", {}, h("h3", { class: "who" }, WHO[node.role] ?? (node.model || "Answer")));
    this.body = h("div", { class: "body" });
    this.notes = h("div", { class: "notes" });
    this.foot = h("footer");
    this.element.append(this.head, this.body, this.notes, this.foot);
    if (node.role === "tool") this.head.firstChild.textContent = `Result of ${node.name || "a call"}`;
    if (node.role === "assistant") this.prepareAnswer();
    this.tokenView = null;
    this.footState = null;
    this.update();
  }

  prepareAnswer() {
    this.reasoningText = h("div", { class: "md" });
    this.reasoningMarkdown = new Markdown(this.reasoningText);
    this.reasoningLabel = h("span");
    this.reasoning = h("details", { class: "reasoning", hidden: true }, h("summary", {}, this.reasoningLabel), this.reasoningText);
    this.reasoning.addEventListener("toggle", () => this.update());
    this.text = h("div", { class: "md text" });
    this.markdown = new Markdown(this.text);
    this.calls = h("div", { class: "calls" });
    this.body.append(this.reasoning, this.text, this.calls);
  }

  /** Shows the present content of the node. Returns false if a part is postponed to a later frame. */
  update() {
    const { node } = this;
    let whole = true;
    if (node.role !== "assistant") {
      if (!this.editing && this.shownText !== node.content) {
        this.shownText = node.content;
        this.body.replaceChildren(
          node.role === "tool" ? codeBlock(indented(node.content), "result") : h("div", { class: "plain" }, node.content),
        );
      }
    } else whole = this.updateAnswer();
    this.updateFoot();
    return whole;
  }

  updateAnswer() {
    const { node } = this;
    const running = node.state === "running";
    let whole = true;
    this.element.classList.toggle("running", running);
    if (running) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
    this.reasoning.hidden = !node.reasoning;
    if (node.reasoning) {
      const thinking = running && !node.content && !node.calls?.length;
      this.reasoningLabel.textContent = thinking ? `Reasoning … ${short(node.reasoning.length)} characters` : "Reasoning";
      if (this.reasoning.open) whole = this.reasoningMarkdown.show(node.reasoning, !running) && whole;
    }
    if (!this.editing) {
      if (this.tokenView) this.tokenView.update();
      else whole = this.markdown.show(node.content, !running) && whole;
    }
    this.text.classList.toggle("waiting", running && !node.content && !node.calls?.length);
    this.updateCalls(running);
    return whole;
  }

  updateCalls(running) {
    const calls = this.node.calls ?? [];
    calls.forEach((call, i) => {
      if (!this.calls.children[i]) {
        const code = h("code");
        this.calls.append(
          h(
            "section",
            { class: "call" },
            h("h4", {}, icon("on"), h("span", {}, "…")),
            h("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, code),
          ),
        );
      }
      const [title, code] = this.calls.children[i].children;
      title.lastChild.textContent = call.name || "…";
      const text = running ? call.arguments : indented(call.arguments);
      if (code.textContent !== text) code.firstChild.textContent = text;
    });
    if (calls.length && !running && this.actions.awaitsResults(this.node)) {
      if (!this.form) {
        this.form = this.resultForm(calls);
        this.calls.append(this.form);
      }
    } else {
      this.form?.remove();
      this.form = null;
    }
  }

  resultForm(calls) {
    const inputs = calls.map((call, i) => h("textarea", { rows: "2", id: `result-${this.node.id}-${i}`, spellcheck: "false" }));
    const fields = calls.map((call, i) => h("label", { for: inputs[i].id }, `Result of ${call.name}`, inputs[i]));
    const send = () => this.actions.results(this.node, inputs.map((input) => input.value));
    const form = h(
      "form",
      { class: "results", onsubmit: (event) => { event.preventDefault(); send(); } },
      ...fields,
      h("button", { class: "primary" }, calls.length > 1 ? "Send results" : "Send result"),
    );
    return form;
  }

  updateFoot() {
    const { node, actions } = this;
    const { list, index } = actions.versions(node);
    const running = node.state === "running";
    const state = [
      node.state,
      node.finish,
      node.problem,
      list.length,
      index,
      !!node.tokens?.length,
      !!this.tokenView,
      this.editing,
      running,
      node.usage?.completion,
    ].join("|");
    if (state === this.footState) return;
    this.footState = state;
    const held = this.foot.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const left = h("div", { class: "buttons" });
    if (list.length > 1) {
      left.append(
        iconButton("left", "Earlier version", () => actions.show(list[index - 1]), { disabled: index === 0 }),
        h("span", { class: "place" }, `${index + 1} of ${list.length}`),
        iconButton("right", "Later version", () => actions.show(list[index + 1]), { disabled: index === list.length - 1 }),
      );
    }
    if (!running && !this.editing) {
      if (node.content && node.role !== "tool") left.append(iconButton("copy", "Copy", () => copy(node.content, "Text")));
      const edit = node.role === "user" ? "Edit and send again" : "Edit as another version";
      if (node.role !== "tool") left.append(iconButton("edit", edit, () => this.edit()));
      if (node.role === "assistant") {
        left.append(iconButton("again", "Answer again", () => actions.regenerate(node)));
        if (this.canGoOn()) left.append(iconButton("on", "Go on", () => actions.goOn(node)));
        const pressed = { "aria-pressed": String(!!this.tokenView) };
        const toggle = () => {
          this.showTokens(!this.tokenView);
          say(this.tokenView ? "The answer is shown as tokens." : "The answer is shown as text.");
        };
        if (node.tokens?.length) left.append(iconButton("tokens", "Tokens and their probabilities", toggle, pressed));
        left.append(iconButton("code", "The request of this answer", () => actions.request(node)));
      }
    }
    this.foot.replaceChildren(left, h("span", { class: "meta" }, running ? "" : this.meta()));
    if (held) this.foot.querySelector(`[aria-label="${held}"]`)?.focus();
    this.updateNotes(running);
  }

  canGoOn() {
    const { node } = this;
    return node.content && !node.calls?.length && (node.state !== "done" || node.finish === "length");
  }

  meta() {
    const { node } = this;
    const parts = [];
    if (node.usage) {
      parts.push(plural(node.usage.completion, "token"));
      if (node.usage.cached) parts.push(`${short(node.usage.cached)} of ${short(node.usage.prompt)} read from cache`);
    }
    if (node.speed) parts.push(`${short(node.speed)} tokens/s`);
    return parts.join(" · ");
  }

  updateNotes(running) {
    const { node } = this;
    const notes = [];
    if (!running && node.role === "assistant") {
      const text = node.problem ?? STATES[node.state] ?? FINISHES[node.finish];
      const wrong = node.state === "cut" || node.state === "error";
      if (wrong || text) {
        const buttons = [];
        if (wrong && this.canGoOn()) buttons.push(h("button", { type: "button", onclick: () => this.actions.goOn(node) }, "Go on"));
        if (wrong) buttons.push(h("button", { type: "button", onclick: () => this.actions.regenerate(node) }, "Try again"));
        notes.push(h("div", { class: wrong ? "note wrong" : "note" }, h("span", {}, text || "The answer failed."), ...buttons));
      }
      if (node.ignored?.length) notes.push(h("div", { class: "note" }, `This model does not use: ${node.ignored.join(", ")}.`));
    }
    this.notes.replaceChildren(...notes);
  }

  showTokens(on) {
    if (!on) {
      this.tokenView.element.replaceWith(this.text);
      this.tokenView = null;
    } else {
      this.tokenView = new TokenView(this.node, (i, token) => this.actions.alternative(this.node, i, token));
      this.text.replaceWith(this.tokenView.element);
    }
    this.update();
  }

  edit() {
    const { node } = this;
    const area = h("textarea", { "aria-label": "Text of the message", rows: String(Math.min(16, 1 + node.content.split("\n").length)) });
    area.value = node.content;
    const shown = this.tokenView?.element ?? this.text ?? this.body.firstChild;
    const end = () => {
      box.replaceWith(shown);
      this.editing = false;
      this.update();
      this.foot.querySelector(`[aria-label^="Edit"]`)?.focus();
    };
    const save = () => {
      const text = area.value;
      end();
      if (text !== node.content) this.actions.edit(node, text);
    };
    const box = h(
      "form",
      { class: "edit", onsubmit: (event) => { event.preventDefault(); save(); } },
      area,
      h(
        "div",
        { class: "buttons" },
        h("button", { class: "primary" }, node.role === "user" ? "Send" : "Keep"),
        h("button", { type: "button", onclick: end }, "Cancel"),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.editing = true;
    shown.replaceWith(box);
    this.updateFoot();
    area.focus();
  }
}
