#define _GNU_SOURCE /* sched_getaffinity, sched_getcpu */
#include "cpu_nodes.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------------------------- topology ---- */

/* Reads a file of the system, one line such as "0-3,8-11". Returns 0 if there is none. */
static int read_line(const char *folder, const char *name, char *line, int size) {
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    const int there = fgets(line, size, file) != NULL;
    fclose(file);
    return there;
}

/* The next range of such a line. Returns 0 at its end, or where it is no such line. */
static int next_range(char **line, long *from, long *to) {
    char *end;
    *from = *to = strtol(*line, &end, 10);
    if (end == *line || *from < 0) return 0;
    if (*end == '-') {
        char *more = end + 1;
        *to = strtol(more, &end, 10);
        if (end == more || *to < *from) return 0;
    }
    *line = *end == ',' ? end + 1 : end;
    return 1;
}

/* Adds a node with those of its cores that this process may run on, if there are any. One too many is only counted. */
static void add_node(const char *folder, long id, const cpu_set_t *allowed, fs_nodes *nodes) {
    char name[64], line[4096], *rest = line;
    uint64_t bits[FS_NODE_CORES / 64] = {0};
    int32_t cores = 0;
    snprintf(name, sizeof name, "node%ld/cpulist", id);
    if (nodes->count > FS_NODES || !read_line(folder, name, line, sizeof line)) return;
    for (long from, to; next_range(&rest, &from, &to);)
        for (long core = from; core <= to && core < FS_NODE_CORES; core++) {
            if (!CPU_ISSET((size_t)core, allowed)) continue;
            bits[core / 64] |= (uint64_t)1 << core % 64;
            cores++;
        }
    if (cores && nodes->count++ < FS_NODES) {
        const int32_t n = nodes->count - 1;
        memcpy(nodes->core[n], bits, sizeof bits);
        nodes->cores[n] = cores;
        nodes->id[n] = (int32_t)id;
    }
}

void fs_nodes_find(const char *folder, fs_nodes *nodes) {
    cpu_set_t allowed;
    char line[4096], *rest = line;
    memset(nodes, 0, sizeof *nodes);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !read_line(folder, "online", line, sizeof line)) return;
    for (long from, to; next_range(&rest, &from, &to);)
        for (long id = from; id <= to && id < FS_NODE_CORES; id++) add_node(folder, id, &allowed, nodes);
    if (nodes->count > FS_NODES) nodes->count = 1; /* threads must not be kept off the nodes left out */
}

int32_t fs_nodes_home(const fs_nodes *nodes, int32_t i, int32_t tasks) {
    int64_t all = 0, below = 0;
    for (int32_t n = 0; n < nodes->count; n++) all += nodes->cores[n];
    for (int32_t n = 0; n < nodes->count; n++) {
        below += nodes->cores[n];
        if (i * all < below * tasks) return n;
    }
    return 0;
}

int32_t fs_nodes_here(const fs_nodes *nodes) {
    const int core = sched_getcpu();
    if (core < 0 || core >= FS_NODE_CORES) return 0;
    for (int32_t n = 0; n < nodes->count; n++)
        if (nodes->core[n][core / 64] >> core % 64 & 1) return n;
    return 0;
}

void fs_nodes_bind(const fs_nodes *nodes, int32_t node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t core = 0; core < FS_NODE_CORES; core++)
        if (nodes->core[node][core / 64] >> core % 64 & 1) CPU_SET(core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* ----------------------------------------------------------------------------------------------------- pages ---- */

void fs_nodes_of_pages(const fs_nodes *nodes, const char *data, int64_t step, int64_t count, uint8_t *node) {
    enum { AT_ONCE = 256 };
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        const int64_t n = count - first < AT_ONCE ? count - first : AT_ONCE;
        const void *pages[AT_ONCE];
        int status[AT_ONCE];
        for (int64_t i = 0; i < n; i++) {
            const char *at = data + (first + i) * step;
            pages[i] = at - (uintptr_t)at % page; /* the kernel asks for whole pages */
            status[i] = -1;
        }
        /* Without nodes to move pages to, it says where they are. */
        (void)syscall(SYS_move_pages, 0, (unsigned long)n, pages, NULL, status, 0);
        for (int64_t i = 0; i < n; i++) {
            node[first + i] = FS_NODE_UNKNOWN;
            for (int32_t k = 0; k < nodes->count; k++)
                if (nodes->id[k] == status[i]) node[first + i] = (uint8_t)k;
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- schedule ---- */

/* Ascending, as lists expect ids to come (cpu_lists.h): what a task has of its own node is, and so are the others
 * behind that. */
static void merge_turns(int32_t *order, int64_t turns, int32_t tasks, int32_t i) {
    for (int64_t t = 1; t < turns; t++) {
        const int32_t block = order[t * tasks + i];
        int64_t at = t;
        for (; at > 0 && order[(at - 1) * tasks + i] > block; at--) order[at * tasks + i] = order[(at - 1) * tasks + i];
        order[at * tasks + i] = block;
    }
}

void fs_nodes_schedule(const fs_nodes *nodes, int64_t turns, int32_t tasks,
                       uint8_t (*node)(const void *user, int64_t block), const void *user, int32_t *order) {
    const int64_t blocks = turns * tasks;
    int64_t place[FS_NODES] = {0},
            assigned[FS_NODES] = {0}; /* the next place of a node's tasks, turn after turn; blocks they have */
    for (int64_t i = 0; i < blocks; i++) order[i] = -1;
    for (int64_t block = 0; block < blocks; block++) {
        const uint8_t home = node(user, block);
        if (home >= nodes->count) continue;
        int64_t *at = &place[home];
        while (*at < blocks && fs_nodes_home(nodes, (int32_t)(*at % tasks), tasks) != home) ++*at;
        if (*at == blocks) continue;
        order[(*at)++] = (int32_t)block;
        assigned[home]++;
    }
    /* A node's first blocks are assigned; those its tasks have no turn for, and those of no node, take the places
     * left over. */
    for (int64_t block = 0, left = 0; block < blocks; block++) {
        const uint8_t home = node(user, block);
        if (home < nodes->count && assigned[home]-- > 0) continue;
        while (order[left] >= 0) left++;
        order[left] = (int32_t)block;
    }
    for (int32_t i = 0; i < tasks; i++) merge_turns(order, turns, tasks, i);
}
