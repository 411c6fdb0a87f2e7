#!/bin/sh
# Prefill, decoding and training on the processor, side by side in one run: Temper, llama.cpp and
# PyTorch take turns, so that what else the machine does falls on all alike.
#
#     benches/engine_cpu.sh MODEL.gguf PYTHON [THREADS] [ROUNDS]
#
# PYTHON is an interpreter with llama-cpp-python, torch and transformers; a tool that is missing or
# fails is reported and left out. One JSON line per measurement; the summary has the medians and
# their ratios. Everything runs with the weights of MODEL.gguf: llama.cpp and Temper on the encoded
# ones, training of both on the same architecture in f32.
set -eu
model=$1
python=$2
threads=${3:-2}
rounds=${4:-3}
here=$(dirname "$0")
cargo build --release --quiet -p temper-model --example engine_cpu
temper=${CARGO_TARGET_DIR:-$here/../target}/release/examples/engine_cpu
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

measure() {
    if output=$("$@" 2>/dev/null); then
        echo "$output" | grep '^{' | tee -a "$lines"
    else
        echo "failed: $*" >&2
    fi
}

for round in $(seq "$rounds"); do
    for what in prefill decode; do
        n=512
        [ "$what" = decode ] && n=64
        measure "$temper" "$what" "$model" "$threads" int8 "$n"
        measure "$python" "$here/engine_cpu_others.py" llama "$what" "$model" "$threads" "$n"
        measure "$temper" "$what" "$model" "$threads" exact "$n"
    done
    measure "$temper" train "$model" "$threads" exact 512
    measure "$python" "$here/engine_cpu_others.py" torch train "$model" "$threads" 512
done
"$python" "$here/engine_cpu_others.py" summary "$lines"
