/* test_tokenizer.c - section 4 of examples/llm.c: cutting text into words, joining bytes and characters to tokens, the
   way back, tokens that are matched whole, and vocabularies that are wrong.

   Expected words and ids come from the Python packages `tokenizers` (byte-level BPE with the patterns of each rule) and
   `sentencepiece` (a model made of the same pieces). Where models and text are there, ids of real text are compared. */

#define LLM_NO_MAIN
#include "examples/llm.c"

#include "gguf_build.h"
#include "test.h"

/* ---- vocabularies in memory ---- */

/* A token as it stands in text; the file spells it otherwise. */
typedef struct entry { const char *name; size_t size; int type; float score; } entry;

/* What is absent from a file or wrong in it. */
enum {
    NO_MODEL = 1, NO_RULE = 2, NO_TOKENS = 4, NO_TYPES = 8, NO_SCORES = 16, NO_MERGES = 32, SHORT_TYPES = 64,
    SHORT_SCORES = 128, LONG_TYPES = 256, LONG_SCORES = 512, WRONG_IDS = 1024, ALL_FAULTS = 2048
};

enum { ENTRIES = 700, MERGES = 80 };

typedef struct vocabulary {
    const char *model, *rule;
    entry entries[ENTRIES];
    const char *merges[MERGES][2];   /* as they stand in text, too */
    int count, merge_count, space_prefix, faults;
} vocabulary;

static vocabulary v;   /* of the test that runs */

static void start_vocabulary(const char *model, const char *rule)
{
    memset(&v, 0, sizeof v);
    v.model = model;
    v.rule = rule;
}

static int add_sized(const char *name, size_t size, int type, float score)
{
    entry *e = &v.entries[v.count];
    e->name = name;
    e->size = size;
    e->type = type;
    e->score = score;
    return v.count++;
}

static int add(const char *name, int type, float score) { return add_sized(name, strlen(name), type, score); }

static int add_merge(const char *left, const char *right)
{
    v.merges[v.merge_count][0] = left;
    v.merges[v.merge_count][1] = right;
    return v.merge_count++;
}

/* 256 tokens of one byte: in GPT-2's alphabet of type 1, in SentencePiece's spelling of type 6. */
static void add_bytes(void)
{
    static char names[256];
    int i, type = strcmp(v.model, "llama") ? 1 : TOKEN_BYTE;
    for (i = 0; i < 256; i++) {
        names[i] = (char)i;
        add_sized(&names[i], 1, type, 0);
    }
}

static size_t spell_bytes(const char *name, size_t size, char *out)
{
    size_t i, n = 0;
    for (i = 0; i < size; i++) n += build_spell_byte((unsigned char)name[i], out + n);
    return n;
}

/* A token as the file has it. */
static void build_entry(gguf_build *b, const entry *e)
{
    int scored = !strcmp(v.model, "llama"), raw = e->type == TOKEN_CONTROL || (e->type == TOKEN_USER && !scored);
    char *out = (char *)malloc(3 * e->size + 8);
    size_t i, n = 0;
    if (!out) abort();
    if (scored && e->type == TOKEN_BYTE) n = (size_t)sprintf(out, "<0x%02X>", (unsigned char)e->name[0]);
    else if (!raw && !scored) n = spell_bytes(e->name, e->size, out);
    else for (i = 0; i < e->size; i++) {
        if (raw || e->name[i] != ' ' || e->type == TOKEN_USER) { out[n++] = e->name[i]; continue; }
        memcpy(out + n, "\xe2\x96\x81", 3);
        n += 3;
    }
    build_text(b, out, n);
    free(out);
}

static void build_merges(gguf_build *b)
{
    char out[256];
    int i;
    build_array(b, "tokenizer.ggml.merges", 8, (uint64_t)v.merge_count);
    for (i = 0; i < v.merge_count; i++) {
        size_t n = spell_bytes(v.merges[i][0], strlen(v.merges[i][0]), out);
        out[n++] = ' ';
        n += spell_bytes(v.merges[i][1], strlen(v.merges[i][1]), out + n);
        build_text(b, out, n);
    }
}

/* An array of 32-bit values of the tokens, of a wrong length if the bits `shorter` or `longer` are among the faults. */
static void build_numbers(gguf_build *b, const char *name, uint32_t type, int shorter, int longer)
{
    int i, count = v.count - !!(v.faults & shorter) + !!(v.faults & longer);
    build_array(b, name, type, (uint64_t)count);
    for (i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)v.entries[i].type;
        if (type == 6) memcpy(&bits, &v.entries[i].score, 4);
        build_int(b, 4, bits);
    }
}

static void build_vocabulary(gguf_build *b)
{
    static const int optional[] = { NO_MODEL, NO_RULE, NO_TOKENS, NO_TYPES, NO_SCORES, NO_MERGES };
    int i, keys = 10;
    uint64_t wrong = v.faults & WRONG_IDS ? 0xfffffff0u : 0;
    memset(b, 0, sizeof *b);
    for (i = 0; i < 6; i++) keys -= !!(v.faults & optional[i]);
    build_header(b, 3, 0, (uint64_t)keys);
    if (!(v.faults & NO_MODEL)) build_string(b, "tokenizer.ggml.model", v.model);
    if (!(v.faults & NO_RULE)) build_string(b, "tokenizer.ggml.pre", v.rule);
    if (!(v.faults & NO_TOKENS)) {
        build_array(b, "tokenizer.ggml.tokens", 8, (uint64_t)v.count);
        for (i = 0; i < v.count; i++) build_entry(b, &v.entries[i]);
    }
    if (!(v.faults & NO_TYPES)) build_numbers(b, "tokenizer.ggml.token_type", 5, SHORT_TYPES, LONG_TYPES);
    if (!(v.faults & NO_SCORES)) build_numbers(b, "tokenizer.ggml.scores", 6, SHORT_SCORES, LONG_SCORES);
    if (!(v.faults & NO_MERGES)) build_merges(b);
    build_number(b, "tokenizer.ggml.bos_token_id", 4, 1 + wrong);
    build_number(b, "tokenizer.ggml.eos_token_id", 4, 2 + wrong);
    build_number(b, "tokenizer.ggml.unknown_token_id", 4, wrong);
    build_number(b, "tokenizer.ggml.add_space_prefix", 7, (uint64_t)v.space_prefix);
}

