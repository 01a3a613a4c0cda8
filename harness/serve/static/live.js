// Shows what runs now: one block for each run, renewed by server-sent events.
"use strict";
const state = document.getElementById("state");
const place = document.getElementById("live");

function line(name, value) {
  const row = document.createElement("div");
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.textContent = value;
  row.append(term, text);
  return row;
}

function block(run) {
  const section = document.createElement("section");
  const title = document.createElement("h2");
  title.textContent = run.title;
  const list = document.createElement("dl");
  list.append(
    line("Phase", `${run.phase}, ${run.elapsed_s.toFixed(0)} s since the run began`),
    line("Rate", `${run.rate_hz.toFixed(0)} operations per second`),
    line("Answers", `${run.ok} ok, ${run.fail} fail, ${run.unknown} unknown`),
    line("Faults in force", run.faults.join("; ") || "none"),
    line("Leader", run.leader ? `${run.leader} in epoch ${run.epoch}` : "not known"),
    line("Violations found online", String(run.violations)),
  );
  section.append(title, list);
  return section;
}

const events = new EventSource("/live/events");
events.onmessage = (event) => {
  const runs = JSON.parse(event.data);
  state.textContent = runs.length ? `${runs.length} going on` : "Nothing runs now.";
  place.replaceChildren(...runs.map(block));
};
events.onerror = () => { state.textContent = "The server does not answer; trying again."; };
