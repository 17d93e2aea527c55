/* ranks.cu - the small launches of a call over ranks, and of fs_partial and fs_merge. The pass leaves its rows in work
 * memory; one CTA writes them as a part (core/wire.h), and when the transport has brought the parts of all ranks
 * together one CTA merges them and writes the results. Rows are few and parts short: each costs about a launch.
 *
 *   rows of the pass --put_rows--> part --all_gather--> parts of all --merge_rows--> results
 *                    --put_keys--> keys --all_max-----> largest keys --merge_keys--> results */
#include "cuda/cuda_launch.h"
#include "cuda/device/row.cuh"

namespace {

constexpr int THREADS = 256;

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

FS_DEVICE fs_call call_of(const fs_cuda_args &args) {
    return {&args.head, &args.batch, &args.result, NULL, args.vocab, args.needs};
}

/* Hash of what the ranks of this call agree on: what the host knows of it, and every row's share. */
FS_DEVICE uint64_t agreed_hash(const fs_cuda_args &args) {
    const fs_call call = call_of(args);
    fs_agreement all = agreement_of_call(&call), own;
    memset(&own, 0, sizeof own);
    for (int64_t b = threadIdx.x; b < args.batch.rows; b += THREADS) {
        const fs_rules rules = rules_of_row(&args.batch, args.vocab, b);
        agreement_add_row(&own, b, &rules);
    }
    for (int i = FS_AGREE_SEEDS; i <= FS_AGREE_RULES; i++) all.word[i] = block_sum(own.word[i]);
    return agreement_hash(&all);
}

/* The checksum of a part of these ids. */
FS_DEVICE uint64_t part_sum(const char *part, size_t bytes, uint32_t first, uint32_t end) {
    uint64_t sum = threadIdx.x == 0 ? wire_term_of_ids(first, end) : 0;
    for (size_t i = threadIdx.x; i < wire_terms(bytes); i += THREADS) sum += wire_term_at(part, bytes, i);
    return block_sum(sum);
}

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
    int64_t shard[2];
    const uint64_t hash = agreed_hash(args);
    wire_shard(&args.head, args.vocab, shard);
    const uint32_t first = (uint32_t)shard[0], end = (uint32_t)shard[1];
    const uint64_t sum = part_sum(part, wire_size(&call), first, end);
    if (threadIdx.x == 0 && wire_size(&call) % 8) *(uint32_t *)(part + wire_size(&call)) = 0; /* copied along */
    if (threadIdx.x == 0)
        *(fs_wire_header *)part = {FS_WIRE_MAGIC, (uint32_t)wire_row_bytes(&args.needs), hash, first, end, sum};
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

FS_DEVICE fs_wire_header header_of(const fs_cuda_gathered &from, int32_t i) {
    return *(const fs_wire_header *)(from.part + i * from.bytes);
}

/* Whether parts are of a call like this one and, sealed ones, what they were when they were made. */
FS_DEVICE bool are_intact(const fs_cuda_args &args, const fs_cuda_gathered &from, const fs_call &call) {
    const uint64_t hash = agreed_hash(args);
    for (int32_t i = 0; i < from.count; i++) {
        const fs_wire_header header = header_of(from, i);
        if (header.magic != FS_WIRE_MAGIC || header.row_bytes != (uint32_t)wire_row_bytes(&args.needs) ||
            header.hash != hash)
            return false;
        if (from.sealed &&
            part_sum(from.part + i * from.bytes, wire_size(&call), header.first, header.end) != header.sum)
            return false;
    }
    return true;
}

/* Whether the ids of the parts are the vocabulary, each id once: together they are as many, one part begins at 0, no
 * two begin at the same id, and where one ends another begins. */
FS_DEVICE bool are_whole(const fs_cuda_gathered &from, uint64_t vocab) {
    uint64_t length = 0, starts = 0, wrong = 0;
    for (int32_t r = threadIdx.x; r < from.count; r += THREADS) {
        const fs_wire_header own = header_of(from, r);
        if (own.first >= own.end) continue;
        length += own.end - own.first;
        starts += own.first == 0;
        uint32_t same = 0, next = own.end == vocab;
        for (int32_t i = 0; i < from.count; i++) {
            const fs_wire_header other = header_of(from, i);
            if (other.first >= other.end) continue;
            same += other.first == own.first;
            next |= other.first == own.end;
        }
        wrong += same != 1 || !next;
    }
    return block_sum(length) == vocab && block_sum(starts) == (vocab > 0) && block_sum(wrong) == 0;
}

/* Row b of all parts; each is a group in that mode, chosen by its mass: the paper's B.4. */
FS_DEVICE void merge_row(const fs_call &call, const fs_cuda_gathered &from, const fs_rules &rules, int64_t b,
                         fs_summary *into, fs_summary *next) {
    const bool grouped = call.batch->mode == FS_MODE_GROUP_PARALLEL;
    const fs_noise noise = noise_row(rules.seed, rules.position, 0, rules.stream);
    fs_choice choice = choice_none();
    for (int32_t i = 0; i < from.count; i++) {
        fs_summary *to = i == 0 ? into : next;
        wire_get_row(&call, b, &rules, from.part + i * from.bytes, to);
        const fs_group group = {to->mass, to->winner[0]};
        if (grouped) choice_add_parallel(&choice, &group, (uint32_t)i, noise, FS_DOMAIN_MERGE);
        if (i > 0) summary_merge(&call.needs, into, next, 0);
    }
    if (grouped) into->winner[0] = choice_winner(&choice, group_is_a_law(&rules, into->flags));
}

__global__ void __launch_bounds__(THREADS, 1)
    merge_rows(const __grid_constant__ fs_cuda_args args, const __grid_constant__ fs_cuda_gathered from) {
    const fs_call call = call_of(args);
    const bool well = are_intact(args, from, call) && are_whole(from, (uint64_t)args.vocab);
    for (int64_t b = threadIdx.x; b < args.batch.rows; b += THREADS) {
        fs_rules rules = rules_of_row(&args.batch, args.vocab, b);
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
