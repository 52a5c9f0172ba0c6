//! Tiers as the user writes them: `ram[:SIZE]`, `file:PATH[:SIZE]`, `dax:PATH[:SIZE]`,
//! `block:DEVICE[:SIZE]`,
//! `nvme-tcp://HOST[:PORT]/NQN[?nsid=N][&part=I/N][&size=SIZE][&auth=FILE][&take-over=yes]`.
//!
//! Must stay true: a bad tier is refused with one line that names it, before anything is created. A
//! path is made absolute here, because every process of the job opens it from its own current
//! directory. In the last component of a file's path, the text after the last colon is a size and
//! nothing else, so that a mistyped size never becomes part of a name.
//!
//! Does not create tiers.

use cairn_agent::model::error::why;
use cairn_agent::model::job::{DeviceKind, TierSpec};
use cairn_core::{Geometry, HUGEBLOCK_BYTES_DEFAULT, MEDIA_BLOCK_BYTES, Superblock, TIERS_MAX};
use cairn_device::media::medium::{self, Contents, DeviceSize, measure};
use cairn_device::{MediumKind, StoreError, TierPlace};
use cairn_nvme::shared::RemotePath;
use std::borrow::Cow;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, SettingError, TierError};
use crate::size;
use crate::store::address::resolve;
use crate::store::{Roots, placement, refuse};

/// Size of the smallest tier.
pub const TIER_BYTES_MIN: u64 = 1 << 20;

/// Copy-on-write file systems, by magic number (linux/magic.h; ZFS is not listed there).
const COPYING: [(u32, &str); 3] =
    [(0x9123_683e, "btrfs"), (0xca45_1a4e, "bcachefs"), (0x2fc1_2fc1, "ZFS")];

/// A tier as the user requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRequest {
    /// Kind of device.
    pub device: DeviceKind,
    /// Absolute path; None in memory.
    pub path: Option<PathBuf>,
    /// Capacity; None for a share of the free space.
    pub bytes: Option<u64>,
    /// Whether to take it from another machine that has claimed it.
    pub takes_over: bool,
}

impl TierRequest {
    /// A tier in memory with the default size.
    pub const MEMORY: TierRequest =
        TierRequest { device: DeviceKind::Ram, path: None, bytes: None, takes_over: false };

    /// Returns the tier with its requested capacity, or with `bytes` if none was requested.
    pub fn or_of(&self, bytes: u64) -> TierSpec {
        let bytes = self.bytes.unwrap_or(bytes);
        TierSpec { device: self.device, path: self.path.clone(), bytes }
    }
}

/// What may be taken from others for a tier.
#[derive(Clone, Copy)]
pub struct TierPermission {
    /// Whether the content of a device may be overwritten.
    pub may_overwrite: bool,
    /// Whether a device may be taken from another machine that has claimed it.
    pub takes_over: bool,
}

/// Parses a list of tiers, in order of preference; empty if none is given.
pub fn parse_all(texts: &[String]) -> Result<Vec<TierRequest>> {
    if texts.len() > TIERS_MAX {
        return Err(Error::Tier(TierError::TooManyTiers { count: texts.len(), most: TIERS_MAX }));
    }
    let mut tiers: Vec<TierRequest> = Vec::new();
    for text in texts {
        let tier = parse(text)?;
        if tiers.iter().any(|other| other.path == tier.path) {
            return Err(Error::Tier(TierError::TierTwice { text: text.clone() }));
        }
        tiers.push(tier);
    }
    Ok(tiers)
}

/// Parses the tier of the metadata. A file needs a size.
pub fn parse_meta(text: &str) -> Result<TierRequest> {
    let meta = parse(text)?;
    match (&meta.path, meta.bytes) {
        (Some(_), None) => Err(Error::Tier(TierError::MetaWithoutSize { text: text.to_string() })),
        _ => Ok(meta),
    }
}

/// Checks that `meta` and `tiers` together are not too many, and that no tier uses the file of
/// `meta`.
pub fn check_beside(meta: &TierRequest, tiers: &[TierRequest]) -> Result<()> {
    if meta.path.is_none() {
        return Ok(());
    }
    let (count, most) = (tiers.len() + 1, TIERS_MAX);
    if count > most {
        return Err(Error::Tier(TierError::TooManyTiers { count, most }));
    }
    match tiers.iter().find(|tier| tier.path == meta.path) {
        Some(tier) => Err(Error::Tier(TierError::TierTwice { text: shown(&tier.or_of(0)) })),
        None => Ok(()),
    }
}

