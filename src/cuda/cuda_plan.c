#include "cuda_plan.h"

#include "core/format.h"
#include "core/key.h"
#include "core/needs.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Measured on one H200 (docs/notes/gpu-row-blocks.md): bytes per microsecond from memory and from L2; bf16
 * operations per microsecond; microseconds a tile takes beside its dot products, with one team and with two; the least
 * from one tile to the next, in all and for each row; what a row's survivors in the first tile of a CTA that is alone
 * take; a launch. */
#define FS_CUDA_READ 4.5e6
#define FS_CUDA_SHARED 7.0e6
#define FS_CUDA_FLOPS 7.2e8
#define FS_CUDA_BESIDE_ONE 4.0
#define FS_CUDA_BESIDE_TWO 3.0
#define FS_CUDA_TURN 6.0
#define FS_CUDA_TURN_ROW 0.025
#define FS_CUDA_FIRST_ROW 2.0
#define FS_CUDA_LAUNCH 12.0
/* Direct shapes: for CTAs of so many pieces at most, and so many rows times pieces; with several blocks of rows, for W
 * that stays in L2 and so many (docs/notes/gpu-short-vocabularies.md). Bytes a CTA takes in a microsecond; what is
 * neither reading nor racing; the race of a row in a piece. */
#define FS_CUDA_DIRECT_PIECES 4
#define FS_CUDA_DIRECT_RACES 96
#define FS_CUDA_DIRECT_AGAIN 64
#define FS_CUDA_DIRECT_BYTES 32.0e6
#define FS_CUDA_INTO 1.0e5
#define FS_CUDA_DIRECT 9.0
#define FS_CUDA_RACE 0.05
/* Slices of 128 in K, 4 KB, that are read from several places at once. */
#define FS_CUDA_STRETCH 16

