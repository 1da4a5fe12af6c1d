/* gguf_build.h - writes GGUF files into memory, well-formed ones and others: nothing is checked here.

       gguf_build b = { NULL, 0, 0, { 0 }, 0 };
       build_header(&b, 3, 1, 1);                            version, tensors, keys
       build_number(&b, "general.alignment", 4, 64);         keys
       build_tensor(&b, "weight", 2, shape, 0, offset);      tensors
       build_pad(&b, 64);
       build_bytes(&b, data, size);
       ... b.at, b.size ...
       free(b.at);

   Where counts and lengths of 8 bytes stand is noted, for tests that damage them. */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BUILD_COUNTS = 256 };

typedef struct gguf_build {
    unsigned char *at;
    size_t size, room;
    size_t counts[BUILD_COUNTS];   /* places of counts and lengths */
    int count_count;
} gguf_build;

static void build_bytes(gguf_build *b, const void *bytes, size_t size)
{
    if (size > b->room - b->size) {
        b->room = 2 * (b->size + size) + 64;
        b->at = (unsigned char *)realloc(b->at, b->room);
        if (!b->at) abort();
    }
    if (size) memcpy(b->at + b->size, bytes, size);
    b->size += size;
}

/* A number of 1 to 8 bytes, little endian. */
static void build_int(gguf_build *b, int bytes, uint64_t value)
{
    unsigned char out[8];
    int i;
    for (i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> 8 * i & 255);
    build_bytes(b, out, (size_t)bytes);
}

static void build_count(gguf_build *b, uint64_t value)
{
    if (b->count_count < BUILD_COUNTS) b->counts[b->count_count++] = b->size;
    build_int(b, 8, value);
}

static void build_text(gguf_build *b, const char *text, size_t size)
{
    build_count(b, size);
    build_bytes(b, text, size);
}

static void build_header(gguf_build *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    build_bytes(b, "GGUF", 4);
    build_int(b, 4, version);
    build_count(b, tensors);
    build_count(b, keys);
}

/* A key and the type of its value, which has to follow. */
static void build_key(gguf_build *b, const char *name, uint32_t type)
{
    build_text(b, name, strlen(name));
    build_int(b, 4, type);
}

static int build_value_bytes(uint32_t type)
{
    static const int bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return type < 13 ? bytes[type] : 0;
}

/* A value of any type but strings and arrays, given as its bits. */
static void build_number(gguf_build *b, const char *name, uint32_t type, uint64_t bits)
{
    build_key(b, name, type);
    build_int(b, build_value_bytes(type), bits);
}

static void build_string(gguf_build *b, const char *name, const char *value)
{
    build_key(b, name, 8);
    build_text(b, value, strlen(value));
}

/* An array, whose elements have to follow. */
static void build_array(gguf_build *b, const char *name, uint32_t type, uint64_t count)
{
    build_key(b, name, 9);
    build_int(b, 4, type);
    build_count(b, count);
}

static void build_tensor(gguf_build *b, const char *name, int dims, const uint64_t *shape, uint32_t type,
                         uint64_t offset)
{
    int i;
    build_text(b, name, strlen(name));
    build_int(b, 4, (uint64_t)dims);
    for (i = 0; i < dims; i++) build_count(b, shape[i]);
    build_int(b, 4, type);
    build_count(b, offset);
}

static void build_pad(gguf_build *b, size_t alignment)
{
    while (b->size % alignment) build_int(b, 1, 0);
}

/* A byte in GPT-2's alphabet, as UTF-8: printable ones stand for themselves, the n-th of the others for U+0100 + n. */
static size_t build_spell_byte(int byte, char *out)
{
    int code, n = 0;
    for (code = 0; code < byte; code++) n += code < 33 || (code > 126 && code < 161) || code == 173;
    code = byte < 33 || (byte > 126 && byte < 161) || byte == 173 ? 256 + n : byte;
    if (code < 128) { out[0] = (char)code; return 1; }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

#endif
