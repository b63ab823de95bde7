//! A real OTLP receiver for tests: it takes what is sent over gRPC or HTTP/protobuf and keeps it,
//! or misbehaves as it is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test part")]

pub mod faults;
mod grpc;
mod http;
pub mod read;

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

pub use opentelemetry_proto::tonic as proto;
use opentelemetry_proto::tonic::collector::{
    logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest,
    trace::v1::ExportTraceServiceRequest,
};
use tokio::sync::Notify;

/// What was received.
#[derive(Debug, Default)]
pub struct Received {
    /// Requests with spans.
    pub traces: Vec<ExportTraceServiceRequest>,
    /// Requests with metrics.
    pub metrics: Vec<ExportMetricsServiceRequest>,
    /// Requests with log records.
    pub logs: Vec<ExportLogsServiceRequest>,
    /// Headers of the last request, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Requests that were answered with an error.
    pub refused: u64,
}

/// How the receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Takes everything.
    Takes,
    /// Takes it, and answers after this time.
    Slow(Duration),
    /// Is unavailable this many times, then takes everything.
    UnavailableFirst(u64),
    /// Says that the request is wrong: trying again is no use.
    Refuses,
    /// Takes it, and says that this many items of each request were rejected.
    Rejects(i64),
}

/// What a request gets.
enum Verdict {
    Take { rejected: i64 },
    Unavailable,
    Refuse,
}

/// What the servers share.
#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    received: Mutex<Received>,
    changed: Condvar,
}

impl State {
    /// Decides on a request and, where it is taken, keeps it.
    async fn take(
        &self,
        headers: Vec<(String, String)>,
        keep: impl FnOnce(&mut Received) + Send,
    ) -> Verdict {
        if let Behaviour::Slow(time) = self.behaviour {
            tokio::time::sleep(time).await;
        }
        let mut received = self.received.lock().unwrap();
        received.headers = headers;
        let verdict = match self.behaviour {
            Behaviour::UnavailableFirst(times) if received.refused < times => Verdict::Unavailable,
            Behaviour::Refuses => Verdict::Refuse,
            Behaviour::Rejects(rejected) => Verdict::Take { rejected },
            _ => Verdict::Take { rejected: 0 },
        };
        match verdict {
            Verdict::Take { .. } => keep(&mut received),
            _ => received.refused += 1,
        }
        self.changed.notify_all();
        verdict
    }
}

/// A receiver that runs until it is dropped.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    state: Arc<State>,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Speaks gRPC.
    pub fn grpc(behaviour: Behaviour) -> Self {
        Self::start(behaviour, true)
    }

    /// Speaks HTTP/protobuf.
    pub fn http(behaviour: Behaviour) -> Self {
        Self::start(behaviour, false)
    }

    fn start(behaviour: Behaviour, grpc: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            Arc::new(State { behaviour, received: Mutex::default(), changed: Condvar::new() });
        let end = Arc::new(Notify::new());
        let (serve, ended) = (Arc::clone(&state), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                if grpc {
                    grpc::serve(listener, serve, ended).await;
                } else {
                    http::serve(listener, serve, ended).await;
                }
            });
        });
        Self { address, state, end, thread: Some(thread) }
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until what was received is what `look` looks for.
    ///
    /// # Panics
    /// Where that does not come about within a minute.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&Received) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut received = self.state.received.lock().unwrap();
        loop {
            if let Some(found) = look(&received) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {what}: {received:?}");
            received = self.state.changed.wait_timeout(received, left).unwrap().0;
        }
    }

    /// What has been received so far.
    pub fn look<T>(&self, look: impl FnOnce(&Received) -> T) -> T {
        look(&self.state.received.lock().unwrap())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}
