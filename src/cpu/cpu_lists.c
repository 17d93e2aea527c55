#include "cpu_lists.h"

/* --------------------------------------------------------------------------------------------------- thinning ---- */

/* Entries that are weighed at a time. */
#define FS_WEIGHED 256

/* How many entries each bin has, and their mass in units of 2^unit. */
typedef struct fs_weights {
    int32_t count[FS_BINS];
    float mass[FS_BINS];
} fs_weights;

static void weigh_bins(const fs_list *list, const fs_scan *scan, fs_bins bins, float scale, int32_t unit,
                       fs_weights *weights) {
    float term[FS_WEIGHED];
    int32_t bin[FS_WEIGHED];
    memset(weights, 0, sizeof *weights);
    for (int32_t from = 0; from < list->count; from += FS_WEIGHED) {
        const int32_t n = list->count - from < FS_WEIGHED ? list->count - from : FS_WEIGHED;
        scan->weigh(list->key + from, n, bins, scale, unit, term, bin);
        for (int32_t i = 0; i < n; i++) {
            weights->mass[bin[i]] += term[i];
            weights->count[bin[i]]++;
        }
    }
}

/* Above every key of a logit behind bin `last`, but for rounding, and below the others. */
static uint64_t key_behind(fs_bins bins, int32_t last) {
    return (uint64_t)ordered_float(bins.top - (float)(last + 1) / bins.per) << 32 | 0xFFFFFFFFu;
}

/* Drops what is not above this key, which becomes the bound: all that was dropped is at or below it. */
static void drop_below(fs_list *list, const fs_scan *scan, uint64_t key) {
    const int32_t kept = scan->keep_above(list->key, list->count, key);
    if (kept < list->count && key > list->bound) list->bound = key;
    list->count = kept;
}

/* Makes room: drops about half, never one of the `keep` largest. Which of the others go decides how soon the next thinning comes and
 * nothing else, so bins do instead of a selection. */
static void thin(fs_list *list, const fs_scan *scan) {
    fs_weights weights;
    uint64_t least, most = scan->key_range(list->key, list->count, &least);
    const float top = order_key_logit(most);
    const fs_bins bins = {top, (float)FS_BINS / (top - order_key_logit(least))};
    weigh_bins(list, scan, bins, 1.0f, exp_split(top).exponent, &weights);
    int32_t last = 0, kept = weights.count[0];
    while (kept < list->keep) kept += weights.count[++last];
    const uint64_t below = key_behind(bins, last);
    kept = scan->count_above(list->key, list->count, below);
    if (kept >= list->keep && kept <= list->keep + (list->capacity - list->keep) / 2) drop_below(list, scan, below);
    else list_compact(list); /* too many share a bin */
}

#define FS_BINS_PER_L 4.0f

void fs_lists_narrow(fs_list *list, const fs_scan *scan, float scale, const fs_mass *mass, double share) {
    fs_weights weights;
    uint64_t least;
    const float top = order_key_logit(scan->key_range(list->key, list->count, &least));
    const fs_bins bins = {top, FS_BINS_PER_L * scale};
    const int32_t unit = exp_split(top * scale).exponent;
    const double want = share * ldexp(mass_scaled(mass), 24 * (mass->top - 2) - unit);
    weigh_bins(list, scan, bins, scale, unit, &weights);
    double there = (double)weights.mass[0];
    int32_t last = 0, kept = weights.count[0];
    while (last < FS_BINS - 1 && (there < want || kept < FS_NARROWEST)) {
        there += (double)weights.mass[++last];
        kept += weights.count[last];
    }
    if (last < FS_BINS - 1 && top < INFINITY) drop_below(list, scan, key_behind(bins, last));
    fs_lists_wait(list);
}

/* ------------------------------------------------------------------------------------------------------- offer ---- */

static int32_t granules_above(const float *granule, int64_t granules, float floor) {
    int32_t n = 0;
    for (int64_t g = 0; g < granules; g++) n += granule[g] > floor;
    return n;
}

#define FS_HALVINGS 8 /* of the way between the smallest of the maxima and the largest */

void fs_lists_start(fs_list *list, const float *granule, int64_t granules, int32_t least, float most) {
    float low = INFINITY, high = -INFINITY;
    for (int64_t g = 0; g < granules; g++) {
        low = granule[g] < low && granule[g] > -INFINITY ? granule[g] : low; /* -inf: none is allowed */
        high = granule[g] > high ? granule[g] : high;
    }
    if (granules_above(granule, granules, low) < least) return;
    for (int i = 0; i < FS_HALVINGS; i++) {
        const float middle = 0.5f * low + 0.5f * high;
        if (granules_above(granule, granules, middle) < least) high = middle;
        else low = middle;
    }
    if (most < low) low = most;
    const uint64_t bound = (uint64_t)ordered_float(low) << 32 | 0xFFFFFFFFu;
    if (low > -INFINITY && bound > list->bound) list->bound = bound;
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
