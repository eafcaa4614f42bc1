// Requests to the server's endpoints. Addresses are relative to this file, so the page also works if a proxy adds a prefix to its address.
import { kept } from "./dom.js";

const BASE = new URL("../", import.meta.url);
export const address = (path) => new URL(path, BASE).href;

/** Thrown if the server answers with an error. `retryAfter` is in seconds, or null. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null, retryAfter = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code, retryAfter, requestId });
  }
}

/** Thrown if no answer comes, because the server or the network is down. */
export class Unreachable extends Error {}

/** Thrown if a stream ends before its `[DONE]`. */
export class CutOff extends Error {}

let key = kept.get("key", "sessionStorage") ?? "";
export const hasKey = () => key !== "";
export const keyIsKept = () => kept.get("key", "sessionStorage") !== null;

/** Uses `text` as the API key. It is kept in memory, and also in sessionStorage if `keep` is true. */
export function setKey(text, keep) {
  key = text.trim();
  kept.set("key", keep ? key : null, "sessionStorage");
}

const listeners = new Set();
let up = null;
/** Calls `listener(up)` when the server begins or ceases to answer. */
export const onServer = (listener) => listeners.add(listener);
export const serverIsUp = () => up;

function note(answers) {
  if (answers === up) return;
  up = answers;
  for (const listener of listeners) listener(up);
}

async function reach(path, { body, signal, method = body === undefined ? "GET" : "POST" } = {}) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(
      address(path),
      { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store", credentials: "same-origin" },
    );
  } catch (error) {
    if (error.name === "AbortError") throw error;
    note(false);
    throw new Unreachable("The server does not answer.");
  }
  note(true);
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let text = "";
  try {
    text = await response.text();
  } catch {
    // The connection ended within the error's body, so only its status is known.
  }
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    // The body is not JSON, because a proxy wrote it.
  }
  const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return new ApiError(String(error?.message ?? (text.slice(0, 300) || `The server answered ${response.status} ${response.statusText}.`)), {
    status: response.status,
    param: error?.param ?? null,
    code: error?.code ?? null,
    retryAfter: Number.isFinite(seconds) ? seconds : null,
    requestId: response.headers.get("x-request-id"),
  });
}

/** Posts `body`, or sends a GET if there is no body. Returns the JSON of the answer. */
export async function call(path, body, signal) {
  const response = await reach(path, { body, signal });
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CutOff("The connection ended before the answer was whole.");
  }
}

export async function text(path, signal) {
  return (await reach(path, { signal })).text();
}

/** Returns true if the server answers with any status, because a server that is loading models answers 503. */
export async function ping() {
  try {
    await reach("health");
  } catch (error) {
    if (!(error instanceof ApiError)) return false;
  }
  return true;
}

/** Posts `body` and yields the JSON of each event of the answer. Throws CutOff if the stream ends without `[DONE]`. */
export async function* events(path, body, signal) {
  const response = await reach(path, { body, signal });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      let step;
      try {
        step = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new CutOff("The connection ended before the answer was whole.");
      }
      if (step.done) throw new CutOff("The connection ended before the answer was whole.");
      rest += decoder.decode(step.value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line !== "" || !data.length) continue;
        const whole = data.join("\n");
        data = [];
        if (whole === "[DONE]") return;
        const event = JSON.parse(whole);
        if (event.error) throw new ApiError(String(event.error.message ?? "The server broke off."), { code: event.error.code ?? null });
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
