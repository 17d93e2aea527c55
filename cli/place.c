/* place.c - see place.h. Two tables say which arrays a batch and a result have, and their sizes. */
#include "place.h"
#include "cli.h"
#include "device.h"
#include "synth.h"

#include <string.h>

/* An array of a struct: the member that points to it, and its size, 0 where the array is not there. */
typedef struct array {
    void *member;
    int64_t bytes;
    const char *what;
} array;

static const void *pointer_of(const array *a) {
    const void *pointer;
    memcpy(&pointer, a->member, sizeof pointer); /* members have types of their own */
    return pointer;
}

static void point_to(const array *a, const void *pointer) {
    memcpy(a->member, &pointer, sizeof pointer);
}

/* Bytes of `rows` lines that are `stride` apart, of which the last ends after `line` bytes. */
static int64_t bytes_of_lines(int64_t rows, int64_t stride, int64_t line) {
    return rows > 0 ? (rows - 1) * (stride ? stride : line) + line : 0;
}

fs_head place_head(const fs_head *head, int64_t rows) {
    const int is_logits = head->kind == FS_HEAD_LOGITS;
    const int64_t line = (is_logits ? head->rows : head->dim) * dtype_bytes(head->dtype);
    fs_head h = *head;
    h.data = device_array(head->data, bytes_of_lines(is_logits ? rows : head->rows, head->stride, line),
                          is_logits ? "logits" : "W");
    h.bias = device_array(head->bias, head->rows * 4, "bias");
    return h;
}

#define ARRAYS_MOST 32

static int arrays_of_batch(fs_batch *b, const fs_head *head, array *list) {
    const int64_t S = b->slots ? b->slots : b->rows, B = b->rows, D = head->kind == FS_HEAD_LOGITS ? 0 : head->dim;
    const int64_t vocab = head->vocab ? head->vocab : head->first_token + head->rows, words = (vocab + 31) / 32 * 4;
    const int64_t masks = b->allow_count ? b->allow_count : B, edits = b->edit_offset ? b->edit_offset[B] : 0,
                  counts = b->count_offset ? b->count_offset[S] : 0, watched = b->watch_offset ? b->watch_offset[B] : 0;
    const array all[] = {
        {&b->hidden, bytes_of_lines(B, b->hidden_stride, D * dtype_bytes(b->hidden_dtype)), "hidden states"},
        {&b->slot, B * (b->slot_dtype == FS_I64 ? 8 : 4), "slots"},
        {&b->position, B * 8, "positions"},
        {&b->seed, S * 8, "seeds"},
        {&b->substream, S * 4, "substreams"},
        {&b->allow, bytes_of_lines(masks, b->allow_stride, words), "masks"},
        {&b->allow_index, B * 4, "mask indices"},
        {&b->edit_offset, (B + 1) * 8, "edits"},
        {&b->edit_token, edits * 4, "edits"},
        {&b->edit_bias, edits * 4, "edits"},
        {&b->seen, bytes_of_lines(S, b->seen_stride, words), "seen tokens"},
        {&b->counts, bytes_of_lines(S, b->counts_stride, vocab * 4), "counts"},
        {&b->count_offset, (S + 1) * 8, "counts"},
        {&b->count_token, counts * 4, "counts"},
        {&b->count_value, counts * 4, "counts"},
        {&b->score_token, B * b->samples * 4, "scored tokens"},
        {&b->watch_offset, (B + 1) * 8, "watched tokens"},
        {&b->watch_token, watched * 4, "watched tokens"},
    };
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

static int arrays_of_result(fs_result *r, const fs_batch *batch, array *list) {
    const int64_t B = batch->rows, n = B * batch->samples, top = B * r->top_count;
    const int64_t watched = batch->watch_offset ? batch->watch_offset[B] : 0;
    const array all[] = {
        {&r->tokens, n * (r->tokens_dtype == FS_I64 ? 8 : 4), "tokens"},
        {&r->status, B * 4, "status"},
        {&r->noisy_logit, n * 4, "noisy logits"},
        {&r->max_logit, B * 4, "max"},
        {&r->log_z, B * 4, "log Z"},
        {&r->logit, n * 4, "logits of tokens"},
        {&r->logprob, n * 4, "logprobs"},
        {&r->rank, n * 4, "ranks"},
        {&r->top_token, top * 4, "top tokens"},
        {&r->top_logit, top * 4, "top logits"},
        {&r->top_logprob, top * 4, "top logprobs"},
        {&r->watch_logit, watched * 4, "watched logits"},
        {&r->watch_logprob, watched * 4, "watched logprobs"},
    };
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

/* The first member of a rule is its array. */
static const fs_rules *place_rules(const fs_rules *rules, int64_t slots) {
    fs_rules *placed = take_memory(1, sizeof *placed, "rules");
    *placed = *rules;
    for (int32_t i = 0; fs_rule(i); i++) {
        const array a = {(char *)placed + fs_rule(i)->offset, slots * 4, fs_rule(i)->name};
        point_to(&a, device_array(pointer_of(&a), a.bytes, a.what));
    }
    return placed;
}

/* What a host would read from the offsets. */
static const fs_limits *limits_of(const fs_batch *b) {
    fs_limits *limits = take_memory(1, sizeof *limits, "limits");
    *limits = b->limits ? *b->limits : fs_limits_default();
    limits->edits = b->edit_offset ? b->edit_offset[b->rows] : 0;
    limits->counts = b->count_offset ? b->count_offset[b->slots ? b->slots : b->rows] : 0;
    limits->watched = b->watch_offset ? b->watch_offset[b->rows] : 0;
    return limits;
}

fs_batch place_batch(const fs_batch *batch, const fs_head *head) {
    fs_batch b = *batch;
    array list[ARRAYS_MOST];
    if (!device_is_cuda()) return b;
    const int count = arrays_of_batch(&b, head, list);
    b.limits = limits_of(&b);
    if (b.rules) b.rules = place_rules(b.rules, b.slots ? b.slots : b.rows);
    for (int i = 0; i < count; i++) point_to(&list[i], device_array(pointer_of(&list[i]), list[i].bytes, list[i].what));
    return b;
}

fs_result place_result(const fs_result *result, const fs_batch *batch) {
    fs_result r = *result;
    array list[ARRAYS_MOST];
    if (!device_is_cuda()) return r;
    const int count = arrays_of_result(&r, batch, list);
    for (int i = 0; i < count; i++)
        if (pointer_of(&list[i])) point_to(&list[i], device_take(list[i].bytes, list[i].what));
    return r;
}

void fetch_result(const fs_result *result, const fs_result *placed, const fs_batch *batch) {
    fs_result from = *placed, to = *result;
    array source[ARRAYS_MOST], target[ARRAYS_MOST];
    const int count = arrays_of_result(&from, batch, source);
    arrays_of_result(&to, batch, target);
    device_wait();
    for (int i = 0; i < count; i++)
        if (pointer_of(&target[i]))
            device_download((void *)(uintptr_t)pointer_of(&target[i]), pointer_of(&source[i]), (size_t)target[i].bytes);
}
