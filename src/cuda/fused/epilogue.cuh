/* epilogue.cuh - what consumer warps do with a tile of logits, the same for every kind of tensor instruction.
 *
 * A warp has S strips of 16 tokens x N rows, 64 tokens apart, a thread N / 2 of each, the accumulator layout that
 * mma.sync and wgmma share. For 8 rows at a time (j), tokens t and t + 8 of the strip's 16, rows 8 j + 2 (lane & 3) +
 * {0, 1}:
 *   d[4 j + 0] (t, row)   d[4 j + 1] (t, row + 1)   d[4 j + 2] (t + 8, row)   d[4 j + 3] (t + 8, row + 1) */
#ifndef FS_CUDA_EPILOGUE_CUH
#define FS_CUDA_EPILOGUE_CUH

#include "cuda/fused/candidates.cuh"
#include "cuda/fused/pieces.cuh"

#include "core/format.h"
#include "core/head.h"

/* Groups of a thread's accumulators (see stash), and how many are in one. */
template <int N> constexpr int GROUPS = N > 8 ? N / 16 : 1;
template <int N> constexpr int PER_GROUP = N > 8 ? 8 : 4;

/* What a head does to its logits, head_logit of core/head.h, of all of a thread's: a step at a time, each without a
 * choice inside. With all choices for each logit the instructions were so many that 64 rows whose logits are rounded
 * took a quarter more time (H200, 2026-11). */
template <int M> FS_DEVICE void shape_logits(float (&d)[M], const fs_head &head, float bias0, float bias1) {
    auto all = [&](auto f) {
#pragma unroll
        for (int i = 0; i < M; i++) d[i] = f(d[i], i);
    };
    if (head.bias) all([&](float x, int i) { return x + (i & 2 ? bias1 : bias0); });
    if (head.round_to == FS_BF16) all([](float x, int) { return rounded_to_bf16(x); });
    if (head.round_to == FS_F16) all([](float x, int) { return rounded_to_f16(x); });
    if (head.scale != 1.0f) all([&](float x, int) { return x * head.scale; });
    if (head.softcap > 0.0f) all([&](float x, int) { return head.softcap * tanhf(x / head.softcap); });
    if (head.post_scale != 1.0f) all([&](float x, int) { return x * head.post_scale; });
}

/* transform: tokens past the piece never pass; bias, rounding, scales and soft-cap before that, where the head has
 * them. t is this thread's first token in the tile. */
template <int N, int S>
FS_DEVICE void transform(float (&d)[S][N / 2], const fs_head &head, bool shaped, const piece &p, int32_t t) {
#pragma unroll
    for (int m = 0; m < S; m++, t += 64) {
        const bool out0 = t >= p.count, out1 = t + 8 >= p.count;
        if (shaped) {
            const int64_t row = p.first - head.first_token + t;
            shape_logits(d[m], head, head.bias && !out0 ? head.bias[row] : 0.0f,
                         head.bias && !out1 ? head.bias[row + 8] : 0.0f);
        }
        if (__any_sync(~0u, out1)) {
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                if (i & 2 ? out1 : out0) d[m][i] = -INFINITY;
        }
    }
}

/* The allow-bits of a warp's tokens, 16 bits for each row and strip: a lane has those of rows lane, lane + 32, ... Two
 * strips of a row are in one word, or where a warp has one, those of two rows 32 apart. */
