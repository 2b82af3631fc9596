// The table of services: only the visible rows exist as elements, so that 5,000 services scroll like five.

import { age, byId, copy, element, micros, replace } from "./dom.js";
import { line, peak } from "./lines.js";
import { drawTimeline } from "./panels.js";
import { isStale, severity, state, statusOf } from "./state.js";

// On a phone, the address is below the name.
const narrow = matchMedia("(max-width: 600px)");
const rowHeight = () => (narrow.matches ? 44 : 26);
const ERROR = 20;
const ORDER = { critical: 0, warning: 1, ok: 2 };

// The time between two looks at the open service, in milliseconds, and the number of its connections that are shown.
const POLL = 5_000;
const CONNECTIONS = 8;

// What is shown: a text, a severity, and the service that is open, with its history, the newest record first.
export const view = { text: "", severity: "", selected: "", records: null };

let rows = [];
let offsets = [0];
let detail = null;
let detailHeight = 0;
let polled = 0;
// The answer about the connections of the open service, when it arrived, and how long it took.
let connections = { answer: null, at: 0, took: 0 };

const hasError = (row) => severity(row) !== "ok" && row.error;

function matches(row) {
  if (view.severity && severity(row) !== view.severity) return false;
  return !view.text || row.search.includes(view.text);
}

// Names, addresses and backends of a service in lower case, made once for each row that the daemon sends.
function searchable(row) {
  row.search ??= [row.service, ...row.addresses, row.backend_addresses, row.status].join(" ").toLowerCase();
  return row;
}

// Computes which rows are shown and where. Called after each change of the services or of the view.
export function arrange() {
  rows = [...state.services.values()].map(searchable).filter(matches);
  rows.sort((a, b) => ORDER[severity(a)] - ORDER[severity(b)] || (a.service < b.service ? -1 : 1));
  measure();
  draw();
}

function measure() {
  offsets = new Array(rows.length + 1);
  let at = 0;
  rows.forEach((row, index) => {
    offsets[index] = at;
    at += rowHeight() + (hasError(row) ? ERROR : 0) + (row.service === view.selected ? detailHeight : 0);
  });
  offsets[rows.length] = at;
}

// The index of the row at a height, by binary search.
function rowAt(height) {
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= height) low = middle;
    else high = middle - 1;
  }
  return low;
}

export function draw() {
  const viewport = byId("viewport");
  const list = byId("list");
  list.style.height = `${offsets[rows.length]}px`;
  if (rows.length === 0) {
    replace(list, element("p", { class: "item error" }, state.services.size ? "No services match." : "No source describes a service."));
    return;
  }
  const first = Math.max(0, rowAt(viewport.scrollTop) - 4);
  const last = Math.min(rows.length - 1, rowAt(viewport.scrollTop + viewport.clientHeight) + 4);
  const items = [];
  for (let index = first; index <= last; index += 1) items.push(item(rows[index], offsets[index]));
  replace(list, ...items);
}

function item(row, offset) {
  const level = severity(row);
  const is_selected = row.service === view.selected;
  const made = element("div", { class: is_selected ? "item selected" : "item" },
    element("div", { class: "row", onclick: () => { location.hash = is_selected ? "" : `service/${row.service}`; } },
      element("span", {}, element("span", { class: `dot ${level}` })),
      element("span", { title: row.service }, row.service),
      element("span", { class: "mono" }, addresses(row)),
      element("span", { class: "number" }, `${row.selectable}/${row.backends}`),
      element("span", {}, line(row.service, 64, 18)),
      ...rates(row.service),
      element("span", { class: `${level}-text` }, statusOf(row))),
    hasError(row) ? element("div", { class: `error ${level}-text`, title: row.error }, row.error) : null,
    is_selected ? detail : null);
  made.style.transform = `translateY(${offset}px)`;
  return made;
}

function addresses(row) {
  const [first = "none", ...others] = row.addresses;
  return others.length ? `${first} (+${others.length})` : first;
}

// The new connections per second, and the refused ones; empty while they are not known.
function rates(service) {
  const row = state.rates.get(service);
  const outside = row?.outside ? `${rate(row.outside)} of them from clients outside the node` : undefined;
  return [
    element("span", { class: "number", title: outside }, state.counting ? rate(row?.per_second ?? 0) : ""),
    element("span", { class: "number warning-text" }, row?.refused ? rate(row.refused) : ""),
  ];
}

export function rate(value) {
  return value >= 10 || value === 0 ? String(Math.round(value)) : value.toFixed(1);
}

// Opens the details of a service, or closes them if the name is empty.
export async function select(name) {
  view.selected = name;
  view.records = null;
  connections = { answer: null, at: 0, took: 0 };
  detail = name ? element("div", { class: "detail" }, "…") : null;
  detailHeight = 0;
  arrange();
  if (!name) return;
  const index = rows.findIndex((row) => row.service === name);
  if (index >= 0) byId("viewport").scrollTop = Math.max(0, offsets[index] - rowHeight());
  await refreshDetail();
}

// Reads the open service again from time to time: nothing announces checks and connections.
export function pollDetail() {
  if (view.selected && Date.now() - polled >= POLL && !document.hidden && !isStale()) refreshDetail();
}

// Reads its connections, unless that was a moment ago: where there are many, the daemon needs long.
async function refreshConnections(name) {
  const begun = Date.now();
  if (begun - connections.at < Math.max(POLL / 2, 50 * connections.took)) return;
  const answer = await read(`/connections?service=${encodeURIComponent(name)}`);
  if (name === view.selected) connections = { answer, at: Date.now(), took: Date.now() - begun };
}

