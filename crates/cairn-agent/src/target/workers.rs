//! Threads for what takes its time, so that no connection waits for another one's disk or arithmetic.
//!
//! Must stay true: there are never more than so many, and of one namespace never more than some of them are busy: one whose disk
//! hangs leaves the others theirs. What a connection wanted that is over is not begun any more.

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

/// Jobs of which only so many are under way at a time; those of a namespace by where that stands in memory.
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
}

#[derive(Default)]
struct State {
    /// What may begin.
    jobs: VecDeque<Job>,
    /// Where something is under way.
    lanes: HashMap<Lane, Queue>,
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
    /// At most so many threads, each of which begins when it is needed; without any, who submits something does it.
    pub(super) fn new(threads_max: usize) -> Arc<Workers> {
        Arc::new(Workers { threads_max, state: Mutex::default(), is_work: Condvar::new() })
    }

    /// Has it done by the next thread that is free.
    pub(super) fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        if !state.add(job) {
            return;
        }
        if state.jobs.len() > state.idle && state.threads < self.threads_max {
            let workers = Arc::clone(self);
            let thread = thread::Builder::new().name("nvme-worker".into());
            let is_spawned = thread.spawn(move || workers.work()).is_ok();
            state.threads += usize::from(is_spawned);
        }
        // Without any thread it is done here and now.
        let job = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        if let Some(job) = job {
            let lane = job.lane;
            run(job);
            self.state().end(lane);
        }
        self.is_work.notify_one();
    }

    fn work(&self) {
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
            drop(state);
            let lane = job.lane;
            // Whoever waits for one that panics waits in vain, and nobody else does.
            let _ = catch_unwind(AssertUnwindSafe(|| run(job)));
            state = self.state();
            // If that lets another one begin, this thread looks for it now.
            state.end(lane);
        }
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

    /// Mechanism: jobs of all namespaces stood in one queue. Consequence: one whose disk was slow had all threads, and the hosts of
    /// others, and those that wanted to prove who they are, waited longer than they do. Fix: a part of the threads for each.
    #[test]
    fn namespace_whose_disk_hangs_keeps_no_other_waiting() {
        const THREADS: usize = NAMESPACE_MAX + 2;
        let workers = Workers::new(THREADS);
        let submit = |lane, work: Box<dyn FnOnce() + Send>| {
            let work = Box::new(move |_| work());
            workers.submit(Job { is_over: Arc::default(), lane, work });
        };
        let hang = Arc::new(Mutex::new(()));
        let (done, is_done) = mpsc::channel();
        let hanging = hang.lock().unwrap();
        for number in 0..2 * THREADS {
            let (hang, done) = (Arc::clone(&hang), done.clone());
            let lane = if number % 2 == 0 { Lane::Others(1) } else { Lane::Flushes(1) };
            let work = move || {
                drop(hang.lock());
                done.send(1).unwrap();
            };
            submit(lane, Box::new(work));
        }
        let other = done.clone();
        submit(Lane::Others(2), Box::new(move || other.send(2).unwrap()));
        let first = is_done.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(first, Ok(2), "that of the other one");
        drop(hanging);
        submit(Lane::Any, Box::new(|| panic!("on purpose")));
        drop(done);
        assert_eq!(is_done.iter().count(), 2 * THREADS, "all of them are done");
        assert!(workers.state().jobs.is_empty());
    }
}
