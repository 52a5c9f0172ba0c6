//! Text parsers: manifests, job descriptions, requests and answers of the control socket, paths,
//! sizes.
//!
//! Invariant: whatever a parser accepts is the same after it is written and read again. The first
//! byte of an input chooses the parser.

#[allow(dead_code, reason = "only the parser is of interest here")]
#[path = "../../../cairn-cli/src/size.rs"]
mod size;

use cairn_agent::model::job::{Job, is_valid_job_name};
use cairn_agent::model::protocol::{Answer, Request};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::Manifest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Passes the text to the parser that the first byte chooses.
pub(super) fn run(input: &[u8]) {
    let Some((reader, text)) = input.split_first() else { return };
    match reader % 7 {
        0 => read_again::<Manifest>(text),
        1 => read_again::<Job>(text),
        2 => read_again::<Request>(text),
        3 => read_again::<Answer>(text),
        4 => read_path(text),
        5 => read_size(text),
        _ => read_job_name(text),
    }
}

fn read_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(text) else { return };
    let written = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(value, again);
}

fn read_path(text: &[u8]) {
    let Some(path) = FilePath::parse(text) else { return };
    assert_eq!(FilePath::parse(path.as_bytes()).as_ref(), Some(&path), "a path is normal");
    for component in path.components() {
        assert!(!matches!(component, b"" | b"." | b".."), "{path:?} leads out of its directory");
        assert!(!component.contains(&0), "{path:?} cannot be given to the kernel");
    }
    if let Some((directory, name)) = path.split() {
        assert_eq!(directory.join(name), path);
        assert_eq!(path.strip_prefix(&directory), FilePath::parse(name));
    }
    let written = serde_json::to_vec(&path).expect("any path can be written");
    assert_eq!(serde_json::from_slice::<FilePath>(&written).ok(), Some(path));
}

fn read_size(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Some(bytes) = size::parse(text) else { return };
    let again = size::parse(&size::human(bytes)).unwrap_or(u64::MAX);
    // Only three digits are shown.
    assert!(again.abs_diff(bytes) <= bytes / 100, "{text:?} is {bytes}, shown as {again}");
}

fn read_job_name(text: &[u8]) {
    let Ok(name) = std::str::from_utf8(text) else { return };
    if is_valid_job_name(name) {
        let path = FilePath::parse(name.as_bytes()).expect("a job's name is a path");
        assert_eq!(path.components().count(), 1, "{name:?} is not one directory");
    }
}
