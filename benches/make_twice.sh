#!/usr/bin/env bash
# Whether `temper tasks make` gives the same bytes whatever the number of workers: the same source
# and seed with one worker and with two, each with a cache of its own that holds nothing but
# downloaded files, and every file of the two suites compared.
#
#   benches/make_twice.sh TEMPER SOURCE WORK [FLAG…]
#   benches/make_twice.sh target/release/temper deepmerge==4.0.0 /tmp/twice --limit 10
#
# WORK is made and must not exist. Prints the processor time of both runs; exits with 1 and the
# names of what differs when anything does.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
temper=$(realpath "$1")
source=$2
work=$(realpath -m "$3")
shift 3
mkdir "$work"
cd "$work"

for workers in 1 2; do
    mkdir "$workers"
    # The suite has the same name in both, since its name is part of it.
    (
        cd "$workers"
        TIMEFORMAT="$workers workers: %U s user, %S s system, %R s by the clock"
        time "$temper" -q tasks make "$source" --output suite --seed 7 --workers "$workers" \
            --cache "$work/$workers/cache" "$@" >out 2>err || { cat err >&2; exit 1; }
    )
done
diff -r 1/suite 2/suite
echo "$(wc -l <1/suite/tasks.jsonl) tasks, every byte the same"
