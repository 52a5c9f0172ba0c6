//! Processes that share a durable namespace, of which one may die in the middle of a flush or a
//! snapshot.
//!
//! A process dies between two accesses to the media: the access unwinds with `Died`, and nothing of
//! it runs any more. Nobody runs beside anybody: who waits for a living process would wait forever,
//! which is a panic.

use super::{attach, memory};
use crate::driver::Process;
use crate::faulty::{ByteMedia, FaultyMedia};
use crate::random::Random;
use crate::tier::CHECKSUM;
use cairn_core::recover;
use cairn_core::{ImageMemory, Media, Memory, Microfs, ProcessIdentity, Result, Superblock};
use cairn_device::Workspace;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A process dies within so many accesses to the media.
const LIFE_ACCESSES_MAX: u64 = 60;

/// How the processes of a crew reach media: a place for planted bugs.
pub type Wrap<'a> = &'a dyn Fn(Arc<FaultyMedia>) -> Arc<dyn ByteMedia>;

/// Media as they are.
pub fn plain(media: Arc<FaultyMedia>) -> Arc<dyn ByteMedia> {
    media
}

/// What a death unwinds with.
pub struct Died;

/// Process ids of the dead.
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

/// Media as one process uses them.
struct Member {
    media: Arc<dyn ByteMedia>,
    pid: u32,
    dead: Arc<Dead>,
    /// Accesses left until it dies; 0 if it does not.
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

/// Bytes of files move under the segment's lock, whose owner's death is tested elsewhere: nobody
/// dies here.
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
    /// The living.
    pub processes: Vec<Process>,
    /// Where further ones come from, if they do.
    source: Option<Source>,
}

/// What it takes to attach a process.
struct Source {
    memory: Arc<Workspace>,
    media: Arc<dyn ByteMedia>,
    superblock: Superblock,
    dead: Arc<Dead>,
    next_pid: u32,
}

impl Crew {
    /// One process, which is not replaced.
    pub fn alone(process: Process) -> Crew {
        Crew { processes: vec![process], source: None }
    }

    /// Recovers the namespace of `media` and attaches so many processes. Errors: those of recovery.
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

    /// The image that the namespace holds, as a process sees it. Errors: `ImageLost`.
    pub fn image(&self) -> Result<Process> {
        let source = self.source.as_ref().expect("the crew was recovered");
        let view = Workspace::new(Memory::words(&source.memory).len())?;
        let image = ImageMemory::new(source.memory.clone(), Box::new(view), CHECKSUM)?;
        let process = &self.processes[0];
        Ok(process.with_slot(Microfs::open_image(image, CHECKSUM)?, process.slot))
    }

    /// Whether its processes can be replaced, and images looked at.
    pub fn was_recovered(&self) -> bool {
        self.source.is_some()
    }

    /// The life of a process that is to die soon.
    pub fn short_life(random: &mut Random) -> u64 {
        random.below(LIFE_ACCESSES_MAX) + 1
    }

    /// Replaces the last process, which is dead or killed here, by one that dies in its access
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
