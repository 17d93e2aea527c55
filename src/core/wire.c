#include "wire.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t fs_wire_hash(const fs_call *call) {
    const fs_agreement agreement = fs_agreement_of(call);
    return agreement_hash(&agreement);
}

int fs_wire_is_keys(const fs_call *call) {
    const fs_needs *needs = &call->needs;
    return needs->samples && !needs->ordered && !needs->watched && wire_row_bytes(needs) == (size_t)needs->samples * 8;
}

/* -------------------------------------------------------------------------------------------------- the header ---- */

void fs_wire_begin(const fs_call *call, void *part) {
    const fs_wire_header header = {FS_WIRE_MAGIC, (uint32_t)wire_row_bytes(&call->needs), fs_wire_hash(call), 0, 0, 0};
    memset(part, 0, wire_rows_at(call));
    memcpy(part, &header, sizeof header);
}

static uint64_t sum_of(const fs_call *call, const void *part, uint32_t first, uint32_t end) {
    const size_t bytes = wire_size(call);
    uint64_t sum = wire_term_of_ids(first, end);
    for (size_t i = 0; i < wire_terms(bytes); i++) sum += wire_term_at(part, bytes, i);
    return sum;
}

void fs_wire_seal(const fs_call *call, void *part) {
    fs_wire_header header;
    int64_t shard[2];
    wire_shard(call->head, call->vocab, shard);
    memcpy(&header, part, sizeof header);
    header.first = (uint32_t)shard[0];
    header.end = (uint32_t)shard[1];
    header.sum = sum_of(call, part, header.first, header.end);
    memcpy(part, &header, sizeof header);
}

/* The header is looked at first: only a part of this call has the size that is then read. */
const char *fs_wire_check(const fs_call *call, uint64_t hash, const void *part, int64_t shard[2]) {
    fs_wire_header header;
    memcpy(&header, part, sizeof header);
    if (header.magic != FS_WIRE_MAGIC) return "it is not a summary of this library's version";
    if (header.row_bytes != (uint32_t)wire_row_bytes(&call->needs))
        return "its rows have another size: batch and result must be the same on every rank";
    if (header.hash != hash)
        return "it was made with another batch, result, seed, position, rule or head (vocab, kind, dim, round, "
               "scales, softcap)";
    if (header.sum != sum_of(call, part, header.first, header.end) || header.first > header.end ||
        header.end > (uint64_t)call->vocab)
        return "its checksum is not that of its bytes, which have changed on their way";
    shard[0] = header.first, shard[1] = header.end;
    return NULL;
}

static int by_first(const void *left, const void *right) {
    const int64_t *a = left, *b = right;
    return a[0] != b[0] ? (a[0] > b[0]) - (a[0] < b[0]) : (a[1] > b[1]) - (a[1] < b[1]);
}

/* Shards may not overlap, which would count tokens twice, nor leave tokens out: a wrong first_token does one or the
 * other. */
int fs_shards_are_whole(int64_t (*shard)[2], int32_t count, int64_t vocab, const char *holder, char *why, size_t size) {
    int64_t end = 0;
    qsort(shard, (size_t)count, sizeof *shard, by_first);
    for (int32_t i = 0; i <= count; i++) {
        const int64_t first = i < count ? shard[i][0] : vocab;
        if (i < count && first == shard[i][1]) continue;
        if (first < end)
            snprintf(why, size,
                     "token %lld belongs to two %ss: a shard is there twice, or its head.first_token or rows is wrong",
                     (long long)first, holder);
        if (first > end)
            snprintf(
                why, size,
                "tokens %lld to %lld belong to no %s: a shard is missing, or its head.first_token or rows is wrong",
                (long long)end, (long long)first - 1, holder);
        if (first != end) return 0;
        if (i < count) end = shard[i][1];
    }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------- rows ---- */

void fs_wire_put(const fs_call *call, int64_t b, const fs_summary *summary, void *part) {
    ((unsigned char *)part)[FS_WIRE_HEADER + b / 4] |= (unsigned char)(wire_bits(summary) << 2 * (b % 4));
    wire_put_row(call, b, summary, part);
}

void fs_wire_get(const fs_call *call, int64_t b, const void *part, fs_summary *summary) {
    wire_get_row(call, b, &call->rules[b], part, summary);
}
