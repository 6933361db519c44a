// The script of the report page: draws the charts and answers the controls. It loads nothing and stores nothing.
// All text from run folders goes through textContent, never through markup.
"use strict";
(() => {
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7, DASHES = ["", "7 3", "2 3", "9 3 2 3"], LISTED = 12;
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const one = (query, root = document) => root.querySelector(query);
const all = (query, root = document) => [...root.querySelectorAll(query)];
const view = { axis: 0, smooth: 0, seeds: true, log: false, hidden: new Set(), zoom: new Map() };
let data, seen, drawn;  // the numbers; observer of what is on the screen; charts there

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function shape(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// Numbers

function human(value, digits = 4) {
  if (!Number.isFinite(value)) return "–";
  value = Number(value.toPrecision(digits));
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) return value.toExponential().replace("e+", "e").replaceAll("-", "−");
  const [scale, suffix] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"], [0, ""]].find(([limit]) => size >= limit);
  return String(Number((value / (scale || 1)).toPrecision(digits))).replace("-", "−") + suffix;
}

function lasting(seconds) {
  return seconds < 120 ? `${human(seconds)} s` : seconds < 7200 ? `${human(seconds / 60)} min` : `${human(seconds / 3600)} h`;
}

function ticks(low, high, count) {
  if (!(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high), 1e-140))) return [low];
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const off = (spacing) => Math.abs((high - low) / spacing - count);
  const spacing = [1, 2, 5, 10].map((factor) => factor * power).reduce((a, b) => (off(b) < off(a) ? b : a));
  const found = [];
  for (let k = Math.ceil(low / spacing - 1e-9); k <= Math.floor(high / spacing + 1e-9); k++)
    found.push(Number((k * spacing).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.ceil(low - 1e-9); power <= Math.floor(high + 1e-9); power++) found.push(power);
  const step = Math.ceil(found.length / 6) || 1;
  return found.length > 1 ? found.filter((_, k) => k % step === 0) : ticks(low, high, 4);
}

function smoothed(values) {  // exponential moving average without the bias of its start
  if (!view.smooth || !values) return values;
  let sum = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = view.smooth * sum + (1 - view.smooth) * value;
    weight = view.smooth * weight + 1 - view.smooth;
    return sum / weight;
  });
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && Math.abs(xs[low - 1] - x) <= Math.abs(xs[low] - x) ? low - 1 : low;
}

// What a chart shows at the moment

function chartOf(figure) {
  const [section, place] = figure.dataset.chart.split(".").map(Number);
  return { section, key: figure.dataset.chart, ...data.sections[section].charts[place] };
}

function keyOf(chart, line) {
  return chart.own ? `${chart.key}:${line.n}` : `${chart.section}:${line.r}`;
}

function nameOf(chart, line) {
  return chart.own ? line.n : data.sections[chart.section].runs[line.r].n;
}

function colourOf(chart, line) {
  return chart.own ? line.c : data.sections[chart.section].runs[line.r].c;
}

function axisOf(chart) {
  return chart.fixed ? 0 : view.axis;
}

function visible(chart) {
  const axis = axisOf(chart);
  return chart.lines.filter((line) => !view.hidden.has(keyOf(chart, line))).map((line) => ({
    name: nameOf(chart, line), key: keyOf(chart, line), colour: colourOf(chart, line),
    x: data.x[line.x][axis], steps: data.x[line.x][0], walls: data.x[line.x][1],
    y: smoothed(line.y), low: smoothed(line.l), high: smoothed(line.h),
    seeds: view.seeds ? (line.e || []).map(([x, y, name]) => ({ x: data.x[x][axis], y: smoothed(y), name })) : [],
    allSeeds: line.e || [],
  })).filter((line) => line.x.some((x) => x !== null));
}

function zoomKey(chart) {
  return chart.fixed ? chart.key : `${chart.section}/${view.axis}`;
}

