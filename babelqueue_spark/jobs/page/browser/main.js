let state = {};
let token = takeToken(location.hash.slice(1)) || sessionStorage.getItem("token");
let heard = 0;

// The token leaves the address bar, and stays for reloads of this tab.
function takeToken(text) {
  const found = new URLSearchParams(text.slice(text.indexOf("#") + 1)).get("token");
  history.replaceState(null, "", location.pathname);
  if (found) sessionStorage.setItem("token", found);
  return found;
}

function askToken() {
  if (!$("ask").open) $("ask").showModal();
  return new Promise((answer) => $("ask").addEventListener("close", answer, { once: true }));
}

function setToken() {
  const given = $("token").value.trim();
  token = takeToken(given) || given;
  sessionStorage.setItem("token", token);
  $("token").value = "";
}

const headers = () => ({ Authorization: `Bearer ${token}`, "Content-Type": "application/json" });

async function ask(path, what) {
  try {
    const answer = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(what) });
    const found = await answer.json();
    if (answer.ok) return found;
    if (answer.status === 403) await askToken();
    else report(found.error, true);
  } catch {
    report("The job does not answer: is it still running?", true);
  }
  return null;
}

function report(text, is_problem) {
  document.querySelectorAll("dialog[open]").forEach((dialog) => { if (dialog.id !== "ask") dialog.close(); });
  $("done").hidden = false;
  $("done-text").className = is_problem ? "error" : "";
  $("done-text").textContent = text;
}

function confirmed(title, text, yes, is_danger) {
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  $("confirm-yes").className = is_danger ? "primary danger" : "primary";
  $("confirm").returnValue = "";
  $("confirm").showModal();
  return new Promise((answer) => $("confirm").addEventListener("close", () => answer($("confirm").returnValue === "yes"), { once: true }));
}

async function confirmRedrive(names) {
  const queue = opened.queue; // another one may be opened while this asks
  const what = counted(names.length, "dead letter");
  const text = `Each goes back to the queue that it came from, without its block and with no attempts. It leaves ${queue}.`;
  if (!(await confirmed(`Redrive ${what}?`, text, `Redrive ${number(names.length)}`, false))) return;
  const done = await ask("/api/redrive", { queue, chosen: names });
  if (!done) return;
  const lines = [
    ...Object.entries(done.went).map(([target, count]) => `${number(count)} went to ${target}`),
    ...Object.entries(done.stay).map(([why, count]) => `${number(count)} stay: ${why}`),
    ...(done.gone ? [`${number(done.gone)} had gone before`] : []),
  ];
  report(`${lines.join("; ")}.`, false);
  openMessages(queue);
}

async function confirmDrop(names) {
  const queue = opened.queue; // another one may be opened while this asks
  const what = counted(names.length, "dead letter");
  const text = `What is dropped leaves ${queue} for ever. Nothing brings it back.`;
  if (!(await confirmed(`Drop ${what}?`, text, `Drop ${number(names.length)}`, true))) return;
  const done = await ask("/api/drop", { queue, chosen: names });
  if (!done) return;
  report(`${number(done.dropped)} dropped${done.gone ? `; ${number(done.gone)} had gone before` : ""}.`, false);
  openMessages(queue);
}

function show() {
  const { address, broker, reasons } = state;
  showQueries(state);
  if (!broker) return;
  showProblem(broker.error);
  showBroker(address, broker, reasons || {});
}

// Written only when it is new: it is read aloud each time.
function showProblem(error) {
  $("problem").hidden = !error;
  if (error && $("problem").textContent !== error) $("problem").textContent = error;
}

function showLink() {
  const silent = (Date.now() - heard) / 1000;
  const is_live = heard > 0 && silent < 15;
  $("link").className = is_live ? "live" : "away";
  const text = is_live ? "live" : heard ? "no news: is the job still running?" : "connecting";
  if ($("link").textContent !== text) $("link").textContent = text;
}

async function read(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  let is_first = true;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard = Date.now();
    const events = (waiting + value).split("\n\n");
    waiting = events.pop();
    const news = events.filter((event) => event.startsWith("data: ")).map((event) => JSON.parse(event.slice(6)));
    if (news.length) {
      state = Object.assign(is_first ? {} : state, ...news);
      is_first = false;
    }
    show();
    showLink();
  }
}

// EventSource sends no headers, and the token travels in one.
async function listen() {
  for (;;) {
    try {
      const answer = await fetch("/api/state", { headers: headers() });
      if (answer.status === 403) await askToken();
      else await read(answer);
    } catch {
      heard = 0;
    }
    showLink();
    await new Promise((later) => setTimeout(later, 1000));
  }
}

$("ask-form").addEventListener("submit", setToken);
$("ask").addEventListener("cancel", (event) => event.preventDefault());
$("confirm-yes").onclick = () => $("confirm").close("yes");
$("confirm-no").onclick = () => $("confirm").close("no");
$("close-message").onclick = () => $("message").close();
$("read-again").onclick = () => openMessages(opened.queue);
$("close-messages").onclick = () => { $("messages").hidden = true; opened.queue = null; };
$("close-done").onclick = () => { $("done").hidden = true; };
$("choose-all").onchange = (event) => chooseAll(event.target.checked);
$("redrive").onclick = () => confirmRedrive(chosenNames());
$("drop").onclick = () => confirmDrop(chosenNames());
setInterval(showLink, 2000);
listen();
