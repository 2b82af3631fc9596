// The state that the daemon reported, and the stream of events that keeps it up to date.

export const state = {
  status: null,
  // The severity of the worst problem of each object that has one, as `nodelb status` has it.
  severities: new Map(),
  services: new Map(),
  // The rows of `nodelb top` by service, and whether connections are counted; before the second count, that is not known.
  rates: new Map(),
  counting: undefined,
  // The sums of all services.
  total: 0,
  refused: 0,
  history: [],
  apiservers: [],
  sources: [],
  limits: [],
  // The time of the last message, in milliseconds, and whether the stream is open.
  received: 0,
  open: false,
};

const RECORDS = 500;
// Seconds without a message after which what is known is stale. The daemon sends one every two seconds.
const STALE = 5;

export const isStale = () => !state.open || Date.now() - state.received > STALE * 1000;

// The node in one word, and its level: ok, warning, critical or unknown.
export function verdict() {
  if (isStale()) return { text: state.received ? "NO ANSWER" : "…", level: "unknown" };
  if (!state.status) return { text: "…", level: "unknown" };
  const { ready, problems } = state.status;
  const [critical, warnings] = ["critical", "warning"].map((of) => problems.filter((it) => it.severity === of).length);
  const parts = [!ready && "NOT READY", critical && `${critical} critical`, warnings && `${warnings} warning${warnings > 1 ? "s" : ""}`];
  const level = !ready || critical ? "critical" : warnings ? "warning" : "ok";
  return { text: parts.filter(Boolean).join(" · ") || "OK", level };
}

// The status of a service; its addresses may be OK while backends are not.
export const statusOf = (row) => (row.status === "OK" && severity(row) !== "ok" ? "Degraded" : row.status);

// The severity of a service: what colour it has, and how it is sorted and counted.
export const severity = (row) => state.severities.get(row.service) ?? (row.status === "OK" ? "ok" : "warning");

function severities(problems) {
  // The worst problem comes first, and the last entry of a key counts. Several services may share a problem.
  const known = [...problems].reverse().filter((it) => it.severity !== "notice");
  return new Map(known.flatMap((it) => [it.object, ...(it.services ?? [])].map((object) => [object, it.severity])));
}

const HANDLERS = {
  status: (data) => {
    state.status = data;
    const now = severities(data.problems);
    // The table is arranged again only if the map is another one.
    if (JSON.stringify([...now]) !== JSON.stringify([...state.severities])) state.severities = now;
  },
  services: (data) => {
    if (data.all) state.services.clear();
    for (const name of data.changed) forget(name);
    for (const row of data.rows) state.services.set(state.services.has(row.service) ? `${row.service} (${row.source})` : row.service, row);
  },
  rates: (data) => {
    state.counting = data.is_counting;
    state.total = data.rates.reduce((sum, row) => sum + row.per_second, 0);
    state.refused = data.rates.reduce((sum, row) => sum + row.refused, 0);
    state.rates = new Map(data.rates.map((row) => [row.service, row]));
  },
  history: (data) => {
    if (data.all) state.history = [];
    state.history.unshift(...data.rows.reverse());
    state.history.length = Math.min(state.history.length, RECORDS);
  },
  apiservers: (data) => { state.apiservers = data; },
  sources: (data) => { state.sources = data; },
  limits: (data) => { state.limits = data; },
  beat: () => {},
};

// Removes a service in each of its descriptions: it may be described by a file and by Kubernetes.
function forget(name) {
  for (const key of [name, `${name} (files)`, `${name} (kubernetes)`]) state.services.delete(key);
}

// Follows the daemon, and calls changed(NAME) after each event. The browser reconnects by itself; the daemon then
// sends everything again.
export function follow(changed) {
  const source = new EventSource("/events");
  for (const [name, handle] of Object.entries(HANDLERS)) {
    source.addEventListener(name, (event) => {
      handle(event.data ? JSON.parse(event.data) : null);
      state.received = Date.now();
      changed(name);
    });
  }
  source.addEventListener("open", () => {
    state.open = true;
    changed("stream");
  });
  source.addEventListener("error", () => {
    state.open = false;
    changed("stream");
    // After an HTTP error, such as 503, the browser does not reconnect.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(changed), 2000);
  });
}
