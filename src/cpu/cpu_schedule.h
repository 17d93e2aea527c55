/* cpu_schedule.h - which ids of the vocabulary each task of a pass takes. */
#ifndef FS_CPU_SCHEDULE_H
#define FS_CPU_SCHEDULE_H

#include "cpu_pass.h"

/* In units of whole noise blocks (or whole groups).
 *
 * Dynamic: whoever is free takes the next block, smaller ones towards the end. Threads start late and are held up,
 * which costs a call that waits for all of them a sixth to a third of its time (docs/notes/cpu-threads.md). Ids
 * ascend for each task, as lists expect.
 *
 * Static, where it has to be known beforehand what each task gets: by memory nodes, in groups, and in a second pass,
 * whose lists have room for just that. Then tasks take blocks in turn as long as there is one for each, then even
 * shares of the rest; in turn, because frequent tokens lie together at low ids, of which all but one task would see
 * none. */
typedef struct fs_schedule {
    int64_t unit, low, units; /* ids of a unit, the first unit, how many */
    int64_t block, turns;     /* units of a block; turns in which each task takes one */
    int dynamic;
} fs_schedule;

static inline int64_t schedule_end(const fs_call *call) {
    int64_t end = call->head->first_token + call->head->rows;
    return end < call->vocab ? end : call->vocab;
}

static inline int schedule_is_by_nodes(const fs_pass *pass) {
    const fs_cpu *cpu = pass->cpu;
    return cpu->nodes.count > 1 && cpu->residence.data == pass->call->head->data;
}

static inline fs_schedule schedule_of(const fs_pass *pass) {
    const int64_t first = pass->call->head->first_token, end = schedule_end(pass->call);
    fs_schedule schedule = {pass->groups ? pass->call->batch->group_size : FS_NOISE_BLOCK, 0, 0, 0, 0, 0};
    schedule.low = first / schedule.unit;
    schedule.units = end > first ? (end + schedule.unit - 1) / schedule.unit - schedule.low : 0;
    schedule.block = pass->block / FS_NOISE_BLOCK;
    schedule.turns = pass->groups ? 0 : schedule.units / (schedule.block * pass->cpu->tasks);
    schedule.dynamic = !pass->groups && !pass->whole && !schedule_is_by_nodes(pass);
    return schedule;
}

/* Ids of `count` units, `from` of which come before. */
static inline fs_block schedule_ids(const fs_pass *pass, const fs_schedule *schedule, int64_t from, int64_t count) {
    const int64_t first = pass->call->head->first_token, end = schedule_end(pass->call);
    const int64_t low = (schedule->low + from) * schedule->unit, high = low + count * schedule->unit;
    const int64_t id = low > first ? low : first, to = high < end ? high : end;
    fs_block range = {id, to > id ? to - id : 0};
    return range;
}

/* Ids of task i in a turn, 0 to schedule.turns. */
static inline fs_block schedule_turn(const fs_pass *pass, const fs_schedule *schedule, int32_t i, int64_t turn) {
    const int64_t tasks = pass->cpu->tasks, done = turn * tasks, rest = schedule->units - done * schedule->block;
    const int64_t from = rest * i / tasks;
    if (turn == schedule->turns)
        return schedule_ids(pass, schedule, done * schedule->block + from, rest * (i + 1) / tasks - from);
    return schedule_ids(pass, schedule, (pass->order ? pass->order[done + i] : done + i) * schedule->block,
                        schedule->block);
}

/* The next ids of a dynamic schedule, `most` at most; none: there are no more. What is left makes two turns at least:
 * who takes the last block holds the others up for half as long as a whole one would. */
static inline fs_block schedule_take(const fs_pass *pass, const fs_schedule *schedule, int64_t most) {
    int64_t at = atomic_load_explicit(pass->next, memory_order_relaxed), count;
    do {
        const int64_t left = schedule->units - at, share = (left + 2 * pass->cpu->tasks - 1) / (2 * pass->cpu->tasks);
        count = most / schedule->unit < share ? most / schedule->unit : share;
    } while (count > 0 && !atomic_compare_exchange_weak_explicit(pass->next, &at, at + count, memory_order_relaxed,
                                                                 memory_order_relaxed));
    return schedule_ids(pass, schedule, at, count);
}

/* No task has more tokens than this. */
static inline int64_t schedule_most(const fs_pass *pass) {
    const fs_schedule schedule = schedule_of(pass);
    const int64_t tasks = pass->cpu->tasks, rest = schedule.units - schedule.turns * schedule.block * tasks;
    return (schedule.dynamic ? schedule.units : schedule.turns * schedule.block + (rest + tasks - 1) / tasks) *
           schedule.unit;
}

/* The node that a block of the schedule lies on: its first row's. */
typedef struct fs_block_nodes {
    const fs_pass *pass;
    const fs_schedule *schedule;
} fs_block_nodes;

static inline uint8_t node_of_block(const void *user, int64_t block) {
    const fs_block_nodes *of = user;
    const int64_t id = (of->schedule->low + block * of->schedule->block) * of->schedule->unit;
    const int64_t row = id - of->pass->call->head->first_token;
    return of->pass->cpu->residence.node[row > 0 ? row / of->pass->cpu->residence.step : 0];
}

/* Says which block each task takes in each turn, where W lies on several nodes. */
static inline void schedule_by_nodes(const fs_pass *pass) {
    const fs_schedule schedule = schedule_of(pass);
    const fs_block_nodes of = {pass, &schedule};
    fs_nodes_schedule(&pass->cpu->nodes, schedule.turns, pass->cpu->tasks, node_of_block, &of, pass->order);
}

#endif
