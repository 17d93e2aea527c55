/* cpu_lists.h - candidate lists inside a pass: tokens enter by the vector, and a full list is thinned by a
 * histogram. */
#ifndef FS_CPU_LISTS_H
#define FS_CPU_LISTS_H

#include "cpu/kernels/cpu_isa.h"

/* The logit of a list's bound: at or below it no later token can enter. */
FS_CORE float list_floor(const fs_list *list) {
    return list->bound == FS_KEY_NONE ? -INFINITY : order_key_logit(list->bound);
}

/* Offers the tokens of a block to a list by y: logits y, the first of id `base`, and the largest of each of their
 * granules. Ids ascend from call to call, so a token with the logit of the list's bound is below it. */
void fs_lists_offer(fs_list *list, const fs_scan *scan, const float *y, const float *granule, int64_t base,
                    int64_t granules);

/* A bound for an empty list, before its first block is offered, so that this does not fill it with tokens which it
 * would drop: one that as many granules as it keeps have a token above. */
void fs_lists_start(fs_list *list, const float *granule, int64_t granules);

/* Makes this key the bound of a list without raw logits, unless that is higher: then 0. */
int fs_lists_raise(fs_list *list, const fs_scan *scan, uint64_t bound);

/* fs_lists_offer for a list that carries raw logits x beside its keys, or is ordered by logits that nobody has
 * surveyed. */
void fs_lists_offer_each(fs_list *list, const float *y, const float *x, int64_t base, int64_t span);

#endif