function unitOf(chart, high) {  // of the horizontal axis: divisor and name
  if (chart.fixed) return [1, chart.fixed];
  if (!view.axis) return [1, "steps"];
  return high > 7200 ? [3600, "hours"] : high > 120 ? [60, "minutes"] : [1, "seconds"];
}

// Drawing

function extent(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) if (value !== null && Number.isFinite(value)) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function xRange(chart, lines) {
  const zoom = view.zoom.get(zoomKey(chart));
  if (zoom) return zoom;
  let [low, high] = extent(lines.flatMap((line) => [line.x, ...line.seeds.map((seed) => seed.x)]));
  if (low > high) return [0, 1];
  if (low > 0 && low < 0.2 * high) low = 0;
  return high > low ? [low, high] : [low > 0 ? 0 : low - 0.5, high + (low > 0 ? 0 : 0.5)];
}

function yRange(chart, lines, [left, right], log) {  // follows means and seeds; bands may be cut off
  const inside = (x, y) => y.filter((_, k) => x[k] !== null && x[k] >= left && x[k] <= right);
  const curves = lines.flatMap((line) => [inside(line.x, line.y), ...line.seeds.map((seed) => inside(seed.x, seed.y))]);
  let [low, high] = extent(curves);
  if (low > high) return [0, 1];
  if (log) {
    [low, high] = [Math.log10(low), Math.log10(high)];
    return high > low ? [low - 0.04 * (high - low), high + 0.04 * (high - low)] : [low - 0.5, high + 0.5];
  }
  const span = high - low;
  const bands = lines.flatMap((line) => (line.low ? [inside(line.x, line.low), inside(line.x, line.high)] : []));
  const [bandLow, bandHigh] = extent(bands);
  const positive = low >= 0;
  low = Math.min(low, Math.max(bandLow, low - 0.25 * span));
  high = Math.max(high, Math.min(bandHigh, high + 0.25 * span));
  const air = high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? 0.04 * (high - low) : 0.1 * Math.abs(high) || 1;
  [low, high] = [low - air, high + air];
  return [positive && low < 0.35 * high ? 0 : low, high];
}

