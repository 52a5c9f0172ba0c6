//! A durable namespace after every crash, and after crashes of what was recovered. Everything
//! synced exists, and everything that exists was written.
//!
//! `CAIRN_TEST_SEEDS` sets the number of workloads, `CAIRN_TEST_SEED` runs one. With
//! `CAIRN_CRASH_ROUND` and `CAIRN_CRASH_POINT` set to the values that a failure printed, only one
//! crash is tried.

use cairn_core::{
    Error, ExtendedUpdate, HandleId, InodeId, MEDIA_BLOCK_BYTES, Media, Memory, OpenOptions,
    Position, ROOT, Superblock,
};
use cairn_testing::crash::{Budget, Progress, Report, for_every_crash, run_until_power_fails};
use cairn_testing::driver::Process;
use cairn_testing::durable::{
    Crew, Died, Setting, State, Tiers, Window, Workload, Wrap, check, look, plain,
    recover_and_attach,
};
use cairn_testing::faulty::{
    ByteMedia, Fault, FaultPlan, FaultyMedia, Image, Outcome, ReadFault, Survivors,
};
use cairn_testing::random::{Random, for_each_seed, soaking};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const STEPS: usize = 50;
const SEEDS: u64 = 16;
/// Number of crashes in a row, each on the media that the previous one left.
const ROUNDS: u64 = 4;
/// Number of crashes tried in one round.
const IMAGES: u64 = 60;
const SOAK_IMAGES: u64 = 150;

/// One round: a workload on the media that the previous crash left.
struct Round<'a> {
    setting: &'a Setting,
    superblock: &'a Superblock,
    base: Image,
    /// State that recovery makes of `base`.
    state: State,
    seed: u64,
}

impl<'a> Round<'a> {
    fn new(
        setting: &'a Setting,
        superblock: &'a Superblock,
        base: Image,
        seed: u64,
    ) -> Result<Round<'a>, String> {
        let state = recovered_state(&base, superblock)?;
        Ok(Round { setting, superblock, base, state, seed })
    }

    /// Recovers, then does random operations until the media fail or all are done.
    fn run(&self, media: Arc<dyn ByteMedia>, note: &mut dyn FnMut(Window)) {
        note(vec![Arc::new(self.state.clone())]);
        let Ok(crew) = Crew::recover(media, self.superblock, self.setting.processes) else {
            return;
        };
        let mut workload = Workload::new(crew, self.setting, self.state.clone(), self.seed);
        for _ in 0..STEPS {
            match workload.step(note) {
                Ok(()) => {}
                Err(Error::Io) => return,
                Err(error) => panic!("an operation that should work: {error:?}"),
            }
        }
    }

    /// Tries every crash of the round that the budget allows, including those during its recovery.
    fn crash(&self, images: u64, wrap: Wrap<'_>) -> Result<Report, String> {
        self.crash_on(&Budget::new(images, self.seed), wrap)
    }

    fn crash_on(&self, budget: &Budget, wrap: Wrap<'_>) -> Result<Report, String> {
        for_every_crash(
            &self.base,
            budget,
            |media, progress| self.run(wrap(media.clone()), &mut |window| progress.note(window)),
            |image, window: &Window| judge(image, self.superblock, window),
        )
        .map_err(|failure| failure.to_string())
    }

    /// Returns the media that one random crash leaves.
    fn crashed_base(&self, operations: u64) -> Image {
        let random = &mut Random::new(self.seed ^ 0xc4a5);
        let operation = random.below(operations + 1);
        let (media, _) = run_until_power_fails(&self.base, operation, |media, progress| {
            self.run(plain(media.clone()), &mut |window| progress.note(window));
        });
        media.crash(&Survivors::Random(random.draw()))
    }
}

fn recovered_state(image: &Image, superblock: &Superblock) -> Result<State, String> {
    let said = |error| format!("recovery: {error:?}");
    let (process, _) = recover_and_attach(Arc::new(image.clone()), superblock).map_err(said)?;
    Ok(look(&process).map_err(said)?.state())
}

/// Checks that the state on `image` is one of `window`.
fn judge(image: Image, superblock: &Superblock, window: &Window) -> Result<(), String> {
    let recovered = recover_and_attach(Arc::new(image), superblock);
    let (process, _) = recovered.map_err(|error| format!("recovery: {error:?}"))?;
    check(&process, window)
}

