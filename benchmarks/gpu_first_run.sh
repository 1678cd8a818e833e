#!/usr/bin/env bash
# What a machine with a GPU shows in its first eight minutes; one JSON file at the end, whatever fails on the way.
#
#     benchmarks/gpu_first_run.sh [--tiny] [OUT.json]
#
# Each part runs under a time limit of its own, in a process of its own: one that fails, hangs or runs out of memory
# costs its own numbers only. `--tiny` runs the same parts in seconds, for CPUs. PYTHON is the interpreter.
set -u
tiny="" out=gpu_first_run.json
for argument in "$@"; do
    case "$argument" in
        --tiny) tiny=--tiny ;;
        *) out=$argument ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
cd "$here/.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

part() { # NAME SECONDS
    began=$(date +%s)
    timeout --kill-after=5 "$2" "$python" benchmarks/gpu_parts.py "$1" $tiny >"$parts/$1.json" 2>"$parts/$1.log"
    echo "$? $(($(date +%s) - began))" >"$parts/$1.end"
}

# Seconds: together 460, so that all of it ends within eight minutes. Tiny parts run beside each other.
for each in machine:20 rig:120 decode:60 update:80 phases:40 transport:40 demo:100; do
    if [ -n "$tiny" ]; then
        part "${each%:*}" 600 &
    else
        echo "${each%:*} (at most ${each#*:} s)" >&2
        part "${each%:*}" "${each#*:}"
    fi
done
wait
"$python" benchmarks/gpu_parts.py report "$parts" "$out"
