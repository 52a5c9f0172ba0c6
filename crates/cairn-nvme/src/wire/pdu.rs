//! PDUs of NVMe/TCP (TCP 3.6.2): their lengths, their headers, and what follows the header.
//!
//! ```text
//! common header (8) | specific header | header digest | padding | data | data digest
//! └──────── HLEN ───────────────────┘                 PDO┘
//! └──────────────────────────── PLEN ───────────────────────────────────────────────┘
//! ```
//! Invariant: `Frame::decode` accepts eight bytes only if their lengths are consistent with each
//! other, with the kind of PDU and with the terms of the connection. A reader that follows a frame
//! therefore never reads past its end.
//!
//! Does not know which PDU is expected when, or which command it belongs to.

use cairn_platform::checksum;

use super::{Completion, Entry, array_at, put, u16_at, u32_at};

/// Length of the common header (CH, TCP figure 19), bytes.
pub const COMMON_BYTES: usize = 8;
/// Length of a header or data digest (HDGST, DDGST), a CRC32C, bytes.
pub const DIGEST_BYTES: usize = 4;
/// Longest header of a PDU including its digest, bytes: that of ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;
/// Most bytes before the data of a PDU: header and digest of a command, 76 bytes, padded to an
/// alignment of 72.
pub const START_BYTES_MAX: usize = 144;
/// Most bytes of an offending header in a terminate request (TCP 3.5).
pub const TERMINATE_DATA_BYTES_MAX: usize = 128;
/// Least data per PDU that a controller must accept (MAXH2CDATA, TCP figure 21), bytes.
pub const HOST_DATA_BYTES_MIN: u32 = 4096;
/// Most data in a command capsule of an admin queue, bytes.
pub const ADMIN_CAPSULE_DATA_BYTES: usize = 8192;

const HEADER_DIGEST_FLAG: u8 = 1 << 0;
const DATA_DIGEST_FLAG: u8 = 1 << 1;
const LAST_FLAG: u8 = 1 << 2;
const SUCCESS_FLAG: u8 = 1 << 3;

// Offsets of fields that are reported in errors.
const AT_TYPE: u32 = 0;
const AT_FLAGS: u32 = 1;
const AT_HLEN: u32 = 2;
const AT_PDO: u32 = 3;
const AT_PLEN: u32 = 4;
const AT_PFV: u32 = 8;
const AT_PDA: u32 = 10;
const AT_MAXIMUM: u32 = 12;
const AT_DATAO: u32 = 12;
const AT_DATAL: u32 = 16;

/// PDU-Type (TCP figure 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// ICReq.
    InitializeRequest = 0,
    /// ICResp.
    InitializeResponse = 1,
    /// H2CTermReq.
    HostTerminate = 2,
    /// C2HTermReq.
    ControllerTerminate = 3,
    /// CapsuleCmd.
    Command = 4,
    /// CapsuleResp.
    Response = 5,
    /// H2CData.
    HostData = 6,
    /// C2HData.
    ControllerData = 7,
    /// R2T.
    ReadyToTransfer = 9,
}

impl Kind {
    fn decode(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [
            InitializeRequest,
            InitializeResponse,
            HostTerminate,
            ControllerTerminate,
            Command,
            Response,
            HostData,
            ControllerData,
            ReadyToTransfer,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// HLEN. Each kind has a fixed one.
    fn header_bytes(self) -> usize {
        match self {
            Kind::InitializeRequest | Kind::InitializeResponse => 128,
            Kind::Command => 72,
            _ => 24,
        }
    }

    /// Whether agreed digests protect it. They protect neither initialization nor terminate
    /// requests.
    fn has_digests(self) -> bool {
        !matches!(self, Kind::InitializeRequest | Kind::InitializeResponse) && !self.is_terminate()
    }

    fn is_terminate(self) -> bool {
        matches!(self, Kind::HostTerminate | Kind::ControllerTerminate)
    }

    fn may_carry_data(self) -> bool {
        matches!(self, Kind::Command | Kind::HostData | Kind::ControllerData)
    }
}

/// Terms for the PDUs of one direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Whether a digest follows every header.
    pub header_digest: bool,
    /// Whether a digest follows all data.
    pub data_digest: bool,
    /// PDO is a multiple of this: 4 to 128, itself a multiple of 4.
    pub data_alignment: u8,
}

impl Framing {
    /// Terms before anything is agreed on.
    pub const PLAIN: Framing =
        Framing { header_digest: false, data_digest: false, data_alignment: 4 };
}

/// Fatal error of a connection (FES and FEI, TCP figures 22 and 23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Invalid header field at that offset.
    HeaderField(u32),
    /// A PDU that may not come at this point.
    Sequence,
    /// Wrong header digest. Holds the digest that was received.
    HeaderDigest(u32),
    /// Data outside of the range of a command or an R2T.
    OutOfRange,
    /// More R2T, or more data in a PDU, than the receiver supports.
    LimitExceeded,
    /// Unsupported parameter at that offset.
    Unsupported(u32),
}

