// Tables that sort and search, commands to copy, pictures by step, and news of runs being followed.
(() => {
  "use strict";
  const { data, all, one, number } = report;

  // --- tables -------------------------------------------------------------------------------------

  const ofColumn = (row, column) => row.children[column].dataset.order ?? "";
  const compare = (first, second) => {
    if (first === "" || second === "") return (first === "") - (second === ""); // empty: last
    const numbers = [Number(first), Number(second)];
    if (numbers.every(Number.isFinite)) return numbers[0] - numbers[1];
    return first.localeCompare(second, "en", { numeric: true });
  };
  const sortBy = (heading, descending) => {
    const body = one("tbody", heading.closest("table"));
    const column = [...heading.parentElement.children].indexOf(heading);
    for (const other of heading.parentElement.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = [...body.rows].sort((first, second) => {
      const [a, b] = [ofColumn(first, column), ofColumn(second, column)];
      return compare(a, b) * (descending && a !== "" && b !== "" ? -1 : 1);
    });
    body.append(...rows);
  };
  let sorted = null; // column and order, kept when the table is renewed
  const listenToHeadings = () => {
    for (const button of all(".sortable .sort")) {
      button.addEventListener("click", () => {
        const heading = button.parentElement;
        const descending = heading.getAttribute("aria-sort") === "ascending";
        sorted = { column: heading.cellIndex, descending };
        sortBy(heading, descending);
      });
    }
  };
  listenToHeadings();

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

  // --- news ---------------------------------------------------------------------------------------

  if (data.live) {
    const EVERY_MS = 3000;
    const RENEWED = ["overview", "compare", "happened", "scores"];
    let version = null;
    // The page of the server is read as a document, whose scripts never run.
    const take = (page) => {
      const news = JSON.parse(page.getElementById("data").textContent);
      const names = (from) => JSON.stringify([from.runs.map((run) => run.name), from.charts.map((chart) => chart.name)]);
      if (names(news) !== names(data)) {
        location.reload();
        return;
      }
      for (const part of RENEWED) {
        const [own, other] = [document, page].map((from) => one(`#${part} > details`, from.documentElement));
        if (!own || !other) continue;
        own.replaceChildren(own.firstElementChild, ...[...other.children].slice(1).map((node) => document.importNode(node, true)));
      }
      all("figure.chart .last").forEach((node, index) => {
        const fresh = all("figure.chart .last", page)[index];
        if (fresh) node.replaceChildren(...[...fresh.children].map((child) => document.importNode(child, true)));
      });
      listenToHeadings();
      const headings = all(".sortable th[aria-sort]");
      if (sorted && headings[sorted.column]) sortBy(headings[sorted.column], sorted.descending);
      report.renew(news);
    };
    const ask = async () => {
      try {
        const answer = await fetch("version", { cache: "no-store" });
        const now = answer.ok ? await answer.text() : version;
        if (version !== null && now !== version) {
          const text = await (await fetch("", { cache: "no-store" })).text();
          take(new DOMParser().parseFromString(text, "text/html"));
        }
        version = now;
        one("#made").textContent = `live, ${new Date().toLocaleTimeString()}`;
      } catch {
        one("#made").textContent = "the server has ended; the page shows its last numbers";
      }
      setTimeout(ask, EVERY_MS);
    };
    ask();
  }
})();
