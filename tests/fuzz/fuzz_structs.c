/* fuzz_structs.c - every entry point with structs of any contents: nothing crashes, writes outside of its arrays or
 * answers what is not an answer; what succeeds draws the reference's tokens. */
#include "fuzz_call.h"

#include "alone.h"

static fs_context *cpu, *pair, *reference, *bounded;

static void open_contexts(void) {
    if (cpu) return;
    cpu = fuzz_open(FS_BACKEND_CPU, 1, (size_t)64 << 20);
    pair = fuzz_open(FS_BACKEND_CPU, 2, (size_t)64 << 20);
    bounded = fuzz_open(FS_BACKEND_CPU, 1, 4096);
    reference = fuzz_open(FS_BACKEND_REFERENCE, 1, 0);
}

/* A call as its caller has it. */
typedef struct arguments {
    fs_head *head;
    fs_batch *batch;
    fs_result *result;
} arguments;

static int place(rng *r, const fuzz_call *c, arguments *p) {
    p->head = fuzz_place(r, &c->head, sizeof c->head);
    fs_batch batch = c->batch;
    if (batch.rules) batch.rules = fuzz_place(r, batch.rules, sizeof *batch.rules);
    if (batch.limits) batch.limits = fuzz_place(r, batch.limits, sizeof *batch.limits);
    if (!batch.rules != !c->batch.rules || !batch.limits != !c->batch.limits) return 0;
    p->batch = fuzz_place(r, &batch, sizeof batch);
    p->result = fuzz_place(r, &c->result, sizeof c->result);
    return p->head && p->batch && p->result;
}

static void count_status(fs_status status) {
    fuzz_count(status == FS_OK                ? "ok"
               : status == FS_ERR_ARGUMENT    ? "argument"
               : status == FS_ERR_UNSUPPORTED ? "unsupported"
                                              : "other errors");
}

static int64_t end_of(const fuzz_call *c) {
    if (fuzz_call_must_fail(c)) return 0; /* what cannot be added either */
    const int64_t end = c->head.first_token + c->head.rows;
    return end < c->vocab ? end : c->vocab;
}

/* --------------------------------------------------------------------------------------------- the same tokens ---- */

typedef struct drawn {
    int64_t token[64 * 16];
    uint32_t status[64];
    float score[64 * 16];
} drawn;

static fs_status draw(fs_context *context, const fuzz_call *c, drawn *to) {
    fs_result result = fs_result_default();
    result.tokens = to->token, result.tokens_dtype = FS_I64, result.status = to->status, result.noisy_logit = to->score;
    fs_head head = c->head;
    fs_batch batch = c->batch;
    head.size = sizeof head, batch.size = sizeof batch; /* of these, whatever the caller's were */
    if (batch.rules) rules_of(&batch)->size = sizeof *batch.rules;
    if (batch.limits) limits_of(&batch)->size = sizeof *batch.limits;
    return fs_sample(context, &head, &batch, &result);
}

/* Whether row b keeps a part of the mass: where rounding decides which part, another token is no fault. */
static int has_top_p(const fs_batch *b, int64_t row) {
    const int64_t slot = !b->slot                  ? row
                         : b->slot_dtype == FS_I64 ? ((const int64_t *)b->slot)[row]
                                                   : ((const int32_t *)b->slot)[row];
    const fs_float_rule *p = &rules_in(b)->top_p;
    return p->per_slot ? p->per_slot[slot] < 1.0f : p->value != 0.0f && p->value < 1.0f;
}

/* Tokens of a call that succeeded, against the reference's. Logits are the same where dot products are exact and no
 * soft-cap rounds them. */
