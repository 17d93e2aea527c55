/* ending.cuh - one row on its way to the results, in the shared memory of each CTA that ends it. */
#ifndef FS_CUDA_ROWS_ENDING_CUH
#define FS_CUDA_ROWS_ENDING_CUH

#include "cuda/device/kth.cuh"
#include "cuda/device/tokens.cuh"
#include "cuda/device/touch.cuh"
#include "cuda/rows/cut.cuh"
#include "cuda/rows/draw.cuh"

#include "core/finish.h"

/* Out of line: most of what there is is not run in a call, and code that is run once is fetched from far. */
#define ROW_PART static __device__ __noinline__

constexpr int MOST_SAMPLES = 1024; /* and most of the best */
constexpr int FLOORS = 256;        /* parts of a row whose largest logits are known */
static_assert(FLOORS == 32 * LIST_LANES, "a warp has them");

enum { LIST_BEST, LIST_DRAWN, LIST_SELECTED, LISTS };

/* Largest logits and flags of a slice: ordered floats. */
struct facts {
    uint32_t max_x, max_y, not_least, flags; /* ~ of the least finite x or y */
};

struct masses {
    fs_mass raw, mass, cut;    /* as needs names them */
    unsigned long long weight; /* in units of the cut */
    uint32_t listed;           /* tokens that may be among the best */
};

struct ending : race_shared {
    fs_cuda_args args;
    fs_row_rules rules;
    fs_result result; /* without ranks, which core/finish.h has from a list */
    fs_call call;
    fs_summary summary;
    fs_row row;
    row_view view;
    fs_cuda_edits edits;
    float least, reach; /* of all finite x and y: the least; the largest without its sign */
    facts own, of[FS_CUDA_TEAM];
    masses mass_of[FS_CUDA_TEAM];
    fs_mass mass_part[MOST_WARPS];
    uint32_t own_most[2][FLOORS], most[2][FLOORS]; /* largest x and y of so many parts of the row, ordered */
    uint32_t floor;
    bool cuts;                              /* here, and not where parts are merged */
    uint32_t ahead[2][FS_CUDA_TEAM][RACES]; /* of samples, by CTA; in turn */
    uint32_t own_ahead[RACES];
    float sample_logit[RACES];
    uint32_t listed[LISTS];                  /* of the first CTA, for each use of its list */
    uint64_t best_floor;                     /* what the best are listed from before the race; 0: they are not */
    unsigned long long winner[MOST_SAMPLES]; /* score keys, or order keys of the best */
    unsigned long long list[MOST_SAMPLES];   /* of the first CTA */
};

constexpr int ENDING_BYTES = (sizeof(ending) + 15) / 16 * 16;

FS_DEVICE ending *this_ending() {
    return (ending *)row_shared();
}

/* ------------------------------------------------------------------------------------------------------- rules ---- */

/* What a launch knows of a row before its logits. One thread: others load those in the meantime. */
ROW_PART void open_row(ending *e, int64_t b) {
    const fs_cuda_args &args = e->args;
    e->rules = rules_of_row(&args.batch, &args.rules, &args.limits, args.vocab, b);
    e->result = args.result;
    e->result.rank = NULL;
    e->call = {&args.head, &args.batch, &e->result, NULL, args.vocab, args.needs};
    e->call.needs.bounded = 1;
    e->call.needs.watched = args.batch.watch_offset ? 1 : 0;
    memset(&e->summary, 0, sizeof e->summary);
    memset(&e->row, 0, sizeof e->row);
    e->row.call = &e->call;
    e->row.rules = &e->rules;
    e->row.summary = &e->summary;
    e->row.b = b;
    e->row.status = e->rules.status;
    e->cuts = rules_cut(&e->rules) && !args.leave_rows;
    if (args.lists.by_place && !args.raced.ahead) e->row.status |= FS_ROW_FALLBACK;
    e->edits.edits = e->edits.penalises = 0;
    if (!rules_drop_row(&e->rules)) e->edits = edits_of_row(&args.batch, &e->rules, args.vocab, b);
    row_race *race = &e->race;
    race->seed = e->rules.seed;
    race->position = e->rules.position;
    race->substream = e->rules.substream;
    race->inverse = e->rules.inverse_temperature;
    race->temperature = e->rules.temperature;
    race->greedy = e->rules.greedy;
    race->kind = args.batch.noise;
    race->top = 0.0f;
    race->last = 1;
    race->first = 0;
    race->count = min(args.needs.samples, RACES);
}

/* After a barrier; there is another one in it. */
FS_DEVICE void check_row(ending *e) {
    const fs_batch &batch = e->args.batch;
    if (!batch.edit_offset && !batch.edit_count && !batch.count_offset && !batch.watch_offset && !watch_given(&batch))
        return;
    const uint32_t bad = check_lists(batch, e->args.vocab, e->row.b, e->rules.slot);
    if (threadIdx.x == 0) {
        e->rules.status |= bad;
        e->row.status |= bad;
    }
    __syncthreads();
}

/* A row without a token. */
ROW_PART void write_absent(ending *e) {
    if (team_rank() != 0 || threadIdx.x != 0) return;
    e->result.rank = e->args.result.rank;
    row_write_absent(&e->row);
}

#endif
