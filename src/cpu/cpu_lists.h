/* cpu_lists.h - candidate lists inside a pass: tokens enter by the vector, and a full list is thinned by a histogram. */
#ifndef FS_CPU_LISTS_H
#define FS_CPU_LISTS_H

#include "cpu_isa.h"

/* Offers the tokens of a block to a list by y: logits y, the first of id `base`, and the largest of each of their granules. Ids
 * ascend from call to call, so a token with the logit of the list's bound is below it. */
void fs_lists_offer(fs_list *list, const fs_scan *scan, const float *y, const float *granule, int64_t base,
                    int64_t granules);

/* The same for a list that carries raw logits x beside its keys, or is ordered by logits that nobody has surveyed. */
void fs_lists_offer_each(fs_list *list, const float *y, const float *x, int64_t base, int64_t span);

/* Drops what is not among the largest entries that make up this share of `mass`, and sets when the next look is due. Logits times
 * scale are l; there is at least one entry. */
void fs_lists_narrow(fs_list *list, const fs_scan *scan, float scale, const fs_mass *mass, double share);

/* Entries a list has at least when it is narrowed. */
#define FS_NARROWEST 64

#endif
