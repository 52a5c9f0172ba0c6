//! Programs that Cairn cannot serve, because the dynamic linker does not load it into them.
//!
//! The store gets a note about those that gain privileges when they are executed, once for each
//! program: nobody can be told at that moment.
//!
//! A note is a file of the store, `unserved/DEVICE.INODE`, that holds the program's path. `cairn
//! run` and `cairn status` read the notes. `unserved/unreached.DEVICE.INODE` is about a program
//! that inherited files of the store and cannot use them. `unserved/uncaught` says that system
//! calls past the C library cannot be served where the program runs.
//!
//! Does not keep any program from being executed, and skips programs that it cannot examine.

use core::ffi::CStr;

use cairn_platform::descriptor::Descriptor;
use cairn_platform::elf::{self, Loader};
use cairn_platform::short_path::ShortPath;
use cairn_platform::sys;

use crate::kernel::configuration::{self, Configuration, LIBRARY};

/// Directory of the notes, within the store.
pub const NOTES: &CStr = c"unserved";
/// Note that names the library whose raw system calls could not be caught.
pub const UNCAUGHT: &CStr = c"uncaught";
/// How the names of notes about programs begin that inherited what they cannot use.
pub const UNREACHED: &str = "unreached.";
/// Most bytes of a program's path that a note holds, NUL included.
const PATH_BYTES: usize = 512;
/// Bytes of a program that tell who loads it: its headers, or the first line of a script.
const HEAD_BYTES: usize = 4096;
/// How the names of the C library's dynamic linkers begin. Others do not load a library that needs
/// this C library.
const LINKER: &[u8] = b"ld-linux";
/// Extended attribute in which the kernel keeps the capabilities of a file.
const CAPABILITIES: &CStr = c"security.capability";

/// Writes a note about the program at `path`, which this process is about to execute, if the
/// dynamic linker will not load Cairn into it.
pub fn note_program(path: &CStr) {
    let Some(configuration) = configuration::get() else { return };
    let Some(program) = gains_rights(path) else { return };
    note(configuration, &name_of(b"", &program), path);
}

/// Writes a note about the program at `path`, which this process is about to execute: it inherits
/// files of the store or a directory of it, and is out of reach. Of one that gains rights
/// [`note_program`] tells.
pub fn note_unreached(path: &CStr) {
    let Some(configuration) = configuration::get().filter(|_| gains_rights(path).is_none()) else {
        return;
    };
    if let Ok(program) = sys::fstatat(libc::AT_FDCWD, path, 0) {
        note(configuration, &name_of(UNREACHED.as_bytes(), &program), path);
    }
}

fn name_of(prefix: &[u8], program: &libc::stat) -> ShortPath {
    let mut name = ShortPath::new();
    name.push(prefix);
    name.push_number(program.st_dev);
    name.push(b".");
    name.push_number(program.st_ino);
    name
}

/// Whether the dynamic linker will not load Cairn into the program at `path`. Of a script, its
/// interpreter counts. False for what cannot be read.
pub fn is_out_of_reach(path: &CStr) -> bool {
    let mut head = [0; HEAD_BYTES];
    let Some(length) = read_head(path, &mut head) else { return false };
    match elf::loader(&head[..length]) {
        Some(Loader::Kernel | Loader::Foreign) => true,
        Some(Loader::Linker(linker)) => {
            let name = linker.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            !name.starts_with(LINKER) || gains_rights(path).is_some() || !is_library_there()
        }
        // An interpreter that is itself a script is rare, and not followed.
        None => interpreter(&mut head).is_some_and(|path| {
            let mut head = [0; HEAD_BYTES];
            let length = read_head(path, &mut head).unwrap_or(0);
            matches!(elf::loader(&head[..length]), Some(Loader::Kernel | Loader::Foreign))
        }),
    }
}

/// Reads the beginning of the file at `path`. Returns how many bytes were read.
fn read_head(path: &CStr, head: &mut [u8; HEAD_BYTES]) -> Option<usize> {
    // Waits for nothing else that may be there.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let program = Descriptor::open(libc::AT_FDCWD, path, flags, 0).ok()?;
    sys::read(program.raw(), head).ok()
}

