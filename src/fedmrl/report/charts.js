// What any page of fedmrl can use: elements, the theme, charts, sortable tables. It knows nothing of a page's data.
// Text from files only ever becomes a text node, so it cannot become markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText += value;
    else if (name === "look") node.style.setProperty("--colour", value.colour);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

/** The answer at the top of a page: its title, a sentence or two, and cards, each made by `card`. */
function showAnswer({ title, lead, cards }, card) {
  byId("answer").textContent = title;
  byId("lead").textContent = lead;
  byId("cards").replaceChildren(...cards.map(card));
}
// Whose models count where each client is looked at: the paper's protocol has no such count, so it is the fair one's.
const ofAll = () => (state.protocol === "own" ? "own" : "fair"); // `state` is the page's
const WITH = { fair: "with the latest the server has", own: "with the copy of the shared part that it trained last" };
const many = (number) => number.toLocaleString("en");
// Ties go to the even digit, as in all that Python writes: 81.25 is 81.2 wherever it stands.
const tenths = (value) => (Number.isInteger(4 * value) && !Number.isInteger(2 * value) ? Math.round(5 * value) / 5 : value).toFixed(1);
const percent = (share) => `${tenths(100 * share)} %`;
const points = (share) => `${share > 0 ? "+" : share < 0 ? "−" : ""}${tenths(Math.abs(100 * share))}`;

// The shapes of markers, by matplotlib's names for them. A look is a colour and such a name: {colour, marker}.
const SHAPES = {
  o: "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0 -1 0Z",
  s: "M-.9-.9H.9V.9H-.9Z",
  "^": "M0-1.15L1.1.8H-1.1Z",
  D: "M0-1.3L1.15 0L0 1.3L-1.15 0Z",
  v: "M0 1.15L1.1-.8H-1.1Z",
  P: "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
  X: "M-1.15-.55L-.55-1.15L0-.6L.55-1.15L1.15-.55L.6 0L1.15.55L.55 1.15L0 .6L-.55 1.15L-1.15.55L-.6 0Z",
  h: "M0-1.2L1.05-.6V.6L0 1.2L-1.05.6V-.6Z",
  d: "M0-1.35L.75 0L0 1.35L-.75 0Z",
  p: "M0-1.15L1.1-.35L.68.95H-.68L-1.1-.35Z",
  "<": "M-1.15 0L.8-1.1V1.1Z",
  ">": "M1.15 0L-.8-1.1V1.1Z",
  "*": "M0-1.35L.35-.45L1.3-.4L.55.2L.8 1.1L0 .6L-.8 1.1L-.55.2L-1.3-.4L-.35-.45Z",
};

const marker = (look, x, y, size = 4.5) =>
  draw("path", { class: "marker", look, d: SHAPES[look.marker], transform: `translate(${x} ${y}) scale(${size})`, "vector-effect": "non-scaling-stroke" });

// A series' colour and shape, and its name.
function named(look, name) {
  const swatch = draw("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, marker(look, 0, 0, 5.5));
  return el("span", { class: "name" }, swatch, name);
}

function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / count, least, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough - 1e-12);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}

// Draw again whenever the box has another width.
function atEachWidth(box, redraw) {
  let width = 0;
  new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== width) {
      width = box.clientWidth;
      redraw();
    }
  }).observe(box);
}

// Lets a pointer or the arrow keys go through a chart's places. `place(event)` says which place is under the pointer,
// `move(place, key)` which comes next, `show(place)` shows one (or none) and says it in words.
function explore(target, said, { start, place, move, show }) {
  let at = null;
  const go = (to, aloud) => {
    at = to;
    const words = show(to);
    if (aloud) said.textContent = words || "";
  };
  target.addEventListener("pointermove", (event) => go(place(event), false));
  target.addEventListener("pointerdown", (event) => go(place(event), false));
  target.addEventListener("pointerleave", () => go(null, false));
  target.addEventListener("blur", () => go(null, false));
  target.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") return go(null, true);
    if (!/^(Arrow|Home|End)/.test(event.key)) return;
    event.preventDefault();
    go(at === null ? start(event.key) : move(at, event.key), true);
  });
  return () => go(null, false);
}

