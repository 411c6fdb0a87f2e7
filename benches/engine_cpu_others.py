"""The other engines' side of engine_cpu.sh, and its summary.

    engine_cpu_others.py llama prefill|decode MODEL.gguf THREADS TOKENS
    engine_cpu_others.py torch train MODEL.gguf THREADS TOKENS
    engine_cpu_others.py summary LINES
"""

import json
import statistics
import sys
import time


def report(engine, what, n_tokens, run):
    wall = process = float("inf")
    for _ in range(3):
        start, before = time.perf_counter(), time.process_time()
        run()
        wall = min(wall, time.perf_counter() - start)
        process = min(process, time.process_time() - before)
    print(
        json.dumps(
            {
                "engine": engine,
                "what": what,
                "tokens": n_tokens,
                "tokens_per_second": round(n_tokens / wall, 1),
                "tokens_per_process_second": round(n_tokens / process, 1),
            }
        )
    )


def llama(what, path, n_threads, n_tokens):
    """Through the C interface, so that no Python lies between two tokens but the loop."""
    import os

    import llama_cpp as api

    api.llama_backend_init()
    parameters = api.llama_model_default_params()
    parameters.n_gpu_layers = 0
    # Its AMX path stops with a general protection fault on some virtual machines.
    parameters.use_extra_bufts = "LLAMA_EXTRA_BUFFERS" in os.environ
    model = api.llama_model_load_from_file(path.encode(), parameters)
    settings = api.llama_context_default_params()
    settings.n_ctx = 2048
    settings.n_batch = settings.n_ubatch = 512
    settings.n_threads = settings.n_threads_batch = n_threads
    context = api.llama_init_from_model(model, settings)
    memory = api.llama_get_memory(context)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    prompt = [i * 7919 % (vocabulary - 200) + 100 for i in range(max(n_tokens, 16))]

    def step(ids):
        array = (api.llama_token * len(ids))(*ids)
        if api.llama_decode(context, api.llama_batch_get_one(array, len(ids))) != 0:
            raise RuntimeError("llama_decode")

    def prefill():
        api.llama_memory_clear(memory, True)
        step(prompt[:n_tokens])

    def decode():
        api.llama_memory_clear(memory, True)
        step(prompt[:16])
        for i in range(n_tokens):
            step([prompt[i % len(prompt)]])

    report("llama.cpp", what, n_tokens, {"prefill": prefill, "decode": decode}[what])


def torch_train(path, n_threads, n_tokens):
    """One full-weight update of AdamW in f32 on one sequence, as Temper's."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(n_threads)
    fields = gguf.GGUFReader(path).fields
    value = lambda name: fields[f"llama.{name}"].contents()
    config = LlamaConfig(
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        vocab_size=len(fields["tokenizer.ggml.tokens"].contents()),
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    ids = torch.randint(100, config.vocab_size, (1, n_tokens))

    def update():
        optimizer.zero_grad(set_to_none=False)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    update()
    report("pytorch", "train", n_tokens, update)


def summary(path):
    rates = {}
    for line in open(path):
        row = json.loads(line)
        key = (row["what"], row["engine"])
        for rate in ("tokens_per_second", "tokens_per_process_second"):
            rates.setdefault(key, {}).setdefault(rate, []).append(row[rate])
    median = {
        key: {rate: statistics.median(values) for rate, values in of.items()}
        for key, of in rates.items()
    }
    for (what, engine), of in sorted(median.items()):
        ours = median.get((what, "temper exact" if what == "train" else "temper int8"))
        ratio = ""
        if ours and not engine.startswith("temper"):
            ratio = f"; Temper is {ours['tokens_per_second'] / of['tokens_per_second']:.2f}x"
        print(
            f"{what:8} {engine:13} {of['tokens_per_second']:8.1f} tokens/s,"
            f" {of['tokens_per_process_second']:8.1f} per second of processor"
            f" (n={len(rates[what, engine]['tokens_per_second'])}){ratio}"
        )


command, *rest = sys.argv[1:]
if command == "llama":
    llama(rest[0], rest[1], int(rest[2]), int(rest[3]))
elif command == "torch":
    torch_train(rest[1], int(rest[2]), int(rest[3]))
else:
    summary(rest[0])
