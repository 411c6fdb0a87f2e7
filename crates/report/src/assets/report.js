"use strict";
// Draws the outcome matrix and the drill-down. Every text reaches the page through textContent;
// nothing here builds markup from data, and nothing computes a number that is shown.
(() => {
  const index = JSON.parse(document.getElementById("index").textContent);
  const dialog = document.getElementById("detail");
  const PAGE = 50;

  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child != null));
    return node;
  }

  // ---- the matrix ------------------------------------------------------------------------------

  const rank = { gained: 0, regressed: 1, unknown: 2, "tied-solved": 3, "tied-unsolved": 4 };
  const outcomeRank = { solved: 0, partial: 1, unsolved: 2, empty: 3, invalid: 4, lost: 5 };
  const rows = index.tasks.map((task, number) => ({
    task, number, text: `${task.id}\n${task.group}`.toLowerCase(),
    lost: task.cells.some((cells) => cells.some((cell) => cell.o[0] === "lost")),
    tampered: task.cells.some((cells) => cells.some((cell) => cell.f > 0)),
  }));
  // What changed between arms comes first.
  const state = { query: "", show: "all", pair: 0, sort: index.pairs.length > 0 ? "standing" : "task", down: false, page: 0, everything: false };
  let visible = rows;

  const standing = (row) => row.task.standing[state.pair] || null;
  const first = (row, arm) => row.task.cells[arm][0];
  const sortKeys = {
    task: (row) => row.number,
    group: (row) => row.task.group,
    standing: (row) => (standing(row) ? rank[standing(row)[0]] : 9),
  };
  index.arms.forEach((arm, number) => {
    sortKeys[`outcome ${number}`] = (row) => (first(row, number) ? outcomeRank[first(row, number).o[0]] : 9);
    sortKeys[`steps ${number}`] = (row) => (first(row, number) ? first(row, number).n : -1);
    sortKeys[`time ${number}`] = (row) => (first(row, number) ? first(row, number).s : -1);
  });

  function matches(row) {
    if (state.query && !row.text.includes(state.query)) return false;
    if (state.show === "all") return true;
    if (state.show === "lost") return row.lost;
    if (state.show === "tampered") return row.tampered;
    const [kind, arm] = state.show.split(" ");
    if (arm !== undefined) {
      const solved = row.task.cells[arm].some((cell) => cell.o[0] === "solved");
      return kind === "solved" ? solved : !solved;
    }
    return (standing(row) || [""])[0] === state.show;
  }

  const count = el("p", { class: "quiet", role: "status", "aria-live": "polite" });
  const body = el("tbody");
  const heads = new Map();
  const pager = el("div", { class: "pager" });

  function sortBy(key) {
    if (state.sort === key) state.down = !state.down;
    else Object.assign(state, { sort: key, down: false });
    sortSelect.value = state.sort;
    update();
  }

  function head(key, name, className) {
    const cell = el("th", { scope: "col", class: className }, el("button", { type: "button", onclick: () => sortBy(key) }, name));
    heads.set(key, cell);
    return cell;
  }

  function select(label, options, value, onchange) {
    const node = el("select", { onchange: () => onchange(node.value) },
      options.map(([key, name]) => el("option", { value: key }, name)));
    node.value = value;
    return [el("label", {}, label, node), node];
  }

  const shows = [["all", "all tasks"]];
  if (index.pairs.length > 0) {
    shows.push(["gained", "gained"], ["regressed", "regressed"], ["tied-solved", "tied, solved"], ["tied-unsolved", "tied, unsolved"], ["unknown", "unknown"]);
  }
  index.arms.forEach((arm, number) => {
    shows.push([`solved ${number}`, `solved by ${arm.name}`], [`unsolved ${number}`, `not solved by ${arm.name}`]);
  });
  shows.push(["lost", "with a lost trial"], ["tampered", "with tampering"]);
  const sorts = [["task", "task"], ["group", "source group"]];
  if (index.pairs.length > 0) sorts.push(["standing", "standing"]);
  index.arms.forEach((arm, number) => {
    sorts.push([`outcome ${number}`, `outcome: ${arm.name}`], [`steps ${number}`, `steps: ${arm.name}`], [`time ${number}`, `time: ${arm.name}`]);
  });
  const [sortLabel, sortSelect] = select("Sort by", sorts, state.sort, (value) => {
    Object.assign(state, { sort: value, down: value.startsWith("steps") || value.startsWith("time"), page: 0 });
    update();
  });
  const refilter = (change) => { Object.assign(state, change, { page: 0 }); update(); };
  const search = el("input", { type: "search", placeholder: "task or source group", oninput: () => refilter({ query: search.value.trim().toLowerCase() }) });

  function cellButton(row, arm, cell, many) {
    const name = index.arms[arm].name;
    const steps = `${cell.n} ${cell.n === 1 ? "step" : "steps"}`;
    const attempt = many ? `, attempt ${cell.a}` : "";
    const flag = cell.f ? `, ${cell.f} tampering ${cell.f === 1 ? "finding" : "findings"}` : "";
    const words = `${name}${attempt}: ${cell.o[2]}, ${steps}, ${cell.t}${flag}`;
    return el("button", { type: "button", class: `cell ${cell.o[0]}`, tabindex: "-1", title: words, "aria-label": words,
      onclick: () => show(row.number, arm, cell.a) },
      el("i", {}, cell.o[1]),
      many ? null : el("span", {}, ` ${cell.o[2]} \u00b7 ${steps} \u00b7 ${cell.t}`),
      cell.f ? el("span", { class: "flag" }, " \u2691") : null);
  }

  function update() {
    const key = sortKeys[state.sort];
    visible = rows.filter(matches).sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      const order = x < y ? -1 : x > y ? 1 : 0;
      return (state.down ? -order : order) || a.number - b.number;
    });
    const pages = Math.max(1, Math.ceil(visible.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const shown = state.everything ? visible : visible.slice(state.page * PAGE, (state.page + 1) * PAGE);
    for (const [name, node] of heads) {
      node.setAttribute("aria-sort", name !== state.sort ? "none" : state.down ? "descending" : "ascending");
    }
    body.replaceChildren(...shown.map((row) => {
      const stand = standing(row);
      return el("tr", {},
        el("th", { scope: "row" }, row.task.id),
        el("td", { class: "group quiet" }, row.task.group),
        index.pairs.length > 0 ? el("td", { class: `stand ${stand ? stand[0] : ""}` }, stand ? `${stand[1]} ${stand[2]}` : "not paired") : null,
        row.task.cells.map((cells, arm) => el("td", { class: "cells", "data-arm": index.arms[arm].name },
          cells.length ? cells.map((cell) => cellButton(row, arm, cell, cells.length > 1)) : el("span", { class: "quiet" }, "not attempted"))));
    }));
    const firstButton = body.querySelector("button");
    if (firstButton) firstButton.tabIndex = 0;
    const from = state.page * PAGE;
    count.textContent = visible.length === 0 ? `No task matches; ${rows.length} in all.`
      : `Tasks ${from + 1} to ${from + shown.length} of ${visible.length}${visible.length < rows.length ? ` that match, ${rows.length} in all` : ""}.`;
    const turn = (by) => () => { state.page += by; update(); };
    pager.replaceChildren(
      el("button", { type: "button", class: "button", disabled: state.page === 0, onclick: turn(-1) }, "\u2190 Previous"),
      el("span", { class: "quiet" }, `page ${state.page + 1} of ${pages}`),
      el("button", { type: "button", class: "button", disabled: state.page >= pages - 1, onclick: turn(1) }, "Next \u2192"));
  }

  // Arrow keys move between the buttons of the matrix, so that it is one stop for the tab key.
  body.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [-1e9, 0], End: [1e9, 0] };
    const move = moves[event.key];
    if (!move || event.target.tagName !== "BUTTON") return;
    event.preventDefault();
    const grid = [...body.rows].map((row) => [...row.querySelectorAll("button")]).filter((row) => row.length);
    const y = grid.findIndex((row) => row.includes(event.target));
    const x = grid[y].indexOf(event.target);
    const row = grid[Math.min(grid.length - 1, Math.max(0, y + move[0]))];
    const next = row[Math.min(row.length - 1, Math.max(0, x + move[1]))];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  body.addEventListener("focusin", (event) => {
    if (event.target.tagName !== "BUTTON") return;
    for (const other of body.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
  });

  const matrix = document.getElementById("matrix");
  matrix.append(
    el("p", { class: "quiet" }, "Choose an outcome to read the trial step by step. Arrow keys move between outcomes. \u2691 marks tampering."),
    el("div", { class: "controls" },
      el("label", {}, "Find", search),
      index.pairs.length > 1 ? select("Pair", index.pairs.map((pair, number) => [number, pair.label]), 0, (value) => refilter({ pair: Number(value) }))[0] : null,
      select("Show", shows, "all", (value) => refilter({ show: value }))[0],
      sortLabel),
    count,
    el("div", { class: "scroll" }, el("table", { class: "matrix" },
      el("thead", {}, el("tr", {}, head("task", "Task"), head("group", "Source group", "group"),
        index.pairs.length > 0 ? head("standing", "Standing") : null,
        index.arms.map((arm, number) => head(`outcome ${number}`, arm.name)))),
      body)),
    pager);
  matrix.hidden = false;
  update();
  addEventListener("beforeprint", () => { state.everything = true; update(); });
  addEventListener("afterprint", () => { state.everything = false; update(); });

  // ---- one task --------------------------------------------------------------------------------

  const details = new Map();

  function parsed() {
    return document.readyState !== "loading" ? Promise.resolve()
      : new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
  }

  async function load(number) {
    if (details.has(number)) return details.get(number);
    let block = document.getElementById(`task-${number}`);
    if (!block || !block.nextElementSibling) {
      // The block may still be arriving.
      await parsed();
      block = document.getElementById(`task-${number}`);
    }
    if (!block) throw new Error("the file ends before this task's data; it may be incomplete");
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress data; use one from 2023 or later");
    const bytes = Uint8Array.from(atob(block.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const detail = await new Response(stream).json();
    if (details.size > 20) details.delete(details.keys().next().value);
    details.set(number, detail);
    return detail;
  }

  const facts = (pairs) => el("dl", { class: "facts" }, pairs.map(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));

  function part({ kind, label, text }) {
    if (kind === "quiet") {
      return el("details", { class: "part" }, el("summary", {}, label), el("pre", {}, text));
    }
    const content = kind === "text" ? el("div", { class: "prose" }, text)
      : el("pre", { tabindex: kind === "output" ? "0" : null }, text || "(nothing)");
    return el("div", { class: `part ${kind}` }, label ? el("div", { class: "label" }, label) : null, content);
  }

  function turn(each) {
    const meta = each.facts.length ? el("div", { class: "meta" }, each.facts.map((fact) => el("span", {}, fact))) : null;
    const className = `turn${each.warn ? " warn" : ""}`;
    return each.folded
      ? el("details", { class: className }, el("summary", {}, each.title), meta, each.parts.map(part))
      : el("article", { class: className }, el("h3", {}, each.title), meta, each.parts.map(part));
  }

  function steps(trial) {
    return [
      trial.problem ? el("div", { class: "box" }, el("h3", {}, "The trajectory is not complete"), el("p", {}, trial.problem)) : null,
      trial.conversation.map(turn),
      trial.end.length ? el("article", { class: "turn" }, el("h3", {}, "End"), facts(trial.end)) : null,
      !trial.conversation.length && !trial.problem ? el("p", { class: "quiet" }, "There are no steps.") : null,
    ];
  }

  // Only the reading of a patch for display: which lines belong to a hunk decides their colour, so
  // a removed line that begins with dashes is not taken for a file header.
  function diff(text) {
    const out = el("pre", { class: "diff", tabindex: "0" });
    let [oldLine, newLine, oldLeft, newLeft] = [0, 0, 0, 0];
    const row = (kind, before, after, line) => out.append(el("div", { class: `row ${kind}` },
      el("span", { class: "no" }, before), el("span", { class: "no" }, after), el("span", {}, line || " ")));
    for (const line of text.replace(/\n$/, "").split("\n")) {
      const hunk = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
      if (oldLeft <= 0 && newLeft <= 0 && hunk) {
        [oldLine, newLine] = [Number(hunk[1]), Number(hunk[3])];
        [oldLeft, newLeft] = [Number(hunk[2] ?? 1), Number(hunk[4] ?? 1)];
        row("hunk", "", "", line);
      } else if (oldLeft > 0 || newLeft > 0) {
        if (line.startsWith("+")) { row("add", "", newLine++, line); newLeft--; }
        else if (line.startsWith("-")) { row("del", oldLine++, "", line); oldLeft--; }
        else if (line.startsWith("\\")) row("info", "", "", line);
        else if (line.startsWith("\u22ef")) { row("info", "", "", line); oldLeft = newLeft = 0; }
        else { row("", oldLine++, newLine++, line); oldLeft--; newLeft--; }
      } else if (line.startsWith("diff --git ")) row("file", "", "", line.slice(11));
      else row("info", "", "", line);
    }
    return out;
  }

  function tests(list) {
    return list.tests.length ? el("details", { open: list.tests.some((test) => test[0] !== "solved") },
      el("summary", {}, `${list.title}: ${list.summary}`),
      el("ul", { class: "tests" }, list.tests.map(([key, words, name]) =>
        el("li", {}, el("span", { class: key }, words), el("code", {}, name))))) : null;
  }

  function verdict(trial) {
    return [
      el("p", { class: `outcome-line ${trial.outcome[0]}` }, `${trial.outcome[1]} ${trial.outcome[2]}`),
      facts(trial.verdict.facts),
      trial.verdict.notes.length ? el("ul", {}, trial.verdict.notes.map((note) => el("li", {}, note))) : null,
      trial.verdict.layers.length ? el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ["layer", "outcome", "time", "what was found"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, trial.verdict.layers.map((layer) => el("tr", {},
          el("th", { scope: "row" }, layer.name),
          el("td", {}, el("span", { class: layer.outcome[0] }, layer.outcome[1])),
          el("td", {}, layer.time),
          el("td", {}, layer.detail, tests(layer.tests))))))) : null,
      trial.verdict.lists.map(tests),
      el("h3", {}, "The trial"), facts(trial.facts),
    ];
  }

  let tab = "steps";

  function fill(number, arm, attempt, detail) {
    const row = rows[number];
    const trial = detail.trials.find((each) => each.arm === arm && each.attempt === attempt);
    const at = visible.indexOf(row);
    const neighbour = (by) => {
      for (let i = at + by; at >= 0 && i >= 0 && i < visible.length; i += by) {
        const cell = first(visible[i], arm);
        if (cell) return () => show(visible[i].number, arm, cell.a);
      }
      return null;
    };
    const move = (by, sign, words) => {
      const go = neighbour(by);
      return el("button", { type: "button", class: "button", title: words, "aria-label": words, disabled: !go, onclick: go || (() => {}) }, sign);
    };
    const tabs = [["steps", `Steps ${trial ? trial.conversation.length && first(row, arm) ? row.task.cells[arm].find((cell) => cell.a === attempt).n : 0 : 0}`], ["patch", "Patch"], ["verdict", "Verdict and tests"], ["task", "Task"]];
    const contents = { steps: () => steps(trial), verdict: () => verdict(trial),
      patch: () => [el("p", { class: "quiet" }, trial.patch_note), trial.patch ? diff(trial.patch) : null],
      task: () => [el("div", { class: "part" }, el("div", { class: "prose" }, detail.statement || "The statement is not part of this report.")), el("h3", {}, "Origin"), facts(detail.facts)] };
    const panel = el("div", { role: "tabpanel", id: "panel", "aria-labelledby": `tab-${tab}` });
    const buttons = tabs.map(([key, name]) => el("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => choose(key) }, name));
    const choose = (key) => {
      tab = key;
      buttons.forEach((button, i) => {
        const chosen = tabs[i][0] === key;
        button.setAttribute("aria-selected", chosen);
        button.tabIndex = chosen ? 0 : -1;
      });
      panel.setAttribute("aria-labelledby", `tab-${key}`);
      panel.replaceChildren(...(trial ? contents[key]() : []).flat(Infinity).filter(Boolean));
    };
    const tablist = el("div", { class: "tabs", role: "tablist", onkeydown: (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const next = buttons[(buttons.indexOf(event.target) + by + buttons.length) % buttons.length];
      next.click();
      next.focus();
    } }, buttons);
    dialog.replaceChildren(
      el("div", { class: "detail-head" },
        el("div", { class: "detail-title" }, el("h2", { id: "detail-title" }, row.task.id),
          el("div", {}, move(-1, "\u2191", "previous task"), move(1, "\u2193", "next task"),
            el("button", { type: "button", class: "button", "aria-label": "close", onclick: () => dialog.close() }, "\u2715"))),
        el("div", { class: "switch", role: "group", "aria-label": "trials of this task" }, row.task.cells.map((cells, other) => cells.map((cell) =>
          el("button", { type: "button", class: `cell ${cell.o[0]}`, "aria-pressed": String(other === arm && cell.a === attempt), onclick: () => show(number, other, cell.a) },
            el("i", {}, cell.o[1]), " ", el("b", {}, index.arms[other].name), el("span", {}, `${cells.length > 1 ? ` #${cell.a}` : ""} \u00b7 ${cell.o[2]}`),
            cell.f ? el("span", { class: "flag" }, " \u2691") : null)))),
        tablist),
      el("div", { class: "detail-body" },
        trial && trial.failure.length ? el("div", { class: "box" }, el("h3", {}, "Lost: the infrastructure failed"), facts(trial.failure)) : null,
        trial && trial.tampering.length ? el("div", { class: "box" }, el("h3", {}, "\u2691 Tampering"),
          el("ul", {}, trial.tampering.map(([what, place]) => el("li", {}, `${what}: `, el("code", {}, place))))) : null,
        panel));
    choose(tab);
    dialog.scrollTop = 0;
  }

  let asked = 0;

  async function show(number, arm, attempt) {
    const hash = `#trial=${number}.${arm}.${attempt}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    const request = ++asked;
    if (!dialog.open) {
      dialog.replaceChildren(el("div", { class: "detail-body" }, el("p", { class: "wait", id: "detail-title" }, "Reading the trial \u2026")));
      dialog.showModal();
    }
    try {
      const detail = await load(number);
      if (request === asked) fill(number, arm, attempt, detail);
    } catch (error) {
      if (request !== asked) return;
      dialog.replaceChildren(el("div", { class: "detail-body" },
        el("h2", { id: "detail-title" }, rows[number].task.id),
        el("p", {}, `The trial cannot be shown: ${error.message}.`),
        el("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Close")));
    }
  }

  dialog.addEventListener("close", () => {
    asked++;
    history.replaceState(null, "", location.pathname + location.search + "#tasks");
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  function follow() {
    const found = /^#trial=(\d+)\.(\d+)\.(\d+)$/.exec(location.hash);
    if (!found) return;
    const [number, arm, attempt] = found.slice(1).map(Number);
    if (rows[number] && index.arms[arm]) show(number, arm, attempt);
  }
  addEventListener("hashchange", follow);
  follow();

  // ---- looks -----------------------------------------------------------------------------------

  const themes = ["auto", "light", "dark"];
  const theme = el("button", { type: "button", onclick: () => {
    const next = themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length];
    setTheme(next);
  } });
  function setTheme(name) {
    theme.dataset.now = name;
    theme.textContent = { auto: "\u25d1 auto", light: "\u2600 light", dark: "\u263e dark" }[name];
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  }
  setTheme("auto");
  document.querySelector("nav").append(theme);
})();
