/* ranks_test.c - one rank of a test: mpirun -n N ranks_test MODE. Every rank checks for itself and says what is wrong;
 * the exit code is 0 if all is well, 77 with a reason where it cannot be told.
 *
 *   same    random calls: every result is that of the unsharded call, bit for bit
 *   bytes   what a call sends is what docs/explain/ranks.md says
 *   differ  one rank calls with something else: all get the same error, and the next call works
 *   fail    one rank fails before it could send: all learn it, and the next call works
 *   suite   the statistical suite: nothing is rejected, but the same noise on every rank is
 *   stall   one rank does not come: the others return in time, and refuse what follows
 *   die     one rank is killed: likewise (what mpirun does is its own affair) */
#define _POSIX_C_SOURCE 200809L
#include "calls.h"

#include "ranks.h"
#include "suite_ranks.h"
#include "support.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

static const fs_ranks *ranks;
static fs_context *context;
static int bad;

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d: ", ranks->rank);                                                                 \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            bad++;                                                                                                     \
        }                                                                                                              \
    } while (0)

static fs_context *open_with(size_t fallback_bytes) {
    fs_options o = fs_options_default();
    fs_context *opened = NULL;
    const char *threads = getenv("FLASHSAMPLING_TEST_THREADS"); /* two, where a tool looks for races */
    o.threads = threads ? atoi(threads) : 1;
    o.fallback_bytes = fallback_bytes;
    if (fs_context_create(&o, &opened) != FS_OK) fprintf(stderr, "%s\n", fs_error_text(NULL));
    return opened;
}

/* ------------------------------------------------------------------------------------------------------- same ---- */

/* Group modes depend on their partition, so they are held against parts merged in this process. */
static fs_status merged_here(const call *c, fs_result *result) {
    static char memory[MOST_RANKS][1 << 20];
    const void *parts[MOST_RANKS];
    fs_status status = FS_OK;
    for (int r = 0; r < ranks->count && status == FS_OK; r++) {
        const fs_head shard = call_shard(c, r);
        status = fs_partial(context, &shard, &c->batch, result, memory[r], sizeof memory[r]);
        parts[r] = memory[r];
    }
    const fs_head own = call_shard(c, 0);
    return status == FS_OK ? fs_merge(context, &own, &c->batch, parts, ranks->count, result) : status;
}

/* Once per shard: where it lies, and the rows' bits. */
#define NEW_SHARD_BYTES(rows) (16 + ((rows) + 31) / 32 * 8)

static int all_have(const answer *a) {
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof *a; i++) hash = (hash ^ ((const unsigned char *)a)[i]) * 0x100000001B3u;
    const int64_t mine = (int64_t)(hash >> 1);
    int64_t words[2] = {mine, ~mine};
    return ranks->all_max(ranks->self, words, 2, NULL) == FS_OK && words[0] == mine && words[1] == ~mine;
}

static void compare(const call *c, int64_t number, const answer *shared) {
    static answer whole;
    answer_clear(&whole);
    fs_result expected = call_result(c, &whole);
    fs_status status = c->batch.mode == FS_MODE_GROUP_PARALLEL ? merged_here(c, &expected)
                                                               : fs_sample(context, &c->head, &c->batch, &expected);
    EXPECT(status == FS_OK, "call %lld alone: %s", (long long)number, fs_error_text(context));
    answer_forget_rounds(&whole, c->batch.rows);
    EXPECT(memcmp(whole.token, shared->token, sizeof whole.token) == 0, "call %lld: tokens differ", (long long)number);
    EXPECT(memcmp(&whole, shared, sizeof whole) == 0, "call %lld: results differ", (long long)number);
}

static void test_same(void) {
    static answer shared;
    int64_t rows = 0, again = 0, calls = 0, max_path = 0;
    const int64_t want = (int64_t)test_size(20000);
    for (; rows < want && bad < 5; calls++) {
        const call c = random_call((uint64_t)calls, ranks->count);
        const fs_head shard = call_shard(&c, ranks->rank);
        answer_clear(&shared);
        fs_result got = call_result(&c, &shared);
        fs_status status = fs_sample_ranks(context, ranks, &shard, &c.batch, &got);
        EXPECT(status == FS_OK, "call %lld: %s", (long long)calls, fs_error_text(context));
        if (status != FS_OK) return;
        rows += c.batch.rows;
        again += counters_of(context).fallback_rows;
        max_path += counters_of(context).wire_bytes <=
                    16 + 8 * c.batch.rows * c.batch.samples + NEW_SHARD_BYTES(c.batch.rows);
        EXPECT(answer_forget_rounds(&shared, c.batch.rows) == counters_of(context).fallback_rows,
               "call %lld: %lld fallback rows", (long long)calls, (long long)counters_of(context).fallback_rows);
        EXPECT(all_have(&shared), "call %lld: not every rank has the same results", (long long)calls);
        if (calls % ranks->count == ranks->rank) compare(&c, calls, &shared);
    }
    printf("%lld rows in %lld calls on %d ranks: the same; %lld rows took further rounds, %lld calls one collective\n",
           (long long)rows, (long long)calls, ranks->count, (long long)again, (long long)max_path);
    EXPECT(want < 20000 || (again > 0 && max_path > 0), "the calls do not reach every path");
}

