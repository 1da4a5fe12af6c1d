/* cuda.c - a 2-bit cache on an NVIDIA GPU beside the same cache on the CPU: a prompt, some steps, then what differs.

       cc -O2 -I. examples/cuda.c -o cuda -lm && ./cuda [steps, default 200 [path of the driver]]

   Needs no CUDA header. Where there is no GPU, no driver or no NVRTC it says so and ends well. Queries, keys and values
   are random; an engine's come out of its own kernels, on the same stream. */

#define OSCAR_IMPLEMENTATION
#include "oscar_cuda.h"
#include "examples/device.h"

#include <stdio.h>
#include <stdlib.h>
enum { LAYERS = 2, Q_HEADS = 8, KV_HEADS = 2, DIM = 128, PROMPT = 500, CHUNK = 256 };

static void report(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    (void)line;
    if (level == OSCAR_LOG_ERROR) fprintf(stderr, "oscar: %s\n", text);
}

static void must(oscar_result result, const char *what)
{
    if (result == OSCAR_OK) return;
    fprintf(stderr, "%s: %s\n", what, oscar_result_text(result));
    exit(1);
}

static uint64_t device_floats(size_t count)
{
    uint64_t memory = 0;
    if (device_calls.alloc(&memory, count * sizeof(float))) { fprintf(stderr, "no device memory\n"); exit(1); }
    return memory;
}

/* ---- rows ---- */

static float q[CHUNK * Q_HEADS * DIM], k[CHUNK * KV_HEADS * DIM], v[CHUNK * KV_HEADS * DIM];
static float o[Q_HEADS * DIM], o_device[Q_HEADS * DIM];
static struct { uint64_t q, k, v, o; } device;

/* About normal, from a plain generator. BF16 holds all of them, as the windows do. */
static void fill(float *x, size_t count)
{
    static uint32_t state = 1;
    size_t i;
    int j;
    for (i = 0; i < count; i++) {
        int sum = 0;
        for (j = 0; j < 4; j++) {
            state = state * 1664525u + 1013904223u;
            sum += (int)(state >> 26);
        }
        x[i] = (float)(sum - 126) / 32;
    }
}

static void new_rows(int rows)
{
    fill(q, (size_t)rows * Q_HEADS * DIM);
    fill(k, (size_t)rows * KV_HEADS * DIM);
    fill(v, (size_t)rows * KV_HEADS * DIM);
    if (device_calls.to_device(device.q, q, (size_t)rows * Q_HEADS * DIM * sizeof(float))
        || device_calls.to_device(device.k, k, (size_t)rows * KV_HEADS * DIM * sizeof(float))
        || device_calls.to_device(device.v, v, (size_t)rows * KV_HEADS * DIM * sizeof(float))) {
        fprintf(stderr, "rows do not get to the device\n");
        exit(1);
    }
}

/* ---- both caches ---- */

static oscar_cuda_cache *gpu;
static oscar_cache *cpu;

/* A step of `rows` tokens in all layers. Returns the larger of *worst and the difference of the outputs. */
static double step(oscar_seq on_gpu, oscar_seq on_cpu, int rows, double worst)
{
    oscar_batch a, b;
    oscar_cuda_rows dq, dk, dv, to;
    oscar_view hq, hk, hv;
    oscar_out ho;
    int l, i;
    memset(&a, 0, sizeof a);
    memset(&dq, 0, sizeof dq);
    memset(&hq, 0, sizeof hq);
    memset(&ho, 0, sizeof ho);
    a.rows = rows;
    b = a;
    a.seq = on_gpu;
    b.seq = on_cpu;
    dk = dv = to = dq;
    hk = hv = hq;
    dq.data = device.q; dk.data = device.k; dv.data = device.v; to.data = device.o;
    hq.data = q; hk.data = k; hv.data = v; ho.data = o;
    must(oscar_cuda_step(gpu, &a, 1, 0, NULL), "oscar_cuda_step");
    must(oscar_cache_reserve(cpu, on_cpu, rows, 0), "oscar_cache_reserve");
    for (l = 0; l < LAYERS; l++) {
        double error = 0, size = 0;
        new_rows(rows);
        must(oscar_cuda_append(gpu, l, &dk, &dv, NULL), "oscar_cuda_append");
        must(oscar_append(cpu, l, &b, 1, &hk, &hv), "oscar_append");
        if (rows > 1) continue;   /* the prompt's own attention is the engine's: oscar_cuda_attend_history */
        must(oscar_cuda_attend(gpu, l, &dq, 0, &to, 0, NULL), "oscar_cuda_attend");
        must(oscar_attend(cpu, l, &b, 1, &hq, NULL, &ho, NULL), "oscar_attend");
        if (device_calls.to_host(o_device, device.o, sizeof o_device)) {
            fprintf(stderr, "the device failed\n");
            exit(1);
        }
        for (i = 0; i < Q_HEADS * DIM; i++) {
            error += ((double)o[i] - o_device[i]) * ((double)o[i] - o_device[i]);
            size += (double)o[i] * o[i];
        }
        if (sqrt(error / size) > worst) worst = sqrt(error / size);
    }
    return worst;
}

