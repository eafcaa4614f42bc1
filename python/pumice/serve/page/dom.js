// Small helpers for DOM nodes, the status line, copying, downloads and numbers. Texts only become text nodes; no function here parses HTML.

export const $ = (id) => document.getElementById(id);

/** Makes an element. A name in `props` is "class", "onNAME" for a listener, or an attribute. Null, undefined and false omit it. */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return add(node, children);
}

/** Appends nodes and texts, and lists of them of any length. Null, undefined and false are left out. */
export function add(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(node, child);
    else if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props ?? {})) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

// Paths of icons on a grid of 16 x 16.
const ICONS = {
  menu: "M2 4h12M2 8h12M2 12h12",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  down: "M8 3v10M4 9l4 4 4-4",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  edit: "M3 13l1-4 7-7 3 3-7 7zM10 3l3 3",
  again: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  on: "M3 4l5 4-5 4zM9 4l5 4-5 4z",
  tokens: "M2 4h5v3H2zM9 4h5v3H9zM2 10h8v3H2zM12 10h2v3h-2z",
  code: "M5 4L1 8l4 4M11 4l4 4-4 4",
  trash: "M3 4h10M6 4V2h4v2M4 4l1 10h6l1-10",
  settings: "M2 5h6M12 5h2M10 3v4M2 11h2M8 11h6M6 9v4",
  send: "M8 13V3M4 7l4-4 4 4",
  stop: "M4 4h8v8H4z",
  key: "M6 8a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0zM6 8h9v3M12 8v2",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  save: "M8 2v8M5 7l3 3 3-3M3 13h10",
  open: "M8 10V2M5 5l3-3 3 3M3 13h10",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Returns a button that only shows an icon. `label` is its accessible name and its tooltip. */
export function iconButton(name, label, onclick, props) {
  return h("button", { type: "button", class: "quiet square", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

/** Shows `text` in the page's only status line, which screen readers announce politely. */
export function say(text) {
  $("status").textContent = text;
}

/** Shows `text` with a button, until the button is pressed or another offer replaces it. */
export function offer(text, label, action) {
  const box = $("offer");
  const close = () => box.replaceChildren();
  const button = h("button", { type: "button", onclick: () => { close(); action(); } }, label);
  box.replaceChildren(h("span", {}, text), button, iconButton("close", "Close this note", close));
  say(text);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied.`);
  } catch {
    // The clipboard needs https or localhost. This older way works with other addresses.
    const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    const before = document.activeElement;
    const host = before?.closest?.("dialog") ?? document.body;
    area.value = text;
    host.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    before?.focus?.();
    say(copied ? `${what} copied.` : "The browser does not let this page copy. Select the text by hand.");
  }
}

export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** Opens a modal dialog. When it closes, the element that had the focus gets it back. */
export function openDialog(dialog) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => before?.focus?.(), { once: true });
  dialog.showModal();
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (n) => grouped.format(n);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** Formats a number with three significant digits: 0.0123, 4.56, 789, 12,345. */
export function short(n) {
  if (!Number.isFinite(n)) return "none";
  const size = Math.abs(n);
  if (size >= 1e9) return `${(n / 1e9).toFixed(2)} G`;
  if (size >= 1e6) return `${(n / 1e6).toFixed(2)} M`;
  if (size >= 100 || Number.isInteger(n)) return count(n);
  if (size >= 10) return n.toFixed(1);
  if (size >= 1) return n.toFixed(2);
  return Number(n.toPrecision(3)).toString();
}

export const percent = (p) => (p >= 0.9995 ? "100 %" : p >= 0.1 ? `${(100 * p).toFixed(1)} %` : `${Number((100 * p).toPrecision(2))} %`);

/** Returns a function that calls `work` once, `ms` after its last call. */
export function later(work, ms) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(work, ms, ...args);
  };
}

/** Access to localStorage or sessionStorage. If the browser refuses it, the page works without stored values. */
export const kept = {
  get(name, storage = "localStorage") {
    try {
      return globalThis[storage].getItem(`pumice.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value, storage = "localStorage") {
    try {
      if (value === null || value === "") globalThis[storage].removeItem(`pumice.${name}`);
      else globalThis[storage].setItem(`pumice.${name}`, value);
    } catch {
      // The browser refuses, so nothing is stored.
    }
  },
};
