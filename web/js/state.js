// What is known of the nodes of ours, by workflow and place in it. Nothing here touches the page.

export const RUNS = new Set([
  "ApplyFastCompile",
  "ApplyFastCompileVAE",
  "ApplyFastCompileCLIP",
  "ApplyFastCompileControlNet",
  "FastCompileSeveralGPUs",
  "FastCompileBenchmark",
]);
// they show what the graphs of all models hold
export const OTHERS = new Set(["FastCompileWarmUp", "FastCompileReport", "FastCompileFreeMemory"]);
export const SHOW_TEXT = new Set([
  "FastCompileBenchmark",
  "FastCompileWarmUp",
  "FastCompileReport",
  "FastCompileFreeMemory",
]);

const MODES = { 2: "muted", 4: "bypassed" }; // of LiteGraph's

export const typeOf = (node) => node.comfyClass ?? node.type;
const nodesIn = (graph) => graph?.nodes ?? graph?._nodes ?? [];

/** Each node of a graph and of its subgraphs: its id in a prompt, "8" or "5:8", and the subgraphs that it lies in. */
export function* placed(graph, path = [], around = []) {
  for (const node of nodesIn(graph)) {
    const id = [...path, node.id];
    yield { node, id: id.join(":"), around };
    if (node.subgraph) yield* placed(node.subgraph, id, [...around, node]);
  }
}

/** Why a queue would run nothing through a node, where its own switches say so. */
export function switchedOff(node, around = []) {
  for (const each of [...around, node]) if (MODES[each.mode]) return MODES[each.mode];
  const linked = node.inputs?.some((input) => input.name === "enabled" && input.link != null);
  const enabled = node.widgets?.find((widget) => widget.name === "enabled");
  return !linked && enabled?.value === false ? "off" : null;
}

/** What the server has told, of all workflows that it knows. */
export class Told {
  constructor() {
    this.nodes = new Map(); // by workflow and id: the events by model, the latest last
    this.graphs = new Map(); // by model: the bytes of its graphs
    this.times = new Map(); // by model and shapes: how many times faster a benchmark was
    this.machine = null; // why nothing is faster there
  }

  /** One event. `open`: the id of the workflow that the page shows, for events that name none. */
  hear(event, open) {
    if (event.graphs) this.graphs = new Map(Object.entries(event.graphs));
    if (event.times && event.inputs) this.times.set(`${event.model} ${event.inputs}`, event.times);
    if (!event.model && event.state === undefined) return;
    if (event.model) this.graphs.set(event.model, event.graph_bytes ?? 0);
    if (event.workflow === null) return; // a prompt that no editor has queued
    for (const id of event.nodes ?? []) {
      const key = `${event.workflow ?? open} ${id}`;
      const models = this.nodes.get(key) ?? new Map();
      models.delete(event.model);
      if (event.state !== "ready") models.set(event.model, event);
      this.nodes.set(key, models);
    }
  }

  /** All that the server knows of a workflow, in the place of what was heard of it. */
  replace(workflow, board) {
    for (const key of [...this.nodes.keys()]) if (key.startsWith(`${workflow} `)) this.nodes.delete(key);
    for (const each of board.times) this.times.set(`${each.model} ${each.inputs}`, each.times);
    for (const event of board.events) this.hear(event, workflow);
    this.graphs = new Map(Object.entries(board.graphs));
    this.machine = board.machine ?? null;
  }

  /** The models that a node at these places runs (a CLIP has several), and the event of the one heard of last. */
  of(workflow, ids) {
    const found = ids.map((id) => this.nodes.get(`${workflow} ${id}`)).filter((models) => models?.size);
    const models = new Map(found.flatMap((each) => [...each]));
    return { models, event: [...models.values()].at(-1) };
  }

  graphBytes(models) {
    return [...(models ?? this.graphs.keys())].reduce((total, model) => total + (this.graphs.get(model) ?? 0), 0);
  }

  timesOf(event) {
    return event.times ?? this.times.get(`${event.model} ${event.inputs}`);
  }
}

/** What a node's badge says: its state, and the parts of its text as [key of words, values] or plain texts. */
export function shown(told, type, { off, models, event }) {
  if (off) return { state: off, parts: [[off]] };
  if (!RUNS.has(type)) {
    const bytes = told.graphBytes();
    return { state: "ready", parts: [bytes ? ["graphs", { bytes }] : ["ready"]] };
  }
  if (!event) return told.machine ? { state: "eager", parts: [["notHere"]] } : { state: "ready", parts: [["ready"]] };
  if (event.idle) return { state: "idle", parts: [["idle"]] };
  const times = told.timesOf(event);
  const parts = [
    event.state === "measured"
      ? ["times", { times: times.toFixed(2) }]
      : [event.state, {}, event.step ? `${event.step}/${event.steps}` : ""],
  ];
  if (event.quality) parts.push(event.quality);
  if (event.done) parts.push(`${Math.round(100 * event.done)}%`);
  if (event.rate) parts.push(["rate", { rate: event.rate.toFixed(event.rate < 10 ? 2 : 1) }]);
  if (times && event.state !== "measured" && event.state !== "eager" && !event.step)
    parts.push(["times", { times: times.toFixed(2) }]);
  if (event.calls?.answered) parts.push(["answered", { count: event.calls.answered }]);
  const bytes = told.graphBytes(models.keys());
  if (bytes && event.state !== "measured") parts.push(["megabytes", { bytes }]);
  return { state: event.state, parts, done: event.done };
}
