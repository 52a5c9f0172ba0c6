/* What the families of the conformance suite share. A family is a table of calls times a table of what they are
   given; every case prints one line: its name, what the call returned, and everything else that is to be compared.
   The runner (conformance.rs) plays a family on a disk, on a tmpfs and on Cairn, and compares line by line.
   Nothing depends on time or place: paths are printed without the directory under test, times as their order. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EACH(entry, array) (__typeof__(&(array)[0]) entry = (array); entry < (array) + COUNT(array); entry++)

/* Ends the program: what the suite itself relies on does not hold. */
#define MUST(condition) \
    do { \
        if (!(condition)) broken(#condition, __FILE__, __LINE__); \
    } while (0)
void broken(const char *condition, const char *file, int line) __attribute__((noreturn));

/* The directory under test, absolute; one on another file system; the family's own in the first, which stays open. */
extern char base[PATH_MAX], outside[PATH_MAX];
extern int home;

/* -- Cases (main.c) */

/* Names the case that follows and clears errno. */
void begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds something to compare. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds bytes: printable ones as they are, many of them as their number and a sum. */
void note_bytes(const char *bytes, size_t length);
/* Adds a path without the directory under test. */
void note_path(const char *path);
/* Ends the case with what the call returned; -1 adds the error, which errno holds unless notes were taken since. */
void end(long result);
/* Keeps errno as the call that is tested left it, before anything else is asked. Returns `result`. */
long keep(long result);
/* The name of an error. */
const char *error_name(int number);

/* -- The scene: a small tree with one of everything (scene.c) */

/* Makes the current directory hold exactly the scene. */
void scene_begin(void);
/* Something was added to the scene that is no change. */
void scene_extended(void);
/* Adds what a call changed since `scene_begin`, and makes the scene anew if anything did. */
void scene_note_changes(void);
/* Calls `visit` with the path of each entry of a directory but the dots. */
void for_each_entry(const char *directory, void (*visit)(const char *path));
/* Removes a file or a tree. */
void remove_entry(const char *path);
/* Removes everything in the current directory. */
void clear_directory(void);
/* Adds mode, links, owner and size of a file. */
void note_status(const struct stat *status);

/* A file of this many bytes that tell their place, closed again. */
void make_file(const char *name, size_t length);
/* The byte at `offset` of such a file. */
char pattern(long long offset);

/* Plays in a child: what it prints is the parent's, and a death by a signal is a case of its own. */
void in_child(const char *name, void (*play)(void));

/* -- Families */
#define FAMILIES(family) \
    family(paths) family(paths_from_here) family(directories_at) family(opening) family(resolving) family(pairs) family(descriptors) \
    family(offsets) family(space) family(holes) family(modes) family(rights) family(times) family(entries) family(descriptions) family(holding) \
    family(copying) family(extended) family(stdio) family(mapping) family(mapped_shared) \
    family(mapped_private) family(mapped_to_read) family(asynchronous) family(waiting) family(bad_addresses)
#define DECLARE(family) void family(void);
FAMILIES(DECLARE)
#undef DECLARE
