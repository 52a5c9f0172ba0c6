//! Processes that share a durable namespace; one of them may die in the middle of a flush or a
//! snapshot.
//!
//! A process dies between two accesses to the media: the access unwinds with `Died`, and no code of
//! the process runs any more. Processes do not run concurrently, so a wait for a living process
//! would never end; it is a panic.

use cairn_core::recover;
use cairn_core::{ImageMemory, Media, Memory, Microfs, ProcessIdentity, Result, Superblock};
use cairn_device::Workspace;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{attach, memory};
use crate::driver::Process;
use crate::faulty::{ByteMedia, FaultyMedia};
use crate::random::Random;
use crate::tier::CHECKSUM;

/// Most accesses to the media until a process dies.
const LIFE_ACCESSES_MAX: u64 = 60;

/// Wraps the media of a crew's processes; planted bugs use it.
pub type Wrap<'a> = &'a dyn Fn(Arc<FaultyMedia>) -> Arc<dyn ByteMedia>;

/// Returns the media unchanged.
pub fn plain(media: Arc<FaultyMedia>) -> Arc<dyn ByteMedia> {
    media
}

/// Panic payload of a death.
pub struct Died;

/// Process ids of dead processes.
#[derive(Default)]
struct Dead(Mutex<BTreeSet<u32>>);

impl Dead {
    fn add(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
    }

    fn contains(&self, pid: u32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }
}

/// Media as one process accesses them.
struct Member {
    media: Arc<dyn ByteMedia>,
    pid: u32,
    dead: Arc<Dead>,
    /// Accesses left until the process dies; 0 if it does not die.
    life: AtomicU64,
}

impl Member {
    fn live(&self) {
        let left = self.life.load(Ordering::Relaxed);
        self.life.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 {
            self.dead.add(self.pid);
            resume_unwind(Box::new(Died));
        }
    }
}

impl Media for Member {
    fn bytes(&self) -> u64 {
        self.media.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.live();
        self.media.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.live();
        self.media.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        self.live();
        self.media.flush()
    }

    fn wait_for(&self, owner: ProcessIdentity, _round: u32) -> bool {
        assert!(self.dead.contains(owner.pid), "process {} waits for {owner:?}", self.pid);
        true
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.media.workspace(words)
    }
}

/// File data move under the segment's lock. The death of a lock owner is tested elsewhere, so no
/// process dies here.
impl ByteMedia for Member {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read_bytes(offset, target)
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write_bytes(offset, source)
    }
}

/// The processes of a namespace.
pub struct Crew {
    /// Living processes.
    pub processes: Vec<Process>,
    /// Source of replacements, if processes can be replaced.
    source: Option<Source>,
}

/// State needed to attach a process.
struct Source {
    memory: Arc<Workspace>,
    media: Arc<dyn ByteMedia>,
    superblock: Superblock,
    dead: Arc<Dead>,
    next_pid: u32,
}

impl Crew {
    /// Returns a crew of one process, which cannot be replaced.
    pub fn alone(process: Process) -> Crew {
        Crew { processes: vec![process], source: None }
    }

    /// Recovers the namespace of `media` and attaches `processes` processes. Errors: those of
    /// recovery.
    pub fn recover(
        media: Arc<dyn ByteMedia>,
        superblock: &Superblock,
        processes: usize,
    ) -> Result<Crew> {
        let memory = memory(superblock);
        recover(media.clone().as_media().as_ref(), &memory, CHECKSUM)?;
        let mut source = Source {
            memory,
            media,
            superblock: superblock.clone(),
            dead: Arc::default(),
            next_pid: 1,
        };
        let processes = (0..processes).map(|_| source.attach(0)).collect::<Result<_>>()?;
        Ok(Crew { processes, source: Some(source) })
    }

    /// Opens the image that the namespace holds, as a process would. Errors: `ImageLost`.
    pub fn image(&self) -> Result<Process> {
        let source = self.source.as_ref().expect("the crew was recovered");
        let view = Workspace::new(Memory::words(&source.memory).len())?;
        let image = ImageMemory::new(source.memory.clone(), Box::new(view), CHECKSUM)?;
        let process = &self.processes[0];
        Ok(process.with_slot(Microfs::open_image(image, CHECKSUM)?, process.slot))
    }

    /// Whether its processes can be replaced, and images opened.
    pub fn was_recovered(&self) -> bool {
        self.source.is_some()
    }

    /// Draws the life of a process that dies soon, in accesses.
    pub fn short_life(random: &mut Random) -> u64 {
        random.below(LIFE_ACCESSES_MAX) + 1
    }

    /// Replaces the last process, which is dead or is killed here, by one that dies in its access
    /// number `life`.
    pub fn replace_last(&mut self, life: u64) -> Result<()> {
        if let Some(last) = self.processes.pop() {
            self.processes[0].reap(last.slot)?;
        }
        let source = self.source.as_mut().expect("the crew was recovered");
        self.processes.push(source.attach(life)?);
        Ok(())
    }
}

impl Source {
    fn attach(&mut self, life: u64) -> Result<Process> {
        let (pid, dead, media) = (self.next_pid, self.dead.clone(), self.media.clone());
        self.next_pid += 1;
        let member = Arc::new(Member { media, pid, dead, life: AtomicU64::new(0) });
        let process = attach(self.memory.clone(), member.clone(), &self.superblock, pid)?;
        member.life.store(life, Ordering::Relaxed);
        Ok(process)
    }
}
