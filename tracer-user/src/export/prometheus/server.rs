//! The HTTP end. It has a thread of its own, and bounds for all that a scraper can do: connections
//! at a time, length of a head, and time, from the connection's begin to the answer's last byte.
//! One connection carries one request. A scraper that is slow, or many, costs the agent nothing but
//! these bounds.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use prometheus_client::{encoding::prometheus_text, metrics::counter::Counter, registry::Registry};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, oneshot},
    time::timeout,
};

/// Longest head of a request, bytes.
const MAX_HEAD: usize = 16_384;
const MAX_HEADERS: usize = 64;
/// A text is handed out again for this long before the next is made.
const FRESH: Duration = Duration::from_millis(500);
/// The pipeline is taken to be stuck when it has not said anything for this long.
const STUCK: Duration = Duration::from_secs(15);
/// Pause after `accept` failed: out of descriptors, for instance.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// What scrapers may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at a time; further ones wait in the kernel's queue.
    pub(super) connections: usize,
    /// How long one may last.
    pub(super) time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 8, time: Duration::from_secs(10) }
    }
}

/// What the HTTP end and the pipeline's thread share.
#[derive(Debug)]
pub(super) struct Shared {
    registry: Registry,
    text: Mutex<Text>,
    alive: Mutex<Instant>,
    scrapes: Counter,
    cut: Counter,
}

#[derive(Debug, Default)]
struct Text {
    made: Option<Instant>,
    bytes: Bytes,
}

impl Shared {
    /// For these metrics.
    pub(super) fn new(mut registry: Registry) -> Self {
        let (scrapes, cut) = (Counter::default(), Counter::default());
        registry.register("spanprobe_scrapes", "Scrapes answered", scrapes.clone());
        registry.register(
            "spanprobe_scrapes_cut",
            "Connections of scrapers that were cut: too slow, or not HTTP",
            cut.clone(),
        );
        Self { registry, text: Mutex::default(), alive: Mutex::new(Instant::now()), scrapes, cut }
    }

    /// The pipeline moves.
    pub(super) fn moved(&self) {
        *lock(&self.alive) = Instant::now();
    }

    /// The metrics, in the Prometheus text format.
    fn metrics(&self) -> Option<Bytes> {
        self.scrapes.inc();
        let mut text = lock(&self.text);
        if text.made.is_none_or(|made| made.elapsed() >= FRESH) {
            // The next is about as long as the last.
            let mut new = String::with_capacity(text.bytes.len() + 4_096);
            prometheus_text::encode(&mut new, &self.registry).ok()?;
            text.bytes = Bytes::from(new);
            text.made = Some(Instant::now());
        }
        Some(text.bytes.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// Where the address cannot be listened on, or no thread started.
    pub(super) fn start(
        address: SocketAddr,
        shared: Arc<Shared>,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("prometheus".to_owned()).spawn(move || {
            runtime.block_on(async {
                // An error means that this end is gone: the same.
                let _accepting = tokio::spawn(accept(listener, shared, limits));
                let _ = stopped.await;
            });
            // With the runtime go its tasks, and with them the connections.
        })?;
        Ok(Self { address, stop, thread })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it, with whatever connections there are.
    pub(super) fn stop(self) {
        let _ = self.stop.send(());
        // A panic there has been printed.
        let _ = self.thread.join();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, limits: Limits) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let places = Arc::new(Semaphore::new(limits.connections));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    serve(stream, shared, limits.time).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, time: Duration) {
    let service = service_fn(|request| {
        let response = answer(&request, &shared);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if !matches!(timeout(time, connection).await, Ok(Ok(()))) {
        shared.cut.inc();
    }
}

fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match shared.metrics() {
            Some(text) => {
                typed(StatusCode::OK, text, HeaderValue::from_static(prometheus_text::CONTENT_TYPE))
            }
            None => plain(StatusCode::INTERNAL_SERVER_ERROR, "cannot be written down\n".into()),
        },
        "/healthz" => {
            let since = lock(&shared.alive).elapsed();
            if since < STUCK {
                plain(StatusCode::OK, "ok\n".into())
            } else {
                let text = format!("the pipeline has not moved for {} s\n", since.as_secs());
                plain(StatusCode::SERVICE_UNAVAILABLE, text.into())
            }
        }
        _ => plain(StatusCode::NOT_FOUND, "spanprobe: /metrics and /healthz\n".into()),
    }
}

fn plain(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    typed(status, body, HeaderValue::from_static("text/plain; charset=utf-8"))
}

fn typed(status: StatusCode, body: Bytes, kind: HeaderValue) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