/* Tokens whose keys the two caches do not hold alike, to the bit; counted by 64. */
static int64_t differing_tokens(oscar_seq on_gpu, oscar_seq on_cpu)
{
    static unsigned short of_gpu[64 * KV_HEADS * DIM], of_cpu[64 * KV_HEADS * DIM];
    oscar_seq_state state;
    oscar_out out;
    int64_t first, count, differ = 0;
    int l;
    must(oscar_cuda_cache_get(gpu, on_gpu, &state), "oscar_cuda_cache_get");
    memset(&out, 0, sizeof out);
    out.data = of_cpu;
    out.type = OSCAR_BF16;
    for (l = 0; l < LAYERS; l++)
        for (first = 0; first < state.length; first += count) {
            count = state.length - first < 64 ? state.length - first : 64;
            must(oscar_cuda_gather(gpu, l, on_gpu, first, count, device.k, 0, NULL), "oscar_cuda_gather");
            must(oscar_fetch(cpu, l, on_cpu, first, count, &out, NULL), "oscar_fetch");
            if (device_calls.to_host(of_gpu, device.k, sizeof of_gpu)
                || memcmp(of_gpu, of_cpu, (size_t)count * KV_HEADS * DIM * 2)) differ += count;
        }
    return differ;
}

/* What this computer has; 0 if a GPU cannot be used. */
static int look(const oscar_cuda_desc *desc, oscar_cuda_info *info)
{
    if (oscar_cuda_probe(desc, info)) {
        printf("No cache on a GPU here: %s\n", info->sentence);
        return 0;
    }
    printf("%s, sm_%d, %d multiprocessors, %.1f GB; CUDA %d.%d, NVRTC %d.%d\n", info->name, info->sm,
           info->multiprocessors, (double)info->memory_bytes / 1e9, info->driver_version / 1000,
           info->driver_version % 1000 / 10, info->nvrtc_version / 1000, info->nvrtc_version % 1000 / 10);
    return 1;
}

static void create(oscar_cuda *cuda, const oscar_hooks *hooks)
{
    static oscar_layer layers[LAYERS];
    oscar_cuda_cache_desc desc;
    oscar_cuda_footprint bytes;
    int l;
    memset(layers, 0, sizeof layers);
    memset(&desc, 0, sizeof desc);
    for (l = 0; l < LAYERS; l++) {
        layers[l].q_heads = Q_HEADS;
        layers[l].kv_heads = KV_HEADS;
        layers[l].k_dim = DIM;
    }
    desc.cache.layers = layers;
    desc.cache.layer_count = LAYERS;
    desc.cache.max_sequences = 1;
    desc.cache.max_pages = 64;
    desc.cache.hooks = *hooks;
    must(oscar_cuda_cache_bytes(cuda, &desc, &bytes), "oscar_cuda_cache_bytes");
    printf("cache: %.2f MB on the device, %.2f of it pages, %.2f windows\n", (double)bytes.total / 1e6,
           (double)bytes.pages / 1e6, (double)bytes.windows / 1e6);
    must(oscar_cuda_cache_create(cuda, &desc, &gpu), "oscar_cuda_cache_create");
    must(oscar_cache_create(&desc.cache, &cpu), "oscar_cache_create");
}

int main(int argc, char **argv)
{
    int steps = argc > 1 ? atoi(argv[1]) : 200, i;
    oscar_cuda_desc desc;
    oscar_cuda_info info;
    oscar_cuda_fault fault;
    oscar_cuda *cuda;
    oscar_seq on_gpu, on_cpu;
    double worst = 0;
    int64_t differ;
    memset(&desc, 0, sizeof desc);
    if (argc > 2) desc.driver = argv[2];
    if (!look(&desc, &info)) return 0;
    desc.hooks.log = report;
    must(oscar_cuda_open(&desc, &cuda), "oscar_cuda_open");
    oscar_cuda_get_info(cuda, &info);
    if (!device_find(info.driver_path) || device_calls.push(info.context)) return 1;
    device.q = device_floats(CHUNK * Q_HEADS * DIM);
    device.k = device_floats(CHUNK * KV_HEADS * DIM);
    device.v = device_floats(CHUNK * KV_HEADS * DIM);
    device.o = device_floats(Q_HEADS * DIM);
    create(cuda, &desc.hooks);
    must(oscar_cuda_cache_open(gpu, &on_gpu), "oscar_cuda_cache_open");
    must(oscar_cache_open(cpu, &on_cpu), "oscar_cache_open");
    for (i = 0; i < PROMPT; i += CHUNK) (void)step(on_gpu, on_cpu, PROMPT - i < CHUNK ? PROMPT - i : CHUNK, 0);
    for (i = 0; i < steps; i++) worst = step(on_gpu, on_cpu, 1, worst);
    differ = differing_tokens(on_gpu, on_cpu);
    must(oscar_cuda_status(gpu, 0, &fault, NULL), "oscar_cuda_status");
    printf("%d tokens: outputs differ by at most %.2g of their length, %ld keys are not those of the CPU%s\n",
           PROMPT + steps, worst, (long)differ, fault.found ? "; the device met a bad row" : "");
    oscar_cuda_cache_destroy(gpu);
    oscar_cache_destroy(cpu);
    (void)device_calls.free(device.q);
    (void)device_calls.free(device.k);
    (void)device_calls.free(device.v);
    (void)device_calls.free(device.o);
    (void)device_calls.pop(NULL);
    oscar_cuda_close(cuda);
    return worst > 1e-3 || differ || fault.found;
}
