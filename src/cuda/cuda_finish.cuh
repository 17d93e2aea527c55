/* cuda_finish.cuh - from what is known of a row to its results. */
#ifndef FS_CUDA_FINISH_CUH
#define FS_CUDA_FINISH_CUH

#include "cuda_call.h"
#include "cuda_ptx.cuh"

#include "core/agreement.h"

/* A row's part of the call, in shared memory or registers. */
typedef struct fs_judged_row {
    fs_noise noise;
    float inverse, temperature;
    uint32_t status;
    int32_t greedy;
} fs_judged_row;

FS_DEVICE fs_judged_row judged_row(const fs_cuda_args &args, int32_t b) {
    const fs_rules rules = rules_of_row(&args.batch, args.vocab, args.first_row + b);
    return {noise_row(rules.seed, rules.position, 0, rules.stream), rules.inverse_temperature,
            1.0f / rules.inverse_temperature, rules.status, rules.greedy};
}

/* The mass of the lane whose number differs in this bit. */
FS_DEVICE fs_mass mass_across(const fs_mass &m, int apart) {
    fs_mass other;
    other.top = __shfl_xor_sync(~0u, m.top, apart);
    for (int i = 0; i < 3; i++) other.limb[i] = __shfl_xor_sync(~0u, (unsigned long long)m.limb[i], apart);
    return other;
}

/* What the pass has found of a row. */
typedef struct fs_verdict {
    uint64_t key; /* of the drawn token; 0: none */
    uint32_t flags;
    float peak;   /* largest x */
    double log_z; /* of the kind of logits asked */
    float x;      /* of the drawn token, where logits are stored; else NaN */
    fs_mass mass; /* log_z's, which only other ranks ask for */
} fs_verdict;

/* What a row draws with, as a number: equal on every rank that was called alike. */
FS_DEVICE uint64_t row_hash(const fs_judged_row &row, int64_t at) {
    uint64_t h = hash_mix((uint64_t)at, (uint64_t)row.noise.r0 << 32 | row.noise.r1);
    h = hash_mix(h, (uint64_t)row.noise.r2 << 32 | row.status);
    return hash_mix(h, (uint64_t)float_bits(row.inverse) << 32 | (uint32_t)row.greedy);
}

/* The row into this rank's part: see fs_cuda_exchange. */
FS_DEVICE void put_row(const fs_cuda_args &args, const fs_judged_row &row, int32_t b, const fs_verdict &found) {
    const fs_cuda_exchange &to = args.exchange;
    const int64_t at = args.first_row + b;
    const unsigned long long hash = row_hash(row, at) + (at == 0 ? to.hash : 0);
    const uint64_t key = to.bits ? found.key : found.key ^ (uint64_t)1 << 63;
    uint32_t *word = to.rows + at * to.row_words;
    atomicAdd(to.header, hash);
    if (!to.bits) atomicAdd(to.header + 1, 0ull - hash - (at == 0)); /* of a sum h, ~h = -h - 1 */
    *word++ = (uint32_t)key;
    *word++ = (uint32_t)(key >> 32);
    if (!to.bits) return;
    const uint32_t seen = (found.flags & FS_ROW_NAN ? 1u : 0u) | (found.flags & FS_CUDA_X_INF ? 2u : 0u);
    if (seen) atomicOr(to.bits + at / 16, seen << 2 * (at % 16));
    if (args.want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS)) {
        mass_pack(&found.mass, word);
        word += FS_MASS_WORDS;
    }
    if (args.want & FS_CUDA_PEAK) *word = float_bits(found.peak);
}

/* A row's status once its pass is over. */
FS_DEVICE uint32_t final_status(const fs_judged_row &row, uint32_t flags, bool found) {
    const uint32_t status = row.status | (flags & ~FS_CUDA_X_INF);
    return found || (status & FS_ROW_NO_TOKEN) ? status : status | FS_ROW_EMPTY;
}

/* Row `at` of the batch: its token, and its status where that is asked for. */
FS_DEVICE void write_token(const fs_cuda_args &args, int64_t at, int32_t token, uint32_t status, bool keep) {
    const fs_result &result = args.result;
    if (result.tokens_dtype == FS_I64) store_if(keep, (int64_t *)result.tokens + at, (int64_t)token);
    else store_if(keep, (int32_t *)result.tokens + at, token);
    if (result.status) store_if(keep, result.status + at, status);
}

/* The results of row b. The drawn token's logit is not carried along: where it is not stored either, the key holds l + noise to 2^-24 or
 * better, and the noise is known, so what is left is l. Without `keep` everything is computed and nothing written (see close_row). */
