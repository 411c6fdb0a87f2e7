"""Drives `temper serve` with the real `openai` client.

    temper serve --port 8000 &
    pip install openai
    python3 tests/serve/openai_client.py http://127.0.0.1:8000/v1

Every check prints its name; the first that fails ends the run with status 1.
"""

import concurrent.futures
import json
import math
import sys
import urllib.error
import urllib.request

import openai

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
ROOT = BASE.removesuffix("/v1")
client = openai.OpenAI(base_url=BASE, api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "Name three colours."}]


def check(name, holds, shown=""):
    print(("ok    " if holds else "FAILED"), name, shown)
    if not holds:
        sys.exit(1)


def raw(path, body):
    request = urllib.request.Request(
        ROOT + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def chat(**more):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": ASK, "max_tokens": 16, "temperature": 0, **more}
    )


models = client.models.list().data
check("models", len(models) >= 1 and models[0].model_extra.get("max_model_len", 0) > 0)

plain = chat()
text = plain.choices[0].message.content
check("chat", bool(text) and plain.choices[0].finish_reason in ("stop", "length"), repr(text))
check("usage", plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens)
again = chat()
check("greedy repeats", again.choices[0].message.content == text)
check("cached tokens are counted", again.usage.prompt_tokens_details.cached_tokens > 0)

pieces, usage, reasons = [], None, []
for part in chat(stream=True, stream_options={"include_usage": True}):
    if part.usage:
        usage = part.usage
    for choice in part.choices:
        pieces.append(choice.delta.content or "")
        reasons.append(choice.finish_reason)
check("stream equals whole", "".join(pieces) == text)
check("stream has usage", usage is not None and usage.completion_tokens == plain.usage.completion_tokens)
check("stream ends with its reason", reasons[-1] == plain.choices[0].finish_reason)

seeded = [chat(temperature=1.0, seed=7).choices[0].message.content for _ in range(2)]
check("a seed repeats", seeded[0] == seeded[1])
other = [chat(temperature=1.0, seed=seed, max_tokens=24).choices[0].message.content for seed in range(4)]
check("seeds differ", len(set(other)) > 1)
many = chat(temperature=1.0, seed=3, n=4)
check("n choices", [c.index for c in many.choices] == [0, 1, 2, 3])

told = chat(logprobs=True, top_logprobs=3)
entries = told.choices[0].logprobs.content
check("logprobs per token", len(entries) == told.usage.completion_tokens)
check("greedy takes the likeliest", all(abs(e.logprob - e.top_logprobs[0].logprob) < 1e-5 for e in entries))
check("probabilities", all(sum(math.exp(t.logprob) for t in e.top_logprobs) <= 1.0001 for e in entries))
shown = b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace")
check("bytes of tokens make the text", shown.startswith(text))

ids = chat(extra_body={"return_token_ids": True})
prompt_ids = ids.model_extra["prompt_token_ids"]
check("prompt ids", len(prompt_ids) == ids.usage.prompt_tokens)
check("sampled ids", len(ids.choices[0].model_extra["token_ids"]) == ids.usage.completion_tokens)
tokens = raw("/tokenize", {"model": MODEL, "messages": ASK})
check("tokenize agrees", tokens["tokens"] == prompt_ids and tokens["count"] == len(prompt_ids))
words = raw("/tokenize", {"model": MODEL, "prompt": "def f(x): return x", "add_special_tokens": False})
check(
    "detokenize",
    raw("/detokenize", {"model": MODEL, "tokens": words["tokens"]})["prompt"] == "def f(x): return x",
)

whole = client.completions.create(model=MODEL, prompt="def add(a, b):\n", max_tokens=12, temperature=0)
check("completions", len(whole.choices[0].text) > 0, repr(whole.choices[0].text))
scored = client.completions.create(
    model=MODEL, prompt="def add(a, b):\n    return a + b\n", max_tokens=1, echo=True, logprobs=1, temperature=0
)
lps = scored.choices[0].logprobs.token_logprobs
check("echo scores the prompt", lps[0] is None and all(lp <= 0 for lp in lps[1:]))
by_ids = client.completions.create(model=MODEL, prompt=words["tokens"], max_tokens=4, temperature=0)
check("prompt as ids", by_ids.usage.prompt_tokens == len(words["tokens"]))

first_word = text.split()[0]
stopped = chat(stop=[text[len(first_word) :][:3]]) if len(text) > len(first_word) + 3 else None
if stopped is not None:
    check(
        "stop strings cut",
        text.startswith(stopped.choices[0].message.content) and stopped.choices[0].finish_reason == "stop",
    )

for name, error, code, arguments in [
    ("context length", openai.BadRequestError, "context_length_exceeded", {"max_tokens": 10_000_000}),
    ("unknown model", openai.NotFoundError, "model_not_found", {"model": "no-such-model"}),
    ("bad temperature", openai.BadRequestError, None, {"temperature": -1}),
    ("unsupported penalty", openai.BadRequestError, None, {"presence_penalty": 1}),
    ("empty messages", openai.BadRequestError, None, {"messages": []}),
]:
    try:
        chat(**arguments)
        check(name, False, "no error")
    except error as problem:
        check(f"{name} is refused", code is None or problem.code == code, problem.message[:90])

for body, status in [(b"{", 400), (b"[]", 400), (b'{"messages": 3}', 400), (b"\xff" * 100, 400)]:
    request = urllib.request.Request(BASE + "/chat/completions", body, {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request)
        check("broken body", False)
    except urllib.error.HTTPError as problem:
        check("broken body is refused", problem.code in (status, 422), problem.code)

stream = chat(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    texts = list(pool.map(lambda _: chat().choices[0].message.content, range(32)))
check("32 requests at once give what one gives", set(texts) == {text})
metrics = urllib.request.urlopen(ROOT + "/metrics").read().decode()
check("metrics", "temper_requests_total" in metrics)
print("all checks passed")