template <int N, int S> struct fs_allowed {
    static constexpr int WORDS = S == 2 ? (N + 31) / 32 : (N + 63) / 64;
    uint32_t bits[WORDS];

    /* Of 16 tokens, or as many as there are. */
    static FS_DEVICE_MEMBER uint32_t sixteen(const uint32_t *bits, int64_t token, int64_t vocab) {
        if (token >= vocab) return 0;
        const uint32_t *at = bits + token / 32, shift = (uint32_t)token % 32;
        const uint32_t more = shift > 16 && (token / 32 + 1) * 32 < vocab ? at[1] : 0;
        return __funnelshift_r(*at, more, shift) & 0xFFFF;
    }

    /* Of the tile whose first tokens of the warp's are `token` and token + 64. */
    template <int J> FS_DEVICE_MEMBER void load(const fs_tile_state<N, J> *state, int64_t token) {
        const fs_batch &batch = state->args.batch;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            bits[i] = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t b = (int32_t)(threadIdx.x & 31) + 32 * (S == 2 ? i : 2 * i + half);
                const bool there = b < state->args.rows && draws(state->draw[b]);
                const int64_t mask = there ? batch_mask(&batch, state->args.first_row + b) : -1;
                const uint32_t *row = bits_row(batch.allow, batch.allow_stride, mask, state->args.vocab);
                const uint32_t own = row ? sixteen(row, token + (S == 2 ? 64 * half : 0), state->args.vocab) : 0xFFFFu;
                bits[i] |= own << 16 * half;
            }
        }
    }

    /* Tokens that are not allowed are -inf. */
    FS_DEVICE_MEMBER void apply(float (&d)[S][N / 2]) const {
        const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int i = S == 2 ? j / 4 : j / 8;
            const uint32_t even = __shfl_sync(~0u, bits[i], 8 * (j & 3) + column);
            const uint32_t odd = __shfl_sync(~0u, bits[i], 8 * (j & 3) + column + 1);
#pragma unroll
            for (int m = 0; m < S; m++) {
                const int32_t shift = lane / 4 + (S == 2 ? 16 * m : 16 * (j / 4 & 1));
                if (!(even >> shift & 1)) d[m][4 * j] = -INFINITY;
                if (!(odd >> shift & 1)) d[m][4 * j + 1] = -INFINITY;
                if (!(even >> shift & 256)) d[m][4 * j + 2] = -INFINITY;
                if (!(odd >> shift & 256)) d[m][4 * j + 3] = -INFINITY;
            }
        }
    }
};

/* The accumulators to work memory: 8 tokens of a row, a sector, at a time. */
template <int N, int S>
FS_DEVICE void store_logits(const float (&d)[S][N / 2], const fs_cuda_args &args, const piece &p, int32_t t) {
    const int32_t start = block_start(args), rows = min(args.rows - start, args.block_rows);
    const int32_t column = 2 * (threadIdx.x & 3);
    float *to = args.dense.x + (start + column) * args.dense.stride + (p.first - (int32_t)args.head.first_token) + t;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int row = i / 4 * 8 + (i & 1), on = i & 2 ? 8 : 0;
#pragma unroll
        for (int m = 0; m < S; m++)
            if (column + row < rows && t + on + 64 * m < p.count) to[row * args.dense.stride + on + 64 * m] = d[m][i];
    }
}

/* Those of the rows that are kept. */
template <int N, int S, int J>
FS_DEVICE void store_kept(const float (&d)[S][N / 2], const fs_tile_state<N, J> *state, const fs_cuda_args &args,
                          const piece &p, int32_t t) {
    const int32_t column = 2 * (threadIdx.x & 3), place = p.first - (int32_t)args.head.first_token + t;
    const int64_t stride = args.dense.stride;
    float *to = args.dense.x + (block_start(args) + column) * stride + place;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const bool even = is_kept(state->draw[8 * j + column]), odd = is_kept(state->draw[8 * j + column + 1]);
        if (!__any_sync(~0u, even || odd)) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int m = 0; m < S; m++) {
                const int on = (i & 2 ? 8 : 0) + 64 * m;
                if ((i & 1 ? odd : even) && t + on < p.count) to[(8 * j + (i & 1)) * stride + on] = d[m][4 * j + i];
            }
    }
}

/* A group is two blocks of eight rows: eight accumulators of a thread. Registers cannot be indexed, so rare code gets a
 * group through shared memory and is a real loop: unrolled, it would be tens of kilobytes that are never in the
 * instruction cache when they are needed (H200: 32 us per tile at N = 256). */
