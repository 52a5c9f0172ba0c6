/* C streams: every pair of operations, and every three of the commonest, on a stream of every mode; modes of opening;
   buffers; streams that get another file; streams over processes. */
#include "conformance.h"
#include <signal.h>
#include <stdio_ext.h>

#define LENGTH 10
#define LONG 100000

/* The checked forms, which compilers call for `fread` and its like. */
size_t __fread_chk(void *target, size_t room, size_t size, size_t count, FILE *stream);
size_t __fread_unlocked_chk(void *target, size_t room, size_t size, size_t count, FILE *stream);
char *__fgets_chk(char *target, size_t room, int size, FILE *stream);
char *__fgets_unlocked_chk(char *target, size_t room, int size, FILE *stream);
int __fprintf_chk(FILE *stream, int flag, const char *format, ...);

static char room[LONG + 100], buffer[LONG];

/* -- Operations */

/* Puts back as many bytes as were just read: what more are, and where they are, is not defined. */
static long put_back(FILE *stream, const char *bytes) {
    long result = 0;
    for (const char *byte = bytes; *byte; byte++)
        if (getc(stream) == EOF) return -2;
    while (*bytes && result >= 0) result = ungetc(*bytes++, stream);
    return result;
}

static long got(size_t count) {
    note_bytes(room, count < 100 ? count : 100);
    return count;
}

static long line(const char *text) {
    if (text == NULL) return -2;
    note_bytes(text, strlen(text));
    return 0;
}

static long whole_line(FILE *stream, int end) {
    char *text = NULL;
    size_t size = 0;
    ssize_t length = getdelim(&text, &size, end, stream);
    if (length > 0) note_bytes(text, length);
    free(text);
    return length;
}

static long scanned(FILE *stream) {
    char word[20] = "";
    int count = fscanf(stream, "%3[a-d]", word);
    note("'%s'", word);
    return count;
}

static long there_and_back(FILE *stream) {
    fpos_t place;
    if (fgetpos(stream, &place) != 0) return -1;
    note("got %d", getc(stream));
    return fsetpos(stream, &place);
}

static long from_start(FILE *stream) {
    rewind(stream);
    return ftell(stream);
}

static long cleared(FILE *stream) {
    clearerr(stream);
    return feof(stream) | ferror(stream);
}

static long written_below(FILE *stream) {
    fflush(stream);
    note("wrote %zd", write(fileno(stream), "()", 2));
    return fseek(stream, 1, SEEK_SET);
}

/* What an operation does to a stream: without placing between them, input and output may not follow each other. */
enum effect { NEITHER, INPUT, OUTPUT, TO_END, PLACING, FIRST };

#define COMMON_ACTS(act) \
    act(getc, INPUT, getc(stream)) \
    act(ungetc, INPUT, put_back(stream, "u")) \
    act(fread_all, TO_END, got(fread(room, 1, 3 * LENGTH, stream))) \
    act(putc, OUTPUT, putc('P', stream)) \
    act(fputs, OUTPUT, fputs("PUT", stream)) \
    act(fflush, PLACING, fflush(stream)) \
    act(fseek_here, PLACING, fseek(stream, 0, SEEK_CUR)) \
    act(fseek_back, NEITHER, fseek(stream, -1, SEEK_CUR)) \
    act(ftell, NEITHER, ftell(stream))

