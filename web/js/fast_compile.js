// A badge on each of Fast Compile's nodes: what its model does now. A click, or Enter, opens the details.
// The server sends an event when something changes (sfast_core/hosts/comfy/events.py); nothing here asks for it.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

const EVENT = "fast_compile.status";
const REPORT = "/fast_compile/report";
const WIDGET = "fast_compile_status";
const MARGIN = 4;
const HEIGHT = 22 + 2 * MARGIN; // what a node gives it; the style has the 22

// Nodes that run a model; the others show what the graphs of all models hold.
const RUNS = new Set([
  "ApplyFastCompile",
  "ApplyFastCompileVAE",
  "ApplyFastCompileCLIP",
  "ApplyFastCompileControlNet",
  "FastCompileBenchmark",
]);
const OTHERS = new Set(["FastCompileSettings", "FastCompileWarmUp", "FastCompileReport", "FastCompileFreeMemory"]);

const LABELS = { tracing: "tracing", capturing: "capturing", fast: "fast", fused: "fused, no graph", eager: "fell back" };

const told = new Map(); // by place of a node: what the server told of it, by model
const graphs = new Map(); // by model: the bytes of its graphs
const eagerRates = new Map(); // by model and shapes: steps per second without us, where a benchmark has measured them

// ---- nodes ----------------------------------------------------------------------------------------------------------

const typeOf = (node) => node.comfyClass ?? node.type;
const badgeOf = (node) => node.widgets?.find((widget) => widget.name === WIDGET)?.element;
const rootGraph = () => app.rootGraph ?? app.graph;

/** What a node is known by while its workflow is open: an undo makes the node anew, another tab has the same numbers. */
function placeOf(node) {
  const workflow = app.extensionManager?.workflow?.activeWorkflow;
  return [workflow?.key ?? workflow?.path ?? "", node.graph?.id ?? "", node.id].join("/");
}

/** The node that the server names: "8", or "5:8" for number 8 in the subgraph 5. */
function findNode(id) {
  let graph = rootGraph();
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById?.(part) ?? graph?.getNodeById?.(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

function* nodesOf(graph) {
  for (const node of graph?.nodes ?? graph?._nodes ?? []) {
    yield node;
    if (node.subgraph) yield* nodesOf(node.subgraph);
  }
}

// ---- words ----------------------------------------------------------------------------------------------------------

const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MB`;
const sum = (numbers) => [...numbers].reduce((total, number) => total + number, 0);

/** The state of a node with several models (a CLIP's text encoders): that of the one which was heard of last. */
const latest = (models) => [...(models?.values() ?? [])].at(-1);

function speed(event) {
  if (!event.rate) return null;
  const eager = eagerRates.get(`${event.model} ${event.inputs}`);
  const rate = `${event.rate.toFixed(event.rate < 10 ? 2 : 1)} it/s`;
  return eager ? `${rate}, ${(event.rate / eager).toFixed(2)}x eager` : rate;
}

function words(node) {
  if (!RUNS.has(typeOf(node))) return graphs.size ? `graphs ${megabytes(sum(graphs.values()))}` : "ready";
  const models = told.get(placeOf(node));
  const event = latest(models);
  if (!event) return "ready";
  const step = event.step ? ` ${event.step}/${event.steps}` : "";
  const bytes = sum([...models.keys()].map((model) => graphs.get(model) ?? 0));
  return [LABELS[event.state] + step, speed(event), bytes ? megabytes(bytes) : null].filter(Boolean).join(" · ");
}

// ---- the badge ------------------------------------------------------------------------------------------------------

function refresh(node) {
  const badge = badgeOf(node);
  if (!badge) return;
  const event = latest(told.get(placeOf(node)));
  badge.textContent = words(node);
  badge.dataset.state = event?.state ?? "ready";
  badge.title = event?.why ?? "Fast Compile: click for details";
  badge.setAttribute("aria-label", `Fast Compile: ${badge.textContent}. Show details`);
}

function addBadge(node) {
  if (badgeOf(node) || typeof node.addDOMWidget !== "function") return;
  const badge = document.createElement("button");
  badge.type = "button";
  badge.className = "fast-compile-badge";
  badge.addEventListener("click", () => showDetails(node));
  // Enter and the space bar press the button; they must not reach the editor's own shortcuts.
  badge.addEventListener("keydown", (key) => ["Enter", " "].includes(key.key) && key.stopPropagation());
  const size = { margin: MARGIN, getMinHeight: () => HEIGHT, getMaxHeight: () => HEIGHT };
  const widget = node.addDOMWidget(WIDGET, WIDGET, badge, { serialize: false, hideOnZoom: false, ...size });
  widget.serialize = false; // a saved workflow has the values that it always had
  const least = node.computeSize();
  node.setSize([Math.max(node.size[0], least[0]), Math.max(node.size[1], least[1])]);
  refresh(node);
}

function onStatus({ detail: event }) {
  if (event.graphs) {
    graphs.clear();
    for (const [model, bytes] of Object.entries(event.graphs)) graphs.set(model, bytes);
  }
  if (event.eager?.inputs) eagerRates.set(`${event.eager.model} ${event.eager.inputs}`, event.eager.rate);
  if (event.model) graphs.set(event.model, event.graph_bytes);
  const node = event.node ? findNode(event.node) : null;
  if (node && RUNS.has(typeOf(node))) {
    const place = placeOf(node);
    const models = told.get(place) ?? new Map();
    models.delete(event.model); // the latest is the last
    told.set(place, models.set(event.model, event));
  }
  for (const each of nodesOf(rootGraph())) refresh(each);
}

// ---- the details ----------------------------------------------------------------------------------------------------

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

async function reportText(models) {
  const query = new URLSearchParams([["format", "text"], ...models.map((name) => ["name", name])]);
  try {
    const answer = await api.fetchApi(`${REPORT}?${query}`);
    return answer.ok ? await answer.text() : `The server answered ${answer.status}.`;
  } catch (error) {
    return `The server can't be reached: ${error.message}`;
  }
}

/** A modal dialog: the browser closes it on Escape, and gives the focus back to the badge. */
function showDetails(node) {
  const models = told.get(placeOf(node));
  const event = latest(models);
  const dialog = document.createElement("dialog");
  dialog.className = "fast-compile-details";
  const title = element("h2", `Fast Compile: ${words(node)}`);
  title.id = "fast-compile-title";
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(title);
  if (event?.why) dialog.append(element("p", `Runs as it was, because ${event.why}`));
  if (event?.calls) {
    const calls = Object.entries(event.calls).map(([path, count]) => `${count} ${path}`);
    dialog.append(element("p", `Calls of the last sampling: ${calls.join(", ")}`));
  }
  const text = element("pre", "…");
  text.tabIndex = 0; // so that the arrow keys scroll it
  const close = element("button", "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.append(text, close);
  dialog.addEventListener("keydown", (key) => key.stopPropagation());
  dialog.addEventListener("click", (click) => click.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  if (RUNS.has(typeOf(node)) && !models) text.textContent = "Nothing has run through this node yet.";
  else reportText([...(models?.keys() ?? [])]).then((found) => (text.textContent = found));
}

// ---- the extension --------------------------------------------------------------------------------------------------

app.registerExtension({
  name: "fast_compile.badges",
  setup() {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("./fast_compile.css", import.meta.url).href;
    document.head.append(style);
    api.addEventListener(EVENT, onStatus);
  },
  nodeCreated(node) {
    if (RUNS.has(typeOf(node)) || OTHERS.has(typeOf(node))) addBadge(node);
  },
  loadedGraphNode(node) {
    refresh(node);
  },
});
