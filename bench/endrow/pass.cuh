/* pass.cuh - a prototype: a pass over W that leaves strip maxima and the logits of strips that reach a floor.
 * docs/notes/gpu-rows.md, "One record, one end" has what it showed.
 *
 *   consumers: dot products --> maxima of strips --> shared memory      (a strip: the 16 or 32 tokens of a warp)
 *                           \-> strips whose maximum reaches the row's floor --> logits, at fixed places in memory
 *   scorers:   maxima --> memory, in order of tokens;  round by round: k-th largest maximum of a row --> its floor
 *
 * A round is the tiles that all CTAs take at the same time. When all maxima of a round are in memory, one warp finds the
 * k-th largest of those so far, a lower bound of the row's k-th largest logit. So every strip with a token of the k
 * largest is stored, and the end proves that by the floor alone. A stale floor is lower: more is stored. */
#ifndef ENDROW_PASS_CUH
#define ENDROW_PASS_CUH

#include "cuda/fused/sm90.cuh"

constexpr int ENDROW_ROUNDS = 16; /* that raise floors */
constexpr int ENDROW_MOST_K = 256;

typedef struct endrow_record {
    float *logits; /* [rows][stride]; strips whose maximum is below the floor hold what they held before */
    int64_t stride;
    float *most; /* [rows][strips]: tile by tile, strip by strip */
    int64_t strips;
    uint32_t *floor; /* [rows] ordered floats, 0: none. These three are zero between calls */
    uint32_t *told;  /* [ENDROW_ROUNDS] scorers whose maxima of a round are in memory */
    uint32_t *set;   /* [ENDROW_ROUNDS] rows whose floor of a round is */
    const int32_t *top_k;
    int32_t tiles, rounds; /* below 0: nothing is stored, to see what storing takes */
} endrow_record;

