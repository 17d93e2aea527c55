/* sample_batch.c - from the options of `flashsample sample` to the batch of one call: its rules, and what is drawn. */
#include "arrays.h"
#include "sample.h"

#include <string.h>

/* Reads VALUES: a scalar goes to `all` (bytes wide), an array of `count` is returned. */
static const void *values(const char *option, const char *text, column_type type, void *all, size_t bytes,
                          int64_t count, const char *of) {
    if (!text) return NULL;
    column c = read_column(option, text, type);
    if (c.scalar) {
        memcpy(all, c.data, bytes);
        return NULL;
    }
    if (c.count != count)
        die(*text == '@' ? END_RUNTIME : END_USAGE, "--%s: %lld values for %lld %s", option, (long long)c.count,
            (long long)count, of);
    return c.data;
}

/* Per row, without a scalar form in the header: a scalar is repeated. */
static const int32_t *row_values(const char *option, const char *text, int64_t count) {
    int32_t all = 0;
    const int32_t *array = values(option, text, COLUMN_I32, &all, sizeof all, count, "rows");
    if (array || !text) return array;
    int32_t *repeated = take_memory(count, sizeof *repeated, option);
    for (int64_t i = 0; i < count; i++) repeated[i] = all;
    return repeated;
}

/* S: the longest slot a row names, or the number of rows. */
static int64_t count_slots(const fs_batch *b) {
    const int32_t *slot = b->slot;
    int64_t slots = slot ? 1 : b->rows;
    for (int64_t i = 0; slot && i < b->rows; i++) {
        if (slot[i] < -1 || slot[i] >= 1 << 20)
            die(END_USAGE, "--slot %d: must lie in -1 .. %d", slot[i], (1 << 20) - 1);
        if (slot[i] >= slots) slots = (int64_t)slot[i] + 1;
    }
    return slots;
}

static void build_rules(const sample_args *args, sample_call *c) {
    const counted_tokens given = {args->seen != NULL, args->counts || args->count_list};
    fs_batch *b = &c->batch;
    c->rules = read_rules(&args->rules, b->slots, given);
    b->seed = values("seed", args->seed, COLUMN_U64, &b->seed_all, 8, b->slots, "slots");
    b->substream = values("substream", args->substream, COLUMN_U32, &b->substream_all, 4, b->slots, "slots");
    b->position = values("position", args->position, COLUMN_U64, &b->position_all, 8, b->rows, "rows");
}

static void build_allow(const sample_args *args, fs_batch *b, int64_t vocab) {
    if (!args->allow && args->allow_index) die(END_USAGE, "--allow-index goes with --allow");
    if (!args->allow) return;
    bit_rows bits = read_bits("allow", args->allow, vocab);
    b->allow = bits.data;
    b->allow_count = bits.rows;
    b->allow_index = row_values("allow-index", args->allow_index, b->rows);
    for (int64_t i = 0; b->allow_index && i < b->rows; i++)
        if (b->allow_index[i] < -1 || b->allow_index[i] >= bits.rows)
            die(END_USAGE, "--allow-index: %d for row %lld, the file has %lld masks", b->allow_index[i], (long long)i,
                (long long)bits.rows);
    if (b->allow_index || bits.rows == b->rows) return;
    if (bits.rows != 1)
        die(END_RUNTIME, "--allow %s: %lld masks for %lld rows; --allow-index says which", args->allow,
            (long long)bits.rows, (long long)b->rows);
    b->allow_index = take_memory(b->rows, sizeof(int32_t), "allow-index"); /* zeros: all rows share it */
}

/* Rows of a per-slot file: one row serves all slots. */
static void *spread_rows(const char *option, const void *data, int64_t rows, int64_t slots, size_t bytes) {
    if (rows != slots && rows != 1)
        die(END_RUNTIME, "--%s: %lld rows for %lld slots", option, (long long)rows, (long long)slots);
    char *out = take_memory(slots, bytes, option);
    for (int64_t s = 0; s < slots; s++)
        memcpy(out + s * (int64_t)bytes, (const char *)data + (rows > 1 ? s : 0) * (int64_t)bytes, bytes);
    return out;
}

static void check_tokens(const char *option, const int32_t *token, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; i++)
        if (token[i] < 0 || token[i] >= vocab)
            die(END_USAGE, "--%s: token %d, must be 0 to %lld", option, token[i], (long long)vocab - 1);
}

