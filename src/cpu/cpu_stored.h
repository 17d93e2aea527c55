/* cpu_stored.h - rows that end by all of their logits, kept in memory: nuclei of more tokens than a list holds.
 *
 *   in a pass      each block's logits are copied to where the row's are kept, 4 V bytes
 *   at its end     the mass above the row's winner, one look at the noise blocks that reach so high, says on which side
 *                  of the cut it is
 *   if outside     what is above it races again: all that can survive
 *
 * Nothing is sorted and no list is built. A pass keeps them at once where calls before had wide rows; else such rows
 * take a second pass, which computes logits and nothing else. Rows that rough masses leave in doubt end by lists, with
 * exact ones. */
#ifndef FS_CPU_STORED_H
#define FS_CPU_STORED_H

#include "cpu_pass.h"

/* Whether a row can end so: top-p is its only cut, by a rough mass, and nothing that lists tell is asked for. */
int fs_stored_serves(const fs_call *call, const fs_row_rules *rules);

/* Rows that are alike, as far as their nuclei go: what some of them needed others will need. */
static inline int stored_kind(const fs_row_rules *rules) {
    const uint32_t mixed = float_bits(rules->temperature) * 0x9E3779B1u + float_bits(rules->top_p) * 0x85EBCA77u;
    return (int)((mixed ^ mixed >> 15) * 0xC2B2AE3Du >> 28);
}

/* Whether a pass stores the logits of such a row, if there is room. */
static inline int stored_wanted(const fs_pass *pass, const fs_row_rules *rules) {
    return fs_stored_serves(pass->call, rules) && (pass->storing || pass->cpu->wide[stored_kind(rules)]);
}

/* Floats of a row's stored logits and the largest of their noise blocks: whole cache lines, which hold
 * whole granules. */
int64_t fs_stored_floats(const fs_call *call);

/* The same as they lie there. */
fs_stored fs_stored_at(const fs_call *call, float *memory);

/* Ends a row of the pass that has all of its logits and whose winners and mass are those of `summary`. 0: its mass
 * leaves a winner in doubt, and nothing is written; FS_STORED_WIDE: a list would not have told. */
enum { FS_STORED_DOUBT, FS_STORED_DONE, FS_STORED_WIDE };
int fs_stored_finish(const fs_pass *pass, int32_t task, int32_t a, fs_summary *summary, uint32_t extra);

#endif
