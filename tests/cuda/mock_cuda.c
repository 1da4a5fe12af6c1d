/* mock_cuda.c - a CUDA driver without a GPU, as a shared library: what mock.h says. It checks more strictly than a
   driver does: each handle must live and belong to the current context, each copy must lie inside an allocation of that
   context, kernels must be in the image, launches within limits, and a capture forbids what a driver forbids. */
#ifndef _GNU_SOURCE
#  define _GNU_SOURCE 1
#endif
#include "tests/cuda/mock.h"
#include "tests/cuda/ptx.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT int
typedef unsigned long long device_address;
enum { TAIL = 0xa5 };   /* the bytes between an allocation and the page behind it */

/* == OBJECTS == */

typedef enum object_kind { CONTEXT, MEMORY, HOST, MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXEC } object_kind;

typedef struct object {
    object_kind kind;
    struct object *next;
    struct context *context;
} object;

typedef struct context {
    object head;
    int device, is_primary, retained;
    int sticky;                        /* an asynchronous fault: each later call returns it */
    struct stream *legacy;             /* stream 0 */
} context;

typedef struct memory { object head; char *map, *at; size_t bytes, map_bytes; } memory;   /* HOST: at alone */
typedef struct module { object head; char *image; size_t bytes; ptx_module *ptx; } module;
typedef struct function { object head; module *of; int dynamic_limit; char name[128]; } function;

typedef enum operation_kind { LAUNCH, COPY, FILL, RECORD, WAIT } operation_kind;

/* What a stream or a graph holds. to, from, staged: of a copy; staged is a copy of pageable memory of the host. */
typedef struct operation {
    operation_kind kind;
    struct operation *next;
    function *kernel;
    unsigned grid[3], block[3];
    size_t dynamic_bytes;
    unsigned char *params;             /* values one after the other, each from 16 bytes on */
    int param_count;
    void *to;
    const void *from;
    unsigned char *staged, value;
    size_t bytes;
    struct event *event;
    unsigned long long ticket;
} operation;

typedef struct graph { object head; operation *first, *last; } graph;   /* EXEC is one, too */

typedef struct stream {
    object head;
    int is_blocking;                   /* with the legacy stream */
    operation *first, *last;
    unsigned long long submitted, done;
    graph *capture;
    int capture_broken;
} stream;

typedef struct event { object head; stream *of; unsigned long long ticket; } event;

typedef struct fault { const char *name; int at, result; } fault;   /* at: count of calls; 0: each */
typedef struct counter { char name[64]; int calls; } counter;

static struct {
    int ready, initialized, capability, version, devices, late, order, absent, all_calls;
    size_t memory_limit, used;
    object *objects;
    context *primary[8];
    fault fault[32];
    int faults;
    counter counter[128];
    int counters;
    char *log;
    size_t log_bytes, log_room;
    char message[1024];
    int captures;                      /* streams that capture */
} mock;

static __thread struct { context *of[32]; int depth, capture_mode; } current;   /* the stack of this thread */

static int wrong(int result, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(mock.message, sizeof mock.message, format, list);
    va_end(list);
    return result;
}

static object *add_object(object_kind kind, size_t bytes, context *c)
{
    object *o = (object *)calloc(1, bytes);
    if (!o) return NULL;
    o->kind = kind;
    o->context = c;
    o->next = mock.objects;
    mock.objects = o;
    return o;
}

static void remove_object(object *o)
{
    object **at = &mock.objects;
    while (*at && *at != o) at = &(*at)->next;
    if (*at) *at = o->next;
    free(o);
}

static int is_live(const void *handle, object_kind kind)
{
    const object *o;
    for (o = mock.objects; o; o = o->next)
        if (o == handle) return o->kind == kind;
    return 0;
}

static context *now(void) { return current.depth ? current.of[current.depth - 1] : NULL; }

/* 0, or an error: the handle must live, and belong to the current context. */
static int check_handle(const void *handle, object_kind kind, const char *what)
{
    if (!is_live(handle, kind)) return wrong(MOCK_INVALID_HANDLE, "%s: no such handle", what);
    if (((const object *)handle)->context != now())
        return wrong(MOCK_INVALID_HANDLE, "%s: of another context than the current one", what);
    return 0;
}

/* == CONTROL == */

static void free_operations(operation *o)
{
    while (o) {
        operation *next = o->next;
        free(o->params);
        free(o->staged);
        free(o);
        o = next;
    }
}

static void destroy(object *o)
{
    if (o->kind == MEMORY) {
        munmap(((memory *)o)->map, ((memory *)o)->map_bytes);
        mock.used -= ((memory *)o)->bytes;
    } else if (o->kind == HOST) free(((memory *)o)->at);
    else if (o->kind == MODULE) {
        ptx_free(((module *)o)->ptx);
        free(((module *)o)->image);
    } else if (o->kind == STREAM) free_operations(((stream *)o)->first);
    else if (o->kind == GRAPH || o->kind == EXEC) free_operations(((graph *)o)->first);
    remove_object(o);
}

EXPORT void oscar_mock_reset(void)
{
    while (mock.objects) destroy(mock.objects);
    free(mock.log);
    memset(&mock, 0, sizeof mock);
    current.depth = current.capture_mode = 0;
    mock.ready = 1;
    mock.capability = 90;
    mock.version = 13000;
    mock.devices = 1;
    mock.memory_limit = (size_t)1 << 30;
}

EXPORT void oscar_mock_set(const char *option, long long value)
{
    if (!strcmp(option, "capability")) mock.capability = (int)value;
    else if (!strcmp(option, "version")) mock.version = (int)value;
    else if (!strcmp(option, "devices")) mock.devices = (int)value;
    else if (!strcmp(option, "memory")) mock.memory_limit = (size_t)value;
    else if (!strcmp(option, "late")) mock.late = (int)value;
    else if (!strcmp(option, "order")) mock.order = (int)value;
    else if (!strcmp(option, "absent")) mock.absent = (int)value;
    else fprintf(stderr, "mock driver: no option %s\n", option);
}

static counter *find_counter(const char *name)
{
    int i;
    for (i = 0; i < mock.counters; i++)
        if (!strcmp(mock.counter[i].name, name)) return &mock.counter[i];
    if (i == 128) return &mock.counter[127];
    snprintf(mock.counter[i].name, sizeof mock.counter[i].name, "%s", name);
    mock.counters++;
    return &mock.counter[i];
}

EXPORT void oscar_mock_fail(const char *name, int nth, int result)
{
    fault *f = &mock.fault[mock.faults];
    if (nth < 0) mock.faults = 0;
    if (nth < 0 || mock.faults == 32) return;
    mock.faults++;
    f->name = name ? find_counter(name)->name : NULL;
    f->at = nth ? nth + (name ? find_counter(name)->calls : mock.all_calls) : 0;
    f->result = result;
}

EXPORT int oscar_mock_calls(const char *name) { return name ? find_counter(name)->calls : mock.all_calls; }
EXPORT const char *oscar_mock_log(void) { return mock.log ? mock.log : ""; }
EXPORT const char *oscar_mock_message(void) { return mock.message; }

