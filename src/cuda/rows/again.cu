/* again.cu - rows that were drawn and whose winner top-p leaves out (raced.cu): the tokens ahead of it race, until the
 * winner stays. Whoever stays is ahead of whoever does not, so nobody is missed, and where the nucleus ends need not be
 * known. Of rows with few tokens ahead one CTA has those, listed; of others a team has the whole row in shared
 * memory. */
#include "cuda/cuda_launch.h"
#include "cuda/device/decided.cuh"
#include "cuda/rows/draw.cuh"
#include "cuda/rows/raced.cuh"
#include "cuda/rows/teams.cuh"

namespace {

constexpr int AGAIN_TEAMS = 32; /* which take rows in turn: at most one row in a few is raced again */

/* A row in the shared memory of each CTA of its team; its slice is behind it. */
struct again_row : race_shared {
    raced_row r;
    fs_cuda_ahead of[FS_CUDA_TEAM];
    int32_t stays;
    uint32_t listed, scrap[32];
};

constexpr int AGAIN_BYTES = (sizeof(again_row) + 15) / 16 * 16;

FS_DEVICE again_row *this_again() {
    return (again_row *)row_shared();
}

/* The row and its first winner. */
FS_DEVICE void open_again(again_row *a, int32_t b) {
    raced_row *r = &a->r;
    if (threadIdx.x == 0) r->b = b;
    __syncthreads();
    open_raced(r, a->scrap);
    if (threadIdx.x == 64) r->mass = row_mass(&r->args.work[b]);
    else if (threadIdx.x == 96) r->ahead = *whole_of(r->args, b);
    __syncthreads();
    if (threadIdx.x == 0) ask_raced(r);
}

/* Before those ahead of the winner race; returns whose keys are from here on. Ties are left out with it, or not. */
FS_DEVICE uint64_t leave_winner(raced_row *r) {
    const uint64_t own = r->args.batch.flags & FS_KEEP_TIES_TOP_P ? r->own | 0xFFFFFFFFu : r->own;
    __syncthreads(); /* all have read */
    if (threadIdx.x == 0) r->ahead = {0, r->ahead.largest, 0, 0, 0, r->ahead.listed, 0};
    return own + 1;
}

/* One thread. */
FS_DEVICE void take_winner(raced_row *r, uint64_t key) {
    const uint32_t token = score_key_token(key);
    r->key = key;
    r->x = key ? kept_logits(r->args, r->b)[token - (uint32_t)r->args.head.first_token] : NAN;
    r->own = key ? order_key(r->x, token) : 0;
}

/* One thread. */
FS_DEVICE void end_again(raced_row *r, int32_t stays) {
    summarise(r);
    if (stays > 0) write_drawn(r);
    close_raced(r, stays < 0);
}

/* -------------------------------------------------------------------------------------------------------- team ---- */

/* Its slice of the row. */
FS_DEVICE void open_slice(again_row *a, int32_t b) {
    const fs_cuda_args &args = a->r.args;
    const row_view view = view_of(args, team_rank(), AGAIN_BYTES);
    const slice_source from = {(const char *)kept_logits(args, b), FS_FORMAT_F32, view.low, NULL,
                               (float *)(row_shared() + AGAIN_BYTES)};
    const bool copies = is_copied(args.head, from, view.x);
    if (copies) begin_copy(from, view.x);
    open_again(a, b);
    if (threadIdx.x == 0) {
        const fs_row_rules &rules = a->r.rules;
        const float inverse = rules.inverse_temperature;
        a->race.y = view.x;
        a->race.seed = rules.seed;
        a->race.position = rules.position;
        a->race.substream = rules.substream;
        a->race.inverse = inverse;
        a->race.temperature = rules.temperature;
        a->race.greedy = 0;
        a->race.kind = FS_NOISE_EXACT;
        a->race.top = float_of_ordered(a->r.ahead.largest) * inverse;
        a->race.first = 0;
        a->race.count = 1;
    }
    if (copies) end_copy(args.head, from, view.x);
    else load_slice(args.head, from, view.x);
    __syncthreads();
}

/* Who is ahead of the winner, of all slices; whether it stays. */
FS_DEVICE int32_t look_again(again_row *a) {
    raced_row *r = &a->r;
    const row_slice s = a->race.y;
    raced_ahead ahead(r, true);
    const int32_t first = s.base - (int32_t)r->args.head.first_token;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < s.blocks * (FS_CUDA_TILE / 4); i += blockDim.x)
        ahead.look(s.quad(i), first + 4 * i);
    ahead.add_to(&r->ahead);
    __syncthreads();
    if ((int32_t)threadIdx.x < team_size()) *at_peer(&a->of[team_rank()], (int32_t)threadIdx.x) = r->ahead;
    team_barrier();
    if (threadIdx.x == 0) {
        fs_cuda_ahead all = {0, r->ahead.largest, 0, 0, 0, 0, 0};
        for (int32_t i = 0; i < team_size(); i++) {
            all.weight += a->of[i].weight;
            all.larger += a->of[i].larger;
            all.equal += a->of[i].equal;
            all.same += a->of[i].same;
        }
        r->ahead = all;
        a->stays = r->own ? winner_stays(r) : -1;
    }
    __syncthreads();
    return a->stays;
}

