/* cuts.cuh - the end of rows that are cut, in the pass: when the CTAs of a block have listed all candidates, each takes
 * rows, one after the other, and finds from a row's list what its cuts leave, and who wins.
 *
 * Where lists begin is a guess (cuda/device/lists.cuh); that what was asked follows from the tokens in a list is proven
 * here. Rows for which it is not are left open, for a second pass (rows/rows.cu).
 *
 * Few loops are unrolled: at the end instructions come from memory (docs/notes/gpu-rows.md). */
#ifndef FS_CUDA_CUTS_CUH
#define FS_CUDA_CUTS_CUH

#include "cuda/device/weight.cuh"
#include "cuda/fused/epilogue.cuh"

/* ------------------------------------------------------------------------------------------------- candidates ---- */

/* One value for all, from each warp's. */
template <class F> FS_DEVICE uint64_t over_warps(fs_cut_room *room, uint64_t value, F f) {
    if (threadIdx.x % 32 == 0) room->part[threadIdx.x / 32] = value;
    __syncthreads();
    value = room->part[0];
#pragma unroll 1
    for (int w = 1; w < FS_WARPS; w++) value = f(value, (uint64_t)room->part[w]);
    __syncthreads(); /* all have read before the next one writes */
    return value;
}

FS_DEVICE uint64_t warp_sum(uint64_t v) {
#pragma unroll
    for (int apart = 16; apart; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
    return v;
}

/* How many candidates are ahead of something, and how much they weigh. */
typedef struct fs_ahead {
    uint32_t count;
    uint64_t weight;
} fs_ahead;

/* The candidates from a key on. */
FS_DEVICE fs_ahead ahead_of(fs_cut_room *room, uint64_t key, bool weigh) {
    const unsigned long long *list = room->list, *weight = room->weight;
    const int32_t count = room->count;
    fs_ahead a = {0, 0};
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < count; i += FS_THREADS) {
        const bool ahead = list[i] >= key;
        a.count += ahead;
        if (weigh) a.weight += ahead ? weight[i] : 0;
    }
    auto add = [](uint64_t x, uint64_t y) { return x + y; };
    a.count = (uint32_t)over_warps(room, __reduce_add_sync(~0u, a.count), add);
    if (weigh) a.weight = over_warps(room, warp_sum(a.weight), add);
    return a;
}

/* The order key of the last of the first k candidates, or with k 0 of the first that have so much weight together; 1 if
 * there are not so many. Each warp looks where another part of an interval of keys ends, until there is one in it. */
static __device__ __noinline__ uint64_t last_of_first(fs_cut_room *room, uint32_t k, uint64_t mass) {
    const unsigned long long *list = room->list, *weight = room->weight;
    const int32_t count = room->count, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint64_t least = max((uint64_t)ordered_float(room->floor) << 32, (uint64_t)1);
    uint64_t low = least, high = room->largest + 1;     /* enough from low on, if at all; not from high on */
    uint32_t from_low = (uint32_t)count, from_high = 0; /* or more: some are none */
#pragma unroll 1
    while (from_low - from_high > 1 && high - low > 1) {
        const uint64_t wide = (high - low) / (uint32_t)(FS_WARPS + 1), step = wide ? wide : 1, base = low, end = high;
        const uint64_t own = base + step * (warp + 1);
        uint32_t found = 0;
        uint64_t sum = 0;
#pragma unroll 4
        for (int32_t i = lane; i < count; i += 32) {
            found += list[i] >= own;
            if (!k) sum += list[i] >= own ? weight[i] : 0;
        }
        found = __reduce_add_sync(~0u, found);
        if (!k) sum = warp_sum(sum);
        if (lane == 0) room->part[warp] = sum, room->tally[warp] = (uint16_t)found;
        __syncthreads();
#pragma unroll 1
        for (int w = 0; w < FS_WARPS; w++) {
            const uint64_t at = base + step * (w + 1);
            if (at >= end) break;
            if (k ? room->tally[w] >= k : room->part[w] >= mass) low = at, from_low = room->tally[w];
            else {
                high = at, from_high = room->tally[w];
                break;
            }
        }
        __syncthreads(); /* all have read before the next one writes */
    }
    if (low == least) return 1;
    unsigned long long last = ~0ull;
    for (int32_t i = lane; i < count; i += 32) last = list[i] >= low ? min(last, list[i]) : last;
#pragma unroll
    for (int apart = 16; apart; apart /= 2) last = min(last, __shfl_xor_sync(~0u, last, apart));
    return last;
}