namespace {

template <class T> struct pass_state {
    static constexpr int N = T::N, STRIPS = FS_STRIPS / T::TEAMS, BUFFERS = T::TEAMS;
    static constexpr int OWNED = (N + 127) / 128, LIST = ENDROW_MOST_K + 132 * STRIPS;
    float most[BUFFERS][STRIPS][N];
    float floor[(N + 31) / 32 * 32]; /* +inf behind the rows */
    uint32_t list[OWNED][LIST];      /* the largest maxima of a row this CTA sets the floor of */
    int32_t count[OWNED];
    uint32_t low[OWNED];
};

template <class T> constexpr int PASS_BARRIERS = (T::STATE_START + (int)sizeof(pass_state<T>) + 15) / 16 * 16;
template <class T> constexpr int PASS_BYTES = PASS_BARRIERS<T> + 2 * T::STAGES * 8 + ROUNDS_BYTES<2>;

/* The maxima of a warp's strips to shared memory, and the rows that reach their floor to memory. */
template <class T>
FS_DEVICE void keep_strips(const float (&d)[T::TEAMS][T::N / 2], pass_state<T> *state, const fs_cuda_args &args,
                           const endrow_record &record, const piece &p, int32_t buffer, int32_t strip, int32_t t) {
    constexpr int N = T::N, S = T::TEAMS;
    const int32_t column = 2 * (threadIdx.x & 3);
    float *to = record.logits + column * record.stride + p.first + t, *most = state->most[buffer][strip];
#pragma unroll
    for (int q = 0; q < (N + 31) / 32; q++) {
        float v[8];
        asm volatile("" ::: "memory");
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (4 * q + i / 2) + (i & 1);
            v[i] = -INFINITY;
#pragma unroll
            for (int m = 0; m < S; m++)
                if (at < N / 2) v[i] = fmaxf(v[i], fmaxf(d[m][at], d[m][at + 2]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = keep_max(v[i], v[i + 4], 16);
        v[0] = keep_max(v[0], v[2], 8);
        v[1] = keep_max(v[1], v[3], 8);
        const float m = keep_max(v[0], v[1], 4);
        const int32_t b = 32 * q + halved_row();
        if (b < N) most[b] = m;
        const uint32_t lanes = __ballot_sync(~0u, m >= ((volatile float *)state->floor)[b]);
        if (!lanes) continue;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int at = 16 * q + i;
            if (at >= N / 2) continue;
            const int row = at / 4 * 8 + (at & 1), on = at & 2 ? 8 : 0, in = row - 32 * q + column;
            const int lane_of = (in & 16) + (in & 8) + (in >> 1 & 3) + (in & 1) * 4; /* whose halved_row() is `in` */
            if (!(lanes >> lane_of & 1)) continue;
#pragma unroll
            for (int mm = 0; mm < S; mm++)
                if (t + on + 64 * mm < p.count) to[row * record.stride + on + 64 * mm] = d[mm][at];
        }
    }
}

template <class T>
FS_DEVICE void consume_strips(const fs_cuda_args &args, const endrow_record &record, pass_state<T> *state, char *shared,
                              ring r, const rounds &turn) {
    constexpr int N = T::N, TEAMS = T::TEAMS;
    const int32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    const int32_t team = warp / (FS_CONSUMERS / TEAMS), strip = warp % (FS_CONSUMERS / TEAMS);
    const int32_t t = strip * 16 + lane / 4;
    float d[TEAMS][N / 2];
    walk<T> at(args);
    while (at.next(at.i < 0 ? 1 + team : TEAMS)) {
        wait_turn<TEAMS>(turn, at.i);
        if constexpr (TEAMS > 1) T::place(&r, at.i * args.k_steps);
        T::dot(d, &r, args.k_steps, shared, warp);
        end_turn<TEAMS>(turn, at.i);
        transform<N, TEAMS>(d, args.head, false, at.p, t);
        const int32_t buffer = at.i % TEAMS;
        wait_ready<TEAMS>(turn, at.i); /* the maxima that lay there are in memory */
        keep_strips<T>(d, state, args, record, at.p, buffer, strip, t);
        __syncwarp();
        if (lane == 0) barrier_arrive(turn.first + 8 * buffer);
    }
}

/* The floors of a round, once its maxima are in memory. */
template <class T> struct floors {
    const endrow_record &record;
    pass_state<T> *state;
    int32_t rows, warp, lane, round, found;

    FS_DEVICE_MEMBER floors(const endrow_record &record, pass_state<T> *state, int32_t rows)
        : record(record), state(state), rows(rows), warp(scorer_thread<3>() / 32), lane(threadIdx.x & 31), round(0),
          found(0) {}

    /* Raises the floor of row b, of which this CTA has list j. */
    FS_DEVICE_MEMBER void raise(int32_t j, int32_t b) const {
        constexpr int STRIPS = pass_state<T>::STRIPS, LIST = pass_state<T>::LIST, AT_ONCE = 4;
        const int32_t from = round * (int32_t)gridDim.x, tiles = min((int32_t)gridDim.x, record.tiles - from);
        const int32_t k = record.top_k[b], fours = tiles * STRIPS / 4;
        const float4 *own = (const float4 *)(record.most + b * record.strips + (int64_t)from * STRIPS);
        uint32_t *list = state->list[j], low = state->low[j];
        int32_t n = state->count[j];
#pragma unroll 1
        for (int32_t i = 0; i < fours; i += 32 * AT_ONCE) {
            float4 v[AT_ONCE];
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const int32_t at = i + 32 * e + lane;
                v[e] = at < fours ? __ldcg(own + at) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            }
#pragma unroll
            for (int e = 0; e < 4 * AT_ONCE; e++) {
                const uint32_t x = ordered_float((&v[e / 4].x)[e % 4]);
                const bool in = x > low && (&v[e / 4].x)[e % 4] > -INFINITY;
                const uint32_t all = __ballot_sync(~0u, in);
                const int32_t place = n + __popc(all & ((1u << lane) - 1));
                if (in && place < LIST) list[place] = x;
                n += __popc(all);
            }
        }
        n = min(n, LIST); /* of a part of the maxima the k-th largest is a bound too */
        __syncwarp();
        if (k > 0 && k <= ENDROW_MOST_K && n >= k) {
            uint32_t kth = 0;
#pragma unroll 1
            for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
                int32_t count = 0;
#pragma unroll 4
                for (int32_t i = 0; i < n; i += 32)
                    count +=
                        __popc(__ballot_sync(~0u, i + lane < n && list[i + lane < n ? i + lane : 0] >= (kth | bit)));
                if (count >= k) kth |= bit;
            }
            int32_t left = 0;
#pragma unroll 1
            for (int32_t i = 0; i < n; i += 32) {
                const uint32_t x = i + lane < n ? list[i + lane] : 0;
                const uint32_t all = __ballot_sync(~0u, x > kth);
                if (x > kth) list[left + __popc(all & ((1u << lane) - 1))] = x;
                left += __popc(all);
                __syncwarp();
            }
            for (int32_t i = left + lane; i < k; i += 32) list[i] = kth;
            __syncwarp();
            n = k;
            low = kth;
            if (lane == 0) *(volatile uint32_t *)&record.floor[b] = kth;
        }
        if (lane == 0) {
            state->count[j] = n;
            state->low[j] = low;
            __threadfence();
            atomicAdd(&record.set[round], 1u);
        }
        __syncwarp();
    }

