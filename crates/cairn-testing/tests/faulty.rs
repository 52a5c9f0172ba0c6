//! Each fault of the faulty media does what its documentation says, and nothing else does.

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media, SECTOR_BYTES};
use cairn_testing::faulty::{
    ByteMedia, Counts, Fault, FaultPlan, FaultyMedia, FlushFault, Image, MediaTier, Outcome,
    ReadFault, Survivors, WriteFault,
};
use cairn_testing::random::{Random, for_each_seed};
use cairn_testing::tier::Tier;
use std::sync::Arc;

const BLOCK: u64 = MEDIA_BLOCK_BYTES as u64;
const BLOCK_SECTORS: usize = MEDIA_BLOCK_BYTES / SECTOR_BYTES;
const MEDIA_BYTES: u64 = 64 * BLOCK;
/// Initial content of the media.
const EMPTY: u8 = 0xee;

fn media() -> FaultyMedia {
    FaultyMedia::new(&Image::filled(MEDIA_BYTES, EMPTY))
}

fn media_with(fault: Fault) -> FaultyMedia {
    let media = media();
    media.follow(FaultPlan::default().with(0, fault));
    media
}

fn block_of(byte: u8) -> [u8; MEDIA_BLOCK_BYTES] {
    [byte; MEDIA_BLOCK_BYTES]
}

fn write(media: &dyn Media, block: u64, byte: u8) {
    media.write(block * BLOCK, &block_of(byte)).expect("no fault was planned");
}

fn read(media: &dyn Media, block: u64) -> [u8; MEDIA_BLOCK_BYTES] {
    let mut bytes = block_of(0);
    media.read(block * BLOCK, &mut bytes).expect("no fault was planned");
    bytes
}

/// Returns the first byte of each sector of a block whose sectors each hold one repeated byte.
fn sectors(media: &dyn Media, block: u64) -> Vec<u8> {
    let bytes = read(media, block);
    let sectors = bytes.chunks(SECTOR_BYTES);
    let first = |sector: &[u8]| {
        assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
        sector[0]
    };
    sectors.map(first).collect()
}

/// Returns the number of bits that differ.
fn differences(left: &[u8], right: &[u8]) -> u32 {
    left.iter().zip(right).map(|(left, right)| (left ^ right).count_ones()).sum()
}

#[test]
fn flushed_bytes_survive_and_unflushed_ones_are_only_live() {
    let media = media();
    write(&media, 1, 1);
    media.flush().unwrap();
    write(&media, 1, 2);
    write(&media, 2, 2);
    assert_eq!(read(&media, 1), block_of(2));
    let image = media.crash(&Survivors::None);
    assert_eq!(read(&image, 1), block_of(1));
    assert_eq!(read(&image, 2), block_of(EMPTY));
    media.flush().unwrap();
    assert_eq!(read(&media.crash(&Survivors::None), 1), block_of(2));
    assert_eq!(media.counts(), Counts { reads: 1, writes: 3, flushes: 2 });
    assert_eq!(media.crash_points(), 5);
}

#[test]
fn any_subset_of_the_unflushed_sectors_survives_a_crash() {
    let media = media();
    write(&media, 1, 1);
    write(&media, 2, 2);
    assert_eq!(media.pending(), [BLOCK_SECTORS; 2]);
    let left = |survivors: Survivors| {
        let image = media.crash(&survivors);
        [sectors(&image, 1), sectors(&image, 2)].concat()
    };
    let whole = [[1; BLOCK_SECTORS], [2; BLOCK_SECTORS]].concat();
    let without = |lost: std::ops::Range<usize>| {
        let mut sectors = whole.clone();
        sectors[lost].fill(EMPTY);
        sectors
    };
    assert_eq!(left(Survivors::None), without(0..16));
    assert_eq!(left(Survivors::All), whole);
    assert_eq!(left(Survivors::Prefix(11)), without(11..16));
    assert_eq!(left(Survivors::AllBut(3)), without(3..4));
    assert_eq!(left(Survivors::Torn { write: 0, sectors: 5 }), without(5..8));
    let drawn: Vec<Vec<u8>> = (0..100).map(|seed| left(Survivors::Random(seed))).collect();
    assert!(drawn.contains(&without(0..8)), "the second write overtakes the first");
    let is_torn = |sectors: &[u8]| sectors.contains(&EMPTY) && sectors != [EMPTY; BLOCK_SECTORS];
    let are_torn = |left: &Vec<u8>| is_torn(&left[..8]) && is_torn(&left[8..]);
    assert!(drawn.iter().any(are_torn), "both writes are torn");
}

