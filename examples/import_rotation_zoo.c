/* import_rotation_zoo.c - published rotations become a rotations file, and a rotations file becomes GGUF tensors.

       cc -O2 -I. examples/import_rotation_zoo.c -o import_rotation_zoo -lm          (or: make examples)
       ./import_rotation_zoo --k k_rotation.pt --v v_rotation.pt --kv-heads 8 -o model.safetensors
       ./import_rotation_zoo --gguf model-rot-kv.gguf -o model.safetensors
       ./import_rotation_zoo export model.safetensors -o rotations.gguf
       ./import_rotation_zoo inspect FILE

   Reads the checkpoints of the OSCAR RotationZoo. Such a .pt file is a zip archive, written by PyTorch: data.pkl
   describes the objects as a pickle, data/0, data/1, ... are the numbers. A pickle is a program for a small stack
   machine that may call anything in Python. The machine below knows tensors, numbers, texts and containers, and refuses
   the rest by name; it runs nothing. Every file is taken for a hostile one: all counts, offsets and strides are checked
   before they are used, memory is bounded, and a bad file gets one sentence.

   Format 1 has one matrix R [D][D] a layer, shared by its KV heads, format 2 one a KV head, [Hkv][D][D]; x' = x R, as
   in oscar.h. The GGUF tensors blk.N.attn_k_rot.weight and blk.N.attn_v_rot.weight hold R transposed, because
   ggml_mul_mat multiplies with rows.

   Sections: 1 messages, bytes   2 numbers, matrices   3 zip   4 pickle   5 checkpoint   6 GGUF, reading
             7 rotations file   8 GGUF, writing   9 commands */
#define _POSIX_C_SOURCE 200809L
#ifndef OSCAR_IMPLEMENTATION
#define OSCAR_IMPLEMENTATION
#endif
#include "oscar.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* == 1 MESSAGES, BYTES ============================================================================================ */

static int import_quiet;             /* tests and fuzzers read thousands of bad files */
static char import_message[512];     /* the last complaint */

/* Prints a message and returns 0, so that a function that fails can say `return complain(...)`. */
static int complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(import_message, sizeof import_message, format, args);
    va_end(args);
    if (import_quiet) return 0;
    fflush(stdout);
    fprintf(stderr, "import_rotation_zoo: %s\n", import_message);
    return 0;
}

/* Cleared memory, or NULL after a message. */
static void *allocate(size_t count, size_t each)
{
    void *memory = NULL;
    if (!count || !each) count = each = 1;
    if (count <= (size_t)-1 / each) memory = calloc(count, each);
    if (!memory) complain("no memory for %lu x %lu bytes", (unsigned long)count, (unsigned long)each);
    return memory;
}

/* Makes room for one more element after `count`, at most `most`. */
static int grow(void **memory, size_t each, int count, int *room, int most, const char *what)
{
    int wanted = *room ? 2 * *room : 64;
    void *larger;
    if (count < *room) return 1;
    if (count >= most) return complain("%s: more than %d", what, most);
    if (wanted > most) wanted = most;
    larger = realloc(*memory, (size_t)wanted * each);
    if (!larger) return complain("%s: no memory", what);
    *memory = larger;
    *room = wanted;
    return 1;
}

/* Bytes of a file, not ended by a 0. */
typedef struct text { const char *at; size_t size; } text;

static text text_of(const void *at, size_t size)
{
    text t;
    t.at = (const char *)at;
    t.size = size;
    return t;
}

static int text_is(text t, const char *s) { return t.size == strlen(s) && !memcmp(t.at, s, t.size); }

static int text_ends(text t, const char *s)
{
    size_t size = strlen(s);
    return t.size >= size && !memcmp(t.at + t.size - size, s, size);
}

/* A printable copy for messages; four of them live at a time. */
static const char *show(text t)
{
    static char copies[4][80];
    static int next;
    char *copy = copies[next++ & 3];
    size_t i, size = t.size < 76 ? t.size : 76;
    for (i = 0; i < size; i++) copy[i] = t.at[i] >= ' ' && t.at[i] <= '~' ? t.at[i] : '?';
    memcpy(copy + size, size < t.size ? "..." : "", size < t.size ? 4 : 1);
    return copy;
}

/* Decimal digits as a number below 1e6, or -1. */
static int64_t text_number(text t)
{
    int64_t number = 0;
    size_t i;
    if (!t.size || t.size > 6 || (t.size > 1 && t.at[0] == '0')) return -1;
    for (i = 0; i < t.size; i++) {
        if (t.at[i] < '0' || t.at[i] > '9') return -1;
        number = 10 * number + (t.at[i] - '0');
    }
    return number;
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t number = 0;
    while (bytes-- > 0) number = number << 8 | at[bytes];
    return number;
}

/* A file as memory: mapped, because a GGUF may be larger than memory and only its rotations are read. */
typedef struct mapped { const unsigned char *bytes; size_t size; } mapped;

static int map_file(const char *path, mapped *out)
{
    struct stat info;
    void *memory;
    int file = open(path, O_RDONLY);
    memset(out, 0, sizeof *out);
    if (file < 0) return complain("cannot open %s: %s", path, strerror(errno));
    if (fstat(file, &info) || !S_ISREG(info.st_mode) || info.st_size <= 0) {
        close(file);
        return complain("%s is empty or not a regular file", path);
    }
    memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (memory == MAP_FAILED) return complain("cannot map %s: %s", path, strerror(errno));
    out->bytes = (const unsigned char *)memory;
    out->size = (size_t)info.st_size;
    return 1;
}

static void unmap_file(mapped *m)
{
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->size);
    memset(m, 0, sizeof *m);
}

/* == 2 NUMBERS, MATRICES ========================================================================================== */

typedef enum number_type { NUMBER_F32, NUMBER_F64, NUMBER_F16, NUMBER_BF16 } number_type;
static const int number_bytes[] = { 4, 8, 2, 2 };
static const char *const number_names[] = { "F32", "F64", "F16", "BF16" };

static float number_at(number_type type, const unsigned char *at)
{
    uint64_t bits = little(at, number_bytes[type]);
    uint16_t half = (uint16_t)bits;
    uint32_t word = (uint32_t)bits;
    double wide;
    float number;
    if (type == NUMBER_F64) { memcpy(&wide, &bits, 8); return (float)wide; }
    if (type == NUMBER_F32) memcpy(&number, &word, 4);
    else oscar_convert(1, type == NUMBER_F16 ? OSCAR_F16 : OSCAR_BF16, &half, OSCAR_F32, &number);
    return number;
}

/* Matrices that are stored in full precision must be orthogonal to STRICT. Half floats have errors of their own, up to
   about 1e-3: they may be off by LOOSE and are made orthogonal again. */
#define STRICT 1e-4
#define LOOSE 1e-2

enum { MAX_LAYERS = 4096, MAX_HEADS = 4096, MAX_VALUES = 1 << 28 };   /* values: 1 GiB of floats a side */

/* The matrices F of one layer of one side: [heads][dim][dim] row-major, heads 1 where they share one. */
typedef struct layer_matrices {
    int heads, dim, shared;
    number_type type;
    double stored, deviation;   /* largest |F F^T - I|, as stored and as it will be used */
    float *f;                   /* NULL: the layer has no matrix */
} layer_matrices;

/* One side, K or V, of a model. */
typedef struct side {
    int count;                  /* layers, the last one has a matrix */
    int64_t values, version;    /* floats held; format_version of the checkpoint, 0 if it has none */
    char objective[64];
    layer_matrices layers[MAX_LAYERS];
} side;

static void side_free(side *s)
{
    int i;
    if (!s) return;
    for (i = 0; i < s->count; i++) free(s->layers[i].f);
    free(s);
}

/* Room for the matrices of one layer, or NULL. heads 0: one matrix, shared. */
static float *side_add(side *s, int64_t layer, uint64_t heads, uint64_t rows, uint64_t columns, number_type type)
{
    layer_matrices *m;
    int shared = heads == 0;
    if (layer < 0 || layer >= MAX_LAYERS)
        return complain("layer %ld: at most %d layers", (long)layer, MAX_LAYERS), NULL;
    m = &s->layers[layer];
    if (m->f) return complain("layer %ld occurs twice", (long)layer), NULL;
    if (rows != columns || rows < 16 || rows > 1024 || rows % 16)
        return complain("layer %ld: a matrix of %lu x %lu: it must be square, a multiple of 16, at most 1024",
                        (long)layer, (unsigned long)rows, (unsigned long)columns), NULL;
    if (shared) heads = 1;
    if (heads > MAX_HEADS)
        return complain("layer %ld: %lu heads, at most %d", (long)layer, (unsigned long)heads, MAX_HEADS), NULL;
    s->values += (int64_t)(heads * rows * rows);
    if (s->values > MAX_VALUES) return complain("the matrices have more than %d values", MAX_VALUES), NULL;
    m->f = (float *)allocate((size_t)(heads * rows * rows), sizeof(float));
    if (!m->f) return NULL;
    m->heads = (int)heads;
    m->dim = (int)rows;
    m->shared = shared;
    m->type = type;
    if (layer >= s->count) s->count = (int)layer + 1;
    return m->f;
}

/* Largest |F F^T - I|, -1 where F is not finite. */
static double deviation_of(const float *f, int n)
{
    double worst = 0;
    int i, j, k;
    for (i = 0; i < n * n; i++) if (!isfinite(f[i])) return -1;
    for (i = 0; i < n; i++)
        for (j = 0; j <= i; j++) {
            double sum = i == j ? -1 : 0;
            for (k = 0; k < n; k++) sum += (double)f[i * n + k] * (double)f[j * n + k];
            if (fabs(sum) > worst) worst = fabs(sum);
        }
    return worst;
}

