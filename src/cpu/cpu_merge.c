/* cpu_merge.c - rows of a pass, merged over its tasks. */
#include "cpu_lists.h"
#include "cpu_pass.h"

/* Chooses the group of a row; the row's mass is the sum of theirs. */
static void choose_group(const fs_pass *pass, int32_t a) {
    const fs_batch *batch = pass->call->batch;
    const int64_t first = pass->call->head->first_token / batch->group_size;
    const fs_group *group = pass->group + a;
    const fs_noise noise = pass->active[a].noise[0];
    fs_summary *summary = &pass->summary[a];
    fs_choice choice = choice_none();
    for (int64_t k = 0; k < pass->groups; k++)
        choice_add(&choice, &group[k * pass->rows], (uint32_t)(first + k), batch->mode, noise);
    summary->mass = choice.mass;
    summary->winner[0] = choice_winner(&choice, group_is_a_law(&pass->call->rules[pass->active[a].b], summary->flags));
}

/* The bound that all of a row's mass gives its list. */
static void bound_merged(const fs_pass *pass, int64_t a) {
    const fs_active_row *active = &pass->active[a];
    fs_mass mass = mass_empty();
    for (int32_t t = 0; t < pass->cpu->tasks; t++) mass_merge(&mass, &pass->summary[(int64_t)t * pass->rows + a].mass);
    fs_lists_raise(&pass->summary[a].list, pass->cpu->isa->scan,
                   rows_bound(active, &pass->call->rules[active->b], mass_log(&mass)));
}

/* And the bound that its largest logit gives it. */
static void bound_near(const fs_pass *pass, int64_t a) {
    const fs_active_row *active = &pass->active[a];
    float largest = -INFINITY;
    for (int32_t t = 0; t < pass->cpu->tasks; t++)
        largest = fmaxf(largest, pass->summary[(int64_t)t * pass->rows + a].max_y);
    fs_lists_raise(&pass->summary[a].list, pass->cpu->isa->scan,
                   rows_near(active, &pass->call->rules[active->b], largest));
}

/* And the largest that any task has, or has shared, which merging would give it in the end: what is not above it is
 * looked at once. */
static void bound_shared(const fs_pass *pass, int64_t a) {
    uint64_t bound = shared_load(&pass->shared.bound[a]);
    for (int32_t t = 0; t < pass->cpu->tasks; t++) {
        const uint64_t other = pass->summary[(int64_t)t * pass->rows + a].list.bound;
        bound = other > bound ? other : bound;
    }
    fs_lists_raise(&pass->summary[a].list, pass->cpu->isa->scan, bound);
}

int32_t fs_pass_merged(const fs_pass *pass) {
    const int64_t a = atomic_fetch_add(pass->next, 1);
    if (a >= pass->rows) return -1;
    if (pass->filter && pass->active[a].listed) bound_shared(pass, a);
    if (pass->active[a].rare > -INFINITY) bound_merged(pass, a);
    if (pass->active[a].near > -INFINITY) bound_near(pass, a);
    for (int32_t t = 1; t < pass->cpu->tasks; t++)
        summary_merge(&pass->call->needs, &pass->summary[a], &pass->summary[(int64_t)t * pass->rows + a],
                      pass->active[a].watches);
    if (pass->groups) choose_group(pass, (int32_t)a);
    return (int32_t)a;
}
