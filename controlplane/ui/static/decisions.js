// The turns of late, each with what was decided, why, and what came of it.

import { byId, el, keyed, say } from "./dom.js";
import { bytes, clock, count, ms, nameOf, score } from "./format.js";

const COLUMNS = ["Time", "Conversation", "Route", "Why", "Cell", "Tokens", "Cached", "TTFT", "TPOT", "KV moved", "Engines", "Trace"];
const TRACE_ID = /^[0-9a-f]{32}$/;
let paused = false;
let last = null;

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", paused);
  say(byId("pause"), paused ? "Go on" : "Pause");
});
byId("show").addEventListener("change", () => last && draw());

export function showDecisions(overview) {
  if (paused) return;
  last = overview;
  draw();
}

function draw() {
  const box = byId("decisions");
  if (!box.firstChild) {
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader" }, name))));
    box.append(el("table", { role: "table" }, head, el("tbody", { role: "rowgroup" })), el("p", { class: "note" }));
  }
  const wish = byId("show").value;
  const shown = last.decisions.filter((each) => !wish || (wish === "!" ? each.outcome !== "ok" : each.path === wish));
  keyed(box.querySelector("tbody"), shown, (each) => each.request_id, row);
  say(box.lastChild, shown.length ? "" : "No such turn of late.");
}

function row(each) {
  const cached = Math.max(each.cached_tokens_decode, each.cached_tokens_prefill);
  const failed = each.outcome !== "ok";
  const made = each.n_out_tokens === null ? "?" : `${each.n_out_at_least ? "≥ " : ""}${count(each.n_out_tokens)}`;
  const values = [
    clock(each.ended_unix_s),
    el("span", { title: each.session_id }, each.session_id ? `${each.session_id.slice(0, 10)} ` : "– ", el("small", {}, `turn ${each.turn}`)),
    el("span", {}, el("span", { class: `swatch ${each.path}` }, nameOf(each.path)), failed ? el("span", { class: "bad" }, ` ${each.outcome} ${each.status}`) : ""),
    el("span", {}, each.reason, each.explored ? el("small", {}, " explored") : "", each.migrations ? el("small", {}, ` moved ${each.migrations}×`) : ""),
    each.cell ? el("span", {}, el("span", { class: "mono" }, each.cell), el("small", {}, ` ${score(each.score)}`)) : "–",
    el("span", { title: "context + new → answer" }, `${count(each.n_ctx_tokens)} + ${count(each.n_in_tokens)} → ${made}`),
    cached < 0 ? "–" : `${count(cached)}${each.n_prompt_tokens ? ` of ${count(each.n_prompt_tokens)}` : ""}`,
    el("span", { title: each.path_ttft_ms === null ? "not seen: the answer was not streamed" : `of the path ${ms(each.path_ttft_ms)}, in the queue ${ms(each.queue_ms)}` }, ms(each.ttft_ms)),
    ms(each.tpot_ms),
    each.kv_bytes ? bytes(each.kv_bytes) : "–",
    [each.prefill_worker, each.decode_worker].filter(Boolean).join(" → ") || "–",
    trace(each.trace_id),
  ];
  return el("tr", { role: "row", class: failed ? "failed" : "" }, ...values.map((value, i) => el("td", { role: "cell", "data-label": COLUMNS[i] }, value)));
}

function trace(id) {
  if (!TRACE_ID.test(id)) return "–";
  const short = id.slice(0, 8);
  let base;
  try {
    base = new URL(last.jaeger_url);
  } catch {
    return el("span", { class: "mono", title: `${id}; start the frontend with --jaeger-url for a link` }, short);
  }
  if (!["http:", "https:"].includes(base.protocol)) return el("span", { class: "mono" }, short);
  const href = `${base.origin}${base.pathname.replace(/\/$/, "")}/trace/${id}`;
  return el("a", { href, class: "mono", target: "_blank", rel: "noopener noreferrer", "aria-label": `Trace ${short} in Jaeger` }, short);
}