/// Returns the interpreter of the script that begins with `head`.
fn interpreter(head: &mut [u8; HEAD_BYTES]) -> Option<&CStr> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = head.strip_prefix(b"#!")?;
    let start = 2 + line.iter().position(|byte| !is_blank(byte))?;
    let length = head[start..].iter().position(|byte| is_blank(byte) || *byte == b'\n')?;
    head[start + length] = 0;
    CStr::from_bytes_until_nul(&head[start..]).ok()
}

/// Whether the library is where `LD_PRELOAD` says. It may not be in a container.
fn is_library_there() -> bool {
    let listed = configuration::get().map_or(&[][..], Configuration::preload);
    let mut entries = listed.split(|byte| matches!(byte, b':' | b' '));
    let own = entries.find(|entry| entry.windows(LIBRARY.len()).any(|part| part == LIBRARY));
    let mut path = [0; HEAD_BYTES];
    match own.filter(|own| own.len() < path.len()) {
        Some(own) => {
            path[..own.len()].copy_from_slice(own);
            let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
            sys::faccessat(libc::AT_FDCWD, path, libc::R_OK).is_ok()
        }
        None => true,
    }
}

/// Writes a note that the raw system calls of the library at `path` cannot be caught here. An empty
/// path stands for the program itself.
pub fn note_uncaught(path: &CStr) {
    let Some(configuration) = configuration::get() else { return };
    let mut program = [0; PATH_BYTES];
    let room = &mut program[..PATH_BYTES - 1];
    let is_program =
        path.is_empty() && sys::readlinkat(libc::AT_FDCWD, c"/proc/self/exe", room).is_ok();
    let program = CStr::from_bytes_until_nul(&program).unwrap_or_default();
    note(configuration, UNCAUGHT, if is_program { program } else { path });
}

/// Writes `text` to the note `name`, unless the note exists.
fn note(configuration: &Configuration, name: &CStr, text: &CStr) {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let store = configuration.store_path();
    let Ok(store) = Descriptor::open(libc::AT_FDCWD, store, flags, 0) else { return };
    // The directory may exist.
    let _ = sys::mkdirat(store.raw(), NOTES, 0o700);
    let mut path = ShortPath::new();
    path.push(NOTES.to_bytes());
    path.push(b"/");
    path.push(name.to_bytes());
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    if let Ok(note) = Descriptor::open(store.raw(), &path, flags, 0o600) {
        let _ = sys::write(note.raw(), text.to_bytes());
    }
}

/// Returns the attributes of the program at `path` if the kernel will mark its process as having
/// other privileges than the process that executes it.
fn gains_rights(path: &CStr) -> Option<libc::stat> {
    let program = sys::fstatat(libc::AT_FDCWD, path, 0).ok()?;
    let is_file = program.st_mode & libc::S_IFMT == libc::S_IFREG;
    (is_file && differs_in_rights(path, &program) && !is_ignored(path)).then_some(program)
}

fn differs_in_rights(path: &CStr, program: &libc::stat) -> bool {
    const GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;
    // SAFETY: take nothing and cannot fail.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let new_user = match program.st_mode & libc::S_ISUID {
        0 => sys::geteuid(),
        _ => program.st_uid,
    };
    let new_group = match program.st_mode & GROUP {
        GROUP => program.st_gid,
        _ => sys::getegid(),
    };
    (new_user, new_group) != (user, group) || user != 0 && has_capabilities(path)
}

fn has_capabilities(path: &CStr) -> bool {
    let (path, name) = (path.as_ptr(), CAPABILITIES.as_ptr());
    let arguments = [path as libc::c_long, name as libc::c_long, 0, 0];
    // SAFETY: both strings are NUL-terminated; with size 0 the kernel only returns the size.
    unsafe { sys::call(libc::SYS_getxattr, arguments) }.is_ok_and(|bytes| bytes > 0)
}

/// Whether the kernel would not grant the privileges, so that the program is like any other.
fn is_ignored(path: &CStr) -> bool {
    // `struct statfs` of 64-bit kernels.
    let mut system = [0_u64; 15];
    const FLAGS: usize = 10;
    let arguments = [path.as_ptr() as libc::c_long, system.as_mut_ptr() as libc::c_long];
    // SAFETY: the path is NUL-terminated, and the kernel fills the words.
    let known = unsafe { sys::call(libc::SYS_statfs, arguments) }.is_ok();
    // SAFETY: takes no pointer.
    let refused =
        unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS.into(), 0, 0, 0, 0]) };
    refused == Ok(1) || known && system[FLAGS] & libc::ST_NOSUID != 0
}
