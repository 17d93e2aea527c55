/* direct.cuh - the fused kernel where a CTA has few pieces: short vocabularies, shards of many ranks. Logits go to
 * shared memory, and all warps but the producer's race there.
 *
 *   warp 0        producer
 *   warps 1-3     who the rows are; the marks of a piece, and what other CTAs know of its rows
 *   warps 4-11    dot products, and from the accumulators to shared memory, [N][128]
 *   warps 1-11    the race, a row to a warp
 *
 *         W tile --copy--> ring --mma--> accumulators --> logits --> race --> best of a row --exact--> RED.MAX key
 *         H tile --copy-->
 *
 * Such a call is a chain of latencies: a copy, a product, a race, two round trips to memory. What pays where a CTA has
 * many tiles (fused.cuh) only makes it longer: first scores that all CTAs wait for, thresholds, a queue, few scorers.
 * Here a lane looks at four tokens of a row, and those that have a chance are scored one by one: the likeliest of each
 * lane first, then what can still be above the best of these, two rounds as a rule and never more than four, in later
 * pieces hardly one. So time depends little on what the rows look like. The ring fills while warps race: it holds as
 * much as comes meanwhile. */
#ifndef FS_CUDA_DIRECT_CUH
#define FS_CUDA_DIRECT_CUH

#include "cuda/fused/fused.cuh"

constexpr int FS_RACERS = 11; /* warps, from 1 on */
/* Floats from one row to the next: lanes of a store are in 8 tokens of 4 rows, 2 rows apart, each in a bank of its
 * own. */
constexpr int FS_PITCH = FS_CUDA_TILE + 4;
constexpr int FS_PLACES = FS_CUDA_TILE / 32; /* tokens of a lane, 32 apart */
/* Rows up to so many are raced by four warps each, a token to a lane. */
constexpr int FS_FEW_ROWS = FS_RACERS / FS_PLACES;

/* ------------------------------------------------------------------------------------------------------ before ---- */

/* Rows, from the batch. What CTAs will meet at is asked for early: memory is cold. */
template <int N, int J>
FS_DEVICE void open_rows(fs_tile_state<N, J> *state, const fs_cuda_args &args, int32_t start, int32_t rows) {
    const fs_draw_source source = draw_source(&args.batch);
    for (int32_t b = scorer_thread<J>(); b < N; b += 32 * J) {
        fs_draw draw;
        memset(&draw, 0, sizeof draw);
        draw.status = FS_ROW_SKIPPED;
        if (b < rows) {
            prefetch_l2(&args.work[start + b]);
            const fs_draw_values values = draw_values(&source, args.first_row + start + b);
            draw = draw_of(rules_of_draw(&values)); /* there are no other rules (fs_cuda_plan_next) */
        }
        state->draw[b] = draw;
        state->best[b] = 0;
    }
    for (int32_t i = scorer_thread<J>(); i < FS_CUDA_TILE / 2; i += 32 * J) state->queue[i] = 0; /* a row of zeros */
}

/* The marks of the piece from `first` on, and with `shared` what other CTAs know of the rows. */
template <int N, int J>
FS_DEVICE void open_piece(fs_tile_state<N, J> *state, const fs_cuda_row *work, int32_t rows, int32_t first,
                          bool shared) {
    for (int32_t b = scorer_thread<J>(); b < rows; b += 32 * J) {
        const uint32_t bound = shared ? load_relaxed(&work[b].bound) : 0;
        find_marks(state, b, first);
        if (bound > state->best[b]) state->best[b] = bound; /* nobody else is at the row now */
    }
}

/* From the accumulators of eight warps to shared memory. */
template <int N> FS_DEVICE void put_logits(const float (&d)[N / 2], float *logits, int32_t t) {
    float *to = logits + 2 * (threadIdx.x & 3) * FS_PITCH + t;
#pragma unroll
    for (int i = 0; i < N / 2; i++) to[(i / 4 * 8 + (i & 1)) * FS_PITCH + (i & 2 ? 8 : 0)] = d[i];
}

/* -------------------------------------------------------------------------------------------------------- race ---- */

/* A lane's tokens of one row. `most`: what the score of one that is still to be scored is not above. */
typedef struct fs_places {
    float x[FS_PLACES], most[FS_PLACES];
    int32_t token; /* the first one's */
} fs_places;

