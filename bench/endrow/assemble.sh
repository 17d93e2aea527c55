#!/bin/sh -e
# Builds the prototype's library and puts what a run needs into build/endrow/send. LIBRARY: an archive of lib/; COMMIT: its Python.
cd "$(dirname "$0")/../.."
to=build/endrow/send
mkdir -p $to/bench
nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -Xcompiler -fPIC,-fvisibility=hidden \
    -Iinclude -Isrc -shared -cudart static bench/endrow/endrow.cu -o $to/libendrow.so 2> build/endrow/build.log
! grep -E 'C75|error|[1-9][0-9]* bytes spill' build/endrow/build.log
[ -f $to/lib.tar.xz ] || cp "$LIBRARY" $to/lib.tar.xz
[ -d $to/python ] || git archive "$COMMIT" python | tar x -C $to
for name in gpu_bench gpu_rows gpu_language gpu_rule_arms endrow/probe; do cp bench/$name.py $to/bench; done
