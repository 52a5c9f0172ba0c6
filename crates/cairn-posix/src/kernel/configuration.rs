//! Configuration from the environment: the store, the mount prefix and the scope.
//!
//! Invariant: it is captured once, without allocation, before the application can change its
//! environment. After that it is only read. A process without `CAIRN_STORE` and `CAIRN_MOUNT` has
//! no mount, and every path is the C library's. The same holds for a process that gained privileges
//! when it was executed: its environment comes from somebody without those privileges.
//!
//! Does not look at the store.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Errno, Result};
use crate::kernel::launcher::Rank;

/// Longest variable that is kept: name, value and the final NUL.
const VARIABLE_BYTES: usize = 4096;
/// Longest mount prefix.
const MOUNT_BYTES: usize = 255;

/// Prefix of our file names. Identifies this library in `LD_PRELOAD` and among the loaded objects.
pub const LIBRARY: &[u8] = b"libcairn";

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

/// Processes that share a namespace.
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

/// Position of a variable in the text, where it is stored as `NAME=value` and a NUL. All three
/// offsets are equal if the variable is not set.
#[derive(Clone, Copy)]
struct Variable {
    start: usize,
    value_start: usize,
    /// Offset of the NUL.
    end: usize,
}

/// The captured configuration.
pub struct Configuration {
    variables: [Variable; INHERITED.len()],
    scope: Scope,
    /// First bytes of the components of the mount prefix, one bit per byte value.
    initials: [u64; 4],
    is_one_component: bool,
    /// The variables, one directly after the other. Every process of a job fills this at its start,
    /// and each page costs a page fault.
    text: [u8; INHERITED.len() * VARIABLE_BYTES],
}

impl Configuration {
    /// Stores `name=value` after the previous variable. Returns false if it is too long or contains
    /// a NUL.
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

    /// Records that a variable is not set.
    fn leave_out(&mut self, index: usize) {
        // Offset of the previous variable's NUL.
        let end = index.checked_sub(1).map_or(0, |before| self.variables[before].end);
        self.text[end] = 0;
        self.variables[index] = Variable { start: end, value_start: end, end };
    }

    #[inline]
    fn value(&self, index: usize) -> &[u8] {
        let Variable { value_start, end, .. } = self.variables[index];
        &self.text[value_start..end]
    }

    /// Returns the text from `start` to the end of the variable `index`.
    #[inline]
    fn terminated(&self, start: usize, index: usize) -> &CStr {
        let text = &self.text[start..=self.variables[index].end];
        // SAFETY: `keep` and `leave_out` put a NUL at the end. `keep` refuses values that contain a
        // NUL, and names contain none.
        unsafe { CStr::from_bytes_with_nul_unchecked(text) }
    }

    /// Directory of the store.
    pub fn store(&self) -> &[u8] {
        self.value(STORE)
    }

    /// Directory of the store, as a path for a system call.
    pub fn store_path(&self) -> &CStr {
        self.terminated(self.variables[STORE].value_start, STORE)
    }

    /// Mount prefix: absolute, without a trailing slash.
    #[inline]
    pub fn mount(&self) -> &[u8] {
        self.value(MOUNT)
    }

    /// Whether a component of the prefix starts with `byte`.
    #[inline]
    pub(crate) fn starts_component(&self, byte: u8) -> bool {
        self.initials[usize::from(byte / 64)] & 1 << (byte % 64) != 0
    }

    /// Text that every path into the mount contains, unless the path begins with the prefix or is
    /// relative to it.
    #[inline]
    pub(crate) fn required_substring(&self) -> &CStr {
        match self.is_one_component {
            true => self.terminated(self.variables[MOUNT].value_start, MOUNT),
            // Such a path may climb from one component of the prefix to the next.
            false => c"..",
        }
    }

    /// Whether calls are counted (`calls.rs`).
    pub fn counts_calls(&self) -> bool {
        !self.value(CALLS).is_empty()
    }

    /// Whether system calls that libraries make by their own instructions all go to the kernel,
    /// even those on files of ours.
    pub fn passes_raw_calls(&self) -> bool {
        self.value(RAW_CALLS) == b"pass"
    }

    /// Namespace that this process uses.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns each variable of [`INHERITED`] that is set, with its `NAME=value`.
    pub fn inherited(&self) -> impl Iterator<Item = (&'static CStr, &CStr)> {
        let variables = INHERITED.into_iter().zip(&self.variables).enumerate();
        variables
            .filter(|(_, (_, variable))| variable.end > variable.start)
            .map(|(index, (name, variable))| (name, self.terminated(variable.start, index)))
    }

    /// Value of `LD_PRELOAD` at the start of the process.
    pub fn preload(&self) -> &[u8] {
        self.value(PRELOAD)
    }
}

