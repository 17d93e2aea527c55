/* wire.h - a summary as bytes: what fs_partial writes and fs_merge reads, on every device. docs/explain/noise.md and
 * the public header describe it.
 *
 *   part    header 32 | two bits per row (NaN seen, +inf seen), in 64-bit words | B rows of equal size
 *   header  u32 magic, u32 bytes per row, u64 hash of what the call was asked,
 *           u32 first id and u32 end of the shard, without its padding, u64 checksum of these two and of what follows
 *   row     samples x (u64 key [, f32 y [, f32 x]]) | mass 20 | raw mass 20 | cut mass 20 | max y [, max x] | lists |
 *           watched tokens
 * A mass is packed by mass_pack. All rows are equally long but for their watched tokens, which come last. Everything
 * lies at a multiple of four bytes. */
#ifndef FS_CORE_WIRE_H
#define FS_CORE_WIRE_H

#include "agreement.h"

#define FS_WIRE_MAGIC 0x33505346u /* "FSP3" */
#define FS_WIRE_HEADER 32
#define FS_WIRE_MASS (4 * FS_MASS_WORDS)

typedef struct fs_wire_header {
    uint32_t magic, row_bytes;
    uint64_t hash;
    uint32_t first, end; /* ids */
    uint64_t sum;
} fs_wire_header;

/* ------------------------------------------------------------------------------------------------------ layout ---- */

FS_CORE int wire_has_max(const fs_needs *needs) {
    return needs->max || needs->samples == 0; /* without a winner, max y alone tells an empty row */
}

FS_CORE size_t wire_list_bytes(int32_t keep, int raw) {
    return keep ? 12 + (size_t)keep * (raw ? 12 : 8) : 0;
}

FS_CORE size_t wire_winner_bytes(const fs_needs *needs) {
    return 8 + (needs->winner_logit ? (needs->edited ? 8u : 4u) : 0u);
}

FS_CORE size_t wire_row_bytes(const fs_needs *needs) {
    size_t bytes = (size_t)needs->samples * wire_winner_bytes(needs);
    bytes += (size_t)(needs->mass != 0) * FS_WIRE_MASS + (size_t)(needs->raw_mass != 0) * FS_WIRE_MASS +
             (size_t)(needs->cut_mass != 0) * FS_WIRE_MASS;
    if (wire_has_max(needs)) bytes += needs->edited ? 8 : 4;
    return bytes + wire_list_bytes(needs->keep, needs->raw_column) + wire_list_bytes(needs->keep_raw, 0);
}

/* Where in a part the rows begin, a multiple of 8. */
FS_CORE size_t wire_rows_at(const fs_call *call) {
    return FS_WIRE_HEADER + (size_t)((call->batch->rows + 31) / 32) * 8;
}

FS_CORE size_t wire_row_at(const fs_call *call, int64_t b) {
    const size_t watched = call->needs.watched ? (size_t)watch_before(call->batch, b) * sizeof(fs_watch) : 0;
    return wire_rows_at(call) + (size_t)b * wire_row_bytes(&call->needs) + watched;
}

FS_CORE size_t wire_size(const fs_call *call) {
    return wire_rows_at(call) + (size_t)call->batch->rows * wire_row_bytes(&call->needs) +
           (size_t)call->needs.watched * sizeof(fs_watch);
}

FS_CORE int64_t wire_watched(const fs_call *call, int64_t b) {
    return call->needs.watched ? watch_count(call->batch, b) : 0;
}

/* ------------------------------------------------------------------------------------------------ a row's bits ---- */

/* A NaN was seen, an x is +inf: a key tells of +inf scores, but not of a +inf that was banned. Four rows a byte. */
FS_CORE uint32_t wire_bits(const fs_summary *s) {
    return (s->flags & FS_ROW_NAN ? 1u : 0u) | (s->max_x == INFINITY ? 2u : 0u);
}

FS_CORE uint32_t wire_bits_at(const void *part, int64_t b) {
    return (uint32_t)((const unsigned char *)part)[FS_WIRE_HEADER + b / 4] >> 2 * (b % 4) & 3;
}

/* ------------------------------------------------------------------------------------------------- put and get ---- */

/* A cursor over bytes; every field goes through one of these two. */
FS_CORE char *wire_put(char *at, const void *field, size_t bytes) {
#if defined(__CUDA_ARCH__)
    for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)at)[i] = ((const uint32_t *)field)[i];
#else
    memcpy(at, field, bytes);
#endif
    return at + bytes;
}

FS_CORE const char *wire_get(const char *at, void *field, size_t bytes) {
#if defined(__CUDA_ARCH__)
    for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)field)[i] = ((const uint32_t *)at)[i];
#else
    memcpy(field, at, bytes);
#endif
    return at + bytes;
}

FS_CORE char *wire_put_mass(char *at, const fs_mass *mass) {
    uint32_t words[FS_MASS_WORDS];
    mass_pack(mass, words);
    return wire_put(at, words, sizeof words);
}

