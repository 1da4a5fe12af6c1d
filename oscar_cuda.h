/* oscar_cuda.h - version 1.0.0 - the pages of oscar.h on an NVIDIA GPU. MIT or Unlicense (section 5).

   Needs oscar.h beside it and a C99 or C++11 compiler: no CUDA header, no nvcc, nothing to link but libdl on old
   systems. The driver and NVRTC (NVIDIA's run-time compiler, a library) are loaded when the program runs, so it starts
   on a computer without a GPU, too, and says there what is missing. Page bytes are those of the CPU.

   Do this in ONE file, and include oscar_cuda.h plainly everywhere else:

       #define OSCAR_IMPLEMENTATION
       #include "oscar_cuda.h"

   ===================================================================================================================
   == 1 MANUAL
   ===================================================================================================================

   1.1  QUICK START
   1.2  STEPS
   1.3  GRAPHS
   1.4  PAGES OF YOUR OWN
   1.5  WHAT IS LOADED, FROM WHERE
   1.6  KERNELS AS TEXT
   1.7  CONTEXTS, STREAMS, THREADS
   1.8  SHIPPING AN IMAGE
   1.9  FAILURES
   1.10 BUILD OPTIONS
   2.1  DEVICE
   2.2  COMPILE
   2.3  LAYERS ON A DEVICE
   2.4  CACHE ON A DEVICE
        (stop here if you only call it)
   3.1  PRELUDE
   3.2  NUMBERS
   3.3  WARP TOOLS
   3.4  TRANSFORMS
   3.5  ENCODE
   3.6  QUERY
   3.7  WRITE
   3.8  READ
   3.9  DECODE
   3.10 MERGE
   3.11 CHECK
   4.1  DRIVER AND NVRTC, OWN TYPES
   4.2  LIBRARIES
   4.3  COMPILE
   4.4  CONTEXT, MODULES
   4.5  LAUNCHES
   4.6  LAYERS
   4.7  CACHE ON A DEVICE

   == 1.1 QUICK START

   A cache on a device and a decode step; zeroed fields are defaults, `stream` is the engine's CUstream (cudaStream_t):

       oscar_cuda_desc device = { 0 };                  // {} in C++: device 0, the current context or the primary one
       oscar_cuda *cuda;
       device.hooks.log = my_log;                       // is told what is missing, and what to do
       if (oscar_cuda_open(&device, &cuda)) return 1;

       oscar_cuda_cache_desc desc = { 0 };
       oscar_cuda_cache *cache;
       desc.cache.layers = layers; desc.cache.layer_count = 32;     // oscar_layer, as for a cache on the CPU
       desc.cache.max_sequences = 16; desc.cache.max_pages = 32000; // of 64 tokens, shared by the sequences
       desc.cache.rotations = rotations;                            // calibrated with oscar.h, or NULL
       desc.row_type = OSCAR_BF16;                                  // of q, k, v and o on the device
       if (oscar_cuda_cache_create(cuda, &desc, &cache)) return 1;  // compiles: a few seconds, once a shape

       oscar_batch batch[16];                           // sequences of this step, 1 row each: { seq, row, 1 }
       oscar_cuda_cache_open(cache, &batch[0].seq);     // a sequence

       // each token:
       oscar_cuda_step(cache, batch, 16, 0, stream);
       // each layer; k.data, v.data, q.data, o.data: device addresses of rows [row][head][dim]
       oscar_cuda_append(cache, l, &k, &v, stream);
       oscar_cuda_attend(cache, l, &q, 0, &o, 0, stream);

       oscar_cuda_cache_destroy(cache);                 // before the device object
       oscar_cuda_close(cuda);

   Every call returns 0 (OSCAR_OK) or says in the log what to change. examples/cuda.c is a whole program. What a user's
   machine has, to show or to log: oscar_cuda_probe, which fails nowhere without saying what to do.

   == 1.2 STEPS

   The host keeps tables and lengths (the pager of oscar.h); pages, windows and transforms are on the device. A step
   says which rows of which sequences come, reserves their pages, and sends tables to the device in one copy. Then
   each layer appends, in any order. Rows go into the windows; pages that are due are transformed and quantised by the
   same launch (of a prefill by one before it), with the bytes that oscar_page_write makes. The last layer's append ends
   the step.

       decode     up to max_rows rows a sequence: oscar_cuda_append, then oscar_cuda_attend. Entries with seq 0 are
                  padding: their rows of o become 0, lse -inf.
       prefill    more rows, in chunks of at most max_chunk. Before the layer's append oscar_cuda_attend_history gives
                  o and lse of the chunk's rows over what was there before, pages and windows; the chunk over itself is
                  the engine's own attention kernel (causal, with lse); the two are joined as oscar_attend_join does.
       drafts     oscar_cuda_step with draft = 1, append and attend as in decode; then oscar_cuda_cache_accept with the
                  number of rows to keep of each sequence. Nothing was quantised that has to go again.
       fork, cut  share and drop tokens: prefix caching, beams, edits. abort takes an open step back.

   A bad row (NaN, infinite, too long) cannot be refused by the time a kernel sees it: it is stored as zeros, and
   oscar_cuda_status tells the first one. Ask now and then; asking waits for the stream.

   == 1.3 GRAPHS

   Grids of a decode step depend on the desc and on the number of entries, padding included; lengths and tables are read
   from fixed addresses. So one capture serves all steps of as many entries or fewer, whatever their sequences and
   lengths; further entries it would not see:

       oscar_cuda_step(cache, batch, count, 0, stream);       // outside of the capture: it sends the step's tables
       cudaStreamBeginCapture(stream, ...);  the layers' kernels, append and attend among them;  cudaStreamEndCapture
       cudaGraphLaunch(graph, stream);                        // this step
       // each further token:
       oscar_cuda_step(cache, batch, count, 0, stream);
       cudaGraphLaunch(graph, stream);
       oscar_cuda_commit(cache);                              // the graph has appended in every layer

   Buffers of q, k, v and o stay where they were. Graphs of a few numbers of entries (1, 2, 4, ... max_batch) share one
   cache: a step takes the next larger one, and few entries are spread over the device as finely as they need.

   == 1.4 PAGES OF YOUR OWN

   An engine with a pool, page tables and a scheduler of its own takes section 2.3 instead of a cache: a layer
   (kernels and pairs), and launches over memory that the caller owns. oscar_cuda_memory lists it: entries and tables
   in device memory, [pages][layout.bytes], windows, a status word, and work memory:

       oscar_page_layout(&layer, 64, OSCAR_BF16, NULL, &layout);        // once a layer; layout.bytes: of a page
       oscar_cuda_layer_create(cuda, &layout, &options, &kernels);

       oscar_cuda_memory m = { 0 };                                     // once a grid, that is a batch size
       m.entries = entries; m.entry_count = batch;                      // oscar_cuda_entry [batch] on the device
       m.tables = tables;                                               // uint32_t page ids
       m.entry_rows = 1; m.entry_pages = 1; m.rows = batch;             // a decode step: a row and at most a page each
       m.pool = pool; m.window_k = window_k; m.window_v = window_v; m.status = status;
       m.splits = oscar_cuda_splits(kernels, batch, 1, max_context);
       m.work = ...;                                                    // of oscar_cuda_work_bytes(kernels, &m) bytes

       // each step: copy entries and tables to the device, then in each layer
       oscar_cuda_write_pages(kernels, &m, &k, &v, 3, stream);
       oscar_cuda_attend_pages(kernels, &m, &q, 0, &o, 0, stream);

   The entries say of each sequence where it stands; oscar_pager computes them for any storage (oscar_moves), or the
   caller does:

       windows hold `sink` first and at least `recent` last tokens; a page is due when recent + page_tokens tokens lie
       behind what is in pages: history = whole pages of (tokens - sink - recent), at least 0
       a step of n rows at position p:  history(p + n) > history(p): write_first, write_count are the pages between

       prefill    before the append, attention over what was there: history of before, unseen = rows. Then pages
                  (what = 1), then windows (what = 2)
       drafts     a step with the history of before. Once some are accepted: position = the new length, rows 0, the
                  history and the pages that are due now, what = 1; k and v may be NULL
       cut        of a page: oscar_cuda_read_pages with windows = 1 takes the tokens in front of the cut back into the
                  ring

   Pages can be moved, shared, swapped to the host and sent: they hold no address and depend on nothing but the layer.

   == 1.5 WHAT IS LOADED, FROM WHERE

   The driver: libcuda.so.1 (nvcuda.dll), or desc.driver. CUDA 11.0 or later, compute capability 7.5 or later.
   NVRTC: only where something is compiled, not for a shipped image. Tried in this order:

       desc.nvrtc             the library or its folder; nothing else is then tried
       OSCAR_NVRTC_PATH       environment, likewise a library or a folder
       names, newest first    libnvrtc.so.N ... .so.13 .so.12 .so.11.2 .so.11.1 .so.11.0 libnvrtc.so, on Windows
                              nvrtc64_130_0.dll nvrtc64_120_0.dll nvrtc64_112_0.dll ...; each in the loader's own path,
                              then in lib64 and lib of CUDA_PATH and CUDA_HOME, lib64 of /usr/local/cuda and /opt/cuda
                              (Windows: bin and bin\x64 of CUDA_PATH), then where Conda and the Python wheels
                              nvidia-cuda-nvrtc put it in VIRTUAL_ENV and CONDA_PREFIX

   A major version that is or may be newer than the driver's comes last: what it makes may not load. NVRTC opens a
   second library (libnvrtc-builtins) by name; it is loaded before, from NVRTC's own folder. Libraries stay loaded until
   the program ends. oscar_cuda_get_info tells the paths and versions.

   == 1.6 KERNELS AS TEXT

   Section 3 is C text that becomes a string. oscar_cuda_source gives it whole, with a #define line for each constant of
   the layer: it includes nothing and compiles with NVRTC, nvcc and clang. NVRTC makes a cubin for the device's own
   architecture of it. Where NVRTC does not know the device (a new card, an old toolkit), it makes PTX for the newest
   that it knows, if the driver can take that, else a cubin of an older member of the family, else an error. Layers of
   equal constants share one module. desc.cache names a folder that keeps cubins between runs; files are checked, so
   several processes may share it, and a damaged, foreign or missing one only costs the compilation.

   == 1.7 CONTEXTS, STREAMS, THREADS

   A given context (desc.context) is used and stays yours; so does the current one, which is taken if it belongs to the
   device: both have to outlive the object. Else it is the device's primary context, which the runtime API uses as well,
   retained until oscar_cuda_close. Every call puts the context on the thread's stack and takes it off again, also where
   it fails: the current context never changes.
   Work goes to the stream that is given; NULL is the default stream, to which nothing else goes. Calls of a step
   neither allocate nor synchronise. Append, attention and the launches of 2.3 can be captured in a graph: layers and
   caches have loaded their kernels when they were created. Loading in a capture would break it; oscar_cuda_ready tells,
   without a call of the driver, whether kernels are there. What waits (creating, oscar_cuda_status, debug_sync) belongs
   outside of captures, also of those that another thread makes in the driver's global mode.
   A device object has one writer (open, load, creating layers and caches, close). Launches only read it, so threads may
   work on different caches at once, or launch a layer over different memory. A cache has one writer. Layers and caches
   are destroyed before their device object.

   == 1.8 SHIPPING AN IMAGE

   oscar_cuda_compile needs NVRTC and no GPU, so build machines make images: the cubin of each architecture (sm 80 also
   serves 86 and 89, 90 only 90), or PTX. nvcc and clang make them of the text of oscar_cuda_source. oscar_cuda_load
   takes an image, the bytes of such a file, in place of NVRTC. examples/cuda_image.c is both for the shape that its
   options tell (--help); --header NAME writes a C array in place of a file:

       cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 90 -o layer.cubin              with NVRTC
       cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 80 --ptx -o layer.ptx          for sm 80 and later
       cuda_image --q-heads 32 --kv-heads 8 --dim 128 --sm 80 --source -o layer.cu        the text, for sm 80 and later

       nvcc -cubin -arch=sm_90 layer.cu -o layer.cubin
       nvcc -fatbin -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] layer.cu
           -o layer.fatbin
       clang -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -Xclang -target-feature
           -Xclang +ptx74 -O3 -S layer.cu -o layer.ptx                                     without CUDA's toolkit

   For a cache, load the images of its layers before oscar_cuda_cache_create, which then compiles nothing: with options
   sink, recent, max_draft and row_type as in its desc, and step_rows = max_rows.
   An image knows constants and text it was made from: that of another layer or version is refused. It is made for the
   least shared memory among the devices that it runs on; where that is less than the device has (sm 80 on an A100),
   kernels compiled there are a little faster.

   == 1.9 FAILURES

       ERR_NO_DRIVER      no driver library, or a stub, or one without the calls that are needed
       ERR_NO_DEVICE      the driver sees no GPU, or desc.device is not among them
       ERR_NO_NVRTC       found nowhere: the log says where to get it, and how to point at it
       ERR_UNSUPPORTED    the GPU is older than 7.5, NVRTC cannot compile for it, a kernel wants more shared memory than
                          it has, or heads of one layer have pairs of several kinds
       ERR_COMPILE        the log has NVRTC's own, line by line, and oscar_cuda_get_log keeps it
       ERR_CUDA           a call of the driver failed: the log names it with the driver's words
       ERR_MEMORY         no memory here or on the device, or a buffer that is too small
       ERR_VERSION        an image of another layer, version or architecture; ERR_FORMAT: a damaged one
       ERR_SHAPE          windows, pages or a step are larger than a kernel can address
       ERR_STATE          kernels that are not loaded, a layer that has appended already, no open step, an open one

   Outputs are written only on success, where a comment does not say more. With desc.debug_sync each launch is waited
   for, so that a fault is reported by the kernel that made it; without, by a later call. After a fault in a kernel CUDA
   refuses all work in the context.

   == 1.10 BUILD OPTIONS

   Those of oscar.h: OSCAR_IMPLEMENTATION, OSCAR_STATIC, OSCAR_API, OSCAR_NAMESPACE, and so on. OSCAR_NO_STDIO: no
   cache on disk, desc.cache is ERR_UNSUPPORTED. In this header alone:

       OSCAR_CUDA_HOST_KERNELS   section 3 becomes C functions in place of text, and section 4 is left out. For tests,
                                 which define the words of the prelude before the include.

   Link with -ldl where the C library is older than glibc 2.34. Windows: <windows.h> is included by the implementation
   only, with WIN32_LEAN_AND_MEAN and NOMINMAX. */

#include "oscar.h"

#if defined(OSCAR_NAMESPACE) && !defined(oscar_cuda_probe)
#define oscar_cuda_probe OSCAR__NAME(oscar_cuda_probe)
#define oscar_cuda_open OSCAR__NAME(oscar_cuda_open)
#define oscar_cuda_close OSCAR__NAME(oscar_cuda_close)
#define oscar_cuda_get_info OSCAR__NAME(oscar_cuda_get_info)
#define oscar_cuda_get_log OSCAR__NAME(oscar_cuda_get_log)
#define oscar_cuda_source OSCAR__NAME(oscar_cuda_source)
#define oscar_cuda_compile OSCAR__NAME(oscar_cuda_compile)
#define oscar_cuda_load OSCAR__NAME(oscar_cuda_load)
#define oscar_cuda_ready OSCAR__NAME(oscar_cuda_ready)
#define oscar_cuda_check OSCAR__NAME(oscar_cuda_check)
#define oscar_cuda_layer_create OSCAR__NAME(oscar_cuda_layer_create)
#define oscar_cuda_layer_destroy OSCAR__NAME(oscar_cuda_layer_destroy)
#define oscar_cuda_splits OSCAR__NAME(oscar_cuda_splits)
#define oscar_cuda_work_bytes OSCAR__NAME(oscar_cuda_work_bytes)
#define oscar_cuda_write_pages OSCAR__NAME(oscar_cuda_write_pages)
#define oscar_cuda_attend_pages OSCAR__NAME(oscar_cuda_attend_pages)
#define oscar_cuda_read_pages OSCAR__NAME(oscar_cuda_read_pages)
#define oscar_cuda_cache_bytes OSCAR__NAME(oscar_cuda_cache_bytes)
#define oscar_cuda_cache_create OSCAR__NAME(oscar_cuda_cache_create)
#define oscar_cuda_cache_destroy OSCAR__NAME(oscar_cuda_cache_destroy)
#define oscar_cuda_cache_layout OSCAR__NAME(oscar_cuda_cache_layout)
#define oscar_cuda_cache_open OSCAR__NAME(oscar_cuda_cache_open)
#define oscar_cuda_cache_close OSCAR__NAME(oscar_cuda_cache_close)
#define oscar_cuda_cache_get OSCAR__NAME(oscar_cuda_cache_get)
#define oscar_cuda_cache_can OSCAR__NAME(oscar_cuda_cache_can)
#define oscar_cuda_cache_check OSCAR__NAME(oscar_cuda_cache_check)
#define oscar_cuda_cache_fork OSCAR__NAME(oscar_cuda_cache_fork)
#define oscar_cuda_cache_cut OSCAR__NAME(oscar_cuda_cache_cut)
#define oscar_cuda_cache_accept OSCAR__NAME(oscar_cuda_cache_accept)
#define oscar_cuda_cache_abort OSCAR__NAME(oscar_cuda_cache_abort)
#define oscar_cuda_step OSCAR__NAME(oscar_cuda_step)
#define oscar_cuda_append OSCAR__NAME(oscar_cuda_append)
#define oscar_cuda_attend OSCAR__NAME(oscar_cuda_attend)
#define oscar_cuda_attend_history OSCAR__NAME(oscar_cuda_attend_history)
#define oscar_cuda_commit OSCAR__NAME(oscar_cuda_commit)
#define oscar_cuda_status OSCAR__NAME(oscar_cuda_status)
#define oscar_cuda_download OSCAR__NAME(oscar_cuda_download)
#define oscar_cuda_upload OSCAR__NAME(oscar_cuda_upload)
#define oscar_cuda_gather OSCAR__NAME(oscar_cuda_gather)
#endif /* OSCAR_NAMESPACE */

/* ==================================================================================================================
   == 2 API
   ================================================================================================================== */
#ifndef OSCAR_CUDA_H
#define OSCAR_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

/* == 2.1 DEVICE == */

/* Zeroed: device 0, what libraries can be found, silence.
     device      its number, 0 default; -1: that of the current context. With a context the number may stay 0
     context     a CUcontext, stays the caller's and must outlive the object; NULL: the current one if it belongs to the
                 device, else the device's primary one, retained until close
     driver      path of the driver library, NULL: search
     nvrtc       path of the NVRTC library or of its folder, NULL: search
     cache       an existing folder for cubins, up to 900 bytes, NULL: none
     debug_sync  1: wait for each launch and report its own fault; not for captures
     hooks       memory and log
   The strings are copied. */
typedef struct oscar_cuda_desc {
    int device;
    void *context;
    const char *driver, *nvrtc;
    const char *cache;
    int debug_sync;
    oscar_hooks hooks;
} oscar_cuda_desc;

enum { OSCAR_CUDA_PATH_BYTES = 512 };

/* What is there. Versions are 1000 major + 10 minor, 0 where the library was not loaded.
     nvrtc_newest   the newest architecture it compiles for, 0 unknown
     sm             10 times the compute capability: 90 for 9.0
     shared_bytes   most shared memory that a block can ask for; shared_all_bytes: what a multiprocessor has
     memory_clock_khz, memory_bus_bits, bandwidth   0 where the driver does not tell; bandwidth in bytes a second
     context        the object's; NULL from probe
     sentence       of probe: what is missing and what to do, empty where nothing is */
typedef struct oscar_cuda_info {
    int driver_version, nvrtc_version, nvrtc_newest;
    char driver_path[OSCAR_CUDA_PATH_BYTES], nvrtc_path[OSCAR_CUDA_PATH_BYTES];
    int devices, device;
    char name[128];
    int sm, multiprocessors;
    size_t shared_bytes, shared_all_bytes, memory_bytes;
    int l2_bytes, clock_khz, memory_clock_khz, memory_bus_bits;
    double bandwidth;
    void *context;
    char sentence[OSCAR_CUDA_PATH_BYTES];
} oscar_cuda_info;

typedef struct oscar_cuda oscar_cuda;

/* Looks for driver, device and NVRTC, and makes no context. Each field of info that can be known is filled in, also
   where another step fails; the result is that of the first thing missing (driver, device, then NVRTC), with its
   sentence in info. desc NULL = zeroed. Errors: NO_DRIVER, NO_DEVICE, NO_NVRTC, UNSUPPORTED, ARGUMENT, STATE, CUDA. */
OSCAR_API oscar_result oscar_cuda_probe(const oscar_cuda_desc *desc, oscar_cuda_info *info);

/* Opens a device. One allocation; NVRTC is not touched before something is compiled. desc NULL = zeroed. close: gives
   modules and a retained primary context back, leaves memory of the caller alone; work on the device is done by then,
   layers and caches are destroyed. NULL does nothing.
   Errors: NO_DRIVER, NO_DEVICE, UNSUPPORTED, ARGUMENT, STATE (device -1 without a current context), MEMORY, CUDA. */
OSCAR_API oscar_result oscar_cuda_open(const oscar_cuda_desc *desc, oscar_cuda **out);
OSCAR_API void oscar_cuda_close(oscar_cuda *cuda);

/* What the object uses; NVRTC's fields are 0 until it has been loaded. Does nothing where an argument is NULL. */
OSCAR_API void oscar_cuda_get_info(const oscar_cuda *cuda, oscar_cuda_info *info);

/* NVRTC's whole log of the object's last compilation, lines ending in \n; "" if there was none. Valid until the object
   loads kernels again, for a layer or a cache as well, or is closed. */
OSCAR_API const char *oscar_cuda_get_log(const oscar_cuda *cuda);

/* == 2.2 COMPILE == */

/* What the kernels have to know besides the layout. Zeroed: the defaults of a cache.
     sink, recent, max_draft   as in oscar_pager_desc: 0 = 64, 256, 16; -1 none
     row_type                  of the rows q, k, v, o that the engine hands over; DEFAULT = F32
     step_rows                 rows of a sequence in the step that attention shall be best at, up to 65536: 0 = 1, or
                               the drafts and one where most steps check them. Steps of any number of rows work */
typedef struct oscar_cuda_options {
    int sink, recent, max_draft;
    oscar_type row_type;
    int step_rows;
} oscar_cuda_options;

/* The text of all kernels for a layer, 0-terminated: constants, prelude, chunks.
     sm  the oldest architecture that it is compiled for, 75 or more; 0 = 80
   out NULL asks for *size only (with the final 0); capacity too small is ERR_MEMORY and *size is set. options NULL =
   zeroed. Of layout's pairs only what they are counts (kind, mean and metric there or not), never the numbers.
   Errors, without a log: ARGUMENT, SHAPE (windows of a sequence of 4 GB, pages of 2 GB), UNSUPPORTED (heads of one
   layer with pairs of several kinds; heads so wide that a block has not enough shared memory), MEMORY. */
OSCAR_API oscar_result oscar_cuda_source(const oscar_layout *layout, const oscar_cuda_options *options, int sm,
                                         char *out, size_t capacity, size_t *size);

/* Compiles the kernels of a layer; needs NVRTC, neither a driver nor a GPU. Of desc only nvrtc and hooks count.
     sm    the architecture, 75 or more: 90 for sm_90
     ptx   0: a cubin; 1: PTX, 0-terminated, for devices from that architecture on
   out NULL compiles, too, and tells *size only; capacity too small is ERR_MEMORY and *size is set. Errors: as source,
   and NO_NVRTC, UNSUPPORTED (sm below 75, or NVRTC does not know it), COMPILE. */
OSCAR_API oscar_result oscar_cuda_compile(const oscar_cuda_desc *desc, const oscar_layout *layout,
                                          const oscar_cuda_options *options, int sm, int ptx, void *out,
                                          size_t capacity, size_t *size);

/* Makes the kernels of a layer ready on the device; at once if those of an equal layer are. image, size: a cubin,
   fatbin or PTX made of the same layout and options, used during the call only; NULL, 0: from the cache folder, or
   compiled. Not while a stream is being captured. Errors: as compile, and FORMAT and VERSION (of image), CUDA. */
OSCAR_API oscar_result oscar_cuda_load(oscar_cuda *cuda, const oscar_layout *layout, const oscar_cuda_options *options,
                                       const void *image, size_t size);

/* OSCAR_OK if oscar_cuda_load has made these kernels ready, else ERR_STATE, or what load would say of a layout or
   options that have no kernels. Makes no call of the driver, so it may be asked while a stream is being captured. */
OSCAR_API oscar_result oscar_cuda_ready(const oscar_cuda *cuda, const oscar_layout *layout,
                                        const oscar_cuda_options *options);

/* Launches a tiny kernel on a stream and waits for it: whether loaded kernels run on this device and agree with the
   host about the layout. For set-up and diagnosis; it allocates 128 bytes on the device.
     stream  a CUstream of the object's context, NULL: the default stream; so in all calls that take one
   Errors: as ready, and ARGUMENT (a stream of another context), STATE (the kernel's answer is wrong), MEMORY, CUDA. */
OSCAR_API oscar_result oscar_cuda_check(const oscar_cuda *cuda, const oscar_layout *layout,
                                        const oscar_cuda_options *options, void *stream);

/* == 2.3 LAYERS ON A DEVICE: for engines with a pool and page tables of their own == */

/* Rows [token][head][dim] in device memory, of options.row_type. Strides in values, 0 = contiguous, as in oscar_view;
   data is an address on the device, aligned to its values. */
typedef struct oscar_cuda_rows {
    uint64_t data;
    ptrdiff_t token_stride, head_stride;
} oscar_cuda_rows;

/* One sequence of a step, as kernels read it from device memory: 48 bytes. Of the pages of a sequence page i holds
   tokens sink + i * page_tokens and on.
     position     of its first row: tokens before the step
     history      tokens in pages once the step is appended
     write_first, write_count   pages, as indices in its table, that the step writes
     row, rows    its rows in q, k, v and o; rows 0: it has none
     slot         of its windows
     table        where its page ids start in tables: that of page i is tables[table + i]
     unseen       of the position + rows tokens those at the end that the windows do not hold (yet): 0 after an append,
                  rows before it
   Padding is an entry of zeros. Row r of an entry sees the tokens up to position + r that windows and pages hold. */
typedef struct oscar_cuda_entry {
    int64_t position, history, write_first;
    int32_t write_count, row, rows;
    uint32_t slot;
    int32_t table, unseen;
} oscar_cuda_entry;

/* Rows first .. first + count - 1 of a page, which go to rows `row` and on of the outputs, or from `position` on into
   the windows of a slot: 32 bytes. */
typedef struct oscar_cuda_item {
    int64_t position, row;
    uint32_t page;
    int32_t first, count;
    uint32_t slot;
} oscar_cuda_item;

/* Device memory that a launch works on; all of it stays alive until the work is done. Addresses are aligned to 16.
     entries, tables   oscar_cuda_entry [entry_count], at most 65535; page ids, 32 bits each
     entry_rows, entry_pages   most rows that an entry has, most pages that it writes: they size grids, so that a
                       captured graph can be replayed with other entries. Of attention: entry_rows * (query heads of a
                       KV head) / 4, rounded up, times entry_count is at most 65535
     rows              of q and o: those that no entry has get o = 0, lse = -inf
     pool              [pages][layout.bytes]
     window_k, window_v   [slots][sink + ring][kv_heads][dim] in the window type, ring = recent + page_tokens - 1
                       + max(1, max_draft): the token at position p is in row p, from sink on in row
                       sink + (p - sink) mod ring. 0, of attention: pages only
     status            32 bytes, zeroed once: an oscar_cuda_fault, of the first bad row that a write met
     work, splits      oscar_cuda_work_bytes bytes that nothing else uses meanwhile; oscar_cuda_splits, or 1 to 256. Of
                       attention alone
     layer             number that a fault is reported under */
typedef struct oscar_cuda_memory {
    uint64_t entries, tables;
    int entry_count, entry_rows, entry_pages, rows;
    uint64_t pool, window_k, window_v, status;
    uint64_t work;
    int splits, layer;
} oscar_cuda_memory;

typedef struct oscar_cuda_layer oscar_cuda_layer;

/* Makes the kernels of a layer ready (oscar_cuda_load) and puts its pairs on the device; waits for that. layout and
   pairs are not needed afterwards, cuda is. destroy: NULL does nothing; work that uses it must be done.
   Errors: as oscar_cuda_load. */
OSCAR_API oscar_result oscar_cuda_layer_create(oscar_cuda *cuda, const oscar_layout *layout,
                                               const oscar_cuda_options *options, oscar_cuda_layer **out);
OSCAR_API void oscar_cuda_layer_destroy(oscar_cuda_layer *layer);

/* splits: blocks of the grid that share the history of an entry, so that the device is full: the number that suits
   entries of up to entry_rows rows over histories of up to `tokens` tokens, 1 to 256. Any other number gives the same
   attention within its tolerance. work_bytes: bytes of memory.work, from entry_count, entry_rows, rows and splits of
   memory. Where an argument is NULL or not positive: 1, and 0. */
OSCAR_API int oscar_cuda_splits(const oscar_cuda_layer *layer, int entry_count, int entry_rows, int64_t tokens);
OSCAR_API size_t oscar_cuda_work_bytes(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory);

/* Launches only: no allocation, no waiting, capturable. Pages, tables and entries are not checked, since the host does
   not see them. write: rows of a step into windows, and pages that are due. Tokens of the step that go into a page are
   read from k and v, older ones from the ring.
     what   1 pages, 2 windows, 3 both at once, which is allowed where no entry has more than max(1, max_draft) rows;
            longer ones take two calls, pages first
     k, v   may be NULL where no entry has rows
   A bad row (not finite, or too long to be quantised) becomes zeros in its page, and the first one is told in status.
   attend: q over pages and windows. sink_logits: device address of float [q_heads], 0 none; lse: of float [rows]
   [q_heads], 0 none.
   read: items, the device address of oscar_cuda_item [item_count], at most 65535, item_rows being the most of one, to
   rows of out_type (k or v may be NULL), or with windows = 1 into the windows of memory; of memory it needs pool and
   these. The bytes are those of oscar_page_read.
   Errors: ARGUMENT (an address that is missing, a count, the stream), CUDA. */
OSCAR_API oscar_result oscar_cuda_write_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                              const oscar_cuda_rows *k, const oscar_cuda_rows *v, int what,
                                              void *stream);
OSCAR_API oscar_result oscar_cuda_attend_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                               const oscar_cuda_rows *q, uint64_t sink_logits,
                                               const oscar_cuda_rows *o, uint64_t lse, void *stream);
OSCAR_API oscar_result oscar_cuda_read_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                             uint64_t items, int item_count, int item_rows, int windows,
                                             oscar_type out_type, const oscar_cuda_rows *k, const oscar_cuda_rows *v,
                                             void *stream);

/* == 2.4 CACHE ON A DEVICE == */

/*   cache         layers, rotations, window type, sequences, pages, sink, recent, drafts: as for oscar_cache_create,
                   and not needed afterwards; hooks (the device object's are taken) and precision are not used
     row_type      of q, k, v and o; DEFAULT = F32
     max_batch     entries of a step, 0 = max_sequences; at most 65535
     max_rows      rows of an entry of a step that attends, 0 = 1: drafts and a token, say. At most recent + 1, or
                   max_draft if that is more
     max_chunk     rows of a prefill step, all entries together, 0 = 512
     max_context   tokens that the grids of attention are sized for, 0 = max_tokens; longer works as well */
typedef struct oscar_cuda_cache_desc {
    oscar_cache_desc cache;
    oscar_type row_type;
    int max_batch, max_rows, max_chunk;
    int64_t max_context;
} oscar_cuda_cache_desc;

/* Bytes on the device: total = pages + windows + constants + steps + work; and pinned ones of the host. */
typedef struct oscar_cuda_footprint {
    size_t total, pages, windows, constants, steps, work;
    size_t pinned;
} oscar_cuda_footprint;

/* found: 0 no bad row so far, else 1. kind: 0 a key is not finite, 1 it is too long, 2 and 3: a value. head: the KV
   head. slot: of the sequence, the low 32 bits of its handle. position: the token's */
typedef struct oscar_cuda_fault {
    int found, layer, head, kind;
    int slot;
    int64_t position;
} oscar_cuda_fault;

typedef struct oscar_cuda_cache oscar_cuda_cache;

/* bytes: before anything is compiled or allocated. create: all memory, kernels, pairs; waits until they are there. A
   failure gives back what was taken. The device object must outlive the cache. destroy waits for the device's work on
   its memory; NULL does nothing. layout: of a layer's pages, without its pairs (NULL).
   Errors: as oscar_cache_create and oscar_cuda_load; NO_DRIVER (the driver lacks a call that a cache needs). */
OSCAR_API oscar_result oscar_cuda_cache_bytes(oscar_cuda *cuda, const oscar_cuda_cache_desc *desc,
                                              oscar_cuda_footprint *out);
OSCAR_API oscar_result oscar_cuda_cache_create(oscar_cuda *cuda, const oscar_cuda_cache_desc *desc,
                                               oscar_cuda_cache **out);
OSCAR_API void oscar_cuda_cache_destroy(oscar_cuda_cache *cache);
OSCAR_API oscar_result oscar_cuda_cache_layout(const oscar_cuda_cache *cache, int layer, oscar_layout *out);

/* As the oscar_cache_ functions. A cache has one writer, and all of its work has to be in one stream, or in streams
   that the caller orders: what a call does on the device comes behind the calls before it. Where a call fails, nothing
   has happened as far as the cache tells, and it can be called again; after a cut or an abort of which the device did
   a part, the sequence answers ERR_STATE until that call succeeds or the sequence is closed.
   open, get, can and check make no call of the driver. can: what the sequence allows, whatever step of others is open;
   SAVE and SHIFT are ERR_UNSUPPORTED. fork copies the windows and, as cut and abort do, decodes at most one page a
   layer. accept: `rows` of each entry are the drafts to keep; all entries or none, at most max_batch.
   Errors: as the oscar_cache_ functions (ARGUMENT, HANDLE, STATE, FULL), and ARGUMENT (the stream), CUDA. */
OSCAR_API oscar_result oscar_cuda_cache_open(oscar_cuda_cache *cache, oscar_seq *out);
OSCAR_API oscar_result oscar_cuda_cache_close(oscar_cuda_cache *cache, oscar_seq seq, void *stream);
OSCAR_API oscar_result oscar_cuda_cache_get(const oscar_cuda_cache *cache, oscar_seq seq, oscar_seq_state *out);
OSCAR_API oscar_result oscar_cuda_cache_can(const oscar_cuda_cache *cache, oscar_seq seq, oscar_op op, int64_t arg);
OSCAR_API oscar_result oscar_cuda_cache_check(oscar_cuda_cache *cache);
OSCAR_API oscar_result oscar_cuda_cache_fork(oscar_cuda_cache *cache, oscar_seq seq, int64_t length, oscar_seq *out,
                                             void *stream);
OSCAR_API oscar_result oscar_cuda_cache_cut(oscar_cuda_cache *cache, oscar_seq seq, int64_t length, void *stream);
OSCAR_API oscar_result oscar_cuda_cache_accept(oscar_cuda_cache *cache, const oscar_batch *batch, int count,
                                               void *stream);
OSCAR_API oscar_result oscar_cuda_cache_abort(oscar_cuda_cache *cache, oscar_seq seq, void *stream);

/* A step: reserves the rows of all sequences of the batch, or of none, and tells the device. One step at a time: the
   next one after the last layer's append, oscar_cuda_commit, or an abort of all its sequences.
     batch   at most max_batch entries; a zero handle is padding
     draft   1: the rows are drafts
   If each entry has at most max_rows rows, all of them among the first count * max_rows, the step attends, and its
   grids depend on count and the desc alone. Else it is a prefill: its rows can be appended, and attend only over what
   was there before.
   Neither allocates nor waits; only a host that is four calls ahead of the device waits for the oldest of them. Call it
   outside of a capture. A failure leaves no trace but that the step before cannot attend any more.
   Errors: ARGUMENT, HANDLE, STATE (a step is open, of the cache or of a sequence; an unfinished cut or abort), FULL,
   CUDA. */
OSCAR_API oscar_result oscar_cuda_step(oscar_cuda_cache *cache, const oscar_batch *batch, int count, int draft,
                                       void *stream);

/* One layer of the step; launches only. append, in any order of layers; the last one commits. attend, behind the
   layer's append: o and lse have count * max_rows rows, count being that of the step; those of no entry get 0 and -inf.
   A step's calls may be captured in a graph: launch it once for the step they were captured in, and for each later one
   of at most as many entries after oscar_cuda_step, with the same buffers; then say oscar_cuda_commit, since the host
   does not see the appends.
     k, v         [rows][kv_heads][dim], q [rows][q_heads][k_dim], o [rows][q_heads][v_dim] of row_type
     sink_logits  device address of float [q_heads], the learned sink logit, or 0
     lse          device address of float [rows][q_heads], or 0; includes the sink logit
   A row of the batch's entry is that of these arrays. Steps of more than recent + 1 rows of an entry, but for drafts,
   and prefills do not attend (ARGUMENT). An append or attention that failed can be repeated.
   Errors: ARGUMENT, STATE (no step, the layer has appended already, or not yet), CUDA. */
OSCAR_API oscar_result oscar_cuda_append(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *k,
                                         const oscar_cuda_rows *v, void *stream);
OSCAR_API oscar_result oscar_cuda_attend(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *q,
                                         uint64_t sink_logits, const oscar_cuda_rows *o, uint64_t lse, void *stream);

/* Of a step whose layer has not appended yet: its rows over the cache before the step, without a sink logit. Joins with
   the engine's own attention of the chunk over itself (oscar_attend_join). Rows of no entry are not written. Three
   launches for each 64 rows. Errors: as append. */
OSCAR_API oscar_result oscar_cuda_attend_history(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *q,
                                                 const oscar_cuda_rows *o, uint64_t lse, void *stream);

/* All layers of the step have been appended by a graph. Makes no call of the driver. ERR_STATE if no step is open. */
OSCAR_API oscar_result oscar_cuda_commit(oscar_cuda_cache *cache);

/* The first bad row that a step met, which append of a cache on the CPU would have refused. Waits for the stream.
   clear 1: forgets it. Errors: ARGUMENT, CUDA. */
OSCAR_API oscar_result oscar_cuda_status(oscar_cuda_cache *cache, int clear, oscar_cuda_fault *out, void *stream);

/* The layout.bytes bytes of a page, as oscar_page_write makes them, to and from memory of the host, which is left alone
   until the stream has got there. page: an id out of oscar_seq_state.pages; all sequences that share it see an upload.
   Errors: ARGUMENT, CUDA. */
OSCAR_API oscar_result oscar_cuda_download(oscar_cuda_cache *cache, int layer, uint32_t page, void *out, void *stream);
OSCAR_API oscar_result oscar_cuda_upload(oscar_cuda_cache *cache, int layer, uint32_t page, const void *in,
                                         void *stream);

/* Tokens first .. first + count - 1 as the cache holds them, in the window type, to device memory [count][kv_heads]
   [dim]; k or v may be 0. A launch for each page. Errors: ARGUMENT, HANDLE, STATE (an open step), CUDA. */
OSCAR_API oscar_result oscar_cuda_gather(oscar_cuda_cache *cache, int layer, oscar_seq seq, int64_t first,
                                         int64_t count, uint64_t k, uint64_t v, void *stream);

#ifdef __cplusplus
}
#endif
#endif /* OSCAR_CUDA_H */

/* ==================================================================================================================
   == 3 KERNELS
   ================================================================================================================== */
#if (defined(OSCAR_IMPLEMENTATION) || defined(OSCAR_CUDA_HOST_KERNELS)) && !defined(OSCAR__CUDA_KERNELS)
#define OSCAR__CUDA_KERNELS

/* A chunk of kernel text. It is applied in one step, so that no macro of the host gets into the text; it has no line
   that starts with a number sign; and it stays below 4096 characters, which every C99 compiler takes as a literal. A
   long kernel goes on in the next chunk. Compilers report `oscar_cuda.h:chunk`, on one line.
   OSCAR_CU_BOTH: types that the host shares with the kernels. */
#if defined(OSCAR_CUDA_HOST_KERNELS)
#  define OSCAR_CU(name, ...) __VA_ARGS__
#  define OSCAR_CU_BOTH(name, ...) __VA_ARGS__
#else
#  define OSCAR_CU(name, ...) \
    static const char name[] = "#line 1 \"oscar_cuda.h:" #name "\"\n" #__VA_ARGS__ "\n"; \
    typedef char name##_is_short[sizeof(name) <= 4096 ? 1 : -1];
#  define OSCAR_CU_BOTH(name, ...) \
    __VA_ARGS__ \
    static const char name[] = "#line 1 \"oscar_cuda.h:" #name "\"\n" #__VA_ARGS__ "\n"; \
    typedef char name##_is_short[sizeof(name) <= 4096 ? 1 : -1];
#endif

/* == 3.1 PRELUDE: constants, words of the text, types of arguments == */

/* The constants of the text, each OSCAR_name there: name, value. All offsets are those of oscar_page_layout, 0 where a
   page has none. In scope where the values are taken: l, the layer; layout; o, options with their defaults filled in; k
   and v, oscar__cu_pairs; s, oscar__cu_shape; sm. */
#define OSCAR__CU_CONSTANTS(X) \
    X(SM, sm) \
    X(KV_HEADS, l->kv_heads) \
    X(GROUP, l->q_heads / l->kv_heads) \
    X(DK, l->k_dim) \
    X(DV, l->v_dim) \
    X(K_BITS, l->k_bits) \
    X(V_BITS, l->v_bits) \
    X(K_CLIP, l->k_bits < 16 && l->k_fit == OSCAR_CLIP) \
    X(V_CLIP, l->v_bits < 16 && l->v_fit == OSCAR_CLIP) \
    X(K_RANK, oscar__cu_rank(l->k_clip, l->k_dim)) \
    X(V_RANK, oscar__cu_rank(l->v_clip, l->v_dim)) \
    X(K_GROUP, l->k_group) \
    X(V_GROUP, l->v_group) \
    X(K_KIND, k.kind) \
    X(V_KIND, v.kind) \
    X(V_FOLDED, l->v_folded != 0) \
    X(K_MEAN, k.mean) \
    X(K_PAGE_MEAN, l->k_page_mean > 0) \
    X(K_METRIC, k.metric) \
    X(PAGE, layout->page_tokens) \
    X(PAGE_BYTES, layout->bytes) \
    X(HEAD_BYTES, layout->head_bytes) \
    X(V_CODES, oscar__cu_offset(layout->v_codes)) \
    X(K_SCALE, oscar__cu_offset(layout->k_scale)) \
    X(K_MINIMUM, oscar__cu_offset(layout->k_min)) \
    X(V_SCALE, oscar__cu_offset(layout->v_scale)) \
    X(V_MINIMUM, oscar__cu_offset(layout->v_min)) \
    X(MEAN, oscar__cu_offset(layout->mean)) \
    X(MEAN_SCALE, oscar__cu_offset(layout->mean_scale)) \
    X(SINK, o.sink) \
    X(RECENT, o.recent) \
    X(RING, oscar__cu_ring(layout, &o)) \
    X(WINDOW_TYPE, layout->window_type) \
    X(ROW_TYPE, o.row_type) \
    X(SLIDING, l->window) \
    X(SOFTCAP, l->softcap > 0) \
    X(PAIRS, s.pairs) X(TILES, s.tiles) X(FOLD, s.fold) X(WARPS, s.warps) X(STAGES, s.stages) X(BLOCKS, s.blocks) \
    X(K_WORDS, s.k_words) X(K_LINES, s.k_lines) X(K_STEPS, s.k_steps) X(K_GROUPS, s.k_groups) X(K_TILE, s.k_tile) \
    X(V_GROUPS, s.v_groups) X(V_TILES, s.v_tiles) X(V_TILE, s.v_tile) X(V_LINE, s.v_line) X(META, s.meta) \
    X(META_ARRAYS, s.meta_arrays) X(STAGE_V, s.stage_v) X(STAGE_META, s.stage_meta) \
    X(STAGE_K_MIN, s.stage_k_min) X(STAGE_V_SCALE, s.stage_v_scale) X(STAGE_V_MIN, s.stage_v_min) \
    X(STAGE_MEAN, s.stage_mean) X(STAGE_BYTES, s.stage_bytes) X(R_STEPS, s.r_steps) \
    X(FRAGMENTS, s.fragments) X(SUMS, s.sums) X(MERGE_HEADS, s.merge_heads)

#if !defined(OSCAR_CUDA_HOST_KERNELS)
/* For clang without CUDA's headers (-nocudainc), which defines none of the language's own words: what the text takes of
   them. PTX in place of clang's builtins, since those differ between its versions. */
static const char oscar__cu_prelude_clang[] =
    "#if defined(__clang__) && defined(__CUDA__) && !defined(__NVCC__) && !defined(__CLANG_CUDA_RUNTIME_WRAPPER_H__)\n"
    "#define __device__ __attribute__((device))\n"
    "#define __global__ __attribute__((global))\n"
    "#define __shared__ __attribute__((shared))\n"
    "#define __forceinline__ inline __attribute__((always_inline))\n"
    "#define __noinline__ __attribute__((noinline))\n"
    "#define __launch_bounds__(threads, blocks) __attribute__((launch_bounds(threads, blocks)))\n"
    "#define __align__(n) __attribute__((aligned(n)))\n"
    "#define OSCAR_WORD static __device__ __forceinline__ __attribute__((unused))\n"
    "struct __align__(8) uint2 { unsigned x, y; };\n"
    "struct __align__(16) uint4 { unsigned x, y, z, w; };\n"
    "struct __align__(16) float4 { float x, y, z, w; };\n"
    "struct oscar__cu_place { unsigned x, y, z; };\n"
    "OSCAR_WORD uint2 make_uint2(unsigned x, unsigned y) { uint2 v = { x, y }; return v; }\n"
    "OSCAR_WORD uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)\n"
    "{ uint4 v = { x, y, z, w }; return v; }\n"
    "OSCAR_WORD float4 make_float4(float x, float y, float z, float w) { float4 v = { x, y, z, w }; return v; }\n"
    "#define OSCAR_PLACE(name, word) OSCAR_WORD oscar__cu_place name(void) { oscar__cu_place p; \\\n"
    "    asm(\"mov.u32 %0, %%\" word \".x;\" : \"=r\"(p.x)); asm(\"mov.u32 %0, %%\" word \".y;\" : \"=r\"(p.y)); \\\n"
    "    asm(\"mov.u32 %0, %%\" word \".z;\" : \"=r\"(p.z)); return p; }\n"
    "OSCAR_PLACE(oscar__cu_thread, \"tid\")\n"
    "OSCAR_PLACE(oscar__cu_block, \"ctaid\")\n"
    "OSCAR_PLACE(oscar__cu_block_size, \"ntid\")\n"
    "OSCAR_PLACE(oscar__cu_grid, \"nctaid\")\n"
    "#define threadIdx oscar__cu_thread()\n"
    "#define blockIdx oscar__cu_block()\n"
    "#define blockDim oscar__cu_block_size()\n"
    "#define gridDim oscar__cu_grid()\n"
    "#define fmaf __builtin_fmaf\n"
    "#define fmaxf __builtin_fmaxf\n"
    "#define fminf __builtin_fminf\n"
    "#define fabsf __builtin_fabsf\n"
    "#define floorf __builtin_floorf\n"
    "#define rintf __builtin_rintf\n"
    "#define __ldg(p) (*(p))\n"
    "#define OSCAR_FLOAT2(name, op) OSCAR_WORD float name(float x, float y) \\\n"
    "{ float r; asm(op \".f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(x), \"f\"(y)); return r; }\n"
    "OSCAR_FLOAT2(__fadd_rn, \"add.rn\")\n"
    "OSCAR_FLOAT2(__fsub_rn, \"sub.rn\")\n"
    "OSCAR_FLOAT2(__fmul_rn, \"mul.rn\")\n"
    "OSCAR_FLOAT2(__fdiv_rn, \"div.rn\")\n"
    "OSCAR_WORD float __fsqrt_rn(float x) { float r; asm(\"sqrt.rn.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"
    "OSCAR_WORD float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }\n"
    "OSCAR_WORD unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }\n"
    "#define OSCAR_SHUFFLE(name, T, kind, c) OSCAR_WORD T name(unsigned mask, T v, int with) { T r; \\\n"
    "    asm volatile(\"shfl.sync.\" kind \".b32 %0, %1, %2, 31, %3;\" \\\n"
    "                 : \"=\" c(r) : c(v), \"r\"(with), \"r\"(mask)); return r; }\n"
    "OSCAR_SHUFFLE(__shfl_xor_sync, unsigned, \"bfly\", \"r\")\n"
    "OSCAR_SHUFFLE(__shfl_xor_sync, int, \"bfly\", \"r\")\n"
    "OSCAR_SHUFFLE(__shfl_xor_sync, float, \"bfly\", \"f\")\n"
    "OSCAR_SHUFFLE(__shfl_sync, unsigned, \"idx\", \"r\")\n"
    "OSCAR_SHUFFLE(__shfl_sync, int, \"idx\", \"r\")\n"
    "OSCAR_SHUFFLE(__shfl_sync, float, \"idx\", \"f\")\n"
    "OSCAR_WORD unsigned __ballot_sync(unsigned mask, int on) { unsigned r; asm volatile(\n"
    "    \"{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2; }\"\n"
    "    : \"=r\"(r) : \"r\"(on), \"r\"(mask)); return r; }\n"
    "OSCAR_WORD void __syncwarp(void) { asm volatile(\"bar.warp.sync 0xffffffff;\" ::: \"memory\"); }\n"
    "OSCAR_WORD unsigned atomicCAS(unsigned *p, unsigned from, unsigned to)\n"
    "{ unsigned r; asm volatile(\"atom.cas.b32 %0, [%1], %2, %3;\" : \"=r\"(r) : \"l\"(p), \"r\"(from), \"r\"(to)\n"
    "  : \"memory\"); return r; }\n"
    "#endif\n";

/* Stands between constants and kernel text: the only place with PTX and with variants by architecture. sm_75 has no mma
   of 32 channels, no cp.async and no bf16: the same fragments feed four products of 16, copies are loads and stores,
   and products of bf16 rows are sums by shuffles. OSCAR_DEVICE functions may go unused. OSCAR_KERNEL(threads, blocks):
   threads of a block, and blocks that shall fit a multiprocessor by registers. */
static const char oscar__cu_prelude[] =
    "#define OSCAR_DEVICE static __device__ __forceinline__ __attribute__((unused))\n"
    "#define OSCAR_KERNEL(threads, blocks) extern \"C\" __global__ void __launch_bounds__(threads, blocks)\n"
    "#define OSCAR_SHARED(T, name, n) __shared__ __align__(16) T name[n]\n"
    "#define OSCAR_DYNAMIC(T, name) extern __shared__ __align__(16) T name[]\n"
    "#define OSCAR_UNROLL _Pragma(\"unroll\")\n"
    "#define OSCAR_NO_UNROLL _Pragma(\"unroll 1\")\n"
    "typedef unsigned oscar__cu_address;\n"
    "OSCAR_DEVICE unsigned oscar__cu_shared_at(const void *p)\n"
    "{ unsigned r; asm(\"{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }\" : \"=r\"(r) : \"l\"(p));\n"
    "  return r; }\n"
    "OSCAR_DEVICE uint4 oscar__cu_load16(unsigned a)\n"
    "{ uint4 v; asm volatile(\"ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\"\n"
    "  : \"=r\"(v.x), \"=r\"(v.y), \"=r\"(v.z), \"=r\"(v.w) : \"r\"(a) : \"memory\"); return v; }\n"
    "OSCAR_DEVICE uint2 oscar__cu_load8(unsigned a)\n"
    "{ uint2 v; asm volatile(\"ld.shared.v2.u32 {%0,%1}, [%2];\" : \"=r\"(v.x), \"=r\"(v.y) : \"r\"(a) : \"memory\");\n"
    "  return v; }\n"
    "OSCAR_DEVICE unsigned oscar__cu_load4(unsigned a)\n"
    "{ unsigned v; asm volatile(\"ld.shared.u32 %0, [%1];\" : \"=r\"(v) : \"r\"(a) : \"memory\"); return v; }\n"
    "OSCAR_DEVICE void oscar__cu_store16(unsigned a, uint4 v)\n"
    "{ asm volatile(\"st.shared.v4.u32 [%0], {%1,%2,%3,%4};\"\n"
    "  :: \"r\"(a), \"r\"(v.x), \"r\"(v.y), \"r\"(v.z), \"r\"(v.w) : \"memory\"); }\n"
    "OSCAR_DEVICE uint4 oscar__cu_reload16(const void *p)\n"
    "{ uint4 v; asm volatile(\"ld.relaxed.cta.global.v4.u32 {%0,%1,%2,%3}, [%4];\"\n"
    "  : \"=r\"(v.x), \"=r\"(v.y), \"=r\"(v.z), \"=r\"(v.w) : \"l\"(p)); return v; }\n"
    "OSCAR_DEVICE unsigned oscar__cu_again(int what)\n"
    "{ unsigned r;\n"
    "  if (what == 0) asm volatile(\"mov.u32 %0, %%tid.x;\" : \"=r\"(r));\n"
    "  if (what == 1) asm volatile(\"mov.u32 %0, %%ctaid.y;\" : \"=r\"(r));\n"
    "  if (what == 2) asm volatile(\"mov.u32 %0, %%ctaid.z;\" : \"=r\"(r));\n"
    "  return r; }\n"
    "OSCAR_DEVICE float oscar__cu_exp2(float x)\n"
    "{ float r; asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"
    "OSCAR_DEVICE float oscar__cu_log2(float x)\n"
    "{ float r; asm(\"lg2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x)); return r; }\n"
    "OSCAR_DEVICE float oscar__cu_half_to_float(unsigned short h)\n"
    "{ float r; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(r) : \"h\"(h)); return r; }\n"
    "OSCAR_DEVICE unsigned short oscar__cu_float_to_half(float f)\n"
    "{ unsigned short r; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(f)); return r; }\n"
    "OSCAR_DEVICE unsigned oscar__cu_permute(unsigned a, unsigned b, unsigned s)\n"
    "{ unsigned r; asm(\"prmt.b32 %0, %1, %2, %3;\" : \"=r\"(r) : \"r\"(a), \"r\"(b), \"r\"(s)); return r; }\n";

static const char oscar__cu_prelude_80[] =
    "#if __CUDA_ARCH__ >= 800\n"
    "OSCAR_DEVICE unsigned oscar__cu_max_warp(unsigned v)\n"
    "{ unsigned r; asm volatile(\"redux.sync.max.u32 %0, %1, 0xffffffff;\" : \"=r\"(r) : \"r\"(v)); return r; }\n"
    "OSCAR_DEVICE void oscar__cu_copy16(unsigned to, const void *from)\n"
    "{ asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\" :: \"r\"(to), \"l\"(from) : \"memory\"); }\n"
    "OSCAR_DEVICE void oscar__cu_copy_commit(void) { asm volatile(\"cp.async.commit_group;\" ::: \"memory\"); }\n"
    "#define oscar__cu_copy_wait(n) asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(n) : \"memory\")\n"
    "#define OSCAR_MMA(T) asm volatile(\"mma.sync.aligned.m16n8k32.row.col.s32.\" T \".u8.s32 \" \\\n"
    "    \"{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\" \\\n"
    "    : \"=r\"(d[0]), \"=r\"(d[1]), \"=r\"(d[2]), \"=r\"(d[3]) \\\n"
    "    : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \\\n"
    "      \"r\"(b0), \"r\"(b1), \"r\"(c[0]), \"r\"(c[1]), \"r\"(c[2]), \"r\"(c[3]))\n"
    "#define OSCAR_MMA_ROWS(T) asm volatile(\"mma.sync.aligned.m16n8k16.row.col.f32.\" T \".\" T \".f32 \" \\\n"
    "    \"{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\" \\\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) \\\n"
    "    : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b0), \"r\"(b1))\n"
    "OSCAR_DEVICE void oscar__cu_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)\n"
    "{ OSCAR_MMA_ROWS(\"bf16\"); }\n"
    "OSCAR_DEVICE void oscar__cu_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)\n"
    "{ OSCAR_MMA_ROWS(\"f16\"); }\n";

static const char oscar__cu_prelude_75[] =
    "#else\n"
    "OSCAR_DEVICE unsigned oscar__cu_max_warp(unsigned v)\n"
    "{ for (int m = 16; m; m >>= 1) { unsigned w = __shfl_xor_sync(0xffffffffu, v, m); v = v > w ? v : w; }\n"
    "  return v; }\n"
    "OSCAR_DEVICE void oscar__cu_copy16(unsigned to, const void *from)\n"
    "{ oscar__cu_store16(to, *(const uint4 *)from); }\n"
    "OSCAR_DEVICE void oscar__cu_copy_commit(void) { }\n"
    "#define oscar__cu_copy_wait(n) ((void)0)\n"
    "#define OSCAR_PART(T, d0, d1, a, b, c0, c1) \\\n"
    "    asm volatile(\"mma.sync.aligned.m8n8k16.row.col.s32.\" T \".u8.s32 \" \\\n"
    "    \"{%0,%1}, {%2}, {%3}, {%4,%5};\" : \"=r\"(d0), \"=r\"(d1) : \"r\"(a), \"r\"(b), \"r\"(c0), \"r\"(c1))\n"
    "#define OSCAR_MMA(T) unsigned t0, t1; \\\n"
    "    OSCAR_PART(T, t0, t1, a[0], b0, c[0], c[1]); OSCAR_PART(T, d[0], d[1], a[2], b1, t0, t1); \\\n"
    "    OSCAR_PART(T, t0, t1, a[1], b0, c[2], c[3]); OSCAR_PART(T, d[2], d[3], a[3], b1, t0, t1)\n"
    "#define OSCAR_HALF_ROWS(a0, a1, b) asm volatile(\"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 \" \\\n"
    "    \"{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\" \\\n"
    "    : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a0), \"r\"(a1), \"r\"(b))\n"
    "OSCAR_DEVICE void oscar__cu_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)\n"
    "{ OSCAR_HALF_ROWS(a[0], a[1], b0); OSCAR_HALF_ROWS(a[2], a[3], b1); }\n"
    "OSCAR_DEVICE float oscar__cu_dot2(unsigned a, unsigned b, float c)\n"
    "{ return fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u),\n"
    "              fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), c)); }\n"
    "static __device__ __noinline__ __attribute__((unused)) float4\n"
    "     oscar__cu_rows_by_hand(float4 c, uint4 a, unsigned b0, unsigned b1)\n"
    "{\n"
    "  int row = threadIdx.x & 28, column = (threadIdx.x & 3) * 8;\n"
    "  _Pragma(\"unroll 1\")\n"
    "  for (int s = 0; s < 8; s++) {\n"
    "    unsigned top = __shfl_sync(0xffffffffu, s < 4 ? a.x : a.z, row + (s & 3));\n"
    "    unsigned low = __shfl_sync(0xffffffffu, s < 4 ? a.y : a.w, row + (s & 3));\n"
    "    unsigned left = __shfl_sync(0xffffffffu, s < 4 ? b0 : b1, column + (s & 3));\n"
    "    unsigned right = __shfl_sync(0xffffffffu, s < 4 ? b0 : b1, column + 4 + (s & 3));\n"
    "    c.x = oscar__cu_dot2(top, left, c.x); c.y = oscar__cu_dot2(top, right, c.y);\n"
    "    c.z = oscar__cu_dot2(low, left, c.z); c.w = oscar__cu_dot2(low, right, c.w);\n"
    "  }\n"
    "  return c;\n"
    "}\n"
    "OSCAR_DEVICE void oscar__cu_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)\n"
    "{ float4 d = oscar__cu_rows_by_hand(make_float4(c[0], c[1], c[2], c[3]),\n"
    "                                    make_uint4(a[0], a[1], a[2], a[3]), b0, b1);\n"
    "  c[0] = d.x; c[1] = d.y; c[2] = d.z; c[3] = d.w; }\n"
    "#endif\n"
    "OSCAR_DEVICE void oscar__cu_mma_s8u8(unsigned d[4], const unsigned a[4], unsigned b0, unsigned b1,\n"
    "                                     const unsigned c[4]) { OSCAR_MMA(\"s8\"); }\n"
    "OSCAR_DEVICE void oscar__cu_mma_u8u8(unsigned d[4], const unsigned a[4], unsigned b0, unsigned b1,\n"
    "                                     const unsigned c[4]) { OSCAR_MMA(\"u8\"); }\n";
#endif

OSCAR_CU_BOTH(oscar__cu_text_types,
/* One sequence of a step. */
typedef struct oscar_cu_entry {
    long long position;      /* of its first row: tokens before this step */
    long long history;       /* tokens in pages once the step is appended */
    long long write_first;   /* first page, as an index in its table, that the step writes */
    int write_count;
    int row, rows;           /* in q, k, v, o; rows 0: no new tokens */
    unsigned slot;           /* of its windows */
    int table;               /* where its page ids start in `tables` */
    int unseen;              /* tokens at the end that the windows do not hold (yet) */
} oscar_cu_entry;

/* Matrices and means of a layer, each [KV head]..., float, aligned to 16; NULL where the layer has none. */
typedef struct oscar_cu_constants {
    const float *k_to;       /* F, B, m, M of K */
    const float *k_dual;
    const float *k_mean;
    const float *k_metric;
    const float *v_to;       /* F, B of V */
    const float *v_dual;
    const float *k_limit;    /* [KV head]: the largest S(x, x) of a row that may be quantised */
    const float *v_limit;
} oscar_cu_constants;

/* The first bad row that was met. kind: 0 not finite, 1 too long; + 2 where it is a value. */
typedef struct oscar_cu_status {
    unsigned claimed;        /* 0: none so far */
    int layer;
    int head;
    int kind;
    unsigned slot;
    int reserved;
    long long position;
} oscar_cu_status;

/* Rows `first` .. first + count - 1 of a page, which go to row `row` of the outputs, or from `position` on into the
   windows of a slot. */
typedef struct oscar_cu_rows {
    long long position;
    long long row;
    unsigned page;
    int first;
    int count;
    unsigned slot;
} oscar_cu_rows;
)

/* == 3.2 NUMBERS: half floats, rounding == */

OSCAR_CU(oscar__cu_text_numbers,
enum { OSCAR__CU_F32 = 1, OSCAR__CU_BF16 = 2, OSCAR__CU_F16 = 3 };   /* as oscar_type */

/* To nearest, ties to even; a NaN stays one. */
OSCAR_DEVICE unsigned oscar__cu_float_to_bf16(float x)
{
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* Value `at` of rows of a type. */
OSCAR_DEVICE float oscar__cu_value_get(int type, const void *rows, long long at)
{
    unsigned short half;
    if (type == OSCAR__CU_F32) return ((const float *)rows)[at];
    half = ((const unsigned short *)rows)[at];
    return type == OSCAR__CU_BF16 ? __uint_as_float((unsigned)half << 16) : oscar__cu_half_to_float(half);
}

OSCAR_DEVICE void oscar__cu_value_put(int type, void *rows, long long at, float x)
{
    if (type == OSCAR__CU_F32) ((float *)rows)[at] = x;
    else if (type == OSCAR__CU_BF16) ((unsigned short *)rows)[at] = (unsigned short)oscar__cu_float_to_bf16(x);
    else ((unsigned short *)rows)[at] = oscar__cu_float_to_half(x);
}

OSCAR_DEVICE float oscar__cu_round(int type, float x)
{
    if (type == OSCAR__CU_F32) return x;
    if (type == OSCAR__CU_BF16) return __uint_as_float(oscar__cu_float_to_bf16(x) << 16);
    return oscar__cu_half_to_float(oscar__cu_float_to_half(x));
}

/* Clamped to the largest finite value of the type. */
OSCAR_DEVICE float oscar__cu_clamp(int type, float x)
{
    float top = __uint_as_float(type == OSCAR__CU_F32 ? 0x7f7fffffu : type == OSCAR__CU_BF16 ? 0x7f7f0000u
                                                                                             : 0x477fe000u);
    return x > top ? top : x < -top ? -top : x;
}

OSCAR_DEVICE int oscar__cu_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

/* A scale or minimum as fp16, beyond +-65504 as that. */
OSCAR_DEVICE unsigned short oscar__cu_float_to_metadata(float x)
{
    unsigned short half = oscar__cu_float_to_half(x);
    if ((half & 0x7c00u) != 0x7c00u) return half;
    return (unsigned short)(x > 0.0f ? 0x7bffu : x < 0.0f ? 0xfbffu : 0u);
}
)

OSCAR_CU(oscar__cu_text_pack,
/* Two numbers as the 16-bit factors of a product with rows: F16 for windows in F16, else BF16. */
OSCAR_DEVICE unsigned oscar__cu_pack_two(float x, float y)
{
    if (OSCAR_WINDOW_TYPE == 3) return oscar__cu_float_to_half(x) | (unsigned)oscar__cu_float_to_half(y) << 16;
    return oscar__cu_float_to_bf16(x) | oscar__cu_float_to_bf16(y) << 16;
}

/* What packing x and y to `packed` left over, packed: a second limb. */
OSCAR_DEVICE unsigned oscar__cu_pack_rest(float x, float y, unsigned packed)
{
    if (OSCAR_WINDOW_TYPE == 3)
        return oscar__cu_pack_two(x - oscar__cu_half_to_float((unsigned short)(packed & 0xffffu)),
                                  y - oscar__cu_half_to_float((unsigned short)(packed >> 16)));
    return oscar__cu_pack_two(x - __uint_as_float(packed << 16), y - __uint_as_float(packed & 0xffff0000u));
}
)

/* == 3.3 WARP TOOLS == */

OSCAR_CU(oscar__cu_text_lanes,
/* Lane = 4 row + column in the fragments of mma: of a sum, it holds row `row` and columns 2 column, 2 column + 1. */
OSCAR_DEVICE int oscar__cu_lane(void) { return (int)(threadIdx.x & 31u); }
OSCAR_DEVICE int oscar__cu_row(void) { return (int)(threadIdx.x >> 2 & 7u); }
OSCAR_DEVICE int oscar__cu_column(void) { return (int)(threadIdx.x & 3u); }
OSCAR_DEVICE int oscar__cu_warp(void) { return (int)(threadIdx.x >> 5); }

/* Over the four lanes of a row. */
OSCAR_DEVICE float oscar__cu_quad_max(float v)
{
    float other = __shfl_xor_sync(0xffffffffu, v, 1);
    v = fmaxf(v, other);
    other = __shfl_xor_sync(0xffffffffu, v, 2);
    return fmaxf(v, other);
}

OSCAR_DEVICE float oscar__cu_quad_sum(float v)
{
    float other = __shfl_xor_sync(0xffffffffu, v, 1);
    v = v + other;
    other = __shfl_xor_sync(0xffffffffu, v, 2);
    return v + other;
}

OSCAR_DEVICE float oscar__cu_warp_sum(float v)
{
    OSCAR_UNROLL
    for (int m = 16; m > 0; m >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, v, m);
        v = v + other;
    }
    return v;
}

OSCAR_DEVICE int oscar__cu_warp_sum_int(int v)
{
    OSCAR_UNROLL
    for (int m = 16; m > 0; m >>= 1) {
        int other = __shfl_xor_sync(0xffffffffu, v, m);
        v = v + other;
    }
    return v;
}

/* Bits of numbers that are not negative are in the order of the numbers. */
OSCAR_DEVICE float oscar__cu_warp_max(float not_negative)
{
    unsigned top = oscar__cu_max_warp(__float_as_uint(not_negative));
    return __uint_as_float(top);
}
)

OSCAR_CU(oscar__cu_text_half_warps,
/* Half-warps: their lanes, and which one of the block this is. */
OSCAR_DEVICE int oscar__cu_strip_lane(void) { return (int)threadIdx.x & 15; }
OSCAR_DEVICE int oscar__cu_half_warp(void) { return (int)threadIdx.x >> 4; }

/* The bits of this half-warp's lanes out of a ballot of the warp. */
OSCAR_DEVICE unsigned oscar__cu_half_ballot(int x)
{
    unsigned all = __ballot_sync(0xffffffffu, x);
    return all >> (threadIdx.x & 16u) & 0xffffu;
}

/* The tree of S(x, y) over a half-warp. Each lane gets lane 0's sum: a + b is b + a. */
OSCAR_DEVICE float oscar__cu_tree(float p)
{
    OSCAR_UNROLL
    for (int step = 8; step; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, p, step);
        p = __fadd_rn(p, other);
    }
    return p;
}

/* S(x, y) over n values of each lane. */
OSCAR_DEVICE float oscar__cu_sum_products(int n, const float *x, const float *y)
{
    float p = 0.0f;
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) p = fmaf(x[i], y[i], p);
    return oscar__cu_tree(p);
}
)

OSCAR_CU(oscar__cu_text_mma_rows,
/* A product of 16-bit floats of the type that oscar__cu_pack_two makes. */
OSCAR_DEVICE void oscar__cu_mma_rows(float *sum, const unsigned *a, unsigned b0, unsigned b1)
{
    if (OSCAR_WINDOW_TYPE == 3) {
        oscar__cu_mma_f16(sum, a, b0, b1);
    } else {
        oscar__cu_mma_bf16(sum, a, b0, b1);
    }
}
)

/* == 3.4 TRANSFORMS == */

/* Two ways to share a row out. A strip: half a warp has the row, lane l its channels l, l + 16, ... in registers; the
   16 chains of S(x, y) are then the lanes. A patch: a thread has up to 8 rows of 4 neighbouring
   channels, which suits products with a matrix: 128 fmaf for 12 loads of 16 bytes. */
OSCAR_CU(oscar__cu_text_strip,
enum { OSCAR__CU_THREADS = 256, OSCAR__CU_STRIP = 64 /* 1024 / 16 */, OSCAR__CU_PATCH = 8 };

OSCAR_DEVICE void oscar__cu_strip_get(int n, const float *row, float *x)
{
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) x[i] = row[16 * i + oscar__cu_strip_lane()];
}

OSCAR_DEVICE void oscar__cu_strip_put(int n, const float *x, float *row)
{
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) row[16 * i + oscar__cu_strip_lane()] = x[i];
}

/* The float nearest 1 / sqrt(N), N the power of two in dim. */
OSCAR_DEVICE float oscar__cu_fwht_scale(int dim)
{
    int block = dim & -dim;
    return block == 16 ? 0.25f : block == 32 ? 0.25f * 0.707106781f : block == 64 ? 0.125f
         : block == 128 ? 0.125f * 0.707106781f : block == 256 ? 0.0625f : block == 512 ? 0.0625f * 0.707106781f
         : 0.03125f;
}

/* The butterflies of a row: strides 1, 2, 4, 8 between lanes, 16, 32, ... between a lane's values. */
OSCAR_DEVICE void oscar__cu_butterfly(int dim, float *x)
{
    int n = dim / 16, block = (dim & -dim) / 16;
    OSCAR_UNROLL
    for (int stride = 1; stride < 16; stride *= 2)
        OSCAR_UNROLL
        for (int i = 0; i < n; i++) {
            float other = __shfl_xor_sync(0xffffffffu, x[i], stride);
            x[i] = (int)threadIdx.x & stride ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
        }
    OSCAR_UNROLL
    for (int stride = 1; stride < 64; stride *= 2)
        OSCAR_UNROLL
        for (int i = 0; i < n; i++) {
            float a = x[i];
            if (stride >= block || i & stride) continue;
            x[i] = __fadd_rn(a, x[i + stride]);
            x[i + stride] = __fsub_rn(a, x[i + stride]);
        }
}

/* Butterflies of rows [rows][dim] in shared memory, times a scale. A row a half-warp; both of a warp take part in its
   shuffles. */
OSCAR_DEVICE void oscar__cu_butterfly_rows(int rows, int dim, float scale, float *x)
{
    OSCAR_NO_UNROLL
    for (int first = 0; first < rows; first += (int)blockDim.x / 16) {
        int row = first + oscar__cu_half_warp();
        float y[OSCAR__CU_STRIP];
        if ((row & ~1) >= rows) continue;
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++) y[i] = row < rows ? x[row * dim + 16 * i + oscar__cu_strip_lane()] : 0.0f;
        oscar__cu_butterfly(dim, y);
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++)
            if (row < rows) x[row * dim + 16 * i + oscar__cu_strip_lane()] = __fmul_rn(y[i], scale);
    }
    __syncthreads();
}

/* Threads share a dense product: `parts` of the inner index for each column, the rest of the block waits. */
OSCAR_DEVICE int oscar__cu_parts(int dim) { return (int)blockDim.x > dim ? (int)blockDim.x / dim : 1; }
)

OSCAR_CU(oscar__cu_text_product,
/* Rows that are in shared memory at once: at most 32 KB of floats, so that all of a page of 64 x 128 is and is
   transformed once; and how many of them are in a patch, so that the patches of a tile are at most the threads. */
OSCAR_DEVICE int oscar__cu_tile_rows(int dim) { return dim <= 128 ? 64 : dim <= 256 ? 32 : dim <= 512 ? 16 : 8; }
OSCAR_DEVICE int oscar__cu_patch_rows(int dim)
{
    int values = oscar__cu_tile_rows(dim) * dim;
    return values <= 1024 ? 1 : values <= 2048 ? 2 : values <= 4096 ? 4 : 8;
}

/* First channel and row of this thread's patch; a row beyond the tile: it has none. Heads of up to 256 channels, with
   all registers in use, ask again for the thread: else addresses would be held from one product to the next. */
OSCAR_DEVICE int oscar__cu_patch(int dim)
{
    return dim > 128 && dim <= 256 ? (int)oscar__cu_again(0) : (int)threadIdx.x;
}
OSCAR_DEVICE int oscar__cu_patch_column(int dim) { return 4 * (oscar__cu_patch(dim) % (dim / 4)); }
OSCAR_DEVICE int oscar__cu_patch_row(int dim) { return oscar__cu_patch(dim) / (dim / 4) * oscar__cu_patch_rows(dim); }

OSCAR_DEVICE void oscar__cu_step4(float x, float4 m, float *sum)
{
    sum[0] = fmaf(x, m.x, sum[0]);
    sum[1] = fmaf(x, m.y, sum[1]);
    sum[2] = fmaf(x, m.z, sum[2]);
    sum[3] = fmaf(x, m.w, sum[3]);
}

/* Goes on with the chains of a patch over `channels` input channels. x: its first row, in shared memory; m: row of the
   matrix of input channel 0, at the patch's column. */
OSCAR_DEVICE void oscar__cu_product(int dim, int channels, const float *x, int stride, const float *m, float (*sum)[4])
{
    OSCAR_NO_UNROLL
    for (int i = 0; i < channels; i += 8) {
        float4 column[8];
        OSCAR_UNROLL
        for (int j = 0; j < 8; j++) column[j] = __ldg((const float4 *)(const void *)(m + j * dim));
        m += 8 * dim;
        OSCAR_UNROLL
        for (int r = 0; r < oscar__cu_patch_rows(dim); r++) {
            float4 a = *(const float4 *)(const void *)(x + r * stride + i);
            float4 b = *(const float4 *)(const void *)(x + r * stride + i + 4);
            oscar__cu_step4(a.x, column[0], sum[r]);
            oscar__cu_step4(a.y, column[1], sum[r]);
            oscar__cu_step4(a.z, column[2], sum[r]);
            oscar__cu_step4(a.w, column[3], sum[r]);
            oscar__cu_step4(b.x, column[4], sum[r]);
            oscar__cu_step4(b.y, column[5], sum[r]);
            oscar__cu_step4(b.z, column[6], sum[r]);
            oscar__cu_step4(b.w, column[7], sum[r]);
        }
    }
}

/* sum = the patch's part of x m, x [rows][dim] in shared memory. */
OSCAR_DEVICE void oscar__cu_patch_product(int dim, const float *x, const float *m, float (*sum)[4])
{
    int column = oscar__cu_patch_column(dim), row = oscar__cu_patch_row(dim);
    OSCAR_UNROLL
    for (int r = 0; r < OSCAR__CU_PATCH; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = 0.0f;
    if (row < oscar__cu_tile_rows(dim)) oscar__cu_product(dim, dim, x + row * dim, dim, m + column, sum);
}

/* A patch into rows of shared memory. */
OSCAR_DEVICE void oscar__cu_patch_put(int dim, float (*sum)[4], float *x)
{
    int column = oscar__cu_patch_column(dim), row = oscar__cu_patch_row(dim);
    if (row >= oscar__cu_tile_rows(dim)) return;
    OSCAR_UNROLL
    for (int r = 0; r < oscar__cu_patch_rows(dim); r++) {
        float4 four;
        four.x = sum[r][0];
        four.y = sum[r][1];
        four.z = sum[r][2];
        four.w = sum[r][3];
        *(float4 *)(void *)(x + (row + r) * dim + column) = four;
    }
}
)

/* == 3.5 ENCODE == */

OSCAR_CU(oscar__cu_text_side,
/* One side of a KV head. All but the pointers and the limit are constants of the program. */
typedef struct oscar__cu_side {
    int is_k;
    int dim;
    int bits;
    int clip;
    int rank;
    int group;
    int kind;
    int has_mean;
    int page_mean;
    int has_metric;
    int folded;              /* comes and leaves transformed; kind is IDENTITY then */
    int codes;               /* offsets in a head's part */
    int scale;
    int minimum;
    const float *to;
    const float *dual;
    const float *mean;
    const float *metric;
    float limit;
} oscar__cu_side;

enum { OSCAR__CU_HADAMARD = 0, OSCAR__CU_IDENTITY = 1, OSCAR__CU_DENSE = 2 };   /* as oscar_kind */

OSCAR_DEVICE oscar__cu_side oscar__cu_side_k(const oscar_cu_constants *c, int head)
{
    oscar__cu_side s;
    s.is_k = 1;
    s.dim = OSCAR_DK;
    s.bits = OSCAR_K_BITS;
    s.clip = OSCAR_K_CLIP;
    s.rank = OSCAR_K_RANK;
    s.group = OSCAR_K_GROUP;
    s.kind = OSCAR_K_KIND;
    s.has_mean = s.bits != 16 && OSCAR_K_MEAN;
    s.page_mean = OSCAR_K_PAGE_MEAN;
    s.has_metric = OSCAR_K_METRIC;
    s.folded = 0;
    s.codes = 0;
    s.scale = OSCAR_K_SCALE;
    s.minimum = OSCAR_K_MINIMUM;
    s.to = s.kind == OSCAR__CU_DENSE ? c->k_to + (long long)head * (OSCAR_DK * OSCAR_DK) : c->k_to;
    s.dual = s.kind == OSCAR__CU_DENSE ? c->k_dual + (long long)head * (OSCAR_DK * OSCAR_DK) : c->k_dual;
    s.mean = s.has_mean ? c->k_mean + head * OSCAR_DK : c->k_mean;
    s.metric = s.has_metric ? c->k_metric + (long long)head * (OSCAR_DK * OSCAR_DK) : c->k_metric;
    s.limit = s.bits == 16 ? 0.0f : c->k_limit[head];
    return s;
}

OSCAR_DEVICE oscar__cu_side oscar__cu_side_v(const oscar_cu_constants *c, int head)
{
    oscar__cu_side s;
    s.is_k = s.has_mean = s.page_mean = s.has_metric = 0;
    s.dim = OSCAR_DV;
    s.bits = OSCAR_V_BITS;
    s.clip = OSCAR_V_CLIP;
    s.rank = OSCAR_V_RANK;
    s.group = OSCAR_V_GROUP;
    s.kind = OSCAR_V_KIND;
    s.folded = OSCAR_V_FOLDED;
    s.codes = OSCAR_V_CODES;
    s.scale = OSCAR_V_SCALE;
    s.minimum = OSCAR_V_MINIMUM;
    s.to = s.kind == OSCAR__CU_DENSE ? c->v_to + (long long)head * (OSCAR_DV * OSCAR_DV) : c->v_to;
    s.dual = s.kind == OSCAR__CU_DENSE ? c->v_dual + (long long)head * (OSCAR_DV * OSCAR_DV) : c->v_dual;
    s.mean = s.metric = c->k_mean;
    s.limit = s.bits == 16 ? 0.0f : c->v_limit[head];
    return s;
}

/* Shared memory of a block that writes a page (oscar__cu_write_shared has the sizes). */
typedef struct oscar__cu_room {
    float *x;                /* [rows][dim] of a tile */
    unsigned char *codes;    /* [rows][dim]; while refining the first codes, and 16 times those at hand */
    float *scale;            /* [groups][rows]; at the end fp16 as bits, the minimum above the scale */
    float *level;            /* [dim] page mean, then 8 maxima and the scale */
    float *diagonal;         /* [2][16][16] of the metric */
} oscar__cu_room;

OSCAR_DEVICE oscar__cu_room oscar__cu_room_of(const oscar__cu_side *s, float *shared)
{
    oscar__cu_room room;
    int values = oscar__cu_tile_rows(s->dim) * s->dim;
    room.x = shared;
    room.codes = (unsigned char *)(void *)(shared + values);
    room.scale = shared + values + values / 4;
    room.level = room.scale + oscar__cu_tile_rows(s->dim) * (s->dim / s->group);
    room.diagonal = room.level + (s->page_mean ? s->dim + 16 : 0);
    return room;
}
)

OSCAR_CU(oscar__cu_text_unbiased,
/* Steps t / r to try (oscar__steps of oscar.h). */
OSCAR_DEVICE float oscar__cu_step(int bits, int a)
{
    if (bits == 2) return a == 0 ? 0.79656f : a == 1 ? 0.945915f : a == 2 ? 1.115184f : 1.29441f;
    return a == 0 ? 0.26816f : a == 1 ? 0.31844f : a == 2 ? 0.375424f : 0.43576f;
}

OSCAR_DEVICE float oscar__cu_centre(int bits) { return bits == 2 ? 1.5f : 7.5f; }

/* The level u of x at a step t > 0. */
OSCAR_DEVICE float oscar__cu_level(int bits, float x, float t)
{
    float level;
    if (bits == 2) return x >= t ? 1.5f : x >= 0.0f ? 0.5f : x >= -t ? -0.5f : -1.5f;
    level = __fadd_rn(floorf(__fdiv_rn(x, t)), 0.5f);
    return level < -7.5f ? -7.5f : level > 7.5f ? 7.5f : level;
}

/* One group, n values of each lane: codes, and the scale before rounding (oscar__fit_unbiased). */
OSCAR_DEVICE float oscar__cu_fit_unbiased(int bits, int n, const float *x, unsigned char *codes)
{
    float xx = oscar__cu_sum_products(n, x, x), r = __fsqrt_rn(__fdiv_rn(xx, (float)(16 * n)));
    float best = 0.0f, best_xu = 0.0f, best_t = 0.0f;
    int on = oscar__cu_finite(xx) && __fmul_rn(r, oscar__cu_step(bits, 0)) > 0.0f;
    OSCAR_NO_UNROLL
    for (int a = 0; a < 4; a++) {
        float t = __fmul_rn(r, oscar__cu_step(bits, a)), xu = 0.0f, uu = 0.0f, score;
        int better;
        OSCAR_UNROLL
        for (int i = 0; i < n; i++) {
            float u = oscar__cu_level(bits, x[i], t);
            xu = fmaf(x[i], u, xu);
            uu = fmaf(u, u, uu);
        }
        xu = oscar__cu_tree(xu);
        uu = oscar__cu_tree(uu);
        score = __fdiv_rn(__fmul_rn(xu, xu), uu);
        better = a == 0 || score > best;
        best = better ? score : best;
        best_xu = better ? xu : best_xu;
        best_t = better ? t : best_t;
    }
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) {
        float code = oscar__cu_level(bits, x[i], best_t) + oscar__cu_centre(bits);
        codes[16 * i + oscar__cu_strip_lane()] = (unsigned char)(on ? (int)code : 0);
    }
    if (!on) return oscar__cu_finite(xx) ? 0.0f : xx;
    return best_xu > 0.0f ? __fdiv_rn(xx, best_xu) : 0.0f;
}

/* Subtracts the page mean from a row where that makes it shorter. Returns whether it did not. */
OSCAR_DEVICE int oscar__cu_subtract(int n, const float *level, float scale, float *x)
{
    float y[OSCAR__CU_STRIP], yy, xx;
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) y[i] = fmaf(-level[16 * i + oscar__cu_strip_lane()], scale, x[i]);
    yy = oscar__cu_sum_products(n, y, y);
    xx = oscar__cu_sum_products(n, x, x);
    OSCAR_UNROLL
    for (int i = 0; i < n; i++) x[i] = yy < xx ? y[i] : x[i];
    return !(yy < xx);
}
)

OSCAR_CU(oscar__cu_text_clip,
/* The rank-th smallest |x| of a row, bit by bit: the largest number with at most rank magnitudes below it. */
OSCAR_DEVICE float oscar__cu_magnitude_of_rank(int n, int rank, const float *x)
{
    unsigned found = 0u;
    OSCAR_NO_UNROLL
    for (unsigned bit = 0x40000000u; bit; bit >>= 1) {
        int below = 0;
        OSCAR_UNROLL
        for (int i = 0; i < n; i++) below += (__float_as_uint(x[i]) & 0x7fffffffu) < (found | bit);
        OSCAR_UNROLL
        for (int step = 8; step; step >>= 1) {
            int other = __shfl_xor_sync(0xffffffffu, below, step);
            below += other;
        }
        if (below <= rank) found |= bit;
    }
    return __uint_as_float(found);
}

OSCAR_DEVICE unsigned oscar__cu_clip_code(int bits, float x, float lo, float s)
{
    float y = __fsub_rn(x, lo), level;
    if (bits == 2)
        return (unsigned)(y >= __fmul_rn(0.5f, s)) + (unsigned)(y >= __fmul_rn(1.5f, s))
             + (unsigned)(y >= __fmul_rn(2.5f, s));
    level = __fadd_rn(__fdiv_rn(y, s), 0.5f);
    return level < 0.0f ? 0u : level > 15.0f ? 15u : (unsigned)(int)level;
}

/* One group of a clamped row: codes; returns scale and minimum as fp16, the minimum above. */
OSCAR_DEVICE unsigned oscar__cu_fit_clip(int bits, int n, const float *x, unsigned char *codes)
{
    float lo = x[0], hi = x[0], s;
    unsigned short scale, minimum;
    OSCAR_UNROLL
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    OSCAR_UNROLL
    for (int step = 8; step; step >>= 1) {
        float low = __shfl_xor_sync(0xffffffffu, lo, step);
        float high = __shfl_xor_sync(0xffffffffu, hi, step);
        lo = fminf(lo, low);
        hi = fmaxf(hi, high);
    }
    scale = oscar__cu_float_to_metadata(__fdiv_rn(__fsub_rn(hi, lo), bits == 2 ? 3.0f : 15.0f));
    minimum = oscar__cu_float_to_metadata(__fadd_rn(lo, 0.0f));   /* -0 is stored as +0 */
    s = oscar__cu_half_to_float(scale);
    lo = oscar__cu_half_to_float(minimum);
    OSCAR_UNROLL
    for (int i = 0; i < n; i++)
        codes[16 * i + oscar__cu_strip_lane()] =
            (unsigned char)(s > 0.0f ? oscar__cu_clip_code(bits, x[i], lo, s) : 0u);
    return (unsigned)minimum << 16 | scale;
}

/* A row with CLIP, in registers and in room.x: codes and metadata. sign: 0x8000 or 0. */
OSCAR_DEVICE void oscar__cu_encode_clip(const oscar__cu_side *s, const oscar__cu_room *room, int row, unsigned sign,
                                        float *x)
{
    int n = s->dim / 16;
    if (s->rank < s->dim - 1) {
        float tau = oscar__cu_magnitude_of_rank(n, s->rank, x);
        OSCAR_UNROLL
        for (int i = 0; i < n; i++) x[i] = x[i] > tau ? tau : x[i] < -tau ? -tau : x[i];
        oscar__cu_strip_put(n, x, room->x + row * s->dim);
    }
    OSCAR_NO_UNROLL
    for (int g = 0; g < s->dim / s->group; g++) {
        unsigned both;
        oscar__cu_strip_get(s->group / 16, room->x + row * s->dim + g * s->group, x);
        both = oscar__cu_fit_clip(s->bits, s->group / 16, x, room->codes + row * s->dim + g * s->group);
        if (oscar__cu_strip_lane() == 0)
            room->scale[g * oscar__cu_tile_rows(s->dim) + row] = __uint_as_float(both | sign);
    }
}
)

/* Refining (oscar__refine of oscar.h). z and the gradient are patches in registers. Each channel's step needs those
   before it, so 16 channels go together: their gradients are handed to one thread a row, which finds the 16 steps; then
   all patches behind take the 16 steps in, in the same order as one by one. room.x holds in turn the rows, s u, the 16
   gradients or steps, and z. */
OSCAR_CU(oscar__cu_text_refine,
/* The steps of 16 channels of a row: gradient [16] becomes the steps, codes [16] change. s: the group's scale. */
OSCAR_DEVICE void oscar__cu_refine_row(int bits, float s, const float *diagonal, float *gradient, unsigned char *codes)
{
    float centre = oscar__cu_centre(bits), g[16];
    unsigned word[4];
    OSCAR_UNROLL
    for (int k = 0; k < 16; k++) g[k] = gradient[k];
    OSCAR_UNROLL
    for (int k = 0; k < 4; k++) word[k] = ((const unsigned *)(const void *)codes)[k];
    OSCAR_UNROLL
    for (int k = 0; k < 16; k++) {
        int shift = 8 * (k & 3) + 4;
        float u = (float)(word[k >> 2] >> shift & 15u) - centre, step;
        float curvature = __fmul_rn(s, diagonal[17 * k]);
        float level = __fadd_rn(floorf(__fsub_rn(u, __fdiv_rn(g[k], curvature))), 0.5f);
        if (!(level > -centre)) level = -centre;
        if (level > centre) level = centre;
        step = __fmul_rn(s, __fsub_rn(level, u));
        if (!(s > 0.0f && curvature > 0.0f && (step < 0.0f || step > 0.0f))) step = 0.0f;
        else word[k >> 2] = (word[k >> 2] & ~(15u << shift)) | (unsigned)(int)(level + centre) << shift;
        gradient[k] = step;
        OSCAR_UNROLL
        for (int j = k + 1; j < 16; j++) g[j] = fmaf(step, diagonal[16 * k + j], g[j]);
    }
    OSCAR_UNROLL
    for (int k = 0; k < 4; k++) ((unsigned *)(void *)codes)[k] = word[k];
}

/* All channels of the tile's rows, in order. */
OSCAR_DEVICE void oscar__cu_refine_levels(const oscar__cu_side *s, const oscar__cu_room *room, float (*g)[4])
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), t = (int)threadIdx.x;
    int column = oscar__cu_patch_column(dim), row = oscar__cu_patch_row(dim);
    OSCAR_NO_UNROLL
    for (int c = 0; c < dim; c += 16) {
        int odd = c >> 4 & 1;   /* two areas in turn, so that the next gradients need not wait for all products */
        float *block = room->x + odd * rows * 16, *diagonal = room->diagonal + odd * 256;
        diagonal[t] = __ldg(s->metric + (c + t / 16) * dim + c + t % 16);
        OSCAR_UNROLL
        for (int r = 0; r < oscar__cu_patch_rows(dim); r++)
            OSCAR_UNROLL
            for (int j = 0; j < 4; j++)
                if (row < rows && column >> 4 == c >> 4) block[(row + r) * 16 + (column & 15) + j] = g[r][j];
        __syncthreads();
        if (t < rows)
            oscar__cu_refine_row(s->bits, room->scale[c / s->group * rows + t], diagonal, block + 16 * t,
                                 room->codes + t * dim + c);
        __syncthreads();
        if (row < rows && column >= c + 16)
            oscar__cu_product(dim, 16, block + 16 * row, 16, s->metric + c * dim + column, g);
    }
    __syncthreads();
}
)

OSCAR_CU(oscar__cu_text_refine_rows,
/* A half-warp keeps a number for each group of its rows: that of group g of its row k in lane g % 16, in one of 4
   registers. Which one, and the numbers there. (An index that is no constant would put them into local memory.) */
OSCAR_DEVICE int oscar__cu_slot(const oscar__cu_side *s, int k, int g)
{
    return k * ((s->dim / s->group + 15) / 16) + g / 16;
}

OSCAR_DEVICE float oscar__cu_slot_get(const float *of, int slot)
{
    return slot == 0 ? of[0] : slot == 1 ? of[1] : slot == 2 ? of[2] : of[3];
}

OSCAR_DEVICE void oscar__cu_slot_put(float *of, int slot, float x)
{
    OSCAR_UNROLL
    for (int j = 0; j < 4; j++) of[j] = slot == j ? x : of[j];
}

/* u of the value that code byte b holds now. */
OSCAR_DEVICE float oscar__cu_refined(int bits, unsigned b) { return (float)(b >> 4) - oscar__cu_centre(bits); }

/* room.x = s u of the rows of this half-warp. */
OSCAR_DEVICE void oscar__cu_refine_reading(const oscar__cu_side *s, const oscar__cu_room *room)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), lane = oscar__cu_strip_lane();
    OSCAR_NO_UNROLL
    for (int row = oscar__cu_half_warp(); row < rows; row += 16) {
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++) {
            float u = oscar__cu_refined(s->bits, room->codes[row * dim + 16 * i + lane]);
            room->x[row * dim + 16 * i + lane] = __fmul_rn(room->scale[16 * i / s->group * rows + row], u);
        }
    }
}

/* S(y, z) of each group of this half-warp's row k, z in shared memory: kept in out. */
OSCAR_DEVICE void oscar__cu_refine_sums(const oscar__cu_side *s, int k, const float *y, const float *z, float *out)
{
    int n = s->group / 16;
    OSCAR_UNROLL
    for (int g = 0; g < s->dim / s->group; g++) {
        float p = 0.0f;
        OSCAR_UNROLL
        for (int i = g * n; i < (g + 1) * n; i++) p = fmaf(y[i], z[16 * i + oscar__cu_strip_lane()], p);
        p = oscar__cu_tree(p);
        if (oscar__cu_strip_lane() == g % 16) oscar__cu_slot_put(out, oscar__cu_slot(s, k, g), p);
    }
}

/* After a pass, with z in room.x: the scales of the groups. */
OSCAR_DEVICE void oscar__cu_refine_scales(const oscar__cu_side *s, const oscar__cu_room *room, const float *first,
                                          const float *xz)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), groups = dim / s->group;
    OSCAR_NO_UNROLL
    for (int row = oscar__cu_half_warp(); row < rows; row += 16) {
        float u[OSCAR__CU_STRIP], uz[4];
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++)
            u[i] = oscar__cu_refined(s->bits, room->codes[row * dim + 16 * i + oscar__cu_strip_lane()]);
        uz[0] = uz[1] = uz[2] = uz[3] = 0.0f;
        oscar__cu_refine_sums(s, 0, u, room->x + row * dim, uz);
        OSCAR_NO_UNROLL
        for (int g = oscar__cu_strip_lane(); g < groups; g += 16) {
            int slot = oscar__cu_slot(s, row / 16, g);
            float sum = oscar__cu_slot_get(uz, g / 16);
            if (oscar__cu_slot_get(first, slot) > 0.0f)
                room->scale[g * rows + row] = sum > 0.0f ? __fdiv_rn(oscar__cu_slot_get(xz, slot), sum) : 0.0f;
        }
    }
}

/* Codes and fp16 scales of the rows of this half-warp: the refined ones, or the first ones where a scale moved too far.
   Bit k of kept: the page mean was not subtracted from its row k. */
OSCAR_DEVICE void oscar__cu_refine_end(const oscar__cu_side *s, const oscar__cu_room *room, const float *first,
                                       unsigned kept)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), groups = dim / s->group;
    OSCAR_NO_UNROLL
    for (int row = oscar__cu_half_warp(); row < rows; row += 16) {
        unsigned sign = kept >> (row / 16) & 1u ? 0x8000u : 0u;
        int moved = 0, refused;
        OSCAR_NO_UNROLL
        for (int g = oscar__cu_strip_lane(); g < groups; g += 16) {
            float was = oscar__cu_slot_get(first, oscar__cu_slot(s, row / 16, g)), is = room->scale[g * rows + row];
            if (was > 0.0f && !(is >= 0.5f * was && is <= 2.0f * was && is <= 65504.0f)) moved = 1;
        }
        refused = oscar__cu_half_ballot(moved) != 0u;
        OSCAR_NO_UNROLL
        for (int g = oscar__cu_strip_lane(); g < groups; g += 16) {
            float was = oscar__cu_slot_get(first, oscar__cu_slot(s, row / 16, g)), *is = &room->scale[g * rows + row];
            *is = __uint_as_float(sign | oscar__cu_float_to_metadata(refused ? was : *is));
        }
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++) {
            unsigned char *code = room->codes + row * dim + 16 * i + oscar__cu_strip_lane();
            *code = (unsigned char)(refused ? *code & 15 : *code >> 4);
        }
    }
}
)

OSCAR_CU(oscar__cu_text_encode,
/* Before refining: z is a patch, the rows are in room.x; xz gets S(x, z), and room.x becomes z. */
OSCAR_DEVICE void oscar__cu_refine_begin(const oscar__cu_side *s, const oscar__cu_room *room, float (*z)[4], float *xz)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), n = dim / 16, mine = oscar__cu_half_warp();
    float x[OSCAR__CU_STRIP];
    OSCAR_UNROLL
    for (int k = 0; k < rows; k += 16)
        if (k + mine < rows) oscar__cu_strip_get(n, room->x + (k + mine) * dim, x + k / 16 * n);
    __syncthreads();
    oscar__cu_patch_put(dim, z, room->x);
    __syncthreads();
    OSCAR_UNROLL
    for (int k = 0; k < rows; k += 16)
        if (k + mine < rows) oscar__cu_refine_sums(s, k / 16, x + k / 16 * n, room->x + (k + mine) * dim, xz);
}

/* Refines a tile whose rows are in room.x. first: the scales of the plain fit, kept as oscar__cu_slot says. Three
   products: z, then the gradient of each pass. */
OSCAR_DEVICE void oscar__cu_refine(const oscar__cu_side *s, const oscar__cu_room *room, const float *first)
{
    float z[OSCAR__CU_PATCH][4], g[OSCAR__CU_PATCH][4], xz[4];
    OSCAR_UNROLL
    for (int j = 0; j < 4; j++) xz[j] = 0.0f;
    OSCAR_UNROLL
    for (int j = 0; j < 4 * OSCAR__CU_PATCH; j++) z[j / 4][j % 4] = 0.0f;
    OSCAR_NO_UNROLL
    for (int pass = 0; pass < 3; pass++) {
        oscar__cu_patch_product(s->dim, room->x, s->metric, g);
        if (pass == 0) {
            OSCAR_UNROLL
            for (int j = 0; j < 4 * OSCAR__CU_PATCH; j++) z[j / 4][j % 4] = g[j / 4][j % 4];
            oscar__cu_refine_begin(s, room, z, xz);
        } else {
            OSCAR_UNROLL
            for (int j = 0; j < 4 * OSCAR__CU_PATCH; j++)
                g[j / 4][j % 4] = __fsub_rn(g[j / 4][j % 4], z[j / 4][j % 4]);
            __syncthreads();
            oscar__cu_refine_levels(s, room, g);
            oscar__cu_patch_put(s->dim, z, room->x);
            __syncthreads();
            oscar__cu_refine_scales(s, room, first, xz);
        }
        __syncwarp();
        if (pass < 2) oscar__cu_refine_reading(s, room);
        __syncthreads();
    }
}

/* A row with UNBIASED, in room.x; with a metric it waits for oscar__cu_refine. */
OSCAR_DEVICE void oscar__cu_encode_unbiased(const oscar__cu_side *s, const oscar__cu_room *room, int row,
                                            unsigned sign, float *first)
{
    int dim = s->dim, n = s->group / 16, rows = oscar__cu_tile_rows(dim), lane = oscar__cu_strip_lane();
    unsigned char *codes = room->codes + row * dim;
    OSCAR_NO_UNROLL
    for (int g = 0; g < dim / s->group; g++) {
        float x[OSCAR__CU_STRIP], scale;
        oscar__cu_strip_get(n, room->x + row * dim + g * s->group, x);
        scale = oscar__cu_fit_unbiased(s->bits, n, x, codes + g * s->group);
        if (lane == g % 16) {
            oscar__cu_slot_put(first, oscar__cu_slot(s, row / 16, g), scale);
            room->scale[g * rows + row] =
                s->has_metric ? scale : __uint_as_float(sign | oscar__cu_float_to_metadata(scale));
        }
    }
    OSCAR_UNROLL
    for (int i = 0; s->has_metric && i < dim / 16; i++)
        codes[16 * i + lane] = (unsigned char)(codes[16 * i + lane] * 17);
}

/* Rows of a tile, transformed, in room.x -> codes and fp16 metadata. */
OSCAR_DEVICE void oscar__cu_encode(const oscar__cu_side *s, const oscar__cu_room *room)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim);
    unsigned kept = 0u;
    float first[4];
    first[0] = first[1] = first[2] = first[3] = 0.0f;
    OSCAR_NO_UNROLL
    for (int row = oscar__cu_half_warp(); row < rows; row += 16) {
        float x[OSCAR__CU_STRIP];
        unsigned sign = 0u;
        if (s->page_mean || s->clip) oscar__cu_strip_get(dim / 16, room->x + row * dim, x);
        if (s->page_mean) {
            sign = oscar__cu_subtract(dim / 16, room->level, room->level[dim + 8], x) ? 0x8000u : 0u;
            kept |= sign ? 1u << (row / 16) : 0u;
            oscar__cu_strip_put(dim / 16, x, room->x + row * dim);
        }
        if (s->clip) oscar__cu_encode_clip(s, room, row, sign, x);
        else oscar__cu_encode_unbiased(s, room, row, sign, first);
    }
    if (!s->has_metric) return;
    __syncthreads();
    oscar__cu_refine(s, room, first);
    oscar__cu_refine_end(s, room, first, kept);
}
)

/* == 3.6 QUERY == */

/* One block a KV head and a row block: up to OSCAR_PAIRS pairs (row, query head) of an entry, in the order of the rows
   and in each of the heads. It makes what the decode kernel multiplies pages and rows with, in the order of its
   registers: fragments of 32 lanes x 16 bytes.

     codes   q' = q B as integers, |n| <= 32512 in steps of a group's largest |q'| / 32512, in two signed bytes:
             n = 256 high + low. Channels that meet an odd plane of 2-bit codes, which stay code * 4, hold n / 4.
             Row r of a tile: high byte of pair r, row r + 8: its low byte. OSCAR_FOLD (up to 4 pairs): row r is
             the high byte of pair r, row r + 4 its low byte.
     rows    q / its largest |q| as two limbs in the 16-bit type of oscar__cu_pack_two, rows as above

   Words per pair (OSCAR_SUMS): [0] scale of a page's products, [1] the constant q.m, [2] scale of rows' products, as
   floats in units of log2 (natural where a soft cap follows); for group g at 8 + 12 g: [0] step, [1] sum of n, floats;
   [2] [3] where the page mean's sums of high and of low bytes start; [4..7] the same for codes, as mma takes it, so
   that they end as centred floats (see decode); folded [4..7] for the row of high bytes, [8..11] for that of low
   ones. */

OSCAR_CU(oscar__cu_text_query_turn,
/* Rows x [OSCAR_PAIRS][OSCAR_DK] of the row block, 0 for absent pairs. A negative scale is the sign of q. */
OSCAR_DEVICE void oscar__cu_query_load(const oscar_cu_entry *entry, int first, int head, const void *q,
                                       long long token_stride, long long head_stride, float scale, float *x)
{
    int count = entry->rows * OSCAR_GROUP - first;
    for (int i = (int)threadIdx.x; i < OSCAR_PAIRS * OSCAR_DK; i += (int)blockDim.x) {
        int pair = first + i / OSCAR_DK;
        long long at = (entry->row + pair / OSCAR_GROUP) * token_stride
            + (head * OSCAR_GROUP + pair % OSCAR_GROUP) * head_stride + i % OSCAR_DK;
        float v = i / OSCAR_DK < count ? oscar__cu_value_get(OSCAR_ROW_TYPE, q, at) : 0.0f;
        x[i] = scale < 0.0f ? -v : v;
    }
    __syncthreads();
}

/* out = x B for OSCAR_PAIRS rows. */
OSCAR_DEVICE void oscar__cu_query_dense(const float *dual, const float *x, float *out)
{
    int parts = oscar__cu_parts(OSCAR_DK);
    int part = (int)threadIdx.x / OSCAR_DK;
    int length = (OSCAR_DK / 4 + parts - 1) / parts * 4;
    int end = (part + 1) * length < OSCAR_DK ? (part + 1) * length : OSCAR_DK;
    for (int i = (int)threadIdx.x; i < OSCAR_PAIRS * OSCAR_DK; i += (int)blockDim.x) out[i] = 0.0f;
    OSCAR_NO_UNROLL
    for (int first = 0; first < OSCAR_DK; first += (int)blockDim.x) {
        int column = first + (parts == 1 ? (int)threadIdx.x : (int)threadIdx.x % OSCAR_DK);
        float sum[OSCAR_PAIRS];
        for (int j = 0; j < OSCAR_PAIRS; j++) sum[j] = 0.0f;
        for (int k = part * length; k < end && part < parts && column < OSCAR_DK; k += 4) {
            const float *b = dual + (long long)k * OSCAR_DK + column;
            float b0 = b[0], b1 = b[OSCAR_DK], b2 = b[2 * OSCAR_DK], b3 = b[3 * OSCAR_DK];
            OSCAR_UNROLL
            for (int j = 0; j < OSCAR_PAIRS; j++) {
                const float *v = x + j * OSCAR_DK + k;
                sum[j] = fmaf(v[3], b3, fmaf(v[2], b2, fmaf(v[1], b1, fmaf(v[0], b0, sum[j]))));
            }
        }
        OSCAR_NO_UNROLL
        for (int turn = 0; turn < parts; turn++) {
            __syncthreads();
            if (part == turn && column < OSCAR_DK)
                for (int j = 0; j < OSCAR_PAIRS; j++) out[j * OSCAR_DK + column] += sum[j];
        }
    }
    __syncthreads();
}
)

OSCAR_CU(oscar__cu_text_query_limbs,
/* Channels of the plane that stays code * 4. */
OSCAR_DEVICE int oscar__cu_query_odd(int channel) { return OSCAR_K_BITS == 2 && (channel >> 2 & 1); }

/* A start of 256 a + b = value, |b| <= 128. */
OSCAR_DEVICE void oscar__cu_query_split(long long value, unsigned a, unsigned b, unsigned *out)
{
    long long high = (value + 128) >> 8;
    out[0] = a + (unsigned)(int)high;
    out[1] = b + (unsigned)(int)(value - 256 * high);
}

/* Group g of a pair: x becomes n (n / 4 in odd planes), and its words are written. One warp. */
OSCAR_DEVICE void oscar__cu_query_round(float *x, int group, unsigned *words)
{
    float top = 0.0f;
    int sum = 0;
    for (int c = oscar__cu_lane(); c < OSCAR_K_GROUP; c += 32) top = fmaxf(top, fabsf(x[group * OSCAR_K_GROUP + c]));
    top = oscar__cu_warp_max(top);
    for (int c = oscar__cu_lane(); c < OSCAR_K_GROUP; c += 32) {
        int channel = group * OSCAR_K_GROUP + c;
        float n = top > 0.0f ? x[channel] / top * 32512.0f : 0.0f;
        n = rintf(oscar__cu_query_odd(channel) ? 0.25f * n : n);
        sum += (int)n * (oscar__cu_query_odd(channel) ? 4 : 1);
        x[channel] = n;
    }
    sum = oscar__cu_warp_sum_int(sum);
    if (oscar__cu_lane() == 0) {
        unsigned *out = words + 8 + 12 * group;
        unsigned start[2];
        int centre = OSCAR_K_CLIP ? 0 : OSCAR_K_BITS == 2 ? 3 : 15;
        out[0] = __float_as_uint(top / 32512.0f);
        out[1] = __float_as_uint((float)sum);
        oscar__cu_query_split(-255ll * sum >> 1, 0u, 0u, out + 2);
        oscar__cu_query_split(-(long long)centre * sum >> 1, 0x4f400000u, 0x4b400000u, start);
        out[4] = out[5] = start[0];
        out[6] = out[7] = OSCAR_FOLD ? 0u : start[1];
        out[8] = out[9] = start[1];
        out[10] = out[11] = 0u;
    }
}

/* Bytes of four channels: the high or the low limbs. */
OSCAR_DEVICE unsigned oscar__cu_query_bytes(const float *n, int low)
{
    unsigned bytes = 0;
    for (int b = 0; b < 4; b++) {
        int v = (int)n[b];
        int rest = ((v + 128) & 255) - 128;
        bytes |= (unsigned)((low ? rest : (v - rest) / 256) & 255) << 8 * b;
    }
    return bytes;
}

/* Which pair of a row block the rows `row` and `row + 8` of a tile belong to, and which limb they hold. */
OSCAR_DEVICE int oscar__cu_query_pair(int tile, int row) { return OSCAR_FOLD ? row & 3 : tile * 8 + row; }
OSCAR_DEVICE int oscar__cu_query_low(int row, int lower) { return OSCAR_FOLD ? row >> 2 : lower; }
)

OSCAR_CU(oscar__cu_text_query_fragments,
/* Register r of a step's fragment: 0 and 2 rows 0..7, 1 and 3 rows 8..15; 2 and 3 meet the second register of codes. */
OSCAR_DEVICE unsigned oscar__cu_query_code_register(const float *n, int tile, int step, int lane, int r)
{
    int row = lane >> 2;
    int word = (lane & 3) + 4 * (OSCAR_K_BITS == 2 ? step >> 1 : step);
    int channel = OSCAR_K_BITS == 2 ? 16 * word + 8 * (step & 1) + 4 * (r >> 1) : 8 * word + 4 * (r >> 1);
    if (channel >= OSCAR_DK || (OSCAR_FOLD && (r & 1))) return 0u;
    return oscar__cu_query_bytes(n + oscar__cu_query_pair(tile, row) * OSCAR_DK + channel,
                                 oscar__cu_query_low(row, r & 1));
}

OSCAR_DEVICE unsigned oscar__cu_query_row_register(const float *x, int tile, int step, int lane, int r)
{
    int row = lane >> 2;
    int channel = 32 * (step >> 1) + 8 * (lane & 3) + 4 * (step & 1) + 2 * (r >> 1);
    if (channel >= OSCAR_DK || (OSCAR_FOLD && (r & 1))) return 0u;
    const float *v = x + oscar__cu_query_pair(tile, row) * OSCAR_DK + channel;
    unsigned high = oscar__cu_pack_two(v[0], v[1]);
    return oscar__cu_query_low(row, r & 1) ? oscar__cu_pack_rest(v[0], v[1], high) : high;
}

OSCAR_DEVICE void oscar__cu_query_write(const float *n, int rows, int steps, uint4 *out)
{
    for (int i = (int)threadIdx.x; i < OSCAR_TILES * steps * 32; i += (int)blockDim.x) {
        unsigned word[4];
        for (int r = 0; r < 4; r++)
            word[r] = rows ? oscar__cu_query_row_register(n, i / 32 / steps, i / 32 % steps, i & 31, r)
                           : oscar__cu_query_code_register(n, i / 32 / steps, i / 32 % steps, i & 31, r);
        uint4 v;
        v.x = word[0];
        v.y = word[1];
        v.z = word[2];
        v.w = word[3];
        out[i] = v;
    }
}

/* Sets the scale of rows' products and divides x by its largest |x|. One warp a pair. */
OSCAR_DEVICE void oscar__cu_query_row(float unit, float *x, unsigned *words)
{
    float top = 0.0f;
    for (int c = oscar__cu_lane(); c < OSCAR_DK; c += 32) top = fmaxf(top, fabsf(x[c]));
    top = oscar__cu_warp_max(top);
    for (int c = oscar__cu_lane(); c < OSCAR_DK; c += 32) x[c] = top > 0.0f ? x[c] / top : 0.0f;
    if (oscar__cu_lane() == 0) words[2] = __float_as_uint(fmaxf(top * unit, 1e-37f));
}

/* Scale of a page's products, and q.m; the scale is never 0, since masked products are -inf. One warp a pair. */
OSCAR_DEVICE void oscar__cu_query_pages(float unit, const float *x, const float *mean, unsigned *words)
{
    float sum = 0.0f;
    for (int c = oscar__cu_lane(); OSCAR_K_MEAN && c < OSCAR_DK; c += 32) sum = fmaf(x[c], mean[c], sum);
    sum = oscar__cu_warp_sum(sum);
    if (oscar__cu_lane() == 0) {
        float step = OSCAR_K_GROUPS == 1 ? __uint_as_float(words[8]) : 1.0f;
        words[0] = __float_as_uint(fmaxf(step * unit, 1e-37f));
        words[1] = __float_as_uint(sum * unit);
    }
}
)

OSCAR_CU(oscar__cu_text_query,
/* Grid (KV heads, entries * row_blocks), 256 threads. dual: B of each KV head, mean: m; NULL where there is none. */
OSCAR_KERNEL(256, 1)
oscar_cu_query(const oscar_cu_entry *entries, int row_blocks, const void *q, long long token_stride,
               long long head_stride, const float *dual, const float *mean, float scale, uint4 *fragments,
               unsigned *sums)
{
    OSCAR_DYNAMIC(float, oscar_query_memory);
    const oscar_cu_entry *entry = entries + blockIdx.y / (unsigned)row_blocks;
    int head = (int)blockIdx.x;
    int first = (int)(blockIdx.y % (unsigned)row_blocks) * OSCAR_PAIRS;
    long long place = (long long)blockIdx.y * OSCAR_KV_HEADS + head;
    uint4 *out = fragments + place * OSCAR_FRAGMENTS * 32;
    unsigned *words = sums + place * OSCAR_PAIRS * OSCAR_SUMS;
    float *x = oscar_query_memory;
    float *turned = x + OSCAR_PAIRS * OSCAR_DK;
    float unit = fabsf(scale) * (OSCAR_SOFTCAP ? 1.0f : 1.44269504f);
    if (entry->rows * OSCAR_GROUP <= first) return;
    oscar__cu_query_load(entry, first, head, q, token_stride, head_stride, scale, x);
    if (OSCAR_K_BITS < 16) {
        if (OSCAR_K_KIND == 2) oscar__cu_query_dense(dual + (long long)head * OSCAR_DK * OSCAR_DK, x, turned);
        else for (int i = (int)threadIdx.x; i < OSCAR_PAIRS * OSCAR_DK; i += (int)blockDim.x) turned[i] = x[i];
        __syncthreads();
        if (OSCAR_K_KIND == 0)
            oscar__cu_butterfly_rows(OSCAR_PAIRS, OSCAR_DK, oscar__cu_fwht_scale(OSCAR_DK), turned);
        for (int i = oscar__cu_warp(); i < OSCAR_PAIRS * OSCAR_K_GROUPS; i += (int)blockDim.x / 32) {
            int pair = i / OSCAR_K_GROUPS;
            oscar__cu_query_round(turned + pair * OSCAR_DK, i % OSCAR_K_GROUPS, words + pair * OSCAR_SUMS);
        }
        __syncthreads();
        oscar__cu_query_write(turned, 0, OSCAR_K_STEPS, out);
        for (int pair = oscar__cu_warp(); pair < OSCAR_PAIRS; pair += (int)blockDim.x / 32)
            oscar__cu_query_pages(unit, x + pair * OSCAR_DK, OSCAR_K_MEAN ? mean + (long long)head * OSCAR_DK : mean,
                                  words + pair * OSCAR_SUMS);
    }
    for (int pair = oscar__cu_warp(); pair < OSCAR_PAIRS; pair += (int)blockDim.x / 32)
        oscar__cu_query_row(unit, x + pair * OSCAR_DK, words + pair * OSCAR_SUMS);
    __syncthreads();
    oscar__cu_query_write(x, 1, OSCAR_R_STEPS, out + OSCAR_TILES * OSCAR_K_STEPS * 32);
}
)

/* == 3.7 WRITE == */

OSCAR_CU(oscar__cu_text_rows,
/* Where the rows of one side of a KV head are. Strides in values. */
typedef struct oscar__cu_source {
    const void *rows;            /* of the step, from this entry's first row on */
    const void *window;          /* of the slot */
    long long stride;
    long long position;          /* of the step's first row */
    int layer;
    int head;
    unsigned slot;
    oscar_cu_status *status;
} oscar__cu_source;

/* Row of a slot's windows that holds a position. */
OSCAR_DEVICE long long oscar__cu_window_row(long long position)
{
    return position < OSCAR_SINK ? position : OSCAR_SINK + (position - OSCAR_SINK) % OSCAR_RING;
}

/* A row as the windows hold it: new ones are rounded to their type. */
OSCAR_DEVICE void oscar__cu_source_get(const oscar__cu_side *s, const oscar__cu_source *from, long long position,
                                       float *x)
{
    long long lane = oscar__cu_strip_lane();
    if (position >= from->position) {
        lane += (position - from->position) * from->stride;
        OSCAR_UNROLL
        for (int i = 0; i < s->dim / 16; i++) x[i] = oscar__cu_value_get(OSCAR_ROW_TYPE, from->rows, lane + 16 * i);
        OSCAR_UNROLL
        for (int i = 0; i < s->dim / 16; i++) x[i] = oscar__cu_round(OSCAR_WINDOW_TYPE, x[i]);
    } else {
        lane += oscar__cu_window_row(position) * (OSCAR_KV_HEADS * s->dim);
        OSCAR_UNROLL
        for (int i = 0; i < s->dim / 16; i++)
            x[i] = oscar__cu_value_get(OSCAR_WINDOW_TYPE, from->window, lane + 16 * i);
    }
}

/* Subtracts m. Returns whether the row is bad, and says so. `on`: the half-warp has a row. */
OSCAR_DEVICE int oscar__cu_centre_row(const oscar__cu_side *s, const oscar__cu_source *from, long long position,
                                      int on, float *x)
{
    int finite = 1, bad, kind;
    float length;
    OSCAR_UNROLL
    for (int i = 0; i < s->dim / 16; i++) {
        finite &= oscar__cu_finite(x[i]);
        if (s->has_mean) x[i] = __fsub_rn(x[i], __ldg(s->mean + 16 * i + oscar__cu_strip_lane()));
    }
    kind = oscar__cu_half_ballot(!finite) ? 0 : 1;
    bad = kind == 0;
    if (s->bits != 16) {
        length = oscar__cu_sum_products(s->dim / 16, x, x);
        bad = bad || !(length <= s->limit);
    }
    if (!on || !bad) return 0;
    if (oscar__cu_strip_lane() == 0 && atomicCAS(&from->status->claimed, 0u, 1u) == 0u) {
        from->status->layer = from->layer;
        from->status->head = from->head;
        from->status->kind = kind + (s->is_k ? 0 : 2);
        from->status->slot = from->slot;
        from->status->position = position;
    }
    return 1;
}

/* Rows of the tile whose first token is at `position` -> room.x, transformed. A bad row is zero. */
OSCAR_DEVICE void oscar__cu_tile_get(const oscar__cu_side *s, const oscar__cu_source *from, long long position,
                                     float *out)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim);
    OSCAR_NO_UNROLL
    for (int row = oscar__cu_half_warp(); row < rows; row += 16) {
        float x[OSCAR__CU_STRIP];
        int bad;
        oscar__cu_source_get(s, from, position + row, x);
        bad = oscar__cu_centre_row(s, from, position + row, 1, x);
        OSCAR_UNROLL
        for (int i = 0; i < dim / 16; i++) x[i] = bad ? 0.0f : x[i];
        if (s->kind == OSCAR__CU_HADAMARD) {
            oscar__cu_butterfly(dim, x);
            OSCAR_UNROLL
            for (int i = 0; i < dim / 16; i++) x[i] = __fmul_rn(x[i], oscar__cu_fwht_scale(dim));
        }
        oscar__cu_strip_put(dim / 16, x, out + row * dim);
    }
    __syncthreads();
    if (s->kind == OSCAR__CU_DENSE) {
        float sum[OSCAR__CU_PATCH][4];
        oscar__cu_patch_product(dim, out, s->to, sum);
        __syncthreads();
        oscar__cu_patch_put(dim, sum, out);
        __syncthreads();
    }
}
)

OSCAR_CU(oscar__cu_text_mean,
/* level = z: goes on with the chains over the tokens of a tile. */
OSCAR_DEVICE void oscar__cu_mean_sum(const oscar__cu_side *s, const oscar__cu_room *room, int first)
{
    float share = 1.0f / (float)OSCAR_PAGE;
    for (int c = (int)threadIdx.x; c < s->dim; c += OSCAR__CU_THREADS) {
        float z = first ? room->level[c] : 0.0f;
        OSCAR_UNROLL
        for (int r = 0; r < oscar__cu_tile_rows(s->dim); r++) z = fmaf(room->x[r * s->dim + c], share, z);
        room->level[c] = z;
    }
}

/* level = n; part 0 writes the page's mean: bytes and scale. */
OSCAR_DEVICE void oscar__cu_mean_levels(const oscar__cu_side *s, const oscar__cu_room *room, int head, int part,
                                        unsigned char *page)
{
    float *level = room->level, *tops = level + s->dim, scale;
    unsigned top = 0u, bits;
    unsigned short half;
    for (int c = (int)threadIdx.x; c < s->dim; c += OSCAR__CU_THREADS) {
        bits = __float_as_uint(level[c]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    top = oscar__cu_max_warp(top);
    if ((threadIdx.x & 31u) == 0u) tops[threadIdx.x >> 5] = __uint_as_float(top);
    __syncthreads();
    scale = tops[0];
    OSCAR_UNROLL
    for (int w = 1; w < OSCAR__CU_THREADS / 32; w++) scale = fmaxf(scale, tops[w]);
    half = oscar__cu_float_to_metadata(__fdiv_rn(scale, 127.5f));
    scale = oscar__cu_half_to_float(half);
    for (int c = (int)threadIdx.x; c < s->dim; c += OSCAR__CU_THREADS) {
        float n = scale > 0.0f ? __fadd_rn(floorf(__fdiv_rn(level[c], scale)), 0.5f) : 0.5f;
        n = n < -127.5f ? -127.5f : n > 127.5f ? 127.5f : n;
        level[c] = n;
        if (part == 0) page[OSCAR_MEAN + head * s->dim + c] = (unsigned char)(int)(n + 127.5f);
    }
    if (threadIdx.x == 0u) {
        tops[8] = scale;
        if (part == 0) ((unsigned short *)(void *)(page + OSCAR_MEAN_SCALE))[head] = half;
    }
    if (part == 0 && head == OSCAR_KV_HEADS - 1)   /* zeros up to the page's end */
        for (int at = OSCAR_MEAN_SCALE + 2 * OSCAR_KV_HEADS + (int)threadIdx.x; at < OSCAR_PAGE_BYTES;
             at += OSCAR__CU_THREADS)
            page[at] = 0;
    __syncthreads();
}
)

OSCAR_CU(oscar__cu_text_words,
/* Codes of K of a tile from token `first` on: 32 / bits channels of a token are a word. */
OSCAR_DEVICE void oscar__cu_words_k(const oscar__cu_side *s, const unsigned char *codes, int first, unsigned char *out)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), wide = 32 / s->bits, words = dim / wide;
    int together = rows < 16 ? rows : 16;
    for (int at = (int)threadIdx.x; at < rows * words; at += OSCAR__CU_THREADS) {
        int i = at / together % words, row = at / (together * words) * together + at % together, token = first + row;
        const unsigned *four = (const unsigned *)(const void *)(codes + row * dim + i * wide);
        unsigned word = four[0] | four[1] << s->bits;
        if (s->bits == 2) word |= four[2] << 4 | four[3] << 6;
        ((unsigned *)(void *)out)[(token / 16 * words + i) * 16 + token % 16] = word;
    }
}

/* A matrix of 4 x 4 bytes the other way round. */
OSCAR_DEVICE void oscar__cu_turn(unsigned *a)
{
    unsigned ab = oscar__cu_permute(a[0], a[1], 0x5140u), cd = oscar__cu_permute(a[2], a[3], 0x5140u);
    unsigned upper_ab = oscar__cu_permute(a[0], a[1], 0x7362u), upper_cd = oscar__cu_permute(a[2], a[3], 0x7362u);
    a[0] = oscar__cu_permute(ab, cd, 0x5410u);
    a[1] = oscar__cu_permute(ab, cd, 0x7632u);
    a[2] = oscar__cu_permute(upper_ab, upper_cd, 0x5410u);
    a[3] = oscar__cu_permute(upper_ab, upper_cd, 0x7632u);
}

/* Codes of V: 32 / bits tokens of a channel are a word. A tile of 8 rows may be the second half of one: then the same
   thread wrote the first half, and adds to it. */
OSCAR_DEVICE void oscar__cu_words_v(const oscar__cu_side *s, const unsigned char *codes, int first, unsigned char *out)
{
    int dim = s->dim, rows = oscar__cu_tile_rows(dim), wide = 32 / s->bits, together = rows < wide ? rows : wide;
    for (int at = (int)threadIdx.x; at < rows / together * (dim / 4); at += OSCAR__CU_THREADS) {
        int column = 4 * (at % (dim / 4)), row = at / (dim / 4) * together, token = first + row, half = token % wide;
        uint4 *place = (uint4 *)(void *)(out + (long long)(token / wide) * dim * 4 + 4 * column);
        uint4 word;
        word.x = word.y = word.z = word.w = 0u;
        if (half) word = *place;
        OSCAR_UNROLL
        for (int p = 0; p < together / 4; p++) {
            unsigned four[4];
            int shift = s->bits * (half / 4 + p);
            OSCAR_UNROLL
            for (int r = 0; r < 4; r++)
                four[r] = *(const unsigned *)(const void *)(codes + (row + 4 * p + r) * dim + column);
            oscar__cu_turn(four);
            word.x |= four[0] << shift;
            word.y |= four[1] << shift;
            word.z |= four[2] << shift;
            word.w |= four[3] << shift;
        }
        *place = word;
    }
}

/* Codes and metadata of a tile into a head's part of a page. */
OSCAR_DEVICE void oscar__cu_tile_put(const oscar__cu_side *s, const oscar__cu_room *room, int first, unsigned char *out)
{
    int rows = oscar__cu_tile_rows(s->dim), count = rows * (s->dim / s->group);
    if (s->is_k) oscar__cu_words_k(s, room->codes, first, out + s->codes);
    else oscar__cu_words_v(s, room->codes, first, out + s->codes);
    for (int at = (int)threadIdx.x; at < count; at += OSCAR__CU_THREADS) {
        int place = at / rows * OSCAR_PAGE + first + at % rows;
        unsigned both = __float_as_uint(room->scale[at]);
        ((unsigned short *)(void *)(out + s->scale))[place] = (unsigned short)both;
        if (s->clip) ((unsigned short *)(void *)(out + s->minimum))[place] = (unsigned short)(both >> 16);
    }
}
)

OSCAR_CU(oscar__cu_text_write,
/* Rows of a 16-bit side as they are, bad ones as zeros. */
OSCAR_DEVICE void oscar__cu_page_exact(const oscar__cu_side *s, const oscar__cu_source *from, long long position,
                                       int part, int parts, unsigned char *out)
{
    OSCAR_NO_UNROLL
    for (int k = 16 * part; k < OSCAR_PAGE; k += 16 * parts) {
        int row = k + oscar__cu_half_warp(), bad;
        float x[OSCAR__CU_STRIP];
        oscar__cu_source_get(s, from, position + row, x);
        bad = oscar__cu_centre_row(s, from, position + row, 1, x);   /* there is nothing to subtract */
        OSCAR_UNROLL
        for (int i = 0; i < s->dim / 16; i++)
            oscar__cu_value_put(OSCAR_WINDOW_TYPE, out + s->codes, row * s->dim + 16 * i + oscar__cu_strip_lane(),
                                bad ? 0.0f : x[i]);
    }
}

/* One side of one head of a page whose first token is at `position`. Pass 0 finds the page mean, of all tiles; pass 1
   encodes the tiles of this part: of all units of at least 16 tokens (a word of V) each parts-th one. If the tile is
   the page, pass 0 leaves the rows where pass 1 wants them. */
OSCAR_DEVICE void oscar__cu_page(const oscar__cu_side *s, const oscar__cu_source *from, long long position, int part,
                                 int parts, unsigned char *page, float *shared)
{
    oscar__cu_room room;
    int rows = oscar__cu_tile_rows(s->dim), unit = rows < 16 ? 16 : rows;
    unsigned char *out = page + (long long)from->head * OSCAR_HEAD_BYTES;
    if (s->bits == 16) {
        oscar__cu_page_exact(s, from, position, part, parts, out);
        return;
    }
    room = oscar__cu_room_of(s, shared);
    OSCAR_NO_UNROLL
    for (int pass = !s->page_mean; pass < 2; pass++) {
        OSCAR_NO_UNROLL
        for (int t = 0; t < OSCAR_PAGE; t += rows) {
            if (pass && t / unit % parts != part) continue;
            if (!(pass && s->page_mean && rows == OSCAR_PAGE)) oscar__cu_tile_get(s, from, position + t, room.x);
            if (pass) oscar__cu_encode(s, &room);
            else oscar__cu_mean_sum(s, &room, t);
            __syncthreads();
            if (pass) oscar__cu_tile_put(s, &room, t, out);
            __syncthreads();
        }
        if (!pass) oscar__cu_mean_levels(s, &room, from->head, part, page);
    }
}

/* The rows of a step that stay in windows: those before the sink's end, and those after history. */
OSCAR_DEVICE void oscar__cu_window(const oscar__cu_side *s, const oscar__cu_source *from, const oscar_cu_entry *e,
                                   void *window)
{
    long long sink = OSCAR_SINK - e->position, recent = OSCAR_SINK + e->history - e->position;
    int before = sink < 0 ? 0 : sink < e->rows ? (int)sink : e->rows;
    int after = recent < before ? before : recent < e->rows ? (int)recent : e->rows, count = before + e->rows - after;
    OSCAR_NO_UNROLL
    for (int k = 0; k < count; k += 16) {
        int index = k + oscar__cu_half_warp(), on = index < count;
        long long position = e->position + (index < before ? index : index - before + after);
        float x[OSCAR__CU_STRIP];
        if ((index & ~1) >= count) continue;   /* none of the warp's two rows */
        if (!on) position = e->position;   /* read, so that all lanes have a row, and not used */
        oscar__cu_source_get(s, from, position, x);
        OSCAR_UNROLL
        for (int i = 0; i < s->dim / 16; i++) {
            long long at = oscar__cu_window_row(position) * (OSCAR_KV_HEADS * s->dim) + 16 * i + oscar__cu_strip_lane();
            if (on) oscar__cu_value_put(OSCAR_WINDOW_TYPE, window, at, x[i]);
        }
        oscar__cu_centre_row(s, from, position, on, x);
    }
}
)

OSCAR_CU(oscar__cu_text_write_kernel,
/* Pages and windows of one side of a KV head. what: bit 0 pages, bit 1 windows. */
OSCAR_DEVICE void oscar__cu_write_side(const oscar__cu_side *s, oscar__cu_source *from, const oscar_cu_entry *e,
                                       const unsigned *tables, void *window, unsigned char *pool, int what, int parts,
                                       float *shared)
{
    int size = OSCAR_WINDOW_TYPE == OSCAR__CU_F32 ? 4 : 2, row_size = OSCAR_ROW_TYPE == OSCAR__CU_F32 ? 4 : 2;
    long long slot = (long long)e->slot * (OSCAR_SINK + OSCAR_RING) * OSCAR_KV_HEADS * s->dim;
    unsigned char *mine = (unsigned char *)window + (slot + from->head * s->dim) * size;
    int block = (int)blockIdx.x - 1, index = block / parts;
    from->window = mine;
    from->rows = (const unsigned char *)from->rows + e->row * from->stride * row_size;
    from->position = e->position;
    from->slot = e->slot;
    if (block < 0) {
        if (what & 2) oscar__cu_window(s, from, e, mine);
    } else if (what & 1 && index < e->write_count) {
        long long number = e->write_first + index;
        unsigned id = tables[e->table + number];
        oscar__cu_page(s, from, OSCAR_SINK + number * OSCAR_PAGE, block % parts, parts,
                       pool + (long long)id * OSCAR_PAGE_BYTES, shared);
    }
}

/* grid (1 + parts * most pages of an entry, 2 * KV heads, entries). Block (0, ., .) writes window rows, block
   (1 + parts * i + j, ., .) part j of page i; y is 2 * head for K and one more for V. More parts make a page sooner, at
   the price of its mean found in each: oscar__cu_write_parts is for few pages, 1 for many. Strides in values. status:
   one for all launches, zeroed once. */
OSCAR_KERNEL(256, 1) oscar_cu_write(const oscar_cu_entry *entries, const unsigned *tables, const void *k,
    const void *v, long long k_token_stride, long long k_head_stride, long long v_token_stride,
    long long v_head_stride, void *window_k, void *window_v, unsigned char *pool,
    const oscar_cu_constants *constants, oscar_cu_status *status, int layer, int what,
    int parts)
{
    OSCAR_DYNAMIC(float, shared);
    int head = (int)blockIdx.y >> 1, row_size = OSCAR_ROW_TYPE == OSCAR__CU_F32 ? 4 : 2;
    const oscar_cu_entry *e = entries + blockIdx.z;
    oscar__cu_source from;
    from.layer = layer;
    from.head = head;
    from.status = status;
    if (blockIdx.y & 1u) {
        oscar__cu_side side = oscar__cu_side_v(constants, head);
        from.rows = (const unsigned char *)v + head * v_head_stride * row_size;
        from.stride = v_token_stride;
        oscar__cu_write_side(&side, &from, e, tables, window_v, pool, what, parts, shared);
    } else {
        oscar__cu_side side = oscar__cu_side_k(constants, head);
        from.rows = (const unsigned char *)k + head * k_head_stride * row_size;
        from.stride = k_token_stride;
        oscar__cu_write_side(&side, &from, e, tables, window_k, pool, what, parts, shared);
    }
}
)

/* == 3.8 READ == */

OSCAR_CU(oscar__cu_text_read,
enum { OSCAR__CU_READ_ROWS = 8 };

/* x^ of one code in a head's part, before the page mean. *kept: the page mean does not count. */
OSCAR_DEVICE float oscar__cu_code_value(const oscar__cu_side *s, const unsigned char *in, int token, int c, int *kept)
{
    int wide = 32 / s->bits, inside = s->is_k ? c % wide : token % wide, at = c / s->group * OSCAR_PAGE + token;
    int word = s->is_k ? (token / 16 * (s->dim / wide) + c / wide) * 16 + token % 16 : token / wide * s->dim + c;
    unsigned code = (unsigned)in[s->codes + 4 * word + inside % 4] >> (s->bits * (inside / 4)) & ((1u << s->bits) - 1u);
    unsigned half = ((const unsigned short *)(const void *)(in + s->scale))[at];
    float scale = oscar__cu_half_to_float((unsigned short)(half & 0x7fffu));
    *kept = (int)(half >> 15);
    if (!s->clip) return __fmul_rn(__fsub_rn((float)code, oscar__cu_centre(s->bits)), scale);
    return fmaf((float)code, scale,
                oscar__cu_half_to_float(((const unsigned short *)(const void *)(in + s->minimum))[at]));
}

/* Up to 8 rows of a page from `first` on -> room [8][dim], in the transformed space, or as given of a 16-bit side. */
OSCAR_DEVICE void oscar__cu_read_rows(const oscar__cu_side *s, const unsigned char *page, int head, int first,
                                      int count, float *room)
{
    const unsigned char *in = page + (long long)head * OSCAR_HEAD_BYTES;
    float scale = 0.0f;
    if (s->page_mean)
        scale = oscar__cu_half_to_float(((const unsigned short *)(const void *)(page + OSCAR_MEAN_SCALE))[head]);
    OSCAR_NO_UNROLL
    for (int at = (int)threadIdx.x; at < OSCAR__CU_READ_ROWS * s->dim; at += OSCAR__CU_THREADS) {
        int r = at / s->dim, c = at % s->dim, kept = 1;
        float x = 0.0f;
        if (r < count && s->bits == 16)
            x = oscar__cu_value_get(OSCAR_WINDOW_TYPE, in + s->codes, (first + r) * s->dim + c);
        else if (r < count) x = oscar__cu_code_value(s, in, first + r, c, &kept);
        if (s->page_mean && !kept)
            x = fmaf(__fsub_rn((float)page[OSCAR_MEAN + head * s->dim + c], 127.5f), scale, x);
        room[at] = x;
    }
    __syncthreads();
}

/* sum[r] = row r of x B^T at channel c: a chain over the channels of x. */
OSCAR_DEVICE void oscar__cu_back_dense(int dim, const float *x, const float *dual, float *sum)
{
    OSCAR_UNROLL
    for (int r = 0; r < OSCAR__CU_READ_ROWS; r++) sum[r] = 0.0f;
    OSCAR_NO_UNROLL
    for (int j = 0; j < dim; j += 4) {
        float4 b = __ldg((const float4 *)(const void *)(dual + j));
        OSCAR_UNROLL
        for (int r = 0; r < OSCAR__CU_READ_ROWS; r++) {
            float4 a = *(const float4 *)(const void *)(x + r * dim + j);
            sum[r] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum[r]))));
        }
    }
}
)

OSCAR_CU(oscar__cu_text_read_side,
/* Where rows go: row i to values (start + i) % ring * stride. */
typedef struct oscar__cu_out {
    void *out;
    int type;
    long long start;
    long long ring;
    long long stride;
} oscar__cu_out;

OSCAR_DEVICE void oscar__cu_out_put(const oscar__cu_out *to, long long row, int c, float x)
{
    long long at = to->start + row;
    if (to->ring > 0 && at >= OSCAR_SINK) at = oscar__cu_window_row(at);
    oscar__cu_value_put(to->type, to->out, at * to->stride + c, oscar__cu_clamp(to->type, x));
}

/* x = x' B^T + m of the rows in room, and out. row0: of the first of them in the item. */
OSCAR_DEVICE void oscar__cu_read_back(const oscar__cu_side *s, int count, float *room, const oscar__cu_out *to,
                                      int row0)
{
    int dim = s->dim;
    if (s->kind == OSCAR__CU_HADAMARD && s->bits != 16)
        oscar__cu_butterfly_rows(OSCAR__CU_READ_ROWS, dim, 1.0f, room);
    OSCAR_NO_UNROLL
    for (int c = (int)threadIdx.x; c < dim; c += OSCAR__CU_THREADS) {
        float mean = s->has_mean ? s->mean[c] : 0.0f, sum[OSCAR__CU_READ_ROWS];
        if (s->kind == OSCAR__CU_DENSE && s->bits != 16) oscar__cu_back_dense(dim, room, s->dual + c * dim, sum);
        OSCAR_UNROLL
        for (int r = 0; r < OSCAR__CU_READ_ROWS; r++) {
            float x = room[r * dim + c];
            if (s->bits != 16 && !s->folded)   /* those stay as they are, also -0 */
                x = s->kind == OSCAR__CU_HADAMARD ? fmaf(x, oscar__cu_fwht_scale(dim), mean)
                  : __fadd_rn(s->kind == OSCAR__CU_DENSE ? sum[r] : x, mean);
            if (r < count) oscar__cu_out_put(to, row0 + r, c, x);
        }
    }
}

OSCAR_DEVICE void oscar__cu_read_side(const oscar__cu_side *s, int head, const oscar_cu_rows *item,
                                      const unsigned char *pool, const oscar__cu_out *to, float *room)
{
    int row0 = OSCAR__CU_READ_ROWS * (int)blockIdx.x, count = item->count - row0;
    const unsigned char *page = pool + (long long)item->page * OSCAR_PAGE_BYTES;
    if (count > OSCAR__CU_READ_ROWS) count = OSCAR__CU_READ_ROWS;
    if (count <= 0) return;
    oscar__cu_read_rows(s, page, head, item->first + row0, count, room);
    oscar__cu_read_back(s, count, room, to, row0);
}
)

OSCAR_CU(oscar__cu_text_read_kernel,
/* grid (most rows of an item / 8, 2 * KV heads, items); y as of oscar_cu_write. windows 0: rows go to k and v, of type
   out_type (1 F32, 2 BF16, 3 F16), strides in values, NULL where not wanted; 1: k and v are the windows of all
   slots. */
OSCAR_KERNEL(256, 1) oscar_cu_read(const oscar_cu_rows *items, const unsigned char *pool, void *k, void *v,
    long long k_token_stride, long long k_head_stride, long long v_token_stride, long long v_head_stride,
    int out_type, int windows, const oscar_cu_constants *constants)
{
    OSCAR_DYNAMIC(float, shared);
    int head = (int)blockIdx.y >> 1, is_v = (int)blockIdx.y & 1, dim = is_v ? OSCAR_DV : OSCAR_DK, size;
    const oscar_cu_rows *item = items + blockIdx.z;
    long long head_stride = is_v ? v_head_stride : k_head_stride, offset;
    oscar__cu_out to;
    to.out = is_v ? v : k;
    to.type = windows ? OSCAR_WINDOW_TYPE : out_type;
    to.ring = windows ? OSCAR_RING : 0;
    to.start = windows ? item->position : item->row;
    to.stride = windows ? OSCAR_KV_HEADS * dim : is_v ? v_token_stride : k_token_stride;
    if (!to.out) return;
    size = to.type == OSCAR__CU_F32 ? 4 : 2;
    offset = windows ? (long long)item->slot * (OSCAR_SINK + OSCAR_RING) * OSCAR_KV_HEADS * dim + head * dim
                     : head * head_stride;
    to.out = (unsigned char *)to.out + offset * size;
    if (is_v) {
        oscar__cu_side side = oscar__cu_side_v(constants, head);
        oscar__cu_read_side(&side, head, item, pool, &to, shared);
    } else {
        oscar__cu_side side = oscar__cu_side_k(constants, head);
        oscar__cu_read_side(&side, head, item, pool, &to, shared);
    }
}
)

/* == 3.9 DECODE == */

/* Flash decoding over pages of codes with integer tensor cores. A warp takes a block of 64 tokens at a time: four
   tiles, which meet the four lanes of a row. Lane = 4 row + column (3.3).

     q.k     A: the query's limbs. B: column n of product j = 0..7 is token 8 (j / 4) + 4 (n & 1) + j % 4 of tile n / 2;
             word line l (words column + 4 l of a token) is two steps of 32 channels (2 bits) or one (4 bits), its
             planes are the registers of B. So a lane gets, for pair `row`, the 16 tokens of tile `column`:
             x[j][e] is token 8 (j / 4) + 4 e + j % 4.
     P v     A: P times the scale of the token as 16 bits in two limbs, which are just those 16 tokens: nothing moves
             between lanes. B: column n of product (i, k) is channel 32 i + 4 n + k, the planes of the word of tile
             `column` are the registers.

   Sums start from the bits of 1.5 2^31 (high limbs) and 1.5 2^23 (low ones), so the integer result read as a float is
   that number plus 256 high, or plus low: two additions join them and nothing is converted. The centre of UNBIASED
   codes is in these starts. P is scaled by the block's own maximum and its largest V scale, so that one large weight
   does not take the bits of the others; the sums keep a reference that moves only when the maximum grows by 2^16.
   OSCAR_FOLD (up to 4 pairs): rows r and r + 4 hold the limbs of pair r; lanes of these rows swap one value a product
   and share the tokens: x[j][0] is token 8 (j / 4) + 4 (row / 4) + j % 4. Rows of P v then meet even or odd planes
   only.

   Rows that are no codes (windows; sides of 16 bits) go the same way through products of 16-bit floats. */

OSCAR_CU(oscar__cu_text_decode_types,
/* What a group of a query needs (words of 3.6), for this lane's row. */
typedef struct oscar__cu_group {
    float step;
    float total;
    unsigned start[4];   /* as mma takes them: two of the high limb's row, two of the low one's */
    unsigned mean[2];
} oscar__cu_group;

/* Where both are: fragments of a tile's products with codes, words of this lane's pair. */
typedef struct oscar__cu_query_at {
    const uint4 *fragments;
    const unsigned *words;
} oscar__cu_query_at;

/* A pair of this lane: units of its products, and the running softmax in log2 units. */
typedef struct oscar__cu_pair {
    float scale;
    float offset;
    float row_scale;
    float top;
    float sum;
} oscar__cu_pair;

/* Rows as given, 64 at a time from `first` on: row u stands in place u where u < sinks, else in place OSCAR_SINK +
   (start + u - sinks) of the ring. Rows from `count` on are read as the last one. The rows of a slot have less than
   4 GB: 32 bits are enough for a place among them. */
typedef struct oscar__cu_rows {
    const unsigned char *k;
    const unsigned char *v;
    unsigned k_stride;
    unsigned v_stride;
    int first;
    int count;
    int sinks;
    int start;
} oscar__cu_rows;

/* 1.5 2^31 + 1.5 2^23 */
OSCAR_DEVICE float oscar__cu_both_starts(void) { return 3233808384.0f; }
OSCAR_DEVICE float oscar__cu_nothing(void) { return __uint_as_float(0xff800000u); }

/* Which half of the tokens of 8, or which limb, a folded lane holds. */
OSCAR_DEVICE int oscar__cu_half(void) { return OSCAR_FOLD ? oscar__cu_row() >> 2 : 0; }

/* Group g of a pair's words. */
OSCAR_DEVICE oscar__cu_group oscar__cu_group_of(const unsigned *words, int g)
{
    const unsigned *of = words + 8 + 12 * g;
    uint4 start = *(const uint4 *)(const void *)(of + 4 + 4 * oscar__cu_half());
    oscar__cu_group to;
    to.step = __uint_as_float(of[0]);
    to.total = __uint_as_float(of[1]);
    to.start[0] = start.x;
    to.start[1] = start.y;
    to.start[2] = start.z;
    to.start[3] = start.w;
    to.mean[0] = oscar__cu_half() ? of[3] : of[2];
    to.mean[1] = OSCAR_FOLD ? 0u : of[3];
    return to;
}

OSCAR_DEVICE void oscar__cu_halves(unsigned two, float *x)
{
    x[0] = oscar__cu_half_to_float((unsigned short)(two & 0xffffu));
    x[1] = oscar__cu_half_to_float((unsigned short)(two >> 16));
}

/* Metadata of this lane's tokens 8 h .. 8 h + 7, of an array of 64: out[4 e + i]; folded: out[i] of its half. */
OSCAR_DEVICE void oscar__cu_metadata(oscar__cu_address array, int h, float *out)
{
    if (OSCAR_FOLD) {
        uint2 two = oscar__cu_load8(array + 32 * oscar__cu_column() + 16 * h + 8 * oscar__cu_half());
        oscar__cu_halves(two.x, out);
        oscar__cu_halves(two.y, out + 2);
    } else {
        uint4 four = oscar__cu_load16(array + 32 * oscar__cu_column() + 16 * h);
        oscar__cu_halves(four.x, out);
        oscar__cu_halves(four.y, out + 2);
        oscar__cu_halves(four.z, out + 4);
        oscar__cu_halves(four.w, out + 6);
    }
}

OSCAR_DEVICE unsigned oscar__cu_word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
)

OSCAR_CU(oscar__cu_text_copy,
/* A stage of shared memory: [K codes][V codes][metadata: arrays of 64][page mean][16 bytes with its scale]. Chunks of
   16 bytes are swizzled so that the loads of a quarter warp meet all banks: chunk c of K goes to c ^ (c / 4 & 2), of V
   to c ^ 2 tile in a line that is padded to 32 channels. */
OSCAR_DEVICE void oscar__cu_copy_k(const unsigned char *codes, oscar__cu_address stage)
{
    int lane = oscar__cu_lane();
    const unsigned char *from = codes + 16 * lane;
    oscar__cu_address to = stage + 16 * (lane ^ (lane >> 2 & 2));
    OSCAR_UNROLL
    for (int i = 0; i < OSCAR_K_TILE / 4; i += 32)
        if (OSCAR_K_TILE % 128 == 0 || i + lane < OSCAR_K_TILE / 4) oscar__cu_copy16(to + 16 * i, from + 16 * i);
}

OSCAR_DEVICE void oscar__cu_copy_v(const unsigned char *codes, oscar__cu_address stage)
{
    int lane = oscar__cu_lane();
    const unsigned char *from = codes + 16 * lane;
    OSCAR_UNROLL
    for (int i = 0; i < OSCAR_V_TILE / 4; i += 32) {
        int line = OSCAR_DV % 128 == 0 ? i / (OSCAR_DV / 4) : (i + lane) / (OSCAR_DV / 4);
        int first = OSCAR_DV % 128 == 0 ? i % (OSCAR_DV / 4) : 0;
        int chunk = OSCAR_DV % 128 == 0 ? lane : (i + lane) % (OSCAR_DV / 4);
        int tile = OSCAR_V_BITS == 4 ? line >> 1 : line;
        if (OSCAR_V_TILE % 128 == 0 || i + lane < OSCAR_V_TILE / 4)
            oscar__cu_copy16(stage + 16 * (chunk ^ (2 * tile)) + line * OSCAR_V_LINE + 16 * first, from + 16 * i);
    }
}

/* Block `block` of 64 tokens of a page. */
OSCAR_DEVICE void oscar__cu_copy_block(const unsigned char *pool, unsigned page, int block, int head,
                                       oscar__cu_address stage)
{
    const unsigned char *at = pool + (long long)page * OSCAR_PAGE_BYTES;
    const unsigned char *part = at + (long long)head * OSCAR_HEAD_BYTES;
    int lane = oscar__cu_lane();
    const unsigned char *array = part + OSCAR_META + (lane >> 3) * 2 * OSCAR_PAGE + 128 * block + 16 * (lane & 7);
    if (OSCAR_K_BITS < 16) oscar__cu_copy_k(part + 4 * OSCAR_K_TILE * block, stage);
    if (OSCAR_V_BITS < 16) oscar__cu_copy_v(part + OSCAR_V_CODES + 4 * OSCAR_V_TILE * block, stage + OSCAR_STAGE_V);
    OSCAR_UNROLL
    for (int i = 0; i < OSCAR_META_ARRAYS; i += 4)
        if (i + (lane >> 3) < OSCAR_META_ARRAYS)
            oscar__cu_copy16(stage + OSCAR_STAGE_META + 16 * lane + 128 * i, array + i * 2 * OSCAR_PAGE);
    if (OSCAR_K_PAGE_MEAN) {
        OSCAR_UNROLL
        for (int i = 0; i < OSCAR_DK / 16; i += 32)
            if (i + lane < OSCAR_DK / 16)
                oscar__cu_copy16(stage + OSCAR_STAGE_MEAN + 16 * (i + lane),
                                 at + OSCAR_MEAN + (long long)head * OSCAR_DK + 16 * (i + lane));
        if (lane == 31)
            oscar__cu_copy16(stage + OSCAR_STAGE_MEAN + OSCAR_DK, at + OSCAR_MEAN_SCALE + (2 * head & ~15));
    }
}
)

OSCAR_CU(oscar__cu_text_score,
/* Planes of a word: four codes a register. Odd planes of 2 bits stay code * 4. */
OSCAR_DEVICE void oscar__cu_k_planes(unsigned word, unsigned *plane)
{
    if (OSCAR_K_BITS == 2) {
        unsigned half = word >> 4;
        plane[0] = word & 0x03030303u;
        plane[1] = word & 0x0c0c0c0cu;
        plane[2] = half & 0x03030303u;
        plane[3] = half & 0x0c0c0c0cu;
    } else {
        plane[0] = word & 0x0f0f0f0fu;
        plane[1] = word >> 4 & 0x0f0f0f0fu;
    }
}

/* All ones where this lane's word of a line lies in a group: the others' limbs are left out. */
OSCAR_DEVICE unsigned oscar__cu_in_group(int line, int group)
{
    int channel = (4 * line + oscar__cu_column()) * (32 / OSCAR_K_BITS);
    if (OSCAR_K_GROUPS == 1 || OSCAR_K_GROUP % (128 / OSCAR_K_BITS) == 0) return 0xffffffffu;
    return channel / OSCAR_K_GROUP == group ? 0xffffffffu : 0u;
}

/* Lines first .. end - 1 hold channels of a group. */
OSCAR_DEVICE int oscar__cu_line_first(int group) { return group * OSCAR_K_GROUP / (128 / OSCAR_K_BITS); }
OSCAR_DEVICE int oscar__cu_line_end(int group)
{
    return ((group + 1) * OSCAR_K_GROUP + 128 / OSCAR_K_BITS - 1) / (128 / OSCAR_K_BITS);
}

OSCAR_DEVICE void oscar__cu_masked(const unsigned *q, unsigned mask, unsigned *a)
{
    a[0] = q[0] & mask;
    a[1] = q[1] & mask;
    a[2] = q[2] & mask;
    a[3] = q[3] & mask;
}

/* sum = from + q.c of a line's word; q: the fragments of its steps. */
OSCAR_DEVICE void oscar__cu_k_word(unsigned (*q)[4], unsigned mask, unsigned word, const unsigned *from, unsigned *sum)
{
    unsigned plane[4];
    unsigned a[4];
    plane[2] = plane[3] = 0u;
    oscar__cu_k_planes(word, plane);
    oscar__cu_masked(q[0], mask, a);
    oscar__cu_mma_s8u8(sum, a, plane[0], plane[1], from);
    if (OSCAR_K_BITS == 2) {
        oscar__cu_masked(q[1], mask, a);
        oscar__cu_mma_s8u8(sum, a, plane[2], plane[3], sum);
    }
}

/* Joins high and low sums: y[0], y[1] for the two tokens of the lane; folded y[0] for its own. */
OSCAR_DEVICE void oscar__cu_join_limbs(const unsigned *sum, float *y)
{
    if (OSCAR_FOLD) {
        int half = oscar__cu_half();
        float kept = __uint_as_float(half ? sum[1] : sum[0]) - (half ? 12582912.0f : 3221225472.0f);
        unsigned other = __shfl_xor_sync(0xffffffffu, half ? sum[0] : sum[1], 16);
        y[0] = kept + (__uint_as_float(other) - (half ? 3221225472.0f : 12582912.0f));
    } else {
        y[0] = (__uint_as_float(sum[0]) - oscar__cu_both_starts()) + __uint_as_float(sum[2]);
        y[1] = (__uint_as_float(sum[1]) - oscar__cu_both_starts()) + __uint_as_float(sum[3]);
    }
}

/* What a token's score of all groups starts from: half of the page mean's product, or minus that half where the sign of
   its scale is set. The other half is in the scores' common offset. */
OSCAR_DEVICE float oscar__cu_score_start(float scale, float half)
{
    if (!OSCAR_K_PAGE_MEAN) return 0.0f;
    return __uint_as_float(__float_as_uint(half) ^ (__float_as_uint(scale) & 0x80000000u));
}
)

OSCAR_CU(oscar__cu_text_score_codes,
/* Where the words of the lane's column of B are, tokens 8 h + 4 (row & 1) .. + 3 of tile row / 2. */
OSCAR_DEVICE oscar__cu_address oscar__cu_k_place(oscar__cu_address stage, int h)
{
    int line = (oscar__cu_row() >> 1) * OSCAR_K_WORDS + oscar__cu_column();
    int chunk = 4 * line + ((oscar__cu_row() & 1) ^ (line & 2));
    return stage + ((16 * chunk) ^ (32 * h));
}

/* Those of a line. */
OSCAR_DEVICE uint4 oscar__cu_k_line(oscar__cu_address place, int line)
{
    uint4 word;
    word.x = word.y = word.z = word.w = 0u;
    if (OSCAR_K_WORDS % 4 == 0 || oscar__cu_column() + 4 * line < OSCAR_K_WORDS)
        word = oscar__cu_load16(place + 256 * line);
    return word;
}

/* Sums of product i of half h over the channels of group g. */
OSCAR_DEVICE void oscar__cu_k_product(unsigned (*q)[4], const oscar__cu_group *group, int g, const uint4 *word,
                                      int i, float *y)
{
    unsigned sum[4];
    OSCAR_UNROLL
    for (int l = oscar__cu_line_first(g); l < oscar__cu_line_end(g); l++)
        oscar__cu_k_word(q + l * (4 / OSCAR_K_BITS), oscar__cu_in_group(l, g), oscar__cu_word_of(word[l], i),
                         l == oscar__cu_line_first(g) ? group->start : sum, sum);
    oscar__cu_join_limbs(sum, y);
}

/* A token's score and the part of group g: |scale| q.c + minimum times sum of q. */
OSCAR_DEVICE float oscar__cu_score_add(const oscar__cu_group *of, int g, float scale, float low, float half, float y,
                                       float score)
{
    float from = g == 0 ? oscar__cu_score_start(scale, half) : score;
    float step = OSCAR_K_GROUPS == 1 ? 1.0f : of->step;
    if (OSCAR_K_CLIP) from = fmaf(low, step * of->total, from);
    return fmaf(OSCAR_K_PAGE_MEAN ? fabsf(scale) : scale, step * y, from);
}

/* x = the parts of all groups, and plus or minus half of the page mean's product. */
OSCAR_DEVICE void oscar__cu_score_codes(oscar__cu_address stage, unsigned (*q)[4], const oscar__cu_group *group,
                                        const float *half, float (*x)[2])
{
    OSCAR_UNROLL
    for (int h = 0; h < 2; h++) {
        oscar__cu_address place = oscar__cu_k_place(stage, h);
        uint4 word[OSCAR_K_LINES];
        OSCAR_UNROLL
        for (int l = 0; l < OSCAR_K_LINES; l++) word[l] = oscar__cu_k_line(place, l);
        OSCAR_UNROLL
        for (int g = 0; g < OSCAR_K_GROUPS; g++) {
            float scale[8];
            float low[8];
            oscar__cu_metadata(stage + OSCAR_STAGE_META + 128 * g, h, scale);
            if (OSCAR_K_CLIP) oscar__cu_metadata(stage + OSCAR_STAGE_K_MIN + 128 * g, h, low);
            OSCAR_UNROLL
            for (int i = 0; i < 4 * OSCAR_TILES; i++) {
                const oscar__cu_group *of = group + i / 4 * OSCAR_K_GROUPS + g;
                float *at = x[i / 4 * 8 + 4 * h + i % 4];
                float y[2];
                oscar__cu_k_product(q + i / 4 * OSCAR_K_STEPS, of, g, word, i % 4, y);
                OSCAR_UNROLL
                for (int e = 0; e < 2 - OSCAR_FOLD; e++)
                    at[e] = oscar__cu_score_add(of, g, scale[4 * e + i % 4], OSCAR_K_CLIP ? low[4 * e + i % 4] : 0.0f,
                                                half[i / 4], y[e], at[e]);
            }
        }
    }
}
)

/* Heads of more than 256 channels, or of more than 128 in groups: what a query needs does not fit registers. It is
   fetched, from the nearest cache, group by group and line by line. */
OSCAR_CU(oscar__cu_text_score_wide,
OSCAR_DEVICE int oscar__cu_wide(void)
{
    return OSCAR_K_BITS < 16 && OSCAR_TILES == 1 && OSCAR_K_STEPS > (OSCAR_K_GROUPS > 1 ? 4 : 8);
}

/* The fragments of a line: q has all of them, where it is not wide. */
OSCAR_DEVICE void oscar__cu_line_fragments(const uint4 *fragments, unsigned (*q)[4], int line, unsigned (*a)[4])
{
    OSCAR_UNROLL
    for (int s = 0; s < 4 / OSCAR_K_BITS; s++) {
        int step = line * (4 / OSCAR_K_BITS) + s;
        if (oscar__cu_wide()) {
            uint4 v = oscar__cu_reload16(fragments + 32 * step + oscar__cu_lane());
            a[s][0] = v.x;
            a[s][1] = v.y;
            a[s][2] = v.z;
            a[s][3] = v.w;
        } else {
            a[s][0] = q[step][0];
            a[s][1] = q[step][1];
            a[s][2] = q[step][2];
            a[s][3] = q[step][3];
        }
    }
}

/* Sums of the products of half h over the channels of group g. */
OSCAR_DEVICE void oscar__cu_wide_products(oscar__cu_address stage, const uint4 *fragments, int h,
                                          const oscar__cu_group *group, int g, unsigned (*sum)[4])
{
    oscar__cu_address place = oscar__cu_k_place(stage, h);
    OSCAR_UNROLL
    for (int l = oscar__cu_line_first(g); l < oscar__cu_line_end(g); l++) {
        unsigned a[2][4];
        oscar__cu_line_fragments(fragments, a, l, a);
        uint4 word = oscar__cu_k_line(place, l);
        OSCAR_UNROLL
        for (int i = 0; i < 4; i++)
            oscar__cu_k_word(a, oscar__cu_in_group(l, g), oscar__cu_word_of(word, i),
                             l == oscar__cu_line_first(g) ? group->start : sum[i], sum[i]);
    }
}

/* oscar__cu_score_codes of one tile of pairs. */
OSCAR_DEVICE void oscar__cu_score_wide(oscar__cu_address stage, const oscar__cu_query_at *at, float half,
                                       float (*x)[2])
{
    OSCAR_UNROLL
    for (int h = 0; h < 2; h++) {
        OSCAR_UNROLL
        for (int g = 0; g < OSCAR_K_GROUPS; g++) {
            oscar__cu_group of = oscar__cu_group_of(at->words, g);
            unsigned sum[4][4];
            float scale[8];
            float low[8];
            oscar__cu_wide_products(stage, at->fragments, h, &of, g, sum);
            oscar__cu_metadata(stage + OSCAR_STAGE_META + 128 * g, h, scale);
            if (OSCAR_K_CLIP) oscar__cu_metadata(stage + OSCAR_STAGE_K_MIN + 128 * g, h, low);
            OSCAR_UNROLL
            for (int i = 0; i < 4; i++) {
                float y[2];
                oscar__cu_join_limbs(sum[i], y);
                OSCAR_UNROLL
                for (int e = 0; e < 2 - OSCAR_FOLD; e++)
                    x[4 * h + i][e] = oscar__cu_score_add(&of, g, scale[4 * e + i],
                                                          OSCAR_K_CLIP ? low[4 * e + i] : 0.0f, half, y[e],
                                                          x[4 * h + i][e]);
            }
        }
    }
}
)

OSCAR_CU(oscar__cu_text_page_mean,
/* Adds one line of the mean's bytes, the same in all columns of B. Limbs of odd planes are n / 4: they have sums of
   their own. */
OSCAR_DEVICE void oscar__cu_mean_line(oscar__cu_address mean, unsigned (*q)[4], unsigned mask, int line,
                                      unsigned *even, unsigned *odd)
{
    int channel = (oscar__cu_column() + 4 * line) * (32 / OSCAR_K_BITS);
    int there = OSCAR_K_WORDS % 4 == 0 || channel < OSCAR_DK;
    unsigned a[4];
    oscar__cu_masked(q[0], mask, a);
    if (OSCAR_K_BITS == 2) {
        uint4 bytes;
        bytes.x = bytes.y = bytes.z = bytes.w = 0u;
        if (there) bytes = oscar__cu_load16(mean + channel);
        oscar__cu_mma_s8u8(even, a, bytes.x, 0u, even);
        oscar__cu_mma_s8u8(odd, a, 0u, bytes.y, odd);
        oscar__cu_masked(q[1], mask, a);
        oscar__cu_mma_s8u8(even, a, bytes.z, 0u, even);
        oscar__cu_mma_s8u8(odd, a, 0u, bytes.w, odd);
    } else {
        uint2 bytes;
        bytes.x = bytes.y = 0u;
        if (there) bytes = oscar__cu_load8(mean + channel);
        oscar__cu_mma_s8u8(even, a, bytes.x, bytes.y, even);
    }
}

/* q'.a of a tile of pairs: exact sums of integers, one product each. */
OSCAR_DEVICE float oscar__cu_mean_product(oscar__cu_address mean, float scale, const oscar__cu_query_at *at,
                                          unsigned (*q)[4], const oscar__cu_group *group)
{
    float result = 0.0f;
    OSCAR_UNROLL
    for (int g = 0; g < OSCAR_K_GROUPS; g++) {
        oscar__cu_group of = oscar__cu_wide() ? oscar__cu_group_of(at->words, g) : group[g];
        unsigned even[4];
        unsigned odd[4];
        even[0] = even[1] = of.mean[0];
        even[2] = even[3] = of.mean[1];
        odd[0] = odd[1] = odd[2] = odd[3] = 0u;
        OSCAR_UNROLL
        for (int l = oscar__cu_line_first(g); l < oscar__cu_line_end(g); l++) {
            unsigned a[2][4];
            oscar__cu_line_fragments(at->fragments, q, l, a);
            oscar__cu_mean_line(mean, a, oscar__cu_in_group(l, g), l, even, odd);
        }
        int high = (int)even[0] + 4 * (int)odd[0];
        int low = (int)even[2] + 4 * (int)odd[2];
        if (OSCAR_FOLD) {
            int other = __shfl_xor_sync(0xffffffffu, high, 16);
            low = oscar__cu_half() ? high : other;
            high = oscar__cu_half() ? other : high;
        }
        float product = fmaf((float)high, 256.0f, (float)low) * scale;
        result = OSCAR_K_GROUPS == 1 ? product : fmaf(product, of.step, result);
    }
    return result;
}

OSCAR_DEVICE float oscar__cu_mean_scale(oscar__cu_address mean, int head)
{
    unsigned word = oscar__cu_load4(mean + OSCAR_DK + (2 * head & 12));
    return oscar__cu_half_to_float((unsigned short)(head & 1 ? word >> 16 : word & 0xffffu));
}
)

OSCAR_CU(oscar__cu_text_softmax,
/* c tanh(x / c) in log2 units of natural x. */
OSCAR_DEVICE float oscar__cu_cap(float x, float cap)
{
    float t = oscar__cu_exp2(x * (2.88539008f / cap));
    return cap * 1.44269504f * (1.0f - 2.0f / (1.0f + t));
}

/* Products of a block become P = exp2(logit - top of the block + raise), masked ones (-inf) 0. unit: of the products,
   in log2; common: what all of them lack. Returns what brings sums with this P to the pair's reference; sums of before
   are brought to a new one. The raise is less by what rounding of a large top and of shift can add to an exponent. */
OSCAR_DEVICE float oscar__cu_weigh(float (*x)[2], float unit, float common, float raise, oscar__cu_pair *pair,
                                   float (*acc)[2], float *low)
{
    float top = x[0][0];
    float sum = 0.0f;
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) top = fmaxf(top, OSCAR_FOLD ? x[j][0] : fmaxf(x[j][0], x[j][1]));
    top = fmaxf(oscar__cu_quad_max(top) * unit, -1e30f);
    raise = fmaf(fminf(fabsf(top), 8388608.0f), -1.1920929e-7f, raise);
    float shift = raise - top;
    top += common;
    unsigned moved = __ballot_sync(0xffffffffu, top > pair->top + 16.0f);
    if (moved) {
        float reference = top > pair->top + 16.0f ? top : pair->top;
        float factor = oscar__cu_exp2(pair->top - reference);
        pair->top = reference;
        pair->sum *= factor;
        OSCAR_UNROLL
        for (int i = 0; i < OSCAR_V_TILES; i++) {
            acc[i][0] *= factor;
            acc[i][1] *= factor;
        }
        OSCAR_UNROLL
        for (int g = 0; OSCAR_V_CLIP && g < OSCAR_V_GROUPS; g++) low[g] *= factor;
    }
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) {
        OSCAR_UNROLL
        for (int e = 0; e < 2 - OSCAR_FOLD; e++) {
            x[j][e] = oscar__cu_exp2(fmaf(x[j][e], unit, shift));
            sum += x[j][e];
        }
    }
    float share = oscar__cu_exp2((top - pair->top) - raise);
    pair->sum = fmaf(sum, share, pair->sum);
    return share;
}

/* The same for the only block of a warp: it sets the reference. */
OSCAR_DEVICE void oscar__cu_weigh_once(float (*x)[2], float unit, oscar__cu_pair *pair)
{
    float top = x[0][0];
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) top = fmaxf(top, OSCAR_FOLD ? x[j][0] : fmaxf(x[j][0], x[j][1]));
    top = fmaxf(oscar__cu_quad_max(top) * unit, -1e30f);
    pair->top = top;
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) {
        OSCAR_UNROLL
        for (int e = 0; e < 2 - OSCAR_FOLD; e++) {
            x[j][e] = oscar__cu_exp2(fmaf(x[j][e], unit, -top));
            pair->sum += x[j][e];
        }
    }
}

/* Reference and sum of a row, for the join. */
OSCAR_DEVICE void oscar__cu_store_sums(const oscar__cu_pair *pair, float *out)
{
    float sum = oscar__cu_quad_sum(pair->sum);
    if (oscar__cu_column() == 0) {
        out[0] = pair->top;
        out[1] = sum;
    }
}

/* Soft cap and sliding window of a block of a page; token 0 of it is `before` tokens before the first one that the pair
   sees. Returns the unit of x. */
OSCAR_DEVICE float oscar__cu_logits(float (*x)[2], float unit, float offset, float cap, int before)
{
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) {
        OSCAR_UNROLL
        for (int e = 0; e < 2 - OSCAR_FOLD; e++) {
            int half = OSCAR_FOLD ? oscar__cu_half() : e;
            int token = 16 * oscar__cu_column() + 8 * (j >> 2) + 4 * half + (j & 3);
            if (OSCAR_SOFTCAP) x[j][e] = oscar__cu_cap(fmaf(x[j][e], unit, offset), cap);
            if (OSCAR_SLIDING && token < before) x[j][e] = oscar__cu_nothing();
        }
    }
    return OSCAR_SOFTCAP ? 1.0f : unit;
}
)

OSCAR_CU(oscar__cu_text_value,
/* log2 of what P is raised by, so that P times the largest scale of V fits 16 bits. */
OSCAR_DEVICE float oscar__cu_raise(oscar__cu_address array)
{
    unsigned two = oscar__cu_load4(array + 4 * oscar__cu_lane());
    unsigned top = (two >> 16) > (two & 0xffffu) ? two >> 16 : two & 0xffffu;
    top = oscar__cu_max_warp(top);
    return 15.9993f - oscar__cu_log2(fmaxf(oscar__cu_half_to_float((unsigned short)top), 5.96e-8f));
}

/* High and low limbs of four numbers whose bits are 2^23 + n. */
OSCAR_DEVICE void oscar__cu_limbs(const unsigned *n, unsigned *high, unsigned *low)
{
    unsigned a = oscar__cu_permute(n[0], n[1], 0x5140u);
    unsigned b = oscar__cu_permute(n[2], n[3], 0x5140u);
    *high = oscar__cu_permute(a, b, 0x7632u);
    *low = oscar__cu_permute(a, b, 0x5410u);
}

/* A of P v: P times scales of V times `more`, for the two steps. Returns the sum of P times minima. */
OSCAR_DEVICE float oscar__cu_weights(oscar__cu_address stage, int g, float more, float (*p)[2], unsigned (*a)[4])
{
    float below = 0.0f;
    OSCAR_UNROLL
    for (int h = 0; h < 2; h++) {
        float scale[8];
        float low[8];
        unsigned n[4];
        unsigned limb[2][2];
        oscar__cu_metadata(stage + OSCAR_STAGE_V_SCALE + 128 * g, h, scale);
        if (OSCAR_V_CLIP) oscar__cu_metadata(stage + OSCAR_STAGE_V_MIN + 128 * g, h, low);
        OSCAR_UNROLL
        for (int e = 0; e < 2 - OSCAR_FOLD; e++) {
            OSCAR_UNROLL
            for (int i = 0; i < 4; i++) {
                float s = OSCAR_V_GROUPS == 1 ? scale[4 * e + i] : scale[4 * e + i] * more;
                n[i] = __float_as_uint(fmaf(p[4 * h + i][e], s, 8388608.0f));
                if (OSCAR_V_CLIP) below = fmaf(p[4 * h + i][e], low[4 * e + i], below);
            }
            oscar__cu_limbs(n, &limb[e][0], &limb[e][1]);
        }
        unsigned first = oscar__cu_half() ? 0u : 0xffffffffu;
        a[h][0] = OSCAR_FOLD ? limb[0][0] & first : limb[0][0];
        a[h][1] = OSCAR_FOLD ? limb[0][1] & first : limb[0][1];
        a[h][2] = OSCAR_FOLD ? limb[0][0] & ~first : limb[1][0];
        a[h][3] = OSCAR_FOLD ? limb[0][1] & ~first : limb[1][1];
    }
    return below;
}

/* Planes of V: odd ones of 2 bits stay code * 4 where folded rows meet them alone. */
OSCAR_DEVICE void oscar__cu_v_planes(unsigned word, unsigned *plane)
{
    if (OSCAR_V_BITS == 4) {
        plane[0] = word & 0x0f0f0f0fu;
        plane[1] = word >> 4 & 0x0f0f0f0fu;
    } else {
        unsigned half = word >> 4;
        plane[0] = word & 0x03030303u;
        plane[1] = OSCAR_FOLD ? word & 0x0c0c0c0cu : word >> 2 & 0x03030303u;
        plane[2] = half & 0x03030303u;
        plane[3] = OSCAR_FOLD ? half & 0x0c0c0c0cu : word >> 6 & 0x03030303u;
    }
}

/* Where sums start: UNBIASED codes lose their centre, 1.5 or 7.5 times the sum of A. */
OSCAR_DEVICE void oscar__cu_v_start(unsigned (*a)[4], unsigned *start)
{
    unsigned all = OSCAR_V_BITS == 2 ? 0x03030303u : 0x0f0f0f0fu;
    unsigned odd = OSCAR_V_BITS == 2 && OSCAR_FOLD ? 0x0c0c0c0cu : all;
    unsigned sum[4];
    sum[0] = sum[1] = sum[2] = sum[3] = 0u;
    start[0] = start[1] = 0x4f400000u;
    start[2] = start[3] = 0x4b400000u;
    if (OSCAR_V_CLIP) return;
    oscar__cu_mma_u8u8(sum, a[0], all, odd, sum);
    oscar__cu_mma_u8u8(sum, a[1], all, odd, sum);
    OSCAR_UNROLL
    for (int i = 0; i < 2; i++) {   /* both columns are equal; four values of their own stay in four registers */
        start[i] = 0x4f400000u - (sum[i] >> 1);
        start[2 + i] = 0x4b400000u - ((sum[i] & 1u) * 128u + (sum[2 + i] >> 1));
    }
}
)

OSCAR_CU(oscar__cu_text_value_codes,
/* Words of the lane's column of B: channels 32 i + 4 row .. + 3 of tile `column`, both lines of 4 bits. */
OSCAR_DEVICE void oscar__cu_v_words(oscar__cu_address stage, int i, uint4 *word)
{
    OSCAR_UNROLL
    for (int h = 0; h < OSCAR_V_BITS / 2; h++) {
        int line = OSCAR_V_BITS == 4 ? 2 * oscar__cu_column() : oscar__cu_column();
        int place = line * OSCAR_V_LINE + 16 * (oscar__cu_row() ^ (2 * oscar__cu_column()));
        word[h].x = word[h].y = word[h].z = word[h].w = 0u;
        if (OSCAR_DV % 32 == 0 || 32 * i + 4 * oscar__cu_row() < OSCAR_DV)
            word[h] = oscar__cu_load16(stage + place + OSCAR_STAGE_V + h * OSCAR_V_LINE + 128 * i);
    }
}

/* acc += share times P v of product (i, k) for the pairs of one tile. */
OSCAR_DEVICE void oscar__cu_v_product(unsigned (*a)[4], const unsigned *start, const uint4 *word, int k,
                                      float share, float *acc)
{
    unsigned plane[4];
    unsigned sum[4];
    plane[2] = plane[3] = 0u;
    oscar__cu_v_planes(oscar__cu_word_of(word[0], k), plane);
    oscar__cu_mma_u8u8(sum, a[0], plane[0], plane[1], start);
    if (OSCAR_V_BITS == 4) oscar__cu_v_planes(oscar__cu_word_of(word[OSCAR_V_BITS / 2 - 1], k), plane + 2);
    oscar__cu_mma_u8u8(sum, a[1], plane[2], plane[3], sum);
    float y0 = (__uint_as_float(sum[0]) - oscar__cu_both_starts()) + __uint_as_float(sum[2]);
    float y1 = (__uint_as_float(sum[1]) - oscar__cu_both_starts()) + __uint_as_float(sum[3]);
    acc[0] = fmaf(y0, share, acc[0]);
    acc[1] = fmaf(y1, share, acc[1]);
}

/* The channels of group g: all 32 channels of products (i, .) or the 16 of some columns. */
OSCAR_DEVICE int oscar__cu_v_in_group(int i, int g)
{
    if (OSCAR_V_GROUPS == 1 || OSCAR_V_GROUP % 32 == 0) return 1;
    return (32 * i + 8 * oscar__cu_column()) / OSCAR_V_GROUP == g;
}

/* acc += P v of a block. share: of each tile's P. low: sums of P times minima. */
OSCAR_DEVICE void oscar__cu_value_codes(oscar__cu_address stage, float (*p)[2], const float *share,
                                        float (*acc)[2], float *low)
{
    OSCAR_UNROLL
    for (int g = 0; g < OSCAR_V_GROUPS; g++) {
        unsigned a[2 * OSCAR_TILES][4];
        unsigned start[OSCAR_TILES][4];
        float part[OSCAR_TILES];
        float raise = OSCAR_V_GROUPS == 1 ? 0.0f : oscar__cu_raise(stage + OSCAR_STAGE_V_SCALE + 128 * g);
        OSCAR_UNROLL
        for (int t = 0; t < OSCAR_TILES; t++) {
            float below = oscar__cu_weights(stage, g, oscar__cu_exp2(raise), p + 8 * t, a + 2 * t);
            if (OSCAR_V_CLIP) low[t * OSCAR_V_GROUPS + g] = fmaf(below, share[t], low[t * OSCAR_V_GROUPS + g]);
            oscar__cu_v_start(a + 2 * t, start[t]);
            part[t] = OSCAR_V_GROUPS == 1 ? share[t] : share[t] * oscar__cu_exp2(-raise);
            if (OSCAR_FOLD && OSCAR_V_BITS == 2 && oscar__cu_half()) part[t] *= 0.25f;
        }
        OSCAR_UNROLL
        for (int i = g * OSCAR_V_GROUP / 32; i < ((g + 1) * OSCAR_V_GROUP + 31) / 32; i++) {
            uint4 word[OSCAR_V_BITS / 2];
            oscar__cu_v_words(stage, i, word);
            OSCAR_UNROLL
            for (int k = 0; k < 4 * OSCAR_TILES; k++)
                oscar__cu_v_product(a + k / 4 * 2, start[k / 4], word, k % 4,
                                    oscar__cu_v_in_group(i, g) ? part[k / 4] : 0.0f,
                                    acc[k / 4 * OSCAR_V_TILES + 4 * i + k % 4]);
        }
    }
}
)

OSCAR_CU(oscar__cu_text_score_rows,
OSCAR_DEVICE unsigned oscar__cu_row_index(const oscar__cu_rows *rows, int token)
{
    int u = rows->first + token;
    if (u >= rows->count) u = rows->count - 1;
    if (u < rows->sinks) return (unsigned)u;
    u = u - rows->sinks + rows->start;
    return (unsigned)(OSCAR_SINK + (u >= OSCAR_RING ? u - OSCAR_RING : u));
}

/* Eight channels of a row as 16-bit factors, two registers of B for each of two steps; of F32 rows in two limbs. */
OSCAR_DEVICE void oscar__cu_k_row(const unsigned char *row, int channel, uint4 *b)
{
    if (OSCAR_WINDOW_TYPE == 1) {
        const float *v = (const float *)(const void *)row + channel;
        float4 x = *(const float4 *)(const void *)v;
        float4 y = *(const float4 *)(const void *)(v + 4);
        b[0].x = oscar__cu_pack_two(x.x, x.y);
        b[0].y = oscar__cu_pack_two(x.z, x.w);
        b[0].z = oscar__cu_pack_two(y.x, y.y);
        b[0].w = oscar__cu_pack_two(y.z, y.w);
        b[1].x = oscar__cu_pack_rest(x.x, x.y, b[0].x);
        b[1].y = oscar__cu_pack_rest(x.z, x.w, b[0].y);
        b[1].z = oscar__cu_pack_rest(y.x, y.y, b[0].z);
        b[1].w = oscar__cu_pack_rest(y.z, y.w, b[0].w);
    } else b[0] = *(const uint4 *)(const void *)(row + 2 * channel);
}

/* Products of 64 rows, in the order of score_codes. */
OSCAR_DEVICE void oscar__cu_score_rows(const oscar__cu_rows *rows, const uint4 *fragments, float (*x)[2])
{
    float sum[8 * OSCAR_TILES][4];
    int row = oscar__cu_row();
    OSCAR_UNROLL
    for (int j = 0; j < 8 * OSCAR_TILES; j++) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.0f;
    OSCAR_NO_UNROLL
    for (int i = 0; i < OSCAR_R_STEPS / 2; i++) {
        int channel = 32 * i + 8 * oscar__cu_column();
        unsigned a[2 * OSCAR_TILES][4];
        OSCAR_UNROLL
        for (int s = 0; s < 2 * OSCAR_TILES; s++) {
            uint4 v = fragments[(s / 2 * OSCAR_R_STEPS + 2 * i + s % 2) * 32 + oscar__cu_lane()];
            a[s][0] = v.x;
            a[s][1] = v.y;
            a[s][2] = v.z;
            a[s][3] = v.w;
        }
        OSCAR_UNROLL
        for (int j = 0; j < 8; j++) {
            unsigned index = oscar__cu_row_index(rows, 16 * (row >> 1) + 8 * (j >> 2) + 4 * (row & 1) + (j & 3));
            uint4 b[2];
            b[0].x = b[0].y = b[0].z = b[0].w = 0u;
            b[1] = b[0];
            if (channel < OSCAR_DK) oscar__cu_k_row(rows->k + index * rows->k_stride, channel, b);
            OSCAR_UNROLL
            for (int s = 0; s < OSCAR_TILES * (OSCAR_WINDOW_TYPE == 1 ? 2 : 1); s++) {
                int t = s % OSCAR_TILES;
                oscar__cu_mma_rows(sum[8 * t + j], a[2 * t], b[s / OSCAR_TILES].x, b[s / OSCAR_TILES].y);
                oscar__cu_mma_rows(sum[8 * t + j], a[2 * t + 1], b[s / OSCAR_TILES].z, b[s / OSCAR_TILES].w);
            }
        }
    }
    OSCAR_UNROLL
    for (int j = 0; j < 8 * OSCAR_TILES; j++) {
        if (OSCAR_FOLD) {
            float other = __shfl_xor_sync(0xffffffffu, oscar__cu_half() ? sum[j][0] : sum[j][1], 16);
            x[j][0] = (oscar__cu_half() ? sum[j][1] : sum[j][0]) + other;
        } else {
            x[j][0] = sum[j][0] + sum[j][2];
            x[j][1] = sum[j][1] + sum[j][3];
        }
    }
}
)

OSCAR_CU(oscar__cu_text_value_rows,
/* A of P v for rows: step s has tokens 8 (s / 2) + 4 e + 2 (s % 2), + 1 in register e. */
OSCAR_DEVICE void oscar__cu_row_weights(float (*p)[2], unsigned (*a)[4])
{
    OSCAR_UNROLL
    for (int s = 0; s < 4; s++) {
        int j = 4 * (s >> 1) + 2 * (s & 1);
        unsigned first = oscar__cu_half() ? 0u : 0xffffffffu;
        unsigned high = oscar__cu_pack_two(p[j][0], p[j + 1][0]);
        unsigned low = oscar__cu_pack_rest(p[j][0], p[j + 1][0], high);
        if (OSCAR_FOLD) {
            a[s][0] = high & first;
            a[s][1] = low & first;
            a[s][2] = high & ~first;
            a[s][3] = low & ~first;
        } else {
            a[s][0] = high;
            a[s][1] = low;
            a[s][2] = oscar__cu_pack_two(p[j][1], p[j + 1][1]);
            a[s][3] = oscar__cu_pack_rest(p[j][1], p[j + 1][1], a[s][2]);
        }
    }
}

/* Channels channel .. + 3 of two rows as B registers of four products; of F32 rows in two limbs. */
OSCAR_DEVICE void oscar__cu_v_rows(const unsigned char *row, const unsigned char *next, int channel, unsigned (*b)[4])
{
    if (OSCAR_WINDOW_TYPE == 1) {
        float4 x = *(const float4 *)(const void *)(row + 4 * channel);
        float4 y = *(const float4 *)(const void *)(next + 4 * channel);
        b[0][0] = oscar__cu_pack_two(x.x, y.x);
        b[0][1] = oscar__cu_pack_two(x.y, y.y);
        b[0][2] = oscar__cu_pack_two(x.z, y.z);
        b[0][3] = oscar__cu_pack_two(x.w, y.w);
        b[1][0] = oscar__cu_pack_rest(x.x, y.x, b[0][0]);
        b[1][1] = oscar__cu_pack_rest(x.y, y.y, b[0][1]);
        b[1][2] = oscar__cu_pack_rest(x.z, y.z, b[0][2]);
        b[1][3] = oscar__cu_pack_rest(x.w, y.w, b[0][3]);
    } else {
        uint2 x = *(const uint2 *)(const void *)(row + 2 * channel);
        uint2 y = *(const uint2 *)(const void *)(next + 2 * channel);
        b[0][0] = oscar__cu_permute(x.x, y.x, 0x5410u);
        b[0][1] = oscar__cu_permute(x.x, y.x, 0x7632u);
        b[0][2] = oscar__cu_permute(x.y, y.y, 0x5410u);
        b[0][3] = oscar__cu_permute(x.y, y.y, 0x7632u);
    }
}

/* Adds the four products (i, .) of step s. */
OSCAR_DEVICE void oscar__cu_value_step(const oscar__cu_rows *rows, unsigned (*a)[4], int i, int s,
                                       float (*sum)[4])
{
    int channel = 32 * i + 4 * oscar__cu_row();
    int token = 16 * oscar__cu_column() + 8 * (s >> 1) + 2 * (s & 1);
    unsigned b[4][4];
    OSCAR_UNROLL
    for (int e = 0; e < 2; e++) {
        unsigned at = oscar__cu_row_index(rows, token + 4 * e);
        unsigned next = oscar__cu_row_index(rows, token + 4 * e + 1);
        OSCAR_UNROLL
        for (int k = 0; k < 4; k++) b[2 * e][k] = b[2 * e + 1][k] = 0u;
        if (channel < OSCAR_DV)
            oscar__cu_v_rows(rows->v + at * rows->v_stride, rows->v + next * rows->v_stride, channel, b + 2 * e);
    }
    OSCAR_UNROLL
    for (int k = 0; k < 4 * OSCAR_TILES; k++) {
        oscar__cu_mma_rows(sum[k], a[k / 4 * 4 + s], b[0][k % 4], b[2][k % 4]);
        if (OSCAR_WINDOW_TYPE == 1) {
            oscar__cu_mma_rows(sum[k], a[k / 4 * 4 + s], b[1][k % 4], b[3][k % 4]);
        }
    }
}

/* Products (i, .) of P v of 64 rows. */
OSCAR_DEVICE void oscar__cu_value_rows(const oscar__cu_rows *rows, unsigned (*a)[4], int i, float (*sum)[4])
{
    OSCAR_UNROLL
    for (int k = 0; k < 4 * OSCAR_TILES; k++) sum[k][0] = sum[k][1] = sum[k][2] = sum[k][3] = 0.0f;
    OSCAR_UNROLL
    for (int s = 0; s < 4; s++) oscar__cu_value_step(rows, a, i, s, sum);
}

/* acc += P v of 64 rows of a page; share: of each tile's P. */
OSCAR_DEVICE void oscar__cu_value_page_rows(const oscar__cu_rows *rows, float (*p)[2], const float *share,
                                            float (*acc)[2])
{
    unsigned a[4 * OSCAR_TILES][4];
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) oscar__cu_row_weights(p + 8 * t, a + 4 * t);
    OSCAR_UNROLL
    for (int i = 0; i < OSCAR_V_TILES / 4; i++) {
        float sum[4 * OSCAR_TILES][4];
        oscar__cu_value_rows(rows, a, i, sum);
        OSCAR_UNROLL
        for (int k = 0; k < 4 * OSCAR_TILES; k++) {
            float *to = acc[k / 4 * OSCAR_V_TILES + 4 * i + k % 4];
            to[0] = fmaf(sum[k][0] + sum[k][2], share[k / 4], to[0]);
            to[1] = fmaf(sum[k][1] + sum[k][3], share[k / 4], to[1]);
        }
    }
}

/* The same into shared memory, rows as of decode_store. */
OSCAR_DEVICE void oscar__cu_value_window_rows(const oscar__cu_rows *rows, float (*p)[2], float *out)
{
    unsigned a[4 * OSCAR_TILES][4];
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) oscar__cu_row_weights(p + 8 * t, a + 4 * t);
    OSCAR_NO_UNROLL
    for (int i = 0; i < OSCAR_V_TILES / 4; i++) {
        float sum[4 * OSCAR_TILES][4];
        oscar__cu_value_rows(rows, a, i, sum);
        OSCAR_UNROLL
        for (int k = 0; k < 4 * OSCAR_TILES; k++) {
            int channel = 32 * i + 8 * oscar__cu_column() + k % 4;
            float *to = out + (8 * (k / 4) + oscar__cu_row()) * (OSCAR_DV + 2) + channel;
            if (channel < OSCAR_DV) {
                to[0] = sum[k][0] + sum[k][2];
                to[4] = sum[k][1] + sum[k][3];
            }
        }
    }
}
)

OSCAR_CU(oscar__cu_text_windows,
/* The rows of an entry's windows that a step sees: tokens 0 .. sinks - 1, then those behind the history. */
OSCAR_DEVICE oscar__cu_rows oscar__cu_window_rows(const oscar_cu_entry *entry, int head, const unsigned char *window_k,
                                                  const unsigned char *window_v)
{
    oscar__cu_rows rows;
    long long end = entry->position + entry->rows - entry->unseen;
    long long slot = (long long)entry->slot * (OSCAR_SINK + OSCAR_RING) * OSCAR_KV_HEADS + head;
    int size = OSCAR_WINDOW_TYPE == 1 ? 4 : 2;
    rows.k_stride = (unsigned)(OSCAR_KV_HEADS * OSCAR_DK * size);
    rows.v_stride = (unsigned)(OSCAR_KV_HEADS * OSCAR_DV * size);
    rows.k = window_k + slot * OSCAR_DK * size;
    rows.v = window_v + slot * OSCAR_DV * size;
    rows.sinks = end < OSCAR_SINK ? (int)end : OSCAR_SINK;
    rows.count = rows.sinks + (end > OSCAR_SINK ? (int)(end - OSCAR_SINK - entry->history) : 0);
    rows.start = (int)(entry->history % OSCAR_RING);
    rows.first = 0;
    return rows;
}

/* Rows of a page's side of 16 bits. */
OSCAR_DEVICE oscar__cu_rows oscar__cu_page_rows(const unsigned char *pool, unsigned page, int block, int head)
{
    oscar__cu_rows rows;
    const unsigned char *part = pool + (long long)page * OSCAR_PAGE_BYTES + (long long)head * OSCAR_HEAD_BYTES;
    int size = OSCAR_WINDOW_TYPE == 1 ? 4 : 2;
    rows.k_stride = (unsigned)(OSCAR_DK * size);
    rows.v_stride = (unsigned)(OSCAR_DV * size);
    rows.k = part + 64 * block * OSCAR_DK * size;
    rows.v = part + OSCAR_V_CODES + 64 * block * OSCAR_DV * size;
    rows.sinks = rows.count = 64;
    rows.start = rows.first = 0;
    return rows;
}

/* Position of the query of pair `pair` of an entry. */
OSCAR_DEVICE long long oscar__cu_position(const oscar_cu_entry *entry, int pair)
{
    return entry->position + pair / OSCAR_GROUP;
}

/* Soft cap, causal mask and sliding window of rows. Returns the unit of x. */
OSCAR_DEVICE float oscar__cu_row_logits(const oscar_cu_entry *entry, const oscar__cu_rows *rows, long long position,
                                        float unit, float cap, float (*x)[2])
{
    OSCAR_UNROLL
    for (int j = 0; j < 8; j++) {
        OSCAR_UNROLL
        for (int e = 0; e < 2 - OSCAR_FOLD; e++) {
            int half = OSCAR_FOLD ? oscar__cu_half() : e;
            int u = rows->first + 16 * oscar__cu_column() + 8 * (j >> 2) + 4 * half + (j & 3);
            long long key = u < rows->sinks ? u : OSCAR_SINK + entry->history + (u - rows->sinks);
            if (OSCAR_SOFTCAP) x[j][e] = oscar__cu_cap(x[j][e] * unit, cap);
            if (u >= rows->count || key > position) x[j][e] = oscar__cu_nothing();
            if (OSCAR_SLIDING && key <= position - OSCAR_SLIDING) x[j][e] = oscar__cu_nothing();
        }
    }
    return OSCAR_SOFTCAP ? 1.0f : unit;
}
)

OSCAR_CU(oscar__cu_text_work,
/* What a block of the grid works on, and what a warp keeps of it. */
typedef struct oscar__cu_work {
    const oscar_cu_entry *entry;
    const unsigned *table;
    const unsigned char *pool;
    const uint4 *fragments;    /* of the rows' products */
    oscar__cu_query_at query;
    oscar__cu_address stage;    /* of this warp */
    int head;
    int first;                 /* pair of the entry that is pair 0 here */
    int begin;                 /* blocks of 64 tokens of the history: this split's */
    int end;
    float cap;
} oscar__cu_work;

OSCAR_DEVICE unsigned oscar__cu_page_of(const oscar__cu_work *w, int block)
{
    return block < w->end ? w->table[block / (OSCAR_PAGE / 64)] : 0u;
}

/* First token of the history that the pair sees. */
OSCAR_DEVICE int oscar__cu_visible(const oscar__cu_work *w, int pair)
{
    long long start = oscar__cu_position(w->entry, w->first + pair) - OSCAR_SLIDING + 1 - OSCAR_SINK;
    if (!OSCAR_SLIDING || start < 0) return 0;
    return start < w->entry->history ? (int)start : (int)w->entry->history;
}
)

OSCAR_CU(oscar__cu_text_block,
/* One block of 64 tokens that is in shared memory, and where a side has 16 bits, in the page. */
OSCAR_DEVICE void oscar__cu_take_block(const oscar__cu_work *w, int block, unsigned page, oscar__cu_address stage,
                                       unsigned (*q)[4], const oscar__cu_group *group, oscar__cu_pair *pair,
                                       float (*acc)[2], float *low)
{
    float x[8 * OSCAR_TILES][2];
    float share[OSCAR_TILES];
    float half[OSCAR_TILES];
    oscar__cu_rows rows = oscar__cu_page_rows(w->pool, page, block % (OSCAR_PAGE / 64), w->head);
    float raise = OSCAR_V_BITS < 16 && OSCAR_V_GROUPS == 1 ? oscar__cu_raise(stage + OSCAR_STAGE_V_SCALE) : 0.0f;
    if (OSCAR_K_BITS == 16) {
        oscar__cu_score_rows(&rows, w->fragments, x);
    } else {
        float scale = OSCAR_K_PAGE_MEAN ? oscar__cu_mean_scale(stage + OSCAR_STAGE_MEAN, w->head) : 0.0f;
        OSCAR_UNROLL
        for (int t = 0; t < OSCAR_TILES; t++) {
            half[t] = 0.0f;
            if (OSCAR_K_PAGE_MEAN)
                half[t] = oscar__cu_mean_product(stage + OSCAR_STAGE_MEAN, 0.5f * scale, &w->query,
                                                 q + t * OSCAR_K_STEPS, group + t * OSCAR_K_GROUPS);
        }
        if (oscar__cu_wide()) oscar__cu_score_wide(stage, &w->query, half[0], x);
        else oscar__cu_score_codes(stage, q, group, half, x);
    }
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) {
        int row = OSCAR_FOLD ? oscar__cu_row() & 3 : 8 * t + oscar__cu_row();
        float unit = OSCAR_K_BITS == 16 ? pair[t].row_scale : pair[t].scale;
        int before = OSCAR_SLIDING ? oscar__cu_visible(w, row) - 64 * block : 0;
        float common = OSCAR_K_PAGE_MEAN ? half[t] * unit : 0.0f;
        unit = oscar__cu_logits(x + 8 * t, unit, pair[t].offset + common, w->cap, before);
        share[t] = oscar__cu_weigh(x + 8 * t, unit, OSCAR_SOFTCAP ? 0.0f : common, raise, pair + t,
                                   acc + t * OSCAR_V_TILES, low + t * OSCAR_V_GROUPS);
    }
    if (OSCAR_V_BITS == 16) oscar__cu_value_page_rows(&rows, x, share, acc);
    else oscar__cu_value_codes(stage, x, share, acc, low);
}
)

OSCAR_CU(oscar__cu_text_walk,
/* A warp takes every OSCAR_WARPS-th block of the split, OSCAR_STAGES - 1 of them on their way while it works on one. */
OSCAR_DEVICE void oscar__cu_walk_history(const oscar__cu_work *w, unsigned (*q)[4], const oscar__cu_group *group,
                                         oscar__cu_pair *pair, float (*acc)[2], float *low)
{
    int block = w->begin + oscar__cu_warp();
    int at = 0;
    unsigned page = oscar__cu_page_of(w, block);
    OSCAR_UNROLL
    for (int s = 0; s < OSCAR_STAGES - 1; s++) {
        int next = block + OSCAR_WARPS * s;
        if (next < w->end)
            oscar__cu_copy_block(w->pool, oscar__cu_page_of(w, next), next % (OSCAR_PAGE / 64), w->head,
                                 w->stage + s * OSCAR_STAGE_BYTES);
        oscar__cu_copy_commit();
    }
    unsigned coming = oscar__cu_page_of(w, block + OSCAR_WARPS * (OSCAR_STAGES - 1));
    OSCAR_NO_UNROLL
    for (; block < w->end; block += OSCAR_WARPS) {
        int next = block + OSCAR_WARPS * (OSCAR_STAGES - 1);
        int free_stage = at ? at - 1 : OSCAR_STAGES - 1;
        oscar__cu_copy_wait(OSCAR_STAGES > 1 ? OSCAR_STAGES - 2 : 0);
        __syncwarp();
        if (next < w->end)
            oscar__cu_copy_block(w->pool, coming, next % (OSCAR_PAGE / 64), w->head,
                                 w->stage + free_stage * OSCAR_STAGE_BYTES);
        oscar__cu_copy_commit();
        if (OSCAR_STAGES == 1) {
            oscar__cu_copy_wait(0);
            __syncwarp();
        }
        coming = oscar__cu_page_of(w, next + OSCAR_WARPS);
        oscar__cu_take_block(w, block, page, w->stage + at * OSCAR_STAGE_BYTES, q, group, pair, acc, low);
        if (OSCAR_K_BITS == 16 || OSCAR_V_BITS == 16) page = oscar__cu_page_of(w, block + OSCAR_WARPS);
        at = at + 1 == OSCAR_STAGES ? 0 : at + 1;
    }
    oscar__cu_copy_wait(0);
}

/* Each warp of the window splits takes one block of 64 rows of the windows, straight into its rows of shared memory. */
OSCAR_DEVICE void oscar__cu_take_window(const oscar__cu_work *w, oscar__cu_rows rows, int split, oscar__cu_pair *pair,
                                        float *out)
{
    float x[8 * OSCAR_TILES][2];
    int there = 64 * (OSCAR_WARPS * split + oscar__cu_warp()) < rows.count;
    rows.first = 64 * (OSCAR_WARPS * split + oscar__cu_warp());
    if (there) oscar__cu_score_rows(&rows, w->fragments, x);
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) {
        int row = OSCAR_FOLD ? oscar__cu_row() & 3 : 8 * t + oscar__cu_row();
        long long position = oscar__cu_position(w->entry, w->first + row);
        if (there) {
            float unit = oscar__cu_row_logits(w->entry, &rows, position, pair[t].row_scale, w->cap, x + 8 * t);
            oscar__cu_weigh_once(x + 8 * t, unit, pair + t);
        }
        oscar__cu_store_sums(pair + t, out + (8 * t + oscar__cu_row()) * (OSCAR_DV + 2) + OSCAR_DV);
    }
    if (there) oscar__cu_value_window_rows(&rows, x, out);
}
)

OSCAR_CU(oscar__cu_text_decode_ends,
/* Fragments and words of the row block into registers. */
OSCAR_DEVICE void oscar__cu_decode_begin(const uint4 *fragments, const unsigned *sums, unsigned (*q)[4],
                                         oscar__cu_group *group, oscar__cu_pair *pair, float (*acc)[2], float *low)
{
    OSCAR_UNROLL
    for (int s = 0; OSCAR_K_BITS < 16 && !oscar__cu_wide() && s < OSCAR_TILES * OSCAR_K_STEPS; s++) {
        uint4 v = fragments[32 * s + oscar__cu_lane()];
        q[s][0] = v.x;
        q[s][1] = v.y;
        q[s][2] = v.z;
        q[s][3] = v.w;
    }
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) {
        int row = OSCAR_FOLD ? oscar__cu_row() & 3 : 8 * t + oscar__cu_row();
        const unsigned *words = sums + row * OSCAR_SUMS;
        pair[t].scale = OSCAR_K_BITS < 16 ? __uint_as_float(words[0]) : 0.0f;
        pair[t].offset = OSCAR_K_BITS < 16 ? __uint_as_float(words[1]) : 0.0f;
        pair[t].row_scale = __uint_as_float(words[2]);
        pair[t].top = oscar__cu_nothing();
        pair[t].sum = 0.0f;
        OSCAR_UNROLL
        for (int g = 0; OSCAR_K_BITS < 16 && !oscar__cu_wide() && g < OSCAR_K_GROUPS; g++)
            group[t * OSCAR_K_GROUPS + g] = oscar__cu_group_of(words, g);
    }
    OSCAR_UNROLL
    for (int i = 0; i < OSCAR_TILES * OSCAR_V_TILES; i++) acc[i][0] = acc[i][1] = 0.0f;
    OSCAR_UNROLL
    for (int g = 0; g < OSCAR_TILES * OSCAR_V_GROUPS; g++) low[g] = 0.0f;
}

/* A warp's sums into its rows [8 tiles][OSCAR_DV + 2] of shared memory: o, reference, sum. */
OSCAR_DEVICE void oscar__cu_decode_store(const oscar__cu_pair *pair, float (*acc)[2], float *low, float *rows)
{
    OSCAR_UNROLL
    for (int t = 0; t < OSCAR_TILES; t++) {
        float *to = rows + (8 * t + oscar__cu_row()) * (OSCAR_DV + 2);
        OSCAR_UNROLL
        for (int g = 0; OSCAR_V_CLIP && g < OSCAR_V_GROUPS; g++)
            low[t * OSCAR_V_GROUPS + g] = oscar__cu_quad_sum(low[t * OSCAR_V_GROUPS + g]);
        OSCAR_UNROLL
        for (int m = 0; m < OSCAR_V_TILES; m++) {
            int channel = 32 * (m >> 2) + 8 * oscar__cu_column() + (m & 3);
            if (channel >= OSCAR_DV) continue;
            float below = OSCAR_V_CLIP ? low[t * OSCAR_V_GROUPS + channel / OSCAR_V_GROUP] : 0.0f;
            to[channel] = acc[t * OSCAR_V_TILES + m][0] + below;
            to[channel + 4] = acc[t * OSCAR_V_TILES + m][1] + below;
        }
        oscar__cu_store_sums(pair + t, to + OSCAR_DV);
    }
}

/* Joins the rows of a pair: of each warp one, or two that shared the tokens. */
OSCAR_DEVICE void oscar__cu_decode_join(const float *rows, int pair, int channel, float offset, float *o, float *lse)
{
    float top = oscar__cu_nothing();
    float sum = 0.0f;
    float value = 0.0f;
    OSCAR_UNROLL
    for (int r = 0; r < OSCAR_WARPS * (1 + OSCAR_FOLD); r++) {
        const float *row = rows + (r * (OSCAR_FOLD ? 4 : 8 * OSCAR_TILES) + pair) * (OSCAR_DV + 2);
        top = fmaxf(top, row[OSCAR_DV]);
    }
    OSCAR_UNROLL
    for (int r = 0; r < OSCAR_WARPS * (1 + OSCAR_FOLD); r++) {
        const float *row = rows + (r * (OSCAR_FOLD ? 4 : 8 * OSCAR_TILES) + pair) * (OSCAR_DV + 2);
        if (!(row[OSCAR_DV + 1] > 0.0f)) continue;
        float factor = oscar__cu_exp2(row[OSCAR_DV] - top);
        value = fmaf(row[channel], factor, value);
        sum = fmaf(row[OSCAR_DV + 1], factor, sum);
    }
    o[channel] = sum > 0.0f ? value / sum : 0.0f;
    if (channel == 0) *lse = sum > 0.0f ? top + oscar__cu_log2(sum) + offset : oscar__cu_nothing();
}
)

OSCAR_CU(oscar__cu_text_decode_finish,
/* This warp's rows of shared memory. What follows the loops asks again for its thread and block: else registers would
   hold addresses over the loops. */
OSCAR_DEVICE float *oscar__cu_warp_rows(float *rows)
{
    return rows + (oscar__cu_again(0) >> 5) * (8 * OSCAR_TILES * (OSCAR_DV + 2));
}

OSCAR_DEVICE void oscar__cu_decode_finish(const oscar_cu_entry *entries, int row_blocks, const unsigned *sums,
                                          int window_splits, const float *rows, float *part_o, float *part_lse)
{
    unsigned z = oscar__cu_again(2);
    int head = (int)oscar__cu_again(1);
    int split = (int)blockIdx.x;
    const oscar_cu_entry *entry = entries + z / (unsigned)row_blocks;
    int first = (int)(z % (unsigned)row_blocks) * OSCAR_PAIRS;
    int count = entry->rows * OSCAR_GROUP - first;
    count = count < OSCAR_PAIRS ? count : OSCAR_PAIRS;
    OSCAR_NO_UNROLL
    for (int i = (int)oscar__cu_again(0); i < count * OSCAR_DV; i += 32 * OSCAR_WARPS) {
        int pair = i / OSCAR_DV;
        int row = entry->row + (first + pair) / OSCAR_GROUP;
        long long at = ((long long)row * OSCAR_KV_HEADS + head) * OSCAR_GROUP + (first + pair) % OSCAR_GROUP;
        float offset = 0.0f;
        if (split < (int)gridDim.x - window_splits && OSCAR_K_BITS < 16 && !OSCAR_SOFTCAP)
            offset = __uint_as_float(sums[(((long long)z * OSCAR_KV_HEADS + head) * OSCAR_PAIRS + pair) * OSCAR_SUMS
                                          + 1]);
        at = at * gridDim.x + split;
        oscar__cu_decode_join(rows, pair, i % OSCAR_DV, offset, part_o + at * OSCAR_DV, part_lse + at);
    }
}
)

OSCAR_CU(oscar__cu_text_decode,
/* Grid (splits, KV heads, entries * row_blocks), 32 OSCAR_WARPS threads; the last window_splits splits take the
   windows, 64 rows a warp, so there must be enough of them. Each split of each (row, query head) gets a
   normalised o [OSCAR_DV] and its log-sum-exp in log2 units; where it has no token, o = 0 and -inf.
   part_o: [row][query head][split][OSCAR_DV], part_lse: [row][query head][split]. */
OSCAR_KERNEL(32 * OSCAR_WARPS, OSCAR_BLOCKS)
oscar_cu_decode(const oscar_cu_entry *entries, int row_blocks, const unsigned *tables, const unsigned char *pool,
                const unsigned char *window_k, const unsigned char *window_v, const uint4 *fragments,
                const unsigned *sums, float cap, int window_splits, float *part_o, float *part_lse)
{
    OSCAR_DYNAMIC(unsigned char, oscar_decode_memory);
    unsigned q[OSCAR_TILES * OSCAR_K_STEPS][4];
    oscar__cu_group group[OSCAR_TILES * OSCAR_K_GROUPS];
    oscar__cu_pair pair[OSCAR_TILES];
    float acc[OSCAR_TILES * OSCAR_V_TILES][2];
    float low[OSCAR_TILES * OSCAR_V_GROUPS];
    long long place = (long long)blockIdx.z * OSCAR_KV_HEADS + blockIdx.y;
    int splits = (int)gridDim.x - window_splits;
    int split = (int)blockIdx.x;
    float *rows = (float *)(void *)oscar_decode_memory;
    oscar__cu_work w;
    w.entry = entries + blockIdx.z / (unsigned)row_blocks;
    w.table = tables + w.entry->table;
    w.pool = pool;
    w.query.fragments = fragments + place * OSCAR_FRAGMENTS * 32;
    w.query.words = sums + (place * OSCAR_PAIRS + (OSCAR_FOLD ? oscar__cu_row() & 3 : oscar__cu_row())) * OSCAR_SUMS;
    w.fragments = w.query.fragments + OSCAR_TILES * OSCAR_K_STEPS * 32;
    w.stage = oscar__cu_shared_at(oscar_decode_memory) + oscar__cu_warp() * (OSCAR_STAGES * OSCAR_STAGE_BYTES);
    w.head = (int)blockIdx.y;
    w.first = (int)(blockIdx.z % (unsigned)row_blocks) * OSCAR_PAIRS;
    w.cap = cap;
    if (w.entry->rows * OSCAR_GROUP <= w.first) return;
    oscar__cu_decode_begin(fragments + place * OSCAR_FRAGMENTS * 32, sums + place * OSCAR_PAIRS * OSCAR_SUMS, q, group,
                           pair, acc, low);
    if (split < splits) {
        int before = oscar__cu_visible(&w, 0) / 64;
        int blocks = (int)(w.entry->history / 64) - before;
        int each = (blocks + splits - 1) / splits;
        w.begin = before + split * each;
        w.end = split * each + each < blocks ? w.begin + each : before + blocks;
        oscar__cu_walk_history(&w, q, group, pair, acc, low);
        __syncthreads();
        oscar__cu_decode_store(pair, acc, low, oscar__cu_warp_rows(rows));
    } else {
        oscar__cu_rows window = oscar__cu_window_rows(w.entry, w.head, window_k, window_v);
        oscar__cu_take_window(&w, window, split - splits, pair, oscar__cu_warp_rows(rows));
    }
    __syncthreads();
    oscar__cu_decode_finish(entries, row_blocks, sums, window_splits, rows, part_o, part_lse);
}
)

/* == 3.10 MERGE == */

OSCAR_CU(oscar__cu_text_merge_parts,
/* Weights of splits first .. first + count - 1 of one (row, query head), normalised among themselves. Returns their
   log-sum-exp, -inf if there is none. One warp. */
OSCAR_DEVICE float oscar__cu_merge_weights(const float *part_lse, int first, int count, float *weight)
{
    float top = oscar__cu_nothing();
    float sum = 0.0f;
    for (int s = oscar__cu_lane(); s < count; s += 32) top = fmaxf(top, part_lse[first + s]);
    OSCAR_UNROLL
    for (int m = 16; m > 0; m >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, top, m);
        top = fmaxf(top, other);
    }
    for (int s = oscar__cu_lane(); s < count; s += 32) {
        float lse = part_lse[first + s];
        weight[first + s] = lse > oscar__cu_nothing() ? oscar__cu_exp2(lse - top) : 0.0f;
        sum += weight[first + s];
    }
    sum = oscar__cu_warp_sum(sum);
    for (int s = oscar__cu_lane(); s < count; s += 32) weight[first + s] *= sum > 0.0f ? 1.0f / sum : 0.0f;
    return sum > 0.0f ? top + oscar__cu_log2(sum) : oscar__cu_nothing();
}

/* Weights of a (row, query head): of the history among its splits, of the windows' splits in the whole; share: of the
   history in the whole. The sink logit is natural. Returns the natural log-sum-exp. One warp. */
OSCAR_DEVICE float oscar__cu_merge_head(const float *part_lse, int splits, int window_splits, const float *sink_logit,
                                        float *weight, float *share)
{
    float history = oscar__cu_merge_weights(part_lse, 0, splits, weight);
    float windows = oscar__cu_merge_weights(part_lse, splits, window_splits, weight);
    float sink = sink_logit ? *sink_logit * 1.44269504f : oscar__cu_nothing();
    float top = fmaxf(fmaxf(history, windows), sink);
    if (!(top > oscar__cu_nothing())) {
        if (oscar__cu_lane() == 0) *share = 0.0f;
        return top;
    }
    float a = oscar__cu_exp2(history - top);
    float b = oscar__cu_exp2(windows - top);
    float sum = a + b + oscar__cu_exp2(sink - top);
    for (int s = splits + oscar__cu_lane(); s < splits + window_splits; s += 32) weight[s] *= b / sum;
    if (oscar__cu_lane() == 0) *share = a / sum;
    return (top + oscar__cu_log2(sum)) * 0.693147181f;
}

/* Channel c of the sum over splits; parts without weight are not read. */
OSCAR_DEVICE float oscar__cu_merge_sum(const float *part_o, const float *weight, int first, int count, int c)
{
    float sum = 0.0f;
    for (int s = first; s < first + count; s++)
        if (weight[s] > 0.0f) sum = fmaf(weight[s], part_o[(long long)s * OSCAR_DV + c], sum);
    return sum;
}

/* out = o B^T for `heads` rows: four at a time share the loads of B. */
OSCAR_DEVICE void oscar__cu_merge_dense(int heads, const float *dual, const float *o, float *out)
{
    int parts = oscar__cu_parts(OSCAR_DV);
    int part = parts == 1 ? 0 : (int)threadIdx.x / OSCAR_DV;
    int length = (OSCAR_DV / 4 + parts - 1) / parts * 4;
    int end = (part + 1) * length < OSCAR_DV ? (part + 1) * length : OSCAR_DV;
    OSCAR_NO_UNROLL
    for (int item = 0; item < OSCAR_DV * ((heads + 3) / 4); item += parts == 1 ? (int)blockDim.x : OSCAR_DV) {
        int place = item + (parts == 1 ? (int)threadIdx.x : (int)threadIdx.x % OSCAR_DV);
        int i = place % OSCAR_DV;
        int head = place / OSCAR_DV * 4;
        float sum[4];
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        for (int j = part * length; j < end && part < parts && head < heads; j += 4) {
            float4 b = *(const float4 *)(const void *)(dual + (long long)i * OSCAR_DV + j);
            OSCAR_UNROLL
            for (int x = 0; x < 4; x++) {
                const float *v = o + (head + x < heads ? head + x : head) * OSCAR_DV + j;
                sum[x] = fmaf(v[3], b.w, fmaf(v[2], b.z, fmaf(v[1], b.y, fmaf(v[0], b.x, sum[x]))));
            }
        }
        OSCAR_NO_UNROLL
        for (int turn = 0; turn < parts; turn++) {
            if (part == turn && head < heads)
                for (int x = 0; x < 4 && head + x < heads; x++)
                    out[(head + x) * OSCAR_DV + i] = (turn ? out[(head + x) * OSCAR_DV + i] : 0.0f) + sum[x];
            __syncthreads();
        }
    }
}
)

OSCAR_CU(oscar__cu_text_merge,
/* The entry that has a row, or -1: then o = 0, lse = -inf. */
OSCAR_DEVICE int oscar__cu_merge_entry(const oscar_cu_entry *entries, int count, int row)
{
    OSCAR_SHARED(int, found, 1);
    if (threadIdx.x == 0) found[0] = -1;
    __syncthreads();
    for (int e = (int)threadIdx.x; e < count; e += (int)blockDim.x)
        if (row >= entries[e].row && row < entries[e].row + entries[e].rows) found[0] = e;
    __syncthreads();
    return found[0];
}

/* Grid (rows of the step, KV heads, blocks of OSCAR_MERGE_HEADS query heads), 256 threads. dual: B of V of each KV
   head, NULL where there is none; sink_logits [query heads] or NULL. o [row][query head][OSCAR_DV] in the row type with
   strides in values; lse, which may be NULL: [row][query head], natural. */
OSCAR_KERNEL(256, 1)
oscar_cu_merge(const oscar_cu_entry *entries, int entry_count, int splits, int window_splits, const float *part_o,
               const float *part_lse, const float *dual, const float *sink_logits, void *o, long long token_stride,
               long long head_stride, float *lse)
{
    OSCAR_DYNAMIC(float, oscar_merge_memory);
    int row = (int)blockIdx.x;
    int before = (int)blockIdx.z * OSCAR_MERGE_HEADS;
    int heads = OSCAR_GROUP - before < OSCAR_MERGE_HEADS ? OSCAR_GROUP - before : OSCAR_MERGE_HEADS;
    int first = (int)blockIdx.y * OSCAR_GROUP + before;
    int all = splits + window_splits;
    long long place = (long long)row * OSCAR_KV_HEADS * OSCAR_GROUP + first;
    float *history = oscar_merge_memory;
    float *turned = history + heads * OSCAR_DV;
    float *weight = turned + heads * OSCAR_DV;
    float *share = weight + heads * all;
    int entry = oscar__cu_merge_entry(entries, entry_count, row);
    for (int x = oscar__cu_warp(); x < heads; x += (int)blockDim.x / 32) {
        float total = oscar__cu_nothing();
        if (entry >= 0)
            total = oscar__cu_merge_head(part_lse + (place + x) * all, splits, window_splits,
                                         sink_logits ? sink_logits + first + x : sink_logits, weight + x * all,
                                         share + x);
        if (lse && oscar__cu_lane() == 0) lse[place + x] = total;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < heads * OSCAR_DV; i += (int)blockDim.x) {
        int x = i / OSCAR_DV;
        history[i] = 0.0f;
        if (entry >= 0)
            history[i] = oscar__cu_merge_sum(part_o + (place + x) * all * OSCAR_DV, weight + x * all, 0, splits,
                                             i % OSCAR_DV);
    }
    __syncthreads();
    if (OSCAR_V_BITS < 16 && OSCAR_V_KIND == 0)
        oscar__cu_butterfly_rows(heads, OSCAR_DV, oscar__cu_fwht_scale(OSCAR_DV), history);
    if (OSCAR_V_BITS < 16 && OSCAR_V_KIND == 2) {
        oscar__cu_merge_dense(heads, dual + (long long)blockIdx.y * OSCAR_DV * OSCAR_DV, history, turned);
        history = turned;
    }
    for (int i = (int)threadIdx.x; i < heads * OSCAR_DV; i += (int)blockDim.x) {
        int x = i / OSCAR_DV;
        int c = i % OSCAR_DV;
        float value = 0.0f;
        if (entry >= 0)
            value = fmaf(share[x], history[i],
                         oscar__cu_merge_sum(part_o + (place + x) * all * OSCAR_DV, weight + x * all, splits,
                                             window_splits, c));
        oscar__cu_value_put(OSCAR_ROW_TYPE, o, row * token_stride + (first + x) * head_stride + c, value);
    }
}
)

/* == 3.11 CHECK == */

OSCAR_CU(oscar__cu_text_check_constants,
/* What a kernel was compiled for, to be compared with what the host knows. */
OSCAR_DEVICE unsigned oscar__cu_constant(unsigned i)
{
    if (i == 0) return (unsigned)OSCAR_PAGE_BYTES;
    if (i == 1) return (unsigned)OSCAR_HEAD_BYTES;
    if (i == 2) return (unsigned)OSCAR_RING;
    if (i == 3) return (unsigned)OSCAR_SM;
    return i;
}
)

OSCAR_CU(oscar__cu_text_check,
/* Shows that launches work. out: [32] */
OSCAR_KERNEL(32, 1)
oscar_cu_check(unsigned *out)
{
    unsigned lane = threadIdx.x;
    out[lane] = oscar__cu_constant(lane);
}
)

/* The chunks in order. */
#if !defined(OSCAR_CUDA_HOST_KERNELS)
static const char *const oscar__cu_chunks[] = {
    oscar__cu_prelude_clang, oscar__cu_prelude, oscar__cu_prelude_80, oscar__cu_prelude_75, oscar__cu_text_types,
    oscar__cu_text_numbers,
    oscar__cu_text_pack, oscar__cu_text_lanes, oscar__cu_text_half_warps, oscar__cu_text_mma_rows,
    oscar__cu_text_strip, oscar__cu_text_product, oscar__cu_text_side, oscar__cu_text_unbiased, oscar__cu_text_clip,
    oscar__cu_text_refine, oscar__cu_text_refine_rows, oscar__cu_text_encode, oscar__cu_text_query_turn,
    oscar__cu_text_query_limbs, oscar__cu_text_query_fragments, oscar__cu_text_query, oscar__cu_text_rows,
    oscar__cu_text_mean, oscar__cu_text_words, oscar__cu_text_write, oscar__cu_text_write_kernel, oscar__cu_text_read,
    oscar__cu_text_read_side, oscar__cu_text_read_kernel, oscar__cu_text_decode_types, oscar__cu_text_copy,
    oscar__cu_text_score, oscar__cu_text_score_codes, oscar__cu_text_score_wide, oscar__cu_text_page_mean,
    oscar__cu_text_softmax, oscar__cu_text_value, oscar__cu_text_value_codes, oscar__cu_text_score_rows,
    oscar__cu_text_value_rows, oscar__cu_text_windows, oscar__cu_text_work, oscar__cu_text_block,
    oscar__cu_text_walk, oscar__cu_text_decode_ends,
    oscar__cu_text_decode_finish, oscar__cu_text_decode, oscar__cu_text_merge_parts, oscar__cu_text_merge,
    oscar__cu_text_check_constants, oscar__cu_text_check
};
#endif

#endif /* OSCAR_IMPLEMENTATION or OSCAR_CUDA_HOST_KERNELS */

/* ==================================================================================================================
   == 4 IMPLEMENTATION
   ================================================================================================================== */
#if defined(OSCAR_IMPLEMENTATION) && !defined(OSCAR_CUDA_HOST_KERNELS) && !defined(OSCAR__CUDA_IMPLEMENTED)
#define OSCAR__CUDA_IMPLEMENTED

#include <stdlib.h>
#if defined(_WIN32)
#  if !defined(WIN32_LEAN_AND_MEAN)
#    define WIN32_LEAN_AND_MEAN
#  endif
#  if !defined(NOMINMAX)
#    define NOMINMAX
#  endif
#  include <windows.h>
#  define OSCAR__CU_CALL __stdcall
#else
#  include <dlfcn.h>
#  include <unistd.h>
#  define OSCAR__CU_CALL
#endif

/* == 4.1 DRIVER AND NVRTC, OWN TYPES == */

/* Calls of the driver: field, name, version suffix, whether it is needed, arguments. Names and suffixes are those of
   CUDA 11.0; objects are void pointers, device memory is a 64-bit number, results are int with 0 for success. */
#define OSCAR__CU_DRIVER(X) \
    X(init, "cuInit", "", 1, (unsigned flags)) \
    X(driver_version, "cuDriverGetVersion", "", 1, (int *version)) \
    X(error_name, "cuGetErrorName", "", 1, (int code, const char **name)) \
    X(error_text, "cuGetErrorString", "", 1, (int code, const char **text)) \
    X(device_count, "cuDeviceGetCount", "", 1, (int *count)) \
    X(device_get, "cuDeviceGet", "", 1, (int *device, int ordinal)) \
    X(device_name, "cuDeviceGetName", "", 1, (char *name, int capacity, int device)) \
    X(device_memory, "cuDeviceTotalMem", "_v2", 1, (size_t *bytes, int device)) \
    X(device_attribute, "cuDeviceGetAttribute", "", 1, (int *value, int attribute, int device)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", "", 1, (void **context, int device)) \
    X(primary_release, "cuDevicePrimaryCtxRelease", "_v2", 1, (int device)) \
    X(context_current, "cuCtxGetCurrent", "", 1, (void **context)) \
    X(context_device, "cuCtxGetDevice", "", 1, (int *device)) \
    X(context_push, "cuCtxPushCurrent", "_v2", 1, (void *context)) \
    X(context_pop, "cuCtxPopCurrent", "_v2", 1, (void **context)) \
    X(module_load, "cuModuleLoadData", "", 1, (void **module, const void *image)) \
    X(module_unload, "cuModuleUnload", "", 1, (void *module)) \
    X(module_function, "cuModuleGetFunction", "", 1, (void **function, void *module, const char *name)) \
    X(function_get, "cuFuncGetAttribute", "", 1, (int *value, int attribute, void *function)) \
    X(function_set, "cuFuncSetAttribute", "", 1, (void *function, int attribute, int value)) \
    X(launch, "cuLaunchKernel", "", 1, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, \
      void **extra)) \
    X(mem_alloc, "cuMemAlloc", "_v2", 1, (uint64_t *memory, size_t bytes)) \
    X(mem_free, "cuMemFree", "_v2", 1, (uint64_t memory)) \
    X(copy_in, "cuMemcpyHtoDAsync", "_v2", 1, (uint64_t to, const void *from, size_t bytes, void *stream)) \
    X(copy_out, "cuMemcpyDtoHAsync", "_v2", 1, (void *to, uint64_t from, size_t bytes, void *stream)) \
    X(mem_set, "cuMemsetD8Async", "", 1, (uint64_t to, unsigned char value, size_t bytes, void *stream)) \
    X(stream_create, "cuStreamCreate", "", 1, (void **stream, unsigned flags)) \
    X(stream_destroy, "cuStreamDestroy", "_v2", 1, (void *stream)) \
    X(stream_wait, "cuStreamSynchronize", "", 1, (void *stream)) \
    X(stream_context, "cuStreamGetCtx", "", 0, (void *stream, void **context)) \
    X(stream_capturing, "cuStreamIsCapturing", "", 0, (void *stream, int *status)) \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", "", 0, (int *mode)) \
    X(function_load, "cuFuncLoad", "", 0, (void *function)) \
    X(copy_over, "cuMemcpyDtoDAsync", "_v2", 0, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(host_alloc, "cuMemHostAlloc", "", 0, (void **memory, size_t bytes, unsigned flags)) \
    X(host_free, "cuMemFreeHost", "", 0, (void *memory)) \
    X(event_create, "cuEventCreate", "", 0, (void **event, unsigned flags)) \
    X(event_destroy, "cuEventDestroy", "_v2", 0, (void *event)) \
    X(event_record, "cuEventRecord", "", 0, (void *event, void *stream)) \
    X(event_query, "cuEventQuery", "", 0, (void *event)) \
    X(event_wait, "cuEventSynchronize", "", 0, (void *event))

/* Calls of NVRTC: field, name, whether it is needed, arguments. Supported architectures came with 11.2, cubins with
   11.1. */
#define OSCAR__CU_NVRTC(X) \
    X(get_version, "nvrtcVersion", 1, (int *major, int *minor)) \
    X(get_arch_count, "nvrtcGetNumSupportedArchs", 0, (int *count)) \
    X(get_archs, "nvrtcGetSupportedArchs", 0, (int *archs)) \
    X(create, "nvrtcCreateProgram", 1, (void **program, const char *text, const char *name, int header_count, \
      const char *const *headers, const char *const *names)) \
    X(destroy, "nvrtcDestroyProgram", 1, (void **program)) \
    X(compile, "nvrtcCompileProgram", 1, (void *program, int option_count, const char *const *options)) \
    X(ptx_size, "nvrtcGetPTXSize", 1, (void *program, size_t *bytes)) \
    X(ptx, "nvrtcGetPTX", 1, (void *program, char *out)) \
    X(cubin_size, "nvrtcGetCUBINSize", 0, (void *program, size_t *bytes)) \
    X(cubin, "nvrtcGetCUBIN", 0, (void *program, char *out)) \
    X(log_size, "nvrtcGetProgramLogSize", 1, (void *program, size_t *bytes)) \
    X(log, "nvrtcGetProgramLog", 1, (void *program, char *out))

/* Codes and attributes of the driver that are told apart here. */
enum {
    OSCAR__CU_NO_MEMORY = 2, OSCAR__CU_STUB = 34, OSCAR__CU_NO_DEVICE = 100, OSCAR__CU_NOT_FOUND = 500,
    OSCAR__CU_CLOCK = 13, OSCAR__CU_MULTIPROCESSORS = 16, OSCAR__CU_MEMORY_CLOCK = 36, OSCAR__CU_MEMORY_BUS = 37,
    OSCAR__CU_L2 = 38, OSCAR__CU_MAJOR = 75, OSCAR__CU_MINOR = 76, OSCAR__CU_SHARED_ALL = 81,   /* of a device */
    OSCAR__CU_SHARED_MOST = 97,
    OSCAR__CU_SHARED_STATIC = 1, OSCAR__CU_SHARED_DYNAMIC = 8,                                    /* of a function */
    OSCAR__CU_SHARED_FREE = 48 * 1024,   /* shared memory that a block may have without being allowed it */
    OSCAR__CU_SM_LEAST = 75, OSCAR__CU_DRIVER_LEAST = 11000, OSCAR__CU_ARCHS = 64,
    OSCAR__CU_NVRTC_BUILTINS = 7         /* NVRTC_ERROR_BUILTIN_OPERATION_FAILURE */
};

/* The loaded driver; library NULL: none. */
typedef struct oscar__cu_driver {
    void *library;
    char path[OSCAR_CUDA_PATH_BYTES];
    int version;
#define OSCAR__CU_FIELD(field, name, suffix, need, arguments) int (OSCAR__CU_CALL *field) arguments;
    OSCAR__CU_DRIVER(OSCAR__CU_FIELD)
#undef OSCAR__CU_FIELD
} oscar__cu_driver;

/* The loaded NVRTC. archs: those it compiles for, ascending. builtins: its second library was found beside it. */
typedef struct oscar__cu_nvrtc {
    void *library;
    char path[OSCAR_CUDA_PATH_BYTES];
    int version, builtins, arch_count;
    int archs[OSCAR__CU_ARCHS];
#define OSCAR__CU_FIELD(field, name, need, arguments) int (*field) arguments;
    OSCAR__CU_NVRTC(OSCAR__CU_FIELD)
#undef OSCAR__CU_FIELD
} oscar__cu_nvrtc;

/* Bytes with a 0 behind them, from the hooks. */
typedef struct oscar__cu_buffer { unsigned char *data; size_t size; } oscar__cu_buffer;

static int oscar__cu_buffer_get(const oscar_hooks *hooks, size_t size, oscar__cu_buffer *out)
{
    out->size = size;
    out->data = size < OSCAR__SIZE_MAX / 2 ? (unsigned char *)oscar__alloc(hooks, size + 1) : NULL;
    if (out->data) out->data[size] = 0;
    return out->data != NULL;
}

static void oscar__cu_buffer_free(const oscar_hooks *hooks, oscar__cu_buffer *buffer)
{
    if (buffer->data) oscar__free(hooks, buffer->data, buffer->size + 1);
    buffer->data = NULL;
    buffer->size = 0;
}

static void oscar__cu_copy_string(char *out, size_t capacity, const char *from)
{
    oscar__text t = { NULL, 0, 0 };
    t.out = out;
    t.capacity = capacity;
    out[0] = 0;
    if (from) oscar__put_string(&t, from);
}

/* What a code of the driver means here; its sentence goes to the log. */
static oscar_result oscar__cu_result(const oscar_hooks *hooks, const oscar__cu_driver *d, int code, const char *call,
                                     int line)
{
    const char *name = NULL, *text = NULL;
    oscar_result result = code == OSCAR__CU_NO_MEMORY ? OSCAR_ERR_MEMORY : OSCAR_ERR_CUDA;
    if (!code) return OSCAR_OK;
    if (d->error_name(code, &name) || !name) name = "unknown";
    if (d->error_text(code, &text) || !text) text = "no text";
    return oscar__log(hooks, OSCAR_LOG_ERROR, result, line, "%s failed: %s (%i), %s", call, name, code, text);
}
#define OSCAR__CU(hooks, driver, name, call) oscar__cu_result(hooks, driver, call, name, __LINE__)

/* == 4.2 LIBRARIES: search, symbols == */

#if defined(_WIN32)
/* A path with a folder is also where the library looks for others. */
static void *oscar__cu_library_open(const char *path)
{
    int has_folder = strchr(path, '/') || strchr(path, '\\');
    return (void *)LoadLibraryExA(path, NULL, has_folder ? LOAD_WITH_ALTERED_SEARCH_PATH : 0);
}

static void oscar__cu_library_close(void *library) { (void)FreeLibrary((HMODULE)library); }

static void *oscar__cu_symbol(void *library, const char *name)
{
    FARPROC function = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

/* The full path of a loaded library. address: of one of its functions. */
static void oscar__cu_library_path(void *library, void *address, const char *asked, char *out)
{
    DWORD length = GetModuleFileNameA((HMODULE)library, out, OSCAR_CUDA_PATH_BYTES);
    (void)address;
    if (!length || length >= OSCAR_CUDA_PATH_BYTES) oscar__cu_copy_string(out, OSCAR_CUDA_PATH_BYTES, asked);
}

/* Why the last open failed. */
static void oscar__cu_library_error(oscar__text *t)
{
    oscar__put_string(t, "Windows error ");
    oscar__put_unsigned(t, GetLastError());
}
#else
static void *oscar__cu_library_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static void oscar__cu_library_close(void *library) { (void)dlclose(library); }
static void *oscar__cu_symbol(void *library, const char *name) { return dlsym(library, name); }

/* The full path of a loaded library. address: of one of its functions. dladdr is not declared in strict C modes, so it
   is looked up like everything else. */
static void oscar__cu_library_path(void *library, void *address, const char *asked, char *out)
{
    struct { const char *file; void *base; const char *symbol; void *at; } found = { NULL, NULL, NULL, NULL };
    int (*look)(const void *, void *);
    void *program = dlopen(NULL, RTLD_LAZY), *function = program ? dlsym(program, "dladdr") : NULL;
    (void)library;
    memcpy(&look, &function, sizeof look);
    if (function && look(address, &found) && found.file) asked = found.file;
    oscar__cu_copy_string(out, OSCAR_CUDA_PATH_BYTES, asked);
    if (program) (void)dlclose(program);
}

/* Why the last open failed. */
static void oscar__cu_library_error(oscar__text *t)
{
    const char *text = dlerror();
    oscar__put_string(t, text ? text : "no reason given");
}
#endif

/* A function of the driver, of the version that the suffix names. cuGetProcAddress, where there is one, knows it by the
   version of CUDA; else the library exports it under the name with the suffix. */
static void *oscar__cu_driver_symbol(const oscar__cu_driver *d, const char *name, const char *suffix)
{
    int (OSCAR__CU_CALL *get)(const char *, void **, int, uint64_t, int *);
    int (OSCAR__CU_CALL *get_first)(const char *, void **, int, uint64_t);
    void *second = oscar__cu_symbol(d->library, "cuGetProcAddress_v2");
    void *first = oscar__cu_symbol(d->library, "cuGetProcAddress"), *address = NULL;
    char full[64];
    oscar__text t = { NULL, 0, 0 };
    int status = 0, code = 1;
    memcpy(&get, &second, sizeof get);
    memcpy(&get_first, &first, sizeof get_first);
    if (second) code = get(name, &address, OSCAR__CU_DRIVER_LEAST, 0, &status);
    else if (first) code = get_first(name, &address, OSCAR__CU_DRIVER_LEAST, 0);
    if (!code && address) return address;
    t.out = full;
    t.capacity = sizeof full;
    oscar__put_string(&t, name);
    oscar__put_string(&t, suffix);
    return oscar__cu_symbol(d->library, full);
}

/* Fills the table; the name of a needed function that is missing, or NULL. */
static const char *oscar__cu_driver_symbols(oscar__cu_driver *d)
{
    const char *missing = NULL;
    void *address;
#define OSCAR__CU_FIND(field, name, suffix, need, arguments) \
    address = oscar__cu_driver_symbol(d, name, suffix); \
    memcpy(&d->field, &address, sizeof address); \
    if (!address && (need) && !missing) missing = name suffix;
    OSCAR__CU_DRIVER(OSCAR__CU_FIND)
#undef OSCAR__CU_FIND
    return missing;
}

static const char *oscar__cu_nvrtc_symbols(oscar__cu_nvrtc *n)
{
    const char *missing = NULL;
    void *address;
#define OSCAR__CU_FIND(field, name, need, arguments) \
    address = oscar__cu_symbol(n->library, name); \
    memcpy(&n->field, &address, sizeof address); \
    if (!address && (need) && !missing) missing = name;
    OSCAR__CU_NVRTC(OSCAR__CU_FIND)
#undef OSCAR__CU_FIND
    return missing;
}

/* Loads the driver library and starts the driver. After a failure path and version are there for a report, no more. */
static oscar_result oscar__cu_driver_load(const oscar_hooks *hooks, const char *given, oscar__cu_driver *d)
{
#if defined(_WIN32)
    static const char *const names[] = { "nvcuda.dll" };
#else
    static const char *const names[] = { "libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1" };
#endif
    const char *asked = given, *missing;
    char why[256] = "";
    oscar__text reason = { NULL, 0, 0 };
    void *address;
    size_t i;
    int code, version_code;
    reason.out = why;
    reason.capacity = sizeof why;
    memset(d, 0, sizeof *d);
    if (given) {
        d->library = oscar__cu_library_open(given);
        if (!d->library) oscar__cu_library_error(&reason);
    }
    for (i = 0; !given && !d->library && i < sizeof names / sizeof *names; i++)
        d->library = oscar__cu_library_open(asked = names[i]);
    if (!d->library && given)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DRIVER, "desc.driver %s cannot be loaded: %s", given, why);
    if (!d->library)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DRIVER, "no CUDA driver (%s) on this computer: install NVIDIA's driver, "
                           "or in a container start it with the GPU (--gpus all); desc.driver takes a path", names[0]);
    missing = oscar__cu_driver_symbols(d);
    address = oscar__cu_symbol(d->library, "cuInit");
    oscar__cu_library_path(d->library, address, asked, d->path);
    if (missing) {
        oscar__cu_library_close(d->library);
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DRIVER, "the driver %s has no %s: update it, CUDA 11.0 or later is "
                           "needed", d->path, missing);
    }
    version_code = d->driver_version(&d->version);
    if (version_code) d->version = 0;
    code = d->init(0);
    if (code == OSCAR__CU_STUB) {
        oscar__cu_library_close(d->library);   /* it bears the driver's name, and would be found in its place */
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DRIVER, "%s is the toolkit's stub for linking, not a driver: install "
                           "NVIDIA's driver, and take the stub's folder out of the library path", d->path);
    }
    if (code == OSCAR__CU_NO_DEVICE)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DEVICE, "the driver %s sees no GPU: is one in this computer, given to "
                           "this container, and not hidden by CUDA_VISIBLE_DEVICES?", d->path);
    if (code) return OSCAR__CU(hooks, d, "cuInit", code);
    if (version_code) return OSCAR__CU(hooks, d, "cuDriverGetVersion", version_code);
    if (d->version < OSCAR__CU_DRIVER_LEAST)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DRIVER, "the driver %s is of CUDA %i.%i: 11.0 or later is needed, "
                           "update it", d->path, d->version / 1000, d->version % 1000 / 10);
    return OSCAR_OK;
}

/* What the search for NVRTC goes by. given: desc.nvrtc, or NULL; over: OSCAR_NVRTC_PATH; variables: values of
   oscar__cu_variables, NULL where not set; newest: major version of the driver, 0 unknown. visit gets one path after
   the other until it returns 1. */
enum { OSCAR__CU_CUDA_PATH, OSCAR__CU_CUDA_HOME, OSCAR__CU_VIRTUAL_ENV, OSCAR__CU_CONDA, OSCAR__CU_VARIABLES };
static const char *const oscar__cu_variables[OSCAR__CU_VARIABLES] = {
    "CUDA_PATH", "CUDA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX"
};
typedef struct oscar__cu_search {
    int windows;
    const char *given, *over, *variables[OSCAR__CU_VARIABLES];
    int newest;
    int (*visit)(void *user, const char *path);
    void *user;
} oscar__cu_search;

/* Folders of toolkits and of Python's wheels. The number sign stands for the minor version of Python 3. */
typedef struct oscar__cu_place { int variable; const char *tail; } oscar__cu_place;
static const oscar__cu_place oscar__cu_places[] = {
    { OSCAR__CU_CUDA_PATH, "/lib64/" }, { OSCAR__CU_CUDA_PATH, "/lib/" },
    { OSCAR__CU_CUDA_HOME, "/lib64/" }, { OSCAR__CU_CUDA_HOME, "/lib/" },
    { -1, "/usr/local/cuda/lib64/" }, { -1, "/opt/cuda/lib64/" },
    { OSCAR__CU_VIRTUAL_ENV, "/lib/python3.#/site-packages/nvidia/cu13/lib/" },
    { OSCAR__CU_VIRTUAL_ENV, "/lib/python3.#/site-packages/nvidia/cuda_nvrtc/lib/" },
    { OSCAR__CU_CONDA, "/lib/" },
    { OSCAR__CU_CONDA, "/lib/python3.#/site-packages/nvidia/cu13/lib/" },
    { OSCAR__CU_CONDA, "/lib/python3.#/site-packages/nvidia/cuda_nvrtc/lib/" },
    { -1, NULL }
};
static const oscar__cu_place oscar__cu_windows_places[] = {
    { OSCAR__CU_CUDA_PATH, "\\bin\\" }, { OSCAR__CU_CUDA_PATH, "\\bin\\x64\\" },
    { OSCAR__CU_VIRTUAL_ENV, "\\Lib\\site-packages\\nvidia\\cu13\\bin\\x86_64\\" },
    { OSCAR__CU_VIRTUAL_ENV, "\\Lib\\site-packages\\nvidia\\cuda_nvrtc\\bin\\" },
    { OSCAR__CU_CONDA, "\\Library\\bin\\" }, { OSCAR__CU_CONDA, "\\bin\\" },
    { OSCAR__CU_CONDA, "\\Lib\\site-packages\\nvidia\\cu13\\bin\\x86_64\\" },
    { OSCAR__CU_CONDA, "\\Lib\\site-packages\\nvidia\\cuda_nvrtc\\bin\\" },
    { -1, NULL }
};

/* Names of the library, newest first: majors 19 to 12 (those after 13 as they will be if they go on so), then 11.2,
   11.1, 11.0, and at last the name without a version. major: 0 for that one. 0 past the end. */
static int oscar__cu_nvrtc_name(int windows, int index, char *out, size_t capacity, int *major)
{
    enum { NEWEST = 19, OLDEST = 12, MAJORS = NEWEST - OLDEST + 1 };
    static const char *const old[2][4] = {
        { "libnvrtc.so.11.2", "libnvrtc.so.11.1", "libnvrtc.so.11.0", "libnvrtc.so" },
        { "nvrtc64_112_0.dll", "nvrtc64_111_0.dll", "nvrtc64_110_0.dll", NULL }
    };
    oscar__text t = { NULL, 0, 0 };
    const char *name;
    t.out = out;
    t.capacity = capacity;
    if (index < MAJORS) {
        *major = NEWEST - index;
        oscar__put_string(&t, windows ? "nvrtc64_" : "libnvrtc.so.");
        oscar__put_integer(&t, *major);
        if (windows) oscar__put_string(&t, "0_0.dll");
        return 1;
    }
    name = index < MAJORS + 4 ? old[windows != 0][index - MAJORS] : NULL;
    *major = index < MAJORS + 3 ? 11 : 0;
    if (name) oscar__put_string(&t, name);
    return name != NULL;
}

/* One name in one folder, given as start, tail and the version of Python (0: none). */
static int oscar__cu_visit(const oscar__cu_search *s, const char *start, const char *tail, int python,
                           const char *name)
{
    char path[OSCAR_CUDA_PATH_BYTES];
    oscar__text t = { NULL, 0, 0 };
    t.out = path;
    t.capacity = sizeof path;
    oscar__put_string(&t, start);
    for (; *tail; tail++) {
        if (*tail == '#') oscar__put_integer(&t, python);
        else oscar__put_char(&t, *tail);
    }
    oscar__put_string(&t, name);
    return t.len < t.capacity && s->visit(s->user, path);
}

/* One name, in the loader's own path and in every folder. */
static int oscar__cu_visit_name(const oscar__cu_search *s, const char *name)
{
    const oscar__cu_place *place = s->windows ? oscar__cu_windows_places : oscar__cu_places;
    if (oscar__cu_visit(s, "", "", 0, name)) return 1;
    for (; place->tail; place++) {
        const char *start = place->variable < 0 ? "" : s->variables[place->variable];
        int python = strchr(place->tail, '#') ? 20 : 1;
        if (!start || (!*start && place->variable >= 0)) continue;
        for (; python == 1 || python >= 8; python--) {
            if (oscar__cu_visit(s, start, place->tail, python, name)) return 1;
            if (python == 1) break;
        }
    }
    return 0;
}

/* A path that was given: the library itself, or the folder that holds it. */
static int oscar__cu_visit_given(const oscar__cu_search *s, const char *path)
{
    char name[64];
    int i, major;
    if (s->visit(s->user, path)) return 1;
    for (i = 0; oscar__cu_nvrtc_name(s->windows, i, name, sizeof name, &major); i++)
        if (oscar__cu_visit(s, path, s->windows ? "\\" : "/", 0, name)) return 1;
    return 0;
}

/* Every place where NVRTC may be, in order (manual 1.5). Once visit is satisfied: 1 for a place that was given, 2 for
   one that was searched; else 0. */
static int oscar__cu_search_nvrtc(const oscar__cu_search *s)
{
    char name[64];
    int i, major, late;
    if (s->given) return oscar__cu_visit_given(s, s->given);
    if (s->over && *s->over && oscar__cu_visit_given(s, s->over)) return 1;
    for (late = 0; late <= (s->newest > 0); late++)
        for (i = 0; oscar__cu_nvrtc_name(s->windows, i, name, sizeof name, &major); i++) {
            int may_be_newer = s->newest > 0 && (!major || major > s->newest);
            if (may_be_newer == late && oscar__cu_visit_name(s, name)) return 2;
        }
    return 0;
}

/* Architectures that NVRTC compiles for. Versions before 11.2 cannot be asked. */
static void oscar__cu_nvrtc_archs(oscar__cu_nvrtc *n)
{
    static const int old[] = { 75, 80, 86 };
    int count = 0, i;
    if (n->get_arch_count && n->get_archs && !n->get_arch_count(&count) && count > 0 && count <= OSCAR__CU_ARCHS
        && !n->get_archs(n->archs)) {
        n->arch_count = count;
        return;
    }
    n->arch_count = n->version >= 11010 ? 3 : 2;
    for (i = 0; i < n->arch_count; i++) n->archs[i] = old[i];
}

/* NVRTC opens libnvrtc-builtins by name when it compiles, which fails where it was loaded from a folder outside the
   search path. A library that is loaded already is found by its name. */
static void oscar__cu_nvrtc_builtins(oscar__cu_nvrtc *n)
{
    char path[OSCAR_CUDA_PATH_BYTES + 64];
    size_t folder = strlen(n->path), plain;
    int major = n->version / 1000, minor = n->version % 1000 / 10;
    oscar__text t = { NULL, 0, 0 };
    while (folder && n->path[folder - 1] != '/' && n->path[folder - 1] != '\\') folder--;
    t.out = path;
    t.capacity = sizeof path;
    oscar__put_string(&t, n->path);
    t.len = folder;
#if defined(_WIN32)
    oscar__put_string(&t, "nvrtc-builtins64_");
    plain = 0;
    oscar__put_integer(&t, major * 10 + minor);
    oscar__put_string(&t, ".dll");
#else
    oscar__put_string(&t, "libnvrtc-builtins.so");
    plain = t.len;
    oscar__put_char(&t, '.');
    oscar__put_integer(&t, major);
    oscar__put_char(&t, '.');
    oscar__put_integer(&t, minor);
#endif
    n->builtins = oscar__cu_library_open(path) != NULL;
    if (n->builtins || !plain) return;
    path[plain] = 0;
    n->builtins = oscar__cu_library_open(path) != NULL;
}

/* Tries one path; 1 if a usable NVRTC is now loaded. */
static int oscar__cu_nvrtc_try(void *user, const char *path)
{
    oscar__cu_nvrtc *n = (oscar__cu_nvrtc *)user;
    int major = 0, minor = 0;
    void *address;
    memset(n, 0, sizeof *n);
    n->library = oscar__cu_library_open(path);
    if (!n->library) return 0;
    address = oscar__cu_symbol(n->library, "nvrtcVersion");
    if (oscar__cu_nvrtc_symbols(n) || n->get_version(&major, &minor) || major < 11) {
        oscar__cu_library_close(n->library);
        memset(n, 0, sizeof *n);
        return 0;
    }
    n->version = 1000 * major + 10 * minor;
    oscar__cu_library_path(n->library, address, path, n->path);
    oscar__cu_nvrtc_archs(n);
    oscar__cu_nvrtc_builtins(n);
    return 1;
}

/* The value of a variable of the environment, or NULL. */
static const char *oscar__cu_environment(const char *name)
{
#if defined(_MSC_VER)
#  pragma warning(suppress: 4996)   /* the function it proposes is not in C99 */
#endif
    return getenv(name);
}

/* Finds and loads NVRTC. given: desc.nvrtc; driver_version: 0 unknown. */
static oscar_result oscar__cu_nvrtc_load(const oscar_hooks *hooks, const char *given, int driver_version,
                                         oscar__cu_nvrtc *n)
{
    oscar__cu_search s;
    int i, found;
    memset(&s, 0, sizeof s);
#if defined(_WIN32)
    s.windows = 1;
#endif
    s.given = given;
    s.over = oscar__cu_environment("OSCAR_NVRTC_PATH");
    for (i = 0; i < OSCAR__CU_VARIABLES; i++) s.variables[i] = oscar__cu_environment(oscar__cu_variables[i]);
    s.newest = driver_version / 1000;
    s.visit = oscar__cu_nvrtc_try;
    s.user = n;
    found = oscar__cu_search_nvrtc(&s);
    if (found == 2 && s.over && *s.over)
        OSCAR__WARN(hooks, "OSCAR_NVRTC_PATH %s is no NVRTC library and no folder with one: took %s", s.over, n->path);
    if (found) return OSCAR_OK;
    memset(n, 0, sizeof *n);
    if (given)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_NVRTC, "desc.nvrtc %s is no NVRTC library (11.0 or later) and no folder "
                           "with one", given);
    return OSCAR__FAIL(hooks, OSCAR_ERR_NO_NVRTC, "no NVRTC (libnvrtc.so, nvrtc64_*.dll): install the CUDA toolkit, or "
                       "`pip install nvidia-cuda-nvrtc` and set OSCAR_NVRTC_PATH or desc.nvrtc to its folder, or give "
                       "oscar_cuda_load an image, which needs none");
}

/* == 4.3 COMPILE: constants, text, architecture, log, images == */

enum {
#define OSCAR__CU_ENUM(name, value) OSCAR__CU_##name,
    OSCAR__CU_CONSTANTS(OSCAR__CU_ENUM)
#undef OSCAR__CU_ENUM
    OSCAR__CU_CONSTANT_COUNT
};

/* All that tells one module from another on a device. */
typedef struct oscar__cu_constants { int64_t value[OSCAR__CU_CONSTANT_COUNT]; } oscar__cu_constants;

/* What a layer's pairs are to a kernel. */
typedef struct oscar__cu_pairs { int kind, mean, metric; } oscar__cu_pairs;

static int oscar__cu_rank(double clip, int dim) { return clip > 0 && clip < 1 ? (int)floor(clip * dim) : dim - 1; }

static int64_t oscar__cu_offset(size_t offset) { return offset == OSCAR_ABSENT ? 0 : (int64_t)offset; }

/* What kernels know about the pairs of a side. Rows of 16 bits and of a folded V stay as they are. */
static oscar_result oscar__cu_pairs_of(const oscar_layer *l, int is_k, const oscar_hooks *hooks,
                                       oscar__cu_pairs *out)
{
    const oscar_pair *pairs = is_k ? l->k : l->v;
    int bits = is_k ? l->k_bits : l->v_bits, refined = (is_k ? l->k_fit : l->v_fit) == OSCAR_UNBIASED, h;
    out->kind = bits == 16 || (!is_k && l->v_folded) ? OSCAR_IDENTITY : pairs ? (int)pairs[0].kind : OSCAR_HADAMARD;
    out->mean = out->metric = 0;
    if (bits == 16 || (!is_k && l->v_folded) || !pairs) return OSCAR_OK;
    out->metric = pairs[0].metric && refined;
    for (h = 0; h < l->kv_heads; h++) {
        if (pairs[h].kind != pairs[0].kind || (refined && !pairs[h].metric != !pairs[0].metric))
            return OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "layer.%s[%i] and layer.%s[0] differ in kind or in having "
                               "a metric: on a device all heads of a layer have the same", is_k ? "k" : "v", h,
                               is_k ? "k" : "v");
        if (pairs[h].mean) out->mean = 1;
    }
    return OSCAR_OK;
}

/* How attention is laid out for a layer and device (constants of the same names). Sizes of memory are in bytes.
     pairs, tiles    (row, query head) pairs of a block of the grid, 8 a tile of mma; fold: up to 4 pairs share one
     warps, stages   of a block, and buffers of a warp for blocks of 64 tokens
     blocks          of the grid that shall fit a multiprocessor by registers
     k_words, k_lines, k_steps       words of a token, by fours (a lane each), products of 32 channels
     k_tile, v_tile, v_line          16 tokens of codes; of V in shared memory, a line of words
     meta, meta_arrays               metadata of a head's part: offset, arrays of a value a token
     stage_v .. stage_bytes          offsets in a stage
     r_steps         products of 16 channels of rows
     fragments       512 bytes each, of a row block and KV head; sums: words of a pair
     merge_heads     query heads of a block that merges */
typedef struct oscar__cu_shape {
    int pairs, tiles, fold, warps, stages, blocks;
    int k_words, k_lines, k_steps, k_groups, k_tile;
    int v_groups, v_tiles, v_tile, v_line, meta;
    int meta_arrays, stage_v, stage_meta, stage_k_min;
    int stage_v_scale, stage_v_min, stage_mean;
    int stage_bytes, r_steps, fragments, sums, merge_heads;
} oscar__cu_shape;

static int oscar__cu_ceil(int a, int b) { return (a + b - 1) / b; }

/* Codes, groups and fragments of K and V. A side of 16 bits has none; sizes of arrays stay above 0. */
static void oscar__cu_shape_sides(const oscar_layer *l, oscar__cu_shape *s)
{
    int codes_k = l->k_bits < 16, codes_v = l->v_bits < 16;
    s->k_words = codes_k ? l->k_dim * l->k_bits / 32 : 4;
    s->k_lines = oscar__cu_ceil(s->k_words, 4);
    s->k_steps = codes_k ? s->k_lines * (4 / l->k_bits) : 1;
    s->k_groups = codes_k ? l->k_dim / l->k_group : 1;
    s->k_tile = codes_k ? 2 * l->k_dim * l->k_bits : 0;
    s->v_groups = codes_v ? l->v_dim / l->v_group : 1;
    s->v_tiles = 4 * oscar__cu_ceil(l->v_dim, 32);
    s->v_tile = codes_v ? 2 * l->v_dim * l->v_bits : 0;
    s->v_line = 128 * oscar__cu_ceil(l->v_dim, 32);
    s->r_steps = 2 * oscar__cu_ceil(l->k_dim, 32);
    s->fragments = s->tiles * (s->k_steps + s->r_steps);
    s->sums = 8 + 12 * s->k_groups;
}

/* A stage: codes of K, of V in padded lines, metadata, the page's mean and 16 bytes around its scale. */
static void oscar__cu_shape_stage(const oscar_layout *layout, oscar__cu_shape *s)
{
    const oscar_layer *l = &layout->layer;
    int codes_k = l->k_bits < 16, codes_v = l->v_bits < 16;
    int k_arrays = codes_k ? s->k_groups * (l->k_fit == OSCAR_CLIP ? 2 : 1) : 0;
    int v_arrays = codes_v ? s->v_groups * (l->v_fit == OSCAR_CLIP ? 2 : 1) : 0;
    s->meta = (int)(codes_k ? layout->k_scale : codes_v ? layout->v_scale : 0);
    s->meta_arrays = k_arrays + v_arrays;
    s->stage_v = 4 * s->k_tile;
    s->stage_meta = s->stage_v + (codes_v ? 4 * (l->v_bits / 2) * s->v_line : 0);
    s->stage_k_min = s->stage_meta + 128 * s->k_groups;
    s->stage_v_scale = s->stage_meta + 128 * k_arrays;
    s->stage_v_min = s->stage_v_scale + 128 * s->v_groups;
    s->stage_mean = s->stage_meta + 128 * s->meta_arrays;
    s->stage_bytes = s->stage_mean + (l->k_page_mean > 0 ? l->k_dim + 16 : 0);
}

/* ---- dynamic shared memory ---- */

/* Bytes of dynamic shared memory for one side of a page: the rows of a tile as floats, their codes, scales, with a page
   mean its levels, with a metric two blocks of its diagonal. Rows as of oscar__cu_tile_rows, the rest as in
   oscar__cu_room_of. At most 49,216: 1024 channels in groups of 16 with a metric. */
static size_t oscar__cu_write_side_shared(int bits, int dim, int group, int page_mean, int metric)
{
    size_t rows = dim <= 128 ? 64 : dim <= 256 ? 32 : dim <= 512 ? 16 : 8, values = rows * (size_t)dim, floats;
    if (bits == 16) return 16;
    floats = values + values / 4 + rows * (size_t)(dim / group);
    return 4 * (floats + (page_mean ? (size_t)dim + 16 : 0) + (metric ? 512 : 0));
}

/* Bytes of dynamic shared memory of oscar_cu_write: always within the 48 KB that need no attribute. metric: whether K
   is refined, as OSCAR_K_METRIC. */
static size_t oscar__cu_write_shared(const oscar_layout *l, int metric)
{
    const oscar_layer *a = &l->layer;
    size_t k = oscar__cu_write_side_shared(a->k_bits, a->k_dim, a->k_group, a->k_page_mean > 0, metric);
    size_t v = oscar__cu_write_side_shared(a->v_bits, a->v_dim, a->v_group, 0, 0);
    return k > v ? k : v;
}

/* Of oscar_cu_read: 8 rows. */
static size_t oscar__cu_read_shared(const oscar_layout *l)
{
    size_t dim = (size_t)(l->layer.k_dim > l->layer.v_dim ? l->layer.k_dim : l->layer.v_dim);
    return 8 * dim * sizeof(float);
}

/* Stages of copies, then the rows that the warps join. */
static size_t oscar__cu_decode_shared(const oscar_layer *l, const oscar__cu_shape *s)
{
    size_t stages = (size_t)s->warps * (size_t)s->stages * (size_t)s->stage_bytes;
    size_t rows = (size_t)s->warps * 8 * (size_t)s->tiles * ((size_t)l->v_dim + 2) * sizeof(float);
    return stages > rows ? stages : rows;
}

static size_t oscar__cu_query_shared(const oscar_layer *l, const oscar__cu_shape *s)
{
    return 2 * (size_t)s->pairs * (size_t)l->k_dim * sizeof(float);
}

/* The heads of a block, their sums turned back, weights of the splits. */
static size_t oscar__cu_merge_shared(const oscar_layer *l, int heads, int splits, int window_splits)
{
    return (size_t)heads * (2 * (size_t)l->v_dim + (size_t)(splits + window_splits) + 1) * sizeof(float);
}

/* ---- plans ---- */

enum { OSCAR__CU_SPLITS_MOST = 256 };   /* of a history */

/* Pairs, stages and warps for steps of at most `rows` rows an entry, on a device of compute capability sm (80) with
   shared_block bytes of shared memory for a block and shared_all for a multiprocessor. Returns 0 if a block of the grid
   does not fit. */
static int oscar__cu_shape_of(const oscar_layout *layout, int rows, int sm, size_t shared_block, size_t shared_all,
                              oscar__cu_shape *s)
{
    const oscar_layer *l = &layout->layer;
    int group = l->q_heads / l->kv_heads, dim = l->k_dim > l->v_dim ? l->k_dim : l->v_dim;
    int grouped = (l->k_bits < 16 && l->k_group < l->k_dim) || (l->v_bits < 16 && l->v_group < l->v_dim);
    memset(s, 0, sizeof *s);
    s->pairs = group * rows <= 4 ? 4 : group * rows <= 8 ? 8 : 16;
    if (s->pairs == 16 && (dim > 128 || grouped || sm < 80)) s->pairs = 8;   /* else registers spill */
    s->fold = s->pairs == 4;
    s->tiles = s->pairs == 16 ? 2 : 1;
    s->blocks = s->tiles == 2 ? 2 : dim <= 64 ? 4 : dim <= 128 ? 3 : dim <= 256 ? 2 : 1;
    oscar__cu_shape_sides(l, s);
    if (s->blocks > 2 && (s->k_groups > 1 || s->v_groups > 1)) s->blocks = 2;   /* else registers spill */
    if (s->blocks == 3 && sm < 80 && (l->k_fit == OSCAR_CLIP || l->v_fit == OSCAR_CLIP)) s->blocks = 2;
    oscar__cu_shape_stage(layout, s);
    for (s->warps = 4; s->warps; s->warps /= 2)
        for (s->stages = sm < 80 ? 1 : 3; s->stages; s->stages--) {
            size_t bytes = oscar__cu_decode_shared(l, s);
            if (bytes > shared_block) continue;
            if (s->stages > 2 && (size_t)s->blocks * (bytes + 1024) > shared_all) continue;
            return 1;
        }
    return 0;
}

/* Splits of the windows: exactly a block of 64 rows a warp. window_rows: S0 + the ring's capacity. */
static int oscar__cu_window_splits(const oscar__cu_shape *s, int window_rows)
{
    return oscar__cu_ceil(oscar__cu_ceil(window_rows, 64), s->warps);
}

/* Query heads of a block that merges: up to 8, and within the 48 KB that need no attribute. */
static int oscar__cu_merge_heads_of(const oscar_layer *l, int window_splits)
{
    int heads = l->q_heads / l->kv_heads < 8 ? l->q_heads / l->kv_heads : 8;
    while (heads > 1 && oscar__cu_merge_shared(l, heads, OSCAR__CU_SPLITS_MOST, window_splits) > OSCAR__CU_SHARED_FREE)
        heads--;
    return heads;
}

/* What a plan depends on besides the layer: architecture, shared memory of a block and of a multiprocessor. */
typedef struct oscar__cu_limits { int sm; size_t block, all; } oscar__cu_limits;

/* The least among the devices that run a cubin of an architecture; several: those that run PTX, or a cubin of a later
   architecture made of the same text, too. */
static oscar__cu_limits oscar__cu_limits_of(int sm, int several)
{
    oscar__cu_limits limits;
    limits.sm = sm;
    limits.block = 64 * 1024;
    limits.all = 64 * 1024;
    if (sm < 80) return limits;
    limits.block = !several && sm >= 90 && sm < 120 ? 227 * 1024 : 99 * 1024;
    limits.all = limits.block + 1024;
    return limits;
}

/* All that is known about a layer's kernels before they are compiled. The layout's pairs are gone. */
typedef struct oscar__cu_plan {
    oscar__cu_constants constants;
    oscar__cu_shape shape;
    oscar_layout layout;
} oscar__cu_plan;

/* Plans that a module may be made for, and the constants by which it will be found. */
typedef struct oscar__cu_plans { const oscar__cu_constants *wanted; const oscar__cu_plan *plan; int count; }
    oscar__cu_plans;

/* Rows of the ring: the recent ones, those that wait for their page to fill, and a step. */
static int64_t oscar__cu_ring(const oscar_layout *layout, const oscar_cuda_options *o)
{
    return (int64_t)o->recent + layout->page_tokens - 1 + (o->max_draft > 1 ? o->max_draft : 1);
}

/* Options with their defaults filled in, checked. */
static oscar_result oscar__cu_options_of(const oscar_layout *layout, const oscar_cuda_options *options,
                                         const oscar_hooks *hooks, oscar_cuda_options *o)
{
    const oscar_layer *l = &layout->layer;
    int dim = l->k_dim > l->v_dim ? l->k_dim : l->v_dim;
    oscar_result result;
    memset(o, 0, sizeof *o);
    if (options) *o = *options;
    if ((result = oscar__resolve_count(hooks, "sink", 64, &o->sink)) != OSCAR_OK) return result;
    if ((result = oscar__resolve_count(hooks, "recent", 256, &o->recent)) != OSCAR_OK) return result;
    if ((result = oscar__resolve_count(hooks, "max_draft", 16, &o->max_draft)) != OSCAR_OK) return result;
    if (o->step_rows == 0) o->step_rows = 1;
    if (o->step_rows < 0 || o->step_rows > 65536)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "step_rows %i: give 0, or 1 to 65536", o->step_rows);
    if (!oscar__type_valid(o->row_type))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "row_type %i is no oscar_type: give OSCAR_F32, OSCAR_BF16 or "
                           "OSCAR_F16", (int)o->row_type);
    if (o->row_type == OSCAR_TYPE_DEFAULT) o->row_type = OSCAR_F32;
    if ((int64_t)o->sink + o->recent + layout->page_tokens + o->max_draft
        > (int64_t)UINT32_MAX / 4 / l->kv_heads / dim)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "sink %i, recent %i and max_draft %i are too many rows: lower them "
                           "until windows of a sequence and layer have less than 4 GB", o->sink, o->recent,
                           o->max_draft);
    if (layout->bytes > INT32_MAX)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "pages of %z bytes: on a device they have less than 2 GB, lower "
                           "page_tokens", layout->bytes);
    return OSCAR_OK;
}

static oscar_result oscar__cu_plan_of(const oscar_layout *layout, const oscar_cuda_options *options,
                                      const oscar__cu_limits *limits, const oscar_hooks *hooks, oscar__cu_plan *out)
{
    oscar_cuda_options o;
    const oscar_layer *l;
    oscar__cu_shape s;
    oscar__cu_pairs k, v;
    oscar_result result;
    int sm = limits->sm;
    if (!layout || layout->layer.kv_heads < 1 || layout->page_tokens < 64)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "kernels need a layout: make it with oscar_page_layout");
    l = &layout->layer;
    if ((result = oscar__cu_options_of(layout, options, hooks, &o)) != OSCAR_OK) return result;
    if ((result = oscar__cu_pairs_of(l, 1, hooks, &k)) != OSCAR_OK) return result;
    if ((result = oscar__cu_pairs_of(l, 0, hooks, &v)) != OSCAR_OK) return result;
    if (!oscar__cu_shape_of(layout, o.step_rows, sm, limits->block, limits->all, &s))
        return OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "heads of %i and %i channels need more shared memory than the "
                           "%z bytes of a block of sm_%i: use fewer bits or larger groups", l->k_dim, l->v_dim,
                           limits->block, sm);
    s.merge_heads = oscar__cu_merge_heads_of(l, oscar__cu_window_splits(&s, o.sink + (int)oscar__cu_ring(layout, &o)));
    memset(out, 0, sizeof *out);
    out->shape = s;
    out->layout = *layout;
    out->layout.layer.k = out->layout.layer.v = NULL;
#define OSCAR__CU_VALUE(name, number) out->constants.value[OSCAR__CU_##name] = (int64_t)(number);
    OSCAR__CU_CONSTANTS(OSCAR__CU_VALUE)
#undef OSCAR__CU_VALUE
    return OSCAR_OK;
}

/* The kernels of section 3. */
enum {
    OSCAR__CU_CHECK, OSCAR__CU_WRITE, OSCAR__CU_READ, OSCAR__CU_QUERY, OSCAR__CU_DECODE, OSCAR__CU_MERGE,
    OSCAR__CU_KERNEL_COUNT
};
static const char *const oscar__cu_kernel_names[OSCAR__CU_KERNEL_COUNT] = {
    "oscar_cu_check", "oscar_cu_write", "oscar_cu_read", "oscar_cu_query", "oscar_cu_decode", "oscar_cu_merge"
};

/* Dynamic shared memory of a kernel at most, in bytes. */
static size_t oscar__cu_shared(int kernel, const oscar__cu_plan *p)
{
    const oscar_layer *l = &p->layout.layer;
    int rows = (int)(p->constants.value[OSCAR__CU_SINK] + p->constants.value[OSCAR__CU_RING]);
    switch (kernel) {
    case OSCAR__CU_WRITE: return oscar__cu_write_shared(&p->layout, (int)p->constants.value[OSCAR__CU_K_METRIC]);
    case OSCAR__CU_READ: return oscar__cu_read_shared(&p->layout);
    case OSCAR__CU_QUERY: return oscar__cu_query_shared(l, &p->shape);
    case OSCAR__CU_DECODE: return oscar__cu_decode_shared(l, &p->shape);
    case OSCAR__CU_MERGE:
        return oscar__cu_merge_shared(l, p->shape.merge_heads, OSCAR__CU_SPLITS_MOST,
                                      oscar__cu_window_splits(&p->shape, rows));
    default: return 0;
    }
}

/* A number of 16 hexadecimal digits. */
static void oscar__cu_put_hex(oscar__text *t, uint64_t value)
{
    int shift;
    for (shift = 60; shift >= 0; shift -= 4) oscar__put_char(t, "0123456789abcdef"[value >> shift & 15]);
}

/* The name of the empty kernel that tells which text an image was made of. */
static void oscar__cu_key_name(uint64_t key, char *out, size_t capacity)
{
    oscar__text t = { NULL, 0, 0 };
    t.out = out;
    t.capacity = capacity;
    oscar__put_string(&t, "oscar_cu_key_");
    oscar__cu_put_hex(&t, key);
}

static void oscar__cu_put(oscar__text *t, uint64_t *hash, const char *piece)
{
    oscar__put_string(t, piece);
    *hash = oscar__fnv(*hash, piece, strlen(piece));
}

/* The whole text. Returns its key: FNV-1a of all that comes before the key itself. */
static uint64_t oscar__cu_put_text(const oscar__cu_constants *c, oscar__text *t)
{
#define OSCAR__CU_NAME(name, value) "#define OSCAR_" #name " ",
    static const char *const names[] = { OSCAR__CU_CONSTANTS(OSCAR__CU_NAME) };
#undef OSCAR__CU_NAME
    uint64_t hash = OSCAR__FNV_START;
    char buffer[48];
    size_t i;
    for (i = 0; i < OSCAR__CU_CONSTANT_COUNT; i++) {
        oscar__text number = { NULL, 0, 0 };
        number.out = buffer;
        number.capacity = sizeof buffer;
        oscar__put_integer(&number, c->value[i]);
        oscar__put_char(&number, '\n');
        oscar__cu_put(t, &hash, names[i]);
        oscar__cu_put(t, &hash, buffer);
    }
    for (i = 0; i < sizeof oscar__cu_chunks / sizeof *oscar__cu_chunks; i++)
        oscar__cu_put(t, &hash, oscar__cu_chunks[i]);
    oscar__cu_key_name(hash, buffer, sizeof buffer);
    oscar__put_string(t, "extern \"C\" __global__ void ");
    oscar__put_string(t, buffer);
    oscar__put_string(t, "(void) {}\n");
    return hash;
}

OSCAR_API oscar_result oscar_cuda_source(const oscar_layout *layout, const oscar_cuda_options *options, int sm,
                                         char *out, size_t capacity, size_t *size)
{
    oscar__cu_limits limits = oscar__cu_limits_of(sm ? sm : 80, 1);
    oscar__cu_plan plan;
    oscar__text t = { NULL, 0, 0 };
    oscar_result result;
    if (!size || (sm && sm < OSCAR__CU_SM_LEAST)) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_plan_of(layout, options, &limits, NULL, &plan);
    if (result) return result;
    (void)oscar__cu_put_text(&plan.constants, &t);
    *size = t.len + 1;
    if (!out) return OSCAR_OK;
    if (capacity < *size) return OSCAR_ERR_MEMORY;
    t.out = out;
    t.capacity = capacity;
    t.len = 0;
    (void)oscar__cu_put_text(&plan.constants, &t);
    return OSCAR_OK;
}

/* What to compile for: sm_90 as a cubin, or compute_90 as PTX. */
typedef struct oscar__cu_target { int sm, ptx; } oscar__cu_target;

/* How to compile for a device; depends on its arguments alone. Versions: 0 unknown; has_cubin: NVRTC makes cubins;
   archs: those it knows. 0 if there is no way. */
static int oscar__cu_choose(int sm, int driver_version, int nvrtc_version, int has_cubin, const int *archs, int count,
                            oscar__cu_target *out)
{
    int newest = 0, relative = 0, own = 0, i;
    for (i = 0; i < count; i++) {
        if (archs[i] < OSCAR__CU_SM_LEAST || archs[i] > sm) continue;
        if (archs[i] == sm) own = 1;
        if (archs[i] > newest) newest = archs[i];
        if (archs[i] / 10 == sm / 10 && archs[i] > relative) relative = archs[i];   /* its cubins run here, too */
    }
    out->ptx = 0;
    out->sm = sm;
    if (sm < OSCAR__CU_SM_LEAST || !newest) return 0;
    if (own && has_cubin) return 1;
    out->ptx = 1;
    out->sm = newest;
    if (driver_version >= nvrtc_version || !driver_version) return 1;
    out->ptx = 0;
    out->sm = relative;
    return relative && has_cubin;
}

/* One compilation. driver_version: 0 unknown, for the report. */
typedef struct oscar__cu_job {
    const oscar_hooks *hooks;
    const oscar__cu_nvrtc *nvrtc;
    int driver_version;
    const char *text;
    oscar__cu_target target;
} oscar__cu_job;

/* sm_90 or compute_90. */
static void oscar__cu_arch_name(oscar__cu_target target, char *out, size_t capacity)
{
    oscar__text t = { NULL, 0, 0 };
    t.out = out;
    t.capacity = capacity;
    oscar__put_string(&t, target.ptx ? "compute_" : "sm_");
    oscar__put_integer(&t, target.sm);
}

/* Hands a log to the logger, one call a line, in full. The text is written to and restored. */
static void oscar__cu_log_lines(const oscar_hooks *hooks, oscar_level level, oscar_result code, char *text)
{
    if (!hooks || !hooks->log) return;
    while (*text) {
        char *end = strchr(text, '\n');
        if (end) *end = 0;
        if (*text) hooks->log(hooks->user, level, code, __LINE__, text);
        if (!end) return;
        *end = '\n';
        text = end + 1;
    }
}

/* Fetches the log of a program; nothing where it is empty or cannot be had. */
static void oscar__cu_fetch_log(const oscar__cu_job *job, void *program, oscar__cu_buffer *log)
{
    size_t size = 0;
    if (job->nvrtc->log_size(program, &size) || size < 2) return;
    if (!oscar__cu_buffer_get(job->hooks, size, log)) return;
    if (job->nvrtc->log(program, (char *)log->data)) oscar__cu_buffer_free(job->hooks, log);
}

/* Says why a compilation failed: first NVRTC's own words. */
static oscar_result oscar__cu_compile_failed(const oscar__cu_job *job, int code, const oscar__cu_buffer *log)
{
    const oscar__cu_nvrtc *n = job->nvrtc;
    char arch[32];
    int about_builtins = code == OSCAR__CU_NVRTC_BUILTINS
                         || (log->data && strstr((const char *)log->data, "builtins") != NULL);
    oscar__cu_arch_name(job->target, arch, sizeof arch);
    if (log->data) oscar__cu_log_lines(job->hooks, OSCAR_LOG_ERROR, OSCAR_ERR_COMPILE, (char *)log->data);
    if (about_builtins)
        return OSCAR__FAIL(job->hooks, OSCAR_ERR_COMPILE, "NVRTC %i.%i (%s) did not find its builtins library: "
                           "libnvrtc-builtins (nvrtc-builtins64_*.dll) of the same version belongs into the same "
                           "folder", n->version / 1000, n->version % 1000 / 10, n->path);
    return OSCAR__FAIL(job->hooks, OSCAR_ERR_COMPILE, "kernels did not compile for %s: NVRTC %i.%i (%s) returned %i, "
                       "the driver is of CUDA %i.%i (0.0: none asked); NVRTC's log says where", arch, n->version / 1000,
                       n->version % 1000 / 10, n->path, code, job->driver_version / 1000,
                       job->driver_version % 1000 / 10);
}

/* Fetches what was compiled. */
static oscar_result oscar__cu_fetch_image(const oscar__cu_job *job, void *program, oscar__cu_buffer *image)
{
    const oscar__cu_nvrtc *n = job->nvrtc;
    size_t size = 0;
    int code = job->target.ptx ? n->ptx_size(program, &size) : n->cubin_size(program, &size);
    if (!code && size && !oscar__cu_buffer_get(job->hooks, size, image))
        return OSCAR__FAIL(job->hooks, OSCAR_ERR_MEMORY, "no memory for compiled kernels of %z bytes", size);
    if (!code && size) code = job->target.ptx ? n->ptx(program, (char *)image->data)
                                              : n->cubin(program, (char *)image->data);
    if (!code && size) return OSCAR_OK;
    oscar__cu_buffer_free(job->hooks, image);
    return OSCAR__FAIL(job->hooks, OSCAR_ERR_COMPILE, "NVRTC %i.%i (%s) compiled, but gave no %s (%i): try "
                       "another one",
                       n->version / 1000, n->version % 1000 / 10, n->path, job->target.ptx ? "PTX" : "cubin", code);
}

/* Compiles; image and log (both empty before) are to be freed by the caller, the log also after a failure. */
static oscar_result oscar__cu_compile(const oscar__cu_job *job, oscar__cu_buffer *image, oscar__cu_buffer *log)
{
    const oscar__cu_nvrtc *n = job->nvrtc;
    char arch[64] = "--gpu-architecture=";
    const char *options[2];
    void *program = NULL;
    oscar_result result;
    int code;
    oscar__cu_arch_name(job->target, arch + strlen(arch), sizeof arch - strlen(arch));
    options[0] = arch;
    options[1] = "-default-device";
    code = n->create(&program, job->text, "oscar_cuda.h", 0, NULL, NULL);
    if (code) return oscar__cu_compile_failed(job, code, log);
    code = n->compile(program, 2, options);
    oscar__cu_fetch_log(job, program, log);
    if (code) result = oscar__cu_compile_failed(job, code, log);
    else {
        if (log->data) oscar__cu_log_lines(job->hooks, OSCAR_LOG_WARNING, OSCAR_OK, (char *)log->data);
        result = oscar__cu_fetch_image(job, program, image);
    }
    (void)n->destroy(&program);
    return result;
}

/* The text in memory of its own, and its key. */
static oscar_result oscar__cu_text(const oscar_hooks *hooks, const oscar__cu_constants *c, oscar__cu_buffer *text,
                                   uint64_t *key)
{
    oscar__text t = { NULL, 0, 0 };
    *key = oscar__cu_put_text(c, &t);
    if (!oscar__cu_buffer_get(hooks, t.len, text))
        return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "no memory for the kernels' text of %z bytes", t.len);
    t.out = (char *)text->data;
    t.capacity = t.len + 1;
    t.len = 0;
    (void)oscar__cu_put_text(c, &t);
    return OSCAR_OK;
}

/* Whether NVRTC compiles for sm. */
static oscar_result oscar__cu_arch_known(const oscar_hooks *hooks, const oscar__cu_nvrtc *n, int sm, int ptx)
{
    int i, newest = 0;
    for (i = 0; i < n->arch_count; i++) {
        if (n->archs[i] == sm && (ptx || n->cubin_size)) return OSCAR_OK;
        if (n->archs[i] > newest) newest = n->archs[i];
    }
    return OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "NVRTC %i.%i (%s) makes no %s for sm_%i; the newest it knows is "
                       "sm_%i", n->version / 1000, n->version % 1000 / 10, n->path, ptx ? "PTX" : "cubin", sm, newest);
}

OSCAR_API oscar_result oscar_cuda_compile(const oscar_cuda_desc *desc, const oscar_layout *layout,
                                          const oscar_cuda_options *options, int sm, int ptx, void *out,
                                          size_t capacity, size_t *size)
{
    const oscar_hooks *hooks = desc ? &desc->hooks : NULL;
    oscar__cu_limits limits = oscar__cu_limits_of(sm, ptx);
    oscar__cu_plan plan;
    oscar__cu_nvrtc n;
    oscar__cu_job job;
    oscar__cu_buffer text = { NULL, 0 }, image = { NULL, 0 }, log = { NULL, 0 };
    uint64_t key;
    oscar_result result = oscar__hooks_check(hooks);
    if (result) return result;
    if (!size) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_compile needs a place for the size");
    result = oscar__cu_plan_of(layout, options, &limits, hooks, &plan);
    if (!result && sm < OSCAR__CU_SM_LEAST)
        result = OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "sm %i: the kernels need compute capability 7.5, give "
                             "75 or more", sm);
    if (!result) result = oscar__cu_nvrtc_load(hooks, desc ? desc->nvrtc : NULL, 0, &n);
    if (!result) result = oscar__cu_arch_known(hooks, &n, sm, ptx);
    if (!result) result = oscar__cu_text(hooks, &plan.constants, &text, &key);
    if (!result) {
        memset(&job, 0, sizeof job);
        job.hooks = hooks;
        job.nvrtc = &n;
        job.text = (const char *)text.data;
        job.target.sm = sm;
        job.target.ptx = ptx != 0;
        result = oscar__cu_compile(&job, &image, &log);
    }
    if (!result) *size = image.size;
    if (!result && out && capacity < image.size)
        result = OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "the image has %z bytes: give it room", image.size);
    if (!result && out) memcpy(out, image.data, image.size);
    oscar__cu_buffer_free(hooks, &text);
    oscar__cu_buffer_free(hooks, &image);
    oscar__cu_buffer_free(hooks, &log);
    return result;
}

/* What an image is, from its first bytes. sm: of a cubin, else 0. The driver is told no size, so one that is cut short
   must not get there. */
typedef enum oscar__cu_form { OSCAR__CU_DAMAGED, OSCAR__CU_CUBIN, OSCAR__CU_FATBIN, OSCAR__CU_PTX } oscar__cu_form;

static oscar__cu_form oscar__cu_image_form(const unsigned char *image, size_t size, int *sm)
{
    *sm = 0;
    if (size >= 64 && !memcmp(image, "\177ELF\2\1", 6) && oscar__get16(image + 18) == 190) {
        uint64_t sections = (uint64_t)oscar__get32(image + 40) | (uint64_t)oscar__get32(image + 44) << 32;
        uint64_t segments = (uint64_t)oscar__get32(image + 32) | (uint64_t)oscar__get32(image + 36) << 32;
        uint64_t section_bytes = (uint64_t)oscar__get16(image + 58) * oscar__get16(image + 60);
        uint64_t segment_bytes = (uint64_t)oscar__get16(image + 54) * oscar__get16(image + 56);
        uint32_t flags = oscar__get32(image + 48);
        if (sections > size || section_bytes > size - sections || segments > size || segment_bytes > size - segments)
            return OSCAR__CU_DAMAGED;
        *sm = (int)(image[7] == 0x41 ? flags >> 8 & 255 : flags & 255);   /* 0x41: the ELF of CUDA 13 */
        return OSCAR__CU_CUBIN;
    }
    if (size >= 16 && oscar__get32(image) == 0xba55ed50u) {
        uint64_t rest = (uint64_t)oscar__get32(image + 8) | (uint64_t)oscar__get32(image + 12) << 32;
        size_t header = oscar__get16(image + 6);
        return header > size || rest > size - header ? OSCAR__CU_DAMAGED : OSCAR__CU_FATBIN;
    }
    if (size >= 16 && strstr((const char *)image, ".version") && strstr((const char *)image, ".target"))
        return OSCAR__CU_PTX;
    return OSCAR__CU_DAMAGED;
}

/* ---- the cache folder ---- */

/* A file of the cache: 8 bytes "OSCARCUB", u32 version (1), u32 architecture (with 65536 added: PTX), u64 key, u64 size
   of the image, u64 FNV-1a of the image, the image. Its name is the key, which is that of text, architecture and NVRTC
   version. */
enum { OSCAR__CU_FILE_HEADER = 40, OSCAR__CU_FILE_MOST = 1 << 28 };

static uint64_t oscar__cu_file_key(uint64_t text_key, const oscar__cu_job *job)
{
    unsigned char bytes[20];
    oscar__put64(bytes, text_key);
    oscar__put32(bytes + 8, (uint32_t)job->target.sm);
    oscar__put32(bytes + 12, (uint32_t)job->target.ptx);
    oscar__put32(bytes + 16, (uint32_t)job->nvrtc->version);
    return oscar__fnv(OSCAR__FNV_START, bytes, sizeof bytes);
}

#if !defined(OSCAR_NO_STDIO)
/* The number of this process. */
static unsigned long oscar__cu_process(void)
{
#if defined(_WIN32)
    return GetCurrentProcessId();
#else
    return (unsigned long)getpid();
#endif
}

static void oscar__cu_file_header(const oscar__cu_job *job, uint64_t key, const oscar__cu_buffer *image,
                                  unsigned char *out)
{
    memcpy(out, "OSCARCUB", 8);
    oscar__put32(out + 8, 1);
    oscar__put32(out + 12, (uint32_t)(job->target.sm + (job->target.ptx ? 65536 : 0)));
    oscar__put64(out + 16, key);
    oscar__put64(out + 24, image->size);
    oscar__put64(out + 32, oscar__fnv(OSCAR__FNV_START, image->data, image->size));
}

/* FOLDER/oscar-KEY.cubin, and for a temporary file what tells processes and objects apart. 0 if it is too long. */
static int oscar__cu_file_path(const char *folder, uint64_t key, const void *writer, char *out, size_t capacity)
{
    oscar__text t = { NULL, 0, 0 };
    t.out = out;
    t.capacity = capacity;
    oscar__put_string(&t, folder);
    oscar__put_string(&t, "/oscar-");
    oscar__cu_put_hex(&t, key);
    oscar__put_string(&t, ".cubin");
    if (writer) {
        oscar__put_char(&t, '.');
        oscar__put_unsigned(&t, oscar__cu_process());
        oscar__put_char(&t, '.');
        oscar__cu_put_hex(&t, (uint64_t)(uintptr_t)writer);
    }
    return t.len < t.capacity;
}

/* Reads the image of a job; 1 if there is a whole one. Anything else is told at level INFO and costs a compilation. */
static int oscar__cu_file_read(const oscar__cu_job *job, const char *folder, uint64_t key, oscar__cu_buffer *image)
{
    unsigned char header[OSCAR__CU_FILE_HEADER], want[OSCAR__CU_FILE_HEADER];
    char path[1024];
    uint64_t size = 0;
    FILE *file;
    int ok;
    if (!oscar__cu_file_path(folder, key, NULL, path, sizeof path)) return 0;
    file = oscar__open(path, "rb");
    if (!file) return 0;
    ok = fread(header, 1, sizeof header, file) == sizeof header;
    if (ok) size = oscar__get64(header + 24);
    ok = ok && size && size <= OSCAR__CU_FILE_MOST && oscar__cu_buffer_get(job->hooks, (size_t)size, image);
    ok = ok && fread(image->data, 1, image->size, file) == image->size && fgetc(file) == EOF;
    (void)fclose(file);
    if (ok) {
        oscar__cu_file_header(job, key, image, want);
        ok = !memcmp(header, want, sizeof header);
    }
    if (ok) return 1;
    oscar__cu_buffer_free(job->hooks, image);
    (void)oscar__log(job->hooks, OSCAR_LOG_INFO, OSCAR_OK, __LINE__, "%s is damaged or not of this version: the "
                     "kernels are compiled again", path);
    return 0;
}

/* Writes the image of a job, under a temporary name first. Whoever comes later replaces the file by an equal one. */
static void oscar__cu_file_write(const oscar__cu_job *job, const char *folder, uint64_t key,
                                 const oscar__cu_buffer *image)
{
    unsigned char header[OSCAR__CU_FILE_HEADER];
    char path[1024], temporary[1024];
    FILE *file;
    int ok;
    if (!oscar__cu_file_path(folder, key, NULL, path, sizeof path)
        || !oscar__cu_file_path(folder, key, image, temporary, sizeof temporary)) return;
    file = oscar__open(temporary, "wb");
    ok = file != NULL;
    if (file) {
        oscar__cu_file_header(job, key, image, header);
        ok = fwrite(header, 1, sizeof header, file) == sizeof header;
        ok &= fwrite(image->data, 1, image->size, file) == image->size;
        ok &= fflush(file) == 0;
        ok &= fclose(file) == 0;
        ok = ok && oscar__replace(temporary, path);
        if (!ok) (void)remove(temporary);
    }
    if (!ok)
        (void)oscar__log(job->hooks, OSCAR_LOG_INFO, OSCAR_OK, __LINE__, "%s cannot be written, the kernels will be "
                         "compiled next time, too: is the folder there and writable?", path);
}
#else
static int oscar__cu_file_read(const oscar__cu_job *job, const char *folder, uint64_t key, oscar__cu_buffer *image)
{
    (void)job; (void)folder; (void)key; (void)image;
    return 0;
}

static void oscar__cu_file_write(const oscar__cu_job *job, const char *folder, uint64_t key,
                                 const oscar__cu_buffer *image)
{
    (void)job; (void)folder; (void)key; (void)image;
}
#endif

/* == 4.4 CONTEXT, MODULES: also facts about the device == */

/* Kernels on the device. wanted: the constants by which they are found, of the device itself; plan: what they were made
   for, which differs where an image or NVRTC is of an older architecture. */
typedef struct oscar__cu_module {
    oscar__cu_constants wanted;
    oscar__cu_plan plan;
    void *module;
    void *functions[OSCAR__CU_KERNEL_COUNT];
    struct oscar__cu_module *next;
} oscar__cu_module;

/* context: NULL before it is attached; retained: it is the primary one, to be released. cache, nvrtc_path: copies of
   the desc's strings, or NULL. bytes: of this allocation. */
struct oscar_cuda {
    oscar_hooks hooks;
    size_t bytes;
    int debug_sync;
    const char *cache, *nvrtc_path;
    oscar__cu_driver driver;
    oscar__cu_nvrtc nvrtc;
    oscar_cuda_info info;
    void *context;
    int device, retained;
    oscar__cu_module *modules;
    oscar__cu_buffer log;
};

/* ---- facts ---- */

/* Fills in what the driver tells about a device; 0 or "" where it does not. The first failure, if any. */
static oscar_result oscar__cu_facts(const oscar_hooks *hooks, const oscar__cu_driver *d, int device,
                                    oscar_cuda_info *info)
{
    static const int attributes[] = {
        OSCAR__CU_MAJOR, OSCAR__CU_MINOR, OSCAR__CU_MULTIPROCESSORS, OSCAR__CU_SHARED_MOST, OSCAR__CU_L2,
        OSCAR__CU_CLOCK, OSCAR__CU_MEMORY_CLOCK, OSCAR__CU_MEMORY_BUS, OSCAR__CU_SHARED_ALL
    };
    enum { COUNT = sizeof attributes / sizeof *attributes };
    int value[COUNT], i, code, failed = 0;
    const char *call = "cuDeviceGetName";
    failed = d->device_name(info->name, (int)sizeof info->name, device);
    info->name[failed ? 0 : sizeof info->name - 1] = 0;
    code = d->device_memory(&info->memory_bytes, device);
    if (code) info->memory_bytes = 0;
    if (code && !failed) { failed = code; call = "cuDeviceTotalMem"; }
    for (i = 0; i < COUNT; i++) {
        value[i] = 0;
        code = d->device_attribute(&value[i], attributes[i], device);
        if (code) value[i] = 0;
        if (code && !failed) { failed = code; call = "cuDeviceGetAttribute"; }
    }
    info->sm = 10 * value[0] + value[1];
    info->multiprocessors = value[2];
    info->shared_bytes = (size_t)value[3];
    info->shared_all_bytes = (size_t)value[8];
    info->l2_bytes = value[4];
    info->clock_khz = value[5];
    info->memory_clock_khz = value[6];
    info->memory_bus_bits = value[7];
    info->bandwidth = 2.0 * 1e3 * value[6] * (value[7] / 8.0);   /* two transfers a clock */
    return failed ? OSCAR__CU(hooks, d, call, failed) : OSCAR_OK;
}

static void oscar__cu_info_nvrtc(const oscar__cu_nvrtc *n, oscar_cuda_info *info)
{
    int i;
    info->nvrtc_version = n->version;
    oscar__cu_copy_string(info->nvrtc_path, sizeof info->nvrtc_path, n->path);
    info->nvrtc_newest = 0;
    for (i = 0; i < n->arch_count; i++)
        if (n->archs[i] > info->nvrtc_newest) info->nvrtc_newest = n->archs[i];
}

/* The device of a context. The current context is the same afterwards. */
static oscar_result oscar__cu_context_device(const oscar_hooks *hooks, const oscar__cu_driver *d, void *context,
                                             int *device)
{
    void *popped = NULL;
    int code = d->context_push(context);
    if (code)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.context is not a usable CUcontext (cuCtxPushCurrent "
                           "returned %i): is it destroyed, or of another process?", code);
    code = d->context_device(device);
    (void)d->context_pop(&popped);
    return OSCAR__CU(hooks, d, "cuCtxGetDevice", code);
}

/* Which device a desc means, and which context if that exists already: the given one, or the current one where it is
   of the device. Else *context is NULL. */
static oscar_result oscar__cu_pick(const oscar_hooks *hooks, const oscar__cu_driver *d, const oscar_cuda_desc *desc,
                                   oscar_cuda_info *info, int *device, void **context)
{
    void *current = NULL;
    int owner = -1;
    oscar_result result = OSCAR__CU(hooks, d, "cuDeviceGetCount", d->device_count(&info->devices));
    if (result) return result;
    if (info->devices < 1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DEVICE, "the driver %s sees no GPU: is one in this computer, given to "
                           "this container, and not hidden by CUDA_VISIBLE_DEVICES?", d->path);
    if (desc->device < -1)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.device is %i: give a number from 0 on, or -1 for that of "
                           "the current context", desc->device);
    if (desc->device >= info->devices)
        return OSCAR__FAIL(hooks, OSCAR_ERR_NO_DEVICE, "desc.device is %i, but there are %i GPUs, from 0 on",
                           desc->device, info->devices);
    current = desc->context;
    if (!current) result = OSCAR__CU(hooks, d, "cuCtxGetCurrent", d->context_current(&current));
    if (!result && current) result = oscar__cu_context_device(hooks, d, current, &owner);
    if (!result && desc->device >= 0)
        result = OSCAR__CU(hooks, d, "cuDeviceGet", d->device_get(device, desc->device));
    if (result) return result;
    if (desc->device < 0 && !current)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "desc.device is -1, but this thread has no current context: make "
                           "one current, or give a number");
    if (desc->context && desc->device > 0 && *device != owner)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "desc.context is not of device %i: leave desc.device 0",
                           desc->device);
    if (desc->context || desc->device < 0) *device = owner;
    *context = current && *device == owner ? current : NULL;
    info->device = *device;
    return OSCAR_OK;
}

static oscar_result oscar__cu_old_device(const oscar_hooks *hooks, const oscar_cuda_info *info)
{
    if (info->sm >= OSCAR__CU_SM_LEAST) return OSCAR_OK;
    return OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "%s has compute capability %i.%i: choose a device of 7.5 or later",
                       info->name, info->sm / 10, info->sm % 10);
}

/* ---- probe ---- */

/* Hooks that keep the first sentence and pass everything on. */
typedef struct oscar__cu_witness { const oscar_hooks *hooks; char *sentence; } oscar__cu_witness;

static void oscar__cu_witness_log(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    oscar__cu_witness *w = (oscar__cu_witness *)user;
    if (level == OSCAR_LOG_ERROR && !w->sentence[0]) oscar__cu_copy_string(w->sentence, OSCAR_CUDA_PATH_BYTES, text);
    if (w->hooks && w->hooks->log) w->hooks->log(w->hooks->user, level, code, line, text);
}

OSCAR_API oscar_result oscar_cuda_probe(const oscar_cuda_desc *desc, oscar_cuda_info *info)
{
    oscar_cuda_desc d;
    oscar__cu_witness witness;
    oscar_hooks hooks;
    oscar__cu_driver driver;
    oscar__cu_nvrtc nvrtc;
    oscar_result result, later;
    void *context = NULL;
    int device = 0;
    if (!info) return desc ? OSCAR__FAIL(&desc->hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_probe needs a place for what it "
                                         "finds") : OSCAR_ERR_ARGUMENT;
    memset(&d, 0, sizeof d);
    memset(info, 0, sizeof *info);
    if (desc) d = *desc;
    memset(&hooks, 0, sizeof hooks);   /* nothing is allocated */
    witness.hooks = &d.hooks;
    witness.sentence = info->sentence;
    hooks.log = oscar__cu_witness_log;
    hooks.user = &witness;
    result = oscar__cu_driver_load(&hooks, d.driver, &driver);
    info->driver_version = driver.version;
    oscar__cu_copy_string(info->driver_path, sizeof info->driver_path, driver.path);
    if (!result) result = oscar__cu_pick(&hooks, &driver, &d, info, &device, &context);
    if (!result) result = oscar__cu_facts(&hooks, &driver, device, info);
    if (!result) result = oscar__cu_old_device(&hooks, info);
    later = oscar__cu_nvrtc_load(&hooks, d.nvrtc, info->driver_version, &nvrtc);
    if (!later) oscar__cu_info_nvrtc(&nvrtc, info);
    return result ? result : later;
}

/* ---- open, close ---- */

/* The object's context on the thread's stack. Each success needs a leave. */
static oscar_result oscar__cu_enter(const oscar_cuda *cuda)
{
    return OSCAR__CU(&cuda->hooks, &cuda->driver, "cuCtxPushCurrent", cuda->driver.context_push(cuda->context));
}

/* Takes it off again. A failure here is the call's own, unless that has failed already. */
static oscar_result oscar__cu_leave(const oscar_cuda *cuda, oscar_result result)
{
    void *popped = NULL;
    int code = cuda->driver.context_pop(&popped);
    return result ? result : OSCAR__CU(&cuda->hooks, &cuda->driver, "cuCtxPopCurrent", code);
}

static oscar_result oscar__cu_attach(oscar_cuda *cuda, const oscar_cuda_desc *desc)
{
    const oscar_hooks *hooks = &cuda->hooks;
    const oscar__cu_driver *d = &cuda->driver;
    void *context = NULL;
    oscar_result result = oscar__cu_driver_load(hooks, desc->driver, &cuda->driver);
    if (!result) result = oscar__cu_pick(hooks, d, desc, &cuda->info, &cuda->device, &context);
    if (!result) result = oscar__cu_facts(hooks, d, cuda->device, &cuda->info);
    if (!result) result = oscar__cu_old_device(hooks, &cuda->info);
    if (result) return result;
    if (!context) {
        result = OSCAR__CU(hooks, d, "cuDevicePrimaryCtxRetain", d->primary_retain(&context, cuda->device));
        if (result) return result;
        cuda->retained = 1;
    }
    cuda->context = context;
    cuda->info.context = context;
    cuda->info.driver_version = d->version;
    oscar__cu_copy_string(cuda->info.driver_path, sizeof cuda->info.driver_path, d->path);
    return OSCAR_OK;
}

/* A copy of a string of the desc behind the object; NULL for none. */
static const char *oscar__cu_keep(char **at, const char *from)
{
    char *copy = *at;
    size_t size = from ? strlen(from) + 1 : 0;
    if (!size) return NULL;
    memcpy(copy, from, size);
    *at += size;
    return copy;
}

OSCAR_API oscar_result oscar_cuda_open(const oscar_cuda_desc *desc, oscar_cuda **out)
{
    oscar_cuda_desc d;
    oscar_cuda *cuda;
    char *strings;
    size_t bytes;
    oscar_result result;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (d.cache && !*d.cache) d.cache = NULL;
    if ((result = oscar__hooks_check(&d.hooks)) != OSCAR_OK) return result;
    if (!out) return OSCAR__FAIL(&d.hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_open needs a place for the object");
    if (d.cache && strlen(d.cache) > 900)
        return OSCAR__FAIL(&d.hooks, OSCAR_ERR_ARGUMENT, "desc.cache has more than 900 bytes: give a shorter path");
#if defined(OSCAR_NO_STDIO)
    if (d.cache)
        return OSCAR__FAIL(&d.hooks, OSCAR_ERR_UNSUPPORTED, "desc.cache: this build has no files (OSCAR_NO_STDIO), "
                           "leave it NULL");
#endif
    bytes = sizeof *cuda + (d.cache ? strlen(d.cache) + 1 : 0) + (d.nvrtc ? strlen(d.nvrtc) + 1 : 0);
    cuda = (oscar_cuda *)oscar__alloc(&d.hooks, bytes);
    if (!cuda) return OSCAR__FAIL(&d.hooks, OSCAR_ERR_MEMORY, "no memory for a device object of %z bytes", bytes);
    memset(cuda, 0, bytes);
    strings = (char *)(cuda + 1);
    cuda->hooks = d.hooks;
    cuda->bytes = bytes;
    cuda->debug_sync = d.debug_sync;
    cuda->cache = oscar__cu_keep(&strings, d.cache);
    cuda->nvrtc_path = oscar__cu_keep(&strings, d.nvrtc);
    result = oscar__cu_attach(cuda, &d);
    if (result) oscar_cuda_close(cuda);
    else *out = cuda;
    return result;
}

static void oscar__cu_module_free(oscar_cuda *cuda, oscar__cu_module *m)
{
    if (m->module) (void)cuda->driver.module_unload(m->module);
    oscar__free(&cuda->hooks, m, sizeof *m);
}

OSCAR_API void oscar_cuda_close(oscar_cuda *cuda)
{
    oscar_hooks hooks;
    int entered;
    if (!cuda) return;
    hooks = cuda->hooks;
    /* where the context was destroyed before, its modules went with it */
    entered = cuda->context && !cuda->driver.context_push(cuda->context);
    while (cuda->modules) {
        oscar__cu_module *m = cuda->modules;
        cuda->modules = m->next;
        if (!entered) m->module = NULL;
        oscar__cu_module_free(cuda, m);
    }
    if (entered) (void)oscar__cu_leave(cuda, OSCAR_ERR_STATE);
    if (cuda->retained) (void)cuda->driver.primary_release(cuda->device);
    oscar__cu_buffer_free(&hooks, &cuda->log);
    oscar__free(&hooks, cuda, cuda->bytes);
}

OSCAR_API void oscar_cuda_get_info(const oscar_cuda *cuda, oscar_cuda_info *info)
{
    if (cuda && info) *info = cuda->info;
}

OSCAR_API const char *oscar_cuda_get_log(const oscar_cuda *cuda)
{
    return cuda && cuda->log.data ? (const char *)cuda->log.data : "";
}

/* ---- modules ---- */

/* What kernels would be made for here, by an NVRTC that knows the architecture sm. */
static oscar_result oscar__cu_plan_here(const oscar_cuda *cuda, const oscar_layout *layout,
                                        const oscar_cuda_options *options, int sm, oscar__cu_plan *out)
{
    oscar__cu_limits limits;
    limits.sm = sm;
    limits.block = cuda->info.shared_bytes;
    limits.all = cuda->info.shared_all_bytes;
    return oscar__cu_plan_of(layout, options, &limits, &cuda->hooks, out);
}

/* The loaded kernels of these constants, or NULL. */
static const oscar__cu_module *oscar__cu_find(const oscar_cuda *cuda, const oscar__cu_constants *wanted)
{
    const oscar__cu_module *m = cuda->modules;
    while (m && memcmp(&m->wanted, wanted, sizeof *wanted) != 0) m = m->next;
    return m;
}

OSCAR_API oscar_result oscar_cuda_ready(const oscar_cuda *cuda, const oscar_layout *layout,
                                        const oscar_cuda_options *options)
{
    oscar__cu_plan plan;
    oscar_result result;
    if (!cuda) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_plan_here(cuda, layout, options, cuda->info.sm, &plan);
    if (result || oscar__cu_find(cuda, &plan.constants)) return result;
    return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_STATE, "the kernels of this layer are not loaded: call oscar_cuda_load "
                       "before the first step, which a graph may be recording");
}

/* Lets a kernel have `bytes` of dynamic shared memory. */
static oscar_result oscar__cu_allow_shared(const oscar_cuda *cuda, void *function, const char *name, size_t bytes)
{
    const oscar__cu_driver *d = &cuda->driver;
    int own = 0;
    oscar_result result;
    if (!bytes) return OSCAR_OK;
    result = OSCAR__CU(&cuda->hooks, d, "cuFuncGetAttribute", d->function_get(&own, OSCAR__CU_SHARED_STATIC, function));
    if (result) return result;
    if (bytes > cuda->info.shared_bytes || (size_t)own > cuda->info.shared_bytes - bytes)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_UNSUPPORTED, "%s needs %z bytes of shared memory for this layer, %s "
                           "has %z a block: use smaller head dimensions or pages", name, bytes + (size_t)own,
                           cuda->info.name, cuda->info.shared_bytes);
    if (bytes + (size_t)own <= OSCAR__CU_SHARED_FREE) return OSCAR_OK;
    return OSCAR__CU(&cuda->hooks, d, "cuFuncSetAttribute",
                     d->function_set(function, OSCAR__CU_SHARED_DYNAMIC, (int)bytes));
}

/* Which of the plans a loaded module was made for, by the key of its text; an image of another text has none. */
static oscar_result oscar__cu_plan_found(const oscar_cuda *cuda, const oscar__cu_plans *plans, oscar__cu_module *m)
{
    const oscar__cu_driver *d = &cuda->driver;
    char name[48];
    void *function = NULL;
    int i;
    for (i = 0; i < plans->count; i++) {
        oscar__text nothing = { NULL, 0, 0 };
        int code;
        oscar__cu_key_name(oscar__cu_put_text(&plans->plan[i].constants, &nothing), name, sizeof name);
        code = d->module_function(&function, m->module, name);
        if (code && code != OSCAR__CU_NOT_FOUND) return OSCAR__CU(&cuda->hooks, d, "cuModuleGetFunction", code);
        if (code) continue;
        m->plan = plans->plan[i];
        return OSCAR_OK;
    }
    return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_VERSION, "the image is not of this layout, options and version of "
                       "oscar_cuda.h (it has no %s): make it again with oscar_cuda_compile", name);
}

/* Looks up the kernels of a loaded module, and has them loaded: a driver that loads lazily might else do so at the
   first launch, in a capture. */
static oscar_result oscar__cu_functions(const oscar_cuda *cuda, const oscar__cu_plans *plans, oscar__cu_module *m)
{
    const oscar__cu_driver *d = &cuda->driver;
    oscar_result result = oscar__cu_plan_found(cuda, plans, m);
    int i, code;
    for (i = 0; !result && i < OSCAR__CU_KERNEL_COUNT; i++) {
        const char *kernel = oscar__cu_kernel_names[i];
        code = d->module_function(&m->functions[i], m->module, kernel);
        if (code == OSCAR__CU_NOT_FOUND)
            result = OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_VERSION, "the image has no kernel %s: make it again with "
                                 "oscar_cuda_compile", kernel);
        else result = OSCAR__CU(&cuda->hooks, d, "cuModuleGetFunction", code);
        if (!result && d->function_load)
            result = OSCAR__CU(&cuda->hooks, d, "cuFuncLoad", d->function_load(m->functions[i]));
        if (!result)
            result = oscar__cu_allow_shared(cuda, m->functions[i], kernel, oscar__cu_shared(i, &m->plan));
    }
    return result;
}

/* An image becomes a module with its kernels. code: what cuModuleLoadData said; where that is not 0, ERR_CUDA without
   a word in the log, since another image may do. */
static oscar_result oscar__cu_install(oscar_cuda *cuda, const oscar__cu_plans *plans, const void *image, int *code)
{
    oscar__cu_module *m = (oscar__cu_module *)oscar__alloc(&cuda->hooks, sizeof *m);
    oscar_result result;
    *code = 0;
    if (!m) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_MEMORY, "no memory for a module of %z bytes", sizeof *m);
    memset(m, 0, sizeof *m);
    m->wanted = *plans->wanted;
    *code = cuda->driver.module_load(&m->module, image);
    if (*code) m->module = NULL;
    result = *code ? OSCAR_ERR_CUDA : oscar__cu_functions(cuda, plans, m);
    if (result) {
        oscar__cu_module_free(cuda, m);
        return result;
    }
    m->next = cuda->modules;
    cuda->modules = m;
    return OSCAR_OK;
}

/* What is left to say when no image was taken. first, second: what cuModuleLoadData said of a cubin, and of PTX; 0:
   not tried. */
static oscar_result oscar__cu_refused(const oscar_cuda *cuda, const oscar__cu_job *job, int first, int second)
{
    const oscar__cu_driver *d = &cuda->driver;
    const char *name = NULL, *other = NULL;
    int code = first ? first : second;
    if (code == OSCAR__CU_NO_MEMORY) return OSCAR__CU(&cuda->hooks, d, "cuModuleLoadData", code);
    if (d->error_name(code, &name) || !name) name = "unknown";
    if (!second || d->error_name(second, &other) || !other) other = "not tried";
    return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_CUDA, "the driver (CUDA %i.%i) refused what NVRTC %i.%i (%s) made for "
                       "sm_%i: %s (%i), as PTX: %s (%i). Update the driver, or point OSCAR_NVRTC_PATH at an NVRTC that "
                       "is not newer than it", d->version / 1000, d->version % 1000 / 10, job->nvrtc->version / 1000,
                       job->nvrtc->version % 1000 / 10, job->nvrtc->path, job->target.sm, name, code, other, second);
}

/* Compiles for one target and loads the result; the log of NVRTC is kept. */
static oscar_result oscar__cu_compile_install(oscar_cuda *cuda, const oscar__cu_plans *plans, uint64_t key,
                                              const oscar__cu_job *job, const char *folder, int *code)
{
    oscar__cu_buffer image = { NULL, 0 };
    oscar_result result;
    *code = 0;
    oscar__cu_buffer_free(&cuda->hooks, &cuda->log);
    result = oscar__cu_compile(job, &image, &cuda->log);
    if (!result) result = oscar__cu_install(cuda, plans, image.data, code);
    if (!result && folder) oscar__cu_file_write(job, folder, oscar__cu_file_key(key, job), &image);
    oscar__cu_buffer_free(&cuda->hooks, &image);
    return result;
}

/* From the cache folder. What the driver does not take is compiled again. */
static int oscar__cu_cached(oscar_cuda *cuda, const oscar__cu_plans *plans, uint64_t key, const oscar__cu_job *job)
{
    oscar__cu_buffer image = { NULL, 0 };
    int code = 0, loaded = 0;
    if (!cuda->cache || !oscar__cu_file_read(job, cuda->cache, oscar__cu_file_key(key, job), &image)) return 0;
    loaded = oscar__cu_install(cuda, plans, image.data, &code) == OSCAR_OK;
    oscar__cu_buffer_free(&cuda->hooks, &image);
    return loaded;
}

/* Loads NVRTC if that is still to be done, and finds out what to compile for. */
static oscar_result oscar__cu_prepare(oscar_cuda *cuda, oscar__cu_job *job)
{
    oscar__cu_nvrtc *n = &cuda->nvrtc;
    const oscar_hooks *hooks = &cuda->hooks;
    oscar_result result;
    if (!n->library) {
        result = oscar__cu_nvrtc_load(hooks, cuda->nvrtc_path, cuda->driver.version, n);
        if (result) return result;
        oscar__cu_info_nvrtc(n, &cuda->info);
    }
    memset(job, 0, sizeof *job);
    job->hooks = hooks;
    job->nvrtc = n;
    job->driver_version = cuda->driver.version;
    if (oscar__cu_choose(cuda->info.sm, cuda->driver.version, n->version, n->cubin_size && n->cubin, n->archs,
                         n->arch_count, &job->target)) return OSCAR_OK;
    return OSCAR__FAIL(hooks, OSCAR_ERR_UNSUPPORTED, "NVRTC %i.%i (%s) cannot compile for %s, sm_%i: its newest is "
                       "sm_%i, and the driver is of CUDA %i.%i; install a newer NVRTC, or a driver as new as it",
                       n->version / 1000, n->version % 1000 / 10, n->path, cuda->info.name, cuda->info.sm,
                       cuda->info.nvrtc_newest, cuda->driver.version / 1000, cuda->driver.version % 1000 / 10);
}

/* Kernels from the cache folder or from NVRTC. A cubin that the driver does not take is followed by PTX. */
static oscar_result oscar__cu_build(oscar_cuda *cuda, const oscar_layout *layout, const oscar_cuda_options *options,
                                    const oscar__cu_constants *wanted)
{
    oscar__cu_job job;
    oscar__cu_buffer text = { NULL, 0 };
    oscar__cu_plan plan;
    oscar__cu_plans plans;
    uint64_t key;
    int first = 0, second = 0;
    oscar_result result = oscar__cu_prepare(cuda, &job);
    if (!result) result = oscar__cu_plan_here(cuda, layout, options, job.target.sm, &plan);
    if (!result) result = oscar__cu_text(&cuda->hooks, &plan.constants, &text, &key);
    if (result) return result;
    plans.wanted = wanted;
    plans.plan = &plan;
    plans.count = 1;
    job.text = (const char *)text.data;
    if (!oscar__cu_cached(cuda, &plans, key, &job)) {
        result = oscar__cu_compile_install(cuda, &plans, key, &job, cuda->cache, &first);
        if (first && first != OSCAR__CU_NO_MEMORY && !job.target.ptx) {
            (void)oscar__log(&cuda->hooks, OSCAR_LOG_INFO, OSCAR_OK, __LINE__, "the driver does not take the cubin for "
                             "sm_%i (%i): trying PTX", job.target.sm, first);
            job.target.ptx = 1;
            result = oscar__cu_compile_install(cuda, &plans, key, &job, NULL, &second);
            if (second) result = oscar__cu_refused(cuda, &job, first, second);
        } else if (first) {
            result = oscar__cu_refused(cuda, &job, first, job.target.ptx ? first : 0);
        }
    }
    oscar__cu_buffer_free(&cuda->hooks, &text);
    return result;
}

/* The plans that an image for this device may have been made for: those of each architecture that differ. */
enum { OSCAR__CU_PLANS = 32 };

static int oscar__cu_plans_shipped(const oscar_cuda *cuda, const oscar_layout *layout,
                                   const oscar_cuda_options *options, oscar__cu_plan *out)
{
    static const int archs[] = { 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121 };
    int count = 0, i, several;
    for (i = (int)(sizeof archs / sizeof *archs) - 1; i >= 0; i--)
        for (several = 0; several < 2 && archs[i] <= cuda->info.sm; several++) {
            oscar__cu_limits limits = oscar__cu_limits_of(archs[i], several);
            if (oscar__cu_plan_of(layout, options, &limits, NULL, &out[count])) continue;
            if (count && !memcmp(&out[count].constants, &out[count - 1].constants, sizeof out->constants)) continue;
            count++;
        }
    return count;
}

/* Kernels from an image that was compiled elsewhere. */
static oscar_result oscar__cu_ship(oscar_cuda *cuda, const oscar__cu_plans *plans, const void *image, size_t size)
{
    const oscar_hooks *hooks = &cuda->hooks;
    oscar__cu_buffer copy = { NULL, 0 };
    int sm = 0, code = 0, device = cuda->info.sm;
    oscar_result result = OSCAR_OK;
    oscar__cu_form form;
    if (!oscar__cu_buffer_get(hooks, size, &copy))
        return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "no memory for an image of %z bytes", size);
    memcpy(copy.data, image, size);
    form = oscar__cu_image_form(copy.data, size, &sm);
    if (form == OSCAR__CU_DAMAGED)
        result = OSCAR__FAIL(hooks, OSCAR_ERR_FORMAT, "the image of %z bytes is no cubin, fatbin or PTX, or is cut "
                             "short", size);
    else if (form == OSCAR__CU_CUBIN && (sm / 10 != device / 10 || sm > device))
        result = OSCAR__FAIL(hooks, OSCAR_ERR_VERSION, "the image is for sm_%i, %s is sm_%i: cubins run on their own "
                             "major version, from their minor on", sm, cuda->info.name, device);
    if (!result) result = oscar__cu_install(cuda, plans, copy.data, &code);
    if (code) {
        const char *name = NULL;
        if (cuda->driver.error_name(code, &name) || !name) name = "unknown";
        result = code == OSCAR__CU_NO_MEMORY ? OSCAR_ERR_MEMORY : OSCAR_ERR_CUDA;
        result = OSCAR__FAIL(hooks, result, "the driver (CUDA %i.%i) does not take the image for %s, sm_%i: %s (%i)",
                             cuda->driver.version / 1000, cuda->driver.version % 1000 / 10, cuda->info.name, device,
                             name, code);
    }
    oscar__cu_buffer_free(hooks, &copy);
    return result;
}

static oscar_result oscar__cu_load_shipped(oscar_cuda *cuda, const oscar_layout *layout,
                                           const oscar_cuda_options *options, const oscar__cu_constants *wanted,
                                           const void *image, size_t size)
{
    oscar__cu_plans plans;
    oscar_result result;
    oscar__cu_plan *room = (oscar__cu_plan *)oscar__alloc(&cuda->hooks, OSCAR__CU_PLANS * sizeof *room);
    if (!room)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_MEMORY, "no memory for %z bytes to look at an image with",
                           OSCAR__CU_PLANS * sizeof *room);
    plans.wanted = wanted;
    plans.plan = room;
    plans.count = oscar__cu_plans_shipped(cuda, layout, options, room);
    result = oscar__cu_ship(cuda, &plans, image, size);
    oscar__free(&cuda->hooks, room, OSCAR__CU_PLANS * sizeof *room);
    return result;
}

OSCAR_API oscar_result oscar_cuda_load(oscar_cuda *cuda, const oscar_layout *layout, const oscar_cuda_options *options,
                                       const void *image, size_t size)
{
    oscar__cu_plan plan;
    oscar_result result;
    if (!cuda) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_plan_here(cuda, layout, options, cuda->info.sm, &plan);
    if (result || oscar__cu_find(cuda, &plan.constants)) return result;
    if (!image != !size)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "image and size: give both or none");
    result = oscar__cu_enter(cuda);
    if (result) return result;
    result = image ? oscar__cu_load_shipped(cuda, layout, options, &plan.constants, image, size)
                   : oscar__cu_build(cuda, layout, options, &plan.constants);
    return oscar__cu_leave(cuda, result);
}

/* == 4.5 LAUNCHES == */

/* Whether work for a stream is recorded in place of being done. Drivers that cannot tell do not record; the legacy
   default stream is never recorded, and must not be asked about while another one is. */
static oscar_result oscar__cu_captures(const oscar_cuda *cuda, void *stream, int *captures)
{
    int status = 0, code = 0;
    if ((uintptr_t)stream > 1 && cuda->driver.stream_capturing) code = cuda->driver.stream_capturing(stream, &status);
    *captures = status != 0;
    return OSCAR__CU(&cuda->hooks, &cuda->driver, "cuStreamIsCapturing", code);
}

/* A stream of the object's context? Drivers that cannot tell are believed. NULL and the other default streams belong to
   the context that is current. A stream that captures is not asked: with drivers before CUDA 12.5 that is forbidden. */
static oscar_result oscar__cu_stream_check(const oscar_cuda *cuda, void *stream)
{
    void *context = NULL;
    int captures;
    oscar_result result;
    if ((uintptr_t)stream <= 2 || !cuda->driver.stream_context) return OSCAR_OK;
    result = oscar__cu_captures(cuda, stream, &captures);
    if (result || captures) return result;
    if (!cuda->driver.stream_context(stream, &context) && context == cuda->context) return OSCAR_OK;
    return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "the stream is not of the object's context: make it there, or "
                       "open the object with the stream's context");
}

/* Numbers that a launch is made with. Sequences of a step are entries; `row_blocks` blocks of the grid share the rows
   of one, `splits` its history, `window_splits` its windows. */

/* Blocks that share a page where few pages are due, as in a decode step: one for each tile of the wider side. */
static int oscar__cu_write_parts(const oscar_layout *l)
{
    int dim = l->layer.k_dim > l->layer.v_dim ? l->layer.k_dim : l->layer.v_dim;
    int parts = l->page_tokens / (dim <= 128 ? 64 : dim <= 256 ? 32 : 16);
    return parts < 4 ? parts : 4;
}

/* The largest float S(x, x) that append accepts (oscar__append_rows_check): sqrt(S) <= 32000 / norm in double. */
static float oscar__cu_limit(float norm)
{
    double most = 32000 / (norm > 0 ? (double)norm : 1), square = most * most;
    float limit = square >= (double)FLT_MAX ? FLT_MAX : (float)square;
    while (limit > 0 && sqrt((double)limit) > most) limit = nextafterf(limit, 0);
    while (limit < FLT_MAX && sqrt((double)nextafterf(limit, FLT_MAX)) <= most) limit = nextafterf(limit, FLT_MAX);
    return limit;
}

/* Blocks of the grid that an entry's rows take. */
static int oscar__cu_row_blocks(const oscar_layer *l, const oscar__cu_shape *s, int rows)
{
    return oscar__cu_ceil(rows * (l->q_heads / l->kv_heads), s->pairs);
}

/* What `splits` take, in bytes read one after the other. Blocks of the grid run in waves of all multiprocessors (`wave`
   blocks), each as long as its share of the history and a fixed part: the time to start, about that of 64 tokens, and
   the bytes of partial results, written and read. units: blocks of one split. */
static double oscar__cu_split_time(const oscar_layout *layout, const oscar__cu_shape *s, int64_t units, int64_t wave,
                                   int64_t tokens, int splits)
{
    double token = (double)layout->head_bytes / layout->page_tokens;
    double fixed = 2.0 * s->pairs * (layout->layer.v_dim + 1) * sizeof(float) + 64 * token;
    return (double)((units * splits + wave - 1) / wave) * (token * (double)tokens / splits + fixed);
}

/* Splits of a history of up to most_tokens tokens, at most one a warp and block of 64: the fewest that take at most a
   twentieth more than the best, since shorter histories than that gain nothing from more. */
static int oscar__cu_splits(const oscar_layout *layout, const oscar__cu_shape *s, int entries, int row_blocks,
                            int64_t most_tokens, int multiprocessors)
{
    int64_t wave = (int64_t)s->blocks * multiprocessors, units = (int64_t)layout->layer.kv_heads * entries * row_blocks;
    int64_t most = (most_tokens / 64 + s->warps - 1) / s->warps;
    double least = oscar__cu_split_time(layout, s, units, wave, most_tokens, 1);
    int splits;
    if (most > OSCAR__CU_SPLITS_MOST) most = OSCAR__CU_SPLITS_MOST;
    for (splits = 2; splits <= most; splits++) {
        double time = oscar__cu_split_time(layout, s, units, wave, most_tokens, splits);
        if (time < least) least = time;
    }
    for (splits = 1; splits < most; splits++)
        if (oscar__cu_split_time(layout, s, units, wave, most_tokens, splits) <= 1.05 * least) break;
    return splits;
}

/* Device memory between the kernels: fragments and sums of `blocks` = entries * row blocks, partial o and lse of `rows`
   rows in all. */
static size_t oscar__cu_fragment_bytes(const oscar_layer *l, const oscar__cu_shape *s, size_t blocks)
{
    return blocks * (size_t)l->kv_heads * (size_t)s->fragments * 512;
}

static size_t oscar__cu_sum_bytes(const oscar_layer *l, const oscar__cu_shape *s, size_t blocks)
{
    return blocks * (size_t)l->kv_heads * (size_t)s->pairs * (size_t)s->sums * 4;
}

static size_t oscar__cu_part_o_bytes(const oscar_layer *l, size_t rows, int splits, int window_splits)
{
    return rows * (size_t)l->q_heads * (size_t)(splits + window_splits) * (size_t)l->v_dim * sizeof(float);
}

static size_t oscar__cu_part_lse_bytes(const oscar_layer *l, size_t rows, int splits, int window_splits)
{
    return rows * (size_t)l->q_heads * (size_t)(splits + window_splits) * sizeof(float);
}

/* Arguments of the kernels, as section 3 describes them; device memory is a 64-bit number, 0 for none. Counts that only
   make the grid stand last. A grid without blocks is no launch. */
typedef struct oscar__cu_write_args {
    uint64_t entries, tables, k, v;
    int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    uint64_t window_k, window_v, pool, constants, status;
    int layer, what, parts;
    int entry_count, most_pages;   /* most_pages: that an entry writes */
} oscar__cu_write_args;

typedef struct oscar__cu_read_args {
    uint64_t items, pool, k, v;
    int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    int out_type, windows;
    uint64_t constants;
    int item_count, most_rows;     /* most_rows: of an item */
} oscar__cu_read_args;

typedef struct oscar__cu_query_args {
    uint64_t entries, q;
    int64_t token_stride, head_stride;
    uint64_t dual, mean, fragments, sums;
    float scale;
    int row_blocks;
    int entry_count;
} oscar__cu_query_args;

typedef struct oscar__cu_decode_args {
    uint64_t entries, tables, pool, window_k, window_v, fragments, sums, part_o, part_lse;
    float cap;
    int row_blocks, window_splits;
    int splits, entry_count;
} oscar__cu_decode_args;

typedef struct oscar__cu_merge_args {
    uint64_t entries, part_o, part_lse, dual, sink_logits, o, lse;
    int64_t token_stride, head_stride;
    int entry_count, splits, window_splits;
    int row_count;
} oscar__cu_merge_args;

/* Starts a kernel; the context is current already. grid, block: three numbers each. */
static oscar_result oscar__cu_launch(const oscar_cuda *cuda, const oscar__cu_module *m, int kernel,
                                     const unsigned *grid, const unsigned *block, size_t shared, void *stream,
                                     void **arguments)
{
    const oscar__cu_driver *d = &cuda->driver;
    const char *name = oscar__cu_kernel_names[kernel];
    oscar_result result = OSCAR__CU(&cuda->hooks, d, name,
                                    d->launch(m->functions[kernel], grid[0], grid[1], grid[2], block[0], block[1],
                                              block[2], (unsigned)shared, stream, arguments, NULL));
    if (result || !cuda->debug_sync) return result;
    return OSCAR__CU(&cuda->hooks, d, name, d->stream_wait(stream));
}

/* The same for a block of `threads` in one dimension. */
static oscar_result oscar__cu_start(const oscar_cuda *cuda, const oscar__cu_module *m, int kernel, const unsigned *grid,
                                    unsigned threads, size_t shared, void *stream, void **arguments)
{
    unsigned block[3];
    block[0] = threads;
    block[1] = block[2] = 1;
    if (!grid[0] || !grid[1] || !grid[2]) return OSCAR_OK;
    return oscar__cu_launch(cuda, m, kernel, grid, block, shared, stream, arguments);
}

static oscar_result oscar__cu_launch_write(const oscar_cuda *cuda, const oscar__cu_module *m, void *stream,
                                           const oscar__cu_write_args *args)
{
    oscar__cu_write_args a = *args;
    unsigned grid[3];
    void *p[16];
    grid[0] = 1u + (unsigned)(a.what & 1 ? a.parts * a.most_pages : 0);
    grid[1] = 2u * (unsigned)m->plan.layout.layer.kv_heads;
    grid[2] = (unsigned)a.entry_count;
    p[0] = &a.entries; p[1] = &a.tables; p[2] = &a.k; p[3] = &a.v;
    p[4] = &a.k_token_stride; p[5] = &a.k_head_stride; p[6] = &a.v_token_stride; p[7] = &a.v_head_stride;
    p[8] = &a.window_k; p[9] = &a.window_v; p[10] = &a.pool; p[11] = &a.constants; p[12] = &a.status;
    p[13] = &a.layer; p[14] = &a.what; p[15] = &a.parts;
    return oscar__cu_start(cuda, m, OSCAR__CU_WRITE, grid, 256, oscar__cu_shared(OSCAR__CU_WRITE, &m->plan), stream, p);
}

static oscar_result oscar__cu_launch_read(const oscar_cuda *cuda, const oscar__cu_module *m, void *stream,
                                          const oscar__cu_read_args *args)
{
    oscar__cu_read_args a = *args;
    unsigned grid[3];
    void *p[11];
    grid[0] = (unsigned)oscar__cu_ceil(a.most_rows, 8);
    grid[1] = 2u * (unsigned)m->plan.layout.layer.kv_heads;
    grid[2] = (unsigned)a.item_count;
    p[0] = &a.items; p[1] = &a.pool; p[2] = &a.k; p[3] = &a.v;
    p[4] = &a.k_token_stride; p[5] = &a.k_head_stride; p[6] = &a.v_token_stride; p[7] = &a.v_head_stride;
    p[8] = &a.out_type; p[9] = &a.windows; p[10] = &a.constants;
    return oscar__cu_start(cuda, m, OSCAR__CU_READ, grid, 256, oscar__cu_shared(OSCAR__CU_READ, &m->plan), stream, p);
}

static oscar_result oscar__cu_launch_query(const oscar_cuda *cuda, const oscar__cu_module *m, void *stream,
                                           const oscar__cu_query_args *args)
{
    oscar__cu_query_args a = *args;
    unsigned grid[3];
    void *p[10];
    grid[0] = (unsigned)m->plan.layout.layer.kv_heads;
    grid[1] = (unsigned)(a.entry_count * a.row_blocks);
    grid[2] = 1;
    p[0] = &a.entries; p[1] = &a.row_blocks; p[2] = &a.q; p[3] = &a.token_stride; p[4] = &a.head_stride;
    p[5] = &a.dual; p[6] = &a.mean; p[7] = &a.scale; p[8] = &a.fragments; p[9] = &a.sums;
    return oscar__cu_start(cuda, m, OSCAR__CU_QUERY, grid, 256, oscar__cu_shared(OSCAR__CU_QUERY, &m->plan), stream, p);
}

static oscar_result oscar__cu_launch_decode(const oscar_cuda *cuda, const oscar__cu_module *m, void *stream,
                                            const oscar__cu_decode_args *args)
{
    oscar__cu_decode_args a = *args;
    unsigned grid[3];
    void *p[12];
    grid[0] = (unsigned)(a.splits + a.window_splits);
    grid[1] = (unsigned)m->plan.layout.layer.kv_heads;
    grid[2] = (unsigned)(a.entry_count * a.row_blocks);
    p[0] = &a.entries; p[1] = &a.row_blocks; p[2] = &a.tables; p[3] = &a.pool; p[4] = &a.window_k; p[5] = &a.window_v;
    p[6] = &a.fragments; p[7] = &a.sums; p[8] = &a.cap; p[9] = &a.window_splits; p[10] = &a.part_o; p[11] = &a.part_lse;
    return oscar__cu_start(cuda, m, OSCAR__CU_DECODE, grid, 32u * (unsigned)m->plan.shape.warps,
                           oscar__cu_shared(OSCAR__CU_DECODE, &m->plan), stream, p);
}

static oscar_result oscar__cu_launch_merge(const oscar_cuda *cuda, const oscar__cu_module *m, void *stream,
                                           const oscar__cu_merge_args *args)
{
    const oscar_layer *l = &m->plan.layout.layer;
    oscar__cu_merge_args a = *args;
    int heads = m->plan.shape.merge_heads;
    unsigned grid[3];
    void *p[12];
    grid[0] = (unsigned)a.row_count;
    grid[1] = (unsigned)l->kv_heads;
    grid[2] = (unsigned)oscar__cu_ceil(l->q_heads / l->kv_heads, heads);
    p[0] = &a.entries; p[1] = &a.entry_count; p[2] = &a.splits; p[3] = &a.window_splits; p[4] = &a.part_o;
    p[5] = &a.part_lse; p[6] = &a.dual; p[7] = &a.sink_logits; p[8] = &a.o; p[9] = &a.token_stride;
    p[10] = &a.head_stride; p[11] = &a.lse;
    return oscar__cu_start(cuda, m, OSCAR__CU_MERGE, grid, 256,
                           oscar__cu_merge_shared(l, heads, a.splits, a.window_splits), stream, p);
}

/* The check kernel's answer. out: device memory of 32 numbers; the context is current. */
static oscar_result oscar__cu_ask(const oscar_cuda *cuda, const oscar__cu_module *m, uint64_t out, void *stream)
{
    static const unsigned grid[3] = { 1, 1, 1 }, block[3] = { 32, 1, 1 };
    const oscar__cu_driver *d = &cuda->driver;
    const int64_t *c = m->plan.constants.value;
    uint32_t answer[32];
    void *arguments[1];
    oscar_result result;
    unsigned i;
    memset(answer, 0, sizeof answer);
    arguments[0] = &out;
    result = oscar__cu_launch(cuda, m, OSCAR__CU_CHECK, grid, block, 0, stream, arguments);
    if (!result)
        result = OSCAR__CU(&cuda->hooks, d, "cuMemcpyDtoHAsync", d->copy_out(answer, out, sizeof answer, stream));
    if (!result) result = OSCAR__CU(&cuda->hooks, d, "oscar_cu_check", d->stream_wait(stream));
    if (result) return result;
    for (i = 4; i < 32 && answer[i] == i; i++) {}
    if (i == 32 && answer[0] == (uint32_t)c[OSCAR__CU_PAGE_BYTES] && answer[1] == (uint32_t)c[OSCAR__CU_HEAD_BYTES]
        && answer[2] == (uint32_t)c[OSCAR__CU_RING]) return OSCAR_OK;
    return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_STATE, "oscar_cu_check on %s gave a wrong answer (%i, %i, %i): was its "
                       "memory written to by someone else?", cuda->info.name, (int)answer[0], (int)answer[1],
                       (int)answer[2]);
}

OSCAR_API oscar_result oscar_cuda_check(const oscar_cuda *cuda, const oscar_layout *layout,
                                        const oscar_cuda_options *options, void *stream)
{
    const oscar__cu_driver *d;
    oscar__cu_plan plan;
    uint64_t out = 0;
    oscar_result result = oscar_cuda_ready(cuda, layout, options);
    if (!result) result = oscar__cu_plan_here(cuda, layout, options, cuda->info.sm, &plan);
    if (!result) result = oscar__cu_enter(cuda);
    if (result) return result;
    d = &cuda->driver;
    result = oscar__cu_stream_check(cuda, stream);
    if (!result) result = OSCAR__CU(&cuda->hooks, d, "cuMemAlloc", d->mem_alloc(&out, 32 * sizeof(uint32_t)));
    if (!result) {
        int code;
        result = oscar__cu_ask(cuda, oscar__cu_find(cuda, &plan.constants), out, stream);
        code = d->mem_free(out);
        if (!result) result = OSCAR__CU(&cuda->hooks, d, "cuMemFree", code);
    }
    return oscar__cu_leave(cuda, result);
}

/* == 4.6 LAYERS == */

typedef char oscar__cu_entry_is_48[sizeof(oscar_cuda_entry) == 48 ? 1 : -1];
typedef char oscar__cu_item_is_32[sizeof(oscar_cuda_item) == 32 ? 1 : -1];

enum {
    OSCAR__CU_NOT_READY = 600, OSCAR__CU_NO_TIMING = 2, OSCAR__CU_NON_BLOCKING = 1, OSCAR__CU_RELAXED = 2,
    OSCAR__CU_PIECE = 64,    /* rows of a prefill that attend at a time */
    OSCAR__CU_BUFFERS = 4,    /* buffers on the way to the device */
    OSCAR__CU_ITEMS = 64     /* of a launch that reads pages */
};

/* constants: the kernel's struct of addresses, followed by the arrays; module: cuda's. */
struct oscar_cuda_layer {
    oscar_cuda *cuda;
    const oscar__cu_module *module;
    oscar_layout layout;
    oscar__cu_shape shape;
    int window_rows, row_type;
    uint64_t constants, k_dual, k_mean, v_dual;
};

static size_t oscar__cu_round_up(size_t bytes) { return oscar__align_up(bytes, 256); }

/* Arrays of a layer, one after the other: counted where host is NULL. base: their place on the device. */
typedef struct oscar__cu_packer { unsigned char *host; uint64_t base; size_t size; } oscar__cu_packer;

typedef enum oscar__cu_array {
    OSCAR__CU_ARRAY_TO, OSCAR__CU_ARRAY_DUAL, OSCAR__CU_ARRAY_MEAN, OSCAR__CU_ARRAY_METRIC
} oscar__cu_array;

/* One array [KV heads][...] of the pairs of a side. Returns its address on the device. */
static uint64_t oscar__cu_pack(oscar__cu_packer *p, const oscar_layer *l, int is_k, oscar__cu_array what)
{
    size_t dim = (size_t)(is_k ? l->k_dim : l->v_dim), count = what == OSCAR__CU_ARRAY_MEAN ? dim : dim * dim;
    size_t at = p->size;
    int h;
    p->size = oscar__cu_round_up(oscar__add(p->size, oscar__mul((size_t)l->kv_heads, count * sizeof(float))));
    for (h = 0; p->host && h < l->kv_heads; h++) {
        oscar_pair pair = oscar__pair_of(is_k ? l->k : l->v, h, (int)dim);
        const float *from = what == OSCAR__CU_ARRAY_TO ? pair.to : what == OSCAR__CU_ARRAY_MEAN ? pair.mean
                          : what == OSCAR__CU_ARRAY_METRIC ? pair.metric : pair.dual ? pair.dual : pair.to;
        unsigned char *to = p->host + at + (size_t)h * count * sizeof(float);
        if (from) memcpy(to, from, count * sizeof(float));
        else memset(to, 0, count * sizeof(float));
    }
    return p->base + at;
}

/* The longest rows of a side that can be quantised, [KV heads]. */
static uint64_t oscar__cu_pack_limits(oscar__cu_packer *p, const oscar_layer *l, int is_k)
{
    size_t at = p->size;
    int h;
    p->size = oscar__cu_round_up(oscar__add(p->size, oscar__mul((size_t)l->kv_heads, sizeof(float))));
    for (h = 0; p->host && h < l->kv_heads; h++) {
        oscar_pair pair = oscar__pair_of(is_k ? l->k : l->v, h, is_k ? l->k_dim : l->v_dim);
        float norm = pair.norm > 0 ? pair.norm : 1, limit;
        if (pair.dual && !(pair.norm > 0)) norm = (float)oscar__matrix_norm(pair.dim, pair.to);
        limit = oscar__cu_limit(!is_k && l->v_folded ? 1.0f : norm);
        memcpy(p->host + at + (size_t)h * sizeof(float), &limit, sizeof limit);
    }
    return p->base + at;
}

/* All arrays that the constants c ask for, the struct of their addresses first; *out (may be NULL) keeps those that
   attention takes. */
static void oscar__cu_pack_layer(oscar__cu_packer *p, const oscar_layer *l, const oscar__cu_constants *c,
                                 oscar_cuda_layer *out)
{
    const int64_t *value = c->value;
    uint64_t at[8];
    memset(at, 0, sizeof at);
    p->size = oscar__cu_round_up(sizeof at);
    if (value[OSCAR__CU_K_KIND] == OSCAR_DENSE) {
        at[0] = oscar__cu_pack(p, l, 1, OSCAR__CU_ARRAY_TO);
        at[1] = oscar__cu_pack(p, l, 1, OSCAR__CU_ARRAY_DUAL);
    }
    if (value[OSCAR__CU_K_MEAN]) at[2] = oscar__cu_pack(p, l, 1, OSCAR__CU_ARRAY_MEAN);
    if (value[OSCAR__CU_K_METRIC]) at[3] = oscar__cu_pack(p, l, 1, OSCAR__CU_ARRAY_METRIC);
    if (value[OSCAR__CU_V_KIND] == OSCAR_DENSE) {
        at[4] = oscar__cu_pack(p, l, 0, OSCAR__CU_ARRAY_TO);
        at[5] = oscar__cu_pack(p, l, 0, OSCAR__CU_ARRAY_DUAL);
    }
    at[6] = oscar__cu_pack_limits(p, l, 1);
    at[7] = oscar__cu_pack_limits(p, l, 0);
    if (p->host) memcpy(p->host, at, sizeof at);
    if (!out) return;
    out->k_dual = at[1];
    out->k_mean = at[2];
    out->v_dual = at[5];
}

static size_t oscar__cu_layer_bytes(const oscar_layer *l, const oscar__cu_constants *c)
{
    oscar__cu_packer p = { NULL, 0, 0 };
    oscar__cu_pack_layer(&p, l, c, NULL);
    return p.size;
}

/* Device memory, of which the log says what it was for. */
static oscar_result oscar__cu_take(const oscar_cuda *cuda, size_t bytes, const char *what, uint64_t *out)
{
    uint64_t memory = 0;
    int code = cuda->driver.mem_alloc(&memory, bytes ? bytes : 16);
    if (code == OSCAR__CU_NO_MEMORY)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_MEMORY, "%s has no %z bytes left for %s: lower max_pages or "
                           "max_sequences, or free other memory", cuda->info.name, bytes, what);
    if (code) return OSCAR__CU(&cuda->hooks, &cuda->driver, "cuMemAlloc", code);
    *out = memory;
    return OSCAR_OK;
}

static void oscar__cu_give(const oscar_cuda *cuda, uint64_t *memory)
{
    if (*memory) (void)cuda->driver.mem_free(*memory);
    *memory = 0;
}

/* Bytes of the host, or zeros (from NULL), to new device memory; waits for them. In a stream of its own: the default
   one would wait for the streams of others. */
static oscar_result oscar__cu_fill(const oscar_cuda *cuda, uint64_t to, const void *from, size_t bytes)
{
    const oscar_hooks *hooks = &cuda->hooks;
    const oscar__cu_driver *d = &cuda->driver;
    void *stream = NULL;
    oscar_result result = OSCAR__CU(hooks, d, "cuStreamCreate", d->stream_create(&stream, OSCAR__CU_NON_BLOCKING));
    if (result) return result;
    if (from) result = OSCAR__CU(hooks, d, "cuMemcpyHtoDAsync", d->copy_in(to, from, bytes, stream));
    else result = OSCAR__CU(hooks, d, "cuMemsetD8Async", d->mem_set(to, 0, bytes, stream));
    if (!result) result = OSCAR__CU(hooks, d, "cuStreamSynchronize", d->stream_wait(stream));
    (void)d->stream_destroy(stream);
    return result;
}

/* Kernels and arrays of a layer; the context is current. What was taken before a failure is in *out. */
static oscar_result oscar__cu_layer_start(oscar_cuda *cuda, const oscar_layout *layout,
                                          const oscar_cuda_options *options, oscar_cuda_layer *out)
{
    const oscar_hooks *hooks = &cuda->hooks;
    const oscar__cu_constants *c;
    oscar__cu_plan plan;
    oscar__cu_packer p = { NULL, 0, 0 };
    size_t bytes;
    oscar_result result = oscar_cuda_load(cuda, layout, options, NULL, 0);
    if (!result) result = oscar__cu_plan_here(cuda, layout, options, cuda->info.sm, &plan);
    if (result) return result;
    out->module = oscar__cu_find(cuda, &plan.constants);
    out->layout = out->module->plan.layout;   /* without the pairs, which are on the device from here on */
    c = &out->module->plan.constants;
    out->shape = out->module->plan.shape;
    out->row_type = (int)c->value[OSCAR__CU_ROW_TYPE];
    out->window_rows = (int)(c->value[OSCAR__CU_SINK] + c->value[OSCAR__CU_RING]);
    bytes = oscar__cu_layer_bytes(&layout->layer, c);
    result = oscar__cu_take(cuda, bytes, "the transform pairs of a layer", &out->constants);
    if (result) return result;
    p.host = (unsigned char *)oscar__alloc(hooks, bytes);
    if (!p.host) return OSCAR__FAIL(hooks, OSCAR_ERR_MEMORY, "no memory for a copy of %z bytes of pairs", bytes);
    memset(p.host, 0, bytes);
    p.base = out->constants;
    oscar__cu_pack_layer(&p, &layout->layer, c, out);
    result = oscar__cu_fill(cuda, out->constants, p.host, bytes);
    oscar__free(hooks, p.host, bytes);
    return result;
}

OSCAR_API oscar_result oscar_cuda_layer_create(oscar_cuda *cuda, const oscar_layout *layout,
                                               const oscar_cuda_options *options, oscar_cuda_layer **out)
{
    oscar_cuda_layer *layer;
    oscar_result result;
    if (!cuda) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_layer_create has no place for a layer");
    layer = (oscar_cuda_layer *)oscar__alloc(&cuda->hooks, sizeof *layer);
    if (!layer) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_MEMORY, "no memory for a layer of %z bytes", sizeof *layer);
    memset(layer, 0, sizeof *layer);
    layer->cuda = cuda;
    result = oscar__cu_enter(cuda);
    if (!result) {
        result = oscar__cu_layer_start(cuda, layout, options, layer);
        if (result) oscar__cu_give(cuda, &layer->constants);
        result = oscar__cu_leave(cuda, result);
    }
    if (result) {
        oscar_cuda_layer_destroy(layer);
        return result;
    }
    *out = layer;
    return OSCAR_OK;
}

OSCAR_API void oscar_cuda_layer_destroy(oscar_cuda_layer *layer)
{
    oscar_cuda *cuda;
    if (!layer) return;
    cuda = layer->cuda;
    if (layer->constants && !cuda->driver.context_push(cuda->context)) {
        oscar__cu_give(cuda, &layer->constants);
        (void)oscar__cu_leave(cuda, OSCAR_ERR_STATE);
    }
    oscar__free(&cuda->hooks, layer, sizeof *layer);
}

/* ---- launches ---- */

/* Places of fragments, sums, o and lse of the parts in memory.work; returns the bytes. */
static size_t oscar__cu_work_place(const oscar_cuda_layer *layer, const oscar_cuda_memory *m, int window_splits,
                                   size_t *at)
{
    const oscar_layer *l = &layer->layout.layer;
    const oscar__cu_shape *s = &layer->shape;
    size_t blocks = (size_t)m->entry_count * (size_t)oscar__cu_row_blocks(l, s, m->entry_rows);
    size_t rows = (size_t)m->rows;
    at[0] = 0;
    at[1] = at[0] + oscar__cu_round_up(oscar__cu_fragment_bytes(l, s, blocks));
    at[2] = at[1] + oscar__cu_round_up(oscar__cu_sum_bytes(l, s, blocks));
    at[3] = at[2] + oscar__cu_round_up(oscar__cu_part_o_bytes(l, rows, m->splits, window_splits));
    return at[3] + oscar__cu_round_up(oscar__cu_part_lse_bytes(l, rows, m->splits, window_splits));
}

OSCAR_API int oscar_cuda_splits(const oscar_cuda_layer *layer, int entry_count, int entry_rows, int64_t tokens)
{
    const oscar_layer *l;
    if (!layer || entry_count < 1 || entry_rows < 1) return 1;
    l = &layer->layout.layer;
    return oscar__cu_splits(&layer->layout, &layer->shape, entry_count,
                            oscar__cu_row_blocks(l, &layer->shape, entry_rows), tokens,
                            layer->cuda->info.multiprocessors);
}

OSCAR_API size_t oscar_cuda_work_bytes(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory)
{
    size_t at[4];
    if (!layer || !memory) return 0;
    return oscar__cu_work_place(layer, memory, oscar__cu_window_splits(&layer->shape, layer->window_rows), at);
}

/* Address and strides, those filled in. rows NULL: none. */
static void oscar__cu_rows_get(const oscar_cuda_rows *rows, int heads, int dim, uint64_t *data, int64_t *token_stride,
                               int64_t *head_stride)
{
    *data = rows ? rows->data : 0;
    *token_stride = rows && rows->token_stride ? (int64_t)rows->token_stride : (int64_t)heads * dim;
    *head_stride = rows && rows->head_stride ? (int64_t)rows->head_stride : dim;
}

/* Checks that are the same for all launches, then the context. ok: what `needs` says is given. */
static oscar_result oscar__cu_begin(const oscar_cuda *cuda, const oscar_cuda_memory *m, int ok, const char *needs,
                                    void *stream)
{
    oscar_result result;
    if (!ok || !m || m->entry_count < 0 || m->entry_count > 65535)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "%s, and at most 65535 entries", needs);
    result = oscar__cu_enter(cuda);
    if (result) return result;
    result = oscar__cu_stream_check(cuda, stream);
    return result ? oscar__cu_leave(cuda, result) : OSCAR_OK;
}

/* The context is current. what: as of oscar_cuda_write_pages. */
static oscar_result oscar__cu_do_write(const oscar_cuda_layer *layer, const oscar_cuda_memory *m,
                                       const oscar_cuda_rows *k, const oscar_cuda_rows *v, int what, void *stream)
{
    const oscar_layer *l = &layer->layout.layer;
    oscar__cu_write_args a;
    int parts = oscar__cu_write_parts(&layer->layout);
    if (!m->entry_count || (what == 1 && !m->entry_pages)) return OSCAR_OK;
    memset(&a, 0, sizeof a);
    a.entries = m->entries;
    a.tables = m->tables;
    a.entry_count = m->entry_count;
    a.most_pages = m->entry_pages;
    a.parts = a.most_pages > 4 ? 1 : parts;   /* many pages fill the device as they are */
    oscar__cu_rows_get(k, l->kv_heads, l->k_dim, &a.k, &a.k_token_stride, &a.k_head_stride);
    oscar__cu_rows_get(v, l->kv_heads, l->v_dim, &a.v, &a.v_token_stride, &a.v_head_stride);
    a.window_k = m->window_k;
    a.window_v = m->window_v;
    a.pool = m->pool;
    a.constants = layer->constants;
    a.status = m->status;
    a.layer = m->layer;
    a.what = what;
    return oscar__cu_launch_write(layer->cuda, layer->module, stream, &a);
}

OSCAR_API oscar_result oscar_cuda_write_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                              const oscar_cuda_rows *k, const oscar_cuda_rows *v, int what,
                                              void *stream)
{
    oscar_result result;
    if (!layer) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_begin(layer->cuda, memory, memory && what >= 1 && what <= 3 && memory->pool && memory->window_k
                             && memory->window_v && memory->status && memory->entry_pages >= 0,
                             "oscar_cuda_write_pages needs pool, windows and status of memory, what 1 to 3", stream);
    if (result) return result;
    return oscar__cu_leave(layer->cuda, oscar__cu_do_write(layer, memory, k, v, what, stream));
}

/* The context is current. */
static oscar_result oscar__cu_do_attend(const oscar_cuda_layer *layer, const oscar_cuda_memory *m,
                                        const oscar_cuda_rows *q, uint64_t sink_logits, const oscar_cuda_rows *o,
                                        uint64_t lse, void *stream)
{
    const oscar_layer *l = &layer->layout.layer;
    int row_blocks = oscar__cu_row_blocks(l, &layer->shape, m->entry_rows);
    int window_splits = m->window_k ? oscar__cu_window_splits(&layer->shape, layer->window_rows) : 0;
    oscar__cu_query_args query;
    oscar__cu_decode_args decode;
    oscar__cu_merge_args merge;
    size_t at[4];
    oscar_result result;
    if (!m->rows) return OSCAR_OK;
    (void)oscar__cu_work_place(layer, m, window_splits, at);
    query.entries = decode.entries = merge.entries = m->entries;
    query.entry_count = decode.entry_count = merge.entry_count = m->entry_count;
    query.row_blocks = decode.row_blocks = row_blocks;
    query.fragments = decode.fragments = m->work + at[0];
    query.sums = decode.sums = m->work + at[1];
    decode.part_o = merge.part_o = m->work + at[2];
    decode.part_lse = merge.part_lse = m->work + at[3];
    decode.splits = merge.splits = m->splits;
    decode.window_splits = merge.window_splits = window_splits;
    oscar__cu_rows_get(q, l->q_heads, l->k_dim, &query.q, &query.token_stride, &query.head_stride);
    query.dual = layer->k_dual;
    query.mean = layer->k_mean;
    query.scale = l->scale;
    decode.tables = m->tables;
    decode.pool = m->pool;
    decode.window_k = m->window_k;
    decode.window_v = m->window_v;
    decode.cap = l->softcap;
    oscar__cu_rows_get(o, l->q_heads, l->v_dim, &merge.o, &merge.token_stride, &merge.head_stride);
    merge.dual = layer->v_dual;
    merge.sink_logits = sink_logits;
    merge.lse = lse;
    merge.row_count = m->rows;
    result = oscar__cu_launch_query(layer->cuda, layer->module, stream, &query);
    if (!result) result = oscar__cu_launch_decode(layer->cuda, layer->module, stream, &decode);
    if (!result) result = oscar__cu_launch_merge(layer->cuda, layer->module, stream, &merge);
    return result;
}

OSCAR_API oscar_result oscar_cuda_attend_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                               const oscar_cuda_rows *q, uint64_t sink_logits,
                                               const oscar_cuda_rows *o, uint64_t lse, void *stream)
{
    const oscar_cuda_memory *m = memory;
    oscar_result result;
    if (!layer) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_begin(layer->cuda, m, m && q && q->data && o && o->data && m->work && m->splits > 0
                             && m->splits <= OSCAR__CU_SPLITS_MOST && m->entry_count > 0 && m->entry_rows > 0
                             && m->rows >= 0 && !m->window_k == !m->window_v
                             && (int64_t)m->entry_count * oscar__cu_row_blocks(&layer->layout.layer, &layer->shape,
                                                                               m->entry_rows) <= 65535,
                             "oscar_cuda_attend_pages needs q, o, memory.work, splits 1 to 256, both windows or none, "
                             "counts above 0", stream);
    if (result) return result;
    return oscar__cu_leave(layer->cuda, oscar__cu_do_attend(layer, m, q, sink_logits, o, lse, stream));
}

/* The context is current. */
static oscar_result oscar__cu_do_read(const oscar_cuda_layer *layer, const oscar_cuda_memory *m, uint64_t items,
                                      int item_count, int item_rows, int windows, oscar_type out_type,
                                      const oscar_cuda_rows *k, const oscar_cuda_rows *v, void *stream)
{
    const oscar_layer *l = &layer->layout.layer;
    oscar__cu_read_args a;
    if (!item_count || !item_rows) return OSCAR_OK;
    memset(&a, 0, sizeof a);
    a.items = items;
    a.pool = m->pool;
    a.item_count = item_count;
    a.most_rows = item_rows;
    oscar__cu_rows_get(k, l->kv_heads, l->k_dim, &a.k, &a.k_token_stride, &a.k_head_stride);
    oscar__cu_rows_get(v, l->kv_heads, l->v_dim, &a.v, &a.v_token_stride, &a.v_head_stride);
    if (windows) {
        a.k = m->window_k;
        a.v = m->window_v;
    }
    a.out_type = out_type == OSCAR_TYPE_DEFAULT ? (int)OSCAR_F32 : (int)out_type;
    a.windows = windows;
    a.constants = layer->constants;
    return oscar__cu_launch_read(layer->cuda, layer->module, stream, &a);
}

OSCAR_API oscar_result oscar_cuda_read_pages(const oscar_cuda_layer *layer, const oscar_cuda_memory *memory,
                                             uint64_t items, int item_count, int item_rows, int windows,
                                             oscar_type out_type, const oscar_cuda_rows *k, const oscar_cuda_rows *v,
                                             void *stream)
{
    oscar_result result;
    if (!layer) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_begin(layer->cuda, memory, memory && memory->pool && items && item_count >= 0
                             && item_count <= 65535 && item_rows >= 0 && oscar__type_valid(out_type)
                             && (!windows || (memory->window_k && memory->window_v)),
                             "oscar_cuda_read_pages needs pool, 0 to 65535 items, a type, windows if they are read "
                             "into", stream);
    if (result) return result;
    return oscar__cu_leave(layer->cuda, oscar__cu_do_read(layer, memory, items, item_count, item_rows, windows,
                                                          out_type, k, v, stream));
}

/* == 4.7 CACHE ON A DEVICE == */

/* Two areas of device memory describe what kernels do: area 0 the step, area 1 moves (accept, cut, abort, gather). Both
   are written by copies from pinned buffers, in the stream's order:

     area 0   entries [max_batch]   table of each entry, on 16 bytes   pieces: entries of a prefill over what was before
     area 1   entries [max_batch]   their tables                       items, behind the tables

   Addresses of entries and tables are fixed, so a captured graph reads those of the step it is replayed for. */

/* A desc with its defaults filled in. fused: steps that attend are short enough for one launch of pages and windows;
   pages: most that an entry of such a step writes; table_room: ids of one table; area: bytes. */
typedef struct oscar__cu_resolved {
    oscar_cache_desc desc;
    oscar_pager_desc pager;
    oscar_cuda_options options;
    int max_batch, max_rows, max_chunk, fused, pages;
    int64_t max_context, table_room;
    size_t area;
} oscar__cu_resolved;

/* A layer with its memory. k_row, v_row: bytes of a window row of all KV heads. */
typedef struct oscar__cu_store {
    oscar_cuda_layer layer;
    uint64_t pool, window_k, window_v;
    size_t k_row, v_row;
    int splits, piece_splits;    /* of a step of as many entries as the last one, of a piece of a prefill */
    int appended;                /* has written the open step */
} oscar__cu_store;

/* torn: 0, or what has to be repeated for a sequence: a cut (1), an abort (2; `unfinished` counts these).
   step: of the last oscar_cuda_step, members that left are zero; open: not yet committed; live: attention may use it;
   pieces: their place in area 0. split_count: entries that the splits of the stores are for. pending: the event of a
   buffer was recorded. */
struct oscar_cuda_cache {
    oscar_cuda *cuda;
    size_t bytes;
    oscar__cu_resolved r;
    oscar_pager *pager;
    oscar__cu_store *stores;
    int store_count;
    unsigned char *torn;
    int unfinished;
    uint64_t areas, work, status;
    unsigned char *stages;
    void *events[OSCAR__CU_BUFFERS];
    int pending[OSCAR__CU_BUFFERS], turn;
    oscar_batch *step;
    int step_count, step_open, step_live, step_draft, step_chunk, step_appended, step_most, step_pages;
    int split_count;
    size_t step_pieces;
};

/* ---- create ---- */

static oscar_result oscar__cu_resolve_counts(const oscar_hooks *hooks, const oscar_cuda_cache_desc *in,
                                             oscar__cu_resolved *r)
{
    int64_t pieces;
    if (in->max_batch < 0 || in->max_rows < 0 || in->max_chunk < 0 || in->max_context < 0)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "max_batch %i, max_rows %i, max_chunk %i, max_context %I: give "
                           "counts, or 0 for the default", in->max_batch, in->max_rows, in->max_chunk,
                           in->max_context);
    r->max_batch = in->max_batch ? in->max_batch : r->pager.max_sequences;
    r->max_rows = in->max_rows ? in->max_rows : 1;
    r->max_chunk = in->max_chunk ? in->max_chunk : 512;
    r->max_context = in->max_context ? in->max_context : r->pager.max_tokens;
    if (r->max_rows > r->pager.recent + 1 && r->max_rows > r->pager.max_draft)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "max_rows %i: at most recent + 1 = %I rows of a sequence, or "
                           "max_draft = %i drafts can attend", r->max_rows, (int64_t)r->pager.recent + 1,
                           r->pager.max_draft);
    r->table_room = oscar__pager_table(&r->pager);
    pieces = r->max_batch + ((int64_t)r->max_batch * r->max_rows + r->max_chunk) / OSCAR__CU_PIECE;
    if ((int64_t)r->max_batch * r->max_rows > INT32_MAX || r->max_batch > 65535
        || ((r->table_room + 3) / 4 * 4 + 1) > INT32_MAX / r->max_batch)
        return OSCAR__FAIL(hooks, OSCAR_ERR_SHAPE, "a step of %i entries of %i rows and %I pages is too large: lower "
                           "max_batch, max_rows or max_tokens", r->max_batch, r->max_rows, r->table_room);
    r->pages = oscar__cu_ceil(r->max_rows, r->pager.page_tokens);
    r->fused = r->max_rows <= (r->pager.max_draft > 1 ? r->pager.max_draft : 1);
    r->area = (size_t)r->max_batch * (sizeof(oscar_cuda_entry) + 4 * (size_t)((r->table_room + 3) / 4 * 4));
    r->area += (size_t)pieces * sizeof(oscar_cuda_entry) + OSCAR__CU_ITEMS * sizeof(oscar_cuda_item);
    r->area = oscar__cu_round_up(r->area);
    return OSCAR_OK;
}

static oscar_result oscar__cu_resolve(const oscar_cuda *cuda, const oscar_cuda_cache_desc *in, oscar__cu_resolved *r)
{
    oscar_cache_desc desc;
    oscar_result result;
    if (!in) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "a cache on a device needs a desc");
    memset(r, 0, sizeof *r);
    desc = in->cache;
    desc.hooks = cuda->hooks;
    result = oscar__cache_resolve(&desc, &r->desc, &r->pager);
    if (result) return result;
    r->options.sink = r->pager.sink ? r->pager.sink : -1;
    r->options.recent = r->pager.recent ? r->pager.recent : -1;
    r->options.max_draft = r->pager.max_draft ? r->pager.max_draft : -1;
    r->options.row_type = in->row_type;
    result = oscar__cu_resolve_counts(&cuda->hooks, in, r);
    r->options.step_rows = r->max_rows;
    return result;
}

/* The page layout of layer i of a resolved desc; its pairs are the caller's. */
static oscar_result oscar__cu_layout_of(const oscar__cu_resolved *r, int i, oscar_layout *out)
{
    const oscar_hooks *hooks = &r->desc.hooks;
    oscar_layer layer;
    oscar_result result = oscar__cache_layer(&r->desc, i, &layer);
    if (!result) result = oscar_page_layout(&layer, r->pager.page_tokens, r->desc.window_type, hooks, out);
    if (!result) result = oscar__pairs_finite(hooks, "K", out->layer.k, out->layer.kv_heads);
    if (!result) result = oscar__pairs_finite(hooks, "V", out->layer.v, out->layer.kv_heads);
    if (result) return OSCAR__FAIL(hooks, result, "the reason above concerns layer %i of the cache", i);
    return OSCAR_OK;
}

/* A grid of attention: entries of up to `rows` rows. */
static void oscar__cu_grid(const oscar__cu_resolved *r, int entries, int rows, oscar_cuda_memory *m)
{
    memset(m, 0, sizeof *m);
    m->entry_count = entries;
    m->entry_rows = rows;
    m->entry_pages = r->pages;
    m->rows = entries * rows;
}

/* Bytes that attention of a layer over such a grid works in. */
static size_t oscar__cu_grid_work(const oscar__cu_resolved *r, const oscar_cuda_layer *layer, int entries, int rows)
{
    oscar_cuda_memory m;
    oscar__cu_grid(r, entries, rows, &m);
    m.splits = oscar_cuda_splits(layer, entries, rows, r->max_context);
    return oscar_cuda_work_bytes(layer, &m);
}

/* The most bytes that attention of a layer works in. Few entries may take more splits than all, and more memory. */
static size_t oscar__cu_layer_work(const oscar__cu_resolved *r, const oscar_cuda_layer *layer)
{
    size_t most = oscar__cu_grid_work(r, layer, 1, OSCAR__CU_PIECE);
    int entries;
    for (entries = 1; entries <= r->max_batch; entries++) {
        size_t bytes = oscar__cu_grid_work(r, layer, entries, r->max_rows);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Adds what a layer needs, as it was planned or as it is. constants: bytes. */
static oscar_result oscar__cu_count_layer(const oscar__cu_resolved *r, const oscar_cuda_layer *layer, size_t constants,
                                          oscar_cuda_footprint *f)
{
    const oscar_layer *l = &layer->layout.layer;
    size_t row = oscar__mul((size_t)l->kv_heads, oscar__type_size(r->desc.window_type));
    size_t work = oscar__cu_layer_work(r, layer);
    int row_blocks = oscar__cu_row_blocks(l, &layer->shape, r->max_rows);
    if ((int64_t)row_blocks * r->max_batch > 65535 || l->kv_heads > 32767)
        return OSCAR__FAIL(&r->desc.hooks, OSCAR_ERR_SHAPE, "a step of %i entries of %i rows is too large for one "
                           "grid: lower max_batch or max_rows", r->max_batch, r->max_rows);
    row = oscar__mul(row, (size_t)layer->window_rows);
    row = oscar__mul(row, (size_t)r->pager.max_sequences);
    f->constants = oscar__add(f->constants, constants);
    f->pages = oscar__add(f->pages, oscar__mul((size_t)r->pager.max_pages, layer->layout.bytes));
    f->windows = oscar__add(f->windows, oscar__mul(row, (size_t)(l->k_dim + l->v_dim)));
    if (work > f->work) f->work = work;
    return OSCAR_OK;
}

static void oscar__cu_count_rest(const oscar__cu_resolved *r, oscar_cuda_footprint *f)
{
    f->steps = oscar__add(oscar__mul(2, r->area), 256);
    f->pinned = oscar__mul(OSCAR__CU_BUFFERS, r->area);
    f->total = oscar__add(oscar__add(f->pages, f->windows), oscar__add(f->constants, oscar__add(f->steps, f->work)));
}

OSCAR_API oscar_result oscar_cuda_cache_bytes(oscar_cuda *cuda, const oscar_cuda_cache_desc *desc,
                                              oscar_cuda_footprint *out)
{
    oscar__cu_resolved r;
    oscar_cuda_footprint f;
    oscar_result result;
    int i;
    if (!cuda) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_cache_bytes needs a place to answer");
    result = oscar__cu_resolve(cuda, desc, &r);
    memset(&f, 0, sizeof f);
    for (i = 0; !result && i < r.desc.layer_count; i++) {
        oscar_layout layout;
        oscar__cu_plan plan;
        oscar_cuda_layer layer;
        result = oscar__cu_layout_of(&r, i, &layout);
        if (!result) result = oscar__cu_plan_here(cuda, &layout, &r.options, cuda->info.sm, &plan);
        if (result) break;
        memset(&layer, 0, sizeof layer);
        layer.cuda = cuda;
        layer.layout = plan.layout;
        layer.shape = plan.shape;
        layer.window_rows = (int)(plan.constants.value[OSCAR__CU_SINK] + plan.constants.value[OSCAR__CU_RING]);
        result = oscar__cu_count_layer(&r, &layer, oscar__cu_layer_bytes(&layout.layer, &plan.constants), &f);
    }
    if (result) return result;
    oscar__cu_count_rest(&r, &f);
    *out = f;
    return OSCAR_OK;
}

/* The host's memory: counts where the carver has none. */
static void oscar__cu_cache_carve(oscar__carver *carver, const oscar__cu_resolved *r, oscar_cuda_cache **out)
{
    size_t slots = (size_t)r->pager.max_sequences, layers = (size_t)r->desc.layer_count;
    oscar_cuda_cache *cache = (oscar_cuda_cache *)oscar__carve(carver, 1, sizeof *cache);
    oscar__cu_store *stores = (oscar__cu_store *)oscar__carve(carver, layers, sizeof *stores);
    oscar_batch *step = (oscar_batch *)oscar__carve(carver, (size_t)r->max_batch, sizeof *step);
    unsigned char *torn = (unsigned char *)oscar__carve(carver, slots, 1);
    oscar_pager *pager;
    oscar__pager_carve(carver, &r->pager, &pager);
    *out = cache;
    if (!cache) return;
    memset(cache, 0, sizeof *cache);
    memset(stores, 0, layers * sizeof *stores);
    memset(torn, 0, slots);
    cache->stores = stores;
    cache->step = step;
    cache->torn = torn;
    cache->pager = pager;
}

/* Kernels, pairs, pool and windows of layer i. The context is current. */
static oscar_result oscar__cu_store_start(oscar_cuda_cache *cache, int i)
{
    const oscar__cu_resolved *r = &cache->r;
    oscar__cu_store *s = &cache->stores[i];
    oscar_layout layout;
    size_t rows, size = oscar__type_size(r->desc.window_type);
    oscar_result result = oscar__cu_layout_of(r, i, &layout);
    cache->store_count = i + 1;
    s->layer.cuda = cache->cuda;
    if (!result) result = oscar__cu_layer_start(cache->cuda, &layout, &r->options, &s->layer);
    if (result) return result;
    rows = (size_t)s->layer.window_rows * (size_t)r->pager.max_sequences;
    s->k_row = (size_t)layout.layer.kv_heads * (size_t)layout.layer.k_dim * size;
    s->v_row = (size_t)layout.layer.kv_heads * (size_t)layout.layer.v_dim * size;
    s->piece_splits = oscar_cuda_splits(&s->layer, 1, OSCAR__CU_PIECE, r->max_context);
    result = oscar__cu_take(cache->cuda, oscar__mul((size_t)r->pager.max_pages, layout.bytes), "pages", &s->pool);
    if (!result) result = oscar__cu_take(cache->cuda, oscar__mul(rows, s->k_row), "windows", &s->window_k);
    if (!result) result = oscar__cu_take(cache->cuda, oscar__mul(rows, s->v_row), "windows", &s->window_v);
    return result;
}

/* What all layers share. The context is current. */
static oscar_result oscar__cu_shared_start(oscar_cuda_cache *cache)
{
    oscar_cuda *cuda = cache->cuda;
    const oscar__cu_driver *d = &cuda->driver;
    oscar_cuda_footprint f;
    void *stages = NULL;
    int i;
    oscar_result result = OSCAR_OK;
    memset(&f, 0, sizeof f);
    for (i = 0; !result && i < cache->store_count; i++)
        result = oscar__cu_count_layer(&cache->r, &cache->stores[i].layer, 0, &f);
    if (result) return result;
    oscar__cu_count_rest(&cache->r, &f);
    result = oscar__cu_take(cuda, f.steps, "steps", &cache->areas);
    if (!result) result = oscar__cu_take(cuda, f.work, "partial results of attention", &cache->work);
    if (!result)
        result = OSCAR__CU(&cuda->hooks, d, "cuMemHostAlloc", d->host_alloc(&stages, f.pinned, 0));
    if (result) return result;
    cache->stages = (unsigned char *)stages;
    cache->status = cache->areas + 2 * cache->r.area;
    for (i = 0; !result && i < OSCAR__CU_BUFFERS; i++)
        result = OSCAR__CU(&cuda->hooks, d, "cuEventCreate", d->event_create(&cache->events[i], OSCAR__CU_NO_TIMING));
    if (!result) result = oscar__cu_fill(cuda, cache->areas, NULL, f.steps);
    return result;
}

static oscar_result oscar__cu_cache_start(oscar_cuda_cache *cache)
{
    oscar_result result = oscar__cu_enter(cache->cuda);
    int i;
    if (result) return result;
    for (i = 0; !result && i < cache->r.desc.layer_count; i++) result = oscar__cu_store_start(cache, i);
    if (!result) result = oscar__cu_shared_start(cache);
    return oscar__cu_leave(cache->cuda, result);
}

OSCAR_API oscar_result oscar_cuda_cache_create(oscar_cuda *cuda, const oscar_cuda_cache_desc *desc,
                                               oscar_cuda_cache **out)
{
    oscar__cu_resolved r;
    oscar_cuda_cache *cache;
    oscar__carver carver = { NULL, 0 };
    oscar_result result;
    size_t bytes;
    if (!cuda) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_cache_create needs a place for it");
    result = oscar__cu_resolve(cuda, desc, &r);
    if (result) return result;
    if (!cuda->driver.copy_over || !cuda->driver.host_alloc || !cuda->driver.host_free || !cuda->driver.event_create
        || !cuda->driver.event_destroy || !cuda->driver.event_record || !cuda->driver.event_query
        || !cuda->driver.event_wait)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_NO_DRIVER, "the driver %s lacks calls that a cache needs: update it",
                           cuda->driver.path);
    oscar__cu_cache_carve(&carver, &r, &cache);
    bytes = carver.size;
    carver.base = (unsigned char *)oscar__alloc(&cuda->hooks, bytes);
    if (!carver.base)
        return OSCAR__FAIL(&cuda->hooks, OSCAR_ERR_MEMORY, "no memory for the tables of a cache, %z bytes: lower "
                           "max_sequences, max_pages or max_tokens", bytes);
    carver.size = 0;
    oscar__cu_cache_carve(&carver, &r, &cache);
    cache->cuda = cuda;
    cache->bytes = bytes;
    cache->r = r;
    oscar__pager_init(cache->pager, &r.pager);
    result = oscar__cu_cache_start(cache);
    cache->r.desc.layers = NULL;   /* the caller's */
    cache->r.desc.rotations = NULL;
    if (result) oscar_cuda_cache_destroy(cache);
    else *out = cache;
    return result;
}

OSCAR_API void oscar_cuda_cache_destroy(oscar_cuda_cache *cache)
{
    oscar_cuda *cuda;
    int i;
    if (!cache) return;
    cuda = cache->cuda;
    if (!cuda->driver.context_push(cuda->context)) {   /* else the memory went with the context */
        for (i = 0; i < cache->store_count; i++) {
            oscar__cu_store *s = &cache->stores[i];
            oscar__cu_give(cuda, &s->window_v);
            oscar__cu_give(cuda, &s->window_k);
            oscar__cu_give(cuda, &s->pool);
            oscar__cu_give(cuda, &s->layer.constants);
        }
        oscar__cu_give(cuda, &cache->work);
        oscar__cu_give(cuda, &cache->areas);
        for (i = 0; i < OSCAR__CU_BUFFERS; i++)
            if (cache->events[i]) (void)cuda->driver.event_destroy(cache->events[i]);
        if (cache->stages) (void)cuda->driver.host_free(cache->stages);
        (void)oscar__cu_leave(cuda, OSCAR_ERR_STATE);
    }
    oscar__carver_free(&cuda->hooks, cache, cache->bytes);
}

static oscar__cu_store *oscar__cu_store_at(const oscar_cuda_cache *cache, int layer)
{
    if (!cache) return NULL;
    if (layer >= 0 && layer < cache->store_count) return &cache->stores[layer];
    (void)OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "layer %i: the cache has layers 0 to %i", layer,
                      cache->store_count - 1);
    return NULL;
}

OSCAR_API oscar_result oscar_cuda_cache_layout(const oscar_cuda_cache *cache, int layer, oscar_layout *out)
{
    const oscar__cu_store *s = oscar__cu_store_at(cache, layer);
    if (!s || !out) return OSCAR_ERR_ARGUMENT;
    *out = s->layer.layout;
    return OSCAR_OK;
}

/* ---- what goes to the device ---- */

static uint64_t oscar__cu_area(const oscar_cuda_cache *cache, int area)
{
    return cache->areas + (uint64_t)area * cache->r.area;
}

/* Where tables start in an area. */
static size_t oscar__cu_tables_at(const oscar_cuda_cache *cache)
{
    return (size_t)cache->r.max_batch * sizeof(oscar_cuda_entry);
}

/* Waits until an event is over. While a thread captures (in the default mode), to ask about events is forbidden in all
   threads and spoils the capture, unless a thread says that it knows what it does: this event is part of no capture. */
static int oscar__cu_event_over(const oscar__cu_driver *d, void *event)
{
    int mode = OSCAR__CU_RELAXED, code = d->capture_mode ? d->capture_mode(&mode) : 0, back = 0;
    if (code) return code;
    code = d->event_query(event);
    if (code == OSCAR__CU_NOT_READY) code = d->event_wait(event);   /* the host is that far ahead */
    if (d->capture_mode) back = d->capture_mode(&mode);
    return code ? code : back;
}

/* A pinned buffer of an area's size that no copy reads any more. */
static oscar_result oscar__cu_stage(oscar_cuda_cache *cache, unsigned char **out)
{
    const oscar__cu_driver *d = &cache->cuda->driver;
    int i = cache->turn, code;
    *out = cache->stages + (size_t)i * cache->r.area;
    if (!cache->pending[i]) return OSCAR_OK;
    code = oscar__cu_event_over(d, cache->events[i]);
    if (code) return OSCAR__CU(&cache->cuda->hooks, d, "cuEventQuery", code);
    cache->pending[i] = 0;
    return OSCAR_OK;
}

/* Sends the buffer of oscar__cu_stage to an area. A graph would send what the buffer holds when it is replayed. */
static oscar_result oscar__cu_send(oscar_cuda_cache *cache, int area, size_t bytes, void *stream)
{
    const oscar_hooks *hooks = &cache->cuda->hooks;
    const oscar__cu_driver *d = &cache->cuda->driver;
    int i = cache->turn, captures;
    oscar_result result;
    OSCAR_ASSERT(bytes <= cache->r.area);
    result = oscar__cu_captures(cache->cuda, stream, &captures);
    if (result) return result;
    if (captures)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "the stream captures: append and attend can be in a graph, steps "
                           "and changes of sequences are told to the device outside of it");
    result = OSCAR__CU(hooks, d, "cuMemcpyHtoDAsync",
                       d->copy_in(oscar__cu_area(cache, area), cache->stages + (size_t)i * cache->r.area, bytes,
                                  stream));
    if (result) return result;
    result = OSCAR__CU(hooks, d, "cuEventRecord", d->event_record(cache->events[i], stream));
    if (result) {
        (void)d->stream_wait(stream);   /* nothing else tells when the buffer may be written again */
        return result;
    }
    cache->pending[i] = 1;
    cache->turn = (i + 1) % OSCAR__CU_BUFFERS;
    return OSCAR_OK;
}

/* The context for a call on the cache. */
static oscar_result oscar__cu_start_call(const oscar_cuda_cache *cache, void *stream)
{
    oscar_result result = oscar__cu_enter(cache->cuda);
    if (result) return result;
    result = oscar__cu_stream_check(cache->cuda, stream);
    return result ? oscar__cu_leave(cache->cuda, result) : OSCAR_OK;
}

static oscar_cuda_entry *oscar__cu_entry_at(unsigned char *stage, size_t at, int index)
{
    return (oscar_cuda_entry *)(void *)(stage + at + (size_t)index * sizeof(oscar_cuda_entry));
}

/* A sequence's table behind the others: *used ids so far. */
static void oscar__cu_table_put(const oscar_cuda_cache *cache, unsigned char *stage, const oscar__seq *s,
                                oscar_cuda_entry *e, int64_t *used)
{
    e->slot = (uint32_t)oscar__slot_of(cache->pager, s);
    e->table = (int32_t)*used;
    memcpy(stage + oscar__cu_tables_at(cache) + 4 * (size_t)*used, s->pages, 4 * (size_t)s->page_count);
    *used += (s->page_count + 3) / 4 * 4;
}

/* Memory of a layer, with `entries` entries, and tables, of an area. */
static void oscar__cu_memory_of(const oscar_cuda_cache *cache, const oscar__cu_store *s, int area, int entries,
                                oscar_cuda_memory *m)
{
    oscar__cu_grid(&cache->r, entries, cache->r.max_rows, m);
    m->entries = oscar__cu_area(cache, area);
    m->tables = m->entries + oscar__cu_tables_at(cache);
    m->pool = s->pool;
    m->window_k = s->window_k;
    m->window_v = s->window_v;
    m->status = cache->status;
    m->work = cache->work;
    m->splits = s->splits;
    m->layer = (int)(s - cache->stores);
}

/* ---- sequences ---- */

/* An open sequence that is whole. */
static oscar_result oscar__cu_seq(const oscar_cuda_cache *cache, oscar_seq seq, oscar__seq **out)
{
    const oscar_hooks *hooks = &cache->cuda->hooks;
    int slot = oscar__seq_slot(seq);
    oscar_result result = oscar__seq_find(cache->pager, hooks, seq, out);
    if (!result && cache->torn[slot])
        result = OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "%s of slot %i failed on the device before it was complete: "
                             "repeat it, or close the sequence", cache->torn[slot] == 1 ? "a cut" : "an abort", slot);
    return result;
}

/* The place of a sequence in the last step, or -1. */
static int oscar__cu_member(const oscar_cuda_cache *cache, oscar_seq seq)
{
    int i;
    for (i = 0; i < cache->step_count; i++)
        if (cache->step[i].seq == seq) return i;
    return -1;
}

/* The open step is over, or has lost its last member. */
static void oscar__cu_step_close(oscar_cuda_cache *cache)
{
    int i;
    for (i = 0; i < cache->store_count; i++) cache->stores[i].appended = 0;
    cache->step_open = cache->step_appended = 0;
}

static void oscar__cu_tear(oscar_cuda_cache *cache, int slot, int what)
{
    cache->unfinished += (what == 2) - (cache->torn[slot] == 2);
    cache->torn[slot] = (unsigned char)what;
}

OSCAR_API oscar_result oscar_cuda_cache_open(oscar_cuda_cache *cache, oscar_seq *out)
{
    return cache ? oscar_seq_open(cache->pager, out) : OSCAR_ERR_ARGUMENT;
}

OSCAR_API oscar_result oscar_cuda_cache_get(const oscar_cuda_cache *cache, oscar_seq seq, oscar_seq_state *out)
{
    return cache ? oscar_seq_get(cache->pager, seq, out) : OSCAR_ERR_ARGUMENT;
}

OSCAR_API oscar_result oscar_cuda_cache_can(const oscar_cuda_cache *cache, oscar_seq seq, oscar_op op, int64_t arg)
{
    oscar__seq *s;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if (op == OSCAR_CAN_SHIFT || op == OSCAR_CAN_SAVE) return OSCAR_ERR_UNSUPPORTED;
    result = oscar__seq_find(cache->pager, NULL, seq, &s);
    if (!result && cache->torn[oscar__seq_slot(seq)] == 1
        && !(op == OSCAR_CAN_CUT && arg < cache->r.pager.sink + s->history)) return OSCAR_ERR_STATE;
    return result ? result : oscar_seq_can(cache->pager, seq, op, arg);
}

OSCAR_API oscar_result oscar_cuda_cache_check(oscar_cuda_cache *cache)
{
    const oscar_hooks *hooks;
    oscar_result result;
    int i, appended = 0, torn = 0;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    hooks = &cache->cuda->hooks;
    if ((result = oscar_pager_check(cache->pager)) != OSCAR_OK) return result;
    for (i = 0; i < cache->store_count; i++) appended += cache->stores[i].appended;
    if (appended != cache->step_appended || (appended && !cache->step_open))
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "%i layers have appended, %i are counted", appended,
                           cache->step_appended);
    for (i = 0; cache->step_open && i < cache->step_count; i++) {
        oscar__seq *s;
        if (!cache->step[i].seq) continue;
        result = oscar__seq_find(cache->pager, hooks, cache->step[i].seq, &s);
        if (result) return result;
        if (s->step_rows != cache->step[i].rows
            || s->step != (cache->step_draft ? OSCAR_STEP_DRAFT : OSCAR_STEP_APPEND))
            return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "entry %i of the step is not what its sequence has open", i);
    }
    for (i = 0; i < cache->r.pager.max_sequences; i++) {
        if (cache->torn[i] && !cache->pager->seqs[i].open)
            return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "slot %i is closed, but waits for something to be repeated", i);
        torn += cache->torn[i] == 2;
    }
    if (torn != cache->unfinished)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "%i aborts are unfinished, %i are counted", torn, cache->unfinished);
    return OSCAR_OK;
}

/* ---- a step ---- */

/* Entries and tables of the step into a buffer, then its pieces; returns the bytes. *most_pages: that an entry
   writes. */
static size_t oscar__cu_step_put(oscar_cuda_cache *cache, unsigned char *stage, int *most_pages)
{
    const oscar_pager_desc *d = &cache->r.pager;
    int64_t used = 0, off;
    size_t at;
    int i, piece = 0;
    *most_pages = 0;
    memset(stage, 0, oscar__cu_tables_at(cache));
    for (i = 0; i < cache->step_count; i++) {
        const oscar_batch *b = &cache->step[i];
        const oscar__seq *s = &cache->pager->seqs[oscar__seq_slot(b->seq)];
        oscar_cuda_entry *e = oscar__cu_entry_at(stage, 0, i);
        if (!b->seq) continue;
        e->position = s->length;
        e->history = s->step_history;
        e->write_first = s->history / d->page_tokens;
        e->write_count = (int32_t)((s->step_history - s->history) / d->page_tokens);
        e->row = (int32_t)b->row;
        e->rows = (int32_t)b->rows;
        oscar__cu_table_put(cache, stage, s, e, &used);
        if (e->write_count > *most_pages) *most_pages = e->write_count;
    }
    at = oscar__cu_tables_at(cache) + 4 * (size_t)used;
    cache->step_pieces = at;
    for (i = 0; i < cache->step_count; i++) {
        const oscar_batch *b = &cache->step[i];
        const oscar__seq *s = &cache->pager->seqs[oscar__seq_slot(b->seq)];
        for (off = 0; b->seq && off < b->rows; off += OSCAR__CU_PIECE, piece++) {
            oscar_cuda_entry *e = oscar__cu_entry_at(stage, at, piece);
            int64_t rows = b->rows - off < OSCAR__CU_PIECE ? b->rows - off : (int64_t)OSCAR__CU_PIECE;
            *e = *oscar__cu_entry_at(stage, 0, i);
            e->position = s->length + off;
            e->history = s->history;
            e->write_count = e->row = 0;
            e->rows = (int32_t)rows;
            e->unseen = (int32_t)(off + rows);   /* the whole chunk */
        }
    }
    return at + (size_t)piece * sizeof(oscar_cuda_entry);
}

/* Tells the device about the step as it is now. The context is current. */
static oscar_result oscar__cu_step_send(oscar_cuda_cache *cache, void *stream)
{
    unsigned char *stage;
    int most_pages;
    oscar_result result = oscar__cu_stage(cache, &stage);
    size_t bytes;
    if (result) return result;
    bytes = oscar__cu_step_put(cache, stage, &most_pages);
    result = oscar__cu_send(cache, 0, bytes, stream);
    if (!result) cache->step_pages = most_pages;
    return result;
}

/* Whether a batch can be a step; tells the most rows of an entry, and whether it is a prefill. */
static oscar_result oscar__cu_step_check(const oscar_cuda_cache *cache, const oscar_batch *batch, int count, int draft,
                                         int *most, int *chunk)
{
    const oscar_hooks *hooks = &cache->cuda->hooks;
    int64_t all = 0, end = 0;
    int i;
    *most = *chunk = 0;
    if (cache->step_open)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "a step is open: append it in every layer, say oscar_cuda_commit if "
                           "a graph has done so, or abort its sequences");
    if (cache->unfinished)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "an abort failed on the device: repeat it, or close the sequence");
    if (count < 0 || count > cache->r.max_batch || (count && !batch))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a step of %i entries: give a batch of at most max_batch = %i",
                           count, cache->r.max_batch);
    for (i = 0; i < count; i++) {
        oscar__seq *s;
        oscar_result result;
        if (!batch[i].seq) continue;
        if (batch[i].row < 0 || batch[i].rows < 1 || batch[i].row > INT32_MAX || batch[i].rows > INT32_MAX)
            return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "entry %i of the step has %I rows from row %I: give at "
                               "least one, from 0 on", i,
                               batch[i].rows, batch[i].row);
        if ((result = oscar__cu_seq(cache, batch[i].seq, &s)) != OSCAR_OK) return result;
        all += batch[i].rows;
        if (batch[i].row + batch[i].rows > end) end = batch[i].row + batch[i].rows;
        if (batch[i].rows > *most) *most = (int)batch[i].rows;
    }
    *chunk = *most > cache->r.max_rows || end > (int64_t)count * cache->r.max_rows;
    if (draft && *chunk)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a step of drafts has at most max_rows = %i rows an entry, all "
                           "of them among the first %i", cache->r.max_rows, count * cache->r.max_rows);
    if (*chunk && all > cache->r.max_chunk)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a prefill of %I rows: give it in steps of at most max_chunk = "
                           "%i", all, cache->r.max_chunk);
    return OSCAR_OK;
}

/* Splits for steps of `count` entries, where the last step had another number of them. */
static void oscar__cu_step_split(oscar_cuda_cache *cache, int count)
{
    const oscar__cu_resolved *r = &cache->r;
    int i;
    if (count == cache->split_count) return;
    cache->split_count = count;
    for (i = 0; i < cache->store_count; i++)
        cache->stores[i].splits = oscar_cuda_splits(&cache->stores[i].layer, count, r->max_rows, r->max_context);
}

/* Takes back the reservations of the first `count` entries. */
static void oscar__cu_step_undo(oscar_cuda_cache *cache, const oscar_batch *batch, int count)
{
    while (count--)
        if (batch[count].seq) (void)oscar_seq_abort(cache->pager, batch[count].seq, 0, NULL);
}

OSCAR_API oscar_result oscar_cuda_step(oscar_cuda_cache *cache, const oscar_batch *batch, int count, int draft,
                                       void *stream)
{
    oscar_result result;
    int i, most, chunk;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    result = oscar__cu_step_check(cache, batch, count, draft, &most, &chunk);
    if (!result) result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    for (i = 0; i < count; i++) {
        if (batch[i].seq) result = oscar_seq_reserve(cache->pager, batch[i].seq, batch[i].rows, draft, NULL);
        if (result) break;
    }
    if (!result) {
        if (count) memcpy(cache->step, batch, (size_t)count * sizeof *batch);
        cache->step_count = count;
        cache->step_live = 0;   /* whatever comes of it, the step before cannot attend any more */
        result = oscar__cu_step_send(cache, stream);
    }
    result = oscar__cu_leave(cache->cuda, result);
    if (result) {
        oscar__cu_step_undo(cache, batch, i);
        return result;
    }
    oscar__cu_step_split(cache, count);
    cache->step_draft = draft != 0;
    cache->step_chunk = chunk;
    cache->step_most = most;
    cache->step_live = cache->step_open = 1;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cuda_commit(oscar_cuda_cache *cache)
{
    int i;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if (!cache->step_open || cache->unfinished)
        return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_STATE, "there is no whole step to commit: oscar_cuda_step "
                           "opens one");
    for (i = 0; i < cache->step_count; i++)
        if (cache->step[i].seq) (void)oscar_seq_commit(cache->pager, cache->step[i].seq);   /* open: nothing fails */
    oscar__cu_step_close(cache);
    return OSCAR_OK;
}

/* Whether a layer of the step may be worked on. */
static oscar_result oscar__cu_layer_check(const oscar_cuda_cache *cache, int layer, int open)
{
    const oscar_hooks *hooks;
    const oscar__cu_store *s = oscar__cu_store_at(cache, layer);
    if (!s) return OSCAR_ERR_ARGUMENT;
    hooks = &cache->cuda->hooks;
    if (cache->unfinished)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "an abort failed on the device: repeat it, or close the sequence");
    if (open && !cache->step_open)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "no step is open, or it is complete: call oscar_cuda_step");
    if (open && s->appended)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "layer %i has appended the rows of this step: each layer "
                           "does so once", layer);
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cuda_append(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *k,
                                         const oscar_cuda_rows *v, void *stream)
{
    oscar__cu_store *s;
    oscar_cuda_memory m;
    oscar_result result = oscar__cu_layer_check(cache, layer, 1);
    if (result) return result;
    if (!k || !v || !k->data || !v->data)
        return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "append needs the addresses of k and v");
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    s = &cache->stores[layer];
    oscar__cu_memory_of(cache, s, 0, cache->step_count, &m);
    if (cache->step_chunk) m.entry_pages = cache->step_pages;
    if (cache->r.fused && !cache->step_chunk) {
        result = oscar__cu_do_write(&s->layer, &m, k, v, 3, stream);
    } else {
        result = oscar__cu_do_write(&s->layer, &m, k, v, 1, stream);
        if (!result) result = oscar__cu_do_write(&s->layer, &m, k, v, 2, stream);
    }
    result = oscar__cu_leave(cache->cuda, result);
    if (result) return result;
    s->appended = 1;
    return ++cache->step_appended < cache->store_count ? OSCAR_OK : oscar_cuda_commit(cache);
}

OSCAR_API oscar_result oscar_cuda_attend(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *q,
                                         uint64_t sink_logits, const oscar_cuda_rows *o, uint64_t lse, void *stream)
{
    const oscar_hooks *hooks;
    const oscar__cu_store *s;
    oscar_cuda_memory m;
    oscar_result result = oscar__cu_layer_check(cache, layer, 0);
    if (result) return result;
    hooks = &cache->cuda->hooks;
    s = &cache->stores[layer];
    if (!cache->step_live || (cache->step_open && !s->appended))
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "layer %i has no step to attend: call oscar_cuda_step and append to "
                           "the layer first", layer);
    if (cache->step_chunk || (!cache->step_draft && cache->step_most > cache->r.pager.recent + 1))
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "a step of %i rows an entry is a prefill: its rows attend with "
                           "oscar_cuda_attend_history before the append", cache->step_most);
    if (!q || !o || !q->data || !o->data)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "attention needs the addresses of q and o");
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    oscar__cu_memory_of(cache, s, 0, cache->step_count, &m);
    return oscar__cu_leave(cache->cuda, oscar__cu_do_attend(&s->layer, &m, q, sink_logits, o, lse, stream));
}

/* Rows from `row` on. */
static oscar_cuda_rows oscar__cu_rows_from(const oscar_cuda_rows *rows, int heads, int dim, int type, int64_t row)
{
    oscar_cuda_rows out = *rows;
    int64_t stride = rows->token_stride ? (int64_t)rows->token_stride : (int64_t)heads * dim;
    out.data += (uint64_t)(row * stride * (int64_t)oscar__type_size((oscar_type)type));
    return out;
}

OSCAR_API oscar_result oscar_cuda_attend_history(oscar_cuda_cache *cache, int layer, const oscar_cuda_rows *q,
                                                 const oscar_cuda_rows *o, uint64_t lse, void *stream)
{
    const oscar_layer *l;
    oscar__cu_store *s;
    oscar_cuda_memory m;
    int64_t off;
    int i, piece = 0;
    oscar_result result = oscar__cu_layer_check(cache, layer, 1);
    if (result) return result;
    if (!q || !o || !q->data || !o->data)
        return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "attention needs the addresses of q and o");
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    s = &cache->stores[layer];
    l = &s->layer.layout.layer;
    oscar__cu_memory_of(cache, s, 0, 1, &m);
    m.entry_rows = OSCAR__CU_PIECE;
    m.splits = s->piece_splits;
    for (i = 0; i < cache->step_count; i++) {
        const oscar_batch *b = &cache->step[i];
        for (off = 0; b->seq && !result && off < b->rows; off += OSCAR__CU_PIECE, piece++) {
            oscar_cuda_rows from = oscar__cu_rows_from(q, l->q_heads, l->k_dim, s->layer.row_type, b->row + off);
            oscar_cuda_rows to = oscar__cu_rows_from(o, l->q_heads, l->v_dim, s->layer.row_type, b->row + off);
            uint64_t sums = lse ? lse + (uint64_t)((b->row + off) * l->q_heads) * sizeof(float) : 0;
            m.entries = oscar__cu_area(cache, 0) + cache->step_pieces + (size_t)piece * sizeof(oscar_cuda_entry);
            m.rows = (int)(b->rows - off < OSCAR__CU_PIECE ? b->rows - off : (int64_t)OSCAR__CU_PIECE);
            result = oscar__cu_do_attend(&s->layer, &m, &from, 0, &to, sums, stream);
        }
    }
    return oscar__cu_leave(cache->cuda, result);
}

/* ---- moves ---- */

/* One sequence's demotions as entry 0 of a buffer, its decoding as the item behind; returns the bytes. */
static size_t oscar__cu_moves_put(const oscar_cuda_cache *cache, unsigned char *stage, const oscar__seq *s, int slot,
                                  const oscar_moves *moves, size_t *item_at)
{
    oscar_cuda_entry *e = oscar__cu_entry_at(stage, 0, 0);
    oscar_cuda_item *item;
    int64_t used = 0;
    memset(stage, 0, oscar__cu_tables_at(cache));
    e->position = moves->length;
    e->history = moves->history;
    e->write_first = moves->demote_first;
    e->write_count = (int32_t)moves->demote_count;
    oscar__cu_table_put(cache, stage, s, e, &used);
    *item_at = oscar__cu_tables_at(cache) + 4 * (size_t)used;
    item = (oscar_cuda_item *)(void *)(stage + *item_at);
    memset(item, 0, sizeof *item);
    item->position = moves->decode_position;
    item->page = moves->decode_page;
    item->count = moves->decode_tokens;
    item->slot = (uint32_t)slot;
    return *item_at + sizeof *item;
}

/* Carries moves out for a slot: demotions where `demote` says so of a layer that has (1) or has not (0) appended, -1
   never; decoding where it does not. s: whose table it is. The context is current; *begun: some layer may have been
   written. */
static oscar_result oscar__cu_moves(oscar_cuda_cache *cache, const oscar__seq *s, int slot, const oscar_moves *moves,
                                    int demote, void *stream, int *begun)
{
    unsigned char *stage;
    size_t item_at = 0, bytes;
    oscar_result result;
    int i;
    *begun = 0;
    if (!moves->decode_tokens && !moves->demote_count) return OSCAR_OK;
    result = oscar__cu_stage(cache, &stage);
    if (result) return result;
    bytes = oscar__cu_moves_put(cache, stage, s, slot, moves, &item_at);
    result = oscar__cu_send(cache, 1, bytes, stream);
    for (i = 0; !result && i < cache->store_count; i++) {
        const oscar__cu_store *store = &cache->stores[i];
        oscar_cuda_memory m;
        *begun = 1;
        oscar__cu_memory_of(cache, store, 1, 1, &m);
        m.entry_pages = (int)moves->demote_count;
        if (store->appended == demote)
            result = oscar__cu_do_write(&store->layer, &m, NULL, NULL, 1, stream);
        else
            result = oscar__cu_do_read(&store->layer, &m, oscar__cu_area(cache, 1) + item_at,
                                       moves->decode_tokens > 0, moves->decode_tokens, 1, OSCAR_F32, NULL, NULL,
                                       stream);
    }
    return result;
}

OSCAR_API oscar_result oscar_cuda_cache_fork(oscar_cuda_cache *cache, oscar_seq seq, int64_t length, oscar_seq *out,
                                             void *stream)
{
    const oscar__cu_driver *d;
    oscar_moves moves;
    oscar_seq child = 0;
    oscar__seq *s, *c;
    oscar_result result, started;
    uint64_t from, to;
    int i, begun;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if (!out) return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "a fork has no place for the handle");
    result = oscar__cu_seq(cache, seq, &s);
    if (!result) result = oscar_seq_fork(cache->pager, seq, length, &child, &moves);
    if (result) return result;
    d = &cache->cuda->driver;
    result = started = oscar__cu_start_call(cache, stream);
    from = (uint64_t)oscar__seq_slot(seq);
    to = (uint64_t)oscar__seq_slot(child);
    for (i = 0; !result && i < cache->store_count; i++) {
        const oscar__cu_store *store = &cache->stores[i];
        size_t k = store->k_row * (size_t)store->layer.window_rows, v = store->v_row * (size_t)store->layer.window_rows;
        result = OSCAR__CU(&cache->cuda->hooks, d, "cuMemcpyDtoDAsync",
                           d->copy_over(store->window_k + to * k, store->window_k + from * k, k, stream));
        if (!result)
            result = OSCAR__CU(&cache->cuda->hooks, d, "cuMemcpyDtoDAsync",
                               d->copy_over(store->window_v + to * v, store->window_v + from * v, v, stream));
    }
    c = &cache->pager->seqs[to];
    if (!result) result = oscar__cu_moves(cache, c, (int)to, &moves, -1, stream, &begun);
    if (!started) result = oscar__cu_leave(cache->cuda, result);
    if (result) (void)oscar_seq_close(cache->pager, child);
    else *out = child;
    return result;
}

OSCAR_API oscar_result oscar_cuda_cache_cut(oscar_cuda_cache *cache, oscar_seq seq, int64_t length, void *stream)
{
    const oscar_hooks *hooks;
    oscar_moves moves;
    oscar__seq *s;
    int slot = oscar__seq_slot(seq), begun = 0;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    hooks = &cache->cuda->hooks;
    result = oscar__seq_find(cache->pager, hooks, seq, &s);
    if (result) return result;
    if (cache->torn[slot] && length >= cache->r.pager.sink + s->history)
        return oscar__cu_seq(cache, seq, &s);   /* only a cut into pages writes all of recent anew */
    result = oscar__plan_cut(cache->pager, hooks, s, length, &moves);
    if (result) return result;
    if (moves.decode_tokens) {
        result = oscar__cu_start_call(cache, stream);
        if (result) return result;
        result = oscar__cu_moves(cache, s, slot, &moves, -1, stream, &begun);
        result = oscar__cu_leave(cache->cuda, result);
        if (result && begun) oscar__cu_tear(cache, slot, 1);
        if (result) return result;
    }
    oscar__cu_tear(cache, slot, 0);
    if (oscar__cu_member(cache, seq) >= 0) cache->step_live = 0;
    return oscar_seq_cut(cache->pager, seq, length, NULL);   /* planned: it cannot fail */
}

/* Takes a sequence out of the open step, on the device too. */
static oscar_result oscar__cu_step_drop(oscar_cuda_cache *cache, oscar_seq seq, void *stream)
{
    int i = oscar__cu_member(cache, seq);
    oscar_result result;
    if (i < 0) return OSCAR_OK;
    if (!cache->step_open) {
        cache->step_live = 0;
        return OSCAR_OK;
    }
    cache->step[i].seq = 0;
    result = oscar__cu_step_send(cache, stream);
    if (result) cache->step[i].seq = seq;
    return result;
}

/* The open step ends with its last member. */
static void oscar__cu_step_settle(oscar_cuda_cache *cache)
{
    int i, left = 0;
    for (i = 0; i < cache->step_count; i++) left += cache->step[i].seq != 0;
    if (!cache->step_open || left || cache->unfinished) return;
    oscar__cu_step_close(cache);
    cache->step_live = 0;
}

/* What an abort will do, as oscar_seq_abort. */
static void oscar__cu_plan_abort(const oscar_pager *pager, const oscar__seq *s, int started, oscar_moves *moves)
{
    int64_t whole = oscar__whole_pages(&pager->desc, s->length - pager->desc.sink);
    oscar__moves_to(moves, s->length, s->history);
    if (!started || s->step_history <= s->history) return;
    moves->history = whole < s->step_history ? whole : s->step_history;
    oscar__moves_demote(pager, s->history, moves->history, moves);
    if (s->step_history > moves->history) oscar__moves_decode(pager, s, moves);
}

OSCAR_API oscar_result oscar_cuda_cache_abort(oscar_cuda_cache *cache, oscar_seq seq, void *stream)
{
    oscar_moves moves;
    oscar__seq *s;
    int slot = oscar__seq_slot(seq), started, begun, some;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    result = oscar__seq_find(cache->pager, &cache->cuda->hooks, seq, &s);
    if (result) return result;
    if (s->step == OSCAR_STEP_NONE) return oscar_seq_abort(cache->pager, seq, 0, NULL);   /* says so */
    started = s->step == OSCAR_STEP_APPEND && cache->step_appended > 0;
    oscar__cu_plan_abort(cache->pager, s, started, &moves);
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    result = oscar__cu_step_drop(cache, seq, stream);
    begun = result == OSCAR_OK;
    if (begun) result = oscar__cu_moves(cache, s, slot, &moves, 0, stream, &some);
    result = oscar__cu_leave(cache->cuda, result);
    if (result && begun && s->step == OSCAR_STEP_APPEND) oscar__cu_tear(cache, slot, 2);
    if (result) return result;
    oscar__cu_tear(cache, slot, 0);
    result = oscar_seq_abort(cache->pager, seq, started, NULL);
    oscar__cu_step_settle(cache);
    return result;
}

OSCAR_API oscar_result oscar_cuda_cache_close(oscar_cuda_cache *cache, oscar_seq seq, void *stream)
{
    oscar__seq *s;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    result = oscar__seq_find(cache->pager, &cache->cuda->hooks, seq, &s);
    if (result) return result;
    if (cache->step_open && oscar__cu_member(cache, seq) >= 0) {
        result = oscar__cu_start_call(cache, stream);
        if (result) return result;
        result = oscar__cu_step_drop(cache, seq, stream);
        if (result) return oscar__cu_leave(cache->cuda, result);
        result = oscar__cu_leave(cache->cuda, OSCAR_OK);
        if (result) oscar__cu_tear(cache, oscar__seq_slot(seq), 2);   /* it is out of the step, and not yet closed */
        if (result) return result;
    } else {
        (void)oscar__cu_step_drop(cache, seq, stream);   /* makes no call */
    }
    oscar__cu_tear(cache, oscar__seq_slot(seq), 0);
    result = oscar_seq_close(cache->pager, seq);
    oscar__cu_step_settle(cache);
    return result;
}

/* The demotions that accepting makes due, as entries of a buffer. */
static oscar_result oscar__cu_accept_put(const oscar_cuda_cache *cache, unsigned char *stage, const oscar_batch *batch,
                                         int count, size_t *bytes, int *most_pages)
{
    int64_t used = 0;
    int i, j;
    *most_pages = 0;
    memset(stage, 0, oscar__cu_tables_at(cache));
    for (i = 0; i < count; i++) {
        oscar_cuda_entry *e = oscar__cu_entry_at(stage, 0, i);
        oscar_moves moves;
        oscar__seq *s;
        oscar_result result;
        if (!batch[i].seq) continue;
        for (j = 0; j < i; j++)
            if (batch[j].seq == batch[i].seq)
                return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_STATE, "entries %i and %i name the same sequence: "
                                   "give it once", j, i);
        result = oscar__cu_seq(cache, batch[i].seq, &s);
        if (!result) result = oscar__plan_accept(cache->pager, &cache->cuda->hooks, s, batch[i].rows, &moves);
        if (result) return result;
        e->position = moves.length;
        e->history = moves.history;
        e->write_first = moves.demote_first;
        e->write_count = (int32_t)moves.demote_count;
        oscar__cu_table_put(cache, stage, s, e, &used);
        if (e->write_count > *most_pages) *most_pages = e->write_count;
    }
    *bytes = oscar__cu_tables_at(cache) + 4 * (size_t)used;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cuda_cache_accept(oscar_cuda_cache *cache, const oscar_batch *batch, int count,
                                               void *stream)
{
    unsigned char *stage;
    size_t bytes = 0;
    int i, most_pages = 0;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    if (count < 0 || count > cache->r.max_batch || (count && !batch))
        return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "%i entries to accept: give a batch of at most "
                           "max_batch = %i", count, cache->r.max_batch);
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    result = oscar__cu_stage(cache, &stage);
    if (!result) result = oscar__cu_accept_put(cache, stage, batch, count, &bytes, &most_pages);
    if (!result && most_pages) result = oscar__cu_send(cache, 1, bytes, stream);
    for (i = 0; !result && most_pages && i < cache->store_count; i++) {
        oscar_cuda_memory m;
        oscar__cu_memory_of(cache, &cache->stores[i], 1, count, &m);
        m.entry_pages = most_pages;
        result = oscar__cu_do_write(&cache->stores[i].layer, &m, NULL, NULL, 1, stream);
    }
    result = oscar__cu_leave(cache->cuda, result);
    for (i = 0; !result && i < count; i++) {
        if (!batch[i].seq) continue;
        if (oscar__cu_member(cache, batch[i].seq) >= 0) cache->step_live = 0;
        result = oscar_seq_accept(cache->pager, batch[i].seq, batch[i].rows, NULL);   /* planned: it cannot fail */
    }
    return result;
}

/* ---- looking in ---- */

OSCAR_API oscar_result oscar_cuda_status(oscar_cuda_cache *cache, int clear, oscar_cuda_fault *out, void *stream)
{
    const oscar_hooks *hooks;
    const oscar__cu_driver *d;
    struct { uint32_t claimed; int32_t layer, head, kind; uint32_t slot; int32_t reserved; int64_t position; } word;
    oscar_result result;
    if (!cache) return OSCAR_ERR_ARGUMENT;
    hooks = &cache->cuda->hooks;
    d = &cache->cuda->driver;
    if (!out) return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "oscar_cuda_status has no place for the answer");
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    memset(&word, 0, sizeof word);
    result = OSCAR__CU(hooks, d, "cuMemcpyDtoHAsync", d->copy_out(&word, cache->status, sizeof word, stream));
    if (!result && clear)
        result = OSCAR__CU(hooks, d, "cuMemsetD8Async", d->mem_set(cache->status, 0, sizeof word, stream));
    if (!result) result = OSCAR__CU(hooks, d, "cuStreamSynchronize", d->stream_wait(stream));
    else (void)d->stream_wait(stream);   /* a copy may be on its way to this function's memory */
    result = oscar__cu_leave(cache->cuda, result);
    if (result) return result;
    out->found = word.claimed != 0;
    out->layer = word.layer;
    out->head = word.head;
    out->kind = word.kind;
    out->slot = (int)word.slot;
    out->position = word.position;
    return OSCAR_OK;
}

static oscar_result oscar__cu_page_at(const oscar_cuda_cache *cache, int layer, uint32_t page, const void *memory,
                                      uint64_t *out, size_t *bytes)
{
    const oscar__cu_store *s = oscar__cu_store_at(cache, layer);
    if (!s) return OSCAR_ERR_ARGUMENT;
    if (!memory || (int64_t)page >= cache->r.pager.max_pages)
        return OSCAR__FAIL(&cache->cuda->hooks, OSCAR_ERR_ARGUMENT, "page %I: give one below max_pages = %I, and "
                           "memory of the host", (int64_t)page, cache->r.pager.max_pages);
    *bytes = s->layer.layout.bytes;
    *out = s->pool + (uint64_t)page * *bytes;
    return OSCAR_OK;
}

OSCAR_API oscar_result oscar_cuda_download(oscar_cuda_cache *cache, int layer, uint32_t page, void *out, void *stream)
{
    uint64_t at = 0;
    size_t bytes = 0;
    oscar_result result = oscar__cu_page_at(cache, layer, page, out, &at, &bytes);
    if (!result) result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    result = OSCAR__CU(&cache->cuda->hooks, &cache->cuda->driver, "cuMemcpyDtoHAsync",
                       cache->cuda->driver.copy_out(out, at, bytes, stream));
    return oscar__cu_leave(cache->cuda, result);
}

OSCAR_API oscar_result oscar_cuda_upload(oscar_cuda_cache *cache, int layer, uint32_t page, const void *in,
                                         void *stream)
{
    uint64_t at = 0;
    size_t bytes = 0;
    oscar_result result = oscar__cu_page_at(cache, layer, page, in, &at, &bytes);
    if (!result) result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    result = OSCAR__CU(&cache->cuda->hooks, &cache->cuda->driver, "cuMemcpyHtoDAsync",
                       cache->cuda->driver.copy_in(at, in, bytes, stream));
    return oscar__cu_leave(cache->cuda, result);
}

/* `count` tokens of one page to rows `row` and on. */
static oscar_result oscar__cu_gather_page(oscar_cuda_cache *cache, const oscar__cu_store *s,
                                          const oscar_cuda_item *item, uint64_t k, uint64_t v, void *stream)
{
    oscar_cuda_memory m;
    oscar_cuda_rows to_k, to_v;
    unsigned char *stage;
    oscar_result result = oscar__cu_stage(cache, &stage);
    if (result) return result;
    memcpy(stage, item, sizeof *item);
    result = oscar__cu_send(cache, 1, sizeof *item, stream);
    if (result) return result;
    oscar__cu_memory_of(cache, s, 1, 1, &m);
    memset(&to_k, 0, sizeof to_k);
    memset(&to_v, 0, sizeof to_v);
    to_k.data = k;
    to_v.data = v;
    return oscar__cu_do_read(&s->layer, &m, oscar__cu_area(cache, 1), 1, item->count, 0, cache->r.desc.window_type,
                             &to_k, &to_v, stream);
}

/* `count` window rows from `place` on. */
static oscar_result oscar__cu_gather_rows(const oscar_cuda_cache *cache, const oscar__cu_store *s, int slot,
                                          int64_t place, int64_t row, int64_t count, uint64_t k, uint64_t v,
                                          void *stream)
{
    const oscar__cu_driver *d = &cache->cuda->driver;
    uint64_t at = (uint64_t)slot * (uint64_t)s->layer.window_rows + (uint64_t)place;
    uint64_t to = (uint64_t)row;
    size_t rows = (size_t)count;
    int code = 0;
    if (k) code = d->copy_over(k + to * s->k_row, s->window_k + at * s->k_row, rows * s->k_row, stream);
    if (v && !code) code = d->copy_over(v + to * s->v_row, s->window_v + at * s->v_row, rows * s->v_row, stream);
    return OSCAR__CU(&cache->cuda->hooks, d, "cuMemcpyDtoDAsync", code);
}

/* All runs of tokens that lie together. */
static oscar_result oscar__cu_gather_runs(oscar_cuda_cache *cache, const oscar__cu_store *s, const oscar__seq *seq,
                                          int64_t first, int64_t count, uint64_t k, uint64_t v, void *stream)
{
    const oscar_pager_desc *d = &cache->r.pager;
    int64_t row = 0, ring = s->layer.window_rows - d->sink;
    int slot = oscar__slot_of(cache->pager, seq);
    oscar_result result = OSCAR_OK;
    while (!result && row < count) {
        int64_t position = first + row, run, index = position - d->sink;
        if (index >= 0 && index < seq->history) {
            oscar_cuda_item item;
            memset(&item, 0, sizeof item);
            item.row = row;
            item.page = seq->pages[index / d->page_tokens];
            item.first = (int32_t)(index % d->page_tokens);
            run = d->page_tokens - item.first < count - row ? d->page_tokens - item.first : count - row;
            item.count = (int32_t)run;
            result = oscar__cu_gather_page(cache, s, &item, k, v, stream);
        } else {
            int64_t place = index < 0 ? position : d->sink + index % ring;
            run = (index < 0 ? d->sink : d->sink + ring) - place;
            if (run > count - row) run = count - row;
            result = oscar__cu_gather_rows(cache, s, slot, place, row, run, k, v, stream);
        }
        row += run;
    }
    return result;
}

OSCAR_API oscar_result oscar_cuda_gather(oscar_cuda_cache *cache, int layer, oscar_seq seq, int64_t first,
                                         int64_t count, uint64_t k, uint64_t v, void *stream)
{
    const oscar__cu_store *s = oscar__cu_store_at(cache, layer);
    const oscar_hooks *hooks;
    oscar__seq *q;
    int64_t length;
    oscar_result result;
    if (!s) return OSCAR_ERR_ARGUMENT;
    hooks = &cache->cuda->hooks;
    result = oscar__cu_seq(cache, seq, &q);
    if (result) return result;
    if (q->step == OSCAR_STEP_APPEND || q->step == OSCAR_STEP_DRAFT)
        return OSCAR__FAIL(hooks, OSCAR_ERR_STATE, "slot %i has an open step: end it in all layers, or abort it",
                           oscar__slot_of(cache->pager, q));
    length = q->length + q->step_rows;
    if (first < 0 || count < 0 || first > length || count > length - first)
        return OSCAR__FAIL(hooks, OSCAR_ERR_ARGUMENT, "tokens %I to %I: the sequence has %I", first, first + count,
                           length);
    result = oscar__cu_start_call(cache, stream);
    if (result) return result;
    return oscar__cu_leave(cache->cuda, oscar__cu_gather_runs(cache, s, q, first, count, k, v, stream));
}

#endif /* OSCAR_IMPLEMENTATION */

/* ==================================================================================================================
   == 5 LICENSE
   ==================================================================================================================

   This software is available under two licenses; choose the one you prefer.

   ALTERNATIVE A: MIT License

   Copyright (c) 2026 the oscar.h authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
   documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
   rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
   permit persons to whom the Software is furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
   Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
   WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
   COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
   OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

   ALTERNATIVE B: Public Domain (www.unlicense.org)

   This is free and unencumbered software released into the public domain.

   Anyone is free to copy, modify, publish, use, compile, sell, or distribute this software, either in source code form
   or as a compiled binary, for any purpose, commercial or non-commercial, and by any means.

   In jurisdictions that recognize copyright laws, the author or authors of this software dedicate any and all copyright
   interest in the software to the public domain. We make this dedication for the benefit of the public at large and to
   the detriment of our heirs and successors. We intend this dedication to be an overt act of relinquishment in
   perpetuity of all present and future rights to this software under copyright law.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
   WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE
   LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
