/* group.h - the paper's hierarchical samplers: a group is known by its mass and an exact draw from it, and a group is chosen
 * with probability proportional to its mass. Exact in law; which token comes out depends on the partition. */
#ifndef FS_CORE_GROUP_H
#define FS_CORE_GROUP_H

#include "summary.h"

typedef struct fs_group {
    fs_mass mass;
    fs_winner winner;
} fs_group;

/* Greedy rows have no distribution to factor, nor have rows with a logit of +inf: the largest key wins. */
FS_CORE fs_winner group_choose_largest(const fs_group *group, int64_t count, int64_t stride) {
    fs_winner best = {FS_KEY_NONE, 0.0f, 0.0f};
    for (int64_t k = 0; k < count; k++)
        if (group[k * stride].winner.key > best.key) best = group[k * stride].winner;
    return best;
}

FS_CORE int group_is_a_law(const fs_rules *rules, uint32_t flags) {
    return !rules->greedy && !(flags & FS_ROW_INF);
}

/* Masses that are too far out tell no group from another. The largest key is a draw from all of them. */
FS_CORE int group_masses_are_far(const fs_group *group, int64_t count, int64_t stride) {
    fs_mass all = mass_empty();
    for (int64_t k = 0; k < count; k++) mass_merge(&all, &group[k * stride].mass);
    return mass_is_far(&all);
}

/* B.2 and, over ranks, B.4: argmax of L_k plus a Gumbel value of the group's own. Groups first .. first + count - 1, `stride`
 * records apart; groups without mass are passed over. */
FS_CORE fs_winner group_choose_parallel(const fs_group *group, int64_t count, int64_t stride, int64_t first,
                                        fs_noise noise, uint32_t domain) {
    fs_winner best = {FS_KEY_NONE, 0.0f, 0.0f};
    uint64_t best_key = FS_KEY_NONE;
    if (group_masses_are_far(group, count, stride)) return group_choose_largest(group, count, stride);
    for (int64_t k = 0; k < count; k++) {
        const fs_group *g = &group[k * stride];
        if (mass_is_empty(&g->mass)) continue;
        double score = mass_log(&g->mass) + noise_gumbel_of(noise, (uint32_t)(first + k), domain);
        uint64_t key = score_key(score, (uint32_t)(first + k));
        if (key > best_key) best_key = key, best = g->winner;
    }
    return best;
}

/* B.3: groups in order, each replaces the draw so far with probability exp(L_k - L_new). */
FS_CORE fs_winner group_choose_online(const fs_group *group, int64_t count, int64_t stride, int64_t first,
                                      fs_noise noise) {
    fs_winner best = {FS_KEY_NONE, 0.0f, 0.0f};
    fs_mass running = mass_empty();
    if (group_masses_are_far(group, count, stride)) return group_choose_largest(group, count, stride);
    for (int64_t k = 0; k < count; k++) {
        const fs_group *g = &group[k * stride];
        if (mass_is_empty(&g->mass)) continue;
        int replace = mass_is_empty(&running);
        mass_merge(&running, &g->mass);
        if (!replace) {
            double u = noise_unit_of(noise, (uint32_t)(first + k), FS_DOMAIN_ONLINE);
            replace = u < exp(mass_log(&g->mass) - mass_log(&running));
        }
        if (replace) best = g->winner;
    }
    return best;
}

#endif
