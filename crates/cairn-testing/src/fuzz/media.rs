//! Media of a used store, changed by the input, mostly with their checksums made valid again.
//!
//! Checksums detect damage, and that is not tested here. The reader behind them must cope with any
//! content.

use crate::driver::Process;
use crate::faulty::Image;
use crate::random::Random;
use crate::recovery::{self, Store};
use crate::sealed::{self, BLOCK_WORDS, Places};
use cairn_core::{ExtendedUpdate, OpenOptions, Position, ROOT, RenameMode, Result, Superblock};
use std::cell::OnceCell;
use std::sync::Arc;

const MEDIA_BYTES: u64 = 6 << 20;
/// Most words changed.
const PATCHES_MAX: u64 = 16;
/// Number of words with a meaning in a superblock, and in the first block of a snapshot.
const SUPERBLOCK_WORDS: u64 = 48;
const SLOT_WORDS: u64 = 9;

/// Words of the log's position and of the epoch in the first block of a snapshot.
const SLOT_POSITION: usize = 4;
const SLOT_NUMBER: usize = 1;

struct Base {
    image: Image,
    places: Places,
    newest: u64,
    /// Log blocks in use behind the newest snapshot: the full ones and the last one.
    log: Vec<u64>,
}

thread_local! {
    /// Media shared by all runs of the thread: making them takes longer than a run.
    static BASE: OnceCell<Base> = const { OnceCell::new() };
}

/// Changes and seals the media as the input describes, and recovers them.
pub(super) fn run(input: &[u8]) {
    let mut choices = Random::from_choices(input);
    let image = BASE.with(|base| {
        let base = base.get_or_init(populate);
        let image = base.image.clone();
        for _ in 0..choices.below(PATCHES_MAX + 1) {
            patch(base, &image, &mut choices);
        }
        if !choices.one_in(8) {
            seal(base, &image);
        }
        image
    });
    let _ = recovery::recover_and_use(image);
}

fn seal(base: &Base, image: &Image) {
    for copy in 0..2 {
        sealed::seal_superblock(image, base.places.superblock(copy));
        sealed::seal_snapshot(image, &base.places, copy);
    }
    sealed::seal_log(image, &base.log);
}

fn patch(base: &Base, image: &Image, choices: &mut Random) {
    let offset = place(base, choices);
    let old = sealed::read(image, offset, 1)[0];
    let new = match choices.below(10) {
        0 => choices.draw(),
        1 => {
            *choices.pick(&[0, 1, u64::MAX, 1 << 32, u64::MAX >> 32, u64::MAX >> 1, u64::MAX << 32])
        }
        2 | 3 => old.wrapping_add(choices.below(256)).wrapping_sub(128),
        4 => {
            let other = place(base, choices);
            sealed::read(image, other, 1)[0]
        }
        5 => old & u64::MAX << 32 | choices.below(1 << 32),
        6 => old & u64::MAX >> 32 | choices.below(1 << 32) << 32,
        7 | 8 => choices.below(1 << 8),
        _ => old ^ 1 << choices.below(64),
    };
    sealed::write(image, offset, &[new]);
}

/// Returns the offset of a word, mostly of one that matters.
fn place(base: &Base, choices: &mut Random) -> u64 {
    let places = &base.places;
    match choices.below(12) {
        0 => places.superblock(choices.below(2)) + choices.below(SUPERBLOCK_WORDS) * 8,
        1 => places.slot(choices.below(2)) + choices.below(SLOT_WORDS) * 8,
        2..6 => {
            let slot = if choices.one_in(8) { base.newest + 1 } else { base.newest };
            let records = sealed::snapshot_records(&base.image, places, slot);
            records.start + choices.below((records.end - records.start) / 8) * 8
        }
        6..10 => *choices.pick(&base.log) + choices.below(BLOCK_WORDS as u64) * 8,
        10 => places.checksums() + choices.below(64) * 8,
        _ => choices.below(MEDIA_BYTES / 8) * 8,
    }
}

fn populate() -> Base {
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let media = Arc::new(Store(image));
    let process = recovery::open(&media, &superblock).expect("empty media can be recovered");
    fill(&process).expect("there is space");
    base(media.0.clone(), &superblock)
}

