"""Compares `temper model convert` with transformers on a real GGUF file.

    temper model convert MODEL.gguf --dtype float32 --output DIR
    python check_gguf.py MODEL.gguf DIR

Every tensor must be equal bit for bit, and so must what transformers makes of both
configurations. Needs torch, transformers, safetensors and gguf.
"""

import json
import pathlib
import sys

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

source, folder = map(pathlib.Path, sys.argv[1:])
theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
expected = theirs.state_dict()
if theirs.config.tie_word_embeddings:
    expected.pop("lm_head.weight", None)

index = folder / "model.safetensors.index.json"
names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
n_equal = 0
for name in sorted(names):
    with safe_open(folder / name, "pt") as file:
        for key in file.keys():
            ours, other = file.get_tensor(key), expected.pop(key)
            assert ours.dtype == torch.float32 and torch.equal(ours, other), key
            n_equal += 1
assert not expected, sorted(expected)

config = AutoConfig.from_pretrained(folder)
for key in (
    "model_type hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size"
    " vocab_size rms_norm_eps max_position_embeddings tie_word_embeddings rope_parameters bos_token_id"
).split():
    ours, other = getattr(config, key), getattr(theirs.config, key)
    if ours != other:
        print(f"{key}: {ours} here, {other} in transformers")
print(f"{n_equal} tensors are equal bit for bit")