#define MORE_ACTS(act) \
    act(ungetc_many, INPUT, put_back(stream, "321")) \
    act(ungetc_same, INPUT, put_back(stream, "a")) \
    act(ungetc_end, NEITHER, ungetc(EOF, stream)) \
    act(fgetc, INPUT, fgetc(stream)) \
    act(getc_unlocked, INPUT, getc_unlocked(stream)) \
    act(getw, INPUT, getw(stream)) \
    act(fread_some, INPUT, got(fread(room, 1, 4, stream))) \
    act(fread_records, INPUT, got(3 * fread(room, 3, 4, stream))) \
    act(fread_none, NEITHER, fread(room, 1, 0, stream)) \
    act(fread_unlocked, INPUT, got(fread_unlocked(room, 1, 3, stream))) \
    act(fread_chk, INPUT, got(__fread_chk(room, sizeof room, 1, 3, stream))) \
    act(fread_unlocked_chk, INPUT, got(__fread_unlocked_chk(room, sizeof room, 1, 3, stream))) \
    act(fgets, INPUT, line(fgets(room, 5, stream))) \
    act(fgets_long, TO_END, line(fgets(room, 50, stream))) \
    act(fgets_unlocked, INPUT, line(fgets_unlocked(room, 5, stream))) \
    act(fgets_chk, INPUT, line(__fgets_chk(room, sizeof room, 5, stream))) \
    act(fgets_unlocked_chk, INPUT, line(__fgets_unlocked_chk(room, sizeof room, 5, stream))) \
    act(getline, TO_END, whole_line(stream, '\n')) \
    act(getdelim, INPUT, whole_line(stream, 'c')) \
    act(fscanf, INPUT, scanned(stream)) \
    act(putc_unlocked, OUTPUT, putc_unlocked('U', stream)) \
    act(putw, OUTPUT, putw(0x41424344, stream)) \
    act(fputs_unlocked, OUTPUT, fputs_unlocked("UN", stream)) \
    act(fwrite, OUTPUT, fwrite("12345", 1, 5, stream)) \
    act(fwrite_records, OUTPUT, fwrite("12345678", 4, 2, stream)) \
    act(fwrite_none, NEITHER, fwrite("12345", 0, 5, stream)) \
    act(fwrite_unlocked, OUTPUT, fwrite_unlocked("678", 1, 3, stream)) \
    act(fprintf, OUTPUT, fprintf(stream, "%d-%s", 12, "x")) \
    act(fprintf_chk, OUTPUT, __fprintf_chk(stream, 1, "%d", 77)) \
    act(fflush_unlocked, PLACING, fflush_unlocked(stream)) \
    act(fflush_all, PLACING, fflush(NULL)) \
    act(fseek_set, PLACING, fseek(stream, 2, SEEK_SET)) \
    act(fseek_end, PLACING, fseek(stream, 0, SEEK_END)) \
    act(fseek_before_end, PLACING, fseek(stream, -3, SEEK_END)) \
    act(fseek_behind, PLACING, fseeko(stream, 5, SEEK_END)) \
    act(fseek_negative, NEITHER, fseek(stream, -1, SEEK_SET)) \
    act(fseek_unknown, NEITHER, fseek(stream, 0, 9)) \
    act(rewind, PLACING, from_start(stream)) \
    act(fgetpos, INPUT, there_and_back(stream)) \
    act(clearerr, NEITHER, cleared(stream)) \
    act(setvbuf_none, FIRST, setvbuf(stream, NULL, _IONBF, 0)) \
    act(setvbuf_line, FIRST, setvbuf(stream, buffer, _IOLBF, 7)) \
    act(setvbuf_full, FIRST, setvbuf(stream, buffer, _IOFBF, 7)) \
    act(setvbuf_unknown, FIRST, setvbuf(stream, NULL, 9, 0)) \
    act(fpending, NEITHER, __fpending(stream)) \
    act(freadable, NEITHER, __freadable(stream) * 2 + __fwritable(stream)) \
    act(freading, NEITHER, (__freading(stream) != 0) * 2 + (__fwriting(stream) != 0)) \
    act(fpurge, NEITHER, (__fpurge(stream), 0)) \
    act(write_below, PLACING, written_below(stream)) \
    act(truncate_below, NEITHER, ftruncate(fileno(stream), 3))

#define DEFINE(name, effect, expression) \
    static long act_##name(FILE *stream) { return expression; }
COMMON_ACTS(DEFINE)
MORE_ACTS(DEFINE)
#define ENTRY(name, effect, expression) {#name, effect, act_##name},
static const struct act {
    const char *name;
    enum effect effect;
    long (*play)(FILE *stream);
} common_acts[] = {COMMON_ACTS(ENTRY)}, acts[] = {COMMON_ACTS(ENTRY) MORE_ACTS(ENTRY)};

static void play(const struct act *act, FILE *stream) {
    errno = 0;
    long result = act->play(stream);
    int error = errno;
    note("%ld", result);
    if (result == -1 && error != 0) note("%s", error_name(error));
    if (feof(stream)) note("end");
    if (ferror(stream)) note("error");
    note(";");
}

