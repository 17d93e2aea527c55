/* summary.h - everything that crosses a boundary between blocks, threads, CTAs or ranks, and the one way to merge
 * it. */
#ifndef FS_CORE_SUMMARY_H
#define FS_CORE_SUMMARY_H

#include "entropy.h"
#include "key.h"
#include "list.h"
#include "rules.h"

/* What a call needs of each row, decided once from (head, batch, result). Rows that need less leave the rest empty. */
typedef struct fs_needs {
    int32_t samples;      /* n winners per row; 0 in score mode */
    int32_t ordered;      /* without replacement: the n winners are the n largest keys */
    int32_t mass;         /* mass of exp(l) */
    int32_t mass_to_cut;  /* that mass only decides cuts, of which nothing but tokens is asked */
    int32_t rough;        /* it may be off by mass_slack: set by a backend that can make a second pass without */
    int32_t raw_mass;     /* mass of exp(x) */
    int32_t cut_mass;     /* mass of exp(y), where top-p looks at that of the whole row before temperature */
    int32_t winner_logit; /* the drawn token's x and y */
    int32_t max;          /* largest x and y; on the wire only if asked */
    int32_t bounded;      /* log Z is not below the largest logit, which max then brings */
    int32_t edited;       /* y may differ from x */
    int32_t keep;         /* entries the list by y must be able to prove; 0: no list */
    int32_t keep_raw;     /* likewise the list by x, which only edited rows need */
    int32_t raw_column;   /* the list by y carries x */
    int32_t rank_depth;   /* ranks up to here are exact in one pass */
    int64_t watched;      /* watched tokens of all rows together, given ones included */
    int32_t entropy;      /* of the logits that the result speaks of; never of a part */
} fs_needs;

/* One sample's best so far. x and y are those of the key's token. */
typedef struct fs_winner {
    uint64_t key;
    float x, y;
} fs_winner;

/* FS_KEY_NONE is no token's key, and a score of -inf is that of a token that is absent. */
FS_CORE int winner_is_token(const fs_winner *winner) {
    return winner->key >> 24 > (uint64_t)0x000FFFFFFFFFFFFF >> 24; /* the image of -inf */
}

/* Logits of a watched token; NaN until its shard has seen it. */
typedef struct fs_watch {
    float x, y;
} fs_watch;

typedef struct fs_summary {
    uint32_t flags; /* FS_ROW_NAN, FS_ROW_INF */
    float max_x, max_y;
    fs_mass mass, raw_mass, cut_mass;
    fs_winner *winner;   /* [samples] */
    fs_list list;        /* by y */
    fs_list raw_list;    /* by x */
    fs_watch *watch;     /* [watched tokens of this row] */
    fs_entropy *entropy; /* NULL: none is asked for, or the list of survivors gives it */
} fs_summary;

/* Offers a scored token to winners kept as the n largest keys, descending. */
FS_CORE void winners_insert(fs_winner *winner, int32_t n, fs_winner offer) {
    int32_t i = n;
    if (offer.key <= winner[n - 1].key) return;
    while (i > 0 && winner[i - 1].key < offer.key) {
        if (i < n) winner[i] = winner[i - 1];
        i--;
    }
    winner[i] = offer;
}

/* The one merge. Associative, and commutative for tokens and masses; `from` is not changed. */
FS_CORE void summary_merge(const fs_needs *needs, fs_summary *into, const fs_summary *from, int64_t watched) {
    into->flags |= from->flags;
    if (from->max_x > into->max_x) into->max_x = from->max_x;
    if (from->max_y > into->max_y) into->max_y = from->max_y;
    mass_merge(&into->mass, &from->mass);
    mass_merge(&into->raw_mass, &from->raw_mass);
    mass_merge(&into->cut_mass, &from->cut_mass);
    for (int32_t i = 0; i < needs->samples; i++) {
        if (needs->ordered) winners_insert(into->winner, needs->samples, from->winner[i]);
        else if (from->winner[i].key > into->winner[i].key) into->winner[i] = from->winner[i];
    }
    if (needs->keep) list_merge(&into->list, &from->list);
    if (needs->keep_raw) list_merge(&into->raw_list, &from->raw_list);
    for (int64_t i = 0; i < watched; i++)
        if (from->watch[i].y == from->watch[i].y) into->watch[i] = from->watch[i];
#if !defined(__CUDA_ARCH__) /* no kernel computes entropies */
    if (needs->entropy && into->entropy) entropy_merge(into->entropy, from->entropy);
#endif
}

#endif
