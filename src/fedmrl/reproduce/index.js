// The page of a reproduction: fills its sections from the data embedded in it.
const data = JSON.parse(byId("data").textContent);
const looks = new Map(data.methods.map(({ title, look }) => [title, look]));
const FEDMRL = looks.get("FedMRL");
const FEDPROTO = looks.get("FedProto");
// A verdict that may yet turn ("so far: …") has no sign and no colour.
const SIGNS = { holds: "✓", "holds in part": "≈", "does not hold": "✕" };
const state = { protocol: "fair", kind: Object.keys(data.tables)[0], hidden: new Set() };
const HINT = "Point at a chart, or focus it and use the arrow keys.";

const card = ({ claim, verdict, values, note }) =>
  el(
    "article",
    { class: "card", "data-verdict": verdict },
    el("h3", {}, claim, el("span", { class: "verdict" }, SIGNS[verdict] ? el("span", { "aria-hidden": "true" }, `${SIGNS[verdict]} `) : null, verdict)),
    el("div", { class: "figures" }, values.map(([value, caption]) => el("p", {}, el("b", { class: "value" }, value), el("span", { class: "aside" }, caption)))),
    el("p", { class: "aside" }, note),
  );

// What stands in a place of a table. A dash is a method that failed to converge, a point one that was not measured.
function entryCell({ text, mark, aside, difference, seeds }, isMethod, edge) {
  const absent = { "–": isMethod ? "failed" : "–", "·": "·", "not reached": "not reached" }[text];
  const [mean, spread] = text.split(" ± ");
  const shown = absent
    ? el("span", { class: "none", title: text === "·" ? "not measured" : null }, absent, text === "·" ? el("span", { class: "unseen" }, "not measured") : null)
    : el("span", { class: mark ? `mark ${mark}` : null }, mean, spread ? el("small", {}, ` ± ${spread}`) : null);
  const beside = aside ? el("small", { class: "beside" }, `(${aside})`, difference ? ` ${difference}` : "") : null;
  return el("td", { class: edge ? "number edge" : "number" }, shown, seeds ? el("small", { class: "beside" }, `[${seeds}]`) : null, beside);
}

// A grid of the paper's kind: grouped columns, groups of rows.
function gridTable({ corner, header, groups, notes, caption }) {
  const last = header.at(-1);
  const edges = new Set();
  header[0].reduce((place, [, span]) => (edges.add(place), place + span), 0);
  const headRow = (row, number) => {
    let place = 0;
    const cells = row.map(([title, span]) => {
      const edge = edges.has(place);
      place += span;
      return el("th", { scope: span > 1 ? "colgroup" : "col", colspan: span > 1 ? span : null, class: (number === header.length - 1 ? "number" : "over") + (edge ? " edge" : "") }, title);
    });
    return el("tr", {}, number ? null : el("th", { scope: "col", rowspan: header.length }, corner), cells);
  };
  const bodyRow = ({ name, entries }) =>
    el(
      "tr",
      { class: name === "FedMRL" ? "ours" : null },
      el("th", { scope: "row" }, looks.has(name) ? named(looks.get(name), name) : name),
      entries.map((entry, i) => entryCell(entry, looks.has(name), edges.has(i))),
    );
  const table = el("table", { class: "results", style: `--columns: ${last.length}` }, el("thead", {}, header.map(headRow)), groups.map((rows) => el("tbody", {}, rows.map(bodyRow))));
  return [scrolling(caption, table), el("ul", { class: "hint notes" }, notes.map((note) => el("li", {}, note)))];
}

function showTable() {
  byId("table").replaceChildren(...gridTable(data.tables[state.kind][state.protocol]));
}

// Curves: all panels follow one legend, and those of a dataset share their y axis.
const panels = [];

function showCurves() {
  const shown = data.curves.map(({ dataset, series }) => ({
    dataset,
    series: series
      .filter((one) => !state.hidden.has(one.method))
      .map((one) => ({ name: data.methods[one.method].title, look: data.methods[one.method].look, strong: data.methods[one.method].title === "FedMRL", ...one[state.protocol] }))
      .reverse(),
  }));
  const limits = (dataset) => {
    const values = shown.filter((panel) => panel.dataset === dataset && panel.series.length).map(({ series }) => extent(series));
    return values.length ? [Math.min(...values.map(([low]) => low)), Math.max(...values.map(([, high]) => high))] : null;
  };
  panels.forEach((panel, i) => panel?.show(shown[i].series, limits(shown[i].dataset)));
  const steps = data.curves.flatMap(({ series }) => series.map((one) => one.paper.rounds[1] - one.paper.rounds[0]));
  const step = Math.max(1, ...steps.filter(Number.isFinite));
  byId("curves-says").textContent = [
    data.protocols[state.protocol].says.split(";")[0].replace(/\.?$/, "."),
    state.protocol === "paper" && step > 1 ? `A point is the mean of the ${step} rounds up to it; the best single round, which counts in the table, is higher.` : "",
    data.curves.some(({ series }) => series.some((one) => one.fair.low)) ? "Line: mean over seeds; band: their range." : "",
  ].join(" ");
}

