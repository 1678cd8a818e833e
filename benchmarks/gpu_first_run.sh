#!/usr/bin/env bash
# What a machine with a GPU shows in its first eight minutes; one JSON file at the end, whatever fails on the way.
#
#     benchmarks/gpu_first_run.sh [--tiny] [OUT.json]
#
# Each part runs under a time limit of its own, in a process of its own: one that fails, hangs or runs out of memory
# costs its own numbers only. `--tiny` runs the same parts in seconds, for CPUs, in one process: what takes longest there
# is to import torch. PYTHON is the interpreter.
set -u
tiny="" out=gpu_first_run.json
for argument in "$@"; do
    case "$argument" in
        --tiny) tiny=--tiny ;;
        *) out=$(realpath -m "$argument") ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
cd "$here/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

run() { # SECONDS PART...
    local limit=$1 code=0 name
    shift
    timeout --kill-after=2 "$limit" "$python" benchmarks/gpu_parts.py $tiny "$parts" "$@" >"$parts/$1.log" 2>&1 || code=$?
    for name in "$@"; do echo "$code $1" >"$parts/$name.end"; done
}

if [ -n "$tiny" ]; then
    run 600 rig machine decode update phases transport demo
else # together 460 s, so that all of it ends within eight minutes
    for each in machine:30 rig:100 decode:45 update:65 phases:35 transport:55 demo:130; do
        echo "${each%:*} (at most ${each#*:} s)" >&2
        run "${each#*:}" "${each%:*}"
    done
fi
"$python" benchmarks/gpu_parts.py "$parts" --report "$out"
