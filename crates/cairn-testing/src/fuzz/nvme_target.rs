//! Hosts that do anything to a target. They connect, authenticate or fail to, send sound PDUs in
//! any order, damaged ones and rubbish, reserve namespaces, hang up and fall silent. Meanwhile
//! namespaces are granted and revoked.
//!
//! Must stay true, whatever they do: the target answers with sound PDUs. Nobody gets data behind a
//! secret that was not used. Nobody writes where another host has the reservation. When all hosts
//! are gone, the target has all its memory back and serves the next host.
//!
//! Challenges are random; only their own bytes depend on them. The input controls the clock.

mod line;

use cairn_nvme::auth::Host;
use cairn_nvme::secret::{HostSecrets, Secrets};
use cairn_nvme::wire::auth::{Content, Failure, Message};
use cairn_nvme::wire::command::{Blocks, ENTRY_BYTES, Entry, encode_range};
use cairn_nvme::wire::fabrics::{
    ANY_CONTROLLER, AUTHENTICATION_DEMANDED, CONFIGURATION_ENABLED, CONFIGURATION_SHUTDOWN,
    ConnectData, DISCOVERY_NQN, PROPERTY_CAPABILITIES, PROPERTY_CONFIGURATION, PROPERTY_STATUS,
    PROPERTY_VERSION,
};
use cairn_nvme::wire::identify::{
    CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_DESCRIPTORS, CNS_NAMESPACE,
};
use cairn_nvme::wire::pdu::InitializeRequest;
use cairn_nvme::wire::reservation::{
    ACQUIRE, ANY_KEY, CLEAR, KEEP, PREEMPT, PREEMPT_AND_ABORT, REGISTER, RELEASE, REPLACE,
    REPORT_BYTES, Report, Step, UNREGISTER, WRITE_EXCLUSIVE, encode_keys,
};
use cairn_nvme::wire::{Command, Nqn};
use cairn_platform::checksum::crc32c;
use cairn_target::grants::{Grant, Grants, Room};
use cairn_target::inline_target::InlineTarget;
use cairn_target::{Directory, Limits, Namespace, Subsystem};
use line::Line;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::random::Random;

/// Most actions of one run.
const ACTIONS_MAX: usize = 96;
/// Most connections of one run.
const LINES_MAX: usize = 8;
/// Limits of the target: low, so that runs reach them.
const LIMITS: Limits = Limits {
    capsule_data_bytes: 1024,
    host_data_bytes: 4096,
    transfer_shift: 4,
    entries: 8,
    queues: 2,
    awaited_bytes: 12 << 10,
};
/// Memory for data in transit: enough for one command or two.
const MEMORY_BYTES: usize = 96 << 10;
/// Namespaces: one in memory with large transfers, one in a file that workers serve.
const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 16;
const FILE_BLOCK_BYTES: u64 = 512;
/// Number of bytes of a namespace that are compared.
const COMPARED_BYTES: usize = 4096;
/// Space for grants, bytes.
const ROOM_BYTES: u64 = 2 << 16;
/// Directory for unnamed files; they cost nothing there.
const FILES: &str = "/dev/shm";

const OPEN: &str = "nqn.2026-11.io.cairn:open";
const GUARDED: &str = "nqn.2026-11.io.cairn:guarded";
const HOSTS: [&str; 2] = ["nqn.2026-11.io.cairn:one", "nqn.2026-11.io.cairn:other"];
const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const WRONG_SECRET: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

/// Plays the hosts that the input describes.
pub(super) fn run(input: &[u8]) {
    let mut world = World::new(Random::from_choices(input));
    world.set_scene();
    for _ in 0..ACTIONS_MAX {
        if world.choices.is_used_up() {
            break;
        }
        world.act();
    }
    world.finish();
}

struct World {
    choices: Random,
    target: InlineTarget,
    directory: Arc<Directory>,
    open: Arc<Subsystem>,
    guarded: Arc<Subsystem>,
    grants: Grants,
    granted: Vec<Grant>,
    lines: Vec<Line>,
    /// Whether the secret of the guarded subsystem was used.
    is_known: bool,
    is_draining: bool,
}

