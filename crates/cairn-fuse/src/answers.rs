//! Requests that were carried out, in memory that outlives a server.
//!
//! The kernel sends a request again if a server was killed before it answered. Most requests can be
//! carried out twice, but not those that append, exchange names, or fail if something exists.
//!
//! Must stay true: a request is noted when it begins, and again when its effect is in the store and
//! before it is answered. Of one that has only begun, whoever carries it out again has to see from
//! the store whether it is done.

use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::Mapping;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that are remembered: far more than threads carry out at a time.
const PLACES: usize = 1024;
/// Distance between the numbers of requests.
const STEP: u64 = 2;
const BYTES: usize = (1 + PLACES) * size_of::<Place>();
/// States in the first word of the memory.
const BEGUN: u64 = 1;
const RESENDS: u64 = 2;
/// Flag of a request that has begun; the kernel's numbers never have it.
const UNDER_WAY: u64 = 1 << 63;

/// A request, and what came of it. 0 is no request.
#[repr(C)]
struct Place {
    request: AtomicU64,
    result: AtomicU64,
}

/// Returns memory for the answers of the servers of a mount.
pub fn memory() -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("cairn-answers", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, BYTES as u64)?;
    Ok(memory)
}

/// The answers of the servers of a mount.
pub struct Answers(Mapping);

impl Answers {
    /// Maps the memory. Errors: it is not one of [`memory`].
    pub fn map(memory: OwnedFd) -> io::Result<Answers> {
        if rustix::fs::fstat(&memory)?.st_size != BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = Descriptor::from_raw(memory.into_raw_fd());
        let mapping = Mapping::new(file, BYTES);
        Ok(Answers(mapping.map_err(|errno| io::Error::from_raw_os_error(errno.0))?))
    }

    fn place(&self, request: u64) -> &Place {
        let places = self.0.address().as_ptr().cast::<Place>();
        // SAFETY: the mapping is shared memory of that many places, all of whose states are valid,
        // and lives as long as self.
        unsafe { &*places.add(1 + (request % UNDER_WAY / STEP) as usize % PLACES) }
    }

    fn state(&self) -> &AtomicU64 {
        // SAFETY: as in `place`; the first one holds the state.
        unsafe { &(*self.0.address().as_ptr().cast::<Place>()).request }
    }

    /// Notes that the kernel's first request is answered, and whether it sends requests again.
    pub(crate) fn begin(&self, resends: bool) {
        self.state().store(BEGUN | if resends { RESENDS } else { 0 }, Ordering::Release);
    }

    /// Whether the mount works.
    pub fn has_begun(&self) -> bool {
        self.state().load(Ordering::Acquire) & BEGUN != 0
    }

    /// Whether a server can be replaced. On an older kernel than 6.9, the processes behind requests
    /// that the server had read would wait for ever.
    pub fn can_go_on(&self) -> bool {
        self.state().load(Ordering::Acquire) & RESENDS != 0
    }

    /// Notes that `request` begins, with what tells later whether it is done.
    pub(crate) fn note_begin(&self, request: u64, hint: u64) {
        self.note(request | UNDER_WAY, hint);
    }

    /// Returns what was noted when `request` began, if it may be done or not.
    pub(crate) fn find_begun(&self, request: u64) -> Option<u64> {
        self.find(request | UNDER_WAY)
    }

    /// Notes that `request` was carried out with this result.
    pub(crate) fn note(&self, request: u64, result: u64) {
        let place = self.place(request);
        // Whoever is killed in between leaves no request with the result of another one.
        place.request.store(0, Ordering::Release);
        place.result.store(result, Ordering::Release);
        place.request.store(request, Ordering::Release);
    }

    /// Returns the result of `request`, if it was carried out.
    pub(crate) fn find(&self, request: u64) -> Option<u64> {
        let place = self.place(request);
        (place.request.load(Ordering::Acquire) == request)
            .then(|| place.result.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_found_until_another_takes_its_place_also_by_the_next_server() {
        let memory = memory().expect("makes");
        let first = Answers::map(memory.try_clone().expect("duplicates")).expect("maps");
        assert_eq!(first.find(2), None);
        first.note(2, 100);
        first.note_begin(4, 3);
        assert_eq!((first.find(4), first.find_begun(4)), (None, Some(3)));
        first.note(4, 7);
        assert_eq!(first.find_begun(4), None);
        drop(first);
        let next = Answers::map(memory).expect("maps");
        assert_eq!((next.find(2), next.find(4), next.find(6)), (Some(100), Some(7), None));
        next.note(2 + STEP * PLACES as u64, 5);
        assert_eq!(next.find(2), None);
    }

    #[test]
    fn foreign_memory_is_refused() {
        let file = std::fs::File::open("/dev/null").expect("opens");
        assert!(Answers::map(file.into()).is_err());
    }
}