function build(chart, width, height, options = {}) {
  const lines = visible(chart), colour = options.colour || ((place) => `var(--curve-${(place % COLOURS) + 1})`);
  const ink = options.ink || "currentColor";
  const svg = document.createElementNS(SVG, "svg");
  const set = (name, value) => svg.setAttribute(name, value);
  set("viewBox", `0 0 ${width} ${height}`); set("width", width); set("height", height);
  set("font-family", FONT); set("font-size", "12"); set("fill", ink);
  let top = options.top || 8;
  const xs = xRange(chart, lines), log = view.log && extent(lines.map((line) => line.y))[0] > 0;
  const ys = yRange(chart, lines, xs, log);
  const yTicks = log ? logTicks(...ys) : ticks(...ys, Math.max(3, Math.min(6, height / 46)));
  const label = (tick) => human(log ? 10 ** tick : tick, Math.abs(tick) > 1e4 || log ? 4 : 6);
  const left = 12 + 6.8 * Math.max(1, ...yTicks.map((tick) => label(tick).length)), right = width - 14;
  const bottom = height - 34;
  const px = (x) => left + ((x - xs[0]) / (xs[1] - xs[0])) * (right - left);
  const py = (y) => bottom - (((log ? Math.log10(y) : y) - ys[0]) / (ys[1] - ys[0])) * (bottom - top);
  const back = (x) => xs[0] + ((x - left) / (right - left)) * (xs[1] - xs[0]);
  if (options.title) {
    shape(svg, "text", { x: 8, y: 18, "font-size": 14, "font-weight": 600 }, chart.t);
    if (chart.u) shape(svg, "text", { x: 8, y: 34, "font-size": 11, opacity: 0.7 }, chart.u);
  }
  for (const tick of yTicks) {
    const y = bottom - ((tick - ys[0]) / (ys[1] - ys[0])) * (bottom - top);
    shape(svg, "line", { x1: left, x2: right, y1: y, y2: y, stroke: ink, "stroke-opacity": tick === 0 && !log ? 0.45 : 0.13 });
    shape(svg, "text", { x: left - 6, y: y + 4, "text-anchor": "end", "fill-opacity": 0.8 }, label(tick));
  }
  const [divisor, unit] = unitOf(chart, xs[1]);
  for (const tick of ticks(xs[0] / divisor, xs[1] / divisor, Math.max(2, Math.min(7, (right - left) / 80)))) {
    const x = px(tick * divisor);
    shape(svg, "line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, stroke: ink, "stroke-opacity": 0.45 });
    shape(svg, "text", { x, y: bottom + 16, "text-anchor": "middle", "fill-opacity": 0.8 }, human(tick));
  }
  shape(svg, "text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle", "font-size": 11, "fill-opacity": 0.7 }, unit);
  const plot = shape(svg, "svg", { x: left - 3, y: top - 3, width: right - left + 6, height: bottom - top + 6,
    viewBox: `${left - 3} ${top - 3} ${right - left + 6} ${bottom - top + 6}`, overflow: "hidden" });
  const drawable = (x, y) => x !== null && y !== null && (!log || y > 0);
  const path = (x, y) => {
    let text = "", open = false;
    for (let k = 0; k < y.length; k++) {
      if (!drawable(x[k], y[k])) { open = false; continue; }
      text += `${open ? "L" : "M"}${px(x[k]).toFixed(1)} ${Math.max(-9999, Math.min(9999, py(y[k]))).toFixed(1)}`;
      open = true;
    }
    return text;
  };
  for (const line of lines) if (line.low) {
    const good = line.x.map((x, k) => k).filter((k) => drawable(line.x[k], line.low[k]) && drawable(line.x[k], line.high[k]));
    if (good.length < 2) continue;
    const down = [...good].reverse();
    const edge = path([...good, ...down].map((k) => line.x[k]), [...good.map((k) => line.high[k]), ...down.map((k) => line.low[k])]);
    shape(plot, "path", { d: `${edge}Z`, fill: colour(line.colour), "fill-opacity": 0.15, "data-key": line.key });
  }
  for (const line of lines) for (const seed of line.seeds)
    shape(plot, "path", { d: path(seed.x, seed.y), fill: "none", stroke: colour(line.colour), "stroke-width": 1, "stroke-opacity": 0.35, "data-key": line.key });
  for (const line of lines) {
    const dash = DASHES[Math.floor(line.colour / COLOURS) % DASHES.length];
    const look = { fill: "none", stroke: colour(line.colour), "stroke-width": lines.length > 30 ? 1.2 : 2, "stroke-linejoin": "round", "stroke-linecap": "round", "data-key": line.key };
    if (dash) look["stroke-dasharray"] = dash;
    shape(plot, "path", { d: path(line.x, line.y), ...look });
    if (line.y.length <= 30 && lines.length <= 10)
      line.y.forEach((y, k) => drawable(line.x[k], y) && shape(plot, "circle", { cx: px(line.x[k]).toFixed(1), cy: py(y).toFixed(1), r: 2.4, fill: colour(line.colour), "data-key": line.key }));
  }
  if (!lines.length) shape(svg, "text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle", "fill-opacity": 0.7 }, chart.lines.length ? "all curves are switched off" : "no data");
  return { svg, lines, xs, left, right, top, bottom, px, py, back, plot, divisor, unit };
}

function draw(figure) {
  const holder = one(".plot", figure), chart = chartOf(figure);
  const width = Math.max(220, Math.floor(holder.clientWidth));
  const height = figure.classList.contains("wide") ? 480 : figure.parentElement.classList.contains("large") ? 300 : 210;
  const built = build(chart, width, height), svg = built.svg;
  svg.setAttribute("aria-hidden", "true");
  figure.built = built;
  holder.replaceChildren(svg);
  holder.setAttribute("aria-label", `${chart.t}: chart. Arrow keys read values, plus and minus zoom, 0 shows all.`);
  if (figure.at !== undefined) point(figure, figure.at);
}

