/* cpu_nodes.h - memory nodes: which cores are near which pages, and which task therefore reads which block of W.
 *
 * On a machine with several nodes (sockets, or fractions of one) a core reads its own node's memory faster than
 * another's. W stays where its owner has put it: what is chosen is who reads it. A task belongs to a node, threads are
 * bound to the cores of theirs (cpu_threads.h), and each takes blocks whose first page is there as long as there are
 * any. With one node, where it is not known, or unless FLASHSAMPLING_NODES asks for it, all this is nothing. */
#ifndef FS_CPU_NODES_H
#define FS_CPU_NODES_H

#include <stdint.h>

#define FS_NODES 32        /* if there are more, none is told apart */
#define FS_NODE_CORES 1024 /* of which cores are told apart, as in cpu_set_t */
#define FS_NODE_UNKNOWN FS_NODES

typedef struct fs_nodes {
    int32_t count; /* nodes with cores this process may run on; below 2 there is nothing to choose */
    int32_t id[FS_NODES], cores[FS_NODES];
    uint64_t core[FS_NODES][FS_NODE_CORES / 64]; /* those cores, by bits */
} fs_nodes;

/* What the system says, in `folder` (/sys/devices/system/node); count is 0 if it says nothing. */
void fs_nodes_find(const char *folder, fs_nodes *nodes);

/* The node of task i of `tasks`: neighbours share one, each has as many as its cores are worth. */
int32_t fs_nodes_home(const fs_nodes *nodes, int32_t i, int32_t tasks);

/* The node of the core this thread runs on, 0 if it is none of these. */
int32_t fs_nodes_here(const fs_nodes *nodes);

/* Binds this thread to the cores of a node. Fails silently: then it is slower. */
void fs_nodes_bind(const fs_nodes *nodes, int32_t node);

/* node[i] = that of the page at data + i * step, or FS_NODE_UNKNOWN. */
void fs_nodes_of_pages(const fs_nodes *nodes, const char *data, int64_t step, int64_t count, uint8_t *node);

/* order[t * tasks + i] = the block that task i takes in turn t, of turns * tasks blocks, in ascending order: those of
 * its own node, as long as there are any, and others. node(user, block) is a block's. */
void fs_nodes_schedule(const fs_nodes *nodes, int64_t turns, int32_t tasks,
                       uint8_t (*node)(const void *user, int64_t block), const void *user, int32_t *order);

#endif
