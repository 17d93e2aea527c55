/* listed.cu - rows that are cut, by a screen. Of every token the pass over the screen has left an upper bound of its
 * logit in memory, and then:
 *
 *   leaders     tokens whose bounds are largest, computed from W: the k-th of them is not above the row's k-th, and
 *               none is above the row's largest, so top-k and min-p leave nobody below
 *   a list      of all tokens whose upper bounds are not below that, settled from W by the launch behind (settle.cuh)
 *   the end     of the row by its list, as where a pass over W has listed it (fused/cuts.cuh)
 *
 * A team of CTAs has a row's bounds in shared memory; one CTA ends it. */
#define FS_PHILOX_ROLLED
#define FS_WALK static __device__ __noinline__
#include "cuda/fused/cuts.cuh"
#include "cuda/rows/logits.cuh"
#include "cuda/rows/teams.cuh"
#include "cuda/screen/history.cuh"
#include "cuda/screen/row.cuh"

namespace {

/* --------------------------------------------------------------------------------------------------- listing ---- */

constexpr int PARTS = 256; /* of a row, whose largest bounds may be leaders' */

/* A row in the shared memory of each CTA of its team; its slice is behind it. */
struct listing {
    block_room block;
    fs_cuda_args args;
    fs_head plain; /* bounds are of what the head has made of logits */
    fs_row_rules rules;
    fs_draw draw;
    row_view view;
    int32_t b, leaders;
    float square[MOST_WARPS];
    uint32_t kth;
    unsigned long long part[PARTS];        /* order keys, of all CTAs; 0: none */
    unsigned long long leader[FS_LEADERS]; /* of these, the largest first */
    uint32_t least[FS_LEADERS];            /* a logit they are not below, an ordered float; 0: none. Of all CTAs */
};

constexpr int LISTING_BYTES = (sizeof(listing) + 15) / 16 * 16;

FS_DEVICE listing *this_listing() {
    return (listing *)row_shared();
}

/* The row's bounds, of this CTA's tokens. */
FS_DEVICE void take_bounds(listing *l) {
    const fs_cuda_args &args = l->args;
    const row_slice &s = l->view.x;
    const float *row = args.dense.x + l->b * args.dense.stride;
    const slice_source from = {(const char *)row, FS_FORMAT_F32, l->view.low, NULL,
                               (float *)(row_shared() + LISTING_BYTES)};
    if (is_copied(l->plain, from, s)) {
        begin_copy(from, s);
        end_copy(l->plain, from, s);
    } else load_slice(l->plain, from, s);
    __syncthreads();
}

/* The largest bound of each of this CTA's parts, to all CTAs. */
FS_DEVICE void tell_parts(listing *l) {
    const row_slice &s = l->view.x;
    const int32_t size = team_size(), per = PARTS / size, width = (int32_t)blockDim.x / per;
    unsigned long long most = 0;
    float floor = -INFINITY;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < s.blocks * (FS_CUDA_TILE / 4); i += blockDim.x) {
        const float4 q = s.quad(i);
        const float largest = fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w));
        if (!(largest > floor)) continue;
        floor = largest;
        const int32_t place = q.x == largest ? 0 : q.y == largest ? 1 : q.z == largest ? 2 : 3;
        most = order_key(largest, (uint32_t)(s.base + 4 * i + place));
    }
    for (int apart = 1; apart < width; apart *= 2) most = max(most, __shfl_xor_sync(~0u, most, apart));
    if ((int32_t)threadIdx.x % width == 0)
        for (int32_t to = 0; to < size; to++)
            *at_peer(&l->part[team_rank() * per + (int32_t)threadIdx.x / width], to) = most;
    team_barrier();
}

/* The parts whose largest bounds are the largest. */
FS_DEVICE void find_leaders(listing *l) {
    const int32_t k = list_k(l->draw);
    if (threadIdx.x < FS_LEADERS) l->leader[threadIdx.x] = 0;
    if (threadIdx.x == 0) l->leaders = min(2 * k + FS_MORE_LEADERS, FS_LEADERS), l->kth = 0;
    __syncthreads();
    if (threadIdx.x < PARTS) {
        const unsigned long long own = l->part[threadIdx.x];
        int32_t ahead = 0;
#pragma unroll 8
        for (int i = 0; i < PARTS; i++) ahead += l->part[i] > own;
        if (own && ahead < l->leaders) l->leader[ahead] = own;
    }
    __syncthreads();
}

