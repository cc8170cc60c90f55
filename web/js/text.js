// The text that a node shows after it has run: preformatted, as high as the node has room for, and scrolled beyond.

const WIDGET = "fast_compile_text";

/** An element that takes the room that is left in a node, and asks for none: a saved size stays as it is. */
export function addText(node) {
  const text = document.createElement("pre");
  text.className = "fast-compile-text";
  text.tabIndex = 0; // so that the arrow keys scroll it
  text.addEventListener("wheel", (event) => text.scrollHeight > text.clientHeight && event.stopPropagation());
  const options = { serialize: false, hideOnZoom: false, hideInPanel: true, margin: 4, getMinHeight: () => 0 };
  const widget = node.addDOMWidget(WIDGET, WIDGET, text, options);
  widget.serialize = false;
  const before = node.onExecuted;
  node.onExecuted = function (output, ...rest) {
    before?.call(this, output, ...rest);
    showText(node, output);
  };
}

/** Show what a node has given: `text` of its `ui`. */
export function showText(node, output) {
  const element = node.widgets?.find((widget) => widget.name === WIDGET)?.element;
  if (element && output?.text) element.textContent = [output.text].flat().join("\n");
}
