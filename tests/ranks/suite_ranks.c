/* suite_ranks.c - the statistical suite (tests/c/suite.h) on the ranks as a sampler, and on the same ranks with one
 * mistake: noise keyed by a token's place in its shard, which makes ids i and i + V/n share it. */
#include "suite_ranks.h"

#include "ranks.h"
#include "suite.h"

#include <stdio.h>

typedef struct rank_sampler {
    fs_context *context;
    int same_noise;
} rank_sampler;

static void draw(void *self, const draws *d) {
    const rank_sampler *s = self;
    fs_batch batch = suite_batch(d);
    fs_head head = suite_head(d, d->first, d->last);
    head.vocab = d->last; /* fs_sample draws from a part of the vocabulary as from a whole one */
    const fs_head own = ranks_slice(&head);
    fs_result result = fs_result_default();
    float *ones = new_array(d->rows, sizeof *ones);
    for (int64_t b = 0; b < d->rows; b++) ones[b] = 1.0f;
    batch.hidden = ones;
    result.tokens = d->tokens;
    result.noisy_logit = d->score;
    fs_status status;
    const int whole = d->first == 0 &&
                      d->last == d->vocab; /* a part of the vocabulary is not for ranks, nor are online groups */
    if (s->same_noise) status = ranks_sample_with_same_noise(s->context, &head, &batch, &result);
    else if (d->mode == FS_MODE_GROUP_ONLINE || !whole) status = fs_sample(s->context, &head, &batch, &result);
    else status = ranks_sample(s->context, &own, &batch, &result);
    if (status != FS_OK) fail_msg("%s", fs_error_text(s->context));
    free(ones);
}

/* Whether a case counts single tokens without a cut: what the mistake can draw, and where it shows with few draws. */
static int is_plain(const suite_case *c) {
    static const move none;
    return c->mode == FS_MODE_SAMPLE && !c->top_k && !(c->top_p > 0.0f) && !(c->min_p > 0.0f) &&
           c->shape != SHAPE_TAIL && memcmp(&c->move, &none, sizeof none) == 0;
}

/* How many cases reject, of those there are for this sampler. */
static int count_rejections(rank_sampler *self, int *cases) {
    const sampler s = {draw, self};
    int rejected = 0;
    *cases = 0;
    for (int i = 0; i < SUITE_CASES; i++) {
        const suite_case *c = &suite_cases[i];
        if (self->same_noise && !is_plain(c)) continue;
        findings found = {.name = c->tag, .p = 1.0};
        c->run(c, &s, (int64_t)test_size((uint64_t)(self->same_noise ? c->power_n : c->n)), &found);
        ++*cases;
        rejected += rejects(&found);
        if (rejects(&found) != self->same_noise)
            printf("%s: p = %g%s\n", c->name, found.p, self->same_noise ? ", not rejected" : "");
    }
    return rejected;
}

int suite_over_ranks(fs_context *context) {
    rank_sampler right = {context, 0}, wrong = {context, 1};
    int cases, plain;
    const int rejected = count_rejections(&right, &cases);
    const int caught = count_rejections(&wrong, &plain);
    printf("%d cases, %d rejected; with the same noise on every rank %d of %d plain cases are\n", cases, rejected,
           caught, plain);
    return rejected == 0 && 3 * caught >= 2 * plain;
}
