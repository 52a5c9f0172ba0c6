//! Path of a file inside a job's store: bytes, relative, without `.`, `..` or a leading slash.
//!
//! Invariant: every component is 1 to 255 bytes, not `.` or `..`, and holds no `/` and no zero
//! byte, so a path joined to a directory never leads out of it by itself. In JSON it is a string if
//! it is UTF-8, and `{"hex": "…"}` if not; both are lossless.
//!
//! Does not resolve symbolic links.

use cairn_core::NAME_BYTES_MAX;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Directory of a namespace to which damaged checkpoints are set aside. Files in it are part of no
/// checkpoint.
pub const ASIDE: &[u8] = b".cairn-damaged";
/// Name, in there, of the directory for checkpoints that the last run did not finish.
pub const UNFINISHED: &[u8] = b"unfinished";
/// Subdirectory of the quarantine directory in which replacements are built.
pub const BUILDING: &[u8] = b".cairn-building";

/// Path of a file inside a store, relative to its root; empty for the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Returns the root of the store.
    pub fn root() -> FilePath {
        FilePath(Vec::new())
    }

    /// Normalises `bytes`: drops leading, trailing and repeated slashes and `.` components. None if
    /// a component is `..`, too long, or holds a zero byte.
    pub fn parse(bytes: &[u8]) -> Option<FilePath> {
        let mut path = FilePath::root();
        for component in bytes.split(|&byte| byte == b'/') {
            if component.is_empty() || component == b"." {
                continue;
            }
            if component == b".." || component.len() > NAME_BYTES_MAX || component.contains(&0) {
                return None;
            }
            path = path.join(component);
        }
        Some(path)
    }

    /// Returns the path of `name` in this directory. `name` is one component, as a directory lists
    /// it.
    pub fn join(&self, name: &[u8]) -> FilePath {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        if !self.0.is_empty() {
            bytes.extend_from_slice(&self.0);
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        FilePath(bytes)
    }

    /// Returns `self` followed by all of `tail`.
    pub fn append(&self, tail: &FilePath) -> FilePath {
        if tail.is_root() { self.clone() } else { self.join(&tail.0) }
    }

    /// Returns the bytes, as the store's operations take them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for the operating system, relative to some directory.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Whether this is the root of the store.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the components from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|component| !component.is_empty())
    }

    /// Returns the parent directory and the last component; None for the root.
    pub fn split(&self) -> Option<(FilePath, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => Some((FilePath(self.0[..slash].to_vec()), &self.0[slash + 1..])),
            None => Some((FilePath::root(), &self.0)),
        }
    }

    /// Returns the path without its leading `prefix`; None if it does not lie below `prefix`.
    pub fn strip_prefix(&self, prefix: &FilePath) -> Option<FilePath> {
        if prefix.is_root() {
            return Some(self.clone());
        }
        let rest = self.0.strip_prefix(prefix.as_bytes())?;
        match rest.first() {
            None => Some(FilePath::root()),
            Some(b'/') => Some(FilePath(rest[1..].to_vec())),
            Some(_) => None,
        }
    }

    /// Returns the path for messages: bytes that are not UTF-8 are replaced.
    pub fn to_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_lossy())
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FilePath, D::Error> {
        let bytes = deserialize_bytes(deserializer)?;
        FilePath::parse(&bytes)
            .ok_or_else(|| D::Error::custom("a path with `..` or a bad component"))
    }
}

/// A name in JSON: text if it is UTF-8, hexadecimal digits if not.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonName {
    Text(String),
    Bytes { hex: String },
}

/// Writes arbitrary bytes as a string, or as `{"hex": "…"}` if they are not UTF-8.
pub fn serialize_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serializer.serialize_str(text),
        Err(_) => {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            JsonName::Bytes { hex }.serialize(serializer)
        }
    }
}

/// Reads what [`serialize_bytes`] wrote.
pub fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    match JsonName::deserialize(deserializer)? {
        JsonName::Text(text) => Ok(text.into_bytes()),
        JsonName::Bytes { hex } => {
            let digit_pairs = hex.as_bytes().chunks(2);
            digit_pairs
                .map(|pair| {
                    let digits = std::str::from_utf8(pair).map_err(D::Error::custom)?;
                    u8::from_str_radix(digits, 16).map_err(D::Error::custom)
                })
                .collect()
        }
    }
}

/// Returns the path, relative to its namespace, of the directory in which replacements are built.
pub fn building_place() -> FilePath {
    FilePath::root().join(ASIDE).join(BUILDING)
}

/// Path of the directory for checkpoints that the last run did not finish.
pub fn unfinished_place() -> FilePath {
    FilePath::root().join(ASIDE).join(UNFINISHED)
}

/// Whether `path`, relative to its namespace, lies in the quarantine directory.
pub fn is_aside(path: &FilePath) -> bool {
    path.components().next() == Some(ASIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    #[test]
    fn slashes_and_dots_are_normalised() {
        assert_eq!(path("//a/./b//c/"), path("a/b/c"));
        assert!(path("/").is_root());
        assert_eq!(FilePath::parse(b"a/../b"), None);
        assert_eq!(FilePath::parse(b"a\0b"), None);
        assert_eq!(FilePath::parse(&[b'x'; 256]), None);
    }

    #[test]
    fn split_and_join_are_inverse() {
        let deep = path("a/b/c");
        let (parent, name) = deep.split().expect("not the root");
        assert_eq!((parent.join(name), name), (deep.clone(), &b"c"[..]));
        assert_eq!(path("a").split(), Some((FilePath::root(), &b"a"[..])));
        assert_eq!(FilePath::root().split(), None);
    }

    #[test]
    fn a_prefix_is_stripped_only_at_a_slash() {
        assert_eq!(path("cairn/x").strip_prefix(&path("cairn")), Some(path("x")));
        assert_eq!(path("cairns/x").strip_prefix(&path("cairn")), None);
        assert_eq!(path("cairn").strip_prefix(&path("cairn")), Some(FilePath::root()));
    }

    #[test]
    fn names_that_are_not_utf8_survive_json() {
        for bytes in [&b"plain \"quoted\""[..], &b"caf\xe9"[..], "ünï".as_bytes()] {
            let before = FilePath::parse(bytes).expect("a valid path");
            let json = serde_json::to_string(&before).expect("serialises");
            let after: FilePath = serde_json::from_str(&json).expect("parses");
            assert_eq!(after, before, "{json}");
        }
        assert!(serde_json::from_str::<FilePath>("\"a/../../etc/passwd\"").is_err());
        assert!(serde_json::from_str::<FilePath>("{\"hex\":\"2e2e\"}").is_err());
    }
}
