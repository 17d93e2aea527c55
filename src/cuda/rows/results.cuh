/* results.cuh - what is written of a row: its samples, watched tokens, ranks, the best. */
#ifndef FS_CUDA_ROWS_RESULTS_CUH
#define FS_CUDA_ROWS_RESULTS_CUH

#include "cuda/rows/facts.cuh"

/* ------------------------------------------------------------------------------------------------------- lists ---- */

/* A key to the first CTA's list, where there is room; `use` counts. */
FS_DEVICE void list_key(ending *e, int use, uint64_t key) {
    const uint32_t at = atomicAdd(at_peer(&e->listed[use], 0), 1u);
    if (at < MOST_SAMPLES) *at_peer(&e->list[at], 0) = key;
}

/* The keys of entries from `last` on, in no order; returns how many there are. */
template <class E> FS_DEVICE uint32_t list_from(ending *e, int use, const E &entries, uint64_t last) {
    uint32_t own = 0;
    entries.each([&](uint64_t key) {
        if (key < last) return;
        list_key(e, use, key);
        own++;
    });
    return (uint32_t)team_sum(own);
}

/* The first CTA's list in falling order, at most `most` of it, into its winners. */
ROW_PART void sort_list(uint32_t count, uint32_t most) {
    ending *e = this_ending();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint32_t ahead = 0;
        for (uint32_t j = 0; j < count; j++) ahead += e->list[j] > e->list[i];
        if (ahead < most) e->winner[ahead] = e->list[i];
    }
    __syncthreads();
}

/* Weights further than 40 below the largest are nothing. */
FS_DEVICE row_entries entries_of(const ending *e, const row_slice &v, float scale, float first) {
    const int64_t size = e->view.high - e->view.low;
    return {v, size, size, 1, cut_scale(scale, first), first, fminf(first - e->least, 40.0f / scale)};
}

/* ----------------------------------------------------------------------------------------------------- samples ---- */

/* Token of sample i: drawn, or given. */
FS_DEVICE int64_t sample_token(const ending *e, int32_t i) {
    if (!e->args.needs.samples) return e->args.batch.score_token[e->row.b * e->args.batch.samples + i];
    return score_key_token(e->winner[i]);
}

/* Whether this CTA writes what is asked of a token: it has it, or nobody has and it is the first. */
FS_DEVICE bool writes_token(const row_view &r, int64_t token) {
    return r.holds(token) ? r.x.holds(token) : team_rank() == 0;
}

FS_DEVICE float own_logit(const row_slice &s, int64_t token) {
    return s.holds(token) ? s.at((int32_t)token) : NAN;
}

ROW_PART void write_samples(int32_t drawn) {
    ending *e = this_ending();
    const row_view &r = e->view;
    for (int32_t i = threadIdx.x; i < e->args.batch.samples; i += blockDim.x) {
        if (i >= drawn) {
            fs_row row = e->row; /* its status has a bit for such samples, which is not each thread's to set */
            if (team_rank() == 0) row_write_no_sample(&row, i);
            continue;
        }
        const int64_t token = sample_token(e, i);
        const double score = e->args.needs.samples ? score_key_value(e->winner[i]) : NAN;
        if (writes_token(r, token))
            row_write_sample(&e->row, i, token, own_logit(r.x, token), own_logit(r.y, token), score);
    }
}

ROW_PART void write_watched() {
    const ending *e = this_ending();
    const row_view &r = e->view;
    const fs_batch &batch = e->args.batch;
    const fs_result &result = e->args.result;
    const int64_t end = batch.watch_offset[e->row.b + 1];
    for (int64_t at = batch.watch_offset[e->row.b] + threadIdx.x; at < end; at += blockDim.x) {
        const int32_t token = batch.watch_token[at];
        if (!writes_token(r, token)) continue;
        const float x = own_logit(r.x, token), y = own_logit(r.y, token);
        const float logit = y == y ? row_logit(&e->row, x, y) : NAN;
        if (result.watch_logit) result.watch_logit[at] = logit;
        if (result.watch_logprob) result.watch_logprob[at] = (float)row_logprob(&e->row, logit, y, (uint32_t)token);
    }
}

/* ------------------------------------------------------------------------------------------------------- ranks ---- */

/* The logits that ranks and the best are about, and the least key of theirs that counts. */
struct ranked {
    bool raw;
    row_slice v;
    uint64_t least;
};

FS_DEVICE ranked ranked_of(const ending *e) {
    const float inverse = e->rules.inverse_temperature;
    if (e->args.result.logits_mode == FS_LOGITS_RAW) return {true, e->view.x, 1};
    if (e->args.result.logits_mode == FS_LOGITS_CUT && e->row.has_cut) return {false, e->view.y, e->row.cut.last};
    return {false, e->view.y, least_key([&](float y) { return y * inverse > -INFINITY; })};
}

/* How many of this thread's tokens are ahead of one. */
FS_DEVICE uint32_t count_ahead(const ranked &of, float own, int64_t own_token, bool ties) {
    uint32_t ahead = 0;
    each_from(of.v, own, [&](int32_t token, float v) {
        if (v == own && (!ties || token == own_token)) return;
        ahead += order_key(v, (uint32_t)token) >= of.least;
    });
    return ahead;
}

