//! Scripts: a file that begins with `#!` is run by its interpreter, and a file in no executable
//! format by the shell.
//!
//! The kernel does the former for files that it can open. For a Cairn file this library does it, so
//! that the interpreter gets the script under its own name. Allocates by mmap only, because a
//! forked child of a threaded program may not call malloc.

use cairn_posix::descriptors::description;
use core::ffi::{CStr, c_char, c_int};

use cairn_posix::data::io::{self, At};
use cairn_posix::data::transfer::Buffers;
use cairn_posix::files::file;
use cairn_posix::files::place::Place;
use cairn_posix::mount::Rights;
use cairn_posix::task::table;
use cairn_posix::{Errno, PathResult, kernel};

use crate::answer::{errno, set_errno};
use crate::exec::List;

/// Number of bytes of a file that the kernel reads (`BINPRM_BUF_SIZE`).
const LINE_BYTES: usize = 256;
/// Maximum number of nested interpreters that are scripts themselves.
const DEPTH_MAX: usize = 4;

/// First line of a script, with its path and argument NUL-terminated.
pub struct Interpreter {
    line: [u8; LINE_BYTES + 1],
    path: usize,
    argument: Option<usize>,
}

impl Interpreter {
    /// Interpreter of the file at `place`; none if the file is no script. Errors: `EACCES` if the
    /// file is not executable or is a directory; `ENOEXEC` if the line names no interpreter.
    pub fn of(place: &Place) -> PathResult<Option<Interpreter>> {
        file::access(place, libc::X_OK, true, Rights::Effective)?;
        if file::stat(place, true)?.is_directory() {
            return Err(Errno(libc::EACCES).into());
        }
        let number = file::open(place, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
        let mut line = [0; LINE_BYTES + 1];
        let entry = libc::iovec { iov_base: line.as_mut_ptr().cast(), iov_len: LINE_BYTES };
        let read = table::lookup(number).ok_or(Errno(libc::EBADF)).and_then(|handle| {
            // SAFETY: the entry describes all of `line` except its last byte.
            io::read(handle, unsafe { Buffers::one(&entry) }, At::Cursor)
        });
        description::close(number)?;
        match line[..read?].starts_with(b"#!") {
            true => Ok(Some(Interpreter::parse(line)?)),
            false => Ok(None),
        }
    }

    fn parse(mut line: [u8; LINE_BYTES + 1]) -> cairn_posix::Result<Interpreter> {
        let end = line.iter().position(|&byte| matches!(byte, b'\n' | 0)).unwrap_or(LINE_BYTES);
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let last = line[2..end].iter().rposition(|byte| !is_blank(byte));
        let last = last.ok_or(Errno(libc::ENOEXEC))? + 2;
        line[last + 1] = 0;
        let path = line[2..=last].iter().position(|byte| !is_blank(byte)).unwrap_or(0) + 2;
        let gap = line[path..=last].iter().position(is_blank).map(|gap| path + gap);
        let argument = gap.map(|gap| {
            line[gap] = 0;
            line[gap + 1..=last].iter().position(|byte| !is_blank(byte)).unwrap_or(0) + gap + 1
        });
        Ok(Interpreter { line, path, argument })
    }

    fn text(&self, start: usize) -> *const c_char {
        self.line[start..].as_ptr().cast()
    }

    /// Executes the interpreter on `script`. `execute` is `execve`, and returns only if it fails.
    ///
    /// # Safety
    /// `script` is terminated and `arguments` ends with null.
    pub unsafe fn execute(
        &self,
        script: *const c_char,
        arguments: List,
        depth: usize,
        execute: impl FnOnce(*const c_char, List) -> c_int,
    ) -> c_int {
        if depth >= DEPTH_MAX {
            set_errno(libc::ELOOP);
            return -1;
        }
        let path = self.text(self.path);
        let argument = self.argument.map(|start| self.text(start));
        let given = [path, argument.unwrap_or(script), script];
        let count = if argument.is_some() { 3 } else { 2 };
        // SAFETY: promised by the caller; the strings live in `self`.
        unsafe { with_arguments(&given[..count], arguments, |list| execute(path, list)) }
    }
}

/// Executes the shell on a file whose format the kernel does not know, as POSIX says for `execvp`.
///
/// # Safety
/// `script` is terminated and `arguments` ends with null.
pub unsafe fn execute_by_shell(
    script: *const c_char,
    arguments: List,
    execute: impl FnOnce(*const c_char, List) -> c_int,
) -> c_int {
    const SHELL: &CStr = c"/bin/sh";
    let given = [SHELL.as_ptr(), script];
    // SAFETY: promised by the caller.
    unsafe { with_arguments(&given, arguments, |list| execute(SHELL.as_ptr(), list)) }
}

/// Calls `execute` with `first`, followed by `arguments` without the program's own name.
///
/// # Safety
/// `arguments` ends with null.
unsafe fn with_arguments(
    first: &[*const c_char],
    arguments: List,
    execute: impl FnOnce(List) -> c_int,
) -> c_int {
    let mut count = 0;
    // SAFETY: the list ends with null, and counting stops there.
    while !arguments.is_null() && !unsafe { *arguments.add(count) }.is_null() {
        count += 1;
    }
    let rest = count.saturating_sub(1);
    let bytes = (first.len() + rest + 1) * size_of::<*const c_char>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let Ok(start) = kernel::mmap(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let list = start.cast::<*const c_char>();
    // SAFETY: the zeroed mapping has room for both parts and a final null; the list has `count`
    // entries.
    unsafe {
        core::ptr::copy_nonoverlapping(first.as_ptr(), list, first.len());
        if rest > 0 {
            core::ptr::copy_nonoverlapping(arguments.add(1), list.add(first.len()), rest);
        }
    }
    let result = execute(list);
    let failure = errno();
    // SAFETY: the mapping made above, which nobody uses any more.
    let _ = unsafe { kernel::munmap(start, bytes) };
    set_errno(failure);
    result
}
