//! Unfinished multipart uploads: lists them and their parts, and aborts them.
//!
//! Must stay true: a part at the server stands for bytes of a file only if its length and its
//! checksum or ETag match them. Servers omit fields: a part whose description is incomplete is
//! ignored.

use cairn_platform::checksum;
use md5::{Digest, Md5};
use rusty_s3::actions::{AbortMultipartUpload, ListParts};
use std::collections::BTreeMap;

use super::answers::{PartOf, Parts, Uploads};
use super::{Client, PAGES_MAX, Part, checksum_text};
use crate::model::error::Result;

/// A part at the server, as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    bytes: u64,
    etag: String,
    /// In S3's encoding.
    crc32c: Option<String>,
}

impl Listed {
    /// Returns this part if it holds these bytes. Without a checksum its ETag must be the MD5 of
    /// the bytes.
    pub fn of(&self, bytes: &[u8]) -> Option<Part> {
        let crc32c = checksum::crc32c(0, bytes);
        let is_it = match &self.crc32c {
            _ if self.bytes != bytes.len() as u64 => false,
            Some(found) => *found == checksum_text(crc32c),
            None => self.etag.trim_matches('"').eq_ignore_ascii_case(&md5_text(bytes)),
        };
        let (etag, was_compared) = (self.etag.clone(), self.crc32c.is_some());
        is_it.then_some(Part { etag, crc32c, was_compared })
    }
}

impl Client<'_> {
    /// Returns the parts of an unfinished upload by their numbers. Returns None if there is no such
    /// upload, or the server does not list its parts. Errors: the server cannot answer now.
    pub fn parts(&self, key: &str, upload: &str) -> Result<Option<BTreeMap<u16, Listed>>> {
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let action = || {
                let credentials = Some(&self.credentials);
                let mut action = ListParts::new(&self.bucket, credentials, key, upload);
                action.set_part_number_marker(after);
                action
            };
            let answer = self.send("look at", key, &action, &[], None)?;
            match answer.check(self, "look at", key) {
                Err(error) if error.passes() => return Err(error),
                Err(_) => return Ok(None),
                Ok(()) => {}
            }
            let Some(list) = Parts::of(&answer.text()) else { return Ok(None) };
            let next = list.next().filter(|next| *next > after);
            found.extend(list.part.into_iter().filter_map(listed));
            match next {
                Some(next) => after = next,
                None => return Ok(Some(found)),
            }
        }
    }

    /// Aborts a multipart upload.
    pub fn abort(&self, key: &str, upload: &str) -> Result<()> {
        let credentials = Some(&self.credentials);
        let action = || AbortMultipartUpload::new(&self.bucket, credentials, key, upload);
        self.send("give up", key, &action, &[], None)?.check(self, "give up", key)
    }

    /// Aborts unfinished uploads of dead agents: those of objects whose names begin with `prefix`
    /// and for which `ours` is true.
    pub fn abort_unfinished(
        &self,
        prefix: &str,
        ours: impl Fn(&str) -> Result<bool>,
    ) -> Result<()> {
        let mut after = None::<(String, String)>;
        for _ in 0..PAGES_MAX {
            let mut query = vec![("uploads", ""), ("prefix", prefix)];
            if let Some((key, upload)) = &after {
                query.extend([("key-marker", key.as_str()), ("upload-id-marker", upload)]);
            }
            let answer = self.send("look at", prefix, &|| self.ask_bucket(&query), &[], None)?;
            answer.check(self, "look at", prefix)?;
            let list = Uploads::of(&answer.text());
            let mut list =
                list.ok_or_else(|| self.strange("look at", prefix, "its answer is not a list"))?;
            for (key, upload) in list.pairs() {
                if key.starts_with(prefix) && ours(&key)? {
                    self.abort(&key, &upload)?;
                }
            }
            let next = list.next();
            if next.is_none() || next == after {
                return Ok(());
            }
            after = next;
        }
        Err(self.strange("look at", prefix, "its list has no end"))
    }
}

/// Returns a part with its number, or None if its description is incomplete.
pub(super) fn listed(part: PartOf) -> Option<(u16, Listed)> {
    let number = part.part_number?.parse().ok()?;
    let (bytes, etag) = (part.size?.parse().ok()?, part.etag?);
    Some((number, Listed { bytes, etag, crc32c: part.crc32c }))
}

fn md5_text(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
