//! Threads that share the tasks of one operation.
//!
//! One token's pass is some hundreds of operations of tens of microseconds each, so waiting
//! threads spin for a while before they sleep. Which thread runs a task is left open; what a task
//! computes must depend on its number only.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

/// How often a waiting worker looks before it sleeps: some hundred microseconds.
const SPINS: u32 = 2_000;
/// Looks between two offers of the core to others.
const SPINS_BETWEEN_YIELDS: u32 = 64;

/// The current job is open to workers that have not joined it.
const OPEN: u64 = 1 << 31;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// A fixed set of threads; the calling thread is one of them.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the operation that runs.
    running: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of the job in the upper half; below, [`OPEN`] and how many workers joined it.
    state: AtomicU64,
    /// The job; written while none is open, read by those who joined.
    task: Mutex<Option<Job>>,
    next: AtomicUsize,
    finished: AtomicU64,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    task: *const Task<'static>,
    n_tasks: usize,
}

// SAFETY: the task is Sync, and `run` outlives every use of the pointer.
unsafe impl Send for Job {}

impl Pool {
    /// `n_threads` threads, the caller among them; at least one.
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let workers = (1..n_threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("cpu-{i}"))
                    .spawn(move || shared.work())
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        Ok(Pool {
            shared,
            workers,
            running: Mutex::new(()),
        })
    }

    /// Threads, the caller included.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(n_tasks - 1)`, in any order, and returns when all are done.
    ///
    /// # Panics
    /// When a task panics, after all threads have left the job. A task must not call `run`.
    pub fn run(&self, n_tasks: usize, task: &Task<'_>) {
        if self.workers.is_empty() || n_tasks <= 1 {
            (0..n_tasks).for_each(task);
            return;
        }
        let _running = lock(&self.running);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; nobody holds the pointer when this call returns.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        *lock(&shared.task) = Some(Job {
            task: erased,
            n_tasks,
        });
        shared.next.store(0, Ordering::Relaxed);
        shared.finished.store(0, Ordering::Relaxed);
        let job = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        shared.state.store((job << 32) | OPEN, Ordering::SeqCst);
        if *lock(&shared.sleepers) > 0 {
            shared.wake.notify_all();
        }
        shared.take_tasks(Job {
            task: erased,
            n_tasks,
        });
        let closed = shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let joined = closed & (OPEN - 1);
        let mut spins = 0u32;
        while shared.finished.load(Ordering::Acquire) < joined {
            pause(&mut spins);
        }
        *lock(&shared.task) = None;
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleepers));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tasks and has no others.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut seen = 0;
        while let Some(job) = self.wait_for_job(seen) {
            seen = job;
            if !self.join(job) {
                continue;
            }
            let task = *lock(&self.task);
            if let Some(task) = task {
                self.take_tasks(task);
            }
            self.finished.fetch_add(1, Ordering::Release);
        }
    }

    /// The number of a job other than `seen`; none when the pool ends.
    fn wait_for_job(&self, seen: u64) -> Option<u64> {
        let fresh = || {
            let job = self.state.load(Ordering::SeqCst) >> 32;
            (job != seen).then_some(job)
        };
        loop {
            let mut spins = 0;
            for _ in 0..SPINS {
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                if let Some(job) = fresh() {
                    return Some(job);
                }
                pause(&mut spins);
            }
            let mut sleepers = lock(&self.sleepers);
            *sleepers += 1;
            while fresh().is_none() && !self.stop.load(Ordering::SeqCst) {
                sleepers = self
                    .wake
                    .wait(sleepers)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *sleepers -= 1;
        }
    }

    /// Counts the caller in, unless the job is closed or another one.
    fn join(&self, job: u64) -> bool {
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
                (state >> 32 == job && state & OPEN != 0).then_some(state + 1)
            })
            .is_ok()
    }

    fn take_tasks(&self, job: Job) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= job.n_tasks {
                return;
            }
            // SAFETY: `run` waits for everyone who joined before its borrow ends.
            let task = unsafe { &*job.task };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(i))) {
                *lock(&self.panic) = Some(payload);
            }
        }
    }
}

/// A short wait that leaves the core to others now and then.
fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(SPINS_BETWEEN_YIELDS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for n_threads in [1, 2, 5] {
            let pool = Pool::new(n_threads).unwrap();
            for round in 0..2_000 {
                let n_tasks = round % 17;
                let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn sleeping_threads_wake_and_callers_share() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        pool.run(10, &|i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 20 * 45);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(50, &|i| assert!(i != 20, "task 20"));
        }));
        assert!(result.is_err());
        let done = AtomicUsize::new(0);
        pool.run(50, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 50);
    }
}
