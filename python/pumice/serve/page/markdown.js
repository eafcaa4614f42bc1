// Converts Markdown to DOM nodes, block by block. The source only becomes text nodes, so HTML in it is shown literally. While an answer
// grows, its complete blocks are kept, and only the last block is made again.
import { add, copy, h } from "./dom.js";
import { inline } from "./inline.js";

// A pattern must match a position in a line in at most a bounded number of ways. Otherwise an answer could make the page hang.
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const FENCE_END = /^ {0,3}(`+|~+)[ \t]*$/;
const HEADING = /^ {0,3}(#{1,6})([ \t].*)?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}>[ ]?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const UNDERLINE = /^ {0,3}-{3,}[ \t]*$/;
const DOUBLE_UNDERLINE = /^ {0,3}=+[ \t]*$/;
const DEEPEST = 12;

const blank = (line) => line === undefined || /^\s*$/.test(line);
const starts = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

/** Splits a row of a table at its bars. */
function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** Returns a heading's text without the "#" signs that may end it. */
function heading(text) {
  const whole = text.trim();
  let end = whole.length;
  while (whole[end - 1] === "#") end--;
  return end === 0 || /\s/.test(whole[end - 1]) ? whole.slice(0, end).trimEnd() : whole;
}

/** Splits lines into blocks. A block has `first` and `end` (its range of lines) and a `kind`. */
function blocksOf(lines, depth = 0) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (blank(lines[i])) {
      i++;
      continue;
    }
    const first = i;
    const block = depth > DEEPEST ? paragraph(lines, i, true) : blockAt(lines, i, depth);
    i = block.end;
    blocks.push({ first, ...block });
  }
  return blocks;
}

function blockAt(lines, i, depth) {
  const line = lines[i];
  let match;
  if ((match = FENCE.exec(line))) return fence(lines, i, match);
  if ((match = HEADING.exec(line))) return { kind: "heading", level: match[1].length, text: heading(match[2] ?? ""), end: i + 1 };
  if (RULE.test(line)) return { kind: "rule", end: i + 1 };
  if (QUOTE.test(line)) {
    let end = i;
    const inner = [];
    const goes = (text) => text !== undefined && (QUOTE.test(text) || (!blank(text) && !starts(text)));
    while (goes(lines[end])) inner.push(lines[end++].replace(QUOTE, ""));
    return { kind: "quote", blocks: blocksOf(inner, depth + 1), end };
  }
  if (ITEM.test(line)) return list(lines, i, depth);
  if (line.includes("|") && lines[i + 1]?.includes("-") && DIVIDER.test(lines[i + 1])) {
    const sides = cells(lines[i + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
    if (sides.length === cells(line).length) {
      let end = i + 2;
      while (end < lines.length && !blank(lines[end]) && !starts(lines[end])) end++;
      return { kind: "table", sides, head: cells(line), rows: lines.slice(i + 2, end).map(cells), end };
    }
  }
  return paragraph(lines, i, false);
}

function paragraph(lines, i, plain) {
  const goes = (line) => !blank(line) && (plain || !(starts(line) || DOUBLE_UNDERLINE.test(line)));
  let end = i + 1;
  while (goes(lines[end])) end++;
  // A numbered list interrupts a paragraph only if it begins with 1, so that a year at the beginning of a line does not.
  while (!plain && end < lines.length && /^ {0,3}\d/.test(lines[end]) && !/^ {0,3}1[.)]/.test(lines[end])) {
    end++;
    while (goes(lines[end])) end++;
  }
  const text = lines.slice(i, end).map((line) => line.trimStart()).join("\n").trimEnd();
  if (!plain && UNDERLINE.test(lines[end] ?? "")) return { kind: "heading", level: 2, text, end: end + 1 };
  if (!plain && DOUBLE_UNDERLINE.test(lines[end] ?? "")) return { kind: "heading", level: 1, text, end: end + 1 };
  return { kind: "paragraph", text, end };
}

function fence(lines, i, [, indent, mark, info]) {
  const closes = (line) => {
    const match = FENCE_END.exec(line);
    return match && match[1][0] === mark[0] && match[1].length >= mark.length;
  };
  let end = i + 1;
  while (end < lines.length && !closes(lines[end])) end++;
  const inset = new RegExp(`^ {0,${indent.length}}`);
  const text = lines.slice(i + 1, end).map((line) => line.replace(inset, "")).join("\n");
  const closed = end < lines.length;
  // Text can be appended to a code block that is open and whose first line is complete.
  const grows = !closed && !indent && i + 1 < lines.length;
  return { kind: "code", info: info.trim().split(/\s/)[0], text, grows, end: Math.min(end + 1, lines.length) };
}

function list(lines, i, depth) {
  const sort = (marker) => (/\d/.test(marker) ? marker.slice(-1) : marker);
  const first = ITEM.exec(lines[i]);
  const items = [];
  let loose = false;
  while (i < lines.length) {
    const match = ITEM.exec(lines[i]);
    if (!match || sort(match[2]) !== sort(first[2]) || RULE.test(lines[i])) break;
    const space = match[3].length >= 5 || match[3] === "" ? 1 : match[3].length;
    const inset = match[1].length + match[2].length + space;
    const inner = [lines[i].slice(match[0].length - (match[3].length - Math.min(space, match[3].length)))];
    let end = i + 1;
    let gap = false;
    for (; end < lines.length; end++) {
      const line = lines[end];
      if (blank(line)) {
        gap = true;
        inner.push("");
      } else if (/^\s*/.exec(line)[0].replaceAll("\t", "    ").length >= inset) {
        inner.push(line.replaceAll(/^\t+/g, (tabs) => "    ".repeat(tabs.length)).slice(inset));
        if (gap) loose = true;
        gap = false;
      } else if (!gap && !starts(line)) inner.push(line.trimStart());
      else break;
    }
    const next = lines[end] === undefined ? null : ITEM.exec(lines[end]);
    if (gap && next && sort(next[2]) === sort(first[2])) loose = true;
    while (inner.length > 1 && inner[inner.length - 1] === "") inner.pop();
    items.push({ blocks: blocksOf(inner, depth + 1) });
    i = end;
  }
  const start = /\d/.test(first[2]) ? Number.parseInt(first[2], 10) : null;
  return { kind: "list", start, loose, items, end: i };
}

const TASK = /^\[([ xX])\][ \t]+/;

const MAKE = {
  paragraph: (block) => h("p", {}, inline(block.text)),
  heading: (block) => h(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, inline(block.text)),
  rule: () => h("hr"),
  quote: (block) => h("blockquote", {}, block.blocks.map(make)),
  code: (block) => codeBlock(block.text, block.info),
  table: (block) => {
    const row = (tag, texts) => h(
      "tr",
      {},
      block.sides.map((side, i) => h(tag, { class: `to-${side}`, scope: tag === "th" ? "col" : null }, inline(texts[i] ?? ""))),
    );
    const body = h("tbody", {}, block.rows.map((texts) => row("td", texts)));
    return h(
      "div",
      { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
      h("table", {}, h("thead", {}, row("th", block.head)), body),
    );
  },
  list: (block) => {
    const items = block.items.map((item) => {
      const [head] = item.blocks;
      const task = head?.kind === "paragraph" && TASK.exec(head.text);
      if (task) head.text = `${task[1] === " " ? "☐" : "☑"} ${head.text.slice(task[0].length)}`;
      const nodes = item.blocks.flatMap((inner) => (inner.kind === "paragraph" && !block.loose ? inline(inner.text) : [make(inner)]));
      return h("li", { class: task ? "task" : null }, nodes);
    });
    return block.start === null ? h("ul", {}, items) : h("ol", { start: block.start === 1 ? null : block.start }, items);
  },
};
const make = (block) => MAKE[block.kind](block);

export function codeBlock(text, info) {
  const code = h("code", {}, text);
  const button = h("button", { type: "button", class: "quiet small", onclick: () => copy(code.textContent, "Code") }, "Copy");
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-bar" }, h("span", {}, info || "text"), button),
    h("pre", { tabindex: "0", role: "group", "aria-label": info ? `Code, ${info}` : "Code" }, code),
  );
}

/** Shows a growing text. `show(text)` may be called in each frame. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.text = "";
    this.done = 0;  // number of characters in complete blocks, which are not parsed again
    this.live = [];  // nodes of the text after the complete blocks
    this.code = null;  // text node of a code block that is still open, or null
    this.next = 0;
  }

  /** Shows `text`. Returns false if it postpones the work: a long last block is only made again from time to time. */
  show(text, last = true) {
    if (text === this.text) return true;
    if (!text.startsWith(this.text)) this.reset();
    if (this.code && this.appendCode(text)) return true;
    const now = performance.now();
    if (!last && now < this.next) return false;
    this.text = text;
    this.code = null;
    const tail = text.slice(this.done);
    const lines = tail.split("\n");
    const whole = blocksOf(lines.slice(0, -1));
    whole.pop();  // The next line may belong to this block.
    for (const node of this.live) node.remove();
    add(this.element, whole.map(make));
    const used = whole.length ? whole[whole.length - 1].end : 0;
    for (let i = 0; i < used; i++) this.done += lines[i].length + 1;
    const rest = blocksOf(lines.slice(used));
    this.live = rest.map(make);
    add(this.element, this.live);
    if (rest.length === 1 && rest[0].grows) {
      const holder = this.live[0].querySelector("pre code");
      if (!holder.firstChild) holder.append(document.createTextNode(""));
      this.code = holder.firstChild;
    }
    // Making the last block again may take at most a fifth of the time.
    this.next = now + 4 * (performance.now() - now);
    return true;
  }

  /** Appends new text to an open code block if the text certainly belongs to the block. Returns false otherwise. */
  appendCode(text) {
    const more = text.slice(this.text.length);
    const line = this.text.slice(this.text.lastIndexOf("\n") + 1);
    if (/[`~]/.test(more) || /^ *[`~]/.test(line)) return false;
    this.code.appendData(more);
    this.text = text;
    return true;
  }
}
