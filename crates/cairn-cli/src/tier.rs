//! What a store is made of, as the user writes it: `ram:SIZE`, `file:PATH:SIZE`.
//!
//! Must stay true: what can be refused is refused with one line that names the tier, before anything is made. A path
//! is made absolute here, because every process of the job opens it from wherever it is.
//! Does not make tiers.

use crate::error::{Error, Result};
use crate::size;
use crate::store::refuse;
use cairn_agent::error::why;
use cairn_agent::job::{DeviceKind, TierSpec};
use cairn_core::{HUGEBLOCK_BYTES_DEFAULT, MEDIA_BLOCK_BYTES, TIERS_MAX};
use cairn_device::store::free_bytes;
use std::io;
use std::path::{Path, PathBuf};

/// Smallest tier.
pub const TIER_BYTES_MIN: u64 = 1 << 20;

/// Reads a list of tiers, in order of preference; empty if none is given.
pub fn parse_all(texts: &[String]) -> Result<Vec<TierSpec>> {
    if texts.len() > TIERS_MAX {
        return Err(Error::TooManyTiers { count: texts.len(), most: TIERS_MAX });
    }
    let mut tiers: Vec<TierSpec> = Vec::new();
    for text in texts {
        let tier = parse(text)?;
        if tiers.iter().any(|other| (other.device, &other.path) == (tier.device, &tier.path)) {
            return Err(Error::TierTwice { text: text.clone() });
        }
        tiers.push(tier);
    }
    Ok(tiers)
}

fn parse(text: &str) -> Result<TierSpec> {
    let not_a_tier = || Error::Tier { text: text.to_string() };
    let (kind, rest) = text.split_once(':').ok_or_else(not_a_tier)?;
    match kind {
        "ram" => Ok(TierSpec { device: DeviceKind::Ram, path: None, bytes: bytes(rest)? }),
        "file" => {
            // A path may contain colons.
            let (path, size) = rest.rsplit_once(':').ok_or_else(not_a_tier)?;
            let (bytes, path) = (bytes(size)?, Some(absolute(Path::new(path))?));
            Ok(TierSpec { device: DeviceKind::File, path, bytes })
        }
        _ => Err(not_a_tier()),
    }
}

/// A tier's size: whole hugeblocks.
fn bytes(text: &str) -> Result<u64> {
    let bytes = size::parse(text).ok_or_else(|| Error::Size { text: text.to_string() })?;
    match bytes >= TIER_BYTES_MIN {
        true => Ok(whole_blocks(bytes)),
        false => Err(Error::TierTooSmall { bytes, least_bytes: TIER_BYTES_MIN }),
    }
}

/// The part of `bytes` that hugeblocks fill.
pub fn whole_blocks(bytes: u64) -> u64 {
    let block_bytes = u64::from(HUGEBLOCK_BYTES_DEFAULT);
    bytes / block_bytes * block_bytes
}

/// A tier as it is written on the command line.
pub fn shown(tier: &TierSpec) -> String {
    let size = size::exact(tier.bytes);
    match (tier.device, &tier.path) {
        (DeviceKind::File, Some(path)) => format!("file:{}:{size}", path.display()),
        (DeviceKind::File, None) => format!("file:{size}"),
        (DeviceKind::Ram, _) => format!("ram:{size}"),
    }
}

/// The path of a file, which need not exist, in a directory, which must.
fn absolute(path: &Path) -> Result<PathBuf> {
    let refused = |problem: String, advice| refused(path, problem, advice);
    let name = path.file_name().filter(|_| !path.as_os_str().as_encoded_bytes().ends_with(b"/"));
    let Some(name) = name else {
        return Err(refused("has no name".to_string(), "write file:PATH:SIZE"));
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

fn refused(path: &Path, problem: String, advice: &'static str) -> Error {
    Error::TierFile { path: path.to_path_buf(), problem, advice }
}

/// Refuses a file that cannot be made: something is there already, the mount would hide it, or there is no room.
pub fn check_new_file(path: &Path, bytes: u64, mount: &str) -> Result<()> {
    let refused = |problem: String, advice| Err(refused(path, problem, advice));
    if path.starts_with(mount) {
        return refused(format!("lies below the mount prefix {mount}"), "choose another");
    }
    if path.symlink_metadata().is_ok() {
        let advice = "choose another, remove it, or remove the store it belongs to with cairn rm";
        return refused("exists".to_string(), advice);
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    if rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_err() {
        return refused("lies in a directory that is not writable".to_string(), "choose another");
    }
    let free = free_bytes(parent).map_err(refuse)?;
    if bytes + MEDIA_BLOCK_BYTES as u64 > free {
        let (wanted, free) = (size::human(bytes), size::human(free));
        return refused(
            format!("would have {wanted}, but only {free} are free there"),
            "give a smaller size or choose another",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Result<Vec<TierSpec>> {
        parse_all(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn tiers_are_read_in_order_and_rounded_to_blocks() {
        let tiers = parsed(&["ram:2M", "file:/tmp/a b:c:1500KB", "file:/tmp//x:1G"]).expect("read");
        let shown: Vec<String> = tiers.iter().map(super::shown).collect();
        assert_eq!(shown, ["ram:2M", "file:/tmp/a b:c:1440K", "file:/tmp/x:1G"]);
        assert!(parsed(&[]).expect("read").is_empty());
    }

    #[test]
    fn relative_path_is_made_absolute() {
        let tiers = parsed(&["file:x:1M"]).expect("read");
        let here = std::env::current_dir().expect("is there").canonicalize().expect("is there");
        assert_eq!(tiers[0].path, Some(here.join("x")));
    }

    #[test]
    fn anything_else_is_refused_with_one_line_that_names_it() {
        for (texts, part) in [
            (vec!["ram"], "\"ram\" is not a tier"),
            (vec!["disk:8G"], "\"disk:8G\" is not a tier"),
            (vec!["file:/tmp/x"], "\"file:/tmp/x\" is not a tier"),
            (vec!["file:/tmp/x:8GX"], "\"8GX\" is not a size"),
            (vec!["file:/tmp/x:"], "\"\" is not a size"),
            (vec!["file:/tmp/x:4K"], "too small"),
            (vec!["file::1G"], "has no name"),
            (vec!["file:/tmp/:1G"], "has no name"),
            (vec!["file:/tmp/..:1G"], "has no name"),
            (vec!["file:/nonexistent/x:1G"], "a directory that does not exist"),
            (vec!["ram:1G", "ram:2G"], "\"ram:2G\" is the second"),
            (vec!["file:/tmp/x:1G", "file:/tmp/./x:2G"], "is the second"),
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
        let directory = std::env::temp_dir();
        let new = directory.join("cairn-no-such-tier");
        check_new_file(&new, 1 << 20, "/cairn").expect("can be made");
        for (path, bytes, mount, part) in [
            (&directory, 1 << 20, "/cairn", "exists"),
            (&new, 1 << 20, directory.to_str().expect("UTF-8"), "below the mount prefix"),
            (&new, 1 << 60, "/cairn", "are free there"),
        ] {
            let text = check_new_file(path, bytes, mount).expect_err(part).to_string();
            assert!(text.contains(part) && text.contains(path.to_str().expect("UTF-8")), "{text}");
        }
    }
}