/* ------------------------------------------------------------------------------------------------------- cuts ---- */

/* A row's mass, in the units of the weights of its candidates; off by at most this share. 0: not known. */
struct fs_row_weight {
    double all, slack;
};

FS_DEVICE fs_row_weight weight_of_row(const fs_cuda_args &args, const fs_row_rules &rules, const fs_cuda_row *row,
                                      const cut_scale &units, float first) {
    const float rate = args.needs.raw_mass ? 1.0f : rules.inverse_temperature;
    if (!needs_mass(args.needs) || rate != rules.cut_scale || units.origin != 0.0f) return {0.0, 0.0};
    const fs_mass mass = row_mass(row);
    if (mass_is_empty(&mass)) return {0.0, 0.0};
    return {ldexp(mass_scaled(&mass), 24 * (mass.top - 2) - units.unit + 39), mass_slack(first * rules.cut_scale)};
}

/* What a row's cuts say, in numbers. */
typedef struct fs_marks_of_cuts {
    double least;      /* min-p: y times cut_scale is not below it... */
    int32_t min_p;     /* ... of those that top-p looks at too */
    int32_t weigh;     /* top-p: candidates have weights, */
    double less, more; /* and who has so much ahead of it surely stays, surely does not */
    int32_t known;     /* all this follows from the candidates */
} fs_marks_of_cuts;

/* Weighs the candidates whom top-p looks at, those from a key on: together. */
FS_DEVICE uint64_t weigh_from(fs_cut_room *room, uint64_t key, const cut_scale &units) {
    uint64_t all = 0;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
        const uint64_t weight = room->list[i] >= key ? units.weigh(order_key_logit(room->list[i])) : 0;
        room->weight[i] = weight;
        all += weight;
    }
    return over_warps(room, warp_sum(all), [](uint64_t a, uint64_t b) { return a + b; });
}

FS_DEVICE fs_marks_of_cuts marks_of_cuts(const fs_cuda_args &args, fs_cut_room *room, const fs_cuda_row *row) {
    const fs_row_rules &rules = room->rules;
    const uint32_t flags = args.batch.flags;
    const float first = order_key_logit(room->largest), scale = rules.cut_scale;
    const bool of_row = rules_top_p_of_row(&rules, flags), infinite = first * scale == INFINITY;
    fs_marks_of_cuts m;
    m.least = (double)(first * scale) + rules.log_min_p;
    m.min_p = !(rules.top_p < 1.0f && !of_row && flags & FS_MIN_P_LAST);
    m.weigh = rules.top_p < 1.0f;
    m.less = m.more = INFINITY;
    m.known = 1;
    if (!m.weigh) return m;
    const cut_scale units(scale, first);
    uint64_t from = 1;
    if (!of_row) { /* of what top-k and min-p leave, of which then all must be known */
        const bool enough = rules.top_k > 0 && ahead_of(room, 1, false).count >= (uint32_t)rules.top_k;
        const bool by_min_p = m.min_p && (double)(room->floor * scale) < m.least;
        m.known = enough || by_min_p || room->floor == -INFINITY;
        if (enough) from = last_of_first(room, (uint32_t)rules.top_k, 0);
        if (flags & FS_KEEP_TIES_TOP_K) from = from >> 32 << 32;
        /* With min-p before it, weights begin where min-p ends. */
        if (m.min_p && rules.log_min_p > -INFINITY) {
            unsigned long long last = ~0ull;
            for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS)
                if (room->list[i] && !((double)(order_key_logit(room->list[i]) * scale) < m.least))
                    last = min(last, room->list[i]);
            for (int apart = 16; apart; apart /= 2) last = min(last, __shfl_xor_sync(~0u, last, apart));
            last = over_warps(room, last, [](uint64_t a, uint64_t b) { return min(a, b); });
            from = max(from, (uint64_t)last);
        }
    }
    const uint64_t all = weigh_from(room, from, units);
    if (infinite) m.less = m.more = 1.0; /* all of the weight is one token's */
    else if (!of_row) m.less = m.more = fmax(ceil((double)rules.top_p * (double)all), 1.0);
    else {
        const fs_row_weight weight = weight_of_row(args, rules, row, units, first);
        const double mark = (double)rules.top_p * weight.all;
        m.known = weight.all > 0.0;
        m.less = fmax(mark - mark * weight.slack, 1.0);
        m.more = fmax(mark + mark * weight.slack, 1.0);
    }
    return m;
}

