#define _DEFAULT_SOURCE /* setenv */
/* test_screened_law.c - the suite on draws by a screen: every case that a screen serves, in each format, and the share
 * of its rows that the screen has decided. A screen whose scales have lost a bit is rejected. It makes a fortieth of
 * the draws of test_statistics.c (FLASHSAMPLING_TEST_SCALE=40: as many, but 400,000 of a case at most). 80 p-values,
 * each of which rejects a right sampler with probability SUITE_ALPHA. */
#include "screens.h"
#include "suite.h"

enum { D = 64, MOST = 400000, PART = 40 }; /* draws of a case at most, and which part of them is made */

/* The library, whose head is D equal columns that add up to the logits, with a screen. */
typedef struct by_screen {
    fs_context *context;
    fs_screen_options options;
    int spoil;
    int64_t rows, decided;
    float *logits, *w; /* of the ids of the last call, [ids] and [ids, D] */
    int64_t first, ids;
    void *screen;
    size_t bytes;
} by_screen;

static void forget(by_screen *s) {
    free(s->logits), free(s->w), free(s->screen);
    s->logits = s->w = s->screen = NULL;
}

static fs_head head_of(const by_screen *s, const draws *d) {
    fs_head head = fs_head_default();
    head.data = s->w, head.rows = s->ids, head.dim = D;
    head.first_token = s->first, head.vocab = d->last; /* a part of the vocabulary is drawn from as a whole one */
    return head;
}

/* Exponents that are one too small. */
static void spoil_scales(void *bytes) {
    const fs_screen screen = screen_of(bytes);
    for (int64_t strip = 0; strip < screen_strips(screen.rows); strip++) {
        const unsigned char *record = strip_record(&screen, screen_strip(&screen, strip), 0);
        uint16_t *tail = (uint16_t *)bytes + (record_tail(&screen, record) - (uint16_t *)bytes);
        for (int i = 0; i < 16; i++) tail[i] = (uint16_t)(tail[i] - (tail[i] ? 0x80 : 0));
    }
}

/* The head and its screen, made anew where the logits are others than in the last call. */
static fs_head prepare(by_screen *s, const draws *d) {
    const int64_t ids = d->last - d->first;
    const size_t bytes = (size_t)ids * sizeof *s->logits;
    if (!s->w || s->first != d->first || s->ids != ids || memcmp(s->logits, d->logits + d->first, bytes) != 0) {
        forget(s);
        s->first = d->first, s->ids = ids;
        s->logits = new_array(ids, sizeof *s->logits);
        s->w = new_array(ids * D, sizeof *s->w);
        memcpy(s->logits, d->logits + d->first, bytes);
        for (int64_t i = 0; i < ids * D; i++) s->w[i] = s->logits[i / D] / (float)D;
        const fs_head head = head_of(s, d);
        s->screen = build(s->context, &head, &s->options, &s->bytes);
        if (s->spoil) {
            spoil_scales(s->screen);
            seal(s->context, s->screen);
        }
    }
    fs_head head = head_of(s, d);
    head.screen = s->screen, head.screen_bytes = s->bytes;
    return head;
}

/* Many samples of one row are rows of their own here: so many different tokens no screen would find worth its while. */
static void draw_by_screen(void *self, const draws *d) {
    by_screen *s = self;
    const int apart = d->rows == 1 && d->samples > 1;
    const int64_t rows = apart ? d->samples : d->rows;
    const fs_head head = prepare(s, d);
    fs_batch batch = suite_batch(d);
    fs_result result = fs_result_default();
    float *ones = new_array(rows * D, sizeof *ones);
    uint64_t *position = new_array(rows, sizeof *position);
    for (int64_t i = 0; i < rows * D; i++) ones[i] = 1.0f;
    for (int64_t b = 0; b < rows; b++) position[b] = apart ? (d->position[0] << 16) + (uint64_t)b : d->position[b];
    batch.rows = rows, batch.samples = apart ? 1 : d->samples;
    batch.hidden = ones, batch.position = position;
    result.tokens = d->tokens, result.noisy_logit = d->score;
    must_be_ok(s->context, fs_sample(s->context, &head, &batch, &result));
    s->rows += rows, s->decided += counters_of(s->context).screened_rows;
    free(ones);
    free(position);
}

/* Parts and groups read W, and so do top-p that nothing cuts first and lists as long as there are ties. */
static int is_served(const suite_case *c) {
    const int alone = c->top_p > 0.0f && !c->top_k && c->min_p <= 0.0f;
    return c->shards < 2 && !c->group_size && !alone && !c->flags;
}

static const fs_screen_options formats[] = {
    {.size = sizeof(fs_screen_options), .format = FS_SCREEN_INT8, .seed = 5},
    {.size = sizeof(fs_screen_options), .format = FS_SCREEN_INT4, .seed = 5},
};

/* The smallest p-value of the case. */
static double smallest_p(const suite_case *c, const fs_screen_options *options, int spoil, int loud) {
    by_screen self = {.context = open_context(FS_BACKEND_CPU, 1, 0), .options = *options, .spoil = spoil};
    const sampler s = {draw_by_screen, &self};
    findings found = {.name = c->tag, .loud = loud, .p = 1.0};
    c->run(c, &s, (int64_t)test_size((uint64_t)(c->n < MOST ? c->n : MOST) / PART), &found);
    if (loud) print_message("# %s: %.4f of the rows by the screen\n", c->tag, (double)self.decided / (double)self.rows);
    if (!spoil && !self.decided) fail_msg("%s: the screen has decided nothing", c->name);
    forget(&self);
    fs_context_destroy(self.context);
    return found.p;
}

static void the_law_is_kept_by(const fs_screen_options *options) {
    for (int i = 0; i < SUITE_CASES; i++) {
        const suite_case *c = &suite_cases[i];
        if (!is_served(c)) continue;
        const double p = smallest_p(c, options, 0, 1);
        if (!(p >= SUITE_ALPHA)) fail_msg("%s: p = %g is below %g", c->name, p, SUITE_ALPHA);
    }
}

static void draws_by_8_bits_keep_the_law(void **state) {
    (void)state;
    the_law_is_kept_by(&formats[0]);
}

static void draws_by_4_bits_keep_the_law(void **state) {
    (void)state;
    the_law_is_kept_by(&formats[1]);
}

static void a_screen_with_wrong_scales_is_rejected(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++)
        for (int i = 1; i < 4; i++) /* gauss, zipf, peaked */
            assert_true(smallest_p(&suite_cases[i], &formats[f], 1, 0) < SUITE_ALPHA);
}

int main(void) {
    setenv("FLASHSAMPLING_SCREEN_ROWS", "1048576", 1); /* more rows than pay */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_by_8_bits_keep_the_law),
        cmocka_unit_test(draws_by_4_bits_keep_the_law),
        cmocka_unit_test(a_screen_with_wrong_scales_is_rejected),
    };
    return cmocka_run_group_tests_name("screened law", tests, NULL, NULL);
}
