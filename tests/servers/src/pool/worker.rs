//! A thread that works: takes requests from the queue, carries them out, and writes the answers or
//! gives them back.

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, MutexGuard};

use crate::clock::thread_id;
use crate::job::Job;
use crate::oracle::{Kind, Record};
use crate::poll::Interest;
use crate::queue::lock;
use crate::work::Worker;

use super::connection::{Connection, Slot};
use super::{Common, Handed, Returned, Style};

/// Works until the queue is closed. `ready` is dropped before it takes the first request.
pub(super) fn run(common: &Common, index: u64, ready: SyncSender<()>) {
    let mut worker = Worker::new(Arc::clone(&common.shared));
    warm(common, index, &mut worker);
    drop(ready);
    while let Some(handed) = common.queue.pop() {
        let Handed { slot, mut job } = handed;
        job.take();
        match common.config.style {
            Style::Pool => {
                let mut connection = lock(&slot.connection);
                let sent = answer(&mut connection, &mut job, &mut worker);
                job.let_go();
                answered(common, &slot, connection, job, sent);
            }
            Style::Loop | Style::Staged | Style::Spin => {
                job.perform(&mut worker);
                job.let_go();
                common.give_back(Returned::Job(Handed { slot, job }));
            }
        }
    }
    close(common, &mut worker);
}

/// The answer is out, or cannot be: has the connection read again.
pub(super) fn answered(
    common: &Common,
    slot: &Arc<Slot>,
    mut connection: MutexGuard<'_, Connection>,
    job: Job,
    sent: io::Result<()>,
) {
    connection.answered(job, sent, &common.shared.oracle);
    let idle = connection.idle() && !common.stopping();
    drop(connection);
    // Only one that just waits for bytes needs nobody to look at it now.
    let again = || common.poller.again(slot.fd, slot.id, Interest::Read);
    if !idle || again().is_err() {
        common.give_back(Returned::Connection(Arc::clone(slot)));
    }
}

/// The worker ends: gives back what it has.
pub(super) fn close(common: &Common, worker: &mut Worker) {
    let mut record = of_thread(common, Kind::Worker);
    worker.close(&mut record.cuda);
    common.shared.oracle.submit(record);
}

fn of_thread(common: &Common, kind: Kind) -> Box<Record> {
    let mut record = common.shared.oracle.record();
    record.kind = kind;
    record.tid = thread_id();
    record
}

pub(super) fn warm(common: &Common, index: u64, worker: &mut Worker) {
    let plan = &common.config.options.warm;
    if plan.steps.is_empty() {
        return;
    }
    let mut record = of_thread(common, Kind::Warm);
    record.conn = index;
    record.peer_port = 0;
    if let Err(why) = worker.carry_out(plan, &mut record) {
        eprintln!("worker {index}: warm-up: {why}");
    }
    common.shared.oracle.submit(record);
}

/// Carries a request out and writes its answer, chunk by chunk, on a socket that blocks.
fn answer(connection: &mut Connection, job: &mut Job, worker: &mut Worker) -> io::Result<()> {
    while !job.done() {
        job.perform(worker);
        connection.write(job, &mut 0)?;
    }
    Ok(())
}
