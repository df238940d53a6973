// What is open: a queue, its messages as they were read, which of them are chosen, by their place, and whether
// an answer is awaited, or was an error: then nothing is read until somebody asks for it.
const opened = { queue: null, messages: [], most: 0, reason: null, chosen: new Set(), is_waiting: false };

const mayMove = () => !state.broker.is_log && state.broker.dead_letters.some((queue) => queue.name === opened.queue);

async function openMessages(queue) {
  const is_new = opened.queue !== queue;
  opened.is_waiting = true;
  const found = await ask("/api/messages", { queue });
  opened.is_waiting = !found;
  if (!found || (!is_new && opened.queue !== queue)) return;
  Object.assign(opened, { queue, messages: found.messages, most: found.most, chosen: new Set() });
  if (is_new || !(opened.reason in found.reasons)) opened.reason = null;
  $("messages").hidden = false;
  $("messages-title").textContent = `Messages of ${queue}`;
  $("messages-note").textContent = firstOf();
  showReasons(found.reasons);
  showRows();
  if (is_new) {
    $("messages-title").focus();
    $("messages").scrollIntoView();
  }
}

const firstOf = () => (opened.messages.length < opened.most ? "" : `The first ${number(opened.most)} of the queue.`);

// Read a queue again that others fill or empty, where that costs nothing and nobody is at work on it.
function showCount(backlog) {
  const is_same = backlog === opened.messages.length || firstOf();
  if (is_same) $("messages-note").textContent = firstOf();
  else if (state.broker.browse !== "exact" || opened.chosen.size || document.querySelector("dialog[open]")) {
    $("messages-note").textContent = `The queue has ${counted(backlog, "message")} now: read it again.`;
  } else if (!opened.is_waiting) openMessages(opened.queue);
}

function showReasons(reasons) {
  const chip = (reason, text) => {
    const made = el("button", { type: "button", textContent: text });
    made.setAttribute("aria-pressed", opened.reason === reason);
    made.onclick = () => {
      opened.reason = reason;
      opened.chosen.clear();
      [...$("reasons").children].forEach((each) => each.setAttribute("aria-pressed", each === made));
      showRows();
    };
    return made;
  };
  const all = chip(null, `all ${number(opened.messages.length)}`);
  $("reasons").replaceChildren(all, ...Object.entries(reasons).map(([reason, count]) => chip(reason, `${reason} ${number(count)}`)));
}

const shown = () => opened.messages.map((message, place) => ({ ...message, place }))
  .filter((message) => opened.reason === null || (message.reason || "(none)") === opened.reason);

function showRows() {
  $("rows").replaceChildren(...shown().map(messageRow));
  $("rows").hidden = !$("rows").children.length;
  $("tools").hidden = !mayMove() || !opened.messages.length;
  showChosen();
}

function messageRow(message) {
  const title = message.job || "(no URN)";
  const when = message.failed_at || message.created_at;
  const rest = [message.id, counted(message.attempts || 0, "attempt"), message.original_queue && `from ${message.original_queue}`];
  const open = el("button", { type: "button", className: "open", onclick: () => openMessage(message) },
    el("span", { className: "reason", textContent: message.reason || "" }),
    el("span", { className: "job", textContent: title }),
    el("span", { className: "when", textContent: when ? moment(when) : "" }),
    el("span", { className: "rest", textContent: rest.filter(Boolean).join(" · ") }));
  if (!mayMove()) return el("li", { className: "bare" }, open);
  const box = el("input", { type: "checkbox", onchange: () => {
    if (box.checked) opened.chosen.add(message.place);
    else opened.chosen.delete(message.place);
    showChosen();
  } });
  box.setAttribute("aria-label", `Choose ${message.id || title}`);
  return el("li", null, box, open);
}

function showChosen() {
  const all = shown();
  const count = opened.chosen.size;
  $("chosen").textContent = count ? `${number(count)} chosen` : "";
  $("choose-all").checked = count > 0 && count === all.length;
  $("choose-all").indeterminate = count > 0 && count < all.length;
  $("redrive").disabled = $("drop").disabled = !count;
}

function chooseAll(is_checked) {
  opened.chosen = new Set(is_checked ? shown().map((message) => message.place) : []);
  $("rows").querySelectorAll("input").forEach((box) => { box.checked = is_checked; });
  showChosen();
}

const chosenNames = () => [...opened.chosen].map((place) => opened.messages[place].name);

function openMessage(message) {
  const queue = opened.queue;
  const hidden = `Hidden (${bytes(message.bytes)}). With the option catalog, all but sensitive fields is shown here.`;
  $("message-title").textContent = message.job || "(no URN)";
  showFields([
    ["reason", message.reason], ["exception", message.exception], ["id", message.id], ["trace", message.trace_id],
    ["attempts", message.attempts], ["from", message.original_queue],
    ["made", message.created_at && moment(message.created_at)], ["failed", message.failed_at && moment(message.failed_at)],
    ["size", bytes(message.bytes)],
  ]);
  $("message-data-title").textContent = "Data";
  $("message-data").textContent = message.data === null ? hidden : message.data;
  $("show-body").hidden = false;
  $("show-body").onclick = () => showBody(queue, message.name);
  $("redrive-one").hidden = $("drop-one").hidden = !mayMove();
  $("redrive-one").onclick = () => confirmRedrive([message.name]);
  $("drop-one").onclick = () => confirmDrop([message.name]);
  $("message").showModal();
  $("message-title").focus();
}

function showFields(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  $("message-fields").replaceChildren(...known.flatMap(([name, value]) => [el("dt", { textContent: name }), el("dd", { textContent: value })]));
}

async function showBody(queue, name) {
  const found = await ask("/api/body", { queue, name });
  if (!found) return;
  const more = [["error", found.error], ...Object.entries(found.headers).map(([key, value]) => [`header ${key}`, value])];
  $("message-fields").append(...more.filter(([, value]) => value !== null).flatMap(
    ([key, value]) => [el("dt", { textContent: key }), el("dd", { textContent: value })]));
  $("message-data-title").textContent = found.is_cut ? "Body, its beginning" : "Body";
  $("message-data").textContent = found.body;
  $("show-body").hidden = true;
  $("message-data").focus();
}