/* The tokenizer of bytes that may be no file at all and are gone when this returns: in memory of exactly their size, so
   that reads behind them are found. */
static int open_bytes(const unsigned char *bytes, size_t size, tokenizer *out)
{
    gguf g;
    int good;
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, bytes, size);
    memset(out, 0, sizeof *out);
    good = gguf_parse(copy, size, &g);
    if (good) {
        good = tokenizer_create(&g, out);
        gguf_free(&g);
    }
    free(copy);
    return good;
}

static int open_vocabulary(tokenizer *out)
{
    gguf_build b;
    int good;
    build_vocabulary(&b);
    good = open_bytes(b.at, b.size, out);
    free(b.at);
    return good;
}

/* The text of ids: sets *size, the caller frees. */
static char *decode(const tokenizer *t, const int32_t *ids, int count, size_t *size)
{
    char *out = NULL;
    size_t room = 1, n = 0;
    int i;
    for (i = 0; i < count; i++) room += (size_t)tokenizer_piece(t, ids[i], NULL, 0);
    out = (char *)malloc(room);
    if (!out) abort();
    for (i = 0; i < count; i++) n += (size_t)tokenizer_piece(t, ids[i], out + n, (int)(room - n));
    *size = n;
    return out;
}

/* Do the ids of a text give it back, and are they ids? */
static int comes_back(const tokenizer *t, text s, int parse_special)
{
    int32_t *ids;
    int i, count, good = tokenizer_encode(t, s, parse_special, &ids, &count);
    size_t size = 0;
    char *back;
    if (!good) return 0;
    for (i = 0; i < count; i++) good &= ids[i] >= 0 && ids[i] < t->count;
    back = decode(t, ids, count, &size);
    good &= size == s.size && !memcmp(back, s.at, size);
    free(back);
    free(ids);
    return good;
}

/* Checks the ids of a text; prints those found if they are others. */
static void check_ids(const tokenizer *t, text s, int parse_special, const int *expected, int expected_count)
{
    int32_t *ids = NULL;
    int i, count = 0, good = tokenizer_encode(t, s, parse_special, &ids, &count);
    CHECK(good);
    good = count == expected_count;
    for (i = 0; good && i < count; i++) good = ids[i] == expected[i];
    CHECK_MSG(good, ("    %.*s: %d ids, expected %d\n", (int)s.size, s.at, count, expected_count));
    for (i = 0; !good && i < count; i++) printf("%s %d%s", i ? "" : "   ", (int)ids[i], i + 1 < count ? "" : "\n");
    free(ids);
}

/* ---- expected words and ids, by Python ---- */

/* Words with a | between them. */
typedef struct words { const char *rule, *split; } words;

typedef struct encoding { const char *rule; int space_prefix; const char *input; int count; int ids[32]; } encoding;

