/* rows.cu - the end of rows with rules: a team of CTAs has one row whose logits are in memory, the caller's or work
 * memory, cuts, draws, and writes all that was asked. What a result means is core/finish.h's; here is how a team finds
 * it.
 *
 *   slices --barrier: largest logits, bounds of the race--> cut, race, masses --barrier: winner, masses--> results
 *
 * A cut that must be known before the race, ranks and the best take some barriers more. Nobody looks into another CTA's
 * shared memory after the last of them, so each may end when it is done. */
#include "cuda/cuda_launch.h"
#include "cuda/device/kth.cuh"
#include "cuda/rows/ending.cuh"
#include "cuda/rows/groups.cuh"

namespace {

/* Out of line: most of what there is is not run in a call, and code that is run once is fetched from far. */
#define ROW_PART static __device__ __noinline__

constexpr int MOST_SAMPLES = 1024; /* and most of the best */
constexpr int FLOORS = 32 * LIST_LANES;

/* Largest logits and flags of a slice: ordered floats. */
struct facts {
    uint32_t max_x, max_y, not_least, flags; /* ~ of the least finite x or y */
};

struct masses {
    fs_mass raw, mass;
    unsigned long long weight;
};

struct ending : row_ending {
    float least; /* of all finite x and y */
    facts own, of[FS_CUDA_TEAM];
    masses mass_of[FS_CUDA_TEAM];
    fs_mass mass_part[MOST_WARPS];
    uint32_t own_most[2][FLOORS], most[2][FLOORS]; /* largest x and y of so many parts of the row, ordered */
    uint32_t floor;
    uint32_t ahead[2][FS_CUDA_TEAM][RACES]; /* of samples, by CTA; in turn */
    uint32_t own_ahead[RACES];
    float sample_logit[RACES];
    race_told told;
    uint32_t listed;
    unsigned long long winner[MOST_SAMPLES]; /* score keys, or order keys of the best */
    unsigned long long list[MOST_SAMPLES];
    union {
        select_room select;
        race_room race;
    };
};

constexpr int ENDING_BYTES = (sizeof(ending) + 15) / 16 * 16;

/* ------------------------------------------------------------------------------------------------------ logits ---- */

/* The row as one CTA of its team sees it: its slices, and how tokens are shared out. */
struct row_view {
    row_slice x, y;
    int32_t low, high;    /* of the row */
    int32_t first, share; /* block of the noise the row begins in; blocks of a slice, the last ones may have fewer */

