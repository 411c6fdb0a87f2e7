"""SHA-256 of a model's shards by `temper model audit`, beside sha256sum and openssl.

    python3 benches/audit_hash.py TEMPER [--shards 4] [--mib 512] [--rounds 7]

Makes a folder of shards in a temporary directory and reads it once, so that all three read from
memory. Then the programs run in turns: alone on one core each (processor time, user and system,
which other work on the machine disturbs least; the median counts), and with as many at a time as
there are cores (wall time, which other work only lengthens; the shortest counts; the tools by
`xargs -P`). Printed are GB/s and the audit's share of the fastest tool's speed.
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import tempfile
import time


def write_shards(folder, n_shards, n_bytes):
    weight_map = {}
    block = os.urandom(1 << 20)
    for shard in range(n_shards):
        name = f"model-{shard + 1:05d}-of-{n_shards:05d}.safetensors"
        tensor = f"tensor.{shard}"
        weight_map[tensor] = name
        header = {tensor: {"dtype": "BF16", "shape": [n_bytes // 2], "data_offsets": [0, n_bytes]}}
        header = json.dumps(header).encode()
        with open(os.path.join(folder, name), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for _ in range(n_bytes >> 20):
                file.write(block)
    index = {"metadata": {"total_size": n_shards * n_bytes}, "weight_map": weight_map}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file)
    return [os.path.join(folder, name) for name in weight_map.values()]


def run(command, cores):
    """Processor and wall seconds."""
    limit = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=limit)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("temper")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        files = write_shards(folder, args.shards, args.mib << 20)
        os.sync()
        audit = [args.temper, "model", "audit", folder, "--revision", "none"]
        tools = {"sha256sum": ["sha256sum"], "openssl": ["openssl", "dgst", "-sha256"]}
        at_a_time = ["xargs", "-P", str(len(cores)), "-n", "1"]
        serial, parallel = {}, {}
        for _ in range(args.rounds):
            serial.setdefault("temper", []).append(run(audit, cores[:1])[0])
            parallel.setdefault("temper", []).append(run(audit, None)[1])
            for name, tool in tools.items():
                serial.setdefault(name, []).append(run(tool + files, cores[:1])[0])
                listed = ["sh", "-c", 'printf "%s\\n" "$@" | ' + " ".join(at_a_time + tool), "sh"]
                parallel.setdefault(name, []).append(run(listed + files, None)[1])
        n_bytes = args.shards * (args.mib << 20)
        for title, times, chosen in [
            ("processor time, one core", serial, statistics.median),
            ("wall time, all cores", parallel, min),
        ]:
            speeds = {name: n_bytes / 1e9 / chosen(all_) for name, all_ in times.items()}
            fastest = max(speed for name, speed in speeds.items() if name != "temper")
            shown = ", ".join(f"{name} {speed:.2f} GB/s" for name, speed in speeds.items())
            print(f"{title}: {shown}; temper {100 * speeds['temper'] / fastest:.0f} % of the fastest tool")


if __name__ == "__main__":
    main()
