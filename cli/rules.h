/* rules.h - an option for each rule that the library has (fs_rule), and the rules of a call that they make. */
#ifndef FS_CLI_RULES_H
#define FS_CLI_RULES_H

#include "cli.h"
#include "options.h"

#define RULES_MOST 32

/* The values of rule i as they were given; NULL where they were not. */
typedef struct rule_texts {
    const char *text[RULES_MOST];
} rule_texts;

/* Tokens that penalties look at; what is said where there are none. */
typedef struct counted_tokens {
    int seen, counts;
} counted_tokens;

/* The rules: one number for all, or a list or file with one value for each of `slots`; 0 slots take numbers alone. */
fs_rules read_rules(const rule_texts *texts, int64_t slots, counted_tokens given);
/* The rule i of these as a number, where it has no array. */
double rule_value(const fs_rules *rules, int32_t i);
/* "temperature 0.8, top-p 0.95": those that are not off, and temperature. */
const char *text_rules(const fs_rules *rules);

#endif
