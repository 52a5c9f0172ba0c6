//! PDUs of a host: which ones are valid at this point, and what each begins.

use cairn_nvme::wire::pdu::{
    ADMIN_CAPSULE_DATA_BYTES, Fault, Frame, Framing, Header, InitializeRequest, InitializeResponse,
};
use cairn_nvme::wire::{Entry, Status};

use super::{Connection, Data, End, Role, malformed};
use crate::connection::intake::{Body, Place, whole};
use crate::mailbox::LoopContext;

impl Connection {
    /// Handles received bytes, PDU after PDU.
    pub(super) fn take(&mut self, mut bytes: &[u8], hands: &mut LoopContext) -> Result<(), End> {
        loop {
            let before = bytes.len();
            let whole = self.intake.take_body(&mut bytes);
            self.transfers.arrived(before - bytes.len(), hands.now);
            if let Some(body) = whole {
                self.take_whole_body(body, hands)?;
            }
            if self.intake.is_in_body() || bytes.is_empty() {
                return Ok(());
            }
            let pdu = self.intake.take_header(&mut bytes, self.incoming)?;
            let Some((frame, header)) = pdu else { return Ok(()) };
            bytes = self.take_pdu(&frame, header, bytes, hands)?;
        }
    }

    /// Handles the PDU with that header. Returns the bytes behind it.
    fn take_pdu<'a>(
        &mut self,
        frame: &Frame,
        header: Header,
        bytes: &'a [u8],
        hands: &mut LoopContext,
    ) -> Result<&'a [u8], End> {
        match header {
            Header::InitializeRequest(request) if !self.is_initialized => self.initialize(&request),
            Header::HostTerminate(_) => return Err(End::Gone),
            _ if !self.is_initialized => {
                let what = "a PDU before the connection was initialized";
                return Err(malformed(Fault::Sequence, what));
            }
            Header::Command(entry) => return self.take_capsule(frame, entry, bytes, hands),
            Header::HostData { transfer, is_last } => {
                let bytes_max = self.limits().host_data_bytes;
                let (awaited, start) = self.transfers.begin(&transfer, is_last, bytes_max)?;
                self.intake.expect(Body::new(frame, Place::Transfer(awaited), start));
            }
            _ => return Err(malformed(Fault::Sequence, "a PDU that cannot come now")),
        }
        Ok(bytes)
    }

    fn initialize(&mut self, request: &InitializeRequest) {
        let response = InitializeResponse {
            data_alignment: Framing::PLAIN.data_alignment,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            data_bytes_max: self.limits().host_data_bytes,
        };
        self.say(&Header::InitializeResponse(response));
        let InitializeRequest { header_digest, data_digest, data_alignment, .. } = *request;
        self.incoming = Framing { header_digest, data_digest, ..Framing::PLAIN };
        self.outgoing = Framing { header_digest, data_digest, data_alignment };
        self.is_initialized = true;
    }

    fn take_capsule<'a>(
        &mut self,
        frame: &Frame,
        entry: Entry,
        bytes: &'a [u8],
        hands: &mut LoopContext,
    ) -> Result<&'a [u8], End> {
        let bytes_max = match self.role {
            Role::Io(..) => self.limits().capsule_data_bytes as usize,
            _ => ADMIN_CAPSULE_DATA_BYTES,
        };
        if frame.data_bytes > bytes_max {
            let what = "more data in a capsule than it may have";
            return Err(malformed(Fault::HeaderField(4), what));
        }
        if frame.data_bytes == 0 {
            self.begin(&entry, &[], true, hands)?;
        } else if let Some((data, is_intact, rest)) = whole(frame, bytes) {
            self.begin(&entry, data, is_intact, hands)?;
            return Ok(rest);
        } else {
            let place = Place::Capsule(entry, vec![0; frame.data_bytes]);
            self.intake.expect(Body::new(frame, place, 0));
        }
        Ok(bytes)
    }

    fn take_whole_body(&mut self, body: Body, hands: &mut LoopContext) -> Result<(), End> {
        match body.end() {
            (Place::Capsule(entry, data), is_intact) => self.begin(&entry, &data, is_intact, hands),
            (Place::Transfer(awaited), is_intact) => match self.transfers.end(awaited, is_intact) {
                None => Ok(()),
                Some((awaited, true)) => {
                    let data = Data::Received(awaited.buffer, awaited.length);
                    self.execute(&awaited.entry, &awaited.command, data, hands)?;
                    self.resume(hands)
                }
                Some((awaited, false)) => {
                    hands.pool.give(awaited.buffer);
                    self.answer(&awaited.entry, Err(Status::TRANSIENT_TRANSPORT));
                    self.resume(hands)
                }
            },
        }
    }
}
