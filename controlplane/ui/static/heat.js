// The table as a heat map: one for each SLO class, walked with the arrow keys.

import { Refused, get } from "./api.js";
import { limitWords, showCell } from "./cell.js";
import { byId, el, keyed, say } from "./dom.js";
import { percent, plural, score, when } from "./format.js";

const FULL = 0.5; // a score from which the colour is full

function nothing(model) {
  if (!model) return "No engine is registered.";
  if (!/[PD]/.test(model.placement)) return "Replicas do both parts themselves: there is nothing to decide, and no table.";
  return "There is no table for this placement yet: later turns go P→D.";
}

export class Heat {
  constructor(versions) {
    this.versions = versions;
    this.table = null;
    this.known = null; // model, placement and version of `table`
    this.slo = "";
    this.slot = -1; // chosen
    this.late = {};
    byId("heat").addEventListener("keydown", (event) => this.walk(event));
    byId("classes").addEventListener("keydown", (event) => this.turn(event));
  }

  async show(overview) {
    this.late = overview.late.cells;
    const model = overview.models.find((each) => each.name === overview.model);
    const found = model?.tables.find((each) => each.placement === model.placement) ?? model?.tables[0];
    const wanted = found ? JSON.stringify([model.name, found.placement, found.version]) : "";
    if (wanted !== this.known) await this.load(overview, model, found, wanted);
    if (this.table) this.marks();
    this.versions.allow(overview.can_change);
  }

