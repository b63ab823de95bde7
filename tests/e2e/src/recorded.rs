//! How many records a session holds, by the programs that make them.

use tracer_user::intake::event::{Process, Sched, Sleep, Socket, What};

/// Numbers of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Records that stem from a pair of `sys_enter` and `sys_exit`.
    pub pairs: u64,
    /// Switches out, wakes and switches in of the targets' threads.
    pub sched_events: u64,
}

impl Recorded {
    /// Counts an event.
    pub fn add(&mut self, what: &What) {
        match what {
            What::Socket(
                Socket::Io(_)
                | Socket::Accept { .. }
                | Socket::Connect { .. }
                | Socket::Close { .. }
                | Socket::Dup { .. }
                | Socket::CloseRange { .. }
                | Socket::Shutdown { .. }
                | Socket::Named { .. }
                | Socket::Listen { .. },
            )
            | What::Sched(Sched::Signal { .. } | Sched::EpollCtl { .. } | Sched::Yields { .. })
            | What::Process(Process::MapExec) => self.pairs += 1,
            What::Sched(Sched::OffCpu(sleep)) => self.sched_events += events(sleep),
            What::Sched(Sched::Wait(wait)) => {
                self.pairs += 1;
                self.sched_events += wait.sleep.as_ref().map_or(0, events);
            }
            What::Process(_) | What::Tcp(_) | What::Cuda(_) | What::Proc(_) | What::Loss(_) => {}
        }
    }
}

/// Tracepoints passed in one absence: a sleep with its wake is three, a preemption two, a wake that
/// came before the thread had left is one.
fn events(sleep: &Sleep) -> u64 {
    let woken = sleep.woken_ns;
    let left = woken != Some(sleep.out_ns);
    let came_back = woken != Some(sleep.in_ns);
    u64::from(left) + u64::from(woken.is_some()) + u64::from(came_back)
}

#[cfg(test)]
mod tests {
    use tracer_user::intake::event::SleepState;

    use super::*;

    fn count(out_ns: u64, woken_ns: Option<u64>, in_ns: u64) -> u64 {
        let state = SleepState::Interruptible;
        let mut recorded = Recorded::default();
        let sleep = Sleep { out_ns, woken_ns, in_ns, state, waker: None };
        recorded.add(&What::Sched(Sched::OffCpu(sleep)));
        recorded.sched_events
    }

    #[test]
    fn an_absence_counts_what_it_passed() {
        assert_eq!(count(1, Some(2), 3), 3);
        assert_eq!(count(1, None, 3), 2, "preempted");
        assert_eq!(count(2, Some(2), 3), 2, "the switch out was not seen");
        assert_eq!(count(2, Some(2), 2), 1, "woken before it left");
    }
}
