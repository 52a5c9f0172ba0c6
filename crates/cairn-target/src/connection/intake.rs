//! PDUs, assembled from the bytes that arrive.
//!
//! Invariant: no more of a PDU is stored than its header and as much as its header says. Whoever
//! creates a `Body` has checked that length.

use cairn_nvme::wire::Entry;
use cairn_nvme::wire::pdu::{COMMON_BYTES, DIGEST_BYTES, Frame, Framing, Header, Malformed};
use cairn_platform::checksum;

use crate::connection::transfer::Awaited;

/// The PDU that is arriving.
#[derive(Default)]
pub(crate) struct Intake {
    /// Header of the current PDU, or of the last one.
    header: Vec<u8>,
    is_header_whole: bool,
    body: Option<Body>,
}

/// Where the data of a PDU go.
pub(crate) enum Place {
    /// Into the capsule of a command.
    Capsule(Entry, Vec<u8>),
    /// To the requested data of a command.
    Transfer(Awaited),
}

/// The bytes behind a header.
pub(crate) struct Body {
    padding: usize,
    place: Place,
    /// Offset of the data in their place.
    start: usize,
    length: usize,
    arrived: usize,
    digest: [u8; DIGEST_BYTES],
    digest_bytes: usize,
    digest_arrived: usize,
}

impl Intake {
    /// Header of the current PDU, or of the last one.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Takes the rest of a header from `bytes`. Returns the header once it is complete.
    pub(crate) fn take_header(
        &mut self,
        bytes: &mut &[u8],
        framing: Framing,
    ) -> Result<Option<(Frame, Header)>, Malformed> {
        if std::mem::take(&mut self.is_header_whole) {
            self.header.clear();
        }
        self.fill(bytes, COMMON_BYTES);
        let Some(common) = self.header.first_chunk() else { return Ok(None) };
        let frame = Frame::decode(common, framing)?;
        self.fill(bytes, frame.header_bytes);
        if self.header.len() < frame.header_bytes {
            return Ok(None);
        }
        self.is_header_whole = true;
        let header = Header::decode(&frame, &self.header)?;
        Ok(Some((frame, header)))
    }

    fn fill(&mut self, bytes: &mut &[u8], length: usize) {
        let count = length.saturating_sub(self.header.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(count);
        self.header.extend_from_slice(first);
        *bytes = rest;
    }

    /// Sets the body that arrives next.
    pub(crate) fn expect(&mut self, body: Body) {
        self.body = Some(body);
    }

    /// Memory into which the next bytes can be received directly; empty if they must be examined
    /// first.
    pub(crate) fn target(&mut self) -> &mut [u8] {
        match &mut self.body {
            Some(body) if body.padding == 0 => body.target(),
            _ => &mut [],
        }
    }

    /// Records that `count` bytes were received into the target.
    pub(crate) fn advance(&mut self, count: usize) {
        if let Some(body) = &mut self.body {
            body.arrived += count;
        }
    }

    /// Takes more bytes of the body. Returns the body once it is complete.
    pub(crate) fn take_body(&mut self, bytes: &mut &[u8]) -> Option<Body> {
        let body = self.body.as_mut()?;
        body.take(bytes);
        if body.is_whole() { self.body.take() } else { None }
    }

    /// Whether the rest of a body comes before the next header.
    pub(crate) fn is_in_body(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the requested data that were arriving when the connection ended.
    pub(crate) fn abandon(&mut self) -> Option<Awaited> {
        match self.body.take()?.place {
            Place::Transfer(awaited) => Some(awaited),
            Place::Capsule(..) => None,
        }
    }
}

impl Body {
    /// Body of the PDU with that frame. Its data go to `place` at offset `start`, where there must
    /// be room for them.
    pub(crate) fn new(frame: &Frame, place: Place, start: usize) -> Body {
        Body {
            padding: frame.data_at - frame.header_bytes,
            place,
            start,
            length: frame.data_bytes,
            arrived: 0,
            digest: [0; DIGEST_BYTES],
            digest_bytes: if frame.has_data_digest { DIGEST_BYTES } else { 0 },
            digest_arrived: 0,
        }
    }

    /// Returns the place, and whether the data match their digest.
    pub(crate) fn end(self) -> (Place, bool) {
        let data = &self.place.bytes()[self.start..self.start + self.length];
        let is_intact =
            self.digest_bytes == 0 || checksum::crc32c(0, data).to_le_bytes() == self.digest;
        (self.place, is_intact)
    }

    fn target(&mut self) -> &mut [u8] {
        let (from, to) = (self.start + self.arrived, self.start + self.length);
        &mut self.place.bytes_mut()[from..to]
    }

    fn take(&mut self, bytes: &mut &[u8]) {
        let skipped = split(bytes, self.padding);
        self.padding -= skipped.len();
        let data = split(bytes, self.length - self.arrived);
        self.target()[..data.len()].copy_from_slice(data);
        self.arrived += data.len();
        let digest = split(bytes, self.digest_bytes - self.digest_arrived);
        self.digest[self.digest_arrived..][..digest.len()].copy_from_slice(digest);
        self.digest_arrived += digest.len();
    }

    fn is_whole(&self) -> bool {
        self.padding == 0 && self.arrived == self.length && self.digest_arrived == self.digest_bytes
    }
}

impl Place {
    fn bytes(&self) -> &[u8] {
        match self {
            Place::Capsule(_, data) => data,
            Place::Transfer(awaited) => &awaited.buffer,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Place::Capsule(_, data) => data,
            Place::Transfer(awaited) => &mut awaited.buffer,
        }
    }
}

/// Takes up to `most` bytes from the beginning.
fn split<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    first
}

/// Splits off a whole body: returns the data, whether they match their digest, and the bytes
/// behind. `None`: the body is not complete.
pub(crate) fn whole<'a>(frame: &Frame, bytes: &'a [u8]) -> Option<(&'a [u8], bool, &'a [u8])> {
    let data_at = frame.data_at - frame.header_bytes;
    let (data, rest) = bytes.get(data_at..)?.split_at_checked(frame.data_bytes)?;
    if !frame.has_data_digest {
        return Some((data, true, rest));
    }
    let (digest, rest) = rest.split_at_checked(DIGEST_BYTES)?;
    Some((data, digest == checksum::crc32c(0, data).to_le_bytes(), rest))
}
