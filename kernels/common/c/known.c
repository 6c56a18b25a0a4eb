// common/known: calls that a thread has made before, from the objects of Python straight to the kernels.
//
// `ks_known_call` is the body of a function of Python (METH_FASTCALL). It looks the arguments up in a table of the
// calling thread, checks what may differ from call to call, and runs the kernels without Python's lock. Small problems
// would spend more time on these steps in Python than on arithmetic.
//
// Form    what decides how kernels take an argument. Of an array: shape, strides and dtype; of a float whether it is 0;
//         of anything else which object it is. Who adds a call keeps dtypes and such objects alive, and adds none that
//         can change.
// Checks  every array lies at a multiple of its itemsize; the output is writable and apart from the inputs, or just
//         where the one lies that may be the output. If not so, or not known: None, and the caller takes the long way.
// Python  needs no header of Python or NumPy: whoever loads this has checked where things lie and says it in `ks_python`.
// Lock    everything here but the kernels runs under Python's lock.

#include <stdint.h>
#include <string.h>

#include "kernsearch.h"

#define MAX_WORDS 128
#define MAX_OPERANDS 16
#define SLOTS 8192  // a power of two, and twice as many as calls are kept
#define WRITEABLE 0x0400

typedef struct ks_object ks_object;  // any object of Python

typedef struct ks_python {
    int64_t head;                     // bytes before what an object holds; the last eight are its type
    const void *array, *number;       // the types of arrays and floats
    ks_object *none, *empty;          // None, numpy.empty
    void *(*release)(void);           // PyEval_SaveThread
    void (*acquire)(void *state);     // PyEval_RestoreThread
    void (*keep)(ks_object *);        // Py_IncRef
    void (*drop)(ks_object *);        // Py_DecRef
    ks_object *(*call)(ks_object *function, ks_object *arguments);  // PyObject_CallObject
    char *(*bytes)(ks_object *);      // PyByteArray_AsString
    void (*launch)(int64_t count, const void *kernels, const void *calls);  // ks_launch
} ks_python;

typedef struct {
    char *data;
    int32_t dimensions;
    const int64_t *shape, *strides;
    ks_object *base, *dtype;
    int32_t flags;
} ks_array;

typedef struct {
    int64_t argument, low, high;  // which argument; its first byte and one past the last, relative to its address
} ks_operand;

typedef struct {
    uint64_t *place;  // where kernels look for the address
    int64_t operand;
} ks_place;

typedef struct {
    double *place;
    int64_t argument;             // which float, or -1: `value`
    double value;
} ks_number;

typedef struct ks_known {
    uint64_t hash;
    int64_t words, form[MAX_WORDS];
    int64_t operands;
    const ks_operand *operand;
    int64_t output, in_place;     // which operand is written; which one may lie where it does, or -1
    uint64_t mask;                // address bits that must be 0
    int64_t places, numbers;
    const ks_place *place;
    const ks_number *number;
    int64_t kernels;
    const void *kernel, *call;    // what ks_launch takes
    ks_object *make;              // arguments of `empty` for an output that is not given
} ks_known;

typedef struct ks_known_table {
    ks_known *slots[SLOTS];
} ks_known_table;

static ks_python python;

void ks_known_set_up(const ks_python *told) { python = *told; }

int64_t ks_known_sizes(int64_t which) {
    return which ? (int64_t)sizeof(ks_known) : (int64_t)sizeof(ks_known_table);
}

static const void *type_of(const ks_object *object) {
    const void *type;
    memcpy(&type, (const char *)object + python.head - sizeof type, sizeof type);
    return type;
}

static const ks_array *array_of(const ks_object *object) {
    return (const ks_array *)((const char *)object + python.head);
}

static double number_of(const ks_object *object) {
    double value;
    memcpy(&value, (const char *)object + python.head, sizeof value);
    return value;
}