/* ------------------------------------------------------------------------------------------------- a plain call
 * ---- */

enum { B = 5, D = 8, V = 640 };
static float w[V][D], h[B][D];
static int32_t tokens[B * 4];
static float log_z[B], logprob[B];
static uint32_t status_bits[B];

static fs_head plain_head(int rank) {
    fs_head head = fs_head_default();
    const int64_t v0 = V * rank / ranks->count / 16 * 16,
                  v1 = rank + 1 == ranks->count ? V : V * (rank + 1) / ranks->count / 16 * 16;
    for (int i = 0; i < V * D; i++) w[i / D][i % D] = (float)(i * 7919LL % 2003) / 2003 - 0.5f;
    for (int i = 0; i < B * D; i++) h[i / D][i % D] = (float)(i * 104729LL % 1009) / 1009 - 0.5f;
    head.data = w[v0];
    head.rows = v1 - v0;
    head.dim = D;
    head.first_token = v0;
    head.vocab = V;
    return head;
}

static fs_batch plain_batch(void) {
    fs_batch batch = fs_batch_default();
    batch.rows = B;
    batch.hidden = h;
    batch.seed_all = 3;
    return batch;
}

static fs_result plain_result(void) {
    fs_result result = fs_result_default();
    result.tokens = tokens;
    return result;
}

static fs_status draw(const fs_head *head, const fs_batch *batch, fs_result *result) {
    return fs_sample_ranks(context, ranks, head, batch, result);
}

static void expect_plain_call(const char *after) {
    const fs_head head = plain_head(ranks->rank);
    const fs_batch batch = plain_batch();
    fs_result result = plain_result();
    EXPECT(draw(&head, &batch, &result) == FS_OK, "after %s: %s", after, fs_error_text(context));
}

/* ------------------------------------------------------------------------------------------------------- bytes ---- */

static void expect_bytes(const char *what, const fs_batch *batch, fs_result *result, int64_t bytes) {
    const fs_head head = plain_head(ranks->rank);
    fs_status status = draw(&head, batch, result);
    EXPECT(status == FS_OK, "%s: %s", what, fs_error_text(context));
    EXPECT(counters_of(context).wire_bytes == bytes, "%s: %lld bytes were sent, expected %lld", what,
           (long long)counters_of(context).wire_bytes, (long long)bytes);
}

static void test_bytes(void) {
    fs_batch batch = plain_batch();
    fs_result result = plain_result();
    expect_bytes("a new shard", &batch, &result, 16 + 8 * B + NEW_SHARD_BYTES(B));
    expect_bytes("tokens", &batch, &result, 16 + 8 * B);
    rules_of(&batch)->temperature.value = 0.0f;
    expect_bytes("greedy", &batch, &result, 16 + 8 * B);
    rules_of(&batch)->temperature.value = 1.0f;
    batch.samples = 3;
    expect_bytes("3 samples", &batch, &result, 16 + 8 * 3 * B);
    batch.samples = 1;
    result.status = status_bits;
    expect_bytes("tokens and status", &batch, &result, 16 + 8 * B);
    result.log_z = log_z;
    expect_bytes("log Z", &batch, &result, 16 + (8 + 20 + 4) * B);
    result.logprob = logprob;
    expect_bytes("logprobs", &batch, &result, 16 + (8 + 4 + 20 + 4) * B);
    result = plain_result();
    rules_of(&batch)->top_k.value = 50;
    expect_bytes("top-k", &batch, &result, 16 + (8 + 4 + 12 + 8 * 50) * B);
    batch = plain_batch();
    batch.mode = FS_MODE_GROUP_PARALLEL;
    batch.group_size = 1;
    expect_bytes("groups", &batch, &result, 16 + (8 + 20) * B);
    batch = plain_batch();
    batch.rows = 0;
    expect_bytes("no rows", &batch, &result, 16);
    /* A NaN on one rank: a second, small exchange says in which rows. */
    batch = plain_batch();
    fs_head head = plain_head(ranks->rank);
    if (ranks->rank == ranks->count - 1) h[2][0] = NAN; /* after plain_head, which fills it */
    result.status = status_bits;
    fs_status status = draw(&head, &batch, &result);
    EXPECT(status == FS_OK && counters_of(context).wire_bytes == 16 + 8 * B + 8, "NaN: %lld bytes",
           (long long)counters_of(context).wire_bytes);
    for (int b = 0; b < B; b++)
        EXPECT(((status_bits[b] & FS_ROW_NAN) != 0) == (b == 2), "row %d has status %#x", b, status_bits[b]);
    printf("bytes are what they should be\n");
}

