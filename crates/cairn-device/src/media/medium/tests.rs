//! Tiers on block devices: what they refuse, what they overwrite, and what they leave behind.

use std::os::unix::fs::FileExt;

use cairn_core::Media;

use super::loop_device::LoopDevice;
use super::*;
use crate::media::label::Identity;
use crate::media::media_file::MediaFile;

const DEVICE_BYTES: u64 = 8 << 20;
const BYTES_MAX: u64 = DEVICE_BYTES - PAGE;
const BYTES: u64 = 4 << 20;
const IDENTITY: Identity = *b"0123456789abcdef";
/// Number of attempts at something that others may hold for a moment.
const PATIENCE: u32 = 100_000;

struct Place {
    device: LoopDevice,
}

impl Place {
    /// Returns `None` where there are no such devices.
    fn new() -> Option<Place> {
        let device = LoopDevice::new(&std::env::temp_dir(), DEVICE_BYTES)?;
        Some(Place { device })
    }

    fn path(&self) -> &Path {
        self.device.path()
    }

    fn make(&self, bytes: u64, may_overwrite: bool) -> StoreResult<()> {
        MediaFile::create_on_device(self.path(), bytes, IDENTITY, may_overwrite)
    }

    fn empty(&self) {
        MediaFile::open(self.path()).unwrap().remove_from(self.path()).unwrap();
    }

    fn contents(&self) -> Contents {
        contents(self.path(), false).unwrap()
    }

    /// Returns everything that the device holds.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; DEVICE_BYTES as usize];
        self.device.backing().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn mark(&self, at: u64, mark: &[u8]) {
        let device = std::fs::File::options().write(true).open(self.path()).unwrap();
        device.write_all_at(mark, at).unwrap();
        device.sync_all().unwrap();
    }
}