    FS_DEVICE_MEMBER bool holds(int64_t token) const { return token >= low && token < high; }
};

FS_DEVICE row_view view_of(const fs_cuda_args &args, const row_team &team) {
    const fs_head &head = args.head;
    row_view r;
    r.low = (int32_t)head.first_token;
    r.high = max(r.low, (int32_t)min(head.first_token + head.rows, args.vocab));
    r.first = r.low / FS_CUDA_TILE;
    const int32_t blocks = r.high > r.low ? (r.high - 1) / FS_CUDA_TILE + 1 - r.first : 0;
    r.share = (blocks + team.size - 1) / team.size;
    const int32_t mine = min(team.rank * r.share, blocks);
    r.x.base = (r.first + mine) * FS_CUDA_TILE;
    r.x.blocks = min(r.share, blocks - mine);
    r.x.low = max(r.low, r.x.base);
    r.x.high = min(r.high, r.x.base + r.x.blocks * FS_CUDA_TILE);
    r.x.clean = args.team.places > 0;
    r.x.v = r.x.clean ? (const float *)(row_shared() + ENDING_BYTES) : NULL;
    r.y = r.x;
    return r;
}

/* Brings x of the slice to where it is looked at. */
FS_DEVICE slice_facts bring_x(const fs_cuda_args &args, row_view *r, int64_t b, int64_t place) {
    const fs_head &head = args.head;
    const uint32_t *allow = bits_row(args.batch.allow, args.batch.allow_stride, batch_mask(&args.batch, b), args.vocab);
    const bool is_stored = head.kind == FS_HEAD_LOGITS;
    const fs_matrix stored = logits_of_head(&head);
    float *x = args.dense.x + place * args.dense.stride;
    const char *row = is_stored ? matrix_row(&stored, b) : (const char *)x;
    const int32_t format = is_stored ? stored.format : FS_FORMAT_F32;
    slice_source from = {row, format, r->low, allow, NULL};
    const int64_t skipped = r->x.base - r->low;
    if (r->x.clean) from.to = (float *)r->x.v;
    else if (format != FS_FORMAT_F32 || allow || !head_is_plain(&head)) r->x.v = from.to = x + skipped;
    else r->x.v = (const float *)row + skipped;
    r->y = r->x;
    return load_slice(head, from, r->x);
}

/* y of the slice, where the row is edited. */
FS_DEVICE slice_facts bring_y(const fs_cuda_args &args, const fs_cuda_edits &edits, row_view *r, int64_t place) {
    const bool is_shared = args.team.slices > 1;
    float *y = args.dense.y + place * args.dense.stride + (r->x.base - r->low);
    if (is_shared) y = (float *)(row_shared() + ENDING_BYTES) + args.team.places;
    r->y.v = y;
    r->y.clean = is_shared;
    return edit_slice(edits, r->x, y, is_shared);
}

/* The logit of any token of the row, wherever it is; NaN: of none. */
FS_DEVICE float logit_at(const row_team &team, const row_view &r, const row_slice &s, int64_t token) {
    if (!r.holds(token)) return NAN;
    if (!s.clean) {
        const float v = s.v[token - s.base];
        return v == v ? v : -INFINITY;
    }
    const int32_t block = (int32_t)token / FS_CUDA_TILE - r.first, owner = block / r.share;
    return *at_peer(team, s.v + ((int32_t)token - (r.first + owner * r.share) * FS_CUDA_TILE), owner);
}

/* ------------------------------------------------------------------------------------------------------- facts ---- */

/* What the threads of a CTA have seen; also the largest logits of parts of its slice, FLOORS in the team. */
FS_DEVICE void gather_facts(ending *e, const row_team &team, const slice_facts &x, const slice_facts &y) {
    const uint32_t most[2] = {ordered_float(x.most), ordered_float(y.most)};
    const uint32_t not_least = ~ordered_float(fminf(x.least, y.least));
    const uint32_t flags = __reduce_or_sync(~0u, x.flags | y.flags);
    const int32_t part = (int32_t)threadIdx.x * (FLOORS / team.size) / (int32_t)blockDim.x;
    const bool whole_warps = FLOORS / team.size * 32 <= (int32_t)blockDim.x;
    uint32_t warp_most[2];
    for (int i = 0; i < 2; i++) {
        warp_most[i] = __reduce_max_sync(~0u, most[i]);
        if (!whole_warps) atomicMax(&e->own_most[i][part], most[i]);
    }
    const uint32_t warp_not_least = __reduce_max_sync(~0u, not_least);
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; whole_warps && i < 2; i++) atomicMax(&e->own_most[i][part], warp_most[i]);
        atomicMax(&e->own.max_x, warp_most[0]);
        atomicMax(&e->own.max_y, warp_most[1]);
        atomicMax(&e->own.not_least, warp_not_least);
        if (flags) atomicOr(&e->own.flags, flags);
    }
    __syncthreads();
}

FS_DEVICE void tell_facts(ending *e, const row_team &team) {
    const int32_t parts = FLOORS / team.size;
    for (int32_t i = threadIdx.x; i < FLOORS; i += blockDim.x) {
        const int32_t to = i / parts, part = i % parts;
        *at_peer(team, &e->most[0][team.rank * parts + part], to) = e->own_most[0][part];
        *at_peer(team, &e->most[1][team.rank * parts + part], to) = e->own_most[1][part];
    }
    if ((int32_t)threadIdx.x < team.size) *at_peer(team, &e->of[team.rank], (int32_t)threadIdx.x) = e->own;
}

/* After a barrier: the summary of the row but for its masses. */
FS_DEVICE void hear_facts(ending *e, const row_team &team) {
    if (threadIdx.x == 0) {
        facts all = e->of[0];
        for (int32_t i = 1; i < team.size; i++) {
            all.max_x = max(all.max_x, e->of[i].max_x);
            all.max_y = max(all.max_y, e->of[i].max_y);
            all.not_least = max(all.not_least, e->of[i].not_least);
            all.flags |= e->of[i].flags;
        }
        const float inverse = e->rules.inverse_temperature, least = float_of_ordered(~all.not_least);
        fs_summary *s = &e->summary;
        s->max_x = float_of_ordered(all.max_x);
        s->max_y = float_of_ordered(all.max_y);
        s->flags = all.flags;
        if (s->max_x == INFINITY || s->max_y * inverse == INFINITY) s->flags |= FS_ROW_INF;
        s->mass = s->raw_mass = mass_empty();
        e->least = least < INFINITY ? least : 0.0f;
        e->row.status |= s->flags;
        if (!(s->max_y * inverse > -INFINITY)) e->row.status |= FS_ROW_EMPTY;
    }
    __syncthreads();
}

