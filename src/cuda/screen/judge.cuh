/* judge.cuh - which tokens of a strip can still win, by what the screen says of their logits. */
#ifndef FS_CUDA_SCREEN_JUDGE_CUH
#define FS_CUDA_SCREEN_JUDGE_CUH

#include "cuda/screen/dots.cuh"

/* Tokens that a list may have from the start, beside its share of the tiles that are judged: the first ones list more,
 * since less is known. With 2,048 rows were given up that had room in the end (docs/notes/gpu-screens.md). */
constexpr uint32_t FS_LISTED_AT_ONCE = FS_CUDA_SCREENED / 2;

/* What a judge keeps of the rows, one to a lane; and the race of its strips. Rows that are cut do not race: where what
 * matters of them ends is known when all their bounds are (listed.cuh), so these go to memory. */
template <int BITS, int N, bool RULES> struct fs_judge : fs_contest<fs_screened_room<BITS, N>, RULES> {
    typedef fs_contest<fs_screened_room<BITS, N>, RULES> contest;
    using contest::args, contest::room, contest::dry;
    using contest::logit, contest::noise_of, contest::least_score, contest::likely_score, contest::tell, contest::judge,
        contest::refine_all, contest::meet;
    uint32_t known;            /* lane b: a score row b has, an ordered float; 0: none */
    uint32_t listed, may_list; /* lane b: tokens in row b's list; how many a list may have by now */
    bool open;                 /* lane b: row b has no list, or too long a one */
    unsigned long long record; /* lane b: of the token of row b that looks best */
    fs_marks marks;            /* lane b: of row b, in the block of the strip */
    uint32_t allowed;          /* lane b: tokens of the strip that row b may draw, 16 bits */

    FS_DEVICE_MEMBER void take_known() {
        const int32_t lane = threadIdx.x & 31;
        if (lane >= args.rows) return;
        known = load_relaxed(&args.work[lane].bound);
        listed = load_relaxed(&args.work[lane].max);
        open = listed > FS_CUDA_SCREENED;
        record = *(volatile unsigned long long *)&args.work[lane].rough;
    }

    /* A logit of row `lane` that is not above this, of a token of the 16 from `first` on, cannot win. */
    FS_DEVICE_MEMBER float threshold(int32_t first) const {
        const int32_t lane = threadIdx.x & 31;
        if (lane >= args.rows || open || is_cut(lane) || !draws(room.state->draw[lane])) return INFINITY;
        const fs_draw &draw = room.state->draw[lane];
        const fs_threshold t = threshold_of(known, draw.temperature);
        if (is_greedy(draw)) return lowered(draw, t.level, first);
        float low = threshold_at(t, FS_UNMARKED_CEILING);
        for (int i = 0; i < marks.count; i++)
            if (mark_place(marks, i) / FS_SCREEN_TOKENS == (uint32_t)first % FS_NOISE_BLOCK / FS_SCREEN_TOKENS)
                low = fminf(low, threshold_at(t, mark_ceiling(mark_prefix(marks, i))));
        return marks.count < 0 ? -INFINITY : lowered(draw, low, first);
    }

    /* A threshold of y as one of x, in a strip of which edits may raise a token. */
    FS_DEVICE_MEMBER float lowered(const fs_draw &draw, float low, int32_t first) const {
        if (!RULES || !is_raised(draw)) return low;
        const int32_t lane = threadIdx.x & 31,
                      at = first - (int32_t)args.head.first_token / FS_CUDA_TILE * FS_CUDA_TILE;
        const uint8_t *raised = args.edits.raised + (int64_t)lane * args.edits.tiles;
        if (!(raised[at / FS_CUDA_TILE] >> at % FS_CUDA_TILE / FS_SCREEN_TOKENS & 1)) return low;
        const float raise = args.edits.row[lane].raise;
        return low - raise - (fabsf(low) + raise) * 1e-6f;
    }

    /* Rows that have rules: whether row b is cut; its allowed tokens, of those from `place` of the strip on. By all
     * lanes. */
    FS_DEVICE_MEMBER bool is_cut(int32_t b) const { return RULES && room.state->cut >> b & 1; }
    FS_DEVICE_MEMBER uint32_t allowed_of(int32_t b, int32_t place) const {
        return RULES ? __shfl_sync(~0u, allowed, b) >> place : ~0u;
    }

    /* First tile: of every row the token of the strip that looks best but for its noise, a row to a lane; when all CTAs
     * have told theirs, the best of all is refined. */
    FS_DEVICE_MEMBER void seed(const float (&x)[N / 2], const float (&bound)[N / 2], int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31, g = lane / 4;
        fs_contender c = {-INFINITY, INFINITY, 0, N};
#pragma unroll
        for (int i = 0; i < N / 4; i++) { /* rows of this lane */
            const int at = 4 * (i / 2) + (i & 1);
            const uint32_t may = allowed_of(8 * (i / 2) + 2 * (lane & 3) + (i & 1), g);
            float most = g < count && may & 1 ? x[at] : -INFINITY, off = bound[at];
            int32_t place = g;
            if (g + 8 < count && may >> 8 & 1 && x[at + 2] > most) most = x[at + 2], off = bound[at + 2], place = g + 8;
#pragma unroll
            for (int apart = 4; apart <= 16; apart *= 2) {
                const float other = __shfl_xor_sync(~0u, most, apart), off2 = __shfl_xor_sync(~0u, off, apart);
                const int32_t place2 = __shfl_xor_sync(~0u, place, apart);
                if (other > most) most = other, off = off2, place = place2;
            }
            if (g == i) c = {most, off, (uint32_t)(first + place), 8 * (i / 2) + 2 * (lane & 3) + (i & 1)};
        }
        float noise = 0.0f;
        const bool there = c.row < args.rows && draws(room.state->draw[c.row]) && !is_cut(c.row) && c.l > -INFINITY &&
                           c.bound < INFINITY;
        if (there) {
            noise = noise_of(c.row, c.token);
            tell(c, least_score(c, noise), likely_score(c, noise));
        }
        meet(1, FS_JUDGES, FS_SEED_PATIENCE);
        take_known();
        const unsigned long long best = __shfl_sync(~0u, record, c.row < N ? c.row : 0);
        refine_all(c, noise, there && (dry ? lane == 0 : (uint32_t)best == c.token));
        meet(2, FS_JUDGES, FS_SEED_PATIENCE);
        take_known();
    }

    /* Who the rows are; of a warp, which has all of them. */
    FS_DEVICE_MEMBER void open_draws() const {
        const int32_t b = (int32_t)threadIdx.x - 32 * FS_DOTS;
        if (b < N) {
            fs_draw draw;
            memset(&draw, 0, sizeof draw);
            draw.status = FS_ROW_SKIPPED;
            if (b < args.rows) draw = RULES ? draw_of_screened(args, b) : draw_of_row(args, b);
            if (draw.status & FS_DRAW_OPEN) atomicMax(&args.work[b].max, FS_CUDA_SCREENED + 1u);
            room.state->draw[b] = draw;
            room.state->slack[b] = 0.0f;
        }
        if (RULES && b < 32) {
            const bool there = b < args.rows && draws(room.state->draw[b]);
            const uint32_t cut = __ballot_sync(~0u, there && is_listed(room.state->draw[b]));
            if (b < N) room.state->mask[b] = there ? mask_of_row(args, b) : NULL;
            if (b == 0) room.state->cut = cut;
        }
        named_barrier(2, 32 * FS_JUDGES);
    }

    /* Whether a row is open, by its list or by what its list will be: then W is read for all of them. */
    FS_DEVICE_MEMBER bool gives_up() {
        const int32_t lane = threadIdx.x & 31;
        if (!open && listed > may_list) {
            atomicMax(&args.work[lane].max, FS_CUDA_SCREENED + 1u);
            open = true;
        }
        if (!__any_sync(~0u, open)) return false;
        if (lane == 0) {
            *(volatile int32_t *)&room.state->over = 1;
            if (!dry) atomicMax(args.screen.open, 1); /* the rows are left alone until W is read */
        }
        return !dry;
    }

    FS_DEVICE_MEMBER void take_allowed(int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31;
        const uint32_t *mask = lane < N && count > 0 ? room.state->mask[lane] : NULL;
        allowed = mask ? mask[first / 32] >> first % 32 & 0xFFFF : 0xFFFF;
    }

    /* Whether there is a next. */
    FS_DEVICE_MEMBER bool turn(int32_t n, const fs_screened_walk &walk) {
        const int32_t judge_at = (int32_t)threadIdx.x / 32 - FS_DOTS, lane = threadIdx.x & 31, column = 2 * (lane & 3);
        const fs_screen &s = args.screen.of;
        const int32_t end = (int32_t)min(args.head.first_token + args.head.rows, (int64_t)args.vocab);
        const int32_t first = (int32_t)args.head.first_token + walk.strip(max(n, 0), judge_at) * FS_SCREEN_TOKENS;
        const int32_t count = max(0, min(FS_SCREEN_TOKENS, end - first));
        const fs_strip_head *head = strip_head(walk.at(s, max(n, 0), judge_at));
        const float norm[2] = {head->norm[lane / 4], head->norm[lane / 4 + 8]};
        take_known();
        marks = {0, 0, {0, 0}};
        if (lane < args.rows && !is_cut(lane) && !is_greedy(room.state->draw[lane]))
            marks = marks_of(room.state->draw[lane].noise, (uint32_t)first / FS_NOISE_BLOCK);
        if (RULES) take_allowed(first, count);
        may_list = FS_LISTED_AT_ONCE + (uint32_t)(FS_CUDA_SCREENED * max(n, 0) / walk.tiles);
        if (gives_up()) return false;
        if (!dry && !room.state->wait(&room.state->full[n & 1], n / 2 & 1)) return false;
        float x[N / 2], bound[N / 2];
        take_sums(x, bound, n & 1, judge_at);
        __syncwarp();
        if (lane == 0 && !dry) barrier_arrive(shared_address(&room.state->empty[n & 1]));
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            if (dry) x[i] = bound[i] = 0.0f;
            bound[i] = screened_bound<BITS>(s, bound[i], norm[i & 2 ? 1 : 0],
                                            room.state->slack[8 * (i / 4) + column + (i & 1)]);
        }
        if (n <= 0) seed(x, bound, first, count);
        if (RULES && count > 0 && room.state->cut) keep(x, bound, first, count);
        if (count > 0) race(x, bound, first, count);
        return true;
    }

    /* The first turn, when there is nothing to judge, is for the instructions: they come from memory, and later
     * everybody waits for them. */
    FS_DEVICE_MEMBER void run() {
        const fs_screened_walk walk(args.screen.of);
        open_draws();
#pragma unroll 1
        for (int32_t n = -1; n < walk.tiles; n++) {
            dry = n < 0;
            if (!turn(n, walk)) return;
            if (!dry) continue;
            named_barrier(3, FS_SCREENED_THREADS); /* H and its norms are there */
            open_bounds<BITS, N>(args, room);
            named_barrier(2, 32 * FS_JUDGES);
        }
    }

    FS_DEVICE_MEMBER void take_sums(float (&x)[N / 2], float (&bound)[N / 2], int32_t buffer, int32_t strip) const {
        const int32_t lane = threadIdx.x & 31;
        const fs_screened_state<N> *state = room.state;
#pragma unroll
        for (int i = 0; i < N / 2; i++) x[i] = bound[i] = 0.0f;
#pragma unroll
        for (int part = 0; part < FS_PARTS; part++)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float4 a = state->sum[buffer][part * FS_JUDGES + strip][j][lane];
                const float4 b = state->bound[buffer][part * FS_JUDGES + strip][j][lane];
                x[4 * j] += a.x, x[4 * j + 1] += a.y, x[4 * j + 2] += a.z, x[4 * j + 3] += a.w;
                bound[4 * j] += b.x, bound[4 * j + 1] += b.y, bound[4 * j + 2] += b.z, bound[4 * j + 3] += b.w;
            }
    }

    /* Upper bounds of the logits of rows that are cut; +inf if nothing is known. */
    FS_DEVICE_MEMBER void keep(const float (&x)[N / 2], const float (&bound)[N / 2], int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
        float *to = args.dense.x + (first - args.head.first_token);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int32_t b = 8 * (i / 4) + column + (i & 1), place = lane / 4 + (i & 2 ? 8 : 0);
            const uint32_t may = allowed_of(b, place);
            if (place >= count || !is_cut(b) || dry) continue;
            const float high = logit(x[i] + bound[i], first + place, 1.0f);
            to[b * args.dense.stride + place] = !(may & 1) ? -INFINITY : high < INFINITY ? high : INFINITY;
        }
    }

    FS_DEVICE_MEMBER void race(const float (&x)[N / 2], const float (&bound)[N / 2], int32_t first, int32_t count) {
        const int32_t lane = threadIdx.x & 31, column = 2 * (lane & 3);
        const float low = threshold(first);
        fs_contender *all = room.state->contender[threadIdx.x / 32 - FS_DOTS];
        int32_t found = 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int32_t b = 8 * (i / 4) + column + (i & 1), place = lane / 4 + (i & 2 ? 8 : 0);
            const float least = __shfl_sync(~0u, low, b),
                        high = logit(x[i] + bound[i], first + min(place, count - 1), 1.0f);
            const uint32_t may = allowed_of(b, place);
            /* What is no number passes, but not in rows that draw nothing. */
            const bool passes = place < count && may & 1 && least < INFINITY && !(high <= least);
            const uint32_t who = __ballot_sync(~0u, passes);
            if (passes) all[found + __popc(who & ((1u << lane) - 1))] = {x[i], bound[i], (uint32_t)(first + place), b};
            found += __popc(who);
        }
        __syncwarp();
        if (dry) found = min(found, 1);
#pragma unroll 1
        for (int32_t from = 0; from < found; from += 32) {
            if (from > 0) { /* so many: is it still worth it? */
                take_known();
                if (gives_up()) return;
            }
            const bool here = from + lane < found;
            const fs_contender c = all[min(from + lane, found - 1)];
            const float best = known_score(__shfl_sync(~0u, known, c.row));
            const float most = known_score(__shfl_sync(~0u, (uint32_t)(record >> 32), c.row));
            const float noise = noise_of(c.row, c.token);
            refine_all(c, noise, judge(c, noise, here, best, most));
        }
        __syncwarp();
    }
};

#endif
