//! Waiting for descriptors. A Cairn descriptor is always ready, like a regular file.

use cairn_posix::descriptors::description;
use core::ffi::{c_int, c_void};

use cairn_posix::kernel::calls::Outcome;
use cairn_posix::kernel::{address, configuration};
use cairn_posix::task::table;
use cairn_posix::{Errno, kernel};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::answer::{
    answer, count, deliver, errno, guarded, is_counting, recognise, recognise_after_failure,
    set_errno,
};

/// Events for which a regular file is always ready.
const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Sign bit. The kernel skips an entry with a negative number.
const HIDDEN: c_int = c_int::MIN;

/// Events to report for a Cairn descriptor.
fn events(number: c_int, asked: i16) -> i16 {
    match is_opened(number) {
        true => asked & READY,
        false => libc::POLLNVAL,
    }
}

/// Whether a Cairn descriptor was opened for more than its name (without `O_PATH`).
fn is_opened(number: c_int) -> bool {
    let handle = table::lookup(number).ok_or(Errno(libc::EBADF));
    guarded(|| handle.and_then(description::opened)).is_ok()
}

/// Whether a descriptor, Cairn's or not, is open and not `O_PATH`.
fn is_any(number: c_int) -> bool {
    match table::is_ours(number) {
        true => is_opened(number),
        false => {
            kernel::fcntl(number, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_PATH == 0)
        }
    }
}

/// If calls are counted: counts a waiting call. It counts as served if it waits for a Cairn file,
/// too.
fn count_waiting(symbol: &str, is_ours: bool, result: c_int) {
    if !is_counting() {
        return;
    }
    let before = errno();
    let outcome = match is_ours {
        false => Outcome::Passed,
        true if result < 0 => Outcome::Failed(before),
        true => Outcome::Served,
    };
    count(symbol, outcome);
    set_errno(before);
}

/// List to wait for. If it has Cairn descriptors, the kernel gets a copy with these hidden, because
/// the caller's list must not change before the end.
struct Masked {
    /// Empty if no entry is Cairn's.
    copy: Vec<pollfd>,
    /// Number of Cairn entries that are ready for a requested event.
    ready: c_int,
}

impl Masked {
    /// Copies the list if needed. A list that is unreadable or too long is left to the kernel,
    /// which refuses it.
    ///
    /// # Safety
    /// `list` points to `count` entries, or is a bad address.
    unsafe fn new(list: *mut pollfd, count: nfds_t) -> Masked {
        const PART: usize = 64;
        const NOTHING: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
        let mut masked = Masked { copy: Vec::new(), ready: 0 };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if configuration::get().is_none() || !table::in_use() || count > ENTRIES_MAX {
            return masked;
        }
        let mut part = [NOTHING; PART];
        let fetch = |part: &mut [pollfd], at: usize| {
            let from = list.wrapping_add(at).cast();
            // SAFETY: `part` has room; the address may be bad.
            unsafe { address::fetch(part.as_mut_ptr().cast(), from, size_of_val(part)) }.is_ok()
        };
        for at in (0..count).step_by(PART) {
            let part = &mut part[..PART.min(count - at)];
            if !fetch(part, at) {
                return masked;
            }
            if part.iter().any(|entry| table::is_ours(entry.fd)) {
                masked.copy = vec![NOTHING; count];
                break;
            }
        }
        if masked.copy.is_empty() || !fetch(&mut masked.copy, 0) {
            masked.copy.clear();
            return masked;
        }
        for entry in masked.copy.iter_mut().filter(|entry| table::is_ours(entry.fd)) {
            masked.ready += c_int::from(events(entry.fd, entry.events) != 0);
            entry.fd |= HIDDEN;
        }
        masked
    }

    /// List for the kernel.
    fn list(&mut self, list: *mut pollfd) -> *mut pollfd {
        if self.copy.is_empty() { list } else { self.copy.as_mut_ptr() }
    }

    /// Result of the whole call, given the kernel's for the foreign entries. Fills in the caller's
    /// list.
    ///
    /// # Safety
    /// The list is the one given to `new`, and the kernel has written to it if `result` is no
    /// error.
    unsafe fn finish(
        mut self,
        symbol: &str,
        (list, count): (*mut pollfd, nfds_t),
        result: c_int,
    ) -> c_int {
        let is_known = !self.copy.is_empty();
        let entries = match is_known {
            true => &mut self.copy[..],
            false if result <= 0 => &mut [],
            // SAFETY: the kernel has just written to all entries.
            false => unsafe { core::slice::from_raw_parts_mut(list, count as usize) },
        };
        let mut any = is_known;
        // To the kernel, an inherited placeholder that is not in the table yet is not an open file.
        for entry in entries.iter_mut().filter(|entry| entry.revents & libc::POLLNVAL != 0) {
            if entry.fd >= 0 && recognise(entry.fd) {
                any = true;
                entry.revents = entry.events & READY;
            }
        }
        count_waiting(symbol, any, result);
        if !is_known || result < 0 {
            return result;
        }
        for (at, entry) in entries.iter_mut().enumerate() {
            // A number that was negative in the caller's list is above every descriptor now.
            let number = entry.fd & !HIDDEN;
            if entry.fd < 0 && table::is_ours(number) {
                entry.revents = events(number, entry.events);
            }
            // SAFETY: the caller's list, from which the copy was made.
            let told = unsafe { deliver(&raw mut (*list.wrapping_add(at)).revents, entry.revents) };
            if let Err(Errno(number)) = told {
                set_errno(number);
                return -1;
            }
        }
        result + self.ready
    }
}