/// Parses one tier.
pub fn parse(text: &str) -> Result<TierRequest> {
    let (kind, rest) = match text.split_once(':') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (text, None),
    };
    match (kind, rest) {
        ("ram", size) => {
            Ok(TierRequest { bytes: size.map(bytes).transpose()?, ..TierRequest::MEMORY })
        }
        ("file", Some(rest)) => file(DeviceKind::File, rest),
        ("dax", Some(rest)) => file(DeviceKind::Dax, rest),
        ("block", Some(rest)) => block(rest),
        ("nvme-tcp", Some(path)) if path.ends_with(".toml") => {
            remote(&placement::planned_tier(Path::new(path))?)
        }
        ("nvme-tcp", Some(_)) => remote(text),
        _ => Err(Error::Tier(TierError::Tier { text: text.to_string() })),
    }
}

/// Parses `PATH[:SIZE]`.
fn file(device: DeviceKind, text: &str) -> Result<TierRequest> {
    let (path, size) = split_size(text);
    let (bytes, path) = (size.map(bytes).transpose()?, Some(absolute(Path::new(path))?));
    Ok(TierRequest { device, path, bytes, takes_over: false })
}

/// Splits a path and a size: the text after the last colon, if that is in the last component.
fn split_size(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((path, size)) if !size.contains('/') => (path, Some(size)),
        _ => (text, None),
    }
}

/// Parses `DEVICE[:SIZE]`. The default size is that of an existing tier on the device, else the
/// whole device.
fn block(text: &str) -> Result<TierRequest> {
    let (path, size) = match text.rsplit_once(':') {
        // The name of a device may contain colons.
        Some((path, size)) if !Path::new(text).exists() => (path, Some(size)),
        _ => (text, None),
    };
    let wanted = size.map(bytes).transpose()?;
    // Resolves links to the kernel's name, and only that name is opened: a link may lead to another
    // device later.
    let path = Path::new(path).canonicalize().map_err(|error| {
        let problem = format!("cannot be used: {}", why(&error));
        refused(Path::new(path), problem, "name a block device, as in block:/dev/nvme0n1")
    })?;
    let DeviceSize { bytes_max, tier_bytes } = measure(&path).map_err(refused_device)?;
    let bytes = match wanted {
        Some(wanted) => wanted,
        None => tier_bytes.unwrap_or(whole_blocks(bytes_max)),
    };
    let least = bytes.max(TIER_BYTES_MIN);
    if least > bytes_max {
        return Err(too_small(&path, least, bytes_max, "give a smaller size or choose another"));
    }
    let (device, path, bytes) = (DeviceKind::Block, Some(path), Some(bytes));
    Ok(TierRequest { device, path, bytes, takes_over: false })
}

/// Parses `nvme-tcp://HOST[:PORT]/NQN[?nsid=N][&part=I/N][&size=SIZE][&auth=FILE][&take-over=yes]`.
/// The default size is the same as for a device. If a launcher starts the command on several nodes
/// and no part is named, each node gets its own part.
fn remote(text: &str) -> Result<TierRequest> {
    let shared = placement::shared_part().filter(|_| !text.contains("part="));
    let text = shared.map_or(text.to_string(), |part| placement::with_part(text, part));
    let RemoteTier { path, size, takes_over } = remote_tier(&text)?;
    let wanted = size.map(|size| bytes(&size)).transpose()?;
    let DeviceSize { bytes_max, tier_bytes } = measure(&path).map_err(refused_device)?;
    let bytes = wanted.unwrap_or(tier_bytes.unwrap_or(whole_blocks(bytes_max)));
    let least = bytes.max(TIER_BYTES_MIN);
    if least > bytes_max {
        return Err(too_small(&path, least, bytes_max, "give a smaller size or choose another"));
    }
    let (device, path, bytes) = (DeviceKind::Remote, Some(path), Some(bytes));
    Ok(TierRequest { device, path, bytes, takes_over })
}

