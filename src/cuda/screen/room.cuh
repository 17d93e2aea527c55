/* room.cuh - shared memory of a pass over a screen: rows of H and their norms, what warps hand each other. */
#ifndef FS_CUDA_SCREEN_ROOM_CUH
#define FS_CUDA_SCREEN_ROOM_CUH

#include "cuda/screen/contest.cuh"

constexpr int FS_DOTS = 16, FS_JUDGES = 4; /* warps */
constexpr int FS_SCREENED_THREADS = 32 * (FS_DOTS + FS_JUDGES);
constexpr int FS_PARTS = FS_DOTS / FS_JUDGES; /* of the columns */
constexpr int FS_SCREENED_TILE = FS_JUDGES * FS_SCREEN_TOKENS;
constexpr uint32_t FS_SEED_PATIENCE = 12000; /* nanoseconds to wait for the first scores of all CTAs */

/* Shared memory, for N rows. H [N][pitch] is in front of it, then norms [records][NORMS][N]. */
template <int N> struct fs_screened_state {
    fs_contender contender[FS_JUDGES][FS_SCREEN_TOKENS * N];
    float4 sum[2][FS_DOTS][N / 8][32], bound[2][FS_DOTS][N / 8][32];
    fs_draw draw[N];
    float slack[N]; /* +inf: nothing is known of the row's logits */
    unsigned long long full[2], empty[2];
    int32_t over; /* a row is open, so W is read for all of them */
    uint32_t cut; /* rows that are cut, a bit each; whose tokens are masked */
    const uint32_t *mask[N];

    /* Waits for a phase; not if it is all over. */
    FS_DEVICE_MEMBER bool wait(unsigned long long *barrier, int32_t parity) const {
        while (!barrier_wait_for(shared_address(barrier), (uint32_t)parity, 1000))
            if (*(volatile const int32_t *)&over) return false;
        return !*(volatile const int32_t *)&over;
    }
};

/* Bytes from one row of H to the next: eight lanes of two rows read 16 bytes each in banks of their own. */
FS_CORE int64_t screened_pitch(int64_t records) {
    return records * FS_SCREEN_SPAN * 2 + 16;
}

/* Floats of a record and row: of 4 bits the norm of each chunk, squared, and its offset; of 8 bits the norm. */
template <int BITS> constexpr int NORMS = BITS == 4 ? 4 : 1;

template <int BITS, int N> struct fs_screened_room {
    char *h;
    float *norm;
    fs_screened_state<N> *state;

    FS_DEVICE_MEMBER fs_screened_room(char *shared, int64_t records) {
        h = shared;
        norm = (float *)(shared + N * screened_pitch(records));
        state = (fs_screened_state<N> *)(norm + NORMS<BITS> * N * records);
    }

    FS_DEVICE_MEMBER const fs_draw &draw(int32_t b) const { return state->draw[b]; }
    FS_DEVICE_MEMBER float slack(int32_t b) const { return state->slack[b]; }
    FS_DEVICE_MEMBER const char *hidden(const fs_cuda_args &args, int32_t b) const {
        return h + b * screened_pitch(args.screen.of.records);
    }
};

/* Rows of H to shared memory, zeros behind their columns and behind the last row. By the warps of dot products. */
template <int BITS, int N> FS_DEVICE void load_hidden(const fs_cuda_args &args, const fs_screened_room<BITS, N> &room) {
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const int64_t records = args.screen.of.records, pitch = screened_pitch(records);
    const int32_t columns = (int32_t)records * FS_SCREEN_SPAN, dim = (int32_t)args.head.dim; /* a multiple of 8 */
    for (int32_t b = 0; b < N; b++) {
        const char *row = matrix_row(&hidden, b < args.rows ? args.first_row + b : args.first_row);
        for (int32_t k = 8 * (int32_t)threadIdx.x; k < columns; k += 8 * 32 * FS_DOTS)
            copy_some<16>(shared_address(room.h + b * pitch + 2 * k), k < dim ? row + 2 * k : row,
                          b < args.rows && k < dim ? 16 : 0);
    }
    wait_for_copies();
}

/* What bounds, and for 4 bits sums, need of every 64 or 128 columns of H. Rounded up. By the same warps. */
template <int BITS, int N> FS_DEVICE void find_norms(const fs_screen &s, const fs_screened_room<BITS, N> &room) {
    constexpr int CHUNKS = BITS == 4 ? 2 : 1, COLUMNS = FS_SCREEN_SPAN / CHUNKS;
    const int32_t pitch = (int32_t)screened_pitch(s.records);
    for (int32_t i = threadIdx.x; i < N * (int32_t)s.records * CHUNKS; i += 32 * FS_DOTS) {
        const int32_t b = i % N, group = i / N;
        const uint4 *eight = (const uint4 *)(room.h + b * pitch + group * COLUMNS * 2);
        float square = 0.0f, sum = 0.0f;
#pragma unroll 2
        for (int k = 0; k < COLUMNS / 2; k++) {
            const uint32_t pair = (&eight[k / 4].x)[k % 4];
            const float x = __uint_as_float(pair << 16), y = __uint_as_float(pair & 0xFFFF0000u);
            square = fmaf(x, x, fmaf(y, y, square));
            sum += x + y;
        }
        square = square * (1.0f + 0x1p-15f) + 1e-30f; /* 128 sums, each off by 2^-24 */
        float *to = room.norm + group * (NORMS<BITS> / CHUNKS) * N + b;
        to[0] = BITS == 4 ? square : sqrtf(square) * (1.0f + 0x1p-20f);
        if (BITS == 4) to[N] = -FS_OFFSET * sum;
    }
}

/* Slack of the rows' bounds; by the judges. A row whose norm is not finite, or too large for bounds, has none. */
template <int BITS, int N> FS_DEVICE void open_bounds(const fs_cuda_args &args, const fs_screened_room<BITS, N> &room) {
    constexpr int CHUNKS = BITS == 4 ? 2 : 1;
    const fs_screen &s = args.screen.of;
    const int32_t warp = (int32_t)threadIdx.x / 32 - FS_DOTS, lane = threadIdx.x & 31;
    for (int32_t b = warp; b < N; b += FS_JUDGES) {
        float square = 0.0f; /* of norms that are rounded up: 2^-20 is room for all sums */
        for (int32_t group = lane; group < (int32_t)s.records * CHUNKS; group += 32) {
            const float norm = room.norm[group * (NORMS<BITS> / CHUNKS) * N + b];
            square += BITS == 4 ? norm : norm * norm;
        }
        for (int apart = 16; apart; apart /= 2) square += __shfl_xor_sync(~0u, square, apart);
        const bool known = square * (1.0f + 0x1p-10f) < FS_SCREEN_NORM_MOST;
        room.state->slack[b] = known ? row_slack(s.dim, square) : INFINITY;
        /* Its list is too long from the start. */
        if (!known && draws(room.state->draw[b]) && blockIdx.x == 0)
            atomicMax(&args.work[b].max, FS_CUDA_SCREENED + 1u);
    }
}

#endif