static void note_file(const char *name) {
    static char content[LONG + 100];
    int file = open(name, O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, content, sizeof content);
    note("%s of %zd", name, length);
    if (length > 0) note_bytes(content, length);
    if (file >= 0) MUST(close(file) == 0);
}

/* Where the stream is, what closing says, and what is in the file. */
static void finish(FILE *stream) {
    if (stream != NULL) {
        keep(0);
        note("at %ld", ftell(stream));
        note("closed %d", fclose(stream));
    } else {
        keep(-1);
    }
    note_file("file");
    end(stream == NULL ? -1 : 0);
}

static FILE *opened(const char *mode) {
    make_file("file", LENGTH);
    FILE *stream = fopen("file", mode);
    MUST(stream != NULL);
    return stream;
}

static const char *const openings[] = {"r", "r+", "w", "w+", "a", "a+"};

/* Whether the operations may follow each other on a stream of this mode. */
static int is_defined(const char *mode, const struct act *const *acts, size_t count) {
    enum effect last = NEITHER;
    for (size_t at = 0; at < count; at++) {
        enum effect effect = acts[at]->effect, needed = effect == TO_END ? INPUT : effect;
        if (effect == FIRST && at > 0) return 0;
        if (strchr(mode, '+') && (needed == INPUT || needed == OUTPUT) && last != NEITHER && last != needed) return 0;
        if (effect != NEITHER && effect != FIRST) last = effect == TO_END || effect == PLACING ? NEITHER : effect;
    }
    return 1;
}

static void sequence(const char *mode, const struct act *const *acts, size_t count) {
    char names[100] = "";
    if (!is_defined(mode, acts, count)) return;
    for (size_t at = 0; at < count; at++) strcat(strcat(names, acts[at]->name), ", ");
    FILE *stream = opened(mode);
    begin("%sin %s", names, mode);
    for (size_t at = 0; at < count; at++) play(acts[at], stream);
    finish(stream);
}

/* Where the end of a stream leaves others who share its descriptor. */
static void alone(const char *mode, const struct act *act) {
    FILE *stream = opened(mode);
    int shared = dup(fileno(stream));
    begin("%s in %s", act->name, mode);
    play(act, stream);
    note("closed %d", fclose(stream));
    note("left at %ld", (long)lseek(shared, 0, SEEK_CUR));
    note_file("file");
    end(close(shared));
}

static void sequences(const char *mode) {
    for EACH (act, acts) alone(mode, act);
    for EACH (first, acts)
        for EACH (second, acts) sequence(mode, (const struct act *[]){first, second}, 2);
    for EACH (first, common_acts)
        for EACH (second, common_acts)
            for EACH (third, common_acts) sequence(mode, (const struct act *[]){first, second, third}, 3);
}

/* -- Modes */

static const char *const spelled[] = {"r",  "rb",  "r+", "rb+", "r+b", "rt",  "re",  "rm",   "rc", "w",  "wb",     "wx", "w+x",
                                      "we", "w+b", "a",  "ab",  "a+",  "ax",  "ae",  "a+xe", "",   "+r", "R",      "x",  "rw",
                                      "wr", "ra",  "r ", " r",  "r++", "rrr", "wbx", "rbe+", "rx", "r,", "rbmcex+"};

static void facts(FILE *stream) {
    int status = fcntl(fileno(stream), F_GETFL);
    note("flags %o %d", status & (O_ACCMODE | O_APPEND | O_NONBLOCK), fcntl(fileno(stream), F_GETFD));
    note("ways %d%d", __freadable(stream) != 0, __fwritable(stream) != 0);
    note("starts at %ld", (long)lseek(fileno(stream), 0, SEEK_CUR));
    note("got %d", getc(stream));
    clearerr(stream);
    note("seek %d", fseek(stream, 0, SEEK_CUR));
    note("put %d", putc('M', stream));
}

