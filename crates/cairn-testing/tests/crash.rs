//! The crash driver finds each classic mistake of a log, and none in a correct log.
//!
//! The log is a toy: a block of data and a record of it per append. Full log blocks are immutable.
//! The partial last one is rewritten to two blocks in turn. The order of an append is: data, flush,
//! record, flush, acknowledge.

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media};
use cairn_testing::crash::{
    Budget, CrashPoint, Failure, Progress, Report, for_every_crash, run_until_power_fails,
};
use cairn_testing::faulty::{
    Counts, Fault, FaultPlan, FaultyMedia, FlushFault, Image, Outcome, Survivors,
};
use cairn_testing::random::for_each_seed;
use cairn_testing::tier::CHECKSUM;
use std::sync::Arc;

const BLOCK: u64 = MEDIA_BLOCK_BYTES as u64;
const MEDIA_BYTES: u64 = 4 << 20;
/// First full log block. The partial last one uses blocks 0 and 1.
const FIRST_LOG_BLOCK: u32 = 2;
const FIRST_DATA_BLOCK: u32 = 512;
const HEADER_BYTES: usize = 12;
/// Length of a record, bytes; more than a sector.
const RECORD_BYTES: usize = 600;
const RECORDS_PER_BLOCK: u32 = 6;
/// Most attempts to write something durably.
const ATTEMPTS_MAX: u32 = 3;
const APPENDS: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    NoFlushBeforeRecord,
    NoChecksum,
    TailInPlace,
    AcknowledgedBeforeFlush,
    FlushedAgainInsteadOfWritten,
}

/// Number of appends begun and number acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Appends {
    begun: u32,
    acknowledged: u32,
}

fn data(number: u32) -> Vec<u8> {
    vec![1 + number as u8; MEDIA_BLOCK_BYTES]
}

fn record(number: u32) -> Vec<u8> {
    vec![0x80 | number as u8; RECORD_BYTES]
}

/// Returns a log block: checksum, number of the first record, count, records.
fn log_block(first: u32, count: u32) -> Vec<u8> {
    let mut block = vec![0; 4];
    block.extend(first.to_le_bytes());
    block.extend(count.to_le_bytes());
    block.extend((first..first + count).flat_map(record));
    block.resize(MEDIA_BLOCK_BYTES, 0);
    let checksum = CHECKSUM(0, &block[4..]);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
    block
}

struct ToyLog<'a> {
    media: &'a FaultyMedia,
    mistake: Mistake,
}

impl ToyLog<'_> {
    fn append(&self, number: u32, progress: &Progress<Appends>) -> cairn_core::Result<()> {
        progress.note(Appends { begun: number + 1, acknowledged: number });
        let place = u64::from(FIRST_DATA_BLOCK + number) * BLOCK;
        match self.mistake {
            Mistake::NoFlushBeforeRecord => self.media.write(place, &data(number))?,
            _ => self.store(place, &data(number), || {})?,
        }
        let acknowledge = || progress.note(Appends { begun: number + 1, acknowledged: number + 1 });
        let (place, block) = self.log_block_with(number);
        match self.mistake {
            Mistake::AcknowledgedBeforeFlush => self.store(place, &block, acknowledge)?,
            _ => self.store(place, &block, || {})?,
        }
        acknowledge();
        Ok(())
    }

    /// Returns the log block whose last record is `number`, and its offset.
    fn log_block_with(&self, number: u32) -> (u64, Vec<u8>) {
        let (index, count) = (number / RECORDS_PER_BLOCK, number % RECORDS_PER_BLOCK + 1);
        let place = match count {
            RECORDS_PER_BLOCK => FIRST_LOG_BLOCK + index,
            _ if self.mistake == Mistake::TailInPlace => 0,
            _ => number % 2,
        };
        (u64::from(place) * BLOCK, log_block(index * RECORDS_PER_BLOCK, count))
    }

    /// Writes durably, with more attempts after a failure.
    fn store(&self, place: u64, bytes: &[u8], before_flush: impl Fn()) -> cairn_core::Result<()> {
        let mut is_written = false;
        for _ in 0..ATTEMPTS_MAX {
            is_written = is_written || self.media.write(place, bytes).is_ok();
            before_flush();
            if is_written && self.media.flush().is_ok() {
                return Ok(());
            }
            is_written &= self.mistake == Mistake::FlushedAgainInsteadOfWritten;
        }
        Err(Error::Io)
    }
}

