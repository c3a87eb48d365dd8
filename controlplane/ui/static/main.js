// Asks for what moves, and hands it to the panels.

import { Refused, get, hasKey, health, setKey } from "./api.js";
import { showDecisions } from "./decisions.js";
import { byId, el, say } from "./dom.js";
import { showFigures } from "./figures.js";
import { Heat } from "./heat.js";
import { Poll } from "./poll.js";
import { showRoutes } from "./routes.js";
import { showTopology } from "./topology.js";
import { Versions } from "./versions.js";

let model = "";
let wantedKey = "";
const versions = new Versions(() => poll.now());
const heat = new Heat(versions);

function locked(error) {
  byId("board").hidden = byId("health").hidden = byId("model-pick").hidden = byId("forget").hidden = true;
  byId("lock").hidden = false;
  byId("lock-entry").hidden = error.code === "local_only";
  say(byId("lock-why"), hasKey() ? "That is not this frontend's admin key." : sentence(error.message));
  say(byId("live"), "locked");
  byId("live").dataset.state = "off";
  setKey("");
  if (error.code !== "local_only") byId("key").focus();
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

function failed(error, wait) {
  if (error instanceof Refused && error.status === 403) {
    locked(error);
    return false;
  }
  if (!(error instanceof Refused)) console.error(error);
  say(byId("live"), `${error.message}; again in ${Math.max(1, Math.round(wait / 1000))} s`);
  byId("live").dataset.state = "off";
  return true;
}

async function step() {
  const [overview, state] = await Promise.all([get("overview", model ? { model } : {}), health()]);
  if (!byId("lock").hidden) byId("main").focus();
  byId("lock").hidden = true;
  byId("board").hidden = false;
  byId("forget").hidden = !hasKey();
  model = overview.model;
  showModels(overview);
  showHealth(state);
  showFigures(overview);
  showTopology(overview);
  showRoutes(overview);
  showDecisions(overview);
  await heat.show(overview);
  say(byId("live"), "live");
  byId("live").dataset.state = "on";
}

function showModels(overview) {
  const names = overview.models.map((each) => each.name);
  const select = byId("model");
  if (JSON.stringify(names) !== wantedKey) {
    wantedKey = JSON.stringify(names);
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }
  select.value = overview.model;
  byId("model-pick").hidden = names.length === 0;
}

function showHealth(state) {
  const pill = byId("health");
  pill.hidden = false;
  pill.dataset.state = state.status;
  say(pill, { ok: "healthy", degraded: "degraded", unavailable: "cannot serve" }[state.status] ?? state.status);
  const alert = byId("alert");
  alert.hidden = state.why.length === 0;
  say(alert, state.why.join(" · "));
}

byId("lock").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value.trim());
  byId("key").value = "";
  poll.now();
});
byId("forget").addEventListener("click", () => {
  setKey("");
  location.reload();
});
byId("model").addEventListener("change", (event) => {
  model = event.target.value;
  poll.now();
});

const poll = new Poll(step, failed);
poll.now();