/// Runs several rounds of crashes. Returns the number of crashes tried.
fn rounds(seed: u64) -> Result<u64, String> {
    let setting = Setting::draw(seed);
    let (mut base, superblock) = setting.format();
    let only = cairn_testing::random::environment_number("CAIRN_CRASH_ROUND");
    let images = if soaking() { SOAK_IMAGES } else { IMAGES };
    let mut tried = 0;
    for number in 0..ROUNDS {
        let here = |message| format!("CAIRN_CRASH_ROUND={number}: {message}\n{setting:?}");
        let round_seed = Random::new(seed * ROUNDS + number).draw();
        let round = Round::new(&setting, &superblock, base, round_seed).map_err(here)?;
        let images = if only.is_none_or(|only| only == number) { images } else { 0 };
        let report = round.crash(images, &plain).map_err(here)?;
        tried += report.images;
        base = round.crashed_base(report.operations);
    }
    Ok(tried)
}

#[test]
fn crash_after_crash_leaves_what_was_synced() {
    let mut images = 0;
    for_each_seed(SEEDS, |seed| {
        images += rounds(seed).unwrap_or_else(|message| panic!("{message}"))
    });
    println!("{images} crashes");
}

/// A crash leaves whole words of 64 bits of what a processor stored, and nothing larger.
#[test]
fn crash_in_persistent_memory_leaves_what_was_synced() {
    const WORD_BYTES: usize = 8;
    let images = AtomicU64::new(0);
    for_each_seed(SEEDS, |seed| {
        let setting = Setting::draw(seed);
        let (base, superblock) = setting.format();
        let round = Round::new(&setting, &superblock, base, seed);
        let budget = Budget { sector_bytes: WORD_BYTES, ..Budget::new(IMAGES, seed) };
        let report = round.and_then(|round| round.crash_on(&budget, &plain));
        let report = report.unwrap_or_else(|message| panic!("{message}\n{setting:?}"));
        images.fetch_add(report.images, Ordering::Relaxed);
    });
    println!("{} crashes", images.into_inner());
}

/// Names, and files without a part in memory, are as after any other crash. `lost_memory.rs` tests
/// which files these are.
#[test]
fn crash_that_takes_a_tier_in_memory_leaves_what_was_synced_elsewhere() {
    let images = AtomicU64::new(0);
    for_each_seed(SEEDS, |seed| {
        let tiers = if seed % 2 == 0 { Tiers::Apart } else { Tiers::Spilling };
        let plain = Setting { crowd: 0, history_blocks: 0, ..Setting::draw(seed) };
        let setting = Setting { tiers, in_memory: true, ..plain };
        let (base, superblock) = setting.format();
        let round = Round::new(&setting, &superblock, base, seed);
        let report = round.and_then(|round| round.crash(IMAGES / 2, &crate::plain));
        let report = report.unwrap_or_else(|message| panic!("{message}\n{setting:?}"));
        images.fetch_add(report.images, Ordering::Relaxed);
    });
    println!("{} crashes", images.into_inner());
}

/// A bug of media access, planted to check that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    FlushDoesNothing,
    /// Omits the first of the two flushes of each commit, so that records overtake what they refer
    /// to.
    NoFlushBeforeRecords,
    TailInOnePlace,
    OldSnapshotGoesBeforeTheNewOneIsDurable,
}

const MISTAKES: [Mistake; 4] = [
    Mistake::FlushDoesNothing,
    Mistake::NoFlushBeforeRecords,
    Mistake::TailInOnePlace,
    Mistake::OldSnapshotGoesBeforeTheNewOneIsDurable,
];

/// Media with a mistake in front of them.
struct Mistaken {
    media: Arc<FaultyMedia>,
    mistake: Mistake,
    flushes: AtomicU64,
    /// Offsets of the first and the last block of the kind that the mistake is about.
    places: Mutex<Option<(u64, u64)>>,
}

impl Mistaken {
    fn wrap(media: Arc<FaultyMedia>, mistake: Mistake) -> Arc<dyn ByteMedia> {
        Arc::new(Mistaken { media, mistake, flushes: AtomicU64::new(0), places: Mutex::default() })
    }

    /// Records `offset` as the last place of such a block. Returns the first and the last place
    /// before.
    fn exchange_places(&self, offset: u64) -> Option<(u64, u64)> {
        let mut places = self.places.lock().expect("nobody panics");
        let before = *places;
        *places = Some((before.map_or(offset, |(first, _)| first), offset));
        before
    }
}

