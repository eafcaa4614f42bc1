// Starts the page: its views, theme, API key, and the display of the server's state. The page never reads its own address, so no link can
// make it send anything.
import { ApiError, hasKey, keyIsKept, onServer, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { $, icon, kept, openDialog, say } from "./dom.js";
import { Figures } from "./figures.js";
import { modelsProblem, onModels, readModels, watchServer } from "./models.js";
import { openStore } from "./store.js";
import { startTexts } from "./texts.js";

const VIEWS = ["chat", "texts", "figures"];
const THEMES = ["system", "light", "dark"];

function showTheme() {
  const theme = kept.get("theme") ?? "system";
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  const label = theme === "system" ? "Colours: as the system" : `Colours: ${theme}`;
  $("theme").setAttribute("aria-label", label);
  $("theme").title = label;
}

function startTheme() {
  $("theme").append(icon("theme"));
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(kept.get("theme") ?? "system") + 1) % THEMES.length];
    kept.set("theme", next === "system" ? null : next);
    showTheme();
    say($("theme").title);
  });
  showTheme();
}

function startViews(figures) {
  const tab = (name) => $(`tab-${name}`);
  const show = (name, focus) => {
    for (const other of VIEWS) {
      const chosen = other === name;
      tab(other).setAttribute("aria-selected", String(chosen));
      tab(other).tabIndex = chosen ? 0 : -1;
      $(`view-${other}`).hidden = !chosen;
    }
    $("context").hidden = name !== "chat";
    figures.show(name === "figures");
    if (focus) tab(name).focus();
  };
  for (const name of VIEWS) tab(name).addEventListener("click", () => show(name));
  $("views").addEventListener("keydown", (event) => {
    const at = VIEWS.findIndex((name) => tab(name) === document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(VIEWS[(to + VIEWS.length) % VIEWS.length], true);
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    show("chat");
    $("draft").focus();
  });
}

function startKey() {
  const dialog = $("key-dialog");
  $("key-open").append(icon("key"));
  const mark = () => {
    $("key-open").classList.toggle("marked", hasKey());
    $("key-open").title = hasKey() ? "Key: set" : "Key: none";
    $("key-open").setAttribute("aria-label", $("key-open").title);
  };
  $("key-open").addEventListener("click", () => {
    $("key").value = "";
    $("key-keep").checked = keyIsKept();
    openDialog(dialog);
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "use") setKey($("key").value, $("key-keep").checked);
    if (dialog.returnValue === "forget") setKey("", false);
    $("key").value = "";
    mark();
    if (["use", "forget"].includes(dialog.returnValue)) readModels();
    dialog.returnValue = "";
  });
  mark();
}

function startHealth() {
  const show = (up) => {
    const problem = modelsProblem();
    const text = !up ? "no server" : problem instanceof ApiError ? (problem.status === 401 ? "key needed" : "not ready") : "ready";
    $("health").textContent = text;
    $("health").dataset.state = text;
    const notice = $("notice");
    const told = !up
      ? "The server does not answer. What you write is kept, and conversations can be read."
      : text === "key needed"
        ? "This server asks for a key: the button at the top right takes it."
        : text === "not ready"
          ? problem.message
          : "";
    notice.firstElementChild.textContent = told;
    notice.hidden = !told;
  };
  let before = null;
  onServer((up) => {
    show(up);
    if (before !== null) say(up ? "The server is back." : "The server does not answer.");
    before = up;
  });
  onModels(() => show(before ?? false));
}

async function start() {
  startTheme();
  const figures = new Figures();
  startViews(figures);
  startKey();
  startHealth();
  startTexts();
  if (!(await openStore())) say("This browser keeps nothing for this page: conversations end with it. Export what you need.");
  const chat = new Chat();
  await chat.start();
  watchServer();
  $("draft").focus();
}

start();