/* Whether a candidate stays: 1, 0, or -1 if that is not known. 0 as its key: somebody below all candidates. */
FS_DEVICE int32_t stays(const fs_cuda_args &args, fs_cut_room *room, const fs_marks_of_cuts &m, uint64_t key) {
    const fs_row_rules &rules = room->rules;
    const uint32_t flags = args.batch.flags;
    const float y = key ? order_key_logit(key) : room->floor;
    if ((double)(y * rules.cut_scale) < m.least) return 0;
    const uint64_t next = key ? key + 1 : 1, larger = key ? ((key >> 32) + 1) << 32 : 1;
    const fs_ahead ahead = ahead_of(room, next, m.weigh);
    fs_ahead of_larger = ahead;
    if (flags & (FS_KEEP_TIES_TOP_K | FS_KEEP_TIES_TOP_P)) of_larger = ahead_of(room, larger, m.weigh);
    const uint32_t count = flags & FS_KEEP_TIES_TOP_K ? of_larger.count : ahead.count;
    const double weight = (double)(flags & FS_KEEP_TIES_TOP_P ? of_larger.weight : ahead.weight);
    if (rules.top_k > 0 && count >= (uint32_t)rules.top_k) return 0;
    if (weight > m.more || (weight == m.more && m.less == m.more)) return 0;
    if (!key || (weight >= m.less && weight > 0.0)) return -1;
    return y * rules.inverse_temperature > -INFINITY;
}

/* ------------------------------------------------------------------------------------------------------- rows ---- */

/* The candidates of row b, if they are all there and few enough, into `list`: how many; else -1. */
FS_DEVICE int32_t take_list(fs_cut_room *room, const fs_cuda_lists &lists, unsigned long long *list, int32_t b) {
    const int32_t thread = threadIdx.x;
    const uint32_t *count = lists.count + (int64_t)b * lists.slots;
    const unsigned long long *entry = lists.entry + (int64_t)b * lists.slots * FS_CUDA_SEGMENT;
    bool whole = true;
    if (thread == 0) room->found = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t slot = thread; slot < lists.slots; slot += FS_THREADS) {
        const uint32_t n = __ldcg(&count[slot]), start = n ? atomicAdd(&room->found, n) : 0;
        whole &= n <= FS_CUDA_SEGMENT && start + n <= FS_CUDA_LIST;
#pragma unroll 1
        for (uint32_t i = 0; i < n && whole; i++)
            copy_async_8(shared_address(&list[start + i]), &entry[slot * FS_CUDA_SEGMENT + i]);
    }
    copy_async_wait();
    const uint64_t all = over_warps(room, __all_sync(~0u, whole), [](uint64_t a, uint64_t b) { return a & b; });
    return all && room->found <= (uint32_t)lists.room ? (int32_t)room->found : -1;
}

/* From x to y of the candidates of an edited row. */
FS_DEVICE void edit_list(const fs_cuda_args &args, fs_cut_room *room, int32_t b) {
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
        const uint32_t token = order_key_token(room->list[i]);
        const float y = look_up(args, b, (int32_t)token, order_key_logit(room->list[i]));
        room->list[i] = y > -INFINITY ? order_key(y, token) : 0;
    }
    __syncthreads();
}

/* A row is open: its hidden state goes where open ones are side by side. */
FS_DEVICE void leave_open(fs_cut_room *room, const fs_cuda_args &args, int64_t b) {
    __syncthreads(); /* all have read the last `place` */
    if (threadIdx.x == 0) {
        room->place = atomicAdd(&args.lists.open[0], 1);
        args.lists.open[1 + room->place] = (int32_t)b;
    }
    __syncthreads();
    const fs_matrix hidden = hidden_of_batch(&args.head, &args.batch);
    const uint4 *from = (const uint4 *)matrix_row(&hidden, b);
    uint4 *to = (uint4 *)((uint16_t *)args.lists.hidden + room->place * open_stride(args.head.dim));
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < (args.head.dim + 7) / 8; i += FS_THREADS) to[i] = from[i];
}

