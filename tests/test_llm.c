/* test_llm.c - sections 5 to 12 of examples/llm.c: threads, matrix products, forward passes, scores, cache settings,
   calibration, generation, commands. Models are random ones of tiny_model.h, whose forward pass there is in double;
   where build/models has real ones, a few hundred of their tokens are compared with the losses in tests/data.

   Commands that may crash run in a child process, so that a crash or a leak there is one failed check. */
#define LLM_NO_MAIN
#include "examples/llm.c"

#include <sys/wait.h>

#include "gguf_build.h"
#include "test.h"
#include "tiny_model.h"

/* ---- models, ids, rows ---- */

/* Reads a model in memory, whose bytes have to stay. 0 after a complaint. */
static int open_bytes(const unsigned char *bytes, size_t size, int threads, engine *e)
{
    memset(e, 0, sizeof *e);
    e->hooks.log = print_log;
    if (!gguf_parse(bytes, size, &e->m.data) || !model_read(&e->m)) { model_free(&e->m); return 0; }
    if (!e->m.output) e->m.output = e->m.embedding;
    if (pool_create(&e->threads, threads)) return 1;
    model_free(&e->m);
    return 0;
}

static void open_tiny(const tiny *t, int threads, gguf_build *b, engine *e)
{
    tiny_build(t, NULL, b);
    if (!open_bytes(b->at, b->size, threads, e)) abort();
}

static void close_tiny(gguf_build *b, engine *e)
{
    engine_close(e);
    free(b->at);
}

static void *room(size_t count, size_t each)
{
    void *out = calloc(count ? count : 1, each);
    if (!out) abort();
    return out;
}

static float *floats(size_t count) { return (float *)room(count, sizeof(float)); }

static float *random_rows(test_random *r, size_t count, double scale)
{
    float *out = floats(count);
    size_t i;
    for (i = 0; i < count; i++) out[i] = (float)(scale * random_normal(r));
    return out;
}

static void random_ids(test_random *r, int vocabulary, int count, int32_t *ids)
{
    int i;
    for (i = 0; i < count; i++) ids[i] = random_below(r, vocabulary);
}

/* The largest difference over the largest value of b; huge if there is a NaN. */
static double difference(const float *a, const float *b, size_t count)
{
    double top = 1e-30, worst = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= 1e30)) return 1e30;
        if (d > worst) worst = d;
        if (fabs((double)b[i]) > top) top = fabs((double)b[i]);
    }
    return worst / top;
}

/* Normed rows of a sequence with exact attention. */
static float *exact_forward(engine *e, const int32_t *ids, int tokens)
{
    float *x = floats((size_t)tokens * (size_t)e->m.width);
    exact_attention exact;
    memset(&exact, 0, sizeof exact);
    exact.e = e;
    CHECK(forward(e, ids, tokens, 0, attend_exact, &exact, x));
    return x;
}

static double mean_kl(engine *e, const int32_t *ids, int tokens, const float *exact, const float *other)
{
    score s = { 0, 0, 0, 0 };
    CHECK(score_chunk(e, ids, tokens, 0, exact, other, &s, NULL) && s.tokens == tokens - 1);
    return s.kl / (double)s.tokens;
}

/* A transform pair that is far from orthogonal, F = A S C and B = A S^-1 C, in one array that the caller frees. */
static float *dense_pair(test_random *r, int dim, oscar_pair *pair)
{
    size_t n = (size_t)dim * (size_t)dim;
    double *a = tiny_doubles(n), *c = tiny_doubles(n);
    float *out = floats(2 * n);
    int i, j, k;
    random_orthogonal(r, dim, a);
    random_orthogonal(r, dim, c);
    for (i = 0; i < dim; i++)
        for (j = 0; j < dim; j++) {
            double to = 0, dual = 0;
            for (k = 0; k < dim; k++) {
                double s = 0.5 + 1.5 * k / (dim - 1);
                to += a[i * dim + k] * s * c[k * dim + j];
                dual += a[i * dim + k] / s * c[k * dim + j];
            }
            out[i * dim + j] = (float)to;
            out[n + (size_t)(i * dim + j)] = (float)dual;
        }
    free(a);
    free(c);
    memset(pair, 0, sizeof *pair);
    pair->kind = OSCAR_DENSE;
    pair->dim = dim;
    pair->to = out;
    pair->dual = out + n;
    pair->norm = 2.001f;
    return out;
}

/* ---- what is printed ---- */

typedef struct catcher { FILE *file; int saved[2]; } catcher;

static char said[16384];   /* what was printed between the last catch_start and catch_end, cut */

static void catch_start(catcher *c)
{
    c->file = tmpfile();
    if (!c->file) abort();
    fflush(stdout);
    fflush(stderr);
    c->saved[0] = dup(1);
    c->saved[1] = dup(2);
    dup2(fileno(c->file), 1);
    dup2(fileno(c->file), 2);
    llm_quiet = 0;
}

static void catch_end(catcher *c)
{
    size_t size;
    fflush(stdout);
    fflush(stderr);
    dup2(c->saved[0], 1);
    dup2(c->saved[1], 2);
    close(c->saved[0]);
    close(c->saved[1]);
    rewind(c->file);
    size = fread(said, 1, sizeof said - 1, c->file);
    said[size] = 0;
    fclose(c->file);
    llm_quiet = 1;
}

/* ---- commands ---- */

static char folder[64];   /* for files of this test */

