/* bench_bandwidth.c - what the machine gives: bandwidth of reading for 1 and 2 threads from buffers of 32 KiB to 2 GiB
   (4 with --full), the clock, and multiply-adds in float. The roof that other figures are to be compared with.

   Buffers up to 2 MiB are one for each thread, as the caches that they fit in; larger ones are shared out. The OR of
   all words is compared with that of 64-bit words. Load on the machine moves the bandwidth of memory by much: the other
   benchmarks measure it again, between their own cases. */
#include "bench.h"
#include "bandwidth.h"

enum { SIZES_MAX = 10, THREADS = 2 };

static const size_t KIB = 1024, EACH = 2048;      /* up to EACH KiB each thread has its own */

static void size_name(size_t kib, char name[16])
{
    if (kib % 1024) (void)snprintf(name, 16, "%dKiB", (int)kib);
    else if (kib % (1024 * 1024)) (void)snprintf(name, 16, "%dMiB", (int)(kib / 1024));
    else (void)snprintf(name, 16, "%dGiB", (int)(kib / 1024 / 1024));
}

/* Another sum in every block of 512 bytes, so that a block left out is seen. */
static void fill(uint64_t *words, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) words[i] = (uint64_t)i * 0x9e3779b97f4a7c15u & (uint64_t)1 << i / 64 % 64;
}

static uint64_t or_of(const uint64_t *words, size_t count)
{
    uint64_t sum = 0;
    size_t i;
    for (i = 0; i < count; i++) sum |= words[i];
    return sum;
}

static void check_reader(bench_reader *r)
{
    uint64_t sum = 0;
    int t;
    bench_read(r);
    for (t = 0; t < r->threads; t++) sum |= r->sum[t];
    bench_check(sum == or_of((const uint64_t *)r->data, r->bytes / 8 * (r->apart ? (size_t)r->threads : 1)),
                "the OR of all words");
}

int main(int argc, char **argv)
{
    static const size_t sizes[SIZES_MAX] = { 32, 256, 1024, 1536, 8192, 32768, 131072, 393216, 1048576, 2097152 };
    static bench_reader readers[SIZES_MAX][THREADS];
    static bench_table table;
    size_t largest, kib;
    char name[16];
    void *data;
    double clock;
    int s, t;
    bench_begin("bench_bandwidth", "", argc, argv);
    largest = sizes[SIZES_MAX - 1] * (bench.full ? 2 : 1);
    data = bench_alloc(largest * KIB);
    fill((uint64_t *)data, largest * KIB / 8);
    for (s = 0; s < SIZES_MAX; s++)
        for (t = 0; t < THREADS; t++) {
            bench_reader *r = &readers[s][t];
            bench_case c;
            kib = s < SIZES_MAX - 1 ? sizes[s] : largest;
            size_name(kib, name);
            r->data = data;
            r->bytes = kib * KIB;
            r->threads = t + 1;
            r->apart = kib <= EACH;
            check_reader(r);
            r->passes = kib < 65536 ? (int)(65536 / kib) : 1;
            c = bench_case_of(bench_read, r, "read %s%s %dt", name, r->apart ? " each" : "", t + 1);
            c.units = r->passes;
            c.bytes = (double)r->bytes * r->passes * (r->apart ? t + 1 : 1);
            bench_add(&table, c);
        }
    bench_time(&table, 5e-3);
    printf("\nReading, %d-bit vectors: one pass over the buffer of 1 or 2 threads\n", 32 * bandwidth_lanes());
    bench_print(&table, 1e6, "us");
    for (s = 0; s < SIZES_MAX; s++)
        for (t = 0; t < THREADS; t++) {
            const bench_case *c = &table.cases[s * THREADS + t];
            size_name(s < SIZES_MAX - 1 ? sizes[s] : largest, name);
            bench_figure(OSCAR_ISA_AUTO, c->bytes / c->median / 1e9, "GB/s", "bandwidth.%s.%dt", name, t + 1);
        }
    clock = bench_clock_hz();
    bench_figure(OSCAR_ISA_AUTO, clock / 1e9, "GHz", "machine.clock");
    bench_figure(OSCAR_ISA_AUTO, 2 * bench_fma_rate() / 1e9, "GFLOP/s", "machine.float_fma");
    bench_free(data, largest * KIB);
    return 0;
}
