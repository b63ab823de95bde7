//! The runtime's blocking threads: each has streams and buffers of its own.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Barrier};

use crate::clock::thread_id;
use crate::job::Job;
use crate::oracle::{Kind, Record};
use crate::plan::Plan;
use crate::work::{Shared, Worker};

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

fn with_worker<T>(shared: &Arc<Shared>, work: impl FnOnce(&mut Worker) -> T) -> T {
    WORKER.with_borrow_mut(|worker| {
        work(worker.get_or_insert_with(|| Worker::new(Arc::clone(shared))))
    })
}

fn of_thread(shared: &Shared, kind: Kind) -> Box<Record> {
    let mut record = shared.oracle.record();
    record.kind = kind;
    record.tid = thread_id();
    record
}

/// Has a blocking thread make a request's answer, or its next chunk.
pub(super) async fn perform(shared: &Arc<Shared>, mut job: Job) -> io::Result<Job> {
    let shared = Arc::clone(shared);
    job.hand();
    let work = tokio::task::spawn_blocking(move || {
        job.take();
        with_worker(&shared, |worker| job.perform(worker));
        job.let_go();
        job
    });
    work.await.map_err(io::Error::other)
}

/// Has each of `threads` blocking threads carry out a plan.
pub(super) async fn warm(shared: &Arc<Shared>, threads: usize, plan: Plan) -> io::Result<()> {
    // Nobody goes on before all are there: so every thread has one of the tasks.
    let all = Arc::new(Barrier::new(threads));
    let tasks: Vec<_> = (0..threads)
        .map(|index| {
            let (shared, all, plan) = (Arc::clone(shared), Arc::clone(&all), plan.clone());
            tokio::task::spawn_blocking(move || {
                all.wait();
                let mut record = of_thread(&shared, Kind::Warm);
                record.conn = index as u64;
                record.peer_port = 0;
                let done = with_worker(&shared, |worker| worker.carry_out(&plan, &mut record));
                if let Err(why) = done {
                    eprintln!("blocking thread {index}: warm-up: {why}");
                }
                shared.oracle.submit(record);
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// A thread of the runtime ends.
pub(super) fn close(shared: &Shared) {
    if let Some(mut worker) = WORKER.take() {
        let mut record = of_thread(shared, Kind::Worker);
        worker.close(&mut record.cuda);
        shared.oracle.submit(record);
    }
}
