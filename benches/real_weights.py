"""Compares the engine with PyTorch on a real model: logits, adapter gradients and training speed.

    python benches/real_weights.py MODEL.gguf [--tokens 512] [--threads 2] [--runs 3] [--profile release]

transformers reads the same GGUF file through the `gguf` package and dequantises it to float32; PEFT
adds an adapter of rank 8 on all projections with random A and B, which the engine reads from PEFT's
files. Both score the same text in float32 and go backward from its mean negative log-likelihood; the
same model in float64, norms included, says which of their differences are whose. Needs torch,
transformers, peft, gguf and safetensors. Prints one JSON object.
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

    def run():
        model.zero_grad()
        start = time.perf_counter()
        logits = model(input_ids=ids[None]).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits, ids[1:]).backward()
        seconds = time.perf_counter() - start
        tensors = dict(logits=logits.detach())
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                name = name.removeprefix("base_model.model.").replace(".default", "")
                tensors[name] = parameter.grad
        return tensors, seconds

    runs = [run() for _ in range(options.runs)]
    theirs = runs[0][0]
    double(model)
    exact, _ = run()

    def errors(tensors):
        logprobs = torch.log_softmax(tensors["logits"].double(), -1)
        logprobs = logprobs - torch.log_softmax(exact["logits"], -1)
        relative = {
            name: float((tensors[name] - value).abs().max() / value.abs().max())
            for name, value in exact.items()
        }
        logits = relative.pop("logits")
        ordered = sorted(relative.values())
        return dict(
            logits_relative=logits,
            logprobs_largest_difference=float(logprobs.abs().max()),
            logprobs_of_text_largest_difference=float(
                logprobs.gather(1, ids[1:, None]).abs().max()
            ),
            gradients_median_relative=ordered[len(ordered) // 2],
            gradients_worst_relative=ordered[-1],
            gradients_worst=max(relative, key=relative.get),
            argmax_agreement=float(
                (tensors["logits"].argmax(-1) == exact["logits"].argmax(-1)).double().mean()
            ),
        )

    print(
        json.dumps(
            dict(
                model=options.model.name,
                tokens=options.tokens,
                n_gradients=len(exact) - 1,
                ours_against_float64=errors(ours),
                torch_against_float64=errors(theirs),
                our_tokens_per_second=options.tokens / min(our_seconds),
                torch_tokens_per_second=options.tokens / min(seconds for _, seconds in runs),
            ),
            indent=2,
        )
    )


def double(model):
    """Makes a model compute in float64, its norms too, which would go through float32."""

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x * scale)

    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            type(module).forward = forward


if __name__ == "__main__":
    main()