function redraw(section) {
  for (const figure of drawn) if (section === undefined || figure.dataset.chart.startsWith(`${section}.`)) draw(figure);
}

// Values under the pointer

function point(figure, x, pointerY) {
  const { svg, lines, xs, left, right, top, bottom, px, py, divisor, unit } = figure.built, chart = chartOf(figure);
  x = Math.min(xs[1], Math.max(xs[0], x));
  figure.at = x;
  one(".cross", svg)?.remove();
  const cross = shape(svg, "g", { class: "cross" });
  let rows = lines.map((line) => {
    const k = nearest(line.x, x);
    return { line, k, x: line.x[k] ?? null, y: line.y[k] ?? null };  // a line without a mean has no points
  }).filter((row) => row.x !== null && row.y !== null && Math.abs(px(row.x) - px(x)) < Math.max(40, (right - left) / 8));
  const level = rows.length && pointerY !== undefined
    ? rows.reduce((a, b) => (Math.abs(py(b.y) - pointerY) < Math.abs(py(a.y) - pointerY) ? b : a)) : null;
  const at = level || rows[0];
  if (at) x = at.x;
  shape(cross, "line", { x1: px(x), x2: px(x), y1: top, y2: bottom, stroke: "currentColor", "stroke-opacity": 0.5, "stroke-dasharray": "3 3" });
  const total = rows.length;
  if (total > LISTED && level) rows = [...rows].sort((a, b) => Math.abs(py(a.y) - pointerY) - Math.abs(py(b.y) - pointerY)).slice(0, LISTED);
  rows = [...rows].sort((a, b) => b.y - a.y).slice(0, LISTED);
  for (const row of rows) shape(cross, "circle", { cx: px(row.x), cy: py(row.y), r: 3.5, fill: `var(--curve-${(row.line.colour % COLOURS) + 1})`, stroke: "var(--card)" });
  const tip = one(".tip", figure);
  const wall = at ? at.line.walls[at.k] : null;
  const where = !chart.fixed && at ? `step ${human(at.line.steps[at.k], 6)}${wall === null ? "" : `, ${lasting(wall)}`}` : `${unit} ${human(x / divisor)}`;
  tip.replaceChildren(make("div", { class: "where" }, where), ...rows.map((row) => {
    const { line, k } = row;
    const band = line.low && line.low[k] !== null ? ` (${human(line.low[k])} to ${human(line.high[k])})` : "";
    const swatch = make("i", { class: "swatch" });
    swatch.style.background = `var(--curve-${(line.colour % COLOURS) + 1})`;
    const text = make("span", {}, lines.length > 1 ? `${line.name} ` : "", make("b", {}, human(row.y)), band);
    const entry = make("div", {}, swatch, text);
    if (level === row && lines.length > 1) entry.className = "level";
    return entry;
  }), ...(total > rows.length ? [make("div", { class: "where" }, `and ${total - rows.length} more`)] : []));
  tip.hidden = !rows.length;
  const holder = one(".plot", figure), room = holder.clientWidth;
  const place = px(x) * (room / Number(svg.getAttribute("width")));
  tip.style.left = tip.style.right = "";
  if (place > room / 2) tip.style.right = `${Math.max(0, room - place + 12)}px`; else tip.style.left = `${place + 12}px`;
}

function unpoint(figure) {
  figure.at = undefined;
  one(".cross", figure)?.remove();
  one(".tip", figure).hidden = true;
}

function zoomTo(chart, range) {
  if (range && range[1] - range[0] > 0) view.zoom.set(zoomKey(chart), range); else view.zoom.delete(zoomKey(chart));
  redraw(chart.section);
}

function scaled(figure, factor) {
  const { xs } = figure.built, centre = figure.at ?? (xs[0] + xs[1]) / 2;
  return [centre - (centre - xs[0]) * factor, centre + (xs[1] - centre) * factor];
}