EXPORT int oscar_mock_live(const char *kind)
{
    static const char *const names[] = {
        "context", "memory", "host", "module", "function", "stream", "event", "graph", "exec"
    };
    const object *o;
    int count = 0, i;
    for (o = mock.objects; o; o = o->next) {
        if (o->kind == FUNCTION || (o->kind == STREAM && o->context->legacy == (const stream *)o)) continue;
        if (o->kind == CONTEXT && ((const context *)o)->is_primary) continue;
        count += !kind || !strcmp(names[o->kind], kind);
    }
    for (i = 0; i < 8; i++)
        if (mock.primary[i] && (!kind || !strcmp(kind, "retain"))) count += mock.primary[i]->retained;
    return count;
}

static void read_environment(void)
{
    const char *at = getenv("OSCAR_MOCK");
    char name[64];
    int used;
    long long value;
    int nth, result;
    oscar_mock_reset();
    while (at && *at) {
        if (sscanf(at, " %63[^:= ]:%d=%d%n", name, &nth, &result, &used) == 3) oscar_mock_fail(name, nth, result);
        else if (sscanf(at, " %63[^:= ]=%lld%n", name, &value, &used) == 2) oscar_mock_set(name, value);
        else {
            fprintf(stderr, "mock driver: OSCAR_MOCK not understood at '%s'\n", at);
            return;
        }
        at += used;
    }
}

static void write_log(const char *text)
{
    size_t n = strlen(text);
    if (mock.log_bytes + n + 2 > mock.log_room) {
        mock.log_room = mock.log_room * 2 + n + 4096;
        mock.log = (char *)realloc(mock.log, mock.log_room);
        if (!mock.log) abort();
    }
    memcpy(mock.log + mock.log_bytes, text, n);
    mock.log_bytes += n;
    mock.log[mock.log_bytes++] = '\n';
    mock.log[mock.log_bytes] = 0;
}

/* The result that a fault wants from this call, or 0. */
static int injected(const char *name)
{
    counter *c = find_counter(name);
    int i;
    c->calls++;
    mock.all_calls += strcmp(name, "kernel") != 0;
    for (i = 0; i < mock.faults; i++) {
        const fault *f = &mock.fault[i];
        if (f->name && strcmp(f->name, name)) continue;
        if (!f->at || f->at == (f->name ? c->calls : mock.all_calls)) return f->result;
    }
    return 0;
}

/* Each call starts here: log, count, faults, cuInit, a context that a kernel broke. */
static int enter(const char *name, const char *format, ...)
{
    char text[256];
    int n, result;
    va_list list;
    if (!mock.ready) read_environment();
    n = snprintf(text, sizeof text, "%s ", name);
    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    write_log(text);
    result = injected(name);
    if (result) return result;
    if (!mock.initialized && strcmp(name, "cuInit") && strcmp(name, "cuDriverGetVersion") &&
        strncmp(name, "cuGet", 5)) return wrong(MOCK_NOT_INITIALIZED, "%s before cuInit", name);
    if (now() && !is_live(now(), CONTEXT)) return wrong(MOCK_INVALID_CONTEXT, "%s: the context is destroyed", name);
    return now() && strncmp(name, "cuCtx", 5) ? now()->sticky : 0;
}

/* What needs a current context. */
static int enter_context(const char *name, const char *text)
{
    int result = enter(name, "%s", text);
    if (result) return result;
    return now() ? 0 : wrong(MOCK_INVALID_CONTEXT, "%s: no current context", name);
}

#define TRY(call) do { int try_result = (call); if (try_result) return try_result; } while (0)
#define ENTER(...) TRY(enter(__func__, __VA_ARGS__))
#define ENTER_CONTEXT(...) \
    do { \
        char enter_text[200]; \
        int enter_result; \
        snprintf(enter_text, sizeof enter_text, __VA_ARGS__); \
        enter_result = enter_context(__func__, enter_text); \
        if (enter_result) return enter_result; \
    } while (0)

/* What must not happen while a stream captures, unless the thread's mode is relaxed (2): it spoils all captures. */
static int not_while_capturing(const char *name)
{
    object *o;
    if (!mock.captures || current.capture_mode == 2) return 0;
    for (o = mock.objects; o; o = o->next)
        if (o->kind == STREAM && ((stream *)o)->capture) ((stream *)o)->capture_broken = 1;
    return wrong(MOCK_CAPTURE_UNSUPPORTED, "%s while a stream captures", name);
}
#define NOT_WHILE_CAPTURING() TRY(not_while_capturing(__func__))

/* == DEVICES, CONTEXTS == */

API cuInit(unsigned flags)
{
    ENTER("%u", flags);
    if (!mock.devices) return MOCK_NO_DEVICE;
    mock.initialized = 1;
    return 0;
}

API cuDriverGetVersion(int *version)
{
    ENTER(" ");
    *version = mock.version;
    return 0;
}

API cuDeviceGetCount(int *count)
{
    ENTER(" ");
    *count = mock.devices;
    return 0;
}

static int check_device(int device)
{
    return device < 0 || device >= mock.devices ? wrong(MOCK_INVALID_DEVICE, "no device %d", device) : 0;
}

API cuDeviceGet(int *device, int ordinal)
{
    ENTER("%d", ordinal);
    TRY(check_device(ordinal));
    *device = ordinal;
    return 0;
}

API cuDeviceGetName(char *name, int bytes, int device)
{
    ENTER("%d", device);
    TRY(check_device(device));
    snprintf(name, (size_t)bytes, "Mock GPU %d.%d", mock.capability / 10, mock.capability % 10);
    return 0;
}

API cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER("%d", device);
    TRY(check_device(device));
    *bytes = mock.memory_limit;
    return 0;
}

static int shared_limit(void)   /* that a block can ask for */
{
    int c = mock.capability;
    return c == 75 ? 65536 : c == 80 || c == 87 ? 166912 : c == 86 || c == 89 || c >= 120 ? 101376 : 232448;
}

API cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER("%d %d", attribute, device);
    TRY(check_device(device));
    switch (attribute) {
    case 1: *value = 1024; break;                       /* threads of a block */
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 0x7fffffff; break;                 /* grid */
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;                      /* shared memory of a block, unless asked for */
    case 10: *value = 32; break;                        /* warp */
    case 12: *value = 65536; break;                     /* registers of a block */
    case 13: *value = 1500000; break;                   /* clock, kHz */
    case 16: *value = 4; break;                         /* multiprocessors */
    case 36: *value = 2000000; break;                   /* memory clock, kHz */
    case 37: *value = 512; break;                       /* bits of the bus */
    case 38: *value = 4 << 20; break;                   /* L2 */
    case 39: *value = mock.capability == 75 ? 1024 : 2048; break;
    case 41: *value = 1; break;                         /* one address space */
    case 75: *value = mock.capability / 10; break;
    case 76: *value = mock.capability % 10; break;
    case 81: *value = shared_limit() + 1024; break;     /* shared memory of a multiprocessor */
    case 97: *value = shared_limit(); break;
    case 106: *value = 32; break;                       /* blocks of a multiprocessor */
    default: return wrong(MOCK_INVALID_VALUE, "attribute %d is not known to the mock", attribute);
    }
    return 0;
}

