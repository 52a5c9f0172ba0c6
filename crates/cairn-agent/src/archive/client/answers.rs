//! XML responses of S3 servers (Amazon S3 API reference, 2006-03-01).
//!
//! Must stay true: servers omit elements and add others, so a parser takes only the elements that
//! it needs. A text that is not XML, or is cut off, is not a valid response.

use quick_xml::events::Event;
use quick_xml::{Reader, de};
use serde::Deserialize;

/// Reason of a refusal.
#[derive(Debug, Default)]
pub(super) struct Failure {
    pub code: Option<String>,
    pub message: Option<String>,
}

impl Failure {
    /// Parses the reason from a text. A text that stops being XML behind its code still has a code.
    pub fn of(text: &str) -> Failure {
        Failure { code: first(text, b"Code"), message: first(text, b"Message") }
    }
}

/// Returns the text at the beginning of the first element of this name.
fn first(text: &str, name: &[u8]) -> Option<String> {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) if element.local_name().as_ref() == name => break,
            Event::Eof => return None,
            _ => {}
        }
    }
    match reader.read_event().ok()? {
        Event::Text(inner) => Some(inner.decode().ok()?.trim().to_owned()),
        Event::CData(inner) => Some(inner.decode().ok()?.trim().to_owned()),
        _ => None,
    }
}

/// Whether a text is one complete element of this name.
pub(super) fn is_whole(text: &str, name: &str) -> bool {
    let mut reader = Reader::from_str(text);
    let (mut depth, mut is_it) = (0_usize, false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => {
                is_it |= depth == 0 && element.local_name().as_ref() == name.as_bytes();
                depth += 1;
            }
            Ok(Event::Empty(element)) => {
                is_it |= depth == 0 && element.local_name().as_ref() == name.as_bytes();
            }
            Ok(Event::End(_)) => depth = depth.saturating_sub(1),
            Ok(Event::Eof) => return is_it && depth == 0,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// A page of object names and common prefixes that begin with a prefix.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Names {
    contents: Vec<Object>,
    common_prefixes: Vec<Common>,
    next_continuation_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Object {
    key: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Common {
    prefix: Option<String>,
}

impl Names {
    /// Parses a page. Returns None if the text is not such a list.
    pub fn of(text: &str) -> Option<Names> {
        #[derive(Deserialize)]
        enum Root {
            ListBucketResult(Names),
        }
        de::from_str(text).ok().map(|Root::ListBucketResult(names)| names)
    }

    /// Takes the names of objects.
    pub fn keys(&mut self) -> impl Iterator<Item = String> {
        self.contents.drain(..).filter_map(|object| object.key)
    }

    /// Takes the common prefixes, up to and including the delimiter.
    pub fn prefixes(&mut self) -> impl Iterator<Item = String> {
        self.common_prefixes.drain(..).filter_map(|common| common.prefix)
    }

    /// Takes the token for the next page, if there is one.
    pub fn next(&mut self) -> Option<String> {
        self.next_continuation_token.take().filter(|token| !token.is_empty())
    }
}

/// A page of unfinished multipart uploads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Uploads {
    upload: Vec<Upload>,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Upload {
    key: Option<String>,
    upload_id: Option<String>,
}

impl Uploads {
    /// Parses a page. Returns None if the text is not such a list.
    pub fn of(text: &str) -> Option<Uploads> {
        de::from_str(text).ok()
    }

    /// Takes the object names with their upload ids.
    pub fn pairs(&mut self) -> Vec<(String, String)> {
        self.upload.drain(..).filter_map(|upload| Some((upload.key?, upload.upload_id?))).collect()
    }

    /// Returns the name and upload id after which the next page begins, if there is one.
    pub fn next(self) -> Option<(String, String)> {
        self.next_key_marker.filter(|key| !key.is_empty()).zip(self.next_upload_id_marker)
    }
}

/// A page of the parts of a multipart upload.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Parts {
    pub part: Vec<PartOf>,
    is_truncated: Option<String>,
    next_part_number_marker: Option<String>,
}

/// One part, as the server describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct PartOf {
    pub part_number: Option<String>,
    pub size: Option<String>,
    #[serde(rename = "ETag")]
    pub etag: Option<String>,
    #[serde(rename = "ChecksumCRC32C")]
    pub crc32c: Option<String>,
}

impl Parts {
    /// Parses a page. Returns None if the text is not such a list.
    pub fn of(text: &str) -> Option<Parts> {
        de::from_str(text).ok()
    }

    /// Returns the part number after which the next page begins, if there is one.
    pub fn next(&self) -> Option<u16> {
        let is_cut = self.is_truncated.as_deref() == Some("true");
        let next = self.next_part_number_marker.as_ref().and_then(|text| text.parse().ok());
        next.filter(|_| is_cut)
    }
}
