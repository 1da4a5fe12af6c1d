/* test_mock.c - the mock driver itself: contexts, handles, memory, streams, capture, faults. Kernels are those of
   sample.h: through the shim for a made-up cubin, and in PTX of NVRTC where there is one.

       test_mock LIBRARY NVRTC        libmockcuda.so, libmocknvrtc.so; link with -rdynamic
       test_mock LIBRARY touch        touches device memory from the host: must die */
#include "tests/cuda/shim.h"   /* first: it asks for the GNU names */
#include "tests/test.h"
#include "tests/cuda/calls.h"
#include "tests/cuda/nvrtc.h"
#include "sample_text.h"
#include "tests/cuda/sample_test.h"
#include "tests/cuda/prelude.h"
#define OSCAR_CU(name, ...) static const char name[] = #__VA_ARGS__ "\n";
#include "tests/cuda/sample.h"

static void *library;
static mock_control mock;

#define OK(call) \
    do { int ok_result = (call); CHECK_MSG(ok_result == 0, ("    %d: %s\n", ok_result, mock.message())); } while (0)
#define GIVES(result, call) \
    do { \
        int gives_result = (call); \
        CHECK_MSG(gives_result == (result), ("    %d: %s\n", gives_result, mock.message())); \
    } while (0)

/* -- what the mock asks this program for -- */

int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic, void **params);
int oscar_mock_parameters(const char *name, size_t *bytes);

int oscar_mock_kernel(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic, void **params)
{
    shim_kernel kernel = sample_thunk(name);
    if (!kernel) return 1;
    return shim_launch(kernel, shim_size(grid[0], grid[1], grid[2]), shim_size(block[0], block[1], block[2]), dynamic,
                       params) != 0;
}

int oscar_mock_parameters(const char *name, size_t *bytes)
{
    const sample_entry *entry = sample_find(name);
    int i;
    if (!entry) return -1;
    for (i = 0; i < 8 && entry->bytes[i]; i++) bytes[i] = entry->bytes[i];
    return i;
}

/* An ELF header for the device machine and `arch`, and the names of the kernels. */
static const void *made_up_cubin(int arch)
{
    static unsigned char image[1024];
    size_t at = 64, i;
    uint64_t sections;
    uint32_t flags = (uint32_t)arch << 8;
    uint16_t machine = 190, size = 1, count = 0;
    memset(image, 0, sizeof image);
    memcpy(image, "\177ELF\2\1\1\101", 8);
    for (i = 0; i < sizeof sample_kernels / sizeof sample_kernels[0]; i++) {
        strcpy((char *)image + at, sample_kernels[i].name);
        at += strlen(sample_kernels[i].name) + 1;
    }
    sections = at;
    memcpy(image + 18, &machine, 2);
    memcpy(image + 40, &sections, 8);
    memcpy(image + 48, &flags, 4);
    memcpy(image + 58, &size, 2);
    memcpy(image + 60, &count, 2);
    return image;
}

/* -- the sample kernels over the driver: host arrays to the device and back -- */

static void *sample_module, *sample_stream;

/* Parameters of 8 bytes are pointers: what they point to is copied both ways. */
static void launch_over_driver(const char *name, const unsigned grid[3], const unsigned block[3], size_t dynamic,
                               void **params)
{
    const sample_entry *entry = sample_find(name);
    uint64_t at[8] = {0};
    void *device_params[8], *kernel;
    int i;
    OK(cu.ModuleGetFunction(&kernel, sample_module, name));
    for (i = 0; i < 8 && entry->bytes[i]; i++) {
        device_params[i] = params[i];
        if (!sample_bytes(name, i)) continue;   /* a value */
        OK(cu.MemAlloc(&at[i], sample_bytes(name, i)));
        OK(cu.MemcpyHtoDAsync(at[i], *(void **)params[i], sample_bytes(name, i), sample_stream));
        device_params[i] = &at[i];
    }
    OK(cu.LaunchKernel(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], (unsigned)dynamic,
                       sample_stream, device_params, NULL));
    for (i = 0; i < 8; i++)
        if (at[i]) OK(cu.MemcpyDtoHAsync(*(void **)params[i], at[i], sample_bytes(name, i), sample_stream));
    OK(cu.StreamSynchronize(sample_stream));
    for (i = 0; i < 8; i++)
        if (at[i]) OK(cu.MemFree(at[i]));
}

