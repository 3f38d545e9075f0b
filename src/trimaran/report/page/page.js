"use strict";
(() => {
  const source = document.getElementById("timeline");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const figure = document.querySelector(".timeline");
  const canvas = figure.querySelector("canvas"), says = figure.querySelector("output");
  const select = figure.querySelector("select"), pen = canvas.getContext("2d");
  const TOP = 26, LEFT = 96, LEAST = 200;
  const lanes = data.lanes.map((flat) => {
    const spans = [];
    let at = 0;
    for (let n = 0; n < flat.length; n += 3) {
      at += flat[n];
      spans.push([at, at + flat[n + 1], flat[n + 2]]);
    }
    return spans;
  });
  let view = data.views[0], first = 0, last = view.length, scroll = 0, tall = 0, hover = null, colours = null, drawn = 0;

  const rowsOf = () => view.rows;
  const fitted = () => Math.max(1.5, Math.min(56, (canvas.clientHeight - TOP) / rowsOf().length));
  const wide = () => canvas.clientWidth - LEFT;
  const across = (time) => LEFT + ((time - first) / (last - first)) * wide();
  const timeAt = (x) => first + ((x - LEFT) / wide()) * (last - first);
  const isTransfer = (stream) => /^(communication|copy)/.test(stream);

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    colours = { parts: data.parts.map(([, name]) => value(name)) };
    for (const name of ["ground", "raised", "ink", "soft", "grid", "rule", "limit"]) colours[name] = value("--" + name);
  }

  function seconds(ticks) {
    const value = ticks * data.unit_s;
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
      if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)} ${unit}`;
    }
    return value === 0 ? "0" : `${(value * 1e9).toPrecision(3)} ns`;
  }

  function bytes(count) {
    if (!count) return "";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let n = 0;
    while (count >= 1024 && n < units.length - 1) { count /= 1024; n += 1; }
    return `, ${count.toFixed(n ? 1 : 0)} ${units[n]}`;
  }

  // The first span of a lane that ends after a time.
  function from(spans, time) {
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][1] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Where the lanes of a row lie: each its own band where there is room, else work above and transfers below.
  function bands(row) {
    const kept = row[2], inner = tall - (tall > 8 ? 3 : tall > 4 ? 1 : 0);
    if (inner >= 5 * kept.length) {
      const high = inner / kept.length;
      return kept.map(([stream, lane], n) => ({ stream, spans: lanes[lane], y: n * high, high: Math.max(1, high - 1) }));
    }
    if (tall < 4) {
      // Work hides what is under way at the same time.
      const order = (stream) => (/^wait/.test(stream) ? 0 : isTransfer(stream) ? 1 : /^host/.test(stream) ? 2 : 3);
      return kept.map(([stream, lane]) => ({ stream, spans: lanes[lane], y: 0, high: tall }))
        .sort((one, other) => order(one.stream) - order(other.stream));
    }
    const both = kept.some(([stream]) => isTransfer(stream)) && kept.some(([stream]) => !isTransfer(stream));
    return kept.map(([stream, lane]) => ({
      stream, spans: lanes[lane], y: both && isTransfer(stream) ? inner / 2 : 0, high: both ? inner / 2 : inner,
    }));
  }

  function draw() {
    drawn = 0;
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(width, height);
    const rows = rowsOf(), start = Math.max(0, Math.floor(scroll / tall));
    const stop = Math.min(rows.length, Math.ceil((scroll + height - TOP) / tall));
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, width, height - TOP);
    pen.clip();
    let label = -99;
    for (let n = start; n < stop; n += 1) {
      const y = TOP + n * tall - scroll, row = rows[n];
      const isNew = n === 0 || rows[n - 1][0] !== row[0];
      if (isNew && n > 0 && tall > 8) {
        pen.fillStyle = colours.grid;
        pen.fillRect(0, y - 1, width, 1);
      }
      if (y - label >= 14) {
        pen.fillStyle = colours.ink;
        pen.fillText(tall >= 13 ? `${row[0]} ${data.sources[row[1]]}` : `rank ${row[0]}`, 6, y + Math.max(6, tall / 2));
        label = y;
      }
      for (const band of bands(row)) drawBand(band, y);
    }
    if (hover) {
      const [n, band, span] = hover, y = TOP + n * tall - scroll + band.y;
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(Math.max(LEFT, across(span[0])), y, Math.max(2, across(span[1]) - Math.max(LEFT, across(span[0]))), band.high);
    }
    pen.restore();
    const all = rows.length * tall, room = height - TOP;
    if (all > room + 1) {
      pen.fillStyle = colours.rule;
      pen.fillRect(width - 5, TOP + (scroll / all) * room, 4, Math.max(12, (room / all) * room));
    }
  }

  function drawBand(band, top) {
    // Whole pixels: else colours of neighbours mix.
    const y = Math.round(top + band.y), high = Math.max(1, Math.round(top + band.y + band.high) - y);
    const begin = from(band.spans, first);
    let edge = -1, colour = -1;
    for (let n = begin; n < band.spans.length && band.spans[n][0] < last; n += 1) {
      const [start, end, event] = band.spans[n];
      const x = Math.max(LEFT, across(start)), to = across(end), part = data.events[event][1];
      // What is thinner than a third of a pixel, and where one of its colour is, is not drawn again.
      if (to - edge < 0.34 && part === colour) continue;
      const size = Math.max(0.7, to - x);
      pen.fillStyle = colours.parts[part];
      pen.fillRect(x, y, size > 4 ? size - 0.6 : size, high);
      edge = to;
      colour = part;
      if (size > 34 && high >= 13) {
        const name = data.events[event][0];
        if (name.length * 7 < size - 6) {
          pen.fillStyle = contrast(colours.parts[part]);
          pen.fillText(name, x + 4, y + high / 2 + 0.5);
        }
      }
    }
  }

  function contrast(colour) {
    const [r, g, b] = [1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16) / 255);
    return 0.299 * r + 0.587 * g + 0.114 * b > 0.52 ? "#101418" : "#ffffff";
  }

  function drawAxis(width, height) {
    const span = (last - first) * data.unit_s, raw = span / Math.max(2, wide() / 110);
    const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]].find(([, one]) => step * 10 >= one) || ["ns", 1e-9];
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    pen.fillStyle = colours.soft;
    pen.fillText(`time [${unit}]`, 6, TOP / 2);
    for (let n = Math.ceil((first * data.unit_s) / step); n * step <= last * data.unit_s; n += 1) {
      const x = across((n * step) / data.unit_s);
      pen.fillStyle = colours.grid;
      pen.fillRect(x, TOP - 5, 1, height - TOP + 5);
      pen.fillStyle = colours.soft;
      const text = ((n * step) / size).toFixed(digits), room = pen.measureText(text).width;
      if (x + room / 2 < width) pen.fillText(text, x - room / 2, TOP / 2);
    }
    pen.fillStyle = colours.rule;
    pen.fillRect(LEFT, TOP - 1, width - LEFT, 1);
  }

  const later = () => { if (!drawn) drawn = requestAnimationFrame(draw); };

  function bound() {
    const most = view.length, room = Math.max(last - first, LEAST);
    first = Math.max(0, Math.min(first, most - room));
    last = Math.min(most, first + room);
    tall = Math.max(fitted(), Math.min(120, tall));
    scroll = Math.max(0, Math.min(scroll, rowsOf().length * tall - (canvas.clientHeight - TOP)));
    later();
  }

  function zoom(factor, at) {
    const time = at === undefined ? (first + last) / 2 : timeAt(at), room = Math.min(view.length, Math.max(LEAST, (last - first) * factor));
    const share = (time - first) / (last - first);
    first = time - share * room;
    last = first + room;
    bound();
  }

  function resize(factor, at) {
    const middle = at === undefined ? (canvas.clientHeight - TOP) / 2 : at - TOP, row = (scroll + middle) / tall;
    tall = Math.max(fitted(), Math.min(120, tall * factor));
    scroll = row * tall - middle;
    bound();
  }

  // Few rows need less room than many.
  const place = () => { canvas.style.height = `${Math.min(rowsOf().length > 64 ? 560 : 416, TOP + 60 * rowsOf().length + 4)}px`; };
  const whole = () => { place(); first = 0; last = view.length; tall = fitted(); scroll = 0; hover = null; bound(); };

  function tell(found) {
    hover = found;
    if (found) {
      const [n, band, span] = found, [name, part, count] = data.events[span[2]], row = rowsOf()[n];
      says.textContent = `rank ${row[0]}, ${data.sources[row[1]]}, ${band.stream}: ${name} (${data.parts[part][0]}), ` +
        `${seconds(span[1] - span[0])} from ${seconds(span[0])}${bytes(count)}`;
    } else says.textContent = "";
    later();
  }

  function find(x, y) {
    const n = Math.floor((y - TOP + scroll) / tall), row = rowsOf()[n];
    if (!row || x < LEFT || y < TOP) return null;
    const inside = y - TOP + scroll - n * tall, time = timeAt(x), slack = ((last - first) / wide()) * 2;
    for (const band of bands(row).reverse()) {
      if (inside < band.y || inside > band.y + band.high) continue;
      const span = band.spans[from(band.spans, time - slack)];
      if (span && span[0] <= time + slack) return [n, band, span];
    }
    return null;
  }

  // The next span of the lane, or of the first one that is seen.
  function step(by) {
    if (!hover) {
      const n = Math.min(rowsOf().length - 1, Math.ceil(scroll / tall)), shown = bands(rowsOf()[n]);
      const starts = shown.map((band) => band.spans.find((span) => span[0] >= first && span[0] < last));
      const seen = starts.findIndex((span) => span);
      if (seen >= 0) tell([n, shown[seen], starts[seen]]);
      return;
    }
    const [n, band, span] = hover, row = bands(rowsOf()[n]).find((one) => one.stream === band.stream);
    const next = row && row.spans[row.spans.indexOf(span) + by];
    if (!next) return;
    const room = last - first;
    if (next[0] < first || next[1] > last) { first = (next[0] + next[1] - room) / 2; last = first + room; bound(); }
    tell([n, row, next]);
  }

  const actions = { in: () => zoom(0.5), out: () => zoom(2), all: whole, taller: () => resize(1.5), lower: () => resize(1 / 1.5) };
  for (const button of figure.querySelectorAll("button")) button.addEventListener("click", () => actions[button.dataset.do]());

  canvas.addEventListener("keydown", (event) => {
    const room = last - first;
    const keys = {
      ArrowLeft: () => { first -= room / 10; last -= room / 10; bound(); },
      ArrowRight: () => { first += room / 10; last += room / 10; if (last > view.length) { first = view.length - room; last = view.length; } bound(); },
      ArrowUp: () => { scroll -= 3 * tall; bound(); },
      ArrowDown: () => { scroll += 3 * tall; bound(); },
      PageUp: () => { scroll -= canvas.clientHeight - TOP; bound(); },
      PageDown: () => { scroll += canvas.clientHeight - TOP; bound(); },
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
      "[": () => resize(1 / 1.3), "]": () => resize(1.3), ",": () => step(-1), ".": () => step(1), "0": whole, Home: whole,
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(event.deltaY / 300), event.offsetX);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = ((event.deltaX || event.deltaY) / wide()) * (last - first);
      first += by;
      last += by;
      bound();
    }
  }, { passive: false });

  let grip = null;
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.offsetX, y: event.offsetY, first, last, scroll };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { grip = null; });
  canvas.addEventListener("pointercancel", () => { grip = null; });
  canvas.addEventListener("pointerleave", () => { if (!grip) tell(null); });
  canvas.addEventListener("pointermove", (event) => {
    if (!grip) { tell(find(event.offsetX, event.offsetY)); return; }
    const room = grip.last - grip.first, by = ((event.offsetX - grip.x) / wide()) * room;
    first = Math.max(0, Math.min(view.length - room, grip.first - by));
    last = first + room;
    scroll = grip.scroll - (event.offsetY - grip.y);
    bound();
  });

  const table = figure.querySelector(".spans"), ask = table.querySelector("input"), spot = table.querySelector(".wide");
  function cell(row, text, kind) {
    const one = document.createElement(kind || "td");
    one.textContent = text;
    row.append(one);
  }
  function list() {
    if (!table.open) return;
    const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    for (const name of ["source", "stream", "instruction", "part", "start", "length", "bytes"]) cell(head, name, "th");
    const rows = rowsOf().filter((row) => row[0] === Number(ask.value));
    for (const row of rows) for (const [stream, lane] of row[2]) for (const [start, end, event] of lanes[lane]) {
      const line = body.insertRow(), [name, part, count] = data.events[event];
      for (const text of [data.sources[row[1]], stream, name, data.parts[part][0], seconds(start), seconds(end - start), count || ""]) cell(line, text);
    }
    spot.replaceChildren(made);
    if (!rows.length) spot.textContent = "No such rank is drawn.";
  }
  table.addEventListener("toggle", list);
  ask.addEventListener("input", list);

  view.rows.length && (ask.value = view.rows[0][0], ask.max = view.rows[view.rows.length - 1][0]);
  data.views.forEach((one, n) => select.add(new Option(one.name, n)));
  figure.querySelector(".steps").hidden = data.views.length < 2;
  select.addEventListener("change", () => { view = data.views[Number(select.value)]; whole(); list(); });
  const used = new Set();
  for (const one of data.views) for (const row of one.rows) for (const [, lane] of row[2]) for (const span of lanes[lane]) used.add(data.events[span[2]][1]);
  const legend = figure.querySelector(".legend");
  data.parts.forEach(([name, colour], n) => {
    if (!used.has(n)) return;
    const entry = document.createElement("li"), mark = document.createElement("i");
    mark.style.background = `var(${colour})`;
    entry.append(mark, name);
    legend.append(entry);
  });
  for (const one of figure.querySelectorAll("[data-off]")) delete one.dataset.off;
  const repaint = () => { readColours(); later(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  // What is printed is drawn before the paper is there.
  addEventListener("beforeprint", () => { readColours(); draw(); });
  addEventListener("afterprint", repaint);
  new ResizeObserver(bound).observe(canvas);
  readColours();
  whole();
})();
