// What one cell of the table knows, and why it says what it says.

import { get } from "./api.js";
import { byId, el, say } from "./dom.js";
import { ms, nameOf, percent, plural, signed } from "./format.js";

const BOTH = ["p-d", "d-local"];

export function showCell(choice) {
  const box = byId("cell");
  if (!choice) return box.replaceChildren(el("p", { class: "note" }, "Choose a cell of the table: click it, or use the arrow keys and Enter."));
  const { table, slo, slot, name, late } = choice;
  const [value, source] = table.verdicts[slo][slot];
  const [ttft, tpot, ...limits] = table.classes[slo];
  const own = table.cells[slot];
  const figures = table.cells[source].paths;
  const path = value > 0 ? "d-local" : "p-d";
  const saved = 1 - figures["d-local"].ttft_ms.mean / figures["p-d"].ttft_ms.mean;
  const added = figures["d-local"].tpot_ms.mean / figures["p-d"].tpot_ms.mean - 1;
  const learned = el("p", { class: "note" });
  box.replaceChildren(
    el("h3", { class: "mono" }, name(slot)),
    el("p", { class: "verdict" }, el("b", { class: `swatch ${path}` }, nameOf(path)), ` for ${slo}: staying on D ${change(saved, "saves", "costs", "TTFT")} and ${change(added, "adds", "saves", "TPOT")}.`),
    el("p", { class: "sum mono" }, `${ttft} × ${signed(saved)} − ${tpot} × ${signed(added)} = `, el("b", {}, signed(value))),
    el("p", {}, why(own, slot, source, name)),
    el("table", { class: "figures-of" }, el("caption", { class: "hidden" }, `Figures of ${name(source)}`), head(), el("tbody", {}, ...Object.entries(figures).map(row))),
    el("p", { class: "note" }, [source === slot ? "" : `figures of ${name(source)}`, own.measured_qps ? `measured at ${own.measured_qps} chats/s` : "", `${plural(late, "turn")} of late in this cell`].filter(Boolean).join(" · ")),
    limits.some(Boolean) ? el("p", { class: "note" }, `${slo} has limits: ${limitWords(limits)}. The path that keeps them is taken, whatever the score.`) : "",
    learned,
  );
  return tellLearned(learned, table, name(slot));
}

export const limitWords = ([ttft, tpot]) => [ttft ? `TTFT ≤ ${ms(ttft)}` : "", tpot ? `TPOT ≤ ${ms(tpot)}` : ""].filter(Boolean).join(", ");

// What the planner has learned since, which a version may not say yet; nothing where no planner answers.
async function tellLearned(node, { model, placement }, cell) {
  const found = await get("learned", { model, placement, cell }).catch(() => null);
  const paths = Object.entries(found?.paths ?? {}).filter(([, each]) => each.turns >= 1);
  const words = paths.map(([path, each]) => `${nameOf(path)} TTFT ${ms(each.ttft_ms)}, TPOT ${ms(each.tpot_ms)} (${plural(Math.round(each.turns), "turn")})`);
  say(node, words.length ? `Learned online: ${words.join("; ")}.` : "Nothing was learned online here yet.");
}

const change = (share, more, less, of) => (Math.abs(share) < 0.005 ? `leaves ${of} as it is` : `${share < 0 ? less : more} ${percent(Math.abs(share))} of ${of}`);

function why(own, slot, source, name) {
  if (source === slot) return "Its own measurements decide.";
  if (BOTH.every((path) => own.paths[path])) return `Its own measurements are a tie; ${name(source)}, the nearest cell with a clear score, decides.`;
  const had = BOTH.filter((path) => own.paths[path]);
  return `${had.length ? `Only ${nameOf(had[0])} was measured here` : "It was not measured"}; ${name(source)}, the nearest cell that was measured on both paths, decides.`;
}

const head = () => el("thead", {}, el("tr", {}, ...["path", "TTFT", "TPOT", "turns", "from"].map((text) => el("th", { scope: "col" }, text))));

function row([path, { ttft_ms, tpot_ms, provenance }]) {
  const spread = (each) => el("td", {}, ms(each.mean), el("small", {}, each.sd ? ` ± ${ms(each.sd)}` : ""));
  return el("tr", {}, el("th", { scope: "row" }, el("span", { class: `swatch ${path}` }, nameOf(path))), spread(ttft_ms), spread(tpot_ms), el("td", {}, String(Math.round(ttft_ms.n))), el("td", {}, provenance));
}
