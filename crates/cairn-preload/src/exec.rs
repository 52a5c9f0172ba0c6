//! Executing programs. The store is informed before, the environment keeps what the program needs,
//! and a program stored below the mount runs from an anonymous copy in memory. `scripts.rs` handles
//! scripts.

use cairn_posix::descriptors::description;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use cairn_posix::data::copy;
use cairn_posix::files::path::{self, Route};
use cairn_posix::files::place::Place;
use cairn_posix::files::{file, names};
use cairn_posix::kernel::{address, configuration};
use cairn_posix::process::handover::Handover;
use cairn_posix::process::{Exec, unserved};
use cairn_posix::task::table;
use cairn_posix::{Errno, PathResult};

use crate::answer::{
    answer_path, answer_path_as, count_refusal, errno, guarded, is_ours, set_errno,
};
use crate::environment::Environment;
use crate::hooks;
use crate::scripts::{self, Interpreter};

/// Null-terminated list of strings, as `execve` takes it.
pub type List = *const *const c_char;

unsafe extern "C" {
    static environ: List;
}

/// Environment of this process.
pub fn environment() -> List {
    // SAFETY: the C library's variable, read as `execv` reads it.
    unsafe { environ }
}

/// Maximum length of a path tried in the search of `PATH`.
const PATH_BYTES: usize = 4096;

type Execute = unsafe extern "C-unwind" fn(*const c_char, List, List) -> c_int;

fn real() -> Execute {
    next!(execve: fn(*const c_char, List, List) -> c_int)
}

/// Runs `execute`, which returns only if it fails. Leaves errno as `execute` set it. `program` is
/// the path of the program, if it is known.
///
/// # Safety
/// `program` is terminated, null, or a bad address.
unsafe fn executing(program: *const c_char, execute: impl FnOnce() -> c_int) -> c_int {
    let handover = guarded(|| match address::is_string(program) {
        // SAFETY: promised by the caller.
        true => Ok(Handover::begin(unsafe { CStr::from_ptr(program) })),
        false => Err(Errno(libc::EFAULT)),
    });
    let is_given = handover.as_ref().is_ok_and(Handover::is_needed);
    let exec = guarded(|| Ok::<_, Errno>(Exec::begin(is_given)));
    let result = execute();
    let failure = errno();
    let _ = guarded(|| {
        exec?.failed();
        Ok::<_, Errno>(())
    });
    let _ = guarded(|| {
        handover?.failed();
        Ok::<_, Errno>(())
    });
    set_errno(failure);
    result
}

/// Copies the program at `place` into memory. The returned descriptor survives the exec, for
/// loaders that open it.
fn into_memory(place: &Place) -> PathResult<c_int> {
    let number = file::open(place, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let copied = table::lookup(number).ok_or(Errno(libc::EBADF)).and_then(copy::to_memory);
    description::close(number)?;
    Ok(copied?)
}

/// The path `/proc/self/fd/N`.
pub struct DescriptorPath([u8; 32]);

impl DescriptorPath {
    /// The path of `descriptor`.
    pub fn new(descriptor: c_int) -> DescriptorPath {
        const PREFIX: &[u8] = b"/proc/self/fd/";
        let mut bytes = [0; 32];
        bytes[..PREFIX.len()].copy_from_slice(PREFIX);
        let mut divisor = 1;
        while descriptor / divisor >= 10 {
            divisor *= 10;
        }
        let mut at = PREFIX.len();
        while divisor > 0 {
            bytes[at] = b'0' + (descriptor / divisor % 10) as u8;
            at += 1;
            divisor /= 10;
        }
        DescriptorPath(bytes)
    }

    /// The path as system calls take it. Valid as long as `self`.
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// As `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: List,
    variables: List,
) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { execute(path, arguments, variables, 0) }
}

/// As `execve`; `path` is the interpreter of `depth` nested scripts.
unsafe fn execute(path: *const c_char, arguments: List, variables: List, depth: usize) -> c_int {
    // SAFETY: the caller passes null-terminated lists and a terminated path.
    let (environment, route) =
        unsafe { (Environment::new(variables), cairn_posix::files::path::route(path)) };
    let attempt = |path: *const c_char| {
        // SAFETY: the caller's own arguments; the environment contains theirs.
        unsafe { executing(path, || real()(path, arguments, environment.as_ptr())) }
    };
    let Some(place) = hooks::ours(route, true) else {
        // SAFETY: the caller passes a terminated path or a bad address.
        unsafe { note(path) };
        return attempt(path);
    };
    let elsewhere = |elsewhere: &CStr| {
        // SAFETY: the caller's own arguments, except for the path, which lives for the call.
        unsafe { execute(elsewhere.as_ptr(), arguments, variables, depth) }
    };
    let mut interpreter = None;
    // A script needs no copy: its interpreter opens it by name.
    let memory: c_int = answer_path_as(
        || "execve",
        || {
            interpreter = Interpreter::of(&place)?;
            if interpreter.is_some() { Ok(0) } else { into_memory(&place) }
        },
        elsewhere,
    );
    if memory < 0 {
        return -1;
    }
    if let Some(interpreter) = interpreter {
        // SAFETY: the caller's own arguments; the interpreter's list is made from them.
        return unsafe {
            interpreter.execute(path, arguments, depth, |path, list| {
                execute(path, list, variables, depth + 1)
            })
        };
    }
    let result = attempt(DescriptorPath::new(memory).as_ptr());
    let failure = errno();
    let _ = cairn_posix::kernel::close(memory);
    set_errno(failure);
    result
}

