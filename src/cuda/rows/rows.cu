/* rows.cu - the end of rows with rules: a team of CTAs has one row whose logits are in memory, the caller's or work
 * memory, cuts, draws, and writes all that was asked. What a result means is core/finish.h's; here is how a team finds
 * it.
 *
 *   slices --barrier: largest logits, bounds of the race--> cut, race, masses --barrier: winner, masses--> results
 *
 * A cut that must be known before the race, ranks and the best take some barriers more. Nobody looks into another CTA's
 * shared memory after the last of them, so each may end when it is done. What threads know together is in shared memory
 * (ending.cuh), not on their stacks. */
#include "cuda/cuda_launch.h"
#include "cuda/rows/groups.cuh"
#include "cuda/rows/part.cuh"
#include "cuda/rows/teams.cuh"

namespace {

/* ------------------------------------------------------------------------------------------------------ logits ---- */

/* Where x of the slice comes from, and where it is looked at. */
FS_DEVICE slice_source source_of(const ending *e, int64_t b, int64_t place) {
    const fs_cuda_args &args = e->args;
    const fs_head &head = args.head;
    const uint32_t *allow = bits_row(args.batch.allow, args.batch.allow_stride, batch_mask(&args.batch, b), args.vocab);
    const bool is_stored = head.kind == FS_HEAD_LOGITS;
    const fs_matrix stored = logits_of_head(&head);
    float *x = args.dense.x + place * args.dense.stride;
    const char *row = is_stored ? matrix_row(&stored, b) : (const char *)x;
    const int32_t format = is_stored ? stored.format : FS_FORMAT_F32;
    slice_source from = {row, format, e->view.low, allow, NULL};
    if (e->view.x.clean) from.to = (float *)(row_shared() + ENDING_BYTES);
    else if (format != FS_FORMAT_F32 || allow || !head_is_plain(&head)) from.to = x + (e->view.x.base - e->view.low);
    return from;
}

/* Whether the slice is copied while rules are read. Rows that are dropped may have no mask. */
FS_DEVICE bool copies_x(const ending *e, const slice_source &from) {
    return !e->args.batch.allow && is_copied(e->args.head, from, e->view.x);
}

/* After begin_copy, where there was something to copy. */
ROW_PART slice_facts bring_x(int64_t b, int64_t place) {
    ending *e = this_ending();
    const slice_source from = source_of(e, b, place);
    const row_slice s = e->view.x;
    if (threadIdx.x == 0 && !s.clean) e->view.x.v = e->view.y.v = from.to ? from.to : from.at(s.base);
    return copies_x(e, from) ? end_copy(e->args.head, from, s) : load_slice(e->args.head, from, s);
}

/* y of the slice, where the row is edited. */
ROW_PART slice_facts bring_y(int64_t place) {
    ending *e = this_ending();
    const fs_cuda_args &args = e->args;
    const bool is_shared = args.team.slices > 1;
    const int32_t at = ENDING_BYTES + args.team.places * (int32_t)sizeof(float);
    float *y = args.dense.y + place * args.dense.stride + (e->view.x.base - e->view.low);
    if (is_shared) y = (float *)(row_shared() + at);
    if (threadIdx.x == 0) e->view.y.v = y, e->view.y.place = at, e->view.y.clean = is_shared;
    return edit_slice(e->edits, e->view.x, y, is_shared);
}

/* ------------------------------------------------------------------------------------------------- cuts, draws ---- */

/* Whether it is enough to know if the winner is in the nucleus: whoever stays of a row is above whoever does not, so
 * they race again if not. */
FS_DEVICE bool may_ask_winner(const ending *e) {
    const fs_cuda_args &args = e->args;
    return e->cuts && rules_top_p_alone(&e->rules) && args.needs.samples == 1 && !args.needs.ordered &&
           args.result.logits_mode != FS_LOGITS_CUT && !batch_is_grouped(&args.batch);
}

/* Whether the race begins before the row's largest logits are known: no cut comes first. */
FS_DEVICE bool begins_early(const ending *e) {
    const fs_cuda_args &args = e->args;
    return args.needs.samples > 0 && !args.needs.ordered && !batch_is_grouped(&args.batch) &&
           (!e->cuts || may_ask_winner(e));
}

/* Finds what the cuts leave. */
ROW_PART void find_cut() {
    ending *e = this_ending();
    const fs_cuda_args &args = e->args;
    const fs_row_rules &rules = e->rules;
    const float first = e->summary.max_y;
    const uint64_t kth = kth_floor(e->most[1], rules.top_k);
    const row_entries all = entries_of(e, e->view.y, rules.cut_scale, first);
    const uint64_t last = cut_row(&e->select, all, rules, args.batch.flags, first, kth);
    double log_z = NAN;
    if (args.result.logits_mode == FS_LOGITS_CUT && result_wants_log_z(&args.result)) {
        const row_entries kept = entries_of(e, e->view.y, rules.inverse_temperature, first).from(last);
        log_z = kept.units.log_of(weight_of(kept));
    }
    if (threadIdx.x == 0) {
        e->row.has_cut = 1;
        e->row.cut = {1, 1, 1, last, log_z};
        e->race.last = last;
    }
    __syncthreads();
}

/* One race from its first barrier on, or from its second; winners into e->winner. */
ROW_PART void run_race(bool begun) {
    ending *e = this_ending();
    const row_race &race = e->race;
    if (!begun) race_begin();
    race_end();
    team_barrier();
    if ((int32_t)threadIdx.x < race.count) e->winner[race.first + threadIdx.x] = winner_of((int32_t)threadIdx.x);
    __syncthreads();
}

/* Races until the winner is in the nucleus. */
ROW_PART void draw_in_nucleus() {
    ending *e = this_ending();
    const row_entries all = entries_of(e, e->view.y, e->rules.cut_scale, e->summary.max_y);
    const bool ties = e->args.batch.flags & FS_KEEP_TIES_TOP_P;
    const nucleus n(e->rules.top_p, weight_of_team(e), all.size);
    for (;;) {
        const uint32_t token = score_key_token(e->winner[0]);
        const float y = logit_at(e->view, e->view.y, token);
        const uint64_t key = order_key(y, token), before = (ties ? key | 0xFFFFFFFFu : key) + 1;
        const uint64_t above = weight_of(all.from(before));
        if (above < n.mark && n.weighs_enough(all.units.weigh(y))) return;
        if (threadIdx.x == 0) e->race.last = before;
        __syncthreads();
        run_race(false);
    }
}

ROW_PART void draw_by_groups() {
    ending *e = this_ending();
    group_window *window = (group_window *)(row_shared() + ENDING_BYTES);
    race_open();
    choose_group(window, e->race, e->args.batch);
    if (threadIdx.x == 0) {
        const fs_choice &choice = window->choice;
        e->winner[0] = choice_winner(&choice, group_is_a_law(&e->rules, e->summary.flags)).key;
        e->summary.mass = choice.mass;
    }
    __syncthreads();
}

/* Samples without replacement: the first of all scores. Returns how many there are. */
ROW_PART int32_t draw_in_order(int32_t n) {
    ending *e = this_ending();
    /* Noise is between -4 and 45, and nobody of interest far below its middle. */
    const scored_entries all = {&e->race, e->race.noise(0), e->view.high - e->view.low, e->race.top + 45.0f, 90.0f};
    const uint64_t last = select_last(&e->select, all, (uint64_t)n, SELECT_ALL);
    const int32_t drawn = (int32_t)min(list_from(e, LIST_DRAWN, all, last), (uint32_t)n);
    if (team_rank() == 0) sort_list((uint32_t)drawn, (uint32_t)n);
    team_barrier();
    if (team_rank() != 0)
        for (int32_t i = threadIdx.x; i < drawn; i += blockDim.x) e->winner[i] = *at_peer(&e->winner[i], 0);
    team_barrier();
    return drawn;
}

/* From the first barrier on. Returns how many samples there are. */
ROW_PART int32_t draw_row(bool begun) {
    ending *e = this_ending();
    const int32_t n = e->args.needs.samples;
    const bool asks = may_ask_winner(e) && fabsf(e->summary.max_y * e->rules.cut_scale) <= FS_EXP_EXACT;
    if (result_wants_top(&e->args.result) && !e->args.leave_rows) list_best();
    tell_masses(asks);
    if (e->cuts && !asks) {
        find_cut();
        begun = false;
    }
    if (n == 0 || e->args.needs.ordered || batch_is_grouped(&e->args.batch)) {
        team_barrier();
        hear_masses(e);
        if (n == 0) return e->args.batch.samples;
        if (e->args.needs.ordered) return draw_in_order(n);
        draw_by_groups();
        return n;
    }
    for (int32_t first = 0; first < n; first += RACES) {
        __syncthreads();
        if (threadIdx.x == 0) e->race.first = first, e->race.count = min(RACES, n - first);
        __syncthreads();
        run_race(begun && first == 0);
    }
    hear_masses(e);
    if (asks) draw_in_nucleus();
    return n;
}

/* The row of a shard. One that has no token has a largest logit, and may have raw ones. */
ROW_PART void leave_row(bool begun) {
    ending *e = this_ending();
    int32_t drawn = 0;
    if (e->row.status & FS_ROW_EMPTY) {
        tell_masses(false);
        team_barrier();
        hear_masses(e);
    } else drawn = draw_row(begun);
    put_row(drawn);
}

/* ------------------------------------------------------------------------------------------------------ kernel ---- */

constexpr int OPEN_TEAMS = 32;

/* What needs no memory but the launch's arguments. */
FS_DEVICE void open_ending(ending *e, const fs_cuda_args &args) {
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof args / 4); i += blockDim.x)
        ((uint32_t *)&e->args)[i] = ((const uint32_t *)&args)[i];
    for (int32_t i = threadIdx.x; i < 2 * FLOORS; i += blockDim.x) (&e->own_most[0][0])[i] = 0;
    if (threadIdx.x == 0) {
        open_team(args.team.size);
        e->view = view_of(args, team_rank(), ENDING_BYTES);
        e->own = {0, 0, 0, 0};
        for (int i = 0; i < LISTS; i++) e->listed[i] = 0;
        e->mass_of[team_rank()].listed = 0;
        e->best_floor = 0;
    }
    __syncthreads();
}

