//! What the environment says: which store, below which prefix, in which scope.
//!
//! Invariant: captured once, without allocation, before the application can change its environment;
//! afterwards only read. A process without `CAIRN_STORE` and `CAIRN_MOUNT` has no mount, and every
//! path is the C library's. So has one that gained rights by being executed: its environment is of
//! somebody who does not have them.
//! Does not look at the store.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Errno, Result};
use crate::process::rank::Rank;

/// Longest value of a variable that is kept, with its name and the final NUL.
const VARIABLE_BYTES: usize = 4096;
/// Longest mount prefix.
const MOUNT_BYTES: usize = 255;

/// Variables that an executed program needs in order to reach the store.
pub const INHERITED: [&CStr; 6] = [
    c"LD_PRELOAD",
    c"CAIRN_STORE",
    c"CAIRN_MOUNT",
    c"CAIRN_SCOPE",
    c"CAIRN_CALLS",
    c"CAIRN_RAW_CALLS",
];
const PRELOAD: usize = 0;
const STORE: usize = 1;
const MOUNT: usize = 2;
const SCOPE: usize = 3;
const CALLS: usize = 4;
const RAW_CALLS: usize = 5;

/// Who shares a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// All processes of the job on this node.
    Node,
    /// Only the processes of one rank.
    Rank {
        /// The rank.
        rank: u32,
        /// Ranks on this node, which share the tiers; at least 1.
        local_size: u32,
    },
}

/// Where in the text a variable is, as `NAME=value` and a NUL; all three are equal if it is not
/// set.
#[derive(Clone, Copy)]
struct Variable {
    start: usize,
    value_start: usize,
    /// Place of the NUL.
    end: usize,
}

/// What was captured.
pub struct Configuration {
    variables: [Variable; INHERITED.len()],
    scope: Scope,
    /// One bit per byte value: the first bytes of the components of the mount prefix.
    initials: [u64; 4],
    is_one_component: bool,
    /// The variables one after the other: every process of a job fills this at its start, and each
    /// page takes a fault.
    text: [u8; INHERITED.len() * VARIABLE_BYTES],
}

impl Configuration {
    /// Keeps `name=value` behind the variables before it. False: it is too long, or no text.
    fn keep(&mut self, index: usize, name: &[u8], value: &[u8]) -> bool {
        let start = index.checked_sub(1).map_or(0, |before| self.variables[before].end + 1);
        let value_start = start + name.len() + 1;
        let end = value_start + value.len();
        if end - start >= VARIABLE_BYTES || value.contains(&0) {
            return false;
        }
        self.text[start..value_start - 1].copy_from_slice(name);
        self.text[value_start - 1] = b'=';
        self.text[value_start..end].copy_from_slice(value);
        self.text[end] = 0;
        self.variables[index] = Variable { start, value_start, end };
        true
    }

    /// Notes that a variable is not set.
    fn leave_out(&mut self, index: usize) {
        // The NUL of the one before it.
        let end = index.checked_sub(1).map_or(0, |before| self.variables[before].end);
        self.text[end] = 0;
        self.variables[index] = Variable { start: end, value_start: end, end };
    }

    #[inline]
    fn value(&self, index: usize) -> &[u8] {
        let Variable { value_start, end, .. } = self.variables[index];
        &self.text[value_start..end]
    }

    /// What starts at `start` and goes to the end of the variable.
    #[inline]
    fn terminated(&self, start: usize, index: usize) -> &CStr {
        let text = &self.text[start..=self.variables[index].end];
        // SAFETY: `keep` and `leave_out` put a NUL there; `keep` refuses values that contain one;
        // names do not.
        unsafe { CStr::from_bytes_with_nul_unchecked(text) }
    }

    /// Directory of the store.
    pub fn store(&self) -> &[u8] {
        self.value(STORE)
    }

    /// The same for a system call.
    pub fn store_path(&self) -> &CStr {
        self.terminated(self.variables[STORE].value_start, STORE)
    }

    /// The prefix below which the mount appears: absolute, without a trailing slash.
    #[inline]
    pub fn mount(&self) -> &[u8] {
        self.value(MOUNT)
    }

    /// Whether some component of the prefix starts with `byte`.
    #[inline]
    pub(crate) fn starts_component(&self, byte: u8) -> bool {
        self.initials[usize::from(byte / 64)] & 1 << (byte % 64) != 0
    }

