"""Compares the engine with PyTorch on a real model: logits, adapter gradients and training speed.

    python benches/real_weights.py MODEL.gguf [--tokens 512] [--threads 2] [--runs 3] [--profile release]

transformers reads the same GGUF file through the `gguf` package and dequantises it to float32; PEFT
adds an adapter of rank 8 on all projections with random A and B, which the engine reads from PEFT's
files. Both score the same text in float32 and go backward from its mean negative log-likelihood.
Needs torch, transformers, peft, gguf and safetensors. Prints one JSON object.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parent.parent
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", default="release", help="how cargo builds the engine")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    source = dict(
        pretrained_model_name_or_path=options.model.parent, gguf_file=options.model.name
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    model = get_peft_model(
        model, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, lora_dropout=0.0)
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.01 * torch.randn_like(parameter)
    text = Path(__file__).read_text()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) >= options.tokens, f"the text has {len(ids)} tokens"
    ids = torch.tensor(ids[: options.tokens])

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model.save_pretrained(folder / "adapter")
        (folder / "ids.json").write_text(json.dumps(ids.tolist()))
        command = ["cargo", "build", "-q", "-p", "temper-model", "--example", "real_weights"]
        subprocess.run([*command, "--profile", options.profile], cwd=ROOT, check=True)
        built = "debug" if options.profile == "dev" else options.profile
        out = subprocess.run(
            [
                ROOT / "target" / built / "examples/real_weights",
                options.model,
                folder / "adapter",
                folder / "ids.json",
                folder / "out.safetensors",
                str(options.threads),
                str(options.runs),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        ours = load_file(folder / "out.safetensors")
    our_seconds = [float(line.split()[1]) for line in out.splitlines() if line.startswith("sec")]

    their_seconds = []
    for _ in range(options.runs):
        model.zero_grad()
        start = time.perf_counter()
        logits = model(input_ids=ids[None]).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, ids[1:])
        loss.backward()
        their_seconds.append(time.perf_counter() - start)

    logits = logits.detach()
    difference = (ours["logits"] - logits).abs()
    logprobs = [torch.log_softmax(x, -1) for x in (ours["logits"], logits)]
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.removeprefix("base_model.model.").replace(".default", "")
            theirs = parameter.grad
            error = (ours[name] - theirs).abs().max() / theirs.abs().max()
            gradients[name] = float(error)
    worst = max(gradients, key=gradients.get)
    print(
        json.dumps(
            dict(
                model=options.model.name,
                tokens=options.tokens,
                logits_largest_difference=float(difference.max()),
                logits_largest=float(logits.abs().max()),
                logprobs_largest_difference=float((logprobs[0] - logprobs[1]).abs().max()),
                argmax_agreement=float(
                    (ours["logits"].argmax(-1) == logits.argmax(-1)).float().mean()
                ),
                n_gradients=len(gradients),
                worst_gradient_relative_error=gradients[worst],
                worst_gradient=worst,
                our_tokens_per_second=options.tokens / min(our_seconds),
                torch_tokens_per_second=options.tokens / min(their_seconds),
            ),
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
