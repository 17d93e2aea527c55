/* torch_ops.c - torch.ops.flashsampling in C: from torch's arguments to fs_sample and back, without Python.
 *
 * torch hands a kernel a stack of words, with everything they point to, and takes its results from there:
 *   Tensor   a handle           Tensor?  NULL, or a word from C++'s new with a handle in it
 *   float    a double           int, SymInt, bool  an int64_t     str  a handle of another kind
 *   SymInt?  NULL, or a word from C++'s new
 * The arguments are those of the schemas in python/flashsampling/torch.py, in their order. One kernel serves all of the
 * operators: how many words there are tells stored logits from weights and whether rules follow, how many results are
 * wanted tells whether logprobs are among them.
 *
 * A thread has a context for each device it draws on, from its first call to its end. torch calls without the GIL.
 * What is wrong leaves as torch's own exception, a RuntimeError, through these frames (-fexceptions). */
#include "python_calls.h"
#include "torch_api.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    HIDDEN,
    DATA,
    BIAS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    SEED,
    POSITION,
    FEW, /* words of the operators without rules */
    SLOT = FEW,
    ALLOW,
    ALLOW_INDEX,
    TENSORS, /* all up to here are tensors */
    TEMPERATURE_ALL = TENSORS,
    TOP_K_ALL,
    TOP_P_ALL,
    MIN_P_ALL,
    SEED_ALL,
    POSITION_ALL,
    SAMPLES,
    FLAGS,
    VOCAB,
    ROUND,
    SCALE,
    SOFTCAP,
    POST_SCALE,
    RAISE,
    ALL
};
static const char *const names[TENSORS] = {"hidden", "weight", "bias",     "temperature", "top_k", "top_p",
                                           "min_p",  "seed",   "position", "slot",        "allow", "allow_index"};

/* A thread's context for one device. */
typedef struct context_of {
    struct context_of *next;
    const fs_python_library *library;
    fs_context *context;
    void *stream;
    int32_t device, index, followed; /* whether `stream` is the context's already */
    unsigned forks;
} context_of;

typedef struct call {
    int32_t stored; /* logits take the place of weights */
    int32_t flat;   /* `samples` was not given: results are [B] */
    fs_tensor tensors[TENSORS];
    uint64_t words[ALL];
    fs_head head;
    fs_batch batch;
    fs_rules rules;
    fs_result result;
    void *made[3];    /* results: tokens, logprob, status */
    uint32_t *status; /* [rows] of a call on the CPU whose rows may end it, and which is not asked for statuses */
    char text[1024];
} call;

static fs_torch torch;
static fs_python_find find_library;
static fs_python_make_room make_room;
static fs_python_rows_text rows_text;
static _Atomic(const fs_python_library *) libraries[2]; /* CPU, CUDA */
static pthread_key_t key;
static unsigned forks;

/* ----------------------------------------------------------------------------------------------------- contexts --- */

static void forget(void *list) {
    for (context_of *own = list, *next; own; own = next) {
        next = own->next;
        if (own->context) own->library->destroy(own->context);
        free(own);
    }
}

static void forked(void) {
    forks++;
}

static const fs_python_library *library_for(int32_t cuda) {
    const fs_python_library *library = atomic_load(&libraries[cuda]);
    if (!library) atomic_store(&libraries[cuda], library = find_library(cuda));
    return library;
}

static int failed(call *c, const fs_python_library *library, const fs_context *context, fs_status status) {
    snprintf(c->text, sizeof c->text, "%s: %s", library->status_text(status), library->error_text(context));
    return 0;
}

/* This thread's context for the device of the data, or NULL. */
static context_of *own_context(call *c) {
    const fs_tensor *data = &c->tensors[DATA];
    context_of *own = pthread_getspecific(key);
    while (own && (own->device != data->device || own->index != data->index)) own = own->next;
    if (!own) {
        const fs_python_library *library = library_for(data->device == torch.cuda);
        own = library ? calloc(1, sizeof *own) : NULL;
        if (!own) {
            snprintf(c->text, sizeof c->text, library ? "no memory" : "the library was not found");
            return NULL;
        }
        own->library = library, own->device = data->device, own->index = data->index;
        own->next = pthread_getspecific(key);
        pthread_setspecific(key, own);
    }
    if (own->context && own->forks != forks) { /* the parent's: here it can only be destroyed */
        own->library->destroy(own->context);
        own->context = NULL;
    }
    if (!own->context) {
        fs_options options = own->library->options;
        options.device = data->index < 0 ? 0 : data->index;
        const fs_status status = own->library->create(&options, &own->context);
        if (status != FS_OK) return failed(c, own->library, NULL, status), NULL;
        own->forks = forks, own->followed = 0;
    }
    return own;
}

