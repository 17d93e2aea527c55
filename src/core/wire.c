#include "wire.h"

#include "part.h"

#include <stdio.h>
#include <stdlib.h>

#define FS_WIRE_MAGIC 0x32505346u /* "FSP2" */
#define FS_WIRE_IDS 16            /* where in the header the ids lie, and the checksum */
#define FS_WIRE_SUM 24
#define FS_WIRE_MASS (4 * FS_MASS_WORDS)

static int has_max(const fs_needs *needs) {
    return needs->max || needs->samples == 0; /* without a winner, max y alone tells an empty row */
}

static size_t list_bytes(int32_t keep, int raw) {
    return keep ? 12 + (size_t)keep * (raw ? 12 : 8) : 0;
}

static size_t row_bytes(const fs_needs *needs) {
    size_t winner = 8 + (needs->winner_logit ? (needs->edited ? 8u : 4u) : 0u);
    size_t bytes = (size_t)needs->samples * winner;
    bytes += (size_t)(needs->mass != 0) * FS_WIRE_MASS + (size_t)(needs->raw_mass != 0) * FS_WIRE_MASS +
             (size_t)(needs->cut_mass != 0) * FS_WIRE_MASS;
    if (has_max(needs)) bytes += needs->edited ? 8 : 4;
    return bytes + list_bytes(needs->keep, needs->raw_column) + list_bytes(needs->keep_raw, 0);
}

/* Two bits per row: a NaN was seen, an x is +inf. A key tells of +inf scores, but not of a +inf that was banned. */
static size_t bitmap_bytes(const fs_call *call) {
    return (size_t)((call->batch->rows + 31) / 32) * 8;
}

size_t fs_wire_size(const fs_call *call) {
    return FS_WIRE_HEADER + bitmap_bytes(call) + (size_t)call->batch->rows * row_bytes(&call->needs) +
           (size_t)call->needs.watched * sizeof(fs_watch);
}

static size_t row_start(const fs_call *call, int64_t b) {
    return FS_WIRE_HEADER + bitmap_bytes(call) + (size_t)b * row_bytes(&call->needs) +
           (size_t)watch_before(call->batch, b) * sizeof(fs_watch);
}

uint64_t fs_wire_hash(const fs_call *call) {
    const fs_agreement agreement = fs_agreement_of(call);
    return fs_agreement_hash(&agreement);
}

int fs_wire_is_keys(const fs_call *call) {
    const fs_needs *needs = &call->needs;
    return needs->samples && !needs->ordered && !needs->watched && row_bytes(needs) == (size_t)needs->samples * 8;
}

size_t fs_wire_rows_at(const fs_call *call) {
    return FS_WIRE_HEADER + bitmap_bytes(call);
}

void fs_wire_header(const fs_call *call, void *part) {
    uint32_t words[2] = {FS_WIRE_MAGIC, (uint32_t)row_bytes(&call->needs)};
    uint64_t hash = fs_wire_hash(call);
    memcpy(part, words, sizeof words);
    memcpy((char *)part + FS_WIRE_HASH, &hash, sizeof hash);
    memset((char *)part + FS_WIRE_IDS, 0, FS_WIRE_HEADER - FS_WIRE_IDS + bitmap_bytes(call));
}

/* ------------------------------------------------------------------------------------------ whole and unharmed ---- */

static uint64_t sum_of(const fs_call *call, const void *part, const uint32_t ids[2]) {
    const char *body = (const char *)part + FS_WIRE_HEADER;
    const size_t bytes = fs_wire_size(call) - FS_WIRE_HEADER, words = bytes / 8;
    uint64_t sum = part_term_of_ids(ids[0], ids[1]), word = 0;
    for (size_t i = 0; i < words; i++) {
        memcpy(&word, body + i * 8, 8);
        sum += part_term(word, i);
    }
    word = 0;
    memcpy(&word, body + words * 8, bytes % 8);
    return sum + part_term(word, words);
}

