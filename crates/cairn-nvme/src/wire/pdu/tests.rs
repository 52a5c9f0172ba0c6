use super::*;
use crate::wire::Command;

const ALIGNED: Framing = Framing { header_digest: true, data_digest: true, data_alignment: 128 };

fn transfer() -> Transfer {
    Transfer { command_id: 0x1234, tag: 0x5678, offset: 4096, length: 512 }
}

/// One header of each kind, with the length of its data.
fn samples() -> Vec<(Header, usize)> {
    let request = InitializeRequest {
        data_alignment: 4,
        header_digest: true,
        data_digest: false,
        transfers_max: 1 << 32,
    };
    let response = InitializeResponse {
        data_alignment: 128,
        header_digest: false,
        data_digest: true,
        data_bytes_max: 1 << 17,
    };
    let terminate = Terminate { status: 1, information: 7 };
    let entry = Command::KeepAlive.encode();
    vec![
        (Header::InitializeRequest(request), 0),
        (Header::InitializeResponse(response), 0),
        (Header::HostTerminate(terminate), 0),
        (Header::ControllerTerminate(terminate), TERMINATE_DATA_BYTES_MAX),
        (Header::Command(entry), 0),
        (Header::Command(entry), 512),
        (Header::Response(Completion { result: 1, command_id: 2, ..Default::default() }), 0),
        (Header::HostData { transfer: transfer(), is_last: true }, 512),
        (Header::ControllerData { transfer: transfer(), is_last: true, is_success: true }, 512),
        (Header::ReadyToTransfer(transfer()), 0),
    ]
}

fn decode(start: &[u8], framing: Framing) -> Result<(Frame, Header), Malformed> {
    let frame = Frame::decode(start.first_chunk().unwrap(), framing)?;
    let header = Header::decode(&frame, &start[..frame.header_bytes])?;
    Ok((frame, header))
}

#[test]
fn every_header_is_read_back_as_it_was_written() {
    for framing in [Framing::PLAIN, ALIGNED] {
        for (header, data_bytes) in samples() {
            let start = header.encode(data_bytes, framing);
            let (frame, again) = decode(start.bytes(), framing).unwrap();
            assert_eq!((again, frame.data_bytes), (header, data_bytes));
            assert_eq!(frame.data_at, start.bytes().len());
            let is_protected = framing.data_digest && data_bytes > 0 && frame.kind.has_digests();
            assert_eq!(frame.has_data_digest, is_protected);
            let total = u32_at(start.bytes(), 4) as usize;
            assert_eq!(total, frame.data_at + data_bytes + 4 * usize::from(frame.has_data_digest));
        }
    }
}

/// Mechanism: 128 bytes were reserved for what precedes data, but a header of 76 bytes with an
/// alignment of 72 needs 144.
///
/// Consequence: a controller that demanded such an alignment made every write panic.
///
/// Fix: the limit covers all alignments.
#[test]
fn data_of_every_alignment_have_room_for_what_precedes_them() {
    let mut longest = 0;
    for data_alignment in (4..=128).step_by(4) {
        for header_digest in [false, true] {
            let framing = Framing { header_digest, data_digest: false, data_alignment };
            let headers = samples().into_iter().filter(|(_, data_bytes)| *data_bytes > 0);
            for (header, data_bytes) in headers {
                let start = header.encode(data_bytes, framing);
                longest = longest.max(start.bytes().len());
                let (frame, read) = decode(start.bytes(), framing).expect("it is sound");
                assert_eq!((read, frame.data_bytes), (header, data_bytes), "{framing:?}");
            }
        }
    }
    assert_eq!(longest, START_BYTES_MAX);
}

