// Conversations as trees. A node is a message, and its siblings are other versions of it. A lane has a model, and the last node of the
// branch that it shows. A conversation has one lane, or two side by side.

export const newId = () => `${Date.now().toString(36)}-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

export function newConversation(model) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, lanes: [{ model, leaf: null }], settings: {}, nodes: {} };
}

const indexes = new WeakMap();

function childrenOf(conversation, id) {
  let index = indexes.get(conversation);
  if (!index) {
    index = new Map();
    for (const node of Object.values(conversation.nodes).sort((a, b) => a.at - b.at)) {
      if (!index.has(node.parent)) index.set(node.parent, []);
      index.get(node.parent).push(node);
    }
    indexes.set(conversation, index);
  }
  return index.get(id) ?? [];
}

/** Adds a node below `parent` (an id, or null for a first message), and returns it. */
export function addNode(conversation, parent, fields) {
  const at = Object.keys(conversation.nodes).length;
  const node = { id: newId(), parent, at, role: "user", content: "", ...fields };
  conversation.nodes[node.id] = node;
  conversation.updated = Date.now();
  indexes.delete(conversation);
  return node;
}

/** Removes nodes that have no other nodes below them. */
export function removeNodes(conversation, nodes) {
  for (const node of nodes) delete conversation.nodes[node.id];
  indexes.delete(conversation);
}

/** Returns the nodes from the first message to `leaf`. */
export function pathTo(conversation, leaf) {
  const path = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) path.push(node);
  return path.reverse();
}

/** Returns the versions of a node. If there are two lanes, only those of the node's own model count. */
export function versions(conversation, node) {
  const own = childrenOf(conversation, node.parent).filter((other) => other.role === node.role);
  return conversation.lanes.length > 1 && node.model ? own.filter((other) => other.model === node.model) : own;
}

/** Returns the leaf of the newest branch below `node`. At each node it prefers answers of `model`. */
export function newestLeaf(conversation, node, model) {
  for (;;) {
    const below = childrenOf(conversation, node.id);
    if (!below.length) return node.id;
    node = below.findLast((other) => !other.model || other.model === model) ?? below[below.length - 1];
  }
}

export const lanesWith = (conversation, node) => conversation.lanes.filter((lane) => pathTo(conversation, lane.leaf).includes(node));

function turnsOf(path) {
  const turns = [];
  for (const node of path) {
    if (node.role === "user" || !turns.length) turns.push({ user: null, answers: [] });
    const turn = turns[turns.length - 1];
    if (node.role === "user") turn.user = node;
    else turn.answers.push(node);
  }
  return turns;
}

/** Returns, for each lane whose text is equal, the user's node of the same turn, because an edit changes all of them. */
export function sameTurn(conversation, node) {
  const lanes = conversation.lanes.map((lane) => ({ lane, turns: turnsOf(pathTo(conversation, lane.leaf)) }));
  const home = lanes.find(({ turns }) => turns.some((turn) => turn.user === node));
  const number = home ? home.turns.findIndex((turn) => turn.user === node) : -1;
  return lanes.map(({ lane, turns }) => ({ lane, user: turns[number]?.user })).filter(({ user }) => user && user.content === node.content);
}

/** Returns the rows that the thread shows. A row is a list of columns of nodes: one column, or two if the lanes differ there. */
export function rows(conversation) {
  const [first, second] = conversation.lanes.map((lane) => turnsOf(pathTo(conversation, lane.leaf)));
  const result = [];
  const both = (a, b) => (b.length === a.length && b.every((node, i) => node === a[i]) ? [a] : [a, b]);
  for (let i = 0; i < Math.max(first.length, second?.length ?? 0); i++) {
    const turn = first[i] ?? { user: null, answers: [] };
    const other = second ? second[i] ?? { user: null, answers: [] } : turn;
    const users = [turn.user, other.user];
    if (users[0] && users[1] && users[0].content === users[1].content) result.push([[users[0]]]);
    else if (users[0] || users[1]) result.push(users.map((user) => (user ? [user] : [])));
    const columns = both(turn.answers, other.answers);
    if (columns.some((column) => column.length)) result.push(columns);
  }
  return result;
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = Object.values(conversation.nodes).find((node) => node.role === "user" && node.parent === null);
  const line = first?.content.trim().split("\n")[0] ?? "";
  return line ? (line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line) : "New conversation";
}
