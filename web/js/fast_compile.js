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

let words = {}; // by key, in the language that the editor is set to: locales/<language>/main.json

const language = () => app.extensionManager?.setting?.get?.("Comfy.Locale") ?? app.ui.settings.getSettingValue("Comfy.Locale") ?? "en";

async function loadWords() {
  try {
    const found = await (await api.fetchApi("/i18n")).json();
    const [exact, broad] = [language(), language().split("-")[0]];
    words = { ...found.en?.fastCompile, ...found[broad]?.fastCompile, ...found[exact]?.fastCompile };
  } catch (error) {
    console.warn(`Fast Compile: no translations: ${error.message}`); // the keys are English words
  }
  refreshAll();
}

/** The text of a key, with ``{name}`` replaced by the value of that name. */
const say = (key, values = {}) => (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MB`;
const sum = (numbers) => [...numbers].reduce((total, number) => total + number, 0);

/** The state of a node with several models (a CLIP's text encoders): that of the one which was heard of last. */
const latest = (models) => [...(models?.values() ?? [])].at(-1);

function speed(event) {
  if (!event.rate) return null;
  const eager = eagerRates.get(`${event.model} ${event.inputs}`);
  const rate = say("rate", { rate: event.rate.toFixed(event.rate < 10 ? 2 : 1) });
  return eager ? `${rate}, ${say("times", { times: (event.rate / eager).toFixed(2) })}` : rate;
}

function summary(node) {
  if (!RUNS.has(typeOf(node))) return graphs.size ? say("graphs", { size: megabytes(sum(graphs.values())) }) : say("ready");
  const models = told.get(placeOf(node));
  const event = latest(models);
  if (!event) return say("ready");
  const state = say(event.state) + (event.step ? ` ${event.step}/${event.steps}` : "");
  const done = event.done ? `${Math.round(100 * event.done)}%` : null;
  const bytes = sum([...models.keys()].map((model) => graphs.get(model) ?? 0));
  const answered = event.calls?.answered ? say("answered", { count: event.calls.answered }) : null;
  return [state, event.quality, done, speed(event), answered, bytes ? megabytes(bytes) : null].filter(Boolean).join(" · ");
}

const reason = (event) => (event?.why ? say("because", { why: event.why, advice: event.advice }) : null);

// ---- the badge ------------------------------------------------------------------------------------------------------

function refresh(node) {
  const badge = badgeOf(node);
  if (!badge) return;
  const event = latest(told.get(placeOf(node)));
  badge.textContent = summary(node);
  badge.dataset.state = event?.state ?? "ready";
  badge.toggleAttribute("data-counted", Boolean(event?.done)); // how far it is is known: the bar stands still there
  badge.style.setProperty("--fast-compile-done", event?.done ?? 0);
  badge.title = reason(event) ?? say("hint");
  badge.setAttribute("aria-label", say("label", { state: badge.textContent }));
}

function refreshAll() {
  for (const each of nodesOf(rootGraph())) refresh(each);
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
  refreshAll();
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
    return answer.ok ? await answer.text() : say("refused", { status: answer.status });
  } catch (error) {
    return say("unreachable", { error: error.message });
  }
}

/** A modal dialog: the browser closes it on Escape, and gives the focus back to the badge. */
function showDetails(node) {
  const models = told.get(placeOf(node));
  const event = latest(models);
  const dialog = document.createElement("dialog");
  dialog.className = "fast-compile-details";
  const title = element("h2", `Fast Compile: ${summary(node)}`);
  title.id = "fast-compile-title";
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(title);
  if (reason(event)) dialog.append(element("p", reason(event)));
  if (event?.calls) {
    const calls = Object.entries(event.calls).map(([path, count]) => `${count} ${path}`);
    dialog.append(element("p", say("calls", { calls: calls.join(", ") })));
  }
  if (event?.live) dialog.append(element("p", event.live));
  const text = element("pre", "…");
  text.tabIndex = 0; // so that the arrow keys scroll it
  const close = element("button", say("close"));
  close.addEventListener("click", () => dialog.close());
  dialog.append(text, close);
  dialog.addEventListener("keydown", (key) => key.stopPropagation());
  dialog.addEventListener("click", (click) => click.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  if (RUNS.has(typeOf(node)) && !models) text.textContent = say("nothing");
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
    app.ui.settings.addEventListener?.("Comfy.Locale.change", loadWords);
    loadWords();
  },
  nodeCreated(node) {
    if (RUNS.has(typeOf(node)) || OTHERS.has(typeOf(node))) addBadge(node);
  },
  loadedGraphNode(node) {
    refresh(node);
  },
});
