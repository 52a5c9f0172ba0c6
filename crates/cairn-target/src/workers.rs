//! Threads for slow work, so that no connection waits for another one's disk or arithmetic.
//!
//! Must stay true: at most `NAMESPACE_MAX` threads work for one namespace, without its flushes. A
//! job that may begin never waits only for jobs of other lanes: if no thread is free, its lane gets
//! a thread of its own. There are therefore at most `threads_max` threads plus one per lane, and
//! disks that hang do not keep the others idle. A job of a connection that is over is not begun any
//! more.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most threads that work for one namespace, without its flushes.
const NAMESPACE_MAX: usize = 16;

/// A unit of work.
pub(super) struct Job {
    /// Whether the connection that wanted it is over.
    pub(super) is_over: Arc<AtomicBool>,
    /// Lane in which it waits.
    pub(super) lane: Lane,
    /// Does the work, or only releases its resources if told so.
    pub(super) work: Box<dyn FnOnce(Begin) + Send>,
}

/// Group of jobs with a limit on how many are under way. A namespace is identified by its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// No limit other than the number of threads.
    Any,
    /// Flushes of a namespace: one at a time, which completes many.
    Flushes(usize),
    /// Other jobs of a namespace.
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
    /// Number of jobs that have begun or may begin.
    under_way: usize,
    waiting: VecDeque<Job>,
    /// Whether the lane has a thread of its own. That thread does the lane's jobs only, and ends
    /// when none may begin.
    has_own: bool,
}

#[derive(Default)]
struct State {
    /// Jobs that may begin. Each has an idle thread that takes it, or one of its lane's own.
    jobs: VecDeque<Job>,
    /// Lanes with jobs under way.
    lanes: HashMap<Lane, Queue>,
    /// Number of threads, without those that belong to a lane.
    threads: usize,
    idle: usize,
}

impl State {
    /// Adds a job. Returns whether it may begin.
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

    /// Records that a job of `lane` has ended. The next one may begin.
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

/// The threads and their jobs.
pub(super) struct Workers {
    threads_max: usize,
    state: Mutex<State>,
    is_work: Condvar,
}

impl Workers {
    /// Starts up to `threads_max` threads for all lanes, each when it is needed. With 0, `submit`
    /// does the work itself.
    pub(super) fn new(threads_max: usize) -> Arc<Workers> {
        Arc::new(Workers { threads_max, state: Mutex::default(), is_work: Condvar::new() })
    }

    /// Has the next free thread do a job.
    pub(super) fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        let lane = job.lane;
        if !state.add(job) {
            return;
        }
        self.provide_for(lane, &mut state);
        // Without any thread, do the job here and now.
        let job = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        if let Some(job) = job {
            run(job);
            self.state().end(lane);
        }
        self.is_work.notify_one();
    }

    /// Starts a thread for a job of `lane` that may begin, unless an idle thread takes it.
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
            // If another job may begin now, this thread takes it next: count it as idle.
            state.idle += 1;
            self.provide_for(lane, &mut state);
            state.idle -= 1;
        }
    }

    /// Does jobs of `lane` until none may begin.
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
        // Only the host that waits for a job which panics waits in vain.
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

    /// Mechanism: jobs of all namespaces shared one queue, and each namespace had a share of the
    /// threads.
    ///
    /// Consequence: slow disks of one namespace, or of several, occupied all threads, and hosts of
    /// other namespaces waited for those disks.
    ///
    /// Fix: each namespace has a share of the threads, and a thread of its own if none is free.
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
            // More jobs than may begin at once, again and again.
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
