// The page's data. The admin key is kept for this tab only.

const STORE = "ppd-admin-key";
const DEADLINE_MS = 12000;

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let key = sessionStorage.getItem(STORE) ?? "";
export const hasKey = () => key !== "";
export function setKey(value) {
  key = value;
  if (value) sessionStorage.setItem(STORE, value);
  else sessionStorage.removeItem(STORE);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers["x-ppd-admin-key"] = key;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(DEADLINE_MS) });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? "the frontend does not answer" : "the frontend cannot be reached", "away");
  }
  let body = null;
  try {
    body = await answer.json();
  } catch {
    throw new Refused(answer.status, `the frontend answered ${answer.status} without JSON`, "");
  }
  if (!answer.ok && !(path === "/health" && answer.status === 503)) {
    throw new Refused(answer.status, body?.error?.message ?? `the frontend answered ${answer.status}`, body?.error?.code ?? "");
  }
  return body;
}

export const get = (name, query = {}) => ask(`/ui/data/${name}?${new URLSearchParams(query)}`);
export const health = () => ask("/health");
export const change = (verb, query) => ask(`/admin/table/${verb}?${new URLSearchParams(query)}`, { method: "POST" });