fn word(block: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(block[8 * index..][..8].try_into().expect("eight bytes"))
}

/// Whether this is a log block that is not full.
fn is_tail(block: &[u8]) -> bool {
    let words_max = MEDIA_BLOCK_BYTES as u64 / 8 - 4;
    block.starts_with(b"cairnlog") && word(block, 2) & 0xffff_ffff < words_max
}

impl Media for Mistaken {
    fn bytes(&self) -> u64 {
        self.media.bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> cairn_core::Result<()> {
        self.media.read(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> cairn_core::Result<()> {
        match self.mistake {
            Mistake::TailInOnePlace if is_tail(source) => {
                let (first, _) = self.exchange_places(offset).unwrap_or((offset, offset));
                self.media.write(first, source)
            }
            Mistake::OldSnapshotGoesBeforeTheNewOneIsDurable if source.starts_with(b"cairnsnp") => {
                if let Some((_, old)) = self.exchange_places(offset) {
                    self.media.write(old, &[0; MEDIA_BLOCK_BYTES])?;
                }
                self.media.write(offset, source)
            }
            _ => self.media.write(offset, source),
        }
    }

    fn flush(&self) -> cairn_core::Result<()> {
        let number = self.flushes.fetch_add(1, Ordering::Relaxed);
        match self.mistake {
            Mistake::FlushDoesNothing => Ok(()),
            Mistake::NoFlushBeforeRecords if number % 2 == 0 => Ok(()),
            _ => self.media.flush(),
        }
    }

    fn workspace(&self, words: usize) -> cairn_core::Result<Box<dyn Memory>> {
        self.media.workspace(words)
    }
}

impl ByteMedia for Mistaken {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> cairn_core::Result<()> {
        self.media.read_bytes(offset, target)
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> cairn_core::Result<()> {
        self.media.write_bytes(offset, source)
    }
}

#[test]
fn each_planted_mistake_is_found() {
    for mistake in MISTAKES {
        let finds = |seed: &u64| {
            let setting = Setting::draw(*seed);
            let (base, superblock) = setting.format();
            let round = Round::new(&setting, &superblock, base, *seed).expect("it was just made");
            round.crash(IMAGES, &|media| Mistaken::wrap(media, mistake)).is_err()
        };
        let found = (1..=SEEDS).find(finds);
        assert!(found.is_some(), "{mistake:?} goes unnoticed");
        println!("{mistake:?} is found by seed {found:?}");
    }
}

/// Runs a round in which one access fails or lies, and checks what must hold after it. Returns the
/// number of crashes tried.
fn round_with_fault(seed: u64, worst: Outcome) -> Result<u64, String> {
    // Without a history, because earlier states would have to be known, too.
    let setting = Setting { mortal: false, crowd: 0, history_blocks: 0, ..Setting::draw(seed) };
    let (base, superblock) = setting.format();
    let round = Round::new(&setting, &superblock, base, seed)?;
    let (whole, _) = run_until_power_fails(&round.base, u64::MAX, |media, progress| {
        round.run(media.clone(), &mut |window| progress.note(window));
    });
    let plan = FaultPlan::random(seed, worst, whole.counts(), whole.bytes());
    let images = if soaking() { SOAK_IMAGES } else { IMAGES / 2 };
    let said = |failure: String| format!("{plan:?}\n{failure}\n{setting:?}");
    if worst == Outcome::Survived {
        let follow = |media: Arc<FaultyMedia>| -> Arc<dyn ByteMedia> {
            media.follow(plan.clone());
            media
        };
        return Ok(round.crash(images, &follow).map_err(said)?.images);
    }
    let history = RefCell::new(vec![Arc::new(round.state.clone())]);
    let report = for_every_crash(
        &round.base,
        &Budget::new(images, seed),
        |media, _: &Progress<()>| round.run_with(media, &plan, &mut history.borrow_mut()),
        |image, ()| judge_damage(image, &superblock, &history.borrow()),
    );
    Ok(report.map_err(|failure| said(failure.to_string()))?.images)
}

impl Round<'_> {
    /// As `run`, on media that may lie after recovery, so any operation may fail. Collects all
    /// states that may be seen.
    fn run_with(&self, media: &Arc<FaultyMedia>, plan: &FaultPlan, history: &mut Window) {
        let crew = Crew::recover(media.clone(), self.superblock, self.setting.processes);
        media.follow(plan.clone());
        let crew = crew.expect("nothing has gone wrong yet");
        let mut workload = Workload::new(crew, self.setting, self.state.clone(), self.seed);
        let mut note = |window: Window| {
            let is_new = |state: &Arc<State>| !history.contains(state);
            let new: Vec<_> = window.into_iter().filter(is_new).collect();
            history.extend(new);
        };
        for _ in 0..STEPS {
            if workload.step(&mut note).is_err() {
                return;
            }
        }
    }
}

/// Checks that what is left is refused, reported as damaged, or a former state.
fn judge_damage(image: Image, superblock: &Superblock, history: &Window) -> Result<(), String> {
    match recover_and_attach(Arc::new(image), superblock) {
        Ok((process, _)) => look(&process).map_or(Ok(()), |seen| seen.check_proven(history)),
        Err(_) => Ok(()),
    }
}

#[test]
fn access_fails_then_nothing_that_was_synced_is_lost() {
    let mut images = 0;
    for_each_seed(SEEDS, |seed| {
        let tried = round_with_fault(seed, Outcome::Survived);
        images += tried.unwrap_or_else(|message| panic!("{message}"));
    });
    println!("{images} crashes after a failed access");
}

#[test]
fn media_lie_then_nothing_is_seen_that_was_never_there() {
    let mut images = 0;
    for_each_seed(SEEDS, |seed| {
        let tried = round_with_fault(seed, Outcome::Detected);
        images += tried.unwrap_or_else(|message| panic!("{message}"));
    });
    println!("{images} crashes after a lie");
}

/// Mechanism: creating a symbolic link appends two records, and a torn write of the log could leave
/// the first without the second.
///
/// Consequence: recovery took it for a link without a target, and the snapshot of that failed, so
/// nothing was recovered.
///
/// Fix: replay stops before a link whose target does not follow.
#[test]
fn torn_symbolic_link_is_there_with_its_target_or_not_at_all() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    let target = [b't'; 3000];
    let tried = for_every_crash(
        &base,
        &Budget::new(u64::MAX, 1),
        |media, _: &Progress<()>| {
            let crew = Crew::recover(media.clone(), &superblock, 1).expect("nothing fails");
            let process = &crew.processes[0];
            for name in [b"first", b"other"] {
                process.fs.symlink(&process.caller(), &target, ROOT, name).expect("links");
            }
            process.fs.sync().expect("syncs");
        },
        |image, ()| {
            let (process, _) = recover_and_attach(Arc::new(image), &superblock).expect("recovers");
            for name in [b"first", b"other"] {
                let mut found = Vec::new();
                match process.fs.read_link(&process.caller(), ROOT, name, &mut found) {
                    Ok(()) => assert_eq!(found, target),
                    Err(error) => assert_eq!(error, Error::NotFound),
                }
            }
            Ok(())
        },
    );
    println!("{:?}", tried.unwrap_or_else(|failure| panic!("{failure}")));
}

/// Mechanism: a recovery may not know the checksum of a file's last block, for example if the file
/// was extended within it. The block was then stale in memory only. The table of checksums may be
/// ahead of the log, and appends continued from its content. When the file grew past the block, the
/// next recovery treated it like any other block.
///
/// Consequence: recovery trusted a wrong checksum, and correct bytes were reported as damaged.
///
/// Fix: before a file with a stale last block grows, the log records that it is open.
#[test]
fn block_that_was_last_without_a_checksum_is_not_trusted_once_the_file_grew() {
    let (image, superblock) = Setting::simple().format();
    let image = Arc::new(image);
    let (process, _) = recover_and_attach(image.clone(), &superblock).expect("recovers");
    let inode = append(&process, 1000).expect("writes");
    process.truncate(&process.caller(), inode, 1100).expect("grows");
    process.fs.sync().expect("syncs");
    for operation in 0.. {
        let media = Arc::new(FaultyMedia::new(&image));
        media.follow(FaultPlan::default().power_fails_at(operation));
        let recovered = recover_and_attach(media.clone(), &superblock);
        let synced = recovered.and_then(|(process, _)| {
            append(&process, 50)?;
            process.fs.sync()
        });
        let image = Arc::new(media.crash(&Survivors::All));
        let (process, _) = recover_and_attach(image.clone(), &superblock).expect("recovers");
        for count in [2000, 50, 5000] {
            append(&process, count).expect("writes");
        }
        process.fs.sync().expect("syncs");
        let (process, _) = recover_and_attach(image, &superblock).expect("recovers");
        look(&process).expect("every checksum is right");
        if synced.is_ok() {
            break;
        }
    }
}

/// Appends `count` bytes to a file.
fn append(process: &Process, count: usize) -> Result<InodeId, Error> {
    let options = OpenOptions { write: true, append: true, create: true, ..Default::default() };
    let caller = process.caller();
    let opened = process.fs.open_file(&caller, ROOT, b"file", options, 0o644)?;
    process.write(&caller, opened.handle, Position::Cursor, &vec![b'x'; count])?;
    Ok(opened.inode)
}

/// Mechanism: a flush chose between the two places of the log's tail when it began. If its process
/// died before it wrote, the next flush used the other place, which held the durable tail.
///
/// Consequence: a crash that tore that write lost synced operations.
///
/// Fix: the turn passes to the other place when a flush is done.
#[test]
fn flush_after_a_flush_that_died_spares_the_durable_tail() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    // Each name changes more than one sector of the tail, because a single sector is not torn.
    let names = [b'1', b'2', b'3', b'4'].map(|byte| [byte; 200]);
    for life in 1..8 {
        let tried = for_every_crash(
            &base,
            &Budget::new(u64::MAX, 1),
            |media, progress: &Progress<usize>| {
                let mut crew = Crew::recover(media.clone(), &superblock, 2).expect("recovers");
                let make = |process: &Process, name: &[u8]| {
                    process.fs.make_directory(&process.caller(), ROOT, name, 0o755).expect("makes");
                };
                for synced in 1..=2 {
                    make(&crew.processes[0], &names[synced - 1]);
                    crew.processes[0].fs.sync().expect("syncs");
                    progress.note(synced);
                }
                crew.replace_last(life).expect("attaches");
                make(&crew.processes[1], &names[2]);
                let sync = catch_unwind(AssertUnwindSafe(|| crew.processes[1].fs.sync()));
                assert!(sync.is_ok() || sync.is_err_and(|payload| payload.is::<Died>()));
                make(&crew.processes[0], &names[3]);
                crew.processes[0].fs.sync().expect("takes the flush over");
            },
            |image, synced| {
                let recovered = recover_and_attach(Arc::new(image), &superblock);
                let (process, _) = recovered.expect("recovers");
                for name in &names[..*synced] {
                    let found = process.fs.resolve(&process.caller(), ROOT, name, false);
                    assert!(found.is_ok(), "life {life}: synced and lost: {:?}", name[0]);
                }
                Ok(())
            },
        );
        tried.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Mechanism: recovery treated a snapshot header or log tail that it could not read as missing.
///
/// Consequence: after one failed read it continued from the older snapshot or tail, wrote that as
/// the newest state, and so lost synced data for good.
///
/// Fix: recovery fails with `Io`, changes nothing, and works when the media can be read again.
#[test]
fn read_fails_in_recovery_then_nothing_is_lost_when_it_works_again() {
    let (image, superblock) = Setting::simple().format();
    let image = Arc::new(image);
    let (process, _) = recover_and_attach(image.clone(), &superblock).expect("it was just made");
    for name in [b"1", b"2"] {
        process.fs.make_directory(&process.caller(), ROOT, name, 0o755).expect("makes");
        process.fs.sync().expect("syncs");
    }
    for index in 0..40 {
        let media = Arc::new(FaultyMedia::new(&image));
        media.follow(FaultPlan::default().with(index, Fault::Read(ReadFault::Fails)));
        let first = recover_and_attach(media.clone(), &superblock);
        let (process, _) =
            first.or_else(|_| recover_and_attach(media, &superblock)).expect("works");
        for name in [b"1", b"2"] {
            let found = process.fs.resolve(&process.caller(), ROOT, name, false);
            assert!(found.is_ok(), "read {index} fails: {:?} is lost", name[0]);
        }
    }
}

/// A snapshot slot has room for the most that a namespace can hold. So the log can be truncated and
/// names can be removed, however full the namespace is.
#[test]
fn namespace_is_full_of_names_then_its_snapshot_fits() {
    for (length, tiers) in [
        (1, Tiers::One),
        (48, Tiers::One),
        (104, Tiers::One),
        (250, Tiers::One),
        (1, Tiers::Apart),
        (104, Tiers::Apart),
        (250, Tiers::Apart),
    ] {
        let (image, superblock) = Setting { tiers, ..Setting::simple() }.format();
        let recovered = recover_and_attach(Arc::new(image), &superblock);
        let (process, _) = recovered.expect("it was just made");
        let name = |number: usize| {
            let text = format!("{number:0>5}");
            [text.as_bytes(), &vec![b'x'; length]].concat()
        };
        let make = |number: usize| match number % 3 {
            // Every third name is a hard link to the one before.
            2 => {
                let caller = process.caller();
                let (old, new) = (name(number - 1), name(number));
                process.fs.link(&caller, (ROOT, &old), (ROOT, &new), false)
            }
            _ => process.fs.symlink(&process.caller(), b"target", ROOT, &name(number)).map(drop),
        };
        let made = (0..).take_while(|&number| make(number).is_ok()).count();
        assert!(made > 300, "{made}");
        process.fs.write_snapshot().expect("it fits");
        process.fs.unlink(&process.caller(), ROOT, &name(0)).expect("there is room in the log");
        process.fs.sync().expect("the media work");
        process.fs.check().expect("nothing is damaged");
    }
}

/// Mechanism: a write that needs several runs of new blocks leaves a record for each, and the first
/// record named the whole range.
///
/// Consequence: a log that ended behind the first record gave the file its full size, with zeros
/// for the rest.
///
/// Fix: each record names only the range for which it and those before it give blocks.
#[test]
fn torn_write_to_several_runs_leaves_a_first_part_of_it() {
    let setting = Setting::simple();
    let block = setting.hugeblock_bytes as usize;
    let (base, superblock) = setting.format();
    let whole = AtomicU64::new(0);
    // The end of a log block falls between the records of the write, at every possible place.
    for padding in (3456..3712).step_by(64) {
        let tried = for_every_crash(
            &base,
            &Budget::new(u64::MAX, 1),
            |media, _: &Progress<()>| {
                let crew = Crew::recover(media.clone(), &superblock, 1).expect("nothing fails");
                let process = &crew.processes[0];
                let handle = create(process, b"file");
                let write = |at: usize, blocks: usize| {
                    let bytes = vec![7; blocks * block];
                    let at = Position::At((at * block) as u64);
                    process.write(&process.caller(), handle, at, &bytes).expect("writes");
                };
                write(1, 1);
                process.fs.sync().expect("syncs");
                let target = vec![b't'; padding];
                process.fs.symlink(&process.caller(), &target, ROOT, b"link").expect("links");
                // The new blocks are before and behind the existing one.
                write(0, 3);
                process.fs.sync().expect("syncs");
            },
            |image, ()| {
                let (process, _) =
                    recover_and_attach(Arc::new(image), &superblock).expect("recovers");
                let seen = look(&process).expect("reads").state();
                if let Some(content) = seen.content(b"file").filter(|it| it.len() > 2 * block) {
                    assert_eq!(content.iter().position(|&byte| byte != 7), None);
                    whole.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            },
        );
        tried.unwrap_or_else(|failure| panic!("{failure}"));
    }
    assert_ne!(whole.into_inner(), 0, "some crashes come after it");
}

/// Mechanism: a process that wrote a snapshot died between the write of its first block and the
/// flush. The next process found that snapshot, took it for the newest, and wrote over the other
/// one.
///
/// Consequence: a crash that lost the first block then left two damaged snapshots, and nothing was
/// recovered.
///
/// Fix: what a snapshot relies on is flushed before it is begun.
#[test]
fn snapshot_after_one_whose_writer_died_leaves_one_to_recover_from() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    for life in 1.. {
        let died = AtomicU64::new(0);
        let tried = for_every_crash(
            &base,
            &Budget::new(u64::MAX, 1),
            |media, _: &Progress<()>| {
                let mut crew = Crew::recover(media.clone(), &superblock, 2).expect("recovers");
                crew.replace_last(life).expect("attaches");
                let (first, last) = (&crew.processes[0], &crew.processes[1]);
                let made = first.fs.make_directory(&first.caller(), ROOT, b"new", 0o755);
                made.and_then(|_| first.fs.sync()).expect("nothing fails");
                let end = catch_unwind(AssertUnwindSafe(|| last.fs.write_snapshot()));
                died.store(u64::from(end.is_err()), Ordering::Relaxed);
                first.fs.write_snapshot().expect("takes the duty over");
            },
            |image, ()| match recover_and_attach(Arc::new(image), &superblock) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("life {life}: {error:?}")),
            },
        );
        tried.unwrap_or_else(|failure| panic!("{failure}"));
        if died.into_inner() == 0 {
            break;
        }
    }
}

/// Mechanism: every end of a process made durable everything that others had logged.
///
/// Consequence: `cairn ls` on a store whose ranks were stopped in the middle of a flush waited for
/// them.
///
/// Fix: only the end of a process that changed something does so.
#[test]
fn process_ends_then_what_it_changed_is_durable_and_it_waits_for_nothing_else() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    let crew = Crew::recover(Arc::new(base), &superblock, 2).expect("recovers");
    let (maker, looker) = (&crew.processes[0], &crew.processes[1]);
    let commits = || maker.fs.log_usage().expect("is there").expect("is durable").commits;
    let before = commits();
    maker.fs.make_directory(&maker.caller(), ROOT, b"new", 0o755).expect("makes");
    looker.fs.resolve(&looker.caller(), ROOT, b"new", false).expect("it is seen at once");
    looker.fs.detach(looker.slot, looker.caller().now).expect("ends");
    assert_eq!(commits(), before);
    maker.fs.detach(maker.slot, maker.caller().now).expect("ends");
    assert_eq!(commits(), before + 1);
}

