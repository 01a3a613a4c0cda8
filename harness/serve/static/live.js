// Shows what runs now: one block for each run, renewed by server-sent events, with a timeline that grows.
"use strict";
const state = document.getElementById("state");
const place = document.getElementById("live");
const seen = new Map();

function node(name, text, attributes = {}) {
  const svg = ["svg", "rect", "polyline", "text"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function line(name, value) {
  const row = node("div");
  row.append(node("dt", name), node("dd", value));
  return row;
}

function timeline(looks) {
  const end = Math.max(1, looks.at(-1).t), most = Math.max(1, ...looks.map(each => each.rate));
  const x = t => 1000 * t / end, y = rate => 78 - 70 * rate / most;
  const svg = node("svg", "", { class: "growing", viewBox: "0 0 1000 96", role: "img", "aria-label": "Operations per second since the page was opened; bands are faults" });
  looks.forEach((look, i) => {
    if (look.fault && i) svg.append(node("rect", "", { class: "fault", x: x(looks[i - 1].t), y: 0, width: Math.max(1, x(look.t) - x(looks[i - 1].t)), height: 80 }));
  });
  svg.append(node("polyline", "", { points: looks.map(look => `${x(look.t)},${y(look.rate)}`).join(" ") }));
  svg.append(node("text", "0 s", { x: 0, y: 94 }), node("text", `${end.toFixed(0)} s`, { x: 1000, y: 94, "text-anchor": "end" }));
  return svg;
}

function block(run) {
  const id = `${run.pid} ${run.folder}`;
  const looks = seen.get(id) || [];
  looks.push({ t: run.elapsed_s, rate: run.rate_hz, fault: run.faults.length > 0 });
  seen.set(id, looks);
  const section = node("section");
  const list = node("dl", "", { class: "facts" });
  list.append(
    line("Phase", `${run.phase}, ${run.elapsed_s.toFixed(0)} s since the run began`),
    line("Rate", `${run.rate_hz.toFixed(0)} operations per second`),
    line("Answers", `${run.ok} ok, ${run.fail} fail, ${run.unknown} unknown`),
    line("Faults in force", run.faults.join("; ") || "none"),
    line("Leader", run.leader ? `${run.leader} in epoch ${run.epoch}` : "not known"),
    line("Violations found online", String(run.violations)),
  );
  section.append(node("h2", run.title));
  if (run.first) section.append(node("p", run.first, { class: "violated" }));
  section.append(timeline(looks), list);
  return section;
}

const events = new EventSource("/live/events");
events.onmessage = (event) => {
  const runs = JSON.parse(event.data);
  state.textContent = runs.length ? `${runs.length} going on` : "Nothing runs now.";
  place.replaceChildren(...runs.map(block));
};
events.onerror = () => { state.textContent = "The server does not answer; trying again."; };