function listen(figure) {
  const holder = one(".plot", figure);
  const place = (event) => {
    const box = holder.getBoundingClientRect();
    const factor = Number(figure.built.svg.getAttribute("width")) / box.width;
    return [(event.clientX - box.left) * factor, (event.clientY - box.top) * factor];
  };
  let start = null;
  holder.addEventListener("pointermove", (event) => {
    if (!figure.built) return;
    const [x, y] = place(event), { svg, back, top, bottom, left, right } = figure.built;
    point(figure, back(x), y);
    if (start !== null) {
      one(".zoom", svg)?.remove();
      const [a, b] = [start, x].map((at) => Math.min(right, Math.max(left, at))).sort((p, q) => p - q);
      shape(svg, "rect", { class: "zoom", x: a, width: b - a, y: top, height: bottom - top, fill: "currentColor", "fill-opacity": 0.12 });
    }
  });
  holder.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || !figure.built) return;
    start = place(event)[0];
    holder.setPointerCapture(event.pointerId);
  });
  holder.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const { back, left, right } = figure.built;
    const [a, b] = [start, place(event)[0]].map((at) => Math.min(right, Math.max(left, at))).sort((p, q) => p - q);
    start = null;
    one(".zoom", figure)?.remove();
    if (b - a > 6) zoomTo(chartOf(figure), [back(a), back(b)]);
  });
  holder.addEventListener("pointerleave", () => { if (document.activeElement !== holder) unpoint(figure); });
  holder.addEventListener("blur", () => unpoint(figure));
  holder.addEventListener("dblclick", () => zoomTo(chartOf(figure), null));
  holder.addEventListener("keydown", (event) => {
    const { xs, lines } = figure.built, chart = chartOf(figure), step = (xs[1] - xs[0]) * 0.25;
    const points = lines.length ? lines.reduce((a, b) => (b.x.length > a.x.length ? b : a)).x.filter((x) => x !== null && x >= xs[0] && x <= xs[1]) : [];
    const move = (by) => {
      if (!points.length) return;
      const now = figure.at === undefined ? (by > 0 ? -1 : points.length) : nearest(points, figure.at);
      point(figure, points[Math.min(points.length - 1, Math.max(0, now + by))]);
    };
    const actions = {
      ArrowLeft: () => (event.shiftKey ? zoomTo(chart, [xs[0] - step, xs[1] - step]) : move(-1)),
      ArrowRight: () => (event.shiftKey ? zoomTo(chart, [xs[0] + step, xs[1] + step]) : move(1)),
      Home: () => move(-points.length), End: () => move(points.length),
      "+": () => zoomTo(chart, scaled(figure, 0.5)), "=": () => zoomTo(chart, scaled(figure, 0.5)),
      "-": () => zoomTo(chart, scaled(figure, 2)), 0: () => zoomTo(chart, null),
      Escape: () => { zoomTo(chart, null); unpoint(figure); },
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  });
}

// Downloads

function save(name, type, content) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(chart, ending) {
  return `${chart.t.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "_").replace(/^_|_$/g, "").slice(0, 60) || "chart"}.${ending}`;
}