static const char *file_in(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *f = fopen(file_in(name), "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f)) abort();
}

static void write_tiny(const char *name, const tiny *t)
{
    gguf_build b;
    tiny_build(t, NULL, &b);
    write_file(name, b.at, b.size);
    free(b.at);
}

/* Runs a command line: words are separated by spaces, @ stands for the folder, _ for a space in a word. Returns RAN or
   REFUSED, and in a child process also another number after a crash or a leak; `said` has what it printed. */
enum { RAN = 70, REFUSED };   /* no sanitizer ends a program so */
static int run_line(const char *line, int in_child)
{
    char text[1024], *words[40];
    int count = 2, status = 0, out = 0;
    pid_t child = 0;
    options o;
    catcher c;
    words[0] = words[1] = text;
    for (; *line && out < (int)sizeof text - 80; line++) {
        if (*line == '@') out += sprintf(text + out, "%s", folder);
        else text[out++] = (char)(*line == '_' ? ' ' : *line);
        if (*line == ' ') { text[out - 1] = 0; words[count++] = text + out; }
    }
    text[out] = 0;
    catch_start(&c);
    if (in_child) child = fork();
    if (child < 0) abort();
    if (!child) {
        status = options_parse(count, words, &o) && run_command(&o) ? RAN : REFUSED;
        if (in_child) exit(status);
    } else {
        if (waitpid(child, &status, 0) != child) abort();
        status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    catch_end(&c);
    return status;
}

static void runs(const char *line)
{
    int status = run_line(line, 0);
    CHECK_MSG(status == RAN, ("    %s\n    status %d: %.2000s\n", line, status, said));
}

/* The command has to fail and to say `part`. */
static void fails(const char *line, const char *part)
{
    int status = run_line(line, 0);
    CHECK_MSG(status == REFUSED && strstr(said, part),
              ("    %s\n    status %d, wanted: %s\n    said: %.2000s\n", line, status, part, said));
}

/* A number after `name` in what was printed; NaN if it is not there. */
static double figure(const char *name)
{
    const char *at = strstr(said, name);
    double value;
    return at && sscanf(at + strlen(name), " %lf", &value) == 1 ? value : (double)NAN;
}

/* ---- 5: threads, matrix products ---- */

typedef struct tally { int *counts; pthread_mutex_t lock; int calls, bad; int64_t step, count; } tally;

static void tally_job(void *context, int64_t first, int64_t last)
{
    tally *t = (tally *)context;
    int64_t i;
    for (i = first; i < last; i++) t->counts[i]++;
    pthread_mutex_lock(&t->lock);
    t->calls++;
    t->bad |= first < 0 || last > t->count || first >= last || (last - first < t->step && last != t->count);
    pthread_mutex_unlock(&t->lock);
}

static void test_pool(void)
{
    test_random r = { 1 };
    int threads, round, i;
    TEST("every share of work is done once, with any number of threads");
    for (threads = 1; threads <= 5; threads++) {
        pool p;
        CHECK(pool_create(&p, threads) && p.threads == threads - 1);
        for (round = 0; round < 1500; round++) {
            int counts[64] = { 0 }, good = 1;
            tally t = { NULL, PTHREAD_MUTEX_INITIALIZER, 0, 0, 0, 0 };
            t.counts = counts;
            t.count = random_below(&r, 60);
            t.step = 1 + random_below(&r, 7);
            pool_run(&p, t.count, t.step, tally_job, &t);
            for (i = 0; i < 64; i++) good &= counts[i] == (i < t.count);
            CHECK(good && !t.bad && (t.calls > 0) == (t.count > 0));
        }
        pool_destroy(&p);
    }
}

/* One matrix of every kind with every number of tokens up to 20. */
static void check_product(pool *p, test_random *r, int type, int64_t n, int64_t rows)
{
    size_t bytes = row_bytes(type, n), size = (size_t)rows;
    unsigned char *data = (unsigned char *)room(size, bytes);
    float *row = floats((size_t)n), *x = random_rows(r, 20 * (size_t)n, 1), *bias = random_rows(r, size, 1);
    float *y = floats(20 * size), *one = floats(size);
    double *expected = tiny_doubles(20 * size), *least = tiny_doubles(20 * size), worst = 0;
    int64_t i, j, t, tokens;
    tensor w;
    memset(&w, 0, sizeof w);
    w.type = type;
    w.data = data;
    w.shape[0] = n;
    w.shape[1] = rows;
    for (i = 0; i < rows; i++) {
        tiny_row(r, type, n, 1, 0, data + (size_t)i * bytes);
        row_floats(type, data + (size_t)i * bytes, n, row);
        for (t = 0; t < 20; t++)
            for (j = 0; j < n; j++) {
                double product = (double)row[j] * (double)x[t * n + j];
                expected[t * rows + i] += product;
                least[t * rows + i] += fabs(product) + 1e-3;
            }
    }
    for (tokens = 1; tokens <= 20; tokens++) {
        const float *b = tokens % 3 ? bias : NULL;
        memset(y, 0x7f, 20 * size * sizeof *y);
        CHECK(multiply(p, &w, b, x, tokens, y));
        for (i = 0; i < tokens * rows; i++) {
            double e = (double)y[i] - expected[i] - (b ? (double)b[i % rows] : 0);
            if (!(fabs(e) / least[i] <= worst)) worst = fabs(e) / least[i];
        }
        if (tokens < 20) CHECK(((const unsigned char *)y)[size * (size_t)tokens * sizeof *y] == 0x7f);
        CHECK(multiply(p, &w, b, x + (tokens - 1) * n, 1, one));
        CHECK(!memcmp(y + (tokens - 1) * rows, one, size * sizeof *one));   /* whatever is with it */
    }
    CHECK_MSG(worst < 1e-6, ("    %s %ld x %ld: %g\n", type_name(type), (long)n, (long)rows, worst));
    free(data); free(row); free(x); free(bias); free(y); free(one); free(expected); free(least);
}

static void test_products(void)
{
    static const int types[] = { TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0, TYPE_Q5_1, TYPE_Q8_0,
        TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K };
    static const int rows[] = { 1, 7, 31, 32, 33, 65, 129, 300 };
    test_random r = { 2 };
    int threads, i, k;
    for (threads = 1; threads <= 3; threads += 2) {
        pool p;
        TEST(threads == 1 ? "matrix products" : "matrix products with three threads");
        CHECK(pool_create(&p, threads));
        for (i = 0; i < (int)(sizeof types / sizeof *types); i++) {
            int block = row_bytes(types[i], 32) ? row_bytes(types[i], 1) ? 1 : 32 : 256;
            for (k = 0; k < 8; k++)
                check_product(&p, &r, types[i], block == 256 ? 256 : block == 32 ? 32 + 32 * (k % 4) : 5 + 13 * k,
                              rows[(k + i) % 8]);
        }
        pool_destroy(&p);
    }
}

/* ---- 6, 7: forward passes ---- */

static void test_forward(void)
{
    enum { TOKENS = 90 };   /* exact attention is shared in pieces of 64 */
    static const char *const names[] = { "llama: factors of frequencies", "llama: biases, partial rotation, scaling",
        "llama: blocks, values wider than keys", "qwen2: biases", "qwen3: norms of q and k, scaling of type none",
        "gemma3: windows, softcaps", "gemma3: pattern as a list, blocks of 256",
        "gemma3: the 27B model's scale" };
    int32_t ids[TOKENS];
    int i, j, threads;
    for (i = 0; i < TINY_MODELS; i++) {
        const tiny *t = &tiny_models[i];
        size_t count = (size_t)TOKENS * (size_t)t->vocabulary;
        test_random r = { 3 };
        double *expected = tiny_doubles(count);
        float *close = floats(count), *logits = floats(count);
        gguf_build b;
        engine e;
        TEST(names[i]);
        random_ids(&r, t->vocabulary, TOKENS, ids);
        for (threads = 1; threads <= 3; threads += 2) {
            float *x;
            open_tiny(t, threads, &b, &e);
            if (threads == 1) tiny_reference(t, &e.m.data, ids, TOKENS, expected);
            for (j = 0; j < (int)count; j++) close[j] = (float)expected[j];
            x = exact_forward(&e, ids, TOKENS);
            CHECK(logits_of(&e, x, TOKENS, logits));
            CHECK_MSG(difference(logits, close, count) < 1e-5, ("    %g\n", difference(logits, close, count)));
            free(x);
            close_tiny(&b, &e);
        }
        free(expected);
        free(close);
        free(logits);
    }
}

static void test_forward_errors(void)
{
    gguf_build b;
    engine e;
    exact_attention exact;
    cached_attention cached;
    attention_input in;
    int32_t ids[3] = { 1, 2, 300 };
    float x[3 * 32];
    TEST("ids that are no tokens, attention that does not start at 0");
    open_tiny(&tiny_models[TINY_LLAMA], 1, &b, &e);
    memset(&exact, 0, sizeof exact);
    exact.e = e.m.layer ? &e : NULL;
    CHECK(!forward(&e, ids, 3, 0, attend_exact, &exact, x));
    ids[2] = -1;
    CHECK(!forward(&e, ids, 3, 0, attend_exact, &exact, x));
    ids[2] = 299;
    CHECK(forward(&e, ids, 3, 0, attend_exact, &exact, x) && !forward(&e, ids, 3, 1, attend_exact, &exact, x));
    memset(&cached, 0, sizeof cached);
    cached.e = &e;
    memset(&in, 0, sizeof in);
    in.position = 5;
    {
        oscar_layer layers[3];
        memset(layers, 0, sizeof layers);
        cached.settings = layers;
        CHECK(!attend_cached(&cached, &in));
    }
    close_tiny(&b, &e);
}

/* ---- 7, 11: a sequence in chunks ---- */

/* As served_open, with windows of any type. */
static void open_cache(engine *e, const oscar_layer *settings, oscar_type window, int64_t tokens, int sink, int recent,
                       served *s)
{
    oscar_cache_desc desc;
    oscar_layer *layers = (oscar_layer *)room((size_t)e->m.layers, sizeof *layers);
    int i;
    for (i = 0; i < e->m.layers; i++) layers[i] = settled_layer(e, settings, i);
    memset(&desc, 0, sizeof desc);
    desc.layers = layers;
    desc.layer_count = e->m.layers;
    desc.window_type = window;
    desc.max_sequences = 1;
    desc.max_tokens = tokens;
    desc.max_pages = tokens / 64 + 1;
    desc.sink = sink;
    desc.recent = recent;
    desc.hooks = e->hooks;
    memset(s, 0, sizeof *s);
    s->e = e;
    CHECK(!oscar_cache_create(&desc, &s->cache) && !oscar_cache_open(s->cache, &s->seq));
    free(layers);
}

enum { PIECES = 5 };   /* ways to cut a sequence; 0 is one piece */

static int piece_of(int way, int at, int tokens)
{
    static const int sizes[PIECES] = { 0, 128, 1, 63, -1 };
    int n = sizes[way] ? sizes[way] : tokens;
    if (n < 0) n = 1 + at * 7 % 90;   /* all sizes */
    return n < tokens - at ? n : tokens - at;
}

/* Rows of the model with a cache that gets the tokens in pieces. */
static float *fed(engine *e, const oscar_layer *settings, oscar_type window, const int32_t *ids, int tokens, int way)
{
    float *x = floats((size_t)tokens * (size_t)e->m.width);
    served s;
    int at, n;
    open_cache(e, settings, window, tokens, 16, 32, &s);
    for (at = 0; at < tokens; at += n) {
        n = piece_of(way, at, tokens);
        CHECK(served_feed(&s, ids + at, n, n > 100 ? 100 : n, x + (size_t)at * (size_t)e->m.width));
    }
    CHECK(!oscar_cache_check(s.cache));
    served_close(&s);
    return x;
}

static void test_chunks(void)
{
    static const int models[] = { TINY_LLAMA, TINY_QWEN2, TINY_GEMMA };
    enum { TOKENS = 190 };
    int32_t ids[TOKENS];
    int m, way, i;
    for (m = 0; m < 3; m++) {
        const tiny *t = &tiny_models[models[m]];
        test_random r = { 4 };
        oscar_layer exact[4], two[4];
        float *rows, *one_bf16 = NULL, *one_two = NULL;
        double kl, worst = 0;
        gguf_build b;
        engine e;
        TEST("a sequence in chunks through a cache of 16 bits is the exact model");
        open_tiny(t, 1 + m % 2, &b, &e);
        random_ids(&r, t->vocabulary, TOKENS, ids);
        memset(exact, 0, sizeof exact);
        memset(two, 0, sizeof two);
        for (i = 0; i < 4; i++) exact[i].k_bits = exact[i].v_bits = 16;
        rows = exact_forward(&e, ids, TOKENS);
        for (way = 0; way < PIECES; way++) {
            float *x = fed(&e, exact, OSCAR_F32, ids, TOKENS, way);
            kl = mean_kl(&e, ids, TOKENS, rows, x);
            CHECK_MSG(fabs(kl) < 1e-8, ("    %s: KL %g\n", t->arch, kl));
            CHECK(difference(x, rows, (size_t)TOKENS * (size_t)t->width) < 3e-5);
            free(x);
            x = fed(&e, exact, OSCAR_BF16, ids, TOKENS, way);
            if (!way) one_bf16 = x;
            kl = mean_kl(&e, ids, TOKENS, one_bf16, x);
            CHECK_MSG(fabs(kl) < 1e-6, ("    %s: KL %g from one chunk\n", t->arch, kl));
            kl = mean_kl(&e, ids, TOKENS, rows, x);
            CHECK_MSG(kl > 1e-9 && kl < 1e-3, ("    %s: KL %g from exact\n", t->arch, kl));
            if (way) free(x);
            x = fed(&e, two, OSCAR_BF16, ids, TOKENS, way);
            if (!way) one_two = x;
            kl = mean_kl(&e, ids, TOKENS, one_two, x);
            if (fabs(kl) > worst) worst = fabs(kl);
            if (way) free(x);
        }
        CHECK(worst < 1);   /* chunks see less quantised history, so the rows differ; the bytes of rows do not */
        printf("%s with 2 bits: KL between chunkings up to %.3g\n", t->arch, worst);
        free(rows);
        free(one_bf16);
        free(one_two);
        close_tiny(&b, &e);
    }
}

/* Exact attention that keeps q, k and v of every layer. */
typedef struct recorder { exact_attention exact; float *q[4], *k[4], *v[4]; } recorder;

static float *copy_rows(const float *from, size_t count)
{
    float *out = floats(count);
    memcpy(out, from, count * sizeof *out);
    return out;
}

static int attend_recorded(void *self, const attention_input *in)
{
    recorder *r = (recorder *)self;
    const model *m = &r->exact.e->m;
    size_t n = (size_t)in->tokens, k = (size_t)m->kv_heads * (size_t)m->k_dim;
    size_t v = (size_t)m->kv_heads * (size_t)m->v_dim;
    r->q[in->layer] = copy_rows(in->q, n * (size_t)m->q_heads * (size_t)m->k_dim);
    r->k[in->layer] = copy_rows(in->k, n * k);
    r->v[in->layer] = copy_rows(in->v, n * v);
    return attend_exact(&r->exact, in);
}

static void record(engine *e, const int32_t *ids, int tokens, recorder *r)
{
    float *x = floats((size_t)tokens * (size_t)e->m.width);
    memset(r, 0, sizeof *r);
    r->exact.e = e;
    CHECK(forward(e, ids, tokens, 0, attend_recorded, r, x));
    free(x);
}

static void record_free(recorder *r)
{
    int i;
    for (i = 0; i < 4; i++) { free(r->q[i]); free(r->k[i]); free(r->v[i]); }
}

/* The rows appended in pieces, by append or by prefill, as a saved sequence. */
static unsigned char *blob_of(engine *e, const oscar_layer *settings, const recorder *r, int tokens, int way,
                              int prefill, size_t *size)
{
    size_t q = (size_t)e->m.q_heads * (size_t)e->m.k_dim, k = (size_t)e->m.kv_heads * (size_t)e->m.k_dim;
    size_t v = (size_t)e->m.kv_heads * (size_t)e->m.v_dim, at, n, room_o = (size_t)e->m.q_heads * (size_t)e->m.v_dim;
    float *o = floats((size_t)tokens * room_o);
    unsigned char *blob;
    served s;
    int i;
    open_cache(e, settings, OSCAR_BF16, tokens, 8, 32, &s);
    for (at = 0; at < (size_t)tokens; at += n) {
        oscar_batch batch;
        n = (size_t)piece_of(way, (int)at, tokens);
        batch.seq = s.seq;
        batch.row = 0;
        batch.rows = (int64_t)n;
        CHECK(!oscar_cache_reserve(s.cache, s.seq, batch.rows, 0));
        for (i = 0; i < e->m.layers; i++) {
            oscar_view q_view = view_of(r->q[i] + at * q), k_view = view_of(r->k[i] + at * k);
            oscar_view v_view = view_of(r->v[i] + at * v);
            oscar_out out;
            memset(&out, 0, sizeof out);
            out.data = o;
            CHECK(!(prefill ? oscar_prefill(s.cache, i, &batch, 1, &q_view, &k_view, &v_view, NULL, &out, NULL)
                            : oscar_append(s.cache, i, &batch, 1, &k_view, &v_view)));
        }
    }
    CHECK(!oscar_cache_save(s.cache, s.seq, NULL, 0, size));
    blob = (unsigned char *)room(*size, 1);
    CHECK(!oscar_cache_save(s.cache, s.seq, blob, *size, size));
    served_close(&s);
    free(o);
    return blob;
}

static void test_bytes(void)
{
    enum { TOKENS = 300 };
    static const int models[] = { TINY_LLAMA, TINY_QWEN3 };
    int32_t ids[TOKENS];
    int m, codec, way, i;
    TEST("equal rows give equal bytes, however they are cut");
    for (m = 0; m < 2; m++) {
        const tiny *t = &tiny_models[models[m]];
        test_random r = { 5 };
        recorder rows;
        gguf_build b;
        engine e;
        open_tiny(t, 1, &b, &e);
        random_ids(&r, t->vocabulary, TOKENS, ids);
        record(&e, ids, TOKENS, &rows);
        for (codec = 0; codec < 3; codec++) {
            oscar_layer settings[4];
            unsigned char *first = NULL;
            size_t first_size = 0, size;
            memset(settings, 0, sizeof settings);
            for (i = 0; i < 4; i++) {
                if (codec == 1) settings[i].k_bits = 4;
                if (codec == 2) settings[i].k_fit = settings[i].v_fit = OSCAR_CLIP;
                if (codec == 2) settings[i].k_group = 16;
            }
            for (way = 0; way < (codec ? PIECES : 2 * PIECES); way++) {   /* the second half: by prefill */
                unsigned char *blob = blob_of(&e, settings, &rows, TOKENS, way % PIECES, way >= PIECES, &size);
                if (!way) { first = blob; first_size = size; }
                CHECK_MSG(size == first_size && !memcmp(blob, first, size), ("    codec %d, way %d\n", codec, way));
                if (way) free(blob);
            }
            free(first);
        }
        record_free(&rows);
        close_tiny(&b, &e);
    }
}

/* ---- 7: decode attention over a chunk ---- */

typedef struct cached_case {
    int model, tokens, sink, recent, k_bits, v_bits, group, dense;
    oscar_fit fit;
    int k_page_mean;
    oscar_type window_type;
} cached_case;

/* The same token by token, as a decode loop calls the library. */
static void plain_loop(const cached_attention *c, const attention_input *in, float *o)
{
    const model *m = &c->e->m;
    size_t q = (size_t)m->q_heads * (size_t)m->k_dim, k = (size_t)m->kv_heads * (size_t)m->k_dim;
    size_t v = (size_t)m->kv_heads * (size_t)m->v_dim, t;
    oscar_layer layer = settled_layer(c->e, c->settings, in->layer);
    oscar_cache_desc desc;
    oscar_cache *cache;
    oscar_batch batch;
    memset(&desc, 0, sizeof desc);
    desc.layers = &layer;
    desc.layer_count = 1;
    desc.window_type = c->window_type;
    desc.max_sequences = 1;
    desc.max_pages = 100;
    desc.sink = c->sink;
    desc.recent = c->recent;
    CHECK(!oscar_cache_create(&desc, &cache) && !oscar_cache_open(cache, &batch.seq));
    batch.row = 0;
    batch.rows = 1;
    for (t = 0; t < (size_t)in->tokens; t++) {
        oscar_view q_view = view_of(in->q + t * q), k_view = view_of(in->k + t * k), v_view = view_of(in->v + t * v);
        oscar_out out;
        memset(&out, 0, sizeof out);
        out.data = o + t * (size_t)m->q_heads * (size_t)m->v_dim;
        CHECK(!oscar_cache_reserve(cache, batch.seq, 1, 0) && !oscar_append(cache, 0, &batch, 1, &k_view, &v_view)
              && !oscar_attend(cache, 0, &batch, 1, &q_view, NULL, &out, NULL));
    }
    oscar_cache_destroy(cache);
}

static void check_cached(const cached_case *c)
{
    test_random r = { 6 };
    gguf_build b;
    engine e;
    cached_attention cached;
    attention_input in;
    oscar_layer layer;
    oscar_pair pairs[8];
    float *memory[8] = { NULL }, *q, *k, *v, *o, *plain;
    size_t tokens = (size_t)c->tokens, out;
    int threads, i;
    memset(&layer, 0, sizeof layer);
    layer.k_bits = c->k_bits;
    layer.v_bits = c->v_bits;
    layer.k_group = layer.v_group = c->group;
    layer.k_fit = layer.v_fit = c->fit;
    layer.k_page_mean = c->k_page_mean;
    for (threads = 1; threads <= 3; threads += 2) {
        open_tiny(&tiny_models[c->model], threads, &b, &e);
        out = tokens * (size_t)e.m.q_heads * (size_t)e.m.v_dim;
        if (threads == 1) {
            q = random_rows(&r, tokens * (size_t)e.m.q_heads * (size_t)e.m.k_dim, 1.5);
            k = random_rows(&r, tokens * (size_t)e.m.kv_heads * (size_t)e.m.k_dim, 1.5);
            v = random_rows(&r, tokens * (size_t)e.m.kv_heads * (size_t)e.m.v_dim, 1);
            o = floats(out);
            plain = floats(out);
            for (i = 0; c->dense && i < 2 * e.m.kv_heads; i++)
                memory[i] = dense_pair(&r, i < e.m.kv_heads ? e.m.k_dim : e.m.v_dim, &pairs[i]);
            if (c->dense) { layer.k = pairs; layer.v = pairs + e.m.kv_heads; }
        }
        memset(&cached, 0, sizeof cached);
        cached.e = &e;
        cached.settings = &layer;
        cached.window_type = c->window_type;
        cached.sink = c->sink;
        cached.recent = c->recent;
        memset(&in, 0, sizeof in);
        in.tokens = c->tokens;
        in.q = q;
        in.k = k;
        in.v = v;
        in.o = o;
        if (threads == 1) plain_loop(&cached, &in, plain);
        CHECK(attend_cached(&cached, &in));
        if (threads == 1) CHECK(!memcmp(o, plain, out * sizeof *o));
        CHECK_MSG(difference(o, plain, out) < 1e-5, ("    %d threads: %g\n", threads, difference(o, plain, out)));
        if (c->k_bits == 16 && c->v_bits == 16 && c->window_type == OSCAR_F32) {
            exact_attention exact;
            memset(&exact, 0, sizeof exact);
            exact.e = &e;
            CHECK(attend_exact(&exact, &in) && difference(o, plain, out) < 1e-5);
        }
        close_tiny(&b, &e);
    }
    free(q); free(k); free(v); free(o); free(plain);
    for (i = 0; i < 8; i++) free(memory[i]);
}

static void test_cached(void)
{
    static const cached_case cases[] = {
        { TINY_LLAMA, 470, 0, 0, 0, 0, 0, 0, OSCAR_UNBIASED, 0, 0 },
        { TINY_LLAMA, 200, -1, -1, 0, 0, 0, 0, OSCAR_UNBIASED, 0, 0 },
        { TINY_LLAMA, 300, 16, 64, 0, 0, 0, 0, OSCAR_UNBIASED, 0, 0 },
        { TINY_LLAMA, 300, 16, 64, 16, 16, 0, 0, OSCAR_UNBIASED, 0, OSCAR_F32 },
        { TINY_LLAMA, 230, -1, 30, 4, 2, 16, 0, OSCAR_CLIP, -1, 0 },
        { TINY_LLAMA, 230, 5, -1, 2, 4, 0, 0, OSCAR_CLIP, -1, OSCAR_F32 },
        { TINY_LLAMA, 330, 64, 63, 2, 2, 0, 1, OSCAR_UNBIASED, 0, 0 },
        { TINY_LLAMA, 330, 1, 129, 16, 2, 0, 0, OSCAR_UNBIASED, -1, OSCAR_F16 },
        { TINY_GEMMA, 260, 16, 64, 0, 0, 16, 0, OSCAR_UNBIASED, 0, 0 },
        { TINY_GEMMA, 230, 8, 7, 16, 16, 0, 0, OSCAR_UNBIASED, 0, OSCAR_F32 },
        { TINY_BLOCKS, 230, 32, 64, 2, 2, 32, 1, OSCAR_UNBIASED, 0, 0 },
        { TINY_DEEP_GEMMA, 60, 8, 16, 16, 16, 0, 0, OSCAR_UNBIASED, 0, OSCAR_F32 },
        { TINY_LLAMA, 1, 0, 0, 0, 0, 0, 0, OSCAR_UNBIASED, 0, 0 }
    };
    char name[100];
    int i;
    for (i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        snprintf(name, sizeof name, "runs of tokens are as token by token: case %d, windows (%d, %d)", i, cases[i].sink,
                 cases[i].recent);
        TEST(name);
        check_cached(&cases[i]);
    }
}

/* ---- 8: scores ---- */

static void test_exp(void)
{
    double worst = 0, x;
    TEST("fast_exp");
    for (x = -86.9; x < 87.9; x += 0.000731) {
        double e = fabs((double)fast_exp((float)x) / exp((double)(float)x) - 1);
        if (!(e <= worst)) worst = e;
    }
    CHECK_MSG(worst < 3e-7, ("    %g\n", worst));
    CLOSE(fast_exp(0), 1, 0);
    CHECK(fast_exp(-200) < 1e-37f && fast_exp(-INFINITY) < 1e-37f && fast_exp(-INFINITY) >= 0);
    CHECK(fast_exp(1000) > 1e38f && fast_exp(INFINITY) > 1e38f);
    fast_exp(NAN);
    fast_exp(float_of_bits(0x7fc000ff));
    fast_exp(float_of_bits(0xffc001ff));
}

/* Softmax of a row in double: the log-sum-exp and the first of the largest. */
static double double_lse(const float *x, int n, int *best)
{
    double sum = 0;
    int i;
    *best = 0;
    for (i = 1; i < n; i++) if (x[i] > x[*best]) *best = i;
    for (i = 0; i < n; i++) sum += exp((double)x[i] - (double)x[*best]);
    return (double)x[*best] + log(sum);
}

static void test_sums(void)
{
    static const int sizes[] = { 1, 2, 15, 16, 17, 1023, 1024, 1025, 1040, 5000 };
    static const double scales[] = { 0, 1e-3, 1, 10, 60 };
    test_random r = { 7 };
    int i, s, place;
    int64_t best, other_best;
    TEST("log-sum-exp and divergence of rows");
    for (i = 0; i < 10; i++)
        for (s = 0; s < 5; s++) {
            int n = sizes[i], j;
            float *a = random_rows(&r, (size_t)n, scales[s]), *b = random_rows(&r, (size_t)n, scales[s]);
            double lse, other, kl = 0, top = 0;
            for (j = 0; j < n; j++) { a[j] += 1000 * (float)(s - 2); b[j] = a[j] + 0.3f * b[j]; }
            lse = double_lse(a, n, &place);
            CLOSE(log_sum_exp(a, n, &best), lse, 1e-6);
            CHECK(best == place);
            other = double_lse(b, n, &place);
            CLOSE(log_sum_exp(b, n, &other_best), other, 1e-6);
            CHECK(other_best == place);
            for (j = 0; j < n; j++) {
                double p = exp((double)a[j] - lse), d = (double)a[j] - lse - (double)b[j] + other;
                kl += p * d;
                top += p * fabs((double)a[j] - (double)b[j]);
            }
            CLOSE(divergence(a, lse, b, other, n), kl, 1e-6 + 1e-4 * top);
            CLOSE(divergence(a, lse, a, lse, n), 0, 0);
            free(a);
            free(b);
        }
}

static void test_scores(void)
{
    static const tiny wide = { "llama", 1, 32, 2, 2, 16, 0, 32, 2500, 512, { 0, 0, 0, 0 }, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, NULL, 300, 0 };
    enum { TOKENS = 150, FROM = 7 };
    test_random r = { 8 };
    int32_t ids[TOKENS];
    float *exact, *other, *a, *b, nll[TOKENS];
    double nll_sum = 0, kl_sum = 0;
    score s = { 0, 0, 0, 0 }, kept;
    int i, j, best, other_best, same = 0;
    gguf_build file;
    engine e;
    TEST("scores of a chunk");
    open_tiny(&wide, 2, &file, &e);
    random_ids(&r, wide.vocabulary, TOKENS, ids);
    exact = random_rows(&r, TOKENS * 32, 2);
    other = random_rows(&r, TOKENS * 32, 0.2);
    for (i = 0; i < TOKENS * 32; i++) other[i] += exact[i];
    a = floats((size_t)TOKENS * 2500);
    b = floats((size_t)TOKENS * 2500);
    CHECK(logits_of(&e, exact, TOKENS, a) && logits_of(&e, other, TOKENS, b));
    for (i = FROM; i < TOKENS - 1; i++) {
        double lse = double_lse(a + i * 2500, 2500, &best), other_lse = double_lse(b + i * 2500, 2500, &other_best);
        nll_sum += other_lse - (double)b[i * 2500 + ids[i + 1]];
        same += best == other_best;
        for (j = 0; j < 2500; j++) {
            double p = (double)a[i * 2500 + j] - lse;
            kl_sum += exp(p) * (p - ((double)b[i * 2500 + j] - other_lse));
        }
    }
    for (i = 0; i < TOKENS; i++) nll[i] = -1;
    CHECK(score_chunk(&e, ids, TOKENS, FROM, exact, other, &s, nll));
    CHECK(s.tokens == TOKENS - 1 - FROM && s.top1 == same && same < s.tokens && same > 10);
    CLOSE(s.nll, nll_sum, 1e-6 * nll_sum);
    CLOSE(s.kl, kl_sum, 1e-4 * kl_sum);
    CHECK(nll[FROM - 1] < 0 && nll[FROM] > 0 && nll[TOKENS - 2] > 0 && nll[TOKENS - 1] < 0);
    for (i = FROM; i < TOKENS - 1; i++) s.nll -= (double)nll[i];
    CLOSE(s.nll, 0, 1e-3);
    memset(&kept, 0, sizeof kept);
    CHECK(keep_logits(&e, exact, TOKENS) && score_chunk(&e, ids, TOKENS, FROM, exact, other, &kept, NULL));
    CLOSE(kept.kl, s.kl, 0);
    CLOSE(kept.nll, nll_sum, 1e-6 * nll_sum);
    CHECK(kept.top1 == s.top1 && keep_logits(&e, NULL, 0));
    memset(&s, 0, sizeof s);
    CHECK(score_chunk(&e, ids, TOKENS, 0, exact, exact, &s, NULL) && s.top1 == TOKENS - 1);
    CLOSE(s.kl, 0, 0);
    memset(&s, 0, sizeof s);
    CHECK(score_chunk(&e, ids, TOKENS, 0, exact, NULL, &s, NULL) && s.top1 == TOKENS - 1 && s.tokens == TOKENS - 1);
    CLOSE(s.kl, 0, 0);
    CHECK(score_chunk(&e, ids, 1, 0, exact, NULL, &s, NULL) && s.tokens == TOKENS - 1);
    free(exact); free(other); free(a); free(b);
    close_tiny(&file, &e);
}

static void test_choice(void)
{
    enum { DRAWS = 20000, TOKENS = 40 };
    float logits[TOKENS];
    int counts[TOKENS] = { 0 }, i;
    double sum = 0;
    uint64_t state = 1, again = 1;
    TEST("tokens are drawn as the softmax says");
    for (i = 0; i < TOKENS; i++) logits[i] = i == 11 ? 3.5f : (float)(3 * sin(i * 1.7));
    CHECK(choose_token(logits, TOKENS, 0, &state) == 11 && state == 1);
    for (i = 0; i < TOKENS; i++) sum += exp((double)logits[i] / 0.8);
    for (i = 0; i < DRAWS; i++) {
        int32_t id = choose_token(logits, TOKENS, 0.8, &state);
        CHECK(id >= 0 && id < TOKENS && id == choose_token(logits, TOKENS, 0.8, &again));
        counts[id]++;
    }
    for (i = 0; i < TOKENS; i++) {
        double p = exp((double)logits[i] / 0.8) / sum;
        CLOSE(counts[i], DRAWS * p, 5 * sqrt(DRAWS * p * (1 - p)) + 3);
    }
}

/* ---- 9: settings, folding ---- */

static void hadamard_settings(const engine *e, int v_bits, settings *s)
{
    options o;
    memset(&o, 0, sizeof o);
    o.v_bits = v_bits;
    CHECK(settings_create(e, &o, s));
}

/* Exact rows depend on folding by rounding alone, as it is a change of basis between two products. Cached rows have the
   same codes but where rounding (1e-7) takes a value over a threshold: of the 10^4 values here hardly one, which would
   change one of a hundred attended rows in one channel by a step of quantisation. A wrong fold changes everything. */
static void check_fold(int which, int dense, int v_bits)
{
    enum { TOKENS = 160 };
    const tiny *t = &tiny_models[which];
    size_t count = (size_t)TOKENS * (size_t)t->width;
    test_random r = { 9 };
    int32_t ids[TOKENS];
    float *before, *after, *memory[32] = { NULL }, *cached_before = floats(count), *cached_after = floats(count);
    cached_attention cached;
    settings s;
    gguf_build b;
    engine e;
    int i, j, n = 0;
    open_tiny(t, 1, &b, &e);
    random_ids(&r, t->vocabulary, TOKENS, ids);
    hadamard_settings(&e, v_bits, &s);
    for (i = 0; dense && i < e.m.layers; i++)
        for (j = 0; j < e.m.kv_heads; j++)
            memory[n++] = dense_pair(&r, e.m.v_dim, &s.pairs[(2 * i + 1) * e.m.kv_heads + j]);
    s.layers[e.m.layers - 1].v_bits = 16;   /* this layer has nothing to fold */
    memset(&cached, 0, sizeof cached);
    cached.e = &e;
    cached.settings = s.layers;
    cached.window_type = OSCAR_F32;   /* BF16 would round other values */
    cached.sink = 8;
    cached.recent = 16;
    before = exact_forward(&e, ids, TOKENS);
    CHECK(forward(&e, ids, TOKENS, 0, attend_cached, &cached, cached_before));
    CHECK(difference(cached_before, before, count) > 1e-2);
    CHECK(model_fold(&e, &s));
    for (i = 0; i < e.m.layers; i++) CHECK(s.layers[i].v_folded == (i < e.m.layers - 1));
    after = exact_forward(&e, ids, TOKENS);
    CHECK_MSG(difference(after, before, count) < 2e-5, ("    exact: %g\n", difference(after, before, count)));
    CHECK(forward(&e, ids, TOKENS, 0, attend_cached, &cached, cached_after));
    CHECK_MSG(difference(cached_after, cached_before, count) < 5e-3,
              ("    cached: %g\n", difference(cached_after, cached_before, count)));
    settings_free(&s);
    for (i = 0; i < n; i++) free(memory[i]);
    free(before); free(after); free(cached_before); free(cached_after);
    close_tiny(&b, &e);
}

static void test_fold(void)
{
    TEST("folded weights give the same");
    check_fold(TINY_QWEN2, 0, 2);
    check_fold(TINY_QWEN2, 1, 2);
    check_fold(TINY_ODD_LLAMA, 1, 4);
    check_fold(TINY_BLOCKS, 1, 2);
    check_fold(TINY_GEMMA, 0, 2);
}

static void test_settings(void)
{
    gguf_build b;
    engine e;
    options o;
    settings s;
    double bits = 0;
    int i;
    TEST("settings from the command line");
    open_tiny(&tiny_models[TINY_LLAMA], 1, &b, &e);
    memset(&o, 0, sizeof o);
    CHECK(settings_create(&e, &o, &s) && settings_bits(&e, s.layers, &bits));
    CHECK(s.layers[2].k[1].kind == OSCAR_HADAMARD && s.layers[2].k_fit == OSCAR_CLIP && s.layers[2].k_page_mean == -1);
    CLOSE(bits, 2 + 32.0 / 16, 1e-9);   /* scale and minimum, 16 bits each, for 16 channels */
    settings_free(&s);
    o.method = "none";
    o.fit = "unbiased";
    o.k_bits = 4;
    CHECK(settings_create(&e, &o, &s) && settings_bits(&e, s.layers, &bits));
    for (i = 0; i < 3; i++) {
        CHECK(s.layers[i].v[1].kind == OSCAR_IDENTITY && s.layers[i].k_bits == 4);
        CHECK(s.layers[i].k_fit == OSCAR_UNBIASED && s.layers[i].v_fit == OSCAR_UNBIASED);
        CHECK(s.layers[i].k == s.pairs + 4 * i && s.layers[i].v == s.pairs + 4 * i + 2);
    }
    CLOSE(bits, (4 + 1 + 2 + 1) / 2.0, 1e-9);
    settings_free(&s);
    memset(&o, 0, sizeof o);
    o.method = "exact";
    CHECK(settings_create(&e, &o, &s) && settings_bits(&e, s.layers, &bits));
    CLOSE(bits, 16, 1e-9);
    settings_free(&s);
    memset(&o, 0, sizeof o);
    o.method = "balanced";
    CHECK(!settings_create(&e, &o, &s) && !s.layers && !s.pairs);
    close_tiny(&b, &e);
}

/* ---- 10: losses, budget ---- */

static void test_losses(void)
{
    enum { TOKENS = 200, CHUNKS = 2 };
    const tiny *t = &tiny_models[TINY_LLAMA];
    test_random r = { 10 };
    int32_t ids[CHUNKS * TOKENS];
    double kl[3], alone = 0;
    cached_attention cached;
    one_cached one;
    options o;
    oscar_layer layers[3];
    corpus text;
    gguf_build b;
    engine e;
    int c;
    TEST("what each layer's cache costs alone");
    open_tiny(t, 2, &b, &e);
    random_ids(&r, t->vocabulary, CHUNKS * TOKENS, ids);
    text.ids = ids;
    text.chunks = CHUNKS;
    text.tokens = TOKENS;
    memset(&o, 0, sizeof o);
    memset(layers, 0, sizeof layers);
    o.sink = 16;
    o.recent = 32;
    layers[1].k_bits = layers[1].v_bits = 16;
    CHECK(measure_losses(&e, &o, layers, &text, kl));
    CHECK_MSG(fabs(kl[1]) < 1e-4 && kl[0] > 100 * fabs(kl[1]) && kl[2] > 100 * fabs(kl[1]),
              ("    %g %g %g\n", kl[0], kl[1], kl[2]));
    memset(&one, 0, sizeof one);
    memset(&cached, 0, sizeof cached);
    cached.e = one.exact.e = &e;
    cached.settings = layers;
    cached.sink = 16;
    cached.recent = 32;
    one.cached = cached;
    one.layer = 2;
    for (c = 0; c < CHUNKS; c++) {
        float *exact = exact_forward(&e, ids + c * TOKENS, TOKENS), *x = floats((size_t)TOKENS * (size_t)t->width);
        score s = { 0, 0, 0, 0 };
        CHECK(forward(&e, ids + c * TOKENS, TOKENS, 0, attend_one_cached, &one, x));
        CHECK(score_chunk(&e, ids + c * TOKENS, TOKENS, 48, exact, x, &s, NULL));
        alone += s.kl / (double)s.tokens;
        free(exact);
        free(x);
    }
    CHECK_MSG(fabs(kl[2] / alone - 1) < 1e-3 || fabs(kl[2] * CHUNKS / alone - 1) < 1e-3, ("    %g %g\n", kl[2], alone));
    close_tiny(&b, &e);
}

static void test_budget(void)
{
    const tiny *t = &tiny_models[TINY_DEEP_GEMMA];
    test_random r = { 11 };
    oscar_layer layers[62];
    double kl[62], bits, low, high, least, most;
    catcher c;
    gguf_build b;
    engine e;
    int i, round;
    TEST("a budget of bits goes to the layers that lose most");
    open_tiny(t, 1, &b, &e);
    for (i = 0; i < 62; i++) {
        memset(&layers[i], 0, sizeof layers[i]);
        layers[i].k_bits = layers[i].v_bits = 2;
        kl[i] = exp(random_normal(&r));
    }
    CHECK(settings_bits(&e, layers, &low));
    for (i = 0; i < 62; i++) layers[i].k_bits = 4;
    CHECK(settings_bits(&e, layers, &high) && high > low + 0.9);
    for (round = 0; round <= 12; round++) {
        double budget = low + (high - low) * round / 10;
        for (i = 0; i < 62; i++) layers[i].k_bits = 2;
        catch_start(&c);
        CHECK(spend_bits(&e, kl, budget, layers) && settings_bits(&e, layers, &bits));
        catch_end(&c);
        CHECK_MSG(bits <= budget && (bits > budget - 2.2 / 62 || round > 10), ("    %g of %g\n", bits, budget));
        least = 1e9;
        most = 0;
        for (i = 0; i < 62; i++) {
            if (layers[i].k_bits == 4 && kl[i] < least) least = kl[i];
            if (layers[i].k_bits == 2 && kl[i] > most) most = kl[i];
        }
        CHECK(least > most && (round || most > 0) && (round < 10 || most <= 0));
    }
    for (i = 0; i < 62; i++) layers[i].k_bits = 2;
    CHECK(!spend_bits(&e, kl, low - 0.01, layers));
    close_tiny(&b, &e);
}

/* ---- 10, 12: files and commands ---- */

/* Words of the letters that the vocabularies have pairs of. */
static void write_text(const char *name, size_t size)
{
    char *text = (char *)room(size, 1);
    test_random r = { 12 };
    size_t i;
    for (i = 0; i < size; i++) text[i] = " etaoinshr etaoin.\nA"[random_below(&r, 20)];
    write_file(name, text, size);
    free(text);
}

static void test_corpus(void)
{
    engine e;
    corpus c;
    tokenizer t;
    mapped file;
    text input;
    int32_t *ids;
    int count, i, j, same = 1;
    TEST("a text becomes chunks of tokens");
    if (!engine_open(file_in("llama.gguf"), 1, &e)) abort();
    if (!map_file(file_in("text"), &file) || !tokenizer_create(&e.m.data, &t)) abort();
    input.at = (const char *)file.bytes;
    input.size = file.size;
    CHECK(tokenizer_encode(&t, input, 0, &ids, &count) && count > 2000 && count < 6000 && t.add_bos && t.bos == 256);
    tokenizer_free(&t);
    CHECK(corpus_read(&e, file_in("text"), 100, 3, 50, &c) && c.chunks == 3 && c.tokens == 50);
    for (i = 0; i < 3; i++) {
        CHECK(c.ids[50 * i] == 256);
        for (j = 1; j < 50; j++) same &= c.ids[50 * i + j] == ids[100 + 50 * i + j];
    }
    CHECK(same);
    free(c.ids);
    CHECK(corpus_read(&e, file_in("text"), 0, 0, 50, &c) && c.chunks == count / 50);
    free(c.ids);
    CHECK(corpus_read(&e, file_in("text"), count - 50, 1, 50, &c));
    free(c.ids);
    CHECK(!corpus_read(&e, file_in("text"), count - 49, 1, 50, &c) && !c.ids);
    CHECK(!corpus_read(&e, file_in("text"), 1 << 30, 0, 50, &c) && !corpus_read(&e, file_in("none"), 0, 0, 50, &c));
    unmap_file(&file);
    free(ids);
    engine_close(&e);
}

static void test_shifts(void)
{
    static const char *const wrong[] = { "x", "1,,2", "0", "-5", "5,x", "5 6", "99999999999", "none,5", "1;2" };
    calibration c;
    engine e;
    options o;
    char many[400] = "1";
    int i;
    TEST("lists of shifts");
    memset(&c, 0, sizeof c);
    memset(&o, 0, sizeof o);
    memset(&e, 0, sizeof e);
    c.o = &o;
    c.e = &e;
    for (i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++) {
        o.shifts = wrong[i];
        c.shift_count = 0;
        CHECK_MSG(!shifts_parse(&c), ("    %s\n", wrong[i]));
    }
    o.shifts = "none";
    c.shift_count = 0;
    CHECK(shifts_parse(&c) && !c.shift_count);
    o.shifts = "512,2048,1";
    CHECK(shifts_parse(&c) && c.shift_count == 3 && c.shifts[0] == 512 && c.shifts[1] == 2048 && c.shifts[2] == 1);
    for (i = 1; i < SHIFTS_MAX; i++) strcat(many, ",7");
    o.shifts = many;
    c.shift_count = 0;
    CHECK(shifts_parse(&c) && c.shift_count == SHIFTS_MAX);
    strcat(many, ",7");
    c.shift_count = 0;
    CHECK(!shifts_parse(&c));
    o.shifts = NULL;
    c.shift_count = 0;
    c.text.tokens = 500;
    e.m.context = 8000;
    CHECK(shifts_parse(&c) && c.shift_count >= 4 && c.shifts[0] <= 500);
    for (i = 1; i < c.shift_count; i++)   /* upwards, no gap wider than an octave */
        CHECK(c.shifts[i] > c.shifts[i - 1] && c.shifts[i] <= 2 * c.shifts[i - 1]);
    CHECK(c.shifts[c.shift_count - 1] >= 4000 && c.shifts[c.shift_count - 1] < 8000);
    c.shift_count = 0;
    e.m.context = 1 << 30;
    CHECK(shifts_parse(&c) && c.shift_count > 15);
    for (i = 0; i < c.shift_count; i++) CHECK(c.shifts[i] > 0 && c.shifts[i] < 1 << 30);
    c.shift_count = 0;
    c.text.tokens = 1;
    CHECK(shifts_parse(&c) && c.shift_count <= SHIFTS_MAX);
    c.shift_count = 0;
    e.m.context = 1;
    CHECK(shifts_parse(&c) && !c.shift_count);
}

/* The pairs of `calibrate` against those of one object that gets the rows of a forward pass of each chunk. */
static void check_pairs(engine *e, const options *o)
{
    calibration c;
    int layer, chunk, h;
    CHECK(calibrate(e, o, file_in("text"), &c));
    for (layer = 0; c.solved && layer < e->m.layers; layer++) {
        oscar_calib_desc desc;
        oscar_calib *sums;
        oscar_rotations *rotations;
        oscar_layer l = layer_of(&e->m, layer), own, other;
        oscar_rope turn;
        memset(&desc, 0, sizeof desc);
        memset(&turn, 0, sizeof turn);
        turn.dims = e->m.rope_dims;
        turn.frequencies = e->m.layer[layer].frequencies;
        turn.halves = e->m.rope_halves;
        desc.layers = &l;
        desc.layer_count = 1;
        desc.sink = o->sink;
        desc.recent = o->recent;
        desc.ropes = &turn;
        desc.shifts = c.shifts;
        desc.shift_count = c.shift_count;
        desc.shift_weight = 0.1;
        CHECK(!oscar_calib_create(&desc, &sums));
        for (chunk = 0; chunk < c.text.chunks; chunk++) {
            oscar_chunk rows;
            recorder r;
            record(e, c.text.ids + chunk * c.text.tokens, c.text.tokens, &r);
            memset(&rows, 0, sizeof rows);
            rows.tokens = c.text.tokens;
            rows.q = view_of(r.q[layer]);
            rows.k = view_of(r.k[layer]);
            rows.v = view_of(r.v[layer]);
            CHECK(!oscar_calib_add(sums, 0, &rows));
            record_free(&r);
        }
        CHECK(!oscar_calib_solve(sums, NULL, &rotations) && !oscar_rotations_layer(rotations, 0, &other));
        CHECK(!oscar_rotations_layer(c.solved[layer], 0, &own));
        for (h = 0; h < e->m.kv_heads; h++) {
            size_t n = (size_t)e->m.k_dim * (size_t)e->m.k_dim;
            CHECK(own.k[h].kind == OSCAR_DENSE && own.k[h].mean && difference(own.k[h].to, other.k[h].to, n) < 1e-3);
            CHECK(difference(own.k[h].mean, other.k[h].mean, (size_t)e->m.k_dim) < 1e-4);
        }
        oscar_rotations_destroy(rotations);
        oscar_calib_destroy(sums);
    }
    calibration_free(&c);
}

static void test_calibrate(void)
{
    static const char *const methods_tested[] = { "balanced", "oscar", "oscar-layer", "hadamard", "none" };
    char line[400];
    options o;
    engine e;
    oscar_rotations *rotations;
    oscar_layer layer;
    oscar_hooks silent;
    int i, four = 0, layers = 0;
    double bits;
    TEST("calibration takes the rows of every layer");
    memset(&silent, 0, sizeof silent);
    memset(&o, 0, sizeof o);
    o.chunk = 100;
    o.tokens = 400;
    o.sink = 8;
    o.recent = 16;
    o.shifts = "200,301";
    for (i = 1; i <= 3; i += 2) {
        if (!engine_open(file_in("llama.gguf"), i, &e)) abort();
        check_pairs(&e, &o);
        engine_close(&e);
    }
    TEST("files of every method are used");
    for (i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "calibrate @/llama.gguf @/text -o @/%s --method %s --chunk 150 --tokens 600 "
                 "--sink 8 --recent 16", methods_tested[i], methods_tested[i]);
        runs(line);
        CHECK(strstr(said, "3 layers, 600 tokens"));
        if (oscar_rotations_load(file_in(methods_tested[i]), &silent, &rotations)) { CHECK(!"file"); continue; }
        CHECK(oscar_rotations_count(rotations) == 3 && !strcmp(oscar_rotations_meta(rotations, "oscar.tokens"), "600"));
        CHECK(!strcmp(oscar_rotations_meta(rotations, "oscar.model"), "tiny"));
        CHECK(!oscar_rotations_layer(rotations, 2, &layer) && layer.kv_heads == 2 && layer.k_dim == 16);
        CHECK(layer.k_bits == 2 && layer.k_fit == (i ? OSCAR_CLIP : OSCAR_UNBIASED));
        oscar_rotations_destroy(rotations);
        snprintf(line, sizeof line, "ppl @/llama.gguf @/text --rotations @/%s --chunk 200 --chunks 2 --sink 8 "
                 "--recent 16", methods_tested[i]);
        runs(line);
        CHECK(figure("figure llm.kl.rotations") > 1e-4 && figure("figure llm.kl.rotations") < 2);
    }
    fails("ppl @/llama.gguf @/text --rotations @/oscar --method balanced --chunk 200", "not balanced");
    fails("ppl @/gemma.gguf @/text --rotations @/oscar --chunk 200", "layers");
    fails("ppl @/heads.gguf @/text --rotations @/balanced --chunk 100 --sink 8 --recent 8", "KV heads");
    TEST("calibration within a budget");
    runs("calibrate @/llama.gguf @/text -o @/budget --chunk 150 --tokens 600 --sink 8 --recent 16 --bits 4.2");
    bits = figure("600 tokens,");
    CHECK_MSG(bits > 3.4 && bits <= 4.2, ("    %g\n%s", bits, said));
    if (oscar_rotations_load(file_in("budget"), &silent, &rotations)) { CHECK(!"file"); return; }
    for (i = 0; i < oscar_rotations_count(rotations); i++, layers++)
        four += !oscar_rotations_layer(rotations, i, &layer) && layer.k_bits == 4;
    CHECK_MSG(layers == 3 && four > 0 && four < 3, ("    %d of %d\n%s", four, layers, said));
    oscar_rotations_destroy(rotations);
    fails("calibrate @/llama.gguf @/text -o @/x --chunk 150 --tokens 600 --sink 8 --recent 16 --bits 2", "--bits 2");
    runs("calibrate @/llama.gguf @/text -o @/short --method none --chunk 40 --tokens 200 --bits 4.9 --weights plain");
    CHECK_MSG(!strstr(said, "nan"), ("%s", said));
}

static void test_ppl(void)
{
    enum { CHUNK = 130, FROM = 48 };
    const tiny *t = &tiny_models[TINY_LLAMA];
    engine e;
    corpus c;
    double *logits = tiny_doubles((size_t)CHUNK * (size_t)t->vocabulary), nll = 0;
    int chunk, i, j;
    TEST("perplexity of a text");
    if (!engine_open(file_in("llama.gguf"), 2, &e)) abort();
    CHECK(corpus_read(&e, file_in("text"), 0, 3, CHUNK, &c));
    for (chunk = 0; chunk < 3; chunk++) {
        tiny_reference(t, &e.m.data, c.ids + chunk * CHUNK, CHUNK, logits);
        for (i = FROM; i < CHUNK - 1; i++) {
            double sum = 0, *row = logits + i * t->vocabulary;
            for (j = 0; j < t->vocabulary; j++) sum += exp(row[j]);
            nll += log(sum) - row[c.ids[chunk * CHUNK + i + 1]];
        }
    }
    free(c.ids);
    engine_close(&e);
    free(logits);
    runs("ppl @/llama.gguf @/text --chunk 130 --chunks 3 --sink 16 --recent 32 --method none --fit unbiased");
    CHECK(figure("figure llm.ppl.exact") > 1);
    CLOSE(log(figure("figure llm.ppl.exact")), nll / (3 * (CHUNK - 1 - FROM)), 1e-5);
    CLOSE(figure("figure llm.kl.exact"), 0, 0);
    CHECK(figure("figure llm.kl.none") > 1e-3 && figure("figure llm.top1.none") > 0.2);
    runs("ppl @/llama.gguf @/text --chunk 130 --chunks 3 --sink 16 --recent 32 --method none --fit unbiased --fold");
    CHECK(figure("figure llm.kl.none") > 1e-3);
    runs("ppl @/llama.gguf @/text --chunk 130 --method exact");
    CHECK(!strstr(said, "hadamard"));
    runs("chunks @/llama.gguf @/text --chunk 200 --sink 16 --recent 32");
    CHECK(figure("figure llm.chunking.bf16.128 ") < 1e-5 && figure("figure llm.chunking.bf16.1 ") < 1e-5);
    CHECK(figure("figure llm.chunking.int2.1 ") > 1e-5);
    runs("needle @/llama.gguf --lengths 900 --sink 16 --recent 32 --rotations @/oscar");
    CHECK(strstr(said, "bf16") && strstr(said, "oscar") && strstr(said, "of 10 right"));
    runs("needle @/llama.gguf @/text --lengths 900,1000 --sink 16 --recent 32 --method hadamard");
    CHECK(strstr(said, "figure llm.needle.900.hadamard.nll") && strstr(said, "figure llm.needle.1000.bf16.nll"));
}

/* ---- 12: dump, generate ---- */

static unsigned char *read_whole(const char *name, size_t *size)
{
    mapped file;
    unsigned char *out;
    *size = 0;
    if (!map_file(file_in(name), &file)) return NULL;
    out = (unsigned char *)room(file.size + 1, 1);
    memcpy(out, file.bytes, file.size);
    *size = file.size;
    unmap_file(&file);
    return out;
}

/* Compares one entry of a dump with rows. */
static void check_entry(const unsigned char *bytes, size_t size, int layer, char which, int tokens, int heads, int dim,
                        const float *rows)
{
    char wanted[120];
    unsigned long first, last;
    size_t header = (size_t)read64(bytes), count = (size_t)tokens * (size_t)heads * (size_t)dim;
    const char *at;
    float *values;
    snprintf(wanted, sizeof wanted, "\"layers.%d.%c\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],\"data_offsets\":[",
             layer, which, tokens, heads, dim);
    at = strstr((const char *)bytes + 8, wanted);
    CHECK_MSG(at && at < (const char *)bytes + 8 + header, ("    %s\n", wanted));
    if (!at || sscanf(at + strlen(wanted), "%lu,%lu]}", &first, &last) != 2) { CHECK(!"offsets"); return; }
    CHECK(last - first == 4 * count && 8 + header + last <= size && header % 8 == 0);
    values = floats(count);
    floats_f32(bytes + 8 + header + first, (int64_t)count, values);
    CHECK(difference(values, rows, count) < 1e-6);
    free(values);
}

static void test_dump(void)
{
    enum { TOKENS = 77 };
    engine e;
    corpus c;
    recorder r;
    size_t size;
    unsigned char *bytes;
    int i;
    TEST("dump writes the rows of every layer");
    if (!engine_open(file_in("odd.gguf"), 2, &e)) abort();
    CHECK(corpus_read(&e, file_in("text"), 0, 1, TOKENS, &c));
    record(&e, c.ids, TOKENS, &r);
    runs("dump @/odd.gguf @/text -o @/dump --tokens 77");
    bytes = read_whole("dump", &size);
    CHECK(bytes && size == 8 + read64(bytes) + 4 * TOKENS * 2 * (6 * 32 + 3 * 32 + 3 * 16));
    for (i = 0; bytes && i < 2; i++) {
        check_entry(bytes, size, i, 'q', TOKENS, 6, 32, r.q[i]);
        check_entry(bytes, size, i, 'k', TOKENS, 3, 32, r.k[i]);
        check_entry(bytes, size, i, 'v', TOKENS, 3, 16, r.v[i]);
    }
    free(bytes);
    runs("dump @/odd.gguf @/text -o @/dump1 --tokens 77 --layer 1");
    bytes = read_whole("dump1", &size);
    CHECK(bytes && size == 8 + read64(bytes) + 4 * TOKENS * (6 * 32 + 3 * 32 + 3 * 16));
    CHECK(bytes && !strstr((char *)bytes + 8, "layers.0"));
    if (bytes) check_entry(bytes, size, 1, 'v', TOKENS, 3, 16, r.v[1]);
    free(bytes);
    fails("dump @/odd.gguf @/text -o @/dump2 --layer 2", "2 layers");
    fails("dump @/odd.gguf @/text -o @/absent/dump --tokens 77", "cannot write");
    fails("dump @/odd.gguf @/text --tokens 77", "usage");
    record_free(&r);
    free(c.ids);
    engine_close(&e);
}

static void test_generate(void)
{
    enum { PROMPT = 9, MADE = 10 };
    engine e;
    tokenizer t;
    int32_t ids[PROMPT + 1 + MADE], *found;
    char expected[200] = "", *at = expected, first[4096];
    double margin = 100;
    int i, j, count, n;
    TEST("generation");
    if (!engine_open(file_in("llama.gguf"), 1, &e) || !tokenizer_create(&e.m.data, &t)) abort();
    CHECK(tokenizer_encode(&t, text_of("he sat on a tin roof"), 0, &found, &count));
    n = count < PROMPT ? count : PROMPT;
    CHECK(n == PROMPT || n == count);
    ids[0] = 256;
    memcpy(ids + 1, found, (size_t)n * sizeof *ids);
    free(found);
    {   /* the prompt's text is cut to its first tokens */
        char prompt[100] = "", line[300];
        for (i = 1, j = 0; i <= n; i++) j += tokenizer_piece(&t, ids[i], prompt + j, (int)sizeof prompt - 1 - j);
        for (i = 0; prompt[i]; i++) if (prompt[i] == ' ') prompt[i] = '_';
        for (i = n + 1; i < n + 1 + MADE; i++) {
            float *x = exact_forward(&e, ids, i), *logits = floats((size_t)e.m.vocabulary);
            int best = 0;
            double second = -1e30;
            CHECK(logits_of(&e, x + (size_t)(i - 1) * (size_t)e.m.width, 1, logits));
            for (j = 1; j < e.m.vocabulary; j++) if (logits[j] > logits[best]) best = j;
            for (j = 0; j < e.m.vocabulary; j++)
                if (j != best && (double)logits[j] > second) second = (double)logits[j];
            if ((double)logits[best] - second < margin) margin = (double)logits[best] - second;
            ids[i] = best;
            at += tokenizer_piece(&t, best, at, 100);
            free(x);
            free(logits);
        }
        snprintf(line, sizeof line, "generate @/llama.gguf %s --method exact --tokens %d --threads 2", prompt, MADE);
        runs(line);
        CHECK_MSG(margin < 0.05 || !strncmp(said + (strchr(said, '\n') ? strchr(said, '\n') + 1 - said : 0), expected,
                                            (size_t)(at - expected)) || strstr(said, expected),
                  ("    margin %g, wanted %s\n    said %s\n", margin, expected, said));
    }
    tokenizer_free(&t);
    engine_close(&e);
    runs("generate @/llama.gguf once_upon --temperature 0.9 --seed 5 --tokens 20");
    CHECK(strstr(said, "cache for") && strstr(said, "tokens/s"));
    snprintf(first, sizeof first, "%.15s", strstr(said, "prompt") ? strchr(strstr(said, "prompt"), '\n') : "");
    runs("generate @/llama.gguf once_upon --temperature 0.9 --seed 5 --tokens 20");
    CHECK(strstr(said, "prompt") && !strncmp(strchr(strstr(said, "prompt"), '\n'), first, strlen(first)));
    runs("generate @/gemma.gguf once_upon_a_time --tokens 400 --sink 8 --recent 16 --fold");
    runs("generate @/gemma.gguf once --chat --tokens 3 --chunk 5 --rotations @/none --method exact");
    runs("generate @/llama.gguf once --chat --tokens 90 --chunk 1 --rotations @/balanced --sink -1 --recent -1");
}

/* ---- 12: what users get wrong ---- */

static void test_options(void)
{
    static const char *const good[] = { "llm", "--sink", "-1", "ppl", "--fold", "model", "--bits", "2.5", "text", "-o",
        "out", "--fit", "clip", "--chat", "--threads", "3", "--seed", "7" };
    char *words[18];
    options o;
    int i;
    TEST("options");
    for (i = 0; i < 18; i++) words[i] = (char *)(uintptr_t)good[i];
    CHECK(options_parse(18, words, &o) && !strcmp(o.command, "ppl") && !strcmp(o.model, "model"));
    CHECK(!strcmp(o.text, "text") && o.prompt == o.text && !strcmp(o.out, "out") && !strcmp(o.fit, "clip"));
    CHECK(o.sink == -1 && o.fold && o.chat && o.threads == 3 && o.seed == 7 && o.layer == -1 && !o.tokens);
    CLOSE(o.bits, 2.5, 0);
    CHECK(options_parse(1, words, &o) && !o.command);
    TEST("wrong command lines are refused with a sentence");
    fails("ppl m t --bogus", "no option --bogus");
    fails("ppl m t --fold=1", "no option");
    fails("ppl m t --tokens", "--tokens needs a value");
    fails("ppl m t -o", "-o needs a value");
    fails("ppl m t --tokens x", "takes a number, not x");
    fails("ppl m t --tokens 12x", "takes a number");
    fails("ppl m t --tokens -2", "takes a number");
    fails("ppl m t --tokens 99999999", "takes a number");
    fails("ppl m t --tokens 99999999999999999999999", "takes a number");
    fails("ppl m t --bits 2,5", "takes a number");
    fails("ppl m t u", "too many");
    fails("sing m t", "no command sing");
    fails("ppl m", "usage");
    fails("ppl", "usage");
    fails("calibrate m t", "usage");
    fails("ppl @/absent.gguf @/text", "absent.gguf");
    fails("ppl @/text @/text", "GGUF");
    fails("ppl @ @/text", "regular file");
    fails("ppl @/llama.gguf @/absent", "absent");
    fails("ppl @/llama.gguf @/text --chunk 16000000", "too few");
    fails("ppl @/llama.gguf @/text --chunks 1000", "too few");
    fails("ppl @/llama.gguf @/text --method magic", "magic is not known");
    fails("ppl @/llama.gguf @/text --method balanced", "--rotations");
    fails("ppl @/llama.gguf @/text --method hadamard --fit loose", "--fit");
    fails("ppl @/llama.gguf @/text --page-mean maybe", "--page-mean");
    fails("ppl @/llama.gguf @/text --rotations @/absent", "absent");
    fails("ppl @/llama.gguf @/text --rotations @/text", "text");
    fails("ppl @/llama.gguf @/text --group 7 --chunk 100", "group");
    fails("ppl @/llama.gguf @/text --k-bits 3 --chunk 100", "argument");
    fails("calibrate @/llama.gguf @/text -o @/x --method magic", "magic is not known");
    fails("calibrate @/llama.gguf @/text -o @/x --shifts 5,x --chunk 100 --tokens 400", "--shifts");
    fails("calibrate @/llama.gguf @/text -o @/x --chunk 100 --tokens 400", "longer than sink + recent");
    fails("calibrate @/llama.gguf @/text -o @/absent/x --chunk 100 --tokens 400 --sink 8 --recent 16", "absent");
    fails("calibrate @/llama.gguf @/text -o @/x --weights heavy --chunk 100 --tokens 400", "--weights");
    fails("calibrate @/llama.gguf @/text -o @/x --method oscar --metric on --chunk 100 --tokens 400", "--metric on");
    fails("needle @/llama.gguf --lengths 5", "--lengths");
    fails("needle @/llama.gguf --lengths 100", "too short");
    fails("needle @/llama.gguf @/absent --lengths 900", "absent");
    fails("needle @/llama.gguf --lengths 512,x", "--lengths");
    fails("generate @/nobos.gguf ", "prompt is empty");
    fails("ppl @/llama.gguf @/text --gpu", "no cache that could be on a GPU");
    fails("generate @/llama.gguf once --gpu --driver @/absent", "absent");
}

static void test_odd_numbers(void)
{
    static const char *const lines[] = {
        "--fold", "ppl @/llama.gguf @/text --chunk -1", "ppl @/llama.gguf @/text --chunks -1 --chunk 100",
        "calibrate @/llama.gguf @/text -o @/x --chunk -1", "calibrate @/llama.gguf @/text -o @/x --tokens -1",
        "dump @/llama.gguf @/text -o @/x --tokens -1", "chunks @/llama.gguf @/text --chunk -1",
        "generate @/llama.gguf once --chunk -1", "generate @/llama.gguf once --tokens -1",
        "needle @/llama.gguf --lengths 100 --chunk -1", "ppl @/llama.gguf @/text --group -1 --chunk 100",
        "ppl @/llama.gguf @/text --threads -1 --chunk 100", "ppl @/llama.gguf @/text --chunk 1",
        "ppl @/llama.gguf @/text --chunk 2", "generate @/llama.gguf once --temperature nan --tokens 3",
        "calibrate @/llama.gguf @/text -o @/x --chunk 150 --tokens 600 --sink 8 --recent 16 --bits nan",
        "ppl @/llama.gguf @/text --clip-k nan --chunk 100", "dump @/llama.gguf @/text -o @/x --layer -1 --tokens 5",
        "calibrate @/llama.gguf @/text -o @/x --chunk 1 --method none --weights plain",
        "calibrate @/llama.gguf @/text -o @/x --method exact --chunk 150 --tokens 300 --sink 8 --recent 16",
        "generate @/more.gguf once --tokens 5", "generate @/few.gguf once --tokens 5",
        "ppl @/heads.gguf @/text --rotations @/balanced --chunk 100 --sink 8 --recent 8"
    };
    int i;
    TEST("odd numbers do not crash");
    for (i = 0; i < (int)(sizeof lines / sizeof *lines); i++) {
        int status = run_line(lines[i], 1);
        CHECK_MSG(status == RAN || status == REFUSED, ("    %s\n%.3000s\n", lines[i], said));
    }
}

/* ---- 6: files that are wrong ---- */

/* The smallest models that have every kind of tensor and key. */
static const tiny small[] = {
    { "llama", 2, 32, 2, 1, 16, 0, 32, 260, 512, { 0, TYPE_Q8_0, 0, 0 }, 2, 0, 0, 1, 3, 2, 0, 1e4, 0, 2, 3, 5,
      "linear", 0, 1 },
    { "gemma3", 2, 32, 2, 1, 16, 0, 32, 260, 512, { TYPE_F16, 0, 0, 0 }, 0, 1, 16, 0, 3, 2, 1, 1e4, 1e3, 2, 3, 5,
      "linear", 0, 1 },
    { "qwen3", 2, 32, 2, 1, 16, 32, 32, 260, 512, { 0, 0, TYPE_Q4_0, 0 }, 1, 1, 0, 0, 3, 2, 0, 1e4, 0, 0, 0, 0, NULL,
      0, 1 }
};

/* Opens the model in memory; the complaint is in `said`. */
static int opens(const gguf_build *b)
{
    catcher c;
    engine e;
    int good;
    catch_start(&c);
    good = open_bytes(b->at, b->size, 1, &e);
    catch_end(&c);
    if (good) engine_close(&e);
    return good;
}

static void test_missing(void)
{
    char (*names)[40] = (char (*)[40])room(512, 40);
    int m, i, what, count;
    TEST("each tensor absent, or of another shape or type");
    for (m = 0; m < 3; m++) {
        const tiny *t = &small[m];
        gguf_build b;
        count = tiny_build_named(t, NULL, &b, names);
        CHECK(opens(&b));
        free(b.at);
        for (i = 0; i < count; i++)
            for (what = FLAW_ABSENT; what <= FLAW_VECTOR; what++) {
                int vector = strstr(names[i], "norm") || strstr(names[i], "bias") || strstr(names[i], "rope_freqs");
                int optional = strstr(names[i], ".bias") || !strcmp(names[i], "output.weight")
                               || !strcmp(names[i], "rope_freqs.weight");
                flaw f = { NULL, 0, 0, 0, 0 };
                f.tensor = i;
                f.what = what;
                if (what == FLAW_VECTOR && !vector) continue;
                if (what == FLAW_ROWS && !strcmp(names[i], "token_embd.weight") && t->tied) continue;
                tiny_build(t, &f, &b);
                if (what == FLAW_ABSENT && optional) CHECK(opens(&b));
                else CHECK_MSG(!opens(&b) && (strstr(said, names[i]) || strstr(said, "output.weight")),
                               ("    %s, flaw %d: %s\n", names[i], what, said));
                free(b.at);
            }
    }
    free(names);
}

static void test_metadata(void)
{
    static const struct { int model; const char *key; int what, type; double value; const char *says; } cases[] = {
        { TINY_LLAMA, "general.architecture", FLAW_ABSENT, 0, 0, "architecture" },
        { TINY_LLAMA, "general.architecture", 0, GGUF_STRING, 0, "architecture three" },
        { TINY_LLAMA, "general.architecture", 0, GGUF_UINT32, 3, "architecture" },
        { TINY_LLAMA, "block_count", FLAW_ABSENT, 0, 0, "block_count" },
        { TINY_LLAMA, "block_count", 0, GGUF_UINT32, 0, "block_count" },
        { TINY_LLAMA, "block_count", 0, GGUF_UINT32, 4294967295.0, "block_count" },
        { TINY_LLAMA, "block_count", 0, GGUF_UINT32, 1024, "blk.3." },
        { TINY_LLAMA, "block_count", 0, GGUF_STRING, 0, "block_count" },
        { TINY_LLAMA, "block_count", 0, GGUF_FLOAT32, 2.5, "block_count" },
        { TINY_LLAMA, "embedding_length", 0, GGUF_UINT32, 0, "embedding_length" },
        { TINY_LLAMA, "embedding_length", FLAW_ABSENT, 0, 0, "embedding_length" },
        { TINY_LLAMA, "embedding_length", 0, GGUF_UINT32, 128, "fits the model" },
        { TINY_LLAMA, "embedding_length", 0, GGUF_UINT32, 1e9, "embedding_length" },
        { TINY_LLAMA, "attention.head_count", 0, GGUF_UINT32, 0, "head_count" },
        { TINY_LLAMA, "attention.head_count", FLAW_ABSENT, 0, 0, "head_count" },
        { TINY_LLAMA, "attention.head_count", 0, GGUF_INT32, 4294967295.0, "head_count" },
        { TINY_LLAMA, "attention.head_count_kv", 0, GGUF_UINT32, 0, "head_count_kv" },
        { TINY_LLAMA, "attention.head_count_kv", 0, GGUF_UINT32, 3, "not supported" },
        { TINY_LLAMA, "attention.head_count_kv", 0, GGUF_UINT32, 1, "attn_k" },
        { TINY_LLAMA, "attention.head_count_kv", FLAW_ABSENT, 0, 0, "attn_k" },
        { TINY_QWEN2, "attention.key_length", 0, GGUF_UINT32, 8, "key_length" },
        { TINY_QWEN2, "attention.key_length", 0, GGUF_UINT32, 24, "not supported" },
        { TINY_QWEN2, "attention.key_length", 0, GGUF_UINT32, 4096, "key_length" },
        { TINY_QWEN2, "attention.key_length", FLAW_ABSENT, 0, 0, "attn_q" },
        { TINY_BLOCKS, "attention.value_length", 0, GGUF_UINT32, 63, "not supported" },
        { TINY_BLOCKS, "attention.value_length", 0, GGUF_FLOAT32, NAN, "value_length" },
        { TINY_LLAMA, "feed_forward_length", 0, GGUF_UINT32, 0, "feed_forward" },
        { TINY_LLAMA, "feed_forward_length", 0, GGUF_FLOAT32, INFINITY, "feed_forward" },
        { TINY_LLAMA, "context_length", 0, GGUF_UINT32, 0, "context_length" },
        { TINY_LLAMA, "rope.freq_base", 0, GGUF_FLOAT32, 0, "out of range" },
        { TINY_LLAMA, "rope.freq_base", 0, GGUF_FLOAT32, NAN, "out of range" },
        { TINY_LLAMA, "rope.freq_base", 0, GGUF_FLOAT32, -5, "out of range" },
        { TINY_ODD_LLAMA, "rope.dimension_count", 0, GGUF_UINT32, 0, "dimension_count" },
        { TINY_ODD_LLAMA, "rope.dimension_count", 0, GGUF_UINT32, 34, "dimension_count" },
        { TINY_ODD_LLAMA, "rope.dimension_count", 0, GGUF_UINT32, 3, "not supported" },
        { TINY_ODD_LLAMA, "rope.scaling.type", 0, GGUF_STRING, 0, "type three" },
        { TINY_ODD_LLAMA, "rope.scaling.factor", 0, GGUF_FLOAT32, 0, "out of range" },
        { TINY_ODD_LLAMA, "rope.scaling.factor", 0, GGUF_FLOAT32, NAN, "out of range" },
        { TINY_GEMMA, "attention.sliding_window", 0, GGUF_FLOAT32, -1, "sliding_window" },
        { TINY_GEMMA, "attention.sliding_window", 0, GGUF_FLOAT32, 2.5, "sliding_window" },
        { TINY_GEMMA, "attention.sliding_window_pattern", 0, GGUF_FLOAT32, NAN, NULL },
        { TINY_GEMMA, "attention.sliding_window_pattern", 0, GGUF_FLOAT32, 1e30, NULL },
        { TINY_GEMMA, "attention.sliding_window_pattern", 0, GGUF_STRING, 0, NULL },
        { TINY_GEMMA, "general.name", FLAW_ABSENT, 0, 0, NULL },
        { TINY_GEMMA, "context_length", FLAW_ABSENT, 0, 0, NULL },
        { TINY_GEMMA, "rope.freq_base", FLAW_ABSENT, 0, 0, NULL }
    };
    int i;
    TEST("metadata that is absent or out of range");
    for (i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        flaw f = { NULL, 0, 0, -1, 0 };
        gguf_build b;
        int good;
        f.key = cases[i].key;
        f.what = cases[i].what;
        f.type = (uint32_t)cases[i].type;
        f.bits = f.type == GGUF_FLOAT32 ? bits_of_float((float)cases[i].value) : (uint64_t)cases[i].value;
        tiny_build(&tiny_models[cases[i].model], &f, &b);
        good = opens(&b);
        CHECK_MSG(cases[i].says ? !good && strstr(said, cases[i].says) : good,
                  ("    %s %g: wanted %s\n    said %s\n", cases[i].key, cases[i].value, cases[i].says, said));
        free(b.at);
    }
}

/* A forward pass of what was damaged and still opens; it may fail or give nonsense. */
static void use_damaged(engine *e)
{
    static const int32_t ids[5] = { 1, 256, 0, 77, 2 };
    float *x = (float *)calloc(5 * (size_t)e->m.width, sizeof *x);
    float *logits = (float *)calloc(5 * (size_t)e->m.vocabulary, sizeof *logits);
    oscar_layer *layers = (oscar_layer *)calloc((size_t)e->m.layers, sizeof *layers);
    exact_attention exact;
    cached_attention cached;
    tokenizer t;
    score s = { 0, 0, 0, 0 };
    memset(&exact, 0, sizeof exact);
    memset(&cached, 0, sizeof cached);
    exact.e = cached.e = e;
    cached.settings = layers;
    if (x && logits && layers) {
        if (forward(e, ids, 5, 0, attend_exact, &exact, x)) logits_of(e, x, 5, logits);
        if (forward(e, ids, 5, 0, attend_cached, &cached, x)) score_chunk(e, ids, 5, 0, x, x, &s, NULL);
        if (tokenizer_create(&e->m.data, &t)) tokenizer_free(&t);
    }
    free(x);
    free(logits);
    free(layers);
}

/* Up to three bytes from first to last - 1; huge: they make infinities, and NaNs with any bits below. */
static void damage(test_random *r, unsigned char *bytes, size_t first, size_t last, int huge)
{
    int changes = 1 + random_below(r, 3), i;
    for (i = 0; i < changes; i++) {
        size_t at = first + (size_t)random_below(r, (int)(last - first));
        uint32_t bits = random_u32(r);
        if (bits & 1) bytes[at] = (unsigned char)(bits >> 8 & 255);
        else if (bits & 2) bytes[at] = 255;
        else bytes[at] = (unsigned char)(bytes[at] ^ 1u << (bits >> 8 & 7));
        if (huge) {
            at &= ~(size_t)3;
            bytes[at] = (unsigned char)(bits >> 16 & 255);
            bytes[at + 2] |= 0x80;
            bytes[at + 3] |= 0x7f;
        }
    }
}

static void test_damage(void)
{
    test_random r = { 13 };
    int m, round, opened = 0;
    TEST("random bytes in the metadata and weights of a model");
    for (m = 0; m < 3; m++) {
        gguf_build b;
        gguf g;
        size_t data, list;
        tiny_build(&small[m], NULL, &b);
        CHECK(gguf_parse(b.at, b.size, &g));
        data = (size_t)(gguf_tensor(&g, "token_embd.weight")->data - b.at);
        list = (size_t)((const unsigned char *)gguf_tensor(&g, "token_embd.weight")->name.at - b.at);
        gguf_free(&g);
        for (round = 0; round < 1300; round++) {
            unsigned char *copy = (unsigned char *)room(b.size, 1);
            engine e;
            memcpy(copy, b.at, b.size);
            switch (random_below(&r, 4)) {
            case 0: damage(&r, copy, 0, 900, 0); break;           /* numbers of the model */
            case 1: damage(&r, copy, 0, data, 0); break;
            case 2: damage(&r, copy, list, data, 0); break;       /* shapes and types */
            default: damage(&r, copy, data, b.size, 1);
            }
            if (open_bytes(copy, b.size, 1, &e)) {
                opened++;
                use_damaged(&e);
                engine_close(&e);
            }
            free(copy);
        }
        free(b.at);
    }
    CHECK_MSG(opened > 1000 && opened < 3800, ("    %d opened\n", opened));
}

/* ---- real models ---- */

static unsigned char *read_data(const char *path, size_t *size)
{
    mapped file;
    unsigned char *out = NULL;
    if (map_file(path, &file)) {
        out = (unsigned char *)room(file.size, 1);
        memcpy(out, file.bytes, file.size);
        *size = file.size;
        unmap_file(&file);
    }
    return out;
}

/* Losses of the first tokens of each chunk of `tokens`. How many are run depends on the speed of this build, so that it
   takes a few seconds; LLM_TOKENS says otherwise. */
static void check_model(const char *name, const char *path, const char *ids_path, const char *nll_path, int tokens)
{
    size_t ids_size = 0, nll_size = 0;
    unsigned char *ids_bytes, *nll_bytes;
    int chunk, i, n = 4;
    double start, worst = 0;
    float *nll = floats((size_t)tokens);
    int32_t *ids;
    engine e;
    if (access(path, R_OK)) {
        SKIP(name, "no model, make models fetches it");
        free(nll);
        return;
    }
    TEST(name);
    ids_bytes = read_data(ids_path, &ids_size);
    nll_bytes = read_data(nll_path, &nll_size);
    CHECK(ids_bytes && nll_bytes && engine_open(path, 2, &e));
    if (!ids_bytes || !nll_bytes || !e.m.layer) abort();
    CHECK(ids_size >= 8 * (size_t)tokens && nll_size >= 8 * (size_t)(tokens - 1));
    ids = (int32_t *)room(2 * (size_t)tokens, sizeof *ids);
    for (i = 0; i < 2 * tokens; i++) ids[i] = (int32_t)read32(ids_bytes + 4 * i);
    start = seconds();
    free(exact_forward(&e, ids, n));
    start = (seconds() - start) / n;
    if (getenv("LLM_TOKENS")) n = atoi(getenv("LLM_TOKENS"));
    else n = 2 / start < 512 ? (int)(2 / start) : 512;
    if (n < 4) n = 4;
    if (n > tokens) n = tokens;
    for (chunk = 0; chunk < 2; chunk++) {
        float *x = exact_forward(&e, ids + chunk * tokens, n);
        score s = { 0, 0, 0, 0 };
        CHECK(score_chunk(&e, ids + chunk * tokens, n, 0, x, NULL, &s, nll));
        for (i = 0; i < n - 1; i++) {
            float wanted;
            floats_f32(nll_bytes + 4 * (chunk * (tokens - 1) + i), 1, &wanted);
            if (!(fabs((double)wanted - (double)nll[i]) <= worst)) worst = fabs((double)wanted - (double)nll[i]);
        }
        free(x);
    }
    CHECK_MSG(worst < 1e-3, ("    %g\n", worst));
    printf("%s: losses of 2 x %d tokens differ by up to %.2g\n", name, n - 1, worst);
    free(ids); free(ids_bytes); free(nll_bytes); free(nll);
    engine_close(&e);
}

/* ---- main ---- */

static void make_files(void)
{
    tiny other;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_llm.XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    if (!mkdtemp(folder)) abort();
    write_tiny("llama.gguf", &tiny_models[TINY_LLAMA]);
    write_tiny("odd.gguf", &tiny_models[TINY_ODD_LLAMA]);
    write_tiny("gemma.gguf", &tiny_models[TINY_GEMMA]);
    other = tiny_models[TINY_LLAMA];
    other.add_bos = 0;
    write_tiny("nobos.gguf", &other);
    other = tiny_models[TINY_LLAMA];
    other.tokens = 400;    /* tokens without embeddings */
    write_tiny("more.gguf", &other);
    other.tokens = 0;
    other.vocabulary = 280;
    write_tiny("few.gguf", &other);
    other = tiny_models[TINY_LLAMA];
    other.kv_heads = 4;    /* other shapes than the rotations files of the first have */
    write_tiny("heads.gguf", &other);
    write_text("text", 5000);
}

static void remove_files(void)
{
    static const char *const names[] = { "llama.gguf", "odd.gguf", "gemma.gguf", "nobos.gguf", "more.gguf", "few.gguf",
        "heads.gguf", "text", "balanced", "oscar", "oscar-layer", "hadamard", "none", "budget", "short", "dump",
        "dump1", "x" };
    int i;
    for (i = 0; i < (int)(sizeof names / sizeof *names); i++) remove(file_in(names[i]));
    CHECK(!rmdir(folder));
}

int main(void)
{
    llm_quiet = 1;
    setvbuf(stdout, NULL, _IOLBF, 4096);   /* what failed before a crash is seen */
    make_files();
    test_pool();
    test_products();
    test_forward();
    test_forward_errors();
    test_chunks();
    test_bytes();
    test_cached();
    test_exp();
    test_sums();
    test_scores();
    test_choice();
    test_fold();
    test_settings();
    test_losses();
    test_budget();
    test_corpus();
    test_shifts();
    test_calibrate();
    test_ppl();
    test_dump();
    test_generate();
    test_options();
    test_odd_numbers();
    test_missing();
    test_metadata();
    test_damage();
    remove_files();
    check_model("losses of SmolLM2-135M", "build/models/smollm2-135m.gguf", "tests/data/smollm2-ids.i32",
                "tests/data/smollm2-nll.f32", 2048);
    check_model("losses of Gemma-3-270M", "build/models/gemma3-270m.gguf", "tests/data/gemma3-ids.i32",
                "tests/data/gemma3-nll.f32", 1024);
    return test_end("test_llm");
}
