//! `cairn check`: its verdict on real programs of every kind, from their files and from trial runs.

mod common;

use common::filter::refuse;
use common::{Ran, Sandbox};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVED: i32 = 0;
const MISSED: i32 = 3;
const OUT_OF_REACH: i32 = 4;

/// Opens a file below the prefix and writes a byte, through the C library only.
const WRITES: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(void) {
    int file = open("/cairn/f", O_RDWR | O_CREAT, 0600);
    return file < 0 || write(file, "x", 1) != 1 || close(file);
}
"#;

/// The same, with system calls that bypass the C library as well.
#[cfg(target_arch = "x86_64")]
const RAW: &str = r#"
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define RAW(number, a, b, c, d) ({ \
    long result; \
    register long fourth __asm__("r10") = (d); \
    __asm__ volatile("mov %1, %%eax\n\tsyscall" : "=&a"(result) \
        : "i"(number), "D"((long)(a)), "S"((long)(b)), "d"((long)(c)), "r"(fourth) : "rcx", "r11", "memory"); \
    result; })
int main(void) {
    static char parameters[256];
    int file = open("/cairn/f", O_RDWR | O_CREAT, 0600), other = open("/dev/null", O_RDWR);
    write(file, "x", 1);
    RAW(SYS_openat, AT_FDCWD, "/tmp/../cairn/./f", 0, 0);
    RAW(SYS_openat, AT_FDCWD, "/dev/null", 0, 0);
    RAW(SYS_pwrite64, file, "x", 1, 0);
    RAW(SYS_pwrite64, other, "x", 1, 0);
    RAW(SYS_io_uring_setup, 4, parameters, 0, 0);
    /* Not seen: which call it is. */
    volatile long number = SYS_getpid;
    long process;
    __asm__ volatile("syscall" : "=a"(process) : "a"(number) : "rcx", "r11", "memory");
    return 0;
}
"#;

/// Compiles a program in the sandbox.
fn compile(sandbox: &Sandbox, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (text, program) = (sandbox.work().join(format!("{name}.c")), sandbox.work().join(name));
    fs::write(&text, source).expect("writes");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O1", "-o"]).args([&program, &text]).args(options);
    assert!(compiler.status().is_ok_and(|status| status.success()), "{name} compiles");
    program
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Writes an executable file.
fn executable(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("writes");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("changes the mode");
}

/// Runs `cairn check --json`, asserts exit code `code` and returns the report.
fn check(sandbox: &Sandbox, arguments: &[&str], code: i32) -> Value {
    let ran = sandbox.cairn(&[&["check", "--json"], arguments].concat()).ends_with(code);
    let report = of_check(&ran);
    assert_eq!(report["exit_code"], code);
    report
}

/// Parses the report. Standard output holds nothing else, whatever the program printed.
fn of_check(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Whether the report has a finding of this weight that contains all of `parts`.
fn finds(report: &Value, weight: &str, parts: &[&str]) -> bool {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().any(|finding| {
        let says = |part: &&str| {
            ["what", "file", "advice"]
                .iter()
                .any(|key| finding[key].as_str().expect("text").contains(part))
        };
        finding["weight"] == weight && parts.iter().all(says)
    })
}

/// Whether the trial watched for calls that bypass the C library; a system may not allow that.
fn sees_past_the_library(report: &Value) -> bool {
    let blind = &report["run"]["blind"];
    if !blind.is_null() {
        eprintln!("skipped: calls past the C library cannot be seen here: {blind}");
    }
    blind.is_null()
}

#[test]
fn program_that_uses_the_c_library_for_files_is_served() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "writes", WRITES, &[]);
    let report = check(&sandbox, &[text(&program)], SERVED);
    assert_eq!(report["kind"], "dynamic");
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    let library = report["libraries"][0].as_str().expect("a library");
    assert!(library.ends_with("libc.so.6"), "{report:#}");
    sandbox.cairn(&["check", text(&program)]).succeeds().says("nothing is missed as far as");
    let tried = sandbox.cairn(&["check", "--run", text(&program)]).succeeds();
    tried
        .says("exit code 0; 3 calls served, 0 not served")
        .says("all of its calls that were seen were served");
}