static context *new_context(int device, int is_primary)
{
    context *c = (context *)add_object(CONTEXT, sizeof *c, NULL);
    if (!c) return NULL;
    c->device = device;
    c->is_primary = is_primary;
    c->legacy = (stream *)add_object(STREAM, sizeof *c->legacy, c);
    if (c->legacy) c->legacy->is_blocking = 1;
    return c;
}

/* With all that belongs to it, as a driver does. */
static void end_context(context *c)
{
    object *o;
    do {
        for (o = mock.objects; o && o->context != c; o = o->next) {}
        if (o) destroy(o);
    } while (o);
    destroy(&c->head);
}

API cuDevicePrimaryCtxRetain(void **out, int device)
{
    ENTER("%d", device);
    TRY(check_device(device));
    if (!mock.primary[device]) mock.primary[device] = new_context(device, 1);
    if (!mock.primary[device]) return MOCK_OUT_OF_MEMORY;
    mock.primary[device]->retained++;
    *out = mock.primary[device];
    return 0;
}

API cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("%d", device);
    TRY(check_device(device));
    if (!mock.primary[device]) return wrong(MOCK_INVALID_CONTEXT, "a primary context that is not retained");
    if (--mock.primary[device]->retained) return 0;
    end_context(mock.primary[device]);
    mock.primary[device] = NULL;
    return 0;
}

API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ENTER("%d", device);
    TRY(check_device(device));
    *flags = 0;
    *active = mock.primary[device] != NULL;
    return 0;
}

API cuCtxCreate_v2(void **out, unsigned flags, int device)
{
    context *c;
    ENTER("%u %d", flags, device);
    TRY(check_device(device));
    if (current.depth == 32 || !(c = new_context(device, 0))) return MOCK_OUT_OF_MEMORY;
    current.of[current.depth++] = c;
    *out = c;
    return 0;
}

API cuCtxDestroy_v2(void *handle)
{
    ENTER("%p", handle);
    if (!is_live(handle, CONTEXT) || ((context *)handle)->is_primary) return MOCK_INVALID_CONTEXT;
    if (now() == handle) current.depth--;
    end_context((context *)handle);
    return 0;
}

API cuCtxPushCurrent_v2(void *handle)
{
    ENTER("%p", handle);
    if (!is_live(handle, CONTEXT)) return wrong(MOCK_INVALID_CONTEXT, "cuCtxPushCurrent: no such context");
    if (current.depth == 32) return MOCK_OUT_OF_MEMORY;
    current.of[current.depth++] = (context *)handle;
    return 0;
}

API cuCtxPopCurrent_v2(void **out)
{
    ENTER(" ");
    if (!current.depth) return wrong(MOCK_INVALID_CONTEXT, "cuCtxPopCurrent: the stack is empty");
    current.depth--;
    if (out) *out = current.of[current.depth];
    return 0;
}

API cuCtxGetCurrent(void **out)
{
    ENTER(" ");
    *out = now();
    return 0;
}

API cuCtxSetCurrent(void *handle)
{
    ENTER("%p", handle);
    if (handle && !is_live(handle, CONTEXT)) return wrong(MOCK_INVALID_CONTEXT, "cuCtxSetCurrent: no such context");
    if (current.depth) current.depth--;
    if (handle) current.of[current.depth++] = (context *)handle;
    return 0;
}

API cuCtxGetDevice(int *device)
{
    ENTER_CONTEXT(" ");
    *device = now()->device;
    return 0;
}

/* == MEMORY == */

/* Opens all device memory to this process, or closes it. */
static void protect(int open)
{
    const object *o;
    for (o = mock.objects; o; o = o->next) {
        const memory *m = (const memory *)o;
        if (o->kind != MEMORY) continue;
        if (mprotect(m->map, m->map_bytes - 4096, open ? PROT_READ | PROT_WRITE : PROT_NONE)) abort();
    }
}

static memory *find_memory(object_kind kind, const context *c, uint64_t address, size_t bytes)
{
    object *o;
    for (o = mock.objects; o; o = o->next) {
        memory *m = (memory *)o;
        if (o->kind != kind || (c && o->context != c)) continue;
        if (address >= (uintptr_t)m->at && address + bytes <= (uintptr_t)m->at + m->bytes) return m;
    }
    return NULL;
}

static int check_range(device_address address, size_t bytes, const char *what)
{
    if (!bytes || find_memory(MEMORY, now(), address, bytes)) return 0;
    return wrong(MOCK_INVALID_VALUE, "%s: %llu bytes at %#llx are not device memory of this context", what,
                 (unsigned long long)bytes, address);
}

API cuMemAlloc_v2(device_address *out, size_t bytes)
{
    size_t rounded = (bytes + 255) / 256 * 256, map_bytes = ((rounded + 4095) / 4096 + 1) * 4096;
    memory *m;
    ENTER_CONTEXT("%llu", (unsigned long long)bytes);
    NOT_WHILE_CAPTURING();
    if (!bytes) return wrong(MOCK_INVALID_VALUE, "cuMemAlloc of 0 bytes");
    if (mock.used + bytes > mock.memory_limit) return MOCK_OUT_OF_MEMORY;
    m = (memory *)add_object(MEMORY, sizeof *m, now());
    if (!m) return MOCK_OUT_OF_MEMORY;
    m->map = (char *)mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->map == MAP_FAILED) {
        remove_object(&m->head);
        return MOCK_OUT_OF_MEMORY;
    }
    m->map_bytes = map_bytes;
    m->bytes = bytes;
    m->at = m->map + map_bytes - 4096 - rounded;   /* 256 bytes is the alignment that a driver promises */
    memset(m->map, 0xff, map_bytes - 4096);
    memset(m->at + bytes, TAIL, rounded - bytes);
    mprotect(m->map, map_bytes, PROT_NONE);
    mock.used += bytes;
    *out = (uintptr_t)m->at;
    return 0;
}

static int run_all(context *c);

API cuMemFree_v2(device_address address)
{
    memory *m;
    int result = enter("cuMemFree_v2", "%llx", address);
    if (result && !(now() && result == now()->sticky)) return result;
    TRY(not_while_capturing("cuMemFree"));
    if (!address) return 0;
    m = find_memory(MEMORY, now(), address, 1);
    if (!m || (uintptr_t)m->at != address) return wrong(MOCK_INVALID_VALUE, "cuMemFree of %#llx", address);
    if (!result) result = run_all(now());   /* a driver waits for what may use it */
    destroy(&m->head);
    return result;
}

API cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    ENTER_CONTEXT(" ");
    *unused = mock.memory_limit - mock.used;
    *total = mock.memory_limit;
    return 0;
}

API cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    memory *m;
    ENTER_CONTEXT("%llu %u", (unsigned long long)bytes, flags);
    NOT_WHILE_CAPTURING();
    if (!bytes) return MOCK_INVALID_VALUE;
    m = (memory *)add_object(HOST, sizeof *m, now());
    if (!m || posix_memalign((void **)&m->at, 64, bytes)) return MOCK_OUT_OF_MEMORY;
    memset(m->at, 0xff, bytes);
    m->bytes = bytes;
    *out = m->at;
    return 0;
}

API cuMemFreeHost(void *p)
{
    memory *m;
    ENTER_CONTEXT("%p", p);
    NOT_WHILE_CAPTURING();
    m = find_memory(HOST, NULL, (uintptr_t)p, 1);
    if (!m || m->at != p) return wrong(MOCK_INVALID_VALUE, "cuMemFreeHost of %p", p);
    TRY(run_all(now()));
    destroy(&m->head);
    return 0;
}

/* The attributes context, memory type (1 host, 2 device) and device of an address. */
API cuPointerGetAttribute(void *data, int attribute, device_address address)
{
    const memory *device = find_memory(MEMORY, NULL, address, 1), *host = find_memory(HOST, NULL, address, 1);
    ENTER("%d %llx", attribute, address);
    if (!device && !host) return MOCK_INVALID_VALUE;
    if (attribute == 1) *(void **)data = device ? device->head.context : host->head.context;
    else if (attribute == 2) *(unsigned *)data = device ? 2 : 1;
    else if (attribute == 9) *(int *)data = device ? device->head.context->device : 0;
    else return wrong(MOCK_INVALID_VALUE, "pointer attribute %d is not known to the mock", attribute);
    return 0;
}

/* == MODULES == */

/* 0, or why this device cannot run the cubin: of another major architecture, or of a newer minor one. */
static int check_cubin(const unsigned char *image, size_t *bytes)
{
    uint64_t sections;
    uint32_t flags;
    uint16_t machine, size, count;
    int arch;
    memcpy(&machine, image + 18, 2);
    memcpy(&sections, image + 40, 8);
    memcpy(&flags, image + 48, 4);
    memcpy(&size, image + 58, 2);
    memcpy(&count, image + 60, 2);
    if (machine != 190) return wrong(MOCK_INVALID_IMAGE, "an ELF file for machine %d, not for CUDA", machine);
    *bytes = (size_t)sections + (size_t)size * count;
    arch = (int)(image[7] == 0x41 ? flags >> 8 & 0xff : flags & 0xff);   /* ABI 0x41 is that of CUDA 13 */
    if (arch / 10 == mock.capability / 10 && arch <= mock.capability) return 0;
    return wrong(MOCK_NO_BINARY, "a cubin for sm_%d on a device of %d", arch, mock.capability);
}

/* PTX runs on its architecture and newer ones, and needs a driver as new as the toolkit that made it. */
static int check_ptx(const char *image)
{
    const char *target = strstr(image, ".target sm_"), *version = strstr(image, ".version ");
    int arch, major, minor;
    if (!target || !version || sscanf(target + 11, "%d", &arch) != 1 ||
        sscanf(version + 9, "%d.%d", &major, &minor) != 2) return wrong(MOCK_INVALID_IMAGE, "neither ELF nor PTX");
    if ((major + 4) * 1000 + minor * 10 > mock.version)
        return wrong(MOCK_UNSUPPORTED_PTX, "PTX %d.%d, driver %d", major, minor, mock.version);
    if (arch <= mock.capability) return 0;
    return wrong(MOCK_INVALID_PTX, "PTX for sm_%d on a device of %d", arch, mock.capability);
}

/* A symbol that the program exports, or NULL. */
static void *from_program(const char *name) { return dlsym(RTLD_DEFAULT, name); }

/* Of a fatbin what the device runs: a cubin, or PTX. Entries: u16 kind (1 PTX, 2 ELF), their header's bytes at 4, those
   of the image at 8, architecture at 28, flags at 40. Compressed ones are not taken. */
static int in_fatbin(const unsigned char **image)
{
    const unsigned char *at = *image, *end, *ptx = NULL;
    uint64_t bytes;
    uint16_t header;
    memcpy(&header, at + 6, 2);
    memcpy(&bytes, at + 8, 8);
    at += header;
    for (end = at + bytes; at < end; at += bytes) {
        uint32_t size, arch;
        uint64_t flags;
        uint16_t kind;
        memcpy(&kind, at, 2);
        memcpy(&size, at + 4, 4);
        memcpy(&bytes, at + 8, 8);
        memcpy(&arch, at + 28, 4);
        memcpy(&flags, at + 40, 8);
        at += size;
        if ((flags & 0xe000) || (int)arch > mock.capability) continue;
        if (kind == 1) ptx = at;
        if (kind == 2 && (int)arch / 10 == mock.capability / 10) { *image = at; return 0; }
    }
    if (!ptx) return wrong(MOCK_NO_BINARY, "a fatbin without an image for a device of %d", mock.capability);
    *image = ptx;
    return 0;
}

static int load_module(void **out, const void *file)
{
    static const unsigned char fatbin[] = { 0x50, 0xed, 0x55, 0xba };
    const unsigned char *image = (const unsigned char *)file;
    int is_elf;
    size_t bytes = 0;
    char error[512];
    module *m;
    if (!memcmp(image, fatbin, sizeof fatbin)) TRY(in_fatbin(&image));
    is_elf = !memcmp(image, "\177ELF", 4);
    if (is_elf && !from_program("oscar_mock_kernel"))
        return wrong(MOCK_NO_BINARY, "a cubin, and the program exports no oscar_mock_kernel to run it");
    if (is_elf) TRY(check_cubin(image, &bytes));
    else {
        TRY(check_ptx((const char *)image));
        bytes = strlen((const char *)image) + 1;
    }
    m = (module *)add_object(MODULE, sizeof *m, now());
    if (!m || !(m->image = (char *)malloc(bytes))) return MOCK_OUT_OF_MEMORY;
    memcpy(m->image, image, bytes);
    m->bytes = bytes;
    if (!is_elf && !(m->ptx = ptx_load(m->image, error, sizeof error))) {
        destroy(&m->head);
        return wrong(MOCK_INVALID_PTX, "%s", error);
    }
    *out = m;
    return 0;
}

API cuModuleLoadData(void **out, const void *image)
{
    ENTER_CONTEXT(" ");
    NOT_WHILE_CAPTURING();
    return load_module(out, image);
}

/* Of the options only the log of errors (5, its bytes 6). */
API cuModuleLoadDataEx(void **out, const void *image, unsigned count, const int *options, void **values)
{
    int result;
    unsigned i;
    char *log = NULL;
    size_t bytes = 0;
    ENTER_CONTEXT("%u", count);
    NOT_WHILE_CAPTURING();
    for (i = 0; i < count; i++) {
        if (options[i] == 5) log = (char *)values[i];
        if (options[i] == 6) bytes = (size_t)(uintptr_t)values[i];
    }
    if (log && bytes) log[0] = 0;
    result = load_module(out, image);
    if (result && log && bytes) snprintf(log, bytes, "%s", mock.message);
    return result;
}

