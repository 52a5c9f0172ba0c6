/*
 * SPANK plug-in: srun --cairn='OPTIONS' ./sim runs each task as cairn run OPTIONS -- ./sim.
 *
 *     cc -shared -fPIC -O2 -Wall -Wextra -o cairn_spank.so cairn_spank.c
 *     plugstack.conf: required /etc/slurm/cairn-spank/cairn_spank.so cairn=/usr/local/bin/cairn
 *
 * Arguments in plugstack.conf:
 *     cairn=PATH       the command (default: /usr/local/bin/cairn)
 *     default=WORD     option of cairn run if the user gives none, as in --cairn; may be repeated,
 *                      since Slurm splits these arguments at blanks
 *     enable=yes       all steps run with Cairn, except those with --cairn=off (default: no)
 *
 * How: the hook task_init replaces the program of the task by the script cairn-task beside this
 * file. Slurm itself then starts that script. After this hook Slurm still runs the task prologs
 * (they set CAIRN_RUN_TIER, for example), sets TMPDIR and the user's limits, and lets a debugger
 * attach. An exec inside the hook would skip all of these. Slurm 22.05 gives a plug-in no way to
 * make argv longer, so program and options travel in the environment; cairn-task removes them.
 *
 * Must stay true: a task that is to have Cairn never runs without it. It ends with a message and
 * the exit code 127 instead.
 *
 * Does not start Cairn in the batch script or in an interactive shell: their srun steps have it,
 * on each node. Does not look at OPTIONS; cairn run does, and refuses an unknown one (exit code 2).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(cairn, 1);

enum { PATH_BYTES_MAX = 4096, OPTIONS_BYTES_MAX = 64 * 1024, EXIT_NOT_STARTED = 127 };

static char cairn[PATH_BYTES_MAX] = "/usr/local/bin/cairn";
static char task[PATH_BYTES_MAX];
/* Words in single quotes, as sh reads them: options of plugstack.conf, and of the user. */
static char defaults[OPTIONS_BYTES_MAX], options[OPTIONS_BYTES_MAX];
static bool is_enabled;

static int take_option(int value, const char *text, int is_remote);

static struct spank_option cairn_option = {
    .name = "cairn",
    .arginfo = "OPTIONS",
    .usage = "run each task as: cairn run OPTIONS -- TASK; --cairn=off: do not",
    .has_arg = 2,
    .cb = take_option,
};

/* Appends one character. Fails if there is no room. */
static bool put(char *words, size_t *length, char byte)
{
    if (*length + 1 >= OPTIONS_BYTES_MAX)
        return false;
    words[(*length)++] = byte;
    words[*length] = '\0';
    return true;
}

/* Appends a character of a word that is in single quotes. */
static bool put_quoted(char *words, size_t *length, char byte)
{
    if (byte != '\'')
        return put(words, length, byte);
    for (const char *escaped = "'\\''"; *escaped; escaped++)
        if (!put(words, length, *escaped))
            return false;
    return true;
}

/*
 * Splits `text` into words as a shell does, without expansion: blanks separate words; quotes keep
 * them; \ keeps the next character, except in single quotes. Appends the words to `words`, each in
 * single quotes. Returns NULL, or what is wrong.
 */
static const char *split(const char *text, char *words)
{
    size_t length = strlen(words);
    char quote = '\0';
    bool is_in_word = false, fits = true;

    for (; *text && fits; text++) {
        bool is_escape = *text == '\\' && quote != '\'';
        if (!quote && strchr(" \t\n", *text)) {
            if (is_in_word)
                fits = put(words, &length, '\'');
            is_in_word = false;
            continue;
        }
        if (!is_in_word)
            fits = put(words, &length, ' ') && put(words, &length, '\'');
        is_in_word = true;
        if (is_escape && !text[1])
            return "there is nothing after the \\ at the end";
        if (is_escape)
            fits = fits && put_quoted(words, &length, *++text);
        else if (quote && *text == quote)
            quote = '\0';
        else if (!quote && strchr("'\"", *text))
            quote = *text;
        else
            fits = fits && put_quoted(words, &length, *text);
    }
    if (is_in_word)
        fits = fits && put(words, &length, '\'');
    if (!fits)
        return "they are too long";
    return quote ? "a quote is not closed" : NULL;
}

/*
 * Called by Slurm for --cairn, in srun or sbatch, then on each node; there more than once if the
 * option comes from the environment, too. The last call counts.
 */
