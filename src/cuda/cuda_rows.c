/* cuda_rows.c - calls whose rows have rules: logits of as many rows as a budget allows go to work memory, and a team
 * of CTAs for each row ends it there. Whatever the rules say is read on the device. */
#include "cuda_backend.h"

#include "core/head.h"

/* Dot products that no tensor instruction does as they are. */
static int is_mixed(const fs_cuda_args *args) {
    return args->head.kind == FS_HEAD_WEIGHTS &&
           (args->head.dtype == FS_F32 || args->batch.hidden_dtype != args->head.dtype);
}

/* What only a row's largest tokens, or some of all, can tell. */
static int asks_for_lists(const fs_result *r) {
    return r->rank || result_wants_top(r) || r->watch_logit || r->watch_logprob;
}

int fs_cuda_has_rules(const fs_cuda_args *args) {
    const fs_batch *batch = &args->batch;
    if (batch_rules(&args->head, batch) || batch->noise != FS_NOISE_EXACT || is_mixed(args) ||
        asks_for_lists(&args->result))
        return 1;
    /* The kernels of groups have tiles that are one group's, and one mass, of the logits they draw from. */
    if (batch_is_grouped(batch)) return batch->group_size % FS_CUDA_TILE != 0 || args->needs.raw_mass;
    return batch->mode != FS_MODE_SAMPLE || batch->samples != 1;
}

/* ---------------------------------------------------------------------------------------------- in work memory ---- */

#define LINE 64 /* floats: rows begin at lines of memory */

static int64_t lines(int64_t floats) {
    return (floats + LINE - 1) / LINE * LINE;
}

/* Work memory of one call: what is not there has no room. */
typedef struct layout {
    int64_t stride, rows; /* of logits: floats from one row to the next, and rows at a time */
    int32_t x, y;         /* whether there is such an array of logits */
    fs_cuda_team team;    /* who ends a row */
    int32_t listed;       /* rows of a launch that lists candidates, 0: none does; */
    int32_t slots;        /* CTAs of one of its blocks; */
    int32_t processors;   /* of the device; */
    int32_t kept;         /* rows of the tiles of all of them; */
    int32_t edited;       /* its rows' edits are looked up, */
    int32_t tables;       /* some of them in tables */
    int32_t raced;        /* rows are drawn by the pass that keeps their logits; `slots` processors; */
    int32_t keeps;        /* or those of some rows are kept by the one that lists candidates of the others; */
    fs_cuda_team again;   /* and who races some again; of size 0: nobody */
} layout;

#define MOST_LISTED (1 << 20) /* ids: a CTA counts those it lists of a row in 16 bits, and tables have 20 bits of one */

/* Bytes for the logits of rows that lists leave open: there are few, and every captured call has memory of its own. */
#define MOST_FOR_OPEN ((size_t)64 << 20)

#define CUTS (FS_RULE_TOP_K | FS_RULE_TOP_P | FS_RULE_MIN_P)
#define EDITS (FS_RULE_EDITS | FS_RULE_PENALTIES)

/* Whether rows are ended by a pass over W that lists their candidates, and few need more. A row is cut by its largest
 * tokens; edits are looked up for those that matter, so whatever speaks of all tokens, or of x beside y, is not to be
 * had. Where top-p is the only cut lists are long and some rows open: storing all logits is faster
 * (docs/notes/gpu-rows.md). */
int fs_cuda_may_list(const fs_cuda_args *args) {
    const fs_batch *batch = &args->batch;
    const fs_result *r = &args->result;
    const uint32_t rules = batch_rules(&args->head, batch);
    const int edited = (rules & EDITS) != 0;
    if (args->leave_rows) return 0; /* where the cut ends all shards know together */
    if (args->head.kind != FS_HEAD_WEIGHTS || args->head.rows <= 0 || is_mixed(args)) return 0;
    if (args->head.first_token + args->head.rows > MOST_LISTED) return 0;
    if (batch->mode != FS_MODE_SAMPLE || batch->samples != 1 || batch->noise != FS_NOISE_EXACT || !rules) return 0;
    if (batch->watch_offset || asks_for_lists(r) || (r->logits_mode == FS_LOGITS_CUT && result_wants_log_z(r)))
        return 0;
    if (edited ? result_wants_log_z(r) || r->logit || r->max_logit : batch->count_offset != NULL) return 0;
    return (rules & CUTS) != FS_RULE_TOP_P;
}

