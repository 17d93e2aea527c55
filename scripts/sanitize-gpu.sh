#!/usr/bin/env bash
# Small calls of every kind under tools of compute-sanitizer, with the device's own kernels and the portable ones. Needs
# a GPU.
#
#   scripts/sanitize-gpu.sh [LIBRARY FOLDER [TOOL...]]     default: build/cuda/lib memcheck initcheck synccheck
#
# racecheck runs over stored logits alone: it does not follow what scorers and consumers of the fused kernel hand over
# through mbarriers and volatile words (docs/notes/races.md).
set -euo pipefail
cd "$(dirname "$0")/.."
lib=$(realpath "${1:-build/cuda/lib}")
shift || true
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck initcheck synccheck)
program=$(mktemp)
trap 'rm -f "$program"' EXIT
nvcc -o "$program" tests/gpu/small_calls.c -Iinclude -L"$lib" -lflashsampling -Xlinker -rpath,"$lib"
failed=0
# check NAME TOOL PROGRAM [ARGUMENT...]
check() {
    local name=$1 tool=$2 out more=()
    shift 2
    [ "$tool" != racecheck ] || more=(--racecheck-report all)
    # Kernels that look at logits have 48 mbarriers a CTA: more than it follows by default.
    [ "$tool" != synccheck ] || more=(--num-cuda-barriers 65536)
    if out=$(timeout 120 compute-sanitizer --tool "$tool" "${more[@]}" --error-exitcode 9 "$@" 2>&1) &&
        ! grep -q 'hazard detected' <<<"$out"; then # a warning of racecheck leaves the exit code 0
        printf '%-9s %-9s clean\n' "$name" "$tool"
    else
        printf '%-9s %-9s FAILED\n' "$name" "$tool"
        # What is wrong, and in which kernel, each once with how often.
        grep -E '^=========( [^ ]|     at .*\+0x)' <<<"$out" | sort | uniq -c | sort -rn | head -12
        failed=1
    fi
}
for tool in "${tools[@]}"; do
    check sm90 "$tool" "$program"
    FLASHSAMPLING_CUDA_TILE=portable check portable "$tool" "$program"
done
[ $# -gt 0 ] || check stored racecheck "$program" stored
exit $failed
