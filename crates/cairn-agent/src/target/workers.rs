//! Threads for what takes its time, so that no connection waits for another one's disk or arithmetic.
//!
//! Must stay true: there are never more than so many; what a connection wanted that is over is not begun any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Something to do.
pub(super) struct Job {
    /// Whoever wanted it is gone.
    pub(super) is_over: Arc<AtomicBool>,
    /// Does it, or, if told so, only lets go of what it has.
    pub(super) work: Box<dyn FnOnce(Begin) + Send>,
}

/// Whether a job is still wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    Work,
    LetGo,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
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
        state.jobs.push_back(job);
        if state.jobs.len() > state.idle && state.threads < self.threads_max {
            let workers = Arc::clone(self);
            let thread = thread::Builder::new().name("nvme-worker".into());
            let is_spawned = thread.spawn(move || workers.work()).is_ok();
            state.threads += usize::from(is_spawned);
        }
        // Without any thread it is done here and now.
        let job = if state.threads == 0 { state.jobs.pop_back() } else { None };
        drop(state);
        job.into_iter().for_each(run);
        self.is_work.notify_one();
    }

    fn work(&self) {
        loop {
            let mut state = self.state();
            state.idle += 1;
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                state = self.is_work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.idle -= 1;
            drop(state);
            run(job);
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