    FS_DEVICE_MEMBER void advance() {
        if (round >= record.rounds) return;
        if (!found) {
            if (__shfl_sync(~0u, load_relaxed(&record.told[round]), 0) < 3 * gridDim.x) return;
            __threadfence();
            for (int32_t j = warp; (int32_t)(blockIdx.x + j * gridDim.x) < rows; j += 3)
                raise(j, (int32_t)(blockIdx.x + j * gridDim.x));
            found = 1;
        }
        if ((int32_t)__shfl_sync(~0u, load_relaxed(&record.set[round]), 0) < rows) return;
        for (int32_t b = scorer_thread<3>(); b < rows; b += 96) {
            const uint32_t f = load_relaxed(&record.floor[b]);
            if (f) ((volatile float *)state->floor)[b] = float_of_ordered(f);
        }
        __syncwarp();
        found = 0;
        round++;
    }
};

template <class T>
FS_DEVICE void publish_maxima(const fs_cuda_args &args, const endrow_record &record, pass_state<T> *state,
                              const rounds &turn) {
    constexpr int STRIPS = pass_state<T>::STRIPS, TEAMS = T::TEAMS, PADDED = (T::N + 31) / 32 * 32;
    const int32_t thread = scorer_thread<3>(), lane = thread & 31;
    for (int32_t b = thread; b < PADDED; b += 96)
        state->floor[b] = b < args.rows && record.rounds >= 0 ? -INFINITY : INFINITY;
    if (thread < pass_state<T>::OWNED) state->count[thread] = 0, state->low[thread] = 0;
    named_barrier(1, 96);
    if (lane == 0)
        for (int team = 0; team < TEAMS; team++) barrier_arrive(turn.ready + 16 * team);
    floors<T> bounds(record, state, args.rows);
    walk<T> at(args);
    while (at.next()) {
        const int32_t buffer = at.i % TEAMS, tile = at.p.first / FS_CUDA_TILE;
        /* One lane decides: the others' clocks may run out a moment earlier or later. */
        while (!__shfl_sync(~0u, barrier_wait_for(turn.first + 8 * buffer, at.i / TEAMS & 1, 1000), 0))
            bounds.advance();
        __syncwarp();
        barrier_wait(turn.first + 8 * buffer, at.i / TEAMS & 1); /* every lane sees what the consumers wrote */
        if (at.p.count > 0)
            for (int32_t b = thread; b < args.rows; b += 96) {
                float4 *to = (float4 *)(record.most + b * record.strips + (int64_t)tile * STRIPS);
                const float(*most)[T::N] = state->most[buffer];
#pragma unroll
                for (int i = 0; i < STRIPS / 4; i++)
                    to[i] = make_float4(most[4 * i][b], most[4 * i + 1][b], most[4 * i + 2][b], most[4 * i + 3][b]);
            }
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(turn.ready + 16 * buffer);
            if (at.i < record.rounds) {
                __threadfence();
                atomicAdd(&record.told[at.i], 1u);
            }
        }
        __syncwarp();
    }
}

template <class T>
__global__ void __launch_bounds__(FS_THREADS, 1)
    pass(const __grid_constant__ fs_cuda_maps maps, const __grid_constant__ fs_cuda_args args,
         const __grid_constant__ endrow_record record) {
    extern __shared__ __align__(1024) char shared[];
    pass_state<T> *state = (pass_state<T> *)(shared + T::STATE_START);
    const uint32_t full = shared_address(shared + PASS_BARRIERS<T>), empty = full + 8 * T::STAGES;
    const rounds turn(empty + 8 * T::STAGES);
    if (threadIdx.x == 0) {
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(full + 8 * s, T::FILLERS);
            barrier_init(empty + 8 * s, FS_CONSUMERS / T::TEAMS * T::CLUSTER);
        }
        for (int team = 0; team < T::TEAMS; team++) {
            barrier_init(turn.first + 8 * team, FS_CONSUMERS / T::TEAMS);
            barrier_init(turn.ready + 16 * team, 3);
            barrier_init(turn.next + 16 * team, FS_CONSUMERS / T::TEAMS);
        }
        barrier_init_fence();
    }
    if (threadIdx.x < 32) named_barrier_pass(2, FS_THREADS);
    else named_barrier(2, FS_THREADS);
    if constexpr (T::CLUSTER > 1) {
        cluster_arrive();
        if (threadIdx.x >= 32) cluster_wait();
    }
    if (threadIdx.x < 128) {
        T::give_registers();
        if (threadIdx.x < 32) T::produce(maps, args, shared, ring{full, empty, 1, 0});
        else {
            wait_for_earlier_launches();
            let_next_launch_begin();
            publish_maxima<T>(args, record, state, turn);
        }
    } else {
        T::take_registers();
        consume_strips<T>(args, record, state, shared, ring{full, empty, 0, 0}, turn);
    }
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_barrier();
}

} // namespace

#endif