/* Row b, whose logits are the place-th in memory. */
FS_DEVICE void end_row_at(ending *e, int64_t b, int64_t place) {
    const slice_source from = source_of(e, b, place);
    if (copies_x(e, from)) begin_copy(from, e->view.x);
    if (threadIdx.x / 32 == 1) touch_rules(e->args, b, (uint32_t *)e->list);
    if (threadIdx.x == 0) open_row(e, b);
    __syncthreads();
    check_row(e);
    if (rules_drop_row(&e->rules)) {
        wait_for_copies();
        meet_team();
        if (!e->args.leave_rows) write_absent(e);
        return;
    }
    const bool begins = begins_early(e);
    if (begins) {
        if (threadIdx.x == 0) e->race.y = e->view.x; /* its blocks */
        __syncthreads();
        list_marks();
    }
    const slice_facts x = bring_x(b, place);
    slice_facts y = x;
    __syncthreads();
    if (e->edits.edits > 0 || e->edits.penalises) y = bring_y(place);
    gather_facts(e, x, y);
    if (threadIdx.x == 0) e->race.y = e->view.y;
    meet_team();
    tell_facts(e);
    __syncthreads();
    if (begins) {
        race_listed();
        tell_bounds();
    }
    team_barrier();
    hear_facts(e);
    if (e->args.leave_rows) leave_row(begins);
    else if (!(e->row.status & FS_ROW_NO_TOKEN)) write_results(draw_row(begins));
    else write_absent(e);
}

