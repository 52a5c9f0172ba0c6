//! A controller that answers the initiator's commands with anything: pages that are nearly right,
//! results, refusals, unexpected events, and challenges.
//!
//! Must stay true, whatever it answers: the initiator accepts it or names the error. Its later
//! commands stay within what the controller reported. It trusts no controller that does not know
//! the secret.
//!
//! No answer is late, because there is no clock.

use cairn_nvme::auth::Host;
use cairn_nvme::controller::{Controller, Fabric, Settings, discover};
use cairn_nvme::crypto::Hash;
use cairn_nvme::queue::{Queue, Traits};
use cairn_nvme::secret::Secrets;
use cairn_nvme::transport::{CommandId, Data, Transport};
use cairn_nvme::wire::auth::{Content, Failure, Message};
use cairn_nvme::wire::command::QueueKind;
use cairn_nvme::wire::fabrics::{
    Capabilities, DiscoveryEntry, DiscoveryHead, FAMILY_IPV4, PROPERTY_STATUS, STATUS_READY,
    STATUS_SHUT_DOWN, SUBSYSTEM_NVM, TRANSPORT_TCP,
};
use cairn_nvme::wire::identify::{self, CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_NAMESPACE};
use cairn_nvme::wire::{Command, Completion, Entry, Nqn, Status};
use cairn_nvme::{Error, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::random::Random;

/// Number of polls after which a run ends, once its input is used up.
const ANSWERS_MAX: u32 = 512;
/// Only this many bytes of a page may be damaged.
const DAMAGED_BYTES_MAX: usize = 1024;
/// Size of each read and write, bytes.
const BYTES: usize = 16 << 10;

const HOST: &str = "nqn.2026-11.io.cairn:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.cairn:target";
const SECRETS: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:
DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

/// Plays the controller that the input describes.
pub(super) fn run(input: &[u8]) {
    let mut choices = Random::from_choices(input);
    let purpose = choices.below(4);
    let script = Rc::new(RefCell::new(Script { choices, answers: 0, impatience: 0, shape: None }));
    let settings = Settings { timeout: Duration::ZERO, ..Settings::new([7; 16]) };
    // Any error will do.
    let _ = match purpose {
        0 => believe(&mut script.borrow_mut().choices),
        1 => discover(Stage(script), &settings).map(drop),
        _ => use_controller(Stage(script), &settings),
    };
}

/// Connects, lists the namespaces, and uses the first one.
fn use_controller(stage: Stage, settings: &Settings) -> Result<()> {
    let script = Rc::clone(&stage.0);
    let subsystem = Nqn::new(SUBSYSTEM).expect("a name");
    let mut controller = Controller::connect(stage, &subsystem, settings)?;
    let numbers = controller.namespaces()?;
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order");
    // The initiator may have to reread what has changed; here it is unknown whether something has.
    let _ = controller.keep_alive()?;
    let mut queue = controller.queue(1)?;
    check_traits(queue.traits());
    let mut choices = script.borrow().choices.clone();
    use_queue(&mut queue, &mut choices)?;
    controller.shut_down()
}

fn check_traits(traits: &Traits) {
    let (most, block_bytes) = (traits.transfer_bytes_max, traits.shape.block_bytes());
    assert!(most >= block_bytes && most % block_bytes == 0, "commands carry whole blocks");
}

fn use_queue(queue: &mut Queue<Actor>, choices: &mut Random) -> Result<()> {
    let mut bytes = vec![1; BYTES];
    for _ in 0..8 {
        let offset = *choices.pick(&[0, 4096, 1 << 20, u64::MAX]);
        let length = *choices.pick(&[4096, BYTES, 512, 0]);
        match choices.below(6) {
            0 => queue.read(offset, &mut bytes[..length])?,
            1 => queue.write(offset, &bytes[..length])?,
            2 => queue.write_zeroes(offset, length as u64, true)?,
            3 => queue.discard(offset, length as u64)?,
            _ => queue.flush()?,
        }
    }
    Ok(())
}

/// Choices of the controller.
struct Script {
    choices: Random,
    answers: u32,
    /// Number of status reads answered with rubbish. The initiator sleeps after each.
    impatience: u32,
    /// Namespace as the initiator was told last.
    shape: Option<identify::Namespace>,
}

/// Fabric that connects every queue to an actor.
struct Stage(Rc<RefCell<Script>>);

/// The controller's end of a queue.
struct Actor {
    script: Rc<RefCell<Script>>,
    depth: usize,
    kind: QueueKind,
    pending: VecDeque<(u16, Entry, Data)>,
    next_id: u16,
}

impl Fabric for Stage {
    type Transport = Actor;

    fn connect(&self, queue: u16, depth: usize, _: usize, _: Instant) -> Result<Actor> {
        assert!(depth > 0, "a queue has room for a command");
        let kind = if queue == 0 { QueueKind::Admin } else { QueueKind::Io };
        let (script, pending) = (Rc::clone(&self.0), VecDeque::new());
        Ok(Actor { script, depth, kind, pending, next_id: 0 })
    }
}

impl Transport for Actor {
    fn depth(&self) -> usize {
        self.depth
    }

    fn under_way(&self) -> usize {
        self.pending.len()
    }

    unsafe fn submit(&mut self, entry: Entry, data: Data) -> Result<CommandId> {
        assert!(self.pending.len() < self.depth, "no more than there is room for");
        self.next_id = self.next_id.wrapping_add(1);
        self.pending.push_back((self.next_id, entry, data));
        Ok(CommandId(self.next_id))
    }

    fn poll(&mut self, _: Instant) -> Result<Option<Completion>> {
        let script = &mut *self.script.borrow_mut();
        script.answers += 1;
        if script.choices.is_used_up() && script.answers > ANSWERS_MAX {
            return Err(Error::Closed);
        }
        let (choices, pending) = (&mut script.choices, self.pending.len() as u64);
        let at = match choices.below(16) {
            _ if pending == 0 => return Ok(None),
            15 => return Err(Error::Closed),
            14 => return Ok(None),
            13 => choices.below(pending) as usize,
            // An event request completes only when an event happens, and none does.
            _ => match self.pending.iter().position(|(_, entry, _)| !is_event_request(entry)) {
                Some(at) => at,
                None => return Ok(None),
            },
        };
        let Some((command_id, entry, data)) = self.pending.remove(at) else { return Ok(None) };
        let command =
            Command::decode(&entry, self.kind).expect("the initiator's commands are sound");
        check(&command, &data, script.shape);
        let mut completion = Completion { command_id, ..Completion::default() };
        completion.result = script.result(&command)?;
        let mut page = script.page(&command);
        script.damage(&mut page);
        if let Command::Identify { page: CNS_NAMESPACE, .. } = command {
            script.shape = page.first_chunk().and_then(identify::Namespace::decode);
        }
        if let Data::In { address, length } = data {
            let length = length.min(page.len());
            // SAFETY: the initiator lends this many bytes until the command completes, which it
            // does after this copy.
            unsafe { core::ptr::copy_nonoverlapping(page.as_ptr(), address, length) };
        }
        if script.choices.below(16) == 15 {
            completion.status = Status(script.choices.below(1 << 16) as u16);
        }
        Ok(Some(completion))
    }

    fn abandon(&mut self) {
        self.pending.clear();
    }
}

/// Checks that a command has the memory it needs and stays within the namespace.
fn check(command: &Command, data: &Data, shape: Option<identify::Namespace>) {
    let block_bytes = shape.map_or(0, |shape| shape.block_bytes());
    let (out, into) = (command.bytes_out(block_bytes), command.bytes_in(block_bytes));
    let is_lent = match *data {
        Data::None => out == 0 && into == 0,
        Data::Out { length, .. } => length as u64 == out,
        Data::In { length, .. } => length as u64 == into,
    };
    assert!(is_lent, "{command:?} with {data:?}");
    let (Command::Read { blocks, .. }
    | Command::Write { blocks, .. }
    | Command::WriteZeroes { blocks, .. }) = *command
    else {
        return;
    };
    let end = blocks.first + u64::from(blocks.count);
    assert!(shape.is_some_and(|shape| end <= shape.blocks), "{command:?} of {shape:?}");
}

fn is_event_request(entry: &Entry) -> bool {
    Command::decode(entry, QueueKind::Admin) == Ok(Command::AsyncEventRequest)
}

impl Script {
    /// Returns the result of a command, apart from its data. Errors: `Closed` if the controller is
    /// never ready.
    fn result(&mut self, command: &Command) -> Result<u64> {
        if self.choices.below(16) == 15 {
            let status = matches!(command, Command::PropertyGet { property: PROPERTY_STATUS, .. });
            self.impatience += u32::from(status);
            if self.impatience > 2 {
                return Err(Error::Closed);
            }
            return Ok(self.choices.draw());
        }
        Ok(match command {
            Command::Connect { .. } => 1,
            Command::PropertyGet { property: PROPERTY_STATUS, .. } => {
                (STATUS_READY | STATUS_SHUT_DOWN).into()
            }
            Command::PropertyGet { .. } => Capabilities::encode(128, 500),
            Command::SetFeatures { .. } => 7 << 16 | 7,
            Command::AsyncEventRequest => 2,
            _ => 0,
        })
    }

    /// Returns the data of a successful command.
    fn page(&mut self, command: &Command) -> Vec<u8> {
        match *command {
            Command::Identify { page: CNS_CONTROLLER, .. } => self.identity().encode().to_vec(),
            Command::Identify { page: CNS_NAMESPACE, .. } => {
                let block_shift = *self.choices.pick(&[12, 9, 16]);
                let blocks = *self.choices.pick(&[256, 1, 1 << 40]);
                let (is_write_protected, guid, access_group) = (false, [1; 16], 0);
                let shape = identify::Namespace {
                    blocks,
                    block_shift,
                    is_write_protected,
                    guid,
                    access_group,
                    start: [0; 16],
                };
                shape.encode().to_vec()
            }
            Command::Identify { page: CNS_ACTIVE_NAMESPACES, namespace } => {
                let last = if self.choices.below(4) == 3 { 2000 } else { 3 };
                identify::encode_list((namespace.saturating_add(1)..=last).take(1024)).to_vec()
            }
            Command::GetLogPage { page: 0x70, offset: 0, .. } => {
                let entries = *self.choices.pick(&[1, 0, 3, u64::MAX]);
                DiscoveryHead { generation: 1, entries }.encode().to_vec()
            }
            Command::GetLogPage { page: 0x70, .. } => {
                let entry = DiscoveryEntry {
                    transport: TRANSPORT_TCP,
                    family: FAMILY_IPV4,
                    kind: SUBSYSTEM_NVM,
                    port_id: 1,
                    address: "127.0.0.1".into(),
                    service: "4420".into(),
                    subsystem: Nqn::new(SUBSYSTEM).expect("a name"),
                };
                entry.encode().to_vec()
            }
            Command::Read { blocks, .. } => vec![2; (blocks.count as usize).min(BYTES)],
            _ => vec![0; 64],
        }
    }

    fn identity(&mut self) -> identify::Controller {
        let can = self.choices.below(16);
        identify::Controller {
            serial: "1".into(),
            model: "fuzz".into(),
            firmware: "1".into(),
            id: 1,
            transfer_shift: *self.choices.pick(&[Some(8), None, Some(0), Some(255)]),
            events: *self.choices.pick(&[identify::EVENT_NAMESPACE_CHANGED, 0, u32::MAX]),
            keep_alive_ms: 100,
            is_discovery: false,
            namespaces_max: 4,
            can_deallocate: can & 1 == 0,
            can_write_zeroes: can & 2 == 0,
            can_reserve: can & 4 == 0,
            has_volatile_cache: can & 8 == 0,
            has_asymmetric_access: false,
            subsystem: Nqn::new(SUBSYSTEM),
            capsule_data_bytes: 8192,
            commands_max: *self.choices.pick(&[128, 0, 1]),
            instance: 0,
        }
    }

    fn damage(&mut self, page: &mut [u8]) {
        if self.choices.below(8) != 7 || page.is_empty() {
            return;
        }
        for _ in 0..=self.choices.below(4) {
            let at = self.choices.below(page.len().min(DAMAGED_BYTES_MAX) as u64) as usize;
            page[at] = self.choices.below(256) as u8;
        }
    }
}

/// Lets a controller that does not know the secrets try to authenticate.
fn believe(choices: &mut Random) -> Result<()> {
    let subsystem = Nqn::new(SUBSYSTEM).expect("a name");
    let secrets = Secrets::parse(format!("{HOST}\n{SECRETS}").as_bytes())?;
    let mut host = Host::new(&subsystem, &secrets)?;
    let Message { transaction, .. } = host.negotiate();
    let mut last = Vec::new();
    for _ in 0..4 {
        let content = match choices.below(6) {
            0 | 1 => {
                let hash = *choices.pick(&[Hash::Sha256, Hash::Sha384, Hash::Sha512]);
                let challenge = vec![choices.below(256) as u8; hash.bytes()];
                let sequence = choices.below(256) as u32;
                Content::Challenge { hash, group: None, sequence, challenge, public: Vec::new() }
            }
            2 | 3 => {
                let hash_bytes = *choices.pick(&[32, 48, 64, 0]);
                let is_echo = choices.below(2) == 1 && last.len() == usize::from(hash_bytes);
                let proof = if is_echo { last.clone() } else { vec![0; usize::from(hash_bytes)] };
                let response = (choices.below(4) != 3).then_some(proof);
                Content::Success1 { response, hash_bytes }
            }
            4 => Content::Failure1(Failure(choices.below(256) as u8)),
            _ => Content::Success2,
        };
        let transaction = transaction ^ u16::from(choices.below(16) == 15);
        let mut bytes = Message { transaction, content }.encode();
        if choices.below(4) == 3 {
            let at = choices.below(bytes.len() as u64) as usize;
            bytes[at] ^= choices.below(256) as u8;
        }
        match choices.below(2) {
            0 => {
                if let Ok(Message { content: Content::Reply { response, .. }, .. }) =
                    host.reply(&bytes)
                {
                    last = response;
                }
            }
            _ => assert!(host.conclude(&bytes).is_err(), "nobody knows the second secret"),
        }
    }
    Ok(())
}