/* Whether rows are drawn by the pass over W that keeps their logits, and then looked at once: does the winner stay,
 * what is its rank, which are the best? One mass is summed in a pass, so top-p must be of that. */
static int may_race(const fs_cuda_args *args) {
    const fs_batch *batch = &args->batch;
    const fs_result *r = &args->result;
    const uint32_t rules = batch_rules(&args->head, batch);
    const int listed = batch->edit_offset || batch->edit_count || batch->count_offset || batch->watch_offset;
    if (args->leave_rows || args->head.kind != FS_HEAD_WEIGHTS || args->head.rows <= 0 || is_mixed(args)) return 0;
    if (batch->mode != FS_MODE_SAMPLE || batch->samples != 1 || batch->noise != FS_NOISE_EXACT || listed) return 0;
    if (rules & ~FS_RULE_TOP_P || r->watch_logit || r->watch_logprob || r->top_count > FS_CUDA_BEST) return 0;
    return !rules ||
           !(args->needs.raw_mass || r->logits_mode == FS_LOGITS_CUT || batch->flags & FS_CUT_BEFORE_TEMPERATURE);
}

/* Whether a pass that lists candidates may keep the logits of rows whose only cut is top-p of the whole row, which are
 * then looked at, as above. Their mass is summed there, so nobody else may need one. */
static int may_keep(const fs_cuda_args *args) {
    const uint32_t others = FS_JOINT_TOP_P | FS_MIN_P_LAST | FS_CUT_BEFORE_TEMPERATURE;
    return batch_rules(&args->head, &args->batch) & FS_RULE_TOP_P && !(args->batch.flags & others) &&
           !args->needs.mass && !args->needs.raw_mass;
}

/* Whether all rows of a call that lists candidates are ended by that: none is cut, and none edited. */
static int lists_end_all(const fs_cuda_args *args) {
    return !(batch_rules(&args->head, &args->batch) & (CUTS | EDITS));
}

/* Who ends the rows of a call. Draws by groups take them in order: one CTA does, with a thread for every part of a
 * window (rows/groups.cuh). */
static fs_cuda_team team_of(const fs_cuda *cuda, const fs_cuda_args *args, int32_t edited) {
    const int grouped = batch_is_grouped(&args->batch);
    fs_cuda_device device = cuda->device;
    if (grouped) device.team = 1;
    fs_cuda_team team = fs_cuda_plan_team(&device, args->batch.rows, args->head.first_token, args->head.rows, edited,
                                          fs_cuda_rows_shared(grouped), cuda->environment.team);
    if (grouped) team = (fs_cuda_team){1, FS_CUDA_TEAM_THREADS, 0, 0, fs_cuda_rows_shared(grouped)};
    else if (cuda->environment.threads) team.threads = cuda->environment.threads;
    return team;
}

/* Who races again the rows whose winner is left out. */
static fs_cuda_team again_of(const fs_cuda *cuda, const fs_cuda_args *args) {
    fs_cuda_team team = fs_cuda_plan_team(&cuda->device, args->batch.rows, args->head.first_token, args->head.rows, 0,
                                          fs_cuda_again_shared(), cuda->environment.team);
    team.threads = cuda->environment.threads ? cuda->environment.threads : FS_CUDA_TEAM_THREADS;
    if (!team.slices) team.size = 0;
    return team;
}

/* Rows, CTAs and blocks of the launches of a call that lists candidates: the next launch may have fewer rows than the
 * one before, and more CTAs for each. */
