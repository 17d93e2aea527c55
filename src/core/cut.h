/* cut.h - min-p, top-k and top-p on a row's candidate list: which prefix of the total order survives.
 *
 * The cut is exact when it is proven, i.e. when no token outside the list could belong to it
 * (docs/explain/exactness.md). The mass before a token is summed in double from the largest token down, an order that
 * is the same for every split of the vocabulary. */
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

/* A list being cut. Numbers are what cuts look at: y times cut_scale. */
typedef struct cut_view {
    fs_list *list;
    const fs_row_rules *rules;
    uint32_t flags;
    float first;  /* the largest number */
    float origin; /* what terms of mass are relative to, */
    int32_t unit; /* and the power of two they are in */
    double min_p; /* tokens below it are min-p's */
} cut_view;

/* So many of a list's entries, in order. */
typedef struct cut_prefix {
    int32_t count;
    uint64_t last; /* order key of the last of them */
    double mass;
} cut_prefix;

FS_CORE uint64_t cut_key(const cut_view *c, int32_t i) {
    return c->list->key[list_at(c->list, i)];
}

FS_CORE float cut_number(const cut_view *c, uint64_t key) {
    return order_key_logit(key) * c->rules->cut_scale;
}

/* Far out masses are not exact, or clamped: there terms are relative to the first. */
FS_CORE float cut_origin(float first) {
    return fabsf(first) > FS_EXP_EXACT && first < INFINITY ? first : 0.0f;
}

FS_CORE cut_view cut_view_of(fs_list *list, const fs_row_rules *rules, uint32_t flags) {
    cut_view c;
    c.list = list;
    c.rules = rules;
    c.flags = flags;
    c.first = cut_number(&c, cut_key(&c, 0));
    c.origin = cut_origin(c.first);
    c.unit = exp_split(c.first - c.origin).exponent;
    c.min_p = (double)c.first + rules->log_min_p;
    return c;
}

FS_CORE void cut_extend(const cut_view *c, cut_prefix *prefix, uint64_t key) {
    prefix->mass += cut_term(cut_number(c, key) - c->origin, c->unit);
    prefix->last = key;
    prefix->count++;
}

/* A key that equals the prefix's last is let in where this flag says so. */
FS_CORE int cut_keeps_tie(const cut_view *c, const cut_prefix *prefix, uint64_t key, uint32_t flag) {
    return key >> 32 == prefix->last >> 32 && (c->flags & flag) != 0;
}

/* -------------------------------------------------------------------------------------------- top-p of the row ---- */

/* Masses before a token: from `doubt` on it is not known to survive, from `stop` on it does not. */
typedef struct cut_marks {
    double doubt, stop;
} cut_marks;

/* The row's mass in units of exp(first) by its list alone. *complete: no token outside has a part in it; else it is
 * less. */
FS_CORE double cut_weigh(const cut_view *c, int *complete) {
    const float reach = c->first - FS_CUT_REACH;
    double sum = 0.0;
    for (int32_t i = 0; i < c->list->count; i++) {
        const float number = cut_number(c, cut_key(c, i));
        if (number < reach) break;
        sum += cut_term(number - c->first, 0);
    }
    *complete = c->list->bound == FS_KEY_NONE || cut_number(c, c->list->bound) < reach;
    return sum;
}

/* Where masses are not exact the row's is what the list says. */
FS_CORE cut_marks cut_marks_of_row(const cut_view *c, float top_p, const fs_mass *mass, double slack) {
    int complete = 1;
    double whole = 0.0;
    if (c->origin != 0.0f) whole = cut_weigh(c, &complete), slack = 0.0;
    else if (!mass_is_empty(mass)) whole = ldexp(mass_scaled(mass), 24 * (mass->top - 2) - c->unit);
    const double mark = (double)top_p * whole;
    cut_marks marks = {mark - mark * slack, INFINITY};
    if (complete) marks.stop = mark + mark * slack;
    return marks;
}

/* ------------------------------------------------------------------------------------------------- the stages ---- */