void fs_wire_seal(const fs_call *call, void *part) {
    int64_t shard[2];
    fs_shard_of(call->head, call->vocab, shard);
    const uint32_t ids[2] = {(uint32_t)shard[0], (uint32_t)shard[1]};
    const uint64_t sum = sum_of(call, part, ids);
    memcpy((char *)part + FS_WIRE_IDS, ids, sizeof ids);
    memcpy((char *)part + FS_WIRE_SUM, &sum, sizeof sum);
}

/* The header is looked at first: only a part of this call has the size that is then read. */
const char *fs_wire_check(const fs_call *call, uint64_t hash, const void *part, int64_t shard[2]) {
    const char *header = part;
    uint32_t words[2], ids[2];
    uint64_t theirs, sum;
    memcpy(words, header, sizeof words);
    memcpy(&theirs, header + FS_WIRE_HASH, sizeof theirs);
    memcpy(ids, header + FS_WIRE_IDS, sizeof ids);
    memcpy(&sum, header + FS_WIRE_SUM, sizeof sum);
    if (words[0] != FS_WIRE_MAGIC) return "it is not a summary of this library's version";
    if (words[1] != (uint32_t)row_bytes(&call->needs))
        return "its rows have another size: batch and result must be the same on every rank";
    if (theirs != hash)
        return "it was made with another batch, result, seed, position, rule or head (vocab, kind, dim, round, "
               "scales, softcap)";
    if (sum != sum_of(call, part, ids) || ids[0] > ids[1] || ids[1] > (uint64_t)call->vocab)
        return "its checksum is not that of its bytes, which have changed on their way";
    shard[0] = ids[0], shard[1] = ids[1];
    return NULL;
}