FS_DEVICE void write_row(const fs_cuda_args &args, const fs_judged_row &row, int32_t b, const fs_verdict &found,
                         bool keep) {
    if (__builtin_expect(args.exchange.header != NULL, 0)) { /* not in the way of results, whose code is cold */
        if (keep) put_row(args, row, b, found);
        return;
    }
    const fs_result &result = args.result;
    const int64_t at = args.first_row + b;
    const bool raw = result.logits == FS_LOGITS_RAW;
    uint32_t status = final_status(row, found.flags, found.key != FS_KEY_NONE);
    const bool drawn = !(status & FS_ROW_NO_TOKEN);
    const int32_t token = drawn ? (int32_t)score_key_token(found.key) : args.batch.fallback_token;
    const double score = drawn ? score_key_value(found.key) : (double)NAN;
    const bool infinite = found.flags & (raw ? FS_CUDA_X_INF : (uint32_t)FS_ROW_INF);
    const bool far = drawn && !infinite && (result.log_z || result.logprob) && mass_is_far(&found.mass);
    const double log_z = !drawn || far ? (double)NAN : infinite ? (double)INFINITY : found.log_z;
    if (far) status |= FS_ROW_FAR;
    write_token(args, at, token, status, keep);
    if (result.score) store_if(keep, result.score + at, (float)score);
    if (result.log_z) store_if(keep, result.log_z + at, (float)log_z);
    if (result.max_logit) store_if(keep, result.max_logit + at, drawn ? found.peak * (raw ? 1.0f : row.inverse) : NAN);
    if (result.logit || result.logprob) {
        double l = drawn && !row.greedy ? score - noise_gumbel(row.noise, (uint32_t)token) : score;
        if (raw) l *= (double)row.temperature;
        if (found.x == found.x) l = (double)(raw ? found.x : found.x * row.inverse);
        if (result.logit) store_if(keep, result.logit + at, (float)l);
        /* A sum of rounded terms may be below one of them; fmin would lose a NaN. */
        const double logprob = l > log_z ? 0.0 : l - log_z;
        if (result.logprob) store_if(keep, result.logprob + at, infinite ? NAN : (float)logprob);
    }
}

/* The first of the two limbs a sum inside [2^-48, 2^99) adds to, and what, 24 bits to the first and the rest to the next. The same limbs as
 * mass_add's. */
FS_DEVICE unsigned long long limbs_of(float sum, int32_t *limb) {
    const uint32_t bits = float_bits(sum);
    const int32_t low = (int32_t)(bits >> 23) - 150;
    *limb = (low + 24 * 32) / 24 - 32; /* floor(low / 24) */
    return (unsigned long long)((bits & 0x7FFFFFu) | 0x800000u) << (low - 24 * *limb);
}

/* Adds to two neighbouring limbs of the row's mass: two reductions, in any order. */
FS_DEVICE void line_add(fs_cuda_line *line, int32_t limb, unsigned long long low, unsigned long long high) {
    atomicAdd(&line->limb[limb - FS_CUDA_LIMB], low);
    if (high) atomicAdd(&line->limb[limb - FS_CUDA_LIMB + 1], high);
}

FS_DEVICE fs_mass line_mass(const fs_cuda_line *line) {
    fs_mass mass = mass_empty();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint64_t limb = __ldcg(&line->limb[i]);
        if (limb) mass_raise(&mass, i + FS_CUDA_LIMB);
        mass.limb[0] += limb;
    }
    if (__ldcg((const unsigned long long *)&line->odd.limb[0])) {
        const fs_mass odd = line->odd;
        mass_merge(&mass, &odd);
    }
    return mass;
}

/* What a call has used of a line, back to zero. Not by memset: 45 us for 256 rows (H200, 2026-11). */
FS_DEVICE void clear_line(fs_cuda_line *line, uint32_t want) {
    line->key = 0;
    line->hint = line->flags = line->peak = line->done = 0;
    if (!(want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS))) return;
    for (int i = 0; i < 8; i++) line->limb[i] = 0;
    line->odd.limb[0] = 0;
}

/* A row of a call for tokens alone (FS_CUDA_TOKENS). With `rehearse` nothing is written. */
static __device__ __noinline__ void close_token(const fs_cuda_args &args, const fs_judged_row &row, int32_t b,
                                                bool rehearse) {
    fs_cuda_line *line = &args.work->line[b];
    const unsigned long long key = __ldcg(&line->key);
    const uint32_t status = final_status(row, __ldcg(&line->flags), key != FS_KEY_NONE);
    const int32_t token = status & FS_ROW_NO_TOKEN ? args.batch.fallback_token : (int32_t)score_key_token(key);
    write_token(args, args.first_row + b, token, status, !rehearse);
    if (!rehearse) clear_line(line, 0);
}

/* A row that needs nothing but its line. With `rehearse` nothing is written. */
static __device__ __noinline__ void close_row(const fs_cuda_args &args, const fs_judged_row &row, int32_t b,
                                              bool rehearse) {
    fs_cuda_line *line = &args.work->line[b];
    fs_verdict found = {__ldcg(&line->key), __ldcg(&line->flags), NAN, (double)NAN, NAN};
    if (args.want & FS_CUDA_PEAK) found.peak = float_of_ordered(__ldcg(&line->peak));
    if (args.want & (FS_CUDA_MASS | FS_CUDA_RAW_MASS)) {
        found.mass = line_mass(line);
        found.log_z = mass_log(&found.mass);
    }
    write_row(args, row, b, found, !rehearse);
    if (!rehearse) clear_line(line, args.want);
}

#endif
