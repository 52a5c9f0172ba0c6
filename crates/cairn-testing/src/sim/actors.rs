//! Actors of a simulated node: programs, the agent, and the launcher that starts them.
//!
//! ```text
//! first      the launcher: recovers the namespace, checks what the last failure left, starts the
//!            others and replaces the dead
//! program    random operations in a directory of its own (durable/workload.rs), with files held
//!            open
//! agent      reaps the dead, frees blocks, drains closed files, checks the accounts
//! snapshots  the agent's other thread
//! ```
//! Must stay true: the states noted for a program cover everything it may have done, whenever it is
//! interrupted.

use cairn_core::recover;
use cairn_core::{
    Error, InodeId, Microfs, OpenOptions, Position, ProcessIdentity, ROOT, Result, Superblock,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::journal::Journal;
use super::media::{OpenMedia, Segment, checksum};
use super::scheduler::{
    End, Scheduler, begin_operation, die, draw, end_node, is_alive, pause, tell,
};
use crate::driver::Process;
use crate::durable::{Crew, Seen, Setting, Window, Workload, check_accounts, look_in};
use crate::faulty::{ByteMedia, FaultyMedia, MediaTier};
use crate::tier::CHECKSUM;
use crate::world::SUPERUSER;

/// Interval between rounds of the agent and of the launcher, in nanoseconds.
const LOOK_EVERY: u64 = 2_000_000;
/// Longest pause of a program between two operations, in nanoseconds.
const THINK_MAX: u64 = 500_000;
/// A program checks all its files once in so many operations.
const LOOK_ODDS: u64 = 12;
/// A program appends to the journal once in so many operations.
const JOURNAL_ODDS: u64 = 4;
/// Number of process ids; they are used again.
const PIDS: u32 = 9;

/// State of a program and its directory.
pub(super) struct Program {
    /// States that a crash may leave.
    pub window: Window,
    /// Index in the window of the state in which the running operation began.
    began: usize,
    /// Number of operations left.
    pub left: u32,
    /// Process that runs the program, or that ran it and died; none if no process does.
    process: Option<ProcessIdentity>,
}

impl Program {
    /// Returns a program whose directory is in the only state of `window`.
    pub fn new(window: Window, left: u32) -> Program {
        Program { window, began: 0, left, process: None }
    }
}

/// A node from one start to the next.
pub(super) struct Node {
    pub scheduler: Arc<Scheduler>,
    pub setting: Arc<Setting>,
    pub superblock: Superblock,
    pub media: Arc<dyn ByteMedia>,
    pub faulty: Arc<FaultyMedia>,
    pub segment: Segment,
    pub programs: Arc<Mutex<Vec<Program>>>,
    pub journal: Arc<Journal>,
    pub next_process: AtomicU32,
}

/// Returns the name of a program's directory.
pub(super) fn home_of(program: usize) -> Vec<u8> {
    format!("home{program}").into_bytes()
}

fn expect<T>(result: Result<T>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(Error::Io) => end_node_for_io(what),
        Err(error) => panic!("{what}: {error:?}"),
    }
}

fn end_node_for_io(what: &str) -> ! {
    tell(format_args!("{what}: input/output error"));
    end_node(End::PowerFailed)
}

impl Node {
    /// Starts the node and returns how it ended.
    pub fn run(self: &Arc<Self>) -> End {
        let node = self.clone();
        let identity = self.identity();
        self.scheduler.spawn("first".into(), identity, false, move || node.first(identity));
        self.scheduler.run()
    }