/* Whether top-k, or top-p of the row, ends the prefix before this key. */
FS_CORE int cut_ends(const cut_view *c, const cut_prefix *prefix, uint64_t next, double stop) {
    const int32_t k = c->rules->top_k;
    return (k > 0 && prefix->count >= k && !cut_keeps_tie(c, prefix, next, FS_KEEP_TIES_TOP_K)) ||
           (prefix->mass >= stop && !cut_keeps_tie(c, prefix, next, FS_KEEP_TIES_TOP_P));
}

/* Down the list as far as a floor, top-k and top-p of the row let it; *sure is what top-p leaves for sure. Returns
 * whether nobody below can be let in: somebody was turned away, or even the bound would be. */
FS_CORE int cut_walk(const cut_view *c, double floor, cut_marks marks, cut_prefix *all, cut_prefix *sure) {
    const fs_list *list = c->list;
    cut_prefix p = {0, FS_KEY_NONE, 0.0};
    int ended = 0, doubted = 0;
    while (p.count < list->count) {
        const uint64_t key = cut_key(c, p.count);
        if (key <= list->bound) break; /* in front of it somebody may be missing */
        if (p.count > 0) {
            ended = cut_ends(c, &p, key, marks.stop);
            if (ended) break;
            if (p.mass >= marks.doubt && !doubted && !cut_keeps_tie(c, &p, key, FS_KEEP_TIES_TOP_P))
                doubted = 1, *sure = p;
        }
        const float number = cut_number(c, key);
        ended = (double)number < floor || number == -INFINITY;
        if (ended) break;
        cut_extend(c, &p, key);
    }
    if (!doubted) *sure = p;
    *all = p;
    if (ended) return 1;
    if (list->bound == FS_KEY_NONE) return 1;
    if ((double)cut_number(c, list->bound) < floor) return 1;
    return p.count > 0 && cut_ends(c, &p, list->bound, marks.stop);
}

/* Top-p of what is left, and of that what min-p leaves. Where not all that is left is known, its mass is a lower bound:
 * what is kept survives all the same, and is all that does if min-p has ended it. */
FS_CORE cut_prefix cut_top_p(const cut_view *c, const cut_prefix *left, float top_p, int *proven) {
    const double limit = (double)top_p * left->mass;
    cut_prefix p = {0, FS_KEY_NONE, 0.0};
    while (p.count < left->count) {
        const uint64_t key = cut_key(c, p.count);
        if (p.count > 0 && p.mass >= limit && !cut_keeps_tie(c, &p, key, FS_KEEP_TIES_TOP_P)) break;
        if ((double)cut_number(c, key) < c->min_p) {
            *proven = 1;
            break;
        }
        cut_extend(c, &p, key);
    }
    return p;
}

/* ------------------------------------------------------------------------------------------ what is drawn from ---- */

/* Without those whose l is -inf, where cuts have looked at y. */
FS_CORE void cut_drop_absent(const cut_view *c, cut_prefix *prefix) {
    const float inverse = c->rules->inverse_temperature;
    while (prefix->count > 0 && !(order_key_logit(prefix->last) * inverse > -INFINITY)) {
        prefix->count--;
        prefix->last = prefix->count ? cut_key(c, prefix->count - 1) : FS_KEY_NONE;
    }
}

/* log of the mass of exp(l) of a prefix. */
FS_CORE double cut_log_z(const cut_view *c, const cut_prefix *prefix) {
    const float inverse = c->rules->inverse_temperature;
    if (!prefix->count) return -INFINITY;
    double mass = prefix->mass;
    float origin = c->origin;
    int32_t unit = c->unit;
    if (inverse != c->rules->cut_scale) {
        const float first = order_key_logit(cut_key(c, 0)) * inverse;
        origin = cut_origin(first);
        unit = exp_split(first - origin).exponent;
        mass = cut_term(first - origin, unit);
        for (int32_t i = 1; i < prefix->count; i++)
            mass += cut_term(order_key_logit(cut_key(c, i)) * inverse - origin, unit);
    }
    return (double)origin + log(mass) + unit * 0.69314718055994530942;
}

