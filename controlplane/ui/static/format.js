// Numbers as people read them.

const round = (value, digits) => Number(value.toPrecision(digits)).toLocaleString("en");

export const PATHS = ["p-d", "d-local", "p-d-pullback", "replica"];
export const NAMES = { "p-d": "P→D", "d-local": "D-local", "p-d-pullback": "P→D, pulled back", replica: "replica" };
export const nameOf = (path) => NAMES[path] ?? path;

export function ms(value) {
  if (!value) return "–";
  return value >= 1e4 ? `${round(value / 1e3, 3)} s` : `${round(value, value >= 100 ? 3 : 2)} ms`;
}
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${round(value, 3)} ${units[at]}`;
}
export const count = (value) => (value >= 1e4 ? `${round(value / 1e3, 3)}k` : round(value, 4));
export const percent = (share) => `${Math.round(share * 100)} %`;
export const signed = (value, digits = 2) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(digits)}`;
export const score = (value) => signed(value, Math.abs(value) >= 9.95 ? 0 : Math.abs(value) >= 0.995 ? 1 : 2).replace("0.", ".");
export const clock = (unix) => new Date(unix * 1e3).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export const when = (unix) => new Date(unix * 1e3).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