static void check_samples(const void *image, const char *who, int late)
{
    void *context;
    mock.reset();
    mock.set("late", late);
    OK(cu.Init(0));
    OK(cu.DevicePrimaryCtxRetain(&context, 0));
    OK(cu.CtxPushCurrent(context));
    OK(cu.ModuleLoadData(&sample_module, image));
    OK(cu.StreamCreate(&sample_stream, 1));
    sample_check(launch_over_driver, who);
    OK(cu.StreamDestroy(sample_stream));
    OK(cu.ModuleUnload(sample_module));
    OK(cu.CtxPopCurrent(NULL));
    OK(cu.DevicePrimaryCtxRelease(0));
    CHECK_MSG(mock.live(NULL) == 0, ("    %d objects left\n", mock.live(NULL)));
}

static void test_samples(void)
{
    static char text[49152];
    const char *why;
    char *image;
    TEST("sample kernels over the driver");
    check_samples(made_up_cubin(90), "mock driver and the shim", 0);
    check_samples(made_up_cubin(90), "mock driver and the shim, late", 1);
    if (!nvrtc_open()) {
        SKIP("sample kernels over the mock driver in PTX, and cubins of NVRTC", "no NVRTC");
        return;
    }
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", sample_prelude(), sample_reduce, sample_codes, sample_product,
             sample_functions, sample_words, sample_last);
    image = nvrtc_compile(text, "compute_80", 0, &why);
    TEST("sample kernels over the driver, PTX");
    CHECK_MSG(image, ("    %s\n", why));
    if (image) check_samples(image, "mock driver and the PTX interpreter", 1);
    free(image);
    image = nvrtc_compile(text, "sm_90", 1, &why);
    TEST("sample kernels over the driver, cubin");
    CHECK_MSG(image, ("    %s\n", why));
    if (image) check_samples(image, "mock driver, a cubin of NVRTC, the shim", 0);
    free(image);
}

/* -- contexts, handles -- */

static void begin(void **context)
{
    mock.reset();
    OK(cu.Init(0));
    OK(cu.DevicePrimaryCtxRetain(context, 0));
    OK(cu.CtxPushCurrent(*context));
}

