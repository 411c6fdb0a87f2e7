"""Compares greedy completions and log-probabilities with transformers, and on request llama.cpp.

    python benches/greedy.py MODEL.gguf [--tokens 96] [--threads 2] [--profile release] [--int8]
        [--llama-cpp]

transformers reads the same GGUF file through the `gguf` package and dequantises it to float32, which
is what the engine does with exact arithmetic: ids must be equal, unless two tokens are equally
likely within 1e-3. llama.cpp rounds activations to 8 bits, so it may part from both where two tokens
are nearly equally likely; where it does is reported. Needs torch, transformers and gguf; llama.cpp
through `llama-cpp-python`. Prints one JSON object; exit code 1 when ids differ from transformers'.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parent.parent
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
]


def ours(options, prompt):
    built = "debug" if options.profile == "dev" else options.profile
    command = [ROOT / "target" / built / "examples/generate", options.model, "--prompt", prompt]
    command += ["--max-tokens", str(options.tokens), "--threads", str(options.threads)]
    command += ["--ignore-eos", "--json", "--check"] + (["--int8"] if options.int8 else [])
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def judge(model, prompt_ids, ids):
    """What the model says after each prefix of `ids`: the most likely id, the log-probability of
    the id that stands there, and how much more likely the best is than the next best. By induction,
    `ids` are its greedy completion exactly when the most likely ones are `ids`."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1]
    scores = torch.log_softmax(logits.double(), -1)
    top = scores.topk(2)
    logprobs = scores.gather(1, torch.tensor(ids)[:, None])[:, 0]
    margins = top.values[:, 0] - top.values[:, 1]
    return top.indices[:, 0].tolist(), logprobs.tolist(), margins.tolist()


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", default="release", help="how cargo builds the engine")
    parser.add_argument("--int8", action="store_true", help="round activations to 8 bits")
    parser.add_argument("--llama-cpp", action="store_true", help="compare with it as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    command = ["cargo", "build", "-q", "-p", "temper-model", "--example", "generate"]
    subprocess.run([*command, "--profile", options.profile], cwd=ROOT, check=True)
    model = AutoModelForCausalLM.from_pretrained(
        options.model.parent, gguf_file=options.model.name, dtype=torch.float32
    )
    llama = None
    if options.llama_cpp:
        from llama_cpp import Llama

        llama = Llama(str(options.model), n_ctx=1024, n_threads=options.threads, verbose=False)
    report, failed = [], False
    for prompt in PROMPTS:
        got = ours(options, prompt)
        completion = got["completions"][0]
        ids, logprobs, margins = judge(model, got["prompt_ids"], completion["ids"])
        differs = first_difference(completion["ids"], ids)
        errors = [abs(a - b) for a, b in zip(completion["logprobs"], logprobs)]
        row = {
            "prompt": prompt,
            "tokens": len(completion["ids"]),
            "first_difference": differs,
            "margin_there": None if differs is None else margins[differs],
            "max_logprob_difference": max(errors, default=0.0),
            "smallest_margin": min(margins),
            "max_difference_from_scoring": got["max_difference_from_scoring"],
            "max_difference_from_training_pass": got["max_difference_from_training_pass"],
            "prefill_tokens_per_second": got["prefill_tokens_per_second"],
            "decode_tokens_per_second": got["decode_tokens_per_second"],
        }
        if differs is not None and margins[differs] > 1e-3:
            failed = True
        if llama is not None:
            llama.reset()
            theirs = []
            for token in llama.generate(got["prompt_ids"], temp=0.0, top_k=1, repeat_penalty=1.0):
                theirs.append(token)
                if len(theirs) == options.tokens:
                    break
            at = first_difference(completion["ids"], theirs)
            row["llama_cpp_first_difference"] = at
            row["margin_at_llama_cpp_difference"] = None if at is None else margins[at]
        report.append(row)
    print(json.dumps({"model": options.model.name, "prompts": report}, indent=2))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