/// Records a foreign program that this library cannot serve.
///
/// # Safety
/// `path` is terminated, or a bad address.
pub unsafe fn note(path: *const c_char) {
    if address::is_string(path) {
        // SAFETY: promised by the caller.
        unserved::note_program(unsafe { CStr::from_ptr(path) });
    }
}

/// Returns the path of the first executable file `name` in the directories of `search`.
fn found_in(search: &[u8], name: &[u8]) -> Option<[u8; PATH_BYTES]> {
    let mut paths = search.split(|&byte| byte == b':').filter_map(|part| joined(part, name));
    paths.find(|path| {
        let access = library!(access: fn(*const c_char, c_int) -> c_int);
        // SAFETY: terminated by `joined`.
        unsafe { access(path.as_ptr().cast(), libc::X_OK) == 0 }
    })
}

/// As `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { execve(path, arguments, environ) }
}

/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(name: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { execvpe(name, arguments, environ) }
}

/// As `execvpe(3)`. The C library searches `PATH`, unless one of its directories is in the mount.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(
    name: *const c_char,
    arguments: List,
    variables: List,
) -> c_int {
    // SAFETY: the caller passes a terminated name.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    if text.contains(&b'/') {
        // SAFETY: the caller's own arguments.
        return unsafe { execute_or_interpret(name, arguments, variables) };
    }
    // SAFETY: a value of the environment is terminated.
    let search =
        unsafe { libc::getenv(c"PATH".as_ptr()).as_ref().map(|path| CStr::from_ptr(path)) };
    let mount = configuration::get().map(|found| found.mount());
    match (search.map(CStr::to_bytes), mount) {
        (Some(search), Some(mount))
            if search.windows(mount.len()).any(|window| window == mount) =>
        {
            // SAFETY: the caller's own arguments.
            unsafe { search_path(search, text, arguments, variables) }
        }
        (search, mount) => {
            let search = search.filter(|_| mount.is_some());
            let program = search.and_then(|search| found_in(search, text));
            let program = program.as_ref().map_or(ptr::null(), |path| path.as_ptr().cast());
            // SAFETY: null, or terminated by `joined`.
            unsafe { note(program) };
            // SAFETY: the caller passes null-terminated lists.
            let environment = unsafe { Environment::new(variables) };
            let execute = next!(execvpe: fn(*const c_char, List, List) -> c_int);
            // SAFETY: the caller's own arguments; the environment contains theirs.
            unsafe { executing(program, || execute(name, arguments, environment.as_ptr())) }
        }
    }
}

/// The path of `name` in `directory`, NUL-terminated; none if it is too long.
fn joined(directory: &[u8], name: &[u8]) -> Option<[u8; PATH_BYTES]> {
    let mut path = [0_u8; PATH_BYTES];
    let directory = if directory.is_empty() { b"." } else { directory };
    if directory.len() + name.len() + 2 > PATH_BYTES {
        return None;
    }
    path[..directory.len()].copy_from_slice(directory);
    path[directory.len()] = b'/';
    path[directory.len() + 1..directory.len() + 1 + name.len()].copy_from_slice(name);
    Some(path)
}

unsafe fn search_path(search: &[u8], name: &[u8], arguments: List, variables: List) -> c_int {
    let mut denied = false;
    for directory in search.split(|&byte| byte == b':') {
        let Some(path) = joined(directory, name) else { continue };
        // SAFETY: the path is terminated; the other arguments are the caller's own.
        unsafe { execute_or_interpret(path.as_ptr().cast(), arguments, variables) };
        match errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return -1,
        }
    }
    set_errno(if denied { libc::EACCES } else { libc::ENOENT });
    -1
}

/// Executes a file; if the kernel cannot, runs it as a shell script, as POSIX says.
unsafe fn execute_or_interpret(path: *const c_char, arguments: List, variables: List) -> c_int {
    // SAFETY: the caller's own arguments.
    let result = unsafe { execve(path, arguments, variables) };
    if errno() != libc::ENOEXEC {
        return result;
    }
    // SAFETY: the caller's own arguments; the shell's list is made from them.
    unsafe {
        scripts::execute_by_shell(path, arguments, |shell, list| execve(shell, list, variables))
    }
}

