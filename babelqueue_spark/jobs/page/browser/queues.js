function showBroker(address, broker, reasons) {
  $("broker").textContent = `${broker.broker} at ${address}`;
  keyed($("queues"), broker.queues, (queue) => queue.name, queueCard);
  const letters = broker.dead_letters.map((queue) => ({ ...queue, reasons: reasons[queue.name] ?? null }));
  keyed($("letters"), letters, (queue) => queue.name, lettersCard);
}

const range = (what) => (points) =>
  points.length ? `${what}: ${number(Math.min(...points))} to ${number(Math.max(...points))}, now ${number(points.at(-1))}` : what;

function trend(rate) {
  if (rate === null) return null;
  if (Math.abs(rate) < 0.05) return "steady";
  return rate > 0 ? `▲ ${number(rate)} more a second` : `▼ ${number(-rate)} fewer a second`;
}

function figure(unit) {
  const value = el("span", { className: "number" });
  const line = spark([], range("messages over the last minutes"));
  const made = el("div", { className: "figure" }, el("div", null, value, el("span", { className: "unit", textContent: unit })), line);
  made.show = (queue) => {
    value.textContent = queue.backlog === null ? "–" : number(queue.backlog);
    line.show(queue.points);
  };
  return made;
}

const TAKES = "Browsing claims the messages and releases them.";

function queueCard(first) {
  const browse = el("button", { type: "button", textContent: "Browse", onclick: () => openMessages(first.name) });
  browse.setAttribute("aria-label", `Browse ${first.name}`);
  const size = figure(state.broker.is_log ? "messages kept" : "messages waiting");
  const list = el("dl", { className: "facts" });
  const note = el("p", { className: "note", textContent: state.broker.browse === "intrusive" ? TAKES : "" });
  const error = el("p", { className: "error" });
  const card = el("li", { className: "card" },
    el("div", { className: "top" }, el("h3", { textContent: first.name }), browse), size, list, note, error);
  browse.hidden = state.broker.browse === "none";
  card.show = (queue) => {
    size.show(queue);
    const oldest = queue.oldest === null ? null : lasting(queue.oldest);
    facts(list, [["backlog", trend(queue.rate)], ["oldest", oldest]]);
    error.textContent = queue.error || "";
  };
  return card;
}

function lettersCard(first) {
  const browse = el("button", { type: "button", textContent: "Browse", onclick: () => openMessages(first.name) });
  browse.setAttribute("aria-label", `Browse ${first.name}`);
  const size = figure("dead letters");
  const bars = el("ul", { className: "bars" });
  const note = el("p", { className: "note" });
  const error = el("p", { className: "error" });
  const card = el("li", { className: "card" },
    el("div", { className: "top" }, el("h3", { textContent: first.name }), browse), size, bars, note, error);
  card.show = (queue) => {
    size.show(queue);
    card.classList.toggle("is-alarming", queue.backlog > 0);
    browse.hidden = state.broker.browse === "none" || !queue.backlog;
    showBars(bars, queue.reasons || {});
    note.textContent = noteOf(queue);
    error.textContent = queue.error || "";
    if (opened.queue === queue.name) showCount(queue.backlog);
  };
  return card;
}

function showBars(list, reasons) {
  const most = Math.max(...Object.values(reasons), 1);
  list.replaceChildren(...Object.entries(reasons).map(([reason, count]) => {
    const bar = el("div", { className: "bar" });
    bar.style.width = `${(100 * count) / most}%`;
    return el("li", null, el("span", { textContent: reason }), bar, el("span", { textContent: number(count) }));
  }));
  list.hidden = !list.children.length;
}

function noteOf(queue) {
  if (!queue.backlog) return "None.";
  if (state.broker.browse === "none") return `${state.broker.broker} shows messages only to who takes them: use the job redrive.`;
  if (queue.reasons === null) return `Browse it to read the reasons. ${TAKES}`;
  const known = Object.values(queue.reasons).reduce((sum, count) => sum + count, 0);
  if (known < queue.backlog) return `Reasons of ${number(known)} messages, as they were read last.`;
  return state.broker.browse === "intrusive" ? "Reasons as they were read last." : "";
}
