//! A namespace whose processes take turns and die as a scheduler decides.
//!
//! The scheduler may switch before the lock is taken, while it is held (whenever the core computes
//! the checksum of a log record), before it is released, and before and in the middle of every
//! transfer. At the same moments a mortal process may die. The simulated kernel then treats the
//! lock like a robust one: the next owner learns of the death.
//!
//! Must stay true: no blocking primitive of `std` is held where the scheduler may switch. The
//! scheduler makes every choice, so that a schedule can be replayed.

use cairn_core::{Acquired, HeapMemory, Memory, Microfs, ProcessIdentity, Result, SlotId};
use cairn_testing::driver::{Clock, Process};
use cairn_testing::tier::{CHECKSUM, HeapTier, Tier, clear, small_geometry};
use cairn_testing::world::SUPERUSER;
use shuttle::rand::Rng;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::JoinHandle;
use std::cell::{OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Number of inodes of the namespace.
const INODES: u32 = 16;
/// Word that counts the writes in flight (docs/FORMAT.md).
const PIN_COUNT: usize = 103;
/// Layout (docs/FORMAT.md): first word of the process slots, where every tier table fits a page;
/// words of a slot; first word and length of its leases; the bit of a lease's state that marks a
/// write in progress.
const SLOTS: usize = 512 + (16 << 10) + (32 << 10) + 6 * 512 + (32 << 10) * 8;
const SLOT_WORDS: usize = 1024;
const LEASES: usize = 872;
const LEASE_WORDS: usize = 8;
const LEASE_BUSY: u64 = 1 << 62;
/// Most processes of a stage.
const PROCESSES: usize = 8;
/// Number of moments at one of which a mortal process dies, unless it ends before.
const MOMENTS: u32 = 60;

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// No defect.
    None,
    /// The lock does not exclude anybody.
    LockLetsIn,
    /// A process that frees blocks does not see the writes in flight.
    PinsUnseen,
    /// The changes of a dead owner are not undone.
    DeathUnseen,
    /// A process that recalls a lease does not see a write in progress under it.
    BusyUnseen,
}

/// Panic payload of a dead process, which unwinds to the end of its thread when the run is over.
struct Dead;

/// A process as the scheduler sees it.
struct Life {
    number: u32,
    /// Number of moments until it dies; `None` if it is not mortal.
    left: Option<AtomicU32>,
    is_dead: AtomicBool,
}

/// A process that acts in its own thread.
#[derive(Clone)]
struct Actor {
    life: Arc<Life>,
    slot: SlotId,
    shared: Arc<Shared>,
}

impl Actor {
    fn die(&self) -> ! {
        self.life.is_dead.store(true, Relaxed);
        self.shared.update(|state| {
            if state.holder == Some(self.life.number) {
                state.holder = None;
                state.owner_died = true;
            }
            state.departed.push((self.slot, true));
        });
        self.shared.wait_until(|state| state.is_over);
        resume_unwind(Box::new(Dead));
    }
}

shuttle::thread_local! {
    /// Process of the current thread.
    static ACTOR: RefCell<Option<Actor>> = RefCell::new(None);
}

thread_local! {
    /// Segment shared by all schedules that this thread explores.
    static SEGMENT: OnceCell<Arc<HeapMemory>> = const { OnceCell::new() };
}

#[derive(Default)]
struct State {
    holder: Option<u32>,
    owner_died: bool,
    /// Slots of the processes that ended, and whether each died.
    departed: Vec<(SlotId, bool)>,
    /// Whether the run is over, so that the dead threads may unwind.
    is_over: bool,
}

/// State that the processes share besides the words.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state.lock().expect("nobody panics while changing it"));
        self.changed.notify_all();
        result
    }

    fn wait_until(&self, mut holds: impl FnMut(&mut State) -> bool) {
        let mut state = self.state.lock().expect("nobody panics while changing it");
        while !holds(&mut state) {
            state = self.changed.wait(state).expect("nobody panics while changing it");
        }
    }
}

