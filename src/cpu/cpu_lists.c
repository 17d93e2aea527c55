#include "cpu_lists.h"

/* The logit of a list's bound: at or below it no later token can enter. */
static float list_floor(const fs_list *list) {
    return list->bound == FS_KEY_NONE ? -INFINITY : order_key_logit(list->bound);
}

/* --------------------------------------------------------------------------------------------------- thinning ---- */

/* Entries by logit: bin i holds those that are i to i + 1 bins below `top`, the last one everything further down. */
#define FS_BINS 64
typedef struct fs_bins {
    float top, per; /* bins per unit of logit */
    int32_t count[FS_BINS];
} fs_bins;

/* Never less for a lower logit, so bins part the list where its order does. The last for what is no number. */
static int32_t bin_of(const fs_bins *bins, uint64_t key) {
    const float down = (bins->top - order_key_logit(key)) * bins->per;
    return down < (float)(FS_BINS - 1) ? (int32_t)down : FS_BINS - 1;
}

static fs_bins count_bins(const fs_list *list) {
    fs_bins bins;
    memset(&bins, 0, sizeof bins);
    uint64_t most = list->key[0], least = list->key[0];
    for (int32_t i = 1; i < list->count; i++) {
        most = list->key[i] > most ? list->key[i] : most;
        least = list->key[i] < least ? list->key[i] : least;
    }
    bins.top = order_key_logit(most);
    bins.per = (float)FS_BINS / (bins.top - order_key_logit(least));
    for (int32_t i = 0; i < list->count; i++) bins.count[bin_of(&bins, list->key[i])]++;
    return bins;
}

/* Drops the bins behind `last` and raises the bound to the largest key of them. */
static void drop_behind(fs_list *list, const fs_bins *bins, int32_t last) {
    int32_t count = 0;
    uint64_t bound = list->bound;
    for (int32_t i = 0; i < list->count; i++) {
        const uint64_t key = list->key[i];
        const int kept = bin_of(bins, key) <= last;
        list->key[count] = key;
        count += kept;
        bound = !kept && key > bound ? key : bound;
    }
    list->count = count;
    list->bound = bound;
}

/* Makes room: drops about half, never one of the `keep` largest. Which of the others go decides how soon the next thinning comes and
 * nothing else, so bins do instead of a selection (for 2,048 entries 4 us instead of 20: Emerald Rapids, 2026-11-15). */
static void thin(fs_list *list) {
    const fs_bins bins = count_bins(list);
    int32_t last = 0, kept = bins.count[0];
    while (kept < list->keep) kept += bins.count[++last];
    if (kept <= list->keep + (list->capacity - list->keep) / 2) drop_behind(list, &bins, last);
    else list_compact(list); /* too many share a bin */
}

/* ------------------------------------------------------------------------------------------------------- offer ---- */

void fs_lists_offer(fs_list *list, const fs_scan *scan, const float *y, const float *granule, int64_t base,
                    int64_t granules) {
    for (int64_t g = 0; g < granules;) {
        g = scan->append(y, granule, g, granules, list_floor(list), (uint32_t)base, list);
        if (g < granules) thin(list);
    }
}

void fs_lists_offer_each(fs_list *list, const float *y, const float *x, int64_t base, int64_t span) {
    float floor = list_floor(list);
    for (int64_t i = 0; i < span; i++) {
        if (!(y[i] > floor)) continue;
        list_offer(list, order_key(y[i], (uint32_t)(base + i)), x[i]);
        floor = list_floor(list);
    }
}
