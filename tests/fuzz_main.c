/* fuzz_main.c - runs a fuzz target without libFuzzer: on files, or on made-up inputs from a seeded generator.

       cc -std=c99 -g -O1 -fsanitize=address,undefined -I. tests/fuzz_NAME.c tests/fuzz_main.c -o fuzz_NAME -lm
       fuzz_NAME                made-up inputs for 3 seconds
       fuzz_NAME FILE...        each file once
       fuzz_NAME -n COUNT       COUNT made-up inputs; also: mutations of the FILEs that follow
       options before FILEs     -s SEED another series; -v the number of each input before it runs;
                                -i NUMBER only that input

   Made-up inputs are random bytes, or mutations of the seeds that a target offers by

       uint8_t *fuzz_seed(int index, size_t *size);     malloc'ed bytes; NULL where there are no more */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#if defined(__GNUC__) && !defined(_WIN32)
uint8_t *fuzz_seed(int index, size_t *size) __attribute__((weak));
#  define SEED(index, size) (fuzz_seed ? fuzz_seed(index, size) : NULL)
#else
#  define SEED(index, size) NULL
#endif

enum { MAX_SEEDS = 64, MAX_GROWTH = 256, MAX_RANDOM = 4096, SECONDS = 3 };

typedef struct input { uint8_t *data; size_t size; } input;

static uint64_t state;

static uint32_t random_u32(void)   /* splitmix64, upper half */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static size_t below(size_t n) { return n ? random_u32() % n : 0; }

static int read_file(const char *path, input *out)
{
    FILE *f = fopen(path, "rb");
    long size = 0;
    if (f && !fseek(f, 0, SEEK_END)) size = ftell(f);
    if (!f || size < 0 || fseek(f, 0, SEEK_SET)) { printf("cannot read %s\n", path); return 0; }
    out->data = (uint8_t *)malloc((size_t)size + 1);
    out->size = out->data ? fread(out->data, 1, (size_t)size, f) : 0;
    fclose(f);
    return out->data != NULL;
}

/* Changes x, which has room for MAX_GROWTH bytes more. */
static void mutate(input *x, const input *other)
{
    static const char *const words[] = { "0", "1", "2", "16", "-1", "\"", ",", "[", "{", "}", "dense", "identity",
                                         "hadamard", "65536", "18446744073709551615", "\\u0041", "1e999", ":" };
    size_t at = below(x->size), length = 1 + below(8), i;
    const char *word = words[below(sizeof words / sizeof words[0])];
    if (!x->size) return;
    switch (below(8)) {
    case 0: x->data[at] ^= (uint8_t)(1u << below(8)); break;
    case 1: x->data[at] = (uint8_t)random_u32(); break;
    case 2: x->data[at] = (uint8_t)"\0\x7f\x80\xff"[below(4)]; break;
    case 3: x->data[at] = (uint8_t)(x->data[at] + 1 - 2 * below(2)); break;
    case 4:   /* remove */
        if (length > x->size - at) length = x->size - at;
        memmove(x->data + at, x->data + at + length, x->size - at - length);
        x->size -= length;
        break;
    case 5:   /* repeat */
        if (length > x->size - at) length = x->size - at;
        memmove(x->data + at + length, x->data + at, x->size - at);
        x->size += length;
        break;
    case 6:   /* overwrite with a word */
        for (i = 0; word[i] && at + i < x->size; i++) x->data[at + i] = (uint8_t)word[i];
        break;
    default:   /* a piece of another input */
        for (i = at; i < at + length * 4 && i < x->size && i < other->size; i++) x->data[i] = other->data[i];
    }
}

/* Input `number` of series `seed`, from an allocation of its size, so that reading on is seen. */
static void run_made_up(const input *seeds, int count, uint64_t seed, long number)
{
    input x = { NULL, 0 };
    uint8_t *exact;
    size_t changes, i;
    state = seed << 32 ^ (uint64_t)number;
    changes = 1 + below(6);
    if (count) {
        const input *from = &seeds[below((size_t)count)];
        x.size = from->size;
        x.data = (uint8_t *)malloc(from->size + MAX_GROWTH);
        if (!x.data) return;
        memcpy(x.data, from->data, from->size);
        while (changes--) mutate(&x, &seeds[below((size_t)count)]);
    } else {
        x.size = below(MAX_RANDOM + 1);
        x.data = (uint8_t *)malloc(MAX_RANDOM);
        if (!x.data) return;
        for (i = 0; i < x.size; i++) x.data[i] = (uint8_t)random_u32();
    }
    exact = (uint8_t *)malloc(x.size ? x.size : 1);
    if (exact) {
        memcpy(exact, x.data, x.size);
        (void)LLVMFuzzerTestOneInput(exact, x.size);
    }
    free(exact);
    free(x.data);
}

int main(int argc, char **argv)
{
    static input seeds[MAX_SEEDS];
    const char *name = strrchr(argv[0], '/');
    long runs = 0, only = -1, n, first, last;
    int count = 0, files, verbose = 0, i;
    uint64_t seed = 1;
    clock_t end;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-v")) verbose = 1;
        else if (!strcmp(argv[i], "-n") && i + 1 < argc) runs = atol(argv[++i]);
        else if (!strcmp(argv[i], "-i") && i + 1 < argc) only = atol(argv[++i]);
        else if (!strcmp(argv[i], "-s") && i + 1 < argc) seed = (uint64_t)strtoul(argv[++i], NULL, 10);
        else if (count < MAX_SEEDS) {
            if (!read_file(argv[i], &seeds[count])) return 1;
            count++;
        }
    }
    files = count;
    while (!files && count < MAX_SEEDS && (seeds[count].data = SEED(count, &seeds[count].size)) != NULL) count++;
    for (i = 0; i < count; i++) (void)LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);
    first = only < 0 ? 0 : only;
    last = only < 0 ? runs : only + 1;
    end = clock() + (clock_t)SECONDS * CLOCKS_PER_SEC;
    for (n = first; n < last || (!files && !runs && only < 0 && clock() < end); n++) {
        if (verbose) { printf("%ld\n", n); fflush(stdout); }
        run_made_up(seeds, count, seed, n);
    }
    for (i = 0; i < count; i++) free(seeds[i].data);
    printf("%d files or seeds and %ld made-up inputs\n%s: 1 passed, 0 failed, 0 skipped\n", count, n - first,
           name ? name + 1 : argv[0]);
    return 0;
}