template <int N> FS_DEVICE void stash(const float (&d)[N / 2], float4 (*to)[32], int32_t group) {
    const int32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int g = 0; g < GROUPS<N>; g++)
        if (g == group) {
            to[0][lane] = make_float4(d[8 * g], d[8 * g + 1], d[8 * g + 2], d[8 * g + 3]);
            if constexpr (N > 8) to[1][lane] = make_float4(d[8 * g + 4], d[8 * g + 5], d[8 * g + 6], d[8 * g + 7]);
        }
}

/* The larger of two values, one kept by each half of the lanes `apart` apart: halves the values a lane holds. A NaN
 * loses. */
FS_DEVICE float keep_max(float mine, float theirs, int32_t apart) {
    const bool upper = threadIdx.x & apart;
    const float sent = __shfl_xor_sync(~0u, upper ? mine : theirs, apart);
    return fmaxf(upper ? theirs : mine, sent);
}

/* The row of 32 whose total a lane is left with by three steps of halving, 16, 8 and 4 lanes apart. */
FS_DEVICE int32_t halved_row() {
    const int32_t lane = threadIdx.x & 31;
    return (lane & 16) + (lane & 8) + 2 * (lane & 3) + (lane >> 2 & 1);
}

/* The largest f(accumulator, how far from t its token is) of each row in this warp's strips, as an ordered float into
 * most[row]. Straight-line code and few instructions: as a loop through shared memory it took 18,000 cycles at N = 256
 * (H200, 2026-11). */
template <int N, int S, class F> FS_DEVICE void row_maxima(const float (&d)[S][N / 2], uint32_t *most, F f) {
#pragma unroll
    for (int q = 0; q < (N + 31) / 32; q++) {
        float v[8];
        asm volatile("" ::: "memory"); /* one block after the other: with N = 256 there is no register to spare */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (4 * q + i / 2) + (i & 1);
            v[i] = -INFINITY;
#pragma unroll
            for (int m = 0; m < S; m++)
                if (at < N / 2) v[i] = fmaxf(v[i], fmaxf(f(d[m][at], 64 * m), f(d[m][at + 2], 64 * m + 8)));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = keep_max(v[i], v[i + 4], 16);
        v[0] = keep_max(v[0], v[2], 8);
        v[1] = keep_max(v[1], v[3], 8);
        const float m = keep_max(v[0], v[1], 4);
        const int32_t b = 32 * q + halved_row();
        /* No branch: one here and ptxas serialises the tensor instructions (C7520). 0 changes nothing. */
        atomicMax(&most[b < N ? b : 0], b < N && m > -INFINITY ? ordered_float(m) : 0);
    }
}

/* The largest logit of each row in this warp's strips and where it is: a token's place in the tile takes the last seven
 * bits of its logit. Of an infinity that makes a NaN, which is no maximum. */
template <int N, int S, int J>
FS_DEVICE void find_first_max(const float (&d)[S][N / 2], fs_tile_state<N, J> *state, int32_t t) {
    row_maxima<N, S>(d, state->first_max,
                     [&](float x, int off) { return __uint_as_float((__float_as_uint(x) & ~127u) | (t + off)); });
}

/* The largest x of each row in this warp's strips, into state->max. */
template <int N, int S, int J> FS_DEVICE void find_max(const float (&d)[S][N / 2], fs_tile_state<N, J> *state) {
    row_maxima<N, S>(d, state->max, [](float x, int) { return x; });
}

/* Which of a lane's groups have a logit above its row's threshold, a bit each. The hot path: one max per logit, a
 * subtraction and a max per two, and no branch. */
