/* parts.cuh - what CTAs know of parts (core/wire.h): what their ranks agree on, whether they are whole, their rows. */
#ifndef FS_CUDA_PARTS_CUH
#define FS_CUDA_PARTS_CUH

#include "cuda/cuda_launch.h"
#include "cuda/device/row.cuh"

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
    const bool lists = args.batch.edit_offset || args.batch.edit_count || args.needs.watched;
    fs_agreement all = agreement_of_call(&call), own;
    memset(&own, 0, sizeof own);
    for (int64_t b = threadIdx.x; b < args.batch.rows; b += THREADS) {
        const fs_row_rules rules = rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, b);
        agreement_add_row(&own, b, &rules);
        if (lists) agreement_add_lists(&own, &args.batch, b, rules.slot, args.needs.watched);
    }
    for (int i = FS_AGREE_SEEDS; i <= FS_AGREE_RULES; i++) all.word[i] = block_sum(own.word[i]);
    if (lists) {
        all.word[FS_AGREE_EDITS] = block_sum(own.word[FS_AGREE_EDITS]);
        all.word[FS_AGREE_WATCHED] = block_sum(own.word[FS_AGREE_WATCHED]) + (uint64_t)args.needs.watched;
    }
    return agreement_hash(&all);
}

/* The checksum of a part of these ids. */
FS_DEVICE uint64_t part_sum(const char *part, size_t bytes, uint32_t first, uint32_t end) {
    uint64_t sum = threadIdx.x == 0 ? wire_term_of_ids(first, end) : 0;
    for (size_t i = threadIdx.x; i < wire_terms(bytes); i += THREADS) sum += wire_term_at(part, bytes, i);
    return block_sum(sum);
}

/* The header of a part whose rows are all there; its checksum, where somebody will look at it. */
FS_DEVICE void seal_part(const fs_cuda_args &args, char *part, bool sealed) {
    const fs_call call = call_of(args);
    const size_t bytes = wire_size(&call);
    int64_t shard[2];
    const uint64_t hash = agreed_hash(args);
    wire_shard(&args.head, args.vocab, shard);
    const uint32_t first = (uint32_t)shard[0], end = (uint32_t)shard[1];
    const uint64_t sum = sealed ? part_sum(part, bytes, first, end) : 0;
    if (threadIdx.x == 0 && bytes % 8) *(uint32_t *)(part + bytes) = 0; /* copied along */
    if (threadIdx.x == 0)
        *(fs_wire_header *)part = {FS_WIRE_MAGIC, (uint32_t)wire_row_bytes(&args.needs), hash, first, end, sum};
}

FS_DEVICE fs_wire_header header_of(const fs_cuda_gathered &from, int32_t i) {
    return *(const fs_wire_header *)(from.part + i * from.bytes);
}

/* Whether a part is of a call like this one, whose hash is given, and, a sealed one, what it was when it was made. */
FS_DEVICE bool is_intact(const fs_cuda_args &args, const fs_cuda_gathered &from, uint64_t hash, int32_t i) {
    const fs_call call = call_of(args);
    const fs_wire_header header = header_of(from, i);
    if (header.magic != FS_WIRE_MAGIC || header.row_bytes != (uint32_t)wire_row_bytes(&args.needs) ||
        header.hash != hash)
        return false;
    return !from.sealed ||
           part_sum(from.part + i * from.bytes, wire_size(&call), header.first, header.end) == header.sum;
}

FS_DEVICE bool are_intact(const fs_cuda_args &args, const fs_cuda_gathered &from) {
    const uint64_t hash = agreed_hash(args);
    for (int32_t i = 0; i < from.count; i++)
        if (!is_intact(args, from, hash, i)) return false;
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

/* Row b of all parts but for their lists; each is a group in that mode, chosen by its mass: the paper's B.4. */
FS_DEVICE void merge_row(const fs_call &call, const fs_cuda_gathered &from, const fs_row_rules &rules, int64_t b,
                         fs_summary *into, fs_summary *next) {
    const bool grouped = call.batch->mode == FS_MODE_GROUP_PARALLEL;
    const fs_noise noise = noise_row(rules.seed, rules.position, 0, rules.substream);
    fs_choice choice = choice_none();
    fs_needs front = call.needs;
    front.keep = front.keep_raw = 0;
    for (int32_t i = 0; i < from.count; i++) {
        fs_summary *to = i == 0 ? into : next;
        wire_get_front(&call, b, &rules, from.part + i * from.bytes, to);
        if (grouped) {
            const fs_group group = {to->mass, to->winner[0]};
            choice_add_parallel(&choice, &group, (uint32_t)i, noise, FS_DOMAIN_MERGE);
        }
        if (i > 0) summary_merge(&front, into, next, 0);
    }
    if (grouped) into->winner[0] = choice_winner(&choice, group_is_a_law(&rules, into->flags));
}

#endif
