/* zoo_writer.h - writes what examples/import_rotation_zoo.c reads: zip archives as PyTorch lays them out, pickles, GGUF
   files. It writes whatever it is told, so that tests can make wrong files, too.

   Include after examples/import_rotation_zoo.c, whose buffer and put_... it uses. */
#ifndef ZOO_WRITER_H
#define ZOO_WRITER_H

/* == zip == */

/* An archive in the making. plain: sizes and checksum in the header and no descriptor, no padding, no zip64 record, as
   other programs write; otherwise as PyTorch does. */
typedef struct archive { buffer file, central; int count, plain; } archive;

static void archive_add(archive *a, const char *name, const void *data, size_t size)
{
    uint32_t crc = crc32_of((const unsigned char *)data, size);
    size_t at = a->file.size, length = strlen(name), pad, i;
    pad = a->plain ? 0 : 4 + (64 - (at + 30 + length + 4) % 64) % 64;
    put_number(&a->file, ZIP_LOCAL, 4);
    put_number(&a->file, 0, 2);
    put_number(&a->file, a->plain ? 0 : 0x808, 2);
    put_number(&a->file, 0, 6);   /* stored; no time */
    put_number(&a->file, a->plain ? crc : 0, 4);
    put_number(&a->file, a->plain ? size : 0, 4);
    put_number(&a->file, a->plain ? size : 0, 4);
    put_number(&a->file, length, 2);
    put_number(&a->file, pad, 2);
    put_bytes(&a->file, name, length);
    if (pad) { put_bytes(&a->file, "FB", 2); put_number(&a->file, pad - 4, 2); }
    for (i = 4; i < pad; i++) put_bytes(&a->file, "Z", 1);
    put_bytes(&a->file, data, size);
    if (!a->plain) {
        put_number(&a->file, ZIP_DESCRIPTOR, 4);
        put_number(&a->file, crc, 4);
        put_number(&a->file, size, 4);
        put_number(&a->file, size, 4);
    }
    put_number(&a->central, ZIP_CENTRAL, 4);
    put_number(&a->central, 0, 4);
    put_number(&a->central, a->plain ? 0 : 0x808, 2);
    put_number(&a->central, 0, 6);
    put_number(&a->central, crc, 4);
    put_number(&a->central, size, 4);
    put_number(&a->central, size, 4);
    put_number(&a->central, length, 2);
    put_number(&a->central, 0, 8);
    put_number(&a->central, 0, 4);
    put_number(&a->central, at, 4);
    put_bytes(&a->central, name, length);
    a->count++;
}

/* Ends the archive; its bytes are a->file then, to be freed. */
static void archive_end(archive *a)
{
    size_t at = a->file.size, end, size = a->central.size;
    put_bytes(&a->file, a->central.bytes, size);
    end = a->file.size;
    if (!a->plain) {
        put_number(&a->file, ZIP_END64, 4);
        put_number(&a->file, 44, 8);
        put_number(&a->file, 0, 4);
        put_number(&a->file, 0, 8);
        put_number(&a->file, (uint64_t)a->count, 8);
        put_number(&a->file, (uint64_t)a->count, 8);
        put_number(&a->file, size, 8);
        put_number(&a->file, at, 8);
        put_number(&a->file, ZIP_LOCATOR64, 4);
        put_number(&a->file, 0, 4);
        put_number(&a->file, end, 8);
        put_number(&a->file, 1, 4);
    }
    put_number(&a->file, ZIP_END, 4);
    put_number(&a->file, 0, 4);
    put_number(&a->file, (uint64_t)a->count, 2);
    put_number(&a->file, (uint64_t)a->count, 2);
    put_number(&a->file, size, 4);
    put_number(&a->file, at, 4);
    put_number(&a->file, 0, 2);
    free(a->central.bytes);
    memset(&a->central, 0, sizeof a->central);
}

/* == pickle == */

static void p_op(buffer *b, int op) { put_number(b, (uint64_t)op, 1); }

static void p_text(buffer *b, const char *s)
{
    p_op(b, 'X');
    put_number(b, strlen(s), 4);
    put_bytes(b, s, strlen(s));
}

static void p_int(buffer *b, int64_t number)
{
    if (number >= 0 && number < 256) { p_op(b, 'K'); put_number(b, (uint64_t)number, 1); }
    else if (number >= 0 && number < 65536) { p_op(b, 'M'); put_number(b, (uint64_t)number, 2); }
    else if (number >= -2147483647 && number <= 2147483647) { p_op(b, 'J'); put_number(b, (uint64_t)number, 4); }
    else { p_op(b, 0x8a); p_op(b, 8); put_number(b, (uint64_t)number, 8); }
}

