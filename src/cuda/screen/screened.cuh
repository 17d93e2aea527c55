/* screened.cuh - a pass over a head's screen (core/screen.h) in place of W, and which tokens it leaves in the race.
 *
 *   16 warps    dot products: a strip of 16 tokens and a quarter of its columns each, from memory to registers as they
 *               lie, numbers to bf16, 16 x 8 x 16 with the rows of H, which lie in shared memory
 *   4 warps     the race: a strip each, of its four quarters the sum
 *
 *         screen --16-byte loads--> registers --mma--> sums, and sums of the bounds --> shared memory --> race
 *
 * A token's score is known between two bounds. What the upper one cannot bring above a score that its row has is out;
 * the others are listed, and settled in a launch that follows (settle.cu). The best score that is known decides how
 * many they are: a token that looks better than any of its row so far has its logit computed from W at once, in float,
 * by the warp that finds it. So the window is one bound wide and not two: some tens of tokens a row with 4 bits, in
 * place of thousands (docs/screening.md). */
#ifndef FS_CUDA_SCREENED_CUH
#define FS_CUDA_SCREENED_CUH

#define FS_PHILOX_ROLLED
#include "cuda/device/row.cuh"
#include "cuda/cuda_launch.h"

#include "core/head.h"

constexpr int FS_DOTS = 16, FS_JUDGES = 4; /* warps */
constexpr int FS_SCREENED_THREADS = 32 * (FS_DOTS + FS_JUDGES);
constexpr int FS_PARTS = FS_DOTS / FS_JUDGES; /* of the columns */
constexpr int FS_SCREENED_TILE = FS_JUDGES * FS_SCREEN_TOKENS;
constexpr int FS_SEED_PATIENCE = 12000; /* nanoseconds to wait for the first scores of all CTAs */

/* A token that may win: its logit by the screen, and the bound of that. */
struct fs_contender {
    float l, bound;
    uint32_t token;
    int32_t row;
};

/* Shared memory, for N rows. H [N][pitch] is in front of it, then norms [groups][N]. */
template <int N> struct fs_screened_state {
    fs_contender contender[FS_JUDGES][FS_SCREEN_TOKENS * N];
    float4 sum[2][FS_DOTS][N / 8][32], bound[2][FS_DOTS][N / 8][32];
    fs_draw draw[N];
    float slack[N]; /* +inf: nothing is known of the row's logits */
    unsigned long long full[2], empty[2];
};

/* Bytes from one row of H to the next: eight lanes of two rows read 16 bytes each in banks of their own. */
FS_CORE int64_t screened_pitch(int64_t records) {
    return records * FS_SCREEN_SPAN * 2 + 16;
}

template <int N> struct fs_screened_room {
    char *h;
    float *norm;
    fs_screened_state<N> *state;

    FS_DEVICE_MEMBER fs_screened_room(char *shared, int64_t records) {
        h = shared;
        norm = (float *)(shared + N * screened_pitch(records));
        state = (fs_screened_state<N> *)(norm + 2 * N * records);
    }
};

/* -------------------------------------------------------------------------------------------------- dot products ---- */

/* Two whole numbers of 16 bits as bf16: those below 16 in a word's lower nibbles, less 8; and those of 8 bits, with a
 * sign, in its even bytes. Exact. */
FS_DEVICE uint32_t multiply_add_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

FS_DEVICE uint32_t nibbles_to_bf16(uint32_t w) {
    return multiply_add_pair((w & 0x000F000Fu) | 0x43004300u, 0x3F803F80u, 0xC308C308u); /* 128 + q, less 136 */
}

FS_DEVICE uint32_t bytes_to_bf16(uint32_t w) {
    /* 128 and the lower seven bits, less 128 or 256 by the sign. */
    return multiply_add_pair((w & 0x00800080u) | 0x43004300u, 0xBF80BF80u, (w & 0x007F007Fu) | 0x43004300u);
}