FS_CORE const char *wire_get_mass(const char *at, fs_mass *mass) {
    uint32_t words[FS_MASS_WORDS];
    at = wire_get(at, words, sizeof words);
    *mass = mass_unpack(words);
    return at;
}

FS_CORE char *wire_put_list(char *at, const fs_list *list, int32_t keep, int raw) {
    if (!keep) return at;
    char *start = at;
    at = wire_put(wire_put(at, &list->count, 4), &list->bound, 8);
    wire_put(at, list->key, (size_t)list->count * 8);
    if (raw) wire_put(at + (size_t)keep * 8, list->raw, (size_t)list->count * 4);
    return start + wire_list_bytes(keep, raw);
}

/* Parts are bytes from elsewhere, and a checksum can be forged: what follows believes no id and no count. */
FS_CORE uint64_t wire_sound_winner(uint64_t key, int64_t vocab) {
    return score_key_token(key) < vocab ? key : FS_KEY_NONE;
}

FS_CORE int wire_key_is_sound(uint64_t key, int64_t vocab) {
    const uint32_t logit = (uint32_t)(key >> 32);
    return (order_key_token(key) < vocab) & (logit >= ordered_float(-INFINITY)) & (logit <= ordered_float(INFINITY));
}

FS_CORE int wire_keys_are_sound(const uint64_t *key, int32_t count, int64_t vocab) {
    int sound = 1;
    for (int32_t i = 0; i < count; i++) sound &= wire_key_is_sound(key[i], vocab);
    return sound;
}

FS_CORE const char *wire_get_list(const char *at, fs_list *list, int32_t keep, int raw, int64_t vocab) {
    if (!keep) return at;
    const char *start = at;
    at = wire_get(wire_get(at, &list->count, 4), &list->bound, 8);
    if (list->count < 0 || list->count > keep) list->count = 0, list->bound = UINT64_MAX;
    wire_get(at, list->key, (size_t)list->count * 8);
    if (!wire_keys_are_sound(list->key, list->count, vocab)) list->count = 0, list->bound = UINT64_MAX;
    if (raw) wire_get(at + (size_t)keep * 8, list->raw, (size_t)list->count * 4);
    return start + wire_list_bytes(keep, raw);
}

/* A row but for its bits and lists: a winner; masses and the largest logits; then lists, and watched tokens. */
FS_CORE char *wire_put_winner(const fs_needs *needs, char *at, const fs_winner *winner) {
    at = wire_put(at, &winner->key, 8);
    if (needs->winner_logit) at = wire_put(at, &winner->y, 4);
    if (needs->winner_logit && needs->edited) at = wire_put(at, &winner->x, 4);
    return at;
}

FS_CORE char *wire_put_sums(const fs_needs *needs, char *at, const fs_summary *s) {
    if (needs->mass) at = wire_put_mass(at, &s->mass);
    if (needs->raw_mass) at = wire_put_mass(at, &s->raw_mass);
    if (needs->cut_mass) at = wire_put_mass(at, &s->cut_mass);
    if (wire_has_max(needs)) at = wire_put(at, &s->max_y, 4);
    if (wire_has_max(needs) && needs->edited) at = wire_put(at, &s->max_x, 4);
    return at;
}

/* All of a row but its bits. */
FS_CORE void wire_put_row(const fs_call *call, int64_t b, const fs_summary *s, void *part) {
    const fs_needs *needs = &call->needs;
    char *at = (char *)part + wire_row_at(call, b);
    for (int32_t i = 0; i < needs->samples; i++) at = wire_put_winner(needs, at, &s->winner[i]);
    at = wire_put_sums(needs, at, s);
    at = wire_put_list(at, &s->list, needs->keep, needs->raw_column);
    at = wire_put_list(at, &s->raw_list, needs->keep_raw, 0);
    wire_put(at, s->watch, (size_t)wire_watched(call, b) * sizeof *s->watch);
}

