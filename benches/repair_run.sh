#!/bin/sh
# SmolLM2-135M (or another model) before and after training on a suite's tasks, on one machine,
# offline, within a time limit.
#
#     benches/repair_run.sh TEMPER SUITE MODEL WORK RECORDS [SECONDS [WORKERS [FLAG…]]]
#
# TEMPER is the binary, SUITE a suite with train, dev and test tasks, MODEL a model's file or folder.
# Archives and wheels of the suite come from $TEMPER_FILES, a folder that `temper tasks fetch
# --files FOLDER` has filled. WORK holds the stages and can be large; into RECORDS go small files:
# reports, comparisons, records of stages, metrics, one line a trial. FLAGs go to `temper train`, such
# as --without PROTECTION.
#
# What matters most is done first, and each later part takes over what is there: one seed from
# collecting to its final test, then three seeds, then a second round from the first seed's
# adapter with preference training. RECORDS is written after each part, so that a limit in the
# middle leaves the parts before it. The same command again goes on where it stopped, if WORK is
# still there.
set -u
temper=$1 suite=$2 model=$3 work=$4 records=$5
seconds=${6:-1200} workers=${7:-48}
[ $# -ge 7 ] && shift 7 || shift $#
here=$(cd "$(dirname "$0")/.." && pwd)
began=$(date +%s)
mkdir -p "$work" "$records"
export TEMPER_CACHE="${TEMPER_CACHE:-$work/cache}"

left() { echo $((seconds - $(date +%s) + began)); }

fill() { # RECIPE SEEDS ADAPTER
    sed -e "s#@OUTPUT@#$work#" -e "s#@MODEL@#$model#" -e "s#@SUITE@#$suite#" \
        -e "s#@SEEDS@#$2#" -e "s#@ADAPTER@#$3#" "$here/examples/recipes/$1.toml"
}

# Small files alone, as one archive of each round.
keep() { # ROUND
    [ -d "$work/$1" ] || return 0
    (cd "$work" && find "$1" -name snapshots -prune -o -name tensorboard -prune \
        -o -name environments -prune -o -type f \( -name stage.json -o -name metrics.jsonl \
        -o -name comparison.json -o -name report.html -o -name final-tests.jsonl \
        -o -name trial.json -o -name report.json -o -name manifest.json -o -name tasks.json \) -print) \
        > "$work/$1.list"
    tar -C "$work" -czf "$records/$1.tar.gz" -T "$work/$1.list"
    cp "$work/$1.toml" "$records/"
    cp "$work/$1/report.html" "$records/$1.html" 2>/dev/null
}

part() { # NAME ROUND FLAG…
    name=$1 round=$2
    shift 2
    now=$(left)
    if [ "$now" -lt 20 ]; then
        echo "$name: no time left" | tee -a "$records/log.txt"
        return 1
    fi
    started=$(date +%s)
    # An interrupt stops after an update or a clean-up; the rest of a minute is for that.
    timeout -s INT -k 60 "$now" "$temper" train "$work/$round.toml" --offline -j "$workers" \
        --format json "$@" > "$records/$round.json.new" 2>> "$records/log.txt"
    code=$?
    [ -s "$records/$round.json.new" ] && mv "$records/$round.json.new" "$records/$round.json"
    rm -f "$records/$round.json.new"
    echo "$name: exit $code after $(($(date +%s) - started)) s" | tee -a "$records/log.txt"
    keep "$round"
    return "$code"
}

"$temper" doctor > "$records/doctor.txt" 2>&1
fill first-round '[0]' '' > "$work/first.toml"
part "data" first "$@" --until build || exit 1
part "one seed" first "$@" || exit 1
fill first-round '[0, 1, 2]' '' > "$work/first.toml"
part "three seeds" first "$@" || exit 1
python3 - "$records/first.json" "$work/first" > "$work/together" <<'END'
import json, sys
run, root = json.load(open(sys.argv[1]))["tested"], sys.argv[2]
if run and run["baseline_job"] and len(run["candidates"]) > 1:
    print("--baseline", f"{root}/{run['baseline_job']}", *(f"{root}/{it['job']}" for it in run["candidates"]))
END
if [ -s "$work/together" ]; then
    # The paths have no white space: WORK decides that.
    # shellcheck disable=SC2046
    "$temper" aggregate $(cat "$work/together") -o "$records/aggregate.json" \
        > "$records/aggregate.txt" 2>> "$records/log.txt"
fi
adapter=$(python3 -c '
import json, sys
run = json.load(open(sys.argv[1]))
print(next((it["weights"] or "" for it in run["selected"] if it["seed"] == 0), ""))
' "$records/first.json")
if [ -z "$adapter" ]; then
    echo "second round: selection kept the base model, so there is no adapter to go on from" |
        tee -a "$records/log.txt"
    exit 0
fi
fill second-round '[0]' "$work/first/$adapter" > "$work/second.toml"
part "second round" second "$@"