impl Fault {
    /// Encodes FES and FEI.
    pub fn encode(self) -> (u16, u32) {
        match self {
            Fault::HeaderField(offset) => (1, offset),
            Fault::Sequence => (2, 0),
            Fault::HeaderDigest(digest) => (3, digest),
            Fault::OutOfRange => (4, 0),
            Fault::LimitExceeded => (5, 0),
            Fault::Unsupported(offset) => (6, offset),
        }
    }
}

/// A PDU that violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// Error for the peer.
    pub fault: Fault,
    /// Text for people, as in "the peer has sent …".
    pub what: &'static str,
}

fn field(offset: u32, what: &'static str) -> Malformed {
    Malformed { fault: Fault::HeaderField(offset), what }
}

fn check(holds: bool, offset: u32, what: &'static str) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(field(offset, what)) }
}

/// Layout of a PDU, derived from its common header alone. All lengths are consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Kind of the PDU.
    pub kind: Kind,
    /// FLAGS.
    flags: u8,
    /// Length of the header with its digest, bytes.
    pub header_bytes: usize,
    /// Offset of the data; without data, the end of the header.
    pub data_at: usize,
    /// Length of the data without their digest, bytes.
    pub data_bytes: usize,
    /// Whether a digest follows the data.
    pub has_data_digest: bool,
}

impl Frame {
    /// Decodes a common header under the terms of the connection.
    pub fn decode(common: &[u8; COMMON_BYTES], framing: Framing) -> Result<Frame, Malformed> {
        let [byte, flags, header_bytes, data_at, ..] = *common;
        let (header_bytes, data_at) = (usize::from(header_bytes), usize::from(data_at));
        let bytes = u32_at(common, AT_PLEN as usize) as usize;
        let kind = Kind::decode(byte).ok_or(field(AT_TYPE, "a PDU of an unknown type"))?;
        check(header_bytes == kind.header_bytes(), AT_HLEN, "a PDU with a wrong HLEN")?;
        if kind.is_terminate() {
            return Frame::terminate(kind, bytes);
        }
        let has_header_digest = framing.header_digest && kind.has_digests();
        let header_bytes = header_bytes + if has_header_digest { DIGEST_BYTES } else { 0 };
        check(bytes >= header_bytes, AT_PLEN, "a PDU with a PLEN shorter than its header")?;
        let is_flagged = |flag| flags & flag != 0 && kind.has_digests();
        let agreed = "a PDU with a digest flag other than agreed on";
        check(is_flagged(HEADER_DIGEST_FLAG) == has_header_digest, AT_FLAGS, agreed)?;
        if bytes == header_bytes || !kind.may_carry_data() {
            check(bytes == header_bytes, AT_PLEN, "a PDU with a PLEN longer than its header")?;
            check(
                matches!(kind, Kind::Command) || !kind.may_carry_data(),
                AT_PLEN,
                "a data PDU without data",
            )?;
            let (data_at, data_bytes, has_data_digest) = (header_bytes, 0, false);
            return Ok(Frame { kind, flags, header_bytes, data_at, data_bytes, has_data_digest });
        }
        check(is_flagged(DATA_DIGEST_FLAG) == framing.data_digest, AT_FLAGS, agreed)?;
        let is_aligned = data_at % usize::from(framing.data_alignment) == 0;
        check(data_at >= header_bytes && is_aligned, AT_PDO, "a PDU with a wrong PDO")?;
        let digest_bytes = if framing.data_digest { DIGEST_BYTES } else { 0 };
        let data_bytes = bytes.checked_sub(data_at + digest_bytes).filter(|&bytes| bytes > 0);
        let data_bytes = data_bytes.ok_or(field(AT_PLEN, "a PDU with a PLEN without its data"))?;
        let has_data_digest = framing.data_digest;
        Ok(Frame { kind, flags, header_bytes, data_at, data_bytes, has_data_digest })
    }

