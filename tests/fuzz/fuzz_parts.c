/* fuzz_parts.c - fs_merge of parts that are not what fs_partial wrote. What has changed is refused; what was forged,
 * checksum and all, may say anything, but harms nobody and draws no id that is not there. */
#include "fuzz_call.h"

#include "parts.h"

enum { PARTS = 4, MERGES = 12, MOST_BYTES = 60000 };

static fs_context *context;

/* A call on the whole vocabulary, and its parts as they were written. */
typedef struct whole {
    fuzz_call c;
    int count;
    size_t bytes;
    char *original[PARTS], *part[PARTS];
} whole;

/* 0: there is nothing to merge. */
static int make_parts(rng *r, whole *w) {
    fuzz_call *c = &w->c;
    fuzz_call_make(r, c, 0);
    fuzz_call_of_parts(c);
    if (c->head.first_token || c->vocab > c->head.rows || c->absurd) return 0;
    if (fs_partial_size(context, &c->head, &c->batch, &c->result, &w->bytes) != FS_OK || w->bytes > MOST_BYTES)
        return 0;
    w->count = 1 + (int)below(r, PARTS);
    int64_t first = 0;
    for (int i = 0; i < w->count; i++) {
        const int64_t left = c->head.rows - first,
                      end = i + 1 == w->count ? c->head.rows : first + below(r, left / 16 + 1) * 16;
        const fs_head shard = fuzz_call_shard(c, first, end);
        w->original[i] = slab_take(w->bytes, 0), w->part[i] = slab_take(w->bytes, (size_t)below(r, 8));
        if (!w->original[i] || !w->part[i]) return 0;
        if (fs_partial(context, &shard, &c->batch, &c->result, w->original[i], w->bytes) != FS_OK) return 0;
        first = end;
    }
    return 1;
}

/* ---------------------------------------------------------------------------------------------------- mutation ---- */

static void flip(rng *r, char *part, size_t bytes) {
    for (int64_t n = 1 + below(r, 4); n > 0; n--) part[below(r, (int64_t)bytes)] ^= (char)(1 << below(r, 8));
}

static void swap(rng *r, char *part, size_t bytes) {
    char word[8];
    char *a = part + below(r, (int64_t)bytes - 7), *b = part + below(r, (int64_t)bytes - 7);
    memcpy(word, a, 8), memmove(a, b, 8), memcpy(b, word, 8);
}

/* Words that are keys, counts, masses and logits where they are furthest out. */
static void odd_word(rng *r, char *part, size_t bytes) {
    static const uint64_t words[] = {0,
                                     UINT64_MAX,
                                     INT64_MAX,
                                     0x8000000080000000,
                                     0xFF800001FF800001,
                                     0x7FC000007FC00000,
                                     0x0000000100000001,
                                     0xFF7FFFFFFFFFFFFF,
                                     0x7F8000007F800000};
    const uint64_t word = one_in(r, 3) ? random_next(r) : PICK(r, words);
    memcpy(part + below(r, (int64_t)bytes - 7), &word, one_in(r, 2) ? 4 : 8);
}

static void end_early(rng *r, char *part, size_t bytes) {
    const size_t at = (size_t)below(r, (int64_t)bytes);
    memset(part + at, one_in(r, 2) ? 0 : 0xFF, bytes - at);
}

static void move_bytes(rng *r, char *part, size_t bytes) {
    const size_t n = 1 + (size_t)below(r, (int64_t)bytes / 2);
    memmove(part + below(r, (int64_t)(bytes - n)), part + below(r, (int64_t)(bytes - n)), n);
}

static void mutate(rng *r, const whole *w, char *part) {
    static void (*const ways[])(rng *, char *, size_t) = {flip, flip, swap, odd_word, odd_word, end_early, move_bytes};
    const size_t spared = one_in(r, 4) ? 0 : PART_HEADER; /* most find the header wrong and look no further */
    if (w->bytes < spared + 8) return;
    for (int64_t n = 1 + below(r, 3); n > 0; n--) PICK(r, ways)(r, part + spared, w->bytes - spared);
}

/* ------------------------------------------------------------------------------------------------------- merge ---- */

/* Parts in any order, of which some may be others' or missing. Returns whether they are the vocabulary for sure. */
static int arrange(rng *r, const whole *w, const void **parts, int *count) {
    *count = w->count;
    for (int i = 0; i < w->count; i++) parts[i] = w->part[i];
    for (int i = w->count - 1; i > 0; i--) {
        const int k = (int)below(r, i + 1);
        const void *part = parts[i];
        parts[i] = parts[k], parts[k] = part;
    }
    if (!one_in(r, 4)) return 1;
    if (one_in(r, 2) && *count > 1) --*count;
    else parts[below(r, *count)] = w->part[below(r, w->count)];
    return 0;
}

static void merge(rng *r, whole *w) {
    const void *parts[PARTS];
    int changed = 0, count, forged = one_in(r, 2);
    for (int i = 0; i < w->count; i++) {
        memcpy(w->part[i], w->original[i], w->bytes);
        if (one_in(r, 2)) mutate(r, w, w->part[i]);
        if (forged && memcmp(w->part[i], w->original[i], w->bytes) != 0) part_forge(w->part[i], w->bytes);
        changed |= memcmp(w->part[i], w->original[i], w->bytes) != 0;
    }
    const int all = arrange(r, w, parts, &count);
    fuzz_call_clear(&w->c);
    const fs_status status = fs_merge(context, &w->c.head, &w->c.batch, parts, count, &w->c.result);
    fuzz_count(status == FS_OK ? "merged" : status == FS_ERR_PEER ? "refused" : "other errors");
    if (status != FS_OK && status != FS_ERR_PEER) fuzz_fault("status %d: %s", status, fs_error_text(context));
    fuzz_call_check(&w->c, status, fs_error_text(context), 0, w->c.vocab);
    if (all && !changed && status != FS_OK) fuzz_fault("nothing has changed, but: %s", fs_error_text(context));
    if (all && changed && !forged && status == FS_OK) fuzz_fault("a change was not seen");
    if (status == FS_OK && changed) fuzz_count("forged");
}

static void one(rng *r) {
    static whole w;
    if (!context) context = fuzz_open(FS_BACKEND_CPU, 1, (size_t)64 << 20);
    if (!make_parts(r, &w)) return fuzz_count("left out");
    for (int i = 0; i < MERGES; i++) merge(r, &w);
}

int main(int argc, char **argv) {
    return fuzz_main(argc, argv, "fuzz_parts", 60000, one);
}
