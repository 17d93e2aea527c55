#!/bin/sh
# lint.sh: format, clang-tidy, cppcheck and shellcheck over what is tracked or about to be; non-zero if one complains.
# lint.sh --fix: only formats, in place.
set -eu
cd "$(dirname "$0")/.."

jobs=$(nproc)
find_c() { find include src cli tests bench examples -name '*.[ch]' 2>/dev/null | sort; }
find_cuda() { find src bench tests -name '*.cu' -o -name '*.cuh' | sort; }

if [ "${1:-}" = --fix ]; then
    { find_c; find_cuda; } | xargs clang-format -i
    exit 0
fi

format() { { find_c; find_cuda; } | xargs clang-format --dry-run -Werror; }

# The files that compile here: another architecture's kernels have no compile command.
tidy() {
    cmake -S . -B build/lint -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING >/dev/null
    find_c | grep -E '^(src|cli|bench)/.*\.c$' | while read -r file; do
        if grep -q "\"file\": \".*/$file\"" build/lint/compile_commands.json; then echo "$file"; fi
    done | xargs -P "$jobs" -n 1 clang-tidy -p build/lint --quiet
}

# constStatement: cppcheck 2.10 takes an index inside a compound literal for a statement without effect.
check() {
    cppcheck --std=c11 --enable=warning,portability,performance --error-exitcode=1 --inline-suppr --quiet -j "$jobs" \
        --suppress=missingIncludeSystem --suppress=constStatement \
        --suppress=unmatchedSuppression --library=scripts/cppcheck.cfg -Iinclude -Isrc -Icli -Ibench src cli bench
}

status=0
echo "== clang-format"
format || status=1
echo "== clang-tidy"
tidy || status=1
echo "== cppcheck"
check || status=1
echo "== shellcheck"
sh tests/checks/shellcheck.sh || status=1
exit $status
