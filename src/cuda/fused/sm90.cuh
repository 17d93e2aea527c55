/* sm90.cuh - the tile of the fused kernel for Hopper: logits of 128 tokens x N rows in the registers of one or two
 * warpgroups, from W and H streamed through shared memory by the copy engine.
 *
 *         W tile --TMA--> ring --wgmma--> accumulators   (the rest: fused.cuh)
 *         H tile --TMA-->
 *
 * V is on wgmma's M, so a small batch wastes no tensor time. H is streamed again for every tile from L2; at N >= 96 two
 * CTAs share each H tile by multicast, or L2 would be the limit.
 *
 * One K order for every token and every N (fs_cuda_k_order), accumulated in one instruction shape per 16 of K. So a
 * logit does not depend on the batch, the shard or its token's id. */
#ifndef FS_CUDA_SM90_CUH
#define FS_CUDA_SM90_CUH

#include "cuda/fused/direct.cuh"
#include "cuda/device/wgmma.cuh"

typedef void (*fs_cuda_sm90_kernel)(const fs_cuda_maps, const fs_cuda_args, int32_t);

/* The kernels of one kind, each in a file of its own, which take minutes to compile: of one shape, for W in bf16 or
 * f16. */
fs_cuda_sm90_kernel fs_cuda_sm90_logits(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_tokens(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_masses(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_shaped(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_kept(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_listed(int64_t shape, bool f16);
fs_cuda_sm90_kernel fs_cuda_sm90_grouped(int64_t shape, bool f16);

namespace {

constexpr int ATOM = 64; /* K elements in 128 bytes, the width of a swizzled row */
constexpr int BOX = 16;  /* rows of the smaller box of W, for tiles at the ends of a shard */

/* One instantiation: ROWS rows, CTAS that share H, DEPTH stages of K_ATOMS * 64 in K, OPEN wgmma groups left in flight,
 * consumers in GANGS teams. Two teams are two warpgroups with a tile each, all 128 tokens of it; in one team they share
 * it; 0: so they do, and all warps race (direct.cuh). FOR: what it is for. */
template <int ROWS, int CTAS, int DEPTH, int K_ATOMS, int OPEN, int GANGS, int DTYPE = FS_BF16,
          fs_cuda_kind FOR = FS_CUDA_TOKENS>
struct tile {
    static constexpr int N = ROWS, CLUSTER = CTAS, STAGES = DEPTH, ATOMS = K_ATOMS, INFLIGHT = OPEN,
                         TEAMS = GANGS ? GANGS : 1;
    static constexpr bool DIRECT = GANGS == 0;
    static constexpr fs_cuda_kind KIND = FOR;
    static constexpr int SCORERS = 3;
    static constexpr int FILLERS = 1; /* arrivals that fill a stage, beside the bytes */
    static constexpr int W_BYTES = FS_CUDA_TILE * 128 * ATOMS, H_BYTES = N * 128 * ATOMS;
    static constexpr int H_START = STAGES * W_BYTES;
    static constexpr int LOGITS_START = H_START + STAGES * H_BYTES;
    static constexpr int STATE_START = LOGITS_START + (DIRECT ? N * FS_PITCH * (int)sizeof(float) : 0);
    static constexpr int BARRIER_START = (STATE_START + (int)sizeof(fs_tile_state<N, SCORERS>) + 15) / 16 * 16;
    static constexpr int BYTES = BARRIER_START + 2 * STAGES * 8 + ROUNDS_BYTES<TEAMS>;
    static_assert(BYTES <= 232448, "a block of sm_90 has 227 KB of shared memory");
    typedef fs_cuda_maps source;
    template <int TYPE, fs_cuda_kind OTHER> using same = tile<ROWS, CTAS, DEPTH, K_ATOMS, OPEN, GANGS, TYPE, OTHER>;

    /* 384 threads start with 168 registers each. More than 384 * 168 in all, and the consumers would wait for them for
     * ever. */
    static constexpr int FEWER = N > 256 ? 88 : 104, MORE = N > 256 ? 208 : 200;
    static_assert(128 * FEWER + 256 * MORE <= FS_THREADS * 168, "registers of a CTA");

    static FS_DEVICE_MEMBER void give_registers() { set_fewer_registers<FEWER>(); }

    static FS_DEVICE_MEMBER void take_registers() { set_more_registers<MORE>(); }

    /* ---------------------------------------------------------------------------------------------- load ---- */

    static FS_DEVICE_MEMBER void load_w(const fs_cuda_maps &maps, const piece &p, int32_t row, int32_t k, uint32_t w,
                                        uint32_t barrier) {
        const int32_t boxes = (p.count + BOX - 1) / BOX;
        barrier_expect(barrier, ATOMS * (boxes * BOX + N) * 128);
        for (int atom = 0; atom < ATOMS; atom++, w += FS_CUDA_TILE * 128) {
            const int32_t x = (k * ATOMS + atom) * ATOM;
            if (boxes == FS_CUDA_TILE / BOX) copy_box(w, &maps.w_tile, barrier, x, row);
            else
#pragma unroll 1
                for (int32_t box = 0; box < boxes; box++)
                    copy_box(w + box * BOX * 128, &maps.w_box, barrier, x, row + box * BOX);
        }
    }

    /* In a cluster each CTA fetches its share of H and sends it to all. */
    static FS_DEVICE_MEMBER void load_h(const fs_cuda_maps &maps, int32_t row, int32_t k, uint32_t h,
                                        uint32_t barrier) {
        const uint32_t rank = CLUSTER > 1 ? cluster_rank() : 0;
        for (int atom = 0; atom < ATOMS; atom++, h += N * 128) {
            const int32_t x = (k * ATOMS + atom) * ATOM;
            if constexpr (CLUSTER == 1) copy_box(h, &maps.h, barrier, x, row);
            else
                copy_box_to_all(h + rank * (N / CLUSTER) * 128, &maps.h, barrier, x,
                                row + (int32_t)rank * (N / CLUSTER), (1 << CLUSTER) - 1);
        }
    }

    /* What a stage holds of K, in stages: two of 64 are a slice. */
    static FS_DEVICE_MEMBER int32_t stage_at(const fs_cuda_args &args, int32_t step) {
        if constexpr (ATOMS == 2) return slice_at(args.k_order, step);
        return 2 * slice_at(args.k_order, step / 2) + step % 2;
    }

    /* In the first microseconds no more than 64 KB of W are on their way at once. The memory needs no more, and with a
     * full ring before it an instruction that comes from memory waits 4 us (the scorers were ready after 26 us, now
     * after 16; H200, 2026-11). */
    static constexpr int SLOW_STEPS = 14 * (2 / ATOMS), AT_ONCE = 65536 / W_BYTES;

    /* Fills the ring, piece by piece, K slice by K slice. One thread. */
    static FS_DEVICE_MEMBER void produce(const fs_cuda_maps &maps, const fs_cuda_args &args, char *shared, ring r) {
        if (threadIdx.x != 0) {
            if constexpr (CLUSTER > 1) cluster_wait();
            return;
        }
        const uint32_t w0 = shared_address(shared), h0 = w0 + H_START;
        const bool constant = args.head.flags & FS_HEAD_CONSTANT;
        async_proxy_fence();
        if (!constant) wait_for_earlier_launches();
        const share own = share_of<tile>(args);
        for (int32_t i = 0;; i++) {
            const piece p = piece_at<CLUSTER>(args, own, i);
            if (p.count < 0) {
                if (CLUSTER > 1 && i == 0) cluster_wait();
                return;
            }
            const int32_t row = p.first - (int32_t)args.head.first_token;
            for (int32_t step = 0; step < args.k_steps; step++) {
                const uint32_t barrier = r.full + 8 * r.stage;
                const int32_t k = stage_at(args, step);
                barrier_wait(r.empty + 8 * r.stage, r.parity);
                if (AT_ONCE < STAGES && !DIRECT && i == 0 && step >= AT_ONCE && step < SLOW_STEPS)
                    barrier_wait(r.full + 8 * ((step - AT_ONCE) % STAGES), (step - AT_ONCE) / STAGES & 1);
                load_w(maps, p, row, k, w0 + r.stage * W_BYTES, barrier);
                if (i == 0 && step == 0) {
                    if (constant) wait_for_earlier_launches();
                    if constexpr (CLUSTER > 1) cluster_wait();
                }
                load_h(maps, args.first_row + block_start(args), k, h0 + r.stage * H_BYTES, barrier);
                advance(&r);
            }
        }
    }

    /* ------------------------------------------------------------------------------------------------ dot ---- */

    static FS_DEVICE_MEMBER void advance(ring *r) {
        if (++r->stage == STAGES) r->stage = 0, r->parity ^= 1;
    }

    /* To step n of those a CTA's consumers take. */
    static FS_DEVICE_MEMBER void place(ring *r, int32_t n) {
        r->stage = n % STAGES;
        r->parity = n / STAGES & 1;
    }

    /* Gives a stage back to every producer that fills it. One arrival per warp and CTA. */
    static FS_DEVICE_MEMBER void release(const ring &r, int32_t stage) {
        const int32_t lane = threadIdx.x & 31;
        if constexpr (CLUSTER == 1) {
            if (lane == 0) barrier_arrive(r.empty + 8 * stage);
        } else if (lane < CLUSTER) barrier_arrive_at(r.empty + 8 * stage, lane);
    }

    /* The instructions of one stage. The first of a piece starts the sum, so that no accumulator lives from one piece
     * to the next: else ptxas finds reasons to serialise (C7520). */
    template <bool FIRST>
    static FS_DEVICE_MEMBER void dot_stage(float (&d)[TEAMS][N / 2], ring *r, uint32_t w, uint32_t h) {
        w += r->stage * (W_BYTES / 16);
        h += r->stage * (H_BYTES / 16);
        barrier_wait(r->full + 8 * r->stage, r->parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < ATOMS * ATOM / 16; i++) {
            const int atom = i / (ATOM / 16), k16 = i % (ATOM / 16);
            const uint64_t b = matrix_at(h, atom * N * 128 + k16 * 32);
#pragma unroll
            for (int m = 0; m < TEAMS; m++) {
                const uint64_t a = matrix_at(w, (atom * FS_CUDA_TILE + m * 64) * 128 + k16 * 32);
                if (FIRST && i == 0) fs_wgmma<N, DTYPE>::start(d[m], a, b);
                else fs_wgmma<N, DTYPE>::add(d[m], a, b);
            }
        }
        wgmma_commit();
        wgmma_wait<INFLIGHT>();
    }

    /* The accumulators of one piece. With INFLIGHT a stage is given back one step later, when the group of instructions
     * that reads it has ended. */
    static FS_DEVICE_MEMBER void dot(float (&d)[TEAMS][N / 2], ring *r, int32_t k_steps, char *shared, int32_t warp) {
        /* This warpgroup's tokens, all or 64, and all rows in stage 0. */
        const uint32_t w = matrix_start(shared_address(shared) + (TEAMS == 1 ? warp / 4 * 64 * 128 : 0)),
                       h = matrix_start(shared_address(shared) + H_START);
        dot_stage<true>(d, r, w, h);
        for (int32_t step = 1; step < k_steps; step++) {
            const int32_t previous = r->stage;
            if (!INFLIGHT) release(*r, previous);
            advance(r);
            dot_stage<false>(d, r, w, h);
            if (INFLIGHT) release(*r, previous);
        }
        wgmma_wait<0>();
        release(*r, r->stage);
        advance(r);
        /* The accumulators are final here and not before. */
#pragma unroll
        for (int i = 0; i < TEAMS * N / 2; i++) asm volatile("" : "+f"(d[i / (N / 2)][i % (N / 2)])::"memory");
    }
};

template <class T>
__global__ void __launch_bounds__(FS_THREADS, 1)
    fused(const __grid_constant__ fs_cuda_maps maps, const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    if constexpr (T::DIRECT) direct_kernel<T>(maps, args);
    else fused_kernel<T>(maps, args, shaped);
}

/* Of those for few pieces there are kernels for tokens alone. */
template <class T> constexpr fs_cuda_sm90_kernel kernel_of() {
    if constexpr (T::DIRECT && T::KIND != FS_CUDA_TOKENS) return NULL;
    else return fused<T>;
}

template <class... T> struct table {
    static constexpr fs_cuda_shape shapes[] = {
        {T::N, T::CLUSTER, T::STAGES, T::ATOMS *ATOM, T::TEAMS, T::BYTES, T::DIRECT}...};
    static constexpr int32_t COUNT = sizeof...(T);
    /* By whether W is f16. One type is enough for a report of what the compiler makes of them. */
#ifdef FS_CUDA_ONE_TYPE
    static constexpr int OTHER = FS_BF16;
#else
    static constexpr int OTHER = FS_F16;
#endif
    template <fs_cuda_kind KIND>
    static constexpr fs_cuda_sm90_kernel kernels[2][COUNT] = {
        {kernel_of<typename T::template same<FS_BF16, KIND>>()...},
        {kernel_of<typename T::template same<OTHER, KIND>>()...}};
};

/* Narrowest first, then those for few pieces. Above 256 rows a thread's accumulators are so many that another group in
 * flight has no registers. */
#ifdef FS_CUDA_FEW_WIDTHS /* for a report of what the compiler makes of them */
using family = table<tile<8, 1, 5, 2, 0, 2>, tile<128, 2, 3, 2, 0, 2>, tile<256, 2, 4, 1, 1, 1>, tile<8, 1, 5, 2, 0, 0>,
                     tile<32, 1, 4, 2, 0, 0>>;
#else
using family =
    table<tile<8, 1, 5, 2, 0, 2>, tile<16, 1, 5, 2, 0, 2>, tile<32, 1, 5, 2, 0, 2>, tile<48, 1, 4, 2, 0, 2>,
          tile<64, 1, 4, 2, 0, 2>, tile<96, 2, 3, 2, 0, 2>, tile<128, 2, 3, 2, 0, 2>, tile<144, 2, 5, 1, 1, 2>,
          tile<160, 2, 5, 1, 1, 2>, tile<176, 2, 5, 1, 1, 1>, tile<192, 2, 5, 1, 1, 1>, tile<208, 2, 4, 1, 1, 1>,
          tile<224, 2, 4, 1, 1, 1>, tile<240, 2, 4, 1, 1, 1>, tile<256, 2, 4, 1, 1, 1>, tile<272, 2, 3, 1, 0, 1>,
          tile<288, 2, 3, 1, 0, 1>, tile<304, 2, 3, 1, 0, 1>, tile<320, 2, 3, 1, 0, 1>, tile<8, 1, 5, 2, 0, 0>,
          tile<16, 1, 5, 2, 0, 0>, tile<32, 1, 4, 2, 0, 0>>;
#endif

} // namespace

#endif
