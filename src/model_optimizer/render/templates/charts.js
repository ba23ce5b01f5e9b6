// Draws the data in #chart-data with Observable Plot. All choices (units, scales, words) were made where the data was made.
(function () {
  "use strict";
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const COLOR = { winner: "var(--accent)", nearest: "var(--ink)", other: "var(--other)", baseline: "var(--base)" };
  const FONT = 12;

  const format = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    const text = size >= 1000 ? v.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(v.toPrecision(3)));
    return text.replace("-", "−");
  };
  // The unit stands once on an axis: at its last tick.
  const ticked = (ticks, unit) => (v) => format(v) + (unit && v === ticks[ticks.length - 1] ? " " + unit : "");

  function ticksOf(domain, log, count) {
    if (!log) return d3.ticks(domain[0], domain[1], count);
    const decades = d3.range(Math.floor(Math.log10(domain[0])), Math.ceil(Math.log10(domain[1])) + 1);
    const within = (steps) => decades.flatMap((d) => steps.map((m) => Number((m * Math.pow(10, d)).toPrecision(3))))
      .filter((v) => v >= domain[0] && v <= domain[1]);
    return [[1, 2, 5], [1, 3]].map(within).find((some) => some.length <= count + 1) || within([1]);
  }

  // Plot's own axis leaves out labels of logarithmic ticks, so ticks are plain text.
  const yLabels = (ticks, unit) => Plot.text(ticks, { y: (d) => d, text: ticked(ticks, unit), frameAnchor: "left", textAnchor: "end", dx: -8, fill: "var(--soft)" });
  const xLabels = (ticks, unit, start) => [true, false].map((first) => Plot.text(ticks.filter((t) => (t === start) === first),
    { x: (d) => d, text: ticked(ticks, unit), textAnchor: first ? "start" : "middle", frameAnchor: "bottom", dy: 15, fill: "var(--soft)" }));
  const roomFor = (ticks, unit) => 12 + 7 * Math.max(...ticks.map((t) => ticked(ticks, unit)(t).length));

  function element(tag, name, text, parent) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function plot(parent, width, height, margins, label, rest) {
    const svg = Plot.plot({
      width, height, ...margins, ariaLabel: label,
      style: { fontFamily: "inherit", fontSize: FONT + "px", overflow: "visible", background: "transparent" },
      ...rest,
    });
    svg.setAttribute("role", "img");
    parent.append(svg);
    return svg;
  }

  // As wide as a sheet of paper: smaller panels, so that several pictures share a page.
  const paper = (parent) => parent.clientWidth >= 560 && parent.clientWidth < 760;

  // A grid of panels that wraps: as many columns as fit, all of one width.
  function panels(parent, count, least, most) {
    const grid = element("div", "panels", undefined, parent);
    const whole = Math.max(220, grid.clientWidth);
    const gap = whole < 760 ? 18 : 28;
    let columns = Math.max(1, Math.min(count, Math.floor((whole + gap) / (least + gap))));
    columns = Math.ceil(count / Math.ceil(count / columns));
    const width = Math.min(most, Math.floor((whole - gap * (columns - 1)) / columns));
    grid.style.gridTemplateColumns = "repeat(" + columns + ", " + width + "px)";
    grid.style.gap = "22px " + gap + "px";
    return { grid, width };
  }

  function limitLines(limits, domain) {
    return limits.flatMap((limit) => {
      const beyond = limit.at_least ? domain[0] : domain[1];
      const span = [Math.min(limit.value, beyond), Math.max(limit.value, beyond)];
      return [
        Plot.rect([0], { y1: () => span[0], y2: () => span[1], fill: "var(--warn)", fillOpacity: 0.06 }),
        Plot.ruleY([limit.value], { stroke: "var(--warn)", strokeWidth: 1.25, strokeDasharray: "5 3" }),
      ];
    });
  }

  function limitNote(parent, limits) {
    if (!limits.length) return;
    const note = element("p", "limit-note", undefined, parent);
    element("span", "limit-key", undefined, note);
    note.append("limit: " + limits.map((l) => l.label).join("; "));
  }

  function curves(parent, chart) {
    limitNote(parent, chart.limits);
    const low = chart.log ? chart.min / 1.3 : 0;
    const domain = [low, chart.log ? chart.max * 1.3 : chart.max * 1.06];
    const ticks = ticksOf(domain, chart.log, 4);
    for (const group of chart.groups) {
      element("h5", "", "Left to right: " + group.label, parent);
      const { grid, width } = panels(parent, Math.max(...chart.groups.map((g) => g.series.length)), paper(parent) ? 100 : 150, 380);
      const every = Math.ceil(group.loads.length / Math.max(2, Math.floor((width - 60) / 30)));
      for (const own of group.series) {
        const panel = element("div", "panel role-" + own.role, undefined, grid);
        element("b", "", own.name, panel);
        element("span", "state", own.state, panel);
        const color = COLOR[own.role];
        const others = group.series.filter((s) => s !== own);
        const band = own.points.some((p) => p.hi !== p.lo);
        plot(panel, width, 170, { marginLeft: roomFor(ticks, chart.unit), marginRight: 8, marginTop: 12, marginBottom: 26 }, own.name, {
          x: { type: "point", domain: group.loads, padding: 0.25, axis: null },
          y: { type: chart.log ? "log" : "linear", domain, axis: null },
          marks: [
            Plot.gridY(ticks, { stroke: "var(--line)", strokeOpacity: 1 }),
            yLabels(ticks, chart.unit),
            Plot.text(group.loads.filter((_, i) => i % every === 0), { x: (d) => d, text: (d) => d, frameAnchor: "bottom", dy: 15, fill: "var(--soft)" }),
            ...limitLines(chart.limits, domain),
            ...others.map((s) => Plot.line(s.points, { x: "x", y: "hi", stroke: "var(--ghost)", strokeWidth: 1.25 })),
            band ? Plot.areaY(own.points, { x: "x", y1: "lo", y2: "hi", fill: color, fillOpacity: 0.14 }) : null,
            band && own.points.length === 1 ? Plot.ruleX(own.points, { x: "x", y1: "lo", y2: "hi", stroke: color }) : null,
            band ? Plot.line(own.points, { x: "x", y: "lo", stroke: color, strokeWidth: 1.25 }) : null,
            Plot.line(own.points, { x: "x", y: "hi", stroke: color, strokeWidth: 2.5 }),
            Plot.dot(own.points, { x: "x", y: "hi", fill: color, r: 3 }),
            Plot.tip(own.points, Plot.pointerX({ x: "x", y: "hi", title: "tip" })),
          ],
        });
      }
    }
  }

  function rowsDomain(panel) {
    const all = panel.rows.flatMap((r) => [r.value, r.lo, r.hi, r.mark]).concat(panel.limits.map((l) => l.value));
    const some = all.filter((v) => typeof v === "number");
    let low = Math.min(...some), high = Math.max(...some);
    if (panel.log) return [low / 1.25, high * 1.25];
    if (panel.bar || panel.zero) { low = Math.min(0, low); high = Math.max(0, high); }
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [panel.bar || (panel.zero && low === 0) ? low : low - room, high + room];
  }

  function rows(parent, chart) {
    const { grid, width } = panels(parent, chart.panels.length, 250, chart.panels.length === 1 ? 720 : 480);
    for (const panel of chart.panels) {
      const box = element("div", "panel", undefined, grid);
      if (panel.title) element("b", "", panel.title, box);
      limitNote(box, panel.limits);
      const data = panel.rows.map((r, i) => ({ ...r, i }));
      const domain = rowsDomain(panel);
      const ticks = ticksOf(domain, panel.log, Math.max(2, Math.floor(width / 90)));
      const valued = data.filter((r) => typeof r.value === "number");
      const from = panel.log ? domain[0] : 0;
      const line = { y: "i", dy: -16, lineAnchor: "middle" };
      const track = (x1, x2, style) => Plot.rect(data, { x1: () => x1, x2: () => x2, y1: (r) => r.i - 0.14, y2: (r) => r.i + 0.28, ...style });
      const beyond = (limit) => (limit.at_least ? domain[0] : domain[1]);
      const byRole = (mark) => Object.keys(COLOR).map((role) => mark(valued.filter((r) => r.role === role), COLOR[role]));
      plot(box, width, 46 * data.length + 34, { marginLeft: 1, marginRight: 24, marginTop: 4, marginBottom: 24 }, panel.title, {
        x: { type: panel.log ? "log" : "linear", domain, axis: null },
        y: { type: "linear", domain: [data.length - 0.35, -0.62], axis: null },
        marks: [
          track(domain[0], domain[1], { fill: "var(--wash)" }),
          ...panel.limits.map((l) => track(Math.min(l.value, beyond(l)), Math.max(l.value, beyond(l)), { fill: "var(--warn)", fillOpacity: 0.08 })),
          panel.zero && domain[0] < 0 ? Plot.link(data, { x1: () => 0, x2: () => 0, y1: (r) => r.i - 0.14, y2: (r) => r.i + 0.28, stroke: "var(--base)" }) : null,
          ...xLabels(ticks, panel.unit, domain[0]),
          Plot.text(data, { ...line, frameAnchor: "left", text: "name", fill: "var(--ink)", textOverflow: "ellipsis",
            lineWidth: Math.max(6, (width - 130) / FONT), fontWeight: (r) => (r.role === "winner" ? 650 : 400) }),
          Plot.text(data, { ...line, frameAnchor: "right", text: "text", fill: "var(--soft)" }),
          ...byRole((some, color) => panel.bar
            ? Plot.rect(some, { x1: () => from, x2: "value", y1: (r) => r.i - 0.05, y2: (r) => r.i + 0.19, fill: color })
            : Plot.link(some.filter((r) => typeof r.lo === "number"),
                { x1: "lo", x2: "hi", y1: (r) => r.i + 0.07, y2: (r) => r.i + 0.07, stroke: color, strokeWidth: 4, strokeOpacity: 0.45, strokeLinecap: "round" })),
          ...byRole((some, color) => panel.bar ? null
            : Plot.dot(some, { x: "value", y: (r) => r.i + 0.07, r: 5, fill: color, stroke: "var(--paper)" })),
          Plot.link(data.filter((r) => typeof r.mark === "number"),
            { x1: "mark", x2: "mark", y1: (r) => r.i - 0.14, y2: (r) => r.i + 0.28, stroke: "var(--ink)", strokeWidth: 2 }),
          ...panel.limits.map((l) => Plot.link(data, { x1: () => l.value, x2: () => l.value, y1: (r) => r.i - 0.2, y2: (r) => r.i + 0.34,
            stroke: "var(--warn)", strokeWidth: 1.5, strokeDasharray: "4 2" })),
          Plot.tip(data, Plot.pointerY({ x: (r) => r.value ?? r.mark, y: "i", title: "tip" })),
        ],
      });
    }
  }

  const PLACES = [[11, 0, "start"], [-11, 0, "end"], [0, -15, "middle"], [0, 15, "middle"], [9, -13, "start"], [9, 13, "start"],
    [-9, -13, "end"], [-9, 13, "end"]];

  // Puts each label at the first free place around its dot; one that finds none is left to the tip.
  function placeLabels(dots, at, width, height) {
    const taken = dots.map((d) => { const [x, y] = at(d); return [x - 6, y - 6, x + 6, y + 6]; });
    const clash = (a) => taken.some((b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]);
    const order = { winner: 0, nearest: 0, baseline: 1, other: 2 };
    const placed = [];
    for (const d of [...dots].sort((a, b) => order[a.role] - order[b.role])) {
      const [x, y] = at(d);
      const text = d.name.length > 26 ? d.name.slice(0, 25) + "…" : d.name;
      const w = text.length * FONT * 0.56;
      for (const [dx, dy, anchor] of PLACES) {
        const left = anchor === "start" ? x + dx : anchor === "end" ? x + dx - w : x - w / 2;
        const box = [left, y + dy - 7, left + w, y + dy + 7];
        if (box[0] < 0 || box[2] > width || box[1] < 0 || box[3] > height || clash(box)) continue;
        taken.push(box);
        placed.push({ ...d, text, dx, dy, anchor });
        break;
      }
    }
    return placed;
  }

  function scatter(parent, chart) {
    const { grid, width } = panels(parent, chart.panels.length, 300, 560);
    const height = Math.round(Math.min(340, Math.max(260, width * 0.66)));
    const margins = { marginLeft: 48, marginRight: 12, marginTop: 10, marginBottom: 40 };
    const ys = chart.panels.flatMap((p) => p.dots.flatMap((d) => [d.lo, d.hi, d.y])).concat([0, chart.limit.value]);
    const room = (Math.max(...ys) - Math.min(...ys)) * 0.08;
    const domain = [Math.min(...ys) - room, Math.max(...ys) + room];
    for (const panel of chart.panels) {
      const box = element("div", "panel", undefined, grid);
      element("b", "", "Perplexity change against " + panel.label.charAt(0).toLowerCase() + panel.label.slice(1), box);
      limitNote(box, [chart.limit]);
      const span = [0, Math.max(...panel.dots.map((d) => d.x)) * 1.12];
      const x = d3.scaleLinear(span, [margins.marginLeft, width - margins.marginRight]);
      const y = d3.scaleLinear(domain, [height - margins.marginBottom, margins.marginTop]);
      const labels = placeLabels(panel.dots, (d) => [x(d.x), y(d.y)], width, height - margins.marginBottom);
      const yticks = ticksOf(domain, false, 5), xticks = ticksOf(span, false, Math.floor(width / 80));
      plot(box, width, height, margins, panel.label, {
        x: { domain: span }, y: { domain, axis: null },
        marks: [
          Plot.gridY(yticks, { stroke: "var(--line)", strokeOpacity: 1 }),
          yLabels(yticks, "%"),
          Plot.axisX(xticks, { tickSize: 0, tickFormat: format, fill: "var(--soft)", labelArrow: "none", labelAnchor: "center",
            label: panel.better === "right" ? panel.label + ", more is better →" : "← less is better, " + panel.label.charAt(0).toLowerCase() + panel.label.slice(1) }),
          ...limitLines([chart.limit], domain),
          Plot.line(panel.frontier, { x: "x", y: "y", curve: panel.better === "right" ? "step-before" : "step-after", stroke: "var(--base)", strokeWidth: 1.25, strokeOpacity: 0.7 }),
          ...panel.dots.flatMap((d) => [
            d.lo === d.hi ? null : Plot.ruleX([d], { x: "x", y1: "lo", y2: "hi", stroke: COLOR[d.role], strokeWidth: 1.5, strokeOpacity: 0.6 }),
            Plot.dot([d], { x: "x", y: "y", r: d.role === "winner" ? 7 : 5, fill: COLOR[d.role], stroke: "var(--paper)" }),
          ]),
          ...labels.map((d) => Plot.text([d], { x: "x", y: "y", text: "text", dx: d.dx, dy: d.dy, textAnchor: d.anchor,
            fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3, fontWeight: d.role === "winner" ? 650 : 400 })),
          Plot.tip(panel.dots, Plot.pointer({ x: "x", y: "y", title: "tip" })),
        ],
      });
    }
  }

  function timeline(parent, chart) {
    const width = Math.max(220, parent.clientWidth);
    const parts = chart.rows.flatMap((row, i) => {
      let at = 0;
      return row.parts.map((p) => ({ ...p, i, from: at, to: (at += p.length), name: row.name }));
    });
    const totals = chart.rows.map((row, i) => ({ i, name: row.name, text: row.text }));
    const domain = [0, Math.max(1e-9, ...parts.map((p) => p.to)) * 1.02];
    const ticks = ticksOf(domain, false, Math.max(2, Math.floor(width / 130)));
    const px = (width - 25) / domain[1];
    const tall = { y1: (p) => p.i - 0.08, y2: (p) => p.i + 0.36, x1: "from", x2: "to", insetRight: 1 };
    const some = (status) => parts.filter((p) => p.status === status);
    plot(parent, width, 44 * chart.rows.length + 34, { marginLeft: 1, marginRight: 24, marginTop: 4, marginBottom: 24 }, "time", {
      x: { domain, axis: null }, y: { domain: [chart.rows.length - 0.4, -0.6], axis: null },
      marks: [
        Plot.rect(totals, { x1: () => domain[0], x2: () => domain[1], y1: (t) => t.i - 0.08, y2: (t) => t.i + 0.36, fill: "var(--wash)" }),
        ...xLabels(ticks, chart.unit, domain[0]),
        Plot.text(totals, { y: "i", dy: -12, frameAnchor: "left", text: "name", fill: "var(--ink)", textOverflow: "ellipsis", lineWidth: Math.max(6, (width - 110) / FONT) }),
        Plot.text(totals, { y: "i", dy: -12, frameAnchor: "right", text: "text", fill: "var(--soft)" }),
        Plot.rect(some("run"), { ...tall, fill: "var(--other)", fillOpacity: 0.82 }),
        Plot.rect(some("failed"), { ...tall, fill: "var(--warn)" }),
        Plot.rect(some("remembered"), { ...tall, fill: "var(--paper)", stroke: "var(--base)", insetTop: 0.5, insetBottom: 0.5 }),
        Plot.dot(some("remembered").filter((p) => !p.length), { x: "from", y: (p) => p.i + 0.14, r: 3.5, stroke: "var(--base)", fill: "var(--paper)" }),
        ...["run", "failed", "remembered"].map((status) =>
          Plot.text(some(status).filter((p) => p.length * px > p.stage.length * 6.6 + 12), { x: "from", y: (p) => p.i + 0.14, dx: 7, textAnchor: "start",
            text: "stage", fill: status === "remembered" ? "var(--soft)" : "var(--paper)" })),
        Plot.tip(parts, Plot.pointer({ x: (p) => (p.from + p.to) / 2, y: (p) => p.i + 0.14, title: "tip" })),
      ],
    });
  }

  // What one costs in the other, both on logarithmic scales: further left and lower is better.
  function pareto(parent, chart) {
    const { grid, width } = panels(parent, chart.panels.length, 340, 620);
    const height = Math.round(Math.min(460, Math.max(320, width * 0.74)));
    const margins = { marginLeft: 56, marginRight: 14, marginTop: 10, marginBottom: 42 };
    const spread = (values) => [Math.min(...values) / 1.25, Math.max(...values) * 1.35];
    const ydomain = spread(chart.panels.flatMap((p) => p.dots.map((d) => d.y)));
    for (const panel of chart.panels) {
      const box = element("div", "panel", undefined, grid);
      element("b", "", panel.title, box);
      limitNote(box, panel.limits);
      const xdomain = spread(panel.dots.map((d) => d.x).concat(panel.limits.map((l) => l.value)));
      const x = d3.scaleLog(xdomain, [margins.marginLeft, width - margins.marginRight]);
      const y = d3.scaleLog(ydomain, [height - margins.marginBottom, margins.marginTop]);
      const labels = placeLabels(panel.dots, (d) => [x(d.x), y(d.y)], width, height - margins.marginBottom);
      const yticks = ticksOf(ydomain, true, 6), xticks = ticksOf(xdomain, true, Math.floor(width / 70));
      plot(box, width, height, margins, panel.title, {
        x: { type: "log", domain: xdomain, axis: null }, y: { type: "log", domain: ydomain, axis: null },
        marks: [
          Plot.gridY(yticks, { stroke: "var(--line)", strokeOpacity: 1 }),
          yLabels(yticks, "$"),
          ...xLabels(xticks, "", null),
          Plot.text([panel.label], { frameAnchor: "bottom", dy: 32, text: (t) => t, fill: "var(--soft)" }),
          ...panel.limits.flatMap((l) => [
            Plot.rect([0], { x1: () => l.value, x2: () => xdomain[1], fill: "var(--warn)", fillOpacity: 0.05 }),
            Plot.ruleX([l.value], { stroke: "var(--warn)", strokeWidth: 1.25, strokeDasharray: "5 3" }),
          ]),
          Plot.line(panel.frontier, { x: "x", y: "y", curve: "step-after", stroke: "var(--base)", strokeWidth: 1.25 }),
          ...["other", "nearest", "winner"].flatMap((role) => Plot.dot(panel.dots.filter((d) => d.role === role),
            { x: "x", y: "y", r: role === "other" ? 4.5 : 7, fill: COLOR[role], stroke: "var(--paper)" })),
          ...labels.map((d) => Plot.text([d], { x: "x", y: "y", text: "text", dx: d.dx, dy: d.dy, textAnchor: d.anchor,
            fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3, fontWeight: d.role === "other" ? 400 : 650 })),
          Plot.tip(panel.dots, Plot.pointer({ x: "x", y: "y", title: "tip" })),
        ],
      });
    }
  }

  const DRAW = { curves, rows, scatter, timeline, pareto };

  function drawAll() {
    for (const place of document.querySelectorAll("[data-chart]")) {
      const chart = charts[place.dataset.chart];
      if (!chart || place.dataset.width === String(place.clientWidth)) continue;
      place.dataset.width = place.clientWidth;
      place.replaceChildren();
      try {
        DRAW[chart.kind](place, chart);
        place.dataset.drawn = chart.kind;
      } catch (error) {
        window.dispatchEvent(new ErrorEvent("error", { message: place.dataset.chart + ": " + error.message }));
      }
    }
  }

  drawAll();
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawAll);
  });
})();