/// Returns the path of `nvme-tcp:…`, and the size if given. The path holds the address of the host,
/// so that not every process has to resolve the name.
pub fn remote_path(text: &str) -> Result<(PathBuf, Option<String>)> {
    remote_tier(text).map(|tier| (tier.path, tier.size))
}

/// Parsed text of a tier on another machine.
struct RemoteTier {
    path: PathBuf,
    size: Option<String>,
    /// Whether to take it from another machine that has claimed it.
    takes_over: bool,
}

fn remote_tier(text: &str) -> Result<RemoteTier> {
    let wrong = || Error::Tier(TierError::Tier { text: text.to_string() });
    let rest = text.strip_prefix("nvme-tcp://").ok_or_else(wrong)?;
    let (host, rest) = rest.split_once('/').ok_or_else(wrong)?;
    let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut namespace, mut size, mut secrets) = ("1", None, String::new());
    let (mut takes_over, mut part) = (false, String::new());
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("nsid", number)) => namespace = number,
            Some(("part", text)) => part = format!("&part={text}"),
            Some(("take-over", "yes")) => takes_over = true,
            Some(("size", text)) => size = Some(text.to_string()),
            Some(("auth", source)) if source.starts_with("env:") => {
                secrets = format!("&auth={source}");
            }
            Some(("auth", file)) => {
                secrets = format!("&auth={}", absolute(Path::new(file))?.display());
            }
            _ => return Err(wrong()),
        }
    }
    let address = resolve(host)?;
    let path = PathBuf::from(format!("//{address}/{name}?nsid={namespace}{part}{secrets}"));
    RemotePath::parse(&path).ok_or_else(wrong)?;
    Ok(RemoteTier { path, size, takes_over })
}

/// Parses the size of a tier, rounded down to whole hugeblocks.
fn bytes(text: &str) -> Result<u64> {
    let bytes = size::parse(text)
        .ok_or_else(|| Error::Setting(SettingError::Size { text: text.to_string() }))?;
    match bytes >= TIER_BYTES_MIN {
        true => Ok(whole_blocks(bytes)),
        false => Err(Error::Tier(TierError::TierTooSmall { bytes, least_bytes: TIER_BYTES_MIN })),
    }
}

/// Rounds `bytes` down to whole hugeblocks.
fn whole_blocks(bytes: u64) -> u64 {
    let block_bytes = u64::from(HUGEBLOCK_BYTES_DEFAULT);
    bytes / block_bytes * block_bytes
}

/// Returns the superblock of the namespace that an earlier store has left at `path`. None if there
/// is none, or if it is on a device, damaged, and may be overwritten. Errors: it is not a tier,
/// damaged, or in use.
pub fn kept_namespace(
    kind: MediumKind,
    path: &Path,
    TierPermission { may_overwrite, takes_over }: TierPermission,
) -> Result<Option<Superblock>> {
    let is_there = match kind {
        MediumKind::File | MediumKind::Dax => path.is_file(),
        MediumKind::Block | MediumKind::Remote => {
            matches!(medium::contents(path, takes_over), Ok(Contents::Tier(_)))
        }
    };
    if !is_there {
        return Ok(None);
    }
    match TierPlace::kept_namespace(kind, path, takes_over) {
        Err(StoreError { refusal: Some(cairn_core::Error::Corrupt { .. }), .. })
            if kind.is_device() && may_overwrite =>
        {
            Ok(None)
        }
        kept => kept.map_err(refuse_kept(path)),
    }
}

/// Returns the sizes of the data tiers of such a namespace, in order.
pub fn kept_sizes(superblock: &Superblock) -> impl Iterator<Item = u64> {
    let Geometry { tier_blocks: [first, further @ ..], hugeblock_bytes, .. } = superblock.geometry;
    let further = further.into_iter().filter(|&blocks| blocks > 0);
    let further = further.map(move |blocks| u64::from(blocks) * u64::from(hugeblock_bytes));
    (first > 0).then_some(superblock.bytes).into_iter().chain(further)
}

/// Converts an error of the tier at `path` that an earlier store has left, for `map_err`.
pub fn refuse_kept(path: &Path) -> impl Fn(StoreError) -> Error {
    move |error| match error.refusal {
        Some(cairn_core::Error::Corrupt { what }) => {
            refused(path, format!("is damaged: {what}"), "nothing was changed; see cairn fsck")
        }
        _ => refuse(error),
    }
}

