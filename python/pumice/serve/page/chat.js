// The chat view: the open conversation, the box for the next message, and the answers that are being generated.
import { call, CutOff, hasKey, Unreachable } from "./api.js";
import { $, copy, count, download, h, icon, kept, later, openDialog, plural, say, short } from "./dom.js";
import { fillModels, modelNamed, modelsFor, onModels } from "./models.js";
import { bodyOf, curlOf, messagesOf, problemOf } from "./request.js";
import { run } from "./run.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { getConversation, onOtherTab, putConversation, toFile } from "./store.js";
import { Thread } from "./thread.js";
import { beginning } from "./tokens.js";
import { addNode, lanesWith, newConversation, newestLeaf, pathTo, removeNodes, sameTurn, titleOf, versions } from "./tree.js";

const SAVE_EVERY = 2000;  // ms between two saves while an answer grows

export class Chat {
  constructor() {
    this.running = new Map();  // node id -> { controller, conversation }
    this.saving = new Map();  // conversation id -> timer of its next save
    this.thread = new Thread(this.actions());
    this.settings = new Settings(() => this.save());
    this.sidebar = new Sidebar({ open: (id) => this.open(id), create: () => this.create(), removed: (id) => this.removed(id) });
    this.bind();
    onModels(() => this.showModels());
    onOtherTab((id) => this.changedElsewhere(id));
  }

