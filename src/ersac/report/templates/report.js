"use strict";
// The curves, maps and tables of a report. Names come from files of other people: they reach the
// page as text nodes only, and plotly, which reads a few tags, with their brackets escaped.
(() => {
const byId = (id) => document.getElementById(id);
const LEVELS = 65535, GRID = 240, MAX_AGENTS = 12, ARROWS = 40, FRAME_MS = 450, DECADES = 3;
const COLOURS = ["#0b84a5", "#e4572e", "#8a5ac2", "#2e9e5b", "#d98e04", "#d1487f", "#5c6bc0",
  "#7a8b00", "#00a6a6", "#a0643c"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const LABELS = {
  goals: "share of the last 100 episodes that reached the goal",
  return: "mean return of the last 100 episodes",
  bonus: "bonus, sigma² / (2 tau)", tau: "tau", sigma: "sigma", entropy: "entropy of the policy",
  mean_length: "mean length of the last 100 episodes", value: "value",
  staleness: "staleness, rollouts", payoff: "payoff", critic: "loss of the critic",
  reward: "loss of the estimator", loss: "loss",
};
const PANELS = ["goals", "return", "bonus", "entropy", "tau", "sigma"];
const LOG_PANELS = ["bonus", "tau", "sigma"];
const state = { env: null, quantity: null, axis: "episodes", mode: "bands", smooth: 0,
  logX: false, logY: false, hidden: new Set(), map: null, frame: null };
let data = JSON.parse(byId("data").textContent);
let timer = null;

// Data

const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const decoded = new WeakMap();
function decodeLevels(packed) {
  if (packed.floats) return decodeAxes(packed, "floats");
  if (!decoded.has(packed)) {
    const levels = new Uint16Array(bytes(packed.data).buffer);
    const scale = (packed.high - packed.low) / (LEVELS - 1);
    decoded.set(packed, Float64Array.from(levels, (level) =>
      level === LEVELS ? NaN : packed.low + level * scale));
  }
  return decoded.get(packed);
}
function decodeAxes(axes, name) {
  const store = decoded.get(axes) || {};
  decoded.set(axes, store);
  store[name] ||= new Float32Array(bytes(axes[name]).buffer);
  return store[name];
}
const plotText = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const quantityLabel = (name) => LABELS[name] || name.replaceAll("_", " ");
const colourOf = (index) => COLOURS[index % COLOURS.length];
const dashOf = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function groupsOf(env) {
  return data.groups.map((group, index) => ({ ...group, index }))
    .filter((group) => group.env === env);
}
function quantitiesOf(env) {
  const names = new Set();
  for (const group of groupsOf(env))
    for (const seed of group.seeds) Object.keys(seed.values).forEach((name) => names.add(name));
  const rank = (name) => (PANELS.includes(name) ? PANELS.indexOf(name) : PANELS.length);
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}

// Curves

function smoothed(values, width) {
  if (!width) return values;
  const out = new Float64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    let total = 0, count = 0;
    for (let j = Math.max(0, i - width); j <= Math.min(values.length - 1, i + width); j++)
      if (Number.isFinite(values[j])) { total += values[j]; count++; }
    out[i] = count ? total / count : NaN;
  }
  return out;
}
function curveOf(seed, quantity) {
  const packed = seed.values[quantity];
  if (!packed) return null;
  const x = decodeAxes(seed.axes[packed.axes], state.axis);
  const y = smoothed(decodeLevels(packed), Number(state.smooth));
  return x.length ? { x, y } : null;
}
function interpolate(curve, at) {
  // Linear between points, nothing before the first, the last value after the end.
  const { x, y } = curve, out = new Float64Array(at.length);
  let j = 0;
  for (let i = 0; i < at.length; i++) {
    while (j + 1 < x.length && x[j + 1] <= at[i]) j++;
    if (at[i] < x[0]) out[i] = NaN;
    else if (j + 1 >= x.length || x[j + 1] === x[j]) out[i] = y[j];
    else out[i] = y[j] + (y[j + 1] - y[j]) * (at[i] - x[j]) / (x[j + 1] - x[j]);
  }
  return out;
}
function gridOf(curves) {
  let low = Infinity, high = 0;
  for (const { x } of curves) { low = Math.min(low, x[0]); high = Math.max(high, x[x.length - 1]); }
  low = Math.max(low, state.logX ? 1 : 0);
  const share = (i) => i / (GRID - 1);
  return Array.from({ length: GRID }, (_, i) => state.logX && high > low
    ? low * (high / low) ** share(i) : low + (high - low) * share(i));
}
function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}
function storedBand(packed) {
  const parts = { x: decodeAxes(packed, "x") };
  for (const name of ["low", "middle", "high"])
    parts[name] = smoothed(decodeLevels(packed[name]), Number(state.smooth));
  return parts;
}
function bandOf(curves) {
  const x = gridOf(curves), rows = curves.map((curve) => interpolate(curve, x));
  const parts = { low: [], middle: [], high: [] };
  for (let i = 0; i < x.length; i++) {
    const values = rows.map((row) => row[i]).filter(Number.isFinite).sort((a, b) => a - b);
    const enough = values.length >= curves.length / 2;  // not the curve of the few that began
    parts.low.push(enough ? quantile(values, 0.25) : null);
    parts.middle.push(enough ? quantile(values, 0.5) : null);
    parts.high.push(enough ? quantile(values, 0.75) : null);
  }
  return { x, ...parts };
}
function bandTraces({ x, ...parts }, isSingle, style) {
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false,
    legendgroup: style.group, visible: style.visible, type: "scatter" };
  const band = isSingle ? [] : [{ ...edge, y: parts.low },
    { ...edge, y: parts.high, fill: "tonexty", fillcolor: style.colour + "2e" }];
  return [...band, { ...style.line, x, y: parts.middle }];
}
function seedTraces(curves, style) {
  // One trace with gaps: as quick to draw and to hide as a single curve.
  const x = [], y = [];
  for (const curve of curves) {
    x.push(...curve.x, null);
    y.push(...curve.y, null);
  }
  return [{ ...style.line, x, y, opacity: curves.length > 8 ? 0.55 : 0.85, connectgaps: false,
    line: { ...style.line.line, width: 1.3 } }];
}
function tracesOf(quantity, showLegend) {
  const traces = [];
  for (const group of groupsOf(state.env)) {
    const curves = group.seeds.map((seed) => curveOf(seed, quantity)).filter(Boolean);
    if (!curves.length) continue;
    const visible = state.hidden.has(group.label) ? "legendonly" : true;
    const colour = colourOf(group.index), name = plotText(group.label);
    const style = { colour, visible, group: group.label, line: { type: "scatter", mode: "lines",
      name, legendgroup: group.label, visible, showlegend: showLegend,
      line: { color: colour, width: 2.4, dash: dashOf(group.index) },
      hovertemplate: "%{y:.4~g} at %{x:,.0f}" } };
    const stored = group.bands[quantity]?.[state.axis];
    traces.push(...(state.mode === "seeds" ? seedTraces(curves, style)
      : bandTraces(stored ? storedBand(stored) : bandOf(curves), group.total < 2, style)));
  }
  return traces;
}
function layoutOf(quantity, small) {
  const axis = { gridcolor: css("--grid"), zeroline: false, linecolor: css("--line"),
    automargin: true, exponentformat: "power", nticks: small ? 5 : undefined };
  const log = small ? LOG_PANELS.includes(quantity) : state.logY;
  const y = { ...axis, type: log ? "log" : "linear" };
  if (quantity === "goals" && !log) Object.assign(y, { range: [-0.02, 1.02], tickformat: ".0%" });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--ink"), size: small ? 11 : 12, family: "inherit" },
    margin: small ? { l: 8, r: 8, t: 6, b: 8 } : { l: 10, r: 10, t: 10, b: 10 },
    xaxis: { ...axis, type: state.logX ? "log" : "linear",
      title: small ? undefined : { text: state.axis === "steps" ? "environment steps of a seed" : "episodes of a seed" } },
    yaxis: { ...y, title: small ? undefined : { text: plotText(quantityLabel(quantity)) } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--plot-line"), activecolor: css("--accent") },
    showlegend: !small && innerWidth > 640, hovermode: "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, maxheight: 0.25 },
  };
}
const CONFIG = { responsive: true, displaylogo: false, showTips: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

function drawPlot(div, quantity, small) {
  const config = small || innerWidth <= 640 ? { ...CONFIG, displayModeBar: false } : CONFIG;
  Plotly.react(div, tracesOf(quantity, !small), layoutOf(quantity, small), config);
  const shown = groupsOf(state.env).filter((group) => !state.hidden.has(group.label));
  div.setAttribute("aria-label", `${quantityLabel(quantity)} against ${state.axis}: ` +
    (shown.map((group) => group.label).join("; ") || "no agent is shown"));
}
function toggleAgent(label) {
  state.hidden.has(label) ? state.hidden.delete(label) : state.hidden.add(label);
  drawCurves();
}
function isolateAgent(label) {
  const others = groupsOf(state.env).map((group) => group.label).filter((name) => name !== label);
  const alone = others.every((name) => state.hidden.has(name)) && !state.hidden.has(label);
  others.forEach((name) => alone ? state.hidden.delete(name) : state.hidden.add(name));
  state.hidden.delete(label);
  drawCurves();
}
function drawAgents() {
  byId("agents").replaceChildren(...groupsOf(state.env).map((group) => {
    const button = document.createElement("button"), swatch = document.createElement("i");
    swatch.style.background = colourOf(group.index);
    button.type = "button";
    button.setAttribute("aria-pressed", String(!state.hidden.has(group.label)));
    button.append(swatch, group.label);
    button.addEventListener("click", () => {
      toggleAgent(group.label);
      [...byId("agents").children].find((other) => other.textContent === group.label)?.focus();
    });
    return button;
  }));
}
function drawPanels() {
  const wanted = quantitiesOf(state.env).filter((name) => PANELS.includes(name) && name !== state.quantity);
  const home = byId("panels");
  if (home.dataset.names !== wanted.join()) {
    home.querySelectorAll(".small").forEach((div) => Plotly.purge(div));
    home.replaceChildren(...wanted.map((name) => {
      const panel = document.createElement("div"), title = document.createElement("h3");
      const plot = document.createElement("div");
      panel.className = "panel"; plot.className = "small"; plot.setAttribute("role", "img");
      title.textContent = quantityLabel(name) + (LOG_PANELS.includes(name) ? ", log scale" : "");
      panel.append(title, plot);
      return panel;
    }));
    home.dataset.names = wanted.join();
  }
  wanted.forEach((name, i) => drawPlot(home.children[i].querySelector(".small"), name, true));
}
function drawCurves() {
  const section = byId("curves"), envs = [...new Set(data.groups.map((group) => group.env))];
  section.hidden = !envs.length;
  if (!envs.length) return;
  state.env = fillSelect("env", envs, envs, state.env);
  byId("env").parentElement.hidden = envs.length < 2;
  const names = quantitiesOf(state.env);
  state.quantity = fillSelect("quantity", names, names.map(quantityLabel), state.quantity);
  if (!state.quantity) { section.hidden = true; return; }
  drawAgents();
  drawPlot(byId("main-plot"), state.quantity, false);
  const thinned = groupsOf(state.env).filter((group) => group.seeds.length < group.total);
  byId("curve-note").textContent = state.mode === "bands"
    ? "Line: median over seeds. Band: the middle half of the seeds. A seed that has ended counts with its last value."
    : thinned.map((group) => `${group.label}: ${group.seeds.length} of ${group.total.toLocaleString("en")} seeds.`).join(" ");
  drawPanels();
}
function fillSelect(id, values, labels, chosen) {
  const select = byId(id), value = values.includes(chosen) ? chosen : values[0];
  if (select.dataset.values !== JSON.stringify(values)) {
    select.replaceChildren(...values.map((item, i) => new Option(labels[i], item)));
    select.dataset.values = JSON.stringify(values);
  }
  select.value = value ?? "";
  return value;
}

// Maps

function frameOf(map, index) {
  const depth = map.depth, frame = map.frames[index];
  const square = (cells) => {
    const rows = [];
    for (let row = 0, at = 0; row < depth; row++)
      rows.push(Array.from({ length: depth }, (_, column) => column <= row ? cells[at++] : null));
    return rows;
  };
  const visits = Array.from(decodeLevels(frame.log_visits), (level) => Math.round(Math.expm1(level)));
  return { episode: frame.episode, visits: square(visits),
    sigma: square(decodeLevels(frame.sigma)), right: frame.right && square(bytes(frame.right)) };
}
function greedyPath(right) {
  const path = [[0, 0]];
  for (let row = 0, column = 0; row < right.length - 1; row++) {
    column = Math.max(0, column + (right[row][column] ? 1 : -1));
    path.push([row + 1, column]);
  }
  return path;
}
function mapLayout(depth) {
  const axis = { visible: false, range: [-0.6, depth - 0.4], fixedrange: true };
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--ink"), size: 11, family: "inherit" }, showlegend: false,
    margin: { l: 4, r: 4, t: 4, b: 34 }, xaxis: axis,
    yaxis: { ...axis, range: [depth - 0.4, -0.6], scaleanchor: "x" },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink") } } };
}
const bar = (title) => ({ orientation: "h", y: -0.02, yanchor: "top", thickness: 9, len: 0.9,
  outlinewidth: 0, title: { text: title, side: "bottom" }, tickfont: { size: 10 } });

function drawMaps() {
  byId("maps").hidden = !data.maps.length;
  if (!data.maps.length) return;
  const names = data.maps.map((map) => map.run);
  state.map = fillSelect("map-run", names, data.maps.map((map) => `${map.run} (${map.label})`), state.map);
  byId("map-note").textContent = `First seed of the run. Sigma is the largest over actions.` +
    ` The line is where the greedy actions lead; the treasure is at the bottom right.` +
    (Number(byId("runs-table")?.dataset.maps) > names.length
      ? ` ${names.length} of ${byId("runs-table").dataset.maps} runs with maps are in this page.` : "");
  const map = data.maps.find((item) => item.run === state.map), slider = byId("frame");
  slider.max = map.frames.length - 1;
  if (state.frame === null) state.frame = map.frames.length - 1;
  state.frame = Math.min(state.frame, map.frames.length - 1);
  slider.value = state.frame;
  drawFrame(map);
}
function drawFrame(map) {
  const frame = frameOf(map, state.frame), layout = mapLayout(map.depth);
  const path = frame.right ? greedyPath(frame.right) : null;
  const options = { responsive: true, displayModeBar: false };
  const line = !path ? [] : [{ type: "scatter", mode: "lines", hoverinfo: "skip",
    x: path.map((cell) => cell[1]), y: path.map((cell) => cell[0]),
    line: { color: "#ffffff", width: 2.2 } }];
  if (path) line.unshift({ ...line[0], line: { color: "#06222acc", width: 4.4 } });
  const treasure = { type: "scatter", mode: "markers", hoverinfo: "skip", x: [map.depth - 1],
    y: [map.depth - 1], marker: { symbol: "star", size: 12, color: "#ffd54a",
      line: { color: "#7a5b00", width: 1 } } };
  const heat = { type: "heatmap", xgap: map.depth > 40 ? 0 : 1, ygap: map.depth > 40 ? 0 : 1,
    hoverongaps: false };
  const log = frame.visits.map((row) => row.map((count) => count ? Math.log10(count) : null));
  const top = Math.max(1, Math.log10(Math.max(1, map.max_visits)));
  const ticks = Array.from({ length: Math.floor(top) + 1 }, (_, i) => i);
  Plotly.react("map-visits", [{ ...heat, z: log, customdata: frame.visits, zmin: 0, zmax: top,
    colorscale: [[0, "#0c3b5e"], [0.5, "#1fa3b4"], [1, "#e9f7c8"]],
    hovertemplate: "row %{y}, column %{x}: %{customdata:,} visits<extra></extra>",
    colorbar: { ...bar(""), tickvals: ticks, ticktext: ticks.map((i) => (10 ** i).toLocaleString("en")) } },
    ...line, treasure], layout, options);
  drawSigma(map, frame, heat, [...line, treasure], layout, options);
  byId("policy-figure").hidden = !frame.right;
  if (frame.right) drawPolicy(map, frame, heat, line, treasure, layout, options);
  describeFrame(map, frame, path);
}
function drawSigma(map, frame, heat, above, layout, options) {
  // Logarithmic, over at most three powers of ten below the largest of the run.
  const high = Math.log10(map.max_sigma || 1), low = high - DECADES;
  const z = frame.sigma.map((row) => row.map((sigma) =>
    sigma === null ? null : Math.max(low, Math.log10(Math.max(sigma, 1e-30)))));
  const ticks = Array.from({ length: DECADES + 1 }, (_, i) => Math.floor(high) - i)
    .filter((tick) => tick >= low);
  Plotly.react("map-sigma", [{ ...heat, z, customdata: frame.sigma, zmin: low, zmax: high,
    colorscale: [[0, "#1b1035"], [0.35, "#7b2a7f"], [0.7, "#ef6a5a"], [1, "#fdeaa8"]],
    hovertemplate: "row %{y}, column %{x}: sigma %{customdata:.3g}<extra></extra>",
    colorbar: { ...bar(""), tickvals: ticks, ticktext: ticks.map((tick) => `${+(10 ** tick).toPrecision(3)}`) } },
    ...above], layout, options);
}
function drawPolicy(map, frame, heat, line, treasure, layout, options) {
  const arrows = { type: "scatter", mode: "markers", hoverinfo: "skip", x: [], y: [],
    marker: { symbol: "triangle-up", color: css("--card"), angle: [],
      size: Math.max(3, Math.min(11, 150 / map.depth)) } };
  if (map.depth <= ARROWS) frame.right.forEach((row, y) => row.forEach((right, x) => {
    if (right === null) return;
    arrows.x.push(x); arrows.y.push(y); arrows.marker.angle.push(right ? 135 : 225);
  }));
  const text = frame.right.map((row) => row.map((right) => right ? "right" : "left"));
  Plotly.react("map-policy", [{ ...heat, z: frame.right, zmin: 0, zmax: 1, customdata: text,
    colorscale: [[0, css("--left")], [0.5, css("--left")], [0.5, css("--right")], [1, css("--right")]],
    hovertemplate: "row %{y}, column %{x}: %{customdata}<extra></extra>",
    colorbar: { ...bar(""), tickvals: [0.25, 0.75], ticktext: ["left", "right"] } },
    arrows, ...line, treasure], layout, options);
}
function describeFrame(map, frame, path) {
  const cells = frame.visits.flat().filter((count) => count !== null);
  const share = Math.round(100 * cells.filter((count) => count > 0).length / cells.length);
  const lead = !path ? "" : path.at(-1)[1] === map.depth - 1 && frame.right[map.depth - 1][map.depth - 1]
    ? "; the greedy actions reach the treasure" : "; the greedy actions do not reach the treasure";
  const text = `After episode ${frame.episode.toLocaleString("en")}: ${share} % of the cells that can be reached were visited${lead}.`;
  byId("map-readout").textContent = text;
  byId("frame").setAttribute("aria-valuetext", `episode ${frame.episode.toLocaleString("en")}`);
  for (const id of ["map-visits", "map-sigma", "map-policy"])
    byId(id).setAttribute("aria-label", text);
}
function setPlaying(playing) {
  clearInterval(timer);
  timer = playing ? setInterval(nextFrame, FRAME_MS) : null;
  byId("play").textContent = playing ? "Pause" : "Play";
  byId("play").setAttribute("aria-pressed", String(playing));
  byId("map-readout").setAttribute("aria-live", playing ? "off" : "polite");
}
function nextFrame() {
  const last = Number(byId("frame").max);
  if (state.frame >= last) { setPlaying(false); return; }
  state.frame++;
  drawMaps();
}

// Tables

const sorting = {};  // by table: [column, direction]
function sortTable(table) {
  const [column, direction] = sorting[table.id] || [];
  if (column === undefined) return;
  const key = (body) => {
    const cell = body.rows[0].cells[column], number = cell.dataset.number;
    return number === undefined ? cell.textContent.trim() : Number(number.replace("inf", "Infinity"));
  };
  const compare = (a, b) => typeof a === typeof b
    ? (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }))
    : typeof a === "number" ? -1 : 1;
  const rows = [...table.tBodies].map((body) => [key(body), body]);
  rows.sort((a, b) => direction * compare(a[0], b[0]));
  table.append(...rows.map((row) => row[1]));
  [...table.tHead.rows[0].cells].forEach((cell, i) => cell.setAttribute("aria-sort",
    i !== column ? "none" : direction > 0 ? "ascending" : "descending"));
}
function filterRuns() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const body of byId("runs-table").tBodies) {
    const text = body.rows[0].textContent.toLowerCase();
    body.hidden = !words.every((word) => text.includes(word));
  }
}
function expandRun(button) {
  const row = button.closest("tbody").rows[1];
  row.hidden = !row.hidden;
  button.setAttribute("aria-expanded", String(!row.hidden));
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.closest("thead")) {
    const table = button.closest("table"), column = button.parentElement.cellIndex;
    const before = sorting[table.id] || [];
    sorting[table.id] = [column, before[0] === column ? -before[1] : 1];
    sortTable(table);
  } else if (button?.classList.contains("more")) expandRun(button);
});
document.addEventListener("input", (event) => { if (event.target.id === "filter") filterRuns(); });
document.addEventListener("submit", (event) => event.preventDefault());