/// Mechanism: the dynamic linker got the path of the symlink, and the program's libraries are not
/// beside the symlink.
///
/// Consequence: Java, a symlink in every distribution, was reported as not loadable.
///
/// Fix: the dynamic linker gets the symlink's target, as from the kernel.
#[test]
fn program_that_is_reached_by_a_link_finds_the_libraries_beside_it() {
    let sandbox = Sandbox::new();
    let library =
        compile(&sandbox, "libbeside.so", "int beside(void) { return 0; }", &["-shared", "-fPIC"]);
    let source = "int beside(void); int main(void) { return beside(); }";
    let program = compile(&sandbox, "program", source, &[text(&library), "-Wl,-rpath,$ORIGIN"]);
    let link = sandbox.root().join("link");
    std::os::unix::fs::symlink(&program, &link).expect("links");
    let report = check(&sandbox, &[text(&link)], SERVED);
    assert_eq!(report["findings"], Value::Array(Vec::new()));
}

/// These commands and their libraries use calls such as `dlopen` and `mount`, which matter only for
/// a path below the prefix. That raises no alarm.
#[test]
fn ordinary_commands_raise_no_alarm() {
    let sandbox = Sandbox::new();
    for command in ["ls", "bash", "cp", "tar", "grep"] {
        check(&sandbox, &[command], SERVED);
    }
}

#[test]
fn static_programs_are_out_of_reach() {
    let sandbox = Sandbox::new();
    for (option, kind) in [("-static", "static"), ("-static-pie", "static-pie")] {
        let program = compile(&sandbox, kind, WRITES, &[option]);
        let report = check(&sandbox, &[text(&program)], OUT_OF_REACH);
        assert_eq!(report["kind"], kind);
        assert!(
            finds(&report, "out-of-reach", &["is linked statically", "dynamically"]),
            "{report:#}"
        );
        let report = check(&sandbox, &["--mount-fuse", text(&program)], 0);
        assert!(finds(&report, "note", &["is linked statically", "by the mount"]), "{report:#}");
        // A trial run does not improve the verdict, and shows the system calls that the program
        // made.
        let ran = sandbox.cairn(&["check", "--run", "--json", text(&program)]);
        let report = of_check(&ran.ends_with(OUT_OF_REACH));
        let seen = finds(&report, "missed", &["openat of the kernel of /cairn/f", kind]);
        assert!(!sees_past_the_library(&report) || seen, "{report:#}");
    }
}

/// The program does not link the archive itself, only the section by which its parts find each
/// other.
#[test]
fn static_program_that_has_the_archive_is_in_reach() {
    let sandbox = Sandbox::new();
    let section = r#"__asm__(".section cairn_next,\"aw\"\n.quad 0\n.previous");"#;
    let source = format!("{section}\n{WRITES}");
    let program = compile(&sandbox, "linked", &source, &["-static", "-s"]);
    let report = check(&sandbox, &[text(&program)], SERVED);
    assert!(finds(&report, "note", &["is linked with libcairn.a", "--run"]), "{report:#}");
}

#[test]
fn program_that_gains_rights_is_out_of_reach() {
    let sandbox = Sandbox::new();
    let copy = sandbox.work().join("gains");
    executable(&copy, &fs::read("/bin/true").expect("reads"));
    // A set-user-ID program of the user's own gains nothing.
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("changes the mode");
    check(&sandbox, &[text(&copy)], SERVED);
    if std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).is_err() {
        return eprintln!("skipped: this user cannot give files away");
    }
    for (mode, what) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
        fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).expect("changes the mode");
        // The same for a child process, which gains nothing in a trial.
        let child = sandbox.cairn(&["check", "--json", "sh", "-c", "./gains; ./gains; true"]);
        let report = of_check(&child);
        let seen = finds(&report, "missed", &["was executed and is ", what, "gains"]);
        assert!(!sees_past_the_library(&report) || seen, "{report:#}");
        let report = check(&sandbox, &[text(&copy)], OUT_OF_REACH);
        assert!(finds(&report, "out-of-reach", &[what, "LD_PRELOAD"]), "{report:#}");
    }
}

