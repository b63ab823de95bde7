//! A look at threads from outside: what they are in now. The kernel half tells of a call when it
//! returns; of one that does not, its maps and `/proc` do.

use std::{collections::HashMap, fs, fs::File, os::unix::fs::FileExt as _};

use crate::{
    discover::process,
    intake::event::{Activity, Doing},
    probe::{Door, ThreadNow},
};

/// Threads that are looked at in one go.
pub const MAX_THREADS: usize = 64;
/// `futex`, of which a mutex may say who owns it (`asm/unistd_64.h`).
const FUTEX: u32 = 202;
/// Where a mutex of the C library has its owner: its futex word, a count, then the thread
/// (`struct __pthread_mutex_s`, x86-64).
const OWNER_AT: u64 = 8;

/// Looks at threads, `(process, thread)` each, at most [`MAX_THREADS`] of them.
pub fn glance(wanted: &[(u32, u32)], door: &Door) -> Vec<Doing> {
    let wanted = wanted.get(..MAX_THREADS).unwrap_or(wanted);
    let mut driver: HashMap<(u32, u32), (u16, u64)> = HashMap::new();
    for (pid, tid, api, enter_ns) in door.driver_calls() {
        if wanted.contains(&(pid, tid)) {
            // Calls nest: the outermost is what the program called.
            let outermost = driver.entry((pid, tid)).or_insert((api, enter_ns));
            if enter_ns < outermost.1 {
                *outermost = (api, enter_ns);
            }
        }
    }
    wanted
        .iter()
        .filter_map(|(pid, tid)| {
            let doing = look(*pid, *tid, door.thread_now(*tid))?;
            Some(Doing { driver: driver.get(&(*pid, *tid)).copied(), ..doing })
        })
        .collect()
}

/// `None` where nothing can be read, for instance because the thread has ended.
fn look(pid: u32, tid: u32, known: Option<ThreadNow>) -> Option<Doing> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let state = activity(&stat, known)?;
    let line = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    let syscall = syscall(&line);
    let in_call = known.filter(|known| known.in_call);
    let out_ns = known.map_or(0, |known| known.out_ns);
    let since_ns = match (state, in_call) {
        (Activity::Running | Activity::Ended, None) => 0,
        (Activity::Stopped, _) => out_ns,
        (_, Some(call)) if call.enter_ns > 0 => call.enter_ns,
        _ => out_ns,
    };
    let address = syscall.filter(|(number, _)| *number == FUTEX).map(|(_, address)| address);
    let object = match (in_call, address) {
        (_, Some(address)) => address,
        (Some(call), None) => call.object,
        (None, None) => 0,
    };
    let owner = address.and_then(|address| owner(pid, tid, address));
    let syscall = syscall.map(|(number, _)| number);
    Some(Doing { pid, tid, state, syscall, since_ns, object, driver: None, owner })
}

/// The third field of `stat`, behind the name, which may hold anything.
fn activity(stat: &str, known: Option<ThreadNow>) -> Option<Activity> {
    let letter = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    Some(match letter {
        'R' => match known {
            Some(now) if now.out_ns > 0 && (now.preempted || now.woken_ns > 0) => {
                Activity::Runnable
            }
            _ => Activity::Running,
        },
        'S' | 'I' => Activity::Blocked,
        'D' => Activity::Disk,
        'T' | 't' => Activity::Stopped,
        _ => Activity::Ended,
    })
}

/// Number and first argument of the call that a thread is blocked in: `/proc/<pid>/syscall` has
/// `running`, or the number in decimal and the arguments in hexadecimal.
fn syscall(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let first = words.next()?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(first, 16).unwrap_or(0)))
}

/// Whom the memory at a futex names as its owner, where it is laid out as a mutex of the C library:
/// a thread of the same process stands there. Other things that are waited for have something else.
fn owner(pid: u32, tid: u32, address: u64) -> Option<u32> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut owner = [0; 4];
    memory.read_exact_at(&mut owner, address.checked_add(OWNER_AT)?).ok()?;
    let owner = u32::from_ne_bytes(owner);
    (owner > 0 && owner != tid && process::has_thread(pid, owner)).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_stand_behind_any_name() {
        let known = ThreadNow {
            in_call: false,
            enter_ns: 0,
            object: 0,
            out_ns: 5,
            preempted: true,
            woken_ns: 0,
        };
        assert_eq!(activity("7 (a) R b) S 1", None), Some(Activity::Blocked));
        assert_eq!(activity("7 (x) R 1", None), Some(Activity::Running));
        assert_eq!(activity("7 (x) R 1", Some(known)), Some(Activity::Runnable));
        assert_eq!(activity("7 (x) T 1", Some(known)), Some(Activity::Stopped));
        assert_eq!(activity("7 (x) ", None), None);
        assert_eq!(activity("", None), None);
    }

    #[test]
    fn calls_of_blocked_threads_are_read() {
        let line = "202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f12\n";
        assert_eq!(syscall(line), Some((202, 0x7f00)));
        for none in ["running\n", "-1 0x7ffd 0x7f12\n", "", "x"] {
            assert_eq!(syscall(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_mutex_that_another_thread_holds_names_it() {
        // Laid out as the C library does: word, count, owner.
        let (pid, tid) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get());
        let made = |owner: u32| {
            let mutex: [u32; 4] = [2, 0, owner, 1];
            let address = std::ptr::from_ref(&mutex) as u64;
            super::owner(pid, tid as u32, address)
        };
        let first = process::threads(pid).into_iter().find(|other| *other != tid as u32);
        assert_eq!(made(first.unwrap_or(0)), first);
        assert_eq!((made(tid as u32), made(0), made(u32::MAX >> 1)), (None, None, None));
    }
}
