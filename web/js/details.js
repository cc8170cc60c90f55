// What is behind a badge: a dialog that leads with what a person asks, with all the rest folded below it.
import { api } from "../../../scripts/api.js";
import { RUNS, typeOf } from "./state.js";
import { inOurs, language, say } from "./words.js";

const REPORT = "/fast_compile/report";
const DOCS = "/fast_compile/docs";
const PARTS = ["lead", "sizes", "all"]; // of the report
const PAGES = {
  docsFaster: "why-not-faster",
  docsModels: "does-it-work",
  docsMemory: "little-vram",
  docsLimits: "limits",
  docsTrouble: "troubleshooting",
};

function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function pre(text = "…") {
  const made = element("pre", text);
  made.tabIndex = 0; // so that the arrow keys scroll it
  return made;
}

async function report(models) {
  const query = new URLSearchParams([
    ["format", "parts"],
    ["language", language()],
    ...models.map((name) => ["name", name]),
  ]);
  try {
    const answer = await api.fetchApi(`${REPORT}?${query}`);
    return answer.ok ? await answer.json() : { lead: say("refused", { status: answer.status }) };
  } catch (error) {
    return { lead: say("unreachable", { error: error.message }) };
  }
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea"); // a page that isn't on https, or on this machine, has no clipboard
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = say("copied");
}

function links() {
  const made = element("p", say("docs"));
  made.className = "fast-compile-links";
  for (const [words, page] of Object.entries(PAGES)) {
    const link = element("a", say(words));
    link.href = api.apiURL(`${DOCS}/${page}.md`); // as a page to read: nodes/document.py
    link.target = "_blank";
    made.append(" ", link);
  }
  return made;
}

/** A modal dialog: the browser closes it on Escape, and gives the focus back to the badge. */
export function showDetails(node, now) {
  const dialog = document.createElement("dialog");
  dialog.className = "fast-compile-details";
  const title = element("h2", `Fast Compile: ${now.text}`);
  title.id = "fast-compile-title";
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(title);
  if (now.why) dialog.append(element("p", now.why));
  if (now.event?.calls) {
    const calls = Object.entries(now.event.calls).map(([path, count]) => say(`${path}Calls`, { count }));
    dialog.append(element("p", say("calls", { calls: calls.join(", ") })));
  }
  if (now.event?.live) dialog.append(element("p", inOurs(now.event.live_said) ?? now.event.live));
  const texts = Object.fromEntries(PARTS.map((name) => [name, pre()]));
  dialog.append(texts.lead);
  for (const name of PARTS.slice(1)) {
    const folded = document.createElement("details");
    folded.append(element("summary", say(name)), texts[name]);
    dialog.append(folded);
  }
  const [copied, close] = [element("button", say("copy")), element("button", say("close"))];
  const buttons = element("p");
  buttons.append(copied, " ", close);
  dialog.append(links(), buttons);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (key) => key.stopPropagation());
  dialog.addEventListener("click", (click) => click.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  const fill = (found) => {
    for (const name of PARTS) texts[name].textContent = found[name] ?? "";
    for (const folded of dialog.querySelectorAll("details")) folded.hidden = !folded.querySelector("pre").textContent;
    const lines = [title.textContent, ...PARTS.map((name) => found[name])];
    copied.addEventListener("click", () => copy(lines.filter(Boolean).join("\n\n"), copied));
  };
  if (RUNS.has(typeOf(node)) && !now.models.size) fill({ lead: say("nothing") });
  else report([...now.models.keys()]).then(fill);
}
