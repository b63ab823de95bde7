//! A line of three threads, each with a part of every request: one prepares, one has the GPU, one
//! writes. Channels of the standard library lie between them; `None` ends each in turn.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{Builder, JoinHandle};

use crate::queue::lock;
use crate::work::Worker;

use super::{Common, Handed, worker};

type From = Receiver<Option<Handed>>;
type To = Sender<Option<Handed>>;

/// Starts the threads. `ready` is dropped before the GPU's takes the first request.
pub(super) fn start(
    common: &Arc<Common>,
    requests: From,
    ready: SyncSender<()>,
) -> io::Result<[JoinHandle<()>; 3]> {
    let (to_gpu, prepared) = mpsc::channel();
    let (to_writer, made) = mpsc::channel();
    let more = to_gpu.clone();
    let thread = |name: &str| Builder::new().name(name.to_owned());
    let [first, second, third] = [(); 3].map(|()| Arc::clone(common));
    Ok([
        thread("prepare").spawn(move || prepare(&first, &requests, &to_gpu))?,
        thread("gpu").spawn(move || gpu(&second, &prepared, &to_writer, ready))?,
        thread("writer").spawn(move || write(&third, &made, &more))?,
    ])
}

/// Puts a request into a channel. Its other end ends only when this one has said so.
fn hand(to: &To, mut handed: Handed) {
    handed.job.hand();
    drop(to.send(Some(handed)));
}

fn prepare(common: &Common, from: &From, to: &To) {
    while let Ok(Some(mut handed)) = from.recv() {
        handed.job.enter();
        handed.job.prepare(common.config.prepare_ns);
        handed.job.leave("prepare");
        hand(to, handed);
    }
    drop(to.send(None));
}

fn gpu(common: &Arc<Common>, from: &From, to: &To, ready: SyncSender<()>) {
    let mut worker = Worker::new(Arc::clone(&common.shared));
    worker::warm(common, 0, &mut worker);
    drop(ready);
    while let Ok(Some(mut handed)) = from.recv() {
        handed.job.take();
        handed.job.perform(&mut worker);
        handed.job.let_go();
        handed.job.leave("gpu");
        hand(to, handed);
    }
    drop(to.send(None));
    worker::close(common, &mut worker);
}

/// Writes on sockets that block; `more` is where the next chunk of a streamed answer is made.
fn write(common: &Common, from: &From, more: &To) {
    while let Ok(Some(mut handed)) = from.recv() {
        handed.job.enter();
        let slot = Arc::clone(&handed.slot);
        let mut connection = lock(&slot.connection);
        let sent = connection.write(&mut handed.job, &mut 0);
        handed.job.leave("write");
        if sent.is_ok() && !handed.job.done() {
            drop(connection);
            hand(more, handed);
            continue;
        }
        worker::answered(common, &slot, connection, handed.job, sent.map(|_| ()));
    }
}
