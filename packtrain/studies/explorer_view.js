"use strict";
// A search drawn on a canvas: the spanning tree by d3-hierarchy, further edges as curves; only what is in view is drawn.
const ExplorerView = (() => {
  const { number, stateOf } = explorerData;
  const WIDE = 225; // world units between levels
  const FIRST = 48; // nodes that are shown at first
  const READABLE = 0.62; // scale at first, where everything does not fit
  const RAMP = { light: [[222, 226, 233], [0, 89, 155]], dark: [[58, 66, 78], [124, 192, 245]] };
  const HOT = { light: [[232, 226, 218], [176, 74, 0]], dark: [[64, 58, 50], [255, 164, 84]] };
  const pictures = new Map();

  function picture(data, redraw) {
    if (!pictures.has(data)) {
      const image = new Image();
      image.onload = redraw;
      image.src = `data:image/png;base64,${data}`;
      pictures.set(data, image);
    }
    const image = pictures.get(data);
    return image.complete && image.naturalWidth ? image : null;
  }
  const mix = ([a, b], share) => `rgb(${a.map((one, at) => Math.round(one + (b[at] - one) * share)).join(",")})`;

  // Width divided by height of a PNG, from its header.
  function aspect(data) {
    const bytes = atob(data.slice(0, 32));
    const at = (place) => (bytes.charCodeAt(place + 2) << 8) | bytes.charCodeAt(place + 3);
    return at(16) / Math.max(1, at(20));
  }

  class View {
    constructor(canvas, callbacks) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d", { alpha: false });
      this.callbacks = callbacks; // select(node), hover(node, x, y), toggled()
      this.scale = 1;
      this.x = this.y = 0;
      this.selected = 0;
      this.matches = new Set();
      this.colour = "auto";
      this.frames = 0;
      this.listen();
      new ResizeObserver(() => this.resize()).observe(canvas);
    }
    // -- what is shown
    show(search, keep) {
      const before = keep && this.search ? this.statesShown() : null;
      this.search = search;
      this.selected = 0;
      this.open = new Uint8Array(search.size);
      this.range();
      this.openFirst(before);
      this.layout();
      if (!keep) this.fit(true);
      else this.centreRoot();
    }
    statesShown() {
      const states = new Set();
      for (let node = 0; node < this.search.size; node++) if (this.open[node]) states.add(this.search.state(node));
      return states;
    }
    openFirst(before) {
      const { search } = this;
      if (search.size <= FIRST) {
        this.open.fill(1);
        return;
      }
      let shown = 1 + search.kids[0].length;
      this.open[0] = 1;
      const weight = (node) => {
        const visits = search.node("visits", node);
        return (search.pathNodes.has(node) ? 1e12 : 0) + (visits === null ? 1e6 - search.depth[node] : visits);
      };
      const waiting = search.kids[0].slice();
      while (waiting.length && shown < FIRST) {
        waiting.sort((a, b) => weight(a) - weight(b));
        const node = waiting.pop();
        if (!search.kids[node].length) continue;
        this.open[node] = 1;
        shown += search.kids[node].length;
        waiting.push(...search.kids[node]);
      }
      for (const node of search.pathNodes) this.open[node] = 1;
    }
    range() {
      const { edges } = this.search;
      const has = (name) => edges[name] && edges[name].some((one) => typeof one === "number");
      const order = ["visits", "disagreement", "value", "prior", "bonus", "reward"];
      this.colours = order.filter(has);
      const wanted = has("disagreement") ? "disagreement" : this.colours[0];
      this.by = this.colour !== "auto" && has(this.colour) ? this.colour : wanted;
      const known = this.by ? edges[this.by].filter((one) => typeof one === "number") : [];
      this.least = known.reduce((a, b) => Math.min(a, b), Infinity);
      this.most = known.reduce((a, b) => Math.max(a, b), -Infinity);
      this.mostVisits = (edges.visits || []).reduce((a, b) => Math.max(a, b || 0), 1);
    }
    height() {
      const { episode, order } = this.search;
      const one = order.map((node) => stateOf(episode, this.search.state(node))).find((state) => state && state.picture);
      return aspect(one.picture) > 2 ? 62 : 96;
    }
    layout() {
      const { search } = this;
      const withPictures = search.order.some((node) => (stateOf(search.episode, search.state(node)) || {}).picture);
      this.tall = withPictures ? this.height() : 44;
      const root = d3.hierarchy(0, (node) => (this.open[node] ? search.kids[node] : null));
      d3.tree().nodeSize([this.tall, WIDE]).separation((a, b) => (a.parent === b.parent ? 1 : 1.15))(root);
      this.places = new Map();
      this.shown = [];
      root.eachBefore((one) => {
        this.places.set(one.data, this.shown.length);
        const up = one.parent ? this.places.get(one.parent.data) : -1;
        this.shown.push({ node: one.data, level: one.depth, x: 0, y: one.x, up });
      });
      this.levels = this.shown.reduce((most, one) => Math.max(most, one.level), 1);
      this.spread(true);
      this.bounds = this.shown.reduce((box, one) => [Math.min(box[0], one.y), Math.max(box[1], one.y)], [0, 0]);
      this.extras = [];
      const { from, to } = search.edges;
      this.loops = new Map();
      for (let edge = 0; edge < search.count; edge++) {
        if (!this.places.has(from[edge])) continue;
        if (from[edge] === to[edge]) {
          if (!this.loops.has(from[edge])) this.loops.set(from[edge], []);
          this.loops.get(from[edge]).push(edge);
        } else if (this.places.has(to[edge]) && search.parent[to[edge]] !== edge) this.extras.push(edge);
      }
      this.draw();
    }
    // Levels stay apart on the screen however small the nodes are: a large tree is seen as a whole.
    spread(anew = false) {
      const least = Math.min(140, (this.canvas.clientWidth - 210) / this.levels);
      const wide = Math.max(WIDE, least / this.scale);
      if (wide === this.wide && !anew) return;
      this.wide = wide;
      for (const one of this.shown) one.x = one.level * wide;
    }
    place(node) {
      const at = this.places.get(node);
      return at === undefined ? null : this.shown[at];
    }
    // -- the window on it
    resize() {
      const { clientWidth, clientHeight } = this.canvas;
      this.ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.max(1, Math.round(clientWidth * this.ratio));
      this.canvas.height = Math.max(1, Math.round(clientHeight * this.ratio));
      if (this.search && !this.fitted) this.fit(true);
      else if (this.search) this.spread();
      this.draw();
    }
    fit(first = false) {
      const { clientWidth: width, clientHeight: height } = this.canvas;
      if (!width || !height) return;
      this.fitted = true;
      const [left, top, right, bottom] = this.search.kind === "sequences" ? this.plotBox() : [0, this.bounds[0], this.levels * WIDE, this.bounds[1]];
      const across = (width - 40) / (right - left + 210), down = (height - 40) / (bottom - top + 80);
      this.scale = Math.max(1e-5, Math.min(1.1, across, down));
      if (this.search.kind === "sequences") this.scale = Math.min(1.4, across * 1.15);
      else if (first && this.scale < READABLE) {
        this.scale = READABLE; // better readable in part than whole and not at all
        this.centreRoot();
        return;
      }
      this.spread();
      const end = this.search.kind === "sequences" ? right : this.levels * this.wide;
      this.x = (width - (left + end) * this.scale) / 2;
      this.y = (height - (top + bottom) * this.scale) / 2;
      if (this.search.kind === "sequences") this.y = 30;
      this.draw();
    }
    centreRoot() {
      this.spread();
      this.x = 90 * Math.max(0.6, this.scale);
      this.y = this.canvas.clientHeight / 2 - this.place(0).y * this.scale;
      if (this.search.kind === "sequences") this.y = 30;
      this.draw();
    }
    zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
      const before = [this.scale, this.scale * this.wide];
      this.scale = Math.max(1e-5, Math.min(4, this.scale * factor));
      this.spread();
      const across = this.search.kind === "sequences" ? this.scale / before[0] : (this.scale * this.wide) / before[1];
      this.x = x - (x - this.x) * across;
      this.y = y - ((y - this.y) * this.scale) / before[0];
      this.draw();
    }
    reveal(node) {
      const { search } = this;
      let changed = false;
      for (let up = node; up !== 0; ) {
        if (search.parent[up] < 0) return;
        up = search.edges.from[search.parent[up]];
        if (!this.open[up]) this.open[up] = changed = 1;
      }
      if (changed) this.layout();
      const at = this.place(node), { clientWidth: width, clientHeight: height } = this.canvas;
      const x = this.x + at.x * this.scale, y = this.y + at.y * this.scale;
      if (x < 60 || x > width - 120) this.x += width / 2 - x;
      if (y < 40 || y > height - 40) this.y += height / 2 - y;
      this.draw();
    }
    select(node, tell = true) {
      this.selected = node;
      this.reveal(node);
      if (tell) this.callbacks.select(node);
    }
    toggle(node, all = false) {
      if (!this.search.kids[node].length) return;
      const open = this.open[node] ? 0 : 1;
      const stack = [node];
      while (stack.length) {
        const one = stack.pop();
        this.open[one] = open;
        if (all || !open) stack.push(...this.search.kids[one]);
      }
      const at = this.place(node), y = at ? at.y : 0;
      this.layout();
      const now = this.place(node);
      if (now) this.y += (y - now.y) * this.scale;
      this.draw();
      this.callbacks.toggled();
    }
    openAll(open) {
      this.open.fill(open ? 1 : 0);
      if (!open) for (const node of this.search.pathNodes) this.open[node] = 1;
      if (!this.places.has(this.selected)) this.selected = 0;
      this.layout();
      this.fit();
      this.callbacks.toggled();
    }
    // -- drawing
    draw() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        if (this.search) this.paint();
      });
    }
    theme() {
      const style = getComputedStyle(document.documentElement);
      const names = ["page", "card", "ink", "muted", "edge", "link", "bad", "good", "check"];
      this.ink = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      const bright = parseInt(this.ink.card.slice(1, 3), 16) > 128 ? "light" : "dark";
      this.ramp = (this.by === "disagreement" ? HOT : RAMP)[bright];
    }
    paint() {
      this.theme();
      const { context, ink, search } = this;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.fillStyle = ink.card;
      context.fillRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
      context.setTransform(this.ratio * this.scale, 0, 0, this.ratio * this.scale, this.ratio * this.x, this.ratio * this.y);
      this.view = [
        (-this.x - 160) / this.scale,
        (-this.y - 80) / this.scale,
        (this.canvas.clientWidth - this.x + 160) / this.scale,
        (this.canvas.clientHeight - this.y + 80) / this.scale,
      ];
      this.frames += 1;
      if (search.kind === "sequences") explorerPlot(this);
      else if (this.scale < 0.22) this.paintSmall();
      else this.paintLarge();
    }
    inView(one, up) {
      const [left, top, right, bottom] = this.view;
      const low = up ? Math.min(one.y, up.y) : one.y, high = up ? Math.max(one.y, up.y) : one.y;
      return one.x >= left && (up ? up.x : one.x) <= right && high >= top && low <= bottom;
    }
    share(edge) {
      const value = this.by ? this.search.edges[this.by][edge] : null;
      if (typeof value !== "number" || this.most <= this.least) return 0.35;
      const share = (value - this.least) / (this.most - this.least);
      return this.by === "visits" ? Math.sqrt(share) : share;
    }
    // Thousands of nodes: straight lines and squares, one path for each of a few colours.
    paintSmall() {
      const { context, search, shown, ink } = this;
      const lines = new Map(), dots = new Map(), drawn = new Set();
      const group = (map, key) => map.get(key) || map.set(key, []).get(key);
      for (const one of shown) {
        const up = one.up < 0 ? null : shown[one.up], edge = search.parent[one.node];
        if (!this.inView(one, up)) continue;
        const key = up && search.onPath[edge] ? "path" : up && search.wrong[edge] ? "bad" : up ? Math.round(this.share(edge) * 5) : 0;
        if (typeof key === "number" && !this.matches.has(one.node)) {
          const pixel = Math.round(one.x * this.scale) * 65536 + Math.round(one.y * this.scale) * 8 + key;
          if (drawn.has(pixel)) continue; // another node of this colour is at the same place
          drawn.add(pixel);
        }
        if (up) group(lines, key).push(one, up);
        const lies = (this.loops.get(one.node) || []).some((mine) => search.wrong[mine]);
        const mark = this.matches.has(one.node) ? "match" : lies ? "bad" : search.pathNodes.has(one.node) ? "path" : key;
        group(dots, mark).push(one);
      }
      const colour = (key) => (key === "path" ? ink.link : key === "bad" ? ink.bad : key === "match" ? ink.check : mix(this.ramp, 0.2 + key / 6.25));
      const thin = 0.8 / this.scale;
      const keys = (map) => [...map.keys()].sort((a, b) => (typeof a === "number" ? a : 9) - (typeof b === "number" ? b : 9));
      for (const key of keys(lines)) {
        const pairs = lines.get(key);
        context.strokeStyle = colour(key);
        context.lineWidth = key === "path" ? 3 * thin : thin;
        context.beginPath();
        for (let at = 0; at < pairs.length; at += 2) {
          context.moveTo(pairs[at + 1].x, pairs[at + 1].y);
          context.lineTo(pairs[at].x, pairs[at].y);
        }
        context.stroke();
      }
      const side = Math.max(2.4 / this.scale, 10);
      for (const key of keys(dots)) {
        context.fillStyle = colour(key);
        const size = typeof key === "number" ? side : 2 * side;
        for (const one of dots.get(key)) context.fillRect(one.x - size / 2, one.y - size / 2, size, size);
      }
      const at = this.place(this.selected);
      if (at) {
        context.strokeStyle = ink.ink;
        context.lineWidth = 2 / this.scale;
        context.strokeRect(at.x - 2 * side, at.y - 2 * side, 4 * side, 4 * side);
      }
    }
    paintLarge() {
      const { shown } = this;
      explorerInk.extras(this);
      for (const one of shown) if (one.up >= 0 && this.inView(one, shown[one.up])) explorerInk.edge(this, one, shown[one.up]);
      for (const one of shown) if (this.inView(one)) explorerInk.node(this, one);
      if (this.scale > 0.4) for (const one of shown) if (one.up >= 0 && this.inView(one)) explorerInk.label(this, one);
    }
    edgeColour(edge) {
      const { search, ink } = this;
      if (search.wrong[edge]) return ink.bad;
      if (search.onPath[edge]) return ink.link;
      return mix(this.ramp, 0.15 + 0.85 * this.share(edge));
    }
    edgeWidth(edge) {
      const visits = this.search.edge("visits", edge);
      const wide = visits === null ? 1.6 : 1 + 6 * Math.sqrt(visits / this.mostVisits);
      return this.search.onPath[edge] ? Math.max(3.2, wide) : wide;
    }
    image(node) {
      const state = stateOf(this.search.episode, this.search.state(node));
      return state && state.picture ? picture(state.picture, () => this.draw()) : null;
    }
    // -- mouse and fingers
    nodeAt(x, y) {
      const wx = (x - this.x) / this.scale, wy = (y - this.y) / this.scale;
      const reach = Math.max(0, 6 / this.scale - 20);
      return this.shown.find((one) => Math.abs(one.x - wx) < 52 + reach && Math.abs(one.y - wy) < this.tall / 2 + reach);
    }
    listen() {
      const { canvas } = this;
      const pointers = new Map();
      const where = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, where(event));
        this.moved = 0;
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = where(event), before = pointers.get(event.pointerId);
        if (!before) {
          const one = this.search && this.search.kind !== "sequences" ? this.nodeAt(x, y) : null;
          canvas.style.cursor = one ? "pointer" : "grab";
          this.callbacks.hover(one ? one.node : null, x, y);
          return;
        }
        if (pointers.size === 2) {
          const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
          const far = Math.hypot(x - other[0], y - other[1]), was = Math.hypot(before[0] - other[0], before[1] - other[1]);
          if (was > 0) this.zoom(far / was, (x + other[0]) / 2, (y + other[1]) / 2);
        } else {
          this.x += x - before[0];
          this.y += y - before[1];
          this.draw();
        }
        this.moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
        pointers.set(event.pointerId, [x, y]);
      });
      const end = (event) => {
        const was = pointers.get(event.pointerId);
        pointers.delete(event.pointerId);
        if (!was || this.moved > 4 || event.type !== "pointerup" || this.search.kind === "sequences") return;
        const one = this.nodeAt(...was);
        if (!one) return;
        this.select(one.node);
        const right = (was[0] - this.x) / this.scale - one.x;
        if (right > 40) this.toggle(one.node);
      };
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
      canvas.addEventListener("pointerleave", () => this.callbacks.hover(null, 0, 0));
      canvas.addEventListener("dblclick", (event) => {
        const one = this.search.kind !== "sequences" && this.nodeAt(...where(event));
        if (one) this.toggle(one.node);
        else this.fit();
      });
      canvas.addEventListener(
        "wheel",
        (event) => {
          event.preventDefault();
          const [x, y] = where(event);
          this.zoom(Math.exp(-Math.max(-80, Math.min(80, event.deltaY)) * 0.004), x, y);
        },
        { passive: false },
      );
    }
    plotDims() {
      const { plan } = this.search.sequences;
      return plan.length ? Math.max(1, plan[0].length) : 1;
    }
    plotHeight() {
      return Math.max(150, 460 / this.plotDims() - 50);
    }
    plotBox() {
      return [-60, -20, 960, (this.plotHeight() + 50) * this.plotDims()];
    }
    describe(node) {
      const { search } = this;
      const edge = search.parent[node], by = edge < 0 ? "root" : `after ${search.name(edge)}`;
      const parts = [`${by}, depth ${search.depth[node]}`, `value ${number(search.value(node))}`];
      const visits = search.node("visits", node);
      if (visits !== null) parts.push(`${number(visits)} visits`);
      if (search.node("terminal", node)) parts.push("terminal");
      if (edge >= 0 && search.wrong[edge]) parts.push("wrong prediction");
      const hidden = this.open[node] ? 0 : search.below[node];
      if (hidden) parts.push(`${hidden} nodes hidden`);
      return parts.join(", ");
    }
  }
  return View;
})();
