/* dots.cuh - dot products of a screen's strips with the rows of H, and the sums of their bounds. */
#ifndef FS_CUDA_SCREEN_DOTS_CUH
#define FS_CUDA_SCREEN_DOTS_CUH

#include "cuda/screen/operands.cuh"
#include "cuda/screen/room.cuh"

/* What a lane holds of a record, on its way. */
template <int BITS> struct fs_record {
    uint4 q[BITS / 2];
    uint32_t tail; /* the lane's of its 32 halves */

    FS_DEVICE_MEMBER void load(const unsigned char *record) {
        const int32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < BITS / 2; i++) q[i] = __ldcs((const uint4 *)(record + i * 512) + lane);
        tail = __ldcs((const unsigned short *)(record + BITS / 2 * 512) + lane);
    }

    /* The A operand of step k of chunk c. */
    FS_DEVICE_MEMBER void operand(uint32_t (&a)[4], int c, int k, uint32_t mask) const {
        if constexpr (BITS == 4) operand_of_4(a, (&q[c].x)[k], mask);
        else operand_of_8(a, (&q[2 * c].x)[k], (&q[2 * c + 1].x)[k], mask);
    }

    /* Of the lane's tokens g and g + 8: the halves at [which][16]. */
    FS_DEVICE_MEMBER float2 halves(int which) const {
        const int32_t at = 16 * which + (int32_t)(threadIdx.x & 31) / 4;
        return {__uint_as_float(__shfl_sync(~0u, tail, at) << 16),
                __uint_as_float(__shfl_sync(~0u, tail, at + 8) << 16)};
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
FS_DEVICE void dot_chunk(float (&d)[N / 8][4], const fs_record<BITS> &r, int c, const char *h, int32_t pitch,
                         uint32_t mask) {
    uint4 b[N / 8][2];
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        b[j][0] = *(const uint4 *)(h + 8 * j * pitch);
        b[j][1] = *(const uint4 *)(h + 8 * j * pitch + 16);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t a[4];
        r.operand(a, c, k, mask);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const uint4 &v = b[j][k / 2];
            mma<FS_BF16>(d[j], a, k & 1 ? v.z : v.x, k & 1 ? v.w : v.y);
        }
    }
}

/* Where sums begin: at what the numbers' offsets would add to them, taken off; 8 bits have none. */
template <int N> FS_DEVICE void begin_sums(float (&d)[N / 8][4], const float *offset) {
    const int32_t column = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 o = offset ? *(const float2 *)&offset[8 * j + column] : float2{0.0f, 0.0f};
        d[j][0] = d[j][2] = o.x;
        d[j][1] = d[j][3] = o.y;
    }
}

/* norm: of the record's columns, two lines of 2 N for 4 bits (norms and offsets by row), else one of norms. */
template <int BITS, int N>
FS_DEVICE void dot_record(fs_strip_sums<N> *sums, const fs_record<BITS> &r, const char *h, int32_t pitch,
                          const float *norm, uint32_t mask) {
    float d[N / 8][4];
    if (BITS == 8) begin_sums<N>(d, NULL);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (BITS == 4) begin_sums<N>(d, norm + (2 * c + 1) * N);
        dot_chunk<BITS, N>(d, r, c, h + c * FS_SCREEN_CHUNK * 2, pitch, mask);
        if (BITS == 8 && c == 0) continue;
        const float2 scale = r.halves(BITS == 4 ? c : 0);
        if constexpr (BITS == 4) sums->add(d, scale, {scale.x * scale.x, scale.y * scale.y}, norm + 2 * c * N);
        else sums->add(d, scale, r.halves(1), norm);
    }
}

/* Which tiles of 64 tokens this CTA takes: in turn, so that all read one stretch of the screen at a time. */
struct fs_screened_walk {
    int32_t strips; /* of the screen */
    int32_t tiles;  /* of this CTA */

    FS_DEVICE_MEMBER explicit fs_screened_walk(const fs_screen &s) : strips((int32_t)screen_strips(s.rows)) {
        const uint32_t all = (uint32_t)(strips + FS_JUDGES - 1) / FS_JUDGES;
        tiles = (int32_t)((all - blockIdx.x + gridDim.x - 1) / gridDim.x);
    }

    FS_DEVICE_MEMBER int32_t strip(int32_t n, int32_t i) const {
        return (n * (int32_t)gridDim.x + (int32_t)blockIdx.x) * FS_JUDGES + i;
    }

    /* Behind the last, the last: nobody looks at it. */
    FS_DEVICE_MEMBER const unsigned char *at(const fs_screen &s, int32_t n, int32_t i) const {
        return s.strips + (int64_t)min(strips - 1, strip(n, i)) * s.strip_bytes;
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
        : s(s), walk(s), warp(warp), strip(warp % FS_JUDGES), from((int32_t)s.records * (warp / FS_JUDGES) / FS_PARTS),
          count((int32_t)s.records * (warp / FS_JUDGES + 1) / FS_PARTS - from), ahead(0), tile(-1) {}

    FS_DEVICE_MEMBER void fetch(int slot) {
        if (ahead == 0) {
            if (++tile >= walk.tiles) return;
            next = strip_record(&s, walk.at(s, tile, strip), from);
            ahead = count;
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

    /* Whether that is of use. */
    FS_DEVICE_MEMBER bool hand_on(fs_screened_state<N> *state, fs_strip_sums<N> *sums, int32_t n) {
        if (!state->wait(&state->empty[n & 1], (n / 2 & 1) ^ 1)) return false;
        sums->put(state, n & 1, warp);
        sums->clear();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(shared_address(&state->full[n & 1]));
        return true;
    }

    FS_DEVICE_MEMBER void run(const fs_screened_room<BITS, N> &room) {
        const int32_t lane = threadIdx.x & 31;
        const int32_t pitch = (int32_t)screened_pitch(s.records);
        const uint32_t mask = operand_mask<BITS>();
        const char *h0 = room.h + lane / 4 * pitch + (from * FS_SCREEN_SPAN + 16 * (lane & 3)) * 2, *h = h0;
        const float *norm0 = room.norm + NORMS<BITS> * N * from, *norm = norm0;
        fs_strip_sums<N> sums;
        sums.clear();
        if (count == 0) {
            for (int32_t n = 0; n < walk.tiles && hand_on(room.state, &sums, n); n++) {
            }
            return;
        }
        int32_t n = 0, left = count;
#pragma unroll 1
        while (n < walk.tiles) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (n >= walk.tiles) break;
                dot_record<BITS, N>(&sums, ring[i], h, pitch, norm, mask);
                if (tile < walk.tiles) fetch(i);
                h += FS_SCREEN_SPAN * 2;
                norm += NORMS<BITS> * N;
                if (--left) continue;
                if (!hand_on(room.state, &sums, n++)) return;
                h = h0, norm = norm0, left = count;
            }
        }
    }
};

#endif