/// Returns a tier in the syntax of the command line; 0 bytes mean no particular size.
pub fn shown(tier: &TierSpec) -> String {
    let mut shown = match tier.device {
        DeviceKind::Ram => "ram",
        DeviceKind::File => "file",
        DeviceKind::Dax => "dax",
        DeviceKind::Block => "block",
        DeviceKind::Remote => "nvme-tcp",
    }
    .to_string();
    if let Some(path) = &tier.path {
        shown += &format!(":{}", path.display());
    }
    if tier.bytes > 0 {
        let before = if tier.device == DeviceKind::Remote { "&size=" } else { ":" };
        shown += &format!("{before}{}", size::exact(tier.bytes));
    }
    shown
}

/// Returns a list of tiers in the syntax of the command line.
pub fn list(tiers: &[TierSpec]) -> String {
    tiers.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// Returns the absolute path of a file. The file need not exist; its directory must.
fn absolute(path: &Path) -> Result<PathBuf> {
    let refused = |problem: String, advice| refused(path, problem, advice);
    let name = path.file_name().filter(|_| !path.as_os_str().as_encoded_bytes().ends_with(b"/"));
    let Some(name) = name else {
        return Err(refused("has no name".to_string(), "write file:PATH or file:PATH:SIZE"));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(
            "lies in a directory that does not exist".to_string(),
            "create it first, with mkdir -p",
        ),
        _ => refused(format!("cannot be made: {}", why(&error)), "choose another"),
    })?;
    Ok(parent.join(name))
}

fn refused(path: &Path, problem: String, advice: impl Into<Cow<'static, str>>) -> Error {
    Error::Tier(TierError::TierFile { path: path.to_path_buf(), problem, advice: advice.into() })
}

/// Returns the directory of a tier's file.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Refuses a file that cannot be created: it exists, the mount would hide it, or `free` bytes are
/// not enough.
pub fn check_new_file(path: &Path, bytes: u64, free: u64, mount: &str) -> Result<()> {
    let refused = |problem: String, advice| Err(refused(path, problem, advice));
    if path.starts_with(mount) {
        return refused(format!("lies below the mount prefix {mount}"), "choose another");
    }
    if path.metadata().is_ok_and(|found| found.file_type().is_block_device()) {
        return refused("is a block device".to_string(), "write block:DEVICE");
    }
    if path.symlink_metadata().is_ok() {
        let advice = "choose another, remove it, or remove the store it belongs to with cairn rm";
        return refused("exists".to_string(), advice);
    }
    if rustix::fs::access(directory_of(path), rustix::fs::Access::WRITE_OK).is_err() {
        return refused("lies in a directory that is not writable".to_string(), "choose another");
    }
    if bytes + MEDIA_BLOCK_BYTES as u64 > free {
        let (wanted, free) = (size::human(bytes), size::human(free));
        return refused(
            format!("needs {wanted}, but only {free} are free there"),
            "give a smaller size or choose another",
        );
    }
    Ok(())
}

/// Refuses to map a file on a copy-on-write file system. It needs new space when bytes are
/// overwritten; if there is none, a write gets an error, but a mapping gets a signal.
pub fn check_mappable(path: &Path) -> Result<()> {
    let directory = directory_of(path);
    let found = rustix::fs::statfs(directory).map_err(Error::file("look at", directory))?;
    match COPYING.iter().find(|(magic, _)| *magic == found.f_type as u32) {
        None => Ok(()),
        Some((_, name)) => {
            let problem =
                format!("lies on {name}, where overwriting data needs free space and can fail");
            Err(refused(path, problem, "use file:PATH there, or dax: on ext4 or XFS"))
        }
    }
}