/// Mechanism: changed attributes of an open file without a name were logged. Replay drops a file
/// with its last name, and refused the record.
///
/// Consequence: after `fchmod` of a removed file no snapshot was written and nothing was recovered.
///
/// Fix: replay ignores records of such a file's attributes, as it does those of its data.
#[test]
fn attributes_of_a_file_without_a_name_are_changed_then_the_namespace_is_recovered() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    let media = Arc::new(base);
    let crew = Crew::recover(media.clone(), &superblock, 1).expect("recovers");
    let process = &crew.processes[0];
    let handle = create(process, b"removed");
    let inode = process.fs.handle(handle).expect("is open").inode;
    process.fs.unlink(&process.caller(), ROOT, b"removed").expect("removes");
    process.fs.set_mode(&process.caller(), inode, 0o640).expect("is still there");
    let update = ExtendedUpdate::default();
    let set = process.fs.set_extended(&process.caller(), inode, b"user.a", b"value", update);
    set.expect("is still there");
    create(process, b"later");
    process.fs.sync().expect("nothing fails");
    process.fs.write_snapshot().expect("is made from the log");
    let (recovered, _) = recover_and_attach(media, &superblock).expect("recovers");
    recovered.fs.resolve(&recovered.caller(), ROOT, b"later", false).expect("is there");
}

