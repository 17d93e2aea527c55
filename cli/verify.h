/* verify.h - the tests of `flashsample verify`: a table of rules, each drawn on a scene and counted. */
#ifndef FS_CLI_VERIFY_H
#define FS_CLI_VERIFY_H

#include "flashsampling_screens.h"
#include "stats.h"

typedef enum {
    COUNT_TOKENS,    /* every token drawn */
    COUNT_SAMPLES,   /* pairs (sample 0, sample 1) of a row */
    COUNT_POSITIONS, /* pairs (position 2k, position 2k+1) of a seed */
    COUNT_ROWS,      /* pairs (row 2k, row 2k+1) of a call with one scalar seed */
    COUNT_TAIL       /* whether the token is not the head */
} count_kind;

typedef enum { LEG_STORED = 1, LEG_FUSED = 2, LEG_BOTH = 3 } leg_kind;

typedef struct verify_rule {
    const char *name;
    const char *note; /* the parameters, for a person */
    int legs;
    count_kind count;
    int reported;   /* shown, not judged */
    int mode;       /* FS_MODE_... */
    int noise;      /* FS_NOISE_... */
    fs_rules rules; /* values for all rows; 0 is off */
    float softcap;
    int joint, masked, edited, penalised;
    int shards; /* 0 = one call */
    int scarce; /* draw this many times less: a draw is dear */
} verify_rule;

extern const verify_rule verify_rules[];
extern const int verify_rule_count;

typedef struct outcome {
    fit fit;
    int same_tokens;             /* shards: equal to one call, token by token; 1 where that is not asked */
    int same_as_w;               /* with a screen: equal to the draws from W, token by token; 1 without one */
    int64_t rows, screened_rows; /* rows that were drawn, and those of them that the screen decided */
} outcome;

/* Mistakes to draw with, to see that they are caught. */
typedef enum {
    PLANT_NOTHING,
    PLANT_TEMPERATURE,
    PLANT_OFF_BY_ONE,
    PLANT_REPEAT,
    PLANT_SAME_NOISE,
    PLANT_SCREEN
} plant_kind;

typedef struct verify_run {
    int64_t draws;
    uint64_t seed;
    uint32_t substream; /* names the noise, so that no two tests share any */
    plant_kind plant;
    int screen;                  /* FS_SCREEN_..., or SCREEN_NONE */
    void (*tick)(int64_t draws); /* called after every few draws */
} verify_run;

/* Makes the scenes, once; weights and hidden states have this dtype, `screened` ones more tokens and columns. */
void verify_prepare(int screened, int dtype);
/* Draws one rule on one leg. */
outcome verify_draw(fs_context *context, const verify_rule *rule, leg_kind leg, const verify_run *run);
/* Whether it can be drawn here: over ranks not every rule can, or is about something else. */
int verify_runs(const verify_rule *rule, plant_kind plant);
/* Draws it makes when asked for `draws`. */
int64_t verify_draws(const verify_rule *rule, int64_t draws);

#endif