static fs_status largest_launches(fs_context *context, const fs_cuda_args *args, layout *l) {
    fs_cuda_args next = *args;
    for (fs_cuda_plan plan; next.first_row < args->batch.rows; next.first_row += plan.rows) {
        FS_TRY(fs_cuda_plan_next(context, &next, &plan));
        const int32_t kept = plan.blocks * plan.shape->rows;
        if (l->listed < plan.rows) l->listed = plan.rows;
        if (l->slots < plan.grid) l->slots = plan.grid;
        if (l->kept < kept) l->kept = kept;
    }
    return FS_OK;
}

static fs_status layout_of(fs_context *context, const fs_cuda_args *args, layout *l) {
    const fs_head *head = &args->head;
    const uint32_t rules = batch_rules(head, &args->batch);
    const int there = head->kind == FS_HEAD_LOGITS && head->dtype == FS_F32 && head_is_plain(head) &&
                      !(rules & FS_RULE_ALLOW);
    const fs_batch *batch = &args->batch;
    memset(l, 0, sizeof *l);
    l->processors = ((const fs_cuda *)context->state)->device.processors;
    l->stride = lines(head->rows);
    l->rows = batch->rows;
    l->team = team_of(context->state, args, (rules & EDITS) != 0);
    l->x = head->kind != FS_HEAD_LOGITS || (!there && !l->team.slices);
    l->y = (rules & EDITS) != 0 && l->team.slices < 2;
    const int64_t bytes = (l->x + l->y) * l->stride * (int64_t)sizeof(float);
    const int lists = fs_cuda_may_list(args);
    size_t budget = context->options.fallback_bytes;
    if (lists && budget > MOST_FOR_OPEN) budget = MOST_FOR_OPEN;
    const int64_t most = bytes ? (int64_t)budget / bytes : args->batch.rows;
    if (l->rows > most) l->rows = most > 0 ? most : 1;
    if (l->rows > FS_CUDA_ROWS) l->rows = FS_CUDA_ROWS;
    const int races = !lists && may_race(args);
    if (!lists && !races) return FS_OK;
    fs_cuda_plan plan;
    FS_TRY(fs_cuda_plan_next(context, args, &plan));
    if (!fs_cuda_lists_of(context, &plan)) return FS_OK;
    if (races) {
        l->raced = 1;
        l->slots = l->processors;
        if (rules) l->again = again_of(context->state, args);
        return FS_OK;
    }
    FS_TRY(largest_launches(context, args, l));
    l->edited = (rules & EDITS) != 0;
    l->tables = l->edited && (batch->edit_offset || batch->edit_count || batch->count_offset);
    l->keeps = may_keep(args) && l->listed <= fs_cuda_rows_kept(context, args);
    if (l->keeps) l->again = again_of(context->state, args);
    return FS_OK;
}

/* Bytes of its parts, one after the other. */
typedef struct parts {
    size_t most, floor, progress; /* zero between calls */
    /* Not; lists and first tiles are where logits will be, once they have been looked at. */
    size_t entry, logits, count, open, hidden;
    size_t edits, table, raised;
    size_t ahead, entries, kept;
} parts;

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* Tiles that the tokens of a head lie in, to a multiple of four. */
static int32_t tiles_of(const fs_head *head) {
    const int64_t first = head->first_token / FS_CUDA_TILE, last = (head->first_token + head->rows) / FS_CUDA_TILE;
    return (int32_t)(last - first + 4) / 4 * 4;
}

