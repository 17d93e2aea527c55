/* cuda_ranks.cu - the small launches of a call over ranks. The pass has left a part (cuda_call.h), the transport has made it that of all
 * ranks; here one CTA goes over the rows once more and writes their results. Rows are few and parts short: it costs about a launch.
 *
 *   part of each rank  --all_max or all_gather-->  all  --thread per row-->  results;  own part back to zero  */
#include "cuda_finish.cuh"
#include "cuda_launch.h"

namespace {

constexpr int THREADS = 256;

/* What the ranks have found of one row together, from rows. */
FS_DEVICE fs_verdict merge_rows(const fs_cuda_args &args, const fs_cuda_gathered &from, const fs_judged_row &row,
                                int32_t b) {
    fs_verdict found = {FS_KEY_NONE, 0, -INFINITY, (double)NAN, NAN, mass_empty()};
    const bool masses = args.want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS);
    uint64_t best = FS_KEY_NONE, chosen = FS_KEY_NONE;
    for (int32_t r = 0; r < from.ranks; r++) {
        const char *part = from.all + r * from.bytes;
        const uint32_t *word = (const uint32_t *)(part + from.rows_at) + (int64_t)b * from.own.row_words;
        const uint32_t seen = ((const uint32_t *)(part + from.bits_at))[b / 16] >> 2 * (b % 16);
        const uint64_t key = (uint64_t)word[1] << 32 | word[0];
        word += 2;
        if (seen & 1) found.flags |= FS_ROW_NAN;
        if (seen & 2) found.flags |= FS_ROW_INF | FS_CUDA_X_INF;
        if (key > found.key) found.key = key;
        if (masses) {
            const fs_mass mass = mass_unpack(word);
            word += FS_MASS_WORDS;
            if (from.grouped && !mass_is_empty(&mass)) {
                const double score = mass_log(&mass) + noise_gumbel_of(row.noise, (uint32_t)r, FS_DOMAIN_MERGE);
                const uint64_t group = score_key(score, (uint32_t)r);
                if (group > best) best = group, chosen = key;
            }
            mass_merge(&found.mass, &mass);
        }
        if (args.want & FS_CUDA_PEAK) found.peak = fmaxf(found.peak, bits_float(*word));
    }
    if (found.key && score_key_value(found.key) == INFINITY) found.flags |= FS_ROW_INF;
    if (from.grouped && !row.greedy && !(found.flags & FS_ROW_INF) && !mass_is_far(&found.mass)) found.key = chosen;
    found.log_z = mass_log(&found.mass);
    return found;
}

/* The largest keys are there already, and a call that wants no status has no use for bits. */
FS_DEVICE fs_verdict merged_key(const fs_cuda_gathered &from, int32_t b) {
    const uint64_t key = ((const uint64_t *)(from.all + from.rows_at))[b] ^ (uint64_t)1 << 63;
    return {key, 0, NAN, (double)NAN, NAN, mass_empty()};
}

/* Whether all ranks made the same call and none has failed. */
FS_DEVICE bool agreed(const fs_cuda_gathered &from) {
    const unsigned long long *first = (const unsigned long long *)from.all;
    if (!from.own.bits) return first[0] == ~first[1]; /* the largest hash is the least */
    for (int32_t r = 0; r < from.ranks; r++) {
        const unsigned long long *header = (const unsigned long long *)(from.all + r * from.bytes);
        if (header[0] != first[0] || header[1]) return false;
    }
    return true;
}

__global__ void __launch_bounds__(THREADS)
    merge(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_gathered from) {
    const int32_t rows = (int32_t)args.batch.rows;
    const bool well = agreed(from);
    for (int32_t b = threadIdx.x; b < rows; b += THREADS) {
        fs_judged_row row = judged_row(args, b);
        const fs_verdict found = from.own.bits ? merge_rows(args, from, row, b) : merged_key(from, b);
        if (!well) row.status |= FS_ROW_PEER;
        write_row(args, row, b, found, true);
    }
    __syncthreads(); /* everyone has read it */
    uint32_t *own = (uint32_t *)from.own.header;
    for (size_t i = threadIdx.x; i < from.bytes / 4; i += THREADS) own[i] = 0;
}

__global__ void __launch_bounds__(THREADS) blank(const __grid_constant__ fs_cuda_args args) {
    const fs_verdict nothing = {FS_KEY_NONE, 0, -INFINITY, -(double)INFINITY, NAN, mass_empty()};
    for (int32_t b = threadIdx.x; b < args.rows; b += THREADS) write_row(args, judged_row(args, b), b, nothing, true);
}

__global__ void failed(fs_cuda_exchange part) {
    part.header[0] = part.header[1] = INT64_MAX; /* more than any hash; never the complement of itself */
}

} // namespace

extern "C" cudaError_t fs_cuda_merge_launch(const fs_cuda_args *args, const fs_cuda_gathered *from,
                                            cudaStream_t stream) {
    merge<<<1, THREADS, 0, stream>>>(*args, *from);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_blank_launch(const fs_cuda_args *args, cudaStream_t stream) {
    blank<<<1, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_failed_launch(const fs_cuda_exchange *part, cudaStream_t stream) {
    failed<<<1, 1, 0, stream>>>(*part);
    return cudaGetLastError();
}