// Reads the addresses, backends, history and connections of the open service.
export async function refreshDetail() {
  const name = view.selected;
  if (!name) return;
  polled = Date.now();
  const query = `service=${encodeURIComponent(name)}`;
  const routes = ["frontends", "backends", "history"].map((route) => read(`/${route}?${query}`));
  const answers = await Promise.all([...routes, refreshConnections(name)]);
  const [frontends, backends, history] = answers;
  if (name !== view.selected || !detail) return;
  if (history) view.records = history.history.reverse();
  drawTimeline();
  // Without an answer, what was known stays.
  if (frontends?.frontends && backends?.backends) replace(detail, ...content(name, frontends.frontends, backends.backends));
  drawDetailRate();
  if (!detail.isConnected) draw();
  detailHeight = detail.isConnected ? detail.offsetHeight : detailHeight;
  measure();
  draw();
}

export async function read(path) {
  try {
    const response = await fetch(path, { headers: { accept: "application/json" } });
    return await response.json();
  } catch {
    return null;
  }
}

function content(name, frontends, backends) {
  const row = state.services.get(name);
  if (!row) return [element("p", {}, `There is no service ${name} now. `, copy(`nodelb history ${name}`))];
  const some = (key) => backends.some((backend) => backend[key]);
  const columns = [["Backend", "address"], ["State", "state"], ["Choice", "choice"], ["Last check", "check", lastCheck]]
    .concat(some("node") ? [["Node", "node"]] : [], some("zone") ? [["Zone", "zone"]] : [])
    .concat(backends.some((backend) => backend.weight !== 1) ? [["Weight", "weight"]] : [])
    .concat([["Origin", "origin"]], some("reason") ? [["Reason", "reason"]] : []);
  const facts = [`policy ${row.internal_policy} inside, ${row.external_policy} outside`,
    row.affinity_seconds || row.affinity ? `affinity ${row.affinity_seconds ?? row.affinity} s` : "no affinity",
    row.forward && `forward ${row.forward}`, row.origin];
  return [
    table([["Address", "address"], ["Type", "type"], ["Status", "status"], ["Since", "since"], ["Error", "error"]], frontends),
    backends.length ? table(columns, backends, (backend) => drain(name, backend)) : element("p", { class: "critical-text" }, "It has no backends."),
    element("div", { class: "age" }, facts.filter(Boolean).join(" · ")),
    element("div", { class: "rate" }),
    ...connectionsOf(name),
    element("div", { class: "buttons" },
      row.addresses[0] ? element("button", { onclick: () => { location.hash = `trace/${row.addresses[0]}`; } }, "trace") : null,
      copy(`nodelb diagnose ${name}`), copy(`nodelb history ${name}`), copy(`nodelb backends ${name}`)),
  ];
}

// The result of the last health check of a backend, its age, and the time that it took.
const lastCheck = ({ check, checked, latency }) => check && element("span", {},
  element("span", { class: check === "Passed" ? "ok-text" : "critical-text" }, check), " ", age(checked), ` ago, took ${micros(latency)}`);

// The connections per second of the open service.
export function drawDetailRate() {
  const place = detail?.querySelector(".rate");
  if (!place || !state.counting) return;
  const { per_second: total = 0, outside = 0, refused = 0 } = state.rates.get(view.selected) ?? {};
  const parts = [`${rate(total)} connections/s`, outside && `${rate(outside)} of them from clients outside the node`,
    refused && `${rate(refused)} refused/s`, `at most ${rate(peak(view.selected))} in the last ten minutes`];
  replace(place, line(view.selected, 200, 24), element("span", {}, parts.filter(Boolean).join(", ")));
}

function connectionsOf(name) {
  const { connections: rows, listed, error } = connections.answer ?? {};
  if (!rows) return error ? [element("div", { class: "age" }, error)] : [];
  if (!rows.length) return [element("div", { class: "age" }, "No client outside the node is connected.")];
  const number = listed?.complete === false ? `More than ${rows.length}` : rows.length;
  return [
    element("div", { class: "age" }, `${number} connection${rows.length > 1 ? "s" : ""} of clients outside the node${rows.length > CONNECTIONS ? `, such as` : ""}`),
    table([["Client", "client"], ["Address", "frontend"], ["Backend", "backend"], ["State", "state"],
      ["Age", "first_packet"], ["Idle", "last_packet"]], rows.slice(0, CONNECTIONS)),
    element("div", { class: "buttons" }, copy(`nodelb connections ${name}`)),
  ];
}

// The command that drains a backend, or ends its drain.
function drain(name, { address, reason }) {
  const verb = reason?.startsWith("drained by") ? "undrain" : "drain";
  return copy(`nodelb ${verb} ${name} ${address.replace(/\/\w+$/, "")}`, verb);
}

// A table without the columns that are empty in every row. The last column has what `more` makes of a row.
export function table(columns, data, more) {
  const used = columns.filter(([, key]) => data.some((row) => row[key] || row[key] === 0));
  return element("table", {},
    element("tr", {}, ...used.map(([title]) => element("th", {}, title))),
    ...data.map((row) => element("tr", {}, ...used.map(([, key, show]) =>
      element("td", { class: MONO.includes(key) ? `mono ${key}` : key },
        show ? show(row) : AGES.includes(key) ? age(row[key]) : cell(row[key]))), ...(more ? [element("td", {}, more(row))] : []))));
}

const MONO = ["address", "origin", "client", "frontend", "backend"];
const AGES = ["since", "first_packet", "last_packet"];

const cell = (value) => (Array.isArray(value) ? value.join(", ") : value ?? "");
