/* cut.h - min-p, then top-k, then top-p, on a row's candidate list: which prefix of the total order survives.
 *
 * The cut is exact when it is proven, i.e. when no token outside the list could belong to it
 * (docs/exactness.md). The mass before a token is summed in double from the largest token down, an order that is the same for
 * every split of the vocabulary. */
#ifndef FS_CORE_CUT_H
#define FS_CORE_CUT_H

#include "list.h"
#include "mass.h"
#include "rules.h"

typedef struct fs_cut {
    int32_t proven;    /* no token but the first `possible` entries survives */
    int32_t possible;  /* entries that may survive; more than the survivors only if the row's mass is a rough one */
    int32_t survivors; /* entries known to survive, proven or not */
    uint64_t last;     /* order key of the last of them */
    double log_z;      /* log of the survivors' mass */
} fs_cut;

/* exp(l) in units of 2^unit. */
FS_CORE double cut_term(float l, int32_t unit) {
    fs_exp e = exp_split(l);
    const int64_t shift = (int64_t)e.exponent - unit;
    if (shift > 1000) return INFINITY; /* of parts that are not what they say */
    return shift < -1000 ? 0.0 : (double)e.fraction * bits_double((uint64_t)(1023 + shift) << 52);
}

/* Further than this below the largest l, all tokens there can be have no mass that counts: 2^24 e^-64 is 3e-21. */
#define FS_CUT_REACH 64.0f

/* The row's mass in units of exp(first), its largest l, by its list alone. *complete: no token outside has a part in it; else it is less. */
FS_CORE double cut_weigh(fs_list *list, float inverse, float first, int *complete) {
    const float reach = first - FS_CUT_REACH;
    double sum = 0.0;
    for (int32_t i = 0; i < list->count; i++) {
        const float l = order_key_logit(list->key[list_at(list, i)]) * inverse;
        if (l < reach) break;
        sum += cut_term(l - first, 0);
    }
    *complete = list->bound == FS_KEY_NONE || order_key_logit(list->bound) * inverse < reach;
    return sum;
}

/* Whether the list is complete at and above this key (with all its ties, if those are to be kept). */
FS_CORE int cut_certified(const fs_list *list, uint64_t key, int ties) {
    return ties ? key >> 32 > list->bound >> 32 || list->bound == FS_KEY_NONE : key > list->bound;
}

/* The list must have been heapified and hold at least one entry; mass is that of the whole row (top-p alone needs it), off by at most
 * `slack` of it. */