void fs_shard_of(const fs_head *head, int64_t vocab, int64_t shard[2]) {
    const int64_t end = head->first_token + head->rows;
    shard[0] = head->first_token < vocab ? head->first_token : vocab;
    shard[1] = end < vocab ? end : vocab;
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

/* A cursor over bytes; every field goes through one of these two. */
static char *put(char *at, const void *field, size_t bytes) {
    memcpy(at, field, bytes);
    return at + bytes;
}

static const char *get(const char *at, void *field, size_t bytes) {
    memcpy(field, at, bytes);
    return at + bytes;
}

static char *put_mass(char *at, const fs_mass *mass) {
    uint32_t words[FS_MASS_WORDS];
    mass_pack(mass, words);
    return put(at, words, sizeof words);
}

static const char *get_mass(const char *at, fs_mass *mass) {
    uint32_t words[FS_MASS_WORDS];
    at = get(at, words, sizeof words);
    *mass = mass_unpack(words);
    return at;
}

static char *put_list(char *at, const fs_list *list, int32_t keep, int raw) {
    if (!keep) return at;
    char *start = at;
    at = put(put(at, &list->count, 4), &list->bound, 8);
    put(at, list->key, (size_t)list->count * 8);
    if (raw) put(at + (size_t)keep * 8, list->raw, (size_t)list->count * 4);
    return start + list_bytes(keep, raw);
}

/* Parts are bytes from elsewhere, and a checksum can be forged: what follows believes no id and no count. */
static uint64_t sound_winner(uint64_t key, int64_t vocab) {
    return score_key_token(key) < vocab ? key : FS_KEY_NONE;
}

static int keys_are_sound(const uint64_t *key, int32_t count, int64_t vocab) {
    const uint32_t least = ordered_float(-INFINITY), most = ordered_float(INFINITY);
    int sound = 1;
    for (int32_t i = 0; i < count; i++) {
        const uint32_t logit = (uint32_t)(key[i] >> 32);
        sound &= (order_key_token(key[i]) < vocab) & (logit >= least) & (logit <= most);
    }
    return sound;
}

static const char *get_list(const char *at, fs_list *list, int32_t keep, int raw, int64_t vocab) {
    if (!keep) return at;
    const char *start = at;
    at = get(get(at, &list->count, 4), &list->bound, 8);
    if (list->count < 0 || list->count > keep) list->count = 0, list->bound = UINT64_MAX;
    get(at, list->key, (size_t)list->count * 8);
    if (!keys_are_sound(list->key, list->count, vocab)) list->count = 0, list->bound = UINT64_MAX;
    if (raw) get(at + (size_t)keep * 8, list->raw, (size_t)list->count * 4);
    return start + list_bytes(keep, raw);
}

void fs_wire_put(const fs_call *call, int64_t b, const fs_summary *s, void *part) {
    const fs_needs *needs = &call->needs;
    char *at = (char *)part + row_start(call, b);
    const int bits = ((s->flags & FS_ROW_NAN) != 0) | (s->max_x == INFINITY) << 1;
    ((char *)part)[FS_WIRE_HEADER + b / 4] |= (char)(bits << 2 * (b % 4));
    for (int32_t i = 0; i < needs->samples; i++) {
        at = put(at, &s->winner[i].key, 8);
        if (needs->winner_logit) at = put(at, &s->winner[i].y, 4);
        if (needs->winner_logit && needs->edited) at = put(at, &s->winner[i].x, 4);
    }
    if (needs->mass) at = put_mass(at, &s->mass);
    if (needs->raw_mass) at = put_mass(at, &s->raw_mass);
    if (needs->cut_mass) at = put_mass(at, &s->cut_mass);
    if (has_max(needs)) at = put(at, &s->max_y, 4);
    if (has_max(needs) && needs->edited) at = put(at, &s->max_x, 4);
    at = put_list(at, &s->list, needs->keep, needs->raw_column);
    at = put_list(at, &s->raw_list, needs->keep_raw, 0);
    put(at, s->watch, (size_t)watch_count(call->batch, b) * sizeof *s->watch);
}

void fs_wire_get(const fs_call *call, int64_t b, const void *part, fs_summary *s) {
    const fs_needs *needs = &call->needs;
    const char *at = (const char *)part + row_start(call, b);
    const int bits = ((const char *)part)[FS_WIRE_HEADER + b / 4] >> 2 * (b % 4) & 3;
    s->flags = bits & 1 ? (uint32_t)FS_ROW_NAN : 0u;
    s->mass = s->raw_mass = s->cut_mass = mass_empty();
    s->max_y = -INFINITY;
    for (int32_t i = 0; i < needs->samples; i++) {
        at = get(at, &s->winner[i].key, 8);
        s->winner[i].key = sound_winner(s->winner[i].key, call->vocab);
        s->winner[i].y = s->winner[i].x = 0.0f;
        if (needs->winner_logit) at = get(at, &s->winner[i].y, 4);
        s->winner[i].x = s->winner[i].y;
        if (needs->winner_logit && needs->edited) at = get(at, &s->winner[i].x, 4);
        /* How large the largest was nobody asked, but whether there is one, and whether it is +inf. */
        if (winner_is_token(&s->winner[i]))
            s->max_y = fmaxf(s->max_y, score_key_value(s->winner[i].key) == INFINITY ? INFINITY : 0.0f);
    }
    if (needs->mass) at = get_mass(at, &s->mass);
    if (needs->raw_mass) at = get_mass(at, &s->raw_mass);
    if (needs->cut_mass) at = get_mass(at, &s->cut_mass);
    if (has_max(needs)) at = get(at, &s->max_y, 4);
    s->max_x = has_max(needs) ? s->max_y : 0.0f;
    if (has_max(needs) && needs->edited) at = get(at, &s->max_x, 4);
    if (bits & 2) s->max_x = INFINITY;
    if (bits & 2 || s->max_y * call->rules[b].inverse_temperature == INFINITY) s->flags |= FS_ROW_INF;
    at = get_list(at, &s->list, needs->keep, needs->raw_column, call->vocab);
    at = get_list(at, &s->raw_list, needs->keep_raw, 0, call->vocab);
    s->list.popped = s->raw_list.popped = 0;
    get(at, s->watch, (size_t)watch_count(call->batch, b) * sizeof *s->watch);
}
