//! The store's list of MPI ranks: the processes that initialised MPI here, their ranks, and whether
//! they finalised it.
//!
//! ```text
//! ranks                            records of 128 bytes, one for each process that passed MPI_Init
//!   0 magic  8 state  12 errno of the flush that failed  16 rank  20 size  24 local rank  28 local size
//!   32 pid  36 slot  40 start time  48 pid namespace  56 launch (text, padded with NUL)
//! ```
//! A rank appends its record once, and afterwards changes only its own state and errno. So ranks
//! need no agreement and no lock.
//!
//! Must stay true: a record is never moved, and one call writes it, so that it is there as a whole.
//!
//! Does not say which ranks died, because a record cannot tell; readers ask `process::is_alive`.
//! Does not call MPI.

use core::ffi::CStr;

use cairn_core::{ProcessIdentity, SlotId};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{Directory, StoreResult};

/// Name of the file in the store's directory.
const NAME: &CStr = c"ranks";
const MAGIC: u64 = u64::from_le_bytes(*b"cairnrk1");
const RECORD_BYTES: usize = 128;
const STATE_AT: usize = 8;
const LAUNCH_AT: usize = 56;
/// Longest name of a launch, in bytes.
pub const LAUNCH_BYTES_MAX: usize = RECORD_BYTES - LAUNCH_AT;
/// Number of records that a store has room for; a later rank is not listed.
const RECORDS_MAX: u64 = 1 << 16;

const INITIALISED: u32 = 1;
const FINALISED: u32 = 2;

/// One process that initialised MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRecord {
    /// Number of the rank, from 0.
    pub rank: u32,
    /// Number of ranks; 0 if the launcher did not say.
    pub size: u32,
    /// Number of the rank among those of this node.
    pub local_rank: u32,
    /// Number of ranks on this node; 0 if the launcher did not say.
    pub local_size: u32,
    /// The process.
    pub process: ProcessIdentity,
    /// Its slot in its namespace, which gives it blocks of its own to write to.
    pub slot: SlotId,
    /// Distinguishes this start of a program from any other, in ASCII. Everything behind
    /// [`LAUNCH_BYTES_MAX`] bytes is cut off.
    pub launch: String,
    /// Result of the flush of its files in MPI_Finalize; `None` if it has not finalised MPI.
    pub finalised: Option<SysResult<()>>,
}

impl RankRecord {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(STATE_AT, &state(self.finalised));
        let ProcessIdentity { pid, pid_namespace, start_time } = self.process;
        let numbers = [self.rank, self.size, self.local_rank, self.local_size, pid, self.slot.0];
        for (at, number) in (16..).step_by(4).zip(numbers) {
            put(at, &number.to_le_bytes());
        }
        put(40, &start_time.to_le_bytes());
        put(48, &pid_namespace.to_le_bytes());
        let launch = self.launch.as_bytes();
        put(LAUNCH_AT, &launch[..launch.len().min(LAUNCH_BYTES_MAX)]);
        bytes
    }

    /// Returns `None` for bytes that are not a record.
    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<RankRecord> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let finalised = match (number(STATE_AT)?, number(STATE_AT + 4)?) {
            (INITIALISED, 0) => None,
            (FINALISED, 0) => Some(Ok(())),
            (FINALISED, errno) => Some(Err(Errno(i32::try_from(errno).ok()?))),
            _ => return None,
        };
        let launch = core::str::from_utf8(&bytes[LAUNCH_AT..]).ok()?.trim_end_matches('\0');
        let record = RankRecord {
            rank: number(16)?,
            size: number(20)?,
            local_rank: number(24)?,
            local_size: number(28)?,
            process: ProcessIdentity {
                pid: number(32)?,
                start_time: long(40)?,
                pid_namespace: long(48)?,
            },
            slot: SlotId(number(36)?),
            launch: launch.to_owned(),
            finalised,
        };
        // A record that was cut off ends in zeros.
        let is_whole = record.process.pid_namespace != 0;
        (long(0)? == MAGIC && is_whole && !launch.contains(char::is_control)).then_some(record)
    }

    /// Whether its process ended before it finalised MPI, as far as the caller can tell.
    pub fn died(&self) -> bool {
        self.finalised.is_none() && !cairn_platform::process::is_alive(self.process)
    }
}

fn state(finalised: Option<SysResult<()>>) -> [u8; 8] {
    let (state, errno) = match finalised {
        None => (INITIALISED, 0),
        Some(Ok(())) => (FINALISED, 0),
        Some(Err(Errno(errno))) => (FINALISED, errno as u32),
    };
    (u64::from(errno) << 32 | u64::from(state)).to_le_bytes()
}

/// Offset of a record in the list, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

/// Appends `record` to the list of the store whose directory is the descriptor `store`. Errors:
/// `EFBIG` if the list is full, or longer than the process may make files.
pub fn announce(store: i32, record: &RankRecord) -> SysResult<Place> {
    let flags = libc::O_RDWR | libc::O_APPEND | libc::O_CREAT;
    let list = Descriptor::open_regular(store, NAME, flags, 0o600)?;
    let limit = sys::soft_limit(libc::RLIMIT_FSIZE)?.min(RECORDS_MAX * RECORD_BYTES as u64);
    let length = sys::fstat(list.raw())?.st_size as u64;
    // A full file system may have taken a part of a record. Zeros fill that record up.
    let gap = length.next_multiple_of(RECORD_BYTES as u64) - length;
    if length + gap + RECORD_BYTES as u64 > limit {
        return Err(Errno(libc::EFBIG));
    }
    let mut bytes = [0; 2 * RECORD_BYTES];
    let written = &mut bytes[..gap as usize + RECORD_BYTES];
    written[gap as usize..].copy_from_slice(&record.encode());
    match sys::write(list.raw(), written)? {
        whole if whole == written.len() => {
            Ok(Place(sys::position(list.raw())? - RECORD_BYTES as u64))
        }
        _ => Err(Errno(libc::ENOSPC)),
    }
}

