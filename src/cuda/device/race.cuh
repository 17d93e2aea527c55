/* race.cuh - the race of a row's tokens, for logits in registers and in memory alike.
 *
 * A logit is compared with a threshold, which is the row's best score less the most noise its token can have. What
 * passes is scored in float, between two bounds: the lower one raises the row's best, and who may still be above the
 * best is pending. Nearly all of them are overtaken; of those that are left the exact score in double decides
 * (race_key), the one that core/race.h gives. So most tokens see one comparison, and double arithmetic, whose code is
 * large and cold, is rare (docs/notes/gpu-instructions.md). */
#ifndef FS_CUDA_RACE_CUH
#define FS_CUDA_RACE_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/noise.cuh"

#include "core/key.h"
#include "core/rules.h"

/* How a row draws, in shared memory or registers. */
typedef struct fs_draw {
    fs_noise noise;
    float inverse, temperature; /* 1 for greedy rows */
    uint32_t status;            /* FS_ROW_ bits that are known before any logit is, below 2^16, and FS_DRAW_ bits */
} fs_draw;

#define FS_DRAW_EDITED (1u << 16) /* tokens that pass are looked up (device/edits.cuh); */
#define FS_DRAW_RAISED (1u << 17) /* some y may be above x */
#define FS_DRAW_OPEN (1u << 18)   /* the pass cannot tell: the row needs its logits in memory */
#define FS_DRAW_KEPT (1u << 19)   /* the row's logits are kept, for a look at them after its race (rows/raced.cu) */
#define FS_DRAW_GREEDY (1u << 31)
#define FS_DRAW_LISTED (1u << 30) /* the row has a list of candidates, */
#define FS_DRAW_K 22              /* by top-k, 8 bits from here on; 0: by min-p */

FS_DEVICE bool is_greedy(const fs_draw &draw) {
    return draw.status & FS_DRAW_GREEDY;
}

FS_DEVICE bool is_listed(const fs_draw &draw) {
    return draw.status & FS_DRAW_LISTED;
}

FS_DEVICE bool is_kept(const fs_draw &draw) {
    return draw.status & FS_DRAW_KEPT;
}

FS_DEVICE bool is_edited(const fs_draw &draw) {
    return draw.status & FS_DRAW_EDITED;
}

FS_DEVICE bool is_raised(const fs_draw &draw) {
    return draw.status & FS_DRAW_RAISED;
}

FS_DEVICE fs_draw draw_of(const fs_row_rules &rules, uint32_t sample = 0) {
    return {noise_row(rules.seed, rules.position, sample, rules.substream), rules.inverse_temperature,
            rules.temperature, rules.status | (rules.greedy ? FS_DRAW_GREEDY : 0u)};
}

/* Where samples are drawn as rows (rows/samples.cu), a row of the launch is one of them. */
FS_DEVICE fs_draw draw_of_row(const fs_cuda_args &args, int32_t b) {
    uint32_t row = (uint32_t)(args.first_row + b), sample = 0;
    if (args.batch.samples > 1) {
        sample = row % (uint32_t)args.batch.samples;
        row /= (uint32_t)args.batch.samples;
    }
    return draw_of(rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, row), sample);
}

FS_DEVICE bool draws(const fs_draw &draw) {
    return !(draw.status & FS_ROW_NO_TOKEN);
}

/* A score that is known, or the lowest. */
FS_DEVICE float known_score(uint32_t ordered) {
    return ordered ? float_of_ordered(ordered) : -INFINITY;
}

/* ------------------------------------------------------------------------------------------------- thresholds ---- */

/* A logit of a token with at most this noise can win only if it is above level - noise * slope. */
typedef struct fs_threshold {
    float level, slope;
} fs_threshold;

/* There is slack for the float products on both sides. Everything but -inf is above without a score so far, and where
 * products would overflow. Of those that l makes +inf the lowest id wins, so all of them are above a best of +inf: x
 * need not be infinite where 1 / temperature is large. */
FS_DEVICE fs_threshold threshold_of(uint32_t known, float temperature) {
    const float best = known_score(known);
    fs_threshold t = {(best - 1e-5f - 1e-6f * fabsf(best)) * temperature, temperature * 1.000001f};
    if (best == INFINITY) t = {fminf(3.4e38f, 3.4e38f * temperature), 0.0f};
    if (!known || !(t.level < INFINITY) || !(t.slope < 8e36f)) t = {-INFINITY, 0.0f};
    return t;
}

FS_DEVICE float threshold_at(const fs_threshold &t, float noise) {
    return fmaf(-noise, t.slope, t.level);
}

/* ----------------------------------------------------------------------------------------------------- scores ---- */

/* What a logit that is no number, or makes an infinite l, says of its row. */
FS_DEVICE uint32_t odd_flags(float x, float l) {
    if (x != x) return FS_ROW_NAN;
    return l == INFINITY ? FS_ROW_INF | (x == INFINITY ? FS_CUDA_X_INF : 0u) : 0u;
}

/* Nothing float arithmetic does to a score moves it further than this: noise to 5e-4 (noise_about), the sum's
 * rounding. */
FS_DEVICE float score_slack(float l) {
    return 5e-4f + 1e-6f * fabsf(l);
}

/* A score is neither below `least` nor above `most`. */
typedef struct fs_score {
    float least, most;
} fs_score;

FS_DEVICE fs_score score_of(float l, float noise) {
    const float slack = score_slack(l);
    return {l + noise - slack, l + noise + slack};
}

/* A token that may be the best. */
typedef struct fs_pending {
    float x;
    uint32_t id; /* 1 + the token, and in kernels of several rows the row; 0: none */
    float most;  /* its score is not above this */
} fs_pending;

/* The exact score, with what is drawn of the token. */
FS_DEVICE uint64_t race_key(const fs_draw &draw, float x, uint32_t token, const fs_drawn &drawn) {
    const float l = x * draw.inverse;
    const fs_words extension = {{drawn.word[0], drawn.word[1], 0, 0}};
    const bool noisy = !is_greedy(draw) && l < INFINITY;
    return score_key(noisy ? (double)l + noise_gumbel_from(extension, drawn.prefix) : (double)l, token);
}

#endif
