/* rows.cu - the end of rows with rules: a CTA has one row whose logits are in memory, the caller's or work memory,
 * cuts, draws, and writes all that was asked. What a result means is core/finish.h's; here is how a CTA finds it. */
#include "cuda/cuda_launch.h"
#include "cuda/device/mass.cuh"
#include "cuda/rows/ending.cuh"
#include "cuda/rows/groups.cuh"

namespace {

constexpr int MOST_SAMPLES = 1024; /* and most of the best */
constexpr int RANKS_AT_ONCE = 8;

struct ending : row_ending {
    float least; /* of all finite x and y */
    union {
        select_room room;
        group_window window; /* of draws by groups */
    };
    unsigned long long winner[MOST_SAMPLES]; /* score keys, or order keys of the best */
    unsigned long long list[MOST_SAMPLES];   /* what top-k leaves, where it is so little */
};

/* ------------------------------------------------------------------------------------------------------ logits ---- */

/* x and y of the row. `in_place`: dot products are in the room for x. */
FS_DEVICE row_logits find_logits(const ending *e, const fs_cuda_args &args, int64_t b) {
    const fs_head &head = args.head;
    row_logits l = {NULL, NULL, (int32_t)head.first_token, (int32_t)min(head.first_token + head.rows, args.vocab)};
    const int32_t count = max(0, l.high - l.low);
    const uint32_t *allow = bits_row(args.batch.allow, args.batch.allow_stride, batch_mask(&args.batch, b), args.vocab);
    float *x = args.dense.x + blockIdx.x * args.dense.stride, *y = args.dense.y + blockIdx.x * args.dense.stride;
    const bool plain = head_is_plain(&head) && !allow;
    const fs_matrix stored = logits_of_head(&head);
    const bool in_place = head.kind != FS_HEAD_LOGITS;
    l.x = x;
    if (in_place) {
        if (!plain) shape_row(head, (const char *)x, FS_FORMAT_F32, allow, l.low, count, x);
    } else if (plain && stored.format == FS_FORMAT_F32) l.x = (const float *)matrix_row(&stored, b);
    else shape_row(head, matrix_row(&stored, b), stored.format, allow, l.low, count, x);
    l.y = l.x;
    __syncthreads();
    const fs_cuda_edits edits = edits_of_row(&args.batch, &e->rules, args.vocab, b);
    if (edits.edits > 0 || edits.penalises) {
        edit_row(edits, l.x, l.low, count, y);
        l.y = y;
        __syncthreads();
    }
    return l;
}

/* A mass over the CTA. */
FS_DEVICE fs_mass block_mass(fs_mass m) {
    __shared__ fs_mass part[ROW_WARPS];
    for (int apart = 16; apart; apart /= 2) {
        const fs_mass other = mass_across(m, apart);
        mass_merge(&m, &other);
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    m = part[0];
    for (int w = 1; w < ROW_WARPS; w++) mass_merge(&m, &part[w]);
    __syncthreads();
    return m;
}

/* The sum of exp(v scale), granule by granule as in core/mass.h: half a warp has one. */
FS_DEVICE fs_mass row_mass_of(const float *v, int32_t low, int32_t high, float scale) {
    constexpr int AT_ONCE = 8; /* loads ahead of their use, as in each_value */
    fs_mass mass = mass_empty();
    float ahead[AT_ONCE];
    for (int32_t start = low / 32 * 32, i = 0; start < high; start += ROW_THREADS, i++) {
        if (i % AT_ONCE == 0)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int32_t token = start + j * ROW_THREADS + (int32_t)threadIdx.x;
                ahead[j] = token >= low && token < high ? v[token - low] : -INFINITY;
            }
        float l = ahead[0] * scale;
#pragma unroll
        for (int j = 0; j + 1 < AT_ONCE; j++) ahead[j] = ahead[j + 1];
        if (l != l) l = -INFINITY;
        add_granules(&mass, l);
    }
    return block_mass(mass);
}

/* The summary of a row: flags, the largest logits, masses. */
FS_DEVICE void summarise(ending *e, const fs_cuda_args &args, const row_logits &l) {
    const float inverse = e->rules.inverse_temperature;
    uint32_t flags = 0;
    float most_x = -INFINITY, least = INFINITY;
    auto look = [&](float v, float *most) {
        if (v != v) flags |= FS_ROW_NAN;
        *most = fmaxf(*most, v);
        least = fminf(least, v > -INFINITY ? v : INFINITY);
    };
    each_value(l.x, l.high - l.low, [&](int32_t, float x) { look(x, &most_x); });
    float most_y = most_x;
    if (l.y != l.x) {
        most_y = -INFINITY;
        each_value(l.y, l.high - l.low, [&](int32_t, float y) { look(y, &most_y); });
    }
    const float max_x = block_largest(most_x), max_y = block_largest(most_y);
    if (max_x == INFINITY || max_y * inverse == INFINITY) flags |= FS_ROW_INF;
    flags = block_or(flags);
    least = -block_largest(-least);
    fs_mass raw_mass = mass_empty(), mass = mass_empty();
    if (args.needs.raw_mass) raw_mass = row_mass_of(l.x, l.low, l.high, 1.0f);
    if (args.needs.mass) mass = row_mass_of(l.y, l.low, l.high, inverse);
    if (threadIdx.x == 0) {
        e->summary.flags = flags;
        e->summary.max_x = max_x;
        e->summary.max_y = max_y;
        e->least = least < INFINITY ? least : 0.0f;
        e->summary.raw_mass = raw_mass;
        e->summary.mass = mass;
        e->row.status |= flags;
        if (!(e->summary.max_y * inverse > -INFINITY)) e->row.status |= FS_ROW_EMPTY;
    }
    __syncthreads();
}

/* ------------------------------------------------------------------------------------------------------- draws ---- */

/* Weights further than 40 below the largest are nothing. */
FS_DEVICE row_entries entries_of(const ending *e, const float *y, const row_logits &l, float scale, float first) {
    return {{l.high - l.low, l.high - l.low, 1, cut_scale(scale, first), first, fminf(first - e->least, 40.0f / scale)},
            y,
            l.low};
}

/* Finds what the cuts leave. */
FS_DEVICE void find_cut(ending *e, const fs_cuda_args &args, const row_logits &l, short_list *list) {
    const fs_rules &rules = e->rules;
    list->count = list->room + 1;
    if (!rules_cut(&rules)) return;
    const float first = e->summary.max_y;
    const row_entries all = entries_of(e, l.y, l, rules.cut_scale, first);
    const uint64_t last = cut_row(&e->room, all, rules, args.batch.flags, first, list);
    double log_z = NAN;
    if (args.result.logits == FS_LOGITS_CUT && result_wants_log_z(&args.result)) {
        const row_entries kept = entries_of(e, l.y, l, rules.inverse_temperature, first).from(last);
        log_z = kept.units.log_of(weight_of(kept));
    }
    if (threadIdx.x == 0) {
        e->row.has_cut = 1;
        e->row.cut = {1, 1, 1, last, log_z};
    }
    __syncthreads();
}

/* The samples' keys into e->winner; returns how many there are. */
FS_DEVICE int32_t draw(ending *e, const fs_cuda_args &args, const row_logits &l, const short_list &list) {
    const fs_rules &rules = e->rules;
    const int32_t n = args.needs.samples;
    row_race race = {l, &rules, args.batch.noise, e->row.has_cut ? e->row.cut.last : 1, {}, NULL, 0};
    if (list.count <= list.room) race.list = list.key, race.listed = list.count;
    race.noise = noise_row(rules.seed, rules.position, 0, rules.stream);
    if (batch_is_grouped(&args.batch)) {
        choose_group(&e->window, race, args.batch);
        if (threadIdx.x == 0) {
            const fs_choice &choice = e->window.choice;
            e->winner[0] = choice_winner(&choice, group_is_a_law(&rules, e->summary.flags)).key;
            e->summary.mass = choice.mass;
        }
        __syncthreads();
        return n;
    }
    if (args.needs.ordered) {
        /* Noise is between -4 and 45, and nobody of interest far below its middle. */
        const scored_entries all = {&race, race.list ? race.listed : l.high - l.low,
                                    e->summary.max_y * rules.inverse_temperature + 45.0f, 90.0f};
        const uint64_t last = select_last(&e->room, all, (uint64_t)n, SELECT_ALL);
        return (int32_t)sort_from(all, last, (uint32_t)n, e->room.mass, e->winner);
    }
    for (int32_t i = 0; i < n; i++) {
        race.noise = noise_row(rules.seed, rules.position, (uint32_t)i, rules.stream);
        const uint64_t key = race_once(race);
        if (threadIdx.x == 0) e->winner[i] = key;
    }
    __syncthreads();
    return n;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

FS_DEVICE float logit_at(const row_logits &l, const float *v, int64_t token) {
    if (!l.holds(token)) return NAN;
    const float x = v[token - l.low];
    return x == x ? x : -INFINITY;
}

/* Token of sample i: drawn, or given. */
FS_DEVICE int64_t sample_token(const ending *e, const fs_cuda_args &args, int32_t i) {
    if (!args.needs.samples) return args.batch.given[e->row.b * args.batch.samples + i];
    return score_key_token(e->winner[i]);
}

FS_DEVICE void write_samples(ending *e, const fs_cuda_args &args, const row_logits &l, int32_t drawn) {
    for (int32_t i = threadIdx.x; i < args.batch.samples; i += ROW_THREADS) {
        if (i >= drawn) {
            fs_row row = e->row; /* its status has a bit for such samples, which is not each thread's to set */
            row_write_no_sample(&row, i);
            continue;
        }
        const int64_t token = sample_token(e, args, i);
        const double score = args.needs.samples ? score_key_value(e->winner[i]) : NAN;
        row_write_sample(&e->row, i, token, logit_at(l, l.x, token), logit_at(l, l.y, token), score);
    }
}

/* The logits that ranks and the best are about, and the least key of theirs that counts. */
struct ranked {
    const float *v;
    uint64_t least;
};

FS_DEVICE ranked ranked_of(const ending *e, const fs_cuda_args &args, const row_logits &l) {
    const float inverse = e->rules.inverse_temperature;
    if (args.result.logits == FS_LOGITS_RAW) return {l.x, 1};
    if (args.result.logits == FS_LOGITS_CUT && e->row.has_cut) return {l.y, e->row.cut.last};
    return {l.y, least_key([&](float y) { return y * inverse > -INFINITY; })};
}

/* Ranks of all samples, some at a time. */
FS_DEVICE void write_ranks(const ending *e, const fs_cuda_args &args, const row_logits &l, int32_t drawn) {
    const ranked of = ranked_of(e, args, l);
    const bool ties = args.batch.flags & FS_RANK_OF_TIES;
    for (int32_t first = 0; first < args.batch.samples; first += RANKS_AT_ONCE) {
        float own[RANKS_AT_ONCE];
        int64_t token[RANKS_AT_ONCE];
        uint32_t ahead[RANKS_AT_ONCE];
#pragma unroll
        for (int32_t j = 0; j < RANKS_AT_ONCE; j++) {
            token[j] = first + j < drawn ? sample_token(e, args, first + j) : -1;
            own[j] = logit_at(l, of.v, token[j]);
            ahead[j] = 0;
        }
        each_value(of.v, l.high - l.low, [&](int32_t i, float v) {
            if (!(v > -INFINITY) || order_key(v, (uint32_t)(l.low + i)) < of.least) return;
#pragma unroll
            for (int32_t j = 0; j < RANKS_AT_ONCE; j++)
                ahead[j] += v > own[j] || (ties && v == own[j] && l.low + i != token[j]);
        });
#pragma unroll
        for (int32_t j = 0; j < RANKS_AT_ONCE; j++) {
            const uint64_t all = block_sum(ahead[j]);
            if (threadIdx.x == 0 && first + j < args.batch.samples)
                args.result.rank[e->row.b * args.batch.samples + first + j] = l.holds(token[j]) ? (int32_t)all + 1 : -1;
        }
    }
}

FS_DEVICE void write_best(ending *e, const fs_cuda_args &args, const row_logits &l) {
    const fs_result &r = args.result;
    const ranked of = ranked_of(e, args, l);
    const float first = of.v == l.x ? e->summary.max_x : e->summary.max_y;
    row_entries all = entries_of(e, of.v, l, 1.0f, first).from(of.least);
    if (all.size > SELECT_FEW) {
        all = all.from(kth_of_threads(all.own_largest(), r.top_count));
        all.likely = 0; /* hardly more than are asked for */
    }
    const uint64_t last = select_last(&e->room, all, (uint64_t)r.top_count, SELECT_ALL);
    const int32_t n = (int32_t)sort_from(all, last, (uint32_t)r.top_count, e->room.mass, e->winner);
    for (int32_t i = threadIdx.x; i < r.top_count; i += ROW_THREADS) {
        const int64_t at = e->row.b * r.top_count + i;
        const uint64_t key = i < n ? e->winner[i] : FS_KEY_NONE;
        const float logit = key ? row_logit(&e->row, order_key_logit(key), order_key_logit(key)) : NAN;
        if (r.top_token) r.top_token[at] = key ? (int32_t)order_key_token(key) : -1;
        if (r.top_logit) r.top_logit[at] = logit;
        if (r.top_logprob) r.top_logprob[at] = key ? (float)row_below_log_z(&e->row, logit) : NAN;
    }
}

FS_DEVICE void write_watched(const ending *e, const fs_cuda_args &args, const row_logits &l) {
    const fs_batch &batch = args.batch;
    const fs_result &r = args.result;
    for (int64_t at = batch.watch_offset[e->row.b] + threadIdx.x; at < batch.watch_offset[e->row.b + 1];
         at += ROW_THREADS) {
        const int32_t token = batch.watch_token[at];
        const float x = logit_at(l, l.x, token), y = logit_at(l, l.y, token);
        const float logit = y == y ? row_logit(&e->row, x, y) : NAN;
        if (r.watch_logit) r.watch_logit[at] = logit;
        if (r.watch_logprob) r.watch_logprob[at] = (float)row_logprob(&e->row, logit, y, (uint32_t)token);
    }
}

FS_DEVICE void write_row_results(ending *e, const fs_cuda_args &args, const row_logits &l, int32_t drawn) {
    const fs_result &r = args.result;
    if (threadIdx.x == 0) e->row.log_z = row_log_z(&e->row);
    __syncthreads();
    write_samples(e, args, l, drawn);
    __syncthreads();
    if (threadIdx.x == 0 && drawn < args.batch.samples) e->row.status |= FS_ROW_SHORT;
    if (r.rank) write_ranks(e, args, l, drawn);
    __syncthreads(); /* the best come where the drawn were */
    if (r.top_token || r.top_logit || r.top_logprob) write_best(e, args, l);
    if (args.batch.watch_offset) write_watched(e, args, l);
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (r.max_logit) r.max_logit[e->row.b] = row_logit(&e->row, e->summary.max_x, e->summary.max_y);
    if (r.log_z) r.log_z[e->row.b] = (float)e->row.log_z;
    if (r.status) r.status[e->row.b] = e->row.status;
}

__global__ void __launch_bounds__(ROW_THREADS, 1) end_rows(const __grid_constant__ fs_cuda_args args) {
    extern __shared__ __align__(16) char shared[];
    ending *e = (ending *)shared;
    wait_for_earlier_launches();
    int64_t b = args.first_row + (int64_t)blockIdx.x;
    if (args.lists.by_place) {
        if (b >= args.lists.open[0]) return;
        b = args.lists.open[1 + b];
    }
    open_row(e, args, b);
    if (args.lists.by_place && threadIdx.x == 0) e->row.status |= FS_ROW_FALLBACK;
    if (!rules_drop_row(&e->rules)) {
        const row_logits l = find_logits(e, args, b);
        summarise(e, args, l);
        if (!(e->row.status & FS_ROW_NO_TOKEN)) {
            short_list list = {e->list, MOST_SAMPLES, 0};
            find_cut(e, args, l, &list);
            const int32_t drawn = args.needs.samples ? draw(e, args, l, list) : args.batch.samples;
            write_row_results(e, args, l, drawn);
            return;
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    e->result.rank = args.result.rank;
    row_write_absent(&e->row);
}

} // namespace

extern "C" cudaError_t fs_cuda_rows_open(void) {
    return cudaFuncSetAttribute(end_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(ending));
}

extern "C" cudaError_t fs_cuda_rows_launch(const fs_cuda_args *args, cudaStream_t stream) {
    end_rows<<<(unsigned)args->rows, ROW_THREADS, sizeof(ending), stream>>>(*args);
    return cudaGetLastError();
}
