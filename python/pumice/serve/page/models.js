// The server's models, and the menus that list them.
import { call, ping, serverIsUp } from "./api.js";
import { h } from "./dom.js";

/** The models: { id, tasks (null if the server does not name them), n_ctx, device, loaded }. */
let models = [];
let problem = null;
const listeners = new Set();

export const onModels = (listener) => listeners.add(listener);
/** Returns the models for `tasks`, in the order of the tasks, and first those whose main task it is. Without tasks, returns all. */
export function modelsFor(...tasks) {
  const able = (task) => models.filter((model) => !model.tasks || model.tasks.includes(task));
  const best = (task) => able(task).sort((a, b) => (b.tasks?.[0] === task) - (a.tasks?.[0] === task));
  return tasks.length ? [...new Set(tasks.flatMap(best))] : models;
}
export const modelNamed = (id) => models.find((model) => model.id === id);
/** Returns the error of the last request for the list, or null. */
export const modelsProblem = () => problem;

export async function readModels() {
  const before = JSON.stringify([models, problem?.message]);
  try {
    const answer = await call("v1/models");
    models = (answer.data ?? []).map(({ id, meta }) => ({
      id: String(id),
      tasks: Array.isArray(meta?.tasks) ? meta.tasks : null,
      n_ctx: Number(meta?.n_ctx) || null,
      device: meta?.device ?? null,
      loaded: meta?.loaded ?? true,
    }));
    problem = null;
  } catch (error) {
    problem = error;
  }
  // The listeners are only called after a change, because they would change a menu that is open.
  if (before !== JSON.stringify([models, problem?.message])) for (const listener of listeners) listener();
}

/** Requests the models now, and again and again while the page is visible. This also shows whether the server answers. */
export function watchServer() {
  readModels();
  const turn = async () => {
    // Without the API key, only /health can be requested.
    if (document.visibilityState === "visible") await (problem?.status === 401 ? ping() : readModels());
    setTimeout(turn, serverIsUp() ? 10000 : 2000);
  };
  setTimeout(turn, 2000);
}

/** Fills a select with the models for `tasks`. `chosen` stays in it even if the server lacks it. `none` is the label of an empty choice. */
export function fillModels(select, tasks, chosen, none) {
  const names = modelsFor(...tasks).map((model) => model.id);
  const options = names.map((id) => h("option", { value: id }, modelNamed(id).loaded ? id : `${id} (not loaded yet)`));
  if (chosen && !names.includes(chosen)) options.unshift(h("option", { value: chosen }, `${chosen} (not served now)`));
  if (none !== undefined) options.unshift(h("option", { value: "" }, none));
  if (!options.length) options.push(h("option", { value: "" }, "no model"));
  select.replaceChildren(...options);
  select.value = chosen || (none === undefined ? names[0] ?? "" : "");
  return select.value;
}