/* ------------------------------------------------------------------------------------------------------ checks ---- */

static int refuse(call *c, int name, uint32_t types, const char *shape) {
    char found[256], wanted[96], device[24] = "cpu";
    const fs_tensor *data = &c->tensors[DATA];
    fs_tensor_text(&torch, &c->tensors[name], found, sizeof found);
    fs_types_text(types, wanted, sizeof wanted);
    if (data->device == torch.cuda) snprintf(device, sizeof device, "cuda:%d", (int)data->index);
    snprintf(c->text, sizeof c->text, "%s: %s; expected %s%s on %s, packed",
             c->stored && name == DATA ? "logits" : names[name], found, wanted, shape, device);
    return 0;
}

static int same_device(const call *c, const fs_tensor *t) {
    return t->device == c->tensors[DATA].device && t->index == c->tensors[DATA].index;
}

/* The address of a packed tensor [length], NULL where it is absent. */
static int set_vector(call *c, int name, uint32_t types, int64_t length, void *place) {
    const fs_tensor *t = &c->tensors[name];
    char shape[32];
    if (!t->handle) return 1;
    if (t->dims != 1 || !(types >> t->type & 1) || !same_device(c, t) || t->sizes[0] != length ||
        (length > 1 && t->strides[0] != 1)) {
        snprintf(shape, sizeof shape, "[%lld]", (long long)length);
        return refuse(c, name, types, shape);
    }
    memcpy(place, &t->data, sizeof t->data);
    return 1;
}

/* A matrix whose rows may be apart: their stride in bytes, 0 = packed. columns -1: any. */
static int row_stride(call *c, int name, int64_t columns, int64_t *stride) {
    const fs_tensor *t = &c->tensors[name];
    char shape[48];
    int good = t->dims == 2 && (FLOATS >> t->type & 1) && same_device(c, t) &&
               (columns < 0 || t->sizes[1] == columns) && (t->sizes[1] <= 1 || t->strides[1] == 1);
    if (good) {
        const int packed = t->sizes[0] <= 1 || t->sizes[1] == 0 || t->strides[0] == t->sizes[1];
        *stride = packed ? 0 : t->strides[0] * (t->type == F32 ? 4 : 2);
        good = packed || *stride > 0; /* 0: expanded, which would be taken for packed */
    }
    if (good) return 1;
    if (columns < 0) snprintf(shape, sizeof shape, "[rows, columns]");
    else snprintf(shape, sizeof shape, "[rows, %lld]", (long long)columns);
    return refuse(c, name, FLOATS, shape);
}

static double real(const call *c, int name) {
    double value;
    memcpy(&value, &c->words[name], sizeof value);
    return value;
}

/* Checks numbers that hold for all rows. The limits are those of _numbers.py. */
static int check_numbers(call *c) {
    static const struct {
        int place;
        const char *name, *range;
        double least, most;
    } numbers[] = {{TEMPERATURE_ALL, "temperature", "0 (greedy) or more", 0.0, FLT_MAX},
                   {TOP_P_ALL, "top_p", "from 0 to 1 (off)", 0.0, 1.0 + 1e-5},
                   {MIN_P_ALL, "min_p", "from 0 (off) to 1", 0.0, 1.0}};
    for (int i = 0; i < 3; i++) {
        const double value = real(c, numbers[i].place);
        const int vanishes = i == 0 && value > 0.0 && value < 1e-45; /* a float has it as 0, which is greedy */
        if (value >= numbers[i].least && value <= numbers[i].most && !vanishes) continue;
        snprintf(c->text, sizeof c->text, "%s: %g, expected a number %s", numbers[i].name, value, numbers[i].range);
        return 0;
    }
    for (int name = SCALE; name <= POST_SCALE; name += POST_SCALE - SCALE)
        if (fabs(real(c, name)) < FLT_MIN) {
            snprintf(c->text, sizeof c->text, "%s: %g, expected a number other than 0",
                     name == SCALE ? "scale" : "post_scale", real(c, name));
            return 0;
        }
    return 1;
}

