//! Workloads on a durable namespace, and the states that a crash may leave.
//!
//! ```text
//! durable.rs    settings of a namespace, from a seed
//! crew.rs       processes that share it, and their deaths
//! state.rs      state that programs see, and states that a crash may leave
//! workload.rs   random operations
//! ```
//! Does not know how the media fail; `crash.rs` makes the crashes.

mod crew;
mod state;
mod workload;

pub use crew::{Crew, Died, Wrap, plain};
pub use state::{Seen, State, Window, check, check_accounts, look, look_in};
pub use workload::Workload;

use cairn_core::recover;
use cairn_core::{
    Durability, FurtherTier, Media, MediaOptions, Memory, Microfs, NAME_BYTES_MAX, OpenOptions,
    ProcessIdentity, ROOT, Recovered, Result, Superblock, Timestamp, format_media,
};
use cairn_device::Workspace;
use std::sync::Arc;

use crate::driver::{Clock, Process};
use crate::faulty::{ByteMedia, Image, MediaTier};
use crate::random::Random;
use crate::tier::CHECKSUM;
use crate::world::SUPERUSER;

/// Names that the operations of every workload use.
const NAMES: [&[u8]; 6] = [b"a", b"b", b"dir", b"dir/a", b"dir/b", b"link"];
/// Longest target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = 4000;
/// Options with which a file is opened to write to it.
const OPEN: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: true,
    path_only: false,
    ..OpenOptions::NONE
};

/// Properties of a namespace and its users.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Unit of allocation, in bytes.
    pub hugeblock_bytes: u32,
    /// When an operation becomes durable.
    pub durability: Durability,
    /// Number of processes; they take turns.
    pub processes: usize,
    /// Whether one process dies in the middle of a flush or snapshot, again and again.
    pub mortal: bool,
    /// Names that the operations use.
    pub names: Vec<Vec<u8>>,
    /// Number of further hard links to one file, in a directory of their own.
    pub crowd: u64,
    /// Log blocks used before the workload begins, so that the end of the ring and a snapshot are
    /// near.
    pub history_blocks: u64,
    /// Distribution of metadata and data over tiers.
    pub tiers: Tiers,
    /// Whether the second tier is memory: its content must not be expected back after a crash.
    pub in_memory: bool,
    /// Whether some of its files are absent. Nobody but the workload may open them.
    pub absent: bool,
}

/// Distribution of a namespace's metadata and data over tiers. All of it is on media that lose
/// power together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiers {
    /// Both in one tier.
    One,
    /// Metadata in a tier of their own, data in the next one.
    Apart,
    /// Both in the first tier, which is so small that data spill to the next one.
    Spilling,
}

/// Data hugeblocks in the first of two tiers.
const FIRST_BLOCKS: u32 = 40;

impl Setting {
    /// Returns a setting of one process with short names on an empty namespace.
    pub fn simple() -> Setting {
        Setting {
            hugeblock_bytes: 4096,
            durability: Durability::Sync,
            processes: 1,
            mortal: false,
            names: NAMES.map(<[u8]>::to_vec).to_vec(),
            crowd: 0,
            history_blocks: 0,
            tiers: Tiers::One,
            in_memory: false,
            absent: false,
        }
    }

    /// Draws a setting from a seed.
    pub fn draw(seed: u64) -> Setting {
        let random = &mut Random::new(seed ^ 0x5e77_1246);
        let processes = random.below(3) as usize + 1;
        let mut setting = Setting {
            hugeblock_bytes: if random.one_in(6) { 32 << 10 } else { 4096 },
            durability: match random.one_in(4) {
                true => Durability::Operation,
                false => Durability::Sync,
            },
            processes,
            mortal: processes > 1 && random.one_in(2),
            crowd: if random.one_in(10) { 100 } else { 0 },
            history_blocks: *random.pick(&[0, 0, 110, 125, 180, 189, 191]),
            ..Setting::simple()
        };
        if random.one_in(3) {
            setting.names.extend([b"x", b"y"].map(|end| long_name(b"", end)));
            setting.names.push(long_name(b"dir/", b"z"));
        }
        setting.absent = true;
        setting.tiers = *random.pick(&[Tiers::One, Tiers::One, Tiers::Apart, Tiers::Spilling]);
        setting
    }

    /// Size of its media in bytes.
    fn media_bytes(&self) -> u64 {
        if self.hugeblock_bytes > 4096 { 16 << 20 } else { 6 << 20 }
    }

    /// Makes an empty namespace on `media`, which must be large enough. A second tier lies after
    /// the first one's blocks.
    pub fn make_on(&self, media: &dyn Media) -> Superblock {
        let options = self.options();
        let step = u64::from(self.hugeblock_bytes);
        let bytes = match self.tiers {
            Tiers::One => media.bytes(),
            Tiers::Apart => Superblock::least_bytes_alone(&options),
            Tiers::Spilling => (step..media.bytes())
                .step_by(self.hugeblock_bytes as usize)
                .find(|&bytes| {
                    let plan = Superblock::plan(bytes, &options);
                    plan.is_ok_and(|plan| plan.geometry.tier_blocks[0] >= FIRST_BLOCKS)
                })
                .expect("the media are large enough"),
        };
        format_media(&Part { media, bytes }, &options, CHECKSUM, SUPERUSER)
            .expect("the media are large enough")
    }