    /// A text that every path into the mount contains unless it begins with the prefix or is
    /// relative to it.
    #[inline]
    pub(crate) fn telltale(&self) -> &CStr {
        match self.is_one_component {
            true => self.terminated(self.variables[MOUNT].value_start, MOUNT),
            // It may climb from one component of the prefix to the next.
            false => c"..",
        }
    }

    /// Whether calls are to be counted (`calls.rs`).
    pub fn counts_calls(&self) -> bool {
        !self.value(CALLS).is_empty()
    }

    /// Whether calls of the kernel that libraries make by instructions of their own are the
    /// kernel's, whatever they are about.
    pub fn passes_raw_calls(&self) -> bool {
        self.value(RAW_CALLS) == b"pass"
    }

    /// Which namespace this process uses.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// `NAME=value` of each of [`INHERITED`], where it is set.
    pub fn inherited(&self) -> impl Iterator<Item = (&'static CStr, &CStr)> {
        let variables = INHERITED.into_iter().zip(&self.variables).enumerate();
        variables
            .filter(|(_, (_, variable))| variable.end > variable.start)
            .map(|(index, (name, variable))| (name, self.terminated(variable.start, index)))
    }

    /// Value of `LD_PRELOAD` when the process started.
    pub fn preload(&self) -> &[u8] {
        self.value(PRELOAD)
    }
}

const UNREAD: u8 = 0;
const READING: u8 = 1;
const PRESENT: u8 = 2;
const ABSENT: u8 = 3;
/// There was one, which the program has given up.
const RETIRED: u8 = 4;

struct Cell(UnsafeCell<Configuration>);
// SAFETY: written only by the one thread that moved STATE to READING, from UNREAD or ABSENT, where
// nobody has what to read; read only while it is PRESENT.
unsafe impl Sync for Cell {}

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static CONFIGURATION: Cell = Cell(UnsafeCell::new(Configuration {
    variables: [Variable { start: 0, value_start: 0, end: 0 }; INHERITED.len()],
    scope: Scope::Node,
    initials: [0; 4],
    is_one_component: false,
    text: [0; INHERITED.len() * VARIABLE_BYTES],
}));

unsafe extern "C" {
    /// The environment; null until the C library is initialised.
    static environ: *const *const c_char;
}

/// The configuration, if this process has a mount.
#[inline]
pub fn get() -> Option<&'static Configuration> {
    match STATE.load(Ordering::Acquire) {
        // SAFETY: PRESENT is stored after the last write to the cell.
        PRESENT => Some(unsafe { &*CONFIGURATION.0.get() }),
        ABSENT | RETIRED => None,
        _ => capture(),
    }
}

/// Sets the configuration by hand instead of from the environment, for tests and tools.
/// Errors: `EBUSY` if it is set already, `EINVAL` if a value is too long or the prefix is not an
/// absolute path.
pub fn set(store: &[u8], mount: &[u8], scope: Scope) -> Result<()> {
    STATE
        .compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed)
        .map_err(|_| Errno(libc::EBUSY))?;
    let fits = fill(|name| match name {
        name if name == INHERITED[STORE] => Some(store),
        name if name == INHERITED[MOUNT] => Some(mount),
        _ => None,
    });
    if fits {
        // SAFETY: this thread moved STATE to READING and has not published the cell.
        unsafe { (*CONFIGURATION.0.get()).scope = scope };
    }
    STATE.store(if fits { PRESENT } else { UNREAD }, Ordering::Release);
    if fits { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

/// Gives this process a mount that its environment does not name; `is_by_rank`: each rank has a
/// namespace of its own. To be undone by [`retire`] if the store cannot be attached.
/// Errors: `EBUSY` if there is a mount; `EINVAL` as [`set`]; `EXDEV` if it had another one before,
/// which it cannot forget.
pub fn begin(store: &[u8], mount: &[u8], is_by_rank: bool) -> Result<()> {
    // The environment's own, if nobody has asked for it yet, comes first.
    let _ = get();
    let begin = |from| STATE.compare_exchange(from, READING, Ordering::AcqRel, Ordering::Acquire);
    match begin(ABSENT).or_else(|_| begin(RETIRED)) {
        Ok(RETIRED) => {
            // SAFETY: nobody writes to the cell while STATE is READING but the thread that moved it
            // there.
            let before = unsafe { &*CONFIGURATION.0.get() };
            let same = before.store() == store && before.mount() == mount;
            STATE.store(if same { PRESENT } else { RETIRED }, Ordering::Release);
            if same { Ok(()) } else { Err(Errno(libc::EXDEV)) }
        }
        Ok(_) => {
            let present = fill(|name| match name {
                name if name == INHERITED[STORE] => Some(store),
                name if name == INHERITED[MOUNT] => Some(mount),
                name if name == INHERITED[SCOPE] => {
                    Some(if is_by_rank { b"rank" } else { b"node" })
                }
                name => environment(name),
            });
            STATE.store(if present { PRESENT } else { ABSENT }, Ordering::Release);
            if present { Ok(()) } else { Err(Errno(libc::EINVAL)) }
        }
        Err(_) => Err(Errno(libc::EBUSY)),
    }
}

/// Ends what [`begin`], or the environment, began; `was_used`: only that may be begun again. No
/// thread uses a file of ours meanwhile.
pub fn retire(was_used: bool) {
    let to = if was_used { RETIRED } else { ABSENT };
    let _ = STATE.compare_exchange(PRESENT, to, Ordering::AcqRel, Ordering::Relaxed);
}

#[cold]
fn capture() -> Option<&'static Configuration> {
    // SAFETY: `environ` is a word of the C library, null or a list that ends with null.
    unsafe { capture_from(environ) }
}