/// A moment at which the scheduler may switch and the process may die.
pub fn moment() {
    let actor = ACTOR.with(|actor| actor.borrow().clone());
    // Any access to one of the scheduler's words lets it switch; yielding would force a switch.
    shuttle::sync::atomic::AtomicBool::new(false).load(SeqCst);
    let Some(actor) = actor.filter(|actor| !actor.life.is_dead.load(Relaxed)) else { return };
    if actor.life.left.as_ref().is_some_and(|left| left.fetch_sub(1, Relaxed) == 1) {
        actor.die();
    }
}

/// Lets the other processes go first.
pub fn wait() {
    shuttle::thread::yield_now();
    moment();
}

/// Checksum routine for the core, which calls it in the middle of transactions.
fn checksum(start: u32, bytes: &[u8]) -> u32 {
    moment();
    CHECKSUM(start, bytes)
}

/// The segment as one process sees it.
struct View {
    words: Arc<HeapMemory>,
    shared: Arc<Shared>,
    life: Arc<Life>,
    defect: Defect,
    hidden_pins: AtomicU64,
}

impl Memory for View {
    fn words(&self) -> &[AtomicU64] {
        self.words.words()
    }

    fn lock(&self) -> Result<Acquired> {
        moment();
        let me = self.life.number;
        let mut acquired = Acquired::Clean;
        self.shared.wait_until(|state| {
            if state.holder.is_some() && self.defect != Defect::LockLetsIn {
                return false;
            }
            state.holder = Some(me);
            if std::mem::take(&mut state.owner_died) {
                acquired = Acquired::OwnerDied;
            }
            true
        });
        match self.defect {
            Defect::PinsUnseen => {
                self.hidden_pins.store(self.words()[PIN_COUNT].swap(0, Relaxed), Relaxed);
            }
            Defect::BusyUnseen => {
                for slot in 1..=PROCESSES {
                    let leases = SLOTS + slot * SLOT_WORDS + LEASES;
                    for state in
                        self.words()[leases..][..4 * LEASE_WORDS].iter().step_by(LEASE_WORDS)
                    {
                        state.fetch_and(!LEASE_BUSY, Relaxed);
                    }
                }
            }
            Defect::DeathUnseen => {
                self.words()[cairn_testing::damage::UNDO].store(0, Relaxed);
                acquired = Acquired::Clean;
            }
            _ => {}
        }
        Ok(acquired)
    }

    fn unlock(&self) {
        if self.life.is_dead.load(Relaxed) {
            return;
        }
        if self.defect == Defect::PinsUnseen {
            self.words()[PIN_COUNT].fetch_add(self.hidden_pins.load(Relaxed), Relaxed);
        }
        moment();
        self.shared.update(|state| state.holder = None);
    }

    fn back(&self, _first_word: usize, _word_count: usize) -> Result<()> {
        Ok(())
    }
}

/// A tier whose transfers the scheduler may interrupt in the middle.
struct InterruptedTier(HeapTier);

impl Tier for InterruptedTier {
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let (first, second) = target.split_at_mut(target.len() / 2);
        moment();
        self.0.read(offset, first)?;
        moment();
        self.0.read(offset + first.len() as u64, second)?;
        moment();
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let (first, second) = source.split_at(source.len() / 2);
        moment();
        self.0.write(offset, first)?;
        moment();
        self.0.write(offset + first.len() as u64, second)?;
        moment();
        Ok(())
    }
}

/// A namespace and its processes.
pub struct Stage {
    words: Arc<HeapMemory>,
    shared: Arc<Shared>,
    tier: Arc<dyn Tier>,
    clock: Clock,
    next: AtomicU32,
    defect: Defect,
    running: RefCell<Vec<JoinHandle<()>>>,
}

impl Stage {
    /// Makes an empty namespace of `blocks` hugeblocks of 4 KiB.
    pub fn new(blocks: u32, defect: Defect) -> Stage {
        let geometry = small_geometry(blocks, INODES);
        let words = geometry.segment_bytes() as usize / 8;
        let words = SEGMENT
            .with(|segment| segment.get_or_init(|| Arc::new(HeapMemory::new(words))).clone());
        assert_eq!(words.words().len() as u64 * 8, geometry.segment_bytes(), "one size for all");
        // The last schedule may have ended in the middle.
        words.simulate_owner_death();
        clear(&words);
        let clock = Clock::default();
        Microfs::format(words.as_ref(), &geometry, CHECKSUM, SUPERUSER, clock.tick())
            .expect("the geometry is valid");
        let shared = Shared { state: Mutex::new(State::default()), changed: Condvar::new() };
        Stage {
            words,
            shared: Arc::new(shared),
            tier: Arc::new(InterruptedTier(HeapTier::new(&geometry))),
            clock,
            next: AtomicU32::new(1),
            defect,
            running: RefCell::new(Vec::new()),
        }
    }