#[test]
fn tier_of_any_size_is_made_found_again_and_leaves_an_empty_device() {
    let Some(place) = Place::new() else { return };
    let size = |tier_bytes| Ok(DeviceSize { bytes_max: BYTES_MAX, tier_bytes });
    for bytes in [BYTES, BYTES_MAX] {
        assert_eq!((place.contents(), measure(place.path())), (Contents::Nothing, size(None)));
        place.make(bytes, false).unwrap();
        let label = Label { bytes, identity: IDENTITY, ..Label::default() };
        assert_eq!(place.contents(), Contents::Unfinished(label));
        assert_eq!(measure(place.path()), size(Some(bytes)));
        let file = MediaFile::open(place.path()).unwrap();
        assert_eq!((Media::bytes(&file), file.identity()), (bytes, &IDENTITY));
        assert!(file.direct());
        for at in [0, bytes - PAGE] {
            Media::write(&file, at, &[7; PAGE as usize]).unwrap();
        }
        assert!(Media::write(&file, bytes, &[7; PAGE as usize]).is_err());
        drop(file);
        assert_eq!(place.contents(), Contents::Tier(label));
        place.empty();
        assert!(place.bytes().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn tier_is_cleared_only_if_nothing_stands_at_both_ends_of_its_device() {
    let Some(place) = Place::new() else { return };
    for at in [0, (1 << 20) - 1, DEVICE_BYTES - (1 << 20), BYTES_MAX - 1] {
        place.make(BYTES, false).unwrap();
        place.mark(at, b"x");
        let before = place.bytes();
        clear_unfinished(place.path(), false).unwrap();
        assert!(place.bytes() == before, "{at}");
        place.mark(at, b"\0");
        clear_unfinished(place.path(), false).unwrap();
        assert_eq!(place.contents(), Contents::Nothing);
    }
}

#[test]
fn device_that_holds_something_is_refused_and_overwritten_only_if_that_is_allowed() {
    let Some(place) = Place::new() else { return };
    for (at, mark, what) in [
        (0x438, &b"\x53\xef"[..], "an ext2, ext3 or ext4 file system"),
        (5000, b"x", "it holds data"),
        (DEVICE_BYTES - 512, b"EFI PART", "a GPT partition table"),
        (BYTES_MAX, b"x", "it holds data"),
    ] {
        place.mark(at, mark);
        let before = place.bytes();
        let refused = place.make(BYTES, false).unwrap_err();
        assert_eq!((refused.errno, &*refused.path), (libc::EEXIST, place.path()));
        assert!(refused.advice.contains(what), "{refused}");
        assert!(place.bytes() == before, "nothing was written");
        place.make(BYTES, true).unwrap();
        let refused = place.make(BYTES, false).unwrap_err();
        assert!(refused.advice.contains("a tier of another store"), "{refused}");
        place.empty();
    }
}

#[test]
fn last_sectors_of_a_device_that_fill_no_page_are_looked_at_and_cleared() {
    let Some(place) = Place::new() else { return };
    let bytes = DEVICE_BYTES - 512;
    place.device.limit(bytes);
    assert_eq!(measure(place.path()).unwrap().bytes_max, BYTES_MAX - PAGE);
    place.mark(bytes - 512, b"EFI PART");
    assert!(place.make(BYTES, false).unwrap_err().advice.contains("a GPT partition table"));
    place.make(BYTES_MAX - PAGE, true).unwrap();
    assert!(MediaFile::open(place.path()).is_ok());
    place.empty();
    assert!(place.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn device_that_is_too_small_taken_read_only_or_none_is_refused() {
    let Some(place) = Place::new() else { return };
    for (bytes, errno) in [(0, libc::EINVAL), (100, libc::EINVAL), (DEVICE_BYTES, libc::ENOSPC)] {
        assert_eq!(place.make(bytes, true).unwrap_err().errno, errno);
    }
    let file = Path::new("/proc/self/exe").canonicalize().unwrap();
    assert!(contents(&file, false).is_err());
    assert!(measure(&file).unwrap_err().advice.contains("not a block device"));
    assert!(contents(Path::new("/dev/null"), false).unwrap_err().advice.contains("block device"));
    assert_eq!(contents(Path::new("/dev/none"), false).unwrap_err().errno, libc::ENOENT);
    if let Some(read_only) = place.device.read_only() {
        let refused = contents(read_only.path(), false).unwrap_err();
        assert!(refused.advice.contains("read-only"), "{refused}");
    }
    let name = c_path(place.path()).unwrap();
    let flags = libc::O_RDONLY | libc::O_EXCL;
    let taken = Descriptor::open(libc::AT_FDCWD, &name, flags, 0).unwrap();
    let refused = place.make(BYTES, true).unwrap_err();
    assert_eq!(refused.errno, libc::EBUSY);
    assert!(refused.advice.contains("mounted"), "{refused}");
    drop(taken);
    assert!(place.bytes().iter().all(|&byte| byte == 0), "nothing was written");
}

#[test]
fn device_that_cairn_has_cannot_be_taken_by_others_but_opened_by_cairn() {
    let Some(place) = Place::new() else { return };
    place.make(BYTES, false).unwrap();
    let file = MediaFile::open(place.path()).unwrap();
    let name = c_path(place.path()).unwrap();
    let flags = libc::O_RDONLY | libc::O_EXCL;
    let taken = || Descriptor::open(libc::AT_FDCWD, &name, flags, 0).map(drop);
    assert_eq!(taken(), Err(Errno(libc::EBUSY)));
    let other = MediaFile::open(place.path()).unwrap();
    assert_eq!(MediaFile::open_alone(place.path()).unwrap_err().errno, libc::EWOULDBLOCK);
    assert_eq!(place.make(BYTES, true).unwrap_err().errno, libc::EWOULDBLOCK);
    drop((file, other));
    // A child forked by another test holds it until the child ends.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(1));
    let mut attempts = (0..PATIENCE).map(|_| taken().inspect_err(|_| pause()));
    assert!(attempts.any(|taken| taken.is_ok()));
}

#[test]
fn label_that_does_not_go_with_the_device_is_damaged() {
    let Some(place) = Place::new() else { return };
    for bytes in [0, 100, BYTES_MAX + PAGE, u64::MAX] {
        place.mark(
            BYTES_MAX,
            &crate::media::label::encode(&Label { bytes, identity: IDENTITY, ..Label::default() }),
        );
        assert!(MediaFile::open(place.path()).unwrap_err().advice.contains("damaged"), "{bytes}");
        assert!(contents(place.path(), false).unwrap_err().advice.contains("damaged"), "{bytes}");
        assert_eq!(measure(place.path()).unwrap().tier_bytes, None, "{bytes}");
        assert!(place.make(BYTES, true).is_err(), "a tier that fsck may repair");
    }
}

#[test]
fn device_that_became_smaller_is_refused_and_one_that_is_gone_loses_nothing_quietly() {
    let Some(place) = Place::new() else { return };
    place.make(BYTES, false).unwrap();
    let file = MediaFile::open(place.path()).unwrap();
    Media::write(&file, 0, &[7; PAGE as usize]).unwrap();
    Media::flush(&file).unwrap();
    place.device.limit(PAGE);
    assert_eq!(Media::write(&file, BYTES - PAGE, &[8; PAGE as usize]), Err(Error::Io));
    assert_eq!(Media::read(&file, BYTES - PAGE, &mut [0; PAGE as usize]), Err(Error::Io));
    drop(file);
    assert!(MediaFile::open(place.path()).unwrap_err().advice.contains("the device is gone"));
    place.device.limit(BYTES);
    assert!(MediaFile::open(place.path()).unwrap_err().advice.contains("no label"));
    place.device.limit(0);
    let mut page = [0; PAGE as usize];
    Media::read(&MediaFile::open(place.path()).unwrap(), 0, &mut page).unwrap();
    assert_eq!(page, [7; PAGE as usize]);
}
