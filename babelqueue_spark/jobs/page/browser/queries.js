function showQueries(parts) {
  const sources = Object.keys(parts).filter((name) => name.startsWith("query ")).sort();
  const cards = sources.flatMap((name) => (parts[name].source ? ofMetrics(parts[name]) : [ofJournal(parts[name])]));
  $("queries-section").hidden = !cards.length;
  keyed($("queries"), cards, (card) => card.key, queryCard);
}

const ago = (since) => (since ? `${lasting(Math.max(0, Date.now() / 1000 - since))} ago` : null);

function ofMetrics(part) {
  const cards = part.queries.map((query) => ({
    key: `${part.source} ${query.name}`,
    name: query.name || "query",
    from: part.source,
    error: part.error,
    seconds: query.seconds,
    points: query.points,
    facts: [
      ["batches", number(query.batches)],
      ["messages", query.rate === null ? null : `${number(query.rate)} a second`],
      ["last batch", ago(query.last_batch)],
      ["state", query.has_ended ? "ended" : null],
      ...Object.entries(query.phases).map(([phase, seconds]) => [phase, lasting(seconds)]),
    ],
  }));
  if (cards.length) return cards;
  const facts = part.error ? [] : [["metrics", "none of a query yet"]];
  return [{ key: part.source, name: "query", from: part.source, error: part.error, seconds: null, points: null, facts }];
}

function ofJournal(part) {
  return {
    key: `journal ${part.location}`,
    name: "journal",
    from: part.location,
    error: part.error,
    seconds: null,
    points: null,
    facts: part.error ? [] : [
      ["batch", number(part.batch)],
      ["planned", ago(part.planned_at)],
      ["committed up to", number(part.committed)],
      ["owner", part.host && `${part.host}, process ${part.process}`],
      ["kept", `${counted(part.segments, "segment")}, ${bytes(part.bytes)}`],
    ],
  };
}

function queryCard(first) {
  const value = el("span", { className: "number" });
  const line = spark([], range("seconds of the last batches"));
  const size = el("div", { className: "figure" },
    el("div", null, value, el("span", { className: "unit", textContent: "a batch" })), line);
  const list = el("dl", { className: "facts" });
  const error = el("p", { className: "error" });
  const card = el("li", { className: "card" },
    el("div", null, el("h3", { textContent: first.name }), el("p", { className: "note", textContent: first.from })),
    size, list, error);
  card.show = (query) => {
    size.hidden = query.seconds === null;
    if (query.seconds !== null) {
      value.textContent = lasting(query.seconds);
      line.show(query.points);
    }
    facts(list, query.facts);
    error.textContent = query.error || "";
  };
  return card;
}