    /// Attaches a process that belongs to the stage and never dies.
    pub fn process(&self) -> Process {
        self.attach(None).1
    }

    fn attach(&self, left: Option<u32>) -> (Arc<Life>, Process) {
        let number = self.next.fetch_add(1, Relaxed);
        let left = left.map(AtomicU32::new);
        let life = Arc::new(Life { number, left, is_dead: false.into() });
        let view = View {
            words: self.words.clone(),
            shared: self.shared.clone(),
            life: life.clone(),
            defect: self.defect,
            hidden_pins: AtomicU64::new(0),
        };
        let fs = Microfs::open(Box::new(view), checksum).expect("the header is intact");
        let identity = ProcessIdentity { pid: number, pid_namespace: 1, start_time: 1 };
        let (tier, clock) = (self.tier.clone(), self.clock.clone());
        let process = Process::attach(fs, identity, SUPERUSER, tier, clock);
        (life, process.expect("there are free slots"))
    }

    /// Starts a process that lives until `act` returns.
    pub fn start(&self, act: impl FnOnce(&Process) + Send + 'static) {
        self.start_process(None, act);
    }

    /// Starts a process that may die at any moment.
    pub fn start_mortal(&self, act: impl FnOnce(&Process) + Send + 'static) {
        let left = shuttle::rand::thread_rng().gen_range(1..=MOMENTS);
        self.start_process(Some(left), act);
    }

    fn start_process(&self, left: Option<u32>, act: impl FnOnce(&Process) + Send + 'static) {
        let (life, process) = self.attach(left);
        let actor = Actor { life, slot: process.slot, shared: self.shared.clone() };
        let thread = shuttle::thread::spawn(move || {
            ACTOR.with(|this| *this.borrow_mut() = Some(actor.clone()));
            let ended = catch_unwind(AssertUnwindSafe(|| act(&process)));
            ACTOR.with(|this| *this.borrow_mut() = None);
            match ended {
                Ok(()) => actor.shared.update(|state| state.departed.push((actor.slot, false))),
                Err(reason) if reason.is::<Dead>() => {}
                Err(reason) => resume_unwind(reason),
            }
        });
        self.running.borrow_mut().push(thread);
    }

    /// Cleans up after processes as they end or die, as the agent does, until none is left. Then
    /// checks the namespace. Returns the number of deaths.
    pub fn settle(&self, agent: &Process) -> usize {
        let started = self.running.borrow().len();
        let (mut gone, mut died) = (0, 0);
        while gone < started {
            self.shared.wait_until(|state| state.departed.len() > gone);
            let (slot, dead) = self.shared.update(|state| state.departed[gone]);
            match dead {
                true => agent.reap(slot).expect("a dead process can be reaped"),
                false => agent.fs.detach(slot, self.clock.tick()).expect("it is attached"),
            }
            gone += 1;
            died += usize::from(dead);
        }
        check(agent);
        agent.reclaim().expect("orphans can be freed");
        assert_eq!(agent.fs.orphans(), 0, "orphans are left");
        check(agent);
        died
    }

    /// Lets the threads of dead processes end, and joins all threads.
    pub fn end(self) {
        self.shared.update(|state| state.is_over = true);
        for thread in self.running.into_inner() {
            thread.join().expect("it ended");
        }
    }
}

/// Checks every invariant of the namespace.
pub fn check(process: &Process) {
    let report = process.fs.check().expect("the namespace is consistent");
    let blocks =
        report.free_blocks + report.file_blocks + report.orphaned_blocks + report.reserved_blocks;
    assert_eq!(blocks, report.capacity_blocks, "blocks add up: {report:?}");
}