impl World {
    fn new(choices: Random) -> World {
        let directory = Arc::new(Directory::new(LIMITS));
        let memory = Namespace::in_memory(BLOCKS * BLOCK_BYTES, BLOCK_BYTES).expect("memory");
        let file = Namespace::in_unnamed_file(FILES.as_ref(), BLOCK_BYTES, FILE_BLOCK_BYTES);
        let namespaces = vec![memory, file.expect("a file")];
        let open = Arc::new(Subsystem::new(nqn(OPEN), namespaces, LIMITS));
        let secret = Namespace::in_memory(BLOCK_BYTES, FILE_BLOCK_BYTES).expect("memory");
        secret.write(Blocks { first: 0, count: 8 }, marker(), false).expect("it has 8 blocks");
        let hosts = format!("{} {SECRET} {WRONG_SECRET}", HOSTS[0]);
        let hosts = HostSecrets::parse(hosts.as_bytes()).expect("secrets");
        let guarded = Subsystem::new(nqn(GUARDED), vec![secret], LIMITS);
        let guarded = Arc::new(guarded.guarded(InlineTarget::guard(hosts)));
        for subsystem in [&open, &guarded] {
            directory.add(Arc::clone(subsystem)).expect("names of their own");
        }
        let target = InlineTarget::new(Arc::clone(&directory), MEMORY_BYTES).expect("a mailbox");
        let grants = Grants::new(Arc::clone(&directory), &Room::Memory, ROOM_BYTES, "fuzz");
        let grants = grants.expect("nothing was granted before");
        World {
            choices,
            target,
            directory,
            open,
            guarded,
            grants,
            granted: Vec::new(),
            lines: Vec::new(),
            is_known: false,
            is_draining: false,
        }
    }

