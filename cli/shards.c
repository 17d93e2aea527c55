/* shards.c - see shards.h. */
#include "shards.h"
#include "cli.h"
#include "device.h"
#include "synth.h"

#include <stdlib.h>

/* Rows [begin, end) of the head: rows of W, or columns of stored logits. */
static fs_head slice(const fs_head *head, int64_t begin, int64_t end) {
    fs_head h = *head;
    int64_t element = dtype_bytes(head->dtype);
    int is_logits = head->kind == FS_HEAD_LOGITS;
    h.stride = head->stride ? head->stride : element * (is_logits ? head->rows : head->dim);
    h.data = (const char *)head->data + begin * (is_logits ? element : h.stride);
    h.rows = end - begin;
    h.first_token = head->first_token + begin;
    h.vocab = head->vocab ? head->vocab : head->first_token + head->rows;
    if (head->bias) h.bias = head->bias + begin;
    h.screen = NULL;
    h.screen_bytes = 0;
    return h;
}

fs_head head_shard(const fs_head *head, int i, int n) {
    int64_t begin = head->rows * i / n / 16 * 16;
    int64_t end = i + 1 == n ? head->rows : head->rows * (i + 1) / n / 16 * 16;
    return slice(head, begin, end);
}

/* Gives a slice of the head its slice of the head's screen; device_free frees what is returned. */
static void *cut_screen(fs_context *context, const fs_head *head, fs_head *shard) {
    if (!head->screen) return NULL;
    const int64_t first = shard->first_token - head->first_token;
    size_t bytes;
    check(context, fs_screen_slice(context, head->screen, head->screen_bytes, first, shard->rows, NULL, 0, &bytes));
    void *memory = device_take((int64_t)bytes, "a shard's screen");
    check(context, fs_screen_slice(context, head->screen, head->screen_bytes, first, shard->rows, memory, bytes, NULL));
    shard->screen = memory;
    shard->screen_bytes = bytes;
    return memory;
}

/* Partial on each slice, then merge. */
static void sample_once(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                        int shards) {
    void **parts = calloc((size_t)shards, sizeof *parts);
    if (!parts) die(END_RUNTIME, "no memory for %d parts", shards);
    fs_head h = *head;
    int count = 0;
    for (int i = 0; i < shards; i++) {
        h = head_shard(head, i, shards);
        if (h.rows == 0) continue;
        void *screen = cut_screen(context, head, &h);
        size_t bytes;
        check(context, fs_partial_size(context, &h, batch, result, &bytes));
        parts[count] = device_take((int64_t)bytes, "a part");
        check(context, fs_partial(context, &h, batch, result, parts[count], bytes));
        count++;
        h.screen = NULL;
        h.screen_bytes = 0;
        device_free(screen);
    }
    check(context, fs_merge(context, &h, batch, (const void *const *)parts, count, result));
    for (int i = 0; i < count; i++) device_free(parts[i]);
    free(parts);
}

/* Flags the rows that are incomplete, by their status [B], which it fetches; returns how many are. */
static int64_t find_incomplete(const fs_batch *batch, const fs_result *result, uint32_t *status, unsigned char *flag) {
    int64_t count = 0;
    device_download(status, result->status, (size_t)batch->rows * sizeof *status);
    for (int64_t b = 0; b < batch->rows; b++)
        if (status[b] & FS_ROW_INCOMPLETE) flag[b] = 1, count++;
    return count;
}

int64_t sample_in_shards(fs_context *context, const fs_head *head, const fs_batch *batch, const fs_result *result,
                         int shards) {
    fs_batch b = *batch;
    sample_once(context, head, &b, result, shards);
    if (!result->status) return 0;
    const int64_t vocab = head->vocab ? head->vocab : head->first_token + head->rows;
    unsigned char *flag = calloc((size_t)batch->rows + 1, 1);
    uint32_t *status = calloc((size_t)batch->rows + 1, sizeof *status);
    if (!flag || !status) die(END_RUNTIME, "no memory for %lld rows", (long long)batch->rows);
    /* As ranks do: 16 times the lists there were, of 1024 entries where nobody says otherwise. */
    while (find_incomplete(batch, result, status, flag) && b.list_capacity < vocab) {
        int64_t longer = 16 * (int64_t)(b.list_capacity ? b.list_capacity : 1024);
        b.list_capacity = (int32_t)(longer < vocab ? longer : vocab);
        sample_once(context, head, &b, result, shards);
    }
    int64_t again = 0;
    for (int64_t i = 0; i < batch->rows; i++) {
        if (!flag[i]) continue;
        status[i] |= FS_ROW_FALLBACK;
        again++;
    }
    device_upload(result->status, status, (size_t)batch->rows * sizeof *status);
    free(status);
    free(flag);
    return again;
}