/* The tokens that are there, and what may be the most noise of each; flags of those that are no number, or infinite. */
template <int N, int J>
FS_DEVICE uint32_t take_places(fs_tile_state<N, J> *state, const float *logits, int32_t b, int32_t from, int32_t count,
                               int32_t first, fs_places *p) {
    const fs_draw &draw = state->draw[b];
    const fs_marks marks = tile_marks(state)[b];
    const int32_t t = from + (int32_t)(threadIdx.x & 31);
    uint32_t flags = 0;
    p->token = first + t;
#pragma unroll
    for (int i = 0; i < FS_PLACES; i++) {
        p->x[i] = i < count ? logits[t + 32 * i] : -INFINITY;
        const float l = p->x[i] * draw.inverse;
        p->most[i] = l > -INFINITY ? l + FS_UNMARKED_CEILING + score_slack(l) : -INFINITY;
        if (marks.count < 0 && l > -INFINITY) p->most[i] = INFINITY; /* where the marks are one call does not tell */
        if (!(l < INFINITY)) flags |= odd_flags(p->x[i], l);
    }
#pragma unroll 1
    for (int m = 0; m < marks.count; m++) {
        const int32_t at = (int32_t)mark_place(marks, m) - first % FS_NOISE_BLOCK - t;
        const float more = mark_ceiling(mark_prefix(marks, m)) - FS_UNMARKED_CEILING;
#pragma unroll
        for (int i = 0; i < FS_PLACES; i++)
            if (at == 32 * i && more > 0.0f) p->most[i] += more;
    }
    return flags;
}

/* The token of a lane that may have the highest score; its `most`. Takes it out. */
FS_DEVICE float take_likeliest(fs_places *p, float *x, int32_t *token) {
    int32_t which = 0;
#pragma unroll
    for (int i = 1; i < FS_PLACES; i++)
        if (p->most[i] > (which == 0 ? p->most[0] : which == 1 ? p->most[1] : p->most[2])) which = i;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < FS_PLACES; i++)
        if (i == which) most = p->most[i], *x = p->x[i];
    *token = p->token + 32 * which;
#pragma unroll
    for (int i = 0; i < FS_PLACES; i++)
        if (i == which) p->most[i] = -INFINITY;
    return most;
}

/* One block in four thousand needs more than one call: out of the way of the others. */
static __device__ __noinline__ int32_t rare_prefix(fs_noise noise, uint32_t token) {
    return noise_prefix(noise, token);
}

/* What is drawn of a token whose block's marks are known. */
FS_DEVICE fs_drawn draw_marked(const fs_marks &marks, fs_noise noise, uint32_t token) {
    const fs_words own = noise_words(noise, token, FS_DOMAIN_EXTENSION);
    return {marks.count < 0 ? rare_prefix(noise, token) : mark_among(marks, noise, token), {own.w[0], own.w[1]}};
}

/* The exact score of a token, into the race of all CTAs. Any token may enter it. */
template <int N, int J>
FS_DEVICE void enter(fs_tile_state<N, J> *state, fs_cuda_row *work, const fs_survivor &s, bool rehearse) {
    const int32_t b = row_of<ROW_BITS<N>>(s.token.id);
    const unsigned long long key = exact_key<ROW_BITS<N>>(state->draw[b], s);
    if (rehearse) state->scrap = key;
    else atomicMax(&work[b].key, key);
}

/* The race of a warp's tokens of row b, of which a score is known that is not below *known: that rises, and what of the
 * tokens may be the best is returned, in most rows one lane's or none. */
template <int N, int J>
FS_DEVICE fs_survivor race_noisy(fs_tile_state<N, J> *state, fs_cuda_row *work, fs_places *p, int32_t b, float *known,
                                 bool rehearse) {
    const fs_draw &draw = state->draw[b];
    const fs_marks marks = tile_marks(state)[b];
    fs_survivor mine = {{0.0f, 0, -INFINITY}, {-1, {0, 0}}};
    float best = *known;
#pragma unroll 1
    for (;;) {
        fs_survivor now = {{0.0f, 0, -INFINITY}, {-1, {0, 0}}};
        int32_t token;
        const float most = take_likeliest(p, &now.token.x, &token);
        const bool tries = most > -INFINITY && most >= best;
        if (!__any_sync(~0u, tries)) break;
        uint32_t least = 0;
        if (tries) {
            const float l = now.token.x * draw.inverse;
            fs_score score = {l, l};
            if (l < INFINITY) {
                now.drawn = draw_marked(marks, draw.noise, (uint32_t)token);
                score = score_of(l, noise_about(now.drawn));
            }
            now.token.id = id_of<ROW_BITS<N>>((uint32_t)token, b);
            now.token.most = score.most;
            least = ordered_float(score.least);
        }
        best = fmaxf(best, known_score(__reduce_max_sync(~0u, least)));
        if (now.token.most > mine.token.most) {
            const fs_survivor before = mine;
            mine = now;
            now = before;
        }
        /* Two of one lane that float arithmetic cannot tell apart. */
        if (now.token.id && now.token.most >= best) enter(state, work, now, rehearse);
    }
    if (mine.token.most < best) mine.token.id = 0;
    *known = best;
    return mine;
}

