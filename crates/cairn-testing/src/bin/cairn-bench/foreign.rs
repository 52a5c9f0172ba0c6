//! Rows about the cost of Cairn where it is not needed: calls on foreign files, the start of a
//! process.
//!
//! A process of a job cannot start a process outside it, because the library stays in the
//! environment. So this program runs outside, and the `cairn` beside it makes the stores.

use crate::measure::{nanoseconds_each, report_difference};
use crate::process::{child_command, number_from};
use std::ffi::CStr;
use std::io::Write;
use std::process::Command;

const ROUNDS: usize = 15;
const CALLS: usize = 200_000;
const STARTS: usize = 100;
/// Works of children.
pub const WORKS: [&str; 5] = ["write", "stat", "open", "lseek", "start"];
/// A foreign file, which belongs to the machine.
const FILE: &CStr = c"/etc/hostname";

/// Measures each work with and without the library, in turn.
pub fn costs() {
    for work in WORKS {
        let (name, bar) = match work {
            "write" => ("write 1 B to /dev/null: added", 20.0),
            "stat" => ("stat of a foreign file: added", 20.0),
            "open" => ("open+close of a foreign file: added", 20.0),
            "lseek" => ("lseek on a foreign file: added", 20.0),
            _ => ("start of /bin/true: added", 300_000.0),
        };
        let rounds = (0..ROUNDS).map(|_| (in_a_job(work), number_from(&mut child_command(work))));
        let (with, without): (Vec<f64>, Vec<f64>) = rounds.unzip();
        report_difference(name, "ns", &with, &without, bar);
    }
}

fn in_a_job(work: &str) -> f64 {
    let child = child_command(work);
    let mut command =
        Command::new(std::path::Path::new(child.get_program()).with_file_name("cairn"));
    command.args(["run", "--discard", "--tier", "ram:64M", "--"]).arg(child.get_program());
    number_from(command.args(child.get_args()))
}

/// Work of a child. Returns nanoseconds per operation.
pub fn cost(work: &str) -> f64 {
    match work {
        "write" => foreign_writes(),
        "stat" => foreign_stats(FILE),
        "open" => foreign_opens(FILE),
        "lseek" => foreign_seeks(FILE),
        _ => starts(),
    }
}

fn foreign_writes() -> f64 {
    let file = std::fs::File::options().write(true).open("/dev/null").expect("open");
    nanoseconds_each(CALLS, || {
        for _ in 0..CALLS {
            (&file).write_all(b"x").expect("write");
        }
    })
}

fn foreign_stats(path: &CStr) -> f64 {
    nanoseconds_each(CALLS, || {
        for _ in 0..CALLS {
            let mut attributes = std::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: `path` is zero-terminated, and `attributes` has room for the result.
            unsafe { libc::stat(path.as_ptr(), attributes.as_mut_ptr()) };
        }
    })
}

fn foreign_opens(path: &CStr) -> f64 {
    nanoseconds_each(CALLS, || {
        for _ in 0..CALLS {
            // SAFETY: `path` is zero-terminated, and the call closes only what it opened.
            unsafe { libc::close(libc::open(path.as_ptr(), libc::O_RDONLY)) };
        }
    })
}

fn foreign_seeks(path: &CStr) -> f64 {
    // SAFETY: `path` is zero-terminated.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
    nanoseconds_each(CALLS, || {
        for _ in 0..CALLS {
            // SAFETY: lseek takes no pointers.
            unsafe { libc::lseek(file, 0, libc::SEEK_SET) };
        }
    })
}

/// Starts /bin/true and waits for it. Returns nanoseconds per start.
fn starts() -> f64 {
    let mut command = Command::new("/bin/true");
    nanoseconds_each(STARTS, || {
        for _ in 0..STARTS {
            command.status().expect("start /bin/true");
        }
    })
}
