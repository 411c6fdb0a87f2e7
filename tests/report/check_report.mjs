// Opens a report of the sample in a real browser and uses it as a reader would.
//
//   cargo run -p temper-report --example sample_report -- /tmp/report.html 30
//   node tests/report/check_report.mjs /tmp/report.html [SCREENSHOT_DIRECTORY]
//
// Needs Node 18 and Chromium (or $CHROMIUM); nothing is fetched. Exits with 1 and the failed
// checks if any fails.

import { existsSync, mkdirSync, statSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { open } from "./browser.mjs";

const [file, screenshots] = process.argv.slice(2);
if (!file) {
  console.error("usage: check_report.mjs REPORT.html [SCREENSHOT_DIRECTORY]");
  process.exit(2);
}
const executable = process.env.CHROMIUM
  ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!executable) {
  console.error("check a report: no Chromium found; set CHROMIUM to its path");
  process.exit(2);
}
const url = pathToFileURL(resolve(file)).href;
const browser = await open(executable);
const { send, evaluate, until, press } = browser;
const failures = [];
const measured = {};

function check(what, holds, detail = "") {
  if (!holds) failures.push(`${what}${detail === "" ? "" : `: ${JSON.stringify(detail)}`}`);
}

async function goto(address, width = 1280, height = 900) {
  await send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  // A change of the fragment alone does not load a page, so a blank one goes between.
  await send("Page.navigate", { url: "about:blank" });
  await until("location.href === 'about:blank'");
  const start = Date.now();
  await send("Page.navigate", { url: address });
  await until("location.href !== 'about:blank' && !!document.getElementById('matrix') && !document.getElementById('matrix').hidden");
  return Date.now() - start;
}

async function shot(name, whole = false) {
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  const { data } = await send("Page.captureScreenshot", { format: "png", captureBeyondViewport: whole });
  writeFileSync(join(screenshots, `${name}.png`), Buffer.from(data, "base64"));
}

const colours = (name) => send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: name }] });
const text = (selector) => evaluate(`document.querySelector(${JSON.stringify(selector)})?.textContent ?? ""`);
const isWide = () => evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth");

