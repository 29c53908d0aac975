// The moving parts of a report: curves with zoom and hover, run and theme switches, sliders.
// Text from runs only ever enters the page as textContent, never as markup.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const COLOURS = 8;
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const HEIGHT = 230;
  const view = { axis: "steps", log: false, smooth: 0, range: null, shown: data.runs.map(() => true) };
  const plots = new Map(); // element of a chart -> { plot, chart, series }

  const make = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const runColour = (index) => colour(`--run${index % COLOURS}`);
  const dash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];

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
    return parts.map((part, place) => (place ? String(part).padStart(2, "0") : part)).join(":");
  };
  const place = (value) => (view.axis === "steps" ? `step ${number(value)}` : `time ${hours(value)}`);

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
      const stroke = runColour(entry.run);
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

  // Below the curves: restarts as dashed lines in the run's colour, skipped steps as red crosses.
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
        ctx.strokeStyle = skip ? colour("--bad") : runColour(index);
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
    plot.series.forEach((series, place) => {
      if (!place || series.faint || (series.part && series.part !== "mean")) return;
      const values = plot.data[place];
      let found = index;
      for (let away = 0; away < values.length; away += 1) {
        if (typeof values[index - away] === "number") { found = index - away; break; }
        if (typeof values[index + away] === "number") { found = index + away; break; }
      }
      rows.push({ run: series.run, value: values[found] });
    });
    return { at: plot.data[0][index], rows };
  };

  const line = (run, words, value) => {
    const row = make("div");
    row.append(make("span", `swatch run${run % COLOURS}`), make("span", "who", words));
    if (value !== undefined) row.append(make("b", "", number(value)));
    return row;
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
    tip.replaceChildren(make("div", "quiet", place(reading.at)));
    for (const row of reading.rows) tip.append(line(row.run, data.runs[row.run].name, row.value));
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

  const build = (holder) => {
    const old = plots.get(holder);
    if (old) old.plot.destroy();
    const chart = data.charts[Number(holder.dataset.chart)];
    const { columns, series, bands } = lay(chart);
    const ink = colour("--quiet");
    const grid = { stroke: colour("--rule"), width: 1 };
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif" };
    const label = view.axis === "steps" ? number : hours;
    const options = {
      width: Math.max(holder.clientWidth, 120),
      height: HEIGHT,
      padding: [10, 24, 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y: { distr: view.log ? 3 : 1 } },
      cursor: {
        sync: { key: "report", setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false, setScale: true },
        points: { size: 7 },
      },
      axes: [
        { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : label(tick))) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
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

  // Charts are made when they come near the screen; a long page opens at once.
  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting && !plots.has(target)) {
          near.unobserve(target);
          build(target);
        }
      }
    },
    { rootMargin: "400px" },
  );
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const known = plots.get(target);
      if (known && target.clientWidth && known.plot.width !== target.clientWidth) {
        known.plot.setSize({ width: target.clientWidth, height: HEIGHT });
      }
    }
  });
  for (const holder of all(".plot")) {
    near.observe(holder);
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
      one(".said", holder.parentElement).textContent = `${place(reading.at)}: ${words.join(", ")}`;
    });
    holder.addEventListener("blur", () => {
      plots.get(holder)?.plot.setCursor({ left: -10, top: -10 });
    });
  }

  // --- the toolbar --------------------------------------------------------------------------------

  const press = (button, state) => button.setAttribute("aria-pressed", String(state));
  for (const chip of all(".chip")) {
    chip.addEventListener("click", () => {
      const run = Number(chip.dataset.run);
      view.shown[run] = !view.shown[run];
      press(chip, view.shown[run]);
      rebuild();
    });
  }
  for (const button of all("[data-axis]")) {
    button.addEventListener("click", () => {
      view.axis = button.dataset.axis;
      view.range = null;
      one("#reset").hidden = true;
      for (const other of all("[data-axis]")) press(other, other === button);
      rebuild();
    });
  }
  one("#logarithmic").addEventListener("click", (event) => {
    view.log = !view.log;
    press(event.currentTarget, view.log);
    rebuild();
  });
  one("#smooth").addEventListener("input", (event) => {
    view.smooth = Number(event.target.value);
    rebuild();
  });
  one("#reset").addEventListener("click", () => zoomAll(null));
  one("#find").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const chart of all(".chart")) {
      chart.hidden = !words.every((word) => chart.dataset.name.includes(word));
    }
  });

  // --- theme --------------------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const theme = one("#theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : prefersDark.matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  nameTheme();
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
    rebuild();
  });
  prefersDark.addEventListener("change", () => { nameTheme(); rebuild(); });

  // --- settings, commands, pictures ---------------------------------------------------------------

  const table = one("#settings-table");
  one("#only-differences")?.addEventListener("change", (event) => {
    table.classList.toggle("only-differences", event.target.checked);
  });
  one("#find-setting").addEventListener("input", (event) => {
    const word = event.target.value.toLowerCase();
    for (const row of all("tbody tr", table)) {
      row.hidden = !one("th", row).textContent.toLowerCase().includes(word);
    }
  });

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const said = (words) => {
        button.textContent = words;
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      };
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        said("copied");
      } catch {
        // Not allowed here: select it, so that the reader's own keys copy it.
        getSelection().selectAllChildren(one("code", button.parentElement));
        said("selected");
      }
    });
  }

  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  for (const [identity, gallery] of Object.entries(data.galleries)) {
    const section = document.getElementById(identity);
    const slider = one("input[type=range]", section);
    const motion = one(".motion", section);
    let moving = !calm.matches;
    const figures = all("figure", section).map((figure) => {
      const image = one("img", figure);
      const pictures = gallery.runs[figure.dataset.run] || [];
      if (pictures.length && image) pictures[pictures.length - 1].uri = image.src;
      return { image, pictures, caption: one(".step", figure) };
    });
    const show = () => {
      const step = slider ? gallery.steps[Number(slider.value)] : Infinity;
      for (const { image, pictures, caption } of figures) {
        if (!image || !pictures.length) continue;
        // The newest that is not newer than the step chosen.
        const past = pictures.filter((picture) => picture.step === null || picture.step <= step);
        const picture = past.length ? past[past.length - 1] : pictures[0];
        const source = (!moving && picture.still) || picture.uri;
        if (image.src !== source) image.src = source;
        if (slider) caption.textContent = `step ${number(picture.step)}`;
      }
      if (slider) one(".at", section).textContent = `step ${number(step)}`;
      if (motion) motion.textContent = moving ? "stop" : "play";
    };
    slider?.addEventListener("input", show);
    motion?.addEventListener("click", () => { moving = !moving; show(); });
    if (!moving) show();
  }
})();
