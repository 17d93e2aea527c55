/* cpu_deal.h - how a pass deals the ids of its vocabulary out to its tasks. */
#ifndef FS_CPU_DEAL_H
#define FS_CPU_DEAL_H

#include "cpu_pass.h"

/* In units of whole noise blocks (or whole groups).
 *
 * Open: whoever is free takes the next block, smaller ones towards the end. Threads start late and are held up, which
 * costs a call that waits for all of them a sixth to a third of its time (docs/findings/cpu-threads.md). Ids ascend for
 * each task, as lists expect.
 *
 * Settled, where it is known beforehand what each task gets: by memory nodes, in groups, and in a second pass, whose lists have room for
 * just that. Then tasks take blocks in turn as long as there is one for each, then even shares of the rest; in turn, because frequent
 * tokens lie together at low ids, which all but one would meet in no block. */
typedef struct fs_deal {
    int64_t unit, low, units; /* ids of a unit, the first unit, how many */
    int64_t block, turns;     /* units of a block; turns in which each task takes one */
    int open;
} fs_deal;

static inline int64_t deal_end(const fs_call *call) {
    int64_t end = call->head->first_token + call->head->rows;
    return end < call->vocab ? end : call->vocab;
}

static inline int deal_is_by_nodes(const fs_pass *pass) {
    const fs_cpu *cpu = pass->cpu;
    return cpu->nodes.count > 1 && cpu->residence.data == pass->call->head->data;
}

static inline fs_deal deal_of(const fs_pass *pass) {
    const int64_t first = pass->call->head->first_token, end = deal_end(pass->call);
    fs_deal deal = {pass->groups ? pass->call->batch->group_size : FS_NOISE_BLOCK, 0, 0, 0, 0, 0};
    deal.low = first / deal.unit;
    deal.units = end > first ? (end + deal.unit - 1) / deal.unit - deal.low : 0;
    deal.block = pass->block / FS_NOISE_BLOCK;
    deal.turns = pass->groups ? 0 : deal.units / (deal.block * pass->cpu->tasks);
    deal.open = !pass->groups && !pass->whole && !deal_is_by_nodes(pass);
    return deal;
}

/* Ids of `count` units, `from` of which come before. */
static inline fs_block deal_ids(const fs_pass *pass, const fs_deal *deal, int64_t from, int64_t count) {
    const int64_t first = pass->call->head->first_token, end = deal_end(pass->call);
    const int64_t low = (deal->low + from) * deal->unit, high = low + count * deal->unit;
    const int64_t id = low > first ? low : first, to = high < end ? high : end;
    fs_block range = {id, to > id ? to - id : 0};
    return range;
}

/* Ids of task i in a turn, 0 to deal.turns. */
static inline fs_block deal_turn(const fs_pass *pass, const fs_deal *deal, int32_t i, int64_t turn) {
    const int64_t tasks = pass->cpu->tasks, done = turn * tasks, rest = deal->units - done * deal->block;
    const int64_t from = rest * i / tasks;
    if (turn == deal->turns) return deal_ids(pass, deal, done * deal->block + from, rest * (i + 1) / tasks - from);
    return deal_ids(pass, deal, (pass->order ? pass->order[done + i] : done + i) * deal->block, deal->block);
}

/* The next ids of an open deal, `most` at most; none: there are no more. What is left makes two turns at least: who takes the last
 * piece holds the others up for half as long as a whole one would. */
static inline fs_block deal_take(const fs_pass *pass, const fs_deal *deal, int64_t most) {
    int64_t at = atomic_load_explicit(pass->next, memory_order_relaxed), count;
    do {
        const int64_t left = deal->units - at, share = (left + 2 * pass->cpu->tasks - 1) / (2 * pass->cpu->tasks);
        count = most / deal->unit < share ? most / deal->unit : share;
    } while (count > 0 && !atomic_compare_exchange_weak_explicit(pass->next, &at, at + count, memory_order_relaxed,
                                                                 memory_order_relaxed));
    return deal_ids(pass, deal, at, count);
}

/* No task has more tokens than this. */
static inline int64_t deal_most(const fs_pass *pass) {
    const fs_deal deal = deal_of(pass);
    const int64_t tasks = pass->cpu->tasks, rest = deal.units - deal.turns * deal.block * tasks;
    return (deal.open ? deal.units : deal.turns * deal.block + (rest + tasks - 1) / tasks) * deal.unit;
}

/* The node that a block of the deal lies on: its first row's. */
typedef struct fs_block_nodes {
    const fs_pass *pass;
    const fs_deal *deal;
} fs_block_nodes;

static inline uint8_t node_of_block(const void *user, int64_t block) {
    const fs_block_nodes *of = user;
    const int64_t id = (of->deal->low + block * of->deal->block) * of->deal->unit;
    const int64_t row = id - of->pass->call->head->first_token;
    return of->pass->cpu->residence.node[row > 0 ? row / of->pass->cpu->residence.step : 0];
}

/* Says which block each task takes in each turn, where W lies on several nodes. */
static inline void deal_by_nodes(const fs_pass *pass) {
    const fs_deal deal = deal_of(pass);
    const fs_block_nodes of = {pass, &deal};
    fs_nodes_deal(&pass->cpu->nodes, deal.turns, pass->cpu->tasks, node_of_block, &of, pass->order);
}

#endif