/* What the row's hidden state adds to bounds, for every unit of a token's norm. */
FS_DEVICE float slack_of_row(listing *l, const char *h) {
    const int32_t dim = (int32_t)l->args.head.dim;
    float square = 0.0f;
    for (int32_t k = 2 * (int32_t)threadIdx.x; k < dim; k += 2 * (int32_t)blockDim.x) {
        const uint32_t pair = *(const uint32_t *)(h + 2 * k);
        const float x = __uint_as_float(pair << 16), y = __uint_as_float(pair & 0xFFFF0000u);
        square = fmaf(x, x, fmaf(y, y, square));
    }
    for (int apart = 16; apart; apart /= 2) square += __shfl_xor_sync(~0u, square, apart);
    if (threadIdx.x % 32 == 0) l->square[threadIdx.x / 32] = square;
    __syncthreads();
    square = 0.0f;
    for (int32_t i = 0; i < (int32_t)blockDim.x / 32; i++) square += l->square[i];
    return row_slack(dim, square);
}

/* Logits that leaders are not below, to all CTAs: each warp of the team computes some. */
FS_DEVICE void tell_leaders(listing *l, bool shaped) {
    const fs_cuda_args &args = l->args;
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const char *h = matrix_row(&hidden, args.first_row + l->b);
    const float slack = slack_of_row(l, h);
    const int32_t size = team_size(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int32_t i = warp * size + team_rank(); i < l->leaders; i += size * ((int32_t)blockDim.x / 32)) {
        uint32_t least = 0;
        if (l->leader[i]) {
            const uint32_t token = order_key_token(l->leader[i]);
            float x = dot_of_token(args.head, token, h) - dot_bound(args, token, slack);
            if (shaped) x = shaped_logit(args.head, x, token, -1.0f);
            x = edited_logit(args, l->draw, l->b, token, x);
            if (x > -INFINITY) least = ordered_float(x);
        }
        if (lane < size) *at_peer(&l->least[i], lane) = least;
    }
    team_barrier();
}

/* A logit below which no token survives the row's cuts. */
FS_DEVICE float find_floor(listing *l) {
    const int32_t k = list_k(l->draw), place = k ? k - 1 : 0;
    if ((int32_t)threadIdx.x < l->leaders) {
        const uint32_t own = l->least[threadIdx.x];
        int32_t ahead = 0;
        for (int32_t i = 0; i < l->leaders; i++)
            ahead += l->least[i] > own || (l->least[i] == own && i < (int32_t)threadIdx.x);
        if (ahead == place) l->kth = own;
    }
    __syncthreads();
    if (!l->kth) return -INFINITY;
    const float kth = float_of_ordered(l->kth);
    return k ? kth : min_p_floor(l->rules, kth);
}

/* Lists this CTA's tokens that may not be below the floor. */
FS_DEVICE void list_slice(const listing *l, float floor) {
    const fs_cuda_args &args = l->args;
    const int32_t b = l->b;
    uint32_t *count = &args.work[b].max;
    float from = floor;
    if (is_raised(l->draw)) {
        const float raise = args.edits.row[b].raise;
        from -= raise + (fabsf(floor) + raise) * 1e-6f;
    }
    each_from(l->view.x, from, [&](int32_t token, float most) {
        if (!(edited_logit(args, l->draw, b, (uint32_t)token, most) >= floor)) return;
        if (*(volatile uint32_t *)count > FS_CUDA_SCREENED) return; /* the row is open */
        const uint32_t at = atomicAdd(count, 1u);
        if (at < FS_CUDA_SCREENED)
            args.screen.entry[(int64_t)b * FS_CUDA_SCREENED + at] = {most, -INFINITY, (uint32_t)token, at};
    });
}