#[test]
fn bytes_are_those_of_the_specification() {
    let start = Header::ReadyToTransfer(transfer()).encode(0, Framing::PLAIN);
    let expected = [
        [9, 0, 24, 0, 24, 0, 0, 0],
        [0x34, 0x12, 0x78, 0x56, 0, 16, 0, 0],
        [0, 2, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(start.bytes(), expected.concat());
    let data = Header::HostData { transfer: transfer(), is_last: true };
    let start = data.encode(512, ALIGNED);
    assert_eq!(&start.bytes()[..8], [6, 7, 24, 128, 132, 2, 0, 0]);
    assert_eq!(start.bytes().len(), 128);
}

#[test]
fn any_changed_bit_of_a_header_is_found_by_its_digest() {
    let start = Header::ReadyToTransfer(transfer()).encode(0, ALIGNED);
    for bit in 0..start.bytes().len() * 8 {
        let mut bytes = start.bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_whole(&bytes, ALIGNED).is_err(), "{bit}");
    }
}

/// As `decode`, but a header that is longer than `bytes` is an error as well.
fn decode_whole(bytes: &[u8], framing: Framing) -> Result<Header, Option<Malformed>> {
    let frame = Frame::decode(bytes.first_chunk().unwrap(), framing).map_err(Some)?;
    let header = bytes.get(..frame.header_bytes).ok_or(None)?;
    Header::decode(&frame, header).map_err(Some)
}

#[test]
fn inconsistent_common_headers_are_refused_at_the_field_that_is_wrong() {
    let cases: [(&str, [u8; 8], Framing, u32); 12] = [
        ("unknown type", [8, 0, 24, 0, 24, 0, 0, 0], Framing::PLAIN, AT_TYPE),
        ("wrong HLEN", [5, 0, 25, 0, 25, 0, 0, 0], Framing::PLAIN, AT_HLEN),
        ("shorter than its header", [5, 0, 24, 0, 23, 0, 0, 0], Framing::PLAIN, AT_PLEN),
        ("data that it cannot have", [5, 0, 24, 24, 28, 0, 0, 0], Framing::PLAIN, AT_PLEN),
        ("digest not agreed on", [5, 1, 24, 0, 24, 0, 0, 0], Framing::PLAIN, AT_FLAGS),
        ("no digest", [5, 0, 24, 0, 28, 0, 0, 0], ALIGNED, AT_FLAGS),
        ("no data", [7, 4, 24, 24, 24, 0, 0, 0], Framing::PLAIN, AT_PLEN),
        ("data in the header", [7, 4, 24, 20, 28, 0, 0, 0], Framing::PLAIN, AT_PDO),
        ("data past the end", [7, 4, 24, 32, 28, 0, 0, 0], Framing::PLAIN, AT_PLEN),
        ("data misaligned", [7, 7, 24, 32, 0, 1, 0, 0], ALIGNED, AT_PDO),
        ("only a digest of data", [7, 7, 24, 128, 132, 0, 0, 0], ALIGNED, AT_PLEN),
        ("endless terminate request", [3, 0, 24, 0, 153, 0, 0, 0], ALIGNED, AT_PLEN),
    ];
    for (name, bytes, framing, offset) in cases {
        let malformed = Frame::decode(&bytes, framing).expect_err(name);
        assert_eq!(malformed.fault, Fault::HeaderField(offset), "{name}");
    }
}

#[test]
fn fields_that_contradict_the_frame_are_refused() {
    let data = Header::ControllerData { transfer: transfer(), is_last: true, is_success: true };
    let good = data.encode(512, Framing::PLAIN);
    // DATAL, DATAO not a multiple of 4, SUCCESS without LAST_PDU.
    for (at, byte, offset) in [(16, 4, AT_DATAL), (12, 2, AT_DATAO), (1, 1 << 3, AT_FLAGS)] {
        let mut bytes = good.bytes().to_vec();
        bytes[at] = byte;
        let malformed = decode(&bytes, Framing::PLAIN).unwrap_err();
        assert_eq!(malformed.fault, Fault::HeaderField(offset));
    }
}

#[test]
fn initial_pdus_with_impossible_terms_are_refused() {
    let [(request, _), (response, _), ..] = samples()[..] else { panic!() };
    // Version, alignment; of the response also MAXH2CDATA.
    let changes = [
        (request, 8, 1),
        (request, 10, 32),
        (response, 8, 1),
        (response, 12, 2),
        (response, 14, 0),
    ];
    for (header, at, byte) in changes {
        let mut bytes = header.encode(0, Framing::PLAIN).bytes().to_vec();
        bytes[at] = byte;
        assert!(decode(&bytes, Framing::PLAIN).is_err(), "{at}");
    }
}
