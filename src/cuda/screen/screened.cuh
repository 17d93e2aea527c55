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
 * place of thousands (docs/explain/screens.md). */
#ifndef FS_CUDA_SCREENED_CUH
#define FS_CUDA_SCREENED_CUH

#include "cuda/screen/history.cuh"
#include "cuda/screen/judge.cuh"

/* RULES: some rows may have rules. */
template <int BITS, int N, bool RULES>
__global__ void __launch_bounds__(FS_SCREENED_THREADS, 1)
    screened(const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    extern __shared__ __align__(128) char shared[];
    const fs_screen &s = args.screen.of;
    const fs_screened_room<BITS, N> room(shared, s.records);
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
        room.state->over = 0;
        barrier_init_fence();
    }
    wait_for_earlier_launches();
    const bool leaves = leaves_to_weights(args);
    if (blockIdx.x == 0 && threadIdx.x == 0 && args.first_row == 0) *args.screen.open = leaves;
    if (warp < FS_DOTS) {
        load_hidden<BITS, N>(args, room);
        if (leaves) return;
        named_barrier(1, 32 * FS_DOTS);
        find_norms<BITS, N>(s, room);
        named_barrier_pass(3, FS_SCREENED_THREADS);
        named_barrier(1, 32 * FS_DOTS);
        let_next_launch_begin();
        dots.run(room);
    } else if (!leaves) {
        fs_judge<BITS, N, RULES> judge = {{args, room, shaped != 0, true}, 0, 0, 0, false, 0, {}, 0xFFFF};
        judge.run();
    }
}

#endif