/* A key that the k largest of a row are not below, by the largest logits of its parts; 1: that cannot tell. */
ROW_PART uint64_t kth_floor(ending *e, const uint32_t (&most)[FLOORS], int32_t k) {
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

/* The masses of the slice, and its weight in units of a cut if `units` says so, to all CTAs. */
ROW_PART void tell_masses(ending *e, const fs_cuda_args &args, const row_team &team, const row_view &r,
                          const cut_scale *units) {
    masses own = {mass_empty(), mass_empty(), 0};
    if (args.needs.raw_mass) own.raw = block_mass(mass_of_slice(r.x, 1.0f), e->mass_part);
    if (args.needs.mass) own.mass = block_mass(mass_of_slice(r.y, e->rules.inverse_temperature), e->mass_part);
    if (units)
        own.weight = block_reduce(
            (unsigned long long)weight_of_slice(r.y, *units, e->summary.max_y - WEIGHED_NEAR / units->scale),
            [](unsigned long long a, unsigned long long b) { return a + b; });
    if ((int32_t)threadIdx.x < team.size) *at_peer(team, &e->mass_of[team.rank], (int32_t)threadIdx.x) = own;
}

/* After a barrier. */
FS_DEVICE void hear_masses(ending *e, const row_team &team) {
    if (threadIdx.x == 0)
        for (int32_t i = 0; i < team.size; i++) {
            mass_merge(&e->summary.raw_mass, &e->mass_of[i].raw);
            mass_merge(&e->summary.mass, &e->mass_of[i].mass);
        }
    __syncthreads();
}

/* ------------------------------------------------------------------------------------------------- cuts, draws ---- */

/* Weights further than 40 below the largest are nothing. */
FS_DEVICE row_entries entries_of(const ending *e, const row_view &r, const row_slice &v, float scale, float first) {
    const int64_t size = r.high - r.low;
    return {v, size, size, 1, cut_scale(scale, first), first, fminf(first - e->least, 40.0f / scale)};
}

/* Whether it is enough to know if the winner is in the nucleus: whoever stays of a row is above whoever does not, so
 * they race again if not. */
FS_DEVICE bool may_ask_winner(const fs_cuda_args &args, const fs_rules &rules) {
    return rules_top_p_alone(&rules) && args.needs.samples == 1 && !args.needs.ordered &&
           args.result.logits != FS_LOGITS_CUT && !batch_is_grouped(&args.batch);
}

/* Finds what the cuts leave. */
ROW_PART void find_cut(ending *e, const fs_cuda_args &args, row_team &team, const row_view &r) {
    const fs_rules &rules = e->rules;
    const float first = e->summary.max_y;
    const row_entries all = entries_of(e, r, r.y, rules.cut_scale, first);
    const uint64_t kth = kth_floor(e, e->most[1], rules.top_k);
    const uint64_t last = cut_row(team, &e->select, all, rules, args.batch.flags, first, kth);
    double log_z = NAN;
    if (args.result.logits == FS_LOGITS_CUT && result_wants_log_z(&args.result)) {
        const row_entries kept = entries_of(e, r, r.y, rules.inverse_temperature, first).from(last);
        log_z = kept.units.log_of(weight_of(team, kept));
    }
    if (threadIdx.x == 0) {
        e->row.has_cut = 1;
        e->row.cut = {1, 1, 1, last, log_z};
    }
    __syncthreads();
}

/* One race from its first barrier on, or from its second; winners into e->winner. */
ROW_PART void run_race(ending *e, const row_team &team, const row_race &race, bool begun) {
    if (!begun) {
        race_begin(team, race);
        team_barrier(team);
    }
    race_end(team, race);
    team_barrier(team);
    if ((int32_t)threadIdx.x < race.count)
        e->winner[race.first + threadIdx.x] = winner_of(team, race, (int32_t)threadIdx.x);
    __syncthreads();
}

/* Races until the winner is in the nucleus. */
ROW_PART void draw_in_nucleus(ending *e, const fs_cuda_args &args, row_team &team, const row_view &r, row_race race,
                              const cut_scale &units) {
    const row_entries all = entries_of(e, r, r.y, e->rules.cut_scale, e->summary.max_y);
    const bool ties = args.batch.flags & FS_KEEP_TIES_TOP_P;
    unsigned long long weight = 0;
    for (int32_t i = 0; i < team.size; i++) weight += e->mass_of[i].weight;
    const nucleus n(e->rules.top_p, weight, r.high - r.low);
    for (;;) {
        const uint32_t token = score_key_token(e->winner[0]);
        const float y = logit_at(team, r, r.y, token);
        const uint64_t key = order_key(y, token), before = (ties ? key | 0xFFFFFFFFu : key) + 1;
        const uint64_t above = weight_of(team, all.from(before));
        if (above < n.mark && n.weighs_enough(units.weigh(y))) return;
        race.last = before;
        run_race(e, team, race, false);
    }
}

FS_DEVICE void draw_by_groups(ending *e, const fs_cuda_args &args, const row_race &race) {
    group_window *window = (group_window *)(row_shared() + ENDING_BYTES);
    race_open(race);
    choose_group(window, race, args.batch);
    if (threadIdx.x == 0) {
        const fs_choice &choice = window->choice;
        e->winner[0] = choice_winner(&choice, group_is_a_law(&e->rules, e->summary.flags)).key;
        e->summary.mass = choice.mass;
    }
    __syncthreads();
}

/* The keys of entries from `last` on to the first CTA's list, in no order, as many as there is room for; returns how
 * many there are. */
template <class E> FS_DEVICE uint32_t list_from(ending *e, row_team &team, const E &entries, uint64_t last) {
    if (threadIdx.x == 0) e->listed = 0;
    team_barrier(team);
    uint32_t own = 0;
    entries.each([&](uint64_t key) {
        if (key < last) return;
        const uint32_t at = atomicAdd(at_peer(team, &e->listed, 0), 1u);
        if (at < MOST_SAMPLES) *at_peer(team, &e->list[at], 0) = key;
        own++;
    });
    return (uint32_t)team_sum(team, own);
}

/* The first CTA's list in falling order, at most `most` of it, into its winners. */
ROW_PART void sort_list(ending *e, uint32_t count, uint32_t most) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint32_t ahead = 0;
        for (uint32_t j = 0; j < count; j++) ahead += e->list[j] > e->list[i];
        if (ahead < most) e->winner[ahead] = e->list[i];
    }
    __syncthreads();
}