/// Refuses a device that cannot be used for a new store: it is in use, or holds something that may
/// not be overwritten. If the metadata `are_kept`, a tier of an earlier store is accepted, because
/// the new store recovers it. An unfinished tier is created anew, unless a store has it.
pub fn check_device(
    path: &Path,
    are_kept: bool,
    licence: TierPermission,
    roots: &Roots,
) -> Result<()> {
    match medium::contents(path, licence.takes_over).map_err(refused_device)? {
        Contents::Nothing => Ok(()),
        Contents::Tier(_) | Contents::Unfinished(_) if are_kept => Ok(()),
        _ if licence.may_overwrite => Ok(()),
        Contents::Unfinished(label) => match roots.job_with_tier(&label.identity) {
            None => Ok(()),
            Some(job) => {
                let problem = format!("cannot be used: it is a tier of the job {job}");
                Err(refused(path, problem, format!("choose another, or see cairn rm {job}")))
            }
        },
        held => {
            let problem = format!("cannot be used: {}", held.describe());
            Err(refused(path, problem, "choose another, or overwrite it with --yes"))
        }
    }
}

/// Refuses to resume a store on a device that has become too small for it.
pub fn check_kept_device(tier: &TierSpec) -> Result<()> {
    let Some(path) = device(tier) else { return Ok(()) };
    let DeviceSize { bytes_max, .. } = measure(path).map_err(refused_device)?;
    match tier.bytes <= bytes_max {
        true => Ok(()),
        false => {
            let advice = "it was larger when the store was made; give it that size again";
            Err(too_small(path, tier.bytes, bytes_max, advice))
        }
    }
}

/// Refuses a device if each rank needs a tier of its own.
pub fn check_divisible(tier: &TierRequest) -> Result<()> {
    match (is_device(tier.device), &tier.path) {
        (true, Some(path)) => {
            let problem = "is a device, which ranks cannot divide".to_string();
            Err(refused(path, problem, "use file:PATH:SIZE, or leave out --scope rank"))
        }
        _ => Ok(()),
    }
}

/// Returns the path of a tier that exists independently of the store.
pub fn device(tier: &TierSpec) -> Option<&Path> {
    tier.path.as_deref().filter(|_| is_device(tier.device))
}

/// Whether such a tier exists independently of the store.
fn is_device(kind: DeviceKind) -> bool {
    kind.medium().is_some_and(MediumKind::is_device)
}

fn too_small(path: &Path, wanted: u64, bytes_max: u64, advice: &'static str) -> Error {
    let (wanted, found) = (size::exact(wanted), size::human(bytes_max));
    refused(path, format!("should have {wanted}, but the device has room for {found}"), advice)
}