static int take_option(int value, const char *text, int is_remote)
{
    const char *wrong;
    (void)value;
    (void)is_remote;

    options[0] = '\0';
    /* sbatch --cairn, without options: its steps get this text from the environment. */
    if (text && !strcmp(text, "(null)"))
        text = NULL;
    is_enabled = !text || strcmp(text, "off") != 0;
    if (!text || !is_enabled)
        return ESPANK_SUCCESS;
    wrong = split(text, options);
    if (wrong) {
        slurm_error("cairn: --cairn=%s: %s", text, wrong);
        return ESPANK_BAD_ARG;
    }
    return ESPANK_SUCCESS;
}

/* Reads one argument of plugstack.conf. Returns NULL, or what is wrong. */
static const char *take_argument(const char *argument)
{
    const char *value = strchr(argument, '=');
    size_t name = value ? (size_t)(value++ - argument) : 0;

    if (name == 5 && !strncmp(argument, "cairn", name)) {
        if (*value != '/' || strlen(value) >= sizeof cairn)
            return "must be an absolute path";
        strcpy(cairn, value);
    } else if (name == 7 && !strncmp(argument, "default", name)) {
        return split(value, defaults);
    } else if (name == 6 && !strncmp(argument, "enable", name)) {
        if (strcmp(value, "yes") && strcmp(value, "no"))
            return "must be yes or no";
        is_enabled = *value == 'y';
    } else {
        return "unknown; known are cairn=, default= and enable=";
    }
    return NULL;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    for (int i = 0; i < count; i++) {
        const char *wrong = take_argument(arguments[i]);
        if (wrong) {
            slurm_error("cairn: plugstack.conf: %s: %s", arguments[i], wrong);
            return ESPANK_BAD_ARG;
        }
    }
    if (spank_context() == S_CTX_JOB_SCRIPT || spank_context() == S_CTX_SLURMD)
        return ESPANK_SUCCESS;
    return spank_option_register(spank, &cairn_option);
}

/* Ends the task: it is not to run without Cairn. */
static void refuse(const char *what, const char *why)
{
    slurm_error("cairn: --cairn: the task is not started: %s%s", what, why);
    _exit(EXIT_NOT_STARTED);
}

/* Sets `task` to the script beside this file. */
static void find_task_script(void)
{
    Dl_info self;
    char *end;

    if (!dladdr((void *)take_option, &self) || strlen(self.dli_fname) + 16 > sizeof task)
        refuse("the plug-in does not find its directory", "");
    strcpy(task, self.dli_fname);
    end = strrchr(task, '/');
    strcpy(end ? end + 1 : task, "cairn-task");
}

/*
 * Whether `text` is all that is in the file at `path`. With --multi-prog, the first words are that
 * file and its text, and not the program.
 */
static bool is_text_of(const char *text, const char *path)
{
    FILE *file = fopen(path, "r");
    bool is_same = file != NULL;
    int byte;

    if (!file)
        return false;
    while (is_same && (byte = getc(file)) != EOF)
        is_same = *text && *text++ == (char)byte;
    fclose(file);
    return is_same && !*text;
}

static void set(spank_t spank, const char *name, const char *value)
{
    if (spank_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
        refuse("cannot set ", name);
}

/* Runs in the process of the task, as the user, before the task prologs. */
int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
    uint32_t step = 0;
    int words = 0;
    char **argv = NULL;
    (void)count;
    (void)arguments;

    if (!is_enabled)
        return ESPANK_SUCCESS;
    if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
        refuse("Slurm does not say which step this is", "");
    if (step > SLURM_MAX_NORMAL_STEP_ID)
        return ESPANK_SUCCESS;
    if (spank_get_item(spank, S_JOB_ARGV, &words, &argv) != ESPANK_SUCCESS || words < 1 || !argv[0])
        refuse("Slurm does not say which program it runs", "");
    if (words > 1 && is_text_of(argv[1], argv[0]))
        refuse("with --multi-prog, write cairn run into ", argv[0]);
    find_task_script();
    if (access(task, X_OK))
        refuse(task, " is not there, or this user cannot run it");
    if (access(cairn, X_OK))
        refuse(cairn, " is not there, or this user cannot run it; see cairn= in plugstack.conf");
    set(spank, "CAIRN_SPANK_CAIRN", cairn);
    set(spank, "CAIRN_SPANK_OPTIONS", *options ? options : defaults);
    set(spank, "CAIRN_SPANK_PROGRAM", argv[0]);
    /* This process is the task's own: no other task sees the change. */
    argv[0] = task;
    return ESPANK_SUCCESS;
}
