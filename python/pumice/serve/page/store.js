// Stores conversations in the browser (IndexedDB) and in files. A separate list of titles lets the list open without reading all
// conversations.
import { newId, titleOf } from "./tree.js";

const FORMAT = "pumice.conversations";
const wait = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

let database = null;
const memory = new Map();
const channel = typeof BroadcastChannel === "function" ? new BroadcastChannel("pumice") : null;

/** Opens the store. Returns false if the browser refuses; conversations then last only as long as the page. */
export async function openStore() {
  try {
    const request = indexedDB.open("pumice", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("titles", { keyPath: "id" });
    };
    database = await wait(request);
  } catch {
    database = null;
  }
  return database !== null;
}

/** Calls `listener(id)` when another tab of this page changes a conversation. */
export function onOtherTab(listener) {
  channel?.addEventListener("message", (event) => listener(event.data));
}

const plain = (conversation) => ({ id: conversation.id, title: titleOf(conversation), updated: conversation.updated });

/** Returns { id, title, updated } of each conversation, the last changed one first. */
export async function listConversations() {
  const all = database
    ? await wait(database.transaction("titles").objectStore("titles").getAll())
    : [...memory.values()].map(plain);
  return all.sort((a, b) => b.updated - a.updated);
}

export async function getConversation(id) {
  if (!database) return memory.get(id) ?? null;
  return (await wait(database.transaction("conversations").objectStore("conversations").get(id))) ?? null;
}

async function change(work) {
  const transaction = database.transaction(["conversations", "titles"], "readwrite");
  work(transaction.objectStore("conversations"), transaction.objectStore("titles"));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("the browser's storage is full"));
  });
}

export async function putConversation(conversation) {
  if (!database) memory.set(conversation.id, conversation);
  else
    await change((conversations, titles) => {
      conversations.put(conversation);
      titles.put(plain(conversation));
    });
  channel?.postMessage(conversation.id);
}

export async function removeConversation(id) {
  if (!database) memory.delete(id);
  else
    await change((conversations, titles) => {
      conversations.delete(id);
      titles.delete(id);
    });
  channel?.postMessage(id);
}

export const toFile = (conversations) => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const textOr = (value, other) => (isText(value) ? value : other);
const number = (value) => (Number.isFinite(value) ? value : 0);

function readToken(token) {
  if (!isObject(token) || !isText(token.text) || !Number.isFinite(token.logprob)) return null;
  const side = (Array.isArray(token.top) ? token.top : []).map((other) => readToken({ ...other, top: [] })).filter(Boolean);
  const isByte = (byte) => Number.isInteger(byte) && byte >= 0 && byte < 256;
  const bytes = Array.isArray(token.bytes) && token.bytes.every(isByte) ? token.bytes : null;
  const read = { text: token.text, logprob: token.logprob, bytes };
  if (side.length) read.top = side;
  if (token.kind === "reasoning") read.kind = token.kind;
  return read;
}

function readNode(id, raw, nodes, where) {
  if (!isObject(raw) || !["user", "assistant", "tool"].includes(raw.role)) throw new Error(`${where} has a message without a known role.`);
  const parent = raw.parent ?? null;
  if (parent !== null && !Object.hasOwn(nodes, parent)) throw new Error(`${where} has a message whose parent is missing.`);
  const node = { id, parent, at: number(raw.at), role: raw.role, content: textOr(raw.content, "") };
  for (const name of ["model", "reasoning", "finish", "problem", "callId", "name", "head"]) if (isText(raw[name])) node[name] = raw[name];
  if (raw.role === "assistant") node.state = ["done", "stopped", "cut", "error"].includes(raw.state) ? raw.state : "cut";
  const readCall = (c) => ({ id: textOr(c.id, ""), name: textOr(c.name, ""), arguments: textOr(c.arguments, "") });
  if (Array.isArray(raw.calls)) node.calls = raw.calls.filter(isObject).map(readCall);
  const tokens = Array.isArray(raw.tokens) ? raw.tokens.map(readToken) : [];
  if (tokens.length && tokens.every(Boolean)) node.tokens = tokens;  // if a token is missing, the others do not spell the text
  if (isObject(raw.usage)) node.usage = Object.fromEntries(Object.entries(raw.usage).filter(([, value]) => Number.isFinite(value)));
  if (Number.isFinite(raw.speed)) node.speed = raw.speed;
  if (Array.isArray(raw.ignored)) node.ignored = raw.ignored.filter(isText);
  if (Number.isFinite(raw.seed)) node.seed = raw.seed;
  return node;
}

function readConversation(raw, place) {
  const where = `Conversation ${place} of the file`;
  if (!isObject(raw) || !isObject(raw.nodes)) throw new Error(`${where} has no messages ("nodes").`);
  const nodes = Object.create(null);
  for (const [id, node] of Object.entries(raw.nodes)) nodes[id] = readNode(id, node, raw.nodes, where);
  for (const start of Object.values(nodes)) {
    const seen = new Set();
    for (let node = start; node && !node.sound; node = nodes[node.parent]) {
      if (seen.has(node)) throw new Error(`${where} has messages that form a circle.`);
      seen.add(node);
    }
    for (const node of seen) node.sound = true;
  }
  for (const node of Object.values(nodes)) delete node.sound;
  const lanes = (Array.isArray(raw.lanes) ? raw.lanes.filter(isObject) : []).slice(0, 2).map((lane) => ({
    model: textOr(lane.model, ""),
    leaf: isText(lane.leaf) && nodes[lane.leaf] ? lane.leaf : null,
  }));
  const now = Date.now();
  return {
    id: textOr(raw.id, newId()),
    title: textOr(raw.title, ""),
    created: number(raw.created) || now,
    updated: number(raw.updated) || now,
    lanes: lanes.length ? lanes : [{ model: "", leaf: null }],
    settings: isObject(raw.settings) ? Object.fromEntries(
      Object.entries(raw.settings).filter(([, value]) => isText(value) || value === true),
    ) : {},
    nodes: { ...nodes },
  };
}

/** Returns the conversations in the text of a file. Throws an Error that describes the problem. */
export function fromFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (!isObject(file) || file.format !== FORMAT) throw new Error(
    `The file is not an export of this page: its "format" is not "${FORMAT}".`,
  );
  if (file.version !== 1) throw new Error(`The file has version ${String(file.version)}; this page reads version 1.`);
  if (!Array.isArray(file.conversations)) throw new Error('The file has no list of "conversations".');
  return file.conversations.map((raw, i) => readConversation(raw, i + 1));
}

/** Stores the conversations of a file. If an id is already in use, the conversation gets a new id, so that nothing is overwritten. */
export async function importAll(conversations) {
  const taken = new Set((await listConversations()).map(({ id }) => id));
  for (const conversation of conversations) {
    if (taken.has(conversation.id)) conversation.id = newId();
    taken.add(conversation.id);
    await putConversation(conversation);
  }
}
