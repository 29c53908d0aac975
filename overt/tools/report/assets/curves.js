// The curves of a report, with zoom and hover. They are drawn at once, so that a screenshot or a
// print has them all. Text from runs only ever enters the page as textContent, never as markup.
const report = (() => {
  "use strict";
  let data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const COLORS = 8;
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [5, 2, 1, 2, 1, 2], [1, 6]];
  const small = matchMedia("(max-width: 40rem)");
  const height = () => (small.matches ? 190 : 240);
  const AT_ONCE_MS = 600; // drawn before the page is shown; what is left follows in pieces
  const PIECE_MS = 40;
  const MOST_IN_TIP = 10;
  const view = { axis: "steps", log: false, smooth: 0, range: null, shown: data.runs.map(() => true) };
  const plots = new Map(); // element of a chart -> { plot, chart, series }

  const make = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const runColor = (index) => color(`--run${index % COLORS}`);
  const dash = (index) => DASHES[Math.floor(index / COLORS) % DASHES.length];

  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
      return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return String(Number(value.toPrecision(5)));
  };
  const hours = (value) => {
    const seconds = Math.round(value * 3600);
    const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    return parts.map((part, index) => (index ? String(part).padStart(2, "0") : part)).join(":");
  };
  const position = (value) => (view.axis === "steps" ? `step ${number(value)}` : `time ${hours(value)}`);

  // --- curves -------------------------------------------------------------------------------------

  // An exponential mean that is not drawn towards zero at the start; holes stay holes.
  const smoothed = (values, weight) => {
    let sum = 0;
    let mass = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return sum / mass;
    });
  };

  // Aligned columns and their styles: for each run the curve, or least, mean and greatest.
  const lay = (chart) => {
    const tables = [];
    const series = [{}];
    const bands = [];
    for (const entry of chart.series) {
      if (!view.shown[entry.run]) continue;
      const x = [];
      const rows = entry.values.map(() => []);
      const raw = view.axis === "steps" ? entry.steps : entry.hours;
      // Rows of one step may repeat it (a resume at the very step); the axis has each place once.
      raw.forEach((at, index) => {
        if (at === null) return;
        if (x.length && at <= x[x.length - 1]) return;
        x.push(at);
        entry.values.forEach((values, part) => {
          const value = values[index];
          rows[part].push(view.log && value !== null && value <= 0 ? null : value);
        });
      });
      const stroke = runColor(entry.run);
      const points = { show: x.length <= 40, size: 6, fill: stroke, stroke };
      const style = { label: data.runs[entry.run].name, run: entry.run, stroke, dash: dash(entry.run) };
      if (rows.length === 3) {
        const first = series.length;
        tables.push([x, rows[0], rows[2], rows[1]]);
        series.push({ ...style, part: "least", width: 0, points: { show: false } });
        series.push({ ...style, part: "greatest", width: 0, points: { show: false } });
        series.push({ ...style, part: "mean", width: 2, points });
        bands.push({ series: [first + 1, first], fill: `${stroke}2e` });
      } else if (view.smooth > 0 && x.length > 2) {
        tables.push([x, rows[0], smoothed(rows[0], view.smooth)]);
        series.push({ ...style, faint: true, stroke: `${stroke}40`, width: 1, points: { show: false } });
        series.push({ ...style, width: 2, points: { show: false } });
      } else {
        tables.push([x, rows[0]]);
        series.push({ ...style, width: 2, points });
      }
    }
    return { columns: tables.length ? uPlot.join(tables) : [[]], series, bands };
  };

  const at = (mark) => (view.axis === "steps" ? mark.step : mark.hours);
  // Steps of the marks of one kind that the cursor stands on, for each run that is shown.
  const marksNear = (kind, where, reach) =>
    data.runs.flatMap((run, index) => {
      const near = run.marks.filter((mark) => mark.kind === kind && Math.abs(at(mark) - where) <= reach);
      return view.shown[index] && near.length
        ? [{ run: index, steps: near.map((mark) => number(mark.step)).join(", ") }]
        : [];
    });

  // Below the curves: restarts as dashed lines in the run's color, skipped steps as red crosses.
  const drawMarks = (plot) => {
    const { ctx, bbox } = plot;
    const upright = (x, top, bottom, alpha) => {
      ctx.globalAlpha = alpha;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, bottom);
      ctx.stroke();
    };
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    data.runs.forEach((run, index) => {
      if (!view.shown[index]) return;
      for (const mark of run.marks) {
        const value = at(mark);
        if (value < plot.scales.x.min || value > plot.scales.x.max) continue;
        const x = Math.round(plot.valToPos(value, "x", true));
        const skip = mark.kind === "skip";
        ctx.strokeStyle = skip ? color("--bad") : runColor(index);
        ctx.setLineDash(skip ? [] : [4 * devicePixelRatio, 3 * devicePixelRatio]);
        upright(x, bbox.top, bbox.top + bbox.height, skip ? 0.25 : 0.7);
        if (!skip) continue;
        const size = 4 * devicePixelRatio;
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(x - size, bbox.top);
        ctx.lineTo(x + size, bbox.top + 2 * size);
        ctx.moveTo(x + size, bbox.top);
        ctx.lineTo(x - size, bbox.top + 2 * size);
        ctx.stroke();
      }
    });
    ctx.restore();
  };

  // The value nearest to a place, for each run: runs need not share their steps.
  const readings = (plot) => {
    const index = plot.cursor.idx;
    if (index === null || index === undefined) return null;
    const rows = [];
    plot.series.forEach((series, column) => {
      if (!column || series.faint || (series.part && series.part !== "mean")) return;
      const values = plot.data[column];
      let nearest = index;
      for (let away = 0; away < values.length; away += 1) {
        if (typeof values[index - away] === "number") { nearest = index - away; break; }
        if (typeof values[index + away] === "number") { nearest = index + away; break; }
      }
      rows.push({ run: series.run, value: values[nearest] });
    });
    return { at: plot.data[0][index], rows };
  };

  const line = (run, words, value) => {
    const row = make("div");
    row.append(make("span", `swatch run${run % COLORS}`), make("span", "who", words));
    if (value !== undefined) row.append(make("b", "", number(value)));
    return row;
  };

  // Of many runs those that the pointer is nearest to.
  const nearestTo = (plot, rows) => {
    if (rows.length <= MOST_IN_TIP) return rows;
    const y = plot.posToVal(plot.cursor.top, "y");
    const distance = (row) => Math.abs((row.value ?? Infinity) - y);
    return [...rows].sort((a, b) => distance(a) - distance(b)).slice(0, MOST_IN_TIP);
  };

  // Only where the pointer or the keyboard is; the cursors of the other charts just follow.
  const showTip = (holder, plot) => {
    let tip = one(".tip", holder);
    const here = holder.matches(":hover") || holder === document.activeElement;
    const reading = here && plot.cursor.left >= 0 ? readings(plot) : null;
    if (!reading) {
      if (tip) tip.hidden = true;
      return;
    }
    if (!tip) {
      tip = make("div", "tip");
      holder.append(tip);
    }
    tip.hidden = false;
    tip.replaceChildren(make("div", "quiet", position(reading.at)));
    for (const row of nearestTo(plot, reading.rows)) tip.append(line(row.run, data.runs[row.run].name, row.value));
    const reach = ((plot.scales.x.max - plot.scales.x.min) * 6) / plot.over.clientWidth;
    const where = plot.posToVal(plot.cursor.left, "x");
    for (const mark of marksNear("resume", where, reach)) {
      tip.append(line(mark.run, `resumed at ${mark.steps}`));
    }
    for (const mark of marksNear("skip", where, reach)) {
      const row = line(mark.run, `skipped ${mark.steps}`);
      row.classList.add("warn");
      tip.append(row);
    }
    const x = plot.over.offsetLeft + plot.cursor.left;
    const flip = x + tip.offsetWidth + 16 > holder.clientWidth;
    tip.style.left = `${Math.max(flip ? x - tip.offsetWidth - 12 : x + 12, 0)}px`;
    tip.style.top = `${plot.over.offsetTop + 8}px`;
  };

  let zooming = false;
  const zoomAll = (range) => {
    view.range = range;
    one("#reset").hidden = range === null;
    zooming = true;
    for (const { plot } of plots.values()) fitRange(plot);
    zooming = false;
  };
  const fitRange = (plot) => {
    const xs = plot.data[0];
    if (!xs.length) return;
    const [min, max] = view.range || [xs[0], xs[xs.length - 1]];
    plot.setScale("x", min === max ? { min: min - 1, max: max + 1 } : { min, max });
  };

  // A range that a reader understands where all values are one, zero among them.
  const rangeOf = (plot, low, high) => {
    if (low === null || high === null || low === undefined) return view.log ? [0.1, 1] : [0, 1];
    if (view.log) return low === high ? [low / 2, high * 2] : uPlot.rangeLog(low, high, 10, false);
    if (low === high) {
      if (low === 0) return [0, 1];
      const half = Math.abs(low) * 0.1;
      return [low - half, high + half];
    }
    return uPlot.rangeNum(low, high, 0.1, low >= 0 && low < high / 2);
  };
  const spanOf = (plot, low, high) => {
    if (low === null || low === undefined) return [0, 1];
    const half = view.axis === "steps" ? 1 : 0.01;
    return low === high ? [low - half, high + half] : [low, high];
  };
  // The end of a name says more than its beginning.
  const shortened = (words) => {
    const most = Math.floor((height() - 60) / 6.5);
    return words.length <= most ? words : `…${words.slice(words.length - most + 1)}`;
  };
  // Ticks of steps are whole numbers.
  const wholeSteps = (ticks) =>
    ticks.map((tick) => {
      if (tick === null || (view.axis === "steps" && !Number.isInteger(tick))) return "";
      return view.axis === "steps" ? number(tick) : hours(tick);
    });

  const build = (holder) => {
    const old = plots.get(holder);
    if (old) old.plot.destroy();
    const chart = data.charts[Number(holder.dataset.chart)];
    const { columns, series, bands } = lay(chart);
    const ink = color("--quiet");
    const grid = { stroke: color("--rule"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif" };
    const empty = !columns.slice(1).some((values) => values.some((value) => typeof value === "number"));
    holder.classList.toggle("empty", empty);
    const options = {
      width: Math.max(holder.clientWidth, 120),
      height: height(),
      padding: [10, 24, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, range: spanOf }, y: { distr: view.log ? 3 : 1, range: rangeOf } },
      cursor: {
        sync: { key: "report", setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false, setScale: true },
        points: { size: 7 },
      },
      axes: [
        { ...axis, size: 30, label: view.axis === "steps" ? "step" : "hours : minutes : seconds",
          labelSize: 18, labelFont: axis.font, values: (_, ticks) => wholeSteps(ticks) },
        { ...axis, size: 62, label: shortened(chart.label), labelSize: 20, labelFont: axis.font,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      series,
      bands,
      hooks: {
        drawAxes: [drawMarks],
        setCursor: [(plot) => showTip(holder, plot)],
        setScale: [
          (plot, key) => {
            if (key !== "x" || zooming || !plots.has(holder)) return;
            const { min, max } = plot.scales.x;
            const xs = plot.data[0];
            const whole = min <= xs[0] && max >= xs[xs.length - 1];
            zoomAll(whole ? null : [min, max]);
          },
        ],
      },
    };
    plots.delete(holder);
    zooming = true;
    const plot = new uPlot(options, columns, holder);
    plots.set(holder, { plot, chart });
    if (view.range) fitRange(plot);
    zooming = false;
  };
  const rebuild = () => [...plots.keys()].forEach(build);

  // Charts in a closed fold are drawn when it opens.
  const isOpen = (holder) => holder.clientWidth > 0 && !holder.closest("details:not([open])");
  const waiting = () => all(".plot").filter((holder) => isOpen(holder) && !plots.has(holder));
  const drawFor = (milliseconds) => {
    const end = performance.now() + milliseconds;
    for (const holder of waiting()) {
      if (performance.now() > end) return false;
      build(holder);
    }
    return true;
  };
  const drawRest = () => { if (!drawFor(PIECE_MS)) setTimeout(drawRest); };
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const known = plots.get(target);
      if (!target.clientWidth) continue;
      if (!known) drawRest();
      else if (known.plot.width !== target.clientWidth) {
        known.plot.setSize({ width: target.clientWidth, height: height() });
      }
    }
  });
  for (const holder of all(".plot")) {
    resized.observe(holder);
    holder.addEventListener("keydown", (event) => {
      const known = plots.get(holder);
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (!known) return;
      const { plot } = known;
      if (event.key === "Escape") zoomAll(null);
      const edge = { Home: 0, End: plot.data[0].length - 1 }[event.key];
      if (move === undefined && edge === undefined) return;
      event.preventDefault();
      const last = plot.data[0].length - 1;
      const from = plot.cursor.idx ?? (move > 0 ? -1 : last + 1);
      const index = edge ?? Math.min(Math.max(from + move, 0), last);
      plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: plot.over.clientHeight / 2 });
      const reading = readings(plot);
      if (!reading) return;
      const words = reading.rows.map((row) => `${data.runs[row.run].name} ${number(row.value)}`);
      one(".said", holder.parentElement).textContent = `${position(reading.at)}: ${words.join(", ")}`;
    });
    holder.addEventListener("blur", () => {
      plots.get(holder)?.plot.setCursor({ left: -10, top: -10 });
    });
  }

  drawFor(AT_ONCE_MS);
  setTimeout(drawRest);

  // A print is light and complete, whatever the screen shows.
  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: document.documentElement.dataset.theme, closed: all("details.later:not([open])") };
    document.documentElement.dataset.theme = "light";
    for (const part of before.closed) part.open = true;
    rebuild();
    drawFor(Infinity);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) document.documentElement.dataset.theme = before.theme;
    else delete document.documentElement.dataset.theme;
    for (const part of before.closed) part.open = false;
    before = null;
    rebuild();
  });

  // New numbers for the same charts, from a server that follows the runs.
  const renew = (news) => { data = news; rebuild(); };
  return { data, view, all, one, make, number, small, rebuild, renew, zoomAll };
})();