    fn programs(&self) -> MutexGuard<'_, Vec<Program>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn program_count(&self) -> usize {
        self.programs().len()
    }

    /// Returns the identity of a new process. Its pid may be that of a dead one.
    fn identity(&self) -> ProcessIdentity {
        loop {
            let number = self.next_process.fetch_add(1, Ordering::Relaxed);
            let pid = number % PIDS + 1;
            if !self.scheduler.is_pid_used(pid) {
                return ProcessIdentity { pid, pid_namespace: 1, start_time: u64::from(number) };
            }
        }
    }

    fn attach(&self, identity: ProcessIdentity) -> Result<Process> {
        let media = Arc::new(OpenMedia::new(self.media.clone(), self.faulty.clone()));
        let fs = Microfs::open_durable(
            Box::new(self.segment.clone()),
            checksum,
            media.clone(),
            Vec::new(),
        )?;
        let tier = Arc::new(MediaTier::new(media, self.superblock.data_offset));
        Process::attach(fs, identity, SUPERUSER, tier, self.scheduler.clock.clone())
    }

    fn home(&self, process: &Process, program: usize) -> Result<InodeId> {
        let home = process.fs.stat(&process.caller(), ROOT, &home_of(program), false)?;
        Ok(home.inode)
    }

    fn first(self: &Arc<Self>, identity: ProcessIdentity) {
        let recovered = recover(self.media.clone().as_media().as_ref(), &self.segment, CHECKSUM);
        let recovered = expect(recovered, "recovery");
        tell(format_args!("recovered {} records", recovered.records));
        let process = expect(self.attach(identity), "attaching");
        expect(self.check_recovered(&process), "looking at what is left");
        let mut agent = self.start_agent();
        while !self.is_done() {
            begin_operation();
            if !is_alive(agent) {
                agent = self.start_agent();
            }
            expect(self.start_programs(&process), "looking for the dead");
            pause(LOOK_EVERY);
        }
        expect(self.journal.check_quiet(&process), "looking at the journal");
        self.programs().iter_mut().for_each(|program| {
            program.window.drain(..program.window.len() - 1);
        });
        end_node(End::Done);
    }

    /// Checks that what was recovered is what the last failure may have left, and takes it as the
    /// state of each program from then on.
    fn check_recovered(&self, process: &Process) -> Result<()> {
        check_accounts(process).unwrap_or_else(|message| panic!("{message}"));
        for number in 0..self.program_count() {
            let seen = look_in(process, self.home(process, number)?)?;
            let mut programs = self.programs();
            let program = &mut programs[number];
            let allowed = seen.check_all(&program.window);
            allowed.unwrap_or_else(|message| panic!("directory of program {number}: {message}"));
            *program = Program::new(vec![Arc::new(seen.state())], program.left);
        }
        self.journal.check_recovered(process)
    }

    fn is_done(&self) -> bool {
        self.programs().iter().all(|program| program.left == 0 && program.process.is_none())
    }

    /// Starts the programs that have no living process and are not done, once their last process
    /// has been reaped.
    fn start_programs(self: &Arc<Self>, process: &Process) -> Result<()> {
        let known = process.fs.processes()?;
        for number in 0..self.program_count() {
            let mut programs = self.programs();
            let program = &mut programs[number];
            let is_needed = match program.process {
                None => program.left > 0,
                Some(last) => {
                    !self.scheduler.is_alive(last) && known.iter().all(|(_, one)| *one != last)
                }
            };
            if is_needed {
                let (node, identity) = (self.clone(), self.identity());
                program.process = Some(identity);
                let name = format!("program {number}");
                self.scheduler.spawn(name, identity, true, move || node.program(number, identity));
            }
        }
        Ok(())
    }

    fn program(&self, number: usize, identity: ProcessIdentity) {
        // After a media error the program ends, or the node.
        match self.run_program(number, identity) {
            Ok(()) => self.programs()[number].process = None,
            Err(Error::Io) if draw(2) == 0 => die(),
            Err(Error::Io) => end_node_for_io("a program"),
            Err(error) => panic!("program {number}: {error:?}"),
        }
    }

    fn run_program(&self, number: usize, identity: ProcessIdentity) -> Result<()> {
        let process = self.attach(identity)?;
        let slot = process.slot;
        let home = self.home(&process, number)?;
        let window = self.take_up(number, &look_in(&process, home)?);
        let journal = Journal::open(&process)?;
        let crew = Crew::alone(process);
        let mut workload = Workload::resume(crew, &self.setting, home, window, draw(u64::MAX));
        while self.begins_operation(number, &workload) {
            let mut note = |window: Window| {
                let state = window.last().expect("there is a state");
                tell(format_args!("{} states:{state}", window.len()));
                self.programs()[number].window = window;
            };
            workload.step(&mut note)?;
            if draw(JOURNAL_ODDS) == 0 {
                self.journal.append(&workload.crew().processes[0], journal)?;
            }
            if draw(LOOK_ODDS) == 0 {
                self.check_live(number, &workload, home)?;
            }
            pause(draw(THINK_MAX));
        }
        self.check_live(number, &workload, home)?;
        let process = &workload.crew().processes[0];
        process.fs.detach(slot, self.scheduler.clock.tick())
    }

    /// Returns the states of a directory whose last program may have died; the last state is the
    /// one seen.
    fn take_up(&self, number: usize, seen: &Seen) -> Window {
        let mut programs = self.programs();
        let program = &mut programs[number];
        // Operations that were durable on return have removed earlier states from the window.
        let began = program.began.min(program.window.len() - 1);
        let state = seen.latest_in(&program.window[began..]);
        let state = state.unwrap_or_else(|| {
            let allowed = seen.check_all(&program.window[began..]);
            panic!(
                "a death left neither the state before the operation nor the one after: {allowed:?}"
            )
        });
        if *program.window[program.window.len() - 1] != state {
            program.window.push(Arc::new(state));
        }
        program.window.clone()
    }

    /// Counts an operation. Returns false if the program is done.
    fn begins_operation(&self, number: usize, workload: &Workload<'_>) -> bool {
        begin_operation();
        let mut programs = self.programs();
        let program = &mut programs[number];
        program.began = workload.window().len() - 1;
        let goes_on = program.left > 0;
        program.left -= u32::from(goes_on);
        goes_on
    }

    /// Checks that the files of a program that does nothing are as it left them.
    fn check_live(&self, number: usize, workload: &Workload<'_>, home: InodeId) -> Result<()> {
        let window = workload.window();
        let seen = look_in(&workload.crew().processes[0], home)?;
        let now = seen.check_all(&window[window.len() - 1..]);
        now.unwrap_or_else(|message| panic!("program {number}, which nobody disturbed: {message}"));
        Ok(())
    }

    fn start_agent(self: &Arc<Self>) -> ProcessIdentity {
        let (node, identity) = (self.clone(), self.identity());
        self.scheduler.spawn("agent".into(), identity, true, move || {
            let process = Arc::new(expect(node.attach(identity), "attaching the agent"));
            let shared = process.clone();
            node.scheduler.spawn("snapshots".into(), identity, true, move || {
                expect(write_snapshots(&shared), "a snapshot");
            });
            expect(node.agent(&process), "the agent");
        });
        identity
    }

    fn agent(&self, process: &Process) -> Result<()> {
        loop {
            begin_operation();
            for (slot, identity) in process.fs.processes()? {
                if !is_alive(identity) {
                    tell(format_args!("reaps process {}", identity.pid));
                    process.fs.reap(slot, identity, self.scheduler.clock.tick())?;
                }
            }
            if process.fs.orphans() > 0 {
                process.fs.sync()?;
            }
            process.reclaim()?;
            let program = draw(self.program_count() as u64) as usize;
            drain(process, self.home(process, program)?)?;
            process.fs.check()?;
            pause(LOOK_EVERY);
        }
    }
}

