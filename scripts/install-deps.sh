#!/bin/sh
# Installs what a set of targets needs and is not there yet: install-deps.sh build | test | ci | all | wheel | lint
#   build  compiler, CMake, ninja                  test  also Python with numpy and pytest
#   ci     also MPI, valgrind, an emulator, scipy  all   also what a wheel is built with
#
# Looks for the tools themselves first, so that a machine that has them from elsewhere (or where nothing can be
# installed) is left alone. What is missing comes from the Debian archive. Without an essential tool this fails; without
# the others it only says so, and the tests that want them are skipped with that reason.
# FS_NO_INSTALL=1 never installs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
set_name=${1:-}
case $set_name in
build | test | ci | all | wheel | lint) ;;
*)
    echo "usage: $0 build | test | ci | all | wheel | lint" >&2
    exit 2
    ;;
esac

has() { command -v "$1" >/dev/null 2>&1; }
has_libc() { echo '#include <math.h>' | gcc -E - >/dev/null 2>&1; }
has_cmocka() { echo '#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>' | gcc -E - >/dev/null 2>&1; }
has_python() { "$here/pick-python.sh" >/dev/null 2>&1; }
# Either Python will do: where the tests run with one that lacks it, installing it again would change nothing.
has_module() {
    for python in "$("$here/pick-python.sh")" /usr/bin/python3; do
        if "$python" -c "import $1" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}
has_venv() { "${PYTHON:-python3}" -c 'import ensurepip' >/dev/null 2>&1; }
has_mpi() { has "mpicc.$1" && has "mpirun.$1"; }
has_qemu() { has "qemu-$1"; }
has_cross() { has "$1-linux-gnu-gcc" && echo '#include <math.h>' | "$1-linux-gnu-gcc" -E - >/dev/null 2>&1; }

essential='' # packages nothing works without
useful=''    # packages some tests are skipped without
need() { # need essential|useful "packages" check...
    kind=$1 packages=$2
    shift 2
    "$@" && return
    if [ "$kind" = essential ]; then essential="$essential $packages"; else useful="$useful $packages"; fi
}

need essential gcc has gcc
need essential libc6-dev has_libc
need essential make has make
need essential cmake has cmake
need essential ninja-build has ninja
if [ "$set_name" != build ]; then
    need essential python3 has python3
fi
case $set_name in
wheel | all) need essential python3-venv has_venv ;;
esac
case $set_name in
test | ci | all)
    need useful g++ has g++
    need useful libcmocka-dev has_cmocka
    need useful "python3-numpy python3-pytest" has_python
    need useful pkg-config has pkg-config
    need useful shellcheck has shellcheck
    ;;
esac
case $set_name in
ci | all)
    need useful python3-scipy has_module scipy
    need useful python3-matplotlib has_module matplotlib
    need useful valgrind has valgrind
    # Both, side by side: ranks are tested under each.
    need useful "openmpi-bin libopenmpi-dev" has_mpi openmpi
    need useful "mpich libmpich-dev" has_mpi mpich
    # The other architecture, compiled here and run under qemu-user.
    case $(uname -m) in
    x86_64)
        need useful "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" has_cross aarch64
        need useful qemu-user has_qemu aarch64
        ;;
    aarch64)
        need useful "gcc-x86-64-linux-gnu libc6-dev-amd64-cross" has_cross x86_64
        need useful qemu-user has_qemu x86_64
        ;;
    esac
    ;;
esac
if [ "$set_name" = lint ]; then
    need essential clang-format has clang-format
    need essential clang-tidy has clang-tidy
    need essential cppcheck has cppcheck
    need essential shellcheck has shellcheck
fi

missing="$essential$useful"
[ -n "$missing" ] || exit 0

give_up() { # give_up why: an error if something essential is missing, a note otherwise
    if [ -n "$essential" ]; then
        echo "install-deps: needed and missing:$essential. $1." >&2
        exit 1
    fi
    echo "install-deps: missing:$useful. $1; what needs them is skipped." >&2
    exit 0
}

[ -z "${FS_NO_INSTALL:-}" ] || give_up "FS_NO_INSTALL is set, so nothing is installed"
has apt-get || give_up "This is not a Debian-like system (no apt-get); install the equivalent packages by hand"
if [ "$(id -u)" = 0 ]; then
    sudo=''
elif has sudo; then
    sudo=sudo
else
    give_up "Not root and no sudo; run as root: apt-get install$missing"
fi

log=$here/../build/install-deps.log
mkdir -p "$here/../build"
: >"$log"
start=$(date +%s)
# shellcheck disable=SC2086 # the words are packages
set -- $missing
printf 'installing %s ... ' "$*"
install() {
    # shellcheck disable=SC2086 # $sudo may be empty
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=2 -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1
}
install update || echo "install-deps: apt-get update failed; trying with the package lists that are there" >&2
if ! install install -y --no-install-recommends "$@"; then
    # One package that cannot be had must not keep the essential ones away.
    # shellcheck disable=SC2086 # the words are packages
    [ -z "$essential" ] || install install -y --no-install-recommends $essential || {
        tail -n 30 "$log" >&2
        give_up "apt-get could not install them (its last words are above)"
    }
    essential=''
    for package in $useful; do
        install install -y --no-install-recommends "$package" ||
            echo "install-deps: no $package; what needs it is skipped" >&2
    done
fi
size=$(sed -n 's/^After this operation, \(.*\) of additional disk space will be used\.$/\1/p' "$log" | tail -n 1)
echo "${size:+$size, }$(($(date +%s) - start)) s"
