//! Threads for what takes its time, so that no connection waits for another one's disk or
//! arithmetic.
//!
//! Must stay true: with one namespace never more than some of them are busy, and what may begin
//! never waits for others alone: where no thread is free its lane gets one of its own. So there are
//! never more than so many and one for each lane, and however many disks hang, the others are used.
//! What a connection wanted that is over is not begun any more.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most threads that are busy with one namespace, without flushes.
const NAMESPACE_MAX: usize = 16;

/// Something to do.
pub(super) struct Job {
    /// Whoever wanted it is gone.
    pub(super) is_over: Arc<AtomicBool>,
    /// Behind which others it waits.
    pub(super) lane: Lane,
    /// Does it, or, if told so, only lets go of what it has.
    pub(super) work: Box<dyn FnOnce(Begin) + Send>,
}

/// Jobs of which only so many are under way at a time; those of a namespace by where that stands in
/// memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// As many as there are threads.
    Any,
    /// Flushes of a namespace: one of them, which ends many.
    Flushes(usize),
    /// Whatever else is done with it.
    Others(usize),
}

impl Lane {
    fn most(self) -> usize {
        match self {
            Lane::Any => usize::MAX,
            Lane::Flushes(_) => 1,
            Lane::Others(_) => NAMESPACE_MAX,
        }
    }
}

/// Whether a job is still wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    Work,
    LetGo,
}

/// Jobs of a lane.
#[derive(Default)]
struct Queue {
    /// Those that may begin, and those that have.
    under_way: usize,
    waiting: VecDeque<Job>,
    /// A thread does what may begin of it and nothing else, as long as there is any.
    has_own: bool,
}

#[derive(Default)]
struct State {
    /// What may begin. Each has an idle thread that takes it, or one of its lane's own.
    jobs: VecDeque<Job>,
    /// Where something is under way.
    lanes: HashMap<Lane, Queue>,
    /// Without those of a lane's own.
    threads: usize,
    idle: usize,
}

impl State {
    /// Adds a job; whether it may begin.
    fn add(&mut self, job: Job) -> bool {
        let queue = self.lanes.entry(job.lane).or_default();
        let may_begin = queue.under_way < job.lane.most();
        if may_begin {
            queue.under_way += 1;
            self.jobs.push_back(job);
        } else {
            queue.waiting.push_back(job);
        }
        may_begin
    }

    /// One of that lane has ended: the next one may begin.
    fn end(&mut self, lane: Lane) {
        let Some(queue) = self.lanes.get_mut(&lane) else { return };
        match queue.waiting.pop_front() {
            Some(job) => self.jobs.push_back(job),
            None => queue.under_way -= 1,
        }
        if queue.under_way == 0 {
            self.lanes.remove(&lane);
        }
    }
}

/// The threads and what they have to do.
pub(super) struct Workers {
    threads_max: usize,
    state: Mutex<State>,
    is_work: Condvar,
}

impl Workers {
    /// At most so many threads for all lanes, each of which begins when it is needed; without any,
    /// who submits something does it.
    pub(super) fn new(threads_max: usize) -> Arc<Workers> {
        Arc::new(Workers { threads_max, state: Mutex::default(), is_work: Condvar::new() })
    }

