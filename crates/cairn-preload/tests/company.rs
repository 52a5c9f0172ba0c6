//! Cairn together with other libraries, sanitizers and tools that watch a program.
//!
//! A sanitizer that the compiler lacks, and a tool that is not installed, are reported and left
//! out.

mod common;

use common::{Stage, errors, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stage on which a program of `tests/programs` is compiled in a special way.
struct NodeRanks {
    stage: Stage,
}

impl NodeRanks {
    fn new() -> NodeRanks {
        NodeRanks { stage: Stage::new() }
    }

    /// Compiles a source with these flags; none if the compiler fails.
    fn compile(&self, source: &str, output: &str, flags: &[&str]) -> Option<PathBuf> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let output = self.stage.plain().join(output);
        let compiled = Command::new("cc")
            .args(["-pthread", "-g", "-w", "-o"])
            .args([&output, &sources.join(source)])
            .args(flags)
            .output()
            .expect("there is a C compiler");
        compiled.status.success().then_some(output)
    }

    fn library(&self, flags: &[&str]) -> PathBuf {
        let flags = [&["-shared", "-fPIC"], flags].concat();
        self.compile("part.c", "libpart.so", &flags).expect("the library compiles")
    }

    fn program(&self) -> PathBuf {
        self.compile("company.c", "company", &[]).expect("the program compiles")
    }

    /// Runs `cairn run` with these words, and with `PART` set.
    fn run(&self, words: &[&str], preload: Option<&Path>) -> Output {
        let mut command = self.stage.command(common::cairn());
        command.args(["run", "--discard", "--"]).args(words);
        command.env("PART", self.stage.plain().join("libpart.so")).env("WITNESS", "1");
        if let Some(preload) = preload {
            command.env("LD_PRELOAD", preload);
        }
        command.output().expect("cairn starts")
    }

    fn plays(&self, words: &[&str], preload: Option<&Path>, expected: &str) -> String {
        let played = self.run(words, preload);
        assert_eq!(text(&played), expected, "{words:?}: {}", errors(&played));
        assert_eq!(played.status.code(), Some(0), "{words:?}: {}", errors(&played));
        errors(&played)
    }
}

const ORDINARY: &str =
    "child: 3\nfile: bytes\nchild\n\nrenamed: 1 lines\n\nof a thread: thread\n\n";

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn library_that_is_loaded_late_uses_the_store_and_goes() {
    let company = NodeRanks::new();
    company.library(&[]);
    let expected =
        "by a part: loaded\nunloaded\nloaded\nunloaded\nloaded\nunloaded\n\nours: still here\n\n";
    company.plays(&[name(&company.program()), "loaded_and_unloaded", "/cairn"], None, expected);
}

/// Mechanism: a library loaded with `RTLD_DEEPBIND` finds the C library's functions before those of
/// a preloaded one. Consequence: libraries loaded by Julia, MATLAB and others found no file below
/// the mount. Fix: their references are redirected (`deep.rs`).
#[test]
#[cfg(target_arch = "x86_64")]
fn library_that_is_bound_to_what_it_needs_itself_is_served() {
    let company = NodeRanks::new();
    let expected = "0 0 -1\n0 0 -1\nby a part: loaded\nunloaded\nloaded\nunloaded\n\n";
    for flags in ["-Wl,-z,lazy,-z,norelro", "-Wl,-z,lazy,-z,relro", "-Wl,-z,now,-z,relro"] {
        company.library(&[flags]);
        let program = company.program();
        company.plays(&[name(&program), "bound_to_its_own", "/cairn"], None, expected);
    }
}

#[test]
fn library_in_a_namespace_of_its_own_sees_nothing_below_the_mount() {
    let company = NodeRanks::new();
    company.library(&[]);
    let expected = "open below the mount: ENOENT\nread of a file of ours: EBADF\nours: served\n\n";
    company.plays(&[name(&company.program()), "in_another_namespace", "/cairn"], None, expected);
}