/// Mechanism: the drain marked an inode as drained by its number, without an open file that kept
/// the inode. By then the file was gone and a directory had its number.
///
/// Consequence: no snapshot was written and nothing was recovered.
///
/// Fix: the mark names the drained version of the file, and replay tolerates such records in older
/// logs.
#[test]
fn file_is_drained_that_is_a_directory_by_then_and_the_namespace_is_recovered() {
    let setting = Setting::simple();
    let (base, superblock) = setting.format();
    let media = Arc::new(base);
    let crew = Crew::recover(media.clone(), &superblock, 1).expect("recovers");
    let process = &crew.processes[0];
    let (fs, caller) = (&process.fs, process.caller());
    let handle = create(process, b"drained");
    let inode = fs.handle(handle).expect("is open").inode;
    fs.release(process.slot, handle, caller.now).expect("closes");
    let version = fs.attributes(inode).expect("is there").version;
    fs.unlink(&caller, ROOT, b"drained").expect("removes");
    fs.sync().expect("nothing fails");
    while fs.reclaim(None).expect("frees") {}
    let later = fs.make_directory(&caller, ROOT, b"later", 0o755).expect("makes");
    assert_eq!(later, inode, "its number is taken again");
    fs.mark_drained(inode, version, caller.now).expect("that is of no use");
    fs.sync().expect("nothing fails");
    fs.write_snapshot().expect("is made from the log");
    let (recovered, _) = recover_and_attach(media, &superblock).expect("recovers");
    recovered.fs.resolve(&recovered.caller(), ROOT, b"later", false).expect("is there");
}

fn create(process: &Process, name: &[u8]) -> HandleId {
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let opened = process.fs.open_file(&process.caller(), ROOT, name, options, 0o600);
    opened.expect("there is space").handle
}