/// The value of a variable of the environment as it is now.
pub(crate) fn environment<'a>(name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: as in `capture`; `variable` takes no null.
    unsafe { environ.as_ref().and_then(|first| variable(first, name)) }
}

/// Captures the configuration from an environment, unless that was done before: for code that runs
/// before the C library knows its environment.
///
/// # Safety
/// `list` is null or a list of terminated strings that ends with null.
pub unsafe fn capture_from(list: *const *const c_char) -> Option<&'static Configuration> {
    if list.is_null() {
        return None;
    }
    if STATE.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // While another thread is reading, no path of ours can have been given to this one.
        return if STATE.load(Ordering::Acquire) == PRESENT { get() } else { None };
    }
    // SAFETY: takes a plain number.
    let has_gained_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // SAFETY: promised by the caller.
    let present = !has_gained_rights && fill(|name| unsafe { variable(list, name) });
    STATE.store(if present { PRESENT } else { ABSENT }, Ordering::Release);
    if present { get() } else { None }
}

/// Decides for the rest of this process's life, unless it was decided already, that there is no
/// mount.
pub fn decline() {
    let _ = STATE.compare_exchange(UNREAD, ABSENT, Ordering::Relaxed, Ordering::Relaxed);
}

/// Fills the cell; the caller moved STATE to READING. False: there is no usable mount.
fn fill<'a>(value_of: impl Fn(&'static CStr) -> Option<&'a [u8]>) -> bool {
    // SAFETY: STATE is READING and was moved there by this thread: nobody else reads or writes the
    // cell.
    let configuration = unsafe { &mut *CONFIGURATION.0.get() };
    for (index, name) in INHERITED.into_iter().enumerate() {
        let Some(mut value) = value_of(name) else {
            configuration.leave_out(index);
            continue;
        };
        if name == INHERITED[MOUNT] {
            while value.len() > 1 && value.ends_with(b"/") {
                value = &value[..value.len() - 1];
            }
        }
        if !configuration.keep(index, name.to_bytes(), value) {
            return false;
        }
    }
    let is_of_rank = configuration.value(SCOPE) == b"rank";
    configuration.scope = match is_of_rank.then(|| Rank::find(value_of)).flatten() {
        Some(Rank { rank, local_size, .. }) => {
            Scope::Rank { rank, local_size: local_size.unwrap_or(1) }
        }
        None => Scope::Node,
    };
    let mut initials = [0; 4];
    for name in configuration.mount().split(|&byte| byte == b'/') {
        if let Some(byte) = name.first() {
            initials[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
    }
    configuration.initials = initials;
    configuration.is_one_component =
        configuration.mount().iter().filter(|&&byte| byte == b'/').count() == 1;
    let mount = configuration.mount();
    !configuration.store().is_empty()
        && mount.len() > 1
        && mount.len() <= MOUNT_BYTES
        && mount[0] == b'/'
        && mount[1..].split(|&byte| byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}

/// # Safety
/// `list` is a list of terminated strings that ends with null.
unsafe fn variable<'a>(list: *const *const c_char, name: &CStr) -> Option<&'a [u8]> {
    let mut at = list;
    loop {
        // SAFETY: the list has not ended before `at`.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry is terminated; the value is copied before the application runs on.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) =
            text.strip_prefix(name.to_bytes()).and_then(|text| text.strip_prefix(b"="))
        {
            return Some(value);
        }
        at = at.wrapping_add(1);
    }
}