static void p_global(buffer *b, const char *module, const char *name)
{
    p_op(b, 'c');
    put_bytes(b, module, strlen(module));
    p_op(b, '\n');
    put_bytes(b, name, strlen(name));
    p_op(b, '\n');
}

/* A tensor: `count` numbers of class `type` in data/KEY, seen with these sizes and strides. */
typedef struct p_tensor {
    const char *key, *type;
    int64_t count, offset;
    int dims;
    int64_t size[5], stride[5];
} p_tensor;

static void p_put_tensor(buffer *b, const p_tensor *t)
{
    int i, strides;
    p_global(b, "torch._utils", "_rebuild_tensor_v2");
    p_op(b, '(');
    p_op(b, '(');
    p_text(b, "storage");
    p_global(b, "torch", t->type);
    p_text(b, t->key);
    p_text(b, "cpu");
    p_int(b, t->count);
    p_op(b, 't');
    p_op(b, 'Q');
    p_int(b, t->offset);
    for (strides = 0; strides < 2; strides++) {
        p_op(b, '(');
        for (i = 0; i < t->dims; i++) p_int(b, strides ? t->stride[i] : t->size[i]);
        p_op(b, 't');
    }
    p_op(b, 0x89);
    p_global(b, "collections", "OrderedDict");
    p_op(b, ')');
    p_op(b, 'R');
    p_op(b, 't');
    p_op(b, 'R');
}

/* Contiguous: [n][n], or [heads][n][n] where heads > 0. */
static p_tensor p_matrix(const char *key, const char *type, int heads, int n)
{
    p_tensor t;
    int d = 0;
    memset(&t, 0, sizeof t);
    t.key = key;
    t.type = type;
    t.count = (int64_t)(heads ? heads : 1) * n * n;
    if (heads) { t.size[d] = heads; t.stride[d++] = (int64_t)n * n; }
    t.size[d] = n;
    t.stride[d++] = n;
    t.size[d] = n;
    t.stride[d++] = 1;
    t.dims = d;
    return t;
}

/* Start and end of the dictionary that RotationZoo files are: between them, layers. */
static void p_begin(buffer *b, int version)
{
    p_op(b, 0x80);
    p_op(b, 2);
    p_op(b, '}');
    p_op(b, '(');
    p_text(b, "format_version");
    p_int(b, version);
    p_text(b, "objective");
    p_text(b, "qqt_r_h_pbr");
    p_text(b, "layers");
    p_op(b, '}');
    p_op(b, '(');
}

static void p_layer(buffer *b, int layer, const p_tensor *t)
{
    p_int(b, layer);
    p_op(b, '}');
    p_op(b, '(');
    p_text(b, "layer_id");
    p_int(b, layer);
    p_text(b, "rotation");
    p_put_tensor(b, t);
    p_op(b, 'u');
}

static void p_end(buffer *b)
{
    p_op(b, 'u');
    p_op(b, 'u');
    p_op(b, '.');
}

/* == numbers == */

/* Appends floats as numbers of a type. */
static void put_floats(buffer *b, number_type type, const float *f, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        double wide = (double)f[i];
        uint64_t bits = 0;
        uint32_t word;
        uint16_t half;
        if (type == NUMBER_F64) memcpy(&bits, &wide, 8);
        else if (type == NUMBER_F32) { memcpy(&word, &f[i], 4); bits = word; }
        else {
            oscar_convert(1, OSCAR_F32, &f[i], type == NUMBER_F16 ? OSCAR_F16 : OSCAR_BF16, &half);
            bits = half;
        }
        put_number(b, bits, number_bytes[type]);
    }
}

/* == GGUF == */

/* Head of a GGUF. Then values (put_u32, ...), infos (g_tensor), put_align and data. */
static void g_begin(buffer *b, int version, uint64_t tensors, uint64_t values)
{
    put_bytes(b, "GGUF", 4);
    put_number(b, (uint64_t)version, 4);
    put_number(b, tensors, 8);
    put_number(b, values, 8);
}

static void g_tensor(buffer *b, const char *name, int dims, uint64_t n, uint64_t rows, uint64_t heads, int type,
                     uint64_t offset)
{
    put_text(b, name);
    put_number(b, (uint64_t)dims, 4);
    if (dims > 0) put_number(b, n, 8);
    if (dims > 1) put_number(b, rows, 8);
    if (dims > 2) put_number(b, heads, 8);
    put_number(b, (uint64_t)type, 4);
    put_number(b, offset, 8);
}

#endif
