// The engines with their load of now, and between them the ways that the turns of late took.

import { byId, el, keyed, say, svg } from "./dom.js";
import { rate } from "./figures.js";
import { PATHS, count, ms, nameOf, percent } from "./format.js";

const COLUMNS = [["prefill", "Prefill"], ["decode", "Decode"], ["replica", "Replica"]];
const HISTORY = 45;
const past = new Map(); // worker id -> running, of the last polls
let last = null;

export function showTopology(overview) {
  last = overview;
  const { workers, models, model, late } = overview;
  const box = byId("topology");
  if (!box.firstChild) build(box);
  for (const [role] of COLUMNS) {
    const column = box.querySelector(`[data-role="${role}"]`);
    const own = workers.filter((worker) => worker.role === role);
    column.hidden = own.length === 0;
    keyed(column.querySelector("ul"), own, (worker) => worker.id, card, update);
  }
  for (const id of past.keys()) if (!workers.some((worker) => worker.id === id)) past.delete(id);
  box.toggleAttribute("data-whole", workers.every((worker) => worker.role === "replica"));
  const entry = box.querySelector(".entry");
  say(entry.children[1], late.turns ? `${rate(late).toFixed(1)} turns/s` : "no turns yet");
  say(byId("placement"), models.find((each) => each.name === model)?.placement ?? "no engine is registered");
  showKey(late);
  draw(box);
}

function build(box) {
  box.append(
    svg("svg", { "aria-hidden": "true" }),
    el("div", { class: "entry" }, el("b", {}, "Frontend"), el("span", { class: "note" })),
    ...COLUMNS.map(([role, title]) => el("div", { class: "column", "data-role": role }, el("h3", {}, title), el("ul", {}))),
  );
  new ResizeObserver(() => draw(box)).observe(box);
}

function card() {
  return el(
    "li",
    { class: "engine" },
    el("p", { class: "name" }, el("b", {}), el("span", { class: "state" })),
    el("p", { class: "load" }, el("span", {}), el("span", { class: "note" })),
    el("div", { class: "bar", role: "meter", "aria-label": "KV memory in use", "aria-valuemin": 0, "aria-valuemax": 100 }, el("i", {})),
    el("p", { class: "note small" }, el("span", {}), el("span", {})),
    svg("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", {})),
  );
}

function update(node, worker) {
  const [name, load, bar, more, spark] = node.children;
  node.dataset.name = worker.name;
  node.dataset.state = worker.stale && worker.status === "ready" ? "stale" : worker.status;
  node.title = [worker.hardware, worker.tensor_parallel > 1 ? `tensor parallel ${worker.tensor_parallel}` : "", worker.id].filter(Boolean).join(" · ");
  say(name.children[0], worker.name);
  say(name.children[1], node.dataset.state === "stale" ? "no load report" : worker.status);
  say(load.children[0], `${count(worker.running)} running`);
  say(load.children[1], worker.waiting ? `${count(worker.waiting)} waiting` : "");
  const used = Math.min(1, Math.max(0, worker.kv_use));
  bar.setAttribute("aria-valuenow", Math.round(used * 100));
  bar.firstChild.style.setProperty("--share", used);
  say(more.children[0], `KV ${percent(used)}`);
  say(more.children[1], extra(worker));
  const seen = [...(past.get(worker.id) ?? []), worker.running].slice(-HISTORY);
  past.set(worker.id, seen);
  spark.firstChild.setAttribute("d", line(seen));
}

function extra(worker) {
  if (worker.queued_prefill_tokens) return `${count(worker.queued_prefill_tokens)} tokens queued`;
  if (worker.itl_ms) return `${ms(worker.itl_ms)} a token`;
  return worker.prefill_tokens_per_s >= 1 ? `${count(Math.round(worker.prefill_tokens_per_s))} tokens/s` : "";
}

function line(values) {
  const top = Math.max(4, ...values);
  const at = (value, i) => `${(100 - (values.length - 1 - i) * (100 / (HISTORY - 1))).toFixed(1)},${(19 - (value / top) * 17).toFixed(1)}`;
  return values.length > 1 ? `M${values.map(at).join("L")}` : "";
}

function showKey(late) {
  const found = PATHS.filter((path) => late.paths[path]);
  keyed(
    byId("topology-key"),
    found,
    (path) => path,
    (path) => el("span", { class: `swatch ${path}` }, ""),
    (node, path) => say(node, `${nameOf(path)} ${percent(late.paths[path].turns / late.turns)}`),
  );
}

function draw(box) {
  const canvas = box.querySelector("svg");
  const area = box.getBoundingClientRect();
  if (!last || !area.width || getComputedStyle(canvas).display === "none") return;
  canvas.setAttribute("viewBox", `0 0 ${area.width} ${area.height}`);
  const place = (node) => {
    const rect = node.getBoundingClientRect();
    return { left: rect.left - area.left, right: rect.right - area.left, mid: rect.top - area.top + rect.height / 2, bottom: rect.bottom - area.top };
  };
  const entry = place(box.querySelector(".entry"));
  const cards = new Map([...box.querySelectorAll(".engine")].map((node) => [node.dataset.name, place(node)]));
  const prefills = [...box.querySelectorAll('[data-role="prefill"] .engine')].map(place);
  const lane = prefills.length ? Math.max(...prefills.map((each) => each.bottom)) + 18 : entry.mid;
  const total = last.late.turns;
  const lines = [];
  for (const [prefill, decode, path, turns] of last.late.flows) {
    const width = 1.5 + 12 * Math.sqrt(turns / total);
    const from = cards.get(prefill);
    const to = cards.get(decode);
    if (from) lines.push([path, width, curve(entry.right, entry.mid, from.left, from.mid)]);
    if (to && from) lines.push([path, width, curve(from.right, from.mid, to.left, to.mid - 10)]);
    else if (to && prefills.length) lines.push([path, width, under(entry, lane, prefills[0].right, to)]);
    else if (to) lines.push([path, width, curve(entry.right, entry.mid, to.left, to.mid)]);
  }
  canvas.replaceChildren(...lines.map(([path, width, d]) => svg("path", { d, class: path, "stroke-width": width.toFixed(1) })));
}

function curve(x0, y0, x1, y1) {
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`;
}

// D-local passes below the prefill engines.
function under(entry, lane, beyond, to) {
  const middle = (beyond + to.left) / 2;
  return `M${entry.right},${entry.mid + 12}C${entry.right + 40},${entry.mid + 12} ${entry.right},${lane} ${entry.right + 70},${lane}H${beyond - 10}C${middle},${lane} ${middle},${to.mid + 10} ${to.left},${to.mid + 10}`;
}