static void mode_strings(void) {
    static const char *const names[] = {"file", "missing", "missing/file", "."};
    static const struct {
        const char *name;
        int flags;
    } accesses[] = {{"to read", O_RDONLY}, {"to write", O_WRONLY}, {"for both", O_RDWR}, {"to append", O_WRONLY | O_APPEND},
                    {"for both to append", O_RDWR | O_APPEND}, {"by name", O_PATH}};
    for EACH (mode, spelled) {
        for EACH (name, names) {
            clear_directory();
            make_file("file", LENGTH);
            begin("fopen %s as '%s'", *name, *mode);
            FILE *stream = fopen(*name, *mode);
            keep(stream ? 0 : -1);
            /* Reading a directory is an error of its own. */
            if (stream && **name != '.') facts(stream);
            if (access("missing", F_OK) == 0) note("made");
            finish(stream);
        }
        for EACH (access, accesses) {
            /* A stream that maps its file takes it from the start, wherever the descriptor is. */
            if (strchr(*mode, 'm')) continue;
            make_file("file", LENGTH);
            int file = open("file", access->flags);
            MUST(lseek(file, 3, SEEK_SET) == 3 || access->flags == O_PATH);
            begin("fdopen %s as '%s'", access->name, *mode);
            FILE *stream = fdopen(file, *mode);
            keep(stream ? 0 : -1);
            if (stream) facts(stream);
            else MUST(close(file) == 0);
            finish(stream);
        }
    }
}

/* -- Other files under a stream */

static FILE *file_stream(const char *mode) { return fopen("file", mode); }
static FILE *other_stream(const char *mode) { return fopen("other", mode); }
static FILE *pipe_stream(const char *mode) {
    int ends[2];
    MUST(pipe(ends) == 0);
    int is_reading = *mode == 'r';
    MUST(write(ends[1], "piped", 5) == 5 && close(ends[is_reading]) == 0);
    return fdopen(ends[!is_reading], is_reading ? "r" : "w");
}
static FILE *outside_stream(const char *mode) {
    char path[PATH_MAX + 10];
    sprintf(path, "%s/source", outside);
    make_file(path, LENGTH);
    return fopen(path, mode);
}
static FILE *null_stream(const char *mode) { return fopen("/dev/null", mode); }

static void reopened(void) {
    static const struct {
        const char *name;
        FILE *(*open)(const char *mode);
    } kinds[] = {{"a file", file_stream}, {"another", other_stream}, {"a pipe", pipe_stream}, {"one outside", outside_stream}, {"/dev/null", null_stream}};
    static const struct {
        const char *name, *path;
    } paths[] = {{"a file", "file"}, {"a missing one", "missing"}, {"one in none", "none/file"}, {"a link", "link"}, {"/dev/null", "/dev/null"}};
    static const char *const uses[] = {"nothing", "getc", "putc"};
    for EACH (kind, kinds)
        for EACH (path, paths)
            for EACH (before, openings)
                for EACH (after, openings)
                    for (int use = 0; use < 3; use++) {
                        clear_directory();
                        make_file("file", LENGTH);
                        make_file("other", LENGTH);
                        MUST(symlink("other", "link") == 0);
                        FILE *stream = kind->open(*before);
                        if (use == 1) getc(stream);
                        if (use == 2) putc('?', stream);
                        begin("freopen %s in %s as %s in %s after %s", kind->name, *before, path->name, *after, uses[use]);
                        FILE *again = freopen(path->path, *after, stream);
                        keep(again ? 0 : -1);
                        if (again) {
                            note("same %d number %d", again == stream, fileno(again));
                            facts(again);
                        }
                        note_file("other");
                        note_file("missing");
                        finish(again);
                    }
    for EACH (before, openings)
        for EACH (after, openings) {
            FILE *stream = opened(*before);
            begin("freopen of the same from %s to %s", *before, *after);
            FILE *again = freopen(NULL, *after, stream);
            keep(again ? 0 : -1);
            if (again) facts(again);
            finish(again);
        }
}

/* The standard streams keep their numbers, and are usable again after one was lost. */
static void standard_reopened(void) {
    static const char *const names[] = {"file", "missing", "file", "/dev/null", "none/file", "other", NULL, "file"};
    for EACH (name, names) {
        begin("freopen of standard input as %s, %td", *name ? *name : "the same", name - names);
        FILE *again = freopen(*name, "r", stdin);
        keep(again ? 0 : -1);
        note("number %d", fcntl(0, F_GETFD));
        if (again) note("same %d got %d", again == stdin, getc(stdin));
        end(again ? 0 : -1);
    }
}

