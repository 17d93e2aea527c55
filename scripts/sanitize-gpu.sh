#!/usr/bin/env bash
# Small calls of every kind under tools of compute-sanitizer, with the device's own kernels and the portable ones. Needs a GPU.
#
#   scripts/sanitize-gpu.sh [LIBRARY FOLDER [TOOL...]]     default: build/cuda/lib memcheck initcheck synccheck
#
# racecheck does not follow what judges and consumers hand over through mbarriers and volatile words, and takes minutes: see
# docs/races.md.
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
for tile in "" portable; do
    for tool in "${tools[@]}"; do
        if out=$(env ${tile:+"FLASHSAMPLING_CUDA_TILE=$tile"} timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" 2>&1); then
            printf '%-9s %-9s clean\n' "${tile:-sm90}" "$tool"
        else
            printf '%-9s %-9s FAILED\n%s\n' "${tile:-sm90}" "$tool" "$(grep -v '^=========     ' <<<"$out" | sort | uniq -c | sort -rn | head -12)"
            failed=1
        fi
    done
done
exit $failed