static void test_contexts(void)
{
    void *primary, *own, *seen, *stream, *module, *kernel;
    uint64_t a;
    unsigned char byte = 0;
    TEST("no call before cuInit, none without a context");
    mock.reset();
    GIVES(MOCK_NOT_INITIALIZED, cu.DevicePrimaryCtxRetain(&primary, 0));
    OK(cu.Init(0));
    GIVES(MOCK_INVALID_CONTEXT, cu.MemAlloc(&a, 16));
    GIVES(MOCK_INVALID_DEVICE, cu.DevicePrimaryCtxRetain(&primary, 1));
    mock.set("devices", 0);
    GIVES(MOCK_NO_DEVICE, cu.Init(0));
    TEST("objects belong to the context they were made in");
    begin(&primary);
    OK(cu.StreamCreate(&stream, 0));
    OK(cu.MemAlloc(&a, 100));
    OK(cu.ModuleLoadData(&module, made_up_cubin(90)));
    OK(cu.ModuleGetFunction(&kernel, module, "oscar_cu_sample_last"));
    GIVES(MOCK_NOT_FOUND, cu.ModuleGetFunction(&seen, module, "oscar_cu_sample_las"));
    OK(cu.CtxCreate(&own, 0, 0));
    OK(cu.CtxGetCurrent(&seen));
    CHECK(seen == own);
    GIVES(MOCK_INVALID_HANDLE, cu.StreamSynchronize(stream));
    GIVES(MOCK_INVALID_VALUE, cu.MemcpyHtoD(a, &byte, 1));
    GIVES(MOCK_INVALID_VALUE, cu.MemFree(a));
    GIVES(MOCK_INVALID_HANDLE, cu.LaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    CHECK(mock.live("context") == 1 && mock.live("memory") == 1 && mock.live("retain") == 1);
    OK(cu.CtxDestroy(own));
    OK(cu.StreamDestroy(stream));
    GIVES(MOCK_INVALID_HANDLE, cu.StreamSynchronize(stream));
    OK(cu.MemFree(a));
    GIVES(MOCK_INVALID_VALUE, cu.MemFree(a));
    OK(cu.DevicePrimaryCtxRelease(0));
    GIVES(MOCK_INVALID_CONTEXT, cu.MemAlloc(&a, 1));
    CHECK(mock.live(NULL) == 0);
}

static void test_images(void)
{
    void *context, *module;
    const void *image = made_up_cubin(86);
    TEST("images fit the device");
    begin(&context);
    GIVES(MOCK_NO_BINARY, cu.ModuleLoadData(&module, image));
    mock.set("capability", 89);
    OK(cu.ModuleLoadData(&module, image));
    mock.set("capability", 80);
    GIVES(MOCK_NO_BINARY, cu.ModuleLoadData(&module, image));
    GIVES(MOCK_INVALID_IMAGE, cu.ModuleLoadData(&module, "neither"));
    GIVES(MOCK_INVALID_PTX, cu.ModuleLoadData(&module, ".version 8.0\n.target sm_90\n"));
    mock.set("version", 12020);
    GIVES(MOCK_UNSUPPORTED_PTX, cu.ModuleLoadData(&module, ".version 9.0\n.target sm_75\n"));
    OK(cu.ModuleLoadData(&module, ".version 8.2\n.target sm_75\n"));
    GIVES(MOCK_INVALID_PTX, cu.ModuleLoadData(&module, ".version 8.2\n.target sm_75\n.entry x() { gamble; }"));
}

static void test_memory(void)
{
    void *context, *pinned, *stream;
    uint64_t a;
    unsigned char from[300], to[300];
    int i;
    TEST("memory: bounds, poison, budget");
    begin(&context);
    mock.set("memory", 1000);
    GIVES(MOCK_INVALID_VALUE, cu.MemAlloc(&a, 0));
    GIVES(MOCK_OUT_OF_MEMORY, cu.MemAlloc(&a, 1001));
    OK(cu.MemAlloc(&a, 300));
    CHECK(a % 256 == 0);
    OK(cu.MemcpyDtoH(to, a, 300));
    for (i = 0; i < 300; i++) CHECK(to[i] == 0xff);
    for (i = 0; i < 300; i++) from[i] = (unsigned char)i;
    GIVES(MOCK_INVALID_VALUE, cu.MemcpyHtoD(a + 1, from, 300));
    OK(cu.MemcpyHtoD(a, from, 300));
    OK(cu.MemcpyDtoH(to, a, 300));
    CHECK(!memcmp(from, to, 300));
    TEST("late: pageable memory is read at the call, pinned memory when the copy runs");
    mock.set("late", 1);
    OK(cu.StreamCreate(&stream, 1));
    OK(cu.MemHostAlloc(&pinned, 300, 0));
    memset(pinned, 1, 300);
    OK(cu.MemcpyHtoDAsync(a, from, 100, stream));
    OK(cu.MemcpyHtoDAsync(a + 100, pinned, 100, stream));
    OK(cu.MemsetD8Async(a + 200, 9, 100, stream));
    memset(from, 5, sizeof from);
    memset(pinned, 2, 300);
    memset(to, 0, sizeof to);
    OK(cu.MemcpyDtoHAsync(to, a, 300, stream));
    CHECK(to[1] == 0);
    GIVES(MOCK_NOT_READY, cu.StreamQuery(stream));
    OK(cu.StreamSynchronize(stream));
    OK(cu.StreamQuery(stream));
    CHECK(to[1] == 1 && to[99] == 99 && to[100] == 2 && to[299] == 9);
    CHECK(mock.live("host") == 1 && mock.live("memory") == 1);
    OK(cu.MemFreeHost(pinned));
}

static void test_streams(void)
{
    void *context, *blocking, *other, *event;
    uint64_t a;
    unsigned char byte = 0;
    TEST("late: stream 0 waits for blocking streams only, events join the others");
    begin(&context);
    mock.set("late", 1);
    OK(cu.MemAlloc(&a, 1));
    OK(cu.StreamCreate(&blocking, 0));
    OK(cu.StreamCreate(&other, 1));
    OK(cu.MemsetD8Async(a, 1, 1, blocking));
    OK(cu.MemcpyDtoH(&byte, a, 1));
    CHECK(byte == 1);
    OK(cu.MemsetD8Async(a, 2, 1, other));
    OK(cu.MemcpyDtoH(&byte, a, 1));
    CHECK(byte == 1);
    OK(cu.EventCreate(&event, 0));
    OK(cu.EventRecord(event, other));
    OK(cu.StreamWaitEvent(blocking, event, 0));
    OK(cu.MemcpyDtoHAsync(&byte, a, 1, blocking));
    OK(cu.StreamSynchronize(blocking));
    CHECK(byte == 2);
    OK(cu.EventDestroy(event));
    CHECK(mock.live("stream") == 2 && mock.live("event") == 0);
}

/* -- captures -- */

static void test_graphs(void)
{
    void *context, *stream, *module, *kernel, *graph, *exec;
    uint64_t part, count, out, other;
    void *params[3];
    float result = 0;
    unsigned zero = 0;
    int status = 7, i;
    TEST("a captured launch runs at the launch of the graph, with the parameters it had");
    begin(&context);
    OK(cu.StreamCreate(&stream, 1));
    OK(cu.ModuleLoadData(&module, made_up_cubin(90)));
    OK(cu.ModuleGetFunction(&kernel, module, "oscar_cu_sample_last"));
    OK(cu.MemAlloc(&part, 64));
    OK(cu.MemAlloc(&count, 4));
    OK(cu.MemAlloc(&out, 4));
    OK(cu.MemcpyHtoD(count, &zero, 4));
    params[0] = &part;
    params[1] = &count;
    params[2] = &out;
    OK(cu.StreamIsCapturing(stream, &status));
    CHECK(status == 0);
    OK(cu.StreamBeginCapture(stream, 0));
    OK(cu.StreamIsCapturing(stream, &status));
    CHECK(status == 1);
    OK(cu.LaunchKernel(kernel, 3, 1, 1, 64, 1, 1, 0, stream, params, NULL));
    OK(cu.StreamEndCapture(stream, &graph));
    CHECK(mock.calls("kernel") == 0);
    OK(cu.GraphInstantiate(&exec, graph, 0));
    OK(cu.GraphDestroy(graph));
    params[2] = NULL;
    for (i = 0; i < 3; i++) {
        OK(cu.GraphLaunch(exec, stream));
        OK(cu.StreamSynchronize(stream));
        OK(cu.MemcpyDtoH(&result, out, 4));
        CHECK(result == 6 * 528 && mock.calls("kernel") == i + 1);
    }
    OK(cu.GraphExecDestroy(exec));
    TEST("what a capture forbids breaks it");
    OK(cu.StreamBeginCapture(stream, 0));
    GIVES(MOCK_CAPTURE_UNSUPPORTED, cu.MemAlloc(&other, 4));
    OK(cu.StreamIsCapturing(stream, &status));
    CHECK(status == 2);
    GIVES(MOCK_CAPTURE_INVALIDATED, cu.MemsetD8Async(out, 0, 4, stream));
    GIVES(MOCK_CAPTURE_INVALIDATED, cu.StreamEndCapture(stream, &graph));
    OK(cu.StreamBeginCapture(stream, 0));
    GIVES(MOCK_CAPTURE_IMPLICIT, cu.MemsetD8Async(out, 0, 4, NULL));
    GIVES(MOCK_CAPTURE_UNSUPPORTED, cu.StreamSynchronize(stream));
    GIVES(MOCK_CAPTURE_INVALIDATED, cu.StreamEndCapture(stream, &graph));
    GIVES(MOCK_CAPTURE_UNMATCHED, cu.StreamEndCapture(stream, &graph));
    CHECK(mock.live("graph") == 0 && mock.live("exec") == 0);
}

/* -- faults -- */

static void test_faults(void)
{
    void *context, *module, *kernel;
    uint64_t a, part;
    int value = 0, n = 4096;
    void *params[4];
    TEST("the n-th call of a function, or of any, fails as asked");
    begin(&context);
    mock.fail("cuMemAlloc_v2", 2, MOCK_OUT_OF_MEMORY);
    OK(cu.MemAlloc(&a, 4));
    GIVES(MOCK_OUT_OF_MEMORY, cu.MemAlloc(&a, 4));
    OK(cu.MemAlloc(&a, 4));
    mock.fail(NULL, 1, 999);
    GIVES(999, cu.DeviceGetAttribute(&value, 75, 0));
    OK(cu.DeviceGetAttribute(&value, 75, 0));
    CHECK(value == 9 && mock.calls("cuMemAlloc_v2") == 3 && mock.live("memory") == 2);
    CHECK(strstr(mock.log(), "cuInit 0\n") && strstr(mock.log(), "cuMemAlloc_v2 4\n"));
    TEST("launches outside of the limits");
    OK(cu.ModuleLoadData(&module, made_up_cubin(90)));
    OK(cu.ModuleGetFunction(&kernel, module, "oscar_cu_sample_product"));
    OK(cu.MemAlloc(&part, 64));
    params[0] = params[1] = params[2] = &part;
    params[3] = &n;
    GIVES(MOCK_INVALID_VALUE, cu.LaunchKernel(kernel, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL));
    GIVES(MOCK_INVALID_VALUE, cu.LaunchKernel(kernel, 1, 65536, 1, 32, 1, 1, 0, NULL, params, NULL));
    GIVES(MOCK_INVALID_VALUE, cu.LaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 49153, NULL, params, NULL));
    GIVES(MOCK_INVALID_VALUE, cu.FuncSetAttribute(kernel, 8, 232449));
    OK(cu.FuncSetAttribute(kernel, 8, 232448));
    TEST("a kernel's fault shows where somebody waits, and stays");
    OK(cu.ModuleGetFunction(&kernel, module, "oscar_cu_sample_last"));
    mock.fail("kernel", 1, MOCK_ILLEGAL_ADDRESS);
    OK(cu.LaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    GIVES(MOCK_ILLEGAL_ADDRESS, cu.CtxSynchronize());
    GIVES(MOCK_ILLEGAL_ADDRESS, cu.MemAlloc(&a, 4));
    OK(cu.CtxPopCurrent(NULL));
    TEST("a kernel that writes past its memory");
    begin(&context);
    OK(cu.ModuleLoadData(&module, made_up_cubin(90)));
    OK(cu.ModuleGetFunction(&kernel, module, "oscar_cu_sample_last"));
    OK(cu.MemAlloc(&part, 8));
    OK(cu.MemAlloc(&a, 4));
    OK(cu.MemsetD8Async(a, 0, 4, NULL));
    params[0] = params[2] = &part;
    params[1] = &a;
    OK(cu.LaunchKernel(kernel, 3, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    GIVES(MOCK_ILLEGAL_ADDRESS, cu.CtxSynchronize());
    CHECK(strstr(mock.message(), "wrote past the 8 bytes"));
}

static void test_names(void)
{
    void *found = NULL;
    int (*get)(const char *, void **, int, unsigned long long, int *), status = 9;
    TEST("cuGetProcAddress finds the newest version");
    find(library, &get, "cuGetProcAddress_v2");
    mock.reset();
    OK(get("cuMemAlloc", &found, 12000, 0, &status));
    CHECK(found == dlsym(library, "cuMemAlloc_v2") && status == 0);
    OK(get("cuLaunchKernel", &found, 12000, 0, NULL));
    CHECK(found == dlsym(library, "cuLaunchKernel"));
    GIVES(MOCK_NOT_FOUND, get("cuNone", &found, 12000, 0, &status));
    CHECK(!found && status == 1);
    mock.set("absent", 1);
    GIVES(MOCK_NOT_FOUND, get("cuInit", &found, 12000, 0, &status));
}

/* -- the mock NVRTC: the sample kernels from text to launch, with nothing of NVIDIA's -- */

static void test_nvrtc(const char *path)
{
    static char text[49152];
    const char *why;
    char *image;
    int (*programs)(void);
    void (*set)(const char *, long long);
    void *symbol;
    TEST("the mock NVRTC");
    nvrtc.tried = 0;
    nvrtc.library = NULL;
    setenv("OSCAR_NVRTC_PATH", path, 1);
    CHECK(nvrtc_open());
    if (!nvrtc_open()) return;
    symbol = dlsym(nvrtc.library, "oscar_mock_nvrtc_programs");
    memcpy(&programs, &symbol, sizeof symbol);
    symbol = dlsym(nvrtc.library, "oscar_mock_nvrtc_set");
    memcpy(&set, &symbol, sizeof symbol);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", sample_prelude(), sample_reduce, sample_codes, sample_product,
             sample_functions, sample_words, sample_last);
    CHECK(!nvrtc_compile(text, "sm_70", 1, &why) && strstr(why, "invalid value"));
    CHECK(!nvrtc_compile("OSCAR_MOCK_SYNTAX_ERROR", "sm_90", 1, &why) && strstr(why, "undefined"));
    image = nvrtc_compile(text, "compute_90", 0, &why);
    CHECK(image && strstr(image, ".entry oscar_cu_sample_last()"));
    free(image);
    set("builtins", 0);
    CHECK(!nvrtc_compile(text, "sm_90", 1, &why) && strstr(why, "builtins"));
    set("builtins", 1);
    image = nvrtc_compile(text, "sm_90", 1, &why);
    CHECK(image && programs() == 0);
    if (image) check_samples(image, "mock driver and the mock NVRTC", 0);
    free(image);
}

/* Must end with a signal, before anything is printed. */
static int touch(void)
{
    void *context;
    uint64_t a;
    begin(&context);
    cu.MemAlloc(&a, 16);
    printf("%d\n", *(volatile unsigned char *)(uintptr_t)a);
    return 0;
}

int main(int count, char **arguments)
{
    if (count < 2) return 2;
    library = open_mock(arguments[1], &mock);
    if (count > 2 && !strcmp(arguments[2], "touch")) return touch();
    test_contexts();
    test_images();
    test_memory();
    test_streams();
    test_graphs();
    test_faults();
    test_names();
    test_samples();
    if (count > 2) test_nvrtc(arguments[2]);
    mock.reset();
    return test_end("test_mock");
}
