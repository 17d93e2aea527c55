/* end.cuh - a prototype: a CTA for a row, from strip maxima and stored logits to its token.
 *
 *   maxima --not below the floor--> strips (about k) --gather--> candidates (somewhat more than k), each with a weight
 *   candidate x candidate --> rank, weight ahead          candidate --> exact score      (side by side)
 *   rank < k and weight ahead < top_p of all --> the largest score
 *
 * The floor is at most the k-th largest logit, so all of the k largest are candidates. No sort: among candidates, who is
 * ahead of whom is counted and weighed at once, in integers. */
#ifndef ENDROW_END_CUH
#define ENDROW_END_CUH

#include "cuda/device/noise.cuh"
#include "cuda/device/weight.cuh"

#include "core/key.h"

typedef struct endrow_draw {
    const float *temperature; /* [rows], above 0 */
    const int64_t *seed, *position;
    const int32_t *top_k;
    const float *top_p; /* NULL: 1 */
    int32_t *token;     /* [rows]; -1: the row is open */
    int32_t *stat;      /* [rows][2]: strips, candidates; or NULL */
    int32_t vocab;
} endrow_draw;

namespace {

constexpr int END_THREADS = 512, END_STRIPS = 1024, END_ROOM = 1024;

struct end_room {
    unsigned long long key[END_ROOM], weight[END_ROOM], score[END_ROOM], ahead[END_ROOM];
    uint16_t rank[END_ROOM];
    uint16_t strip[END_STRIPS];
    uint32_t strips, found, first; /* the largest logit, ordered */
};

static __device__ __noinline__ uint64_t end_score(fs_noise noise, float l, uint32_t token) {
    const fs_drawn drawn = draw_token(noise, token);
    const fs_words extension = {{drawn.word[0], drawn.word[1], 0, 0}};
    return score_key((double)l + noise_gumbel_from(extension, drawn.prefix), token);
}

template <int STRIPS>
__global__ void __launch_bounds__(END_THREADS, 2) end_rows(const endrow_record record, const endrow_draw draw) {
    constexpr int SPLIT = 8 / STRIPS, QUADS = 4 * SPLIT, FOURS = STRIPS == 4 ? 3 : 5;
    __shared__ end_room room;
    const int32_t b = blockIdx.x, thread = threadIdx.x, lane = thread & 31;
    const float inverse = 1.0f / draw.temperature[b];
    const int32_t k = draw.top_k[b];
    const float top_p = draw.top_p ? draw.top_p[b] : 1.0f;
    const fs_noise noise = noise_row((uint64_t)draw.seed[b], (uint64_t)draw.position[b], 0, 0);
    if (thread == 0) room.strips = room.found = room.first = 0;
    const uint64_t warm = end_score(noise, (float)b, (uint32_t)thread); /* for its instructions alone */
    asm volatile("" ::"l"(warm));
    __syncthreads();
    wait_for_earlier_launches();

    /* strips */
    const int32_t fours = record.tiles * STRIPS / 4;
    const float4 *most = (const float4 *)(record.most + b * record.strips);
    const uint32_t low = __ldcg(record.floor + b);
    const float floor = low ? float_of_ordered(low) : INFINITY;
    for (int32_t start = 0; start < fours; start += FOURS * END_THREADS) {
        float4 v[FOURS];
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int32_t at = start + i * END_THREADS + thread;
            v[i] = at < fours ? __ldcg(most + at) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        }
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const float largest = fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w));
            if (!(largest >= floor)) continue;
            atomicMax(&room.first, ordered_float(largest));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (!((&v[i].x)[e] >= floor)) continue;
                const uint32_t place = atomicAdd(&room.strips, 1u);
                if (place < END_STRIPS) room.strip[place] = (uint16_t)(4 * (start + i * END_THREADS + thread) + e);
            }
        }
    }
    __syncthreads();
    if (thread == 0) record.floor[b] = 0;
    if (b == 0 && thread < ENDROW_ROUNDS) record.told[thread] = record.set[thread] = 0;

    /* candidates */
    const int32_t strips = (int32_t)room.strips;
    const float first = float_of_ordered(room.first);
    const bool open = strips == 0 || strips > END_STRIPS || !(fabsf(first * inverse) < INFINITY);
    const cut_scale units(inverse, first);
    const float *logits = record.logits + b * record.stride;
    for (int32_t i = thread; i < (open ? 0 : strips * QUADS); i += END_THREADS) {
        const int32_t strip = room.strip[i / QUADS], part = i % QUADS;
        const int32_t token = strip / STRIPS * FS_CUDA_TILE + strip % STRIPS * 16 + part / 4 * 64 + part % 4 * 4;
        const float4 v = __ldcg((const float4 *)(logits + token));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float x = (&v.x)[e];
            if (!(x >= floor) || token + e >= draw.vocab) continue;
            const uint32_t place = atomicAdd(&room.found, 1u);
            if (place >= END_ROOM) continue;
            room.key[place] = order_key(x, (uint32_t)(token + e));
            room.weight[place] = units.weigh(x);
        }
    }
    __syncthreads();
    const int32_t n = (int32_t)room.found;
    if (open || n > END_ROOM) {
        if (thread == 0) draw.token[b] = -1;
        return;
    }

    /* ranks from the first threads on, scores from the last */
    for (int32_t start = 0; start < n; start += END_THREADS / 4) {
        const int32_t i = start + thread / 4;
        if (start + (thread & ~31) / 4 >= n) break; /* whole warps */
        const unsigned long long own = i < n ? room.key[i] : ~0ull;
        unsigned long long ahead = 0;
        uint32_t rank = 0;
#pragma unroll 4
        for (int32_t j = thread & 3; j < n; j += 4)
            if (room.key[j] > own) ahead += room.weight[j], rank++;
#pragma unroll
        for (int apart = 1; apart < 4; apart *= 2) {
            ahead += __shfl_xor_sync(~0u, ahead, apart);
            rank += __shfl_xor_sync(~0u, rank, apart);
        }
        if ((thread & 3) == 0 && i < n) room.ahead[i] = ahead, room.rank[i] = (uint16_t)rank;
    }
    for (int32_t i = END_THREADS - 1 - thread; i < n; i += END_THREADS)
        room.score[i] = end_score(noise, order_key_logit(room.key[i]) * inverse, order_key_token(room.key[i]));
    __syncthreads();

    /* survivors */
    if (thread >= 32) return;
    unsigned long long all = 0, best = 0;
    for (int32_t i = lane; i < n; i += 32)
        if (room.rank[i] < k) all += room.weight[i];
#pragma unroll
    for (int apart = 16; apart; apart /= 2) all += __shfl_xor_sync(~0u, all, apart);
    const double share = fmax(ceil((double)top_p * (double)all), 1.0);
    for (int32_t i = lane; i < n; i += 32)
        if (room.rank[i] < k && (top_p >= 1.0f || (double)room.ahead[i] < share)) best = max(best, room.score[i]);
#pragma unroll
    for (int apart = 16; apart; apart /= 2) best = max(best, __shfl_xor_sync(~0u, best, apart));
    if (lane == 0) {
        draw.token[b] = (int32_t)score_key_token(best);
        if (draw.stat) draw.stat[2 * b] = strips, draw.stat[2 * b + 1] = n;
    }
}

} // namespace

#endif