__global__ void __launch_bounds__(FS_CUDA_TEAM_THREADS, 1)
    list_tokens(const __grid_constant__ fs_cuda_args args, int32_t shaped) {
    listing *l = this_listing();
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += blockDim.x)
        ((uint32_t *)&l->args)[i] = ((const uint32_t *)&args)[i];
    if (threadIdx.x == 0) open_team(args.team.size);
    __syncthreads();
    greet_team();
    wait_for_earlier_launches();
    let_next_launch_begin(); /* what the pass was given is there for the next launch too */
    if (threadIdx.x == 0) {
        l->b = (int32_t)blockIdx.x / args.team.size;
        l->plain = l->args.head;
        l->plain.bias = NULL;
        l->plain.round_to = FS_F32;
        l->plain.scale = l->plain.post_scale = 1.0f;
        l->plain.softcap = 0.0f;
        l->rules = list_rules(l->args, l->b);
        l->draw = draw_of_screened(l->args, l->b);
        l->view = view_of(l->args, team_rank(), LISTING_BYTES);
    }
    __syncthreads();
    meet_team();
    /* If the pass has given up not all bounds are there. */
    if (!draws(l->draw) || !is_listed(l->draw) || *(volatile int32_t *)args.screen.open) return;
    take_bounds(l);
    tell_parts(l);
    find_leaders(l);
    tell_leaders(l, shaped != 0);
    const float floor = find_floor(l);
    if (threadIdx.x == 0 && team_rank() == 0) args.lists.floor[l->b] = ordered_float(floor);
    list_slice(l, floor);
}

/* -------------------------------------------------------------------------------------------------------- end ---- */

/* The race of the candidates from a key on: bounds of all first, then the exact scores of those that may be the best.
 * The winner's order key, its score's in room->key; 0: there is none. */
FS_DEVICE uint64_t race_candidates(fs_cut_room *room, uint64_t from, const fs_draw &draw) {
    if (threadIdx.x == 0) room->best = 0, room->key = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        __syncthreads();
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
            const uint64_t key = room->list[i];
            if (!key || key < from) continue;
            const uint32_t token = order_key_token(key);
            const float y = order_key_logit(key);
            const fs_drawn drawn = draw_token(draw.noise, token);
            const fs_score score = score_of(y * draw.inverse, noise_about(drawn));
            if (!pass) atomicMax(&room->best, ordered_float(score.least));
            else if (!(score.most < known_score(room->best)))
                atomicMax(&room->key, (unsigned long long)race_key(draw, y, token, drawn));
        }
    }
    __syncthreads();
    return room->key ? find_token(room, score_key_token(room->key)) : 0;
}

/* Leaves those of the candidates out that top-k, or min-p, surely does: of the largest of parts of the list, the k-th
 * is not above the row's k-th. Most of a list is there because nothing more was known. */
FS_DEVICE void narrow_list(fs_cut_room *room, const fs_draw &draw) {
    __shared__ uint32_t most[32 * LIST_LANES];
    const int32_t k = list_k(draw), count = room->count;
    for (int32_t i = threadIdx.x; i < 32 * LIST_LANES; i += FS_THREADS) most[i] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS)
        atomicMax(&most[i % (32 * LIST_LANES)], (uint32_t)(room->list[i] >> 32));
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t value[LIST_LANES];
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++) value[i] = most[32 * i + threadIdx.x];
        const uint32_t kth = kth_largest(value, 32 * LIST_LANES, k ? k : 1);
        if (threadIdx.x == 0) {
            float floor = room->floor;
            if (kth > ordered_float(-INFINITY))
                floor = fmaxf(floor, k ? float_of_ordered(kth) : min_p_floor(room->rules, float_of_ordered(kth)));
            room->floor = floor;
            room->count = 0;
        }
    }
    __syncthreads();
    const uint64_t least = (uint64_t)ordered_float(room->floor) << 32;
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS)
        if (room->list[i] >= least) room->weight[atomicAdd(&room->count, 1)] = room->list[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long *list = room->list;
        room->list = room->weight;
        room->weight = list;
    }
    __syncthreads();
}