static int set_round(call *c) {
    static const char *const rounds[] = {"f32", "f16", "bf16"}; /* FS_F32, FS_F16, FS_BF16 */
    const char *text = "f32";
    if (c->words[ROUND] && torch.string_c_str((void *)(uintptr_t)c->words[ROUND], &text)) text = "?";
    for (c->head.round_to = 0; c->head.round_to < 3; c->head.round_to++)
        if (strcmp(rounds[c->head.round_to], text) == 0) return 1;
    snprintf(c->text, sizeof c->text, "round_to '%s': expected one of f32, f16, bf16", text);
    return 0;
}

static int set_head(call *c) {
    const fs_tensor *data = &c->tensors[DATA];
    fs_head *head = &c->head;
    if (!row_stride(c, DATA, -1, &head->stride)) return 0;
    head->kind = c->stored ? FS_HEAD_LOGITS : FS_HEAD_WEIGHTS;
    head->dtype = data->type; /* F32, F16, BF16 are FS_F32, FS_F16, FS_BF16 */
    head->data = data->data;
    head->rows = data->sizes[c->stored];
    head->dim = c->stored ? 0 : data->sizes[1];
    head->vocab = (int64_t)c->words[VOCAB];
    head->scale = (float)real(c, SCALE), head->softcap = (float)real(c, SOFTCAP);
    head->post_scale = (float)real(c, POST_SCALE);
    return set_round(c) && set_vector(c, BIAS, 1u << F32, head->rows, &head->bias);
}

static int set_masks(call *c) {
    const fs_tensor *allow = &c->tensors[ALLOW];
    const int64_t rows = c->batch.rows, vocab = c->head.vocab ? c->head.vocab : c->head.rows, words = (vocab + 31) / 32;
    const int64_t least = c->tensors[ALLOW_INDEX].handle ? 0 : rows;
    char shape[64];
    if (!allow->handle) {
        if (!c->tensors[ALLOW_INDEX].handle) return 1;
        snprintf(c->text, sizeof c->text, "allow_index: given without allow");
        return 0;
    }
    if (!set_vector(c, ALLOW_INDEX, 1u << I32, rows, &c->batch.allow_index)) return 0;
    if (allow->dims != 2 || !(WORDS >> allow->type & 1) || !same_device(c, allow) || allow->strides[1] != 1 ||
        allow->sizes[0] < least || allow->sizes[1] < words || (allow->sizes[0] > 1 && allow->strides[0] < words)) {
        snprintf(shape, sizeof shape, "[%lld or more, %lld or more]", (long long)least, (long long)words);
        return refuse(c, ALLOW, WORDS, shape);
    }
    c->batch.allow = allow->data, c->batch.allow_stride = allow->strides[0] * 4, c->batch.allow_count = allow->sizes[0];
    return 1;
}

/* The length of arrays by slot: without any there are as many slots as anybody names. */
static int64_t count_slots(const call *c) {
    if (!c->tensors[SLOT].handle) return c->batch.rows;
    for (const fs_tensor *t = &c->tensors[TEMPERATURE]; t <= &c->tensors[SEED]; t++)
        if (t->handle) return t->dims ? t->sizes[0] : 1;
    return INT32_MAX;
}