/* The results of row b of which the drawn token and the largest logit are known; with key 0, what work memory says. */
FS_DEVICE void close_listed(const fs_cuda_args &args, const fs_draw &draw, int32_t b, uint64_t key, float x,
                            float largest) {
    const fs_cuda_row *row = &args.work[b];
    fs_needs needs = plain_needs(args.needs);
    fs_found found = found_nothing();
    if (key) {
        needs.max = 1;
        found.key = key;
        found.x = x;
        found.max = largest;
        found.flags = __ldcg(&row->flags);
        if (needs_mass(needs)) found.mass = row_mass(row);
    } else found = found_in(row, draw, needs);
    write_row(args, draw, needs, args.first_row + b, found, false, NULL);
}

/* The order key of a token; 0: it is no candidate. */
FS_DEVICE uint64_t find_token(fs_cut_room *room, uint32_t token) {
    if (threadIdx.x == 0) room->place = -1;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS)
        if (order_key_token(room->list[i]) == token) room->place = i;
    __syncthreads();
    return room->place < 0 ? 0 : room->list[room->place];
}

/* The race of the candidates from a key on: the winner's order key; 0: there is none. Bounds of all first, then the
 * exact scores of those that may be the best. */
template <int BITS>
FS_DEVICE uint64_t race_from(fs_cut_room *room, uint64_t from, const fs_draw &draw, unsigned long long *scrap) {
    if (threadIdx.x == 0) room->best = 0, room->key = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        __syncthreads();
#pragma unroll 1
        for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
            const uint64_t k = room->list[i];
            if (k < from) continue;
            const fs_survivor s = score_token<BITS>(draw, &room->best, (uint32_t *)scrap, (uint32_t *)scrap + 1,
                                                    order_key_logit(k), id_of<BITS>(order_key_token(k), 0));
            if (pass && s.token.id) atomicMax(&room->key, (unsigned long long)exact_key<BITS>(draw, s));
        }
    }
    __syncthreads();
    return find_token(room, score_key_token(room->key));
}

constexpr int FEW_RACE = 512; /* candidates that race sooner than it is found out who of them need not */

/* The token of a row that is cut, from its list: the winner of the race over all tokens, if it stays. Else who stays is
 * above it, and there is another race: race(key, marks), of the candidates from a key on, as race_from. Its order key,
 * its score's in room->key; 0 if the list does not tell. */
template <class F> FS_DEVICE uint64_t end_list(const fs_cuda_args &args, fs_cut_room *room, int32_t b, F race) {
    const fs_cuda_row *row = &args.work[b];
    unsigned long long most = 0;
    /* A CTA that had to begin without a floor has listed more than others: not candidates. */
    const uint64_t least = (uint64_t)ordered_float(room->floor) << 32;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < room->count; i += FS_THREADS) {
        if (room->list[i] < least) room->list[i] = 0;
        most = max(most, room->list[i]);
    }
#pragma unroll
    for (int apart = 16; apart; apart /= 2) most = max(most, __shfl_xor_sync(~0u, most, apart));
    most = over_warps(room, most, [](uint64_t a, uint64_t c) { return max(a, c); });
    if (threadIdx.x == 0) room->largest = most, room->key = __ldcg(&row->key);
    __syncthreads();
    const fs_marks_of_cuts marks = marks_of_cuts(args, room, row);
    if (!marks.known) return 0;
    uint64_t own = find_token(room, score_key_token(room->key));
#pragma unroll 1
    for (;;) {
        const int32_t answer = stays(args, room, marks, own);
        if (answer < 0) return 0;
        if (answer > 0) return own;
        own = race(own + 1, marks);
        if (!own) return 0;
    }
}