/* Two Newton and Schulz steps, X <- X (3 I - X^T X) / 2, towards the nearest orthogonal matrix. */
static int make_orthogonal(float *f, int n)
{
    size_t size = (size_t)n * (size_t)n;
    double *x = (double *)allocate(3 * size, sizeof(double)), *gram, *y;
    int step, i, j, k;
    if (!x) return 0;
    gram = x + size;
    y = gram + size;
    for (i = 0; i < n * n; i++) x[i] = (double)f[i];
    for (step = 0; step < 2; step++) {
        memset(gram, 0, 2 * size * sizeof(double));
        for (k = 0; k < n; k++)
            for (i = 0; i < n; i++)
                for (j = 0; j < n; j++) gram[i * n + j] += x[k * n + i] * x[k * n + j];
        for (i = 0; i < n; i++)
            for (k = 0; k < n; k++)
                for (j = 0; j < n; j++) y[i * n + j] += x[i * n + k] * ((k == j ? 1.5 : 0) - 0.5 * gram[k * n + j]);
        memcpy(x, y, size * sizeof(double));
    }
    for (i = 0; i < n * n; i++) f[i] = (float)x[i];
    free(x);
    return 1;
}

static int layer_check(layer_matrices *m, int layer, const char *name)
{
    int half = m->type == NUMBER_F16 || m->type == NUMBER_BF16, h;
    for (h = 0; h < m->heads; h++) {
        float *f = m->f + (size_t)h * (size_t)m->dim * (size_t)m->dim;
        double stored = deviation_of(f, m->dim), deviation = stored;
        if (stored < 0) return complain("%s, layer %d, matrix %d: holds NaN or infinity", name, layer, h);
        if (stored > m->stored) m->stored = stored;
        if (half && stored > STRICT / 100 && stored <= LOOSE) {
            if (!make_orthogonal(f, m->dim)) return 0;
            deviation = deviation_of(f, m->dim);
        }
        if (!(deviation >= 0 && deviation <= STRICT))
            return complain("%s, layer %d, matrix %d: not orthogonal, |R R^T - I| is %.2g, at most %.0e is accepted",
                            name, layer, h, stored, half ? LOOSE : STRICT);
        if (deviation > m->deviation) m->deviation = deviation;
    }
    return 1;
}

/* Every matrix must be finite and orthogonal; name (K, V) is for messages. */
static int side_check(side *s, const char *name)
{
    int i;
    if (!s->count) return complain("%s: the file has no rotations", name);
    for (i = 0; i < s->count; i++)
        if (s->layers[i].f && !layer_check(&s->layers[i], i, name)) return 0;
    return 1;
}

static double side_deviation(const side *s)
{
    double worst = 0;
    int i;
    for (i = 0; i < s->count; i++) if (s->layers[i].deviation > worst) worst = s->layers[i].deviation;
    return worst;
}

/* == 3 ZIP ======================================================================================================== */

/* Only what PyTorch writes: stored entries below 4 GiB. It does write the end record of zip64, besides the plain one;
   both must say the same. */
typedef struct zip_entry { text name; size_t begin, data, size, end; uint32_t crc; int flags; } zip_entry;
typedef struct zip { const unsigned char *bytes; size_t directory; zip_entry *entries; int count; } zip;

enum {
    ZIP_LOCAL = 0x04034b50, ZIP_DESCRIPTOR = 0x08074b50, ZIP_CENTRAL = 0x02014b50, ZIP_END = 0x06054b50,
    ZIP_END64 = 0x06064b50, ZIP_LOCATOR64 = 0x07064b50
};
#define ZIP_BEYOND 0xffffffffu   /* stands where the number is in a zip64 record */

