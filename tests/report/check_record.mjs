// Opens a report of real jobs in a browser and holds its section on claims against their records.
//
//   temper record make JOB -o record.json
//   temper report JOB -o report.html
//   node tests/report/check_record.mjs report.html record.json [SCREENSHOT_DIRECTORY]
//
// Needs Node 18 and Chromium (or $CHROMIUM); nothing is fetched. Exits with 1 and the failed
// checks if any fails.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { open } from "./browser.mjs";

const [file, recordFile, screenshots] = process.argv.slice(2);
if (!file || !recordFile) {
  console.error("usage: check_record.mjs REPORT.html RECORD.json [SCREENSHOT_DIRECTORY]");
  process.exit(2);
}
const executable = process.env.CHROMIUM
  ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!executable) {
  console.error("check a report: no Chromium found; set CHROMIUM to its path");
  process.exit(2);
}
const record = JSON.parse(readFileSync(recordFile, "utf8"));
const url = pathToFileURL(resolve(file)).href;
const browser = await open(executable);
const { send, evaluate, until } = browser;
const failures = [];

function check(what, holds, detail = "") {
  if (!holds) failures.push(`${what}${detail === "" ? "" : `: ${JSON.stringify(detail)}`}`);
}

async function goto(width, height) {
  await send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  await send("Page.navigate", { url: "about:blank" });
  await until("location.href === 'about:blank'");
  await send("Page.navigate", { url });
  await until("location.href !== 'about:blank' && document.readyState === 'complete'", 60);
}

async function shot(name) {
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  const { data } = await send("Page.captureScreenshot", { format: "png" });
  writeFileSync(join(screenshots, `${name}.png`), Buffer.from(data, "base64"));
}

// What a reader sees: text of a box that is drawn, not of one that is folded.
const visible = (selector) => evaluate(`[...document.querySelectorAll(${JSON.stringify(selector)})].filter((node) => node.checkVisibility()).map((node) => node.innerText)`);
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

try {
  await goto(1280, 900);
  await evaluate("document.getElementById('claims').scrollIntoView({ behavior: 'instant' })");
  await shot("claims-folded");
  const wording = record.claims.wording.replaceAll("-", " ");
  const section = (await visible("#claims")).join();
  check("the wording stands above everything that is folded", section.toLowerCase().includes(wording), section.slice(0, 400));
  check("the ledger is named with its digest", section.includes(record.ledger.name) && section.includes(record.ledger.digest.slice(0, 8)), section.slice(0, 400));
  check("tables are folded at first", (await visible("#claims table")).length === 0);

  // Opened as a reader does.
  const summaries = await evaluate("[...document.querySelectorAll('#claims details > summary')].map((node) => { node.click(); return node.innerText; })");
  check("each job has its reasons and its record", summaries.length === 2 && summaries[1].startsWith("Record of"), summaries);
  const reasons = await visible("#claims details li");
  check("every reason is there", reasons.length === record.claims.reasons.length, reasons);
  for (const reason of record.claims.reasons) check("a reason is shown in full", reasons.some((shown) => shown.includes(reason.why)), reason.why);

  const rows = (number) => evaluate(`[...document.querySelectorAll('#claims details')][${number}].querySelectorAll('tbody tr').length`);
  check("the alignment matrix has every row", (await rows(0)) === record.claims.rows.length, await rows(0));
  const shown = Object.fromEntries(await evaluate("[...[...document.querySelectorAll('#claims details')][1].querySelectorAll('tbody tr')].map((row) => [row.cells[0].innerText, row.cells[1].innerText])"));
  const expected = {
    "class of claim": wording,
    definition: record.pass_rate_definition,
    exceptions: text(record.exceptions),
    endings: text(record.exits),
  };
  const { identity } = record;
  for (const key of ["agent", "config_digest", "attempts", "seed", "seed_rule"]) expected[key.replaceAll("_", " ")] = text(identity[key]);
  for (const table of ["profile", "model", "runtime", "dataset", "context"]) {
    for (const [key, value] of Object.entries(identity[table])) expected[`${table}: ${key.replaceAll("_", " ")}`] = text(value);
  }
  for (const [key, setting] of Object.entries(identity.settings)) expected[key] = `${text(setting.value)} (from ${setting.from})`;
  for (const [name, value] of Object.entries(expected)) {
    // A browser folds runs of white space, and JavaScript knows no 3.0.
    const plain = (words) => words?.replace(/\s+/g, " ").replace(/(\d)\.0(?![\d.])/g, "$1").trim();
    check(`the record's row ${name}`, plain(shown[name]) === plain(value), { shown: shown[name], expected: value });
  }
  check("trials are counted", shown.trials?.includes(`${record.trials.n_valid} valid, ${record.trials.n_lost} lost`), shown.trials);
  check("the pass rate has scored, lost and an interval", /solved, \d+ scored, \d+ lost, bounds .*95% interval/.test(shown["pass rate"] ?? ""), shown["pass rate"]);
  record.sessions.forEach((session, number) => {
    const run = shown[`run ${number + 1}`] ?? "";
    for (const part of [session.machine.commit, session.started_at, `"image_contents_digest":"${session.image_contents_digest}"`]) check(`run ${number + 1} says what worked on it`, run.includes(part), part);
  });
  check("files are counted", shown.files?.startsWith(`${Object.keys(record.files).length} by SHA-256`), shown.files);
  await evaluate("[...document.querySelectorAll('#claims details')][1].scrollIntoView({ behavior: 'instant' })");
  await shot("record-open");

  await goto(390, 844);
  await evaluate("document.querySelectorAll('#claims details').forEach((node) => { node.open = true; })");
  const wide = await evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
  check("an open record does not make a narrow window scroll sideways", wide[0] <= wide[1], wide);
  await shot("record-narrow");

  const requests = browser.events.filter((event) => event.method === "Network.requestWillBeSent").map((event) => event.params.request.url);
  check("nothing but the file was requested", requests.every((address) => address.startsWith(url) || address === "about:blank"), requests);
  const problems = browser.events.filter((event) => event.method === "Runtime.exceptionThrown" || (event.method === "Log.entryAdded" && event.params.entry.level === "error"));
  check("no errors and no refusals by the content policy", problems.length === 0, problems.map((event) => event.params));
} catch (error) {
  failures.push(`the check could not go on: ${error.stack}`);
} finally {
  await browser.close();
}

for (const failure of failures) console.error(`failed: ${failure}`);
process.exit(failures.length === 0 ? 0 : 1);