/// The program is not made by Go, which need not be installed. It has the section and the note that
/// Go's linker makes.
#[test]
fn go_program_is_out_of_reach_even_if_it_is_dynamic() {
    let sandbox = Sandbox::new();
    let section =
        r#"__asm__(".section .go.buildinfo,\"aw\"\n.ascii \"\\377 Go buildinf:\"\n.previous");"#;
    let note = r#"__asm__(".section .note.anything,\"a\",@note\n.long 4,4,4\n.asciz \"Go\\0\"\n.long 0\n.previous");"#;
    for (name, mark) in [("section", section), ("note", note)] {
        let program = compile(&sandbox, name, &format!("{mark}\n{WRITES}"), &[]);
        let report = check(&sandbox, &[text(&program)], OUT_OF_REACH);
        assert_eq!(report["kind"], "dynamic");
        assert!(finds(&report, "out-of-reach", &["is a Go program"]), "{name}: {report:#}");
    }
}

#[test]
fn script_is_judged_by_its_interpreter() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "still", WRITES, &["-static"]);
    let script = sandbox.work().join("script");
    executable(&script, b"#!/bin/sh\necho x >/cairn/f\n");
    let report = check(&sandbox, &[text(&script)], SERVED);
    assert!(finds(&report, "note", &["it executes are not examined", "script"]), "{report:#}");
    assert_eq!(
        (&report["kind"], &report["interpreters"][0]),
        (&"script".into(), &"/bin/sh".into())
    );
    executable(&script, b"#!/usr/bin/env sh\n");
    assert_eq!(check(&sandbox, &[text(&script)], SERVED)["interpreters"][0], "sh");
    executable(&script, format!("#! {} -x\n", text(&program)).as_bytes());
    let report = check(&sandbox, &[text(&script)], OUT_OF_REACH);
    assert!(finds(&report, "out-of-reach", &["is linked statically", "still"]), "{report:#}");
    executable(&script, b"#!/no/such/interpreter\n");
    let report = check(&sandbox, &[text(&script)], OUT_OF_REACH);
    assert!(
        finds(&report, "out-of-reach", &["its interpreter /no/such/interpreter"]),
        "{report:#}"
    );
    executable(&script, format!("#!{}\n", text(&script)).as_bytes());
    let report = check(&sandbox, &[text(&script)], OUT_OF_REACH);
    assert!(finds(&report, "out-of-reach", &["too many interpreters"]), "{report:#}");
    executable(&script, b"echo no first line\n");
    let report = check(&sandbox, &[text(&script)], SERVED);
    assert!(finds(&report, "note", &["neither a program nor a script"]), "{report:#}");
}

#[test]
fn functions_that_come_with_the_streams_of_cxx_and_with_libraries_are_notes() {
    let sandbox = Sandbox::new();
    let source = sandbox.work().join("streams.cc");
    let text_of = "#include <iostream>\n#include <cwchar>\nint main(int n, char **) {\n\
        if (n > 1) std::wcout << std::getwc(stdin) << putwc(L'x', stdout);\n\
        std::cout << n; if (n > 9) throw 1; return 0; }\n";
    fs::write(&source, text_of).expect("writes");
    let program = sandbox.work().join("streams");
    let built = Command::new("c++").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("left out: no C++ compiler");
        return;
    }
    let report = check(&sandbox, &[text(&program)], 0);
    assert!(finds(&report, "note", &["takes getwc, putwc", "if it is called"]), "{report:#}");
    let watches =
        "#include <sys/inotify.h>\nint watch(void) { return inotify_add_watch(0, \".\", 1); }";
    let library = compile(&sandbox, "libwatch.so", watches, &["-shared", "-fPIC"]);
    let uses = "int watch(void); int main(void) { return watch(); }";
    let program = compile(&sandbox, "uses", uses, &[text(&library)]);
    let report = check(&sandbox, &[text(&program)], 0);
    assert!(
        finds(&report, "note", &["takes inotify_add_watch: refused with ENOSPC"]),
        "{report:#}"
    );
    let wide = "#include <wchar.h>\n#include <stdio.h>\nint main(void) { return putwc(L'x', stdout) < 0; }";
    let program = compile(&sandbox, "alone", wide, &[]);
    let report = check(&sandbox, &[text(&program)], MISSED);
    assert!(finds(&report, "missed", &["takes putwc"]), "{report:#}");
}