static const words word_tests[] = {
    { "gpt-2", "Hello|,| world|!| It|'s| 2024|." },
    { "gpt-2", "I|'ll| don|'t| we|'ve| THEY|'|RE| he|'d| i|'m| '|tis| '|S| '|LL| o|'|Reilly" },
    { "gpt-2", "a| | b|  | c| \t| d|\t|\t|e" },
    { "gpt-2", "x| 1| 22| | 333| 4444| 55555" },
    { "gpt-2", " | 1|a|2|b| | 3" },
    { "gpt-2", "line|\n|next| \n\n | more|\r\n\r|\n|end|\n" },
    { "gpt-2", "   " },
    { "gpt-2", "\n\n\t" },
    { "gpt-2", "tail|  " },
    { "gpt-2", "if| (|x| ==| 1|)| {|\n   | return| -|1|;|\n|}" },
    { "gpt-2", "a|.|b|,|c|;|d|...|e|---|f" },
    { "gpt-2", "$|1|,|234|.|56| (|50|%)| #|1" },
    { "gpt-2", "'" },
    { "gpt-2", "''|s| '|s|'| '|\305\277x" },
    { "gpt-2", "caf\303\251| na\303\257ve| Stra\303\237e| e|\314\201|a" },
    { "gpt-2", "\320\277\321\200\320\270| \327\251\327\234| \346\227\245\346\234\254|12|\350\252\236" },
    { "gpt-2", "\302\262\302\275| \342\205\247| \331\243\331\244|a" },
    { "gpt-2", "a|\302\240|b|\343\200\200|c|\342\200\203|\342\200\203|d|\302\205|e|\342\200\250|f" },
    { "gpt-2", "\360\237\221\215\360\237\217\275| ok| \360\237\207\251\360\237\207\252" },
    { "gpt-2", "\340\244\271|\340\244\277|\340\244\250|\340\245\215| \340\271\204\340\270\227" },
    { "gpt-2", "@|user|_|name| |\t|#|tag|\r|!!|\n|\n|\077\077| \n" },
    { "gpt-2", "\034\035| \013|\014|z|\342\200\213\357\273\277" },
    { "gpt-2", "A|1|B|22|C|333|D|4444" },
    { "gpt-2", "\360\240\200\200\360\235\224\230x| \360\220\227\200|\360\226\265\260" },
    { "gpt-2", "a|_|b| __|c|__| \"|q|\"| \077" },
    { "smollm", "Hello|,| world|!| It|'s| |2|0|2|4|." },
    { "smollm", "I|'ll| don|'t| we|'ve| THEY|'|RE| he|'d| i|'m| '|tis| '|S| '|LL| o|'|Reilly" },
    { "smollm", "a| | b|  | c| \t| d|\t|\t|e" },
    { "smollm", "x| |1| |2|2|  |3|3|3| |4|4|4|4| |5|5|5|5|5" },
    { "smollm", "  |1|a|2|b|  |3" },
    { "smollm", "line|\n|next| \n\n | more|\r\n\r|\n|end|\n" },
    { "smollm", "   " },
    { "smollm", "\n\n\t" },
    { "smollm", "tail|  " },
    { "smollm", "if| (|x| ==| |1|)| {|\n   | return| -|1|;|\n|}" },
    { "smollm", "a|.|b|,|c|;|d|...|e|---|f" },
    { "smollm", "$|1|,|2|3|4|.|5|6| (|5|0|%)| #|1" },
    { "smollm", "'" },
    { "smollm", "''|s| '|s|'| '|\305\277x" },
    { "smollm", "caf\303\251| na\303\257ve| Stra\303\237e| e|\314\201|a" },
    { "smollm", "\320\277\321\200\320\270| \327\251\327\234| \346\227\245\346\234\254|1|2|\350\252\236" },
    { "smollm", "\302\262|\302\275| |\342\205\247| |\331\243|\331\244|a" },
    { "smollm", "a|\302\240|b|\343\200\200|c|\342\200\203|\342\200\203|d|\302\205|e|\342\200\250|f" },
    { "smollm", "\360\237\221\215\360\237\217\275| ok| \360\237\207\251\360\237\207\252" },
    { "smollm", "\340\244\271|\340\244\277|\340\244\250|\340\245\215| \340\271\204\340\270\227" },
    { "smollm", "@|user|_|name| |\t|#|tag|\r|!!|\n|\n|\077\077| \n" },
    { "smollm", "\034\035| \013|\014|z|\342\200\213\357\273\277" },
    { "smollm", "A|1|B|2|2|C|3|3|3|D|4|4|4|4" },
    { "smollm", "\360\240\200\200\360\235\224\230x| \360\220\227\200|\360\226\265\260" },
    { "smollm", "a|_|b| __|c|__| \"|q|\"| \077" },
    { "llama-bpe", "Hello|,| world|!| It|'s| |202|4|." },
    { "llama-bpe", "I|'ll| don|'t| we|'ve| THEY|'RE| he|'d| i|'m| '|tis| '|S| '|LL| o|'Re|illy" },
    { "llama-bpe", "a| | b|  | c| \t| d|\t|\te" },
    { "llama-bpe", "x| |1| |22| | |333| |444|4| |555|55" },
    { "llama-bpe", " | |1|a|2|b| | |3" },
    { "llama-bpe", "line|\n|next| \n\n| | more|\r\n\r\n|end|\n" },
    { "llama-bpe", "   " },
    { "llama-bpe", "\n\n|\t" },
    { "llama-bpe", "tail|  " },
    { "llama-bpe", "if| (|x| ==| |1|)| {\n|   | return| -|1|;\n|}" },
    { "llama-bpe", "a|.b|,c|;d|...|e|---|f" },
    { "llama-bpe", "$|1|,|234|.|56| (|50|%)| #|1" },
    { "llama-bpe", "'" },
    { "llama-bpe", "''|s| '|s|'| '|\305\277x" },
    { "llama-bpe", "caf\303\251| na\303\257ve| Stra\303\237e| e|\314\201a" },
    { "llama-bpe", "\320\277\321\200\320\270| \327\251\327\234| \346\227\245\346\234\254|12|\350\252\236" },
    { "llama-bpe", "\302\262\302\275| |\342\205\247| |\331\243\331\244|a" },
    { "llama-bpe", "a|\302\240b|\343\200\200c|\342\200\203|\342\200\203d|\302\205e|\342\200\250f" },
    { "llama-bpe", "\360\237\221\215\360\237\217\275| ok| \360\237\207\251\360\237\207\252" },
    { "llama-bpe", "\340\244\271|\340\244\277\340\244\250|\340\245\215| \340\271\204\340\270\227" },
    { "llama-bpe", "@user|_name| |\t|#tag|\r|!!\n\n|\077\077| \n" },
    { "llama-bpe", "\034\035| \013|\014z|\342\200\213\357\273\277" },
    { "llama-bpe", "A|1|B|22|C|333|D|444|4" },
    { "llama-bpe", "\360\240\200\200\360\235\224\230x| \360\220\227\200|\360\226\265\260" },
    { "llama-bpe", "a|_b| __|c|__| \"|q|\"| \077" },
    { "qwen2", "Hello|,| world|!| It|'s| |2|0|2|4|." },
    { "qwen2", "I|'ll| don|'t| we|'ve| THEY|'RE| he|'d| i|'m| '|tis| '|S| '|LL| o|'Re|illy" },
    { "qwen2", "a| | b|  | c| \t| d|\t|\te" },
    { "qwen2", "x| |1| |2|2| | |3|3|3| |4|4|4|4| |5|5|5|5|5" },
    { "qwen2", " | |1|a|2|b| | |3" },
    { "qwen2", "line|\n|next| \n\n| | more|\r\n\r\n|end|\n" },
    { "qwen2", "   " },
    { "qwen2", "\n\n|\t" },
    { "qwen2", "tail|  " },
    { "qwen2", "if| (|x| ==| |1|)| {\n|   | return| -|1|;\n|}" },
    { "qwen2", "a|.b|,c|;d|...|e|---|f" },
    { "qwen2", "$|1|,|2|3|4|.|5|6| (|5|0|%)| #|1" },
    { "qwen2", "'" },
    { "qwen2", "''|s| '|s|'| '|\305\277x" },
    { "qwen2", "caf\303\251| na\303\257ve| Stra\303\237e| e|\314\201a" },
    { "qwen2", "\320\277\321\200\320\270| \327\251\327\234| \346\227\245\346\234\254|1|2|\350\252\236" },
    { "qwen2", "\302\262|\302\275| |\342\205\247| |\331\243|\331\244|a" },
    { "qwen2", "a|\302\240b|\343\200\200c|\342\200\203|\342\200\203d|\302\205e|\342\200\250f" },
    { "qwen2", "\360\237\221\215\360\237\217\275| ok| \360\237\207\251\360\237\207\252" },
    { "qwen2", "\340\244\271|\340\244\277\340\244\250|\340\245\215| \340\271\204\340\270\227" },
    { "qwen2", "@user|_name| |\t|#tag|\r|!!\n\n|\077\077| \n" },
    { "qwen2", "\034\035| \013|\014z|\342\200\213\357\273\277" },
    { "qwen2", "A|1|B|2|2|C|3|3|3|D|4|4|4|4" },
    { "qwen2", "\360\240\200\200\360\235\224\230x| \360\220\227\200|\360\226\265\260" },
    { "qwen2", "a|_b| __|c|__| \"|q|\"| \077" }
};
static const char *const merge_list[][2] = {
    { "t", "h" }, { " ", "th" }, { "a", "n" }, { " th", "e" }, { "an", "d" }, { "i", "s" }, { " ", "1" }, { "h", "e" },
    { "i", "n" }, { "\245", "\346" }, { "\346", "\227" }, { " ", "'" }, { " ", "s" }, { " ", " " }, { " ", "and" },
    { " ", "is" }, { " ", "\346\227" }, { "\234", "\254" }, { " 1", "2" }, { "\245\346", "\234\254" },
    { " \346\227", "\245\346\234\254" }, { "0", "2" }, { "2", "02" }, { "a", "f" }, { "a", "t" }, { "c", "af" },
    { "e", "n" }, { "h", "and" }, { "l", "l" }, { "l", "and" }, { "r", "e" }, { "\252", "\236" }, { "\303", "\251" },
    { "\350", "\252\236" }, { "\n", "\n" }, { " ", "an" }, { " ", "he" }, { " ", "in" }, { " ", "202" }, { " ", "caf" },
    { " ", "en" }, { " ", "hand" }, { " ", "\n\n" }, { "th", "e" }, { " th", "is" }, { " th", "in" }, { " th", "at" },
    { " the", "m" }, { " the", "n" }, { " the", "y" }, { " the", "re" }, { " s", "and" }, { " s", "he" },
    { "  ", " \n\n" }, { " is", "land" }, { " 12", "3" }
};
static const encoding merge_tests[] = {
    { "gpt-2", 0, "the thing and the island", 6,
      { 299, 301, 103, 270, 259, 310 } },
    { "gpt-2", 0, "They'll see 2024  12 123\n\nend", 17,
      { 84, 263, 121, 39, 284, 268, 101, 101, 294, 52, 32, 274, 311, 10, 10, 282, 100 } },
    { "gpt-2", 0, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 9,
      { 281, 288, 276, 289, 272, 165, 32, 230, 273 } },
    { "gpt-2", 0, "thethethe hhhand  sands'", 11,
      { 299, 299, 299, 32, 104, 104, 283, 32, 307, 115, 39 } },
    { "gpt-2", 0, "is it the then\077", 7,
      { 261, 32, 105, 116, 259, 304, 63 } },
    { "smollm", 0, "the thing and the island", 6,
      { 299, 301, 103, 270, 259, 310 } },
    { "smollm", 0, "They'll see 2024  12 123\n\nend", 24,
      { 84, 263, 121, 39, 284, 268, 101, 101, 32, 50, 48, 50, 52, 269, 49, 50, 32, 49, 50, 51, 10, 10, 282, 100 } },
    { "smollm", 0, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 9,
      { 281, 288, 276, 289, 272, 165, 32, 230, 273 } },
    { "smollm", 0, "thethethe hhhand  sands'", 11,
      { 299, 299, 299, 32, 104, 104, 283, 32, 307, 115, 39 } },
    { "smollm", 0, "is it the then\077", 7,
      { 261, 32, 105, 116, 259, 304, 63 } },
    { "llama-bpe", 0, "the thing and the island", 6,
      { 299, 301, 103, 270, 259, 310 } },
    { "llama-bpe", 0, "They'll see 2024  12 123\n\nend", 22,
      { 84, 263, 121, 39, 284, 268, 101, 101, 32, 278, 52, 32, 32, 49, 50, 32, 49, 50, 51, 290, 282, 100 } },
    { "llama-bpe", 0, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 9,
      { 281, 288, 276, 289, 272, 165, 32, 230, 273 } },
    { "llama-bpe", 0, "thethethe hhhand  sands'", 11,
      { 299, 299, 299, 32, 104, 104, 283, 32, 307, 115, 39 } },
    { "llama-bpe", 0, "is it the then\077", 7,
      { 261, 32, 105, 116, 259, 304, 63 } },
    { "qwen2", 0, "the thing and the island", 6,
      { 299, 301, 103, 270, 259, 310 } },
    { "qwen2", 0, "They'll see 2024  12 123\n\nend", 24,
      { 84, 263, 121, 39, 284, 268, 101, 101, 32, 50, 48, 50, 52, 32, 32, 49, 50, 32, 49, 50, 51, 290, 282, 100 } },
    { "qwen2", 0, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 9,
      { 281, 288, 276, 289, 272, 165, 32, 230, 273 } },
    { "qwen2", 0, "thethethe hhhand  sands'", 11,
      { 299, 299, 299, 32, 104, 104, 283, 32, 307, 115, 39 } },
    { "qwen2", 0, "is it the then\077", 7,
      { 261, 32, 105, 116, 259, 304, 63 } }
};
static const char *const piece_list[] = {
    "th", " th", "an", " the", "and", "is", " is", "12", "he", "in", " '", " s", " \346\227\245", " 12",
    " \346\227\245\346\234\254", " and", "af", "af\303\251", "caf\303\251", "land", " island", "02", "at", "en", "ll",
    "re", " 2", " h", "024", "end", "ing", " an", " he", " in", " ", "h", "e", "n", "t", "a", "d", "s", "i", "2", "l",
    "1", "'", "\346\227\245", "\346\234\254", "c", "f", "\303\251", "0", "3", "4", "g", "m", "r", "y", "\350\252\236"
};
static const encoding piece_tests[] = {
    { "llama", 0, "the thing and the island", 7,
      { 264, 300, 265, 294, 279, 267, 284 } },
    { "llama", 0, "They'll see 2024  12 123\n\nend", 16,
      { 92, 272, 322, 310, 288, 275, 300, 300, 290, 292, 5, 271, 277, 317, 4, 293 } },
    { "llama", 0, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 6,
      { 282, 278, 323, 276, 298, 312 } },
    { "llama", 0, "thethethe hhhand  sands'", 15,
      { 264, 300, 264, 300, 264, 300, 291, 299, 299, 268, 5, 305, 268, 305, 310 } },
    { "llama", 0, "is it the then\077", 8,
      { 269, 298, 306, 302, 267, 267, 301, 71 } },
    { "llama", 0, "  a   b    c", 7,
      { 5, 303, 6, 106, 6, 298, 313 } },
    { "llama", 0, "\n\n\nthe\n <td>  <td", 11,
      { 4, 3, 264, 300, 3, 298, 7, 5, 68, 302, 304 } },
    { "llama", 0, "\342\202\254 <unk> <s>", 13,
      { 234, 138, 180, 298, 68, 125, 301, 115, 70, 298, 68, 305, 70 } },
    { "llama", 0, " the", 1,
      { 267 } },
    { "llama", 0, "", 0,
      { 0 } },
    { "llama", 1, "the thing and the island", 6,
      { 267, 265, 294, 279, 267, 284 } },
    { "llama", 1, "They'll see 2024  12 123\n\nend", 17,
      { 298, 92, 272, 322, 310, 288, 275, 300, 300, 290, 292, 5, 271, 277, 317, 4, 293 } },
    { "llama", 1, "caf\303\251 \346\227\245\346\234\254\350\252\236 \346\227\245 \346\234\254", 7,
      { 298, 282, 278, 323, 276, 298, 312 } },
    { "llama", 1, "thethethe hhhand  sands'", 14,
      { 267, 264, 300, 264, 300, 291, 299, 299, 268, 5, 305, 268, 305, 310 } },
    { "llama", 1, "is it the then\077", 8,
      { 270, 298, 306, 302, 267, 267, 301, 71 } },
    { "llama", 1, "  a   b    c", 7,
      { 6, 303, 6, 106, 6, 298, 313 } },
    { "llama", 1, "\n\n\nthe\n <td>  <td", 12,
      { 298, 4, 3, 264, 300, 3, 298, 7, 5, 68, 302, 304 } },
    { "llama", 1, "\342\202\254 <unk> <s>", 14,
      { 298, 234, 138, 180, 298, 68, 125, 301, 115, 70, 298, 68, 305, 70 } },
    { "llama", 1, " the", 3,
      { 5, 264, 300 } },
    { "llama", 1, "", 0,
      { 0 } }
};