template <int N, int S, int J>
FS_DEVICE uint32_t hot_groups(const float (&d)[S][N / 2], const fs_tile_state<N, J> *state, int32_t strip) {
    const int32_t column = 2 * (threadIdx.x & 3);
    uint32_t hot = 0;
#pragma unroll
    for (int m = 0; m < S; m++)
#pragma unroll
        for (int g = 0; g < GROUPS<N>; g++) {
            const float *threshold = state->threshold[strip + 4 * m];
            float above = -INFINITY;
#pragma unroll
            for (int i = 0; i < PER_GROUP<N> / 4; i++) {
                const int j = 2 * g + i;
                const float2 low = *(const float2 *)&threshold[8 * j + column];
                above = max_or_nan(above, max_or_nan(d[m][4 * j], d[m][4 * j + 2]) - low.x);
                above = max_or_nan(above, max_or_nan(d[m][4 * j + 1], d[m][4 * j + 3]) - low.y);
            }
            if (!(above <= 0.0f)) hot |= 1u << (m * GROUPS<N> + g);
        }
    return hot;
}

/* Which of a lane's groups have a marked token. */
template <int N, int S, int J> FS_DEVICE uint32_t marked_groups(const fs_tile_state<N, J> *state, int32_t strip) {
    const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
    uint32_t groups = 0;
#pragma unroll 1
    for (int i = 0; i < S * GROUPS<N>; i++) {
        const float *threshold = &state->threshold[strip + 4 * (i / GROUPS<N>)][16 * (i % GROUPS<N>)+column];
        bool marked = false;
#pragma unroll
        for (int e = 0; e < PER_GROUP<N>; e++)
            marked |= mark_in(threshold[8 * (e / 4) + (e & 1)]) == lane / 4 + (e & 2 ? 8 : 0);
        if (marked) groups |= 1u << i;
    }
    return groups;
}

/* What is above its threshold races and, where there are lists, may be listed. */
template <bool LISTS, int N, int J>
FS_DEVICE void pass_on(fs_tile_state<N, J> *state, float x, int32_t token, int32_t row, float low, bool lists) {
    if (LISTS && lists) list_token(state, x, token, row);
    if (LISTS && is_only_listed(state, x, low, row)) return;
    push_survivor(state, x, token, row);
}

/* What is above its threshold in a lane's own hot groups: decided in greedy rows, queued in the others; with `marked`,
 * only marked tokens are, and the others come again. Most warps have none, and most lanes of the others. */
template <bool LISTS, int N, int S, int J>
FS_DEVICE void push_own(const float (&d)[S][N / 2], fs_tile_state<N, J> *state, int32_t strip, const piece &p,
                        uint32_t hot, bool marked, bool lists) {
    const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
#pragma unroll 1
    for (; hot; hot &= hot - 1) {
        const int32_t at = __ffs(hot) - 1, m = at / GROUPS<N>, g = at % GROUPS<N>;
        float4(*eight)[32] = state->stash[strip];
        const float *threshold = state->threshold[strip + 4 * m];
#pragma unroll
        for (int i = 0; i < S; i++) stash<N>(d[i], eight, i != m ? -1 : g);
        uint32_t above = 0;
#pragma unroll
        for (int e = 0; e < PER_GROUP<N>; e++) {
            const float x = ((const float *)&eight[e / 4][lane])[e % 4];
            const float low = threshold[16 * g + 8 * (e / 4) + column + (e & 1)];
            /* A NaN passes and is flagged, but not in the columns past the batch, whose threshold is +inf. */
            const bool passes = x > low || (x != x && low < INFINITY);
            if (passes && (!marked || mark_in(low) == lane / 4 + (e & 2 ? 8 : 0))) above |= 1u << e;
        }
        /* All lanes push at once, each its next one. */
#pragma unroll 1
        for (; above; above &= above - 1) {
            const int32_t e = __ffs(above) - 1, row = 16 * g + 8 * (e / 4) + column + (e & 1);
            const int32_t token = p.first + 16 * strip + 64 * m + lane / 4 + (e & 2 ? 8 : 0);
            pass_on<LISTS>(state, ((const float *)&eight[e / 4][lane])[e % 4], token, row, threshold[row],
                           lists && !marked);
        }
    }
}