#[test]
fn functions_that_are_refused_are_named_with_the_file_that_takes_them() {
    let sandbox = Sandbox::new();
    let wide = r#"
        #include <stdio.h>
        #include <wchar.h>
        int main(void) {
            FILE *file = fopen("/cairn/f", "w");
            fputwc(L'x', file);
            fwprintf(file, L"y");
            return fclose(file);
        }"#;
    let program = compile(&sandbox, "wide", wide, &[]);
    let report = check(&sandbox, &[text(&program)], MISSED);
    assert!(
        finds(&report, "missed", &["takes fputwc: refused with EOPNOTSUPP", "narrow"]),
        "{report:#}"
    );
    assert!(finds(&report, "missed", &["takes fwprintf: ", "a run does not show"]), "{report:#}");
    let ran = sandbox.cairn(&["check", "--run", text(&program)]).ends_with(MISSED);
    ran.says("missed: ").says("called fputwc 1 time, not served (EOPNOTSUPP)");
    // With variable arguments the call cannot be seen; then the presence of the function counts.
    let unseen = r#"
        #include <stdio.h>
        #include <wchar.h>
        int main(void) { return fwprintf(fopen("/cairn/f", "w"), L"y") != -1; }"#;
    let program = compile(&sandbox, "unseen", unseen, &[]);
    let ran = sandbox.cairn(&["check", "--run", text(&program)]).ends_with(MISSED);
    ran.says("exit code 0; 1 call served, 0 not served").says("missed: ").says("takes fwprintf: ");
    let listed = r#"
        #include <stdarg.h>
        #include <stdio.h>
        #include <wchar.h>
        static int print(FILE *file, const wchar_t *format, ...) {
            va_list list;
            va_start(list, format);
            return vfwprintf(file, format, list);
        }
        int main(void) {
            if (print(stdout, L"%d %ls %Lf %s\n", 7, L"wide", 2.5L, "narrow") != 23) return 2;
            return print(fopen("/cairn/f", "w"), L"%d", 7) != -1;
        }"#;
    let program = compile(&sandbox, "listed", listed, &[]);
    let ran = sandbox.cairn(&["check", "--run", text(&program)]).ends_with(MISSED);
    let ran = ran.says("7 wide 2.500000 narrow\n").says("exit code 0; ");
    ran.says("called vfwprintf 1 time, not served (EOPNOTSUPP)");
}