/* The largest logit of a warp's tokens, of equal ones the first, if it is not below *known: in one lane. */
template <int BITS> FS_DEVICE fs_survivor race_greedy(const fs_places &p, int32_t b, float *known) {
    unsigned long long key = 0;
#pragma unroll
    for (int i = 0; i < FS_PLACES; i++)
        if (p.x[i] > -INFINITY) key = max(key, (unsigned long long)order_key(p.x[i], (uint32_t)(p.token + 32 * i)));
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(key >> 32));
    const uint32_t low = __reduce_max_sync(~0u, (uint32_t)(key >> 32) == high ? (uint32_t)key : 0);
    const float most = known_score(high), x = order_key_logit(key);
    const bool wins = key != 0 && key == ((unsigned long long)high << 32 | low) && most >= *known;
    *known = fmaxf(*known, most);
    return {{x, wins ? id_of<BITS>(order_key_token(key), b) : 0, x}, {-1, {0, 0}}};
}

/* Of what waits in a lane and what has come, the likelier one waits on. The other has lost, or may have the better
 * exact score: then it enters the race. Of greedy rows, whose pieces come in the order of their ids, it has lost. */
template <int N, int J>
FS_DEVICE void keep_likelier(fs_tile_state<N, J> *state, fs_cuda_row *work, fs_survivor *waits, fs_survivor came,
                             float best, bool rehearse) {
    if (!waits->token.id || came.token.most > waits->token.most) {
        const fs_survivor before = *waits;
        *waits = came;
        came = before;
    }
    if (came.token.id && came.token.most >= best && !is_greedy(state->draw[row_of<ROW_BITS<N>>(came.token.id)]))
        enter(state, work, came, rehearse);
}

/* The races of this warp's rows, every FS_RACERS-th, in a piece. What may be the best of its j-th row waits in lane j,
 * so that exact scores of all rows are made at once, when the last piece is over; `waits` comes from the piece before.
 * `share`: other CTAs are told what is known. Out of line, for its instructions to be the same in a rehearsal, which is
 * without effect. */
template <int N, int J>
static __device__ __noinline__ fs_survivor race_rows(fs_tile_state<N, J> *state, const float *logits, fs_cuda_row *work,
                                                     int32_t first, int32_t rows, fs_survivor waits, bool share,
                                                     bool last, bool rehearse) {
    const int32_t lane = threadIdx.x & 31, warp = rehearse ? 0 : (int32_t)threadIdx.x / 32 - 1;
    const bool few = rows <= FS_FEW_ROWS; /* then a warp has a fourth of a row */
    const int32_t units = rehearse ? 1 : few ? FS_PLACES * rows : rows;
#pragma unroll 1
    for (int32_t unit = warp, j = 0; unit < units; unit += FS_RACERS, j++) {
        const int32_t b = few ? unit / FS_PLACES : unit;
        if (!draws(state->draw[b])) continue;
        fs_places p;
        const uint32_t flags = take_places(state, rehearse ? logits : logits + b * FS_PITCH, b,
                                           few ? unit % FS_PLACES * 32 : 0, few ? 1 : FS_PLACES, first, &p);
        if (flags) atomicOr(&work[b].flags, flags);
        const float before = known_score(*(volatile uint32_t *)&state->best[b]);
        float best = before;
        const fs_survivor mine = is_greedy(state->draw[b]) ? race_greedy<ROW_BITS<N>>(p, b, &best)
                                                           : race_noisy(state, work, &p, b, &best, rehearse);
        if (best > before && lane == 0 && !rehearse) {
            atomicMax(&state->best[b], ordered_float(best));
            if (share) atomicMax(&work[b].bound, ordered_float(best));
        }
        for (uint32_t who = __ballot_sync(~0u, mine.token.id != 0); who; who &= who - 1) {
            const fs_survivor one = from_lane(mine, __ffs(who) - 1);
            if (lane == j) keep_likelier(state, work, &waits, one, best, rehearse);
        }
    }
    __syncwarp();
    if (!last || !waits.token.id) return waits;
    const int32_t b = row_of<ROW_BITS<N>>(waits.token.id);
    if (waits.token.most >= known_score(*(volatile uint32_t *)&state->best[b])) enter(state, work, waits, rehearse);
    return waits;
}

