// The panel with a conversation's own settings, made from the table in request.js.
import { $, h, icon, iconButton } from "./dom.js";
import { FIELDS, SCHEMA_EXAMPLE, TOOLS_EXAMPLE, valueOf } from "./request.js";

const EXAMPLES = { schema: SCHEMA_EXAMPLE, tools: TOOLS_EXAMPLE };
const WIDE = matchMedia("(min-width: 68rem)");

export class Settings {
  /** `changed` is called after each change of a setting. */
  constructor(changed) {
    this.changed = changed;
    this.inputs = new Map();
    const panel = $("settings");
    const groups = new Map();
    for (const field of FIELDS) {
      if (!groups.has(field.group)) groups.set(field.group, h("fieldset", {}, h("legend", {}, field.group)));
      groups.get(field.group).append(this.row(field));
    }
    this.probabilities = h("input", { type: "checkbox", id: "probabilities" });
    this.probabilities.addEventListener("change", () => this.set("probabilities", this.probabilities.checked || undefined));
    const check = h("label", { class: "check" }, this.probabilities, " Ask for the probability of each token");
    groups.get("Sampling").append(check);
    panel.append(
      h("div", { class: "panel-head" }, h("h2", {}, "Settings"), iconButton("close", "Close settings", () => this.toggle(false))),
      ...groups.values(),
    );
    $("settings-open").append(icon("settings"));
    $("settings-open").addEventListener("click", () => this.toggle(panel.hidden));
    panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      this.toggle(false);
    });
    WIDE.addEventListener("change", () => this.cover());
  }

  row(field) {
    const id = `set-${field.name}`;
    const told = h("p", { class: "problem", id: `${id}-problem` });
    const props = { id, "aria-describedby": `${id}-hint ${id}-problem` };
    let input;
    const option = (choice) => h("option", { value: choice }, choice || "default");
    const prose = field.kind === "text" ? {} : { spellcheck: "false", class: "mono" };
    const mode = field.kind === "integer" ? "numeric" : "decimal";
    if (field.kind === "choice") input = h("select", props, field.choices.map(option));
    else if (field.rows) input = h("textarea", { ...props, ...prose, rows: String(field.rows) });
    else input = h("input", { ...props, inputmode: mode, autocomplete: "off", placeholder: "default" });
    input.addEventListener(field.kind === "choice" ? "change" : "input", () => this.set(field.name, input.value || undefined));
    this.inputs.set(field.name, { field, input, told });
    const example = EXAMPLES[field.name];
    const fill = () => {
      input.value = example;
      this.set(field.name, example);
      input.focus();
    };
    const hint = h("span", { class: "hint", id: `${id}-hint` }, field.hint ?? "");
    const head = h(
      "div",
      { class: "row-head" },
      h("label", { for: id }, field.label),
      hint,
      example ? h("button", { type: "button", class: "quiet small", onclick: fill }, "Example") : "",
    );
    return h("div", { class: field.rows || field.kind === "choice" ? "field" : "field short" }, head, input, told);
  }

  show(conversation) {
    this.conversation = conversation;
    for (const [name, { input }] of this.inputs) {
      input.value = conversation.settings[name] ?? "";
      this.check(name);
    }
    this.probabilities.checked = conversation.settings.probabilities === true;
    this.mark();
  }

  set(name, value) {
    const { settings } = this.conversation;
    if (value === undefined) delete settings[name];
    else settings[name] = value;
    this.check(name);
    this.mark();
    this.changed();
  }

  check(name) {
    const entry = this.inputs.get(name);
    if (!entry) return;
    let problem = "";
    try {
      valueOf(entry.field, entry.input.value);
    } catch (error) {
      problem = `${entry.field.label} ${error.message}.`;
    }
    entry.told.textContent = problem;
    entry.input.setAttribute("aria-invalid", String(problem !== ""));
  }

  /** Marks the button if a setting differs from the server's default. */
  mark() {
    const some = Object.keys(this.conversation.settings).length;
    $("settings-open").classList.toggle("marked", some > 0);
    $("settings-open").setAttribute("aria-label", some ? `Settings, ${some} set` : "Settings");
  }

  toggle(open) {
    const panel = $("settings");
    panel.hidden = !open;
    $("settings-open").setAttribute("aria-expanded", String(open));
    this.cover();
    if (open) panel.querySelector("button").focus();
    else $("settings-open").focus();
  }

  /** Makes the conversation inert while the panel covers it, in a narrow window. */
  cover() {
    $("talk").inert = !$("settings").hidden && !WIDE.matches;
  }

  /** Opens the panel at the field with the problem. */
  point({ field }) {
    if ($("settings").hidden) this.toggle(true);
    this.inputs.get(field.name).input.focus();
  }
}