/* The same together, group by group, every lane half of one row's 16 tokens: where one token is hot in many rows it
 * lies in few lanes' accumulators. */
template <bool LISTS, int N, int S, int J>
FS_DEVICE void push_together(const float (&d)[S][N / 2], fs_tile_state<N, J> *state, int32_t strip, const piece &p,
                             uint32_t hot, bool lists) {
    const int32_t lane = threadIdx.x & 31, r = lane & 15, half = lane >> 4;
#pragma unroll 1
    for (uint32_t all = __reduce_or_sync(~0u, hot); all; all &= all - 1) {
        const int32_t at = __ffs(all) - 1, m = at / GROUPS<N>, g = at % GROUPS<N>, row = 16 * g + r;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < S; i++) stash<N>(d[i], state->stash[strip], i != m ? -1 : g);
        __syncwarp();
        const float *x = (const float *)state->stash[strip] + 128 * (r / 8) + 4 * (r % 8 / 2) + 2 * half + (r & 1);
        const float low = row < N ? state->threshold[strip + 4 * m][row < N ? row : 0] : INFINITY;
        const int32_t first = p.first + 16 * strip + 64 * m + 8 * half;
        uint32_t above = 0, finite = 0;
        float most = -INFINITY;
        int32_t which = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float v = x[16 * i];
            /* A NaN passes and is flagged, but not in the columns past the batch, whose threshold is +inf. */
            if (v > low || (v != v && low < INFINITY)) above |= 1u << i;
            if (fabsf(v) < INFINITY) finite |= 1u << i;
            if (v > most && v < INFINITY) most = v, which = i;
        }
        if (!above) continue;
        if (is_greedy(state->draw[row]) && !is_edited(state->draw[row])) {
            if (most > low) takes_lead(state, most, first + which, row);
            above &= ~finite;
        }
#pragma unroll 1
        for (; above; above &= above - 1) {
            const int32_t i = __ffs(above) - 1;
            pass_on<LISTS>(state, x[16 * i], first + i, row, low, lists);
        }
    }
    __syncwarp(); /* all have read what others will overwrite */
}

/* Whether it is better to go through a warp's hot groups together: some lane has most of them, or, where all rows are
 * greedy, lanes have many each. */
template <int N, int S> FS_DEVICE bool is_crowded(uint32_t hot, bool noisy) {
    if (S * GROUPS<N> <= 2) return false;
    const uint32_t own = (uint32_t)__popc(hot), all = (uint32_t)__popc(__reduce_or_sync(~0u, hot));
    return __reduce_max_sync(~0u, own) > 1 + all / 2 || (__reduce_add_sync(~0u, own) > S * GROUPS<N> * 4 && !noisy);
}

/* Whether so many groups are hot, a seventh, that better thresholds should come first: those take as long as the scores
 * of a few hundred tokens. A group is hot by one of its 4 rows x 2 tokens or by all of them. Candidates make groups hot
 * too, and no threshold may hold them back. */
template <bool LISTS, int N, int S> FS_DEVICE bool is_flooded(uint32_t hot) {
    constexpr int MANY = S * GROUPS<N> * 32 / (LISTS ? 2 : 7);
    return S * GROUPS<N> > 2 && __reduce_add_sync(~0u, (uint32_t)__popc(hot)) >= MANY;
}

/* reduce: what is above its threshold is decided or queued, or listed. A warp with very many survivors sends the marked
 * ones ahead, whose noise is large, and asks for thresholds that know them. A loop for code to be there once. */
