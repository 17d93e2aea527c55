/* verify_rules.c - the table of rules that `flashsample verify` draws. */
#include "ranks.h"
#include "rules.h"
#include "verify.h"

#define RULE(n, with, T, ...)                                                                                          \
    { .name = n, .note = with, .rules.size = sizeof(fs_rules), .rules.temperature.value = T, __VA_ARGS__ }

#define PENALTIES                                                                                                      \
    .penalised = 1, .rules.repetition.value = 1.3f, .rules.frequency.value = 0.25f, .rules.presence.value = 0.5f

const verify_rule verify_rules[] = {
    RULE("plain", "T=1", 1, .legs = LEG_BOTH),
    RULE("greedy", "T=0", 0, .legs = LEG_BOTH),
    RULE("temperature", "T=0.6", 0.6f, .legs = LEG_BOTH),
    RULE("temperature", "T=2.5", 2.5f, .legs = LEG_BOTH),
    RULE("soft-cap", "cap 8", 1, .legs = LEG_BOTH, .softcap = 8),
    RULE("top-k", "k=40, T=1.5", 1.5f, .legs = LEG_BOTH, .rules.top_k.value = 40),
    RULE("top-p", "p=0.9", 1, .legs = LEG_BOTH, .rules.top_p.value = 0.9f),
    RULE("top-p", "p=0.97, T=1.5", 1.5f, .legs = LEG_BOTH, .rules.top_p.value = 0.97f),
    RULE("min-p", "0.02", 1, .legs = LEG_BOTH, .rules.min_p.value = 0.02f),
    RULE("top-k, top-p", "k=60, p=0.8", 1.5f, .legs = LEG_BOTH, .rules.top_k.value = 60, .rules.top_p.value = 0.8f),
    RULE("joint", "k=60, p=0.8", 1.5f, .legs = LEG_BOTH, .rules.top_k.value = 60, .rules.top_p.value = 0.8f,
         .joint = 1),
    RULE("all cuts", "all three", 1.5f, .legs = LEG_BOTH, .rules.top_k.value = 80, .rules.top_p.value = 0.9f,
         .rules.min_p.value = 0.01f),
    RULE("mask", "1 in 3 banned", 1, .legs = LEG_BOTH, .masked = 1),
    RULE("bias", "5 edits, 2 bans", 1, .legs = LEG_BOTH, .edited = 1),
    RULE("penalties", "all three", 1, .legs = LEG_BOTH, PENALTIES),
    RULE("everything", "mask to top-p", 1.2f, .legs = LEG_BOTH, .rules.top_k.value = 200, .rules.top_p.value = 0.9f,
         .masked = 1, .edited = 1, PENALTIES),
    RULE("no replacement", "ordered pairs", 1, .legs = LEG_BOTH, .count = COUNT_SAMPLES,
         .mode = FS_MODE_WITHOUT_REPLACEMENT),
    RULE("n samples", "pairs", 1, .legs = LEG_BOTH, .count = COUNT_SAMPLES),
    RULE("positions", "pairs", 1, .legs = LEG_STORED, .count = COUNT_POSITIONS),
    RULE("rows", "pairs", 1, .legs = LEG_STORED, .count = COUNT_ROWS),
    RULE("group parallel", "B.2", 1, .legs = LEG_BOTH, .mode = FS_MODE_GROUP_PARALLEL),
    RULE("group online", "B.3", 1, .legs = LEG_BOTH, .mode = FS_MODE_GROUP_ONLINE),
    RULE("3 shards", "merged", 1, .legs = LEG_BOTH, .shards = 3),
    RULE("3 shards, top-p", "merged", 1, .legs = LEG_BOTH, .rules.top_p.value = 0.9f, .shards = 3),
    RULE("3 shards, groups", "B.4", 1, .legs = LEG_BOTH, .mode = FS_MODE_GROUP_PARALLEL, .shards = 3),
    RULE("flat tail", "mass 0.001", 1, .legs = LEG_STORED, .count = COUNT_TAIL, .scarce = 10),
    RULE("fast noise", "T=1", 1, .legs = LEG_BOTH, .noise = FS_NOISE_FAST, .reported = 1),
    RULE("fast noise, tail", "mass 0.001", 1, .legs = LEG_STORED, .noise = FS_NOISE_FAST, .reported = 1,
         .count = COUNT_TAIL, .scarce = 20),
};
const int verify_rule_count = (int)(sizeof verify_rules / sizeof verify_rules[0]);

/* Whether temperature is all that the rule asks for. */
static int is_plain(const verify_rule *rule) {
    for (int32_t i = 1; fs_rule(i); i++) {
        const double value = rule_value(&rule->rules, i);
        if (value != 0 && value != fs_rule(i)->off) return 0;
    }
    return !rule->masked && !rule->edited;
}

int verify_runs(const verify_rule *rule, plant_kind plant) {
    if (plant == PLANT_SAME_NOISE) /* rules that one score per row decides */
        return rule->mode == FS_MODE_SAMPLE && !rule->shards && !rule->noise && rule->rules.temperature.value > 0 &&
               is_plain(rule);
    if (plant == PLANT_SCREEN && rule->shards) return 0; /* a slice of it is compared with W, and refused */
    return !ranks_open() || (rule->mode != FS_MODE_GROUP_ONLINE && !rule->shards);
}

int64_t verify_draws(const verify_rule *rule, int64_t draws) {
    return rule->scarce ? draws / rule->scarce + 1 : draws;
}
