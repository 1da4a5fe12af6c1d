/* fuzz_gguf.c - a model file from arbitrary bytes: every key and tensor is read, the tokenizer is made and used.

       clang -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz_gguf.c -lm -pthread -o fuzz_gguf
       ./fuzz_gguf -max_total_time=300 CORPUS      (a folder; it may be empty)

   Without libFuzzer, on files or on mutations of the seeds (more options in fuzz_main.c):

       cc -g -O1 -fsanitize=address,undefined -I. tests/fuzz_gguf.c tests/fuzz_main.c -lm -pthread -o fuzz_gguf
       ./fuzz_gguf -n 100000

   Input that starts with GGUF is a file. Of other input a file is made that is well formed but for a few faults: the
   bytes choose its vocabulary, the types of its values and its tensors. So both are reached without a corpus. */
#define LLM_NO_MAIN
#include "examples/llm.c"
#include "gguf_build.h"

#define REQUIRE(condition) \
    ((condition) ? (void)0 : ((void)fprintf(stderr, "fuzz_gguf.c:%d: %s\n", __LINE__, #condition), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
uint8_t *fuzz_seed(int index, size_t *size);

static volatile double sink;   /* so that no read is optimised away */

static void read_all(const void *at, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++) sink += ((const unsigned char *)at)[i];
}

/* ---- using a file ---- */

/* A name as a string; NULL if there is a 0 in it. */
static char *string_of(text t)
{
    char *s = (char *)calloc(t.size + 1, 1);
    REQUIRE(s);
    if (t.size) memcpy(s, t.at, t.size);
    if (strlen(s) == t.size) return s;
    free(s);
    return NULL;
}

static void use_key(const gguf *g, const gguf_key *key)
{
    static const int64_t places[] = { 0, 1, -1, 1 << 20, INT64_MAX, INT64_MIN };
    char *name = string_of(key->name);
    gguf_array list;
    double value;
    text t;
    size_t i;
    int type;
    if (!name) return;
    for (i = 0; i < sizeof places / sizeof places[0]; i++)
        if (gguf_real(g, name, places[i], &value)) sink += value;
    REQUIRE(gguf_real(g, name, key->value.count - 1, &value) == (key->value.type != GGUF_STRING && key->value.count));
    if (gguf_text(g, name, &t)) read_all(t.at, t.size);
    for (type = -1; type < 20; type++) {
        const unsigned char *at;
        if (!gguf_array_of(g, name, type, &list)) continue;
        REQUIRE(key->is_array && list.type == type);
        read_all(at = list.data, list.size);
        if (type != GGUF_STRING) continue;
        for (i = 0; i < (size_t)list.count; i++) {
            at = gguf_next_text(at, &t);
            read_all(t.at, t.size);
        }
        REQUIRE(at == list.data + list.size);
    }
    free(name);
}

static void use_tensor(const gguf *g, const tensor *t, const uint8_t *file, size_t size)
{
    char *name = string_of(t->name);
    int64_t rows = t->shape[1] * t->shape[2] * t->shape[3];
    size_t bytes = row_bytes(t->type, t->shape[0]);
    float *row;
    if (name) REQUIRE(gguf_tensor(g, name) == t);
    free(name);
    REQUIRE(t->dims >= 1 && t->dims <= 4 && rows > 0 && t->shape[0] > 0 && *type_name(t->type));
    if (!t->data) { REQUIRE(!type_is_known(t->type)); return; }
    REQUIRE(bytes && t->data >= file && t->data + (size_t)rows * bytes <= file + size);
    row = (float *)malloc((size_t)t->shape[0] * sizeof(float));   /* a row is in the file, so this is not much */
    REQUIRE(row);
    row_floats(t->type, t->data, t->shape[0], row);
    sink += (double)row[0];
    row_floats(t->type, t->data + (size_t)(rows - 1) * bytes, t->shape[0], row);
    sink += (double)row[t->shape[0] - 1];
    free(row);
}

static void use_tokenizer(const tokenizer *t, text input)
{
    char piece[64];
    int special, i;
    REQUIRE(t->count > 0 && t->bos < t->count && t->eos < t->count);
    for (special = 0; special < 2; special++) {
        int32_t *ids = NULL;
        int count = 0;
        if (!tokenizer_encode(t, input, special, &ids, &count)) continue;
        for (i = 0; i < count; i++) REQUIRE(ids[i] >= 0 && ids[i] < t->count);
        free(ids);
    }
    for (i = 0; i < t->count; i += 1 + i / 64) {
        char *exact;
        int length = tokenizer_piece(t, i, piece, (int)sizeof piece);
        REQUIRE(length >= 0);
        if (length > (int)sizeof piece) continue;
        exact = (char *)malloc((size_t)length + 1);   /* no byte more than needed is written */
        REQUIRE(exact && tokenizer_piece(t, i, exact, length) == length && !memcmp(exact, piece, (size_t)length));
        free(exact);
    }
}

/* `more` is a text to encode besides the fixed one. */
static void use_file(const uint8_t *file, size_t size, text more)
{
    tokenizer t;
    gguf g;
    int i;
    if (!gguf_parse(file, size, &g)) { REQUIRE(!g.tensors && !g.keys && !g.tensor_count && !g.key_count); return; }
    for (i = 0; i < g.key_count; i++) use_key(&g, &g.keys[i]);
    for (i = 0; i < g.tensor_count; i++) use_tensor(&g, &g.tensors[i], file, size);
    if (tokenizer_create(&g, &t)) {
        use_tokenizer(&t, text_of("Hello ababaableleel\n<|x|>ab 1111 'll \xc3\xa9\xe2\x96\x81\xff <s>  abHelHlaeb"));
        use_tokenizer(&t, more);
        tokenizer_free(&t);
    }
    gguf_free(&g);
}

/* ---- making a file ---- */

typedef struct input { const uint8_t *data; size_t size, at; } input;

static unsigned take_byte(input *in) { return in->at < in->size ? in->data[in->at++] : 0; }
static int take_below(input *in, int n) { return (int)(take_byte(in) % (unsigned)n); }
static int rarely(input *in) { return take_byte(in) > 240; }

enum { PARTS = 16, PIECES = 80, PIECE_BYTES = 32 };

static const char *const parts[PARTS] = { "a", "b", "\xc4\xa0", "\xe2\x96\x81", " ", "e", "l", "1", "\xc4\x8a", "'",
                                          "\xc3\xa9", "\xff", "<", ">", "\xc4", "H" };

typedef struct vocabulary { char piece[PIECES][PIECE_BYTES]; int count; } vocabulary;

/* The parts, then pieces made of them, so that there is something to merge. */
static void make_pieces(input *in, vocabulary *v)
{
    static const char *const whole[] = { "<0x41>", "<0xZZ>", "<|x|>", "<s>", "", "<0x0A>", "<unk>", "<0x4" };
    int first = rarely(in) ? 0 : PARTS, i, k, n;
    v->count = first + take_below(in, PIECES - PARTS);
    for (i = 0; i < v->count; i++) {
        if (i < first) { strcpy(v->piece[i], parts[i]); continue; }
        v->piece[i][0] = 0;
        n = take_below(in, 6);
        if (n == 5) strcpy(v->piece[i], whole[take_below(in, 8)]);
        else for (k = 0; k <= n; k++) strcat(v->piece[i], parts[take_below(in, PARTS)]);
    }
}

/* An array of `count` elements as it should be; rarely of another length or type. */
static uint32_t make_array(input *in, gguf_build *b, const char *name, uint32_t type, int *count)
{
    if (rarely(in)) *count = take_below(in, PIECES + 1);
    if (rarely(in)) type = (uint32_t)take_below(in, 14);
    build_array(b, name, type, (uint64_t)*count);
    return type;
}

static void make_numbers(input *in, gguf_build *b, const char *name, uint32_t wanted, int count)
{
    int i;
    uint32_t type = make_array(in, b, name, wanted, &count);
    for (i = 0; i < count; i++) {
        unsigned byte = take_byte(in);
        uint64_t bits = wanted == GGUF_FLOAT32 ? (uint64_t)byte << 24 | 0x800000u : byte % 7;
        if (type == GGUF_STRING) build_count(b, 0);
        else build_int(b, build_value_bytes(type), bits);
    }
}

static void make_tokens(input *in, gguf_build *b, const vocabulary *v)
{
    int count = v->count, i;
    uint32_t type = make_array(in, b, "tokenizer.ggml.tokens", GGUF_STRING, &count);
    for (i = 0; i < count; i++) {
        if (type != GGUF_STRING) build_int(b, build_value_bytes(type), 1);
        else build_text(b, v->piece[i % (v->count + 1)], strlen(v->piece[i % (v->count + 1)]));
    }
}

/* Pieces cut in two where a character ends; rarely just anywhere. */
static void make_merges(input *in, gguf_build *b, const vocabulary *v)
{
    char both[PIECE_BYTES + 2];
    int count = take_below(in, 60), i;
    uint32_t type = make_array(in, b, rarely(in) ? "z" : "tokenizer.ggml.merges", GGUF_STRING, &count);
    for (i = 0; i < count; i++) {
        const char *piece = v->piece[take_below(in, v->count + 1)];
        int size = (int)strlen(piece), at = take_below(in, size + 1);
        if (type != GGUF_STRING) { build_int(b, build_value_bytes(type), 1); continue; }
        while (at < size && ((unsigned char)piece[at] & 0xc0) == 0x80 && !rarely(in)) at++;
        memcpy(both, piece, (size_t)at);
        both[at] = ' ';
        memcpy(both + at + 1, piece + at, (size_t)(size - at));
        build_text(b, both, (size_t)size + 1);
    }
}

static void make_vocabulary(input *in, gguf_build *b)
{
    static const char *const kinds[] = { "gpt2", "llama", "gpt2", "llama", "bert", "" };
    static const char *const rules[] = { "smollm", "default", "llama-bpe", "qwen2", "gpt-2", "no such rule" };
    static const char *const flags[] = { "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix",
                                         "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                         "tokenizer.ggml.unknown_token_id" };
    vocabulary v;
    int i;
    memset(&v, 0, sizeof v);
    make_pieces(in, &v);
    build_string(b, "tokenizer.ggml.model", kinds[take_below(in, 6)]);
    build_string(b, "tokenizer.ggml.pre", rules[take_below(in, 6)]);
    make_tokens(in, b, &v);
    make_numbers(in, b, rarely(in) ? "x" : "tokenizer.ggml.token_type", GGUF_INT32, v.count);
    make_numbers(in, b, rarely(in) ? "y" : "tokenizer.ggml.scores", GGUF_FLOAT32, v.count);
    make_merges(in, b, &v);
    for (i = 0; i < 5; i++) {
        uint32_t type = i < 2 ? GGUF_BOOL : rarely(in) ? GGUF_FLOAT32 : GGUF_UINT32;
        build_number(b, flags[i], type, take_byte(in) & (i < 2 ? 1 : 127));
    }
}

enum { MOST_TENSORS = 4, MAKE_KEYS = 15 };   /* general.alignment, three others, and those of make_vocabulary */

/* The lists of tensors; returns the bytes of their data. */
static size_t make_tensors(input *in, gguf_build *b, int tensors, size_t alignment)
{
    static const unsigned char types[] = { 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30, 10, 40 };
    size_t data = 0;
    int i, k;
    for (i = 0; i < tensors; i++) {
        static const char *const names[MOST_TENSORS] = { "output.weight", "b", "a", "blk.0.attn_q.weight" };
        uint64_t shape[4], rows = 1;
        uint32_t type = types[take_below(in, 13)];
        int dims = 1 + take_below(in, 4), known = type_is_known((int)type);
        uint64_t values = known ? (uint64_t)weight_type_of((int)type)->values : 1;
        for (k = 0; k < 4; k++) shape[k] = 1 + (uint64_t)take_below(in, 3);
        for (k = 1; k < dims; k++) rows *= shape[k];
        shape[0] = shape[0] * values + (uint64_t)rarely(in);
        build_tensor(b, names[rarely(in) ? 0 : i], dims, shape, type, rarely(in) ? data + 1 : data);
        if (known) data += (size_t)(shape[0] / values * rows) * (size_t)weight_type_of((int)type)->bytes;
        data = (data + alignment - 1) / alignment * alignment;
    }
    return data;
}

/* The first bytes choose the tensors, which come last, and a vocabulary may use up the others. */
static void make_file(const uint8_t *bytes, size_t size, gguf_build *b)
{
    input first = { NULL, 0, 0 }, in = { NULL, 0, 0 };
    size_t alignment, start, data;
    int tensors, i;
    uint32_t type;
    first.data = in.data = bytes;
    first.size = size < 100 ? size : 100;
    in.size = size;
    in.at = first.size / 2;
    alignment = (size_t)8 << take_below(&first, 4);
    tensors = take_below(&first, MOST_TENSORS + 1);
    build_header(b, 2 + take_byte(&first) % 2, (uint64_t)(tensors + rarely(&first)), MAKE_KEYS);
    build_number(b, "general.alignment", GGUF_UINT32, alignment);
    for (i = 0; i < 2; i++) {
        type = (uint32_t)take_below(&first, 13);
        build_key(b, i || rarely(&first) ? "one" : "another", type == 8 || type == 9 ? GGUF_UINT8 : type);
        build_int(b, type == 8 || type == 9 ? 1 : build_value_bytes(type), take_byte(&first) * 0x0101010101010101u);
    }
    make_numbers(&first, b, "list", (uint32_t)take_below(&first, 8), take_below(&first, 10));
    make_vocabulary(&in, b);
    data = make_tensors(&first, b, tensors, alignment);
    build_pad(b, alignment);
    start = b->size;
    if (rarely(&first) && data) data--;
    while (b->size < start + data) build_int(b, 1, (take_byte(&in) * 37u + b->size) % 256);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text more;
    llm_quiet = 1;
    more.at = (const char *)data + size / 2;
    more.size = size - size / 2 < 200 ? size - size / 2 : 200;
    if (size >= 4 && !memcmp(data, "GGUF", 4)) use_file(data, size, more);
    else {
        gguf_build b;
        uint8_t *exact;
        memset(&b, 0, sizeof b);
        make_file(data, size, &b);
        exact = (uint8_t *)malloc(b.size);   /* ends where the file ends */
        REQUIRE(exact);
        memcpy(exact, b.at, b.size);
        use_file(exact, b.size, more);
        free(exact);
        free(b.at);
    }
    return 0;
}

/* 32 inputs that choose files, and the files that they give. */
uint8_t *fuzz_seed(int index, size_t *size)
{
    enum { SIZE = 800 };
    uint64_t state = (uint64_t)(index / 2 + 1) * 0x9e3779b97f4a7c15u;
    uint8_t *out = (uint8_t *)malloc(SIZE);
    gguf_build b;
    size_t i;
    REQUIRE(out);
    if (index >= 64) { free(out); return NULL; }
    for (i = 0; i < SIZE; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        out[i] = (uint8_t)(state >> 56);
        if (out[i] > 240 && index % 8 > 1) out[i] = (uint8_t)(out[i] - 16);   /* most files are without a fault */
    }
    out[0] &= 63;   /* so that it does not start with a G */
    *size = SIZE;
    if (index % 2) return out;
    memset(&b, 0, sizeof b);
    make_file(out, SIZE, &b);
    free(out);
    *size = b.size;
    return b.at;
}
