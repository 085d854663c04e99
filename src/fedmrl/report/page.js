// The page of runs: fills its sections from the data embedded in it.
const data = JSON.parse(byId("data").textContent);
const several = data.series.length > 1;
const lookOf = (series) => data.series[series].look;
const nameOf = (series) => named(lookOf(series), data.series[series].name);
const state = { protocol: "fair", federation: 0 };

function card({ label, value, notes, pairs, series }) {
  const own = series !== undefined;
  return el(
    "article",
    { class: own ? "card of-series" : "card", ...(own ? { look: lookOf(series) } : {}) },
    el("div", {}, el("h3", {}, own ? nameOf(series) : label), el("p", { class: "value" }, value), notes.map((note) => el("p", { class: "aside" }, note))),
    pairs.length ? el("dl", {}, pairs.flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)])) : null,
  );
}

const curves = lineChart(byId("curves"), {
  label: "Accuracy by round. Use the left and right arrow keys to read each round.",
  yLabel: "accuracy",
  xLabel: "communication round",
  legend: several,
  hint: [
    data.series.some((one) => one.seeds.length > 1) ? "Line: mean over seeds; band: their range. " : "",
    "Point at a round, or focus the chart and use the arrow keys.",
  ].join(""),
});

function showProtocol(protocol) {
  state.protocol = protocol;
  showAnswer(data.answers[protocol], card);
  const rings = { fair: "", own: "", paper: ` A ring marks ${data.series.some((one) => one.seeds.length > 1) ? "each seed’s best round" : "it"}.` };
  byId("protocol-says").textContent = data.protocols[protocol].says + rings[protocol];
  curves.show(data.series.map((one) => ({ name: one.name, look: one.look, ...one.curves[protocol] })));
  showTargets();
  showFederation();
}

function showTargets() {
  const groups = data.targets[state.protocol];
  byId("targets-says").textContent = groups.length
    ? `Up to the round in which the mean over ${state.protocol === "paper" ? "the round’s clients, each with what it has just trained" : `all clients, each ${WITH[state.protocol]}`}, first reached it. ` +
      "“Spent” is what a client really spent, on average; the paper’s product is a participant’s cost of a round × rounds, as if every client took part in each."
    : "These runs were given no target accuracy (evaluation.targets).";
  const head = el(
    "thead",
    {},
    el("tr", {}, ["", "rounds", "parameters spent", "FLOPs spent", "parameters, paper’s product", "FLOPs, paper’s product"].map((title, i) => el("th", { scope: "col", class: i ? "number" : null }, title || el("span", { class: "unseen" }, "series")))),
  );
  const bodies = groups.map(({ target, rows }) =>
    el(
      "tbody",
      {},
      el("tr", { class: "group" }, el("th", { colspan: 6, scope: "rowgroup" }, `${target} accuracy`)),
      rows.map((row, series) =>
        el("tr", {}, el("th", { scope: "row" }, nameOf(series)), row ? row.map((cell) => el("td", { class: "number" }, cell)) : [el("td", { class: "number none" }, "not reached"), ...Array.from({ length: 4 }, () => el("td", { class: "number none" }, "–"))]),
      ),
    ),
  );
  byId("targets").replaceChildren(...(groups.length ? [scrolling("Cost of reaching an accuracy", el("table", {}, head, bodies))] : []));
}

function showTotals() {
  const most = (what) => Math.max(1, ...data.totals.map((row) => row[what]));
  const columns = [["sent", "up"], ["received", "down"], ["sent + received", "bytes"], ["parameters", "parameters"], ["compute", "flops"], ["time of the run", "time"]];
  const cell = (row, series, what) => (what === "bytes" || what === "flops" ? measure(lookOf(series), row[what] / most(what), row.words[what]) : row.words[what]);
  const head = el("tr", {}, el("th", { scope: "col" }, el("span", { class: "unseen" }, "series")), columns.map(([title]) => el("th", { scope: "col", class: "number" }, title)));
  const rows = data.totals.map((row, series) => el("tr", {}, el("th", { scope: "row" }, nameOf(series)), columns.map(([, what]) => el("td", { class: "number" }, cell(row, series, what)))));
  byId("totals").append(scrolling("Total cost of a client", el("table", {}, el("thead", {}, head), el("tbody", {}, rows)), "costs"));
  if (data.totals.some((row) => row.together > 1)) byId("totals").append(el("p", { class: "hint" }, "Time: of seeds that were run as one, an equal share each."));
}