/* ---- words ---- */

static void start_bytes(const char *rule)
{
    size_t i;
    start_vocabulary("gpt2", rule);
    add_bytes();
    for (i = 0; i < sizeof merge_list / sizeof *merge_list; i++) {
        static char joined[MERGES][16];
        int k, known = 0;
        add_merge(merge_list[i][0], merge_list[i][1]);
        sprintf(joined[i], "%s%s", merge_list[i][0], merge_list[i][1]);
        for (k = 256; k < v.count; k++) known |= !strcmp(v.entries[k].name, joined[i]);
        if (!known) add(joined[i], 1, 0);
    }
}

static void check_words(const words *w)
{
    char input[256], found[256];
    size_t i, k, n = 0, end, out = 0;
    tokenizer t;
    text s;
    for (i = 0; w->split[i]; i++) if (w->split[i] != '|') input[n++] = w->split[i];
    s.at = input;
    s.size = n;
    start_bytes(w->rule);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    for (i = 0; i < n; i = end) {
        end = word_end(&t, s, i);
        CHECK(end > i && end <= n);
        if (end <= i || end > n) break;
        if (i) found[out++] = '|';
        for (k = i; k < end; k++) found[out++] = input[k];
    }
    found[out] = 0;
    CHECK_MSG(!strcmp(found, w->split), ("    %s: found %s, expected %s\n", w->rule, found, w->split));
    tokenizer_free(&t);
}

