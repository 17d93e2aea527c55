# The examples build by their own Makefile against an installed library, run, and print what they do; so do the callers.
# tests/py/test_documents.py compares what pages show of them.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$FS_BUILD" --prefix "$work/prefix" >"$work/install.log" || {
    cat "$work/install.log"
    exit 1
}
LD_LIBRARY_PATH=$(dirname "$(find "$work/prefix" -name libflashsampling.so)")
PKG_CONFIG_PATH=$LD_LIBRARY_PATH/pkgconfig
export LD_LIBRARY_PATH PKG_CONFIG_PATH

# A program that prints nothing shows a reader nothing.
says() {
    if [ "$("$@" | wc -c)" -lt 20 ]; then
        echo "$1 prints nothing"
        exit 1
    fi
}
for source in "$root"/tests/callers/*; do
    name=caller_$(basename "${source%.*}")
    [ ! -x "$FS_BUILD/tests/$name" ] || says "$FS_BUILD/tests/$name"
done

if command -v pkg-config >/dev/null 2>&1; then
    cp -r "$root/examples" "$work/examples"
    make -s -C "$work/examples" clean all CFLAGS="-O2 -Wall -Wextra -Werror"
    says "$work/examples/minimal"
    says "$work/examples/continuous_batching"
    "$work/examples/bigram" "$root/LICENSE" 0.7 1 >"$work/one.txt"
    "$work/examples/bigram" "$root/LICENSE" 0.7 1 >"$work/two.txt"
    cmp "$work/one.txt" "$work/two.txt"
    if "$work/examples/bigram" "$root/LICENSE" -1 >/dev/null 2>&1; then
        echo "bigram took a temperature of -1"
        exit 1
    fi
    # Ranks: any number of them draws the tokens of one, under each MPI.
    # As root too, and where there is no ssh.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
    for mpi in openmpi mpich; do
        if ! command -v "mpicc.$mpi" >/dev/null 2>&1 || ! command -v "mpirun.$mpi" >/dev/null 2>&1; then
            echo "note: $mpi is not here; ranks_mpi was not tried with it"
            continue
        fi
        rm -f "$work/examples/ranks_mpi"
        make -s -C "$work/examples" ranks_mpi MPI=$mpi CFLAGS="-O2 -Wall -Wextra -Werror"
        options=
        [ $mpi = mpich ] || options=--oversubscribe
        for ranks in 1 3; do
            # shellcheck disable=SC2086 # no option is no word
            timeout 60 "mpirun.$mpi" $options -n "$ranks" "$work/examples/ranks_mpi" >"$work/$mpi-$ranks.txt"
            [ -f "$work/tokens.txt" ] || cp "$work/$mpi-$ranks.txt" "$work/tokens.txt"
            cmp "$work/$mpi-$ranks.txt" "$work/tokens.txt"
        done
    done
    [ ! -f "$work/tokens.txt" ] || test "$(wc -l <"$work/tokens.txt")" -eq 6
else
    echo "note: pkg-config is not here; examples/Makefile was not tried"
fi

if python=$("$root/scripts/pick-python.sh"); then
    for ranks in 1 3; do
        PYTHONPATH=$root/python FLASHSAMPLING_LIBRARY=$LD_LIBRARY_PATH/libflashsampling.so PYTHONDONTWRITEBYTECODE=1 \
            timeout 60 "$python" "$root/examples/own_transport.py" "$ranks" >"$work/own-$ranks.txt"
    done
    cmp "$work/own-1.txt" "$work/own-3.txt"
else
    echo "note: no Python with numpy; own_transport.py was not tried"
fi