int fs_cuda_plan_aligned(const fs_head *head, const fs_batch *batch) {
    const fs_matrix w = weights_of_head(head);
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

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Spans, a tile for each CTA of a cluster, that the head's tokens lie in. */
static int64_t spans_of(const fs_head *head, const fs_cuda_shape *s) {
    const int64_t span = (int64_t)FS_CUDA_TILE * s->cluster;
    const int64_t low = head->first_token, high = least(low + head->rows, head_vocab(head));
    return high > low ? (high + span - 1) / span - low / span : 0;
}

/* Clusters of a shape that run at once; 0: none does. */
static int64_t clusters_at_once(const fs_cuda_device *device, const fs_cuda_shape *s) {
    if (s->shared_bytes > device->shared_bytes) return 0;
    return s->cluster == 1 ? device->processors : least(device->clusters_of_two, device->processors / 2);
}

static double weight_bytes(const fs_head *head) {
    return (double)(head->rows * format_row_bytes(format_of(head->dtype), head->dim));
}

/* Tiles a CTA takes at most. */
static int64_t turns_of(const fs_head *head, const fs_cuda_plan *plan) {
    const int64_t tiles = (head->rows + FS_CUDA_TILE - 1) / FS_CUDA_TILE;
    return (tiles + plan->grid - 1) / plan->grid;
}

/* The time of a launch on an H200, in microseconds: the largest of reading W, of reading it and H from L2 for every
 * block of rows, and of the CTAs' tiles; and the first tile's survivors, which are fewer the more CTAs know of each
 * other, or with direct shapes the last tile's race. */
static double predict(const fs_cuda_device *device, const fs_head *head, const fs_cuda_plan *plan) {
    const fs_cuda_shape *s = plan->shape;
    const double w = weight_bytes(head), row = w / (double)head->rows;
    const double shared = w * plan->blocks * (1.0 + (double)s->rows / (FS_CUDA_TILE * s->cluster));
    const double dot = 2.0 * FS_CUDA_TILE * (double)head->dim * s->rows / (FS_CUDA_FLOPS / device->processors);
    const double race = FS_CUDA_RACE * plan->block_rows;
    const double turn = s->direct ? (FS_CUDA_TILE + s->rows) * row / FS_CUDA_INTO
                                  : FS_CUDA_TURN + FS_CUDA_TURN_ROW * s->rows;
    double tile = dot + (s->direct ? race : s->teams == 1 ? FS_CUDA_BESIDE_ONE : FS_CUDA_BESIDE_TWO);
    if (tile < turn) tile = turn;
    double most = w / FS_CUDA_READ;
    if (shared / FS_CUDA_SHARED > most) most = shared / FS_CUDA_SHARED;
    if ((double)turns_of(head, plan) * tile > most) most = (double)turns_of(head, plan) * tile;
    if (s->direct) return most + race + FS_CUDA_DIRECT;
    return most + FS_CUDA_FIRST_ROW * s->rows / (double)plan->grid + FS_CUDA_LAUNCH;
}

/* Whether direct shapes are for such a launch, of `launches`. */
static int is_direct(const fs_head *head, const fs_cuda_plan *plan, int64_t launches) {
    const int64_t turns = turns_of(head, plan), races = turns * plan->block_rows;
    if (launches > 1 || turns > FS_CUDA_DIRECT_PIECES) return 0;
    if (plan->blocks == 1) return races <= FS_CUDA_DIRECT_RACES;
    return races <= FS_CUDA_DIRECT_AGAIN && weight_bytes(head) <= FS_CUDA_DIRECT_BYTES;
}

/* `rows` in launches of this many blocks of a shape, as even as can be, if that is faster than the plan. Direct shapes,
 * which come last, are faster than others by measurement. */
static void try_blocks(const fs_cuda_device *device, const fs_head *head, const fs_cuda_shape *s, int64_t clusters,
                       int64_t blocks, int64_t rows, fs_cuda_plan *plan) {
    fs_cuda_plan with = *plan;
    const int64_t most = least(FS_CUDA_ROWS, blocks * s->rows), launches = (rows + most - 1) / most;
    with.shape = s;
    with.rows = (int32_t)((rows + launches - 1) / launches);
    with.blocks = (int32_t)least(blocks, (with.rows + s->rows - 1) / s->rows);
    with.block_rows = (int32_t)((with.rows + with.blocks - 1) / with.blocks);
    /* No cluster without a span: a short vocabulary takes fewer. */
    const int64_t spans = spans_of(head, s);
    with.grid = (int32_t)(least(clusters / with.blocks, spans > 1 ? spans : 1) * s->cluster);
    if (s->direct && !is_direct(head, &with, launches)) return;
    with.microseconds = predict(device, head, &with);
    with.cost = (double)launches * with.microseconds;
    if (!plan->shape || s->direct != plan->shape->direct || with.cost < plan->cost) *plan = with;
}

/* The shape and the number of blocks that take the rows in the least time; of equal ones the first, so the narrowest.
 * A short vocabulary, which few CTAs would do, is done by as many blocks as there are processors for. */
static int choose_shape(const fs_cuda_device *device, const fs_cuda_family *family, int64_t width, const fs_head *head,
                        int64_t rows, int32_t plain, fs_cuda_plan *plan) {
    for (int32_t i = 0; i < family->count; i++) {
        const fs_cuda_shape *s = &family->shapes[i];
        const int64_t clusters = clusters_at_once(device, s), spans = spans_of(head, s);
        if (clusters == 0 || (width && s->rows != width) || (s->direct && !plain)) continue;
        if (s->rows > 256 && head_vocab(head) > FS_TOKEN_LIMIT / 2) continue; /* (fused/scorer.cuh, ROW_BITS) */
        const int64_t needed = (least(rows, FS_CUDA_ROWS) + s->rows - 1) / s->rows;
        const int64_t many = clusters / (spans > 1 ? spans : 1);
        const int64_t most = least(needed, least(clusters, many > 8 ? many : 8));
        for (int64_t blocks = 1; blocks < 5 && blocks < most; blocks++)
            try_blocks(device, head, s, clusters, blocks, rows, plan);
        try_blocks(device, head, s, clusters, most, rows, plan);
    }
    return plan->shape != NULL;
}

/* Rounded up, the fraction gains less than 1 over all clusters: their whole parts count to `left` exactly. */
static fs_cuda_schedule schedule_of(const fs_head *head, const fs_cuda_plan *plan) {
    const int64_t clusters = plan->grid / plan->shape->cluster, spans = spans_of(head, plan->shape);
    const int64_t left = spans % clusters;
    const fs_cuda_schedule schedule = {(uint32_t)(spans / clusters),
                                       (uint32_t)((left * 65536 + clusters - 1) / clusters)};
    return schedule;
}

static fs_cuda_k_order k_order_of(int64_t dim) {
    const int64_t slices = dim / 128;
    fs_cuda_k_order order = {0, 0, 0};
    while (slices >> (order.ways + 1) >= FS_CUDA_STRETCH) order.ways++;
    order.stretch = (int32_t)(slices >> order.ways);
    order.rest = order.stretch << order.ways;
    return order;
}

/* Groups the shard's tokens lie in, and how many CTAs at most share one. */
static void plan_groups(const fs_head *head, const fs_batch *batch, fs_cuda_plan *plan) {
    const int32_t cluster = plan->shape->cluster;
    plan->groups = 1;
    plan->slots = plan->grid;
    if (!batch_is_grouped(batch)) return;
    const int64_t span = (int64_t)FS_CUDA_TILE * cluster, size = batch->group_size;
    const int64_t found = spans_of(head, plan->shape), spans = found > 1 ? found : 1;
    const int64_t clusters = plan->grid / cluster, touched = (size + span - 1) / span + 1;
    plan->groups = (int32_t)((head->first_token + head->rows - 1) / size - head->first_token / size + 1);
    plan->slots = (int32_t)least(clusters, touched * clusters / spans + 2) * cluster;
}

int fs_cuda_plan_launch(const fs_cuda_device *device, const fs_cuda_family *families, int32_t count, const char *forced,
                        const fs_head *head, const fs_batch *batch, int64_t rows, int32_t plain, fs_cuda_plan *plan) {
    memset(plan, 0, sizeof *plan);
    /* The same launch for a batch as for the rest of a larger one, and records of groups for no more rows at once. */
    rows = least(rows, batch_is_grouped(batch) ? FS_CUDA_GROUPED_ROWS : FS_CUDA_ROWS);
    int64_t width = 0;
    plan->family = choose_family(device, families, count, forced, fs_cuda_plan_aligned(head, batch), &width, plan);
    if (!plan->family) return 0;
    if (!choose_shape(device, plan->family, width, head, rows, plain && !forced, plan)) {
        snprintf(plan->text, sizeof plan->text, "%s has no tile %lld rows wide that runs here", plan->family->name,
                 (long long)(width ? width : rows));
        return 0;
    }
    plan->k_steps = (int32_t)((head->dim + plan->shape->k - 1) / plan->shape->k);
    plan->schedule = schedule_of(head, plan);
    plan->k_order = k_order_of(head->dim);
    plan_groups(head, batch, plan);
    return 1;
}

void fs_cuda_plan_describe(const fs_cuda_plan *plan, const char *forced, char *text, size_t size) {
    const fs_cuda_shape *s = plan->shape;
    snprintf(text, size, "%s tile 128x%d, %d stages of %d, cluster %d, grid %dx%d: %.0f us predicted on an H200%s",
             plan->family->name, s->rows, s->stages, s->k, s->cluster, plan->grid, plan->blocks, plan->microseconds,
             forced ? ", forced by FLASHSAMPLING_CUDA_TILE" : "");
}

/* -------------------------------------------------------------------------------------------- rows with rules ---- */

/* Blocks of the noise that a CTA of a team has at least. */
#define FS_CUDA_TEAM_BLOCKS 4

fs_cuda_team fs_cuda_plan_team(const fs_cuda_device *device, int64_t rows, int64_t first_token, int64_t tokens,
                               int32_t edited, int32_t base_bytes, int32_t forced) {
    const int64_t first = first_token / FS_CUDA_TILE, last = (first_token + tokens - 1) / FS_CUDA_TILE;
    const int64_t blocks = tokens > 0 ? last - first + 1 : 0;
    fs_cuda_team team = {1, FS_CUDA_TEAM_THREADS, 0, 0, base_bytes};
    while (team.size < device->team && blocks >= 2 * team.size * FS_CUDA_TEAM_BLOCKS) team.size *= 2;
    if (forced) team.size = (int32_t)least(forced, device->team);
    /* Clusters do not fill a GPU: some of its parts have a few processors over. */
    if (rows * team.size > device->processors - device->processors / 8) team.threads = FS_CUDA_TEAM_THREADS / 2;
    const int64_t places = (blocks + team.size - 1) / team.size * FS_CUDA_TILE;
    for (int32_t slices = edited ? 2 : 1; slices > 0 && !team.slices; slices--) {
        const int64_t bytes = base_bytes + slices * places * (int64_t)sizeof(float);
        if (bytes > device->shared_bytes) continue;
        team.slices = slices;
        team.places = (int32_t)places;
        team.shared_bytes = (int32_t)bytes;
    }
    return team;
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
    plan->rows = (int32_t)least(rows, FS_CUDA_STORED_ROWS);

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