static void test_words(void)
{
    /* Not valid UTF-8: such bytes are neither letters nor numbers nor spaces, each for itself. */
    static const words invalid[] = {
        { "gpt-2", "a|\377\376|b| \300\200|c| \355\240\200| \364\220\200\200|z|\303" },
        { "smollm", "1|\342\226|1| \200|a" },
        { "llama-bpe", "a|\377\376|b| \300\200|c|\303|12" },
        { "qwen2", " \342\226\n|\340\200\257|x" }
    };
    size_t i;
    TEST("words are those of the patterns");
    for (i = 0; i < sizeof word_tests / sizeof *word_tests; i++) check_words(&word_tests[i]);
    TEST("bytes that are not UTF-8 are characters of no class");
    for (i = 0; i < sizeof invalid / sizeof *invalid; i++) check_words(&invalid[i]);
}

static void test_classes(void)
{
    static const struct { uint32_t code; int kind; } known[] = {
        { 0, CLASS_OTHER }, { 9, CLASS_SPACE }, { 13, CLASS_SPACE }, { 14, CLASS_OTHER }, { 28, CLASS_OTHER },
        { ' ', CLASS_SPACE }, { '0', CLASS_NUMBER }, { '9', CLASS_NUMBER }, { ':', CLASS_OTHER }, { 'A', CLASS_LETTER },
        { '_', CLASS_OTHER }, { 0x85, CLASS_SPACE }, { 0xa0, CLASS_SPACE }, { 0xaa, CLASS_LETTER },
        { 0xbd, CLASS_NUMBER }, { 0xd7, CLASS_OTHER }, { 0x301, CLASS_OTHER }, { 0x1680, CLASS_SPACE },
        { 0x180e, CLASS_OTHER }, { 0x1fff, CLASS_OTHER }, { 0x2000, CLASS_SPACE }, { 0x200a, CLASS_SPACE },
        { 0x200b, CLASS_OTHER }, { 0x2028, CLASS_SPACE }, { 0x2029, CLASS_SPACE }, { 0x202f, CLASS_SPACE },
        { 0x205f, CLASS_SPACE }, { 0x2167, CLASS_NUMBER }, { 0x3000, CLASS_SPACE }, { 0x3007, CLASS_NUMBER },
        { 0x4e00, CLASS_LETTER }, { 0xac00, CLASS_LETTER }, { 0xfeff, CLASS_OTHER }, { 0x1fbf9, CLASS_NUMBER },
        { 0x323af, CLASS_LETTER }
    };
    tokenizer t;
    size_t i;
    int code, counts[4] = { 0, 0, 0, 0 };
    TEST("classes of characters");
    start_bytes("gpt-2");
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    for (i = 0; i < sizeof known / sizeof *known; i++)
        CHECK_MSG(t.classes[known[i].code] == known[i].kind, ("    U+%04lX\n", (unsigned long)known[i].code));
    for (code = 0; code < CLASS_CODES; code++) counts[t.classes[code]]++;
    CHECK(counts[CLASS_SPACE] == 25);
    CHECK(counts[CLASS_LETTER] == 141028);   /* Unicode 16.0 */
    CHECK(counts[CLASS_NUMBER] == 1911);
    tokenizer_free(&t);
}

