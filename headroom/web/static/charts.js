// Draws /api/v1/usage with uPlot: a line per broker, the limit, marks where a throttle time was announced.
"use strict";
(function () {
  const EVERY_MS = 10000;
  const COLORS = ["#3b82f6", "#d97706", "#16a34a", "#db2777", "#7c3aed", "#0891b2"];

  function joined(brokers) {
    const times = [...new Set(Object.values(brokers).flatMap((broker) => broker.at))].sort((a, b) => a - b);
    const place = new Map(times.map((at, index) => [at, index]));
    const limit = new Array(times.length).fill(null), throttles = new Array(times.length).fill(null);
    const lines = Object.entries(brokers).map(([id, broker]) => {
      const line = new Array(times.length).fill(null);
      broker.at.forEach((at, n) => {
        line[place.get(at)] = broker.rate[n];
        if (broker.limit[n] !== null) limit[place.get(at)] = broker.limit[n];
        if (broker.throttle_ms[n] > 0) throttles[place.get(at)] = broker.rate[n];
      });
      return { id, line };
    });
    return { times, lines, limit, throttles };
  }

  function amount(value) {
    if (value === null || value === undefined) return "-";
    for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]]) if (value >= size) return (value / size).toFixed(1) + " " + unit;
    return value.toFixed(0) + " B/s";
  }

  function draw(figure, usage) {
    const { times, lines, limit, throttles } = joined(usage.brokers);
    const text = getComputedStyle(document.body).color;
    const axis = { stroke: text, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    const series = [{}].concat(
      lines.map(({ id }, n) => ({ label: "broker " + id, stroke: COLORS[n % COLORS.length], value: (_, v) => amount(v) })),
      [{ label: "limit", stroke: "#dc2626", dash: [6, 4], value: (_, v) => amount(v) },
       { label: "throttled", stroke: "#dc2626", paths: () => null, points: { show: true, size: 6 }, value: (_, v) => (v === null ? "" : "yes") }]);
    const size = { width: Math.max(figure.clientWidth - 4, 280), height: 240 };
    if (figure.plot) figure.plot.destroy();
    figure.plot = new uPlot({ ...size, series, axes: [axis, { ...axis, size: 80, values: (_, ticks) => ticks.map(amount) }], scales: { y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.05] } } },
      [times, ...lines.map(({ line }) => line), limit, throttles], figure);
    figure.dataset.points = String(times.length);
  }

  async function refresh(figure) {
    try {
      const answer = await fetch(figure.dataset.usage);
      if (answer.ok) draw(figure, await answer.json());
    } catch (_) { /* the next turn asks again */ }
  }

  for (const figure of document.querySelectorAll("figure[data-usage]")) {
    refresh(figure);
    setInterval(() => refresh(figure), EVERY_MS);
  }
})();
