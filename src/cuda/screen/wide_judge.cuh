/* wide_judge.cuh - which tokens of a pass for many rows can still win: thresholds for its consumers, and what becomes
 * of those that are above them. */
#ifndef FS_CUDA_SCREEN_WIDE_JUDGE_CUH
#define FS_CUDA_SCREEN_WIDE_JUDGE_CUH

#include "cuda/screen/wide.cuh"

template <int BITS> struct fs_wide_judge : fs_contest<fs_wide_room<BITS>, false> {
    typedef fs_wide_room<BITS> shared_room;
    typedef fs_contest<shared_room, false> contest;
    using contest::args, contest::room, contest::dry;
    using contest::noise_of, contest::likely_score, contest::tell, contest::judge, contest::refine_all, contest::meet;
    static constexpr int THREADS = 32 * FS_WIDE_JUDGES;

    const fs_wide_walk walk;
    uint32_t known;            /* lane b: a score row b has, an ordered float; 0: none */
    unsigned long long record; /* lane b: of the token of row b that looks best */

    static FS_DEVICE_MEMBER int32_t thread() { return (int32_t)threadIdx.x - 32 * shared_room::CONSUMERS; }
    static FS_DEVICE_MEMBER int32_t warp() { return thread() / 32; }

    /* What is known of the rows, and whether one is open, by its list or by what it will be: then W is read for all of
     * them. Lists may have so many tokens at once, beside their share of the tiles that are judged. */
    FS_DEVICE_MEMBER void take_known(int32_t n) {
        const int32_t b = threadIdx.x & 31;
        bool open = false;
        if (b < args.rows) {
            known = load_relaxed(&args.work[b].bound);
            record = *(volatile unsigned long long *)&args.work[b].rough;
            const int32_t may = FS_CUDA_SCREENED / 2 + FS_CUDA_SCREENED / 2 * n / walk.tiles;
            open = load_relaxed(&args.work[b].max) > (uint32_t)may;
            if (open) atomicMax(&args.work[b].max, FS_CUDA_SCREENED + 1u);
        }
        if (!__any_sync(~0u, open)) return;
        if (b == 0) {
            *(volatile int32_t *)&room.state->over = 1;
            atomicMax(args.screen.open, 1);
        }
        __syncwarp();
    }

    /* Who the rows are, and the slack of their bounds: none for a row whose norm is not finite, or too large. */
    FS_DEVICE_MEMBER void open_rows(const fs_wide_image &image, const char *from) const {
        const fs_screen &s = args.screen.of;
        const float *norms = (const float *)(from + image.norms_at);
        for (int32_t b = thread(); b < FS_WIDE_ROWS; b += THREADS) {
            fs_draw draw;
            memset(&draw, 0, sizeof draw);
            draw.status = FS_ROW_SKIPPED;
            if (b < args.rows) draw = draw_of_row(args, b);
            float square = 0.0f;
#pragma unroll 8
            for (int32_t group = 0; group < image.groups; group++) {
                const float norm = __ldcg(&norms[group * FS_WIDE_ROWS + b]);
                square += BITS == 4 ? norm : norm * norm;
            }
            const bool finite = square * (1.0f + 0x1p-10f) < FS_SCREEN_NORM_MOST;
            room.state->draw[b] = draw;
            room.state->slack[b] = finite ? row_slack(s.dim, square) : INFINITY;
            if (!finite && draws(draw) && blockIdx.x == 0) atomicMax(&args.work[b].max, FS_CUDA_SCREENED + 1u);
        }
    }

    /* A logit as the head has it, back to what its dot product must be above. */
    FS_DEVICE_MEMBER float threshold_of_dot(float low) const {
        if (!contest::shaped || !(fabsf(low) < INFINITY)) return low;
        low /= args.head.scale * args.head.post_scale;
        return low - fabsf(low) * 0x1p-7f - 0x1p-20f;
    }

    /* Of the units of tile n: a row and a unit to a lane. */
    FS_DEVICE_MEMBER void find_thresholds(int32_t n, float (*to)[FS_WIDE_ROWS]) const {
#pragma unroll 1
        for (int32_t i = thread(); i < FS_TILE_UNITS * FS_WIDE_ROWS; i += THREADS) {
            const int32_t b = i % FS_WIDE_ROWS, u = i / FS_WIDE_ROWS;
            const fs_draw &draw = room.state->draw[b];
            float *own = &to[u * FS_UNIT_STRIPS][b];
            const fs_threshold t =
                threshold_of(b < args.rows ? load_relaxed(&args.work[b].bound) : 0u, draw.temperature);
            const bool there = b < args.rows && draws(draw) && walk.has(n, u);
            fs_marks marks = {0, 0, {0, 0}};
            if (there && !is_greedy(draw))
                marks = marks_of(draw.noise, (uint32_t)(args.head.first_token / FS_NOISE_BLOCK) +
                                                 (uint32_t)fs_wide_walk::strip(n, u) / FS_UNIT_STRIPS);
            const float low = is_greedy(draw) ? t.level : threshold_at(t, FS_UNMARKED_CEILING);
            const float all = !there ? INFINITY : marks.count < 0 ? -INFINITY : threshold_of_dot(low);
#pragma unroll
            for (int strip = 0; strip < FS_UNIT_STRIPS; strip++) own[strip * FS_WIDE_ROWS] = all;
            for (int mark = 0; mark < marks.count; mark++) {
                float *of = &own[mark_place(marks, mark) / FS_SCREEN_TOKENS * FS_WIDE_ROWS];
                *of = fminf(*of, threshold_of_dot(threshold_at(t, mark_ceiling(mark_prefix(marks, mark)))));
            }
        }
    }

    FS_DEVICE_MEMBER int32_t token_of(int32_t n, int32_t strip, int32_t place) const {
        return (int32_t)args.head.first_token +
               (fs_wide_walk::strip(n, strip / FS_UNIT_STRIPS) + strip % FS_UNIT_STRIPS) * FS_SCREEN_TOKENS + place;
    }

    static FS_DEVICE_MEMBER float parked_value(uint32_t half) {
        return __uint_as_float(half << 16);
    }

    /* Of each row and strip of the first tile the token that looks best but for its noise, and of these the one that
     * looks best with it; when all CTAs have told theirs, the best of all is computed from W. Lane i keeps that of the
     * warp's i-th row. */
    FS_DEVICE_MEMBER void seed() {
        const int32_t lane = threadIdx.x & 31, strip = lane % 16;
        fs_contender mine = {-INFINITY, 0.0f, 0, FS_WIDE_ROWS};
        float noise = 0.0f;
#pragma unroll 1
        for (int32_t pair = warp(), i = 0; pair < FS_WIDE_ROWS / 2; pair += FS_WIDE_JUDGES, i += 2) {
            const int32_t b = 2 * pair + lane / 16;
            const uint32_t key = room.state->likely[strip][b];
            const bool there = key && b < args.rows && draws(room.state->draw[b]);
            fs_contender c = {float_of_ordered(key & ~15u), 0.0f, (uint32_t)token_of(0, strip, key & 15), b};
            float own = there ? noise_of(b, c.token) : 0.0f;
            float likely = there ? likely_score(c, own) : -INFINITY;
#pragma unroll
            for (int apart = 1; apart < 16; apart *= 2) {
                const float other = __shfl_xor_sync(~0u, likely, apart), other_l = __shfl_xor_sync(~0u, c.l, apart),
                            other_noise = __shfl_xor_sync(~0u, own, apart);
                const uint32_t other_token = __shfl_xor_sync(~0u, c.token, apart);
                if (other > likely || (other == likely && other_token < c.token))
                    likely = other, c.l = other_l, own = other_noise, c.token = other_token;
            }
            if (strip == 0) tell(c, -INFINITY, likely);
            /* To lanes i and i + 1. */
            const int from = lane == i + 1 ? 16 : 0;
            const float l = __shfl_sync(~0u, likely > -INFINITY ? c.l : -INFINITY, from),
                        g = __shfl_sync(~0u, own, from);
            const uint32_t t = __shfl_sync(~0u, c.token, from);
            const int32_t row = __shfl_sync(~0u, c.row, from);
            if (lane == i || lane == i + 1) mine = {l, 0.0f, t, row}, noise = g;
        }
        meet(1, FS_WIDE_JUDGES, FS_WIDE_PATIENCE);
        take_known(0);
        const unsigned long long best = __shfl_sync(~0u, record, mine.row < FS_WIDE_ROWS ? mine.row : 0);
        refine_all(mine, noise, mine.l > -INFINITY && (uint32_t)best == mine.token);
        meet(2, FS_WIDE_JUDGES, FS_WIDE_PATIENCE);
        take_known(0);
    }

    /* Up to 32 contenders, one to a lane. */
    FS_DEVICE_MEMBER void judge_some(const fs_contender &c, bool here, bool most_known) const {
        const float best = known_score(__shfl_sync(~0u, known, c.row));
        const float most = known_score((uint32_t)(__shfl_sync(~0u, record, c.row) >> 32));
        const float noise = noise_of(c.row, c.token);
        refine_all(c, noise, judge(c, noise, here, best, most, most_known));
    }

    FS_DEVICE_MEMBER void judge_queue(int32_t n) {
        const int32_t lane = threadIdx.x & 31;
        const int32_t queued = min(*(volatile int32_t *)&room.state->queued, FS_QUEUED);
#pragma unroll 1
        for (int32_t from = 32 * warp(); from < queued; from += THREADS) {
            if (from >= THREADS) take_known(n);
            judge_some(room.state->queue[min(from + lane, queued - 1)], from + lane < queued, false);
        }
    }

    /* The first tile, now that thresholds are known: a strip's 16 tokens of two rows at a time. */
    FS_DEVICE_MEMBER void judge_parked() {
        const int32_t lane = threadIdx.x & 31, place = lane % 16;
        fs_contender mine = {0.0f, 0.0f, (uint32_t)args.head.first_token, 0};
        int32_t held = 0;
#pragma unroll 1
        for (int32_t strip = warp(); strip < FS_TILE_STRIPS; strip += FS_WIDE_JUDGES) {
            const int32_t token = token_of(0, strip, place);
#pragma unroll 1
            for (int32_t pair = 0; pair < FS_WIDE_ROWS; pair += 2) {
                const int32_t b = pair + lane / 16;
                const float high = parked_value(room.state->parked[strip][b][place]),
                            least = room.state->threshold[0][strip][b];
                const uint32_t who = __ballot_sync(~0u, least < INFINITY && high != -INFINITY && !(high <= least));
                if (!who) continue;
                /* The n-th of those that pass goes to lane held + n; what does not fit makes a turn. */
                const int32_t more = __popc(who);
                if (held + more > 32) {
                    judge_some(mine, lane < held, true);
                    held = 0;
                }
                const int32_t wanted = lane - held;
                const int from = wanted >= 0 && wanted < more ? (int)__fns(who, 0, wanted + 1) : 0;
                const float l = __shfl_sync(~0u, high, from);
                const uint32_t t = __shfl_sync(~0u, (uint32_t)token, from);
                const int32_t row = __shfl_sync(~0u, b, from);
                if (wanted >= 0 && wanted < more) mine = {l, 0.0f, t, row};
                held += more;
            }
            take_known(0);
        }
        if (held) judge_some(mine, lane < held, true);
    }

    /* Whether there is more to do. By all judges, who agree. */
    FS_DEVICE_MEMBER bool goes_on() const {
        named_barrier(1, THREADS);
        const bool over = room.over();
        named_barrier(1, THREADS);
        return !over;
    }

    FS_DEVICE_MEMBER void tell_consumers() const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(shared_address(&room.state->ready));
    }

    /* All of it once, with nothing told, for its instructions: they come from memory, and later everybody waits. */
    FS_DEVICE_MEMBER void rehearse() {
        const int32_t lane = threadIdx.x & 31;
        dry = true;
        find_thresholds(0, room.state->threshold[0]);
        const fs_contender c = {0.0f, 0.0f, (uint32_t)args.head.first_token, 0};
        const float noise = noise_of(0, c.token);
        refine_all(c, noise, judge(c, noise, lane == 0, -INFINITY, -INFINITY));
        dry = false;
    }

    FS_DEVICE_MEMBER void run(const fs_wide_image &image, const char *from) {
        open_rows(image, from);
        named_barrier_pass(FS_ROWS_OPEN, shared_room::AT_ROWS_OPEN);
        named_barrier(1, THREADS);
        rehearse();
        take_known(0);
        (void)room.wait(&room.state->handed, 0);
        if (!goes_on()) return;
        seed();
        if (!goes_on()) return;
        find_thresholds(0, room.state->threshold[0]);
        find_thresholds(1, room.state->threshold[1]);
        tell_consumers();
        named_barrier(1, THREADS); /* thresholds are there */
        judge_parked();
        for (int32_t n = 1; n < walk.tiles; n++) {
            if (!goes_on()) return;
            barrier_wait(shared_address(&room.state->handed), (uint32_t)n & 1);
            take_known(n);
            judge_queue(n);
            if (!goes_on()) return;
            if (n + 1 == walk.tiles) return;
            if (thread() == 0) room.state->queued = 0;
            find_thresholds(n + 1, room.state->threshold[1]);
            tell_consumers();
        }
        goes_on();
    }
};

#endif