/* ---- ids ---- */

static void test_merges(void)
{
    size_t i;
    tokenizer t;
    TEST("ids of byte-level vocabularies");
    for (i = 0; i < sizeof merge_tests / sizeof *merge_tests; i++) {
        start_bytes(merge_tests[i].rule);
        if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
        check_ids(&t, text_of(merge_tests[i].input), 0, merge_tests[i].ids, merge_tests[i].count);
        CHECK(comes_back(&t, text_of(merge_tests[i].input), 0));
        tokenizer_free(&t);
    }
    TEST("a word that is a piece without merges counts where the rule says so");
    for (i = 0; i < 2; i++) {
        static const int apart[2] = { 'z', 'q' };
        int whole;
        start_bytes(i ? "llama-bpe" : "qwen2");
        whole = add("zq", 1, 0);
        if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
        check_ids(&t, text_of("zq"), 0, i ? &whole : apart, i ? 1 : 2);
        tokenizer_free(&t);
    }
    TEST("bytes without a token are dropped");
    start_bytes("gpt-2");
    v.entries[255].name = "unused";
    v.entries[255].size = 6;
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    {
        static const int joined[1] = { 288 };   /* of bytes 303 and 251, octal */
        check_ids(&t, text_of("\303\377\251"), 0, joined, 1);
        check_ids(&t, text_of("\377"), 0, joined, 0);
    }
    tokenizer_free(&t);
}

static void start_pieces(int space_prefix)
{
    static const char *const users[] = { "\n", "\n\n", "  ", "   ", "<td>" };
    size_t i;
    start_vocabulary("llama", "default");
    v.space_prefix = space_prefix;
    add("<unk>", TOKEN_UNKNOWN, 0);
    add("<s>", TOKEN_CONTROL, 0);
    add("</s>", TOKEN_CONTROL, 0);
    for (i = 0; i < sizeof users / sizeof *users; i++) add(users[i], TOKEN_USER, 0);
    add_bytes();
    for (i = 0; i < sizeof piece_list / sizeof *piece_list; i++) add(piece_list[i], 1, -(float)i);
}

static void test_scores(void)
{
    size_t i;
    tokenizer t;
    TEST("ids of vocabularies with scores");
    for (i = 0; i < sizeof piece_tests / sizeof *piece_tests; i++) {
        start_pieces(piece_tests[i].space_prefix);
        if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
        check_ids(&t, text_of(piece_tests[i].input), 0, piece_tests[i].ids, piece_tests[i].count);
        if (!piece_tests[i].space_prefix) CHECK(comes_back(&t, text_of(piece_tests[i].input), 0));
        tokenizer_free(&t);
    }
    TEST("of equal scores the leftmost pair is joined first");
    start_vocabulary("llama", "default");
    add("a", 1, 0); add("b", 1, 0); add("c", 1, 0); add("bc", 1, -1); add("ab", 1, -1);
    add("aa", 1, -2); add("aaaa", 1, -2);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    {
        static const int left[2] = { 4, 2 }, fours[4] = { 6, 6, 5, 0 };
        check_ids(&t, text_of("abc"), 0, left, 2);
        check_ids(&t, text_of("aaaaaaaaaaa"), 0, fours, 4);
    }
    tokenizer_free(&t);
}

static void test_unknown(void)
{
    static const int one[3] = { 1, 0, 1 }, none[2] = { 1, 1 };
    tokenizer t;
    TEST("characters without bytes become one unknown token");
    start_vocabulary("llama", "default");
    add("<unk>", TOKEN_UNKNOWN, 0);
    add("a", 1, 0);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    check_ids(&t, text_of("a\303\251\377zzza"), 0, one, 3);
    CHECK(tokenizer_piece(&t, 0, NULL, 0) == 0);
    tokenizer_free(&t);
    TEST("without an unknown token they are left out");
    v.faults = WRONG_IDS;
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    CHECK(t.bos == -1 && t.eos == -1 && t.unknown == -1 && t.add_bos == 0);
    check_ids(&t, text_of("a\303\251zza"), 0, none, 2);
    tokenizer_free(&t);
}