static parts parts_of(const fs_cuda_args *args, const layout *l) {
    const size_t segments = (size_t)l->listed * (size_t)l->slots, rows = (size_t)args->batch.rows;
    parts p;
    memset(&p, 0, sizeof p);
    p.logits = aligned((size_t)(l->rows * (l->x + l->y) * l->stride) * sizeof(float));
    if (l->raced || l->keeps) {
        const int64_t most = l->raced ? l->rows : l->listed, processors = l->raced ? l->slots : l->processors;
        p.ahead = aligned((size_t)(2 * most + 2 * processors) * sizeof(fs_cuda_ahead));
        p.entries = aligned((size_t)(most * raced_room(&args->result)) * sizeof(uint64_t));
        p.open = aligned((size_t)again_ints(args->batch.rows, most) * sizeof(int32_t));
    }
    if (!l->listed) return p;
    p.most = aligned(segments * sizeof(uint32_t));
    p.floor = aligned((size_t)l->listed * sizeof(uint32_t));
    p.progress = aligned((size_t)l->listed * sizeof(fs_cuda_progress));
    p.entry = segments * FS_CUDA_SEGMENT * sizeof(uint64_t);
    const size_t lists = p.entry + (size_t)l->slots * (size_t)l->kept * FS_CUDA_TILE * sizeof(float);
    if (l->keeps) {
        const size_t kept = aligned((size_t)(l->listed * l->stride) * sizeof(float));
        p.kept = p.logits < kept ? kept : p.logits;
        p.logits = p.kept + aligned(lists);
    } else {
        if (p.logits < lists) p.logits = aligned(lists);
        if (lists_end_all(args)) p.logits = 0;
        p.open = aligned((1 + rows) * sizeof(int32_t));
    }
    p.count = aligned(segments * sizeof(uint32_t));
    p.hidden = aligned(rows * (size_t)open_stride(args->head.dim) * 2);
    if (l->edited) p.edits = aligned((size_t)l->listed * sizeof(fs_cuda_edits));
    if (l->tables) p.table = (size_t)l->listed * 2 * FS_CUDA_TABLE * sizeof(uint32_t);
    if (l->edited) p.raised = aligned((size_t)l->listed * (size_t)tiles_of(&args->head));
    return p;
}

static size_t bytes_of_parts(const parts *p) {
    return aligned(p->logits + p->count + p->open + p->hidden + p->edits + p->table + p->raised + p->ahead +
                   p->entries);
}

int64_t fs_cuda_rows_kept(const fs_context *context, const fs_cuda_args *args) {
    const int64_t bytes = lines(args->head.rows) * (int64_t)sizeof(float);
    return bytes > 0 ? (int64_t)context->options.fallback_bytes / bytes : 0; /* a shard may have no rows */
}

/* Fewer rows may have more CTAs to a block, so room is for as many as there can be. */
fs_status fs_cuda_rows_room(fs_context *context, const fs_cuda_args *args, fs_cuda_room *room) {
    layout l;
    FS_TRY(layout_of(context, args, &l));
    const int32_t processors = ((const fs_cuda *)context->state)->device.processors;
    if (l.listed && l.slots < processors) l.slots = processors;
    const parts p = parts_of(args, &l);
    room->records_bytes = p.most + p.floor + p.progress;
    room->parts_bytes = bytes_of_parts(&p);
    return FS_OK;
}

/* Where they are. */
static void place(const fs_cuda_room *room, const parts *p, const layout *l, int32_t room_of_lists,
                  fs_cuda_args *args) {
    char *at = room->parts;
    float *logits = (float *)(void *)at;
    args->work = room->work;
    args->dense =
        (fs_cuda_dense){l->x ? logits : NULL, l->y ? logits + (l->x ? l->rows * l->stride : 0) : NULL, l->stride};
    fs_cuda_lists *lists = &args->lists;
    lists->room = room_of_lists;
    if (l->raced || l->keeps) {
        char *raced = at + p->logits;
        args->raced.entry = (unsigned long long *)(void *)raced;
        raced += p->entries;
        args->raced.ahead = (fs_cuda_ahead *)(void *)raced;
        raced += p->ahead;
        lists->open = (int32_t *)(void *)raced - FS_AGAIN_BY_TEAM;
        args->raced.again = l->again.size > 0;
    }
    if (!l->listed) return;
    lists->most = (uint32_t *)(void *)room->records;
    lists->floor = (uint32_t *)(void *)((char *)room->records + p->most);
    lists->progress = (fs_cuda_progress *)(void *)((char *)room->records + p->most + p->floor);
    lists->entry = (unsigned long long *)(void *)(at + p->kept);
    lists->first = (float *)(void *)(at + p->kept + p->entry);
    at += p->logits + p->entries + p->ahead;
    if (!l->keeps) lists->open = (int32_t *)(void *)at;
    at += p->open;
    lists->count = (uint32_t *)(void *)at;
    at += p->count;
    lists->hidden = at;
    lists->slots = l->slots;
    if (!l->edited) return;
    at += p->hidden;
    args->edits.row = (fs_cuda_edits *)(void *)at;
    at += p->edits;
    args->edits.table = (uint32_t *)(void *)at;
    args->edits.raised = (uint8_t *)at + p->table;
    args->edits.tiles = tiles_of(&args->head);
}

