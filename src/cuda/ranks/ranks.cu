/* ranks.cu - the small launches of a call over ranks, and of fs_partial and fs_merge. The pass leaves its rows in work
 * memory; one CTA writes them as a part (core/wire.h), and when the transport has brought the parts of all ranks
 * together one CTA merges them and writes the results. Rows are few and parts short: each costs about a launch.
 *
 *   rows of the pass --put_rows--> part --all_gather--> parts of all --merge_rows--> results
 *                    --put_keys--> keys --all_max-----> largest keys --merge_keys--> results */
#include "cuda/ranks/parts.cuh"

namespace {

/* Row b of the launch out of work memory. */
FS_DEVICE fs_found take_row(const fs_cuda_args &args, const fs_draw &draw, int32_t b) {
    fs_cuda_row *row = &args.work[b];
    const fs_found found = found_in(row, draw, args.needs);
    clear_row(row, needs_mass(args.needs));
    return found;
}

/* --------------------------------------------------------------------------------------------------------- put ---- */

/* The launch's rows into the part; with `last`, they are the call's last, its header too. */
__global__ void __launch_bounds__(THREADS, 1)
    put_rows(const __grid_constant__ fs_cuda_args args, char *part, bool last) {
    const fs_call call = call_of(args);
    uint32_t *bits = (uint32_t *)(part + FS_WIRE_HEADER);
    if (args.first_row == 0)
        for (size_t i = threadIdx.x; i < (wire_rows_at(&call) - FS_WIRE_HEADER) / 4; i += THREADS) bits[i] = 0;
    __syncthreads();
    for (int32_t b = threadIdx.x; b < args.rows; b += THREADS) {
        const int64_t at = args.first_row + b;
        fs_winner winner;
        const fs_summary summary = summary_of(args.needs, take_row(args, draw_of_row(args, b), b), &winner);
        wire_put_row(&call, at, &summary, part);
        if (wire_bits(&summary)) atomicOr(&bits[at / 16], wire_bits(&summary) << 2 * (at % 16));
    }
    if (!last) return;
    __syncthreads(); /* every row is there */
    seal_part(args, part, true);
}

/* Nothing but keys, as signed integers in their order: words[0] and [1] are a hash and its complement, and are that
 * after a max over ranks only if all have the same. */
__global__ void __launch_bounds__(THREADS, 1)
    put_keys(const __grid_constant__ fs_cuda_args args, unsigned long long *words, bool last) {
    for (int32_t b = threadIdx.x; b < args.rows; b += THREADS) {
        words[2 + args.first_row + b] = args.work[b].key ^ (uint64_t)1 << 63;
        clear_row(&args.work[b], false);
    }
    if (!last) return;
    const uint64_t hash = agreed_hash(args);
    if (threadIdx.x == 0) words[0] = hash, words[1] = ~hash;
}

/* ------------------------------------------------------------------------------------------------------- merge ---- */

__global__ void __launch_bounds__(THREADS, 1)
    merge_rows(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_gathered from) {
    const fs_call call = call_of(args);
    const bool well = are_intact(args, from) && are_whole(from, (uint64_t)args.vocab);
    for (int64_t b = threadIdx.x; b < args.batch.rows; b += THREADS) {
        fs_row_rules rules = rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, b);
        fs_winner winner[2];
        fs_summary into = {}, next = {};
        into.winner = &winner[0], next.winner = &winner[1];
        if (well) merge_row(call, from, rules, b, &into, &next);
        else rules.status |= FS_ROW_PEER;
        finish_row(&call, b, &rules, &into, 0, 1, NULL);
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    merge_keys(const __grid_constant__ fs_cuda_args args, const unsigned long long *words) {
    const bool well = words[0] == ~words[1];
    for (int32_t b = threadIdx.x; b < args.batch.rows; b += THREADS) {
        fs_draw draw = draw_of_row(args, b);
        fs_found found = found_nothing();
        found.key = words[2 + b] ^ (uint64_t)1 << 63;
        found.x = logit_of_key(draw, args.needs, found.key);
        if (!well) draw.status |= FS_ROW_PEER;
        write_row(args, draw, plain_needs(args.needs), b, found, false, NULL);
    }
}

} // namespace

extern "C" cudaError_t fs_cuda_put_launch(const fs_cuda_args *args, void *part, int32_t keys, int32_t last,
                                          cudaStream_t stream) {
    if (keys) put_keys<<<1, THREADS, 0, stream>>>(*args, (unsigned long long *)part, last);
    else put_rows<<<1, THREADS, 0, stream>>>(*args, (char *)part, last);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_merge_launch(const fs_cuda_args *args, const fs_cuda_gathered *from, int32_t keys,
                                            cudaStream_t stream) {
    if (keys) merge_keys<<<1, THREADS, 0, stream>>>(*args, (const unsigned long long *)from->part);
    else merge_rows<<<1, THREADS, 0, stream>>>(*args, *from);
    return cudaGetLastError();
}