/// Returns the number of records in a log block whose first record must be `first`.
fn count_in(block: &[u8], first: u32, mistake: Mistake) -> u32 {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| block[at + byte]));
    let is_intact = mistake == Mistake::NoChecksum || word(0) == CHECKSUM(0, &block[4..]);
    if is_intact && word(4) == first { word(8).min(RECORDS_PER_BLOCK) } else { 0 }
}

fn read(media: &Image, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; MEDIA_BLOCK_BYTES];
    media.read(u64::from(block) * BLOCK, &mut bytes).expect("an image has no faults");
    bytes
}

/// Returns all records in order.
fn recover(media: &Image, mistake: Mistake) -> Vec<u8> {
    let mut records = Vec::new();
    for index in 0.. {
        let first = index * RECORDS_PER_BLOCK;
        let candidates = [FIRST_LOG_BLOCK + index, 0, 1].map(|block| read(media, block));
        let counted = candidates.iter().map(|block| (count_in(block, first, mistake), block));
        let (count, block) = counted.max().expect("there are three");
        records.extend_from_slice(&block[HEADER_BYTES..][..count as usize * RECORD_BYTES]);
        if count < RECORDS_PER_BLOCK {
            break;
        }
    }
    records
}

fn check(image: &Image, appends: &Appends, mistake: Mistake) -> Result<(), String> {
    let records = recover(image, mistake);
    let count = (records.len() / RECORD_BYTES) as u32;
    if count < appends.acknowledged {
        return Err(format!("{count} records left, {appends:?}"));
    }
    if count > appends.begun {
        return Err(format!("{count} records appeared, {appends:?}"));
    }
    for (number, found) in (0..).zip(records.chunks(RECORD_BYTES)) {
        if *found != record(number) {
            return Err(format!("garbled record {number}"));
        }
        if read(image, FIRST_DATA_BLOCK + number) != data(number) {
            return Err(format!("data missing of record {number}"));
        }
    }
    Ok(())
}

/// Returns a workload that gives up when repeating does not help.
fn append_all(mistake: Mistake) -> impl Fn(&Arc<FaultyMedia>, &Progress<Appends>) {
    move |media, progress| {
        let log = ToyLog { media, mistake };
        let _ = (0..APPENDS).try_for_each(|number| log.append(number, progress));
    }
}

fn base() -> Image {
    Image::filled(MEDIA_BYTES, 0)
}

/// Returns a budget that allows all crashes.
fn everything() -> Budget {
    Budget { systematic_per_point: usize::MAX, ..Budget::new(u64::MAX, 1) }
}

fn crash_everywhere(
    mistake: Mistake,
    plan: &FaultPlan,
    budget: &Budget,
) -> Result<Report, Failure> {
    let workload = |media: &Arc<FaultyMedia>, progress: &Progress<Appends>| {
        media.follow(plan.clone());
        append_all(mistake)(media, progress);
    };
    for_every_crash(&base(), budget, workload, |image, appends| check(&image, appends, mistake))
}

fn expect_found(mistake: Mistake, plan: &FaultPlan, complaint: &str) {
    let failure = crash_everywhere(mistake, plan, &everything()).expect_err("it is a mistake");
    assert!(failure.message.contains(complaint), "{mistake:?}: {failure}");
}

#[test]
fn log_without_mistakes_survives_every_crash() {
    let report = crash_everywhere(Mistake::None, &FaultPlan::default(), &everything());
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.operations, u64::from(4 * APPENDS));
    // After a write of eight sectors every prefix, every gap and the random choices are tried;
    // after a flush one image.
    let per_write = 2 * 8 + Budget::new(0, 0).random_per_point as u64;
    assert_eq!(report.images, 1 + u64::from(2 * APPENDS) * (per_write + 1));
}

#[test]
fn log_without_mistakes_survives_every_crash_after_a_fault_that_is_survivable() {
    let counts =
        Counts { reads: 0, writes: 2 * u64::from(APPENDS), flushes: 2 * u64::from(APPENDS) };
    for_each_seed(20, |seed| {
        let plan = FaultPlan::random(seed, Outcome::Survived, counts, MEDIA_BYTES);
        let report = crash_everywhere(Mistake::None, &plan, &Budget::new(u64::MAX, seed));
        let report = report.unwrap_or_else(|failure| panic!("{plan:?}: {failure}"));
        assert!(report.operations > counts.operations(), "the fault made it try again");
    });
}