function csv(chart) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = [["curve", "seed", chart.fixed || "step", "wall_s", "value", "low", "high"]];
  for (const line of chart.lines) {
    const name = nameOf(chart, line), [steps, walls] = data.x[line.x];
    line.y.forEach((y, k) => rows.push([name, line.e?.length ? "mean" : "", steps[k], walls[k], y, line.l?.[k], line.h?.[k]]));
    for (const [x, y, seed] of line.e || []) y.forEach((value, k) => rows.push([name, seed, data.x[x][0][k], data.x[x][1][k], value, "", ""]));
  }
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function picture(chart) {  // a file of its own: colours written out, title and legend inside
  const look = getComputedStyle(document.documentElement);
  const colour = (place) => look.getPropertyValue(`--curve-${(place % COLOURS) + 1}`).trim();
  const ink = look.getPropertyValue("--ink").trim(), width = 720;
  const lines = visible(chart), named = lines.length > 1 ? lines.slice(0, 40) : [];
  let x = 8, y = 54;
  const spots = named.map((line) => {
    const needed = 30 + 7 * line.name.length;
    if (x > 8 && x + needed > width) { x = 8; y += 18; }
    x += needed;
    return [x - needed, y, line];
  });
  const top = (named.length ? y + 12 : 46), { svg } = build(chart, width, 380 + top, { colour, ink, top, title: true });
  for (const [left, base, line] of spots) {
    shape(svg, "rect", { x: left, y: base - 7, width: 16, height: 4, fill: colour(line.colour) });
    shape(svg, "text", { x: left + 21, y: base }, line.name);
  }
  const back = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: look.getPropertyValue("--card").trim() })) back.setAttribute(name, value);
  svg.prepend(back);
  svg.setAttribute("xmlns", SVG);
  return { text: new XMLSerializer().serializeToString(svg), width, height: 380 + top };
}

function savePng(chart) {
  const { text, width, height } = picture(chart), image = new Image();
  image.onload = () => {
    const canvas = make("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => save(fileName(chart, "png"), "image/png", blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

// Controls

function toggle(keys, on) {
  for (const key of keys) if (on) view.hidden.delete(key); else view.hidden.add(key);
  for (const chip of all(".chip[data-key]")) chip.setAttribute("aria-pressed", String(!view.hidden.has(chip.dataset.key)));
  redraw();
}

function chip(name, colour, key, siblings) {
  const swatch = make("i", { class: "swatch" });
  swatch.style.background = `var(--curve-${(colour % COLOURS) + 1})`;
  const light = (on) => {
    for (const path of all("[data-key]", one("main"))) if (path instanceof SVGElement) path.classList.toggle("dim", on && path.dataset.key !== key);
  };
  return make("button", { type: "button", class: "chip", "data-key": key, "aria-pressed": String(!view.hidden.has(key)),
    title: "click: show or hide; double click: this one only",
    onclick: () => toggle([key], view.hidden.has(key)),
    ondblclick: () => { toggle(siblings(), false); toggle([key], true); },
    onpointerenter: () => light(true), onpointerleave: () => light(false) }, swatch, name);
}

function legend(holder) {
  const section = Number(holder.dataset.legend), { runs } = data.sections[section];
  const keys = runs.map((_, place) => `${section}:${place}`);
  holder.replaceChildren(...runs.map((run, place) => chip(run.n, run.c, keys[place], () => keys)));
  if (runs.length > 3) holder.append(
    make("button", { type: "button", class: "chip plain", onclick: () => toggle(keys, true) }, "show all"),
    make("button", { type: "button", class: "chip plain", onclick: () => toggle(keys, false) }, "hide all"));
}

function prepare(figure) {
  const chart = chartOf(figure);
  const button = (text, action) => make("button", { type: "button", onclick: action }, text);
  const menu = make("details", { class: "menu" }, make("summary", { "aria-label": `Download or enlarge ${chart.t}`, title: "Download or enlarge" }, "⋯"),
    make("div", { class: "choices" },
      button("CSV", () => save(fileName(chart, "csv"), "text/csv", csv(chart))),
      button("SVG", () => save(fileName(chart, "svg"), "image/svg+xml", picture(chart).text)),
      button("PNG", () => savePng(chart)),
      button("Enlarge", (event) => { event.target.textContent = figure.classList.toggle("wide") ? "Shrink" : "Enlarge"; draw(figure); })));
  one("figcaption", figure).append(menu);
  if (chart.own) {
    const keys = chart.lines.map((line) => keyOf(chart, line));
    one("figcaption", figure).after(make("div", { class: "legend" }, ...chart.lines.map((line) => chip(line.n, line.c, keyOf(chart, line), () => keys))));
  }
  const holder = one(".plot", figure);
  holder.setAttribute("tabindex", "0");
  holder.setAttribute("role", "group");
  figure.append(make("div", { class: "tip", role: "status", hidden: true }));
  listen(figure);
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  const figures = all("figure[data-chart]");
  for (const figure of figures) {
    const { t, m } = chartOf(figure), known = `${t} ${m}`.toLowerCase();
    figure.hidden = !words.every((word) => known.includes(word));
    found += !figure.hidden;
  }
  for (const fold of all("details.fold")) {
    const some = all("figure[data-chart]", fold).some((figure) => !figure.hidden);
    if (words.length && some && !fold.open) { fold.open = true; fold.dataset.searched = ""; }
    if (!words.length && fold.dataset.searched !== undefined) { fold.open = false; delete fold.dataset.searched; }
  }
  one("#found").textContent = words.length ? `${found} of ${figures.length} charts` : "";
}

function sortable(table) {
  all("thead th", table).forEach((head, column) => {
    const button = make("button", { type: "button", class: "sort", onclick: () => {
      const down = head.getAttribute("aria-sort") !== "descending", body = one("tbody", table);
      for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.children[column].dataset.v ?? row.children[column].textContent;
      const order = (a, b) => {
        const [p, q] = [value(a), value(b)], number = Number(p) - Number(q);
        return Number.isNaN(number) ? String(p).localeCompare(String(q)) : number;
      };
      body.append(...[...body.children].sort((a, b) => (down ? order(b, a) : order(a, b))));
    } }, ...head.childNodes);
    head.replaceChildren(button);
  });
}

function theme() {
  const root = document.documentElement, order = ["", "light", "dark"];
  const next = order[(order.indexOf(root.dataset.theme || "") + 1) % 3];
  if (next) root.dataset.theme = next; else delete root.dataset.theme;
  one("#theme").textContent = `Theme: ${next || "auto"}`;
}

// Set up the content of <main>; in a live page again whenever it has been replaced.
function setUp() {
  data = JSON.parse(one("#data").textContent);
  drawn = new Set();
  seen?.disconnect();
  seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) { drawn.add(target); draw(target); } else drawn.delete(target);
    }
  }, { rootMargin: "200px" });
  all("[data-legend]").forEach(legend);
  all("figure[data-chart]").forEach((figure) => { prepare(figure); seen.observe(figure); });
  all("table.sortable").forEach(sortable);
  for (const fold of all("details")) fold.addEventListener("toggle", () => redraw());
}