#[test]
fn library_that_uses_rings_is_found_in_the_program_that_needs_it() {
    let sandbox = Sandbox::new();
    let function = "int io_uring_queue_init(void) { return 0; }";
    let library = compile(&sandbox, "libring.so", function, &["-shared", "-fPIC"]);
    compile(
        &sandbox,
        "libmiddle.so",
        "int middle(void) { return io_uring_queue_init(); }",
        &["-shared", "-fPIC", text(&library)],
    );
    // Found by a path in the program that only the dynamic linker knows.
    let main = "int main(int count, char **words) { return count > 9 ? middle() : 0; }";
    let directory = format!("-L{}", text(&sandbox.work()));
    let options = [&*directory, "-l:libmiddle.so", "-Wl,-rpath,$ORIGIN"];
    let program = compile(&sandbox, "rings", main, &options);
    let report = check(&sandbox, &[text(&program)], MISSED);
    let parts = [
        "takes io_uring_queue_init: refused with ENOSYS",
        "libmiddle.so",
        "io_uring in the program",
    ];
    assert!(finds(&report, "missed", &parts), "{report:#}");
    // The finding does not require a call.
    let ran = sandbox.cairn(&["check", "--run", "--json", text(&program)]);
    let report = of_check(&ran.ends_with(SERVED));
    assert!(finds(&report, "note", &parts), "{report:#}");
    fs::remove_file(library).expect("removes");
    let report = check(&sandbox, &[text(&program)], OUT_OF_REACH);
    let parts = ["cannot be loaded: ", "libring.so: cannot open"];
    assert!(finds(&report, "out-of-reach", &parts), "{report:#}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn calls_past_the_c_library_are_seen_in_the_code_and_when_they_are_made() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "raw", RAW, &[]);
    let check = |arguments: &[&str]| {
        let arguments = [&["check", "--json"], arguments].concat();
        let mut command = sandbox.command(&arguments);
        let output = command.env("CAIRN_RAW_CALLS", "pass").output().expect("starts");
        of_check(&Ran::of(output, format!("{arguments:?}")).ends_with(MISSED))
    };
    let report = check(&["--", text(&program)]);
    for call in [
        "openat of the kernel by 2 instructions",
        "pwrite64 of the kernel by 2",
        "io_uring_setup of the kernel by 1",
    ] {
        assert!(finds(&report, "missed", &[&format!("calls {call}")]), "{call}: {report:#}");
    }
    let unknown = "enters the kernel by 1 instruction of its own, for a call that is not known";
    assert!(finds(&report, "missed", &[unknown]), "{report:#}");
    let report = check(&["--run", text(&program)]);
    if !sees_past_the_library(&report) {
        return;
    }
    // Each call was made once on a file of the store, or on a file that could not be determined.
    for call in [
        "openat of the kernel of /cairn/f 1 time",
        "pwrite64 of the kernel 1 time",
        "io_uring_setup of the kernel 1 time",
    ] {
        assert!(finds(&report, "missed", &[&format!("called {call}")]), "{call}: {report:#}");
    }
    assert_eq!(report["run"]["not_served"], 3, "{report:#}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn calls_past_the_c_library_are_no_fault_where_they_are_caught() {
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    // SAFETY: the call turns off a mode that is not on, and passes no pointer.
    if unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } != 0 {
        println!("left out: this kernel cannot catch calls");
        return;
    }
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "raw", RAW, &[]);
    let ran = sandbox.cairn(&["check", "--run", "--json", text(&program)]).ends_with(MISSED);
    let report = of_check(&ran);
    assert!(
        finds(&report, "note", &["by 5 instructions of its own, which are caught"]),
        "{report:#}"
    );
    // A ring is not available, either.
    assert!(finds(&report, "note", &["calls io_uring_setup of the kernel by 1"]), "{report:#}");
    assert!(finds(&report, "missed", &["called io_uring_setup", "not served"]), "{report:#}");
    assert_eq!(report["run"]["not_served"], 1, "{report:#}");
}

#[test]
fn report_stands_alone_whatever_the_program_prints() {
    let sandbox = Sandbox::new();
    let ran = sandbox.cairn(&["check", "--json", "echo", "printed", "{"]).ends_with(SERVED);
    assert_eq!(of_check(&ran)["run"]["exit_code"], 0);
    assert!(ran.stderr.contains("printed {"), "{}", ran.stderr);
    sandbox.cairn(&["check", "echo", "printed"]).succeeds().says("printed\n");
}

/// Runs a trial inside a trial: only one tracer can stop the calls of a process.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_trial_could_not_see_is_judged_by_the_files() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "raw", RAW, &[]);
    let inner = ["check", "--mount", "/inner", "--json", "--run", text(&program)];
    let arguments = [&["check", "--", common::CAIRN][..], &inner].concat();
    let mut command = sandbox.command(&arguments);
    let output = command.env("CAIRN_RAW_CALLS", "pass").output().expect("starts");
    let ran = Ran::of(output, format!("{arguments:?}"));
    let document = ran.stdout.split("\n}\n").next().expect("the inner report");
    let report: Value = serde_json::from_str(&format!("{document}\n}}")).expect("JSON");
    assert!(report["run"]["blind"].is_string(), "{report:#}");
    assert!(finds(&report, "note", &["were not looked for"]), "{report:#}");
    assert!(finds(&report, "missed", &["calls openat of the kernel by 2"]), "{report:#}");
    assert_eq!(report["exit_code"], MISSED);
    assert!(!finds(&report, "missed", &["libcairn"]), "{report:#}");
}

