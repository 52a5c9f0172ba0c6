//! Ends of a process and the resulting state of its open file: clean after an orderly end, unclean
//! after a death. A file that was closed before is clean in every case.

mod common;

use common::{Stage, errors, text};

const ORDERLY: [&str; 12] = [
    "return",
    "exit",
    "_exit",
    "quick_exit",
    "by_number",
    "exec",
    "exec_inherited",
    "handler",
    "thread",
    "last_thread",
    "busy",
    "closed",
];
/// `raw` exits past the C library, which Cairn cannot distinguish from a death.
const VIOLENT: [&str; 7] = [
    "abort",
    "kill",
    "segfault",
    "raw",
    "exec_then_killed",
    "exec_failed_then_killed",
    "killed_after_its_child",
];

/// State of a file in the JSON output of `cairn ls`.
fn state(listing: &str, name: &str) -> String {
    let path = format!("\"path\": \"/cairn/{name}\"");
    let from = listing.find(&path).unwrap_or_else(|| panic!("{name} is missing: {listing}"));
    let (_, rest) = listing[from..].split_once("\"state\": \"").expect("an entry has a state");
    rest.split('"').next().expect("a text ends").to_owned()
}

#[test]
fn files_are_clean_after_orderly_ends_and_unclean_after_deaths() {
    let stage = Stage::new();
    let program = stage.compile("ends");
    let names = [&ORDERLY[..], &VIOLENT].concat().join(" ");
    let script = format!("for how in {names}; do \"$0\" $how /cairn/$how; done; true");
    let program = program.to_str().expect("UTF-8");
    let ran = stage.cairn(&["run", "--job", "ends", "--", "sh", "-c", &script, program]);
    assert_eq!(ran.status.code(), Some(0), "{}", errors(&ran));
    let listing = text(&stage.cairn(&["ls", "ends", "--json"]));
    stage.cairn(&["rm", "ends", "--discard"]);
    for name in ORDERLY {
        assert_eq!(state(&listing, name), "clean", "{name}");
    }
    for name in VIOLENT {
        assert_eq!(state(&listing, name), "unclean", "{name}");
    }
    for name in ORDERLY.into_iter().chain(VIOLENT) {
        assert_eq!(state(&listing, &format!("{name}.closed")), "clean", "{name}.closed");
    }
}

/// Mechanism: the C library writes a program's profile past every hook, into the kernel's current
/// directory. Consequence: "gmon.out: No such file or directory" when the program was in a Cairn
/// directory. Fix: the profile is written elsewhere and copied to the program's directory.
#[test]
fn profile_of_a_program_is_where_the_program_is() {
    let stage = Stage::new();
    let source = stage.plain().with_file_name("profiled.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("writes");
    let program = source.with_extension("");
    let compiled =
        std::process::Command::new("cc").arg("-pg").arg("-o").args([&program, &source]).status();
    assert!(compiled.expect("there is a C compiler").success());
    let script = "cd /cairn && mkdir here there && cd here && $0 && head -c 4 gmon.out && \
                  GMON_OUT_PREFIX=other $0 && GMON_OUT_PREFIX=../there/it $0 && cd / && \
                  GMON_OUT_PREFIX=/cairn/there/its $0 && ls /cairn/* | sed s/[0-9]*$// && \
                  ls $CAIRN_STORE | grep -c profile";
    let ran = stage.on_cairn("sh".as_ref(), &["-c", script, program.to_str().expect("UTF-8")]);
    let expected = "gmon/cairn/here:\ngmon.out\nother.\n\n/cairn/there:\nit.\nits.\n0\n";
    assert_eq!(text(&ran), expected, "{}", errors(&ran));
}

/// A library that has no more of MPI than two functions, and a rank that ends in one of two ways.
const MPI: &str = "int MPI_Init(int *count, char ***list) { (void)count; (void)list; return 0; }\n\
                   int MPI_Finalize(void) { return 0; }\n";
const RANK: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int MPI_Init(int *, char ***);
int MPI_Finalize(void);
static int file;
static void close_file(void) { close(file); }
static void finalise(void) { MPI_Finalize(); }
int main(int count, char **list) {
    MPI_Init(&count, &list);
    int closed = open(list[3], O_CREAT | O_WRONLY, 0644);
    file = open(list[2], O_CREAT | O_WRONLY, 0644);
    if (write(closed, "all", 3) != 3 || close(closed) != 0 || write(file, "half", 4) != 4) return 9;
    if (strcmp(list[1], "finalised") == 0) MPI_Finalize();
    // Handlers run in the reverse order, as those of HDF5 and Fortran do.
    if (strcmp(list[1], "finalises_at_exit") == 0) atexit(finalise);
    if (strstr(list[1], "at_exit") != NULL) atexit(close_file);
    if (strcmp(list[1], "exits_at_once") == 0) _exit(1);
    exit(1);
}
"#;

/// Mechanism: ranks whose launcher died were told so by their MPI library, which called `exit`
/// while they were writing a checkpoint. Consequence: the files counted as closed, and a checkpoint
/// that was written by half was offered for restart. Fix: a rank that ends before `MPI_Finalize`
/// counts as dead.
#[test]
fn rank_ends_before_it_finalises_then_what_it_has_open_is_unclean() {
    let stage = Stage::new();
    let compile = |name: &str, source: &str, arguments: &[&std::ffi::OsStr]| {
        let path = stage.plain().with_file_name(name);
        let output = path.with_extension(if name == "mpi.c" { "so" } else { "out" });
        std::fs::write(&path, source).expect("writes");
        let mut compiler = std::process::Command::new("cc");
        compiler.arg("-o").args([&output, &path]).args(arguments);
        assert!(compiler.status().expect("there is a C compiler").success(), "{name}");
        output
    };
    let library = compile("mpi.c", MPI, &["-shared".as_ref(), "-fPIC".as_ref()]);
    let program = compile("rank.c", RANK, &[library.as_os_str()]);
    let program = program.to_str().expect("UTF-8");
    let script = "for how in finalised exits exits_at_once closes_at_exit finalises_at_exit; do \
                  \"$0\" $how /cairn/$how /cairn/$how.closed; done; true";
    let ran = stage.cairn(&["run", "--job", "rank-ends", "--", "sh", "-c", script, program]);
    assert_eq!(ran.status.code(), Some(0), "{}", errors(&ran));
    let listing = text(&stage.cairn(&["ls", "rank-ends", "--json"]));
    stage.cairn(&["rm", "rank-ends", "--discard"]);
    let found = |name: &str| state(&listing, name);
    assert_eq!([found("finalised"), found("finalises_at_exit")], ["clean", "clean"]);
    for name in ["exits", "exits_at_once", "closes_at_exit"] {
        assert_eq!(found(name), "unclean", "{name}");
    }
    for name in ["finalised.closed", "exits.closed", "exits_at_once.closed"] {
        assert_eq!(found(name), "clean", "{name}");
    }
}