static void standard_input(void) {
    clear_directory();
    make_file("file", LENGTH);
    make_file("other", LENGTH);
    in_child("standard input", standard_reopened);
}

/* -- Buffers */

static void note_size(const char *when) {
    struct stat status;
    MUST(stat("file", &status) == 0);
    note("%s %lld", when, (long long)status.st_size);
}

static void buffers(void) {
    static const struct {
        const char *name;
        int kind;
        size_t size;
    } kinds[] = {{"none", _IONBF, 0}, {"a line", _IOLBF, 64}, {"1", _IOFBF, 1}, {"2", _IOFBF, 2}, {"100", _IOFBF, 100}, {"4096", _IOFBF, 4096},
                 {"50000", _IOFBF, 50000}, {"default", _IOFBF, 0}};
    static const size_t lengths[] = {1, 99, 100, 101, 4095, 4096, 4097, 8193, 70000};
    for (size_t at = 0; at < sizeof room; at++) room[at] = at % 61 == 60 ? '\n' : pattern(at);
    for EACH (kind, kinds)
        for EACH (length, lengths) {
            FILE *stream = fopen("file", "w+");
            begin("write %zu with a buffer of %s", *length, kind->name);
            note("set %d", setvbuf(stream, kind->size ? buffer : NULL, kind->kind, kind->size));
            note("line %d", __flbf(stream) != 0);
            note("wrote %zu", fwrite(room, 1, *length, stream));
            /* How much waits in a default buffer depends on its size, which is nobody's promise. */
            if (kind->size || kind->kind == _IONBF) note_size("then"), note("pending %zu", __fpending(stream));
            note("flush %d", fflush(stream));
            note_size("then");
            for (int at = 0; at < 5; at++) putc("x\nyz\n"[at], stream);
            if (kind->size || kind->kind == _IONBF) note_size("then");
            rewind(stream);
            static char back[LONG];
            for (size_t at = 0; at < *length; at += 997) MUST(fread(back + at, 1, *length - at < 997 ? *length - at : 997, stream) > 0);
            note("same %d", memcmp(back, room, *length) == 0);
            note("next %d", getc(stream));
            finish(stream);
        }
}

/* -- Processes and temporary files */

static void processes(void) {
    static const struct {
        const char *name, *command, *mode;
    } all[] = {{"reads a file", "cat file", "r"}, {"reads a missing file", "cat missing 2>/dev/null", "r"}, {"writes a file", "cat >file", "w"},
               {"appends to a file", "cat >>file", "w"}, {"makes a file", "cat >new", "w"}, {"fails", "exit 7", "r"},
               {"marked", "cat file", "re"}, {"both ways", "cat", "r+"}, {"no way", "cat", "x"}};
    for EACH (each, all) {
        clear_directory();
        make_file("file", LENGTH);
        begin("popen that %s", each->name);
        FILE *stream = popen(each->command, each->mode);
        keep(stream ? 0 : -1);
        if (stream) {
            if (*each->mode == 'r') got(fread(room, 1, 50, stream));
            else note("put %d", fputs("given", stream) >= 0);
            note("ended %d", pclose(stream));
        }
        note_file("new");
        finish(NULL);
    }
    begin("tmpfile");
    FILE *stream = tmpfile();
    MUST(stream != NULL);
    note("put %d", fputs("temporary", stream) >= 0);
    rewind(stream);
    line(fgets(room, 50, stream));
    end(fclose(stream));
    begin("streams at the end of a process");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stdout);
        stream = fopen("left", "w");
        fputs("left in a buffer", stream);
        exit(0);
    }
    MUST(waitpid(child, NULL, 0) == child);
    note_file("left");
    end(0);
}

void stdio(void) {
    MUST(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    clear_directory();
    for EACH (mode, openings) sequences(*mode);
    mode_strings();
    reopened();
    standard_input();
    buffers();
    processes();
}
