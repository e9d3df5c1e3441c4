// The live view of an experiment: draws what the kernel says, and sends back which button was pressed.
// Every text goes in as text, never as HTML: names come from other people.

const LIBRARY = Symbol.for("detlab.plotly");
const ASK_AGAIN_AFTER = 3_000; // ms
const MOST_TRIES = 3;
const CONFIRM_FOR = 4_000; // ms
const CONFIG = { responsive: true, displaylogo: false };
const LABELS = { pause: "Pause", activate: "Activate", kill: "Kill" };

// plotly.js comes from the kernel, once for all views of a page. A message may be lost with the view that asked,
// or wait in the queue of a busy kernel: each view listens, and asks again if nobody has been answered for a while.
function library(model) {
  const shared = (globalThis[LIBRARY] ??= { ...Promise.withResolvers(), askedAt: -Infinity });
  let tries = 0;
  let timer;
  const receive = (message, buffers) => {
    if (message.kind === "library") shared.resolve(unpack(buffers[0]));
  };
  const ask = () => {
    if (performance.now() - shared.askedAt >= ASK_AGAIN_AFTER) {
      shared.askedAt = performance.now();
      tries += 1;
      model.send({ kind: "library" });
    }
    if (tries < MOST_TRIES) timer = setTimeout(ask, ASK_AGAIN_AFTER);
  };
  const stop = () => {
    clearTimeout(timer);
    model.off("msg:custom", receive);
  };
  model.on("msg:custom", receive);
  ask();
  shared.promise.then(stop, stop);
  return { loaded: shared.promise, stop };
}

async function unpack(packed) {
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const source = await new Response(plain).text();
  const parts = ["const module = { exports: {} };\n", source, "\nexport default module.exports;\n"];
  const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  try {
    return (await import(/* webpackIgnore: true */ url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

function element(parent, tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function drawHead(el, head) {
  el.title.textContent = head.title ?? "";
  el.state.textContent = head.state ?? "";
  el.state.dataset.state = head.state ?? "";
  el.progress.value = head.progress ?? 0;
  el.percent.textContent = head.progress === undefined ? "" : `${Math.round(100 * head.progress)}%`;
  el.summary.textContent = head.summary ?? "";
}

function drawTable(el, table) {
  el.table.replaceChildren();
  el.note.textContent = table.note ?? "";
  if (!table.columns) return;
  const head = element(element(el.table, "thead"), "tr");
  for (const name of table.columns) element(head, "th", "", name);
  const body = element(el.table, "tbody");
  for (const row of table.rows) {
    const line = element(body, "tr", row.best ? "detlab-best" : "");
    line.dataset.trial = row.id;
    line.dataset.state = row.state;
    for (const cell of row.cells) element(line, "td", "", cell);
  }
}

// Pause, activate, kill. A kill cannot be taken back: it takes a second click.
function makeButtons(parent, model) {
  const buttons = {};
  for (const verb of Object.keys(LABELS)) {
    const button = element(parent, "button", "detlab-verb", LABELS[verb]);
    button.type = "button";
    button.dataset.verb = verb;
    buttons[verb] = button;
    let timer;
    const calm = () => {
      clearTimeout(timer);
      timer = undefined;
      button.textContent = LABELS[verb];
      delete button.dataset.confirm;
    };
    button.addEventListener("click", () => {
      if (verb === "kill" && timer === undefined) {
        button.textContent = "Really kill?";
        button.dataset.confirm = "yes";
        timer = setTimeout(calm, CONFIRM_FOR);
        return;
      }
      calm();
      button.disabled = true;
      model.send({ kind: "verb", verb });
    });
  }
  return () => {
    const verbs = model.get("head").verbs ?? [];
    for (const [verb, button] of Object.entries(buttons)) {
      button.disabled = model.get("pending") !== "" || !verbs.includes(verb);
    }
  };
}

function render({ model, el: root }) {
  root.classList.add("detlab-experiment");
  const el = {};
  const top = element(root, "div", "detlab-head");
  el.title = element(top, "strong", "detlab-title");
  el.state = element(top, "span", "detlab-state");
  const verbs = element(top, "span", "detlab-verbs");
  const line = element(root, "div", "detlab-line");
  el.progress = element(line, "progress", "detlab-progress");
  el.progress.max = 1;
  el.percent = element(line, "span", "detlab-percent");
  el.summary = element(line, "span", "detlab-summary");
  const trouble = element(root, "div", "detlab-trouble");
  const refusal = element(root, "div", "detlab-refusal");
  for (const notice of [trouble, refusal]) notice.setAttribute("role", "status");
  const chart = element(root, "div", "detlab-chart", "The chart is loading. It may have to wait for a cell that runs.");
  el.table = element(element(root, "div", "detlab-scroll"), "table", "detlab-trials");
  el.note = element(root, "div", "detlab-note");
  const enable = makeButtons(verbs, model);

  // The picture that the file keeps is not needed while this view stands.
  const hide = element(document.head, "style", "", `.${model.get("static_class")} { display: none; }`);

  let plotly;
  let gone = false;
  const drawChart = () => {
    const { data, layout } = model.get("figure");
    if (plotly && data) plotly.react(chart, data, layout, CONFIG);
  };
  const waiting = library(model);
  waiting.loaded.then(
    (ready) => {
      if (gone) return;
      plotly = ready;
      chart.textContent = "";
      drawChart();
    },
    (error) => {
      chart.textContent = `The chart cannot be drawn here: ${error.message}. Below is its picture.`;
      hide.remove();
    },
  );

  const watched = {
    "change:head": () => {
      drawHead(el, model.get("head"));
      enable();
    },
    "change:pending": enable,
    "change:figure": drawChart,
    "change:table": () => drawTable(el, model.get("table")),
    "change:trouble": () => (trouble.textContent = model.get("trouble")),
    "change:refusal": () => (refusal.textContent = model.get("refusal")),
  };
  for (const [event, draw] of Object.entries(watched)) {
    model.on(event, draw);
    draw();
  }
  model.send({ kind: "shown" });

  return () => {
    gone = true;
    for (const [event, draw] of Object.entries(watched)) model.off(event, draw);
    hide.remove();
    waiting.stop();
    if (plotly) plotly.purge(chart);
    model.send({ kind: "hidden" });
  };
}

export default { render };