API cuModuleUnload(void *handle)
{
    object *o, *next;
    ENTER_CONTEXT("%p", handle);
    NOT_WHILE_CAPTURING();
    TRY(check_handle(handle, MODULE, "cuModuleUnload"));
    TRY(run_all(now()));
    for (o = mock.objects; o; o = next) {
        next = o->next;
        if (o->kind == FUNCTION && ((function *)o)->of == handle) destroy(o);
    }
    destroy((object *)handle);
    return 0;
}

/* Whether the image holds the name, as a whole word of its table of strings. */
static int has_name(const module *m, const char *name)
{
    size_t n = strlen(name), i;
    if (m->ptx) return ptx_parameters(m->ptx, name, NULL) >= 0;
    for (i = 0; i + n < m->bytes; i++)
        if (!memcmp(m->image + i, name, n) && !m->image[i + n]) return 1;
    return 0;
}

API cuModuleGetFunction(void **out, void *handle, const char *name)
{
    function *f;
    ENTER_CONTEXT("%s", name);
    TRY(check_handle(handle, MODULE, "cuModuleGetFunction"));
    if (!has_name((module *)handle, name)) return wrong(MOCK_NOT_FOUND, "the module has no %s", name);
    f = (function *)add_object(FUNCTION, sizeof *f, now());
    if (!f) return MOCK_OUT_OF_MEMORY;
    f->of = (module *)handle;
    f->dynamic_limit = 49152;
    snprintf(f->name, sizeof f->name, "%s", name);
    *out = f;
    return 0;
}

API cuFuncLoad(void *handle)
{
    ENTER_CONTEXT("%p", handle);
    NOT_WHILE_CAPTURING();
    return check_handle(handle, FUNCTION, "cuFuncLoad");
}

API cuFuncSetAttribute(void *handle, int attribute, int value)
{
    ENTER_CONTEXT("%d %d", attribute, value);
    TRY(check_handle(handle, FUNCTION, "cuFuncSetAttribute"));
    if (attribute != 8 && attribute != 9) return wrong(MOCK_INVALID_VALUE, "function attribute %d", attribute);
    if (attribute == 8 && value > shared_limit())
        return wrong(MOCK_INVALID_VALUE, "%d bytes of shared memory, at most %d", value, shared_limit());
    if (attribute == 8) ((function *)handle)->dynamic_limit = value;
    return 0;
}

API cuFuncGetAttribute(int *value, int attribute, void *handle)
{
    ENTER_CONTEXT("%d", attribute);
    TRY(check_handle(handle, FUNCTION, "cuFuncGetAttribute"));
    switch (attribute) {
    case 0: *value = 1024; break;    /* threads of a block */
    case 1: case 2: case 3: *value = 0; break;
    case 4: *value = 64; break;      /* registers */
    case 5: case 6: *value = mock.capability; break;
    case 8: *value = ((function *)handle)->dynamic_limit; break;
    default: return wrong(MOCK_INVALID_VALUE, "function attribute %d", attribute);
    }
    return 0;
}