#[test]
fn the_last_survivor_of_a_sector_that_was_written_twice_is_seen() {
    let media = media();
    write(&media, 1, 1);
    write(&media, 1, 2);
    let image = media.crash(&Survivors::Prefix(BLOCK_SECTORS + 3));
    assert_eq!(sectors(&image, 1), [2, 2, 2, 1, 1, 1, 1, 1]);
}

#[test]
fn systematic_choices_give_each_image_once() {
    for lengths in [&[][..], &[1], &[3], &[8, 1], &[2, 8, 3]] {
        let media = media();
        for (write, &length) in lengths.iter().enumerate() {
            let bytes = vec![write as u8; length * SECTOR_BYTES];
            media.write_bytes(write as u64 * BLOCK, &bytes).unwrap();
        }
        assert_eq!(media.pending(), lengths);
        let choices: Vec<Survivors> = Survivors::each(lengths).collect();
        assert_eq!(choices.len(), Survivors::count(lengths), "{lengths:?}");
        let mut images: Vec<Vec<u8>> =
            choices.iter().map(|choice| media.crash(choice).to_vec()).collect();
        images.sort();
        images.dedup();
        assert_eq!(images.len(), choices.len(), "{lengths:?}");
    }
}

#[test]
fn same_seed_gives_the_same_image() {
    let run = |seed: u64| {
        let (media, mut random) = (media(), Random::new(seed));
        let counts = Counts { reads: 0, writes: 20, flushes: 4 };
        media.follow(FaultPlan::random(seed, Outcome::Fatal, counts, MEDIA_BYTES));
        for step in 0..24 {
            let _ = match step % 6 {
                5 => media.flush(),
                _ => media.write(random.below(64) * BLOCK, &block_of(random.draw() as u8)),
            };
        }
        write(&media, random.below(64), random.draw() as u8);
        media.crash(&Survivors::Random(seed)).to_vec()
    };
    for_each_seed(50, |seed| {
        assert!(run(seed) == run(seed), "the second run left something else");
        assert!(run(seed) != run(seed + 1), "another seed left the same");
    });
}