static void build_counts(const sample_args *args, fs_batch *b, int64_t vocab) {
    if (args->seen) {
        bit_rows bits = read_bits("seen", args->seen, vocab);
        b->seen = spread_rows("seen", bits.data, bits.rows, b->slots, (size_t)bits.words * 4);
    }
    if (args->counts && args->count_list) die(END_USAGE, "--counts and --count-list exclude each other");
    if (args->counts) {
        npy_array a = read_npy("counts", args->counts);
        char shape[128];
        npy_describe(&a, shape, sizeof shape);
        if (a.rank < 1 || a.rank > 2 || a.shape[a.rank - 1] != vocab)
            die(END_RUNTIME, "--counts %s: %s, expected [.., %lld]", args->counts, shape, (long long)vocab);
        int32_t *dense = take_memory(a.count, sizeof *dense, "counts");
        convert_elements("counts", &a, 0, a.count, COLUMN_I32, dense);
        b->counts = spread_rows("counts", dense, a.rank == 2 ? a.shape[0] : 1, b->slots, (size_t)vocab * 4);
    }
    sparse list = read_sparse("count-list", args->count_list, b->slots, 1);
    if (!list.offset) return;
    check_tokens("count-list", list.token, list.offset[b->slots], vocab);
    int32_t *value = take_memory(list.offset[b->slots], sizeof *value, "count-list");
    for (int64_t i = 0; i < list.offset[b->slots]; i++) {
        if (list.value[i] < 0 || list.value[i] > 2147483647.0 || list.value[i] != (double)(int32_t)list.value[i])
            die(END_USAGE, "--count-list: %g is not a count", list.value[i]);
        value[i] = (int32_t)list.value[i];
    }
    b->count_offset = list.offset;
    b->count_token = list.token;
    b->count_value = value;
}

static void build_edits(const sample_args *args, fs_batch *b, int64_t vocab) {
    sparse edits = read_sparse("edits", args->edits, b->rows, 1);
    if (!edits.offset) return;
    int64_t n = edits.offset[b->rows];
    check_tokens("edits", edits.token, n, vocab);
    float *bias = take_memory(n, sizeof *bias, "edits");
    for (int64_t i = 0; i < n; i++) bias[i] = (float)edits.value[i];
    b->edit_offset = edits.offset;
    b->edit_token = edits.token;
    b->edit_bias = bias;
}

static uint32_t flags_of(const sample_args *args) {
    uint32_t flags = (uint32_t)args->keep_ties;
    if (args->joint_top_p) flags |= FS_JOINT_TOP_P;
    if (args->min_p_last) flags |= FS_MIN_P_LAST;
    if (args->cut_before_temperature) flags |= FS_CUT_BEFORE_TEMPERATURE;
    if (args->edits_last) flags |= FS_EDITS_LAST;
    if (args->exact_rank) flags |= FS_EXACT_RANK;
    if (args->rank_of_ties) flags |= FS_RANK_OF_TIES;
    return flags;
}

void build_batch(const sample_args *args, sample_call *c) {
    fs_batch *b = &c->batch;
    b->mode = args->mode;
    b->samples = (int32_t)args->samples;
    b->noise = args->noise;
    b->flags = flags_of(args);
    b->fallback_token = args->fallback_token ? (int32_t)args->fallback_token : FS_FALLBACK_TOKEN_ZERO;
    b->group_size = args->group_size;
    if (args->group_size && b->mode != FS_MODE_GROUP_PARALLEL && b->mode != FS_MODE_GROUP_ONLINE)
        die(END_USAGE, "--group-size goes with --mode group-parallel and group-online");
    b->list_capacity = (int32_t)args->list_capacity;
    b->slot = row_values("slot", args->slot, b->rows);
    b->slots = count_slots(b);
    build_rules(args, c);
    build_allow(args, b, c->head.vocab);
    build_counts(args, b, c->head.vocab);
    build_edits(args, b, c->head.vocab);
    if (b->mode == FS_MODE_SCORE && !args->score_tokens) die(END_USAGE, "--mode score needs --score-tokens");
    if (b->mode != FS_MODE_SCORE && args->score_tokens) die(END_USAGE, "--score-tokens goes with --mode score");
    b->score_token = row_values("score-tokens", args->score_tokens, b->rows * b->samples);
    if (b->score_token) check_tokens("score-tokens", b->score_token, b->rows * b->samples, c->head.vocab);
    sparse watch = read_sparse("watch", args->watch, b->rows, 0);
    b->watch_offset = watch.offset;
    b->watch_token = watch.token;
    c->watch_count = watch.offset ? watch.offset[b->rows] : 0;
    check_tokens("watch", watch.token, c->watch_count, c->head.vocab);
}