    /// Has it done by the next thread that is free.
    pub(super) fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        let lane = job.lane;
        if !state.add(job) {
            return;
        }
        self.provide_for(lane, &mut state);
        // Without any thread it is done here and now.
        let job = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        if let Some(job) = job {
            run(job);
            self.state().end(lane);
        }
        self.is_work.notify_one();
    }

    /// Has a thread for what may begin of a lane, if those that are idle have something to do.
    fn provide_for(self: &Arc<Self>, lane: Lane, state: &mut State) {
        if state.jobs.len() <= state.idle {
            return;
        }
        let workers = Arc::clone(self);
        let thread = thread::Builder::new().name("nvme-worker".into());
        if state.threads < self.threads_max {
            state.threads += usize::from(thread.spawn(move || workers.work()).is_ok());
        } else if let Some(queue) = state.lanes.get_mut(&lane).filter(|queue| !queue.has_own) {
            let is_bounded = self.threads_max > 0 && lane != Lane::Any;
            queue.has_own = is_bounded && thread.spawn(move || workers.work_for(lane)).is_ok();
        }
    }

    fn work(self: Arc<Self>) {
        let mut state = self.state();
        loop {
            state.idle += 1;
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                state = self.is_work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.idle -= 1;
            let lane = job.lane;
            state = self.carry_out(job, state);
            // If that lets another one begin, this thread looks for what is next now.
            state.idle += 1;
            self.provide_for(lane, &mut state);
            state.idle -= 1;
        }
    }

    /// Does what may begin of that lane, until there is nothing.
    fn work_for(&self, lane: Lane) {
        let mut state = self.state();
        while let Some(at) = state.jobs.iter().position(|job| job.lane == lane) {
            let Some(job) = state.jobs.remove(at) else { break };
            state = self.carry_out(job, state);
        }
        if let Some(queue) = state.lanes.get_mut(&lane) {
            queue.has_own = false;
        }
    }

    fn carry_out<'a>(&'a self, job: Job, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        let lane = job.lane;
        // Whoever waits for one that panics waits in vain, and nobody else does.
        let _ = catch_unwind(AssertUnwindSafe(|| run(job)));
        let mut state = self.state();
        state.end(lane);
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(job: Job) {
    let is_over = job.is_over.load(Ordering::Relaxed);
    (job.work)(if is_over { Begin::LetGo } else { Begin::Work });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    type Work = Box<dyn FnOnce() + Send>;

    fn submit(workers: &Arc<Workers>, lane: Lane, work: Work) {
        let work = Box::new(move |_| work());
        workers.submit(Job { is_over: Arc::default(), lane, work });
    }

    /// Mechanism: jobs of all namespaces stood in one queue, of which each had a part of the
    /// threads. Consequence: one whose disk was slow, later some of them, had all threads, and the
    /// hosts of others waited longer than they do. Fix: a part of the threads for each, and one of
    /// its own when there is none.
    #[test]
    fn namespaces_whose_disks_hang_keep_no_other_waiting_however_many_they_are() {
        const THREADS: usize = NAMESPACE_MAX + 2;
        const JOBS: usize = 2 * NAMESPACE_MAX;
        for hanging_lanes in [1, 2 * THREADS] {
            let workers = Workers::new(THREADS);
            let hang = Arc::new(Mutex::new(()));
            let (done, is_done) = mpsc::channel();
            let hanging = hang.lock().unwrap();
            for number in 0..hanging_lanes * JOBS {
                let (hang, done) = (Arc::clone(&hang), done.clone());
                let place = 1 + number % hanging_lanes;
                let is_flush = number / hanging_lanes % 2 == 0;
                let lane = if is_flush { Lane::Flushes(place) } else { Lane::Others(place) };
                let work = move || {
                    drop(hang.lock());
                    done.send(1).unwrap();
                };
                submit(&workers, lane, Box::new(work));
            }
            // More than may begin at once, again and again.
            for round in 0..3 {
                for _ in 0..JOBS {
                    let other = done.clone();
                    submit(&workers, Lane::Others(0), Box::new(move || other.send(2).unwrap()));
                }
                let other = done.clone();
                submit(&workers, Lane::Flushes(0), Box::new(move || other.send(2).unwrap()));
                for _ in 0..=JOBS {
                    let next = is_done.recv_timeout(std::time::Duration::from_secs(60));
                    assert_eq!(next, Ok(2), "those of the other one, {round}, {hanging_lanes}");
                }
            }
            drop(hanging);
            let panics = move || {
                let _is_held_until_then = done;
                panic!("on purpose")
            };
            submit(&workers, Lane::Any, Box::new(panics));
            assert_eq!(is_done.iter().count(), hanging_lanes * JOBS, "all of them are done");
            assert!(workers.state().jobs.is_empty());
        }
    }
}
