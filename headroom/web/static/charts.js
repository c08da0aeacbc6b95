// Draws /api/v1/usage with uPlot: a line per broker, the limit and the shares of it where levels begin, bands where the client was
// muted, marks where its quota was changed and where it restarted, which are told in words too, and one metric of the
// client on a second axis. The range is in the link. Below it the forecast of the utilisation, with the same axis of time.
"use strict";
(function () {
  const EVERY_MS = 10000, FORECAST_STEP_S = 300, PAPER_PX = 700;
  // Of ticks by their distance in seconds: what is shown, and what besides when the day changes.
  const TIMES = [[86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{YYYY}-{MM}-{DD}", null, null, null, 1], [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{YYYY}-{MM}-{DD}", null, null, null, 1]];
  const COLORS = ["#3b82f6", "#d97706", "#16a34a", "#db2777", "#7c3aed", "#0891b2"];
  const CHANGED = "\u25b2", RESTARTED = "\u25c6", MOST_TOLD = 10;
  const UNITS = {
    request_percentage: (value) => value.toFixed(1) + " %",
    controller_mutation_rate: (value) => value.toFixed(1) + " mutations/s",
    connection_creation_rate: (value) => value.toFixed(1) + " connections/s",
  };
  let range = (document.querySelector("figure[data-usage]") || { dataset: {} }).dataset.range || "15m";
  const metricList = document.getElementById("metric");

  function bytes(value) {
    for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]]) if (value >= size) return (value / size).toFixed(1) + " " + unit;
    return value.toFixed(0) + " B/s";
  }

  const amount = (key) => (value) => (value === null || value === undefined ? "-" : (UNITS[key] || bytes)(value));

  const measure = (unit) => (value) => (value === null || value === undefined ? "-" : (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(2)) + (unit && " " + unit));

  function joined(usage) {
    const brokers = Object.entries(usage.brokers), metric = usage.metric;
    const times = [...new Set([...brokers.flatMap(([, broker]) => broker.at), ...(metric ? metric.at : [])])].sort((a, b) => a - b);
    const place = new Map(times.map((at, index) => [at, index]));
    const empty = () => new Array(times.length).fill(null);
    const limit = empty(), muted = new Map(), own = empty();
    const lines = brokers.map(([id, broker]) => {
      const line = empty();
      broker.at.forEach((at, n) => {
        line[place.get(at)] = broker.rate[n];
        if (broker.limit[n] !== null) limit[place.get(at)] = Math.min(broker.limit[n], limit[place.get(at)] === null ? Infinity : limit[place.get(at)]);
        const share = Math.min(broker.muted_ms[n] / (1000 * usage.step), 1) || (broker.throttle_ms[n] > 0 ? 0.1 : 0);
        if (share > 0) muted.set(at, Math.max(share, muted.get(at) || 0));
      });
      return { id, line };
    });
    if (metric) metric.at.forEach((at, n) => { own[place.get(at)] = metric.value[n]; });
    return { times, lines, limit, muted, own };
  }

  const isLocal = () => document.documentElement.dataset.zone === "local";
  const zoned = (at) => (isLocal() ? new Date(at * 1000) : uPlot.tzDate(new Date(at * 1000), "Etc/UTC"));

  // Behind the lines: bands where the client was muted, shares of the limit; in front: marks of changes.
  function marks(state) {
    function bands(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
      const columns = new Map();  // each column of pixels is painted once: bands on each other would be too dark
      for (const [at, share] of state.muted) {
        const left = Math.round(plot.valToPos(at, "x", true)), right = Math.round(plot.valToPos(at + state.step, "x", true));
        for (let x = left; x < Math.max(right, left + 1); x++) columns.set(x, Math.max(share, columns.get(x) || 0));
      }
      for (const [x, share] of columns) {
        ctx.fillStyle = `rgba(220, 38, 38, ${0.12 + 0.3 * share})`;
        ctx.fillRect(x, bbox.top, 1, bbox.height);
      }
      if (state.last !== null) {
        ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`; ctx.textAlign = "right";
        const steps = state.steps.map(({ share }) => [share, Math.round(100 * share) + " %"]);
        for (const [n, [share, text]] of [...steps, [1, "limit " + state.amount(state.last)]].entries()) {
          const y = plot.valToPos(share * state.last, "y", true);
          ctx.strokeStyle = "rgba(220, 38, 38, .6)"; ctx.setLineDash([2, 6]);
          if (share < 1) { ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke(); }
          const isLeft = n < steps.length - 1;  // the highest share is below the limit, both at the right edge
          ctx.fillStyle = textColor(); ctx.textAlign = isLeft ? "left" : "right";
          ctx.textBaseline = n === steps.length - 1 ? "top" : "bottom";
          ctx.fillText(text, isLeft ? bbox.left + 4 : bbox.left + bbox.width - 4, share < 1 ? y : y - 3 * devicePixelRatio);  // above the thick line
        }
      }
      ctx.restore();
    }
    function changes(plot) {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.fillStyle = ctx.strokeStyle = textColor(); ctx.textAlign = "center"; ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      for (const [marked, symbol, above] of [[state.changes, CHANGED, 0], [state.restarts, RESTARTED, 14 * devicePixelRatio]]) {
        for (const { at } of marked) {  // one above the other when both are at one time
          const x = plot.valToPos(at, "x", true);
          if (x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillText(symbol, x, bbox.top + bbox.height - above);
        }
      }
      ctx.restore();
    }
    return { hooks: { drawClear: [bands], draw: [changes] } };
  }

  function options(figure, state, usage) {
    const show = amount(figure.dataset.key);
    state.amount = show;
    const own = usage.metric ? measure(usage.metric.unit) : null;
    const series = [timeSeries()].concat(
      state.lines.map(({ id }, n) => ({ label: "broker " + id, stroke: COLORS[n % COLORS.length], value: (_, v) => show(v), points: { show: state.times.length < 3 } })),
      [{ label: "limit", stroke: "#dc2626", width: 2, dash: [6, 4], value: (_, v) => show(v), points: { show: false } }],
      own ? [{ label: usage.metric.name, scale: "own", stroke: "#0891b2", spanGaps: true, value: (_, v) => own(v) }] : []);
    const axes = [timeAxis(), { ...AXIS, size: 84, values: (_, ticks) => ticks.map(show) }]
      .concat(own ? [{ ...AXIS, side: 1, scale: "own", size: 84, values: (_, ticks) => ticks.map(own), grid: { show: false } }] : []);
    return {
      ...sizeOf(figure), series, axes, tzDate: zoned, plugins: [marks(state)],
      scales: { x: { range: (_, low, high) => (figure.zoom ? [low, high] : [usage.from_s, usage.to_s]) }, y: { range: (_, low, high) => [0, Math.max(high || 0, state.last || 0, 1) * 1.1] } },
      hooks: { setSelect: [(plot) => zoomed(figure, plot)] },
    };
  }

  // Asked for at each drawing: the theme may change while the page is open, and paper is white in every theme.
  let isPrinted = false;
  const textColor = () => (isPrinted ? "#000" : getComputedStyle(document.body).color);
  const AXIS = { stroke: textColor, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const timeAxis = () => ({ ...AXIS, values: TIMES, label: isLocal() ? "local time" : "UTC", labelSize: 16, labelGap: 0 });
  const timeSeries = () => ({ label: isLocal() ? "time" : "time (UTC)", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" });
  const sizeOf = (figure) => ({ width: isPrinted ? PAPER_PX : Math.max(figure.clientWidth - 4, 280), height: 250 });

  // The utilisation that is expected: the median, and the band in which eight of ten outcomes are.
  function foretell(figure) {
    const { made_s, p10, p50, p90 } = JSON.parse(figure.dataset.forecast);
    const times = p50.map((_, step) => made_s + step * FORECAST_STEP_S), show = (share) => (share === null || share === undefined ? "-" : (100 * share).toFixed(1) + " %");
    const line = (label, more) => ({ label, stroke: COLORS[0], value: (_, share) => show(share), points: { show: false }, ...more });
    const faint = { stroke: COLORS[0] + "55", width: 1 }, highest = Math.max(1, ...p90);
    if (figure.plot) figure.plot.destroy();
    const place = figure.querySelector(".plot");
    place.replaceChildren();
    figure.plot = new uPlot({
      ...sizeOf(figure), tzDate: zoned, bands: [{ series: [3, 1], fill: COLORS[0] + "33" }],
      series: [timeSeries(), line("10 %", faint), line("median", { width: 2 }), line("90 %", faint), line("limit", { stroke: "#dc2626", width: 2, dash: [6, 4] })],
      axes: [timeAxis(), { ...AXIS, size: 84, values: (_, ticks) => ticks.map(show) }],
      scales: { x: { range: [times[0], times[times.length - 1]] }, y: { range: [0, highest * 1.08] } },
    }, [times, p10, p50, p90, times.map(() => 1)], place);
  }

  // A new forecast is a new figure; those that are drawn stay.
  const foretellAll = (anew) => document.querySelectorAll("figure[data-forecast]").forEach((figure) => { if (anew || !figure.plot) foretell(figure); });

  function zoomed(figure, plot) {
    if (plot.select.width < 4) return;
    const span = [plot.select.left, plot.select.left + plot.select.width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ width: 0, height: 0 }, false);
    zoomTo(figure, span);
  }

  // Two times; null: back to the range.
  function zoomTo(figure, span) {
    figure.zoom = span && span.map(Math.round);
    if (span && figure.zoom[1] - figure.zoom[0] < 2) figure.zoom[1] = figure.zoom[0] + 2;
    if (span) figure.dataset.zoom = figure.zoom.join(" "); else delete figure.dataset.zoom;
    refresh(figure, true);
  }

  // What a pointer does, by keys.
  function pressed(figure, event) {
    if (!figure.state || event.altKey || event.ctrlKey || event.metaKey) return;
    const { from_s, to_s } = figure.state.usage, [from, to] = figure.zoom || [from_s, to_s], quarter = (to - from) / 4;
    const spans = { "+": [from + quarter, to - quarter], ArrowLeft: [from - quarter, to - quarter], ArrowRight: [from + quarter, to + quarter], Escape: null };
    if (!(event.key in spans)) return;
    event.preventDefault();
    zoomTo(figure, spans[event.key]);
  }

  // The marks in words, newest first: a canvas says nothing to a screen reader.
  function told(figure, usage) {
    const show = amount(figure.dataset.key), clock = uPlot.fmtDate("{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}"), value = (limit) => (limit === null ? "none" : show(limit));
    const when = (at) => clock(zoned(at)) + (isLocal() ? " local time" : " UTC"), named = (entity) => entity.replace(/\p{C}/gu, "\ufffd");
    const found = [
      ...usage.changes.map(({ at, entity, before, after }) => [at, `${CHANGED} ${when(at)} quota of ${named(entity)}: ${value(before)} to ${value(after)}`]),
      ...usage.restarts.map(({ at, instances }) => [at, `${RESTARTED} ${when(at)} ${instances > 1 ? instances + " new instances" : "a new instance"}`]),
    ].sort(([one], [other]) => other - one).map(([, text]) => text);
    const lines = found.slice(0, MOST_TOLD).concat(found.length > MOST_TOLD ? [`and ${found.length - MOST_TOLD} earlier`] : []);
    if (figure.told === lines.join("\n")) return;  // nothing moves under a selection
    figure.told = lines.join("\n");
    figure.querySelector(".marks").replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  }

  function draw(figure, usage, anew) {
    const found = joined(usage), state = figure.state || {};
    Object.assign(state, found, { step: usage.step, steps: usage.steps, changes: usage.changes, restarts: usage.restarts, last: found.limit.reduce((last, value) => (value === null ? last : value), null) });
    const data = [found.times, ...found.lines.map(({ line }) => line), found.limit, ...(usage.metric ? [found.own] : [])];
    const shape = JSON.stringify([found.lines.map(({ id }) => id), usage.metric && usage.metric.name, isLocal()]);
    if (figure.plot && !anew && figure.shape === shape) {  // in place: the pointer's reading stays
      state.usage.from_s = usage.from_s; state.usage.to_s = usage.to_s;
      figure.plot.setData(data, true);
    } else {
      if (figure.plot) figure.plot.destroy();
      state.usage = usage;
      figure.state = state; figure.shape = shape;
      const place = figure.querySelector(".plot");
      figure.plot = new uPlot(options(figure, state, usage), data, place);
      figure.plot.over.addEventListener("dblclick", () => zoomTo(figure, null));
    }
    figure.dataset.points = String(found.times.length);
    figure.dataset.muted = String(found.muted.size);
    told(figure, usage);
    figure.dataset.shown = range;
  }

  async function refresh(figure, anew) {
    const span = figure.zoom ? `&from=${figure.zoom[0]}&to=${figure.zoom[1]}` : `&range=${range}`;
    const metric = metricList && metricList.value ? `&metric=${encodeURIComponent(metricList.value)}` : "";
    let said = "The usage cannot be read now.";  // the next turn asks again
    try {
      const answer = await fetch(figure.dataset.usage + span + metric), usage = await answer.json();
      if (answer.ok) {
        draw(figure, usage, anew);
        said = figure.dataset.points === "0" ? "No usage was recorded in this time." : "";
      } else {
        said = `The usage cannot be read now: ${usage.error}.`;
      }
    } catch (_) { /* no answer, or that of a proxy */ }
    figure.querySelector(".unread").textContent = said;
  }

  const figures = () => document.querySelectorAll("figure[data-usage]");
  const all = (anew) => figures().forEach((figure) => refresh(figure, anew));

  for (const link of document.querySelectorAll("a[data-range]")) link.addEventListener("click", (event) => {
    event.preventDefault();
    range = link.dataset.range;
    history.replaceState(null, "", link.href);
    document.querySelectorAll("a[data-range]").forEach((one) => (one === link ? one.setAttribute("aria-current", "true") : one.removeAttribute("aria-current")));
    figures().forEach((figure) => { figure.zoom = null; delete figure.dataset.zoom; });
    all(true);
  });
  document.addEventListener("keydown", (event) => { const plot = event.target.closest("figure[data-usage] .plot"); if (plot) pressed(plot.parentNode, event); });
  if (metricList) metricList.addEventListener("change", () => all(true));
  document.addEventListener("headroom:zone", () => { all(true); foretellAll(true); });
  document.addEventListener("headroom:refreshed", () => foretellAll(false));
  const fitAll = () => document.querySelectorAll("figure[data-usage], figure[data-forecast]").forEach((figure) => figure.plot && figure.plot.setSize(sizeOf(figure)));
  addEventListener("resize", fitAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fitAll);
  for (const [event, begins] of [["beforeprint", true], ["afterprint", false]]) addEventListener(event, () => { isPrinted = begins; fitAll(); });
  all(true);
  foretellAll(false);
  setInterval(() => {
    if (document.hidden || document.documentElement.dataset.paused === "yes") return;
    // A zoomed chart that was read stands still.
    figures().forEach((figure) => { if (!figure.zoom || figure.querySelector(".unread").textContent) refresh(figure, false); });
  }, EVERY_MS);
})();
