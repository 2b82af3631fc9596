// Helpers to build elements. Text from the daemon becomes text nodes only: nothing here parses markup.

export const byId = (id) => document.getElementById(id);

// element("span", { class: "age", title: "…" }, child, "text", …)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null).map(visible));
  return made;
}

// Control and direction characters in names could hide or reorder the text around them.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;
function visible(child) {
  return child instanceof Node ? child : String(child).replace(HIDDEN, "\ufffd");
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== undefined && child !== null));
}

// A duration as the commands have it: 101s, 4m20s, 3h12m, 5d.
export function duration(seconds) {
  if (!(seconds >= 0)) return "0s";
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  const two = (large, first, small, second) => (small ? `${large}${first}${small}${second}` : `${large}${first}`);
  if (minutes < 2) return `${Math.floor(seconds)}s`;
  if (minutes < 10) return two(minutes, "m", Math.floor(seconds % 60), "s");
  if (hours < 3) return `${minutes}m`;
  if (hours < 8) return two(hours, "h", minutes % 60, "m");
  if (days < 2) return `${hours}h`;
  return days < 8 ? two(days, "d", hours % 24, "h") : `${days}d`;
}

// Seconds as 213 µs or 1.2 ms.
export const micros = (seconds) => (seconds < 0.001 ? `${Math.round(seconds * 1e6)} µs` : `${(seconds * 1000).toFixed(1)} ms`);

// A time of this day as 18:20:41, another one with its date.
export function clock(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toTimeString().slice(0, 8) : date.toISOString().slice(0, 16).replace("T", " ");
}

// A time as its age, kept up to date by refreshAges().
export function age(time) {
  const made = element("span", { class: "age", title: time ?? "" });
  made.dataset.time = time ?? "";
  made.textContent = ageOf(time);
  return made;
}

function ageOf(time) {
  return time ? duration((Date.now() - Date.parse(time)) / 1000) : "";
}

export function refreshAges() {
  for (const made of document.querySelectorAll(".age[data-time]")) {
    const text = ageOf(made.dataset.time);
    if (made.textContent !== text) made.textContent = text;
  }
}

// A button that copies a command, so that the page teaches the command line.
export function copy(command, label = command) {
  return element("button", {
    title: `Copy: ${command}`,
    onclick: async (event) => {
      event.stopPropagation();
      const button = event.currentTarget;
      try {
        await navigator.clipboard.writeText(command);
        button.textContent = "copied";
      } catch {
        button.textContent = command;
      }
      setTimeout(() => { button.textContent = label; }, 1500);
    },
  }, label);
}