API cuFuncSetCacheConfig(void *handle, int config)
{
    ENTER_CONTEXT("%d", config);
    return check_handle(handle, FUNCTION, "cuFuncSetCacheConfig");
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads, size_t dynamic_bytes)
{
    ENTER_CONTEXT("%d %llu", threads, (unsigned long long)dynamic_bytes);
    TRY(check_handle(handle, FUNCTION, "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
    *blocks = threads > 0 && threads <= 1024 ? 2048 / threads : 0;
    if (dynamic_bytes && *blocks > (int)((size_t)shared_limit() / dynamic_bytes))
        *blocks = (int)((size_t)shared_limit() / dynamic_bytes);
    return 0;
}

/* == OPERATIONS == */

typedef int (*kernel_runner)(const char *, const unsigned *, const unsigned *, size_t, void **);
typedef int (*kernel_sizes)(const char *, size_t *);


static int inside_context(void *user, uint64_t address, size_t bytes, int write)
{
    (void)write;
    return find_memory(MEMORY, (const context *)user, address, bytes) != NULL;
}

static int run_ptx(const operation *o, void **params)
{
    ptx_options options;
    ptx_size grid, block;
    int result;
    memset(&options, 0, sizeof options);
    options.order = (unsigned)mock.order;
    options.check_races = 1;
    options.inside = inside_context;
    options.user = o->kernel->head.context;
    memcpy(&grid, o->grid, sizeof grid);
    memcpy(&block, o->block, sizeof block);
    result = ptx_launch(o->kernel->of->ptx, o->kernel->name, grid, block, o->dynamic_bytes, params, &options);
    return result ? wrong(MOCK_ILLEGAL_ADDRESS, "%s", options.error) : 0;
}

static int run_kernel(const operation *o)
{
    void *params[64], *runner = from_program("oscar_mock_kernel");
    kernel_runner run;
    int i, result = injected("kernel");
    if (result) return result;
    for (i = 0; i < o->param_count; i++) params[i] = o->params + 16 * i;
    if (o->kernel->of->ptx) return run_ptx(o, params);
    memcpy(&run, &runner, sizeof run);
    if (!runner) return wrong(MOCK_NOT_FOUND, "the program exports no oscar_mock_kernel: -rdynamic?");
    result = run(o->kernel->name, o->grid, o->block, o->dynamic_bytes, params);
    return result ? wrong(MOCK_ILLEGAL_ADDRESS, "%s: the program's own kernel reports a fault", o->kernel->name) : 0;
}

static void run_until(stream *s, unsigned long long ticket);

/* A write past an allocation that stays within its last page. */
static int check_tails(const char *kernel)
{
    const object *o;
    for (o = mock.objects; o; o = o->next) {
        const memory *m = (const memory *)o;
        const char *at;
        if (o->kind != MEMORY) continue;
        for (at = m->at + m->bytes; at < m->map + m->map_bytes - 4096; at++)
            if ((unsigned char)*at != TAIL)
                return wrong(MOCK_ILLEGAL_ADDRESS, "%s wrote past the %llu bytes at %p", kernel,
                             (unsigned long long)m->bytes, (void *)m->at);
    }
    return 0;
}

static void run_operation(stream *s, const operation *o)
{
    context *c = s->head.context;
    int result = 0;
    if (c->sticky) return;
    protect(1);
    if (o->kind == LAUNCH) {
        result = run_kernel(o);
        if (!result) result = check_tails(o->kernel->name);
    }
    if (o->kind == COPY) memcpy(o->to, o->staged ? o->staged : o->from, o->bytes);
    if (o->kind == FILL) memset(o->to, o->value, o->bytes);
    protect(0);
    if (o->kind == WAIT && is_live(o->event, EVENT) && o->event->of) run_until(o->event->of, o->ticket);
    if (result) c->sticky = result;
}

/* Runs what the stream holds up to and with a ticket. */
static void run_until(stream *s, unsigned long long ticket)
{
    while (s->first && s->done < ticket) {
        operation *o = s->first;
        s->first = o->next;
        if (!s->first) s->last = NULL;
        s->done++;
        run_operation(s, o);
        o->next = NULL;
        free_operations(o);
    }
}

static int run_stream(stream *s)
{
    run_until(s, s->submitted);
    return s->head.context->sticky;
}

static int run_all(context *c)
{
    object *o;
    for (o = mock.objects; o; o = o->next)
        if (o->kind == STREAM && o->context == c) run_stream((stream *)o);
    return c ? c->sticky : 0;
}

/* Stream 0 waits for all blocking streams, and they for it. */
static void join_legacy(stream *s)
{
    object *o;
    if (!s->is_blocking) return;
    if (s != s->head.context->legacy) {
        run_stream(s->head.context->legacy);
        return;
    }
    for (o = mock.objects; o; o = o->next)
        if (o->kind == STREAM && o->context == s->head.context && ((stream *)o)->is_blocking && o != &s->head)
            run_stream((stream *)o);
}

/* The stream of a handle: NULL, 1 and 2 are the legacy stream (there is no stream a thread). */
static int find_stream(void *handle, stream **out, const char *what)
{
    *out = now()->legacy;
    if ((uintptr_t)handle <= 2)
        return mock.captures ? wrong(MOCK_CAPTURE_IMPLICIT, "%s: stream 0 in a capture", what) : 0;
    TRY(check_handle(handle, STREAM, what));
    *out = (stream *)handle;
    return (*out)->capture_broken ? MOCK_CAPTURE_INVALIDATED : 0;
}

/* Into the graph that the stream captures, or to its end: to run now, or when somebody waits. */
static int submit(stream *s, operation *o)
{
    if (s->capture) {
        if (s->capture->last) s->capture->last->next = o;
        else s->capture->first = o;
        s->capture->last = o;
        return 0;
    }
    join_legacy(s);
    if (s->last) s->last->next = o;
    else s->first = o;
    s->last = o;
    s->submitted++;
    return mock.late ? 0 : run_stream(s);
}

static operation *new_operation(operation_kind kind)
{
    operation *o = (operation *)calloc(1, sizeof *o);
    if (!o) abort();
    o->kind = kind;
    return o;
}

/* Values of the parameters, since the caller's may change before the kernel runs. */
static int copy_parameters(operation *o, void **params)
{
    size_t bytes[64];
    void *symbol = from_program("oscar_mock_parameters");
    kernel_sizes sizes;
    int i;
    memcpy(&sizes, &symbol, sizeof sizes);
    if (o->kernel->of->ptx) o->param_count = ptx_parameters(o->kernel->of->ptx, o->kernel->name, bytes);
    else if (symbol) o->param_count = sizes(o->kernel->name, bytes);
    else return wrong(MOCK_NOT_FOUND, "the program exports no oscar_mock_parameters: -rdynamic?");
    if (o->param_count < 0) return wrong(MOCK_NOT_FOUND, "the program does not know the kernel %s", o->kernel->name);
    if (o->param_count > 0 && !params) return wrong(MOCK_INVALID_VALUE, "a launch without parameters");
    for (i = 0; i < o->param_count && bytes[i] <= 16; i++) {}
    if (i < o->param_count) return wrong(MOCK_INVALID_VALUE, "the mock takes parameters of at most 16 bytes");
    o->params = (unsigned char *)calloc(64, 16);
    if (!o->params) return MOCK_OUT_OF_MEMORY;
    for (i = 0; i < o->param_count; i++) memcpy(o->params + 16 * i, params[i], bytes[i]);
    return 0;
}

static int check_sizes(const operation *o)
{
    const unsigned *g = o->grid, *b = o->block;
    if (!g[0] || !g[1] || !g[2] || g[0] > 0x7fffffffu || g[1] > 65535 || g[2] > 65535)
        return wrong(MOCK_INVALID_VALUE, "%s: a grid of %u x %u x %u", o->kernel->name, g[0], g[1], g[2]);
    if (!b[0] || !b[1] || !b[2] || b[2] > 64 || (uint64_t)b[0] * b[1] * b[2] > 1024)
        return wrong(MOCK_INVALID_VALUE, "%s: a block of %u x %u x %u", o->kernel->name, b[0], b[1], b[2]);
    if (o->dynamic_bytes > (size_t)o->kernel->dynamic_limit)
        return wrong(MOCK_INVALID_VALUE, "%s: %u bytes of shared memory, %d allowed", o->kernel->name,
                     (unsigned)o->dynamic_bytes, o->kernel->dynamic_limit);
    return 0;
}

API cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned dynamic_bytes, void *stream_handle, void **params, void **extra)
{
    stream *s;
    operation *o;
    int result;
    ENTER_CONTEXT("%s (%u,%u,%u) (%u,%u,%u) %u %p", is_live(handle, FUNCTION) ? ((function *)handle)->name : "?",
                  gx, gy, gz, bx, by, bz, dynamic_bytes, stream_handle);
    TRY(check_handle(handle, FUNCTION, "cuLaunchKernel"));
    TRY(find_stream(stream_handle, &s, "cuLaunchKernel"));
    if (extra) return wrong(MOCK_INVALID_VALUE, "a launch with extra parameters");
    o = new_operation(LAUNCH);
    o->kernel = (function *)handle;
    o->grid[0] = gx;
    o->grid[1] = gy;
    o->grid[2] = gz;
    o->block[0] = bx;
    o->block[1] = by;
    o->block[2] = bz;
    o->dynamic_bytes = dynamic_bytes;
    result = check_sizes(o);
    if (!result) result = copy_parameters(o, params);
    if (result) {
        free_operations(o);
        return result;
    }
    submit(s, o);   /* faults of the kernel show where somebody waits */
    return 0;
}

/* -- copies -- */

static operation *new_copy(void *to, const void *from, size_t bytes)
{
    operation *o = new_operation(COPY);
    o->to = to;
    o->from = from;
    o->bytes = bytes;
    return o;
}

/* A driver reads pageable memory at the call, pinned memory when the copy runs. */
static void stage(operation *o)
{
    if (find_memory(HOST, NULL, (uintptr_t)o->from, o->bytes)) return;
    o->staged = (unsigned char *)malloc(o->bytes + 1);
    if (!o->staged) abort();
    memcpy(o->staged, o->from, o->bytes);
}

static int copy_now(operation *o)
{
    int result = submit(now()->legacy, o);
    return result ? result : run_stream(now()->legacy);
}

API cuMemcpyHtoD_v2(device_address to, const void *from, size_t bytes)
{
    ENTER_CONTEXT("%llx %llu", to, (unsigned long long)bytes);
    NOT_WHILE_CAPTURING();
    TRY(check_range(to, bytes, "cuMemcpyHtoD"));
    return copy_now(new_copy((void *)(uintptr_t)to, from, bytes));
}

API cuMemcpyDtoH_v2(void *to, device_address from, size_t bytes)
{
    ENTER_CONTEXT("%llx %llu", from, (unsigned long long)bytes);
    NOT_WHILE_CAPTURING();
    TRY(check_range(from, bytes, "cuMemcpyDtoH"));
    return copy_now(new_copy(to, (const void *)(uintptr_t)from, bytes));
}

API cuMemcpyDtoD_v2(device_address to, device_address from, size_t bytes)
{
    ENTER_CONTEXT("%llx %llx %llu", to, from, (unsigned long long)bytes);
    NOT_WHILE_CAPTURING();
    TRY(check_range(to, bytes, "cuMemcpyDtoD"));
    TRY(check_range(from, bytes, "cuMemcpyDtoD"));
    return copy_now(new_copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes));
}

