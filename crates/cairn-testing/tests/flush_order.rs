//! Writes to the media of several tiers become durable in an order that no crash can reverse.

use cairn_core::recover;
use cairn_core::{
    Error, Media, Memory, Microfs, OpenOptions, Position, ProcessIdentity, ROOT, Result,
};
use cairn_testing::driver::{Clock, Process};
use cairn_testing::durable::{Setting, Tiers, memory};
use cairn_testing::faulty::{Image, MediaTier};
use cairn_testing::tier::CHECKSUM;
use cairn_testing::world::SUPERUSER;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    FlushOfFirst,
    FlushOfSecond,
    LogWritten,
}

/// Media that record the events on them.
struct Noted {
    image: Arc<Image>,
    flush: Event,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Noted {
    fn note(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl Media for Noted {
    fn bytes(&self) -> u64 {
        self.image.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.image.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        if source.starts_with(b"cairnlog") {
            self.note(Event::LogWritten);
        }
        self.image.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        self.note(self.flush);
        self.image.flush()
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.image.workspace(words)
    }
}

/// Media of which one flush fails, after it has run `meanwhile`.
struct Failing {
    image: Arc<Image>,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Receives a message whenever a process waits for another.
    waits: Mutex<Sender<Met>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Met {
    Waits,
    Synced(Result<()>),
}

impl Media for Failing {
    fn bytes(&self) -> u64 {
        self.image.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.image.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.image.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
        match meanwhile {
            Some(act) => {
                act();
                Err(Error::Io)
            }
            None => self.image.flush(),
        }
    }

    fn wait_for(&self, _: ProcessIdentity, _: u32) -> bool {
        // The receiver may be gone.
        let _ = self.waits.lock().unwrap_or_else(PoisonError::into_inner).send(Met::Waits);
        thread::yield_now();
        false
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.image.workspace(words)
    }
}

/// Returns a process that has written to a file data that are not durable yet.
fn process_that_wrote(fs: Microfs, tier: Arc<MediaTier>) -> Process {
    let identity = ProcessIdentity { pid: 1, pid_namespace: 1, start_time: 7 };
    let process = Process::attach(fs, identity, SUPERUSER, tier, Clock::default());
    let process = process.expect("there is a slot");
    let caller = process.caller();
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let opened = process.fs.open_file(&caller, ROOT, b"file", options, 0o644);
    let handle = opened.expect("it opens").handle;
    process.write(&caller, handle, Position::At(0), &[7; 9000]).expect("there is room");
    process
}

#[test]
fn data_of_every_tier_are_flushed_before_the_records_that_refer_to_them() {
    let (image, superblock) = Setting { tiers: Tiers::Apart, ..Setting::simple() }.format();
    let (image, events) = (Arc::new(image), Arc::new(Mutex::new(Vec::new())));
    let memory = memory(&superblock);
    recover(image.as_ref(), &memory, CHECKSUM).expect("it was just made");
    let [first, second] = [Event::FlushOfFirst, Event::FlushOfSecond]
        .map(|flush| Arc::new(Noted { image: image.clone(), flush, events: events.clone() }));
    let fs = Microfs::open_durable(Box::new(memory), CHECKSUM, first, vec![second]);
    let tier = Arc::new(MediaTier::new(image, superblock.data_offset));
    let process = process_that_wrote(fs.expect("it was just recovered"), tier);
    events.lock().unwrap_or_else(PoisonError::into_inner).clear();
    process.fs.sync().expect("media without faults");
    let events = events.lock().unwrap_or_else(PoisonError::into_inner);
    use Event::{FlushOfFirst, FlushOfSecond, LogWritten};
    assert_eq!(*events, [FlushOfSecond, FlushOfFirst, LogWritten, FlushOfFirst]);
}

/// Mechanism: a snapshot's flushes were done without the flush duty, and the failure of one was
/// recorded only after it had returned.
///
/// Consequence: another process's flush could succeed in between, and what it promised was not on
/// the media.
///
/// Fix: `OneFlushAtATime` (`flush.rs`).
#[test]
fn nothing_becomes_durable_while_a_flush_of_a_snapshot_fails() {
    let (image, superblock) = Setting::simple().format();
    let image = Arc::new(image);
    let memory = memory(&superblock);
    recover(image.as_ref(), &memory, CHECKSUM).expect("it was just made");
    let (met, meets) = channel();
    let (meanwhile, waits) = (Mutex::new(None), Mutex::new(met.clone()));
    let media = Arc::new(Failing { image: image.clone(), meanwhile, waits });
    let fs = Microfs::open_durable(Box::new(memory), CHECKSUM, media.clone(), vec![]);
    let tier = Arc::new(MediaTier::new(image, superblock.data_offset));
    let process = Arc::new(process_that_wrote(fs.expect("it was just recovered"), tier));
    let (ends, ended) = channel();
    let other = process.clone();
    *media.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(move || {
        thread::spawn(move || {
            let synced = other.fs.sync();
            let _ = met.send(Met::Synced(synced));
            ends.send(synced).expect("the test waits");
        });
        assert_eq!(meets.recv(), Ok(Met::Waits), "the other one is not let through");
    }));
    assert_eq!(process.fs.write_snapshot(), Err(Error::Io));
    assert_eq!(ended.recv(), Ok(Err(Error::Io)));
}
