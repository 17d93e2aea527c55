/* row.cuh - the end of a row: what CTAs have left of it in work memory, as the one summary of core/summary.h, and from
 * there to its results by the one finish of core/finish.h. */
#ifndef FS_CUDA_ROW_CUH
#define FS_CUDA_ROW_CUH

#include "cuda/device/mass.cuh"
#include "cuda/device/race.cuh"

#include "core/finish.h"

/* ------------------------------------------------------------------------------------------------------ masses ---- */

/* The sum of two values, one kept by each half of the lanes `apart` apart: halves the values a lane holds. */
FS_DEVICE float keep_sum(float mine, float theirs, int32_t apart) {
    const bool upper = threadIdx.x & apart;
    const float sent = __shfl_xor_sync(~0u, upper ? mine : theirs, apart);
    return (upper ? theirs : mine) + sent;
}

/* The first of the two limbs a sum inside [2^-48, 2^99) adds to, and what, 24 bits to the first and the rest to the
 * next: the same limbs as mass_add's. */
FS_DEVICE unsigned long long limbs_of(float sum, int32_t *limb) {
    const uint32_t bits = float_bits(sum);
    const int32_t low = (int32_t)(bits >> 23) - 150;
    *limb = (low + 24 * 32) / 24 - 32; /* floor(low / 24) */
    return (unsigned long long)((bits & 0x7FFFFFu) | 0x800000u) << (low - 24 * *limb);
}

/* Adds to two neighbouring limbs of the row's mass: two reductions, in any order. */
FS_DEVICE void row_add_mass(fs_cuda_row *row, int32_t limb, unsigned long long low, unsigned long long high) {
    atomicAdd(&row->limb[limb - FS_CUDA_LIMB], low);
    if (high) atomicAdd(&row->limb[limb - FS_CUDA_LIMB + 1], high);
}

FS_DEVICE fs_mass row_mass(const fs_cuda_row *row) {
    fs_mass mass = mass_empty();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint64_t limb = __ldcg(&row->limb[i]);
        if (limb) mass_raise(&mass, i + FS_CUDA_LIMB);
        mass.limb[0] += limb;
    }
    if (__ldcg((const unsigned long long *)&row->odd.limb[0])) {
        const fs_mass odd = row->odd;
        mass_merge(&mass, &odd);
    }
    return mass;
}

/* What a call has used of a row, back to zero. Not by memset: 45 us for 256 rows (H200, 2026-11). */
FS_DEVICE void clear_row(fs_cuda_row *row, bool masses) {
    row->key = 0;
    row->bound = row->flags = row->max = row->done = row->seeded = 0;
    if (!masses) return;
    for (int i = 0; i < 8; i++) row->limb[i] = 0;
    row->odd.limb[0] = 0;
}

FS_DEVICE bool needs_mass(const fs_needs &needs) {
    return needs.mass || needs.raw_mass;
}

/* ----------------------------------------------------------------------------------------------- shared scores ---- */

/* Row b's record at hand. */
FS_DEVICE fs_group *record_of_row(const fs_cuda_args &args, int64_t record, int32_t b) {
    return args.groups.record + (int64_t)b * args.groups.count * args.groups.slots + record;
}

/* Where the keys of a CTA go, and where the CTAs that race against each other share their best scores: the rows in work
 * memory, or in group modes the records at hand. Row b's are b * stride bytes on: no choice is left where they are
 * used, and little code. */
typedef struct fs_shared_scores {
    char *key, *bound;
    int64_t stride;
} fs_shared_scores;

template <bool GROUPED> FS_DEVICE fs_shared_scores shared_scores(const fs_cuda_args &args, int64_t record) {
    if (!GROUPED || !args.groups.tiles)
        return {(char *)&args.work[0].key, (char *)&args.work[0].bound, sizeof(fs_cuda_row)};
    fs_group *first = record_of_row(args, record / args.groups.slots * args.groups.slots, 0);
    return {(char *)&record_of_row(args, record, 0)->winner.key, (char *)&first->winner.x,
            (int64_t)sizeof(fs_group) * args.groups.count * args.groups.slots};
}

FS_DEVICE unsigned long long *key_of(const fs_shared_scores &shared, int32_t b) {
    return (unsigned long long *)(shared.key + b * shared.stride);
}

FS_DEVICE uint32_t *bound_of(const fs_shared_scores &shared, int32_t b) {
    return (uint32_t *)(shared.bound + b * shared.stride);
}

/* ----------------------------------------------------------------------------------------------------- summary ---- */

/* What a pass has found of a row. */
typedef struct fs_found {
    uint64_t key; /* of the drawn token; 0: none */
    float x;      /* its logit, where that is needed; else NaN */
    uint32_t flags;
    float max; /* largest x, where that is asked for */
    fs_mass mass;
} fs_found;

FS_DEVICE fs_found found_nothing() {
    return {FS_KEY_NONE, NAN, 0, -INFINITY, mass_empty()};
}

/* The drawn token's logit where none was carried along: the key holds l + noise to 2^-24 or better, and the noise is
 * known, so what is left is l. NaN where it is not needed, or there is none. */
FS_DEVICE float logit_of_key(const fs_draw &draw, const fs_needs &needs, uint64_t key) {
    if (!needs.winner_logit || !key) return NAN;
    double l = score_key_value(key);
    if (!is_greedy(draw)) l -= noise_gumbel(draw.noise, score_key_token(key));
    return (float)(l * (double)draw.temperature);
}

