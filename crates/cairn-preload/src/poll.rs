//! Waiting for descriptors: one of ours is always ready, as a regular file is.

use core::ffi::{c_int, c_void};

use cairn_posix::calls::Outcome;
use cairn_posix::{Errno, configuration, file, kernel, table};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::answer::{answer, count, errno, guarded, is_counting, is_missed, recognise, set_errno};

/// What a regular file is always ready for.
const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Sign bit: the kernel skips an entry whose number is negative.
const HIDDEN: c_int = c_int::MIN;

/// What is to be told of a descriptor of ours.
fn events(number: c_int, asked: i16) -> i16 {
    match is_opened(number) {
        true => asked & READY,
        false => libc::POLLNVAL,
    }
}

/// Whether a descriptor of ours is more than a name.
fn is_opened(number: c_int) -> bool {
    let handle = table::lookup(number).ok_or(Errno(libc::EBADF));
    guarded(|| handle.and_then(file::opened)).is_ok()
}

/// Whether a descriptor, ours or not, is one, and more than a name.
fn is_any(number: c_int) -> bool {
    match table::is_ours(number) {
        true => is_opened(number),
        false => {
            kernel::fcntl(number, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_PATH == 0)
        }
    }
}

/// Counts a call that waits, if calls are counted: it is ours if it waits for a file of ours, too.
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

/// Entries of ours are taken out of the list for the kernel's call by making their numbers negative, and put back.
struct Masked<'a> {
    list: &'a mut [pollfd],
    /// Entries of ours that are ready for what was asked.
    ready: c_int,
    any: bool,
}

impl<'a> Masked<'a> {
    /// # Safety
    /// `list` points to `count` entries, or `count` is 0.
    unsafe fn new(list: *mut pollfd, count: nfds_t) -> Masked<'a> {
        if count == 0 || configuration::get().is_none() {
            return Masked { list: &mut [], ready: 0, any: false };
        }
        // SAFETY: promised by the caller of this function.
        let list = unsafe { core::slice::from_raw_parts_mut(list, count as usize) };
        let mut masked = Masked { list, ready: 0, any: false };
        for entry in masked.list.iter_mut().filter(|entry| table::is_ours(entry.fd)) {
            masked.any = true;
            masked.ready += c_int::from(events(entry.fd, entry.events) != 0);
            entry.fd |= HIDDEN;
        }
        masked
    }

    /// The result of the whole call, given the kernel's for the others.
    fn finish(mut self, symbol: &str, result: c_int) -> c_int {
        let is_known = self.any;
        // To the kernel a placeholder that was inherited and is not known yet is no open file.
        for entry in self.list.iter_mut().filter(|entry| entry.revents & libc::POLLNVAL != 0) {
            if entry.fd >= 0 && recognise(entry.fd) {
                self.any = true;
                entry.revents = entry.events & READY;
            }
        }
        count_waiting(symbol, self.any, result);
        if !is_known {
            return result;
        }
        for entry in self.list.iter_mut().filter(|entry| entry.fd < 0) {
            // A number that was negative before is far above every descriptor now.
            let number = entry.fd & !HIDDEN;
            if table::is_ours(number) {
                entry.fd = number;
                entry.revents = events(number, entry.events);
            }
        }
        if result < 0 { result } else { result + self.ready }
    }
}

static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

macro_rules! polls {
    ($(fn $name:ident($($room:ident)?);)*) => {$(
        /// As `poll(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            list: *mut pollfd, count: nfds_t, timeout: c_int $(, $room: size_t)?
        ) -> c_int {
            let real = || library!($name: fn(*mut pollfd, nfds_t, c_int $(, polls!(@size $room))?) -> c_int);
            // SAFETY: the caller passes a list of `count` entries.
            let masked = unsafe { Masked::new(list, count) };
            let timeout = if masked.ready > 0 { 0 } else { timeout };
            // SAFETY: the caller's own arguments.
            let result = unsafe { real()(list, count, timeout $(, $room)?) };
            masked.finish(stringify!($name), result)
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
            // SAFETY: the caller passes a list of `count` entries.
            let masked = unsafe { Masked::new(list, count) };
            let timeout = if masked.ready > 0 { &raw const NOW } else { timeout };
            // SAFETY: the caller's own arguments.
            let result = unsafe { real()(list, count, timeout, mask $(, $room)?) };
            masked.finish(stringify!($name), result)
        }
    )*};
    (@size $room:ident) => { size_t };
}