/* Samples without replacement: the first of all scores. Returns how many there are. */
ROW_PART int32_t draw_in_order(ending *e, row_team &team, const row_view &r, row_race race, int32_t n) {
    const fs_rules &rules = e->rules;
    /* Noise is between -4 and 45, and nobody of interest far below its middle. */
    const scored_entries all = {&race, noise_row(rules.seed, rules.position, 0, rules.stream), r.high - r.low,
                                race.top + 45.0f, 90.0f};
    const uint64_t last = select_last(team, &e->select, all, (uint64_t)n, SELECT_ALL);
    const int32_t drawn = (int32_t)min(list_from(e, team, all, last), (uint32_t)n);
    if (team.rank == 0) sort_list(e, (uint32_t)drawn, (uint32_t)n);
    team_barrier(team);
    if (team.rank != 0)
        for (int32_t i = threadIdx.x; i < drawn; i += blockDim.x) e->winner[i] = *at_peer(team, &e->winner[i], 0);
    team_barrier(team);
    return drawn;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* Token of sample i: drawn, or given. */
FS_DEVICE int64_t sample_token(const ending *e, const fs_cuda_args &args, int32_t i) {
    if (!args.needs.samples) return args.batch.given[e->row.b * args.batch.samples + i];
    return score_key_token(e->winner[i]);
}

/* Whether this CTA writes what is asked of a token: it has it, or nobody has and it is the first. */
FS_DEVICE bool writes_token(const row_team &team, const row_view &r, int64_t token) {
    return r.holds(token) ? r.x.holds(token) : team.rank == 0;
}

FS_DEVICE float own_logit(const row_slice &s, int64_t token) {
    return s.holds(token) ? s.at((int32_t)token) : NAN;
}

ROW_PART void write_samples(ending *e, const fs_cuda_args &args, const row_team &team, const row_view &r,
                            int32_t drawn) {
    for (int32_t i = threadIdx.x; i < args.batch.samples; i += blockDim.x) {
        if (i >= drawn) {
            fs_row row = e->row; /* its status has a bit for such samples, which is not each thread's to set */
            if (team.rank == 0) row_write_no_sample(&row, i);
            continue;
        }
        const int64_t token = sample_token(e, args, i);
        const double score = args.needs.samples ? score_key_value(e->winner[i]) : NAN;
        if (writes_token(team, r, token))
            row_write_sample(&e->row, i, token, own_logit(r.x, token), own_logit(r.y, token), score);
    }
}

/* The logits that ranks and the best are about, and the least key of theirs that counts. */
struct ranked {
    bool raw;
    row_slice v;
    uint64_t least;
};

ROW_PART ranked ranked_of(const ending *e, const fs_cuda_args &args, const row_view &r) {
    const float inverse = e->rules.inverse_temperature;
    if (args.result.logits == FS_LOGITS_RAW) return {true, r.x, 1};
    if (args.result.logits == FS_LOGITS_CUT && e->row.has_cut) return {false, r.y, e->row.cut.last};
    return {false, r.y, least_key([&](float y) { return y * inverse > -INFINITY; })};
}

/* How many of this thread's tokens are ahead of one. */
static __device__ __noinline__ uint32_t count_ahead(const ranked &of, float own, int64_t own_token, bool ties) {
    uint32_t ahead = 0;
    each_from(of.v, own, [&](int32_t token, float v) {
        if (v == own && (!ties || token == own_token)) return;
        ahead += order_key(v, (uint32_t)token) >= of.least;
    });
    return ahead;
}

/* Ranks of all samples, some at a time. */
ROW_PART void write_ranks(ending *e, const fs_cuda_args &args, const row_team &team, const row_view &r,
                          const ranked &of, int32_t drawn) {
    const bool ties = args.batch.flags & FS_RANK_OF_TIES;
    const int32_t samples = args.batch.samples, j = threadIdx.x;
    for (int32_t first = 0, turn = 0; first < samples; first += RACES, turn ^= 1) {
        const int32_t count = min(RACES, samples - first);
        auto token_of = [&](int32_t i) { return first + i < drawn ? sample_token(e, args, first + i) : -1; };
        if (j < count) {
            e->own_ahead[j] = 0;
            e->sample_logit[j] = logit_at(team, r, of.v, token_of(j));
        }
        __syncthreads();
        for (int32_t i = 0; i < count; i++) {
            if (e->sample_logit[i] != e->sample_logit[i]) continue;
            const uint32_t ahead = __reduce_add_sync(~0u, count_ahead(of, e->sample_logit[i], token_of(i), ties));
            if (threadIdx.x % 32 == 0 && ahead) atomicAdd(&e->own_ahead[i], ahead);
        }
        __syncthreads();
        if (j < count) *at_peer(team, &e->ahead[turn][team.rank][j], 0) = e->own_ahead[j];
        team_barrier(team);
        if (team.rank != 0 || j >= count) continue;
        uint32_t all = 0;
        for (int32_t i = 0; i < team.size; i++) all += e->ahead[turn][i][j];
        args.result.rank[e->row.b * samples + first + j] = r.holds(token_of(j)) ? (int32_t)all + 1 : -1;
    }
}

ROW_PART void write_best(ending *e, const fs_cuda_args &args, row_team &team, const row_view &r, const ranked &of) {
    const fs_result &result = args.result;
    const float first = of.raw ? e->summary.max_x : e->summary.max_y;
    row_entries all = entries_of(e, r, of.v, 1.0f, first).from(of.least);
    const uint64_t floor = kth_floor(e, e->most[of.raw ? 0 : 1], result.top_count);
    uint32_t found = MOST_SAMPLES + 1;
    if (floor > 1) found = list_from(e, team, all.from(floor), floor);
    if (found > MOST_SAMPLES)
        found = list_from(e, team, all,
                          select_last(team, &e->select, all.from(floor), (uint64_t)result.top_count, SELECT_ALL));
    if (team.rank != 0) return;
    sort_list(e, found, (uint32_t)result.top_count);
    for (int32_t i = threadIdx.x; i < result.top_count; i += blockDim.x) {
        const int64_t at = e->row.b * result.top_count + i;
        const uint64_t key = (uint32_t)i < found ? e->winner[i] : FS_KEY_NONE;
        const float logit = key ? row_logit(&e->row, order_key_logit(key), order_key_logit(key)) : NAN;
        if (result.top_token) result.top_token[at] = key ? (int32_t)order_key_token(key) : -1;
        if (result.top_logit) result.top_logit[at] = logit;
        if (result.top_logprob) result.top_logprob[at] = key ? (float)row_below_log_z(&e->row, logit) : NAN;
    }
}

ROW_PART void write_watched(const ending *e, const fs_cuda_args &args, const row_team &team, const row_view &r) {
    const fs_batch &batch = args.batch;
    const fs_result &result = args.result;
    const int64_t end = batch.watch_offset[e->row.b + 1];
    for (int64_t at = batch.watch_offset[e->row.b] + threadIdx.x; at < end; at += blockDim.x) {
        const int32_t token = batch.watch_token[at];
        if (!writes_token(team, r, token)) continue;
        const float x = own_logit(r.x, token), y = own_logit(r.y, token);
        const float logit = y == y ? row_logit(&e->row, x, y) : NAN;
        if (result.watch_logit) result.watch_logit[at] = logit;
        if (result.watch_logprob) result.watch_logprob[at] = (float)row_logprob(&e->row, logit, y, (uint32_t)token);
    }
}

FS_DEVICE void write_results(ending *e, const fs_cuda_args &args, row_team &team, const row_view &r, int32_t drawn) {
    const fs_result &result = args.result;
    const bool best = result.top_token || result.top_logit || result.top_logprob;
    if (threadIdx.x == 0) e->row.log_z = row_log_z(&e->row);
    __syncthreads();
    write_samples(e, args, team, r, drawn);
    if (args.batch.watch_offset) write_watched(e, args, team, r);
    if (result.rank || best) {
        const ranked of = ranked_of(e, args, r);
        if (result.rank) write_ranks(e, args, team, r, of, drawn);
        __syncthreads(); /* the best come where the drawn were */
        if (best) write_best(e, args, team, r, of);
    }
    __syncthreads();
    if (threadIdx.x != 0 || team.rank != 0) return;
    if (drawn < args.batch.samples) e->row.status |= FS_ROW_SHORT;
    if (result.max_logit) result.max_logit[e->row.b] = row_logit(&e->row, e->summary.max_x, e->summary.max_y);
    if (result.log_z) result.log_z[e->row.b] = (float)e->row.log_z;
    if (result.status) result.status[e->row.b] = e->row.status;
}

/* ------------------------------------------------------------------------------------------------------ kernel ---- */

/* From the first barrier on. Returns how many samples there are. */
FS_DEVICE int32_t draw_row(ending *e, const fs_cuda_args &args, row_team &team, const row_view &r, row_race race,
                           bool begun) {
    const int32_t n = args.needs.samples;
    const float first = e->summary.max_y * e->rules.cut_scale;
    const bool asks = may_ask_winner(args, e->rules) && fabsf(first) <= FS_EXP_EXACT;
    const cut_scale units(e->rules.cut_scale, e->summary.max_y);
    tell_masses(e, args, team, r, asks ? &units : NULL);
    race.top = e->summary.max_y * e->rules.inverse_temperature;
    if (rules_cut(&e->rules) && !asks) {
        find_cut(e, args, team, r);
        race.last = e->row.cut.last;
        begun = false;
    }
    if (n == 0 || args.needs.ordered || batch_is_grouped(&args.batch)) {
        team_barrier(team);
        hear_masses(e, team);
        if (n == 0) return args.batch.samples;
        if (args.needs.ordered) return draw_in_order(e, team, r, race, n);
        draw_by_groups(e, args, race);
        return n;
    }
    for (race.first = 0; race.first < n; race.first += RACES) {
        race.count = min(RACES, n - race.first);
        run_race(e, team, race, begun && race.first == 0);
    }
    race.first = 0;
    hear_masses(e, team);
    if (asks) draw_in_nucleus(e, args, team, r, race, units);
    return n;
}

__global__ void __launch_bounds__(FS_CUDA_TEAM_THREADS, 1) end_rows(const __grid_constant__ fs_cuda_args args) {
    ending *e = (ending *)row_shared();
    row_team team = team_of(args.team.size);
    const int64_t place = blockIdx.x / (unsigned)args.team.size;
    wait_for_earlier_launches();
    int64_t b = args.first_row + place;
    if (args.lists.by_place) {
        if (b >= args.lists.open[0]) return;
        b = args.lists.open[1 + b];
    }
    if (threadIdx.x == 0) open_row(e, args, b);
    for (int32_t i = threadIdx.x; i < 2 * FLOORS; i += blockDim.x) (&e->own_most[0][0])[i] = 0;
    if (threadIdx.x == 32) e->own = {0, 0, 0, 0};
    row_view r = view_of(args, team);
    slice_facts x;
    const bool masked = args.batch.allow; /* rows that are dropped may have no mask */
    if (!masked) x = bring_x(args, &r, b, place);
    __syncthreads();
    check_row(e, args, b);
    if (rules_drop_row(&e->rules)) {
        if (team.rank == 0 && threadIdx.x == 0) e->result.rank = args.result.rank, row_write_absent(&e->row);
        return;
    }
    if (masked) x = bring_x(args, &r, b, place);
    slice_facts y = x;
    const fs_cuda_edits edits = edits_of_row(&args.batch, &e->rules, args.vocab, b);
    __syncthreads();
    if (edits.edits > 0 || edits.penalises) y = bring_y(args, edits, &r, place);
    gather_facts(e, team, x, y);
    const int32_t n = args.needs.samples;
    row_race race = {r.y, &e->rules, args.batch.noise, 0.0f, 1, &e->race, &e->told, 0, min(n, RACES)};
    const bool begins = n > 0 && !args.needs.ordered && !batch_is_grouped(&args.batch) &&
                        (!rules_cut(&e->rules) || may_ask_winner(args, e->rules));
    if (begins) race_begin(team, race);
    tell_facts(e, team);
    team_barrier(team);
    hear_facts(e, team);
    if (!(e->row.status & FS_ROW_NO_TOKEN)) {
        const int32_t drawn = draw_row(e, args, team, r, race, begins);
        write_results(e, args, team, r, drawn);
    } else if (team.rank == 0 && threadIdx.x == 0) e->result.rank = args.result.rank, row_write_absent(&e->row);
}

} // namespace