/* A team for each row; of rows that are open, where they were drawn, there are few: teams take them in turn. */
__global__ void __launch_bounds__(FS_CUDA_TEAM_THREADS, 1) end_rows(const __grid_constant__ fs_cuda_args args) {
    ending *e = this_ending();
    const int64_t size = args.team.size, first = blockIdx.x / size, teams = gridDim.x / size;
    open_ending(e, args);
    greet_team();
    wait_for_earlier_launches();
    for (int64_t place = first; place < e->args.rows; place += teams) {
        int64_t b = e->args.first_row + place, at = place;
        if (e->args.lists.by_place) {
            if (b >= e->args.lists.open[0]) return;
            b = e->args.lists.open[1 + b];
            if (e->args.raced.ahead) at = b - e->args.raced.first_row;
        }
        if (place > first) {
            team_barrier(); /* nobody looks into another's memory any more */
            open_ending(e, args);
            greet_team();
        }
        end_row_at(e, b, at);
    }
}

} // namespace

extern "C" int32_t fs_cuda_rows_shared(int32_t grouped) {
    return ENDING_BYTES + (grouped ? (int32_t)sizeof(group_window) : 0);
}

/* How many CTAs can be a team: as many as run at once. Code that was made for older devices, and translated for this
 * one, has no clusters, and does not wait for launches before it where it may begin early. */
extern "C" cudaError_t fs_cuda_rows_open(fs_cuda_device *device) {
    device->team = 1;
    cudaFuncAttributes made = {};
    cudaError_t error =
        cudaFuncSetAttribute(end_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, device->shared_bytes);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&made, end_rows);
    device->overlaps = device->major >= 9 && made.ptxVersion >= 90;
    for (int32_t size = FS_CUDA_TEAM; device->overlaps && error == cudaSuccess && size > device->team; size /= 2) {
        const fs_cuda_team team = {size, FS_CUDA_TEAM_THREADS, 0, 0, device->shared_bytes};
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute[2];
        int clusters = 0;
        config_of_teams(&config, attribute, 1, team, false, 0);
        error = cudaOccupancyMaxActiveClusters(&clusters, end_rows, &config);
        if (clusters > 0) device->team = size;
    }
    return error;
}

extern "C" cudaError_t fs_cuda_rows_launch(const fs_cuda_args *args, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[2];
    const int64_t teams = args->raced.ahead && args->rows > OPEN_TEAMS ? OPEN_TEAMS : args->rows;
    config_of_teams(&config, attribute, teams, args->team, args->overlap, stream);
    return cudaLaunchKernelEx(&config, end_rows, *args);
}
