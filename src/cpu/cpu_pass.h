/* cpu_pass.h - one pass over W for a set of rows: tasks take blocks of the vocabulary, a block's logits live in cache
 * or are filtered as they are computed (cpu_filter.h), and each (task, row) has one running summary. */
#ifndef FS_CPU_PASS_H
#define FS_CPU_PASS_H

#include "cpu/filter/cpu_filter_rows.h"

#include "backend.h"
#include "core/group.h"
#include "cpu_arena.h"
#include "cpu_nodes.h"

#include <stdatomic.h>

/* Where W lies, as it was when a head was first seen: the node of every `step`-th row. In the context, because calls do
 * not allocate. */
#define FS_PLACES 4096
typedef struct fs_residence {
    const void *data; /* NULL: no head yet */
    int64_t stride, rows, step;
    uint8_t node[FS_PLACES];
} fs_residence;

#define FS_KINDS 16

#define FS_SCREEN_KINDS 4 /* calls with a screen: of one row or several, with lists or without */

/* The state of a context of this backend. */
typedef struct fs_cpu {
    const fs_isa *isa;
    int32_t tasks;
    fs_parallel_for parallel_for;
    void *parallel_user;
    struct fs_threads *threads; /* our own pool, or NULL */
    int32_t screen_rows[2];     /* rows of a call up to which screens of 8 and 4 bits are read, */
    int32_t screens_forced;     /* whatever their histories say */
    fs_screen_history history[FS_SCREENS_KNOWN][FS_SCREEN_KINDS];
    fs_arena work;   /* the context's or the caller's memory */
    fs_arena second; /* of second passes and stored logits, kept while they are frequent; unused with the caller's */
    int32_t calls_without;  /* that, since the last one */
    uint8_t wide[FS_KINDS]; /* of each kind of rows (cpu_stored.h): how often lists did not end them; 0: hardly ever */
    fs_nodes nodes;         /* of our own pool; count below 2: there is nothing to know */
    fs_residence residence; /* of the last head */
} fs_cpu;

/* What a pass over a screen has beside that of any pass. */
typedef struct fs_screened {
    fs_screen screen;
    fs_screen_rows rows; /* arrays of [rows] */
    fs_hidden *hidden;   /* [rows] each alone, packed for the kernel of W */
    fs_settle *settle;   /* [tasks, rows] */
    uint64_t *later;     /* [tasks, rows] lists of tokens that wait */
    uint64_t *bounds;    /* [tasks, rows] lists of upper bounds, `bounds_stride` places each; none without lists */
    int64_t bounds_stride;
} fs_screened;

/* Room for a list of each (task, row): those of task 0, which take the merged entries of all, and those of the
 * others. */
typedef struct fs_room {
    uint64_t *key[2];
    float *raw[2];     /* or NULL */
    int64_t stride[2]; /* entries from one list to the next */
    int32_t capacity[2], keep[2];
} fs_room;

typedef struct fs_pass {
    const fs_cpu *cpu;
    const fs_call *call;
    const int32_t *row; /* [rows] the rows of the batch that take part */
    int32_t rows;
    int32_t whole;          /* a second pass: lists hold everything that can be drawn, */
    int32_t storing;        /* or logits are stored and that is all */
    const fs_summary *kept; /* [B] in a second pass: each row as the first has left it */
    int32_t by_screen;      /* blocks are of upper bounds, by the head's screen */
    int32_t largest;        /* only counted, for the largest call of these rows or fewer */
    int32_t block;          /* tokens per block, a multiple of FS_NOISE_BLOCK */
    int64_t groups;         /* group modes: number of groups, else 0 */
    fs_matrix weights;      /* these two of a head of weights */
    fs_hidden hidden;
    fs_active_row *active; /* [rows] */
    fs_summary *summary;   /* [tasks, rows] */
    fs_winner *winner;     /* [tasks, rows, samples] */
    fs_watch *watch;       /* [tasks, watches] */
    fs_entropy *entropy;   /* [tasks, rows], or NULL: none is asked for */
    int64_t watches;       /* of all rows */
    fs_room list, raw_list;
    float *store; /* [store_rows, fs_stored_floats] for logits of rows that end by them, as many as there is room */
    int32_t store_rows;     /* for; the caller's in a first pass */
    fs_screened screened;   /* where there is a screen */
    fs_group *group;        /* [groups, rows] */
    float *logits;          /* [tasks, rows, block + 2 FS_GRANULE] */
    fs_scratch *scratch;    /* [tasks] */
    fs_task_filter *filter; /* [tasks], or NULL: blocks are not filtered */
    fs_shared shared;       /* arrays of [rows] */
    float *published;       /* [tasks, rows] log of the mass that a task has shared, see shared_add_mass */
    fs_winner *spare;       /* [tasks, samples] for fs_finish_row */
    _Atomic int64_t *next;  /* the first unit of the vocabulary that no task has taken, then the first row */
    int32_t *order;         /* [turns, tasks] blocks by the nodes they lie on (cpu_nodes.h), or NULL: in turn */
} fs_pass;

/* Takes the pass's arrays from the arena (or only counts them, see cpu_arena.h). Returns 0 if they do not fit. */
int fs_pass_layout(fs_pass *pass, fs_arena *arena);

/* Tokens that a nucleus can have, in entries that a list keeps. It has room for two; with a little more fewer rows take
 * a second pass. */
#define FS_NUCLEUS 2.5

/* The log of the share of a row's mass below which a token is in no list of the usual length. Of a small top_p the
 * share is its own: where no token has that much, nuclei have more tokens than a list too. */
static inline double pass_rare_share(const fs_pass *pass, const fs_row_rules *rules) {
    const double least = fmin((double)rules->top_p, 1.0 - (double)rules->top_p);
    return log(least / (FS_NUCLEUS * (double)pass->call->needs.keep));
}

static inline const fs_kernel *pass_kernel(const fs_pass *pass) {
    return pass->cpu->isa->kernel[pass->weights.format];
}

/* Fills what every block needs: hidden states, noise names, sorted lists. */
void fs_pass_prepare(fs_pass *pass);

/* Runs the pass. Afterwards each (task, row) has its summary. */
void fs_pass_run(fs_pass *pass);

/* Merges the next row that no task has taken into summary[a], and returns a; or -1: there is none. */
int32_t fs_pass_merged(const fs_pass *pass);

/* Tasks on the context's threads, or the caller's; one alone needs neither. */
static inline void fs_pass_parallel(const fs_cpu *cpu, int32_t tasks, void (*task)(void *arg, int32_t i), void *arg) {
    if (tasks > 1) cpu->parallel_for(cpu->parallel_user, tasks, task, arg);
    else task(arg, 0);
}

#endif