    /// Sets up zero to two hosts with working queues, in the last case with a reservation, too.
    fn set_scene(&mut self) {
        let scene = self.choices.below(4);
        let choices = std::mem::replace(&mut self.choices, Random::from_choices(&[]));
        for host in [0, 1].into_iter().filter(|host| u64::from(*host) < scene) {
            let name = nqn(HOSTS[usize::from(host)]);
            for queue in [0, 1] {
                let at = self.add_line(host);
                self.initialize(at);
                self.converse(at);
                self.make_queue(at, nqn(OPEN), name.clone(), queue);
            }
        }
        if scene == 3 {
            for (at, own) in [(1, 1), (3, 2)] {
                self.reserve_as(at, Step::Register(REGISTER), [0, own], 1);
                self.converse(at);
            }
            self.reserve_as(1, Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE), [1, 0], 1);
            self.converse(1);
            assert!(holder(self.open.namespace(1).expect("it stays")).is_some());
        }
        self.choices = choices;
    }

    /// Takes the chosen action on the chosen connection.
    fn act(&mut self) {
        let action = self.choices.below(32);
        if action == 0 || self.lines.is_empty() {
            return self.open_line();
        }
        let at = self.choices.below(self.lines.len() as u64) as usize;
        match action {
            1 | 2 => self.become_queue(at),
            3 => self.initialize(at),
            4 => self.connect(at),
            5 => self.authenticate(at),
            6 => self.send_message(at),
            7 => self.lines[at].command(&receive(4096), 1, &[], &mut self.choices),
            8 => self.property(at),
            9 | 10 => self.admin_command(at),
            11..=15 => self.io_command(at),
            16 | 17 => self.reserve(at),
            18..=20 => self.host_data(at),
            21 => self.raw_command(at),
            22 => self.raw(at),
            23 => return self.grant(),
            24 => return self.revoke(),
            25 => {
                let times = [1, 20, 61, 3600];
                return self.target.wait(Duration::from_secs(*self.choices.pick(&times)));
            }
            26 => {
                let how = *self.choices.pick(&[Shutdown::Both, Shutdown::Write, Shutdown::Read]);
                self.lines[at].hang_up(how);
            }
            27 => self.target.end(self.lines[at].number),
            28 if self.choices.below(8) == 7 => {
                self.is_draining = true;
                self.target.drain();
            }
            _ => {}
        }
        self.go_on(at);
    }

    fn open_line(&mut self) {
        if self.lines.len() == LINES_MAX {
            return;
        }
        let host = self.choices.below(2) as u8;
        self.add_line(host);
    }

    fn add_line(&mut self, host: u8) -> usize {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let number = self.target.admit(theirs.into()).expect("a socket");
        self.lines.push(Line::new(ours, number, host));
        self.lines.len() - 1
    }

    /// Sends all or part of the pending bytes. Then lets the target, its workers and the host take
    /// a turn, or skips some of them.
    fn go_on(&mut self, at: usize) {
        let turns = self.choices.below(16);
        let most = if turns & 8 != 0 { self.choices.below(256) as usize } else { usize::MAX };
        self.lines[at].send(most);
        if turns & 1 == 0 {
            self.serve(at);
        }
        if turns & 2 == 0 {
            self.target.deliver();
        }
        if turns & 4 == 0 {
            self.receive(at);
        }
    }

    fn serve(&mut self, at: usize) {
        let before = self.reserved();
        self.target.serve(self.lines[at].number);
        self.check_reserved(at, &before);
    }

    fn receive(&mut self, at: usize) {
        let is_known = self.is_known;
        self.lines[at].receive(|data| {
            let mut blocks = marker().chunks(FILE_BLOCK_BYTES as usize);
            let is_secret = blocks.any(|block| data.starts_with(&block[..64]));
            assert!(is_known || !is_secret, "who has no secret reads no guarded namespace");
        });
    }

    /// Sends everything and receives the response.
    fn converse(&mut self, at: usize) {
        self.lines[at].answer = None;
        self.lines[at].send(usize::MAX);
        self.serve(at);
        self.target.deliver();
        self.receive(at);
    }

    fn initialize(&mut self, at: usize) {
        let choices = &mut self.choices;
        let terms = choices.below(4);
        let request = InitializeRequest {
            data_alignment: *choices.pick(&[4, 4, 8, 128]),
            header_digest: terms & 1 != 0,
            data_digest: terms & 2 != 0,
            transfers_max: 1,
        };
        self.lines[at].initialize(request, choices);
    }

    /// Chooses a subsystem. Returns its name and that of the host to connect as.
    fn choose_subsystem(&mut self, host: u8) -> (Nqn, Nqn) {
        let own = nqn(HOSTS[usize::from(host)]);
        match self.choices.below(8) {
            0..=2 => (nqn(OPEN), own),
            3 | 4 => (nqn(GUARDED), own),
            5 => (nqn(DISCOVERY_NQN), own),
            _ => match self.granted.last() {
                Some(grant) => (nqn(&grant.nqn), nqn(&grant.host)),
                None => (nqn("nqn.unknown"), own),
            },
        }
    }

    fn connect(&mut self, at: usize) {
        let host = self.lines[at].host;
        let (subsystem, name) = self.choose_subsystem(host);
        let choices = &mut self.choices;
        let queue = *choices.pick(&[0, 1, 2, 3, u16::MAX]);
        let controller = match choices.below(4) {
            0 if queue == 0 => ANY_CONTROLLER,
            0 => self.lines.iter().map(|line| line.controller).max().unwrap_or(1),
            other => other as u16,
        };
        let connect = Command::Connect {
            queue,
            entries: *choices.pick(&[4, 2, 8, 9, 1 << 16]),
            without_flow_control: choices.below(2) == 1,
            keep_alive_ms: *choices.pick(&[0, 1000, u32::MAX]),
        };
        let data = ConnectData { host_id: [host; 16], controller, subsystem, host: name }.encode();
        let in_capsule: &[u8] = if choices.below(8) == 7 { &[] } else { &data };
        self.lines[at].command(&connect, 1, in_capsule, choices);
    }

    /// Takes all steps that turn a connection into a queue.
    fn become_queue(&mut self, at: usize) {
        self.initialize(at);
        self.converse(at);
        let host = self.lines[at].host;
        let (subsystem, name) = self.choose_subsystem(host);
        let queue = self.choices.below(3) as u16;
        self.make_queue(at, subsystem, name, queue);
    }

    /// Connects an initialized connection as a queue of the host's last controller, under the given
    /// host name.
    fn make_queue(&mut self, at: usize, subsystem: Nqn, name: Nqn, queue: u16) {
        let host = self.lines[at].host;
        let controllers = self.lines.iter().filter(|line| line.host == host);
        let controller = match queue {
            0 => ANY_CONTROLLER,
            _ => controllers.map(|line| line.controller).max().unwrap_or(1),
        };
        let without_flow_control = self.choices.below(2) == 1;
        let connect =
            Command::Connect { queue, entries: 8, without_flow_control, keep_alive_ms: 0 };
        let data = ConnectData { host_id: [host; 16], controller, subsystem, host: name }.encode();
        self.lines[at].command(&connect, 1, &data, &mut self.choices);
        self.converse(at);
        let Some(answer) = self.lines[at].answer.filter(|answer| answer.status.is_success()) else {
            return;
        };
        self.lines[at].controller = answer.result as u16;
        if answer.result & AUTHENTICATION_DEMANDED != 0 {
            self.authenticate(at);
        }
        if queue == 0 {
            self.configure(at, CONFIGURATION_ENABLED);
            self.converse(at);
        }
    }

    /// Authenticates the host, with the right secret or another one. Any message may be damaged.
    fn authenticate(&mut self, at: usize) {
        let line = match (self.choices.below(4), self.granted.last()) {
            (0 | 1, _) => {
                self.is_known = true;
                format!("{}\n{SECRET}\n{WRONG_SECRET}", HOSTS[0])
            }
            (2, Some(grant)) => {
                format!("{}\n{}\n{}", grant.host, grant.secret, grant.target_secret)
            }
            _ => format!("{}\n{WRONG_SECRET}", HOSTS[0]),
        };
        let subsystem = match self.choices.below(4) {
            3 => self.granted.last().map_or(nqn(OPEN), |grant| nqn(&grant.nqn)),
            _ => nqn(GUARDED),
        };
        let secrets = Secrets::parse(line.as_bytes()).expect("secrets");
        let mut host = Host::new(&subsystem, &secrets).expect("random numbers");
        let hashes = self.choices.pick(&[&[1, 2, 3][..], &[1], &[9], &[]]).to_vec();
        let content = Content::Negotiate { concatenation: 0, hashes, groups: vec![0] };
        let Message { transaction, .. } = host.negotiate();
        let challenge = self.message(at, &Message { transaction, content });
        let Ok(reply) = host.reply(&challenge) else { return };
        let success = self.message(at, &reply);
        if let Ok(Some(last)) = host.conclude(&success) {
            self.message(at, &last);
        }
    }

    /// Sends an authentication message and fetches the next one.
    fn message(&mut self, at: usize, message: &Message) -> Vec<u8> {
        let mut bytes = message.encode();
        if self.choices.below(8) == 7 {
            let place = self.choices.below(bytes.len().min(256) as u64) as usize;
            bytes[place] ^= self.choices.below(256) as u8;
        }
        let send = Command::AuthenticationSend { bytes: bytes.len() as u32 };
        self.lines[at].command(&send, 1, &bytes, &mut self.choices);
        self.converse(at);
        self.lines[at].command(&receive(1024), 1, &[], &mut self.choices);
        self.converse(at);
        std::mem::take(&mut self.lines[at].data)
    }

    /// Sends an authentication message that is not expected.
    fn send_message(&mut self, at: usize) {
        let choices = &mut self.choices;
        let content = match choices.below(6) {
            0 => Content::Success2,
            1 => Content::Failure2(Failure(choices.below(256) as u8)),
            2 => Content::Negotiate { concatenation: 1, hashes: vec![1], groups: vec![0] },
            3 => Content::Success1 { response: None, hash_bytes: 32 },
            4 => Content::Reply { response: vec![0; 32], challenge: None, public: Vec::new() },
            _ => Content::Negotiate { concatenation: 0, hashes: vec![1], groups: vec![0] },
        };
        let transaction = choices.below(4) as u16;
        let bytes = Message { transaction, content }.encode();
        let send = Command::AuthenticationSend { bytes: bytes.len() as u32 };
        self.lines[at].command(&send, 1, &bytes, choices);
    }

    fn configure(&mut self, at: usize, value: u32) {
        let set = Command::PropertySet { property: PROPERTY_CONFIGURATION, value };
        self.lines[at].command(&set, 1, &[], &mut self.choices);
    }

    fn property(&mut self, at: usize) {
        let values =
            [CONFIGURATION_ENABLED, 0, CONFIGURATION_ENABLED | CONFIGURATION_SHUTDOWN, u32::MAX];
        if self.choices.below(2) == 0 {
            let value = *self.choices.pick(&values);
            return self.configure(at, value);
        }
        let properties =
            [PROPERTY_CAPABILITIES, PROPERTY_VERSION, PROPERTY_STATUS, PROPERTY_CONFIGURATION, 9];
        let property = *self.choices.pick(&properties);
        let get = Command::PropertyGet { property, is_wide: self.choices.below(2) == 1 };
        self.lines[at].command(&get, 1, &[], &mut self.choices);
    }

    fn admin_command(&mut self, at: usize) {
        let choices = &mut self.choices;
        let pages = [CNS_NAMESPACE, CNS_CONTROLLER, CNS_ACTIVE_NAMESPACES, CNS_DESCRIPTORS, 9];
        let (feature, value) = (*choices.pick(&[7, 11, 15, 1]), choices.below(4) as u32);
        let command = match choices.below(6) {
            0 => Command::Identify {
                page: *choices.pick(&pages),
                namespace: *choices.pick(&[0, 1, 2, 3, u32::MAX]),
            },
            1 => Command::GetLogPage {
                page: *choices.pick(&[0x70, 4, 1]),
                bytes: *choices.pick(&[16, 1024, 4096, 4, 1 << 16, 1 << 20]),
                offset: *choices.pick(&[0, 1024, 4, 1 << 40]),
                retains_event: choices.below(2) == 1,
            },
            2 => Command::AsyncEventRequest,
            3 => Command::SetFeatures { feature, value },
            4 => Command::GetFeatures { feature },
            _ => Command::KeepAlive,
        };
        self.lines[at].command(&command, 1, &[], choices);
    }

    fn io_command(&mut self, at: usize) {
        let choices = &mut self.choices;
        let namespace = *choices.pick(&[1, 2, 1, 3, 0, u32::MAX]);
        let block_bytes = if namespace == 2 { FILE_BLOCK_BYTES } else { BLOCK_BYTES };
        let first = *choices.pick(&[0, 1, 7, 15, 1 << 40, u64::MAX]);
        let blocks = Blocks { first, count: *choices.pick(&[1, 2, 8, 16, 17, 1 << 16]) };
        let byte = choices.below(256) as u8;
        let (command, data) = match choices.below(6) {
            0 => (Command::Read { namespace, blocks }, Vec::new()),
            1 => {
                let write = Command::Write { namespace, blocks, is_durable: choices.below(2) == 1 };
                let bytes = write.bytes_out(block_bytes) as usize;
                let is_in_capsule = choices.below(2) == 1 && bytes <= 1024;
                (write, if is_in_capsule { vec![byte; bytes] } else { Vec::new() })
            }
            2 => (Command::Flush { namespace }, Vec::new()),
            3 => {
                let may_deallocate = choices.below(2) == 1;
                (Command::WriteZeroes { namespace, blocks, may_deallocate }, Vec::new())
            }
            4 => {
                let ranges = encode_range(blocks).repeat(1 + usize::from(byte) % 3);
                let count = ranges.len() as u32 / 16;
                (Command::Deallocate { namespace, ranges: count }, ranges)
            }
            _ => {
                let bytes = *choices.pick(&[64, 4, 4096, 1 << 16, 1 << 20]);
                (Command::ReservationReport { namespace, bytes }, Vec::new())
            }
        };
        self.lines[at].command(&command, block_bytes, &data, choices);
    }

    fn reserve(&mut self, at: usize) {
        let choices = &mut self.choices;
        let kind = if choices.below(8) == 7 { 0 } else { WRITE_EXCLUSIVE };
        let step = match choices.below(10) {
            0 | 1 => Step::Register(REGISTER),
            2 => Step::Register(UNREGISTER),
            3 => Step::Register(REPLACE | ANY_KEY),
            4 => Step::Register(REGISTER | KEEP),
            5 => Step::Acquire(ACQUIRE | kind),
            6 => Step::Acquire(PREEMPT | kind),
            7 => Step::Acquire(PREEMPT_AND_ABORT | kind),
            8 => Step::Release(RELEASE | kind),
            _ => Step::Release(CLEAR | kind),
        };
        // The host's own key and the key of the other one, in either role.
        let (own, other) = (choices.below(3), choices.below(3));
        let keys = match step {
            Step::Register(_) => [other, own],
            _ => [own, other],
        };
        let namespace = 1 + choices.below(2) as u32;
        self.reserve_as(at, step, keys, namespace);
    }

    fn reserve_as(&mut self, at: usize, step: Step, keys: [u64; 2], namespace: u32) {
        let reserve = Command::Reserve { namespace, step };
        let bytes = encode_keys(keys);
        let bytes = &bytes[..reserve.bytes_out(1) as usize];
        self.lines[at].command(&reserve, 1, bytes, &mut self.choices);
    }

    /// Sends the data that the target has asked for, or nearly those.
    fn host_data(&mut self, at: usize) {
        let (line, choices) = (&mut self.lines[at], &mut self.choices);
        let Some(mut transfer) = line.asked.pop() else { return };
        let whole = transfer.length;
        let length = whole.min(*choices.pick(&[LIMITS.host_data_bytes, 1024, 4, 8192]));
        transfer.length = length;
        let mut is_last = length == whole;
        match choices.below(12) {
            8 => transfer.tag ^= 1,
            9 => transfer.command_id ^= 1,
            10 => transfer.offset += 4,
            11 => is_last = !is_last,
            _ if !is_last => {
                let (offset, length) = (transfer.offset + length, whole - length);
                let rest = cairn_nvme::wire::pdu::Transfer { offset, length, ..transfer };
                line.asked.push(rest);
            }
            _ => {}
        }
        line.host_data(transfer, is_last, choices);
    }

    fn raw_command(&mut self, at: usize) {
        let choices = &mut self.choices;
        let mut entry = [0; ENTRY_BYTES];
        for byte in &mut entry[..] {
            *byte = choices.below(256) as u8;
        }
        // PSDT: a command other than Fabrics must describe its data by an SGL; otherwise the target
        // refuses it for that alone.
        entry[1] = 0x40;
        let data = vec![entry[0]; *choices.pick(&[0, 0, 8, 64, 1024])];
        self.lines[at].entry(Entry(entry), &data, choices);
    }

    fn raw(&mut self, at: usize) {
        let length = 1 + self.choices.below(160);
        let bytes: Vec<u8> = (0..length).map(|_| self.choices.below(256) as u8).collect();
        self.lines[at].raw(&bytes);
    }

    fn grant(&mut self) {
        let job = *self.choices.pick(&["a", "b", "c", "", "d/e"]);
        let bytes = *self.choices.pick(&[BLOCK_BYTES, 1 << 16, 0, 1, u64::MAX]);
        let host = *self.choices.pick(&[None, Some(HOSTS[0]), Some("")]);
        let asked = self.grants.grant(job, bytes, host);
        self.granted.extend(asked);
        let held: u64 = self.granted.iter().map(|grant| grant.bytes).sum();
        assert!(held <= ROOM_BYTES, "no more is granted than there is");
    }

    fn revoke(&mut self) {
        let job = *self.choices.pick(&["a", "b", "c", "z"]);
        let is_there = self.granted.iter().any(|grant| grant.job == job);
        assert_eq!(self.grants.revoke(job).is_ok(), is_there);
        self.granted.retain(|grant| grant.job != job);
        assert_eq!(self.directory.all().len(), 2 + self.granted.len());
    }

    /// Returns the reserved namespaces of the open subsystem: number, holder and checksum of the
    /// content.
    fn reserved(&self) -> Vec<(u32, [u8; 16], u32)> {
        let namespaces = self.open.namespaces();
        let held = namespaces.filter_map(|(number, one)| Some((number, holder(one)?, sum(one))));
        held.collect()
    }

    /// Checks that nothing has changed where another host had the reservation and still has it.
    fn check_reserved(&self, at: usize, before: &[(u32, [u8; 16], u32)]) {
        let line = &self.lines[at];
        // A damaged PDU may have claimed to come from another host.
        if !line.is_exact() {
            return;
        }
        for &(number, had, sum_before) in before.iter().filter(|held| held.1 != [line.host; 16]) {
            let namespace = self.open.namespace(number).expect("it stays");
            let is_same = holder(namespace) == Some(had);
            assert!(!is_same || sum(namespace) == sum_before, "only the holder writes");
        }
    }

    /// Checks that the next host is served, and that nothing is left of the hosts when all are
    /// gone.
    fn finish(mut self) {
        if !self.is_draining {
            self.greet();
        }
        for line in &self.lines {
            self.target.end(line.number);
        }
        self.target.deliver();
        assert_eq!(self.target.unused_bytes(), MEMORY_BYTES, "all memory has come back");
        for subsystem in self.directory.all() {
            assert_eq!(subsystem.controllers_count(), 0, "nobody is there any more");
        }
        let namespace = self.guarded.namespace(1).expect("there is one");
        assert!(self.is_known || sum(namespace) == crc32c(0, marker()), "nobody wrote there");
    }

    /// Connects a host that does everything correctly.
    fn greet(&mut self) {
        self.choices = Random::from_choices(&[]);
        let at = self.add_line(0);
        self.initialize(at);
        self.connect(at);
        self.converse(at);
        let answer = self.lines[at].answer.expect("the target goes on");
        assert!(answer.status.is_success(), "whoever did what, others are let in: {answer:?}");
    }
}

fn receive(bytes: u32) -> Command {
    Command::AuthenticationReceive { bytes }
}

fn nqn(text: &str) -> Nqn {
    Nqn::new(text).expect("a name")
}

/// Content of the guarded namespace, which is found nowhere else.
fn marker() -> &'static [u8] {
    static MARKER: OnceLock<Vec<u8>> = OnceLock::new();
    MARKER.get_or_init(|| Random::new(1).bytes(BLOCK_BYTES as usize))
}

fn holder(namespace: &Namespace) -> Option<[u8; 16]> {
    let mut report = [0; REPORT_BYTES];
    let bytes = InlineTarget::reservations(namespace);
    report[..bytes.len()].copy_from_slice(&bytes);
    let report = Report::decode(&report).expect("one holder at most");
    report.holder().map(|holder| holder.host)
}

fn sum(namespace: &Namespace) -> u32 {
    let mut bytes = [0; COMPARED_BYTES];
    let count = (COMPARED_BYTES as u64 / namespace.shape().block_bytes()) as u32;
    namespace.read(Blocks { first: 0, count }, &mut bytes).expect("it has so many");
    crc32c(0, &bytes)
}