static void compare(const fuzz_call *c) {
    static drawn ours, theirs;
    const fs_batch *b = &c->batch;
    const uint32_t differs = FS_ROW_INCOMPLETE;
    const int64_t n = fuzz_samples(c);
    if (b->rows > 64 || n > 16 || c->head.softcap != 0.0f || !c->exact) return;
    if (draw(cpu, c, &ours) != FS_OK || draw(reference, c, &theirs) != FS_OK) return;
    fuzz_count("compared");
    for (int64_t row = 0; row < b->rows; row++) {
        if ((ours.status[row] | theirs.status[row]) & differs) continue;
        if ((ours.status[row] ^ theirs.status[row]) & FS_ROW_NO_TOKEN)
            fuzz_fault("row %lld has status 0x%x, the reference 0x%x", (long long)row, ours.status[row],
                       theirs.status[row]);
        for (int64_t i = row * n; i < (row + 1) * n; i++) {
            if (ours.token[i] == theirs.token[i]) continue;
            const float gap = fabsf(ours.score[i] - theirs.score[i]);
            fuzz_count("near ties");
            if ((ours.status[row] & FS_ROW_NO_TOKEN) || has_top_p(b, row) ||
                gap <= 1e-4f * (1.0f + fabsf(ours.score[i])))
                continue;
            fuzz_fault("row %lld draws %lld with %.9g, the reference %lld with %.9g", (long long)row,
                       (long long)ours.token[i], (double)ours.score[i], (long long)theirs.token[i],
                       (double)theirs.score[i]);
        }
    }
}

/* What was drawn over shards, against one call. Where a merge cannot prove a cut there is no token. */
static void expect_tokens_of_one_call(const fuzz_call *c) {
    static drawn whole;
    const int32_t mode = c->batch.mode;
    const int64_t n = fuzz_samples(c);
    if (mode == FS_MODE_GROUP_PARALLEL || mode == FS_MODE_SCORE || c->batch.rows > 64 || n > 16) return;
    if (c->head.rows == 0) return; /* a shard may have no tokens, a whole head not */
    if (draw(cpu, c, &whole) != FS_OK) fuzz_fault("%s", fs_error_text(cpu));
    for (int64_t i = 0; i < c->batch.rows * n; i++) {
        const int64_t token = fuzz_token(c, i / n, i % n);
        if (token != whole.token[i] && token != fuzz_fallback_token(c))
            fuzz_fault("row %lld draws %lld, and over shards %lld", (long long)(i / n), (long long)whole.token[i],
                       (long long)token);
    }
}

/* ------------------------------------------------------------------------------------------------ entry points ---- */

static void sample(rng *r, fuzz_call *c, const arguments *p) {
    fs_context *const contexts[] = {cpu, cpu, cpu, cpu, pair, bounded, reference};
    fs_context *context = PICK(r, contexts);
    const fs_status status = fs_sample(context, p->head, p->batch, p->result);
    count_status(status);
    fuzz_call_check(c, status, fs_error_text(context), c->head.first_token, end_of(c));
    if (status == FS_OK && one_in(r, 4)) compare(c);
}

/* A part, and its merge: alone, or (of a call with nothing wrong) together with that of the other rows. */
static void parts(rng *r, fuzz_call *c, const arguments *p, int wild) {
    const int count = wild ? 1 : 1 + (int)below(r, 2);
    const int64_t cut = count == 1 ? c->head.rows : below(r, c->head.rows / 16 + 1) * 16;
    const void *part[2] = {NULL, NULL};
    size_t bytes = 0;
    fs_status status = fs_partial_size(cpu, p->head, p->batch, p->result, &bytes);
    fuzz_call_check(c, status == FS_OK ? FS_ERR_STATE : status, fs_error_text(cpu)[0] ? fs_error_text(cpu) : "none", 0,
                    0);
    if (status == FS_OK && fuzz_call_must_fail(c)) fuzz_fault("the size of a part beyond the header's limits");
    for (int i = 0; i < count && status == FS_OK; i++) {
        const fs_head shard = fuzz_call_shard(c, i ? cut : 0, i ? c->head.rows : cut);
        void *to = slab_take(bytes, (size_t)below(r, 8));
        if (!to) return;
        status = fs_partial(cpu, wild ? p->head : &shard, p->batch, p->result, to, bytes - (wild && one_in(r, 50)));
        part[i] = to;
    }
    for (int i = 0; i < c->outputs; i++) /* a part has no results */
        for (size_t k = 0; k < c->output[i].bytes; k++)
            if (c->output[i].at[k] != 0x5A) fuzz_fault("fs_partial has written to result array %d", i);
    if (status != FS_OK) {
        if (!*fs_error_text(cpu)) fuzz_fault("fs_partial fails without a text");
        return count_status(status);
    }
    const int odd = wild && one_in(r, 30);
    status = fs_merge(cpu, p->head, p->batch, odd && one_in(r, 2) ? NULL : part, odd ? (int32_t)below(r, 3) - 1 : count,
                      p->result);
    count_status(status);
    fuzz_call_check(c, status, fs_error_text(cpu), 0, c->vocab);
    if (status != FS_OK) return;
    fuzz_count("merged");
    expect_tokens_of_one_call(c);
}