/* ------------------------------------------------------------------------------------------------------ differ ---- */

typedef struct difference {
    const char *named; /* what the error must speak of */
    void (*make)(fs_head *head, fs_batch *batch, fs_result *result);
} difference;

static int32_t edit_token[2] = {7, 9}, watch_token[2] = {1, 2};
static float edit_bias[2] = {1.0f, 2.0f}, watch_logit[4];
static int64_t edit_offset[B + 1], watch_offset[B + 1];

#define DIFFERENCE(name, statement)                                                                                    \
    static void name(fs_head *head, fs_batch *batch, fs_result *result) {                                              \
        (void)head, (void)batch, (void)result;                                                                         \
        statement;                                                                                                     \
    }
DIFFERENCE(other_rows, batch->rows = B - 1)
DIFFERENCE(other_vocab, head->vocab = V - 1)
DIFFERENCE(other_dim, head->dim = D / 2)
DIFFERENCE(other_cap, head->softcap = 3.0f)
DIFFERENCE(other_mode, batch->mode = FS_MODE_WITHOUT_REPLACEMENT)
DIFFERENCE(other_noise, batch->noise = FS_NOISE_FAST)
DIFFERENCE(other_flags, batch->flags = FS_KEEP_TIES)
DIFFERENCE(other_samples, batch->samples = 2)
DIFFERENCE(other_logits, result->logits_mode = FS_LOGITS_CUT)
DIFFERENCE(other_results, result->log_z = log_z)
DIFFERENCE(other_seed, batch->seed_all += (uint64_t)1 << 63)
DIFFERENCE(other_substream, batch->substream_all = 1)
DIFFERENCE(other_position, batch->position_all = (uint64_t)1 << 40)
DIFFERENCE(other_temperature, rules_of(batch)->temperature.value = 0.999999f)
DIFFERENCE(other_top_k, rules_of(batch)->top_k.value = 9)
DIFFERENCE(other_edits,
           (batch->edit_offset = edit_offset, batch->edit_token = edit_token, batch->edit_bias = edit_bias))
DIFFERENCE(other_extras, (batch->extra_offset = edit_offset, batch->extra_token = edit_token))
DIFFERENCE(other_place, head->first_token -= 16)
DIFFERENCE(other_size, head->rows -= 16)
DIFFERENCE(other_watch,
           (batch->watch_offset = watch_offset, batch->watch_token = watch_token, result->watch_logit = watch_logit))

static const difference differences[] = {
    {"batch.rows is 4", other_rows},
    {"vocabulary size is 639", other_vocab},
    {"head.dim is 4", other_dim},
    {"softcap", other_cap},
    {"batch.mode is 1", other_mode},
    {"batch.noise is 1", other_noise},
    {"batch.flags is 3", other_flags},
    {"batch.samples is 2", other_samples},
    {"result.logits_mode is 2", other_logits},
    {"results are asked", other_results},
    {"a seed", other_seed},
    {"substream", other_substream},
    {"a position", other_position},
    {"the value of a rule", other_temperature},
    {"the value of a rule", other_top_k},
    {"an edit", other_edits},
    {"batch.extra_token", other_extras},
    {"watch_token", other_watch},
    {"belongs to two ranks", other_place},
    {"belong to no rank", other_size},
};

static void test_differ(void) {
    if (ranks->count == 1) {
        printf("one rank has nobody to differ from\n");
        exit(77);
    }
    for (int b = 0; b <= B; b++) edit_offset[b] = b > 0 ? 2 : 0, watch_offset[b] = b > 0 ? 2 : 0;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        fs_head head = plain_head(ranks->rank);
        fs_batch batch = plain_batch();
        fs_result result = plain_result();
        if (ranks->rank == ranks->count / 2) differences[i].make(&head, &batch, &result);
        fs_status status = draw(&head, &batch, &result);
        EXPECT(status == FS_ERR_PEER, "%s: status %d", differences[i].named, status);
        const char *text = fs_error_text(context);
        EXPECT(strstr(text, differences[i].named), "\"%s\" does not say \"%s\"", text, differences[i].named);
        if (ranks->rank == 0 && i < 3) printf("%s\n", text);
        expect_plain_call(differences[i].named);
    }
    /* Of options only what decides about rounds must be alike. */
    fs_context *usual = context;
    context = open_with(ranks->rank == 0 ? 1 << 20 : 2 << 20);
    const fs_head head = plain_head(ranks->rank);
    const fs_batch batch = plain_batch();
    fs_result result = plain_result();
    EXPECT(draw(&head, &batch, &result) == FS_ERR_PEER, "different budgets went unnoticed");
    EXPECT(strstr(fs_error_text(context), "fallback_bytes"), "\"%s\"", fs_error_text(context));
    fs_context_destroy(context);
    context = usual;
}