#[test]
fn library_that_is_preloaded_too_sees_what_passes_it() {
    let company = NodeRanks::new();
    let witness = company.library(&["-DWITNESS"]);
    let program = company.program();
    let play = [name(&program), "ordinary_work", "/cairn"];
    // Behind us the witness sees only foreign calls: none on this program's files.
    let behind = company.plays(&play, Some(&witness), ORDINARY);
    assert!(behind.lines().any(|line| line == "0 writes"), "{behind}");
    let both = format!("LD_PRELOAD={}:{}", name(&witness), name(&common::library()));
    let before = company.plays(&[&["env", &both][..], &play].concat(), None, ORDINARY);
    let counted = before.lines().find_map(|line| line.strip_suffix(" writes")?.parse().ok());
    assert!(counted.is_some_and(|count: u32| count >= 2), "{before}");
}

/// Runs ordinary work in a program compiled with a sanitizer.
fn sanitized(sanitizer: &str) {
    let company = NodeRanks::new();
    let Some(program) =
        company.compile("company.c", "sanitized", &[&format!("-fsanitize={sanitizer}")])
    else {
        println!("left out: the compiler has no sanitizer for {sanitizer}");
        return;
    };
    let play = [name(&program), "ordinary_work", "/cairn"];
    company.plays(&play, None, ORDINARY);
    // With a standard stream that is Cairn's from the start.
    let redirected =
        format!("{} ordinary_work /cairn >/cairn/output; cat /cairn/output", name(&program));
    company.plays(&["sh", "-c", &redirected], None, ORDINARY);
}

/// Mechanism: the address sanitizer's library ends a program if it is not loaded first.
/// Consequence: no such program ran. Fix: the library asks for its options, and we turn that check
/// off.
#[test]
fn program_with_the_address_sanitizer_is_served() {
    sanitized("address");
}

/// Mechanism: at start, before anything else is ready, Cairn used a thread-local variable, access
/// to which the thread sanitizer's library intercepts. Consequence: SIGSEGV before `main`. Fix:
/// descriptors are checked without thread-local variables, and Cairn's own just before `main`.
#[test]
fn program_with_the_thread_sanitizer_is_served() {
    sanitized("thread");
}

#[test]
fn program_with_other_sanitizers_is_served() {
    sanitized("undefined");
    sanitized("leak");
}

/// Runs ordinary work under a tool; none if the tool is not installed.
fn watched(words: &[&str], expected: &str) -> Option<String> {
    if Command::new(words[0]).arg("--version").output().is_err() {
        println!("left out: {} is not installed", words[0]);
        return None;
    }
    let company = NodeRanks::new();
    let program = company.program();
    let output = name(&company.stage.plain()).to_owned() + "/said";
    let words: Vec<&str> =
        words.iter().map(|&word| if word == "OUTPUT" { output.as_str() } else { word }).collect();
    let said = company.plays(
        &[&words, &[name(&program), "ordinary_work", "/cairn"][..]].concat(),
        None,
        expected,
    );
    Some(said + &std::fs::read_to_string(output).unwrap_or_default())
}

#[test]
fn program_under_valgrind_is_served_and_nothing_is_found() {
    watched(&["valgrind", "-q", "--error-exitcode=9", "--trace-children=yes"], ORDINARY);
}

#[test]
fn program_under_strace_and_ltrace_is_served() {
    watched(&["strace", "-f", "-o", "OUTPUT"], ORDINARY);
    watched(&["ltrace", "-o", "OUTPUT"], ORDINARY);
}

/// Sets a breakpoint on a call that Cairn serves, steps out of it, and continues.
#[test]
fn program_in_a_debugger_is_served_across_a_breakpoint() {
    let commands = ["break pread", "run", "finish", "next", "continue", "print $_exitcode"];
    let commands: Vec<&str> = commands.iter().flat_map(|&command| ["-ex", command]).collect();
    let debugger = ["gdb", "-q", "-batch", "-nx", "-iex", "set debuginfod enabled off"];
    let commands = [&debugger[..], &commands, &["--args"]].concat();
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("left out: gdb is not installed");
        return;
    }
    let company = NodeRanks::new();
    let program = company.program();
    let played =
        company.run(&[&commands[..], &[name(&program), "ordinary_work", "/cairn"]].concat(), None);
    let said = text(&played);
    // The exit status is the second value if gdb shows the call's return value as the first.
    let has_ended = |line: &str| matches!(line, "$1 = 0" | "$2 = 0");
    assert!(said.lines().any(has_ended), "{said}\n{}", errors(&played));
}