/// Maximum number of entries. No process may have as many descriptors.
const ENTRIES_MAX: usize = 1 << 20;

static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

macro_rules! polls {
    ($(fn $name:ident($($room:ident)?);)*) => {$(
        /// As `poll(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            list: *mut pollfd, count: nfds_t, timeout: c_int $(, $room: size_t)?
        ) -> c_int {
            let real = || library!($name: fn(*mut pollfd, nfds_t, c_int $(, polls!(@size $room))?) -> c_int);
            // SAFETY: the caller passes a list of `count` entries, or a bad address.
            let mut masked = unsafe { Masked::new(list, count) };
            let timeout = if masked.ready > 0 { 0 } else { timeout };
            // SAFETY: the caller's own arguments.
            let result = unsafe { real()(masked.list(list), count, timeout $(, $room)?) };
            // SAFETY: the same list.
            unsafe { masked.finish(stringify!($name), (list, count), result) }
        }
    )*};
    (@size $room:ident) => { size_t };
}

polls! {
    fn poll();
    fn __poll();
    fn __poll_chk(room);
}

macro_rules! timed_polls {
    ($(fn $name:ident($($room:ident)?);)*) => {$(
        /// As `ppoll(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t $(, $room: size_t)?
        ) -> c_int {
            let real = || library!($name: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t $(, timed_polls!(@size $room))?) -> c_int);
            // SAFETY: the caller passes a list of `count` entries, or a bad address.
            let mut masked = unsafe { Masked::new(list, count) };
            let timeout = if masked.ready > 0 { &raw const NOW } else { timeout };
            // SAFETY: the caller's own arguments.
            let result = unsafe { real()(masked.list(list), count, timeout, mask $(, $room)?) };
            // SAFETY: the same list.
            unsafe { masked.finish(stringify!($name), (list, count), result) }
        }
    )*};
    (@size $room:ident) => { size_t };
}

timed_polls! {
    fn ppoll();
    fn __ppoll_chk(room);
}

const WORD_BITS: usize = u64::BITS as usize;

/// The three sets of a `select` call. If they contain Cairn descriptors, the kernel gets copies
/// without these, because the caller's sets must not change before the end.
struct Sets {
    sets: [*mut fd_set; 3],
    /// Copies of everything that the kernel reads, which may be more than an `fd_set`.
    copies: [Vec<u64>; 3],
    /// Bits of Cairn descriptors, taken out of the copies.
    ours: [Vec<u64>; 3],
    ready: c_int,
    /// Some bit was taken out, so the kernel gets the copies.
    is_copied: bool,
}

/// Number of sets in which a Cairn descriptor is ready. A regular file has no exceptional
/// conditions.
const READY_SETS: usize = 2;

