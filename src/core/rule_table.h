/* rule_table.h - every rule with a value per slot, one row each. What reads it: the checks of structs and pointers, the
 * rules of a row (rules.h), the reference, CUDA's loads, fs_rule() and with that the command line and Python. A new
 * rule is a member of fs_rules, a row here, and the code that applies it.
 *
 *   RULE(name, type, bit, off, used, least, most, status, about)
 *
 * name    the member of fs_rules; its type there is fs_float_rule or fs_int_rule, and `type` that of a value
 * bit     FS_RULE_..., 0 for none; several rules may share one
 * off     the value that does nothing: the default
 * used    whether a valid value v does something, in a vocabulary of `vocab` tokens
 * least, most   the valid values, both included; a NaN is never valid
 * status  FS_ROW_... of a row with another value
 * about   one line for help texts */
#ifndef FS_CORE_RULE_TABLE_H
#define FS_CORE_RULE_TABLE_H

#include <float.h>

/* A top_p above 1 by no more than this is a rounded 1. */
#define FS_TOP_P_MOST 1.00001f
/* The least float above 0. */
#define FS_FLOAT_LEAST 1.40129846e-45f

/* Its own macro, since a draw needs it before any other rule is read (fs_draw_source). */
#define FS_TEMPERATURE_RULE(RULE)                                                                                      \
    RULE(temperature, float, 0u, 1.0f, v != 1.0f, 0.0f, FLT_MAX, FS_ROW_BAD_TEMPERATURE,                               \
         "divides the logits; 0 is greedy")

#define FS_OTHER_RULES(RULE)                                                                                           \
    RULE(top_k, int32_t, FS_RULE_TOP_K, 0, v > 0 && v < vocab, INT32_MIN, INT32_MAX, 0u,                               \
         "keeps the k tokens with the largest logits; 0 is off")                                                       \
    RULE(top_p, float, FS_RULE_TOP_P, 1.0f, v < 1.0f, 0.0f, FS_TOP_P_MOST, FS_ROW_BAD_TOP_P,                           \
         "keeps the largest tokens that together have probability p; 1 is off")                                        \
    RULE(min_p, float, FS_RULE_MIN_P, 0.0f, v > 0.0f, 0.0f, 1.0f, FS_ROW_BAD_MIN_P,                                    \
         "keeps tokens with at least this share of the largest probability; 0 is off")                                 \
    RULE(repetition, float, FS_RULE_PENALTIES, 1.0f, v != 1.0f, FS_FLOAT_LEAST, FLT_MAX, FS_ROW_BAD_PENALTY,           \
         "divides positive logits of seen tokens, multiplies negative ones; 1 is off")                                 \
    RULE(frequency, float, FS_RULE_PENALTIES, 0.0f, v != 0.0f, -FLT_MAX, FLT_MAX, FS_ROW_BAD_PENALTY,                  \
         "subtracts this times a token's count from its logit; 0 is off")                                              \
    RULE(presence, float, FS_RULE_PENALTIES, 0.0f, v != 0.0f, -FLT_MAX, FLT_MAX, FS_ROW_BAD_PENALTY,                   \
         "subtracts this from the logits of tokens that occurred; 0 is off")

#define FS_RULE_TABLE(RULE) FS_TEMPERATURE_RULE(RULE) FS_OTHER_RULES(RULE)

#endif