/* The logit of any token of the row, wherever it is; NaN: of none. */
FS_DEVICE float logit_at(const row_view &r, const row_slice &s, int64_t token) {
    if (!r.holds(token)) return NAN;
    if (!s.clean) {
        const float v = s.v[token - s.base];
        return v == v ? v : -INFINITY;
    }
    const int32_t block = (int32_t)token / FS_CUDA_TILE - r.first, owner = block / r.share;
    return *at_peer(s.v + ((int32_t)token - (r.first + owner * r.share) * FS_CUDA_TILE), owner);
}

/* Ranks of all samples, some at a time. */
ROW_PART void write_ranks(int32_t drawn) {
    ending *e = this_ending();
    const row_view &r = e->view;
    const ranked of = ranked_of(e);
    const bool ties = e->args.batch.flags & FS_RANK_OF_TIES;
    const int32_t samples = e->args.batch.samples, j = threadIdx.x;
    for (int32_t first = 0, turn = 0; first < samples; first += RACES, turn ^= 1) {
        const int32_t count = min(RACES, samples - first);
        auto token_of = [&](int32_t i) { return first + i < drawn ? sample_token(e, first + i) : -1; };
        if (j < count) {
            e->own_ahead[j] = 0;
            e->sample_logit[j] = logit_at(r, of.v, token_of(j));
        }
        __syncthreads();
        for (int32_t i = 0; i < count; i++) {
            if (e->sample_logit[i] != e->sample_logit[i]) continue;
            const uint32_t ahead = __reduce_add_sync(~0u, count_ahead(of, e->sample_logit[i], token_of(i), ties));
            if (threadIdx.x % 32 == 0 && ahead) atomicAdd(&e->own_ahead[i], ahead);
        }
        __syncthreads();
        if (j < count) *at_peer(&e->ahead[turn][team_rank()][j], 0) = e->own_ahead[j];
        team_barrier();
        if (team_rank() != 0 || j >= count) continue;
        uint32_t all = 0;
        for (int32_t i = 0; i < team_size(); i++) all += e->ahead[turn][i][j];
        e->args.result.rank[e->row.b * samples + first + j] = r.holds(token_of(j)) ? (int32_t)all + 1 : -1;
    }
}

/* -------------------------------------------------------------------------------------------------------- best ---- */

/* Those that may be of the best are listed before the race, whose barrier then does for both, where a floor is known
 * and it does not depend on the draw. */
ROW_PART void list_best() {
    ending *e = this_ending();
    const fs_cuda_args &args = e->args;
    if (args.result.logits_mode == FS_LOGITS_CUT || args.needs.ordered) return;
    const ranked of = ranked_of(e);
    const uint64_t kth = kth_floor(e->most[of.raw ? 0 : 1], args.result.top_count), floor = max(of.least, kth);
    if (kth <= 1) return;
    if (threadIdx.x == 0) e->best_floor = floor;
    masses *own = &e->mass_of[team_rank()];
    each_from(of.v, order_key_logit(floor), [&](int32_t token, float v) {
        const uint64_t key = order_key(v, (uint32_t)token);
        if (key < floor) return;
        list_key(e, LIST_BEST, key);
        atomicAdd(&own->listed, 1u);
    });
}

/* The first CTA's list has all of the best: how many keys there are. */
ROW_PART uint32_t find_best() {
    ending *e = this_ending();
    if (e->best_floor) {
        const uint32_t found = listed_of_team(e);
        if (found <= MOST_SAMPLES) return found;
    }
    const ranked of = ranked_of(e);
    const float first = of.raw ? e->summary.max_x : e->summary.max_y;
    const row_entries all = entries_of(e, of.v, 1.0f, first).from(max(of.least, e->best_floor));
    const uint64_t last = select_last(&e->select, all, (uint64_t)e->args.result.top_count, SELECT_ALL);
    return list_from(e, LIST_SELECTED, all, last);
}

ROW_PART void write_best() {
    ending *e = this_ending();
    const fs_result &result = e->args.result;
    const uint32_t found = find_best();
    if (team_rank() != 0) return;
    sort_list(found, (uint32_t)result.top_count);
    for (int32_t i = threadIdx.x; i < result.top_count; i += blockDim.x)
        row_write_best(&e->row, i, (uint32_t)i < found ? e->winner[i] : FS_KEY_NONE);
}

/* --------------------------------------------------------------------------------------------------------- all ---- */

FS_DEVICE void write_results(int32_t drawn) {
    ending *e = this_ending();
    const fs_result &result = e->args.result;
    if (threadIdx.x == 0) e->row.log_z = row_log_z(&e->row);
    __syncthreads();
    write_samples(drawn);
    if (e->args.batch.watch_offset) write_watched();
    if (result.rank) write_ranks(drawn);
    __syncthreads(); /* the best come where the drawn were */
    if (result_wants_top(&result)) write_best();
    __syncthreads();
    if (threadIdx.x != 0 || team_rank() != 0) return;
    if (drawn < e->args.batch.samples) e->row.status |= FS_ROW_SHORT;
    if (result.max_logit) result.max_logit[e->row.b] = row_logit(&e->row, e->summary.max_x, e->summary.max_y);
    if (result.log_z) result.log_z[e->row.b] = (float)e->row.log_z;
    if (result.status) result.status[e->row.b] = e->row.status;
}

#endif