function makeCurves() {
  const present = [...new Set(data.curves.flatMap(({ series }) => series.map((one) => one.method)))].sort((a, b) => b - a);
  const entries = present.map((method) => {
    const flip = () => {
      state.hidden.has(method) ? state.hidden.delete(method) : state.hidden.add(method);
      button.setAttribute("aria-pressed", String(!state.hidden.has(method)));
      showCurves();
    };
    const button = el("button", { type: "button", "aria-pressed": "true", onclick: flip }, named(data.methods[method].look, data.methods[method].title));
    return el("li", {}, button);
  });
  const boxes = el("div", { class: "multiples" });
  for (const { title, series, absent } of data.curves) {
    const box = el("div", {}, el("h3", {}, title));
    boxes.append(box);
    if (series.length) panels.push(lineChart(box, { label: `${title}: accuracy by round. Use the left and right arrow keys to read each round.`, xLabel: "communication round", height: 250, legend: false }));
    else panels.push(null), box.append(el("p", { class: "empty none" }, "not measured"));
    if (absent) box.append(el("p", { class: "hint" }, absent));
  }
  byId("curves").append(el("ul", { class: "legend", "aria-label": "Methods; press to hide or show in all panels" }, entries), boxes, el("p", { class: "hint" }, HINT));
}

function showClients() {
  byId("clients-says").textContent = `FedMRL minus FedProto for each client, on its own test samples after the last round, ${WITH[ofAll()]}.`;
  byId("clients").replaceChildren();
  for (const { title, share, paper, said, gains } of data.clients[ofAll()]) {
    const rows = gains.map((difference, client) => ({ client, difference, words: [] })).sort((a, b) => b.difference - a.difference);
    const box = el("div", { class: "panel" }, el("h3", {}, title), el("p", { class: "gain" }, el("b", {}, share), paper ? ` ${paper}` : ""));
    byId("clients").append(box);
    differenceChart(box, { label: `${title}: accuracy of FedMRL minus that of FedProto, client by client. Use the left and right arrow keys.`, yLabel: "FedMRL − FedProto, points", gain: FEDMRL, loss: FEDPROTO, rows, hint: said });
  }
}

function showCosts() {
  byId("costs-says").textContent =
    state.protocol !== "paper"
      ? `Up to the round in which the mean over all clients, each ${WITH[state.protocol]}, first reaches the target: what a client really spent, on average.`
      : "Up to the round in which the mean over its participants first reaches the target, counted as the paper does: a participant’s cost of a round × rounds.";
  byId("costs").replaceChildren(...data.costs[state.protocol].flatMap(gridTable));
}

function showInference() {
  byId("inference-says").textContent = `The four models that a client can serve after training with FedMRL, each client ${WITH[ofAll()]}: mean over all clients, after the last round.`;
  byId("inference").replaceChildren(
    ...data.inference[ofAll()].map(({ title, modes }) =>
      el(
        "div",
        {},
        el("h3", {}, title),
        modes.map(([mode, value]) => el("div", { class: "mode" }, el("span", {}, mode), el("div", { class: "bars", ...(mode.startsWith("mix") ? { look: FEDMRL } : { style: "--colour: var(--muted)" }) }, el("i", { style: `width: ${100 * value}%` })), el("span", { class: "number" }, percent(value)))),
      ),
    ),
  );
}

const sweeps = [];

function makeSweeps() {
  for (const { title, axis, panels: ofSweep } of data.sweeps) {
    const names = new Map(ofSweep.flatMap(({ series }) => series.map(({ name, look }) => [name, look])));
    const boxes = el("div", { class: "multiples two" });
    for (const panel of ofSweep) {
      const said = el("p", { class: "hint" });
      const box = el("div", { class: "panel" }, el("h4", {}, panel.title));
      boxes.append(box);
      const chart = lineChart(box, { label: `${panel.title}: accuracy by ${axis}. Use the left and right arrow keys to read each value.`, xLabel: axis, height: 240, legend: false, at: (x) => `${axis} = ${x}`, xTicks: panel.xs });
      box.append(said);
      sweeps.push(() => {
        chart.show(panel.series.map(({ name, look, ...of }) => ({ name, look, strong: look.colour === FEDMRL.colour, ...of[state.protocol] })));
        said.textContent = [panel.said[state.protocol], panel.absent].filter(Boolean).join(" ");
      });
    }
    const legend = el("ul", { class: "legend plainly" }, [...names].map(([name, look]) => el("li", {}, named(look, name))));
    byId("sweeps").append(el("div", { class: "sweep" }, el("h3", {}, title), legend, boxes));
  }
  // With one dataset each sweep is one panel, and two of them fit side by side.
  if (data.sweeps.every(({ panels: ofSweep }) => ofSweep.length === 1)) byId("sweeps").className = "multiples two";
}