#[test]
fn missing_flush_before_the_record_is_found() {
    expect_found(Mistake::NoFlushBeforeRecord, &FaultPlan::default(), "data missing");
}

#[test]
fn missing_checksum_is_found() {
    expect_found(Mistake::NoChecksum, &FaultPlan::default(), "garbled record");
}

#[test]
fn last_block_rewritten_in_place_is_found() {
    expect_found(Mistake::TailInPlace, &FaultPlan::default(), "records left");
}

#[test]
fn acknowledgement_before_the_flush_is_found() {
    expect_found(Mistake::AcknowledgedBeforeFlush, &FaultPlan::default(), "records left");
}

#[test]
fn flush_that_is_repeated_without_the_writes_is_found() {
    let fails = |index| {
        let fault = Fault::Flush(FlushFault::Fails(Survivors::None));
        FaultPlan::default().with(index, fault)
    };
    expect_found(Mistake::FlushedAgainInsteadOfWritten, &fails(10), "data missing");
    expect_found(Mistake::FlushedAgainInsteadOfWritten, &fails(11), "records left");
}

#[test]
fn lying_flush_is_survived_by_nobody() {
    let plan = FaultPlan::default().with(11, Fault::Flush(FlushFault::Lies));
    expect_found(Mistake::None, &plan, "records left");
}

#[test]
fn crash_that_failed_is_repeated_alone_by_its_name() {
    let (mistake, plan) = (Mistake::TailInPlace, FaultPlan::default());
    let first = crash_everywhere(mistake, &plan, &everything()).expect_err("it is a mistake");
    let point: CrashPoint = first.point.to_string().parse().expect("its text is its name");
    let only = Budget { only: Some(point), ..everything() };
    let again = crash_everywhere(mistake, &plan, &only).expect_err("it is still there");
    assert_eq!((again.point, &again.message), (first.point, &first.message));
    assert_eq!(again.passed.images, 0);
    let harmless = Budget { only: Some("3:none".parse().unwrap()), ..everything() };
    let passed = crash_everywhere(mistake, &plan, &harmless).expect("nothing was acknowledged");
    assert_eq!(passed.images, 1);
}

#[test]
fn power_failure_leaves_what_the_recording_says() {
    let workload = append_all(Mistake::NoFlushBeforeRecord);
    let (whole, _) = run_until_power_fails(&base(), u64::MAX, |media, progress| {
        media.record();
        workload(media, progress);
    });
    let recording = whole.take_recording().expect("it was recorded");
    let mut replay = recording.replay();
    loop {
        let operation = replay.operations();
        let (media, appends) = run_until_power_fails(&base(), operation, &workload);
        let per_append = 3;
        assert_eq!(u64::from(appends.acknowledged), operation / per_append);
        assert_eq!(media.pending(), replay.pending());
        for survivors in [Survivors::None, Survivors::All, Survivors::Random(operation)] {
            let same = media.crash(&survivors).to_vec() == replay.image(&survivors).to_vec();
            assert!(same, "{operation}:{survivors}");
        }
        if !replay.advance() {
            break;
        }
    }
    assert_eq!(replay.operations(), whole.crash_points());
}

#[test]
fn budget_draws_so_many_crashes_and_the_same_ones_for_the_same_seed() {
    let tried = |images, seed| {
        let seen = std::cell::RefCell::new(Vec::new());
        let workload = append_all(Mistake::None);
        let report =
            for_every_crash(&base(), &Budget::new(images, seed), workload, |image, appends| {
                seen.borrow_mut().push((CHECKSUM(0, &image.to_vec()), *appends));
                Ok(())
            });
        assert_eq!(report.expect("everything is accepted").images, images);
        seen.into_inner()
    };
    let first = tried(100, 1);
    assert_eq!(first, tried(100, 1));
    assert_ne!(first, tried(100, 2));
    let of_the_first_half =
        first.iter().filter(|(_, appends)| appends.begun <= APPENDS / 2).count();
    assert!((30..=70).contains(&of_the_first_half), "{of_the_first_half} of 100");
}

#[test]
fn panic_of_the_check_is_a_failure_with_its_crash() {
    let workload = append_all(Mistake::None);
    let failure = for_every_crash(&base(), &everything(), workload, |_, appends| {
        assert!(appends.acknowledged < 2, "as planned");
        Ok(())
    });
    let failure = failure.expect_err("it panics");
    assert_eq!(failure.point.operation, 8);
    assert!(failure.to_string().contains("as planned"), "{failure}");
}
