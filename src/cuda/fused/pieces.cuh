/* pieces.cuh - which tokens a CTA takes, tile by tile. Producer, scorers and consumers each walk the same pieces. */
#ifndef FS_CUDA_PIECES_CUH
#define FS_CUDA_PIECES_CUH

#include "cuda/device/decided.cuh"

/* Tokens [first, first + count) of the vocabulary, inside one tile. count 0: another CTA of the cluster has work, this
 * one only passes H on; -1: no more pieces. */
struct piece {
    int32_t first, count;
};

/* What this CTA takes: `count` spans from `first` on, `step` apart, but for the one it takes last. A span is a tile, or
 * in clusters a pair of tiles whose halves are the two CTAs'.
 *
 * Spans go to the clusters in turn, so that all CTAs read one stretch of W at a time (D = 2,048: 2 us faster than a
 * stretch for each CTA, H200, 2026-11); groups give each CTA a stretch, so that few of them meet in a group. Uneven
 * shares cost nothing while memory is the limit, if those with one more are spread over the processors: who is done
 * early leaves the others its bandwidth. Cutting tiles to even them out cost 4 to 5 %: a short piece has too few bytes
 * in flight (docs/notes/gpu-reading-weights.md). */
struct share {
    int32_t first, step, count, last;
};

template <class T> FS_DEVICE share share_of(const fs_cuda_args &args) {
    constexpr uint32_t CLUSTER = T::CLUSTER, SPAN = CLUSTER * FS_CUDA_TILE;
    const uint32_t low = (uint32_t)args.head.first_token,
                   high = max(low, (uint32_t)min(args.head.first_token + args.head.rows, (int64_t)args.vocab));
    /* Below 2^24 spans and 2^8 clusters: 32 bits do, and are divided ten times as fast. */
    const uint32_t base = low / SPAN, spans = (high + SPAN - 1) / SPAN - base;
    const uint32_t cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    if (T::KIND == FS_CUDA_GROUPED && args.groups.tiles) {
        const uint32_t first = spans * cluster / clusters, end = spans * (cluster + 1) / clusters;
        return {(int32_t)(base + first), 1, (int32_t)(end - first), (int32_t)(base + end - 1)};
    }
    /* The spans that are no whole turn go to CTAs evenly spread (fs_cuda_schedule). No division: the first copy waits
     * for this. */
    const uint32_t turns = args.schedule.turns, before = cluster * args.schedule.spread >> 16;
    const uint32_t more = ((cluster + 1) * args.schedule.spread >> 16) - before;
    return {(int32_t)(base + cluster), (int32_t)clusters, (int32_t)(turns + more),
            (int32_t)(base + (more ? turns * clusters + before : (turns - 1) * clusters + cluster))};
}

/* Piece i of a share. */
template <int CLUSTER> FS_DEVICE piece piece_at(const fs_cuda_args &args, const share &own, int32_t i) {
    constexpr int32_t SPAN = CLUSTER * FS_CUDA_TILE;
    const int32_t low = (int32_t)args.head.first_token;
    const int32_t high = (int32_t)min(args.head.first_token + args.head.rows, (int64_t)args.vocab);
    piece p = {0, -1};
    if (i >= own.count) return p;
    const int32_t span = i + 1 < own.count ? own.first + i * own.step : own.last;
    const int32_t start = span * SPAN + (CLUSTER > 1 ? (int32_t)cluster_rank() * FS_CUDA_TILE : 0);
    p.first = max(low, start);
    p.count = max(0, min(high, start + FS_CUDA_TILE) - p.first);
    return p;
}

/* The i-th slice of 128 in K. */
FS_DEVICE int32_t slice_at(const fs_cuda_k_order &order, int32_t i) {
    const int32_t way = i & ((1 << order.ways) - 1);
    return i < order.rest ? way * order.stretch + (i >> order.ways) : i;
}

/* The index of a piece's record within its row: group by group, and within a group CTA by CTA. */
template <int CLUSTER> FS_DEVICE int64_t record_at(const fs_cuda_args &args, const piece &p) {
    constexpr int32_t SPAN = CLUSTER * FS_CUDA_TILE;
    const int32_t rank = CLUSTER > 1 ? (int32_t)cluster_rank() : 0;
    if (!args.groups.tiles) return blockIdx.x;
    const int64_t low = args.head.first_token, high = min(low + args.head.rows, (int64_t)args.vocab);
    const int64_t base = low / SPAN, spans = (high + SPAN - 1) / SPAN - base, clusters = gridDim.x / CLUSTER;
    const int64_t size = (int64_t)args.groups.tiles * FS_CUDA_TILE, group = p.first / size;
    /* The first span of the group, and the cluster whose share it is in. */
    const int64_t span = max(group * size / SPAN, base) - base, first = ((span + 1) * clusters - 1) / spans;
    return (group - low / size) * args.groups.slots + (blockIdx.x / CLUSTER - first) * CLUSTER + rank;
}

#endif
