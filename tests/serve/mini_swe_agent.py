"""Runs mini-swe-agent's own loop, through LiteLLM, against `temper serve`.

    temper serve --port 8000 &
    pip install mini-swe-agent==1.14.4
    MSWEA_CONFIGURED=true python3 tests/serve/mini_swe_agent.py http://127.0.0.1:8000/v1

The point is the protocol, not the model: a few steps must come back through LiteLLM with their
counts, and a prompt beyond the context must be recognised as such.
"""

import json
import os
import sys
import tempfile
import urllib.request

os.environ.setdefault("MSWEA_COST_TRACKING", "ignore_errors")
import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
name = json.load(urllib.request.urlopen(BASE + "/models"))["data"][0]["id"]
litellm.register_model(
    {f"openai/{name}": {"input_cost_per_token": 0, "output_cost_per_token": 0, "litellm_provider": "openai"}}
)
arguments = {
    "api_base": BASE,
    "api_key": "none",
    "temperature": 0.7,
    "seed": 1,
    "max_tokens": 128,
    "drop_params": False,
}
model = LitellmModel(model_name=f"openai/{name}", model_kwargs=arguments)
with tempfile.TemporaryDirectory() as directory:
    agent = DefaultAgent(model, LocalEnvironment(cwd=directory, timeout=5), step_limit=4, cost_limit=0)
    status, message = agent.run("Print the working directory with one bash command.")
print("ended with", status, "after", model.n_calls, "calls")
replies = [m for m in agent.messages if m["role"] == "assistant"]
assert len(replies) == model.n_calls > 0, (len(replies), model.n_calls)
assert all(reply["content"] for reply in replies)
try:
    model.query([{"role": "user", "content": "word " * 60_000}])
    raise SystemExit("a prompt beyond the context was not refused")
except litellm.exceptions.ContextWindowExceededError as error:
    print("recognised:", str(error)[:120])
print("all checks passed")
