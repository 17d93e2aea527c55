/* rule_info.c - fs_rule(): the table of rules (core/rule_table.h) for programs that read it. */
#include "check.h"

#include "core/rule_table.h"

#define FS_TYPE_OF_float FS_F32
#define FS_TYPE_OF_int32_t FS_I32

const fs_rule_info *fs_rule(int32_t index) {
#define FS_RULE_INFO(name, type, bit, off, used, least, most, status, about)                                           \
    {#name, about, FS_TYPE_OF_##type, bit, offsetof(fs_rules, name), off, least, most, status, 0},
    static const fs_rule_info rules[] = {FS_RULE_TABLE(FS_RULE_INFO)};
#undef FS_RULE_INFO
    return index >= 0 && index < (int32_t)(sizeof rules / sizeof rules[0]) ? &rules[index] : NULL;
}