// The form of a call in `words`; how many there are, 0 when it has too many.
static int64_t form_of(ks_object *const *arguments, int64_t count, int64_t *words) {
    int64_t used = 1, kinds = 0;
    if (count > MAX_OPERANDS) return 0;
    for (int64_t i = 0; i < count; i++) {
        const ks_object *object = arguments[i];
        const void *type = type_of(object);
        if (type == python.array) {
            const ks_array *x = array_of(object);
            if (used + 2 + 2 * x->dimensions >= MAX_WORDS - MAX_OPERANDS) return 0;
            words[used++] = x->dimensions;
            for (int32_t d = 0; d < x->dimensions; d++) words[used++] = x->shape[d], words[used++] = x->strides[d];
            words[used++] = (int64_t)x->dtype;
            kinds |= (int64_t)1 << 2 * i;
        } else if (type == python.number) {
            words[used++] = number_of(object) == 0;
            kinds |= (int64_t)2 << 2 * i;
        } else {
            words[used++] = (int64_t)object;
        }
    }
    words[0] = kinds << 8 | count;
    return used;
}

// The slot of a call of this form: its own, or the empty one where it belongs.
static ks_known **slot_of(ks_known_table *table, const int64_t *words, int64_t used, uint64_t *hash) {
    uint64_t h = (uint64_t)used;
    for (int64_t i = 0; i < used; i++) h = (h ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    *hash = h;
    for (;; h++) {
        ks_known **slot = &table->slots[h % SLOTS];
        if (!*slot) return slot;
        if ((*slot)->hash == *hash && (*slot)->words == used && !memcmp((*slot)->form, words, 8 * (size_t)used))
            return slot;
    }
}

static ks_known *find(ks_known_table *table, ks_object *const *arguments, int64_t count) {
    int64_t words[MAX_WORDS];
    uint64_t hash;
    const int64_t used = form_of(arguments, count, words);
    return used ? *slot_of(table, words, used, &hash) : NULL;
}

// Remember a call, of which all but its form is filled in; `known` stays with the caller, who sees to it that no more
// than half of the slots get used. With NULL: is there such a call? Returns 1 when there is one now, 0 when the form is
// too long.
int64_t ks_known_add(ks_known_table *table, ks_object *const *arguments, int64_t count, ks_known *known) {
    if (!known) return find(table, arguments, count) != NULL;
    known->words = form_of(arguments, count, known->form);
    if (!known->words) return 0;
    ks_known **slot = slot_of(table, known->form, known->words, &known->hash);
    *slot = known;
    return 1;
}

// Fill in the addresses and numbers of this call, if its arrays lie as they must: do they?
static int placed(const ks_known *known, ks_object *const *arguments, const ks_object *result) {
    uint64_t address[MAX_OPERANDS], all = 0;
    for (int64_t i = 0; i < known->operands; i++) {
        const ks_object *object = i == known->output ? result : arguments[known->operand[i].argument];
        all |= address[i] = (uint64_t)array_of(object)->data;
    }
    if (all & known->mask || !(array_of(result)->flags & WRITEABLE)) return 0;
    const ks_operand *out = &known->operand[known->output];
    const uint64_t at = address[known->output];
    for (int64_t i = 0; i < known->operands; i++) {
        const ks_operand *in = &known->operand[i];
        if (i == known->output || (i == known->in_place && address[i] == at)) continue;
        if (at + (uint64_t)out->low < address[i] + (uint64_t)in->high &&
            address[i] + (uint64_t)in->low < at + (uint64_t)out->high)
            return 0;
    }
    for (int64_t i = 0; i < known->places; i++) *known->place[i].place = address[known->place[i].operand];
    for (int64_t i = 0; i < known->numbers; i++) {
        const ks_number *n = &known->number[i];
        *n->place = n->argument < 0 ? n->value : number_of(arguments[n->argument]);
    }
    return 1;
}

// The function of Python: the output, given or new, or None when the call must go the long way.
ks_object *ks_known_call(ks_object *self, ks_object *const *arguments, int64_t count) {
    ks_known_table *table = (ks_known_table *)python.bytes(self);
    const ks_known *known = find(table, arguments, count);
    if (known) {
        ks_object *result = arguments[known->operand[known->output].argument];
        if (result != python.none) {
            python.keep(result);
        } else {
            result = python.call(python.empty, known->make);
            if (!result) return NULL;
            known = find(table, arguments, count);  // making it may have run any Python, and that forgotten the call
        }
        if (known && placed(known, arguments, result)) {
            void *state = python.release();
            python.launch(known->kernels, known->kernel, known->call);
            python.acquire(state);
            return result;
        }
        python.drop(result);
    }
    python.keep(python.none);
    return python.none;
}
