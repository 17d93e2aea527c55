#include "cuda_plan.h"

#include "core/format.h"
#include "core/needs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Measured on one H200 (docs/findings): bytes per microsecond from memory, and bf16 operations per microsecond. */
#define FS_CUDA_READ 4.5e6
#define FS_CUDA_FLOPS 7.9e8
/* Slices of 128 in K a pair of tiles starts after its predecessor (docs/findings/gpu-reading-weights.md, "Pairs of
 * tiles start in K"). */
#define FS_CUDA_SHIFT 4

int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch) {
    const fs_weights w = weights_of_head(head);
    const fs_matrix h = hidden_of_batch(head, batch);
    return (uintptr_t)w.data % 16 == 0 && (uintptr_t)h.data % 16 == 0 && w.stride % 16 == 0 && h.stride % 16 == 0;
}

/* Whether the environment's choice, "family" or "family:N", is this family; *width is N or 0. */
static int is_forced(const char *forced, const fs_cuda_family *family, int64_t *width) {
    size_t n = strlen(family->name);
    if (strncmp(forced, family->name, n) != 0 || (forced[n] != 0 && forced[n] != ':')) return 0;
    *width = 0;
    if (forced[n] == 0) return 1;
    char *end;
    *width = strtol(forced + n + 1, &end, 10);
    return *end == 0 && *width > 0;
}

/* The family that runs here, takes the data, and is not ruled out by the environment; *width as above. */
static const fs_cuda_family *choose_family(const fs_cuda_device *device, const fs_cuda_family *families, int32_t count,
                                           const char *forced, int aligned, int64_t *width, fs_cuda_plan *plan) {
    int known = forced == NULL;
    for (int32_t i = 0; i < count; i++) {
        const fs_cuda_family *f = &families[i];
        *width = 0;
        if (forced && !is_forced(forced, f, width)) continue;
        known = 1;
        if ((f->major ? device->major == f->major : device->major >= 8) && (aligned || !f->aligned)) return f;
    }
    if (!known) snprintf(plan->text, sizeof plan->text, "FLASHSAMPLING_CUDA_TILE=%s is unknown", forced);
    else
        snprintf(plan->text, sizeof plan->text, "no kernel%s%s takes compute capability %d.%d and %s data",
                 forced ? " of FLASHSAMPLING_CUDA_TILE=" : "", forced ? forced : "", device->major, device->minor,
                 aligned ? "aligned" : "unaligned");
    return NULL;
}

/* The narrowest tile that holds the rows, else the widest that runs here; of equal ones the first that fits. */
static const fs_cuda_shape *choose_shape(const fs_cuda_device *device, const fs_cuda_family *family, int64_t width,
                                         int64_t rows) {
    const fs_cuda_shape *best = NULL;
    for (int32_t i = 0; i < family->count; i++) {
        const fs_cuda_shape *s = &family->shapes[i];
        if ((s->cluster > 1 && device->clusters_of_two == 0) || s->shared_bytes > device->shared_bytes) continue;
        if (width && s->rows != width) continue;
        if (best && best->rows >= rows) break;
        if (best && best->rows == s->rows) continue;
        best = s;
    }
    return best;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Rounded up, the fraction gains less than 1 over all clusters: their whole parts count to `left` exactly. */
static fs_cuda_schedule schedule_of(const fs_head *head, const fs_cuda_plan *plan) {
    const int64_t span = (int64_t)FS_CUDA_TILE * plan->shape->cluster, clusters = plan->grid / plan->shape->cluster;
    const int64_t vocab = head_vocab(head);
    const int64_t low = head->first_token, high = least(low + head->rows, vocab);
    const int64_t spans = high > low ? (high + span - 1) / span - low / span : 0, left = spans % clusters;
    const fs_cuda_schedule schedule = {(uint32_t)(spans / clusters),
                                       (uint32_t)((left * 65536 + clusters - 1) / clusters)};
    return schedule;
}

/* Rounded up: times a pair's number and the slices, what comes behind the point stays below 1 as long as their product
 * is below 2^32. */
static uint32_t k_shift_of(int64_t dim) {
    const uint64_t slices = (uint64_t)(dim + 127) / 128;
    return (uint32_t)((((uint64_t)FS_CUDA_SHIFT << 32) + slices - 1) / slices);
}

/* Groups the shard's tokens lie in, and how many CTAs at most share one. */
static void plan_groups(const fs_head *head, const fs_batch *batch, fs_cuda_plan *plan) {
    const int32_t cluster = plan->shape->cluster;
    plan->groups = 1;
    plan->slots = plan->grid;
    if (!batch_is_grouped(batch)) return;
    const int64_t span = (int64_t)FS_CUDA_TILE * cluster, size = batch->group_size;
    const int64_t spans = (head->first_token + head->rows + span - 1) / span - head->first_token / span;
    const int64_t clusters = plan->grid / cluster, touched = (size + span - 1) / span + 1;
    plan->groups = (int32_t)((head->first_token + head->rows - 1) / size - head->first_token / size + 1);
    plan->slots = (int32_t)least(clusters, touched * clusters / spans + 2) * cluster;
}

int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_family *families, int32_t count, const char *forced,
                        const fs_head *head, const fs_batch *batch, int64_t rows, fs_cuda_plan *plan) {
    memset(plan, 0, sizeof *plan);
    int64_t width = 0;
    plan->family = choose_family(device, families, count, forced, fs_cuda_plan_aligned(head, batch), &width, plan);
    if (!plan->family) return 0;
    plan->shape = choose_shape(device, plan->family, width, rows);
    if (!plan->shape) {
        snprintf(plan->text, sizeof plan->text, "%s has no tile %lld rows wide that runs here", plan->family->name,
                 (long long)(width ? width : rows));
        return 0;
    }
    const fs_cuda_shape *s = plan->shape;
    plan->rows = (int32_t)least(rows, s->rows);
    int64_t ctas = s->cluster == 1 ? device->processors : 2 * (int64_t)device->clusters_of_two;
    if (ctas > device->processors) ctas = device->processors / s->cluster * s->cluster;
    /* No CTA without a tile: a short vocabulary takes fewer. */
    int64_t tiles = (head->rows + 127) / 128 + 1;
    if (s->cluster == 2) tiles = (head->rows + 255) / 256 * 2 + 2;
    if (ctas > tiles) ctas = tiles / s->cluster * s->cluster;
    plan->grid = (int32_t)(ctas < s->cluster ? s->cluster : ctas);
    plan->k_steps = (int32_t)((head->dim + s->k - 1) / s->k);
    plan->schedule = schedule_of(head, plan);
    plan->k_shift = k_shift_of(head->dim);
    plan_groups(head, batch, plan);
    double read = (double)(head->rows * format_row_bytes(format_of(head->dtype), head->dim)) / FS_CUDA_READ;
    double compute = 2.0 * (double)head->rows * (double)head->dim * s->rows / FS_CUDA_FLOPS;
    plan->microseconds = read > compute ? read : compute;
    return 1;
}

