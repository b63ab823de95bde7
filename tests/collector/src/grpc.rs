//! The receiver over gRPC.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::{
    logs::v1::{
        ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
        logs_service_server::{LogsService, LogsServiceServer},
    },
    metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
};
use tokio::{net::TcpListener, sync::Notify};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    codec::CompressionEncoding::Gzip,
    metadata::{KeyAndValueRef, MetadataMap},
    transport::Server,
};

use crate::{State, Verdict};

struct Service(Arc<State>);

pub(crate) async fn serve(listener: TcpListener, state: Arc<State>, end: Arc<Notify>) {
    let serving = Server::builder()
        .add_service(TraceServiceServer::new(Service(Arc::clone(&state))).accept_compressed(Gzip))
        .add_service(MetricsServiceServer::new(Service(Arc::clone(&state))).accept_compressed(Gzip))
        .add_service(LogsServiceServer::new(Service(state)).accept_compressed(Gzip))
        .serve_with_incoming(TcpListenerStream::new(listener));
    // Connections that are open are cut off.
    tokio::select! {
        served = serving => served.unwrap(),
        () = end.notified() => {}
    }
}

fn headers(metadata: &MetadataMap) -> Vec<(String, String)> {
    let ascii = metadata.iter().filter_map(|entry| match entry {
        KeyAndValueRef::Ascii(key, value) => {
            Some((key.to_string(), value.to_str().unwrap_or_default().to_owned()))
        }
        KeyAndValueRef::Binary(..) => None,
    });
    ascii.collect()
}

fn rejected(verdict: Verdict) -> Result<Option<i64>, Status> {
    match verdict {
        Verdict::Take { rejected: 0 } => Ok(None),
        Verdict::Take { rejected } => Ok(Some(rejected)),
        Verdict::Unavailable => Err(Status::unavailable("not now")),
        Verdict::Refuse => Err(Status::invalid_argument("not like this")),
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, body) = request.into_parts();
        let verdict = self.0.take(headers(&metadata), |all| all.traces.push(body)).await;
        let partial_success = rejected(verdict)?.map(|rejected_spans| ExportTracePartialSuccess {
            rejected_spans,
            error_message: "too many".to_owned(),
        });
        Ok(Response::new(ExportTraceServiceResponse { partial_success }))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let (metadata, _, body) = request.into_parts();
        let verdict = self.0.take(headers(&metadata), |all| all.metrics.push(body)).await;
        let partial_success =
            rejected(verdict)?.map(|rejected_data_points| ExportMetricsPartialSuccess {
                rejected_data_points,
                error_message: "too many".to_owned(),
            });
        Ok(Response::new(ExportMetricsServiceResponse { partial_success }))
    }
}

#[tonic::async_trait]
impl LogsService for Service {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let (metadata, _, body) = request.into_parts();
        let verdict = self.0.take(headers(&metadata), |all| all.logs.push(body)).await;
        let partial_success = rejected(verdict)?.map(|rejected_log_records| {
            ExportLogsPartialSuccess { rejected_log_records, error_message: "too many".to_owned() }
        });
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}
