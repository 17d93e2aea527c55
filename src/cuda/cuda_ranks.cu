/* cuda_ranks.cu - the small launches of a call over ranks. The pass has left a part (cuda_call.h), the transport has made it that of all
 * ranks; here one CTA goes over the rows once more and writes their results. Rows are few and parts short: it costs about a launch.
 *
 *   part of each rank  --all_max or all_gather-->  all  --thread per row-->  results;  own part back to zero  */
#include "cuda_finish.cuh"

#include "core/accept.h"
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

/* The sum over the CTA's threads. */
FS_DEVICE uint64_t block_sum(uint64_t value) {
    __shared__ unsigned long long sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, (unsigned long long)value);
    __syncthreads();
    const uint64_t all = sum;
    __syncthreads(); /* before the next sum begins */
    return all;
}

/* A row's share of a sealed part's checksum: no change of one word leaves it as it was. `bits` are the part's, two a row. */
FS_DEVICE uint64_t row_sum(const uint32_t *word, int32_t words, const uint32_t *bits, int32_t b) {
    uint64_t h = hash_mix(~(uint64_t)b, bits[b / 16] >> 2 * (b % 16) & 3);
    for (int32_t i = 0; i < words; i++) h = hash_mix(h, word[(int64_t)b * words + i]);
    return h;
}

/* The checksum of a part with this range of ids. The whole CTA. */
FS_DEVICE uint64_t part_sum(const uint32_t *rows, int32_t words, const uint32_t *bits, int32_t count, uint64_t range) {
    uint64_t sum = threadIdx.x == 0 ? hash_mix(0x31505346u, range) : 0;
    for (int32_t b = threadIdx.x; b < count; b += THREADS) sum += row_sum(rows, words, bits, b);
    return block_sum(sum);
}

/* Whether sealed parts are what they were when they were made, of a call like this one. */
FS_DEVICE bool are_intact(const fs_cuda_args &args, const fs_cuda_gathered &from) {
    const int32_t rows = (int32_t)args.batch.rows;
    uint64_t hash = threadIdx.x == 0 ? from.own.hash : 0;
    for (int32_t b = threadIdx.x; b < rows; b += THREADS) hash += row_hash(judged_row(args, b), b);
    hash = block_sum(hash);
    for (int32_t r = 0; r < from.ranks; r++) {
        const char *part = from.all + r * from.bytes;
        const unsigned long long *header = (const unsigned long long *)part;
        const uint64_t sum = part_sum((const uint32_t *)(part + from.rows_at), from.own.row_words,
                                      (const uint32_t *)(part + from.bits_at), rows, header[2]);
        if (sum != header[3] || header[0] != hash || header[1]) return false;
    }
    return true;
}

FS_DEVICE uint64_t range_first(uint64_t range) {
    return range & 0xFFFFFFFFu;
}

FS_DEVICE uint64_t range_of_part(const fs_cuda_gathered &from, int32_t r) {
    return ((const unsigned long long *)(from.all + r * from.bytes))[2];
}

/* Whether the ranges of the parts are the vocabulary, each id once: together they are as long, one begins at 0, no two
 * begin at the same id, and where one ends another begins. */
FS_DEVICE bool are_whole(const fs_cuda_gathered &from, uint64_t vocab) {
    uint64_t length = 0, starts = 0, wrong = 0;
    for (int32_t r = threadIdx.x; r < from.ranks; r += THREADS) {
        const uint64_t range = range_of_part(from, r), first = range_first(range), end = range >> 32;
        if (first >= end) continue;
        length += end - first;
        starts += first == 0;
        uint32_t same = 0, next = end == vocab;
        for (int32_t i = 0; i < from.ranks; i++) {
            const uint64_t other = range_of_part(from, i), start = range_first(other);
            if (start >= other >> 32) continue;
            same += start == first;
            next |= start == end;
        }
        wrong += same != 1 || !next;
    }
    return block_sum(length) == vocab && block_sum(starts) == (vocab > 0) && block_sum(wrong) == 0;
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
    const bool well = from.sealed ? are_intact(args, from) && are_whole(from, (uint64_t)args.vocab) : agreed(from);
    for (int32_t b = threadIdx.x; b < rows; b += THREADS) {
        fs_judged_row row = judged_row(args, b);
        fs_verdict found = from.own.bits ? merge_rows(args, from, row, b) : merged_key(from, b);
        if (!well) row.status |= FS_ROW_PEER, found.flags = 0;
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

/* Not in the pass, whose kernels have no register to spare. */
__global__ void __launch_bounds__(THREADS) seal(fs_cuda_exchange part, int32_t rows, uint64_t range) {
    const uint64_t sum = part_sum(part.rows, part.row_words, part.bits, rows, range);
    if (threadIdx.x == 0) part.header[2] = range, part.header[3] = sum;
}

__global__ void failed(fs_cuda_exchange part) {
    part.header[0] = part.header[1] = INT64_MAX; /* more than any hash; never the complement of itself */
}

__global__ void __launch_bounds__(THREADS)
    accept(int32_t dtype, int64_t sequences, int64_t k, const void *draft, const void *target, int32_t *accepted) {
    const int64_t s = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (s < sequences) accepted[s] = (int32_t)accept_count(dtype, k, s, draft, target);
}

} // namespace

extern "C" cudaError_t fs_cuda_accept_launch(int32_t dtype, int64_t sequences, int64_t k, const void *draft,
                                             const void *target, int32_t *accepted, cudaStream_t stream) {
    const int64_t ctas = (sequences + THREADS - 1) / THREADS;
    accept<<<(unsigned)ctas, THREADS, 0, stream>>>(dtype, sequences, k, draft, target, accepted);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_merge_launch(const fs_cuda_args *args, const fs_cuda_gathered *from,
                                            cudaStream_t stream) {
    merge<<<1, THREADS, 0, stream>>>(*args, *from);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_blank_launch(const fs_cuda_args *args, cudaStream_t stream) {
    blank<<<1, THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_seal_launch(const fs_cuda_exchange *part, int32_t rows, uint64_t range,
                                           cudaStream_t stream) {
    seal<<<1, THREADS, 0, stream>>>(*part, rows, range);
    return cudaGetLastError();
}

extern "C" cudaError_t fs_cuda_failed_launch(const fs_cuda_exchange *part, cudaStream_t stream) {
    failed<<<1, 1, 0, stream>>>(*part);
    return cudaGetLastError();
}