void fs_cuda_plan_describe(const fs_cuda_plan *plan, const char *forced, char *text, size_t size) {
    const fs_cuda_shape *s = plan->shape;
    snprintf(text, size, "%s tile 128x%d, %d stages of %d, cluster %d, grid %d: %.0f us predicted on an H200%s",
             plan->family->name, s->rows, s->stages, s->k, s->cluster, plan->grid, plan->microseconds,
             forced ? ", forced by FLASHSAMPLING_CUDA_TILE" : "");
}

/* ---------------------------------------------------------------------------------------------- stored logits ---- */

/* Groups of fewer blocks than this are one warp's each: a CTA would have too little in flight. */
#define FS_CUDA_STORED_GROUP 64
/* In group modes one lane goes through all records of a group: no more CTAs than this take part in one. */
#define FS_CUDA_STORED_SPLIT 64

/* Every CTA takes one share of one row, and all run at once where the device has room: while memory is the limit they
 * share it evenly and end together, however they lie on the processors. As many CTAs per row as fit, but none without a
 * block for each of its warps: they would only be more to wait for (H200, 2026-11: 13.5 us with 264 CTAs, 12.6 with 99,
 * B = 1). */
void fs_cuda_plan_stored(int32_t ctas, const fs_head *head, const fs_batch *batch, int64_t rows,
                         fs_cuda_stored_plan *plan) {
    memset(plan, 0, sizeof *plan);
    fs_cuda_share *share = &plan->share;
    const int64_t vocab = head_vocab(head);
    const int64_t low = head->first_token, high = least(low + head->rows, vocab);
    const int grouped = batch_is_grouped(batch);
    const int64_t group = grouped ? batch->group_size / FS_CUDA_TILE : 0;
    share->low = (int32_t)low;
    share->high = (int32_t)high;
    share->whole = (int32_t)((low + FS_CUDA_TILE - 1) / FS_CUDA_TILE);
    share->whole_end = (int32_t)(high / FS_CUDA_TILE);
    share->first = (int32_t)(low / FS_CUDA_TILE);
    share->blocks = high > low ? (int32_t)((high + FS_CUDA_TILE - 1) / FS_CUDA_TILE) - share->first : 0;
    share->team = grouped && group < FS_CUDA_STORED_GROUP ? 1 : FS_CUDA_STORED_WARPS;
    plan->rows = (int32_t)least(rows, FS_CUDA_ROWS);

    const int64_t teams_of_cta = FS_CUDA_STORED_WARPS / share->team;
    int64_t segments = least(ctas / plan->rows, (share->blocks + FS_CUDA_STORED_WARPS - 1) / FS_CUDA_STORED_WARPS);
    if (grouped) segments = least(segments, FS_CUDA_STORED_SPLIT);
    share->segments = (int32_t)(segments < 1 ? 1 : segments);
    share->teams = (int32_t)(share->segments * teams_of_cta);
    share->quota = share->blocks / share->segments;
    share->extra = share->blocks % share->segments;
    plan->grid = plan->rows * share->segments;

    plan->groups = 1;
    plan->slots = share->teams;
    if (grouped && share->blocks) {
        plan->groups = (int32_t)((share->first + share->blocks - 1) / group - share->first / group + 1);
        plan->slots = (int32_t)least(share->teams, group * share->teams / share->blocks + 2);
    }
    plan->microseconds = (double)(plan->rows * head->rows * dtype_bytes(head->dtype)) / FS_CUDA_READ;
}

void fs_cuda_plan_describe_stored(const fs_cuda_stored_plan *plan, char *text, size_t size) {
    snprintf(text, size, "stored logits, %d CTAs per row, grid %d: %.0f us predicted", plan->share.segments, plan->grid,
             plan->microseconds);
}