try {
  await colours("light");
  measured.matrix_ready_ms = await goto(url);
  await until("document.readyState === 'complete'", 60);
  measured.file_bytes = statSync(file).size;

  // The headline says what it rests on, without a script.
  check("the page says that its data is made up", (await text(".notice")).includes("made up"));
  const lede = await text(".lede");
  for (const part of ["known outcome in both", "paired difference", "95% interval", "McNemar p"]) check(`the headline gives the ${part}`, lede.includes(part), lede);
  const rates = await evaluate("[...document.querySelectorAll('.rate')].map((node) => node.textContent)");
  for (const rate of rates) check("every rate has scored, lost and an interval", /[\d,]+ of [\d,]+ .*\d+ scored, \d+ lost.*95% interval/.test(rate), rate);
  check("arms say what drives them", (await evaluate("[...document.querySelectorAll('.chip')].map((node) => node.textContent)")).join() === "program, no language model,language model");
  await shot("light-top");
  await shot("light-whole", true);

  // Metric charts name and mark what is no number.
  const findings = await evaluate("[...document.querySelectorAll('.findings li')].map((node) => node.textContent)");
  check("update 3 is named", findings.includes("loss is not a number at update 3"), findings);
  check("update 4 is named", findings.includes("kl is infinite at update 4"), findings);
  check("both are marked", (await evaluate("[...document.querySelectorAll('.chart text.mark')].map((node) => node.textContent)")).join() === "NaN at 3,+\u221e at 4");
  check("the rest is drawn", (await evaluate("document.querySelectorAll('.chart polyline').length")) >= 4);

  // The matrix filters, sorts and pages.
  const nRows = () => evaluate("document.querySelectorAll('.matrix tbody tr').length");
  const nTasks = await evaluate("JSON.parse(document.getElementById('index').textContent).tasks.length");
  check("a page of tasks is shown", (await nRows()) === Math.min(50, nTasks), await nRows());
  const use = (selector, value, event) => evaluate(`{ const node = document.querySelector(${JSON.stringify(selector)}); node.value = ${JSON.stringify(value)}; node.dispatchEvent(new Event(${JSON.stringify(event)}, { bubbles: true })); }`);
  let start = Date.now();
  await use("input[type=search]", "tabular", "input");
  measured.filter_ms = Date.now() - start;
  check("the search filters", (await evaluate("[...document.querySelectorAll('.matrix tbody tr')].every((row) => row.textContent.includes('tabular'))")) && (await nRows()) > 0);
  await use("input[type=search]", "no such task", "input");
  check("an empty result is said", (await text("#matrix [role=status]")).includes("No task matches"));
  await use("input[type=search]", "", "input");
  const show = "#matrix .controls label:nth-of-type(2) select";
  await use(show, "gained", "change");
  check("standings filter", await evaluate("[...document.querySelectorAll('.matrix .stand')].every((cell) => cell.textContent.includes('gained'))"));
  await use(show, "all", "change");
  start = Date.now();
  await evaluate("document.querySelector('.matrix thead th:nth-child(5) button').click()");
  measured.sort_ms = Date.now() - start;
  check("the sorted column is announced", (await evaluate("document.querySelector('.matrix thead th:nth-child(5)').getAttribute('aria-sort')")) === "ascending");
  await evaluate("document.querySelector('.matrix thead th button').click()");

  // Keyboard: one stop, arrows inside, Enter opens, Escape closes and gives the focus back.
  check("the matrix is one tab stop", (await evaluate("document.querySelectorAll('.matrix tbody button[tabindex=\"0\"]').length")) === 1);
  await evaluate("document.querySelector('.matrix tbody button[tabindex=\"0\"]').focus()");
  await press("ArrowDown", "ArrowDown", 40);
  await press("ArrowRight", "ArrowRight", 39);
  check("arrow keys move", await evaluate("document.activeElement === document.querySelectorAll('.matrix tbody tr')[1].querySelectorAll('button')[1]"));
  start = Date.now();
  await press("Enter", "Enter", 13, "\r");
  await until("!!document.querySelector('#detail [role=tab]')");
  measured.open_trial_ms = Date.now() - start;
  check("a trial has an address", /^#trial=\d+\.1\.0$/.test(await evaluate("location.hash")), await evaluate("location.hash"));
  await press("Escape", "Escape", 27);
  await until("!document.getElementById('detail').open");
  check("the focus comes back", await evaluate("document.activeElement === document.querySelectorAll('.matrix tbody tr')[1].querySelectorAll('button')[1]"));

  // One trial: steps, patch, verdict, task. Task 3 of the sample is hostile.
  measured.deep_link_ms = await goto(`${url}#trial=2.1.0`);
  await until("!!document.querySelector('#detail [role=tab]')");
  await evaluate("document.querySelector('#detail [aria-label=\"next task\"]').click()");
  await until("!location.hash.startsWith('#trial=2.')");
  const all = await evaluate("JSON.parse(document.getElementById('index').textContent).tasks");
  const hostile = all.findIndex((task) => task.id.endsWith("-0003"));
  const with_steps = [1, 0].find((each) => all[hostile].cells[each][0].n > 0);
  await goto(`${url}#trial=${hostile}.${with_steps}.0`);
  await until("document.querySelectorAll('#detail .part.command').length > 0");
  check("every step is there", (await evaluate("document.querySelectorAll('#detail article.turn > h3').length")) >= all[hostile].cells[with_steps][0].n);
  check("steps show time", /model \d/.test(await text("#detail .turn .meta + *") + await text("#detail article.turn .meta")));
  check("hostile text is text", (await text("#detail .detail-body")).includes("</script><script>window.broken=1</script>"));
  check("controls are visible", (await text("#detail .detail-body")).includes("\u27e8U+001B\u27e9[2J") && (await text("#detail .detail-body")).includes("\u27e8U+202E\u27e9"));
  await shot("light-steps");
  const tab = async (name) => { await evaluate(`document.getElementById('tab-${name}').click()`); };
  await tab("verdict");
  check("layers are there", (await text("#panel")).includes("hidden tests") || (await text("#panel")).includes("does not apply"));
  await shot("light-verdict");
  await tab("task");
  check("the statement is there", (await text("#panel")).includes("Run the public tests with"));
  const patched = all.findIndex((task) => ["solved", "unsolved"].includes(task.cells[1][0].o[0]));
  await goto(`${url}#trial=${patched}.1.0`);
  await until("!!document.getElementById('tab-patch')");
  await tab("patch");
  const kinds = await evaluate("[...document.querySelectorAll('#panel .diff .row')].map((row) => row.classList[1] ?? '')");
  check("the diff is coloured", kinds.filter((kind) => kind === "add").length === 6 && kinds.filter((kind) => kind === "del").length === 3, kinds);
  await shot("light-patch");
  const lost = all.findIndex((task) => task.cells[0][0].o[0] === "lost");
  if (lost >= 0) {
    await goto(`${url}#trial=${lost}.0.0`);
    await until("!!document.querySelector('#detail .box')");
    check("a lost trial says why", (await text("#detail .box")).includes("did not start"));
  }

  // Looks: dark, narrow, print.
  await colours("dark");
  await goto(url);
  await shot("dark-top");
  await shot("dark-whole", true);
  await goto(`${url}#trial=${patched}.1.0`);
  await until("!!document.getElementById('tab-patch')");
  await tab("patch");
  await shot("dark-patch");
  await tab("steps");
  await shot("dark-steps");
  await colours("light");
  await goto(url, 390, 844);
  check("a narrow window does not scroll sideways", !(await isWide()));
  await shot("narrow-top");
  await shot("narrow-whole", true);
  await goto(`${url}#trial=${patched}.1.0`, 390, 844);
  await until("!!document.getElementById('tab-steps')");
  check("a narrow drill-down does not scroll sideways", await evaluate("document.getElementById('detail').scrollWidth <= document.getElementById('detail').clientWidth"));
  await shot("narrow-steps");
  await goto(url);
  await send("Emulation.setEmulatedMedia", { media: "print" });
  check("print hides the controls", (await evaluate("getComputedStyle(document.querySelector('.controls')).display")) === "none");
  const { data } = await send("Page.printToPDF", {});
  check("it prints", data.length > 1000);
  await send("Emulation.setEmulatedMedia", { media: "" });

  // Nothing acted, nothing was asked of a network, nothing was refused or thrown.
  check("hostile data did nothing", (await evaluate("window.broken")) === undefined);
  const requests = browser.events.filter((event) => event.method === "Network.requestWillBeSent").map((event) => event.params.request.url);
  check("nothing but the file was requested", requests.every((address) => address.startsWith(url) || address === "about:blank"), requests);
  const problems = browser.events.filter((event) => event.method === "Runtime.exceptionThrown" || (event.method === "Log.entryAdded" && event.params.entry.level === "error") || (event.method === "Runtime.consoleAPICalled" && event.params.type === "error"));
  check("no errors and no refusals by the content policy", problems.length === 0, problems.map((event) => event.params.entry?.text ?? event.params.exceptionDetails?.exception?.description ?? event.params));
} catch (error) {
  failures.push(`the check could not go on: ${error.stack}`);
} finally {
  await browser.close();
}

console.log(JSON.stringify(measured));
for (const failure of failures) console.error(`failed: ${failure}`);
process.exit(failures.length === 0 ? 0 : 1);
