"use strict";
// Controls of the page: panes with an episode and its decisions each, details of nodes, search, keyboard, theme.
(() => {
  const { page, number, actionName, Search, stateOf, stateText, stateBefore } = explorerData;
  const el = (name, values = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(values)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter((one) => one !== null && one !== undefined));
    return made;
  };
  const by = (id) => document.getElementById(id);

  function stateView(episode, state, title, brief = false) {
    const known = stateOf(episode, state);
    const box = el("div", { class: "state" });
    if (title) box.append(el("div", { class: "note" }, title));
    if (!known) box.append(el("div", { class: "note" }, state < 0 ? "not recorded" : `state ${state}, not in the file`));
    else {
      if (known.picture) {
        const alt = `picture of state ${state}`;
        box.append(el("img", { src: `data:image/png;base64,${known.picture}`, alt }));
      }
      if (brief && known.picture) return box;
      if (known.text) box.append(el("pre", { tabindex: 0, "aria-label": `state ${state} as text` }, known.text));
      else if (known.values) box.append(el("pre", { class: "values", tabindex: 0, "aria-label": `state ${state} as numbers` }, known.values));
    }
    return box;
  }
  const fact = (name, value, kind = "") => el("div", { class: `fact ${kind}` }, el("dt", {}, name), el("dd", {}, value));

  class Pane {
    constructor(place, group) {
      this.place = place;
      this.id = (name) => `${name}${place}`;
      this.build();
      this.view = new ExplorerView(this.canvas, {
        select: () => this.details(),
        hover: (node, x, y) => this.tip(node, x, y),
        toggled: () => this.announce(),
      });
      const first = page.episodes.findIndex((one) => one.group === group);
      this.open(Math.max(0, first), 0);
    }
    build() {
      const label = (text, name) => el("label", { for: this.id(name), class: "unseen" }, text);
      const options = page.episodes.map((one, at) => el("option", { value: at }, one.title));
      this.choice = el("select", { id: this.id("episode"), onchange: () => this.open(+this.choice.value, 0) }, ...options);
      this.slider = el("input", {
        id: this.id("decision"), type: "range", min: 0, value: 0, step: 1,
        oninput: () => this.decide(+this.slider.value, true),
      });
      this.where = el("output", { for: this.id("decision"), class: "where" });
      const button = (text, title, act) => el("button", { type: "button", title, "aria-label": title, onclick: act }, text);
      this.colours = el("select", {
        id: this.id("colour"), onchange: () => {
          this.view.colour = this.colours.value;
          this.view.range();
          this.view.draw();
        },
      });
      this.treeTools = [
        button("Expand all", "Expand all nodes", () => this.view.openAll(true)),
        button("Plan only", "Plan only: collapse all other nodes", () => this.view.openAll(false)),
      ];
      this.strip = el("canvas", { class: "strip", height: 34, "aria-hidden": "true" });
      this.strip.addEventListener("click", (event) => {
        const share = event.offsetX / Math.max(1, this.strip.clientWidth);
        this.decide(Math.min(this.episode.steps.length - 1, Math.floor(share * this.episode.steps.length)), true);
      });
      this.canvas = el("canvas", {
        class: "search", tabindex: 0, role: "application", "aria-describedby": "keys",
        "aria-label": "Search of this decision; arrow keys move along it",
      });
      this.hint = el("div", { class: "tip", hidden: true });
      this.status = el("p", { class: "status", role: "status" });
      this.side = el("div", { class: "side" });
      this.element = el(
        "section", { class: "pane", "aria-label": `Search ${this.place + 1}` },
        el("div", { class: "bar" },
          label("Episode", "episode"), this.choice,
          button("◀", "Previous decision", () => this.decide(this.index - 1, true)),
          label("Decision", "decision"), this.slider,
          button("▶", "Next decision", () => this.decide(this.index + 1, true)), this.where),
        this.strip,
        el("div", { class: "bar tools" },
          button("−", "Zoom out", () => this.view.zoom(1 / 1.3)), button("+", "Zoom in", () => this.view.zoom(1.3)),
          button("Fit", "Fit everything into view", () => this.view.fit()),
          ...this.treeTools,          el("label", {}, "Colour ", this.colours)),
        el("div", { class: "stage" }, el("div", { class: "canvas" }, this.canvas, this.hint), this.side),
        this.status,
      );
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.drawStrip()).observe(this.strip);
    }
    open(at, index) {
      this.episode = page.episodes[at];
      this.choice.value = String(at);
      this.slider.max = Math.max(0, this.episode.steps.length - 1);
      this.decide(index, false);
    }
    decide(index, keep) {
      const count = this.episode.steps.length;
      index = Math.max(0, Math.min(count - 1, index));
      if (keep && index === this.index) return;
      this.index = index;
      this.search = new Search(this.episode, index);
      this.slider.value = String(index);
      const text = `decision ${index + 1} of ${count}`;
      this.where.textContent = text;
      this.slider.setAttribute("aria-valuetext", text);
      this.view.candidate = undefined;
      for (const tool of this.treeTools) tool.hidden = this.search.kind === "sequences";
      this.view.show(this.search, keep);
      const names = { auto: "automatic" };
      this.colours.replaceChildren(...["auto", ...this.view.colours].map((one) => el("option", { value: one }, names[one] || one)));
      this.colours.value = this.view.colours.includes(this.view.colour) ? this.view.colour : "auto";
      find(by("find").value, false);
      this.drawStrip();
      this.details();
      if (keep && by("together").checked) for (const other of panes) if (other !== this) other.decide(index, true);
    }
    // The decisions of the episode: a bar for each value, marks for verified, wrong and random ones.
    drawStrip() {
      if (!this.episode || !this.strip.clientWidth) return;
      const { strip, episode } = this, ratio = window.devicePixelRatio || 1;
      const wide = strip.clientWidth, high = 34, count = episode.steps.length;
      strip.width = wide * ratio;
      strip.height = high * ratio;
      const context = strip.getContext("2d"), style = getComputedStyle(document.documentElement);
      const ink = (name) => style.getPropertyValue(`--${name}`).trim();
      context.scale(ratio, ratio);
      const values = episode.steps.map((step) => (typeof step.extras.value === "number" ? step.extras.value : null));
      const known = values.filter((one) => one !== null);
      const least = known.reduce((a, b) => Math.min(a, b), 0), most = known.reduce((a, b) => Math.max(a, b), 1e-9);
      episode.steps.forEach((step, at) => {
        const x = (at / count) * wide, w = Math.max(1, wide / count - 1);
        const share = values[at] === null ? 0 : (values[at] - least) / (most - least);
        context.fillStyle = at === this.index ? ink("link") : ink("edge");
        context.fillRect(x, high - 2 - share * (high - 14), w, share * (high - 14) + 2);
        const guess = step.predicted, wrong = guess && guess.to !== step.to;
        const mark = step.extras.verified === true ? "check" : wrong ? "bad" : step.reward > 0 ? "good" : step.extras.random_action === true ? "muted" : "";
        if (mark) {
          context.fillStyle = ink(mark);
          context.fillRect(x, 0, Math.max(3, w), 6);
        }
        if (step.extras.verified === true && wrong) {
          context.fillStyle = ink("bad");
          context.fillRect(x, 6, Math.max(3, w), 3);
        }
      });
    }
    details() {
      const { search, episode, view } = this, { step } = search, node = view.selected;
      const before = stateBefore(episode, this.index);
      this.side.replaceChildren(this.happened(step, before), search.kind === "sequences" ? this.candidates() : this.nodeDetails(node), this.extras(step));
      this.announce();
    }
    announce() {
      const { search, view } = this;
      const left = search.leftOut ? `; ${number(search.leftOut)} nodes left out of the trace` : "";
      const size = search.kind === "sequences" ? `${search.sequences.actions.length} sequences shown` : `${number(view.shown.length)} of ${number(search.size)} nodes shown`;
      const wrong = search.wrongCount ? `; ${search.wrongCount} wrong predictions, ${search.falseLoops} of them false loops` : "";
      const where = search.kind === "none" ? "no search was recorded" : `${search.planner}: ${size}${left}${wrong}`;
      const selected = search.kind === "sequences" || search.kind === "none" ? "" : `. Selected: ${view.describe(view.selected)}`;
      this.status.textContent = where + selected;
    }
    happened(step, before) {
      const { episode, search } = this, name = actionName(episode, step.action);
      const list = el("dl", { class: "facts" }, fact("action taken", name, "strong"), fact("reward", number(step.reward)));
      if (typeof step.extras.value === "number") list.append(fact("value of the plan", number(step.extras.value)));
      if (step.extras.verified === true) list.append(fact("why", "to verify: the model disagrees with itself here", "check"));
      else if (step.extras.random_action === true) list.append(fact("why", "at random"));
      const guess = step.predicted;
      const pictures = el("div", { class: "states" }, stateView(episode, before, "before", true));
      if (guess) {
        const loop = guess.to === before && step.to !== before;
        const right = guess.to === step.to && guess.terminated === (step.ended && guess.terminated);
        const word = right ? "as predicted" : loop ? "false loop: the model said that nothing changes" : "not as predicted";
        list.append(fact("the model was", word, right ? "good" : "bad"));
        if (guess.reward !== step.reward) list.append(fact("predicted reward", number(guess.reward), "bad"));
        if (guess.terminated && !step.ended) list.append(fact("predicted", "the end of the episode", "bad"));
        pictures.append(stateView(episode, guess.to, "predicted", true));
      }
      pictures.append(stateView(episode, step.to, step.ended ? "what happened: the end" : "what happened", true));
      return el("div", { class: "card" }, el("h2", {}, "This decision"), list, pictures);
    }
    nodeDetails(node) {
      const { search, episode, view } = this;
      const list = el("dl", { class: "facts" });
      for (const name of Object.keys(search.nodes)) {
        if (name === "state") continue;
        const value = search.nodes[name][node];
        if (value === null || value === false) continue;
        list.append(fact(name, number(value)));
      }
      list.append(fact("depth", number(search.depth[node])), fact("state", search.state(node) < 0 ? "not recorded" : `#${search.state(node)}`));
      const fields = Object.keys(search.edges).filter((name) => !["from", "to", "action", "truth", "terminated"].includes(name));
      const head = el("tr", {}, el("th", { scope: "col" }, "action"), ...fields.map((name) => el("th", { scope: "col" }, name)));
      const rows = search.out[node].map((edge) => {
        const to = search.edges.to[edge], wrong = search.wrong[edge];
        const name = el("button", { type: "button", class: "go", onclick: () => this.view.select(to) }, search.name(edge) + (search.onPath[edge] ? " ★" : ""));
        const cells = fields.map((field) => {
          const value = search.edge(field, edge);
          return el("td", {}, field === "verified" ? (value ? "✓" : "") : number(value));
        });
        const note = wrong ? el("div", { class: "bad" }, search.isLoop(edge) ? "false loop; really" : "wrong; really", ` #${search.truth(edge)}`) : null;
        return el("tr", {}, el("th", { scope: "row" }, name, note), ...cells);
      });
      const empty = rows.length ? null : el("p", { class: "note" }, "The search has no step from here.");
      const table = rows.length ? el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Actions of the selected node" },
        el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))) : null;
      const more = search.kids[node].length ? el("button", { type: "button", onclick: () => this.view.toggle(node) }, "Expand or collapse") : null;
      return el("div", { class: "card" }, el("h2", {}, node ? "Selected node" : "Selected node: the root"),
        el("div", { class: "states" }, stateView(episode, search.state(node))), list, more, empty, table);
    }
    candidates() {
      const { sequences } = this.search;
      const order = sequences.return.map((one, at) => at).sort((a, b) => (sequences.return[b] ?? -Infinity) - (sequences.return[a] ?? -Infinity));
      const rows = order.slice(0, 60).map((one) => {
        const show = () => {
          this.view.candidate = one;
          this.view.draw();
        };
        const go = el("button", { type: "button", class: "go", onclick: show, onfocus: show }, number(sequences.return[one]));
        return el("tr", {}, el("th", { scope: "row" }, go), el("td", {}, String(sequences.iteration[one])),
          el("td", {}, sequences.actions[one].length ? actionName(this.episode, sequences.actions[one][0]) : ""));
      });
      const head = el("tr", {}, ...["return", "iteration", "first action"].map((name) => el("th", { scope: "col" }, name)));
      return el("div", { class: "card" }, el("h2", {}, "Candidates, the best first"),
        el("p", { class: "note" }, "The bold line is the plan. Lines of good candidates are green; a chosen one is violet."),
        el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Candidates" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))));
    }
    extras(step) {
      const rows = Object.entries(step.extras).map(([name, value]) => {
        const shown = Array.isArray(value) ? value.slice(0, 24).map((one) => number(one)).join("  ") + (value.length > 24 ? " …" : "") : number(value);
        return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, shown));
      });
      const body = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Statistics of the decision" }, el("table", {}, el("tbody", {}, ...rows)));
      return el("details", {}, el("summary", {}, "Statistics of this decision"), body);
    }
    tip(node, x, y) {
      this.hint.hidden = node === null;
      if (node === null) return;
      const { search } = this, edge = search.parent[node];
      const lines = [el("div", { class: "title" }, this.view.describe(node))];
      if (edge >= 0) lines.push(el("div", {}, explorerInk.edgeWords(search, edge)));
      if (search.text(node)) lines.push(el("pre", {}, search.text(node)));
      this.hint.replaceChildren(...lines);
      const { clientWidth: wide, clientHeight: high } = this.canvas;
      this.hint.style.left = `${Math.max(4, Math.min(x + 16, wide - this.hint.offsetWidth - 8))}px`;
      this.hint.style.top = `${Math.max(4, y + 20 + this.hint.offsetHeight > high ? y - this.hint.offsetHeight - 14 : y + 18)}px`;
    }
    key(event) {
      const { view, search } = this, node = view.selected;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { key } = event;
      const pan = search.kind === "sequences" || event.shiftKey;
      const move = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[key];
      const parent = search.parent[node] < 0 ? 0 : search.edges.from[search.parent[node]];
      const acts = {
        "+": () => view.zoom(1.25), "=": () => view.zoom(1.25), "-": () => view.zoom(0.8), 0: () => view.fit(), f: () => view.fit(),
        Home: () => view.select(0), Enter: () => view.toggle(node), " ": () => view.toggle(node),
        ArrowLeft: () => view.select(parent), ArrowRight: () => this.child(node),
        ArrowUp: () => this.beside(node, -1), ArrowDown: () => this.beside(node, 1), b: () => this.best(node),
        PageDown: () => this.decide(this.index + 1, true), PageUp: () => this.decide(this.index - 1, true),
        n: () => this.decide(this.index + 1, true), p: () => this.decide(this.index - 1, true),
      };
      if (!(key in acts)) return;
      event.preventDefault();
      if (move && pan) {
        view.x += move[0];
        view.y += move[1];
        view.draw();
      } else acts[key]();
    }
    child(node) {
      const { search, view } = this;
      if (!search.kids[node].length) return;
      if (!view.open[node]) view.toggle(node);
      const weight = (one) => (search.pathNodes.has(one) ? 1e15 : search.node("visits", one) || 0);
      view.select(search.kids[node].reduce((a, b) => (weight(b) > weight(a) ? b : a)));
    }
    beside(node, step) {
      const { view, search } = this, depth = search.depth[node];
      const level = view.shown.filter((one) => search.depth[one.node] === depth).sort((a, b) => a.y - b.y);
      const at = level.findIndex((one) => one.node === node) + step;
      if (level[at]) view.select(level[at].node);
    }
    best(node) {
      const { search, view } = this;
      const edge = search.out[node].find((one) => search.onPath[one]);
      if (edge !== undefined && !search.isLoop(edge)) view.select(search.edges.to[edge]);
      else view.select(0);
    }
    // -- the search field
    matching(text) {
      const { search, episode } = this, found = [];
      if (!text || search.kind === "sequences") return found;
      const wanted = text.toLowerCase(), [, state] = /^#(\d+)$/.exec(text) || [];
      for (const node of search.order) {
        const edge = search.parent[node];
        const hit = state !== undefined ? search.state(node) === +state
          : (edge >= 0 && search.name(edge).toLowerCase() === wanted) || stateText(episode, search.state(node)).toLowerCase().includes(wanted);
        if (hit) found.push(node);
      }
      return found;
    }
  }

  const panes = [];
  let found = [], at = -1;
  function find(text, go) {
    found = [];
    for (const pane of panes) {
      const nodes = pane.matching(text.trim());
      pane.view.matches = new Set(nodes);
      found.push(...nodes.map((node) => [pane, node]));
      pane.view.draw();
    }
    at = -1;
    by("found").textContent = text.trim() ? `${found.length} found` : "";
    if (go) next(1);
  }
  function next(step) {
    if (!found.length) return;
    at = (at + step + found.length) % found.length;
    const [pane, node] = found[at];
    pane.view.select(node);
    by("found").textContent = `${at + 1} of ${found.length}`;
  }
  function compare(on) {
    while (panes.length > 1) panes.pop().element.remove();
    by("panes").classList.toggle("two", on);
    by("compare").setAttribute("aria-pressed", String(on));
    by("togetherLabel").hidden = !on;
    if (!on) return;
    const second = page.groups.length > 1 ? 1 : 0;
    const pane = new Pane(1, second);
    panes.push(pane);
    by("panes").append(pane.element);
    if (!second && page.episodes.length === 1) pane.decide(panes[0].index + 1, true);
    else if (!second) pane.open(page.episodes.length - 1, 0);
  }
  const themes = ["auto", "light", "dark"];
  function theme() {
    const now = document.documentElement.dataset.theme || "auto";
    const wanted = themes[(themes.indexOf(now) + 1) % themes.length];
    if (wanted === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = wanted;
    by("theme").textContent = `Theme: ${wanted}`;
    redraw();
  }
  function redraw() {
    for (const pane of panes) {
      pane.view.draw();
      pane.drawStrip();
    }
  }

  panes.push(new Pane(0, 0));
  by("panes").append(panes[0].element);
  by("controls").hidden = false;
  by("find").addEventListener("input", () => find(by("find").value, false));
  by("find").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    next(event.shiftKey ? -1 : 1);
  });
  by("compare").addEventListener("click", () => compare(panes.length === 1));
  by("theme").addEventListener("click", theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA|BUTTON|CANVAS|SUMMARY)$/.test(event.target.tagName);
    if (event.key === "/" && event.target !== by("find")) {
      event.preventDefault();
      by("find").focus();
    } else if (!typing && !event.target.closest(".scroll, pre") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      panes[0].decide(panes[0].index + (event.key === "ArrowLeft" ? -1 : 1), true);
    }
  });
  if (page.groups.length > 1) compare(true);
  window.packtrainExplorer = { panes, compare }; // for tests, and for the curious
})();
