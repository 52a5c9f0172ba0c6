//! System calls that programs and libraries make by their own instructions are served like those
//! through the C library, where the kernel can catch them. The program's handlers, signal masks,
//! stacks and jumps work as before.

#![cfg(target_arch = "x86_64")]

mod common;
#[path = "../src/dispatch/text.rs"]
mod text_of_libraries;

use common::{Stage, errors, same_on_both, text};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Makes the kernel refuse Syscall User Dispatch to the command, as older kernels do.
fn without_dispatch(command: &mut Command) -> &mut Command {
    const FIRST_ARGUMENT: u32 = 16;
    let step = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let unless = |is: u32, others| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, others, is);
    let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let steps = [
        load(0),
        unless(libc::SYS_prctl as u32, 3),
        load(FIRST_ARGUMENT),
        unless(PR_SET_SYSCALL_USER_DISPATCH as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let confine = move || {
        let program = libc::sock_fprog { len: 6, filter: steps.as_ptr().cast_mut() };
        // SAFETY: takes numbers, and a filter of six steps that is only read.
        let is_set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        };
        if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(confine) }
}

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;

/// Whether the kernel has Syscall User Dispatch. If not, prints that the test is left out.
fn can_catch() -> bool {
    // SAFETY: turns off dispatch, which is not on.
    let is_known = unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } == 0;
    if !is_known {
        println!("left out: this kernel cannot catch calls");
    }
    is_known
}

/// Whether text with this end makes calls that may be about files. Ordinary instructions precede
/// it.
fn calls(end: &[u8]) -> bool {
    // mov rdi, rsp; lea rsi, [rbx + 8]; add rcx, 1; nop
    const ORDINARY: [u8; 12] =
        [0x48, 0x89, 0xe7, 0x48, 0x8d, 0x73, 0x08, 0x48, 0x83, 0xc1, 1, 0x90];
    let text = [&ORDINARY.repeat(30)[..], end, &ORDINARY.repeat(3)].concat();
    text_of_libraries::calls_the_kernel(&text)
}

#[test]
fn calls_about_files_are_told_from_others_and_from_other_bytes() {
    const ENTER: [u8; 2] = [0x0f, 0x05];
    let with = |before: &[u8]| calls(&[before, &ENTER].concat());
    assert!(with(&[0xb8, 0x08, 1, 0, 0]), "mov eax, renameat");
    assert!(with(&[0x31, 0xc0]), "xor eax, eax: read");
    assert!(with(&[0x89, 0xf8]), "mov eax, edi: any");
    assert!(!with(&[0xb8, 0xca, 0, 0, 0]), "mov eax, futex");
    assert!(!with(&[0xbd, 0xca, 0, 0, 0, 0x89, 0xe8]), "mov ebp, futex; mov eax, ebp");
    // mov edi, futex; jmp, or ret; and a function that makes the call it is given: mov rax, rdi.
    for end in [&[0xe9, 0, 1, 0, 0][..], &[0xc3]] {
        assert!(with(&[&[0xbf, 0xca, 0, 0, 0], end, &[0x48, 0x89, 0xf8]].concat()), "{end:?}");
    }
    assert!(!calls(&[0x0f, 0x8e, 0x0f, 0x05, 0, 0]), "jle to what is 0x50f further");
    assert!(!calls(&[0x48, 0xb8, 0x0f, 0x05, 1, 2, 3, 4, 5, 6]), "a number that is written");
    assert!(!calls(&[]));
    // Instructions that only the kernel executes: in, out, hlt, wrmsr, cli; followed by `syscall`.
    let data = [0xec, 0xee, 0xf4, 0x0f, 0x30, 0xfa].repeat(40);
    assert!(!with(&data), "data");
}

fn same(case: &str) {
    if can_catch() {
        same_on_both("instructions", case);
    }
}

#[test]
fn files_are_served() {
    same("files");
}

#[test]
fn threads_are_armed_also_with_small_stacks() {
    same("threads");
}

/// Mechanism: the code that serves a caught call did not let a cancelled thread unwind.
/// Consequence: the program was aborted. Fix: that code may unwind.
#[test]
fn thread_is_cancelled_between_calls() {
    same("cancelled");
}

#[test]
fn children_are_armed() {
    same("children");
}

#[test]
fn handlers_masks_and_stacks_are_those_of_the_program() {
    same("signals");
}

/// Mechanism: calls were served in the SIGSYS handler, on another stack. Consequence: the next
/// handler on the alternate stack overwrote the frame of the first. Fix: the thread itself serves
/// the call, after the SIGSYS handler has returned.
#[test]
fn handlers_on_alternate_stacks_and_under_masks_run_in_the_midst_of_calls() {
    same("storms");
}

#[test]
fn registers_are_kept() {
    same("registers");
}

#[test]
fn handler_may_jump_out_of_a_call_that_waits() {
    same("jumps");
}

/// Mechanism: system calls by a library's own instructions were not seen. Consequence: a library
/// that creates a file through the C library and renames it by an instruction, as Rust's rustix
/// does, found no file, and no model was saved. Fix: such calls are caught in all threads once the
/// library is loaded.
#[test]
fn library_that_comes_later_is_served_in_threads_that_were_there() {
    if !can_catch() {
        return;
    }
    let stage = Stage::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/late.c");
    let library = stage.plain().join("liblate.so");
    let program = stage.plain().join("late");
    for (flags, output) in [(&["-shared", "-fPIC", "-DLIBRARY"][..], &library), (&[], &program)] {
        let mut compiler = Command::new("cc");
        compiler.args(["-pthread", "-O1", "-w", "-o"]).arg(output).arg(&source).args(flags);
        assert!(compiler.status().expect("there is a C compiler").success());
    }
    let run = |options: &[&str]| {
        let mut command = stage.command(common::cairn());
        command.args(["run", "--discard"]).args(options).arg("--").arg(&program);
        command.args(["late", "/cairn"]).env("LATE", &library);
        command
    };
    let played = run(&["--report-calls"]).output().expect("cairn starts");
    assert_eq!(text(&played), "main 0\nthread 0\nthere 0\n", "{}", errors(&played));
    let counted = errors(&played);
    assert!(counted.contains("2 caught that were made past the C library"), "{counted}");
    // With `pass`, the program gets the kernel's results.
    let passed = run(&[]).env("CAIRN_RAW_CALLS", "pass").output().expect("cairn starts");
    assert_eq!(text(&passed), "main -2\nthread -2\nthere -1\n", "{}", errors(&passed));
    assert!(!errors(&passed).contains("past the C library"), "{}", errors(&passed));
    // On a kernel without dispatch, `cairn run` reports the uncaught calls.
    let old = without_dispatch(&mut run(&[])).output().expect("cairn starts");
    assert_eq!(text(&old), text(&passed), "{}", errors(&old));
    let said = format!("calls that {} makes past the C library", library.display());
    assert!(errors(&old).contains(&said), "{}", errors(&old));
}