static int set_batch(call *c) {
    const fs_tensor *hidden = &c->tensors[HIDDEN], *data = &c->tensors[DATA];
    fs_batch *batch = &c->batch;
    fs_rules *rules = &c->rules;
    batch->rules = rules;
    batch->rows = data->sizes[0];
    if (!c->stored) {
        if (!row_stride(c, HIDDEN, data->sizes[1], &batch->hidden_stride)) return 0;
        batch->hidden = hidden->data, batch->hidden_dtype = hidden->type, batch->rows = hidden->sizes[0];
    }
    const int64_t slots = batch->slots = count_slots(c), top_k = (int64_t)c->words[TOP_K_ALL];
    const int64_t samples = (int64_t)c->words[SAMPLES];
    batch->samples = samples < 0 || samples > INT32_MAX ? -1 : (int32_t)samples;
    batch->flags = (uint32_t)c->words[FLAGS];
    batch->position_all = c->words[POSITION_ALL];
    rules->temperature.value = (float)real(c, TEMPERATURE_ALL);
    rules->top_k.value = top_k < 0 || top_k > INT32_MAX ? 0 : (int32_t)top_k; /* off, as what no vocabulary reaches */
    /* The library's 0 is its default: the least number keeps one token, as 0 is to. */
    rules->top_p.value = (float)fmin(fmax(real(c, TOP_P_ALL), FLT_MIN), 1.0),
    rules->min_p.value = (float)real(c, MIN_P_ALL);
    batch->seed_all = c->words[SEED_ALL];
    batch->slot_dtype = c->tensors[SLOT].type == I64 ? FS_I64 : FS_I32;
    return set_vector(c, TEMPERATURE, 1u << F32, slots, &rules->temperature.per_slot) &&
           set_vector(c, TOP_K, 1u << I32, slots, &rules->top_k.per_slot) &&
           set_vector(c, TOP_P, 1u << F32, slots, &rules->top_p.per_slot) &&
           set_vector(c, MIN_P, 1u << F32, slots, &rules->min_p.per_slot) &&
           set_vector(c, SEED, LONGS, slots, &batch->seed) &&
           set_vector(c, POSITION, LONGS, batch->rows, &batch->position) &&
           set_vector(c, SLOT, 1u << I32 | 1u << I64, batch->rows, &batch->slot) && set_masks(c);
}

/* -------------------------------------------------------------------------------------------------------- call ---- */

/* The words by their names, and the tensors among them. */
static int take(call *c, const uint64_t *stack, uint64_t inputs) {
    static const double one = 1.0;
    c->stored = inputs == FEW - 1 || inputs == ALL - 1;
    const uint64_t count = inputs + (uint64_t)c->stored;
    memcpy(&c->words[TEMPERATURE_ALL], &one, sizeof one), memcpy(&c->words[TOP_P_ALL], &one, sizeof one);
    memcpy(&c->words[SCALE], &one, sizeof one), memcpy(&c->words[POST_SCALE], &one, sizeof one);
    c->words[RAISE] = 1;
    memcpy(&c->words[c->stored], stack, inputs * sizeof *stack);
    int good = count == FEW || count == ALL;
    uint64_t *samples = (uint64_t *)(uintptr_t)c->words[SAMPLES];
    c->flat = samples == NULL;
    c->words[SAMPLES] = samples ? *samples : 1;
    if (samples) torch.delete_word(samples);
    if (!good) snprintf(c->text, sizeof c->text, "%d arguments", (int)inputs);
    for (int name = c->stored; name < TENSORS && name < (int)count; name++) {
        uint64_t *word = name == HIDDEN || name == DATA ? &c->words[name] : (uint64_t *)(uintptr_t)c->words[name];
        if (!word) continue;
        fs_tensor *t = &c->tensors[name];
        if (good && !fs_tensor_look(&torch, (void *)(uintptr_t)*word, t)) {
            snprintf(c->text, sizeof c->text, "%s: torch does not show this tensor", names[name]);
            good = 0;
        }
        t->handle = (void *)(uintptr_t)*word;
        if (word != &c->words[name]) torch.delete_word(word);
    }
    return good;
}

static int make_result(call *c, int which, int type, int64_t columns, void **place) {
    const fs_tensor *data = &c->tensors[DATA];
    const int64_t sizes[2] = {c->batch.rows, columns}, strides[2] = {columns ? columns : 1, 1};
    if (torch.empty_strided(columns ? 2 : 1, sizes, strides, torch.dtype[type], data->device, data->index,
                            &c->made[which]) == 0 &&
        torch.get_data_ptr(c->made[which], place) == 0)
        return 1;
    snprintf(c->text, sizeof c->text, "torch has no memory for the results of %lld rows", (long long)c->batch.rows);
    return 0;
}

/* Whether a row that lacks a token ends the call: on CUDA it is not known before the device has drawn. */
static int raises(const call *c) {
    return (uint8_t)c->words[RAISE] != 0 && c->tensors[DATA].device == torch.cpu;
}

