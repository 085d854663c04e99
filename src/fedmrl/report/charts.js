// Shared by all pages: charts as described by `charts.py`, sortable tables, the theme.
// Text from files is only inserted as text nodes, so it cannot become markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText += value;
    else if (name === "colour") node.style.setProperty("--colour", value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

const data = JSON.parse(byId("data").textContent);
const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
const radios = (name, onchange) => document.querySelectorAll(`input[name="${name}"]`).forEach((radio) => radio.addEventListener("change", onchange));
// The protocol for sections about all clients, which the protocol `paper` does not cover: there, `fair` is shown.
const ofAll = () => (chosen("protocol") === "own" ? "own" : "fair");

// A style is {colour, marker}; the marker is a key of `data.marker_paths`.
const marker = (style, x, y, size = 4.5) =>
  draw("path", { class: "marker", colour: style.colour, d: data.marker_paths[style.marker], transform: `translate(${x} ${y}) scale(${size})`, "vector-effect": "non-scaling-stroke" });

// A series' marker and name.
function named(style, name) {
  const swatch = draw("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, marker(style, 0, 0, 5.5));
  return el("span", { class: "name" }, swatch, name);
}

// Draws, and redraws whenever the width of the box changes.
function atEachWidth(box, redraw) {
  let width = 0;
  const update = () => {
    if (box.clientWidth && box.clientWidth !== width) {
      width = box.clientWidth;
      redraw();
    }
  };
  update(); // at once, so that a key that is pressed right away finds the chart drawn
  new ResizeObserver(update).observe(box);
}

// Explores a chart by pointer or arrow keys. `place(event)` returns the place under the pointer, `move(place, key)` the next
// place, and `show(place)` displays a place (or none, for null) and returns it as text for screen readers.
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

// Puts the tooltip beside a point of the chart, on the side with enough room.
function putTooltip(tooltip, box, x, y) {
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  // The tooltip may cover neighbouring panels but must stay within the window.
  const edge = box.getBoundingClientRect().left;
  const fits = (left) => edge + left >= 0 && edge + left + width <= document.documentElement.clientWidth;
  const left = [x + 14, x - 14 - width].find(fits) ?? Math.max(0, x - 14 - width);
  tooltip.style.transform = `translate(${left}px, ${Math.max(0, Math.min(y, box.clientHeight - height))}px)`;
}

// A chart's box. Axis titles are HTML text above and below it, which wraps and so is never cut.
function chartBox(into) {
  const said = el("p", { class: "unseen", "aria-live": "polite" });
  const tooltip = el("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
  const box = el("div", { class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart" }, tooltip);
  const [above, below] = [el("p", { class: "axis-title" }), el("p", { class: "axis-title below" })];
  into.append(above, box, below, said);
  const name = (label, top, bottom) => {
    box.setAttribute("aria-label", label);
    above.textContent = top;
    below.textContent = bottom;
  };
  const put = (svg) => {
    box.querySelector(":scope > svg")?.remove();
    box.prepend(svg);
  };
  return { box, said, tooltip, name, put };
}

const scale = (axis, from, to) => (value) => from + ((value - axis.low) / (axis.high - axis.low || 1)) * (to - from);

const gridLine = (y, left, right, tick) => [
  draw("line", { class: "grid", x1: left, x2: right, y1: y(tick[0]), y2: y(tick[0]) }),
  draw("text", { x: left - 8, y: y(tick[0]) + 4, "text-anchor": "end" }, tick[1]),
];

// A line chart with bands and a crosshair. `show(chart)` draws a chart described by `charts.py`, without the lines named in `hidden`.
function lineChart(into, hidden = new Set()) {
  const { box, said, tooltip, name, put } = chartBox(into);
  let chart, x, y, cross, tall;

  const visible = () => chart.lines.filter((line) => !hidden.has(line.name));
  const points = (line, values) => values.map((value, i) => (value === null ? null : `${x(chart.places[i][0]).toFixed(1)} ${y(value).toFixed(1)}`)).filter(Boolean);

  function redraw() {
    if (!chart) return;
    clear();
    const width = box.clientWidth || 640;
    tall = width < 560 ? Math.min(chart.height, 300) : chart.height;
    const roomy = width >= 640;
    const [left, right, bottom] = [40, width - (roomy ? 30 + 8.2 * Math.max(0, ...chart.lines.map((line) => line.end.length)) : 14), tall - 26];
    x = chart.places.length > 1 ? scale(chart.x, left + 6, right) : () => (left + right) / 2;
    y = scale(chart.y, bottom, 8);
    const svg = draw("svg", { height: tall, viewBox: `0 0 ${width} ${tall}`, "aria-hidden": "true" });
    svg.append(...chart.y.ticks.flatMap((tick) => gridLine(y, left, right, tick)), draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    svg.append(...chart.x.ticks.map(([place, label]) => draw("text", { x: x(place), y: bottom + 18, "text-anchor": "middle" }, label)));
    const shown = visible();
    for (const line of shown) if (line.low) svg.append(draw("path", { class: "band", colour: line.style.colour, d: `M${[...points(line, line.high), ...points(line, line.low).reverse()].join("L")}Z` }));
    for (const line of [...shown].reverse()) {
      const at = points(line, line.mean);
      svg.append(draw("path", { class: line.strong ? "line strong" : "line", colour: line.style.colour, d: `M${at.join("L")}` }));
      if (at.length <= 40) svg.append(...at.map((point) => marker(line.style, ...point.split(" "))));
    }
    for (const line of shown) {
      svg.append(...line.rings.map(([place, value]) => draw("circle", { class: "ring", colour: line.style.colour, cx: x(place), cy: y(value), r: 8.5 })));
      if (roomy) svg.append(marker(line.style, right + 18, y(line.endAt)), draw("text", { class: "end", x: right + 28, y: y(line.endAt) + 4 }, line.end));
    }
    svg.append((cross = draw("g")));
    put(svg);
  }

  function show(place) {
    cross?.replaceChildren();
    tooltip.hidden = true;
    if (place === null || !chart.places.length) return "";
    const [value, title] = chart.places[place];
    const measured = visible().filter((line) => line.mean[place] !== null).sort((a, b) => b.mean[place] - a.mean[place]);
    const missing = visible().filter((line) => line.mean[place] === null);
    cross.append(draw("line", { class: "cross", x1: x(value), x2: x(value), y1: 8, y2: tall - 26 }), ...measured.map((line) => marker(line.style, x(value), y(line.mean[place]), 6.5)));
    const rows = measured.flatMap((line) => [el("dt", {}, named(line.style, line.name)), el("dd", {}, line.labels[place], " ", el("small", {}, line.spreads?.[place]))]);
    tooltip.replaceChildren(el("b", {}, title), el("dl", {}, rows, missing.flatMap((line) => [el("dt", {}, named(line.style, line.name)), el("dd", {}, el("small", {}, "not measured"))])));
    putTooltip(tooltip, box, x(value), 20);
    return `${title}: ${measured.map((line) => `${line.name} ${line.labels[place]}`).join(", ")}`;
  }

  const under = (event) => nearest(chart.places.map(([place]) => x(place)), event.clientX - box.getBoundingClientRect().left);
  const clear = explore(box, said, { ...along(() => chart.places.length), place: under, show });
  atEachWidth(box, redraw);
  return {
    redraw,
    show(next) {
      chart = next;
      name(chart.label, chart.y.title, chart.x.title);
      redraw();
    },
  };
}

// A legend; pressing an entry hides or shows its series.
function legend(into, series, hidden, redraw) {
  const entries = series.map(({ name, style }) => {
    const flip = () => {
      hidden.delete(name) || hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      redraw();
    };
    const button = el("button", { type: "button", "aria-pressed": "true", onclick: flip }, named(style, name));
    return el("li", {}, button);
  });
  into.append(el("ul", { class: "legend", "aria-label": "Series; press to hide or show" }, entries));
}

// Sorted differences, one bar for each client. `words(client)` returns further tooltip rows: [[name, value], ...].
function differenceChart(into, chart, words = () => []) {
  const { box, said, tooltip, name, put } = chartBox(into);
  name(chart.label, chart.y.title, "clients, from the largest gain to the largest loss");
  const height = 200;
  const values = chart.labels.map((label) => Number(label.replace("−", "-")));
  const y = scale(chart.y, height - 8, 8);
  const left = 40;
  let x, each, mark;

  function redraw() {
    clear();
    const width = box.clientWidth || 640;
    each = (width - left - 8) / values.length;
    x = (i) => left + i * each;
    const svg = draw("svg", { height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    svg.append(...chart.y.ticks.flatMap((tick) => gridLine(y, left, width - 8, tick)));
    const gap = each > 5 ? Math.min(each * 0.2, 4) : 0;
    for (const [style, sign] of [[chart.gain, 1], [chart.loss, -1]]) {
      const bars = values.map((value, i) => (value * sign > 0 ? `M${(x(i) + gap / 2).toFixed(2)} ${y(0).toFixed(1)}V${y(value).toFixed(1)}h${(each - gap).toFixed(2)}V${y(0).toFixed(1)}Z` : ""));
      svg.append(draw("path", { class: "filled", colour: style.colour, d: bars.join("") }));
    }
    svg.append(draw("line", { class: "axis", x1: left, x2: width - 8, y1: y(0), y2: y(0) }));
    if (chart.ties) {
      const [first, last, label] = chart.ties;
      svg.append(draw("line", { class: "ties", x1: x(first) + gap / 2, x2: x(last + 1) - gap / 2, y1: y(0), y2: y(0) }));
      svg.append(draw("text", { class: "tie", x: (x(first) + x(last + 1)) / 2, y: y(0) - 9, "text-anchor": "middle" }, label));
    }
    svg.append((mark = draw("g")));
    put(svg);
  }

  function show(place) {
    mark?.replaceChildren();
    tooltip.hidden = true;
    if (place === null) return "";
    const middle = x(place) + each / 2;
    mark.append(draw("line", { class: "cross", x1: middle, x2: middle, y1: 8, y2: height - 8 }));
    const client = chart.clients[place];
    const rows = [...words(client), ["difference", `${chart.labels[place]} points`]];
    tooltip.replaceChildren(el("b", {}, `Client ${client}`), el("dl", {}, rows.flatMap(([what, value]) => [el("dt", {}, what), el("dd", {}, value)])));
    putTooltip(tooltip, box, middle, 30);
    return `Client ${client}: ${rows.map((pair) => pair.join(" ")).join(", ")}`;
  }

  const under = (event) => Math.min(Math.max(Math.floor((event.clientX - box.getBoundingClientRect().left - left) / each), 0), values.length - 1);
  const clear = explore(box, said, { ...along(() => values.length), place: under, show });
  atEachWidth(box, redraw);
}

// A custom property's colour as [red, green, blue], for a canvas.
function resolved(node, property) {
  const probe = el("i", { style: `color: var(${property}); display: none` });
  node.append(probe);
  const parsed = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parsed;
}

const mixed = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));

// Counts by class (rows) and client (columns). `counts` has [class, count, class, count, ...] for each client.
function heatMap(into, { label, names, counts, low: least, high: most, every }) {
  into.append(el("p", { class: "ramp" }, `${least}`, el("i"), `${most} training samples`));
  const { box, said, tooltip, name } = chartBox(into);
  name(label, "", "Point at a cell, or focus the map and use the arrow keys.");
  const rowHeight = names.length <= 30 ? 24 : 12;
  const table = counts.map((own) => {
    const row = new Array(names.length).fill(0);
    for (let i = 0; i < own.length; i += 2) row[own[i]] = own[i + 1];
    return row;
  });
  const canvas = el("canvas");
  const wide = el("div", { class: "wide" }, canvas);
  const labels = el("ol", { "aria-hidden": "true" }, names.map((name, i) => el("li", { style: `height: ${rowHeight}px; line-height: ${rowHeight}px`, title: name }, i % every.names ? "" : name)));
  box.append(el("div", { class: "heat" }, labels, el("div", { class: "shaded" }, wide)));
  shade(wide);
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
        const share = most > least ? (count - least) / (most - least) : 1;
        pen.fillStyle = `rgb(${count ? mixed(low, high, share) : none})`;
        pen.fillRect(client * cell, label * rowHeight, cell - gap, rowHeight - 1);
        if (numbers && count) {
          pen.fillStyle = `rgb(${share > 0.5 ? surface : ink})`;
          pen.fillText(count, client * cell + cell / 2, label * rowHeight + rowHeight / 2);
        }
      }),
    );
    pen.fillStyle = `rgb(${muted})`;
    table.forEach((_, client) => client % every.clients || pen.fillText(client, client * cell + cell / 2, names.length * rowHeight + 13));
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
  atEachWidth(box, redraw);
  onTheme(redraw);
}

// Shades the edges of a scrolling box beyond which there is more, and says below it that it scrolls sideways.
function shade(box) {
  const outer = box.parentElement;
  const hint = el("p", { class: "sideways", "aria-hidden": "true" }, "scroll sideways for more ›");
  (outer.closest(".chart") ?? outer).after(hint); // not within a chart, which observes its own size
  const update = () => {
    outer.toggleAttribute("data-left", box.scrollLeft > 1);
    outer.toggleAttribute("data-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    hint.toggleAttribute("data-needed", box.clientWidth < box.scrollWidth - 1);
    outer.toggleAttribute("data-below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
  };
  box.addEventListener("scroll", update, { passive: true });
  const watch = new ResizeObserver(update);
  for (const node of [box, ...box.children]) watch.observe(node);
}

// A bar and its value.
const measure = (style, share, words) =>
  el("div", { class: "measure" }, el("span", { class: "track" }, el("i", { colour: style.colour, style: `width: ${100 * share}%` })), el("span", {}, words));

// columns: [{title, number?, style?, values, labels?}], with one value for each row; `labels`, if given, are shown instead of the values.
function sortableTable(into, { label, columns, hint, limit = 500 }) {
  const body = el("tbody");
  let by = { column: 0, down: false };

  const heads = columns.map((column, number) => {
    const press = () => {
      by = { column: number, down: by.column === number ? !by.down : Boolean(column.number) && number > 0 };
      redraw();
    };
    return el("th", { scope: "col", class: column.number ? "number" : null }, el("button", { type: "button", onclick: press }, column.title));
  });

  function cell({ number, style, values, labels, code }, row, place) {
    const words = labels?.[row] ?? values[row];
    const shown = style ? measure(style, values[row], words) : code ? el("code", {}, words) : words;
    return el(place ? "td" : "th", { scope: place ? null : "row", class: number ? "number" : null }, shown);
  }

  function redraw() {
    const { values } = columns[by.column];
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    const sorted = values.map((_, row) => row).sort((a, b) => (by.down ? -1 : 1) * order(values[a], values[b]));
    heads.forEach((head, number) => {
      if (number === by.column) head.setAttribute("aria-sort", by.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted.slice(0, limit).map((row) => el("tr", {}, columns.map((column, place) => cell(column, row, place)))));
  }

  redraw();
  const table = el("table", {}, el("thead", {}, el("tr", {}, heads)), body);
  const box = el("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": `${label}; scroll with the arrow keys` }, table);
  into.append(el("div", { class: "shaded" }, box), el("p", { class: "hint" }, hint));
  shade(box);
}

// Copies the text before a button, or selects it if the browser forbids copying.
function copies(button) {
  const source = button.previousElementSibling;
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
}

const listeners = [];
const onTheme = (listener) => listeners.push(listener);

// Switches between light and dark; the default is the system's setting.
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
    // A browser may forbid a local file to use storage.
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("fedmrl-theme", root.dataset.theme);
    } catch {
      // Then the choice is lost when the page is closed.
    }
    changed();
  });
  system.addEventListener("change", changed);
  changed();
}

const select = (label, options, chosen, onchange) =>
  el("label", {}, label, el("select", { onchange: (event) => onchange(event.target.value) }, options.map(([value, words]) => el("option", { value, selected: value === chosen }, words))));

byId("to-glossary").addEventListener("click", () => (byId("glossary").open = true));
document.querySelectorAll(".copy").forEach(copies);
document.querySelectorAll(".scroll").forEach(shade);
themeButton(byId("theme"));
