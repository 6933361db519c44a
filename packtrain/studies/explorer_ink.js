"use strict";
// Nodes, edges and labels of a search at readable size, and the plot of action sequences.
const explorerInk = (() => {
  const { number } = explorerData;
  const HALF = 40; // half the width of a node's box
  const FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif";

  function curve(context, from, to, half) {
    const middle = (from.x + half + to.x - half) / 2;
    context.moveTo(from.x + half, from.y);
    context.bezierCurveTo(middle, from.y, middle, to.y, to.x - half, to.y);
  }
  function edge(view, one, up) {
    const { context, search } = view, mine = search.parent[one.node];
    context.strokeStyle = view.edgeColour(mine);
    context.lineWidth = view.edgeWidth(mine);
    context.setLineDash(search.wrong[mine] ? [7, 5] : []);
    context.beginPath();
    curve(context, up, one, HALF);
    context.stroke();
    context.setLineDash([]);
  }
  // Edges that are not in the spanning tree: curves to other nodes, and loops.
  function extras(view) {
    const { context, search, ink } = view;
    const busy = view.extras.length > 400;
    for (const mine of view.extras) {
      const from = view.place(search.edges.from[mine]), to = view.place(search.edges.to[mine]);
      const strong = from.node === view.selected || to.node === view.selected || search.onPath[mine] || search.wrong[mine];
      if (busy && !strong) continue;
      if (!view.inView(from) && !view.inView(to)) continue;
      context.globalAlpha = strong ? 0.95 : 0.4;
      context.strokeStyle = view.edgeColour(mine);
      context.lineWidth = strong ? view.edgeWidth(mine) : 1.2;
      context.setLineDash(search.wrong[mine] ? [7, 5] : []);
      const bend = 26 + Math.min(70, Math.abs(to.y - from.y) / 4), back = to.x <= from.x;
      context.beginPath();
      context.moveTo(from.x + (back ? -10 : HALF), from.y + (back ? view.tall / 2 - 8 : 6));
      if (back) context.bezierCurveTo(from.x - 10, from.y + bend + 24, to.x + 10, to.y + bend + 24, to.x + 10, to.y + view.tall / 2 - 6);
      else context.bezierCurveTo(from.x + HALF + bend, from.y + 6, to.x - HALF - bend, to.y + 8, to.x - HALF, to.y + 8);
      context.stroke();
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
    really(view);
    for (const [node, mine] of view.loops) {
      const at = view.place(node);
      if (view.inView(at)) loop(view, at, mine, ink);
    }
  }
  // Where the wrong predictions at the selected node really lead.
  function really(view) {
    const { context, search, ink } = view, from = view.place(view.selected);
    if (!from) return;
    context.strokeStyle = ink.good;
    context.lineWidth = 2;
    context.setLineDash([2, 4]);
    for (const mine of search.out[view.selected]) {
      if (!search.wrong[mine]) continue;
      const truth = search.truth(mine);
      const to = view.shown.find((one) => search.state(one.node) === truth);
      if (!to || to === from) continue;
      const lift = view.tall / 2 + 24 + Math.abs(to.x - from.x) / 12;
      context.beginPath();
      context.moveTo(from.x, from.y - view.tall / 2 + 10);
      context.bezierCurveTo(from.x, from.y - lift, to.x, to.y - lift, to.x, to.y - view.tall / 2 + 10);
      context.stroke();
    }
    context.setLineDash([]);
  }
  function loop(view, at, edges, ink) {
    const { context, search } = view;
    const wrong = edges.filter((one) => search.wrong[one]);
    const right = edges.length - wrong.length;
    context.font = `11px ${FONT}`;
    context.textAlign = "left";
    const top = at.y - view.tall / 2 + 5;
    const large = Math.min(2.2, Math.max(1, 0.6 / view.scale)); // false loops are seen from afar
    const arc = (x, colour, width, dash, text, factor = 1) => {
      context.strokeStyle = context.fillStyle = colour;
      context.lineWidth = width;
      context.setLineDash(dash);
      context.beginPath();
      context.arc(x, top - 5 * factor, 7 * factor, 0.7 * Math.PI, 2.3 * Math.PI);
      context.stroke();
      context.setLineDash([]);
      context.font = `${factor > 1 ? 600 : 400} ${11 * Math.min(1.5, factor)}px ${FONT}`;
      if (view.scale > 0.28) context.fillText(text, x + 10 * factor, top - 6 * factor);
    };
    if (wrong.length) {
      const names = wrong.slice(0, 3).map((one) => search.name(one)).join(" ") + (wrong.length > 3 ? " …" : "");
      arc(at.x - 26, ink.bad, 2.4 * large, [4, 3], `false loop ${names}`, large);
    }
    if (right && (view.scale > 0.75 || at.node === view.selected)) arc(at.x + (wrong.length ? 84 : -26), ink.muted, 1.2, [], `${right}`);
  }
  function box(context, x, y, width, height, radius) {
    context.beginPath();
    context.roundRect(x, y, width, height, radius);
  }
  function node(view, one) {
    const { context, search, ink } = view, place = one.node;
    const high = view.tall - 20, image = view.image(place);
    const x = one.x - HALF, y = one.y - high / 2;
    const selected = place === view.selected, match = view.matches.has(place);
    context.fillStyle = ink.page;
    context.strokeStyle = selected ? ink.ink : match ? ink.check : search.pathNodes.has(place) ? ink.link : ink.edge;
    context.lineWidth = selected || match ? 3.5 : search.pathNodes.has(place) ? 2.2 : 1.2;
    box(context, x, y, 2 * HALF, high, 6);
    context.fill();
    context.stroke();
    if (image) {
      const room = high - 15;
      const factor = Math.min((2 * HALF - 8) / image.naturalWidth, (room - 2) / image.naturalHeight);
      const width = image.naturalWidth * factor, height = image.naturalHeight * factor;
      context.imageSmoothingEnabled = factor < 1;
      context.drawImage(image, one.x - width / 2, y + 2 + (room - height) / 2, width, height);
    }
    if (view.scale > 0.4) {
      context.fillStyle = ink.ink;
      context.font = `${selected ? 600 : 400} 11px ${FONT}`;
      context.textAlign = "center";
      const visits = search.node("visits", place), value = search.value(place);
      const words = [value === null || value === undefined ? "" : number(value), visits === null ? "" : `N ${number(visits)}`];
      context.fillText(words.filter(Boolean).join("  "), one.x, image ? y + high - 4 : one.y + 4, 2 * HALF - 6);
    }
    const mark = search.node("solved", place) ? "★" : search.node("terminal", place) ? "■" : search.node("target", place) ? "◎" : "";
    if (mark) {
      context.fillStyle = mark === "■" ? ink.muted : ink.good;
      context.font = `14px ${FONT}`;
      context.textAlign = "left";
      context.fillText(mark, x + 3, y + 13);
    }
    const hidden = view.open[place] ? 0 : search.below[place];
    if (hidden) {
      context.font = `10px ${FONT}`;
      const text = `+${number(hidden)}`, width = context.measureText(text).width + 8;
      context.fillStyle = ink.muted;
      box(context, one.x + HALF - 5, one.y - 8, width, 16, 8);
      context.fill();
      context.fillStyle = ink.card;
      context.textAlign = "left";
      context.fillText(text, one.x + HALF - 1, one.y + 3.5);
    }
  }
  function edgeWords(search, mine) {
    const words = [];
    const add = (sign, name) => {
      const value = search.edge(name, mine);
      if (value !== null && value !== undefined) words.push(`${sign} ${number(value, 2)}`);
    };
    add("N", "visits");
    add("Q", "value");
    add("P", "prior");
    if (words.length < 3) add("σ", "disagreement");
    if (search.edge("reward", mine)) add("r", "reward");
    return words.join("  ");
  }
  function label(view, one) {
    const { context, search, ink } = view, mine = search.parent[one.node];
    const x = one.x - HALF - 7;
    context.textAlign = "right";
    context.font = `600 12px ${FONT}`;
    const verified = search.edge("verified", mine);
    context.fillStyle = search.wrong[mine] ? ink.bad : search.onPath[mine] ? ink.link : ink.ink;
    context.lineWidth = 3;
    context.strokeStyle = ink.card;
    const name = search.name(mine) + (search.wrong[mine] ? " ✗" : "");
    context.strokeText(name, x, one.y - 5, 120);
    context.fillText(name, x, one.y - 5, 120);
    if (verified) {
      const left = x - Math.min(120, context.measureText(name).width) - 5;
      context.fillStyle = ink.good;
      context.strokeText("✓", left, one.y - 5);
      context.fillText("✓", left, one.y - 5);
    }
    const words = edgeWords(search, mine);
    if (!words) return;
    context.font = `10.5px ${FONT}`;
    context.fillStyle = ink.muted;
    context.strokeText(words, x, one.y + 13, 142);
    context.fillText(words, x, one.y + 13, 142);
  }
  return { edge, extras, node, label, edgeWords };
})();

// Action sequences of a continuous planner: one plot for each dimension of the action, a line for each candidate.
function explorerPlot(view) {
  const { context, ink, search } = view, { sequences } = search;
  const dims = sequences.plan.length ? sequences.plan[0].length : 0;
  const values = sequences.return.filter((one) => typeof one === "number");
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const last = sequences.iteration.reduce((a, b) => Math.max(a, b), 0);
  const steps = Math.max(2, sequences.plan.length), wide = 900, high = view.plotHeight();
  const ranked = sequences.return.map((one, at) => at).sort((a, b) => (sequences.return[a] ?? -Infinity) - (sequences.return[b] ?? -Infinity));
  for (let dim = 0; dim < dims; dim++) {
    const top = dim * (high + 50);
    const at = (step, value) => [(step / (steps - 1)) * wide, top + high / 2 - (Math.max(-1.2, Math.min(1.2, value)) * high) / 2];
    context.strokeStyle = ink.edge;
    context.lineWidth = 1;
    context.fillStyle = ink.muted;
    context.font = "12px system-ui,sans-serif";
    for (const value of [-1, 0, 1]) {
      context.beginPath();
      context.moveTo(...at(0, value));
      context.lineTo(...at(steps - 1, value));
      context.stroke();
      context.textAlign = "right";
      context.fillText(String(value), -8, at(0, value)[1] + 4);
    }
    context.textAlign = "left";
    context.fillText(`action dimension ${dim}, by steps from now (0 to ${steps - 1})`, 0, top + high + 26);
    const line = (rows, colour, width, alpha) => {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.globalAlpha = alpha;
      context.beginPath();
      rows.forEach((row, step) => context[step ? "lineTo" : "moveTo"](...at(step, row[dim] ?? 0)));
      context.stroke();
      context.globalAlpha = 1;
    };
    for (const one of ranked) {
      const share = most > least ? ((sequences.return[one] ?? least) - least) / (most - least) : 0.5;
      const now = sequences.iteration[one] === last;
      line(sequences.actions[one], one === view.candidate ? ink.check : share > 0.75 ? ink.good : ink.muted, one === view.candidate ? 3 : 1, one === view.candidate ? 1 : (now ? 0.25 : 0.1) + 0.45 * share);
    }
    line(sequences.plan, ink.link, 3.5, 1);
  }
}