/* Ends row b of the block. */
template <class T>
FS_DEVICE void end_listed(fs_tile_state<T::N, T::SCORERS> *state, unsigned long long *list, int32_t b, bool has_rules) {
    constexpr int BITS = ROW_BITS<T::N>;
    const fs_cuda_args &args = state->args;
    fs_cut_room *room = &state->cut;
    const fs_draw &draw = state->draw[b];
    const bool first = threadIdx.x == 0;
    const bool odd = is_edited(draw) && __ldcg(&args.work[b].flags); /* what edits make of infinities */
    const bool kept = draws(draw) && is_kept(draw);                  /* the row goes on in another launch */
    if (kept) {
    } else if (odd || draw.status & FS_DRAW_OPEN) leave_open(room, args, args.first_row + b);
    else if (draws(draw) && is_listed(draw) && __ldcg(&args.work[b].key)) {
        if (first) {
            const uint32_t floor = __ldcg(&args.lists.floor[b]);
            if (!has_rules) room->rules = list_rules(args, b);
            room->floor = floor ? float_of_ordered(floor) : -INFINITY;
            room->list = list;
            room->weight = list + FS_CUDA_LIST;
        }
        const int32_t count = take_list(room, args.lists, list, b);
        if (first) room->count = count;
        __syncthreads();
        if (is_edited(draw)) edit_list(args, room, b);
        auto race = [&](uint64_t from, const fs_marks_of_cuts &marks) {
            /* Of many candidates those that top-p surely leaves out had better not race. */
            if (marks.weigh && room->count > FEW_RACE)
                from = max(from, last_of_first(room, 0, (uint64_t)ceil(marks.more)) >> 32 << 32);
            return race_from<BITS>(room, from, draw, &state->scrap);
        };
        const uint64_t own = count > 0 ? end_list(args, room, b, race) : 0;
        if (!own) leave_open(room, args, args.first_row + b);
        else if (first) close_listed(args, draw, b, room->key, order_key_logit(own), order_key_logit(room->largest));
    } else if (first) close_listed(args, draw, b, 0, NAN, NAN);
    __syncthreads();
    if (first) {
        if (!kept) clear_row(&args.work[b], needs_mass(args.needs));
        args.lists.floor[b] = 0;
    }
    for (int32_t i = threadIdx.x; i < args.lists.slots; i += FS_THREADS)
        args.lists.most[(int64_t)b * args.lists.slots + i] = 0;
}

/* A CTA's own row that it has not ended, for the one that leaves last. */
#define FS_NOT_ENDED (1u << 31)

/* When all is listed: every CTA that finds so within `patience` ends its own row, then others in turn, where there are
 * more rows than CTAs. The one that leaves last ends whoever is left: nobody waits long for one that may not run. */
template <class T>
FS_DEVICE void end_rows(fs_tile_state<T::N, T::SCORERS> *state, unsigned long long *list, uint32_t patience) {
    constexpr uint32_t GIVEN_UP = 1u << 16; /* in `left`, beside how many CTAs have */
    const fs_cuda_args &args = state->args;
    fs_cuda_progress *progress = args.lists.progress;
    fs_cut_room *room = &state->cut;
    if (threadIdx.x == 0) {
        const uint64_t start = nanoseconds();
        const int32_t own = (int32_t)blockIdx.x;
        bool all = false;
        if (own < args.rows) room->rules = list_rules(args, own); /* meanwhile */
        while (!all && nanoseconds() - start < patience) all = load_relaxed(&progress->done) == gridDim.x * T::SCORERS;
        __threadfence(); /* the count before what it counts */
        if (!all && own < args.rows) {
            atomicOr(&progress[own].told, FS_NOT_ENDED);
            atomicAdd(&progress->left, GIVEN_UP);
        }
        room->row = all ? own : args.rows;
    }
#pragma unroll 1
    for (bool last = false;;) { /* end_listed once: it is large */
        __syncthreads();
        const int32_t b = room->row;
        __syncthreads(); /* all have read before the answer takes its place */
        if (b < 0) return;
        if (b < args.rows) {
            if (!last || b >= (int32_t)gridDim.x || __ldcg(&progress[b].told) & FS_NOT_ENDED)
                end_listed<T>(state, list, b, !last && b == (int32_t)blockIdx.x);
            if (threadIdx.x != 0) continue;
            if (last && b < (int32_t)gridDim.x) progress[b].told = 0;
            if (last && b + 1 < (int32_t)gridDim.x) room->row = b + 1;
            else if (args.rows <= (int32_t)gridDim.x) room->row = args.rows;
            else room->row = (int32_t)(gridDim.x + atomicAdd(&progress->taken, 1u));
            continue;
        }
        if (last) break;
        last = true;
        if (threadIdx.x != 0) continue;
        const uint32_t left = add_in_order(&progress->left, 1);
        room->row = left % GIVEN_UP != gridDim.x - 1 ? -1 : left < GIVEN_UP ? args.rows : 0;
    }
    if (threadIdx.x == 0) {
        *progress = {0, 0, 0, 0};
        args.work->done = args.work->seeded = 0;
    }
}

#endif
