// Everything around the table of services: header, problems, tiles, timeline, footer.

import { age, byId, clock, copy, duration, element, micros, replace } from "./dom.js";
import { NODE, line, peak } from "./lines.js";
import { isStale, severity, state, verdict } from "./state.js";
import { rate, view } from "./services.js";

const PROBLEMS = 12;
// The maximum number of sources in the footer, and the usage from which a map is there.
const SOURCES = 6;
const USED = 0.5;

// What the daemon reported last is not known to be so while it is silent: all of it is grey then.
export function drawStream() {
  const silent = (Date.now() - state.received) / 1000;
  const stale = isStale();
  const changes = document.body.classList.contains("stale") !== stale;
  document.body.classList.toggle("stale", stale);
  document.querySelector("header").classList.toggle("stale", stale);
  let text = state.received ? `live · updated ${silent.toFixed(1)} s ago` : "connecting …";
  if (stale && state.received) {
    text = `no answer for ${duration(silent)}: as of ${clock(state.received)}; traffic continues with the last known backends`;
  }
  byId("stream").textContent = text;
  drawHeader();
  if (changes) drawStatus();
}

function drawHeader() {
  const badge = byId("ready");
  const { text, level } = verdict();
  badge.textContent = text;
  badge.className = `badge ${level}`;
  if (!state.status) return;
  const { version, time, uptime_seconds: uptime, kernel } = state.status;
  const up = uptime + Math.max(0, Date.now() - Date.parse(time)) / 1000;
  byId("about").textContent = [version, `up ${duration(up)}`, kernel?.release].filter(Boolean).join(" · ");
}

export function drawStatus() {
  const { status } = state;
  if (!status) return;
  byId("node").textContent = status.node ?? "";
  document.title = `${status.problems.length ? `(${status.problems.length}) ` : ""}${status.node ?? ""} nodelb`;
  drawProblems(status.problems);
  drawTiles();
}

function drawProblems(problems) {
  const panel = byId("problems");
  const none = document.body.matches(".stale") ? `No problems were found at ${clock(state.received)}.` : "No problems found.";
  const draw = (number) => {
    const rest = problems.length - number;
    replace(panel,
      element("h2", {}, problems.length ? `${problems.length} problem${problems.length > 1 ? "s" : ""}` : "Problems"),
      ...(problems.length ? problems.slice(0, number).map(problemRow) : [element("div", { class: "ok-text" }, none)]),
      rest > 0 ? element("button", { onclick: () => { location.hash = "problems"; } }, `${rest} more`) : null);
  };
  let number = view.problemsOnly ? problems.length : Math.min(problems.length, PROBLEMS);
  draw(number);
  // A display on a wall cannot be scrolled.
  while (number > 1 && document.body.matches(".kiosk") && panel.scrollHeight > panel.clientHeight) draw(number -= 1);
}

function problemRow(problem) {
  const level = problem.severity.toLowerCase();
  const isService = state.services.has(problem.object);
  return element("div", { class: `problem ${level}` },
    element("span", { class: `${level}-text`, title: problem.severity }, level === "critical" ? "✖" : level === "warning" ? "▲" : "●"),
    age(problem.since),
    element("span", { class: "object", title: problem.services?.join("\n"), onclick: isService ? () => { location.hash = `service/${problem.object}`; } : undefined },
      problem.object),
    element("span", { class: "cause" }, problem.cause),
    problem.command ? copy(problem.command) : element("span"));
}

export function drawTiles() {
  const count = { ok: 0, warning: 0, critical: 0 };
  let selectable = 0;
  let backends = 0;
  for (const row of state.services.values()) {
    count[severity(row)] += 1;
    selectable += row.selectable;
    backends += row.backends;
  }
  const tile = (label, level, number) => element("button", {
    "aria-pressed": String(view.severity === level),
    onclick: () => { location.hash = level && view.severity !== level ? `status/${level}` : ""; },
  }, element("strong", { class: number && level ? `${level}-text` : undefined }, number), ` ${label}`);
  replace(byId("tiles"),
    tile(state.services.size === 1 ? "service" : "services", "", state.services.size), tile("OK", "ok", count.ok),
    tile("warning", "warning", count.warning), tile("critical", "critical", count.critical),
    element("span", { class: "note" }, `${selectable} of ${backends} backends usable`));
}

// The connections per second of the node.
export function drawRate() {
  replace(byId("rate"), ...(state.counting ? [element("strong", {}, rate(state.total)), "connections/s"] : []),
    state.refused ? element("span", { class: "warning-text" }, `${rate(state.refused)} refused/s`) : null, line(NODE, 120, 24));
  byId("rate").title = `At most ${rate(peak(NODE))} per second in the last ten minutes`;
}

export function drawTimeline() {
  byId("timeline").querySelector("h2").textContent = view.selected ? `Timeline of ${view.selected}` : "Timeline";
  // Of one service, the records that the daemon has, which may be older than the latest of all.
  const shown = (view.selected ? view.records ?? [] : joined(state.history.slice(0, 200))).map(record);
  const none = view.selected && !view.records ? "…" : "No changes are recorded.";
  replace(byId("records"), ...(shown.length ? shown : [element("li", {}, none)]));
}

