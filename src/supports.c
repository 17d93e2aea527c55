/* supports.c - what a backend can do: a call without its arrays, and the words of the tables for what it does not. */
#include "check.h"

#include "core/needs.h"

const char *fs_first_lack(const fs_lack *table, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (table[i].asked) return table[i].words;
    return NULL;
}

const char *fs_quantised_lack(int32_t dtype) {
#define FS_FORMAT_WORDS(name, numbers, bytes) "FS_" #name " weights are not supported yet by any backend",
    static const char *const words[FS_FORMATS] = {FS_FORMAT_TABLE(FS_FORMAT_WORDS)};
#undef FS_FORMAT_WORDS
    const int32_t format = format_of(dtype);
    return format < FS_FLOAT_FORMATS ? NULL : words[format];
}

/* What no backend does, then what this one does not. The online groups are chosen in order over the whole
 * vocabulary. */
static const char *lack_of(const fs_backend *backend, const fs_call_desc *o) {
    const char *words = fs_quantised_lack(o->dtype);
    if (words) return words;
    if (o->call != FS_CALL_SAMPLE && o->mode == FS_MODE_GROUP_ONLINE)
        return "FS_MODE_GROUP_ONLINE has no partial form; use FS_MODE_GROUP_PARALLEL";
    if (o->call != FS_CALL_SAMPLE && o->results & FS_RESULT_ENTROPY)
        return "result.entropy has no partial form: fs_sample alone gives it";
    if (o->call != FS_CALL_SAMPLE && o->results & FS_RESULT_SURVIVORS)
        return "result.survivor_token and survivor_count have no partial form: fs_sample alone gives them";
    return backend->lacks ? backend->lacks(o) : NULL;
}

/* ---------------------------------------------------------------------------------------------------- a call ---- */

static uint32_t results_of(const fs_result *r) {
    uint32_t results = 0;
    if (r->noisy_logit) results |= FS_RESULT_NOISY_LOGIT;
    if (r->max_logit) results |= FS_RESULT_MAX_LOGIT;
    if (r->log_z) results |= FS_RESULT_LOG_Z;
    if (r->logit) results |= FS_RESULT_LOGIT;
    if (r->logprob) results |= FS_RESULT_LOGPROB;
    if (r->rank) results |= FS_RESULT_RANK;
    if (r->top_count && result_wants_top(r)) results |= FS_RESULT_TOP;
    if (r->watch_logit || r->watch_logprob) results |= FS_RESULT_WATCH;
    if (result_wants_entropy(r)) results |= FS_RESULT_ENTROPY;
    if (result_wants_survivors(r)) results |= FS_RESULT_SURVIVORS;
    return results;
}

static uint32_t inputs_of(const fs_batch *b) {
    uint32_t inputs = 0;
    if (b->hidden_stride == FS_STRIDE_BROADCAST) inputs |= FS_INPUT_BROADCAST;
    if (b->extra_offset) inputs |= FS_INPUT_EXTRA_TOKENS;
    return inputs;
}

fs_status fs_check_supported(fs_context *context, int32_t call, const fs_arguments *a) {
    const fs_head *h = &a->head;
    const fs_batch *b = &a->batch;
    fs_call_desc o = fs_call_desc_default();
    o.call = call;
    o.kind = h->kind;
    o.dtype = h->dtype;
    o.hidden_dtype = b->hidden_dtype;
    o.mode = b->mode;
    o.noise = b->noise;
    o.samples = b->samples;
    o.logits_mode = a->result.logits_mode;
    o.rules = batch_rules(h, b);
    o.results = results_of(&a->result);
    o.flags = b->flags;
    o.inputs = inputs_of(b);
    o.group_size = b->group_size;
    const char *words = lack_of(context->backend, &o);
    return words ? fs_fail(context, FS_ERR_UNSUPPORTED, "%s", words) : FS_OK;
}

/* ----------------------------------------------------------------------------------------------- fs_supports ---- */

/* The words are constant; the text has the value too. */
#define FS_DESC(condition, member, words)                                                                              \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        *why = "call_desc." #member " must be " words;                                                                 \
        return fs_fail(NULL, FS_ERR_ARGUMENT, "%s, not %lld", *why, (long long)o->member);                             \
    } while (0)

static fs_status check_desc(const fs_call_desc *o, const char **why) {
    const int weights = o->kind == FS_HEAD_WEIGHTS;
    const int grouped = is_group_mode(o->mode);
    FS_DESC(o->call >= FS_CALL_SAMPLE && o->call <= FS_CALL_RANKS, call, "FS_CALL_SAMPLE (0) to FS_CALL_RANKS (2)");
    FS_DESC(weights || o->kind == FS_HEAD_LOGITS, kind, "FS_HEAD_WEIGHTS (0) or FS_HEAD_LOGITS (1)");
    FS_DESC(dtype_is_float(o->dtype) || (weights && fs_quantised_lack(o->dtype)), dtype,
            FS_FLOAT_WORDS ", or for weights one of fewer bits");
    FS_DESC(!weights || dtype_is_float(o->hidden_dtype), hidden_dtype, FS_FLOAT_WORDS);
    FS_DESC(o->mode >= FS_MODE_SAMPLE && o->mode <= FS_MODE_SCORE, mode, "FS_MODE_SAMPLE (0) to FS_MODE_SCORE (4)");
    FS_DESC(o->noise == FS_NOISE_EXACT || o->noise == FS_NOISE_FAST, noise, "FS_NOISE_EXACT (0) or FS_NOISE_FAST (1)");
    FS_DESC(o->samples >= 1 && o->samples <= FS_SAMPLES_MOST, samples, "1 to 1024");
    FS_DESC(!grouped || o->samples == 1, samples, "1 in group modes");
    FS_DESC(o->logits_mode >= FS_LOGITS_RAW && o->logits_mode <= FS_LOGITS_CUT, logits_mode,
            "FS_LOGITS_RAW (0) to FS_LOGITS_CUT (2)");
    FS_DESC((o->rules & ~FS_RULES_KNOWN) == 0, rules, "of the bits FS_RULE_... (0x3f)");
    FS_DESC(!grouped || (o->rules & FS_RULES_CUT) == 0, rules, "without cuts in group modes");
    FS_DESC((o->results & ~FS_RESULTS_KNOWN) == 0, results, "of the bits FS_RESULT_... (0x3ff)");
    FS_DESC((o->flags & ~FS_FLAGS_KNOWN) == 0, flags, "of the bits of batch.flags (0xff)");
    FS_DESC((o->inputs & ~FS_INPUTS_KNOWN) == 0, inputs, "of the bits FS_INPUT_... (0x3)");
    FS_DESC(!grouped || (o->group_size >= (o->call == FS_CALL_SAMPLE) && o->group_size < FS_TOKEN_LIMIT), group_size,
            "1 to 16777215 in group modes");
    return FS_OK;
}

fs_status fs_supports(int32_t kind, const fs_call_desc *given, const char **why) {
    const char *words;
    fs_call_desc call;
    if (!why) why = &words;
    *why = "call is not one this version knows: start from fs_call_desc_default()";
    FS_COPY(NULL, call_desc, given, &call, group_size);
    if (call.samples == 0) call.samples = 1;
    FS_TRY(check_desc(&call, why));
    const fs_backend *backend;
    const fs_status found = fs_backend_find(kind, &backend, why);
    if (found != FS_OK) return fs_fail(NULL, found, "%s; backend is %d", *why, kind);
    *why = lack_of(backend, &call);
    if (*why) return fs_fail(NULL, FS_ERR_UNSUPPORTED, "%s", *why);
    *why = "";
    return FS_OK;
}