static void work(rng *r, fuzz_call *c, const arguments *p) {
    fs_context *context = one_in(r, 3) ? reference : cpu;
    size_t bytes[2] = {0, 0};
    fs_status status = fs_work_size(context, p->head, p->batch, p->result, one_in(r, 9) ? NULL : &bytes[0],
                                    one_in(r, 9) ? NULL : &bytes[1]);
    if (status != FS_OK) {
        fuzz_call_check(c, status, fs_error_text(context), 0, 0);
        return count_status(status);
    }
    const size_t size = bytes[below(r, 2)] - (size_t)one_in(r, 4);
    void *memory = size < (size_t)4 << 20 ? slab_take(size, one_in(r, 20)) : NULL;
    if (memory && fs_context_set_work(context, memory, size) == FS_OK) {
        status = fs_sample(context, p->head, p->batch, p->result);
        count_status(status);
        fuzz_call_check(c, status, fs_error_text(context), c->head.first_token, end_of(c));
        fuzz_count("in the caller's memory");
    }
    if (fs_context_set_work(context, NULL, 0) != FS_OK) fuzz_fault("%s", fs_error_text(context));
}

static void ranks(rng *r, fuzz_call *c, const arguments *p, int wild) {
    fs_ranks one = alone_ranks();
    for (int64_t n = wild ? below(r, 2) : 0; n > 0; n--) fuzz_wild_ranks(r, &one);
    if (one.count > 1 && one.count <= 65536) one.count = 1; /* nobody else is here */
    fs_ranks *placed = fuzz_place(r, &one, sizeof one);
    if (!placed) return;
    const fs_status status = fs_sample_ranks(cpu, placed, p->head, p->batch, p->result);
    count_status(status);
    fuzz_call_check(c, status, fs_error_text(cpu), 0, c->vocab);
    if (status != FS_OK) return;
    fuzz_count("over ranks");
    expect_tokens_of_one_call(c);
}

static void options(rng *r) {
    fs_options o = fs_options_default();
    fs_context *context = NULL;
    o.threads = 1;
    for (int64_t n = below(r, 3); n > 0; n--) fuzz_wild_options(r, &o);
    if (o.threads == 0 || o.threads > 4)
        o.threads = o.threads > 4096 ? o.threads : 2; /* as many as the header allows take long */
    if (one_in(r, 8)) o.work = slab_take(4096, one_in(r, 2) ? 0 : 8);
    if (o.work && o.work_bytes > 4096) o.work_bytes = 4096;
    fs_options *placed = fuzz_place(r, &o, sizeof o);
    if (!placed) return;
    const fs_status status = fs_context_create(placed, &context);
    count_status(status);
    if ((status == FS_OK) != (context != NULL)) fuzz_fault("status %d, context %p", status, (void *)context);
    if (status != FS_OK && !*fs_error_text(NULL)) fuzz_fault("status %d without a text", status);
    fs_context_destroy(context);
}

static void supports(rng *r) {
    fs_call_desc o = fs_call_desc_default();
    const char *why = NULL;
    for (int64_t n = below(r, 4); n > 0; n--) fuzz_wild_call_desc(r, &o);
    fs_call_desc *placed = fuzz_place(r, &o, sizeof o);
    if (!placed) return;
    const fs_status status = fs_supports((int32_t)below(r, 6) - 1, placed, one_in(r, 9) ? NULL : &why);
    count_status(status);
    if (status != FS_OK && status != FS_ERR_ARGUMENT && status != FS_ERR_UNSUPPORTED)
        fuzz_fault("fs_supports returns %d", status);
    if (why && (status == FS_OK) == (*why != 0)) fuzz_fault("fs_supports returns %d and says '%s'", status, why);
}

/* Offsets [count + 1] that ascend by up to 3, or one of which is bad. Returns the last of them. */
static int64_t some_offsets(rng *r, int64_t *offset, int64_t count) {
    static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, (int64_t)1 << 31};
    int64_t end = below(r, 2);
    for (int64_t i = 0; i <= count; i++) {
        offset[i] = end;
        if (i < count) end += below(r, 4);
    }
    if (one_in(r, 10)) offset[below(r, count + 1)] = PICK(r, bad);
    return end;
}

