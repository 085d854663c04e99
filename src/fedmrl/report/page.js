// The report: draws the charts and the table of clients, and redraws them when another protocol is chosen.
const hidden = new Set();
if (data.charts.fair.lines.length > 1) legend(byId("curves"), data.charts.fair.lines, hidden, () => curves.redraw());
const curves = lineChart(byId("curves"), hidden);
const seed = document.querySelector("#federation select");
let pair = [];

function showClients() {
  const federation = data.federations[seed?.value ?? 0];
  const accuracy = federation.accuracy[ofAll()];
  const [client, ...others] = federation.columns;
  byId("clients-says").textContent = federation.says[ofAll()];
  byId("differences").replaceChildren();
  byId("clients").replaceChildren();
  if (accuracy.length > 1) showDifferences(federation, accuracy);
  sortableTable(byId("clients"), { label: "Clients", hint: federation.hint, columns: [client, ...accuracy, ...others] });
  byId("split-says").textContent = federation.splitSays;
  byId("split").replaceChildren();
  if (federation.split) heatMap(byId("split").appendChild(el("div", { class: "panel" })), federation.split);
}

function showDifferences({ gains, members, columns }, accuracy) {
  const places = Object.keys(members);
  const rounds = columns.find(({ title }) => title === "took part");
  const inner = el("div");
  if (!pair.every((place) => places.includes(place)) || pair.length < 2) pair = places.slice(0, 2);

  function redraw() {
    const chart = gains[ofAll()][pair.join("-")];
    const own = pair.map((place) => accuracy[places.indexOf(place)]);
    const words = (client) => [...own.map(({ title, labels }) => [title, labels[client]]), ...(rounds ? [["took part", rounds.labels[client]]] : [])];
    inner.replaceChildren(el("p", { id: "gain" }, el("b", {}, chart.share), chart.says));
    differenceChart(inner, chart, words);
  }

  // Choosing the same method twice swaps the two.
  const choose = (which) => (place) => {
    if (pair[1 - which] === place) pair[1 - which] = pair[which];
    pair[which] = place;
    choices.forEach((label, i) => (label.lastChild.value = pair[i]));
    redraw();
  };
  const choices = ["Gain of", "over"].map((label, which) => select(label, Object.entries(members), pair[which], choose(which)));
  byId("differences").append(el("div", { class: "panel" }, el("div", { class: "choices" }, choices), inner), el("h3", {}, "Every client"));
  redraw();
}

function showAll() {
  curves.show(data.charts[chosen("protocol")]);
  showClients();
}

radios("protocol", showAll);
seed?.addEventListener("change", showClients);
showAll();