API cuMemcpyHtoDAsync_v2(device_address to, const void *from, size_t bytes, void *stream_handle)
{
    stream *s;
    operation *o;
    ENTER_CONTEXT("%llx %llu %p", to, (unsigned long long)bytes, stream_handle);
    TRY(find_stream(stream_handle, &s, "cuMemcpyHtoDAsync"));
    TRY(check_range(to, bytes, "cuMemcpyHtoDAsync"));
    o = new_copy((void *)(uintptr_t)to, from, bytes);
    if (!s->capture) stage(o);
    return submit(s, o);
}

/* To pageable memory a driver waits for the copy; the mock does not, so that nobody relies on it. */
API cuMemcpyDtoHAsync_v2(void *to, device_address from, size_t bytes, void *stream_handle)
{
    stream *s;
    ENTER_CONTEXT("%llx %llu %p", from, (unsigned long long)bytes, stream_handle);
    TRY(find_stream(stream_handle, &s, "cuMemcpyDtoHAsync"));
    TRY(check_range(from, bytes, "cuMemcpyDtoHAsync"));
    return submit(s, new_copy(to, (const void *)(uintptr_t)from, bytes));
}

API cuMemcpyDtoDAsync_v2(device_address to, device_address from, size_t bytes, void *stream_handle)
{
    stream *s;
    ENTER_CONTEXT("%llx %llx %llu %p", to, from, (unsigned long long)bytes, stream_handle);
    TRY(find_stream(stream_handle, &s, "cuMemcpyDtoDAsync"));
    TRY(check_range(to, bytes, "cuMemcpyDtoDAsync"));
    TRY(check_range(from, bytes, "cuMemcpyDtoDAsync"));
    return submit(s, new_copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes));
}

static operation *new_fill(device_address to, unsigned char value, size_t bytes)
{
    operation *o = new_operation(FILL);
    o->to = (void *)(uintptr_t)to;
    o->value = value;
    o->bytes = bytes;
    return o;
}

API cuMemsetD8_v2(device_address to, unsigned char value, size_t bytes)
{
    ENTER_CONTEXT("%llx %d %llu", to, value, (unsigned long long)bytes);
    NOT_WHILE_CAPTURING();
    TRY(check_range(to, bytes, "cuMemsetD8"));
    return copy_now(new_fill(to, value, bytes));
}

API cuMemsetD8Async(device_address to, unsigned char value, size_t bytes, void *stream_handle)
{
    stream *s;
    ENTER_CONTEXT("%llx %d %llu %p", to, value, (unsigned long long)bytes, stream_handle);
    TRY(find_stream(stream_handle, &s, "cuMemsetD8Async"));
    TRY(check_range(to, bytes, "cuMemsetD8Async"));
    return submit(s, new_fill(to, value, bytes));
}

/* == STREAMS, EVENTS == */

API cuCtxSynchronize(void)
{
    ENTER_CONTEXT(" ");
    NOT_WHILE_CAPTURING();
    return run_all(now());
}

API cuStreamCreate(void **out, unsigned flags)
{
    stream *s;
    ENTER_CONTEXT("%u", flags);
    s = (stream *)add_object(STREAM, sizeof *s, now());
    if (!s) return MOCK_OUT_OF_MEMORY;
    s->is_blocking = !(flags & 1);
    *out = s;
    return 0;
}

API cuStreamDestroy_v2(void *handle)
{
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, STREAM, "cuStreamDestroy"));
    run_stream((stream *)handle);
    mock.captures -= ((stream *)handle)->capture != NULL;
    destroy((object *)handle);
    return 0;
}

API cuStreamSynchronize(void *handle)
{
    stream *s;
    ENTER_CONTEXT("%p", handle);
    TRY(find_stream(handle, &s, "cuStreamSynchronize"));
    if (s->capture) return not_while_capturing("cuStreamSynchronize of a stream");
    join_legacy(s);
    return run_stream(s);
}

API cuStreamQuery(void *handle)
{
    stream *s;
    ENTER_CONTEXT("%p", handle);
    TRY(find_stream(handle, &s, "cuStreamQuery"));
    if (s->capture) return not_while_capturing("cuStreamQuery of a stream");
    return s->first ? MOCK_NOT_READY : s->head.context->sticky;
}

API cuStreamGetCtx(void *handle, void **out)
{
    ENTER("%p", handle);
    if ((uintptr_t)handle <= 2) *out = now();
    else if (is_live(handle, STREAM) && ((stream *)handle)->capture && mock.version < 12050)
        return not_while_capturing("cuStreamGetCtx of a stream");
    else if (is_live(handle, STREAM)) *out = ((stream *)handle)->head.context;
    else return wrong(MOCK_INVALID_HANDLE, "cuStreamGetCtx: no such stream");
    return 0;
}

API cuEventCreate(void **out, unsigned flags)
{
    ENTER_CONTEXT("%u", flags);
    *out = add_object(EVENT, sizeof(event), now());
    return *out ? 0 : MOCK_OUT_OF_MEMORY;
}

API cuEventDestroy_v2(void *handle)
{
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, EVENT, "cuEventDestroy"));
    destroy((object *)handle);
    return 0;
}

API cuEventRecord(void *handle, void *stream_handle)
{
    stream *s;
    event *e = (event *)handle;
    ENTER_CONTEXT("%p %p", handle, stream_handle);
    TRY(check_handle(handle, EVENT, "cuEventRecord"));
    TRY(find_stream(stream_handle, &s, "cuEventRecord"));
    if (s->capture) return submit(s, new_operation(RECORD));
    e->of = s;
    TRY(submit(s, new_operation(RECORD)));
    e->ticket = s->submitted;
    return 0;
}

API cuEventSynchronize(void *handle)
{
    event *e = (event *)handle;
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, EVENT, "cuEventSynchronize"));
    NOT_WHILE_CAPTURING();
    if (e->of && is_live(e->of, STREAM)) run_until(e->of, e->ticket);
    return now()->sticky;
}

