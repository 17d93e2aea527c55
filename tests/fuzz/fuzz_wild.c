/* fuzz_wild.c - members of the public structs with values that nobody expects. */
#include "fuzz_call.h"

typedef enum { I32, I64, F32, SIZE } kind;

typedef struct member {
    size_t at;
    kind kind;
} member;

static const int32_t odd_i32[] = {INT32_MIN, -2, -1, 0,  1,   2,    3,    4,     7,        8,
                                  9,         16, 17, 32, 255, 1024, 1025, 65536, INT32_MAX};
static const int64_t odd_i64[] = {INT64_MIN,
                                  -4,
                                  -1,
                                  0,
                                  1,
                                  2,
                                  3,
                                  4,
                                  8,
                                  64,
                                  1024,
                                  (1 << 20) + 1,
                                  (1 << 24) - 1,
                                  1 << 24,
                                  (int64_t)1 << 31,
                                  (int64_t)1 << 40,
                                  (int64_t)1 << 62,
                                  INT64_MAX - 3,
                                  INT64_MAX};
static const float odd_f32[] = {NAN,    INFINITY, -INFINITY, 0.0f,   -0.0f, 1.0f, -1.0f, 0.5f,
                                1e-45f, 1e-38f,   3e38f,     -3e38f, 1e10f, 2.0f, 1e-10f};

int32_t fuzz_odd_i32(rng *r) {
    return one_in(r, 8) ? (int32_t)random_next(r) : PICK(r, odd_i32);
}

float fuzz_odd_f32(rng *r) {
    return PICK(r, odd_f32);
}

static void make_odd(rng *r, void *base, member m, size_t ours) {
    static const int64_t sizes[] = {0, 7, 8, 64, -8, -1, 1, 8, 64};
    void *at = (char *)base + m.at;
    const int32_t i32 = fuzz_odd_i32(r);
    const int64_t i64 = one_in(r, 8) ? (int64_t)random_next(r) : PICK(r, odd_i64);
    const float f32 = fuzz_odd_f32(r);
    size_t size = one_in(r, 4) ? (size_t)i64 : one_in(r, 3) ? (size_t)(4094 + below(r, 4)) : ours;
    if (size == ours) size += (size_t)PICK(r, sizes);
    if (m.kind == I32) memcpy(at, &i32, sizeof i32);
    if (m.kind == I64) memcpy(at, &i64, sizeof i64);
    if (m.kind == F32) memcpy(at, &f32, sizeof f32);
    if (m.kind == SIZE) memcpy(at, &size, sizeof size);
}

#define WILD(name, ...)                                                                                                \
    void fuzz_wild_##name(rng *r, fs_##name *s) {                                                                      \
        typedef fs_##name type;                                                                                        \
        static const member members[] = {__VA_ARGS__};                                                                 \
        make_odd(r, s, PICK(r, members), sizeof *s);                                                                   \
    }
#define M(kind, name)                                                                                                  \
    { offsetof(type, name), kind }

WILD(head, M(SIZE, size), M(I32, kind), M(I32, dtype), M(I64, rows), M(I64, dim), M(I64, stride), M(I64, first_token),
     M(I64, vocab), M(I32, round_to), M(F32, scale), M(F32, softcap), M(F32, post_scale), M(I32, flags),
     M(I32, reserved))
WILD(rules, M(SIZE, size), M(F32, temperature.value), M(I32, top_k.value), M(F32, top_p.value), M(F32, min_p.value),
     M(F32, repetition.value), M(F32, frequency.value), M(F32, presence.value))
WILD(limits, M(SIZE, size), M(I32, absent), M(I32, top_k), M(I64, edits), M(I64, counts), M(I64, watched))
WILD(batch, M(SIZE, size), M(I64, rows), M(I32, hidden_dtype), M(I32, mode), M(I64, hidden_stride), M(I32, samples),
     M(I32, noise), M(I32, flags), M(I32, fallback_token), M(I64, group_size), M(I32, list_capacity),
     M(I32, slot_dtype), M(I64, slots), M(I64, position_all), M(I64, seed_all), M(I32, substream_all),
     M(I64, allow_stride), M(I64, allow_count), M(I64, edit_stride), M(I64, seen_stride), M(I64, counts_stride),
     M(I64, cuda_stream), M(I32, reserved))
WILD(result, M(SIZE, size), M(I32, tokens_dtype), M(I32, logits_mode), M(I32, top_count), M(I32, survivor_limit))
WILD(options, M(SIZE, size), M(I32, backend), M(I32, device), M(I32, threads), M(I32, block), M(I64, work_bytes),
     M(I64, fallback_bytes), M(I32, flags), M(I32, reserved))
WILD(ranks, M(SIZE, size), M(I32, rank), M(I32, count), M(I32, device), M(I32, reserved))
WILD(drafts, M(SIZE, size), M(I32, reserved), M(I64, cuda_stream))
WILD(call_desc, M(SIZE, size), M(I32, call), M(I32, kind), M(I32, dtype), M(I32, hidden_dtype), M(I32, mode),
     M(I32, noise), M(I32, samples), M(I32, logits_mode), M(I32, rules), M(I32, results), M(I32, flags), M(I32, inputs),
     M(I64, group_size))

void *fuzz_place(rng *r, const void *from, size_t bytes) {
    size_t size;
    memcpy(&size, from, sizeof size);
    const size_t there = size < 8 ? 8 : size > 4096 ? bytes : size;
    char *to = slab_take(there, 0);
    if (!to) return NULL;
    memset(to, 0, there);
    memcpy(to, from, there < bytes ? there : bytes);
    if (there > bytes && one_in(r, 2)) to[bytes + (size_t)below(r, (int64_t)(there - bytes))] = 1;
    return to;
}