  async load(overview, model, found, wanted) {
    let table = null;
    try {
      table = found && (await get("table", { model: model.name, placement: found.placement }));
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) throw error;
    }
    const other = !this.table || !table || table.model !== this.table.model || table.placement !== this.table.placement;
    this.table = table;
    this.known = wanted;
    byId("heat-key").hidden = byId("classes").hidden = byId("side").hidden = !table;
    if (!table) {
      say(byId("table-about"), "");
      byId("heat").replaceChildren(el("p", { class: "note" }, nothing(model)));
      showCell(null);
      return this.versions.clear();
    }
    if (!(this.slo in table.verdicts)) this.slo = overview.slo in table.verdicts ? overview.slo : Object.keys(table.verdicts)[0];
    if (other) this.slot = -1;
    const own = table.cells.filter((cell) => cell.paths["p-d"] && cell.paths["d-local"]).length;
    say(byId("table-about"), [table.placement, `version ${table.version}`, table.frozen ? "frozen" : "", table.source, when(table.created_unix_s), plural(own, "measured cell"), table.explore_share > 0 ? `explores ${percent(table.explore_share)}` : ""].filter(Boolean).join(" · "));
    this.tabs();
    this.grid();
    await this.versions.show(table);
  }

  tabs() {
    keyed(
      byId("classes"),
      Object.entries(this.table.classes),
      ([name]) => name,
      ([name]) => el("button", { type: "button", role: "tab", on: { click: () => this.choose(name) } }, el("b", {}, name), el("span", { class: "note" })),
      (node, [name, [ttft, tpot, ...limits]]) => {
        say(node.children[1], `TTFT×${ttft} TPOT×${tpot} ${limitWords(limits)}`.trim());
        node.setAttribute("aria-selected", name === this.slo);
        node.tabIndex = name === this.slo ? 0 : -1;
      },
    );
  }

  choose(name) {
    this.slo = name;
    this.tabs();
    this.grid();
  }

  turn(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const names = Object.keys(this.table.verdicts);
    this.choose(names[(names.indexOf(this.slo) + step + names.length) % names.length]);
    byId("classes").querySelector('[aria-selected="true"]').focus();
  }

  grid() {
    const { levels, contexts, ratios } = this.table;
    const focused = document.activeElement?.dataset.slot;
    const head = el("div", { role: "row", class: "row head" }, el("span", { role: "columnheader" }, "new chats/s"), ...levels.map((level) => el("span", { role: "columnheader" }, String(level))));
    const rows = contexts.flatMap(([context, tokens], c) => [
      el("div", { role: "row", class: "row context" }, el("span", { role: "rowheader" }, el("b", {}, context), ` context, measured at ${tokens.toLocaleString("en")} tokens`)),
      ...ratios.map(([ratio, tokensIn, tokensOut], r) =>
        el(
          "div",
          { role: "row", class: "row" },
          el("span", { role: "rowheader", title: `${tokensIn} tokens in, ${tokensOut} out` }, ratio.replaceAll("_", " "), el("small", {}, `${tokensIn}→${tokensOut}`)),
          ...levels.map((_, q) => this.square((c * ratios.length + r) * levels.length + q)),
        ),
      ),
    ]);
    byId("heat").replaceChildren(el("div", { role: "grid", class: "heat", "aria-label": `Verdicts for ${this.slo}` }, head, ...rows));
    byId("heat-key").replaceChildren(
      el("span", { class: "swatch d-local" }, "D-local"),
      el("span", { class: "swatch p-d" }, "P→D"),
      el("span", { class: "swatch guess" }, "not measured: the nearest cell that was decides"),
      el("span", { class: "swatch dot" }, "turns of late"),
    );
    if (focused !== undefined) this.squares()[focused]?.focus();
    this.marks();
    this.pick(this.slot);
  }

  squares() {
    return [...byId("heat").querySelectorAll(".square")];
  }

  square(slot) {
    const [value, source] = this.table.verdicts[this.slo][slot];
    const exact = source === slot;
    const local = value > 0;
    const depth = Math.min(1, Math.abs(value) / FULL);
    const shade = exact ? 0.14 + 0.82 * depth : 0.07 + 0.12 * depth;
    return el(
      "button",
      {
        type: "button",
        role: "gridcell",
        class: `square ${local ? "d-local" : "p-d"}${exact ? "" : " guess"}${shade > 0.82 ? " deep" : shade > 0.55 ? " mid" : ""}`,
        vars: { "--depth": shade.toFixed(3) },
        tabindex: slot === Math.max(0, this.slot) ? 0 : -1,
        "data-slot": slot,
        "aria-label": `${this.name(slot)}: ${local ? "D-local" : "P to D"}, score ${value}${exact ? "" : ", not measured here"}`,
        on: { click: () => this.pick(slot, true) },
      },
      el("span", {}, score(value)),
    );
  }

  name(slot) {
    const { levels, contexts, ratios } = this.table;
    const row = Math.floor(slot / levels.length);
    return `${contexts[Math.floor(row / ratios.length)][0]}/${ratios[row % ratios.length][0]}@${levels[slot % levels.length]}`;
  }

  marks() {
    this.squares().forEach((node, slot) => node.classList.toggle("hit", Boolean(this.late[this.name(slot)])));
  }

  pick(slot, asked = false) {
    this.slot = slot;
    this.squares().forEach((node, i) => {
      node.setAttribute("aria-selected", i === slot);
      node.tabIndex = i === Math.max(0, slot) ? 0 : -1;
    });
    showCell(slot < 0 ? null : { table: this.table, slo: this.slo, slot, name: (each) => this.name(each), late: this.late[this.name(slot)] ?? 0 });
    if (asked && matchMedia("(max-width: 60rem)").matches) byId("cell").closest("section").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  walk(event) {
    const at = Number(event.target.dataset?.slot ?? NaN);
    if (Number.isNaN(at)) return;
    const wide = this.table.levels.length;
    const total = this.table.cells.length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + wide, ArrowUp: at - wide, Home: at - (at % wide), End: at - (at % wide) + wide - 1 }[event.key];
    if (to === undefined || to < 0 || to >= total) return;
    event.preventDefault();
    const nodes = this.squares();
    nodes[at].tabIndex = -1;
    nodes[to].tabIndex = 0;
    nodes[to].focus();
  }
}