/* What a lane holds of a record, on its way. */
template <int BITS> struct fs_record {
    static constexpr int WORDS = BITS; /* 16 bytes of a chunk: 4 bits, of two tokens at once */
    uint4 q[BITS / 2];
    uint32_t tail; /* the lane's of its 32 halves */

    FS_DEVICE_MEMBER void load(const unsigned char *record) {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) q[i] = __ldcs((const uint4 *)(record + i * 512) + lane);
        tail = __ldcs((const unsigned short *)(record + BITS / 2 * 512) + lane);
    }

    /* The A operand of step k of chunk c. */
    FS_DEVICE_MEMBER void operand(uint32_t (&a)[4], int c, int k) const {
        if constexpr (BITS == 4) {
            const uint32_t w = (&q[c].x)[k];
            a[0] = nibbles_to_bf16(w), a[1] = nibbles_to_bf16(w >> 4);
            a[2] = nibbles_to_bf16(w >> 8), a[3] = nibbles_to_bf16(w >> 12);
        } else {
            const uint32_t w0 = (&q[2 * c].x)[k], w1 = (&q[2 * c + 1].x)[k];
            a[0] = bytes_to_bf16(w0), a[1] = bytes_to_bf16(w1);
            a[2] = bytes_to_bf16(w0 >> 8), a[3] = bytes_to_bf16(w1 >> 8);
        }
    }

    /* Of the lane's tokens g and g + 8: the halves at [which][16]. */
    FS_DEVICE_MEMBER float2 halves(int which) const {
        const int32_t at = 16 * which + (int32_t)(threadIdx.x & 31) / 4;
        return {__uint_as_float(__shfl_sync(~0u, tail, at) << 16), __uint_as_float(__shfl_sync(~0u, tail, at + 8) << 16)};
    }
};

/* Sums of one strip over this warp's columns, as accumulators lie (fused/epilogue.cuh). */
template <int N> struct fs_strip_sums {
    float sum[N / 8][4], bound[N / 8][4];

    FS_DEVICE_MEMBER void clear() {
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[i / 4][i % 4] = bound[i / 4][i % 4] = 0.0f;
    }

    FS_DEVICE_MEMBER void put(fs_screened_state<N> *state, int32_t buffer, int32_t warp) const {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            state->sum[buffer][warp][j][lane] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
            state->bound[buffer][warp][j][lane] = make_float4(bound[j][0], bound[j][1], bound[j][2], bound[j][3]);
        }
    }

    /* d scaled, and what its columns add to the bounds: a float of each token times one of each row. */
    FS_DEVICE_MEMBER void add(const float (&d)[N / 8][4], float2 scale, float2 spread, const float *norm) {
        const int32_t column = 2 * (threadIdx.x & 3);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 h = *(const float2 *)&norm[8 * j + column];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[j][i] = fmaf(d[j][i], i & 2 ? scale.y : scale.x, sum[j][i]);
                bound[j][i] = fmaf(i & 2 ? spread.y : spread.x, i & 1 ? h.y : h.x, bound[j][i]);
            }
        }
    }
};

/* d += a record's chunk c times H; h: this lane's 16 columns of its row in that chunk. */
template <int BITS, int N>
FS_DEVICE void dot_chunk(float (&d)[N / 8][4], const fs_record<BITS> &r, int c, const char *h, int64_t pitch) {
    uint4 b[N / 8][2];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        b[j][0] = *(const uint4 *)(h + 8 * j * pitch);
        b[j][1] = *(const uint4 *)(h + 8 * j * pitch + 16);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t a[4];
        r.operand(a, c, k);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const uint4 &v = b[j][k / 2];
            mma<FS_BF16>(d[j], a, k & 1 ? v.z : v.x, k & 1 ? v.w : v.y);
        }
    }
}

template <int BITS, int N>
FS_DEVICE void dot_record(fs_strip_sums<N> *sums, const fs_record<BITS> &r, const char *h, int64_t pitch,
                          const float *norm) {
    float d[N / 8][4] = {};
#pragma unroll
    for (int c = 0; c < 2; c++) {
        dot_chunk<BITS, N>(d, r, c, h + c * FS_SCREEN_CHUNK * 2, pitch);
        if (BITS == 8 && c == 0) continue;
        const float2 scale = r.halves(BITS == 4 ? c : 0);
        if constexpr (BITS == 4) sums->add(d, scale, {scale.x * scale.x, scale.y * scale.y}, norm + c * N);
        else sums->add(d, scale, r.halves(1), norm);
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[i / 4][i % 4] = 0.0f;
    }
}

/* Which tiles of 64 tokens this CTA takes: in turn, so that all read one stretch of the screen at a time. */
struct fs_screened_walk {
    int64_t strips; /* of the screen */
    int32_t tiles;  /* of this CTA */