FS_DEVICE void race_by_team(again_row *a, int32_t b) {
    raced_row *r = &a->r;
    int32_t stays = 0;
    open_slice(a, b);
#pragma unroll 1
    while (stays == 0) {
        const uint64_t from = leave_winner(r);
        if (threadIdx.x == 0) a->race.last = from;
        __syncthreads();
        race_begin();
        race_end();
        team_barrier();
        if (threadIdx.x == 0) take_winner(r, winner_of(0));
        __syncthreads();
        stays = look_again(a);
    }
    if (team_rank() == 0 && threadIdx.x == 0) end_again(r, stays);
}

/* -------------------------------------------------------------------------------------------------------- list ---- */

/* What slices have listed. */
FS_DEVICE void take_list(again_row *a, unsigned long long *list) {
    const fs_cuda_args &args = a->r.args;
    const uint32_t where = a->r.ahead.where;
    const int32_t slices = (int32_t)(where % 64), place = (int32_t)(where / 64);
    const int32_t all = raced_room(&args.result), room = all / slices, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) a->listed = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = threadIdx.x / 32; i < slices; i += (int32_t)blockDim.x / 32) {
        const uint32_t count = slices_of(args, place, slices)[i].listed;
        const unsigned long long *entry = args.raced.entry + (int64_t)place * all + i * room;
        const uint32_t start = __shfl_sync(~0u, lane == 0 ? atomicAdd(&a->listed, count) : 0, 0);
#pragma unroll 4
        for (uint32_t e = (uint32_t)lane; e < count; e += 32) list[start + e] = entry[e];
    }
    __syncthreads();
}

/* The race of tokens from a key on; the winner's score. */
FS_DEVICE uint64_t race_list(again_row *a, const unsigned long long *list, uint64_t from) {
    const fs_draw &draw = a->r.draw;
    const int32_t count = (int32_t)a->listed;
    if (threadIdx.x == 0) a->room.bound[0] = 0, a->room.best[0] = 0;
    __syncthreads();
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < count; i += blockDim.x) {
            const uint64_t key = list[i];
            if (key < from) continue;
            const uint32_t token = order_key_token(key);
            const float y = order_key_logit(key);
            const fs_drawn drawn = draw_token(draw.noise, token);
            const fs_score score = score_of(y * draw.inverse, noise_about(drawn));
            if (!pass) atomicMax(&a->room.bound[0], ordered_float(score.least));
            else if (!(score.most < reached(0))) raise_best(&a->room.best[0], race_key(draw, y, token, drawn));
        }
        __syncthreads();
    }
    return a->room.best[0];
}

FS_DEVICE void race_by_list(again_row *a, int32_t b) {
    raced_row *r = &a->r;
    unsigned long long *list = (unsigned long long *)(row_shared() + AGAIN_BYTES);
    int32_t stays = 0;
    open_again(a, b);
    take_list(a, list);
#pragma unroll 1
    while (stays == 0) {
        const uint64_t key = race_list(a, list, leave_winner(r));
        if (threadIdx.x == 0) take_winner(r, key);
        __syncthreads();
        raced_ahead ahead(r, true);
        const uint64_t own = r->own;
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < (int32_t)a->listed; i += blockDim.x) ahead.look(list[i], own);
        ahead.add_to(&r->ahead);
        __syncthreads();
        if (threadIdx.x == 0) a->stays = r->own ? winner_stays(r) : -1;
        __syncthreads();
        stays = a->stays;
    }
    if (threadIdx.x == 0) end_again(r, stays);
    __syncthreads(); /* before the next row */
}

__global__ void __launch_bounds__(FS_CUDA_TEAM_THREADS, 2) race_again(const __grid_constant__ fs_cuda_args args) {
    again_row *a = this_again();
    const int32_t size = args.team.size, teams = (int32_t)gridDim.x / size;
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += blockDim.x)
        ((uint32_t *)&a->r.args)[i] = ((const uint32_t *)&args)[i];
    if (threadIdx.x == 0) open_team(size);
    __syncthreads();
    wait_for_earlier_launches();
    let_next_launch_begin();
    if (is_decided(args)) return;
    const int32_t *open = a->r.args.lists.open, rows = open[FS_AGAIN_BY_TEAM], listed = open[FS_AGAIN_BY_CTA];
#pragma unroll 1
    for (int32_t place = (int32_t)blockIdx.x / size; place < rows; place += teams) {
        team_barrier(); /* all of the team are there, and none is at the row before */
        race_by_team(a, *again_at(a->r.args, place));
    }
    __syncthreads();
    /* From the last CTA on, since the first ones are at rows of teams. */
#pragma unroll 1
    for (int32_t place = (int32_t)(gridDim.x - 1 - blockIdx.x); place < listed; place += (int32_t)gridDim.x)
        race_by_list(a, *again_at(a->r.args, a->r.args.rows - 1 - place));
}

} // namespace

extern "C" int32_t fs_cuda_again_shared(void) {
    return AGAIN_BYTES + FS_CUDA_SHORT * (int32_t)sizeof(unsigned long long);
}

extern "C" cudaError_t fs_cuda_again_open(int32_t shared_bytes) {
    return cudaFuncSetAttribute(race_again, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

extern "C" cudaError_t fs_cuda_again_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    const int64_t teams = args->rows < AGAIN_TEAMS ? args->rows : AGAIN_TEAMS;
    config_of_teams(&config, attribute, teams, args->team, args->overlap, stream);
    return cudaLaunchKernelEx(&config, race_again, *args);
}