    /// Layout of a terminate request. What follows its header counts as data; the header does not
    /// describe it.
    fn terminate(kind: Kind, bytes: usize) -> Result<Frame, Malformed> {
        let header_bytes = kind.header_bytes();
        let range = header_bytes..=header_bytes + TERMINATE_DATA_BYTES_MAX;
        check(range.contains(&bytes), AT_PLEN, "a terminate request with a wrong PLEN")?;
        Ok(Frame {
            kind,
            flags: 0,
            header_bytes,
            data_at: header_bytes,
            data_bytes: bytes - header_bytes,
            has_data_digest: false,
        })
    }
}

/// ICReq (TCP figure 20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitializeRequest {
    /// HPDA: alignment of data that the host wants, bytes.
    pub data_alignment: u8,
    /// DGST: whether the host wants header digests.
    pub header_digest: bool,
    /// DGST: whether the host wants data digests.
    pub data_digest: bool,
    /// MAXR2T: most R2T outstanding per command, at least 1.
    pub transfers_max: u64,
}

/// ICResp (TCP figure 21).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitializeResponse {
    /// CPDA: alignment of data that the controller wants, bytes.
    pub data_alignment: u8,
    /// DGST: whether header digests are used.
    pub header_digest: bool,
    /// DGST: whether data digests are used.
    pub data_digest: bool,
    /// MAXH2CDATA: most data in one H2CData PDU, bytes.
    pub data_bytes_max: u32,
}

/// H2CTermReq and C2HTermReq (TCP figures 22 and 23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// FES.
    pub status: u16,
    /// FEI.
    pub information: u32,
}

/// Range of a command's data that is transferred, or may be (TCP figures 26 to 28). Offset and
/// length are multiples of 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// CCCID.
    pub command_id: u16,
    /// TTAG; 0 in C2HData.
    pub tag: u16,
    /// DATAO or R2TO: offset in the command's data.
    pub offset: u32,
    /// DATAL or R2TL.
    pub length: u32,
}

/// The header of a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "headers are made and read in place, never kept")]
pub enum Header {
    /// ICReq: the first PDU of a connection.
    InitializeRequest(InitializeRequest),
    /// ICResp: the answer to ICReq.
    InitializeResponse(InitializeResponse),
    /// H2CTermReq: the host's last PDU on a connection.
    HostTerminate(Terminate),
    /// C2HTermReq: the controller's last PDU on a connection.
    ControllerTerminate(Terminate),
    /// A command, and its data if they are in the capsule (TCP figure 24).
    Command(Entry),
    /// Completion of a command (TCP figure 25).
    Response(Completion),
    /// Data that an R2T asked for.
    HostData {
        /// Range of the data.
        transfer: Transfer,
        /// LAST_PDU: the last data for this R2T.
        is_last: bool,
    },
    /// Data that a command returns.
    ControllerData {
        /// Range of the data.
        transfer: Transfer,
        /// LAST_PDU: the last data of this command.
        is_last: bool,
        /// SUCCESS: this PDU also completes the command.
        is_success: bool,
    },
    /// R2T: the host may send this range.
    ReadyToTransfer(Transfer),
}

impl Header {
    /// Decodes the header of `frame`. `bytes` are its `header_bytes` bytes, digest included.
    pub fn decode(frame: &Frame, bytes: &[u8]) -> Result<Header, Malformed> {
        assert_eq!(bytes.len(), frame.header_bytes, "a frame says how long its header is");
        let plain = frame.kind.header_bytes();
        if frame.header_bytes > plain {
            let received = u32_at(bytes, plain);
            if received != checksum::crc32c(0, &bytes[..plain]) {
                let what = "a header whose digest is wrong";
                return Err(Malformed { fault: Fault::HeaderDigest(received), what });
            }
        }
        let (is_last, is_success) = (frame.flags & LAST_FLAG != 0, frame.flags & SUCCESS_FLAG != 0);
        Ok(match frame.kind {
            Kind::InitializeRequest => Header::InitializeRequest(initialize_request(bytes)?),
            Kind::InitializeResponse => Header::InitializeResponse(initialize_response(bytes)?),
            Kind::HostTerminate => Header::HostTerminate(terminate(bytes)),
            Kind::ControllerTerminate => Header::ControllerTerminate(terminate(bytes)),
            Kind::Command => Header::Command(Entry(array_at(bytes, COMMON_BYTES))),
            Kind::Response => Header::Response(Completion::decode(&array_at(bytes, COMMON_BYTES))),
            Kind::HostData => {
                Header::HostData { transfer: carried(bytes, frame.data_bytes)?, is_last }
            }
            Kind::ControllerData => {
                check(is_last || !is_success, AT_FLAGS, "SUCCESS before the last data")?;
                let transfer = carried(bytes, frame.data_bytes)?;
                Header::ControllerData { transfer, is_last, is_success }
            }
            Kind::ReadyToTransfer => Header::ReadyToTransfer(transfer(bytes)?),
        })
    }

