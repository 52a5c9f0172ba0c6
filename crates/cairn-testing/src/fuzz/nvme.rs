//! Bytes that a peer sends over NVMe/TCP: PDUs on any connection, commands, pages.
//!
//! Invariant: whatever the decoder accepts is consistent, and decoding its encoding gives the same
//! value. The first byte of an input chooses the reader, the second the terms of the connection.

use cairn_nvme::wire::command::{Command, ENTRY_BYTES, Entry, QueueKind};
use cairn_nvme::wire::completion::Completion;
use cairn_nvme::wire::fabrics::{ConnectData, DiscoveryEntry, DiscoveryHead};
use cairn_nvme::wire::identify::{Controller, Namespace, decode_list};
use cairn_nvme::wire::pdu::{COMMON_BYTES, DIGEST_BYTES, Frame, Framing, Header};
use cairn_platform::checksum::crc32c;

/// Passes the input to the reader that its first byte chooses.
pub(super) fn run(input: &[u8]) {
    let [reader, terms, bytes @ ..] = input else { return };
    match reader % 5 {
        0 => read_pdus(bytes, framing(*terms)),
        1 => read_commands(bytes),
        2 => read_identity(bytes),
        3 => read_connect(bytes),
        _ => read_log(bytes),
    }
}

fn framing(terms: u8) -> Framing {
    let is = |bit: u8| terms & 1 << bit != 0;
    let data_alignment = ((terms >> 2) % 32 + 1) * 4;
    Framing { header_digest: is(0), data_digest: is(1), data_alignment }
}

/// Reads one PDU after the other, as a connection does.
fn read_pdus(mut bytes: &[u8], framing: Framing) {
    while let Some(common) = bytes.first_chunk::<COMMON_BYTES>() {
        let Ok(frame) = Frame::decode(common, framing) else { return };
        assert!(frame.header_bytes <= frame.data_at && frame.header_bytes >= COMMON_BYTES);
        let Some(start) = bytes.get(..frame.data_at) else { return };
        let mut start = start.to_vec();
        mend_digest(&frame, framing, &mut start);
        if let Ok(header) = Header::decode(&frame, &start[..frame.header_bytes]) {
            read_again(&header, &frame, framing);
        }
        let digest_bytes = if frame.has_data_digest { DIGEST_BYTES } else { 0 };
        let Some(rest) = bytes.get(frame.data_at + frame.data_bytes + digest_bytes..) else {
            return;
        };
        bytes = rest;
    }
}

/// Stores the correct digest behind a header, because a fuzzer would not find it.
fn mend_digest(frame: &Frame, framing: Framing, start: &mut [u8]) {
    if framing.header_digest && frame.header_bytes > DIGEST_BYTES {
        let (header, digest) =
            start[..frame.header_bytes].split_at_mut(frame.header_bytes - DIGEST_BYTES);
        digest.copy_from_slice(&crc32c(0, header).to_le_bytes());
    }
}

fn read_again(header: &Header, frame: &Frame, framing: Framing) {
    let start = header.encode(frame.data_bytes, framing);
    let common = start.bytes().first_chunk().expect("a PDU has a common header");
    let again = Frame::decode(common, framing).expect("what was written can be read");
    assert_eq!((again.kind, again.data_bytes), (frame.kind, frame.data_bytes));
    assert_eq!(again.data_at, start.bytes().len());
    let header_again = Header::decode(&again, &start.bytes()[..again.header_bytes]);
    assert_eq!(header_again.as_ref(), Ok(header));
    if let Header::Response(completion) = header {
        assert_eq!(Completion::decode(&completion.encode()), *completion);
    }
}

fn read_commands(bytes: &[u8]) {
    for entry in bytes.chunks_exact(ENTRY_BYTES) {
        let entry = Entry(entry.try_into().expect("a chunk of that length"));
        for queue in [QueueKind::Admin, QueueKind::Io] {
            let Ok(command) = Command::decode(&entry, queue) else { continue };
            assert_eq!(Command::decode(&command.encode(), queue), Ok(command));
            let (out, into) = (command.bytes_out(1 << 16), command.bytes_in(1 << 16));
            assert!(out == 0 || into == 0, "data go one way");
        }
        if let Ok(pointer) = entry.data_pointer() {
            let mut other = Command::KeepAlive.encode();
            other.set_data_pointer(pointer);
            assert_eq!(other.data_pointer(), Ok(pointer));
        }
    }
}

/// Returns two pages: one with the bytes at its start, one with the bytes from its middle on.
fn pages<const BYTES: usize>(bytes: &[u8]) -> [[u8; BYTES]; 2] {
    [0, BYTES / 2].map(|from| {
        let mut page = [0; BYTES];
        let length = bytes.len().min(BYTES - from);
        page[from..from + length].copy_from_slice(&bytes[..length]);
        page
    })
}

fn read_identity(bytes: &[u8]) {
    for page in pages(bytes) {
        if let Some(controller) = Controller::decode(&page) {
            // These fields are only displayed; no decision depends on them.
            let controller = Controller {
                serial: String::new(),
                model: String::new(),
                firmware: String::new(),
                keep_alive_ms: controller.keep_alive_ms,
                ..controller
            };
            assert_eq!(Controller::decode(&controller.encode()).as_ref(), Some(&controller));
        }
        if let Some(namespace) = Namespace::decode(&page) {
            assert_eq!(namespace.bytes() / namespace.block_bytes(), namespace.blocks);
            assert_eq!(Namespace::decode(&namespace.encode()), Some(namespace));
        }
        if let Some(numbers) = decode_list(&page) {
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}

fn read_connect(bytes: &[u8]) {
    for page in pages(bytes) {
        let Some(data) = ConnectData::decode(&page) else { continue };
        assert_eq!(ConnectData::decode(&data.encode()), Some(data));
    }
}

fn read_log(bytes: &[u8]) {
    for page in pages(bytes) {
        if let Some(head) = DiscoveryHead::decode(&page) {
            assert_eq!(DiscoveryHead::decode(&head.encode()), Some(head));
        }
        let Some(entry) = DiscoveryEntry::decode(&page) else { continue };
        assert_eq!(DiscoveryEntry::decode(&entry.encode()), Some(entry));
    }
}
