// The messages of the open conversation. Each message has a view that is kept. Only views that have changed are painted, once per frame.
import { $, h } from "./dom.js";
import { MessageView } from "./message.js";
import { rows } from "./tree.js";

const NEAR = 48;  // the thread follows a growing answer if it is scrolled to within this many pixels of the end

export class Thread {
  constructor(actions) {
    this.actions = actions;
    this.box = $("thread");
    this.list = $("messages");
    this.views = new Map();
    this.dirty = new Set();
    this.follows = true;
    this.lastTop = 0;
    this.lastHeight = 0;
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // Blocks get their true height only when they become visible, after they were painted first.
    new ResizeObserver(() => this.follows && this.toEnd()).observe(this.list);
    $("to-end").addEventListener("click", () => {
      this.toEnd();
      this.box.focus();
    });
  }

  /** Shows the present branch of a conversation. */
  show(conversation) {
    if (this.conversation !== conversation) {
      this.views.clear();
      this.follows = true;
    }
    this.conversation = conversation;
    const used = new Set();
    const viewOf = (node) => {
      used.add(node.id);
      if (!this.views.has(node.id)) this.views.set(node.id, new MessageView(node, this.actions));
      return this.views.get(node.id).element;
    };
    const wanted = rows(conversation).flatMap((columns) => {
      if (columns.length === 1) return columns[0].map(viewOf);
      return [h("div", { class: "pair" }, ...columns.map((nodes) => h("div", { class: "column" }, ...nodes.map(viewOf))))];
    });
    // Nodes that stay are not moved, because a moved node would lose its focus and the position of its scrollbar.
    const same = wanted.length === this.list.children.length && wanted.every((element, i) => element === this.list.children[i]);
    if (!same) {
      let shared = 0;
      while (shared < wanted.length && wanted[shared] === this.list.children[shared]) shared++;
      while (this.list.children.length > shared) this.list.lastChild.remove();
      this.list.append(...wanted.slice(shared));
    }
    for (const id of [...this.views.keys()]) if (!used.has(id)) this.views.delete(id);
    this.list.classList.toggle("wide", conversation.lanes.length > 1);
    $("empty").hidden = wanted.length > 0;
    for (const id of used) this.touch(id);
  }

  viewOf(id) {
    return this.views.get(id);
  }

  /** Notes that the node with this id has changed, so that the next frame paints it. */
  touch(id) {
    this.dirty.add(id);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  touchAll() {
    for (const id of this.views.keys()) this.touch(id);
  }

  paint() {
    this.frame = 0;
    const ids = [...this.dirty];
    this.dirty.clear();
    const held = this.list.contains(document.activeElement);
    for (const id of ids) if (this.views.get(id)?.update() === false) this.touch(id);
    // The button that had the focus may be gone. Without a focus, the page would receive no keys, not even Escape.
    if (held && document.activeElement === document.body) $("send").focus();
    if (this.follows) this.toEnd();
    this.scrolled();
  }

  toEnd() {
    this.follows = true;
    this.box.scrollTop = this.box.scrollHeight;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const near = scrollHeight - scrollTop - clientHeight < NEAR;
    if (near) this.follows = true;
    else if (scrollTop < this.lastTop - 1 && scrollHeight >= this.lastHeight) this.follows = false; // the user scrolled up
    this.lastTop = scrollTop;
    this.lastHeight = scrollHeight;
    $("to-end").hidden = near;
  }
}