/// As `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(
    descriptor: c_int,
    arguments: List,
    variables: List,
) -> c_int {
    let path = DescriptorPath::new(descriptor);
    // SAFETY: the caller's own arguments; the path is terminated.
    unsafe { execve(path.as_ptr(), arguments, variables) }
}

/// As `execveat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    variables: List,
    flags: c_int,
) -> c_int {
    // Before `route_at`, which looks up the directory in the table only.
    let directory_is_ours = directory != libc::AT_FDCWD && is_ours(directory);
    // SAFETY: the caller passes a terminated path or a bad address.
    let (route, empty) =
        unsafe { (cairn_posix::files::path::route_at(directory, path), path::is_empty(path)) };
    if matches!(route, Route::Libc) {
        if directory_is_ours && empty && flags & libc::AT_EMPTY_PATH != 0 {
            // SAFETY: the caller's own arguments.
            return unsafe { fexecve(directory, arguments, variables) };
        }
        // SAFETY: the caller passes null-terminated lists.
        let environment = unsafe { Environment::new(variables) };
        let whole = DescriptorPath::new(directory);
        let program = match directory {
            _ if empty => whole.as_ptr(),
            libc::AT_FDCWD => path,
            _ => ptr::null(),
        };
        let execute = next!(execveat: fn(c_int, *const c_char, List, List, c_int) -> c_int);
        // SAFETY: the caller's own arguments; the environment contains theirs.
        return unsafe {
            executing(program, || execute(directory, path, arguments, environment.as_ptr(), flags))
        };
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let mut whole = Vec::new();
    let looked: c_int = answer_path(
        || {
            hooks::with_flags(flags, libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW, || Ok(()))?;
            let Some(place) = hooks::ours(route, follow).filter(|_| directory_is_ours) else {
                return Ok(());
            };
            if !follow && file::stat(&place, false)?.is_symlink() {
                return Err(Errno(libc::ELOOP).into());
            }
            whole = names::absolute(place.base)?;
            whole.extend([b"/", place.path, b"\0"].concat());
            Ok(())
        },
        // `execve` finds out again that the path leads out of the mount.
        |_| 0,
    );
    if looked < 0 {
        return -1;
    }
    let path = if whole.is_empty() { path } else { whole.as_ptr().cast() };
    // SAFETY: the caller's own arguments, except for the path, which lives for the call.
    unsafe { execve(path, arguments, variables) }
}

/// Defines a variadic function as one with a fixed number of parameters, because stable Rust cannot
/// define variadic ones. On our targets the arguments are in the same registers and stack words.
/// Words after the null that ends the caller's list belong to the caller's stack, and are not used.
macro_rules! listed {
    ($(fn $name:ident = |$first:ident, $list:ident, $end:pat_param| $act:expr;)*) => {
        listed!(@each [$(fn $name = |$first, $list, $end| $act;)*]
            [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23 a24 a25 a26 a27 a28 a29 a30 a31 a32 a33 a34 a35 a36 a37 a38 a39 a40 a41 a42 a43 a44 a45 a46 a47 a48 a49 a50 a51 a52 a53 a54 a55 a56 a57 a58 a59 a60 a61 a62 a63]);
    };
    (@each [$(fn $name:ident = |$first:ident, $list:ident, $end:pat_param| $act:expr;)*] $arguments:tt) => {
        $(listed!(@one fn $name = |$first, $list, $end| $act; $arguments);)*
    };
    (@one fn $name:ident = |$first:ident, $list:ident, $end:pat_param| $act:expr; [$($argument:ident)*]) => {
        /// As the C library's function of this name. Errors: `E2BIG` with more arguments than this
        /// function can receive.
        #[allow(clippy::too_many_arguments, reason = "stands for a variable list")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $first: *const c_char $(, $argument: *const c_char)*
        ) -> c_int {
            let words = [$($argument),*];
            let $list = words.as_slice();
            let Some($end) = $list.iter().position(|word| word.is_null()) else { return too_many(stringify!($name)) };
            // SAFETY: the caller's own arguments, in a null-terminated list.
            unsafe { $act }
        }
    };
}

listed! {
    fn execl = |path, list, _| execv(path, list.as_ptr());
    fn execlp = |name, list, _| execvp(name, list.as_ptr());
    // The environment follows the null that ends the arguments.
    fn execle = |path, list, end| match list.get(end + 1) {
        Some(environment) => execve(path, list.as_ptr(), environment.cast()),
        None => too_many("execle"),
    };
}

fn too_many(symbol: &str) -> c_int {
    count_refusal(symbol, libc::E2BIG);
    set_errno(libc::E2BIG);
    -1
}
