// Switches above the curves, the theme, and parts that fold.
(() => {
  "use strict";
  const { view, all, one, small, rebuild, zoomAll } = report;

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

  // --- folds --------------------------------------------------------------------------------------

  if (small.matches) for (const part of all("details.later")) part.open = false;
  const unfold = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const part = target && one("details.part", target);
    if (part && !part.open) {
      part.open = true;
      target.scrollIntoView();
    }
  };
  for (const link of all("nav a")) link.addEventListener("click", () => setTimeout(unfold));
  addEventListener("hashchange", unfold);
  unfold();
})();
