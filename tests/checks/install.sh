# What is installed is what `make build` builds, and can be used: from pkg-config (shared and static) and from CMake,
# out of a prefix that was moved.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# `make install` on a clean tree: the targets that `make build` names must make every program and library that is
# installed. Their commands are looked at, not run: that is quick, and what an earlier build has left behind does not
# hide it.
targets=$(make -n -C "$root" build | sed -n 's/.*--target //p')
# shellcheck disable=SC2086 # the words are targets
ninja -C "$FS_BUILD" -t commands $targets | tr ' ' '\n' | sort -u >"$work/made"
sed -n "s,.*\"$FS_BUILD/\(\(lib\|bin\)/[^\"]*\)\".*,\1,p" "$FS_BUILD/cmake_install.cmake" | sort -u >"$work/installed"
if ! test -s "$work/installed" || comm -13 "$work/made" "$work/installed" | grep .; then
    echo "make install wants the files above, which make build ($targets) does not make"
    exit 1
fi

cmake --install "$FS_BUILD" --prefix "$work/first" >"$work/install.log" || {
    cat "$work/install.log"
    exit 1
}
mv "$work/first" "$work/prefix"
prefix=$work/prefix
for file in include/flashsampling.h include/flashsampling_screens.h include/flashsampling_ranks.h bin/flashsample; do
    test -f "$prefix/$file" || {
        echo "$file was not installed"
        exit 1
    }
done
"$prefix/bin/flashsample" --help >/dev/null
pc=$(find "$prefix" -name flashsampling.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$(dirname "$(find "$prefix" -name libflashsampling.so)")
source=$root/tests/checks/consumer/main.c

if command -v pkg-config >/dev/null 2>&1; then
    # shellcheck disable=SC2046 # the words are flags
    gcc "$source" -o "$work/shared" $(pkg-config --cflags --libs flashsampling)
    LD_LIBRARY_PATH=$libdir "$work/shared"
    rm -rf "$work/archive"
    mkdir "$work/archive"
    cp "$libdir/libflashsampling.a" "$work/archive"
    # shellcheck disable=SC2046
    gcc "$source" -o "$work/static" $(pkg-config --cflags flashsampling) "$work/archive/libflashsampling.a" \
        $(pkg-config --static --libs-only-other --libs-only-l flashsampling | sed 's/-lflashsampling//')
    "$work/static"
else
    echo "note: pkg-config is not here; flashsampling.pc was not tried"
fi

if ! { cmake -S "$root/tests/checks/consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$work/build"; } >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
"$work/build/with_shared"
"$work/build/with_static"