const along = (count) => ({
  start: (key) => (key === "End" || key === "ArrowLeft" ? count() - 1 : 0),
  move: (at, key) => {
    if (key === "Home") return 0;
    if (key === "End") return count() - 1;
    const step = key === "ArrowRight" || key === "ArrowUp" ? 1 : -1;
    return Math.min(Math.max(at + step, 0), count() - 1);
  },
});

function nearest(sorted, value) {
  let best = 0;
  for (let i = 1; i < sorted.length; i++) if (Math.abs(sorted[i] - value) < Math.abs(sorted[best] - value)) best = i;
  return best;
}

// Beside a place of the chart, on the side where there is room.
function putTooltip(tooltip, box, x, y) {
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  // A small panel has no room beside the place, but its neighbours may be covered: only the window is the limit.
  const edge = box.getBoundingClientRect().left;
  const fits = (left) => edge + left >= 0 && edge + left + width <= document.documentElement.clientWidth;
  const left = [x + 14, x - 14 - width].find(fits) ?? Math.max(0, x - 14 - width);
  tooltip.style.transform = `translate(${left}px, ${Math.max(0, Math.min(y, box.clientHeight - height))}px)`;
}

function chartBox(label, hint) {
  const said = el("p", { class: "unseen", "aria-live": "polite" });
  const tooltip = el("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
  const box = el("div", { class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": label }, tooltip);
  const parts = [box, said, hint ? el("p", { class: "hint" }, hint) : null].filter(Boolean);
  return { box, said, tooltip, parts };
}

// The least and the greatest value of some series.
function extent(series) {
  const every = series.flatMap((one) => [...(one.low || one.mean), ...(one.high || one.mean), ...(one.best || []).map(([, value]) => value)]);
  return every.length ? [Math.min(...every), Math.max(...every)] : [0, 1];
}

// Curves with their bands, a legend that switches them off and on, and a crosshair.
// series: [{name, look, rounds, mean, low?, high?, counts?, best?, strong?}]; `counts` says what counts of it,
// where that is not its end, and `best` has the points it comes from, [round, value] for each seed; `show` takes another list, and the limits of y if others share them.
// `at` says a place along x, `xTicks` has the ticks where x is no round.
function lineChart(into, { label, yLabel = "", xLabel = "round", height = 380, legend = true, hint = null, at = (round) => `Round ${round}`, xTicks = null }) {
  const { box, said, tooltip, parts } = chartBox(label, hint);
  const list = el("ul", { class: "legend", "aria-label": "Series; press to hide or show" });
  const hidden = new Set();
  let series = [];
  let rounds = [];
  let limits = null;
  let x, y, cross;

  const visible = () => series.filter((one) => !hidden.has(one.name));

  function redraw() {
    clear();
    const width = box.clientWidth || 640;
    const tall = width < 560 ? Math.min(height, 300) : height;
    const shown = visible();
    rounds = [...new Set(shown.flatMap((one) => one.rounds))].sort((a, b) => a - b);
    const roomy = width >= 640;
    const margin = { top: 26, right: roomy ? 34 + 8.2 * Math.max(0, ...shown.map((one) => short(one.name).length + 1 + counted(one).length)) : 14, bottom: 42, left: 50 };
    let [low, high] = limits || extent(shown);
    const room = Math.max((high - low) * 0.08, 0.02);
    [low, high] = [Math.max(0, low - room), Math.min(1, high + room)];
    const first = rounds[0] ?? 0;
    const last = rounds.at(-1) ?? 1;
    x = (round) => margin.left + (last > first ? (round - first) / (last - first) : xTicks ? 0.5 : 0) * (width - margin.left - margin.right);
    y = (value) => tall - margin.bottom - ((value - low) / (high - low)) * (tall - margin.top - margin.bottom);
    const bottom = tall - margin.bottom;
    const svg = draw("svg", { height: tall, viewBox: `0 0 ${width} ${tall}`, "aria-hidden": "true" });
    for (const tick of ticks(low, high, tall / (tall < 300 ? 50 : 70))) {
      svg.append(
        draw("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(tick), y2: y(tick) }),
        draw("text", { x: margin.left - 8, y: y(tick) + 4, "text-anchor": "end" }, `${+(100 * tick).toFixed(1)}%`),
      );
    }
    svg.append(draw("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }));
    const places = xTicks?.filter((tick) => tick >= first && tick <= last);
    for (const tick of places || (rounds.length ? ticks(first, last, (width - margin.left - margin.right) / 70, 1) : []))
      svg.append(draw("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, tick));
    svg.append(
      draw("text", { x: (margin.left + width - margin.right) / 2, y: tall - 4, "text-anchor": "middle" }, xLabel),
      draw("text", { x: 0, y: 12 }, yLabel),
    );
    for (const one of shown) if (one.low) svg.append(draw("path", { class: "band", look: one.look, d: band(one) }));
    for (const one of [...shown].reverse()) {
      svg.append(draw("path", { class: one.strong ? "line strong" : "line", look: one.look, d: "M" + one.rounds.map((r, i) => `${x(r).toFixed(1)} ${y(one.mean[i]).toFixed(1)}`).join("L") }));
      if (one.rounds.length <= 40) one.rounds.forEach((r, i) => svg.append(marker(one.look, x(r), y(one.mean[i]))));
    }
    for (const one of shown) for (const [round, value] of one.best || []) svg.append(draw("circle", { class: "ring", look: one.look, cx: x(round), cy: y(value), r: 8.5 }));
    if (roomy) labelEnds(svg, shown, width - margin.right + 14, margin.top, bottom);
    cross = draw("g");
    svg.append(cross);
    box.querySelector("svg")?.remove();
    box.prepend(svg);
  }

  const band = (one) => {
    const upper = one.rounds.map((r, i) => `${x(r).toFixed(1)} ${y(one.high[i]).toFixed(1)}`);
    const lower = one.rounds.map((r, i) => `${x(r).toFixed(1)} ${y(one.low[i]).toFixed(1)}`).reverse();
    return `M${[...upper, ...lower].join("L")}Z`;
  };

  const short = (name) => (name.length > 26 ? `${name.slice(0, 25)}…` : name);
  const counted = ({ counts, mean }) => counts ?? percent(mean.at(-1));

  // Each curve's name and what counts of it at its end, moved apart where they would lie on each other.
  function labelEnds(svg, shown, left, top, bottom) {
    const ends = shown.map((one) => ({ one, at: y(one.mean.at(-1)) })).sort((a, b) => a.at - b.at);
    const apart = 17;
    ends.forEach((end, i) => (end.at = Math.max(end.at, i ? ends[i - 1].at + apart : top)));
    for (let i = ends.length - 1; i >= 0; i--) ends[i].at = Math.min(ends[i].at, i < ends.length - 1 ? ends[i + 1].at - apart : bottom);
    for (const { one, at } of ends) {
      svg.append(marker(one.look, left + 4, at), draw("text", { class: "end", x: left + 14, y: at + 4 }, `${short(one.name)} ${counted(one)}`));
    }
  }

  function show(place) {
    cross?.replaceChildren();
    tooltip.hidden = true;
    if (place === null || !rounds.length) return "";
    const round = rounds[place];
    const values = visible().map((one) => ({ one, i: one.rounds.indexOf(round) }));
    const measured = values.filter(({ i }) => i >= 0);
    cross.append(draw("line", { class: "cross", x1: x(round), x2: x(round), y1: 20, y2: box.querySelector("svg").clientHeight - 42 }));
    for (const { one, i } of measured) cross.append(marker(one.look, x(round), y(one.mean[i]), 6.5));
    measured.sort((a, b) => b.one.mean[b.i] - a.one.mean[a.i]);
    const spread = ({ one, i }) => (one.low ? ` (${tenths(100 * one.low[i])}–${tenths(100 * one.high[i])})` : "");
    const rows = measured.flatMap((v) => [
      el("dt", {}, named(v.one.look, v.one.name)),
      el("dd", {}, percent(v.one.mean[v.i]), el("small", {}, spread(v))),
    ]);
    const missing = values.filter(({ i }) => i < 0).flatMap(({ one }) => [el("dt", {}, named(one.look, one.name)), el("dd", {}, el("small", {}, "not measured"))]);
    tooltip.replaceChildren(el("b", {}, at(round)), el("dl", {}, rows, missing));
    putTooltip(tooltip, box, x(round), 30);
    return `${at(round)}: ${measured.map((v) => `${v.one.name} ${percent(v.one.mean[v.i])}`).join(", ")}`;
  }

  const under = (event) => nearest(rounds.map((round) => x(round)), event.clientX - box.getBoundingClientRect().left);
  const clear = explore(box, said, { ...along(() => rounds.length), place: under, show });

  function legendEntries() {
    list.replaceChildren(
      ...series.map((one) => {
        const flip = () => {
          hidden.has(one.name) ? hidden.delete(one.name) : hidden.add(one.name);
          button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
          redraw();
        };
        const button = el("button", { type: "button", "aria-pressed": String(!hidden.has(one.name)), onclick: flip }, named(one.look, one.name));
        return el("li", {}, button);
      }),
    );
  }

  into.append(...(legend ? [list] : []), ...parts);
  atEachWidth(box, redraw);
  return {
    show(next, shared = null) {
      series = next;
      limits = shared;
      if (legend && series.length > 1) legendEntries();
      redraw();
    },
  };
}

// Sorted differences, one for each client: how many gain, and how much.
// rows: [{client, difference, words: [[name, value], ...]}], from the largest gain to the largest loss.
function differenceChart(into, { label, yLabel, gain, loss, rows, height = 220, hint = null }) {
  const { box, said, tooltip, parts } = chartBox(label, hint);
  let x, y, each, mark;
  const inset = { top: 26, right: 14, bottom: 30, left: 50 };

  function redraw() {
    clear();
    const width = box.clientWidth || 640;
    const all = rows.map((row) => row.difference);
    const [high, low] = [Math.max(0.01, ...all) * 1.1, Math.min(-0.01, ...all) * 1.1];
    each = (width - inset.left - inset.right) / rows.length;
    x = (i) => inset.left + i * each;
    y = (value) => inset.top + ((high - value) / (high - low)) * (height - inset.top - inset.bottom);
    const svg = draw("svg", { height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of ticks(low, high, height / 35))
      svg.append(
        draw("line", { class: "grid", x1: inset.left, x2: width - inset.right, y1: y(tick), y2: y(tick) }),
        draw("text", { x: inset.left - 8, y: y(tick) + 4, "text-anchor": "end" }, points(+tick.toFixed(6)).replace(/\.0$/, "")),
      );
    const gap = each > 5 ? Math.min(each * 0.2, 4) : 0;
    for (const [look, sign] of [[gain, 1], [loss, -1]]) {
      const d = rows.map((row, i) => (row.difference * sign > 0 ? `M${(x(i) + gap / 2).toFixed(2)} ${y(0).toFixed(1)}V${y(row.difference).toFixed(1)}h${(each - gap).toFixed(2)}V${y(0).toFixed(1)}Z` : "")).join("");
      svg.append(draw("path", { class: "filled", look, d }));
    }
    svg.append(
      draw("line", { class: "axis", x1: inset.left, x2: width - inset.right, y1: y(0), y2: y(0) }),
      draw("text", { x: 0, y: 12 }, yLabel),
      draw("text", { x: (inset.left + width - inset.right) / 2, y: height - 6, "text-anchor": "middle" }, "clients, from the largest gain to the largest loss"),
      (mark = draw("g")),
    );
    box.querySelector("svg")?.remove();
    box.prepend(svg);
  }

  function show(place) {
    mark?.replaceChildren();
    tooltip.hidden = true;
    if (place === null) return "";
    const row = rows[place];
    const middle = x(place) + each / 2;
    mark.append(draw("line", { class: "cross", x1: middle, x2: middle, y1: inset.top, y2: height - inset.bottom }));
    const words = [...row.words, ["difference", `${points(row.difference)} points`]];
    tooltip.replaceChildren(el("b", {}, `Client ${row.client}`), el("dl", {}, words.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    putTooltip(tooltip, box, middle, 30);
    return `Client ${row.client}: ${words.map((pair) => pair.join(" ")).join(", ")}`;
  }

  const under = (event) => Math.min(Math.max(Math.floor((event.clientX - box.getBoundingClientRect().left - inset.left) / each), 0), rows.length - 1);
  const clear = explore(box, said, { ...along(() => rows.length), place: under, show });
  into.append(...parts);
  atEachWidth(box, redraw);
}

// What a custom property is as a colour that a canvas takes.
function resolved(node, property) {
  const probe = el("i", { style: `color: var(${property}); display: none` });
  node.append(probe);
  const parsed = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parsed;
}

const mixed = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));

// Counts by class (rows) and client (columns). counts: for each client [class, count, class, count, ...].
function heatMap(into, { label, names, counts }) {
  const { box, said, tooltip, parts } = chartBox(label, "Point at a cell, or focus the map and use the arrow keys.");
  const rowHeight = names.length <= 30 ? 24 : 12;
  const each = names.length <= 30 ? 1 : 5;
  const most = Math.max(1, ...counts.flatMap((own) => own.filter((_, i) => i % 2)));
  const table = counts.map((own) => {
    const row = new Array(names.length).fill(0);
    for (let i = 0; i < own.length; i += 2) row[own[i]] = own[i + 1];
    return row;
  });
  const canvas = el("canvas");
  const wide = el("div", { class: "wide" }, canvas);
  const labels = el("ol", { "aria-hidden": "true" }, names.map((name, i) => el("li", { style: `height: ${rowHeight}px; line-height: ${rowHeight}px`, title: name }, i % each ? "" : name)));
  box.append(el("div", { class: "heat" }, labels, shaded(wide)));
  let cell = 24;
  let at = null;

  function redraw() {
    const room = box.clientWidth - labels.offsetWidth;
    cell = Math.max(Math.min(room / table.length, 60), room < 420 ? 14 : 4);
    const [width, height] = [Math.min(cell * table.length, 16000), rowHeight * names.length + 24];
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [none, low, high, ink, muted, surface] = ["--heat-none", "--heat-low", "--heat-high", "--ink", "--muted", "--surface"].map((name) => resolved(box, name));
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const gap = cell >= 10 ? 1 : 0;
    const numbers = cell >= 22 && rowHeight >= 18 && most < 1000;
    table.forEach((row, client) =>
      row.forEach((count, label) => {
        const share = most > 1 ? (count - 1) / (most - 1) : 1;
        pen.fillStyle = `rgb(${count ? mixed(low, high, share) : none})`;
        pen.fillRect(client * cell, label * rowHeight, cell - gap, rowHeight - 1);
        if (numbers && count) {
          pen.fillStyle = `rgb(${share > 0.5 ? surface : ink})`;
          pen.fillText(count, client * cell + cell / 2, label * rowHeight + rowHeight / 2);
        }
      }),
    );
    pen.fillStyle = `rgb(${muted})`;
    const every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * cell >= 30) || 100;
    table.forEach((_, client) => client % every || pen.fillText(client, client * cell + cell / 2, names.length * rowHeight + 13));
    if (at) {
      pen.strokeStyle = `rgb(${ink})`;
      pen.lineWidth = 2;
      pen.strokeRect(at.client * cell + 1, at.label * rowHeight + 1, Math.max(cell - gap - 2, 2), rowHeight - 3);
    }
  }

  function show(place) {
    if (!place && !at) return "";
    at = place;
    redraw();
    tooltip.hidden = true;
    if (!at) return "";
    const left = at.client * cell;
    if (left < wide.scrollLeft || left + cell > wide.scrollLeft + wide.clientWidth) wide.scrollLeft = left - wide.clientWidth / 2;
    const words = `${table[at.client][at.label]} training samples of ${names[at.label]}`;
    tooltip.replaceChildren(el("b", {}, `Client ${at.client}`), words);
    putTooltip(tooltip, box, labels.offsetWidth + left + cell - wide.scrollLeft, (at.label + 1) * rowHeight);
    return `Client ${at.client}: ${words}`;
  }

  explore(box, said, {
    start: () => ({ client: 0, label: 0 }),
    move: ({ client, label }, key) => {
      const to = { ArrowLeft: [client - 1, label], ArrowRight: [client + 1, label], ArrowUp: [client, label - 1], ArrowDown: [client, label + 1], Home: [0, label], End: [table.length - 1, label] }[key];
      return { client: Math.min(Math.max(to[0], 0), table.length - 1), label: Math.min(Math.max(to[1], 0), names.length - 1) };
    },
    place: (event) => {
      const edge = canvas.getBoundingClientRect();
      const [client, label] = [Math.floor((event.clientX - edge.left) / cell), Math.floor((event.clientY - edge.top) / rowHeight)];
      return client >= 0 && client < table.length && label >= 0 && label < names.length ? { client, label } : null;
    },
    show,
  });
  into.append(el("p", { class: "ramp" }, "1", el("i"), `${most} training samples`), ...parts);
  atEachWidth(box, redraw);
  onTheme(redraw);
}

// A box around one that scrolls, with a shade at each edge beyond which there is more.
function shaded(box) {
  const outer = el("div", { class: "shaded" }, box);
  const look = () => {
    outer.toggleAttribute("data-left", box.scrollLeft > 1);
    outer.toggleAttribute("data-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    outer.toggleAttribute("data-below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
  };
  box.addEventListener("scroll", look, { passive: true });
  const watch = new ResizeObserver(look);
  for (const node of [box, ...box.children]) watch.observe(node);
  return outer;
}

// A table in a box of its own that scrolls, so that the page never does.
const scrolling = (label, table, kind = "") => shaded(el("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": `${label}; scroll with the arrow keys` }, table));

// A bar and its value.
const measure = (look, share, words) =>
  el("div", { class: "measure" }, el("span", { class: "track" }, el("i", { look, style: `width: ${Math.max(0, Math.min(1, share)) * 100}%` })), el("span", {}, words));

// columns: [{title, number?, value: row => what to sort by, cell: row => what to show}]; at most `limit` rows are shown.
function sortableTable(into, { label, columns, rows, limit = 500 }) {
  const body = el("tbody");
  const counted = el("p", { class: "hint", "aria-live": "polite" });
  let by = { column: 0, down: false };

  const heads = columns.map((column, number) => {
    const press = () => {
      by = { column: number, down: by.column === number ? !by.down : Boolean(column.number) && number > 0 };
      redraw();
    };
    return el("th", { scope: "col", class: column.number ? "number" : null }, el("button", { type: "button", onclick: press }, column.title));
  });

  function redraw() {
    const { value } = columns[by.column];
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    const sorted = [...rows].sort((a, b) => (by.down ? -1 : 1) * order(value(a), value(b)));
    heads.forEach((head, number) => {
      if (number === by.column) head.setAttribute("aria-sort", by.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(
      ...sorted.slice(0, limit).map((row) =>
        el("tr", {}, columns.map((column, number) => (number ? el("td", { class: column.number ? "number" : null }, column.cell(row)) : el("th", { scope: "row", class: column.number ? "number" : null }, column.cell(row))))),
      ),
    );
    counted.textContent =
      rows.length > limit
        ? `The first ${limit} of ${many(rows.length)} in this order; sort by a column to see others.`
        : `${rows.length} rows. Press a column’s title to sort by it.`;
  }

  redraw();
  into.append(scrolling(label, el("table", {}, el("thead", {}, el("tr", {}, heads)), body), "long"), counted);
}

// A button that copies a text; where the browser forbids it, the text is selected instead.
function copyButton(source, what) {
  const button = el("button", { type: "button", class: "plain", "aria-label": `Copy ${what}` }, "Copy");
  const tell = (word) => {
    button.textContent = word;
    setTimeout(() => (button.textContent = "Copy"), 1600);
  };
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      tell("Copied");
    } catch {
      getSelection().selectAllChildren(source);
      tell("Selected");
    }
  });
  return button;
}

const listeners = [];
const onTheme = (listener) => listeners.push(listener);

// Light or dark: as the system has it until the reader says otherwise.
function themeButton(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const changed = () => {
    button.textContent = isDark() ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    listeners.forEach((listener) => listener());
  };
  try {
    const kept = localStorage.getItem("fedmrl-theme");
    if (kept) root.dataset.theme = kept;
  } catch {
    // A browser may forbid a file to remember anything.
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("fedmrl-theme", root.dataset.theme);
    } catch {
      // The choice lasts as long as the page, then.
    }
    changed();
  });
  system.addEventListener("change", changed);
  changed();
}

byId("to-words").addEventListener("click", () => (byId("glossary").open = true));

// One of several, as radio buttons in a row.
function oneOf(fieldset, name, choices, chosen, onchange) {
  for (const [value, label] of choices)
    fieldset.append(el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onchange(value) }), el("span", {}, label)));
}

const select = (label, options, chosen, onchange) =>
  el("label", {}, label, el("select", { onchange: (event) => onchange(event.target.value) }, options.map(([value, words]) => el("option", { value, selected: value === chosen }, words))));
