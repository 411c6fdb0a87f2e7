"""The shapes of `engine_bench` with PyTorch, transformers and PEFT on the same GPU: prints JSON.

    python3 benches/engine_gpu.py [block] [step] [generate] [--layers N] [--tokens N]

Random weights, LoRA of rank 32 on all seven projections, bf16. A block is timed as in
`engine_bench`: four more layers, a quarter of their time. Steps use gradient checkpointing.
Needs torch, transformers and peft; nothing is downloaded.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen3Config, Qwen3ForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
PEAK_FLOPS = 989e12


def config(n_layers):
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=n_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        use_cache=False,
    )


def random_model(n_layers):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config(n_layers))
    model = model.to_empty(device="cuda")
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.uniform_(-0.0346, 0.0346)
    # The rotary frequencies are a buffer, which the empty copy lost.
    rotary = model.model.rotary_emb
    fresh = type(rotary)(model.config, device="cuda")
    rotary.inv_freq.copy_(fresh.inv_freq)
    if hasattr(rotary, "original_inv_freq"):
        rotary.original_inv_freq = rotary.inv_freq
    return model


def adapted(n_layers):
    lora = LoraConfig(r=32, lora_alpha=64, target_modules=TARGETS, lora_dropout=0.0)
    return get_peft_model(random_model(n_layers), lora)


def median(times, call):
    call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def free():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def block(n_tokens):
    """Forward and backward of one block, by attention backend."""
    result = {}
    for name, backend in BACKENDS.items():
        times = []
        for n_layers in (1, 5):
            model = adapted(n_layers).base_model.model.model
            ids = torch.randint(0, 151936, (1, n_tokens), device="cuda")

            def call():
                with sdpa_kernel(backend):
                    model(ids).last_hidden_state[:, -1].float().sum().backward()

            # Gradients must reach the input of every block but the first.
            times.append(median(5, call))
            del model
            free()
        result[name] = {"tokens": n_tokens, "milliseconds": (times[1] - times[0]) / 4 * 1e3}
    return result


def step(n_layers, n_tokens, checkpointing):
    """A training step: loss over all tokens, backward, clipping, fused AdamW."""
    model = adapted(n_layers)
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    ids = torch.randint(0, 151936, (1, n_tokens), device="cuda")
    result = {}
    for name, backend in BACKENDS.items():

        def call():
            with sdpa_kernel(backend):
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()

        try:
            seconds = median(2, call)
        except torch.OutOfMemoryError:
            result[name] = {"tokens": n_tokens, "error": "out of memory"}
            optimizer.zero_grad()
            free()
            continue
        weights = sum(p.numel() for n, p in model.named_parameters() if "lora" not in n)
        weights -= 151936 * 4096
        flops = 4.0 * weights * n_tokens + 7.0 * n_tokens**2 * 4096 * n_layers
        result[name] = {
            "tokens": n_tokens,
            "seconds": seconds,
            "tokens_per_second": n_tokens / seconds,
            "mfu": flops / seconds / PEAK_FLOPS,
            "peak_bytes": torch.cuda.max_memory_allocated(),
        }
    return result


@torch.inference_mode()
def generate(n_layers, n_sequences, n_prompt, n_drawn):
    """`generate` with its cache; of the drawn tokens only as many as asked for are timed."""
    model = random_model(n_layers).eval()
    model.config.use_cache = True
    ids = torch.randint(0, 151936, (n_sequences, n_prompt), device="cuda")

    def call(n):
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            use_cache=True,
        )
        torch.cuda.synchronize()

    call(4)
    start = time.perf_counter()
    call(n_drawn)
    seconds = time.perf_counter() - start
    return {
        "sequences": n_sequences,
        "prompt": n_prompt,
        "drawn": n_drawn,
        "seconds": seconds,
        "tokens_per_second": n_sequences * n_drawn / seconds,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--drawn", type=int, default=256)
    arguments = parser.parse_args()

    def wants(word):
        return not arguments.words or word in arguments.words

    report = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "layers": arguments.layers,
    }
    parts = {
        "block": lambda: block(arguments.tokens),
        "step_checkpointed": lambda: step(arguments.layers, arguments.tokens, True),
        "generate": lambda: generate(arguments.layers, 64, 1024, arguments.drawn),
    }
    for name, part in parts.items():
        if not wants(name.split("_")[0]):
            continue
        start = time.perf_counter()
        try:
            report[name] = part()
        except Exception as error:  # One part that fails must not hide the others.
            report[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        report[name]["bench_seconds"] = time.perf_counter() - start
        print(name, json.dumps(report[name]), file=sys.stderr)
        free()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