/* Arrays end where the header says that they may. */
static void accept_drafts(rng *r) {
    fs_drafts d = fs_drafts_default();
    const int ragged = one_in(r, 2);
    d.tokens_dtype = one_in(r, 2) ? FS_I32 : FS_I64;
    d.sequences = below(r, 5), d.draft_length = ragged ? 0 : below(r, 5);
    const size_t size = d.tokens_dtype == FS_I64 ? 8 : 4, n = (size_t)d.sequences;
    int64_t *offset = slab_take((n + 1) * 8, 0), *start = slab_take(n * 8, 0), drafts = 0, targets = 0;
    if (!offset || !start) return;
    if (ragged) targets = some_offsets(r, offset, d.sequences), d.target_offset = offset;
    else drafts = d.sequences * d.draft_length, targets = drafts + d.sequences;
    for (int64_t s = 0; s < d.sequences; s++) { /* packed; those without drafts are nowhere */
        const int ascend = ragged && offset[s] >= 0 && offset[s + 1] > offset[s];
        const int64_t more = !ragged ? d.draft_length : ascend ? offset[s + 1] - offset[s] - 1 : 0;
        start[s] = more || one_in(r, 2) ? (ragged ? drafts : s * more) : INT64_MIN;
        if (ragged) drafts += more < 4 ? more : 0;
    }
    if (one_in(r, 3)) d.draft_offset = start;
    if (one_in(r, 3)) d.token_offset = slab_take((n + 1) * 8, 0);
    d.tokens_width = one_in(r, 3) ? below(r, 7) : 0;
    char *draft = slab_take((size_t)drafts * size, 0), *target = slab_take((size_t)targets * size, 0);
    const size_t room = d.tokens_width ? n * (size_t)d.tokens_width
                                       : (size_t)targets - (size_t)(ragged ? offset[0] : 0);
    char *tokens = slab_take(room < 1000 ? room * size : 0, 0);
    int32_t *accepted = slab_take(n * 4, 0);
    if (!draft || !target || !tokens || !accepted) return;
    for (size_t i = 0; i < (size_t)drafts * size; i++) draft[i] = (char)(i % size ? 0 : below(r, 2));
    for (size_t i = 0; i < (size_t)targets * size; i++) target[i] = (char)(i % size ? 0 : below(r, 2));
    d.draft = one_in(r, 20) ? NULL : draft, d.target = one_in(r, 20) ? NULL : target, d.accepted = accepted;
    if (d.tokens_width || one_in(r, 2)) d.tokens = tokens;
    if (one_in(r, 6)) fuzz_wild_drafts(r, &d);
    fs_drafts *placed = fuzz_place(r, &d, sizeof d);
    if (!placed) return;
    const fs_status status = fs_accept_drafts(one_in(r, 2) ? cpu : NULL, placed);
    count_status(status);
    for (int64_t i = 0; i < d.sequences && status == FS_OK; i++)
        if (accepted[i] < 0 || accepted[i] > 4) fuzz_fault("%d of at most 4 drafts are accepted", accepted[i]);
}

enum { PARTS, WORK, RANKS };

static void one(rng *r) {
    fuzz_call c;
    arguments p;
    open_contexts();
    if (one_in(r, 20)) return options(r);
    if (one_in(r, 20)) return supports(r);
    if (one_in(r, 30)) return accept_drafts(r);
    const int wild = !one_in(r, 3), way = (int)below(r, 6);
    fuzz_call_make(r, &c, wild);
    if ((way == PARTS || way == RANKS) && !c.misaligned && !one_in(r, 20)) fuzz_call_of_parts(&c);
    if (!place(r, &c, &p) || (c.absurd && !fuzz_call_must_fail(&c))) return fuzz_count("left out");
    fuzz_call_clear(&c);
    switch (way) {
    case PARTS:
        return parts(r, &c, &p, wild || c.absurd);
    case WORK:
        return work(r, &c, &p);
    case RANKS:
        return ranks(r, &c, &p, wild);
    default:
        return sample(r, &c, &p);
    }
}

int main(int argc, char **argv) {
    return fuzz_main(argc, argv, "fuzz_structs", 150000, one);
}
