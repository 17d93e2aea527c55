# Each public header alone compiles without a warning, twice included, as C11 and newer and as C++11 and newer.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header in flashsampling flashsampling_screens flashsampling_ranks; do
    printf '%s\n' "#include <$header.h>" "#include <$header.h>" 'int f(void);' \
        'int f(void) { return (int)fs_batch_default().size; }' >"$work/$header.c"
    cp "$work/$header.c" "$work/$header.cpp"
done
strict="-Wall -Wextra -pedantic -Wshadow -Wconversion -Wundef -Werror -fsyntax-only"

count=0
try() { # try compiler standard file flags...
    compiler=$1 standard=$2 file=$3
    shift 3
    # shellcheck disable=SC2086 # the words are flags
    "$compiler" -std="$standard" $strict -I"$root/include" "$@" "$file"
    count=$((count + 1))
}

for compiler in gcc clang; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    for standard in c11 c17 c2x gnu11; do
        for file in "$work"/*.c; do try "$compiler" "$standard" "$file" -Wstrict-prototypes; done
    done
done
for compiler in g++ clang++; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    for standard in c++11 c++17 c++20; do
        for file in "$work"/*.cpp; do try "$compiler" "$standard" "$file"; done
    done
done
# The MPI transport's header, where there is an MPI.
for compiler in mpicc.openmpi mpicc.mpich; do
    command -v "$compiler" >/dev/null 2>&1 || continue
    sed 's/flashsampling.h/flashsampling_mpi.h/' "$work/flashsampling.c" >"$work/user_mpi.c"
    "$compiler" -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$root/include" "$work/user_mpi.c"
    count=$((count + 1))
done
# The NCCL transport and its example, where the CUDA toolkit brings NCCL's header.
if command -v nvcc >/dev/null 2>&1; then
    cuda=$(dirname "$(command -v nvcc)")/../include
    if echo '#include <nccl.h>' | gcc -E -I"$cuda" - >/dev/null 2>&1; then
        for file in src/dist/nccl/nccl_ranks.c examples/ranks_nccl.c; do
            gcc -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$root/include" -isystem "$cuda" "$root/$file"
            count=$((count + 1))
        done
    fi
fi
echo "$count ways"
command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
    echo "note: no C++ compiler is here; only C was tried"