    FS_DEVICE_MEMBER explicit fs_screened_walk(const fs_screen &s) : strips(screen_strips(s.rows)) {
        const int64_t all = (strips + FS_JUDGES - 1) / FS_JUDGES;
        tiles = (int32_t)((all - blockIdx.x + gridDim.x - 1) / gridDim.x);
    }

    /* Strip i of tile n; behind the last, the last: nobody looks at it. */
    FS_DEVICE_MEMBER int64_t strip(int32_t n, int32_t i) const {
        return min(strips - 1, ((int64_t)n * gridDim.x + blockIdx.x) * FS_JUDGES + i);
    }
};

/* The dot products of one warp. Records come in the order in which they are wanted, over the ends of strips, DEPTH of
 * them on their way. */
template <int BITS, int N> struct fs_dots {
    static constexpr int DEPTH = BITS == 4 ? 4 : 2;
    const fs_screen &s;
    const fs_screened_walk walk;
    const int32_t warp, strip, from, count; /* its strip of a tile, its first record and how many */
    fs_record<BITS> ring[DEPTH];
    const unsigned char *next; /* the record that is fetched next, */
    int32_t ahead, tile;       /* how many are left of its strip, and its tile */

    FS_DEVICE_MEMBER fs_dots(const fs_screen &s, int32_t warp)
        : s(s), walk(s), warp(warp), strip(warp % FS_JUDGES), from((int32_t)(s.records * (warp / FS_JUDGES) / FS_PARTS)),
          count((int32_t)(s.records * (warp / FS_JUDGES + 1) / FS_PARTS) - from), ahead(0), tile(-1) {}

    FS_DEVICE_MEMBER void fetch(int slot) {
        if (ahead == 0) {
            if (++tile >= walk.tiles) return;
            next = strip_record(&s, screen_strip(&s, walk.strip(tile, strip)), from);
            ahead = count;
            /* What is on its way to registers is not enough for the memory. */
            if (tile + 1 < walk.tiles && (threadIdx.x & 31) == 0)
                prefetch_l2_bytes(strip_record(&s, screen_strip(&s, walk.strip(tile + 1, strip)), from),
                                  (uint32_t)(count * s.record_bytes));
        }
        ring[slot].load(next);
        next += s.record_bytes;
        ahead--;
    }

    FS_DEVICE_MEMBER void begin() {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (count > 0 && tile < walk.tiles) fetch(i);
    }

    FS_DEVICE_MEMBER void hand_on(fs_screened_state<N> *state, fs_strip_sums<N> *sums, int32_t n) {
        const uint32_t full = shared_address(&state->full[n & 1]), empty = shared_address(&state->empty[n & 1]);
        barrier_wait(empty, (n / 2 & 1) ^ 1);
        sums->put(state, n & 1, warp);
        sums->clear();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(full);
    }

    FS_DEVICE_MEMBER void run(const fs_screened_room<N> &room) {
        const int32_t lane = threadIdx.x & 31;
        const int64_t pitch = screened_pitch(s.records);
        const char *h0 = room.h + lane / 4 * pitch + (from * FS_SCREEN_SPAN + 16 * (lane & 3)) * 2, *h = h0;
        const float *norm0 = room.norm + 2 * N * from, *norm = norm0;
        fs_strip_sums<N> sums;
        sums.clear();
        if (count == 0) {
            for (int32_t n = 0; n < walk.tiles; n++) hand_on(room.state, &sums, n);
            return;
        }
        int32_t n = 0, left = count;
#pragma unroll 1
        while (n < walk.tiles) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (n >= walk.tiles) break;
                dot_record<BITS, N>(&sums, ring[i], h, pitch, norm);
                if (tile < walk.tiles) fetch(i);
                h += FS_SCREEN_SPAN * 2;
                norm += 2 * N;
                if (--left) continue;
                hand_on(room.state, &sums, n++);
                h = h0, norm = norm0, left = count;
            }
        }
    }
};

/* ----------------------------------------------------------------------------------------------------------- rows ---- */