const pad = (seconds) => (seconds < 100 ? seconds.toFixed(1) : many(Math.round(seconds)));

function makeRepeat() {
  byId("repeat-says").textContent = data.cells.length
    ? `${data.time} for these ${many(data.cells.length)} runs, one after another${data.beyond ? ` (${many(data.beyond)} of them beyond what the tables and figures need)` : ""}. This measures what is missing, and writes this page again:`
    : "Nothing is measured yet. This measures it, and writes this page again:";
  const command = el("pre", { tabindex: 0, "aria-label": "Command" }, `fedmrl reproduce all${data.option}`);
  byId("again").append(command, copyButton(command, "the command"));
  const rows = data.experiments.map(({ name, says, measured, of }) =>
    el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", { class: "number" }, measure(FEDMRL, measured / of, `${measured} of ${of}`)), el("td", { class: "wraps" }, says)),
  );
  const head = el("tr", {}, ["experiment", "runs measured", "what it is"].map((title, i) => el("th", { scope: "col", class: i === 1 ? "number" : null }, title)));
  byId("experiments").append(scrolling("Experiments", el("table", {}, el("thead", {}, head), el("tbody", {}, rows)), "covered"));
  if (!data.cells.length) return byId("runs").append(el("p", { class: "says" }, "None yet."));
  const accuracy = (protocol) => (row) => (row[protocol] === null ? el("span", { class: "none", title: row.diverged }, "diverged") : percent(row[protocol]));
  const machine = (place) => ({ value: (row) => data.machines[row.machine][place], cell: (row) => data.machines[row.machine][place] });
  sortableTable(byId("runs"), {
    label: "Runs",
    rows: data.cells,
    columns: [
      { title: "run", value: (row) => row.name.replace("/", " "), cell: (row) => row.name },
      { title: "seed", number: true, value: (row) => row.seed, cell: (row) => row.seed },
      { title: "fair", number: true, value: (row) => row.fair ?? -1, cell: accuracy("fair") },
      { title: "own", number: true, value: (row) => row.own ?? -1, cell: accuracy("own") },
      { title: "paper’s", number: true, value: (row) => row.paper ?? -1, cell: accuracy("paper") },
      { title: "seconds", number: true, value: (row) => row.seconds, cell: (row) => pad(row.seconds) },
      { title: "CPU seconds", number: true, value: (row) => row.cpu, cell: (row) => pad(row.cpu) },
      { title: "seeds at once", number: true, value: (row) => row.together, cell: (row) => row.together },
      { title: "device", ...machine(0) },
      { title: "engine", ...machine(1) },
      { title: "versions", ...machine(2) },
      { title: "final states", value: (row) => row.states, cell: (row) => el("code", {}, row.states + (row.other ? " †" : "")) },
      { title: "command", value: (row) => row.command, cell: (row) => el("code", {}, row.command) },
    ],
  });
  byId("runs").append(el("p", { class: "hint" }, "Seconds: from start to end; of seeds and runs that shared the device, an equal share each. Final states: SHA-256 of all models at the end, its first 12 digits; runs with the same one agree to the last bit. †: of another recipe than this version has."));
}

function showProtocol(protocol) {
  state.protocol = protocol;
  showAnswer(data.answers[protocol], card);
  byId("protocol-says").textContent = `${data.protocols[protocol].says} N: clients; C: the share of them in a round.`;
  if (state.kind) showTable();
  if (data.curves.length) showCurves();
  if (data.costs) showCosts();
  showClients();
  showInference();
  sweeps.forEach((show) => show());
}

const sections = [
  ["table", state.kind],
  ["curves", data.curves.length],
  ["clients", data.clients.fair.length],
  ["costs", data.costs],
  ["inference", data.inference.fair.length],
  ["sweeps", data.sweeps.length],
  ["repeat", true],
];
for (const [name, present] of sections) {
  byId(`${name}-section`).hidden = !present;
  if (present) byId("contents").append(el("a", { href: `#${name}-section` }, byId(`${name}-title`).textContent));
}
oneOf(byId("protocol"), "protocol", Object.entries(data.protocols).map(([value, { label }]) => [value, label]), "fair", showProtocol);
if (Object.keys(data.tables).length > 1) {
  const labels = { heterogeneous: "Unlike models", homogeneous: "One model for all" };
  oneOf(byId("kind"), "kind", Object.keys(data.tables).map((kind) => [kind, labels[kind]]), state.kind, (kind) => ((state.kind = kind), showTable()));
} else byId("kind").parentElement.remove();
byId("notes").append(...data.notes.map((note) => el("p", { class: "note" }, note)));
if (data.curves.length) makeCurves();
makeSweeps();
makeRepeat();
byId("sweeps-says").textContent = `The federation with the most clients, one setting of it changed at a time; counted as chosen above. ${HINT}`;
showProtocol("fair");
byId("footer").textContent = `Made by fedmrl ${data.version}. This file holds all it shows and asks nothing of a network.`;
themeButton(byId("theme"));