/// Writes snapshots by the agent's policy.
fn write_snapshots(process: &Process) -> Result<()> {
    loop {
        begin_operation();
        if process.fs.log_usage()?.is_some_and(cairn_agent::agent::snapshot::is_due) {
            tell(format_args!("a snapshot is due"));
            process.fs.write_snapshot()?;
        }
        pause(LOOK_EVERY);
    }
}

/// Reads every closed file of a directory as the drain does. Every checksum that a block has must
/// be right.
fn drain(process: &Process, home: InodeId) -> Result<()> {
    let mut files = Vec::new();
    process.fs.list(&process.caller(), home, 0, &mut |entry| {
        files.push(entry.name.to_vec());
        true
    })?;
    for name in files {
        match drain_file(process, home, &name) {
            // The file was removed meanwhile, is not a regular file, or is being written to.
            Err(Error::NotFound | Error::IsDirectory | Error::SymlinkLoop | Error::Busy) => {}
            result => result?,
        }
    }
    Ok(())
}

fn drain_file(process: &Process, home: InodeId, name: &[u8]) -> Result<()> {
    let options = OpenOptions { read: true, no_follow: true, ..OpenOptions::default() };
    let opened = process.fs.open_file(&process.caller(), home, name, options, 0)?;
    let before = process.fs.attributes(opened.inode)?;
    if before.is_regular() && before.writers == 0 && !before.unclean {
        process.seal(opened.inode)?;
        let at = Position::At(0);
        let (_, bytes) = process.read(&process.caller(), opened.handle, at, before.size)?;
        let block_bytes = process.fs.geometry().hugeblock_bytes as usize;
        let mut checksums = vec![None; bytes.len().div_ceil(block_bytes)];
        process.fs.checksums(opened.inode, 0, &mut checksums)?;
        let now = process.fs.attributes(opened.inode)?;
        if now.version == before.version && now.writers == 0 {
            for (number, (block, sum)) in bytes.chunks(block_bytes).zip(checksums).enumerate() {
                let mut whole = block.to_vec();
                whole.resize(block_bytes, 0);
                let right = sum.is_none_or(|sum| sum == CHECKSUM(0, &whole));
                assert!(right, "block {number} of a closed file has a wrong checksum");
            }
            process.fs.mark_drained(opened.inode, now.version, process.caller().now)?;
        }
    }
    process.close(opened.handle)
}