/* Rows of H to shared memory, zeros behind their columns and behind the last row. By all threads. */
template <int N> FS_DEVICE void load_hidden(const fs_cuda_args &args, const fs_screened_room<N> &room) {
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const int64_t records = args.screen.of.records, pitch = screened_pitch(records);
    const int32_t pieces = (int32_t)(records * FS_SCREEN_SPAN / 8), dim = (int32_t)args.head.dim;
    for (int32_t i = threadIdx.x; i < N * pieces; i += FS_SCREENED_THREADS) {
        const int32_t b = i / pieces, column = i % pieces * 8;
        uint4 eight = {};
        if (b < args.rows && column < dim)
            eight = *(const uint4 *)(matrix_row(&hidden, args.first_row + b) + 2 * column);
        /* D is a multiple of 8 (fs_cuda_screens). */
        *(uint4 *)(room.h + b * pitch + 2 * column) = eight;
    }
}

/* Norms of every 64 columns, or of 128 for 8 bits, rounded up: squared for 4 bits. */
template <int BITS, int N> FS_DEVICE void find_norms(const fs_screen &s, const fs_screened_room<N> &room) {
    constexpr int COLUMNS = BITS == 4 ? FS_SCREEN_CHUNK : FS_SCREEN_SPAN;
    const int64_t pitch = screened_pitch(s.records);
    for (int32_t i = threadIdx.x; i < N * (int32_t)s.records * (BITS == 4 ? 2 : 1); i += FS_SCREENED_THREADS) {
        const int32_t b = i % N, group = i / N;
        const uint32_t *pair = (const uint32_t *)(room.h + b * pitch + (int64_t)group * COLUMNS * 2);
        float square = 0.0f;
        for (int k = 0; k < COLUMNS / 2; k++) {
            const float x = __uint_as_float(pair[k] << 16), y = __uint_as_float(pair[k] & 0xFFFF0000u);
            square = fmaf(x, x, fmaf(y, y, square));
        }
        square *= 1.0f + 0x1p-15f; /* 128 sums, each off by 2^-24 */
        room.norm[(BITS == 4 ? group : 2 * group) * N + b] = (BITS == 4 ? square : sqrtf(square) * (1.0f + 0x1p-20f)) + 1e-30f;
    }
}

/* Who the rows are. A row whose norm is not finite, or too large for bounds, has none. */
template <int BITS, int N> FS_DEVICE void open_rows(const fs_cuda_args &args, const fs_screened_room<N> &room) {
    const fs_screen &s = args.screen.of;
    const int32_t b = threadIdx.x;
    if (b >= N) return;
    fs_draw draw;
    memset(&draw, 0, sizeof draw);
    draw.status = FS_ROW_SKIPPED;
    if (b < args.rows) draw = draw_of_row(args, b);
    room.state->draw[b] = draw;
    double square = 0.0;
    for (int32_t group = 0; group < s.records * (BITS == 4 ? 2 : 1); group++) {
        const double norm = room.norm[(BITS == 4 ? group : 2 * group) * N + b];
        square += BITS == 4 ? norm : norm * norm;
    }
    const double norm = sqrt(square), error = screen_dot_error(s.dim);
    const bool known = square < (double)FS_SCREEN_NORM_MOST;
    /* Its list is too long from the start. */
    if (!known && b < args.rows && blockIdx.x == 0) atomicMax(&args.work[b].max, FS_CUDA_SCREENED + 1u);
    room.state->slack[b] = known ? float_above(screen_slack(s.dim, norm, norm, 0.0, error)) : INFINITY;
}

/* ---------------------------------------------------------------------------------------------------------- judges ---- */

