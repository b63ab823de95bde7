//! The receiver over HTTP/protobuf.

use std::{convert::Infallible, io::Read as _, sync::Arc};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::Notify};

use crate::{State, Verdict};

pub(crate) async fn serve(listener: TcpListener, state: Arc<State>, end: Arc<Notify>) {
    let accepting = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let state = Arc::clone(&state);
            let answering = service_fn(move |request| answer(request, Arc::clone(&state)));
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), answering);
            // A connection that breaks is the sender's affair.
            tokio::spawn(async { serving.await.ok() });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = end.notified() => {}
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let mut body = body.to_bytes().to_vec();
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
        .collect();
    if headers.iter().any(|(name, value)| name == "content-encoding" && value == "gzip") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
        body = plain;
    }
    let body = body.as_slice();
    let verdict = match head.uri.path() {
        "/v1/traces" => {
            let sent = prost::Message::decode(body).unwrap();
            state.take(headers, |all| all.traces.push(sent)).await
        }
        "/v1/metrics" => {
            let sent = prost::Message::decode(body).unwrap();
            state.take(headers, |all| all.metrics.push(sent)).await
        }
        "/v1/logs" => {
            let sent = prost::Message::decode(body).unwrap();
            state.take(headers, |all| all.logs.push(sent)).await
        }
        _ => return Ok(status(StatusCode::NOT_FOUND)),
    };
    Ok(match verdict {
        Verdict::Unavailable => status(StatusCode::SERVICE_UNAVAILABLE),
        Verdict::Refuse => status(StatusCode::BAD_REQUEST),
        Verdict::Take { rejected } => {
            // The three kinds of answer have the same shape on the wire.
            let partial_success = (rejected > 0).then(|| ExportTracePartialSuccess {
                rejected_spans: rejected,
                error_message: "too many".to_owned(),
            });
            let body = ExportTraceServiceResponse { partial_success }.encode_to_vec();
            Response::new(Full::new(body.into()))
        }
    })
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
