"use strict";
const root = document.documentElement;
root.classList.add("js");

// Theme: what the system says, until the reader says otherwise.
const button = document.getElementById("theme");
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
label();

// Methods: a chip shows or hides its lines and rows everywhere in its part.
for (const part of document.querySelectorAll(".part")) {
  const chips = [...part.querySelectorAll(".chip")];
  const all = part.querySelector(".all");
  const show = (chip, on) => {
    chip.setAttribute("aria-pressed", on);
    for (const element of part.querySelectorAll("." + chip.dataset.method)) {
      if (element.closest("nav") === null) element.style.display = on ? "" : "none";
    }
    if (all) all.hidden = chips.every((c) => c.getAttribute("aria-pressed") === "true");
  };
  for (const chip of chips) chip.addEventListener("click", () => show(chip, chip.getAttribute("aria-pressed") !== "true"));
  if (all) { all.hidden = true; all.addEventListener("click", () => chips.forEach((chip) => show(chip, true))); }
}

// Bands: shown, or lines alone.
for (const bands of document.querySelectorAll(".bands")) {
  bands.addEventListener("click", () => {
    const plain = root.classList.toggle("plain");
    document.querySelectorAll(".bands").forEach((other) => { other.textContent = plain ? "show bands" : "hide bands"; });
  });
}

// Tables: a click on a column's head sorts by it, the largest first; text the other way round.
for (const table of document.querySelectorAll("table.sorts")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const text = head.classList.contains("text");
      const down = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : !text;
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const compare = text ? (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true })
        : (a, b) => Number(value(a)) - Number(value(b));
      const body = table.tBodies[0];
      [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)).forEach((row) => body.append(row));
    });
  });
}

// Tabs: one panel at a time.
for (const tabs of document.querySelectorAll(".tabs")) {
  const all = [...tabs.querySelectorAll(".tab")];
  const choose = (tab) => all.forEach((other) => {
    other.setAttribute("aria-selected", other === tab);
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  });
  all.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { const next = all[(i + step + all.length) % all.length]; choose(next); next.focus(); }
    });
  });
  choose(all[0]);
}

// Charts: the values under the pointer, or under the arrow keys.
const tip = document.getElementById("tip");
const hide = () => { tip.hidden = true; document.querySelectorAll(".rule, .cell").forEach((mark) => mark.remove()); };
const shown = (value, unit) => unit === "%" ? (100 * value).toFixed(1) + " %" : Number(value.toPrecision(3)).toString();
const make = (tag, text, name) => { const e = document.createElement(tag); e.textContent = text; if (name) e.className = name; return e; };

function place(x, y) {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - height - 8)) + "px";
}

function mark(svg, name, attributes) {
  svg.querySelectorAll(".rule, .cell").forEach((old) => old.remove());
  const element = document.createElementNS(svg.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  svg.append(element);
}

function lines(chart, box, svg) {
  const part = box.closest(".part");
  const visible = () => chart.lines.filter((line) => {
    const chip = part.querySelector(`.chip[data-method="m${line.m}"]`);
    return !chip || chip.getAttribute("aria-pressed") === "true";
  });
  const [left, top, width, height] = chart.box;
  const [low, high] = chart.xlim;
  const stops = () => [...new Set(visible().flatMap((line) => line.x))].sort((a, b) => a - b);
  const nearest = (list, x) => list.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
  return {
    stops: () => stops().length,
    at: (fx) => { const all = stops(); return all.length ? all.indexOf(nearest(all, low + fx * (high - low))) : -1; },
    show: (i) => {
      const x = stops()[i];
      const px = left + (x - low) / (high - low) * width;
      mark(svg, "line", { class: "rule", x1: px, x2: px, y1: top, y2: top + height });
      tip.replaceChildren(make("b", chart.ticks ? chart.ticks[x] : `${chart.x.split(",")[0]} ${Number(x.toPrecision(4))}`));
      const reach = (high - low) / 40;
      const rows = visible().map((line) => [line, line.x.indexOf(nearest(line.x, x))])
        .filter(([line, k]) => Math.abs(line.x[k] - x) <= reach).sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]]);
      for (const [line, k] of rows) {
        const row = make("div", ""), name = make("span", "");
        const key = make("i", "", "key");
        key.style.setProperty("--c", `var(--s${line.m % 8})`);
        name.append(key, part.dataset.methods ? JSON.parse(part.dataset.methods)[line.m] : "");
        const spread = line.s.length && line.s[k] ? " ± " + shown(line.s[k], chart.unit).replace(" %", "") : "";
        row.append(name, shown(line.y[k], chart.unit).replace(" %", spread ? "" : " %") + spread);
        tip.append(row);
      }
      return [px, top];
    },
  };
}

function heat(chart, box, svg) {
  const [left, top, width, height] = chart.box;
  const n = chart.columns.length, w = width / n, h = height / chart.rows.length;
  return {
    stops: () => n * chart.rows.length,
    at: (fx, fy) => Math.min(chart.rows.length - 1, Math.max(0, Math.floor(fy * chart.rows.length))) * n + Math.min(n - 1, Math.max(0, Math.floor(fx * n))),
    show: (i) => {
      const r = Math.floor(i / n), c = i % n;
      mark(svg, "rect", { class: "cell", x: left + c * w, y: top + r * h, width: w, height: h });
      tip.replaceChildren(make("b", `layer ${chart.rows[r]}, round ${chart.columns[c]}`), make("div", chart.cells[r][c] === null ? "not recorded" : shown(chart.cells[r][c], "")));
      return [left + c * w, top + r * h];
    },
  };
}

for (const box of document.querySelectorAll(".plotbox")) {
  const chart = JSON.parse(box.querySelector("script").textContent);
  const svg = box.querySelector("svg");
  const reader = (chart.kind === "heat" ? heat : lines)(chart, box, svg);
  let now = -1;
  const [left, top, width, height] = chart.box;
  const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  box.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), k = scale();
    const fx = ((event.clientX - frame.left) / k - left) / width, fy = ((event.clientY - frame.top) / k - top) / height;
    if (fx < -0.03 || fx > 1.03 || fy < 0 || fy > 1) { hide(); return; }
    now = reader.at(fx, fy);
    if (now >= 0) { reader.show(now); place(event.clientX, event.clientY); }
  });
  box.addEventListener("pointerleave", hide);
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !reader.stops()) return;
    event.preventDefault();
    now = Math.max(0, Math.min(reader.stops() - 1, now < 0 ? (step > 0 ? 0 : reader.stops() - 1) : now + step));
    const [x, y] = reader.show(now), frame = svg.getBoundingClientRect(), k = scale();
    place(frame.left + x * k, frame.top + y * k);
  });
}
addEventListener("scroll", hide, { passive: true });
addEventListener("beforeprint", () => { hide(); document.querySelectorAll("details").forEach((d) => { d.dataset.was = d.open; d.open = true; }); });
addEventListener("afterprint", () => document.querySelectorAll("details").forEach((d) => { d.open = d.dataset.was === "true"; }));