function start() {
  setUp();
  const bar = one("#controls");
  const controls = data.sections.some((section) => section.charts.length);
  bar.hidden = !controls;
  one("#search").addEventListener("input", (event) => search(event.target.value));
  one("#axis").addEventListener("change", (event) => { view.axis = Number(event.target.value); redraw(); });
  one("#smooth").addEventListener("input", (event) => {
    view.smooth = Number(event.target.value);
    one("#smoothness").textContent = view.smooth.toFixed(2);
    redraw();
  });
  one("#seeds").addEventListener("change", (event) => { view.seeds = event.target.checked; redraw(); });
  one("#log").addEventListener("change", (event) => { view.log = event.target.checked; redraw(); });
  one("#theme").addEventListener("click", theme);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); one("#search").focus(); }
  });
  document.addEventListener("click", (event) => {
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  const live = one("meta[name=packtrain-live]");
  if (live) follow(1000 * Number(live.content));
}

function follow(every) {
  let tag = null;
  const look = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(60000), headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status === 200) {
        const before = tag;
        tag = answer.headers.get("ETag");
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (before && one("main", page)) {
          const open = new Set(all("details.fold[open]").map((fold) => fold.dataset.fold));
          one("main").replaceWith(document.adoptNode(one("main", page)));
          for (const fold of all("details.fold")) fold.open ||= open.has(fold.dataset.fold);
          setUp();
          search(one("#search").value);
        }
      }
      one("#live").textContent = answer.ok || answer.status === 304 ? "live" : "the server does not answer";
    } catch { one("#live").textContent = "the server does not answer"; }
    setTimeout(look, every);
  };
  look();
}

start();
})();
