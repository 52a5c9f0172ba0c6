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