fn base(image: Image, superblock: &Superblock) -> Base {
    let places = Places::of(superblock);
    let first = |slot| sealed::read(&image, places.slot(slot), BLOCK_WORDS);
    let newest = (0..2).max_by_key(|&slot| first(slot)[SLOT_NUMBER]).expect("there are two slots");
    let mut sequence = first(newest)[SLOT_POSITION] / sealed::PAYLOAD_WORDS as u64;
    let mut log = Vec::new();
    let holds = |offset, sequence| sealed::read(&image, offset, 2)[1] == sequence;
    while holds(places.log_block(sequence), sequence) {
        log.push(places.log_block(sequence));
        sequence += 1;
    }
    let used = |turn| match holds(places.log_tail(turn), sequence) {
        true => sealed::read(&image, places.log_tail(turn), 3)[2] as u32,
        false => 0,
    };
    let last = (0..2).max_by_key(|&turn| used(turn)).expect("there are two tails");
    log.push(places.log_tail(last));
    Base { image, places, newest, log }
}

/// Makes files with holes, links and directories. Half of it ends in a snapshot; the log gets
/// records of all kinds.
fn fill(process: &Process) -> Result<()> {
    let (fs, caller) = (&process.fs, process.caller());
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let open = |path: &[u8]| fs.open_file(&caller, ROOT, path, options, 0o644);
    let rename = |from: &[u8], to: &[u8], mode| fs.rename(&caller, (ROOT, from), (ROOT, to), mode);
    for round in 0..2u8 {
        let suffix = [b'0' + round];
        let named = |name: &[u8]| [name, &suffix].concat();
        fs.make_directory(&caller, ROOT, &named(b"d"), 0o755)?;
        fs.make_directory(&caller, ROOT, &named(b"e"), 0o755)?;
        for name in [&b"a"[..], b"b", b"c"] {
            let opened = open(&named(name))?;
            for block in 0..3 {
                process.write(
                    &caller,
                    opened.handle,
                    Position::At(block * 9000),
                    &[round + 1; 5000],
                )?;
            }
            // Writes every second block, as one of two alternating writers would.
            for block in 0..20 {
                let at = Position::At((8 + 2 * block) * 4096);
                process.write(&caller, opened.handle, at, &[round + 1; 4096])?;
            }
            fs.sync()?;
            process.truncate(&caller, opened.inode, 20_000)?;
            process.seal(opened.inode)?;
            process.close(opened.handle)?;
            fs.sync()?;
        }
        fs.symlink(&caller, &[b'x'; 100], ROOT, &named(b"s"))?;
        fs.link(&caller, (ROOT, &named(b"a")), (ROOT, &named(b"l")), false)?;
        rename(&named(b"b"), &[&named(b"d")[..], b"/b"].concat(), RenameMode::Replace)?;
        rename(&named(b"e"), &[&named(b"d")[..], b"/e"].concat(), RenameMode::Replace)?;
        rename(&named(b"a"), &named(b"c"), RenameMode::Exchange)?;
        let attributes = fs.stat(&caller, ROOT, &named(b"a"), false)?;
        fs.mark_drained(attributes.inode, attributes.version, caller.now)?;
        fs.set_mode(&caller, attributes.inode, 0o600)?;
        let update = ExtendedUpdate::default();
        fs.set_extended(&caller, attributes.inode, b"user.a", &[b'v'; 100], update)?;
        match round {
            0 => {
                // Renames to the names that later operations use.
                for (from, to) in
                    [(&b"d0"[..], &b"d"[..]), (b"a0", b"a"), (b"c0", b"b"), (b"s0", b"s")]
                {
                    rename(from, to, RenameMode::Replace)?;
                }
                fs.sync()?;
                fs.write_snapshot()?;
            }
            _ => fs.unlink(&caller, ROOT, b"l1")?,
        }
    }
    fs.evict(&caller, ROOT, b"c1")?;
    fs.remove_directory(&caller, ROOT, b"d1/e")?;
    // The log must fill more than one block.
    for number in 0..12u8 {
        fs.make_directory(&caller, ROOT, &[&b"d/"[..], &[b'a' + number; 200]].concat(), 0o755)?;
    }
    fs.sync()
}