    fn options(&self) -> MediaOptions {
        let mut further = [FurtherTier::default(); 3];
        if self.tiers != Tiers::One {
            let blocks = (self.media_bytes() / 2 / u64::from(self.hugeblock_bytes)) as u32;
            let identity = Some([5, 6]).filter(|_| !self.in_memory);
            further[0] = FurtherTier { blocks, identity };
        }
        MediaOptions {
            hugeblock_bytes: self.hugeblock_bytes,
            durability: self.durability,
            mount: crate::path::MOUNT.to_vec(),
            zero_block_checksum: CHECKSUM(0, &vec![0; self.hugeblock_bytes as usize]),
            identity: [0x1234_5678, 0x9abc_def0],
            now: Timestamp(1),
            further,
            holds_data: self.tiers != Tiers::Apart,
        }
    }

    /// Makes the namespace, with its history, on media of its own.
    pub fn format(&self) -> (Image, Superblock) {
        let image = Arc::new(Image::filled(self.media_bytes(), 0xdb));
        let superblock = self.make_on(image.as_ref());
        self.write_history(&image, &superblock).expect("nothing fails on such media");
        (image.as_ref().clone(), superblock)
    }

    fn write_history(&self, image: &Arc<Image>, superblock: &Superblock) -> Result<()> {
        if self.history_blocks == 0 && self.crowd == 0 {
            return Ok(());
        }
        let memory = memory(superblock);
        recover(image.as_ref(), &memory, CHECKSUM)?;
        let process = attach(memory, image.clone(), superblock, 1)?;
        self.fill_crowd(&process)?;
        let caller = process.caller();
        for _ in 0..self.history_blocks {
            process.fs.symlink(&caller, &[b'h'; TARGET_BYTES_MAX], ROOT, b"history")?;
            process.fs.unlink(&caller, ROOT, b"history")?;
            // Free log space, so that the history wraps around the ring instead of stopping at its
            // end.
            let usage = process.fs.log_usage()?.expect("the namespace is durable");
            if self.history_blocks > 130 && usage.used_bytes > usage.total_bytes / 2 {
                process.fs.sync()?;
                process.fs.write_snapshot()?;
            }
        }
        process.fs.sync()
    }

    fn fill_crowd(&self, process: &Process) -> Result<()> {
        if self.crowd == 0 {
            return Ok(());
        }
        let caller = process.caller();
        process.fs.make_directory(&caller, ROOT, b"crowd", 0o755)?;
        let first = b"crowd/first";
        let opened = process.fs.open_file(&caller, ROOT, first, OPEN, 0o644)?;
        process.close(opened.handle)?;
        for number in 0..self.crowd {
            let name = long_name(b"crowd/", format!("{number}").as_bytes());
            process.fs.link(&caller, (ROOT, first), (ROOT, &name), false)?;
        }
        Ok(())
    }
}

/// The first `bytes` bytes of media.
struct Part<'m> {
    media: &'m dyn Media,
    bytes: u64,
}

impl Media for Part<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write(offset, source)
    }

    fn flush(&self) -> Result<()> {
        self.media.flush()
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        self.media.workspace(words)
    }
}

/// Returns a name of the greatest length, in a directory.
fn long_name(directory: &[u8], end: &[u8]) -> Vec<u8> {
    let filler = vec![b'n'; NAME_BYTES_MAX - end.len()];
    [directory, &filler, end].concat()
}

/// Returns zeroed memory for the namespace of a superblock.
pub fn memory(superblock: &Superblock) -> Arc<Workspace> {
    let words = superblock.geometry.segment_bytes() as usize / 8;
    let memory = Workspace::new(words).and_then(Workspace::with_shadow);
    Arc::new(memory.expect("there is address space"))
}

/// Attaches a process to the namespace that was recovered in `memory`.
pub fn attach(
    memory: Arc<Workspace>,
    media: Arc<impl ByteMedia + 'static>,
    superblock: &Superblock,
    pid: u32,
) -> Result<Process> {
    let fs = Microfs::open_durable(Box::new(memory), CHECKSUM, media.clone(), Vec::new())?;
    let identity = ProcessIdentity { pid, pid_namespace: 1, start_time: 7 };
    let tier = Arc::new(MediaTier::new(media, superblock.data_offset));
    Process::attach(fs, identity, SUPERUSER, tier, Clock::default())
}

/// Recovers media in memory of its own and attaches one process.
pub fn recover_and_attach(
    media: Arc<impl ByteMedia + 'static>,
    superblock: &Superblock,
) -> Result<(Process, Recovered)> {
    let memory = memory(superblock);
    let recovered = recover(media.as_ref(), &memory, CHECKSUM)?;
    Ok((attach(memory, media, superblock, u32::MAX - 1)?, recovered))
}