static int make_results(call *c, uint64_t outputs) {
    void *tokens, *logprob, *status;
    if (c->batch.samples < 1 || c->batch.samples > 1024) { /* no tensor is made of a wrong number */
        snprintf(c->text, sizeof c->text, "argument: samples is %lld, must be 1 to 1024", (long long)c->words[SAMPLES]);
        return 0;
    }
    const int64_t columns = c->flat ? 0 : c->batch.samples;
    if (!make_result(c, 0, I64, columns, &tokens)) return 0;
    c->result.tokens = tokens, c->result.tokens_dtype = FS_I64;
    if (outputs == 1) {
        if (!raises(c) || c->batch.rows == 0) return 1;
        c->result.status = c->status = calloc((size_t)c->batch.rows, sizeof *c->status);
        if (!c->status) snprintf(c->text, sizeof c->text, "no memory for %lld statuses", (long long)c->batch.rows);
        return c->status != NULL;
    }
    if (!make_result(c, 1, F32, columns, &logprob) || !make_result(c, 2, I32, 0, &status)) return 0;
    c->result.logprob = logprob, c->result.status = status;
    return 1;
}

static int follow(call *c, context_of *own) {
    void *stream = NULL;
    if (own->device != torch.cuda) return 1;
    if (!torch.current_cuda_stream || torch.current_cuda_stream(own->index, &stream)) {
        snprintf(c->text, sizeof c->text, "torch names no current stream of cuda:%d", (int)own->index);
        return 0;
    }
    if (own->followed && stream == own->stream) return 1;
    const fs_status status = own->library->set_stream(own->context, fs_stream(stream));
    if (status != FS_OK) return failed(c, own->library, own->context, status);
    own->stream = stream, own->followed = 1;
    return 1;
}

static int draw(call *c, uint64_t outputs) {
    if (!check_numbers(c) || !set_head(c) || !set_batch(c) || !make_results(c, outputs)) return 0;
    context_of *own = own_context(c);
    if (!own || !follow(c, own)) return 0;
    fs_status status = own->library->sample(own->context, &c->head, &c->batch, &c->result);
    if (status == FS_ERR_MEMORY && own->device == torch.cuda && make_room(own->index))
        status = own->library->sample(own->context, &c->head, &c->batch, &c->result);
    if (status != FS_OK) return failed(c, own->library, own->context, status);
    if (!raises(c) || !fs_python_lacks(c->result.status, c->batch.rows)) return 1;
    rows_text(c->result.status, c->batch.rows, c->text, (int32_t)sizeof c->text);
    return 0;
}

void fs_python_torch_draw(uint64_t *stack, uint64_t inputs, uint64_t outputs) {
    call c;
    memset(&c, 0, sizeof c);
    c.head = fs_head_default(), c.batch = fs_batch_default(), c.rules = fs_rules_default(),
    c.result = fs_result_default();
    const int good = take(&c, stack, inputs) && draw(&c, outputs);
    for (int name = 0; name < TENSORS; name++)
        if (c.tensors[name].handle) torch.delete_tensor(c.tensors[name].handle);
    if (c.words[ROUND]) torch.delete_string((void *)(uintptr_t)c.words[ROUND]);
    free(c.status);
    for (uint64_t i = 0; i < outputs && i < 3; i++) {
        if (good) stack[i] = (uintptr_t)c.made[i];
        else if (c.made[i]) torch.delete_tensor(c.made[i]);
    }
    if (!good) torch.check(false, __func__, __FILE__, __LINE__, c.text);
}

const char *fs_python_torch_open(fs_python_find find, fs_python_make_room room, fs_python_rows_text text) {
    find_library = find, make_room = room, rows_text = text;
    const char *missing = fs_torch_find(&torch);
    if (missing) return missing;
    return pthread_key_create(&key, forget) || pthread_atfork(NULL, NULL, forked) ? "pthread_key_create" : NULL;
}

const char *fs_python_torch_register(const char *name) {
    static const char *const keys[2] = {"CPU", "CUDA"};
    static void *registered[2]; /* for as long as the process lives */
    for (int i = 0; i < 2; i++) {
        if (!registered[i] && torch.library_init_impl("flashsampling", keys[i], __FILE__, __LINE__, &registered[i]))
            return "aoti_torch_library_init_impl";
        if (torch.library_impl(registered[i], name, fs_python_torch_draw, torch.abi_version()))
            return "torch_library_impl";
    }
    return NULL;
}