FS_CORE fs_cut cut_list(fs_list *list, const fs_rules *rules, uint32_t flags, const fs_mass *mass, double slack) {
    const int ties = (flags & FS_KEEP_TIES) != 0, joint = (flags & FS_JOINT_TOP_P) != 0;
    const float inverse = rules->inverse_temperature;
    const float first = order_key_logit(list->key[list_at(list, 0)]) * inverse;
    const double floor_l = (double)first + rules->log_min_p;
    /* Far out masses are not exact, or clamped: there terms are relative to the first, and the row's mass is what the list says. */
    const float origin = fabsf(first) > FS_EXP_EXACT && first < INFINITY ? first : 0.0f;
    const int32_t unit = exp_split(first - origin).exponent;
    const int narrowed = (rules->top_k > 0 || rules->log_min_p > -INFINITY) && !joint;

    /* All of the mass is at +inf: one token (and its ties) is the nucleus. */
    const float top_p = first == INFINITY ? 0.0f : rules->top_p;
    fs_cut cut = {0, 0, 0, FS_KEY_NONE, 0.0};
    double before = 0.0;
    /* Top-p against the whole row stops this walk; against what is left of it, a second one. From `doubt` on nobody is known to
     * survive, from `stop` on nobody does. */
    double doubt = INFINITY, stop = INFINITY;
    if (rules->top_p < 1.0f && !narrowed) {
        int complete = 1;
        double whole = 0.0;
        if (origin != 0.0f) whole = cut_weigh(list, inverse, first, &complete), slack = 0.0;
        else if (!mass_is_empty(mass)) whole = ldexp(mass_scaled(mass), 24 * (mass->top - 2) - unit);
        const double mark = (double)top_p * whole;
        doubt = mark - mark * slack;
        if (complete) stop = mark + mark * slack;
    }
    double sure = -1.0; /* mass of the survivors, once somebody is in doubt */
    uint64_t last = FS_KEY_NONE;
    int32_t i = 0;
    for (; i < list->count; i++) {
        const uint64_t key = list->key[list_at(list, i)];
        int tie = ties && i > 0 && key >> 32 == last >> 32;
        if (!cut_certified(list, key, ties)) break;
        if (i > 0 && !tie) {
            cut.proven = (rules->top_k > 0 && i >= rules->top_k) || before >= stop;
            if (cut.proven) break;
            if (before >= doubt && sure < 0.0) sure = before, cut.survivors = i, cut.last = last;
        }
        const float l = order_key_logit(key) * inverse;
        if ((double)l < floor_l || l == -INFINITY) {
            cut.proven = 1;
            break;
        }
        before += cut_term(l - origin, unit);
        last = key;
    }
    if (sure < 0.0) cut.survivors = i, cut.last = last;
    cut.possible = i;
    if (!cut.proven) {
        /* Nothing below the walk can survive if it is complete, or if even the bound is out. */
        int bound_out = list->bound != FS_KEY_NONE && (double)(order_key_logit(list->bound) * inverse) < floor_l;
        int enough = !ties && ((rules->top_k > 0 && i >= rules->top_k) || (i > 0 && before >= stop));
        cut.proven = (i == list->count && list->bound == FS_KEY_NONE) || bound_out || enough;
    }
    if (rules->top_p < 1.0f && narrowed) {
        /* Where the walk is not proven the mass is a lower bound, and what it keeps survives all the same. */
        double limit = (double)top_p * before;
        before = 0.0;
        for (i = 0; i < cut.possible; i++) {
            const uint64_t key = list->key[list_at(list, i)];
            int tie = ties && i > 0 && key >> 32 == cut.last >> 32;
            if (i > 0 && before >= limit && !tie) break;
            before += cut_term(order_key_logit(key) * inverse - origin, unit);
            cut.last = key;
        }
        cut.survivors = cut.possible = i;
    }
    if (sure >= 0.0) before = sure;
    cut.log_z = cut.survivors ? (double)origin + log(before) + unit * 0.69314718055994530942 : -INFINITY;
    return cut;
}

/* A key and a cut by top-p alone, in one look at a list in any order: 1 if it surely survives, -1 if it surely does not, and so
 * nobody below it, 0: who knows. Less mass is above it than top_p of the row's, or more, by more than `slack` of it and what sums
 * in another order may differ. Of a key that is not above the list's bound the bound is judged. Where ties are kept -1 is no
 * answer, and where cut_list looks at no mass there is none. */
FS_CORE int cut_judge(const fs_list *list, const fs_rules *rules, const fs_mass *mass, double slack, uint64_t key) {
    const float inverse = rules->inverse_temperature;
    const int32_t unit = 24 * mass->top; /* no term is far above it */
    const uint64_t judged = key > list->bound ? key : list->bound;
    uint64_t first = judged;
    double above = 0.0;
    if (mass_is_empty(mass) || !(fabsf(order_key_logit(judged) * inverse) <= FS_EXP_EXACT)) return 0;
    for (int32_t i = 0; i < list->count; i++) {
        if (list->key[i] <= judged) continue;
        above += cut_term(order_key_logit(list->key[i]) * inverse, unit);
        first = list->key[i] > first ? list->key[i] : first;
    }
    if (!(fabsf(order_key_logit(first) * inverse) <= FS_EXP_EXACT)) return 0;
    const double mark = (double)rules->top_p * ldexp(mass_scaled(mass), -48), off = slack + 1e-9;
    if (key > list->bound && above < mark - mark * off) return 1;
    return above > mark + mark * off ? -1 : 0;
}

#endif
