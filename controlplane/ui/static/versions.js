// The versions of a table: what differs, and going back.

import { change, get } from "./api.js";
import { byId, el, keyed, say } from "./dom.js";
import { ms, nameOf, plural, score, when } from "./format.js";

const SHOWN = 40; // lines of a difference

export class Versions {
  constructor(changed) {
    this.changed = changed;
    this.table = null;
    this.can = false;
    byId("freeze").addEventListener("click", () => this.freeze());
  }

  allow(can) {
    this.can = can;
    const buttons = [byId("freeze"), ...byId("versions").querySelectorAll(".back")];
    for (const button of buttons) {
      button.disabled = !can;
      button.title = can ? "" : "needs an admin key, and this frontend has none";
    }
  }

  clear() {
    this.table = null;
    byId("versions").replaceChildren();
    byId("diff").replaceChildren();
    byId("freeze").hidden = true;
    say(byId("versions-note"), "");
  }

  async show(table) {
    this.table = table;
    const { model, placement } = table;
    const freeze = byId("freeze");
    freeze.hidden = false;
    say(freeze, table.frozen ? "Unfreeze" : "Freeze");
    let history;
    try {
      history = await get("history", { model, placement });
    } catch (error) {
      say(byId("versions-note"), `The planner keeps the versions: ${error.message}.`);
      return;
    }
    say(byId("versions-note"), table.frozen ? "Frozen: the planner learns on but publishes nothing." : "");
    const newest = Math.max(...history.map((each) => each.version));
    keyed(
      byId("versions"),
      history.toReversed(),
      (each) => each.version,
      (each) => this.line(each),
      (node, each) => {
        const current = each.version === newest;
        node.toggleAttribute("data-current", current);
        for (const button of node.querySelectorAll("button")) button.hidden = current;
        node.querySelector(".now").hidden = !current;
      },
    );
    this.allow(this.can);
  }

  line({ version, created_unix_s, source, frozen }) {
    const name = (text) => `${text} version ${version}`;
    return el(
      "li",
      {},
      el("b", {}, `v${version}`),
      el("span", { class: "about" }, el("span", {}, source || "–"), el("span", { class: "note" }, `${when(created_unix_s)}${frozen ? " · frozen" : ""}`)),
      el("span", { class: "now" }, "in use"),
      el("button", { type: "button", "aria-label": name("Compare with"), on: { click: () => this.compare(version) } }, "Compare"),
      el("button", { type: "button", class: "back", "aria-label": name("Roll back to"), on: { click: () => this.rollback(version) } }, "Roll back"),
    );
  }

  which() {
    return { model: this.table.model, placement: this.table.placement };
  }

  async compare(version) {
    const box = byId("diff");
    const now = this.table.version;
    try {
      box.replaceChildren(...differences(await get("diff", { ...this.which(), old: version, new: now }), version, now));
      box.focus();
    } catch (error) {
      say(byId("versions-note"), `They cannot be compared: ${error.message}.`);
    }
  }

  async rollback(version) {
    const yes = await confirmed(
      `Roll back to version ${version}?`,
      `Version ${version} of ${this.table.model} on ${this.table.placement} is published again as a new version, and frozen: the planner learns on, but changes nothing until you unfreeze it.`,
      "Roll back",
    );
    if (yes) await this.order("rollback", { ...this.which(), version });
  }

  async freeze() {
    await this.order(this.table.frozen ? "unfreeze" : "freeze", this.which());
  }

  async order(verb, request) {
    try {
      const { version, source } = await change(verb, request);
      say(byId("versions-note"), `Version ${version} was published: ${source}.`);
      byId("diff").replaceChildren();
      this.changed();
    } catch (error) {
      say(byId("versions-note"), `Nothing was changed: ${error.message}.`);
    }
  }
}

function confirmed(title, text, action) {
  const dialog = byId("confirm");
  say(byId("confirm-title"), title);
  say(byId("confirm-text"), text);
  say(byId("confirm-yes"), action);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

function differences({ verdicts, figures }, old, now) {
  const title = el("h3", {}, `v${old} against v${now}`);
  const summary = el("p", { class: "note" }, `${plural(verdicts.length, "verdict")} and the figures of ${plural(figures.length, "path", "paths")} differ.`);
  const changed = verdicts.slice(0, SHOWN).map((each) =>
    el("li", {}, el("span", { class: "mono" }, each.cell), el("span", { class: "note" }, each.slo_class), el("span", { class: `swatch ${each.from}` }, `${nameOf(each.from)} ${score(each.score_from)}`), "→", el("span", { class: `swatch ${each.to}` }, `${nameOf(each.to)} ${score(each.score_to)}`)),
  );
  const moved = figures.slice(0, SHOWN).map((each) =>
    el("li", {}, el("span", { class: "mono" }, each.cell), el("span", { class: "note" }, nameOf(each.path)), `TTFT ${pair(each.ttft_ms)}, TPOT ${pair(each.tpot_ms)}`),
  );
  const rest = verdicts.length + figures.length - changed.length - moved.length;
  return [
    title,
    summary,
    changed.length ? el("ul", { class: "diff" }, ...changed) : "",
    moved.length ? el("details", {}, el("summary", {}, "Figures"), el("ul", { class: "diff" }, ...moved)) : "",
    rest > 0 ? el("p", { class: "note" }, `${rest} more: ppd table diff ${old} ${now}`) : "",
  ].filter(Boolean);
}

const pair = ([from, to]) => `${ms(from)} → ${ms(to)}`;