FS_DEVICE fs_found found_in(const fs_cuda_row *row, const fs_draw &draw, const fs_needs &needs) {
    fs_found found = found_nothing();
    found.key = __ldcg(&row->key);
    found.flags = __ldcg(&row->flags);
    found.x = logit_of_key(draw, needs, found.key);
    if (needs.max) found.max = known_score(__ldcg(&row->max));
    if (needs_mass(needs)) found.mass = row_mass(row);
    return found;
}

/* That as the one summary. How large the largest logit is nobody may have asked, but whether there is one, and whether
 * it is +inf, or becomes so. */
FS_DEVICE fs_summary summary_of(const fs_needs &needs, const fs_found &found, fs_winner *winner) {
    fs_summary s = {};
    s.flags = found.flags & ~FS_CUDA_X_INF;
    s.max_x = !found.key ? -INFINITY : needs.max ? found.max : s.flags & FS_ROW_INF ? 0x1.fffffep127f : 0.0f;
    if (found.flags & FS_CUDA_X_INF) s.max_x = INFINITY;
    s.max_y = s.max_x;
    s.mass = s.raw_mass = found.mass;
    s.cut_mass = mass_empty();
    *winner = {found.key, found.x, found.x};
    s.winner = winner;
    return s;
}

/* ----------------------------------------------------------------------------------------------------- results ---- */

/* The rules of rows that have no other: constants, of which the compiler leaves out what they do not need. */
FS_DEVICE fs_row_rules rules_of(const fs_draw &draw) {
    fs_row_rules rules = {};
    rules.status = draw.status & FS_ROW_NO_TOKEN;
    rules.greedy = is_greedy(draw);
    rules.inverse_temperature = rules.cut_scale = draw.inverse;
    rules.top_p = rules.repetition = 1.0f;
    rules.log_min_p = -INFINITY;
    return rules;
}

/* The needs of such rows: one token, no list. */
FS_DEVICE fs_needs plain_needs(const fs_needs &all) {
    fs_needs needs = {};
    needs.samples = 1;
    needs.mass = all.mass && !all.mass_to_cut;
    needs.raw_mass = all.raw_mass;
    needs.winner_logit = all.winner_logit;
    needs.max = all.max;
    return needs;
}

/* The results such rows may have. With `scrap`, some bytes, they all go there, for a row 0: whoever wants the
 * instructions alone gets no results. */
FS_DEVICE fs_result plain_result(const fs_result &all, bool tokens_only, void *scrap) {
    fs_result result = {};
    auto place = [&](auto *p) { return scrap && p ? (decltype(p))scrap : p; };
    result.tokens = place(all.tokens);
    result.tokens_dtype = all.tokens_dtype;
    result.logits_mode = all.logits_mode;
    result.status = place(all.status);
    if (tokens_only) return result;
    result.noisy_logit = place(all.noisy_logit);
    result.logit = place(all.logit);
    result.logprob = place(all.logprob);
    result.log_z = place(all.log_z);
    result.max_logit = place(all.max_logit);
    return result;
}

/* The results of row `at` of the batch; or of a sample that is drawn as a row, of which a row's first one has the
 * status: that of the others is the same, since what sets its bits can win whatever the noise. */
FS_DEVICE void write_row(const fs_cuda_args &args, const fs_draw &draw, const fs_needs &needs, int64_t at,
                         const fs_found &found, bool tokens_only, void *scrap) {
    fs_result result = plain_result(args.result, tokens_only, scrap);
    if (args.batch.samples > 1 && result.status && !scrap) {
        const int64_t row = (uint32_t)at / (uint32_t)args.batch.samples;
        result.status = at == row * args.batch.samples ? result.status + row - at : NULL;
    }
    const fs_call call = {&args.head, &args.batch, &result, NULL, args.vocab, needs};
    const fs_row_rules rules = rules_of(draw);
    fs_winner winner;
    fs_summary summary = summary_of(needs, found, &winner);
    finish_row(&call, scrap ? 0 : at, &rules, &summary, 0, 1, NULL);
}

/* A row that needs nothing but what is in work memory. Of calls for tokens alone there is a shorter one. */
template <bool TOKENS_ONLY>
FS_DEVICE void end_row(const fs_cuda_args &args, const fs_draw &draw, int32_t b, void *scrap) {
    fs_cuda_row *row = &args.work[b];
    fs_needs needs = {};
    needs.samples = 1;
    if (!TOKENS_ONLY) needs = plain_needs(args.needs);
    fs_found found = found_in(row, draw, needs);
    if (scrap) found.key = score_key(0.0, 0), found.mass = {0, {1, 0, 0}}; /* what will be there, for its way */
    write_row(args, draw, needs, args.first_row + b, found, TOKENS_ONLY, scrap);
    if (!scrap) clear_row(row, needs_mass(needs));
}

/* The same out of line, for its instructions to be the same in a rehearsal. */
template <bool TOKENS_ONLY>
static __device__ __noinline__ void close_row(const fs_cuda_args &args, const fs_draw &draw, int32_t b, void *scrap) {
    end_row<TOKENS_ONLY>(args, draw, b, scrap);
}

#endif