template <bool LISTS, int N, int S, int J>
FS_DEVICE void reduce(const float (&d)[S][N / 2], fs_tile_state<N, J> *state, int32_t strip, const piece &p,
                      bool lists) {
    for (bool asked = false;; asked = true) {
        uint32_t hot = hot_groups<N, S>(d, state, strip);
        const bool ask = !asked && is_flooded<LISTS, N, S>(hot) && state->noisy;
        if (ask) hot &= marked_groups<N, S>(state, strip);
        if (ask || !is_crowded<N, S>(hot, state->noisy)) push_own<LISTS, N, S>(d, state, strip, p, hot, ask, lists);
        else push_together<LISTS, N, S>(d, state, strip, p, hot, lists);
        if (!ask) return;
        __syncwarp();
        ask_scorers(state);
    }
}

/* The first tile of a CTA, kept in memory until there are floors: to hold it in registers would hold up the ring. Each
 * thread has what it has put there. */
template <int N, int S> struct fs_kept_tile {
    static constexpr int FOURS = S * N / 8; /* of a thread */
    float4 *own;

    FS_DEVICE_MEMBER explicit fs_kept_tile(const fs_cuda_lists &lists)
        : own((float4 *)lists.first + (int64_t)(blockIdx.y * gridDim.x + blockIdx.x) * (FS_CUDA_TILE * N / 4) +
              (threadIdx.x - 128) % (FS_STRIPS * 32 / S)) {}

    static FS_DEVICE_MEMBER int64_t at(int i) { return (int64_t)i * (FS_STRIPS * 32 / S); }

    FS_DEVICE_MEMBER void put(const float (&d)[S][N / 2]) const {
#pragma unroll
        for (int m = 0; m < S; m++)
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                own[at(m * (N / 8) + j)] = make_float4(d[m][4 * j], d[m][4 * j + 1], d[m][4 * j + 2], d[m][4 * j + 3]);
    }

    /* Lists its candidates, those of the piece that began with `first`. */
    template <int J> FS_DEVICE_MEMBER void list(fs_tile_state<N, J> *state, int32_t strip, int32_t first) const {
        constexpr int AT_ONCE = FOURS % 8 == 0 ? 8 : FOURS % 4 == 0 ? 4 : 2;
        const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
        const bool all = state->raises;
        float4 next[S > 1 ? AT_ONCE : 1]; /* memory is far, and busy; one team of warps has no registers for it */
#pragma unroll
        for (int e = 0; e < AT_ONCE && S > 1; e++) next[e] = own[at(e)];
#pragma unroll 1
        for (int i = 0; i < FOURS; i += AT_ONCE) {
            float4 v[AT_ONCE];
            uint32_t hot = 0;
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) v[e] = S > 1 ? next[S > 1 ? e : 0] : own[at(i + e)];
            if (S > 1 && i + AT_ONCE < FOURS)
#pragma unroll
                for (int e = 0; e < AT_ONCE; e++) next[S > 1 ? e : 0] = own[at(i + AT_ONCE + e)];
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const float2 floor = *(const float2 *)&state->first_max[8 * ((i + e) % (N / 8)) + column];
                hot |= ((v[e].x >= floor.x ? 1u : 0u) | (v[e].y >= floor.y ? 2u : 0u) | (v[e].z >= floor.x ? 4u : 0u) |
                        (v[e].w >= floor.y ? 8u : 0u) | (all ? 15u : 0u))
                       << 4 * e;
            }
#pragma unroll 1
            for (; hot; hot &= hot - 1) {
                const int32_t bit = __ffs(hot) - 1, four = i + bit / 4, e = bit % 4;
                float x = S > 1 ? 0.0f : ((const float *)&own[at(four)])[e];
#pragma unroll
                for (int c = 0; c < 4 * AT_ONCE && S > 1; c++) x = c == bit ? (&v[c / 4].x)[c % 4] : x;
                const int32_t token = first + 16 * strip + 64 * (four / (N / 8)) + lane / 4 + (e & 2 ? 8 : 0);
                list_token(state, x, token, 8 * (four % (N / 8)) + column + (e & 1));
            }
        }
    }
};

#endif