/* -------------------------------------------------------------------------------------------------------- fail ---- */

static int alloc_fails;

static void *failing_alloc(void *user, size_t alignment, size_t bytes) {
    (void)user;
    return alloc_fails ? NULL : aligned_alloc(alignment, bytes);
}

static void plain_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

static void expect_failure(const char *what, fs_status status, fs_status own, int failing) {
    char message[64];
    const char *text = fs_error_text(context);
    snprintf(message, sizeof message, "rank %d failed", failing);
    if (ranks->rank == failing) EXPECT(status == own, "%s: own status is %d: %s", what, status, text);
    else EXPECT(status == FS_ERR_PEER && strstr(text, message), "%s: status %d, \"%s\"", what, status, text);
}

static void test_fail(void) {
    const int failing = ranks->count - 1;
    fs_options o = fs_options_default();
    o.threads = 1;
    o.alloc = failing_alloc;
    o.free = plain_free;
    fs_context_destroy(context);
    if (fs_context_create(&o, &context) != FS_OK) EXPECT(0, "%s", fs_error_text(NULL));
    for (int i = 0; i < 3; i++) {
        fs_head head = plain_head(ranks->rank);
        fs_batch batch = plain_batch();
        fs_result result = plain_result();
        const int mine = ranks->rank == failing;
        if (i == 0 && mine) head.dtype = FS_Q6_K;
        if (i == 1 && mine) batch.rows = -1;
        if (i == 2) rules_of(&batch)->top_p.value = 0.5f; /* needs more memory than there is */
        alloc_fails = i == 2 && mine;
        fs_status status = draw(&head, &batch, &result);
        alloc_fails = 0;
        static const char *const what[] = {"a dtype that is not there", "bad rows", "no memory"};
        static const fs_status own[] = {FS_ERR_UNSUPPORTED, FS_ERR_ARGUMENT, FS_ERR_MEMORY};
        expect_failure(what[i], status, own[i], failing);
        if (ranks->rank == 0) printf("%s: %s\n", what[i], fs_error_text(context));
        expect_plain_call(what[i]);
    }
}

/* -------------------------------------------------------------------------------------------------- stall, die ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The others are told by the clock; what they return is printed, because mpirun may take this as a failed job. */
static void test_absence(int dies) {
    const int absent = ranks->count - 1;
    const fs_head head = plain_head(ranks->rank);
    const fs_batch batch = plain_batch();
    fs_result result = plain_result();
    for (int i = 0; i < 20; i++) expect_plain_call("nothing");
    if (ranks->rank == absent) {
        if (dies) raise(SIGKILL);
        sleep(4);
        _exit(0);
    }
    double begin = now();
    fs_status first = draw(&head, &batch, &result);
    double seconds = now() - begin;
    char text[512];
    snprintf(text, sizeof text, "%s", fs_error_text(context));
    fs_status second = draw(&head, &batch, &result);
    fprintf(stderr, "survivor %d: %s, then %s after %.2f s: %s\n", ranks->rank, fs_status_text(first),
            fs_status_text(second), seconds, text);
    fs_context_destroy(context);
    _exit(first == FS_ERR_PEER && second == FS_ERR_STATE && !bad ? 0 : 1);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    const int absence = strcmp(mode, "stall") == 0 || strcmp(mode, "die") == 0;
    ranks_set_deadline(absence ? 1.0 : 120.0);
    ranks = ranks_open();
    if (!ranks) {
        fprintf(stderr, "usage: mpirun -n N ranks_test same | bytes | differ | fail | suite | stall | die\n");
        return 2;
    }
    context = open_with((size_t)64 << 20);
    if (strcmp(mode, "same") == 0) test_same();
    else if (strcmp(mode, "bytes") == 0) test_bytes();
    else if (strcmp(mode, "differ") == 0) test_differ();
    else if (strcmp(mode, "fail") == 0) test_fail();
    else if (strcmp(mode, "suite") == 0) EXPECT(suite_over_ranks(context), "the suite fails");
    else if (absence) test_absence(strcmp(mode, "die") == 0);
    else EXPECT(0, "unknown mode %s", mode);
    fs_context_destroy(context);
    return bad ? 1 : 0;
}