/// Keeps the command and its children from setting seccomp filters, as containers do.
fn without_seccomp(command: &mut Command) -> &mut Command {
    refuse(command, libc::SYS_seccomp, libc::ENOSYS, None)
}

/// Mechanism: where the dynamic linker could not be confined, it was not executed. That was taken
/// for its refusal of the program.
///
/// Consequence: in containers that forbid seccomp, every program was reported as out of reach
/// because it "cannot be loaded".
///
/// Fix: `seccomp::try_out` first finds out whether filters can be set. If not, the program is
/// judged without its libraries.
#[test]
fn program_is_judged_without_its_libraries_where_nothing_can_be_confined() {
    let sandbox = Sandbox::new();
    let report = |program: &Path, more: &[&str], code| {
        let arguments = [&["check", "--json"], more, &[text(program)]].concat();
        let output = without_seccomp(&mut sandbox.command(&arguments)).output().expect("starts");
        of_check(&Ran::of(output, "check".to_owned()).ends_with(code))
    };
    let served = compile(&sandbox, "writes", WRITES, &[]);
    let wide = "#include <wchar.h>\nint main(void) { return fwprintf(stdout, L\"x\"); }";
    let wide = compile(&sandbox, "wide", &format!("#include <stdio.h>\n{wide}"), &[]);
    let other =
        compile(&sandbox, "other", WRITES, &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    let unseen = ["libraries it needs were not examined", "seccomp", "function not implemented"];
    for (program, code) in [(&served, SERVED), (&wide, MISSED), (&other, OUT_OF_REACH)] {
        let report = report(program, &[], code);
        assert!(finds(&report, "note", &unseen), "{report:#}");
        assert_eq!(report["libraries"], Value::Array(Vec::new()));
        let is_other = finds(&report, "out-of-reach", &["does not use the GNU C library"]);
        assert_eq!(is_other, code == OUT_OF_REACH, "{report:#}");
    }
    let tried = report(&served, &["--run"], SERVED);
    assert_eq!(tried["run"]["exit_code"], 0, "{tried:#}");
    assert!(tried["run"]["served"].as_u64() > Some(2), "{tried:#}");
    assert!(finds(&tried, "note", &["past the C library were not looked for"]), "{tried:#}");
}

#[test]
fn ring_that_the_c_library_is_asked_for_is_refused_and_said() {
    let sandbox = Sandbox::new();
    let source = "#include <sys/syscall.h>\nint main(void) { static char p[256]; syscall(SYS_io_uring_setup, 4, p); return 0; }";
    let program = compile(&sandbox, "asks", source, &[]);
    let ran = sandbox.cairn(&["check", "--run", text(&program)]).ends_with(MISSED);
    ran.says("called io_uring_setup 1 time, not served (ENOSYS)").says("ordinary calls");
}

#[test]
fn function_of_the_c_library_that_is_not_stood_before_is_seen_by_its_path() {
    let sandbox = Sandbox::new();
    let source = r#"
        #include <mntent.h>
        int main(void) { return setmntent("/cairn/table", "r") != 0; }"#;
    let program = compile(&sandbox, "table", source, &[]);
    let report = check(&sandbox, &[text(&program)], SERVED);
    assert!(finds(&report, "note", &["takes setmntent: ", "below the prefix"]), "{report:#}");
    let ran = sandbox.cairn(&["check", "--run", "--json", text(&program)]).ends_with(MISSED);
    let report = of_check(&ran);
    let seen = finds(&report, "missed", &["openat of the kernel of /cairn/table"]);
    assert!(!sees_past_the_library(&report) || seen, "{report:#}");
}

#[test]
fn trial_fails_then_nothing_is_said_to_be_served() {
    let sandbox = Sandbox::new();
    let failed = ["check", "bash", "-c", "echo x >/cairn/f; exit 5"];
    let ran = sandbox.cairn(&failed).ends_with(1);
    assert!(ran.stdout.contains("the trial failed with exit code 5"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("all of its calls"), "{}", ran.stdout);
    let report =
        of_check(&sandbox.cairn(&["check", "--json", "bash", "-c", "exit 5"]).ends_with(1));
    assert_eq!(report["run"]["exit_code"], 5);
}

#[test]
fn what_a_child_does_is_said_of_the_child() {
    let sandbox = Sandbox::new();
    let still = compile(&sandbox, "still", WRITES, &["-static"]);
    let script =
        format!("echo x >/cairn/f; cat /cairn/f; {}; mkfifo /cairn/p; exit 7", text(&still));
    let ran = sandbox.cairn(&["check", "--json", "bash", "-c", &script]).ends_with(MISSED);
    assert!(ran.stderr.starts_with("x\n"), "{}", ran.stderr);
    let report = of_check(&ran);
    assert_eq!(report["run"]["exit_code"], 7);
    assert!(finds(&report, "missed", &["called mkfifo of /cairn/p 1 time", "EPERM"]), "{report:#}");
    let seen = finds(&report, "missed", &["of the kernel of /cairn/f", text(&still)]);
    assert!(!sees_past_the_library(&report) || seen, "{report:#}");
}

#[test]
fn python_is_served() {
    let sandbox = Sandbox::new();
    let script = "
import os, subprocess, threading
def work(name):
    for number in range(50):
        with open(f'/cairn/{name}.{number}', 'wb') as file: file.write(b'x' * 5000)
        assert os.stat(f'/cairn/{name}.{number}').st_size == 5000
threads = [threading.Thread(target=work, args=(name,)) for name in 'ab']
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert len(os.listdir('/cairn')) == 100
print(subprocess.run(['cat', '/cairn/a.1'], capture_output=True, check=True).stdout == b'x' * 5000)
";
    let report = check(&sandbox, &["python3", "-c", script], SERVED);
    assert_eq!(report["run"]["exit_code"], 0, "{report:#}");
    assert!(report["run"]["served"].as_u64() > Some(300), "{report:#}");
}

#[test]
fn what_cannot_be_executed_is_an_error_as_for_run() {
    let sandbox = Sandbox::new();
    let plain = sandbox.work().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("writes");
    sandbox.cairn(&["check", text(&plain)]).ends_with(126).says("cannot execute");
    sandbox.cairn(&["check", text(&sandbox.work())]).ends_with(126);
    sandbox.cairn(&["check", "./absent"]).ends_with(127);
    let absent = sandbox.cairn(&["check", "no-such-program-anywhere"]).ends_with(127);
    absent.says("cannot execute no-such-program-anywhere: no such file or directory");
    sandbox.cairn(&["check"]).refused_with("PROGRAM");
}

#[test]
fn file_that_is_no_program_of_this_machine_is_out_of_reach() {
    let sandbox = Sandbox::new();
    let odd = sandbox.work().join("odd");
    executable(&odd, b"\x7fELF\x01\x01\x01");
    let report = check(&sandbox, &[text(&odd)], OUT_OF_REACH);
    assert!(finds(&report, "out-of-reach", &["32 bits"]), "{report:#}");
    let whole = fs::read("/bin/true").expect("reads");
    executable(&odd, &whole[..200]);
    let report = check(&sandbox, &[text(&odd)], OUT_OF_REACH);
    assert!(finds(&report, "out-of-reach", &["cannot be read as a program"]), "{report:#}");
}

/// Mechanism: the static view asked the dynamic linker that the file names for its libraries, by
/// executing it. Even the system's dynamic linker executes code of a library that the file names as
/// an auditor.
///
/// Consequence: a mere look at a program ran code of its choice.
///
/// Fix: the executed dynamic linker may only read files (`confined.rs`).
#[test]
fn program_that_is_only_looked_at_carries_nothing_out() {
    let sandbox = Sandbox::new();
    let made = sandbox.work().join("made");
    let makes = format!("creat(\"{}\", 0600)", text(&made));
    let own = compile(
        &sandbox,
        "own-linker",
        &format!("int main() {{ return {makes} < 0; }}"),
        &["-static"],
    );
    let asks = format!("-Wl,--dynamic-linker={}", text(&own));
    let program = compile(&sandbox, "asks", WRITES, &[&asks]);
    check(&sandbox, &[text(&program)], OUT_OF_REACH);
    assert!(!made.exists(), "its dynamic linker was let do what it wanted");

    let source = format!("unsigned la_version(unsigned version) {{ {makes}; return version; }}");
    let auditor = compile(&sandbox, "auditor.so", &source, &["-shared", "-fPIC"]);
    let audited = format!("-Wl,--audit={}", text(&auditor));
    let program = compile(&sandbox, "audited", WRITES, &[&audited]);
    check(&sandbox, &[text(&program)], SERVED);
    assert!(!made.exists(), "its auditor was let do what it wanted");
}

/// Mechanism: findings about calls that bypass the C library differed by path.
///
/// Consequence: a static program that looks at a million files made a million findings.
///
/// Fix: one finding for each call and program, with one path as an example.
#[test]
fn calls_that_differ_only_in_their_paths_are_one_finding() {
    let sandbox = Sandbox::new();
    let source = "#include <unistd.h>\nint main() { access(\"/cairn/a\", 0); access(\"/cairn/b\", 0); return 0; }";
    let program = compile(&sandbox, "looks", source, &["-static"]);
    let report = check(&sandbox, &["env", text(&program)], MISSED);
    let findings = report["findings"].as_array().expect("a list");
    let missed: Vec<&Value> = findings.iter().filter(|found| found["weight"] == "missed").collect();
    assert_eq!(missed.len(), 1, "{report:#}");
    let what = missed[0]["what"].as_str().unwrap_or_default();
    assert!(what.contains("/cairn/a") && what.contains("2 times"), "{what}");
}

/// Mechanism: the interpreter named in a script was printed unescaped.
///
/// Consequence: a script that is only looked at could send control sequences to the terminal.
///
/// Fix: it is escaped, like every name.
#[test]
fn names_in_hostile_files_are_shown_as_text() {
    let sandbox = Sandbox::new();
    let script = sandbox.work().join("script");
    executable(&script, b"#!/no\x1b[31m\xffwhere\n");
    let ran = sandbox.cairn(&["check", text(&script)]).ends_with(OUT_OF_REACH);
    assert!(!ran.stdout.contains('\x1b'), "{:?}", ran.stdout);
    ran.says("its interpreter /no\\x1b[31m\\xffwhere cannot be executed");
}

#[test]
fn trial_keeps_nothing_and_uses_nothing_that_real_runs_use() {
    let sandbox = Sandbox::new();
    let tier = sandbox.work().join("tier");
    let settings = format!(
        "[run]\njob = \"real\"\npersist = \"{}\"\ntier = \"file:{}:64M\"\nmount = \"/elsewhere\"\n",
        text(&sandbox.out()),
        text(&tier)
    );
    fs::write(sandbox.work().join("cairn.toml"), settings).expect("writes");
    let script = "echo x >/elsewhere/f && cat /elsewhere/f";
    let mut command = sandbox.command(&["check", "bash", "-c", script]);
    let job = command.env("CAIRN_RUN_JOB", "real").output().expect("starts");
    let ran = Ran::of(job, "check".to_string()).succeeds();
    assert!(ran.stdout.starts_with("x\n"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");
    assert!(!tier.exists() && sandbox.drained_names().is_empty());
    assert_eq!(sandbox.cairn(&["status"]).succeeds().stdout, "no stores\n");
    let other = ["check", "--mount", "/other", "bash", "-c", "echo y >/other/f && cat /other/f"];
    assert!(sandbox.cairn(&other).succeeds().stdout.starts_with("y\n"));
}

#[test]
fn manual_and_completions_know_it() {
    let sandbox = Sandbox::new();
    let pages = sandbox.work().join("man");
    sandbox.cairn(&["man", "--directory", text(&pages)]).succeeds();
    let page = fs::read_to_string(pages.join("cairn-check.1")).expect("a page");
    assert!(page.contains("out of reach") && page.contains("\\-\\-self"), "{page}");
    assert!(pages.join("cairn-calls.1").exists());
    sandbox.cairn(&["completions", "bash"]).succeeds().says("cairn__subcmd__check").says("--self");
}
