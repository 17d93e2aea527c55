/* facts.cuh - what the CTAs of a team tell each other about a row: its largest logits, before they race, and its
 * masses. */
#ifndef FS_CUDA_ROWS_FACTS_CUH
#define FS_CUDA_ROWS_FACTS_CUH

#include "cuda/rows/ending.cuh"

/* ------------------------------------------------------------------------------------------------------- facts ---- */

/* What the threads of a CTA have seen; also the largest logits of parts of its slice, FLOORS in the team. */
FS_DEVICE void gather_facts(ending *e, const slice_facts &x, const slice_facts &y) {
    const uint32_t most[2] = {ordered_float(x.most), ordered_float(y.most)};
    const uint32_t not_least = __reduce_max_sync(~0u, ~ordered_float(fminf(x.least, y.least)));
    const uint32_t flags = __reduce_or_sync(~0u, x.flags | y.flags);
    const int32_t part = (int32_t)threadIdx.x * (FLOORS / team_size()) / (int32_t)blockDim.x;
    for (int i = 0; i < 2; i++) {
        atomicMax(&e->own_most[i][part], most[i]);
        const uint32_t warp_most = __reduce_max_sync(~0u, most[i]);
        if (threadIdx.x % 32 == 0) atomicMax(i ? &e->own.max_y : &e->own.max_x, warp_most);
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(&e->own.not_least, not_least);
        if (flags) atomicOr(&e->own.flags, flags);
    }
    __syncthreads();
}

FS_DEVICE void tell_facts(ending *e) {
    const int32_t parts = FLOORS / team_size(), first = team_rank() * parts;
    for (int32_t i = threadIdx.x; i < FLOORS; i += blockDim.x) {
        const int32_t to = i / parts, part = i % parts;
        *at_peer(&e->most[0][first + part], to) = e->own_most[0][part];
        *at_peer(&e->most[1][first + part], to) = e->own_most[1][part];
    }
    if ((int32_t)threadIdx.x < team_size()) *at_peer(&e->of[team_rank()], (int32_t)threadIdx.x) = e->own;
}

/* After a barrier: the summary of the row but for its masses. */
FS_DEVICE void hear_facts(ending *e) {
    if (threadIdx.x < 32) {
        const bool is_there = (int32_t)threadIdx.x < team_size();
        const facts one = is_there ? e->of[threadIdx.x] : facts{0, 0, 0, 0};
        const float max_x = float_of_ordered(__reduce_max_sync(~0u, one.max_x));
        const float max_y = float_of_ordered(__reduce_max_sync(~0u, one.max_y));
        const float least = float_of_ordered(~__reduce_max_sync(~0u, one.not_least));
        const uint32_t flags = __reduce_or_sync(~0u, one.flags);
        if (threadIdx.x == 0) {
            const float l = max_y * e->rules.inverse_temperature;
            fs_summary *s = &e->summary;
            s->max_x = max_x;
            s->max_y = max_y;
            s->flags = flags | (max_x == INFINITY || l == INFINITY ? FS_ROW_INF : 0u);
            s->mass = s->raw_mass = mass_empty();
            e->least = least < INFINITY ? least : 0.0f;
            e->reach = fmaxf(fabsf(e->least), fmaxf(fabsf(max_x), fabsf(max_y)));
            e->row.status |= s->flags;
            if (!(l > -INFINITY)) e->row.status |= FS_ROW_EMPTY;
            e->race.top = l;
        }
    }
    __syncthreads();
}

/* A key that the k largest of a row are not below, by the largest logits of its parts; 1: that cannot tell. */
ROW_PART uint64_t kth_floor(const uint32_t (&most)[FLOORS], int32_t k) {
    ending *e = this_ending();
    if (k <= 0 || k > FLOORS / 2) return 1; /* more would lie above than can be looked at */
    if (threadIdx.x < 32) {
        uint32_t value[LIST_LANES];
#pragma unroll
        for (int i = 0; i < LIST_LANES; i++) value[i] = most[32 * i + threadIdx.x];
        const uint32_t kth = kth_largest(value, FLOORS, k);
        if (threadIdx.x == 0) e->floor = kth;
    }
    __syncthreads();
    const uint32_t kth = e->floor;
    __syncthreads();
    return kth > ordered_float(-INFINITY) ? (uint64_t)kth << 32 : 1;
}

/* ------------------------------------------------------------------------------------------------------ masses ---- */

/* The masses of the slice, and its weight in units of a cut if `weighs`, to all CTAs. */
ROW_PART void tell_masses(bool weighs) {
    ending *e = this_ending();
    masses *own = &e->mass_of[team_rank()];
    const fs_needs &needs = e->args.needs;
    if (needs.raw_mass) {
        const fs_mass m = block_mass(mass_of_slice(e->view.x, 1.0f, e->reach), e->mass_part);
        if (threadIdx.x == 0) own->raw = m;
    }
    if (needs.mass) {
        const float scale = e->rules.inverse_temperature;
        const fs_mass m = block_mass(mass_of_slice(e->view.y, scale, e->reach), e->mass_part);
        if (threadIdx.x == 0) own->mass = m;
    }
    if (needs.cut_mass) {
        const float scale = e->rules.cut_scale;
        const fs_mass m = block_mass(mass_of_slice(e->view.y, scale, e->reach), e->mass_part);
        if (threadIdx.x == 0) own->cut = m;
    }
    if (weighs) {
        const float first = e->summary.max_y, scale = e->rules.cut_scale;
        const uint64_t weight = weight_of_slice(e->view.y, cut_scale(scale, first), first - WEIGHED_NEAR / scale);
        const uint64_t all =
            block_reduce((unsigned long long)weight, [](unsigned long long a, unsigned long long b) { return a + b; });
        if (threadIdx.x == 0) own->weight = all;
    }
    constexpr int WORDS = sizeof(masses) / 4;
    const int32_t from = team_rank();
    __syncthreads();
    for (int32_t i = threadIdx.x; i < WORDS * team_size(); i += blockDim.x)
        if (i / WORDS != from) ((uint32_t *)at_peer(own, i / WORDS))[i % WORDS] = ((const uint32_t *)own)[i % WORDS];
}

/* After a barrier. */
FS_DEVICE void hear_masses(ending *e) {
    const int32_t lane = threadIdx.x;
    const bool is_there = lane < team_size();
    if (lane < 32 && e->args.needs.raw_mass) {
        const fs_mass m = lanes_mass(is_there ? e->mass_of[lane].raw : mass_empty(), FS_CUDA_TEAM / 2);
        if (lane == 0) e->summary.raw_mass = m;
    }
    if (lane < 32 && e->args.needs.mass) {
        const fs_mass m = lanes_mass(is_there ? e->mass_of[lane].mass : mass_empty(), FS_CUDA_TEAM / 2);
        if (lane == 0) e->summary.mass = m;
    }
    if (lane < 32 && e->args.needs.cut_mass) {
        const fs_mass m = lanes_mass(is_there ? e->mass_of[lane].cut : mass_empty(), FS_CUDA_TEAM / 2);
        if (lane == 0) e->summary.cut_mass = m;
    }
    __syncthreads();
}

FS_DEVICE uint64_t weight_of_team(const ending *e) {
    uint64_t weight = 0;
    for (int32_t i = 0; i < team_size(); i++) weight += e->mass_of[i].weight;
    return weight;
}

FS_DEVICE uint32_t listed_of_team(const ending *e) {
    uint32_t listed = 0;
    for (int32_t i = 0; i < team_size(); i++) listed += e->mass_of[i].listed;
    return listed;
}

#endif
