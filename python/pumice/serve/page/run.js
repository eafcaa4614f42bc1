// Generates one answer: writes the events of the server into a node of the conversation.
import { ApiError, CutOff, events, Unreachable } from "./api.js";

const MOST_CALLS = 256;
const LEAST = -9999;  // log-probability of tokens for which the server sends none

function readToken(raw, kind) {
  const plain = ({ token: text, logprob, bytes }) => ({
    text: String(text ?? ""),
    logprob: Number.isFinite(logprob) ? logprob : LEAST,
    bytes: Array.isArray(bytes) ? bytes : null,
  });
  const token = plain(raw);
  const top = Array.isArray(raw.top_logprobs) ? raw.top_logprobs.map(plain) : [];
  if (top.length) token.top = top;
  if (kind === "reasoning") token.kind = kind;
  return token;
}

function readCalls(node, pieces) {
  node.calls ??= [];
  for (const piece of pieces) {
    const index = piece.index ?? 0;
    if (!Number.isInteger(index) || index < 0 || index >= MOST_CALLS) continue;
    while (node.calls.length <= index) node.calls.push({ id: "", name: "", arguments: "" });
    const call = node.calls[index];
    call.id ||= piece.id ?? "";
    call.name ||= piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
}

function readEvent(node, event, clock) {
  if (event.usage) {
    const { prompt_tokens, completion_tokens, prompt_tokens_details, completion_tokens_details } = event.usage;
    node.usage = {
      prompt: prompt_tokens ?? 0,
      completion: completion_tokens ?? 0,
      cached: prompt_tokens_details?.cached_tokens ?? 0,
      reasoning: completion_tokens_details?.reasoning_tokens ?? event.usage.reasoning_tokens ?? 0,
    };
  }
  if (event.pumice) {
    if (event.pumice.timings) clock.timings = event.pumice.timings;
    if (event.pumice.ignored?.length) node.ignored = event.pumice.ignored.map(String);
    if (Number.isFinite(event.pumice.seed)) node.seed = event.pumice.seed;
  }
  const choice = event.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  // The server sends the text under both names.
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
  if (delta.content) node.content += delta.content;
  if (delta.tool_calls) readCalls(node, delta.tool_calls);
  for (const raw of choice.logprobs?.content ?? []) (node.tokens ??= []).push(readToken(raw, reasoning ? "reasoning" : "content"));
  if (reasoning || delta.content || delta.tool_calls) {
    const now = performance.now();
    clock.first ??= now;
    clock.last = now;
    clock.steps += 1;
    if (clock.last > clock.first) node.speed = (1000 * (clock.steps - 1)) / (clock.last - clock.first);
  }
  if (choice.finish_reason) node.finish = choice.repetition ? "repetition" : choice.finish_reason;
}

/**
 * Fills `node` from the answer to `body`, and calls `changed` after each event. Sets node.state to "done", to "stopped" (by the user), to
 * "cut" (the connection ended), or to "error" with node.problem. Throws only Unreachable; then no event has come and the node is unchanged.
 */
export async function run(node, body, signal, changed) {
  const clock = { first: null, last: null, steps: 0, timings: null };
  node.state = "running";
  try {
    for await (const event of events("v1/chat/completions", body, signal)) {
      readEvent(node, event, clock);
      changed();
    }
    node.state = "done";
    if (node.finish === "error") node.state = "error";
  } catch (error) {
    if (error.name === "AbortError") node.state = "stopped";
    else if (error instanceof Unreachable) throw error;
    else {
      node.state = error instanceof CutOff ? "cut" : "error";
      node.problem = error.message;
      if (error instanceof ApiError && error.retryAfter) node.problem += ` The server asks to try again in ${error.retryAfter} s.`;
      if (error instanceof ApiError && error.status >= 500 && error.requestId) node.problem += ` Its log has request ${error.requestId}.`;
    }
  }
  const seen = clock.last > clock.first ? (1000 * ((node.usage?.completion ?? clock.steps) - 1)) / (clock.last - clock.first) : null;
  const speed = clock.timings?.decode_tokens_per_second || seen;
  if (speed > 0) node.speed = speed;
  changed();
}