/* What of a row is in front of its lists, which begin where it returns. */
FS_CORE const char *wire_get_front(const fs_call *call, int64_t b, const fs_row_rules *rules, const void *part,
                                   fs_summary *s) {
    const fs_needs *needs = &call->needs;
    const char *at = (const char *)part + wire_row_at(call, b);
    const uint32_t bits = wire_bits_at(part, b);
    s->flags = bits & 1 ? (uint32_t)FS_ROW_NAN : 0u;
    s->mass = s->raw_mass = s->cut_mass = mass_empty();
    s->max_y = -INFINITY;
    for (int32_t i = 0; i < needs->samples; i++) {
        at = wire_get(at, &s->winner[i].key, 8);
        s->winner[i].key = wire_sound_winner(s->winner[i].key, call->vocab);
        s->winner[i].y = s->winner[i].x = 0.0f;
        if (needs->winner_logit) at = wire_get(at, &s->winner[i].y, 4);
        s->winner[i].x = s->winner[i].y;
        if (needs->winner_logit && needs->edited) at = wire_get(at, &s->winner[i].x, 4);
        /* How large the largest was nobody asked, but whether there is one, and whether it is +inf. */
        if (winner_is_token(&s->winner[i]))
            s->max_y = fmaxf(s->max_y, score_key_value(s->winner[i].key) == INFINITY ? INFINITY : 0.0f);
    }
    if (needs->mass) at = wire_get_mass(at, &s->mass);
    if (needs->raw_mass) at = wire_get_mass(at, &s->raw_mass);
    if (needs->cut_mass) at = wire_get_mass(at, &s->cut_mass);
    if (wire_has_max(needs)) at = wire_get(at, &s->max_y, 4);
    s->max_x = wire_has_max(needs) ? s->max_y : 0.0f;
    if (wire_has_max(needs) && needs->edited) at = wire_get(at, &s->max_x, 4);
    if (bits & 2) s->max_x = INFINITY;
    if (bits & 2 || s->max_y * rules->inverse_temperature == INFINITY) s->flags |= FS_ROW_INF;
    return at;
}

/* Lists of the summary must have room for needs.keep and needs.keep_raw entries. Whatever the bytes are, keys are none
 * or those of ids of the vocabulary, and the logits in them are numbers. */
FS_CORE void wire_get_row(const fs_call *call, int64_t b, const fs_row_rules *rules, const void *part, fs_summary *s) {
    const fs_needs *needs = &call->needs;
    const char *at = wire_get_front(call, b, rules, part, s);
    at = wire_get_list(at, &s->list, needs->keep, needs->raw_column, call->vocab);
    at = wire_get_list(at, &s->raw_list, needs->keep_raw, 0, call->vocab);
    s->list.popped = s->raw_list.popped = 0;
    wire_get(at, s->watch, (size_t)wire_watched(call, b) * sizeof *s->watch);
}

/* ------------------------------------------------------------------------------------------ whole and unharmed ---- */

/* The checksum's term of a word at this place. Of one place it is a bijection, so that a change of one word never goes
 * unseen; of 2^43 pairs of words that differ in one bit and trade places none cancels out. 6 GB/s on one core
 * (Neoverse-V1). */
FS_CORE uint64_t wire_term(uint64_t word, uint64_t place) {
    return hash_end(hash_mix(place * 0xD1B54A32D192ED03u, word));
}

/* The ids [first, end) that a part speaks of have a place of their own. */
FS_CORE uint64_t wire_term_of_ids(uint32_t first, uint32_t end) {
    return wire_term((uint64_t)end << 32 | first, ~(uint64_t)0);
}

/* The term of the i-th 64-bit word behind the header of a part of so many bytes; the last may be half of one. */
FS_CORE uint64_t wire_term_at(const void *part, size_t bytes, size_t i) {
    uint32_t half[2] = {0, 0};
    const size_t at = FS_WIRE_HEADER + i * 8, left = bytes - at;
    wire_get((const char *)part + at, half, left < 8 ? left : 8);
    return wire_term((uint64_t)half[1] << 32 | half[0], i);
}

FS_CORE size_t wire_terms(size_t bytes) {
    return (bytes - FS_WIRE_HEADER + 7) / 8;
}

/* The ids of a head's rows that are no padding: none of a shard is first == end. */
FS_CORE void wire_shard(const fs_head *head, int64_t vocab, int64_t shard[2]) {
    const int64_t end = head->first_token + head->rows;
    shard[0] = head->first_token < vocab ? head->first_token : vocab;
    shard[1] = end < vocab ? end : vocab;
}

/* ------------------------------------------------------------------------------------------------ for the host ---- */

/* Hash of everything two ranks must agree on: see agreement.h. */
uint64_t fs_wire_hash(const fs_call *call);

/* Whether rows are nothing but keys, u64 [B, samples], of which the largest win: then a max of integers merges two
 * parts. */
int fs_wire_is_keys(const fs_call *call);

/* The header but for ids and checksum, and no bits. */
void fs_wire_begin(const fs_call *call, void *part);
/* Ids and checksum, when all else is written. */
void fs_wire_seal(const fs_call *call, void *part);
/* NULL: a part of this call, whose hash is given, as it was sealed, of the ids [shard[0], shard[1]); else what is
 * wrong. */
const char *fs_wire_check(const fs_call *call, uint64_t hash, const void *part, int64_t shard[2]);

/* Whether shards [count] together are the vocabulary, each id in one; else `why` names the first that is not; `holder`:
 * what a shard is of. Sorts them. */
int fs_shards_are_whole(int64_t (*shard)[2], int32_t count, int64_t vocab, const char *holder, char *why, size_t size);

/* One row after the other: rows share bytes. */
void fs_wire_put(const fs_call *call, int64_t b, const fs_summary *summary, void *part);
void fs_wire_get(const fs_call *call, int64_t b, const void *part, fs_summary *summary);

#endif
