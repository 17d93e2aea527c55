/* dist_round.c - one exchange between ranks: see dist.h. */
#include "dist.h"

#define HASH_BITS 48
#define HASH_MASK (((int64_t)1 << HASH_BITS) - 1)
#define HEADER_WORDS 2
#define NEWS_BITS 2 /* below the hash, or a rank with news would hide the other ranks' */
#define NEW_SHARD 2

static int64_t count_keys(const fs_round *round) {
    return round->is_keys ? round->call.batch->rows * round->call.needs.samples : 0;
}

/* The next bytes of the memory, at a multiple of 64; without memory they are only counted. */
static void *take(char *memory, size_t *used, size_t bytes) {
    void *at = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Lays the round out and returns its bytes. */
static size_t place(fs_round *round, char *memory) {
    const size_t ranks = (size_t)round->ranks->count;
    size_t used = 0;
    round->words = take(memory, &used, (HEADER_WORDS + (size_t)count_keys(round)) * sizeof *round->words);
    round->part = take(memory, &used, round->bytes);
    round->parts = take(memory, &used, ranks * sizeof *round->parts);
    round->shards = take(memory, &used, ranks * sizeof *round->shards);
    round->agreements = take(memory, &used, (ranks + 1) * sizeof *round->agreements);
    round->all = take(memory, &used, ranks * (round->is_keys ? round->rows_at : round->bytes));
    return used;
}

fs_status fs_round_size(fs_round *round, size_t *bytes) {
    const fs_call *call = &round->call;
    FS_TRY(round->context->backend->partial_size(round->context, call->head, call->batch, call->result, round->least,
                                                 &round->bytes));
    round->is_keys = fs_wire_is_keys(call);
    round->rows_at = wire_rows_at(call);
    *bytes = place(round, NULL);
    return FS_OK;
}

/* --------------------------------------------------------------------------------------------- the collectives ---- */

static fs_status transport_failed(const fs_round *round, fs_status status) {
    const fs_ranks *ranks = round->ranks;
    const char *text = ranks->error_text ? ranks->error_text(ranks->self) : NULL;
    return fs_fail(round->context, status, "rank %d of %d: %s", ranks->rank, ranks->count,
                   text && *text ? text : "the transport failed and does not say why");
}

static fs_status all_gather(fs_round *round, const void *mine, void *all, size_t bytes) {
    fs_status status = round->ranks->all_gather(round->ranks->self, mine, all, bytes, NULL);
    round->sent += (int64_t)bytes;
    return status == FS_OK ? FS_OK : transport_failed(round, status);
}

/* ----------------------------------------------------------------------------------------------------- header ---- */

static int64_t hash_of(const fs_round *round) {
    uint64_t hash;
    memcpy(&hash, round->part + offsetof(fs_wire_header, hash), sizeof hash);
    return (int64_t)(hash_mix(hash, round->context->options.fallback_bytes) >> (64 - HASH_BITS));
}

static int has_bits(const fs_round *round) {
    for (size_t i = FS_WIRE_HEADER; i < round->rows_at; i++)
        if (round->part[i]) return 1;
    return 0;
}

/* Every rank sends what it was called with; the first word that is not rank 0's is named, so the text is the same
 * everywhere. */
static fs_status explain_difference(fs_round *round) {
    const int32_t ranks = round->ranks->count;
    fs_agreement *agreements = round->agreements;
    agreements[ranks] = fs_agreement_of(&round->call);
    agreements[ranks].word[FS_AGREE_BUDGET] = round->context->options.fallback_bytes;
    FS_TRY(all_gather(round, &agreements[ranks], agreements, sizeof *agreements));
    for (int32_t i = 0; i < ranks * FS_AGREE_WORDS; i++) {
        const int32_t rank = i / FS_AGREE_WORDS, word = i % FS_AGREE_WORDS;
        const long long theirs = (long long)agreements[rank].word[word], first = (long long)agreements[0].word[word];
        int32_t is_value;
        const char *name = fs_agreement_name(word, &is_value);
        if (theirs == first) continue;
        if (is_value)
            return fs_fail(round->context, FS_ERR_PEER, "ranks differ: %s is %lld on rank %d, but %lld on rank 0", name,
                           theirs, rank, first);
        return fs_fail(round->context, FS_ERR_PEER, "ranks differ: %s is not on rank %d what it is on rank 0", name,
                       rank);
    }
    return fs_fail(round->context, FS_ERR_PEER,
                   "ranks were called with different arguments, but none of those that are compared");
}

/* Whether this shard has been held against the others' before. */
static int has_adjoined(const fs_round *round) {
    const fs_context *context = round->context;
    const fs_head *head = round->call.head;
    return context->adjoined.ranks == round->ranks->self && context->adjoined.first == head->first_token &&
           context->adjoined.rows == head->rows && context->adjoined.vocab == round->call.vocab;
}

static fs_status check_shards(fs_round *round) {
    fs_context *context = round->context;
    const fs_head *head = round->call.head;
    const int64_t vocab = round->call.vocab;
    int64_t own[2];
    char why[128];
    wire_shard(head, vocab, own);
    FS_TRY(all_gather(round, own, round->shards, sizeof own));
    if (!fs_shards_are_whole(round->shards, round->ranks->count, vocab, "rank", why, sizeof why))
        return fs_fail(context, FS_ERR_PEER, "%s", why);
    context->adjoined.ranks = round->ranks->self;
    context->adjoined.first = head->first_token;
    context->adjoined.rows = head->rows;
    context->adjoined.vocab = vocab;
    return FS_OK;
}

/* The first collective: everyone is there, well, and means the same call. *bits: some rank has flags to tell. */
static fs_status meet(fs_round *round, fs_status failed, int *bits) {
    int64_t alone[HEADER_WORDS], count = HEADER_WORDS;
    int64_t *words = alone, hash = 0;
    if (failed != FS_OK) {
        if (round->words) { /* as many values as the others, where their number is known */
            words = round->words;
            count += count_keys(round);
            for (int64_t i = HEADER_WORDS; i < count; i++) words[i] = INT64_MIN;
        }
        words[0] = (int64_t)-failed << HASH_BITS | round->ranks->rank;
        words[1] = 0;
    } else {
        words = round->words;
        count += count_keys(round);
        hash = hash_of(round);
        words[0] = hash;
        words[1] = (~hash & HASH_MASK) << NEWS_BITS | (has_adjoined(round) ? has_bits(round) : NEW_SHARD);
    }
    const fs_status status = round->ranks->all_max(round->ranks->self, words, count, NULL);
    round->sent += count * 8;
    if (status == FS_OK) round->worst = (fs_status) - (words[0] >> HASH_BITS);
    if (failed != FS_OK) return failed; /* its text says more than the transport's would */
    if (status != FS_OK) return transport_failed(round, status);
    if (round->worst != FS_OK)
        return fs_fail(round->context, FS_ERR_PEER,
                       "rank %lld failed with an error of kind \"%s\", which it reports itself",
                       (long long)(words[0] & HASH_MASK), fs_status_text(round->worst));
    if (words[0] != hash || words[1] >> NEWS_BITS != (~hash & HASH_MASK)) return explain_difference(round);
    const int64_t news = words[1] & ((1 << NEWS_BITS) - 1);
    *bits = news != 0;
    return news == NEW_SHARD ? check_shards(round) : FS_OK;
}

/* ------------------------------------------------------------------------------------------------------ merge ---- */

/* A key as a signed integer of the same order. */
static int64_t signed_key(uint64_t key) {
    key ^= (uint64_t)1 << 63;
    int64_t word;
    memcpy(&word, &key, sizeof word);
    return word;
}

static void put_keys(fs_round *round) {
    for (int64_t i = 0; i < count_keys(round); i++) {
        uint64_t key;
        memcpy(&key, round->part + round->rows_at + (size_t)i * 8, sizeof key);
        round->words[HEADER_WORDS + i] = signed_key(key);
    }
}

/* Our own part becomes that of all ranks: the largest keys, and bits wherever a rank has one. */
static fs_status merge_keys(fs_round *round, int bits) {
    for (int64_t i = 0; i < count_keys(round); i++) {
        uint64_t key = (uint64_t)round->words[HEADER_WORDS + i] ^ (uint64_t)1 << 63;
        memcpy(round->part + round->rows_at + (size_t)i * 8, &key, sizeof key);
    }
    if (!bits) return FS_OK;
    const size_t bytes = round->rows_at - FS_WIRE_HEADER;
    FS_TRY(all_gather(round, round->part + FS_WIRE_HEADER, round->all, bytes));
    for (size_t i = 0; i < bytes * (size_t)round->ranks->count; i++)
        round->part[FS_WIRE_HEADER + i % bytes] |= round->all[i];
    return FS_OK;
}

/* What all parts have in common, the header and (without bits) the bitmap, is not sent; each gets it back from ours. */
static fs_status gather_parts(fs_round *round, int bits) {
    const size_t common = bits ? FS_WIRE_HEADER : round->rows_at, own = round->bytes - common;
    FS_TRY(all_gather(round, round->part + common, round->all, own));
    for (int32_t i = round->ranks->count - 1; i >= 0; i--) { /* from the last, so that none is overwritten */
        char *to = round->all + (size_t)i * round->bytes;
        memmove(to + common, round->all + (size_t)i * own, own);
        memcpy(to, round->part, common);
    }
    return FS_OK;
}

/* Memory to merge is taken before the ranks meet: a failure that came later would leave the others with rounds to
 * go. */
fs_status fs_round_run(fs_round *round, void *memory, const fs_result *result, fs_status failed) {
    const fs_call *call = &round->call;
    fs_context *context = round->context;
    const fs_backend *backend = context->backend;
    const int32_t count = round->is_keys ? 1 : round->ranks->count, least = round->least;
    int bits = 0;
    if (failed == FS_OK) {
        place(round, memory);
        failed = backend->partial(context, call->head, call->batch, call->result, least, 0, round->part, round->bytes);
        if (failed == FS_OK) failed = backend->merge(context, call->head, call->batch, NULL, count, least, 0, result);
        if (failed == FS_OK) put_keys(round);
    }
    FS_TRY(meet(round, failed, &bits));
    FS_TRY(round->is_keys ? merge_keys(round, bits) : gather_parts(round, bits));
    for (int32_t i = 0; i < count; i++)
        round->parts[i] = round->is_keys ? round->part : round->all + (size_t)i * round->bytes;
    return backend->merge(context, call->head, call->batch, round->parts, count, least, 0, result);
}