/// Notes in the caller's own record at `place` that it finalised MPI, with the result of flushing
/// its files.
pub fn finalise(store: i32, place: Place, flushed: SysResult<()>) -> SysResult<()> {
    let list = Descriptor::open_regular(store, NAME, libc::O_WRONLY, 0)?;
    let word = state(Some(flushed));
    // SAFETY: the word is readable and lives for the call.
    unsafe { sys::pwrite_raw(list.raw(), word.as_ptr(), word.len(), place.0 + STATE_AT as u64) }?;
    Ok(())
}

/// Returns the list of a store in the order in which ranks came. Skips whatever is not a record.
pub fn list(store: &Directory) -> StoreResult<Vec<RankRecord>> {
    let list = match Descriptor::open_regular(store.raw(), NAME, libc::O_RDONLY, 0) {
        Ok(list) => list,
        Err(Errno(libc::ENOENT)) => return Ok(Vec::new()),
        Err(errno) => return Err(store.error("open", NAME, errno)),
    };
    let content = list.read_up_to(RECORDS_MAX as usize * RECORD_BYTES);
    let content = content.map_err(|errno| store.error("read", NAME, errno))?;
    let records = content.chunks_exact(RECORD_BYTES).filter_map(|bytes| bytes.try_into().ok());
    Ok(records.filter_map(RankRecord::decode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_platform::process;

    fn directory(name: &str) -> (std::path::PathBuf, Directory) {
        let path = std::env::temp_dir().join(format!("cairn-ranks-{name}-{}", sys::getpid()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = Directory::open(&path).unwrap();
        (path, directory)
    }

    fn record(rank: u32) -> RankRecord {
        RankRecord {
            rank,
            size: 8,
            local_rank: rank % 4,
            local_size: 4,
            process: process::identity().unwrap(),
            slot: SlotId(0x0001_0003),
            launch: "openmpi:123@1".to_owned(),
            finalised: None,
        }
    }

    #[test]
    fn record_that_was_cut_off_spoils_no_other() {
        let (path, store) = directory("cut");
        announce(store.raw(), &record(0)).unwrap();
        let list_path = path.join(NAME.to_str().unwrap());
        let whole = std::fs::read(&list_path).unwrap();
        std::fs::write(&list_path, [&whole[..], &whole[..40]].concat()).unwrap();
        let place = announce(store.raw(), &record(1)).unwrap();
        finalise(store.raw(), place, Ok(())).unwrap();
        let last = RankRecord { finalised: Some(Ok(())), ..record(1) };
        assert_eq!(list(&store).unwrap(), [record(0), last]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn ranks_are_listed_as_they_came_and_each_changes_its_own_state_alone() {
        let (path, store) = directory("order");
        assert_eq!(list(&store).unwrap(), []);
        let places: Vec<Place> =
            [2, 0, 1].iter().map(|&rank| announce(store.raw(), &record(rank)).unwrap()).collect();
        finalise(store.raw(), places[1], Ok(())).unwrap();
        finalise(store.raw(), places[2], Err(Errno(libc::EIO))).unwrap();
        let flushed = [None, Some(Ok(())), Some(Err(Errno(libc::EIO)))];
        let expected: Vec<RankRecord> = [2, 0, 1]
            .iter()
            .zip(flushed)
            .map(|(&rank, finalised)| RankRecord { finalised, ..record(rank) })
            .collect();
        assert_eq!(list(&store).unwrap(), expected);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn rank_died_if_its_process_ended_before_it_finalised() {
        let mut ended = record(0);
        assert!(!ended.died());
        ended.process.start_time += 1;
        assert!(ended.died());
        ended.finalised = Some(Ok(()));
        assert!(!ended.died());
    }

    #[test]
    fn what_is_no_record_is_left_out() {
        let (path, store) = directory("damage");
        announce(store.raw(), &record(0)).unwrap();
        announce(store.raw(), &record(1)).unwrap();
        let whole = std::fs::read(path.join("ranks")).unwrap();
        for (at, byte) in [(0, 0), (STATE_AT, 7), (STATE_AT + 4, 1), (LAUNCH_AT + 3, 0xff)] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes.extend(b"a torn end");
            std::fs::write(path.join("ranks"), bytes).unwrap();
            assert_eq!(list(&store).unwrap(), [record(1)], "byte {at}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn long_names_are_cut() {
        let (path, store) = directory("long");
        let launch = "x".repeat(LAUNCH_BYTES_MAX + 5);
        announce(store.raw(), &RankRecord { launch: launch.clone(), ..record(0) }).unwrap();
        assert_eq!(list(&store).unwrap()[0].launch, launch[..LAUNCH_BYTES_MAX]);
        std::fs::remove_dir_all(path).unwrap();
    }
}