API cuEventQuery(void *handle)
{
    event *e = (event *)handle;
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, EVENT, "cuEventQuery"));
    NOT_WHILE_CAPTURING();
    return e->of && is_live(e->of, STREAM) && e->of->done < e->ticket ? MOCK_NOT_READY : 0;
}

API cuEventElapsedTime(float *milliseconds, void *from, void *to)
{
    ENTER_CONTEXT("%p %p", from, to);
    TRY(check_handle(from, EVENT, "cuEventElapsedTime"));
    TRY(check_handle(to, EVENT, "cuEventElapsedTime"));
    *milliseconds = 1;
    return 0;
}

API cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags)
{
    stream *s;
    event *e = (event *)handle;
    operation *o;
    ENTER_CONTEXT("%p %p %u", stream_handle, handle, flags);
    TRY(find_stream(stream_handle, &s, "cuStreamWaitEvent"));
    TRY(check_handle(handle, EVENT, "cuStreamWaitEvent"));
    if (s->capture) return wrong(MOCK_CAPTURE_ISOLATION, "the mock captures one stream, and no events of others");
    o = new_operation(WAIT);
    o->event = e;
    o->ticket = e->ticket;
    return submit(s, o);
}

/* == GRAPHS == */

API cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = current.capture_mode;
    ENTER("%d", *mode);
    if (*mode < 0 || *mode > 2) return wrong(MOCK_INVALID_VALUE, "capture mode %d", *mode);
    current.capture_mode = *mode;
    *mode = before;
    return 0;
}

API cuStreamIsCapturing(void *handle, int *status)
{
    stream *s;
    ENTER_CONTEXT("%p", handle);
    *status = 0;
    if ((uintptr_t)handle <= 2) return mock.captures ? wrong(MOCK_CAPTURE_IMPLICIT, "stream 0 in a capture") : 0;
    TRY(check_handle(handle, STREAM, "cuStreamIsCapturing"));
    s = (stream *)handle;
    *status = s->capture ? (s->capture_broken ? 2 : 1) : 0;
    return 0;
}

API cuStreamBeginCapture_v2(void *handle, int mode)
{
    stream *s;
    ENTER_CONTEXT("%p %d", handle, mode);
    if ((uintptr_t)handle <= 2) return wrong(MOCK_CAPTURE_UNSUPPORTED, "a capture of stream 0");
    TRY(find_stream(handle, &s, "cuStreamBeginCapture"));
    if (s->capture) return wrong(MOCK_CAPTURE_UNSUPPORTED, "a stream that captures already");
    s->capture = (graph *)add_object(GRAPH, sizeof *s->capture, now());
    if (!s->capture) return MOCK_OUT_OF_MEMORY;
    mock.captures++;
    return 0;
}

API cuStreamEndCapture(void *handle, void **out)
{
    stream *s = (stream *)handle;
    int broken;
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, STREAM, "cuStreamEndCapture"));
    if (!s->capture) return wrong(MOCK_CAPTURE_UNMATCHED, "a stream that does not capture");
    broken = s->capture_broken;
    *out = broken ? NULL : s->capture;
    if (broken) destroy(&s->capture->head);
    s->capture = NULL;
    s->capture_broken = 0;
    mock.captures--;
    return broken ? MOCK_CAPTURE_INVALIDATED : 0;
}

static operation *copy_operation(const operation *from)
{
    operation *o = new_operation(from->kind);
    *o = *from;
    o->next = NULL;
    o->params = NULL;
    if (from->params) {
        o->params = (unsigned char *)malloc(64 * 16);
        if (!o->params) abort();
        memcpy(o->params, from->params, 64 * 16);
    }
    return o;
}

API cuGraphInstantiateWithFlags(void **out, void *handle, unsigned long long flags)
{
    graph *exec;
    const operation *o;
    ENTER_CONTEXT("%p %llu", handle, flags);
    TRY(check_handle(handle, GRAPH, "cuGraphInstantiate"));
    exec = (graph *)add_object(EXEC, sizeof *exec, now());
    if (!exec) return MOCK_OUT_OF_MEMORY;
    for (o = ((graph *)handle)->first; o; o = o->next) {
        operation *copy = copy_operation(o);
        if (exec->last) exec->last->next = copy;
        else exec->first = copy;
        exec->last = copy;
    }
    *out = exec;
    return 0;
}

API cuGraphInstantiate_v2(void **out, void *handle, void **node, char *log, size_t bytes)
{
    (void)node;
    if (log && bytes) log[0] = 0;
    return cuGraphInstantiateWithFlags(out, handle, 0);
}

API cuGraphGetNodes(void *handle, void **nodes, size_t *count)
{
    const operation *o;
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, GRAPH, "cuGraphGetNodes"));
    if (nodes) return wrong(MOCK_INVALID_VALUE, "the mock counts nodes only");
    *count = 0;
    for (o = ((graph *)handle)->first; o; o = o->next) (*count)++;
    return 0;
}

API cuGraphLaunch(void *handle, void *stream_handle)
{
    stream *s;
    const operation *o;
    ENTER_CONTEXT("%p %p", handle, stream_handle);
    TRY(check_handle(handle, EXEC, "cuGraphLaunch"));
    TRY(find_stream(stream_handle, &s, "cuGraphLaunch"));
    for (o = ((graph *)handle)->first; o; o = o->next) submit(s, copy_operation(o));
    return 0;
}

API cuGraphDestroy(void *handle)
{
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, GRAPH, "cuGraphDestroy"));
    destroy((object *)handle);
    return 0;
}

API cuGraphExecDestroy(void *handle)
{
    ENTER_CONTEXT("%p", handle);
    TRY(check_handle(handle, EXEC, "cuGraphExecDestroy"));
    destroy((object *)handle);
    return 0;
}

/* == NAMES == */

API cuGetErrorName(int error, const char **name)
{
    static const struct { int code; const char *name; } names[] = {
        {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {218, "CUDA_ERROR_INVALID_PTX"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"}, {600, "CUDA_ERROR_NOT_READY"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"}, {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}
    };
    size_t i;
    *name = NULL;
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].code == error) *name = names[i].name;
    return *name ? 0 : MOCK_INVALID_VALUE;
}

API cuGetErrorString(int error, const char **text)
{
    return cuGetErrorName(error, text);
}

/* A name without its version finds the newest that the mock has, among the library's own symbols. */
static void *find_symbol(const char *name)
{
    Dl_info info;
    char versioned[128];
    void *library = NULL, *symbol;
    if (dladdr((void *)(uintptr_t)oscar_mock_reset, &info)) library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return NULL;
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    symbol = dlsym(library, versioned);
    if (!symbol) symbol = dlsym(library, name);
    dlclose(library);
    return symbol;
}

API cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    ENTER("%s %d %llu", name, version, (unsigned long long)flags);
    *out = mock.absent ? NULL : find_symbol(name);
    if (status) *status = *out ? 0 : 1;
    return *out ? 0 : wrong(MOCK_NOT_FOUND, "no function %s", name);
}

API cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