const tookPart = (rounds) => (rounds ? `${many(rounds)} ×` : el("span", { class: "none" }, "never"));

function showFederation() {
  const federation = data.federations[state.federation];
  const accuracy = federation.accuracy[ofAll()];
  const places = Object.keys(accuracy).map(Number);
  const clients = federation.model.map((_, client) => client);
  const idle = federation.rounds ? federation.rounds.filter((rounds) => !rounds).length : 0;
  byId("clients-says").textContent = [
    `Each client’s accuracy at the end of the run, on its own test samples, ${WITH[ofAll()]}.`,
    federation.worth,
    idle ? `Clients that never took part (${many(idle)} of ${many(clients.length)}) have untrained models of their own: only what they get from the server has learned anything.` : "",
    data.federations.length > 1 ? "Each seed deals the samples anew, so clients are compared within one seed." : "",
  ].join(" ");
  showDifferences(federation, accuracy, places);
  byId("clients").replaceChildren();
  sortableTable(byId("clients"), {
    label: "Clients",
    rows: clients,
    columns: [
      { title: "client", number: true, value: (k) => k, cell: (k) => k },
      { title: "model", value: (k) => federation.model[k], cell: (k) => federation.model[k] },
      { title: "classes", value: (k) => federation.classes[k][0], cell: (k) => federation.classes[k][1] },
      { title: "train samples", number: true, value: (k) => federation.train[k], cell: (k) => federation.train[k] },
      { title: "test samples", number: true, value: (k) => federation.test[k], cell: (k) => federation.test[k] },
      ...(federation.rounds ? [{ title: "took part", number: true, value: (k) => federation.rounds[k], cell: (k) => tookPart(federation.rounds[k]) }] : []),
      ...places.map((series) => ({
        title: data.series[series].name,
        number: true,
        value: (k) => accuracy[series][k],
        cell: (k) => measure(lookOf(series), accuracy[series][k], percent(accuracy[series][k])),
      })),
    ],
  });
  showSplit(federation.split);
}

function showDifferences(federation, accuracy, places) {
  const box = byId("differences");
  box.replaceChildren();
  if (places.length < 2) return;
  const pair = places.includes(state.pair?.first) && places.includes(state.pair?.second) ? state.pair : { first: places[0], second: places[1] };
  state.pair = pair;
  const inner = el("div");

  function redraw() {
    const [a, b] = [accuracy[pair.first], accuracy[pair.second]];
    const [first, second] = [data.series[pair.first].name, data.series[pair.second].name];
    const idle = (client) => (federation.rounds?.[client] === 0 ? [["took part", "never"]] : []);
    const rows = a
      .map((value, client) => ({ client, difference: value - b[client], words: [[first, percent(value)], [second, percent(b[client])], ...idle(client)] }))
      .sort((one, other) => other.difference - one.difference);
    const gain = rows.filter((row) => row.difference > 0).length;
    const lose = rows.filter((row) => row.difference < 0).length;
    const share = ((100 * gain) / rows.length).toFixed(0);
    inner.replaceChildren(el("p", { id: "gain" }, el("b", {}, `${share} % of the clients gain`), ` with ${first} over ${second}: ${many(gain)} of ${many(rows.length)} do better, ${many(lose)} worse, ${many(rows.length - gain - lose)} the same.`));
    differenceChart(inner, {
      label: `Accuracy of ${first} minus that of ${second}, client by client. Use the left and right arrow keys.`,
      yLabel: `${first} − ${second}, points`,
      gain: lookOf(pair.first),
      loss: lookOf(pair.second),
      rows,
    });
  }

  const options = places.map((series) => [String(series), data.series[series].name]);
  const choice = (label, which) => select(label, options, String(pair[which]), (value) => ((pair[which] = Number(value)), redraw()));
  box.append(el("div", { class: "panel" }, el("div", { class: "choices" }, choice("Gain of", "first"), choice("over", "second")), inner), el("h3", {}, "Every client"));
  redraw();
}

