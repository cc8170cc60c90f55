// A badge on each of Fast Compile's nodes that runs a model: what a queue would do with it. A click, or Enter, opens
// the details. The server sends an event when something changes (sfast_core/hosts/comfy/events.py), and is asked when a
// page or a workflow opens and when a prompt is done. What a node's own switches say needs no server.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { showDetails } from "./details.js";
import { OTHERS, placed, RUNS, SHOW_TEXT, shown, switchedOff, Told, typeOf } from "./state.js";
import { addText, showText } from "./text.js";
import { inOurs, loadWords, megabytes, say } from "./words.js";

const EVENT = "fast_compile.status";
const STATUS = "/fast_compile/status";
const WIDGET = "fast_compile_status";
const MARGIN = 4;
const HEIGHT = 22 + 2 * MARGIN; // what a node gives it; the style has the 22
const GAP = 4; // LiteGraph's, behind each widget
const COLOURS = {
  tracing: "#d9a520",
  capturing: "#d9a520",
  fast: "#3fa45b",
  fused: "#3fa45b",
  measured: "#3fa45b",
  eager: "#e05252",
};

const told = new Told();
// by node: what is shown of it where its widgets aren't, collapsed or inside a closed subgraph
const inFront = new WeakMap();

const badgeOf = (node) => node.widgets?.find((widget) => widget.name === WIDGET)?.element;
const rootGraph = () => app.rootGraph ?? app.graph;
const workflow = () => String(rootGraph()?.id ?? "");

const asText = (part) => {
  if (typeof part === "string") return part;
  const [key, values = {}, more] = part;
  if (key === "megabytes") return megabytes(values.bytes);
  const text = say(key, key === "graphs" ? { size: megabytes(values.bytes) } : values);
  return more ? `${text} ${more}` : text;
};

/** What is to be shown of each node of ours, and what lies in each subgraph. */
function look() {
  const places = new Map(); // a subgraph may stand in several places, with one node for all of them
  for (const { node, id, around } of placed(rootGraph())) {
    if (!RUNS.has(typeOf(node)) && !OTHERS.has(typeOf(node))) continue;
    const place = places.get(node) ?? { ids: [], off: new Set(), around: [] };
    place.ids.push(id);
    place.off.add(switchedOff(node, around));
    place.around.push(...around);
    places.set(node, place);
  }
  const inside = new Map();
  const found = new Map();
  for (const [node, { ids, off, around }] of places) {
    const { models, event } = told.of(workflow(), ids);
    const state = shown(told, typeOf(node), { off: off.has(null) ? null : [...off][0], models, event });
    const text = state.parts.map(asText).filter(Boolean).join(" · ");
    found.set(node, { ...state, text, models, event });
    if (RUNS.has(typeOf(node)))
      for (const each of around) inside.set(each, [...(inside.get(each) ?? []), found.get(node)]);
  }
  return { found, inside };
}

export function explain(now) {
  const about = now.event ?? told.machine ?? {};
  const [why, advice] = inOurs(about.said) ?? [about.why, about.advice];
  if (why && now.state === "eager") return say("because", { why, advice });
  const words = { bypassed: "whyBypassed", muted: "whyMuted", off: "whyOff", idle: "whyIdle" }[now.state];
  return words ? say(words) : null;
}

function refresh(node, now) {
  const badge = badgeOf(node);
  if (badge) {
    badge.textContent = now.text;
    badge.dataset.state = now.state;
    badge.toggleAttribute("data-counted", Boolean(now.done)); // how far it is is known: the bar stands still there
    badge.style.setProperty("--fast-compile-done", now.done ?? 0);
    badge.title = explain(now) ?? say("hint");
    badge.setAttribute("aria-label", say("label", { state: now.text }));
  }
  showInFront(node, RUNS.has(typeOf(node)) && node.flags?.collapsed ? now : null);
}

/** The state of a node whose badge can't be seen, above its title: drawn on the canvas, or by the style of elements. */
function showInFront(node, now) {
  if (now && !inFront.has(node)) (node.badges ??= []).push(() => drawn(node));
  if (now || inFront.has(node)) inFront.set(node, now);
  const element = document.querySelector(`.lg-node[data-node-id="${node.id}"]`);
  if (!element || node.graph !== app.canvas?.graph) return;
  if (now) Object.assign(element.dataset, { fastCompile: now.text, fastCompileState: now.state });
  else for (const name of ["fastCompile", "fastCompileState"]) delete element.dataset[name];
}

