// The page of a reproduction: draws the charts and the table of runs, and redraws the charts when another protocol is chosen.
const hidden = new Set();
const boxes = (section) => [...document.querySelectorAll(`#${section} [data-chart]`)].map((box) => [box, box.dataset]);

const panels = boxes("curves").map(([box, { chart }]) => ({ charts: data.curves[chart], ...lineChart(box, hidden) }));
const sweeps = boxes("sweeps").map(([box, { chart, panel }]) => ({ charts: data.sweeps[chart][panel], ...lineChart(box) }));
for (const [box, { chart, protocol }] of boxes("clients")) differenceChart(box, data.clients[protocol][chart]);

if (panels.length) {
  const head = el("div");
  byId("curves").prepend(head);
  legend(head, data.methods, hidden, () => panels.forEach((panel) => panel.redraw()));
}
if (data.runs) sortableTable(byId("runs"), data.runs);

const showAll = () => [...panels, ...sweeps].forEach(({ charts, show }) => show(charts[chosen("protocol")]));
radios("protocol", showAll);
showAll();