static void test_special(void)
{
    static const char input[] = "<s>the <td></s>the";
    int control, longer, i;
    tokenizer t;
    text s = text_of(input);
    TEST("control tokens are looked for on request, each part of the text gets its space");
    start_pieces(1);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    {
        static const int parsed[] = { 1, 267, 298, 7, 2, 267 };
        check_ids(&t, s, 1, parsed, 6);
        CHECK(t.bos == 1 && t.eos == 2 && t.add_bos == 1);
        CHECK(tokenizer_piece(&t, 1, NULL, 0) == 0 && tokenizer_piece(&t, 7, NULL, 0) == 4);
    }
    tokenizer_free(&t);
    start_pieces(0);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    CHECK(comes_back(&t, s, 0));
    CHECK(!comes_back(&t, s, 1));
    tokenizer_free(&t);
    TEST("the longest of the tokens that start at one place, then the next place");
    for (i = 0; i < 2; i++) {
        start_bytes(i ? "smollm" : "llama-bpe");
        control = add("<|im_end|>", TOKEN_CONTROL, 0);
        longer = add("<|im_end|>!", TOKEN_CONTROL, 0);
        add("<|im_end|>", TOKEN_CONTROL, 0);
        add("<tool", TOKEN_USER, 0);
        add("", TOKEN_USER, 0);
        if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
        {
            int parsed[] = { 'a', 0, 0, '<', 0, '|', '<', 't' };
            int plain[] = { '<', '|', 'i', 'm', '_', 282, 'd', '|', '>' };
            parsed[1] = longer;
            parsed[2] = control;
            parsed[4] = longer + 2;
            check_ids(&t, text_of("a<|im_end|>!<|im_end|><<tool|<t"), 1, parsed, 8);
            check_ids(&t, text_of("<|im_end|>"), 0, plain, 9);
            check_ids(&t, text_of("<|im_end|>"), 1, &control, 1);
        }
        tokenizer_free(&t);
    }
}

static void test_piece(void)
{
    char out[8] = "#######";
    tokenizer t;
    TEST("pieces are cut to the room there is");
    start_pieces(0);
    if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
    CHECK(tokenizer_piece(&t, 267, out, 2) == 4 && !memcmp(out, " t#", 3));
    CHECK(tokenizer_piece(&t, 267, out, 8) == 4 && !memcmp(out, " the#", 5));
    CHECK(tokenizer_piece(&t, 8 + 200, out, 8) == 1 && out[0] == (char)200);
    CHECK(tokenizer_piece(&t, 267, NULL, 0) == 4 && tokenizer_piece(&t, 267, NULL, -1) == 4);
    CHECK(tokenizer_piece(&t, -1, out, 8) == 0 && tokenizer_piece(&t, t.count, out, 8) == 0);
    CHECK(tokenizer_piece(&t, 0x7fffffff, out, 8) == 0 && tokenizer_piece(&t, -0x7fffffff, out, 8) == 0);
    tokenizer_free(&t);
}

/* ---- the way back ---- */

/* Bytes of all kinds, or mostly those that the merges know. */
static void random_bytes(test_random *r, char *out, int n)
{
    static const char often[] = "the and is 12 \n\303\251\346\227\245";
    int i, kind = random_below(r, 3);
    for (i = 0; i < n; i++)
        if (kind && random_below(r, 8)) out[i] = often[random_below(r, (int)sizeof often - 1)];
        else out[i] = (char)random_below(r, 256);
}

static void test_random_bytes(void)
{
    static const char *const rules[] = { "gpt-2", "smollm", "llama-bpe", "qwen2", "llama" };
    static char bytes[200000];
    test_random r = { 5 };
    int rule, i;
    tokenizer t;
    text s;
    TEST("random bytes come back");
    for (rule = 0; rule < 5; rule++) {
        if (rule < 4) start_bytes(rules[rule]);
        else start_pieces(0);
        if (!open_vocabulary(&t)) { CHECK(!"the vocabulary opens"); return; }
        for (i = 0; i < 500; i++) {
            s.at = bytes;
            s.size = (size_t)random_below(&r, 200);
            random_bytes(&r, bytes, (int)s.size);
            CHECK(comes_back(&t, s, i & 1 && rule < 4));
        }
        s.size = sizeof bytes;   /* one word of 200000 letters, then one of spaces, then of line ends */
        for (i = 0; i < 3; i++) {
            memset(bytes, "t \n"[i], sizeof bytes);
            CHECK(comes_back(&t, s, 1));
        }
        tokenizer_free(&t);
    }
}

/* ---- wrong vocabularies ---- */

/* Opens what may fail, uses what opens. Returns whether it did. */
static int survives(const unsigned char *bytes, size_t size)
{
    static const char input[] = "the then 12 <s> caf\303\251  \n\n\377 <td> ab\342\226\201";
    tokenizer t;
    int32_t *ids;
    int i, count, opened = open_bytes(bytes, size, &t);
    if (!opened) {
        CHECK(!t.pieces && !t.names && !t.count);
        return 0;
    }
    for (i = 0; i < 2; i++) {
        int k, good = tokenizer_encode(&t, text_of(input), i, &ids, &count);
        size_t decoded;
        CHECK(good);
        for (k = 0; k < count; k++) CHECK(ids[k] >= 0 && ids[k] < t.count);
        free(decode(&t, ids, count, &decoded));
        free(ids);
    }
    tokenizer_free(&t);
    return 1;
}

static int survives_faults(int faults)
{
    gguf_build b;
    int opened;
    v.faults = faults;
    build_vocabulary(&b);
    opened = survives(b.at, b.size);
    free(b.at);
    return opened;
}