extern "C" int32_t fs_cuda_rows_shared(int32_t grouped) {
    return ENDING_BYTES + (grouped ? (int32_t)sizeof(group_window) : 0);
}

static void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute (&attribute)[2], int64_t rows,
                      const fs_cuda_team &team, bool overlap, cudaStream_t stream) {
    config->gridDim = dim3((unsigned)(rows * team.size));
    config->blockDim = dim3((unsigned)team.threads);
    config->dynamicSmemBytes = (size_t)team.shared_bytes;
    config->stream = stream;
    config->attrs = attribute;
    config->numAttrs = 0;
    if (team.size > 1) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = (unsigned)team.size;
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    if (overlap) {
        cudaLaunchAttribute &a = attribute[config->numAttrs++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
}

/* How many CTAs can be a team: as many as run at once. */
extern "C" cudaError_t fs_cuda_rows_open(fs_cuda_device *device) {
    device->team = 1;
    cudaError_t error =
        cudaFuncSetAttribute(end_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, device->shared_bytes);
    for (int32_t size = FS_CUDA_TEAM; device->major >= 9 && error == cudaSuccess && size > device->team; size /= 2) {
        const fs_cuda_team team = {size, FS_CUDA_TEAM_THREADS, 0, 0, device->shared_bytes};
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute[2];
        int clusters = 0;
        configure(&config, attribute, 1, team, false, 0);
        error = cudaOccupancyMaxActiveClusters(&clusters, end_rows, &config);
        if (clusters > 0) device->team = size;
    }
    return error;
}

extern "C" cudaError_t fs_cuda_rows_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    configure(&config, attribute, args->rows, args->team, args->overlap, stream);
    return cudaLaunchKernelEx(&config, end_rows, *args);
}
