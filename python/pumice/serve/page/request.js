// Converts a conversation to the body of /v1/chat/completions. The table of fields determines the panel, the checks and the body.
import { address } from "./api.js";

/** `kind` is how the text of a field is parsed. An empty field is not sent, so that the server's default applies. */
export const FIELDS = [
  { group: "Instructions", name: "system", label: "System prompt", kind: "text", rows: 4 },
  { group: "Sampling", name: "temperature", label: "Temperature", kind: "number", least: 0, most: 1e6, hint: "0: the likeliest token" },
  { group: "Sampling", name: "top_p", label: "Top p", kind: "number", least: 0, most: 1 },
  { group: "Sampling", name: "top_k", label: "Top k", kind: "integer", least: 0, most: 2 ** 31 - 1, hint: "0 is off" },
  { group: "Sampling", name: "min_p", label: "Min p", kind: "number", least: 0, most: 1 },
  { group: "Sampling", name: "repetition_penalty", label: "Repetition penalty", kind: "number", least: 0.001, most: 1000, hint: "1: off" },
  { group: "Sampling", name: "seed", label: "Seed", kind: "integer", least: -1, most: 2 ** 53 - 1, hint: "-1: a new one each time" },
  { group: "Sampling", name: "max_tokens", label: "Most tokens", kind: "integer", least: 1, most: 2 ** 31 - 1, hint: "default: no limit" },
  { group: "Sampling", name: "stop", label: "Stop at", kind: "lines", rows: 2, hint: "one text a line" },
  { group: "Sampling", name: "reasoning_effort", label: "Reasoning", kind: "choice", choices: ["", "none", "low", "medium", "high"] },
  { group: "Shape of the answer", name: "schema", label: "JSON schema", kind: "object", rows: 6, hint: "the answer is JSON of this shape" },
  { group: "Tools", name: "tools", label: "Tools", kind: "list", rows: 6, hint: "a JSON list of functions; you type in their results" },
  { group: "Tools", name: "tool_choice", label: "Calls", kind: "choice", choices: ["", "auto", "none", "required"] },
  { group: "Other fields", name: "extra", label: "Other fields", kind: "object", rows: 3, hint: "JSON that is added to each request" },
];
// Fields that the page itself sets, because it could not process the answer with other values.
const OWN = ["messages", "model", "stream", "stream_options", "continue_final_message", "n"];

const example = (value) => JSON.stringify(value, null, 2);
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const BOOK = { title: { type: "string" }, year: { type: "integer" } };
export const TOOLS_EXAMPLE = example([
  { type: "function", function: { name: "get_weather", description: "The weather of a city, now", parameters: CITY, strict: true } },
]);
export const SCHEMA_EXAMPLE = example({ type: "object", properties: BOOK, required: ["title", "year"], additionalProperties: false });

function json(text, list) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`is not JSON: ${error.message}`);
  }
  const fits = list ? Array.isArray(value) : typeof value === "object" && value !== null && !Array.isArray(value);
  if (!fits) throw new Error(list ? "must be a JSON list" : "must be a JSON object");
  return value;
}

function number(text, { kind, least, most }) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`must be a number, not ${JSON.stringify(text)}`);
  if (kind === "integer" && !Number.isInteger(value)) throw new Error(`must be a whole number, not ${text}`);
  if (value < least || value > most) throw new Error(`must be ${least} to ${most}, not ${text}`);
  return value;
}

/** Returns the value of a field's text, or undefined if it is empty. Throws an Error that describes the problem. */
export function valueOf(field, text) {
  if (!text || !text.trim()) return undefined;
  if (field.kind === "number" || field.kind === "integer") return number(text.trim(), field);
  if (field.kind === "lines") return text.split("\n").filter((line) => line !== "");
  if (field.kind === "object" || field.kind === "list") {
    const value = json(text, field.kind === "list");
    const own = field.name === "extra" && OWN.find((name) => Object.hasOwn(value, name));
    if (own) throw new Error(`must not set "${own}", which the page sets itself`);
    return value;
  }
  return text;
}

/** Returns the first problem in the settings as { field, message }, or null. */
export function problemOf(settings) {
  for (const field of FIELDS) {
    try {
      valueOf(field, settings[field.name]);
    } catch (error) {
      return { field, message: `${field.label} ${error.message}.` };
    }
  }
  return null;
}

function messageOf(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, content: node.content };
  if (node.role === "user") return { role: "user", content: node.content };
  const message = { role: "assistant", content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length) {
    message.content = node.content || null;
    message.tool_calls = node.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
  }
  return message;
}

/** Returns the messages of a path. An answer without content, because it failed, is left out. */
export function messagesOf(settings, path) {
  const told = path.filter((node) => node.role !== "assistant" || node.content || node.calls?.length || node.reasoning).map(messageOf);
  const system = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  return [...system, ...told];
}

/** Returns the body of a request for the answer to `path` or, if `goesOn`, for the continuation of its last answer. */
export function bodyOf(settings, model, path, goesOn = false) {
  const body = { model, messages: messagesOf(settings, path), stream: true, stream_options: { include_usage: true } };
  for (const field of FIELDS) {
    const value = valueOf(field, settings[field.name]);
    if (value === undefined || field.name === "system") continue;
    if (field.name === "schema") {
      body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: value } };
    }
    else if (field.name === "extra") Object.assign(body, value);
    else if (field.name !== "tool_choice" || settings.tools?.trim()) body[field.name] = value;
  }
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 8 });
  if (goesOn) body.continue_final_message = true;
  return body;
}

/** Returns a request as a curl command for a shell. The API key is a shell variable. */
export function curlOf(path, body, withKey) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -N ${quoted(address(path))}`, `-H ${quoted("content-type: application/json")}`];
  if (withKey) lines.push('-H "authorization: Bearer $PUMICE_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}