timed_polls! {
    fn ppoll();
    fn __ppoll_chk(room);
}

const WORD_BITS: usize = u64::BITS as usize;
const SET_WORDS: usize = size_of::<fd_set>() / size_of::<u64>();

/// The three sets of a select call, with those bits taken out that are ours and therefore ready.
struct Sets {
    sets: [*mut fd_set; 3],
    ours: [[u64; SET_WORDS]; 3],
    ready: c_int,
}

/// Sets of those that may be ready; a regular file has no exceptional conditions.
const READY_SETS: usize = 2;

impl Sets {
    /// # Safety
    /// Each set is null or valid.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Sets {
        let mut taken = Sets { sets, ours: [[0; SET_WORDS]; 3], ready: 0 };
        if !table::in_use() {
            return taken;
        }
        let last = count.min(libc::FD_SETSIZE as c_int) - 1;
        for (number, _) in table::range(0, last) {
            let (word, bit) = (number as usize / WORD_BITS, 1 << (number as usize % WORD_BITS));
            for (kind, &set) in taken.sets.iter().enumerate().filter(|(_, set)| !set.is_null()) {
                // SAFETY: a set is an array of bits, of which this one lies within.
                let place = unsafe { &mut *set.cast::<u64>().add(word) };
                if *place & bit != 0 {
                    *place &= !bit;
                    taken.ours[kind][word] |= bit;
                    taken.ready += c_int::from(kind < READY_SETS);
                }
            }
        }
        taken
    }

    /// After the kernel refused the sets: whether a placeholder in them was not known yet, so that the call is to be
    /// repeated. Bits of ours are then back where they were.
    fn is_missed(&self, count: c_int, result: c_int) -> bool {
        if result >= 0 || errno() != libc::EBADF || configuration::get().is_none() {
            return false;
        }
        let mut found = false;
        for &set in self.sets.iter().filter(|set| !set.is_null()) {
            for number in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
                // SAFETY: a set is an array of bits, of which this one lies within.
                let word = unsafe { *set.cast::<u64>().add(number as usize / WORD_BITS) };
                let is_asked = word & (1 << (number as usize % WORD_BITS)) != 0;
                found |= is_asked && recognise(number);
            }
        }
        if found {
            self.put_back(self.sets.len());
        }
        found
    }

    /// A call that failed leaves the sets as they were; else those of ours that are ready are in them.
    fn finish(self, symbol: &str, result: c_int) -> c_int {
        let is_ours = self.ours.iter().flatten().any(|&bits| bits != 0);
        count_waiting(symbol, is_ours, result);
        if result < 0 {
            self.put_back(self.sets.len());
            return result;
        }
        self.put_back(READY_SETS);
        result + self.ready
    }

    fn put_back(&self, sets: usize) {
        let taken = self.sets.iter().zip(&self.ours).take(sets);
        for (&set, ours) in taken.filter(|(set, _)| !set.is_null()) {
            for (word, bits) in ours.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                // SAFETY: as in `new`.
                unsafe { *set.cast::<u64>().add(word) |= bits };
            }
        }
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
            let sets = unsafe { Sets::new(count, [read, write, except]) };
            let mut now = timeval { tv_sec: 0, tv_usec: 0 };
            let wait = if sets.ready > 0 { &raw mut now } else { timeout };
            // SAFETY: the caller's own arguments.
            let result = unsafe { real()(count, read, write, except, wait) };
            if sets.is_missed(count, result) {
                // SAFETY: the caller's own arguments, now that all placeholders are known.
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
    let sets = unsafe { Sets::new(count, [read, write, except]) };
    let wait = if sets.ready > 0 { &raw const NOW } else { timeout };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real()(count, read, write, except, wait, mask) };
    if sets.is_missed(count, result) {
        // SAFETY: the caller's own arguments, now that all placeholders are known.
        return unsafe { pselect(count, read, write, except, timeout, mask) };
    }
    sets.finish("pselect", result)
}

/// As `epoll_ctl(2)`: `EPERM` for a file of ours, as for a regular file.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    instance: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !table::is_ours(descriptor) {
        // A file is no set of events, and neither is the descriptor: of that the kernel says the same.
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
        if result == 0 || !is_missed(descriptor) {
            count_waiting("epoll_ctl", false, result);
            return result;
        }
    }
    let failure = if is_any(instance) && is_opened(descriptor) { libc::EPERM } else { libc::EBADF };
    answer(|| Err::<(), _>(Errno(failure)))
}
