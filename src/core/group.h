/* group.h - the paper's hierarchical samplers: a group is known by its mass and an exact draw from it, and a group is
 * chosen with probability proportional to its mass. Exact in law; which token comes out depends on the partition. */
#ifndef FS_CORE_GROUP_H
#define FS_CORE_GROUP_H

#include "summary.h"

typedef struct fs_group {
    fs_mass mass;
    fs_winner winner;
} fs_group;

/* What groups have come to so far, one after the other. Those of several threads, each a stretch of the groups, are
 * told apart by `best` alone: the largest has the draw. */
typedef struct fs_choice {
    fs_mass mass;      /* of all groups so far; B.3: of those before this thread's too */
    uint64_t best;     /* B.2: score key of the chosen group; B.3: 1 + its index; 0: none yet */
    fs_winner chosen;  /* its draw */
    fs_winner largest; /* the draw with the largest key */
} fs_choice;

FS_CORE fs_choice choice_none(void) {
    const fs_winner none = {FS_KEY_NONE, 0.0f, 0.0f};
    const fs_choice choice = {mass_empty(), 0, none, none};
    return choice;
}

/* B.2 and, over ranks, B.4: argmax of L_k plus a Gumbel value of the group's own. */
FS_CORE void choice_add_parallel(fs_choice *choice, const fs_group *group, uint32_t index, fs_noise noise,
                                 uint32_t domain) {
    if (group->winner.key > choice->largest.key) choice->largest = group->winner;
    if (mass_is_empty(&group->mass)) return;
    const double score = mass_log(&group->mass) + noise_gumbel_of(noise, index, domain);
    const uint64_t key = score_key(score, index);
    mass_merge(&choice->mass, &group->mass);
    if (key > choice->best) choice->best = key, choice->chosen = group->winner;
}

/* B.3: groups in order, each replaces the draw so far with probability exp(L_k - L_new). */
FS_CORE void choice_add_online(fs_choice *choice, const fs_group *group, uint32_t index, fs_noise noise) {
    if (group->winner.key > choice->largest.key) choice->largest = group->winner;
    if (mass_is_empty(&group->mass)) return;
    int replace = mass_is_empty(&choice->mass);
    mass_merge(&choice->mass, &group->mass);
    if (!replace) {
        const double u = noise_unit_of(noise, index, FS_DOMAIN_ONLINE);
        replace = u < exp(mass_log(&group->mass) - mass_log(&choice->mass));
    }
    if (replace) choice->best = (uint64_t)index + 1, choice->chosen = group->winner;
}

/* Of one device's groups, in a mode that draws by groups. */
FS_CORE void choice_add(fs_choice *choice, const fs_group *group, uint32_t index, int32_t mode, fs_noise noise) {
    if (mode == FS_MODE_GROUP_ONLINE) choice_add_online(choice, group, index, noise);
    else choice_add_parallel(choice, group, index, noise, FS_DOMAIN_GROUP);
}

/* Greedy rows have no distribution to factor, nor have rows with a logit of +inf. */
FS_CORE int group_is_a_law(const fs_row_rules *rules, uint32_t flags) {
    return !rules->greedy && !(flags & FS_ROW_INF);
}

/* Where there is no law the largest key wins; and where masses are too far out to tell one group from another: it is a
 * draw from all of them. */
FS_CORE fs_winner choice_winner(const fs_choice *choice, int is_a_law) {
    return is_a_law && !mass_is_far(&choice->mass) ? choice->chosen : choice->largest;
}

#endif