// What happens to several services at the same time, for the same cause, is one record.
function joined(entries) {
  const about = (it) => JSON.stringify([it.what, it.added, it.removed, it.held, it.object, it.writer, it.resource_version, it.detail]);
  const records = [];
  for (const entry of entries) {
    const own = about(entry);
    const same = entry.service && records.findLast((it) => it.service && it.about === own && Date.parse(it.time) - Date.parse(entry.time) <= 1000);
    if (same) same.services.add(entry.service);
    else records.push({ ...entry, about: own, services: new Set(entry.service ? [entry.service] : []) });
  }
  return records;
}

const LEVEL = { Unanswered: "critical", Held: "warning", LastResort: "critical", Emptied: "critical", Refused: "critical", Lost: "critical", Failed: "critical" };

function record(entry) {
  const backends = [...(entry.added ?? []).map((name) => `+${name}`), ...(entry.removed ?? []).map((name) => `−${name}`),
    ...(entry.held ?? []).map((name) => `=${name}`)];
  const cause = [entry.object, entry.writer, entry.resource_version && `rv ${entry.resource_version}`].filter(Boolean);
  const applied = typeof entry.to_kernel === "number" ? `${entry.time}, in the kernel after ${micros(entry.to_kernel)}` : entry.time;
  const several = entry.services?.size > 1;
  return element("li", { onclick: entry.service && !several ? () => { location.hash = `service/${entry.service}`; } : undefined },
    element("span", { class: `what ${LEVEL[entry.what] ?? "dim"}-text` }, entry.what),
    element("span", { class: "age", title: applied }, clock(entry.time)), " ",
    element("span", several ? { title: [...entry.services].join("\n") } : {}, several ? `${entry.services.size} services` : entry.service ?? "daemon"), " ",
    element("span", { class: "age" }, several ? "" : entry.port ?? ""),
    backends.length ? element("div", { class: "more" }, short(backends)) : null,
    cause.length ? element("div", { class: "more" }, cause.join(" · ")) : null,
    (!entry.service || ["Unanswered", "Answered"].includes(entry.what)) && entry.detail ? element("div", { class: "more" }, entry.detail) : null);
}

const short = (list) => (list.length > 6 ? `${list.slice(0, 6).join(" ")} and ${list.length - 6} more` : list.join(" "));

export function drawFooter() {
  const apiservers = state.apiservers.map((row) => element("div", {},
    element("span", { class: row.state === "Failed" ? "critical-text" : "ok-text" }, row.state === "Failed" ? "✖ " : "✓ "),
    `${row.address} ${row.in_use ? "in use, " : ""}${row.from ?? ""} `, row.error ? element("span", { class: "critical-text" }, row.error) : null));
  const isBad = (row) => (row.problems ?? []).length > 0 || row.state !== "Ok";
  const all = [...state.sources].sort((a, b) => isBad(b) - isBad(a));
  const rest = all.slice(SOURCES).filter(isBad).length;
  const sources = all.slice(0, SOURCES).map((row) => {
    const problems = row.problems ?? [];
    const bad = isBad(row);
    return element("div", {}, element("span", { class: bad ? "critical-text" : "ok-text" }, bad ? "✖ " : "✓ "),
      `${row.path || row.source}: ${row.services} ${row.services === 1 ? "service" : "services"}`, problems.length ? element("div", { class: "critical-text" }, problems[0]) : null);
  });
  if (all.length > SOURCES) sources.push(more("sources", `${all.length - SOURCES} more, ${rest || "none"} with problems`));
  const limits = state.limits.filter((row) => row.used > row.limit * USED).map((row) => element("div", {},
    element("meter", { min: 0, max: row.limit, high: row.limit * 0.8, value: row.used }), ` ${row.map} `,
    element("span", { class: "age" }, `${percent(row.used / row.limit)} of ${row.limit}`)));
  replace(byId("footer"),
    panel("API servers", apiservers, "Kubernetes is not configured."), panel("Sources", sources, "none"),
    panel("Maps", [...limits, more("maps", limits.length ? "all maps" : "No map is more than half full.")], ""));
}

const more = (route, text) => element("div", {}, element("a", { href: `/${route}` }, text));

const percent = (part) => (part > 0 && part < 0.001 ? "< 0.1 %" : `${(part * 100).toFixed(1)} %`);
const panel = (title, rows, none) =>
  element("div", {}, element("h2", {}, title), ...(rows.length ? rows : [element("span", { class: "age" }, none)]));

const RAW = ["status", "services", "frontends", "backends", "history", "diff", "maps", "sources", "apiservers", "devices",
  "connections", "counters", "config", "readyz", "healthz", "metrics", "openapi.json"];

export function drawRaw() {
  replace(byId("raw"), "raw: ", ...RAW.map((name) => element("a", { href: `/${name}` }, `/${name}`)));
}
