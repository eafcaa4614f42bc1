// The inline half of the Markdown parser: emphasis, code, links. The time of each step is proportional to the length of the text, for any
// text.
import { h } from "./dom.js";

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const LINK = /\[((?:[^[\]\\\n]|\\.)*)\]\( {0,3}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?: {1,3}"[^"\n]*")? {0,3}\)/y;
const ANGLE = /<(https?:\/\/[^\s<>]+)>/iy;
const BARE = /https?:\/\/[^\s<>"'`*]+/iy;
const DEEPEST = 24;

/** Returns the address of a link if it is http or https, else null. */
function safeAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

const link = (address, ...children) => h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, ...children);

/** Returns a bare address without the punctuation of the sentence around it. */
function withoutEnd(text) {
  let end = text.length;
  while (".,;:!?)]_~".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

/** Returns length -> positions, for all runs of backticks in a text. */
function tickRuns(text) {
  const runs = new Map();
  for (const found of text.matchAll(/`+/g)) {
    if (!runs.has(found[0].length)) runs.set(found[0].length, []);
    runs.get(found[0].length).push(found.index);
  }
  return runs;
}

/** Splits `text` into texts, DOM nodes, and runs of *, _ and ~ that may open or close emphasis. */
function pieces(text) {
  const found = [];
  const ticks = tickRuns(text);
  let begin = 0;
  const flush = (end) => end > begin && found.push(text.slice(begin, end));
  const put = (node, start, end) => {
    flush(start);
    found.push(node);
    begin = end;
    return end;
  };
  const at = (pattern, i) => {
    pattern.lastIndex = i;
    return pattern.exec(text);
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    if (c === "\\" && i + 1 < text.length && (/[!-/:-@[-`{-~]/.test(text[i + 1]) || text[i + 1] === "\n")) {
      flush(i);
      begin = i + 1;
      i += 2;
    } else if (c === "`") {
      let size = 1;
      while (text[i + size] === "`") size++;
      const runs = ticks.get(size) ?? [];  // none if an escaped backtick precedes this run
      while (runs.length && runs[0] <= i) runs.shift();
      if (!runs.length) i += size;
      else {
        let code = text.slice(i + size, runs[0]).replaceAll("\n", " ");
        if (/^ .* $/.test(code) && code.trim()) code = code.slice(1, -1);
        i = put(h("code", {}, code), i, runs[0] + size);
      }
    } else if (c === "[" || (c === "!" && text[i + 1] === "[")) {
      const start = c === "!" ? i + 1 : i;
      const match = at(LINK, start);
      const target = match && safeAddress(match[2]);
      // An image becomes a link, because showing it would send a request to an address that the answer chooses.
      if (target) i = put(link(target, c === "!" ? match[1] || target : inline(match[1])), i, LINK.lastIndex);
      else i = start + 1;
    } else if (c === "<") {
      const match = at(ANGLE, i);
      const target = match && safeAddress(match[1]);
      if (target) i = put(link(target, match[1]), i, ANGLE.lastIndex);
      else i++;
    } else if ((c === "h" || c === "H") && !/\w/.test(text[i - 1] ?? " ")) {
      const match = at(BARE, i);
      const shown = match ? withoutEnd(match[0]) : "";
      const target = safeAddress(shown);
      if (target) i = put(link(target, shown), i, i + shown.length);
      else i += shown.length || 1;
    } else if (c === "*" || c === "_" || c === "~") {
      let end = i + 1;
      while (text[end] === c) end++;
      const before = text[i - 1] ?? " ";
      const after = text[end] ?? " ";
      const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
      const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
      const opens = c === "_" ? left && (!right || PUNCTUATION.test(before)) : left;
      const closes = c === "_" ? right && (!left || PUNCTUATION.test(after)) : right;
      i = put({ mark: c, size: end - i, opens, closes, ends: [], begins: [] }, i, end);
    } else i++;
  }
  flush(text.length);
  return found;
}

/** Pairs the runs of one text. Each pair adds its size to `begins` of the opener and to `ends` of the closer, inner pairs first. */
function pair(found) {
  const stack = [];  // open runs, the outermost first
  const places = { "*": [], _: [], "~": [] };  // mark -> indices into `stack`
  const cut = (size) => {
    stack.length = size;
    for (const list of Object.values(places)) while (list.length && list[list.length - 1] >= size) list.pop();
  };
  for (const run of found) {
    if (!run.mark) continue;
    const list = places[run.mark];
    while (run.closes && run.size && list.length) {
      const place = list[list.length - 1];
      const opener = stack[place];
      const size = Math.min(2, run.size, opener.size);
      if (run.mark === "~" && size < 2) break;
      cut(place + 1);
      opener.begins.push(size);
      run.ends.push(size);
      opener.size -= size;
      run.size -= size;
      if (!opener.size) cut(place);
    }
    if (run.opens && run.size) {
      list.push(stack.length);
      stack.push(run);
    }
  }
}

/** Returns the DOM nodes for the text of one paragraph. */
export function inline(text) {
  const found = pieces(text);
  pair(found);
  const root = [];
  const open = [];  // the elements that are open at the current position
  let skipped = 0;  // number of open elements that were not made, because they are nested too deep
  const add = (node) => (open.length ? open[open.length - 1].append(node) : root.push(node));
  for (const piece of found) {
    if (!piece.mark) {
      add(piece);
      continue;
    }
    for (let i = 0; i < piece.ends.length; i++) skipped ? skipped-- : open.pop();
    if (piece.size) add(piece.mark.repeat(piece.size));
    for (const size of piece.begins.reverse()) {
      if (open.length >= DEEPEST) skipped++;
      else {
        const element = h(piece.mark === "~" ? "s" : size === 2 ? "strong" : "em");
        add(element);
        open.push(element);
      }
    }
  }
  return root;
}