/// Converts an error of a device that cannot be used.
pub fn refused_device(error: StoreError) -> Error {
    let problem = match error.errno {
        // The advice says everything.
        libc::EINVAL => "cannot be used".to_string(),
        errno => format!("cannot be used: {}", why(&io::Error::from_raw_os_error(errno))),
    };
    let advice = if error.advice.is_empty() { "choose another".into() } else { error.advice };
    refused(&error.path, problem, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Result<Vec<TierRequest>> {
        parse_all(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn tiers_are_read_in_order_and_rounded_to_blocks() {
        let texts = ["ram:2M", "file:/tmp/a b:c:1500KB", "file:/tmp//x:1G", "dax:/tmp/y"];
        let tiers = parsed(&texts).expect("read");
        let shown: Vec<String> =
            tiers.iter().map(|tier| super::shown(&tier.or_of(7 << 20))).collect();
        let expected = ["ram:2M", "file:/tmp/a b:c:1440K", "file:/tmp/x:1G", "dax:/tmp/y:7M"];
        assert_eq!(shown, expected);
        assert!(parsed(&[]).expect("read").is_empty());
    }

    #[test]
    fn size_is_what_follows_a_colon_in_the_last_component() {
        let directory = std::env::temp_dir().join(format!("cairn-tier-{}:1G", std::process::id()));
        std::fs::create_dir(&directory).expect("makes");
        let at = |name: &str| directory.canonicalize().expect("is there").join(name);
        let file = format!("file:{}", at("x").display());
        let tiers = parsed(&["ram", &file]).expect("read");
        assert_eq!(tiers[0], TierRequest::MEMORY);
        assert_eq!((&tiers[1].path, tiers[1].bytes), (&Some(at("x")), None));
        assert_eq!(super::shown(&tiers[1].or_of(1 << 20)), format!("{file}:1M"));
        let tiers = parsed(&[&format!("{file}:2G"), &format!("{file}:2G:3G")]).expect("read");
        assert_eq!((&tiers[0].path, tiers[0].bytes), (&Some(at("x")), Some(2 << 30)));
        assert_eq!((&tiers[1].path, tiers[1].bytes), (&Some(at("x:2G")), Some(3 << 30)));
        std::fs::remove_dir(&directory).expect("removes");
    }

    #[test]
    fn relative_path_is_made_absolute() {
        let tiers = parsed(&["file:x:1M", "file:y"]).expect("read");
        let here = std::env::current_dir().expect("is there").canonicalize().expect("is there");
        assert_eq!(tiers[0].path, Some(here.join("x")));
        assert_eq!(tiers[1].path, Some(here.join("y")));
    }

    #[test]
    fn anything_else_is_refused_with_one_line_that_names_it() {
        for (texts, part) in [
            (vec!["raw"], "\"raw\" is not a tier"),
            (vec!["ram:"], "\"\" is not a size"),
            (vec!["8G"], "\"8G\" is not a tier"),
            (vec!["disk:8G"], "\"disk:8G\" is not a tier"),
            (vec!["file"], "\"file\" is not a tier"),
            (vec!["file:"], "has no name"),
            (vec!["file:/tmp/x:8GX"], "\"8GX\" is not a size"),
            (vec!["file:/tmp/x:"], "\"\" is not a size"),
            (vec!["file:/tmp/x:4K"], "too small"),
            (vec!["file::1G"], "has no name"),
            (vec!["file:/tmp/:1G"], "has no name"),
            (vec!["file:/tmp/"], "has no name"),
            (vec!["file:/tmp/..:1G"], "has no name"),
            (vec!["file:/nonexistent/x:1G"], "a directory that does not exist"),
            (vec!["block:/dev/none"], "/dev/none cannot be used: no such file"),
            (vec!["block:/dev/none:1G"], "/dev/none cannot be used: no such file"),
            (vec!["block:/dev/none:8GX"], "\"8GX\" is not a size"),
            (vec!["block:/dev/null"], "not a block device"),
            (vec!["block:/etc/passwd:1G"], "not a block device"),
            (vec!["block:/dev"], "not a block device"),
            (vec!["ram:1G", "ram:2G"], "\"ram:2G\" is the second"),
            (vec!["ram:1G", "ram"], "\"ram\" is the second"),
            (vec!["file:/tmp/x:1G", "file:/tmp/./x"], "is the second"),
            (vec!["dax:/tmp/x:1G", "file:/tmp/x"], "is the second"),
            (vec!["dax"], "\"dax\" is not a tier"),
            (vec!["nvme-tcp"], "\"nvme-tcp\" is not a tier"),
            (vec!["nvme-tcp:/nqn.x"], "is not a tier"),
            (vec!["nvme-tcp:/none.toml"], "/none.toml: cannot be read"),
            (vec!["nvme-tcp://127.0.0.1:1/store"], "is not a tier"),
            (vec!["nvme-tcp://127.0.0.1:1/nqn.x?nsid=0"], "is not a tier"),
            (vec!["nvme-tcp://127.0.0.1:1/nqn.x?size"], "is not a tier"),
            (vec!["nvme-tcp://127.0.0.1:1/nqn.x?size=8GX"], "\"8GX\" is not a size"),
            (vec!["nvme-tcp://127.0.0.1:1/nqn.x"], "connection refused; is there a target?"),
            (vec!["dax:/tmp/x:4K"], "too small"),
            (vec!["ram:1G"; 5], "5 tiers were given"),
        ] {
            let error = parsed(&texts).expect_err(part);
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn file_that_cannot_be_made_is_refused() {
        const FREE: u64 = 1 << 30;
        let directory = std::env::temp_dir();
        let new = directory.join("cairn-no-such-tier");
        check_new_file(&new, 1 << 20, FREE, "/cairn").expect("can be made");
        for (path, bytes, mount, part) in [
            (&directory, 1 << 20, "/cairn", "exists"),
            (&new, 1 << 20, directory.to_str().expect("UTF-8"), "below the mount prefix"),
            (&new, FREE, "/cairn", "are free there"),
        ] {
            let refused = check_new_file(path, bytes, FREE, mount).expect_err(part);
            let text = refused.to_string();
            assert!(text.contains(part) && text.contains(path.to_str().expect("UTF-8")), "{text}");
        }
    }
}
