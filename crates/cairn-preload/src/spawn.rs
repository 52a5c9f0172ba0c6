//! `posix_spawn`, implemented by fork and exec if the store is concerned. The C library would open
//! Cairn files itself, and create a child that holds no references.

use core::ffi::{c_char, c_int, c_short, c_uint};

use cairn_posix::files::path::Route;
use cairn_posix::{Errno, Result, kernel, process};
use libc::{pid_t, sigset_t};

use crate::answer::errno;
use crate::environment::Environment;
use crate::exec::{self, List};
use crate::{descriptors, directories, life, open};

/// `posix_spawn_file_actions_t` of the C library.
#[repr(C)]
pub struct FileActions {
    allocated: c_int,
    used: c_int,
    list: *const Action,
    reserved: [c_int; 16],
}

const _: () = assert!(size_of::<FileActions>() == size_of::<libc::posix_spawn_file_actions_t>());

/// One file action: a tag and its arguments. Layout of the C library since 2.0 (open), 2.29
/// (directories) and 2.34 (ranges, terminal).
#[derive(Clone, Copy)]
#[repr(C)]
struct Action {
    tag: c_int,
    arguments: Arguments,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Arguments {
    open: Open,
    pair: [c_int; 2],
    path: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Open {
    number: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
}

const _: () = assert!(size_of::<Action>() == 32);

const CLOSE: c_int = 0;
const DUPLICATE: c_int = 1;
const OPEN: c_int = 2;
const CHANGE_DIRECTORY: c_int = 3;
const CHANGE_TO_DESCRIPTOR: c_int = 4;
const CLOSE_FROM: c_int = 5;
const SET_TERMINAL: c_int = 6;

type Attributes = libc::posix_spawnattr_t;

fn actions<'a>(actions: *const FileActions) -> &'a [Action] {
    // SAFETY: the caller of posix_spawn passes null or an initialised object, whose list has `used`
    // entries.
    unsafe {
        match actions.as_ref() {
            Some(actions) if actions.used > 0 => {
                core::slice::from_raw_parts(actions.list, actions.used as usize)
            }
            _ => &[],
        }
    }
}

fn is_ours(path: *const c_char) -> bool {
    // SAFETY: an action's path is terminated.
    !matches!(unsafe { cairn_posix::files::path::route(path) }, Route::Libc)
}

/// Whether the C library's own posix_spawn would miss a Cairn file or descriptor.
fn concerns_us(path: *const c_char, list: &[Action]) -> bool {
    process::has_inheritable_state()
        || is_ours(path)
        || list.iter().any(|action| match action.tag {
            // SAFETY: the tag says which member is set.
            OPEN => is_ours(unsafe { action.arguments.open.path }),
            // SAFETY: as above.
            CHANGE_DIRECTORY => is_ours(unsafe { action.arguments.path }),
            _ => false,
        })
}

/// The child's end of a pipe, on which it reports why the program could not be executed. A
/// successful exec closes it. -1 if there is no pipe, because the process has no free descriptor
/// numbers; the child then only exits with 127.
struct Report(c_int);

impl Report {
    /// Moves the pipe away from a number that an action is about to use. Returns false if there is
    /// no other free number.
    fn leave(&mut self, number: c_int) -> bool {
        if number != self.0 {
            return true;
        }
        match kernel::fcntl(number, libc::F_DUPFD_CLOEXEC, i64::from(number) + 1) {
            Ok(moved) => self.0 = moved,
            Err(_) => return false,
        }
        kernel::close(number).is_ok()
    }

    /// Closes all descriptors from `first` on, except this one.
    fn close_others(&self, first: c_int) {
        let first = first.max(0) as c_uint;
        let Ok(own) = c_uint::try_from(self.0) else {
            // SAFETY: as below.
            unsafe { descriptors::close_range(first, c_uint::MAX, 0) };
            return;
        };
        let after = first.max(own + 1);
        // SAFETY: our own hook, which takes no pointer. Closing numbers that are not open is no
        // error.
        unsafe {
            if first < own {
                descriptors::close_range(first, own - 1, 0);
            }
            descriptors::close_range(after, c_uint::MAX, 0);
        }
    }
}

unsafe fn perform(action: &Action, report: &mut Report) -> bool {
    // SAFETY: the tag says which member is set; the arguments are the caller's.
    unsafe {
        match action.tag {
            CLOSE => {
                let number = action.arguments.pair[0];
                // As in the C library: closing a number that is not open is no error.
                number == report.0 || {
                    descriptors::close(number);
                    true
                }
            }
            DUPLICATE => {
                let [from, to] = action.arguments.pair;
                match from == to {
                    true => descriptors::fcntl(from, libc::F_SETFD, 0) >= 0,
                    false => report.leave(to) && descriptors::dup2(from, to) >= 0,
                }
            }
            OPEN => report.leave(action.arguments.open.number) && open_as(action.arguments.open),
            CHANGE_DIRECTORY => directories::chdir(action.arguments.path) == 0,
            CHANGE_TO_DESCRIPTOR => directories::fchdir(action.arguments.pair[0]) == 0,
            CLOSE_FROM => {
                report.close_others(action.arguments.pair[0]);
                true
            }
            SET_TERMINAL => libc::tcsetpgrp(action.arguments.pair[0], libc::getpgrp()) == 0,
            _ => false,
        }
    }
}

unsafe fn open_as(wanted: Open) -> bool {
    let Open { number, path, flags, mode } = wanted;
    // SAFETY: our own hooks; the path is the caller's, terminated.
    unsafe {
        descriptors::close(number);
        let opened = open::open(path, flags, mode);
        if opened < 0 || opened == number {
            return opened >= 0;
        }
        let moved = descriptors::dup2(opened, number) >= 0;
        descriptors::close(opened);
        moved
    }
}

/// Applies the attributes in the child.
unsafe fn apply(attributes: *const Attributes) -> bool {
    if attributes.is_null() {
        return true;
    }
    let mut flags: c_short = 0;
    // SAFETY: the caller passes an initialised object, which its own accessors read.
    unsafe {
        libc::posix_spawnattr_getflags(attributes, &raw mut flags);
        let has = |flag: c_short| flags & flag != 0;
        let mut set: sigset_t = core::mem::zeroed();
        if has(libc::POSIX_SPAWN_SETSIGDEF as c_short) {
            libc::posix_spawnattr_getsigdefault(attributes, &raw mut set);
            for signal in (1..=libc::SIGRTMAX())
                .filter(|&signal| libc::sigismember(&raw const set, signal) == 1)
            {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        let mut policy = 0;
        let mut parameters: libc::sched_param = core::mem::zeroed();
        libc::posix_spawnattr_getschedparam(attributes, &raw mut parameters);
        libc::posix_spawnattr_getschedpolicy(attributes, &raw mut policy);
        if has(libc::POSIX_SPAWN_SETSCHEDULER as c_short) {
            if libc::sched_setscheduler(0, policy, &raw const parameters) == -1 {
                return false;
            }
        } else if has(libc::POSIX_SPAWN_SETSCHEDPARAM as c_short)
            && libc::sched_setparam(0, &raw const parameters) == -1
        {
            return false;
        }
        if has(libc::POSIX_SPAWN_SETSID) && libc::setsid() == -1 {
            return false;
        }
        let mut group = 0;
        libc::posix_spawnattr_getpgroup(attributes, &raw mut group);
        if has(libc::POSIX_SPAWN_SETPGROUP as c_short) && libc::setpgid(0, group) != 0 {
            return false;
        }
        if has(libc::POSIX_SPAWN_RESETIDS as c_short)
            && (crate::identity::seteuid(libc::getuid()) != 0
                || crate::identity::setegid(libc::getgid()) != 0)
        {
            return false;
        }
        if has(libc::POSIX_SPAWN_SETSIGMASK as c_short) {
            libc::posix_spawnattr_getsigmask(attributes, &raw mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, core::ptr::null_mut());
        }
    }
    true
}

type Execute = unsafe extern "C-unwind" fn(*const c_char, List, List) -> c_int;

/// Creates the child. Returns 0 or an error number.
unsafe fn fork_and_execute(
    pid: *mut pid_t,
    list: &[Action],
    attributes: *const Attributes,
    execute: impl FnOnce(),
) -> c_int {
    let pipe = kernel::pipe().ok();
    // SAFETY: our own hook. The child calls only what is allowed after a fork, and then executes or
    // exits.
    let child = unsafe { life::fork() };
    if child == 0 {
        let mut report = Report(pipe.map_or(-1, |[reader, writer]| {
            let _ = kernel::close(reader);
            writer
        }));
        // SAFETY: promised by the caller.
        let mut performs = |action| unsafe { perform(action, &mut report) };
        // SAFETY: promised by the caller.
        if unsafe { apply(attributes) } && list.iter().all(&mut performs) {
            execute();
        }
        if report.0 >= 0 {
            let _ = kernel::write(report.0, &errno().to_ne_bytes());
        }
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { life::_exit(127) };
    }
    let failure = errno();
    let mut number = [0; size_of::<c_int>()];
    let is_told = pipe.is_some_and(|[reader, writer]| {
        let _ = kernel::close(writer);
        let got = kernel::read(reader, &mut number);
        let _ = kernel::close(reader);
        got == Ok(number.len())
    });
    if child < 0 {
        return failure;
    }
    if is_told {
        // SAFETY: reaps our own child, which has reported its failure and ends.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        return c_int::from_ne_bytes(number);
    }
    if !pid.is_null() {
        // SAFETY: the caller passes null or room for the number.
        unsafe { pid.write(child) };
    }
    0
}

macro_rules! spawns {
    ($(fn $name:ident with $execute:ident;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            file_actions: *const FileActions,
            attributes: *const Attributes,
            arguments: List,
            variables: List,
        ) -> c_int {
            let list = actions(file_actions);
            let known = list.iter().all(|action| (CLOSE..=SET_TERMINAL).contains(&action.tag));
            if known && concerns_us(path, list) {
                let execute: Execute = exec::$execute;
                // SAFETY: the caller's own arguments.
                return unsafe {
                    fork_and_execute(pid, list, attributes, || {
                        execute(path, arguments, variables);
                    })
                };
            }
            // SAFETY: the caller passes a terminated path.
            unsafe { exec::note(path) };
            // SAFETY: the caller passes null-terminated lists.
            let environment = unsafe { Environment::new(variables) };
            let real = || next!($name: fn(*mut pid_t, *const c_char, *const FileActions, *const Attributes, List, List) -> c_int);
            // SAFETY: the caller's own arguments; the environment contains theirs.
            unsafe { real()(pid, path, file_actions, attributes, arguments, environment.as_ptr()) }
        }
    )*};
}

spawns! {
    fn posix_spawn with execve;
    fn posix_spawnp with execvpe;
}

/// Starts a shell that executes `command`, with descriptor `from` as number `to` and with `others`
/// closed. Returns its process id.
///
/// # Safety
/// The command is terminated.
pub unsafe fn shell(
    command: *const c_char,
    (from, to): (c_int, c_int),
    others: impl Iterator<Item = c_int>,
) -> Result<pid_t> {
    let action = |tag, pair| Action { tag, arguments: Arguments { pair } };
    let mut list = vec![action(DUPLICATE, [from, to])];
    list.extend(others.filter(|&other| other != to).map(|other| action(CLOSE, [other, 0])));
    let used = list.len() as c_int;
    let actions = FileActions { allocated: used, used, list: list.as_ptr(), reserved: [0; 16] };
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), command, core::ptr::null()];
    let mut process = 0;
    // SAFETY: null-terminated lists; the caller's command.
    let failure = unsafe {
        posix_spawn(
            &raw mut process,
            c"/bin/sh".as_ptr(),
            &raw const actions,
            core::ptr::null(),
            arguments.as_ptr(),
            exec::environment(),
        )
    };
    match failure {
        0 => Ok(process),
        number => Err(Errno(number)),
    }
}