  bind() {
    const draft = $("draft");
    $("send").append(icon("send"));
    $("to-end").append(icon("down"));
    $("export-one").append(icon("save"));
    const keep = later(() => this.keepDraft(), 300);
    draft.addEventListener("input", () => {
      this.fitDraft();
      keep();
    });
    draft.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.busy()) this.send();
    });
    addEventListener("pagehide", () => {
      this.keepDraft();
      if (this.busy()) this.save(true);
    });
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy()) this.stop();
      else this.send();
    });
    $("view-chat").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.busy() && !event.defaultPrevented) this.stop();
    });
    $("title").addEventListener("change", () => {
      this.conversation.title = $("title").value.trim();
      $("title").value = titleOf(this.conversation);
      this.save(true);
    });
    $("model").addEventListener("change", () => this.chooseModel(0, $("model").value));
    $("second").addEventListener("change", () => this.chooseModel(1, $("second").value));
    $("export-one").addEventListener("click", () => {
      download(`${titleOf(this.conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)}.json`, toFile([this.conversation]));
      say("Conversation exported.");
    });
    $("curl").addEventListener("click", () => this.showRequest(this.nextPath()));
    $("request-close").addEventListener("click", () => $("request-dialog").close());
    $("request-copy").addEventListener("click", () => copy($("request-text").textContent, "Text"));
    $("request-prompt").addEventListener("click", () => this.showPrompt());
  }

  /** Returns the functions that the buttons of a message call. */
  actions() {
    return {
      busy: () => this.busy(),
      versions: (node) => {
        const list = versions(this.conversation, node);
        return { list, index: list.indexOf(node) };
      },
      show: (node) => {
        const list = versions(this.conversation, node);
        for (const lane of this.conversation.lanes) {
          const shows = pathTo(this.conversation, lane.leaf).some((other) => list.includes(other));
          if (shows) lane.leaf = newestLeaf(this.conversation, node, this.conversation.lanes.length > 1 ? lane.model : node.model);
        }
        this.refresh();
        this.thread.viewOf(node.id)?.foot.querySelector("button:not([disabled])")?.focus();
        say(`Version ${list.indexOf(node) + 1} of ${list.length}.`);
        this.save();
      },
      edit: (node, text) => this.edit(node, text),
      regenerate: (node) => {
        if (!this.mayAnswer()) return;
        for (const lane of lanesWith(this.conversation, node)) this.answer(lane, node.parent, lane.leaf);
      },
      goOn: (node) => {
        if (!this.mayAnswer()) return;
        const [lane] = lanesWith(this.conversation, node);
        this.begin(lane, node, true);
      },
      alternative: (node, i, token) => {
        if (!this.mayAnswer()) return;
        const [lane] = lanesWith(this.conversation, node);
        const fresh = this.addAnswer(lane, node.parent, { ...beginning(node, i, token), reasoning: node.reasoning });
        lane.leaf = fresh.id;
        this.begin(lane, fresh, true);
        this.thread.viewOf(fresh.id)?.showTokens(true);
      },
      awaitsResults: (node) => !this.busy() && this.conversation.lanes.some((lane) => lane.leaf === node.id),
      results: (node, texts) => {
        if (!this.mayAnswer()) return;
        for (const lane of this.conversation.lanes.filter(({ leaf }) => leaf === node.id)) {
          let parent = node.id;
          node.calls.forEach((c, i) => {
            parent = addNode(this.conversation, parent, { role: "tool", callId: c.id, name: c.name, content: texts[i] }).id;
          });
          this.answer(lane, parent);
        }
      },
      request: (node) => this.showRequest(pathTo(this.conversation, node.parent), node.model),
    };
  }

  // The open conversation

  async start() {
    const last = kept.get("open");
    const conversation = last && (await getConversation(last));
    this.use(conversation || newConversation(""));
    this.sidebar.refresh(this.conversation.id);
  }

  async open(id) {
    const held = [...this.running.values()].find((entry) => entry.conversation.id === id)?.conversation;
    const conversation = held ?? (await getConversation(id));
    if (!conversation) return;
    this.use(conversation);
    // The element that had the focus may be gone, or hidden under a list that was closed.
    const focus = document.activeElement;
    if (!focus || focus === document.body || focus.closest("[inert]")) $("thread").focus({ preventScroll: true });
  }

  create() {
    this.use(newConversation(this.conversation?.lanes[0].model ?? ""));
    $("draft").focus();
  }

  removed(id) {
    for (const [node, entry] of this.running) {
      if (entry.conversation.id !== id) continue;
      entry.removed = true;
      entry.controller.abort();
      this.running.delete(node);
    }
    clearTimeout(this.saving.get(id));
    this.saving.delete(id);
    kept.set(`draft.${id}`, null);
    if (this.conversation.id === id) this.use(newConversation(this.conversation.lanes[0].model));
  }

  use(conversation) {
    if (this.conversation) this.keepDraft();
    for (const node of Object.values(conversation.nodes)) {
      if (node.state !== "running" || this.running.has(node.id)) continue;
      node.state = "cut";
      node.problem = "The page was closed before the answer was whole.";
    }
    this.conversation = conversation;
    kept.set("open", conversation.id);
    $("draft").value = kept.get(`draft.${this.draftName()}`) ?? "";
    this.fitDraft();
    this.settings.show(conversation);
    this.showModels();
    this.refresh();
    this.sidebar.mark(conversation.id);
  }

  async changedElsewhere(id) {
    this.sidebar.refresh(this.conversation.id);
    if (id !== this.conversation.id || this.busy()) return;
    const conversation = await getConversation(id);
    if (!conversation || this.busy() || this.conversation.id !== id) return;
    this.conversation = conversation;
    this.settings.show(conversation);
    this.refresh();
  }

  refresh() {
    this.thread.show(this.conversation);
    $("title").value = titleOf(this.conversation);
    this.showBusy();
  }

  showModels() {
    if (!this.conversation) return;
    const [first, second] = this.conversation.lanes;
    first.model = fillModels($("model"), ["generate"], first.model);
    fillModels($("second"), ["generate"], second?.model ?? "", "One model");
    $("second").parentElement.hidden = modelsFor("generate").length < 2 && !second;
    const model = modelNamed(first.model);
    const about = [model?.id, model?.device, model?.n_ctx && `context of ${count(model.n_ctx)} tokens`].filter(Boolean);
    $("empty-model").textContent = about.join(" · ");
    this.showContext();
  }

  chooseModel(lane, id) {
    const { lanes } = this.conversation;
    if (lane === 0) lanes[0].model = id;
    else if (!id) lanes.length = 1;
    else if (lanes[1]) lanes[1].model = id;
    else lanes.push({ model: id, leaf: lanes[0].leaf });
    this.showModels();
    this.refresh();
    if (Object.keys(this.conversation.nodes).length) this.save();
  }

  /** Saves the conversation, at once or at most every two seconds. A conversation without messages and settings is not saved. */
  save(now = false, conversation = this.conversation) {
    const { id } = conversation;
    const work = async () => {
      this.saving.delete(id);
      if (!Object.keys(conversation.nodes).length && !Object.keys(conversation.settings).length && !conversation.title) return;
      try {
        await putConversation(conversation);
      } catch (error) {
        say(`The browser did not keep the conversation: ${error.message}. Export it.`);
      }
      this.sidebar.refresh(this.conversation.id);
    };
    if (now) {
      clearTimeout(this.saving.get(id));
      work();
    } else if (!this.saving.has(id)) this.saving.set(id, setTimeout(work, SAVE_EVERY));
  }

  draftName() {
    return Object.keys(this.conversation.nodes).length ? this.conversation.id : "new";
  }

  keepDraft() {
    kept.set(`draft.${this.draftName()}`, $("draft").value);
  }

  fitDraft() {
    const draft = $("draft");
    draft.rows = Math.min(10, draft.value.split("\n").length);
  }

  // Answers

  busy() {
    return [...this.running.values()].some((entry) => entry.conversation === this.conversation);
  }

  /** Returns false, and says why, if no request can be made now. */
  mayAnswer() {
    if (this.busy()) {
      say("An answer is being written. Escape stops it.");
      return false;
    }
    const problem = problemOf(this.conversation.settings);
    if (problem) {
      this.settings.point(problem);
      say(problem.message);
      return false;
    }
    if (this.conversation.lanes.every((lane) => lane.model)) return true;
    say("The server has no model that answers, or it cannot be reached. Your text is kept.");
    return false;
  }

  send() {
    const text = $("draft").value;
    if (!text.trim() || !this.mayAnswer()) return;
    const { conversation } = this;
    kept.set(`draft.${this.draftName()}`, null);
    $("draft").value = "";
    this.fitDraft();
    this.ask(text, conversation.lanes.map((lane) => ({ lane, parent: lane.leaf })), true);
  }

  /** Adds the message `text` below each lane's `parent` and requests its answer. Lanes with the same parent share the message. */
  ask(text, places, fromDraft) {
    const users = new Map();
    this.thread.follows = true;
    for (const { lane, parent } of places) {
      const before = lane.leaf;
      if (!users.has(parent)) users.set(parent, addNode(this.conversation, parent, { role: "user", content: text }));
      if (fromDraft) this.answer(lane, users.get(parent).id, before, text);
      else this.answer(lane, users.get(parent).id);
    }
  }

  edit(node, text) {
    if (node.role === "user") {
      const places = sameTurn(this.conversation, node).map(({ lane, user }) => ({ lane, parent: user.parent }));
      if (this.mayAnswer()) this.ask(text, places, false);
      return;
    }
    for (const lane of lanesWith(this.conversation, node)) {
      const { model, reasoning, calls } = node;
      lane.leaf = this.addAnswer(lane, node.parent, { model, reasoning, calls, content: text, state: "done" }).id;
    }
    this.refresh();
    this.save(true);
  }

  addAnswer(lane, parent, fields) {
    return addNode(this.conversation, parent, { role: "assistant", model: lane.model, state: "running", ...fields });
  }

  answer(lane, parent, before, text = null) {
    const node = this.addAnswer(lane, parent, {});
    lane.leaf = node.id;
    this.begin(lane, node, false, before, text);
  }

  /**
   * Generates an answer into `node`. If the server cannot be reached and `before` is given, the node is removed, the lane shows the leaf
   * `before` again, and `text` is put back into the box. Without `before` the node stays and shows the problem.
   */
  async begin(lane, node, goesOn, before, text = null) {
    const { conversation } = this;
    const entry = { controller: new AbortController(), conversation, removed: false };
    const old = { state: node.state, problem: node.problem, finish: node.finish };
    const body = bodyOf(conversation.settings, lane.model, pathTo(conversation, goesOn ? node.id : node.parent), goesOn);
    delete node.problem;
    delete node.finish;
    if (!body.logprobs) delete node.tokens;  // probabilities of only a part of the tokens are of no use
    else if (!node.tokens && node.content) node.head = node.content;
    node.state = "running";
    this.running.set(node.id, entry);
    if (conversation === this.conversation) {
      this.refresh();
      // The button that had the focus may be gone.
      if (!document.activeElement || document.activeElement === document.body) $("send").focus();
    }
    say(`${lane.model} answers.`);
    this.save(false, conversation);
    try {
      await run(node, body, entry.controller.signal, () => this.grown(conversation, node));
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      this.takeBack(conversation, lane, node, before, text, old);
      this.ended(conversation, node, entry, "The server does not answer. Your text is kept.");
      return;
    }
    this.ended(conversation, node, entry, this.summary(node));
  }

  grown(conversation, node) {
    this.save(false, conversation);
    if (conversation !== this.conversation) return;
    this.thread.touch(node.id);
    const now = performance.now();
    if (now - (this.shownSpeed ?? 0) < 500) return;
    this.shownSpeed = now;
    $("speed").textContent = node.speed ? `${short(node.speed)} tokens/s` : "";
  }

  takeBack(conversation, lane, node, before, text, old) {
    if (before === undefined) {
      Object.assign(node, old, { state: old.state === "running" ? "error" : old.state, problem: "The server does not answer." });
      return;
    }
    lane.leaf = before;
    const gone = [];
    for (let at = node; at && at.id !== before; at = conversation.nodes[at.parent]) {
      const below = Object.values(conversation.nodes).some((other) => other.parent === at.id && !gone.includes(other));
      if (below || (at !== node && at.role === "assistant")) break;
      gone.push(at);
      if (at.role === "user") break;
    }
    removeNodes(conversation, gone);
    const draft = $("draft");
    const asked = gone.some((other) => other.role === "user");
    if (!asked || text === null || conversation !== this.conversation || draft.value.trim()) return;
    draft.value = text;
    this.fitDraft();
    this.keepDraft();
  }

  ended(conversation, node, entry, told) {
    this.running.delete(node.id);
    if (entry.removed) return;
    conversation.updated = Date.now();
    this.save(true, conversation);
    say(conversation === this.conversation ? told : `${titleOf(conversation)}: ${told}`);
    if (conversation === this.conversation) this.refresh();
  }

  summary(node) {
    const speed = node.speed ? `, ${short(node.speed)} tokens/s` : "";
    const size = node.usage ? ` ${plural(node.usage.completion, "token")}${speed}.` : "";
    const did = node.calls?.length ? `calls ${node.calls.map((c) => c.name).join(", ")}` : "has answered";
    if (node.state === "done") return `${node.model} ${did}.${size}`;
    return node.problem ?? (node.state === "stopped" ? "Stopped." : "The answer failed.");
  }

  stop() {
    for (const entry of this.running.values()) if (entry.conversation === this.conversation) entry.controller.abort();
  }

  showBusy() {
    const busy = this.busy();
    const button = $("send");
    const label = busy ? "Stop" : "Send";
    button.replaceChildren(icon(busy ? "stop" : "send"));
    button.setAttribute("aria-label", label);
    button.title = busy ? "Stop (Escape)" : label;
    $("thread").setAttribute("aria-busy", String(busy));
    $("model").disabled = $("second").disabled = busy;
    if (!busy) $("speed").textContent = "";
    this.thread.touchAll();
    this.showContext();
  }

  showContext() {
    const [lane] = this.conversation.lanes;
    const used = pathTo(this.conversation, lane.leaf).findLast((node) => node.usage)?.usage;
    const size = modelNamed(lane.model)?.n_ctx;
    const box = $("context");
    if (!used) {
      box.replaceChildren();
      return;
    }
    const sum = used.prompt + used.completion;
    const text = size ? `${count(sum)} of ${count(size)} tokens of context` : `${count(sum)} tokens of context`;
    box.replaceChildren(
      h("span", {}, text),
      size ? h("meter", { min: "0", max: String(size), value: String(sum), "aria-label": "Context used" }) : "",
    );
  }

  // Requests

  nextPath() {
    const text = $("draft").value;
    const path = pathTo(this.conversation, this.conversation.lanes[0].leaf);
    return text.trim() ? [...path, { role: "user", content: text }] : path;
  }

  showRequest(path, model = this.conversation.lanes[0].model) {
    const { settings } = this.conversation;
    const problem = problemOf(settings);
    if (problem) {
      say(problem.message);
      this.settings.point(problem);
      return;
    }
    this.requested = bodyOf(settings, model, path);
    $("request-title").textContent = "Request, as curl";
    $("request-text").textContent = curlOf("v1/chat/completions", this.requested, hasKey());
    $("request-prompt").hidden = messagesOf(settings, path).length === 0;
    openDialog($("request-dialog"));
  }

  async showPrompt() {
    const { model, messages, tools, chat_template_kwargs } = this.requested;
    try {
      const { prompt } = await call("apply-template", { model, messages, tools, chat_template_kwargs });
      $("request-text").textContent = String(prompt);
      $("request-title").textContent = "Prompt, as the model reads it";
      $("request-prompt").hidden = true;
    } catch (error) {
      if (!(error instanceof CutOff || error instanceof Unreachable || error.status)) throw error;
      $("request-text").textContent = `The prompt could not be made: ${error.message}`;
    }
  }
}