#[test]
fn choices_of_survivors_are_what_their_text_says() {
    let torn = Survivors::Torn { write: 3, sectors: 2 };
    let random = Survivors::Random(u64::MAX);
    let choices = [Survivors::None, Survivors::All, Survivors::Prefix(7), Survivors::AllBut(0)];
    for choice in choices.into_iter().chain([torn, random]) {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    for text in ["", "most", "prefix", "prefix-x", "none-1", "torn-1", "random--1"] {
        assert!(text.parse::<Survivors>().is_err(), "{text}");
    }
}

#[test]
fn failing_read_reports_it_once_and_gives_garbage() {
    let media = media_with(Fault::Read(ReadFault::Fails));
    let mut target = block_of(7);
    assert_eq!(media.read(0, &mut target), Err(Error::Io));
    assert_ne!(target, block_of(7), "the caller cannot take the old target for what it read");
    assert_ne!(target, block_of(EMPTY));
    assert_eq!(read(&media, 0), block_of(EMPTY));
}

#[test]
fn failing_write_is_partly_there() {
    let media = media_with(Fault::Write(WriteFault::Fails(Survivors::AllBut(2))));
    assert_eq!(media.write(BLOCK, &block_of(1)), Err(Error::Io));
    assert_eq!(sectors(&media, 1), [1, 1, EMPTY, 1, 1, 1, 1, 1]);
    assert_eq!(media.pending(), [2, 5], "what was written is as volatile as any write");
    media.flush().unwrap();
    assert_eq!(sectors(&media.crash(&Survivors::None), 1), [1, 1, EMPTY, 1, 1, 1, 1, 1]);
    write(&media, 1, 2);
    assert_eq!(read(&media, 1), block_of(2));
}

#[test]
fn what_a_failed_flush_lost_is_not_saved_by_the_next_one() {
    let media = media_with(Fault::Flush(FlushFault::Fails(Survivors::Prefix(3))));
    write(&media, 1, 1);
    assert_eq!(media.flush(), Err(Error::Io));
    assert_eq!(read(&media, 1), block_of(1), "it is still read");
    media.flush().unwrap();
    let kept = [1, 1, 1, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY];
    assert_eq!(sectors(&media.crash(&Survivors::All), 1), kept);
    write(&media, 1, 1);
    media.flush().unwrap();
    assert_eq!(read(&media.crash(&Survivors::None), 1), block_of(1));
}

#[test]
fn lying_flush_leaves_everything_to_chance() {
    let media = media_with(Fault::Flush(FlushFault::Lies));
    write(&media, 1, 1);
    media.flush().unwrap();
    assert_eq!(media.crash_points(), 2);
    assert_eq!(read(&media.crash(&Survivors::None), 1), block_of(EMPTY));
    assert_eq!(read(&media.crash(&Survivors::All), 1), block_of(1));
    media.flush().unwrap();
    assert_eq!(read(&media.crash(&Survivors::None), 1), block_of(1), "the next one is honest");
}

#[test]
fn misdirected_write_hits_another_block_and_misses_its_own() {
    let media = media_with(Fault::Write(WriteFault::Misdirected(9 * BLOCK)));
    write(&media, 1, 1);
    assert_eq!(read(&media, 1), block_of(EMPTY));
    assert_eq!(read(&media, 9), block_of(1));
    media.flush().unwrap();
    assert_eq!(read(&media.crash(&Survivors::None), 9), block_of(1));
}

#[test]
fn misdirected_write_at_the_end_stays_on_the_media() {
    let media = media_with(Fault::Write(WriteFault::Misdirected(u64::MAX)));
    media.write(0, &[1; 2 * MEDIA_BLOCK_BYTES]).unwrap();
    assert_eq!(read(&media, 62), block_of(1));
    assert_eq!(read(&media, 63), block_of(1));
}

#[test]
fn misdirected_read_returns_another_block() {
    let media = media_with(Fault::Read(ReadFault::Misdirected(9 * BLOCK)));
    write(&media, 1, 1);
    write(&media, 9, 9);
    assert_eq!(read(&media, 1), block_of(9));
    assert_eq!(read(&media, 1), block_of(1));
}

#[test]
fn stale_read_returns_the_version_before() {
    let media = media_with(Fault::Read(ReadFault::Stale));
    write(&media, 1, 1);
    write(&media, 1, 2);
    write(&media, 2, 3);
    assert_eq!(read(&media, 1), block_of(1));
    assert_eq!(read(&media, 1), block_of(2));
}

#[test]
fn bit_flipped_on_read_is_right_the_next_time() {
    let media = media_with(Fault::Read(ReadFault::Flipped(12345)));
    assert_eq!(differences(&read(&media, 1), &block_of(EMPTY)), 1);
    assert_eq!(read(&media, 1), block_of(EMPTY));
}

#[test]
fn rotten_bit_stays_wherever_the_sector_is_kept() {
    let media = media_with(Fault::Read(ReadFault::Rotten(12345)));
    write(&media, 1, 1);
    let seen = read(&media, 1);
    assert_eq!(differences(&seen, &block_of(1)), 1);
    assert_eq!(read(&media, 1), seen);
    assert_eq!(read(&media.crash(&Survivors::All), 1), seen);
    let old = read(&media.crash(&Survivors::None), 1);
    assert_eq!(differences(&old, &block_of(EMPTY)), 1);
    write(&media, 1, 2);
    assert_eq!(read(&media, 1), block_of(2), "a new write is right again");
}

#[test]
fn replay_of_a_recording_leaves_what_the_run_left() {
    let media = media();
    write(&media, 1, 1);
    media.record();
    let survivors = Survivors::Prefix(BLOCK_SECTORS + 2);
    let mut images = vec![media.crash(&survivors).to_vec()];
    media.follow(
        FaultPlan::default()
            .with(0, Fault::Read(ReadFault::Rotten(12345)))
            .with(1, Fault::Write(WriteFault::Fails(Survivors::AllBut(2))))
            .with(0, Fault::Flush(FlushFault::Fails(Survivors::AllBut(1))))
            .with(1, Fault::Flush(FlushFault::Lies)),
    );
    read(&media, 1);
    for step in 0..8 {
        let _ = match step {
            1 | 4 | 6 => media.flush(),
            _ => media.write(step * BLOCK, &block_of(step as u8)),
        };
        images.push(media.crash(&survivors).to_vec());
    }
    let recording = media.take_recording().expect("it was recorded");
    let mut replay = recording.replay();
    for (operation, image) in (0..).zip(&images) {
        assert_eq!(replay.operations(), operation);
        assert!(replay.image(&survivors).to_vec() == *image, "after operation {operation}");
        assert_eq!(replay.advance(), operation < 8);
    }
    assert!(media.take_recording().is_none(), "it has stopped");
}

#[test]
fn without_power_everything_fails_and_nothing_changes() {
    let media = media();
    media.follow(FaultPlan::default().power_fails_at(2));
    write(&media, 1, 1);
    write(&media, 2, 2);
    assert_eq!(read(&media, 2), block_of(2), "the power is there until the next write or flush");
    let before = media.crash(&Survivors::All).to_vec();
    assert_eq!(media.flush(), Err(Error::Io));
    assert_eq!(media.write(3 * BLOCK, &block_of(3)), Err(Error::Io));
    assert_eq!(media.read(BLOCK, &mut block_of(0)), Err(Error::Io));
    assert_eq!(media.crash_points(), 2);
    assert_eq!(media.pending(), [BLOCK_SECTORS; 2]);
    assert!(media.crash(&Survivors::All).to_vec() == before);
}

#[test]
fn range_outside_the_media_is_refused_and_changes_nothing() {
    let (faulty, image) = (media(), Image::filled(MEDIA_BYTES, EMPTY));
    for media in [&faulty as &dyn Media, &image] {
        for offset in [MEDIA_BYTES, MEDIA_BYTES - BLOCK, u64::MAX - BLOCK + 1] {
            let mut bytes = [0; 2 * MEDIA_BLOCK_BYTES];
            assert!(matches!(media.read(offset, &mut bytes), Err(Error::Corrupt { .. })));
            assert!(matches!(media.write(offset, &bytes), Err(Error::Corrupt { .. })));
        }
        assert_eq!(read(media, 63), block_of(EMPTY));
    }
}

#[test]
fn change_of_one_image_is_not_seen_in_another() {
    let media = media();
    write(&media, 1, 1);
    let (first, second) = (media.crash(&Survivors::All), media.crash(&Survivors::All));
    let copy = first.clone();
    write(&first, 1, 5);
    media.flush().unwrap();
    write(&media, 1, 6);
    assert_eq!(read(&first, 1), block_of(5));
    for unchanged in [second, copy] {
        assert_eq!(read(&unchanged, 1), block_of(1));
    }
}

#[test]
fn bytes_of_files_crash_in_the_same_sectors_as_metadata() {
    let media = Arc::new(media());
    let tier = MediaTier::new(media.clone(), 8 * BLOCK);
    tier.write(500, &[1; 600]).expect("writes");
    let mut bytes = [0; 602];
    tier.read(499, &mut bytes).expect("reads");
    assert_eq!((bytes[0], bytes[601]), (EMPTY, EMPTY));
    assert_eq!(bytes[1..601], [1; 600]);
    assert_eq!(media.pending(), [3], "the sectors it touches, not the blocks");
    let image = Arc::new(media.crash(&Survivors::Prefix(2)));
    MediaTier::new(image, 8 * BLOCK).read(499, &mut bytes).expect("reads");
    assert_eq!(bytes[1..525], [1; 524]);
    assert_eq!(bytes[525..], [EMPTY; 77]);
}

#[test]
fn random_plan_holds_one_fault_that_is_met_and_no_worse_than_asked_for() {
    let counts = Counts { reads: 3, writes: 0, flushes: 2 };
    let plan = |seed, worst| FaultPlan::random(seed, worst, counts, MEDIA_BYTES);
    for worst in [Outcome::Survived, Outcome::Detected, Outcome::Fatal] {
        let mut met = Vec::new();
        for seed in 0..200 {
            assert_eq!(plan(seed, worst), plan(seed, worst));
            let faults: Vec<(u64, Fault)> = plan(seed, worst).faults().collect();
            let [(index, fault)] = faults[..] else { panic!("{faults:?}") };
            let accesses = match fault {
                Fault::Read(_) => counts.reads,
                Fault::Write(_) => counts.writes,
                Fault::Flush(_) => counts.flushes,
            };
            assert!(index < accesses, "access {index} is never made: {fault:?}");
            met.push(fault.outcome());
        }
        assert_eq!(met.iter().max(), Some(&worst), "no worse, and the worst, too");
    }
}