const UNREAD: u8 = 0;
const READING: u8 = 1;
const PRESENT: u8 = 2;
const ABSENT: u8 = 3;
/// There was a mount, and the program gave it up.
const RETIRED: u8 = 4;

struct Cell(UnsafeCell<Configuration>);
// SAFETY: only the thread that moved STATE to READING writes the cell. It came from UNREAD or
// ABSENT, where no thread reads the cell. Other threads read it only while STATE is PRESENT.
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
    /// The environment; null until the C library has initialised it.
    static environ: *const *const c_char;
}

/// Returns the configuration, or none if this process has no mount.
#[inline]
pub fn get() -> Option<&'static Configuration> {
    match STATE.load(Ordering::Acquire) {
        // SAFETY: PRESENT is stored after the last write to the cell.
        PRESENT => Some(unsafe { &*CONFIGURATION.0.get() }),
        ABSENT | RETIRED => None,
        _ => capture(),
    }
}

/// Sets the configuration without the environment, for tests and tools. Errors: `EBUSY` if it is
/// set already, `EINVAL` if a value is too long or the prefix is not an absolute path.
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

/// Gives this process a mount that its environment does not name. `is_by_rank`: each rank has a
/// namespace of its own. The caller undoes it with [`retire`] if the store cannot be attached.
/// Errors: `EBUSY` if there is a mount; `EINVAL` as for [`set`]; `EXDEV` if the process had a
/// different mount before, because a used mount cannot be replaced.
pub fn begin(store: &[u8], mount: &[u8], is_by_rank: bool) -> Result<()> {
    // A mount that the environment names comes first, even if nothing has asked for it yet.
    let _ = get();
    let begin = |from| STATE.compare_exchange(from, READING, Ordering::AcqRel, Ordering::Acquire);
    match begin(ABSENT).or_else(|_| begin(RETIRED)) {
        Ok(RETIRED) => {
            // SAFETY: while STATE is READING only the thread that moved it there writes the cell.
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

/// Ends the mount that [`begin`] or the environment began. After `was_used` only the same mount may
/// begin again. Precondition: no thread uses a file of ours meanwhile.
pub fn retire(was_used: bool) {
    let to = if was_used { RETIRED } else { ABSENT };
    let _ = STATE.compare_exchange(PRESENT, to, Ordering::AcqRel, Ordering::Relaxed);
}

#[cold]
fn capture() -> Option<&'static Configuration> {
    // SAFETY: `environ` is a variable of the C library: null, or a list that ends with null.
    unsafe { capture_from(environ) }
}

/// Current value of an environment variable.
pub(crate) fn environment<'a>(name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: as in `capture`; `as_ref` excludes null.
    unsafe { environ.as_ref().and_then(|first| variable(first, name)) }
}

/// Captures the configuration from an environment, unless it is captured already. For code that
/// runs before the C library knows its environment.
///
/// # Safety
/// `list` is null or a list of NUL-terminated strings that ends with null.
pub unsafe fn capture_from(list: *const *const c_char) -> Option<&'static Configuration> {
    if list.is_null() {
        return None;
    }
    if STATE.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // While another thread is capturing, this one cannot have received a path of ours.
        return if STATE.load(Ordering::Acquire) == PRESENT { get() } else { None };
    }
    // SAFETY: takes a plain number.
    let has_gained_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // SAFETY: promised by the caller.
    let present = !has_gained_rights && fill(|name| unsafe { variable(list, name) });
    STATE.store(if present { PRESENT } else { ABSENT }, Ordering::Release);
    if present { get() } else { None }
}

/// Decides for the rest of the process's life that there is no mount, unless this is already
/// decided.
pub fn decline() {
    let _ = STATE.compare_exchange(UNREAD, ABSENT, Ordering::Relaxed, Ordering::Relaxed);
}

/// Fills the cell. The caller has moved STATE to READING. Returns false if there is no usable
/// mount.
fn fill<'a>(value_of: impl Fn(&'static CStr) -> Option<&'a [u8]>) -> bool {
    // SAFETY: this thread moved STATE to READING, so no other thread reads or writes the cell.
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
/// `list` is a list of NUL-terminated strings that ends with null.
unsafe fn variable<'a>(list: *const *const c_char, name: &CStr) -> Option<&'a [u8]> {
    let mut at = list;
    loop {
        // SAFETY: the list has not ended before `at`.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry is NUL-terminated. The caller copies the value before the application
        // can change its environment.
        let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(value) =
            text.strip_prefix(name.to_bytes()).and_then(|text| text.strip_prefix(b"="))
        {
            return Some(value);
        }
        at = at.wrapping_add(1);
    }
}