/* What a judge keeps of the rows, one to a lane; and the race of its strips. */
template <int BITS, int N> struct fs_judge {
    const fs_cuda_args &args;
    const fs_screened_room<N> &room;
    const bool shaped;
    uint32_t known; /* lane b: a score row b has, an ordered float; 0: none */
    bool open;      /* lane b: row b has no list, or too long a one */
    unsigned long long record; /* lane b: of the token of row b that looks best */
    fs_marks marks; /* lane b: of row b, in the block of the strip */

    /* From a dot product, or a bound of it, to the logit, or a bound: up or down. */
    FS_DEVICE_MEMBER float logit(float x, int64_t token, float way) const {
        if (!shaped) return x;
        const fs_head &head = args.head;
        if (head.bias) x += head.bias[token - head.first_token];
        x = head_logit(&head, x);
        return head.softcap > 0.0f ? x + way * fabsf(x) * 1e-5f : x; /* tanhf's last bits */
    }

    FS_DEVICE_MEMBER void take_known() {
        const int32_t lane = threadIdx.x & 31;
        if (lane >= args.rows) return;
        known = load_relaxed(&args.work[lane].bound);
        open = load_relaxed(&args.work[lane].max) > FS_CUDA_SCREENED;
        record = *(volatile unsigned long long *)&args.work[lane].rough;
    }

    /* A logit of row `lane` that is not above this, of a token of the 16 from `first` on, cannot win. */
    FS_DEVICE_MEMBER float threshold(int32_t first) const {
        const int32_t lane = threadIdx.x & 31;
        if (lane >= args.rows || open || !draws(room.state->draw[lane])) return INFINITY;
        const fs_draw &draw = room.state->draw[lane];
        const fs_threshold t = threshold_of(known, draw.temperature);
        if (is_greedy(draw)) return t.level;
        float low = threshold_at(t, FS_UNMARKED_CEILING);
        for (int i = 0; i < marks.count; i++)
            if (mark_place(marks, i) / FS_SCREEN_TOKENS == (uint32_t)first % FS_NOISE_BLOCK / FS_SCREEN_TOKENS)
                low = fminf(low, threshold_at(t, mark_ceiling(mark_prefix(marks, i))));
        return marks.count < 0 ? -INFINITY : low;
    }

    FS_DEVICE_MEMBER float noise_of(int32_t b, uint32_t token) const {
        const fs_draw &draw = room.state->draw[b];
        return is_greedy(draw) ? 0.0f : noise_about(draw_token(draw.noise, token));
    }

    /* What is known of a score, of a token with this noise. */
    FS_DEVICE_MEMBER float least_score(const fs_contender &c, float noise) const {
        return score_of(logit(c.l - c.bound, c.token, -1.0f) * room.state->draw[c.row].inverse, noise).least;
    }

    FS_DEVICE_MEMBER float likely_score(const fs_contender &c, float noise) const {
        return logit(c.l, c.token, 0.0f) * room.state->draw[c.row].inverse + noise;
    }

    /* The row has at least this score; and a token that looks so good. Whether none has looked better. */
    FS_DEVICE_MEMBER bool tell(const fs_contender &c, float least, float likely) const {
        if (least > -INFINITY) atomicMax(&args.work[c.row].bound, ordered_float(least));
        if (!(likely > -INFINITY)) return false;
        const unsigned long long key = (unsigned long long)ordered_float(likely) << 32 | c.token;
        return atomicMax(&args.work[c.row].rough, key) < key;
    }

    /* One token: listed if it may win. `best` is its row's best score, `most` how its best one looks. */
    FS_DEVICE_MEMBER bool judge(const fs_contender &c, float noise, float best, float most) const {
        const float high = logit(c.l + c.bound, c.token, 1.0f) * room.state->draw[c.row].inverse;
        const float upper = score_of(high, noise).most;
        if (upper < best) return false;
        const uint32_t at = atomicAdd(&args.work[c.row].max, 1u);
        /* What is no number comes first of all. */
        const uint32_t order = upper == upper ? ordered_float(upper) : ~0u;
        if (at < FS_CUDA_SCREENED)
            args.screen.entry[(int64_t)c.row * FS_CUDA_SCREENED + at] = (unsigned long long)order << 32 | c.token;
        const float least = least_score(c, noise), likely = likely_score(c, noise);
        return (least > best || likely > most) && tell(c, least, likely);
    }

    /* The logit from W, in float, whatever the order of its sum, of the contender of lane `from`: a score that its row
     * has. By all lanes. */
    FS_DEVICE_MEMBER void refine(const fs_contender &c, float noise, int from) const {
        const uint32_t token = __shfl_sync(~0u, c.token, from);
        const int32_t b = __shfl_sync(~0u, c.row, from), lane = threadIdx.x & 31;
        const fs_weights w = weights_of_head(&args.head);
        const int64_t row = token - args.head.first_token, pitch = screened_pitch(args.screen.of.records);
        const char *weights = weights_row(&w, row), *h = room.h + b * pitch;
        float dot = 0.0f;
#pragma unroll 4
        for (int32_t k = 8 * lane; k < args.head.dim; k += 256) {
            const uint4 x = *(const uint4 *)(weights + 2 * k), y = *(const uint4 *)(h + 2 * k);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t u = (&x.x)[i], v = (&y.x)[i];
                dot = fmaf(__uint_as_float(u << 16), __uint_as_float(v << 16), dot);
                dot = fmaf(__uint_as_float(u & 0xFFFF0000u), __uint_as_float(v & 0xFFFF0000u), dot);
            }
        }
        for (int apart = 16; apart; apart /= 2) dot += __shfl_xor_sync(~0u, dot, apart);
        if (lane != from) return;
        const fs_screen &s = args.screen.of;
        const float norm = strip_head(screen_strip(&s, row / FS_SCREEN_TOKENS))->norm[row % FS_SCREEN_TOKENS];
        const fs_contender exact = {dot, norm * room.state->slack[b] * FS_SCREEN_WIDER, token, b};
        const float least = least_score(exact, noise);
        if (least > -INFINITY) atomicMax(&args.work[b].bound, ordered_float(least));
    }

    FS_DEVICE_MEMBER void refine_all(const fs_contender &c, float noise, bool better) const {
#pragma unroll 1
        for (uint32_t who = __ballot_sync(~0u, better); who; who &= who - 1) refine(c, noise, __ffs(who) - 1);
    }

    /* Waits for all judges of the launch to have counted `so often`, but not for ever: what is not known yet makes
     * lists longer, and nothing else. */
    FS_DEVICE_MEMBER void meet(uint32_t so_often) const {
        __threadfence();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) {
            atomicAdd(&args.work->seeded, 1u);
            const uint64_t start = nanoseconds();
            const uint32_t all = gridDim.x * FS_JUDGES * so_often;
            while (load_relaxed(&args.work->seeded) < all && nanoseconds() - start < FS_SEED_PATIENCE) {
            }
        }
        __syncwarp();
    }

    /* First tile: of every row the token of the strip that looks best but for its noise, a row to a lane; when all CTAs
     * have told theirs, the best of all is refined. */
    FS_DEVICE_MEMBER void seed(const float (&x)[N / 2], const float (&bound)[N / 2], int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31, g = lane / 4;
        fs_contender c = {-INFINITY, INFINITY, 0, N};
#pragma unroll
        for (int i = 0; i < N / 4; i++) { /* rows of this lane */
            const int at = 4 * (i / 2) + (i & 1);
            float most = g < count ? x[at] : -INFINITY, off = bound[at];
            int32_t place = g;
            if (g + 8 < count && x[at + 2] > most) most = x[at + 2], off = bound[at + 2], place = g + 8;
#pragma unroll
            for (int apart = 4; apart <= 16; apart *= 2) {
                const float other = __shfl_xor_sync(~0u, most, apart), off2 = __shfl_xor_sync(~0u, off, apart);
                const int32_t place2 = __shfl_xor_sync(~0u, place, apart);
                if (other > most) most = other, off = off2, place = place2;
            }
            if (g == i) c = {most, off, (uint32_t)(first + place), 8 * (i / 2) + 2 * (lane & 3) + (i & 1)};
        }
        float noise = 0.0f;
        const bool there = c.row < args.rows && draws(room.state->draw[c.row]) && c.l > -INFINITY && c.bound < INFINITY;
        if (there) {
            noise = noise_of(c.row, c.token);
            tell(c, least_score(c, noise), likely_score(c, noise));
        }
        meet(1);
        take_known();
        const unsigned long long best = __shfl_sync(~0u, record, c.row < N ? c.row : 0);
        refine_all(c, noise, there && (uint32_t)best == c.token);
        meet(2);
        take_known();
    }

    FS_DEVICE_MEMBER void run() {
        const int32_t judge_at = (int32_t)threadIdx.x / 32 - FS_DOTS, lane = threadIdx.x & 31, column = 2 * (lane & 3);
        const fs_screen &s = args.screen.of;
        const fs_screened_walk walk(s);
        const int64_t end = min(args.head.first_token + args.head.rows, args.vocab);
        known = 0, record = 0, open = false;
        for (int32_t n = 0; n < walk.tiles; n++) {
            const int64_t strip = ((int64_t)n * gridDim.x + blockIdx.x) * FS_JUDGES + judge_at;
            const int32_t first = (int32_t)(args.head.first_token + strip * FS_SCREEN_TOKENS);
            const int32_t count = (int32_t)max((int64_t)0, min((int64_t)FS_SCREEN_TOKENS, end - first));
            const fs_strip_head *head = strip_head(screen_strip(&s, walk.strip(n, judge_at)));
            const float norm[2] = {head->norm[lane / 4], head->norm[lane / 4 + 8]};
            take_known();
            marks = {0, 0, {0, 0}};
            if (lane < args.rows && !is_greedy(room.state->draw[lane]))
                marks = marks_of(room.state->draw[lane].noise, (uint32_t)first / FS_NOISE_BLOCK);
            barrier_wait(shared_address(&room.state->full[n & 1]), n / 2 & 1);
            float x[N / 2], bound[N / 2];
            take_sums(x, bound, n & 1, judge_at);
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&room.state->empty[n & 1]));
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                bound[i] = screen_bound(&s, bound[i], norm[i & 2 ? 1 : 0],
                                        room.state->slack[8 * (i / 4) + column + (i & 1)]);
            if (n == 0) seed(x, bound, first, count);
            if (count > 0) race(x, bound, first, count);
        }
    }

    FS_DEVICE_MEMBER void take_sums(float (&x)[N / 2], float (&bound)[N / 2], int32_t buffer, int32_t strip) const {
        const int32_t lane = threadIdx.x & 31;
        const fs_screened_state<N> *state = room.state;
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = bound[i] = 0.0f;
#pragma unroll
        for (int part = 0; part < FS_PARTS; part++)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float4 a = state->sum[buffer][part * FS_JUDGES + strip][j][lane];
                const float4 b = state->bound[buffer][part * FS_JUDGES + strip][j][lane];
                x[4 * j] += a.x, x[4 * j + 1] += a.y, x[4 * j + 2] += a.z, x[4 * j + 3] += a.w;
                bound[4 * j] += b.x, bound[4 * j + 1] += b.y, bound[4 * j + 2] += b.z, bound[4 * j + 3] += b.w;
            }
    }

    FS_DEVICE_MEMBER void race(const float (&x)[N / 2], const float (&bound)[N / 2], int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
        const float low = threshold(first);
        fs_contender *all = room.state->contender[threadIdx.x / 32 - FS_DOTS];
        int32_t found = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int32_t b = 8 * (i / 4) + column + (i & 1), place = lane / 4 + (i & 2 ? 8 : 0);
            const float least = __shfl_sync(~0u, low, b), high = logit(x[i] + bound[i], first + min(place, count - 1), 1.0f);
            /* What is no number passes, but not in rows that draw nothing. */
            const bool passes = place < count && least < INFINITY && !(high <= least);
            const uint32_t who = __ballot_sync(~0u, passes);
            if (passes) all[found + __popc(who & ((1u << lane) - 1))] = {x[i], bound[i], (uint32_t)(first + place), b};
            found += __popc(who);
        }
        __syncwarp();
