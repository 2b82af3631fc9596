// The answer to "where does a connection to this address go?".

import { byId, copy, element, replace } from "./dom.js";
import { read, table } from "./services.js";

const CLIENTS = [["host", "this host"], ["pod", "a pod"], ["outside", "outside the node"]];

// Whether a text can be traced: an address, with or without a port.
export const isAddress = (text) => /^(\d+\.){3}\d+(:\d+)?(\/\w+)?$/.test(text) || /^\[?[0-9a-f:]+:[0-9a-f:.]*\]?(:\d+)?(\/\w+)?$/i.test(text);

// Shows the trace of `#trace/ADDRESS?from=CLIENT`, or hides it without an address.
export async function showTrace(address, from = "host") {
  const panel = byId("trace");
  panel.hidden = !address;
  if (!address) return;
  const answer = await read(`/trace?to=${encodeURIComponent(address)}&from=${encodeURIComponent(from)}`);
  const verdict = answer?.verdict?.[0] ?? answer?.verdict;
  const command = `nodelb trace ${address}${from === "host" ? "" : ` --from ${from}`}`;
  replace(panel,
    element("div", { class: "buttons" },
      element("strong", {}, address), " from ",
      ...CLIENTS.map(([value, label]) => element("button", {
        "aria-pressed": String(value === from),
        onclick: () => { location.hash = `trace/${address}?from=${value}`; },
      }, (value === from ? "● " : "○ ") + label)),
      copy(command), copy(location.href, "copy link"),
      element("button", { onclick: () => { location.hash = ""; } }, "close")),
    ...(verdict ? explain(answer, verdict) : [element("p", { class: "critical-text" }, answer?.error ?? "The daemon does not respond.")]));
}

function explain(answer, verdict) {
  const good = verdict.verdict === "Forwarded";
  const steps = (answer.trace ?? answer.steps ?? []).map((step) => ({ step: step.step, finding: step.finding }));
  return [
    element("p", { class: `verdict ${good ? "ok-text" : "warning-text"}` }, `● ${verdict.verdict}`,
      verdict.errno ? ` ${verdict.errno}` : "", verdict.service ? ` · ${verdict.service}` : ""),
    table([["Step", "step"], ["Finding", "finding"]], steps),
    answer.backends?.length
      ? table([["Backend", "address"], ["Share", "share"], ["State", "state"], ["Choice", "choice"], ["Node", "node"], ["Reason", "reason"]], answer.backends)
      : null,
  ];
}