/* -------------------------------------------------------------------------------------------------- launches ---- */

/* Dot products of the launch's rows. The plan may take several launches for them. */
static fs_status launch_dots(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *args) {
    if (is_mixed(args)) {
        FS_CUDA_TRY(context, fs_cuda_dots_launch(args, ((const fs_cuda *)context->state)->stream));
        return FS_OK;
    }
    fs_cuda_args part = *args;
    part.batch.rows = args->first_row + args->rows;
    part.batch.mode = FS_MODE_SAMPLE; /* no plan by groups: logits are the same in every mode */
    while (part.first_row < part.batch.rows) {
        FS_TRY(fs_cuda_launch_next(context, room, &part));
        part.first_row += part.rows;
        part.dense.x += part.rows * part.dense.stride;
    }
    return FS_OK;
}

static int needs_some_mass(const fs_needs *needs) {
    return needs->mass || needs->raw_mass;
}

/* A row whose logits have been shaped. */
static void shape_no_more(fs_head *head) {
    head->bias = NULL;
    head->round_to = FS_F32;
    head->scale = head->post_scale = 1.0f;
    head->softcap = 0.0f;
}

/* The look at rows that are kept, and the races of those whose winner is left out. */
static fs_status look_at_rows(fs_context *context, const fs_cuda_args *args, const fs_cuda_team *again) {
    const fs_cuda *cuda = context->state;
    FS_CUDA_TRY(context, fs_cuda_raced_launch(args, cuda->device.processors, cuda->stream));
    if (!again->size) return FS_OK;
    fs_cuda_args left_out = *args;
    shape_no_more(&left_out.head);
    left_out.team = *again;
    FS_CUDA_TRY(context, fs_cuda_again_launch(&left_out, cuda->stream));
    return FS_OK;
}

/* A pass that lists candidates, and ends the rows that they decide. */
static fs_status list_rows(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *call,
                           const fs_cuda_team *again) {
    const fs_cuda *cuda = context->state;
    fs_cuda_args args = *call;
    fs_cuda_ahead *ahead = args.raced.ahead; /* NULL: no row's logits are kept */
    args.raced.ahead = NULL;
    if (!ahead) args.dense.x = NULL;
    if (batch_rules(&args.head, &args.batch) & FS_RULE_TOP_P && !needs_some_mass(&args.needs))
        args.needs.mass = args.needs.mass_to_cut = 1;
    for (; args.first_row < args.batch.rows; args.first_row += args.rows) {
        fs_cuda_plan plan;
        FS_TRY(fs_cuda_plan_next(context, &args, &plan));
        args.lists.slots = plan.grid;
        if (args.first_row == 0 && plan.blocks > 1) /* else the pass does so */
            FS_CUDA_TRY(context, cudaMemsetAsync(args.lists.open, 0, sizeof *args.lists.open, cuda->stream));
        if (args.edits.row) {
            args.rows = plan.rows;
            FS_CUDA_TRY(context, fs_cuda_edits_launch(&args, cuda->stream));
        }
        FS_TRY(fs_cuda_launch_next(context, room, &args));
        if (!ahead) continue;
        fs_cuda_args look = args;
        look.raced.ahead = ahead;
        FS_TRY(look_at_rows(context, &look, again));
    }
    return FS_OK;
}