/* The settled logits of a row; whether they are all there, and such as a list can tell about. */
FS_DEVICE bool take_settled(const fs_cuda_args &args, fs_cut_room *room, const fs_draw &draw, int32_t b) {
    const fs_cuda_row *row = &args.work[b];
    const uint32_t count = __ldcg(&row->max), most = (uint32_t)min(args.lists.room, (int32_t)FS_CUDA_SCREENED);
    if (count == 0 || count > most) return false;
    if (threadIdx.x == 0) {
        room->rules = list_rules(args, b);
        room->floor = float_of_ordered(__ldcg(&args.lists.floor[b]));
        room->count = (int32_t)count;
    }
    for (uint32_t i = threadIdx.x; i < count; i += FS_THREADS) {
        const uint64_t key = __ldcg(&args.lists.entry[(int64_t)b * FS_CUDA_SCREENED + i]);
        room->list[i] = is_edited(draw) || order_key_logit(key) > -INFINITY ? key : 0;
    }
    __syncthreads();
    if (is_edited(draw)) edit_list(args, room, b); /* which leaves out what is -inf */
    narrow_list(room, draw);
    return room->count > 0;
}

/* Row b, or it is open. */
FS_DEVICE void end_settled_row(const fs_cuda_args &args, fs_cut_room *room, const fs_draw &draw, int32_t b) {
    fs_cuda_row *row = &args.work[b];
    uint64_t own = 0;
    if (take_settled(args, room, draw, b)) {
        race_candidates(room, 1, draw);
        if (threadIdx.x == 0) row->key = room->key;
        __syncthreads();
        own = end_list(args, room, b,
                       [&](uint64_t from, const fs_marks_of_cuts &) { return race_candidates(room, from, draw); });
    }
    if (threadIdx.x != 0) return;
    if (own) close_listed(args, draw, b, room->key, order_key_logit(own), order_key_logit(room->largest));
    else atomicAdd(args.screen.open, 1);
    clear_row(row, false);
}

__global__ void __launch_bounds__(FS_THREADS, 1) end_settled_rows(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    __shared__ fs_cut_room room_of_row;
    fs_cut_room *room = &room_of_row;
    const int32_t b = (int32_t)blockIdx.x;
    const fs_draw draw = draw_of_screened(args, b);
    if (threadIdx.x == 0) {
        room->list = (unsigned long long *)shared;
        room->weight = room->list + FS_CUDA_SCREENED;
    }
    wait_for_earlier_launches();
    let_next_launch_begin();
    __syncthreads();
    if (b == 0 && threadIdx.x == 0) *args.lists.open = 0; /* of the pass over W, which may have nothing to do */
    if (draws(draw) && is_listed(draw)) end_settled_row(args, room, draw, b);
    if (threadIdx.x != 0) return;
    __threadfence();
    if (add_acquire(&args.screen.history->counted, 1) < gridDim.x - 1) return;
    args.screen.history->counted = 0;
    note_outcome(args);
}

constexpr int END_BYTES = 2 * FS_CUDA_SCREENED * (int)sizeof(unsigned long long);

} // namespace

extern "C" int32_t fs_cuda_listed_shared(void) {
    return LISTING_BYTES;
}

/* Where there is less shared memory no pass lists candidates, and none does after a screen. */
extern "C" cudaError_t fs_cuda_listed_open(int32_t shared_bytes) {
    if (shared_bytes < END_BYTES + 8192) return cudaSuccess;
    cudaError_t error = cudaFuncSetAttribute(list_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    return cudaFuncSetAttribute(end_settled_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, END_BYTES);
}

extern "C" cudaError_t fs_cuda_listed_launch(const fs_cuda_args *args, int32_t shaped, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    config_of_teams(&config, attribute, args->rows, args->team, args->overlap, stream);
    return cudaLaunchKernelEx(&config, list_tokens, *args, shaped);
}

extern "C" cudaError_t fs_cuda_end_listed_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    config.gridDim = dim3((unsigned)args->rows);
    config.blockDim = dim3(FS_THREADS);
    config.dynamicSmemBytes = END_BYTES;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = args->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, end_settled_rows, *args);
}