static void test_absent(void)
{
    static char giant[LONGEST_PIECE + 1];
    TEST("lists that are absent or of the wrong length");
    llm_quiet = 1;
    start_bytes("gpt-2");
    CHECK(survives_faults(0) && survives_faults(NO_TYPES) && survives_faults(NO_SCORES | NO_RULE | NO_TYPES));
    CHECK(survives_faults(SHORT_SCORES) && survives_faults(WRONG_IDS));   /* scores are not used */
    CHECK(!survives_faults(NO_MODEL) && !survives_faults(NO_TOKENS) && !survives_faults(NO_MERGES));
    CHECK(!survives_faults(SHORT_TYPES) && !survives_faults(LONG_TYPES));
    start_pieces(1);
    CHECK(survives_faults(0) && survives_faults(NO_TYPES | NO_MERGES | NO_RULE) && survives_faults(WRONG_IDS));
    CHECK(!survives_faults(NO_SCORES) && !survives_faults(SHORT_SCORES) && !survives_faults(LONG_SCORES));
    CHECK(!survives_faults(SHORT_TYPES) && !survives_faults(LONG_TYPES));
    TEST("no tokens, kinds and rules that are not known");
    start_vocabulary("gpt2", "gpt-2");
    CHECK(!survives_faults(0));
    start_vocabulary("llama", "");
    CHECK(!survives_faults(0));
    start_bytes("no such rule");
    CHECK(!survives_faults(0));
    start_bytes("gpt-2");
    v.model = "bert";
    CHECK(!survives_faults(0));
    TEST("a piece as long as allowed, and one byte more");
    memset(giant, 't', sizeof giant);
    start_pieces(0);
    add_sized(giant, LONGEST_PIECE, 1, 0);
    CHECK(survives_faults(0));
    v.entries[v.count - 1].size++;
    CHECK(!survives_faults(0));
    llm_quiet = 0;
}

static void test_odd_entries(void)
{
    static const char *const names[] = { "", "", "a", "a", "t", "th", "\377", "\342\226", "<0x", "<0x41>", "<0xZZ>" };
    static const int types[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7, 1000 };
    size_t i, k;
    volatile float zero = 0;
    TEST("empty, equal and broken pieces of all types, scores that are no numbers");
    for (k = 0; k < 2; k++) {
        if (k) start_pieces(0);
        else start_bytes("smollm");
        for (i = 0; i < 110; i++) {
            float scores[5] = { 0, 1e30f, 0, 0, 0 };
            scores[2] = 1 / zero;
            scores[3] = -1 / zero;
            scores[4] = zero / zero;
            add(names[i % 11], types[i % 10], scores[i % 5]);
        }
        CHECK(survives_faults(0));
    }
    TEST("merges of nothing, into nothing, twice");
    start_bytes("gpt-2");
    add_merge("", "");
    add_merge("", "t");
    add_merge("t", "");
    add_merge("t", "h");
    add_merge("x", "y");
    add_merge("xx", "x");
    add_merge("nowhere", "near");
    CHECK(survives_faults(0));
    start_vocabulary("gpt2", "gpt-2");
    add("x", 1, 0);
    add_merge("x", "x");
    CHECK(survives_faults(0));
}

/* Every way to cut a small file, and flipped bits. */
static void test_damaged(void)
{
    gguf_build b;
    test_random r = { 9 };
    size_t size;
    int i, kind, opened = 0;
    TEST("damaged files do no harm");
    llm_quiet = 1;
    for (kind = 0; kind < 2; kind++) {
        if (kind) start_pieces(1);
        else start_bytes("llama-bpe");
        build_vocabulary(&b);
        for (size = 0; size < b.size; size += 1 + b.size / 700) CHECK(!survives(b.at, size));
        for (i = 0; i < 1000; i++) {
            size_t at = (size_t)random_u32(&r) % (i & 1 ? b.size : 400);
            unsigned char kept = b.at[at];
            b.at[at] ^= (unsigned char)(1u << random_below(&r, 8));
            opened += survives(b.at, b.size);
            b.at[at] = kept;
        }
        free(b.at);
    }
    CHECK(opened > 100);
    llm_quiet = 0;
}

/* ---- real models ---- */

/* ids of the first of the text against those in a file: chunks of `chunk` ids, where `bos` >= 0 stands for the first of
   each. */
static void check_model(const char *name, const char *model, const char *reference, int chunk, int bos)
{
    static const char text_path[] = "examples/data/wikitext-test.txt";
    mapped file, expected, input;
    gguf g;
    tokenizer t;
    text s;
    int32_t *ids = NULL;
    int i, n, count = 0, wrong = 0;
    if (access(model, R_OK)) { SKIP(name, "the model is not there"); return; }
    if (access(text_path, R_OK) || access(reference, R_OK)) { SKIP(name, "no text or ids"); return; }
    TEST(name);
    if (!map_file(model, &file)) { CHECK(!"the model opens"); return; }
    if (!map_file(text_path, &input) || !map_file(reference, &expected)) { CHECK(!"the text opens"); return; }
    if (!gguf_parse(file.bytes, file.size, &g)) { CHECK(!"the model is read"); return; }
    if (!tokenizer_create(&g, &t)) { CHECK(!"the vocabulary is read"); return; }
    s.at = (const char *)input.bytes;
    s.size = input.size;
    CHECK(tokenizer_encode(&t, s, 0, &ids, &count));
    n = (int)(expected.size / 4);
    CHECK_MSG(count >= n, ("    %d ids, expected %d\n", count, n));
    for (i = 0; i < n && i < count; i++) {
        int32_t id = (int32_t)read32(expected.bytes + 4 * i);
        wrong += id != (bos >= 0 && i % chunk == 0 ? bos : ids[i]);
    }
    CHECK_MSG(!wrong, ("    %d of %d ids differ\n", wrong, n));
    CHECK(comes_back(&t, s, 0));
    free(ids);
    tokenizer_free(&t);
    gguf_free(&g);
    unmap_file(&file);
    unmap_file(&input);
    unmap_file(&expected);
}

int main(void)
{
    test_words();
    test_classes();
    test_merges();
    test_scores();
    test_unknown();
    test_special();
    test_piece();
    test_random_bytes();
    test_absent();
    test_odd_entries();
    test_damaged();
    check_model("ids of SmolLM2-135M", "build/models/smollm2-135m.gguf", "tests/data/smollm2-ids.i32", 2048, -1);
    check_model("ids of Gemma-3-270M", "build/models/gemma3-270m.gguf", "tests/data/gemma3-ids.i32", 1024, 2);
    return test_end("test_tokenizer");
}
