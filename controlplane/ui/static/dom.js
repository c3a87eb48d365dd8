// Builds elements out of text and attributes. Nothing here, or anywhere on this page, makes HTML out of strings.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "vars") for (const [property, each] of Object.entries(value)) node.style.setProperty(property, each);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
export const byId = (id) => document.getElementById(id);

// Sets a text only where it differs, so that a screen reader is not told the same again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The children of `parent` as `items` want them: kept by key, updated, added, taken away, in order.
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    let node = old.get(id);
    old.delete(id);
    if (!node) {
      node = make(item);
      node.dataset.key = id;
    }
    update?.(node, item);
    if (node === before) before = before.nextElementSibling;
    else parent.insertBefore(node, before);
  }
  for (const node of old.values()) node.remove();
}
