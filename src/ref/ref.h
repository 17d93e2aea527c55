/* ref.h - the truth: plain loops over stored logits, no tiles, no tricks. The oracle of every test.
 *
 *   ref_logits.c  one row's values and the life of its logits: x, y, l
 *   ref_screen.c  which of them a screen leaves
 *   ref_draw.c    the cut and the draw
 *   ref_result.c  what the caller gets to see
 *   ref_backend.c the loop over rows
 *
 * Nothing here shares code with the other backends but where numbers lie (core/format.h), the noise, the keys and the
 * table of rules, which are part of what a draw means. */
#ifndef FS_REF_REF_H
#define FS_REF_REF_H

#include "../backend.h"

#include "core/rule_table.h"

/* The values of one slot. */
typedef struct ref_values {
    uint64_t seed; /* the one to draw with */
    uint32_t substream;
#define FS_VALUE_MEMBER(name, type, bit, off, used, least, most, status, about) type name;
    FS_RULE_TABLE(FS_VALUE_MEMBER)
#undef FS_VALUE_MEMBER
} ref_values;

/* One row. Arrays are indexed by the head's row v, whose id is first + v. */
typedef struct ref_row {
    int64_t b;     /* row of the batch */
    int64_t size;  /* V */
    int64_t first; /* id of v = 0 */
    int64_t vocab; /* ids at or above it are padding */
    int64_t slot;
    uint64_t position;
    ref_values values; /* of the row's slot */
    uint32_t uses;     /* FS_RULE_... of the rules that these are */
    uint32_t status;

    float *dot;          /* [V] what x is made of */
    unsigned char *left; /* [V] 0: a screen has shown that the token is not drawn; NULL: there is none */
    float *x;            /* [V] raw */
    float *y;            /* [V] orders tokens */
    float *l;            /* [V] processed */
    int64_t *count;      /* [V] how often the slot has produced a token */
    uint64_t *order;     /* [there] order keys of the tokens with y > -inf, sorted, best first */
    uint64_t *scratch;   /* [V] keys to be sorted for one purpose */
    int64_t there;
    int64_t live; /* of them those with l > -inf, which come first */
    int64_t kept; /* the cut leaves order[0 .. kept) */

    int64_t *token; /* [n] drawn or given; fewer than n without replacement from a small support */
    double *score;  /* [n] */
} ref_row;

/* Reads the row's slot, position and values; sets the status bits of bad ones, of bad lists and of broken limits. */
void fs_ref_row_values(ref_row *row, const fs_batch *batch);
/* The row's edits: entries [*first, *last). A list that is bad is none. */
void fs_ref_row_edits(const ref_row *row, const fs_batch *batch, int64_t *first, int64_t *last);
/* Sets `left` by the head's screen and returns how many tokens that is. Uses the row's other arrays. */
int64_t fs_ref_row_screen(ref_row *row, const fs_head *head, const fs_batch *batch);
/* Fills dot, where `left` says so. */
void fs_ref_row_dots(ref_row *row, const fs_head *head, const fs_batch *batch);
/* Fills x, y, l, order and live from dot. */
void fs_ref_row_logits(ref_row *row, const fs_head *head, const fs_batch *batch);
/* Sets kept. */
void fs_ref_row_cut(ref_row *row, const fs_batch *batch);
/* What a token competes with: l + noise, or y alone in a greedy row. */
double fs_ref_row_score(const ref_row *row, const fs_batch *batch, int32_t sample, uint32_t token);
/* Fills token and score. */
void fs_ref_row_draw(ref_row *row, const fs_batch *batch);
/* Writes everything the caller asked for. */
void fs_ref_row_result(ref_row *row, const fs_batch *batch, const fs_result *result);

/* Sorts keys, largest first. */
void fs_ref_sort_keys(uint64_t *keys, int64_t count);
/* log of the sum of exp(l[v]); -inf for none, +inf where one is +inf. */
double fs_ref_log_sum(const float *l, int64_t count);

#endif
