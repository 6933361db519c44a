"use strict";
// The data of the page: episodes, and the search of one decision as a spanning tree with further edges.
const explorerData = (() => {
  const page = JSON.parse(document.getElementById("data").textContent);

  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2);
    return String(+value.toFixed(size >= 100 ? 1 : digits));
  };
  const actionName = (episode, action) => {
    if (Array.isArray(action)) return `[${action.map((one) => number(one, 2)).join(", ")}]`;
    const name = typeof action === "number" ? episode.actions[action] : undefined;
    return name === undefined ? String(action) : name;
  };

  // What really followed on (state, action) in an episode, from its steps.
  const realSteps = (episode) => {
    if (episode.real) return episode.real;
    episode.real = new Map();
    let here = episode.start;
    for (const step of episode.steps) {
      if (typeof step.action === "number") episode.real.set(`${here} ${step.action}`, step.to);
      here = step.to;
    }
    return episode.real;
  };
  const stateBefore = (episode, index) => (index ? episode.steps[index - 1].to : episode.start);

  class Search {
    // Fields: size, edges, out[node] = edges, parent[node] = edge, depth, kids[node] = nodes, onPath, wrong, falseLoop.
    constructor(episode, index) {
      this.episode = episode;
      this.step = episode.steps[index];
      this.index = index;
      const found = this.step.search;
      this.kind = found ? found.kind : "none";
      this.planner = found ? found.planner : "";
      this.leftOut = found ? found.left_out : 0;
      this.nodes = found ? found.nodes : { state: [stateBefore(episode, index)] };
      this.edges = (found && found.edges) || { from: [], to: [], action: [] };
      this.path = found ? found.path : [];
      this.sequences = found ? found.sequences : null;
      this.size = this.nodes.state.length;
      this.count = this.edges.from.length;
      this.span();
      this.check();
    }
    span() {
      const { from, to } = this.edges;
      this.out = Array.from({ length: this.size }, () => []);
      for (let edge = 0; edge < this.count; edge++) this.out[from[edge]].push(edge);
      this.onPath = new Uint8Array(this.count);
      for (const edge of this.path) this.onPath[edge] = 1;
      this.parent = new Int32Array(this.size).fill(-1);
      this.depth = new Int32Array(this.size).fill(-1);
      this.depth[0] = 0;
      const queue = [0];
      for (let place = 0; place < queue.length; place++) {
        const node = queue[place];
        for (const edge of this.out[node]) {
          const child = to[edge];
          if (this.depth[child] < 0) {
            this.depth[child] = this.depth[node] + 1;
            this.parent[child] = edge;
            queue.push(child);
          } else if (this.onPath[edge] && this.depth[child] === this.depth[node] + 1) this.parent[child] = edge;
        }
      }
      this.order = queue;
      this.kids = Array.from({ length: this.size }, () => []);
      for (const node of queue) if (node) this.kids[from[this.parent[node]]].push(node);
      this.below = new Int32Array(this.size);
      for (let place = queue.length - 1; place > 0; place--) {
        const node = queue[place];
        this.below[from[this.parent[node]]] += 1 + this.below[node];
      }
      this.pathNodes = new Set([0, ...this.path.map((edge) => to[edge])]);
    }
    // Compare edges of a learned model with what really happens.
    check() {
      const { from, to, action, truth, verified } = this.edges;
      this.wrong = new Uint8Array(this.count);
      this.falseLoops = 0;
      this.wrongCount = 0;
      if (!verified && !truth) return;
      const real = realSteps(this.episode);
      for (let edge = 0; edge < this.count; edge++) {
        const known = this.truth(edge, real);
        if (known === null || this.state(to[edge]) < 0) continue;
        this.wrong[edge] = known !== this.state(to[edge]) ? 1 : 0;
        this.wrongCount += this.wrong[edge];
        this.falseLoops += this.wrong[edge] && from[edge] === to[edge] ? 1 : 0;
      }
    }
    truth(edge, real = realSteps(this.episode)) {
      const given = this.edges.truth ? this.edges.truth[edge] : null;
      if (given !== null && given !== undefined) return given;
      const found = real.get(`${this.state(this.edges.from[edge])} ${this.edges.action[edge]}`);
      return found === undefined ? null : found;
    }
    state(node) {
      return this.nodes.state[node];
    }
    isLoop(edge) {
      return this.edges.from[edge] === this.edges.to[edge];
    }
    node(name, node) {
      return this.nodes[name] ? this.nodes[name][node] : null;
    }
    edge(name, edge) {
      return this.edges[name] ? this.edges[name][edge] : null;
    }
    name(edge) {
      return actionName(this.episode, this.edges.action[edge]);
    }
    text(node) {
      return stateText(this.episode, this.state(node));
    }
    // The edge along which the real step went, if the search has it.
    taken() {
      return this.out[0].find((edge) => this.edges.action[edge] === this.step.action);
    }
    value(node) {
      const own = this.node("value", node);
      if (own !== null && own !== undefined) return own;
      const edge = this.parent[node];
      if (edge >= 0) return this.edge("value", edge);
      const known = this.step.extras.value;
      return typeof known === "number" ? known : null;
    }
  }
  const stateOf = (episode, state) => (state >= 0 ? episode.states[state] : undefined);
  const stateText = (episode, state) => {
    const known = stateOf(episode, state);
    return known ? known.text || known.values || "" : "";
  };
  return { page, number, actionName, Search, stateOf, stateText, stateBefore };
})();