/** As a badge of LiteGraph's. Without a `text`, by which nodes that are elements would show it once more. */
function drawn(node) {
  const now = inFront.get(node);
  const width = (context) => {
    context.font = "12px sans-serif";
    return now ? context.measureText(now.text).width + 24 : 0;
  };
  return {
    text: "",
    height: 20,
    getWidth: width,
    draw(context, x, y) {
      if (!now) return;
      context.save();
      const wide = width(context);
      context.fillStyle = "#222";
      context.beginPath();
      context.roundRect(x, y, wide, 20, 6);
      context.fill();
      context.fillStyle = COLOURS[now.state] ?? "#999";
      context.beginPath();
      context.arc(x + 10, y + 10, 4, 0, 2 * Math.PI);
      context.fill();
      context.fillStyle = "#ddd";
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(now.text, x + 18, y + 11);
      context.restore();
    },
  };
}

/** The worst of what lies in a subgraph: what a person would look at first. */
const ORDER = [
  "tracing",
  "capturing",
  "eager",
  "fused",
  "fast",
  "measured",
  "idle",
  "ready",
  "off",
  "muted",
  "bypassed",
];

function refreshAll() {
  const { found, inside } = look();
  for (const [node, now] of found) refresh(node, now);
  for (const { node } of placed(rootGraph())) {
    if (!node.subgraph) continue;
    const states = [...(inside.get(node) ?? [])].sort(
      (one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state),
    );
    showInFront(node, states[0] ?? null);
  }
  app.canvas?.setDirty?.(true, true);
}

function addBadge(node) {
  if (badgeOf(node) || typeof node.addDOMWidget !== "function") return;
  const badge = document.createElement("button");
  badge.type = "button";
  badge.className = "fast-compile-badge";
  badge.addEventListener("click", () => {
    const now = look().found.get(node);
    if (now) showDetails(node, { ...now, why: explain(now) });
  });
  // Enter and the space bar press the button; they must not reach the editor's own shortcuts.
  badge.addEventListener("keydown", (key) => ["Enter", " "].includes(key.key) && key.stopPropagation());
  const size = { margin: MARGIN, getMinHeight: () => HEIGHT, getMaxHeight: () => HEIGHT };
  const widget = node.addDOMWidget(WIDGET, WIDGET, badge, {
    serialize: false,
    hideOnZoom: false,
    hideInPanel: true,
    ...size,
  });
  widget.serialize = false; // a saved workflow has the values that it always had
  // A row as high as it is: nodes that are elements share free room among all widgets that are laid out by themselves.
  widget.computeLayoutSize = undefined;
  widget.computeSize = (width) => [width ?? 0, HEIGHT - GAP];
  const enabled = node.widgets.find((each) => each.name === "enabled");
  if (enabled) {
    const before = enabled.callback;
    enabled.callback = function (...args) {
      const result = before?.apply(this, args);
      soon();
      return result;
    };
  }
}

// ---- when to look ---------------------------------------------------------------------------------------------------

let waiting = null;

/** Look again when what happens now is over. */
function soon() {
  waiting ??= setTimeout(() => {
    waiting = null;
    refreshAll();
  }, 50);
}

let asked = 0;

/** Ask the server what it knows of the workflow that is open. */
async function ask() {
  const [mine, open] = [++asked, workflow()];
  try {
    const answer = await api.fetchApi(`${STATUS}?${new URLSearchParams({ workflow: open })}`);
    if (answer.ok && mine === asked) told.replace(open, await answer.json());
  } catch (error) {
    console.debug(`Fast Compile: the server can't be asked: ${error.message}`); // it is asked again when it is back
  }
  refreshAll();
}

let asking = null;

/** Ask once for all that happens in a moment. */
function askSoon() {
  clearTimeout(asking);
  asking = setTimeout(ask, 150);
}

app.registerExtension({
  name: "fast_compile.badges",
  setup() {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("./fast_compile.css", import.meta.url).href;
    document.head.append(style);
    api.addEventListener(EVENT, ({ detail }) => {
      told.hear(detail, workflow());
      refreshAll();
    });
    api.addEventListener("status", askSoon); // the queue has changed: a prompt is done, of this page or of another
    api.addEventListener("graphChanged", soon);
    const reworded = () => loadWords().then(refreshAll);
    app.ui.settings.addEventListener?.("Comfy.Locale.change", reworded);
    reworded();
  },
  nodeCreated(node) {
    const type = typeOf(node);
    if (!RUNS.has(type) && !OTHERS.has(type)) return;
    if (SHOW_TEXT.has(type)) addText(node);
    addBadge(node);
    const least = node.computeSize();
    const roomy = SHOW_TEXT.has(type) ? [Math.max(least[0], 400), least[1] + 180] : least;
    node.setSize([Math.max(node.size[0], roomy[0]), Math.max(node.size[1], roomy[1])]); // a saved one has its own
    soon();
  },
  afterConfigureGraph() {
    askSoon();
    soon();
  },
  onNodeOutputsUpdated(outputs) {
    for (const { node, id } of placed(rootGraph()))
      if (SHOW_TEXT.has(typeOf(node)) && outputs[id]) showText(node, outputs[id]);
  },
});