    /// Encodes everything that precedes `data_bytes` of data. Only commands, data PDUs and
    /// terminate requests carry data; those of a terminate request are the offending header.
    pub fn encode(&self, data_bytes: usize, framing: Framing) -> Start {
        let kind = self.kind();
        let may_carry_data = kind.may_carry_data() || kind.is_terminate();
        assert!(data_bytes == 0 || may_carry_data, "{kind:?} carries no data");
        let framing = if kind.has_digests() { framing } else { Framing::PLAIN };
        let mut bytes = [0; START_BYTES_MAX];
        let mut flags = self.encode_specific(&mut bytes);
        let mut length = kind.header_bytes();
        if framing.header_digest {
            (flags, length) = (flags | HEADER_DIGEST_FLAG, length + DIGEST_BYTES);
        }
        let mut total = length;
        if data_bytes > 0 {
            length = length.next_multiple_of(usize::from(framing.data_alignment));
            bytes[AT_PDO as usize] = length as u8;
            total = length + data_bytes;
            if framing.data_digest {
                (flags, total) = (flags | DATA_DIGEST_FLAG, total + DIGEST_BYTES);
            }
        }
        let total = u32::try_from(total).expect("data of a PDU are less than 4 GiB");
        (bytes[0], bytes[1], bytes[2]) = (kind as u8, flags, kind.header_bytes() as u8);
        put(&mut bytes, AT_PLEN as usize, &total.to_le_bytes());
        if framing.header_digest {
            let digest = checksum::crc32c(0, &bytes[..kind.header_bytes()]);
            put(&mut bytes, kind.header_bytes(), &digest.to_le_bytes());
        }
        Start { bytes, length: length as u8 }
    }

    fn kind(&self) -> Kind {
        match self {
            Header::InitializeRequest(_) => Kind::InitializeRequest,
            Header::InitializeResponse(_) => Kind::InitializeResponse,
            Header::HostTerminate(_) => Kind::HostTerminate,
            Header::ControllerTerminate(_) => Kind::ControllerTerminate,
            Header::Command(_) => Kind::Command,
            Header::Response(_) => Kind::Response,
            Header::HostData { .. } => Kind::HostData,
            Header::ControllerData { .. } => Kind::ControllerData,
            Header::ReadyToTransfer(_) => Kind::ReadyToTransfer,
        }
    }

    /// Writes what follows the common header. Returns the flags of this kind of PDU.
    fn encode_specific(&self, bytes: &mut [u8; START_BYTES_MAX]) -> u8 {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        match *self {
            Header::InitializeRequest(request) => {
                bytes[10] = request.data_alignment / 4 - 1;
                bytes[11] = digests(request.header_digest, request.data_digest);
                let most = request.transfers_max.clamp(1, 1 << 32) - 1;
                put(bytes, AT_MAXIMUM as usize, &(most as u32).to_le_bytes());
                0
            }
            Header::InitializeResponse(response) => {
                bytes[10] = response.data_alignment / 4 - 1;
                bytes[11] = digests(response.header_digest, response.data_digest);
                put(bytes, AT_MAXIMUM as usize, &response.data_bytes_max.to_le_bytes());
                0
            }
            Header::HostTerminate(terminate) | Header::ControllerTerminate(terminate) => {
                put(bytes, 8, &terminate.status.to_le_bytes());
                put(bytes, 10, &terminate.information.to_le_bytes());
                0
            }
            Header::Command(entry) => {
                put(bytes, COMMON_BYTES, &entry.0);
                0
            }
            Header::Response(completion) => {
                put(bytes, COMMON_BYTES, &completion.encode());
                0
            }
            Header::HostData { transfer, is_last } => {
                put_transfer(bytes, &transfer);
                flag(is_last, LAST_FLAG)
            }
            Header::ControllerData { transfer, is_last, is_success } => {
                put_transfer(bytes, &transfer);
                flag(is_last, LAST_FLAG) | flag(is_success, SUCCESS_FLAG)
            }
            Header::ReadyToTransfer(transfer) => {
                put_transfer(bytes, &transfer);
                0
            }
        }
    }
}

