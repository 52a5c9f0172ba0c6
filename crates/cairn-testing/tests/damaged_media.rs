//! Damaged media: recovery continues from what exists twice, and refuses what would be an older
//! state.

use cairn_core::inspect;
use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media, ROOT, Superblock};
use cairn_testing::crash::{Budget, for_every_crash};
use cairn_testing::driver::Process;
use cairn_testing::durable::{Setting, recover_and_attach};
use cairn_testing::faulty::Image;
use cairn_testing::tier::CHECKSUM;
use std::sync::Arc;

/// Returns media on which `names` names were created and synced one after the other, before the
/// node lost its memory.
fn written(names: usize) -> (Arc<Image>, Superblock) {
    let (image, superblock) = Setting::simple().format();
    let media = Arc::new(image);
    let (process, _) = recover_and_attach(media.clone(), &superblock).expect("it was just made");
    for number in 0..names {
        let name = format!("{number}");
        let made = process.fs.symlink(&process.caller(), b"target", ROOT, name.as_bytes());
        made.expect("there is room");
        process.fs.sync().expect("media without faults");
    }
    (media, superblock)
}

fn names(process: &Process) -> u64 {
    process.fs.check().expect("nothing is damaged").names
}

/// Mechanism: the newest snapshot is damaged, so recovery used the older one. It wrote the next
/// snapshot, by its number, into the slot it had just read.
///
/// Consequence: a crash meanwhile left no snapshot at all.
///
/// Fix: the next snapshot goes to the damaged slot.
#[test]
fn crash_during_recovery_from_the_older_snapshot_leaves_what_was_synced() {
    let (media, superblock) = written(20);
    let inspection = inspect(media.as_ref(), CHECKSUM).expect("media without faults");
    let slots = inspection.expect("there is a superblock").slots;
    let newest = slots.iter().max_by_key(|slot| slot.snapshot.map(|snapshot| snapshot.number));
    let records = newest.expect("there are two").offset + MEDIA_BLOCK_BYTES as u64;
    media.write(records, &[0x5a; MEDIA_BLOCK_BYTES]).expect("media without faults");
    let tried = for_every_crash(
        &media,
        &Budget::new(400, 1),
        |media, _| {
            let recovered = recover_and_attach(media.clone(), &superblock);
            assert!(recovered.is_err() || recovered.is_ok_and(|(_, found)| found.fell_back));
        },
        |image, (): &()| {
            let recovered = recover_and_attach(Arc::new(image), &superblock);
            let (process, _) = recovered.map_err(|error| format!("{error:?}"))?;
            match names(&process) {
                20 => Ok(()),
                other => Err(format!("{other} names")),
            }
        },
    );
    tried.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Mechanism: a block of the log was damaged, and recovery took that for the end of the log, as
/// after a crash.
///
/// Consequence: an older state came back without an error. Blocks of its files had been used for
/// other files since.
///
/// Fix: blocks flushed after the damaged one follow it, so recovery refuses.
#[test]
fn log_that_is_damaged_before_its_end_is_refused() {
    let (media, superblock) = written(300);
    // The log begins in the second block of the ring and is longer than these blocks.
    for place in 1..4 {
        let offset = (4 + place) * MEDIA_BLOCK_BYTES as u64;
        let mut block = [0; MEDIA_BLOCK_BYTES];
        media.read(offset, &mut block).expect("media without faults");
        let mut damaged = block;
        damaged[1000] ^= 1;
        media.write(offset, &damaged).expect("media without faults");
        let refused = recover_and_attach(media.clone(), &superblock).map(|(_, found)| found);
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{place}: {refused:?}");
        media.write(offset, &block).expect("media without faults");
    }
    let recovered = recover_and_attach(media, &superblock);
    assert_eq!(names(&recovered.expect("it is as it was").0), 300);
}