/* A pass that draws and keeps logits, of some rows at a time, and their end. Slices are as many as keep all processors
 * busy. What the head does to logits has been done to those that are kept. */
static fs_status race_rows(fs_context *context, const fs_cuda_room *room, const fs_cuda_args *call, int64_t rows,
                           const fs_cuda_team *again) {
    const fs_cuda *cuda = context->state;
    const int32_t ctas = 2 * cuda->device.processors;
    fs_cuda_args args = *call;
    args.leave_rows = 1;
    args.needs.max = 0; /* which is found again */
    if (batch_rules(&args.head, &args.batch) & FS_RULE_TOP_P && !needs_some_mass(&args.needs))
        args.needs.mass = args.needs.mass_to_cut = 1;
    for (; args.first_row < call->batch.rows; args.first_row += args.rows) {
        fs_cuda_plan plan;
        const int64_t rest = call->batch.rows - args.first_row;
        args.batch.rows = args.first_row + (rest < rows ? rest : rows);
        FS_TRY(fs_cuda_plan_next(context, &args, &plan));
        args.raced.first_row = args.first_row;
        const int32_t slices = plan.rows < ctas ? ctas / plan.rows : 1;
        args.raced.slices = (int16_t)(slices < FS_CUDA_SLICES ? slices : FS_CUDA_SLICES);
        FS_TRY(fs_cuda_launch_next(context, room, &args));
        FS_TRY(look_at_rows(context, &args, again));
        fs_cuda_args open = args;
        shape_no_more(&open.head);
        open.needs = call->needs;
        open.leave_rows = 0;
        open.lists.by_place = 1;
        open.first_row = 0;
        FS_CUDA_TRY(context, fs_cuda_rows_launch(&open, cuda->stream));
    }
    return FS_OK;
}

/* Logits of rows, some at a time, and their end. Of a call that has listed candidates these are the rows that are open:
 * how many, and which, the device knows. */
fs_status fs_cuda_end_rows(fs_context *context, const fs_cuda_room *given, fs_cuda_args *args, int screens) {
    const fs_cuda *cuda = context->state;
    fs_cuda_room room = *given;
    layout l;
    FS_TRY(layout_of(context, args, &l));
    const parts p = parts_of(args, &l);
    const int64_t times = (args->batch.rows + l.rows - 1) / l.rows, rows = (args->batch.rows + times - 1) / times;
    args->overlap = cuda->device.overlaps;
    args->team = l.team;
    place(&room, &p, &l, cuda->environment.list_room, args);
    room.records = NULL; /* what kernels of groups call so */
    if (l.raced) return race_rows(context, &room, args, rows, &l.again);
    /* Bounds of logits lie where logits of open rows will. */
    if (screens && l.listed && (l.rows >= FS_CUDA_SCREEN_ROWS || l.rows == args->batch.rows))
        FS_TRY(fs_cuda_screen_pass(context, &room, room.parts + bytes_of_parts(&p), args));
    if (l.listed) FS_TRY(list_rows(context, &room, args, &l.again));
    if (l.listed && lists_end_all(args)) return FS_OK;
    args->raced.ahead = NULL;
    args->lists.by_place = l.listed != 0;
    args->lists.entry = NULL;
    for (; args->first_row < args->batch.rows; args->first_row += args->rows) {
        const int64_t left = args->batch.rows - args->first_row;
        args->rows = (int32_t)(left < rows ? left : rows);
        fs_cuda_args dots = *args;
        if (l.listed) {
            dots.batch.hidden = args->lists.hidden;
            dots.batch.hidden_stride = open_stride(args->head.dim) * 2;
        }
        if (args->head.kind == FS_HEAD_WEIGHTS && args->head.rows > 0) FS_TRY(launch_dots(context, &room, &dots));
        FS_CUDA_TRY(context, fs_cuda_rows_launch(args, cuda->stream));
    }
    return FS_OK;
}
