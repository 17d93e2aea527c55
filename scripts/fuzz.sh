#!/bin/sh
# Runs the fuzzing programs of a folder one after the other; each says what it has done. Fails if one has.
#   scripts/fuzz.sh FOLDER [--calls N] [--seed S]     N cases in all, 10,000,000 if not said
set -u
folder=$1
shift
calls=10000000
seed=1
while [ $# -gt 0 ]; do
    case "$1" in
    --calls) calls=$2 ;;
    --seed) seed=$2 ;;
    *)
        echo "usage: make fuzz ARGS=\"--calls N --seed S\"" >&2
        exit 2
        ;;
    esac
    shift 2
done

failed=0
# Twelve merges make a case of fuzz_parts.
for share in structs:85 parts:10 npy:5; do
    "$folder/fuzz_${share%:*}" --calls $((calls * ${share#*:} / 100)) --seed "$seed" || failed=$((failed + 1))
done
echo "$calls cases, $failed of 3 programs found a fault"
[ "$failed" -eq 0 ]