static uint32_t crc32_of(const unsigned char *bytes, size_t size)
{
    static uint32_t table[256];
    uint32_t crc = 0xffffffffu, i, bit;
    size_t at;
    if (!table[1])
        for (i = 0; i < 256; i++) {
            uint32_t c = i;
            for (bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
            table[i] = c;
        }
    for (at = 0; at < size; at++) crc = crc >> 8 ^ table[(crc ^ bytes[at]) & 255];
    return ~crc;
}

/* Where the central directory ends: at the end record, or at the one of zip64 before it, which may say nothing else. */
static int zip_directory_end(const unsigned char *b, size_t end, size_t *out)
{
    const unsigned char *locator, *record;
    uint64_t at;
    *out = end;
    if (end < 20 || little(b + end - 20, 4) != ZIP_LOCATOR64) return 1;
    locator = b + end - 20;
    at = little(locator + 8, 8);
    if (end - 20 < 56 || at > end - 20 - 56) return complain("zip: the zip64 end record lies outside the file");
    record = b + at;
    if (little(record, 4) != ZIP_END64 || little(record + 4, 8) != end - 20 - at - 12)
        return complain("zip: the zip64 end record is damaged");
    if (little(record + 24, 8) != little(b + end + 8, 2) || little(record + 32, 8) != little(b + end + 10, 2)
        || little(record + 40, 8) != little(b + end + 12, 4) || little(record + 48, 8) != little(b + end + 16, 4))
        return complain("zip: the end records differ, so this needs zip64: archives beyond 4 GiB or 65534 entries are "
                        "not read");
    *out = (size_t)at;
    return 1;
}

/* Finds the end record and with it the directory: where it lies, and how many entries it has. */
static int zip_find_directory(const unsigned char *b, size_t size, size_t *from, size_t *to, int *count)
{
    size_t end, lowest = size > 22 + 65535 ? size - 22 - 65535 : 0;
    uint64_t bytes, offset;
    if (size < 22 || little(b, 4) != ZIP_LOCAL)
        return complain("not a zip archive: PyTorch 1.6 or later writes one (torch.save, the default)");
    for (end = size - 22; little(b + end, 4) != ZIP_END || end + 22 + little(b + end + 20, 2) != size; end--)
        if (end == lowest) return complain("zip: no end record: the file is cut or has something after it");
    bytes = little(b + end + 12, 4);
    offset = little(b + end + 16, 4);
    *count = (int)little(b + end + 10, 2);
    if (little(b + end + 4, 4) || (int)little(b + end + 8, 2) != *count)
        return complain("zip: an archive in several parts is not read");
    if (*count == 0xffff || bytes == ZIP_BEYOND || offset == ZIP_BEYOND)
        return complain("zip: zip64 archives beyond 4 GiB or 65534 entries are not read");
    if (!zip_directory_end(b, end, to)) return 0;
    if (offset + bytes != *to) return complain("zip: the directory does not end where the end record begins");
    *from = (size_t)offset;
    return 1;
}

/* One entry of the directory, in the `size` bytes at b; *used: its length. */
static int zip_central(const unsigned char *b, size_t size, zip_entry *out, size_t *used)
{
    int method;
    if (size < 46 || little(b, 4) != ZIP_CENTRAL) return complain("zip: the directory is damaged");
    *used = 46 + (size_t)(little(b + 28, 2) + little(b + 30, 2) + little(b + 32, 2));
    if (*used > size) return complain("zip: an entry reaches beyond the directory");
    out->flags = (int)little(b + 8, 2);
    method = (int)little(b + 10, 2);
    out->crc = (uint32_t)little(b + 16, 4);
    out->size = (size_t)little(b + 24, 4);
    out->begin = (size_t)little(b + 42, 4);
    out->name = text_of(b + 46, (size_t)little(b + 28, 2));
    if (!out->name.size) return complain("zip: an entry has no name");
    if (out->flags & 0x2041) return complain("zip: %s is encrypted", show(out->name));
    if (out->flags & ~0x080e) return complain("zip: %s has the unknown flags 0x%x", show(out->name), out->flags);
    if (method) return complain("zip: %s is compressed (method %d): torch.save stores", show(out->name), method);
    if (little(b + 20, 4) == ZIP_BEYOND || out->size == ZIP_BEYOND || out->begin == ZIP_BEYOND)
        return complain("zip: %s needs zip64, which is not read", show(out->name));
    if (little(b + 20, 4) != out->size)
        return complain("zip: %s has two sizes, though it is not compressed", show(out->name));
    return 1;
}

/* The length of a data descriptor at b, with or without signature, with sizes of 4 or 8 bytes; 0 if none fits. */
static size_t zip_descriptor(const unsigned char *b, size_t size, const zip_entry *e)
{
    int signature, wide;
    for (signature = 1; signature >= 0; signature--)
        for (wide = 0; wide < 2; wide++) {
            const unsigned char *at = b + 4 * signature;
            size_t length = (size_t)(4 * signature + 4 + 8 * (1 + wide));
            int each = 4 + 4 * wide;
            if (length > size || (signature && little(b, 4) != ZIP_DESCRIPTOR)) continue;
            if (little(at, 4) == e->crc && little(at + 4, each) == e->size && little(at + 4 + each, each) == e->size)
                return length;
        }
    return 0;
}

/* The header before the data must say what the directory says. Its extra field may be anything: PyTorch puts bytes
   there that align the data. With flag 8, checksum and sizes follow the data. */
static int zip_local(const zip *z, zip_entry *e)
{
    const unsigned char *b;
    size_t room = e->begin < z->directory ? z->directory - e->begin : 0, length;
    int later = e->flags & 8, i;
    if (room < 30) return complain("zip: the header of %s lies outside the file", show(e->name));
    b = z->bytes + e->begin;
    if (little(b, 4) != ZIP_LOCAL) return complain("zip: the header of %s is damaged", show(e->name));
    length = 30 + (size_t)(little(b + 26, 2) + little(b + 28, 2));
    if (length > room || e->size > room - length)
        return complain("zip: %s is larger than the file has room for", show(e->name));
    if ((int)little(b + 6, 2) != e->flags || little(b + 8, 2) || little(b + 26, 2) != e->name.size
        || memcmp(b + 30, e->name.at, e->name.size))
        return complain("zip: header and directory differ about %s", show(e->name));
    for (i = 14; i < 26; i += 4) {
        uint64_t number = little(b + i, 4);
        if (number != (i == 14 ? e->crc : e->size) && !(later && !number))
            return complain("zip: header and directory differ about the size or checksum of %s", show(e->name));
    }
    e->data = e->begin + length;
    e->end = e->data + e->size;
    if (later) {
        length = zip_descriptor(z->bytes + e->end, z->directory - e->end, e);
        if (!length) return complain("zip: the data descriptor after %s does not fit", show(e->name));
        e->end += length;
    }
    return 1;
}

static int zip_by_place(const void *a, const void *b)
{
    const zip_entry *x = (const zip_entry *)a, *y = (const zip_entry *)b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int zip_by_name(const void *a, const void *b)
{
    const text *x = &((const zip_entry *)a)->name, *y = &((const zip_entry *)b)->name;
    int order = memcmp(x->at, y->at, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static void zip_close(zip *z)
{
    free(z->entries);
    memset(z, 0, sizeof *z);
}

/* Entries may not share a byte, nor a name, and their checksums must be right. */
static int zip_check(zip *z)
{
    int i;
    qsort(z->entries, (size_t)z->count, sizeof *z->entries, zip_by_place);
    for (i = 0; i < z->count; i++) {
        const zip_entry *e = &z->entries[i];
        if (i + 1 < z->count && e->end > e[1].begin)
            return complain("zip: %s and %s overlap", show(e->name), show(e[1].name));
        if (crc32_of(z->bytes + e->data, e->size) != e->crc)
            return complain("zip: the checksum of %s is wrong: the file is damaged", show(e->name));
    }
    qsort(z->entries, (size_t)z->count, sizeof *z->entries, zip_by_name);
    for (i = 1; i < z->count; i++)
        if (!zip_by_name(&z->entries[i - 1], &z->entries[i]))
            return complain("zip: %s occurs twice", show(z->entries[i].name));
    return 1;
}

/* Reads the directory of the archive in `bytes`, which must outlive it. *z is empty after a failure. */
static int zip_open(const unsigned char *bytes, size_t size, zip *z)
{
    size_t at = 0, to = 0, used = 0;
    int i, count = 0, good = 1;
    memset(z, 0, sizeof *z);
    if (!zip_find_directory(bytes, size, &at, &to, &count)) return 0;
    z->bytes = bytes;
    z->directory = at;
    if ((size_t)count > (to - at) / 46) return complain("zip: %d entries do not fit into the directory", count);
    z->entries = (zip_entry *)allocate((size_t)count, sizeof *z->entries);
    if (!z->entries) return 0;
    z->count = count;
    for (i = 0; i < count && good; i++) {
        good = zip_central(bytes + at, to - at, &z->entries[i], &used) && zip_local(z, &z->entries[i]);
        if (good) at += used;
    }
    if (good && at != to) good = complain("zip: the directory has more bytes than entries");
    if (good) good = zip_check(z);
    if (!good) zip_close(z);
    return good;
}

/* The bytes of FOLDER/NAME; 0 without a message if there are none. */
static int zip_find(const zip *z, text folder, text name, text *out)
{
    char joined[512];
    zip_entry key, *found;
    if (folder.size + 1 + name.size > sizeof joined || !z->count) return 0;
    memcpy(joined, folder.at, folder.size);
    joined[folder.size] = '/';
    memcpy(joined + folder.size + 1, name.at, name.size);
    key.name = text_of(joined, folder.size + 1 + name.size);
    found = (zip_entry *)bsearch(&key, z->entries, (size_t)z->count, sizeof key, zip_by_name);
    if (found) *out = text_of(z->bytes + found->data, found->size);
    return found != NULL;
}

/* == 4 PICKLE ===================================================================================================== */

typedef enum node_kind {
    NODE_NONE, NODE_BOOL, NODE_INT, NODE_REAL, NODE_TEXT, NODE_TUPLE, NODE_LIST, NODE_DICT, NODE_GLOBAL, NODE_STORAGE,
    NODE_TENSOR
} node_kind;
static const char *const kind_names[] = {
    "None", "a truth value", "a whole number", "a real number", "a text", "a tuple", "a list", "a dictionary",
    "a class or function", "a storage", "a tensor"
};

/* The globals that tensors need; all others are refused. */
enum { GLOBAL_TENSOR = 4, GLOBAL_DICT };   /* below: the storage of a number_type */
static const char *const globals[][2] = {
    { "torch", "FloatStorage" }, { "torch", "DoubleStorage" }, { "torch", "HalfStorage" },
    { "torch", "BFloat16Storage" }, { "torch._utils", "_rebuild_tensor_v2" }, { "collections", "OrderedDict" }
};

/* An object. Containers have a list of cells (a dictionary: key, value, key, value, ...). A tensor keeps the arguments
   it was made from. */
typedef struct node {
    node_kind kind;
    number_type type;       /* STORAGE */
    int64_t number;         /* BOOL, INT; GLOBAL: which; STORAGE: how many numbers */
    text text;              /* TEXT; STORAGE: its bytes */
    int first, last, count; /* cells */
    int height;             /* set by tree_check: levels from here down; -1 while it is being found */
} node;
typedef struct cell { int node, next; } cell;

enum { MAX_NODES = 1 << 20, MAX_CELLS = 1 << 21, MAX_STACK = 1 << 16, MAX_MEMO = 1 << 20, MAX_DEPTH = 32, MARK = -1 };

typedef struct pickle {
    const zip *archive;
    text folder;            /* of the archive: data.pkl lies in it */
    const unsigned char *bytes;
    size_t size, at;
    node *nodes;
    cell *cells;
    int *stack, *memo;      /* node numbers; memo -1: not set */
    int node_count, node_room, cell_count, cell_room, top, stack_room, memo_count, memo_room;
} pickle;

static void pickle_free(pickle *p)
{
    free(p->nodes);
    free(p->cells);
    free(p->stack);
    free(p->memo);
    memset(p, 0, sizeof *p);
}

/* The next n bytes of the program, or NULL. */
static const unsigned char *take(pickle *p, uint64_t n)
{
    const unsigned char *at = p->bytes + p->at;
    if (n > p->size - p->at) return complain("pickle: it ends inside an instruction"), NULL;
    p->at += (size_t)n;
    return at;
}

static int push(pickle *p, int node)
{
    if (!grow((void **)&p->stack, sizeof *p->stack, p->top, &p->stack_room, MAX_STACK, "pickle: things on the stack"))
        return 0;
    p->stack[p->top++] = node;
    return 1;
}

static int pop(pickle *p, int *out)
{
    if (!p->top || p->stack[p->top - 1] == MARK) return complain("pickle: an instruction misses its operand");
    *out = p->stack[--p->top];
    return 1;
}

/* Pushes a new object, which is p->nodes[p->node_count - 1] then. */
static int push_new(pickle *p, node_kind kind, int64_t number)
{
    node *n;
    if (!grow((void **)&p->nodes, sizeof *p->nodes, p->node_count, &p->node_room, MAX_NODES, "pickle: objects"))
        return 0;
    n = &p->nodes[p->node_count++];
    memset(n, 0, sizeof *n);
    n->kind = kind;
    n->number = number;
    n->first = n->last = -1;
    return push(p, p->node_count - 1);
}

static int push_text(pickle *p, uint64_t size)
{
    const unsigned char *at = take(p, size);
    if (!at || !push_new(p, NODE_TEXT, 0)) return 0;
    p->nodes[p->node_count - 1].text = text_of(at, (size_t)size);
    return 1;
}

/* Appends a cell to a container. */
static int add(pickle *p, int container, int item)
{
    node *n = &p->nodes[container];
    cell *c;
    if (!grow((void **)&p->cells, sizeof *p->cells, p->cell_count, &p->cell_room, MAX_CELLS, "pickle: items")) return 0;
    c = &p->cells[p->cell_count];
    c->node = item;
    c->next = -1;
    if (n->last < 0) n->first = p->cell_count;
    else p->cells[n->last].next = p->cell_count;
    n->last = p->cell_count++;
    n->count++;
    return 1;
}

/* The i-th item of a container, NULL beyond its end. */
static const node *item_at(const pickle *p, const node *container, int i)
{
    int c = container->first;
    while (c >= 0 && i-- > 0) c = p->cells[c].next;
    return c < 0 ? NULL : &p->nodes[p->cells[c].node];
}

/* The value of a dictionary under a text, NULL if there is none; the last one where a key is repeated, as in Python. */
static const node *dict_find(const pickle *p, const node *dict, const char *key)
{
    const node *found = NULL;
    int c = dict->kind == NODE_DICT ? dict->first : -1, value;
    for (; c >= 0; c = p->cells[value].next) {
        const node *k = &p->nodes[p->cells[c].node];
        value = p->cells[c].next;   /* keys and values come in pairs */
        if (k->kind == NODE_TEXT && text_is(k->text, key)) found = &p->nodes[p->cells[value].node];
    }
    return found;
}

/* Moves what lies above the topmost mark, or the `count` topmost things where that is given, to the end of a container
   that is made (kind TUPLE) or lies below (LIST, DICT). */
static int gather(pickle *p, node_kind kind, int count)
{
    int from = p->top - count, i, items, container;
    if (count < 0) for (from = p->top; from > 0 && p->stack[from - 1] != MARK; from--) continue;
    if (from < (count < 0)) return complain("pickle: an instruction misses its operands");
    items = p->top - from;
    for (i = from; i < p->top; i++) if (p->stack[i] == MARK) return complain("pickle: a mark where a value should be");
    if (kind == NODE_TUPLE) {
        if (!push_new(p, NODE_TUPLE, 0)) return 0;
        container = p->node_count - 1;
    } else {
        i = from - 1 - (count < 0);
        container = i < 0 ? MARK : p->stack[i];
        if (container == MARK || p->nodes[container].kind != kind || (kind == NODE_DICT && items % 2))
            return complain("pickle: items for %s that is not there", kind_names[kind]);
    }
    for (i = 0; i < items; i++) {
        node_kind key = p->nodes[p->stack[from + i]].kind;
        if (kind == NODE_DICT && i % 2 == 0 && key != NODE_TEXT && key != NODE_INT)
            return complain("pickle: the key of a dictionary is %s", kind_names[key]);
        if (!add(p, container, p->stack[from + i])) return 0;
    }
    p->top = from - (count < 0);
    return kind == NODE_TUPLE ? push(p, container) : 1;
}

/* -- memo, globals, calls -- */

static int memo_put(pickle *p, uint64_t index)
{
    if (!p->top || p->stack[p->top - 1] == MARK) return complain("pickle: nothing to remember");
    if (index >= MAX_MEMO) return complain("pickle: memo entry %lu, at most %d", (unsigned long)index, MAX_MEMO);
    while ((uint64_t)p->memo_room <= index) {
        int old = p->memo_room, i;
        if (!grow((void **)&p->memo, sizeof *p->memo, old, &p->memo_room, MAX_MEMO, "pickle: memo")) return 0;
        for (i = old; i < p->memo_room; i++) p->memo[i] = -1;
    }
    p->memo[index] = p->stack[p->top - 1];
    p->memo_count++;
    return 1;
}

static int memo_get(pickle *p, uint64_t index)
{
    if (index >= (uint64_t)p->memo_room || p->memo[index] < 0)
        return complain("pickle: memo entry %lu is not set", (unsigned long)index);
    return push(p, p->memo[index]);
}

static int push_global(pickle *p, text module, text name)
{
    int i;
    for (i = 0; i < (int)(sizeof globals / sizeof globals[0]); i++)
        if (text_is(module, globals[i][0]) && text_is(name, globals[i][1])) return push_new(p, NODE_GLOBAL, i);
    return complain("pickle: it asks for %s.%s; nothing is imported or run here", show(module), show(name));
}

/* GLOBAL: module and name, each ended by a line feed. */
static int global_lines(pickle *p)
{
    text line[2];
    int i;
    for (i = 0; i < 2; i++) {
        const unsigned char *at = p->bytes + p->at;
        const unsigned char *end = (const unsigned char *)memchr(at, '\n', p->size - p->at);
        if (!end) return complain("pickle: it ends inside an instruction");
        line[i] = text_of(at, (size_t)(end - at));
        p->at += line[i].size + 1;
    }
    return push_global(p, line[0], line[1]);
}

static int global_stack(pickle *p)
{
    int module = 0, name = 0;
    if (!pop(p, &name) || !pop(p, &module)) return 0;
    if (p->nodes[name].kind != NODE_TEXT || p->nodes[module].kind != NODE_TEXT)
        return complain("pickle: the name of a global is no text");
    return push_global(p, p->nodes[module].text, p->nodes[name].text);
}

/* BINPERSID: ('storage', class, key, location, count) becomes the bytes of data/KEY. */
static int push_storage(pickle *p)
{
    const node *id, *type, *key, *count;
    char name[64];
    text bytes;
    int top = 0;
    if (!pop(p, &top)) return 0;
    id = &p->nodes[top];
    if (id->kind != NODE_TUPLE || id->count != 5) return complain("pickle: a persistent id that is no storage");
    type = item_at(p, id, 1);
    key = item_at(p, id, 2);
    count = item_at(p, id, 4);
    if (item_at(p, id, 0)->kind != NODE_TEXT || !text_is(item_at(p, id, 0)->text, "storage")
        || type->kind != NODE_GLOBAL || type->number >= GLOBAL_TENSOR || key->kind != NODE_TEXT
        || count->kind != NODE_INT)
        return complain("pickle: a persistent id that is no storage");
    if (key->text.size > 50) return complain("pickle: the storage %s has too long a name", show(key->text));
    memcpy(name, "data/", 5);
    memcpy(name + 5, key->text.at, key->text.size);
    if (!zip_find(p->archive, p->folder, text_of(name, 5 + key->text.size), &bytes))
        return complain("pickle: the archive has no storage %s", show(key->text));
    if (count->number < 0 || (uint64_t)count->number != bytes.size / (size_t)number_bytes[type->number]
        || bytes.size % (size_t)number_bytes[type->number])
        return complain("pickle: storage %s has %lu bytes, not %ld numbers of type %s", show(key->text),
                        (unsigned long)bytes.size, (long)count->number, number_names[type->number]);
    top = (int)type->number;
    if (!push_new(p, NODE_STORAGE, count->number)) return 0;
    p->nodes[p->node_count - 1].type = (number_type)top;
    p->nodes[p->node_count - 1].text = bytes;
    return 1;
}

/* A tensor as an array inside its storage. */
typedef struct view {
    const unsigned char *data;
    number_type type;
    int dims;
    uint64_t offset, size[4], stride[4];
} view;

/* _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks, [metadata]). All of it must lie inside the
   storage, and it may not have more numbers than that: no tensor is blown up by strides of 0. */
static int view_of(const pickle *p, const node *args, view *out)
{
    const node *storage = item_at(p, args, 0), *offset = item_at(p, args, 1), *sizes = item_at(p, args, 2);
    const node *strides = item_at(p, args, 3);
    uint64_t last, numel, elements = 1;
    int i;
    if (args->count < 6 || args->count > 7 || storage->kind != NODE_STORAGE || offset->kind != NODE_INT
        || sizes->kind != NODE_TUPLE || strides->kind != NODE_TUPLE || sizes->count != strides->count)
        return complain("pickle: a tensor with wrong arguments");
    if (sizes->count > 4) return complain("pickle: a tensor of %d dimensions, at most 4", sizes->count);
    numel = (uint64_t)storage->number;
    if (offset->number < 0 || (uint64_t)offset->number > numel) return complain("pickle: a tensor outside its storage");
    last = out->offset = (uint64_t)offset->number;
    for (i = 0; i < sizes->count; i++) {
        const node *size = item_at(p, sizes, i), *stride = item_at(p, strides, i);
        uint64_t s, t;
        if (size->kind != NODE_INT || stride->kind != NODE_INT || size->number < 0 || stride->number < 0)
            return complain("pickle: a tensor whose size or stride is negative or no number");
        out->size[i] = s = (uint64_t)size->number;
        out->stride[i] = t = (uint64_t)stride->number;
        if (s && elements > numel / s) return complain("pickle: a tensor is larger than its storage");
        elements *= s;
        if (s > 1 && t > (numel - last) / (s - 1)) return complain("pickle: the strides of a tensor leave its storage");
        if (s > 1) last += t * (s - 1);
    }
    if (elements && last >= numel) return complain("pickle: a tensor outside its storage");
    out->data = (const unsigned char *)storage->text.at;
    out->type = storage->type;
    out->dims = sizes->count;
    return 1;
}

/* REDUCE: a call of one of the two functions. */
static int push_call(pickle *p)
{
    node *made;
    view checked;
    int args = 0, callee = 0, which;
    if (!pop(p, &args) || !pop(p, &callee)) return 0;
    if (p->nodes[callee].kind != NODE_GLOBAL || p->nodes[callee].number < GLOBAL_TENSOR)
        return complain("pickle: a call of %s", kind_names[p->nodes[callee].kind]);
    which = (int)p->nodes[callee].number;
    if (p->nodes[args].kind != NODE_TUPLE) return complain("pickle: a call without a tuple of arguments");
    if (which == GLOBAL_DICT && p->nodes[args].count) return complain("pickle: OrderedDict with arguments");
    if (which == GLOBAL_TENSOR && !view_of(p, &p->nodes[args], &checked)) return 0;
    if (!push_new(p, which == GLOBAL_DICT ? NODE_DICT : NODE_TENSOR, 0)) return 0;
    if (which == GLOBAL_DICT) return 1;
    made = &p->nodes[p->node_count - 1];
    made->first = p->nodes[args].first;
    made->last = p->nodes[args].last;
    made->count = p->nodes[args].count;
    return 1;
}

/* -- instructions -- */

enum { NOT_MINE = 2 };   /* 1 done, 0 failed after a message */

/* Instructions that push a constant. */
static int step_constant(pickle *p, int op)
{
    const unsigned char *at;
    uint64_t bits;
    int length = op == 'K' ? 1 : op == 'M' ? 2 : 4;
    switch (op) {
    case 'N': return push_new(p, NODE_NONE, 0);
    case 0x88: case 0x89: return push_new(p, NODE_BOOL, op == 0x88);
    case 'K': case 'M': case 'J':
        at = take(p, (uint64_t)length);
        if (!at) return 0;
        bits = little(at, length);
        return push_new(p, NODE_INT, op == 'J' && bits >> 31 ? (int64_t)bits - ((int64_t)1 << 32) : (int64_t)bits);
    case 0x8a:   /* LONG1: two's complement of up to 255 bytes */
        at = take(p, 1);
        if (at && at[0] > 8) return complain("pickle: a number of %d bytes", at[0]);
        length = at ? at[0] : 0;
        at = at ? take(p, (uint64_t)length) : NULL;
        if (!at) return 0;
        bits = little(at, length);
        if (length && length < 8 && at[length - 1] & 0x80) bits |= ~(uint64_t)0 << (8 * length);
        return push_new(p, NODE_INT, bits >> 63 ? -1 - (int64_t)~bits : (int64_t)bits);
    case 'G':    /* a double, big end first; no real number is of use here */
        return take(p, 8) ? push_new(p, NODE_REAL, 0) : 0;
    case 0x8c: at = take(p, 1); return at ? push_text(p, at[0]) : 0;
    case 'X': at = take(p, 4); return at ? push_text(p, little(at, 4)) : 0;
    case '}': return push_new(p, NODE_DICT, 0);
    case ']': return push_new(p, NODE_LIST, 0);
    case ')': return push_new(p, NODE_TUPLE, 0);
    case '(': return push(p, MARK);
    case 'c': return global_lines(p);
    case 0x93: return global_stack(p);
    default: return NOT_MINE;
    }
}

/* Instructions that work on what is there. */
static int step_operation(pickle *p, int op)
{
    const unsigned char *at;
    switch (op) {
    case 't': return gather(p, NODE_TUPLE, -1);
    case 0x85: case 0x86: case 0x87: return gather(p, NODE_TUPLE, op - 0x84);
    case 'a': return gather(p, NODE_LIST, 1);
    case 'e': return gather(p, NODE_LIST, -1);
    case 's': return gather(p, NODE_DICT, 2);
    case 'u': return gather(p, NODE_DICT, -1);
    case 'q': case 'h':
        at = take(p, 1);
        return !at ? 0 : op == 'q' ? memo_put(p, at[0]) : memo_get(p, at[0]);
    case 'r': case 'j':
        at = take(p, 4);
        return !at ? 0 : op == 'r' ? memo_put(p, little(at, 4)) : memo_get(p, little(at, 4));
    case 0x94: return memo_put(p, (uint64_t)p->memo_count);
    case 'Q': return push_storage(p);
    case 'R': return push_call(p);
    case 0x80: at = take(p, 1); return !at ? 0 : at[0] <= 5 ? 1 : complain("pickle: protocol %d", at[0]);
    case 0x95: return take(p, 8) != NULL;   /* FRAME: a hint for readers of streams */
    default: return NOT_MINE;
    }
}

/* What containers hold must be a tree of few levels, though branches may be shared: no container holds itself. */
static int tree_check(pickle *p, int index, int depth)
{
    node *n = &p->nodes[index];
    int c, height = 1;
    if (n->height < 0) return complain("pickle: a container holds itself");
    if (depth + (n->height ? n->height : 1) > MAX_DEPTH)
        return complain("pickle: nested deeper than %d levels", MAX_DEPTH);
    if (n->height) return 1;
    n->height = -1;
    for (c = n->first; c >= 0; c = p->cells[c].next) {
        int child = p->cells[c].node;
        if (!tree_check(p, child, depth + 1)) return 0;
        if (p->nodes[child].height >= height) height = p->nodes[child].height + 1;
    }
    n->height = height;
    return 1;
}

/* Runs the program in p->bytes. The result is *root. */
static int pickle_run(pickle *p, const node **root)
{
    for (;;) {
        const unsigned char *op = take(p, 1);
        int result, top = 0;
        if (!op) return 0;
        if (*op == '.') {
            if (!pop(p, &top) || !tree_check(p, top, 0)) return 0;
            *root = &p->nodes[top];
            return 1;
        }
        result = step_constant(p, *op);
        if (result == NOT_MINE) result = step_operation(p, *op);
        if (result == NOT_MINE)
            return complain("pickle: the instruction 0x%02x at byte %lu is none that tensors need", *op,
                            (unsigned long)(p->at - 1));
        if (!result) return 0;
    }
}

/* == 5 CHECKPOINT ================================================================================================= */

/* One layer: [D][D], shared by its heads, or [heads][D][D]. */
static int take_view(const view *v, int64_t layer, side *out)
{
    int per_head = v->dims == 3;
    uint64_t h, i, j, n, heads = per_head ? v->size[0] : 1;
    float *to;
    if (v->dims != 2 && v->dims != 3)
        return complain("layer %ld: a tensor of %d dimensions, [D][D] or [heads][D][D] is expected", (long)layer,
                        v->dims);
    if (!heads) return complain("layer %ld: no heads", (long)layer);
    n = v->size[per_head];
    to = side_add(out, layer, per_head ? heads : 0, n, v->size[per_head + 1], v->type);
    if (!to) return 0;
    for (h = 0; h < heads; h++)
        for (i = 0; i < n; i++)
            for (j = 0; j < n; j++) {
                uint64_t at = v->offset + i * v->stride[per_head] + j * v->stride[per_head + 1];
                if (per_head) at += h * v->stride[0];
                to[(h * n + i) * n + j] = number_at(v->type, v->data + at * (uint64_t)number_bytes[v->type]);
            }
    return 1;
}

/* One layer: a tensor, or a dictionary with `rotation` and maybe `layer_id`. */
static int take_layer(const pickle *p, const node *value, int64_t layer, side *out)
{
    const node *id = dict_find(p, value, "layer_id"), *rotation = value;
    view v;
    if (value->kind == NODE_DICT) {
        rotation = dict_find(p, value, "rotation");
        if (!rotation) return complain("layer %ld has no `rotation`: is this a RotationZoo file?", (long)layer);
        if (id && (id->kind != NODE_INT || id->number != layer))
            return complain("layer %ld has another `layer_id`", (long)layer);
    }
    if (rotation->kind != NODE_TENSOR)
        return complain("layer %ld: %s where its rotation should be", (long)layer, kind_names[rotation->kind]);
    return view_of(p, rotation, &v) && take_view(&v, layer, out);
}

/* All layers in one tensor, [layers][D][D] or [layers][heads][D][D]. */
static int take_stack(const view *all, side *out)
{
    view one = *all;
    uint64_t i;
    if (all->dims != 3 && all->dims != 4)
        return complain("a tensor of %d dimensions, [layers][D][D] or [layers][heads][D][D] is expected", all->dims);
    if (all->size[0] > MAX_LAYERS) return complain("%lu layers, at most %d", (unsigned long)all->size[0], MAX_LAYERS);
    one.dims--;
    memmove(one.size, one.size + 1, 3 * sizeof one.size[0]);
    memmove(one.stride, one.stride + 1, 3 * sizeof one.stride[0]);
    for (i = 0; i < all->size[0]; i++) {
        one.offset = all->offset + i * all->stride[0];
        if (!take_view(&one, (int64_t)i, out)) return 0;
    }
    return 1;
}

/* All layers: a tensor, a list, or a dictionary whose keys are layer numbers (also as texts). */
static int take_layers(const pickle *p, const node *layers, side *out)
{
    view v;
    int c, i = 0;
    if (layers->kind == NODE_TENSOR) return view_of(p, layers, &v) && take_stack(&v, out);
    if (layers->kind != NODE_DICT && layers->kind != NODE_LIST && layers->kind != NODE_TUPLE)
        return complain("%s where the layers should be", kind_names[layers->kind]);
    for (c = layers->first; c >= 0; c = p->cells[c].next, i++) {
        const node *item = &p->nodes[p->cells[c].node];
        int64_t layer = i;
        if (layers->kind == NODE_DICT) {
            layer = item->kind == NODE_INT ? item->number : text_number(item->text);
            if (layer < 0)
                return complain("the key %s is no layer number", item->kind == NODE_TEXT ? show(item->text) : "< 0");
            c = p->cells[c].next;
            item = &p->nodes[p->cells[c].node];
        } else if (item->kind == NODE_NONE) {
            continue;
        }
        if (!take_layer(p, item, layer, out)) return 0;
    }
    return 1;
}

/* The pickle in the archive, and its folder. */
static int checkpoint_find(const zip *z, pickle *p)
{
    text order;
    int i;
    p->archive = z;
    for (i = 0; i < z->count; i++) {
        text name = z->entries[i].name;
        if (!text_ends(name, "/data.pkl")) continue;
        if (p->bytes) return complain("the archive has two data.pkl");
        p->bytes = z->bytes + z->entries[i].data;
        p->size = z->entries[i].size;
        p->folder = text_of(name.at, name.size - strlen("/data.pkl"));
    }
    if (!p->bytes) return complain("the archive has no data.pkl: it is not from torch.save");
    if (zip_find(z, p->folder, text_of("byteorder", 9), &order) && !text_is(order, "little"))
        return complain("the byte order is %s: only little is read", show(order));
    return 1;
}

/* Reads one .pt file; destroy *out with side_free, also after a failure it may be there. */
static int checkpoint_read(const unsigned char *bytes, size_t size, side *out)
{
    const node *root = NULL, *layers, *version, *objective;
    pickle p;
    zip z;
    int good;
    memset(&p, 0, sizeof p);
    if (!zip_open(bytes, size, &z)) return 0;
    good = checkpoint_find(&z, &p) && pickle_run(&p, &root);
    if (good) {
        layers = dict_find(&p, root, "layers");
        version = dict_find(&p, root, "format_version");
        objective = dict_find(&p, root, "objective");
        out->version = version && version->kind == NODE_INT ? version->number : 0;
        if (objective && objective->kind == NODE_TEXT)
            snprintf(out->objective, sizeof out->objective, "%s", show(objective->text));
        if (version && out->version != 1 && out->version != 2)
            good = complain("format_version is not 1 or 2: this file is newer or something else");
        else
            good = take_layers(&p, layers ? layers : root, out);
    }
    pickle_free(&p);
    zip_close(&z);
    return good;
}

/* == 6 GGUF, READING ============================================================================================== */

/* What is known of the model; empty or 0: the file does not say. */
typedef struct gguf_facts { char architecture[64], name[80]; int64_t kv_heads, blocks; } gguf_facts;

/* Values as they follow each other; after the end of the file all are 0 and `bad` is set. */
typedef struct cursor { const unsigned char *bytes; size_t size, at; int bad; } cursor;

static uint64_t next_number(cursor *c, int bytes)
{
    if (c->bad || c->size - c->at < (size_t)bytes) { c->bad = 1; return 0; }
    c->at += (size_t)bytes;
    return little(c->bytes + c->at - bytes, bytes);
}

static text next_text(cursor *c)
{
    uint64_t size = next_number(c, 8);
    if (size > c->size - c->at) { c->bad = 1; size = 0; }
    c->at += (size_t)size;
    return text_of(c->bytes + c->at - size, (size_t)size);
}

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_TYPES = 13, GGUF_ALIGNMENT = 32 };
static const int gguf_value_bytes[GGUF_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* Passes over an array. */
static int gguf_skip_array(cursor *c)
{
    uint64_t type = next_number(c, 4), count = next_number(c, 8);
    if (type >= GGUF_TYPES || type == GGUF_ARRAY) return complain("gguf: an array of type %lu", (unsigned long)type);
    if (type == GGUF_STRING) {
        while (count-- && !c->bad) (void)next_text(c);
    } else if (count > (c->size - c->at) / (size_t)gguf_value_bytes[type]) {
        c->bad = 1;
    } else {
        c->at += (size_t)count * (size_t)gguf_value_bytes[type];
    }
    return c->bad ? complain("gguf: an array reaches beyond the file") : 1;
}

/* One key and its value. */
static int gguf_value(cursor *c, gguf_facts *facts, uint64_t *alignment)
{
    text key = next_text(c), value;
    uint64_t type = next_number(c, 4), number;
    if (type == GGUF_ARRAY) return gguf_skip_array(c);
    if (type >= GGUF_TYPES) return complain("gguf: %s has the unknown type %lu", show(key), (unsigned long)type);
    if (type == GGUF_STRING) {
        value = next_text(c);
        if (text_is(key, "general.architecture"))
            snprintf(facts->architecture, sizeof facts->architecture, "%s", show(value));
        if (text_is(key, "general.name")) snprintf(facts->name, sizeof facts->name, "%s", show(value));
    } else {
        number = next_number(c, gguf_value_bytes[type]);
        if (type != GGUF_U32 && type != GGUF_I32) number = 0;
        if (text_is(key, "general.alignment")) *alignment = number;
        if (text_ends(key, ".attention.head_count_kv")) facts->kv_heads = (int64_t)number;
        if (text_ends(key, ".block_count")) facts->blocks = (int64_t)number;
    }
    return c->bad ? complain("gguf: it ends inside its metadata") : 1;
}

/* blk.N.attn_k_rot.weight: 1 and the layer, V: 2, others: 0. */
static int gguf_rotation_name(text name, int64_t *layer)
{
    static const char *const ends[2] = { ".attn_k_rot.weight", ".attn_v_rot.weight" };
    size_t end = strlen(ends[0]);
    int which = text_ends(name, ends[0]) ? 1 : text_ends(name, ends[1]) ? 2 : 0;
    if (!which || name.size < 4 + end || memcmp(name.at, "blk.", 4)) return 0;
    *layer = text_number(text_of(name.at + 4, name.size - 4 - end));
    return *layer < 0 ? 0 : which;
}

typedef struct gguf_tensor { text name; uint64_t dims, size[4], type, offset; } gguf_tensor;

static int gguf_tensor_next(cursor *c, gguf_tensor *t)
{
    uint64_t i;
    t->name = next_text(c);
    t->dims = next_number(c, 4);
    if (c->bad || t->dims > 4) return complain("gguf: a tensor of more than 4 dimensions, or the file ends");
    for (i = 0; i < 4; i++) t->size[i] = i < t->dims ? next_number(c, 8) : 1;
    t->type = next_number(c, 4);
    t->offset = next_number(c, 8);
    return c->bad ? complain("gguf: it ends inside its list of tensors") : 1;
}

/* Copies a rotation. The file has R transposed: its row is a column of R. */
static int gguf_take(const cursor *c, size_t data, const gguf_tensor *t, int64_t layer, side *out)
{
    number_type type = t->type == 0 ? NUMBER_F32 : t->type == 1 ? NUMBER_F16 : NUMBER_BF16;
    uint64_t n = t->size[0], heads = t->dims == 3 ? t->size[2] : 1, h, i, j;
    const unsigned char *at;
    float *to;
    if (t->type != 0 && t->type != 1 && t->type != 30)
        return complain("gguf: %s has type %lu, F32, F16 or BF16 is expected", show(t->name), (unsigned long)t->type);
    if (t->dims != 2 && t->dims != 3) return complain("gguf: %s has %lu dimensions, not [D, D] or [D, D, heads]",
                                                      show(t->name), (unsigned long)t->dims);
    if (!heads || heads > MAX_HEADS || n > 1024 || t->size[1] > 1024)
        return complain("gguf: %s is too large or empty", show(t->name));
    if (t->offset > c->size - data
        || heads * n * t->size[1] * (uint64_t)number_bytes[type] > c->size - data - t->offset)
        return complain("gguf: %s reaches beyond the file", show(t->name));
    to = side_add(out, layer, t->dims == 3 ? heads : 0, t->size[1], n, type);
    if (!to) return 0;
    at = c->bytes + data + t->offset;
    for (h = 0; h < heads; h++)
        for (j = 0; j < n; j++)
            for (i = 0; i < n; i++, at += number_bytes[type]) to[(h * n + i) * n + j] = number_at(type, at);
    return 1;
}

/* Reads the rotations of a GGUF; free both sides with side_free. */
static int gguf_read(const unsigned char *bytes, size_t size, side *k, side *v, gguf_facts *facts)
{
    cursor c = { NULL, 0, 0, 0 }, infos;
    uint64_t tensors, values, i, alignment = GGUF_ALIGNMENT, magic, version;
    gguf_tensor t;
    int64_t layer = 0;
    int which;
    c.bytes = bytes;
    c.size = size;
    memset(facts, 0, sizeof *facts);
    magic = next_number(&c, 4);
    version = next_number(&c, 4);
    if (magic != 0x46554747u || (version != 2 && version != 3)) return complain("not a GGUF file of version 2 or 3");
    tensors = next_number(&c, 8);
    values = next_number(&c, 8);
    for (i = 0; i < values; i++) if (!gguf_value(&c, facts, &alignment)) return 0;
    if (!alignment || alignment > 65536 || alignment & (alignment - 1)) return complain("gguf: a wrong alignment");
    infos = c;
    for (i = 0; i < tensors; i++) if (!gguf_tensor_next(&c, &t)) return 0;   /* their data begin after the list */
    c.at += (alignment - c.at % alignment) % alignment;
    if (c.bad || c.at > size) c.at = size;
    for (i = 0; i < tensors; i++) {
        if (!gguf_tensor_next(&infos, &t)) return 0;
        which = gguf_rotation_name(t.name, &layer);
        if (which && t.offset % alignment) return complain("gguf: %s is not aligned", show(t.name));
        if (which && !gguf_take(&c, c.at, &t, layer, which == 1 ? k : v)) return 0;
    }
    if (!k->count && !v->count)
        return complain("gguf: no blk.N.attn_k_rot.weight or blk.N.attn_v_rot.weight: this model has no rotations");
    return 1;
}

/* == 7 ROTATIONS FILE ============================================================================================= */

typedef struct options { int kv_heads, group; const char *model, *architecture; } options;

static void log_complain(void *user, oscar_level level, oscar_result code, int line, const char *text)
{
    (void)user;
    (void)code;
    (void)line;
    if (level == OSCAR_LOG_ERROR) complain("%s", text);
}

static oscar_hooks log_hooks(void)
{
    oscar_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.log = log_complain;
    return hooks;
}

static const layer_matrices *matrices_of(const side *s, int layer)
{
    return s && layer < s->count && s->layers[layer].f ? &s->layers[layer] : NULL;
}

/* KV heads of a layer: what K or V say, else the option. 0 after a message. */
static int heads_of(const layer_matrices *k, const layer_matrices *v, const options *o, int layer)
{
    int from_k = k && !k->shared ? k->heads : 0, from_v = v && !v->shared ? v->heads : 0;
    int heads = from_k ? from_k : from_v ? from_v : o->kv_heads;
    if ((from_k && from_v && from_k != from_v) || (o->kv_heads && heads != o->kv_heads))
        return complain("layer %d: %d heads of K, %d of V, --kv-heads %d (0: not told): they must agree", layer, from_k,
                        from_v, o->kv_heads);
    if (heads < 1 || heads > MAX_HEADS)
        return complain("layer %d: give --kv-heads, from 1 to %d: one matrix serves all heads of a layer here", layer,
                        MAX_HEADS);
    return heads;
}

/* Fills `pairs` for the heads of one side; NULL where there is no matrix, which means HADAMARD. */
static const oscar_pair *fill_pairs(const layer_matrices *m, int heads, oscar_pair *pairs)
{
    int h;
    if (!m) return NULL;
    for (h = 0; h < heads; h++) {
        memset(&pairs[h], 0, sizeof pairs[h]);
        pairs[h].kind = OSCAR_DENSE;
        pairs[h].dim = m->dim;
        pairs[h].to = m->f + (m->shared ? 0 : (size_t)h * (size_t)m->dim * (size_t)m->dim);
    }
    return pairs;
}

/* The codec of the OSCAR paper and its code: 2 bits, clipped min-max at 0.96 and 0.92, no page mean. */
static oscar_layer reference_layer(const layer_matrices *k, const layer_matrices *v, int heads, const options *o)
{
    oscar_layer l;
    memset(&l, 0, sizeof l);
    l.kv_heads = heads;
    l.k_dim = k ? k->dim : v->dim;
    l.v_dim = v ? v->dim : k->dim;
    l.k_fit = l.v_fit = OSCAR_CLIP;
    l.k_bits = l.v_bits = 2;
    l.k_clip = 0.96;
    l.v_clip = 0.92;
    l.k_group = l.v_group = o->group;
    l.k_page_mean = -1;
    return l;
}

/* Fills the layers and their pairs. A layer without matrices keeps 16 bits: hybrid models have attention in some layers
   only. It gets the shape of the layer before it, the first ones that of the first layer with matrices. */
static int fill_layers(const side *k, const side *v, const options *o, int count, oscar_layer *layers,
                       oscar_pair *pairs)
{
    int i, first = -1;
    for (i = count - 1; i >= 0; i--) {
        const layer_matrices *mk = matrices_of(k, i), *mv = matrices_of(v, i);
        int heads;
        if (!mk && !mv) continue;
        heads = heads_of(mk, mv, o, i);
        if (!heads) return 0;
        layers[i] = reference_layer(mk, mv, heads, o);
        layers[i].k = fill_pairs(mk, heads, pairs);
        if (mk) pairs += heads;
        layers[i].v = fill_pairs(mv, heads, pairs);
        if (mv) pairs += heads;
        first = i;
    }
    if (first < 0) return complain("no layer has a matrix");
    for (i = 0; i < count; i++) {
        if (matrices_of(k, i) || matrices_of(v, i)) continue;
        layers[i] = layers[i < first ? first : i - 1];
        layers[i].k = layers[i].v = NULL;
        layers[i].k_bits = layers[i].v_bits = 16;
    }
    return 1;
}

/* Makes the rotations from checked sides (NULL: none). blocks: layers of the model, 0 not known. */
static int make_rotations(const side *k, const side *v, const options *o, int64_t blocks, oscar_rotations **out)
{
    const char *metadata[7] = { "oscar.compose", "oscar", NULL, NULL, NULL, NULL, NULL };
    int count = k ? k->count : 0, good = 0, i, texts = 2;
    size_t heads = 0;
    oscar_hooks hooks = log_hooks();
    oscar_layer *layers;
    oscar_pair *pairs;
    *out = NULL;
    if (v && v->count > count) count = v->count;
    if (blocks > count && blocks <= MAX_LAYERS) count = (int)blocks;
    for (i = 0; i < count; i++) {
        const layer_matrices *mk = matrices_of(k, i), *mv = matrices_of(v, i);
        heads += mk ? (size_t)(mk->shared ? o->kv_heads : mk->heads) : 0;
        heads += mv ? (size_t)(mv->shared ? o->kv_heads : mv->heads) : 0;
        if (mk && mv && mk->shared != mv->shared) heads += (size_t)(mk->shared ? mv->heads : mk->heads);
    }
    layers = (oscar_layer *)allocate((size_t)count, sizeof *layers);
    pairs = (oscar_pair *)allocate(heads, sizeof *pairs);
    if (o->model) { metadata[texts++] = "oscar.model"; metadata[texts++] = o->model; }
    if (o->architecture) { metadata[texts++] = "general.architecture"; metadata[texts++] = o->architecture; }
    if (layers && pairs && fill_layers(k, v, o, count, layers, pairs))
        good = oscar_rotations_create(layers, count, metadata, &hooks, out) == OSCAR_OK;
    free(layers);
    free(pairs);
    return good;
}

/* == 8 GGUF, WRITING ============================================================================================== */

/* A file in memory that grows. failed: no memory, said once. */
typedef struct buffer { unsigned char *bytes; size_t size, room; int failed; } buffer;

static void put_bytes(buffer *b, const void *bytes, size_t size)
{
    if (b->failed) return;
    if (size > b->room - b->size) {
        size_t room = b->room + size + b->room / 2 + 4096;
        unsigned char *larger = (unsigned char *)realloc(b->bytes, room);
        if (!larger) { b->failed = 1; complain("no memory for %lu bytes", (unsigned long)room); return; }
        b->bytes = larger;
        b->room = room;
    }
    if (size) memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

static void put_number(buffer *b, uint64_t number, int bytes)
{
    unsigned char little_end[8];
    int i;
    for (i = 0; i < bytes; i++) little_end[i] = (unsigned char)(number >> 8 * i);
    put_bytes(b, little_end, (size_t)bytes);
}

static void put_text(buffer *b, const char *s)
{
    put_number(b, strlen(s), 8);
    put_bytes(b, s, strlen(s));
}

static void put_u32(buffer *b, const char *prefix, const char *key, int number)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, key);
    put_text(b, name);
    put_number(b, GGUF_U32, 4);
    put_number(b, (uint64_t)number, 4);
}

static void put_string(buffer *b, const char *key, const char *value)
{
    put_text(b, key);
    put_number(b, GGUF_STRING, 4);
    put_text(b, value);
}

static void put_align(buffer *b) { while (!b->failed && b->size % GGUF_ALIGNMENT) put_number(b, 0, 1); }

/* A GGUF can hold one orthogonal matrix a head: no mean, no dual. */
static int layer_exportable(const oscar_layer *l, int layer)
{
    int side_of, h;
    for (side_of = 0; side_of < 2; side_of++) {
        const oscar_pair *pairs = side_of ? l->v : l->k;
        for (h = 0; pairs && h < l->kv_heads; h++) {
            const char *what = pairs[h].dual ? "a dual" : pairs[h].mean ? "a mean" : NULL;
            if (what)
                return complain("layer %d, %s: the pairs have %s (BALANCED): the GGUF tensors hold rotations only; "
                                "calibrate with OSCAR_METHOD_OSCAR and no mean to export", layer, side_of ? "V" : "K",
                                what);
        }
    }
    return 1;
}

/* Matrices that a side of a layer gets in the file: 0 none, 1 shared, or one a head. */
static int export_heads(const oscar_pair *pairs, int heads)
{
    int h;
    if (!pairs) return 0;
    for (h = 1; h < heads; h++) if (pairs[h].kind == OSCAR_DENSE && pairs[h].to != pairs[0].to) return heads;
    return 1;
}

static void put_tensor_info(buffer *b, int layer, char letter, int heads, int kv_heads, int dim, uint64_t *offset)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_%c_rot.weight", layer, letter);
    put_text(b, name);
    put_number(b, heads > 1 || kv_heads == 1 ? 3 : 2, 4);   /* one KV head: [D, D, 1], which tells their number */
    put_number(b, (uint64_t)dim, 8);
    put_number(b, (uint64_t)dim, 8);
    if (heads > 1 || kv_heads == 1) put_number(b, (uint64_t)heads, 8);
    put_number(b, 0, 4);
    put_number(b, *offset, 8);
    *offset += (uint64_t)heads * (uint64_t)dim * (uint64_t)dim * 4;   /* a multiple of 1024 */
}

/* F transposed. HADAMARD and IDENTITY are written out: a reader of the GGUF knows matrices only. */
static int put_matrix(buffer *b, const oscar_pair *pair)
{
    int n = pair->dim, i, j;
    size_t size = (size_t)n * (size_t)n;
    float *unit = (float *)allocate(2 * size, sizeof(float)), *rows;
    uint32_t bits;
    if (!unit) return 0;
    rows = unit + size;
    for (i = 0; i < n; i++) unit[i * n + i] = 1;
    if (pair->kind == OSCAR_DENSE) memcpy(rows, pair->to, size * sizeof(float));
    else (void)oscar_transform(pair, OSCAR_FORWARD, (size_t)n, unit, rows);
    for (j = 0; j < n; j++)
        for (i = 0; i < n; i++) {
            memcpy(&bits, &rows[i * n + j], 4);
            put_number(b, bits, 4);
        }
    free(unit);
    return !b->failed;
}

/* Metadata: as far as a rotations file knows the model. Values that differ between layers are left out. Returns whether
   all layers have the same heads. */
static int put_metadata(buffer *b, const oscar_rotations *r, const char *architecture, uint64_t *values)
{
    const char *model = oscar_rotations_meta(r, "oscar.model");
    int count = oscar_rotations_count(r), i, heads = 1, k_dim = 1, v_dim = 1;
    oscar_layer first, l;
    (void)oscar_rotations_layer(r, 0, &first);
    for (i = 1; i < count; i++) {
        (void)oscar_rotations_layer(r, i, &l);
        heads &= l.kv_heads == first.kv_heads;
        k_dim &= l.k_dim == first.k_dim;
        v_dim &= l.v_dim == first.v_dim;
    }
    put_string(b, "general.architecture", architecture);
    if (model) put_string(b, "general.name", model);
    put_u32(b, "", "general.alignment", GGUF_ALIGNMENT);
    put_u32(b, architecture, ".block_count", count);
    if (heads) put_u32(b, architecture, ".attention.head_count_kv", first.kv_heads);
    if (k_dim) put_u32(b, architecture, ".attention.key_length", first.k_dim);
    if (v_dim) put_u32(b, architecture, ".attention.value_length", first.v_dim);
    *values = (uint64_t)(3 + (model != NULL) + heads + k_dim + v_dim);
    return heads;
}

/* Goes over all sides with a matrix: infos first, data second. Returns how many there are. Only where all layers have
   the same heads may they share a matrix: a reader could not tell how many they are. */
static uint64_t put_tensors(buffer *b, const oscar_rotations *r, int may_share, int data)
{
    uint64_t offset = 0, tensors = 0;
    int i, side_of, h;
    for (i = 0; i < oscar_rotations_count(r); i++)
        for (side_of = 0; side_of < 2; side_of++) {
            oscar_layer l;
            const oscar_pair *pairs;
            int heads;
            (void)oscar_rotations_layer(r, i, &l);
            pairs = side_of ? l.v : l.k;
            heads = (side_of ? l.v_bits : l.k_bits) == 16 ? 0 : export_heads(pairs, l.kv_heads);
            if (!heads) continue;
            if (!may_share) heads = l.kv_heads;
            tensors++;
            if (!data) put_tensor_info(b, i, side_of ? 'v' : 'k', heads, l.kv_heads, pairs->dim, &offset);
            for (h = 0; data && h < heads; h++) if (!put_matrix(b, &pairs[h])) return tensors;
        }
    return tensors;
}

static const char no_architecture[] = "oscar";

/* A small GGUF with the rotations and metadata; free *out. architecture: NULL takes what the rotations tell. */
static int gguf_write(const oscar_rotations *r, const char *architecture, unsigned char **out, size_t *size)
{
    buffer head = { NULL, 0, 0, 0 }, b = { NULL, 0, 0, 0 };
    uint64_t tensors, values = 0;
    oscar_layer l;
    int i, may_share;
    if (!architecture) architecture = oscar_rotations_meta(r, "general.architecture");
    if (!architecture) architecture = no_architecture;
    if (!architecture[0] || strlen(architecture) > 63) return complain("an architecture has 1 to 63 characters");
    for (i = 0; i < oscar_rotations_count(r); i++) {
        (void)oscar_rotations_layer(r, i, &l);
        if (!layer_exportable(&l, i)) return 0;
    }
    may_share = put_metadata(&head, r, architecture, &values);
    tensors = put_tensors(&head, r, may_share, 0);
    put_number(&b, 0x46554747u, 4);
    put_number(&b, 3, 4);
    put_number(&b, tensors, 8);
    put_number(&b, values, 8);
    put_bytes(&b, head.bytes, head.size);
    put_align(&b);
    (void)put_tensors(&b, r, may_share, 1);
    free(head.bytes);
    if (tensors && !head.failed && !b.failed) {
        *out = b.bytes;
        *size = b.size;
        return 1;
    }
    free(b.bytes);
    return tensors ? 0 : complain("nothing to export: no layer has a transform");
}

#ifndef IMPORT_NO_MAIN
/* == 9 COMMANDS =================================================================================================== */

static const char help[] =
    "import_rotation_zoo --k FILE.pt --v FILE.pt -o OUT [--kv-heads N] [--group G] [--model NAME]\n"
    "    A rotations file for oscar.h from PyTorch checkpoints of the RotationZoo. With one matrix a layer (format\n"
    "    1), --kv-heads tells how many heads share it. --k or --v may be left out: that side gets the Hadamard\n"
    "    transform. Layers without any matrix keep 16 bits. Codec: 2 bits, clipped min-max at 0.96 (K) and 0.92 (V),\n"
    "    one scale a row, or one for G channels.\n"
    "import_rotation_zoo --gguf FILE -o OUT [the same options]\n"
    "    The same from the tensors blk.N.attn_k_rot.weight and blk.N.attn_v_rot.weight of a model. --kv-heads and\n"
    "    --model are taken from the model where they are not given.\n"
    "import_rotation_zoo export ROTATIONS -o OUT.gguf [--arch NAME]\n"
    "    A small GGUF that holds only these tensors, transposed as their readers want them. A rotations file knows\n"
    "    little of the model: general.name is its oscar.model, general.architecture is NAME, else that of an imported\n"
    "    GGUF, else \"oscar\"; NAME.block_count, NAME.attention.head_count_kv, key_length and value_length are those\n"
    "    of the file where all layers agree. Codec settings have no place there: give them again when importing.\n"
    "    Layers of 16 bits are left out. Means and duals (method BALANCED) cannot be expressed and are refused.\n"
    "import_rotation_zoo inspect FILE\n"
    "    What a .pt, GGUF or rotations file holds.\n";

static side *new_side(void) { return (side *)allocate(1, sizeof(side)); }

/* The options of all commands. */
typedef struct arguments { const char *command, *input, *k, *v, *gguf, *out; options o; } arguments;

static int number_argument(const char *name, const char *value, int *out)
{
    int64_t number = text_number(text_of(value, strlen(value)));
    if (number < 1 || number > MAX_HEADS) return complain("%s %s: a number from 1 to %d", name, value, MAX_HEADS);
    *out = (int)number;
    return 1;
}

static int parse_arguments(int argc, char **argv, arguments *a)
{
    struct { const char *name; const char **text; int *number; } known[9];
    int i, j, count = 0;
    memset(a, 0, sizeof *a);
    memset(known, 0, sizeof known);
    known[count].name = "--k", known[count++].text = &a->k;
    known[count].name = "--v", known[count++].text = &a->v;
    known[count].name = "--gguf", known[count++].text = &a->gguf;
    known[count].name = "-o", known[count++].text = &a->out;
    known[count].name = "--model", known[count++].text = &a->o.model;
    known[count].name = "--arch", known[count++].text = &a->o.architecture;
    known[count].name = "--kv-heads", known[count++].number = &a->o.kv_heads;
    known[count].name = "--group", known[count++].number = &a->o.group;
    for (i = 1; i < argc; i++) {
        if (i == 1 && (!strcmp(argv[1], "inspect") || !strcmp(argv[1], "export"))) { a->command = argv[1]; continue; }
        if (argv[i][0] != '-' && a->command && !a->input) { a->input = argv[i]; continue; }
        for (j = 0; j < count && strcmp(argv[i], known[j].name); j++) continue;
        if (j == count) return complain("unknown argument %s; --help lists all", argv[i]);
        if (i + 1 == argc) return complain("%s needs a value", argv[i]);
        i++;
        if (known[j].text) *known[j].text = argv[i];
        else if (!number_argument(argv[i - 1], argv[i], known[j].number)) return 0;
    }
    return 1;
}

static int read_checkpoint(const char *path, const char *name, side *out)
{
    mapped file;
    int good = map_file(path, &file) && checkpoint_read(file.bytes, file.size, out) && side_check(out, name);
    unmap_file(&file);
    if (!good) fprintf(stderr, "import_rotation_zoo: %s is not imported\n", path);
    return good;
}

static void print_side(const side *s, const char *name, int each)
{
    int i, with = 0;
    for (i = 0; i < s->count; i++) {
        const layer_matrices *m = &s->layers[i];
        if (!m->f) continue;
        with++;
        if (!each) continue;
        printf("  layer %-4d %s  ", i, name);
        if (!m->shared) printf("[%d]", m->heads);
        printf("[%d][%d]  %-4s  |R R^T - I| %.2e", m->dim, m->dim, number_names[m->type], m->stored);
        if (m->stored > m->deviation) printf(", made orthogonal: %.2e", m->deviation);
        printf("\n");
    }
    printf("%s: %d layers%s, largest |R R^T - I| %.2e\n", name, with,
           with < s->count ? " with matrices, others between them without" : "", side_deviation(s));
}

static int save(oscar_rotations *r, const char *path)
{
    int good = oscar_rotations_save(r, path) == OSCAR_OK;
    if (good) printf("wrote %s, %d layers\n", path, oscar_rotations_count(r));
    return good;
}

static int command_import(arguments *a)
{
    side *k = new_side(), *v = new_side();
    gguf_facts facts;
    oscar_rotations *r = NULL;
    mapped file = { NULL, 0 };
    int good = k && v;
    memset(&facts, 0, sizeof facts);
    if (good && !a->out) good = complain("give -o OUT");
    if (good && a->gguf && (a->k || a->v)) good = complain("give --gguf, or --k and --v");
    if (good && !a->gguf && !a->k && !a->v) good = complain("give --k and --v, or --gguf; --help explains");
    if (good && a->gguf) {
        good = map_file(a->gguf, &file) && gguf_read(file.bytes, file.size, k, v, &facts);
        if (good && k->count) good = side_check(k, "K");
        if (good && v->count) good = side_check(v, "V");
        if (facts.kv_heads > 0 && facts.kv_heads <= MAX_HEADS && !a->o.kv_heads) a->o.kv_heads = (int)facts.kv_heads;
        if (facts.name[0] && !a->o.model) a->o.model = facts.name;
        if (facts.architecture[0] && strcmp(facts.architecture, no_architecture))
            a->o.architecture = facts.architecture;
    }
    if (good && a->k) good = read_checkpoint(a->k, "K", k);
    if (good && a->v) good = read_checkpoint(a->v, "V", v);
    if (good) {
        if (k->count) print_side(k, "K", 0);
        else printf("K: no matrices, Hadamard transform\n");
        if (v->count) print_side(v, "V", 0);
        else printf("V: no matrices, Hadamard transform\n");
        good = make_rotations(k, v, &a->o, facts.blocks, &r) && save(r, a->out);
    }
    oscar_rotations_destroy(r);
    unmap_file(&file);
    side_free(k);
    side_free(v);
    return good;
}

static int command_export(const arguments *a)
{
    oscar_hooks hooks = log_hooks();
    oscar_rotations *r = NULL;
    unsigned char *bytes = NULL;
    size_t size = 0;
    FILE *f;
    int good;
    if (!a->input || !a->out) return complain("give a rotations file and -o OUT.gguf");
    good = oscar_rotations_load(a->input, &hooks, &r) == OSCAR_OK
           && gguf_write(r, a->o.architecture, &bytes, &size);
    if (good) {
        f = fopen(a->out, "wb");
        good = f != NULL && fwrite(bytes, 1, size, f) == size;
        if (f && fclose(f)) good = 0;
        if (!good) complain("cannot write %s: %s", a->out, strerror(errno));
        else printf("wrote %s, %lu bytes\n", a->out, (unsigned long)size);
    }
    free(bytes);
    oscar_rotations_destroy(r);
    return good;
}

/* One side of a layer of a rotations file. */
static void print_pairs(const oscar_pair *pairs, int heads, int dim, int bits, oscar_fit fit, double clip, int group)
{
    static const char *const kinds[] = { "hadamard", "identity", "dense" };
    double worst = 0;
    int h, shared = pairs && export_heads(pairs, heads) == 1;
    if (bits == 16) { printf("16 bits\n"); return; }
    printf("%d x %d, %s%s, %d bits, group %d, ", heads, dim, kinds[pairs ? pairs[0].kind : OSCAR_HADAMARD],
           shared && pairs[0].kind == OSCAR_DENSE ? " shared" : "", bits, group);
    if (fit == OSCAR_CLIP) printf("clip %g", clip);
    else printf("unbiased");
    if (pairs && pairs[0].mean) printf(", mean");
    if (pairs && pairs[0].dual) printf(", dual");
    else if (pairs && pairs[0].kind == OSCAR_DENSE) {
        for (h = 0; h < (shared ? 1 : heads); h++) {
            double deviation = deviation_of(pairs[h].to, dim);
            if (deviation > worst) worst = deviation;
        }
        printf(", |F F^T - I| %.2e", worst);
    }
    printf("\n");
}

static int inspect_rotations(const mapped *file)
{
    oscar_hooks hooks = log_hooks();
    oscar_rotations *r = NULL;
    const char *model, *compose;
    int i;
    if (oscar_rotations_read(file->bytes, file->size, &hooks, &r) != OSCAR_OK) return 0;
    model = oscar_rotations_meta(r, "oscar.model");
    compose = oscar_rotations_meta(r, "oscar.compose");
    printf("rotations file, %d layers, model %s, method %s\n", oscar_rotations_count(r),
           model ? show(text_of(model, strlen(model))) : "not told",
           compose ? show(text_of(compose, strlen(compose))) : "not told");
    for (i = 0; i < oscar_rotations_count(r); i++) {
        oscar_layer l;
        (void)oscar_rotations_layer(r, i, &l);
        printf("  layer %-4d K  ", i);
        print_pairs(l.k, l.kv_heads, l.k_dim, l.k_bits, l.k_fit, l.k_clip, l.k_group);
        printf("  layer %-4d V  ", i);
        print_pairs(l.v, l.kv_heads, l.v_dim, l.v_bits, l.v_fit, l.v_clip, l.v_group);
    }
    oscar_rotations_destroy(r);
    return 1;
}

static int inspect_matrices(const mapped *file, int gguf, side *k, side *v)
{
    gguf_facts facts;
    if (gguf) {
        if (!gguf_read(file->bytes, file->size, k, v, &facts)) return 0;
        printf("GGUF, architecture %s, name %s, %ld blocks, %ld KV heads (0: not told)\n",
               facts.architecture[0] ? facts.architecture : "not told", facts.name[0] ? facts.name : "not told",
               (long)facts.blocks, (long)facts.kv_heads);
        if ((k->count && !side_check(k, "K")) || (v->count && !side_check(v, "V"))) return 0;
        if (k->count) print_side(k, "K", 1);
        if (v->count) print_side(v, "V", 1);
        return 1;
    }
    if (!checkpoint_read(file->bytes, file->size, k) || !side_check(k, "R")) return 0;
    printf("PyTorch checkpoint, format_version %ld (0: not told), objective %s\n", (long)k->version,
           k->objective[0] ? k->objective : "not told");
    print_side(k, "R", 1);
    return 1;
}

static int command_inspect(const arguments *a)
{
    side *k = new_side(), *v = new_side();
    mapped file = { NULL, 0 };
    int good = k && v, gguf;
    if (good && !a->input) good = complain("give a file to inspect");
    if (good) good = map_file(a->input, &file);
    if (good) {
        gguf = file.size >= 4 && !memcmp(file.bytes, "GGUF", 4);
        good = gguf || (file.size >= 4 && !memcmp(file.bytes, "PK\3\4", 4)) ? inspect_matrices(&file, gguf, k, v)
                                                                         : inspect_rotations(&file);
    }
    unmap_file(&file);
    side_free(k);
    side_free(v);
    return good;
}

int main(int argc, char **argv)
{
    arguments a;
    int good;
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        fputs(help, argc < 2 ? stderr : stdout);
        return argc < 2;
    }
    if (!parse_arguments(argc, argv, &a)) return 1;
    if (!a.command) good = command_import(&a);
    else if (!strcmp(a.command, "export")) good = command_export(&a);
    else good = command_inspect(&a);
    return !good;
}
#endif
