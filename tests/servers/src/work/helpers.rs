//! Threads that other threads hand small tasks to, and wait for.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::clock::{now_ns, spin, thread_id};
use crate::queue::{Queue, Waking, lock};

/// More than one `fan` hands out; several at once may wait for room.
const CAPACITY: usize = 1024;

/// The tasks of one `fan`: each done one leaves its thread and its stamps.
struct Fan {
    done: Mutex<Vec<(i32, u64, u64)>>,
    count: usize,
    all: Condvar,
}

struct Task {
    ns: u64,
    fan: Arc<Fan>,
}

/// The threads; they live as long as the process.
pub(super) struct Helpers {
    queue: Arc<Queue<Task>>,
}

impl Helpers {
    pub(super) fn start(threads: usize) -> io::Result<Helpers> {
        let queue = Arc::new(Queue::<Task>::new(Waking::Condvar, CAPACITY)?);
        for index in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("helper-{index}")).spawn(move || {
                while let Some(task) = queue.pop() {
                    let before = now_ns();
                    spin(task.ns);
                    let after = now_ns();
                    let mut done = lock(&task.fan.done);
                    done.push((thread_id(), before, after));
                    let last = done.len() == task.fan.count;
                    drop(done);
                    if last {
                        task.fan.all.notify_one();
                    }
                }
            })?;
        }
        Ok(Helpers { queue })
    }

    /// Has `count` tasks done, each of `ns` of CPU time, and waits for all.
    pub(super) fn fan(&self, count: u64, ns: u64) -> Vec<(i32, u64, u64)> {
        let count = count as usize;
        let done = Mutex::new(Vec::with_capacity(count));
        let fan = Arc::new(Fan { done, count, all: Condvar::new() });
        for _ in 0..count {
            // The queue is never closed.
            let _ = self.queue.push(Task { ns, fan: Arc::clone(&fan) });
        }
        let mut done = lock(&fan.done);
        while done.len() < count {
            done = fan.all.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut *done)
    }
}