#pragma unroll 1
        for (int32_t from = 0; from < found; from += 32) {
            const bool here = from + lane < found;
            const fs_contender c = all[min(from + lane, found - 1)];
            const float best = known_score(__shfl_sync(~0u, known, c.row));
            const float most = known_score(__shfl_sync(~0u, (uint32_t)(record >> 32), c.row));
            const float noise = noise_of(c.row, c.token);
            refine_all(c, noise, here && judge(c, noise, best, most));
        }
        __syncwarp();
    }
};

/* --------------------------------------------------------------------------------------------------------- kernel ---- */

template <int BITS, int N>
__global__ void __launch_bounds__(FS_SCREENED_THREADS, 1) screened(const __grid_constant__ fs_cuda_args args,
                                                                    int32_t shaped) {
    extern __shared__ __align__(128) char shared[];
    const fs_screen &s = args.screen.of;
    const fs_screened_room<N> room(shared, s.records);
    const int32_t warp = threadIdx.x / 32;
    fs_dots<BITS, N> dots(s, warp);
    const bool constant = args.head.flags & FS_HEAD_CONSTANT;
    if (!constant) wait_for_earlier_launches();
    if (warp < FS_DOTS) dots.begin();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&room.state->full[i]), FS_DOTS);
            barrier_init(shared_address(&room.state->empty[i]), FS_JUDGES);
        }
        barrier_init_fence();
    }
    wait_for_earlier_launches();
    if (blockIdx.x == 0 && threadIdx.x == 0 && args.first_row == 0) *args.screen.open = 0;
    load_hidden<N>(args, room);
    __syncthreads();
    find_norms<BITS, N>(s, room);
    __syncthreads();
    open_rows<BITS, N>(args, room);
    __syncthreads();
    let_next_launch_begin();
    if (warp < FS_DOTS) dots.run(room);
    else {
        fs_judge<BITS, N> judge = {args, room, shaped != 0, 0, false, 0, {}};
        judge.run();
    }
}

#endif