/* ------------------------------------------------------------------------------------------------------ kernel ---- */

/* Piece after piece, in each role; f(piece, i, whether it is the last). */
template <class T, class F> FS_DEVICE void each_piece(const fs_cuda_args &args, F f) {
    const share own = share_of<T>(args);
    piece p = direct_piece<T>(args, own, 0);
#pragma unroll 1
    for (int32_t i = 0; p.count >= 0; i++) {
        const piece next = direct_piece<T>(args, own, i + 1);
        f(p, i, next.count < 0);
        p = next;
    }
}

template <class T> FS_DEVICE void direct_kernel(const typename T::source &source, const fs_cuda_args &args) {
    constexpr int N = T::N, J = T::SCORERS;
    extern __shared__ __align__(1024) char shared[];
    fs_tile_state<N, J> *state = (fs_tile_state<N, J> *)(shared + T::STATE_START);
    float *logits = (float *)(shared + T::LOGITS_START);
    const uint32_t full = shared_address(shared + T::BARRIER_START), empty = full + 8 * T::STAGES;
    const uint32_t raced = empty + 8 * T::STAGES; /* warps are done with a piece's logits and marks */
    const int32_t start = block_start(args), rows = min(args.rows - start, args.block_rows);
    fs_cuda_row *work = args.work + start;
    if (threadIdx.x == 0) {
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(full + 8 * s, T::FILLERS);
            barrier_init(empty + 8 * s, FS_STRIPS * T::CLUSTER);
        }
        barrier_init(raced, FS_RACERS);
        barrier_init_fence();
    }
    if (threadIdx.x < 32) named_barrier_pass(2, 32 * (FS_RACERS + 1));
    else named_barrier(2, 32 * (FS_RACERS + 1));
    if constexpr (T::CLUSTER > 1) {
        cluster_arrive(); /* no copy into a CTA whose barriers are not there yet */
        if (threadIdx.x >= 32) cluster_wait();
    }
    fs_survivor waits = {{0.0f, 0, -INFINITY}, {-1, {0, 0}}};
    auto race = [&](const piece &p, bool last) {
        named_barrier(3, 32 * FS_RACERS); /* logits and marks are there */
        waits = race_rows<N, J>(state, logits, work, p.first, rows, waits, !last, last, false);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(raced);
    };
    if (threadIdx.x < 32 * (4 - J)) T::produce(source, args, shared, {full, empty, 1, 0});
    else if (threadIdx.x < 128) {
        wait_for_earlier_launches();
        let_next_launch_begin(); /* what this launch was given is there for the next one too */
        open_rows(state, args, start, rows);
        each_piece<T>(args, [&](const piece &p, int32_t i, bool last) {
            if (i > 0) barrier_wait(raced, (i - 1) & 1);
            open_piece(state, work, rows, p.first, i > 0);
            named_barrier(1, J * 32);
            if (i == 0)
                race_rows<N, J>(state, (const float *)state->queue, work, p.first, rows, waits, false, true, true);
            race(p, last);
        });
    } else {
        const int32_t warp = (int32_t)threadIdx.x / 32 - 4, t = 16 * warp + (int32_t)(threadIdx.x & 31) / 4;
        ring r = {full, empty, 0, 0};
        each_piece<T>(args, [&](const piece &p, int32_t i, bool last) {
            float d[1][N / 2];
            T::dot(d, &r, args.k_steps, shared, warp);
            transform<N, 1>(d, args.head, false, p, t);
            if (i > 0) barrier_wait(raced, (i - 1) & 1);
            put_logits<N>(d[0], logits, t);
            race(p, last);
        });
    }
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_arrive();
    if (threadIdx.x == 0) state->last = add_in_order(&work->done, 1) == gridDim.x - 1; /* behind the keys of all */
    __syncthreads();
    if constexpr (T::CLUSTER > 1) cluster_wait(); /* no exit while the other CTA may still send here */
    if (!state->last) return;
    for (int32_t b = threadIdx.x; b < rows && !args.leave_rows; b += 32 * (FS_RACERS + 1))
        end_row<true>(args, state->draw[b], start + b, NULL);
    if (threadIdx.x == 0) work->done = 0;
}

#endif
