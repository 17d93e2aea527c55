#include "cpu_lists.h"

/* --------------------------------------------------------------------------------------------------- thinning ---- */

/* Entries that are looked at at a time. */
#define FS_BINNED 256

static void count_bins(const fs_list *list, const fs_scan *scan, fs_bins bins, int32_t *count) {
    int32_t bin[FS_BINNED];
    memset(count, 0, FS_BINS * sizeof *count);
    for (int32_t from = 0; from < list->count; from += FS_BINNED) {
        const int32_t n = list->count - from < FS_BINNED ? list->count - from : FS_BINNED;
        scan->bin(list->key + from, n, bins, bin);
        for (int32_t i = 0; i < n; i++) count[bin[i]]++;
    }
}

/* Above every key of a logit behind bin `last`, but for rounding, and below the others. */
static uint64_t key_behind(fs_bins bins, int32_t last) {
    return order_key_behind(bins.top - (float)(last + 1) / bins.per);
}

/* Makes room: drops about half, never one of the `keep` largest. Which of the others go decides how soon the next
 * thinning comes and nothing else, so bins do instead of a selection. */
static void thin(fs_list *list, const fs_scan *scan) {
    int32_t count[FS_BINS];
    uint64_t least, most = scan->key_range(list->key, list->count, &least);
    const float top = order_key_logit(most);
    const fs_bins bins = {top, (float)FS_BINS / (top - order_key_logit(least))};
    count_bins(list, scan, bins, count);
    int32_t last = 0, kept = count[0];
    while (kept < list->keep) kept += count[++last];
    const uint64_t below = key_behind(bins, last);
    kept = scan->count_above(list->key, list->count, below);
    if (kept >= list->keep && kept <= list->keep + (list->capacity - list->keep) / 2) {
        list->count = scan->keep_above(list->key, list->count, below);
        if (below > list->bound) list->bound = below;
    } else list_compact(list); /* too many share a bin */
}

/* Entries below a new bound are stale; this many may stay. */
#define FS_STALE_MOST 128

int fs_lists_raise(fs_list *list, const fs_scan *scan, uint64_t bound) {
    if (bound <= list->bound) return 0;
    list->bound = bound;
    if (list->count > FS_STALE_MOST) list->count = scan->keep_above(list->key, list->count, bound);
    return 1;
}

/* ------------------------------------------------------------------------------------------------------- offer ---- */

static int32_t granules_above(const float *granule, int64_t granules, float floor) {
    int32_t n = 0;
    for (int64_t g = 0; g < granules; g++) n += granule[g] > floor;
    return n;
}

#define FS_HALVINGS 8 /* of the way between the smallest of the maxima and the largest */

void fs_lists_start(fs_list *list, const float *granule, int64_t granules) {
    float low = INFINITY, high = -INFINITY;
    for (int64_t g = 0; g < granules; g++) {
        low = granule[g] < low && granule[g] > -INFINITY ? granule[g] : low; /* -inf: none is allowed */
        high = granule[g] > high ? granule[g] : high;
    }
    if (granules_above(granule, granules, low) < list->keep) return;
    for (int i = 0; i < FS_HALVINGS; i++) {
        const float middle = 0.5f * low + 0.5f * high;
        if (granules_above(granule, granules, middle) < list->keep) high = middle;
        else low = middle;
    }
    if (low > -INFINITY) list->bound = order_key_behind(low);
}

void fs_lists_offer(fs_list *list, const fs_scan *scan, const float *y, const float *granule, int64_t base,
                    int64_t granules) {
    for (int64_t g = 0; g < granules;) {
        g = scan->append(y, granule, g, granules, list_floor(list), (uint32_t)base, list);
        if (g < granules) thin(list, scan);
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
