// A headless Chromium over its debugging pipe: no packages, no ports.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/// Starts the browser and opens one page. `events` holds every protocol event in order.
export async function open(executable) {
  const profile = mkdtempSync(join(tmpdir(), "report-check-"));
  const browser = spawn(executable, [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "about:blank",
  ], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const [input, output] = [browser.stdio[3], browser.stdio[4]];
  const waiting = new Map();
  const events = [];
  let rest = "";
  let next = 1;
  output.setEncoding("utf8");
  output.on("data", (chunk) => {
    const messages = (rest + chunk).split("\0");
    rest = messages.pop();
    for (const text of messages) {
      const message = JSON.parse(text);
      if (!message.id) events.push(message);
      else {
        const { resolve, reject } = waiting.get(message.id);
        waiting.delete(message.id);
        if (message.error) reject(new Error(message.error.message));
        else resolve(message.result);
      }
    }
  });
  const ended = new Promise((resolve) => browser.on("exit", resolve));
  ended.then(() => { for (const { reject } of waiting.values()) reject(new Error("the browser ended")); });
  const raw = (method, params, sessionId) => new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, { resolve, reject });
    input.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  });
  const { targetId } = await raw("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await raw("Target.attachToTarget", { targetId, flatten: true });
  const send = (method, params = {}) => raw(method, params, sessionId);
  for (const domain of ["Page", "Runtime", "Network", "Log"]) await send(`${domain}.enable`);

  async function evaluate(expression) {
    const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  async function until(expression, seconds = 20) {
    const end = Date.now() + 1000 * seconds;
    while (Date.now() < end) {
      if (await evaluate(expression)) return;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    throw new Error(`not within ${seconds} s: ${expression}`);
  }

  async function press(key, code = key, keyCode = 0, text = undefined) {
    const event = { key, code, windowsVirtualKeyCode: keyCode, text };
    await send("Input.dispatchKeyEvent", { type: "keyDown", ...event });
    await send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  async function close() {
    await raw("Browser.close").catch(() => {});
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }

  return { send, evaluate, until, press, close, events };
}
