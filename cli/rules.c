/* rules.c - see rules.h. */
#include "rules.h"
#include "arrays.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

/* The member of a rule, as the one or the other. */
static fs_float_rule *float_rule(const fs_rules *rules, const fs_rule_info *info) {
    return (fs_float_rule *)((char *)(uintptr_t)rules + info->offset);
}

static fs_int_rule *int_rule(const fs_rules *rules, const fs_rule_info *info) {
    return (fs_int_rule *)((char *)(uintptr_t)rules + info->offset);
}

double rule_value(const fs_rules *rules, int32_t i) {
    const fs_rule_info *info = fs_rule(i);
    return info->dtype == FS_I32 ? (double)int_rule(rules, info)->value : (double)float_rule(rules, info)->value;
}

static double element(const fs_rule_info *info, const void *values, int64_t i) {
    return info->dtype == FS_I32 ? (double)((const int32_t *)values)[i] : (double)((const float *)values)[i];
}

/* Whether there are tokens that a penalty can meet: repetition looks at seen ones too. */
static void check_penalty(const fs_rule_info *info, const char *option, double value, counted_tokens given) {
    const int by_seen = strcmp(info->name, "repetition") == 0;
    if (info->rule != FS_RULE_PENALTIES || value == info->off || given.counts || (given.seen && by_seen)) return;
    die(END_USAGE, "--%s %g does nothing without %s", option, value,
        by_seen ? "--seen, --counts or --count-list" : "--counts or --count-list");
}

/* The values that a rule takes, in words. */
static const char *text_range(const fs_rule_info *info) {
    static char text[64];
    if (info->most < (double)FLT_MAX) snprintf(text, sizeof text, "a number from %g to %.4g", info->least, info->most);
    else if (info->least < 0) snprintf(text, sizeof text, "a finite number");
    else snprintf(text, sizeof text, info->least > 0 ? "a finite number above 0" : "a finite number, 0 or more");
    return text;
}

static void read_rule(const fs_rule_info *info, const char *text, int64_t slots, counted_tokens given,
                      fs_rules *rules) {
    const char *option = option_of_rule(info);
    const column c = read_column(option, text, info->dtype == FS_I32 ? COLUMN_I32 : COLUMN_F32);
    if (!c.scalar && c.count != slots)
        die(*text == '@' ? END_RUNTIME : END_USAGE, slots ? "--%s: %lld values for %lld slots" : "--%s: one number",
            option, (long long)c.count, (long long)slots);
    for (int64_t i = 0; i < (c.scalar ? 1 : c.count); i++) {
        const double value = element(info, c.data, i);
        if (!(value >= info->least && value <= info->most))
            die(END_USAGE, "--%s %g: expected %s", option, value, text_range(info));
        check_penalty(info, option, value, given);
    }
    if (info->dtype == FS_I32) {
        if (c.scalar) int_rule(rules, info)->value = *(const int32_t *)c.data;
        else int_rule(rules, info)->per_slot = c.data;
        return;
    }
    fs_float_rule *rule = float_rule(rules, info);
    if (!c.scalar) rule->per_slot = c.data;
    else rule->value = *(const float *)c.data;
    /* C takes the scalar 0 of a rule that is off at another value for that one: the least share above it keeps the same
     * single token. */
    if (c.scalar && rule->value == 0 && info->rule && info->off != 0) rule->value = FLT_MIN;
}

fs_rules read_rules(const rule_texts *texts, int64_t slots, counted_tokens given) {
    fs_rules rules = fs_rules_default();
    for (int32_t i = 0; fs_rule(i); i++)
        if (texts->text[i]) read_rule(fs_rule(i), texts->text[i], slots, given, &rules);
    return rules;
}

const char *text_rules(const fs_rules *rules) {
    static char text[512];
    size_t length = 0;
    for (int32_t i = 0; fs_rule(i) && length < sizeof text - 1; i++) {
        const double value = rule_value(rules, i);
        if (i > 0 && value == fs_rule(i)->off) continue;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s %g", length ? ", " : "",
                                   option_of_rule(fs_rule(i)), value);
    }
    return text;
}
