/* prepared.c - a call of flashsampling.Sampler: looks whether it is like the last one, exchanges pointers, draws.
 *
 * The tensor is read through DLPack's table of functions, which torch keeps for this: 20 ns, where asking the object
 * for its type, shape, strides and address one by one takes 600 (Neoverse V1, November 2026). Of Python only functions
 * of its stable ABI are called, found in the process that loads this: its headers are not needed. */
#include "python_calls.h"

typedef struct python_method {
    const char *name;
    void *(*function)(void *self, void *argument);
    int flags;
    const char *text;
} python_method;
enum { ONE_ARGUMENT = 8 }; /* METH_O */

void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
void *PyObject_Type(void *);
void *PyObject_CallFunctionObjArgs(void *, ...);
void *PyCFunction_NewEx(python_method *, void *self, void *module);
void *PyLong_FromVoidPtr(void *);
void *PyLong_AsVoidPtr(void *);
void *Py_BuildValue(const char *, ...);
void PyErr_Clear(void);
int PyErr_CheckSignals(void);
void Py_IncRef(void *);
void Py_DecRef(void *);

static int is_type(void *object, void *type) {
    void *found = PyObject_Type(object);
    Py_DecRef(found); /* the object holds it */
    return found == type;
}

/* Packed rows of the type, width and device of the last call, and as many. */
static int is_like(const fs_prepared *p, const fs_dl_tensor *t) {
    return t->dims == 2 && t->sizes[0] == p->rows && t->sizes[1] == p->columns && t->device_kind == p->device_kind &&
           t->device == p->device && t->code == p->code && t->bits == p->bits && t->lanes == 1 && t->offset == 0 &&
           (!t->strides || ((p->columns <= 1 || t->strides[1] == 1) && (p->rows <= 1 || t->strides[0] == p->columns)));
}

/* Whether a function of Python's, of one object or of none, says anything but no. */
static int says_yes(const fs_prepared *p, void *function, void *object) {
    void *found = PyObject_CallFunctionObjArgs(function, object, (void *)NULL);
    if (!found) PyErr_Clear();
    Py_DecRef(found);
    return found != p->no;
}

static int view(const fs_prepared *p, void *object, fs_dl_tensor *out) {
    if (p->view(object, out) == 0) return 1;
    PyErr_Clear();
    return 0;
}

/* The context's calls go to torch's current stream. */
static fs_status follow(fs_prepared *p) {
    void *stream = NULL;
    if (*p->stream_now == FS_PYTHON_STAY) return FS_OK;
    if (*p->stream_now == FS_PYTHON_CLOSED) return FS_ERR_STATE;
    if (p->current_stream(p->device_kind, p->device, &stream) != 0) {
        PyErr_Clear();
        return FS_ERR_DEVICE;
    }
    if ((int64_t)(intptr_t)stream == *p->stream_now) return FS_OK;
    const fs_status status = p->set_stream(p->context, fs_stream(stream));
    if (status == FS_OK) *p->stream_now = (int64_t)(intptr_t)stream;
    return status;
}

/* Whether the tensor can be drawn from as it is, and where it lies. */
static int look(const fs_prepared *p, void *hidden, const void **address) {
    fs_dl_tensor tensor;
    if (p->rows < 0 || !is_type(hidden, p->tensor) || !view(p, hidden, &tensor) || !is_like(p, &tensor)) return 0;
    *address = tensor.data;
    if (p->weights && (!view(p, p->weights, &tensor) || tensor.data != p->place)) return 0;
    return !says_yes(p, p->is_negative, hidden); /* a view that negates its memory: DLPack does not tell */
}

/* Whether every row was drawn. If not, Python makes the call again, at the same position, and raises the error. */
static int draw(fs_prepared *p, const void *address) {
    if (follow(p) != FS_OK) return 0;
    *p->input = address;
    if (p->position_at) *p->position_at = p->position;
    *p->in_c = 1;
    void *thread = PyEval_SaveThread();
    const fs_status status = p->sample(p->context, p->head, p->batch, p->result);
    PyEval_RestoreThread(thread);
    *p->in_c = 0;
    return status == FS_OK && !(p->status && fs_python_lacks(p->status, p->rows));
}

/* The GIL keeps apart who looks whether the context is free and who takes it: a call of Python's own takes the lock,
 * then looks at in_c; this one looks at the lock and sets in_c, and gives the GIL away only then. */
static void *call(void *self, void *hidden) {
    fs_prepared *p = PyLong_AsVoidPtr(self);
    const void *address;
    if (!look(p, hidden, &address) || *p->in_c || says_yes(p, p->locked, NULL) || !draw(p, address))
        return Py_BuildValue("");
    const uint64_t next = p->position + 1;
    if (p->position_at) p->position = next;
    if (PyErr_CheckSignals()) { /* an interrupt takes the result away: the next call has this position */
        if (p->position_at && p->position == next) p->position--;
        return NULL;
    }
    Py_IncRef(p->drawn);
    return p->drawn;
}

void *fs_python_prepare(fs_prepared *prepared) {
    static python_method method = {"prepared", call, ONE_ARGUMENT, NULL};
    void *self = PyLong_FromVoidPtr(prepared);
    void *made = self ? PyCFunction_NewEx(&method, self, NULL) : NULL;
    Py_DecRef(self);
    return made;
}

#define MEMBER(type, name)                                                                                             \
    { #type "." #name, offsetof(type, name), sizeof((type *)0)->name }
#define PREPARED(name) MEMBER(fs_prepared, name)
#define LIBRARY(name) MEMBER(fs_python_library, name)

const fs_python_member *fs_python_layout(void) {
    static const fs_python_member members[] = {
        PREPARED(view),        PREPARED(current_stream), PREPARED(tensor),     PREPARED(is_negative),
        PREPARED(no),          PREPARED(locked),         PREPARED(in_c),       PREPARED(weights),
        PREPARED(place),       PREPARED(device_kind),    PREPARED(device),     PREPARED(code),
        PREPARED(bits),        PREPARED(rows),           PREPARED(columns),    PREPARED(input),
        PREPARED(position_at), PREPARED(position),       PREPARED(stream_now), PREPARED(set_stream),
        PREPARED(sample),      PREPARED(context),        PREPARED(head),       PREPARED(batch),
        PREPARED(result),      PREPARED(status),         PREPARED(drawn),      LIBRARY(create),
        LIBRARY(destroy),      LIBRARY(sample),          LIBRARY(set_stream),  LIBRARY(error_text),
        LIBRARY(status_text),  LIBRARY(options),         {NULL, 0, 0}};
    return members;
}