/// Bytes that precede the data of a PDU: header, digest and padding.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    bytes: [u8; START_BYTES_MAX],
    length: u8,
}

impl Start {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

fn digests(header: bool, data: bool) -> u8 {
    u8::from(header) | u8::from(data) << 1
}

fn alignment(bytes: &[u8]) -> Result<u8, Malformed> {
    let dwords = bytes[AT_PDA as usize];
    check(dwords < 32, AT_PDA, "an impossible alignment of data")?;
    Ok((dwords + 1) * 4)
}

fn check_version(bytes: &[u8]) -> Result<(), Malformed> {
    match u16_at(bytes, AT_PFV as usize) {
        0 => Ok(()),
        _ => Err(Malformed {
            fault: Fault::Unsupported(AT_PFV),
            what: "PDUs of an unknown format version",
        }),
    }
}

fn initialize_request(bytes: &[u8]) -> Result<InitializeRequest, Malformed> {
    check_version(bytes)?;
    Ok(InitializeRequest {
        data_alignment: alignment(bytes)?,
        header_digest: bytes[11] & 1 != 0,
        data_digest: bytes[11] & 2 != 0,
        transfers_max: u64::from(u32_at(bytes, AT_MAXIMUM as usize)) + 1,
    })
}

fn initialize_response(bytes: &[u8]) -> Result<InitializeResponse, Malformed> {
    check_version(bytes)?;
    let data_bytes_max = u32_at(bytes, AT_MAXIMUM as usize);
    let is_usable = data_bytes_max >= HOST_DATA_BYTES_MIN && data_bytes_max % 4 == 0;
    check(is_usable, AT_MAXIMUM, "a MAXH2CDATA that is not a multiple of 4, or less than 4096")?;
    Ok(InitializeResponse {
        data_alignment: alignment(bytes)?,
        header_digest: bytes[11] & 1 != 0,
        data_digest: bytes[11] & 2 != 0,
        data_bytes_max,
    })
}

fn terminate(bytes: &[u8]) -> Terminate {
    Terminate { status: u16_at(bytes, 8), information: u32_at(bytes, 10) }
}

fn transfer(bytes: &[u8]) -> Result<Transfer, Malformed> {
    let transfer = Transfer {
        command_id: u16_at(bytes, 8),
        tag: u16_at(bytes, 10),
        offset: u32_at(bytes, AT_DATAO as usize),
        length: u32_at(bytes, AT_DATAL as usize),
    };
    check(transfer.offset % 4 == 0, AT_DATAO, "data at an offset that is not a multiple of 4")?;
    let is_whole = transfer.length % 4 == 0 && transfer.length > 0;
    check(is_whole, AT_DATAL, "a length of data that is 0 or not a multiple of 4")?;
    Ok(transfer)
}

/// Decodes the transfer of a PDU that carries its data. Errors: also if its length is not
/// `data_bytes`.
fn carried(bytes: &[u8], data_bytes: usize) -> Result<Transfer, Malformed> {
    let transfer = transfer(bytes)?;
    let is_same = transfer.length as usize == data_bytes;
    check(is_same, AT_DATAL, "a data PDU whose DATAL contradicts its PLEN")?;
    Ok(transfer)
}

fn put_transfer(bytes: &mut [u8], transfer: &Transfer) {
    put(bytes, 8, &transfer.command_id.to_le_bytes());
    put(bytes, 10, &transfer.tag.to_le_bytes());
    put(bytes, AT_DATAO as usize, &transfer.offset.to_le_bytes());
    put(bytes, AT_DATAL as usize, &transfer.length.to_le_bytes());
}

#[cfg(test)]
mod tests;
