// Which ways the turns of late took and why, and how long each way took to the first token, the queue not counted.

import { byId, el, keyed, say, svg } from "./dom.js";
import { PATHS, bytes, ms, nameOf, percent, plural } from "./format.js";

const ROW = 46;
const TICKS = [1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000];

export function showRoutes({ late, processes }) {
  const seconds = late.last_unix_s - late.first_unix_s;
  const whose = processes > 1 ? ` of all ${processes} processes` : "";
  say(byId("window"), late.turns ? `last ${plural(late.turns, "turn")}${whose}, within ${seconds < 120 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`}` : "");
  const found = PATHS.filter((path) => late.paths[path]);
  showMix(late, found);
  showTtft(late, found);
  showPaths(late, found);
  byId("paths").hidden = found.length === 0;
}

function showMix(late, found) {
  const box = byId("mix");
  if (!box.firstChild) box.append(el("div", { class: "mix", "aria-hidden": "true" }), el("ul", { class: "reasons" }));
  const [bar, list] = box.children;
  const share = (path) => late.paths[path].turns / late.turns;
  keyed(bar, found, (path) => path, (path) => el("i", { class: path }), (node, path) => node.style.setProperty("--share", share(path)));
  keyed(
    list,
    found,
    (path) => path,
    (path) => el("li", {}, el("b", { class: `swatch ${path}` }), el("span", { class: "note" })),
    (node, path) => {
      const reasons = late.reasons.filter(([of]) => of === path).map(([, reason, turns]) => `${reason} ${turns}`);
      say(node.children[0], `${nameOf(path)} ${percent(share(path))}`);
      say(node.children[1], reasons.join(" · "));
    },
  );
  if (!found.length) list.replaceChildren(el("li", { class: "note" }, "No turn was served yet."));
}

function showTtft(late, found) {
  const box = byId("ttft");
  const rows = found.filter((path) => late.paths[path].path_ttft_ms.n);
  const all = rows.flatMap((path) => late.paths[path].path_ttft_ms.points);
  if (!all.length) return box.replaceChildren(el("p", { class: "note" }, "No stream has begun yet."));
  const low = TICKS.findLast((tick) => tick <= Math.min(...all)) ?? TICKS[0];
  const high = TICKS.find((tick) => tick >= Math.max(...all)) ?? TICKS.at(-1);
  const to = high > low ? high : low * 10;
  const left = 14;
  const width = Math.max(260, box.clientWidth);
  const x = (value) => left + ((width - 2 * left) * Math.log(Math.min(to, Math.max(low, value)) / low)) / Math.log(to / low);
  const height = rows.length * ROW + 24;
  const words = rows.map((path) => `${nameOf(path)}: median ${ms(late.paths[path].path_ttft_ms.p50)}, 95th percentile ${ms(late.paths[path].path_ttft_ms.p95)}`);
  const chart = svg("svg", { class: "strips", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words.join("; ") });
  const ticks = TICKS.filter((each) => each >= low && each <= to);
  for (const tick of ticks.filter((_, i) => width > 420 || ticks.length < 6 || i % 2 === 0)) {
    chart.append(
      svg("line", { x1: x(tick), x2: x(tick), y1: 0, y2: height - 20, class: "grid" }),
      svg("text", { x: x(tick), y: height - 5, class: `tick${tick === low ? " first" : tick === to ? " last" : ""}` }, tick >= 1000 ? `${tick / 1000} s` : `${tick} ms`),
    );
  }
  rows.forEach((path, i) => chart.append(strip(path, late.paths[path].path_ttft_ms, i * ROW, x)));
  box.replaceChildren(chart);
}

function strip(path, { points, p50, p95 }, top, x) {
  const middle = top + 30;
  const text = `${nameOf(path)}  p50 ${ms(p50)}  p95 ${ms(p95)}`;
  return svg(
    "g",
    { class: path },
    svg("text", { x: 0, y: top + 14, class: "label" }, text),
    ...points.map((value, i) => svg("circle", { cx: x(value).toFixed(1), cy: (middle + ((i * 7) % 11) - 5).toFixed(1), r: 2.6 })),
    svg("line", { x1: x(p50), x2: x(p50), y1: middle - 10, y2: middle + 10, class: "p50" }),
    svg("line", { x1: x(p95), x2: x(p95), y1: middle - 8, y2: middle + 8, class: "p95" }),
  );
}

function showPaths(late, found) {
  const box = byId("paths");
  if (!box.firstChild) {
    const head = ["path", "turns", "TTFT p50", "p95", "TPOT p50", "p95", "cached", "KV moved"].map((text) => el("th", { scope: "col" }, text));
    box.append(el("table", { class: "figures-of" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {})));
  }
  keyed(
    box.querySelector("tbody"),
    found,
    (path) => path,
    (path) => el("tr", {}, el("th", { scope: "row" }, el("span", { class: `swatch ${path}` }, nameOf(path))), ...Array.from({ length: 7 }, () => el("td", {}))),
    (node, path) => {
      const { turns, path_ttft_ms, tpot_ms, cached_tokens, prompt_tokens, kv_bytes } = late.paths[path];
      const cached = prompt_tokens ? percent(cached_tokens / prompt_tokens) : "–";
      [String(turns), ms(path_ttft_ms.p50), ms(path_ttft_ms.p95), ms(tpot_ms.p50), ms(tpot_ms.p95), cached, kv_bytes ? bytes(kv_bytes) : "–"].forEach((text, i) => say(node.children[i + 1], text));
    },
  );
}
