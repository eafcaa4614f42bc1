// The list of conversations, with their import and export.
import { $, download, h, icon, iconButton, later, offer, plural, say } from "./dom.js";
import { fromFile, getConversation, importAll, listConversations, putConversation, removeConversation, toFile } from "./store.js";

const WIDE = matchMedia("(min-width: 56rem)");
const LARGEST = 256 * 2 ** 20;  // maximum size in bytes of a file to import

export class Sidebar {
  /** `actions` has the functions open(id), create() and removed(id). */
  constructor(actions) {
    this.actions = actions;
    this.conversations = [];
    $("new").prepend(icon("plus"));
    $("new").addEventListener("click", () => {
      this.close(false);
      actions.create();
    });
    $("side-open").append(icon("menu"));
    $("side-open").addEventListener("click", () => this.toggle());
    $("side-close").append(icon("close"));
    $("side-close").addEventListener("click", () => this.close(true));
    $("side").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || WIDE.matches) return;
      event.preventDefault();
      this.close(true);
    });
    $("filter").addEventListener("input", later(() => this.draw(), 100));
    $("export-all").addEventListener("click", () => this.exportAll());
    $("import").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => this.importFile());
    WIDE.addEventListener("change", () => this.state());
    this.state();
  }

  isOpen() {
    const view = $("view-chat");
    return WIDE.matches ? !view.classList.contains("side-shut") : view.classList.contains("side-over");
  }

  state() {
    const open = this.isOpen();
    $("side-open").setAttribute("aria-expanded", String(open));
    $("side").inert = !open;
    $("talk").inert = open && !WIDE.matches;
  }

  toggle() {
    $("view-chat").classList.toggle(WIDE.matches ? "side-shut" : "side-over");
    this.state();
    if (this.isOpen()) $("new").focus();
  }

  /** Closes the list when something is chosen, if the window is narrow, because the list then covers the conversation. */
  close(focus) {
    if (WIDE.matches) return;
    $("view-chat").classList.remove("side-over");
    this.state();
    if (focus) $("side-open").focus();
  }

  async refresh(id) {
    const before = this.conversations;
    this.conversations = await listConversations();
    this.current = id;
    const names = (list) => list.map(({ id: own, title }) => `${own} ${title}`).join("\n");
    const same = this.drawn && names(before) === names(this.conversations);
    if (same) this.mark(id);
    else this.draw();
  }

  mark(id) {
    this.current = id;
    for (const item of $("conversations").querySelectorAll("[data-id]")) {
      if (item.dataset.id === id) item.setAttribute("aria-current", "true");
      else item.removeAttribute("aria-current");
    }
  }

  draw() {
    this.drawn = true;
    const list = $("conversations");
    const wanted = $("filter").value.trim().toLowerCase();
    const shown = this.conversations.filter(({ title }) => title.toLowerCase().includes(wanted));
    const held = document.activeElement?.closest?.("#conversations button");
    const focus = held && { id: held.closest("li").firstChild.dataset.id, last: held !== held.closest("li").firstChild };
    list.replaceChildren(...shown.map((conversation) => this.item(conversation)));
    if (!shown.length) list.append(h("li", { class: "none" }, this.conversations.length ? "No title has this text." : "Nothing here yet."));
    $("export-all").disabled = !this.conversations.length;
    $("filter").hidden = this.conversations.length < 8 && !wanted;
    this.mark(this.current);
    if (!focus) return;
    const item = [...list.children].find((li) => li.firstChild.dataset?.id === focus.id);
    (focus.last ? item?.lastChild : item?.firstChild)?.focus();
  }

  item({ id, title, updated }) {
    const when = new Date(updated).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
    const choose = () => {
      this.close(false);
      this.actions.open(id);
    };
    const open = h("button", { type: "button", class: "open", "data-id": id, title: `${title}\n${when}`, onclick: choose }, title);
    return h("li", {}, open, iconButton("trash", `Delete ${title}`, () => this.remove(id, title)));
  }

  async remove(id, title) {
    const conversation = await getConversation(id);
    await removeConversation(id);
    this.actions.removed(id);
    await this.refresh(this.current);
    ($("conversations").querySelector("button") ?? $("new")).focus();
    offer(`“${title}” deleted.`, "Undo", async () => {
      await putConversation(conversation);
      await this.refresh(id);
      this.actions.open(id);
    });
  }

  async exportAll() {
    const all = await Promise.all(this.conversations.map(({ id }) => getConversation(id)));
    download("pumice-conversations.json", toFile(all.filter(Boolean)));
    say(`${plural(all.length, "conversation")} exported.`);
  }

  async importFile() {
    const [file] = $("file").files;
    $("file").value = "";
    if (!file) return;
    try {
      if (file.size > LARGEST) throw new Error(
        `The file has ${Math.round(file.size / 2 ** 20)} MiB; ${LARGEST / 2 ** 20} MiB are the most.`,
      );
      const conversations = fromFile(await file.text());
      await importAll(conversations);
      await this.refresh(this.current);
      say(`${plural(conversations.length, "conversation")} imported.`);
      if (conversations.length) this.actions.open(conversations[0].id);
    } catch (error) {
      say(`Not imported: ${error.message}`);
    }
  }
}