// Live

function showContent(content) {
  const open = new Set([...document.querySelectorAll(".more[aria-expanded=true]")].map((b) => b.textContent));
  const filter = byId("filter").value, searching = document.activeElement?.id === "filter";
  const scroll = document.querySelector(".scroll.tall")?.scrollTop;
  byId("overview").innerHTML = content.tables.overview;  // escaped by the template
  byId("details").innerHTML = content.tables.details;
  document.querySelectorAll(".more").forEach((b) => { if (open.has(b.textContent)) expandRun(b); });
  byId("filter").value = filter;
  if (searching) byId("filter").focus();
  document.querySelectorAll("table.sortable").forEach(sortTable);
  filterRuns();
  if (scroll) document.querySelector(".scroll.tall").scrollTop = scroll;
  const map = data.maps.find((item) => item.run === state.map);
  if (map && state.frame === map.frames.length - 1) state.frame = null;  // follow the newest
  data = content.data;
  drawAll();
}
async function poll(tag) {
  let next = tag;
  try {
    const response = await fetch("content.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (response.status === 200) { next = response.headers.get("ETag"); showContent(await response.json()); }
    byId("live").textContent = `follows the runs, ${new Date().toLocaleTimeString("en-GB")}`;
    byId("live").classList.remove("lost");
  } catch {
    byId("live").textContent = "the server has ended";
    byId("live").classList.add("lost");
  }
  setTimeout(poll, liveSeconds * 1000, next);
}

// Start

function drawAll() { drawCurves(); drawMaps(); }
for (const [id, name] of [["env", "env"], ["quantity", "quantity"], ["axis", "axis"], ["mode", "mode"],
  ["smooth", "smooth"]])
  byId(id).addEventListener("input", (event) => { state[name] = event.target.value; drawCurves(); });
for (const [id, name] of [["log-x", "logX"], ["log-y", "logY"]])
  byId(id).addEventListener("input", (event) => { state[name] = event.target.checked; drawCurves(); });
byId("map-run").addEventListener("input", (event) => {
  state.map = event.target.value; state.frame = null; setPlaying(false); drawMaps(); });
byId("frame").addEventListener("input", (event) => {
  state.frame = Number(event.target.value); setPlaying(false); drawMaps(); });
byId("play").addEventListener("click", () => {
  if (timer) { setPlaying(false); return; }
  if (state.frame >= Number(byId("frame").max)) { state.frame = 0; drawMaps(); }
  setPlaying(true);
});
const THEMES = [["", "as the system"], ["dark", "dark"], ["light", "light"]];
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, now = root.dataset.theme || "";
  const [theme, label] = THEMES[(THEMES.findIndex((item) => item[0] === now) + 1) % THEMES.length];
  theme ? (root.dataset.theme = theme) : delete root.dataset.theme;
  byId("theme").textContent = `Theme: ${label}`;
  drawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
for (const env of new Set(data.groups.map((group) => group.env)))
  groupsOf(env).slice(MAX_AGENTS).forEach((group) => state.hidden.add(group.label));
drawAll();
byId("main-plot").on?.("plotly_legendclick", (event) => {
  toggleAgent(event.data[event.curveNumber].legendgroup); return false; });
byId("main-plot").on?.("plotly_legenddoubleclick", (event) => {
  isolateAgent(event.data[event.curveNumber].legendgroup); return false; });
const liveSeconds = Number(document.body.dataset.liveSeconds);
if (liveSeconds) poll(null);
})();
