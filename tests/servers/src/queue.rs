//! A bounded queue between threads, and the ways of waking the one that takes from it.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How a thread that waits for an item is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Waking {
    /// A condition variable beside the queue's mutex.
    Condvar,
    /// A pipe that carries the numbers of the items.
    Pipe,
    /// A semaphore that counts the items (glibc's, on a futex).
    Sem,
}

/// A counting semaphore.
struct Semaphore(Box<UnsafeCell<libc::sem_t>>);

// SAFETY: the semaphore is on the heap, does not move, and its functions may be called by any
// thread.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    fn new() -> Semaphore {
        // SAFETY: the memory is valid and initialised by sem_init before anything else uses it.
        let semaphore = Box::new(UnsafeCell::new(unsafe { std::mem::zeroed() }));
        // SAFETY: as above; private to this process, nothing counted yet.
        unsafe { libc::sem_init(semaphore.get(), 0, 0) };
        Semaphore(semaphore)
    }

    fn post(&self) {
        // SAFETY: the semaphore was initialised and lives as long as `self`.
        unsafe { libc::sem_post(self.0.get()) };
    }

    fn wait(&self) {
        // SAFETY: as above. A signal may interrupt the wait.
        while unsafe { libc::sem_wait(self.0.get()) } != 0 {}
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: nobody waits any more: the queue that holds it is borrowed by nobody.
        unsafe { libc::sem_destroy(self.0.get()) };
    }
}

enum Wake {
    Condvar(Condvar),
    /// The writing end goes when the queue is closed.
    Pipe(Mutex<Option<File>>, File),
    Sem(Semaphore),
}

struct Items<T> {
    waiting: BTreeMap<u32, T>,
    next: u32,
    closed: bool,
}

/// A first-in first-out queue.
pub struct Queue<T> {
    items: Mutex<Items<T>>,
    room: Condvar,
    capacity: usize,
    wake: Wake,
}

/// Takes a mutex whoever died with it: what it guards stays whole between its users' statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pipe's reading and writing end.
fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let [read, write] = ends.map(|fd| {
        // SAFETY: pipe2 returned this descriptor; nobody else has it.
        File::from(unsafe { OwnedFd::from_raw_fd(fd) })
    });
    Ok((read, write))
}

impl<T> Queue<T> {
    /// A queue for at most `capacity` items (a pipe takes 16384 numbers without blocking).
    pub fn new(waking: Waking, capacity: usize) -> io::Result<Queue<T>> {
        let wake = match waking {
            Waking::Condvar => Wake::Condvar(Condvar::new()),
            Waking::Pipe => {
                let (read, write) = pipe()?;
                Wake::Pipe(Mutex::new(Some(write)), read)
            }
            Waking::Sem => Wake::Sem(Semaphore::new()),
        };
        let items = Items { waiting: BTreeMap::new(), next: 0, closed: false };
        Ok(Queue { items: Mutex::new(items), room: Condvar::new(), capacity, wake })
    }

    /// Adds an item, waiting for room; gives it back when the queue is closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut items = lock(&self.items);
        while items.waiting.len() >= self.capacity && !items.closed {
            items = self.room.wait(items).unwrap_or_else(PoisonError::into_inner);
        }
        if items.closed {
            return Err(item);
        }
        let number = items.next;
        items.next = number.wrapping_add(1);
        items.waiting.insert(number, item);
        drop(items);
        match &self.wake {
            Wake::Condvar(condvar) => condvar.notify_one(),
            Wake::Pipe(write, _) => {
                if let Some(write) = &mut *lock(write) {
                    // The queue holds the reading end: the write cannot fail.
                    let _ = write.write_all(&number.to_ne_bytes());
                }
            }
            Wake::Sem(semaphore) => semaphore.post(),
        }
        Ok(())
    }

    /// Takes the oldest item, waiting for one; `None` once the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let item = match &self.wake {
            Wake::Condvar(condvar) => {
                let mut items = lock(&self.items);
                while items.waiting.is_empty() && !items.closed {
                    items = condvar.wait(items).unwrap_or_else(PoisonError::into_inner);
                }
                items.waiting.pop_first().map(|(_, item)| item)
            }
            Wake::Pipe(_, read) => {
                let mut number = [0; 4];
                // Four bytes are written at once, and so they are read.
                match { read }.read_exact(&mut number) {
                    Ok(()) => lock(&self.items).waiting.remove(&u32::from_ne_bytes(number)),
                    Err(_) => None,
                }
            }
            Wake::Sem(semaphore) => {
                semaphore.wait();
                let item = lock(&self.items).waiting.pop_first().map(|(_, item)| item);
                if item.is_none() {
                    // Closed: the next one that waits is to see it too.
                    semaphore.post();
                }
                item
            }
        };
        if item.is_some() {
            self.room.notify_one();
        }
        item
    }

    /// Takes no more items; those that wait are still given out.
    pub fn close(&self) {
        lock(&self.items).closed = true;
        self.room.notify_all();
        match &self.wake {
            Wake::Condvar(condvar) => condvar.notify_all(),
            Wake::Pipe(write, _) => drop(lock(write).take()),
            Wake::Sem(semaphore) => semaphore.post(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_item_is_taken_once_however_threads_are_woken() {
        for waking in [Waking::Condvar, Waking::Pipe, Waking::Sem] {
            let queue = Queue::new(waking, 3).unwrap();
            let taken = std::thread::scope(|scope| {
                let takers: Vec<_> = (0..3)
                    .map(|_| scope.spawn(|| std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>()))
                    .collect();
                for number in 0..1000 {
                    queue.push(number).unwrap();
                }
                queue.close();
                assert_eq!(queue.push(1000), Err(1000));
                takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect::<Vec<u32>>()
            });
            assert_eq!(taken.len(), 1000, "{waking:?}");
            assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), (0..1000).collect());
        }
    }

    #[test]
    fn one_taker_sees_the_order() {
        for waking in [Waking::Condvar, Waking::Pipe, Waking::Sem] {
            let queue = Queue::new(waking, 10).unwrap();
            for number in 0..10 {
                queue.push(number).unwrap();
            }
            queue.close();
            let taken: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
            assert_eq!(taken, (0..10).collect::<Vec<_>>());
        }
    }
}
