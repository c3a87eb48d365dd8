// The line of figures on top.

import { byId, el, keyed, say } from "./dom.js";
import { count, ms, percent } from "./format.js";

export function rate(late) {
  const seconds = late.last_unix_s - late.first_unix_s;
  return late.turns > 1 && seconds > 0 ? (late.turns - 1) / seconds : 0;
}

export function showFigures({ late, workers, sessions, queued, unix_s }) {
  const sum = (name) => workers.reduce((total, worker) => total + worker[name], 0);
  const idle = unix_s - late.last_unix_s > 30;
  const perSecond = rate(late);
  const items = [
    ["Turns", late.turns && !idle ? `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)}/s` : "idle", `${count(late.turns)} seen of late`],
    ["Stay on D", late.turns ? percent((late.paths["d-local"]?.turns ?? 0) / late.turns) : "–", "share of D-local"],
    ["TTFT", ms(late.all.ttft_ms.p50), late.all.ttft_ms.n ? `p95 ${ms(late.all.ttft_ms.p95)}` : "no streams of late"],
    ["TPOT", ms(late.all.tpot_ms.p50), late.all.tpot_ms.n ? `p95 ${ms(late.all.tpot_ms.p95)}` : "no streams of late"],
    ["Running", count(sum("running")), `${count(sum("waiting") + queued)} waiting`],
    ["Conversations", count(sessions), "remembered"],
    ["Failed", count(late.all.failed), "errors and hang-ups"],
  ];
  keyed(
    byId("figures"),
    items,
    ([name]) => name,
    ([name]) => el("div", {}, el("dt", {}, name), el("dd", { class: "big" }), el("dd", { class: "note" })),
    (node, [, big, small]) => {
      say(node.children[1], big);
      say(node.children[2], small);
    },
  );
}