impl Sets {
    /// Copies the sets. Unreadable sets are left to the kernel, which refuses them.
    ///
    /// # Safety
    /// Each set is null, valid, or a bad address.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Sets {
        let none = || [const { Vec::new() }; 3];
        let mut taken = Sets { sets, copies: none(), ours: none(), ready: 0, is_copied: false };
        let is_sane = (1..ENTRIES_MAX as c_int).contains(&count);
        if !is_sane || !table::in_use() || table::range(0, count - 1).next().is_none() {
            return taken;
        }
        let words = (count as usize).div_ceil(WORD_BITS);
        let bytes = words * size_of::<u64>();
        taken.copies = [(); 3].map(|()| vec![0; words]);
        taken.ours = taken.copies.clone();
        for (copy, &set) in taken.copies.iter_mut().zip(&sets).filter(|(_, set)| !set.is_null()) {
            // SAFETY: the copy has room; the address may be bad.
            if unsafe { address::fetch(copy.as_mut_ptr().cast(), set.cast(), bytes) }.is_err() {
                return taken;
            }
        }
        for (number, _) in table::range(0, count - 1) {
            let (word, bit) = (number as usize / WORD_BITS, 1 << (number as usize % WORD_BITS));
            for kind in (0..taken.copies.len()).filter(|&kind| !sets[kind].is_null()) {
                if taken.copies[kind][word] & bit != 0 {
                    taken.copies[kind][word] &= !bit;
                    taken.ours[kind][word] |= bit;
                    taken.ready += c_int::from(kind < READY_SETS);
                    taken.is_copied = true;
                }
            }
        }
        taken
    }

    /// Sets for the kernel.
    fn sets(&mut self) -> [*mut fd_set; 3] {
        let mut sets = self.sets;
        if self.is_copied {
            for (set, copy) in sets.iter_mut().zip(&mut self.copies) {
                *set = if set.is_null() { *set } else { copy.as_mut_ptr().cast() };
            }
        }
        sets
    }

    /// After the kernel refused the sets: whether they contain a placeholder that was not in the
    /// table yet. If so, the call must be repeated.
    fn recognise_after_failure(&mut self, count: c_int, result: c_int) -> bool {
        if result >= 0 || errno() != libc::EBADF || configuration::get().is_none() {
            return false;
        }
        let mut found = false;
        for &set in self.sets().iter().filter(|set| !set.is_null()) {
            for number in 0..count {
                // SAFETY: the kernel has read the set, an array of `count` bits.
                let word = unsafe { *set.cast::<u64>().add(number as usize / WORD_BITS) };
                let is_asked = word & (1 << (number as usize % WORD_BITS)) != 0;
                found |= is_asked && recognise(number);
            }
        }
        found
    }

    /// Result of the whole call. After success adds the ready Cairn descriptors to the caller's
    /// sets; after a failure leaves them as they were.
    fn finish(mut self, symbol: &str, result: c_int) -> c_int {
        count_waiting(symbol, self.is_copied, result);
        if !self.is_copied || result < 0 {
            return result;
        }
        for (kind, &set) in self.sets.iter().enumerate().filter(|(_, set)| !set.is_null()) {
            let copy = &mut self.copies[kind];
            if kind < READY_SETS {
                copy.iter_mut().zip(&self.ours[kind]).for_each(|(word, ours)| *word |= ours);
            }
            // SAFETY: writes to the memory that the copy was read from.
            let told =
                unsafe { address::give(set.cast(), copy.as_ptr().cast(), size_of_val(&copy[..])) };
            if let Err(Errno(number)) = told {
                set_errno(number);
                return -1;
            }
        }
        result + self.ready
    }
}

macro_rules! selects {
    ($(fn $name:ident;)*) => {$(
        /// As `select(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
        ) -> c_int {
            let real = || library!($name: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int);
            // SAFETY: the caller passes valid sets or null.
            let mut sets = unsafe { Sets::new(count, [read, write, except]) };
            let mut now = timeval { tv_sec: 0, tv_usec: 0 };
            let wait = if sets.ready > 0 { &raw mut now } else { timeout };
            let [reads, writes, excepts] = sets.sets();
            // SAFETY: the caller's own arguments, or copies of them.
            let result = unsafe { real()(count, reads, writes, excepts, wait) };
            if sets.recognise_after_failure(count, result) {
                // SAFETY: the caller's own arguments; all placeholders are in the table by now.
                return unsafe { $name(count, read, write, except, timeout) };
            }
            sets.finish(stringify!($name), result)
        }
    )*};
}

selects! {
    fn select;
    fn __select;
}

/// As `pselect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let real = || library!(pselect: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int);
    // SAFETY: the caller passes valid sets or null.
    let mut sets = unsafe { Sets::new(count, [read, write, except]) };
    let wait = if sets.ready > 0 { &raw const NOW } else { timeout };
    let [reads, writes, excepts] = sets.sets();
    // SAFETY: the caller's own arguments, or copies of them.
    let result = unsafe { real()(count, reads, writes, excepts, wait, mask) };
    if sets.recognise_after_failure(count, result) {
        // SAFETY: the caller's own arguments; all placeholders are in the table by now.
        return unsafe { pselect(count, read, write, except, timeout, mask) };
    }
    sets.finish("pselect", result)
}

/// As `epoll_ctl(2)`. Errors: `EPERM` for a Cairn file, as for a regular file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    instance: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !table::is_ours(descriptor) {
        // A Cairn file is no epoll instance. `descriptor` is none either, and the kernel reports
        // the same error for it.
        let set = if is_opened(instance) { descriptor } else { instance };
        // SAFETY: the caller's own arguments.
        let result = unsafe {
            library!(epoll_ctl: fn(c_int, c_int, c_int, *mut c_void) -> c_int)(
                set,
                operation,
                descriptor,
                event.cast(),
            )
        };
        if result == 0 || !recognise_after_failure(descriptor) {
            count_waiting("epoll_ctl", false, result);
            return result;
        }
    }
    let failure = if is_any(instance) && is_opened(descriptor) { libc::EPERM } else { libc::EBADF };
    answer(|| Err::<(), _>(Errno(failure)))
}