/* -sum p log p of softmax(l) over the first `count` of a list that has been cut; 0 at least. */
FS_CORE double cut_entropy(fs_list *list, const fs_row_rules *rules, int32_t count) {
    const float inverse = rules->inverse_temperature;
    const double first = (double)(order_key_logit(list->key[list_at(list, 0)]) * inverse);
    double mass = 0.0, below = 0.0;
    for (int32_t i = 0; i < count; i++) {
        const double down = first - (double)(order_key_logit(list->key[list_at(list, i)]) * inverse);
        const double term = exp(-down);
        mass += term;
        below += term * down;
    }
    return log(mass) + below / mass;
}

/* The list must have been heapified and hold at least one entry; mass is that of the whole row, of what cuts look at
 * (top-p alone needs it), off by at most `slack` of it.
 *
 * That min-p comes last matters only to a top-p of what top-k left, whose mass is then more: everywhere else a floor
 * can be looked at on the way. */
FS_CORE fs_cut cut_list(fs_list *list, const fs_row_rules *rules, uint32_t flags, const fs_mass *mass, double slack) {
    const cut_view c = cut_view_of(list, rules, flags);
    const int of_row = rules_top_p_of_row(rules, flags), of_left = rules->top_p < 1.0f && !of_row;
    const double floor = of_left && (flags & FS_MIN_P_LAST) ? -INFINITY : c.min_p;
    /* All of the mass is at +inf: one token (and its ties) is the nucleus. */
    const float top_p = c.first == INFINITY ? 0.0f : rules->top_p;
    cut_marks marks = {INFINITY, INFINITY};
    if (of_row) marks = cut_marks_of_row(&c, top_p, mass, slack);

    cut_prefix all, sure;
    fs_cut cut;
    cut.proven = cut_walk(&c, floor, marks, &all, &sure);
    if (of_left) all = sure = cut_top_p(&c, &all, top_p, &cut.proven);
    if (rules->cut_scale != rules->inverse_temperature) {
        cut_drop_absent(&c, &all);
        cut_drop_absent(&c, &sure);
    }
    cut.possible = all.count;
    cut.survivors = sure.count;
    cut.last = sure.last;
    cut.log_z = cut_log_z(&c, &sure);
    return cut;
}

/* A key and a cut by top-p alone, in one look at a list in any order: 1 if it surely survives, -1 if it surely does
 * not, and so nobody below it, 0: who knows. Less mass is above it than top_p of the row's, or more, by more than
 * `slack` of it and what sums in another order may differ. Of a key that is not above the list's bound the bound is
 * tested. Where ties are kept -1 is no answer, and where cut_list looks at no mass there is none. */
FS_CORE int cut_test(const fs_list *list, const fs_row_rules *rules, const fs_mass *mass, double slack, uint64_t key) {
    const float scale = rules->cut_scale;
    const int32_t unit = 24 * mass->top; /* no term is far above it */
    const uint64_t tested = key > list->bound ? key : list->bound;
    uint64_t first = tested;
    double above = 0.0;
    if (mass_is_empty(mass) || !(fabsf(order_key_logit(tested) * scale) <= FS_EXP_EXACT)) return 0;
    for (int32_t i = 0; i < list->count; i++) {
        if (list->key[i] <= tested) continue;
        above += cut_term(order_key_logit(list->key[i]) * scale, unit);
        first = list->key[i] > first ? list->key[i] : first;
    }
    if (!(fabsf(order_key_logit(first) * scale) <= FS_EXP_EXACT)) return 0;
    const double mark = (double)rules->top_p * ldexp(mass_scaled(mass), -48), off = slack + 1e-9;
    if (key > list->bound && above < mark - mark * off) return 1;
    return above > mark + mark * off ? -1 : 0;
}

/* The same of a cut by min-p alone, which the largest logit decides. */
FS_CORE int cut_test_min_p(const fs_list *list, const fs_row_rules *rules, uint64_t key) {
    const float scale = rules->cut_scale;
    uint64_t first = key;
    for (int32_t i = 0; i < list->count; i++) first = list->key[i] > first ? list->key[i] : first;
    const double floor = (double)(order_key_logit(first) * scale) + rules->log_min_p;
    if ((double)(order_key_logit(key) * scale) >= floor) return list->bound < first;
    return list->bound == FS_KEY_NONE || (double)(order_key_logit(list->bound) * scale) < floor ? -1 : 0;
}

#endif
