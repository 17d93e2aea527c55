/* parts.h - parts as somebody would forge them: src/core/wire.h says where what lies. */
#ifndef FS_TESTS_PARTS_H
#define FS_TESTS_PARTS_H

#include "core/wire.h"

enum { PART_IDS = 16, PART_SUM = 24, PART_HEADER = 32 };

/* The checksum that these bytes ought to have. */
static inline void part_forge(char *part, size_t bytes) {
    uint32_t ids[2];
    memcpy(ids, part + PART_IDS, sizeof ids);
    uint64_t sum = wire_term_of_ids(ids[0], ids[1]);
    for (size_t at = PART_HEADER, i = 0; at < bytes; at += 8, i++) {
        uint64_t word = 0;
        memcpy(&word, part + at, bytes - at < 8 ? bytes - at : 8);
        sum += wire_term(word, i);
    }
    memcpy(part + PART_SUM, &sum, sizeof sum);
}

#endif