function showSplit(split) {
  const box = byId("split");
  box.replaceChildren();
  if (!split) {
    byId("split-says").textContent = "These runs do not say how many samples of each class their clients have: they were made by an older version. Run them again to see it here.";
    return;
  }
  const shown = split.counts.length;
  byId("split-says").textContent = `Training samples by class (row) and client (column)${shown < split.clients ? `; the first ${shown} of ${many(split.clients)} clients` : ""}.`;
  const panel = el("div", { class: "panel" });
  box.append(panel);
  heatMap(panel, { label: `Training samples of ${shown} clients in ${split.names.length} classes. Use the arrow keys to read each cell.`, ...split });
}

function showModes() {
  const views = new Set(data.series.flatMap((one) => one.modes.flatMap((mode) => Object.keys(mode.views))));
  byId("modes-says").textContent = "All clients at the end, by each way that a method can predict. In bold: the way that counts above." + (views.size > 1 ? " Solid: with the latest the server has; hatched: with the copy that the client itself has." : "");
  byId("modes").append(
    ...data.series.map((one, series) =>
      el(
        "div",
        {},
        el("h3", {}, nameOf(series)),
        one.modes.map(({ mode, counts, views: of }) =>
          el(
            "div",
            { class: "mode" },
            Object.entries(of).flatMap(([view, value], i) => [
              el(counts ? "b" : "span", { class: i ? "unseen" : null }, i ? `${mode}, ${view}` : mode),
              i ? el("span", { "aria-hidden": "true" }) : null,
              el("div", { class: view === "own" && Object.keys(of).length > 1 ? "bars own" : "bars", look: one.look }, el("i", { style: `width: ${100 * value}%` })),
              el(counts && !i ? "b" : "span", { class: "number" }, percent(value)),
            ]),
          ),
        ),
      ),
    ),
  );
}

function showRecipes() {
  byId("recipes").append(
    ...data.recipes.map(({ config, command, facts }, series) => {
      const text = el("pre", { tabindex: 0, "aria-label": "config.toml" }, config);
      const again = command ? el("pre", { tabindex: 0, "aria-label": "Command" }, command) : null;
      return el(
        "details",
        { open: series === 0 },
        el("summary", {}, several ? nameOf(series) : data.series[series].name),
        el(
          "div",
          { class: "inside" },
          again ? [el("p", { class: "hint" }, "Run it again"), el("div", { class: "again" }, again, copyButton(again, "the command"))] : el("p", { class: "hint" }, "Its models were given from Python; run it again from there."),
          el("dl", { class: "pairs" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
          el("div", { class: "code" }, text, copyButton(text, "the recipe")),
        ),
      );
    }),
  );
}

oneOf(byId("protocol"), "protocol", Object.entries(data.protocols).map(([value, { label }]) => [value, label]), "fair", showProtocol);
byId("notes").append(...data.notes.map((note) => el("p", { class: "note" }, note)));
if (data.federations.length > 1)
  byId("federation").append(
    select("Clients of", data.federations.map((one, i) => [String(i), one.label]), "0", (value) => {
      state.federation = Number(value);
      showFederation();
    }),
  );
showProtocol("fair");
showTotals();
showModes();
showRecipes();
byId("footer").textContent = `Made by fedmrl ${data.version}. This file holds all it shows and asks nothing of a network.`;
themeButton(byId("theme"));
